//! Checkpoints during other work: each must hold a prefix of the order of writes.
//!
//! The file system calls back before each file of a checkpoint. The callback writes, ingests,
//! creates and drops families, flushes and compacts. Other threads may do the same at that moment,
//! but here it is the same in every run.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{ErrorKind, Result};
use archipelago_engine::db::{Components, Db, FaultPoint, IngestOptions, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_engine::wal::WriteBatch;
use archipelago_env::{
    CreateOptions, FileSystem, IoContext, OpenOptions, RandomFile, WritableFile,
};
use parking_lot::Mutex;

use crate::crash_model::{self as model, Hooks, Model, Op, Script};
use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family, stepped};

const UNLOGGED: WriteOptions = WriteOptions {
    sync: false,
    wal: false,
    no_slowdown: false,
    space_use: archipelago_engine::disk_space::SpaceUse::Takes,
};

type Callback = Box<dyn FnMut() + Send>;

/// A file system that calls back before it links or creates a file of a checkpoint.
#[derive(Clone)]
struct Interrupted {
    inner: TestDisk,
    callback: Arc<Mutex<Option<Callback>>>,
}

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupted").finish_non_exhaustive()
    }
}

impl Interrupted {
    fn new() -> Self {
        Self { inner: TestDisk::new(), callback: Arc::default() }
    }

    fn interrupt(&self, path: &Path) {
        if !path.starts_with("/copy") {
            return;
        }
        // The operations of the callback must not call back themselves.
        let Some(mut callback) = self.callback.lock().take() else { return };
        callback();
        *self.callback.lock() = Some(callback);
    }

    /// Makes a checkpoint and calls `during` before each of its files.
    fn checkpoint(&self, db: &Db, during: impl FnMut() + Send + 'static) -> Result<()> {
        *self.callback.lock() = Some(Box::new(during));
        let result = db.checkpoint("/copy");
        *self.callback.lock() = None;
        result
    }
}

impl FileSystem for Interrupted {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        self.interrupt(path);
        self.inner.create(path, context, options)
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        self.inner.open(path, context, options)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.interrupt(to);
        self.inner.link(from, to)
    }

    archipelago_env::forward_fs!(inner: create_log, remove, logs, looks, dirs, host, figures);
}

/// A database over the disk, with a table so that there is something to link.
fn open(fs: &Interrupted) -> Db {
    let components = Components { fs: Arc::new(fs.clone()), ..over(&fs.inner, small_family()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    db.put(b"settled", b"1").unwrap();
    db.flush(db.default_family()).unwrap();
    db
}

fn open_copy(fs: &Interrupted) -> Db {
    Db::open_with("/copy", small_db(), over(&fs.inner, CfOptions::default())).unwrap()
}

fn table(fs: &Interrupted, path: &str, key: &[u8]) {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.inner.clone());
    let mut writer = SstWriter::create(&fs, path.as_ref(), TableOptions::default()).unwrap();
    writer.put(key, b"ingested").unwrap();
    writer.finish().unwrap();
}

#[test]
fn batch_over_a_new_family_is_whole_or_absent() {
    let fs = Interrupted::new();
    let db = open(&fs);
    db.put(b"last", b"1").unwrap();
    let (live, mut n) = (db.clone(), 0);
    let during = move || {
        n += 1;
        let family = live.create_family(&format!("n{n}"), small_family()).unwrap();
        let mut batch = WriteBatch::new();
        batch.put_cf(live.default_family().id(), b"both", &[n]);
        batch.put_cf(family.id(), b"both", &[n]);
        live.write(&batch, &WriteOptions::default()).unwrap();
    };
    fs.checkpoint(&db, during).unwrap();
    assert!(db.list_families().len() > 1, "nothing happened meanwhile");
    let copy = open_copy(&fs);
    assert_eq!(copy.list_families(), ["default"]);
    assert_eq!(copy.get(b"both").unwrap(), None);
    assert_eq!(copy.get(b"last").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn checkpoint_that_has_a_write_has_the_ingestion_before_it() {
    let fs = Interrupted::new();
    let db = open(&fs);
    let other = db.create_family("other", small_family()).unwrap();
    for round in 0..3 {
        let (live, disk, family) = (db.clone(), fs.clone(), other.clone());
        let mut n = 0;
        let during = move || {
            n += 1;
            let key = format!("row{round}-{n}");
            table(&disk, "/t.sst", key.as_bytes());
            live.ingest(&family, &["/t.sst"], &IngestOptions::default()).unwrap();
            live.put(key.as_bytes(), b"put").unwrap();
        };
        fs.checkpoint(&db, during).unwrap();
        let copy = open_copy(&fs);
        let ingested = copy.family("other").unwrap();
        for (round, n) in (0..=round).flat_map(|round| (1..9).map(move |n| (round, n))) {
            let key = format!("row{round}-{n}");
            if copy.get(key.as_bytes()).unwrap().is_some() {
                let row = copy.get_with(&ingested, key.as_bytes(), &ReadOptions::default());
                assert_eq!(row.unwrap().as_deref(), Some(&b"ingested"[..]), "{key}");
            }
        }
        copy.close().unwrap();
        fs.inner.remove_dir_all("/copy".as_ref()).unwrap();
    }
}

#[test]
fn checkpoint_has_no_write_without_the_unlogged_one_before_it() {
    let fs = Interrupted::new();
    let db = open(&fs);
    db.put_with(db.default_family(), b"first", b"1", &UNLOGGED).unwrap();
    let live = db.clone();
    let during = move || {
        live.put_with(live.default_family(), b"unlogged", b"1", &UNLOGGED).unwrap();
        live.put(b"logged", b"1").unwrap();
    };
    fs.checkpoint(&db, during).unwrap();
    let copy = open_copy(&fs);
    assert_eq!(copy.get(b"first").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(copy.get(b"unlogged").unwrap(), copy.get(b"logged").unwrap());
}

#[test]
fn checkpoint_keeps_files_that_a_compaction_replaces_meanwhile() {
    let fs = Interrupted::new();
    let db = open(&fs);
    for n in 0..400u32 {
        db.put(format!("{:03}", n % 200).as_bytes(), &n.to_le_bytes()).unwrap();
        if n % 50 == 0 {
            db.flush(db.default_family()).unwrap();
        }
    }
    let live = db.clone();
    let during = move || {
        live.delete_range(live.default_family(), b"0", b"9", &WriteOptions::default()).unwrap();
        live.compact_range(live.default_family(), &KeyRange::all()).unwrap();
        while live.step_background().unwrap() {}
    };
    fs.checkpoint(&db, during).unwrap();
    assert_eq!(db.get(b"199").unwrap(), None);
    let copy = open_copy(&fs);
    for n in 200..400u32 {
        let got = copy.get(format!("{:03}", n % 200).as_bytes()).unwrap();
        assert_eq!(got.as_deref(), Some(&n.to_le_bytes()[..]));
    }
    assert_eq!(copy.latest_seq_of_all().0, 401, "the counters are those of the moment");
    assert!(copy.verify(|_, _| {}).unwrap().is_clean());
}

#[test]
fn failed_checkpoint_leaves_nothing_behind() {
    let fs = TestDisk::new();
    let fail: FaultPoint = Arc::new(|name| match name {
        "checkpoint.before_manifest" => Err(archipelago_base::Error::busy("not now")),
        _ => Ok(()),
    });
    let components = Components { fault_point: Some(fail), ..over(&fs, small_family()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    db.put(b"a", b"b").unwrap();
    assert_eq!(db.checkpoint("/copy").unwrap_err().kind(), ErrorKind::Busy);
    assert!(!fs.exists("/copy".as_ref()).unwrap());
    db.put(b"c", b"d").unwrap();
}

#[test]
fn read_only_database_makes_a_checkpoint_with_its_log() {
    let fs = TestDisk::new();
    let db = Db::open_with("/db", small_db(), over(&fs, small_family())).unwrap();
    db.put(b"a", b"only in the log").unwrap();
    db.close().unwrap();
    let options = archipelago_engine::options::DbOptions { read_only: true, ..small_db() };
    let reader = Db::open_with("/db", options, over(&fs, small_family())).unwrap();
    reader.checkpoint("/copy").unwrap();
    let copy = Db::open_with("/copy", small_db(), over(&fs, small_family())).unwrap();
    assert_eq!(copy.get(b"a").unwrap().as_deref(), Some(&b"only in the log"[..]));
}

#[test]
fn read_only_database_that_caught_up_makes_a_checkpoint() {
    let fs = TestDisk::new();
    let db = Db::open_with("/db", small_db(), over(&fs, small_family())).unwrap();
    db.put(b"a", b"1").unwrap();
    let options = archipelago_engine::options::DbOptions { read_only: true, ..small_db() };
    let reader = Db::open_with("/db", options, over(&fs, small_family())).unwrap();
    for n in 0..100u32 {
        db.put(format!("{n:03}").as_bytes(), &n.to_le_bytes()).unwrap();
        if n % 3 == 0 {
            db.flush(db.default_family()).unwrap();
        }
    }
    reader.catch_up().unwrap();
    reader.checkpoint("/copy").unwrap();
    let copy = Db::open_with("/copy", small_db(), over(&fs, small_family())).unwrap();
    for database in [&copy, &db] {
        for n in 0..100u32 {
            let got = database.get(format!("{n:03}").as_bytes()).unwrap();
            assert_eq!(got.as_deref(), Some(&n.to_le_bytes()[..]));
        }
        assert!(database.verify(|_, _| {}).unwrap().is_clean());
    }
}

/// A seeded run: operations, and checkpoints during which operations go on.
struct Run {
    seed: u64,
    fs: Interrupted,
    disk: Arc<dyn FileSystem>,
    db: Db,
    script: Script,
    model: Model,
    /// The hash after each number of operations.
    hashes: Vec<u64>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let fs = Interrupted::new();
        let disk: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let db = model::create(Arc::clone(&disk), model::manual(), &Hooks::default());
        let (script, model) = (Script::new(seed), Model::default());
        Self { seed, fs, disk, db, script, model, hashes: vec![0] }
    }

    /// Makes one operation. One in `structural_one_in` changes families or adds files. Some are
    /// upkeep.
    fn operate(&mut self, structural_one_in: u32) {
        let mut op = match self.script.rng.u32(..structural_one_in) {
            0 => self.script.structural(&self.model),
            _ => self.script.op(&self.model),
        };
        if let Op::Write { sync: false, wal, .. } = &mut op {
            *wal = self.script.rng.u32(..6) > 0;
        }
        self.model.apply(&op);
        model::perform_stepping(&self.db, &self.disk, &op, &Hooks::default())
            .unwrap_or_else(|error| panic!("seed {}: {op:?}: {error}", self.seed));
        self.hashes.push(self.model.hash);
        let which = self.script.rng.usize(..3);
        match self.script.rng.u32(..40) {
            0..20 => drop(self.db.step_background().unwrap()),
            20..22 => self.db.flush(&self.db.family(model::FAMILIES[which]).unwrap()).unwrap(),
            22 => {
                let family = self.db.family(model::FAMILIES[which]).unwrap();
                self.db.compact_range(&family, &KeyRange::all()).unwrap();
            }
            23 => self.db.sync().unwrap(),
            _ => {}
        }
    }
}

/// Makes a checkpoint while operations continue, and checks which prefix it holds. Returns whether
/// any operation came in between.
fn check(run: &Arc<Mutex<Run>>, round: u64) -> bool {
    let (fs, db, least) = {
        let run = run.lock();
        (run.fs.clone(), run.db.clone(), run.hashes.len() - 1)
    };
    let meanwhile = Arc::clone(run);
    let during = move || {
        let mut run = meanwhile.lock();
        for _ in 0..run.script.rng.usize(..3) {
            run.operate(3);
        }
    };
    fs.checkpoint(&db, during).unwrap();
    let run = run.lock();
    let most = run.hashes.len() - 1;
    let label = format!("seed {}, checkpoint {round}", run.seed);
    // A checkpoint that returned survives power loss.
    let left = if round.is_multiple_of(2) { fs.inner.clone() } else { fs.inner.crash_clone(round) };
    let disk: Arc<dyn FileSystem> = Arc::new(left);
    let open = || {
        Db::open_with(
            "/copy",
            model::manual(),
            Components { fs: Arc::clone(&disk), seed: Some(9), ..stepped() },
        )
        .unwrap_or_else(|error| panic!("{label}: {error}"))
    };
    let copy = open();
    let held = model::hash(&model::contents(&copy).unwrap());
    let which = run.hashes[least..=most].iter().position(|hash| *hash == held);
    assert!(which.is_some(), "{label}: it holds none of the prefixes {least} to {most}");
    assert!(copy.verify(|_, _| {}).unwrap().is_clean(), "{label}");
    copy.wait_for_background().unwrap();
    copy.close().unwrap();
    let copy = open();
    let again = model::hash(&model::contents(&copy).unwrap());
    assert_eq!(again, held, "{label}: compaction or a reopen changed it");
    copy.close().unwrap();
    fs.inner.remove_dir_all("/copy".as_ref()).unwrap();
    most > least
}

#[test]
fn every_checkpoint_is_a_prefix_of_the_operations() {
    let mut interrupted = 0;
    for seed in crate::model::seeds(0..12) {
        let run = Arc::new(Mutex::new(Run::new(seed)));
        for round in 0..12 {
            let ops = run.lock().script.rng.usize(..40);
            (0..ops).for_each(|_| run.lock().operate(20));
            interrupted += usize::from(check(&run, round));
        }
        let run = run.lock();
        let held = model::contents(&run.db).unwrap();
        assert_eq!(model::hash(&held), run.model.hash, "seed {seed}: the original differs");
    }
    eprintln!("{interrupted} checkpoints with operations meanwhile");
    assert!(interrupted > 60, "only {interrupted} checkpoints had operations meanwhile");
}
