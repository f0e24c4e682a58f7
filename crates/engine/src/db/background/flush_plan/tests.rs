//! Plans of flushes over sealed memtables.

use archipelago_base::Epoch;

use super::*;
use ShardState::{Installed, Pending, Running};

const FREE: &[WrittenView] = &[];

fn map(epoch: u64, boundaries: &[&str]) -> BucketMap {
    let boundaries = boundaries.iter().map(|b| b.as_bytes().to_vec()).collect();
    BucketMap::new(Epoch(epoch), boundaries).expect("valid")
}

fn view<'a>(map: &'a BucketMap, shards: &'a [ShardState]) -> SealedView<'a> {
    SealedView { map, shards, ready: true, unlogged: false }
}

#[test]
fn the_same_shard_of_younger_memtables_goes_along() {
    let map = map(1, &["m"]);
    let queue = [
        view(&map, &[Running, Pending]),
        view(&map, &[Pending, Pending]),
        view(&map, &[Pending, Pending]),
    ];
    let plan = plan_flush(&queue, FREE, None).expect("a plan");
    assert_eq!((plan.memtables, plan.shards), (0..3, 1..2));
    assert_eq!(plan.range, map.range(1));
}

#[test]
fn neighbouring_shards_that_are_due_are_one_job() {
    let map = map(1, &["f", "m", "t"]);
    let whole = [view(&map, &[Pending; 4]), view(&map, &[Pending; 4])];
    let plan = plan_flush(&whole, FREE, None).expect("a plan");
    assert_eq!((plan.memtables, plan.shards, plan.range), (0..2, 0..4, KeyRange::all()));
    // A running shard is left out, and ends the run of neighbours.
    let torn = [view(&map, &[Installed, Pending, Pending, Running])];
    let plan = plan_flush(&torn, FREE, None).expect("a plan");
    assert_eq!((plan.shards.clone(), plan.range), (1..3, map.hull(&(1..3))));
    // A shard that is installed or was empty does not end the run.
    let gaps = [view(&map, &[Installed, Pending, Installed, Pending])];
    assert_eq!(plan_flush(&gaps, FREE, None).expect("a plan").shards, 1..4);
    let behind = [
        view(&map, &[Installed, Installed, Running, Installed]),
        view(&map, &[Pending, Pending, Installed, Pending]),
    ];
    assert_eq!(plan_flush(&behind, FREE, None).expect("a plan").shards, 0..2);
    // A younger memtable is taken only if it has the same map and none of its shards here runs.
    let running = [view(&map, &[Pending; 4]), view(&map, &[Pending, Pending, Running, Pending])];
    assert_eq!(plan_flush(&running, FREE, None).expect("a plan").memtables, 0..1);
    let finer = map.finer(&[b"p".to_vec()]).expect("inside");
    let cut = [view(&map, &[Pending; 4]), view(&finer, &[Pending; 5])];
    assert_eq!(plan_flush(&cut, FREE, None).expect("a plan").memtables, 0..1, "of one epoch");
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
    let plan = plan_flush(&rebuilding, &written(0), None).expect("a plan");
    assert_eq!((plan.memtables, plan.shards), (0..3, 0..1));
    assert_eq!(plan.range, map.range(0));
    // Shards before the torn one are flushed without it.
    let plan = plan_flush(&rebuilding, &written(2), None).expect("a plan");
    assert_eq!((plan.memtables, plan.shards), (0..1, 0..2));
    let idle = [view(&map, &[Pending; 3]); 4];
    let plan = plan_flush(&idle, &written(1), None).expect("a plan");
    assert_eq!((plan.memtables, plan.shards), (0..4, 0..3));
    // A memtable that is missing in the queue is no reason to tear the shard.
    assert_eq!(plan_flush(&idle[..2], &written(0), None), None);
}

#[test]
fn a_younger_shard_waits_for_older_ones_of_another_epoch() {
    let (one, two) = (map(1, &[]), map(2, &["m"]));
    let running = [view(&one, &[Running]), view(&two, &[Pending, Pending])];
    assert_eq!(plan_flush(&running, FREE, None), None);
    let pending = [view(&one, &[Pending]), view(&two, &[Pending, Pending])];
    assert_eq!(plan_flush(&pending, FREE, None).expect("a plan").memtables, 0..1);
    let done = [view(&one, &[Installed]), view(&two, &[Pending, Pending])];
    assert_eq!(plan_flush(&done, FREE, None).expect("a plan").memtables, 1..2);
}

#[test]
fn unlogged_memtables_go_whole_and_alone() {
    let map = map(1, &["m"]);
    let mut second = view(&map, &[Pending, Installed]);
    second.unlogged = true;
    let queue = [view(&map, &[Pending, Installed]), second];
    assert_eq!(plan_flush(&queue, FREE, None).expect("a plan").memtables, 0..1);
    let mut second = view(&map, &[Pending, Installed]);
    second.unlogged = true;
    let queue = [view(&map, &[Installed, Installed]), second];
    let plan = plan_flush(&queue, FREE, None).expect("a plan");
    assert_eq!((plan.memtables, plan.shards, plan.range), (1..2, 0..2, KeyRange::all()));
}

#[test]
fn what_is_held_waits_and_the_rest_goes_on() {
    let (one, two) = (map(1, &["m"]), map(2, &["f", "m"]));
    let queue = [view(&one, &[Pending, Pending]), view(&two, &[Pending, Pending, Pending])];
    let plan = plan_flush(&queue, FREE, Some(&two.range(1))).expect("a plan");
    assert_eq!((plan.memtables, plan.shards), (0..1, 1..2));
    // Keys below "f" are not held. But the shard of the older memtable, which must be flushed
    // first, is held.
    let queue = [view(&one, &[Pending, Installed]), view(&two, &[Pending, Pending, Pending])];
    let plan = plan_flush(&queue, FREE, Some(&two.range(1))).expect("a plan");
    assert_eq!((plan.memtables, plan.shards), (1..2, 2..3));
    assert_eq!(plan_flush(&queue, FREE, Some(&KeyRange::all())), None);
    let mut whole = view(&two, &[Pending, Pending, Pending]);
    whole.unlogged = true;
    assert_eq!(plan_flush(&[whole], FREE, Some(&two.range(1))), None);
}

#[test]
fn nothing_passes_a_memtable_that_is_not_ready() {
    let map = map(1, &["m"]);
    let mut first = view(&map, &[Pending, Pending]);
    first.ready = false;
    assert_eq!(plan_flush(&[first, view(&map, &[Pending, Pending])], FREE, None), None);
}
