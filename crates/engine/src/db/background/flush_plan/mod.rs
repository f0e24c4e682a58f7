//! Which shards to flush next: a pure decision over a family's sealed memtables.
//!
//! Rules (blueprint §1): a job takes a key range of one map, which is neighbouring shards that are
//! pending or empty. It takes them from the oldest memtable that has them, and from the following
//! memtables with the same map. For any key range, installs follow memtable order. So if nothing
//! blocks a memtable, it is one job and one edit of the manifest, regardless of the number of its
//! buckets. A memtable with records that no log has is flushed whole, by one job, so that its
//! installs are one edit. If a failed job has written a shard for several memtables, one job
//! installs it for all of them. Memtables that may rest at memory nodes are flushed by key ranges
//! instead ([`ranges`]).
//!
//! Cost: O(sealed memtables × buckets).

pub mod needs;
pub mod ranges;

use crate::bucket::BucketMap;
use crate::key::KeyRange;
use crate::sabotage::{Defect, has};

pub use crate::db::state::sealed::ShardState;

/// A sealed memtable as the decision sees it.
#[derive(Clone, Copy, Debug)]
pub struct SealedView<'a> {
    /// Map that cuts its keys into shards.
    pub map: &'a BucketMap,
    /// Progress of each shard of `map`.
    pub shards: &'a [ShardState],
    /// Whether the memtable has its filters and gets no more writes.
    pub ready: bool,
    /// Whether the memtable has records that no log has.
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

/// The next flush of a family: the same shards of a run of memtables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushPlan {
    /// Positions of the memtables in the queue: a contiguous run, oldest first.
    pub memtables: std::ops::Range<usize>,
    /// Positions of the shards that are taken from each memtable.
    pub shards: std::ops::Range<usize>,
    /// The keys that these shards hold.
    pub range: KeyRange,
}

/// The next flush of a family. It touches no key of `held`, and takes a shard of `written` from all
/// of its memtables or from none. `None` if nothing may be flushed now.
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
    let is_installed = |older: &SealedView<'_>| {
        older.map.buckets_of(range).all(|bucket| older.shards[bucket] == ShardState::Installed)
    };
    queue[..position].iter().all(is_installed) || has(Defect::InstallsOutOfOrder)
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

/// The longest run of `shards` from the first one on that can be flushed without tearing a written
/// shard. The tables of a written shard hold the records of all its memtables, so the job that
/// installs them must take all of these. `None` if there is no such job now.
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

/// The shards of the memtable at `position`, and the same shards of the younger memtables that
/// follow, as long as these are ready and have the same map. The maps are compared, because maps of
/// one epoch may differ ([`BucketMap::finer`]).
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
