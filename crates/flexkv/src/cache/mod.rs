//! A compute node's local cache, and the account of memory that it shares with the local index.
//!
//! For each key the cache has one entry: the **address** (the slot's word and its position), or the
//! whole **pair**, or, for writes only, the **slot**. Entries are evicted first in, first out,
//! whatever their kind. The index of offloaded partitions is charged to the same limit, and makes
//! the cache smaller immediately.
//!
//! **The account**, to the byte: [`LocalCache::used_bytes`] is the sum of these rows.
//!
//! | what | bytes |
//! | --- | --- |
//! | the cache itself and its marks of fetches | [`FIXED_BYTES`] |
//! | the local index and its metadata | as charged |
//! | entries, in chunks of 32: key hash, position, links, map slot | [`ENTRY_BYTES`] (112) each,
//! whole chunks, 16 per chunk |
//! | the table of chunks, in steps of 64 chunks | 24 per chunk |
//! | an entry's key and value, in one piece | rounded up to 16, and 16 |
//!
//! The numbers 16 stand for what an allocator adds to each piece.
//!
//! The cache does not know whether an entry may be *served*. The entry has its owner, the owner's
//! session and the stamp of its slot, and the caller checks the leases ([`crate::lease`]).
//!
//! Invariants:
//! 1. The bytes in use never exceed the limit, not even while the cache grows.
//! 2. The cache has at most one entry per hash.
//! 3. An entry was not invalidated since its fetch began ([`Fetch`]).
//!
//! Thread-safety: look-ups by `&self`, changes by `&mut`. The owner holds a lock.
//! Failure: the only error is [`Short`].
//! Cost: a look-up reads two or three entries and allocates nothing. An insertion allocates once.
//! Removal by partition or by owner visits every entry. Paper: §4.4 and Figure 8.

mod fetch;
mod multi;
mod nodes;
#[cfg(test)]
mod tests;

pub use fetch::Fetch;
use fetch::{MARKS_BYTES, Marks};
use nodes::{ALLOC_BYTES, ALLOC_UNIT, CHUNK_BYTES, CacheEntry, Nodes, TABLE_BYTES, TABLE_STEP};

use crate::format::{KEY_BYTES_MAX, KeyHash, Slot, SlotIndex};
use crate::ids::{ComputeId, PartitionId};
use crate::lease::Stamp;

/// Bytes of an entry without its key and value.
pub const ENTRY_BYTES: u64 = size_of::<nodes::Node>() as u64;
/// Bytes of an empty cache, which is the least limit.
pub const FIXED_BYTES: u64 = size_of::<LocalCache>() as u64 + MARKS_BYTES;

/// A key's slot as the cache knows it: its position, its word, and the source of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedSlot {
    /// The key's partition.
    pub partition: PartitionId,
    /// Index of the slot.
    pub slot: SlotIndex,
    /// Word of the slot.
    pub word: Slot,
    /// The proxy that gave the word. `None` if it was read in the pool.
    pub owner: Option<ComputeId>,
    /// Session of the proxy's lease ([`Holder`](crate::lease::Holder)).
    pub session: u64,
    /// Stamp of the slot lease: the partition's epoch, and the owner's clock before it answered.
    pub stamp: Stamp,
    /// This node's clock before it asked. The slot held the word at some time since.
    pub seen_ns: u64,
}

/// Cached part of a key: its pair or its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached<'a> {
    /// The slot's position. No proxy invalidates the word, so reads must not use it.
    Slot,
    /// The address of the record.
    Address,
    /// The address and the value.
    Pair {
        /// Bytes of the value.
        value: &'a [u8],
        /// Expiry in Unix milliseconds. 0 means never.
        expires_ms: u64,
    },
}

impl Cached<'_> {
    pub(crate) fn kind(self) -> EntryKind {
        match self {
            Self::Slot => EntryKind::Slot,
            Self::Address => EntryKind::Address,
            Self::Pair { .. } => EntryKind::Pair,
        }
    }
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Slot,
    Address,
    Pair,
}

/// An entry that a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit<'a> {
    /// The key's slot.
    pub place: CachedSlot,
    /// Cached part of the key.
    pub cached: Cached<'a>,
}

/// Outcome of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The result is cached.
    Cached,
    /// The key was invalidated during the fetch. The result may be used once and is not cached.
    Invalidated,
    /// The result does not fit the limit. Nothing was evicted for it.
    TooLarge,
}

/// The limit is too small for a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needs} bytes are needed, the limit is {limit}")]
pub struct Short {
    /// Bytes that would be in use without any cached entry.
    pub needs: u64,
    /// Bytes that may be in use.
    pub limit: u64,
}

/// Statistics of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Entries that were evicted.
    pub evicted: u64,
    /// Entries that were invalidated, alone or with their partition or owner.
    pub invalidated: u64,
    /// Fetches whose result was invalidated on its way.
    pub refused: u64,
    /// Fetches whose result was too large.
    pub too_large: u64,
    /// Number of cached pairs.
    pub pairs: u64,
    /// Number of cached addresses and slots.
    pub addresses: u64,
}

#[derive(Debug, Default)]
struct Counters {
    evicted: u64,
    invalidated: u64,
    refused: u64,
    too_large: u64,
    pairs: u64,
}

/// A local cache. See the head of the module.
#[derive(Debug)]
pub struct LocalCache {
    limit_bytes: u64,
    index_bytes: u64,
    /// Bytes of keys and values.
    data_bytes: u64,
    nodes: Nodes,
    marks: Marks,
    counters: Counters,
}

/// Bytes that a piece of `bytes` takes from the allocator.
fn piece_bytes(bytes: usize) -> u64 {
    if bytes == 0 { 0 } else { (bytes as u64).next_multiple_of(ALLOC_UNIT) + ALLOC_BYTES }
}

impl LocalCache {
    /// An empty cache for at most `limit_bytes`, at least [`FIXED_BYTES`].
    pub fn new(limit_bytes: u64) -> Result<Self, Short> {
        if limit_bytes < FIXED_BYTES {
            return Err(Short { needs: FIXED_BYTES, limit: limit_bytes });
        }
        Ok(Self {
            limit_bytes,
            index_bytes: 0,
            data_bytes: 0,
            nodes: Nodes::new(),
            marks: Marks::new(),
            counters: Counters::default(),
        })
    }

    /// Bytes in use, the index included.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        FIXED_BYTES + self.index_bytes + self.nodes.bytes() + self.data_bytes
    }

    /// The limit, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes that the index was charged with.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.index_bytes
    }

    /// Sets the limit and evicts entries that no longer fit. Fails without effect if the index and
    /// an empty cache do not fit.
    pub fn set_budget(&mut self, limit_bytes: u64) -> Result<(), Short> {
        let needs = FIXED_BYTES + self.index_bytes;
        if limit_bytes < needs {
            return Err(Short { needs, limit: limit_bytes });
        }
        self.limit_bytes = limit_bytes;
        self.make_room(0);
        Ok(())
    }

    /// Charges `bytes` more to the local index, before they are allocated, and evicts for them.
    /// Fails without effect if they do not fit next to an empty cache.
    pub fn charge_index(&mut self, bytes: u64) -> Result<(), Short> {
        let needs = (FIXED_BYTES + self.index_bytes).saturating_add(bytes);
        if needs > self.limit_bytes {
            return Err(Short { needs, limit: self.limit_bytes });
        }
        self.make_room(bytes);
        self.index_bytes += bytes;
        Ok(())
    }

    /// Takes `bytes` off the index's charge, after they were freed.
    pub fn release_index(&mut self, bytes: u64) {
        assert!(bytes <= self.index_bytes, "released more than was charged");
        self.index_bytes -= bytes;
    }

    /// Looks a key up. The caller decides whether to serve the entry, so hits are not counted here.
    #[must_use]
    pub fn get(&self, hash: KeyHash, key: &[u8]) -> Option<Hit<'_>> {
        self.find(hash, key).map(|at| Self::hit(self.nodes.entry(at)))
    }

    fn hit(entry: &CacheEntry) -> Hit<'_> {
        let value = &entry.data[usize::from(entry.key_bytes)..];
        let cached = match entry.kind {
            EntryKind::Slot => Cached::Slot,
            EntryKind::Address => Cached::Address,
            EntryKind::Pair => Cached::Pair { value, expires_ms: entry.expires_ms },
        };
        Hit { place: entry.place, cached }
    }

    /// Begins a fetch, before the request for a key is sent.
    pub fn begin_fetch(&self, hash: KeyHash) -> Fetch {
        self.marks.begin(hash.0)
    }

    /// Caches the result of a fetch as the newest entry, unless the key was invalidated since the
    /// fetch began. The result replaces the cached entry of the key.
    #[expect(clippy::needless_pass_by_value, reason = "a fetch ends once")]
    pub fn finish_fetch(
        &mut self,
        fetch: Fetch,
        key: &[u8],
        place: CachedSlot,
        cached: Cached<'_>,
    ) -> Finished {
        if !self.marks.holds(&fetch) {
            self.counters.refused += 1;
            return Finished::Invalidated;
        }
        self.put(fetch.hash, key, place, cached)
    }

    /// Caches an entry as the newest, in place of the key's cached entry.
    fn put(&mut self, hash: u64, key: &[u8], place: CachedSlot, cached: Cached<'_>) -> Finished {
        if let Some(at) = self.nodes.find(hash) {
            self.remove(at);
        }
        let kind = cached.kind();
        let (value, expires_ms) = match cached {
            Cached::Slot | Cached::Address => (&[][..], 0),
            Cached::Pair { value, expires_ms } => (value, expires_ms),
        };
        let piece = piece_bytes(key.len() + value.len());
        // In an empty cache the entry also needs a chunk and the table.
        let least = piece + CHUNK_BYTES + TABLE_STEP as u64 * TABLE_BYTES;
        let free = self.limit_bytes - FIXED_BYTES - self.index_bytes;
        if least > free || key.len() > KEY_BYTES_MAX {
            self.counters.too_large += 1;
            return Finished::TooLarge;
        }
        self.make_room_for_entry(piece);
        let mut data = Vec::with_capacity(key.len() + value.len());
        data.extend_from_slice(key);
        data.extend_from_slice(value);
        self.data_bytes += piece;
        self.counters.pairs += u64::from(kind == EntryKind::Pair);
        self.nodes.push(CacheEntry {
            hash,
            place,
            data: data.into_boxed_slice(),
            expires_ms,
            key_bytes: key.len() as u16,
            kind,
        });
        Finished::Cached
    }

    /// Replaces the position of a key's entry after its record proved to be the newest, if the word
    /// is the same. The entry keeps its turn to be evicted.
    pub fn renew(&mut self, hash: KeyHash, key: &[u8], place: CachedSlot) -> bool {
        match self.find(hash, key) {
            Some(at) if self.nodes.entry(at).place.word == place.word => {
                self.nodes.entry_mut(at).place = place;
                true
            }
            _ => false,
        }
    }

    /// Removes the entry of a hash. The result of a fetch in progress will not be cached.
    pub fn invalidate(&mut self, hash: KeyHash) -> bool {
        self.marks.invalidate(hash.0);
        let found = self.nodes.find(hash.0);
        if let Some(at) = found {
            self.remove(at);
            self.counters.invalidated += 1;
        }
        found.is_some()
    }

    /// Removes the entries of these partitions, which are in ascending order. No result of a fetch
    /// in progress will be cached.
    pub fn invalidate_partitions(&mut self, partitions: &[PartitionId]) -> u64 {
        debug_assert!(partitions.is_sorted());
        self.invalidate_where(|place| partitions.binary_search(&place.partition).is_ok())
    }

    /// Removes the entries that came from an owner. No result of a fetch in progress will be
    /// cached.
    pub fn invalidate_owner(&mut self, owner: ComputeId) -> u64 {
        self.invalidate_where(|place| place.owner == Some(owner))
    }

    /// Removes all entries. No result of a fetch in progress will be cached.
    pub fn invalidate_all(&mut self) -> u64 {
        let removed = u64::from(self.nodes.len());
        self.marks.invalidate_all();
        self.nodes.clear();
        self.data_bytes = 0;
        self.counters.pairs = 0;
        self.counters.invalidated += removed;
        removed
    }

    /// The statistics of the cache.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let counters = &self.counters;
        CacheStats {
            evicted: counters.evicted,
            invalidated: counters.invalidated,
            refused: counters.refused,
            too_large: counters.too_large,
            pairs: counters.pairs,
            addresses: u64::from(self.nodes.len()) - counters.pairs,
        }
    }

    fn invalidate_where(&mut self, gone: impl Fn(&CachedSlot) -> bool) -> u64 {
        self.marks.invalidate_all();
        let (mut at, mut removed) = (0, 0);
        while at < self.nodes.len() {
            if gone(&self.nodes.entry(at).place) {
                // The last entry has taken this number.
                self.remove(at);
                removed += 1;
            } else {
                at += 1;
            }
        }
        self.counters.invalidated += removed;
        removed
    }

    fn find(&self, hash: KeyHash, key: &[u8]) -> Option<u32> {
        let is_key = |&at: &u32| {
            let entry = self.nodes.entry(at);
            &entry.data[..usize::from(entry.key_bytes)] == key
        };
        self.nodes.find(hash.0).filter(is_key)
    }

    fn remove(&mut self, at: u32) {
        let entry = self.nodes.remove(at);
        self.data_bytes -= piece_bytes(entry.data.len());
        self.counters.pairs -= u64::from(entry.kind == EntryKind::Pair);
    }

    /// Evicts until `bytes` more fit the limit.
    fn make_room(&mut self, bytes: u64) {
        while self.used_bytes() + bytes > self.limit_bytes && self.evict() {}
    }

    /// Evicts until one more entry fits, with a piece of `piece` bytes. The caller guarantees that
    /// the entry fits an empty cache.
    fn make_room_for_entry(&mut self, piece: u64) {
        while self.used_bytes() + self.nodes.push_bytes() + piece > self.limit_bytes && self.evict()
        {
        }
    }

    fn evict(&mut self) -> bool {
        let oldest = self.nodes.oldest();
        if let Some(at) = oldest {
            self.remove(at);
            self.counters.evicted += 1;
        }
        oldest.is_some()
    }
}
