//! Iterators: from cursors over internal keys up to the user's view of a column family.
//!
//! [`InternalIterator`] is the cursor that shards, tables, levels and merges of them share.
//! [`MergingIterator`] merges several cursors. [`LevelIterator`] walks sorted disjoint files and
//! opens each when the cursor reaches it. [`ClippedIterator`] hides records outside of a range.
//! [`UserIterator`] turns versions, merge operands, range tombstones ([`TombstoneSource`]) and
//! expiry into one value per key, as of a snapshot.

mod as_of;
mod clipped;
mod concat;
mod merging;
mod operands;
mod tombstones;
mod user;
mod values;
mod vec;
mod view;

#[cfg(test)]
mod tests;

use archipelago_base::Result;

pub(crate) use as_of::AsOfIterator;
pub use clipped::ClippedIterator;
pub use concat::{FileOpener, LevelIterator};
pub use merging::{Child, MergingIterator};
pub use tombstones::{BucketTombstones, LevelTombstones, TombstoneFile, TombstoneSource};
pub(crate) use user::Prefetch;
pub use user::UserIterator;
pub(crate) use values::{ValueSource, WantedValue};
pub use vec::VecIterator;
pub use view::{View, prefix_end};

/// A cursor over records in internal-key order ([`crate::key::compare`]): a memtable shard, a
/// block, a table, a level, or several of them merged.
///
/// A new cursor is not valid before a seek. `key` and `value` may be called only while the cursor
/// is valid, and their results hold until the next call that moves it. An error makes the cursor
/// invalid, and [`InternalIterator::status`] returns it. A cursor that has passed an end has the
/// status `Ok`. A cursor may move between threads but is not shared.
pub trait InternalIterator: Send {
    /// Whether the cursor is at a record.
    fn valid(&self) -> bool;
    /// Moves to the first record.
    fn seek_to_first(&mut self);
    /// Moves to the last record.
    fn seek_to_last(&mut self);
    /// Moves to the first record whose encoded internal key is at or after `target`.
    fn seek(&mut self, target: &[u8]);
    /// Moves to the last record whose encoded internal key is at or before `target`.
    fn seek_for_prev(&mut self, target: &[u8]);
    /// Moves to the next record. The cursor must be valid.
    fn next(&mut self);
    /// Moves to the previous record. The cursor must be valid.
    fn prev(&mut self);
    /// Moves to the next record, and returns whether the cursor is valid: one call instead of two
    /// in a scan.
    #[inline]
    fn advance(&mut self) -> bool {
        self.next();
        self.valid()
    }
    /// Moves to the previous record, and returns whether the cursor is valid.
    #[inline]
    fn retreat(&mut self) -> bool {
        self.prev();
        self.valid()
    }
    /// The encoded internal key, at least eight bytes.
    fn key(&self) -> &[u8];
    /// The stored value.
    fn value(&self) -> &[u8];
    /// The stored value, or why it could not be read. Some cursors read a value only on request. If
    /// that fails, [`InternalIterator::value`] returns an empty value. Therefore users of the
    /// values of such a cursor call this method.
    #[inline]
    fn read_value(&self) -> Result<&[u8]> {
        Ok(self.value())
    }
    /// The stored value of a record that expires. If the value has not been read, it is the expiry
    /// alone, the first eight bytes. Reads nothing.
    #[inline]
    fn expiry_bytes(&self) -> &[u8] {
        self.value()
    }
    /// The error that made the cursor invalid, if there was one.
    fn status(&self) -> Result<()>;
    /// Whether the record lies in a block that was in the block cache when a job reached it. Users
    /// read such blocks.
    fn is_warm(&self) -> bool {
        false
    }
}

impl<T: InternalIterator + ?Sized> InternalIterator for Box<T> {
    fn valid(&self) -> bool {
        (**self).valid()
    }
    fn seek_to_first(&mut self) {
        (**self).seek_to_first();
    }
    fn seek_to_last(&mut self) {
        (**self).seek_to_last();
    }
    fn seek(&mut self, target: &[u8]) {
        (**self).seek(target);
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        (**self).seek_for_prev(target);
    }
    fn next(&mut self) {
        (**self).next();
    }
    fn prev(&mut self) {
        (**self).prev();
    }
    fn advance(&mut self) -> bool {
        (**self).advance()
    }
    fn retreat(&mut self) -> bool {
        (**self).retreat()
    }
    fn key(&self) -> &[u8] {
        (**self).key()
    }
    fn value(&self) -> &[u8] {
        (**self).value()
    }
    fn read_value(&self) -> Result<&[u8]> {
        (**self).read_value()
    }
    fn expiry_bytes(&self) -> &[u8] {
        (**self).expiry_bytes()
    }
    fn status(&self) -> Result<()> {
        (**self).status()
    }
    fn is_warm(&self) -> bool {
        (**self).is_warm()
    }
}
