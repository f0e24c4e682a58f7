//! Rules about which shards are sent to nodes, and when they are flushed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_base::{Error, ErrorKind};
use archipelago_engine::db::{BackgroundMode, FaultPoint};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;

use super::world::{Change, KEYS, World, key};
use super::{Mood, SendHold, Stays};
use crate::support::{small_db, small_family};

#[test]
fn memtables_that_are_away_take_no_memory() {
    let mut world = World::new();
    // At most two write buffers may be in memory.
    world.send_away(6);
    let immutable =
        world.db.property(world.db.default_family(), "archipelago.num-immutable-mem-table");
    assert!(immutable.unwrap().parse::<usize>().unwrap() >= 6);
    let shards = world.db.property(world.db.default_family(), "archipelago.num-away-shards");
    assert_eq!(shards.unwrap().parse::<usize>().unwrap(), world.store.held().len());
    assert_eq!(world.ticker(Ticker::AwayShardsFetched), 0);
    world.check();
}

#[test]
fn store_hears_what_writers_do() {
    let mut world = World::new();
    world.send_away(6);
    let load = world.store.did().load;
    assert!(load.backlog_bytes > 0, "{load:?}");
}

#[test]
fn records_can_be_read_by_the_store_before_the_seal() {
    let family =
        CfOptions { write_buffer_bytes: 256 << 10, buckets: 2, ..Change::default().family };
    let mut world = World::with(Change { family, ..Change::default() });
    for round in 0..40 {
        world.write(500, &format!("r{round}-"));
    }
    let did = world.store.did();
    assert!(did.offered_sent >= 4 && did.offered >= did.offered_sent, "{did:?}");
    // Each image has an index and a filter as well.
    assert!(did.ahead_bytes > did.ahead_image_bytes / 2, "{did:?}");
    world.check();
}

#[test]
fn memtable_is_offered_once_after_several_seals() {
    let family = CfOptions {
        write_buffer_bytes: 256 << 10,
        write_buffers_max: 6,
        buckets: 2,
        ..Change::default().family
    };
    let mut world = World::with(Change { family, ..Change::default() });
    for round in 0..4 {
        // Some memtables are sealed before the first of them is readied. The store notices a shard
        // that is offered again.
        for number in 0..6000 {
            world.put(number % KEYS, &format!("r{round}"));
        }
        world.settle();
    }
    assert!(world.store.did().offered > 0, "{:?}", world.store.did());
    world.check();
}

#[test]
fn offered_shard_with_unlogged_records_is_not_sent() {
    let family =
        CfOptions { write_buffer_bytes: 256 << 10, buckets: 2, ..Change::default().family };
    let mut world = World::with(Change { family, ..Change::default() });
    let cf = world.db.default_family().clone();
    let unlogged = WriteOptions { wal: false, ..WriteOptions::default() };
    for number in 0..12_000 {
        let number = number % KEYS;
        world.db.put_with(&cf, &key(number), &[b'u'; 100], &unlogged).unwrap();
        world.model.insert(key(number), vec![b'u'; 100]);
        world.settle();
    }
    let did = world.store.did();
    assert_eq!(did.offered_sent, 0, "{did:?}");
    world.check();
}

#[test]
fn full_nodes_make_the_oldest_memtables_due() {
    let mood = Mood { limit_bytes: 160 << 10, ..Mood::default() };
    let mut world = World::with(Change { mood, ..Change::default() });
    for round in 0..25 {
        world.write(150, &format!("r{round}-"));
    }
    let held = world.store.held();
    let oldest = held.iter().map(|id| id.memtable).min();
    assert!(oldest > Some(8), "{held:?}");
    assert!(world.store.did().held_max <= 160 << 10);
    assert!(world.ticker(Ticker::AwayShardsFetched) > 0);
    assert!(world.store.did().sent > 20, "{:?}", world.store.did());
    world.check();
}

#[test]
fn send_is_given_up_when_a_flush_waits_for_its_shard() {
    let background = BackgroundMode::Threads;
    let db = DbOptions { max_background_jobs: 4, ..small_db() };
    let change = Change::default();
    // The writer must not wait for the memtable of the held shard.
    let family = CfOptions { write_buffers_max: 16, ..change.family };
    let mut world = World::with(Change { background, db, family, ..change });
    world.store.hold_next_send();
    for round in 0.. {
        if world.store.send_hold() != SendHold::Next {
            break;
        }
        assert!(round < 1000, "nothing leaves: {:?}", world.store.did());
        world.write(40, &format!("r{round}-"));
    }
    world.db.flush(world.db.default_family()).unwrap();
    assert_eq!(world.store.send_hold(), SendHold::GivenUp);
    assert_eq!(world.ticker(Ticker::AwaySendsGivenUp), 1);
    assert_eq!(world.ticker(Ticker::AwaySendsFailed), 0);
    world.check();
}

#[test]
fn flush_waits_for_what_is_away() {
    let mut world = World::new();
    world.send_away(4);
    world.db.flush(world.db.default_family()).unwrap();
    assert!(world.store.held().is_empty(), "installed shards are released");
    let away = world.db.property(world.db.default_family(), "archipelago.away-shard-bytes");
    assert_eq!(away.as_deref(), Some("0"));
    world.check();
    world.send_away(3);
    world.db.wait_for_background().unwrap();
    assert!(world.store.held().is_empty());
    world.check();
}

#[test]
fn log_over_its_bound_makes_what_pins_it_due() {
    let db = DbOptions { wal_segment_bytes: 64 << 10, wal_bytes_max: 200 << 10, ..small_db() };
    let mut world = World::with(Change { db, ..Change::default() });
    for round in 0..12 {
        world.write(300, &format!("r{round}-"));
        let logs = crate::corruption::files(&world.fs, "/db");
        let logs = logs.iter().filter(|(name, _)| name.ends_with(".log"));
        let bytes: usize = logs.map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes < 500 << 10, "round {round}: {bytes} bytes of log");
    }
    assert!(world.ticker(Ticker::AwayShardsSent) > 0);
    assert!(world.ticker(Ticker::AwayShardsFetched) > 0);
    world.check();
}

#[test]
fn what_may_not_leave_stays_and_is_flushed() {
    // Images are too large for the nodes.
    let mood = Mood { image_bytes_max: 100, ..Mood::default() };
    let mut world = World::with(Change { mood, ..Change::default() });
    world.write(600, "a");
    assert_eq!(world.store.did().sent, 0);
    world.check();
    // Records that bypass the log are not sent.
    let mut world = World::new();
    let cf = world.db.default_family().clone();
    let unlogged = WriteOptions { wal: false, ..WriteOptions::default() };
    for round in 0..40 {
        for number in 0..20 {
            let number = (round * 20 + number) % KEYS;
            let value = vec![b'u'; 100];
            world.db.put_with(&cf, &key(number), &value, &unlogged).unwrap();
            world.model.insert(key(number), value);
        }
        world.settle();
    }
    assert_eq!(world.store.did().sent, 0, "records that no log has");
    world.check();
    // Nodes that accept nothing get no shard.
    let mood = Mood { refuse: 1, ..Mood::default() };
    let mut world = World::with(Change { mood, ..Change::default() });
    world.write(600, "a");
    assert!(world.store.did().refused > 0 && world.store.did().sent == 0);
    let failed = world.ticker(Ticker::AwaySendsRefused) + world.ticker(Ticker::AwaySendsFailed);
    assert_eq!(failed, world.store.did().refused);
    world.check();
}

#[test]
fn nodes_without_room_are_asked_once_for_each_shard() {
    let mood = Mood { no_room: true, ..Mood::default() };
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mut world = World::with(Change { mood, clock: clock.clone(), ..Change::default() });
    world.write(600, "a");
    let did = world.store.did();
    assert!(did.refused > 0 && did.sent == 0, "{did:?}");
    assert_eq!(did.no_room_max, 1, "a shard is sent again at once");
    // When there is room, or after a pause, shards leave.
    world.store.make_room();
    world.send_away(3);
    world.store.set_mood(|mood| mood.no_room = true);
    world.write(100, "b");
    world.store.set_mood(|mood| mood.no_room = false);
    clock.advance(Duration::from_secs(2));
    let sent = world.store.did().sent;
    world.write(400, "c");
    assert!(world.store.did().sent > sent);
    world.check();
}

/// The nodes that answer may all have the name of a shard from a transfer that failed.
#[test]
fn later_shards_leave_although_one_is_refused_for_ever() {
    let mut world = World::new();
    world.store.use_up_next();
    world.send_away(4);
    let did = world.store.did();
    assert!((1..=3).contains(&did.used_up_sends), "a bounded number of times: {did:?}");
    assert_eq!(world.ticker(Ticker::AwaySendsFailed), did.used_up_sends);
    assert_eq!(world.ticker(Ticker::BackgroundErrors), 0);
    world.check();
    world.db.flush(world.db.default_family()).unwrap();
    assert!(world.store.held().is_empty());
    world.check();
}

#[test]
fn memtables_of_a_family_with_one_bucket_leave() {
    let family = CfOptions { buckets: 1, ..Change::default().family };
    let mut world = World::with(Change { family, ..Change::default() });
    // Two memtables have the bytes of one, and are due.
    world.send_away(1);
    world.check();
    world.store.lose_all(true);
    world.settle();
    world.check();
    world.db.flush(world.db.default_family()).unwrap();
    world.check();
}

#[test]
fn second_copies_make_no_flush_due() {
    let held_max = [1, 2].map(|copies| {
        let mood = Mood { limit_bytes: 160 << 10, copies, ..Mood::default() };
        let mut world = World::with(Change { mood, ..Change::default() });
        for number in 0..2000 {
            world.put(number % KEYS, "value");
            while !matches!(world.db.step_background(), Ok(false)) {}
        }
        world.check();
        world.store.did().held_max
    });
    assert!(held_max[0] > 0 && held_max[0] == held_max[1], "{held_max:?}");
}

/// A database with shards at nodes, and its clock.
fn resting(is_shared: bool) -> (World, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mood = Mood { is_shared, ..Mood::default() };
    let mut world = World::with(Change { mood, clock: clock.clone(), ..Change::default() });
    world.send_away(6);
    (world, clock)
}

#[test]
fn writers_that_pause_give_the_memory_of_shared_nodes_back() {
    let (mut world, clock) = resting(true);
    let held = world.store.held();
    clock.advance(Duration::from_millis(999));
    world.settle();
    assert_eq!(world.store.held(), held, "a pause lasts a second");
    assert_eq!(world.ticker(Ticker::AwayFlushesPause), 0);
    clock.advance(Duration::from_millis(1));
    world.settle();
    assert!(world.store.held().is_empty(), "{:?}", world.store.held());
    let flushes = world.ticker(Ticker::AwayFlushesPause);
    assert!(flushes > 0);
    let (lookups, pages) = (world.store.did().lookups, world.store.did().pages);
    world.check();
    assert_eq!((world.store.did().lookups, world.store.did().pages), (lookups, pages));
    // After the pause shards rest again. A write within each second is no pause.
    world.send_away(6);
    for round in 0..4 {
        clock.advance(Duration::from_millis(900));
        world.put(round, "between");
        world.settle();
    }
    assert!(!world.store.held().is_empty(), "the writers do not pause");
    assert_eq!(world.ticker(Ticker::AwayFlushesPause), flushes);
    world.check();
}

#[test]
fn compactions_that_are_behind_go_before_images_that_are_given_back() {
    let (world, clock) = resting(true);
    let late = CfOptions { l0_compaction_trigger: 2, l0_slowdown: 2, ..small_family() };
    let late = world.db.create_family("late", late).unwrap();
    for value in ["first", "second"] {
        let options = WriteOptions::default();
        world.db.put_with(&late, b"key", value.as_bytes(), &options).unwrap();
        world.db.flush(&late).unwrap();
    }
    let is_behind =
        || world.db.property(&late, "archipelago.num-files-at-level0").as_deref() == Some("2");
    // The first pick sees the newest write, before the family is compacted.
    assert!(is_behind() && !world.store.held().is_empty());
    world.db.step_background().unwrap();
    clock.advance(Duration::from_secs(1));
    while world.db.step_background().unwrap() {
        let given_back = world.ticker(Ticker::AwayFlushesPause);
        assert!(!is_behind() || given_back == 0, "a flush went before the compaction");
    }
    assert!(!is_behind() && world.store.held().is_empty(), "{:?}", world.store.held());
    assert!(world.ticker(Ticker::AwayFlushesPause) > 0);
    world.check();
}

#[test]
fn images_of_memtables_that_now_stay_are_given_back() {
    let (world, clock) = resting(false);
    let held = world.store.held();
    // The newest memtables are at nodes when the number of staying ones rises.
    world.store.set_mood(|mood| mood.stays = Stays::Count(2));
    for _ in 0..4 {
        clock.advance(Duration::from_secs(9));
        world.settle();
    }
    assert_eq!((world.store.did().staying, world.store.held()), (2, held));
    world.store.set_mood(|mood| mood.is_shared = true);
    world.settle();
    assert!(world.store.held().is_empty(), "{:?}", world.store.held());
    assert!(world.ticker(Ticker::AwayFlushesPause) > 0);
    world.check();
}

#[test]
fn shards_arrive_before_images_are_given_back() {
    let (mut world, clock) = resting(true);
    let immutable = |world: &World| {
        let cf = world.db.default_family();
        world.db.property(cf, "archipelago.num-immutable-mem-table").unwrap()
    };
    let before = immutable(&world);
    for number in 0..KEYS {
        if immutable(&world) != before {
            break;
        }
        world.put(number * 7 % KEYS, "sealed");
    }
    let first = world.store.did().sent;
    while world.store.did().sent == first {
        assert!(world.db.step_background().unwrap(), "the sealed memtable leaves");
    }
    clock.advance(Duration::from_secs(1));
    let mut sent = world.store.did().sent;
    while world.db.step_background().unwrap() {
        if world.ticker(Ticker::AwayFlushesPause) == 0 {
            sent = world.store.did().sent;
        }
    }
    assert!(sent > first + 1, "several shards leave");
    assert_eq!(world.store.did().sent, sent, "a shard is sent after the first flush");
    assert!(world.ticker(Ticker::AwayFlushesPause) > 0);
    assert!(world.store.held().is_empty(), "{:?}", world.store.held());
    world.check();
}

#[test]
fn idle_database_flushes_nothing_at_nodes_of_its_own() {
    let (world, clock) = resting(false);
    let held = world.store.held();
    for _ in 0..4 {
        clock.advance(Duration::from_secs(2));
        world.settle();
        assert_eq!(world.store.held(), held);
    }
    assert_eq!(world.ticker(Ticker::AwayFlushesPause), 0);
    // Another database begins at one of the nodes.
    world.store.set_mood(|mood| mood.is_shared = true);
    world.settle();
    assert!(world.store.held().is_empty(), "{:?}", world.store.held());
    world.check();
}

#[test]
fn each_step_may_fail() {
    let points = ["send.picked", "send.before_send", "send.sent", "flush.shard", "flush.picked"];
    // A limit that makes memtables due from time to time.
    let mood = Mood { limit_bytes: 80 << 10, ..Mood::default() };
    for point in points {
        let (reached, is_armed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let fault: FaultPoint = {
            let (reached, is_armed) = (Arc::clone(&reached), Arc::clone(&is_armed));
            Arc::new(move |name| match name == point && is_armed.load(Ordering::Relaxed) {
                true if reached.fetch_add(1, Ordering::Relaxed) % 3 == 1 => {
                    Err(Error::new(ErrorKind::Io, format!("{name} fails")))
                }
                _ => Ok(()),
            })
        };
        let mut world = World::with(Change { mood, fault: Some(fault), ..Change::default() });
        is_armed.store(true, Ordering::Relaxed);
        for round in 0..100 {
            for at in 0..20 {
                let number = (round * 20 + at) % KEYS;
                world.put(number, &format!("{point} {round}"));
            }
            // A failed step is reported once, and the next ones go on.
            while !matches!(world.db.step_background(), Ok(false)) {}
        }
        while !matches!(world.db.step_background(), Ok(false)) {}
        world.check();
        let mut flushed = world.db.wait_for_background();
        for _ in 0..100 {
            if flushed.is_ok() {
                break;
            }
            flushed = world.db.wait_for_background();
        }
        flushed.unwrap();
        assert!(reached.load(Ordering::Relaxed) > 2, "{point} has not failed");
        assert!(world.store.held().is_empty(), "{point}: {:?}", world.store.held());
        world.check();
    }
}

#[test]
fn node_that_says_nothing_puts_a_flush_off() {
    let mut world = World::new();
    world.send_away(3);
    world.store.hang(true);
    super::world::assert_busy(world.db.flush(world.db.default_family()));
    super::world::assert_busy(world.db.wait_for_background());
    let health = world.db.property(world.db.default_family(), "archipelago.health").unwrap();
    assert!(health.starts_with("healthy"), "{health}: nothing here has failed");
    assert!(world.ticker(Ticker::AwayFlushesPutOff) > 0);
    assert_eq!(world.ticker(Ticker::BackgroundErrors), 0);
    world.store.hang(false);
    world.db.flush(world.db.default_family()).unwrap();
    world.check();
}
