//! Large values are read when the job asks for them, and a read that fails is an I/O error.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::extension::{CompactionFilter, FilterDecision, MergeOperator};

/// Values that are read with the readahead, and values that exceed it.
const SIZES: [usize; 2] = [40_000, 100_000];

/// Keeps and joins all records, and fails if a value is not whole.
struct Whole {
    bytes: usize,
    calls: AtomicUsize,
}

impl CompactionFilter for Whole {
    fn name(&self) -> &str {
        "whole"
    }
    fn filter(&self, _: &[u8], value: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!(value.len(), self.bytes);
        FilterDecision::Keep
    }
}

impl MergeOperator for Whole {
    fn name(&self) -> &str {
        "whole"
    }
    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let parts: Vec<&[u8]> = base.into_iter().chain(operands.iter().copied()).collect();
        assert!(parts.iter().all(|part| part.len() == self.bytes));
        Ok(parts.concat())
    }
    fn partial_merge(&self, _: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(operands.iter().all(|part| part.len() == self.bytes));
        Some(operands.concat())
    }
}

fn large(key: &str, seq: u64, kind: Kind, expiry: u64, bytes: usize) -> Record {
    let mut value = if expiry > 0 { expiry.to_le_bytes().to_vec() } else { Vec::new() };
    value.resize(value.len() + bytes, seq as u8);
    (key.into(), seq, kind, value)
}

/// Expiring records, a put, and operands on nothing, on a put, on a live and on an expired record.
fn histories(bytes: usize) -> [Vec<Record>; 2] {
    let large = |key, seq, kind, expiry| large(key, seq, kind, expiry, bytes);
    let old = vec![
        large("expired", 1, Kind::PutExpiring, 900),
        large("live", 2, Kind::PutExpiring, 2000),
        large("on expired", 3, Kind::PutExpiring, 900),
        large("on live", 4, Kind::PutExpiring, 2000),
        large("on put", 5, Kind::Put, 0),
        large("put", 6, Kind::Put, 0),
    ];
    let new = vec![
        large("on expired", 13, Kind::Merge, 0),
        large("on live", 24, Kind::Merge, 0),
        large("on live", 14, Kind::Merge, 0),
        large("on nothing", 15, Kind::Merge, 0),
        large("on put", 16, Kind::Merge, 0),
    ];
    [old, new]
}

fn expected(bytes: usize) -> Vec<Record> {
    let large = |key, seq, kind, expiry| large(key, seq, kind, expiry, bytes);
    let joined = |key: &str, seq, kind, parts: &[u8]| -> Record {
        (key.into(), seq, kind, parts.iter().flat_map(|&part| vec![part; bytes]).collect())
    };
    vec![
        large("live", 2, Kind::PutExpiring, 2000),
        large("on expired", 13, Kind::Put, 0),
        joined("on live", 24, Kind::Merge, &[14, 24]),
        large("on live", 4, Kind::PutExpiring, 2000),
        large("on nothing", 15, Kind::Put, 0),
        joined("on put", 16, Kind::Put, &[5, 16]),
        large("put", 6, Kind::Put, 0),
    ]
}

/// Runs a compaction of large values in which the `nth` read fails, if there are that many. Returns
/// whether a read failed. Then runs the compaction again without a fault.
fn run(bytes: usize, nth: u64) -> bool {
    let fs = Arc::new(FaultFs::new(Arc::new(MemFs::new()), 1));
    let mut executor = Executor::over(Arc::clone(&fs) as _);
    let whole = Arc::new(Whole { bytes, calls: AtomicUsize::new(0) });
    let mut files = Vec::new();
    for (no, records) in (1..).zip(&histories(bytes)) {
        let shard = executor.memtable(no, records, &[]);
        let mut spec = executor.flush_spec(vec![shard]);
        spec.retention.merge_operator = None;
        // The flush keeps records that will have expired at the time of the compaction.
        (spec.retention.now_ms, spec.retention.snapshots) = (0, (0..30).collect());
        let output = run_flush(&spec, &executor.context()).unwrap();
        files.extend(inputs(0, &output.files));
    }
    let attempt = |executor: &Executor| {
        let mut spec = executor.compaction_spec(files.clone());
        spec.retention.compaction_filter = Some("whole".into());
        spec.retention.merge_operator = Some("whole".into());
        let mut context = executor.context();
        context.registry.add_compaction_filter(Arc::clone(&whole) as _);
        context.registry.add_merge_operator(Arc::clone(&whole) as _);
        run_compaction(&spec, &context)
    };
    let before = executor.tables();
    fs.add(Rule::on(Operation::Read).nth(nth).fault(Fault::Io));
    let outcome = attempt(&executor);
    let fired = fs.fired_total() > 0;
    fs.clear();
    let failed = match outcome {
        Ok(output) => {
            assert!(all(&executor, &output.files) == (expected(bytes), vec![]), "read {nth}");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Io, "read {nth} of {bytes} bytes: {error}");
            assert_eq!(executor.tables(), before);
            true
        }
    };
    assert_eq!(failed, fired, "read {nth}");
    whole.calls.store(0, Ordering::Relaxed);
    let output = attempt(&executor).unwrap();
    assert!(all(&executor, &output.files) == (expected(bytes), vec![]), "read {nth}");
    assert_eq!(whole.calls.load(Ordering::Relaxed), 6, "calls of the filter and the operator");
    failed
}

#[test]
fn failed_read_of_a_large_value_is_an_io_error() {
    for bytes in SIZES {
        let failed = (1..100).take_while(|&nth| run(bytes, nth)).count();
        assert!((4..99).contains(&failed), "{failed} reads of values of {bytes} bytes");
    }
}

#[test]
fn hidden_large_values_are_not_read() {
    let mut executor = Executor::new();
    let bytes = SIZES[1];
    let mut files = Vec::new();
    let old: Vec<Record> =
        (0..4).map(|i| large(&format!("k{i}"), i + 1, Kind::Put, 0, bytes)).collect();
    files.extend(flushed(&mut executor, 1, &old, &[]));
    let new: Vec<Record> = (0..4).map(|i| put(&format!("k{i}"), i + 10, "small")).collect();
    files.extend(flushed(&mut executor, 2, &new, &[]));
    let output = run_compaction(&executor.compaction_spec(files), &executor.context()).unwrap();
    assert_eq!(all(&executor, &output.files).0, new);
    assert!(output.bytes_read < bytes as u64, "{} bytes", output.bytes_read);
}
