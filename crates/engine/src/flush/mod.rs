//! Flush: the shards of sealed memtables within a key range become L0 files.
//!
//! A flush is a compaction of memtables: the same rules drop shadowed versions and covered records
//! ([`crate::compaction::iterator`]). The owner chooses the range (of one epoch of the bucket map)
//! and the memtables (a prefix of the immutable ones, oldest first). It syncs the log through the
//! job's highest sequence number before it installs the outputs. It frees a shard when all its
//! ranges are installed. Logs and memtables hold whole values. A flush writes large values to value
//! files. [`crate::job`] says what holds for every job. Paper: O³-LSM §4.4.

use std::sync::Arc;

use archipelago_base::budget::MemoryClass;
use archipelago_base::{CfId, Error, ErrorKind, Result};
use archipelago_env::{IoContext, IoPurpose};
use serde::{Deserialize, Serialize};

use crate::compaction::cover::clip;
use crate::compaction::drive;
use crate::compaction::iterator::CompactionIterator;
use crate::iter::{Child, InternalIterator, MergingIterator};
use crate::job::output::OutputWriter;
use crate::job::spec::{OutputSpec, Retention};
use crate::job::{JobContext, JobOutput, ShardRef};
use crate::key::{KeyRange, user_key};

/// A flush as a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushSpec {
    /// The column family.
    pub cf: u32,
    /// Keys that are flushed; records of the shards outside of it are left out.
    pub range: KeyRange,
    /// The shards that hold keys of the range, of all memtables that are flushed.
    pub shards: Vec<ShardRef>,
    /// Which records the job may drop.
    pub retention: Retention,
    /// Where and how outputs are written; their level is 0.
    pub output: OutputSpec,
}

/// Runs a flush. On `Ok` the outputs survive power loss. [`crate::job`] lists the failures.
pub fn run_flush(spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
    flush(spec, context).map_err(|error| {
        error.context_at(format_args!("flush of {} shards of cf {}", spec.shards.len(), spec.cf))
    })
}

fn flush(spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
    let started_ns = context.clock.now_ns();
    let rules = spec.retention.rules(&spec.output.cf_name, &spec.range, context)?;
    let mut shards = Vec::with_capacity(spec.shards.len());
    for shard in &spec.shards {
        shards.push(context.shards.shard(shard)?);
    }
    let tombstones = clip(shards.iter().flat_map(|shard| shard.tombstone_list()), &spec.range);
    let children = shards
        .iter()
        .map(|shard| Child::new(Arc::clone(shard).verified_iter(), shard.seq_range().1))
        .collect();
    let mut merged = MergingIterator::new(children);
    merged.seek_to_first();
    let from_first = !merged.valid() || user_key(merged.key()) >= spec.range.start.as_slice();
    let mut input = CompactionIterator::new(merged, tombstones, rules);
    let io = IoContext::sst(IoPurpose::Flush, spec.output.level).of_family(spec.cf);
    let _held = context.budget.hold(MemoryClass::Job, input.tombstone_bytes());
    let kept = input.take_tombstones();
    let writer = OutputWriter::new(&spec.output, CfId(spec.cf), &spec.range, kept, io, context)?
        .filtered_by(spec.retention.compaction_filter.as_deref());
    let written = drive(&mut input, writer, context, |input| {
        let expected: u64 = shards.iter().map(|shard| shard.entries()).sum();
        let read = input.counts().records_in;
        // The number of records in the range is known only if no shard reaches out of it.
        if from_first && input.read_to_end() && read != expected {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("{read} records were read of {expected}"),
            ));
        }
        Ok(())
    })?;
    Ok(context.output(written, input.counts().clone(), started_ns))
}

#[cfg(test)]
mod tests;
