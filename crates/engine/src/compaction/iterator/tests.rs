//! Compactions against a model. Any read at a sequence number at which a reader may look must give
//! the same result before and after. Space must be reclaimed for records that no reader sees.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::compaction::cover::clip;
use crate::extension::{AppendMerge, CompactionFilter, MergeOperator};
use crate::tombstone::RangeTombstone;

const NOW_MS: u64 = 1000;
const KEYS: u8 = 6;

/// Sorted records, read forward.
struct Records {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    at: usize,
}

impl InternalIterator for Records {
    fn valid(&self) -> bool {
        self.at < self.entries.len()
    }
    fn seek_to_first(&mut self) {
        self.at = 0;
    }
    fn seek(&mut self, target: &[u8]) {
        self.at = self.entries.partition_point(|(k, _)| key::compare(k, target).is_lt());
    }
    fn next(&mut self) {
        self.at += 1;
    }
    fn key(&self) -> &[u8] {
        &self.entries[self.at].0
    }
    fn value(&self) -> &[u8] {
        &self.entries[self.at].1
    }
    fn status(&self) -> Result<()> {
        Ok(())
    }
    fn seek_to_last(&mut self) {
        unreachable!("compactions read forward")
    }
    fn seek_for_prev(&mut self, _target: &[u8]) {
        unreachable!("compactions read forward")
    }
    fn prev(&mut self) {
        unreachable!("compactions read forward")
    }
}

/// The value and its expiry, if there is one.
type Found = Option<(Vec<u8>, Option<u64>)>;

/// Records and tombstones, as a tree or a part of one holds them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Data {
    records: BTreeMap<(u8, std::cmp::Reverse<u64>), (Kind, Vec<u8>)>,
    tombstones: Vec<RangeTombstone>,
}

impl Data {
    fn add(&mut self, seq: u64, op: &Op) {
        let mut put = |key, kind, value: Vec<u8>| {
            self.records.insert((key, std::cmp::Reverse(seq)), (kind, value));
        };
        match op {
            Op::Put(key, value) => put(*key, Kind::Put, vec![*value]),
            Op::Delete(key) => put(*key, Kind::Delete, vec![]),
            Op::Merge(key, value) => put(*key, Kind::Merge, vec![*value]),
            Op::PutExpiring(key, expiry, value) => {
                let mut stored = expiry.to_le_bytes().to_vec();
                stored.push(*value);
                put(*key, Kind::PutExpiring, stored);
            }
            Op::DeleteRange(start, end) => self.tombstones.push(RangeTombstone {
                start: [*start].into(),
                end: [*end].into(),
                seq: SeqNo(seq),
            }),
        }
    }

    fn with(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.records.extend(other.records.clone());
        both.tombstones.extend(other.tombstones.clone());
        both
    }

    /// What a reader finds: the value and its expiry. `Err` if the operator fails.
    fn read(
        &self,
        key: u8,
        at: u64,
        now_ms: u64,
        operator: &dyn MergeOperator,
    ) -> Result<Found, ()> {
        let covers = |t: &&RangeTombstone| t.start[0] <= key && key < t.end[0] && t.seq.0 <= at;
        let deleted = self.tombstones.iter().filter(covers).map(|t| t.seq.0).max().unwrap_or(0);
        let mut operands: Vec<&[u8]> = Vec::new();
        let mut base = None;
        let first = (key, std::cmp::Reverse(u64::MAX));
        for ((_, seq), (kind, value)) in
            self.records.range(first..=(key, std::cmp::Reverse(0))).filter(|((_, s), _)| s.0 <= at)
        {
            if seq.0 < deleted {
                break;
            }
            match kind {
                Kind::Merge => {
                    operands.push(value);
                    continue;
                }
                Kind::Put => base = Some((value.clone(), None)),
                Kind::PutExpiring => {
                    let expiry = u64::from_le_bytes(value[..8].try_into().unwrap());
                    base = (expiry > now_ms).then(|| (value[8..].to_vec(), Some(expiry)));
                }
                _ => {}
            }
            break;
        }
        if operands.is_empty() {
            return Ok(base);
        }
        operands.reverse();
        let value = base.as_ref().map(|(value, _)| value.as_slice());
        let merged = operator.full_merge(&[key], value, &operands).map_err(|_| ())?;
        Ok(Some((merged, base.and_then(|(_, expiry)| expiry))))
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8, u8),
    PutExpiring(u8, u64, u8),
    Delete(u8),
    Merge(u8, u8),
    DeleteRange(u8, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let value = b'a'..=b'h';
    prop_oneof![
        4 => (0..KEYS, value.clone()).prop_map(|(key, value)| Op::Put(key, value)),
        2 => (0..KEYS, prop_oneof![Just(500u64), Just(1000), Just(1500)], value.clone())
            .prop_map(|(key, expiry, value)| Op::PutExpiring(key, expiry, value)),
        2 => (0..KEYS).prop_map(Op::Delete),
        4 => (0..KEYS, value).prop_map(|(key, value)| Op::Merge(key, value)),
        2 => (0..KEYS, 1..=KEYS).prop_map(|(start, len)| Op::DeleteRange(start, start + len)),
    ]
}

/// Appends, but fails at the operand `h`. It combines operands only if `partial` allows it.
struct Fussy {
    partial: bool,
}

impl MergeOperator for Fussy {
    fn name(&self) -> &str {
        "fussy"
    }
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>> {
        if operands.iter().any(|operand| operand.contains(&b'h')) {
            return Err(Error::invalid("h"));
        }
        AppendMerge.full_merge(key, base, operands)
    }
    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        let fails = operands.iter().any(|operand| operand.contains(&b'h'));
        (self.partial && !fails).then(|| operands.concat()).filter(|_| key.len() == 1)
    }
}

/// Removes `a` and `b`, and turns `c` into `C`.
struct Picky;

impl CompactionFilter for Picky {
    fn name(&self) -> &str {
        "picky"
    }
    fn filter(&self, _key: &[u8], value: &[u8], expiry: Option<u64>, now: u64) -> FilterDecision {
        assert!(expiry.is_none_or(|expiry| expiry > now), "expired records are not filtered");
        match value {
            b"a" | b"b" => FilterDecision::Remove,
            b"c" => FilterDecision::Change(b"C".to_vec()),
            _ => FilterDecision::Keep,
        }
    }
}

#[derive(Clone, Debug)]
struct Case {
    /// Older data that is not part of the job.
    older: Data,
    job: Data,
    snapshots: Vec<u64>,
    visible: u64,
    last: u64,
    partial: bool,
}

fn case() -> impl Strategy<Value = Case> {
    (
        prop::collection::vec(op(), 1..40),
        prop::collection::vec(0u64..40, 0..4),
        0usize..20,
        0u64..10,
        any::<bool>(),
    )
        .prop_map(|(ops, snapshots, older_ops, unpublished, partial)| {
            let last = ops.len() as u64;
            let (mut older, mut job) = (Data::default(), Data::default());
            for (index, op) in ops.iter().enumerate() {
                let data = if index < older_ops { &mut older } else { &mut job };
                data.add(index as u64 + 1, op);
            }
            let visible = last.saturating_sub(unpublished).max(older_ops as u64).min(last);
            Case { older, job, snapshots, visible, last, partial }
        })
}

impl Case {
    fn below(&self) -> Below {
        let mut keys: Vec<u8> = self.older.records.keys().map(|(key, _)| *key).collect();
        keys.dedup();
        let range = |key: &u8| KeyRange { start: vec![*key], end: Some(vec![*key + 1]) };
        Below::Runs(vec![keys.iter().map(range).collect()])
    }

    fn run(&self, range: &KeyRange, filter: bool) -> (Data, Counts) {
        let below = self.below();
        let rules = Rules {
            range,
            stripes: Stripes::new(&self.snapshots, SeqNo(self.visible)),
            below: &below,
            now_ms: NOW_MS,
            merge_operator: Some(FamilyMerge::new(
                Arc::new(Fussy { partial: self.partial }),
                "default",
            )),
            filter: filter.then(|| FamilyFilter::new(Arc::new(Picky), "default")),
        };
        let entries = self.job.records.iter().map(|((key, seq), (kind, value))| {
            (key::encode(&[*key], SeqNo(seq.0), *kind), value.clone())
        });
        let input = Records { entries: entries.collect(), at: 0 };
        let tombstones = clip(self.job.tombstones.clone(), range);
        let mut iter = CompactionIterator::new(input, tombstones, rules);
        let mut out = Data { tombstones: iter.take_tombstones(), ..Data::default() };
        let mut before: Option<Vec<u8>> = None;
        iter.start().unwrap();
        while iter.valid() {
            let record = KeyRef::decode(iter.key()).unwrap();
            let new_key = before.as_ref().is_none_or(|b| key::user_key(b) != record.user_key);
            assert_eq!(iter.starts_key(), new_key);
            assert!(before.as_ref().is_none_or(|b| key::compare(b, iter.key()).is_lt()));
            let place = (record.user_key[0], std::cmp::Reverse(record.seq.0));
            out.records.insert(place, (record.kind, iter.value().unwrap().to_vec()));
            before = Some(iter.key().to_vec());
            iter.advance().unwrap();
        }
        let counts = iter.counts().clone();
        assert_eq!(counts.records_in, counts.records_out + counts.dropped.total());
        assert_eq!(counts.records_out, out.records.len() as u64);
        (out, counts)
    }

    /// Every sequence number at which a reader may look.
    fn places(&self) -> impl Iterator<Item = u64> + '_ {
        self.snapshots.iter().copied().chain(self.visible..=self.last)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn nobody_sees_a_compaction(case in case()) {
        let (out, counts) = case.run(&KeyRange::all(), false);
        prop_assert_eq!(counts.records_in, case.job.records.len() as u64);
        let operator = Fussy { partial: case.partial };
        let (before, after) = (case.older.with(&case.job), case.older.with(&out));
        for key in 0..KEYS {
            for at in case.places() {
                prop_assert_eq!(
                    before.read(key, at, NOW_MS, &operator),
                    after.read(key, at, NOW_MS, &operator),
                    "key {} at {}", key, at
                );
                let later = NOW_MS + 600;
                prop_assert_eq!(
                    before.read(key, at, later, &operator),
                    after.read(key, at, later, &operator),
                    "key {} at {} after all expiries", key, at
                );
            }
        }
    }

    #[test]
    fn space_comes_back(case in case()) {
        let case = Case { snapshots: vec![], visible: case.last, ..case };
        let (out, counts) = case.run(&KeyRange::all(), false);
        let older = |key: u8| case.older.records.keys().any(|(k, _)| *k == key);
        for key in 0..KEYS {
            let versions: Vec<Kind> = out
                .records
                .iter()
                .filter(|((k, _), _)| *k == key)
                .map(|(_, (kind, _))| *kind)
                .collect();
            if !older(key) {
                prop_assert!(!versions.contains(&Kind::Delete));
            }
            let dead = |((k, _), (kind, value)): (&(u8, _), &(Kind, Vec<u8>))| {
                let expiry = || u64::from_le_bytes(value[..8].try_into().unwrap());
                *k == key && *kind == Kind::PutExpiring && expiry() <= NOW_MS
            };
            prop_assert!(!out.records.iter().any(dead));
            let must_be_folded = counts.merge_errors == 0 && !older(key);
            if must_be_folded && versions.last() != Some(&Kind::PutExpiring) {
                prop_assert!(versions.len() <= 1, "{:?}", versions);
                prop_assert!(!versions.contains(&Kind::Merge));
            }
        }
        for tombstone in &out.tombstones {
            prop_assert!((tombstone.start[0]..tombstone.end[0]).any(older));
        }
        prop_assert!(out.tombstones.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }

    #[test]
    fn filters_change_only_the_newest_record(case in case()) {
        let case = Case { visible: case.last, ..case };
        let (out, _) = case.run(&KeyRange::all(), true);
        let operator = Fussy { partial: case.partial };
        let (before, after) = (case.older.with(&case.job), case.older.with(&out));
        for key in 0..KEYS {
            let newest = case.job.records.range((key, std::cmp::Reverse(u64::MAX))..).next();
            let newest = newest.filter(|((k, _), (kind, _))| *k == key && *kind != Kind::Merge);
            for at in case.places() {
                let was = before.read(key, at, NOW_MS, &operator);
                let is = after.read(key, at, NOW_MS, &operator);
                let is_shown = newest.is_some_and(|((_, seq), _)| seq.0 <= at);
                let expected = match &was {
                    Ok(Some((value, expiry))) if is_shown => {
                        match Picky.filter(&[key], value, *expiry, NOW_MS) {
                            FilterDecision::Keep => was.clone(),
                            FilterDecision::Remove => Ok(None),
                            FilterDecision::Change(value) => Ok(Some((value, *expiry))),
                        }
                    }
                    _ => was.clone(),
                };
                prop_assert_eq!(is, expected, "key {} at {}", key, at);
            }
        }
    }

    #[test]
    fn parts_of_the_range_make_the_whole(case in case(), cut in 0..KEYS) {
        let (whole, _) = case.run(&KeyRange::all(), true);
        let (left, _) = case.run(&KeyRange { start: vec![], end: Some(vec![cut]) }, true);
        let (right, _) = case.run(&KeyRange { start: vec![cut], end: None }, true);
        let parts = left.with(&right);
        prop_assert_eq!(&parts.records, &whole.records);
        prop_assert_eq!(
            parts.tombstones.iter().map(|t| t.seq).max(),
            whole.tombstones.iter().map(|t| t.seq).max()
        );
    }
}

#[test]
fn operands_stay_apart_from_a_base_that_has_yet_to_expire() {
    let run = |expiry: u64| {
        let mut job = Data::default();
        let ops = [Op::Put(0, b'o'), Op::PutExpiring(0, expiry, b'b'), Op::Merge(0, b'c')];
        let ops = ops.into_iter().chain([Op::Merge(0, b'd')]);
        ops.enumerate().for_each(|(at, op)| job.add(at as u64 + 1, &op));
        let older = Data::default();
        let case = Case { older, job, snapshots: vec![], visible: 4, last: 4, partial: true };
        let (out, counts) = case.run(&KeyRange::all(), false);
        let records: Vec<_> =
            out.records.into_iter().map(|((_, seq), (kind, value))| (seq.0, kind, value)).collect();
        (records, counts.dropped)
    };
    let (records, dropped) = run(NOW_MS + 1);
    let base = [&(NOW_MS + 1).to_le_bytes()[..], b"b"].concat();
    let kept = [(4, Kind::Merge, b"cd".to_vec()), (2, Kind::PutExpiring, base)];
    assert_eq!(records, kept, "after the expiry a reader must find \"cd\"");
    assert_eq!((dropped.merged, dropped.shadowed), (1, 1));
    let (records, _) = run(NOW_MS);
    assert_eq!(records, [(4, Kind::Put, b"cd".to_vec())], "the base is gone for good");
}

#[test]
fn impossible_inputs_are_errors_that_name_the_key() {
    let run = |entries: Vec<(Vec<u8>, Vec<u8>)>| {
        let (range, below) = (KeyRange::all(), Below::nothing());
        let rules = Rules {
            range: &range,
            stripes: Stripes::new(&[], SeqNo(100)),
            below: &below,
            now_ms: NOW_MS,
            merge_operator: None,
            filter: None,
        };
        let mut iter = CompactionIterator::new(Records { entries, at: 0 }, Vec::new(), rules);
        let mut result = iter.start();
        while result.is_ok() && iter.valid() {
            result = iter.advance();
        }
        result.unwrap_err()
    };
    let record = |key: &[u8], seq, kind| (key::encode(key, SeqNo(seq), kind), vec![1]);
    for entries in [
        vec![record(b"kk", 1, Kind::Put), record(b"k", 2, Kind::Put)],
        vec![record(b"kk", 1, Kind::Put), record(b"kk", 2, Kind::Put)],
        vec![record(b"kk", 1, Kind::Merge), record(b"kk", 2, Kind::Merge)],
        vec![record(b"kk", 1, Kind::PutExpiring)],
        vec![record(b"kk", 1, Kind::RangeDelete)],
        vec![record(b"kk", 1, Kind::Indirect)],
    ] {
        let error = run(entries);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.context().contains("\"k"), "{error}");
    }
}
