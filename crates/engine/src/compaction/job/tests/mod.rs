mod late;
mod numbers;
mod parts;
mod values;

use archipelago_base::SeqNo;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use archipelago_env::mem::MemFs;
use proptest::prelude::*;

use super::*;
use crate::flush::run_flush;
use crate::job::below::{Below, range_of};
use crate::job::output::GRANDPARENT_TARGETS;
use crate::job::spec::Grandparent;
use crate::job::testing::*;
use crate::key::Kind;
use crate::tombstone::RangeTombstone;

/// A flushed memtable's files as inputs.
fn flushed(
    executor: &mut Executor,
    no: u64,
    records: &[Record],
    tombstones: &[RangeTombstone],
) -> Vec<Input> {
    let shard = executor.memtable(no, records, tombstones);
    let output = run_flush(&executor.flush_spec(vec![shard]), &executor.context()).unwrap();
    inputs(0, &output.files).collect()
}

/// Files of level 1 with `records` of 100 bytes each, two records a file.
fn level(executor: &mut Executor, records: &[Record]) -> Vec<Input> {
    let shard = executor.memtable(1000, records, &[]);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.output.cuts = records.iter().skip(2).step_by(2).map(|r| r.0.clone()).collect();
    let output = run_flush(&spec, &executor.context()).unwrap();
    inputs(1, &output.files).collect()
}

fn all(executor: &Executor, files: &[FileMeta]) -> (Vec<Record>, Vec<RangeTombstone>) {
    let mut whole = (vec![], vec![]);
    for meta in files {
        let (records, tombstones) = executor.contents(meta);
        whole.0.extend(records);
        whole.1.extend(tombstones);
    }
    whole
}

#[test]
fn levels_are_merged_and_old_versions_go() {
    let mut executor = Executor::new();
    let old: Vec<Record> = (0..10).map(|i| put(&format!("k{i}"), i + 1, "old")).collect();
    let mut files = level(&mut executor, &old);
    assert_eq!(files.len(), 5);
    files.extend(flushed(&mut executor, 1, &[put("k3", 20, "mid"), put("k5", 21, "mid")], &[]));
    files.extend(flushed(
        &mut executor,
        2,
        &[put("k5", 30, "new"), record("k9", 31, Kind::Delete, "")],
        &[tombstone("k0", "k2", 32)],
    ));
    let spec = executor.compaction_spec(files);
    let output = run_compaction(&spec, &executor.context()).unwrap();
    let expected: Vec<Record> = vec![
        put("k2", 3, "old"),
        put("k3", 20, "mid"),
        put("k4", 5, "old"),
        put("k5", 30, "new"),
        put("k6", 7, "old"),
        put("k7", 8, "old"),
        put("k8", 9, "old"),
    ];
    assert_eq!(all(&executor, &output.files), (expected, vec![]));
    assert_eq!(output.counts.records_in, 14);
    assert_eq!(output.counts.dropped.total(), 7);
    assert!(output.bytes_read >= spec.input_bytes() / 2 && output.duration_ns > 0);
}

#[test]
fn deletes_stay_where_older_data_lies_below() {
    let mut executor = Executor::new();
    let deletes = [record("a", 5, Kind::Delete, ""), record("m", 6, Kind::Delete, "")];
    let files = flushed(&mut executor, 1, &deletes, &[tombstone("b", "c", 7)]);
    let below = level(&mut executor, &[put("aa", 1, ""), put("p", 2, "")]);
    let mut spec = executor.compaction_spec(files);
    spec.retention.below = Below::Runs(vec![below.iter().map(|i| range_of(&i.meta)).collect()]);
    let output = run_compaction(&spec, &executor.context()).unwrap();
    let kept = (vec![record("m", 6, Kind::Delete, "")], vec![tombstone("b", "c", 7)]);
    assert_eq!(all(&executor, &output.files), kept);
}

#[test]
fn outputs_end_at_the_target_but_never_within_a_key() {
    let mut executor = Executor::new();
    let mut records = Vec::new();
    for key in 0..20u64 {
        for version in 0..20u64 {
            let seq = 1 + key * 20 + version;
            records.push(put(&format!("k{key:02}"), seq, &"v".repeat(500)));
        }
    }
    let snapshots: Vec<u64> = (1..=400).collect();
    let shard = executor.memtable(1, &records, &[]);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.retention.snapshots.clone_from(&snapshots);
    let files: Vec<Input> =
        inputs(0, &run_flush(&spec, &executor.context()).unwrap().files).collect();
    let mut spec = executor.compaction_spec(files);
    spec.retention.snapshots = snapshots;
    spec.output.target_file_bytes = 15_000;
    let output = run_compaction(&spec, &executor.context()).unwrap();
    assert_eq!(output.counts.records_out, 400);
    assert_eq!(output.files.len(), 10, "two keys of 20 versions reach the target");
    assert_disjoint(&output.files);
}

#[test]
fn outputs_overlap_a_bounded_part_of_the_next_level() {
    let mut executor = Executor::new();
    let records: Vec<Record> = (0..100).map(|i| put(&format!("k{i:02}"), i + 1, "v")).collect();
    let files = flushed(&mut executor, 1, &records, &[]);
    let mut spec = executor.compaction_spec(files);
    spec.output.target_file_bytes = 10_000;
    spec.output.grandparents = (1..100)
        .map(|i| Grandparent { end: format!("k{i:02}").into_bytes(), bytes: 5_000 })
        .collect();
    let output = run_compaction(&spec, &executor.context()).unwrap();
    let per_output = (GRANDPARENT_TARGETS * 10_000 / 5_000) as usize + 1;
    assert_eq!(output.files.len(), 100_usize.div_ceil(per_output));
    assert_eq!(all(&executor, &output.files).0, records);
}

#[test]
fn parts_of_a_job_make_the_whole() {
    let mut executor = Executor::new();
    let records: Vec<Record> = (0..100).map(|i| put(&format!("k{i:02}"), i + 1, "v")).collect();
    let mut files = level(&mut executor, &records);
    files.extend(flushed(&mut executor, 1, &[put("k50", 200, "w")], &[tombstone("k3", "k7", 150)]));
    let spec = executor.compaction_spec(files);
    let whole = run_compaction(&spec, &executor.context()).unwrap();
    let mut parts = (vec![], vec![]);
    for part in [range("", Some("k4")), range("k4", Some("k51")), range("k51", None)] {
        let mut spec = spec.clone();
        spec.output = executor.output_spec(1);
        spec.subrange = Some(part.clone());
        let output = run_compaction(&spec, &executor.context()).unwrap();
        assert!(output.files.iter().all(|meta| meta.within(&part)));
        let (records, tombstones) = all(&executor, &output.files);
        parts.0.extend(records);
        parts.1.extend(tombstones);
    }
    assert_eq!(parts, all(&executor, &whole.files));
}

#[test]
fn missing_records_are_corruption() {
    let mut executor = Executor::new();
    let mut files = level(&mut executor, &[put("a", 1, ""), put("b", 2, ""), put("c", 3, "")]);
    files[1].meta.entries += 1;
    let error = run_compaction(&executor.compaction_spec(files), &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains("compaction of cf 0 from L0 to L1"), "{error}");
    assert_eq!(executor.tables().len(), 2, "only the inputs are left");
}

#[test]
fn specs_that_would_lose_data_are_refused() {
    let mut executor = Executor::new();
    let files = level(&mut executor, &[put("a", 1, ""), put("b", 2, ""), put("c", 3, "")]);
    let refused = |change: &dyn Fn(&mut CompactionSpec)| {
        let mut spec = executor.compaction_spec(files.clone());
        change(&mut spec);
        let error = run_compaction(&spec, &executor.context()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    };
    refused(&|spec| spec.range = range("", Some("c")));
    refused(&|spec| spec.inputs.clear());
    refused(&|spec| spec.inputs[1].meta.smallest = b"a".to_vec());
    refused(&|spec| spec.output.cuts = vec![b"b".to_vec(), b"a".to_vec()]);
    refused(&|spec| spec.output.level = 7);
    refused(&|spec| spec.retention.visible_seq = u64::MAX);
}

#[test]
fn a_failed_compaction_names_the_file_and_leaves_its_inputs() {
    for operation in [Operation::Open, Operation::Read, Operation::Append, Operation::Sync] {
        for nth in [1, 2, 5, 9] {
            let fs = Arc::new(FaultFs::new(Arc::new(MemFs::new()), 1));
            let mut executor = Executor::over(Arc::clone(&fs) as _);
            let records: Vec<Record> =
                (0..100).map(|i| put(&format!("k{i:02}"), i + 1, &"v".repeat(200))).collect();
            let files = level(&mut executor, &records);
            let before = executor.tables();
            let mut spec = executor.compaction_spec(files);
            spec.output.target_file_bytes = 5_000;
            fs.add(Rule::on(operation).nth(nth).fault(Fault::Io));
            let result = run_compaction(&spec, &executor.context());
            if fs.fired_total() == 0 {
                assert!(result.is_ok());
                continue;
            }
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{operation:?} {nth}");
            assert!(error.context().contains(".sst"), "{error}");
            assert_eq!(executor.tables(), before, "{operation:?} {nth}");
        }
    }
}

/// The result of a history of puts, deletes and range deletes, as of `at`.
fn model(history: &[(u8, u8, Option<u8>)], at: u64) -> BTreeMap<Vec<u8>, u64> {
    let mut map = BTreeMap::new();
    for (&(key, len, op), seq) in history.iter().zip(1..=at) {
        match op {
            Some(_) if len == 0 => drop(map.insert(vec![key], seq)),
            None if len == 0 => drop(map.remove(&vec![key])),
            _ => map.retain(|k, _| !(vec![key]..vec![key + len]).contains(k)),
        }
    }
    map
}

fn visible(data: &(Vec<Record>, Vec<RangeTombstone>), at: u64) -> BTreeMap<Vec<u8>, u64> {
    let set = crate::tombstone::TombstoneSet::new(&data.1);
    let mut map: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (key, seq, kind, _) in data.0.iter().filter(|record| record.1 <= at) {
        let deleted = set.max_covering(key, SeqNo(at)).is_some_and(|t| t.0 > *seq);
        if seen.insert(key.clone()) && *kind == Kind::Put && !deleted {
            map.insert(key.clone(), *seq);
        }
    }
    map
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_tree_reads_the_same_after_flush_and_compaction(
        history in prop::collection::vec((0u8..30, prop_oneof![5 => Just(0u8), 1 => 1u8..12],
            any::<Option<u8>>()), 1..150),
        snapshot in 0u64..150,
        memtables in 1usize..5,
        cuts in prop::collection::btree_set(1u8..40, 0..4),
        target in 300u64..5000,
    ) {
        let mut executor = Executor::new();
        let mut files = Vec::new();
        let share = history.len().div_ceil(memtables);
        let cuts: Vec<Vec<u8>> = cuts.into_iter().map(|cut| vec![cut]).collect();
        let last = history.len() as u64;
        let at = snapshot.min(last);
        for (no, part) in history.chunks(share).enumerate() {
            let (mut records, mut tombstones) = (Vec::new(), Vec::new());
            for (index, &(key, len, op)) in part.iter().enumerate() {
                let seq = (no * share + index) as u64 + 1;
                match op {
                    Some(_) if len == 0 => records.push((vec![key], seq, Kind::Put, vec![key])),
                    None if len == 0 => records.push((vec![key], seq, Kind::Delete, vec![])),
                    _ => tombstones.push(RangeTombstone {
                        start: [key].into(), end: [key + len].into(), seq: SeqNo(seq),
                    }),
                }
            }
            let shard = executor.memtable(no as u64, &records, &tombstones);
            let mut spec = executor.flush_spec(vec![shard]);
            spec.retention.snapshots = vec![at];
            spec.output.cuts.clone_from(&cuts);
            let output = run_flush(&spec, &executor.context()).unwrap();
            assert_disjoint(&output.files);
            files.extend(inputs(0, &output.files));
        }
        prop_assume!(!files.is_empty());
        let mut spec = executor.compaction_spec(files);
        spec.retention.snapshots = vec![at];
        spec.output.cuts = cuts.clone();
        spec.output.target_file_bytes = target;
        let output = run_compaction(&spec, &executor.context()).unwrap();
        assert_disjoint(&output.files);
        for meta in &output.files {
            let straddles = cuts.iter().any(|cut| meta.smallest < *cut && !meta.ends_before(cut));
            prop_assert!(!straddles, "{meta:?}");
        }
        let data = all(&executor, &output.files);
        prop_assert_eq!(visible(&data, at), model(&history, at));
        prop_assert_eq!(visible(&data, last), model(&history, last));
    }
}
