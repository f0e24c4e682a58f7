use archipelago_base::FileNo;
use archipelago_base::clock::ManualClock;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use archipelago_env::limit::{Priority, RateLimiter};
use archipelago_env::mem::MemFs;

use super::*;
use crate::job::below::Below;
use crate::job::spec::FileNumbers;
use crate::job::testing::*;
use crate::job::{NoShards, ShardSource};
use crate::key::Kind;

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
