//! Which shards to flush next: a pure decision over a family's sealed memtables.
//!
//! Rules (blueprint §1): a job is a key range of one map, neighbouring shards that are due or
//! empty, taken oldest first from a prefix of the sealed memtables; for any key range, installs
//! follow memtable order. So a memtable that nothing else is in the way of is one job, one edit of
//! the manifest, however many buckets it fills. A memtable with records that no log has is flushed
//! whole, by one job, so that its installs are one edit. A shard that a failed job has written for
//! several memtables is installed for all of them by one job. Memtables that may rest at memory
//! nodes are flushed by key ranges instead ([`ranges`]).
//! Cost: O(sealed memtables × buckets).

pub mod needs;
pub mod ranges;

use crate::bucket::BucketMap;
use crate::key::KeyRange;

pub use crate::db::state::jobs::ShardState;

/// A sealed memtable as the decision sees it.
#[derive(Clone, Copy, Debug)]
pub struct SealedView<'a> {
    /// Map that cuts its keys into shards.
    pub map: &'a BucketMap,
    /// Progress of each shard of `map`.
    pub shards: &'a [ShardState],
    /// Whether it has its filters and gets no more writes.
    pub ready: bool,
    /// Whether it has records that no log has.
    pub unlogged: bool,
}

/// A shard that a failed job has written to tables (`crate::db::background::written_shards`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenView {
    /// Positions of the memtables whose records the tables have.
    pub memtables: std::ops::Range<usize>,
    /// Position of the shard in the map of the memtables.
    pub shard: usize,
}

/// What to flush: for each of `memtables` (positions in the queue, oldest first) the shards
/// `shards`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushPlan {
    /// Positions in the queue: a contiguous run, oldest first.
    pub memtables: std::ops::Range<usize>,
    /// Shards of each of them.
    pub shards: std::ops::Range<usize>,
    /// The keys that these shards hold.
    pub range: KeyRange,
}

/// The next flush of a family that touches no key of `held` and tears no shard of `written`; `None`
/// if nothing may be flushed now.
#[must_use]
pub fn plan_flush(
    queue: &[SealedView<'_>],
    written: &[WrittenView],
    held: Option<&KeyRange>,
) -> Option<FlushPlan> {
    let is_held = |range: &KeyRange| held.is_some_and(|held| held.overlaps(range));
    for (position, sealed) in queue.iter().enumerate() {
        if !sealed.ready {
            return None;
        }
        if sealed.unlogged {
            if let Some(plan) = plan_whole(queue, position).filter(|plan| !is_held(&plan.range)) {
                return Some(plan);
            }
            continue;
        }
        let may_go = |shard: usize| {
            let range = sealed.map.range(shard);
            sealed.shards[shard] == ShardState::Pending
                && !is_held(&range)
                && is_oldest(queue, position, &range)
        };
        // A shard that has nothing to flush does not end a run of neighbours.
        let may_pass = |shard: usize| {
            let range = sealed.map.range(shard);
            sealed.shards[shard] == ShardState::Installed
                && !is_held(&range)
                && is_oldest(queue, position, &range)
        };
        let all = 0..sealed.shards.len();
        if let Some(first) = all.clone().find(|shard| may_go(*shard)) {
            let run = (first..all.end).take_while(|shard| may_go(*shard) || may_pass(*shard));
            let last = run.filter(|shard| may_go(*shard)).last().unwrap_or(first);
            return plan_untorn(queue, written, position, first..last + 1);
        }
    }
    None
}

/// Whether everything older in `range` is installed.
fn is_oldest(queue: &[SealedView<'_>], position: usize, range: &KeyRange) -> bool {
    queue[..position].iter().all(|older| {
        older.map.buckets_of(range).all(|bucket| older.shards[bucket] == ShardState::Installed)
    })
}

fn plan_whole(queue: &[SealedView<'_>], position: usize) -> Option<FlushPlan> {
    let sealed = &queue[position];
    let idle = sealed.shards.iter().all(|shard| *shard != ShardState::Running);
    let pending = sealed.shards.contains(&ShardState::Pending);
    (idle && pending && is_oldest(queue, position, &KeyRange::all())).then(|| FlushPlan {
        memtables: position..position + 1,
        shards: 0..sealed.shards.len(),
        range: KeyRange::all(),
    })
}

/// As many of the shards, from the first one on, as can be flushed without tearing a written shard:
/// its tables hold all of its memtables, so the job that installs them takes all of these. `None`
/// if there is no such job now.
fn plan_untorn(
    queue: &[SealedView<'_>],
    written: &[WrittenView],
    position: usize,
    mut shards: std::ops::Range<usize>,
) -> Option<FlushPlan> {
    loop {
        let plan = plan_shards(queue, position, shards.clone());
        let is_torn = |written: &&WrittenView| {
            let (own, taken) = (&written.memtables, &plan.memtables);
            let overlaps = own.start < taken.end && taken.start < own.end;
            let is_whole = taken.start <= own.start && own.end <= taken.end;
            shards.contains(&written.shard) && overlaps && !is_whole
        };
        let torn = written.iter().filter(is_torn).map(|written| written.shard).min();
        shards = match torn {
            None => return Some(plan),
            Some(torn) if torn > shards.start => shards.start..torn,
            // Another job has neighbours of the shard in a younger memtable.
            Some(torn) if shards.len() > 1 => torn..torn + 1,
            Some(_) => return None,
        };
    }
}

/// The shards and the same shards of as many younger memtables of the same map as are ready. (Maps
/// of one epoch may differ: see [`BucketMap::finer`].)
fn plan_shards(
    queue: &[SealedView<'_>],
    position: usize,
    shards: std::ops::Range<usize>,
) -> FlushPlan {
    let map = queue[position].map;
    let more = queue[position + 1..]
        .iter()
        .take_while(|next| {
            next.ready
                && !next.unlogged
                && (std::ptr::eq(next.map, map) || next.map == map)
                && next.shards[shards.clone()].iter().all(|state| *state != ShardState::Running)
        })
        .count();
    FlushPlan { memtables: position..position + 1 + more, range: map.hull(&shards), shards }
}

#[cfg(test)]
mod tests;
