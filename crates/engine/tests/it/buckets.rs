//! Bucket boundaries that move with the load, seen from the outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::{Error, ErrorKind};
use archipelago_engine::db::{Components, Db, FaultPoint, ReadOptions};
use archipelago_engine::event::{Event, EventListener};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use parking_lot::Mutex;

use crate::disk::TestDisk;
use crate::support::{in_threads, open, over, small_db, small_family};

const VALUE: [u8; 100] = [7; 100];

fn family() -> CfOptions {
    CfOptions { buckets: 8, write_buffer_bytes: 32 << 10, ..small_family() }
}

fn eight_jobs() -> DbOptions {
    DbOptions { max_background_jobs: 8, ..small_db() }
}

/// The events that listeners receive, and the disk at each change of a map.
#[derive(Default)]
struct Told {
    reasons: Mutex<Vec<String>>,
    errors: AtomicU64,
    disk: Mutex<Option<TestDisk>>,
    left: Mutex<Vec<TestDisk>>,
}

impl Told {
    fn keep_disks(&self) {
        if let Some(disk) = &*self.disk.lock() {
            let mut left = self.left.lock();
            let seed = left.len() as u64;
            left.extend([disk.kill_clone(), disk.crash_clone(seed)]);
        }
    }

    fn by_load(&self) -> usize {
        self.reasons.lock().iter().filter(|reason| reason.contains("temperature")).count()
    }
}

impl EventListener for Told {
    fn on_event(&self, event: &Event) {
        match event {
            Event::BucketMapChanged { reason, .. } => {
                self.reasons.lock().push(reason.clone());
                self.keep_disks();
            }
            Event::BackgroundError { .. } => drop(self.errors.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
    }
}

struct World {
    db: Db,
    told: Arc<Told>,
    rng: fastrand::Rng,
    /// The value of key `n` is `VALUE` for every key that was written.
    written: std::collections::BTreeSet<u64>,
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:09}").into_bytes()
}

impl World {
    fn new(options: DbOptions, family: CfOptions) -> Self {
        Self::over(&TestDisk::new(), options, family, None)
    }

    fn over(
        fs: &TestDisk,
        options: DbOptions,
        family: CfOptions,
        fault: Option<FaultPoint>,
    ) -> Self {
        let components = Components { fault_point: fault, ..over(fs, family) };
        Self::open(components, options)
    }

    fn open(mut components: Components, options: DbOptions) -> Self {
        let told = Arc::new(Told::default());
        components.listeners.add(Arc::clone(&told) as _);
        let db = Db::open_with("/db", options, components).unwrap();
        let rng = fastrand::Rng::with_seed(5);
        Self { db, told, rng, written: Default::default() }
    }

    /// Writes a key, with only as many background steps as the write needs, so that the load never
    /// pauses.
    fn put(&mut self, n: u64) {
        while let Err(error) = self.db.put(&key(n), &VALUE) {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            // A failed step is tried again; the events report it.
            let _ = self.db.step_background();
        }
        self.written.insert(n);
    }

    /// Writes `count` random keys of `range`, with one background step for every `every` of them.
    fn load(&mut self, count: u64, range: std::ops::Range<u64>, every: u64) {
        for at in 0..count {
            let n = self.rng.u64(range.clone());
            self.put(n);
            if at % every == 0 {
                let _ = self.db.step_background();
            }
        }
    }

    fn buckets_in(&self, range: std::ops::Range<u64>) -> usize {
        let buckets = self.db.buckets(self.db.default_family()).unwrap();
        let (from, to) = (key(range.start), key(range.end));
        let inside = |start: &Vec<u8>| *start > from && *start < to;
        buckets.iter().filter(|bucket| inside(&bucket.range.start)).count() + 1
    }

    fn check(&self, db: &Db) {
        let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
        iter.seek_to_first();
        for n in &self.written {
            assert!(iter.valid(), "key {n} is not there");
            assert_eq!((iter.key(), iter.value()), (&key(*n)[..], &VALUE[..]));
            iter.next();
        }
        assert!(!iter.valid());
        iter.status().unwrap();
        assert!(db.verify(|_, _| {}).unwrap().is_clean());
    }
}

#[test]
fn a_hot_bucket_is_split_under_a_load_that_never_lets_up() {
    let mut world = World::new(eight_jobs(), family());
    world.load(1000, 0..100_000_000, 40);
    assert_eq!(world.buckets_in(0..100_000_000), 8);
    assert_eq!(world.buckets_in(50_000_000..50_500_000), 1);
    // One step for every ten writes is about twenty for each memtable, as eight jobs would do.
    let mut buckets = 1;
    for _ in 0..60 {
        world.load(300, 50_000_000..50_500_000, 10);
        buckets = buckets.max(world.buckets_in(50_000_000..50_500_000));
    }
    assert_eq!(world.db.statistics().get(Ticker::StallL0Ns), 0, "no writer waits for a change");
    // The hot range takes the whole load, so its parts have a temperature of at most 1, up to
    // sampling errors.
    assert!(buckets >= 6, "{buckets} buckets: {:#?}", world.told.reasons.lock());
    let stats = world.db.statistics();
    assert!(stats.get(Ticker::BucketSplits) >= 3 && stats.get(Ticker::BucketMerges) > 0);
    let reasons = world.told.reasons.lock().clone();
    let split = reasons.iter().find(|reason| reason.starts_with("split at")).unwrap();
    assert!(split.contains("temperature") && split.contains("ideal"), "{split}");
    // The history and the statistics must agree with the events.
    let cf = world.db.default_family();
    let history = world.db.bucket_changes(cf).unwrap();
    let newest: Vec<_> = reasons.iter().rev().take(history.len()).rev().collect();
    assert_eq!(history.iter().map(|change| &change.reason).collect::<Vec<_>>(), newest);
    assert!(history.len() <= 32 && history.windows(2).all(|p| p[0].epoch.0 + 1 == p[1].epoch.0));
    let text = world.db.property(cf, "archipelago.bucketstats").unwrap();
    assert!(text.contains(newest.last().unwrap().as_str()), "{text}");
    let infos = world.db.buckets(cf).unwrap();
    let sum: f64 = infos.iter().map(|bucket| bucket.temperature.unwrap()).sum();
    assert!((sum - 8.0).abs() < 0.01, "temperatures add up to the first number: {sum}");
    world.db.wait_for_background().unwrap();
    world.check(&world.db);
}

#[test]
fn a_load_that_moves_is_followed_and_an_open_starts_anew() {
    let fs = TestDisk::new();
    let mut world = World::over(&fs, eight_jobs(), family(), None);
    world.load(1000, 0..100_000_000, 40);
    for range in [10_000_000..10_400_000, 70_000_000..70_400_000] {
        world.load(9000, range.clone(), 40);
        world.db.wait_for_background().unwrap();
        assert!(world.buckets_in(range) >= 4, "{:#?}", world.told.reasons.lock());
    }
    assert!(world.buckets_in(10_000_000..10_400_000) <= 2, "what was hot has been merged");
    world.check(&world.db);
    let boundaries = |db: &Db| -> Vec<KeyRange> {
        db.buckets(db.default_family()).unwrap().into_iter().map(|info| info.range).collect()
    };
    let before = boundaries(&world.db);
    world.db.clone().close().unwrap();
    let db = Db::open_with("/db", eight_jobs(), over(&fs, family())).unwrap();
    assert_eq!(boundaries(&db), before);
    let infos = db.buckets(db.default_family()).unwrap();
    assert!(infos.iter().all(|info| info.temperature.is_none() && info.window_bytes == 0));
    assert!(db.bucket_changes(db.default_family()).unwrap().is_empty());
}

#[test]
fn an_even_load_and_one_in_order_split_nothing() {
    let mut world = World::new(eight_jobs(), family());
    world.load(12_000, 0..100_000_000, 20);
    assert_eq!(world.told.by_load(), 0, "{:#?}", world.told.reasons.lock());
    world.check(&world.db);

    let fill = |dynamic: bool| {
        let family = CfOptions { buckets_dynamic: dynamic, ..family() };
        let mut world = World::new(eight_jobs(), family);
        let mut fullest = 0;
        for n in 0..12_000 {
            world.put(n);
            if n % 20 == 0 {
                world.db.step_background().unwrap();
            }
            let infos = world.db.buckets(world.db.default_family()).unwrap();
            fullest = fullest.max(infos.iter().map(|info| info.l0_files).max().unwrap());
        }
        world.db.wait_for_background().unwrap();
        world.check(&world.db);
        let stats = world.db.statistics();
        (stats.get(Ticker::BucketSplits), stats.get(Ticker::CompactionBytesWritten), fullest)
    };
    let (moving, still) = (fill(true), fill(false));
    assert_eq!((moving.0, still.0), (0, 0), "keys in order share nothing out");
    // A merged bucket has the few files of both.
    assert!(moving.2 < 8, "L0 of the fullest bucket: {} files, {}", moving.2, still.2);
    let written = 12_000 * 116;
    assert!(moving.1 <= still.1 + written / 4, "{} bytes compacted, {}", moving.1, still.1);
}

#[test]
fn boundaries_stay_where_they_are_to_stay() {
    for (buckets, dynamic) in [(8, false), (1, true)] {
        let family = CfOptions { buckets, buckets_dynamic: dynamic, ..family() };
        let mut world = World::new(eight_jobs(), family);
        world.load(1000, 0..100_000_000, 40);
        world.load(6000, 50_000_000..50_500_000, 40);
        world.db.wait_for_background().unwrap();
        assert_eq!(world.db.buckets(world.db.default_family()).unwrap().len(), buckets);
        assert_eq!(world.told.by_load(), 0);
    }
    let family = CfOptions { buckets_max: 9, ..family() };
    let mut world = World::new(eight_jobs(), family);
    world.load(1000, 0..100_000_000, 40);
    for _ in 0..30 {
        world.load(300, 50_000_000..50_500_000, 40);
        assert!(world.db.buckets(world.db.default_family()).unwrap().len() <= 9);
    }
    assert!(world.db.statistics().get(Ticker::BucketSplits) > 0);
}

/// A database whose hot range is being shared out. `fault` is called before every change.
fn moving(fs: &TestDisk, components: Components) -> World {
    let mut world = World::open(components, eight_jobs());
    *world.told.disk.lock() = Some(fs.clone());
    world.load(1000, 0..100_000_000, 40);
    world.load(6000, 50_000_000..50_500_000, 40);
    let synced = WriteOptions::synced();
    world.db.put_with(world.db.default_family(), &key(1), &VALUE, &synced).unwrap();
    world.written.insert(1);
    world
}

#[test]
fn a_change_that_fails_is_told_and_made_later() {
    let fs = TestDisk::new();
    let failures = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&failures);
    let fault: FaultPoint = Arc::new(move |name| {
        if name == "buckets.before_change" && seen.fetch_add(1, Ordering::Relaxed) < 3 {
            return Err(Error::io("change", "/db".as_ref(), std::io::ErrorKind::Other.into()));
        }
        Ok(())
    });
    let world = moving(&fs, Components { fault_point: Some(fault), ..over(&fs, family()) });
    assert!(failures.load(Ordering::Relaxed) > 3);
    assert!(world.buckets_in(50_000_000..50_500_000) >= 2);
    let stats = world.db.statistics();
    let (splits, merges) = (stats.get(Ticker::BucketSplits), stats.get(Ticker::BucketMerges));
    let buckets = world.db.buckets(world.db.default_family()).unwrap().len() as u64;
    assert_eq!(8 + splits - merges, buckets, "each cut and each merge is counted");
    assert!(splits + merges >= world.told.by_load() as u64 && world.told.by_load() > 0);
    world.check(&world.db);
}

#[test]
fn a_device_that_fails_at_a_change_loses_nothing() {
    for operation in [Operation::Append, Operation::Sync] {
        let fs = TestDisk::new();
        let faults = FaultFs::new(Arc::new(fs.clone()), 1);
        let fired = Arc::new(AtomicBool::new(false));
        let (device, once) = (faults.clone(), Arc::clone(&fired));
        let fault: FaultPoint = Arc::new(move |name| {
            if name == "buckets.before_change" && !once.swap(true, Ordering::Relaxed) {
                device.add(Rule::on(operation).path("MANIFEST").fault(Fault::Io).nth(1));
            }
            Ok(())
        });
        let components = Components {
            fs: Arc::new(faults.clone()),
            fault_point: Some(fault),
            ..over(&fs, family())
        };
        let world = moving(&fs, components);
        assert!(fired.load(Ordering::Relaxed));
        assert!(world.buckets_in(50_000_000..50_500_000) >= 2, "{operation:?}");
        world.check(&world.db);
        let left = Db::open_with("/db", small_db(), over(&fs.kill_clone(), family())).unwrap();
        world.check(&left);
    }
}

#[test]
fn a_crash_around_a_change_leaves_all_that_was_synced() {
    let fs = TestDisk::new();
    let before = Arc::new(Mutex::new(Vec::new()));
    let (disk, kept) = (fs.clone(), Arc::clone(&before));
    let fault: FaultPoint = Arc::new(move |name| {
        if name == "buckets.before_change" {
            let mut kept = kept.lock();
            let seed = kept.len() as u64;
            kept.extend([disk.kill_clone(), disk.crash_clone(seed)]);
        }
        Ok(())
    });
    let world = moving(&fs, Components { fault_point: Some(fault), ..over(&fs, family()) });
    let after = std::mem::take(&mut *world.told.left.lock());
    let before = std::mem::take(&mut *before.lock());
    assert!(before.len() >= 6 && after.len() >= before.len());
    // The first two disks were cloned when the first map was made, with nothing in a table.
    for left in before.iter().chain(&after[2..]) {
        // The first memtable made the first map, and no change came before it was in a table. Other
        // rows may be lost with the power, but a row that exists is whole.
        let db = Db::open_with("/db", small_db(), over(left, family())).unwrap();
        let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
        iter.seek_to_first();
        let mut found = 0;
        while iter.valid() {
            let n: u64 = std::str::from_utf8(iter.key()).unwrap().parse().unwrap();
            assert!(world.written.contains(&n) && iter.value() == VALUE);
            found += 1;
            iter.next();
        }
        iter.status().unwrap();
        assert!(found >= 200, "{found}");
        assert!(db.verify(|_, _| {}).unwrap().is_clean());
    }
}

#[test]
fn boundaries_move_under_threads_too() {
    let options = DbOptions { max_background_jobs: 4, ..small_db() };
    let mut world = World::open(in_threads(over(&TestDisk::new(), family())), options);
    for n in 0..1000 {
        world.put(n * 99_991);
    }
    for _ in 0..40 {
        for _ in 0..500 {
            let n = world.rng.u64(50_000_000..50_500_000);
            world.put(n);
        }
        if world.buckets_in(50_000_000..50_500_000) >= 4 {
            break;
        }
    }
    world.db.wait_for_background().unwrap();
    assert!(world.buckets_in(50_000_000..50_500_000) >= 3, "{:#?}", world.told.reasons.lock());
    assert_eq!(world.told.errors.load(Ordering::Relaxed), 0);
    world.check(&world.db);
}

#[test]
fn split_outside_its_bucket_is_refused() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    db.split_bucket(cf, 0, Some(b"m")).unwrap();
    let refused = |index: usize, at: &[u8]| {
        let error = db.split_bucket(cf, index, Some(at)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        error.to_string()
    };
    assert!(refused(2, b"z").contains("there is no bucket 2"));
    assert!(refused(0, b"z").contains("cannot split bucket 0 at \"z\""));
    assert!(refused(1, b"c").contains("cannot split bucket 1 at \"c\""));
    assert!(refused(1, b"m").contains("cannot split bucket 1 at \"m\""), "it is its first key");
    assert_eq!(db.buckets(cf).unwrap().len(), 2);
}
