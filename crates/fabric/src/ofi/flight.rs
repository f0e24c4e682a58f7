//! A batch in flight: which of its operations were posted, and their outcomes. The module consists
//! of pure functions over its state.
//!
//! Operations are posted in pieces of at most [`PIECE_BYTES`].
//!
//! Invariants:
//! 1. Operations are posted in order, each completely before the next.
//! 2. After a failure nothing more of the batch is posted.
//! 3. A batch that its owner got back at its deadline is not changed any more.
//!
//! Thread-safety: none. The owner holds a lock.

use std::sync::Arc;

use super::order::Sort;
use crate::batch::{Batch, Op, Outcome};
use crate::ids::{RemoteKey, Rights};
use crate::promise::Slot;
use crate::refusal::{Reason, Refusal};

/// Limit of the bytes that one call of libfabric moves.
pub(super) const PIECE_BYTES: u64 = 64 << 10;

/// A region that a link has attached.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) key: RemoteKey,
    /// Length in bytes from the node's answer, whatever the key claims.
    pub(super) bytes: u64,
    pub(super) rights: Rights,
    /// Key and first address of the registration.
    pub(super) place: (u64, u64),
}

/// The next call to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) index: usize,
    pub(super) op: Op,
    pub(super) sort: Sort,
    /// First byte of the piece within the operation, and number of bytes.
    pub(super) from: u64,
    pub(super) len: u64,
}

/// A completed batch and its slot. No lock is held while the slot is filled, because that may wake
/// a task.
pub(super) type Over = (Arc<Slot<Batch>>, Batch);

#[derive(Debug)]
pub(super) struct Flight {
    pub(super) number: u64,
    deadline_ns: u64,
    batch: Batch,
    pub(super) slot: Arc<Slot<Batch>>,
    /// The region of each operation that may be posted.
    pub(super) regions: Vec<Arc<Known>>,
    /// The refusal of the first operation after those that may be posted.
    refused: Option<Refusal>,
    /// The operation and the byte that are posted next.
    index: usize,
    from: u64,
    /// Number of pieces in flight.
    pub(super) out: usize,
    /// The first operation that failed.
    pub(super) failed: Option<usize>,
    given_back: bool,
}

impl Flight {
    /// `regions` belong to the operations before the first one that is `refused` on this side.
    pub(super) fn new(
        number: u64,
        deadline_ns: u64,
        batch: Batch,
        regions: Vec<Arc<Known>>,
        refused: Option<Refusal>,
    ) -> Self {
        Self {
            number,
            deadline_ns,
            batch,
            slot: Slot::new(),
            regions,
            refused,
            index: 0,
            from: 0,
            out: 0,
            failed: None,
            given_back: false,
        }
    }

    /// The next piece to post; `None` if none is left. An operation without bytes completes here.
    pub(super) fn next(&mut self) -> Option<Next> {
        while self.failed.is_none() && !self.given_back && self.index < self.regions.len() {
            let (index, from) = (self.index, self.from);
            let op = self.batch.ops()[index];
            let (sort, len) = match op {
                Op::Read { len, .. } => (Sort::Read, u64::from(len)),
                Op::Write { len, .. } => (Sort::Write, u64::from(len)),
                Op::CompareSwap { .. } | Op::FetchAdd { .. } => (Sort::Atomic, 8),
            };
            if len > 0 {
                return Some(Next { index, op, sort, from, len: (len - from).min(PIECE_BYTES) });
            }
            self.batch.finish(index, outcome(op, 0));
            self.index += 1;
        }
        None
    }

    /// Records that `next` was posted.
    pub(super) fn posted(&mut self, next: &Next) {
        self.out += 1;
        self.from = next.from + next.len;
        let whole = match next.op {
            Op::Read { len, .. } | Op::Write { len, .. } => u64::from(len),
            _ => 8,
        };
        if self.from == whole {
            (self.index, self.from) = (self.index + 1, 0);
        }
    }

    /// Bytes of a piece in the arena. They are empty after the batch was given back.
    pub(super) fn bytes(&mut self, index: usize, from: u64, len: u64) -> &mut [u8] {
        if self.given_back {
            return &mut [];
        }
        let (_, bytes) = self.batch.op_mut(index);
        &mut bytes[from as usize..(from + len) as usize]
    }

    /// Records that a piece completed. `old` is the old word of an atomic operation.
    pub(super) fn completed(&mut self, index: usize, old: u64) {
        self.out -= 1;
        if !self.given_back && self.failed.is_none_or(|failed| index < failed) {
            let op = self.batch.ops()[index];
            self.batch.finish(index, outcome(op, old));
        }
    }

    /// Records that a piece failed, or could not be posted.
    pub(super) fn fail(&mut self, index: usize) {
        self.failed = Some(self.failed.map_or(index, |failed| failed.min(index)));
    }

    /// Whether no piece is in flight, and none is left to post.
    pub(super) fn settled(&mut self) -> bool {
        self.out == 0 && self.next().is_none()
    }

    /// The batch for its slot. `why` replaces the first failure, or all outcomes. The result is
    /// `None` if the batch was given back before.
    pub(super) fn finish(&mut self, why: Option<Refusal>) -> Option<Over> {
        if std::mem::replace(&mut self.given_back, true) {
            return None;
        }
        let mut batch = std::mem::take(&mut self.batch);
        match (self.failed, why, self.refused) {
            (Some(index), Some(refusal), _) => batch.refuse_from(index, refusal),
            (_, Some(refusal), _) => batch.refuse_all(refusal),
            (Some(index), None, _) => batch.refuse_from(index, Reason::Disconnected.into()),
            (None, None, Some(refusal)) => batch.refuse_from(self.regions.len(), refusal),
            (None, None, None) => {}
        }
        Some((Arc::clone(&self.slot), batch))
    }

    /// Gives the batch back before its outcome is known.
    pub(super) fn give_up(&mut self, why: Refusal) -> Option<Over> {
        self.failed = None;
        self.finish(Some(why))
    }

    /// Deadline in nanoseconds; `None` if the batch was given back.
    pub(super) fn due_ns(&self) -> Option<u64> {
        (!self.given_back).then_some(self.deadline_ns)
    }
}

fn outcome(op: Op, old: u64) -> Outcome {
    match op {
        Op::Read { .. } => Outcome::Read,
        Op::Write { .. } => Outcome::Visible,
        Op::CompareSwap { .. } | Op::FetchAdd { .. } => Outcome::Word(old),
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;

    use super::*;
    use crate::batch::Attached;
    use crate::ids::{NodeId, RegionId};

    fn known() -> Arc<Known> {
        let key = RemoteKey {
            node: NodeId(1),
            epoch: Epoch(1),
            region: RegionId(0),
            tag: 1,
            len: 1 << 20,
            rights: Rights::ALL,
        };
        Arc::new(Known { key, bytes: 1 << 20, rights: Rights::ALL, place: (1, 0) })
    }

    fn flight(batch: Batch, refused: Option<(usize, Refusal)>) -> Flight {
        let count = refused.map_or(batch.len(), |(index, _)| index);
        let regions = (0..count).map(|_| known()).collect();
        Flight::new(1, u64::MAX, batch, regions, refused.map(|(_, refusal)| refusal))
    }

    #[test]
    fn pieces_cover_each_operation_in_order() {
        let region = Attached::new(1, 0);
        let mut batch = Batch::new();
        batch.read(region, 0, 0);
        batch.write_in_place(region, 0, PIECE_BYTES as u32 + 9);
        batch.fetch_add(region, 8, 1);
        let mut flight = flight(batch, None);
        let mut pieces = Vec::new();
        while let Some(next) = flight.next() {
            pieces.push((next.index, next.from, next.len));
            flight.posted(&next);
        }
        assert_eq!(pieces, [(1, 0, PIECE_BYTES), (1, PIECE_BYTES, 9), (2, 0, 8)]);
        assert!(!flight.settled());
        for (index, ..) in pieces {
            flight.completed(index, 77);
        }
        assert!(flight.settled());
        let (_, batch) = flight.finish(None).expect("once");
        assert_eq!((batch.outcome(0), batch.outcome(1)), (Outcome::Read, Outcome::Visible));
        assert_eq!(batch.word(2), Some(77));
    }

    #[test]
    fn first_failure_ends_the_batch() {
        let region = Attached::new(1, 0);
        let mut batch = Batch::new();
        (0..4).for_each(|at| _ = batch.read(region, at * 8, 8));
        let mut flight = flight(batch, Some((3, Reason::OutOfRange.into())));
        for _ in 0..3 {
            let next = flight.next().expect("three are posted");
            flight.posted(&next);
        }
        // Completions may arrive in any order.
        flight.fail(2);
        flight.out -= 1;
        flight.completed(0, 0);
        flight.fail(1);
        flight.out -= 1;
        assert!(flight.settled());
        let (_, batch) = flight.finish(Some(Reason::Revoked.into())).expect("once");
        assert_eq!(batch.outcome(0), Outcome::Read);
        assert_eq!(batch.refusal().map(|(index, r)| (index, r.reason)), Some((1, Reason::Revoked)));
        assert_eq!(batch.outcome(2), Outcome::Refused(Reason::Skipped.into()));
    }

    #[test]
    fn batch_that_was_given_back_is_not_continued() {
        let region = Attached::new(1, 0);
        let mut batch = Batch::new();
        batch.read(region, 0, 8);
        batch.read(region, 8, 8);
        let mut flight = flight(batch, None);
        let next = flight.next().expect("the first");
        flight.posted(&next);
        let (_, batch) = flight.give_up(Reason::Deadline.into()).expect("once");
        assert_eq!(batch.refusal().map(|(_, r)| r.reason), Some(Reason::Deadline));
        assert!(flight.next().is_none() && !flight.settled());
        assert!(flight.bytes(0, 0, 8).is_empty());
        flight.completed(0, 0);
        assert!(flight.settled() && flight.finish(None).is_none());
    }
}
