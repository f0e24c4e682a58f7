//! A cursor over sorted, disjoint parts, each of which is opened when the cursor reaches it. The
//! parts are the files of a level, or the buckets of L0 (each the merge of a bucket's files).
//!
//! One reader or job owns the cursor. Invariants: at most one part is open, and the cursor is valid
//! if and only if the open part's cursor is.
//!
//! The cursor ignores range tombstones. A file may cover keys in older levels although the cursor
//! has not reached the file or is past it. Therefore a scan asks for them by key
//! ([`super::TombstoneSource`]).
//!
//! Failure: an error of [`FileOpener::open`] or of the open part makes the cursor invalid.
//! Cost: a seek is a binary search over the parts and a seek in one part, or in two if the first
//! one ends before the target. A step is one dynamic call within a part.

use archipelago_base::{Error, Result};

use super::InternalIterator;
use crate::key::user_key;

/// The parts of a [`LevelIterator`], in key order. No user key is in two parts.
pub trait FileOpener: Send {
    /// Number of parts.
    fn count(&self) -> usize;
    /// Whether all records of part `index` have user keys before `key`, as
    /// [`crate::file_meta::FileMeta::ends_before`] tells. An implementation that does not know
    /// returns false.
    fn ends_before(&self, index: usize, key: &[u8]) -> bool;
    /// A user key at or before that of every record of part `index`.
    fn smallest(&self, index: usize) -> &[u8];
    /// A cursor over part `index`.
    fn open(&self, index: usize) -> Result<Box<dyn InternalIterator>>;
}

/// A cursor over sorted, disjoint parts, each of which is opened when the cursor reaches it.
pub struct LevelIterator<O: FileOpener> {
    opener: O,
    open: Option<(usize, Box<dyn InternalIterator>)>,
    valid: bool,
    error: Option<Error>,
}

impl<O: FileOpener> LevelIterator<O> {
    /// A cursor over the parts; nothing is opened before the first seek.
    pub fn new(opener: O) -> Self {
        Self { opener, open: None, valid: false, error: None }
    }

    /// Index of the first part for which `past` is false. The parts are sorted by it.
    fn partition_point(&self, past: impl Fn(usize) -> bool) -> usize {
        let (mut low, mut high) = (0, self.opener.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if past(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Opens part `index`, if it exists and is not open yet, and moves its cursor by `place`.
    fn place(&mut self, index: usize, place: impl FnOnce(&mut dyn InternalIterator)) {
        self.valid = false;
        self.error = None;
        if index >= self.opener.count() {
            return;
        }
        if self.open.as_ref().is_none_or(|(open, _)| *open != index) {
            self.open = None;
            match self.opener.open(index) {
                Ok(iter) => self.open = Some((index, iter)),
                Err(error) => {
                    self.error = Some(error);
                    return;
                }
            }
        }
        if let Some((_, iter)) = &mut self.open {
            place(&mut **iter);
            self.valid = iter.valid();
            self.error = if self.valid { None } else { iter.status().err() };
        }
    }

    /// Moves on to the next part with a record, if the cursor passed the end of a part.
    fn settle_forward(&mut self, mut index: usize) {
        while !self.valid && self.error.is_none() && index + 1 < self.opener.count() {
            index += 1;
            self.place(index, |iter| iter.seek_to_first());
        }
    }

    /// Moves back to the previous part with a record, if the cursor passed the start of a part.
    fn settle_backward(&mut self, mut index: usize) {
        while !self.valid && self.error.is_none() && index > 0 {
            index -= 1;
            self.place(index, |iter| iter.seek_to_last());
        }
    }

    /// Notes that the open part has no more records in this direction. Returns its index.
    #[cold]
    fn part_ended(&mut self) -> usize {
        self.valid = false;
        let Some((index, iter)) = &self.open else { return 0 };
        self.error = iter.status().err();
        *index
    }

    fn current(&self) -> &dyn InternalIterator {
        let (_, iter) = self.open.as_ref().expect("a valid cursor stands in an open part");
        &**iter
    }
}

impl<O: FileOpener> InternalIterator for LevelIterator<O> {
    #[inline]
    fn valid(&self) -> bool {
        self.valid
    }

    fn seek_to_first(&mut self) {
        self.place(0, |iter| iter.seek_to_first());
        self.settle_forward(0);
    }

    fn seek_to_last(&mut self) {
        let last = self.opener.count().saturating_sub(1);
        self.place(last, |iter| iter.seek_to_last());
        self.settle_backward(last);
    }

    fn seek(&mut self, target: &[u8]) {
        let key = user_key(target);
        let index = self.partition_point(|index| self.opener.ends_before(index, key));
        self.place(index, |iter| iter.seek(target));
        self.settle_forward(index);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let key = user_key(target);
        let past = self.partition_point(|index| self.opener.smallest(index) <= key);
        let Some(index) = past.checked_sub(1) else {
            self.valid = false;
            self.error = None;
            return;
        };
        self.place(index, |iter| iter.seek_for_prev(target));
        self.settle_backward(index);
    }

    fn next(&mut self) {
        self.advance();
    }

    fn prev(&mut self) {
        self.retreat();
    }

    #[inline]
    fn advance(&mut self) -> bool {
        if let Some((_, iter)) = &mut self.open
            && iter.advance()
        {
            return true;
        }
        let index = self.part_ended();
        self.settle_forward(index);
        self.valid
    }

    #[inline]
    fn retreat(&mut self) -> bool {
        if let Some((_, iter)) = &mut self.open
            && iter.retreat()
        {
            return true;
        }
        let index = self.part_ended();
        self.settle_backward(index);
        self.valid
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.current().key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current().value()
    }

    #[inline]
    fn read_value(&self) -> Result<&[u8]> {
        self.current().read_value()
    }

    #[inline]
    fn expiry_bytes(&self) -> &[u8] {
        self.current().expiry_bytes()
    }

    fn is_warm(&self) -> bool {
        self.current().is_warm()
    }

    fn status(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }
}
