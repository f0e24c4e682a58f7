//! Shards whose tables are installed, but that old readers still read at a memory node.
//!
//! A flush that ran on an executor fetches no shard into this process. A reader that holds an older
//! super version still reads the shard at its node, which keeps it until that reader ends. The log
//! does not have the records any more, so such a shard cannot be rebuilt if its node dies.
//! Therefore a shard that a reader still has after [`GRACE`] is fetched. The reader goes on with
//! the copy, and the node gets its memory back (decision 0084). Look-ups end long before.
//!
//! Thread-safety: any worker calls [`keep_for_readers`] between jobs.
//! Failure: a shard stays at its node if the node does not answer or the memory budget has no room
//! for it. A later call tries again. If the node dies before that, a reader of the shard gets
//! `Busy`, and its next read finds the tables.
//! Cost: a lock for each job; one fetch for each shard that an iterator or a snapshot scan holds.

use std::time::Duration;

use archipelago_base::budget::Pressure;

use crate::border::contained;
use crate::db::state::context::Context;
use crate::db::state::observers::Observers;
use crate::stats::Ticker;

/// Time for which readers may hold an installed shard before it is fetched for them.
const GRACE: Duration = Duration::from_millis(100);

/// Fetches installed shards that readers still have, and forgets the others.
pub(crate) fn keep_for_readers(context: &Context, observers: &Observers) {
    let Some(link) = context.away() else { return };
    let grace = if context.is_manual() { Duration::ZERO } else { GRACE };
    let mut due = link.take_retired(grace).into_iter();
    let mut left = Vec::new();
    for shard in due.by_ref() {
        let has_room = context.budget().pressure() == Pressure::None;
        if context.is_closing() || !has_room {
            left.push(shard);
            break;
        }
        match contained("fetching a memtable shard for its readers", || shard.fetch()) {
            Ok(_) => {
                shard.release();
                observers.stats().add(Ticker::AwayShardsHeld, 1);
            }
            // Its readers get an error.
            Err(_) if shard.is_lost() || shard.has_copy() => {}
            Err(error) => {
                // The other shards may be at the same node, so the worker does not wait for them
                // now.
                tracing::debug!(%error, "a memtable shard is not fetched for its readers yet");
                left.push(shard);
                break;
            }
        }
    }
    left.extend(due);
    link.retire(left);
}
