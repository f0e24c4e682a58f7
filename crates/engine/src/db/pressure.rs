//! What happens when memory gets short: caches shrink, memtables are flushed early, writers slow
//! down (`crate::stall` with cause `Budget`). Nothing is killed.
//!
//! Memory of flushed memtables is kept for the next ones while a load goes on and given back to the
//! system when it pauses.
//!
//! Background workers look after every job and when idle. The decision is pure ([`relief`]): the
//! block cache gives back what is over nine tenths of the budget, down to a sixteenth of its
//! capacity; if that is not enough, the largest active memtable of all families is sealed.

use std::sync::Arc;

use crate::db::family::Family;
use crate::db::inner::DbInner;

/// The block cache keeps at least this share of its capacity.
const CACHE_SHARE_MIN: u64 = 16;
/// Memtables smaller than this are not worth an early flush.
const SEAL_BYTES_MIN: u64 = 256 << 10;

/// What to do about memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relief {
    /// There is room: the cache may use all of its capacity.
    Relax,
    /// The cache may hold this many bytes.
    ShrinkCache(u64),
    /// The cache may hold this many bytes, and that is not enough: seal a memtable too.
    ShrinkAndSeal(u64),
}

/// What to do with `used` of `limit` bytes in use, `cached` of them in a cache of `capacity`.
pub(crate) fn relief(used: u64, limit: u64, cached: u64, capacity: u64) -> Relief {
    let target = limit / 10 * 9;
    let over = used.saturating_sub(target);
    if over == 0 {
        return Relief::Relax;
    }
    let least = (capacity / CACHE_SHARE_MIN).min(cached);
    if cached - least >= over {
        Relief::ShrinkCache(cached - over)
    } else {
        Relief::ShrinkAndSeal(least)
    }
}

impl DbInner {
    /// Looks at the budget and acts; called by background workers, without locks.
    pub(crate) fn relieve_pressure(&self) {
        if !self.is_loading() && self.slabs.free_bytes() > 0 {
            self.slabs.trim();
        }
        let relief = relief(
            self.budget.total_bytes(),
            self.budget.limit_bytes(),
            self.cache.usage_bytes(),
            self.cache.capacity_bytes(),
        );
        match relief {
            Relief::Relax => self.cache.relax(),
            Relief::ShrinkCache(bytes) => self.cache.shrink_to(bytes),
            Relief::ShrinkAndSeal(bytes) => {
                self.cache.shrink_to(bytes);
                self.seal_largest();
            }
        }
        if relief != Relief::Relax {
            for family in self.live_families() {
                self.recompute_stall(&family);
            }
        }
    }

    fn seal_largest(&self) {
        let largest: Option<Arc<Family>> = self
            .live_families()
            .into_iter()
            .filter(|family| self.may_seal(family))
            .max_by_key(|family| family.current.load().active.charged_bytes());
        let Some(family) = largest else { return };
        if family.current.load().active.charged_bytes() < SEAL_BYTES_MIN {
            return;
        }
        // A busy lock means that writers are at work: the next look tries again.
        if let Some(mut commit) = self.committer.try_lock() {
            self.seal_active(&mut commit, &family);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_gives_first_and_memtables_when_it_has_nothing_left() {
        assert_eq!(relief(90, 100, 50, 60), Relief::Relax);
        assert_eq!(relief(100, 100, 50, 60), Relief::ShrinkCache(40));
        assert_eq!(relief(200, 100, 50, 64), Relief::ShrinkAndSeal(4));
        assert_eq!(relief(200, 100, 0, 64), Relief::ShrinkAndSeal(0));
        assert_eq!(relief(1 << 40, u64::MAX, 0, 64), Relief::Relax);
    }
}
