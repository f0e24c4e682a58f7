//! Flushes of shards that are at memory nodes, which an executor runs there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::{Error, ErrorKind};
use archipelago_engine::db::{BackgroundMode, FaultPoint, ReadOptions};
use archipelago_engine::options::{CfOptions, DbOptions};
use archipelago_engine::stats::Ticker;

use super::world::{Change, World, check_rows};
use super::{Mood, Whim};
use crate::support::small_db;

const SOUND: Whim = Whim::SOUND;

fn with_whim(mood: Mood, whim: Whim) -> Mood {
    Mood { whim: Some(whim), ..mood }
}

fn world(whim: Whim) -> World {
    World::with(Change { mood: with_whim(Mood::default(), whim), ..Change::default() })
}

/// Asserts that no pause of background work has begun.
fn assert_healthy(world: &World) {
    let health = world.db.property(world.db.default_family(), "archipelago.health").unwrap();
    assert!(health.starts_with("healthy"), "{health}");
    assert_eq!(world.ticker(Ticker::BackgroundErrors), 0);
}

#[test]
fn executor_flushes_what_is_away_and_nothing_is_fetched() {
    let mut world = world(SOUND);
    world.send_away(6);
    world.check();
    world.db.flush(world.db.default_family()).unwrap();
    let ran = world.executor().ran();
    assert!(ran.away > 0 && ran.memtables_max >= 6, "{ran:?}");
    assert_eq!(world.store.did().fetched, 0);
    assert!(world.store.held().is_empty(), "installed shards are released");
    assert_healthy(&world);
    world.check();
    world.reopen(true);
    world.check();
}

#[test]
fn keys_rest_until_they_have_the_bytes_of_a_memtable() {
    let mut world = world(SOUND);
    let before = world.ticker(Ticker::Flushes);
    for round in 0..20 {
        world.write(150, &format!("r{round}-"));
    }
    // Each of twelve buckets is flushed with the shards of about as many memtables.
    let ran = world.executor().ran();
    let flushes = world.ticker(Ticker::Flushes) - before;
    let memtables = world.store.held().iter().map(|id| id.memtable).max().unwrap();
    assert!(ran.away > 0 && ran.memtables_max >= 6, "{ran:?}");
    assert!(flushes < 2 * memtables, "{flushes} flushes of {memtables} memtables");
    assert_eq!(world.store.did().fetched, 0);
    world.check();
}

#[test]
fn full_nodes_make_the_largest_range_due() {
    let mood = Mood { limit_bytes: 60 << 10, whim: Some(SOUND), ..Mood::default() };
    let mut world = World::with(Change { mood, ..Change::default() });
    for round in 0..12 {
        world.write(150, &format!("r{round}-"));
    }
    assert!(world.store.did().held_max <= 60 << 10);
    assert!(world.executor().ran().away > 5, "{:?}", world.executor().ran());
    assert_healthy(&world);
    world.check();
}

#[test]
fn misbehaving_executor_costs_a_flush_here() {
    let one = |change: fn(&mut Whim)| {
        let mut whim = SOUND;
        change(&mut whim);
        whim
    };
    let whims = [
        one(|whim| whim.fail = 2),
        one(|whim| whim.corrupt = 2),
        one(|whim| whim.wrong = 2),
        one(|whim| whim.panic = 2),
        one(|whim| whim.silence = 2),
        one(|whim| (whim.fail, whim.wrong, whim.silence, whim.here) = (6, 6, 4, 4)),
        one(|whim| whim.silence = 1),
    ];
    for whim in whims {
        let mut world = world(whim);
        for round in 0..6 {
            world.write(150, &format!("r{round}-"));
            world.check();
        }
        world.db.flush(world.db.default_family()).unwrap();
        let ran = world.executor().ran();
        assert!(ran.failed + ran.planned_again > 0 || whim.panic > 0, "{whim:?}: {ran:?}");
        if whim.silence == 0 || whim.silence == 1 {
            assert!(world.ticker(Ticker::AwayFlushesRunHere) > 0, "{whim:?}: {ran:?}");
        }
        assert_healthy(&world);
        world.check();
        world.reopen(true);
        world.check();
    }
}

#[test]
fn damage_counts_if_this_process_finds_it_too() {
    let mut world = world(Whim { corrupt: 1, ..SOUND });
    world.send_away(4);
    world.db.flush(world.db.default_family()).unwrap();
    assert!(world.ticker(Ticker::AwayFlushesRunHere) > 0);
    assert_healthy(&world);
    world.check();
}

#[test]
fn flush_that_runs_here_after_all_fetches_within_its_bound() {
    // During the first flush, which waits for the test, more memtables rest than may be fetched.
    let minutes = Duration::from_secs(120);
    let whim = Whim { waits_for: |ran| ran.is_released, wait_max: minutes, ..SOUND };
    let mut world = World::with(Change {
        mood: with_whim(Mood::default(), whim),
        family: CfOptions { buckets: 2, ..Change::default().family },
        background: BackgroundMode::Threads,
        ..Change::default()
    });
    world.send_away(12);
    world.executor().set_whim(Whim { here: 1, ..SOUND });
    world.executor().release();
    world.db.flush(world.db.default_family()).unwrap();
    assert!(world.ticker(Ticker::AwayFlushesTooLarge) > 0, "{:?}", world.executor().ran());
    assert!(world.store.did().fetched > 0);
    assert_healthy(&world);
    world.check();
    world.db.clone().close().unwrap();
}

#[test]
fn crash_before_an_install_leaves_the_records_in_the_log() {
    for point in ["flush.before_install", "flush.shard", "flush.picked", "flush.run_here"] {
        let (reached, is_armed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let fault: FaultPoint = {
            let (reached, is_armed) = (Arc::clone(&reached), Arc::clone(&is_armed));
            Arc::new(move |name| match name == point && is_armed.load(Ordering::Relaxed) {
                true => {
                    reached.fetch_add(1, Ordering::Relaxed);
                    Err(Error::new(ErrorKind::Io, format!("{name} fails")))
                }
                false => Ok(()),
            })
        };
        let whim = Whim { fail: u32::from(point == "flush.run_here"), ..SOUND };
        let mood = with_whim(Mood::default(), whim);
        let change = Change { mood, fault: Some(fault), ..Change::default() };
        let mut world = World::with(change);
        world.send_away(4);
        is_armed.store(true, Ordering::Relaxed);
        world.db.flush(world.db.default_family()).unwrap_err();
        assert!(reached.load(Ordering::Relaxed) > 0, "{point}");
        world.check();
        world.reopen(true);
        world.check();
        world.write(100, "after");
        world.db.flush(world.db.default_family()).unwrap();
        world.check();
    }
}

#[test]
fn old_reader_outlives_its_node_after_a_flush_that_ran_there() {
    let mut world = world(SOUND);
    world.send_away(4);
    let mut iter = world.db.iter(world.db.default_family(), &ReadOptions::default()).unwrap();
    let then = world.model.clone();
    world.write(50, "later");
    world.db.flush(world.db.default_family()).unwrap();
    assert!(world.executor().ran().away > 0);
    // The shards that the iterator reads are fetched for it, and the nodes have their memory back.
    assert!(world.ticker(Ticker::AwayShardsHeld) > 0);
    assert!(world.store.held().is_empty());
    world.store.lose_all(true);
    world.settle();
    check_rows(&mut iter, &then);
    world.check();
}

#[test]
fn node_that_dies_in_a_flush_costs_a_rebuild() {
    let mut world = World::with(Change {
        mood: with_whim(Mood::default(), Whim { fail: 10, node_dies: 4, ..SOUND }),
        ..Change::default()
    });
    for round in 0..20 {
        world.write(150, &format!("r{round}-"));
        world.check();
    }
    let mut waits = (0..1000).map(|_| world.db.wait_for_background());
    assert!(waits.any(|ended| ended.is_ok()), "it never ends");
    assert!(world.store.did().lost > 0, "no node dies");
    assert!(world.ticker(Ticker::AwayShardsRebuilt) > 0, "nothing is rebuilt");
    assert!(world.executor().ran().away > 0, "no flush leaves");
    world.check();
}

#[test]
fn log_keeps_its_bound_while_an_executor_flushes() {
    let db = DbOptions { wal_segment_bytes: 64 << 10, wal_bytes_max: 200 << 10, ..small_db() };
    let mood = with_whim(Mood::default(), SOUND);
    let mut world = World::with(Change { db, mood, ..Change::default() });
    for round in 0..12 {
        world.write(300, &format!("r{round}-"));
        let logs = crate::corruption::files(&world.fs, "/db");
        let logs = logs.iter().filter(|(name, _)| name.ends_with(".log"));
        let bytes: usize = logs.map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes < 500 << 10, "round {round}: {bytes} bytes of log");
    }
    assert!(world.executor().ran().away > 0);
    world.check();
}

#[test]
fn more_flushes_run_away_than_there_are_workers() {
    let db = DbOptions { max_background_jobs: 1, ..small_db() };
    // A flush that runs alone waits for another one.
    let wait_max = Duration::from_secs(2);
    let whim = Whim { waits_for: |ran| ran.at_once_max > 1, wait_max, ..SOUND };
    let mut world = World::with(Change {
        db,
        background: BackgroundMode::Threads,
        mood: Mood { limit_bytes: 60 << 10, whim: Some(whim), ..Mood::default() },
        ..Change::default()
    });
    for round in 0..40 {
        world.write(150, &format!("r{round}-"));
        if world.executor().ran().at_once_max > 1 {
            break;
        }
    }
    let ran = world.executor().ran();
    assert!(ran.at_once_max > 1, "{ran:?}");
    world.db.wait_for_background().unwrap();
    assert_healthy(&world);
    world.check();
    world.db.clone().close().unwrap();
}
