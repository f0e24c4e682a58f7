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
mod tests {
    use super::*;

    const CF: CfId = CfId(3);

    fn keys(start: &str, end: &str) -> KeyRange {
        let end = (!end.is_empty()).then(|| end.as_bytes().to_vec());
        KeyRange { start: start.as_bytes().to_vec(), end }
    }

    /// First key, end of the keys, `after_seq`, `last_seq`, segment of the seal.
    type Row = (&'static str, &'static str, u64, u64, u64);

    struct Case {
        what: &'static str,
        shards: &'static [Row],
        /// First key, end of the keys, number.
        flushed: &'static [(&'static str, &'static str, u64)],
        /// Last sequence number of each segment, from the first one on.
        log: &'static [u64],
        verdicts: &'static [Result<(), Unkept>],
    }

    const OK: Result<(), Unkept> = Ok(());
    const FLUSHED: Result<(), Unkept> = Err(Unkept::Flushed);
    const GAP: Result<(), Unkept> = Err(Unkept::Gap);
    const BEYOND: Result<(), Unkept> = Err(Unkept::BeyondLog);
    const UNUSABLE: Result<(), Unkept> = Err(Unkept::Unusable);

    const CASES: &[Case] = &[
        Case {
            what: "shards that follow each other",
            shards: &[("", "m", 20, 30, 2), ("", "m", 0, 20, 1), ("m", "", 0, 20, 1)],
            flushed: &[],
            log: &[25, 40],
            verdicts: &[OK, OK, OK],
        },
        Case {
            what: "what tables have is not needed",
            shards: &[("", "m", 0, 20, 1), ("m", "", 0, 20, 1), ("", "m", 20, 30, 1)],
            flushed: &[("", "m", 20)],
            log: &[40],
            verdicts: &[FLUSHED, OK, OK],
        },
        Case {
            what: "a shard before it did not leave",
            shards: &[("", "m", 20, 30, 1), ("m", "", 0, 20, 1), ("m", "", 20, 30, 1)],
            flushed: &[],
            log: &[40],
            verdicts: &[GAP, OK, OK],
        },
        Case {
            what: "a part of the keys is not covered",
            shards: &[("", "f", 0, 20, 1), ("", "m", 20, 30, 1), ("", "f", 20, 31, 1)],
            flushed: &[],
            log: &[40],
            verdicts: &[OK, GAP, OK],
        },
        Case {
            what: "maps that differ, covered by two shards",
            shards: &[("", "f", 0, 20, 1), ("f", "m", 0, 20, 1), ("", "m", 20, 30, 1)],
            flushed: &[],
            log: &[40],
            verdicts: &[OK, OK, OK],
        },
        Case {
            what: "power failure took the end of the log",
            shards: &[("", "m", 0, 20, 1), ("", "m", 20, 30, 2), ("m", "", 0, 30, 2)],
            flushed: &[],
            log: &[25, 29],
            verdicts: &[OK, BEYOND, BEYOND],
        },
        Case {
            what: "numbers that a later open used again do not count",
            shards: &[("", "m", 0, 20, 2)],
            flushed: &[],
            log: &[15, 0, 90],
            verdicts: &[BEYOND],
        },
        Case {
            what: "a log without the segment and those before it",
            shards: &[("", "m", 0, 20, 0)],
            flushed: &[],
            log: &[90],
            verdicts: &[BEYOND],
        },
        Case {
            what: "shards that claim the same records, and contradictions",
            shards: &[("", "m", 0, 20, 1), ("", "m", 0, 20, 1), ("a", "", 0, 20, 1)],
            flushed: &[],
            log: &[90],
            verdicts: &[OK, FLUSHED, UNUSABLE],
        },
        Case {
            what: "no keys, and no numbers",
            shards: &[("m", "m", 0, 20, 1), ("a", "b", 20, 20, 1)],
            flushed: &[],
            log: &[90],
            verdicts: &[UNUSABLE, UNUSABLE],
        },
    ];

    fn log_end(log: &'static [u64]) -> impl Fn(FileNo) -> SeqNo {
        |no| SeqNo(log.iter().take(no.0 as usize).copied().max().unwrap_or(0))
    }

    #[test]
    fn cases_of_the_table() {
        for Case { what, shards, flushed, log, verdicts } in CASES {
            let ranges: Vec<KeyRange> = shards.iter().map(|row| keys(row.0, row.1)).collect();
            let candidate = |(row, keys)| {
                let (_, _, after, last, seal): &Row = row;
                Candidate {
                    family: CF,
                    keys,
                    after_seq: SeqNo(*after),
                    last_seq: SeqNo(*last),
                    seal_log: FileNo(*seal),
                    seqs: None,
                }
            };
            let candidates: Vec<_> = shards.iter().zip(&ranges).map(candidate).collect();
            let mut map = FlushedThrough::default();
            for (start, end, seq) in *flushed {
                map.raise(&keys(start, end), SeqNo(*seq));
            }
            let families = BTreeMap::from([(CF, map)]);
            let answer = kept(&candidates, &families, log_end(log));
            assert_eq!(&answer.verdicts, verdicts, "{what}");
            let without = kept(&candidates, &BTreeMap::new(), log_end(log));
            assert_eq!(without.positions().count(), 0, "{what}: of a dropped family");
        }
    }

    #[test]
    fn records_that_tables_have_as_well_are_not_kept() {
        let range = keys("", "");
        let shard = |seqs| Candidate {
            family: CF,
            keys: &range,
            after_seq: SeqNo(5),
            last_seq: SeqNo(20),
            seal_log: FileNo(1),
            seqs,
        };
        let mut map = FlushedThrough::default();
        map.raise(&range, SeqNo(5));
        map.raise(&keys("m", ""), SeqNo(8));
        let families = BTreeMap::from([(CF, map)]);
        let verdict = |smallest, largest| {
            let shard = shard(Some((SeqNo(smallest), SeqNo(largest))));
            kept(&[shard], &families, |_| SeqNo(50)).verdicts[0]
        };
        assert_eq!(verdict(9, 20), OK);
        assert_eq!(verdict(8, 20), UNUSABLE, "tables have 8 of some keys");
        assert_eq!(verdict(9, 21), UNUSABLE, "beyond its memtable");
        let answer = kept(&[shard(None)], &families, |_| SeqNo(50));
        assert_eq!(answer.verdicts, [OK]);
        assert_eq!(answer.covered[&CF].min(), SeqNo(20));
    }
}
