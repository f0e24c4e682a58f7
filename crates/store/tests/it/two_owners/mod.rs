//! Two owners of one volume under seeded faults.
//!
//! A run performs random operations. Some of them meet a fault of the pool, and some are
//! interrupted at one of their calls. An interruption kills the process, takes the power of all
//! machines, or lets another process take the volume over while the operation goes on. After each
//! take-over the new owner reads everything.
//!
//! The run checks:
//! 1. An operation that succeeded is found by every later owner. Unsynced appends may be missing
//!    after power loss.
//! 2. An operation that failed has its effect as a whole or not at all, on all of its paths; of an
//!    append, a prefix.
//! 3. Nothing changes after a new owner has read it: the operations of older owners fail and have
//!    no effect.
//! 4. An operation of an owner that has met no fault succeeds.
//! 5. A take-over without faults leaves no strays in the pool.
//!
//! Each switch of [`Sabotage`] leaves out a step, and the run must notice it.

mod model;
mod process;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_base::random::Rng;
use archipelago_env::FileSystem;
use archipelago_store::memory::{Fault, MemoryPool, PoolCall};
use archipelago_store::{Sabotage, StoreFs};
use parking_lot::Mutex;

use self::model::{Change, Loss, Model, OWN_BYTES};
use self::process::{DIR, Operation, Payload, Process};
use crate::owner::Owner;

/// Number of seeds of the run without sabotage.
const SEEDS: u64 = 1_000;
/// Number of steps of a run.
const STEPS: usize = 40;
/// Number of the call of an operation at which it is interrupted, at most.
const CALLS_MAX: u64 = 8;

/// Event that interrupts an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interruption {
    Kill,
    PowerLoss,
    TakeOver,
}

/// State after an interruption.
#[derive(Debug)]
enum Interrupted {
    /// The pool after all processes died.
    Died(MemoryPool, Loss),
    /// The new owner, or the reason why it could not take over.
    TakenOver(Result<Owner, String>),
}

/// How an operation meets the pool.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    None,
    Fault,
    Interruption(Interruption),
}

struct Run {
    rng: Rng,
    sabotage: Sabotage,
    model: Model,
    current: Process,
    /// Processes that lost the volume and do not know it.
    stale: Vec<Process>,
    /// Number that makes names and bytes unique.
    next: u64,
    /// Last operations, for the message of a failure.
    history: Vec<String>,
}

/// Runs `seed`, and returns what went wrong.
fn run(seed: u64, sabotage: Sabotage) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let pool = MemoryPool::sabotaged(seed, sabotage);
    let owner = Owner::of_new_volume(pool, sabotage, rng.u64(..u64::MAX));
    owner.fs.create_dir_all(DIR.as_ref()).unwrap();
    let mut run = Run {
        rng,
        sabotage,
        model: Model::default(),
        current: Process::new(owner),
        stale: Vec::new(),
        next: 0,
        history: Vec::new(),
    };
    let outcome = (0..STEPS).try_for_each(|_| run.step()).and_then(|()| run.take_over());
    outcome.map_err(|problem| format!("seed {seed}: {problem}\n  {}", run.history.join("\n  ")))
}

impl Run {
    fn step(&mut self) -> Result<(), String> {
        match self.rng.u8(..20) {
            0 => self.take_over(),
            1 => self.die(Loss::Kill),
            2 => self.die(Loss::Power),
            3..6 if !self.stale.is_empty() => self.operate_stale(),
            6..8 => self.read_settled(),
            _ => self.operate(),
        }
    }

    fn note(&mut self, text: String) {
        self.history.push(text);
    }

    fn unique(&mut self, len_max: usize) -> Payload {
        self.next += 1;
        let mut bytes = self.next.to_le_bytes().to_vec();
        bytes.resize(OWN_BYTES + self.rng.usize(..len_max), self.next as u8);
        Payload(bytes)
    }

    fn new_path(&mut self, suffix: &str) -> String {
        self.next += 1;
        format!("{DIR}/{:06}.{suffix}", self.next)
    }

    /// A path whose bytes are settled; `None` if there is none.
    fn settled_path(&mut self) -> Option<String> {
        let settled = self.model.settled();
        if settled.is_empty() {
            return None;
        }
        Some(settled[self.rng.usize(..settled.len())].0.to_owned())
    }

    fn choose(&mut self) -> Option<Operation> {
        let operation = match self.rng.u8(..22) {
            0..3 => {
                let path = format!("{DIR}/CURRENT{}", self.rng.u8(..3));
                self.model.certain(&path)?;
                // The larger ones do not fit into a record.
                let len_max = if self.rng.u8(..4) == 0 { 9_000 } else { 200 };
                Operation::Replace { path, bytes: self.unique(len_max) }
            }
            3..5 => {
                Operation::WriteTable { path: self.new_path("sst"), bytes: self.unique(20_000) }
            }
            5 => Operation::BeginTable { path: self.new_path("sst"), bytes: self.unique(20_000) },
            6 => Operation::EndTable,
            7..9 => Operation::Remove { path: self.settled_path()? },
            9 => {
                let from = self.settled_path()?;
                let other = self.settled_path().filter(|to| *to != from && self.rng.bool());
                // The model must know whether both paths are names of one file.
                let other = other.filter(|to| self.model.knows_whether_one_file(&from, to));
                // A renaming may replace a file.
                let to = other.unwrap_or_else(|| self.new_path("sst"));
                Operation::Rename { from, to }
            }
            10 if self.rng.bool() => Operation::RemoveWhileRead { path: self.settled_path()? },
            10 => Operation::Link { from: self.settled_path()?, to: self.new_path("sst") },
            11 => Operation::BeginLog { path: self.new_path("log") },
            12..16 => Operation::AppendLog { bytes: self.unique(3_000) },
            16 => Operation::SyncLog,
            17 => Operation::FinishLog,
            18 => Operation::BeginManifest {
                path: self.new_path("manifest"),
                bytes: self.unique(3_000),
            },
            19..21 => Operation::AppendManifest { bytes: self.unique(3_000) },
            _ => Operation::ReleaseStrays,
        };
        Some(operation)
    }

    /// Performs an operation of the owner.
    fn operate(&mut self) -> Result<(), String> {
        let Some(operation) = self.choose().filter(|it| self.current.can(it)) else {
            return Ok(());
        };
        let disturbance = match self.rng.u8(..10) {
            0..2 => Disturbance::Fault,
            2 => Disturbance::Interruption(Interruption::Kill),
            3 => Disturbance::Interruption(Interruption::PowerLoss),
            4 => Disturbance::Interruption(Interruption::TakeOver),
            _ => Disturbance::None,
        };
        self.note(format!("{disturbance:?}: {operation:?}"));
        let changes = self.current.changes(&operation, &self.model);
        self.model.begin(&changes);
        match disturbance {
            Disturbance::None => {
                let outcome = self.current.perform(&operation);
                outcome.map_err(|error| format!("failed without a fault: {error}"))?;
                self.model.succeed(&changes);
                Ok(())
            }
            Disturbance::Fault => self.operate_with_faults(&operation, &changes),
            Disturbance::Interruption(kind) => self.interrupt(kind, &operation, &changes),
        }
    }

    fn inject(&mut self) {
        let pool = self.current.owner.pool.clone();
        for _ in 0..self.rng.usize(1..4) {
            let call = PoolCall::ALL[self.rng.usize(..PoolCall::ALL.len())];
            let fault = [Fault::Refuse, Fault::LoseAnswer, Fault::EndExtent][self.rng.usize(..3)];
            pool.inject(call, self.rng.u64(1..4), fault);
        }
        // Waits for a log are the most frequent calls, and the most delicate ones.
        if self.rng.bool() {
            pool.inject(PoolCall::LogWait, 1, Fault::EndExtent);
        }
    }

    fn operate_with_faults(
        &mut self,
        operation: &Operation,
        changes: &[Change],
    ) -> Result<(), String> {
        self.inject();
        let outcome = self.current.perform(operation);
        self.current.owner.pool.clear_faults();
        match outcome {
            Ok(()) => {
                self.model.succeed(changes);
                Ok(())
            }
            Err(error) => {
                self.note(format!("  failed: {error}"));
                self.take_over()
            }
        }
    }

    /// Performs an operation that is interrupted at one of its calls.
    fn interrupt(
        &mut self,
        kind: Interruption,
        operation: &Operation,
        changes: &[Change],
    ) -> Result<(), String> {
        let (at, seed, identities) =
            (self.rng.u64(1..=CALLS_MAX), self.rng.u64(..), self.rng.u64(..));
        let (pool, sabotage) = (self.current.owner.pool.clone(), self.sabotage);
        let left = interrupt_at(&pool, at, move |pool| match kind {
            Interruption::Kill => Interrupted::Died(pool.kill_clone(seed), Loss::Kill),
            Interruption::PowerLoss => Interrupted::Died(pool.crash_clone(seed), Loss::Power),
            Interruption::TakeOver => {
                let owner = Owner::take_over(pool.clone(), sabotage, identities);
                Interrupted::TakenOver(owner.map_err(|error| error.to_string()))
            }
        });
        let outcome = self.current.perform(operation);
        pool.clear_on_call();
        let left = left.lock().take();
        match left {
            None => {
                outcome.map_err(|error| format!("failed without a fault: {error}"))?;
                self.model.succeed(changes);
                Ok(())
            }
            Some(Interrupted::Died(pool, loss)) => self.open(pool, loss),
            Some(Interrupted::TakenOver(owner)) => {
                let owner = owner.map_err(|error| format!("no take-over: {error}"))?;
                self.note(format!("  taken over, then {outcome:?}"));
                if outcome.is_ok() {
                    self.model.succeed(changes);
                }
                self.replace(owner, Loss::Kill)
            }
        }
    }

    /// Performs an operation of a process that lost the volume. It must fail.
    fn operate_stale(&mut self) -> Result<(), String> {
        let index = self.rng.usize(..self.stale.len());
        let Some(operation) = self.choose().filter(|it| self.stale[index].can(it)) else {
            return Ok(());
        };
        self.note(format!("stale {index}: {operation:?}"));
        let outcome = self.stale[index].perform(&operation);
        // A table that is only begun may be buffered, and a log may have nothing to acknowledge.
        let may_do_nothing = matches!(
            operation,
            Operation::BeginTable { .. } | Operation::SyncLog | Operation::FinishLog
        );
        if outcome.is_ok() && !may_do_nothing {
            return Err(format!("a process that lost the volume did {operation:?}"));
        }
        Ok(())
    }

    fn read_settled(&mut self) -> Result<(), String> {
        for (path, expected) in self.model.settled() {
            let actual = self.current.read(path);
            let actual = actual.map_err(|error| format!("{path} cannot be read: {error}"))?;
            if actual.as_deref() != Some(expected) {
                return Err(format!("{path} has other bytes than were written"));
            }
        }
        Ok(())
    }

    fn die(&mut self, loss: Loss) -> Result<(), String> {
        self.note(format!("all die by {loss:?}"));
        let (pool, seed) = (&self.current.owner.pool, self.rng.u64(..));
        let pool = match loss {
            Loss::Kill => pool.kill_clone(seed),
            Loss::Power => pool.crash_clone(seed),
        };
        self.open(pool, loss)
    }

    /// Continues on `pool`, on which no earlier process runs.
    fn open(&mut self, pool: MemoryPool, loss: Loss) -> Result<(), String> {
        let owner = Owner::take_over(pool, self.sabotage, self.rng.u64(..));
        let owner = owner.map_err(|error| format!("no open after {loss:?}: {error}"))?;
        self.replace(owner, loss)?;
        self.stale.clear();
        Ok(())
    }

    /// Another process takes the volume over, at times after attempts that met faults.
    fn take_over(&mut self) -> Result<(), String> {
        self.note("take-over".to_owned());
        let pool = self.current.owner.pool.clone();
        if self.rng.u8(..3) == 0 {
            self.inject();
            let attempt = Owner::take_over(pool.clone(), self.sabotage, self.rng.u64(..));
            pool.clear_faults();
            self.note(format!("  attempt with faults: {:?}", attempt.as_ref().map(|_| ())));
            if let Ok(owner) = attempt {
                self.stale.push(Process::new(owner));
            }
        }
        let owner = Owner::take_over(pool, self.sabotage, self.rng.u64(..));
        self.replace(owner.map_err(|error| format!("no take-over: {error}"))?, Loss::Kill)
    }

    /// Makes `owner` the current one, which reads everything.
    fn replace(&mut self, owner: Owner, loss: Loss) -> Result<(), String> {
        let old = std::mem::replace(&mut self.current, Process::new(owner));
        self.stale.push(old);
        let mut found = BTreeMap::new();
        for path in self.model.paths() {
            let actual = self.current.read(&path);
            let actual = actual.map_err(|error| format!("{path} cannot be read: {error}"))?;
            found.insert(path, actual);
        }
        self.model.check_whole(&found, loss)?;
        for (path, actual) in found {
            self.model.settle(&path, actual, loss)?;
        }
        self.check_pool()
    }

    /// Checks that all names are known, and that the pool has nothing that has no name.
    fn check_pool(&self) -> Result<(), String> {
        let names = names(&self.current.owner.fs);
        let settled: Vec<_> = self.model.settled().iter().map(|file| file.0.to_owned()).collect();
        if names != settled {
            return Err(format!("the files are {names:?}, not {settled:?}"));
        }
        let pool = &self.current.owner.pool;
        let (blobs, logs) = (pool.blob_list().len(), pool.log_list().len());
        // The namespace is a log without a name.
        if blobs + logs > names.len() + 1 {
            return Err(format!("{blobs} blobs and {logs} logs belong to {} files", names.len()));
        }
        Ok(())
    }
}

fn names(fs: &StoreFs) -> Vec<String> {
    let entries = fs.list(DIR.as_ref()).unwrap();
    entries.into_iter().map(|entry| format!("{DIR}/{}", entry.name)).collect()
}

/// Runs `interruption` before the `at`th call that reaches `pool` from now on, and puts what it
/// left into the returned place.
fn interrupt_at(
    pool: &MemoryPool,
    at: u64,
    interruption: impl Fn(&MemoryPool) -> Interrupted + Send + Sync + 'static,
) -> Arc<Mutex<Option<Interrupted>>> {
    let left = Arc::new(Mutex::new(None));
    let place = Arc::clone(&left);
    let (calls, is_inside) = (Mutex::new(0), AtomicBool::new(false));
    pool.on_call(Arc::new(move |pool, _| {
        // The calls of the interruption itself are not counted.
        if is_inside.load(Ordering::SeqCst) {
            return;
        }
        let mut calls = calls.lock();
        *calls += 1;
        if *calls == at {
            is_inside.store(true, Ordering::SeqCst);
            *place.lock() = Some(interruption(pool));
            is_inside.store(false, Ordering::SeqCst);
        }
    }));
    left
}

/// Whether a seed notices `sabotage`.
fn is_noticed(sabotage: Sabotage) -> bool {
    (0..SEEDS).any(|seed| run(seed, sabotage).is_err())
}

#[test]
fn two_owners_lose_and_mix_nothing() {
    for seed in 0..SEEDS {
        run(seed, Sabotage::default()).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

#[test]
fn missing_fence_is_noticed() {
    assert!(is_noticed(Sabotage { no_fence: true, ..Sabotage::default() }));
}

#[test]
fn unrecorded_layout_is_noticed() {
    assert!(is_noticed(Sabotage { unrecorded_layout: true, ..Sabotage::default() }));
}

#[test]
fn ignored_pending_blob_is_noticed() {
    assert!(is_noticed(Sabotage { pending_ignored: true, ..Sabotage::default() }));
}

#[test]
fn early_release_is_noticed() {
    assert!(is_noticed(Sabotage { early_release: true, ..Sabotage::default() }));
}

#[test]
fn torn_rename_is_noticed() {
    assert!(is_noticed(Sabotage { torn_rename: true, ..Sabotage::default() }));
}
