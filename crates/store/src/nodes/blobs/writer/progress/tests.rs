use super::super::super::super::code::Rs42;
use super::super::super::super::layout::CellSize;
use super::*;
use crate::ids::BlobId;

const RS: Scheme = Scheme::Rs42(CellSize::Small);
const R3: Scheme = Scheme::Replicas(3);

fn nodes(count: u64) -> Vec<StorageId> {
    (1..=count).map(StorageId).collect()
}

/// A blob with full steps that no node has confirmed.
fn progress(scheme: Scheme, steps: u64) -> WriteProgress {
    let mut progress = WriteProgress::new(scheme, &nodes(u64::from(scheme.chunks())));
    for _ in 0..steps {
        push(&mut progress, step_bytes(scheme) as usize);
    }
    progress
}

fn push(progress: &mut WriteProgress, len: usize) {
    let number = progress.next_number();
    let code = Rs42::new().unwrap();
    let data = vec![number as u8; len];
    progress.push(WriteStep::new(BlobId([1; 16]), progress.scheme(), number, data, &code).unwrap());
}

fn confirm_all(progress: &mut WriteProgress, number: u64, but: &[u8]) {
    for slot_node in progress.slot_nodes() {
        if !but.contains(&slot_node.slot) {
            progress.confirm(&slot_node, number);
        }
    }
}

#[test]
fn step_is_retained_until_every_chunk_confirmed_it() {
    let mut progress = progress(RS, 2);
    assert_eq!(progress.unconfirmed_bytes(), 2 * 6 * (256 << 10));
    confirm_all(&mut progress, 0, &[4]);
    assert!(progress.step(0).is_some());
    assert_eq!(progress.unconfirmed_bytes(), 7 * (256 << 10));
    let slot_node = progress.slot_nodes()[4];
    progress.confirm(&slot_node, 0);
    assert!(progress.step(0).is_none() && progress.step(1).is_some());
    confirm_all(&mut progress, 1, &[]);
    assert!(progress.is_flushed());
    assert_eq!(progress.memory_bytes(), 0);
}

#[test]
fn replaced_node_gets_what_was_dropped_and_then_the_rest() {
    let mut progress = progress(RS, 3);
    confirm_all(&mut progress, 0, &[]);
    confirm_all(&mut progress, 1, &[2]);
    let old = progress.slot_nodes()[2];
    assert_eq!(progress.fail(&old), SlotFailure::Replaceable);
    assert_eq!(progress.fail(&old), SlotFailure::Stale, "a second failure of the same node");
    let new = progress.replace(2, StorageId(9));
    assert_eq!((new.node, new.attempt, new.rebuild_bytes), (StorageId(9), 1, 1 << 20));
    assert_eq!(progress.unconfirmed_from(&new), 1);
    assert_eq!(progress.sources().len(), 5, "the new node is no source");
    progress.confirm(&old, 2);
    assert_eq!(progress.unconfirmed_from(&new), 1, "a late answer counts for nothing");
    confirm_all(&mut progress, 2, &[2]);
    assert!(progress.step(1).is_some(), "the new node needs it");
    progress.rebuilt(&new);
    progress.confirm(&new, 2);
    assert!(progress.is_flushed());
}

#[test]
fn two_nodes_are_replaced_and_a_third_ends_the_blob() {
    let mut progress = progress(RS, 1);
    confirm_all(&mut progress, 0, &[]);
    let slot_nodes = progress.slot_nodes();
    for slot_node in &slot_nodes[..2] {
        assert_eq!(progress.fail(slot_node), SlotFailure::Replaceable);
        progress.replace(slot_node.slot, StorageId(20 + u64::from(slot_node.slot)));
        assert!(!progress.is_flushed(), "it is rebuilt first");
    }
    assert_eq!(progress.sources().len(), 4);
    assert_eq!(progress.fail(&slot_nodes[2]), SlotFailure::TooFew);
}

#[test]
fn all_nodes_may_fail_before_a_step_was_dropped() {
    let mut progress = progress(RS, 1);
    for slot_node in progress.slot_nodes() {
        assert_eq!(progress.fail(&slot_node), SlotFailure::Replaceable);
        let new = progress.replace(slot_node.slot, StorageId(30 + u64::from(slot_node.slot)));
        assert_eq!(new.rebuild_bytes, 0);
    }
}

#[test]
fn replicas_go_on_with_one_source_and_without_a_copy() {
    let mut progress = progress(R3, 2);
    confirm_all(&mut progress, 0, &[]);
    confirm_all(&mut progress, 1, &[1]);
    let slot_nodes = progress.slot_nodes();
    assert_eq!(progress.fail(&slot_nodes[1]), SlotFailure::Replaceable);
    assert_eq!(progress.go_without(1), 2);
    assert!(progress.is_flushed(), "the missing copy confirms nothing");
    assert_eq!(progress.slot_nodes().len(), 2);
    assert_eq!(progress.sources(), [(0, StorageId(1)), (0, StorageId(3))]);
    assert_eq!(progress.fail(&slot_nodes[0]), SlotFailure::Replaceable);
    assert_eq!(progress.fail(&slot_nodes[2]), SlotFailure::TooFew);
}

#[test]
fn last_step_of_a_partial_stripe_is_rebuilt_to_its_length() {
    let mut progress = progress(RS, 1);
    push(&mut progress, 300 << 10);
    confirm_all(&mut progress, 1, &[]);
    let slot_node = progress.slot_nodes()[1];
    progress.fail(&slot_node);
    assert_eq!(progress.replace(1, StorageId(9)).rebuild_bytes, (1 << 20) + (300 << 10));
}

#[test]
fn node_is_slow_only_if_most_others_have_the_step() {
    let mut progress = progress(RS, 1);
    assert!(!progress.others_have(0, 0));
    confirm_all(&mut progress, 0, &[0, 1, 2, 3]);
    assert!(!progress.others_have(0, 0), "two of five");
    let slot_node = progress.slot_nodes()[3];
    progress.confirm(&slot_node, 0);
    assert!(progress.others_have(0, 0));
}
