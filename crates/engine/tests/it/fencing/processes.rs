//! Fencing with processes: an owner that is killed, and its executor, which resumes late.
//!
//! The test binary starts itself again, as the owner and as the executor. The executor stops before
//! or after it has created its first table. It continues after the next owner has worked.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use archipelago_engine::executor::wire;
use archipelago_engine::memtable::SealedImage;
use archipelago_env::local::LocalFs;
use archipelago_env::{CreateOptions, FileClass, IoContext, IoPurpose, WritableFile};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::*;
use crate::support::stepped;

/// Role of a child process: `owner` or `executor`. It is not set in a run of the tests.
const ROLE: &str = "ARCHIPELAGO_TEST_FENCING_ROLE";
/// Directory of the database and of the messages between the processes.
const DIR: &str = "ARCHIPELAGO_TEST_FENCING_DIR";
/// Time at which the executor stops: `before` or `after` its first table.
const STOP: &str = "ARCHIPELAGO_TEST_FENCING_STOP";
const IO: IoContext = IoContext::new(FileClass::Other, IoPurpose::Maintenance);

fn tell(dir: &Path, what: &str, bytes: &[u8]) {
    LocalFs::new().write_atomic(&dir.join(what), bytes, IO).unwrap();
}

fn has(dir: &Path, what: &str) -> bool {
    LocalFs::new().exists(&dir.join(what)).unwrap()
}

/// Waits until another process has reported `what`, or `is_over` returns true.
fn wait_for(dir: &Path, what: &str, mut is_over: impl FnMut() -> bool) {
    while !has(dir, what) {
        assert!(!is_over(), "the process ended before it told {what}");
        SystemClock::new().sleep(Duration::from_millis(2));
    }
}

/// A child process, which ends with the test.
struct Process(Child);

impl Process {
    fn start(role: &str, dir: &Path, stop: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fencing::processes::child_process"])
            .envs([(ROLE, role), (STOP, stop)])
            .env(DIR, dir)
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn wait_until_told(&mut self, dir: &Path, what: &str) {
        wait_for(dir, what, || self.0.try_wait().unwrap().is_some());
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Hands the first flush to another process, and never receives an answer.
struct Sending(PathBuf);

impl JobExecutor for Sending {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        for (at, shard) in spec.shards.iter().enumerate() {
            let mut image = Vec::new();
            context.shards.shard(shard)?.write_image(&mut image)?;
            tell(&self.0, &format!("{at}.image"), &image);
        }
        tell(&self.0, "spec", &wire::encode(spec)?);
        loop {
            SystemClock::new().sleep(Duration::from_secs(1));
        }
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.compact(spec, context)
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.gc(spec, context)
    }
}

/// Finds the images of the shards by their position in the spec.
struct Images(PathBuf, Vec<ShardRef>);

impl ShardSource for Images {
    fn shard(&self, shard: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        let at = self.1.iter().position(|known| known == shard).unwrap();
        let bytes = LocalFs::new().read(&self.0.join(format!("{at}.image")), IO)?;
        Ok(SealedImage::open(bytes)?)
    }
}

/// The local file system of an executor that stops once, at its first table.
#[derive(Debug)]
struct Stopping {
    inner: LocalFs,
    dir: PathBuf,
    is_before: bool,
    has_stopped: AtomicBool,
}

impl Stopping {
    fn stop(&self) {
        if !self.has_stopped.swap(true, Ordering::Relaxed) {
            tell(&self.dir, "stopped", b"");
            wait_for(&self.dir, "go", || false);
        }
    }
}

impl FileSystem for Stopping {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        if self.is_before {
            self.stop();
        }
        let created = self.inner.create(path, context, options);
        self.stop();
        created
    }

    archipelago_env::forward_fs!(inner: open, create_log, names);
}

fn file_components() -> Components {
    let families = [("default".to_owned(), many_files())].into_iter().collect();
    Components { families, ..stepped() }
}

/// The owner that dies: it hands out a flush and waits for it.
fn be_owner(dir: &Path) {
    let executor = Arc::new(Sending(dir.to_owned()));
    let of_owner = Components { executor, ..file_components() };
    let db = Db::open_with(dir.join("db"), small_db(), of_owner).unwrap();
    put_round(&db, 0);
    db.flush(db.default_family()).unwrap();
}

/// The executor: it runs the flush, with a stop, and reports the result.
fn be_executor(dir: &Path, is_before: bool) {
    let message = LocalFs::new().read(&dir.join("spec"), IO).unwrap();
    let spec: FlushSpec = wire::decode(&message).unwrap();
    let images = Images(dir.to_owned(), spec.shards.clone());
    let fs = Stopping {
        inner: LocalFs::new(),
        dir: dir.to_owned(),
        is_before,
        has_stopped: AtomicBool::new(false),
    };
    let output = run_flush(&spec, &job_context(Arc::new(fs), &images)).unwrap();
    tell(dir, "output", &wire::encode(&output).unwrap());
}

/// The task of a child process. It does nothing in a run of the tests.
#[test]
fn child_process() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    // The child does not outlive a test that is killed.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let is_before = std::env::var(STOP).unwrap() == "before";
    match &*std::env::var(ROLE).unwrap() {
        "owner" => be_owner(&dir),
        _ => be_executor(&dir, is_before),
    }
}

fn late_executor_touches_no_live_file(stop: &str) {
    let temporary = tempfile::tempdir().unwrap();
    let (dir, path) = (temporary.path(), temporary.path().join("db"));
    let mut owner = Process::start("owner", dir, stop);
    owner.wait_until_told(dir, "spec");
    let mut executor = Process::start("executor", dir, stop);
    executor.wait_until_told(dir, "stopped");
    owner.kill();

    let clock = Arc::new(ManualClock::new(1_000_000));
    let of_next =
        || Components { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..file_components() };
    let db = Db::open_with(&path, small_db(), of_next()).unwrap();
    assert_eq!(db.owner().unwrap().epoch, Epoch(2));
    for round in 1..4 {
        put_round(&db, round);
        db.flush(db.default_family()).unwrap();
    }
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db.wait_for_background().unwrap();
    check(&db, 4);
    let live = |db: &Db| -> Vec<String> {
        let entries = LocalFs::new().list(db.dir()).unwrap();
        entries.into_iter().map(|entry| entry.name).filter(|name| name.ends_with(".sst")).collect()
    };
    let before = live(&db);
    tell(dir, "go", b"");
    executor.wait_until_told(dir, "output");
    let output = LocalFs::new().read(&dir.join("output"), IO).unwrap();
    let output: JobOutput = wire::decode(&output).unwrap();
    assert!(output.files.len() > 1, "{output:?}");
    for file in &output.files {
        let name = format!("{:06}.sst", file.no);
        assert!(!before.contains(&name), "{name} is a table of the next owner");
    }
    check(&db, 4);
    // The open removed a table that existed then, and the executor wrote the others later.
    let late = output.files.len() as u64 - u64::from(stop == "after");
    assert_eq!(strays(&db, &LocalFs::new(), &path), late);
    clock.advance(SWEEP_INTERVAL);
    while db.step_background().unwrap() {}
    assert_eq!(db.statistics().get(Ticker::StraysRemoved), late);
    assert_eq!(live(&db), before);
    db.close().unwrap();
    let db = Db::open_with(&path, small_db(), of_next()).unwrap();
    check(&db, 4);
}

#[test]
fn executor_that_stopped_before_its_first_table_touches_no_live_file() {
    late_executor_touches_no_live_file("before");
}

#[test]
fn executor_that_stopped_in_its_first_table_touches_no_live_file() {
    late_executor_touches_no_live_file("after");
}
