//! Flushes and compactions of an open database in other processes. Each process gets an encoded
//! spec, the images of its shards and the directory, and nothing else. The process is this test
//! binary, started again with [`JOB_DIR`] set.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::{ManualClock, SystemClock};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::compaction::job::{CompactionSpec, run_compaction};
use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::event::{Event, EventListener};
use archipelago_engine::executor::JobExecutor;
use archipelago_engine::executor::wire::{self, Message};
use archipelago_engine::extension::Registry;
use archipelago_engine::flush::{FlushSpec, run_flush};
use archipelago_engine::gc::job::{GcSpec, Validity, run_gc};
use archipelago_engine::job::{Cancel, JobContext, JobOutput, KnownKeys, ShardRef, ShardSource};
use archipelago_engine::key::KeyRange;
use archipelago_engine::memtable::{SealedImage, SealedShard};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::sst::BlockCache;
use archipelago_engine::stats::Ticker;
use archipelago_env::local::LocalFs;
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose};
use parking_lot::Mutex;

use crate::separation::{Separation, audit, audit_at_rest};
use crate::support::{small_db, small_family, stepped};

/// Directory of the job that a child process must run.
const JOB_DIR: &str = "ARCHIPELAGO_TEST_REMOTE_JOB_DIR";
const IO: IoContext = IoContext::new(FileClass::Other, IoPurpose::Maintenance);

/// Images of shards in a directory.
struct Images(PathBuf);

fn image_path(dir: &Path, shard: &ShardRef) -> PathBuf {
    dir.join(format!("{}-{}.image", shard.memtable, shard.shard))
}

impl ShardSource for Images {
    fn shard(&self, shard: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        Ok(SealedImage::open(LocalFs::new().read(&image_path(&self.0, shard), IO)?)?)
    }
}

/// The program of the child process, and no test. It does nothing without the variable.
#[test]
fn child_process() {
    let Some(dir) = std::env::var_os(JOB_DIR).map(PathBuf::from) else { return };
    let budget = ByteBudget::unlimited();
    let images = Images(dir.clone());
    let context = JobContext {
        fs: Arc::new(LocalFs::new()),
        registry: Registry::default(),
        clock: SystemClock::shared(),
        limiter: None,
        cancel: Cancel::default(),
        shards: &images,
        cache: BlockCache::new(1 << 20, &budget),
        warm: false,
        budget,
        more_file_numbers: None,
        value_keys: KnownKeys::default(),
        progress: Arc::default(),
    };
    let message = LocalFs::new().read(&dir.join("spec"), IO).unwrap();
    let output = match message[1] {
        FlushSpec::TAG => run_flush(&wire::decode(&message).unwrap(), &context),
        GcSpec::TAG => run_gc(&wire::decode(&message).unwrap(), &context),
        _ => run_compaction(&wire::decode(&message).unwrap(), &context),
    };
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            LocalFs::new().write_atomic(&dir.join("not_found"), b"", IO).unwrap();
            return;
        }
        output => output.unwrap(),
    };
    let bytes = wire::encode(&output).unwrap();
    LocalFs::new().write_atomic(&dir.join("output"), &bytes, IO).unwrap();
}

/// Sends every job to a separate process.
struct Processes {
    scratch: PathBuf,
    jobs: AtomicU64,
    /// While it is set, jobs from this number on get no process.
    nobody: Mutex<bool>,
    /// Outputs are tampered with while it is set.
    forge: Mutex<bool>,
    /// Whether invalid files tell garbage collections what is valid.
    by_invalid_files: bool,
    /// Number of garbage collections that determined the valid records by invalid files.
    gc_by_invalid_files: AtomicU64,
}

impl Processes {
    fn new(dir: &Path, by_invalid_files: bool) -> Self {
        Self {
            scratch: dir.join("jobs"),
            jobs: AtomicU64::new(0),
            nobody: Mutex::new(false),
            forge: Mutex::new(false),
            by_invalid_files,
            gc_by_invalid_files: AtomicU64::new(0),
        }
    }

    fn job_dir(&self) -> Result<PathBuf> {
        if *self.nobody.lock() {
            return Err(Error::new(ErrorKind::Io, "no executor answers"));
        }
        let no = self.jobs.fetch_add(1, Ordering::Relaxed);
        let dir = self.scratch.join(format!("job{no}"));
        LocalFs::new().create_dir_all(&dir)?;
        Ok(dir)
    }

    fn run<T: Message>(&self, dir: &Path, spec: &T) -> Result<JobOutput> {
        let fs = LocalFs::new();
        fs.write_atomic(&dir.join("spec"), &wire::encode(spec)?, IO)?;
        let ran = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "remote_jobs::child_process"])
            .env(JOB_DIR, dir)
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
        if fs.exists(&dir.join("not_found"))? {
            return Err(Error::new(ErrorKind::NotFound, "the invalid files lack entries"));
        }
        let mut output: JobOutput = wire::decode(&fs.read(&dir.join("output"), IO)?)?;
        if *self.forge.lock() {
            output.files.iter_mut().for_each(|file| file.no += 1_000_000);
            output.value_files.iter_mut().for_each(|file| file.no += 1_000_000);
        }
        Ok(output)
    }
}

impl JobExecutor for Processes {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let dir = self.job_dir()?;
        for shard in &spec.shards {
            let mut image = Vec::new();
            context.shards.shard(shard)?.write_image(&mut image)?;
            LocalFs::new().write_atomic(&image_path(&dir, shard), &image, IO)?;
        }
        self.run(&dir, spec)
    }

    fn compact(&self, spec: &CompactionSpec, _context: &JobContext<'_>) -> Result<JobOutput> {
        self.run(&self.job_dir()?, spec)
    }

    fn gc(&self, spec: &GcSpec, _context: &JobContext<'_>) -> Result<JobOutput> {
        let output = self.run(&self.job_dir()?, spec)?;
        let is_by_files = matches!(spec.inputs[0].valid, Validity::Invalid { .. });
        self.gc_by_invalid_files.fetch_add(u64::from(is_by_files), Ordering::Relaxed);
        Ok(output)
    }

    fn prefers_invalid_files(&self) -> bool {
        self.by_invalid_files
    }
}

/// Numbers of the files that flushes and compactions installed.
#[derive(Default)]
struct Installed {
    files: Mutex<(Vec<u64>, Vec<u64>)>,
    /// Most parts that a compaction was cut into.
    parts: AtomicU64,
}

impl EventListener for Installed {
    fn on_event(&self, event: &Event) {
        match event {
            Event::FlushInstalled { files, .. } => self.files.lock().0.extend(files),
            Event::CompactionInstalled { outputs, threads_ns, .. } => {
                self.files.lock().1.extend(outputs);
                self.parts.fetch_max(threads_ns.len() as u64, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// Expected content of the database after all writes of the test.
fn check(db: &Db) {
    for n in 0..1500u32 {
        let expected = match n {
            100..200 => None,
            _ if n % 10 == 0 => Some(format!("second {n}+more")),
            _ => Some(format!("first {n}")),
        };
        let got = db.get(&key(n)).unwrap();
        assert_eq!(got.as_deref(), expected.as_deref().map(str::as_bytes), "{n}");
    }
}

#[test]
fn other_processes_run_flushes_and_compactions() {
    let temporary = tempfile::tempdir().unwrap();
    let executor = Arc::new(Processes::new(temporary.path(), false));
    let installed = Arc::new(Installed::default());
    let family = CfOptions {
        merge_operator: Some("append".to_owned()),
        write_buffer_bytes: 64 << 10,
        target_file_bytes: 4 << 10,
        ..small_family()
    };
    let mut components = Components {
        families: [("default".to_owned(), family)].into_iter().collect(),
        executor: Arc::clone(&executor) as _,
        ..stepped()
    };
    components.listeners.add(Arc::clone(&installed) as _);
    let dir = temporary.path().join("db");
    let options = DbOptions { subcompactions_max: 3, ..small_db() };
    let db = Db::open_with(&dir, options, components).unwrap();
    let cf = db.default_family();
    for n in 0..1500 {
        db.put(&key(n), format!("first {n}").as_bytes()).unwrap();
    }
    db.flush(cf).unwrap();
    let snapshot = db.snapshot();
    for n in (0..1500).step_by(10) {
        db.put(&key(n), format!("second {n}").as_bytes()).unwrap();
        db.merge(cf, &key(n), b"+more", &WriteOptions::default()).unwrap();
    }
    db.delete_range(cf, &key(100), &key(200), &WriteOptions::default()).unwrap();

    *executor.nobody.lock() = true;
    assert_eq!(db.flush(cf).unwrap_err().kind(), ErrorKind::Io);
    check(&db);
    *executor.nobody.lock() = false;
    *executor.forge.lock() = true;
    let error = db.flush(cf).unwrap_err();
    assert!(error.to_string().contains("not set aside"), "{error}");
    check(&db);
    *executor.forge.lock() = false;

    db.flush(cf).unwrap();
    check(&db);
    db.compact_range(cf, &KeyRange::all()).unwrap();
    check(&db);
    let then = ReadOptions::new().snapshot(&snapshot);
    let old = db.get_with(cf, &key(110), &then).unwrap();
    assert_eq!(old.as_deref(), Some(&b"first 110"[..]));
    assert!(db.verify(|_, _| {}).unwrap().is_clean());

    let (flushed, compacted) = std::mem::take(&mut *installed.files.lock());
    assert!(!flushed.is_empty() && !compacted.is_empty(), "{flushed:?} {compacted:?}");
    assert!(installed.parts.load(Ordering::Relaxed) > 1, "no compaction went out in parts");
    assert_eq!(db.statistics().get(Ticker::BackgroundErrors), 2);
    drop(snapshot);
    db.close().unwrap();
    let db = Db::open_with(&dir, small_db(), stepped()).unwrap();
    check(&db);
}

/// A large value.
fn large(n: u32, round: u32) -> Vec<u8> {
    format!("{round}:{n};").repeat(40 + n as usize % 100).into_bytes()
}

/// The error of the next background step that fails.
fn failing_step(db: &Db) -> Error {
    loop {
        match db.step_background() {
            Ok(is_due) => assert!(is_due, "nothing was due"),
            Err(error) => return error,
        }
    }
}

#[test]
fn another_process_collects_garbage() {
    let temporary = tempfile::tempdir().unwrap();
    let executor = Arc::new(Processes::new(temporary.path(), false));
    let family = CfOptions { buckets: 1, ..Separation::EAGER.of(small_family()) };
    let starved = Arc::new(Mutex::new(true));
    let (clock, starves) = (Arc::new(ManualClock::new(1_000_000)), Arc::clone(&starved));
    let components = || Components {
        families: [("default".to_owned(), family.clone())].into_iter().collect(),
        clock: Arc::clone(&clock) as _,
        ..stepped()
    };
    let of_processes = Components {
        executor: Arc::clone(&executor) as _,
        fault_point: Some(Arc::new(move |name| match name {
            "gc.pick" if *starves.lock() => Err(Error::busy("the collector starves")),
            _ => Ok(()),
        })),
        ..components()
    };
    let dir = temporary.path().join("db");
    let db = Db::open_with(&dir, small_db(), of_processes).unwrap();
    let cf = db.default_family();
    for round in 0..2 {
        for n in (0..120).filter(|n| round == 0 || n % 3 > 0) {
            while db.put(&key(n), &large(n, round)).is_err() {
                db.step_background().unwrap();
            }
        }
        db.flush(cf).unwrap();
        db.compact_range(cf, &KeyRange::all()).unwrap();
    }
    db.wait_for_background().unwrap();
    let check = |db: &Db| {
        for n in 0..120 {
            let expected = large(n, u32::from(n % 3 > 0));
            assert_eq!(db.get(&key(n)).unwrap().as_deref(), Some(&expected[..]), "{n}");
        }
        audit(db)
    };
    let before = check(&db);
    *starved.lock() = false;

    *executor.nobody.lock() = true;
    assert_eq!(failing_step(&db).kind(), ErrorKind::Io);
    *executor.nobody.lock() = false;
    assert_eq!(check(&db).live, before.live, "a job that failed changes nothing");
    clock.advance(Duration::from_secs(2));
    *executor.forge.lock() = true;
    // The database refuses the heir, and runs the job itself.
    let jobs = || db.statistics().get(Ticker::GcJobs);
    assert_eq!(jobs(), 0);
    while jobs() == 0 {
        assert!(db.step_background().unwrap(), "nothing was due");
    }
    *executor.forge.lock() = false;
    // The refused heir stays until a sweep, because its numbers may be those of another job.
    check(&db);
    db.put(b"later", b"write").unwrap();

    clock.advance(Duration::from_secs(60));
    db.wait_for_background().unwrap();
    assert!(db.statistics().get(Ticker::GcJobs) > 0);
    let after = check(&db);
    assert!(after.garbage_bytes < before.garbage_bytes, "{before:?}, {after:?}");
    db.close().unwrap();
    let db = Db::open_with(&dir, small_db(), components()).unwrap();
    check(&db);
    audit_at_rest(&db);
}

#[test]
fn other_processes_collect_garbage_by_invalid_files() {
    let temporary = tempfile::tempdir().unwrap();
    let executor = Arc::new(Processes::new(temporary.path(), true));
    let family = CfOptions {
        value_separation_bytes: 64,
        value_file_bytes: 64 << 10,
        space_amplification_max: 1.2,
        write_buffer_bytes: 64 << 10,
        ..small_family()
    };
    let components = Components {
        families: [("default".to_owned(), family)].into_iter().collect(),
        executor: Arc::clone(&executor) as _,
        ..stepped()
    };
    let dir = temporary.path().join("db");
    let db = Db::open_with(&dir, small_db(), components.clone()).unwrap();
    let cf = db.default_family();
    let value = |n: u32, round: u32| format!("{round} {n} ").repeat(40);
    for round in 0..4 {
        for n in (0..200).filter(|n| round == 0 || n % 3 == round % 3) {
            db.put(&key(n), value(n, round).as_bytes()).unwrap();
        }
        db.flush(cf).unwrap();
        db.compact_range(cf, &KeyRange::all()).unwrap();
        db.wait_for_background().unwrap();
    }
    assert!(executor.gc_by_invalid_files.load(Ordering::Relaxed) > 0);
    let jobs = db.statistics().get(Ticker::GcJobs);
    assert_eq!(executor.gc_by_invalid_files.load(Ordering::Relaxed), jobs, "no look-up");
    let check = |db: &Db| {
        for n in 0..200 {
            let round = (0..4).rev().find(|round| *round == 0 || n % 3 == round % 3).unwrap();
            let found = db.get(&key(n)).unwrap();
            assert_eq!(found.as_deref(), Some(value(n, round).as_bytes()), "{n}");
        }
    };
    check(&db);
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
    db.close().unwrap();
    check(&Db::open_with(&dir, small_db(), components).unwrap());
}
