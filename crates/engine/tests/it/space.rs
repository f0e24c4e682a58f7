//! Space comes back: expired records, versions of dropped snapshots, deletes, range deletes,
//! compaction filters and compressions reach the last level, by themselves and on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock, SystemClock};
use archipelago_base::spawn::{Spawn, SystemSpawn};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{
    ColumnFamily, CompactRangeOptions, Components, Db, LastLevel, ReadOptions,
};
use archipelago_engine::extension::{CompactionFilter, FilterDecision, MergeOperator, Registry};
use archipelago_engine::job::Cancel;
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, Compression, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;

use crate::disk::TestDisk;
use crate::support::{in_threads, over, small_db, small_family};

const START_MS: u64 = 1_000_000;
const SECOND: Duration = Duration::from_secs(1);

fn key(n: u64) -> Vec<u8> {
    format!("key{n:08}").into_bytes()
}

fn all() -> KeyRange {
    KeyRange::all()
}

/// A database whose clock the test advances.
struct Store {
    fs: TestDisk,
    clock: Arc<ManualClock>,
    db: Db,
}

impl Store {
    fn new() -> Self {
        Self::with(small_db(), small_family())
    }

    fn with(options: DbOptions, family: CfOptions) -> Self {
        let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(START_MS)));
        let db = Self::open(&fs, &clock, options, family);
        Self { fs, clock, db }
    }

    /// A store that runs its background work in threads.
    fn in_threads(options: DbOptions) -> Self {
        let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(START_MS)));
        let components = in_threads(Self::components(&fs, &clock, small_family()));
        let db = Db::open_with("/db", options, components).unwrap();
        Self { fs, clock, db }
    }

    fn open(fs: &TestDisk, clock: &Arc<ManualClock>, options: DbOptions, family: CfOptions) -> Db {
        Db::open_with("/db", options, Self::components(fs, clock, family)).unwrap()
    }

    fn components(fs: &TestDisk, clock: &Arc<ManualClock>, family: CfOptions) -> Components {
        let mut registry = Registry::default();
        registry.add_compaction_filter(Arc::new(DropAll));
        registry.add_merge_operator(Arc::new(Refuse));
        let clock = Arc::clone(clock) as Arc<dyn Clock>;
        Components { clock, registry, ..over(fs, family) }
    }

    /// The same database after a close and an open with other settings of its family.
    fn reopened(self, family: CfOptions) -> Self {
        let Self { fs, clock, db } = self;
        db.close().unwrap();
        let db = Self::open(&fs, &clock, small_db(), family);
        Self { fs, clock, db }
    }

    fn cf(&self) -> &ColumnFamily {
        self.db.default_family()
    }

    /// Bytes and number of all tables.
    fn tables(&self) -> (u64, usize) {
        let levels = self.db.report(self.cf()).unwrap().levels;
        levels
            .iter()
            .fold((0, 0), |(bytes, files), level| (bytes + level.bytes, files + level.files))
    }

    fn bytes(&self) -> u64 {
        self.tables().0
    }

    fn ticker(&self, ticker: Ticker) -> u64 {
        self.db.statistics().get(ticker)
    }

    /// Writes, and steps background work while a write must wait for it.
    fn write(&self, write: impl Fn() -> Result<()>) {
        while let Err(error) = write() {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            assert!(self.db.step_background().unwrap(), "busy for ever");
        }
    }

    fn put(&self, n: u64, value: u8) {
        self.write(|| self.db.put(&key(n), &[value; 100]));
    }

    fn delete(&self, n: u64) {
        self.write(|| self.db.delete(&key(n)));
    }

    fn put_for(&self, n: u64, seconds: u64) {
        let expiry = self.clock.unix_ms() + seconds * 1000;
        let options = WriteOptions::default();
        self.write(|| self.db.put_expiring(self.cf(), &key(n), &[7; 100], expiry, &options));
    }

    /// Moves all records to the last level.
    fn settle(&self) {
        self.db.compact_range(self.cf(), &all()).unwrap();
        let levels = self.db.report(self.cf()).unwrap().levels;
        assert!(levels[..6].iter().all(|level| level.files == 0), "{levels:?}");
    }

    fn rows(&self) -> usize {
        let mut iter = self.db.iter(self.cf(), &ReadOptions::default()).unwrap();
        let mut rows = 0;
        iter.seek_to_first();
        while iter.valid() {
            rows += 1;
            iter.next();
        }
        iter.status().unwrap();
        rows
    }

    /// Waits for background work, and checks that nothing is picked again and again.
    fn wait(&self) {
        self.db.wait_for_background().unwrap();
        let compactions = self.ticker(Ticker::Compactions);
        self.db.wait_for_background().unwrap();
        assert_eq!(self.ticker(Ticker::Compactions), compactions, "work repeats");
    }

    fn delete_range(&self, from: u64, to: u64) {
        let options = WriteOptions::default();
        self.db.delete_range(self.cf(), &key(from), &key(to), &options).unwrap();
    }
}

/// Removes every record.
struct DropAll;

impl CompactionFilter for DropAll {
    fn name(&self) -> &str {
        "drop-all"
    }

    fn filter(&self, _: &[u8], _: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        FilterDecision::Remove
    }
}

/// Refuses every operand.
struct Refuse;

impl MergeOperator for Refuse {
    fn name(&self) -> &str {
        "refuse"
    }

    fn full_merge(&self, _: &[u8], _: Option<&[u8]>, _: &[&[u8]]) -> Result<Vec<u8>> {
        Err(Error::invalid("refused"))
    }
}

#[test]
fn dead_bases_of_refused_operands_are_not_rewritten_for_ever() {
    for expiring in [false, true] {
        let refuse = Some("refuse".to_owned());
        let store = Store::with(small_db(), CfOptions { merge_operator: refuse, ..small_family() });
        let snapshot = store.db.snapshot();
        for n in 0..200 {
            if expiring {
                store.put_for(n, 60);
            } else {
                store.delete(n);
            }
            store.write(|| store.db.merge(store.cf(), &key(n), b"x", &WriteOptions::default()));
        }
        store.settle();
        drop(snapshot);
        store.clock.advance(61 * SECOND);
        for _ in 0..1000 {
            if !store.db.step_background().unwrap() {
                break;
            }
        }
        assert!(!store.db.step_background().unwrap(), "work repeats");
        let last = &store.db.report(store.cf()).unwrap().levels[6];
        assert_eq!((last.entries, last.deletions), (200, 0), "only operands are left");
    }
}

#[test]
fn expired_tables_are_dropped_without_being_read() {
    for reopen in [false, true] {
        let mut store = Store::new();
        (0..5000).for_each(|n| store.put_for(n, 60));
        store.settle();
        assert!(store.bytes() > 50_000);
        store.clock.advance(59 * SECOND);
        store.wait();
        assert_eq!(store.rows(), 5000);
        store.clock.advance(SECOND);
        if reopen {
            store = store.reopened(small_family());
        }
        let (tables, read) = (store.tables().1, store.ticker(Ticker::CompactionBytesRead));
        store.wait();
        assert_eq!(store.tables(), (0, 0));
        assert_eq!(store.ticker(Ticker::CompactionBytesRead), read, "no table was read");
        assert_eq!(store.ticker(Ticker::TablesDropped), tables as u64);
        assert_eq!(store.rows(), 0);
    }
}

#[test]
fn compact_range_drops_expired_records() {
    let store = Store::new();
    (0..5000).for_each(|n| store.put_for(n, 60 + n % 2 * 1000));
    store.settle();
    let bytes = store.bytes();
    store.clock.advance(61 * SECOND);
    store.settle();
    assert!(store.bytes() < bytes * 6 / 10, "{} of {bytes}", store.bytes());
    assert_eq!(store.rows(), 2500);
}

#[test]
fn time_ordered_rows_stay_bounded() {
    let store = Store::new();
    let mut most = 0;
    for round in 0..10 {
        for n in round * 3000..(round + 1) * 3000 {
            store.put_for(n, 60);
        }
        store.wait();
        most = most.max(store.bytes());
        let live = 3000 * (100 + 19);
        assert!(store.bytes() < live * 3 / 2, "round {round}: {}", store.bytes());
        store.clock.advance(60 * SECOND);
    }
    assert!(most > 10_000);
    store.db.flush(store.cf()).unwrap();
    store.wait();
    assert_eq!(store.tables(), (0, 0));
}

#[test]
fn partly_expired_tables_are_rewritten() {
    let family = CfOptions {
        target_file_bytes: 4 << 20,
        compression_last: Compression::None,
        ..small_family()
    };
    let store = Store::with(small_db(), family);
    // One record in a hundred never expires, so no table expires completely.
    for n in 0..5000 {
        if n % 100 == 0 { store.put(n, 1) } else { store.put_for(n, 10 + n % 90) }
    }
    store.settle();
    let whole = store.bytes();
    for seconds in 1..=11 {
        store.clock.advance(10 * SECOND);
        store.wait();
        let live = store.rows() as u64 * whole / 5000;
        assert!(store.bytes() <= live * 5 / 2 + 8192, "{seconds}: {} of {live}", store.bytes());
    }
    assert_eq!(store.rows(), 50);
    assert!(store.bytes() < whole / 20, "{} of {whole}", store.bytes());
}

#[test]
fn dropping_an_expired_table_brings_no_older_version_back() {
    for levels in [false, true] {
        let store = Store::new();
        (0..500).for_each(|n| store.put(n, 1));
        store.settle();
        if levels {
            (0..500).for_each(|n| store.delete(n));
            store.db.flush(store.cf()).unwrap();
        }
        (0..500).for_each(|n| store.put_for(n, 60));
        store.db.flush(store.cf()).unwrap();
        store.clock.advance(61 * SECOND);
        for _ in 0..3 {
            store.wait();
            assert_eq!(store.rows(), 0);
            assert_eq!(store.db.get(&key(3)).unwrap().as_deref(), None);
        }
        store.settle();
        assert_eq!(store.tables(), (0, 0));
    }
}

#[test]
fn versions_of_dropped_snapshots_are_reclaimed() {
    for by_hand in [false, true] {
        let store = Store::new();
        let mut snapshots = Vec::new();
        for round in 0..9 {
            (0..1000).for_each(|n| store.put(n, round));
            snapshots.push(store.db.snapshot());
        }
        store.settle();
        let settle = |store: &Store| if by_hand { store.settle() } else { store.wait() };
        let all_versions = store.bytes();
        let oldest = snapshots.remove(0);
        drop(snapshots);
        settle(&store);
        let two_versions = store.bytes();
        assert!(two_versions < all_versions / 3, "{two_versions} of {all_versions}");
        let at = ReadOptions { snapshot: Some(oldest.clone()), ..ReadOptions::default() };
        let seen = store.db.get_with(store.cf(), &key(5), &at).unwrap();
        assert_eq!(seen.as_deref(), Some(&[0; 100][..]));
        drop((at, oldest));
        settle(&store);
        assert!(store.bytes() < two_versions * 7 / 10, "{} of {two_versions}", store.bytes());
        assert_eq!(store.db.get(&key(5)).unwrap().as_deref(), Some(&[8; 100][..]));
    }
}

#[test]
fn deletes_that_a_snapshot_held_are_reclaimed() {
    for by_hand in [false, true] {
        let store = Store::new();
        (0..3000).for_each(|n| store.put(n, 1));
        let snapshot = store.db.snapshot();
        (0..3000).filter(|n| n % 5 < 2).for_each(|n| store.delete(n));
        store.settle();
        drop(snapshot);
        if by_hand {
            store.settle();
        } else {
            store.wait();
        }
        let last = &store.db.report(store.cf()).unwrap().levels[6];
        assert_eq!((last.entries, last.deletions), (1800, 0));
        assert_eq!(store.rows(), 1800);
    }
}

#[test]
fn the_last_level_gets_a_new_filter_and_compression() {
    for by_hand in [false, true] {
        let uncompressed = CfOptions { compression_last: Compression::None, ..small_family() };
        let store = Store::with(small_db(), uncompressed);
        (0..3000).for_each(|n| store.put(n, 1));
        store.settle();
        let whole = store.bytes();
        let settle = |store: &Store| if by_hand { store.settle() } else { store.wait() };
        let store = store.reopened(small_family());
        settle(&store);
        assert!(store.bytes() < whole / 2, "{} of {whole}", store.bytes());
        assert_eq!(store.rows(), 3000);
        let filter = Some("drop-all".to_owned());
        let store = store.reopened(CfOptions { compaction_filter: filter, ..small_family() });
        settle(&store);
        assert_eq!(store.tables(), (0, 0));
    }
}

#[test]
fn one_range_delete_over_all_gives_the_space_back() {
    for reopen in [false, true] {
        let mut store = Store::new();
        (0..6000).for_each(|n| store.put(n * 7919 % 6000, 1));
        store.settle();
        store.delete_range(0, 6000);
        store.db.flush(store.cf()).unwrap();
        if reopen {
            store = store.reopened(small_family());
        }
        let read = store.ticker(Ticker::CompactionBytesRead);
        store.wait();
        assert_eq!(store.tables(), (0, 0));
        assert_eq!(store.ticker(Ticker::CompactionBytesRead), read, "no table was read");
    }
}

#[test]
fn a_range_delete_over_a_part_gives_that_part_back() {
    let store = Store::new();
    (0..6000).for_each(|n| store.put(n, 1));
    store.settle();
    let whole = store.bytes();
    store.delete_range(1500, 5000);
    store.db.flush(store.cf()).unwrap();
    store.wait();
    assert!(store.bytes() < whole * 6 / 10, "{} of {whole}", store.bytes());
    assert_eq!(store.rows(), 2500);
}

#[test]
fn a_snapshot_keeps_what_a_range_delete_covers() {
    let store = Store::new();
    (0..3000).for_each(|n| store.put(n, 1));
    store.settle();
    let snapshot = store.db.snapshot();
    store.delete_range(0, 3000);
    store.db.flush(store.cf()).unwrap();
    store.wait();
    assert_eq!(store.rows(), 0);
    let at = ReadOptions { snapshot: Some(snapshot), ..ReadOptions::default() };
    for n in [0, 1499, 2999] {
        let seen = store.db.get_with(store.cf(), &key(n), &at).unwrap();
        assert_eq!(seen.as_deref(), Some(&[1; 100][..]), "{n}");
    }
    drop(at);
    store.wait();
    assert_eq!(store.tables(), (0, 0));
}

#[test]
fn idle_threads_drop_what_expires() {
    let store = Store::in_threads(small_db());
    (0..2000).for_each(|n| store.put_for(n, 60));
    store.db.flush(store.cf()).unwrap();
    store.db.wait_for_background().unwrap();
    assert!(store.bytes() > 0);
    store.clock.advance(61 * SECOND);
    // No call writes, waits for the background or wakes it: an idle worker checks by itself.
    for _ in 0..3000 {
        if store.bytes() == 0 {
            return;
        }
        SystemClock::new().sleep(Duration::from_millis(20));
    }
    panic!("no worker looked in a minute");
}

#[test]
fn forced_compaction_rewrites_what_gains_nothing() {
    let store = Store::new();
    (0..3000).for_each(|n| store.put(n, 1));
    store.settle();
    let written = || store.ticker(Ticker::CompactionBytesWritten);
    let before = written();
    store.settle();
    assert_eq!(written(), before, "nothing is to be gained");
    let options = CompactRangeOptions { last_level: LastLevel::Always, ..Default::default() };
    store.db.compact_range_with(store.cf(), &all(), &options).unwrap();
    assert!(written() >= before + store.bytes());
}

#[test]
fn compact_range_ends_while_others_write() {
    for jobs in [1, 3] {
        let store = Store::in_threads(DbOptions { max_background_jobs: jobs, ..small_db() });
        (0..3000).for_each(|n| store.put(n, 1));
        store.db.flush(store.cf()).unwrap();
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let writer = {
            let (db, stop, written) = (store.db.clone(), Arc::clone(&stop), Arc::clone(&written));
            let write = move || {
                for n in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    db.put(&key(n * 7919 % 3000), &[2; 100]).unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            };
            SystemSpawn.spawn("writer", Box::new(write)).unwrap()
        };
        for _ in 0..3 {
            // The writer works, and continues.
            let before = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            store.db.compact_range(store.cf(), &all()).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert_eq!(store.rows(), 3000);
    }
}

#[test]
fn compact_range_is_cancelled_and_tells_its_progress() {
    let store = Store::new();
    (0..3000).for_each(|n| store.put(n, 1));
    let told = Arc::new(AtomicUsize::new(0));
    let options = {
        let (cancel, told) = (Cancel::default(), Arc::clone(&told));
        CompactRangeOptions {
            cancel: cancel.clone(),
            on_progress: Some(Arc::new(move |done, total| {
                assert!(done <= total);
                if told.fetch_add(1, Ordering::Relaxed) == 0 {
                    cancel.cancel();
                }
            })),
            ..CompactRangeOptions::default()
        }
    };
    let error = store.db.compact_range_with(store.cf(), &all(), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.context().contains("cancelled"), "{error}");
    assert_eq!(told.load(Ordering::Relaxed), 1, "nothing was begun after the cancel");
    assert_eq!(store.rows(), 3000);
    store.settle();
    assert_eq!(store.rows(), 3000);
}
