//! Requests of recoveries: puts, and seals that take the bytes that were put.

use archipelago_store::nodes::wire::{RefusalWhy, StoreMessage};

use super::Durability::{Synced, Written};
use super::{
    Machine, START, append, fence, inspect, progress, put, read, repair, replica, seal, stream, why,
};
use crate::node::StorageNode;

#[test]
fn put_alone_changes_nothing() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Synced);
    fence(&node, 2);
    assert_eq!(put(&node, 2, 1100..1500), progress(1500, 1100));
    assert_eq!(inspect(&node), replica(1200, 1200, None, false));
    assert_eq!(read(&node, START..1500), Ok(stream(START..1200)));
    let machine = machine.killed();
    assert_eq!(inspect(&machine.open()), replica(1200, 1200, None, false));
    assert_eq!(machine.parts().len(), 1, "the put bytes are gone");
}

#[test]
fn seal_takes_the_bytes_that_were_put() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    fence(&node, 2);
    put(&node, 2, 1200..1500);
    assert_eq!(put(&node, 2, 1400..1900), progress(1900, START), "repeated bytes");
    assert_eq!(put(&node, 2, 1500..1600), progress(1900, START), "a late repetition");
    assert_eq!(seal(&node, 2, 1800), progress(1800, 1800));
    assert_eq!(read(&node, START..1900), Ok(stream(START..1800)));
    for seed in 0..10 {
        let node = machine.without_power(seed).open();
        assert_eq!(inspect(&node), replica(1800, 1800, Some(1800), false), "seed {seed}");
        assert_eq!(read(&node, START..1900), Ok(stream(START..1800)));
    }
}

#[test]
fn recovery_creates_an_extent_on_a_new_node() {
    let node = Machine::new().open();
    assert_eq!(why(&put(&node, 2, 1100..1200)), Some(RefusalWhy::OutOfOrder { len: START }));
    put(&node, 2, START..1200);
    assert_eq!(inspect(&node), replica(START, START, None, false));
    assert_eq!(seal(&node, 2, 1200), progress(1200, 1200));
    assert_eq!(read(&node, START..1200), Ok(stream(START..1200)));
}

#[test]
fn extent_leaves_limbo_when_it_is_sealed() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Synced);
    append(&node, 1, 1200..9000, Written);
    for seed in 0..20 {
        let machine = machine.without_power(seed);
        let node = machine.open();
        fence(&node, 2);
        put(&node, 2, 1200..9500);
        assert_eq!(seal(&node, 2, 9500), progress(9500, 9500));
        assert_eq!(inspect(&node), replica(9500, 9500, Some(9500), false));
        let node = machine.without_power(seed).open();
        assert_eq!(inspect(&node), replica(9500, 9500, Some(9500), false), "seed {seed}");
        assert_eq!(read(&node, START..9500), Ok(stream(START..9500)));
    }
}

#[test]
fn later_recovery_extends_a_sealed_extent() {
    let node = Machine::new().open();
    append(&node, 1, START..1200, Written);
    seal(&node, 2, 1150);
    put(&node, 3, 1150..1700);
    assert_eq!(inspect(&node), replica(1150, 1150, Some(1150), false));
    assert_eq!(seal(&node, 3, 1700), progress(1700, 1700));
    assert_eq!(read(&node, START..1700), Ok(stream(START..1700)));
}

/// Checks that a node refuses the copy of a repair that ends at `end`.
fn assert_refused(node: &StorageNode, epoch: u64, end: u64) {
    for answer in repair(node, epoch, end) {
        assert_eq!(why(&answer), Some(RefusalWhy::LongerReplica), "{answer:?}");
    }
}

#[test]
fn repair_cuts_nothing_that_a_recovery_has_sealed_meanwhile() {
    let node = Machine::new().open();
    append(&node, 1, START..1200, Written);
    // The manager orders a copy of the extent, which another node has sealed at 1150.
    put(&node, 2, 1200..1700);
    assert_eq!(seal(&node, 2, 1700), progress(1700, 1700));
    assert_refused(&node, 2, 1150);
    assert_eq!(inspect(&node), replica(1700, 1700, Some(1700), false));
    assert_eq!(read(&node, START..1700), Ok(stream(START..1700)));
    assert_eq!(repair(&node, 2, 1700)[1], progress(1700, 1700));
}

#[test]
fn repair_cuts_no_open_extent_and_none_in_limbo() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Synced);
    append(&node, 1, 1200..1400, Written);
    assert_refused(&node, 1, 1300);
    assert_eq!(inspect(&node), replica(1400, 1200, None, false));
    let in_limbo = machine.without_power(1).open();
    let before = inspect(&in_limbo);
    assert!(matches!(before, StoreMessage::ReplicaIs { is_in_limbo: true, .. }), "{before:?}");
    assert_refused(&in_limbo, 1, 1100);
    assert_eq!(inspect(&in_limbo), before);
    for node in [node, in_limbo] {
        assert_eq!(repair(&node, 1, 1500)[1], progress(1500, 1500));
        assert_eq!(inspect(&node), replica(1500, 1500, Some(1500), false));
    }
}

#[test]
fn bytes_of_an_older_recovery_do_not_count() {
    let node = Machine::new().open();
    append(&node, 1, START..1200, Written);
    put(&node, 2, 1200..1500);
    assert_eq!(why(&seal(&node, 3, 1500)), Some(RefusalWhy::OutOfOrder { len: 1200 }));
    assert_eq!(why(&put(&node, 2, 1500..1600)), Some(RefusalWhy::Fenced));
    put(&node, 3, 1200..1300);
    assert_eq!(seal(&node, 3, 1300), progress(1300, 1300));
}

#[test]
fn put_from_the_start_replaces_everything() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    append(&node, 1, 1200..1400, Written);
    put(&node, 2, START..1300);
    seal(&node, 2, 1300);
    assert_eq!(machine.parts().len(), 1);
    assert_eq!(read(&node, START..1400), Ok(stream(START..1300)));
    assert_eq!(read(&machine.killed().open(), 1250..1400), Ok(stream(1250..1300)));
}
