//! Iterators of a transaction: the snapshot with the transaction's own writes above it.
//!
//! An iterator shows the own writes that were made before it was created. It holds copies of those
//! within its bounds, so the transaction may write while the iterator is in use. If the transaction
//! checks what it reads, the iterator notes which keys it has passed.
//!
//! Invariants of the notes:
//! 1. They hold every key that the iterator has shown, and every key at which it has shown that the
//!    database has no record: from where a seek began to where it ended, and each gap between two
//!    neighbours. The range of a seek only grows, also if the iterator turns.
//! 2. The transaction shares them, so it has them at its commit even if the iterator was dropped.
//! 3. More than [`RANGES_MAX`] separate ranges become one range that covers them all. That can only
//!    make a commit fail that could have succeeded.
//!
//! Thread-safety: used by one thread at a time. Failure: that of the iterator below. A step that
//! failed has shown nothing and is not noted.
//! Cost: creation copies the own writes within the bounds. A step costs a step of a plain iterator
//! and, where reads are noted, one uncontended lock and a copy of the key.

use std::sync::Arc;

use archipelago_base::{CfId, Result, SeqNo};
use parking_lot::Mutex;

use crate::concurrency::footprint::Footprint;
use crate::concurrency::range_set::RangeSet;
use crate::db::Iter;
use crate::key::KeyRange;

/// Largest number of separate ranges that the notes of one iterator keep apart.
const RANGES_MAX: usize = 1024;

/// The keys that an iterator has passed.
#[derive(Debug)]
pub(super) struct PassedKeys {
    cf: CfId,
    as_of: SeqNo,
    /// Keys passed before the last seek.
    passed: RangeSet,
    /// Keys passed since the last seek.
    current: KeyRange,
    expires_at_ms: Option<u64>,
}

impl PassedKeys {
    /// No keys of the family, as of a snapshot.
    pub(super) fn new(cf: CfId, as_of: SeqNo) -> Self {
        let current = nothing();
        Self { cf, as_of, passed: RangeSet::default(), current, expires_at_ms: None }
    }

    /// Adds the passed keys to a footprint.
    pub(super) fn add_to(&self, footprint: &mut Footprint) {
        let current = std::iter::once(self.current.clone());
        for range in self.passed.iter().chain(current) {
            footprint.note_range(self.cf, range, self.as_of);
        }
        footprint.note_expiry(self.expires_at_ms);
    }

    /// Memory of the notes.
    pub(super) fn bytes(&self) -> u64 {
        self.passed.bytes()
    }

    /// Starts a new range with the keys of `range`, which a seek has passed.
    fn seek(&mut self, range: KeyRange) {
        let before = std::mem::replace(&mut self.current, range);
        self.passed.insert(before);
        if self.passed.len() > RANGES_MAX {
            self.passed.join_all();
        }
    }

    /// Extends the current range to its right, so that it has `key`.
    fn end_after(&mut self, key: &[u8]) {
        if let Some(end) = &mut self.current.end
            && end.as_slice() <= key
        {
            end.clear();
            end.extend_from_slice(key);
            end.push(0);
        }
    }

    /// Extends the current range to its left, so that it has `key`.
    fn start_at(&mut self, key: &[u8]) {
        if key < self.current.start.as_slice() {
            self.current.start.clear();
            self.current.start.extend_from_slice(key);
        }
    }

    fn note_expiry(&mut self, expires_at_ms: Option<u64>) {
        let both = self.expires_at_ms.into_iter().chain(expires_at_ms);
        self.expires_at_ms = both.min();
    }
}

fn nothing() -> KeyRange {
    KeyRange { start: Vec::new(), end: Some(Vec::new()) }
}

/// The first key after `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// A cursor over the keys that a transaction sees, in key order.
///
/// It moves as [`Iter`] does, and shows what the transaction had written when it was created.
///
/// ```
/// # use archipelago_engine::{db::{Db, ReadOptions}, options::{DbOptions, WriteOptions}};
/// # let dir = tempfile::tempdir()?;
/// # let db = Db::open(dir.path(), DbOptions::default())?;
/// let cf = db.default_family();
/// db.put(b"user:1", b"ann")?;
/// let mut transaction = db.transaction();
/// transaction.put(cf, b"user:2", b"bob")?;
/// let mut users = transaction.iter(cf, &ReadOptions::new().prefix(b"user:"))?;
/// users.seek_to_first();
/// let mut count = 0;
/// while users.valid() {
///     count += 1;
///     users.next();
/// }
/// users.status()?;
/// assert_eq!(count, 2);
/// // Refused if another transaction has added or removed a user meanwhile.
/// transaction.put(cf, b"users", count.to_string().as_bytes())?;
/// transaction.commit(&WriteOptions::default())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TransactionIter {
    iter: Iter,
    bounds: KeyRange,
    passed: Option<Arc<Mutex<PassedKeys>>>,
}

impl TransactionIter {
    /// An iterator within `bounds` that notes its reads in `passed`, if they are checked.
    pub(super) fn new(
        iter: Iter,
        bounds: KeyRange,
        passed: Option<Arc<Mutex<PassedKeys>>>,
    ) -> Self {
        Self { iter, bounds, passed }
    }

    /// Moves to the first key within the bounds.
    pub fn seek_to_first(&mut self) {
        self.iter.seek_to_first();
        self.note_seek_forward(&[]);
    }

    /// Moves to the last key within the bounds.
    pub fn seek_to_last(&mut self) {
        self.iter.seek_to_last();
        self.note_seek_backward(None);
    }

    /// Moves to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.iter.seek(key);
        self.note_seek_forward(key);
    }

    /// Moves to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) {
        self.iter.seek_for_prev(key);
        self.note_seek_backward(Some(successor(key)));
    }

    /// Moves to the next key. Panics if the cursor is not valid.
    #[inline]
    pub fn next(&mut self) {
        self.iter.next();
        if let Some(passed) = &self.passed
            && self.iter.status().is_ok()
        {
            let mut passed = passed.lock();
            if self.iter.valid() {
                passed.end_after(self.iter.key());
                passed.note_expiry(self.iter.expires_at_ms());
            } else {
                passed.current.end.clone_from(&self.bounds.end);
            }
        }
    }

    /// Moves to the previous key. Panics if the cursor is not valid.
    #[inline]
    pub fn prev(&mut self) {
        self.iter.prev();
        if let Some(passed) = &self.passed
            && self.iter.status().is_ok()
        {
            let mut passed = passed.lock();
            if self.iter.valid() {
                passed.start_at(self.iter.key());
                passed.note_expiry(self.iter.expires_at_ms());
            } else {
                passed.current.start.clone_from(&self.bounds.start);
            }
        }
    }

    /// Whether the cursor is at a key.
    #[inline]
    #[must_use]
    pub fn valid(&self) -> bool {
        self.iter.valid()
    }

    /// The key at the cursor. Panics if the cursor is not valid.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.iter.key()
    }

    /// The value at the cursor. Panics if the cursor is not valid.
    #[inline]
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.iter.value()
    }

    /// Time at which the value expires (Unix milliseconds), if it does.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.iter.expires_at_ms()
    }

    /// The error that made the cursor invalid, if there was one.
    pub fn status(&self) -> Result<()> {
        self.iter.status()
    }

    /// Notes a seek from `from` to the first key at or after it.
    fn note_seek_forward(&self, from: &[u8]) {
        let start = from.max(&self.bounds.start).to_vec();
        let end = match self.iter.valid() {
            true => Some(successor(self.iter.key())),
            false => self.bounds.end.clone(),
        };
        self.note_seek(KeyRange { start, end });
    }

    /// Notes a seek from before `to` (`None`: the upper bound) to the last key before it.
    fn note_seek_backward(&self, to: Option<Vec<u8>>) {
        let start = match self.iter.valid() {
            true => self.iter.key().to_vec(),
            false => self.bounds.start.clone(),
        };
        let end = match (to, self.bounds.end.clone()) {
            (Some(to), Some(end)) => Some(to.min(end)),
            (to, end) => to.or(end),
        };
        self.note_seek(KeyRange { start, end });
    }

    fn note_seek(&self, range: KeyRange) {
        let Some(passed) = &self.passed else { return };
        if self.iter.status().is_err() {
            return;
        }
        let mut passed = passed.lock();
        passed.seek(range);
        if self.iter.valid() {
            passed.note_expiry(self.iter.expires_at_ms());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::concurrency::footprint::{Touch, Touched};

    const CF: CfId = CfId(1);

    #[test]
    fn seeks_are_kept_beside_each_other_up_to_the_bound() {
        let mut passed = PassedKeys::new(CF, SeqNo(5));
        let point = |n: u32| {
            let start = n.to_be_bytes().to_vec();
            KeyRange { end: Some(successor(&start)), start }
        };
        for n in 0..RANGES_MAX as u32 {
            passed.seek(point(2 * n));
        }
        let touched = |passed: &PassedKeys, n: u32| {
            let mut footprint = Footprint::default();
            passed.add_to(&mut footprint);
            footprint.touched(Touch { cf: CF, start: &n.to_be_bytes(), end: None })
        };
        assert_eq!(touched(&passed, 10), Some(Touched::Range));
        assert_eq!(touched(&passed, 11), None);
        passed.seek(point(9000));
        passed.seek(point(9002));
        assert_eq!(touched(&passed, 11), Some(Touched::Range), "the ranges became one");
        assert_eq!(touched(&passed, 9004), None);
        assert_eq!(passed.passed.len(), 1);
    }

    #[test]
    fn earliest_expiry_is_noted() {
        let mut passed = PassedKeys::new(CF, SeqNo(5));
        for expiry in [None, Some(9), Some(7), None, Some(8)] {
            passed.note_expiry(expiry);
        }
        let mut footprint = Footprint::default();
        passed.add_to(&mut footprint);
        assert!(footprint.has_expired(|| 7) && !footprint.has_expired(|| 6));
    }
}
