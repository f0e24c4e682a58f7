//! Retaining sets, lists, descriptors and removals.

use super::*;

fn retain(node: &StorageNode, number: u8, volume: VolumeId) -> Result<(), RefusalWhy> {
    tell(node, StoreMessage::Retain { blobs: vec![chunk(number).blob], stamp: stamp(volume) })
}

fn stamp(volume: VolumeId) -> Stamp {
    Stamp { volume, epoch: Epoch(3) }
}

fn retaining(node: &StorageNode, number: u8) -> Vec<VolumeId> {
    describe(node, chunk(number).blob).into_iter().flat_map(|chunk| chunk.retaining).collect()
}

#[test]
fn chunk_lives_until_its_last_volume_releases_it() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    retain(&node, 1, OTHER).unwrap();
    retain(&node, 1, OTHER).unwrap();
    assert_eq!(retaining(&node, 1), [VOLUME, OTHER]);
    release(&node, 1, STAMP).unwrap();
    release(&node, 1, STAMP).unwrap();
    assert_eq!(retaining(&node, 1), [OTHER]);
    assert!(is_whole(&node, 1, LEN));
    let node = open(&fs.crash_clone(5));
    assert_eq!(retaining(&node, 1), [OTHER], "sets are durable");
    release(&node, 1, stamp(OTHER)).unwrap();
    assert_eq!(read(&node, chunk(1), 0, 1), Err(RefusalWhy::NotThere));
    assert_eq!(retain(&node, 1, VOLUME), Err(RefusalWhy::NotThere));
    assert_eq!(put(&node, chunk(1), 4096, b"late"), Err(RefusalWhy::NotThere));
}

#[cfg(feature = "sabotage")]
#[test]
fn canary_of_sets_deletes_what_another_volume_retains() {
    let sabotage = crate::Sabotage { release_ignores_sets: true, ..Default::default() };
    let options = NodeOptions { sabotage, ..options() };
    let node = open_with(Arc::new(MemFs::new()), &["/n"], options);
    write(&node, 1, LEN);
    retain(&node, 1, OTHER).unwrap();
    release(&node, 1, STAMP).unwrap();
    assert!(!is_whole(&node, 1, LEN));
}

#[test]
fn retain_of_a_missing_blob_changes_nothing() {
    let node = open(&MemFs::new());
    write(&node, 1, LEN);
    let blobs = vec![chunk(1).blob, chunk(2).blob];
    let refused = tell(&node, StoreMessage::Retain { blobs, stamp: stamp(OTHER) });
    assert_eq!(refused, Err(RefusalWhy::NotThere));
    assert_eq!(retaining(&node, 1), [VOLUME]);
}

#[test]
fn release_of_a_fenced_owner_is_refused() {
    let node = open(&MemFs::new());
    write(&node, 1, LEN);
    let newer = Stamp { epoch: Epoch(9), ..STAMP };
    tell(&node, StoreMessage::PromiseEpoch { stamp: newer }).unwrap();
    assert_eq!(release(&node, 1, STAMP), Err(RefusalWhy::Fenced));
    assert!(is_whole(&node, 1, LEN));
    release(&node, 1, newer).unwrap();
    assert!(!is_whole(&node, 1, LEN));
}

#[test]
fn retain_of_a_fenced_owner_is_refused() {
    let node = open(&MemFs::new());
    write(&node, 1, LEN);
    let newer = Stamp { epoch: Epoch(9), ..stamp(OTHER) };
    tell(&node, StoreMessage::PromiseEpoch { stamp: newer }).unwrap();
    assert_eq!(retain(&node, 1, OTHER), Err(RefusalWhy::Fenced));
    assert_eq!(retaining(&node, 1), [VOLUME]);
    assert_eq!(list(&node, OTHER), []);
}

#[test]
fn release_drops_the_chunk_that_is_being_written() {
    let fs = MemFs::new();
    let node = open(&fs);
    put(&node, chunk(1), 0, &bytes(1, LEN)).unwrap();
    release(&node, 1, stamp(OTHER)).unwrap();
    assert_eq!(list(&node, VOLUME).len(), 1, "another volume releases nothing");
    release(&node, 1, STAMP).unwrap();
    assert_eq!(list(&node, VOLUME), []);
    assert_eq!(files(&fs, "/n"), [] as [PathBuf; 0]);
}

#[test]
fn list_has_written_and_retained_blobs_in_order() {
    let node = open(&MemFs::new());
    (1..=5).for_each(|number| write(&node, number, 10));
    retain(&node, 2, OTHER).unwrap();
    put(&node, chunk(3).with_index(1), 0, b"a").unwrap();
    let listed = list(&node, VOLUME);
    let blobs: Vec<_> = listed.iter().map(|entry| entry.blob).collect();
    assert_eq!(blobs, (1..=5).map(|number| chunk(number).blob).collect::<Vec<_>>());
    let sealed: Vec<_> = listed.iter().map(|entry| entry.is_sealed).collect();
    assert_eq!(sealed, [true, true, false, true, true], "a chunk of the third is being written");
    let of_other = BlobEntry { blob: chunk(2).blob, epoch: Epoch(0), is_sealed: true };
    assert_eq!(list(&node, OTHER), [of_other], "the other volume did not write it");
}

trait WithIndex {
    fn with_index(self, index: u8) -> Self;
}

impl WithIndex for ChunkId {
    fn with_index(self, index: u8) -> Self {
        Self { index, ..self }
    }
}

#[test]
fn larger_placement_epoch_wins_and_sets_are_joined() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    let written = descriptor(&node, chunk(1), LEN);
    let counter = 2;
    let repairer = archipelago_store::nodes::StorageId(5);
    let placement = PlacementEpoch { counter, repairer };
    let newer = ChunkDescriptor { placement, retaining: vec![OTHER], ..written.clone() };
    tell(&node, StoreMessage::Redescribe { descriptor: newer.clone() }).unwrap();
    tell(&node, StoreMessage::Redescribe { descriptor: written.clone() }).unwrap();
    let merged = ChunkDescriptor { retaining: vec![VOLUME, OTHER], ..newer };
    assert_eq!(describe(&node, chunk(1).blob), std::slice::from_ref(&merged));
    let node = open(&fs.crash_clone(2));
    assert_eq!(describe(&node, chunk(1).blob), [merged]);
    let foreign = ChunkDescriptor { blob_bytes: 5, ..written };
    let refused = tell(&node, StoreMessage::Redescribe { descriptor: foreign });
    assert_eq!(refused, Err(RefusalWhy::Malformed));
}

#[test]
fn chunk_is_dropped_only_by_a_placement_that_does_not_list_it() {
    let node = open(&MemFs::new());
    write(&node, 1, LEN);
    let drop_at = |counter| {
        let repairer = archipelago_store::nodes::StorageId(0);
        let placement = PlacementEpoch { counter, repairer };
        tell(&node, StoreMessage::DropChunk { chunk: chunk(1), placement })
    };
    assert_eq!(drop_at(1), Err(RefusalWhy::Malformed), "the node is among these holders");
    assert_eq!(drop_at(0), Err(RefusalWhy::Malformed), "the node knows a larger one");
    assert!(is_whole(&node, 1, LEN));
    drop_at(2).unwrap();
    drop_at(2).unwrap();
    assert_eq!(read(&node, chunk(1), 0, 1), Err(RefusalWhy::NotThere));
}

#[test]
fn dropped_chunk_can_return_by_a_repair() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    let placement = PlacementEpoch { counter: 2, ..PlacementEpoch::WRITTEN };
    tell(&node, StoreMessage::DropChunk { chunk: chunk(1), placement }).unwrap();
    write(&node, 1, LEN);
    for seed in 0..8 {
        let node = open(&fs.crash_clone(seed));
        assert!(is_whole(&node, 1, LEN), "the record of the removal is gone: seed {seed}");
    }
}

#[test]
fn records_of_many_removals_are_removed() {
    use crate::meta::{MetaSpace, Scan};
    let node = open(&MemFs::new());
    for round in 0..6u8 {
        let id = |number: u8| {
            let mut blob = chunk(number).blob;
            blob.0[1] = round;
            ChunkId { blob, index: 0 }
        };
        for number in 0..100 {
            put(&node, id(number), 0, b"a").unwrap();
            seal(&node, id(number), 1).unwrap();
        }
        let blobs = (0..100).map(|number| id(number).blob).collect();
        tell(&node, StoreMessage::Release { blobs, stamp: STAMP }).unwrap();
        let mut records = 0;
        let mut count = |_: &[u8], _: &[u8]| {
            records += 1;
            Ok(Scan::Continue)
        };
        node.parts().meta.scan(MetaSpace::Chunks, &[], &mut count).unwrap();
        assert!(records < 300, "{records} records after round {round}");
    }
}
