//! Several keys at a time: looked up side by side, so that the processor waits for their memory
//! once and not key by key; and a key that was written by who holds the cache, in place.
//!
//! What a look-up touches lies anywhere: the head of a chain, a node or two, the key's bytes.
//! [`LocalCache::seek`] does one such step for all keys before the next one, and the loads of a
//! step do not depend on each other.
//!
//! Invariants: 1. a number from [`LocalCache::seek`] is a hint: whoever uses it compares hash and
//! key. 2. What is rewritten was not seen between the write and this by anybody who looks here, as
//! the caller holds the cache from before the write on; what is being fetched of the key is not
//! cached.

use std::hint::black_box;

use super::nodes::Entry;
use super::{Cached, Finished, Hit, Kind, LocalCache, Place};
use crate::format::{KeyHash, SlotIndex};

impl LocalCache {
    /// Where the entries of these keys are; `found` begins empty.
    pub(crate) fn seek(&self, hashes: &[KeyHash], found: &mut Vec<Option<u32>>) {
        found.extend(hashes.iter().map(|hash| Some(self.nodes.head(hash.0))));
        found.iter().flatten().for_each(|head| self.nodes.prefetch_from(*head));
        for (hash, at) in hashes.iter().zip(found.iter_mut()) {
            *at = at.and_then(|head| self.nodes.find_from(head, hash.0));
        }
        for at in found.iter().flatten() {
            let data = &self.nodes.entry(*at).data;
            // The allocator's pieces are not cut along cache lines: both ends.
            black_box((data.first().copied(), data.last().copied()));
        }
    }

    /// What is cached of a key whose entry was at `hint`.
    pub(crate) fn get_at(&self, hint: Option<u32>, hash: KeyHash, key: &[u8]) -> Option<Hit<'_>> {
        let entry = self.entry_of(hint?, hash)?;
        (&entry.data[..usize::from(entry.key_bytes)] == key).then(|| Self::hit(entry))
    }

    /// The slot that the entry at `hint` names.
    pub(crate) fn slot_at(&self, hint: u32) -> Option<SlotIndex> {
        (hint < self.nodes.len()).then(|| self.nodes.entry(hint).place.slot)
    }

    fn entry_of(&self, hint: u32, hash: KeyHash) -> Option<&Entry> {
        let at = if hint < self.nodes.len() && self.nodes.entry(hint).hash == hash.0 {
            hint
        } else {
            // Another entry that left took its number.
            self.nodes.find(hash.0)?
        };
        Some(self.nodes.entry(at))
    }

    /// The key was written, and this is what is to be cached of it. An entry of the same length is
    /// overwritten and keeps its turn to be evicted.
    pub(crate) fn rewrite(
        &mut self,
        hint: Option<u32>,
        (hash, key): (KeyHash, &[u8]),
        place: Place,
        cached: Cached<'_>,
    ) -> Finished {
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
        self.counters.pairs -= u64::from(was == Kind::Pair);
        self.counters.pairs += u64::from(cached.kind() == Kind::Pair);
        Finished::Cached
    }
}
