//! Which shards of the owner before an open keeps. Pure (OFFLOAD §5.12; see the decision record).
//!
//! A shard is kept if all of the following hold:
//!
//! 1. Tables and the shards that are kept so far have all records of its keys up to the sequence
//!    number after which it begins. So no older record of its keys has to be replayed below it.
//! 2. Neither of them has a record that it has as well. (A merge operand would count twice.)
//! 3. The log, up to the segment in which its memtable was sealed, reaches its last sequence
//!    number. Otherwise a power failure has taken some of its records, whose numbers will be used
//!    again.
//!
//! The shards are examined in the order of their last sequence numbers. What a kept shard covers
//! counts for the next ones.

use std::collections::BTreeMap;

use archipelago_base::{CfId, FileNo, SeqNo};

use crate::key::KeyRange;
use crate::version::FlushedThrough;

/// A shard of the owner before.
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

/// Why a shard is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unkept {
    /// Tables have all of its records.
    Flushed,
    /// Older records of its keys are only in the log.
    Gap,
    /// The log ends before it.
    BeyondLog,
    /// It contradicts the manifest, or its family is gone.
    Unusable,
}

/// Answer of [`kept`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Verdict on each shard.
    pub(super) verdicts: Vec<Result<(), Unkept>>,
    /// Through which sequence number tables and kept shards have the records of each family.
    pub(super) covered: BTreeMap<CfId, FlushedThrough>,
}

impl Kept {
    /// Positions of the kept shards.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        let verdicts = self.verdicts.iter().enumerate();
        verdicts.filter(|(_, verdict)| verdict.is_ok()).map(|(at, _)| at)
    }
}

/// The shards that are kept. `flushed_through` has what tables have of each family that exists;
/// `log_end` tells the last sequence number of the log up to and with a segment.
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
