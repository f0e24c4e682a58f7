//! Memory under pressure and the size of the log, with many small families.

use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_engine::db::{BackgroundMode, ColumnFamily, Components, Db, ReadOptions};
use archipelago_engine::event::{Event, EventListener, Listeners};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

use crate::disk::TestDisk;
use crate::support::over;

const MB: u64 = 1 << 20;

/// Families that got a memtable sealed, in order.
#[derive(Default)]
struct Seals(Mutex<Vec<u32>>);

impl EventListener for Seals {
    fn on_event(&self, event: &Event) {
        if let Event::MemtableSealed { cf, .. } = event {
            self.0.lock().push(cf.0);
        }
    }
}

struct Bench {
    fs: TestDisk,
    budget: Arc<ByteBudget>,
    seals: Arc<Seals>,
    db: Db,
}

impl Bench {
    /// A database whose background work the test steps.
    fn new(limit_bytes: u64, options: DbOptions) -> Self {
        Self::with(BackgroundMode::Manual, limit_bytes, options)
    }

    fn with(background: BackgroundMode, limit_bytes: u64, mut options: DbOptions) -> Self {
        let (fs, seals) = (TestDisk::new(), Arc::new(Seals::default()));
        let budget = ByteBudget::new(limit_bytes);
        let mut listeners = Listeners::default();
        listeners.add(Arc::clone(&seals) as Arc<dyn EventListener>);
        let components = Components {
            budget: Some(Arc::clone(&budget)),
            background,
            listeners,
            ..over(&fs, CfOptions { buckets: 1, ..CfOptions::default() })
        };
        options.block_cache_bytes = MB;
        let db = Db::open_with("/db", options, components).unwrap();
        Self { fs, budget, seals, db }
    }

    /// Families of `records` records of a kilobyte each, without any later writes.
    fn idle_families(&self, count: usize, records: usize) -> Vec<ColumnFamily> {
        let family = |at: usize| {
            let options = CfOptions { buckets: 1, ..CfOptions::default() };
            let family = self.db.create_family(&format!("idle{at}"), options).unwrap();
            for record in 0..records {
                self.put(&family, record as u64);
            }
            family
        };
        (0..count).map(family).collect()
    }

    fn put(&self, family: &ColumnFamily, key: u64) {
        let options = WriteOptions::default();
        self.db.put_with(family, &key.to_be_bytes(), &[7; 1000], &options).unwrap();
    }

    fn has(&self, family: &ColumnFamily, key: u64) -> bool {
        self.db.contains(family, &key.to_be_bytes(), &ReadOptions::default()).unwrap()
    }

    fn stalled_ns(&self) -> u64 {
        self.db.statistics().get(Ticker::StallBudgetNs)
    }
}

/// The warnings of one thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if let Some(line) = self.0.lock().last_mut() {
            line.push_str(&format!("{}={value:?} ", field.name()));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().ends_with("memory_shares")
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        self.0.lock().push(String::new());
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn options_over_their_share_are_logged_once_each() {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let large = CfOptions { write_buffer_bytes: 32 * MB, ..CfOptions::default() };
        let options = DbOptions { block_cache_bytes: 40 * MB, ..DbOptions::default() };
        let components = Components {
            budget: Some(ByteBudget::new(48 * MB)),
            ..over(&TestDisk::new(), large.clone())
        };
        let db = Db::open_with("/db", options, components).unwrap();
        db.create_family("late", CfOptions { target_file_bytes: 20 * MB, ..large }).unwrap();
    });
    let told = std::mem::take(&mut *warnings.0.lock());
    let expected = [
        ("block_cache_bytes", "", 40, 24),
        ("write_buffer_bytes", "default", 32, 6),
        ("write_buffer_bytes", "late", 32, 6),
        ("target_file_bytes", "late", 20, 12),
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (line, (option, family, given, effective)) in told.iter().zip(expected) {
        let (given, effective) = (given * MB, effective * MB);
        let fields = format!(
            "option={option:?} family={family:?} given={given} effective={effective} \
             budget_bytes={}",
            48 * MB
        );
        assert!(line.contains(&fields) && line.contains("lower the option"), "{line}");
    }
}

#[test]
fn idle_small_families_are_flushed_when_memory_is_short() {
    let bench = Bench::new(32 * MB, DbOptions::default());
    let families = bench.idle_families(400, 180);
    assert!(bench.budget.total_bytes() > 64 * MB, "the case is one of pressure");
    bench.db.wait_for_background().unwrap();
    assert!(bench.budget.total_bytes() <= 32 * MB, "{:?}", bench.budget);
    // Each family was sealed once at most, which made one file of it at most.
    let sealed = bench.seals.0.lock().clone();
    let distinct: std::collections::BTreeSet<u32> = sealed.iter().copied().collect();
    assert_eq!(sealed.len(), distinct.len());
    // Writers have space again.
    for key in 0..2000 {
        bench.put(bench.db.default_family(), key);
    }
    assert_eq!(bench.stalled_ns(), 0);
    assert!(families.iter().all(|family| bench.has(family, 0) && bench.has(family, 179)));
}

#[test]
fn background_threads_flush_idle_small_families_by_themselves() {
    let bench = Bench::with(BackgroundMode::Threads, 32 * MB, DbOptions::default());
    bench.idle_families(200, 180);
    for key in 0..2000 {
        bench.put(bench.db.default_family(), key);
    }
    while bench.budget.total_bytes() > 32 * MB {
        std::thread::yield_now();
    }
    bench.db.wait_for_background().unwrap();
    assert!(!bench.seals.0.lock().is_empty());
}

#[test]
fn memtables_are_left_alone_when_others_fill_the_budget() {
    let bench = Bench::new(32 * MB, DbOptions::default());
    let _held = bench.budget.hold(archipelago_base::budget::MemoryClass::Request, 64 * MB);
    let families = bench.idle_families(20, 1);
    for _round in 0..20 {
        bench.db.step_background().unwrap();
    }
    assert_eq!(bench.seals.0.lock().len(), 0, "sealing them would free next to nothing");
    drop(families);
}

#[test]
fn log_bound_seals_every_family_that_pins_an_excess_segment() {
    let options =
        DbOptions { wal_segment_bytes: 64 << 10, wal_bytes_max: 128 << 10, ..DbOptions::default() };
    let bench = Bench::new(u64::MAX, options);
    for family in bench.idle_families(20, 1) {
        assert!(bench.has(&family, 0));
        // The next family's record lies in another segment.
        for key in 0..70 {
            bench.put(bench.db.default_family(), key);
        }
    }
    bench.db.step_background().unwrap();
    // The default family, and all families except those whose segments may stay.
    let sealed = bench.seals.0.lock().len();
    assert!((18..=21).contains(&sealed), "{sealed} of 21 families were sealed in one step");
    bench.db.wait_for_background().unwrap();
    let names = bench.fs.list(std::path::Path::new("/db")).unwrap();
    let logs = names.iter().filter(|entry| entry.name.ends_with(".log")).count();
    // Two closed segments within the bound, the open one, and two that are kept for reuse.
    assert!(logs <= 5, "{logs} log segments are left");
}
