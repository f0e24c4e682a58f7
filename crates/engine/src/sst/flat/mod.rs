//! The Flat Index Cache: the references of up to 64 KiB of a table in two contiguous arrays
//! (Terark-DS §4.4.2).
//!
//! A *piece* covers the data blocks of one index block that begin in the same aligned 64 KiB of the
//! file. One region holds its keys: heads of eight bytes, then the rest of each key. Another one
//! holds its entries of 32 bytes. A piece is one block of
//! [`BlockKind::Flat`](crate::cache::BlockKind) in the block cache. Its cache key is the offset of
//! its first data block with [`KEY_BIT`] set. Invariants:
//! 1. A piece holds exactly the records of the kind `Indirect` of the data blocks that it covers,
//!    in internal-key order. It holds no record of another kind.
//! 2. An entry is marked *below another* if the record before it in the blocks of the piece has the
//!    same user key and another kind. A search begins in the block of the newest record that its
//!    snapshot sees. So the newest entry that the snapshot sees in the piece of that block is the
//!    newest record, if it is not marked.
//! 3. A piece is built only from blocks that were checked, and never changes.
//!
//! Invariant 1 is enough for a look-up of garbage collection. It asks whether the tables hold the
//! record (key, sequence number, `Indirect`), and no two tables of a version hold the same key and
//! sequence number. A record of another kind ends the search of a key early, because everything
//! below is older still. Without that record the search goes on and finds only older records. A
//! point read needs invariant 2 in addition.
//!
//! Tables with a global sequence number have no pieces: they hold no references.
//!
//! Thread-safety: pieces are immutable.
//! Failure: a damaged block, a record of an unknown kind and a malformed reference are errors that
//! name file and offset. No piece is built then.
//! Cost: a piece takes 45 bytes and the rest of the key for each reference, and 16 more if it
//! expires. A search is a galloping search over the heads.

mod lookup;

use std::cmp::Ordering;

use archipelago_base::{FileNo, SeqNo};

pub(crate) use lookup::lookup_references;
pub(super) use lookup::{forget_piece, lookup_newest, may_have_pieces};

use super::data_block::common_prefix;
use crate::value_ref::Reference;

/// Bit in the cache key of a piece, so that it differs from the key of its first data block.
const KEY_BIT: u64 = 1 << 63;
/// Data blocks that begin in the same aligned range of this many bytes share a piece.
const PIECE_BYTES: u64 = 64 << 10;

/// Flag of an entry: the reference has an offset.
const HAS_OFFSET: u8 = 1;
/// Flag of an entry: the record expires; the time is in `expiries`.
const HAS_EXPIRY: u8 = 2;
/// Flag of an entry: the record is *below another* (invariant 2).
const BELOW_ANOTHER: u8 = 4;

/// The entry of one record: its sequence number and its reference without the expiry.
#[derive(Clone, Copy, Debug)]
struct FlatEntry {
    /// Sequence number in the upper 56 bits, flags in the lowest 8.
    seq_and_flags: u64,
    file_no: u64,
    /// Offset of the value record; 0 without [`HAS_OFFSET`].
    offset: u64,
    stored_bytes: u32,
    raw_bytes: u32,
}

const _: () = assert!(size_of::<FlatEntry>() == 32, "entries have 32 bytes");

impl FlatEntry {
    fn seq(&self) -> SeqNo {
        SeqNo(self.seq_and_flags >> 8)
    }

    fn has(&self, flag: u8) -> bool {
        self.seq_and_flags as u8 & flag != 0
    }
}

/// A key, cut into the parts that a piece compares one after another.
#[derive(Clone, Copy)]
struct CutKey<'a> {
    /// The first eight bytes, padded with zeros, as a number that orders like them.
    head: u64,
    /// Number of the key's bytes in the head. A key of fewer than eight bytes is smaller than all
    /// longer keys that have its head.
    head_len: u8,
    /// The bytes after the head.
    rest: &'a [u8],
}

impl<'a> CutKey<'a> {
    fn of(key: &'a [u8]) -> Self {
        let (start, rest) = key.split_at(key.len().min(8));
        let mut head = [0; 8];
        head[..start.len()].copy_from_slice(start);
        Self { head: u64::from_be_bytes(head), head_len: start.len() as u8, rest }
    }
}

/// A piece in memory.
#[derive(Debug)]
pub(super) struct FlatBlock {
    /// Prefix that all keys share. The other parts of the keys leave it out.
    prefix: Box<[u8]>,
    heads: Box<[u64]>,
    head_lens: Box<[u8]>,
    /// End in `rests` of the rest of each key.
    rest_ends: Box<[u32]>,
    rests: Box<[u8]>,
    entries: Box<[FlatEntry]>,
    /// Entry and expiry (Unix milliseconds) of each record that expires, ascending by entry.
    expiries: Box<[(u32, u64)]>,
}

impl FlatBlock {
    /// Bytes of memory that the piece holds.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.prefix.len()
            + self.heads.len() * (8 + 1 + 4 + size_of::<FlatEntry>())
            + self.rests.len()
            + size_of_val::<[(u32, u64)]>(&self.expiries)
    }

    fn rest(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.rest_ends[before]);
        &self.rests[start as usize..self.rest_ends[at] as usize]
    }

    fn compare(&self, at: usize, wanted: &CutKey<'_>) -> Ordering {
        let heads = self.heads[at].cmp(&wanted.head);
        heads
            .then_with(|| self.head_lens[at].cmp(&wanted.head_len))
            .then_with(|| self.rest(at).cmp(wanted.rest))
    }

    /// The first entry at or after `from` whose key is not smaller than `wanted`. All entries
    /// before `from` must be smaller.
    fn first_from(&self, from: usize, wanted: &CutKey<'_>) -> usize {
        let is_smaller = |at: usize| self.compare(at, wanted).is_lt();
        let (mut low, mut step) = (from, 1);
        let mut high = from;
        while high < self.heads.len() && is_smaller(high) {
            low = high + 1;
            high += step;
            step *= 2;
        }
        high = high.min(self.heads.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if is_smaller(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The newest entry of `key` at or below `seq`. The search begins at entry `from`; all smaller
    /// keys must lie before it. It moves `from` to the first entry that is not smaller than the
    /// key. So a caller that asks for ascending keys passes the entries once.
    fn newest(&self, key: &[u8], seq: SeqNo, from: &mut usize) -> Option<usize> {
        let wanted = CutKey::of(key.strip_prefix(&*self.prefix)?);
        *from = self.first_from(*from, &wanted);
        let versions =
            (*from..self.heads.len()).take_while(|&at| self.compare(at, &wanted).is_eq());
        versions.into_iter().find(|&at| self.entries[at].seq() <= seq)
    }

    /// The reference of entry `at`.
    fn reference(&self, at: usize) -> Reference {
        let entry = &self.entries[at];
        let expiry = self.expiries.binary_search_by_key(&(at as u32), |&(entry, _)| entry);
        Reference {
            file_no: FileNo(entry.file_no),
            offset: entry.has(HAS_OFFSET).then_some(entry.offset),
            stored_bytes: entry.stored_bytes,
            raw_bytes: entry.raw_bytes,
            expiry_unix_ms: expiry.ok().map(|found| self.expiries[found].1),
        }
    }
}

/// Collects the records of consecutive data blocks and makes their piece.
#[derive(Default)]
struct FlatBuilder {
    keys: Vec<u8>,
    key_ends: Vec<usize>,
    entries: Vec<FlatEntry>,
    expiries: Vec<(u32, u64)>,
    /// User key of the previous record, if its kind is not `Indirect`.
    other_before: Option<Vec<u8>>,
}

impl FlatBuilder {
    /// Adds the next record; `reference` is `None` if its kind is not `Indirect`.
    fn add(&mut self, user_key: &[u8], seq: SeqNo, reference: Option<&Reference>) {
        let Some(reference) = reference else {
            let key = self.other_before.get_or_insert_default();
            key.clear();
            key.extend_from_slice(user_key);
            return;
        };
        let other_before = self.other_before.take();
        let is_below_another = other_before.is_some_and(|key| key == user_key);
        let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
        let flags = flag(HAS_OFFSET, reference.offset.is_some())
            | flag(HAS_EXPIRY, reference.expiry_unix_ms.is_some())
            | flag(BELOW_ANOTHER, is_below_another);
        if let Some(expiry) = reference.expiry_unix_ms {
            self.expiries.push((self.entries.len() as u32, expiry));
        }
        self.keys.extend_from_slice(user_key);
        self.key_ends.push(self.keys.len());
        self.entries.push(FlatEntry {
            seq_and_flags: seq.0 << 8 | u64::from(flags),
            file_no: reference.file_no.0,
            offset: reference.offset.unwrap_or(0),
            stored_bytes: reference.stored_bytes,
            raw_bytes: reference.raw_bytes,
        });
    }

    fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.key_ends[before]);
        &self.keys[start..self.key_ends[at]]
    }

    /// Makes the piece; `None` if its keys have 4 GiB or more.
    fn finish(self) -> Option<FlatBlock> {
        u32::try_from(self.keys.len()).ok()?;
        let count = self.entries.len();
        let prefix_bytes = match count.checked_sub(1) {
            Some(last) => common_prefix(self.key(0), self.key(last)),
            None => 0,
        };
        let (mut heads, mut head_lens) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let (mut rests, mut rest_ends) = (Vec::new(), Vec::with_capacity(count));
        for at in 0..count {
            let cut = CutKey::of(&self.key(at)[prefix_bytes..]);
            heads.push(cut.head);
            head_lens.push(cut.head_len);
            rests.extend_from_slice(cut.rest);
            rest_ends.push(rests.len() as u32);
        }
        Some(FlatBlock {
            prefix: self.keys[..prefix_bytes].into(),
            heads: heads.into(),
            head_lens: head_lens.into(),
            rest_ends: rest_ends.into(),
            rests: rests.into(),
            entries: self.entries.into(),
            expiries: self.expiries.into(),
        })
    }
}
