//! The executor seam of the engine, which sends compactions and garbage collections away.
//!
//! A call of the engine is one attempt, whose file numbers serve nobody else. The call hands the
//! job to [`Owner`] and waits. The engine checks what comes back, opens every file, and installs
//! it. A job that no executor has begun runs on the calling thread instead, under the same numbers.
//! If an executor may have begun it, the call fails, and the engine plans the job again with other
//! numbers, which then runs here.
//!
//! Invariants:
//! 1. Numbers that an executor may have used are never used here.
//! 2. A call takes responsibility for outputs as soon as it returns them: the engine installs them,
//!    or its sweep removes them. So no executor removes them (docs/design/offload.md, rule 4).
//! 3. In a volume, the outputs have their names durably when the call returns them, and the blobs
//!    of every other attempt are given up ([`super::files`]).
//!
//! Thread-safety: many background threads call it at once. One lock guards the state machine.
//! Failure: while no scheduler or executor answers, jobs run here without a wait, except for one in
//! two seconds. Every job that runs here for such a reason is counted.
//! Cost: a thread of the engine waits for each job.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::compaction::job::CompactionSpec;
use archipelago_engine::executor::wire::{self, Message};
use archipelago_engine::executor::{JobExecutor, LocalExecutor, OwnerIdentity};
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::gc::job::GcSpec;
use archipelago_engine::job::spec::OutputSpec;
use archipelago_engine::job::{JobContext, JobOutput};
use archipelago_fabric::{Endpoints, Secret};
use parking_lot::{Condvar, Mutex};

use super::courier::{Courier, Outbox, Resident};
use super::files::{DIRECTORIES, JobFiles, PreparedJob, VolumeFiles, volumes_of};
use super::{PAYLOAD_BYTES_MAX, SCHEDULER};
use crate::ids::{NumberRange, OffloadDb, OwnerStamp, Token};
use crate::job::{JobKind, LocalWhy, Payload};
use crate::owner::{Owner, OwnerStep, OwnerTerms};
use crate::parcel;
use crate::wire::{Correspondent, OffloadMessage};

/// Time after which a waiting call looks whether its job was cancelled.
const LOOK: Duration = Duration::from_millis(50);
/// Time for which jobs run here, after no scheduler or executor was there.
const QUIET_NS: u64 = 2_000_000_000;

/// What leaves the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadMode {
    /// Everything stays in the process.
    #[default]
    Off,
    /// Compactions and garbage collections (the role of CaaS-LSM in O³-LSM §2.2).
    Compactions,
    /// Sealed memtables, which memory nodes hold and search ([`crate::shard_owner`]).
    Memtables,
}

/// How a database reaches its cluster.
#[derive(Clone, Debug, Default)]
pub struct OwnerSettings {
    /// Endpoints of the cluster's managers, one for each.
    pub managers: Vec<String>,
    /// What leaves the process.
    pub mode: OffloadMode,
    /// The cluster's secret.
    pub secret: Option<Secret>,
    /// Bytes of memtables at memory nodes at most; 0 for as many as the nodes have.
    pub memtable_bytes_max: u64,
    /// Bytes of the key-offset cache; 0 turns it off. `None` for the default of
    /// [`OwnerTerms`](crate::shard_owner::OwnerTerms).
    pub key_offset_cache_bytes: Option<u64>,
}

/// Counters of a database's jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadCounters {
    /// Jobs whose outputs came from executors.
    pub ran_away: u64,
    /// Bytes that executors read and wrote for these jobs.
    pub bytes_away: u64,
    /// Jobs that ran here although the mode sends them away, by [`LocalWhy::key`].
    pub ran_here: BTreeMap<&'static str, u64>,
    /// Jobs that failed because an executor may have begun them. The engine plans them again.
    pub planned_again: u64,
}

#[derive(Debug, Default)]
struct Tally {
    ran_away: AtomicU64,
    bytes_away: AtomicU64,
    ran_here: [AtomicU64; LocalWhy::ALL.len()],
    planned_again: AtomicU64,
    /// Jobs that the next calls run here, because they were planned again.
    here_next: AtomicU64,
}

/// What a waiting call learns.
#[derive(Debug)]
enum Ending {
    Output(Payload),
    Here { why: LocalWhy, is_untouched: bool },
}

#[derive(Debug)]
struct Waiting {
    /// Numbers of the only attempt, until it is prepared.
    numbers: Option<NumberRange>,
    ending: Option<Ending>,
}

#[derive(Debug)]
struct OwnerState {
    machine: Owner,
    waiting: BTreeMap<u64, Waiting>,
}

/// The owner that the database is now, and the calls that wait.
struct Desk {
    state: Mutex<OwnerState>,
    ended: Condvar,
    clock: Arc<dyn Clock>,
}

/// Sends jobs of a database away.
pub struct OffloadExecutor {
    settings: OwnerSettings,
    /// The volume with the database, unless it lies in a directory.
    volume: Option<VolumeFiles>,
    clock: Arc<dyn Clock>,
    tally: Tally,
    /// Time until which jobs run here.
    quiet_ns: AtomicU64,
    link: OnceLock<Link>,
}

/// The connection of an open database.
struct Link {
    /// Ends before the desk.
    _courier: Courier,
    outbox: Outbox,
    desk: Arc<Desk>,
}

impl fmt::Debug for OffloadExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffloadExecutor").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// A job as the protocol sees it.
struct Ask {
    kind: JobKind,
    bytes: u64,
    needs: Vec<String>,
    numbers: NumberRange,
    files: JobFiles,
}

impl OffloadExecutor {
    /// An executor for one open of a database. It runs everything here until
    /// [`JobExecutor::owner_is`].
    #[must_use]
    pub fn new(settings: OwnerSettings) -> Arc<Self> {
        Self::over(settings, None)
    }

    /// As [`OffloadExecutor::new`], for a database in a volume. Its executors must reach the
    /// storage cluster ([`super::ExecutorSettings::volumes`]).
    #[must_use]
    pub fn in_volume(settings: OwnerSettings, volume: VolumeFiles) -> Arc<Self> {
        Self::over(settings, Some(volume))
    }

    fn over(settings: OwnerSettings, volume: Option<VolumeFiles>) -> Arc<Self> {
        let clock = SystemClock::shared();
        let (tally, quiet_ns, link) = (Tally::default(), AtomicU64::new(0), OnceLock::new());
        Arc::new(Self { settings, volume, clock, tally, quiet_ns, link })
    }

    /// The counters of this open.
    #[must_use]
    pub fn counters(&self) -> OffloadCounters {
        let of = |why: LocalWhy| {
            let count = self.tally.ran_here[why as usize].load(Ordering::Relaxed);
            (count > 0).then(|| (why.key(), count))
        };
        OffloadCounters {
            ran_away: self.tally.ran_away.load(Ordering::Relaxed),
            bytes_away: self.tally.bytes_away.load(Ordering::Relaxed),
            ran_here: LocalWhy::ALL.into_iter().filter_map(of).collect(),
            planned_again: self.tally.planned_again.load(Ordering::Relaxed),
        }
    }

    /// The counters as lines of the form `name:value`.
    #[must_use]
    pub fn facts(&self) -> String {
        let counters = self.counters();
        let mut text = format!(
            "offload_jobs_away:{}\noffload_bytes_away:{}\noffload_planned_again:{}\n",
            counters.ran_away, counters.bytes_away, counters.planned_again
        );
        for (why, count) in counters.ran_here {
            text += &format!("offload_here_{why}:{count}\n");
        }
        text
    }

    /// Connects as the owner of the database. Errors: those of starting threads.
    fn connect(&self, stamp: OwnerStamp) -> Result<Link> {
        let machine = Owner::new(stamp, OwnerTerms::default(), vec![SCHEDULER]);
        let state = Mutex::new(OwnerState { machine, waiting: BTreeMap::new() });
        let desk = Arc::new(Desk { state, ended: Condvar::new(), clock: Arc::clone(&self.clock) });
        let secret = self.settings.secret.clone();
        let endpoints = Arc::new(Endpoints::new().with_secret(secret));
        let outbox = Courier::outbox(Correspondent::Owner(stamp));
        let weak = Arc::downgrade(&desk);
        let resident: Weak<dyn Resident> = weak;
        let courier = Courier::start(&outbox, &self.settings.managers, &endpoints, resident)?;
        Ok(Link { _courier: courier, outbox, desk })
    }

    /// Runs a job elsewhere. `None` if it must run here, which the same numbers allow.
    fn send_away<T: Message>(
        &self,
        ask: Ask,
        spec: &T,
        context: &JobContext<'_>,
    ) -> Result<Option<JobOutput>> {
        let Some(link) = self.link.get() else { return Ok(None) };
        if self.settings.mode != OffloadMode::Compactions {
            return Ok(None);
        }
        if self.takes_turn_here() {
            return Ok(self.count_here(LocalWhy::Failed));
        }
        if self.clock.now_ns() < self.quiet_ns.load(Ordering::Relaxed) {
            return Ok(self.count_here(LocalWhy::Silent));
        }
        let (prepared, package) = match self.prepare(&ask, wire::encode(spec)?)? {
            Ok(prepared) => prepared,
            Err(why) => return Ok(self.count_here(why)),
        };
        let (job, messages) = link.desk.submit(ask, package);
        link.outbox.send(messages);
        let ending = link.desk.wait(job, context);
        link.outbox.send(link.desk.forget(job));
        match ending? {
            Ending::Output(returned) => {
                let output = prepared.accept(&returned)?;
                self.tally.ran_away.fetch_add(1, Ordering::Relaxed);
                let bytes = output.bytes_read + output.bytes_written;
                self.tally.bytes_away.fetch_add(bytes, Ordering::Relaxed);
                Ok(Some(output))
            }
            Ending::Here { why, is_untouched } => {
                if matches!(why, LocalWhy::Silent | LocalWhy::NoExecutor) {
                    let until_ns = self.clock.now_ns() + QUIET_NS;
                    self.quiet_ns.store(until_ns, Ordering::Relaxed);
                }
                if is_untouched {
                    prepared.unused();
                    return Ok(self.count_here(why));
                }
                // The owner gives up what an executor may have written.
                drop(prepared);
                Err(self.planned_again(why))
            }
        }
    }

    /// Prepares a job for an executor, or says why it runs here.
    fn prepare(
        &self,
        ask: &Ask,
        spec: Vec<u8>,
    ) -> Result<std::result::Result<(PreparedJob, Payload), LocalWhy>> {
        match PreparedJob::new(ask.files.clone(), spec, self.volume.as_ref()) {
            Ok((prepared, package)) if package.0.len() > PAYLOAD_BYTES_MAX => {
                prepared.unused();
                Ok(Err(LocalWhy::TooLarge))
            }
            Ok(ready) => Ok(Ok(ready)),
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Closed) => {
                Err(error)
            }
            Err(error) => {
                tracing::warn!(%error, "a job runs here, because its files cannot be granted");
                Ok(Err(LocalWhy::Files))
            }
        }
    }

    /// Counts a job that an executor may have begun. The engine plans it again after this error.
    fn planned_again(&self, why: LocalWhy) -> Error {
        self.tally.planned_again.fetch_add(1, Ordering::Relaxed);
        self.tally.here_next.fetch_add(1, Ordering::Relaxed);
        Error::new(
            ErrorKind::Busy,
            format!(
                "an offloaded job ended without outputs ({}): it is planned again and runs in this \
                 process",
                why.text()
            ),
        )
    }

    /// The names that an executor must have to run a job: those of the build, of the place of the
    /// files, and of operators and filters.
    fn needed_names(&self, named: [Option<&String>; 2]) -> Vec<String> {
        let place = match &self.volume {
            Some(volume) => volumes_of(&volume.cluster),
            None => DIRECTORIES.to_owned(),
        };
        let named = named.into_iter().flatten().cloned();
        [build_name(), place].into_iter().chain(named).collect()
    }

    /// Whether this call runs its job here in place of one that was planned again.
    fn takes_turn_here(&self) -> bool {
        let less = |turns: u64| turns.checked_sub(1);
        self.tally.here_next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn count_here(&self, why: LocalWhy) -> Option<JobOutput> {
        self.tally.ran_here[why as usize].fetch_add(1, Ordering::Relaxed);
        None
    }
}

fn numbers_of(output: &OutputSpec) -> NumberRange {
    NumberRange { first: output.file_numbers.first, count: output.file_numbers.count }
}

/// Name of the build, by its version and by those of specs and parcels.
pub(super) fn build_name() -> String {
    let (version, specs, parcels) = (env!("CARGO_PKG_VERSION"), wire::VERSION, parcel::VERSION);
    format!("build {version} with specs {specs} and parcels {parcels}")
}

impl JobExecutor for OffloadExecutor {
    fn name(&self) -> &str {
        "offload"
    }

    fn plans_again(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Busy
    }

    fn owner_is(&self, owner: &OwnerIdentity) -> Result<()> {
        if self.settings.mode != OffloadMode::Compactions {
            return Ok(());
        }
        let OwnerIdentity { database, epoch, token } = *owner;
        let stamp = OwnerStamp { db: OffloadDb(database), epoch, token: Token(token) };
        match self.link.set(self.connect(stamp)?) {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::internal("an executor of offloaded jobs has two owners")),
        }
    }

    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.flush(spec, context)
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let retention = &spec.retention;
        let named = [retention.merge_operator.as_ref(), retention.compaction_filter.as_ref()];
        let ask = Ask {
            kind: JobKind::Compaction,
            bytes: spec.input_bytes(),
            needs: self.needed_names(named),
            numbers: numbers_of(&spec.output),
            files: JobFiles::of_compaction(spec),
        };
        match self.send_away(ask, spec, context)? {
            Some(output) => Ok(output),
            None => LocalExecutor.compact(spec, context),
        }
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let ask = Ask {
            kind: JobKind::Gc,
            bytes: spec.inputs.iter().map(|input| input.meta.size_bytes).sum(),
            needs: self.needed_names([None, None]),
            numbers: numbers_of(&spec.output),
            files: JobFiles::of_gc(spec),
        };
        match self.send_away(ask, spec, context)? {
            Some(output) => Ok(output),
            None => LocalExecutor.gc(spec, context),
        }
    }
}

impl Desk {
    fn submit(&self, ask: Ask, spec: Payload) -> (u64, Vec<OffloadMessage>) {
        let now_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        let (kind, bytes) = (ask.kind, ask.bytes);
        let (job, steps) = state.machine.submit(now_ns, kind, bytes, ask.needs, spec);
        state.waiting.insert(job, Waiting { numbers: Some(ask.numbers), ending: None });
        let messages = self.step(&mut state, now_ns, steps);
        (job, messages)
    }

    /// Waits until a job has ended elsewhere, must run here, or was cancelled.
    fn wait(&self, job: u64, context: &JobContext<'_>) -> Result<Ending> {
        let mut state = self.state.lock();
        loop {
            context.check_cancelled()?;
            let waiting = state.waiting.get_mut(&job);
            if let Some(ending) = waiting.and_then(|waiting| waiting.ending.take()) {
                return Ok(ending);
            }
            self.ended.wait_for(&mut state, LOOK);
        }
    }

    /// Ends a job for the state machine, unless its outputs have ended it.
    fn forget(&self, job: u64) -> Vec<OffloadMessage> {
        let mut state = self.state.lock();
        state.waiting.remove(&job);
        let steps = state.machine.ran_here(job);
        self.step(&mut state, self.clock.now_ns(), steps)
    }

    /// Takes the steps of the state machine. Returns the messages to send.
    fn step(
        &self,
        state: &mut OwnerState,
        now_ns: u64,
        steps: Vec<OwnerStep>,
    ) -> Vec<OffloadMessage> {
        let mut messages = Vec::new();
        let mut left = std::collections::VecDeque::from(steps);
        while let Some(step) = left.pop_front() {
            match step {
                OwnerStep::Send { message, .. } => messages.push(message),
                OwnerStep::Prepare { job } => {
                    let waiting = state.waiting.get_mut(&job);
                    let numbers = waiting.and_then(|waiting| waiting.numbers.take());
                    match numbers {
                        Some(numbers) => {
                            left.extend(state.machine.prepared(now_ns, job, &[numbers]));
                        }
                        // Another life of the scheduler needs numbers that this call does not have.
                        None => self.end(state, job, LocalWhy::Failed, false),
                    }
                }
                OwnerStep::RunHere { job, why, is_untouched } => {
                    self.end(state, job, why, is_untouched);
                }
                OwnerStep::Check { at, output, .. } => {
                    if let Some(waiting) = state.waiting.get_mut(&at.job.number) {
                        waiting.ending = Some(Ending::Output(output));
                        self.ended.notify_all();
                    }
                    left.extend(state.machine.checked(now_ns, at, true));
                }
                // The engine reserved the numbers, and its sweep knows them.
                OwnerStep::Abandon { .. } => {}
            }
        }
        messages
    }

    fn end(&self, state: &mut OwnerState, job: u64, why: LocalWhy, is_untouched: bool) {
        if let Some(waiting) = state.waiting.get_mut(&job) {
            waiting.ending = Some(Ending::Here { why, is_untouched });
            self.ended.notify_all();
        }
    }
}

impl Resident for Desk {
    fn take(&self, messages: Vec<OffloadMessage>) -> Vec<OffloadMessage> {
        let now_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        let mut sent = Vec::new();
        for message in messages {
            let steps = state.machine.on_message(now_ns, SCHEDULER, message);
            sent.extend(self.step(&mut state, now_ns, steps));
        }
        sent
    }

    fn tick(&self) -> Vec<OffloadMessage> {
        let now_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        let steps = state.machine.on_timer(now_ns);
        self.step(&mut state, now_ns, steps)
    }
}
