//! Log segments: rotation under the commit lock, pins, removal and reuse.
//!
//! The database owns one [`LogSegments`]. A segment is *pinned* by every memtable that holds a
//! record of it and is not installed. Segments that nothing pins are removed oldest first. A few of
//! them are kept to be overwritten, because recycling makes a sync cheaper and saves the file
//! system work. None are kept on a file system that gains nothing from it
//! ([`archipelago_env::FileSystem::recycles_logs`]).
//!
//! When all closed segments together exceed the bound ([`log_bytes_max`]), the oldest segments must
//! be removed. The active memtable of every family that pins such a segment is sealed, even if it
//! is small and has no recent writes. So cold data cannot keep the log growing. Background workers
//! apply the bound after every job and while they are idle.
//!
//! A log in a network goes on in a segment that was prepared ([`LogAhead`]), so that no writer
//! waits for the network under the commit lock. While none is prepared, the open segment grows
//! beyond its size. A writer waits in two cases: the segment lost records, or it has grown by
//! [`GROWTH_BYTES_MAX`].
//!
//! Invariants:
//! 1. A segment is removed or overwritten only once the manifest says durably that it is not
//!    needed.
//! 2. While `must_leave` is set, no flush installs a part of memory, and no job is picked.
//!
//! Thread-safety: any thread may call any method. The log lock comes last in the lock order and is
//! never held over I/O.
//! Failure: if a segment cannot be closed, everything in memory goes to tables
//! ([`crate::db::background::leave_log`]).
//! Cost: one short lock for each rotation, each install and each pick.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::budget::Charge;
use archipelago_base::{CfId, Error, ErrorKind, FileNo, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::memtable::{Memtable, SealedInfo, ShardHome};
use crate::db::state::observers::Observers;
use crate::db::state::sealed::ShardState;
use crate::db::state::storage::Storage;
use crate::db::write::commit_state::CommitGuard;
use crate::db::write::log_ahead::LogAhead;
use crate::db::write::submission::FamilyShare;
use crate::db::write::{WritePath, seal};
use crate::disk_space::SpaceState;
use crate::file_meta::log_name;
use crate::lock_order::Order;
use crate::manifest::{LogMark, file_number};
use crate::sabotage::{Defect, has};
use crate::stats::Ticker;
use crate::wal::{LogConfig, LogWriter, SegmentFile, SegmentRef};

/// Largest number of unneeded segments that are kept for reuse.
const SPARE_LOGS_MAX: usize = 2;
/// Factor by which the log may exceed the memory of all memtables, unless a bound is set.
const LOG_OVER_MEMTABLES: u64 = 4;
/// Bytes by which a segment in a network may exceed its size before a writer waits for the next
/// segment. A larger segment size counts instead.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// Length that no segment exceeds by more than its last record, because records have offsets of 32
/// bits.
const LENGTH_BYTES_MAX: u64 = 2 << 30;
/// Largest number of bytes of a group of records that is appended with one call. The group follows
/// at most about [`LENGTH_BYTES_MAX`], so all of its offsets have 32 bits.
pub(crate) const GROUP_BYTES_MAX: usize = 1 << 30;
/// Longest wait for the commit lock. The lock may be held by an ingestion that waits for a flush,
/// so a background worker must not wait for it without end.
const LOCK_WAIT: Duration = Duration::from_millis(20);

/// A live log segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSegment {
    pub(crate) no: FileNo,
    pub(crate) bytes: u64,
}

/// The segment that a log ended with; `None` for a log that never had one.
pub(crate) type LogEnd = Option<SegmentRef>;

/// The state that the log lock guards.
#[derive(Default)]
struct LogState {
    /// Closed segments that are still needed, oldest first.
    closed: VecDeque<LogSegment>,
    /// Paths of segments that are kept for reuse.
    spare: Vec<PathBuf>,
    /// Whether a closed segment is not whole, so that everything in memory must go to tables.
    must_leave: bool,
}

/// The segments of the log.
pub(crate) struct LogSegments {
    /// Number of the open segment.
    open: AtomicU64,
    state: Mutex<LogState>,
    /// End of the log, if the disk had no room for the first segment at the open. The first
    /// write begins that segment. The commit lock comes before this lock.
    late: Mutex<Option<LogEnd>>,
    /// The newest segment whose durability was noted.
    durable: AtomicU64,
    /// The prepared segment, and segments that are to be closed.
    ahead: LogAhead,
    /// Memory charge of the log's buffer while the database is open.
    _buffer: Charge,
}

impl LogSegments {
    pub(crate) fn new(buffer: Charge) -> Self {
        Self {
            open: AtomicU64::new(0),
            state: Mutex::new(LogState::default()),
            late: Mutex::new(None),
            durable: AtomicU64::new(0),
            ahead: LogAhead::default(),
            _buffer: buffer,
        }
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock()
    }

    /// Work for the threads that keep a log in a network.
    #[inline]
    pub(crate) fn ahead(&self) -> &LogAhead {
        &self.ahead
    }

    /// Number of the open segment. Older segments may be removed once nothing pins them.
    pub(crate) fn open_no(&self) -> FileNo {
        FileNo(self.open.load(Ordering::Acquire))
    }

    /// Notes that the segment `no` is open.
    pub(crate) fn set_open(&self, no: FileNo) {
        self.open.store(no.0, Ordering::Release);
    }

    /// Lets the first write begin the first segment, which follows `previous`.
    pub(crate) fn set_late(&self, previous: LogEnd) {
        *self.late.lock() = Some(previous);
    }

    /// Notes that the segment `no` was synced. Returns whether this was not known before.
    pub(crate) fn note_durable(&self, no: FileNo) -> bool {
        self.durable.fetch_max(no.0, Ordering::Relaxed) < no.0
    }

    /// Adds closed segments that are still needed.
    pub(crate) fn add_closed(&self, segments: impl IntoIterator<Item = LogSegment>) {
        self.lock().closed.extend(segments);
    }

    /// The closed segments that are still needed, oldest first.
    pub(crate) fn closed_segments(&self) -> Vec<LogSegment> {
        self.lock().closed.iter().copied().collect()
    }

    /// Bytes of the closed segments that are still needed.
    pub(crate) fn closed_bytes(&self) -> u64 {
        self.lock().closed.iter().map(|segment| segment.bytes).sum()
    }

    /// Takes the segments that are kept for reuse.
    pub(crate) fn take_spare(&self) -> Vec<PathBuf> {
        std::mem::take(&mut self.lock().spare)
    }

    /// Whether everything in memory must go to tables, because the log is not whole.
    pub(crate) fn must_leave(&self) -> bool {
        self.lock().must_leave
    }

    /// Asks for everything in memory to go to tables.
    pub(crate) fn request_leave(&self) {
        self.lock().must_leave = true;
    }

    /// Notes that everything in memory went to tables.
    pub(crate) fn note_left(&self) {
        self.lock().must_leave = false;
    }
}

/// The log segments of the directory from `floor` on, oldest first.
pub(crate) fn listed_segments(storage: &Storage, floor: FileNo) -> Result<Vec<SegmentFile>> {
    let mut segments: Vec<SegmentFile> = Vec::new();
    for entry in storage.fs().list(storage.dir())? {
        let Some(no) = file_number(&entry.name) else { continue };
        if entry.name == log_name(no) && no >= floor {
            segments.push(SegmentFile { no, path: storage.path_of(&entry.name) });
        }
    }
    segments.sort_by_key(|segment| segment.no);
    Ok(segments)
}

pub(crate) fn prepare_log(db: &DbInner, state: &mut CommitGuard<'_>) -> Result<()> {
    match state.log() {
        Some(log) if !log.wants_attention() && !log.is_broken() => Ok(()),
        Some(log) if !log.is_broken() && log.syncer().acknowledges_later() => {
            rotate_ahead(db, state)
        }
        _ => rotate_log(db, state),
    }
}

/// Goes on in the prepared segment, or requests one, for a log in a network that has used half of
/// its segment's room or more (commit lock held).
#[cold]
fn rotate_ahead(db: &DbInner, commit: &mut CommitGuard<'_>) -> Result<()> {
    let Some(log) = commit.log_mut() else { return Ok(()) };
    let (len, segment_bytes) = (log.position().len, db.context.options().wal_segment_bytes);
    if db.logs.ahead().is_kept() {
        if log.should_rotate() && go_on_in_prepared(&db.storage, &db.jobs, &db.logs, log)? {
            return Ok(());
        }
        db.logs.ahead().request_segment(db.context.clock().now_ns());
    }
    let grows_to = (segment_bytes + segment_bytes.max(GROWTH_BYTES_MAX)).min(LENGTH_BYTES_MAX);
    if !log.should_rotate() || db.logs.ahead().is_kept() && len < grows_to {
        log.note_attention();
        return Ok(());
    }
    rotate_log(db, commit)
}

/// Goes on in the segment that was prepared, without waiting. Returns whether there was a usable
/// segment.
fn go_on_in_prepared(
    storage: &Storage,
    jobs: &Jobs,
    logs: &LogSegments,
    log: &mut LogWriter,
) -> Result<bool> {
    let open = log.position().no;
    let next = logs.ahead().take_prepared(open, |next| log.can_rotate_to(next));
    let Some(next) = next else { return Ok(false) };
    let no = next.no();
    log.note_manifest(storage.marks().position());
    let retired = log.rotate_to(next)?;
    let closed = retired.closed();
    logs.set_open(no);
    logs.add_closed([LogSegment { no: closed.no, bytes: closed.len }]);
    logs.ahead().retire(retired);
    jobs.wake();
    Ok(true)
}

/// Ends the open segment early, so that a flush frees it (commit lock held). For a log in a network
/// this happens only if the next segment is prepared, so that nothing waits.
pub(crate) fn rotate_early(db: &DbInner, commit: &mut CommitGuard<'_>) -> Result<()> {
    match commit.log_mut() {
        Some(log) if db.logs.ahead().is_kept() && !log.is_broken() => {
            if !go_on_in_prepared(&db.storage, &db.jobs, &db.logs, log)? {
                db.logs.ahead().request_segment(db.context.clock().now_ns());
            }
            Ok(())
        }
        _ => rotate_log(db, commit),
    }
}

pub(crate) fn prepare_memtable(
    db: &DbInner,
    state: &mut CommitGuard<'_>,
    share: &FamilyShare,
) -> Result<bool> {
    let Some(active) = state.active_of(share.cf) else {
        return Err(Error::invalid(format!("column family {} was dropped", share.cf)));
    };
    if active.has_room(share.bytes) {
        return Ok(true);
    }
    let gone = || Error::invalid(format!("column family {} was dropped", share.cf));
    let family = db.view.family(share.cf).ok_or_else(gone)?;
    if !seal::may_seal(&family) {
        return Ok(false);
    }
    seal::seal_active(db, state, &family);
    Ok(true)
}

pub(crate) fn count_append(observers: &Observers, bytes: u64, writes: u64) {
    observers.stats().add(Ticker::WalBytes, bytes);
    if writes > 1 {
        observers.stats().add(Ticker::WritesGrouped, writes - 1);
    }
}

/// Ends the open segment and starts the next (commit lock held).
pub(crate) fn rotate_log(db: &DbInner, commit: &mut CommitGuard<'_>) -> Result<()> {
    let Some(log) = commit.log_mut() else {
        return begin_log(&db.context, &db.storage, &db.logs, &db.writes, commit);
    };
    let no = db.storage.file_numbers().allocate();
    let recycle = db.logs.lock().spare.pop();
    log.note_manifest(db.storage.marks().position());
    let rotated = log.rotate(&db.storage.path_of(&log_name(no)), no, recycle.clone());
    if let (Err(_), Some(spare)) = (&rotated, recycle)
        && db.storage.fs().exists(&spare).unwrap_or(true)
    {
        // The file stays a spare one, so that a full disk can get its bytes back.
        db.logs.lock().spare.push(spare);
    }
    let closed = rotated?;
    db.logs.set_open(no);
    if !closed.is_void {
        db.logs.add_closed([LogSegment { no: closed.segment.no, bytes: closed.segment.len }]);
    }
    if let Some(error) = closed.unfinished {
        // Its records are in memory; once they are in tables the segment does not matter.
        db.logs.request_leave();
        // A worker that has just found no log to leave sleeps before the wake-up. So it does not
        // clear the failure that is noted next.
        drop(db.jobs.lock(commit.order()));
        db.observers.fail_soft(&db.jobs, "closing a log segment", &error);
    }
    db.jobs.wake();
    Ok(())
}

/// Goes on in another segment after `segment` lost records that it took. The header of the next
/// segment says where the acknowledged records end. Returns the error of the lost writes, which
/// were not applied and never will be. If no header can be written, the outcome of these writes is
/// unknown, and the database takes no more writes. The caller holds no lock.
#[cold]
pub(crate) fn leave_lossy_segment(db: &DbInner, segment: FileNo, error: &Error) -> Error {
    let mut commit = db.writes.committer().lock(Order::none());
    match commit.log_mut() {
        Some(log) if log.position().no == segment || log.follows_lossy(segment) => {
            log.fail(error);
            begin_segment_after_loss(db, &mut commit, error)
        }
        // Another writer of the same group has left the segment.
        Some(_) => error.clone(),
        // The database was closed meanwhile.
        None => unknown_outcome(ErrorKind::Closed, error),
    }
}

/// Goes on in another segment after an append that failed immediately, if the log is in a network
/// (commit lock held). A part of the records may have arrived there. A local log is left by the
/// next write.
#[cold]
pub(crate) fn leave_broken_segment(
    db: &DbInner,
    commit: &mut CommitGuard<'_>,
    error: Error,
) -> Error {
    let is_lossy = |log: &LogWriter| log.is_broken() && log.syncer().acknowledges_later();
    if commit.log().is_some_and(is_lossy) {
        begin_segment_after_loss(db, commit, &error)
    } else {
        error
    }
}

fn begin_segment_after_loss(db: &DbInner, commit: &mut CommitGuard<'_>, error: &Error) -> Error {
    match rotate_log(db, commit) {
        Ok(()) => error.clone(),
        Err(failed) => {
            db.observers.fail_read_only(&db.jobs, "log append", &failed);
            unknown_outcome(ErrorKind::ReadOnly, error)
        }
    }
}

fn unknown_outcome(kind: ErrorKind, error: &Error) -> Error {
    // A process that lost its ownership of the database must learn that.
    let kind = if error.kind() == ErrorKind::Fenced { ErrorKind::Fenced } else { kind };
    let text = "the write was not acknowledged, and no new log segment could be begun: whether the \
                write is applied will be known when the database is opened again";
    Error::with_source(kind, text, error.clone())
}

/// The oldest log segment that holds an unflushed record once the shards for which `leaves` is true
/// are installed. Older segments are then not needed. It is the open segment if no memtable pins an
/// older one.
pub(crate) fn log_floor(
    logs: &LogSegments,
    view: &ReadView,
    state: &JobState,
    leaves: impl Fn(CfId, &SealedInfo, usize) -> bool,
) -> FileNo {
    let mut floor = logs.open_no();
    for family in view.live_families() {
        let active = family.current.load();
        if let Some(no) = active.active.oldest_log() {
            floor = floor.min(no);
        }
    }
    for (&cf, tracker) in state.flushes() {
        for sealed in tracker.queue() {
            let (info, shards) = (sealed.info(), sealed.shards());
            let home = |shard: usize| sealed.view().homes[shard].as_ref();
            let is_unpinned = |shard: usize| {
                has(Defect::UnpinnedAwayShards) && home(shard).and_then(ShardHome::away).is_some()
            };
            let stays = |shard: usize| {
                let is_left = shards[shard] != ShardState::Installed && !leaves(cf, info, shard);
                is_left && !is_unpinned(shard)
            };
            if let Some(no) = info.pinned_log(stays) {
                floor = floor.min(no);
            }
        }
    }
    floor
}

/// Removes the segments below `floor`, oldest first, or keeps them for reuse. The manifest must say
/// durably that they are not needed.
pub(crate) fn drop_logs_below(db: &DbInner, floor: FileNo) {
    if let Some(syncer) = db.writes.committer().syncer() {
        syncer.forget_before(floor);
    }
    let may_keep = db.disk.state() == SpaceState::Roomy && db.storage.fs().recycles_logs();
    let mut remove: Vec<PathBuf> = Vec::new();
    {
        let mut logs = db.logs.lock();
        while logs.closed.front().is_some_and(|segment| segment.no < floor) {
            let Some(segment) = logs.closed.pop_front() else { break };
            let path = db.storage.path_of(&log_name(segment.no));
            if may_keep && logs.spare.len() < SPARE_LOGS_MAX {
                logs.spare.push(path);
            } else {
                remove.push(path);
            }
        }
    }
    remove_logs(&db.storage, &db.observers, &remove);
}

/// Removes the segments below `floor` and keeps none for reuse, because the device may have refused
/// one of them.
pub(crate) fn remove_logs_below(db: &DbInner, floor: FileNo) {
    if let Some(syncer) = db.writes.committer().syncer() {
        syncer.forget_before(floor);
    }
    let remove: Vec<PathBuf> = {
        let mut logs = db.logs.lock();
        let gone = logs.closed.iter().take_while(|segment| segment.no < floor).count();
        let gone = logs.closed.drain(..gone).collect::<Vec<_>>();
        gone.into_iter().map(|segment| db.storage.path_of(&log_name(segment.no))).collect()
    };
    remove_logs(&db.storage, &db.observers, &remove);
}

pub(crate) fn remove_logs(storage: &Storage, observers: &Observers, paths: &[PathBuf]) {
    for path in paths {
        match storage.fs().remove(path) {
            Ok(()) => observers.stats().add(Ticker::FilesRemoved, 1),
            Err(error) => tracing::warn!(%error, "a log segment could not be removed"),
        }
    }
}

/// Largest number of bytes of closed log segments: `wal_bytes_max`, or four times the memory that
/// memtables may take here and at memory nodes. The settings of memtables and the byte budget bound
/// their memory here.
pub(crate) fn log_bytes_max(context: &Context, view: &ReadView) -> u64 {
    if context.options().wal_bytes_max > 0 {
        return context.options().wal_bytes_max;
    }
    let buffers = view.live_families().iter().fold(0u64, |sum, family| {
        let most = family.options.write_buffers_max as u64;
        sum.saturating_add(context.memtable_bytes_max(&family.options).saturating_mul(most))
    });
    let memory = buffers.min(context.budget().limit_bytes());
    let away = context.away().map_or(0, |away| away.limit_bytes());
    let memory = memory.max(context.options().wal_segment_bytes).saturating_add(away);
    memory.saturating_mul(LOG_OVER_MEMTABLES)
}

/// The youngest closed segment that must be removed so that the log keeps its bound; `None` if the
/// log keeps it.
pub(crate) fn excess_segment(
    context: &Context,
    logs: &LogSegments,
    view: &ReadView,
) -> Option<FileNo> {
    let bound = log_bytes_max(context, view);
    last_excess_segment(&logs.lock().closed, bound)
}

/// If the log exceeds its bound, seals the memtables that pin segments which must be removed.
/// Background workers call it, without locks.
pub(crate) fn enforce_log_bound(db: &DbInner) {
    let Some(last) = excess_segment(&db.context, &db.logs, &db.view) else { return };
    let pins = |active: &Memtable| active.oldest_log().is_some_and(|no| no <= last);
    let families: Vec<_> = db
        .view
        .live_families()
        .into_iter()
        .filter(|family| pins(&family.current.load().active) && seal::may_seal(family))
        .collect();
    if families.is_empty() {
        return;
    }
    // If the lock stays busy, a writer or an ingestion holds it. The next call tries again.
    let Some(mut commit) = db.writes.committer().try_lock_for(LOCK_WAIT, Order::none()) else {
        return;
    };
    for family in families {
        // A writer may have sealed the memtable meanwhile.
        if commit.active_of(family.id).is_some_and(|active| pins(active)) && seal::may_seal(&family)
        {
            seal::seal_active(db, &mut commit, &family);
        }
    }
}

/// Segments are removed oldest first until the closed `segments` have at most `bytes_max` bytes.
/// Returns the youngest of the removed segments; `None` if no segment must be removed.
fn last_excess_segment(segments: &VecDeque<LogSegment>, bytes_max: u64) -> Option<FileNo> {
    let mut left: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut last = None;
    for segment in segments {
        if left <= bytes_max {
            break;
        }
        left -= segment.bytes;
        last = Some(segment.no);
    }
    last
}

pub(crate) fn create_log(
    context: &Context,
    storage: &Storage,
    no: FileNo,
    previous: Option<SegmentRef>,
) -> Result<LogWriter> {
    let config = LogConfig {
        database_id: storage.database_id(),
        segment_bytes: context.options().wal_segment_bytes,
        seed: context.unique_seed(),
        manifest: storage.marks().position(),
    };
    let path = storage.path_of(&log_name(no));
    let buffer_bytes = context.options().log_buffer_bytes;
    let created = LogWriter::create(Arc::clone(storage.fs()), config, &path, no, previous, None);
    // The manifest names the segment as the oldest one that is needed. From here on it may not
    // be missing, not even after power loss.
    let durable = created.and_then(|log| log.syncer().sync().map(|durable| (log, durable)));
    match durable {
        Ok((mut log, durable)) => {
            log.buffer(buffer_bytes);
            storage.marks().log(LogMark { no: durable.segment, bytes: durable.offset });
            Ok(log)
        }
        Err(error) => {
            // No mark says that the segment exists, and the next attempt has another number.
            let _unused = storage.fs().remove(&path);
            Err(error)
        }
    }
}

/// Begins the log that the open had no room for (commit lock held).
pub(crate) fn begin_log(
    context: &Context,
    storage: &Storage,
    logs: &LogSegments,
    writes: &WritePath,
    commit: &mut CommitGuard<'_>,
) -> Result<()> {
    // A thread may get the commit lock after the close has taken the log away.
    context.check_open()?;
    let mut late = logs.late.lock();
    let Some(previous) = *late else { return context.refuse_read_only() };
    let no = storage.file_numbers().allocate();
    let log = create_log(context, storage, no, previous)?;
    writes.committer().set_syncer(log.syncer());
    commit.set_log(log);
    logs.set_open(no);
    *late = None;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_segment_over_the_bound_must_go() {
        let segments: VecDeque<LogSegment> =
            (1..=5).map(|no| LogSegment { no: FileNo(no), bytes: 100 }).collect();
        assert_eq!(last_excess_segment(&segments, 500), None);
        assert_eq!(last_excess_segment(&segments, 499), Some(FileNo(1)));
        assert_eq!(last_excess_segment(&segments, 250), Some(FileNo(3)));
        assert_eq!(last_excess_segment(&segments, 0), Some(FileNo(5)));
        assert_eq!(last_excess_segment(&VecDeque::new(), 0), None);
    }
}
