//! Shards of a flush that are released from memory one after another, with inline and with
//! separated values. The tests check the content that readers find between two of them, the state
//! after a crash, and the state after a failed flush.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_base::random::Rng;
use archipelago_base::{Error, ErrorKind};
use archipelago_engine::db::{ColumnFamily, Components, Db, Iter, ReadOptions, Snapshot};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use archipelago_env::fault::{FaultFs, Operation, Rule};
use parking_lot::Mutex;

use crate::disk::TestDisk;
use crate::separation::audit_at_rest;
use crate::support::{in_threads, over, small_db, small_family};

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(n: u64) -> Vec<u8> {
    format!("{n:06}").into_bytes()
}

/// State of the database at a snapshot, and an iterator that was made before the flush.
struct Past {
    snapshot: Snapshot,
    contents: Contents,
    iter: Mutex<Iter>,
}

/// State and actions of the fault points.
#[derive(Default)]
struct Watch {
    db: Mutex<Option<Db>>,
    disk: Mutex<Option<TestDisk>>,
    now: Mutex<Contents>,
    past: Mutex<Option<Past>>,
    /// Bytes in memtables at the start of each shard's work.
    memory: Mutex<Vec<u64>>,
    /// Value files that the manifest named at the start of each shard's work.
    value_files: Mutex<Vec<usize>>,
    /// Disks between two shards.
    crashed: Mutex<Vec<TestDisk>>,
    /// Number of shards that may be written before the flush fails; none fails at first.
    fails_after: AtomicU64,
    fails: AtomicBool,
    /// Whether all other background work runs before the install.
    works: AtomicBool,
    /// Whether the install fails.
    fails_install: AtomicBool,
    /// A family that is dropped before its install.
    dropped: Mutex<Option<ColumnFamily>>,
    /// An iterator that was made just before the drop, and has no position yet.
    reader: Mutex<Option<Iter>>,
}

fn memtable_bytes(db: &Db) -> u64 {
    let buckets = db.buckets(db.default_family()).unwrap();
    buckets.iter().map(|bucket| bucket.memtable_bytes).sum()
}

fn scanned(db: &Db, options: &ReadOptions) -> Contents {
    let mut iter = db.iter(db.default_family(), options).unwrap();
    let mut contents = Contents::new();
    iter.seek_to_first();
    while iter.valid() {
        contents.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next();
    }
    iter.status().unwrap();
    let mut backwards = Contents::new();
    iter.seek_to_last();
    while iter.valid() {
        backwards.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.prev();
    }
    iter.status().unwrap();
    assert_eq!(contents, backwards, "the directions differ");
    contents
}

/// Checks that every kind of read agrees with `contents`.
fn check(db: &Db, contents: &Contents, options: &ReadOptions) {
    assert_eq!(scanned(db, options), *contents);
    let cf = db.default_family();
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let many = db.multi_get(cf, &asked, options).unwrap();
    for (key, many) in keys.iter().zip(many) {
        let one = db.get_with(cf, key, options).unwrap();
        assert_eq!(one.as_deref(), contents.get(key).map(Vec::as_slice), "{key:?}");
        assert_eq!(one.as_deref(), many.as_deref());
    }
}

const KEYS: u64 = 300;
/// A time that is longer than the interval of sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(601);
/// A time that is longer than that from a failed job to the next sweep.
const SWEEP_DELAY: Duration = Duration::from_secs(61);

impl Watch {
    fn look(&self, point: &str) -> archipelago_base::Result<()> {
        if point == "flush.shard" || point == "flush.before_install" {
            self.look_between_shards();
        }
        if point == "flush.shard_written" && self.fails.load(Ordering::Relaxed) {
            let left = self.fails_after.load(Ordering::Relaxed);
            if left == 0 {
                return Err(Error::new(ErrorKind::Io, "injected"));
            }
            self.fails_after.store(left - 1, Ordering::Relaxed);
        }
        if point == "flush.before_install" && self.works.load(Ordering::Relaxed) {
            let db = self.db.lock().clone();
            while db.as_ref().map_or(Ok(false), Db::step_background)? {
                self.look_between_shards();
            }
        }
        if point == "flush.before_install" {
            self.drop_family_with_a_reader()?;
            if self.fails_install.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Io, "injected"));
            }
        }
        Ok(())
    }

    fn drop_family_with_a_reader(&self) -> archipelago_base::Result<()> {
        let (db, family) = (self.db.lock().clone(), self.dropped.lock().take());
        let (Some(db), Some(family)) = (db, family) else { return Ok(()) };
        *self.reader.lock() = Some(db.iter(&family, &ReadOptions::default())?);
        db.drop_family(&family)
    }

    fn look_between_shards(&self) {
        let Some(db) = self.db.lock().clone() else { return };
        self.memory.lock().push(memtable_bytes(&db));
        self.value_files.lock().push(named_value_files(&db));
        check(&db, &self.now.lock(), &ReadOptions::default());
        if let Some(past) = &*self.past.lock() {
            check(&db, &past.contents, &ReadOptions::new().snapshot(&past.snapshot));
            let mut iter = past.iter.lock();
            iter.seek_to_first();
            let mut found = Contents::new();
            while iter.valid() {
                found.insert(iter.key().to_vec(), iter.value().to_vec());
                iter.next();
            }
            assert_eq!(found, past.contents, "an iterator of before the flush");
        }
        if let Some(disk) = &*self.disk.lock() {
            let mut crashed = self.crashed.lock();
            let seed = crashed.len() as u64;
            crashed.extend([disk.kill_clone(), disk.crash_clone(seed)]);
        }
    }
}

struct World {
    disk: TestDisk,
    family: CfOptions,
    db: Db,
    watch: Arc<Watch>,
    rng: Rng,
}

fn family() -> CfOptions {
    CfOptions { buckets: 4, write_buffer_bytes: 64 << 10, ..small_family() }
}

/// A family that separates almost all values of a [`World`].
fn separated_family() -> CfOptions {
    CfOptions { value_separation_bytes: 8, ..family() }
}

/// A family with inline values, and one with separated values.
fn families() -> [CfOptions; 2] {
    [family(), separated_family()]
}

impl World {
    fn new(seed: u64, family: CfOptions) -> Self {
        Self::with(seed, family, |components, _| components)
    }

    /// A database with other components, which may be made of those of [`World::new`] and the disk.
    fn with(
        seed: u64,
        family: CfOptions,
        change: impl FnOnce(Components, &TestDisk) -> Components,
    ) -> Self {
        let (disk, watch) = (TestDisk::new(), Arc::new(Watch::default()));
        let looking = Arc::clone(&watch);
        let components = Components {
            fault_point: Some(Arc::new(move |point| looking.look(point))),
            ..over(&disk, family.clone())
        };
        let components = change(components, &disk);
        let db = Db::open_with("/db", small_db(), components).unwrap();
        let mut world = Self { disk, family, db, watch, rng: Rng::with_seed(seed) };
        // The first memtable makes the bucket map, and the second one was made before the map.
        for _ in 0..2 {
            world.write(300);
            world.db.flush(world.db.default_family()).unwrap();
        }
        assert_eq!(world.db.buckets(world.db.default_family()).unwrap().len(), 4);
        *world.watch.db.lock() = Some(world.db.clone());
        world
    }

    fn write(&mut self, count: u64) {
        let cf = self.db.default_family();
        let (options, mut now) = (WriteOptions::default(), self.watch.now.lock());
        for _ in 0..count {
            let n = self.rng.u64(..KEYS);
            match self.rng.u64(..20) {
                0 => {
                    // Usually over a boundary of buckets.
                    let end = n + self.rng.u64(..KEYS / 3);
                    self.db.delete_range(cf, &key(n), &key(end), &options).unwrap();
                    now.retain(|at, _| *at < key(n) || *at >= key(end));
                }
                1 | 2 => {
                    self.db.delete(&key(n)).unwrap();
                    now.remove(&key(n));
                }
                _ => {
                    let value = format!("{}", self.rng.u64(..)).into_bytes();
                    self.db.put(&key(n), &value).unwrap();
                    now.insert(key(n), value);
                }
            }
        }
    }

    /// Keeps the present state for readers that began before the later writes.
    fn remember(&self) {
        let iter = self.db.iter(self.db.default_family(), &ReadOptions::default()).unwrap();
        *self.watch.past.lock() = Some(Past {
            snapshot: self.db.snapshot(),
            contents: self.watch.now.lock().clone(),
            iter: Mutex::new(iter),
        });
    }

    fn check(&self) {
        check(&self.db, &self.watch.now.lock(), &ReadOptions::default());
    }

    /// Writes, and a flush that fails after `shards` shards have left memory.
    fn fail_after(&mut self, shards: u64) {
        self.write(300);
        self.watch.fails_after.store(shards, Ordering::Relaxed);
        self.watch.fails.store(true, Ordering::Relaxed);
        assert!(self.db.flush(self.db.default_family()).is_err());
        self.watch.fails.store(false, Ordering::Relaxed);
        self.check();
    }

    /// Opens a database that lies in `/db` of another disk.
    fn open(&self, disk: &TestDisk) -> Db {
        Db::open_with("/db", small_db(), over(disk, self.family.clone())).unwrap()
    }

    /// Closes the database, and returns the disk and the contents.
    fn close(self) -> (TestDisk, Contents) {
        *self.watch.db.lock() = None;
        *self.watch.past.lock() = None;
        let contents = self.watch.now.lock().clone();
        self.db.close().unwrap();
        (self.disk, contents)
    }
}

fn tables(disk: &TestDisk) -> usize {
    let names = disk.list("/db".as_ref()).unwrap();
    names.iter().filter(|entry| format!("{entry:?}").contains(".sst")).count()
}

fn value_files(disk: &TestDisk) -> usize {
    let names = disk.list("/db".as_ref()).unwrap();
    names.iter().filter(|entry| entry.name.ends_with(".vsst")).count()
}

fn property(db: &Db, name: &str) -> usize {
    let name = format!("archipelago.{name}");
    db.property(db.default_family(), &name).unwrap().parse().unwrap()
}

fn named_tables(db: &Db) -> usize {
    (0..7).map(|level| property(db, &format!("num-files-at-level{level}"))).sum()
}

fn named_value_files(db: &Db) -> usize {
    property(db, "num-value-files")
}

/// Checks that exactly the tables and value files that the manifest names lie on the disk.
fn check_files(disk: &TestDisk, db: &Db) {
    assert_eq!(tables(disk), named_tables(db), "tables");
    assert_eq!(value_files(disk), named_value_files(db), "value files");
    audit_at_rest(db);
}

#[test]
fn readers_find_everything_while_shards_leave_memory() {
    for (seed, family) in (0..4).flat_map(|seed| families().map(|family| (seed, family))) {
        let is_separated = family.value_separation_bytes > 0;
        let mut world = World::new(seed, family);
        world.write(200);
        world.remember();
        world.write(200);
        world.watch.memory.lock().clear();
        world.db.flush(world.db.default_family()).unwrap();
        let memory = world.watch.memory.lock().clone();
        assert_eq!(memory.len(), 5, "four shards and the install: {memory:?}");
        let shrinks = memory[..4].windows(2).all(|pair| pair[1] < pair[0]);
        assert!(shrinks, "a shard stays in memory after it was written: {memory:?}");
        assert!(memory[4] * 2 < memory[0], "before the install: {memory:?}");
        world.check();
        *world.watch.past.lock() = None;
        world.db.wait_for_background().unwrap();
        check_files(&world.disk, &world.db);
        assert_eq!(named_value_files(&world.db) > 0, is_separated);
    }
}

#[test]
fn statistics_count_value_files_from_the_edit_on() {
    let mut world = World::new(9, separated_family());
    world.db.wait_for_background().unwrap();
    world.write(300);
    let (before, bytes_before) =
        (named_value_files(&world.db), property(&world.db, "value-file-bytes") as u64);
    let flushed_before = world.db.statistics().get(Ticker::FlushBytesWritten);
    world.watch.value_files.lock().clear();
    world.db.flush(world.db.default_family()).unwrap();
    let named = world.watch.value_files.lock().clone();
    assert!(named.len() > 3 && named.iter().all(|&named| named == before), "{named:?}");
    let shards = named.len() - 1;
    assert_eq!(named_value_files(&world.db), before + shards, "a value file for each shard");
    let bytes = property(&world.db, "value-file-bytes") as u64 - bytes_before;
    let flushed = world.db.statistics().get(Ticker::FlushBytesWritten) - flushed_before;
    assert!(bytes > 0 && flushed > bytes, "{flushed} bytes flushed, {bytes} of value files");
    audit_at_rest(&world.db);
}

#[test]
fn crash_between_two_shards_loses_nothing_of_the_log() {
    families().into_iter().for_each(crash_between_two_shards);
}

fn crash_between_two_shards(family: CfOptions) {
    let mut world = World::new(7, family);
    *world.watch.disk.lock() = Some(world.disk.clone());
    world.write(400);
    let sync = WriteOptions { sync: true, ..WriteOptions::default() };
    world.db.put_with(world.db.default_family(), &key(1), b"last", &sync).unwrap();
    world.watch.now.lock().insert(key(1), b"last".to_vec());
    world.db.flush(world.db.default_family()).unwrap();
    let crashed = std::mem::take(&mut *world.watch.crashed.lock());
    assert_eq!(crashed.len(), 10);
    let contents = world.watch.now.lock().clone();
    for disk in crashed {
        let db = world.open(&disk);
        check(&db, &contents, &ReadOptions::default());
        db.flush(db.default_family()).unwrap();
        db.wait_for_background().unwrap();
        check(&db, &contents, &ReadOptions::default());
        check_files(&disk, &db);
    }
}

#[test]
fn next_attempt_installs_what_a_failed_flush_has_written() {
    for (shards, family) in (0..3).flat_map(|shards| families().map(|family| (shards, family))) {
        let mut world = World::new(20 + shards, family.clone());
        world.fail_after(shards);
        // A younger memtable is created.
        world.write(200);
        world.check();
        world.db.flush(world.db.default_family()).unwrap();
        world.check();
        world.db.wait_for_background().unwrap();
        world.db.compact_range(world.db.default_family(), &KeyRange::all()).unwrap();
        world.check();
        check_files(&world.disk, &world.db);
        let (disk, contents) = world.close();
        let db = Db::open_with("/db", small_db(), over(&disk, family)).unwrap();
        check(&db, &contents, &ReadOptions::default());
    }
}

#[test]
fn database_that_closes_after_a_failed_flush_reads_its_log_again() {
    for family in families() {
        let mut world = World::new(30, family.clone());
        world.fail_after(2);
        let (disk, contents) = world.close();
        let db = Db::open_with("/db", small_db(), over(&disk, family)).unwrap();
        check(&db, &contents, &ReadOptions::default());
        db.wait_for_background().unwrap();
        check_files(&disk, &db);
    }
}

#[test]
fn checkpoint_has_shards_that_no_edit_names() {
    for family in families() {
        let mut world = World::new(40, family.clone());
        world.fail_after(2);
        world.db.checkpoint("/copy").unwrap();
        let copy = Db::open_with("/copy", small_db(), over(&world.disk, family)).unwrap();
        check(&copy, &world.watch.now.lock(), &ReadOptions::default());
        assert!(copy.verify(|_, _| {}).unwrap().is_clean());
    }
}

#[test]
fn compactions_leave_the_files_of_written_shards_alone() {
    let family = CfOptions {
        l0_compaction_trigger: 2,
        value_file_bytes: 64 << 10,
        space_amplification_max: 1.05,
        ..separated_family()
    };
    let mut world = World::new(45, family);
    world.watch.works.store(true, Ordering::Relaxed);
    for _ in 0..6 {
        world.write(300);
        world.db.flush(world.db.default_family()).unwrap();
        world.check();
    }
    world.watch.works.store(false, Ordering::Relaxed);
    let compactions = world.db.statistics().get(Ticker::Compactions);
    assert!(compactions > 0, "no compaction has run between the shards and their edit");
    world.db.compact_range(world.db.default_family(), &KeyRange::all()).unwrap();
    world.db.wait_for_background().unwrap();
    world.check();
    check_files(&world.disk, &world.db);
}

#[test]
fn family_that_is_dropped_takes_its_written_shards_along() {
    families().into_iter().for_each(drop_family_with_written_shards);
}

fn drop_family_with_written_shards(family: CfOptions) {
    let world = World::new(50, family.clone());
    let own = world.db.create_family("own", family).unwrap();
    for round in 0..3 {
        for n in 0..KEYS {
            world.db.put_with(&own, &key(n), &[round; 20], &WriteOptions::default()).unwrap();
        }
        if round < 2 {
            world.db.flush(&own).unwrap();
        }
    }
    world.watch.fails_after.store(2, Ordering::Relaxed);
    world.watch.fails.store(true, Ordering::Relaxed);
    assert!(world.db.flush(&own).is_err());
    world.watch.fails.store(false, Ordering::Relaxed);
    assert_eq!(
        world.db.get_with(&own, &key(3), &ReadOptions::default()).unwrap().unwrap(),
        [2; 20]
    );
    world.db.drop_family(&own).unwrap();
    drop(own);
    world.db.flush(world.db.default_family()).unwrap();
    world.db.wait_for_background().unwrap();
    world.check();
    check_files(&world.disk, &world.db);
}

#[test]
fn reader_of_a_dropped_family_keeps_the_shards_that_its_flush_wrote() {
    families().into_iter().for_each(read_a_dropped_family);
}

fn read_a_dropped_family(family: CfOptions) {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let of_world = Arc::clone(&clock);
    let change =
        |components: Components, _: &TestDisk| Components { clock: of_world as _, ..components };
    let world = World::with(60, family.clone(), change);
    let own = world.db.create_family("own", family).unwrap();
    for round in 0..3 {
        for n in 0..KEYS {
            world.db.put_with(&own, &key(n), &[round; 20], &WriteOptions::default()).unwrap();
        }
        if round < 2 {
            world.db.flush(&own).unwrap();
        }
    }
    assert_eq!(world.db.buckets(&own).unwrap().len(), 4);
    *world.watch.dropped.lock() = Some(own.clone());
    world.db.flush(&own).unwrap_err();
    drop(own);
    let mut iter = world.watch.reader.lock().take().expect("the flush reached its install");
    // The sweep after failed jobs leaves the tables as well.
    for _ in 0..2 {
        clock.advance(SWEEP_INTERVAL);
        while world.db.step_background().unwrap() {}
    }
    assert_eq!(world.db.statistics().get(Ticker::StraysRemoved), 0);
    iter.seek_to_first();
    for n in 0..KEYS {
        assert!(iter.valid(), "key {n}: {:?}", iter.status());
        assert_eq!((iter.key(), iter.value()), (&key(n)[..], &[2; 20][..]));
        iter.next();
    }
    assert!(!iter.valid());
    iter.status().unwrap();
    assert!(tables(&world.disk) > named_tables(&world.db), "the iterator holds tables");
    drop(iter);
    while world.db.step_background().unwrap() {}
    check_files(&world.disk, &world.db);
    world.check();
}

#[test]
fn table_that_a_failed_flush_could_not_remove_is_swept() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let (of_world, mut faults) = (Arc::clone(&clock), None);
    let mut world = World::with(70, family(), |components, disk| {
        let fs = faults.insert(FaultFs::new(Arc::new(disk.clone()), 1)).clone();
        Components { clock: of_world as _, fs: Arc::new(fs), ..components }
    });
    let faults = faults.expect("the world has them");
    world.db.wait_for_background().unwrap();
    world.write(300);
    world.watch.fails_install.store(true, Ordering::Relaxed);
    let rule = faults.add(Rule::on(Operation::Remove).path(".sst"));
    world.db.flush(world.db.default_family()).unwrap_err();
    assert_eq!(faults.fired_by(rule), 1, "readers use the tables of the other shards");
    faults.clear();
    world.watch.fails_install.store(false, Ordering::Relaxed);
    world.check();
    // The next edit installs the published tables, and the sweep removes the other one.
    world.db.flush(world.db.default_family()).unwrap();
    world.db.wait_for_background().unwrap();
    assert_eq!(tables(&world.disk), named_tables(&world.db) + 1);
    clock.advance(SWEEP_DELAY);
    while world.db.step_background().unwrap() {}
    assert_eq!(tables(&world.disk), named_tables(&world.db));
    assert_eq!(world.db.statistics().get(Ticker::StraysRemoved), 1);
    world.check();
}

#[test]
fn concurrent_readers_agree_while_shards_leave_memory() {
    families().into_iter().for_each(read_while_a_writer_flushes);
}

fn read_while_a_writer_flushes(family: CfOptions) {
    let disk = TestDisk::new();
    let db = Db::open_with("/db", small_db(), in_threads(over(&disk, family))).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (db, done) = (&db, &done);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(reader);
                while !done.load(Ordering::Relaxed) {
                    // The writer increments every key, in key order.
                    let n = rng.u64(1..KEYS);
                    let number = |key: &[u8], options: &ReadOptions| -> u64 {
                        let value = db.get_with(db.default_family(), key, options).unwrap();
                        value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
                    };
                    let snapshot = db.snapshot();
                    let then = ReadOptions::new().snapshot(&snapshot);
                    let (first, later) = (number(&key(0), &then), number(&key(n), &then));
                    assert!(first == later || first == later + 1, "{first} and {later} at {n}");
                    assert!(number(&key(n), &ReadOptions::default()) >= later, "went back");
                }
            });
        }
        for round in 1u64..=150 {
            for n in 0..KEYS {
                let value = [round.to_le_bytes(), [7; 8]].concat();
                db.put(&key(n), &value).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    db.wait_for_background().unwrap();
    let value = db.get(&key(KEYS - 1)).unwrap().unwrap();
    assert_eq!(value[..8], 150u64.to_le_bytes());
}
