//! Garbage collection of a whole database in memory, in manual mode.

mod bound;
#[cfg(not(feature = "gc-by-key"))]
mod calls;
#[cfg(feature = "sabotage")]
mod canaries;
mod invalid_tree;
mod refused;
mod space;

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{ErrorKind, SeqNo};
use archipelago_env::mem::MemFs;
use archipelago_env::stats::CountingFs;
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, OpenOptions};

use super::PickRank;
use crate::db::background::scheduler;
use crate::db::state::jobs::JobState;
use crate::db::state::running_jobs::{GcWorker, RunningKind};
use crate::db::{BackgroundMode, Components, Db};
use crate::db::{ReadOptions, Snapshot};
use crate::file_meta::value_file_name;
use crate::gc::lookup::{LookupInput, valid_records};
use crate::gc::space_plan::{SpaceDebt, SpaceLimit};
use crate::key::KeyRange;
use crate::lock_order::Order;
use crate::options::{CfOptions, Compression, DbOptions, WriteOptions};
use crate::sst::TableReadOptions;
use crate::stats::Ticker;
use crate::value::{KeyList, ValueTable};
use crate::version::Version;

/// Small files, so that few records make many.
fn small_family(separation_bytes: u64) -> CfOptions {
    CfOptions {
        write_buffer_bytes: 16 << 10,
        level_base_bytes: 32 << 10,
        target_file_bytes: 8 << 10,
        block_bytes: 512,
        buckets: 2,
        value_separation_bytes: separation_bytes,
        value_file_bytes: 64 << 10,
        space_amplification_max: 1.5,
        ..CfOptions::default()
    }
}

struct Store {
    fs: MemFs,
    db: Db,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    rng: Rng,
    family: CfOptions,
}

impl Store {
    fn new(family: CfOptions) -> Self {
        let fs = MemFs::new();
        let db = Self::open(&fs, &family);
        Self { fs, db, model: BTreeMap::new(), rng: Rng::with_seed(7), family }
    }

    fn open(fs: &MemFs, family: &CfOptions) -> Db {
        Self::open_on(Arc::new(fs.clone()), family)
    }

    fn open_on(fs: Arc<dyn FileSystem>, family: &CfOptions) -> Db {
        let options = DbOptions {
            wal_segment_bytes: 64 << 10,
            block_cache_bytes: 1 << 20,
            ..DbOptions::default()
        };
        let components = Components {
            background: BackgroundMode::Manual,
            fs,
            families: [("default".to_owned(), family.clone())].into_iter().collect(),
            seed: Some(1),
            ..Components::default()
        };
        Db::open_with("/db", options, components).expect("opens")
    }

    fn reopened(self) -> Self {
        let Self { fs, db, model, rng, family } = self;
        db.close().expect("closes");
        let db = Self::open(&fs, &family);
        Self { fs, db, model, rng, family }
    }

    /// Writes `count` records of random keys below `keys`; some are deletes.
    fn write(&mut self, count: u32, keys: u32) {
        for at in 0..count {
            if at % 8 == 0 {
                while self.db.step_background().expect("steps") {}
            }
            let key = format!("key{:05}", self.rng.u32(0..keys)).into_bytes();
            if self.rng.u32(0..10) == 0 {
                self.db.delete(&key).expect("writes");
                self.model.remove(&key);
                continue;
            }
            let len = [20, 100, 600, 3000][self.rng.usize(0..4)];
            let value: Vec<u8> = (0..len).map(|_| self.rng.u8(..)).collect();
            self.db.put(&key, &value).expect("writes");
            self.model.insert(key, value);
        }
    }

    /// Writes a value. Runs steps of background work while the write would have to wait.
    fn put_patiently(&mut self, key: Vec<u8>, value: Vec<u8>) {
        loop {
            match self.db.put(&key, &value) {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::Busy => {
                    self.db.step_background().expect("steps");
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.model.insert(key, value);
    }

    /// Bytes of tables and value files in the directory.
    fn bytes_on_disk(&self) -> u64 {
        let entries = FileSystem::list(&self.fs, "/db".as_ref()).expect("lists");
        let is_data = |name: &str| name.ends_with(".vsst") || name.ends_with(".sst");
        entries.iter().filter(|entry| is_data(&entry.name)).map(|entry| entry.len).sum()
    }

    /// Bytes that tables and value files may have now, without slack: the bound on the live bytes,
    /// debt, and the error of the estimate of hidden garbage.
    fn bytes_allowed(&self, bound: f64) -> f64 {
        let mut state = self.db.inner.jobs.lock(Order::none());
        let space = state.space_mut(self.db.default_family().id());
        let view = space.view().expect("value files exist");
        let unknown = view.hidden.upper_bound_bytes - view.usage.hidden_bytes;
        bound * view.usage.live_bytes() as f64 + (space.debt().bytes() + unknown) as f64
    }

    fn debt(&self) -> SpaceDebt {
        let mut state = self.db.inner.jobs.lock(Order::none());
        *state.space_mut(self.db.default_family().id()).debt()
    }

    fn settle(&self) {
        self.db.flush(self.db.default_family()).expect("flushes");
        self.db.wait_for_background().expect("settles");
    }

    fn compact(&self) {
        self.settle();
        self.db.compact_range(self.db.default_family(), &KeyRange::all()).expect("compacts");
        self.db.wait_for_background().expect("settles");
    }

    fn version(&self) -> Arc<Version> {
        Arc::clone(&self.db.default_family().family.current.load().version)
    }

    fn ticker(&self, ticker: Ticker) -> u64 {
        self.db.inner.observers.stats().get(ticker)
    }

    /// Checks that every key reads as in the model: one by one, in one batch, and by an iterator.
    fn check(&self) {
        self.version().check().expect("sound");
        let family = self.db.default_family();
        let keys: Vec<&[u8]> = self.model.keys().map(Vec::as_slice).collect();
        let options = ReadOptions::default();
        let many = self.db.multi_get(family, &keys, &options).expect("reads");
        for ((key, value), found) in self.model.iter().zip(many) {
            let one = self.db.get(key).expect("reads");
            assert_eq!(one.as_deref(), Some(value.as_slice()), "{}", key.escape_ascii());
            assert_eq!(found.as_deref(), Some(value.as_slice()), "{}", key.escape_ascii());
        }
        let mut iter = self.db.iter(family, &options).expect("iterates");
        iter.seek_to_first();
        let mut expected = self.model.iter();
        while iter.valid() {
            let (key, value) = expected.next().expect("no more keys than the model");
            assert_eq!((iter.key(), iter.value()), (key.as_slice(), value.as_slice()));
            iter.next();
        }
        iter.status().expect("no error");
        assert_eq!(expected.next(), None);
    }

    /// Number of value files in the directory.
    fn value_files_on_disk(&self) -> usize {
        let entries = FileSystem::list(&self.fs, "/db".as_ref()).expect("lists");
        entries.iter().filter(|entry| entry.name.ends_with(".vsst")).count()
    }
}

#[test]
fn updates_are_collected_and_every_read_stays_true() {
    for separation_bytes in [1, 64, 512] {
        let mut store = Store::new(small_family(separation_bytes));
        for _ in 0..6 {
            store.write(400, 150);
            store.settle();
            store.check();
        }
        assert!(store.ticker(Ticker::GcJobs) > 0, "threshold {separation_bytes}");
        store.compact();
        store.check();
        let version = store.version();
        let values = version.values();
        assert!(values.exposed_bytes() * 2 <= values.referenced_bytes());
        assert_eq!(store.value_files_on_disk(), values.len());
        drop(version);
        let store = store.reopened();
        store.check();
        assert_eq!(store.value_files_on_disk(), store.version().values().len());
    }
}

#[test]
fn snapshot_reads_its_values_after_garbage_collection() {
    let mut store = Store::new(small_family(64));
    store.write(300, 100);
    store.settle();
    let before = store.model.clone();
    let snapshot: Snapshot = store.db.snapshot();
    for _ in 0..4 {
        store.write(300, 100);
        store.compact();
    }
    let options = ReadOptions::default().snapshot(&snapshot);
    for (key, value) in &before {
        let found = store.db.get_with(store.db.default_family(), key, &options).expect("reads");
        assert_eq!(found.as_deref(), Some(value.as_slice()));
    }
    drop((options, snapshot));
    store.compact();
    store.check();
}

#[test]
fn deleting_everything_leaves_no_value_file() {
    let mut store = Store::new(small_family(64));
    store.write(300, 100);
    store.settle();
    assert!(!store.version().values().is_empty());
    let family = store.db.default_family();
    store.db.delete_range(family, b"a", b"z", &WriteOptions::default()).expect("deletes");
    store.model.clear();
    store.compact();
    store.check();
    assert!(store.version().values().is_empty());
    assert_eq!(store.value_files_on_disk(), 0);
}

#[test]
fn iterator_outlives_the_files_that_it_reads() {
    let mut store = Store::new(small_family(64));
    store.write(300, 100);
    store.settle();
    let before = store.model.clone();
    let mut iter = store.db.iter(store.db.default_family(), &ReadOptions::default()).expect("made");
    for _ in 0..3 {
        store.write(300, 100);
        store.compact();
    }
    iter.seek_to_last();
    for (key, value) in before.iter().rev() {
        assert_eq!((iter.key(), iter.value()), (key.as_slice(), value.as_slice()));
        iter.prev();
    }
    assert!(!iter.valid() && iter.status().is_ok());
}

#[test]
fn synced_writes_survive_power_loss_after_garbage_collection() {
    let mut store = Store::new(small_family(64));
    for _ in 0..4 {
        store.write(300, 100);
        store.settle();
    }
    store.db.put_with(store.db.default_family(), b"last", b"x", &WriteOptions::synced()).unwrap();
    store.model.insert(b"last".to_vec(), b"x".to_vec());
    let Store { fs, db, model, rng, family } = store;
    let fs = fs.crash_clone(3);
    drop(db);
    let db = Store::open(&fs, &family);
    Store { fs, db, model, rng, family }.check();
}

#[test]
fn space_stays_within_the_bound_under_uniform_updates() {
    const KEYS: u32 = 400;
    const VALUE: usize = 4000;
    for bound in [1.25, 1.5] {
        let family = CfOptions { space_amplification_max: bound, ..small_family(64) };
        // The slack covers a full value file, the memtables, and the outputs of one job.
        let slack = 2 * family.value_file_bytes + 4 * family.write_buffer_bytes;
        let mut store = Store::new(family);
        let live = u64::from(KEYS) * (VALUE as u64 + 30);
        let mut worst = 0.0_f64;
        for round in 0..4 {
            for at in 0..KEYS {
                let key = if round == 0 { at } else { store.rng.u32(0..KEYS) };
                let value = (0..VALUE).map(|_| store.rng.u8(..)).collect();
                store.put_patiently(format!("key{key:05}").into_bytes(), value);
                if at % 4 == 0 {
                    // The steps do less than the due work, so that writers meet the bound.
                    for _ in 0..2 {
                        store.db.step_background().expect("steps");
                    }
                }
                if at % 8 > 0 {
                    continue;
                }
                let used = store.bytes_on_disk();
                if round > 0 {
                    worst = worst.max(used as f64 / live as f64);
                    let allowed = store.bytes_allowed(bound) + slack as f64;
                    assert!(
                        used as f64 <= allowed,
                        "bound {bound}, round {round}: {used} bytes for {live} live ones"
                    );
                }
            }
        }
        store.settle();
        store.check();
        println!("bound {bound}: at worst {worst:.3}");
    }
}

#[test]
fn lookup_by_pieces_equals_lookup_by_blocks() {
    let mut store = Store::new(small_family(64));
    for _ in 0..4 {
        store.write(400, 400);
        store.settle();
    }
    let Store { fs, db, family, .. } = store;
    db.close().expect("closes");
    let fs = CountingFs::new(Arc::new(fs));
    let db = Store::open_on(Arc::new(fs.clone()), &family);
    let version = Arc::clone(&db.default_family().family.current.load().version);
    let (cache, budget) = (db.inner.view.cache(), db.inner.context.budget());
    let context = IoContext::new(FileClass::Sst, IoPurpose::Gc);
    let keys: Vec<(u64, KeyList)> = version
        .values()
        .files()
        .map(|(file, _)| {
            let path = db.inner.storage.path_of(&value_file_name(file.file_no()));
            let opened = fs.open(&path, context, OpenOptions::default()).expect("opens");
            let table = ValueTable::open(opened, &path, file.meta(), cache, budget).expect("opens");
            (file.no, KeyList::read(table.keys(context).expect("reads")).expect("reads"))
        })
        .collect();
    let inputs: Vec<LookupInput<'_>> =
        keys.iter().map(|(no, keys)| LookupInput { no: *no, keys }).collect();
    let look_up = |flat_index: bool| {
        let reads = || fs.snapshot().of(FileClass::Sst, IoPurpose::Gc).read_ops;
        let before = reads();
        let options = TableReadOptions { context, flat_index, ..TableReadOptions::foreground() };
        let valid = valid_records(&version, db.inner.view.tables(), &inputs, &options);
        (valid.expect("reads"), reads() - before)
    };
    cache.clear();
    let (by_blocks, reads_by_blocks) = look_up(false);
    cache.clear();
    let (by_pieces, cold_reads) = look_up(true);
    let (again, warm_reads) = look_up(true);
    assert_eq!(by_pieces, by_blocks);
    assert_eq!(again, by_blocks);
    let valid: u64 = by_blocks.iter().map(|bits| bits.valid_records()).sum();
    let records: usize = keys.iter().map(|(_, keys)| keys.len()).sum();
    assert!(valid > 0 && valid < records as u64, "{valid} of {records} are valid");
    assert!(cold_reads * 2 < reads_by_blocks, "{cold_reads} reads, {reads_by_blocks} by blocks");
    assert_eq!(warm_reads, 0);
    // The tables that an input is searched in do not depend on the other inputs.
    for (input, expected) in inputs.iter().zip(&by_blocks) {
        let options = TableReadOptions { context, ..TableReadOptions::foreground() };
        let alone = valid_records(&version, db.inner.view.tables(), &[*input], &options);
        assert_eq!(alone.expect("reads"), std::slice::from_ref(expected));
    }
}

#[test]
fn values_go_back_inline_into_more_tables_than_inputs() {
    let mut store = Store::new(small_family(64));
    let value = |at: u32| (0..3000).map(|byte| (at as usize * 7 + byte) as u8).collect::<Vec<u8>>();
    for at in 0..600 {
        store.put_patiently(format!("key{at:05}").into_bytes(), value(at));
    }
    store.compact();
    store.family.value_separation_bytes = 0;
    store.family.compression = Compression::None;
    store.family.compression_last = Compression::None;
    let store = store.reopened();
    store.compact();
    store.check();
    assert!(store.version().files().count() > 100);
    assert!(store.version().values().is_empty());
}

#[test]
fn writer_that_waits_for_space_ends_with_its_family() {
    let store = Store::new(small_family(64));
    let family = store.db.default_family().family.clone();
    let limit = SpaceLimit { used_bytes: 10, slowdown_bytes: 1, stop_bytes: 10 };
    family.space.set(Some(limit), 0);
    assert_eq!((family.space.used_bytes(), family.space.stop_bytes()), (10, 10));
    scheduler::decide_throttles(store.db.inner.stall_owners(), &store.db.inner.view, &[family.id]);
    let error = store.db.put(b"k", b"v").expect_err("the writer would wait");
    assert_eq!(error.kind(), ErrorKind::Busy);
    let mut state = store.db.inner.jobs.lock(Order::none());
    let (context, view, writes) =
        (&store.db.inner.context, &store.db.inner.view, &store.db.inner.writes);
    drop(crate::db::write::seal::empty_family(context, view, writes, &mut state, &family));
    assert_eq!(family.space.stop_bytes(), 0, "no limit is left");
    drop(state);
    scheduler::decide_throttles(store.db.inner.stall_owners(), &store.db.inner.view, &[family.id]);
    assert!(!store.db.would_stall(store.db.default_family()));
}

#[test]
fn only_the_reserved_worker_collects_without_a_slot() {
    let store = Store::new(small_family(64));
    let cf = store.db.default_family().id();
    let mut state = store.db.inner.jobs.lock(Order::none());
    let start = |state: &mut JobState, by| {
        state.start(RunningKind::Gc { cf, inputs: vec![1], by });
        state.running().slots_taken()
    };
    assert_eq!(start(&mut state, GcWorker::Reserved), 0);
    assert_eq!(start(&mut state, GcWorker::Idle), 1, "the spare worker must flush meanwhile");
}

#[test]
fn release_of_the_oldest_snapshot_is_noticed_once() {
    let mut store = Store::new(small_family(64));
    store.write(100, 100);
    let snapshot = store.db.snapshot();
    store.settle();
    let notice = || {
        let (snapshots, _) = store.db.inner.view.snapshots().list(|| SeqNo::MAX);
        let oldest = snapshots.first().copied();
        store.db.inner.jobs.lock(Order::none()).has_new_oldest_snapshot(oldest)
    };
    notice();
    assert!(!notice(), "the snapshot is known");
    drop(snapshot);
    assert!(notice() && !notice());
}

#[test]
fn pressed_family_is_collected_before_all_others() {
    let rank = |is_pressed, is_for_space, exposed_share| PickRank {
        is_pressed,
        is_for_space,
        exposed_share,
    };
    let rising = [
        rank(false, false, 9.0),
        rank(false, true, 0.1),
        rank(false, true, 0.2),
        rank(true, false, 0.0),
        rank(true, true, 0.1),
    ];
    assert!(rising.is_sorted());
}
