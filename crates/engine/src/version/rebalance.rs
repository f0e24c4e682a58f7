//! When a bucket map may change.
//!
//! A map change moves a bucket's boundaries while jobs and files are bound to them, so it is
//! refused while a touched bucket has L0 files, a running flush or a running compaction
//! (BucketLSM §V-C merges and splits only buckets that were just compacted). Pure.

use std::ops::Range;

use archipelago_base::{Error, Result};

use crate::compaction::pick::Running;
use crate::key::KeyRange;
use crate::version::Version;

/// `Busy`, with the reason, while the buckets `touched` of `version` cannot be changed. `flushes`
/// are the key ranges that running flushes of this column family will install, `running` its
/// compactions.
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
