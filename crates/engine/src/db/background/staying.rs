//! Decides how many of the newest sealed memtables stay in memory although memory nodes could take
//! them (O³-LSM §5.3; decision 0092).
//!
//! The store decides the number ([`ShardStore::staying`](crate::remote::ShardStore::staying)), at
//! most once a second, from figures of the engine: the share of the reads that the sealed memtables
//! of each age answer ([`StayFigures`](crate::db::state::away::StayFigures)), and the block reads
//! that staying memtables would cost. A read is a look-up or a seek of an iterator.
//!
//! The model of block reads ([`StayModel`]): memory is one budget. The block cache gives back what
//! exceeds nine tenths of it ([`memory_pressure`]). So with `L` staying memtables the cache has
//! `c(L) = min(capacity, room - bytes of the L newest memtables)`, where `room` is nine tenths of
//! the budget without all other memory, one memtable in transfer and one that fills. Without a
//! limit on memory, `room` is the capacity of the cache. Around the present size `c` the misses of
//! a read, `m`, follow a power law, `m(L) = m · (c / c(L))^a`. The exponent comes from the share
//! `r` of misses that return within a window of `g` parts of the cache
//! ([`crate::cache::CacheMeter`]): a cache larger by `g` would have `m · (1 - r)`, so
//! `a = -ln(1 - r) / ln(1 + g)`. A cache that evicts nothing has `r = 0`, and then memory that
//! nothing else uses costs no misses. A number that would leave the cache less than a sixteenth of
//! its capacity is excluded.
//!
//! Invariants:
//! 1. Memtables that stay make no writer wait. They take nothing of the space that the limit on
//!    memtables gives (`Family::stay_allowance`), and are no backlog of stall decisions.
//! 2. A memtable that has ceased to stay is late by the transfers of those before it. The allowance
//!    therefore falls as these memtables leave ([`allowance`]). So a family has no fewer free
//!    memtables than without staying ones. There is one exception: while memory is short, the
//!    allowance also falls by one for each window of measurements, because the budget then slows
//!    writers in any case.
//! 3. If memory is short, staying memtables leave immediately and at full speed, the oldest first.
//!    Memory is short if the cache cannot give back what the next memtable will need, or if the
//!    budget is spent to nineteen twentieths. It ceases to be short when the next two memtables fit
//!    and the budget is spent to nine tenths at most.
//! 4. A flush of a full key range leaves staying memtables out, as if they were active, and does
//!    not count their bytes ([`left_out`]). They take part in flushes that a caller waits for. They
//!    also do if one of them cannot rest, or pins a log segment that must be removed. While images
//!    are given back to nodes that other databases share, they do if one of them has shards at a
//!    node. Such shards left before the number of staying memtables rose.
//!
//! Thread-safety: [`staying_now`] runs under the jobs lock. The rest is pure.
//! Failure: none.
//! Cost: a few atomic loads and a pass over the sealed memtables for each pick; once a second a
//! pass over the counters.

use std::sync::atomic::Ordering;

use archipelago_base::FileNo;

use crate::db::background::memory_pressure::{self, MemoryUse, Relief};
use crate::db::read::{ReadView, Reader};
use crate::db::state::away::{AGES, ReadTotals, StayAverages, StoreLink};
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::JobState;
use crate::db::state::memtable::ShardHome;
use crate::db::state::observers::Observers;
use crate::db::state::sealed::{FlushTracker, Sealed, ShardState};
use crate::db::write::WritePath;
use crate::remote::SealedReads;
use crate::stats::Ticker;

/// Divisor of the capacity of the block cache: the smallest cache that the model permits.
const CACHE_SHARE_MIN: u64 = 16;
/// Largest share of returning misses that the model uses.
const RETURNED_MAX: f64 = 0.5;
/// Smallest growth of the cache, as a part of it, for which returning misses count.
const GROWTH_MIN: f64 = 1.0 / 256.0;
/// Largest exponent of the misses.
const EXPONENT_MAX: f64 = 2.0;

/// The block cache and staying memtables in one budget.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StayModel {
    /// Bytes that the block cache and staying memtables may have together.
    pub(crate) room_bytes: u64,
    /// Bytes that the block cache may have without pressure.
    pub(crate) capacity_bytes: u64,
    /// Bytes that the block cache may have now.
    pub(crate) present_bytes: u64,
    /// Blocks that a read gets from storage now.
    pub(crate) misses: f64,
    /// Share of these blocks that a cache larger by `growth` would have.
    pub(crate) returned: f64,
    /// Growth of the cache for which `returned` was measured, as a part of it.
    pub(crate) growth: f64,
}

impl StayModel {
    /// Exponent of the misses as a power of the size of the cache.
    fn exponent(&self) -> f64 {
        let returned = self.returned.clamp(0.0, RETURNED_MAX);
        let exponent = -(1.0 - returned).ln() / self.growth.max(GROWTH_MIN).ln_1p();
        exponent.clamp(0.0, EXPONENT_MAX)
    }

    /// Blocks that a read would get from storage if memtables of these bytes stay. Infinite if
    /// memory has no room for them.
    pub(crate) fn misses_with(&self, staying_bytes: u64) -> f64 {
        let least = (self.capacity_bytes / CACHE_SHARE_MIN).max(1);
        let room = self.room_bytes.saturating_sub(staying_bytes).min(self.capacity_bytes.max(1));
        if room < least && staying_bytes > 0 {
            return f64::INFINITY;
        }
        let proportion = self.present_bytes.max(least) as f64 / room.max(least) as f64;
        self.misses * proportion.powf(self.exponent())
    }
}

/// Number of the newest memtables of a queue that flushes leave out: the newest ones, at most
/// `staying`, of which none is wanted and none pins a log segment up to `excess_log`. `is_wanted`
/// gets the position of a memtable.
pub(crate) fn left_out(
    tracker: &FlushTracker,
    staying: usize,
    excess_log: Option<FileNo>,
    is_wanted: impl Fn(usize) -> bool,
) -> usize {
    let pins = |sealed: &Sealed| {
        let pinned =
            sealed.info().pinned_log(|shard| sealed.shards()[shard] != ShardState::Installed);
        pinned.zip(excess_log).is_some_and(|(pinned, excess)| pinned <= excess)
    };
    let newest_first = tracker.queue().iter().enumerate().rev().take(staying);
    newest_first.take_while(|(position, sealed)| !is_wanted(*position) && !pins(sealed)).count()
}

/// Number of memtables that are in memory in any case: those that writers seal while one is being
/// sent, without that one. Speeds are in bytes a second; 0 is unknown.
fn least_staying(fill_bytes_per_s: u64, link_bytes_per_s: u64) -> usize {
    match link_bytes_per_s {
        0 => 0,
        link => (fill_bytes_per_s.div_ceil(link).saturating_sub(1)).min(AGES as u64) as usize,
    }
}

/// Number of the newest sealed memtables that do not count against the limit on memtables. `before`
/// is the number before, `here` that of the sealed memtables with shards in memory, and `staying`
/// that of those that stay. If it `must_fall`, it is at least one less than before.
fn allowance(before: usize, here: usize, staying: usize, must_fall: bool) -> usize {
    before.saturating_sub(usize::from(must_fall)).min(here).max(staying)
}

/// Whether staying memtables must leave, because memory is short. Writers may fill a memtable of
/// `growth_bytes` before the next decision. `is_suspended` says whether memtables had to leave
/// before.
fn is_memory_short(memory: &MemoryUse, growth_bytes: u64, is_suspended: bool) -> bool {
    // After a shortage two memtables must fit, so that the next seal does not cause another one.
    let (part, memtables) = if is_suspended { (18, 2) } else { (19, 1) };
    let growth_bytes = growth_bytes.saturating_mul(memtables);
    let grown = MemoryUse { used_bytes: memory.used_bytes.saturating_add(growth_bytes), ..*memory };
    let must_seal = |relief| matches!(relief, Relief::Shrink { seal_bytes: 1.., .. });
    memory.used_bytes > memory.limit_bytes / 20 * part || must_seal(memory_pressure::relief(&grown))
}

/// Number of the newest sealed memtables of each family that stay in memory now. Decides again if a
/// window of measurements has ended.
pub(crate) fn staying_now(
    reader: Reader<'_>,
    writes: &WritePath,
    state: &JobState,
    link: &StoreLink,
) -> usize {
    let now_ns = reader.context.clock().now_ns();
    let window = link.stay_figures().end_window(now_ns, || totals(reader.observers, reader.view));
    if let Some(averages) = &window {
        decide(reader, writes, state, link, averages);
    }
    let (wanted, before) = (link.staying(), link.staying_now());
    let is_limited = wanted > 0 && reader.context.budget().limit_bytes() != u64::MAX;
    let is_short = is_limited && {
        let growth = growth_bytes(reader.context, reader.view, state);
        is_memory_short(&MemoryUse::of(reader.context, reader.view, writes), growth, before == 0)
    };
    let count = if is_short { 0 } else { wanted };
    if count != before {
        link.set_staying_now(count);
    }
    if is_short && before > 0 {
        reader.observers.stats().add(Ticker::AwayStaysEnded, 1);
    }
    let must_fall = is_short && window.is_some();
    for (cf, tracker) in state.flushes() {
        let Some(family) = reader.view.family(*cf) else { continue };
        let here = tracker.queue().iter().filter(|sealed| sealed.view().is_here()).count();
        let before = family.stay_allowance();
        set_allowance(&family, allowance(before, here, count, must_fall));
    }
    count
}

/// Bytes of the largest memtable that writers fill.
fn growth_bytes(context: &Context, view: &ReadView, state: &JobState) -> u64 {
    let families = state.flushes().keys().filter_map(|cf| view.family(*cf));
    families.map(|family| context.memtable_bytes_max(&family.options)).max().unwrap_or(0)
}

fn set_allowance(family: &Family, next: usize) {
    if next != family.stay_allowance() {
        family.stay_allowance.store(next, Ordering::Relaxed);
    }
}

/// Counters of the reads of a database.
fn totals(observers: &Observers, view: &ReadView) -> ReadTotals {
    let blocks = view.cache().meter().map(|meter| meter.figures()).unwrap_or_default();
    let stats = observers.stats();
    let written_bytes = stats.get(Ticker::UserBytesWritten);
    let reads = stats.get(Ticker::Gets).saturating_add(stats.get(Ticker::Seeks));
    ReadTotals { reads, written_bytes, blocks }
}

/// Asks the store how many memtables should stay.
fn decide(
    reader: Reader<'_>,
    writes: &WritePath,
    state: &JobState,
    link: &StoreLink,
    averages: &StayAverages,
) {
    let by_age = bytes_by_age(state);
    let blocks = totals(reader.observers, reader.view).blocks;
    let model =
        model_of(reader, writes, state, averages, by_age.iter().copied().max().unwrap_or(0));
    let mut staying_bytes = 0u64;
    let mut misses = vec![model.misses_with(0)];
    for bytes in &by_age {
        staying_bytes = staying_bytes.saturating_add(*bytes);
        misses.push(model.misses_with(staying_bytes));
    }
    let reads = SealedReads {
        answered: &averages.answered[..by_age.len()],
        misses: &misses,
        least: least_staying(averages.fill_bytes_per_s, link.room().link_bytes_per_s),
        local_ns: averages.local_ns,
        storage_ns: blocks.read_ns as f64,
    };
    link.set_staying(link.store().staying(Some(&reads)));
}

/// The model of the present state. A memtable has at most `memtable_bytes`. Room for one in
/// transfer and for one that fills is left.
fn model_of(
    reader: Reader<'_>,
    writes: &WritePath,
    state: &JobState,
    averages: &StayAverages,
    memtable_bytes: u64,
) -> StayModel {
    let memory = MemoryUse::of(reader.context, reader.view, writes);
    let sealed = state.flushes().values().flat_map(FlushTracker::queue);
    let here_bytes: u64 = sealed.map(here_bytes).sum();
    let other = memory.used_bytes.saturating_sub(memory.cached_bytes);
    let (room_bytes, present_bytes) = match memory.limit_bytes {
        u64::MAX => (memory.cache_capacity_bytes, memory.cache_capacity_bytes),
        limit => {
            let target = limit / 10 * 9;
            let room = target.saturating_sub(other.saturating_sub(here_bytes));
            (room.saturating_sub(memtable_bytes.saturating_mul(2)), target.saturating_sub(other))
        }
    };
    StayModel {
        room_bytes,
        capacity_bytes: memory.cache_capacity_bytes,
        present_bytes: present_bytes.min(memory.cache_capacity_bytes),
        misses: averages.misses,
        returned: averages.returned,
        growth: totals(reader.observers, reader.view).blocks.window as f64
            / reader.view.cache().len().max(1) as f64,
    }
}

/// Bytes of the sealed memtables of all families by their age, newest first, as if all were in
/// memory.
fn bytes_by_age(state: &JobState) -> Vec<u64> {
    let mut by_age = Vec::new();
    for tracker in state.flushes().values() {
        for (age, sealed) in tracker.queue().iter().rev().take(AGES).enumerate() {
            by_age.resize(by_age.len().max(age + 1), 0);
            by_age[age] += match sealed.unready() {
                Some(memtable) => memtable.memory_bytes(),
                None => sealed.view().homes().map(local_bytes).sum(),
            };
        }
    }
    by_age
}

/// Bytes of memory of a shard, as if it were in memory.
fn local_bytes(home: &ShardHome) -> u64 {
    match home.here() {
        Some(shard) => shard.memory_bytes(),
        None => home.data_bytes(),
    }
}

/// Bytes of memory that a sealed memtable has here.
fn here_bytes(sealed: &Sealed) -> u64 {
    match sealed.unready() {
        Some(memtable) => memtable.memory_bytes(),
        None => sealed.view().homes().map(ShardHome::memory_bytes).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn model() -> StayModel {
        StayModel {
            room_bytes: 64 * MIB,
            capacity_bytes: 64 * MIB,
            present_bytes: 64 * MIB,
            misses: 0.5,
            returned: 0.04,
            growth: 1.0 / 16.0,
        }
    }

    #[test]
    fn smaller_cache_misses_as_a_power_law_says() {
        let model = model();
        assert!((model.misses_with(0) - 0.5).abs() < 1e-9);
        // A cache larger by a sixteenth would miss 4 % less, so the exponent is 0.673.
        let half = model.misses_with(32 * MIB);
        assert!((half - 0.5 * 2f64.powf(0.6734)).abs() < 1e-3, "{half}");
        assert!(model.misses_with(48 * MIB) > half);
        assert_eq!(model.misses_with(60 * MIB + 1), f64::INFINITY, "a sixteenth is left");
    }

    #[test]
    fn memory_that_nothing_uses_costs_no_misses() {
        let model = StayModel { room_bytes: 200 * MIB, ..model() };
        assert_eq!(model.misses_with(0), model.misses_with(136 * MIB));
        assert!(model.misses_with(137 * MIB) > 0.5);
        // A cache that evicts nothing may shrink.
        let idle = StayModel { returned: 0.0, ..self::model() };
        assert_eq!(idle.misses_with(32 * MIB), 0.5);
        assert_eq!(StayModel { misses: 0.0, ..self::model() }.misses_with(32 * MIB), 0.0);
    }

    #[test]
    fn model_without_measurements_stays_finite() {
        let empty = StayModel::default();
        assert_eq!(empty.misses_with(0), 0.0);
        assert_eq!(empty.misses_with(1), f64::INFINITY);
        let all_return = StayModel { returned: 1.0, growth: 0.0, ..model() };
        assert!(all_return.misses_with(32 * MIB) <= 0.5 * 4.0 + 1e-9);
    }

    #[test]
    fn transfers_that_do_not_keep_up_leave_memtables_here() {
        assert_eq!(least_staying(100, 0), 0, "the link was not measured");
        assert_eq!(least_staying(0, 100), 0);
        assert_eq!(least_staying(100, 100), 0, "one is being sent while the next one fills");
        assert_eq!(least_staying(101, 100), 1);
        assert_eq!(least_staying(350, 100), 3);
        assert_eq!(least_staying(u64::MAX, 1), AGES);
    }

    #[test]
    fn allowance_falls_as_the_late_memtables_leave() {
        assert_eq!(allowance(0, 0, 0, false), 0);
        assert_eq!(allowance(0, 1, 3, false), 3);
        assert_eq!(allowance(0, 5, 3, false), 3);
        // Two memtables cease to stay. Each counts when it has left.
        assert_eq!(allowance(3, 4, 1, false), 3);
        assert_eq!(allowance(3, 2, 1, false), 2);
        assert_eq!(allowance(3, 1, 1, false), 1);
        assert_eq!(allowance(3, 0, 0, false), 0);
        // Memory is short, and writers fill memtables as fast as these leave.
        assert_eq!(allowance(3, 9, 0, true), 2);
        assert_eq!(allowance(0, 9, 0, true), 0);
    }

    #[test]
    fn memory_is_short_before_writers_slow_down() {
        let memory = |used_bytes, cached_bytes| MemoryUse {
            used_bytes,
            limit_bytes: 1000,
            cached_bytes,
            cache_capacity_bytes: 320,
            ..MemoryUse::default()
        };
        assert!(!is_memory_short(&memory(900, 300), 0, false));
        assert!(!is_memory_short(&memory(940, 300), 0, false), "the cache gives memory back");
        assert!(is_memory_short(&memory(960, 300), 0, false));
        assert!(is_memory_short(&memory(920, 20), 0, false), "the cache has nothing left");
        // Memtables that had to leave wait for more room.
        assert!(is_memory_short(&memory(920, 300), 0, true));
        assert!(!is_memory_short(&memory(900, 300), 0, true));
        // The next memtable must fit as well.
        assert!(!is_memory_short(&memory(880, 60), 60, false));
        assert!(is_memory_short(&memory(880, 60), 61, false));
        assert!(is_memory_short(&memory(880, 60), 31, true), "the next two must fit");
        assert!(!is_memory_short(&memory(880, 60), 30, true));
    }
}
