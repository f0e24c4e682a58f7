//! Flushes: planning (under the jobs lock), running (no lock), installing (manifest lock).
//!
//! A sealed memtable is first *readied* by a background step, once its last writer has inserted:
//! its filters are built, and its empty shards are marked installed. Then its shards leave as
//! [`crate::db::background::flush_plan`] says. The shards of a job are written in parallel
//! ([`crate::db::background::parallel_job`]) and installed by one edit. Each shard leaves memory
//! when it is written ([`crate::db::background::written_shards`]).
//!
//! Invariants:
//! 1. Before an install the log is synced through the job's highest sequence number, so that power
//!    loss cannot keep half a batch: everything that a file holds, the log holds durably.
//! 2. The sync is left out if the database has one family and the job takes the rest of its oldest
//!    memtables. The tables then hold a prefix of all writes, whatever the log has lost (decision
//!    0015).
//! 3. A shard is pending, running or installed, and only the job that marked it changes that.
//!
//! Thread-safety: any number of flushes run at the same time.
//! Failure: a job that fails or panics leaves its shards pending and no files but those of shards
//! that have left memory; it is tried again.
//! Cost: one table for each filled shard and each cut, at most one log sync and one edit.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::budget::MemoryClass;
use archipelago_base::{CfId, Result, SeqNo};

use crate::border::{Border, contained};
use crate::bucket::BucketMap;
use crate::db::background::compaction::{self, OutputPlan, output_bytes};
use crate::db::background::due::DueInput;
use crate::db::background::flush_plan::{
    FlushPlan, PlanBounds, SealedView, WrittenView, plan_flush,
};
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::parallel_job::{self, SizedWork, Work};
use crate::db::background::rebalance::{self, sample};
use crate::db::background::scheduler;
use crate::db::background::written_shards::{self, Taken};
use crate::db::background::{shard_cuts, space};
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::family::Family;
use crate::db::state::job_threads::JobPriority;
use crate::db::state::jobs::{
    FlushTracker, JobState, Jobs, RunningKind, Sealed, ShardState, WrittenShard,
};
use crate::db::state::memtable::{Memtable, SealedInfo, ShardHome};
use crate::db::write::{self, disk_room, log_segments, seal, stalling};
use crate::disk_space::flush_room;
use crate::event::Event;
use crate::executor;
use crate::flush::FlushSpec;
use crate::job::below::Below;
use crate::job::{Cancel, JobContext, JobOutput, NoShards, ShardRef};
use crate::key::KeyRange;
use crate::lock_order::{Before, JobsLock, ManifestLock, Order};
use crate::manifest::{Change, VersionEdit};
use crate::memtable::Shard;
use crate::stats::{Ticker, Timer};
use crate::version::rebalance::RunningFlush;

/// Memtables whose images one flush fetches from memory nodes at most, by their size. It may fetch
/// more if that is one memtable.
const FETCHED_MEMTABLES_MAX: u64 = 2;

/// A flush that was planned: its shards are marked running.
pub(crate) struct FlushTask {
    pub(crate) job_id: u64,
    pub(crate) family: Arc<Family>,
    /// Memtables of the job, oldest first.
    pub(crate) memtables: Vec<Arc<SealedInfo>>,
    pub(crate) shards: std::ops::Range<usize>,
    pub(crate) range: KeyRange,
    /// Keys at which its files are cut besides the boundaries of the map.
    pub(crate) planned_cuts: Vec<Vec<u8>>,
}

impl FlushTask {
    /// Everything of the family in the range with at most this sequence number is in the job or
    /// in older files.
    fn through(&self) -> SeqNo {
        self.memtables.iter().map(|memtable| memtable.last_seq).max().unwrap_or_default()
    }

    /// Whether it flushes that shard.
    pub(crate) fn takes(&self, family: CfId, memtable: &SealedInfo, shard: usize) -> bool {
        self.family.id == family
            && self.shards.contains(&shard)
            && self.memtables.iter().any(|taken| taken.id == memtable.id)
    }

    pub(crate) fn data_bytes(&self, shards: std::ops::Range<usize>) -> u64 {
        self.memtables
            .iter()
            .flat_map(|memtable| &memtable.shards()[shards.clone()])
            .map(|shard| shard.data_bytes)
            .sum()
    }

    /// The keys of one of its shards.
    pub(crate) fn range_of(&self, shard: usize) -> KeyRange {
        match self.memtables.first() {
            Some(memtable) => memtable.map.range(shard),
            None => self.range.clone(),
        }
    }

    /// The shards that have something to be flushed, each with its index.
    fn filled_shards(&self) -> impl Iterator<Item = usize> {
        let is_filled = move |at: &usize| {
            self.memtables.iter().any(|memtable| memtable.shards()[*at].is_filled)
        };
        self.shards.clone().filter(is_filled)
    }
}

/// A sealed memtable that has to be readied.
pub(crate) fn next_to_ready(state: &JobState) -> Option<(CfId, Arc<Memtable>)> {
    state.flushes().iter().find_map(|(cf, tracker)| {
        let unready = tracker.queue.iter().find_map(|sealed| sealed.unready.as_ref())?;
        Some((*cf, Arc::clone(unready)))
    })
}

/// Builds the filters of a sealed memtable, marks its empty shards installed and takes it into
/// the family's window.
pub(crate) fn ready_memtable<Held: Before<JobsLock>>(
    db: &DbInner,
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
    let Some(family) = db.view.family(cf) else { return };
    let buckets = family.current.load().version.map().len();
    let seal =
        sample(memtable, buckets.max(rebalance::buckets_initial(&db.context, &family.options)));
    let cuts = shard_cuts::next_cuts(memtable, &family.options);
    let mut state = db.jobs.lock(order);
    let Some(tracker) = state.flushes_mut().get_mut(&cf) else { return };
    if let Some(cuts) = cuts {
        tracker.shard_cuts = cuts;
    }
    let Some(sealed) = tracker.queue.iter_mut().find(|s| s.info.id == memtable.id) else {
        return;
    };
    sealed.info.note_shards(memtable);
    if sealed.unready.take().is_none() {
        return;
    }
    let info = Arc::clone(&sealed.info);
    for (index, _) in info.shards().iter().enumerate().filter(|(_, shard)| !shard.is_filled) {
        sealed.shards[index] = ShardState::Installed;
        sealed.take_from_view(index..index + 1);
    }
    tracker.queue.retain(|sealed| !sealed.is_installed());
    rebalance::note_seal(db, &mut state, &family, seal);
    db.view.republish(&mut state, &family, None);
    drop(state);
    stalling::recompute_stall(&db.context, &db.observers, &db.pacing, &db.jobs, &family);
    db.jobs.notify_progress();
    db.jobs.wake();
}

/// The next flush of any family; its shards are marked running.
pub(crate) fn next_flush(db: &DbInner, state: &mut JobState) -> Option<FlushTask> {
    if !state.has_sealed() {
        return None;
    }
    let due = DueInput::now(db, state);
    let families: Vec<CfId> = state.flushes().keys().copied().collect();
    families.into_iter().find_map(|cf| {
        let due_below = due.as_ref().map_or(u64::MAX, |due| due.due_below(state, cf));
        next_flush_of(db, state, cf, due_below)
    })
}

/// The next flush of a family; memtables with numbers from `due_below` on stay, and so do lost
/// shards.
fn next_flush_of(
    db: &DbInner,
    state: &mut JobState,
    cf: CfId,
    due_below: u64,
) -> Option<FlushTask> {
    let family = db.view.family(cf)?;
    let away = db.context.away();
    let has_lost = away.is_some_and(|away| away.has_lost());
    let full = db.context.memtable_bytes_max(&family.options);
    let fetch_bytes_max = full.saturating_mul(FETCHED_MEMTABLES_MAX);
    let held = state.changing(cf).cloned();
    let planned_cuts = state.planned_cuts(&family.current.load().version);
    let tracker = state.flushes_mut().get_mut(&cf)?;
    let due = tracker.queue.iter().take_while(|sealed| sealed.info.id < due_below);
    let states: Vec<_> = due.clone().map(|sealed| states_for_flush(sealed, has_lost)).collect();
    let apart_bytes = |sealed| away.map_or_else(Vec::new, |_| apart_bytes(sealed));
    let apart: Vec<Vec<u64>> = due.clone().map(apart_bytes).collect();
    let views: Vec<SealedView<'_>> = due
        .zip(states.iter().zip(&apart))
        .map(|(sealed, (states, apart_bytes))| SealedView {
            map: &sealed.info.map,
            shards: states,
            apart_bytes,
            ready: sealed.is_ready(),
            unlogged: sealed.info.unlogged,
        })
        .collect();
    let written = written_views(tracker);
    let bounds = PlanBounds { written: &written, fetch_bytes_max };
    let FlushPlan { memtables, shards, range } = plan_flush(&views, &bounds, held.as_ref())?;
    drop(views);
    drop(states);
    let mut taken = Vec::with_capacity(memtables.len());
    for sealed in tracker.queue.range_mut(memtables) {
        for shard in shards.clone() {
            if sealed.shards[shard] == ShardState::Pending {
                sealed.shards[shard] = ShardState::Running;
            }
        }
        taken.push(Arc::clone(&sealed.info));
    }
    // What a job over several shards writes ends where they do.
    let ends = taken.first().map_or(&[][..], |memtable| memtable.map.boundaries());
    let cuts = [ends, &planned_cuts].concat();
    let flush = RunningFlush { range: range.clone(), planned_cuts: cuts };
    let kind = RunningKind::Flush { cf, flush };
    let job_id = state.start(kind);
    Some(FlushTask { job_id, family, memtables: taken, shards, range, planned_cuts })
}

/// Bytes of the images that a flush of each shard of a memtable fetches.
fn apart_bytes(sealed: &Sealed) -> Vec<u64> {
    let bytes = |home: &Option<ShardHome>| {
        let apart = home.as_ref().filter(|home| home.is_apart()).and_then(ShardHome::away);
        apart.map_or(0, |away| away.figures().image_bytes)
    };
    sealed.view.homes.iter().map(bytes).collect()
}

/// The states of the shards of a memtable as a flush sees them: a lost one is the rebuild's.
fn states_for_flush(sealed: &Sealed, has_lost: bool) -> Cow<'_, [ShardState]> {
    if !has_lost {
        return Cow::Borrowed(&sealed.shards);
    }
    let is_lost = |home: &Option<ShardHome>| {
        let away = home.as_ref().and_then(ShardHome::away);
        away.is_some_and(|away| away.is_lost() && !away.has_copy())
    };
    let states = sealed.shards.iter().zip(&sealed.view.homes);
    let state = |(state, home): (&ShardState, &Option<ShardHome>)| match *state {
        ShardState::Pending if is_lost(home) => ShardState::Running,
        state => state,
    };
    Cow::Owned(states.map(state).collect())
}

/// The shards that failed flushes of a family have written.
fn written_views(tracker: &FlushTracker) -> Vec<WrittenView> {
    let view = |written: &WrittenShard| {
        let is_own = |sealed: &Sealed| written.memtables.contains(&sealed.info.id);
        let first = tracker.queue.iter().position(is_own)?;
        let last = tracker.queue.iter().rposition(is_own)?;
        Some(WrittenView { memtables: first..last + 1, shard: written.shard })
    };
    tracker.written.iter().filter_map(view).collect()
}

/// Runs a planned flush and installs it; afterwards its shards are installed or pending again.
pub(crate) fn run_flush_task(db: &DbInner, task: &FlushTask) -> Result<()> {
    let result = contained(&format!("a flush of \"{}\"", task.family.name), || {
        db.context.fault_point("flush.picked")?;
        flush_and_install(db, task)
    });
    let mut state = db.jobs.lock(Order::none());
    state.end(task.job_id);
    if result.is_err()
        && let Some(tracker) = state.flushes_mut().get_mut(&task.family.id)
    {
        let ids: Vec<u64> = task.memtables.iter().map(|memtable| memtable.id).collect();
        for sealed in tracker.queue.iter_mut().filter(|s| ids.contains(&s.info.id)) {
            for shard in task.shards.clone() {
                if sealed.shards[shard] == ShardState::Running {
                    sealed.shards[shard] = ShardState::Pending;
                }
            }
        }
    }
    drop(state);
    stalling::recompute_stall(&db.context, &db.observers, &db.pacing, &db.jobs, &task.family);
    db.jobs.notify_progress();
    result
}

fn flush_and_install(db: &DbInner, task: &FlushTask) -> Result<()> {
    let bytes = task.data_bytes(task.shards.clone());
    let cuts = disk_room::room_cuts_max(&db.disk, &task.family.current.load().version);
    let tables = task.shards.len() * task.memtables.len() + cuts;
    disk_room::ensure_room(db, flush_room(bytes, tables as u64), "a flush")?;
    if let Some(shard) = only_shard(db, task) {
        set_first_map(db, &task.family, &shard, Order::none())?;
    }
    let numbers = JobNumbers::new(db, Order::none());
    let output = write_shards(task, &numbers);
    let output = output.inspect_err(|_| keep_published_numbers(db, task, &numbers))?;
    let installed = db
        .context
        .fault_point("flush.before_install")
        .and_then(|()| sync_before_install(db, task))
        .and_then(|()| install_flush(db, task, &output));
    match &installed {
        Ok(()) => numbers.note_installed(),
        Err(_) => {
            written_shards::discard_unpublished(db, task, &output);
            keep_published_numbers(db, task, &numbers);
        }
    }
    installed
}

/// The shard of a task over a memtable that has only one.
fn only_shard(db: &DbInner, task: &FlushTask) -> Option<Arc<Shard>> {
    let is_only = task.memtables.first().is_some_and(|memtable| memtable.map.len() == 1);
    let state = is_only.then(|| db.jobs.lock(Order::none()))?;
    Taken::of_task(&state, task, 0).first().cloned()
}

/// Keeps the sweep of strays from the tables that readers use after a failed attempt. The edit of
/// the next attempt names them.
fn keep_published_numbers(db: &DbInner, task: &FlushTask, numbers: &JobNumbers<'_>) {
    if !db.jobs.lock(Order::none()).written_of(task.family.id).is_empty() {
        numbers.note_installed();
    }
}

/// Writes the files of a flush: its shards in parallel, on as many threads as there are background
/// jobs, and meanwhile syncs the log if that has to precede the install.
fn write_shards(task: &FlushTask, numbers: &JobNumbers<'_>) -> Result<JobOutput> {
    let db = numbers.db();
    let started_ns = db.context.clock().now_ns();
    let cancel = Cancel::under(db.context.closing());
    let warm = task.memtables.iter().any(|memtable| memtable.was_read);
    let (mut works, mut shards): (Vec<SizedWork>, Vec<usize>) = Default::default();
    for shard in task.filled_shards() {
        let taken = Taken::of_task(&db.jobs.lock(Order::none()), task, shard);
        if !taken.is_empty() {
            let work = shard_work(numbers, task, shard, taken, &cancel, warm)?;
            works.push((task.data_bytes(shard..shard + 1), work));
            shards.push(shard);
        }
    }
    let threads = works.len().min(db.context.options().max_background_jobs);
    let bytes = task.data_bytes(task.shards.clone());
    let _held = db.context.budget().hold(MemoryClass::Job, output_bytes(threads, bytes));
    let sync = || if threads > 1 { sync_before_install(db, task) } else { Ok(()) };
    let mut left = works.len();
    let publish = |work: usize, output: &JobOutput| {
        left -= 1;
        // The edit follows the last shard.
        if left == 0 { Ok(()) } else { written_shards::publish(db, task, shards[work], output) }
    };
    let run = parallel_job::ParallelRun { kind: JobPriority::Normal, cancel, threads };
    let ended = parallel_job::run_parallel(db, run, works, sync, publish);
    let (mut outputs, failed) = ended.into_parts();
    let duration_ns = db.context.clock().now_ns().saturating_sub(started_ns);
    let Some(error) = failed else {
        let state = db.jobs.lock(Order::none());
        let earlier = written_shards::earlier_outputs(&state, task, &outputs)?;
        outputs.extend(earlier);
        return Ok(JobOutput::joined(outputs, duration_ns));
    };
    written_shards::discard_unpublished(db, task, &JobOutput::joined(outputs, duration_ns));
    Err(error)
}

/// The flush of one shard, a job of its own for the executor.
fn shard_work(
    numbers: &JobNumbers<'_>,
    task: &FlushTask,
    shard: usize,
    taken: Taken,
    cancel: &Cancel,
    warm: bool,
) -> Result<Work> {
    let db = numbers.db();
    let spec = flush_spec(numbers, task, shard..shard + 1, taken.refs())?;
    let cancel = cancel.clone();
    let context = JobContext {
        cancel,
        warm,
        ..compaction::job_context(&db.context, &db.storage, &db.jobs, &db.view, &NoShards)
    };
    let (executor, fault) = (Arc::clone(db.jobs.executor()), db.context.fault());
    let border = Border::new("job executor", executor.name(), Some(&task.family.name));
    let entries = taken.entries();
    Ok(Box::new(move || {
        fault.as_ref().map_or(Ok(()), |fault| fault("flush.shard"))?;
        let context = JobContext { shards: &taken, ..context };
        let output = border.call(|| executor.flush(&spec, &context))??;
        if !output.value_files.is_empty() {
            fault.as_ref().map_or(Ok(()), |fault| fault("flush.value_file"))?;
        }
        // The files of an output that is not one of the spec may belong to another job: they stay.
        executor::check_flush(&output, &spec, entries)?;
        executor::examine(&*executor, &output, &spec.output, &context)?;
        Ok(output)
    }))
}

/// Syncs the log through the job's last write, because everything that its files hold must be
/// durable in the log. The sync is left out if, with the files, everything up to some write is in
/// tables and nothing later is: then the files need no log.
fn sync_before_install(db: &DbInner, task: &FlushTask) -> Result<()> {
    let is_logged = task.memtables.iter().any(|memtable| memtable.oldest_log.is_some());
    if is_logged && !leaves_a_prefix(&db.jobs, &db.view, task) {
        write::sync_log(db, task.through(), Order::none())?;
    }
    Ok(())
}

/// Whether, once `task` is installed, the tables of the database hold every write up to the
/// job's last one and none after it: it is the only family's, and it completes the oldest
/// memtables. (Shards that earlier jobs installed alone were synced then. A family that is
/// created meanwhile syncs the log.)
fn leaves_a_prefix(jobs: &Jobs, view: &ReadView, task: &FlushTask) -> bool {
    if view.live_families().len() != 1 {
        return false;
    }
    let state = jobs.lock(Order::none());
    let Some(tracker) = state.flushes().get(&task.family.id) else { return false };
    let oldest = tracker.queue.iter().zip(&task.memtables);
    let complete = |(sealed, taken): (&Sealed, &Arc<SealedInfo>)| {
        let is_left = |(at, shard): (usize, &ShardState)| {
            *shard != ShardState::Installed && !task.shards.contains(&at)
        };
        sealed.info.id == taken.id && !sealed.shards.iter().enumerate().any(is_left)
    };
    tracker.queue.len() >= task.memtables.len() && oldest.into_iter().all(complete)
}

/// The flush of some of the task's shards, those of `refs`: the files of each end where it ends.
pub(crate) fn flush_spec<Held: Before<ManifestLock>>(
    numbers: &JobNumbers<'_, Held>,
    task: &FlushTask,
    shards: std::ops::Range<usize>,
    refs: Vec<ShardRef>,
) -> Result<FlushSpec> {
    let db = numbers.db();
    let version = Arc::clone(&task.family.current.load().version);
    let cuts = [&task.planned_cuts[..], &disk_room::room_cuts(&db.disk, &version)].concat();
    let cuts = version.map().boundaries_and(&cuts);
    let bytes = task.data_bytes(shards.clone());
    let range = match task.memtables.first() {
        Some(memtable) if shards != task.shards => memtable.map.hull(&shards),
        _ => task.range.clone(),
    };
    Ok(FlushSpec {
        cf: task.family.id.0,
        range,
        shards: refs,
        retention: compaction::retention(&db.context, &db.view, &task.family, Below::Everything),
        output: compaction::output_spec(numbers, &task.family, OutputPlan::l0(cuts, bytes))?,
    })
}

fn install_flush(db: &DbInner, task: &FlushTask, output: &JobOutput) -> Result<()> {
    let family = &task.family;
    let cf = family.id;
    let mut edit = VersionEdit::new();
    add_output(&mut edit, cf, output);
    edit.flushed_through(cf, task.range.clone(), task.through());
    let (files, bytes) = (output.files.iter().map(|meta| meta.no).collect(), output.bytes_written);
    let floor = {
        let mut manifest = db.storage.lock_manifest(Order::none());
        family.check_alive()?;
        // A segment may go (or be overwritten) only once the manifest says so: the floor that
        // the logs are dropped below is the one in the edit.
        let floor = log_segments::log_floor(
            &db.logs,
            &db.view,
            &db.jobs.lock(manifest.order()),
            |cf, memtable, shard| task.takes(cf, memtable, shard),
        );
        edit.push(Change::LogFloor(floor));
        let built = manifest.apply(edit)?;
        let mut state = db.jobs.lock(manifest.order());
        mark_installed(&mut state, task);
        db.view.republish_built(&mut state, built);
        space::note_install(db, &mut state, family, space::flush_event(output));
        floor
    };
    log_segments::drop_logs_below(db, floor);
    let bytes_flushed = task.data_bytes(task.shards.clone());
    db.pacing.drain().add(bytes_flushed);
    let duration = Duration::from_nanos(output.duration_ns);
    // The lock is held over the measurement, so that flushes that end together are both counted.
    let state = db.jobs.lock(Order::none());
    db.pacing.measure_flush(bytes_flushed, state.flushes_running(), duration);
    drop(state);
    family.backlog_since_ns.store(db.context.clock().now_ns(), Ordering::Relaxed);
    db.observers.stats().add(Ticker::Flushes, 1);
    db.observers.stats().add(Ticker::FlushBytesWritten, output.bytes_written);
    compaction::count_job(&db.observers, output);
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

fn mark_installed(state: &mut JobState, task: &FlushTask) {
    let Some(tracker) = state.flushes_mut().get_mut(&task.family.id) else { return };
    for memtable in &task.memtables {
        let found = tracker.queue.iter_mut().find(|sealed| sealed.info.id == memtable.id);
        let Some(sealed) = found else { continue };
        for shard in task.shards.clone() {
            assert_ne!(sealed.shards[shard], ShardState::Pending, "installed what ran");
            sealed.shards[shard] = ShardState::Installed;
        }
        sealed.take_from_view(task.shards.clone());
    }
    tracker.written.retain(|shard| !written_shards::is_of(shard, task));
    tracker.queue.retain(|sealed| !sealed.is_installed());
}

/// Cuts the key space by the keys of the first memtable, once (BucketLSM §V-C): equal parts by
/// records, which the index knows, not by bytes, which it does not; temperatures, which are in
/// bytes, mend what values of different sizes make of it.
pub(crate) fn set_first_map<Held: Before<ManifestLock> + Before<JobsLock>>(
    db: &DbInner,
    family: &Family,
    shard: &Shard,
    order: Order<Held>,
) -> Result<()> {
    let wanted = rebalance::buckets_initial(&db.context, &family.options);
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
        let mut manifest = db.storage.lock_manifest(order);
        // Looked at under the lock: an ingestion may just have put a file into L0, which the
        // new map would cut through.
        let version = Arc::clone(&family.current.load().version);
        if version.map().epoch().0 > 0 || version.l0_layers_max() > 0 {
            return Ok(());
        }
        let mut edit = VersionEdit::new();
        edit.push(Change::SetBucketMap { cf: family.id, map });
        let built = manifest.apply(edit)?;
        db.view.republish_built(&mut db.jobs.lock(manifest.order()), built);
    }
    let reason = format!(
        "{buckets} buckets of equally many records, by the {} of the first memtable",
        shard.entries()
    );
    rebalance::note_map_change(db, order, family, archipelago_base::Epoch(1), buckets, reason);
    Ok(())
}

/// Writes all memtables of the family to L0 and waits for it.
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
        tracker.is_some_and(|t| t.queue.iter().any(|sealed| sealed.info.id < newest))
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
    // As many memtables wait as may: one of them has to be written first.
    drop(commit);
    flush_family(db, family)
}

/// Flushes memtables with records that no log has.
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
            .is_some_and(|tracker| tracker.queue.iter().any(|sealed| sealed.info.unlogged));
        if sealed || current.active.has_unlogged() {
            match flush_family(db, &family) {
                // Dropped meanwhile: there is nothing left to flush.
                Err(_) if family.check_alive().is_err() => {}
                flushed => flushed?,
            }
        }
    }
    Ok(())
}
