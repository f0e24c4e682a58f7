//! Chunks that repairs make, and lists for repairs.

use archipelago_env::mem::MemFs;
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::repairs::RepairHost;
use archipelago_store::nodes::wire::{CodingDue, HeldChunk};

use super::super::sets::HeldFilter;
use super::*;

/// A put of a repair.
pub(super) fn begin(node: &StorageNode, chunk: ChunkId, payload: &[u8]) {
    let put = StoreMessage::PutChunk {
        chunk,
        stamp: None,
        class: FileClass::Sst,
        purpose: WritePurpose::Repair,
        offset: 0,
        crcs: chunk.checksums().piece_crcs(0, payload),
    };
    done(ask(node, put, payload).0).unwrap();
}

/// The descriptor of a chunk that a repair makes on the node.
fn repaired(
    node: &StorageNode,
    chunk: ChunkId,
    len: usize,
    retaining: &[VolumeId],
) -> ChunkDescriptor {
    let placement = PlacementEpoch { counter: 2, repairer: node.storage() };
    let retaining = retaining.to_vec();
    ChunkDescriptor { placement, retaining, ..descriptor(node, chunk, len) }
}

/// Seals a chunk as a repair does.
pub(super) fn seal_for(
    node: &StorageNode,
    chunk: ChunkId,
    len: usize,
    retaining: &[VolumeId],
) -> Result<(), RefusalWhy> {
    let descriptor = repaired(node, chunk, len, retaining);
    tell(node, StoreMessage::SealChunk { stamp: None, descriptor })
}

fn held(node: &StorageNode, present: &[u64], answering: &[u64], is_all: bool) -> Vec<HeldChunk> {
    let shared = Vec::new();
    let (present, answering) = (ids(present), ids(answering));
    let filter = HeldFilter { present, answering, is_all, shared };
    held_by(node, &filter)
}

fn ids(ids: &[u64]) -> Vec<StorageId> {
    ids.iter().copied().map(StorageId).collect()
}

fn held_by(node: &StorageNode, filter: &HeldFilter) -> Vec<HeldChunk> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let list = StoreMessage::ListHeld {
            present: filter.present.clone(),
            answering: filter.answering.clone(),
            is_all: filter.is_all,
            after,
            shared: filter.shared.clone(),
        };
        match ask(node, list, &[]).0 {
            StoreMessage::Held { chunks, next, .. } => {
                all.extend(chunks);
                match next {
                    Some(_) => after = next,
                    None => return all,
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn release_during_a_repair_is_not_undone_by_its_seal() {
    let fs = MemFs::new();
    let node = open(&fs);
    let payload = bytes(1, LEN);
    begin(&node, chunk(1), &payload);
    release(&node, 1, STAMP).unwrap();
    // The repair read both volumes from another holder before.
    seal_for(&node, chunk(1), LEN, &[VOLUME, OTHER]).unwrap();
    assert_eq!(describe(&node, chunk(1).blob)[0].retaining, [OTHER]);
    begin(&node, chunk(2), &payload);
    release(&node, 2, STAMP).unwrap();
    assert!(seal_for(&node, chunk(2), LEN, &[VOLUME]).is_err(), "nobody keeps the blob");
    node.abandon_repair(chunk(2));
    assert!(describe(&node, chunk(2).blob).is_empty());
    assert_eq!(files(&fs, "/n").len(), 1);
}

#[test]
fn repair_does_not_bring_back_what_its_writer_released() {
    let fs = MemFs::new();
    let node = open(&fs);
    let payload = bytes(1, LEN);
    release(&node, 1, STAMP).unwrap();
    begin(&node, chunk(1), &payload);
    // The holder that supplies the bytes has missed the release.
    assert!(node.has_released(&repaired(&node, chunk(1), LEN, &[VOLUME])));
    assert!(seal_for(&node, chunk(1), LEN, &[VOLUME]).is_err());
    node.abandon_repair(chunk(1));
    assert!(files(&fs, "/n").is_empty());
    begin(&node, chunk(1), &payload);
    assert!(!node.has_released(&repaired(&node, chunk(1), LEN, &[VOLUME, OTHER])));
    seal_for(&node, chunk(1), LEN, &[VOLUME, OTHER]).unwrap();
    assert_eq!(describe(&node, chunk(1).blob)[0].retaining, [OTHER]);
}

#[test]
fn volumes_that_others_released_are_taken_out() {
    let fs = MemFs::new();
    let node = open(&fs);
    begin(&node, chunk(1), &bytes(1, LEN));
    seal_for(&node, chunk(1), LEN, &[VOLUME, OTHER]).unwrap();
    node.take_volumes(chunk(1), &[VOLUME]).unwrap();
    assert_eq!(describe(&open(&fs.crash_clone(1)), chunk(1).blob)[0].retaining, [OTHER]);
    node.take_volumes(chunk(1), &[VOLUME, OTHER]).unwrap();
    assert!(describe(&node, chunk(1).blob).is_empty());
    assert!(files(&fs, "/n").is_empty());
}

#[test]
fn first_holder_that_answers_lists_a_blob_whose_holder_has_left() {
    let node = open(&MemFs::new());
    let me = node.storage().0;
    for (number, holders) in [(1, vec![1, me, 2]), (2, vec![me, 3, 4])] {
        put(&node, chunk(number), 0, &bytes(number, LEN)).unwrap();
        let holders =
            holders.into_iter().map(|id| Holder { storage: StorageId(id), chunk: 0 }).collect();
        let descriptor = ChunkDescriptor { holders, ..descriptor(&node, chunk(number), LEN) };
        tell(&node, StoreMessage::SealChunk { stamp: Some(STAMP), descriptor }).unwrap();
    }
    let blobs = |present: &[u64], answering: &[u64], is_all| -> Vec<u8> {
        let held = held(&node, present, answering, is_all);
        held.iter().map(|held| held.descriptor.chunk.blob.0[0]).collect()
    };
    let all = [1, 2, 3, 4, me];
    assert!(blobs(&all, &all, false).is_empty(), "nothing is missing");
    assert!(blobs(&[1, 3, 4, me], &[1, 3, 4, me], false).is_empty(), "node 1 lists the blob");
    assert_eq!(blobs(&[1, 3, 4, me], &[3, 4, me], false), [1], "node 1 is silent");
    assert_eq!(blobs(&[1, 2, 3, me], &all, false), [2]);
    assert_eq!(blobs(&[1, 2, 3, 4], &all, false), [1, 2], "the node itself drains");
    assert_eq!(blobs(&all, &all, true), [1, 2]);
}

#[test]
fn blob_with_two_holders_in_one_domain_is_listed() {
    let node = open(&MemFs::new());
    let me = node.storage().0;
    put(&node, chunk(1), 0, &bytes(1, LEN)).unwrap();
    let holders = ids(&[me, 2, 3]).into_iter().map(|storage| Holder { storage, chunk: 0 });
    let descriptor =
        ChunkDescriptor { holders: holders.collect(), ..descriptor(&node, chunk(1), LEN) };
    tell(&node, StoreMessage::SealChunk { stamp: Some(STAMP), descriptor }).unwrap();
    let listed = |answering: &[u64], shared: &[&[u64]]| {
        let shared = shared.iter().map(|group| ids(group)).collect();
        let (present, answering) = (ids(&[1, 2, 3, me]), ids(answering));
        held_by(&node, &HeldFilter { present, answering, is_all: false, shared }).len()
    };
    let all = [1, 2, 3, me];
    assert_eq!(listed(&all, &[&[1, 2], &[3, 4]]), 0, "each holder has a domain of its own");
    assert_eq!(listed(&all, &[&[1, 4], &[2, 3]]), 1);
    assert_eq!(listed(&[1, 2, 3], &[&[2, 3]]), 0, "another holder lists it");
}

#[test]
fn blob_whose_code_is_due_is_counted_by_its_first_holder_and_not_listed() {
    let node = open(&MemFs::new());
    let me = node.storage().0;
    for (number, first) in [(1, me), (2, 1)] {
        put(&node, chunk(number), 0, &bytes(number, LEN)).unwrap();
        let holders = ids(&[first, me, 2]).into_iter().map(|storage| Holder { storage, chunk: 0 });
        let (holders, is_coding_due) = (holders.collect(), true);
        let descriptor =
            ChunkDescriptor { holders, is_coding_due, ..descriptor(&node, chunk(number), LEN) };
        tell(&node, StoreMessage::SealChunk { stamp: Some(STAMP), descriptor }).unwrap();
    }
    let counted = |present: &[u64], answering: &[u64], is_all| {
        let (present, answering, shared) = (ids(present), ids(answering), Vec::new());
        let list = StoreMessage::ListHeld { present, answering, is_all, after: None, shared };
        match ask(&node, list, &[]).0 {
            StoreMessage::Held { chunks, coding_due, .. } => (chunks.len(), coding_due),
            other => panic!("{other:?}"),
        }
    };
    let due = |files| CodingDue { files, bytes: files * LEN as u64 };
    let all = [1, 2, me];
    assert_eq!(counted(&all, &all, false), (0, due(1)), "nothing lacks a copy");
    assert_eq!(counted(&all, &[2, me], false), (0, due(2)), "node 1 does not list its files");
    assert_eq!(counted(&[1, 2], &all, false), (2, due(1)), "a node that drains lists all");
    assert_eq!(counted(&[], &[], true), (2, due(0)), "a list that no holder counts for");
}

#[test]
fn long_list_for_a_repair_continues_where_it_ended() {
    let node = open(&MemFs::new());
    for number in 0..=255 {
        write(&node, number, 10);
    }
    for number in 0..=255u8 {
        let mut blob = BlobId([number; 16]);
        blob.0[15] ^= 0x80;
        let chunk = ChunkId { blob, index: 0 };
        put(&node, chunk, 0, &bytes(number, 10)).unwrap();
        seal(&node, chunk, 10).unwrap();
    }
    let listed = held(&node, &[], &[], true);
    assert_eq!(listed.len(), 512);
    assert!(listed.is_sorted_by_key(|held| held.descriptor.chunk));
}

#[test]
fn third_replica_changes_the_scheme_and_the_share_of_the_length() {
    let node = open(&MemFs::new());
    put(&node, chunk(1), 0, &bytes(1, LEN)).unwrap();
    let two = ChunkDescriptor { scheme: Scheme::Replicas(2), ..descriptor(&node, chunk(1), LEN) };
    let seal = StoreMessage::SealChunk { stamp: Some(STAMP), descriptor: two.clone() };
    tell(&node, seal).unwrap();
    let share = |node: &StorageNode| node.report().volumes[0].logical_bytes;
    assert_eq!(share(&node), LEN as u64 / 2);
    let placement = PlacementEpoch { counter: 2, repairer: StorageId(9) };
    let three = ChunkDescriptor { scheme: Scheme::Replicas(3), placement, ..two };
    tell(&node, StoreMessage::Redescribe { descriptor: three.clone() }).unwrap();
    assert_eq!(describe(&node, chunk(1).blob), [three]);
    assert_eq!(share(&node), LEN as u64 / 3);
    release(&node, 1, STAMP).unwrap();
    assert!(node.report().volumes.iter().all(|volume| volume.logical_bytes == 0));
}
