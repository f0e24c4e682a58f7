//! Threads that keep a log in a network, so that no writer waits for the network under the commit
//! lock.
//!
//! The *keeper* prepares the next segment when the open one is half full, closes segments that the
//! log has left, and measures the free room of the pool. The *sender* exists only if the log is
//! buffered. It sends records that are 100 ms old, and handles their loss. A local database has
//! neither thread.
//!
//! Invariants:
//! 1. The threads hold no lock while they wait for the network.
//! 2. A segment that lost records is left before anything else happens to the log.
//!
//! Thread-safety: each thread runs one of the functions.
//! Failure: if a segment cannot be prepared, the keeper tries again after a pause, at the next
//! request of the commit point. A loss of records is handled as a writer handles it.
//! Cost: the keeper sleeps until there is work. A buffered log that is written costs ten wake-ups
//! per second.

use crate::db::inner::DbInner;
use crate::db::state::context::Context;
use crate::db::state::storage::Storage;
use crate::db::write::WritePath;
use crate::db::write::log_ahead::LogWork;
use crate::db::write::log_segments::LogSegments;
use crate::db::write::{disk_room, log_segments};
use crate::file_meta::log_name;
use crate::wal::PreparedSegment;

/// Whether the log of the database needs the threads.
pub(crate) fn is_needed(context: &Context, writes: &WritePath) -> bool {
    let syncer = writes.committer().syncer();
    let is_later = syncer.is_some_and(|syncer| syncer.acknowledges_later());
    is_later && !context.is_manual() && !context.options().read_only
}

/// Does the work that the commit point hands over, until the database closes.
pub(crate) fn keep_log(db: &DbInner) {
    while let Some(work) = db.logs.ahead().next_work() {
        let LogWork { retired, unused, wants_segment, wants_room, is_last } = work;
        for segment in retired {
            if let Err(lost) = segment.settle() {
                log_segments::leave_lossy_segment(db, lost.segment, &lost.error);
            }
        }
        unused.into_iter().for_each(|segment| segment.discard(&**db.storage.fs()));
        if is_last {
            continue;
        }
        if wants_segment {
            prepare_segment(&db.context, &db.storage, &db.logs);
        }
        if wants_room {
            disk_room::refresh_free_room(db);
        }
    }
}

/// Creates the next segment.
fn prepare_segment(context: &Context, storage: &Storage, logs: &LogSegments) {
    let (fs, no) = (storage.fs(), storage.file_numbers().allocate());
    let path = storage.path_of(&log_name(no));
    let bytes = context.options().wal_segment_bytes;
    match PreparedSegment::create(&**fs, &path, no, bytes, context.unique_seed()) {
        Ok(segment) => logs.ahead().put_prepared(segment),
        // The log goes on in the open segment meanwhile.
        Err(error) => {
            tracing::warn!(%error, "the next log segment could not be prepared yet");
            logs.ahead().note_unprepared(context.clock().now_ns());
        }
    }
}

/// Sends the records of a buffered log once they are old enough, until the database closes.
pub(crate) fn send_buffers(db: &DbInner) {
    while db.logs.ahead().wait_until_old() {
        let Some(syncer) = db.writes.committer().syncer() else { continue };
        if let Err(lost) = syncer.send() {
            log_segments::leave_lossy_segment(db, lost.segment, &lost.error);
        }
    }
}
