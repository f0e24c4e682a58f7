//! Chooses the shards of the previous owner that an open keeps (OFFLOAD §5.12, decision 0088). The
//! functions are pure.
//!
//! A shard is kept if all of the following hold:
//!
//! 1. Tables and the shards that are kept so far have all records of its keys up to the sequence
//!    number after which the shard begins. So no older record of its keys has to be replayed below
//!    it.
//! 2. No table and no shard that is kept so far has a record of the shard. Otherwise a merge
//!    operand would count twice.
//! 3. The log, up to the segment in which the memtable was sealed, reaches the last sequence number
//!    of the shard. Otherwise a power failure has taken some of its records, and their numbers will
//!    be used again.
//!
//! The shards are examined in the order of their last sequence numbers. The records of a kept shard
//! count as covered for the next shards.

use std::collections::BTreeMap;

use archipelago_base::{CfId, FileNo, SeqNo};

use crate::key::KeyRange;
use crate::version::FlushedThrough;

/// A shard of the previous owner, as the decision sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) family: CfId,
    pub(super) keys: &'a KeyRange,
    pub(super) after_seq: SeqNo,
    pub(super) last_seq: SeqNo,
    pub(super) seal_log: FileNo,
    /// Smallest and largest sequence number of its records, once they are known.
    pub(super) seqs: Option<(SeqNo, SeqNo)>,
}

/// Reason for which a shard is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unkept {
    /// Tables have all of its records.
    Flushed,
    /// Older records of its keys are only in the log.
    Gap,
    /// The log ends before its last record.
    BeyondLog,
    /// It contradicts the manifest, or its family is gone.
    Unusable,
}

/// The decision of [`kept`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Verdict on each shard.
    pub(super) verdicts: Vec<Result<(), Unkept>>,
    /// For each family, the sequence numbers through which tables and kept shards have its records.
    pub(super) covered: BTreeMap<CfId, FlushedThrough>,
}

impl Kept {
    /// Positions of the kept shards.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        let verdicts = self.verdicts.iter().enumerate();
        verdicts.filter(|(_, verdict)| verdict.is_ok()).map(|(at, _)| at)
    }
}

/// Decides which of `shards` are kept. `flushed_through` has, for each family that exists, the
/// sequence numbers through which tables have its records. `log_end` returns the last sequence
/// number of the log up to the end of a segment.
pub(super) fn kept(
    shards: &[Candidate<'_>],
    flushed_through: &BTreeMap<CfId, FlushedThrough>,
    log_end: impl Fn(FileNo) -> SeqNo,
) -> Kept {
    let mut verdicts = vec![Err(Unkept::Unusable); shards.len()];
    let mut covered = flushed_through.clone();
    let mut in_order: Vec<usize> = (0..shards.len()).collect();
    in_order.sort_by_key(|at| (shards[*at].last_seq, &shards[*at].keys.start));
    for at in in_order {
        let shard = &shards[at];
        let Some(covered) = covered.get_mut(&shard.family) else { continue };
        verdicts[at] = verdict(shard, covered, log_end(shard.seal_log));
        if verdicts[at].is_ok() {
            covered.raise(shard.keys, shard.last_seq);
        }
    }
    Kept { verdicts, covered }
}

fn verdict(shard: &Candidate<'_>, covered: &FlushedThrough, log_end: SeqNo) -> Result<(), Unkept> {
    if shard.keys.is_empty() || shard.after_seq >= shard.last_seq {
        return Err(Unkept::Unusable);
    }
    let (least, most) = (covered.min_in(shard.keys), covered.max_in(shard.keys));
    if least >= shard.last_seq {
        return Err(Unkept::Flushed);
    }
    if least < shard.after_seq {
        return Err(Unkept::Gap);
    }
    let is_within = |(smallest, largest)| smallest > most && largest <= shard.last_seq;
    if most >= shard.last_seq || !shard.seqs.is_none_or(is_within) {
        return Err(Unkept::Unusable);
    }
    if shard.last_seq > log_end {
        return Err(Unkept::BeyondLog);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
