//! The rules of the writer, one per test. Seeded runs with nodes are in `log/tests`.

use super::super::super::StorageId;
use super::super::{AckRule, ExtentRecord, LogLayout, ReplicaId};
use super::{QuorumWriter, Refusal, ReplicaProgress, WriterAction, WriterRules};

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;

fn ids(nodes: &[u64]) -> Vec<StorageId> {
    nodes.iter().map(|node| StorageId(*node)).collect()
}

fn actions(writer: &mut QuorumWriter) -> Vec<WriterAction> {
    std::iter::from_fn(|| writer.next_action()).collect()
}

/// A writer whose first extent is recorded on `nodes`.
fn writer(ack: AckRule, nodes: &[u64]) -> QuorumWriter {
    let mut writer = QuorumWriter::new(WriterRules::new(ack), ids(nodes));
    writer.recorded(1, 0);
    actions(&mut writer);
    writer
}

fn on(extent: u32, node: u64) -> ReplicaId {
    ReplicaId { extent, node: StorageId(node) }
}

fn written(end: u64) -> ReplicaProgress {
    ReplicaProgress { written: end, synced: 0 }
}

fn synced(end: u64) -> ReplicaProgress {
    ReplicaProgress { written: end, synced: end }
}

fn acknowledged(actions: &[WriterAction]) -> Vec<u64> {
    let ends = actions.iter().filter_map(|action| match action {
        WriterAction::Acknowledged(end) => Some(*end),
        _ => None,
    });
    ends.collect()
}

fn records(actions: &[WriterAction]) -> Vec<(u64, LogLayout)> {
    let records = actions.iter().filter_map(|action| match action {
        WriterAction::Record { version, layout } => Some((*version, layout.clone())),
        _ => None,
    });
    records.collect()
}

#[test]
fn two_of_three_answers_acknowledge_in_order() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    assert_eq!(writer.submit(100), Some(0));
    assert_eq!(writer.submit(50), Some(100));
    let sent = actions(&mut writer);
    assert_eq!(sent.len(), 6);
    let first = WriterAction::Append {
        to: on(1, 1),
        extent_start: 0,
        start: 0,
        end: 100,
        is_synced: false,
    };
    assert_eq!(sent[0], first);
    writer.answered(on(1, 1), written(150), 0);
    assert_eq!(acknowledged(&actions(&mut writer)), []);
    writer.answered(on(1, 3), written(100), 0);
    assert_eq!(acknowledged(&actions(&mut writer)), [100]);
    writer.answered(on(1, 3), written(150), 0);
    assert_eq!(acknowledged(&actions(&mut writer)), [150]);
    assert_eq!((writer.acknowledged(), writer.synced()), (150, 0));
    assert_eq!(writer.retain_from(), 0, "the third replica still needs the bytes");
    writer.answered(on(1, 2), written(150), 0);
    assert_eq!(writer.retain_from(), 150);
}

#[test]
fn both_of_two_replicas_must_answer() {
    let mut writer = writer(AckRule::Quorum, &[1, 2]);
    writer.submit(10);
    writer.answered(on(1, 1), written(10), 0);
    assert_eq!(writer.acknowledged(), 0);
    writer.answered(on(1, 2), written(10), 0);
    assert_eq!(writer.acknowledged(), 10);
}

#[test]
fn manifest_is_acknowledged_when_all_have_synced() {
    let mut writer = writer(AckRule::AllSynced, &[1, 2, 3]);
    writer.submit(10);
    let sent = actions(&mut writer);
    assert!(sent.iter().all(|a| matches!(a, WriterAction::Append { is_synced: true, .. })));
    writer.answered(on(1, 1), synced(10), 0);
    writer.answered(on(1, 2), synced(10), 0);
    writer.answered(on(1, 3), written(10), 0);
    assert_eq!(writer.acknowledged(), 0);
    writer.answered(on(1, 3), synced(10), 0);
    assert_eq!((writer.acknowledged(), writer.synced()), (10, 10));
}

#[test]
fn failed_replica_ends_extent_at_acknowledged_end() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    writer.submit(100);
    writer.answered(on(1, 1), written(100), 0);
    writer.answered(on(1, 2), written(60), 0);
    actions(&mut writer);
    writer.failed(on(1, 3), 0);
    assert_eq!(actions(&mut writer), [WriterAction::ChooseNodes { avoid: ids(&[3]) }]);
    assert!(writer.needs_nodes());
    // A late answer of the old extent acknowledges nothing.
    writer.answered(on(1, 2), written(100), 0);
    assert_eq!(writer.acknowledged(), 60);
    writer.nodes_chosen(ids(&[1, 2, 4]));
    let after = actions(&mut writer);
    let [(version, layout)] = &records(&after)[..] else { panic!("{after:?}") };
    let old = ExtentRecord {
        number: 1,
        start: 0,
        end: Some(60),
        nodes: ids(&[1, 2, 3]),
        is_sealed: false,
    };
    let new = ExtentRecord { number: 2, start: 60, end: None, ..old.clone() };
    let new = ExtentRecord { nodes: ids(&[1, 2, 4]), ..new };
    assert_eq!(layout.extents, [old, new]);
    let resent = |action: &&WriterAction| {
        matches!(action, WriterAction::Append { start: 60, end: 100, extent_start: 60, .. })
    };
    assert_eq!(after.iter().filter(resent).count(), 3, "bytes behind the end are sent again");
    // Answers of the new extent count only when it is recorded.
    writer.answered(on(2, 1), written(100), 0);
    writer.answered(on(2, 4), written(100), 0);
    assert_eq!(acknowledged(&actions(&mut writer)), []);
    writer.recorded(*version, 0);
    let recorded = actions(&mut writer);
    assert_eq!(acknowledged(&recorded), [100]);
    let seals = |action: &&WriterAction| matches!(action, WriterAction::Seal { end: 60, .. });
    assert_eq!(recorded.iter().filter(seals).count(), 2);
    let repair = WriterAction::Repair { extent: 1, holders: ids(&[1, 2]) };
    assert!(recorded.contains(&repair), "{recorded:?}");
}

#[test]
fn sync_needs_two_synced_replicas_of_every_extent() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    writer.submit(100);
    writer.answered(on(1, 1), written(100), 0);
    writer.answered(on(1, 2), written(100), 0);
    writer.failed(on(1, 2), 0);
    writer.nodes_chosen(ids(&[1, 3, 4]));
    writer.submit(10);
    actions(&mut writer);
    assert_eq!(writer.sync(), 110);
    let syncs: Vec<_> = actions(&mut writer);
    let wanted = [on(1, 1), on(1, 3), on(2, 1), on(2, 3), on(2, 4)].map(WriterAction::Sync);
    assert_eq!(syncs, wanted);
    writer.recorded(2, 0);
    for node in [1, 3, 4] {
        writer.answered(on(2, node), synced(110), 0);
    }
    writer.answered(on(1, 1), synced(100), 0);
    assert_eq!(writer.synced(), 0, "the old extent is synced on one node only");
    writer.answered(on(1, 3), synced(100), 0);
    assert_eq!(writer.synced(), 110);
}

#[test]
fn replica_behind_by_bytes_or_time_ends_extent() {
    let ends = |len: u64, wait_ns: u64| {
        let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
        writer.submit(len);
        writer.answered(on(1, 1), written(len), 10 * MS);
        writer.answered(on(1, 2), written(len), 10 * MS);
        writer.tick(10 * MS + wait_ns);
        writer.needs_nodes()
    };
    assert!(!ends(8 * MIB, 0));
    assert!(ends(8 * MIB + 1, 0));
    assert!(!ends(10, 1999 * MS));
    assert!(ends(10, 2000 * MS));
}

#[test]
fn replica_that_keeps_up_is_never_too_late() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    for step in 1..1000 {
        let now = step * 10 * MS;
        writer.submit(1000);
        writer.answered(on(1, 1), written(step * 1000), now);
        writer.answered(on(1, 2), written(step * 1000), now);
        writer.answered(on(1, 3), written(step.saturating_sub(100) * 1000), now);
        assert!(!writer.needs_nodes(), "step {step}: one second behind");
    }
}

#[test]
fn extent_that_fails_before_its_record_leaves_no_trace() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    writer.submit(100);
    writer.answered(on(1, 1), written(100), 0);
    writer.answered(on(1, 2), written(100), 0);
    writer.failed(on(1, 3), 0);
    writer.nodes_chosen(ids(&[1, 2, 4]));
    writer.refused(on(2, 4), Refusal::NotTaken, 0);
    actions(&mut writer);
    writer.nodes_chosen(ids(&[1, 2, 5]));
    let (version, layout) = records(&actions(&mut writer)).remove(0);
    assert_eq!(layout.extents.iter().map(|e| e.number).collect::<Vec<_>>(), [1, 3]);
    writer.submit(5);
    writer.answered(on(2, 1), written(105), 0);
    writer.answered(on(2, 2), written(105), 0);
    writer.recorded(version, 0);
    assert_eq!(writer.acknowledged(), 100);
}

#[test]
fn fence_ends_writer_for_good() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    writer.submit(100);
    writer.refused(on(1, 1), Refusal::Fenced, 0);
    writer.answered(on(1, 2), written(100), 0);
    writer.answered(on(1, 3), written(100), 0);
    assert_eq!(actions(&mut writer).last(), Some(&WriterAction::Fenced));
    assert_eq!(writer.acknowledged(), 0);
    assert_eq!(writer.submit(1), None);
}

#[test]
fn refused_record_fences() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    writer.failed(on(1, 1), 0);
    writer.nodes_chosen(ids(&[2, 3]));
    writer.record_refused();
    assert_eq!(actions(&mut writer), [WriterAction::Fenced]);
}

#[test]
fn finished_log_is_sealed_before_its_end_is_recorded() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    writer.submit(100);
    writer.finish(0);
    assert_eq!(writer.submit(1), None);
    writer.answered(on(1, 1), written(100), 0);
    writer.answered(on(1, 2), written(100), 0);
    let ending = actions(&mut writer);
    assert_eq!(records(&ending), []);
    assert!(ending.contains(&WriterAction::Seal { to: on(1, 1), end: 100 }));
    writer.answered(on(1, 1), synced(100), 0);
    writer.answered(on(1, 2), synced(100), 0);
    let (version, layout) = records(&actions(&mut writer)).remove(0);
    assert!(layout.is_ended && layout.extents[0].is_sealed, "{layout:?}");
    assert_eq!(layout.ended_bytes(), 100);
    writer.recorded(version, 0);
    assert_eq!(actions(&mut writer), [WriterAction::Finished(layout)]);
}

#[test]
fn empty_log_finishes_without_extents() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    writer.finish(0);
    let (version, layout) = records(&actions(&mut writer)).remove(0);
    assert_eq!(layout.extents, []);
    writer.recorded(version, 0);
    assert!(matches!(actions(&mut writer)[..], [WriterAction::Finished(_)]));
}

#[test]
fn repair_completes_extent_and_is_recorded() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    writer.submit(100);
    writer.answered(on(1, 1), written(100), 0);
    writer.answered(on(1, 2), written(100), 0);
    writer.failed(on(1, 2), 0);
    writer.nodes_chosen(ids(&[1, 3, 4]));
    writer.recorded(2, 0);
    actions(&mut writer);
    writer.repaired(1, ids(&[1, 3, 5]), 0);
    let records = records(&actions(&mut writer));
    let (_, layout) = records.last().unwrap();
    assert_eq!(layout.extents[0].nodes, ids(&[1, 3, 5]));
    assert!(layout.extents[0].is_sealed);
    assert_eq!(writer.synced(), 100);
}

#[test]
fn replaced_extent_is_sealed_when_the_next_one_is_recorded() {
    let mut writer = writer(AckRule::Quorum, &[1, 2]);
    assert_eq!(writer.open_nodes(), Some(&ids(&[1, 2])[..]));
    writer.submit(100);
    writer.answered(on(1, 1), written(60), 0);
    writer.answered(on(1, 2), written(100), 0);
    actions(&mut writer);
    writer.replace_extent(0);
    assert_eq!(actions(&mut writer), [WriterAction::ChooseNodes { avoid: Vec::new() }]);
    writer.nodes_chosen(ids(&[1, 2, 3]));
    actions(&mut writer);
    assert_eq!(writer.open_nodes(), None, "the next extent is not recorded");
    writer.replace_extent(0);
    assert_eq!(actions(&mut writer), []);
    writer.recorded(2, 0);
    assert_eq!(writer.open_nodes(), Some(&ids(&[1, 2, 3])[..]));
    let seals = [1, 2].map(|node| WriterAction::Seal { to: on(1, node), end: 60 });
    assert_eq!(actions(&mut writer), seals);
    for node in [1, 2] {
        writer.answered(on(1, node), synced(60), 0);
    }
    let records = records(&actions(&mut writer));
    let (_, layout) = records.last().unwrap();
    assert!(layout.extents[0].is_sealed && layout.extents[1].nodes.len() == 3, "{layout:?}");
}

#[test]
fn replicas_of_an_extent_without_bytes_are_sealed() {
    let mut writer = writer(AckRule::Quorum, &[1, 2, 3]);
    let seals = |extent, nodes: [u64; 3]| {
        nodes.map(|node| WriterAction::Seal { to: on(extent, node), end: 0 })
    };
    writer.replace_extent(0);
    writer.nodes_chosen(ids(&[1, 2, 4]));
    let records = records(&actions(&mut writer));
    assert_eq!(records[0].1.extents.len(), 1, "it leaves the layout");
    writer.recorded(2, 0);
    assert_eq!(actions(&mut writer), seals(1, [1, 2, 3]));
    // No byte was sent to the second extent, so no node has it.
    writer.replace_extent(0);
    writer.nodes_chosen(ids(&[1, 2, 3]));
    actions(&mut writer);
    writer.recorded(3, 0);
    assert_eq!(actions(&mut writer), []);
    // The nodes of the third one may have bytes that were never acknowledged.
    writer.submit(10);
    writer.replace_extent(0);
    writer.nodes_chosen(ids(&[4, 5, 6]));
    actions(&mut writer);
    writer.recorded(4, 0);
    assert_eq!(actions(&mut writer), seals(3, [1, 2, 3]));
    assert_eq!(writer.retain_from(), 0);
}
