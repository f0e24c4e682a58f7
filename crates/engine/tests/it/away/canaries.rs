//! Defects of memtables at memory nodes and of flushes, which reads and recoveries must notice.
//!
//! Each test runs a core without a defect, where it passes, and with a defect, where it must fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_engine::db::{Components, Db, FaultPoint, ReadOptions};
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::sabotage::Defect;
use archipelago_engine::stats::Ticker;
use archipelago_engine::wal::WriteBatch;
use parking_lot::Mutex;

use super::world::{Change, KEYS, World, check_rows, key};
use super::{FakeStore, Mood, Whim};
use crate::disk::TestDisk;
use crate::support::{is_noticed, open, over, small_db, small_family};

/// Nodes with an executor that flushes the shards there.
fn flushing_nodes() -> Mood {
    Mood { whim: Some(Whim::SOUND), ..Mood::default() }
}

/// An iterator goes on after a flush at the nodes has installed the shards that it reads.
fn read_on_after_a_flush_at_the_nodes() {
    let mut world = World::with(Change { mood: flushing_nodes(), ..Change::default() });
    world.send_away(4);
    let cf = world.db.default_family().clone();
    let mut iter = world.db.iter(&cf, &ReadOptions::default()).unwrap();
    world.db.flush(&cf).unwrap();
    assert!(world.executor().ran().away > 0, "{:?}", world.executor().ran());
    check_rows(&mut iter, &world.model);
}

#[test]
fn suite_notices_a_release_before_the_last_reader() {
    read_on_after_a_flush_at_the_nodes();
    assert!(is_noticed(Defect::ReleaseBeforeLastReader, read_on_after_a_flush_at_the_nodes));
}

/// The owner and all nodes die after a flush of another family has moved the log floor.
fn lose_owner_and_nodes_after_another_flush() {
    let mut world = World::new();
    world.send_away(8);
    let other = world.db.create_family("other", small_family()).unwrap();
    world.db.put_with(&other, b"key", b"value", &WriteOptions::default()).unwrap();
    world.db.flush(&other).unwrap();
    assert!(!world.store.held().is_empty(), "the flush of the other family flushes nothing else");
    world.reopen(true);
    world.check();
}

#[test]
fn suite_notices_shards_at_nodes_that_pin_no_log() {
    lose_owner_and_nodes_after_another_flush();
    assert!(is_noticed(Defect::UnpinnedAwayShards, lose_owner_and_nodes_after_another_flush));
}

/// The next owner finds the shards of all memtables except the oldest one.
fn take_over_without_the_oldest_shards() {
    let mut world = World::new();
    world.send_away(4);
    let held = world.store.held();
    let oldest = held.iter().map(|id| id.memtable).min();
    for id in held.iter().filter(|id| Some(id.memtable) == oldest) {
        world.store.lose_one(*id);
    }
    world.take_over();
    world.check();
    assert!(world.ticker(Ticker::AwayDroppedGap) > 0, "no shard begins after a lost one");
}

#[test]
fn suite_notices_shards_sent_without_their_first_number() {
    take_over_without_the_oldest_shards();
    assert!(is_noticed(Defect::ForgottenAfterSeq, take_over_without_the_oldest_shards));
}

/// The power fails after a flush at the nodes.
fn lose_power_after_a_flush_at_the_nodes() {
    let mut world = World::with(Change { mood: flushing_nodes(), ..Change::default() });
    world.send_away(4);
    world.sync();
    world.db.flush(world.db.default_family()).unwrap();
    assert!(world.executor().ran().away > 0, "{:?}", world.executor().ran());
    let left: Vec<TestDisk> = (0..8).map(|seed| world.fs.crash_clone(seed)).collect();
    for fs in left {
        world.fs = fs;
        world.open_with(FakeStore::new(4, flushing_nodes()), None);
        world.check();
    }
}

#[test]
fn suite_notices_outputs_that_are_not_synced() {
    lose_power_after_a_flush_at_the_nodes();
    assert!(is_noticed(Defect::UnsyncedOutputs, lose_power_after_a_flush_at_the_nodes));
}

/// The power fails after the flush of one of two families that a batch without sync has changed.
fn lose_power_after_the_flush_of_one_family() {
    let fs = TestDisk::new();
    let db = open(&fs);
    let other = db.create_family("other", small_family()).unwrap();
    let mut batch = WriteBatch::new();
    for number in 0..40 {
        batch.put_cf(db.default_family().id(), &key(number), b"one half");
        batch.put_cf(other.id(), &key(number), b"the other half");
    }
    db.write(&batch, &WriteOptions::default()).unwrap();
    db.flush(db.default_family()).unwrap();
    for seed in 0..16 {
        let db = open(&fs.crash_clone(seed));
        let other = db.family("other").unwrap();
        for number in 0..40 {
            let one = db.get(&key(number)).unwrap();
            let half = db.get_with(&other, &key(number), &ReadOptions::default()).unwrap();
            assert_eq!(one.is_some(), half.is_some(), "seed {seed}: half a batch is left");
        }
    }
}

#[test]
fn suite_notices_an_install_before_the_sync_of_the_log() {
    lose_power_after_the_flush_of_one_family();
    assert!(is_noticed(Defect::InstallBeforeLogSync, lose_power_after_the_flush_of_one_family));
}

/// While the first flush waits for its install, overwrites some of its keys and begins a flush of
/// the new records. Then keeps the files as a kill would leave them.
#[derive(Default)]
struct Overtaking {
    /// The database and its files, until they are used.
    database: Mutex<Option<(Db, TestDisk)>>,
    killed: Mutex<Option<TestDisk>>,
}

impl Overtaking {
    fn fault(self: &Arc<Self>) -> FaultPoint {
        let own = Arc::clone(self);
        Arc::new(move |point: &str| match point {
            "flush.before_install" => own.overtake(),
            _ => Ok(()),
        })
    }

    fn overtake(&self) -> Result<()> {
        let Some((db, fs)) = self.database.lock().take() else { return Ok(()) };
        for (key, value) in newer_rows() {
            db.put(&key, &value)?;
        }
        // The flush in progress has older records of these keys, so this one ends as busy.
        let _busy = db.flush(db.default_family());
        *self.killed.lock() = Some(fs.kill_clone());
        Ok(())
    }
}

/// The rows that are overwritten while the first flush waits.
fn newer_rows() -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..KEYS).step_by(10).map(|number| (key(number), format!("newer {number}").into_bytes()))
}

/// The process dies while a flush waits for its install, and a younger memtable is due. The
/// database has no memory nodes.
fn kill_between_the_installs_of_two_memtables() {
    let (fs, overtaking) = (TestDisk::new(), Arc::new(Overtaking::default()));
    let open_at = |fs: &TestDisk, fault_point: Option<FaultPoint>| {
        let family = CfOptions { buckets: 1, ..small_family() };
        Db::open_with("/db", small_db(), Components { fault_point, ..over(fs, family) }).unwrap()
    };
    let db = open_at(&fs, Some(overtaking.fault()));
    let mut model = BTreeMap::new();
    for number in (0..KEYS).step_by(4) {
        db.put(&key(number), b"older").unwrap();
        model.insert(key(number), b"older".to_vec());
    }
    *overtaking.database.lock() = Some((db.clone(), fs));
    let flushed = db.flush(db.default_family());
    model.extend(newer_rows());
    let killed = overtaking.killed.lock().take().expect("a flush is installed");
    let left = open_at(&killed, None);
    let mut iter = left.iter(left.default_family(), &ReadOptions::default()).unwrap();
    check_rows(&mut iter, &model);
    flushed.unwrap();
    let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    check_rows(&mut iter, &model);
}

#[test]
fn suite_notices_flushes_that_are_installed_out_of_order() {
    kill_between_the_installs_of_two_memtables();
    assert!(is_noticed(Defect::InstallsOutOfOrder, kill_between_the_installs_of_two_memtables));
}

/// The process dies while the flush of a range of memtables at nodes waits for its install, and a
/// younger memtable is due.
fn kill_between_the_installs_of_one_range() {
    let overtaking = Arc::new(Overtaking::default());
    let mut world = World::with(Change {
        family: CfOptions { write_buffers_max: 4, ..Change::default().family },
        fault: Some(overtaking.fault()),
        ..Change::default()
    });
    world.send_away(4);
    *overtaking.database.lock() = Some((world.db.clone(), world.fs.clone()));
    let flushed = world.db.flush(world.db.default_family());
    world.model.extend(newer_rows());
    world.fs = overtaking.killed.lock().take().expect("a flush is installed");
    world.open_with(FakeStore::new(9, Mood::default()), None);
    world.check();
    flushed.unwrap();
}

#[test]
fn suite_notices_ranges_that_are_installed_out_of_order() {
    kill_between_the_installs_of_one_range();
    assert!(is_noticed(Defect::InstallsOutOfOrder, kill_between_the_installs_of_one_range));
}
