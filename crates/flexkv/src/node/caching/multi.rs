//! The cache, held for several keys of one caller: one lock and one wait for memory for all of
//! them.
//!
//! Nobody else reads or changes what is cached meanwhile, so a write that commits while its writer
//! holds the cache needs no invalidation before: to all who look here, the pair of before and the
//! one of after change places at one moment.
//!
//! Reads of this node's own partitions are not counted here but told by [`Several::pair`]'s caller
//! to the partition itself, which is at hand. Locks: a partition's ([`crate::proxy`]) are taken
//! within this one, never the other way round.

use parking_lot::MutexGuard;

use super::{Asker, Caching, State, count, may_serve, take_due};
use crate::cache::{Cached, Finished, Hit, Place};
use crate::format::{KeyHash, SlotIndex};
use crate::read_reports::Counted;
use crate::settings::CacheMode;

/// See the module.
pub(crate) struct Several<'a> {
    caching: &'a Caching,
    state: MutexGuard<'a, State>,
    /// Where the keys' entries were when it was looked.
    found: Vec<Option<u32>>,
    /// Whether a pair takes nothing else's place.
    has_room: bool,
}

impl Caching {
    /// Holds the cache, for keys of these hashes.
    pub(crate) fn several(&self, hashes: &[KeyHash]) -> Several<'_> {
        let (state, mut found) = (self.state.lock(), Vec::with_capacity(hashes.len()));
        state.cache.seek(hashes, &mut found);
        let has_room = Self::room_in(&state.cache);
        Several { caching: self, state, found, has_room }
    }
}

impl Several<'_> {
    /// The pair of key number `nth`, if it may be served: value, expiry, place. Counted, but for
    /// the partition of this node's own.
    pub(crate) fn pair(
        &mut self,
        nth: usize,
        (hash, key): (KeyHash, &[u8]),
        asker: &Asker,
    ) -> Option<(&[u8], u64, Place)> {
        let State { cache, reads, due, held } = &mut *self.state;
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
        count(&self.caching.counters.pair_hits);
        Some((value, expires_ms, place))
    }

    /// Reads that are to be told to other nodes now.
    pub(crate) fn take_due(&mut self) -> Vec<Counted> {
        take_due(&mut self.state.due)
    }

    /// Where the slot of key number `nth` was said to be, if anybody said so: to be brought nearer.
    pub(crate) fn slot(&self, nth: usize) -> Option<SlotIndex> {
        self.state.cache.slot_at(self.found[nth]?)
    }

    /// Where the slot of key number `nth` is, for a write.
    pub(crate) fn place(
        &mut self,
        nth: usize,
        (hash, key): (KeyHash, &[u8]),
        asker: &Asker,
    ) -> Option<Place> {
        let State { cache, held, .. } = &mut *self.state;
        let Hit { place, cached } = cache.get_at(self.found[nth], hash, key)?;
        let is_pair = matches!(cached, Cached::Pair { .. });
        may_serve(held, &place, asker, is_pair, self.caching.address_use_ns).then_some(place)
    }

    /// Key number `nth` was written, in a partition of this node's own. The pair is kept if it is
    /// `worthy` or there is room, else where it lies.
    pub(crate) fn written(
        &mut self,
        nth: usize,
        (hash, key): (KeyHash, &[u8]),
        place: Place,
        (value, expires_ms): (&[u8], u64),
        worthy: bool,
    ) {
        let keep = (worthy || self.has_room) && self.caching.mode == CacheMode::Pairs;
        let pair = if keep { Cached::Pair { value, expires_ms } } else { Cached::Slot };
        let cache = &mut self.state.cache;
        if cache.rewrite(self.found[nth], (hash, key), place, pair) == Finished::TooLarge {
            cache.rewrite(None, (hash, key), place, Cached::Slot);
        }
    }
}
