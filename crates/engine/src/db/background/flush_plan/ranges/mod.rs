//! Which key ranges of a family's sealed memtables can be one flush, if shards may rest at memory
//! nodes (O³-LSM §4.4). The decisions are pure.
//!
//! A flush takes a range of keys that is whole shards in each of its memtables. The range begins as
//! a shard of the oldest memtable that has records there. It grows to the boundaries of the shards
//! of the next memtable, and so on, until nothing changes. So flushes merge the same keys of many
//! memtables, although their maps differ. Boundaries are compared, and not epochs, because maps of
//! one epoch may differ (see `BucketMap::finer`).
//!
//! Invariants:
//! 1. Every older memtable of the family is installed in the range of a plan. So for any key range,
//!    installs follow memtable order.
//! 2. In the memtables that a plan takes, no shard in its range runs or is lost, and all these
//!    memtables are ready. So at most one job is in flight for a key.
//! 3. A memtable with records that no log has is a plan of its own, over all keys.
//! 4. A range has at most twice the number of buckets that its first shard lies in.
//!
//! Cost: O(sealed memtables × shards). Each growth of a range visits all memtables that the range
//! has taken.

use std::ops::Range;

use archipelago_base::FileNo;

use crate::bucket::BucketMap;
use crate::db::background::flush_plan::SealedView;
use crate::db::state::sealed::ShardState;
use crate::key::KeyRange;
use crate::sabotage::{Defect, has};

/// Largest number of buckets of a range, as a multiple of those of its first shard.
const GROWTH_MAX: usize = 2;

/// Figures of one shard of a sealed memtable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardFigures {
    /// Bytes of its records as stored.
    pub data_bytes: u64,
    /// Bytes of its image; 0 unless it is at a memory node and has no copy here.
    pub apart_bytes: u64,
    /// Bytes of memory of the parts that stay here of a shard at a node.
    pub kept_bytes: u64,
    /// Oldest log segment that it pins.
    pub oldest_log: Option<FileNo>,
    /// Whether a caller waits for its flush, or it cannot rest.
    pub is_wanted: bool,
}

/// A sealed memtable whose shards may rest at memory nodes.
#[derive(Clone, Copy, Debug)]
pub struct RestingView<'a> {
    /// Number of the memtable; larger is younger.
    pub id: u64,
    /// Its map and the progress of its shards.
    pub sealed: SealedView<'a>,
    /// Figures of each shard.
    pub figures: &'a [ShardFigures],
}

impl RestingView<'_> {
    /// The shards with keys of `range` whose records are in no table.
    pub(super) fn waiting_in(&self, range: &KeyRange) -> impl Iterator<Item = usize> {
        self.waiting_of(self.sealed.map.buckets_of(range))
    }

    /// The shards among `shards` whose records are in no table.
    fn waiting_of(&self, shards: Range<usize>) -> impl Iterator<Item = usize> {
        shards.filter(|shard| self.sealed.shards[*shard] != ShardState::Installed)
    }

    fn is_apart(&self, shard: usize) -> bool {
        self.figures[shard].apart_bytes > 0
    }

    /// Whether a waiting shard has keys in `range` and keys outside of it. `shards` are all shards
    /// with keys of the range.
    fn reaches_out_of(&self, range: &KeyRange, shards: &Range<usize>) -> bool {
        let map = self.sealed.map;
        let ends_beyond = |shard: usize| match (map.end(shard), &range.end) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(own), Some(end)) => own > end.as_slice(),
        };
        self.waiting_of(shards.clone())
            .any(|shard| map.start(shard) < &range.start[..] || ends_beyond(shard))
    }
}

/// Whether a flush may take shards that are here together with shards that are at nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeRule {
    /// A flush may mix them, because every flush runs in this process.
    Mixed,
    /// A flush must not mix them, because a flush whose shards are all at nodes may run elsewhere.
    Alike,
}

/// Limits of the plans of a family.
#[derive(Clone, Copy, Debug)]
pub struct JoinBounds<'a> {
    /// The present bucket map.
    pub map: &'a BucketMap,
    /// Keys that no flush may touch.
    pub held: Option<&'a KeyRange>,
    /// Bytes of images that a flush over several memtables may have.
    pub fetch_bytes_max: u64,
    /// Which homes may be in one flush.
    pub homes: HomeRule,
}

impl JoinBounds<'_> {
    fn is_held(&self, range: &KeyRange) -> bool {
        self.held.is_some_and(|held| held.overlaps(range))
    }
}

/// A flush of a key range: shards of a run of memtables in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangePlan {
    /// Positions in the queue: a contiguous run, oldest first.
    pub memtables: Range<usize>,
    /// Positions of the shards that are taken from each memtable. Installed shards among them may
    /// have keys outside of the range.
    pub shards: Vec<Range<usize>>,
    /// The keys that are flushed.
    pub range: KeyRange,
    /// Whether the plan takes one memtable alone, which has records that no log has.
    pub is_unlogged: bool,
    /// Whether all of its shards are at memory nodes.
    pub is_apart: bool,
}

/// Every flush that could begin now. Plans may overlap, so each is valid only until another one
/// begins.
#[must_use]
pub fn range_plans(queue: &[RestingView<'_>], bounds: &JoinBounds<'_>) -> Vec<RangePlan> {
    let mut plans: Vec<RangePlan> = Vec::new();
    // Keys whose records in older memtables are all installed.
    let mut free = vec![KeyRange::all()];
    for (position, resting) in queue.iter().enumerate() {
        if free.is_empty() || !resting.sealed.ready {
            break;
        }
        if resting.sealed.unlogged {
            plans.extend(plan_unlogged(queue, position, &free, bounds));
        } else {
            for shard in resting.waiting_in(&KeyRange::all()) {
                let range = resting.sealed.map.range(shard);
                let is_taken =
                    || plans.last().is_some_and(|last: &RangePlan| contains(&last.range, &range));
                let is_pending = resting.sealed.shards[shard] == ShardState::Pending;
                if is_pending && is_free(&free, &range) && !bounds.is_held(&range) && !is_taken() {
                    plans.push(join(queue, position, shard, bounds));
                }
            }
        }
        if has(Defect::InstallsOutOfOrder) {
            continue;
        }
        for shard in resting.waiting_in(&KeyRange::all()) {
            take_from(&mut free, &resting.sealed.map.range(shard));
        }
    }
    plans
}

/// The plan of a memtable with records that no log has. It is flushed alone, after all older
/// memtables.
fn plan_unlogged(
    queue: &[RestingView<'_>],
    position: usize,
    free: &[KeyRange],
    bounds: &JoinBounds<'_>,
) -> Option<RangePlan> {
    let states = queue[position].sealed.shards;
    let is_idle = !states.contains(&ShardState::Running) && states.contains(&ShardState::Pending);
    let is_oldest = is_free(free, &KeyRange::all());
    (is_idle && is_oldest && bounds.held.is_none()).then(|| RangePlan {
        memtables: position..position + 1,
        shards: Some(0..states.len()).into_iter().collect(),
        range: KeyRange::all(),
        is_unlogged: true,
        is_apart: false,
    })
}

/// The plan that begins with the shard `shard` of the memtable at `position`. It takes as many
/// younger memtables as the bounds allow, and its range is whole shards in each of them.
fn join(
    queue: &[RestingView<'_>],
    position: usize,
    shard: usize,
    bounds: &JoinBounds<'_>,
) -> RangePlan {
    let first = &queue[position];
    let plan = RangePlan {
        memtables: position..position + 1,
        shards: Some(shard..shard + 1).into_iter().collect(),
        range: first.sealed.map.range(shard),
        is_unlogged: false,
        is_apart: first.is_apart(shard),
    };
    let buckets_max = GROWTH_MAX * bounds.map.buckets_of(&plan.range).len();
    let apart_bytes = first.figures[shard].apart_bytes;
    let mut joined = Joined { plan, apart_bytes, bounds, buckets_max };
    while joined.plan.memtables.end < queue.len() {
        if joined.take_next(queue).is_none() {
            break;
        }
    }
    joined.plan
}

/// A plan that grows by one memtable after another.
struct Joined<'a> {
    plan: RangePlan,
    /// Bytes of the images of its shards.
    apart_bytes: u64,
    bounds: &'a JoinBounds<'a>,
    buckets_max: usize,
}

impl Joined<'_> {
    /// Takes the next memtable. `None` if it must not take part. While the range does not grow,
    /// only that memtable is examined.
    fn take_next(&mut self, queue: &[RestingView<'_>]) -> Option<()> {
        let next = &queue[self.plan.memtables.end];
        if !next.sealed.ready || next.sealed.unlogged {
            return None;
        }
        let shards = next.sealed.map.buckets_of(&self.plan.range);
        if next.reaches_out_of(&self.plan.range, &shards) {
            return self.grow(queue);
        }
        let (apart_bytes, is_apart) = self.check(next, &shards)?;
        self.apart_bytes = self.within_bound(self.apart_bytes.saturating_add(apart_bytes))?;
        self.plan.is_apart &= is_apart;
        self.plan.memtables.end += 1;
        self.plan.shards.push(shards);
        Some(())
    }

    /// Takes the next memtable, whose shards make the range grow. `None` if the bounds do not allow
    /// it.
    fn grow(&mut self, queue: &[RestingView<'_>]) -> Option<()> {
        let memtables = self.plan.memtables.start..self.plan.memtables.end + 1;
        let taken = &queue[memtables.clone()];
        let range = whole_shards(taken, self.plan.range.clone());
        let mut older = queue[..memtables.start].iter();
        let is_blocked = older.any(|older| older.waiting_in(&range).next().is_some());
        let is_too_wide = self.bounds.map.buckets_of(&range).len() > self.buckets_max;
        if is_blocked || is_too_wide || self.bounds.is_held(&range) {
            return None;
        }
        let (mut apart_bytes, mut is_apart) = (0u64, true);
        let mut shards = Vec::with_capacity(taken.len());
        for resting in taken {
            let own = resting.sealed.map.buckets_of(&range);
            let (bytes, apart) = self.check(resting, &own)?;
            apart_bytes = apart_bytes.saturating_add(bytes);
            is_apart &= apart;
            shards.push(own);
        }
        self.apart_bytes = self.within_bound(apart_bytes)?;
        self.plan = RangePlan { memtables, shards, range, is_unlogged: false, is_apart };
        Some(())
    }

    /// Bytes of the images of the waiting shards among `shards`, and whether all of these are at
    /// memory nodes. `None` if one of them must not take part.
    fn check(&self, resting: &RestingView<'_>, shards: &Range<usize>) -> Option<(u64, bool)> {
        let (mut apart_bytes, mut is_apart) = (0u64, true);
        for shard in resting.waiting_of(shards.clone()) {
            let is_other = resting.is_apart(shard) != self.plan.is_apart;
            let is_running = resting.sealed.shards[shard] == ShardState::Running;
            if is_running || self.bounds.homes == HomeRule::Alike && is_other {
                return None;
            }
            apart_bytes = apart_bytes.saturating_add(resting.figures[shard].apart_bytes);
            is_apart &= resting.is_apart(shard);
        }
        Some((apart_bytes, is_apart))
    }

    /// The bytes themselves; `None` if they exceed the bound on images of one flush.
    fn within_bound(&self, apart_bytes: u64) -> Option<u64> {
        (apart_bytes <= self.bounds.fetch_bytes_max).then_some(apart_bytes)
    }
}

/// The smallest range that contains `range` and cuts through no waiting shard of `taken`.
fn whole_shards(taken: &[RestingView<'_>], mut range: KeyRange) -> KeyRange {
    loop {
        let mut wider = range.clone();
        for resting in taken {
            for shard in resting.waiting_in(&range) {
                wider = hull(wider, resting.sealed.map.range(shard));
            }
        }
        if wider == range {
            return range;
        }
        range = wider;
    }
}

fn hull(one: KeyRange, other: KeyRange) -> KeyRange {
    let end = match (one.end, other.end) {
        (Some(one), Some(other)) => Some(one.max(other)),
        _ => None,
    };
    KeyRange { start: one.start.min(other.start), end }
}

fn contains(outer: &KeyRange, inner: &KeyRange) -> bool {
    let ends_inside = match (&outer.end, &inner.end) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(outer), Some(inner)) => inner <= outer,
    };
    outer.start <= inner.start && ends_inside
}

fn is_free(free: &[KeyRange], range: &KeyRange) -> bool {
    free.iter().any(|gap| contains(gap, range))
}

/// Removes the keys of `taken` from disjoint ranges.
fn take_from(free: &mut Vec<KeyRange>, taken: &KeyRange) {
    if !free.iter().any(|gap| gap.overlaps(taken)) {
        return;
    }
    let mut left = Vec::with_capacity(free.len() + 1);
    for gap in free.drain(..) {
        if !gap.overlaps(taken) {
            left.push(gap);
            continue;
        }
        if gap.start < taken.start {
            left.push(KeyRange { start: gap.start, end: Some(taken.start.clone()) });
        }
        if let Some(end) = &taken.end
            && gap.end.as_ref().is_none_or(|gap_end| end < gap_end)
        {
            left.push(KeyRange { start: end.clone(), end: gap.end });
        }
    }
    *free = left;
}

#[cfg(test)]
mod tests;
