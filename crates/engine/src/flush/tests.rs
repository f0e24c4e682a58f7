use archipelago_base::FileNo;
use archipelago_base::clock::ManualClock;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use archipelago_env::limit::{Priority, RateLimiter};
use archipelago_env::mem::MemFs;

use super::*;
use crate::executor;
use crate::job::below::Below;
use crate::job::spec::{FileNumbers, ValueSpec};
use crate::job::testing::*;
use crate::job::{NoShards, ShardSource};
use crate::key::Kind;
use crate::value_ref::Reference;

#[test]
fn outputs_hold_the_newest_versions_cut_at_the_map() {
    let mut executor = Executor::new();
    let older = executor.memtable(
        1,
        &[put("a", 1, "old"), put("b", 2, "b"), put("m", 3, "m"), put("n", 4, "gone")],
        &[],
    );
    let newer = executor.memtable(
        2,
        &[put("a", 5, "new"), record("b", 6, Kind::Delete, ""), put("z", 7, "z")],
        &[tombstone("n", "w", 8)],
    );
    let mut spec = executor.flush_spec(vec![older, newer]);
    spec.output.cuts = vec![b"m".to_vec(), b"p".to_vec(), b"t".to_vec(), b"x".to_vec()];
    let output = run_flush(&spec, &executor.context()).unwrap();
    assert_disjoint(&output.files);
    let contents: Vec<_> = output.files.iter().map(|meta| executor.contents(meta)).collect();
    assert_eq!(
        contents,
        [
            (vec![put("a", 5, "new"), record("b", 6, Kind::Delete, "")], vec![]),
            (vec![put("m", 3, "m")], vec![tombstone("n", "p", 8)]),
            (vec![], vec![tombstone("p", "t", 8)]),
            (vec![], vec![tombstone("t", "w", 8)]),
            (vec![put("z", 7, "z")], vec![]),
        ]
    );
    let counts = &output.counts;
    assert_eq!((counts.records_in, counts.records_out), (7, 4));
    assert_eq!((counts.dropped.shadowed, counts.dropped.covered), (2, 1));
    assert!(output.bytes_written >= output.files.iter().map(|meta| meta.size_bytes).sum());
    let ids: std::collections::BTreeSet<_> = output.files.iter().map(|m| m.unique_id).collect();
    assert_eq!(ids.len(), 5, "every output has a unique id of its own");
}

#[test]
fn a_range_takes_its_own_keys_and_clips_tombstones() {
    let mut executor = Executor::new();
    let records = [put("a", 1, ""), put("c", 2, "c"), put("e", 3, "e"), put("g", 4, "")];
    let shard = executor.memtable(1, &records, &[tombstone("b", "d", 9), tombstone("f", "h", 8)]);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.range = range("c", Some("g"));
    let output = run_flush(&spec, &executor.context()).unwrap();
    assert_eq!(output.files.len(), 1);
    assert!(output.files[0].within(&spec.range));
    assert_eq!(
        executor.contents(&output.files[0]),
        (vec![put("e", 3, "e")], vec![tombstone("c", "d", 9), tombstone("f", "g", 8)])
    );
}

#[test]
fn an_empty_tree_below_lets_deletes_go() {
    let mut executor = Executor::new();
    let records = [record("a", 1, Kind::Delete, ""), record("b", 2, Kind::Merge, "x")];
    let shard = executor.memtable(1, &records, &[tombstone("c", "d", 3)]);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.retention.below = Below::nothing();
    let output = run_flush(&spec, &executor.context()).unwrap();
    assert_eq!(executor.contents(&output.files[0]), (vec![put("b", 2, "x")], vec![]));

    let shard = executor.memtable(2, &records[..1], &[tombstone("c", "d", 3)]);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.retention.below = Below::nothing();
    let output = run_flush(&spec, &executor.context()).unwrap();
    assert!(output.files.is_empty(), "nothing is left to say");
}

/// A flush with three outputs.
fn spec_of_three(executor: &mut Executor) -> FlushSpec {
    let records: Vec<Record> =
        (0..300).map(|i| put(&format!("{i:03}"), i + 1, &"v".repeat(100))).collect();
    let shard = executor.memtable(1, &records, &[]);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.output.cuts = vec![b"100".to_vec(), b"200".to_vec()];
    spec
}

#[test]
fn a_failed_flush_names_the_file_and_leaves_nothing() {
    for operation in [Operation::Create, Operation::Append, Operation::Sync, Operation::SyncDir] {
        for nth in 1..=3 {
            let fs = Arc::new(FaultFs::new(Arc::new(MemFs::new()), 1));
            let mut executor = Executor::over(Arc::clone(&fs) as _);
            let spec = spec_of_three(&mut executor);
            fs.add(Rule::on(operation).nth(nth).fault(Fault::Io));
            let result = run_flush(&spec, &executor.context());
            if fs.fired_total() == 0 {
                assert_eq!(result.unwrap().files.len(), 3);
                continue;
            }
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{operation:?} {nth}");
            assert!(error.context().contains("/db"), "{error}");
            assert_eq!(executor.tables(), Vec::<String>::new(), "{operation:?} {nth}");
        }
    }
}

#[test]
fn missing_records_are_corruption() {
    let mut executor = Executor::new();
    let records = [put("b", 1, ""), put("c", 2, "")];
    let shard = executor.memtable(1, &records, &[]);
    executor.pretend_entries(1, 3);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.range = range("a", Some("d"));
    let error = run_flush(&spec, &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains("2 records were read of 3"), "{error}");
    spec.range = range("a", Some("c"));
    assert!(run_flush(&spec, &executor.context()).is_ok(), "a part cannot be checked");
}

#[test]
fn writes_are_charged_to_the_limiter() {
    let mut executor = Executor::new();
    let spec = spec_of_three(&mut executor);
    let limiter = Arc::new(RateLimiter::new(100 << 20));
    let context = JobContext {
        limiter: Some(Arc::clone(&limiter)),
        clock: Arc::new(ManualClock::new(0)),
        ..executor.context()
    };
    let output = run_flush(&spec, &context).unwrap();
    assert!(output.bytes_written > 30_000);
    assert_eq!(limiter.stats(Priority::Flush).bytes, output.bytes_written);
}

#[test]
fn a_cancelled_flush_leaves_nothing() {
    let mut executor = Executor::new();
    let mut spec = spec_of_three(&mut executor);
    spec.output.file_numbers = FileNumbers { first: 1, count: 2 };
    let mut context = executor.context();
    let cancel = context.cancel.clone();
    let third = move || {
        cancel.cancel();
        FileNo(77)
    };
    context.more_file_numbers = Some(&third);
    let error = run_flush(&spec, &context).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(executor.tables(), Vec::<String>::new());
    let error = run_flush(&spec, &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "cancelled before it began");
}

#[test]
fn file_numbers_come_from_the_spec_and_then_from_the_owner() {
    let mut executor = Executor::new();
    let mut spec = spec_of_three(&mut executor);
    spec.output.file_numbers = FileNumbers { first: 5, count: 2 };
    let error = run_flush(&spec, &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.context().contains("more than the 2 file numbers from 5"), "{error}");
    assert_eq!(executor.tables(), Vec::<String>::new());
    let more = || FileNo(99);
    let context = JobContext { more_file_numbers: Some(&more), ..executor.context() };
    let output = run_flush(&spec, &context).unwrap();
    assert_eq!(output.files.iter().map(|meta| meta.no).collect::<Vec<_>>(), [5, 6, 99]);
}

#[test]
fn what_a_spec_names_must_be_here() {
    let mut executor = Executor::new();
    let mut spec = spec_of_three(&mut executor);
    spec.shards[0].memtable = 9;
    let error = run_flush(&spec, &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let mut spec = spec_of_three(&mut executor);
    spec.retention.merge_operator = Some("unheard-of".into());
    let error = run_flush(&spec, &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.context().contains("unheard-of"), "{error}");
    assert!(NoShards.shard(&ShardRef { memtable: 1, shard: 0 }).is_err());
}

/// A memtable with one record of each kind, and values of 0, 63, 64 and 700 bytes.
fn mixed(executor: &mut Executor) -> (FlushSpec, Vec<Record>) {
    let value = |bytes: usize| "v".repeat(bytes);
    let records = vec![
        put("a", 1, ""),
        put("b", 2, &value(63)),
        put("c", 3, &value(64)),
        put("d", 4, &value(700)),
        record("e", 5, Kind::Delete, ""),
        record("f", 6, Kind::Merge, &value(700)),
        expiring("g", 7, 2_000, &value(63)),
        expiring("h", 8, 2_000, &value(700)),
    ];
    let shard = executor.memtable(1, &records, &[tombstone("x", "z", 9)]);
    (executor.flush_spec(vec![shard]), records)
}

#[test]
fn values_from_the_threshold_on_are_separated() {
    for (threshold, separated) in [(0, ""), (1, "bcdgh"), (64, "cdh"), (512, "dh"), (701, "")] {
        let mut executor = Executor::new();
        let (mut spec, records) = mixed(&mut executor);
        spec.output.values = value_spec(threshold, &[]);
        let output = run_flush(&spec, &executor.context()).unwrap();
        executor::check(&output, &spec.range, &spec.output).unwrap();
        assert_eq!(output.value_files.len(), usize::from(!separated.is_empty()));
        let (stored, tombstones) = executor.contents(&output.files[0]);
        let kept = |record: &&Record| record.2 == Kind::Indirect;
        let keys: Vec<u8> = stored.iter().filter(kept).map(|record| record.0[0]).collect();
        assert_eq!(keys, separated.as_bytes(), "with {threshold}");
        assert_eq!(tombstones, [tombstone("x", "z", 9)]);
        let values = value_spec(threshold, &output.value_files);
        assert_eq!(executor.resolved(&stored, &values), records);
        let sizes = output.files.iter().map(|file| file.size_bytes);
        let all: u64 = sizes.chain(output.value_files.iter().map(|file| file.size_bytes)).sum();
        assert_eq!(output.bytes_written, all);
        for record in stored.iter().filter(kept) {
            let reference = Reference::decode(&record.3).unwrap();
            assert!(reference.offset.is_some());
            assert_eq!(reference.expiry_unix_ms.is_some(), matches!(record.0[0], b'g' | b'h'));
        }
    }
}

#[test]
fn value_files_end_at_their_size_and_span_tables() {
    let mut executor = Executor::new();
    let mut spec = spec_of_three(&mut executor);
    spec.output.values = ValueSpec { value_file_bytes: 12_000, ..value_spec(100, &[]) };
    let output = run_flush(&spec, &executor.context()).unwrap();
    executor::check(&output, &spec.range, &spec.output).unwrap();
    // A value record of 100 bytes has a trailer of 5.
    let records: Vec<u64> = output.value_files.iter().map(|file| file.records).collect();
    assert_eq!(records, [115, 115, 70]);
    let named: Vec<usize> = output.files.iter().map(|file| file.refs.by_file().len()).collect();
    assert_eq!(named, [1, 2, 2]);
    let mut numbers: Vec<u64> = output.value_files.iter().map(|file| file.no).collect();
    assert!(numbers.is_sorted());
    numbers.extend(output.files.iter().map(|file| file.no));
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 6, "every file has a number of its own");
    let ids = output.value_files.iter().map(|file| file.unique_id);
    let ids: std::collections::BTreeSet<_> =
        ids.chain(output.files.iter().map(|file| file.unique_id)).collect();
    assert_eq!(ids.len(), 6, "every file has a unique id of its own");
}

#[test]
fn value_file_is_synced_before_tables_that_name_it() {
    for (nth, name) in [(1, ".vsst"), (2, ".sst"), (3, ".sst"), (4, ".sst")] {
        let fs = Arc::new(FaultFs::new(Arc::new(MemFs::new()), 1));
        let mut executor = Executor::over(Arc::clone(&fs) as _);
        let mut spec = spec_of_three(&mut executor);
        spec.output.values = value_spec(100, &[]);
        fs.add(Rule::on(Operation::Sync).nth(nth).fault(Fault::Io));
        let error = run_flush(&spec, &executor.context()).unwrap_err();
        assert!(error.context().contains(name), "sync {nth}: {error}");
    }
}

#[test]
fn failed_flush_with_values_leaves_nothing() {
    for operation in [Operation::Create, Operation::Append, Operation::Sync, Operation::SyncDir] {
        let mut failed = 0;
        for nth in 1.. {
            let fs = Arc::new(FaultFs::new(Arc::new(MemFs::new()), 1));
            let mut executor = Executor::over(Arc::clone(&fs) as _);
            let mut spec = spec_of_three(&mut executor);
            spec.output.values = ValueSpec { value_file_bytes: 12_000, ..value_spec(100, &[]) };
            fs.add(Rule::on(operation).nth(nth).fault(Fault::Io));
            let result = run_flush(&spec, &executor.context());
            if fs.fired_total() == 0 {
                assert_eq!(result.unwrap().value_files.len(), 3);
                break;
            }
            failed += 1;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Io, "{operation:?} {nth}");
            assert_eq!(executor.tables(), Vec::<String>::new(), "{operation:?} {nth}");
        }
        assert!(failed > 0, "{operation:?}");
    }
}

#[test]
fn cancelled_flush_with_values_leaves_nothing() {
    let mut executor = Executor::new();
    let mut spec = spec_of_three(&mut executor);
    spec.output.values = value_spec(100, &[]);
    // The numbers suffice for the first table and the value file. The second table is due when the
    // job is cancelled.
    spec.output.file_numbers = FileNumbers { first: 1, count: 2 };
    let mut context = executor.context();
    let cancel = context.cancel.clone();
    let third = move || {
        cancel.cancel();
        FileNo(77)
    };
    context.more_file_numbers = Some(&third);
    assert_eq!(run_flush(&spec, &context).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(executor.tables(), Vec::<String>::new());
}

#[test]
fn tables_that_wait_for_a_value_file_are_bounded() {
    let mut executor = Executor::new();
    let records: Vec<Record> =
        (0..150).map(|i| put(&format!("{i:03}"), i + 1, &"v".repeat(100))).collect();
    let shard = executor.memtable(1, &records, &[]);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.output.cuts = records.iter().skip(1).map(|record| record.0.clone()).collect();
    spec.output.values = value_spec(64, &[]);
    let output = run_flush(&spec, &executor.context()).unwrap();
    executor::check(&output, &spec.range, &spec.output).unwrap();
    assert_eq!(output.files.len(), 150);
    let records: Vec<u64> = output.value_files.iter().map(|file| file.records).collect();
    assert_eq!(records, [64, 64, 22]);
}

#[test]
fn value_files_without_room_are_refused() {
    let mut executor = Executor::new();
    let (mut spec, _) = mixed(&mut executor);
    spec.output.values = ValueSpec { value_file_bytes: 0, ..value_spec(64, &[]) };
    let error = run_flush(&spec, &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
