//! Faults of other engines with separated values that their users have reported, by kind.
//!
//! The table in `docs/design/separation.md` names for each report the tests that would notice a
//! fault of its kind. This module has those that need a whole database.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{
    BackgroundMode, ColumnFamily, Components, Db, ReadOptions, ValueFileInfo,
};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, Compression, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::stats::CountingFs;
use archipelago_env::{FileClass, FileSystem};
use parking_lot::Mutex;

use super::admin::flip;
use super::world::{KEYS, Model, World, check_at, key, patiently, step_all, value};
use super::{Separation, audit, audit_at_rest};
use crate::disk::TestDisk;
use crate::support::{in_threads, over, small_db, small_family};

/// Longest wait for threads of the background.
const PATIENCE: Duration = Duration::from_secs(120);

/// A world whose values take as many bytes on disk as they have.
fn plain_world(change: impl FnOnce(&mut CfOptions)) -> World {
    World::new(|family| {
        family.compression = Compression::None;
        family.compression_last = Compression::None;
        change(family);
    })
}

fn files_of(db: &Db, cf: &ColumnFamily) -> Vec<ValueFileInfo> {
    db.values(cf).unwrap().files
}

/// Kind: an idle database collects for ever, because the picker takes files that give nothing back
/// (tikv/titan#87, facebook/rocksdb#15256).
#[test]
fn idle_database_comes_to_rest() {
    for bound in [0.0, 1.05, 1.5] {
        let mut world = plain_world(|family| family.space_amplification_max = bound);
        world.expose_garbage();
        world.settle();
        let collected = world.collections();
        for _ in 0..50 {
            assert!(!world.db.step_background().unwrap(), "bound {bound}");
        }
        assert_eq!(world.collections(), collected, "bound {bound}");
        let again = world.on(world.fs.kill_clone());
        step_all(&again.db).unwrap();
        let collected = again.collections();
        for _ in 0..50 {
            assert!(!again.db.step_background().unwrap(), "bound {bound}, opened again");
        }
        assert_eq!(again.collections(), collected, "bound {bound}, opened again");
        again.finish();
    }
}

/// Kind: the picker returns the same file again and again, or nothing, although others are due
/// (tikv/titan#128, tikv/titan#144).
#[test]
fn damaged_value_file_holds_up_no_other() {
    let mut world = plain_world(|_| ());
    world.expose_garbage();
    world.settle_with_starved_collector();
    let fs = world.fs.kill_clone();
    let most = files_of(&world.db, world.cf()).remove(0);
    assert!(most.references > 0 && most.garbage_bytes() > 0, "{most:?}");
    // The first byte of the key blocks.
    flip(&fs, &format!("/db/{:06}.vsst", most.no), most.value_bytes);
    let left = world.on(fs);
    let mut failures = 0;
    for _ in 0..4 {
        loop {
            match left.db.step_background() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    failures += 1;
                    assert!(failures < 20, "the damaged file is taken again without a pause");
                }
            }
        }
        left.clock.sleep(Duration::from_secs(10));
    }
    assert!(failures > 0, "the damaged file was never taken");
    let files = files_of(&left.db, left.cf());
    assert!(files.iter().any(|file| file.no == most.no), "{files:?}");
    let others = files.iter().filter(|file| file.no != most.no);
    assert_eq!(others.map(ValueFileInfo::garbage_bytes).sum::<u64>(), 0, "{files:?}");
    check_at(&left.db, left.cf(), &ReadOptions::default(), &left.model);
    patiently(&left.db, || left.db.put(b"later", b"write"));
}

/// Sizes, records and references by value file.
type Figures = BTreeMap<u64, [u64; 5]>;

fn figures(db: &Db, cf: &ColumnFamily) -> Figures {
    let of = |file: &ValueFileInfo| {
        let sizes = [file.file_bytes, file.value_bytes, file.valid_bytes];
        (file.no, [sizes[0], sizes[1], sizes[2], file.records, file.references])
    };
    files_of(db, cf).iter().map(of).collect()
}

/// Kind: the figures of garbage are wrong until a restart computes them anew, also those of a
/// family that nobody writes to and that has no bound (tikv/titan#330).
#[test]
fn restart_changes_no_figure_of_garbage() {
    let mut world = plain_world(|_| ());
    let unbounded =
        CfOptions { space_amplification_max: 0.0, ..Separation::EAGER.of(small_family()) };
    let quiet = world.db.create_family("quiet", unbounded).unwrap();
    world.hook.starve(true);
    for round in 0..3 {
        for n in (0..KEYS).filter(|n| round == 0 || n % 3 == round) {
            let (key, value) = (key(n), value(n, round));
            let options = WriteOptions::default();
            patiently(&world.db, || world.db.put_with(&quiet, &key, &value, &options));
        }
        world.db.flush(&quiet).unwrap();
        world.db.compact_range(&quiet, &KeyRange::all()).unwrap();
    }
    world.expose_garbage();
    world.settle_with_starved_collector();
    let before = [figures(&world.db, world.cf()), figures(&world.db, &quiet)];
    assert!(before.iter().all(|files| files.values().any(|file| file[1] > file[2])), "garbage");
    let on_disk = audit(&world.db).on_disk;
    for crash in [false, true] {
        let fs = if crash { world.fs.crash_clone(9) } else { world.fs.kill_clone() };
        let left = world.on(fs);
        let quiet = left.db.family("quiet").unwrap();
        assert_eq!([figures(&left.db, left.cf()), figures(&left.db, &quiet)], before);
        assert_eq!(audit(&left.db).on_disk, on_disk, "a restart frees nothing");
    }
}

/// Kind: a file without a live record stays, or counts as live after a restart (tikv/titan#266,
/// facebook/rocksdb#12208).
#[test]
fn last_reference_takes_its_value_file_along_without_a_job() {
    let mut world = plain_world(|_| ());
    world.hook.starve(true);
    world.fill(0, |_| true);
    world.compact();
    assert!(!audit(&world.db).on_disk.is_empty());
    let fs = world.fs.kill_clone();
    let delete_all = |db: &Db| {
        let (cf, options) = (db.default_family(), WriteOptions::default());
        db.delete_range(cf, &key(0), &key(KEYS), &options).unwrap();
        db.flush(cf).unwrap();
        db.compact_range(cf, &KeyRange::all()).unwrap();
        db.wait_for_background().unwrap();
    };
    delete_all(&world.db);
    world.model.clear();
    world.check();
    assert_eq!(audit_at_rest(&world.db).on_disk, BTreeSet::new());
    assert_eq!(world.collections(), 0);
    let again = world.on(world.fs.crash_clone(4));
    assert_eq!(audit_at_rest(&again.db).on_disk, BTreeSet::new());
    // Likewise after a restart in between.
    let again = world.on(fs);
    again.hook.starve(true);
    delete_all(&again.db);
    assert_eq!(audit_at_rest(&again.db).on_disk, BTreeSet::new());
    assert_eq!(again.collections(), 0);
}

/// Notes every value file that the database removes.
#[derive(Clone, Debug)]
struct Removals {
    inner: TestDisk,
    removed: Arc<Mutex<Vec<PathBuf>>>,
}

impl FileSystem for Removals {
    fn remove(&self, path: &Path) -> Result<()> {
        if path.extension().is_some_and(|end| end == "vsst") {
            self.removed.lock().push(path.to_owned());
        }
        self.inner.remove(path)
    }

    archipelago_env::forward_fs!(
        inner: create, open, create_log, logs, looks, moves, dirs, host, figures
    );
}

/// Kind: a value file is removed twice, or while something needs it, when garbage collection meets
/// flushes, range deletes, snapshots and filters (tikv/titan#18, #93, #167, #186, #212, #328,
/// #336).
#[test]
fn value_file_is_removed_once_and_after_its_last_reader() {
    let world = plain_world(|family| family.compaction_filter = Some("tilde".to_owned()));
    world.filter.pause(true);
    let disk = Removals { inner: TestDisk::new(), removed: Arc::default() };
    let shared: Arc<dyn FileSystem> = Arc::new(disk.clone());
    let db = world.open_through(&shared).unwrap();
    let cf = db.default_family();
    let mut model = Model::new();
    let mut held = Vec::new();
    for round in 0..8 {
        if round % 3 == 1 {
            held.push((db.snapshot(), model.clone()));
        }
        // The collection meets a flush of new writes and a range delete.
        let (other, from) = (db.clone(), key(10 * round));
        world.hook.at("gc.before_install", move || {
            let (cf, options) = (other.default_family(), WriteOptions::default());
            other.delete_range(cf, &from, &[&from[..], b"~"].concat(), &options)?;
            other.flush(cf)
        });
        for n in (0..KEYS).filter(|n| (n + round) % 3 > 0) {
            let (key, value) = (key(n), value(n, round));
            patiently(&db, || db.put(&key, &value));
            model.insert(key, value);
        }
        db.flush(cf).unwrap();
        db.compact_range(cf, &KeyRange::all()).unwrap();
        step_all(&db).unwrap();
        // The range delete covers one key, unless the collection was not due yet.
        let deleted = key(10 * round);
        if db.get(&deleted).unwrap().is_none() {
            model.remove(&deleted);
        }
        world.hook.at("never", || Ok(()));
        check_at(&db, cf, &ReadOptions::default(), &model);
        for (snapshot, then) in &held {
            check_at(&db, cf, &ReadOptions::new().snapshot(snapshot), then);
        }
        if held.len() > 1 {
            held.remove(0);
        }
    }
    assert!(db.statistics().get(Ticker::GcJobs) > 0, "nothing was collected");
    held.clear();
    db.compact_range(cf, &KeyRange::all()).unwrap();
    db.wait_for_background().unwrap();
    check_at(&db, cf, &ReadOptions::default(), &model);
    let live = audit_at_rest(&db).live;
    let removed = disk.removed.lock().clone();
    assert!(removed.len() > 3, "{removed:?}");
    let distinct: BTreeSet<&PathBuf> = removed.iter().collect();
    assert_eq!(distinct.len(), removed.len(), "a file was removed twice: {removed:?}");
    let is_live = |path: &&PathBuf| {
        let no = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        no.is_some_and(|no: u64| live.contains(&no))
    };
    assert_eq!(removed.iter().find(is_live), None);
}

/// Kind: the reported amplification leaves garbage out that no compaction has found yet
/// (facebook/rocksdb#10296, #9561, PR #10399).
#[test]
fn reported_space_agrees_with_the_live_bytes() {
    let mut world = plain_world(|family| {
        family.space_amplification_max = 1.5;
        family.buckets = 1;
    });
    let mut hidden_rounds = 0;
    for round in 0..6 {
        // Values keep their size, so that the upper limit of hidden garbage holds.
        world.fill(4 * round, |n| (n + round) % 2 == 0 || round < 2);
        world.db.flush(world.cf()).unwrap();
        for _ in 0..3 {
            world.db.step_background().unwrap();
        }
        let report = world.db.values(world.cf()).unwrap();
        let Some(space) = report.space else { panic!("round {round}: no look yet") };
        let all = report.table_bytes + report.file_bytes();
        let parts = space.live_bytes + report.exposed_bytes() + space.hidden_bytes;
        assert_eq!(parts, all, "round {round}: the parts do not add up");
        assert!(space.hidden_bytes <= space.hidden_bytes_max);
        // What is left when everything was compacted and collected.
        let rest = world.on(world.fs.kill_clone());
        rest.compact();
        rest.settle();
        let rest = rest.db.values(rest.cf()).unwrap();
        let live = rest.table_bytes + rest.file_bytes() - rest.exposed_bytes();
        let unknown = space.hidden_bytes_max - space.hidden_bytes;
        let tolerance = all / 10 + (8 << 10);
        assert!(space.live_bytes <= live + unknown + tolerance, "{round}: {space:?}, {live}");
        assert!(live <= space.live_bytes + space.hidden_bytes + tolerance, "{space:?}, {live}");
        hidden_rounds += u32::from(space.hidden_bytes > 0);
    }
    assert!(hidden_rounds > 0, "no garbage was hidden");
}

/// Kind: one live value pins a whole file, because the file goes only when compactions have
/// rewritten every table that refers to it (facebook/rocksdb#9235, #11570).
#[test]
fn one_live_value_pins_no_value_file() {
    let mut world = plain_world(|family| family.buckets = 1);
    world.hook.starve(true);
    let kept = (0..KEYS).find(|&n| value(n, 0).len() > 500).unwrap();
    world.fill(0, |_| true);
    world.compact();
    world.fill(1, |n| n != kept);
    world.compact();
    world.db.wait_for_background().unwrap();
    let tables = |world: &World| -> Vec<String> {
        let entries = world.fs.list("/db".as_ref()).unwrap();
        entries.into_iter().map(|entry| entry.name).filter(|name| name.ends_with(".sst")).collect()
    };
    let before = files_of(&world.db, world.cf());
    let pinned: Vec<u64> =
        before.iter().filter(|file| file.garbage_share() > 0.5).map(|file| file.no).collect();
    assert_eq!((pinned.len(), before[0].references), (1, 1), "{before:?}");
    let known = tables(&world);
    world.hook.starve(false);
    step_all(&world.db).unwrap();
    let after = files_of(&world.db, world.cf());
    assert!(after.iter().all(|file| file.no != pinned[0]), "{after:?}");
    assert!(after.iter().any(|file| file.ancestors.contains(&pinned[0])), "{after:?}");
    assert!(after.iter().all(|file| file.garbage_share() < 0.5), "{after:?}");
    assert_eq!(tables(&world), known, "no table was written again");
    world.finish();
}

/// Lets a job continue when it is dropped, also if the test fails.
#[derive(Default)]
struct Release(Arc<AtomicBool>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Kind: garbage collection starves while compactions take all workers (facebook/rocksdb#11603,
/// PR #13022, cockroachdb/pebble PR #5258).
#[test]
fn garbage_is_collected_while_all_workers_compact() {
    let mut world = plain_world(|_| ());
    world.expose_garbage();
    world.db.sync().unwrap();
    let fs = world.fs.kill_clone();
    let clock = SystemClock::new();
    let until_ns = clock.now_ns() + PATIENCE.as_nanos() as u64;
    let (is_compacting, end) = (Arc::<AtomicBool>::default(), Release::default());
    let (compacting, released) = (Arc::clone(&is_compacting), Arc::clone(&end.0));
    let family = CfOptions {
        l0_compaction_trigger: 2,
        space_amplification_max: 1.25,
        ..Separation::EAGER.of(small_family())
    };
    let components = Components {
        fault_point: Some(Arc::new(move |name| {
            match name {
                "gc.pick" if !compacting.load(Ordering::SeqCst) => {
                    return Err(Error::busy("no compaction runs yet"));
                }
                "compaction.picked" => {
                    compacting.store(true, Ordering::SeqCst);
                    while !released.load(Ordering::SeqCst) {
                        SystemClock::new().sleep(Duration::from_millis(5));
                    }
                }
                _ => {}
            }
            Ok(())
        })),
        ..in_threads(over(&fs, family))
    };
    let options = DbOptions { max_background_jobs: 1, ..small_db() };
    let db = Db::open_with("/db", options, components).unwrap();
    // The job continues before the database is closed, also if the test fails.
    let blocked = end;
    let cf = db.default_family();
    let mut is_written = false;
    while db.statistics().get(Ticker::GcJobs) == 0 {
        assert!(clock.now_ns() < until_ns, "nothing was collected while a compaction ran");
        if is_compacting.load(Ordering::SeqCst) {
            clock.sleep(Duration::from_millis(5));
        } else {
            db.put(&key(KEYS), b"one more").unwrap();
            db.flush(cf).unwrap();
            is_written = true;
        }
    }
    drop(blocked);
    db.wait_for_background().unwrap();
    if is_written {
        world.model.insert(key(KEYS), b"one more".to_vec());
    }
    check_at(&db, cf, &ReadOptions::default(), &world.model);
    audit(&db);
    db.close().unwrap();
}

/// Kind: there are more and more tiny value files (facebook/rocksdb#10657).
#[test]
fn many_small_flushes_leave_few_value_files() {
    let mut world = plain_world(|family| {
        family.buckets = 1;
        family.space_amplification_max = 0.0;
    });
    for round in 0..60 {
        world.fill(round, |n| n % 40 == round % 40);
        world.db.flush(world.cf()).unwrap();
        step_all(&world.db).unwrap();
        let files = files_of(&world.db, world.cf());
        let small = files.iter().filter(|file| file.value_bytes < 16 << 10).count();
        assert!(small <= 16, "round {round}: {small} small files");
    }
    assert!(world.collections() > 0);
    world.finish();
}

/// Kind: the number of sorted runs of values grows, and scans become slow (tikv/titan#149, PR #92).
#[test]
fn value_files_that_overlap_stay_few() {
    let mut world = plain_world(|family| {
        family.buckets = 1;
        family.write_buffer_bytes = 64 << 10;
        family.space_amplification_max = 0.0;
    });
    for round in 0..70_u32 {
        // A twelfth of the keys, in another order each time, so that files keep some for long. All
        // values are large.
        let place = |n: u32| (n * 7919 + round * 104_729).wrapping_mul(2_654_435_761) >> 16;
        for n in (0..KEYS).filter(|&n| place(n) % 12 == 0) {
            world.put(n, 4 * round + 3 - n % 4);
        }
        world.db.flush(world.cf()).unwrap();
        step_all(&world.db).unwrap();
        let files = files_of(&world.db, world.cf());
        assert!(files.len() <= 24, "round {round}: {} files overlap", files.len());
    }
    assert!(world.collections() > 0, "no files were merged");
    world.finish();
}

/// Kind: values are read that nobody wants (facebook/rocksdb#11411, PR #13069, tikv/titan PR #297).
#[test]
fn values_that_nobody_wants_are_not_read() {
    let mut world = plain_world(|family| family.compaction_filter = Some("ttl".to_owned()));
    world.hook.starve(true);
    world.fill(0, |_| true);
    world.compact();
    world.db.sync().unwrap();
    let counting = CountingFs::new(Arc::new(world.fs.kill_clone()));
    let shared: Arc<dyn FileSystem> = Arc::new(counting.clone());
    let db = world.open_through(&shared).unwrap();
    let cf = db.default_family();
    let reads = || counting.snapshot().of_class(FileClass::ValueSst).read_ops;
    for n in (0..KEYS).step_by(4) {
        let (key, value, options) = (key(n), value(n, 1), WriteOptions::default());
        patiently(&db, || db.put_expiring(cf, &key, &value, 900_000, &options));
    }
    db.flush(cf).unwrap();
    db.compact_range(cf, &KeyRange::all()).unwrap();
    assert_eq!(reads(), 0, "of a compaction whose filter wants no value");
    let options = ReadOptions::default();
    let mut found = 0;
    for n in 0..KEYS {
        found += u32::from(db.contains(cf, &key(n), &options).unwrap());
        db.latest_seq(cf, &key(n)).unwrap();
        db.get_head(cf, &key(n), &options).unwrap();
    }
    assert_eq!(found, KEYS * 3 / 4, "a quarter has expired");
    assert_eq!(reads(), 0, "of reads of keys");
    let mut iter = db.iter(cf, &options.keys_only()).unwrap();
    iter.seek_to_first();
    let mut rows = 0;
    while iter.valid() {
        rows += 1;
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!((rows, reads()), (found, 0), "of a scan of keys");
    db.get(&key(3)).unwrap();
    assert!(reads() > 0, "values are read when they are wanted");
}

/// Kind: turning separation off leaves files behind or breaks readers (tikv/titan#259,
/// tikv/tikv#18434).
#[test]
fn reader_goes_on_while_values_return_to_the_tables() {
    let mut world = plain_world(|_| ());
    world.expose_garbage();
    world.settle();
    world.db.sync().unwrap();
    let family = CfOptions { value_separation_bytes: 0, ..small_family() };
    let mut off = World::over(world.fs.kill_clone(), family, BackgroundMode::Manual);
    off.model.clone_from(&world.model);
    let snapshot = off.db.snapshot();
    let options = ReadOptions::new().snapshot(&snapshot);
    let mut iter = off.db.iter(off.cf(), &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    let before = off.model.clone();
    let (mut rows, middle) = (before.iter(), before.len() / 2);
    for (key, value) in rows.by_ref().take(middle) {
        assert!((iter.key(), iter.value()) == (key, value), "{}", key.escape_ascii());
        iter.next();
    }
    off.fill(8, |n| n % 2 == 0);
    off.compact();
    off.settle();
    let audit = audit(&off.db);
    assert_eq!(audit.references, 0);
    assert!(!audit.on_disk.is_empty(), "the iterator holds the files that it reads");
    for (key, value) in rows {
        assert!((iter.key(), iter.value()) == (key, value), "{}", key.escape_ascii());
        iter.next();
    }
    assert!(!iter.valid() && iter.status().is_ok());
    check_at(&off.db, off.cf(), &options, &before);
    drop((iter, options, snapshot));
    off.check();
    step_all(&off.db).unwrap();
    assert_eq!(super::audit(&off.db).on_disk, BTreeSet::new());
}
