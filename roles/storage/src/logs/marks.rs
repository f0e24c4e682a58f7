//! The mark of an extent: the offset through which its bytes were durable. It distinguishes damage
//! from limbo.
//!
//! After a restart a node finds the valid prefix of an open extent. If the prefix ends before the
//! mark, synced bytes are missing. A power loss does not take synced bytes, so the replica is
//! damaged. If it ends behind the mark, at most unsynced bytes are missing.
//! `docs/formats/extent.md` has the byte table.
//!
//! A mark names the part that it is about, so a mark that outlived its extent says nothing about
//! another extent of the same name.
//!
//! Invariants:
//! 1. The bytes before a mark were durable before the mark was written.
//! 2. The mark of a log that all replicas acknowledge (every class but `Wal`) is durable before the
//!    node says that bytes are synced. The mark of a write-ahead log may be up to
//!    [`WAL_STEP_BYTES`] behind, but exists from the first sync of each part on.
//!
//! Thread-safety: one lock per extent orders its marks. It is held over the write of the metadata,
//! and never taken together with the lock of the extent's state.
//! Failure: a mark that cannot be written refuses the sync, which may be repeated.
//! Cost: one synced write of the metadata per sync of a manifest or a namespace, and per
//! [`WAL_STEP_BYTES`] of a write-ahead log. Concurrent ones share a sync.

use archipelago_base::codec::{Reader, put_u8, put_u64};
use archipelago_base::{Epoch, Error, Result};
use archipelago_env::FileClass;
use archipelago_store::nodes::wire::ExtentAt;
use parking_lot::Mutex;

use super::LogEnv;
use super::record::extent_key;
use crate::meta::{MetaBatch, MetaSpace};

/// Version of the value of a mark.
const MARK_VERSION: u8 = 1;
/// Synced bytes of a write-ahead log after which a new mark is written.
const WAL_STEP_BYTES: u64 = 1 << 20;

/// Position through which an extent was durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SyncMark {
    /// Number of the last part at the sync.
    pub(crate) part: Epoch,
    /// Offset in the log through which the extent was synced.
    pub(crate) end: u64,
}

impl SyncMark {
    /// The value of the mark in the metadata.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17);
        put_u8(&mut out, MARK_VERSION);
        put_u64(&mut out, self.part.0);
        put_u64(&mut out, self.end);
        out
    }

    /// Reads the value of the mark of the extent `at`. Errors: `Unsupported` for another version or
    /// length.
    pub(crate) fn decode(at: ExtentAt, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let is_known = reader.u8() == Some(MARK_VERSION);
        let fields = reader.u64().zip(reader.u64());
        match fields.filter(|_| is_known && reader.is_empty()) {
            Some((part, end)) => Ok(Self { part: Epoch(part), end }),
            None => Err(Error::unsupported(format!(
                "extent {at}: the mark of its last sync cannot be read; a program of another \
                 version wrote it: use that program"
            ))),
        }
    }

    /// Adds the mark of the extent `at` to `batch`.
    pub(crate) fn put(&self, at: ExtentAt, batch: &mut MetaBatch) {
        batch.put(MetaSpace::Marks, &extent_key(at), &self.encode());
    }

    /// Whether a sync that reached this mark needs it to be written after the mark `written`.
    fn is_due(&self, class: FileClass, written: &Self) -> bool {
        let step = match class {
            FileClass::Wal if self.part == written.part => WAL_STEP_BYTES,
            _ => 1,
        };
        self.end >= written.end.saturating_add(step)
    }
}

/// The newest mark of an extent that is durable.
#[derive(Debug, Default)]
pub(crate) struct DurableMark {
    written: Mutex<SyncMark>,
}

impl DurableMark {
    /// The mark that the opening found.
    pub(crate) fn found(mark: SyncMark) -> Self {
        Self { written: Mutex::new(mark) }
    }

    /// Makes `mark` durable if it is due, after a sync that reached it.
    pub(crate) fn advance(
        &self,
        env: &LogEnv,
        at: ExtentAt,
        class: FileClass,
        mark: SyncMark,
    ) -> Result<()> {
        let mut written = self.written.lock();
        if mark.is_due(class, &written) {
            let mut batch = MetaBatch::default();
            mark.put(at, &mut batch);
            env.counters.note_sync();
            env.meta.write(&batch)?;
            *written = mark;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_a_mark_do_not_change() {
        let mark = SyncMark { part: Epoch(0x0102), end: 0x0304 };
        let bytes = mark.encode();
        assert_eq!(bytes, [1, 2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0]);
        let at = ExtentAt::default();
        assert_eq!(SyncMark::decode(at, &bytes).unwrap(), mark);
        for cut in 0..bytes.len() {
            assert!(SyncMark::decode(at, &bytes[..cut]).is_err(), "{cut} bytes");
        }
        assert!(SyncMark::decode(at, &[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn marks_of_write_ahead_logs_may_lag() {
        let written = SyncMark { part: Epoch(1), end: 100 };
        let due = |class, part, end| SyncMark { part: Epoch(part), end }.is_due(class, &written);
        assert!(due(FileClass::Manifest, 1, 101) && !due(FileClass::Manifest, 1, 100));
        assert!(!due(FileClass::Wal, 1, 100 + WAL_STEP_BYTES - 1));
        assert!(due(FileClass::Wal, 1, 100 + WAL_STEP_BYTES));
        assert!(due(FileClass::Wal, 2, 101), "the first sync of a part");
    }
}
