//! The scheduler: which job comes next, and what happens to a job that fails.
//!
//! Worker threads share all state through [`Jobs`]. The order of picks is: rebuild lost memtable
//! shards, ready a sealed memtable, make a wanted map change that fits, flush, send a memtable
//! shard to a memory node, compact, collect garbage. In threads mode `max_background_jobs` workers
//! loop. In manual mode a test calls [`Db::step_background`](crate::db::Db::step_background).
//!
//! Invariants:
//! 1. A pick happens under the jobs lock and marks what it takes as running. Jobs run without
//!    locks.
//! 2. A running job is not interrupted, and a compaction may take minutes under a rate limit. No
//!    memtable waits for that: an additional worker, the **spare** one, takes a flush when all
//!    other workers run other jobs.
//! 3. Garbage collection of value files has a worker of its own and waits for no other job. After
//!    its failure only its inputs wait. The same holds for merges of invalid files.
//! 4. An executor may take more jobs than this process has threads for
//!    ([`JobExecutor::room`](crate::executor::JobExecutor::room)). Such **extra** jobs are picked by
//!    a thread of their own, and each has a thread that waits for it. They take no slot of the
//!    workers.
//! 5. A warm pass takes no slot of the workers either, and is none of the running jobs
//!    ([`crate::db::background::warm_outputs`]).
//!
//! Thread-safety: any number of workers.
//! Failure: a failed job is counted and reported. Nothing is picked until a pause is over, which
//! doubles with each failure up to one second. A job that panics is a failed job. Everything that
//! it had taken is released, and its thread goes on ([`crate::border`]).
//! Cost: a pick visits each family.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{CfId, Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::border::{EnginePanic, contained};
use crate::db::background::compaction;
use crate::db::background::compaction_pick::{self, CompactionTask};
use crate::db::background::flush;
use crate::db::background::flush_task::FlushTask;
use crate::db::background::gc::invalid::{self, MergeTask};
use crate::db::background::gc::{self, GcTask, ReferenceMismatch};
use crate::db::background::owners::PickOwners;
use crate::db::background::rebalance::{self, MapTask};
use crate::db::background::rebuild::{self, RebuildMemory, RebuildTask};
use crate::db::background::send::{self, SendTask};
use crate::db::background::taken::FetchRefused;
use crate::db::background::warm_outputs::{self, WarmPass, WarmPasses};
use crate::db::background::{
    kept_shards, leave_log, log_keeper, memory_pressure, offer, space, space_idle, sweep,
};
use crate::db::inner::DbInner;
use crate::db::read::{ReadView, Reader};
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::memtable::Memtable;
use crate::db::state::observers::Observers;
use crate::db::state::running_jobs::{GcWorker, JobSlot, RunningKind};
use crate::db::state::storage::Storage;
use crate::db::state::thread_group::{ThreadGroup, ThreadKind};
use crate::db::write::log_segments::{self, LogSegments};
use crate::db::write::stalling::StallOwners;
use crate::db::write::{disk_room, stalling};
use crate::disk_space::SpaceState;
use crate::executor::JobKind;
use crate::file_meta::{invalid_file_name, sst_name, value_file_name};
use crate::live_file::Trashed;
use crate::lock_order::{Before, JobsLock, Order};
use crate::manifest::VersionEdit;
use crate::remote::AwayError;
use crate::stats::Ticker;

/// Pause after a flush for which a memory node did not give a shard.
const AWAY_PAUSE: Duration = Duration::from_millis(20);
/// The threads that wait for extra jobs.
const EXTRA_THREADS: ThreadKind = ThreadKind { name: "archi-away", yields: false };
/// Longest sleep of an idle worker.
const IDLE_WAIT: Duration = Duration::from_millis(500);

/// A task for a worker.
pub(crate) enum Task {
    Ready(CfId, Arc<Memtable>),
    ChangeMap(MapTask),
    Flush(FlushTask),
    Compact(CompactionTask),
    Gc(GcTask),
    MergeInvalid(MergeTask),
    Send(SendTask),
    Rebuild(RebuildTask),
}

impl Task {
    /// Whether its family was dropped.
    fn is_moot(&self) -> bool {
        match self {
            Self::Ready(..) | Self::Rebuild(_) => false,
            Self::Send(task) => task.family.check_alive().is_err(),
            Self::ChangeMap(task) => task.family.check_alive().is_err(),
            Self::Flush(task) => task.family.check_alive().is_err(),
            Self::Compact(task) => task.family.check_alive().is_err(),
            Self::Gc(task) => task.family.check_alive().is_err(),
            Self::MergeInvalid(task) => task.family.check_alive().is_err(),
        }
    }

    /// Its number among the running jobs, if it may run at an executor.
    fn job_id(&self) -> Option<u64> {
        match self {
            Self::Flush(task) => Some(task.job_id),
            Self::Compact(task) => Some(task.job_id),
            Self::Gc(task) => Some(task.job_id()),
            _ => None,
        }
    }

    /// Whether its failures are kept by input file, so that nothing else waits after one.
    fn fails_by_file(&self) -> bool {
        matches!(self, Self::Gc(_) | Self::MergeInvalid(_))
    }

    fn name(&self) -> String {
        match self {
            Self::Ready(cf, _) => format!("sealing a memtable of column family {cf}"),
            Self::ChangeMap(task) => {
                format!("change of the bucket map of column family \"{}\"", task.family.name)
            }
            Self::Flush(task) => format!("flush of column family \"{}\"", task.family.name),
            Self::Compact(task) => format!(
                "compaction of column family \"{}\" from L{} to L{}",
                task.family.name,
                task.pick.from(),
                task.pick.to()
            ),
            Self::Gc(task) => task.name(),
            Self::MergeInvalid(task) => task.name(),
            Self::Send(task) => {
                format!("sending a memtable shard of column family \"{}\"", task.family.name)
            }
            Self::Rebuild(_) => "rebuilding lost memtable shards".to_owned(),
        }
    }
}

/// The worker threads of an open database.
#[derive(Debug)]
pub(crate) struct Workers {
    joiners: Mutex<Vec<Joiner>>,
    /// The threads that wait for extra jobs.
    extra: Arc<ThreadGroup>,
}

impl Default for Workers {
    fn default() -> Self {
        Self { joiners: Mutex::default(), extra: Arc::new(ThreadGroup::new(EXTRA_THREADS)) }
    }
}

impl Workers {
    /// Starts the threads, unless the database is in manual mode or read only. After an error some
    /// threads may run: the caller closes the database.
    pub(crate) fn start(&self, inner: &Arc<DbInner>) -> Result<()> {
        if inner.context.is_manual() || inner.context.options().read_only {
            return Ok(());
        }
        let jobs = inner.context.options().max_background_jobs;
        for index in 0..=jobs + 1 {
            let role = match index {
                _ if index < jobs => Role::Worker,
                _ if index == jobs => Role::Spare,
                _ => Role::Collector,
            };
            let inner = Arc::clone(inner);
            let body = Box::new(move || work_until_closed(&inner, role));
            self.joiners.lock().push(SystemSpawn.spawn(&format!("archi-bg-{index}"), body)?);
        }
        if !inner.jobs.executor().runs_here() {
            let (inner, threads) = (Arc::clone(inner), Arc::clone(&self.extra));
            let body = Box::new(move || pick_extra_jobs(&inner, &threads));
            self.joiners.lock().push(SystemSpawn.spawn("archi-bg-away", body)?);
        }
        self.start_warm_thread(inner)?;
        self.start_log_threads(inner)
    }

    /// Starts the thread that reads outputs of other processes into the block cache.
    fn start_warm_thread(&self, inner: &Arc<DbInner>) -> Result<()> {
        if inner.jobs.executor().runs_here() {
            return Ok(());
        }
        let (passes, inner) = (inner.warm_passes.open(), Arc::clone(inner));
        let body = Box::new(move || warm_outputs::run_passes(&inner, &passes));
        self.joiners.lock().push(SystemSpawn.spawn("archi-warm", body)?);
        Ok(())
    }

    /// Starts the threads that keep a log in a network.
    fn start_log_threads(&self, inner: &Arc<DbInner>) -> Result<()> {
        if !log_keeper::is_needed(&inner.context, &inner.writes) {
            return Ok(());
        }
        disk_room::refresh_free_room(inner);
        inner.logs.ahead().set_kept();
        let kept = Arc::clone(inner);
        let body = Box::new(move || log_keeper::keep_log(&kept));
        self.joiners.lock().push(SystemSpawn.spawn("archi-log", body)?);
        if inner.context.options().log_buffer_bytes > 0 {
            let sent = Arc::clone(inner);
            let body = Box::new(move || log_keeper::send_buffers(&sent));
            self.joiners.lock().push(SystemSpawn.spawn("archi-log-send", body)?);
        }
        Ok(())
    }

    /// Waits until all threads have ended (`closing` must be set).
    pub(crate) fn join(&self) -> Result<()> {
        let joiners = std::mem::take(&mut *self.joiners.lock());
        let joined = joiners.into_iter().map(Joiner::join).fold(Ok(()), Result::and);
        self.extra.close();
        joined
    }
}

/// Runs one step of background work. Returns `false` if there was nothing to do.
pub(crate) fn step(db: &DbInner) -> Result<bool> {
    disk_room::tend_disk(db);
    sweep::tend_numbers(&db.context, &db.storage, &db.observers);
    log_segments::enforce_log_bound(db);
    memory_pressure::relieve_pressure(db);
    let due = leave_log::is_due_to_leave(
        &db.context,
        &db.observers,
        &db.logs,
        &db.jobs.lock(Order::none()),
    );
    if due && leave_log::leave_log_in_background(db)? {
        return Ok(true);
    }
    let (task, limit_changes) = {
        let mut state = db.jobs.lock(Order::none());
        let task = next_task(db, &mut state);
        note_space_idle(db, &mut state);
        (task, state.take_limit_changes())
    };
    decide_throttles(db.stall_owners(), &db.view, &limit_changes);
    let Some(task) = task else {
        forget_failure_if_idle(
            &db.context,
            &db.observers,
            &db.jobs,
            &db.logs,
            &mut db.jobs.lock(Order::none()),
        );
        remove_obsolete(&db.storage, &db.observers, &db.view);
        return Ok(false);
    };
    let result = run_and_release(db, task);
    kept_shards::keep_for_readers(&db.context, &db.observers);
    remove_obsolete(&db.storage, &db.observers, &db.view);
    match result {
        // The next step rebuilds the shard.
        Err(error) if matches!(error.cause::<AwayError>(), Some(AwayError::Lost(_))) => Ok(true),
        // The next step plans a smaller flush.
        Err(error) if error.cause::<FetchRefused>().is_some() => Ok(true),
        result => result.map(|()| true),
    }
}

/// Which tasks a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Every task, in the order of picks.
    Worker,
    /// A flush that would wait for other jobs.
    Spare,
    /// Garbage collection, for which it is reserved.
    Collector,
}

/// Runs tasks until the database closes.
fn work_until_closed(db: &DbInner, role: Role) {
    loop {
        let mut state = db.jobs.lock(Order::none());
        if db.context.is_closing() {
            return;
        }
        let may_leave = role != Role::Collector;
        if may_leave && leave_log::is_due_to_leave(&db.context, &db.observers, &db.logs, &state) {
            drop(state);
            if let Ok(true) = leave_log::leave_log_in_background(db) {
                continue;
            }
            state = db.jobs.lock(Order::none());
        }
        let task = match role {
            Role::Worker => next_task(db, &mut state),
            Role::Spare => next_spare_task(db, &mut state),
            Role::Collector => next_reserved_task(db, &mut state),
        };
        note_space_idle(db, &mut state);
        let limit_changes = state.take_limit_changes();
        if task.is_none() && limit_changes.is_empty() {
            if role == Role::Worker {
                forget_failure_if_idle(&db.context, &db.observers, &db.jobs, &db.logs, &mut state);
            }
            let pause = state.retry_pause().unwrap_or(IDLE_WAIT);
            db.jobs.wait_for_work(&mut state, pause);
            drop(state);
            keep_bounds(db);
            continue;
        }
        drop(state);
        decide_throttles(db.stall_owners(), &db.view, &limit_changes);
        let Some(task) = task else { continue };
        db.jobs.wake();
        // The result was noted, and the next iteration picks another task.
        let _noted = run_and_release(db, task);
        keep_bounds(db);
    }
}

/// Picks jobs for the executor in addition to those of the workers, until the database closes.
fn pick_extra_jobs(db: &Arc<DbInner>, threads: &ThreadGroup) {
    loop {
        let task = {
            let mut state = db.jobs.lock(Order::none());
            if db.context.is_closing() {
                return;
            }
            match next_extra_task(db, &mut state) {
                Some(task) => task,
                None => {
                    db.jobs.wait_for_work(&mut state, IDLE_WAIT);
                    continue;
                }
            }
        };
        let task = ExtraTask(Some(task), Arc::clone(db));
        // A task that no thread takes runs on this thread when it is dropped. A panic of the task
        // must not end this thread.
        let taken =
            contained("a job of the executor", move || threads.run(Box::new(move || task.run())));
        if let Err(error) = taken {
            tracing::warn!(%error, "no thread waits for a job of the executor: it ran on another");
        }
    }
}

/// A picked task that runs on the thread that it is given to, or on the thread that drops it.
struct ExtraTask(Option<Task>, Arc<DbInner>);

impl ExtraTask {
    fn run(mut self) {
        self.run_once();
    }

    fn run_once(&mut self) {
        let Some(task) = self.0.take() else { return };
        let db = &self.1;
        let _noted = run_and_release(db, task);
        keep_bounds(db);
        db.jobs.wake();
    }
}

impl Drop for ExtraTask {
    fn drop(&mut self) {
        self.run_once();
    }
}

/// The next job for a place of the executor, marked as running. A flush comes first, because
/// writers wait for it.
fn next_extra_task(db: &DbInner, state: &mut JobState) -> Option<Task> {
    if !may_pick(&db.context, &db.observers, &db.logs, state) {
        return None;
    }
    let mut task = None;
    if db.jobs.has_extra_room(state, JobKind::Flush) {
        task = flush::next_flush(db, state, JobSlot::Extra).map(Task::Flush);
    }
    if task.is_none() && db.jobs.has_extra_room(state, JobKind::Compaction) {
        task = take_compaction(db.pick_owners(), state, JobSlot::Extra);
    }
    if task.is_none() && db.jobs.has_extra_room(state, JobKind::Gc) {
        task = gc::next_gc(db.pick_owners(), state, GcWorker::Reserved).map(Task::Gc);
    }
    if let Some(job_id) = task.as_ref().and_then(Task::job_id) {
        state.set_extra(job_id);
    }
    task
}

/// Applies all bounds between jobs: size of the log, memory, installed shards at nodes, files to
/// remove, room on the disk, file numbers.
fn keep_bounds(db: &DbInner) {
    log_segments::enforce_log_bound(db);
    memory_pressure::relieve_pressure(db);
    kept_shards::keep_for_readers(&db.context, &db.observers);
    remove_obsolete(&db.storage, &db.observers, &db.view);
    disk_room::tend_disk(db);
    sweep::tend_numbers(&db.context, &db.storage, &db.observers);
}

/// Whether the pause after a failure is not over.
pub(crate) fn is_pausing(context: &Context, state: &JobState) -> bool {
    !context.is_manual() && state.is_waiting_to_retry(context.clock().now_ns())
}

/// Counts a failure and begins the pause after it.
pub(crate) fn note_pause(context: &Context, jobs: &Jobs) {
    jobs.lock(Order::none()).note_failure(context.clock().now_ns());
}

/// Forgets an earlier failure if no work is left that could fail, because a user's call has done
/// the work or its family was dropped. Called when there is nothing to pick.
fn forget_failure_if_idle(
    context: &Context,
    observers: &Observers,
    jobs: &Jobs,
    logs: &LogSegments,
    state: &mut JobState,
) {
    if state.has_failed() && state.is_idle() && may_pick(context, observers, logs, state) {
        state.forget_failures();
        observers.health().clear_failing();
        jobs.notify_progress();
    }
}

/// Releases writers that wait for space in vain. It is called at each pick, because jobs of other
/// families may leave no worker without a task.
fn note_space_idle(db: &DbInner, state: &mut JobState) {
    // While picks are held back, there may be work.
    if state.is_any_pressed() && may_pick(&db.context, &db.observers, &db.logs, state) {
        space_idle::note_idle(db.pick_owners(), state);
    }
}

/// Decides the throttles of families again whose limit on space has changed. Writers that were
/// released go on then. Called without locks.
pub(crate) fn decide_throttles(owners: StallOwners<'_>, view: &ReadView, families: &[CfId]) {
    for family in families.iter().filter_map(|cf| view.family(*cf)) {
        stalling::recompute_stall(owners, &family);
    }
}

/// Whether anything may be picked now.
fn may_pick(
    context: &Context,
    observers: &Observers,
    logs: &LogSegments,
    state: &JobState,
) -> bool {
    // A log that must be left cannot be synced, and a flush needs the sync for its install.
    !state.is_paused()
        && !logs.must_leave()
        && !context.options().read_only
        && !observers.health().is_read_only()
        && !is_pausing(context, state)
}

/// The next task that must not wait for the end of a job, marked as running. It is a rebuild. If
/// the largest number of jobs runs, it may also be a flush or a send, if none of that kind runs.
fn next_spare_task(db: &DbInner, state: &mut JobState) -> Option<Task> {
    if let Some(task) = next_rebuild(db.reader(), &db.logs, state) {
        return Some(task);
    }
    let busy = state.running().slots_taken() >= db.context.options().max_background_jobs;
    let has_flush = state.running().flushes_len() > state.running().count_extra(JobKind::Flush);
    let has_send = db.context.away().is_none() || state.running().has(RunningKind::is_send);
    let is_served = has_flush && has_send;
    if !busy || is_served || !may_pick(&db.context, &db.observers, &db.logs, state) {
        return None;
    }
    if let Some((cf, memtable)) = claim_to_ready(state) {
        return Some(Task::Ready(cf, memtable));
    }
    if !has_flush && let Some(flush) = flush::next_flush(db, state, JobSlot::Own) {
        return Some(Task::Flush(flush));
    }
    if has_send { None } else { send::next_send(db, state).map(Task::Send) }
}

/// The next rebuild of lost memtable shards, for which reads wait. It also runs in a database that
/// takes no writes.
fn next_rebuild(reader: Reader<'_>, logs: &LogSegments, state: &mut JobState) -> Option<Task> {
    if state.is_paused() || is_pausing(reader.context, state) {
        return None;
    }
    // A database that takes no writes makes no flushes, so a bound over all jobs would never free
    // memory.
    let is_flushing = !logs.must_leave() && !reader.observers.health().is_read_only();
    let memory = if is_flushing { RebuildMemory::Bounded } else { RebuildMemory::ByJob };
    rebuild::next_rebuild(reader.context, reader.view, state, memory).map(Task::Rebuild)
}

/// The next task of a worker, marked as running.
pub(crate) fn next_task(db: &DbInner, state: &mut JobState) -> Option<Task> {
    if let Some(task) = next_rebuild(db.reader(), &db.logs, state) {
        return Some(task);
    }
    if !may_pick(&db.context, &db.observers, &db.logs, state) {
        return None;
    }
    if let Some((cf, memtable)) = claim_to_ready(state) {
        return Some(Task::Ready(cf, memtable));
    }
    if let Some(task) = rebalance::next_rebalance(&db.view, state) {
        return Some(task);
    }
    if let Some(flush) = flush::next_flush(db, state, JobSlot::Own) {
        return Some(Task::Flush(flush));
    }
    if let Some(send) = send::next_send(db, state) {
        return Some(Task::Send(send));
    }
    space::note_snapshots(db.space_owners(), state);
    if let Some(compaction) = take_compaction(db.pick_owners(), state, JobSlot::Own) {
        return Some(compaction);
    }
    if db.context.is_manual()
        && let Some(task) = invalid::next_merge(&db.context, &db.view, state)
    {
        return Some(Task::MergeInvalid(task));
    }
    let worker = if db.context.is_manual() { GcWorker::Reserved } else { GcWorker::Idle };
    gc::next_gc(db.pick_owners(), state, worker).map(Task::Gc)
}

/// The next compaction, marked as running. It ends the turn of its family.
fn take_compaction(owners: PickOwners<'_>, state: &mut JobState, slot: JobSlot) -> Option<Task> {
    let task = compaction_pick::next_compaction(owners, state, slot)?;
    state.note_compaction(task.family.id);
    Some(Task::Compact(task))
}

/// The next task of the worker that is reserved for garbage collection.
fn next_reserved_task(db: &DbInner, state: &mut JobState) -> Option<Task> {
    if !may_pick(&db.context, &db.observers, &db.logs, state) {
        return None;
    }
    if let Some(task) = invalid::next_merge(&db.context, &db.view, state) {
        return Some(Task::MergeInvalid(task));
    }
    gc::next_gc(db.pick_owners(), state, GcWorker::Reserved).map(Task::Gc)
}

fn claim_to_ready(state: &mut JobState) -> Option<(CfId, Arc<Memtable>)> {
    let (cf, memtable) = flush::next_to_ready(state)?;
    state.start_readying(memtable.id).then_some((cf, memtable))
}

/// Whether something is due, without taking it.
fn has_work(db: &DbInner, state: &mut JobState) -> bool {
    if db.context.options().read_only || db.observers.health().is_read_only() {
        return false;
    }
    if db.logs.must_leave() || state.has_sealed() || rebalance::is_rebalance_due(&db.view, state) {
        return true;
    }
    match compaction_pick::next_compaction(db.pick_owners(), state, JobSlot::Own) {
        Some(task) => {
            state.end(task.job_id);
            disk_room::return_room(&db.disk, task.room_bytes);
            true
        }
        None => {
            invalid::is_merge_due(&db.context, &db.view, state)
                || gc::is_gc_due(db.pick_owners(), state)
        }
    }
}

/// Runs a task, notes its result and drops the task. Then starts the warm pass over the outputs of
/// a compaction.
fn run_and_release(db: &DbInner, task: Task) -> Result<()> {
    let mut warm_pass = None;
    let result = run_task(db, &task, &mut warm_pass);
    note_result(db, &task, &result);
    // The task holds the version that it was picked from, and so the files that it replaced.
    drop(task);
    if let Some(pass) = warm_pass {
        pass.start(&db.storage, db.reader(), &db.warm_passes);
    }
    result
}

/// Runs a task. `warm_pass` gets the pass over the outputs of a compaction.
fn run_task(db: &DbInner, task: &Task, warm_pass: &mut Option<WarmPass>) -> Result<()> {
    match task {
        Task::Ready(cf, memtable) => {
            let result = contained("readying a memtable", || {
                flush::ready_memtable(db.stall_owners(), &db.view, *cf, memtable, Order::none());
                offer::offer_active(db.reader(), &db.logs, *cf, memtable);
                Ok(())
            });
            db.jobs.lock(Order::none()).end_readying(memtable.id);
            result
        }
        Task::ChangeMap(task) => {
            unless_dropped(&task.family, rebalance::run_map_task(db.install_owners(), task))
        }
        Task::Flush(task) => unless_dropped(&task.family, flush::run_flush_task(db, task)),
        Task::Compact(task) => {
            let end = compaction::run_compaction_task(db, task);
            *warm_pass = end.warm_pass;
            unless_dropped(&task.family, end.written.map(drop))
        }
        Task::Gc(task) => unless_dropped(&task.family, gc::run_gc_task(db, task)),
        Task::MergeInvalid(task) => {
            unless_dropped(&task.family, invalid::run_merge_task(db.job_owners(), task))
        }
        Task::Send(task) => {
            unless_dropped(&task.family, send::run_send_task(db.stall_owners(), &db.view, task))
        }
        Task::Rebuild(task) => rebuild::run_rebuild_task(db, task),
    }
}

/// Counts a failure and sets the pause, or clears an earlier failure.
fn note_result(db: &DbInner, task: &Task, result: &Result<()>) {
    match result {
        Ok(()) => {
            if db.disk.state() != SpaceState::Roomy && !matches!(task, Task::Ready(..)) {
                disk_room::renew_patience(&db.disk);
            }
            let mut state = db.jobs.lock(Order::none());
            // These tasks do not end a failure. Failures of garbage collections and of merges of
            // invalid files are kept by file, and their success says nothing about other work.
            let is_other = matches!(task, Task::Ready(..) | Task::Send(_)) || task.fails_by_file();
            if state.has_failed() && !is_other {
                state.forget_failures();
                db.observers.health().clear_failing();
            }
        }
        // The task ended because the database closes or the family was dropped. Nothing has failed.
        Err(_) if db.context.is_closing() || task.is_moot() => {}
        // A node does not give a shard. The task is tried again, or the shard is rebuilt. Nothing
        // here has failed.
        Err(error) if error.cause::<AwayError>().is_some() => {
            db.observers.stats().add(Ticker::AwayFlushesPutOff, 1);
            tracing::debug!(job = task.name(), %error, "a memory node does not give a shard now");
            if !db.context.is_manual() {
                let mut state = db.jobs.lock(Order::none());
                db.jobs.wait_for_work(&mut state, AWAY_PAUSE);
            }
        }
        // The flush was planned for an executor and ran here.
        Err(error) if error.cause::<FetchRefused>().is_some() => {
            db.observers.stats().add(Ticker::AwayFlushesTooLarge, 1);
            tracing::debug!(job = task.name(), %error, "a flush is planned again for this process");
            db.jobs.lock(Order::none()).plan_for_here();
        }
        // Only the inputs of the job wait. No necessary work has failed.
        Err(error) if task.fails_by_file() && !is_fatal_to_gc(error) => {
            tracing::warn!(job = task.name(), %error, "its files are left out for a time");
            db.observers.tell_failure(&task.name(), error);
        }
        Err(error) => {
            note_pause(&db.context, &db.jobs);
            let is_halfway = error.cause::<EnginePanic>().is_some();
            if matches!(task, Task::Flush(_)) && error.is_no_space() {
                // The next attempt has the room of the reserve.
                disk_room::give_up_reserve(&db.storage, &db.observers, &db.disk);
            }
            if matches!(task, Task::Compact(_)) && error.is_no_space() {
                // The estimate of the room was too small. No necessary work has failed.
                db.observers.stats().add(Ticker::BackgroundErrors, 1);
                tracing::warn!(job = task.name(), %error, "a compaction had no room on the disk");
            } else if error.kind() == ErrorKind::Corrupt || is_halfway {
                db.observers.fail_read_only(&db.jobs, &task.name(), error);
            } else {
                db.observers.fail_soft(&db.jobs, &task.name(), error);
            }
        }
    }
}

/// Whether a garbage collection or a merge of invalid files failed in a way that concerns the whole
/// database.
fn is_fatal_to_gc(error: &Error) -> bool {
    error.cause::<ReferenceMismatch>().is_some() || error.cause::<EnginePanic>().is_some()
}

/// Applies an edit that changes no memtable, and publishes the versions.
pub(crate) fn apply_edit(
    storage: &Storage,
    jobs: &Jobs,
    view: &ReadView,
    edit: VersionEdit,
) -> Result<()> {
    let mut manifest = storage.lock_manifest(Order::none());
    let built = manifest.apply(edit)?;
    view.republish_built(&mut jobs.lock(manifest.order()), built);
    Ok(())
}

/// Removes the files that no version, iterator or job holds any more.
pub(crate) fn remove_obsolete(storage: &Storage, observers: &Observers, view: &ReadView) {
    if storage.trash().is_empty() {
        return;
    }
    for trashed in storage.trash().take() {
        let no = trashed.no();
        let name = match &trashed {
            Trashed::Table(..) => sst_name(no),
            Trashed::Value(..) => value_file_name(no),
            Trashed::Invalid(_) => invalid_file_name(no),
        };
        // No reader asks for the blocks of the file again, so they leave the cache now.
        match trashed {
            Trashed::Table(no, reader) => {
                view.tables().evict(no);
                reader.into_iter().for_each(|reader| reader.forget_blocks());
            }
            Trashed::Value(no, reader) => {
                view.tables().evict(no);
                reader.into_iter().for_each(|reader| reader.forget_blocks());
            }
            Trashed::Invalid(_) => {}
        }
        match storage.fs().remove(&storage.path_of(&name)) {
            Ok(()) => observers.stats().add(Ticker::FilesRemoved, 1),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, "an obsolete file could not be removed; the next open does");
            }
        }
    }
}

/// The result of a job; `Ok` if its family was dropped while it ran, because nothing is left to
/// install.
fn unless_dropped(family: &Family, result: Result<()>) -> Result<()> {
    match family.dropped.load(Ordering::Acquire) {
        true => Ok(()),
        false => result,
    }
}

/// Waits for background progress, or runs a step in manual mode. Fails if background work fails.
pub(crate) fn progress_or_step<Held: Before<JobsLock>>(
    db: &DbInner,
    order: Order<Held>,
) -> Result<()> {
    db.context.check_open()?;
    db.observers.health().check_writable()?;
    if db.context.is_manual() {
        if !step(db)? {
            return Err(Error::busy("no background step is left, but the work is not done"));
        }
        return Ok(());
    }
    if let Some(error) = db.observers.health().failing() {
        return Err(error);
    }
    db.jobs.wake();
    let mut state = db.jobs.lock(order);
    db.jobs.wait_for_progress(&mut state, Duration::from_millis(20));
    Ok(())
}

/// Waits until no background work is due or running.
pub(crate) fn wait_until_idle(db: &DbInner) -> Result<()> {
    let mut state = db.jobs.lock(Order::none());
    loop {
        db.context.check_open()?;
        if let Some(error) = db.observers.health().failing() {
            return Err(error);
        }
        if state.running().is_empty() && !has_work(db, &mut state) {
            return Ok(());
        }
        db.jobs.wake();
        db.jobs.wait_for_progress(&mut state, Duration::from_millis(20));
    }
}

/// Waits until no warm pass waits or runs.
pub(crate) fn wait_for_warm_passes(
    context: &Context,
    jobs: &Jobs,
    warm_passes: &WarmPasses,
) -> Result<()> {
    let mut state = jobs.lock(Order::none());
    while warm_passes.has_any() {
        context.check_open()?;
        jobs.wait_for_progress(&mut state, Duration::from_millis(20));
    }
    Ok(())
}
