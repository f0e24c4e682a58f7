//! Data blocks: sorted records with shared prefixes, restart points and a hash index.
//!
//! Payload: records, then `restarts (u32 each) ++ buckets (u8 each) ++ restart count (u32) ++
//! bucket count (u32)`. A record is `shared ++ unshared ++ value length` (varints), the last
//! `unshared` bytes of the encoded internal key, the value. Invariants:
//! 1. `shared` is the number of leading bytes that the *user key* and the previous one have in
//!    common. A record's own bytes always hold the whole trailer, so that a search compares without
//!    assembling keys.
//! 2. At a restart `shared` is 0 and the offset is listed. The first record is a restart.
//! 3. The bucket `hash · buckets >> 32` (of the low half of the key's hash) holds the restart after
//!    which the key's newest version lies. It is [`COLLISION`] if two keys disagree, and [`EMPTY`]
//!    if no key of the block belongs to it.
//!
//! A payload is foreign bytes: a malformed record ends a search with `Err(Damaged)`.

use std::cmp::Ordering;

use archipelago_base::codec::{get_varint, put_u32, put_varint};

use crate::key::{self, TRAILER_BYTES};

/// Bucket value for several keys after different restarts.
const COLLISION: u8 = 0xfe;
/// Bucket value for no key.
const EMPTY: u8 = 0xff;
/// Largest number of restarts that a bucket can name.
const HASHED_RESTARTS_MAX: usize = 0xfe;
/// Length in bytes of the two counts at the end.
const TAIL_BYTES: usize = 8;

/// Error of a payload that no builder makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// Number of leading bytes that two strings have in common.
#[inline]
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut at = 0;
    for (left, right) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let left = u64::from_le_bytes(left.try_into().unwrap_or_default());
        let right = u64::from_le_bytes(right.try_into().unwrap_or_default());
        if left != right {
            return at + ((left ^ right).trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < len && a[at] == b[at] {
        at += 1;
    }
    at
}

/// Builds data blocks one after another in the same memory.
#[derive(Debug)]
pub(super) struct DataBlockBuilder {
    out: Vec<u8>,
    restarts: Vec<u32>,
    /// Low half of the hash and restart of each user key's newest version.
    hashed: Vec<(u32, u32)>,
    buckets: Vec<u8>,
    interval: usize,
    since_restart: usize,
    entries: usize,
}

impl DataBlockBuilder {
    pub(super) fn new(restart_interval: usize, block_bytes: usize) -> Self {
        Self {
            out: Vec::with_capacity(block_bytes + block_bytes / 4),
            restarts: Vec::new(),
            hashed: Vec::new(),
            buckets: Vec::new(),
            interval: restart_interval.max(1),
            since_restart: 0,
            entries: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Length of the payload in bytes if it ended here.
    pub(super) fn payload_bytes(&self) -> usize {
        self.out.len() + self.restarts.len() * 4 + self.hashed.len() * 4 / 3 + 1 + TAIL_BYTES
    }

    /// Adds a record after all others. `shared` is the number of leading bytes that its user key
    /// and the previous one have in common. `new_hash` is the key's hash if this is the key's first
    /// record *in this block*.
    #[inline]
    pub(super) fn add(
        &mut self,
        internal_key: &[u8],
        value: &[u8],
        shared: usize,
        new_hash: Option<u64>,
    ) {
        let mut shared = shared;
        if self.since_restart == self.interval || self.entries == 0 {
            self.restarts.push(self.out.len() as u32);
            self.since_restart = 0;
            shared = 0;
        }
        if let Some(hash) = new_hash {
            self.hashed.push((hash as u32, self.restarts.len() as u32 - 1));
        }
        let own = &internal_key[shared..];
        if shared < 0x80 && own.len() < 0x80 && value.len() < 0x80 {
            self.out.extend_from_slice(&[shared as u8, own.len() as u8, value.len() as u8]);
        } else {
            put_varint(&mut self.out, shared as u64);
            put_varint(&mut self.out, own.len() as u64);
            put_varint(&mut self.out, value.len() as u64);
        }
        self.out.extend_from_slice(own);
        self.out.extend_from_slice(value);
        self.since_restart += 1;
        self.entries += 1;
    }

    /// The whole key at the restart in the middle of the records so far.
    pub(super) fn middle_key(&self) -> Option<&[u8]> {
        let at = *self.restarts.get(self.restarts.len() / 2)? as usize;
        let record = Record::parse(&self.out, at, self.out.len()).ok()?;
        self.out.get(record.key_at..record.value_at)
    }

    /// Ends the block and returns its payload; [`DataBlockBuilder::reset`] begins the next one.
    pub(super) fn finish(&mut self) -> &[u8] {
        for &restart in &self.restarts {
            put_u32(&mut self.out, restart);
        }
        let buckets = self.fill_buckets();
        put_u32(&mut self.out, self.restarts.len() as u32);
        put_u32(&mut self.out, buckets as u32);
        &self.out
    }

    fn fill_buckets(&mut self) -> usize {
        if self.restarts.len() > HASHED_RESTARTS_MAX || self.hashed.is_empty() {
            return 0;
        }
        let count = self.hashed.len() * 4 / 3 + 1;
        self.buckets.clear();
        self.buckets.resize(count, EMPTY);
        for &(hash, restart) in &self.hashed {
            let bucket = &mut self.buckets[bucket_of(hash, count)];
            match *bucket {
                EMPTY => *bucket = restart as u8,
                other if u32::from(other) != restart => *bucket = COLLISION,
                _ => {}
            }
        }
        self.out.extend_from_slice(&self.buckets);
        count
    }

    /// Removes all records, to begin the next block.
    pub(super) fn reset(&mut self) {
        self.out.clear();
        self.restarts.clear();
        self.hashed.clear();
        self.since_restart = 0;
        self.entries = 0;
    }
}

#[inline]
fn bucket_of(hash: u32, count: usize) -> usize {
    ((u64::from(hash) * count as u64) >> 32) as usize
}

/// Offsets of one record in a payload.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    /// Number of bytes that the key shares with the previous one.
    pub(super) shared: usize,
    /// Offset of the key's own bytes (trailer included).
    pub(super) key_at: usize,
    /// Offset of the value, at the end of the key's bytes.
    pub(super) value_at: usize,
    /// Offset of the next record, at the end of the value.
    pub(super) end: usize,
}

impl Record {
    /// Decodes the record at `at` of `bytes`. The records of `bytes` end at `limit`.
    #[inline]
    pub(super) fn parse(bytes: &[u8], at: usize, limit: usize) -> Result<Self, Damaged> {
        let rest = bytes.get(at..limit).ok_or(Damaged)?;
        let (shared, own, value, head) = match rest {
            &[shared, own, value, ..] if (shared | own | value) < 0x80 => {
                (usize::from(shared), usize::from(own), usize::from(value), 3)
            }
            _ => parse_long(rest).ok_or(Damaged)?,
        };
        let key_at = at + head;
        let value_at = key_at.checked_add(own).ok_or(Damaged)?;
        let end = value_at.checked_add(value).ok_or(Damaged)?;
        if end > limit || own < TRAILER_BYTES {
            return Err(Damaged);
        }
        Ok(Self { shared, key_at, value_at, end })
    }

    /// The record's own bytes of the user key.
    #[inline]
    fn own_user_key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.key_at..self.value_at - TRAILER_BYTES]
    }

    /// The trailer of the record's key.
    #[inline]
    fn trailer(&self, bytes: &[u8]) -> u64 {
        key::trailer(&bytes[self.key_at..self.value_at])
    }
}

#[cold]
fn parse_long(rest: &[u8]) -> Option<(usize, usize, usize, usize)> {
    let (shared, a) = get_varint(rest)?;
    let (own, b) = get_varint(&rest[a..])?;
    let (value, c) = get_varint(&rest[a + b..])?;
    let fits = |value: u64| usize::try_from(value).ok();
    Some((fits(shared)?, fits(own)?, fits(value)?, a + b + c))
}

/// A data block in memory.
#[derive(Debug)]
pub(super) struct DataBlock {
    bytes: Vec<u8>,
    restarts_at: u32,
    restarts: u32,
    buckets: u32,
}

impl DataBlock {
    /// Decodes a payload. The frame is checked here, and each record when it is read.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, Damaged> {
        let (body, tail) = bytes.split_last_chunk::<TAIL_BYTES>().ok_or(Damaged)?;
        let word =
            |at: usize| u32::from_le_bytes([tail[at], tail[at + 1], tail[at + 2], tail[at + 3]]);
        let (restarts, buckets) = (word(0), word(4));
        let index = (restarts as usize).checked_mul(4).ok_or(Damaged)?;
        let index = index.checked_add(buckets as usize).ok_or(Damaged)?;
        let restarts_at = body.len().checked_sub(index).ok_or(Damaged)?;
        let restarts_at = u32::try_from(restarts_at).map_err(|_| Damaged)?;
        if restarts == 0 || (buckets > 0 && restarts as usize > HASHED_RESTARTS_MAX) {
            return Err(Damaged);
        }
        let block = Self { bytes, restarts_at, restarts, buckets };
        if block.restart(0) != 0 {
            return Err(Damaged);
        }
        Ok(block)
    }

    /// The payload of the block, without its frame.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the memory for reuse by another block.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Bytes of memory that the block holds.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Offset at which the records end.
    #[inline]
    pub(super) fn limit(&self) -> usize {
        self.restarts_at as usize
    }

    pub(super) fn restart_count(&self) -> usize {
        self.restarts as usize
    }

    /// Offset of restart `index`.
    #[inline]
    pub(super) fn restart(&self, index: usize) -> usize {
        let at = self.restarts_at as usize + index * 4;
        let word = &self.bytes[at..at + 4];
        u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize
    }

    /// The record at `at`.
    #[inline]
    pub(super) fn record(&self, at: usize) -> Result<Record, Damaged> {
        Record::parse(&self.bytes, at, self.limit())
    }

    /// The record at restart `index`, whose key is whole.
    #[inline]
    fn restart_record(&self, index: usize) -> Result<Record, Damaged> {
        let record = self.record(self.restart(index))?;
        if record.shared == 0 { Ok(record) } else { Err(Damaged) }
    }

    /// The last restart whose record lies before the internal key `(user_key, trailer)`, or 0.
    pub(super) fn restart_before(&self, user_key: &[u8], trailer: u64) -> Result<usize, Damaged> {
        let (mut low, mut high) = (0, self.restart_count());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let record = self.restart_record(middle)?;
            let order = record.own_user_key(&self.bytes).cmp(user_key);
            let before = match order {
                Ordering::Less => true,
                Ordering::Equal => record.trailer(&self.bytes) > trailer,
                Ordering::Greater => false,
            };
            if before {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The restart interval that holds the record at offset `at`.
    pub(super) fn restart_of(&self, at: usize) -> usize {
        let (mut low, mut high) = (0, self.restart_count());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.restart(middle) <= at {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Offset at which a search for a key begins; `None` if the hash index excludes the key.
    #[inline]
    fn search_start(
        &self,
        user_key: &[u8],
        trailer: u64,
        hash: u64,
    ) -> Result<Option<usize>, Damaged> {
        if self.buckets > 0 {
            let at = self.limit() + self.restarts as usize * 4;
            let bucket = self.bytes[at + bucket_of(hash as u32, self.buckets as usize)];
            match bucket {
                EMPTY => return Ok(None),
                COLLISION => {}
                restart if u32::from(restart) < self.restarts => {
                    return Ok(Some(self.restart(usize::from(restart))));
                }
                _ => return Err(Damaged),
            }
        }
        Ok(Some(self.restart(self.restart_before(user_key, trailer)?)))
    }

    /// Iterates over the versions of `user_key` at or after `trailer`, newest first.
    #[inline]
    pub(super) fn versions<'a>(
        &'a self,
        user_key: &'a [u8],
        trailer: u64,
        hash: u64,
    ) -> Result<Versions<'a>, Damaged> {
        let start = self.search_start(user_key, trailer, hash)?;
        let next = start.unwrap_or(usize::MAX);
        Ok(Versions { block: self, user_key, trailer, next, matched: 0 })
    }
}

/// Iterator over the versions of one user key, made by [`DataBlock::versions`].
#[derive(Debug)]
pub(super) struct Versions<'a> {
    block: &'a DataBlock,
    user_key: &'a [u8],
    trailer: u64,
    /// Offset of the next record; `usize::MAX` after the search has ended.
    next: usize,
    /// Number of bytes that the previous record has in common with the wanted key.
    matched: usize,
}

impl<'a> Versions<'a> {
    /// The next version: its trailer word and its value. `None` ends the search;
    /// [`Versions::ran_out`] then returns whether the block ended before the key did.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(u64, &'a [u8])>, Damaged> {
        let (bytes, limit) = (self.block.bytes.as_slice(), self.block.limit());
        while self.next < limit {
            let record = Record::parse(bytes, self.next, limit)?;
            match self.place(&record) {
                Ordering::Less => {}
                Ordering::Equal => {
                    let trailer = record.trailer(bytes);
                    if trailer <= self.trailer {
                        self.next = record.end;
                        return Ok(Some((trailer, &bytes[record.value_at..record.end])));
                    }
                }
                Ordering::Greater => {
                    self.next = usize::MAX;
                    return Ok(None);
                }
            }
            self.next = record.end;
        }
        Ok(None)
    }

    /// Whether the records ended before a larger key came.
    pub(super) fn ran_out(&self) -> bool {
        self.next != usize::MAX
    }

    /// Compares the record's user key with the wanted key. The previous record is smaller or equal
    /// and shares `matched` bytes with the wanted key (invariant 1).
    #[inline]
    fn place(&mut self, record: &Record) -> Ordering {
        if record.shared > self.matched {
            return Ordering::Less;
        }
        if record.shared < self.matched && record.shared > 0 {
            return Ordering::Greater;
        }
        let own = record.own_user_key(&self.block.bytes);
        let wanted = &self.user_key[record.shared..];
        let common = common_prefix(own, wanted);
        self.matched = record.shared + common;
        own[common..].first().cmp(&wanted[common..].first())
    }
}

/// A cursor over the records of a block. Every call takes the block as a parameter.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    key: Vec<u8>,
    record: Record,
    at: usize,
    /// Records of the restart interval that the cursor walks backwards: the offset of each, and the
    /// end of its key in `back_keys`.
    back: Vec<(usize, Record, usize)>,
    back_keys: Vec<u8>,
    valid: bool,
}

impl Cursor {
    #[inline]
    pub(super) fn valid(&self) -> bool {
        self.valid
    }

    /// The encoded internal key.
    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Replaces the key's trailer, for a file whose records read with another sequence number.
    pub(super) fn set_trailer(&mut self, trailer: u64) {
        let at = self.key.len().saturating_sub(TRAILER_BYTES);
        self.key[at..].copy_from_slice(&trailer.to_le_bytes());
    }

    #[inline]
    pub(super) fn value<'a>(&self, block: &'a DataBlock) -> &'a [u8] {
        &block.bytes[self.record.value_at..self.record.end]
    }

    pub(super) fn invalidate(&mut self) {
        self.valid = false;
        self.back.clear();
    }

    /// Moves to the record at `at`. The cursor must be at the previous record, or `at` must be a
    /// restart.
    #[inline]
    fn load(&mut self, block: &DataBlock, at: usize) -> Result<(), Damaged> {
        self.valid = false;
        if at >= block.limit() {
            return Ok(());
        }
        let record = block.record(at)?;
        let user_bytes = self.key.len().saturating_sub(TRAILER_BYTES);
        if record.shared > user_bytes {
            return Err(Damaged);
        }
        self.key.truncate(record.shared);
        self.key.extend_from_slice(&block.bytes[record.key_at..record.value_at]);
        self.record = record;
        self.at = at;
        self.valid = true;
        Ok(())
    }

    pub(super) fn seek_to_first(&mut self, block: &DataBlock) -> Result<(), Damaged> {
        self.back.clear();
        self.load(block, 0)
    }

    #[inline]
    pub(super) fn next(&mut self, block: &DataBlock) -> Result<(), Damaged> {
        if !self.back.is_empty() {
            self.back.clear();
        }
        self.load(block, self.record.end)
    }

    /// Moves to the first record at or after `target`.
    pub(super) fn seek(&mut self, block: &DataBlock, target: &[u8]) -> Result<(), Damaged> {
        self.back.clear();
        let (user_key, trailer) = (key::user_key(target), key::trailer(target));
        let restart = block.restart_before(user_key, trailer)?;
        self.load(block, block.restart(restart))?;
        while self.valid && key::compare(&self.key, target).is_lt() {
            self.load(block, self.record.end)?;
        }
        Ok(())
    }

    pub(super) fn seek_to_last(&mut self, block: &DataBlock) -> Result<(), Damaged> {
        self.walk_back(block, block.restart_count() - 1, block.limit())
    }

    /// Moves to the previous record; the cursor becomes invalid before the first one.
    pub(super) fn prev(&mut self, block: &DataBlock) -> Result<(), Damaged> {
        if self.back.is_empty() {
            let restart = block.restart_of(self.at);
            let (restart, end) = match (block.restart(restart) == self.at, restart) {
                (true, 0) => {
                    self.valid = false;
                    return Ok(());
                }
                (true, _) => (restart - 1, self.at),
                (false, _) => (restart, self.at),
            };
            return self.walk_back(block, restart, end);
        }
        self.back.pop();
        if self.back.is_empty() {
            return self.prev(block);
        }
        self.stand_on_back();
        Ok(())
    }

    /// Decodes the records from `restart` up to offset `end` and moves to the last of them.
    fn walk_back(&mut self, block: &DataBlock, restart: usize, end: usize) -> Result<(), Damaged> {
        self.back.clear();
        self.back_keys.clear();
        let mut at = block.restart(restart);
        while at < end {
            self.load(block, at)?;
            self.back_keys.extend_from_slice(&self.key);
            self.back.push((at, self.record, self.back_keys.len()));
            at = self.record.end;
        }
        self.valid = !self.back.is_empty();
        Ok(())
    }

    fn stand_on_back(&mut self) {
        let Some(&(at, record, key_end)) = self.back.last() else { return };
        let key_start = self.back.len().checked_sub(2).map_or(0, |before| self.back[before].2);
        self.key.clear();
        self.key.extend_from_slice(&self.back_keys[key_start..key_end]);
        self.record = record;
        self.at = at;
        self.valid = true;
    }
}
