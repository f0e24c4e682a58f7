//! Who runs compactions: threads of low priority, unless somebody waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_engine::db::Db;
use archipelago_engine::extension::{CompactionFilter, FilterDecision};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{BackgroundMode, CfOptions, DbOptions};
use archipelago_env::mem::MemFs;
use parking_lot::Mutex;

use crate::support::{over, small_db, small_family};

/// Keeps everything, and remembers the threads that it was asked on.
#[derive(Default)]
struct Watch(Mutex<BTreeSet<String>>);

impl CompactionFilter for Watch {
    fn name(&self) -> &str {
        "watch"
    }

    fn filter(&self, _: &[u8], _: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        let thread = std::thread::current();
        self.0.lock().insert(thread.name().unwrap_or_default().to_owned());
        FilterDecision::Keep
    }
}

fn open(watch: &Arc<Watch>) -> Db {
    let family = CfOptions {
        l0_compaction_trigger: 2,
        // Writers are never slowed down, so no compaction is urgent.
        l0_slowdown: 10_000,
        l0_stop: 20_000,
        compaction_filter: Some("watch".to_owned()),
        ..small_family()
    };
    let options = DbOptions { background: BackgroundMode::Threads, ..small_db() };
    let mut components = over(&MemFs::new(), family);
    components.registry.add_compaction_filter(Arc::clone(watch) as _);
    Db::open_with("/db", options, components).unwrap()
}

#[test]
fn compactions_have_low_priority_unless_somebody_waits_for_them() {
    const PATIENT: &str = "archi-compact";
    let watch = Arc::new(Watch::default());
    let db = open(&watch);
    let mut n = 0u32;
    while !watch.0.lock().contains(PATIENT) {
        n += 1;
        assert!(n < 10_000_000, "no compaction ran with low priority: {:?}", watch.0.lock());
        db.put(format!("key{:05}", n % 5000).as_bytes(), &[1; 100]).unwrap();
    }
    db.wait_for_background().unwrap();
    watch.0.lock().clear();
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    let threads = watch.0.lock().clone();
    assert!(!threads.is_empty(), "everything was looked at");
    assert!(!threads.contains(PATIENT), "its caller waits: {threads:?}");
}
