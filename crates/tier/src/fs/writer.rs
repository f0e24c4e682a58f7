//! Files that are being written.
//!
//! A writer charges its device with the bytes that it appends. It counts as a writer of the device
//! until it is dropped. Then the file is closed, and may move. The output of a compaction or of a
//! garbage collection takes over the heat of the bytes that its thread merged in the meantime, so
//! that tables of hot keys and files of hot values are hot from the start.
//!
//! Invariant: the bytes of a closed file are charged to its device.
//!
//! Thread-safety: one thread at a time uses a writer.
//! Failure: an error of the device is noted for the device and returned.
//! Cost: a table charges its device every 64 KiB. An append to a log costs nothing beyond the
//! append of the device, except every MiB.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result};
use archipelago_env::{FileClass, LogFile, LogSync, WritableFile};

use super::entry::{Entry, take_carried};
use super::physical::Physical;
use super::shared::OpenTiers;
use crate::device::{Count, WriterGuard};
use crate::write_slots::WriteSlot;

/// One writer of a file: counts begin with [`Writing::begin`] and end with the drop.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) shared: Arc<OpenTiers>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) physical: Arc<Physical>,
    /// Index of the file's kind in [`crate::activity::Activity`], if files of its kind are counted.
    kind: Option<usize>,
    /// Whether the file takes over the heat of the bytes that its thread merges.
    inherits: bool,
    /// The device's count of writers, and the write slot. The drop ends them after the other
    /// counts.
    guard: Option<(WriterGuard, Option<WriteSlot>)>,
}

impl Writing {
    pub(crate) fn begin(
        shared: &Arc<OpenTiers>,
        entry: &Arc<Entry>,
        physical: Arc<Physical>,
        kind: Option<usize>,
        inherits: bool,
        guard: (WriterGuard, Option<WriteSlot>),
    ) -> Self {
        entry.writers.fetch_add(1, Ordering::AcqRel);
        if let Some(kind) = kind {
            shared.activity.open(kind, shared.now_ns());
        }
        // A new file does not count as idle.
        entry.last_read_ms.fetch_max(shared.now_ms(), Ordering::Relaxed);
        entry.born_ms.fetch_max(shared.now_ms(), Ordering::Relaxed);
        let (shared, entry) = (Arc::clone(shared), Arc::clone(entry));
        Self { shared, entry, physical, kind, inherits, guard: Some(guard) }
    }

    fn timed<T>(&self, bytes: usize, write: impl FnOnce() -> T) -> T {
        self.physical.device().timed(|| self.shared.now_ns(), bytes, write)
    }

    #[cold]
    fn note(&self, outcome: &Result<()>) {
        self.physical.device().note(outcome, self.shared.now_ns());
        if outcome.as_ref().is_err_and(Error::is_no_space) {
            // Removed files may free room.
            self.shared.wake_workers();
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(kind) = self.kind {
            self.shared.activity.close(kind, self.shared.now_ns());
        }
        if self.inherits {
            self.entry.accesses.inherit(take_carried(&self.shared));
        }
        self.entry.writers.fetch_sub(1, Ordering::AcqRel);
        drop(self.guard.take());
        // The device has one writer less, so a queued job may begin.
        if self.shared.queue.has_jobs() {
            self.shared.wake_workers();
        }
    }
}

/// A table or another plain file that is being written.
#[derive(Debug)]
pub(crate) struct TierWriter {
    // Dropped first, so that the file is closed before it stops counting as written.
    inner: Box<dyn WritableFile>,
    writing: Writing,
    /// Length that is charged to the device.
    charged: u64,
    /// Bytes after which the device is charged. A flush and the drop charge the rest.
    step: u64,
}

/// Growth of a table, in bytes, after which its device is charged, or one thousandth of the
/// device's capacity if that is less. A table grows block by block, and all writers of a device
/// share one counter. No decision needs a finer figure, because 2 % of the capacity are kept free.
const TABLE_STEP_BYTES: u64 = 64 << 10;

impl TierWriter {
    pub(crate) fn new(inner: Box<dyn WritableFile>, writing: Writing) -> Self {
        let charged = inner.len();
        let step = match writing.entry.class {
            FileClass::Sst | FileClass::ValueSst => {
                let capacity = writing.physical.device().capacity.load(Ordering::Relaxed);
                (capacity / 1024).min(TABLE_STEP_BYTES)
            }
            _ => 0,
        };
        Self { inner, writing, charged, step }
    }

    /// Charges the device with the file's length. For a table, drops copies if room is short.
    fn charge(&mut self) {
        let len = self.inner.len();
        let Writing { shared, physical, entry, .. } = &self.writing;
        physical.set_len(len);
        physical.device().add(Count::WrittenBytes, len.saturating_sub(self.charged));
        self.charged = len;
        if entry.class.is_table() {
            shared.make_room(physical.device, 0);
        }
    }

    /// Notes an error for the device.
    fn after(&self, outcome: Result<()>) -> Result<()> {
        if outcome.is_err() {
            self.writing.note(&outcome);
        }
        outcome
    }
}

impl WritableFile for TierWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let outcome = self.writing.timed(data.len(), || self.inner.append(data));
        if outcome.is_ok() && self.inner.len().saturating_sub(self.charged) >= self.step {
            self.charge();
        }
        self.after(outcome)
    }

    fn flush(&mut self) -> Result<()> {
        let outcome = self.writing.timed(0, || self.inner.flush());
        self.charge();
        self.after(outcome)
    }

    fn submit(&mut self) -> Result<()> {
        let outcome = self.writing.timed(0, || self.inner.submit());
        self.charge();
        self.after(outcome)
    }

    fn sync(&mut self) -> Result<()> {
        let outcome = self.writing.timed(0, || self.inner.sync());
        self.charge();
        if outcome.is_ok() {
            self.writing.physical.device().note(&outcome, 0);
        }
        self.after(outcome)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

impl Drop for TierWriter {
    fn drop(&mut self) {
        if self.inner.len() != self.charged {
            self.charge();
        }
    }
}

/// A log that is being written.
#[derive(Debug)]
pub(crate) struct TierLog {
    inner: Box<dyn LogFile>,
    writing: Writing,
    charged: u64,
}

impl TierLog {
    pub(crate) fn new(inner: Box<dyn LogFile>, writing: Writing) -> Self {
        Self { inner, writing, charged: 0 }
    }

    /// Charges the device with the log's length. A log in the space of an old one is at least as
    /// long as the old one.
    fn charge(&mut self) {
        let (len, physical) = (self.inner.len(), &self.writing.physical);
        physical.device().add(Count::WrittenBytes, len - self.charged);
        self.charged = len;
        physical.set_len(len.max(physical.len()));
        let (shared, index) = (&self.writing.shared, physical.device);
        if physical.device().short_of(shared.reserve_of(index)) > 0 {
            // The control loop drops copies.
            shared.wake_workers();
        }
    }
}

/// Growth of a log, in bytes, after which its device is charged.
const CHARGE_BYTES: u64 = 1 << 20;

impl TierLog {
    /// Charges the device after an append, or notes its error.
    #[inline]
    fn pushed(&mut self, pushed: Result<u64>) -> Result<u64> {
        match pushed {
            Ok(offset) => {
                if offset - self.charged >= CHARGE_BYTES {
                    self.charge();
                }
                Ok(offset)
            }
            Err(error) => {
                let outcome = Err(error);
                self.writing.note(&outcome);
                outcome.map(|()| 0)
            }
        }
    }
}

impl LogFile for TierLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let pushed = self.inner.append(parts);
        self.pushed(pushed)
    }

    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let pushed = self.inner.submit(parts);
        self.pushed(pushed)
    }

    fn acknowledges_later(&self) -> bool {
        self.inner.acknowledges_later()
    }

    fn hold_back(&mut self, bytes: u64) {
        self.inner.hold_back(bytes);
    }

    fn follow(&mut self, previous: Arc<dyn LogSync>, end: u64) -> Result<()> {
        self.inner.follow(previous, end)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        self.inner.sync_handle()
    }

    fn finish(&mut self) -> Result<()> {
        let outcome = self.inner.finish();
        self.charge();
        if outcome.is_err() {
            self.writing.note(&outcome);
        }
        outcome
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        let outcome = self.inner.append_trailer(bytes);
        if outcome.is_err() {
            self.writing.note(&outcome);
        }
        outcome
    }

    fn unwritten_bytes(&self) -> u64 {
        self.inner.unwritten_bytes()
    }
}

impl Drop for TierLog {
    fn drop(&mut self) {
        self.charge();
    }
}
