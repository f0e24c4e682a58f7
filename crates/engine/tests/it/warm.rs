//! Data that is read often stays in the block cache when jobs rewrite it. Data that is not read
//! does not enter the cache.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::{ErrorKind, Result};
use archipelago_engine::compaction::job::CompactionSpec;
use archipelago_engine::db::{CompactRangeOptions, Components, Db, FaultPoint, ReadOptions};
use archipelago_engine::executor::{JobExecutor, LocalExecutor};
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::gc::job::GcSpec;
use archipelago_engine::job::{Cancel, JobContext, JobOutput, KnownKeys};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::sst::BlockCache;
use archipelago_engine::stats::Ticker;

use crate::disk::TestDisk;
use crate::support::{in_threads, over, small_db, small_family};

const KEYS: u32 = 1000;

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// All keys in one file of the last level, none of which was read there. `read`: number of keys
/// that are read while they are in memory.
fn settled(read: u32) -> Db {
    settled_in(None, read)
}

/// Components of a database with one file in each level.
fn one_file(fs: &TestDisk) -> Components {
    let family = CfOptions {
        buckets: 1,
        write_buffer_bytes: 1 << 20,
        target_file_bytes: 4 << 20,
        ..small_family()
    };
    over(fs, family)
}

fn settled_in(budget: Option<Arc<ByteBudget>>, read: u32) -> Db {
    let components = Components { budget, ..one_file(&TestDisk::new()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    (0..KEYS).for_each(|n| db.put(&key(n), &[1; 100]).unwrap());
    for n in 0..read {
        // Both kinds of read count.
        match n % 2 {
            0 => assert!(db.get(&key(n)).unwrap().is_some()),
            _ => {
                let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
                iter.seek(&key(n));
                assert!(iter.valid());
            }
        }
    }
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db
}

/// Number of these keys that are read without I/O. The file is opened for that, with its last
/// block.
fn warm(db: &Db, keys: impl Iterator<Item = u32>) -> usize {
    db.get(&key(KEYS - 1)).unwrap();
    let cached = ReadOptions { cache_only: true, ..ReadOptions::default() };
    keys.filter(|n| db.get_with(db.default_family(), &key(*n), &cached).is_ok()).count()
}

/// Writes every tenth key again, and compacts all keys.
fn rewrite(db: &Db) {
    (0..KEYS).step_by(10).for_each(|n| db.put(&key(n), &[2; 100]).unwrap());
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    assert_eq!(db.get(&key(KEYS - 10)).unwrap().unwrap()[..], [2; 100]);
}

#[test]
fn what_was_read_is_still_in_the_cache_when_it_was_compacted() {
    let db = settled(0);
    (0..100).for_each(|n| assert!(db.get(&key(n)).unwrap().is_some()));
    rewrite(&db);
    assert_eq!(warm(&db, 0..100), 100);
    assert_eq!(warm(&db, 200..900), 0, "nobody read these");
    rewrite(&db);
    assert_eq!(warm(&db, 0..100), 100, "also the next time");
}

#[test]
fn what_was_read_in_memory_is_in_the_cache_when_it_was_flushed() {
    assert_eq!(warm(&settled(0), 0..900), 0, "nobody read any");
    assert_eq!(warm(&settled(KEYS / 20), 0..900), 0, "too few to tell");
    assert_eq!(warm(&settled(KEYS / 10), 0..900), 900);
}

#[test]
fn blocks_of_files_that_are_gone_leave_the_cache() {
    let budget = ByteBudget::unlimited();
    let cached = || budget.used_bytes(MemoryClass::BlockCache);
    let db = settled_in(Some(Arc::clone(&budget)), 0);
    (0..KEYS).for_each(|n| assert!(db.get(&key(n)).unwrap().is_some()));
    let all = cached();
    assert!(all > 100 * u64::from(KEYS), "everything is there: {all}");
    for _ in 0..5 {
        rewrite(&db);
        assert_eq!(warm(&db, 0..KEYS), KEYS as usize);
        assert!(cached() < all * 11 / 10, "once: {} of {all}", cached());
    }
}

/// Runs jobs without the database's block cache, as a process elsewhere does.
#[derive(Default)]
struct Elsewhere {
    /// Flag that is set at the end of each compaction, if there is one.
    cancelled_at_end: Arc<OnceLock<Cancel>>,
}

impl Elsewhere {
    fn context<'a>(context: &'a JobContext<'a>) -> JobContext<'a> {
        JobContext {
            fs: Arc::clone(&context.fs),
            registry: context.registry.clone(),
            clock: Arc::clone(&context.clock),
            limiter: None,
            value_keys: KnownKeys::default(),
            cancel: context.cancel.clone(),
            shards: context.shards,
            cache: BlockCache::new(0, &context.budget),
            warm: false,
            budget: Arc::clone(&context.budget),
            more_file_numbers: None,
            progress: Arc::default(),
        }
    }
}

impl JobExecutor for Elsewhere {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.flush(spec, &Self::context(context))
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let output = LocalExecutor.compact(spec, &Self::context(context))?;
        self.cancelled_at_end.get().into_iter().for_each(Cancel::cancel);
        Ok(output)
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.gc(spec, &Self::context(context))
    }
}

/// Components of a database whose jobs `executor` runs.
fn run_by(executor: Elsewhere) -> Components {
    Components { executor: Arc::new(executor), ..one_file(&TestDisk::new()) }
}

/// All keys in files that the executor of `components` wrote, and none of them read.
fn settled_by(components: Components) -> Db {
    let db = Db::open_with("/db", small_db(), components).unwrap();
    (0..KEYS).for_each(|n| db.put(&key(n), &[1; 100]).unwrap());
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db
}

#[test]
fn what_was_read_is_still_in_the_cache_when_it_was_compacted_elsewhere() {
    let db = settled_by(run_by(Elsewhere::default()));
    let warmed = || db.statistics().get(Ticker::BlocksWarmed);
    assert_eq!(warmed(), 0, "nobody has read anything");
    (0..100).for_each(|n| assert!(db.get(&key(n)).unwrap().is_some()));
    for _ in 0..2 {
        let before = warmed();
        rewrite(&db);
        // The keys of one block at either end may have lain in a block that was not read.
        assert!(warm(&db, 0..100) >= 90, "{} are warm", warm(&db, 0..100));
        assert!(warm(&db, 200..900) < 50, "nobody read these");
        assert!(warmed() > before);
    }
}

#[test]
fn cancelled_compaction_elsewhere_warms_nothing() {
    let cancelled_at_end = Arc::new(OnceLock::new());
    let db = settled_by(run_by(Elsewhere { cancelled_at_end: Arc::clone(&cancelled_at_end) }));
    (0..100).for_each(|n| assert!(db.get(&key(n)).unwrap().is_some()));
    (0..KEYS).step_by(10).for_each(|n| db.put(&key(n), &[2; 100]).unwrap());
    let compactions = || db.statistics().get(Ticker::Compactions);
    let before = compactions();
    let cancel = Cancel::default();
    assert!(cancelled_at_end.set(cancel.clone()).is_ok());
    let options = CompactRangeOptions { cancel, ..CompactRangeOptions::default() };
    let compacted = db.compact_range_with(db.default_family(), &KeyRange::all(), &options);
    assert_eq!(compacted.unwrap_err().kind(), ErrorKind::Closed);
    assert!(compactions() > before, "the compaction that was cancelled is installed");
    assert_eq!(db.statistics().get(Ticker::BlocksWarmed), 0);
    assert_eq!(db.get(&key(KEYS - 10)).unwrap().unwrap()[..], [2; 100]);
}

/// A database with threads whose warm passes wait until the sender is dropped. Some of its keys
/// were read.
fn with_held_passes() -> (Db, Sender<()>) {
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let hold: FaultPoint = Arc::new(move |name| {
        if name == "warm_pass.begun" {
            assert!(may_go_on.lock().unwrap().recv().is_err(), "the sender is only dropped");
        }
        Ok(())
    });
    let components = Components { fault_point: Some(hold), ..run_by(Elsewhere::default()) };
    let db = settled_by(in_threads(components));
    (0..100).for_each(|n| assert!(db.get(&key(n)).unwrap().is_some()));
    (db, go_on)
}

#[test]
fn compaction_of_a_range_does_not_wait_for_its_warm_pass() {
    let (db, go_on) = with_held_passes();
    rewrite(&db);
    let warmed = || db.statistics().get(Ticker::BlocksWarmed);
    assert_eq!(warmed(), 0, "the pass has not begun");
    drop(go_on);
    db.wait_for_background().unwrap();
    assert!(warmed() > 0, "the end of background work includes the pass");
    assert!(warm(&db, 0..100) >= 90, "{} are warm", warm(&db, 0..100));
}

#[test]
fn compactions_that_end_during_a_warm_pass_are_warmed_after_it() {
    let (db, go_on) = with_held_passes();
    let family = CfOptions { buckets: 1, target_file_bytes: 4 << 20, ..small_family() };
    let second = db.create_family("second", family).unwrap();
    let fill = |value: u8| {
        let put = |n| db.put_with(&second, &key(n), &[value; 100], &WriteOptions::default());
        (0..KEYS).for_each(|n| put(n).unwrap());
        db.compact_range(&second, &KeyRange::all()).unwrap();
    };
    fill(1);
    for n in 0..100 {
        assert!(db.get_with(&second, &key(n), &ReadOptions::default()).unwrap().is_some());
    }
    rewrite(&db);
    fill(2);
    assert_eq!(db.statistics().get(Ticker::BlocksWarmed), 0, "no pass has begun");
    drop(go_on);
    db.wait_for_background().unwrap();
    assert!(warm(&db, 0..100) >= 90, "{} are warm", warm(&db, 0..100));
    let cached = ReadOptions { cache_only: true, ..ReadOptions::default() };
    let is_warm = |n: &u32| db.get_with(&second, &key(*n), &cached).is_ok();
    let count = (0..100).filter(is_warm).count();
    assert!(count >= 90, "{count} of the second family are warm");
}

#[test]
fn close_waits_for_the_end_of_a_warm_pass() {
    let (db, go_on) = with_held_passes();
    rewrite(&db);
    let handle = db.clone();
    std::thread::scope(|scope| {
        let closing = scope.spawn(move || handle.close());
        while db.catch_up().is_ok() {
            std::thread::yield_now();
        }
        assert!(!closing.is_finished(), "the thread of the pass has not ended");
        drop(go_on);
        closing.join().unwrap().unwrap();
    });
}
