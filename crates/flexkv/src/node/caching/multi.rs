//! The cache, locked for several keys of one caller: one lock, and one wait for memory, for all of
//! them.
//!
//! No other thread reads or changes the cache meanwhile. So a write that commits while its writer
//! holds the lock needs no invalidation first. Every reader of this cache sees the old pair change
//! to the new one at a single moment.
//!
//! Reads of this node's own partitions are not counted here. The caller of [`LockedCache::pair`]
//! counts them in the partition, which is on the same node.
//!
//! Lock order: locks of partitions (`proxy/served/`) are taken within this one, never the other way
//! round.

use parking_lot::MutexGuard;

use super::{Asker, CacheStat, CacheState, Caching, may_serve, take_due};
use crate::cache::{Cached, CachedSlot, Finished, Hit};
use crate::format::{HashedKey, KeyHash, SlotIndex};
use crate::read_reports::ReadReport;
use crate::settings::CacheMode;

/// The locked cache, and the entries of some keys.
pub(crate) struct LockedCache<'a> {
    caching: &'a Caching,
    state: MutexGuard<'a, CacheState>,
    /// Places of the keys' entries when the cache was locked.
    found: Vec<Option<u32>>,
    /// Whether a pair displaces no other entry.
    has_room: bool,
}

/// A cached pair that may be served.
pub(crate) struct ServedPair<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) expires_ms: u64,
    pub(crate) place: CachedSlot,
}

/// A pair that was written in a partition of this node's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenPair<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) expires_ms: u64,
    pub(crate) place: CachedSlot,
    /// Whether the pair is worth caching.
    pub(crate) worthy: bool,
}

impl Caching {
    /// Locks the cache for keys with these hashes.
    pub(crate) fn lock_for(&self, hashes: &[KeyHash]) -> LockedCache<'_> {
        let (state, mut found) = (self.state.lock(), Vec::with_capacity(hashes.len()));
        state.cache.seek(hashes, &mut found);
        let has_room = Self::room_in(&state.cache);
        LockedCache { caching: self, state, found, has_room }
    }
}

impl LockedCache<'_> {
    /// The pair of key number `nth` and its place, if the pair may be served. The read is counted
    /// for the key's proxy, unless the partition is one of this node's own.
    pub(crate) fn pair(
        &mut self,
        nth: usize,
        key: HashedKey<'_>,
        asker: &Asker,
    ) -> Option<ServedPair<'_>> {
        let HashedKey { hash, key } = key;
        let CacheState { cache, reads, due, held } = &mut *self.state;
        let Hit { place, cached: Cached::Pair { value, expires_ms } } =
            cache.get_at(self.found[nth], hash, key)?
        else {
            return None;
        };
        if !may_serve(held, &place, asker, true, self.caching.address_use_ns) {
            return None;
        }
        if place.owner.is_some_and(|owner| owner != asker.me) {
            due.extend(reads.add(hash, place.partition, place.slot, asker.now_ns));
        }
        self.caching.count(CacheStat::PairHits);
        Some(ServedPair { value, expires_ms, place })
    }

    /// Takes the reports of reads that the caller must send now.
    pub(crate) fn take_due(&mut self) -> Vec<ReadReport> {
        take_due(&mut self.state.due)
    }

    /// The slot that the entry of key number `nth` names, for a prefetch.
    pub(crate) fn slot(&self, nth: usize) -> Option<SlotIndex> {
        self.state.cache.slot_at(self.found[nth]?)
    }

    /// Place of the slot of key number `nth`, for a write.
    pub(crate) fn place(
        &mut self,
        nth: usize,
        key: HashedKey<'_>,
        asker: &Asker,
    ) -> Option<CachedSlot> {
        let HashedKey { hash, key } = key;
        let CacheState { cache, held, .. } = &mut *self.state;
        let Hit { place, cached } = cache.get_at(self.found[nth], hash, key)?;
        let is_pair = matches!(cached, Cached::Pair { .. });
        may_serve(held, &place, asker, is_pair, self.caching.address_use_ns).then_some(place)
    }

    /// Caches the written pair of key number `nth`, in a partition of this node's own. The pair is
    /// kept if it is worth caching or there is room. Otherwise only its place is kept.
    pub(crate) fn written(&mut self, nth: usize, key: HashedKey<'_>, written: WrittenPair<'_>) {
        let WrittenPair { value, expires_ms, place, worthy } = written;
        let keep = (worthy || self.has_room) && self.caching.mode == CacheMode::Pairs;
        let pair = if keep { Cached::Pair { value, expires_ms } } else { Cached::Slot };
        let cache = &mut self.state.cache;
        if cache.rewrite(self.found[nth], key, place, pair) == Finished::TooLarge {
            cache.rewrite(None, key, place, Cached::Slot);
        }
    }
}
