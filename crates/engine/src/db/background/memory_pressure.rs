//! Memory pressure: frees memory when the memory budget is short.
//!
//! Caches shrink, memtables are flushed early, and writers are delayed (`crate::stall` with cause
//! `Budget`). No operation is aborted. Background workers apply the rule after every job and while
//! they are idle. It has two pure parts. [`relief`] compares the budget with the memory that is
//! charged to it. Freed memtable memory that is kept for reuse is given back first. Then the block
//! cache gives back the bytes over nine tenths of the budget, down to a sixteenth of its capacity.
//! A cache that holds less may grow to that share. The rest must come from memtables. [`victims`]
//! chooses the active memtables to seal, of any size:
//!
//! 1. Memory of sealed memtables counts as freed, because a flush is about to free it.
//! 2. A memtable counts with all memory that it holds, also the unused part of its slabs, because
//!    the flush frees that too. Slabs in a region with a slab in use are an exception: they are
//!    free for other memtables, and stay charged.
//! 3. Memtables are taken by memory × age, the age limited to [`AGE_MS_MAX`], until enough is
//!    freed. If a memtable fills slowly, it takes longest until its family has to be flushed again.
//!    So this order makes the fewest files for the memory that it frees. Memtables that are not
//!    needed after all are left out again, smallest first. If more than [`FEW_SEALS`] remain and
//!    the largest memtable frees enough alone, only that memtable is sealed.
//! 4. All active memtables together keep a [`KEPT_SHARE`]th of the budget. Below that, other memory
//!    fills the budget, and sealing them would only make files of a few records.
//! 5. One call seals at most [`SEALS_MAX`] memtables, the largest of those chosen. The worker that
//!    flushes one of them calls again.
//!
//! These rules do not flood L0 with tiny files. By rules 1 and 4, a byte is sealed only after
//! another byte was written. So in the long run the number of flushed bytes is that of written
//! bytes. A family whose memtable was sealed early does not qualify again before it has grown old
//! or large. Each early flush adds at most one L0 file to each bucket that it has records in, and
//! the usual trigger compacts them.
//!
//! Memory of flushed memtables is kept for the next ones while a load goes on. It is given back to
//! the system when the load pauses.
//!
//! Invariants: the rules 1 to 5.
//!
//! Thread-safety: any thread may call [`relieve_pressure`], without locks.
//! Failure: a busy commit lock postpones the seals to the next call.
//! Cost: without pressure a few atomic loads for each job; under pressure one pass over the
//! families.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::PRESSED_SHARE;
use crate::db::background::compaction_pick;
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::memtable::ShardHome;
use crate::db::write::{WritePath, seal, stalling};
use crate::lock_order::Order;

/// Divisor of the budget: active memtables together keep at least this share of it.
const KEPT_SHARE: u64 = 16;
/// Age, in milliseconds, from which on a memtable counts as idle. Among idle memtables the age does
/// not matter.
const AGE_MS_MAX: u64 = 60_000;
/// Largest number of memtables that are sealed instead of a single large one.
const FEW_SEALS: usize = 16;
/// Largest number of memtables that one call seals, because it holds the commit lock meanwhile.
const SEALS_MAX: usize = 64;
/// Longest wait for the commit lock. The lock may be held by an ingestion that waits for a flush,
/// so a background worker must not wait for it without end.
const LOCK_WAIT: Duration = Duration::from_millis(20);

/// Memory that is charged to the budget, and memory that could be given back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryUse {
    /// Bytes charged in all.
    pub(crate) used_bytes: u64,
    /// Bytes of the budget.
    pub(crate) limit_bytes: u64,
    /// Bytes of freed memtables that are kept for reuse.
    pub(crate) spare_bytes: u64,
    /// Bytes in the block cache.
    pub(crate) cached_bytes: u64,
    /// Bytes that the block cache may hold without pressure.
    pub(crate) cache_capacity_bytes: u64,
}

impl MemoryUse {
    /// The present use of a database.
    pub(crate) fn of(context: &Context, view: &ReadView, writes: &WritePath) -> Self {
        Self {
            used_bytes: context.budget().total_bytes(),
            limit_bytes: context.budget().limit_bytes(),
            spare_bytes: writes.slabs().free_bytes(),
            cached_bytes: view.cache().usage_bytes(),
            cache_capacity_bytes: view.cache().capacity_bytes(),
        }
    }
}

/// Measures against memory pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relief {
    /// There is room: the cache may use all of its capacity.
    Relax,
    /// Memory must be freed: all spare memory, and more from the cache and memtables.
    Shrink {
        /// Bytes that the cache may hold.
        cache_bytes: u64,
        /// Bytes that must come from memtables.
        seal_bytes: u64,
    },
}

/// Decides how much memory the parts of the engine give back.
pub(crate) fn relief(memory: &MemoryUse) -> Relief {
    let target = memory.limit_bytes / 10 * 9;
    let over = memory.used_bytes.saturating_sub(target);
    if over == 0 {
        return Relief::Relax;
    }
    let over = over.saturating_sub(memory.spare_bytes);
    let share = memory.cache_capacity_bytes / PRESSED_SHARE;
    let from_cache = over.min(memory.cached_bytes.saturating_sub(share));
    let cache_bytes = (memory.cached_bytes - from_cache).max(share);
    Relief::Shrink { cache_bytes, seal_bytes: over - from_cache }
}

/// An active memtable as the decision sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveView {
    /// Memory that it holds and that its flush frees.
    pub(crate) memory_bytes: u64,
    /// Time since it was made, in milliseconds.
    pub(crate) age_ms: u64,
    /// Whether its family may have one more sealed memtable.
    pub(crate) may_seal: bool,
}

impl ActiveView {
    fn score(&self) -> u128 {
        u128::from(self.memory_bytes) * u128::from(self.age_ms.clamp(1, AGE_MS_MAX))
    }
}

/// Positions of the memtables to seal so that `seal_bytes` are freed, by the rules of the module.
/// Flushes of sealed memtables are about to free `leaving_bytes`.
pub(crate) fn victims(
    seal_bytes: u64,
    leaving_bytes: u64,
    limit_bytes: u64,
    actives: &[ActiveView],
) -> Vec<usize> {
    let held = actives.iter().fold(0, |sum: u64, active| sum.saturating_add(active.memory_bytes));
    let dispensable = held.saturating_sub(limit_bytes / KEPT_SHARE);
    let wanted = seal_bytes.saturating_sub(leaving_bytes).min(dispensable);
    let is_candidate = |at: &usize| actives[*at].may_seal && actives[*at].memory_bytes > 0;
    let mut order: Vec<usize> = (0..actives.len()).filter(is_candidate).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(actives[at].score()));
    let memory = |at: usize| actives[at].memory_bytes;
    let mut freed = 0u64;
    let mut chosen = Vec::new();
    for at in order {
        if freed >= wanted {
            break;
        }
        freed = freed.saturating_add(memory(at));
        chosen.push(at);
    }
    chosen.sort_by_key(|&at| memory(at));
    chosen.retain(|&at| {
        let without = freed - memory(at);
        let is_needed = without < wanted;
        if !is_needed {
            freed = without;
        }
        is_needed
    });
    if chosen.len() > FEW_SEALS {
        let suffices = |at: &usize| actives[*at].memory_bytes >= wanted;
        let largest = (0..actives.len()).filter(is_candidate).max_by_key(|&at| memory(at));
        if let Some(largest) = largest.filter(suffices) {
            return vec![largest];
        }
    }
    chosen.reverse();
    chosen.truncate(SEALS_MAX);
    chosen
}

/// Compares the budget with its use and acts; called by background workers, without locks.
pub(crate) fn relieve_pressure(db: &DbInner) {
    if !compaction_pick::is_load_running(&db.context, &db.pacing, &db.jobs)
        && db.writes.slabs().free_bytes() > 0
    {
        db.writes.slabs().trim();
    }
    match relief(&MemoryUse::of(&db.context, &db.view, &db.writes)) {
        Relief::Relax => return db.view.cache().relax(),
        Relief::Shrink { cache_bytes, seal_bytes } => {
            db.writes.slabs().trim();
            db.view.cache().shrink_to(cache_bytes);
            if seal_bytes > 0 && !db.context.options().read_only {
                seal_for_memory(db, seal_bytes);
            }
        }
    }
    for family in db.view.live_families() {
        stalling::recompute_stall(db.stall_owners(), &family);
    }
}

fn seal_for_memory(db: &DbInner, seal_bytes: u64) {
    let families = db.view.live_families();
    let now_ns = db.context.clock().now_ns();
    let mut leaving_bytes = 0;
    let actives: Vec<ActiveView> = families
        .iter()
        .map(|family| {
            let current = family.current.load();
            let sealed = current.immutables.iter().flat_map(|sealed| sealed.homes());
            leaving_bytes += sealed.map(ShardHome::memory_bytes).sum::<u64>();
            ActiveView {
                memory_bytes: current.active.memory_bytes(),
                age_ms: now_ns.saturating_sub(current.active.born_ns()) / 1_000_000,
                may_seal: seal::may_seal(family),
            }
        })
        .collect();
    let chosen = victims(seal_bytes, leaving_bytes, db.context.budget().limit_bytes(), &actives);
    if chosen.is_empty() {
        return;
    }
    let Some(mut commit) = db.writes.committer().try_lock_for(LOCK_WAIT, Order::none()) else {
        return;
    };
    for at in chosen {
        let family: &Arc<Family> = &families[at];
        // A writer may have sealed the memtable meanwhile.
        if seal::may_seal(family) {
            seal::seal_active(db, &mut commit, family);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1 << 10;
    const MB: u64 = 1 << 20;

    fn idle(memory_bytes: u64) -> ActiveView {
        ActiveView { memory_bytes, age_ms: AGE_MS_MAX, may_seal: true }
    }

    fn busy(memory_bytes: u64) -> ActiveView {
        ActiveView { memory_bytes, age_ms: 100, may_seal: true }
    }

    fn freed(chosen: &[usize], actives: &[ActiveView]) -> u64 {
        chosen.iter().map(|&at| actives[at].memory_bytes).sum()
    }

    #[test]
    fn relief_takes_spare_memory_then_cache_then_memtables() {
        let at = |used_bytes, spare_bytes, cached_bytes| {
            relief(&MemoryUse {
                used_bytes,
                limit_bytes: 100,
                spare_bytes,
                cached_bytes,
                cache_capacity_bytes: 64,
            })
        };
        assert_eq!(at(90, 20, 50), Relief::Relax);
        assert_eq!(at(100, 20, 50), Relief::Shrink { cache_bytes: 50, seal_bytes: 0 });
        assert_eq!(at(100, 4, 50), Relief::Shrink { cache_bytes: 44, seal_bytes: 0 });
        assert_eq!(at(200, 0, 50), Relief::Shrink { cache_bytes: 4, seal_bytes: 64 });
        // A cache with less than its share may fill it. A capacity of 0 would make it forget the
        // keys of evicted blocks.
        assert_eq!(at(200, 0, 2), Relief::Shrink { cache_bytes: 4, seal_bytes: 110 });
        assert_eq!(at(200, 0, 0), Relief::Shrink { cache_bytes: 4, seal_bytes: 110 });
        let unlimited =
            MemoryUse { used_bytes: 1 << 40, limit_bytes: u64::MAX, ..Default::default() };
        assert_eq!(relief(&unlimited), Relief::Relax);
    }

    #[test]
    fn many_small_memtables_are_sealed_until_enough_is_freed() {
        let actives = vec![idle(240 * KB); 400];
        let chosen = victims(8 * MB, 0, 32 * MB, &actives);
        assert_eq!(chosen.len(), 35);
        assert!(freed(&chosen, &actives) >= 8 * MB);
        // One call seals no more than its bound, even if more memory must be freed.
        assert_eq!(victims(64 * MB, 0, 32 * MB, &actives).len(), SEALS_MAX);
    }

    #[test]
    fn one_large_memtable_is_sealed_alone() {
        let mut actives = vec![idle(240 * KB); 100];
        actives.push(busy(20 * MB));
        assert_eq!(victims(15 * MB, 0, 64 * MB, &actives), [100]);
    }

    #[test]
    fn idle_memtables_go_before_one_that_is_being_filled() {
        let mut actives = vec![idle(240 * KB); 100];
        actives.push(busy(2 * MB));
        let chosen = victims(MB, 0, 32 * MB, &actives);
        assert_eq!(chosen.len(), 5);
        assert!(!chosen.contains(&100));
    }

    #[test]
    fn memory_of_sealed_memtables_counts_as_freed() {
        let actives = vec![idle(240 * KB); 100];
        assert_eq!(victims(8 * MB, 8 * MB, 32 * MB, &actives), Vec::<usize>::new());
        assert_eq!(victims(8 * MB, 7 * MB, 32 * MB, &actives).len(), 5);
    }

    #[test]
    fn memtables_keep_a_share_that_is_not_sealed() {
        // Other memory fills the budget, so sealing these memtables would free very little.
        let actives = vec![idle(24 * KB); 40];
        assert_eq!(victims(100 * MB, 0, 32 * MB, &actives), Vec::<usize>::new());
        let actives = vec![idle(24 * KB); 120];
        let chosen = victims(100 * MB, 0, 32 * MB, &actives);
        let left = 120 * 24 * KB - freed(&chosen, &actives);
        assert!((2 * MB - 24 * KB..=2 * MB).contains(&left), "{left}");
    }

    #[test]
    fn families_with_too_many_sealed_memtables_are_passed_over() {
        let full = ActiveView { may_seal: false, ..idle(20 * MB) };
        let empty = idle(0);
        assert_eq!(victims(MB, 0, 32 * MB, &[full, empty, busy(3 * MB)]), [2]);
    }
}
