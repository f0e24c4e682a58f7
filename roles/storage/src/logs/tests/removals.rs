//! Removals that overtake older requests.

use archipelago_store::nodes::wire::RefusalWhy;

use super::Durability::Written;
use super::*;

fn assert_gone(node: &StorageNode, machine: &Machine) {
    for answer in [
        append(node, 1, START..1200, Written),
        put(node, 1, START..1200),
        seal(node, 1, START),
        append(node, 1, START..START, Written),
    ] {
        assert_eq!(why(&answer), Some(RefusalWhy::NotThere), "{answer:?}");
    }
    // The manager orders no more copies of the log.
    let copy = repair(node, 1, 1200);
    assert_eq!(why(&copy[0]), Some(RefusalWhy::RemovedLog), "{copy:?}");
    let copy_without_bytes = &repair(node, 1, START)[1];
    assert_eq!(why(copy_without_bytes), Some(RefusalWhy::RemovedLog), "{copy_without_bytes:?}");
    assert_eq!(inspect(node), replica(0, 0, None, false));
    assert_eq!(machine.parts(), Vec::<String>::new());
    assert_eq!(node.report().extents, 0);
}

#[test]
fn late_append_does_not_bring_a_removed_log_back() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1100, Written);
    remove(&node, 1);
    assert_gone(&node, &machine);
    // The removal and its tombstone are durable together.
    for machine in [machine.killed(), machine.without_power(1), machine.without_power(2)] {
        assert_gone(&machine.open(), &machine);
    }
}

#[test]
fn removal_that_arrives_before_the_first_append_holds() {
    let machine = Machine::new();
    let node = machine.open();
    remove(&node, 1);
    assert_gone(&node, &machine);
}

#[test]
fn requests_of_other_logs_are_not_concerned() {
    let node = Machine::new().open();
    let other = StoreMessage::RemoveLog { log: LogId([2; 16]), stamp: stamp(1) };
    assert_eq!(ask(&node, other, &[]), StoreMessage::Done {});
    assert_eq!(append(&node, 1, START..1200, Written), progress(1200, START));
}
