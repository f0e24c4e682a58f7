use super::*;

const CF: CfId = CfId(3);

fn keys(start: &str, end: &str) -> KeyRange {
    let end = (!end.is_empty()).then(|| end.as_bytes().to_vec());
    KeyRange { start: start.as_bytes().to_vec(), end }
}

/// A shard: first key, end of the keys, `after_seq`, `last_seq`, segment of the seal.
type Row = (&'static str, &'static str, u64, u64, u64);

struct Case {
    what: &'static str,
    shards: &'static [Row],
    /// Flushed ranges: first key, end of the keys, sequence number.
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
