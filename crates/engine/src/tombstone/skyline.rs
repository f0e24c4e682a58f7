//! The skyline of range tombstones: for every key, the newest tombstone that covers it.
//!
//! A skyline is a list of cuts. A cut names a key and the newest tombstone that covers all keys
//! from there to the next cut, or says that no tombstone covers them. `n` tombstones have at most
//! `2n` cuts for any overlap, because every cut is a start or an end of a tombstone.
//!
//! Invariants:
//! 1. Cuts are strictly ascending by key, and neighbours name different tombstones.
//! 2. The first cut names a tombstone; the last one names none.
//! 3. A skyline is *exact* if no key is covered by tombstones of two sequence numbers. Then it says
//!    everything that the tombstones say, at every sequence number.
//!
//! The module is pure. Cost: making a skyline of `n` tombstones takes O(n log n) comparisons of
//! keys, merging two takes one pass over both, and a question is one binary search. Keys are shared
//! with the tombstones, so a cut takes 24 bytes.

use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::Arc;

use archipelago_base::SeqNo;

use super::RangeTombstone;

/// A sequence number as eight bytes that leave room for "no tombstone".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp(NonZeroU64);

impl Stamp {
    fn new(seq: SeqNo) -> Self {
        Self(NonZeroU64::MIN.saturating_add(seq.0))
    }

    fn seq(self) -> SeqNo {
        SeqNo(self.0.get() - 1)
    }
}

/// A key at which the newest tombstone changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cut {
    key: Arc<[u8]>,
    newest: Option<Stamp>,
}

/// A range of keys and the newest tombstone that covers all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    /// First key of the range.
    pub(crate) start: &'a [u8],
    /// First key past the range; `None` if it has no end. A covered piece always has one.
    pub(crate) end: Option<&'a [u8]>,
    /// Sequence number of the newest tombstone; `None` if there is none.
    pub(crate) newest: Option<SeqNo>,
}

/// The newest tombstone over every key, as a list of cuts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skyline {
    cuts: Vec<Cut>,
    exact: bool,
}

impl Skyline {
    /// The skyline of `tombstones` in any order; empty ones are ignored.
    pub(crate) fn of(tombstones: &[RangeTombstone]) -> Self {
        let mut starts: Vec<&RangeTombstone> =
            tombstones.iter().filter(|tombstone| !tombstone.is_empty()).collect();
        starts.sort_unstable_by(|a, b| a.start.cmp(&b.start));
        let mut ends: Vec<&Arc<[u8]>> = starts.iter().map(|tombstone| &tombstone.end).collect();
        ends.sort_unstable();
        let mut sweep = Sweep::default();
        let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
        while let Some(end) = ends.peek().copied() {
            let key = match starts.peek() {
                Some(next) if next.start <= *end => &next.start,
                _ => end,
            };
            while ends.next_if(|end| *end == key).is_some() {}
            sweep.close_until(key);
            while let Some(tombstone) = starts.next_if(|next| next.start == *key) {
                sweep.open(tombstone);
            }
            sweep.cut(key);
        }
        sweep.skyline
    }

    /// The skyline of the tombstones of both.
    pub(crate) fn merged(one: &Self, other: &Self) -> Self {
        let mut merged = Self {
            cuts: Vec::with_capacity(one.cuts.len() + other.cuts.len()),
            exact: one.exact && other.exact,
        };
        let (mut ones, mut others) = (one.cuts.iter().peekable(), other.cuts.iter().peekable());
        let (mut of_one, mut of_other) = (None, None);
        loop {
            let key = match (ones.peek(), others.peek()) {
                (Some(one), Some(other)) => (&one.key).min(&other.key),
                (Some(one), None) => &one.key,
                (None, Some(other)) => &other.key,
                (None, None) => break,
            };
            if let Some(cut) = ones.next_if(|cut| cut.key == *key) {
                of_one = cut.newest;
            }
            if let Some(cut) = others.next_if(|cut| cut.key == *key) {
                of_other = cut.newest;
            }
            merged.exact &= of_one.is_none() || of_other.is_none() || of_one == of_other;
            merged.push(key, of_one.max(of_other));
        }
        merged.cuts.shrink_to_fit();
        merged
    }

    fn push(&mut self, key: &Arc<[u8]>, newest: Option<Stamp>) {
        let before = self.cuts.last().and_then(|cut| cut.newest);
        if before != newest {
            self.cuts.push(Cut { key: Arc::clone(key), newest });
        }
    }

    /// Whether the skyline is exact (invariant 3).
    pub(crate) fn is_exact(&self) -> bool {
        self.exact || self.cuts.is_empty()
    }

    /// The largest piece around `key` that no cut divides.
    #[inline]
    pub(crate) fn piece(&self, key: &[u8]) -> Piece<'_> {
        let after = self.cuts.partition_point(|cut| *cut.key <= *key);
        let at = after.checked_sub(1).map(|at| &self.cuts[at]);
        Piece {
            start: at.map_or(&[], |cut| &cut.key),
            end: self.cuts.get(after).map(|cut| &*cut.key),
            newest: at.and_then(|cut| cut.newest).map(Stamp::seq),
        }
    }

    /// The newest tombstone that covers `key`.
    #[inline]
    pub(crate) fn newest(&self, key: &[u8]) -> Option<SeqNo> {
        let after = self.cuts.partition_point(|cut| *cut.key <= *key);
        self.cuts[..after].last().and_then(|cut| cut.newest).map(Stamp::seq)
    }

    /// The newest tombstone that covers `key`, for keys in ascending order: `at` starts at 0 and
    /// passes every cut once.
    #[inline]
    pub(crate) fn newest_from(&self, at: &mut usize, key: &[u8]) -> Option<SeqNo> {
        while self.cuts.get(*at).is_some_and(|cut| *cut.key <= *key) {
            *at += 1;
        }
        self.cuts[..*at].last().and_then(|cut| cut.newest).map(Stamp::seq)
    }

    /// The covered pieces as tombstones, ascending and disjoint.
    pub(crate) fn covered(&self) -> impl Iterator<Item = RangeTombstone> + '_ {
        self.cuts.windows(2).filter_map(|pair| {
            Some(RangeTombstone {
                start: Arc::clone(&pair[0].key),
                end: Arc::clone(&pair[1].key),
                seq: pair[0].newest?.seq(),
            })
        })
    }

    /// Number of cuts, for tests that count.
    #[cfg(test)]
    pub(crate) fn cuts(&self) -> usize {
        self.cuts.len()
    }

    /// Bytes of the cuts, without their keys.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.cuts.capacity() * size_of::<Cut>()) as u64
    }

    /// Bytes of the cuts' keys.
    pub(crate) fn key_bytes(&self) -> u64 {
        self.cuts.iter().map(|cut| super::key_bytes(&cut.key)).sum()
    }
}

/// A tombstone that the sweep is inside of. The newest one is the greatest.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Open<'a> {
    newest: Stamp,
    end: &'a [u8],
}

/// A sweep over the key space from left to right. It holds the tombstones that it is inside of. A
/// tombstone that has ended stays until it is at the top of the heap.
struct Sweep<'a> {
    open: BinaryHeap<Open<'a>>,
    skyline: Skyline,
}

impl Default for Sweep<'_> {
    fn default() -> Self {
        Self { open: BinaryHeap::new(), skyline: Skyline { cuts: Vec::new(), exact: true } }
    }
}

impl<'a> Sweep<'a> {
    fn close_until(&mut self, key: &[u8]) {
        while self.open.peek().is_some_and(|top| top.end <= key) {
            self.open.pop();
        }
    }

    fn open(&mut self, tombstone: &'a RangeTombstone) {
        let newest = Stamp::new(tombstone.seq);
        self.skyline.exact &= self.open.peek().is_none_or(|top| top.newest == newest);
        self.open.push(Open { newest, end: &tombstone.end });
    }

    fn cut(&mut self, key: &Arc<[u8]>) {
        let newest = self.open.peek().map(|top| top.newest);
        self.skyline.push(key, newest);
    }
}
