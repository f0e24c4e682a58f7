//! A cursor that merges several sorted cursors.
//!
//! One reader or job owns the cursor. A binary heap holds the valid children, with the current one
//! at its root. Invariants:
//! 1. Every child in the heap is valid. Forwards it is at its first record at or after the current
//!    one, backwards at its last record at or before it.
//! 2. `runner` is the heap position of the best child below the root (0 if there is none). It stays
//!    right while the root stays the root, so a step within one child costs one comparison.
//! 3. A heap entry caches the first eight bytes of its child's user key as a number. A comparison
//!    reads the keys of the children only if these numbers are equal.
//! 4. Equal internal keys come in the children's order.
//!
//! Failure: an error of any child makes the whole cursor invalid until the next seek. So the
//! records of the other children are never shown without those of the failed child.
//! Cost: a step takes one or two dynamic calls and one comparison while it stays in a child, else
//! O(log n) comparisons. A seek or a change of direction seeks every child. No allocation after the
//! first seek.

use archipelago_base::{Error, ErrorKind, Result, SeqNo};

use super::InternalIterator;
use crate::key::{Kind, TRAILER_BYTES, compare, encode_into, user_key};

/// One input of a merge.
pub struct Child {
    /// Cursor over the records of the input.
    pub iter: Box<dyn InternalIterator>,
    /// Largest sequence number among the child's records; [`SeqNo::MAX`] if it is not known or may
    /// still grow. A newer range delete lets the merge skip its range in this child.
    pub max_seq: SeqNo,
}

impl Child {
    /// A child whose records have sequence numbers of at most `max_seq`.
    #[must_use]
    pub fn new(iter: Box<dyn InternalIterator>, max_seq: SeqNo) -> Self {
        Self { iter, max_seq }
    }
}

/// A child in the heap.
#[derive(Clone, Copy)]
struct HeapEntry {
    /// First bytes of the current key as a number, from [`prefix`].
    prefix: u64,
    child: u32,
}

/// A merge of several cursors: every record of each, in order. An error of one makes it invalid.
pub struct MergingIterator {
    children: Vec<Child>,
    heap: Vec<HeapEntry>,
    runner: usize,
    backward: bool,
    error: Option<Error>,
    /// Copy of a key that must survive a move of the cursors.
    target: Vec<u8>,
}

impl MergingIterator {
    /// A merge of `children`, newest first (the order only matters among equal internal keys).
    #[must_use]
    pub fn new(children: Vec<Child>) -> Self {
        let heap = Vec::with_capacity(children.len());
        Self { children, heap, runner: 0, backward: false, error: None, target: Vec::new() }
    }

    /// Moves forward every child that has only records older than `newest`, to its first record at
    /// or after the user key `until`. Children at or past `until` stay. The caller has a range that
    /// is deleted at `newest`, starts at or before the current record, and ends at `until`.
    pub fn skip_deleted_to(&mut self, until: &[u8], newest: SeqNo) {
        debug_assert!(!self.backward);
        self.target.clear();
        encode_into(&mut self.target, until, SeqNo::MAX, Kind::SEEK);
        for entry in &self.heap {
            let child = &mut self.children[entry.child as usize];
            if child.max_seq < newest && user_key(child.iter.key()) < until {
                child.iter.seek(&self.target);
            }
        }
        self.rebuild::<false>();
    }

    /// Moves backward every child that has only records older than `newest`, to its last record
    /// before the user key `start`. Children before `start` stay. The caller has a range that is
    /// deleted at `newest`, starts at `start`, and ends after the current record.
    pub fn skip_deleted_before(&mut self, start: &[u8], newest: SeqNo) {
        debug_assert!(self.backward);
        self.target.clear();
        encode_into(&mut self.target, start, SeqNo::MAX, Kind::SEEK);
        for entry in &self.heap {
            let child = &mut self.children[entry.child as usize];
            if child.max_seq < newest && user_key(child.iter.key()) >= start {
                child.iter.seek_for_prev(&self.target);
            }
        }
        self.rebuild::<true>();
    }

    /// Whether `a` comes before `b` in the direction of travel.
    #[inline]
    fn before<const BACK: bool>(&self, a: HeapEntry, b: HeapEntry) -> bool {
        let (a, b) = if BACK { (b, a) } else { (a, b) };
        if a.prefix == b.prefix { self.before_by_key(a, b) } else { a.prefix < b.prefix }
    }

    /// Whether `a`'s key is smaller than `b`'s. The function is separate, so that the comparison of
    /// prefixes can be inlined without a branch.
    #[inline(never)]
    fn before_by_key(&self, a: HeapEntry, b: HeapEntry) -> bool {
        let key = |entry: HeapEntry| self.children[entry.child as usize].iter.key();
        compare(key(a), key(b)).then(a.child.cmp(&b.child)).is_lt()
    }

    /// Fills the heap from the children's positions.
    fn rebuild<const BACK: bool>(&mut self) {
        self.backward = BACK;
        self.error = None;
        self.heap.clear();
        self.runner = 0;
        for (index, child) in self.children.iter().enumerate() {
            let entry = if child.iter.valid() {
                prefix(child.iter.key()).map(Some)
            } else {
                child.iter.status().map(|()| None)
            };
            match entry {
                Ok(Some(prefix)) => self.heap.push(HeapEntry { prefix, child: index as u32 }),
                Ok(None) => {}
                Err(error) => return self.fail(error),
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down::<BACK>(at);
        }
        self.find_runner::<BACK>();
    }

    /// Moves the entry at heap position `at` down to its place.
    fn sift_down<const BACK: bool>(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let mut below = 2 * at + 1;
            if below >= self.heap.len() {
                break;
            }
            if below + 1 < self.heap.len() {
                let right = self.before::<BACK>(self.heap[below + 1], self.heap[below]);
                below += usize::from(right);
            }
            if !self.before::<BACK>(self.heap[below], entry) {
                break;
            }
            self.heap[at] = self.heap[below];
            at = below;
        }
        self.heap[at] = entry;
    }

    fn find_runner<const BACK: bool>(&mut self) {
        self.runner = match self.heap.len() {
            0 | 1 => 0,
            2 => 1,
            _ if self.before::<BACK>(self.heap[2], self.heap[1]) => 2,
            _ => 1,
        };
    }

    /// Moves the root's child one record and puts the heap in order again.
    #[inline]
    fn step<const BACK: bool>(&mut self) {
        let child = &mut self.children[self.heap[0].child as usize].iter;
        if !(if BACK { child.retreat() } else { child.advance() }) {
            return self.remove_root::<BACK>();
        }
        match prefix(child.key()) {
            Ok(prefix) => self.heap[0].prefix = prefix,
            Err(error) => return self.fail(error),
        }
        let runner = self.runner;
        if runner != 0 && self.before::<BACK>(self.heap[runner], self.heap[0]) {
            self.heap.swap(0, runner);
            self.sift_down::<BACK>(runner);
            self.find_runner::<BACK>();
        }
    }

    /// Removes the root, whose child has ended.
    fn remove_root<const BACK: bool>(&mut self) {
        if let Err(error) = self.children[self.heap[0].child as usize].iter.status() {
            return self.fail(error);
        }
        self.heap.swap_remove(0);
        if !self.heap.is_empty() {
            self.sift_down::<BACK>(0);
        }
        self.find_runner::<BACK>();
    }

    /// Moves every child except the current one to the other side of the current record. The caller
    /// then steps from there.
    fn turn<const BACK: bool>(&mut self) {
        let current = self.heap[0].child as usize;
        self.target.clear();
        self.target.extend_from_slice(self.children[current].iter.key());
        for (index, child) in self.children.iter_mut().enumerate() {
            if index == current {
                continue;
            }
            let iter = &mut child.iter;
            if BACK {
                iter.seek_for_prev(&self.target);
            } else {
                iter.seek(&self.target);
            }
            let passed = if BACK { index > current } else { index < current };
            if passed && iter.valid() && compare(iter.key(), &self.target).is_eq() {
                if BACK {
                    iter.prev();
                } else {
                    iter.next();
                }
            }
        }
        self.rebuild::<BACK>();
    }

    #[cold]
    fn fail(&mut self, error: Error) {
        self.heap.clear();
        self.runner = 0;
        self.error = Some(error);
    }

    fn current(&self) -> &dyn InternalIterator {
        &*self.children[self.heap[0].child as usize].iter
    }
}

impl InternalIterator for MergingIterator {
    #[inline]
    fn valid(&self) -> bool {
        !self.heap.is_empty()
    }

    fn seek_to_first(&mut self) {
        self.children.iter_mut().for_each(|child| child.iter.seek_to_first());
        self.rebuild::<false>();
    }

    fn seek_to_last(&mut self) {
        self.children.iter_mut().for_each(|child| child.iter.seek_to_last());
        self.rebuild::<true>();
    }

    fn seek(&mut self, target: &[u8]) {
        self.children.iter_mut().for_each(|child| child.iter.seek(target));
        self.rebuild::<false>();
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        self.children.iter_mut().for_each(|child| child.iter.seek_for_prev(target));
        self.rebuild::<true>();
    }

    #[inline]
    fn next(&mut self) {
        if self.backward {
            self.turn::<false>();
            if self.heap.is_empty() {
                return;
            }
        }
        self.step::<false>();
    }

    #[inline]
    fn prev(&mut self) {
        if !self.backward {
            self.turn::<true>();
            if self.heap.is_empty() {
                return;
            }
        }
        self.step::<true>();
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

/// The first eight bytes of the user key as a big-endian number, padded with zeros. A smaller
/// number means a smaller key; equal numbers leave the order open.
#[inline]
fn prefix(encoded: &[u8]) -> Result<u64> {
    let Some(first) = encoded.first_chunk::<TRAILER_BYTES>() else {
        return Err(short_key(encoded));
    };
    let word = u64::from_be_bytes(*first);
    let user_bytes = encoded.len() - TRAILER_BYTES;
    if user_bytes >= 8 {
        return Ok(word);
    }
    let keep = !u64::MAX.checked_shr(8 * user_bytes as u32).unwrap_or(0);
    Ok(word & keep)
}

#[cold]
fn short_key(encoded: &[u8]) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "a record's internal key \"{}\" has {} bytes instead of at least {TRAILER_BYTES}",
            encoded.escape_ascii(),
            encoded.len()
        ),
    )
}
