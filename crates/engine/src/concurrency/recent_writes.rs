//! The keys of recent writes, recorded while transactions are being checked.
//!
//! A commit checks its footprint outside of the commit lock, against the records that have a
//! sequence number when the check begins. Later writes are recorded here, so that the second step
//! of the check, under the lock, needs neither memtables nor tables. The commit lock guards the
//! value.
//!
//! Positions count recorded keys and ranges since the database was opened.
//!
//! Invariants:
//! 1. While an observer is registered, every write is recorded in the step in which it gets its
//!    sequence number. The record stays until all observers from before it have ended.
//! 2. Without an observer nothing is recorded and nothing is kept.
//! 3. At most [`BYTES_MAX`] bytes are kept; older records are dropped. [`RecentWrites::since`]
//!    answers `None` to an observer that needed a dropped record.
//!
//! Thread-safety: under the commit lock. Failure: none.
//! Cost: one branch for each write while no transaction is being checked; else a copy of each key,
//! without its value.

use std::collections::{BTreeMap, VecDeque};

use archipelago_base::CfId;

use super::footprint::Touch;
use crate::key::Kind;
use crate::wal::BatchView;

/// Limit on the bytes of kept keys, with the fixed memory of each record.
const BYTES_MAX: usize = 8 << 20;
/// Memory of a record in bytes, without its keys.
const RECORD_BYTES: usize = size_of::<Written>();

/// A key, or a range of keys, that was written.
#[derive(Debug)]
struct Written {
    cf: CfId,
    start: Box<[u8]>,
    /// First key after the range; `None` for the single key `start`.
    end: Option<Box<[u8]>>,
}

impl Written {
    fn bytes(&self) -> usize {
        RECORD_BYTES + self.start.len() + self.end.as_ref().map_or(0, |end| end.len())
    }
}

/// The keys of recent writes, and the observers that need them.
#[derive(Debug, Default)]
pub(crate) struct RecentWrites {
    /// Registered observers by the position at which each began.
    observers: BTreeMap<u64, usize>,
    writes: VecDeque<Written>,
    /// Position of the first of `writes`.
    first: u64,
    bytes: usize,
}

impl RecentWrites {
    /// Registers an observer and returns its position. [`RecentWrites::since`] of that position
    /// yields the writes from now on.
    pub(crate) fn observe(&mut self) -> u64 {
        let position = self.first + self.writes.len() as u64;
        *self.observers.entry(position).or_insert(0) += 1;
        position
    }

    /// Removes an observer, and the records that only this observer needed.
    pub(crate) fn end(&mut self, position: u64) {
        let count = self.observers.get_mut(&position).expect("an observer ends once");
        *count -= 1;
        if *count == 0 {
            self.observers.remove(&position);
        }
        match self.observers.first_key_value() {
            None => self.drop_all(),
            Some((&oldest, _)) => {
                while self.first < oldest {
                    let gone = self.writes.pop_front().expect("positions count what is kept");
                    self.bytes -= gone.bytes();
                    self.first += 1;
                }
            }
        }
    }

    /// The writes since an observer registered; `None` if some of them were dropped.
    pub(crate) fn since(&self, position: u64) -> Option<impl Iterator<Item = Touch<'_>>> {
        let skipped = position.checked_sub(self.first)?;
        Some(self.writes.iter().skip(skipped as usize).map(|written| Touch {
            cf: written.cf,
            start: &written.start,
            end: written.end.as_deref(),
        }))
    }

    /// Records a write that is getting its sequence numbers.
    #[inline]
    pub(crate) fn note(&mut self, payload: &[u8]) {
        if !self.observers.is_empty() {
            self.note_payload(payload);
        }
    }

    #[cold]
    fn note_payload(&mut self, payload: &[u8]) {
        let batch = BatchView::decode(payload).expect("a batch that a writer submitted");
        for op in batch.iter() {
            let op = op.expect("every record was read before the write was submitted");
            let end = (op.kind == Kind::RangeDelete).then(|| op.value.into());
            self.push(Written { cf: op.cf, start: op.key.into(), end });
        }
    }

    /// Records that tables with keys from `smallest` to `largest` (inclusive) become visible.
    pub(crate) fn note_range(&mut self, cf: CfId, smallest: &[u8], largest: &[u8]) {
        if !self.observers.is_empty() {
            let end = [largest, &[0]].concat();
            self.push(Written { cf, start: smallest.into(), end: Some(end.into()) });
        }
    }

    fn push(&mut self, written: Written) {
        self.bytes += written.bytes();
        self.writes.push_back(written);
        if self.bytes > BYTES_MAX {
            self.drop_all();
        }
    }

    fn drop_all(&mut self) {
        self.first += self.writes.len() as u64;
        self.writes = VecDeque::new();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::WriteBatch;

    fn put(recent: &mut RecentWrites, key: &[u8]) {
        let mut batch = WriteBatch::new();
        batch.put_cf(CfId(1), key, b"value");
        recent.note(batch.data());
    }

    fn keys(recent: &RecentWrites, position: u64) -> Option<Vec<Vec<u8>>> {
        Some(recent.since(position)?.map(|touch| touch.start.to_vec()).collect())
    }

    #[test]
    fn observer_sees_what_follows_its_registration() {
        let mut recent = RecentWrites::default();
        put(&mut recent, b"unseen");
        assert!(recent.writes.is_empty());
        let first = recent.observe();
        put(&mut recent, b"a");
        let second = recent.observe();
        put(&mut recent, b"b");
        recent.note_range(CfId(2), b"c", b"d");
        assert_eq!(keys(&recent, first).unwrap(), [b"a", b"b", b"c"]);
        assert_eq!(keys(&recent, second).unwrap(), [b"b", b"c"]);
        recent.end(first);
        assert_eq!(keys(&recent, second).unwrap(), [b"b", b"c"]);
        assert_eq!(recent.writes.len(), 2, "what only the first needed is gone");
        recent.end(second);
        assert_eq!((recent.writes.len(), recent.bytes), (0, 0));
    }

    #[test]
    fn range_delete_is_recorded_as_a_range() {
        let mut recent = RecentWrites::default();
        let position = recent.observe();
        let mut batch = WriteBatch::new();
        batch.delete_range_cf(CfId(3), b"a", b"m");
        recent.note(batch.data());
        let touch = recent.since(position).unwrap().next().unwrap();
        assert_eq!((touch.cf, touch.start, touch.end), (CfId(3), &b"a"[..], Some(&b"m"[..])));
        recent.end(position);
    }

    #[test]
    fn dropped_writes_are_told_to_their_observers_alone() {
        let mut recent = RecentWrites::default();
        let early = recent.observe();
        let key = vec![7; 60 << 10];
        while keys(&recent, early).is_some() {
            put(&mut recent, &key);
        }
        let late = recent.observe();
        put(&mut recent, b"z");
        assert_eq!(keys(&recent, early), None);
        assert_eq!(keys(&recent, late).unwrap(), [b"z"]);
        recent.end(early);
        recent.end(late);
        assert_eq!(recent.bytes, 0);
    }
}
