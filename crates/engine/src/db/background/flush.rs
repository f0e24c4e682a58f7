//! Flushes: planned under the jobs lock, run without a lock, installed under the manifest lock.
//!
//! A sealed memtable is first *readied* by a background step, once its last writer has inserted:
//! its filters are built, and its empty shards are marked installed. Then its shards leave as
//! [`crate::db::background::flush_plan`] says. The shards of a job are written in parallel
//! ([`crate::db::background::parallel_job`]) and installed by one edit. Each shard leaves memory
//! when it is written ([`crate::db::background::written_shards`]). With a store of shards a flush
//! is one range of keys and one job instead ([`crate::db::background::range_flush`]).
//!
//! Invariants:
//! 1. Before an install the log is synced through the job's highest sequence number. So the log
//!    durably holds everything that the files hold, and power loss cannot keep half a batch.
//! 2. The sync is left out if the database has one family and the job takes the rest of its oldest
//!    memtables. The tables then hold a prefix of all writes, even if the log has lost records
//!    (decision 0015). With a store of shards the executor must be this process as well.
//! 3. A shard is pending, running or installed, and only the job that marked it changes that.
//!
//! Thread-safety: any number of flushes run at the same time.
//! Failure: a job that fails or panics leaves its shards pending, and is tried again. Only files of
//! shards that have left memory remain. With a store of shards, a job that failed with an executor
//! runs in this process before it counts as failed.
//! Cost: one table for each filled shard and each cut, at most one log sync and one edit.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::budget::MemoryClass;
use archipelago_base::{CfId, Error, ErrorKind, Result};

use crate::border::{Border, contained};
use crate::bucket::BucketMap;
use crate::db::background::flush_plan::{FlushPlan, SealedView, WrittenView, plan_flush};
use crate::db::background::flush_task::{FlushCut, FlushPart, FlushTask, TakenMemtable};
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::job_specs::{self, OutputPlan, output_bytes};
use crate::db::background::owners::InstallOwners;
use crate::db::background::parallel_job::{self, SizedWork, Work};
use crate::db::background::rebalance::{self, sample};
use crate::db::background::taken::{FetchRefused, FetchTerms, Taken};
use crate::db::background::{range_flush, scheduler, written_shards};
use crate::db::background::{shard_cuts, space};
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::away::AwayShard;
use crate::db::state::balance::BucketChange;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::job_threads::JobPriority;
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::memtable::{Memtable, ShardHome};
use crate::db::state::running_jobs::{JobSlot, RunningKind};
use crate::db::state::sealed::{FlushTracker, Sealed, ShardState, WrittenShard};
use crate::db::write::stalling::StallOwners;
use crate::db::write::{self, disk_room, log_segments, seal, stalling};
use crate::disk_space::flush_room;
use crate::event::Event;
use crate::executor::{self, JobExecutor, LocalExecutor};
use crate::flush::FlushSpec;
use crate::job::below::Below;
use crate::job::{Cancel, JobContext, JobOutput, NoShards, ShardRef};
use crate::lock_order::{Before, JobsLock, ManifestLock, Order};
use crate::manifest::{Change, VersionEdit};
use crate::memtable::Shard;
use crate::remote::AwayError;
use crate::sabotage::{Defect, has};
use crate::stats::{Ticker, Timer};
use crate::version::rebalance::RunningFlush;

/// The oldest sealed memtable of a family that has to be readied, unless a worker does that
/// already. One that waits for its last writers does not hold the other families up.
pub(crate) fn next_to_ready(state: &JobState) -> Option<(CfId, Arc<Memtable>)> {
    state.flushes().iter().find_map(|(cf, tracker)| {
        let unready = tracker.queue().iter().find_map(Sealed::unready)?;
        let is_free = !state.is_readying(unready.id);
        is_free.then(|| (*cf, Arc::clone(unready)))
    })
}

/// Builds the filters of a sealed memtable, marks its empty shards installed, and adds a sample of
/// it to the family's window. Waits for the last writer of the memtable.
pub(crate) fn ready_memtable<Held: Before<JobsLock>>(
    owners: StallOwners<'_>,
    view: &ReadView,
    cf: CfId,
    memtable: &Arc<Memtable>,
    order: Order<Held>,
) {
    let backoff = crossbeam_utils::Backoff::new();
    while !memtable.is_quiet() {
        backoff.snooze();
    }
    for shard in &memtable.shards {
        shard.seal();
    }
    let Some(family) = view.family(cf) else { return };
    let buckets = family.current.load().version.map().len();
    let seal =
        sample(memtable, buckets.max(rebalance::buckets_initial(owners.context, &family.options)));
    let cuts = shard_cuts::next_cuts(memtable, &family.options);
    let mut state = owners.jobs.lock(order);
    let Some(tracker) = state.flushes_mut().get_mut(&cf) else { return };
    if let Some(cuts) = cuts {
        tracker.set_shard_cuts(cuts);
    }
    let Some(sealed) = tracker.find_mut(memtable.id) else { return };
    sealed.info().note_shards(memtable);
    if !sealed.make_ready() {
        return;
    }
    let info = Arc::clone(sealed.info());
    for (index, _) in info.shards().iter().enumerate().filter(|(_, shard)| !shard.is_filled) {
        sealed.install(index..index + 1);
    }
    tracker.forget_installed();
    rebalance::note_seal(owners.context, &mut state, &family, seal);
    view.republish(&mut state, &family, None);
    drop(state);
    stalling::recompute_stall(owners, &family);
    owners.jobs.notify_progress();
    owners.jobs.wake();
}

/// The next flush of any family. Its shards are marked running.
pub(crate) fn next_flush(db: &DbInner, state: &mut JobState, slot: JobSlot) -> Option<FlushTask> {
    if !state.has_sealed() {
        return None;
    }
    if db.context.away().is_some() {
        return range_flush::next_range_flush(db, state, slot);
    }
    let families: Vec<CfId> = state.flushes().keys().copied().collect();
    families.into_iter().find_map(|cf| next_flush_of(&db.view, state, cf))
}

/// The next flush of a family, in a database without a store of memtable shards.
fn next_flush_of(view: &ReadView, state: &mut JobState, cf: CfId) -> Option<FlushTask> {
    let family = view.family(cf)?;
    let held = state.running().changing(cf).cloned();
    let planned_cuts = state.planned_cuts(&family.current.load().version);
    let tracker = state.flushes_mut().get_mut(&cf)?;
    let views: Vec<SealedView<'_>> = tracker
        .queue()
        .iter()
        .map(|sealed| SealedView {
            map: &sealed.info().map,
            shards: sealed.shards(),
            ready: sealed.is_ready(),
            unlogged: sealed.info().unlogged,
        })
        .collect();
    let written = written_views(tracker);
    let FlushPlan { memtables, shards, range } = plan_flush(&views, &written, held.as_ref())?;
    drop(views);
    let mut taken = Vec::with_capacity(memtables.len());
    for sealed in tracker.range_mut(memtables) {
        sealed.begin(shards.clone());
        taken.push(TakenMemtable { info: Arc::clone(sealed.info()), shards: shards.clone() });
    }
    // The tables of a job over several shards are cut where the shards end.
    let ends = taken.first().map_or(&[][..], |taken| taken.info.map.boundaries());
    let cuts = [ends, &planned_cuts].concat();
    let flush = RunningFlush { range: range.clone(), planned_cuts: cuts };
    let kind = RunningKind::Flush { cf, flush };
    let job_id = state.start(kind);
    let cut = FlushCut::ByShard;
    Some(FlushTask { job_id, family, memtables: taken, cut, range, planned_cuts })
}

/// The states of the shards of a memtable as a flush sees them. A lost shard counts as running,
/// because a rebuild must take it first.
pub(crate) fn states_for_flush(sealed: &Sealed, has_lost: bool) -> Cow<'_, [ShardState]> {
    if !has_lost {
        return Cow::Borrowed(sealed.shards());
    }
    let is_lost = |home: &Option<ShardHome>| {
        let away = home.as_ref().and_then(ShardHome::away);
        away.is_some_and(|away| away.is_lost() && !away.has_copy())
    };
    let states = sealed.shards().iter().zip(&sealed.view().homes);
    let state = |(state, home): (&ShardState, &Option<ShardHome>)| match *state {
        ShardState::Pending if is_lost(home) => ShardState::Running,
        state => state,
    };
    Cow::Owned(states.map(state).collect())
}

/// The shards that failed flushes of a family have written.
fn written_views(tracker: &FlushTracker) -> Vec<WrittenView> {
    let view = |written: &WrittenShard| {
        let is_own = |sealed: &Sealed| written.memtables.contains(&sealed.info().id);
        let first = tracker.queue().iter().position(is_own)?;
        let last = tracker.queue().iter().rposition(is_own)?;
        Some(WrittenView { memtables: first..last + 1, shard: written.shard })
    };
    tracker.written().iter().filter_map(view).collect()
}

/// Runs a planned flush and installs it. Afterwards its shards are installed or pending again.
pub(crate) fn run_flush_task(db: &DbInner, task: &FlushTask) -> Result<()> {
    let result = contained(&format!("a flush of \"{}\"", task.family.name), || {
        db.context.fault_point("flush.picked")?;
        flush_somewhere(db, task)
    });
    let mut state = db.jobs.lock(Order::none());
    state.end(task.job_id);
    if result.is_err()
        && let Some(tracker) = state.flushes_mut().get_mut(&task.family.id)
    {
        for sealed in tracker.queue_mut() {
            let Some(taken) = task.memtable(sealed.info().id) else { continue };
            for shard in taken.shards.clone() {
                if sealed.shards()[shard] == ShardState::Running {
                    sealed.give_back(shard);
                }
            }
        }
    }
    drop(state);
    stalling::recompute_stall(db.stall_owners(), &task.family);
    db.jobs.notify_progress();
    result
}

/// Executor of the jobs of a flush, and whether a job failed there.
struct FlushPlace {
    executor: Arc<dyn JobExecutor>,
    has_failed: Arc<AtomicBool>,
}

impl FlushPlace {
    fn of(executor: Arc<dyn JobExecutor>) -> Self {
        Self { executor, has_failed: Arc::default() }
    }
}

/// Runs a flush and installs it. With a store of memtable shards, a flush that failed at an
/// executor is planned again as long as the executor wants that, and then runs in this process. So
/// damage that an executor reports counts only if this process finds it, too.
fn flush_somewhere(db: &DbInner, task: &FlushTask) -> Result<()> {
    if db.context.away().is_none() {
        return flush_and_install(db, task, &FlushPlace::of(Arc::clone(db.jobs.executor())));
    }
    let place = FlushPlace::of(Arc::clone(db.jobs.executor()));
    let flushed = executor::planning_again(&*place.executor, is_put_off, || {
        place.has_failed.store(false, Ordering::Relaxed);
        flush_and_install(db, task, &place)
    });
    match flushed {
        Err(error) if may_run_here(&db.context, &place, &error) => {
            db.observers.stats().add(Ticker::AwayFlushesRunHere, 1);
            let executor = place.executor.name();
            tracing::warn!(%error, executor, "a flush failed away and runs in this process");
            db.context.fault_point("flush.run_here")?;
            flush_and_install(db, task, &FlushPlace::of(Arc::new(LocalExecutor)))
        }
        flushed => flushed,
    }
}

/// Whether a flush has not failed, but must wait for its shards: a node does not give one, or the
/// shards are too many for this process.
pub(crate) fn is_put_off(error: &Error) -> bool {
    error.cause::<AwayError>().is_some() || error.cause::<FetchRefused>().is_some()
}

/// Whether a flush that failed with an executor runs in this process now.
fn may_run_here(context: &Context, place: &FlushPlace, error: &Error) -> bool {
    let is_final = matches!(error.kind(), ErrorKind::Closed | ErrorKind::Fenced);
    place.has_failed.load(Ordering::Relaxed)
        && !place.executor.runs_here()
        && !is_put_off(error)
        && !is_final
        && !context.is_closing()
}

fn flush_and_install(db: &DbInner, task: &FlushTask, place: &FlushPlace) -> Result<()> {
    let bytes = task.whole_bytes();
    let cuts = disk_room::room_cuts_max(&db.disk, &task.family.current.load().version);
    let tables = task.tables_max() + cuts;
    disk_room::ensure_room(db, flush_room(bytes, tables as u64), "a flush")?;
    if let Some(shard) = only_shard(&db.jobs, task) {
        set_first_map(db.install_owners(), &task.family, &shard, Order::none())?;
    }
    let numbers = JobNumbers::new(db.job_owners(), Order::none());
    let output = write_shards(db, task, &numbers, place)?;
    let clock = db.context.clock();
    let written_ns = clock.now_ns();
    let mut synced_ns = written_ns;
    let installed = db
        .context
        .fault_point("flush.before_install")
        .and_then(|()| sync_before_install(db, task))
        .inspect(|()| synced_ns = clock.now_ns())
        .and_then(|()| install_flush(db, task, &output));
    match &installed {
        Ok(()) => {
            let stats = db.observers.stats();
            stats.add(Ticker::FlushLogSyncNs, synced_ns.saturating_sub(written_ns));
            stats.add(Ticker::FlushInstallNs, clock.now_ns().saturating_sub(synced_ns));
            numbers.note_installed();
        }
        Err(_) => written_shards::discard_unpublished(&numbers, &output),
    }
    installed
}

/// The shard of a task over a memtable that has only one.
fn only_shard(jobs: &Jobs, task: &FlushTask) -> Option<Arc<Shard>> {
    let is_only = task.memtables.first().is_some_and(|taken| taken.info.map.len() == 1);
    let state = is_only.then(|| jobs.lock(Order::none()))?;
    Taken::of_task(&state, task, FlushPart::Whole).first().cloned()
}

/// Writes the files of a flush: its shards in parallel, on at most `max_background_jobs` threads.
/// If several threads write, the log is synced meanwhile, unless the install needs no sync.
fn write_shards(
    db: &DbInner,
    task: &FlushTask,
    numbers: &JobNumbers<'_>,
    place: &FlushPlace,
) -> Result<JobOutput> {
    let started_ns = db.context.clock().now_ns();
    let cancel = Cancel::under(db.context.closing());
    let (mut works, mut parts): (Vec<SizedWork>, Vec<FlushPart>) = Default::default();
    let mut is_apart = false;
    for part in task.filled_parts() {
        let taken = Taken::of_task(&db.jobs.lock(Order::none()), task, part);
        if !taken.is_empty() {
            is_apart |= taken.is_apart();
            let work = shard_work(numbers, task, place, PartWork { part, taken, cancel: &cancel })?;
            works.push((task.data_bytes(part), work));
            parts.push(part);
        }
    }
    let threads = works.len().min(db.context.options().max_background_jobs);
    // A job that fetches its shards charges the memory of its outputs at the first fetch.
    let held_bytes = if is_apart { 0 } else { output_bytes(threads, task.whole_bytes()) };
    let _held = db.context.budget().hold(MemoryClass::Job, held_bytes);
    let sync = || if threads > 1 { sync_before_install(db, task) } else { Ok(()) };
    let mut left = works.len();
    let publish = |work: usize, output: &JobOutput| {
        left -= 1;
        match parts[work] {
            // The edit follows the last shard.
            FlushPart::Shard(at) if left > 0 => {
                written_shards::publish(numbers, db.stall_owners(), task, at, output)
            }
            _ => Ok(()),
        }
    };
    let run = parallel_job::ParallelRun { kind: JobPriority::Normal, cancel, threads };
    let ended = parallel_job::run_parallel(&db.context, &db.jobs, run, works, sync, publish);
    let (mut outputs, failed) = ended.into_parts();
    let duration_ns = db.context.clock().now_ns().saturating_sub(started_ns);
    let Some(error) = failed else {
        let state = db.jobs.lock(Order::none());
        let earlier = written_shards::earlier_outputs(&state, task, &outputs)?;
        outputs.extend(earlier);
        return Ok(JobOutput::joined(outputs, duration_ns));
    };
    written_shards::discard_unpublished(numbers, &JobOutput::joined(outputs, duration_ns));
    Err(error)
}

/// A part of a flush, and the shards that it takes.
struct PartWork<'a> {
    part: FlushPart,
    taken: Taken,
    cancel: &'a Cancel,
}

/// The flush of one part, a job of its own for the executor.
fn shard_work(
    numbers: &JobNumbers<'_>,
    task: &FlushTask,
    place: &FlushPlace,
    work: PartWork<'_>,
) -> Result<Work> {
    let owners = numbers.owners();
    let PartWork { part, taken, cancel } = work;
    let spec = flush_spec(numbers, task, part, taken.refs())?;
    let taken = match taken.is_apart() {
        true => taken.bounded(fetch_terms(owners.context, owners.jobs, task, cancel)),
        false => taken,
    };
    let warm = task.memtables.iter().any(|taken| taken.info.was_read);
    let context =
        JobContext { cancel: cancel.clone(), warm, ..job_specs::job_context(owners, &NoShards) };
    let (executor, fault) = (Arc::clone(&place.executor), owners.context.fault());
    let has_failed = Arc::clone(&place.has_failed);
    let border = Border::new("job executor", executor.name(), Some(&task.family.name));
    let entries = taken.entries();
    Ok(Box::new(move || {
        fault.as_ref().map_or(Ok(()), |fault| fault("flush.shard"))?;
        let context = JobContext { shards: &taken, ..context };
        let run = || -> Result<JobOutput> {
            let output = border.call(|| executor.flush(&spec, &context))??;
            // An output that does not match the spec may name files of another job. So its files
            // stay.
            executor::check_flush(&output, &spec, entries)?;
            executor::examine(&*executor, &output, &spec.output, &context)?;
            Ok(output)
        };
        let output = run().inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
        if !output.value_files.is_empty() {
            fault.as_ref().map_or(Ok(()), |fault| fault("flush.value_file"))?;
        }
        Ok(output)
    }))
}

/// Terms on which a part of a flush fetches images.
fn fetch_terms(context: &Context, jobs: &Jobs, task: &FlushTask, cancel: &Cancel) -> FetchTerms {
    let memtable_bytes = context.memtable_bytes_max(&task.family.options);
    FetchTerms {
        room: Arc::clone(jobs.fetch_room()),
        bytes_max: memtable_bytes.saturating_mul(range_flush::FETCHED_MEMTABLES_MAX),
        cancel: cancel.clone(),
        budget: Arc::clone(context.budget()),
        output_bytes: output_bytes(1, task.whole_bytes()),
    }
}

/// Syncs the log through the job's last write, because everything that its files hold must be
/// durable in the log. The sync is left out if the files complete a prefix of all writes in tables,
/// and no later write is in tables. Then the files need no log.
fn sync_before_install(db: &DbInner, task: &FlushTask) -> Result<()> {
    let is_logged = task.memtables.iter().any(|taken| taken.info.oldest_log.is_some());
    // A job that may have run elsewhere must not skip the sync, because only this process knows for
    // sure which records it took.
    let may_skip = db.context.away().is_none() || db.jobs.executor().runs_here();
    let is_needed = is_logged && !(may_skip && leaves_a_prefix(&db.jobs, &db.view, task));
    if is_needed && !has(Defect::InstallBeforeLogSync) {
        write::sync_log(db, task.through(), Order::none())?;
    }
    Ok(())
}

/// Whether, once `task` is installed, the tables of the database hold every write up to the job's
/// last one and none after it. That holds if the database has one family, and the task completes
/// its oldest memtables. For shards that earlier jobs installed alone, the log was synced then. A
/// family that is created meanwhile syncs the log.
fn leaves_a_prefix(jobs: &Jobs, view: &ReadView, task: &FlushTask) -> bool {
    if view.live_families().len() != 1 {
        return false;
    }
    let state = jobs.lock(Order::none());
    let Some(tracker) = state.flushes().get(&task.family.id) else { return false };
    let oldest = tracker.queue().iter().zip(&task.memtables);
    let complete = |(sealed, taken): (&Sealed, &TakenMemtable)| {
        let is_left = |(at, shard): (usize, &ShardState)| {
            *shard != ShardState::Installed && !taken.shards.contains(&at)
        };
        sealed.info().id == taken.info.id && !sealed.shards().iter().enumerate().any(is_left)
    };
    tracker.queue().len() >= task.memtables.len() && oldest.into_iter().all(complete)
}

/// The spec of a part of the task, with the shards of `refs`. Its files are cut at the boundaries
/// of the bucket map, at planned cuts, and where room on the disk asks for cuts.
pub(crate) fn flush_spec<Held: Before<ManifestLock>>(
    numbers: &JobNumbers<'_, Held>,
    task: &FlushTask,
    part: FlushPart,
    refs: Vec<ShardRef>,
) -> Result<FlushSpec> {
    let owners = numbers.owners();
    let version = Arc::clone(&task.family.current.load().version);
    let cuts = [&task.planned_cuts[..], &disk_room::room_cuts(owners.disk, &version)].concat();
    let cuts = version.map().boundaries_and(&cuts);
    let bytes = task.data_bytes(part);
    let range = task.range_of(part);
    Ok(FlushSpec {
        cf: task.family.id.0,
        range,
        shards: refs,
        retention: job_specs::retention(
            owners.context,
            owners.view,
            &task.family,
            Below::Everything,
        ),
        output: job_specs::output_spec(numbers, &task.family, OutputPlan::l0(cuts, bytes))?,
    })
}

fn install_flush(db: &DbInner, task: &FlushTask, output: &JobOutput) -> Result<()> {
    let family = &task.family;
    let cf = family.id;
    let mut edit = VersionEdit::new();
    add_output(&mut edit, cf, output);
    edit.flushed_through(cf, task.range.clone(), task.through());
    let (files, bytes) = (output.files.iter().map(|meta| meta.no).collect(), output.bytes_written);
    let (floor, is_of_nodes) = {
        let mut manifest = db.storage.lock_manifest(Order::none());
        family.check_alive()?;
        // A segment may be removed or overwritten only once the manifest says that it is not
        // needed. So the log is dropped below the floor of this edit.
        let floor = log_segments::log_floor(
            &db.logs,
            &db.view,
            &db.jobs.lock(manifest.order()),
            |cf, memtable, shard| task.takes(cf, memtable, shard),
        );
        edit.push(Change::LogFloor(floor));
        let kept = manifest.space_figures(cf);
        space::keep_figures(&mut edit, &db.jobs.lock(manifest.order()), cf, kept, None);
        let built = manifest.apply(edit)?;
        let mut state = db.jobs.lock(manifest.order());
        let retired = mark_installed(&mut state, task);
        let is_of_nodes = !retired.is_empty();
        db.view.republish_built(&mut state, built);
        if let Some(away) = db.context.away() {
            away.retire(retired);
        }
        space::note_flush(db.space_owners(), &mut state, family, output);
        (floor, is_of_nodes)
    };
    log_segments::drop_logs_below(db, floor);
    let bytes_flushed = task.whole_bytes();
    db.pacing.drain().add(bytes_flushed);
    let duration = Duration::from_nanos(output.duration_ns);
    // The lock is held over the measurement, so that flushes that end at the same time are all
    // counted.
    let state = db.jobs.lock(Order::none());
    db.pacing.measure_flush(bytes_flushed, state.running().flushes_len(), duration);
    if is_of_nodes {
        db.pacing.measure_node_flush(bytes_flushed, state.running().flushes_len(), duration);
    }
    drop(state);
    family.backlog_since_ns.store(db.context.clock().now_ns(), Ordering::Relaxed);
    db.observers.stats().add(Ticker::Flushes, 1);
    db.observers.stats().add(Ticker::FlushBytesWritten, output.bytes_written);
    job_specs::count_job(&db.observers, output);
    db.observers.stats().record(Timer::Flush, output.duration_ns);
    db.observers.tell(&Event::FlushInstalled {
        cf,
        range: task.range.clone(),
        files,
        bytes,
        duration_ns: output.duration_ns,
    });
    Ok(())
}

/// Adds the tables and value files of a flush.
pub(crate) fn add_output(edit: &mut VersionEdit, cf: CfId, output: &JobOutput) {
    for meta in &output.files {
        edit.add_file(cf, 0, meta.clone());
    }
    for meta in &output.value_files {
        edit.add_value_file(cf, meta.clone());
    }
}

/// Whether the edit adds a table of the family.
pub(crate) fn adds_table(edit: &VersionEdit, of: CfId) -> bool {
    edit.changes.iter().any(|change| matches!(change, Change::AddFile { cf, .. } if *cf == of))
}

/// Marks the shards of a flush as installed and takes them from the view. Returns those that are at
/// nodes and have no copy.
fn mark_installed(state: &mut JobState, task: &FlushTask) -> Vec<Arc<AwayShard>> {
    let mut retired = Vec::new();
    let Some(tracker) = state.flushes_mut().get_mut(&task.family.id) else { return retired };
    for taken in &task.memtables {
        let Some(sealed) = tracker.find_mut(taken.info.id) else { continue };
        for shard in &sealed.shards()[taken.shards.clone()] {
            assert_ne!(*shard, ShardState::Pending, "installed what ran");
        }
        let homes = sealed.view().homes[taken.shards.clone()].iter().flatten();
        let apart = homes.filter(|home| home.is_apart()).filter_map(ShardHome::away);
        retired.extend(apart.cloned());
        sealed.install(taken.shards.clone());
    }
    tracker.forget_written(|shard| written_shards::is_of(shard, task));
    tracker.forget_installed();
    retired
}

/// Cuts the key space by the keys of the first memtable, once (BucketLSM §V-C). The parts have
/// equal numbers of records, because the index knows records and not bytes. If values differ in
/// size, later map changes correct the parts, because bucket temperatures are measured in bytes.
/// Only installed tables are checked: a caller whose edit has tables of the family already
/// ([`adds_table`]) must not call this function, because the map might cut through them.
pub(crate) fn set_first_map<Held: Before<ManifestLock> + Before<JobsLock>>(
    owners: InstallOwners<'_>,
    family: &Family,
    shard: &Shard,
    order: Order<Held>,
) -> Result<()> {
    let wanted = rebalance::buckets_initial(owners.context, &family.options);
    if wanted <= 1 || family.current.load().version.map().epoch().0 > 0 {
        return Ok(());
    }
    let boundaries = shard.split_keys(wanted);
    if boundaries.is_empty() {
        return Ok(());
    }
    let map = BucketMap::new(archipelago_base::Epoch(1), boundaries)?;
    let buckets = map.len();
    {
        let mut manifest = owners.storage.lock_manifest(order);
        // The version is checked under the lock. An ingestion may just have put a file into L0 that
        // the new map would cut through.
        let version = Arc::clone(&family.current.load().version);
        if version.map().epoch().0 > 0 || version.l0_layers_max() > 0 {
            return Ok(());
        }
        let mut edit = VersionEdit::new();
        edit.push(Change::SetBucketMap { cf: family.id, map });
        let built = manifest.apply(edit)?;
        owners.view.republish_built(&mut owners.jobs.lock(manifest.order()), built);
    }
    let reason = format!(
        "{buckets} buckets of equally many records, by the {} of the first memtable",
        shard.entries()
    );
    let unix_ms = owners.context.clock().unix_ms();
    let change = BucketChange { unix_ms, epoch: archipelago_base::Epoch(1), buckets, reason };
    rebalance::note_map_change(owners.observers, owners.jobs, order, family, change);
    Ok(())
}

/// Writes all memtables of the family to L0, and waits until they are installed.
pub(crate) fn flush_family(db: &DbInner, family: &Arc<Family>) -> Result<()> {
    let newest = loop {
        let mut commit = db.writes.committer().lock(Order::none());
        let active = commit.active_of(family.id).cloned();
        let Some(active) = active else { return family.check_alive() };
        if active.is_empty() {
            break active.id;
        }
        if seal::may_seal(family) {
            seal::seal_active(db, &mut commit, family);
            break active.id + 1;
        }
        drop(commit);
        scheduler::progress_or_step(db, Order::none())?;
    };
    if let Some(tracker) = db.jobs.lock(Order::none()).flushes_mut().get_mut(&family.id) {
        tracker.make_due(newest);
    }
    let pending = |state: &JobState| {
        let tracker = state.flushes().get(&family.id);
        tracker.is_some_and(|t| t.queue().iter().any(|sealed| sealed.info().id < newest))
    };
    while pending(&db.jobs.lock(Order::none())) {
        family.check_alive()?;
        scheduler::progress_or_step(db, Order::none())?;
    }
    // The memtables of a family that was dropped meanwhile are gone, not flushed.
    family.check_alive()
}

/// Begins to write all memtables of the family to L0.
pub(crate) fn start_flush(db: &DbInner, family: &Arc<Family>) -> Result<()> {
    let mut commit = db.writes.committer().lock(Order::none());
    let Some(active) = commit.active_of(family.id) else { return family.check_alive() };
    if active.is_empty() {
        return Ok(());
    }
    if seal::may_seal(family) {
        seal::seal_active(db, &mut commit, family);
        if let Some(tracker) = db.jobs.lock(commit.order()).flushes_mut().get_mut(&family.id) {
            tracker.make_all_due();
        }
        return Ok(());
    }
    // The family has the largest number of sealed memtables, so one of them has to be written
    // first.
    drop(commit);
    flush_family(db, family)
}

/// Flushes memtables with records that no log has. Records that are written during the call may
/// stay in memory, so the close refuses writes first.
pub(crate) fn flush_unlogged(db: &DbInner) -> Result<()> {
    if db.context.options().read_only || db.observers.health().is_read_only() {
        return Ok(());
    }
    for family in db.view.live_families() {
        let current = family.current.load_full();
        let sealed = db
            .jobs
            .lock(Order::none())
            .flushes()
            .get(&family.id)
            .is_some_and(|tracker| tracker.queue().iter().any(|sealed| sealed.info().unlogged));
        if sealed || current.active.has_unlogged() {
            match flush_family(db, &family) {
                // The family was dropped meanwhile, so nothing is left to flush.
                Err(_) if family.check_alive().is_err() => {}
                flushed => flushed?,
            }
        }
    }
    Ok(())
}
