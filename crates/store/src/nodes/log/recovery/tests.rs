//! The rules of the recovery, one per test. Seeded runs with nodes are in `log/tests`.

use super::super::super::StorageId;
use super::super::{AckRule, ExtentRecord, LogLayout, ReplicaId};
use super::{FencedAnswer, Recovery, RecoveryAction};

fn ids(nodes: &[u64]) -> Vec<StorageId> {
    nodes.iter().map(|node| StorageId(*node)).collect()
}

fn extent(number: u32, start: u64, end: Option<u64>) -> ExtentRecord {
    ExtentRecord { number, start, end, nodes: ids(&[1, 2, 3]), is_sealed: false }
}

fn layout(extents: Vec<ExtentRecord>) -> LogLayout {
    LogLayout { extents, ..LogLayout::default() }
}

/// A recovery of a log whose only extent is open.
fn recovery(ack: AckRule) -> Recovery {
    let mut recovery = Recovery::new(ack, layout(vec![extent(1, 0, None)]));
    recovery.start();
    actions(&mut recovery);
    recovery
}

fn actions(recovery: &mut Recovery) -> Vec<RecoveryAction> {
    std::iter::from_fn(|| recovery.next_action()).collect()
}

fn on(extent: u32, node: u64) -> ReplicaId {
    ReplicaId { extent, node: StorageId(node) }
}

fn answer(valid_end: u64) -> FencedAnswer {
    FencedAnswer { valid_end, is_in_limbo: false, is_damaged: false }
}

fn limbo(valid_end: u64) -> FencedAnswer {
    FencedAnswer { valid_end, is_in_limbo: true, is_damaged: false }
}

fn damaged(valid_end: u64) -> FencedAnswer {
    FencedAnswer { valid_end, is_in_limbo: true, is_damaged: true }
}

fn seal(from: u64, to: u64, start: u64, end: u64) -> RecoveryAction {
    let from = StorageId(from);
    RecoveryAction::Seal { from, to: on(1, to), extent_start: 0, start, end }
}

/// Keeps the fact of a loss, which the recovery asks for before it seals.
fn keep_loss(recovery: &mut Recovery) {
    assert_eq!(actions(recovery), [RecoveryAction::KeepLoss]);
    recovery.loss_kept();
}

fn done(recovery: &mut Recovery) -> LogLayout {
    let Some(RecoveryAction::Record(layout)) = actions(recovery).pop() else { panic!("no record") };
    recovery.recorded();
    assert_eq!(actions(recovery), [RecoveryAction::Done(layout.clone())]);
    layout
}

#[test]
fn every_read_fences() {
    let mut recovery = Recovery::new(AckRule::Quorum, layout(vec![extent(1, 0, None)]));
    recovery.start();
    let read = |node| RecoveryAction::Read { replica: on(1, node), is_fencing: true };
    assert_eq!(actions(&mut recovery), [1, 2, 3].map(read));
}

#[test]
fn two_answers_decide_and_two_nodes_seal() {
    let mut recovery = recovery(AckRule::Quorum);
    recovery.answered(on(1, 2), answer(80));
    assert_eq!(actions(&mut recovery), []);
    recovery.answered(on(1, 1), answer(100));
    assert_eq!(actions(&mut recovery), [seal(1, 1, 100, 100), seal(1, 2, 80, 100)]);
    // The third answer is late: the node seals too, at the chosen end.
    recovery.answered(on(1, 3), answer(120));
    assert_eq!(actions(&mut recovery), [seal(3, 3, 100, 100)]);
    recovery.sealed(on(1, 1));
    assert_eq!(actions(&mut recovery), []);
    recovery.sealed(on(1, 2));
    let layout = done(&mut recovery);
    assert_eq!((layout.ended_bytes(), layout.may_miss_unsynced), (100, false));
    assert!(layout.is_ended && layout.extents[0].is_sealed);
}

#[test]
fn limbo_supplies_bytes_but_proves_nothing() {
    let mut recovery = recovery(AckRule::Quorum);
    recovery.answered(on(1, 1), limbo(100));
    recovery.answered(on(1, 2), answer(80));
    assert_eq!(actions(&mut recovery), [], "one certain answer is too few");
    recovery.answered(on(1, 3), answer(60));
    assert_eq!(actions(&mut recovery).len(), 3);
    recovery.sealed(on(1, 1));
    recovery.sealed(on(1, 3));
    let layout = done(&mut recovery);
    assert_eq!((layout.ended_bytes(), layout.may_miss_unsynced), (100, false));
}

#[test]
fn two_nodes_in_limbo_may_miss_unsynced_bytes() {
    let mut recovery = recovery(AckRule::Quorum);
    recovery.answered(on(1, 1), limbo(50));
    recovery.answered(on(1, 2), limbo(40));
    recovery.answered(on(1, 3), answer(70));
    keep_loss(&mut recovery);
    assert_eq!(actions(&mut recovery).len(), 3);
    recovery.sealed(on(1, 3));
    recovery.sealed(on(1, 2));
    let layout = done(&mut recovery);
    assert_eq!((layout.ended_bytes(), layout.may_miss_unsynced), (70, true));
    // A later recovery says the same.
    let mut later = Recovery::new(AckRule::Quorum, layout.clone());
    later.start();
    assert_eq!(actions(&mut later), [RecoveryAction::Done(layout)]);
}

#[test]
fn no_node_seals_before_the_loss_is_kept() {
    let mut recovery = recovery(AckRule::Quorum);
    recovery.answered(on(1, 1), limbo(50));
    recovery.answered(on(1, 2), limbo(40));
    recovery.answered(on(1, 3), answer(70));
    assert_eq!(actions(&mut recovery), [RecoveryAction::KeepLoss]);
    // A node that fails and answers again changes nothing.
    recovery.failed(on(1, 1));
    recovery.ask_again();
    let read = RecoveryAction::Read { replica: on(1, 1), is_fencing: true };
    assert_eq!(actions(&mut recovery), [read]);
    recovery.answered(on(1, 1), limbo(50));
    assert_eq!(actions(&mut recovery), []);
    recovery.loss_kept();
    let seals = [seal(3, 1, 50, 70), seal(3, 2, 40, 70), seal(3, 3, 70, 70)];
    assert_eq!(actions(&mut recovery), seals);
}

#[test]
fn loss_that_is_kept_already_is_not_reported() {
    let mut recovery = recovery(AckRule::Quorum);
    recovery.loss_kept();
    recovery.answered(on(1, 1), limbo(50));
    recovery.answered(on(1, 2), limbo(40));
    recovery.answered(on(1, 3), answer(70));
    assert_eq!(actions(&mut recovery)[0], seal(3, 1, 50, 70));
}

#[test]
fn loss_of_one_extent_does_not_hold_up_the_seals_of_another() {
    let extents = vec![extent(1, 0, Some(100)), extent(2, 100, None)];
    let mut recovery = Recovery::new(AckRule::Quorum, layout(extents));
    recovery.start();
    actions(&mut recovery);
    for node in [1, 2, 3] {
        recovery.answered(on(2, node), limbo(130));
    }
    assert_eq!(actions(&mut recovery), [RecoveryAction::KeepLoss]);
    recovery.answered(on(1, 1), answer(100));
    assert_eq!(actions(&mut recovery), [seal(1, 1, 100, 100)]);
}

#[test]
fn any_answer_of_a_manifest_decides() {
    let mut recovery = recovery(AckRule::AllSynced);
    recovery.answered(on(1, 2), limbo(100));
    recovery.failed(on(1, 1));
    assert_eq!(actions(&mut recovery), [seal(2, 2, 100, 100)]);
    recovery.failed(on(1, 3));
    let avoid = ids(&[1, 2, 3]);
    assert_eq!(actions(&mut recovery), [RecoveryAction::ChooseNode { extent: 1, avoid }]);
    recovery.node_chosen(on(1, 4));
    assert_eq!(actions(&mut recovery), [seal(2, 4, 0, 100)]);
    recovery.sealed(on(1, 2));
    recovery.sealed(on(1, 4));
    let layout = done(&mut recovery);
    assert_eq!(layout.extents[0].nodes, ids(&[2, 4, 1, 3]));
    assert!(!layout.may_miss_unsynced);
}

#[test]
fn damaged_replica_of_a_manifest_waits_for_another_one() {
    let mut recovery = recovery(AckRule::AllSynced);
    recovery.answered(on(1, 1), damaged(40));
    assert_eq!(actions(&mut recovery), [], "its end would cut the manifest");
    assert_eq!(recovery.blocked_by_damage(), None, "two nodes may still answer");
    recovery.answered(on(1, 2), limbo(100));
    // The damaged replica gets what it lost.
    assert_eq!(actions(&mut recovery), [seal(2, 1, 40, 100), seal(2, 2, 100, 100)]);
    recovery.sealed(on(1, 1));
    recovery.sealed(on(1, 2));
    let layout = done(&mut recovery);
    assert_eq!((layout.ended_bytes(), layout.may_miss_unsynced), (100, false));
}

#[test]
fn damaged_replica_supplies_the_longest_prefix() {
    let mut recovery = recovery(AckRule::Quorum);
    recovery.answered(on(1, 1), damaged(120));
    recovery.answered(on(1, 2), answer(100));
    assert_eq!(actions(&mut recovery), [], "one certain answer is too few");
    recovery.answered(on(1, 3), answer(90));
    assert_eq!(actions(&mut recovery)[0], seal(1, 1, 120, 120));
}

#[test]
fn damaged_majority_needs_the_operator() {
    for (ack, others) in [(AckRule::Quorum, answer(90)), (AckRule::AllSynced, damaged(0))] {
        let mut recovery = recovery(ack);
        recovery.answered(on(1, 1), damaged(80));
        recovery.answered(on(1, 2), damaged(70));
        assert_eq!(recovery.blocked_by_damage(), None);
        recovery.answered(on(1, 3), others);
        assert_eq!(actions(&mut recovery), [], "{ack:?}");
        let lost = recovery.blocked_by_damage().expect("all nodes answered");
        assert!(lost.contains(&on(1, 1)) && lost.contains(&on(1, 2)), "{ack:?}");
        recovery.accept_loss();
        assert_eq!(recovery.blocked_by_damage(), None);
        keep_loss(&mut recovery);
        assert_eq!(actions(&mut recovery).len(), 3, "{ack:?}");
        recovery.sealed(on(1, 1));
        recovery.sealed(on(1, 2));
        let layout = done(&mut recovery);
        let end = others.valid_end.max(80);
        assert_eq!((layout.ended_bytes(), layout.may_miss_unsynced), (end, true));
    }
}

#[test]
fn damaged_replica_does_not_cut_a_recorded_end() {
    let extents = vec![extent(1, 0, Some(100))];
    let mut recovery = Recovery::new(AckRule::Quorum, layout(extents));
    recovery.start();
    actions(&mut recovery);
    recovery.answered(on(1, 1), damaged(50));
    recovery.answered(on(1, 2), limbo(60));
    recovery.answered(on(1, 3), damaged(0));
    assert_eq!(actions(&mut recovery), []);
    assert_eq!(recovery.blocked_by_damage(), Some(vec![on(1, 1), on(1, 3)]));
}

#[test]
fn nodes_that_fail_in_turns_are_replaced() {
    let mut recovery = recovery(AckRule::AllSynced);
    recovery.answered(on(1, 2), answer(100));
    recovery.failed(on(1, 1));
    actions(&mut recovery);
    recovery.ask_again();
    let read = RecoveryAction::Read { replica: on(1, 1), is_fencing: true };
    assert_eq!(actions(&mut recovery), [read]);
    // Node 1 is asked again, and node 3 fails meanwhile.
    recovery.failed(on(1, 3));
    let avoid = ids(&[1, 2, 3]);
    assert_eq!(actions(&mut recovery), [RecoveryAction::ChooseNode { extent: 1, avoid }]);
}

#[test]
fn operator_accepts_the_loss_of_silent_nodes() {
    let mut recovery = recovery(AckRule::Quorum);
    recovery.answered(on(1, 1), answer(100));
    recovery.failed(on(1, 2));
    recovery.failed(on(1, 3));
    assert_eq!(actions(&mut recovery), []);
    recovery.accept_loss();
    keep_loss(&mut recovery);
    assert_eq!(actions(&mut recovery)[0], seal(1, 1, 100, 100));
    recovery.node_chosen(on(1, 4));
    recovery.sealed(on(1, 1));
    recovery.sealed(on(1, 4));
    let layout = done(&mut recovery);
    assert_eq!((layout.ended_bytes(), layout.may_miss_unsynced), (100, true));
}

#[test]
fn loss_of_longest_prefix_decides_again() {
    let mut recovery = recovery(AckRule::Quorum);
    recovery.answered(on(1, 1), answer(100));
    recovery.answered(on(1, 2), answer(80));
    actions(&mut recovery);
    recovery.failed(on(1, 1));
    recovery.failed(on(1, 2));
    assert_eq!(actions(&mut recovery), []);
    recovery.ask_again();
    assert_eq!(actions(&mut recovery).len(), 2);
    recovery.answered(on(1, 2), answer(80));
    recovery.answered(on(1, 3), answer(90));
    assert_eq!(actions(&mut recovery), [seal(3, 2, 80, 90), seal(3, 3, 90, 90)]);
}

#[test]
fn later_epoch_ends_recovery() {
    let mut recovery = recovery(AckRule::Quorum);
    recovery.answered(on(1, 1), answer(100));
    recovery.fenced();
    recovery.answered(on(1, 2), answer(100));
    assert_eq!(actions(&mut recovery), [RecoveryAction::Fenced]);
}

#[test]
fn unsealed_extent_with_lost_bytes_cuts_the_log() {
    let extents = vec![extent(1, 0, Some(100)), extent(2, 100, None)];
    let mut recovery = Recovery::new(AckRule::Quorum, layout(extents));
    recovery.start();
    assert_eq!(actions(&mut recovery).len(), 6);
    recovery.answered(on(2, 1), answer(130));
    recovery.answered(on(2, 2), answer(130));
    recovery.sealed(on(2, 1));
    recovery.sealed(on(2, 2));
    recovery.answered(on(1, 1), limbo(50));
    recovery.answered(on(1, 2), limbo(60));
    actions(&mut recovery);
    recovery.answered(on(1, 3), answer(40));
    keep_loss(&mut recovery);
    assert_eq!(actions(&mut recovery).len(), 3);
    recovery.sealed(on(1, 1));
    recovery.sealed(on(1, 2));
    let layout = done(&mut recovery);
    assert_eq!(layout.extents.len(), 1);
    assert_eq!((layout.ended_bytes(), layout.may_miss_unsynced), (60, true));
}

#[test]
fn unsealed_extent_with_one_whole_replica_is_kept() {
    let extents = vec![extent(1, 0, Some(100)), extent(2, 100, None)];
    let mut recovery = Recovery::new(AckRule::Quorum, layout(extents));
    recovery.start();
    actions(&mut recovery);
    for number in [1, 2] {
        recovery.answered(on(number, 1), answer(100));
        recovery.answered(on(number, 2), answer(0));
        recovery.sealed(on(number, 1));
        recovery.sealed(on(number, 2));
    }
    let layout = done(&mut recovery);
    // The open extent has no byte and leaves the layout.
    assert_eq!(layout.extents.len(), 1);
    assert_eq!((layout.ended_bytes(), layout.may_miss_unsynced), (100, false));
}

#[test]
fn log_without_unsealed_extents_only_gets_its_end() {
    let sealed = ExtentRecord { is_sealed: true, ..extent(1, 0, Some(100)) };
    let mut recovery = Recovery::new(AckRule::Quorum, layout(vec![sealed]));
    recovery.start();
    assert_eq!(done(&mut recovery).ended_bytes(), 100);
}
