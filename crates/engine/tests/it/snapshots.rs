//! Snapshots that are taken and dropped while compaction filters run. Reads at one snapshot repeat,
//! filters continue, and a snapshot of another database is refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::clock::ManualClock;
use archipelago_engine::db::{
    ColumnFamily, Components, Db, FaultPoint, IngestOptions, ReadOptions, Snapshot,
};
use archipelago_engine::extension::{CompactionFilter, FilterDecision};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_env::FileSystem;
use parking_lot::Mutex;

use crate::disk::TestDisk;
use crate::support::{in_threads, open, over, small_db, small_family};

/// Removes every value unless it is off, and calls back for each value.
#[derive(Default)]
struct RemoveAll {
    off: AtomicBool,
    shown: AtomicU64,
    callback: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl CompactionFilter for RemoveAll {
    fn name(&self) -> &str {
        "remove-all"
    }

    fn filter(&self, _: &[u8], _: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        if let Some(callback) = self.callback.get() {
            callback();
        }
        if self.off.load(Ordering::Relaxed) {
            return FilterDecision::Keep;
        }
        self.shown.fetch_add(1, Ordering::Relaxed);
        FilterDecision::Remove
    }
}

fn filtered(filter: &Arc<RemoveAll>) -> Components {
    let family = CfOptions { compaction_filter: Some("remove-all".to_owned()), ..small_family() };
    let mut components = over(&TestDisk::new(), family);
    components.registry.add_compaction_filter(Arc::clone(filter) as _);
    components
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:04}").into_bytes()
}

/// All rows of a family at a snapshot, by every kind of read.
fn all_reads(db: &Db, cf: &ColumnFamily, snapshot: &Snapshot) -> Vec<Option<Vec<u8>>> {
    let options = ReadOptions::new().snapshot(snapshot);
    let keys: Vec<Vec<u8>> = (0..60).map(key).collect();
    let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let owned = |value: Option<archipelago_engine::pinned::PinnedSlice>| value.map(|v| v.to_vec());
    let many: Vec<_> =
        db.multi_get(cf, &slices, &options).unwrap().into_iter().map(owned).collect();
    let mut iter = db.iter(cf, &options).unwrap();
    let (mut forward, mut backward) = (vec![None; keys.len()], vec![None; keys.len()]);
    let at = |found: &[u8]| keys.iter().position(|key| key == found).unwrap();
    iter.seek_to_first();
    while iter.valid() {
        forward[at(iter.key())] = Some(iter.value().to_vec());
        iter.next();
    }
    iter.seek_to_last();
    while iter.valid() {
        backward[at(iter.key())] = Some(iter.value().to_vec());
        iter.prev();
    }
    iter.status().unwrap();
    for (key, value) in keys.iter().zip(&many) {
        assert_eq!(owned(db.get_with(cf, key, &options).unwrap()), *value);
        assert_eq!(db.contains(cf, key, &options).unwrap(), value.is_some());
        let range = ReadOptions { upper_bound: Some(key.clone()), ..options.clone() };
        let mut below = db.iter(cf, &range).unwrap();
        below.seek_for_prev(key);
        assert!(!below.valid() || below.key() < key.as_slice());
    }
    assert_eq!((&forward, &backward), (&many, &many));
    many
}

fn fill(db: &Db, from: u32, to: u32) {
    (from..to).for_each(|n| db.put(&key(n), &[n as u8; 40]).unwrap());
}

/// Snapshots, and the rows of each at the time at which it was taken.
type Taken = Arc<Mutex<Vec<(Snapshot, Vec<Option<Vec<u8>>>)>>>;

/// Takes a snapshot at each call of `name` and notes its rows.
fn snapshot_at(name: &'static str, cell: &Arc<OnceLock<Db>>, taken: &Taken) -> FaultPoint {
    let (cell, taken) = (Arc::clone(cell), Arc::clone(taken));
    Arc::new(move |point| {
        if let Some(db) = cell.get().filter(|_| point == name) {
            let snapshot = db.snapshot();
            let seen = all_reads(db, db.default_family(), &snapshot);
            taken.lock().push((snapshot, seen));
        }
        Ok(())
    })
}

#[test]
fn reads_repeat_at_a_snapshot_that_is_taken_while_a_filter_runs() {
    for name in ["flush.shard", "flush.before_install", "compaction.before_install"] {
        let (cell, taken) = (Arc::new(OnceLock::new()), Arc::new(Mutex::new(Vec::new())));
        let filter = Arc::new(RemoveAll::default());
        let fault_point = Some(snapshot_at(name, &cell, &taken));
        let components = Components { fault_point, ..filtered(&filter) };
        let db = Db::open_with("/db", small_db(), components).unwrap();
        let cf = db.default_family();
        let before = db.snapshot();
        filter.off.store(true, Ordering::Relaxed);
        fill(&db, 0, 30);
        db.flush(cf).unwrap();
        fill(&db, 10, 40);
        let full = db.snapshot();
        let first = all_reads(&db, cf, &full);
        if name.starts_with("compaction") {
            db.flush(cf).unwrap();
        }
        cell.set(db.clone()).unwrap();
        filter.off.store(false, Ordering::Relaxed);
        db.compact_range(cf, &KeyRange::all()).unwrap();
        assert!(filter.shown.load(Ordering::Relaxed) > 0, "{name}");
        assert!(db.get(&key(35)).unwrap().is_none(), "{name}: the filter has removed it");
        assert!(!taken.lock().is_empty(), "{name}");
        assert!(taken.lock().iter().all(|(_, seen)| seen.iter().flatten().count() > 0), "{name}");
        for (snapshot, seen) in &*taken.lock() {
            assert_eq!(&all_reads(&db, cf, snapshot), seen, "at {name}");
        }
        assert_eq!(all_reads(&db, cf, &full), first, "at {name}");
        assert!(all_reads(&db, cf, &before).iter().all(Option::is_none));
        db.clone().close().unwrap();
    }
}

#[test]
fn reads_repeat_at_a_snapshot_taken_during_an_ingestion() {
    for name in ["ingest.before_install", "ingest.before_visible"] {
        for with_filter in [false, true] {
            let (cell, taken) = (Arc::new(OnceLock::new()), Arc::new(Mutex::new(Vec::new())));
            let filter = Arc::new(RemoveAll::default());
            filter.off.store(true, Ordering::Relaxed);
            let fs = TestDisk::new();
            let mut components = match with_filter {
                true => filtered(&filter),
                false => over(&fs, small_family()),
            };
            components.fs = Arc::new(fs.clone());
            components.fault_point = Some(snapshot_at(name, &cell, &taken));
            let db = Db::open_with("/db", small_db(), components).unwrap();
            let cf = db.default_family();
            fill(&db, 0, 20);
            let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
            let mut writer =
                SstWriter::create(&shared, "/t.sst".as_ref(), TableOptions::default()).unwrap();
            (10..30).for_each(|n| writer.put(&key(n), b"ingested").unwrap());
            writer.finish().unwrap();
            cell.set(db.clone()).unwrap();
            let before = db.snapshot();
            let first = all_reads(&db, cf, &before);
            db.ingest(cf, &["/t.sst"], &IngestOptions::default()).unwrap();
            let [(snapshot, seen)] = &taken.lock()[..] else { panic!("{name}: not one snapshot") };
            assert_eq!(seen, &first, "at {name}: the ingestion is not visible yet");
            assert_eq!(&all_reads(&db, cf, snapshot), seen, "at {name}, filter {with_filter}");
            assert_eq!(all_reads(&db, cf, &before), first, "at {name}, filter {with_filter}");
            let after = all_reads(&db, cf, &db.snapshot());
            assert_eq!(after.iter().flatten().count(), 30);
            drop(cell);
        }
    }
}

#[test]
fn reads_repeat_at_a_snapshot_that_the_filter_itself_takes() {
    let filter = Arc::new(RemoveAll::default());
    let db = Db::open_with("/db", small_db(), filtered(&filter)).unwrap();
    let taken = Arc::new(Mutex::new(Vec::new()));
    let (of, into) = (db.clone(), Arc::clone(&taken));
    let callback = move || {
        let snapshot = of.snapshot();
        let seen = all_reads(&of, of.default_family(), &snapshot);
        into.lock().push((snapshot, seen));
    };
    fill(&db, 0, 5);
    assert!(filter.callback.set(Box::new(callback)).is_ok());
    db.flush(db.default_family()).unwrap();
    assert_eq!(db.get(&key(3)).unwrap(), None, "the filter has removed it");
    let taken = std::mem::take(&mut *taken.lock());
    assert_eq!(taken.len(), 5);
    for (snapshot, seen) in taken {
        assert_eq!(seen.iter().flatten().count(), 5);
        assert_eq!(all_reads(&db, db.default_family(), &snapshot), seen);
    }
    db.close().unwrap();
}

#[test]
fn live_snapshots_do_not_stop_a_filter() {
    let filter = Arc::new(RemoveAll::default());
    let db = Db::open_with("/db", small_db(), filtered(&filter)).unwrap();
    let cf = db.default_family();
    let mut held = Vec::new();
    for round in 0..5 {
        fill(&db, 0, 60);
        // A snapshot exists at any time, and none exists for long.
        held.push(db.snapshot());
        let seen = all_reads(&db, cf, held.last().unwrap());
        assert_eq!(seen.iter().flatten().count(), 60, "round {round}");
        db.flush(cf).unwrap();
        for n in 0..60 {
            assert_eq!(db.get(&key(n)).unwrap(), None, "round {round}");
        }
        assert_eq!(all_reads(&db, cf, held.last().unwrap()), seen, "round {round}");
        if held.len() > 2 {
            held.remove(0);
        }
    }
}

#[test]
fn statistics_show_what_only_snapshots_keep() {
    let filter = Arc::new(RemoveAll::default());
    let mut components = filtered(&filter);
    components.families.clear();
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let options = CfOptions { compaction_filter: Some("remove-all".to_owned()), ..small_family() };
    let cf = db.create_family("filtered", options).unwrap();
    let put = |n| db.put_with(&cf, &key(n), &[n as u8; 40], &WriteOptions::default()).unwrap();
    let held = || {
        let report = db.report(&cf).unwrap();
        let property = |name: &str| db.property(&cf, name).unwrap().parse::<u64>().unwrap();
        assert_eq!(property("archipelago.snapshot-table-bytes"), report.snapshot_table_bytes);
        assert_eq!(
            property("archipelago.snapshot-mem-table-bytes"),
            report.snapshot_memtable_bytes
        );
        (report.snapshot_table_bytes, report.snapshot_memtable_bytes)
    };
    (0..60).for_each(put);
    let first = db.snapshot();
    let second = db.snapshot();
    assert_eq!(held(), (0, 0), "the database itself has the memtable");
    db.flush(&cf).unwrap();
    let (tables, memtables) = held();
    assert_eq!(tables, 0);
    assert!(memtables > 60 * 40, "{memtables}");
    drop(first);
    assert_eq!(held(), (tables, memtables), "the other snapshot has the same memtable");
    assert!(db.stats_text().contains(&format!("{memtables} of memtables")));
    drop(second);
    assert_eq!(held(), (0, 0));
    let unfiltered = db.default_family();
    db.put(b"a", b"b").unwrap();
    let third = db.snapshot();
    db.flush(unfiltered).unwrap();
    let report = db.report(unfiltered).unwrap();
    assert_eq!((report.snapshot_table_bytes, report.snapshot_memtable_bytes), (0, 0));
    drop(third);
}

#[test]
fn files_that_a_snapshot_held_go_when_it_is_dropped() {
    let filter = Arc::new(RemoveAll::default());
    let fs = TestDisk::new();
    let components = Components { fs: Arc::new(fs.clone()), ..filtered(&filter) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    let tables = || {
        let files = fs.list("/db".as_ref()).unwrap();
        files.into_iter().filter(|file| file.name.ends_with(".sst")).count()
    };
    filter.off.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        fill(&db, 0, 60);
        db.flush(cf).unwrap();
    }
    let bytes: u64 = db.report(cf).unwrap().levels.iter().map(|level| level.bytes).sum();
    let snapshot = db.snapshot();
    filter.off.store(false, Ordering::Relaxed);
    db.compact_range(cf, &KeyRange::all()).unwrap();
    while db.step_background().unwrap() {}
    assert_eq!(all_reads(&db, cf, &snapshot).iter().flatten().count(), 60);
    assert_eq!(db.report(cf).unwrap().snapshot_table_bytes, bytes);
    assert!(tables() > 0);
    drop(snapshot);
    while db.step_background().unwrap() {}
    let report = db.report(cf).unwrap();
    assert_eq!(report.snapshot_table_bytes, 0);
    let live: usize = report.levels.iter().map(|level| level.files).sum();
    assert_eq!(tables(), live);
}

#[test]
fn families_made_after_a_snapshot_are_empty_at_it() {
    let filter = Arc::new(RemoveAll::default());
    let db = Db::open_with("/db", small_db(), filtered(&filter)).unwrap();
    let before = db.snapshot();
    let options = CfOptions { compaction_filter: Some("remove-all".to_owned()), ..small_family() };
    let late = db.create_family("late", options).unwrap();
    db.put_with(&late, &key(1), b"x", &WriteOptions::default()).unwrap();
    let after = db.snapshot();
    db.flush(&late).unwrap();
    assert_eq!(all_reads(&db, &late, &before).iter().flatten().count(), 0);
    assert_eq!(all_reads(&db, &late, &after).iter().flatten().count(), 1);
    let mut iter = db.iter(&late, &ReadOptions::new().snapshot(&after)).unwrap();
    db.drop_family(&late).unwrap();
    let refused = db.get_with(&late, &key(1), &ReadOptions::new().snapshot(&after));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
    iter.seek_to_first();
    assert_eq!((iter.key(), iter.value()), (&key(1)[..], &b"x"[..]));
}

#[test]
fn expired_value_vanishes_at_a_snapshot_too() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let filter = Arc::new(RemoveAll::default());
    let components = Components { clock: Arc::clone(&clock) as _, ..filtered(&filter) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    db.put_expiring(cf, &key(1), b"x", 1_000_500, &WriteOptions::default()).unwrap();
    let snapshot = db.snapshot();
    db.flush(cf).unwrap();
    assert_eq!(all_reads(&db, cf, &snapshot).iter().flatten().count(), 1);
    clock.advance(Duration::from_secs(1));
    assert_eq!(all_reads(&db, cf, &snapshot).iter().flatten().count(), 0);
}

#[test]
fn every_read_refuses_a_snapshot_of_another_database() {
    let fs = TestDisk::new();
    let (db, elsewhere) = (open(&fs), open(&TestDisk::new()));
    db.put(b"a", b"b").unwrap();
    elsewhere.put(b"a", b"b").unwrap();
    let foreign = elsewhere.snapshot();
    let earlier = db.snapshot();
    db.close().unwrap();
    let db = open(&fs);
    let cf = db.default_family();
    for snapshot in [foreign, earlier] {
        let options = ReadOptions::new().snapshot(&snapshot);
        let errors = [
            db.get_with(cf, b"a", &options).unwrap_err(),
            db.get_entry(cf, b"a", &options).unwrap_err(),
            db.contains(cf, b"a", &options).unwrap_err(),
            db.multi_get(cf, &[b"a"], &options).unwrap_err(),
            db.iter(cf, &options).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("snapshot belongs to another"), "{error}");
        }
    }
    let own = ReadOptions::new().snapshot(&db.clone().snapshot());
    assert_eq!(db.get_with(cf, b"a", &own).unwrap().as_deref(), Some(&b"b"[..]));
}

#[test]
fn reads_repeat_at_short_snapshots_beside_filters_and_writers() {
    const ROUNDS: usize = 120;
    let filter = Arc::new(RemoveAll::default());
    let options = DbOptions { max_background_jobs: 3, ..small_db() };
    let mut components = filtered(&filter);
    components.families.entry("default".to_owned()).and_modify(|family| {
        family.write_buffer_bytes = 8 << 10;
        family.l0_compaction_trigger = 2;
    });
    let db = Db::open_with("/db", options, in_threads(components)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut n = 0u32;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                db.put(&key(n % 60), &[n as u8; 40]).unwrap();
            }
        });
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|_| {
                threads.spawn(|| {
                    for _ in 0..ROUNDS {
                        let snapshot = db.snapshot();
                        let first = all_reads(&db, db.default_family(), &snapshot);
                        assert_eq!(all_reads(&db, db.default_family(), &snapshot), first);
                    }
                })
            })
            .collect();
        let results: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| assert!(result.is_ok(), "a reader failed"));
    });
    assert!(filter.shown.load(Ordering::Relaxed) > 0);
    db.close().unwrap();
}
