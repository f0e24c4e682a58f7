//! The executor process side: runs jobs of other processes on its own threads. Jobs use shared
//! directories, volumes of a storage cluster, and memtable shards at memory nodes.
//!
//! Invariants:
//! 1. A job reads and writes only files below the directories that the operator shared, or blobs
//!    that the owner of the volume granted.
//! 2. Outputs of a committed job are removed only on the owner's verdict, by the names in the
//!    output of the job.
//! 3. A job writes no faster than its package allows, or than the smallest part of a rate limit
//!    ([`super::rates`]).
//!
//! Thread-safety: any thread may call any method. One lock guards the state machine; jobs run
//! without it.
//! Failure: a job that fails removes its files, and the scheduler gets the reason. A panic of a job
//! is such a failure.
//! Cost: two threads for each slot, one of each priority ([`super::job_queues`]), and two for the
//! mail of each manager. An executor in virtual time has none; threads of its caller run the jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::entropy_seed;
use archipelago_base::runtime::{Runtime, ThreadRuntime};
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, Result};
use archipelago_engine::compaction::job::run_compaction;
use archipelago_engine::executor::wire;
use archipelago_engine::extension::Registry;
use archipelago_engine::flush::run_flush;
use archipelago_engine::gc::job::run_gc;
use archipelago_engine::job::spec::OutputSpec;
use archipelago_engine::job::{JobContext, JobOutput, KnownKeys, NoShards, Progress, ShardSource};
use archipelago_engine::sst::BlockCache;
use archipelago_env::FileSystem;
use archipelago_env::limit::{Priority, RateLimiter};
use archipelago_env::local::LocalFs;
use archipelago_fabric::{Endpoints, Reach, Secret};
use archipelago_store::{BlobGrant, GrantedFs};
use parking_lot::Mutex;

use super::PAYLOAD_BYTES_MAX;
use super::courier::{Addressed, Couriers, Outboxes, Resident, schedulers_of};
use super::files::{DIRECTORIES, DecodedSpec, OpenedPackage, VolumePool, volumes_of};
use super::images::{FetchProgress, ImageReader};
use super::job_queues::{JobPriority, JobQueues};
use super::owning::build_name;
use super::rates::rate_of_package;
use super::runtime_parts::RuntimeParts;
use super::write_rate::WriteRate;
use crate::decide::Load;
use crate::executor::{Executor, ExecutorOffer, ExecutorStep};
use crate::failure::ShortText;
use crate::ids::{AttemptId, ExecutorId, SchedulerId};
use crate::job::Payload;
use crate::parcel::{ImageUse, JobParcel};
use crate::shard_host::ShardHost;
use crate::shard_owner::{ImageFetcher, Waits};
use crate::wire::{Correspondent, OffloadMessage, Running};

/// Size in bytes of the block cache that the jobs of one executor share.
const CACHE_BYTES: u64 = 8 << 20;

/// Settings of an executor.
#[derive(Clone, Debug, Default)]
pub struct ExecutorSettings {
    /// Endpoints of the cluster's managers, one for each.
    pub managers: Vec<String>,
    /// Number of jobs that run at the same time, at least 1.
    pub slots: u32,
    /// Directories in which databases of other processes lie. The paths must be those that the
    /// owners use.
    pub shares: Vec<PathBuf>,
    /// The storage cluster in whose volumes databases of other processes lie.
    pub volumes: Option<VolumePool>,
    /// The memory node in this process, whose images flushes read in place.
    pub hosted: Option<Arc<ShardHost>>,
    /// The cluster's secret, if its managers require one.
    pub secret: Option<Secret>,
    /// Host and process, with the kind of a node that hosts it, for logs and
    /// `archipelago cluster status`. The executor itself listens nowhere.
    pub address: String,
}

/// Figures of an executor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorFigures {
    /// Jobs that run at the same time at most.
    pub slots: u64,
    /// Jobs that run now.
    pub running: u64,
    /// Jobs that have ended with outputs.
    pub succeeded: u64,
    /// Jobs that have failed.
    pub failed: u64,
    /// Jobs that have failed, by the kind of their error.
    pub failed_by: BTreeMap<&'static str, u64>,
    /// Bytes that the jobs have read.
    pub bytes_read: u64,
    /// Bytes that the jobs have written.
    pub bytes_written: u64,
    /// Bytes of these that were charged to parts of rate limits.
    pub limited_bytes: u64,
    /// Flushes among the jobs that have ended with outputs.
    pub flushes: u64,
    /// Memtable shards that these flushes read in place.
    pub images_in_place: u64,
    /// Memtable shards that these flushes fetched.
    pub images_fetched: u64,
    /// Bytes of the fetched shards.
    pub image_bytes_fetched: u64,
}

impl ExecutorFigures {
    fn note(&mut self, used: &ImageUse) {
        self.flushes += 1;
        self.images_in_place += u64::from(used.in_place);
        self.images_fetched += u64::from(used.fetched);
        self.image_bytes_fetched += used.fetched_bytes;
    }
}

/// A job that waits for a thread or runs.
#[derive(Clone, Debug)]
struct Job {
    at: AttemptId,
    package: Payload,
    progress: Arc<Progress>,
    /// The flag that cancels the job, and the bytes of fetched images.
    fetch: FetchProgress,
    /// Limiter to which the writes of the job are charged. It has no limit before the package is
    /// read.
    limiter: Arc<RateLimiter>,
}

impl Job {
    /// Progress of the job, and whether it waits for a bounded resource.
    fn now(&self) -> Running {
        let fetched = self.fetch.bytes.load(Ordering::Relaxed);
        let is_limited = |priority| self.limiter.waiting(priority) > 0;
        Running {
            at: self.at,
            progress_bytes: fetched + self.progress.bytes_read() + self.progress.bytes_written(),
            waits: self.fetch.waits.load(Ordering::Relaxed)
                || is_limited(Priority::Flush)
                || is_limited(Priority::Compaction),
        }
    }

    /// Bytes that were charged to its limiter.
    fn limited_bytes(&self) -> u64 {
        let charged = |priority| self.limiter.stats(priority).bytes;
        charged(Priority::Flush) + charged(Priority::Compaction)
    }
}

/// The files of a job, and how this process reaches them.
#[derive(Clone, Debug)]
enum ReachedFiles {
    /// The files lie in a shared directory.
    Directory(PathBuf),
    /// The files lie in a volume, and the owner has granted them.
    Granted(Arc<GrantedFs>),
}

/// A job that has ended with outputs.
struct EndedJob {
    files: ReachedFiles,
    output: JobOutput,
    /// How a flush got its images.
    images: Option<ImageUse>,
    /// The return parcel for the owner.
    returned: Payload,
}

struct ExecutorState {
    machine: Executor,
    /// Jobs that wait for a thread or run.
    jobs: BTreeMap<AttemptId, Job>,
    /// Outputs in directories that a verdict may order to remove. In a volume, the owner gives the
    /// blobs up.
    outputs: BTreeMap<AttemptId, (PathBuf, JobOutput)>,
    figures: ExecutorFigures,
    writes: WriteRate,
    /// Whether the executor ends, so that no job begins any more. It is set under the same lock
    /// as the flags that cancel the jobs.
    is_stopped: bool,
}

impl ExecutorState {
    /// Counts a job that has failed.
    fn note_failure(&mut self, error: &Error) {
        self.figures.failed += 1;
        *self.figures.failed_by.entry(error.kind().name()).or_insert(0) += 1;
    }
}

struct ExecutorShared {
    settings: ExecutorSettings,
    state: Mutex<ExecutorState>,
    queues: JobQueues<Job>,
    clock: Arc<dyn Clock>,
    fs: Arc<dyn FileSystem>,
    registry: Registry,
    budget: Arc<ByteBudget>,
    images: ImageReader,
    outboxes: Outboxes,
}

/// A running executor. The drop cancels its jobs, waits for their threads, and reports the jobs as
/// failed if the manager answers. An orderly end calls [`ExecutorServer::leave`] first, and waits
/// until [`ExecutorServer::can_end`].
pub struct ExecutorServer {
    shared: Arc<ExecutorShared>,
    couriers: Option<Couriers>,
    threads: Vec<Joiner>,
}

impl fmt::Debug for ExecutorServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutorServer").field("settings", &self.shared.settings).finish()
    }
}

impl ExecutorServer {
    /// Starts an executor over the local file system. Errors: `InvalidArgument` for settings
    /// without a slot, without a manager, or with neither a shared directory nor a storage cluster.
    /// `InvalidArgument` also for a directory that is not an absolute path without `..`. Errors of
    /// starting threads.
    pub fn start(settings: ExecutorSettings) -> Result<Self> {
        Self::start_on(Arc::new(LocalFs::new()), settings)
    }

    /// Starts an executor that reaches shared directories through `fs`. Errors are those of
    /// [`ExecutorServer::start`].
    pub fn start_on(fs: Arc<dyn FileSystem>, settings: ExecutorSettings) -> Result<Self> {
        check_settings(&settings)?;
        let endpoints = Arc::new(Endpoints::new().with_secret(settings.secret.clone()));
        let runtime = ThreadRuntime::shared()?;
        let (reach, waits) = (Arc::clone(&endpoints) as _, Waits::Receiving);
        let fetcher = ImageFetcher::new(reach, runtime, waits);
        let me = ExecutorId(entropy_seed());
        let shared = ExecutorShared::new(me, settings, fs, fetcher, SystemClock::shared());
        let mut server = Self { shared: Arc::clone(&shared), couriers: None, threads: Vec::new() };
        for priority in JobPriority::ALL {
            for _ in 0..shared.settings.slots {
                let shared = Arc::clone(&shared);
                let work = move || shared.queues.serve(priority, |job| shared.work(&job));
                let thread = SystemSpawn.spawn(priority.thread_name(), Box::new(work))?;
                server.threads.push(thread);
            }
        }
        let weak = Arc::downgrade(&shared);
        let resident: Weak<dyn Resident> = weak;
        let managers = &shared.settings.managers;
        let couriers = Couriers::start(&shared.outboxes, managers, &endpoints, &resident)?;
        server.couriers = Some(couriers);
        Ok(server)
    }

    /// Starts an executor whose process runs in virtual time. It has no threads:
    /// [`ExecutorServer::work`] runs its jobs. Errors: `InvalidArgument` as for
    /// [`ExecutorServer::start`].
    pub fn start_in_runtime(
        fs: Arc<dyn FileSystem>,
        settings: ExecutorSettings,
        parts: &RuntimeParts,
    ) -> Result<Self> {
        check_settings(&settings)?;
        let RuntimeParts { reach, runtime, clock } = parts;
        let (reach, waits): (Arc<dyn Reach>, _) = (Arc::clone(reach), Waits::InRuntime);
        let fetcher = ImageFetcher::new(reach, Arc::clone(runtime), waits);
        let me = ExecutorId(Runtime::seed(&**runtime));
        let shared = ExecutorShared::new(me, settings, fs, fetcher, Arc::clone(clock));
        let weak = Arc::downgrade(&shared);
        let resident: Weak<dyn Resident> = weak;
        let managers = &shared.settings.managers;
        let couriers = Couriers::start_tasks(&shared.outboxes, managers, parts, &resident);
        Ok(Self { shared, couriers: Some(couriers), threads: Vec::new() })
    }

    /// Runs one of the waiting jobs on the calling thread, for an executor without threads. Returns
    /// `false` if no job waits.
    pub fn work(&self) -> bool {
        let job = self.shared.queues.take();
        job.inspect(|job| self.shared.work(job)).is_some()
    }

    /// Number of jobs that wait for a thread.
    #[must_use]
    pub fn jobs_waiting(&self) -> usize {
        self.shared.queues.jobs_waiting()
    }

    /// Whether the executor has no job, and no outputs that wait for a verdict.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shared.state.lock().machine.is_idle()
    }

    /// The figures of the executor.
    #[must_use]
    pub fn figures(&self) -> ExecutorFigures {
        self.shared.state.lock().figures.clone()
    }

    /// Makes the executor take no more jobs. Those that it has go on.
    pub fn leave(&self) {
        self.shared.state.lock().machine.leave();
    }

    /// Whether the executor may end without harm: it has no job, and no outputs that wait for a
    /// verdict. It may also end when no manager has answered for some seconds, because the owners
    /// of its jobs have then taken them back.
    #[must_use]
    pub fn can_end(&self) -> bool {
        let is_reachable = self.couriers.as_ref().is_some_and(Couriers::is_reachable);
        !is_reachable || self.shared.state.lock().machine.is_idle()
    }

    /// A handle for the figures, which does not keep the executor alive.
    #[must_use]
    pub fn monitor(&self) -> ExecutorMonitor {
        ExecutorMonitor(Arc::downgrade(&self.shared))
    }
}

/// The figures of an executor, for as long as it lives.
#[derive(Clone)]
pub struct ExecutorMonitor(Weak<ExecutorShared>);

impl fmt::Debug for ExecutorMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExecutorMonitor")
    }
}

impl ExecutorMonitor {
    /// The figures; `None` after the end of the executor.
    #[must_use]
    pub fn figures(&self) -> Option<ExecutorFigures> {
        self.0.upgrade().map(|shared| shared.state.lock().figures.clone())
    }
}

impl Drop for ExecutorServer {
    fn drop(&mut self) {
        // A job that is cancelled before its begin is reported as failed as well.
        self.shared.cancel_all();
        self.shared.queues.stop();
        for thread in self.threads.drain(..) {
            if let Err(error) = thread.join() {
                tracing::error!(%error, "a thread of an executor panicked");
            }
        }
        drop(self.couriers.take());
    }
}

/// Checks the settings of an executor. Errors: those of [`ExecutorServer::start`].
fn check_settings(settings: &ExecutorSettings) -> Result<()> {
    let has_files = !settings.shares.is_empty() || settings.volumes.is_some();
    if settings.slots == 0 || settings.managers.is_empty() || !has_files {
        return Err(Error::invalid(
            "an executor needs at least one slot, one manager, and a shared directory or a \
             storage cluster",
        ));
    }
    match settings.shares.iter().find(|share| !is_plain(share)) {
        Some(wrong) => Err(Error::invalid(format!(
            "the shared directory {} must be an absolute path without `..`, because databases \
             name their directories in this form",
            wrong.display()
        ))),
        None => Ok(()),
    }
}

/// Whether a path is absolute and has no `..`.
fn is_plain(path: &Path) -> bool {
    path.is_absolute() && !path.components().any(|part| part == Component::ParentDir)
}

impl ExecutorShared {
    /// An executor without jobs, whose couriers do not run yet.
    fn new(
        me: ExecutorId,
        settings: ExecutorSettings,
        fs: Arc<dyn FileSystem>,
        fetcher: ImageFetcher,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let registry = Registry::default();
        let mut names: BTreeSet<String> = registry.names().map(str::to_owned).collect();
        names.insert(build_name());
        names.extend((!settings.shares.is_empty()).then(|| DIRECTORIES.to_owned()));
        names.extend(settings.volumes.iter().map(|pool| volumes_of(&pool.cluster)));
        let address = ShortText::new(&settings.address);
        let offer = ExecutorOffer { slots: settings.slots, names, address };
        let managers = settings.managers.len();
        Arc::new(Self {
            state: Mutex::new(ExecutorState {
                machine: Executor::new(me, offer, &schedulers_of(managers)),
                jobs: BTreeMap::new(),
                outputs: BTreeMap::new(),
                figures: ExecutorFigures { slots: settings.slots.into(), ..Default::default() },
                writes: WriteRate::default(),
                is_stopped: false,
            }),
            queues: JobQueues::new(),
            outboxes: Couriers::outboxes(Correspondent::Executor(me), managers, &clock),
            clock,
            fs,
            registry,
            budget: ByteBudget::unlimited(),
            images: ImageReader::new(settings.hosted.clone(), fetcher),
            settings,
        })
    }

    /// Cancels all jobs. A job whose package comes later fails before it begins.
    fn cancel_all(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        state.machine.leave();
        state.jobs.values().for_each(|job| job.fetch.cancel.cancel());
    }

    /// Runs a job on the calling thread.
    fn work(&self, job: &Job) {
        self.state.lock().figures.running += 1;
        let result = catch_unwind(AssertUnwindSafe(|| self.run(job)));
        let result = result.unwrap_or_else(|_| Err(Error::internal("the job panicked")));
        self.end(job, result);
    }

    fn end(&self, job: &Job, result: Result<EndedJob>) {
        // The calling thread may have a low priority, so it logs before it takes the lock.
        if let Err(error) = &result {
            tracing::warn!(%error, job = %job.at, "an offloaded job failed");
        }
        let mut state = self.state.lock();
        state.figures.running -= 1;
        state.jobs.remove(&job.at);
        state.writes.job_ended(job.progress.bytes_written());
        let result = match result {
            Ok(EndedJob { files, output, images, returned }) => {
                if let Some(used) = &images {
                    self.images.note(used);
                    state.figures.note(used);
                }
                state.figures.succeeded += 1;
                state.figures.bytes_read += output.bytes_read;
                state.figures.bytes_written += output.bytes_written;
                state.figures.limited_bytes += job.limited_bytes();
                if let ReachedFiles::Directory(dir) = files {
                    state.outputs.insert(job.at, (dir, output));
                }
                Ok(returned)
            }
            Err(error) => {
                state.note_failure(&error);
                Err(ShortText::new(&error.to_string()))
            }
        };
        self.note_load(&mut state);
        let steps = state.machine.ended(self.clock.now_ns(), job.at, result);
        let messages = self.step(&mut state, steps);
        drop(state);
        self.outboxes.send(messages);
    }

    fn run(&self, job: &Job) -> Result<EndedJob> {
        let OpenedPackage { spec, grant, bytes_per_s } = DecodedSpec::of(&job.package)?;
        job.limiter.set_bytes_per_second(rate_of_package(bytes_per_s));
        let files = self.reach(spec.output(), grant)?;
        let opened = match &spec {
            DecodedSpec::Flush(spec, images) => {
                Some(self.images.open(spec, images, &job.fetch, &*self.clock)?)
            }
            _ => None,
        };
        let (shards, mut images): (&dyn ShardSource, _) = match &opened {
            Some((shards, used)) => (shards, Some(*used)),
            None => (&NoShards, None),
        };
        let context = self.context(job, &files, shards);
        let output = match &spec {
            DecodedSpec::Flush(spec, _) => run_flush(spec, &context)?,
            DecodedSpec::Compaction(spec) => run_compaction(spec, &context)?,
            DecodedSpec::Gc(spec) => run_gc(spec, &context)?,
        };
        if let Some(used) = &mut images {
            used.run_ns = output.duration_ns;
        }
        let written = match &files {
            ReachedFiles::Directory(_) => None,
            ReachedFiles::Granted(granted) => Some(granted.written()),
        };
        let encoded = wire::encode(&output)?;
        let (output_bytes, limited_bytes) = (encoded.into(), job.limited_bytes());
        let returned =
            JobParcel::Return { output: output_bytes, written, images, limited_bytes }.encode();
        if returned.len() > PAYLOAD_BYTES_MAX {
            if let ReachedFiles::Directory(dir) = &files {
                self.remove(dir, &output);
            }
            return Err(Error::unsupported("the output of the job does not fit into a message"));
        }
        Ok(EndedJob { files, output, images, returned: returned.into() })
    }

    /// The context in which the engine runs a job.
    fn context<'a>(
        &self,
        job: &Job,
        files: &ReachedFiles,
        shards: &'a dyn ShardSource,
    ) -> JobContext<'a> {
        JobContext {
            fs: match files {
                ReachedFiles::Directory(_) => Arc::clone(&self.fs),
                ReachedFiles::Granted(granted) => Arc::clone(granted) as Arc<dyn FileSystem>,
            },
            registry: self.registry.clone(),
            clock: Arc::clone(&self.clock),
            limiter: Some(Arc::clone(&job.limiter)),
            cancel: job.fetch.cancel.clone(),
            shards,
            cache: BlockCache::new(CACHE_BYTES, &self.budget),
            warm: false,
            budget: Arc::clone(&self.budget),
            more_file_numbers: None,
            value_keys: KnownKeys::default(),
            progress: Arc::clone(&job.progress),
        }
    }

    /// The files of a job, if they are granted or lie below a shared directory.
    fn reach(&self, output: &OutputSpec, grant: Option<BlobGrant>) -> Result<ReachedFiles> {
        let dir = &output.dir;
        let Some(grant) = grant else {
            let is_below = |share: &PathBuf| dir.starts_with(share);
            if is_plain(dir) && self.settings.shares.iter().any(is_below) {
                return Ok(ReachedFiles::Directory(dir.clone()));
            }
            return Err(Error::invalid(format!(
                "the directory {} is not below a shared directory of this executor (--share)",
                dir.display()
            )));
        };
        match &self.settings.volumes {
            Some(pool) => {
                let stores = pool.stores.clone();
                Ok(ReachedFiles::Granted(GrantedFs::new(stores, dir, grant)))
            }
            None => Err(Error::invalid(format!(
                "the files of {} lie in a volume, and this executor has no storage cluster \
                 (--store)",
                dir.display()
            ))),
        }
    }

    /// Removes the files of an output. The owner's sweep removes files that this call cannot
    /// remove.
    fn remove(&self, dir: &Path, output: &JobOutput) {
        for name in output.file_names() {
            let path = dir.join(name);
            match self.fs.remove(&path) {
                Err(error) if error.kind() != archipelago_base::ErrorKind::NotFound => {
                    tracing::warn!(%error, "an output that is not needed was not removed");
                }
                _ => {}
            }
        }
    }

    /// Reports load and reach to the state machine, for the next beat.
    fn note_load(&self, state: &mut ExecutorState) {
        let slots = u64::from(self.settings.slots);
        let share = |count: u64| (1000 * count / slots).min(u64::from(u32::MAX)) as u32;
        let (cpu, queue) = (share(state.figures.running), share(self.queues.jobs_waiting() as u64));
        let written = state.jobs.values().map(|job| job.progress.bytes_written()).sum();
        let io = state.writes.load(self.clock.now_ns(), written);
        state.machine.note_load(Load { cpu, io, queue });
        state.machine.note_reach(self.images.reach());
    }

    /// Takes the steps of the state machine. Returns the messages to send.
    fn step(&self, state: &mut ExecutorState, steps: Vec<ExecutorStep>) -> Vec<Addressed> {
        let mut messages = Vec::new();
        for step in steps {
            match step {
                ExecutorStep::Send { to, message } => messages.push(Addressed { to, message }),
                ExecutorStep::Run { at, .. } if state.is_stopped => {
                    // The threads of the jobs may have ended already.
                    let error = Error::closed("the executor has ended before the job began");
                    state.note_failure(&error);
                    let reason = ShortText::new(&error.to_string());
                    let steps = state.machine.ended(self.clock.now_ns(), at, Err(reason));
                    messages.extend(self.step(state, steps));
                }
                ExecutorStep::Run { at, kind, spec: package, .. } => {
                    let (progress, fetch) = (Arc::default(), FetchProgress::default());
                    let limiter = Arc::new(RateLimiter::new(0));
                    let job = Job { at, package, progress, fetch, limiter };
                    state.jobs.insert(at, job.clone());
                    self.queues.push(kind, job);
                }
                ExecutorStep::Stop { at } => {
                    if let Some(job) = state.jobs.get(&at) {
                        job.fetch.cancel.cancel();
                    }
                }
                ExecutorStep::Remove { at, .. } => {
                    if let Some((dir, output)) = state.outputs.remove(&at) {
                        self.remove(&dir, &output);
                    }
                }
                ExecutorStep::Keep { at } => {
                    state.outputs.remove(&at);
                }
            }
        }
        messages
    }
}

impl Resident for ExecutorShared {
    fn take(&self, from: SchedulerId, messages: Vec<OffloadMessage>) -> Vec<Addressed> {
        let now_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        let mut sent = Vec::new();
        for message in messages {
            let steps = state.machine.on_message(now_ns, from, message);
            sent.extend(self.step(&mut state, steps));
        }
        sent
    }

    fn tick(&self) -> Vec<Addressed> {
        let now_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        self.note_load(&mut state);
        let running: Vec<Running> = state.jobs.values().map(Job::now).collect();
        for now in running {
            state.machine.note_progress(now);
        }
        let steps = state.machine.on_timer(now_ns);
        self.step(&mut state, steps)
    }
}

#[cfg(test)]
mod tests {
    use super::super::SCHEDULER;
    use super::*;
    use crate::ids::{NumberRange, SchedulerLife};
    use crate::job::JobOrder;

    #[test]
    fn job_whose_package_comes_during_the_end_fails() {
        let settings = ExecutorSettings {
            // The messages of this test come from the test itself.
            managers: vec!["tcp:127.0.0.1:9".to_owned()],
            slots: 1,
            shares: vec![PathBuf::from("/reef")],
            ..ExecutorSettings::default()
        };
        let mut server = ExecutorServer::start(settings).expect("threads");
        // Without couriers no timer ends the offer below.
        drop(server.couriers.take());
        let take = |message| -> Vec<OffloadMessage> {
            let sent = server.shared.take(SCHEDULER, vec![message]);
            sent.into_iter().map(|addressed| addressed.message).collect()
        };
        let (at, life) = (AttemptId::default(), SchedulerLife { scheduler: SCHEDULER, term: 1 });
        let assign = OffloadMessage::Assign { at, life, order: JobOrder::default() };
        let by = match take(assign).as_slice() {
            [OffloadMessage::Accept { by, .. }] => *by,
            other => panic!("{other:?}"),
        };
        server.shared.cancel_all();
        let (numbers, spec) = (NumberRange::default(), Payload::default());
        let sent = take(OffloadMessage::Package { at, life, numbers, spec });
        assert!(sent.contains(&OffloadMessage::Started { at, by }), "{sent:?}");
        let is_abort = |sent: &&OffloadMessage| matches!(sent, OffloadMessage::Abort { .. });
        assert_eq!(sent.iter().filter(is_abort).count(), 1, "{sent:?}");
        assert_eq!(server.shared.queues.jobs_waiting(), 0);
        let figures = server.figures();
        assert_eq!((figures.running, figures.failed), (0, 1));
        assert_eq!(figures.failed_by.values().sum::<u64>(), 1);
        drop(server);
    }
}
