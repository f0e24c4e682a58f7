//! Index blocks: a separator key and the position of each block below.
//!
//! Payload: `prefix (length-prefixed) ++ entries ++ entry offsets (u32 each) ++ count (u32) ++
//! level (u32)`. An entry is `key bytes << 1 | continues` (varint), the separator without the
//! common prefix, the trailer (u64) if `continues`, then offset and size of the block (varints),
//! and in a top index (`level` 1) offset and size of the filter partition. The entry of a block of
//! one record with a large value also holds the record's key and head ([`RecordHead`]), so that
//! readers of keys need not read the block. Its trailer is stored with [`HAS_RECORD`] set, and with
//! [`RECORD_CONTINUES`] if the next block begins with the same key. Invariants:
//! 1. Separators are shortened user keys and ascend. A separator is not before the last key of its
//!    block, and before the first key of the next.
//! 2. If versions of one key straddle two blocks, `continues` is set, and separator and trailer are
//!    the last record's.
//! 3. The separator of an entry with a record head is the record's key.
//!
//! In memory, one array holds the *heads*: the first eight bytes of each separator (after the
//! prefix). Another array holds every 16th of them, and so on. A search reads one group of 16 (two
//! cache lines, read together) per level, and not the entries. The handles have an array of their
//! own, and so do the slots of the blocks below: 41 bytes per block, counted in
//! [`IndexBlock::memory_bytes`]. Everything is checked when a block is loaded.

use std::cmp::Ordering;
use std::sync::Arc;

use archipelago_base::codec::{Reader, put_bytes, put_u32, put_u64, put_varint};

use super::block::{Slots, Spot};
use super::data_block::{Damaged, common_prefix};
use super::format::Handle;
use crate::key::Kind;

/// Bit in the stored trailer of an entry that holds the head of its block's only record. No kind of
/// record has this bit.
const HAS_RECORD: u64 = 0x80;
/// Second bit of such a trailer, set if the next block begins with the same user key.
const RECORD_CONTINUES: u64 = 0x40;

/// Data of a block's only record in an index entry, besides its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// Sequence number and kind of the record.
    pub(super) trailer: u64,
    /// The first eight bytes of the value of an expiring record.
    pub(super) expiry: Option<u64>,
}

impl RecordHead {
    /// The head of a record; `None` if its value is too short for its kind.
    pub(super) fn of(trailer: u64, value: &[u8]) -> Option<Self> {
        let expiry = match Kind::from_byte(trailer as u8) {
            Some(Kind::PutExpiring) => Some(u64::from_le_bytes(*value.first_chunk()?)),
            _ => None,
        };
        Some(Self { trailer, expiry })
    }
}

/// One entry of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry<'a> {
    /// The separator without the block's common prefix.
    pub(super) suffix: &'a [u8],
    /// The last record's trailer, if the next block begins with the same user key.
    pub(super) continues: Option<u64>,
    /// Head of the block's only record, if the entry has it.
    pub(super) record: Option<RecordHead>,
    /// Position of the block below.
    pub(super) handle: Handle,
    /// Position of the block's filter partition, in a top index.
    pub(super) filter: Handle,
}

/// Separators and handles of a file, before its index is cut into blocks.
#[derive(Debug, Default)]
pub(super) struct IndexBuilder {
    keys: Vec<u8>,
    entries: Vec<Pending>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    key_end: usize,
    continues: Option<u64>,
    record: Option<RecordHead>,
    handle: Handle,
    filter: Handle,
}

impl IndexBuilder {
    /// Appends the entry of a block. `key` is the block's separator, with the trailer if it
    /// continues.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        continues: Option<u64>,
        handle: Handle,
        filter: Handle,
    ) {
        self.keys.extend_from_slice(key);
        let (key_end, record) = (self.keys.len(), None);
        self.entries.push(Pending { key_end, continues, record, handle, filter });
    }

    /// Appends the entry of a block of one record with the user key `key`.
    pub(super) fn add_record(
        &mut self,
        key: &[u8],
        continues: bool,
        record: RecordHead,
        handle: Handle,
    ) {
        assert!(record.trailer & (HAS_RECORD | RECORD_CONTINUES) == 0, "a kind with flags");
        self.add(key, continues.then_some(record.trailer), handle, Handle::default());
        if let Some(entry) = self.entries.last_mut() {
            entry.record = Some(record);
        }
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

    /// Approximate length in bytes of all entries, stored.
    pub(super) fn estimated_bytes(&self) -> usize {
        self.keys.len() + self.entries.len() * 12
    }

    /// Approximate length in bytes of the entries `start..end`, stored.
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
            let has_trailer = entry.continues.is_some() || entry.record.is_some();
            put_varint(out, (suffix.len() as u64) << 1 | u64::from(has_trailer));
            out.extend_from_slice(suffix);
            match (entry.record, entry.continues) {
                (Some(record), continues) => {
                    let flag = if continues.is_some() { RECORD_CONTINUES } else { 0 };
                    put_u64(out, record.trailer | HAS_RECORD | flag);
                    if let Some(expiry) = record.expiry {
                        put_u64(out, expiry);
                    }
                }
                (None, Some(trailer)) => put_u64(out, trailer),
                (None, None) => {}
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

/// Position of the block of an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockPlace {
    /// Offset and length of the block.
    pub(super) handle: Handle,
    /// Whether the next block begins with the same user key.
    pub(super) continues: bool,
    /// Whether the entry holds the head of the block's only record.
    pub(super) has_record: bool,
}

/// An index block in memory.
#[derive(Debug)]
pub(super) struct IndexBlock {
    bytes: Vec<u8>,
    heads: Box<[u64]>,
    /// Largest heads of groups, from the level above `heads` up to a level of a single group.
    guides: Vec<Box<[u64]>>,
    places: Box<[BlockPlace]>,
    /// Slots of the blocks below; in a top index the slots of the filter partitions follow.
    slots: Arc<Slots>,
    prefix_at: usize,
    prefix_bytes: usize,
    offsets_at: usize,
    top: bool,
}

/// Number of heads that a search compares in one step.
const GROUP: usize = 16;

/// Makes the levels above `heads`.
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

/// Number of heads of group `group` that are smaller than `head`.
#[inline]
fn smaller_in(level: &[u64], group: usize, head: u64) -> usize {
    let start = group * GROUP;
    let heads = &level[start.min(level.len())..];
    match heads.first_chunk::<GROUP>() {
        Some(heads) => heads.iter().map(|&other| usize::from(other < head)).sum(),
        None => heads.iter().map(|&other| usize::from(other < head)).sum(),
    }
}

/// The first eight bytes as a number that orders like them; shorter keys are padded with zeros.
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
    /// Decodes a payload and checks every entry: order, and blocks within `file_bytes`.
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
        let places = vec![BlockPlace::default(); count as usize].into_boxed_slice();
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
            let has_record = entry.record.is_some();
            if has_record && top {
                return Err(Damaged);
            }
            block.heads[index] = head;
            block.places[index] = BlockPlace { handle, continues, has_record };
            at = end;
        }
        if at != offsets_at {
            return Err(Damaged);
        }
        block.guides = levels_above(&block.heads);
        Ok(block)
    }

    fn follows(&self, before: usize, entry: &IndexEntry<'_>) -> bool {
        let before = self.entry(before);
        match before.suffix.cmp(entry.suffix) {
            Ordering::Less => true,
            Ordering::Equal => {
                before.continues.is_some_and(|trailer| entry.continues.unwrap_or(0) < trailer)
            }
            Ordering::Greater => false,
        }
    }

    /// Number of entries in the block.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether the entries name index partitions.
    pub(super) fn is_top(&self) -> bool {
        self.top
    }

    /// Bytes of memory that the block holds.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.heads.len() * (8 + size_of::<BlockPlace>())
            + self.guides.iter().map(|level| level.len() * 8).sum::<usize>()
            + self.slots.memory_bytes()
    }

    /// Prefix that all separators share.
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
    fn decode(&self, at: usize) -> Option<(IndexEntry<'_>, usize)> {
        let mut reader = Reader::new(self.bytes.get(at..self.offsets_at)?);
        let head = reader.varint()?;
        let suffix = reader.take(usize::try_from(head >> 1).ok()?)?;
        let (mut continues, mut record) = (None, None);
        if head & 1 == 1 {
            let stored = reader.u64()?;
            let trailer = match stored & HAS_RECORD {
                0 => stored,
                _ => stored & !(HAS_RECORD | RECORD_CONTINUES),
            };
            if stored & HAS_RECORD == 0 || stored & RECORD_CONTINUES != 0 {
                continues = Some(trailer);
            }
            if stored & HAS_RECORD != 0 {
                let expires = Kind::from_byte(trailer as u8)? == Kind::PutExpiring;
                let expiry = if expires { Some(reader.u64()?) } else { None };
                record = Some(RecordHead { trailer, expiry });
            }
        }
        let handle = Handle { offset: reader.varint()?, size: reader.varint32()? };
        let filter = match self.top {
            true => Handle { offset: reader.varint()?, size: reader.varint32()? },
            false => Handle::default(),
        };
        Some((IndexEntry { suffix, continues, record, handle, filter }, at + reader.position()))
    }

    /// Position of the block of entry `index`, which must exist.
    #[inline]
    pub(super) fn place(&self, index: usize) -> BlockPlace {
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
    pub(super) fn entry(&self, index: usize) -> IndexEntry<'_> {
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

    /// The first entry whose block can hold the internal key `(user_key, trailer)` or a later one;
    /// `len()` if there is none.
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
    fn entries_hold_the_heads_of_large_records() {
        let mut builder = IndexBuilder::default();
        let handle = |offset| Handle { offset, size: 1 };
        let put = RecordHead { trailer: 900 << 8 | 1, expiry: None };
        let expiring = RecordHead { trailer: 500 << 8 | 3, expiry: Some(77) };
        builder.add_record(b"k", true, put, handle(0));
        builder.add_record(b"k", false, expiring, handle(1));
        builder.add(b"l", None, handle(2), Handle::default());
        let mut bytes = Vec::new();
        builder.encode(0, 3, false, &mut bytes);
        let golden = [
            &[0, 3, b'k'][..],
            &[0xc1, 0x84, 3, 0, 0, 0, 0, 0, 0, 1],
            &[3, b'k', 0x83, 0xf4, 1, 0, 0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 1, 1],
            &[2, b'l', 2, 1],
        ];
        assert_eq!(bytes[..golden.concat().len()], golden.concat());
        let block = IndexBlock::parse(bytes, 1 << 20).unwrap();
        let heads = [0, 1, 2].map(|at| (block.entry(at).record, block.place(at).has_record));
        assert_eq!(heads, [(Some(put), true), (Some(expiring), true), (None, false)]);
        let continues = [0, 1, 2].map(|at| block.entry(at).continues);
        assert_eq!(continues, [Some(put.trailer), None, None]);
        for (trailer, expected) in [(u64::MAX, 0), (put.trailer, 0), (put.trailer - 1, 1), (0, 1)] {
            assert_eq!(block.search(b"k", trailer), expected, "{trailer}");
        }
    }

    #[test]
    fn straddled_keys_are_found_by_trailer() {
        let mut builder = IndexBuilder::default();
        let handle = |offset| Handle { offset, size: 1 };
        builder.add(b"k", Some(900 << 8), handle(0), Handle::default());
        builder.add(b"k", Some(500 << 8), handle(1), Handle::default());
        builder.add(b"k", None, handle(2), Handle::default());
        builder.add(b"l", None, handle(3), Handle::default());
        let mut bytes = Vec::new();
        builder.encode(0, 4, false, &mut bytes);
        let block = IndexBlock::parse(bytes, 1 << 20).unwrap();
        for (trailer, expected) in [(1000, 0), (900, 0), (899, 1), (500, 1), (499, 2), (0, 2)] {
            assert_eq!(block.search(b"k", trailer << 8), expected, "{trailer}");
        }
        assert_eq!(block.search(b"m", 0), 4);
    }
}
