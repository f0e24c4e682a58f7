//! Many overlapping range deletes: the tests count their cost, and compare their effect with a
//! naive model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_engine::db::{Components, Db, ReadOptions, Snapshot};
use archipelago_engine::event::{Event, EventListener, Listeners};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::sst::{BlockCache, TableReader};
use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_env::{FileSystem, IoContext, IoPurpose, OpenOptions};

use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

/// Sealed memtables and their bytes.
#[derive(Default)]
struct Seals {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl EventListener for Seals {
    fn on_event(&self, event: &Event) {
        if let Event::MemtableSealed { bytes, .. } = event {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(*bytes, Ordering::Relaxed);
        }
    }
}

/// A database in memory whose budget and seals can be looked at.
struct Store {
    fs: TestDisk,
    budget: Arc<ByteBudget>,
    seals: Arc<Seals>,
    db: Db,
}

impl Store {
    fn open(fs: TestDisk, family: CfOptions, budget_bytes: u64) -> Self {
        let budget = ByteBudget::new(budget_bytes);
        let seals = Arc::new(Seals::default());
        let mut listeners = Listeners::default();
        listeners.add(Arc::clone(&seals) as _);
        let components =
            Components { budget: Some(Arc::clone(&budget)), listeners, ..over(&fs, family) };
        let options = DbOptions { block_cache_bytes: 0, ..small_db() };
        let db = Db::open_with("/db", options, components).unwrap();
        Self { fs, budget, seals, db }
    }

    /// Has space for all records in one memtable.
    fn roomy() -> Self {
        Self::open(TestDisk::new(), roomy(), u64::MAX)
    }

    fn delete_range(&self, start: u64, end: u64) {
        let family = self.db.default_family();
        loop {
            let options = WriteOptions::default();
            match self.db.delete_range(family, &key(start), &key(end), &options) {
                Ok(()) => return,
                Err(_) => assert!(self.db.step_background().unwrap(), "busy for ever"),
            }
        }
    }

    fn flush(&self) {
        self.db.flush(self.db.default_family()).unwrap();
    }

    /// Range tombstones of each table in the directory.
    fn range_tombstones(&self) -> Vec<u64> {
        let (cache, budget) = (BlockCache::new(0, &self.budget), &self.budget);
        let io = IoContext::sst(IoPurpose::Maintenance, 0);
        let names = self.fs.list(Path::new("/db")).unwrap().into_iter().map(|entry| entry.name);
        let tables = names.filter(|name| name.ends_with(".sst"));
        let count = |name: String| {
            let path = Path::new("/db").join(name);
            let file = self.fs.open(&path, io, OpenOptions::default()).unwrap();
            let table = TableReader::open(file, &path, None, &cache, budget).unwrap();
            table.properties().range_deletions
        };
        tables.map(count).collect()
    }

    fn keys(&self, snapshot: Option<&Snapshot>) -> Vec<Vec<u8>> {
        let mut options = ReadOptions::new();
        if let Some(snapshot) = snapshot {
            options = options.snapshot(snapshot);
        }
        let mut iter = self.db.iter(self.db.default_family(), &options).unwrap();
        let (mut keys, mut back) = (Vec::new(), Vec::new());
        iter.seek_to_first();
        while iter.valid() {
            keys.push(iter.key().to_vec());
            iter.next();
        }
        iter.seek_to_last();
        while iter.valid() {
            back.push(iter.key().to_vec());
            iter.prev();
        }
        iter.status().unwrap();
        back.reverse();
        assert_eq!(keys, back);
        keys
    }
}

fn roomy() -> CfOptions {
    CfOptions { write_buffer_bytes: 64 << 20, ..small_family() }
}

fn key(at: u64) -> Vec<u8> {
    format!("k{at:06}").into_bytes()
}

#[test]
fn nested_range_deletes_cost_memory_in_proportion() {
    const COUNT: u64 = 5000;
    let store = Store::roomy();
    let before = store.budget.used_bytes(MemoryClass::Memtable);
    for at in 1..=COUNT {
        store.db.put(&key(at), b"v").unwrap();
        store.delete_range(0, at);
        // A read after each puts it into the set of tombstones.
        assert_eq!(store.db.get(&key(at - 1)).unwrap(), None);
    }
    let held = store.budget.used_bytes(MemoryClass::Memtable) - before;
    assert!(held < COUNT * 1024, "{held} bytes for {COUNT} range deletes");
    assert!(held > COUNT * 64, "range deletes are charged to the budget");
    store.flush();
    assert_eq!(store.keys(None), [key(COUNT)]);
    let written = store.range_tombstones();
    assert!(written.iter().all(|&count| count <= 1), "one covers all others: {written:?}");
}

#[test]
fn tombstones_kept_for_snapshots_grow_with_the_snapshots() {
    const COUNT: u64 = 600;
    let store = Store::roomy();
    let mut snapshots = Vec::new();
    for at in 1..=COUNT {
        store.db.put(&key(at), b"v").unwrap();
        // From the left, from the right, and in the middle.
        match at % 3 {
            0 => store.delete_range(0, at),
            1 => store.delete_range(at / 2, COUNT),
            _ => store.delete_range(at, at + COUNT / 4),
        }
        snapshots.push((store.db.snapshot(), store.keys(None)));
    }
    let unchanged = || {
        for (snapshot, keys) in snapshots.iter().step_by(7) {
            assert_eq!(store.keys(Some(snapshot)), *keys);
        }
    };
    unchanged();
    store.flush();
    unchanged();
    let buckets = store.db.buckets(store.db.default_family()).unwrap().len() as u64;
    let written: u64 = store.range_tombstones().iter().sum();
    assert!(written <= buckets * COUNT, "{written} tombstones of {COUNT} in {buckets} buckets");
    store.db.compact_range(store.db.default_family(), &KeyRange::all()).unwrap();
    unchanged();
    let last = snapshots.pop().unwrap().1;
    drop(snapshots);
    assert_eq!(store.keys(None), last);
    store.db.put(&key(COUNT + 1), b"v").unwrap();
    store.flush();
    store.db.compact_range(store.db.default_family(), &KeyRange::all()).unwrap();
    assert_eq!(store.keys(None).len(), last.len() + 1);
}

#[test]
fn recovery_of_range_deletes_flushes_within_the_budget() {
    const COUNT: u64 = 20_000;
    let store = Store::roomy();
    for at in 1..=COUNT {
        // Stairs that no later one covers, so that all must be kept.
        store.delete_range(at, at + 50);
        if at % 100 == 0 {
            store.db.put(&key(at), b"v").unwrap();
        }
    }
    let expected = store.keys(None);
    let Store { fs, db, budget, .. } = store;
    let whole = budget.used_bytes(MemoryClass::Memtable);
    db.close().unwrap();
    // The log's buffer takes four of them.
    let limit = 5 << 20;
    assert!(whole > 1 << 20);
    let store = Store::open(fs, roomy(), limit);
    assert!(store.range_tombstones().len() > 1, "recovery wrote memtables in between");
    assert!(store.budget.total_bytes() < limit);
    assert_eq!(store.keys(None), expected);
}

#[test]
fn range_deletes_seal_a_memtable_once_it_is_full_of_them() {
    const COUNT: u64 = 4000;
    let family = CfOptions { write_buffer_bytes: 64 << 10, ..small_family() };
    let store = Store::open(TestDisk::new(), family, u64::MAX);
    for at in 0..COUNT {
        store.delete_range(at, at + 2 + at % 300);
    }
    let seals = store.seals.count.load(Ordering::Relaxed);
    let bytes = store.seals.bytes.load(Ordering::Relaxed);
    assert!(seals > 2, "{seals} memtables");
    assert!(bytes / seals > 48 << 10, "{seals} memtables of {bytes} bytes in all");
}

#[test]
fn a_memtable_is_sealed_at_the_most_range_deletes_of_a_shard() {
    let family = CfOptions { buckets: 1, ..roomy() };
    let store = Store::open(TestDisk::new(), family, u64::MAX);
    for at in 0..40_000 {
        store.delete_range(at, 50_000);
    }
    assert_eq!(store.seals.count.load(Ordering::Relaxed), 1);
}

/// The table of the range delete waits for the one edit that leaves the log. A bucket map by the
/// keys of the next memtable would cut through it.
#[test]
fn log_is_left_after_a_range_delete_that_comes_before_the_first_map() {
    const COUNT: u64 = 1000;
    let disk = TestDisk::new();
    let family = CfOptions { buckets: 4, write_buffer_bytes: 8 << 20, ..small_family() };
    let faults = FaultFs::new(Arc::new(disk.clone()), 1);
    let components = Components { fs: Arc::new(faults.clone()), ..over(&disk, family.clone()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    db.delete_range(cf, &key(0), &key(COUNT), &WriteOptions::default()).unwrap();
    db.start_flush(cf).unwrap();
    for n in 0..COUNT {
        db.put(&key(n), b"value").unwrap();
    }
    let rule = faults.add(Rule::on(Operation::LogSync).nth(1));
    let sync = WriteOptions { sync: true, ..WriteOptions::default() };
    db.put_with(cf, &key(0), b"value", &sync).unwrap_err();
    assert_eq!(faults.fired_by(rule), 1);
    db.resume().unwrap();
    let check = |db: &Db| {
        let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
        iter.seek_to_first();
        for n in 0..COUNT {
            assert!(iter.valid(), "key {n}: {:?}", iter.status());
            assert_eq!((iter.key(), iter.value()), (&key(n)[..], &b"value"[..]));
            iter.next();
        }
        assert!(!iter.valid());
        iter.status().unwrap();
        assert!(db.verify(|_, _| {}).unwrap().is_clean());
    };
    check(&db);
    db.close().unwrap();
    let db = Db::open_with("/db", small_db(), over(&disk, family)).unwrap();
    check(&db);
    db.wait_for_background().unwrap();
    check(&db);
}
