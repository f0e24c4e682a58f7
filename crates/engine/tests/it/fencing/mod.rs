//! Files that are safe to share with executors. A job may run late, for an owner that has died or
//! has given up the job. It must touch no file of the database, and the files that it writes must
//! be removed.

mod outputs;
mod processes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::{Clock, ManualClock, SystemClock};
use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_engine::compaction::job::{CompactionSpec, run_compaction};
use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::executor::{JobExecutor, LocalExecutor};
use archipelago_engine::extension::Registry;
use archipelago_engine::flush::{FlushSpec, run_flush};
use archipelago_engine::gc::job::GcSpec;
use archipelago_engine::job::spec::OutputSpec;
use archipelago_engine::job::{
    Cancel, JobContext, JobOutput, KnownKeys, NoShards, ShardRef, ShardSource,
};
use archipelago_engine::key::KeyRange;
use archipelago_engine::manifest::{Owner, dump};
use archipelago_engine::memtable::SealedShard;
use archipelago_engine::options::{CfOptions, DbOptions};
use archipelago_engine::sabotage::{Defect, with_defect};
use archipelago_engine::sst::BlockCache;
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use archipelago_env::fault::{FaultFs, Operation, Rule};
use parking_lot::Mutex;

use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

/// End of the seeds of databases that live many times.
const SEEDS_OF_LIVES_END: u64 = 13;
/// A time that is longer than the interval of sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(601);
/// A time that is longer than that from a failed job to the next sweep.
const SWEEP_DELAY: Duration = Duration::from_secs(61);
/// A time that is longer than the pause after a failed job.
const PAUSE: Duration = Duration::from_secs(2);

/// The shards of a flush that was kept.
struct Shards(Vec<(ShardRef, Arc<dyn SealedShard>)>);

impl ShardSource for Shards {
    fn shard(&self, wanted: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        let found = self.0.iter().find(|(shard, _)| shard == wanted);
        found.map(|(_, shard)| Arc::clone(shard)).ok_or_else(|| Error::not_found("no such shard"))
    }
}

/// A job that was handed to the executor and not run.
enum KeptJob {
    Flush(FlushSpec, Shards),
    Compaction(CompactionSpec),
}

/// Runs jobs here. While the switch is on, it keeps them instead and answers that no executor ran
/// them.
#[derive(Default)]
struct Keeping {
    is_keeping: AtomicBool,
    jobs: Mutex<Vec<KeptJob>>,
}

impl Keeping {
    fn keep(&self, job: KeptJob) -> Result<JobOutput> {
        self.jobs.lock().push(job);
        Err(Error::new(ErrorKind::Io, "the executor does not answer"))
    }

    fn set_keeping(&self, is_keeping: bool) {
        self.is_keeping.store(is_keeping, Ordering::Relaxed);
    }
}

impl JobExecutor for Keeping {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        if !self.is_keeping.load(Ordering::Relaxed) {
            return LocalExecutor.flush(spec, context);
        }
        let shard = |shard: &ShardRef| Ok((*shard, context.shards.shard(shard)?));
        let shards = spec.shards.iter().map(shard).collect::<Result<_>>()?;
        self.keep(KeptJob::Flush(spec.clone(), Shards(shards)))
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        match self.is_keeping.load(Ordering::Relaxed) {
            true => self.keep(KeptJob::Compaction(spec.clone())),
            false => LocalExecutor.compact(spec, context),
        }
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.gc(spec, context)
    }
}

/// Runs jobs here, notes their file numbers, and fails some of them without a trace.
#[derive(Default)]
struct Noting {
    rows: Mutex<Vec<(u64, u64)>>,
    jobs: AtomicU32,
}

impl Noting {
    fn note(&self, spec: &OutputSpec) -> Result<()> {
        for numbers in [spec.file_numbers, spec.values.invalid] {
            if numbers.count > 0 {
                self.rows.lock().push((numbers.first, numbers.first + numbers.count));
            }
        }
        match self.jobs.fetch_add(1, Ordering::Relaxed) % 4 {
            2 => Err(Error::new(ErrorKind::Io, "the executor is gone")),
            _ => Ok(()),
        }
    }
}

impl JobExecutor for Noting {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        self.note(&spec.output).and_then(|()| LocalExecutor.flush(spec, context))
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        self.note(&spec.output).and_then(|()| LocalExecutor.compact(spec, context))
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        self.note(&spec.output).and_then(|()| LocalExecutor.gc(spec, context))
    }

    fn prefers_invalid_files(&self) -> bool {
        true
    }
}

/// The job context of a separate executor.
fn job_context(fs: Arc<dyn FileSystem>, shards: &dyn ShardSource) -> JobContext<'_> {
    let budget = ByteBudget::unlimited();
    JobContext {
        fs,
        registry: Registry::default(),
        clock: SystemClock::shared(),
        limiter: None,
        cancel: Cancel::default(),
        shards,
        cache: BlockCache::new(1 << 20, &budget),
        warm: false,
        budget,
        more_file_numbers: None,
        value_keys: KnownKeys::default(),
        progress: Arc::default(),
    }
}

/// Runs a kept job on `fs`, as an executor that resumes late.
fn run_late(job: &KeptJob, fs: &TestDisk) -> Result<JobOutput> {
    let fs = Arc::new(fs.clone());
    match job {
        KeptJob::Flush(spec, shards) => run_flush(spec, &job_context(fs, shards)),
        KeptJob::Compaction(spec) => run_compaction(spec, &job_context(fs, &NoShards)),
    }
}

/// A family whose jobs write many files.
fn many_files() -> CfOptions {
    let write_buffer_bytes = 64 << 10;
    CfOptions { write_buffer_bytes, target_file_bytes: 4 << 10, buckets: 6, ..small_family() }
}

fn components(fs: &TestDisk, clock: &Arc<ManualClock>) -> Components {
    Components { clock: Arc::clone(clock) as Arc<dyn Clock>, ..over(fs, many_files()) }
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

fn value(n: u32, round: u32) -> Vec<u8> {
    format!("{round}:{n} ").repeat(12).into_bytes()
}

/// Writes 400 keys, every one in the first round and every third one in later rounds.
fn put_round(db: &Db, round: u32) {
    for n in (0..400).filter(|n| round == 0 || n % 3 == round % 3) {
        db.put(&key(n), &value(n, round)).unwrap();
    }
}

/// Checks the content of the database after the rounds before `rounds`.
fn check(db: &Db, rounds: u32) {
    for n in 0..400 {
        let round = (1..rounds).rev().find(|round| n % 3 == round % 3).unwrap_or(0);
        assert_eq!(db.get(&key(n)).unwrap().as_deref(), Some(&value(n, round)[..]), "{n}");
    }
    let report = db.verify(|_, _| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.errors);
}

/// Number of tables in the directory that the newest version does not name.
fn strays(db: &Db, fs: &dyn FileSystem, dir: &Path) -> u64 {
    let entries = fs.list(dir).unwrap();
    let tables = entries.iter().filter(|entry| entry.name.ends_with(".sst")).count() as u64;
    tables - db.verify(|_, _| {}).unwrap().files
}

/// An owner has died after it handed out a flush. The next owner works, and then the flush runs.
fn late_flush_of_a_dead_owner_changes_nothing() {
    let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let executor = Arc::new(Keeping::default());
    let of_owner = Components { executor: Arc::clone(&executor) as _, ..components(&fs, &clock) };
    let owner = Db::open_with("/db", small_db(), of_owner).unwrap();
    executor.set_keeping(true);
    put_round(&owner, 0);
    assert_eq!(owner.flush(owner.default_family()).unwrap_err().kind(), ErrorKind::Io);
    let disk = fs.kill_clone();

    let db = Db::open_with("/db", small_db(), components(&disk, &clock)).unwrap();
    for round in 1..4 {
        put_round(&db, round);
        db.flush(db.default_family()).unwrap();
    }
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db.wait_for_background().unwrap();
    check(&db, 4);
    let jobs = std::mem::take(&mut *executor.jobs.lock());
    let late = jobs.iter().map(|job| run_late(job, &disk).unwrap().files.len() as u64);
    let written: u64 = late.sum();
    assert!(written > 3, "{written} files of {} jobs", jobs.len());
    check(&db, 4);
    assert_eq!(strays(&db, &disk, Path::new("/db")), written);

    // The next owner sweeps while it is open.
    clock.advance(SWEEP_INTERVAL);
    assert!(!db.step_background().unwrap(), "nothing else is due");
    assert_eq!(strays(&db, &disk, Path::new("/db")), 0);
    assert_eq!(db.statistics().get(Ticker::StraysRemoved), written);
    check(&db, 4);
    db.close().unwrap();
    let db = Db::open_with("/db", small_db(), components(&disk, &clock)).unwrap();
    check(&db, 4);
}

#[test]
fn late_flush_of_a_dead_owner_touches_no_live_file() {
    late_flush_of_a_dead_owner_changes_nothing();
}

#[test]
fn late_compaction_of_a_dead_owner_touches_no_live_file() {
    let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let executor = Arc::new(Keeping::default());
    let of_owner = Components { executor: Arc::clone(&executor) as _, ..components(&fs, &clock) };
    let owner = Db::open_with("/db", small_db(), of_owner).unwrap();
    let cf = owner.default_family();
    for round in 0..2 {
        put_round(&owner, round);
        owner.flush(cf).unwrap();
    }
    executor.set_keeping(true);
    assert_eq!(owner.compact_range(cf, &KeyRange::all()).unwrap_err().kind(), ErrorKind::Io);
    let disk = fs.kill_clone();

    let db = Db::open_with("/db", small_db(), components(&disk, &clock)).unwrap();
    // The inputs of the late compaction stay while an iterator holds them.
    let mut held = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    held.seek_to_first();
    put_round(&db, 2);
    db.flush(db.default_family()).unwrap();
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db.wait_for_background().unwrap();
    let jobs = std::mem::take(&mut *executor.jobs.lock());
    let late = jobs.iter().map(|job| run_late(job, &disk).unwrap().files.len() as u64);
    let written: u64 = late.sum();
    assert!(written > 0);
    drop(held);
    assert!(!db.step_background().unwrap(), "nothing is due");
    assert_eq!(strays(&db, &disk, Path::new("/db")), written);
    check(&db, 3);
    db.close().unwrap();
    // The next open removes the files that no sweep has met.
    let db = Db::open_with("/db", small_db(), components(&disk, &clock)).unwrap();
    assert_eq!(strays(&db, &disk, Path::new("/db")), 0);
    check(&db, 3);
}

/// Several databases live many times. Each life ends with a kill or with power loss.
fn attempts_of_all_lives_have_numbers_of_their_own() {
    (5..SEEDS_OF_LIVES_END).for_each(live_many_times);
}

fn live_many_times(seed: u64) {
    let (mut disk, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let executor = Arc::new(Noting::default());
    let mut rng = Rng::with_seed(seed);
    for life in 0..12 {
        let family = CfOptions { value_separation_bytes: 64, ..many_files() };
        let of_owner = Components {
            executor: Arc::clone(&executor) as _,
            families: [("default".to_owned(), family)].into_iter().collect(),
            ..components(&disk, &clock)
        };
        let db = Db::open_with("/db", small_db(), of_owner).unwrap();
        for round in 0..rng.u32(1..4) {
            put_round(&db, round);
            // The executor fails some jobs, and then the next step tries again.
            drop(db.flush(db.default_family()));
            drop(db.compact_range(db.default_family(), &KeyRange::all()));
            drop(db.step_background());
        }
        let left = if rng.bool() { disk.kill_clone() } else { disk.crash_clone(life) };
        drop(db);
        disk = left;
    }
    let mut rows = executor.rows.lock().clone();
    assert!(rows.len() > 50, "{} attempts", rows.len());
    rows.sort_unstable();
    for pair in rows.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two attempts share numbers: {pair:?}");
    }
}

#[test]
fn attempts_of_all_lives_share_no_number() {
    attempts_of_all_lives_have_numbers_of_their_own();
}

/// Whether `core` fails if files are not fenced.
fn is_noticed(core: fn()) -> bool {
    catch_unwind(AssertUnwindSafe(|| with_defect(Defect::UnfencedFiles, core))).is_err()
}

#[test]
fn suite_notices_a_late_flush_over_live_tables() {
    assert!(is_noticed(late_flush_of_a_dead_owner_changes_nothing));
}

#[test]
fn suite_notices_numbers_that_are_used_twice() {
    assert!(is_noticed(attempts_of_all_lives_have_numbers_of_their_own));
}

#[test]
fn late_output_of_a_job_that_was_given_up_is_swept() {
    let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let executor = Arc::new(Keeping::default());
    let of_owner = Components { executor: Arc::clone(&executor) as _, ..components(&fs, &clock) };
    let db = Db::open_with("/db", small_db(), of_owner).unwrap();
    let cf = db.default_family();
    // The first step begins the interval of sweeps.
    db.wait_for_background().unwrap();
    put_round(&db, 0);
    executor.set_keeping(true);
    db.flush(cf).unwrap_err();
    executor.set_keeping(false);
    // The owner flushes again, with other numbers, and the first attempt ends later.
    clock.advance(PAUSE);
    db.flush(cf).unwrap();
    let jobs = std::mem::take(&mut *executor.jobs.lock());
    let late = jobs.iter().map(|job| run_late(job, &fs).unwrap().files.len() as u64);
    let late: u64 = late.sum();
    assert!(late > 0);
    check(&db, 1);
    assert_eq!(strays(&db, &fs, Path::new("/db")), late);
    clock.advance(SWEEP_DELAY);
    while db.step_background().unwrap() {}
    assert_eq!(strays(&db, &fs, Path::new("/db")), 0);
    // An attempt that continues after the sweep is swept again.
    jobs.iter().for_each(|job| drop(run_late(job, &fs).unwrap()));
    clock.advance(SWEEP_INTERVAL);
    while db.step_background().unwrap() {}
    assert_eq!(strays(&db, &fs, Path::new("/db")), 0);
    assert_eq!(db.statistics().get(Ticker::StraysRemoved), 2 * late);
    check(&db, 1);
}

#[test]
fn iterator_keeps_its_tables_through_a_sweep() {
    let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let db = Db::open_with("/db", small_db(), components(&fs, &clock)).unwrap();
    put_round(&db, 0);
    db.flush(db.default_family()).unwrap();
    db.close().unwrap();
    // The first tables are those of the recovered version, and the next ones those of this open.
    let db = Db::open_with("/db", small_db(), components(&fs, &clock)).unwrap();
    let mut iters = Vec::new();
    for round in 1..3 {
        let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
        iter.seek_to_first();
        iters.push((round, iter));
        put_round(&db, round);
        db.flush(db.default_family()).unwrap();
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    }
    clock.advance(SWEEP_INTERVAL);
    while db.step_background().unwrap() {}
    clock.advance(SWEEP_INTERVAL);
    while db.step_background().unwrap() {}
    assert!(strays(&db, &fs, Path::new("/db")) > 0, "the iterators hold old tables");
    assert_eq!(db.statistics().get(Ticker::StraysRemoved), 0);
    for (rounds, mut iter) in iters {
        for n in 0..400 {
            let round = (1..rounds).rev().find(|round| n % 3 == round % 3).unwrap_or(0);
            assert!(iter.valid(), "at {n}: {:?}", iter.status());
            assert_eq!((iter.key(), iter.value()), (&key(n)[..], &value(n, round)[..]));
            iter.next();
        }
    }
}

#[test]
fn sweep_rests_while_the_outcome_of_an_edit_is_unknown() {
    let (disk, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let faulty = FaultFs::new(Arc::new(disk.clone()), 1);
    let fs = Arc::new(faulty.clone()) as Arc<dyn FileSystem>;
    let db =
        Db::open_with("/db", small_db(), Components { fs, ..components(&disk, &clock) }).unwrap();
    put_round(&db, 0);
    // The first edit makes this open the owner, and reserves numbers for the flush below.
    db.flush(db.default_family()).unwrap();
    put_round(&db, 1);
    faulty.add(Rule::on(Operation::Sync).path("MANIFEST"));
    db.flush(db.default_family()).unwrap_err();
    let before = strays(&db, &disk, Path::new("/db"));
    assert!(before > 0, "the next open may find the edit, and what it names");
    clock.advance(SWEEP_INTERVAL);
    drop(db.step_background());
    assert!(strays(&db, &disk, Path::new("/db")) >= before, "nothing was removed");
    faulty.clear();
    clock.advance(PAUSE);
    db.flush(db.default_family()).unwrap();
    clock.advance(SWEEP_INTERVAL);
    while db.step_background().unwrap() {}
    assert_eq!(strays(&db, &disk, Path::new("/db")), 0);
    check(&db, 2);
}

#[test]
fn sweep_that_fails_is_tried_again() {
    let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let fault_point = move |name: &str| match name {
        "strays.sweep" if failing.load(Ordering::Relaxed) => Err(Error::busy("not now")),
        _ => Ok(()),
    };
    let executor = Arc::new(Keeping::default());
    let of_owner = Components {
        executor: Arc::clone(&executor) as _,
        fault_point: Some(Arc::new(fault_point)),
        ..components(&fs, &clock)
    };
    let db = Db::open_with("/db", small_db(), of_owner).unwrap();
    put_round(&db, 0);
    executor.set_keeping(true);
    db.flush(db.default_family()).unwrap_err();
    executor.set_keeping(false);
    clock.advance(PAUSE);
    db.flush(db.default_family()).unwrap();
    for job in &*executor.jobs.lock() {
        run_late(job, &fs).unwrap();
    }
    for is_failing in [true, false] {
        fails.store(is_failing, Ordering::Relaxed);
        clock.advance(SWEEP_DELAY);
        while db.step_background().unwrap() {}
        assert_eq!(strays(&db, &fs, Path::new("/db")) > 0, is_failing);
    }
}

#[test]
fn each_open_for_writing_is_a_later_owner() {
    let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let open = || Db::open_with("/db", small_db(), components(&fs, &clock)).unwrap();
    let db = open();
    let first: Owner = db.owner().unwrap();
    assert_eq!((first.epoch, &*first.log_place), (Epoch(1), ""));
    db.checkpoint("/copy").unwrap();
    db.close().unwrap();
    let db = open();
    let second = db.owner().unwrap();
    assert_eq!((second.epoch, second.offload_id), (Epoch(2), first.offload_id));
    let mut text = String::new();
    dump(&fs, Path::new("/db"), &mut text).unwrap();
    assert!(text.contains("owner epoch 2, offload id "), "{text}");
    // A checkpoint is a database of its own.
    let copy = Db::open_with("/copy", small_db(), components(&fs, &clock)).unwrap();
    assert_eq!(copy.owner().unwrap().epoch, Epoch(1));
    drop(copy);
    // Readers change nothing.
    let read_only = DbOptions { read_only: true, ..small_db() };
    let reader = Db::open_with("/db", read_only, components(&fs, &clock)).unwrap();
    assert_eq!(reader.owner(), Some(second));
}
