//! Extensions that panic. The job or the read fails with an error that names them. No claim
//! remains, no thread waits for ever, and work continues when they do not panic any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::compaction::job::CompactionSpec;
use archipelago_engine::db::{BackgroundMode, Components, Db, ReadOptions};
use archipelago_engine::event::{Event, EventListener};
use archipelago_engine::executor::{JobExecutor, LocalExecutor};
use archipelago_engine::extension::{AppendMerge, CompactionFilter, FilterDecision, MergeOperator};
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::gc::job::GcSpec;
use archipelago_engine::job::{JobContext, JobOutput};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;

use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

/// All extensions in one; each panics while `on` is set.
#[derive(Clone, Default)]
pub(crate) struct Panicking {
    on: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl Panicking {
    fn set(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }

    fn called(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        assert!(!self.on.load(Ordering::SeqCst), "on purpose");
    }
}

impl MergeOperator for Panicking {
    fn name(&self) -> &str {
        "fragile-merge"
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>> {
        self.called();
        AppendMerge.full_merge(key, base, operands)
    }

    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        self.called();
        AppendMerge.partial_merge(key, operands)
    }
}

impl CompactionFilter for Panicking {
    fn name(&self) -> &str {
        "fragile-filter"
    }

    fn filter(&self, _: &[u8], _: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        self.called();
        FilterDecision::Keep
    }
}

impl EventListener for Panicking {
    fn name(&self) -> &str {
        "fragile-listener"
    }

    fn on_event(&self, _event: &Event) {
        self.called();
    }
}

impl JobExecutor for Panicking {
    fn name(&self) -> &str {
        "fragile-executor"
    }

    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        self.called();
        LocalExecutor.flush(spec, context)
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        self.called();
        LocalExecutor.compact(spec, context)
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        self.called();
        LocalExecutor.gc(spec, context)
    }
}

/// Extension of the database that panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PanickingExtension {
    Merge,
    Filter,
    Executor,
}

impl PanickingExtension {
    /// Text of an error about the extension.
    fn text(self) -> &'static str {
        match self {
            Self::Merge => "merge operator \"fragile-merge\" of column family \"default\" panicked",
            Self::Filter => {
                "compaction filter \"fragile-filter\" of column family \"default\" panicked"
            }
            Self::Executor => {
                "job executor \"fragile-executor\" of column family \"default\" panicked"
            }
        }
    }
}

fn open(fs: &TestDisk, mode: Mode, which: PanickingExtension, fragile: &Panicking) -> Db {
    open_with_trigger(fs, mode, which, fragile, 2)
}

/// Opens a database whose buckets are compacted in the background from `l0_compaction_trigger`
/// files on.
fn open_with_trigger(
    fs: &TestDisk,
    mode: Mode,
    which: PanickingExtension,
    fragile: &Panicking,
    l0_compaction_trigger: usize,
) -> Db {
    let merge = if which == PanickingExtension::Merge { "fragile-merge" } else { "append" };
    let family = CfOptions {
        merge_operator: Some(merge.to_owned()),
        compaction_filter: (which == PanickingExtension::Filter)
            .then(|| "fragile-filter".to_owned()),
        write_buffers_max: 3,
        l0_compaction_trigger,
        ..small_family()
    };
    let mut components = Components { background: mode.background, ..over(fs, family) };
    components.registry.add_merge_operator(Arc::new(fragile.clone()));
    components.registry.add_compaction_filter(Arc::new(fragile.clone()));
    if which == PanickingExtension::Executor {
        components.executor = Arc::new(fragile.clone());
    }
    Db::open_with("/db", mode.options, components).unwrap()
}

fn named(error: &Error, which: PanickingExtension) {
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    let text = error.to_string();
    assert!(text.contains(which.text()) && text.contains("on purpose"), "{text}");
}

fn health(db: &Db) -> String {
    db.property(db.default_family(), "archipelago.health").unwrap()
}

fn running_jobs(db: &Db) -> String {
    db.property(db.default_family(), "archipelago.num-running-jobs").unwrap()
}

/// Keys over all buckets, some with operands, so that every extension is called.
fn fill(db: &Db) {
    for n in 0..60u32 {
        let key = format!("{n:03}");
        let (cf, options) = (db.default_family(), WriteOptions::default());
        db.put(format!("{key}+").as_bytes(), b"plain").unwrap();
        db.put(key.as_bytes(), b"v").unwrap();
        db.merge(cf, key.as_bytes(), b"+1", &options).unwrap();
        db.merge(cf, key.as_bytes(), b"+2", &options).unwrap();
    }
}

fn check(db: &Db) {
    for n in 0..60u32 {
        let got = db.get(format!("{n:03}").as_bytes()).unwrap();
        assert_eq!(got.as_deref(), Some(&b"v+1+2"[..]), "{n}");
    }
}

fn table_files(fs: &TestDisk) -> u64 {
    let entries = fs.list(std::path::Path::new("/db")).unwrap();
    entries.iter().filter(|entry| entry.name.ends_with(".sst")).count() as u64
}

/// Which threads run the background work of a test, and its settings.
#[derive(Clone)]
struct Mode {
    background: BackgroundMode,
    options: DbOptions,
}

fn stepped() -> Mode {
    Mode { background: BackgroundMode::Manual, options: small_db() }
}

fn threads() -> Mode {
    Mode { background: BackgroundMode::Threads, options: small_db() }
}

fn both_modes() -> [Mode; 2] {
    let options = DbOptions { max_background_jobs: 3, subcompactions_max: 3, ..small_db() };
    [stepped(), Mode { options, ..threads() }]
}

/// Repeats `what` until the pause after a failure is over and it succeeds.
fn eventually(what: impl Fn() -> Result<()>) {
    while let Err(error) = what() {
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    }
}

#[test]
fn flush_with_a_panicking_extension_fails_and_is_planned_again() {
    for (mode, which) in both_modes().into_iter().flat_map(|mode| {
        [PanickingExtension::Merge, PanickingExtension::Filter, PanickingExtension::Executor]
            .map(|w| (mode.clone(), w))
    }) {
        let (fs, fragile) = (TestDisk::new(), Panicking::default());
        let db = open(&fs, mode, which, &fragile);
        fill(&db);
        fragile.set(true);
        named(&db.flush(db.default_family()).unwrap_err(), which);
        named(&db.wait_for_background().unwrap_err(), which);
        assert!(health(&db).starts_with("failing") && health(&db).contains(which.text()));
        let stats = db.statistics();
        assert!(stats.get(Ticker::BackgroundErrors) > 0);
        assert!(stats.get(Ticker::ExtensionPanics) > 0);
        fragile.set(false);
        eventually(|| db.flush(db.default_family()));
        eventually(|| db.wait_for_background());
        assert_eq!((health(&db).as_str(), running_jobs(&db).as_str()), ("healthy", "0"));
        check(&db);
        let report = db.verify(|_, _| {}).unwrap();
        assert!(report.is_clean());
        db.close().unwrap();
        assert_eq!(table_files(&fs), report.files, "{which:?}: files of failed jobs are left");
    }
}

#[test]
fn compaction_is_planned_again_after_its_extension_panicked() {
    for (mode, which) in both_modes().into_iter().flat_map(|mode| {
        [PanickingExtension::Merge, PanickingExtension::Filter, PanickingExtension::Executor]
            .map(|w| (mode.clone(), w))
    }) {
        let (fs, fragile) = (TestDisk::new(), Panicking::default());
        // The requested compaction is the first one: the background has too few files for one.
        let db = open_with_trigger(&fs, mode, which, &fragile, 8);
        let cf = db.default_family();
        fill(&db);
        db.flush(cf).unwrap();
        // One operand a key: the flush has nothing to fold, the compaction has.
        for n in 0..60u32 {
            db.merge(cf, format!("{n:03}").as_bytes(), b"", &WriteOptions::default()).unwrap();
        }
        db.flush(cf).unwrap();
        fragile.set(true);
        named(&db.compact_range(cf, &KeyRange::all()).unwrap_err(), which);
        assert!(db.statistics().get(Ticker::ExtensionPanics) > 0);
        fragile.set(false);
        eventually(|| db.compact_range(cf, &KeyRange::all()));
        eventually(|| db.wait_for_background());
        assert_eq!((health(&db).as_str(), running_jobs(&db).as_str()), ("healthy", "0"));
        check(&db);
        let report = db.verify(|_, _| {}).unwrap();
        assert!(report.is_clean());
        db.close().unwrap();
        assert_eq!(table_files(&fs), report.files, "{which:?}: files of failed jobs are left");
    }
}

#[test]
fn failure_of_work_that_is_gone_is_forgotten() {
    let (fs, fragile) = (TestDisk::new(), Panicking::default());
    let db = open(&fs, stepped(), PanickingExtension::Executor, &fragile);
    for _ in 0..2 {
        fill(&db);
        db.flush(db.default_family()).unwrap();
    }
    fragile.set(true);
    named(&db.wait_for_background().unwrap_err(), PanickingExtension::Executor);
    assert!(health(&db).starts_with("failing"));
    fragile.set(false);
    // Requested calls only, so that no background job is left that could succeed.
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db.wait_for_background().unwrap();
    assert_eq!(health(&db), "healthy");
    check(&db);
}

#[test]
fn writers_get_the_error_of_a_panicking_flush() {
    let (fs, fragile) = (TestDisk::new(), Panicking::default());
    let db = open(&fs, threads(), PanickingExtension::Filter, &fragile);
    fragile.set(true);
    let mut written = 0u32;
    let refused = loop {
        match db.put(format!("{written:06}").as_bytes(), &[b'v'; 500]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "writes never stop");
    };
    named(&refused, PanickingExtension::Filter);
    assert!(refused.to_string().contains("which fails"), "{refused}");
    for n in 0..written {
        assert!(db.get(format!("{n:06}").as_bytes()).unwrap().is_some());
    }
    // The close does not wait for the flush either: the log has the writes.
    db.close().unwrap();
    fragile.set(false);
    let db = open(&fs, threads(), PanickingExtension::Filter, &fragile);
    for n in 0..written {
        assert!(db.get(format!("{n:06}").as_bytes()).unwrap().is_some(), "{n}");
    }
    db.put(b"later", b"").unwrap();
    db.flush(db.default_family()).unwrap();
}

#[test]
fn read_with_a_panicking_merge_operator_fails_alone() {
    let (fs, fragile) = (TestDisk::new(), Panicking::default());
    let db = open(&fs, stepped(), PanickingExtension::Merge, &fragile);
    let (cf, options) = (db.default_family().clone(), WriteOptions::default());
    let cases: [&dyn Fn(); 2] = [&|| {}, &|| db.flush(&cf).unwrap()];
    for prepare in cases {
        db.put(b"a", b"plain").unwrap();
        db.put(b"b", b"v").unwrap();
        prepare();
        db.merge(&cf, b"b", b"+1", &options).unwrap();
        fragile.set(true);
        named(&db.get(b"b").unwrap_err(), PanickingExtension::Merge);
        let read = ReadOptions::default();
        named(&db.multi_get(&cf, &[b"a", b"b"], &read).unwrap_err(), PanickingExtension::Merge);
        let mut iter = db.iter(&cf, &read).unwrap();
        iter.seek_to_first();
        assert_eq!(iter.key(), b"a");
        iter.next();
        assert!(!iter.valid());
        named(&iter.status().unwrap_err(), PanickingExtension::Merge);
        iter.seek_to_last();
        assert!(!iter.valid());
        named(&iter.status().unwrap_err(), PanickingExtension::Merge);
        assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"plain"[..]));
        assert_eq!(health(&db), "healthy");
        fragile.set(false);
        assert_eq!(db.get(b"b").unwrap().as_deref(), Some(&b"v+1"[..]));
        iter.seek_to_last();
        assert_eq!(iter.value(), b"v+1");
        drop(iter);
        db.put(b"a", b"writes go on").unwrap();
    }
}

/// Counts the events that it gets.
#[derive(Default)]
struct Told(AtomicU64);

impl EventListener for Told {
    fn on_event(&self, _event: &Event) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn panicking_listener_disturbs_nobody() {
    for Mode { background, options } in both_modes() {
        let (fs, fragile, told) =
            (TestDisk::new(), Panicking::default(), Arc::new(Told::default()));
        let family = CfOptions { merge_operator: Some("append".to_owned()), ..small_family() };
        let mut components = Components { background, ..over(&fs, family) };
        components.listeners.add(Arc::new(fragile.clone()));
        components.listeners.add(Arc::clone(&told) as _);
        let db = Db::open_with("/db", options, components).unwrap();
        fragile.set(true);
        fill(&db);
        db.flush(db.default_family()).unwrap();
        let other = db.create_family("other", small_family()).unwrap();
        db.drop_family(&other).unwrap();
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        db.wait_for_background().unwrap();
        check(&db);
        let calls = fragile.calls.load(Ordering::SeqCst);
        assert!(calls >= 4, "{calls}");
        assert_eq!(told.0.load(Ordering::SeqCst), calls, "the other listener was not told of all");
        assert_eq!(db.statistics().get(Ticker::ListenerPanics), calls);
        assert_eq!(db.statistics().get(Ticker::BackgroundErrors), 0);
        let text = health(&db);
        assert!(text.starts_with("healthy; ") && text.contains("\"fragile-listener\""), "{text}");
        db.close().unwrap();
    }
}
