//! Look-ups of several keys at a time, and changes in place by a caller that has locked the cache.
//!
//! The memory that a look-up touches is scattered: the head of a chain, a node or two, the bytes of
//! the key. [`LocalCache::seek`] performs each such step for all keys before the next step. The
//! loads of a step do not depend on each other, so the processor waits for memory once per step.
//!
//! Invariants:
//! 1. A number from [`LocalCache::seek`] is a hint. Each use compares hash and key.
//! 2. No reader of this cache sees a state between a write and its rewrite here, because the caller
//!    holds the lock from before the write on. The result of a fetch in progress is not cached.

use std::hint::black_box;

use super::nodes::CacheEntry;
use super::{Cached, CachedSlot, EntryKind, Finished, Hit, LocalCache};
use crate::format::{HashedKey, KeyHash, SlotIndex};

impl LocalCache {
    /// Finds the entries of these keys. `found` must be empty.
    pub(crate) fn seek(&self, hashes: &[KeyHash], found: &mut Vec<Option<u32>>) {
        found.extend(hashes.iter().map(|hash| Some(self.nodes.head(hash.0))));
        found.iter().flatten().for_each(|head| self.nodes.prefetch_from(*head));
        for (hash, at) in hashes.iter().zip(found.iter_mut()) {
            *at = at.and_then(|head| self.nodes.find_from(head, hash.0));
        }
        for at in found.iter().flatten() {
            let data = &self.nodes.entry(*at).data;
            // Pieces are not aligned to cache lines, so both ends are loaded.
            black_box((data.first().copied(), data.last().copied()));
        }
    }

    /// The entry of a key that `seek` found at `hint`.
    pub(crate) fn get_at(&self, hint: Option<u32>, hash: KeyHash, key: &[u8]) -> Option<Hit<'_>> {
        let entry = self.entry_of(hint?, hash)?;
        (&entry.data[..usize::from(entry.key_bytes)] == key).then(|| Self::hit(entry))
    }

    /// The slot of the entry at `hint`.
    pub(crate) fn slot_at(&self, hint: u32) -> Option<SlotIndex> {
        (hint < self.nodes.len()).then(|| self.nodes.entry(hint).place.slot)
    }

    fn entry_of(&self, hint: u32, hash: KeyHash) -> Option<&CacheEntry> {
        let at = if hint < self.nodes.len() && self.nodes.entry(hint).hash == hash.0 {
            hint
        } else {
            // An entry that was removed gave its number to another one.
            self.nodes.find(hash.0)?
        };
        Some(self.nodes.entry(at))
    }

    /// Caches a written pair. An entry of the same length is overwritten in place, and keeps its
    /// turn to be evicted.
    pub(crate) fn rewrite(
        &mut self,
        hint: Option<u32>,
        key: HashedKey<'_>,
        place: CachedSlot,
        cached: Cached<'_>,
    ) -> Finished {
        let HashedKey { hash, key } = key;
        self.marks.invalidate(hash.0);
        let (value, expires_ms) = match cached {
            Cached::Slot | Cached::Address => (&[][..], 0),
            Cached::Pair { value, expires_ms } => (value, expires_ms),
        };
        let here = hint.filter(|&at| at < self.nodes.len() && self.nodes.entry(at).hash == hash.0);
        let Some(at) = here else { return self.put(hash.0, key, place, cached) };
        let entry = self.nodes.entry_mut(at);
        let fits = entry.data.len() == key.len() + value.len()
            && entry.data.get(..usize::from(entry.key_bytes)) == Some(key);
        if !fits {
            return self.put(hash.0, key, place, cached);
        }
        entry.data[key.len()..].copy_from_slice(value);
        (entry.place, entry.expires_ms) = (place, expires_ms);
        let was = std::mem::replace(&mut entry.kind, cached.kind());
        self.counters.pairs -= u64::from(was == EntryKind::Pair);
        self.counters.pairs += u64::from(cached.kind() == EntryKind::Pair);
        Finished::Cached
    }
}
