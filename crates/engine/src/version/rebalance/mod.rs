//! Changes of bucket boundaries: where recent writes went, which map change that demands, and when
//! a change may be made. Pure: no I/O, clock or lock (BucketLSM §V-C).
//!
//! - [`Window`]: the content of the last [`WINDOW_SEALS`] sealed memtables of a family, as keys
//!   that stand for bytes. `db::background::rebalance` owns it. It exists in memory only and is
//!   empty after an open.
//! - [`rebalance`]: from a window and a map to at most one [`MapChange`], with its reason.
//! - [`fitting`]: whether that change may be made now, even in buckets that are written all the
//!   time.
//! - [`can_change_map`]: the same for changes on an operator's request, which are not prepared.
//!   They are refused while a touched bucket has L0 files, a running flush or a running compaction.

mod decide;
mod fit;
mod window;

#[cfg(test)]
mod simulation;

use std::ops::Range;

use archipelago_base::{Error, Result};

use crate::key::KeyRange;
use crate::version::{Running, Version};

pub use decide::{ChangeKind, MapChange, Reason, RebalanceInput, rebalance};
pub use fit::{RunningFlush, fitting};
pub use window::{SealSample, WINDOW_SEALS, Window};

/// Returns `Busy`, with the reason, while the buckets `touched` of `version` cannot be changed.
/// `flushes` are the key ranges that running flushes of this column family will install. `running`
/// are its compactions.
pub fn can_change_map(
    version: &Version,
    touched: Range<usize>,
    running: &[Running],
    flushes: &[KeyRange],
) -> Result<()> {
    for bucket in touched {
        let l0 = version.l0(bucket).len();
        if l0 > 0 {
            return Err(Error::busy(format!(
                "bucket {bucket} has {l0} L0 files: compact its range first"
            )));
        }
        let range = version.map().range(bucket);
        if flushes.iter().any(|flush| flush.overlaps(&range)) {
            return Err(Error::busy(format!("bucket {bucket} is being flushed: try again")));
        }
        let compacting = |job: &&Running| job.cf == version.cf() && job.range.overlaps(&range);
        if let Some(job) = running.iter().find(compacting) {
            return Err(Error::busy(format!(
                "bucket {bucket} is being compacted from level {} to level {}: try again",
                job.from, job.to
            )));
        }
    }
    Ok(())
}
