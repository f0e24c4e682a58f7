//! Times of appends and syncs, by class.

use archipelago_env::FileClass;

use super::super::super::client::{OperationKind, StoreOperation};
use super::super::super::layout::Redundancy;
use super::super::requests::LogNodes;
use super::{MS, World, append, log, quick};

/// Number of operations of a class, and the sum of their times in nanoseconds.
fn times(world: &World, kind: OperationKind, class: FileClass) -> (u64, u64) {
    let operation = StoreOperation { kind, class, redundancy: Redundancy::Replicated };
    let snapshot = world.pool.stats().expect("counters").snapshot();
    let found = snapshot.operations.into_iter().find(|one| one.operation == operation);
    found.map_or((0, 0), |one| (one.times.by_bits.iter().sum(), one.times.sum))
}

#[test]
fn appends_and_syncs_are_timed_by_class() {
    let world = World::new(41, 3);
    // The way to a node and the way back take a millisecond each.
    world.pool.set_delay(MS..MS + 1);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    for _ in 0..5 {
        append(&mut *writer, 1000).expect("acknowledged");
    }
    let (count, sum_ns) = times(&world, OperationKind::Append, FileClass::Wal);
    assert_eq!(count, 5);
    assert!(sum_ns >= 10 * MS, "{sum_ns} ns");
    assert_eq!(times(&world, OperationKind::Sync, FileClass::Wal), (0, 0));
    for _ in 0..2 {
        writer.position().sync().expect("synced");
    }
    let (count, sum_ns) = times(&world, OperationKind::Sync, FileClass::Wal);
    assert_eq!(count, 1, "the second call has nothing to sync");
    assert!(sum_ns >= 2 * MS, "{sum_ns} ns");
    let mut manifest = world.create(&store, log(2), FileClass::Manifest);
    append(&mut *manifest, 10).expect("acknowledged");
    assert_eq!(times(&world, OperationKind::Append, FileClass::Manifest).0, 1);
    assert_eq!(times(&world, OperationKind::Append, FileClass::Wal).0, 5);
}

#[test]
fn appends_that_one_answer_acknowledges_are_timed_each() {
    let world = World::new(42, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    for _ in 0..20 {
        writer.submit(&[b"coral"]).expect("submitted");
    }
    writer.position().wait(100).expect("acknowledged");
    assert_eq!(times(&world, OperationKind::Append, FileClass::Wal).0, 20);
}
