//! Closing a database: background work ends, the log becomes durable, the directory is released.
//!
//! Steps:
//! 1. Writes are refused. If the log is not whole, it is left. Memtables with records that no log
//!    has are flushed. The buffer of a log in a network is sent.
//! 2. All calls of users are refused, and background work ends.
//! 3. Memtable shards at memory nodes are released, or left for the next open. The log has their
//!    records. The log is synced and marked as whole.
//! 4. The manifest is closed, and the lock of the directory is released.
//!
//! Invariants:
//! 1. No write is granted after step 1 has begun to flush. So the flush finds every record that no
//!    log has.
//! 2. The lock is released last, when no install is under way and no install can begin. Another
//!    open may own the directory from then on, and would lose an edit of this one.
//!
//! Thread-safety: any thread may call. The first call closes. A second call that arrives during the
//! first one waits for its end, and later calls return immediately.
//! Failure: the steps go on after an error, and the first error is returned. Only the first call
//! returns an error.
//! Cost: one log sync, and the flushes of step 1.

use archipelago_base::Result;

use crate::db::background::{flush, leave_log, scheduler};
use crate::db::inner::DbInner;
use crate::db::state::storage::Storage;
use crate::db::write::{self, WritePath};
use crate::lock_order::Order;
use crate::manifest::LogMark;

/// Closes the database: stops background work, makes all writes durable, releases the lock. A call
/// during another one waits for its end and does nothing else. Later calls do nothing.
pub(crate) fn shut_down(db: &DbInner, workers: &scheduler::Workers) -> Result<()> {
    let mut closed = Ok(());
    // If a call has panicked, the next one closes.
    db.close_once.call_once_force(|_| closed = carry_out(db, workers));
    closed
}

/// Carries out the steps of the module.
fn carry_out(db: &DbInner, workers: &scheduler::Workers) -> Result<()> {
    if db.context.is_closed() {
        // A call has panicked after this point.
        return Ok(());
    }
    write::refuse_writes(&db.writes);
    let left = match db.observers.health().is_read_only() {
        true => Ok(()),
        false => leave_log::leave_log_before_sync(db),
    };
    let flushed = left.and_then(|()| flush::flush_unlogged(db));
    // If records of a buffered log are lost now, the next segment still takes them.
    let sent =
        if db.context.options().log_buffer_bytes > 0 { write::flush_log(db) } else { Ok(()) };
    db.context.close();
    db.logs.ahead().close();
    db.warm_passes.close();
    db.jobs.wake();
    db.jobs.notify_progress();
    let joined = workers.join();
    db.jobs.threads().close();
    db.view.value_readers().close();
    // The next open replays the log.
    if let Some(away) = db.context.away() {
        away.close();
    }
    let ended = end_log(&db.storage, &db.writes);
    scheduler::remove_obsolete(&db.storage, &db.observers, &db.view);
    // The manifest lock shows that an install of a user's thread that began before has ended. Later
    // ones are refused.
    db.storage.lock_manifest(Order::none()).close();
    db.storage.release_lock();
    flushed.and(sent).and(joined).and(ended)
}

pub(crate) fn end_log(storage: &Storage, writes: &WritePath) -> Result<()> {
    let mut commit = writes.committer().lock(Order::none());
    let Some(mut log) = commit.take_log() else { return Ok(()) };
    let after = commit.last_seq().next();
    drop(commit);
    let synced = log.syncer().sync().map(|durable| {
        storage.marks().log(LogMark { no: durable.segment, bytes: durable.offset });
    });
    if synced.is_ok()
        && !log.is_broken()
        && let Err(error) = log.mark_synced(after)
    {
        tracing::warn!(%error, "the end of the log could not be marked as synced");
    }
    let closed = log.finish();
    match (synced, closed.unfinished) {
        (Err(error), _) => Err(error.context_at("the log could not be synced at close")),
        (Ok(()), Some(error)) => Err(error),
        (Ok(()), None) => Ok(()),
    }
}
