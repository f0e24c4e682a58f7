//! Calls of an operator while shards are away.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_engine::db::{Components, Db, IngestOptions, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use archipelago_env::fault::{Fault, Operation, Rule};

use super::world::{KEYS, World, check_rows, key};
use crate::support::{over, small_db, small_family};

#[test]
fn close_and_crash_lose_nothing() {
    let mut world = World::new();
    for kill in [false, true, true, false] {
        world.send_away(4);
        world.check();
        world.reopen(kill);
        world.check();
        world.write(60, "after");
        world.check();
    }
}

#[test]
fn reader_that_outlives_the_database_gets_an_error() {
    let mut world = World::new();
    world.send_away(3);
    let mut iter = world.db.iter(world.db.default_family(), &ReadOptions::default()).unwrap();
    world.db.clone().close().unwrap();
    iter.seek_to_first();
    while iter.valid() {
        assert_eq!(world.model.get(iter.key()).map(Vec::as_slice), Some(iter.value()));
        iter.next();
    }
    iter.status().unwrap_err();
}

#[test]
fn checkpoint_has_what_is_away() {
    let mut world = World::new();
    world.send_away(4);
    world.db.checkpoint("/copy").unwrap();
    let family = CfOptions { merge_operator: Some("append".to_owned()), ..small_family() };
    let copy = Db::open_with("/copy", small_db(), over(&world.fs, family)).unwrap();
    let options = ReadOptions::default();
    check_rows(&mut copy.iter(copy.default_family(), &options).unwrap(), &world.model);
    assert!(!world.store.held().is_empty(), "the shards of the original stay where they are");
    world.check();
}

#[test]
fn ingestion_flushes_what_is_away_first() {
    let mut world = World::new();
    world.send_away(4);
    let fs: Arc<dyn FileSystem> = Arc::new(world.fs.clone());
    let mut writer = SstWriter::create(&fs, Path::new("/table"), TableOptions::default()).unwrap();
    for number in (0..KEYS).step_by(3) {
        writer.put(&key(number), b"ingested").unwrap();
        world.model.insert(key(number), b"ingested".to_vec());
    }
    writer.finish().unwrap();
    let cf = world.db.default_family().clone();
    world.db.ingest(&cf, &["/table"], &IngestOptions::default()).unwrap();
    assert!(world.store.held().is_empty());
    world.check();
    world.send_away(3);
    world.check();
}

#[test]
fn ingestion_leaves_what_it_does_not_touch_where_it_is() {
    let mut world = World::new();
    let options = CfOptions { write_buffers_max: 2, ..small_family() };
    let other = world.db.create_family("other", options).unwrap();
    world.send_away(4);
    let held = world.store.held().len();
    let fs: Arc<dyn FileSystem> = Arc::new(world.fs.clone());
    let table = |name: &str, keys: &[Vec<u8>]| {
        let options = TableOptions::default();
        let mut writer = SstWriter::create(&fs, Path::new(name), options).unwrap();
        keys.iter().for_each(|key| writer.put(key, b"ingested").unwrap());
        writer.finish().unwrap();
    };
    // The second family has no overlapping memtable at first, and then one.
    table("/one", &[key(1), key(2)]);
    world.db.ingest(&other, &["/one"], &IngestOptions::default()).unwrap();
    world.db.put_with(&other, &key(3), b"written", &WriteOptions::default()).unwrap();
    table("/two", &[key(2), key(3)]);
    world.db.ingest(&other, &["/two"], &IngestOptions::default()).unwrap();
    let value = world.db.get_with(&other, &key(3), &ReadOptions::default()).unwrap();
    assert_eq!(value.as_deref(), Some(&b"ingested"[..]));
    assert!(world.store.held().len() >= held, "the shards of other families stay away");
    world.check();
    // A late write overlaps, and its table goes below the file.
    let cf = world.db.default_family().clone();
    table("/three", &[key(7)]);
    world.db.ingest(&cf, &["/three"], &IngestOptions::default()).unwrap();
    world.model.insert(key(7), b"ingested".to_vec());
    assert!(world.store.held().is_empty());
    world.check();
}

#[test]
fn writers_of_a_dropped_family_do_not_wait() {
    const BUDGET_BYTES: u64 = 64 << 20;
    let mut world = World::new();
    let budget = ByteBudget::new(BUDGET_BYTES);
    world.budget = Some(Arc::clone(&budget));
    world.reopen(false);
    world.put(1, "again");
    let other = world.db.create_family("other", small_family()).unwrap();
    // Memory is short when the family is dropped, which decides about its writers a last time.
    let others = budget.hold(MemoryClass::Job, 2 * BUDGET_BYTES);
    world.db.drop_family(&other).unwrap();
    drop(others);
    world.db.flush(world.db.default_family()).unwrap();
    assert!(!world.store.writers_wait());
    world.check();
}

#[test]
fn dropped_family_releases_its_shards() {
    let world = World::new();
    let options = CfOptions { write_buffers_max: 2, ..small_family() };
    let other = world.db.create_family("other", options).unwrap();
    let write = |world: &World, round: u32| {
        for number in 0..KEYS {
            let value = format!("{round} {}", "y".repeat(60));
            let options = WriteOptions::default();
            world.db.put_with(&other, &key(number), value.as_bytes(), &options).unwrap();
            if number % 30 == 0 {
                world.settle();
            }
        }
    };
    (0..6).for_each(|round| write(&world, round));
    let of_other = world.store.held().len();
    assert!(of_other > 0);
    let mut iter = world.db.iter(&other, &ReadOptions::default()).unwrap();
    world.db.drop_family(&other).unwrap();
    assert!(!world.store.held().is_empty(), "an iterator holds them");
    iter.seek_to_first();
    let mut rows = 0;
    while iter.valid() {
        rows += 1;
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!(rows, KEYS);
    // No store could return them if they were lost now.
    world.store.lose_all(true);
    iter.seek_to_first();
    assert!(!iter.valid());
    iter.status().unwrap_err();
    drop(iter);
    assert!(world.store.held().is_empty());
    world.settle();
    world.check();
}

#[test]
fn compaction_of_everything_and_changes_of_buckets_go_on() {
    let mut world = World::new();
    let cf = world.db.default_family().clone();
    world.send_away(2);
    world.db.compact_range(&cf, &KeyRange::all()).unwrap();
    world.send_away(4);
    let buckets = world.db.buckets(&cf).unwrap();
    world.db.split_bucket(&cf, 0, Some(&key(10))).unwrap();
    assert_eq!(world.db.buckets(&cf).unwrap().len(), buckets.len() + 1);
    assert!(!world.store.held().is_empty(), "the map changes under shards that are away");
    world.check();
    world.send_away(6);
    world.db.compact_range(&cf, &KeyRange::all()).unwrap();
    world.check();
    world.send_away(3);
    // Without files in L0 the map may change, whatever shards are away.
    world.db.compact_range(&cf, &KeyRange::all()).unwrap();
    world.send_away(3);
    world.db.merge_buckets(&cf, 0).unwrap();
    world.send_away(5);
    world.check();
    let report = world.db.verify(|_, _| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn resume_brings_everything_home() {
    let mut world = World::new();
    world.send_away(4);
    // A log that is left needs neither the log nor the nodes afterwards.
    world.db.resume().unwrap();
    assert!(world.store.held().is_empty());
    world.check();
    world.send_away(3);
    world.store.lose_all(false);
    world.db.resume().unwrap();
    world.check();
}

#[test]
fn log_is_left_when_the_nodes_answer_again() {
    let mut world = World::new();
    world.send_away(4);
    let cf = world.db.default_family().clone();
    world.store.hang(true);
    let full = [Operation::LogSync, Operation::Create];
    world.faults.add(Rule::on_any(&full).fault(Fault::NoSpace));
    let told = world.db.put_with(&cf, &key(1), b"synced", &WriteOptions::synced()).unwrap_err();
    assert!(told.is_no_space(), "{told}");
    // The record is in memory, and is kept with all the others.
    world.model.insert(key(1), b"synced".to_vec());
    world.faults.clear();
    let failures = world.ticker(Ticker::BackgroundErrors);
    for _ in 0..3 {
        assert!(!world.db.step_background().unwrap(), "no shard can be had");
    }
    assert_eq!(world.ticker(Ticker::BackgroundErrors), failures);
    assert!(world.ticker(Ticker::AwayFlushesPutOff) > 0);
    world.store.hang(false);
    world.settle();
    assert!(world.store.held().is_empty());
    world.check();
    world.db.put_with(&cf, &key(2), b"synced", &WriteOptions::synced()).unwrap();
    world.model.insert(key(2), b"synced".to_vec());
    world.reopen(true);
    world.check();
}

#[test]
fn database_for_reading_only_needs_no_nodes() {
    let mut world = World::new();
    world.send_away(4);
    let store = super::FakeStore::new(1, super::Mood::default());
    let family = CfOptions { merge_operator: Some("append".to_owned()), ..small_family() };
    let components =
        Components { shard_store: Some(Arc::clone(&store) as _), ..over(&world.fs, family) };
    let options = archipelago_engine::options::DbOptions { read_only: true, ..small_db() };
    let reader = Db::open_with("/db", options, components).unwrap();
    let options = ReadOptions::default();
    check_rows(&mut reader.iter(reader.default_family(), &options).unwrap(), &world.model);
    assert_eq!(store.did().sent, 0);
}
