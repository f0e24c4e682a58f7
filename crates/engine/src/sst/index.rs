//! Index blocks: for every block below, a separator key and where the block lies.
//!
//! Payload: `prefix (length-prefixed) ++ entries ++ entry offsets (u32 each) ++ count (u32) ++
//! level (u32)`. An entry is `key bytes << 1 | continues` (varint), the separator without the
//! common prefix, the trailer (u64) if `continues`, then offset and size of the block (varints),
//! and in a top index (`level` 1) offset and size of the filter partition. Invariants:
//! 1. separators are user keys, shortened, ascending: not before the last key of their block and
//!    before the first key of the next;
//! 2. where versions of one key straddle two blocks, `continues` is set, and separator and trailer
//!    are the last record's.
//!
//! In memory the first eight bytes of each separator (behind the prefix), their *heads*, lie in one
//! array, above it every 16th of them in another and so on: a search looks at one group of 16 (two
//! cache lines, read at once) per level, and not at the entries. The handles lie in an array of
//! their own, and so do the slots of the blocks below: 41 bytes per block, counted in
//! [`IndexBlock::memory_bytes`]. Everything is checked when a block is loaded.

use std::cmp::Ordering;
use std::sync::Arc;

use archipelago_base::codec::{Reader, put_bytes, put_u32, put_u64, put_varint};

use super::data_block::{Damaged, common_prefix};
use super::format::Handle;
use crate::cache::{Slots, Spot};

/// One entry of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    /// The separator without the block's common prefix.
    pub(super) suffix: &'a [u8],
    /// The last record's trailer, if the next block begins with the same user key.
    pub(super) continues: Option<u64>,
    /// The block below.
    pub(super) handle: Handle,
    /// Its filter partition, in a top index.
    pub(super) filter: Handle,
}

/// Separators and handles, before it is known how the file will be indexed.
#[derive(Debug, Default)]
pub(super) struct IndexBuilder {
    keys: Vec<u8>,
    entries: Vec<Pending>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    key_end: usize,
    continues: Option<u64>,
    handle: Handle,
    filter: Handle,
}

impl IndexBuilder {
    /// Appends the entry of a block. `key` ends the block, see the module.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        continues: Option<u64>,
        handle: Handle,
        filter: Handle,
    ) {
        self.keys.extend_from_slice(key);
        self.entries.push(Pending { key_end: self.keys.len(), continues, handle, filter });
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.entries[before].key_end);
        &self.keys[start..self.entries[index].key_end]
    }

    pub(super) fn continues(&self, index: usize) -> Option<u64> {
        self.entries[index].continues
    }

    /// About how many bytes all entries take, stored.
    pub(super) fn estimated_bytes(&self) -> usize {
        self.keys.len() + self.entries.len() * 12
    }

    /// About how many bytes the entries of `range` take, stored.
    pub(super) fn estimated_bytes_of(&self, start: usize, end: usize) -> usize {
        let first = start.checked_sub(1).map_or(0, |before| self.entries[before].key_end);
        let last = end.checked_sub(1).map_or(0, |last| self.entries[last].key_end);
        last - first + (end - start) * 12
    }

    /// Appends the payload of an index block over entries `start..end`.
    pub(super) fn encode(&self, start: usize, end: usize, top: bool, out: &mut Vec<u8>) {
        let base = out.len();
        let prefix = match end.checked_sub(1) {
            Some(last) if last >= start => {
                let common = common_prefix(self.key(start), self.key(last));
                &self.key(start)[..common]
            }
            _ => &[],
        };
        put_bytes(out, prefix);
        let mut offsets = Vec::with_capacity(end - start);
        for index in start..end {
            offsets.push((out.len() - base) as u32);
            let (entry, key) = (&self.entries[index], self.key(index));
            let suffix = &key[prefix.len()..];
            put_varint(out, (suffix.len() as u64) << 1 | u64::from(entry.continues.is_some()));
            out.extend_from_slice(suffix);
            if let Some(trailer) = entry.continues {
                put_u64(out, trailer);
            }
            put_varint(out, entry.handle.offset);
            put_varint(out, u64::from(entry.handle.size));
            if top {
                put_varint(out, entry.filter.offset);
                put_varint(out, u64::from(entry.filter.size));
            }
        }
        for &offset in &offsets {
            put_u32(out, offset);
        }
        put_u32(out, offsets.len() as u32);
        put_u32(out, u32::from(top));
    }
}

/// Where the block of an entry lies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// The block.
    pub(super) handle: Handle,
    /// Whether the next block begins with the same user key.
    pub(super) continues: bool,
}

/// An index block in memory.
#[derive(Debug)]
pub(super) struct IndexBlock {
    bytes: Vec<u8>,
    heads: Box<[u64]>,
    /// Largest heads of groups, from the level above `heads` up to one of a single group.
    guides: Vec<Box<[u64]>>,
    places: Box<[Place]>,
    /// Of the blocks below; in a top index then of the filter partitions.
    slots: Arc<Slots>,
    prefix_at: usize,
    prefix_bytes: usize,
    offsets_at: usize,
    top: bool,
}

/// How many heads a search looks at in one step.
const GROUP: usize = 16;

/// The levels above `heads`.
fn levels_above(heads: &[u64]) -> Vec<Box<[u64]>> {
    let mut levels: Vec<Box<[u64]>> = Vec::new();
    loop {
        let below = levels.last().map_or(heads, |level| level);
        if below.len() <= GROUP {
            return levels;
        }
        let largest = |group: &[u64]| group[group.len() - 1];
        let level = below.chunks(GROUP).map(largest).collect();
        levels.push(level);
    }
}

/// How many heads of group `group` are smaller than `head`.
#[inline]
fn smaller_in(level: &[u64], group: usize, head: u64) -> usize {
    let start = group * GROUP;
    let heads = &level[start.min(level.len())..];
    match heads.first_chunk::<GROUP>() {
        Some(heads) => heads.iter().map(|&other| usize::from(other < head)).sum(),
        None => heads.iter().map(|&other| usize::from(other < head)).sum(),
    }
}

/// The first eight bytes, as a number that orders like them; shorter keys are padded with zeros.
#[inline]
fn head_of(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(head) => u64::from_be_bytes(*head),
        None => {
            let mut head = [0; 8];
            head[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(head)
        }
    }
}

impl IndexBlock {
    /// Reads a payload and checks every entry: order, and blocks within `file_bytes`.
    pub(super) fn parse(bytes: Vec<u8>, file_bytes: u64) -> Result<Self, Damaged> {
        let (body, tail) = bytes.split_last_chunk::<8>().ok_or(Damaged)?;
        let mut tail = Reader::new(tail);
        let (count, level) = (tail.u32().ok_or(Damaged)?, tail.u32().ok_or(Damaged)?);
        let offsets_bytes = (count as usize).checked_mul(4).ok_or(Damaged)?;
        let offsets_at = body.len().checked_sub(offsets_bytes).ok_or(Damaged)?;
        let mut reader = Reader::new(&body[..offsets_at]);
        let prefix_bytes = reader.bytes().ok_or(Damaged)?.len();
        let prefix_at = reader.position() - prefix_bytes;
        if level > 1 {
            return Err(Damaged);
        }
        let heads = vec![0; count as usize].into_boxed_slice();
        let places = vec![Place::default(); count as usize].into_boxed_slice();
        let mut at = reader.position();
        let slots = Slots::new(count as usize * (1 + level as usize));
        let (guides, top) = (Vec::new(), level == 1);
        let mut block =
            Self { heads, guides, places, slots, prefix_at, prefix_bytes, offsets_at, top, bytes };
        for index in 0..block.len() {
            if block.offset(index) != at {
                return Err(Damaged);
            }
            let (entry, end) = block.decode(at).ok_or(Damaged)?;
            let within = |handle: Handle| handle.end().is_some_and(|end| end <= file_bytes);
            if !within(entry.handle) || !within(entry.filter) {
                return Err(Damaged);
            }
            let head = head_of(entry.suffix);
            if index > 0 && !block.follows(index - 1, &entry) {
                return Err(Damaged);
            }
            let (handle, continues) = (entry.handle, entry.continues.is_some());
            block.heads[index] = head;
            block.places[index] = Place { handle, continues };
            at = end;
        }
        if at != offsets_at {
            return Err(Damaged);
        }
        block.guides = levels_above(&block.heads);
        Ok(block)
    }

    fn follows(&self, before: usize, entry: &Entry<'_>) -> bool {
        let before = self.entry(before);
        match before.suffix.cmp(entry.suffix) {
            Ordering::Less => true,
            Ordering::Equal => {
                before.continues.is_some_and(|trailer| entry.continues.unwrap_or(0) < trailer)
            }
            Ordering::Greater => false,
        }
    }

    /// How many entries there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether the entries name index partitions.
    pub(super) fn is_top(&self) -> bool {
        self.top
    }

    /// Bytes of memory held.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.heads.len() * (8 + size_of::<Place>())
            + self.guides.iter().map(|level| level.len() * 8).sum::<usize>()
            + self.slots.memory_bytes()
    }

    /// What all separators begin with.
    pub(super) fn prefix(&self) -> &[u8] {
        &self.bytes[self.prefix_at..self.prefix_at + self.prefix_bytes]
    }

    #[inline]
    fn offset(&self, index: usize) -> usize {
        let at = self.offsets_at + index * 4;
        let word = &self.bytes[at..at + 4];
        u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize
    }

    #[inline]
    fn decode(&self, at: usize) -> Option<(Entry<'_>, usize)> {
        let mut reader = Reader::new(self.bytes.get(at..self.offsets_at)?);
        let head = reader.varint()?;
        let suffix = reader.take(usize::try_from(head >> 1).ok()?)?;
        let continues = if head & 1 == 1 { Some(reader.u64()?) } else { None };
        let handle = Handle { offset: reader.varint()?, size: reader.varint32()? };
        let filter = match self.top {
            true => Handle { offset: reader.varint()?, size: reader.varint32()? },
            false => Handle::default(),
        };
        Some((Entry { suffix, continues, handle, filter }, at + reader.position()))
    }

    /// Where the block of entry `index` lies, which must exist.
    #[inline]
    pub(super) fn place(&self, index: usize) -> Place {
        self.places[index]
    }

    /// The slot of the block of entry `index`.
    #[inline]
    pub(super) fn spot(&self, index: usize) -> Spot<'_> {
        Spot::new(&self.slots, index)
    }

    /// The slot of the filter partition of entry `index` of a top index.
    #[inline]
    pub(super) fn filter_spot(&self, index: usize) -> Spot<'_> {
        Spot::new(&self.slots, self.len() + index)
    }

    /// Entry `index`, which must exist.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Entry<'_> {
        self.decode(self.offset(index)).expect("entries were checked when the block was loaded").0
    }

    /// The first entry whose head is not smaller than `head`.
    #[inline]
    fn first_from(&self, head: u64) -> usize {
        let mut group = 0;
        for level in self.guides.iter().rev() {
            group = group * GROUP + smaller_in(level, group, head);
        }
        (group * GROUP + smaller_in(&self.heads, group, head)).min(self.len())
    }

    /// The first entry whose block can hold the internal key `(user_key, trailer)` or a later
    /// one; `len()` if there is none.
    #[inline]
    pub(super) fn search(&self, user_key: &[u8], trailer: u64) -> usize {
        let prefix = self.prefix();
        let Some(wanted) = user_key.strip_prefix(prefix) else {
            return if user_key < prefix { 0 } else { self.len() };
        };
        let head = head_of(wanted);
        let mut at = self.first_from(head);
        let mut end = at;
        if self.heads.get(at) == Some(&head) {
            end = match head.checked_add(1) {
                Some(next) => self.first_from(next),
                None => self.len(),
            };
        }
        while at < end {
            let middle = at + (end - at) / 2;
            let entry = self.entry(middle);
            let before = match entry.suffix.cmp(wanted) {
                Ordering::Less => true,
                Ordering::Equal => entry.continues.is_some_and(|last| last > trailer),
                Ordering::Greater => false,
            };
            if before {
                at = middle + 1;
            } else {
                end = middle;
            }
        }
        at
    }
}

/// Replaces `out` by a short key `s` with `last <= s < next` (`last < next`).
pub(super) fn separator(last: &[u8], next: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let common = common_prefix(last, next);
    if common == last.len() || next.len() <= common {
        out.extend_from_slice(last);
        return;
    }
    if next.len() > common + 1 {
        out.extend_from_slice(&next[..=common]);
        return;
    }
    if last[common] + 1 < next[common] {
        out.extend_from_slice(&last[..=common]);
        out[common] += 1;
        return;
    }
    let bump = last[common + 1..].iter().position(|&byte| byte < 0xff);
    match bump {
        Some(at) => {
            let at = common + 1 + at;
            out.extend_from_slice(&last[..=at]);
            out[at] += 1;
        }
        None => out.extend_from_slice(last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn separators_separate(mut a in prop::collection::vec(0u8..4, 0..6), mut b in prop::collection::vec(0u8..4, 0..6)) {
            for key in [&mut a, &mut b] {
                for byte in key.iter_mut() {
                    *byte = [0, 1, 0xfe, 0xff][usize::from(*byte)];
                }
            }
            prop_assume!(a != b);
            if a > b {
                std::mem::swap(&mut a, &mut b);
            }
            let mut out = Vec::new();
            separator(&a, &b, &mut out);
            prop_assert!(a <= out && out < b, "{a:?} {out:?} {b:?}");
            prop_assert!(out.len() <= a.len().max(1).max(b.len()));
        }

        #[test]
        fn search_finds_the_first_block_that_can_hold_a_key(
            keys in prop::collection::btree_set(prop::collection::vec(0u8..3, 0..11), 1..40),
            wanted in prop::collection::vec(0u8..3, 0..12),
        ) {
            let keys: Vec<_> = keys.into_iter().map(|mut key| { key.insert(0, 7); key }).collect();
            let mut builder = IndexBuilder::default();
            for (index, key) in keys.iter().enumerate() {
                let handle = Handle { offset: index as u64, size: 1 };
                builder.add(key, None, handle, Handle::default());
            }
            let mut bytes = Vec::new();
            builder.encode(0, builder.len(), false, &mut bytes);
            let block = IndexBlock::parse(bytes, 1 << 20).unwrap();
            for mut wanted in [wanted.clone(), { let mut w = wanted; w.insert(0, 7); w }] {
                let expected = keys.partition_point(|key| *key < wanted);
                prop_assert_eq!(block.search(&wanted, 5), expected);
                wanted.push(0);
            }
        }
    }

    #[test]
    fn straddled_keys_are_found_by_trailer() {
        let mut builder = IndexBuilder::default();
        let handle = |offset| Handle { offset, size: 1 };
        builder.add(b"k", Some(900), handle(0), Handle::default());
        builder.add(b"k", Some(500), handle(1), Handle::default());
        builder.add(b"k", None, handle(2), Handle::default());
        builder.add(b"l", None, handle(3), Handle::default());
        let mut bytes = Vec::new();
        builder.encode(0, 4, false, &mut bytes);
        let block = IndexBlock::parse(bytes, 1 << 20).unwrap();
        for (trailer, expected) in [(1000, 0), (900, 0), (899, 1), (500, 1), (499, 2), (0, 2)] {
            assert_eq!(block.search(b"k", trailer), expected, "{trailer}");
        }
        assert_eq!(block.search(b"m", 0), 4);
    }
}
