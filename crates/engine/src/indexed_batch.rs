//! The writes of a transaction: a write batch, and an index over it for reads.
//!
//! One transaction owns the batch. Reads build the index and bring it up to date. Each own write
//! has a sequence number above all that the database gives out, so reads see own writes above the
//! snapshot. The operation at place `n` of the batch has the number [`own_seq`]`(n)`.
//!
//! Invariants:
//! 1. The index describes the operations before `indexed`, and nothing else.
//!
//! Failure: none. Cost: a write is one copy into the batch. The first read after writes puts each
//! of them into an ordered map, with a copy of its key. A look-up is one search, and one more in
//! the range deletes if the family has any. [`IndexedBatch::bytes`] returns the memory.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use archipelago_base::{CfId, SeqNo};

use crate::iter::VecIterator;
use crate::key::{KeyRange, Kind, encode, split_expiry};
use crate::tombstone::{RangeTombstone, TombstoneSet};
use crate::wal::{BatchMark, WriteBatch};

/// Memory of an indexed operation in bytes, without its key.
const ENTRY_BYTES: u64 = 96;
/// Largest sequence number below those of own writes. A database never gives it out.
const BEFORE_OWN: u64 = SeqNo::MAX.0 - (1 << 32);

/// Sequence number of the operation at `place` of the batch, as reads of the transaction see it.
fn own_seq(place: u32) -> SeqNo {
    SeqNo(BEFORE_OWN + 1 + u64::from(place))
}

/// An operation on one key.
#[derive(Clone, Debug)]
struct KeyOp {
    seq: SeqNo,
    kind: Kind,
    /// Position of the stored value in the batch.
    value: Range<usize>,
}

/// The index of one column family.
#[derive(Default)]
struct FamilyIndex {
    /// The operations on each key, oldest first.
    keys: BTreeMap<Box<[u8]>, Vec<KeyOp>>,
    /// Range deletes that `ranges` does not have yet.
    new_ranges: Vec<RangeTombstone>,
    ranges: Arc<TombstoneSet>,
}

/// The value onto which own operands of a key are folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnBase<'a> {
    /// The value that the database has.
    Committed,
    /// No value: an own write removed the key, or an own value has expired.
    Nothing,
    /// A value that an own write has set.
    Value { value: &'a [u8], expires_at_ms: Option<u64> },
}

/// The effect of own writes on a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnView<'a> {
    pub(crate) base: OwnBase<'a>,
    /// Merge operands on top of the base, oldest first.
    pub(crate) operands: Vec<&'a [u8]>,
}

/// Own writes of one column family in a range, for an iterator.
pub(crate) struct OwnRecords {
    /// The point records, in key order.
    pub(crate) records: VecIterator,
    /// The range deletes.
    pub(crate) tombstones: Arc<TombstoneSet>,
}

/// The writes of a transaction and the index over them.
#[derive(Default)]
pub(crate) struct IndexedBatch {
    batch: WriteBatch,
    families: BTreeMap<CfId, FamilyIndex>,
    indexed: BatchMark,
    index_bytes: u64,
}

impl IndexedBatch {
    /// The writes as the batch that a commit applies.
    pub(crate) fn batch(&self) -> &WriteBatch {
        &self.batch
    }

    /// The batch, for appending to it.
    pub(crate) fn batch_mut(&mut self) -> &mut WriteBatch {
        &mut self.batch
    }

    /// Memory of batch and index in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.batch.byte_len() as u64 + self.index_bytes
    }

    /// Position after the last write.
    pub(crate) fn mark(&self) -> BatchMark {
        self.batch.mark()
    }

    /// Removes the writes after `mark`.
    pub(crate) fn truncate(&mut self, mark: BatchMark) {
        if mark < self.indexed {
            self.cut_index(mark);
        }
        self.batch.truncate(mark);
    }

    /// Takes the operations after `mark` out of the index. A set of range deletes cannot shrink: if
    /// one of them is removed, the next read builds the whole index again.
    fn cut_index(&mut self, mark: BatchMark) {
        let gone = || self.batch.iter_from(mark).map(|op| op.expect("the batch was encoded here"));
        if mark.len == 0 || gone().any(|op| op.kind == Kind::RangeDelete) {
            self.families.clear();
            (self.indexed, self.index_bytes) = (BatchMark::default(), 0);
            return;
        }
        for op in gone().take((self.indexed.len - mark.len) as usize) {
            let family = self.families.get_mut(&op.cf).expect("the operation was indexed");
            let ops = family.keys.get_mut(op.key).expect("the operation was indexed");
            ops.pop();
            if ops.is_empty() {
                family.keys.remove(op.key);
            }
            self.index_bytes -= op.key.len() as u64 + ENTRY_BYTES;
        }
        self.indexed = mark;
    }

    /// Removes all writes and keeps the buffer, unless that is larger than `kept_bytes_max`.
    pub(crate) fn clear(&mut self, kept_bytes_max: usize) {
        if self.batch.byte_len() > kept_bytes_max {
            self.batch = WriteBatch::new();
        }
        self.truncate(BatchMark::default());
    }

    /// Whether one of the writes names `key` itself; range deletes do not count.
    pub(crate) fn writes_key(&mut self, cf: CfId, key: &[u8]) -> bool {
        self.index();
        self.families.get(&cf).is_some_and(|family| family.keys.contains_key(key))
    }

    /// The effect of the writes on `key` at `now_ms` (Unix milliseconds).
    pub(crate) fn view(
        &mut self,
        cf: CfId,
        key: &[u8],
        now_ms: impl FnOnce() -> u64,
    ) -> OwnView<'_> {
        let untouched = OwnView { base: OwnBase::Committed, operands: Vec::new() };
        if self.batch.is_empty() {
            return untouched;
        }
        self.index();
        let Some(family) = self.families.get_mut(&cf) else { return untouched };
        let deleted = family.ranges().max_covering(key, SeqNo::MAX);
        let ops = family.keys.get(key).map_or(&[][..], Vec::as_slice);
        let mut operands = Vec::new();
        let mut base = if deleted.is_some() { OwnBase::Nothing } else { OwnBase::Committed };
        for op in ops.iter().rev().take_while(|op| deleted.is_none_or(|seq| op.seq > seq)) {
            let stored = self.batch.bytes_at(op.value.clone());
            if op.kind == Kind::Merge {
                operands.push(stored);
                continue;
            }
            base = base_of(op.kind, stored, now_ms);
            break;
        }
        operands.reverse();
        OwnView { base, operands }
    }

    /// The writes to keys of `range`, for an iterator; `None` if there are none.
    pub(crate) fn records(&mut self, cf: CfId, range: &KeyRange) -> Option<OwnRecords> {
        self.index();
        let family = self.families.get_mut(&cf)?;
        let tombstones = Arc::clone(family.ranges());
        let mut records = Vec::new();
        if !range.is_empty() {
            let end = range.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let inside = (Bound::Included(range.start.as_slice()), end);
            for (key, ops) in family.keys.range::<[u8], _>(inside) {
                for op in ops {
                    let value = self.batch.bytes_at(op.value.clone()).to_vec();
                    records.push((encode(key, op.seq, op.kind), value));
                }
            }
        }
        let is_empty = records.is_empty() && tombstones.is_empty();
        (!is_empty).then(|| OwnRecords { records: VecIterator::new(records), tombstones })
    }

    /// Brings the index up to date.
    fn index(&mut self) {
        if self.indexed == self.batch.mark() {
            return;
        }
        let mut ops = self.batch.iter_from(self.indexed);
        let mut place = self.indexed.len;
        while let Some(op) = ops.next() {
            let op = op.expect("the batch was encoded by this process");
            let end = self.indexed.bytes + ops.offset();
            let family = self.families.entry(op.cf).or_default();
            let seq = own_seq(place);
            place += 1;
            self.index_bytes += op.key.len() as u64 + ENTRY_BYTES;
            if op.kind == Kind::RangeDelete {
                let range = RangeTombstone { start: op.key.into(), end: op.value.into(), seq };
                if !range.is_empty() {
                    self.index_bytes += range.memory_bytes();
                    family.new_ranges.push(range);
                }
                continue;
            }
            let op_of = KeyOp { seq, kind: op.kind, value: end - op.value.len()..end };
            match family.keys.get_mut(op.key) {
                Some(ops) => ops.push(op_of),
                None => {
                    family.keys.insert(op.key.into(), vec![op_of]);
                }
            }
        }
        self.indexed = self.batch.mark();
    }
}

impl FamilyIndex {
    fn ranges(&mut self) -> &Arc<TombstoneSet> {
        if !self.new_ranges.is_empty() {
            let new = std::mem::take(&mut self.new_ranges);
            self.ranges = Arc::new(self.ranges.with(new));
        }
        &self.ranges
    }
}

fn base_of(kind: Kind, stored: &[u8], now_ms: impl FnOnce() -> u64) -> OwnBase<'_> {
    match kind {
        Kind::Put => OwnBase::Value { value: stored, expires_at_ms: None },
        Kind::PutExpiring => match split_expiry(stored) {
            Some((expires_at_ms, value)) if expires_at_ms > now_ms() => {
                OwnBase::Value { value, expires_at_ms: Some(expires_at_ms) }
            }
            _ => OwnBase::Nothing,
        },
        _ => OwnBase::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iter::InternalIterator;
    use crate::key::KeyRef;

    const CF: CfId = CfId(1);

    fn value(value: &[u8]) -> OwnView<'_> {
        OwnView { base: OwnBase::Value { value, expires_at_ms: None }, operands: Vec::new() }
    }

    fn only(base: OwnBase<'_>) -> OwnView<'_> {
        OwnView { base, operands: Vec::new() }
    }

    #[test]
    fn newest_write_of_a_key_decides() {
        let mut own = IndexedBatch::default();
        assert_eq!(own.view(CF, b"k", || 0), only(OwnBase::Committed));
        own.batch_mut().put_cf(CF, b"k", b"1");
        assert_eq!(own.view(CF, b"k", || 0), value(b"1"));
        own.batch_mut().put_cf(CF, b"k", b"2");
        assert_eq!(own.view(CF, b"k", || 0), value(b"2"));
        assert_eq!(own.view(CfId(2), b"k", || 0), only(OwnBase::Committed));
        own.batch_mut().delete_cf(CF, b"k");
        assert_eq!(own.view(CF, b"k", || 0), only(OwnBase::Nothing));
        own.batch_mut().put_expiring_cf(CF, b"k", b"3", 50);
        let base = OwnBase::Value { value: b"3", expires_at_ms: Some(50) };
        assert_eq!(own.view(CF, b"k", || 49), only(base));
        assert_eq!(own.view(CF, b"k", || 50), only(OwnBase::Nothing));
    }

    #[test]
    fn range_delete_hides_what_was_written_before_it() {
        let mut own = IndexedBatch::default();
        own.batch_mut().put_cf(CF, b"k", b"1");
        own.batch_mut().delete_range_cf(CF, b"a", b"m");
        assert_eq!(own.view(CF, b"k", || 0), only(OwnBase::Nothing));
        assert_eq!(own.view(CF, b"b", || 0), only(OwnBase::Nothing));
        assert_eq!(own.view(CF, b"m", || 0), only(OwnBase::Committed));
        own.batch_mut().merge_cf(CF, b"k", b"x");
        let on_nothing = OwnView { base: OwnBase::Nothing, operands: vec![&b"x"[..]] };
        assert_eq!(own.view(CF, b"k", || 0), on_nothing);
        own.batch_mut().put_cf(CF, b"k", b"2");
        assert_eq!(own.view(CF, b"k", || 0), value(b"2"));
    }

    #[test]
    fn operands_come_oldest_first_on_their_base() {
        let mut own = IndexedBatch::default();
        own.batch_mut().merge_cf(CF, b"k", b"1");
        own.batch_mut().merge_cf(CF, b"k", b"2");
        let view = OwnView { base: OwnBase::Committed, operands: vec![b"1", b"2"] };
        assert_eq!(own.view(CF, b"k", || 0), view);
        assert!(own.writes_key(CF, b"k") && !own.writes_key(CF, b"j"));
    }

    #[test]
    fn cut_batch_is_read_without_what_was_cut() {
        let mut own = IndexedBatch::default();
        own.batch_mut().put_cf(CF, b"k", b"1");
        let mark = own.mark();
        own.batch_mut().put_cf(CF, b"k", b"2");
        own.batch_mut().delete_range_cf(CF, b"x", b"y");
        assert_eq!(own.view(CF, b"k", || 0), value(b"2"));
        own.truncate(mark);
        assert_eq!(own.view(CF, b"k", || 0), value(b"1"));
        assert_eq!(own.view(CF, b"x", || 0), only(OwnBase::Committed));
        own.batch_mut().put_cf(CF, b"k", b"3");
        assert_eq!(own.view(CF, b"k", || 0), value(b"3"));
        own.clear(1 << 20);
        assert_eq!((own.batch().len(), own.index_bytes), (0, 0));
        assert_eq!(own.view(CF, b"k", || 0), only(OwnBase::Committed));
    }

    #[test]
    fn index_shrinks_with_the_batch_unless_a_range_delete_goes() {
        for with_range in [false, true] {
            let mut own = IndexedBatch::default();
            own.batch_mut().put_cf(CF, b"k", b"1");
            own.batch_mut().put_cf(CF, b"j", b"1");
            let mark = own.mark();
            assert!(own.writes_key(CF, b"k"));
            let before = own.index_bytes;
            own.batch_mut().put_cf(CF, b"k", b"2");
            own.batch_mut().merge_cf(CfId(2), b"x", b"2");
            if with_range {
                own.batch_mut().delete_range_cf(CF, b"j", b"k");
            }
            assert!(own.writes_key(CfId(2), b"x"));
            own.batch_mut().put_cf(CF, b"unread", b"3");
            own.truncate(mark);
            let expected = if with_range { (0, 0) } else { (before, mark.len) };
            assert_eq!((own.index_bytes, own.indexed.len), expected);
            assert_eq!(own.view(CF, b"k", || 0), value(b"1"));
            assert_eq!(own.view(CF, b"j", || 0), value(b"1"));
            assert!(!own.writes_key(CfId(2), b"x") && !own.writes_key(CF, b"unread"));
            assert_eq!(own.index_bytes, before);
        }
    }

    #[test]
    fn records_of_a_range_are_above_all_committed_ones() {
        let mut own = IndexedBatch::default();
        own.batch_mut().put_cf(CF, b"a", b"1");
        own.batch_mut().put_cf(CF, b"b", b"2");
        own.batch_mut().delete_cf(CF, b"b");
        own.batch_mut().put_cf(CF, b"c", b"3");
        let range = KeyRange { start: b"b".to_vec(), end: Some(b"c".to_vec()) };
        let mut records = own.records(CF, &range).unwrap().records;
        records.seek_to_first();
        let mut seen = Vec::new();
        while records.valid() {
            let key = KeyRef::decode(records.key()).unwrap();
            assert!(key.seq.0 > BEFORE_OWN);
            seen.push((key.user_key.to_vec(), key.kind));
            records.next();
        }
        assert_eq!(seen, [(b"b".to_vec(), Kind::Delete), (b"b".to_vec(), Kind::Put)]);
        let empty = KeyRange { start: b"x".to_vec(), end: None };
        assert!(own.records(CF, &empty).is_none());
        assert!(own.records(CfId(9), &range).is_none());
    }
}
