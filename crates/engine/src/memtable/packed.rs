//! The index of an image: the entries in order, packed, with coarser levels over them.
//!
//! The index is written at the seal's end from a walk over the leaves, searched in place, and never
//! changed. Level 0 holds every entry. Level `k + 1` holds every 64th entry of level `k`, and the
//! top level has at most 64. A group is 64 neighbours of a level, searched like a node of the live
//! index ([`super::search`]). Its skip is the length that the keys at its start and at the next
//! group's start share. The first and the last group of a level use the guess. A record takes 13
//! bytes.
//!
//! Bytes: for each level from 0: its prefixes (u64 each), its skips (u32 for each group, padded
//! to eight bytes); then the record references (u32 each, padded). All little-endian.
//!
//! Invariant: every position is checked against the number of entries and every record against its
//! slab, for any bytes. A search takes one step for each level.

use super::kv::RecordRef;
use super::search::{GUESS, Past, Records, Slots, Target, guessed, load8, partition, shared};
use crate::key;

/// Number of entries in a group.
const GROUP: usize = 64;
const GROUP_BITS: usize = GROUP.trailing_zeros() as usize;

/// Position of one level in the index section.
#[derive(Clone, Copy, Debug)]
struct Level {
    count: usize,
    prefixes: usize,
    skips: usize,
}

/// Positions of all parts of an index section, for a number of entries.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    levels: Vec<Level>,
    records: usize,
    /// Length of the section in bytes.
    pub(super) bytes: usize,
}

impl Layout {
    /// The layout for `entries`; `None` if it would not fit the address space.
    pub(super) fn new(entries: usize) -> Option<Self> {
        let mut levels = Vec::new();
        let mut at = 0usize;
        let mut count = entries;
        loop {
            let skips = at.checked_add(count.checked_mul(8)?)?;
            levels.push(Level { count, prefixes: at, skips });
            let groups = count.div_ceil(GROUP);
            at = skips.checked_add((groups * 4).next_multiple_of(8))?;
            if count <= GROUP {
                break;
            }
            count = groups;
        }
        let bytes = at.checked_add(entries.checked_mul(4)?.checked_next_multiple_of(8)?)?;
        Some(Self { levels, records: at, bytes })
    }
}

/// Appends the index section of records in order.
pub(super) fn write<'a>(
    out: &mut Vec<u8>,
    entries: &[RecordRef],
    layout: &Layout,
    guess: &[u8],
    user_key: impl Fn(RecordRef) -> &'a [u8],
) {
    let start = out.len();
    out.reserve(layout.bytes);
    for (level, place) in layout.levels.iter().enumerate() {
        let entry = |at: usize| entries[at << (GROUP_BITS * level)];
        let mut skips = Vec::new();
        for first in (0..place.count).step_by(GROUP) {
            let next = first + GROUP;
            let skip = if first == 0 || next >= place.count {
                GUESS
            } else {
                shared(user_key(entry(first)), user_key(entry(next))) as u32
            };
            skips.push(skip);
            for at in first..next.min(place.count) {
                let key = user_key(entry(at));
                let prefix =
                    if skip == GUESS { guessed(key, guess) } else { load8(key, skip as usize) };
                out.extend_from_slice(&prefix.to_le_bytes());
            }
        }
        skips.iter().for_each(|skip| out.extend_from_slice(&skip.to_le_bytes()));
        pad(out, start);
    }
    entries.iter().for_each(|record| out.extend_from_slice(&record.to_le_bytes()));
    pad(out, start);
    debug_assert_eq!(out.len() - start, layout.bytes);
}

fn pad(out: &mut Vec<u8>, start: usize) {
    let len = (out.len() - start).next_multiple_of(8);
    out.resize(start + len, 0);
}

/// An index section with its layout.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    bytes: &'a [u8],
    layout: &'a Layout,
}

/// One level as a row of entries.
struct Row<'a> {
    prefixes: &'a [[u8; 8]],
    records: &'a [[u8; 4]],
    shift: usize,
}

impl Slots for Row<'_> {
    #[inline(always)]
    fn prefix(&self, position: usize) -> u64 {
        u64::from_le_bytes(self.prefixes[position])
    }
    #[inline(always)]
    fn record(&self, position: usize) -> RecordRef {
        u32::from_le_bytes(self.records[position << self.shift])
    }
}

impl<'a> Packed<'a> {
    /// Joins `bytes`, which must have the length of the layout, with the layout.
    pub(super) fn new(bytes: &'a [u8], layout: &'a Layout) -> Self {
        debug_assert_eq!(bytes.len(), layout.bytes);
        Self { bytes, layout }
    }

    fn records(&self) -> &'a [[u8; 4]] {
        let len = self.layout.levels[0].count * 4;
        self.bytes[self.layout.records..][..len].as_chunks().0
    }

    /// The record at a position, which must be below the number of entries.
    #[inline]
    pub(super) fn record(&self, position: usize) -> RecordRef {
        u32::from_le_bytes(self.records()[position])
    }

    /// The record at a position, if there is one.
    #[inline]
    pub(super) fn get(&self, position: usize) -> Option<RecordRef> {
        self.records().get(position).copied().map(u32::from_le_bytes)
    }

    /// First position that the search does not pass. `None` if a record on the way is damaged.
    pub(super) fn search(
        &self,
        target: &Target<'_>,
        guess: &[u8],
        past: Past,
        records: &impl Records,
    ) -> Option<usize> {
        let mut group = 0;
        for (level, place) in self.layout.levels.iter().enumerate().rev() {
            let row = Row {
                prefixes: self.bytes[place.prefixes..][..place.count * 8].as_chunks().0,
                records: self.records(),
                shift: GROUP_BITS * level,
            };
            let skip = self.bytes[place.skips + group * 4..].first_chunk().copied();
            let skip = skip.map_or(GUESS, u32::from_le_bytes);
            let prefix = target.prefix(skip, || guess);
            let (from, to) = (group * GROUP, place.count.min((group + 1) * GROUP));
            if level == 0 {
                return partition(&row, from..to, prefix, target, past, records);
            }
            let above = from + 1..to;
            group = partition(&row, above, prefix, target, Past::Equal, records)? - 1;
        }
        None
    }
}

/// The user key of an encoded internal key from foreign bytes; `None` if it is too short.
pub(super) fn checked_user_key(encoded: &[u8]) -> Option<&[u8]> {
    (encoded.len() >= key::TRAILER_BYTES).then(|| key::user_key(encoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_levels_of_at_most_64_at_the_top() {
        for (entries, levels) in [(0, 1), (1, 1), (64, 1), (65, 2), (4096, 2), (4097, 3)] {
            let layout = Layout::new(entries).expect("fits");
            assert_eq!(layout.levels.len(), levels, "{entries}");
            assert!(layout.levels.last().expect("at least one").count <= GROUP);
        }
        let large = Layout::new(1_000_000).expect("fits");
        assert!(large.bytes < 13 * 1_000_000);
        assert!(Layout::new(usize::MAX / 8).is_none());
    }
}
