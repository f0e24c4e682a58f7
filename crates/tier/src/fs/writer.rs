//! Files that are being written.
//!
//! The output of a compaction takes over the heat of what its thread merged meanwhile, so that the
//! tables of hot keys are hot from the start. A writer charges its device with the bytes that it
//! appends, counts as a writer of it until it is dropped, and then leaves a closed file, which may
//! move. A log is charged as it is finished or dropped: an append to it does nothing here but pass
//! on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result};
use archipelago_env::{FileClass, LogFile, LogSync, WritableFile};

use super::entry::{Entry, take_carried};
use super::physical::Physical;
use super::shared::Shared;
use crate::device::{Count, WriterGuard};
use crate::write_slots::WriteSlot;

/// What a writer tells when it begins and ends.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) shared: Arc<Shared>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) physical: Arc<Physical>,
    /// What it counts as in the averages of writers.
    kind: Option<usize>,
    /// Whether it takes over the heat of what its thread merges.
    inherits: bool,
    guard: Option<(WriterGuard, Option<WriteSlot>)>,
}

impl Writing {
    pub(crate) fn begin(
        shared: &Arc<Shared>,
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
        // New is not idle.
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
            // What was removed may give it room.
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
        // One writer less: what waited for that may begin.
        if self.shared.queue.has_jobs() {
            self.shared.wake_workers();
        }
    }
}

#[derive(Debug)]
pub(crate) struct TierWriter {
    // Dropped first: the file is closed when it stops counting as written.
    inner: Box<dyn WritableFile>,
    writing: Writing,
    /// Its length as the device knows it. It is told every `step` bytes, and of the rest when the
    /// file is flushed or closed.
    charged: u64,
    step: u64,
}

/// The device is told of a table's growth every so many bytes, or every thousandth of its capacity
/// if that is less: all who write to it count in the same place, and a table grows by a block at a
/// time. Nothing is decided by less: 2 % of the capacity are kept free.
const TABLE_STEP_BYTES: u64 = 64 << 10;

impl TierWriter {
    pub(crate) fn new(inner: Box<dyn WritableFile>, writing: Writing) -> Self {
        let charged = inner.len();
        let step = match writing.entry.class {
            FileClass::Sst => {
                let capacity = writing.physical.device().capacity.load(Ordering::Relaxed);
                (capacity / 1024).min(TABLE_STEP_BYTES)
            }
            _ => 0,
        };
        Self { inner, writing, charged, step }
    }

    /// Tells the device of the file's length; copies make way for a table.
    fn charge(&mut self) {
        let len = self.inner.len();
        let Writing { shared, physical, entry, .. } = &self.writing;
        physical.set_len(len);
        physical.device().add(Count::WrittenBytes, len.saturating_sub(self.charged));
        self.charged = len;
        if entry.class == FileClass::Sst {
            shared.make_way(physical.device, 0);
        }
    }

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

    /// A log over the space of an old one is as long as that was, or longer.
    fn charge(&mut self) {
        let (len, physical) = (self.inner.len(), &self.writing.physical);
        physical.device().add(Count::WrittenBytes, len - self.charged);
        self.charged = len;
        physical.set_len(len.max(physical.len()));
        let (shared, index) = (&self.writing.shared, physical.device);
        if physical.device().short_of(shared.reserve_of(index)) > 0 {
            // It makes way.
            shared.wake_workers();
        }
    }
}

/// The device is told of a log's growth every so many bytes.
const CHARGE_BYTES: u64 = 1 << 20;

impl LogFile for TierLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        match self.inner.append(parts) {
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
