//! The Invalid Tree of a whole database: it is the complement of the look-up.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use archipelago_base::{Error, Result};
use archipelago_env::{CreateOptions, FileSystem};
use parking_lot::Mutex;

use super::*;
use crate::compaction::job::CompactionSpec;
use crate::db::background::gc::{GcTask, invalid, look_up, look_up_some, read_keys};
use crate::db::background::job_specs;
use crate::db::{CompactRangeOptions, FaultPoint, LastLevel};
use crate::executor::{JobExecutor, LocalExecutor};
use crate::extension::{CompactionFilter, FilterDecision, Registry};
use crate::file_meta::invalid_file_name;
use crate::flush::FlushSpec;
use crate::gc::invalid::{InvalidInput, InvalidSource, valid_by_entries};
use crate::gc::job::{GcSpec, Validity};
use crate::gc::pick::GcReason;
use crate::gc::valid_bits::ValidBits;
use crate::job::{JobContext, JobOutput, NoShards};
use crate::live_file::LiveValueFile;
use crate::repair::verify_files;

/// An executor that runs jobs in this process and prefers invalid files.
#[derive(Default)]
struct Preferring {
    /// For each garbage collection, whether invalid files determined validity.
    by_invalid_files: Mutex<Vec<bool>>,
}

impl JobExecutor for Preferring {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.flush(spec, context)
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.compact(spec, context)
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let is_by_files = matches!(spec.inputs[0].valid, Validity::Invalid { .. });
        self.by_invalid_files.lock().push(is_by_files);
        LocalExecutor.gc(spec, context)
    }

    fn prefers_invalid_files(&self) -> bool {
        true
    }
}

/// Writes a mark into the first byte of the values of every other key. A new mark makes later
/// compactions change the same records again.
#[derive(Default)]
struct Marks(AtomicU8);

impl CompactionFilter for Marks {
    fn name(&self) -> &'static str {
        "marks"
    }

    fn filter(&self, key: &[u8], value: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        let mark = self.0.load(Ordering::Relaxed);
        let is_marked = key.last().is_some_and(|byte| byte % 2 == 0);
        match value {
            [first, rest @ ..] if *first != mark && is_marked => {
                FilterDecision::Change([&[mark], rest].concat())
            }
            _ => FilterDecision::Keep,
        }
    }
}

/// A store whose executor prefers invalid files.
struct TreeStore {
    store: Store,
    executor: Arc<Preferring>,
    marks: Arc<Marks>,
}

fn open(
    fs: &MemFs,
    family: &CfOptions,
    executor: &Arc<Preferring>,
    marks: &Arc<Marks>,
    fault: Option<FaultPoint>,
) -> Db {
    let mut registry = Registry::default();
    registry.add_compaction_filter(Arc::clone(marks) as _);
    let components = Components {
        background: BackgroundMode::Manual,
        fs: Arc::new(fs.clone()),
        families: [("default".to_owned(), family.clone())].into_iter().collect(),
        seed: Some(1),
        registry,
        executor: Arc::clone(executor) as _,
        fault_point: fault,
        ..Components::default()
    };
    let options = DbOptions {
        wal_segment_bytes: 64 << 10,
        block_cache_bytes: 1 << 20,
        ..DbOptions::default()
    };
    Db::open_with("/db", options, components).expect("opens")
}

/// Options of a family with separated values and a filter that changes some of them.
fn filtered_family() -> CfOptions {
    CfOptions { compaction_filter: Some("marks".to_owned()), ..small_family(64) }
}

impl TreeStore {
    fn new(fs: MemFs, family: CfOptions, fault: Option<FaultPoint>) -> Self {
        let (executor, marks) = (Arc::new(Preferring::default()), Arc::new(Marks::default()));
        let db = open(&fs, &family, &executor, &marks, fault);
        let store = Store { fs, db, model: BTreeMap::new(), rng: Rng::with_seed(7), family };
        Self { store, executor, marks }
    }

    fn reopened(self, separation_bytes: u64) -> Self {
        let Self { store: Store { fs, db, model, rng, family }, executor, marks } = self;
        db.close().expect("closes");
        let family = CfOptions { value_separation_bytes: separation_bytes, ..family };
        let db = open(&fs, &family, &executor, &marks, None);
        Self { store: Store { fs, db, model, rng, family }, executor, marks }
    }

    /// The valid records of `file` by the invalid files, if its basis were `basis`.
    fn by_tree(&self, task: &GcTask, file: &LiveValueFile, basis: u64) -> Result<Vec<ValidBits>> {
        let db = &self.store.db.inner;
        let keys = read_keys(&db.context, &db.storage, &db.view, task, &mut JobOutput::default())?;
        let values = task.version.values();
        let files: Vec<_> = values.invalid_files().map(|file| file.meta().clone()).collect();
        let meta = crate::value_ref::ValueFileMeta { basis, ..file.meta().clone() };
        let ancestors: Vec<u64> = values.ancestors(file.no).collect();
        let input = InvalidInput {
            meta: &meta,
            ancestors: &ancestors,
            keys: &keys[0],
            records: values.refs(file.no).records,
        };
        let context = job_specs::job_context(db.job_owners(), &NoShards);
        let dir = db.storage.dir();
        let source = InvalidSource { cf: 0, dir, direct_reads: false, context: &context };
        valid_by_entries(&files, &[input], source)
    }

    /// Checks that the tree is the complement of the look-up. Returns the number of files for which
    /// this would fail without the limit on entries of ancestors.
    fn check(&self) -> usize {
        let version = self.store.version();
        version.check().expect("sound");
        let mut limited = 0;
        for (file, _) in version.values().files() {
            let task = GcTask {
                job_id: 0,
                family: Arc::clone(&self.store.db.default_family().family),
                version: Arc::clone(&version),
                inputs: vec![Arc::clone(file)],
                reason: GcReason::Space,
                started_ns: 0,
                room_bytes: 0,
            };
            let db = &self.store.db.inner;
            let keys =
                read_keys(&db.context, &db.storage, &db.view, &task, &mut JobOutput::default())
                    .expect("reads");
            let expected = look_up_some(&db.view, &task, &keys, &[0]).expect("looks up");
            assert_eq!(look_up(&db.view, &task, &keys).expect("looks up"), expected);
            let found = self.by_tree(&task, file, file.basis).expect("complete");
            assert_eq!(found, expected, "value file {}", file.no);
            limited += usize::from(self.by_tree(&task, file, 0).is_err());
        }
        limited
    }

    /// Checks that every key reads as in the model, except for the marks of the filter.
    fn check_reads(&self) {
        for (key, value) in &self.store.model {
            let found = self.store.db.get(key).expect("reads").expect("exists");
            assert_eq!(found.len(), value.len());
            assert_eq!(found[1..], value[1..], "{}", key.escape_ascii());
        }
    }

    fn invalid_files_on_disk(&self) -> usize {
        let entries = self.store.fs.list("/db".as_ref()).expect("lists");
        entries.iter().filter(|entry| entry.name.ends_with(".inv")).count()
    }
}

#[test]
pub(super) fn invalid_tree_is_the_complement_of_the_look_up() {
    let mut tree = TreeStore::new(MemFs::new(), filtered_family(), None);
    let mut limited = 0;
    let mut merged = false;
    let mut before = 0;
    for round in 0..14_u8 {
        let snapshot = (round % 4 == 1).then(|| tree.store.db.snapshot());
        tree.marks.0.store(round, Ordering::Relaxed);
        tree.store.write(150, 100);
        tree.store.settle();
        limited += tree.check();
        if round % 5 == 4 {
            tree.store.compact();
            limited += tree.check();
        }
        tree.check_reads();
        drop(snapshot);
        let files = tree.store.version().values().invalid_files().count();
        merged |= files < before;
        before = files;
        assert!(files < 9, "{files} invalid files");
        tree = match round {
            4 => tree.reopened(0),
            7 => tree.reopened(64),
            10 => tree.reopened(1),
            _ => tree,
        };
        limited += tree.check();
    }
    let collected = tree.executor.by_invalid_files.lock().clone();
    assert!(collected.len() > 4 && collected.iter().all(|by_files| *by_files), "{collected:?}");
    assert!(merged, "no merge");
    assert!(limited > 0, "no entry of an ancestor had to be left out");
    let tree = tree.reopened(1);
    tree.check_reads();
    assert_eq!(tree.invalid_files_on_disk(), tree.store.version().values().invalid_files().count());
}

#[test]
fn garbage_older_than_the_tree_is_found_by_a_look_up() {
    let mut store = Store::new(small_family(64));
    store.write(300, 100);
    store.settle();
    store.write(200, 100);
    store.db.compact_range(store.db.default_family(), &KeyRange::all()).expect("compacts");
    let values = Arc::clone(store.version().values());
    assert!(values.exposed_bytes() > 0 && values.invalid_files().count() == 0);
    store.db.close().expect("closes");
    let (executor, marks) = (Arc::new(Preferring::default()), Arc::new(Marks::default()));
    let db = open(&store.fs, &store.family, &executor, &marks, None);
    let mut tree = TreeStore { store: Store { db, ..store }, executor, marks };
    for _ in 0..3 {
        tree.store.write(300, 100);
        tree.store.compact();
        tree.store.check();
    }
    let collected = tree.executor.by_invalid_files.lock().clone();
    assert!(collected.contains(&false), "no look-up");
    assert_eq!(collected.last(), Some(&true), "{collected:?}");
}

/// A fault point that keeps the collector from working until a compaction is about to be installed.
/// Then the collector may collect everything that is due.
#[derive(Default)]
struct Overtaking {
    is_armed: AtomicBool,
    collects: AtomicBool,
    db: Mutex<Option<Db>>,
}

impl Overtaking {
    fn reached(&self, point: &str) -> Result<()> {
        match point {
            "gc.pick" if !self.collects.load(Ordering::Relaxed) => Err(Error::busy("not now")),
            "compaction.before_install" if self.is_armed.swap(false, Ordering::Relaxed) => {
                let Some(db) = self.db.lock().clone() else { return Ok(()) };
                self.collects.store(true, Ordering::Relaxed);
                while db.step_background()? {}
                self.collects.store(false, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[test]
pub(super) fn entries_of_a_compaction_count_for_an_heir_that_overtook_it() {
    let overtaking = Arc::<Overtaking>::default();
    let points = Arc::clone(&overtaking);
    let fault: FaultPoint = Arc::new(move |point: &str| points.reached(point));
    let family = CfOptions {
        space_amplification_max: 1.05,
        compression: Compression::None,
        compression_last: Compression::None,
        ..small_family(64)
    };
    let mut tree = TreeStore::new(MemFs::new(), family, Some(fault));
    *overtaking.db.lock() = Some(tree.store.db.clone());
    let overwrite = |tree: &mut TreeStore, of_three: u32, round: u8| {
        for at in (0..60).filter(|at| of_three == 3 || at % 3 == of_three) {
            tree.store.put_patiently(format!("key{at:05}").into_bytes(), vec![round; 600]);
        }
        tree.store.compact();
    };
    overwrite(&mut tree, 3, 0);
    overwrite(&mut tree, 0, 1);
    overtaking.is_armed.store(true, Ordering::Relaxed);
    let before = tree.store.ticker(Ticker::GcJobs);
    overwrite(&mut tree, 1, 2);
    assert!(tree.store.ticker(Ticker::GcJobs) > before, "nothing overtook a compaction");
    tree.check();
    // The tables name the heir, and further edits may prune the numbers of its ancestors.
    let all = CompactRangeOptions { last_level: LastLevel::Always, ..Default::default() };
    let (db, cf) = (tree.store.db.clone(), tree.store.db.default_family().clone());
    db.compact_range_with(&cf, &KeyRange::all(), &all).expect("compacts");
    for round in 3..6 {
        tree.store.put_patiently(b"another".to_vec(), vec![round; 100]);
        tree.store.settle();
    }
    let version = tree.store.version();
    let values = version.values();
    let current: BTreeSet<u64> = values.files().map(|(file, _)| file.no).collect();
    let counted = values.invalid_files().flat_map(|file| {
        let names = file.names.iter().map(|&no| (no, file.install_no));
        names.collect::<Vec<_>>()
    });
    let of_ancestors = counted.filter(|&(no, install_no)| {
        let heir = values.current(no);
        heir != no && values.get(heir).is_some_and(|file| install_no > file.basis)
    });
    assert!(of_ancestors.count() > 0, "no entry of an ancestor counts for {current:?}");
    tree.check();
    tree.store.check();
    overtaking.collects.store(true, Ordering::Relaxed);
    overwrite(&mut tree, 2, 7);
    tree.check();
    tree.store.check();
    assert!(tree.executor.by_invalid_files.lock().iter().all(|by_files| *by_files));
    *overtaking.db.lock() = None;
}

#[test]
pub(super) fn entries_before_their_edit_are_never_visible() {
    let fs = MemFs::new();
    let crashed: Arc<Mutex<Vec<MemFs>>> = Arc::default();
    let is_armed = Arc::new(AtomicBool::new(false));
    let (disk, clones, armed) = (fs.clone(), Arc::clone(&crashed), Arc::clone(&is_armed));
    let fault: FaultPoint = Arc::new(move |point: &str| {
        let entries = disk.list("/db".as_ref())?;
        let is_invalid = |name: &str| name.ends_with(".inv");
        if point == "compaction.before_install"
            && armed.load(Ordering::Relaxed)
            && entries.iter().any(|entry| is_invalid(&entry.name))
        {
            clones.lock().push(disk.crash_clone(5));
            return Err(Error::busy("not now"));
        }
        Ok(())
    });
    let mut tree = TreeStore::new(fs, small_family(64), Some(fault));
    for at in 0..50 {
        let key = format!("key{at:05}").into_bytes();
        tree.store.put_patiently(key, vec![b'y'; 200]);
    }
    tree.store.settle();
    assert_eq!(tree.invalid_files_on_disk(), 0, "nothing was dropped yet");
    is_armed.store(true, Ordering::Relaxed);
    for at in 0..50 {
        let key = format!("key{at:05}").into_bytes();
        tree.store.db.put(&key, &[b'x'; 200]).expect("writes");
        tree.store.model.insert(key, vec![b'x'; 200]);
    }
    tree.store.db.flush(tree.store.db.default_family()).expect("flushes");
    while crashed.lock().is_empty() {
        let family = tree.store.db.default_family();
        let _ = tree.store.db.compact_range(family, &KeyRange::all());
    }
    assert_eq!(tree.store.version().values().invalid_files().count(), 0);
    assert_eq!(tree.invalid_files_on_disk(), 0, "the failed job has removed its file");
    tree.check();
    let clone = crashed.lock().remove(0);
    let db = open(&clone, &tree.store.family, &tree.executor, &tree.marks, None);
    let store =
        Store { fs: clone, db, model: BTreeMap::new(), rng: Rng::with_seed(1), ..tree.store };
    let tree = TreeStore { store, ..tree };
    assert_eq!(tree.invalid_files_on_disk(), 0, "the open has removed the stray file");
    assert_eq!(tree.store.version().values().invalid_files().count(), 0);
    tree.check();
    tree.store.compact();
    tree.check();
}

/// Writes and steps until a step fails.
fn first_failure(tree: &mut TreeStore) -> Option<Error> {
    for round in 0..60_u8 {
        tree.marks.0.store(100 + round, Ordering::Relaxed);
        for at in 0..150 {
            let (key, value) = (format!("key{:05}", at % 100).into_bytes(), vec![round; 400]);
            tree.store.db.put(&key, &value).expect("writes");
            tree.store.model.insert(key, value);
            let mut steps = at % 8 == 0;
            while steps {
                match tree.store.db.step_background() {
                    Ok(has_worked) => steps = has_worked,
                    Err(error) => return Some(error),
                }
            }
        }
    }
    None
}

#[test]
fn verification_names_a_damaged_invalid_file() {
    let mut tree = TreeStore::new(MemFs::new(), filtered_family(), None);
    for round in 0..10_u8 {
        tree.marks.0.store(round, Ordering::Relaxed);
        tree.store.write(150, 100);
        tree.store.settle();
        if tree.store.version().values().invalid_files().count() > 0 {
            break;
        }
    }
    let report = tree.store.db.verify(|_, _| {}).expect("reads");
    assert!(report.is_clean() && report.invalid_files > 0, "{report:?}");
    let version = tree.store.version();
    let file = version.values().invalid_files().next().expect("compactions drop references");
    let name = invalid_file_name(file.file_no());
    let (path, fs) = (Path::new("/db").join(&name), &tree.store.fs);
    let io = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
    let mut bytes = fs.read(&path, io).expect("exists");
    bytes[20] ^= 1;
    let mut damaged = fs.create(&path, io, CreateOptions::default()).expect("creates");
    damaged.append(&bytes).expect("writes");
    damaged.sync().expect("syncs");
    let is_named = |errors: &[Error]| errors.len() == 1 && errors[0].to_string().contains(&name);
    let report = tree.store.db.verify(|_, _| {}).expect("reads");
    assert!(is_named(&report.errors), "{:?}", report.errors);
    tree.store.db.close().expect("closes");
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let found = verify_files(&shared, Path::new("/db"), |_| {}).expect("reads");
    assert!(is_named(&found.errors), "{:?}", found.errors);
}

#[test]
fn merge_that_meets_a_damaged_file_holds_up_nothing_else() {
    let is_armed = Arc::new(AtomicBool::new(true));
    let armed = Arc::clone(&is_armed);
    let fault: FaultPoint = Arc::new(move |point: &str| match point {
        "invalid.before_install" if armed.load(Ordering::Relaxed) => {
            Err(Error::new(ErrorKind::Corrupt, "an invalid file is damaged"))
        }
        _ => Ok(()),
    });
    let mut tree = TreeStore::new(MemFs::new(), filtered_family(), Some(fault));
    let error = first_failure(&mut tree).expect("a merge fails");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let db = tree.store.db.clone();
    let (inner, cf) = (&db.inner, db.default_family().id());
    assert!(inner.observers.health().failing().is_none(), "the database stays healthy");
    {
        let mut state = inner.jobs.lock(Order::none());
        let now_ns = inner.context.clock().now_ns();
        let failures = state.space_mut(cf).merge_failures_mut();
        let known = failures.known();
        assert!(known.len() >= 4, "{known:?}");
        // Enough failures for the longest pause, an hour.
        known.iter().for_each(|no| (0..12).for_each(|_| failures.note_failure(*no, now_ns)));
        assert!(
            !invalid::is_merge_due(&inner.context, &inner.view, &mut state),
            "its inputs are left out"
        );
        assert!(!state.has_failed(), "no other job waits");
    }
    // The file is whole again, and the pause is over.
    is_armed.store(false, Ordering::Relaxed);
    {
        let mut state = inner.jobs.lock(Order::none());
        state.space_mut(cf).merge_failures_mut().retain(|_| false);
        assert!(invalid::is_merge_due(&inner.context, &inner.view, &mut state));
    }
    let before = tree.store.version().values().invalid_files().count();
    tree.store.settle();
    assert!(tree.store.version().values().invalid_files().count() < before);
    tree.check();
    tree.check_reads();
}
