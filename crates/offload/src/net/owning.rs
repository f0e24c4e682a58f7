//! The owner's implementation of the engine's [`JobExecutor`]: sends flushes, compactions and
//! garbage collections to executors.
//!
//! A call of the engine is one attempt, with file numbers of its own. The call hands the job to
//! [`OwnerCalls`] and waits. The engine then checks the output, opens every file, and installs it.
//! A job that no executor has begun runs on the calling thread instead, under the same numbers. If
//! an executor may have begun the job, the call fails. The engine plans the job again with other
//! numbers, and it then runs here. A flush that has failed in an executor first gets a second
//! attempt at another one, if no writer waits ([`crate::decide::after_failure`]). A job whose
//! scheduler ends or falls silent leaves again, through another scheduler that lives
//! ([`crate::decide::after_move`]). It runs here if none lives. A flush leaves only if memory nodes
//! hold all of its shards; its package then has their places.
//!
//! Invariants:
//! 1. Numbers that an executor may have used are never used here.
//! 2. Once a call has returned outputs, the engine is responsible for them: it installs them, or
//!    its sweep removes them. So no executor removes them (docs/design/offload.md, rule 4).
//! 3. A job takes a part of the database's rate limit along. The rate of this process's limiter is
//!    lower by that part until the call ends ([`super::rates`]).
//! 4. In a volume, the outputs have their names durably when the call returns them, and the blobs
//!    of every other attempt are given up ([`super::files`]).
//! 5. A job that leaves again has other file numbers and another grant. Its earlier attempt is
//!    abandoned, so late outputs of that attempt are discarded.
//!
//! Thread-safety: many background threads call the executor in parallel.
//! Failure: outputs that the engine refuses, or that cannot be named here, are not used: the job
//! runs here with other numbers. If a job finds no scheduler or no executor, all jobs run here for
//! two seconds without a request to a scheduler, and are counted under the same reason
//! ([`super::quiet`]). A flush runs here immediately if no executor has a slot left for this
//! database, unless it leaves again ([`crate::decide::needs_slot`]). It runs here after a second if
//! jobs of other databases hold all slots. Every job that runs here for such a reason is counted.
//! Cost: a thread of the engine waits for each job ([`super::owner_calls`]).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::compaction::job::CompactionSpec;
use archipelago_engine::executor::wire::{self, Message};
use archipelago_engine::executor::{
    JobExecutor, JobKind as EngineJobKind, LocalExecutor, OwnerIdentity,
};
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::gc::job::GcSpec;
use archipelago_engine::job::spec::OutputSpec;
use archipelago_engine::job::{JobContext, JobOutput, ShardRef};
use archipelago_engine::remote::ShardId;
use archipelago_fabric::Endpoints;

use super::counters::{AwayTimes, OffloadCounters, Tally};
use super::courier::{Couriers, Outboxes, Resident};
use super::files::{AcceptedOutput, DIRECTORIES, JobFiles, PreparedJob, VolumeFiles, volumes_of};
use super::moves::{JobInput, JobMoves, PlannedInputs};
use super::owner_calls::{CallParts, JobEnding, KINDS, OwnerCalls, kind_index};
use super::owner_settings::OwnerSettings;
use super::quiet::QuietTime;
use super::rates::RateDivider;
use super::retries::FlushRetries;
use super::runtime_parts::RuntimeParts;
use super::{PAYLOAD_BYTES_MAX, scheduler_order};
use crate::decide::{AttemptPlace, FailedFlush, MovedJob, after_failure, after_move, needs_slot};
use crate::failure::FailedAttempt;
use crate::ids::{NumberRange, OffloadDb, OwnerStamp, Token};
use crate::job::{BUILD, JobAsk, JobKind, LocalWhy, Payload};
use crate::owner::{Owner, OwnerTerms};
use crate::parcel::{self, JobImages};
use crate::shard_owner::RemoteShards;
use crate::wire::Correspondent;

/// Runs jobs of one open of a database at executors, or in this process.
pub struct OffloadExecutor {
    settings: OwnerSettings,
    /// The volume with the database, unless it lies in a directory.
    volume: Option<VolumeFiles>,
    /// Memtables of the same open at memory nodes.
    shards: Option<Arc<RemoteShards>>,
    clock: Arc<dyn Clock>,
    tally: Arc<Tally>,
    /// Number of next calls of each kind that run here, because a job was planned again.
    here_next: [AtomicU64; KINDS],
    /// Time for which jobs run here, because one found no scheduler or no executor.
    quiet: QuietTime,
    /// Flushes that have failed away.
    retries: FlushRetries,
    /// Jobs whose schedulers have ended.
    moves: JobMoves,
    /// The parts of the rate limit that jobs have taken along.
    rates: Arc<RateDivider>,
    /// Parts of a process in virtual time; `None` for a process of the system.
    parts: Option<RuntimeParts>,
    link: OnceLock<Link>,
}

/// The connection of an open database.
struct Link {
    /// The couriers are dropped before the calls.
    _couriers: Couriers,
    outboxes: Outboxes,
    calls: Arc<OwnerCalls>,
}

impl fmt::Debug for OffloadExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffloadExecutor").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// An attempt that leaves the process.
struct SentAttempt {
    /// Time of the engine's call.
    started_ns: u64,
    /// Nanoseconds in which the package was made.
    package_ns: u64,
    /// Whether it was the second attempt of a flush.
    is_second: bool,
    /// Whether the scheduler of an earlier attempt had ended.
    is_moved: bool,
}

/// A job that is handed to the protocol.
struct Ask {
    job: JobAsk,
    numbers: NumberRange,
    files: JobFiles,
    /// Shards of a flush.
    images: Option<JobImages>,
    /// Names of these shards.
    shards: Vec<ShardId>,
}

impl Ask {
    /// The inputs by which the next plan of the job is recognised.
    fn inputs(&self) -> Vec<JobInput> {
        let file = |name: &String| JobInput::File(self.job.kind, name.clone());
        inputs_of(&self.shards).into_iter().chain(self.files.replaced().iter().map(file)).collect()
    }
}

fn kind_of(kind: EngineJobKind) -> JobKind {
    match kind {
        EngineJobKind::Flush => JobKind::Flush,
        EngineJobKind::Compaction => JobKind::Compaction,
        EngineJobKind::Gc => JobKind::Gc,
    }
}

impl OffloadExecutor {
    /// An executor for one open of a database. It runs every job in this process until
    /// [`JobExecutor::owner_is`].
    #[must_use]
    pub fn new(settings: OwnerSettings) -> Arc<Self> {
        Self::over(settings, None, None)
    }

    /// An executor for one open of a database, which lies in `volume` or in a directory, and whose
    /// memtables `shards` sends to memory nodes. Flushes leave only with them. Executors of a
    /// database in a volume must reach the storage cluster ([`super::ExecutorSettings::volumes`]).
    #[must_use]
    pub fn over(
        settings: OwnerSettings,
        volume: Option<VolumeFiles>,
        shards: Option<Arc<RemoteShards>>,
    ) -> Arc<Self> {
        Self::made_of(settings, volume, shards, None)
    }

    /// An executor for one open of a database in a directory, whose process runs in virtual time.
    /// Calls wait in the time of `parts`.
    #[must_use]
    pub fn in_runtime(
        settings: OwnerSettings,
        shards: Option<Arc<RemoteShards>>,
        parts: RuntimeParts,
    ) -> Arc<Self> {
        Self::made_of(settings, None, shards, Some(parts))
    }

    fn made_of(
        settings: OwnerSettings,
        volume: Option<VolumeFiles>,
        shards: Option<Arc<RemoteShards>>,
        parts: Option<RuntimeParts>,
    ) -> Arc<Self> {
        let clock = parts.as_ref().map(|parts| Arc::clone(&parts.clock));
        Arc::new(Self {
            settings,
            volume,
            shards,
            clock: clock.unwrap_or_else(SystemClock::shared),
            tally: Arc::default(),
            here_next: Default::default(),
            quiet: QuietTime::default(),
            retries: FlushRetries::default(),
            moves: JobMoves::default(),
            rates: Arc::default(),
            parts,
            link: OnceLock::new(),
        })
    }

    /// The counters of this open.
    #[must_use]
    pub fn counters(&self) -> OffloadCounters {
        self.tally.counters()
    }

    /// The counters as lines of the form `name:value`.
    #[must_use]
    pub fn facts(&self) -> String {
        self.counters().facts()
    }

    /// Starts the state machine and the couriers of this open. Errors: those of starting threads.
    fn connect(&self, stamp: OwnerStamp) -> Result<Link> {
        let managers = &self.settings.managers;
        let schedulers = scheduler_order(stamp.db, managers);
        let machine = Owner::new(stamp, OwnerTerms::default(), schedulers)
            .needing(self.needed_names([None, None]));
        let parts = CallParts {
            clock: Arc::clone(&self.clock),
            tally: Arc::clone(&self.tally),
            address: self.settings.address.clone(),
            runtime: self.parts.as_ref().map(|parts| Arc::clone(&parts.runtime)),
        };
        let calls = Arc::new(OwnerCalls::new(machine, parts));
        let me = Correspondent::Owner(stamp);
        let outboxes = Couriers::outboxes(me, managers.len(), &self.clock);
        let weak = Arc::downgrade(&calls);
        let resident: Weak<dyn Resident> = weak;
        let couriers = match &self.parts {
            Some(parts) => Couriers::start_tasks(&outboxes, managers, parts, &resident),
            None => {
                let secret = self.settings.secret.clone();
                let endpoints = Arc::new(Endpoints::new().with_secret(secret));
                Couriers::start(&outboxes, managers, &endpoints, &resident)?
            }
        };
        Ok(Link { _couriers: couriers, outboxes, calls })
    }

    /// Runs a job at an executor. `None` if the job must run here, under the same file numbers.
    fn send_away<T: Message>(
        &self,
        ask: Ask,
        spec: &T,
        context: &JobContext<'_>,
    ) -> Result<Option<JobOutput>> {
        let (kind, plan) = (ask.job.kind, self.moves.plan_of(ask.inputs()));
        let sent = match self.place_of_plan(kind, &plan) {
            AttemptPlace::Away => self.send_plan(ask, &plan, spec, context)?,
            AttemptPlace::Here => self.count_here(kind, LocalWhy::Silent),
        };
        self.moves.forget(&plan);
        Ok(sent)
    }

    /// The place of a job by the number of its moves. A job that runs here takes the turn of one
    /// that was planned again, so that no further job of its kind runs here for that one.
    fn place_of_plan(&self, kind: JobKind, plan: &PlannedInputs) -> AttemptPlace {
        let writers_wait = plan.moves > 0 && kind == JobKind::Flush && self.writers_wait();
        let place = after_move(&MovedJob { moves: plan.moves, writers_wait });
        if place == AttemptPlace::Here {
            let _takes_turn = self.takes_turn_here(kind);
        }
        place
    }

    /// Runs one plan of a job at an executor. `None` if it must run here, under the same numbers.
    fn send_plan<T: Message>(
        &self,
        ask: Ask,
        plan: &PlannedInputs,
        spec: &T,
        context: &JobContext<'_>,
    ) -> Result<Option<JobOutput>> {
        let (kind, shards) = (ask.job.kind, ask.shards.clone());
        let Some(link) = self.link.get() else { return Ok(None) };
        if self.takes_turn_here(kind) {
            return Ok(self.count_here(kind, LocalWhy::Failed));
        }
        let started_ns = self.clock.now_ns();
        if let Some(why) = self.quiet.cause(started_ns) {
            return Ok(self.count_here(kind, why));
        }
        if needs_slot(kind, plan.moves)
            && let Some(why) = link.calls.lacks_room(kind)
        {
            return Ok(self.count_here(kind, why));
        }
        let Some(part) = self.rates.take(context.limiter.as_ref()) else {
            return Ok(self.count_here(kind, LocalWhy::RateLimit));
        };
        let packing_ns = self.clock.now_ns();
        let prepared = self.prepare(&ask, wire::encode(spec)?, part.bytes_per_s())?;
        let (prepared, package) = match prepared {
            Ok(prepared) => prepared,
            Err(why) => return Ok(self.count_here(kind, why)),
        };
        let package_ns = self.clock.now_ns().saturating_sub(packing_ns);
        self.tally.package(kind, package.0.len());
        let (is_second, is_moved) = (!ask.job.avoids.is_empty(), plan.moves > 0);
        let attempt = SentAttempt { started_ns, package_ns, is_second, is_moved };
        if is_second {
            self.tally.second_attempt();
        }
        if is_moved {
            self.tally.moved();
        }
        let (job, messages) = link.calls.submit(ask.job, ask.numbers, package);
        link.outboxes.send(messages);
        let ending = link.calls.wait(job, context);
        link.outboxes.send(link.calls.forget(job));
        drop(part);
        match ending? {
            JobEnding::Output(returned) => {
                let accepted = self.accept(kind, prepared, &returned)?;
                self.count_away(&accepted, &attempt);
                Ok(Some(accepted.output))
            }
            JobEnding::PlanAgain => {
                // Dropping the prepared job gives up the blobs that an executor may have written.
                drop(prepared);
                Err(self.moved(kind, plan))
            }
            JobEnding::Here { why, is_untouched, failure } => {
                self.note_failure(failure.as_ref());
                self.quiet.begin(self.clock.now_ns(), why);
                if is_untouched {
                    prepared.unused();
                    return Ok(self.count_here(kind, why));
                }
                // Dropping the prepared job gives up the blobs that an executor may have written.
                drop(prepared);
                let next = self.place_after(&shards, why, failure.as_ref());
                Err(self.planned_again(kind, why.text(), next))
            }
        }
    }

    /// Takes the return of an executor. If its output cannot be used, the job is planned again.
    fn accept(
        &self,
        kind: JobKind,
        prepared: PreparedJob,
        returned: &Payload,
    ) -> Result<AcceptedOutput> {
        prepared.accept(returned).map_err(|error| match error.kind() {
            ErrorKind::Fenced => error,
            _ => {
                tracing::warn!(%error, "the outputs of an offloaded job were refused");
                self.planned_again(kind, LocalWhy::Refused.text(), AttemptPlace::Here)
            }
        })
    }

    /// Prepares a job for an executor, or says why it runs here.
    fn prepare(
        &self,
        ask: &Ask,
        spec: Vec<u8>,
        bytes_per_s: u64,
    ) -> Result<std::result::Result<(PreparedJob, Payload), LocalWhy>> {
        let (files, images) = (ask.files.clone(), ask.images.clone());
        match PreparedJob::new(files, spec, images, bytes_per_s, self.volume.as_ref()) {
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

    /// Notes that the scheduler of a job has ended while another one lives. The next plan of the
    /// job decides whether it leaves again.
    fn moved(&self, kind: JobKind, plan: &PlannedInputs) -> Error {
        self.moves.note_moved(plan);
        self.planned_again(kind, "its scheduler has ended", AttemptPlace::Away)
    }

    /// Counts a job that an executor may have begun. The engine plans it again after this error. If
    /// `next` is [`AttemptPlace::Here`], the next job of its kind runs here.
    fn planned_again(&self, kind: JobKind, why: &str, next: AttemptPlace) -> Error {
        self.tally.again();
        let place = match next {
            AttemptPlace::Away => "",
            AttemptPlace::Here => {
                self.here_next[kind_index(kind)].fetch_add(1, Ordering::Relaxed);
                " and runs in this process"
            }
        };
        Error::new(
            ErrorKind::Busy,
            format!("an offloaded job ended without outputs ({why}): it is planned again{place}"),
        )
    }

    /// Whether a failed job may leave again. It may if it is a flush whose executor is known, so
    /// that the next attempt avoids that executor. The next plan decides.
    fn place_after(
        &self,
        shards: &[ShardId],
        why: LocalWhy,
        failure: Option<&FailedAttempt>,
    ) -> AttemptPlace {
        match failure {
            Some(failure) if why == LocalWhy::Failed && !shards.is_empty() => {
                self.retries.note_failed(shards, failure.executor);
                AttemptPlace::Away
            }
            _ => AttemptPlace::Here,
        }
    }

    /// Runs a flush at an executor. `None` if it must run here, under the same file numbers.
    fn flush_away(
        &self,
        spec: &FlushSpec,
        images: JobImages,
        context: &JobContext<'_>,
    ) -> Result<Option<JobOutput>> {
        let shards = ids_of(spec);
        let avoids = self.retries.failed_at(&shards);
        if self.place_of_flush(&shards, avoids.len()) == AttemptPlace::Here {
            return Ok(self.count_here(JobKind::Flush, LocalWhy::Failed));
        }
        let retention = &spec.retention;
        let named = [retention.merge_operator.as_ref(), retention.compaction_filter.as_ref()];
        let ask = Ask {
            job: JobAsk {
                kind: JobKind::Flush,
                bytes: images.bytes(),
                needs: self.needed_names(named),
                places: images.places(),
                avoids,
            },
            numbers: numbers_of(&spec.output),
            files: JobFiles::of_flush(spec),
            images: Some(images),
            shards: shards.clone(),
        };
        let flushed = self.send_away(ask, spec, context)?;
        self.retries.forget(&shards);
        Ok(flushed)
    }

    /// The place of a flush by the number of its attempts that have failed. A flush that then runs
    /// here is forgotten.
    fn place_of_flush(&self, shards: &[ShardId], failures: usize) -> AttemptPlace {
        if failures == 0 {
            return AttemptPlace::Away;
        }
        let place = after_failure(&FailedFlush { failures, writers_wait: self.writers_wait() });
        if place == AttemptPlace::Here {
            self.retries.forget(shards);
            self.moves.forget(&self.moves.plan_of(inputs_of(shards)));
        }
        place
    }

    /// Whether writers of the database wait or are slowed down.
    fn writers_wait(&self) -> bool {
        self.shards.as_ref().is_some_and(|shards| shards.writers_wait())
    }

    /// Notes the failed attempt for which the scheduler gave a job back. A call has one attempt, so
    /// each attempt is noted once.
    fn note_failure(&self, failure: Option<&FailedAttempt>) {
        let Some(failure) = failure else { return };
        tracing::warn!(%failure, "an offloaded job failed in its executor");
        self.tally.failed_away(failure);
    }

    /// The places of the shards of a flush that may leave, or why it stays here. `None` if the mode
    /// keeps flushes here.
    fn images_of(&self, spec: &FlushSpec) -> Option<std::result::Result<JobImages, LocalWhy>> {
        let shards = self.shards.as_ref()?;
        if !self.settings.mode.sends(JobKind::Flush) || self.link.get().is_none() {
            return None;
        }
        let images = shards.images(&ids_of(spec)).filter(|images| !images.images.is_empty());
        Some(images.ok_or(LocalWhy::InProcess))
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

    /// Counts a job that an executor has ended.
    fn count_away(&self, accepted: &AcceptedOutput, attempt: &SentAttempt) {
        let whole_ns = self.clock.now_ns().saturating_sub(attempt.started_ns);
        self.tally.away(accepted, &AwayTimes { whole_ns, package_ns: attempt.package_ns });
        if attempt.is_second {
            self.tally.second_attempt_done();
        }
        if attempt.is_moved {
            self.tally.moved_done();
        }
    }

    /// Whether this call runs its job here in place of one of its kind that was planned again.
    fn takes_turn_here(&self, kind: JobKind) -> bool {
        let next = &self.here_next[kind_index(kind)];
        let less = |turns: u64| turns.checked_sub(1);
        next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn count_here(&self, kind: JobKind, why: LocalWhy) -> Option<JobOutput> {
        self.tally.here(kind, why);
        None
    }
}

/// The names of the shards of a flush.
fn ids_of(spec: &FlushSpec) -> Vec<ShardId> {
    let id = |shard: &ShardRef| ShardId { memtable: shard.memtable, shard: shard.shard };
    spec.shards.iter().map(id).collect()
}

/// The inputs by which the next plan of a flush of these shards is recognised.
fn inputs_of(shards: &[ShardId]) -> Vec<JobInput> {
    shards.iter().copied().map(JobInput::Shard).collect()
}

fn numbers_of(output: &OutputSpec) -> NumberRange {
    NumberRange { first: output.file_numbers.first, count: output.file_numbers.count }
}

/// Name of the build, by its version and by those of specs and parcels.
pub(super) fn build_name() -> String {
    let (version, specs, parcels) = (env!("CARGO_PKG_VERSION"), wire::VERSION, parcel::VERSION);
    format!("{BUILD}{version} with specs {specs} and parcels {parcels}")
}

impl JobExecutor for OffloadExecutor {
    fn name(&self) -> &str {
        "offload"
    }

    fn room(&self, kind: EngineJobKind) -> usize {
        let kind = kind_of(kind);
        let is_quiet = self.quiet.cause(self.clock.now_ns()).is_some();
        match self.link.get() {
            Some(link) if !is_quiet && self.settings.mode.sends(kind) => link.calls.room(kind),
            _ => 0,
        }
    }

    fn plans_again(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Busy
    }

    fn prefers_invalid_files(&self) -> bool {
        // A collection that stays looks its keys up through the block cache of this process.
        self.settings.gc_invalid_files && self.settings.mode.sends(JobKind::Gc)
    }

    fn output_refused(&self, kind: EngineJobKind) {
        self.tally.here(kind_of(kind), LocalWhy::Refused);
    }

    fn owner_is(&self, owner: &OwnerIdentity) -> Result<()> {
        if !self.settings.mode.sends_jobs() {
            return Ok(());
        }
        if self.settings.managers.is_empty() {
            return Err(Error::invalid(
                "jobs of this database leave its process, but no manager schedules them: name one \
                 in OwnerSettings::managers",
            ));
        }
        let OwnerIdentity { database, epoch, token } = *owner;
        let stamp = OwnerStamp { db: OffloadDb(database), epoch, token: Token(token) };
        match self.link.set(self.connect(stamp)?) {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::internal("an executor of offloaded jobs has two owners")),
        }
    }

    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        match self.images_of(spec) {
            Some(Ok(images)) => {
                if let Some(output) = self.flush_away(spec, images, context)? {
                    return Ok(output);
                }
            }
            Some(Err(why)) => self.tally.here(JobKind::Flush, why),
            None => {}
        }
        LocalExecutor.flush(spec, context)
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        if !self.settings.mode.sends(JobKind::Compaction) {
            return LocalExecutor.compact(spec, context);
        }
        let retention = &spec.retention;
        let named = [retention.merge_operator.as_ref(), retention.compaction_filter.as_ref()];
        let ask = Ask {
            job: JobAsk {
                kind: JobKind::Compaction,
                bytes: spec.input_bytes(),
                needs: self.needed_names(named),
                ..JobAsk::default()
            },
            numbers: numbers_of(&spec.output),
            files: JobFiles::of_compaction(spec),
            images: None,
            shards: Vec::new(),
        };
        match self.send_away(ask, spec, context)? {
            Some(output) => Ok(output),
            None => LocalExecutor.compact(spec, context),
        }
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        if !self.settings.mode.sends(JobKind::Gc) {
            return LocalExecutor.gc(spec, context);
        }
        let ask = Ask {
            job: JobAsk {
                kind: JobKind::Gc,
                bytes: spec.inputs.iter().map(|input| input.meta.size_bytes).sum(),
                needs: self.needed_names([None, None]),
                ..JobAsk::default()
            },
            numbers: numbers_of(&spec.output),
            files: JobFiles::of_gc(spec),
            images: None,
            shards: Vec::new(),
        };
        match self.send_away(ask, spec, context)? {
            Some(output) => Ok(output),
            None => LocalExecutor.gc(spec, context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ExecutorId;

    const SHARDS: [ShardId; 2] =
        [ShardId { memtable: 1, shard: 2 }, ShardId { memtable: 1, shard: 3 }];

    /// A plan of a flush of the shards.
    fn plan(executor: &OffloadExecutor) -> PlannedInputs {
        executor.moves.plan_of(inputs_of(&SHARDS))
    }

    #[test]
    fn job_that_has_moved_too_often_takes_the_turn_of_its_kind() {
        let executor = OffloadExecutor::new(OwnerSettings::default());
        let kind = JobKind::Flush;
        let _error = executor.planned_again(kind, "its executor has ended", AttemptPlace::Here);
        let mut places = Vec::new();
        while places.last() != Some(&AttemptPlace::Here) {
            let _error = executor.moved(kind, &plan(&executor));
            places.push(executor.place_of_plan(kind, &plan(&executor)));
        }
        assert!(places.len() > 1, "{places:?}");
        assert!(!executor.takes_turn_here(kind), "no further job runs here");
    }

    #[test]
    fn job_that_leaves_again_keeps_the_turn_of_its_kind() {
        let executor = OffloadExecutor::new(OwnerSettings::default());
        let kind = JobKind::Flush;
        let _error = executor.planned_again(kind, "its executor has ended", AttemptPlace::Here);
        let _error = executor.moved(kind, &plan(&executor));
        assert_eq!(executor.place_of_plan(kind, &plan(&executor)), AttemptPlace::Away);
        assert!(executor.takes_turn_here(kind));
    }

    #[test]
    fn only_jobs_that_leave_again_count_as_moved() {
        let executor = OffloadExecutor::new(OwnerSettings::default());
        let _error = executor.moved(JobKind::Flush, &plan(&executor));
        let counters = executor.counters();
        assert_eq!((counters.planned_again, counters.moved), (1, 0));
    }

    #[test]
    fn flush_that_stays_after_failures_is_forgotten() {
        let executor = OffloadExecutor::new(OwnerSettings::default());
        let _error = executor.moved(JobKind::Flush, &plan(&executor));
        assert_eq!(executor.place_of_flush(&SHARDS, 0), AttemptPlace::Away);
        assert_eq!(executor.place_of_flush(&SHARDS, 1), AttemptPlace::Away);
        assert_eq!(plan(&executor).moves, 1, "it leaves again");
        for failed in [7, 8] {
            executor.retries.note_failed(&SHARDS, ExecutorId(failed));
        }
        let failures = executor.retries.failed_at(&SHARDS).len();
        assert_eq!(executor.place_of_flush(&SHARDS, failures), AttemptPlace::Here);
        assert_eq!((plan(&executor).moves, executor.retries.failed_at(&SHARDS)), (0, Vec::new()));
    }
}
