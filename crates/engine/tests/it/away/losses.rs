//! Lost shards are rebuilt from the log, and reads never treat them as empty.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use archipelago_base::spawn::{Spawn, SystemSpawn};
use archipelago_base::{Error, ErrorKind};
use archipelago_engine::db::{Components, Db, FaultPoint, ReadOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

use super::world::{Change, KEYS, World, assert_busy, check_rows, key};
use super::{FakeStore, Mood};
use crate::disk::TestDisk;
use crate::support::{in_threads, over, small_db};

#[test]
fn lost_shards_are_rebuilt() {
    for tells in [true, false] {
        let mut world = World::new();
        world.send_away(5);
        let lost = world.store.held().len() as u64;
        world.store.lose_all(tells);
        if tells {
            world.settle();
            assert_eq!(world.ticker(Ticker::AwayShardsRebuilt), lost);
            assert_eq!(world.ticker(Ticker::AwayReadsBusy), 0);
        }
        world.check();
        assert_eq!(world.ticker(Ticker::AwayShardsLost), lost);
        world.settle();
        assert_eq!(world.ticker(Ticker::AwayShardsRebuilt), lost);
        // Rebuilt memtables are flushed, and later ones are sent again.
        world.check();
        world.send_away(3);
        world.check();
        world.db.wait_for_background().unwrap();
        world.check();
        world.reopen(false);
        world.check();
    }
}

#[test]
fn rebuilt_shards_are_flushed_before_more_are_rebuilt() {
    let mut world = World::new();
    world.send_away(10);
    let lost = world.store.held().len() as u64;
    world.store.lose_all(true);
    let flushes = world.ticker(Ticker::Flushes);
    while world.ticker(Ticker::Flushes) == flushes {
        assert!(world.db.step_background().unwrap(), "nothing is due");
    }
    let rebuilt = world.ticker(Ticker::AwayShardsRebuilt);
    assert!(rebuilt > 0 && rebuilt < lost, "{rebuilt} of {lost} are rebuilt at once");
    world.settle();
    assert_eq!(world.ticker(Ticker::AwayShardsRebuilt), lost);
    world.check();
}

#[test]
fn loss_of_one_shard_is_none_of_its_neighbours() {
    for scans in [false, true] {
        let mood = Mood { nodes: 1, page_records: 0, ..Mood::default() };
        let mut world = World::with(Change { mood, ..Change::default() });
        world.send_away(5);
        let held = world.store.held();
        assert!(held.len() > 5, "{held:?}");
        world.store.lose_one(held[held.len() / 2]);
        if scans {
            let cf = world.db.default_family();
            world.check_iterator(&mut world.db.iter(cf, &ReadOptions::default()).unwrap());
        }
        world.check();
        assert_eq!(world.ticker(Ticker::AwayShardsLost), 1, "scans: {scans}");
        assert_eq!(world.ticker(Ticker::AwayShardsRebuilt), 1);
        assert_eq!(world.store.held().len(), held.len() - 1, "the others stay where they are");
    }
}

#[test]
fn flush_of_a_lost_shard_waits_for_the_rebuild() {
    let mut world = World::new();
    world.send_away(4);
    world.store.lose_all(false);
    world.db.flush(world.db.default_family()).unwrap();
    assert!(world.ticker(Ticker::AwayShardsRebuilt) > 0);
    assert_eq!(world.ticker(Ticker::BackgroundErrors), 0);
    world.check();
}

#[test]
fn iterators_outlive_their_nodes() {
    for flushed in [false, true] {
        let mut world = World::new();
        world.send_away(4);
        let cf = world.db.default_family().clone();
        let before = world.model.clone();
        let mut placed = world.db.iter(&cf, &ReadOptions::default()).unwrap();
        placed.seek(&key(100));
        let mut fresh = world.db.iter(&cf, &ReadOptions::default()).unwrap();
        world.send_away(6);
        if flushed {
            // The log no longer has their records, and the node may forget them.
            world.db.wait_for_background().unwrap();
            assert!(world.store.held().is_empty());
        }
        world.store.lose_all(false);
        let (mut shown, mut expected) = (Vec::new(), before.range(key(100)..));
        while placed.valid() {
            shown.push((placed.key().to_vec(), placed.value().to_vec()));
            placed.next();
        }
        placed.status().unwrap();
        let expected: Vec<_> = expected.by_ref().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert!(shown == expected, "an iterator that stood on a row");
        check_rows(&mut fresh, &before);
        check_rows(&mut placed, &before);
        world.check();
    }
}

#[test]
fn nodes_that_hang_make_reads_busy_and_nothing_else() {
    let mut world = World::new();
    world.send_away(4);
    world.store.hang(true);
    let cf = world.db.default_family();
    let (mut busy, mut right) = (0, 0);
    for number in 0..KEYS {
        match world.db.get(&key(number)) {
            Ok(found) => {
                assert_eq!(found.as_deref(), world.model.get(&key(number)).map(Vec::as_slice));
                right += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                busy += 1;
            }
        }
    }
    assert!(busy > 0 && right > 0, "{busy} {right}");
    let mut iter = world.db.iter(cf, &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    assert_busy(iter.status());
    iter.seek_to_last();
    assert_busy(iter.status());
    assert!(world.ticker(Ticker::AwayReadsBusy) > 0);
    world.store.hang(false);
    check_rows(&mut iter, &world.model);
    world.check();
}

#[test]
fn each_step_of_a_rebuild_may_fail() {
    for point in ["rebuild.picked", "rebuild.before_swap"] {
        let reached = Arc::new(AtomicUsize::new(0));
        let fault: FaultPoint = {
            let reached = Arc::clone(&reached);
            Arc::new(move |name| match name == point {
                true if reached.fetch_add(1, Ordering::Relaxed) < 2 => {
                    Err(Error::new(ErrorKind::Io, format!("{name} fails")))
                }
                _ => Ok(()),
            })
        };
        let mut world = World::with(Change { fault: Some(fault), ..Change::default() });
        world.send_away(4);
        world.store.lose_all(true);
        for _ in 0..2 {
            assert_eq!(world.db.step_background().unwrap_err().kind(), ErrorKind::Io);
        }
        world.settle();
        assert!(reached.load(Ordering::Relaxed) > 2);
        world.check();
    }
}

/// Cuts records out of every log segment except the last one, at `part` eighths of its length.
fn damage_log(fs: &TestDisk, part: usize) {
    let io = || IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    let mut logs: Vec<(PathBuf, Vec<u8>)> = crate::corruption::files(fs, "/db")
        .into_iter()
        .filter(|(name, _)| name.ends_with(".log"))
        .map(|(name, bytes)| (Path::new("/db").join(name), bytes))
        .collect();
    logs.sort();
    logs.pop();
    assert!(!logs.is_empty(), "the log has one segment only");
    for (path, mut bytes) in logs {
        let at = bytes.len() / 8 * part;
        bytes[at..at + 64].fill(0xff);
        let mut file = fs.create(&path, io(), CreateOptions::default()).unwrap();
        file.append(&bytes).unwrap();
    }
}

#[test]
fn damage_of_the_log_costs_only_the_shards_that_it_hits() {
    let mut rebuilt_beside = 0;
    for part in 2..8 {
        let mut world = World::new();
        world.send_away(6);
        damage_log(&world.fs, part);
        world.store.lose_all(true);
        loop {
            let before = world.ticker(Ticker::AwayShardsRebuilt);
            match world.db.step_background() {
                Ok(true) => {}
                // No shard needs the damaged part.
                Ok(false) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    rebuilt_beside += world.ticker(Ticker::AwayShardsRebuilt) - before;
                    break;
                }
            }
        }
    }
    assert!(rebuilt_beside > 0, "a damaged shard took others with it");
}

#[test]
fn records_that_the_log_has_lost_are_never_taken_for_empty() {
    let mut world = World::new();
    world.send_away(6);
    damage_log(&world.fs, 4);
    world.store.lose_all(true);
    let error = world.db.step_background().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let (mut refused, mut right) = (0, 0);
    for number in 0..KEYS {
        match world.db.get(&key(number)) {
            Ok(found) => {
                assert_eq!(found.as_deref(), world.model.get(&key(number)).map(Vec::as_slice));
                right += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0, "{right} keys were read");
    let mut iter = world.db.iter(world.db.default_family(), &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    while iter.valid() {
        assert_eq!(world.model.get(iter.key()).map(Vec::as_slice), Some(iter.value()));
        iter.next();
    }
    iter.status().unwrap_err();
    assert_eq!(world.db.put(b"a", b"b").unwrap_err().kind(), ErrorKind::ReadOnly);
}

/// Readers and writers run in threads, while nodes are lost and full.
#[test]
fn readers_in_threads_find_every_write() {
    let mood = Mood { limit_bytes: 300 << 10, refuse: 8, lose: 25, ..Mood::default() };
    let (fs, store) = (TestDisk::new(), FakeStore::new(11, mood));
    let Change { family, .. } = Change::default();
    let components =
        in_threads(Components { shard_store: Some(Arc::clone(&store) as _), ..over(&fs, family) });
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let reader = |first: u32| {
        let (db, is_over) = (db.clone(), Arc::clone(&is_over));
        move || {
            let cf = db.default_family().clone();
            // The rounds that a reader sees of one key must never decrease.
            let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            let mut check = |key: &[u8], value: &[u8]| {
                let round: u32 = std::str::from_utf8(&value[..6]).unwrap().parse().unwrap();
                let before = seen.insert(key.to_vec(), round).unwrap_or(0);
                assert!(round >= before, "{}: {round} after {before}", key.escape_ascii());
            };
            while !is_over.load(Ordering::Relaxed) {
                for number in (first..KEYS).step_by(3) {
                    if let Some(value) = db.get(&key(number)).unwrap() {
                        check(&key(number), &value);
                    }
                }
                let mut iter = db.iter(&cf, &ReadOptions::default()).unwrap();
                iter.seek(&key(first * 50));
                while iter.valid() {
                    check(iter.key(), iter.value());
                    iter.next();
                }
                iter.status().unwrap();
            }
        }
    };
    let joiners: Vec<_> =
        (0..2).map(|first| SystemSpawn.spawn("reader", Box::new(reader(first))).unwrap()).collect();
    for round in 1..=30u32 {
        for number in 0..KEYS {
            let value = format!("{round:06}{}", "x".repeat(80));
            db.put(&key(number), value.as_bytes()).unwrap();
        }
        if round % 10 == 0 {
            store.lose_all(round % 20 == 0);
        }
    }
    is_over.store(true, Ordering::Relaxed);
    joiners.into_iter().for_each(|joiner| joiner.join().unwrap());
    for number in 0..KEYS {
        let value = db.get(&key(number)).unwrap().unwrap();
        assert!(value.starts_with(b"000030"), "{}", value.as_ref().escape_ascii());
    }
    let did = store.did();
    assert!(did.sent > 0 && did.lost > 0, "{did:?}");
    assert!(db.statistics().get(Ticker::AwayShardsRebuilt) > 0, "{did:?}");
    db.wait_for_background().unwrap();
    assert_eq!(db.statistics().get(Ticker::BackgroundErrors), 0);
    db.close().unwrap();
    assert!(store.held().is_empty());
}
