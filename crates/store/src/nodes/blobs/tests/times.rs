//! Times of reads, writes to nodes and seals, by class and redundancy.

use archipelago_env::FileClass;

use super::super::super::client::{OperationKind, StoreOperation};
use super::super::super::layout::Redundancy;
use super::super::chunk_nodes::ChunkNodes;
use super::{Bench, MIB, context};
use crate::blob::{BlobRef, BlobStore};

/// Number of operations, and the sum of their times in nanoseconds.
fn times(bench: &Bench, operation: StoreOperation) -> (u64, u64) {
    let snapshot = bench.nodes.stats().snapshot();
    let found = snapshot.operations.into_iter().find(|one| one.operation == operation);
    found.map_or((0, 0), |one| (one.times.by_bits.iter().sum(), one.times.sum))
}

fn read_as(bench: &Bench, blob: &BlobRef, class: FileClass) {
    let reader = bench.blobs.open(blob, context(class)).unwrap();
    reader.read_exact_at(10, &mut [0; 100], context(class)).unwrap();
}

#[test]
fn operations_are_timed_by_class_and_redundancy() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(4 * MIB);
    let table = bench.write(FileClass::Sst, &bytes);
    let values = bench.write(FileClass::ValueSst, &bytes);
    for _ in 0..3 {
        read_as(&bench, &table, FileClass::Sst);
    }
    for _ in 0..5 {
        read_as(&bench, &values, FileClass::ValueSst);
    }
    let replicated = (FileClass::Sst, Redundancy::Replicated);
    let coded = (FileClass::ValueSst, Redundancy::Coded);
    // Four steps of 1 MiB go to three nodes, and four stripes of 1 MiB to six.
    for (kind, (class, redundancy), expected) in [
        (OperationKind::Put, replicated, 12),
        (OperationKind::Put, coded, 24),
        (OperationKind::Seal, replicated, 1),
        (OperationKind::Seal, coded, 1),
        (OperationKind::Read, replicated, 3),
        (OperationKind::Read, coded, 5),
    ] {
        let (count, sum_ns) = times(&bench, StoreOperation { kind, class, redundancy });
        assert_eq!(count, expected, "{kind:?} of {class:?}");
        // A request takes 100 µs.
        assert!(sum_ns >= expected * 100_000, "{kind:?} of {class:?}: {sum_ns} ns");
    }
    let snapshot = bench.nodes.stats().snapshot();
    assert_eq!(snapshot.operations.len(), 6, "nothing else has occurred");
}

#[test]
fn failed_operations_have_no_time() {
    let mut bench = Bench::new(3);
    let bytes = bench.bytes(100);
    let blob = bench.write(FileClass::Sst, &bytes);
    let reader = bench.blobs.open(&blob, context(FileClass::Sst)).unwrap();
    let beyond = reader.read_exact_at(50, &mut [0; 100], context(FileClass::Sst));
    assert!(beyond.is_err());
    let (kind, class, redundancy) = (OperationKind::Read, FileClass::Sst, Redundancy::Replicated);
    assert_eq!(times(&bench, StoreOperation { kind, class, redundancy }), (0, 0));
}
