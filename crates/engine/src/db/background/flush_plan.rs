//! Which shards to flush next: a pure decision over a family's sealed memtables.
//!
//! Rules (blueprint §1): a job is a key range of one map, neighbouring shards that are due or
//! empty, taken oldest first from a prefix of the sealed memtables; for any key range, installs
//! follow memtable order. So a memtable that nothing else is in the way of is one job, one edit of
//! the manifest, however many buckets it fills. A memtable with records that no log has is flushed
//! whole, by one job, so that its installs are one edit. A shard that a failed job has written for
//! several memtables is installed for all of them by one job. A job holds the images of its shards
//! that are at memory nodes until it ends, so it takes further memtables only within a bound.
//! Cost: O(sealed memtables × buckets).

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
    /// Bytes that have to be fetched from memory nodes for each shard; empty if there are none.
    pub apart_bytes: &'a [u64],
    /// Whether it has its filters and gets no more writes.
    pub ready: bool,
    /// Whether it has records that no log has.
    pub unlogged: bool,
}

/// A shard that a failed job has written to tables ([`crate::db::background::written_shards`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenView {
    /// Positions of the memtables whose records the tables have.
    pub memtables: std::ops::Range<usize>,
    /// Position of the shard in the map of the memtables.
    pub shard: usize,
}

/// What a job may not tear, and what it may not exceed.
#[derive(Clone, Copy, Debug)]
pub struct PlanBounds<'a> {
    /// Shards that are installed with all of their memtables.
    pub written: &'a [WrittenView],
    /// Bytes that a job over several memtables fetches from memory nodes at most.
    pub fetch_bytes_max: u64,
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

/// The next flush of a family that touches no key of `held`, `None` if nothing may be flushed now.
#[must_use]
pub fn plan_flush(
    queue: &[SealedView<'_>],
    bounds: &PlanBounds<'_>,
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
            return plan_untorn(queue, bounds, position, first..last + 1);
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
/// its tables hold all of its memtables, so the job that installs them takes all of these. `None` if
/// there is no such job now.
fn plan_untorn(
    queue: &[SealedView<'_>],
    bounds: &PlanBounds<'_>,
    position: usize,
    mut shards: std::ops::Range<usize>,
) -> Option<FlushPlan> {
    loop {
        let plan = plan_shards(queue, position, shards.clone(), bounds.fetch_bytes_max);
        let is_torn = |written: &&WrittenView| {
            let (own, taken) = (&written.memtables, &plan.memtables);
            let overlaps = own.start < taken.end && taken.start < own.end;
            let is_whole = taken.start <= own.start && own.end <= taken.end;
            shards.contains(&written.shard) && overlaps && !is_whole
        };
        let torn = bounds.written.iter().filter(is_torn).map(|written| written.shard).min();
        shards = match torn {
            None => return Some(plan),
            Some(torn) if torn > shards.start => shards.start..torn,
            // Another job has neighbours of the shard in a younger memtable, or these are too many
            // bytes to be fetched. The shard itself has nothing to be fetched.
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
    fetch_bytes_max: u64,
) -> FlushPlan {
    let map = queue[position].map;
    let fetched = |sealed: &SealedView<'_>| {
        sealed.apart_bytes.get(shards.clone()).map_or(0, |apart| apart.iter().sum::<u64>())
    };
    let mut fetch_bytes = fetched(&queue[position]);
    let more = queue[position + 1..]
        .iter()
        .take_while(|next| {
            fetch_bytes += fetched(next);
            fetch_bytes <= fetch_bytes_max
                && next.ready
                && !next.unlogged
                && (std::ptr::eq(next.map, map) || next.map == map)
                && next.shards[shards.clone()].iter().all(|state| *state != ShardState::Running)
        })
        .count();
    FlushPlan { memtables: position..position + 1 + more, range: map.hull(&shards), shards }
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;

    use super::*;
    use ShardState::{Installed, Pending, Running};

    const FREE: PlanBounds<'_> = PlanBounds { written: &[], fetch_bytes_max: u64::MAX };

    fn bounds(written: &[WrittenView]) -> PlanBounds<'_> {
        PlanBounds { written, ..FREE }
    }

    fn map(epoch: u64, boundaries: &[&str]) -> BucketMap {
        let boundaries = boundaries.iter().map(|b| b.as_bytes().to_vec()).collect();
        BucketMap::new(Epoch(epoch), boundaries).expect("valid")
    }

    fn view<'a>(map: &'a BucketMap, shards: &'a [ShardState]) -> SealedView<'a> {
        SealedView { map, shards, apart_bytes: &[], ready: true, unlogged: false }
    }

    #[test]
    fn the_same_shard_of_younger_memtables_goes_along() {
        let map = map(1, &["m"]);
        let queue = [
            view(&map, &[Running, Pending]),
            view(&map, &[Pending, Pending]),
            view(&map, &[Pending, Pending]),
        ];
        let plan = plan_flush(&queue, &FREE, None).expect("a plan");
        assert_eq!((plan.memtables, plan.shards), (0..3, 1..2));
        assert_eq!(plan.range, map.range(1));
    }

    #[test]
    fn neighbouring_shards_that_are_due_are_one_job() {
        let map = map(1, &["f", "m", "t"]);
        let whole = [view(&map, &[Pending; 4]), view(&map, &[Pending; 4])];
        let plan = plan_flush(&whole, &FREE, None).expect("a plan");
        assert_eq!((plan.memtables, plan.shards, plan.range), (0..2, 0..4, KeyRange::all()));
        // What runs is left out, and ends the run of neighbours.
        let torn = [view(&map, &[Installed, Pending, Pending, Running])];
        let plan = plan_flush(&torn, &FREE, None).expect("a plan");
        assert_eq!((plan.shards.clone(), plan.range), (1..3, map.hull(&(1..3))));
        // What is installed, or was empty, does not end it.
        let gaps = [view(&map, &[Installed, Pending, Installed, Pending])];
        assert_eq!(plan_flush(&gaps, &FREE, None).expect("a plan").shards, 1..4);
        let behind = [
            view(&map, &[Installed, Installed, Running, Installed]),
            view(&map, &[Pending, Pending, Installed, Pending]),
        ];
        assert_eq!(plan_flush(&behind, &FREE, None).expect("a plan").shards, 0..2);
        // A younger memtable goes along only if it is cut alike and none of the shards runs there.
        let running =
            [view(&map, &[Pending; 4]), view(&map, &[Pending, Pending, Running, Pending])];
        assert_eq!(plan_flush(&running, &FREE, None).expect("a plan").memtables, 0..1);
        let finer = map.finer(&[b"p".to_vec()]).expect("inside");
        let cut = [view(&map, &[Pending; 4]), view(&finer, &[Pending; 5])];
        assert_eq!(plan_flush(&cut, &FREE, None).expect("a plan").memtables, 0..1, "of one epoch");
    }

    #[test]
    fn written_shard_is_installed_for_all_of_its_memtables() {
        let map = map(1, &["f", "m"]);
        let written = |shard| [WrittenView { memtables: 0..3, shard }];
        let rebuilding = [
            view(&map, &[Pending; 3]),
            view(&map, &[Pending, Running, Pending]),
            view(&map, &[Pending; 3]),
        ];
        let plan = plan_flush(&rebuilding, &bounds(&written(0)), None).expect("a plan");
        assert_eq!((plan.memtables, plan.shards), (0..3, 0..1));
        assert_eq!(plan.range, map.range(0));
        // What comes before it goes without it.
        let plan = plan_flush(&rebuilding, &bounds(&written(2)), None).expect("a plan");
        assert_eq!((plan.memtables, plan.shards), (0..1, 0..2));
        let idle = [view(&map, &[Pending; 3]); 4];
        let plan = plan_flush(&idle, &bounds(&written(1)), None).expect("a plan");
        assert_eq!((plan.memtables, plan.shards), (0..4, 0..3));
        // A memtable that is not due is no reason to tear it.
        assert_eq!(plan_flush(&idle[..2], &bounds(&written(0)), None), None);
    }

    #[test]
    fn a_job_fetches_within_its_bound() {
        let map = map(1, &["m"]);
        let away = SealedView { apart_bytes: &[30, 20], ..view(&map, &[Pending, Pending]) };
        let queue = [away; 5];
        let plan = |fetch_bytes_max| {
            let bounds = PlanBounds { fetch_bytes_max, ..FREE };
            let plan = plan_flush(&queue, &bounds, None).expect("a plan");
            (plan.memtables, plan.shards)
        };
        assert_eq!(plan(u64::MAX), (0..5, 0..2));
        assert_eq!(plan(100), (0..2, 0..2));
        assert_eq!(plan(1), (0..1, 0..2), "one memtable in any case");
        // What is written is in no memory, and is installed whole.
        let here = SealedView { apart_bytes: &[0, 20], ..away };
        let written = [WrittenView { memtables: 0..3, shard: 0 }];
        let bounds = PlanBounds { written: &written, fetch_bytes_max: 40 };
        let plan = plan_flush(&[here, here, here, away], &bounds, None).expect("a plan");
        assert_eq!((plan.memtables, plan.shards), (0..4, 0..1));
    }

    #[test]
    fn a_younger_shard_waits_for_older_ones_of_another_epoch() {
        let (one, two) = (map(1, &[]), map(2, &["m"]));
        let running = [view(&one, &[Running]), view(&two, &[Pending, Pending])];
        assert_eq!(plan_flush(&running, &FREE, None), None);
        let pending = [view(&one, &[Pending]), view(&two, &[Pending, Pending])];
        assert_eq!(plan_flush(&pending, &FREE, None).expect("a plan").memtables, 0..1);
        let done = [view(&one, &[Installed]), view(&two, &[Pending, Pending])];
        assert_eq!(plan_flush(&done, &FREE, None).expect("a plan").memtables, 1..2);
    }

    #[test]
    fn unlogged_memtables_go_whole_and_alone() {
        let map = map(1, &["m"]);
        let mut second = view(&map, &[Pending, Installed]);
        second.unlogged = true;
        let queue = [view(&map, &[Pending, Installed]), second];
        assert_eq!(plan_flush(&queue, &FREE, None).expect("a plan").memtables, 0..1);
        let mut second = view(&map, &[Pending, Installed]);
        second.unlogged = true;
        let queue = [view(&map, &[Installed, Installed]), second];
        let plan = plan_flush(&queue, &FREE, None).expect("a plan");
        assert_eq!((plan.memtables, plan.shards, plan.range), (1..2, 0..2, KeyRange::all()));
    }

    #[test]
    fn what_is_held_waits_and_the_rest_goes_on() {
        let (one, two) = (map(1, &["m"]), map(2, &["f", "m"]));
        let queue = [view(&one, &[Pending, Pending]), view(&two, &[Pending, Pending, Pending])];
        let plan = plan_flush(&queue, &FREE, Some(&two.range(1))).expect("a plan");
        assert_eq!((plan.memtables, plan.shards), (0..1, 1..2));
        // Below "f" is not held, but the older memtable's shard is, which goes first.
        let queue = [view(&one, &[Pending, Installed]), view(&two, &[Pending, Pending, Pending])];
        let plan = plan_flush(&queue, &FREE, Some(&two.range(1))).expect("a plan");
        assert_eq!((plan.memtables, plan.shards), (1..2, 2..3));
        assert_eq!(plan_flush(&queue, &FREE, Some(&KeyRange::all())), None);
        let mut whole = view(&two, &[Pending, Pending, Pending]);
        whole.unlogged = true;
        assert_eq!(plan_flush(&[whole], &FREE, Some(&two.range(1))), None);
    }

    #[test]
    fn nothing_passes_a_memtable_that_is_not_ready() {
        let map = map(1, &["m"]);
        let mut first = view(&map, &[Pending, Pending]);
        first.ready = false;
        assert_eq!(plan_flush(&[first, view(&map, &[Pending, Pending])], &FREE, None), None);
    }
}
