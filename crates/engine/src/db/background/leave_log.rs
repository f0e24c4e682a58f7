//! Leaves a log that cannot become durable: all memory goes to tables in one edit, and a new log
//! begins.
//!
//! A log is left when a segment could not be closed or synced. The records of the segment are in
//! memory, but the segment itself cannot become durable any more. Steps:
//!
//! 1. Background work is paused and running flushes end. Memtable shards at memory nodes are
//!    fetched.
//! 2. Under the commit lock, with every granted write inserted, every memtable is sealed. The
//!    shards of each memtable that are not installed are flushed, without syncing the log.
//! 3. The log goes on in a new segment. The segment comes after the tables, so that a mapped ring
//!    of the log does not take the room that the tables need on a full disk.
//! 4. One edit installs the tables of all families and moves the log floor to the new segment, as
//!    recovery does. An edit with only a part of the tables could keep half a batch over a power
//!    loss.
//! 5. The old segments are removed, and the rings that hold parts of them are emptied.
//!
//! [`Db::resume`](crate::db::Db::resume), a synced write and background work leave a log.
//! Background work does so when the log is not whole, or when the database is read only because the
//! device was full. It keeps the pause of failed jobs.
//!
//! Invariants:
//! 1. Before the edit only the open segment has changed.
//! 2. Health is cleared only after the edit.
//!
//! Thread-safety: any thread may call any function; attempts exclude each other by the commit lock.
//! Failure: outputs are removed, the memtables stay, and the call may be repeated. A running
//! compaction may hold the room that the flush needs, so on a full disk the attempt is repeated
//! until no compaction runs. A memory node that does not answer is no failure: background work
//! tries again.
//! Cost: writers wait for a flush of all memory. Compactions go on.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Error, ErrorKind, Result, SeqNo};

use crate::border::contained;
use crate::db::background::flush;
use crate::db::background::flush_task::{FlushCut, FlushPart, FlushTask, TakenMemtable};
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::owners::InstallOwners;
use crate::db::background::taken::Taken;
use crate::db::background::{job_specs, rebuild, scheduler, space};
use crate::db::inner::DbInner;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::memtable::{Memtable, SealedInfo};
use crate::db::state::observers::Observers;
use crate::db::state::sealed::Sealed;
use crate::db::write::commit_state::CommitGuard;
use crate::db::write::log_segments::{self, LogSegments};
use crate::db::write::{self, disk_room, seal, stalling};
use crate::flush::run_flush;
use crate::gc::space_plan::SpaceEvent;
use crate::job::JobOutput;
use crate::key::KeyRange;
use crate::lock_order::{CommitLock, Order};
use crate::manifest::{Change, VersionEdit};
use crate::options::WriteOptions;
use crate::remote::AwayError;
use crate::stats::Ticker;

/// Longest wait of one attempt for the commit lock. An ingestion may hold the lock while it waits
/// for background work, and the attempt pauses that work.
const LOCK_WAIT: Duration = Duration::from_millis(100);
/// Pause after an attempt for which a memory node did not give a shard.
const NODE_PAUSE: Duration = Duration::from_millis(20);

/// Pauses background picks until it is dropped.
struct Paused<'a>(&'a Jobs);

impl<'a> Paused<'a> {
    fn new(jobs: &'a Jobs) -> Self {
        jobs.lock(Order::none()).pause();
        Self(jobs)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.lock(Order::none()).unpause();
        self.0.wake();
        self.0.notify_progress();
    }
}

/// Lets the database take writes again after the cause of an error is gone, by leaving the log.
/// Fails with `ReadOnly` if the cause is corruption.
pub(crate) fn resume(db: &DbInner) -> Result<()> {
    db.context.refuse_read_only()?;
    if db.observers.health().failing().is_some_and(|cause| cause.kind() == ErrorKind::Corrupt) {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            "the cause is corruption: restore the damaged file from a copy and reopen",
        ));
    }
    leave_log(db)
}

/// Whether background work should leave the log now.
pub(crate) fn is_due_to_leave(
    context: &Context,
    observers: &Observers,
    logs: &LogSegments,
    state: &JobState,
) -> bool {
    if context.options().read_only || state.is_paused() {
        return false;
    }
    let wanted = if observers.health().is_read_only() {
        observers.health().failing().is_some_and(|cause| cause.is_no_space())
    } else {
        logs.must_leave()
    };
    let may_leave = context.is_manual() || state.may_leave_log(context.clock().now_ns());
    wanted && may_leave && !scheduler::is_pausing(context, state)
}

/// Leaves the log for background work. Returns `false` if that has to be tried again although
/// nothing has failed: another thread keeps the commit lock for long, a memory node does not give a
/// shard now, or a compaction holds the room on the disk.
pub(crate) fn leave_log_in_background(db: &DbInner) -> Result<bool> {
    let result = contained("leaving the log", || try_leave_log(db));
    if let Err(error) = &result
        && error.cause::<AwayError>().is_some()
    {
        tracing::warn!(%error, "the log is left when the memory nodes have given all shards");
        db.observers.stats().add(Ticker::AwayFlushesPutOff, 1);
        let at_ns = db.context.clock().now_ns() + NODE_PAUSE.as_nanos() as u64;
        db.jobs.lock(Order::none()).put_off_leaving_log(at_ns);
        return Ok(false);
    }
    if let Err(error) = &result {
        scheduler::note_pause(&db.context, &db.jobs);
        db.observers.fail_soft(&db.jobs, "leaving a log segment that is not whole", error);
    }
    result
}

/// Leaves the log before a sync, if it cannot become durable.
pub(crate) fn leave_log_before_sync(db: &DbInner) -> Result<()> {
    if !db.logs.must_leave() {
        return Ok(());
    }
    leave_log(db)
}

/// Leaves the log. Repeats the attempt until it succeeds or fails with an error.
fn leave_log(db: &DbInner) -> Result<()> {
    while !try_leave_log(db)? {
        db.context.check_open()?;
        let mut state = db.jobs.lock(Order::none());
        db.jobs.wait_for_progress(&mut state, Duration::from_millis(20));
    }
    Ok(())
}

/// Attempts once to leave the log. Returns `false` if the commit lock did not become free, or if
/// the disk has no room while a compaction runs.
fn try_leave_log(db: &DbInner) -> Result<bool> {
    let _paused = Paused::new(&db.jobs);
    wait_for_flushes(&db.context, &db.jobs)?;
    // Until the new log begins, neither the log nor a memory node may be the only place of a
    // record.
    rebuild::bring_home(db)?;
    let left = disk_room::ensure_room(
        db,
        disk_room::flush_bytes(&db.disk, &db.view),
        "a flush of all memory",
    )
    .and_then(|()| leave_log_with_room(db));
    match left {
        Err(error) if error.is_no_space() && is_compacting(&db.jobs) => Ok(false),
        left => left,
    }
}

/// Carries out steps 2 to 5 of the module. Returns `false` if the commit lock did not become free.
fn leave_log_with_room(db: &DbInner) -> Result<bool> {
    let Some(mut commit) = db.writes.committer().try_lock_for(LOCK_WAIT, Order::none()) else {
        return Ok(false);
    };
    db.writes.committer().wait_all_visible(&db.view, &commit);
    for family in db.view.live_families() {
        seal::seal_active(db, &mut commit, &family);
    }
    let mut edit = VersionEdit::new();
    let mut outputs = Vec::new();
    let numbers = JobNumbers::new(db.job_owners(), commit.order());
    let installed = flush_memory(db, &numbers, commit.order(), &mut edit, &mut outputs)
        .and_then(|()| log_segments::rotate_log(db, &mut commit))
        .and_then(|()| db.context.fault_point("resume.before_install"))
        .and_then(|()| install_memory(db, &commit, edit));
    if let Err(error) = installed {
        outputs.iter().for_each(|output| db.storage.discard(output, commit.order()));
        return Err(error);
    }
    numbers.note_installed();
    drop(commit);
    for output in &outputs {
        db.observers.stats().add(Ticker::Flushes, 1);
        db.observers.stats().add(Ticker::FlushBytesWritten, output.bytes_written);
        job_specs::count_job(&db.observers, output);
    }
    tracing::info!("the log was left: all that was in memory is in tables");
    for family in db.view.live_families() {
        stalling::recompute_stall(db.stall_owners(), &family);
    }
    Ok(true)
}

fn is_compacting(jobs: &Jobs) -> bool {
    jobs.lock(Order::none()).running().is_compacting()
}

/// Waits until only compactions and garbage collections run and no memtable is being readied. Picks
/// are paused.
fn wait_for_flushes(context: &Context, jobs: &Jobs) -> Result<()> {
    let mut state = jobs.lock(Order::none());
    loop {
        if !state.is_changing_memtables() {
            return Ok(());
        }
        context.check_open()?;
        jobs.wait_for_progress(&mut state, Duration::from_millis(20));
    }
}

/// Flushes every sealed memtable of every family (commit lock held, picks paused).
fn flush_memory(
    db: &DbInner,
    numbers: &JobNumbers<'_, CommitLock>,
    order: Order<CommitLock>,
    edit: &mut VersionEdit,
    outputs: &mut Vec<JobOutput>,
) -> Result<()> {
    for family in db.view.live_families() {
        for memtable in unready_memtables(&db.jobs, order, &family) {
            flush::ready_memtable(db.stall_owners(), &db.view, family.id, &memtable, order);
        }
        // Shards that a failed flush has written are a part of the edit.
        for written in db.jobs.lock(order).written_of(family.id) {
            flush::add_output(edit, family.id, &written.output);
        }
        for memtable in sealed_memtables(&db.jobs, order, &family) {
            for shards in pending_runs(&db.jobs, order, &family, &memtable) {
                if memtable.map.len() == 1 && !flush::adds_table(edit, family.id) {
                    set_first_map(db.install_owners(), order, &family, &memtable)?;
                }
                let output = flush_run(numbers, order, &family, &memtable, shards)?;
                flush::add_output(edit, family.id, &output);
                outputs.push(output);
            }
        }
    }
    Ok(())
}

/// The memtables of a family that have no filters yet, oldest first.
fn unready_memtables(jobs: &Jobs, order: Order<CommitLock>, family: &Family) -> Vec<Arc<Memtable>> {
    let state = jobs.lock(order);
    state.sealed_of(family.id).filter_map(Sealed::unready).cloned().collect()
}

/// The sealed memtables of a family, oldest first.
fn sealed_memtables(
    jobs: &Jobs,
    order: Order<CommitLock>,
    family: &Family,
) -> Vec<Arc<SealedInfo>> {
    let state = jobs.lock(order);
    state.sealed_of(family.id).map(|sealed| Arc::clone(sealed.info())).collect()
}

/// The shards of a memtable that are in no table, as runs of neighbours.
fn pending_runs(
    jobs: &Jobs,
    order: Order<CommitLock>,
    family: &Family,
    memtable: &SealedInfo,
) -> Vec<std::ops::Range<usize>> {
    let state = jobs.lock(order);
    let found = state.sealed_of(family.id).find(|sealed| sealed.info().id == memtable.id);
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, home) in found.into_iter().flat_map(|sealed| &sealed.view().homes).enumerate() {
        if home.is_none() {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == index => run.end = index + 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

/// The homes of shards of a memtable.
fn taken_of(
    jobs: &Jobs,
    order: Order<CommitLock>,
    family: &Family,
    memtable: &SealedInfo,
    shards: &std::ops::Range<usize>,
) -> Taken {
    let state = jobs.lock(order);
    let found = state.sealed_of(family.id).find(|sealed| sealed.info().id == memtable.id);
    let view = found.map(|sealed| Arc::clone(sealed.view()));
    let all = view.iter().flat_map(|view| view.homes.iter().enumerate());
    let own = all.filter(|(at, _)| shards.contains(at));
    Taken::of_memtable(memtable.id, own.filter_map(|(at, home)| Some((at, home.clone()?))))
}

/// Makes the first bucket map by the keys of a memtable that has one shard. No table of the family
/// may wait for the edit, because the map might cut through it.
fn set_first_map(
    owners: InstallOwners<'_>,
    order: Order<CommitLock>,
    family: &Family,
    memtable: &SealedInfo,
) -> Result<()> {
    let taken = taken_of(owners.jobs, order, family, memtable, &(0..1));
    match taken.first() {
        Some(shard) => flush::set_first_map(owners, family, shard, order),
        None => Ok(()),
    }
}

fn flush_run(
    numbers: &JobNumbers<'_, CommitLock>,
    order: Order<CommitLock>,
    family: &Arc<Family>,
    memtable: &Arc<SealedInfo>,
    shards: std::ops::Range<usize>,
) -> Result<JobOutput> {
    let owners = numbers.owners();
    let taken = taken_of(owners.jobs, order, family, memtable, &shards);
    let task = FlushTask {
        job_id: 0,
        family: Arc::clone(family),
        range: memtable.map.hull(&shards),
        memtables: vec![TakenMemtable { info: Arc::clone(memtable), shards }],
        cut: FlushCut::Uncut,
        planned_cuts: Vec::new(),
    };
    run_flush(
        &flush::flush_spec(numbers, &task, FlushPart::Whole, taken.refs())?,
        &job_specs::job_context(owners, &taken),
    )
}

/// Applies the one edit, publishes its versions, and removes the old log segments.
fn install_memory(db: &DbInner, commit: &CommitGuard<'_>, mut edit: VersionEdit) -> Result<()> {
    let open = db.logs.open_no();
    for family in db.view.live_families() {
        edit.flushed_through(family.id, KeyRange::all(), commit.last_seq());
    }
    edit.push(Change::LastSeq(commit.last_seq()));
    edit.push(Change::LogFloor(open));
    {
        let mut manifest = db.storage.lock_manifest(commit.order());
        let built = manifest.apply(edit)?;
        let mut state = db.jobs.lock(manifest.order());
        for tracker in state.flushes_mut().values_mut() {
            tracker.install_all();
        }
        db.view.republish_built(&mut state, built);
        space::note_all(db.space_owners(), &mut state, Some(SpaceEvent::RangeDelete));
        state.forget_failures();
        db.logs.note_left();
    }
    db.observers.health().clear();
    log_segments::remove_logs_below(db, open);
    // A ring that kept the end of an old segment is free for the next one.
    if let Err(error) = db.storage.fs().clear_log_tails(db.storage.dir()) {
        tracing::warn!(%error, "the rings of old log segments are not emptied");
    }
    Ok(())
}

/// Makes a committed write as durable as its options and those of the database demand.
#[inline]
pub(crate) fn harden_log(db: &DbInner, last_seq: SeqNo, options: &WriteOptions) -> Result<()> {
    if !options.wal || !(options.sync || db.context.options().log_write_through) {
        return Ok(());
    }
    match options.sync {
        true => sync_or_leave(db, last_seq),
        false => write_through_or_leave(db, last_seq),
    }
}

/// Makes the log durable through `seq`. If the disk has no room for that, everything in memory goes
/// to tables in the room of the reserve. The tables make the writes durable as well.
pub(crate) fn sync_or_leave(db: &DbInner, seq: SeqNo) -> Result<()> {
    leave_log_before_sync(db)?;
    let synced = write::sync_log(db, seq, Order::none());
    or_leave(db, synced)
}

pub(crate) fn write_through_or_leave(db: &DbInner, seq: SeqNo) -> Result<()> {
    leave_log_before_sync(db)?;
    let written = write::write_log_through(db, seq, Order::none());
    or_leave(db, written)
}

pub(crate) fn or_leave(db: &DbInner, done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.is_no_space() => leave_log_before_sync(db).map_err(|_| error),
        done => done,
    }
}
