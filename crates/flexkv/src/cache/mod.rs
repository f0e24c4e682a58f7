//! A compute node's memory: the local cache, and the account that it shares with the local index.
//!
//! The cache has for a key either its **address** (the slot's word and where the slot is) or the
//! whole **pair** with it, or, for writes alone, where its **slot** is. Entries leave first in,
//! first out, whatever their kind. What the index of offloaded partitions takes is charged to the
//! same limit and makes the cache smaller at once.
//!
//! **The account**, to the byte: [`LocalCache::used_bytes`] =
//!
//! | what | bytes |
//! | --- | --- |
//! | the cache itself and its marks of fetches | [`FIXED_BYTES`] |
//! | the local index and its metadata | as charged |
//! | entries, in chunks of 32: key hash, place, links, map slot | [`ENTRY_BYTES`] (112) each, whole chunks, 16 per chunk |
//! | the chunks' table, in steps of 64 chunks | 24 per chunk |
//! | an entry's key and value, in one piece | rounded up to 16, and 16 |
//!
//! The 16s stand for what an allocator keeps for itself.
//!
//! Invariants: 1. used never exceeds the limit, also while something grows: room is made before. 2.
//! One entry per hash. 3. An entry was never invalidated since its fetch began ([`fetch`](Fetch)).
//! Whether an entry may be *served* is not known here: it carries its owner, the owner's session
//! and the stamp of its slot, and who serves it looks at the leases ([`crate::lease`]).
//!
//! Cost: a lookup touches two or three entries and allocates nothing; an insertion allocates once;
//! removal by partition or by owner looks at every entry. Thread-safety: lookups by `&self`,
//! changes by `&mut`: under the owner's lock. Failure: none but [`Short`]. Paper: §4.4 and Figure
//! 8.

mod fetch;
mod multi;
mod nodes;
#[cfg(test)]
mod tests;

pub use fetch::Fetch;
use fetch::{MARKS_BYTES, Marks};
use nodes::{ALLOC_BYTES, ALLOC_UNIT, CHUNK_BYTES, Entry, Nodes, TABLE_BYTES, TABLE_STEP};

use crate::format::{KEY_BYTES_MAX, KeyHash, Slot, SlotIndex};
use crate::ids::{ComputeId, PartitionId};
use crate::lease::Stamp;

/// Bytes of an entry beside its key and value.
pub const ENTRY_BYTES: u64 = size_of::<nodes::Node>() as u64;
/// Bytes of an empty cache: the least limit.
pub const FIXED_BYTES: u64 = size_of::<LocalCache>() as u64 + MARKS_BYTES;

/// Where a key's slot is, what it said, and who said so when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the key.
    pub partition: PartitionId,
    /// Which slot.
    pub slot: SlotIndex,
    /// Its word.
    pub word: Slot,
    /// The proxy that said so; `None`: it was read in the pool.
    pub owner: Option<ComputeId>,
    /// The proxy's session ([`Holder`](crate::lease::Holder)).
    pub session: u64,
    /// Of the slot's lease: the partition's epoch, and the owner's clock before it said so.
    pub stamp: Stamp,
    /// This node's clock before it asked: the word was in the slot at some time since.
    pub seen_ns: u64,
}

/// What is cached of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached<'a> {
    /// Where its slot is: nobody sees to it that the word is not believed when it is old, so it is
    /// not to be read by.
    Slot,
    /// Its place only.
    Address,
    /// Its value too.
    Pair {
        /// The value.
        value: &'a [u8],
        /// Unix ms; 0: never.
        expires_ms: u64,
    },
}

impl Cached<'_> {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Slot => Kind::Slot,
            Self::Address => Kind::Address,
            Self::Pair { .. } => Kind::Pair,
        }
    }
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Slot,
    Address,
    Pair,
}

/// A key was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit<'a> {
    /// Where its slot is.
    pub place: Place,
    /// What is cached.
    pub cached: Cached<'a>,
}

/// What became of what a fetch brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It is cached.
    Cached,
    /// It was invalidated while it was being fetched: use it once, do not keep it.
    Invalidated,
    /// It does not fit the limit; nothing was evicted for it.
    TooLarge,
}

/// The limit is too small for what is to be charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needs} bytes are needed, the limit is {limit}")]
pub struct Short {
    /// What would be in use without any cached entry.
    pub needs: u64,
    /// What may be.
    pub limit: u64,
}

/// What the cache has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Entries that made room.
    pub evicted: u64,
    /// Entries that were invalidated, alone or with their partition or owner.
    pub invalidated: u64,
    /// Fetches whose result was invalidated on its way.
    pub refused: u64,
    /// Fetches whose result was too large.
    pub too_large: u64,
    /// Pairs now.
    pub pairs: u64,
    /// Addresses now.
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

/// See the module.
#[derive(Debug)]
pub struct LocalCache {
    limit_bytes: u64,
    index_bytes: u64,
    /// Keys and values.
    data_bytes: u64,
    nodes: Nodes,
    marks: Marks,
    counters: Counters,
}

/// What a piece of `bytes` takes.
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

    /// Bytes that may be in use.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes that the index was charged with.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.index_bytes
    }

    /// Sets the limit and evicts what no longer fits. Short, and nothing changed, if index and
    /// empty cache alone do not fit.
    pub fn set_budget(&mut self, limit_bytes: u64) -> Result<(), Short> {
        let needs = FIXED_BYTES + self.index_bytes;
        if limit_bytes < needs {
            return Err(Short { needs, limit: limit_bytes });
        }
        self.limit_bytes = limit_bytes;
        self.make_room(0);
        Ok(())
    }

    /// Charges the local index with `bytes` more, before they are allocated, and evicts for them.
    /// Short, and nothing changed, if they do not fit even an empty cache.
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

    /// Looks a key up. Whether what is found may be served is not known here, so hits are not
    /// counted here either.
    #[must_use]
    pub fn get(&self, hash: KeyHash, key: &[u8]) -> Option<Hit<'_>> {
        self.find(hash, key).map(|at| Self::hit(self.nodes.entry(at)))
    }

    fn hit(entry: &Entry) -> Hit<'_> {
        let value = &entry.data[usize::from(entry.key_bytes)..];
        let cached = match entry.kind {
            Kind::Slot => Cached::Slot,
            Kind::Address => Cached::Address,
            Kind::Pair => Cached::Pair { value, expires_ms: entry.expires_ms },
        };
        Hit { place: entry.place, cached }
    }

    /// A request for a key is about to be sent whose answer is to be cached.
    pub fn begin_fetch(&self, hash: KeyHash) -> Fetch {
        self.marks.begin(hash.0)
    }

    /// Caches what a fetch brought, as the newest entry, unless it was invalidated since the fetch
    /// began. What was cached of the key before goes.
    #[expect(clippy::needless_pass_by_value, reason = "a fetch ends once")]
    pub fn finish_fetch(
        &mut self,
        fetch: Fetch,
        key: &[u8],
        place: Place,
        cached: Cached<'_>,
    ) -> Finished {
        if !self.marks.holds(&fetch) {
            self.counters.refused += 1;
            return Finished::Invalidated;
        }
        self.put(fetch.hash, key, place, cached)
    }

    /// Caches this, as the newest entry, instead of what is cached of the key.
    fn put(&mut self, hash: u64, key: &[u8], place: Place, cached: Cached<'_>) -> Finished {
        if let Some(at) = self.nodes.find(hash) {
            self.remove(at);
        }
        let kind = cached.kind();
        let (value, expires_ms) = match cached {
            Cached::Slot | Cached::Address => (&[][..], 0),
            Cached::Pair { value, expires_ms } => (value, expires_ms),
        };
        let piece = piece_bytes(key.len() + value.len());
        // In an empty cache: a chunk, and the table for it.
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
        self.counters.pairs += u64::from(kind == Kind::Pair);
        self.nodes.push(Entry {
            hash,
            place,
            data: data.into_boxed_slice(),
            expires_ms,
            key_bytes: key.len() as u16,
            kind,
        });
        Finished::Cached
    }

    /// The record at an address was the newest: sets the place of what is cached of the key, if its
    /// word is the same. Keeps its turn to be evicted.
    pub fn renew(&mut self, hash: KeyHash, key: &[u8], place: Place) -> bool {
        match self.find(hash, key) {
            Some(at) if self.nodes.entry(at).place.word == place.word => {
                self.nodes.entry_mut(at).place = place;
                true
            }
            _ => false,
        }
    }

    /// Removes what is cached of the key with this hash; what is being fetched of it will not be
    /// cached.
    pub fn invalidate(&mut self, hash: KeyHash) -> bool {
        self.marks.invalidate(hash.0);
        let found = self.nodes.find(hash.0);
        if let Some(at) = found {
            self.remove(at);
            self.counters.invalidated += 1;
        }
        found.is_some()
    }

    /// Removes what is cached of these partitions, which are in order; nothing that is being
    /// fetched now will be cached.
    pub fn invalidate_partitions(&mut self, partitions: &[PartitionId]) -> u64 {
        debug_assert!(partitions.is_sorted());
        self.invalidate_where(|place| partitions.binary_search(&place.partition).is_ok())
    }

    /// Removes what an owner said; nothing that is being fetched now will be cached.
    pub fn invalidate_owner(&mut self, owner: ComputeId) -> u64 {
        self.invalidate_where(|place| place.owner == Some(owner))
    }

    /// Removes everything; nothing that is being fetched now will be cached.
    pub fn invalidate_all(&mut self) -> u64 {
        let removed = u64::from(self.nodes.len());
        self.marks.invalidate_all();
        self.nodes.clear();
        self.data_bytes = 0;
        self.counters.pairs = 0;
        self.counters.invalidated += removed;
        removed
    }

    /// What it has done and holds.
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

    fn invalidate_where(&mut self, gone: impl Fn(&Place) -> bool) -> u64 {
        self.marks.invalidate_all();
        let (mut at, mut removed) = (0, 0);
        while at < self.nodes.len() {
            if gone(&self.nodes.entry(at).place) {
                // The last one is here now.
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
        self.counters.pairs -= u64::from(entry.kind == Kind::Pair);
    }

    /// Evicts until `bytes` more fit the limit.
    fn make_room(&mut self, bytes: u64) {
        while self.used_bytes() + bytes > self.limit_bytes && self.evict() {}
    }

    /// Evicts until an entry more fits, with a piece of `piece` bytes. It fits an empty cache.
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
