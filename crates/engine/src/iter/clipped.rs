//! The part of a cursor's records that lies in a range of user keys.
//!
//! It serves files that reach past the bucket, or the part of a job, through which they are read.
//! An L0 file that is older than a change of the bucket map is part of several buckets. One reader
//! or job owns the cursor.
//!
//! Invariant: while the cursor is valid, the inner cursor is at a record within the range.
//! Failure: that of the inner cursor. Cost: a comparison per step and per seek.

use archipelago_base::{Result, SeqNo};

use super::InternalIterator;
use crate::key::{KeyRange, Kind, encode, user_key};

/// The records of a cursor that lie in a range of user keys.
pub struct ClippedIterator<I: InternalIterator> {
    inner: I,
    range: KeyRange,
    /// Encoded key before every record of the range's first key.
    start: Vec<u8>,
    /// Encoded key before every record of the first key past the range; `None` without an end.
    end: Option<Vec<u8>>,
    valid: bool,
}

impl<I: InternalIterator> ClippedIterator<I> {
    /// The records of `inner` in `range`.
    pub fn new(inner: I, range: KeyRange) -> Self {
        let before = |key: &[u8]| encode(key, SeqNo::MAX, Kind::SEEK);
        Self {
            inner,
            start: before(&range.start),
            end: range.end.as_deref().map(before),
            range,
            valid: false,
        }
    }

    fn settle_forward(&mut self, inner_valid: bool) -> bool {
        let inside = |key: &[u8]| self.range.end.as_deref().is_none_or(|end| user_key(key) < end);
        self.valid = inner_valid && inside(self.inner.key());
        self.valid
    }

    fn settle_backward(&mut self, inner_valid: bool) -> bool {
        self.valid = inner_valid && user_key(self.inner.key()) >= self.range.start.as_slice();
        self.valid
    }
}

impl<I: InternalIterator> InternalIterator for ClippedIterator<I> {
    #[inline]
    fn valid(&self) -> bool {
        self.valid
    }

    fn seek_to_first(&mut self) {
        self.inner.seek(&self.start);
        self.settle_forward(self.inner.valid());
    }

    fn seek_to_last(&mut self) {
        match &self.end {
            Some(end) => self.inner.seek_for_prev(end),
            None => self.inner.seek_to_last(),
        }
        self.settle_backward(self.inner.valid());
    }

    fn seek(&mut self, target: &[u8]) {
        if user_key(target) < self.range.start.as_slice() {
            return self.seek_to_first();
        }
        self.inner.seek(target);
        self.settle_forward(self.inner.valid());
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        if self.range.end.as_deref().is_some_and(|end| user_key(target) >= end) {
            return self.seek_to_last();
        }
        self.inner.seek_for_prev(target);
        self.settle_backward(self.inner.valid());
    }

    fn next(&mut self) {
        self.advance();
    }

    fn prev(&mut self) {
        self.retreat();
    }

    #[inline]
    fn advance(&mut self) -> bool {
        let inner_valid = self.inner.advance();
        self.settle_forward(inner_valid)
    }

    #[inline]
    fn retreat(&mut self) -> bool {
        let inner_valid = self.inner.retreat();
        self.settle_backward(inner_valid)
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.inner.key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.inner.value()
    }

    #[inline]
    fn read_value(&self) -> Result<&[u8]> {
        self.inner.read_value()
    }

    #[inline]
    fn expiry_bytes(&self) -> &[u8] {
        self.inner.expiry_bytes()
    }

    fn is_warm(&self) -> bool {
        self.inner.is_warm()
    }

    fn status(&self) -> Result<()> {
        self.inner.status()
    }
}
