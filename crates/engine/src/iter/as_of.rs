//! The records of a cursor that a reader at one sequence number may see.
//!
//! An export of a memtable that still takes writes reads it through this cursor, so that the export
//! ends at one moment. One job owns the cursor.
//!
//! Invariant: while the cursor is valid, the inner cursor is at a record whose sequence number is
//! at most `through`.
//! Failure: that of the inner cursor. Cost: a comparison per step, and a step over each newer
//! record.

use archipelago_base::{Result, SeqNo};

use super::InternalIterator;
use crate::key::{trailer, trailer_seq};

/// The records of a cursor up to a sequence number.
pub(crate) struct AsOfIterator<I: InternalIterator> {
    inner: I,
    through: SeqNo,
}

impl<I: InternalIterator> AsOfIterator<I> {
    /// The records of `inner` whose sequence numbers are at most `through`.
    pub(crate) fn new(inner: I, through: SeqNo) -> Self {
        Self { inner, through }
    }

    /// Whether the inner cursor is at a record that is too new.
    fn is_too_new(&self) -> bool {
        self.inner.valid() && trailer_seq(trailer(self.inner.key())) > self.through
    }

    fn settle_forward(&mut self) {
        while self.is_too_new() {
            self.inner.next();
        }
    }

    fn settle_backward(&mut self) {
        while self.is_too_new() {
            self.inner.prev();
        }
    }
}

impl<I: InternalIterator> InternalIterator for AsOfIterator<I> {
    fn valid(&self) -> bool {
        self.inner.valid()
    }

    fn seek_to_first(&mut self) {
        self.inner.seek_to_first();
        self.settle_forward();
    }

    fn seek_to_last(&mut self) {
        self.inner.seek_to_last();
        self.settle_backward();
    }

    fn seek(&mut self, target: &[u8]) {
        self.inner.seek(target);
        self.settle_forward();
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        self.inner.seek_for_prev(target);
        self.settle_backward();
    }

    fn next(&mut self) {
        self.inner.next();
        self.settle_forward();
    }

    fn prev(&mut self) {
        self.inner.prev();
        self.settle_backward();
    }

    fn key(&self) -> &[u8] {
        self.inner.key()
    }

    fn value(&self) -> &[u8] {
        self.inner.value()
    }

    fn status(&self) -> Result<()> {
        self.inner.status()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iter::VecIterator;
    use crate::key::{Kind, encode};

    #[test]
    fn cursor_steps_over_newer_records() {
        let record = |key: &str, seq| (encode(key.as_bytes(), SeqNo(seq), Kind::Put), Vec::new());
        let all = vec![record("a", 9), record("a", 4), record("b", 7), record("c", 5)];
        let mut cursor = AsOfIterator::new(VecIterator::new(all), SeqNo(5));
        let seq = |cursor: &AsOfIterator<VecIterator>| {
            cursor.valid().then(|| trailer_seq(trailer(cursor.key())).0)
        };
        cursor.seek_to_first();
        assert_eq!(seq(&cursor), Some(4));
        cursor.next();
        assert_eq!(seq(&cursor), Some(5));
        cursor.prev();
        assert_eq!(seq(&cursor), Some(4));
        cursor.prev();
        assert_eq!(seq(&cursor), None);
        cursor.seek(&encode(b"b", SeqNo::MAX, Kind::SEEK));
        assert_eq!(seq(&cursor), Some(5));
        cursor.seek_for_prev(&encode(b"b", SeqNo(1), Kind::Put));
        assert_eq!(seq(&cursor), Some(4));
        cursor.seek_to_last();
        assert_eq!(seq(&cursor), Some(5));
    }
}
