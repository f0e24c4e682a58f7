//! Reads that need silent memory nodes end at one deadline, or are answered from elsewhere.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_base::{Error, ErrorKind};
use archipelago_engine::db::ReadOptions;
use archipelago_engine::stats::Ticker;

use super::world::{Change, KEYS, World, key};
use super::{Mood, Stall};

/// Longest time of a read.
const LIMIT: Duration = Duration::from_secs(10);

/// A database whose nodes do not answer from now on. Each request takes the time `each`, or what
/// the read has left.
fn silent(each: Duration, loses: bool) -> (World, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mut world = World::with(Change { clock: clock.clone(), ..Change::default() });
    world.send_away(4);
    world.store.hang_for(Stall { clock: clock.clone(), each, loses });
    (world, clock)
}

/// Time that passes on the clock during a call, and the result of the call.
fn timed<T>(clock: &ManualClock, call: impl FnOnce() -> T) -> (Duration, T) {
    let begin_ns = clock.now_ns();
    let result = call();
    (Duration::from_nanos(clock.now_ns() - begin_ns), result)
}

fn assert_late(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let text = error.to_string();
    assert!(text.contains("is at memory node") && text.contains("try again"), "{text}");
}

#[test]
fn look_ups_of_a_silent_node_end_at_their_deadline() {
    // With 6 s, the second request of a read has 4 s. With 60 s, the first one has 10 s.
    for each in [6, 60].map(Duration::from_secs) {
        let (world, clock) = silent(each, false);
        let mut busy = 0;
        for number in 0..KEYS {
            match timed(&clock, || world.db.get(&key(number))) {
                (taken, Ok(_)) => assert_eq!(taken, Duration::ZERO, "no node was asked"),
                (taken, Err(error)) => {
                    assert_eq!(taken, LIMIT, "key {number}");
                    assert_late(&error);
                    busy += 1;
                }
            }
        }
        assert!(busy > 0, "no key is away");
        let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
        let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let cf = world.db.default_family();
        let all = || world.db.multi_get(cf, &refs, &ReadOptions::default());
        let (taken, found) = timed(&clock, all);
        assert_eq!(taken, LIMIT, "a multi-get");
        assert_late(&found.expect_err("the nodes say nothing"));
    }
}

#[test]
fn each_move_of_an_iterator_has_one_deadline_over_all_nodes() {
    let (world, clock) = silent(Duration::from_secs(6), false);
    let cf = world.db.default_family();
    let mut iter = world.db.iter(cf, &ReadOptions::default()).unwrap();
    for _ in 0..2 {
        let (taken, ()) = timed(&clock, || iter.seek_to_first());
        assert_eq!(taken, LIMIT);
        assert_late(&iter.status().expect_err("the nodes say nothing"));
        let (taken, ()) = timed(&clock, || iter.seek_to_last());
        assert_eq!(taken, LIMIT);
        assert_late(&iter.status().expect_err("the nodes say nothing"));
    }
}

#[test]
fn move_over_deleted_keys_of_a_slow_node_goes_on_while_pages_arrive() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mood = Mood { nodes: 1, page_records: 1, ..Mood::default() };
    let mut world = World::with(Change { mood, clock: clock.clone(), ..Change::default() });
    world.send_away(4);
    for number in 0..50 {
        world.db.delete(&key(number)).unwrap();
        world.model.remove(&key(number));
    }
    let each = Duration::from_secs(6);
    world.store.slow_down(Stall { clock: clock.clone(), each, loses: false });
    let cf = world.db.default_family();
    let mut iter = world.db.iter(cf, &ReadOptions::default()).unwrap();
    let (taken, ()) = timed(&clock, || iter.seek_to_first());
    iter.status().unwrap();
    assert!(taken > LIMIT, "several pages take {taken:?}");
    assert_eq!(world.model.keys().next().map(Vec::as_slice), Some(iter.key()));
}

#[test]
fn read_of_a_node_that_is_lost_meanwhile_gets_the_rebuilt_records() {
    let (world, clock) = silent(Duration::from_secs(6), true);
    let mut waited = 0;
    for number in 0..KEYS {
        let (taken, found) = timed(&clock, || world.db.get(&key(number)));
        assert!(taken <= LIMIT, "{taken:?}");
        waited += u32::from(!taken.is_zero());
        let expected = world.model.get(&key(number)).map(Vec::as_slice);
        assert_eq!(found.unwrap().as_deref(), expected, "key {number}");
    }
    assert!(waited > 0 && world.ticker(Ticker::AwayShardsRebuilt) > 0);
    assert_eq!(world.ticker(Ticker::AwayReadsBusy), 0);
}
