//! The bytes of a log segment on their way to the pool.
//!
//! A [`SegmentSender`] owns the writer of a segment's log. The segment's file and its sync handles
//! share the sender, so that a waiting thread can send the bytes that were kept back. Bytes are
//! kept back for two reasons:
//!
//! - The segment *follows* another one. Its header names the end of that predecessor, so nothing
//!   leaves before the predecessor has acknowledged this end.
//! - The engine buffers its log. Small appends then travel together.
//!
//! Invariants:
//! 1. Bytes leave in the order of their submission.
//! 2. No byte leaves before the predecessor has acknowledged its end. If the predecessor fails, no
//!    byte ever leaves.
//! 3. After the first error nothing leaves, and bytes that have not left still count as submitted,
//!    so that no wait for them succeeds.
//! 4. A wait returns an error only for bytes beyond the acknowledged end that the log has decided
//!    ([`WrittenLog`]). Otherwise a write could be refused although recovery applies its record.
//!
//! Thread-safety: one lock guards the writer and the bytes. It is not held over a wait.
//! Failure: errors name the path, are sticky, and end the acknowledgements of the log.
//! Cost: a submit takes one lock. Bytes that are kept back are copied once more.

use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::LogSync;
use parking_lot::Mutex;

use super::open_files::OpenFiles;
use super::written_log::WrittenLog;
use crate::log::LogWriter;

/// The segment whose end must be acknowledged first.
#[derive(Clone, Debug)]
struct Predecessor {
    log: Arc<dyn LogSync>,
    end: u64,
}

/// State that the lock of a sender guards.
#[derive(Debug)]
struct SendState {
    /// `None` once the file was dropped.
    writer: Option<Box<dyn LogWriter>>,
    /// Number of bytes that were submitted, also if an error keeps them from leaving.
    len: u64,
    /// Bytes that were submitted and have not left.
    held: Vec<u8>,
    /// Number of bytes that may be kept back without a predecessor.
    hold_bytes: usize,
    predecessor: Option<Predecessor>,
    failed: Option<Error>,
}

impl SendState {
    /// Number of bytes that left.
    fn sent(&self) -> u64 {
        self.writer.as_ref().map_or(0, |writer| writer.len_bytes())
    }

    /// Whether the predecessor, if there is one, permits bytes to leave.
    fn is_free(&mut self) -> bool {
        let waits = |before: &Predecessor| before.log.acknowledged() < before.end;
        if !self.predecessor.as_ref().is_some_and(waits) {
            self.predecessor = None;
        }
        self.predecessor.is_none()
    }
}

/// Sender of one segment's bytes, which keeps back those that must not leave yet.
#[derive(Debug)]
pub(super) struct SegmentSender {
    files: Arc<OpenFiles>,
    log: Arc<WrittenLog>,
    state: Mutex<SendState>,
}

impl SegmentSender {
    pub(super) fn new(
        files: &Arc<OpenFiles>,
        log: &Arc<WrittenLog>,
        writer: Box<dyn LogWriter>,
    ) -> Arc<Self> {
        let state = SendState {
            writer: Some(writer),
            len: 0,
            held: Vec::new(),
            hold_bytes: 0,
            predecessor: None,
            failed: None,
        };
        let (files, log) = (Arc::clone(files), Arc::clone(log));
        Arc::new(Self { files, log, state: Mutex::new(state) })
    }

    /// Number of bytes that were submitted.
    pub(super) fn len(&self) -> u64 {
        self.state.lock().len
    }

    /// The first error, if there was one.
    pub(super) fn check(&self) -> Result<()> {
        self.state.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// Permits the sender to keep back up to `bytes` bytes.
    pub(super) fn hold_back(&self, bytes: u64) {
        self.state.lock().hold_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }

    /// Keeps everything back until `log` has acknowledged all bytes before `end`.
    pub(super) fn follow(&self, log: Arc<dyn LogSync>, end: u64) -> Result<()> {
        let mut state = self.state.lock();
        if state.len > 0 {
            let path = self.log.path().display();
            return Err(Error::internal(format!("the log segment {path} has bytes already")));
        }
        state.predecessor = Some(Predecessor { log, end });
        Ok(())
    }

    /// Submits `parts`, and returns the offset of the first byte.
    pub(super) fn submit(&self, parts: &[&[u8]]) -> Result<u64> {
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let offset = state.len;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let is_free = state.is_free();
        if is_free && state.held.is_empty() && bytes >= state.hold_bytes {
            self.push(&mut state, parts)?;
            state.len += bytes as u64;
            return Ok(offset);
        }
        parts.iter().for_each(|part| state.held.extend_from_slice(part));
        if is_free && state.held.len() >= state.hold_bytes {
            self.push_held(&mut state)?;
        }
        state.len += bytes as u64;
        Ok(offset)
    }

    /// Takes the writer of a file that is dropped. Bytes that are still kept back are lost, as with
    /// a kill of the process.
    pub(super) fn take_writer(&self) -> Option<Box<dyn LogWriter>> {
        self.state.lock().writer.take()
    }

    /// Waits until all bytes that were submitted are acknowledged. Bytes that an error has kept
    /// from leaving make it fail.
    pub(super) fn wait_all(&self) -> Result<()> {
        self.wait_through(self.len())
    }

    fn wait_through(&self, end: u64) -> Result<()> {
        let is_done = self.log.acknowledged() >= end;
        let waited = match if is_done { Ok(()) } else { self.release(end) } {
            Ok(()) => self.log.wait_acknowledged(end),
            // Another thread may have found these bytes acknowledged, while a third thread found an
            // error of later bytes.
            Err(error) => self.log.decide(end, Err(error)),
        };
        waited.map_err(|error| self.fail(&mut self.state.lock(), &error))
    }

    /// Sends all bytes before `end` that were submitted. Waits for the predecessor, and not for the
    /// bytes.
    fn release(&self, end: u64) -> Result<()> {
        loop {
            let mut state = self.state.lock();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.sent() >= end || state.held.is_empty() {
                return Ok(());
            }
            if state.is_free() {
                return self.push_held(&mut state);
            }
            let Some(Predecessor { log, end }) = state.predecessor.clone() else { continue };
            drop(state);
            if let Err(error) = log.wait(end) {
                return Err(self.fail(&mut self.state.lock(), &error));
            }
        }
    }

    fn push_held(&self, state: &mut SendState) -> Result<()> {
        if state.held.is_empty() {
            return Ok(());
        }
        let held = std::mem::take(&mut state.held);
        self.push(state, &[&held])?;
        if state.hold_bytes > 0 {
            // The allocation is reused for the next bytes.
            state.held = held;
            state.held.clear();
        }
        Ok(())
    }

    fn push(&self, state: &mut SendState, parts: &[&[u8]]) -> Result<()> {
        let path = self.log.path();
        let Some(writer) = &mut state.writer else {
            return Err(Error::closed(format!("the log segment {} is closed", path.display())));
        };
        let pushed = self.files.heard(writer.submit(parts), "append to", path);
        match pushed {
            Ok(_) => {
                self.log.note_submitted(writer.len_bytes());
                Ok(())
            }
            Err(error) => Err(self.fail(state, &error)),
        }
    }

    /// Notes an error, and returns the first one.
    fn fail(&self, state: &mut SendState, error: &Error) -> Error {
        let first = state.failed.get_or_insert_with(|| error.clone()).clone();
        self.log.freeze(&first);
        first
    }
}

impl LogSync for SegmentSender {
    fn sync(&self) -> Result<u64> {
        self.release(u64::MAX)?;
        self.log.sync_all()
    }

    fn wait(&self, end: u64) -> Result<()> {
        self.wait_through(end)
    }

    fn send(&self) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if state.is_free() { self.push_held(&mut state) } else { Ok(()) }
    }

    fn acknowledged(&self) -> u64 {
        self.log.acknowledged()
    }

    /// Waits for the acknowledgement of the pool. No page cache of this machine has the bytes.
    fn write_through(&self) -> Result<u64> {
        self.release(u64::MAX)?;
        let end = self.log.submitted();
        self.log.wait_acknowledged(end)?;
        Ok(end)
    }
}
