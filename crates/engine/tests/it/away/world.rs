//! A database over memory nodes, stepped by the test, with a model of its content.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{ErrorKind, Result};
use archipelago_engine::db::{BackgroundMode, Components, Db, FaultPoint, ReadOptions};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::fault::FaultFs;

use super::{FakeExecutor, FakeStore, Mood};
use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

/// Number of different keys.
pub(super) const KEYS: u32 = 400;

/// Changes of a test to the usual settings.
pub(super) struct Change {
    pub(super) mood: Mood,
    pub(super) db: DbOptions,
    pub(super) family: CfOptions,
    pub(super) fault: Option<FaultPoint>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) background: BackgroundMode,
}

impl Default for Change {
    fn default() -> Self {
        let family = CfOptions {
            merge_operator: Some("append".to_owned()),
            write_buffers_max: 2,
            // A bucket of many memtables has the bytes of one, so memtables rest for long.
            buckets: 12,
            ..small_family()
        };
        Self {
            mood: Mood::default(),
            db: small_db(),
            family,
            fault: None,
            clock: SystemClock::shared(),
            background: BackgroundMode::Manual,
        }
    }
}

pub(super) struct World {
    pub(super) fs: TestDisk,
    /// The file system between the database and `fs`, which can fail.
    pub(super) faults: FaultFs,
    pub(super) store: Arc<FakeStore>,
    pub(super) db: Db,
    pub(super) model: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The budget of the next open, if it is shared.
    pub(super) budget: Option<Arc<ByteBudget>>,
    options: DbOptions,
    family: CfOptions,
    mood: Mood,
    executor: Option<Arc<FakeExecutor>>,
    background: BackgroundMode,
    rng: fastrand::Rng,
}

pub(super) fn key(number: u32) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

fn components(
    fs: &TestDisk,
    faults: &FaultFs,
    family: &CfOptions,
    store: &Arc<FakeStore>,
) -> Components {
    Components {
        fs: Arc::new(faults.clone()),
        shard_store: Some(Arc::clone(store) as _),
        ..over(fs, family.clone())
    }
}

/// The same components, with an executor for flushes.
pub(crate) fn with_executor(parts: Components, executor: Option<&Arc<FakeExecutor>>) -> Components {
    match executor {
        Some(executor) => Components { executor: Arc::clone(executor) as _, ..parts },
        None => parts,
    }
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(Change::default())
    }

    /// A database that has its first bucket map, so that later memtables may be sent.
    pub(super) fn with(change: Change) -> Self {
        let Change { mood, db: options, family, fault, clock, background } = change;
        let (fs, store) = (TestDisk::new(), FakeStore::new(3, mood));
        let faults = FaultFs::new(Arc::new(fs.clone()), 1);
        let parts = components(&fs, &faults, &family, &store);
        let executor = FakeExecutor::of(7, &store, mood);
        let parts = Components { fault_point: fault, clock, background, ..parts };
        let parts = with_executor(parts, executor.as_ref());
        let db = Db::open_with("/db", options.clone(), parts).unwrap();
        let rng = fastrand::Rng::with_seed(5);
        let mut world = Self {
            fs,
            faults,
            store,
            db,
            model: BTreeMap::new(),
            budget: None,
            options,
            family,
            mood,
            executor,
            background,
            rng,
        };
        for number in (0..KEYS).step_by(5) {
            world.put(number, "first");
        }
        world.db.flush(world.db.default_family()).unwrap();
        let buckets = world.db.buckets(world.db.default_family()).unwrap().len();
        assert_eq!(buckets > 1, world.family.buckets != 1);
        assert_eq!(world.store.did().sent, 0, "the first memtable cuts the bucket map");
        world
    }

    pub(super) fn put(&mut self, number: u32, what: &str) {
        let value = format!("{what} {number} {}", "x".repeat(60)).into_bytes();
        self.db.put(&key(number), &value).unwrap();
        self.model.insert(key(number), value);
    }

    pub(super) fn executor(&self) -> &FakeExecutor {
        self.executor.as_ref().expect("the world has an executor")
    }

    /// Runs background steps until none is due. With background threads it does nothing.
    pub(super) fn settle(&self) {
        if self.background == BackgroundMode::Threads {
            return;
        }
        while self.db.step_background().unwrap() {}
    }

    /// Makes `count` writes of all kinds over all keys, with background steps in between.
    pub(super) fn write(&mut self, count: u32, what: &str) {
        let cf = self.db.default_family().clone();
        for at in 0..count {
            let number = self.rng.u32(..KEYS);
            match self.rng.u32(..20) {
                0 => {
                    self.db.delete(&key(number)).unwrap();
                    self.model.remove(&key(number));
                }
                1 => {
                    let (start, end) = (key(number), key(number + 5));
                    self.db.delete_range(&cf, &start, &end, &WriteOptions::default()).unwrap();
                    self.model.retain(|key, _| *key < start || *key >= end);
                }
                2..6 => {
                    let operand = format!("+{what}{at}").into_bytes();
                    self.db.merge(&cf, &key(number), &operand, &WriteOptions::default()).unwrap();
                    self.model.entry(key(number)).or_default().extend_from_slice(&operand);
                }
                _ => self.put(number, &format!("{what}{at}")),
            }
            if at % 20 == 0 {
                self.settle();
            }
        }
        self.settle();
    }

    /// Writes until shards of at least `memtables` memtables are away.
    pub(super) fn send_away(&mut self, memtables: usize) {
        for round in 0..200 {
            let mut away: Vec<u64> = self.store.held().iter().map(|id| id.memtable).collect();
            away.sort_unstable();
            away.dedup();
            if away.len() >= memtables {
                return;
            }
            self.write(40, &format!("r{round}-"));
        }
        panic!("nothing leaves: {:?}", self.store.did());
    }

    /// Compares everything with the model, by every kind of read.
    pub(super) fn check(&self) {
        let cf = self.db.default_family();
        let options = ReadOptions::default();
        let keys: Vec<Vec<u8>> = (0..KEYS + 10).map(key).collect();
        let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let all = self.db.multi_get(cf, &refs, &options).unwrap();
        for (key, found) in keys.iter().zip(all) {
            let expected = self.model.get(key);
            assert_eq!(found.as_deref(), expected.map(Vec::as_slice), "{}", key.escape_ascii());
            let alone = self.db.get(key).unwrap();
            assert_eq!(alone.as_deref(), expected.map(Vec::as_slice), "{}", key.escape_ascii());
            assert_eq!(self.db.contains(cf, key, &options).unwrap(), expected.is_some());
        }
        self.check_iterator(&mut self.db.iter(cf, &options).unwrap());
    }

    /// Compares the rows of an iterator with the model.
    pub(super) fn check_iterator(&self, iter: &mut archipelago_engine::db::Iter) {
        check_rows(iter, &self.model);
    }

    pub(super) fn ticker(&self, ticker: Ticker) -> u64 {
        self.db.statistics().get(ticker)
    }

    /// Closes the database, or kills its process, and opens it with other nodes.
    pub(super) fn reopen(&mut self, kill: bool) {
        if kill {
            self.fs = self.fs.kill_clone();
        } else {
            self.db.clone().close().unwrap();
            assert!(self.mood.leaves || self.store.held().is_empty());
        }
        self.open_with(FakeStore::new(9, self.mood), None);
    }

    /// Opens the present files with another store, and calls `fault` at named points.
    pub(super) fn open_with(&mut self, store: Arc<FakeStore>, fault: Option<FaultPoint>) {
        self.faults = FaultFs::new(Arc::new(self.fs.clone()), 1);
        self.executor = FakeExecutor::of(11, &store, self.mood);
        self.db = self.try_open(&self.fs, &store, fault).unwrap();
        self.store = store;
    }

    /// Opens these files over a store.
    pub(super) fn try_open(
        &self,
        fs: &TestDisk,
        store: &Arc<FakeStore>,
        fault_point: Option<FaultPoint>,
    ) -> Result<Db> {
        let parts = components(fs, &self.faults, &self.family, store);
        let budget = self.budget.clone();
        let parts = with_executor(parts, self.executor.as_ref());
        Db::open_with("/db", self.options.clone(), Components { fault_point, budget, ..parts })
    }

    /// Makes the log durable.
    pub(super) fn sync(&mut self) {
        let options = WriteOptions { sync: true, ..WriteOptions::default() };
        let cf = self.db.default_family().clone();
        self.db.put_with(&cf, &key(1), b"synced", &options).unwrap();
        self.model.insert(key(1), b"synced".to_vec());
    }

    /// Kills the process. The next owner finds the nodes unchanged.
    pub(super) fn take_over(&mut self) {
        let fs = self.fs.kill_clone();
        self.take_over_at(fs, self.mood, None);
    }

    /// The next owner finds these files, and the nodes unchanged.
    pub(super) fn take_over_at(&mut self, fs: TestDisk, mood: Mood, fault: Option<FaultPoint>) {
        let next = self.store.next(9, mood);
        self.fs = fs;
        self.open_with(next, fault);
    }
}

/// Compares the rows of an iterator with a model: forwards, backwards and after seeks.
pub(super) fn check_rows(
    iter: &mut archipelago_engine::db::Iter,
    model: &BTreeMap<Vec<u8>, Vec<u8>>,
) {
    let row = |iter: &archipelago_engine::db::Iter| (iter.key().to_vec(), iter.value().to_vec());
    let expected: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let mut found = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        found.push(row(iter));
        iter.next();
    }
    iter.status().unwrap();
    assert!(found == expected, "forwards: {} rows, not {}", found.len(), expected.len());
    found.clear();
    iter.seek_to_last();
    while iter.valid() {
        found.push(row(iter));
        iter.prev();
    }
    iter.status().unwrap();
    found.reverse();
    assert!(found == expected, "backwards: {} rows, not {}", found.len(), expected.len());
    for number in (0..KEYS + 5).step_by(7) {
        let at = key(number);
        iter.seek(&at);
        let next = model.range(at.clone()..).next();
        assert_eq!(iter.valid().then(|| row(iter)), next.map(|(k, v)| (k.clone(), v.clone())));
        if iter.valid() {
            iter.prev();
            let before = model.range(..next.unwrap().0.clone()).next_back();
            let shown = iter.valid().then(|| row(iter));
            assert_eq!(shown, before.map(|(k, v)| (k.clone(), v.clone())));
        }
        iter.seek_for_prev(&at);
        let last = model.range(..=at.clone()).next_back();
        assert_eq!(iter.valid().then(|| row(iter)), last.map(|(k, v)| (k.clone(), v.clone())));
        if iter.valid() {
            iter.next();
            let after = model.range(last.unwrap().0.clone()..).nth(1);
            let shown = iter.valid().then(|| row(iter));
            assert_eq!(shown, after.map(|(k, v)| (k.clone(), v.clone())));
        }
        iter.status().unwrap();
    }
}

/// Asserts that a call has ended as busy.
pub(super) fn assert_busy<T: std::fmt::Debug>(result: Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Busy);
}
