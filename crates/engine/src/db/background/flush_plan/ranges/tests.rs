//! Plans of key ranges over sealed memtables.

use archipelago_base::Epoch;

use super::*;
use crate::db::background::flush_plan::needs::{NeededShards, needed_shards, range_figures};
use ShardState::{Installed, Pending, Running};

fn map(epoch: u64, boundaries: &[&str]) -> BucketMap {
    let boundaries = boundaries.iter().map(|b| b.as_bytes().to_vec()).collect();
    BucketMap::new(Epoch(epoch), boundaries).expect("valid")
}

/// A memtable: its map, the progress of its shards, and whether each is at a memory node.
struct Sealed {
    map: BucketMap,
    shards: Vec<ShardState>,
    figures: Vec<ShardFigures>,
    ready: bool,
    unlogged: bool,
}

/// A memtable whose shards have ten bytes each, with images of twelve bytes at a node.
fn sealed(boundaries: &[&str], shards: &[ShardState]) -> Sealed {
    let figures = ShardFigures {
        data_bytes: 10,
        apart_bytes: 12,
        kept_bytes: 1,
        oldest_log: None,
        is_wanted: false,
    };
    let figures = vec![figures; shards.len()];
    let shards = shards.to_vec();
    Sealed { map: map(1, boundaries), shards, figures, ready: true, unlogged: false }
}

impl Sealed {
    /// The same memtable with one shard in memory.
    fn here(mut self, shard: usize) -> Self {
        self.figures[shard].apart_bytes = 0;
        self
    }
}

fn views(queue: &[Sealed]) -> Vec<RestingView<'_>> {
    let numbered = queue.iter().enumerate();
    numbered
        .map(|(at, sealed)| RestingView {
            id: at as u64 * 2 + 3,
            sealed: SealedView {
                map: &sealed.map,
                shards: &sealed.shards,
                ready: sealed.ready,
                unlogged: sealed.unlogged,
            },
            figures: &sealed.figures,
        })
        .collect()
}

fn bounds(map: &BucketMap) -> JoinBounds<'_> {
    JoinBounds { map, held: None, fetch_bytes_max: u64::MAX, homes: HomeRule::Mixed }
}

/// Memtables, first key and end of each plan.
fn plans_of(queue: &[Sealed], bounds: &JoinBounds<'_>) -> Vec<(Range<usize>, String, String)> {
    let views = views(queue);
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
    let plans = range_plans(&views, bounds);
    for plan in &plans {
        check_plan(&views, plan);
    }
    let plan = |plan: RangePlan| {
        let end = plan.range.end.as_deref().map_or("~".to_owned(), text);
        (plan.memtables, text(&plan.range.start), end)
    };
    plans.into_iter().map(plan).collect()
}

/// Asserts the invariants of a plan.
fn check_plan(queue: &[RestingView<'_>], plan: &RangePlan) {
    assert_eq!(plan.memtables.len(), plan.shards.len());
    for older in &queue[..plan.memtables.start] {
        assert_eq!(older.waiting_in(&plan.range).count(), 0, "older records stay behind");
    }
    let mut taken_any = false;
    for (resting, shards) in queue[plan.memtables.clone()].iter().zip(&plan.shards) {
        assert!(resting.sealed.ready);
        for shard in resting.waiting_in(&plan.range) {
            assert!(shards.contains(&shard), "a record of the range is left out");
            assert!(contains(&plan.range, &resting.sealed.map.range(shard)), "a torn shard");
            assert_eq!(resting.sealed.shards[shard], Pending);
            taken_any = true;
        }
    }
    assert!(taken_any, "a plan of nothing");
}

fn plan(memtables: Range<usize>, start: &str, end: &str) -> (Range<usize>, String, String) {
    (memtables, start.to_owned(), end.to_owned())
}

#[test]
fn same_bucket_of_all_memtables_is_one_plan() {
    let queue = [(); 3].map(|()| sealed(&["m"], &[Pending, Pending]));
    let own = bounds(&queue[0].map);
    assert_eq!(plans_of(&queue, &own), [plan(0..3, "", "m"), plan(0..3, "m", "~")]);
}

#[test]
fn range_grows_to_the_boundaries_of_the_next_memtable() {
    // Two buckets were merged, or one was split.
    for (older, younger) in [(&["f", "m"][..], &["m"][..]), (&["m"][..], &["f", "m"][..])] {
        let of = |cuts: &[&str]| sealed(cuts, &vec![Pending; cuts.len() + 1]);
        let queue = [of(older), of(younger), of(older)];
        let newest = map(2, younger);
        let expected = [plan(0..3, "", "m"), plan(0..3, "m", "~")];
        assert_eq!(plans_of(&queue, &bounds(&newest)), expected, "{older:?} {younger:?}");
    }
    // Cuts within a bucket have moved, so both memtables have only the bucket in common.
    let queue = [sealed(&["c", "m", "p"], &[Pending; 4]), sealed(&["b", "m", "t"], &[Pending; 4])];
    let newest = map(2, &["m"]);
    let expected = [plan(0..2, "", "m"), plan(0..2, "m", "~")];
    assert_eq!(plans_of(&queue, &bounds(&newest)), expected);
}

#[test]
fn memtable_that_would_widen_too_far_is_left_out_with_younger_ones() {
    let cuts = ["c", "f", "m", "t"];
    let queue =
        [sealed(&cuts, &[Pending; 5]), sealed(&["t"], &[Pending; 2]), sealed(&cuts, &[Pending; 5])];
    let newest = map(3, &cuts);
    let expected = [
        plan(0..1, "", "c"),
        plan(0..1, "c", "f"),
        plan(0..1, "f", "m"),
        plan(0..1, "m", "t"),
        plan(0..3, "t", "~"),
    ];
    assert_eq!(plans_of(&queue, &bounds(&newest)), expected);
    // When the narrow shards are in tables, the wide one is flushed.
    let queue = [sealed(&["t"], &[Pending; 2]), sealed(&cuts, &[Pending; 5])];
    assert_eq!(plans_of(&queue, &bounds(&newest)), [plan(0..2, "", "t"), plan(0..2, "t", "~")]);
}

#[test]
fn running_shard_keeps_its_keys_for_its_job() {
    let queue = [
        sealed(&["f", "m"], &[Running, Pending, Installed]),
        sealed(&["f", "m"], &[Pending, Pending, Pending]),
        sealed(&["f", "m"], &[Pending, Running, Pending]),
    ];
    let own = bounds(&queue[0].map);
    assert_eq!(plans_of(&queue, &own), [plan(0..2, "f", "m"), plan(1..3, "m", "~")]);
    // If a part of a wider shard's keys runs in an older memtable, the wider shard waits.
    let queue = [sealed(&["f"], &[Running, Installed]), sealed(&[], &[Pending])];
    assert!(plans_of(&queue, &bounds(&map(2, &[]))).is_empty());
    // A range that would grow over running keys waits as well.
    let queue = [
        sealed(&["f"], &[Installed, Running]),
        sealed(&["f"], &[Pending, Pending]),
        sealed(&[], &[Pending]),
    ];
    assert_eq!(plans_of(&queue, &bounds(&map(2, &[]))), [plan(1..2, "", "f")]);
}

#[test]
fn nothing_passes_a_memtable_that_is_not_ready() {
    let mut queue = [(); 3].map(|()| sealed(&["m"], &[Pending, Pending]));
    queue[1].ready = false;
    let newest = map(1, &["m"]);
    assert_eq!(plans_of(&queue, &bounds(&newest)), [plan(0..1, "", "m"), plan(0..1, "m", "~")]);
    queue[0].ready = false;
    assert!(plans_of(&queue, &bounds(&newest)).is_empty());
}

#[test]
fn memtable_without_log_goes_whole_when_nothing_older_is_left() {
    let mut queue = [(); 3].map(|()| sealed(&["m"], &[Pending, Installed]));
    queue[1].unlogged = true;
    let newest = map(1, &["m"]);
    assert_eq!(plans_of(&queue, &bounds(&newest)), [plan(0..1, "", "m")]);
    let views_of = views(&queue);
    let plans = range_plans(&views_of, &bounds(&newest));
    let needs = NeededShards::default();
    assert!(range_figures(&views_of, &plans[0], &needs).is_wanted, "what is before it has to go");
    queue[0].shards = vec![Installed, Installed];
    assert_eq!(plans_of(&queue, &bounds(&newest)), [plan(1..2, "", "~")]);
    queue[0].shards = vec![Installed, Running];
    assert!(plans_of(&queue, &bounds(&newest)).is_empty());
}

#[test]
fn held_keys_are_not_touched() {
    let queue = [sealed(&["f", "m"], &[Pending; 3]), sealed(&["m"], &[Pending; 2])];
    let newest = map(2, &["m"]);
    let held = newest.range(1);
    let some = JoinBounds { held: Some(&held), ..bounds(&newest) };
    assert_eq!(plans_of(&queue, &some), [plan(0..2, "", "m")]);
    let held = queue[0].map.range(0);
    let some = JoinBounds { held: Some(&held), ..bounds(&newest) };
    let expected = [plan(0..1, "f", "m"), plan(0..2, "m", "~")];
    assert_eq!(plans_of(&queue, &some), expected, "the younger one would widen it");
}

#[test]
fn flush_that_runs_here_fetches_within_its_bound() {
    let queue = [(); 5].map(|()| sealed(&["m"], &[Pending, Installed]));
    let newest = map(1, &["m"]);
    let with = |fetch_bytes_max| {
        plans_of(&queue, &JoinBounds { fetch_bytes_max, ..bounds(&newest) })[0].0.clone()
    };
    assert_eq!(with(u64::MAX), 0..5);
    assert_eq!(with(47), 0..3);
    assert_eq!(with(1), 0..1, "one memtable in any case");
}

#[test]
fn flush_that_may_run_away_has_homes_of_one_kind() {
    let here = || sealed(&["m"], &[Pending, Pending]).here(0);
    let away = || sealed(&["m"], &[Pending, Pending]);
    let queue = [away(), away(), here()];
    let newest = map(1, &["m"]);
    let alike = JoinBounds { homes: HomeRule::Alike, ..bounds(&newest) };
    assert_eq!(plans_of(&queue, &alike), [plan(0..2, "", "m"), plan(0..3, "m", "~")]);
    let plans = range_plans(&views(&queue), &alike);
    assert!(plans.iter().all(|plan| plan.is_apart));
    let queue = [here(), away()];
    assert_eq!(plans_of(&queue, &alike), [plan(0..1, "", "m"), plan(0..2, "m", "~")]);
    assert_eq!(plans_of(&queue, &bounds(&newest))[0], plan(0..2, "", "m"));
    // A shard without records has no home.
    let mut queue = [away(), here(), away()];
    queue[1].shards[0] = Installed;
    assert_eq!(plans_of(&queue, &alike)[0], plan(0..3, "", "m"));
}

#[test]
fn figures_count_what_the_plan_leaves_out() {
    let mut queue = [(); 3].map(|()| sealed(&["m"], &[Pending, Pending]));
    queue[2].shards[0] = Running;
    queue[1].figures[0].oldest_log = Some(FileNo(7));
    queue[2].figures[0].oldest_log = Some(FileNo(5));
    let views = views(&queue);
    let newest = map(1, &["m"]);
    let plans = range_plans(&views, &bounds(&newest));
    assert_eq!(plans[0].memtables, 0..2);
    let needs = NeededShards::default();
    let figures = range_figures(&views, &plans[0], &needs);
    assert_eq!((figures.oldest_memtable, figures.data_bytes, figures.apart_bytes), (3, 30, 36));
    assert_eq!((figures.oldest_log, figures.is_wanted), (Some(FileNo(5)), false));
    let figures = range_figures(&views, &plans[1], &needs);
    assert_eq!((figures.data_bytes, figures.oldest_log), (30, None));
}

/// Whether each plan is needed, if a memtable has `full_bytes`: wanted, full or not.
fn needs_of(queue: &[Sealed], bounds: &JoinBounds<'_>, full_bytes: u64) -> Vec<(bool, bool)> {
    let views = views(queue);
    let needs = needed_shards(&views, bounds.map, full_bytes);
    let plans = range_plans(&views, bounds);
    let figures = plans.iter().map(|plan| range_figures(&views, plan, &needs));
    figures.map(|figures| (figures.is_wanted, figures.is_full)).collect()
}

#[test]
fn what_is_in_the_way_of_a_needed_shard_is_needed() {
    let cuts = ["b", "d", "f", "h", "k", "m"];
    let newest = map(9, &cuts);
    // The oldest memtable has keys from k on. A merged shard lies between it and the third one,
    // whose shard from d on cannot rest.
    let mut oldest = sealed(&["k", "m"], &[Installed, Pending, Installed]);
    oldest.figures[1].data_bytes = 1;
    let merged = sealed(&["d", "m"], &[Installed, Pending, Installed]);
    let mut stuck = sealed(&["d", "f"], &[Installed, Pending, Installed]);
    stuck.figures[1].is_wanted = true;
    let mut queue = [oldest, merged, stuck];
    assert_eq!(plans_of(&queue, &bounds(&newest)), [plan(0..1, "k", "m")]);
    assert_eq!(needs_of(&queue, &bounds(&newest), 1000), [(true, false)]);
    queue[2].figures[1].is_wanted = false;
    assert_eq!(needs_of(&queue, &bounds(&newest), 1000), [(false, false)]);
    // The keys from d on have ten bytes, and a share of ten bytes over four buckets.
    assert_eq!(needs_of(&queue, &bounds(&newest), 12), [(false, true)]);
    assert_eq!(needs_of(&queue, &bounds(&newest), 13), [(false, false)]);
    queue[2].shards[1] = Running;
    assert_eq!(needs_of(&queue, &bounds(&newest), 12), [(false, false)], "it is on its way");
}

/// Boundaries of the present map of random queues.
const CUTS: [&str; 8] = ["b", "d", "f", "h", "k", "m", "p", "s"];

/// A memtable with some of [`CUTS`]. On average one shard in `one_in` is installed.
fn random_memtable(rng: &mut fastrand::Rng, one_in: u32) -> Sealed {
    let own: Vec<&str> = CUTS.into_iter().filter(|_| rng.u32(..3) > 0).collect();
    let states = (0..=own.len()).map(|_| if rng.u32(..one_in) == 0 { Installed } else { Pending });
    sealed(&own, &states.collect::<Vec<_>>())
}

#[test]
fn flushes_of_needed_ranges_alone_reach_a_wanted_shard() {
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut queue: Vec<Sealed> = Vec::new();
        for _ in 0..rng.usize(2..7) {
            queue.push(random_memtable(&mut rng, 3));
        }
        let wanted = rng.usize(..queue.len());
        let shard = rng.usize(..queue[wanted].shards.len());
        queue[wanted].shards[shard] = Pending;
        queue[wanted].figures[shard].is_wanted = true;
        let newest = map(9, &CUTS);
        let bounds = JoinBounds { homes: HomeRule::Alike, fetch_bytes_max: 30, ..bounds(&newest) };
        while queue[wanted].shards[shard] != Installed {
            let views = views(&queue);
            let plans = range_plans(&views, &bounds);
            let needs = needed_shards(&views, &newest, u64::MAX);
            let is_due = |plan: &RangePlan| range_figures(&views, plan, &needs).is_wanted;
            let plan = plans.into_iter().find(is_due);
            let plan = plan.unwrap_or_else(|| panic!("seed {seed}: it waits for ever"));
            for (sealed, shards) in queue[plan.memtables].iter_mut().zip(plan.shards) {
                sealed.shards[shards].fill(Installed);
            }
        }
    }
}

/// Whether two plans have waiting shards with keys in common.
fn shards_overlap(queue: &[Sealed], one: &RangePlan, other: &RangePlan) -> bool {
    let waiting = |plan: &RangePlan| {
        let taken = queue[plan.memtables.clone()].iter().zip(&plan.shards);
        let ranges = taken.flat_map(|(sealed, shards)| {
            let waits = |shard: &usize| sealed.shards[*shard] != Installed;
            shards.clone().filter(waits).map(|shard| sealed.map.range(shard))
        });
        ranges.collect::<Vec<KeyRange>>()
    };
    let others = waiting(other);
    waiting(one).iter().any(|range| others.iter().any(|other| other.overlaps(range)))
}

#[test]
fn random_queues_keep_the_order_of_installs() {
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut queue: Vec<Sealed> = Vec::new();
        for _ in 0..rng.usize(1..6) {
            let mut next = random_memtable(&mut rng, 4);
            next.unlogged = rng.u32(..12) == 0;
            for shard in 0..next.shards.len() {
                if rng.u32(..3) == 0 {
                    next.figures[shard].apart_bytes = 0;
                }
            }
            queue.push(next);
        }
        let newest = map(9, &CUTS);
        let homes = if rng.bool() { HomeRule::Mixed } else { HomeRule::Alike };
        // Flushes run and end in any order; the plans' invariants hold at each step.
        let mut running: Vec<RangePlan> = Vec::new();
        for step in 0.. {
            assert!(step < 1000, "seed {seed}: it does not end");
            let fetch_bytes_max = if rng.bool() { 40 } else { u64::MAX };
            let bounds = JoinBounds { homes, fetch_bytes_max, ..bounds(&newest) };
            let views = views(&queue);
            let plans = range_plans(&views, &bounds);
            plans.iter().for_each(|plan| check_plan(&views, plan));
            let may_end = !running.is_empty() && rng.bool();
            let (plan, state) = match rng.choice(plans).filter(|_| !may_end) {
                Some(plan) => {
                    let other = running.iter().find(|other| {
                        // The range of a memtable without a log has keys that are installed.
                        let is_exact = !plan.is_unlogged && !other.is_unlogged;
                        is_exact && other.range.overlaps(&plan.range)
                            || shards_overlap(&queue, other, &plan)
                    });
                    assert!(other.is_none(), "seed {seed}: two jobs for a key");
                    running.push(plan.clone());
                    (plan, Running)
                }
                None if running.is_empty() => break,
                None => (running.swap_remove(rng.usize(..running.len())), Installed),
            };
            for (sealed, shards) in queue[plan.memtables].iter_mut().zip(plan.shards) {
                for shard in &mut sealed.shards[shards] {
                    *shard = if *shard == Installed { Installed } else { state };
                }
            }
        }
        let is_done = |sealed: &Sealed| sealed.shards.iter().all(|shard| *shard == Installed);
        assert!(queue.iter().all(is_done), "seed {seed}: something is never flushed");
    }
}
