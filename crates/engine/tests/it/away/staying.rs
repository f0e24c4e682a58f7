//! The newest sealed memtables stay in memory as long as the store wants it and memory suffices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::clock::{Clock, ManualClock};
use archipelago_engine::db::ReadOptions;
use archipelago_engine::stats::Ticker;

use super::world::{Change, World, key};
use super::{Mood, Stays};

/// Bytes of the budget of a test that makes memory short.
const BUDGET_BYTES: u64 = 64 << 20;

/// Number of sealed memtables of which no shard is at a node.
fn staying(world: &World) -> usize {
    let sealed =
        world.db.property(world.db.default_family(), "archipelago.num-immutable-mem-table");
    let away: BTreeSet<u64> = world.store.held().iter().map(|id| id.memtable).collect();
    sealed.unwrap().parse::<usize>().unwrap() - away.len()
}

fn with(stays: Stays) -> (World, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mood = Mood { stays, ..Mood::default() };
    (World::with(Change { mood, clock: clock.clone(), ..Change::default() }), clock)
}

/// Puts keys in turn until `memtables` more memtables were sealed. Returns the newest keys, newest
/// first.
fn fill(world: &mut World, memtables: usize, what: &str) -> Vec<u32> {
    let mut newest = Vec::new();
    for number in 0..memtables as u32 * 140 {
        world.put(number % 400, what);
        newest.insert(0, number % 400);
        if number % 20 == 0 {
            world.settle();
        }
    }
    world.settle();
    newest
}

#[test]
fn reads_of_young_memtables_keep_them_local() {
    let (mut world, clock) = with(Stays::Share(0.1));
    assert_eq!((staying(&world), world.store.did().staying), (0, 0));
    for round in 0..6 {
        let newest = fill(&mut world, 2, &format!("r{round}"));
        for number in newest.iter().take(200) {
            world.db.get(&key(*number)).unwrap();
        }
        clock.advance(Duration::from_secs(1));
        world.settle();
    }
    let did = world.store.did();
    assert!(did.staying >= 1, "{did:?}");
    let newest = fill(&mut world, 2, "last");
    assert_eq!(staying(&world), world.store.did().staying);
    let lookups = world.store.did().lookups;
    for number in newest.iter().take(100) {
        world.db.get(&key(*number)).unwrap();
    }
    assert_eq!(world.store.did().lookups, lookups, "no node is asked for young records");
    world.check();
    // Without reads they leave.
    for _ in 0..40 {
        clock.advance(Duration::from_secs(9));
        world.settle();
    }
    assert_eq!((staying(&world), world.store.did().staying), (0, 0));
    world.check();
}

#[test]
fn reads_are_reported_once_a_second() {
    let (mut world, clock) = with(Stays::Share(0.1));
    fill(&mut world, 3, "a");
    let read = |world: &World| {
        (0..200).for_each(|number| drop(world.db.get(&key(number)).unwrap()));
    };
    for round in 0..10 {
        read(&world);
        fill(&mut world, 1, &format!("r{round}"));
    }
    assert!(world.store.did().windows <= clock.now_ns() / 1_000_000_000);
    for _ in 0..3 {
        let windows = world.store.did().windows;
        clock.advance(Duration::from_secs(1));
        read(&world);
        world.settle();
        world.settle();
        assert_eq!(world.store.did().windows, windows + 1);
    }
}

#[test]
fn batches_count_as_reads_of_their_keys() {
    let (mut world, clock) = with(Stays::Share(0.1));
    for round in 0..6 {
        let newest = fill(&mut world, 2, &format!("r{round}"));
        let keys: Vec<Vec<u8>> = newest.iter().take(200).map(|number| key(*number)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let cf = world.db.default_family();
        world.db.multi_get(cf, &keys, &ReadOptions::default()).unwrap();
        clock.advance(Duration::from_secs(1));
        world.settle();
    }
    let did = world.store.did();
    assert!(did.staying >= 1, "{did:?}");
}

#[test]
fn seeks_of_iterators_count_as_reads_of_all_memtables() {
    let (mut world, clock) = with(Stays::Through(0.1));
    for round in 0..6 {
        fill(&mut world, 2, &format!("r{round}"));
        let cf = world.db.default_family();
        let mut iter = world.db.iter(cf, &ReadOptions::default()).unwrap();
        for number in 0..200 {
            iter.seek(&key(number));
            assert!(iter.valid());
        }
        drop(iter);
        clock.advance(Duration::from_secs(1));
        world.settle();
    }
    let did = world.store.did();
    assert!(did.staying >= 1, "{did:?}");
    world.check();
    // Without seeks they leave.
    for _ in 0..40 {
        clock.advance(Duration::from_secs(9));
        world.settle();
    }
    assert_eq!((staying(&world), world.store.did().staying), (0, 0));
    world.check();
}

#[test]
fn memtable_leaves_when_it_is_older_than_the_newest() {
    let (mut world, _clock) = with(Stays::Count(2));
    // The limit of two write buffers does not count memtables that stay. A write that had to wait
    // would fail, because the test steps the background work.
    for round in 0..8 {
        let sent = world.store.did().sent;
        fill(&mut world, 2, &format!("r{round}"));
        // The first memtable cuts the bucket map, and is flushed here.
        assert!(round == 0 || staying(&world) == 2, "round {round}: {}", staying(&world));
        assert!(round == 0 || world.store.did().sent > sent, "round {round}");
    }
    world.check();
    // A flush takes all of them.
    world.db.flush(world.db.default_family()).unwrap();
    assert_eq!((staying(&world), world.store.held().len()), (0, 0));
    world.check();
}

#[test]
fn memtables_leave_when_memory_is_short() {
    let (mut world, _clock) = with(Stays::Count(2));
    let budget = ByteBudget::new(BUDGET_BYTES);
    world.budget = Some(Arc::clone(&budget));
    world.reopen(false);
    fill(&mut world, 4, "a");
    assert_eq!(staying(&world), 2);
    let hold_to = |percent: u64| {
        let more = (BUDGET_BYTES / 100 * percent).saturating_sub(budget.total_bytes());
        budget.hold(MemoryClass::Job, more)
    };
    let others = hold_to(85);
    world.settle();
    assert_eq!(staying(&world), 2, "writers do not need the memory yet");
    drop(others);
    let others = hold_to(96);
    let fetched = world.ticker(Ticker::AwayShardsFetched);
    world.settle();
    assert_eq!(staying(&world), 0);
    assert_eq!(world.ticker(Ticker::AwayStaysEnded), 1);
    assert_eq!(world.ticker(Ticker::AwayShardsFetched), fetched, "they were sent");
    fill(&mut world, 2, "b");
    assert_eq!(staying(&world), 0, "memory is still short");
    world.check();
    drop(others);
    fill(&mut world, 3, "c");
    assert_eq!(staying(&world), 2);
    assert_eq!(world.ticker(Ticker::AwayStaysEnded), 1);
    world.check();
}

#[test]
fn staying_memtables_need_no_room_at_nodes() {
    let (mut world, _clock) = with(Stays::Count(2));
    fill(&mut world, 3, "a");
    world.store.set_mood(|mood| mood.no_room = true);
    fill(&mut world, 3, "b");
    assert_eq!(staying(&world), 2, "older memtables are flushed");
    world.check();
}
