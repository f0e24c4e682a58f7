//! What the commit lock guards: sequence numbers, the open log, the active memtables, and the
//! credit of room on the disk.
//!
//! [`Committer`](crate::db::write::commit::Committer) owns one [`CommitState`]. A thread changes it
//! only while it holds the commit lock ([`CommitGuard`]).
//!
//! Invariants:
//! 1. The last sequence number only grows while the database takes writes.
//! 2. A write is noted among the recent writes in the step that gives it its sequence numbers.
//! 3. A database that closes has no credit, and gets none. So every write of it meets the test for
//!    the close.
//!
//! Thread-safety: the commit lock guards everything.
//! Cost: a write pays a few additions and comparisons.

use std::sync::Arc;

use archipelago_base::{CfId, SeqNo};

use crate::concurrency::RecentWrites;
use crate::db::state::memtable::Memtable;
use crate::disk_space::SpaceUse;
use crate::lock_order::{CommitLock, OrderedGuard};
use crate::wal::LogWriter;

/// The commit lock, held.
pub(crate) type CommitGuard<'a> = OrderedGuard<'a, CommitState, CommitLock>;

/// State that the commit lock guards.
pub(crate) struct CommitState {
    /// The last sequence number given out.
    last_seq: SeqNo,
    /// The open log; `None` when the database is read only.
    log: Option<LogWriter>,
    /// Active memtables by column family id.
    active: Vec<Option<Arc<Memtable>>>,
    /// Keys of recent writes, for transactions that are being checked.
    recent: RecentWrites,
    /// Bytes that may be written before the disk is measured again.
    credit_bytes: u64,
    /// Bytes that writes that free space may write before the disk is measured again.
    freeing_credit_bytes: u64,
    /// Whether a write that frees space arrived since the last seal that was made for want of room.
    has_freed: bool,
    /// Whether the close has begun: every write is refused, and no credit is given.
    is_closing: bool,
}

impl CommitState {
    pub(crate) fn new(last_seq: SeqNo) -> Self {
        Self {
            last_seq,
            log: None,
            active: Vec::new(),
            recent: RecentWrites::default(),
            credit_bytes: 0,
            freeing_credit_bytes: 0,
            has_freed: false,
            is_closing: false,
        }
    }

    /// The last sequence number that was given out.
    #[inline]
    pub(crate) fn last_seq(&self) -> SeqNo {
        self.last_seq
    }

    /// Sets the last sequence number: after recovery, with a new picture, or for an ingestion.
    pub(crate) fn set_last_seq(&mut self, last_seq: SeqNo) {
        self.last_seq = last_seq;
    }

    /// Gives the next sequence numbers to a write of `records` records, and notes its keys for
    /// transactions that are being checked. Returns the first number.
    #[inline]
    pub(crate) fn give_numbers(&mut self, payload: &[u8], records: u64) -> SeqNo {
        let first_seq = self.last_seq.next();
        let last_seq = SeqNo(self.last_seq.0 + records);
        assert!(last_seq <= SeqNo::MAX, "sequence numbers exhausted");
        self.last_seq = last_seq;
        self.recent.note(payload);
        first_seq
    }

    /// Keys of recent writes, for transactions that are being checked.
    pub(crate) fn recent(&self) -> &RecentWrites {
        &self.recent
    }

    pub(crate) fn recent_mut(&mut self) -> &mut RecentWrites {
        &mut self.recent
    }

    /// The open log; `None` if the database has none.
    #[inline]
    pub(crate) fn log(&self) -> Option<&LogWriter> {
        self.log.as_ref()
    }

    #[inline]
    pub(crate) fn log_mut(&mut self) -> Option<&mut LogWriter> {
        self.log.as_mut()
    }

    pub(crate) fn set_log(&mut self, log: LogWriter) {
        self.log = Some(log);
    }

    /// Takes the log away, to end it. Later writes have none.
    pub(crate) fn take_log(&mut self) -> Option<LogWriter> {
        self.log.take()
    }

    #[inline]
    pub(crate) fn active_of(&self, cf: CfId) -> Option<&Arc<Memtable>> {
        self.active.get(cf.0 as usize)?.as_ref()
    }

    pub(crate) fn set_active(&mut self, cf: CfId, memtable: Option<Arc<Memtable>>) {
        let index = cf.0 as usize;
        if self.active.len() <= index {
            self.active.resize(index + 1, None);
        }
        self.active[index] = memtable;
    }

    /// Pays for a write of `bytes` bytes out of the credit. Returns `false`, and takes nothing, if
    /// the credit does not cover it.
    #[inline]
    pub(crate) fn spend_credit(&mut self, space_use: SpaceUse, bytes: u64) -> bool {
        self.has_freed |= space_use == SpaceUse::Frees;
        let credit = match space_use {
            SpaceUse::Frees if self.credit_bytes < bytes => &mut self.freeing_credit_bytes,
            _ => &mut self.credit_bytes,
        };
        let is_covered = bytes <= *credit;
        if is_covered {
            *credit -= bytes;
        }
        is_covered
    }

    /// Sets the credit of writes of this kind.
    pub(crate) fn set_credit(&mut self, space_use: SpaceUse, bytes: u64) {
        match space_use {
            SpaceUse::Takes => self.credit_bytes = bytes,
            SpaceUse::Frees => self.freeing_credit_bytes = bytes,
        }
    }

    /// Takes all credit away, so that the next write measures the disk.
    pub(crate) fn drop_credits(&mut self) {
        (self.credit_bytes, self.freeing_credit_bytes) = (0, 0);
    }

    /// Whether a write that frees space arrived since the last call.
    pub(crate) fn take_has_freed(&mut self) -> bool {
        std::mem::take(&mut self.has_freed)
    }

    /// Begins the close: all later writes are refused.
    pub(crate) fn begin_close(&mut self) {
        self.is_closing = true;
        // Only writes without a credit are tested for the close.
        self.drop_credits();
    }

    /// Whether the close has begun.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_that_frees_space_pays_out_of_its_own_credit_last() {
        let mut state = CommitState::new(SeqNo::ZERO);
        state.set_credit(SpaceUse::Takes, 10);
        state.set_credit(SpaceUse::Frees, 5);
        assert!(state.spend_credit(SpaceUse::Frees, 8), "both kinds share the first credit");
        assert!(!state.spend_credit(SpaceUse::Takes, 3), "2 bytes are left");
        assert!(state.spend_credit(SpaceUse::Frees, 5));
        assert!(!state.spend_credit(SpaceUse::Frees, 3));
        assert!(state.spend_credit(SpaceUse::Takes, 2), "a refused write takes nothing");
    }

    #[test]
    fn closing_database_has_no_credit() {
        let mut state = CommitState::new(SeqNo::ZERO);
        state.set_credit(SpaceUse::Takes, u64::MAX);
        state.begin_close();
        assert!(state.is_closing());
        assert!(!state.spend_credit(SpaceUse::Takes, 1));
    }

    #[test]
    fn numbers_follow_each_other() {
        let mut state = CommitState::new(SeqNo(7));
        assert_eq!(state.give_numbers(&[], 3), SeqNo(8));
        assert_eq!(state.give_numbers(&[], 1), SeqNo(11));
        assert_eq!(state.last_seq(), SeqNo(11));
    }
}
