//! Threads that run compactions: those of low priority, unless a caller waits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_engine::db::Db;
use archipelago_engine::extension::{CompactionFilter, FilterDecision};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use parking_lot::Mutex;

use crate::disk::TestDisk;
use crate::support::{in_threads, over, small_db, small_family};

/// Name of the threads that run compactions for which no caller waits.
const LOW_PRIORITY: &str = "archi-compact";

/// Keeps all values, and records the threads that called it.
#[derive(Default)]
struct Watch(Mutex<BTreeSet<String>>);

impl CompactionFilter for Watch {
    fn name(&self) -> &str {
        "watch"
    }

    fn filter(&self, _: &[u8], _: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        let thread = thread::current();
        self.0.lock().insert(thread.name().unwrap_or_default().to_owned());
        FilterDecision::Keep
    }
}

fn open(filter: Arc<dyn CompactionFilter>, max_background_jobs: usize) -> Db {
    let family = CfOptions {
        l0_compaction_trigger: 2,
        // Writers are never slowed down, so no compaction is urgent.
        l0_slowdown: 10_000,
        l0_stop: 20_000,
        compaction_filter: Some(filter.name().to_owned()),
        ..small_family()
    };
    let options = DbOptions { max_background_jobs, ..small_db() };
    let mut components = in_threads(over(&TestDisk::new(), family));
    components.registry.add_compaction_filter(filter);
    Db::open_with("/db", options, components).unwrap()
}

#[test]
fn compactions_have_low_priority_unless_a_caller_waits() {
    let watch = Arc::new(Watch::default());
    let db = open(Arc::clone(&watch) as _, 2);
    let mut n = 0u32;
    while !watch.0.lock().contains(LOW_PRIORITY) {
        n += 1;
        assert!(n < 10_000_000, "no compaction ran with low priority: {:?}", watch.0.lock());
        db.put(format!("key{:05}", n % 5000).as_bytes(), &[1; 100]).unwrap();
    }
    db.wait_for_background().unwrap();
    watch.0.lock().clear();
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    let threads = watch.0.lock().clone();
    assert!(!threads.is_empty(), "everything was looked at");
    assert!(!threads.contains(LOW_PRIORITY), "its caller waits: {threads:?}");
}

/// Keeps all values. While it is closed, no compaction continues.
#[derive(Default)]
struct Lock {
    closed: AtomicBool,
    holds_one: AtomicBool,
}

impl CompactionFilter for Lock {
    fn name(&self) -> &str {
        "lock"
    }

    fn filter(&self, _: &[u8], _: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        while self.closed.load(Ordering::SeqCst) && thread::current().name() == Some(LOW_PRIORITY) {
            self.holds_one.store(true, Ordering::SeqCst);
            SystemClock::new().sleep(Duration::from_millis(1));
        }
        FilterDecision::Keep
    }
}

/// Opens the lock at the end, however the test ends, because the database closes only after its
/// compactions have ended.
struct OpenAtLast<'a>(&'a Lock);

impl Drop for OpenAtLast<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::SeqCst);
    }
}

#[test]
fn writers_do_not_wait_for_compactions_that_take_all_jobs() {
    for jobs in [1, 2] {
        let lock = Arc::new(Lock::default());
        let db = open(Arc::clone(&lock) as _, jobs);
        lock.closed.store(true, Ordering::SeqCst);
        let at_last = OpenAtLast(&lock);
        let write = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
        let clock = SystemClock::new();
        let give_up_ns = clock.now_ns() + 120_000_000_000;
        let put = |n: u32| {
            let key = format!("key{:05}", n % 5000);
            while let Err(error) =
                db.put_with(db.default_family(), key.as_bytes(), &[1; 100], &write)
            {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                assert!(clock.now_ns() < give_up_ns, "with {jobs} jobs, write {n}: {error}");
                clock.sleep(Duration::from_millis(1));
            }
        };
        (0..).take_while(|_| !lock.holds_one.load(Ordering::SeqCst)).for_each(put);
        // The data of dozens of memtables, while no compaction ends.
        (0..10_000).for_each(put);
        assert!(lock.closed.load(Ordering::SeqCst));
        drop(at_last);
        db.wait_for_background().unwrap();
    }
}
