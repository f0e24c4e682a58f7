//! Compactions whose file numbers are scarce: they write fewer and larger files, and do not fail.

use super::*;
use crate::executor::check_compaction;
use crate::job::spec::{FileNumbers, ValueSpec};

/// Puts of the keys "k000", "k001" and so on.
fn puts(count: u64, value_bytes: usize) -> Vec<Record> {
    (0..count).map(|i| put(&format!("k{i:03}"), i + 1, &"v".repeat(value_bytes))).collect()
}

/// The output of a compaction of `spec` with `count` file numbers.
fn run(executor: &Executor, spec: &mut CompactionSpec, count: u64) -> JobOutput {
    spec.output.file_numbers = FileNumbers { count, ..executor.output_spec(1).file_numbers };
    let output = run_compaction(spec, &executor.context()).unwrap();
    check_compaction(&output, spec).unwrap();
    output
}

#[test]
fn numbers_suffice_for_few_records_over_a_large_level() {
    let mut executor = Executor::new();
    let records = puts(200, 1);
    let files = flushed(&mut executor, 1, &records, &[]);
    let mut spec = executor.compaction_spec(files);
    let target_bytes = 10_000;
    spec.output.target_file_bytes = target_bytes;
    // Each file between two keys is larger than the limit on the overlap of an output.
    spec.output.grandparents = (1..200)
        .map(|i| Grandparent { end: format!("k{i:03}").into_bytes(), bytes: 11 * target_bytes })
        .collect();
    let (bytes, grandparents) = (spec.input_bytes(), &spec.output.grandparents);
    let wanted = OutputSpec::file_numbers_wanted(bytes, target_bytes, 0, grandparents);
    let output = run(&executor, &mut spec, wanted);
    assert_eq!(output.files.len(), 200);
    assert_eq!(all(&executor, &output.files).0, records);
}

#[test]
fn wanted_numbers_count_overlaps_once() {
    let grandparents = |count: u8, bytes: u64| -> Vec<Grandparent> {
        (0..count).map(|i| Grandparent { end: vec![i], bytes }).collect()
    };
    let wanted = |count, bytes| {
        OutputSpec::file_numbers_wanted(2_500, 1_000, 7, &grandparents(count, bytes)) - 4 - 7 - 64
    };
    assert_eq!(wanted(0, 0), 0);
    assert_eq!(wanted(100, 1_000), 100 / GRANDPARENT_TARGETS);
    assert_eq!(wanted(100, 1_000_000), 100);
    assert_eq!(wanted(100, u64::MAX), 100);
}

#[test]
fn outputs_grow_when_numbers_run_short() {
    let mut executor = Executor::new();
    let records = puts(200, 500);
    let files = flushed(&mut executor, 1, &records, &[]);
    let mut spec = executor.compaction_spec(files);
    spec.output.target_file_bytes = 5_000;
    spec.output.cuts = vec![b"k050".to_vec(), b"k150".to_vec()];
    for count in 3..8 {
        let output = run(&executor, &mut spec, count);
        assert_eq!(output.files.len() as u64, count);
        assert_disjoint(&output.files);
        for cut in &spec.output.cuts {
            assert!(output.files.iter().all(|meta| meta.largest < *cut || meta.smallest >= *cut));
        }
        assert_eq!(all(&executor, &output.files).0, records);
    }
    let mut part = CompactionSpec { subrange: Some(range("k050", Some("k150"))), ..spec.clone() };
    assert_eq!(run(&executor, &mut part, 1).files.len(), 1, "no cut lies in the part");
    spec.output.file_numbers = FileNumbers { count: 2, ..executor.output_spec(1).file_numbers };
    let error = run_compaction(&spec, &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn tombstones_fill_fewer_outputs_when_numbers_run_short() {
    let mut executor = Executor::new();
    let tombstones: Vec<RangeTombstone> =
        (0..100).map(|i| tombstone(&format!("k{i:03}"), &format!("k{i:03}x"), i + 1)).collect();
    let files = flushed(&mut executor, 1, &[], &tombstones);
    let mut spec = executor.compaction_spec(files);
    spec.retention.below = Below::Everything;
    spec.output.target_file_bytes = 300;
    for count in 1..5 {
        let output = run(&executor, &mut spec, count);
        assert_eq!(output.files.len() as u64, count);
        let mut kept = all(&executor, &output.files).1;
        kept.sort();
        assert_eq!(kept, tombstones);
    }
}

#[test]
fn value_files_grow_when_numbers_run_short() {
    let mut executor = Executor::new();
    let records = puts(150, 100);
    let files = flushed(&mut executor, 1, &records, &[]);
    let mut spec = executor.compaction_spec(files);
    spec.output.target_file_bytes = 1_000;
    spec.output.values = ValueSpec { value_file_bytes: 1_000, ..value_spec(64, &[]) };
    for count in 2..7 {
        let output = run(&executor, &mut spec, count);
        assert_eq!((output.files.len() + output.value_files.len()) as u64, count);
        let (stored, _) = all(&executor, &output.files);
        let values = value_spec(64, &output.value_files);
        assert_eq!(executor.resolved(&stored, &values), records);
    }
}

#[test]
fn more_tables_wait_for_a_value_file_when_numbers_run_short() {
    let mut executor = Executor::new();
    let records = puts(150, 100);
    let files = flushed(&mut executor, 1, &records, &[]);
    let mut spec = executor.compaction_spec(files);
    spec.output.cuts = records.iter().skip(1).map(|record| record.0.clone()).collect();
    spec.output.values = value_spec(64, &[]);
    for (count, value_files) in [(151, 1), (152, 2), (153, 3), (999, 3)] {
        let output = run(&executor, &mut spec, count);
        assert_eq!((output.files.len(), output.value_files.len()), (150, value_files));
    }
}
