//! The next open keeps shards at memory nodes, and replays the records that were not sent.

use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_engine::db::{FaultPoint, ReadOptions};
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::fault::FaultFs;
use parking_lot::Mutex;

use super::Mood;
use super::world::{Change, KEYS, World, key};
use crate::disk::TestDisk;
use crate::support::small_family;

/// Checks that the shards are kept and all rows exist, now and after more work.
fn kept_and_whole(world: &mut World, least: u64) {
    let kept = world.ticker(Ticker::AwayShardsKept);
    assert!(kept >= least, "{kept} shards are kept, not {least}");
    assert!(kept == 0 || world.ticker(Ticker::AwayRecordsSpared) > 0);
    world.check();
    world.settle();
    world.check();
    world.write(100, "later");
    world.check();
    world.db.wait_for_background().unwrap();
    world.check();
    world.db.verify(|_, _| {}).unwrap();
}

#[test]
fn killed_owner_leaves_its_shards_to_the_next_one() {
    let mut world = World::new();
    world.send_away(6);
    world.write(30, "not sent");
    let held = world.store.held().len() as u64;
    let before = world.ticker(Ticker::Flushes);
    assert!(before > 0);
    world.take_over();
    assert_eq!(world.ticker(Ticker::AwayShardsKept), held, "all of them are kept");
    assert_eq!(world.ticker(Ticker::AwayDroppedGap), 0);
    assert_eq!(world.ticker(Ticker::Flushes), 0, "nothing was flushed by the open");
    assert_eq!(world.store.held().len() as u64, held);
    kept_and_whole(&mut world, held);
    // The next owner's shards are kept by the one after it, with the rest of the first owner's.
    world.send_away(6);
    let held = world.store.held().len() as u64;
    world.take_over();
    kept_and_whole(&mut world, held);
}

#[test]
fn chain_of_owners_keeps_the_same_shards() {
    let mut world = World::new();
    world.send_away(4);
    for round in 0..6 {
        let held = world.store.held().len() as u64;
        world.take_over();
        assert_eq!(world.ticker(Ticker::AwayShardsKept), held, "round {round}");
        world.check();
        world.write(15, &format!("round{round}-"));
        world.check();
    }
    kept_and_whole(&mut world, 1);
}

#[test]
fn kept_shards_that_are_lost_are_rebuilt_from_the_log() {
    for (tells, unadopted) in [(true, 0), (false, 0), (true, 2)] {
        let mut world = World::new();
        world.send_away(6);
        world.write(30, "not sent");
        let held = world.store.held().len() as u64;
        let fs = world.fs.kill_clone();
        world.take_over_at(fs, Mood { unadopted, unlisted: 4, ..Mood::default() }, None);
        let kept = world.ticker(Ticker::AwayShardsKept);
        assert!(kept > 0 && kept <= held);
        world.store.lose_all(tells);
        world.check();
        world.settle();
        let rebuilt = world.ticker(Ticker::AwayShardsRebuilt);
        assert!(rebuilt >= kept, "{rebuilt} of {kept}");
        kept_and_whole(&mut world, kept);
    }
}

#[test]
fn shards_that_do_not_answer_are_replayed() {
    for seed in 0..12 {
        let mut world = World::new();
        world.send_away(6 + seed % 3);
        world.write(40, "not sent");
        let mut mood = Mood { unlisted: 2 + seed as u32 % 4, ..Mood::default() };
        match seed % 3 {
            0 => mood.headless = 3,
            1 => mood.unadopted = 4,
            _ => {}
        }
        for round in 0..3 {
            let fs = world.fs.kill_clone();
            world.take_over_at(fs, mood, None);
            world.check();
            world.write(20 * seed as u32, &format!("round{round}-"));
            world.check();
        }
        kept_and_whole(&mut world, 0);
    }
}

#[test]
fn shards_that_a_takeover_has_filled_again_are_kept_by_the_next() {
    for unlisted in [2, 3, 8] {
        let mut world = World::new();
        world.send_away(8);
        world.write(30, "not sent");
        let fs = world.fs.kill_clone();
        world.take_over_at(fs, Mood { unlisted, ..Mood::default() }, None);
        assert!(world.ticker(Ticker::AwayShardsKept) > 0);
        world.settle();
        let held = world.store.held().len() as u64;
        assert!(world.store.did().sent > 0, "what was replayed leaves again");
        world.take_over();
        assert_eq!(world.ticker(Ticker::AwayShardsKept), held);
        kept_and_whole(&mut world, held);
    }
}

#[test]
fn nothing_is_kept_of_what_power_loss_took_from_the_log() {
    let (mut beyond, mut kept) = (0, 0);
    for seed in 0..24 {
        let mut world = World::new();
        world.sync();
        world.send_away(4);
        if seed % 2 == 0 {
            world.sync();
        }
        let synced = world.model.clone();
        if seed % 4 > 1 {
            world.write(30, "not synced");
        }
        let fs = world.fs.crash_clone(seed);
        world.take_over_at(fs, Mood::default(), None);
        beyond += world.ticker(Ticker::AwayDroppedBeyondLog);
        kept += world.ticker(Ticker::AwayShardsKept);
        // The database has a prefix of the writes; its content is that of the log.
        let cf = world.db.default_family();
        let mut found = std::collections::BTreeMap::new();
        let mut iter = world.db.iter(cf, &ReadOptions::default()).unwrap();
        iter.seek_to_first();
        while iter.valid() {
            found.insert(iter.key().to_vec(), iter.value().to_vec());
            iter.next();
        }
        iter.status().unwrap();
        if seed % 4 == 0 {
            assert!(found == synced, "seed {seed}: what was synced is there");
        }
        world.model = found;
        // A second owner replays the same records from the log alone.
        let alone = world.fs.kill_clone();
        let store = super::FakeStore::new(4, Mood::default());
        let (first, fs) = (world.db.clone(), std::mem::replace(&mut world.fs, alone));
        world.open_with(store, None);
        world.check();
        drop((first, fs));
        kept_and_whole(&mut world, 0);
    }
    assert!(beyond > 0 && kept > 0, "{beyond} dropped, {kept} kept");
}

/// Clones the files at a named point of an open.
fn clone_at(point: &'static str, fs: TestDisk, cloned: Arc<Mutex<Option<TestDisk>>>) -> FaultPoint {
    Arc::new(move |at| {
        if at == point {
            cloned.lock().get_or_insert_with(|| fs.kill_clone());
        }
        Ok(())
    })
}

#[test]
fn second_takeover_during_the_first_starts_again() {
    let points = [
        "takeover.told",
        "takeover.listed",
        "takeover.replayed",
        "takeover.before_edit",
        "takeover.before_adopt",
        "takeover.adopted",
    ];
    for point in points {
        for power in [false, true] {
            let mut world = World::new();
            world.send_away(6);
            world.write(30, "not sent");
            if power {
                world.sync();
            }
            let held = world.store.held().len() as u64;
            let again = world.store.next(11, Mood::default());
            let fs = world.fs.kill_clone();
            let cloned = Arc::new(Mutex::new(None));
            let fault = clone_at(point, fs.clone(), Arc::clone(&cloned));
            world.take_over_at(fs, Mood::default(), Some(fault));
            // The process died at that point; the nodes hold the shards from before.
            let at_point: TestDisk = cloned.lock().take().unwrap();
            let at_point = if power { at_point.crash_clone(7) } else { at_point };
            world.fs = at_point;
            world.open_with(again, None);
            assert_eq!(world.ticker(Ticker::AwayShardsKept), held, "{point}");
            kept_and_whole(&mut world, held);
        }
    }
}

#[test]
fn open_that_fails_in_the_middle_loses_nothing() {
    let points = ["listed", "replayed", "before_edit", "before_adopt", "adopted"];
    for point in points.map(|point| format!("takeover.{point}")) {
        let mut world = World::new();
        world.send_away(5);
        world.write(30, "not sent");
        let model = world.model.clone();
        let fs = world.fs.kill_clone();
        let reached = point.clone();
        let fault: FaultPoint = Arc::new(move |at| match at == reached {
            true => Err(archipelago_base::Error::internal("reef")),
            false => Ok(()),
        });
        let next = world.store.next(9, Mood::default());
        world.faults = FaultFs::new(Arc::new(fs.clone()), 1);
        let failed = world.try_open(&fs, &next, Some(fault));
        assert!(failed.is_err(), "{point}");
        // The next open finds what the failed one held.
        let after = next.next(10, Mood::default());
        world.fs = fs;
        world.open_with(after, None);
        world.model = model;
        kept_and_whole(&mut world, 1);
    }
}

#[test]
fn close_leaves_the_shards_if_the_store_does() {
    let mood = Mood { leaves: true, ..Mood::default() };
    let mut world = World::with(Change { mood, ..Change::default() });
    world.send_away(5);
    let held = world.store.held().len() as u64;
    world.db.clone().close().unwrap();
    assert_eq!(world.store.held().len() as u64, held);
    let fs = world.fs.clone();
    world.take_over_at(fs, mood, None);
    kept_and_whole(&mut world, held);
}

#[test]
fn unlogged_and_separated_records_and_other_families_survive() {
    for separated in [false, true] {
        let family = CfOptions {
            value_separation_bytes: if separated { 32 } else { 0 },
            merge_operator: Some("append".to_owned()),
            write_buffers_max: 2,
            ..small_family()
        };
        let mut world = World::with(Change { family: family.clone(), ..Change::default() });
        let other = world.db.create_family("other", family).unwrap();
        let unlogged = WriteOptions { wal: false, ..WriteOptions::default() };
        let mut rows = 0;
        while world.store.held().len() < 12 {
            world.write(40, "more");
            for number in 0..30 {
                let value = format!("other {rows}");
                let options = WriteOptions::default();
                world.db.put_with(&other, &key(number), value.as_bytes(), &options).unwrap();
            }
            rows += 1;
        }
        world.db.put_with(&other, b"fleeting", b"value", &unlogged).unwrap();
        world.take_over();
        assert!(world.ticker(Ticker::AwayShardsKept) > 0);
        let other = world.db.family("other").unwrap();
        let options = ReadOptions::default();
        let last = format!("other {}", rows - 1);
        for number in 0..30 {
            let found = world.db.get_with(&other, &key(number), &options).unwrap();
            assert_eq!(found.as_deref(), Some(last.as_bytes()));
        }
        assert!(world.db.get_with(&other, b"fleeting", &options).unwrap().is_none());
        kept_and_whole(&mut world, 1);
    }
}

#[test]
fn shards_of_a_dropped_family_and_of_flushed_memtables_are_given_up() {
    let mut world = World::new();
    world.send_away(5);
    let earlier = Arc::clone(&world.store);
    let stale = earlier.next(3, Mood::default());
    // Everything is flushed, but the nodes did not receive the releases.
    world.db.flush(world.db.default_family()).unwrap();
    world.fs = world.fs.kill_clone();
    world.open_with(stale, None);
    assert_eq!(world.ticker(Ticker::AwayShardsKept), 0);
    assert!(world.ticker(Ticker::AwayDroppedFlushed) > 0);
    assert!(world.store.held().is_empty());
    kept_and_whole(&mut world, 0);
}

#[test]
fn log_that_does_not_fit_into_memory_goes_to_tables() {
    let mut world = World::new();
    world.send_away(5);
    let fs = world.fs.kill_clone();
    let budget = ByteBudget::new(16 << 20);
    let _others = budget.hold(MemoryClass::Job, 16 << 20);
    world.budget = Some(budget);
    world.take_over_at(fs, Mood { unlisted: 3, ..Mood::default() }, None);
    assert_eq!(world.ticker(Ticker::AwayShardsKept), 0);
    assert!(world.ticker(Ticker::AwayDroppedNoMemory) > 0);
    world.check();
}

#[test]
fn estimates_count_the_keys_of_kept_shards() {
    let mut world = World::new();
    world.send_away(6);
    world.take_over();
    let cf = world.db.default_family();
    let estimate = world.db.estimate_keys(cf);
    assert!(estimate > u64::from(KEYS) / 4, "{estimate}");
}
