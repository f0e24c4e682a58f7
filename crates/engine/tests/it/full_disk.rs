//! Disks that fill: a database on a file system of a limited capacity.
//!
//! Whatever fills the disk, every acknowledged write stays readable and survives a restart on the
//! full disk, deletes are taken, their space comes back, and writes go on without a restart.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::disk_space::{SpaceState, SpaceUse};
use archipelago_engine::options::{CfOptions, Compression, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;
use archipelago_env::capacity::CapacityFs;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};

use crate::disk::TestDisk;
use crate::support::{small_db, stepped};

const MIB: u64 = 1 << 20;
const DIR: &str = "/db";

fn family() -> CfOptions {
    CfOptions {
        write_buffer_bytes: 2 << 20,
        level_base_bytes: 1 << 20,
        target_file_bytes: 1 << 20,
        buckets: 2,
        compression: Compression::None,
        compression_last: Compression::None,
        ..CfOptions::default()
    }
}

/// Segments as large as a whole small disk, as the default of 64 MiB is on a disk of 64 MiB.
fn options() -> DbOptions {
    DbOptions { wal_segment_bytes: 64 << 20, ..small_db() }
}

fn open_over(fs: Arc<dyn FileSystem>, options: DbOptions) -> Result<Db> {
    let families = [("default".to_owned(), family())].into_iter().collect();
    Db::open_with(DIR, options, Components { fs, families, seed: Some(3), ..stepped() })
}

/// A database on a small disk, and the writes that it acknowledged.
struct Small {
    memory: TestDisk,
    disk: CapacityFs,
    options: DbOptions,
    db: Option<Db>,
    acknowledged: BTreeMap<Vec<u8>, Vec<u8>>,
    rng: Rng,
}

impl Small {
    fn new(capacity: u64, options: DbOptions) -> Self {
        let memory = TestDisk::new();
        let disk = CapacityFs::new(Arc::new(memory.clone()), Path::new(DIR), capacity).unwrap();
        let db = open_over(Arc::new(disk.clone()), options.clone()).unwrap();
        db.step_background().unwrap();
        let (acknowledged, rng) = (BTreeMap::new(), Rng::with_seed(capacity));
        Self { memory, disk, options, db: Some(db), acknowledged, rng }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open")
    }

    fn put(&mut self, number: u32, options: &WriteOptions) -> Result<()> {
        let key = format!("key:{number:06}").into_bytes();
        let mut value = vec![0; 1000];
        value.fill_with(|| self.rng.u8(..));
        let db = self.db.as_ref().expect("open");
        loop {
            match db.put_with(db.default_family(), &key, &value, options) {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    db.step_background()?;
                }
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        self.acknowledged.insert(key, value);
        Ok(())
    }

    /// Puts until the disk is full, and steps background work. Returns the number of accepted puts
    /// and the error.
    fn fill(&mut self, from: u32, options: &WriteOptions) -> (u32, Error) {
        for number in from..1_000_000 {
            if let Err(error) = self.put(number, options) {
                return (number - from, error);
            }
            if number % 64 == 0 {
                self.settle();
            }
        }
        panic!("the disk is never full");
    }

    fn settle(&self) {
        while self.db().step_background().unwrap() {}
    }

    fn delete(&mut self, number: u32) {
        let key = format!("key:{number:06}").into_bytes();
        self.db().delete(&key).unwrap_or_else(|error| panic!("delete {number}: {error}"));
        self.acknowledged.remove(&key);
    }

    #[track_caller]
    fn check(&self, what: &str) {
        check(self.db(), &self.acknowledged, what);
    }

    /// Kills the process, and opens what it left on a disk that is as full.
    fn kill(&mut self) {
        self.kill_and(|_| {});
    }

    /// Like [`Self::kill`], after `meanwhile` has changed the directory.
    fn kill_and(&mut self, meanwhile: impl FnOnce(&TestDisk)) {
        let memory = self.memory.kill_clone();
        meanwhile(&memory);
        let free = self.disk.free();
        let over = Arc::new(memory.clone());
        let disk = CapacityFs::new(over, Path::new(DIR), u64::MAX).unwrap();
        disk.set_capacity(disk.used_bytes() + free);
        drop(self.db.take());
        (self.memory, self.disk) = (memory, disk.clone());
        self.db = Some(open_over(Arc::new(disk), self.options.clone()).unwrap());
    }
}

#[track_caller]
fn check(db: &Db, acknowledged: &BTreeMap<Vec<u8>, Vec<u8>>, what: &str) {
    let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    let mut expected = acknowledged.iter();
    while iter.valid() {
        let Some((key, value)) = expected.next() else {
            panic!("{what}: {} is there", iter.key().escape_ascii());
        };
        assert_eq!(iter.key(), key, "{what}");
        assert_eq!(iter.value(), value, "{what}");
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!(expected.next(), None, "{what}: keys are missing");
    for (key, value) in acknowledged.iter().step_by(97) {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]), "{what}");
    }
}

fn is_clear(error: &Error) -> bool {
    let text = error.to_string();
    error.is_no_space() && text.contains("the disk of /db is full") && !text.contains("resume")
}

#[test]
fn full_disk_refuses_writes_with_a_clear_error() {
    let mut small = Small::new(16 * MIB, options());
    let (taken, error) = small.fill(0, &WriteOptions::default());
    assert!(is_clear(&error), "{error}");
    assert!(u64::from(taken) * 1000 > 8 * MIB, "{taken} of 16 MiB");
    assert_eq!(small.disk.refusals(), 0, "no write met the end of the disk");
    assert_eq!(small.db().disk().state, SpaceState::Low);
    let text = small.db().report(small.db().default_family()).unwrap().health;
    assert!(text.contains("the disk is full") && text.contains("deletes are taken"), "{text}");
    assert!(small.db().statistics().get(Ticker::DiskFullRefusals) > 0);
    small.check("full");
}

#[test]
fn killed_database_opens_on_a_full_disk() {
    let mut small = Small::new(16 * MIB, options());
    let (taken, _) = small.fill(0, &WriteOptions::default());
    small.kill();
    small.check("killed");
    small.settle();
    small.check("settled");
    for number in 0..taken {
        small.delete(number);
    }
    small.settle();
    let (again, error) = small.fill(0, &WriteOptions::default());
    assert!(is_clear(&error) && again > taken / 2, "{again} of {taken}: {error}");
    small.check("filled again");
}

#[test]
fn deletes_on_a_full_disk_give_space_back() {
    for every in [1, 2, 5] {
        let mut small = Small::new(16 * MIB, options());
        let (taken, _) = small.fill(0, &WriteOptions::default());
        small.settle();
        let mut deleted = 0;
        for number in (0..taken).filter(|number| number % every == 0) {
            small.delete(number);
            deleted += 1;
            if number % 256 == 0 {
                small.settle();
            }
        }
        small.settle();
        small.check("deleted");
        let (again, error) = small.fill(taken, &WriteOptions::default());
        assert!(is_clear(&error), "{error}");
        assert!(again * 2 > deleted, "every {every}: {again} writes after {deleted} deletes");
        small.check("filled again");
    }
}

#[test]
fn range_delete_of_everything_frees_a_full_disk() {
    let mut small = Small::new(16 * MIB, options());
    let (taken, _) = small.fill(0, &WriteOptions::default());
    let db = small.db();
    db.delete_range(db.default_family(), b"a", b"z", &WriteOptions::default()).unwrap();
    small.acknowledged.clear();
    small.settle();
    small.check("emptied");
    let (again, error) = small.fill(0, &WriteOptions::default());
    assert!(is_clear(&error) && again > taken / 2, "{again} after {taken}: {error}");
}

#[test]
fn write_that_frees_space_uses_the_reserve() {
    let mut small = Small::new(16 * MIB, options());
    let (_, _) = small.fill(0, &WriteOptions::default());
    assert!(small.db().disk().reserve_bytes > 0);
    small.disk.occupy(small.disk.free());
    let db = small.db();
    let put = |space_use| {
        let options = WriteOptions { space_use, ..WriteOptions::default() };
        db.put_with(db.default_family(), b"key:000001", b"", &options)
    };
    let refused = put(SpaceUse::Takes).unwrap_err();
    assert!(is_clear(&refused), "{refused}");
    put(SpaceUse::Frees).unwrap();
    small.acknowledged.insert(b"key:000001".to_vec(), Vec::new());
    small.check("shrunk");
    assert_eq!(small.db().disk().reserve_bytes, 0, "it is used");
    assert_eq!(small.db().statistics().get(Ticker::DiskReserveUses), 1);
    small.disk.occupy(0);
    small.disk.set_capacity(64 * MIB);
    small.settle();
    assert!(small.db().disk().reserve_bytes > 0, "it is written anew");
    small.put(9_000_000, &WriteOptions::default()).unwrap();
    small.check("larger");
}

/// Another program always takes all free space: the reserve suffices for a flush of all memory.
#[test]
fn memory_of_a_small_disk_fits_the_reserve() {
    let mut small = Small::new(16 * MIB, options());
    let mut rng = Rng::with_seed(11);
    let mut number = 0;
    for round in 0..40 {
        for _ in 0..rng.u32(1..1500) {
            // A quarter of the disk in each round.
            small.put(number % 4000, &WriteOptions::default()).unwrap();
            number += 1;
            if number % 2000 == 0 {
                small.settle();
            }
        }
        let others = small.disk.free();
        small.disk.occupy(others);
        small.delete(number % 4000);
        let cf = small.db().default_family();
        small.db().flush(cf).unwrap_or_else(|error| panic!("round {round}: {error}"));
        if round % 4 == 0 {
            small.kill();
        }
        small.check("full");
        small.disk.occupy(0);
        small.disk.set_capacity(16 * MIB);
        small.settle();
        assert!(small.db().disk().reserve_bytes > 0, "round {round}: it is written anew");
    }
}

/// Likewise after a failed sync: all memory goes to tables, and the log continues.
#[test]
fn synced_delete_on_a_filled_disk_leaves_the_log() {
    let memory = TestDisk::new();
    let disk = CapacityFs::new(Arc::new(memory.clone()), Path::new(DIR), 16 * MIB).unwrap();
    let faults = FaultFs::new(Arc::new(disk.clone()), 1);
    let db = open_over(Arc::new(faults.clone()), options()).unwrap();
    db.step_background().unwrap();
    let mut acknowledged = BTreeMap::new();
    let mut rng = Rng::with_seed(12);
    for round in 0..20u32 {
        for _ in 0..rng.u32(1..1500) {
            let (key, mut value) = (rng.u32(..4000).to_be_bytes(), vec![0; 1000]);
            value.fill_with(|| rng.u8(..));
            while let Err(error) = db.put(&key, &value) {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                db.step_background().unwrap();
            }
            acknowledged.insert(key.to_vec(), value);
        }
        disk.occupy(disk.free());
        faults.add(Rule::on(Operation::LogSync).fault(Fault::NoSpace).nth(1));
        let key = rng.u32(..4000).to_be_bytes();
        let deleted = db.delete_with(db.default_family(), &key, &WriteOptions::synced());
        deleted.unwrap_or_else(|error| panic!("round {round}: {error}"));
        acknowledged.remove(&key[..]);
        faults.clear();
        let left = open_over(Arc::new(memory.crash_clone(u64::from(round))), options()).unwrap();
        check(&left, &acknowledged, &format!("round {round}: power loss"));
        disk.occupy(0);
        while db.step_background().unwrap() {}
        assert_eq!(db.report(db.default_family()).unwrap().health, "healthy", "round {round}");
    }
}

#[test]
fn mixed_batch_is_refused_as_a_whole() {
    let mut small = Small::new(16 * MIB, options());
    let (taken, _) = small.fill(0, &WriteOptions::default());
    let mut batch = WriteBatch::new();
    let cf = small.db().default_family().id();
    batch.delete_cf(cf, b"key:000000");
    batch.put_cf(cf, b"other", &[7; 64 << 10]);
    let refused = small.db().write(&batch, &WriteOptions::default()).unwrap_err();
    assert!(is_clear(&refused), "{refused}");
    small.check("refused");
    assert!(taken > 0);
}

#[test]
fn open_keeps_the_log_if_its_tables_do_not_fit() {
    let (memory, capacity) = (TestDisk::new(), 64 * MIB);
    let disk = CapacityFs::new(Arc::new(memory.clone()), Path::new(DIR), capacity).unwrap();
    let mut small = Small {
        db: Some(open_over(Arc::new(disk.clone()), options()).unwrap()),
        memory,
        disk,
        options: options(),
        acknowledged: BTreeMap::new(),
        rng: Rng::with_seed(1),
    };
    for number in 0..5000 {
        small.put(number, &WriteOptions::default()).unwrap();
    }
    // Another program takes all free space.
    small.disk.occupy(small.disk.free());
    let lose_reserve = |memory: &TestDisk| memory.remove(&Path::new(DIR).join("RESERVE")).unwrap();
    small.kill_and(lose_reserve);
    assert_eq!(small.disk.free(), 0);
    small.check("opened without a free block");
    let refused = small.put(1, &WriteOptions::default()).unwrap_err();
    assert!(refused.is_no_space(), "{refused}");
    // A second kill leaves the same.
    small.kill();
    small.check("opened again");
    small.disk.set_capacity(64 * MIB);
    small.settle();
    small.put(5001, &WriteOptions::synced()).unwrap();
    small.check("room again");
    let lost_power = small.memory.crash_clone(5);
    let db = open_over(Arc::new(lost_power), options()).unwrap();
    check(&db, &small.acknowledged, "power loss after a synced write");
    small.db().flush(small.db().default_family()).unwrap();
    let logs = small.disk.list(Path::new(DIR)).unwrap();
    let logs = logs.iter().filter(|entry| entry.name.ends_with(".log")).count();
    assert!(logs <= 3, "{logs} segments are left");
}

#[test]
fn synced_write_on_a_full_disk_is_durable_or_refused() {
    let options = DbOptions { wal_segment_bytes: 256 << 10, ..small_db() };
    for nth in 1..8 {
        let memory = TestDisk::new();
        let disk = CapacityFs::new(Arc::new(memory.clone()), Path::new(DIR), 64 * MIB).unwrap();
        let faults = FaultFs::new(Arc::new(disk), 1);
        let db = open_over(Arc::new(faults.clone()), options.clone()).unwrap();
        db.step_background().unwrap();
        let rule = Rule::on(Operation::LogSync).fault(Fault::NoSpace);
        faults.add(rule.when(archipelago_env::fault::When::From(nth)).times(2));
        let mut acknowledged = BTreeMap::new();
        for number in 0..20u32 {
            let (key, value) = (number.to_be_bytes().to_vec(), vec![7; 100]);
            let put = db.put_with(db.default_family(), &key, &value, &WriteOptions::synced());
            put.unwrap_or_else(|error| panic!("sync {nth}, write {number}: {error}"));
            acknowledged.insert(key, value);
            let left = open_over(Arc::new(memory.crash_clone(u64::from(number))), options.clone());
            check(&left.unwrap(), &acknowledged, "power loss");
        }
        assert_eq!(faults.fired(Operation::LogSync), 2, "the log was left for tables, twice");
        let health = db.report(db.default_family()).unwrap().health;
        assert_eq!(health, "healthy", "sync {nth}");
    }
}

#[test]
fn sync_without_room_is_told_and_heals_by_itself() {
    let options = DbOptions { disk_reserve_bytes: 0, ..small_db() };
    let memory = TestDisk::new();
    let disk = CapacityFs::new(Arc::new(memory.clone()), Path::new(DIR), 64 * MIB).unwrap();
    let faults = FaultFs::new(Arc::new(disk), 1);
    let db = open_over(Arc::new(faults.clone()), options).unwrap();
    let cf = db.default_family().clone();
    db.put_with(&cf, b"a", b"1", &WriteOptions::synced()).unwrap();
    let rule =
        faults.add(Rule::on_any(&[Operation::LogSync, Operation::Create]).fault(Fault::NoSpace));
    let told = db.put_with(&cf, b"b", b"2", &WriteOptions::synced()).unwrap_err();
    assert!(told.is_no_space() && !told.to_string().contains("resume"), "{told}");
    assert!(faults.fired_by(rule) > 0);
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]), "reads go on");
    // Writes without a sync go on as long as the log takes them.
    db.put(b"c", b"3").unwrap();
    faults.clear();
    while db.step_background().unwrap() {}
    db.put_with(&cf, b"d", b"4", &WriteOptions::synced()).unwrap();
    assert_eq!(db.property(&cf, "archipelago.health").as_deref(), Some("healthy"));
    let left = open_over(Arc::new(memory.crash_clone(3)), small_db()).unwrap();
    for key in [b"a", b"b", b"c", b"d"] {
        assert!(left.get(key).unwrap().is_some(), "{}", key.escape_ascii());
    }
}

/// Every operation that takes space fails once with `ENOSPC`, in a run of its own: nothing that was
/// acknowledged is lost, nothing that was refused is half there, and the run goes on.
#[test]
fn every_enospc_of_a_run_on_a_small_disk_loses_nothing() {
    let operations = [
        Operation::Create,
        Operation::Append,
        Operation::Sync,
        Operation::CreateLog,
        Operation::LogAppend,
        Operation::LogSync,
        Operation::LogFinish,
        Operation::Rename,
        Operation::SyncDir,
    ];
    let full = std::env::var_os("ARCHIPELAGO_CRASH_FULL").is_some();
    for operation in operations {
        let total = sweep_run(operation, None);
        let samples = if full { total } else { 6 };
        for sample in 0..samples.min(total) {
            sweep_run(operation, Some(1 + sample * total / samples));
        }
    }
}

fn open_for_sweep(fs: Arc<dyn FileSystem>) -> Result<Db> {
    let options = DbOptions { wal_segment_bytes: 256 << 10, ..small_db() };
    let family = CfOptions { write_buffer_bytes: 128 << 10, ..family() };
    let families = [("default".to_owned(), family)].into_iter().collect();
    let components = Components { fs, families, seed: Some(2), ..stepped() };
    Db::open_with(DIR, options, components)
}

/// One run. Returns the number of operations of that kind.
fn sweep_run(operation: Operation, nth: Option<u64>) -> u64 {
    let memory = TestDisk::new();
    let disk = CapacityFs::new(Arc::new(memory.clone()), Path::new(DIR), 3 * MIB).unwrap();
    let faults = FaultFs::new(Arc::new(disk.clone()), 5);
    let label = format!("{operation:?} {nth:?}");
    let open = open_for_sweep;
    let mut db = open(Arc::new(faults.clone())).unwrap();
    if let Some(nth) = nth {
        faults.add(Rule::on(operation).path(DIR).fault(Fault::NoSpace).nth(nth));
    }
    let before = faults.seen(operation);
    let mut acknowledged = BTreeMap::new();
    let mut rng = Rng::with_seed(8);
    for step in 0..1600u32 {
        let key = format!("{:04}", rng.u32(..1500)).into_bytes();
        let synced = step % 40 == 0;
        let write = WriteOptions { sync: synced, ..WriteOptions::default() };
        let value = (rng.u32(..4) > 0).then(|| vec![step as u8; rng.usize(..2000)]);
        let cf = db.default_family().clone();
        let done = match &value {
            Some(value) => db.put_with(&cf, &key, value, &write),
            None => db.delete_with(&cf, &key, &write),
        };
        match (&done, value) {
            (Ok(()), Some(value)) => drop(acknowledged.insert(key, value)),
            (Ok(()), None) => drop(acknowledged.remove(&key)),
            (Err(error), _) => {
                assert!(
                    error.is_no_space() || error.kind() == ErrorKind::Busy,
                    "{label}: step {step}: {error}"
                );
                // A failed sync leaves the outcome open.
                if synced && error.to_string().contains("log") {
                    let now = db.get(&key).unwrap().map(|value| value.to_vec());
                    match now {
                        Some(value) => drop(acknowledged.insert(key, value)),
                        None => drop(acknowledged.remove(&key)),
                    }
                }
            }
        }
        let _stepped = db.step_background();
        if step % 800 == 799 {
            check(&db, &acknowledged, &format!("{label}: step {step}"));
            let killed = memory.kill_clone();
            check(&open(Arc::new(killed)).unwrap(), &acknowledged, &format!("{label}: killed"));
            drop(db);
            db = match open(Arc::new(faults.clone())) {
                Ok(db) => db,
                Err(error) if error.is_no_space() => open(Arc::new(faults.clone())).unwrap(),
                Err(error) => panic!("{label}: {error}"),
            };
        }
    }
    let seen = faults.seen(operation) - before;
    faults.clear();
    disk.set_capacity(64 * MIB);
    while db.step_background().unwrap() {}
    db.put(b"later", b"").unwrap_or_else(|error| panic!("{label}: {error}"));
    acknowledged.insert(b"later".to_vec(), Vec::new());
    check(&db, &acknowledged, &format!("{label}: the end"));
    assert_eq!(db.report(db.default_family()).unwrap().health, "healthy", "{label}");
    assert!(db.verify(|_, _| {}).unwrap().is_clean(), "{label}");
    seen
}

/// Synced writes fill a small disk, and power fails after some of the syncs. Every acknowledged
/// write must be there afterwards, and the write in progress may be.
#[test]
fn power_loss_on_a_small_disk_keeps_every_synced_write() {
    let memory = TestDisk::new();
    let disk = CapacityFs::new(Arc::new(memory.clone()), Path::new(DIR), 2 * MIB).unwrap();
    let options = DbOptions { wal_segment_bytes: 128 << 10, ..small_db() };
    let db = open_over(Arc::new(disk), options.clone()).unwrap();
    let clones = Arc::new(parking_lot::Mutex::new((0u64, Vec::<TestDisk>::new())));
    let taken = Arc::clone(&clones);
    memory.on_sync(Arc::new(move |memory: &TestDisk, _: &Path| {
        let (count, clones) = &mut *taken.lock();
        *count += 1;
        if *count % 23 == 0 {
            clones.push(memory.crash_clone(*count));
        }
    }));
    let mut acknowledged = BTreeMap::new();
    let (mut refused, mut checked) = (0, 0);
    for step in 0..1500u32 {
        let key = format!("{:04}", step * 7 % 900).into_bytes();
        let value = (step % 5 > 0 || refused < 3).then(|| vec![step as u8; 2400]);
        let cf = db.default_family().clone();
        let before = acknowledged.clone();
        let write = || match &value {
            Some(value) => db.put_with(&cf, &key, value, &WriteOptions::synced()),
            None => db.delete_with(&cf, &key, &WriteOptions::synced()),
        };
        let done = loop {
            match write() {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    db.step_background().unwrap_or_else(|error| panic!("step {step}: {error}"));
                }
                done => break done,
            }
        };
        match (done, value) {
            (Ok(()), Some(value)) => drop(acknowledged.insert(key, value)),
            (Ok(()), None) => drop(acknowledged.remove(&key)),
            (Err(error), _) => {
                assert!(is_clear(&error), "{error}");
                refused += 1;
            }
        }
        db.step_background().unwrap_or_else(|error| panic!("step {step}: {error}"));
        for left in std::mem::take(&mut clones.lock().1) {
            let found = open_over(Arc::new(left), options.clone()).unwrap();
            let now = contents(&found);
            assert!(now == acknowledged || now == before, "step {step}");
            checked += 1;
        }
    }
    memory.clear_on_sync();
    assert!(refused > 10 && checked > 30, "{refused} refused, {checked} checked");
}

fn contents(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    let mut found = BTreeMap::new();
    while iter.valid() {
        found.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next();
    }
    iter.status().unwrap();
    found
}

/// The tiers have two devices, and both get full.
#[test]
fn full_tiers_take_deletes_and_open_again() {
    use archipelago_tier::{DeviceKind, DeviceParts, DeviceSettings, TieredFs};
    let memory = TestDisk::new();
    let limited = |path: &str| {
        let fs = CapacityFs::new(Arc::new(memory.clone()), Path::new(path), 6 * MIB).unwrap();
        let settings = DeviceSettings::new(path, DeviceKind::Directory).creating();
        (fs.clone(), DeviceParts { settings, fs: Arc::new(fs), is_local: false })
    };
    let open = || {
        let (disks, parts): (Vec<_>, Vec<_>) = ["/fast", "/slow"].map(limited).into_iter().unzip();
        let components = archipelago_tier::Components {
            spawn: None,
            seed: Some(5),
            outside: Arc::new(memory.clone()),
            ..archipelago_tier::Components::default()
        };
        let tiers = TieredFs::open_over(DIR, parts, components).unwrap();
        let options = DbOptions { wal_segment_bytes: 512 << 10, ..small_db() };
        let db = open_over(Arc::clone(&tiers) as Arc<dyn FileSystem>, options).unwrap();
        (disks, tiers, db)
    };
    let (_, tiers, db) = open();
    let mut acknowledged = BTreeMap::new();
    let mut rng = Rng::with_seed(4);
    let mut number = 0u32;
    let refusal = loop {
        let (key, mut value) = (number.to_be_bytes().to_vec(), vec![0; 1000]);
        value.fill_with(|| rng.u8(..));
        match db.put(&key, &value) {
            Ok(()) => drop(acknowledged.insert(key, value)),
            Err(error) if error.kind() == ErrorKind::Busy => {}
            Err(error) => break error,
        }
        let _stepped = db.step_background();
        number += 1;
        assert!(number < 100_000, "the tiers are never full");
    };
    assert!(is_clear(&refusal), "{refusal}");
    assert!(acknowledged.len() > 5000, "{}: {refusal}", acknowledged.len());
    check(&db, &acknowledged, "full");
    drop(db);
    tiers.close().unwrap();
    drop(tiers);
    let (_, _tiers, db) = open();
    check(&db, &acknowledged, "opened again");
    let keys: Vec<Vec<u8>> = acknowledged.keys().cloned().collect();
    for key in &keys {
        db.delete(key).unwrap();
    }
    for _ in 0..200 {
        let _stepped = db.step_background();
    }
    db.put(b"later", b"").unwrap();
    check(&db, &[(b"later".to_vec(), Vec::new())].into(), "emptied");
}
