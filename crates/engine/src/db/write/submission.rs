//! A write on its way through the commit point: as it is submitted, and as it is granted.
//!
//! Invariants:
//! 1. A grant has as many sequence numbers as the write has records.
//! 2. A memtable that is sealed is flushed only when no grant for it exists any more.
//!
//! Thread-safety: a grant is taken under the commit lock, and used by one thread.
//! Cost: a write to one column family allocates nothing.

use std::sync::Arc;

use archipelago_base::{CfId, FileNo, SeqNo};

use crate::db::state::memtable::{Granted, Memtable};
use crate::db::write::commit_state::CommitState;
use crate::disk_space::SpaceUse;
use crate::wal::{BatchView, Unacknowledged};

/// Bytes of a write that go to one column family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FamilyShare {
    pub(crate) cf: CfId,
    pub(crate) bytes: u64,
}

/// A write as the commit lock sees it.
#[derive(Clone, Copy)]
pub(crate) struct Submission<'a> {
    pub(crate) payload: &'a [u8],
    pub(crate) payload_crc: u32,
    pub(crate) records: u64,
    pub(crate) shares: &'a [FamilyShare],
    pub(crate) wal: bool,
    pub(crate) space_use: SpaceUse,
}

impl Submission<'_> {
    /// Bytes that the write takes in memory. The write takes no more bytes than that in the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.shares.iter().map(|share| share.bytes).sum()
    }
}

/// Permission to insert: the write's place in the order, and the memtables that take it.
pub(crate) struct Grant {
    first_seq: SeqNo,
    last_seq: SeqNo,
    /// Segment that has the record of the write.
    log: Option<FileNo>,
    /// The record, if the log acknowledges it later.
    unacknowledged: Option<Unacknowledged>,
    memtables: Memtables,
}

enum Memtables {
    One(CfId, Granted),
    Many(Vec<(CfId, Granted)>),
}

impl Grant {
    /// Gives sequence numbers and memtables to a write whose record is in the log.
    pub(crate) fn take(state: &mut CommitState, write: &Submission<'_>) -> Self {
        let first_seq = state.give_numbers(write.payload, write.records);
        let last_seq = state.last_seq();
        let (log, unacknowledged) = match (state.log(), write.wal) {
            (Some(log), true) => (Some(log.position().no), log.unacknowledged()),
            _ => (None, None),
        };
        let grant = |state: &CommitState, share: &FamilyShare| {
            let memtable = state.active_of(share.cf).expect("prepared under this lock");
            memtable.grant(share.bytes, log);
            (share.cf, Granted(Arc::clone(memtable)))
        };
        let memtables = match write.shares {
            [only] => {
                let (cf, granted) = grant(state, only);
                Memtables::One(cf, granted)
            }
            many => Memtables::Many(many.iter().map(|share| grant(state, share)).collect()),
        };
        Self { first_seq, last_seq, log, unacknowledged, memtables }
    }

    #[inline]
    pub(crate) fn first_seq(&self) -> SeqNo {
        self.first_seq
    }

    #[inline]
    pub(crate) fn last_seq(&self) -> SeqNo {
        self.last_seq
    }

    /// Whether the log acknowledges the record later.
    #[inline]
    pub(crate) fn is_unacknowledged(&self) -> bool {
        self.unacknowledged.is_some()
    }

    /// The record, if the log acknowledges it later. Only the first call returns it.
    #[inline]
    pub(crate) fn take_unacknowledged(&mut self) -> Option<Unacknowledged> {
        self.unacknowledged.take()
    }

    /// Inserts the records of the write, whose batch is `payload`. It cannot fail, because the
    /// batch was checked.
    pub(crate) fn insert(&self, payload: &[u8]) {
        let batch = BatchView::decode(payload).expect("a batch that a writer submitted");
        let mut seq = self.first_seq;
        for op in batch.iter() {
            let op = op.expect("every record was read before the write was submitted");
            self.memtable(op.cf).insert(seq, op.kind, op.key, op.value, self.log);
            seq = SeqNo(seq.0 + 1);
        }
        assert_eq!(seq.0, self.last_seq.0 + 1, "a batch has as many records as it says");
    }

    /// The memtable of a column family of the write.
    fn memtable(&self, cf: CfId) -> &Memtable {
        match &self.memtables {
            Memtables::One(id, granted) => {
                assert_eq!(*id, cf, "the write has no grant for this family");
                &granted.0
            }
            Memtables::Many(all) => {
                let found = all.iter().find(|(id, _)| *id == cf);
                &found.expect("every family of a write was granted").1.0
            }
        }
    }
}

/// Outcome of a submission.
pub(crate) enum SubmissionAnswer {
    Granted(Grant),
    /// Another thread inserted the write. The number is its last sequence number.
    Inserted(SeqNo),
    Held(HeldReason),
}

/// Reason for which a write is not granted now.
#[derive(Clone, Copy)]
pub(crate) enum HeldReason {
    /// The memtable of this family is full and cannot be sealed yet.
    Memtable(CfId),
    /// The disk has no room for the write.
    Disk,
    /// Memory must be flushed first.
    Flush,
}
