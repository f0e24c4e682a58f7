//! A log that this process writes: how far it is submitted, acknowledged and recorded.
//!
//! [`OpenFiles`](super::open_files::OpenFiles) keeps one [`WrittenLog`] for each log until it is
//! ended or removed. The file's writer owns the [`LogWriter`](crate::log::LogWriter) itself.
//!
//! Invariants:
//! 1. No append counts as acknowledged before the record of the log's first layout is durable.
//! 2. The acknowledged end is decided once: bytes before it stay acknowledged after an error, and
//!    after the first error it never grows. So the header of the next segment, which names it, and
//!    the answers to all waiting writers agree in every order of threads.
//!
//! Thread-safety: any thread may call any method; the file's writer alone calls
//! [`WrittenLog::note_submitted`].
//! Failure: errors name the path and are sticky in the log.
//! Cost: a wait costs two atomic operations once the record is durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::{Error, Result};
use parking_lot::Mutex;

use super::failure::named;
use crate::log::LogPosition;
use crate::volume::record::FileKey;
use crate::volume::{Hold, Moment, Volume};

/// A log that has a writer in this process.
#[derive(Debug)]
pub(super) struct WrittenLog {
    volume: Arc<Volume>,
    /// Path at the creation of the file, for messages.
    path: PathBuf,
    position: Arc<dyn LogPosition>,
    /// Number of bytes of the file before the log.
    head_bytes: u64,
    /// Number of bytes that were submitted to the log.
    submitted: AtomicU64,
    /// Number of acknowledged bytes in `verdict`, for readers without its lock.
    acknowledged: AtomicU64,
    verdict: Mutex<AcknowledgedEnd>,
    /// Position after the record with the first layout.
    moment: Moment,
    /// Whether that record is known to be durable.
    is_recorded: AtomicBool,
    key: FileKey,
    /// Keeps the log while it is written. The drop comes last.
    _hold: Hold,
}

/// Number of bytes that a wait or a sync has found acknowledged.
#[derive(Debug, Default)]
struct AcknowledgedEnd {
    bytes: u64,
    /// The first error, after which no more bytes are acknowledged.
    frozen: Option<Error>,
}

impl AcknowledgedEnd {
    /// Decides whether the bytes before `end` are acknowledged. `waited` is the pool's answer to a
    /// wait for them.
    fn judge(&mut self, end: u64, waited: Result<()>) -> Result<()> {
        if end <= self.bytes {
            return Ok(());
        }
        if let Some(error) = &self.frozen {
            return Err(error.clone());
        }
        match &waited {
            Ok(()) => self.bytes = end,
            Err(error) => self.frozen = Some(error.clone()),
        }
        waited
    }
}

/// Parameters of [`WrittenLog::new`]: a log that was begun, and whose record was submitted.
#[derive(Debug)]
pub(super) struct RecordedLog {
    pub(super) path: PathBuf,
    pub(super) position: Arc<dyn LogPosition>,
    pub(super) head_bytes: u64,
    pub(super) moment: Moment,
    pub(super) key: FileKey,
}

impl WrittenLog {
    pub(super) fn new(volume: &Arc<Volume>, recorded: RecordedLog) -> Arc<Self> {
        let RecordedLog { path, position, head_bytes, moment, key } = recorded;
        Arc::new(Self {
            volume: Arc::clone(volume),
            path,
            position,
            head_bytes,
            submitted: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            verdict: Mutex::default(),
            moment,
            is_recorded: AtomicBool::new(false),
            key,
            _hold: volume.hold(key),
        })
    }

    pub(super) fn key(&self) -> FileKey {
        self.key
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file through the bytes that are known to be acknowledged. Submitted bytes
    /// beyond them may not be readable yet.
    pub(super) fn acknowledged_len(&self) -> u64 {
        self.head_bytes + self.acknowledged()
    }

    /// Number of bytes of the file before the log.
    pub(super) fn head_bytes(&self) -> u64 {
        self.head_bytes
    }

    /// Number of bytes of the log that are known to be acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Number of bytes that were submitted to the log.
    pub(super) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Notes that the log has `len` bytes now.
    pub(super) fn note_submitted(&self, len: u64) {
        self.submitted.store(len, Ordering::Release);
    }

    /// Waits until the record of the log is durable, because a reader finds the bytes through it.
    fn wait_recorded(&self) -> Result<()> {
        if !self.is_recorded.load(Ordering::Acquire) {
            self.volume.wait(self.moment)?;
            self.is_recorded.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Waits until all bytes of the log before `end` survive a kill of processes.
    pub(super) fn wait_acknowledged(&self, end: u64) -> Result<()> {
        if self.acknowledged() >= end {
            return Ok(());
        }
        let waited = self.wait_recorded().and_then(|()| self.position.wait(end));
        let waited = self.volume.observe(waited);
        self.decide(end, waited.map_err(|error| named(&error, "append to", &self.path)))
    }

    /// Makes all bytes durable that were submitted before the call, and returns their number.
    pub(super) fn sync_all(&self) -> Result<u64> {
        let synced = self.wait_recorded().and_then(|()| self.position.sync());
        let synced = self.volume.observe(synced);
        let through = synced.map_err(|error| {
            let error = named(&error, "sync", &self.path);
            self.freeze(&error);
            error
        })?;
        self.decide(through, Ok(()))?;
        Ok(through)
    }

    /// Acknowledges no more bytes, because an append failed.
    pub(super) fn freeze(&self, error: &Error) {
        self.verdict.lock().frozen.get_or_insert_with(|| error.clone());
    }

    /// Decides whether the bytes before `end` are acknowledged. `waited` is the result of the
    /// caller's wait for these bytes.
    pub(super) fn decide(&self, end: u64, waited: Result<()>) -> Result<()> {
        let mut verdict = self.verdict.lock();
        let decided = verdict.judge(end, waited);
        self.acknowledged.store(verdict.bytes, Ordering::Release);
        decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> Error {
        Error::busy("the pool lost the append")
    }

    #[test]
    fn acknowledged_bytes_stay_so_after_an_error() {
        let mut end = AcknowledgedEnd::default();
        assert!(end.judge(300, Ok(())).is_ok());
        assert!(end.judge(400, Err(lost())).is_err());
        // A waiter for earlier bytes asks after the error. It gets the sticky error of the pool,
        // although its bytes were acknowledged before.
        assert!(end.judge(200, Err(lost())).is_ok());
        assert_eq!(end.bytes, 300);
    }

    #[test]
    fn acknowledged_end_does_not_grow_after_an_error() {
        let mut end = AcknowledgedEnd::default();
        assert!(end.judge(200, Err(lost())).is_err());
        // The pool confirms earlier bytes too late. The header of the next segment names the
        // decided end already, so the end must not grow.
        assert!(end.judge(100, Ok(())).is_err());
        assert_eq!(end.bytes, 0);
    }
}
