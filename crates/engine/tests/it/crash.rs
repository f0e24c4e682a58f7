//! Power loss and `kill -9` over a disk in memory, at the sync points and between the steps of
//! seeded runs.
//!
//! After a power loss the database must hold a prefix of the write order, with at least all
//! operations that were acknowledged as synced. After a kill it must hold exactly the acknowledged
//! ones. `ARCHIPELAGO_CRASH_FULL=1` checks every sync point, with more seeds.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::ErrorKind;
use archipelago_base::random::Rng;
use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;
use archipelago_tier::TieredFs;
use parking_lot::Mutex;

use crate::crash_model::{self as model, Hooks, Model, Op, Script};
use crate::disk::TestDisk;
use crate::separation::{self, Collection, Separation};
use crate::support::{Beneath, over, stepped};

/// A disk after power loss, and the prefixes that it may hold.
struct Crashed {
    disk: TestDisk,
    label: String,
    least: usize,
    most: usize,
}

/// State of the callback at sync points.
#[derive(Default)]
struct Watch {
    /// Number of operations that certainly survive.
    synced: AtomicU64,
    /// Number of operations that may survive, including the one in progress.
    begun: AtomicU64,
    crashed: Mutex<Vec<Crashed>>,
}

struct Run {
    seed: u64,
    disk: TestDisk,
    beneath: Beneath,
    fs: Arc<dyn FileSystem>,
    /// The file system as tiers, if tiers lie beneath; the test steps their background work.
    tiers: Option<Arc<TieredFs>>,
    db: Option<Db>,
    hooks: Hooks,
    script: Script,
    model: Model,
    ops: Vec<Op>,
    /// The hash after each number of operations.
    hashes: Vec<u64>,
    watch: Arc<Watch>,
    checked: usize,
    /// Parts that compactions were cut into, and bucket boundaries that the load moved, in the
    /// databases that were closed.
    parts: u64,
    moved: usize,
}

/// Options with whole compactions, few parts or many parts.
fn options(seed: u64) -> DbOptions {
    model::cut_into([1, 3, 8][seed as usize % 3])
}

/// Treatment of large values in a run. Four neighbouring runs have all thresholds, and 24 have all
/// combinations. The second of four runs separates no value, because compactions of references are
/// too small to be cut into parts.
fn separation(seed: u64) -> Separation {
    Separation::nth(seed * 19 + 1)
}

impl Run {
    fn new(seed: u64, one_in: u64, seeds: u64, beneath: Beneath) -> Self {
        let disk = TestDisk::new();
        let (fs, tiers) = beneath.open(&disk);
        let hooks = Hooks::of(separation(seed));
        let db = model::create(Arc::clone(&fs), options(seed), &hooks);
        let watch = Arc::new(Watch::default());
        let seen = Arc::clone(&watch);
        let rng = Mutex::new(Rng::with_seed(seed ^ 0x5eed));
        disk.on_sync(Arc::new(move |disk, path| {
            let mut rng = rng.lock();
            for _ in 0..seeds {
                if rng.u64(..one_in) > 0 {
                    continue;
                }
                let crash_seed = rng.u64(..);
                seen.crashed.lock().push(Crashed {
                    disk: disk.crash_clone(crash_seed),
                    label: format!("power loss {crash_seed:#x} after a sync of {}", path.display()),
                    least: seen.synced.load(Ordering::Relaxed) as usize,
                    most: seen.begun.load(Ordering::Relaxed) as usize,
                });
            }
        }));
        Self {
            seed,
            disk,
            beneath,
            fs,
            tiers,
            db: Some(db),
            hooks,
            script: Script::stormy(seed),
            model: Model::default(),
            ops: Vec::new(),
            hashes: vec![0],
            watch,
            checked: 0,
            parts: 0,
            moved: 0,
        }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open between the steps of a run")
    }

    /// Makes one operation. Afterwards it notes how many operations may be durable.
    fn operate(&mut self) {
        let op = self.script.op(&self.model);
        self.model.apply(&op);
        self.ops.push(op.clone());
        self.hashes.push(self.model.hash);
        self.watch.begun.store(self.ops.len() as u64, Ordering::Relaxed);
        model::perform_stepping(self.db(), &self.fs, &op, &self.hooks)
            .unwrap_or_else(|error| panic!("seed {}: {op:?}: {error}", self.seed));
        // Creating a family makes only the family durable.
        let unsynced = matches!(op, Op::Write { sync: false, .. } | Op::Ordered { .. });
        let durable = !unsynced && !matches!(op, Op::Create | Op::Flush { .. });
        if durable {
            self.all_synced();
        }
    }

    fn all_synced(&self) {
        self.watch.synced.store(self.ops.len() as u64, Ordering::Relaxed);
    }

    /// Makes a change that leaves the contents as they are.
    fn disturb(&mut self) {
        let rng = &mut self.script.rng;
        let (dice, which, at) = (rng.u32(..100), rng.usize(..3), rng.u32(..120));
        let family = self.db().family(model::FAMILIES[which]).unwrap();
        let allowed = |result: archipelago_base::Result<()>| match result {
            Err(error) if !matches!(error.kind(), ErrorKind::Busy | ErrorKind::InvalidArgument) => {
                panic!("{error}")
            }
            _ => {}
        };
        let middle = format!("key{at:04}").into_bytes();
        if let Some(tiers) = &self.tiers {
            tiers.step();
        }
        match dice {
            0..60 => drop(self.db().step_background().unwrap()),
            60..66 => self.db().flush(&family).unwrap(),
            66..69 => self.db().wait_for_background().unwrap(),
            69..79 => {
                let bucket = self
                    .db()
                    .buckets(&family)
                    .unwrap()
                    .iter()
                    .position(|bucket| bucket.range.contains(&middle));
                allowed(self.db().split_bucket(&family, bucket.unwrap(), Some(&middle)));
            }
            79..86 => allowed(self.db().merge_buckets(&family, at as usize % 3)),
            86..88 => {
                let all = archipelago_engine::key::KeyRange::all();
                self.db().compact_range(&family, &all).unwrap();
            }
            88..90 => {
                self.db().sync().unwrap();
                self.all_synced();
            }
            90..91 => self.reopen(),
            91..94 if self.tiers.is_none() => self.check_checkpoint(),
            _ => {}
        }
    }

    /// Checks that a checkpoint holds everything, even after power loss. (The sync points of its
    /// creation are among those that are checked.)
    fn check_checkpoint(&self) {
        self.db().checkpoint("/copy").unwrap();
        let fs: Arc<dyn FileSystem> = Arc::new(self.disk.crash_clone(self.seed));
        let components = Components { fs, seed: Some(3), ..stepped() };
        let copy = Db::open_with("/copy", options(self.seed), components).unwrap();
        let held = model::hash(&model::contents(&copy).unwrap());
        assert_eq!(held, self.model.hash, "seed {}: the checkpoint differs", self.seed);
        self.disk.remove_dir_all("/copy".as_ref()).unwrap();
    }

    fn reopen(&mut self) {
        self.parts += self.db().statistics().get(Ticker::Subcompactions);
        self.moved += moved_by_load(self.db());
        self.db.take().expect("open").close().unwrap();
        self.all_synced();
        let opened = model::open_over(Arc::clone(&self.fs), options(self.seed), &self.hooks);
        self.db = Some(opened.unwrap());
    }

    /// The prefix that the disk holds. Panics if it holds none of the allowed ones.
    fn check(&self, crashed: &Crashed) {
        let what = |what: &str| {
            format!("seed {}, operation {}, {}: {what}", self.seed, self.ops.len(), crashed.label)
        };
        let open = |disk: &TestDisk| {
            let hooks = Hooks::of(self.hooks.separation);
            model::open_over(self.beneath.open(disk).0, options(self.seed), &hooks)
                .unwrap_or_else(|error| panic!("{}", what(&format!("cannot open: {error}"))))
        };
        let db = open(&crashed.disk);
        self.audit(&db);
        let got =
            model::contents(&db).unwrap_or_else(|error| panic!("{}", what(&error.to_string())));
        let hash = model::hash(&got);
        if !self.hashes[crashed.least..=crashed.most].contains(&hash) {
            self.explain(crashed, &got, &what("holds no allowed prefix"));
        }
        let report = db.verify(|_, _| {}).unwrap();
        assert!(report.is_clean(), "{}", what(&format!("{:?}", report.errors)));
        // A crash directly after the recovery, and a clean reopen, change nothing.
        for disk in [crashed.disk.crash_clone(self.seed), crashed.disk.kill_clone()] {
            let again = model::contents(&open(&disk)).unwrap();
            assert_eq!(model::hash(&again), hash, "{}", what("a second recovery differs"));
        }
        let ordered = db.family(model::ORDERED).unwrap();
        db.flush(&ordered).unwrap();
        db.wait_for_background().unwrap();
        let levels = db.report(&ordered).unwrap().levels;
        let files: usize = levels.iter().map(|level| level.files).sum();
        assert_eq!(files, 0, "{}", what("tables of expired rows are left"));
        db.close().unwrap();
        let again = model::contents(&open(&crashed.disk)).unwrap();
        assert_eq!(model::hash(&again), hash, "{}", what("compaction or a reopen changed it"));
    }

    /// Checks the statements of a newly opened database about separated values.
    fn audit(&self, db: &Db) {
        match self.tiers {
            None => separation::audit_at_rest(db),
            Some(_) => separation::audit(db),
        };
    }

    /// Panics with the nearest prefix and the differences from it.
    fn explain(&self, crashed: &Crashed, got: &model::Contents, what: &str) -> ! {
        let mut model = Model::default();
        let mut nearest = (usize::MAX, 0, Vec::new());
        for (index, op) in std::iter::once(None).chain(self.ops.iter().map(Some)).enumerate() {
            if let Some(op) = op {
                model.apply(op);
            }
            let found = model::differences(got, &model.contents);
            if found.len() < nearest.0 {
                nearest = (found.len(), index, found);
            }
        }
        let (count, index, mut found) = nearest;
        found.truncate(8);
        let next = self.ops.get(index);
        panic!(
            "{what}: allowed {}..={}, nearest is {index} with {count} differences: {found:#?}\n\
             the next operation would be {next:?}",
            crashed.least, crashed.most
        );
    }

    fn check_crashed(&mut self) {
        let crashed = std::mem::take(&mut *self.watch.crashed.lock());
        for crashed in crashed {
            self.check(&crashed);
            self.checked += 1;
        }
    }

    fn check_kill(&mut self) {
        let now = self.ops.len();
        let disk = self.disk.kill_clone();
        self.check(&Crashed { disk, label: "kill".to_owned(), least: now, most: now });
        self.checked += 1;
    }
}

fn full() -> bool {
    std::env::var_os("ARCHIPELAGO_CRASH_FULL").is_some()
}

/// Numbers of crashes that were checked, of parts that compactions were cut into, and of bucket
/// boundaries that the load moved.
fn run(seed: u64, steps: usize, one_in: u64, beneath: Beneath) -> (usize, u64, usize) {
    let (one_in, seeds) = if full() { (1, 3) } else { (one_in, 1) };
    let mut run = Run::new(seed, one_in, seeds, beneath);
    for step in 0..steps {
        run.operate();
        run.check_crashed();
        run.disturb();
        run.check_crashed();
        if step % 40 == 17 || full() && step % 5 == 0 {
            run.check_kill();
        }
    }
    separation::audit(run.db());
    let got = model::contents(run.db()).unwrap();
    assert_eq!(model::differences(&got, &run.model.contents), Vec::<String>::new());
    if let Some(tiers) = &run.tiers {
        check_tiers(tiers, seed);
    }
    run.reopen();
    (run.checked, run.parts, run.moved)
}

/// Checks that the run used the tiers: files on both devices, moves and copies.
fn check_tiers(tiers: &TieredFs, seed: u64) {
    let stats = tiers.stats();
    let [fast, slow] = &stats.devices[..] else { panic!("two devices") };
    assert!(fast.files.contains_key("log") && fast.files.contains_key("bookkeeping"), "{stats}");
    assert!(slow.written_bytes + slow.moved_bytes > 0, "seed {seed}: {stats}");
    assert_eq!(stats.failed_jobs, 0, "seed {seed}: {stats}");
    assert_eq!(fast.copies_made.2, 0, "seed {seed}: {stats}");
}

/// Seeds of the runs over a disk, and of those over tiers.
fn seeds() -> [Range<u64>; 2] {
    let (on_disk, over_tiers) = if full() { (20, 10) } else { (4, 3) };
    [0..on_disk, 100..100 + over_tiers]
}

#[test]
fn runs_have_every_threshold_and_every_frequency_of_collection() {
    let runs: Vec<Separation> = seeds().into_iter().flatten().map(separation).collect();
    for bytes in [0, 1, 64, 512] {
        assert!(runs.iter().any(|run| run.bytes == bytes), "no run with {bytes}: {runs:?}");
    }
    for collection in [Collection::Off, Collection::Eager, Collection::Starved] {
        let is_one = |run: &Separation| run.bytes > 0 && run.collection == collection;
        assert!(runs.iter().any(is_one), "no run with {collection:?}: {runs:?}");
    }
}

#[test]
fn every_sync_point_leaves_a_prefix_of_the_writes_over_tiers() {
    let [_, seeds] = seeds();
    let checked: usize = seeds.map(|seed| run(seed, 200, 20, Beneath::Tiers).0).sum();
    eprintln!("{checked} crashes");
    assert!(checked > 30, "only {checked} crashes were looked at");
}

/// Bucket boundaries that the load has moved since the open.
fn moved_by_load(db: &Db) -> usize {
    let families = db.list_families().into_iter().map(|name| db.family(&name).unwrap());
    let changes = families.flat_map(|family| db.bucket_changes(&family).unwrap());
    changes.filter(|change| change.reason.contains("temperature")).count()
}

#[test]
fn every_sync_point_leaves_a_prefix_of_the_writes() {
    let [seeds, _] = seeds();
    let (mut checked, mut parts, mut moved) = (0, 0, 0);
    for of_run in seeds.map(|seed| run(seed, 300, 12, Beneath::Disk)) {
        checked += of_run.0;
        parts += of_run.1;
        moved += of_run.2;
    }
    eprintln!("{checked} crashes, {parts} parts, {moved} bucket boundaries moved by the load");
    assert!(parts > 0, "no compaction was cut into parts");
    assert!(moved > 0);
    assert!(checked > 60, "only {checked} crashes were looked at");
}

/// A database with one bucket and small buffers, without background threads.
fn plain(disk: &TestDisk) -> Db {
    let family = CfOptions { buckets: 1, ..model::family_options("default") };
    Db::open_with("/db", model::manual(), over(disk, family)).unwrap()
}

#[test]
fn log_segment_is_overwritten_only_once_it_is_not_needed() {
    let disk = TestDisk::new();
    let db = plain(&disk);
    let value = [b'v'; 1000];
    let mut flushed = 0u32;
    for round in 0..6 {
        for n in 0..70 {
            let key = format!("{:05}", round * 70 + n);
            while let Err(error) = db.put(key.as_bytes(), &value) {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                db.step_background().unwrap();
            }
            if n % 10 != 3 {
                continue;
            }
            // The rename of a recycled segment is not durable yet.
            for seed in 0..4 {
                let left = plain(&disk.crash_clone(u64::from(n) * 10 + seed));
                for key in 0..flushed {
                    let got = left.get(format!("{key:05}").as_bytes()).unwrap();
                    assert!(got.is_some(), "round {round}, {n}, seed {seed}: {key} of {flushed}");
                }
            }
        }
        db.flush(db.default_family()).unwrap();
        flushed = (round + 1) * 70;
    }
}

#[test]
fn sequence_numbers_that_a_flush_covers_are_not_given_out_again() {
    let disk = TestDisk::new();
    let db = plain(&disk);
    let other = db.create_family("other", CfOptions::default()).unwrap();
    let unlogged = WriteOptions { wal: false, ..WriteOptions::default() };
    db.put_with(&other, b"without a log", b"1", &unlogged).unwrap();
    for n in 0..50u8 {
        db.put(&[n], b"logged, not synced").unwrap();
    }
    // The flush covers every number so far, but only the first of them is in its file.
    db.flush(&other).unwrap();
    let left = (0..64).map(|seed| disk.crash_clone(seed)).find(|disk| {
        let db = plain(&disk.kill_clone());
        (0..50u8).all(|n| db.get(&[n]).unwrap().is_none())
    });
    let left = left.expect("a power loss that takes the whole log");
    let db = plain(&left);
    let other = db.family("other").unwrap();
    db.put_with(&other, b"later", b"2", &WriteOptions::synced()).unwrap();
    let db = plain(&left.crash_clone(1));
    let other = db.family("other").unwrap();
    for key in [&b"without a log"[..], b"later"] {
        assert!(db.get_with(&other, key, &ReadOptions::default()).unwrap().is_some());
    }
}

/// Writes batch `n`: a key in each of four parts of the key space, with values that name `n`.
fn write_batch(db: &Db, n: u32) {
    let mut batch = WriteBatch::new();
    for part in ["a", "h", "p", "w"] {
        let value = [n.to_be_bytes().as_slice(), &[b'v'; 60]].concat();
        let key = format!("{part}{:04}", n.wrapping_mul(2_654_435_761) % 5000);
        batch.put_cf(db.default_family().id(), key.as_bytes(), &value);
    }
    while let Err(error) = db.write(&batch, &WriteOptions::default()) {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        db.step_background().unwrap();
    }
}

#[test]
fn flush_without_log_sync_leaves_a_prefix_after_power_loss() {
    let (mut flushes, mut syncs, mut with_tables) = (0, 0, 0);
    for seed in 0..3 {
        let family = || CfOptions { buckets: 4, ..model::family_options("default") };
        let open =
            |disk: &TestDisk| Db::open_with("/db", model::manual(), over(disk, family())).unwrap();
        let disk = TestDisk::new();
        let db = open(&disk);
        let crashed: Arc<Mutex<Vec<TestDisk>>> = Arc::default();
        let (kept, rng) = (Arc::clone(&crashed), Mutex::new(Rng::with_seed(seed)));
        disk.on_sync(Arc::new(move |disk, _| {
            let mut rng = rng.lock();
            if rng.u32(..8) == 0 {
                kept.lock().push(disk.crash_clone(rng.u64(..)));
            }
        }));
        let contents = |db: &Db| -> Vec<(Vec<u8>, Vec<u8>)> {
            let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
            iter.seek_to_first();
            let mut all = Vec::new();
            while iter.valid() {
                all.push((iter.key().to_vec(), iter.value().to_vec()));
                iter.next();
            }
            iter.status().unwrap();
            all
        };
        // Content of the database after each number of batches.
        let mut prefixes = vec![Vec::new()];
        let mut model: std::collections::BTreeMap<Vec<u8>, Vec<u8>> = Default::default();
        for n in 0..250u32 {
            write_batch(&db, n);
            for part in ["a", "h", "p", "w"] {
                let key = format!("{part}{:04}", n.wrapping_mul(2_654_435_761) % 5000);
                let value = [n.to_be_bytes().as_slice(), &[b'v'; 60]].concat();
                model.insert(key.into_bytes(), value);
            }
            prefixes.push(model.clone().into_iter().collect());
            if n % 3 == 0 {
                db.step_background().unwrap();
            }
            for left in std::mem::take(&mut *crashed.lock()) {
                let db = open(&left);
                let got = contents(&db);
                let whole = prefixes.contains(&got);
                assert!(whole, "seed {seed}, batch {n}: {} records are no prefix", got.len());
                with_tables += usize::from(!got.is_empty());
                // Later writes get later numbers, which the recovered state does not cover.
                write_batch(&db, 1_000_000);
                db.sync().unwrap();
                let again = contents(&open(&left.crash_clone(seed)));
                assert_eq!(again, contents(&db), "seed {seed}, batch {n}");
            }
        }
        flushes += db.statistics().get(Ticker::Flushes);
        syncs += db.statistics().get(Ticker::WalSyncs);
    }
    assert_eq!(syncs, 0, "one family: no flush waits for the log");
    assert!(flushes > 20 && with_tables > 20, "{flushes} flushes, {with_tables} losses");
}
