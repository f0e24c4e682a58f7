//! Devices that fail: every error names its file, reads continue, nothing acknowledged is lost, and
//! writes continue when the cause is gone.
//!
//! The sweep repeats the same seeded operations. Each run lets another operation of the file system
//! fail, under another treatment of large values. `ARCHIPELAGO_CRASH_FULL=1` lets every one of them
//! fail, with and without separated values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::SystemClock;
use archipelago_base::{Error, ErrorKind, FileNo, Result, SeqNo};
use archipelago_engine::db::{BackgroundMode, Components, Db, FaultPoint};
use archipelago_engine::event::{Event, EventListener, Listeners};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{DbOptions, RecoveryMode, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_engine::wal;
use archipelago_env::FileSystem;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule, When};
use parking_lot::Mutex;

use crate::crash_model::{self as model, Hooks, Model, Op, Script};
use crate::disk::TestDisk;
use crate::fragile::Fragile;
use crate::separation::{self, Collection, Separation};
use crate::support::stepped;

/// Operations of a run of the sweep.
const STEPS: usize = 70;

/// A device that can fail, the database on it, and the expected content.
struct Bench {
    label: String,
    options: DbOptions,
    disk: TestDisk,
    faults: FaultFs,
    fs: Arc<dyn FileSystem>,
    hooks: Hooks,
    db: Option<Db>,
    script: Script,
    model: Model,
    /// Hashes of contents that a power loss may leave now.
    survivors: Vec<u64>,
}

impl Bench {
    fn separated(label: &str, seed: u64, options: DbOptions, separation: Separation) -> Self {
        let disk = TestDisk::new();
        let faults = FaultFs::new(Arc::new(disk.clone()), seed);
        let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
        let hooks = Hooks::of(separation);
        let db = model::create(Arc::clone(&fs), options.clone(), &hooks);
        Self {
            label: label.to_owned(),
            options,
            disk,
            faults,
            fs,
            hooks,
            db: Some(db),
            script: Script::new(seed),
            model: Model::default(),
            survivors: vec![0],
        }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open between the steps of a run")
    }

    fn named(&self, what: &str, error: &Error) {
        let text = error.to_string();
        assert!(
            text.contains("/db") || text.contains(".sst") || Fragile::is_named_in(error),
            "{}: {what}: no file in: {text}",
            self.label
        );
    }

    /// Compares the running database with the model. If the content is that of `or`, the model
    /// becomes `or`.
    fn compare(&mut self, what: &str, or: Option<&Model>) {
        // The faults concern the database's own work, not this comparison.
        self.faults.set_enabled(false);
        self.hooks.fragile.pause(true);
        let got = model::contents(self.db())
            .unwrap_or_else(|error| panic!("{}: reading after {what}: {error}", self.label));
        self.faults.set_enabled(true);
        self.hooks.fragile.pause(false);
        if let Some(other) = or
            && model::hash(&got) == other.hash
        {
            self.model = other.clone();
        }
        let found = model::differences(&got, &self.model.contents);
        assert!(
            found.is_empty(),
            "{}: after {what}: {:#?}",
            self.label,
            &found[..found.len().min(6)]
        );
    }

    /// Compares the content after a kill of the process, or a power failure, at this moment.
    fn compare_survivors(&self, what: &str, or: Option<&Model>, seed: u64) {
        let open = |disk: TestDisk, how: &str| {
            let hooks = Hooks::of(self.hooks.separation);
            let db = model::open_over(Arc::new(disk), self.options.clone(), &hooks)
                .unwrap_or_else(|error| panic!("{}: {how} after {what}: {error}", self.label));
            model::contents(&db).unwrap()
        };
        let killed = open(self.disk.kill_clone(), "kill");
        let hash = model::hash(&killed);
        if hash != self.model.hash && or.is_none_or(|other| hash != other.hash) {
            let found = model::differences(&killed, &self.model.contents);
            panic!("{}: kill after {what}: {:#?}", self.label, &found[..found.len().min(6)]);
        }
        let left = open(self.disk.crash_clone(seed), "power loss");
        let allowed = self.survivors.contains(&model::hash(&left))
            || or.is_some_and(|other| model::hash(&left) == other.hash);
        assert!(allowed, "{}: power loss after {what} leaves no prefix", self.label);
    }

    fn operate(&mut self) {
        let op = self.script.op(&self.model);
        let mut after = self.model.clone();
        after.apply(&op);
        let unsynced = matches!(op, Op::Write { sync: false, .. } | Op::Ordered { .. });
        let durable = !unsynced && !matches!(op, Op::Create | Op::Flush { .. });
        match self.perform(&op) {
            Ok(()) => {
                self.model = after;
                if durable {
                    self.survivors.clear();
                }
                self.survivors.push(self.model.hash);
            }
            Err(error) => self.after_failure(&op, &after, &error),
        }
    }

    /// Performs an operation as a caller does who steps background work and meets its errors.
    fn perform(&self, op: &Op) -> Result<()> {
        let mut failures = 0;
        loop {
            match model::perform(self.db(), &self.fs, op, &self.hooks) {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    match self.db().step_background() {
                        Ok(_) => {}
                        Err(_) if failures < 3 => failures += 1,
                        Err(error) => return Err(error),
                    }
                }
                done => return done,
            }
        }
    }

    fn after_failure(&mut self, op: &Op, after: &Model, error: &Error) {
        let what = format!("{:?} failed with {error}", kind_of(op));
        self.named(&what, error);
        // Only a write may have happened whose sync or write-through failed.
        let waited = self.options.log_write_through;
        let may_have = matches!(op, Op::Write { sync, .. } if *sync || waited);
        self.compare(&what, may_have.then_some(after));
        self.survivors.push(self.model.hash);
        self.compare_survivors(&what, Some(after), 3);
        self.mend(&what);
        self.compare(&what, None);
    }

    /// Takes the database out of the read-only state, if it is in it.
    fn mend(&mut self, what: &str) {
        // A delete of a missing key is a write that changes nothing.
        let Err(error) = self.db().delete(b"probe") else { return };
        if error.kind() != ErrorKind::ReadOnly {
            self.named(what, &error);
            return;
        }
        self.named(what, &error);
        let mut tries = 0;
        while let Err(error) = self.db().resume() {
            self.named("resume", &error);
            tries += 1;
            assert!(tries < 3, "{}: {what}: resume fails: {error}", self.label);
        }
        self.db().delete(b"probe").unwrap();
        // Everything is in tables now.
        self.survivors = vec![self.model.hash];
    }

    fn disturb(&mut self, step: usize) {
        let stepped = match step % 24 {
            7 => self.db().flush(self.db().default_family()),
            15 => self.db().wait_for_background(),
            23 => self.reopen(),
            _ => self.db().step_background().map(|_| ()),
        };
        if let Err(error) = stepped {
            let what = format!("step {step}: {error}");
            if error.kind() != ErrorKind::Busy {
                self.named(&what, &error);
            }
            if self.db.is_some() {
                self.compare(&what, None);
                self.compare_survivors(&what, None, 4);
                self.mend(&what);
            }
        }
    }

    fn reopen(&mut self) -> Result<()> {
        let closed = self.db.take().expect("open").close();
        if closed.is_ok() {
            self.survivors = vec![self.model.hash];
        }
        let mut tries = 0;
        self.db = loop {
            match model::open_over(Arc::clone(&self.fs), self.options.clone(), &self.hooks) {
                Ok(db) => break Some(db),
                Err(error) => self.named("open", &error),
            }
            tries += 1;
            assert!(tries < 3, "{}: it does not open any more", self.label);
        };
        self.survivors = vec![self.model.hash];
        self.compare("reopen", None);
        closed
    }

    /// Ends a run: checks that the database is in order, also after a reopen.
    fn finish(mut self) {
        self.faults.clear();
        self.hooks.fragile.arm(0);
        self.mend("the end");
        self.db().wait_for_background().unwrap_or_else(|e| panic!("{}: {e}", self.label));
        self.compare("the end", None);
        self.hooks.fragile.pause(true);
        separation::audit(self.db());
        self.hooks.fragile.pause(false);
        let report = self.db().verify(|_, _| {}).unwrap();
        assert!(report.is_clean(), "{}: {:?}", self.label, report.errors);
        let refused = self.db().statistics().get(Ticker::EditsRefused);
        assert_eq!(refused, 0, "{}: an edit did not fit", self.label);
        self.reopen().unwrap_or_else(|e| panic!("{}: close: {e}", self.label));
        self.compare_survivors("the last reopen", None, 9);
    }

    fn run(&mut self, steps: usize) {
        for step in 0..steps {
            self.operate();
            self.disturb(step);
        }
    }
}

fn kind_of(op: &Op) -> &'static str {
    match op {
        Op::Write { sync: true, .. } => "synced write",
        Op::Write { .. } => "write",
        Op::Ordered { .. } => "write in time order",
        Op::Ingest { .. } => "ingest",
        Op::Flush { .. } => "flush",
        Op::Create => "create family",
        Op::Drop => "drop family",
    }
}

/// Number of treatments of large values that runs take in turn: all thresholds and frequencies of
/// collection.
const TREATMENTS: u64 = 12;
/// The treatment with separated values under which a full sweep lets every operation fail.
const USUAL: Separation = Separation::EAGER;

/// The treatment of run `nth`. Neighbours differ in threshold and frequency. The Flat Index Cache
/// is on and off in turn.
fn treatment(nth: u64) -> Separation {
    let separation = Separation::nth(nth * 5);
    match separation.bytes {
        0 => Separation { flat_index: separation.flat_index, ..Separation::OFF },
        _ => separation,
    }
}

/// Runs of one script in which one thing fails, with the treatments of large values in turn.
struct Sweep {
    options: DbOptions,
    /// Counts of a run without failures, by treatment.
    dry: BTreeMap<u64, DryRun>,
    /// Number of the next run.
    next: u64,
}

/// Counts of a run without failures.
struct DryRun {
    /// Operations of each kind, in the order of [`Operation::ALL`].
    operations: Vec<u64>,
    /// Calls of extensions.
    calls: u64,
}

impl Sweep {
    fn new(options: DbOptions) -> Self {
        Self { options, dry: BTreeMap::new(), next: 0 }
    }

    fn bench(&self, label: &str, nth: u64) -> Bench {
        Bench::separated(label, 21, self.options.clone(), treatment(nth))
    }

    /// Counts of the treatment of run `nth`. They do not depend on the Flat Index Cache.
    fn dry_run(&mut self, nth: u64) -> &DryRun {
        let key = if treatment(nth).bytes == 0 { 0 } else { nth % TREATMENTS };
        let counted = self.dry.remove(&key).unwrap_or_else(|| self.count(nth));
        self.dry.entry(key).or_insert(counted)
    }

    fn count(&self, nth: u64) -> DryRun {
        let mut bench = self.bench("dry run", nth);
        let seen = |bench: &Bench| Operation::ALL.map(|operation| bench.faults.seen(operation));
        let before = seen(&bench);
        bench.run(STEPS);
        let operations = seen(&bench).into_iter().zip(before).map(|(seen, before)| seen - before);
        let (operations, calls) = (operations.collect(), bench.hooks.fragile.seen());
        bench.finish();
        DryRun { operations, calls }
    }

    /// The failures of a sweep with about `samples` runs: the number of each run, and which of
    /// `total` possible failures it has. `total` gets the counts of the run's treatment.
    fn failures(&mut self, samples: u64, total: impl Fn(&DryRun) -> u64) -> Vec<(u64, u64)> {
        let full = std::env::var_os("ARCHIPELAGO_CRASH_FULL").is_some();
        if full {
            let all = (0..TREATMENTS).flat_map(|nth| {
                let total = total(self.dry_run(nth));
                // Every failure without separation and with the usual one; a part of the others.
                let stride = if nth == 0 || treatment(nth) == USUAL { 1 } else { TREATMENTS };
                (1..=total).step_by(stride as usize).map(move |at| (nth, at))
            });
            return all.collect();
        }
        let first = self.next;
        self.next += samples;
        let at = |run: u64| {
            let nth = first + run;
            let total = total(self.dry_run(nth));
            (total > 0).then(|| (nth, 1 + run * total / samples))
        };
        (0..samples).filter_map(at).collect()
    }

    /// Lets about `samples` of the run's operations of that kind fail, each in a run of its own.
    fn fail(&mut self, operation: Operation, fault: Fault, samples: u64) {
        let index = Operation::ALL.iter().position(|known| *known == operation).unwrap();
        let mut fired = 0;
        for (nth, at) in self.failures(samples, |dry| dry.operations[index]) {
            let label = format!("{operation:?} {at}: {fault:?}, {:?}", treatment(nth));
            let mut bench = self.bench(&label, nth);
            let rule = Rule::on(operation).path("/db").fault(fault).nth(at);
            let rule = bench.faults.add(rule);
            bench.run(STEPS);
            fired += bench.faults.fired_by(rule);
            bench.finish();
        }
        assert!(fired > 0, "{operation:?}: none failed");
    }
}

#[test]
fn sweeps_have_every_threshold_and_every_frequency_of_collection() {
    let runs: Vec<Separation> = (0..TREATMENTS).map(treatment).collect();
    for bytes in [1, 64, 512] {
        for collection in [Collection::Off, Collection::Eager, Collection::Starved] {
            let is_one = |run: &Separation| run.bytes == bytes && run.collection == collection;
            assert!(runs.iter().any(is_one), "{bytes}, {collection:?}: {runs:?}");
        }
    }
    assert!(runs.contains(&Separation::OFF) && runs.contains(&USUAL), "{runs:?}");
}

#[test]
fn panic_of_a_merge_operator_loses_nothing() {
    let mut sweep = Sweep::new(model::manual());
    let mut panicked = 0;
    for (nth, at) in sweep.failures(12, |dry| dry.calls) {
        let mut bench = sweep.bench(&format!("call {at} panics, {:?}", treatment(nth)), nth);
        bench.hooks.fragile.arm(at);
        bench.run(STEPS);
        panicked += bench.hooks.fragile.panicked();
        bench.finish();
    }
    assert!(panicked > 0, "no call panicked");
}

#[test]
fn an_error_of_the_log_loses_nothing() {
    let mut sweep = Sweep::new(model::manual());
    sweep.fail(Operation::LogAppend, Fault::Io, 8);
    sweep.fail(Operation::LogAppend, Fault::ShortAppend, 8);
    sweep.fail(Operation::LogSync, Fault::Io, 10);
    sweep.fail(Operation::CreateLog, Fault::NoSpace, 6);
    sweep.fail(Operation::LogFinish, Fault::Io, 6);
    let mut through = Sweep::new(DbOptions { log_write_through: true, ..model::manual() });
    through.fail(Operation::LogWriteThrough, Fault::Io, 10);
    through.fail(Operation::LogSync, Fault::Io, 4);
}

#[test]
fn an_error_of_a_table_or_the_manifest_loses_nothing() {
    let mut sweep = Sweep::new(model::manual());
    sweep.fail(Operation::Create, Fault::NoSpace, 10);
    sweep.fail(Operation::Append, Fault::ShortAppend, 10);
    sweep.fail(Operation::Sync, Fault::Io, 12);
    sweep.fail(Operation::SyncDir, Fault::Io, 10);
    sweep.fail(Operation::Rename, Fault::Io, 8);
}

#[test]
fn an_error_of_reading_or_removing_loses_nothing() {
    let mut sweep = Sweep::new(model::manual());
    sweep.fail(Operation::Open, Fault::Io, 8);
    sweep.fail(Operation::Remove, Fault::Io, 8);
    sweep.fail(Operation::List, Fault::Io, 4);
    sweep.fail(Operation::Stat, Fault::Io, 4);
}

/// Lets every read of files with the suffix fail, under a treatment of large values. Returns the
/// number of look-ups that failed.
fn fail_reads(suffix: &str, separation: Separation) -> u32 {
    let label = format!("failed reads of {suffix}, {separation:?}");
    let mut bench = Bench::separated(&label, 5, model::manual(), separation);
    bench.run(40);
    let families = model::FAMILIES.map(|name| bench.db().family(name).unwrap());
    families.iter().for_each(|cf| bench.db().flush(cf).unwrap());
    bench.db.take().unwrap().close().unwrap();
    bench.db =
        Some(model::open_over(Arc::clone(&bench.fs), model::manual(), &bench.hooks).unwrap());
    bench.faults.add(Rule::on_any(&[Operation::Read, Operation::Open]).path(suffix));
    let mut errors = 0;
    for n in 0..120 {
        let key = format!("key{n:04}").into_bytes();
        if let Err(error) = bench.db().get(&key) {
            errors += 1;
            assert_eq!(error.kind(), ErrorKind::Io, "{label}: {error}");
            assert!(error.to_string().contains(suffix), "{label}: {error}");
        }
    }
    bench.faults.clear();
    bench.finish();
    errors
}

#[test]
fn a_failed_read_is_told_and_later_reads_are_right() {
    // Every threshold is among them.
    for separation in (0..4).map(treatment) {
        let errors = fail_reads(".sst", separation);
        assert!(errors > 20, "{errors} reads failed, {separation:?}");
        let errors = fail_reads(".vsst", separation);
        assert_eq!(errors > 0, separation.bytes > 0, "{errors} failed, {separation:?}");
    }
}

/// A rule by which every operation that takes space fails.
fn full_device() -> Rule {
    let operations = [
        Operation::Create,
        Operation::Append,
        Operation::Flush,
        Operation::CreateLog,
        Operation::LogAppend,
        Operation::LogFinish,
    ];
    Rule::on_any(&operations).fault(Fault::NoSpace)
}

#[test]
fn writes_resume_when_a_full_device_has_space_again() {
    for seed in 0..12 {
        let separation = treatment(seed);
        let label = format!("full device, seed {seed}, {separation:?}");
        let mut bench = Bench::separated(&label, seed, model::manual(), separation);
        bench.run(10 + seed as usize * 3);
        bench.faults.add(full_device());
        if seed % 3 == 0 {
            bench
                .faults
                .add(Rule::on_any(&[Operation::LogSync, Operation::Sync]).fault(Fault::NoSpace));
        }
        let mut refused = 0;
        for _ in 0..12 {
            let op = bench.script.write(&bench.model);
            let mut after = bench.model.clone();
            after.apply(&op);
            match bench.perform(&op) {
                Ok(()) => bench.model = after,
                Err(error) => {
                    refused += 1;
                    bench.named("write", &error);
                    let synced = matches!(op, Op::Write { sync: true, .. });
                    bench.compare("a full device", synced.then_some(&after));
                }
            }
            // Reads go on, also after a failed step.
            if let Err(error) = bench.db().step_background() {
                bench.named("step", &error);
            }
            bench.compare("a step on a full device", None);
        }
        assert!(refused > 0, "seed {seed}: the device was not full");
        bench.faults.clear();
        // Without a resume or reopen, background work notices the end of the fault by itself.
        while bench.db().step_background().unwrap() {}
        let synced = WriteOptions::synced();
        let cf = bench.db().default_family().clone();
        bench
            .db()
            .delete_with(&cf, b"probe", &synced)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        bench.survivors = vec![bench.model.hash];
        bench.compare_survivors("space again", None, seed);
        assert_eq!(bench.db().property(&cf, "archipelago.health").as_deref(), Some("healthy"));
        bench.run(20);
        bench.finish();
    }
}

/// Collects background errors.
#[derive(Default)]
struct Errors(Mutex<Vec<(String, Error)>>);

impl EventListener for Errors {
    fn on_event(&self, event: &Event) {
        if let Event::BackgroundError { job, error } = event {
            self.0.lock().push((job.clone(), error.clone()));
        }
    }
}

fn open_listening(fs: &FaultFs, errors: &Arc<Errors>, background: BackgroundMode) -> Db {
    let mut listeners = Listeners::default();
    listeners.add(Arc::clone(errors) as Arc<dyn EventListener>);
    let families = [("default".to_owned(), model::family_options("default"))].into_iter().collect();
    let fs = Arc::new(fs.clone());
    let components = Components { fs, families, listeners, background, ..Components::default() };
    Db::open_with("/db", model::manual(), components).unwrap()
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let clock = SystemClock::shared();
    let start = clock.now_ns();
    while !done() {
        assert!(clock.now_ns() - start < 120_000_000_000, "{what} did not happen");
        clock.sleep(Duration::from_millis(5));
    }
}

#[test]
fn failing_background_work_is_reported_and_blocks_no_writer() {
    let faults = FaultFs::new(Arc::new(TestDisk::new()), 1);
    let errors = Arc::new(Errors::default());
    let db = open_listening(&faults, &errors, BackgroundMode::Threads);
    faults.add(Rule::on(Operation::Create).path(".sst"));
    let (mut written, mut refused) = (0u32, None);
    while refused.is_none() {
        match db.put(format!("{written:06}").as_bytes(), &[b'v'; 500]) {
            Ok(()) => written += 1,
            Err(error) => refused = Some(error),
        }
        assert!(written < 100_000, "writes never stop");
    }
    let refused = refused.unwrap();
    assert!(refused.to_string().contains(".sst"), "{refused}");
    assert!(db.statistics().get(Ticker::BackgroundErrors) > 0);
    let told = errors.0.lock().clone();
    assert!(
        told.iter().any(|(job, error)| job.contains("flush") && error.to_string().contains(".sst"))
    );
    let text = db.stats_text();
    assert!(text.contains("failing") && text.contains(".sst"), "{text}");
    for n in 0..written {
        assert!(db.get(format!("{n:06}").as_bytes()).unwrap().is_some());
    }
    faults.clear();
    eventually("a write after the cause is gone", || db.put(b"later", b"").is_ok());
    eventually("health", || {
        db.property(db.default_family(), "archipelago.health").as_deref() == Some("healthy")
    });
    db.close().unwrap();
    let db = open_listening(&faults, &errors, BackgroundMode::Threads);
    for n in 0..written {
        assert!(db.get(format!("{n:06}").as_bytes()).unwrap().is_some(), "{n}");
    }
}

#[test]
fn random_errors_under_many_writers_lose_nothing_acknowledged() {
    let disk = TestDisk::new();
    let faults = FaultFs::new(Arc::new(disk.clone()), 2);
    let errors = Arc::new(Errors::default());
    let db = open_listening(&faults, &errors, BackgroundMode::Threads);
    let written = Mutex::new(Vec::new());
    let write = |thread: u32, count: u32| {
        for n in 0..count {
            let key = format!("{:02}-{thread}-{n:05}", n % 16);
            let options = WriteOptions { sync: n % 50 == 0, ..WriteOptions::default() };
            match db.put_with(db.default_family(), key.as_bytes(), &[b'v'; 200], &options) {
                Ok(()) => written.lock().push(key),
                Err(error) if error.kind() == ErrorKind::ReadOnly => drop(db.resume()),
                Err(error) => assert!(error.to_string().contains("/db"), "{error}"),
            }
        }
    };
    let operations = [
        Operation::Create,
        Operation::Append,
        Operation::Sync,
        Operation::SyncDir,
        Operation::Rename,
        Operation::CreateLog,
        Operation::LogAppend,
        Operation::LogSync,
        Operation::LogFinish,
        Operation::Read,
    ];
    faults.add(Rule::on_any(&operations).when(When::Chance(0.01)));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let write = &write;
            scope.spawn(move || write(thread, 700));
        }
    });
    faults.clear();
    assert!(faults.fired_total() > 0);
    // A job that met an error before the faults ended may report it later; it is tried again.
    eventually("writes resume", || db.resume().is_ok());
    write(9, 100);
    eventually("background work succeeds again", || db.wait_for_background().is_ok());
    let written = std::mem::take(&mut *written.lock());
    let all_there = |db: &Db, how: &str| {
        for key in &written {
            assert!(db.get(key.as_bytes()).unwrap().is_some(), "{how}: {key} of {}", written.len());
        }
    };
    all_there(&db, "running");
    let killed = FaultFs::new(Arc::new(disk.kill_clone()), 0);
    all_there(&open_listening(&killed, &errors, BackgroundMode::Threads), "killed");
    db.close().unwrap();
    all_there(&open_listening(&faults, &errors, BackgroundMode::Threads), "reopened");
}

#[test]
fn failed_read_of_a_large_expiring_value_is_tried_again() {
    let value = |n: usize| vec![n as u8; 100_000];
    let mut failed = 0;
    for nth in 1.. {
        let faults = FaultFs::new(Arc::new(TestDisk::new()), 3);
        let errors = Arc::new(Errors::default());
        let db = open_listening(&faults, &errors, BackgroundMode::Manual);
        let (cf, options) = (db.default_family(), WriteOptions::default());
        faults.add(Rule::on(Operation::Read).path(".sst").nth(nth));
        for n in 0..8 {
            let key = format!("key{}", n % 4).into_bytes();
            db.put_expiring(cf, &key, &value(n), u64::MAX, &options).unwrap();
            let _ = db.flush(cf);
        }
        while db.step_background().unwrap_or(true) {}
        let fired = faults.fired_total() > 0;
        faults.clear();
        for (job, error) in &*errors.0.lock() {
            assert_eq!(error.kind(), ErrorKind::Io, "read {nth}: {job}: {error}");
        }
        db.compact_range(cf, &KeyRange::all()).unwrap();
        db.wait_for_background().unwrap();
        assert_eq!(db.property(cf, "archipelago.health").as_deref(), Some("healthy"));
        for n in 4..8 {
            let found = db.get(format!("key{}", n - 4).as_bytes()).unwrap();
            assert!(found.as_deref() == Some(&value(n)[..]), "read {nth}: key{}", n - 4);
        }
        db.put(b"later", b"write").unwrap();
        if !fired {
            break;
        }
        failed += usize::from(!errors.0.lock().is_empty());
    }
    assert!(failed >= 4, "{failed} failed reads met a background job");
}

/// A database whose fault point `point` fails as often as the counter demands.
fn open_armed(disk: &TestDisk, point: &'static str, armed: &Arc<Mutex<u32>>) -> Result<Db> {
    let count = Arc::clone(armed);
    let fault_point: FaultPoint = Arc::new(move |name| {
        if name == point && *count.lock() > 0 {
            *count.lock() -= 1;
            return Err(Error::new(ErrorKind::Io, format!("{name} of /db")));
        }
        Ok(())
    });
    let families = [("default".to_owned(), model::family_options("default"))].into_iter().collect();
    let fs = Arc::new(disk.clone());
    let fault_point = Some(fault_point);
    let components = Components { fs, families, fault_point, ..stepped() };
    Db::open_with("/db", model::manual(), components)
}

/// Writes a hundred keys, and steps background work whether it fails or not.
fn fill(db: &Db, point: &str) {
    for n in 0..100u32 {
        while let Err(error) = db.put(format!("{n:04}").as_bytes(), &[b'v'; 300]) {
            let waits = error.kind() == ErrorKind::Busy || error.to_string().contains(point);
            assert!(waits, "{error}");
            let _ = db.step_background();
        }
    }
}

/// Writes a table that has nothing left for a reader.
fn drop_expired(db: &Db) {
    let (cf, options) = (db.default_family(), Default::default());
    let _ = db.put_expiring(cf, b"expired", b"long ago", 1, &options);
    let _ = db.flush(cf);
}

#[test]
fn a_step_that_fails_before_its_install_leaves_nothing_behind() {
    let points = [
        "flush.shard",
        "flush.before_install",
        "compaction.before_install",
        "drop.before_install",
        "resume.before_install",
        "recovery.before_install",
    ];
    for point in points {
        let (disk, armed) = (TestDisk::new(), Arc::new(Mutex::new(0)));
        let mut db = open_armed(&disk, point, &armed).unwrap();
        fill(&db, point);
        *armed.lock() = 1;
        fill(&db, point);
        if point.starts_with("recovery") {
            drop(db);
            let error = open_armed(&disk, point, &armed).unwrap_err();
            assert!(error.to_string().contains(point), "{error}");
            db = open_armed(&disk, point, &armed).unwrap();
        } else {
            let _ = db.flush(db.default_family());
            drop_expired(&db);
            let _ = db.wait_for_background();
            let _ = db.resume();
        }
        assert_eq!(*armed.lock(), 0, "{point} was not reached");
        db.resume().unwrap();
        db.wait_for_background().unwrap();
        for n in 0..100u32 {
            assert!(db.get(format!("{n:04}").as_bytes()).unwrap().is_some(), "{point}: {n}");
        }
        let report = db.verify(|_, _| {}).unwrap();
        let tables = disk.list(std::path::Path::new("/db")).unwrap();
        let tables = tables.iter().filter(|entry| entry.name.ends_with(".sst")).count();
        assert_eq!(tables as u64, report.files, "{point}: tables that nobody needs are left");
    }
}

#[test]
fn half_appended_group_is_void_once_the_log_goes_on() {
    let disk = TestDisk::new();
    let faults = FaultFs::new(Arc::new(disk), 3);
    let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
    let config = wal::LogConfig {
        database_id: [7; 16],
        segment_bytes: 1 << 20,
        seed: 1,
        manifest: Default::default(),
    };
    let path = |no: u64| std::path::PathBuf::from(format!("/{no:06}.log"));
    let mut log =
        wal::LogWriter::create(Arc::clone(&fs), config, &path(1), FileNo(1), None, None).unwrap();
    let mut batch = wal::WriteBatch::new();
    batch.put_cf(archipelago_base::CfId(0), b"key", b"value");
    let entry = |seq: u64| wal::Entry {
        first_seq: SeqNo(seq),
        payload: batch.data(),
        payload_crc: archipelago_base::checksum::crc(batch.data()),
    };
    log.append(&entry(1)).unwrap();
    // A group of 50 goes to the file in two appends; the second fails.
    faults.add(Rule::on(Operation::LogAppend).nth(2).fault(Fault::ShortAppend));
    let group: Vec<_> = (2..52).map(entry).collect();
    log.append_many(&group).unwrap_err();
    // The sequence numbers of the failed group are given out again.
    log.rotate(&path(2), FileNo(2), None).unwrap();
    log.append(&entry(2)).unwrap();
    let segments = [1, 2].map(|no| wal::SegmentFile { no: FileNo(no), path: path(no) });
    let chain = wal::LogChain {
        segments: &segments,
        floor: FileNo(0),
        mode: RecoveryMode::Strict,
        database_id: [7; 16],
    };
    let mut seen = Vec::new();
    wal::recover(&*fs, &chain, &mut |first, _| {
        seen.push(first.0);
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [1, 2]);
}
