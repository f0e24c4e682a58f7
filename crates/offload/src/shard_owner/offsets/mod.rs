//! The key-offset cache: places of records in images at memory nodes, so that a look-up is one READ
//! without a search (O³-LSM §4.5).
//!
//! An entry belongs to a shard and a key hash. It has the place of a record within the image of the
//! shard, and the record's sequence number and kind. The reader compares these two, the key and the
//! checksum with the bytes that it has read. The place of the image and its remote key are stored
//! with the shard ([`ReadableShard`](super::state::ReadableShard)). So an entry is short and cannot
//! outlive its shard.
//!
//! The owner makes entries for hot keys after the transfer of their shard, and for every put that a
//! node has found. The cache is part of the owner's state, because both change together.
//!
//! Invariants:
//! 1. An entry names the newest version of its key in its shard. After a transfer the owner walks
//!    over the whole image. A reply counts only if its reader sees every record of the shard.
//! 2. Entries exist only for shards that can be read. The loss or the release of a shard removes
//!    its entries.
//! 3. The entries take at most the limit of bytes. A full cache drops the entry that was used least
//!    recently.
//!
//! Thread-safety: none; the lock of the owner's state guards it.
//! Failure: two keys of a shard may have the same hash. Then one key has the entry. A reader of the
//! other key finds a wrong record and uses a request.
//! Cost: two hash-table accesses for a look-up, and no allocation for a hit.

mod frequency;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use archipelago_base::SeqNo;
use archipelago_base::checksum::hash64;
use archipelago_engine::key::Kind;
use archipelago_engine::remote::ShardId;

pub(super) use self::frequency::Frequencies;
use super::sabotage::OwnerSabotage;

/// Bytes that an entry takes, including its share of the hash tables.
const ENTRY_BYTES: u64 = 96;
/// Longest record, in bytes, that gets an entry. A longer record takes as long with a request.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Index that stands for no entry.
const NONE: u32 = u32::MAX;

/// The place of a record in the image of a shard, and the sequence number and kind that the record
/// must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CachedOffset {
    /// Offset within the image.
    pub(super) at: u64,
    /// Length of the whole record.
    pub(super) len: u64,
    pub(super) seq: SeqNo,
    pub(super) kind: Kind,
}

/// The hash of a key.
pub(super) fn key_hash(key: &[u8], sabotage: OwnerSabotage) -> u64 {
    let hash = hash64(key);
    if sabotage.short_hashes() { hash % 8 } else { hash }
}

/// An entry in the order of use.
#[derive(Clone, Copy, Debug)]
struct CacheEntry {
    shard: ShardId,
    hash: u64,
    offset: CachedOffset,
    newer: u32,
    older: u32,
}

/// A shard that can be read.
#[derive(Debug)]
struct CachedShard {
    last_seq: SeqNo,
    /// Index of the entry of each key hash.
    entries: HashMap<u64, u32>,
}

/// The key-offset cache of an owner.
#[derive(Debug)]
pub(super) struct KeyOffsets {
    entries_max: usize,
    shards: HashMap<ShardId, CachedShard>,
    entries: Vec<CacheEntry>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    frequencies: Frequencies,
    sabotage: OwnerSabotage,
}

impl KeyOffsets {
    /// A cache of at most `bytes_max` bytes; 0 turns it off. The counters of look-ups take up to a
    /// fortieth of that in addition.
    pub(super) fn new(bytes_max: u64, sabotage: OwnerSabotage) -> Self {
        let entries_max = usize::try_from(bytes_max / ENTRY_BYTES).unwrap_or(usize::MAX);
        let entries_max = entries_max.min(NONE as usize - 1);
        let is_on = entries_max > 0;
        Self {
            entries_max,
            shards: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            frequencies: if is_on { Frequencies::new(entries_max) } else { Frequencies::default() },
            sabotage,
        }
    }

    /// Permits entries for a shard that can be read from now on. `last_seq` is the largest sequence
    /// number of its memtable.
    pub(super) fn open(&mut self, shard: ShardId, last_seq: SeqNo) {
        self.forget(shard);
        if self.entries_max > 0 {
            self.shards.insert(shard, CachedShard { last_seq, entries: HashMap::new() });
        }
    }

    /// Removes all entries of a shard that is lost or released.
    pub(super) fn forget(&mut self, shard: ShardId) {
        let Some(known) = self.shards.remove(&shard) else { return };
        for index in known.entries.into_values() {
            self.unlink(index);
            self.free.push(index);
        }
    }

    /// Counts a look-up of a key.
    pub(super) fn count(&mut self, hash: u64) {
        self.frequencies.count(hash);
    }

    /// Whether any key may be hot.
    pub(super) fn may_be_hot(&self) -> bool {
        self.frequencies.may_be_hot()
    }

    /// A copy of the present counts, for a walk over a whole image.
    pub(super) fn frequencies(&self) -> Frequencies {
        self.frequencies.clone()
    }

    /// The entry of a key in a shard. It becomes the most recently used entry.
    pub(super) fn find(&mut self, shard: ShardId, hash: u64) -> Option<CachedOffset> {
        let index = *self.shards.get(&shard)?.entries.get(&hash)?;
        self.unlink(index);
        self.link_newest(index);
        Some(self.entries[index as usize].offset)
    }

    /// Adds the newest version of a key in a shard, from a walk over the whole image.
    pub(super) fn fill(&mut self, shard: ShardId, hash: u64, offset: CachedOffset) {
        if offset.len > RECORD_BYTES_MAX {
            return;
        }
        let Some(known) = self.shards.get(&shard) else { return };
        if let Some(index) = known.entries.get(&hash).copied() {
            self.entries[index as usize].offset = offset;
            self.unlink(index);
            return self.link_newest(index);
        }
        let index = self.free_entry();
        // Making room may have dropped the last entry of the shard, but never the shard itself.
        let Some(known) = self.shards.get_mut(&shard) else { return };
        known.entries.insert(hash, index);
        let entry = CacheEntry { shard, hash, offset, newer: NONE, older: NONE };
        match self.entries.get_mut(index as usize) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        self.link_newest(index);
    }

    /// Adds the newest version of a key in a shard, from the reply to a reader at `snapshot`. The
    /// version is ignored unless the reader sees every record of the shard.
    pub(super) fn learn(
        &mut self,
        shard: ShardId,
        hash: u64,
        offset: CachedOffset,
        snapshot: SeqNo,
    ) {
        let Some(known) = self.shards.get(&shard) else { return };
        if snapshot >= known.last_seq || self.sabotage.no_newest_check() {
            self.fill(shard, hash, offset);
        }
    }

    /// Drops the entry of a key in a shard.
    pub(super) fn remove(&mut self, shard: ShardId, hash: u64) {
        let known = self.shards.get_mut(&shard);
        if let Some(index) = known.and_then(|known| known.entries.remove(&hash)) {
            self.unlink(index);
            self.free.push(index);
        }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> u64 {
        (self.entries.len() - self.free.len()) as u64
    }

    /// A free index. If the cache is full, the least recently used entry is dropped for it.
    fn free_entry(&mut self) -> u32 {
        if self.free.is_empty() && self.entries.len() >= self.entries_max {
            let CacheEntry { shard, hash, .. } = self.entries[self.oldest as usize];
            self.remove(shard, hash);
        }
        self.free.pop().unwrap_or(self.entries.len() as u32)
    }

    fn unlink(&mut self, index: u32) {
        let CacheEntry { newer, older, .. } = self.entries[index as usize];
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, index: u32) {
        let before = std::mem::replace(&mut self.newest, index);
        let entry = &mut self.entries[index as usize];
        (entry.newer, entry.older) = (NONE, before);
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.newer = index,
            None => self.oldest = index,
        }
    }
}
