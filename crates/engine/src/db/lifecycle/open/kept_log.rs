//! Opening a database on a disk without room: the log is kept.
//!
//! Recovery replays the log into memory, writes all of it to tables and installs them in one edit
//! ([`super`]). Without room for the tables nothing is installed. The segments of the log are made
//! durable where they are, and their records stay in memtables that pin them. Flushes bring the
//! records to tables when there is room ([decision
//! 0045](../../../../../docs/decisions/0045-full-disks.md)). If the disk has no room for the first
//! log segment of this process, the first write begins that segment
//! ([`crate::db::write::log_segments`]).
//!
//! Invariants:
//! 1. No flush installs a part of a kept log before all of the log is durable. If it cannot be made
//!    durable, all memory goes to tables in one edit ([`crate::db::background::leave_log`]).
//! 2. No record is appended after a torn tail. The header of the next segment says where the last
//!    one ended.
//!
//! Thread-safety: the thread that opens calls the functions.
//! Failure: a log that exceeds the memory budget is refused.
//! Cost: the log is read once more, and synced.

use std::sync::Arc;

use archipelago_base::{Error, FileNo, Result};

use super::replay::{KeptLog, Replay};
use crate::db::inner::DbInner;
use crate::db::lifecycle::open;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::SuperVersion;
use crate::db::state::jobs::Jobs;
use crate::db::state::observers::Observers;
use crate::db::state::storage::Storage;
use crate::db::write::WritePath;
use crate::db::write::disk_room::{self, Disk};
use crate::db::write::log_segments::{self, LogSegment};
use crate::file_meta::log_name;
use crate::lock_order::Order;
use crate::wal::{LogChain, RecoveredLog, SegmentRef};

/// Gives the reserve up if the disk may have no room for what recovery writes.
pub(super) fn prepare_room(
    context: &Context,
    storage: &Storage,
    observers: &Observers,
    disk: &Disk,
) -> Result<()> {
    if context.options().read_only {
        return Ok(());
    }
    disk_room::find_reserve(context, storage, disk);
    let floor = storage.lock_manifest(Order::none()).log_floor();
    let segments = log_segments::listed_segments(storage, floor)?.into_iter();
    let log_bytes = segments.map(|segment| storage.fs().len(&segment.path)).sum::<Result<u64>>()?;
    if !disk_room::has_room_to_recover(storage, disk, log_bytes) {
        disk_room::give_up_reserve(storage, observers, disk);
    }
    Ok(())
}

/// Recovers the log into memory, because the disk has no room for tables. The log stays and is made
/// durable, so that flushes may install parts of it later. Nothing is installed here.
pub(super) fn recover_to_memory(db: &DbInner, chain: &LogChain<'_>, cause: &Error) -> Result<()> {
    forget_replayed(&db.context, &db.jobs, &db.view, &db.writes);
    let oldest = chain.segments.first().map_or(chain.floor, |oldest| oldest.no);
    let kept = KeptLog::NoRoom { oldest, no_room: cause.clone() };
    let mut replay = Replay::new(db, Some(kept));
    let recovered = replay.read(chain)?;
    open::check_log(
        &db.storage,
        &db.storage.lock_manifest(Order::none()),
        chain.floor,
        &recovered,
    )?;
    db.writes.committer().start_at(&db.view, replay.last_seq_of(&recovered));
    db.logs.add_closed(closed_segments(chain, &recovered, chain.floor));
    match settle(&db.storage, &recovered) {
        Ok(()) => db.storage.fs().clear_log_tails(db.storage.dir())?,
        Err(error) if error.is_no_space() => {
            // The segment and its tail have all records, but not durably. So only one edit for all
            // memory may install them.
            tracing::warn!(%error, "a log segment cannot be made durable for want of room");
            db.logs.request_leave();
        }
        Err(error) => return Err(error),
    }
    start_log(db, db.storage.file_numbers().allocate(), recovered.previous)
}

/// The segments of the log from `floor` on, which stay. Segments after a cut are not needed, but
/// only a later log floor says that durably.
pub(super) fn closed_segments(
    chain: &LogChain<'_>,
    recovered: &RecoveredLog,
    floor: FileNo,
) -> Vec<LogSegment> {
    let bytes_of = |no| recovered.segments.iter().find(|read| read.no == no);
    let kept = chain.segments.iter().filter(|segment| segment.no >= floor);
    let closed = kept.map(|segment| LogSegment {
        no: segment.no,
        bytes: bytes_of(segment.no).map_or(0, |read| read.end_offset),
    });
    closed.collect()
}

/// Makes the segments of a kept log durable, also the records that only a ring has.
pub(super) fn settle(storage: &Storage, recovered: &RecoveredLog) -> Result<()> {
    recovered.segments.iter().try_for_each(|segment| {
        let path = storage.path_of(&log_name(segment.no));
        let settle = |no| storage.fs().settle_log(&path, no, &segment.in_tail);
        segment.incarnation.map_or(Ok(()), settle)
    })
}

/// Gives every family an empty memtable again.
pub(super) fn forget_replayed(context: &Context, jobs: &Jobs, view: &ReadView, writes: &WritePath) {
    let mut commit = writes.committer().lock(Order::none());
    for family in view.live_families() {
        let version = Arc::clone(&family.current.load().version);
        let active = writes.new_memtable(context, &version, &[]);
        commit.set_active(family.id, Some(Arc::clone(&active)));
        let next = SuperVersion::new(active, version);
        view.publish(&mut jobs.lock(commit.order()), &family, next);
    }
}

/// Begins the first log segment of this process. If the disk has no room for it, the first write
/// begins it.
pub(super) fn start_log(db: &DbInner, no: FileNo, previous: Option<SegmentRef>) -> Result<()> {
    db.logs.set_open(no);
    match log_segments::create_log(&db.context, &db.storage, no, previous) {
        Ok(log) => db.writes.committer().set_log(log),
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "the disk has no room for a log segment");
            db.logs.set_late(previous);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
