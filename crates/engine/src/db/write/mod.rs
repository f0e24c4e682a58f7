//! The write path: check, stall if need be, commit, insert, publish, sync.
//!
//! The database owns one [`WritePath`]. `Db::write` checks a batch and stalls its writer
//! ([`stalling`]), and commits the batch ([`commit`]). If the log is not whole, it then leaves that
//! log ([`crate::db::background::leave_log`]). At last it syncs, if the options ask for that.
//!
//! Invariants:
//! 1. A batch is checked in full before any of it is logged.
//! 2. After an error of the check or the stall nothing was written. The same holds for an error of
//!    the append, unless its kind is `ReadOnly`, `Closed` or `Fenced`.
//!
//! Thread-safety: any thread may write.
//! Failure: if an append fails, its writes are refused, and the next write tries a new segment. A
//! log that cannot reach its device makes the database read only. On a full disk the log is left
//! instead: everything in memory goes to tables.
//! Cost: a write of one record uses the batch and the share list of its thread and allocates
//! nothing.

pub(crate) mod commit;
pub(crate) mod commit_state;
pub(crate) mod disk_room;
mod group_sync;
pub(crate) mod log_ahead;
pub(crate) mod log_segments;
pub(crate) mod seal;
pub(crate) mod stalling;
pub(crate) mod submission;
mod ticket;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::budget::ByteBudget;
use archipelago_base::checksum::crc;
use archipelago_base::{CfId, Error, ErrorKind, Result, SeqNo};

use crate::bucket::BucketMap;
use crate::concurrency::RowLocks;
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::memtable::{Birth, Memtable, RECORD_OVERHEAD_BYTES};
use crate::db::state::observers::Observers;
use crate::db::state::storage::Storage;
use crate::db::write::commit::{CommitOutcome, Committer};
use crate::db::write::log_segments::LogSegments;
use crate::db::write::submission::{FamilyShare, Submission};
use crate::disk_space::SpaceUse;
use crate::event::Event;
use crate::key::{Kind, check_limits};
use crate::lock_order::{Before, JobsLock, Order};
use crate::manifest::LogMark;
use crate::memtable::SlabPool;
use crate::options::WriteOptions;
use crate::stats::{Ticker, Timer};
use crate::version::Version;
use crate::wal::{WriteBatch, check_payload_len};

/// Number of segments in a row that may lose records before a flush of the log fails.
const FLUSH_LOG_ATTEMPTS: u32 = 3;

/// The writing side of an open database.
pub(crate) struct WritePath {
    committer: Committer,
    /// Memory of memtables.
    slabs: Arc<SlabPool>,
    next_memtable_id: AtomicU64,
    /// Row locks of transactions. No other lock is taken while its lock is held.
    row_locks: RowLocks,
}

impl WritePath {
    pub(crate) fn new(last_seq: SeqNo, budget: &Arc<ByteBudget>) -> Self {
        Self {
            committer: Committer::new(last_seq),
            slabs: SlabPool::new(Arc::clone(budget)),
            next_memtable_id: AtomicU64::new(1),
            row_locks: RowLocks::default(),
        }
    }

    #[inline]
    pub(crate) fn committer(&self) -> &Committer {
        &self.committer
    }

    pub(crate) fn slabs(&self) -> &SlabPool {
        &self.slabs
    }

    /// The pool of the memory of memtables.
    pub(crate) fn slab_pool(&self) -> &Arc<SlabPool> {
        &self.slabs
    }

    pub(crate) fn row_locks(&self) -> &RowLocks {
        &self.row_locks
    }

    /// A memtable for a family, with a shard for each bucket and for each part between `cuts`.
    pub(crate) fn new_memtable(
        &self,
        context: &Context,
        version: &Version,
        cuts: &[Vec<u8>],
    ) -> Arc<Memtable> {
        let id = self.next_memtable_id.fetch_add(1, Ordering::Relaxed);
        let mut map = Arc::clone(version.map());
        // If the cuts would make too many buckets, the memtable goes without them.
        if !cuts.is_empty()
            && let Ok(finer) = map.finer(cuts)
        {
            map = Arc::new(finer);
        }
        let limit_bytes = context.memtable_bytes(version);
        let birth = Birth { id, limit_bytes, born_ns: context.clock().now_ns() };
        Memtable::new(birth, map, &self.slabs)
    }

    /// A memtable with this map, younger than all that were made before. It has no limit on its
    /// size, because recovery fills it.
    pub(crate) fn inherited_memtable(&self, context: &Context, map: BucketMap) -> Arc<Memtable> {
        let id = self.next_memtable_id.fetch_add(1, Ordering::Relaxed);
        let birth = Birth { id, limit_bytes: u64::MAX, born_ns: context.clock().now_ns() };
        Memtable::new(birth, Arc::new(map), &self.slabs)
    }
}

/// Result of the check of a batch.
struct Checked {
    /// Bytes of keys and values.
    user_bytes: u64,
    space_use: SpaceUse,
}

/// Families of a write with their bytes. Each thread uses one list again, so a write does not
/// allocate.
type Shares = Vec<FamilyShare>;

thread_local! {
    /// The share list of this thread's writes.
    static SHARES: RefCell<Shares> = const { RefCell::new(Vec::new()) };
}

/// Checks and stalls a write, and passes it to `commit` until the write does not have to wait.
/// Returns the last sequence number of the write. After an error of the check or the stall nothing
/// was written.
#[inline]
pub(crate) fn commit_batch(
    db: &DbInner,
    batch: &WriteBatch,
    options: &WriteOptions,
    commit: impl FnMut(&Submission<'_>) -> Result<CommitOutcome>,
) -> Result<SeqNo> {
    SHARES.with_borrow_mut(|shares| {
        shares.clear();
        db.context.check_open()?;
        db.observers.health().check_writable()?;
        let checked = check_batch(&db.view, batch, shares, options)?;
        if shares.is_empty() {
            return Ok(db.view.visible());
        }
        // A write without the log meets no later check that would refuse it.
        db.context.refuse_read_only()?;
        let options = &WriteOptions { space_use: checked.space_use, ..*options };
        let user_bytes = checked.user_bytes;
        stalling::stall_writer(db, shares, options)?;
        let last_seq = commit_checked(db, batch, shares, options, commit)?;
        db.observers.stats().add(Ticker::Writes, 1);
        db.observers.stats().add(Ticker::RecordsWritten, batch.len() as u64);
        db.observers.stats().add(Ticker::UserBytesWritten, user_bytes);
        Ok(last_seq)
    })
}

/// Checks every record and sums the bytes by family.
fn check_batch(
    view: &ReadView,
    batch: &WriteBatch,
    shares: &mut Shares,
    options: &WriteOptions,
) -> Result<Checked> {
    if options.wal {
        // The error concerns this batch alone. Later it would fail the whole group of the batch.
        check_payload_len(batch.byte_len())?;
    }
    if options.sync && !options.wal {
        return Err(Error::invalid(
            "a write without the log cannot be synced: set wal, or flush afterwards",
        ));
    }
    let families = view.families();
    let mut user_bytes = 0;
    let mut deletes_only = true;
    for op in batch.iter() {
        let op = op?;
        deletes_only &= matches!(op.kind, Kind::Delete | Kind::RangeDelete);
        let family = families
            .get(op.cf.0 as usize)
            .and_then(Option::as_ref)
            .ok_or_else(|| unknown_family(op.cf))?;
        family.check_alive()?;
        check_limits(op.kind, op.key, op.value)?;
        if op.kind == Kind::Merge {
            check_merge(family)?;
        }
        let bytes = (op.key.len() + op.value.len()) as u64;
        user_bytes += bytes;
        let bytes = bytes + RECORD_OVERHEAD_BYTES;
        match shares.iter_mut().find(|share| share.cf == op.cf) {
            Some(share) => share.bytes += bytes,
            None => shares.push(FamilyShare { cf: op.cf, bytes }),
        }
    }
    let space_use = if deletes_only { SpaceUse::Frees } else { options.space_use };
    Ok(Checked { user_bytes, space_use })
}

/// Passes a checked write to `commit` until the write does not have to wait. Returns its last
/// sequence number.
fn commit_checked(
    db: &DbInner,
    batch: &WriteBatch,
    shares: &[FamilyShare],
    options: &WriteOptions,
    mut commit: impl FnMut(&Submission<'_>) -> Result<CommitOutcome>,
) -> Result<SeqNo> {
    let payload = batch.data();
    let write = Submission {
        payload,
        payload_crc: if options.wal { crc(payload) } else { 0 },
        records: batch.len() as u64,
        shares,
        wal: options.wal,
        space_use: options.space_use,
    };
    loop {
        match commit(&write)? {
            CommitOutcome::Done(last_seq) => return Ok(last_seq),
            CommitOutcome::MustWait(cf) => {
                stalling::wait_for_memtable(db.wait_owners(), &db.view, cf, options)?;
            }
            CommitOutcome::DiskFull => stalling::wait_for_room(db.wait_owners(), options)?,
            CommitOutcome::MustFlush => stalling::wait_for_flush(db.wait_owners(), options)?,
        }
    }
}

/// Refuses all later writes with `Closed`. Every earlier one has its memtable on return.
pub(crate) fn refuse_writes(writes: &WritePath) {
    writes.committer().lock(Order::none()).begin_close();
}

/// Makes the log durable through `seq`. The caller may hold the locks that `order` names.
pub(crate) fn sync_log<Held: Before<JobsLock>>(
    db: &DbInner,
    seq: SeqNo,
    order: Order<Held>,
) -> Result<()> {
    let started = db.context.clock().now_ns();
    match db.writes.committer().sync_through(seq) {
        Ok(false) => Ok(()),
        Ok(true) => {
            db.observers.stats().add(Ticker::WalSyncs, 1);
            db.observers.stats().record(Timer::WalSync, db.context.clock().now_ns() - started);
            mark_durable_log(&db.storage, &db.logs, &db.writes);
            Ok(())
        }
        Err(error) => {
            let error = error.context_at("the log could not be synced");
            fail_log(db, "log sync", &error, order);
            Err(error)
        }
    }
}

/// Makes everything that was written before the call survive `kill -9`, also if the log is
/// buffered. For a local log there is nothing to do. If a segment loses records, they are appended
/// to the next segment and sent again.
pub(crate) fn flush_log(db: &DbInner) -> Result<()> {
    let mut sent = Ok(());
    for _ in 0..FLUSH_LOG_ATTEMPTS {
        let Some(syncer) = db.writes.committer().syncer() else { return Ok(()) };
        let Err(lost) = syncer.send() else { return Ok(()) };
        let error = log_segments::leave_lossy_segment(db, lost.segment, &lost.error);
        let is_final =
            matches!(error.kind(), ErrorKind::Fenced | ErrorKind::ReadOnly | ErrorKind::Closed);
        sent = Err(error);
        if is_final {
            break;
        }
    }
    sent
}

/// Notes the first sync of a log segment. From then on recovery refuses to open if the segment is
/// missing.
fn mark_durable_log(storage: &Storage, logs: &LogSegments, writes: &WritePath) {
    let durable = writes.committer().syncer().and_then(|syncer| syncer.durable());
    let Some(durable) = durable else { return };
    if logs.note_durable(durable.segment) {
        storage.marks().log(LogMark { no: durable.segment, bytes: durable.offset });
    }
}

/// Notes that the log cannot reach its device. On a full disk, and after a passing error of a log
/// in a network, everything in memory goes to tables, and writes go on meanwhile. That is safe: all
/// visible records are in memory, and a log in a network never loses an acknowledged record
/// unnoticed. After any other error it is unknown what the device holds, and the database takes no
/// more writes.
fn fail_log<Held: Before<JobsLock>>(db: &DbInner, job: &str, error: &Error, order: Order<Held>) {
    let syncer = db.writes.committer().syncer();
    let is_in_network = syncer.is_some_and(|syncer| syncer.acknowledges_later());
    let may_pass = matches!(error.kind(), ErrorKind::Io | ErrorKind::Busy);
    let can_leave = error.is_no_space() || is_in_network && may_pass;
    if !can_leave {
        db.observers.fail_read_only(&db.jobs, job, error);
        return;
    }
    db.logs.request_leave();
    // A worker that has just found no log to leave clears the health under this lock. It must not
    // clear the failure that is noted below.
    drop(db.jobs.lock(order));
    if error.is_no_space() {
        disk_room::give_up_reserve(&db.storage, &db.observers, &db.disk);
    }
    db.observers.fail_soft(&db.jobs, job, error);
}

/// Writes the log to its device up to `seq`. The kernel drops pages from the page cache that it
/// failed to write, so a failure here is as serious as a failed sync.
pub(crate) fn write_log_through<Held: Before<JobsLock>>(
    db: &DbInner,
    seq: SeqNo,
    order: Order<Held>,
) -> Result<()> {
    db.writes.committer().write_through(seq).map(drop).map_err(|error| {
        let error = error.context_at("the log could not be written to its device");
        fail_log(db, "log write", &error, order);
        error
    })
}

/// Reports an append that failed. The next write tries a new segment.
#[cold]
pub(crate) fn note_append_error(storage: &Storage, observers: &Observers, error: &Error) -> Error {
    if matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::Closed | ErrorKind::Fenced) {
        // The error itself says what happened to the write.
        return error.clone();
    }
    let error = error.context_at("the write was not logged and not applied");
    let error = match error.is_no_space() {
        true => error.context_at(format!("the disk of {} is full", storage.dir().display())),
        false => error,
    };
    if error.kind() == ErrorKind::Io {
        observers.stats().add(Ticker::BackgroundErrors, 1);
        let job = "log append".to_owned();
        observers.tell(&Event::BackgroundError { job, error: error.clone() });
    }
    error
}

fn unknown_family(cf: CfId) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("column family {cf} does not exist in this database (it may have been dropped)"),
    )
}

/// Refuses a merge operand for a family without a merge operator.
pub(crate) fn check_merge(family: &Family) -> Result<()> {
    if family.merge.is_none() {
        return Err(Error::invalid(format!(
            "column family \"{}\" has no merge operator: set merge_operator",
            family.name
        )));
    }
    Ok(())
}
