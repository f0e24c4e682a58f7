//! Every step that a checker can leave out changes an answer of a node.

use archipelago_store::nodes::wire::RefusalWhy;

use super::Durability::Written;
use super::{Machine, START, append, fence, inspect, progress, replica, why};
use crate::sabotage::Sabotage;

#[test]
fn node_without_epoch_check_takes_fenced_appends() {
    let sabotage = Sabotage { no_epoch_check: true, ..Sabotage::default() };
    let node = Machine::new().open_sabotaged(sabotage);
    fence(&node, 5);
    assert_eq!(append(&node, 4, START..1200, Written), progress(1200, START));
}

#[test]
fn node_without_fence_reads_takes_appends_after_a_read() {
    let sabotage = Sabotage { no_fence_reads: true, ..Sabotage::default() };
    let node = Machine::new().open_sabotaged(sabotage);
    fence(&node, 5);
    assert_eq!(append(&node, 4, START..1200, Written), progress(1200, START));
}

#[test]
fn node_without_limbo_denies_lost_bytes() {
    let sabotage = Sabotage { no_limbo: true, ..Sabotage::default() };
    let machine = Machine::new();
    append(&machine.open_sabotaged(sabotage), 1, START..1200, Written);
    let denies = |seed: &u64| {
        let node = machine.without_power(*seed).open_sabotaged(sabotage);
        inspect(&node) == replica(START, START, None, false)
    };
    assert!((0..40).any(|seed| denies(&seed)));
}

#[test]
fn switches_are_off_by_default() {
    let machine = Machine::new();
    let node = machine.open_sabotaged(Sabotage::default());
    fence(&node, 5);
    assert_eq!(why(&append(&node, 4, START..1200, Written)), Some(RefusalWhy::Fenced));
}
