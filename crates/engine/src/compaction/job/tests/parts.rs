//! A compaction in parts has the same result as the whole one.

use super::*;
use crate::compaction::subcompaction::plan_subcompactions;
use crate::sst::{Anchor, anchors};
use crate::tombstone::TombstoneSet;

/// What one step of a history does to a key, or to the `len` keys from it on.
#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Merge(u8),
    Delete(u8),
    DeleteRange(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..30).prop_map(Step::Put),
        3 => (0u8..30).prop_map(Step::Merge),
        2 => (0u8..30).prop_map(Step::Delete),
        2 => (0u8..30, 1u8..15).prop_map(|(key, len)| Step::DeleteRange(key, len)),
    ]
}

/// Flushes the steps, numbered from `first` on.
fn flush(executor: &mut Executor, no: u64, first: u64, steps: &[Step], kept: &[u64]) -> Vec<Input> {
    let (mut records, mut tombstones) = (Vec::new(), Vec::new());
    for (step, seq) in steps.iter().zip(first..) {
        let (key, kind) = match *step {
            Step::Put(key) => (key, Kind::Put),
            Step::Merge(key) => (key, Kind::Merge),
            Step::Delete(key) => (key, Kind::Delete),
            Step::DeleteRange(key, len) => {
                let (start, end) = ([key].into(), [key + len].into());
                tombstones.push(RangeTombstone { start, end, seq: SeqNo(seq) });
                continue;
            }
        };
        let value = if kind == Kind::Delete { vec![] } else { vec![seq as u8; 20] };
        records.push((vec![key], seq, kind, value));
    }
    let shard = executor.memtable(no, &records, &tombstones);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.retention.snapshots = kept.to_vec();
    spec.output.block_bytes = 64;
    let output = run_flush(&spec, &executor.context()).unwrap();
    inputs(0, &output.files).collect()
}

/// Runs the parts of a job. Returns the files of all of them and the number of records that they
/// have read.
fn run_parts(
    executor: &Executor,
    whole: &CompactionSpec,
    parts: &[KeyRange],
) -> (Vec<FileMeta>, u64) {
    let (mut files, mut records_in) = (Vec::new(), 0);
    for part in parts {
        let mut spec = CompactionSpec { subrange: Some(part.clone()), ..whole.clone() };
        spec.output.file_numbers = executor.output_spec(1).file_numbers;
        let output = run_compaction(&spec, &executor.context()).unwrap();
        assert!(output.files.iter().all(|meta| meta.within(part)));
        files.extend(output.files);
        records_in += output.counts.records_in;
    }
    (files, records_in)
}

/// The view of a reader at `at` for each key: the records that no tombstone covers, and whether a
/// tombstone covers the records `below` (if there are any).
fn shown(
    contents: &(Vec<Record>, Vec<RangeTombstone>),
    below: &Below,
    at: u64,
) -> Vec<(Vec<u64>, Option<bool>)> {
    let (records, tombstones) = contents;
    let set = TombstoneSet::new(tombstones);
    let at_key = |key: u8| {
        let cover = set.max_covering(&[key], SeqNo(at)).map_or(0, |seq| seq.0);
        let seen = |record: &&Record| record.0 == [key] && (cover + 1..=at).contains(&record.1);
        let seqs = records.iter().filter(seen).map(|record| record.1).collect();
        (seqs, below.overlaps(&[key], &[key, 0]).then_some(cover > 0))
    };
    (0u8..50).map(at_key).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn parts_show_what_the_whole_shows(
        history in prop::collection::vec(step(), 1..150),
        memtables in 1usize..5,
        snapshots in prop::collection::vec(1u64..150, 0..3),
        below in prop::collection::btree_set(0u8..40, 0..6),
        cuts in prop::collection::btree_set(1u8..40, 0..3),
        target in 100u64..2000,
        parts_max in 1usize..9,
        least in 0u64..500,
    ) {
        let mut executor = Executor::new();
        let mut files = Vec::new();
        let share = history.len().div_ceil(memtables);
        for (no, steps) in history.chunks(share).enumerate() {
            let first = (no * share) as u64 + 1;
            files.extend(flush(&mut executor, no as u64, first, steps, &snapshots));
        }
        prop_assume!(!files.is_empty());
        let mut spec = executor.compaction_spec(files);
        spec.retention.snapshots.clone_from(&snapshots);
        let below: Vec<u8> = below.into_iter().collect();
        let below = below.chunks_exact(2).map(|pair| {
            KeyRange { start: vec![pair[0]], end: Some(vec![pair[1]]) }
        });
        spec.retention.below = Below::Runs(vec![below.collect()]);
        spec.output.cuts = cuts.into_iter().map(|cut| vec![cut]).collect();
        spec.output.target_file_bytes = target;
        let whole = run_compaction(&spec, &executor.context()).unwrap();

        let anchors: Vec<Anchor> = spec
            .inputs
            .iter()
            .flat_map(|input| anchors(&executor.table(&input.meta), 16))
            .collect();
        let parts = plan_subcompactions(anchors, parts_max, least, &spec.range);
        let (files, records_in) = run_parts(&executor, &spec, &parts);
        prop_assert!(check_complete(&spec, records_in).is_ok());
        assert_disjoint(&files);
        let (expected, got) = (all(&executor, &whole.files), all(&executor, &files));
        prop_assert_eq!(&got.0, &expected.0);
        for at in snapshots.into_iter().chain([history.len() as u64]) {
            let below = &spec.retention.below;
            prop_assert_eq!(shown(&got, below, at), shown(&expected, below, at), "at {}", at);
        }
    }
}

#[test]
fn anchors_account_for_a_file_and_cut_it_evenly() {
    let mut executor = Executor::new();
    let records: Vec<Record> =
        (0..2000).map(|i| put(&format!("k{i:04}"), i + 1, "value")).collect();
    let shard = executor.memtable(1, &records, &[]);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.output.block_bytes = 256;
    let output = run_flush(&spec, &executor.context()).unwrap();
    let table = executor.table(&output.files[0]);
    for most in [1, 7, 128] {
        let anchors = anchors(&table, most);
        assert!(anchors.len() <= most && anchors.len() > most / 2, "{}", anchors.len());
        assert!(anchors.is_sorted_by(|a, b| a.key < b.key));
        let total: u64 = anchors.iter().map(|anchor| anchor.bytes).sum();
        assert_eq!(total, table.properties().data_bytes);
        assert!(anchors.iter().all(|anchor| anchor.bytes < total / most as u64 * 2));
    }
    let parts = plan_subcompactions(anchors(&table, 128), 4, 1, &KeyRange::all());
    let starts: Vec<usize> = parts
        .iter()
        .map(|part| records.iter().position(|record| record.0 >= part.start).unwrap())
        .collect();
    for (at, expected) in starts.iter().zip([0, 500, 1000, 1500]) {
        assert!(at.abs_diff(expected) < 40, "{starts:?}");
    }
}

#[test]
fn records_that_no_part_has_read_are_corruption() {
    let mut executor = Executor::new();
    let records: Vec<Record> = (0..100).map(|i| put(&format!("k{i:02}"), i + 1, "v")).collect();
    let mut files = level(&mut executor, &records);
    files[7].meta.entries += 1;
    let spec = executor.compaction_spec(files);
    let parts = [range("", Some("k4")), range("k4", None)];
    let (_, records_in) = run_parts(&executor, &spec, &parts);
    let error = check_complete(&spec, records_in).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains("100 records were read of 101"), "{error}");
}

#[test]
fn a_part_tells_of_its_keys_and_stays_within_the_claim() {
    let mut executor = Executor::new();
    let files = level(&mut executor, &[put("a", 1, ""), put("b", 2, ""), put("c", 3, "")]);
    let mut spec = executor.compaction_spec(files);
    spec.range = range("a", Some("d"));
    spec.subrange = Some(range("b", Some("c")));
    let text = "compaction of cf 0 from L0 to L1 (2 files), its keys from \"b\" on, before \"c\"";
    assert_eq!(spec.describe(), text);
    for wrong in
        [range("", Some("b")), range("b", None), range("b", Some("e")), range("b", Some("b"))]
    {
        spec.subrange = Some(wrong);
        let error = run_compaction(&spec, &executor.context()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}
