//! Sets of volumes, and strays.

use std::time::Duration;

use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::FileClass;

use super::super::super::StorageId;
use super::super::super::wire::{ChunkId, PlacementEpoch};
use super::super::hint::decode_hint;
use super::fake::NodeMood;
use super::{Bench, MIB, VOLUME, options};
use crate::blob::BlobStore;
use crate::ids::VolumeId;

const OTHER: VolumeId = VolumeId([4; 16]);

// A holder that the managers call down may return with its old set, and then delete its chunk. So a
// retain does not leave it out, as long as the managers do not call it lost.
#[test]
fn retain_needs_every_holder_that_is_not_lost() {
    let mut bench = Bench::new(7);
    let bytes = bench.bytes(2 * MIB);
    let blob = bench.write(FileClass::ValueSst, &bytes);
    let holders = decode_hint(blob.id, &blob.hint).unwrap().holders;
    let dead = holders[2].storage;
    bench.nodes.set_mood(dead, NodeMood::Dead);
    for down in [Vec::new(), vec![dead]] {
        bench.nodes.set_down(&down);
        let error = bench.blobs.retain(&blob, OTHER).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "the managers call {down:?} down: {error}");
        assert!(error.to_string().contains(&dead.to_string()), "{error}");
    }
    bench.nodes.set_lost(&[dead]);
    bench.blobs.retain(&blob, OTHER).unwrap();
    bench.nodes.set_mood(dead, NodeMood::Works);
    for holder in holders {
        let retaining = bench.nodes.node(holder.storage, |node| {
            let id = ChunkId { blob: blob.id, index: holder.chunk };
            node.chunks[&id].descriptor.as_ref().unwrap().retaining.clone()
        });
        let wanted = if holder.storage == dead { vec![VOLUME] } else { vec![VOLUME, OTHER] };
        assert_eq!(retaining, wanted);
    }
}

#[test]
fn holder_that_managers_call_down_keeps_a_retained_blob() {
    let mut bench = Bench::new(7);
    let bytes = bench.bytes(2 * MIB);
    let blob = bench.write(FileClass::ValueSst, &bytes);
    let holders = decode_hint(blob.id, &blob.hint).unwrap().holders;
    assert_eq!(holders.len(), 6);
    // The nodes answer this client, and only the managers do not hear of them.
    let silent: Vec<StorageId> = holders[..3].iter().map(|holder| holder.storage).collect();
    bench.nodes.set_down(&silent);
    bench.blobs.retain(&blob, OTHER).unwrap();
    bench.nodes.set_down(&[]);
    bench.blobs.release(blob.id, VOLUME, Epoch(1)).unwrap();
    assert!(bench.read(&blob).unwrap() == bytes, "the blob of the other volume is whole");
}

#[test]
fn retain_after_the_removal_of_its_volume_is_fenced() {
    let mut bench = Bench::new(4);
    let blob = bench.write(FileClass::Sst, b"shared");
    let blobs = std::slice::from_ref(&blob);
    bench.blobs.retain_all(blobs, OTHER, Epoch(1)).unwrap();
    assert_eq!(bench.blobs.release_volume(OTHER, Epoch(2)).unwrap(), 1);
    // The process that copies was stopped meanwhile.
    let late = bench.blobs.retain_all(blobs, OTHER, Epoch(1)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Fenced, "{late}");
    assert_eq!(bench.blobs.release_volume(OTHER, Epoch(2)).unwrap(), 0);
}

#[test]
fn retain_follows_a_holder_that_a_repair_has_added() {
    let mut bench = Bench::new(4);
    let blob = bench.write(FileClass::Sst, b"a checkpoint");
    let mut holders = decode_hint(blob.id, &blob.hint).unwrap().holders;
    let is_new = |id: &StorageId| holders.iter().all(|holder| holder.storage != *id);
    let new = bench.nodes.ids().into_iter().find(is_new).unwrap();
    let (id, old) = (ChunkId { blob: blob.id, index: 0 }, holders[0].storage);
    holders[0].storage = new;
    let mut copy = bench.nodes.node(old, |node| node.chunks[&id].clone());
    let placement = PlacementEpoch { counter: 2, repairer: new };
    if let Some(descriptor) = &mut copy.descriptor {
        (descriptor.placement, descriptor.holders) = (placement, holders.clone());
    }
    // The repair becomes visible while the first round of the retain is on its way.
    let nodes = std::sync::Arc::clone(&bench.nodes);
    let scheduler = bench.simulation.scheduler();
    let sleep = scheduler.sleep(Duration::from_micros(150));
    let _ends_by_itself = scheduler.spawn("repair", async move {
        sleep.await;
        nodes.node(new, |node| node.chunks.insert(id, copy.clone()));
        for holder in &holders[1..] {
            nodes.node(holder.storage, |node| {
                let mut descriptor = copy.descriptor.clone();
                let chunk = node.chunks.get_mut(&id).unwrap();
                if let (Some(new), Some(old)) = (&mut descriptor, &chunk.descriptor) {
                    new.retaining.clone_from(&old.retaining);
                }
                chunk.descriptor = descriptor;
            });
        }
    });
    bench.blobs.retain(&blob, OTHER).unwrap();
    let retaining = bench
        .nodes
        .node(new, |node| node.chunks[&id].descriptor.as_ref().unwrap().retaining.clone());
    assert_eq!(retaining, [VOLUME, OTHER]);
}

#[test]
fn node_that_missed_a_release_hears_of_it_with_the_next_one() {
    for mood in [NodeMood::Stopped, NodeMood::Dead] {
        let mut bench = Bench::new(5);
        let first = bench.write(FileClass::Sst, b"released");
        let second = bench.write(FileClass::Sst, b"released later");
        let silent = decode_hint(first.id, &first.hint).unwrap().holders[1].storage;
        bench.nodes.set_mood(silent, mood);
        bench.blobs.release(first.id, VOLUME, Epoch(1)).unwrap();
        let left: Vec<_> = bench.nodes.holders(first.id);
        assert_eq!(left.len(), 1, "{mood:?}");
        bench.nodes.set_mood(silent, NodeMood::Works);
        bench.simulation.scheduler().run_for(Duration::from_secs(10));
        bench.blobs.release(second.id, VOLUME, Epoch(1)).unwrap();
        assert!(bench.nodes.holders(first.id).is_empty(), "{mood:?}");
        assert!(bench.nodes.holders(second.id).is_empty(), "{mood:?}");
    }
}

#[test]
fn node_that_was_down_gets_its_release_with_the_next_one() {
    let mut bench = Bench::new(5);
    let first = bench.write(FileClass::Sst, b"released");
    let second = bench.write(FileClass::Sst, b"released later");
    let down = decode_hint(first.id, &first.hint).unwrap().holders[1].storage;
    bench.nodes.set_mood(down, NodeMood::Dead);
    bench.nodes.set_down(&[down]);
    bench.blobs.release(first.id, VOLUME, Epoch(1)).unwrap();
    assert_eq!(bench.nodes.holders(first.id).len(), 1);
    bench.nodes.set_mood(down, NodeMood::Works);
    bench.nodes.set_down(&[]);
    bench.blobs.release(second.id, VOLUME, Epoch(1)).unwrap();
    assert!(bench.nodes.holders(first.id).is_empty());
    assert!(bench.nodes.holders(second.id).is_empty());
}

#[test]
fn release_that_is_lost_with_a_link_is_sent_again() {
    let mut bench = Bench::new(3);
    let blob = bench.write(FileClass::Sst, b"released");
    for id in bench.nodes.ids() {
        bench.nodes.node(id, |node| node.loses = 1);
    }
    bench.blobs.release(blob.id, VOLUME, Epoch(1)).unwrap();
    assert!(bench.nodes.holders(blob.id).is_empty());
    let stray = bench.write(FileClass::Sst, b"a stray");
    for id in bench.nodes.ids() {
        bench.nodes.node(id, |node| node.loses = 1);
    }
    assert_eq!(bench.blobs.release_strays(VOLUME, Epoch(2), &|_| false).unwrap(), 1);
    assert!(bench.nodes.holders(stray.id).is_empty());
}

#[test]
fn release_that_no_node_answers_is_busy() {
    let mut bench = Bench::new(3);
    let blob = bench.write(FileClass::Sst, b"released");
    bench.set_moods(&bench.nodes.ids(), NodeMood::Dead);
    let error = bench.blobs.release(blob.id, VOLUME, Epoch(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let error = bench.blobs.release_strays(VOLUME, Epoch(1), &|_| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    bench.nodes.set_down(&bench.nodes.ids());
    let error = bench.blobs.release(blob.id, VOLUME, Epoch(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
}

#[test]
fn strays_are_found_on_all_nodes_in_parts() {
    let mut bench = Bench::new(6);
    let mut blobs = Vec::new();
    for _ in 0..20 {
        blobs.push(bench.write(FileClass::Sst, b"some blob"));
    }
    let id = bench.id();
    let mut open = bench.blobs.create(id, options(FileClass::ValueSst, 0)).unwrap();
    let bytes = bench.bytes(3 * MIB);
    open.append(&bytes).unwrap();
    let kept = blobs[7].id;
    let released = bench.blobs.release_strays(VOLUME, Epoch(1), &|blob| blob == kept).unwrap();
    assert_eq!(released, 20, "nineteen sealed ones and the open one");
    assert!(open.seal().is_err());
    for blob in &blobs {
        assert_eq!(bench.nodes.holders(blob.id).is_empty(), blob.id != kept);
    }
    assert!(bench.nodes.holders(id).is_empty());
    assert_eq!(bench.blobs.release_strays(VOLUME, Epoch(1), &|blob| blob == kept).unwrap(), 0);
}

#[test]
fn blobs_are_released_by_one_request_to_each_node() {
    let mut bench = Bench::new(4);
    let blobs: Vec<_> = (0..20).map(|_| bench.write(FileClass::Sst, b"some blob").id).collect();
    bench.blobs.release_all(&blobs, VOLUME, Epoch(1)).unwrap();
    assert!(blobs.iter().all(|blob| bench.nodes.holders(*blob).is_empty()));
    for id in bench.nodes.ids() {
        assert_eq!(bench.nodes.node(id, |node| node.releases), 1, "node {id}");
    }
    bench.blobs.release_all(&[], VOLUME, Epoch(1)).unwrap();
}

#[test]
fn removal_of_a_volume_needs_the_answer_of_every_node() {
    let mut bench = Bench::new(5);
    let blobs: Vec<_> = (0..5).map(|_| bench.write(FileClass::Sst, b"some blob")).collect();
    bench.blobs.retain(&blobs[2], OTHER).unwrap();
    let id = bench.id();
    let mut open = bench.blobs.create(id, options(FileClass::ValueSst, 0)).unwrap();
    let bytes = bench.bytes(3 * MIB);
    open.append(&bytes).unwrap();
    for mood in [NodeMood::Dead, NodeMood::Stopped] {
        let silent = StorageId(4);
        bench.nodes.set_mood(silent, mood);
        bench.nodes.set_down(&[silent]);
        let error = bench.blobs.release_volume(VOLUME, Epoch(2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains(&silent.to_string()), "{error}");
        bench.nodes.set_mood(silent, NodeMood::Works);
        bench.nodes.set_down(&[]);
    }
    let released = bench.blobs.release_volume(VOLUME, Epoch(2)).unwrap();
    assert_eq!(released, 6, "five sealed ones and the open one");
    assert!(bench.nodes.holders(id).is_empty());
    for blob in &blobs {
        let is_shared = blob.id == blobs[2].id;
        assert_eq!(bench.nodes.holders(blob.id).is_empty(), !is_shared);
    }
    assert!(open.seal().is_err(), "its writer is fenced");
    assert_eq!(bench.read(&blobs[2]).unwrap(), b"some blob");
    assert_eq!(bench.blobs.release_volume(VOLUME, Epoch(2)).unwrap(), 0);
    let late = bench.blobs.release_volume(VOLUME, Epoch(1)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Fenced, "{late}");
}

#[test]
fn removal_of_a_volume_releases_copies_that_repairs_make() {
    // A call takes 100 µs. The copy is made between list and release, and after the release.
    for at_us in [220, 280] {
        let mut bench = Bench::new(5);
        let blob = bench.write(FileClass::Sst, b"some blob");
        let id = ChunkId { blob: blob.id, index: 0 };
        let held: Vec<StorageId> =
            bench.nodes.holders(blob.id).into_iter().map(|(node, _)| node).collect();
        let new = bench.nodes.ids().into_iter().find(|node| !held.contains(node)).unwrap();
        let copy = bench.nodes.node(held[0], |node| node.chunks[&id].clone());
        let nodes = std::sync::Arc::clone(&bench.nodes);
        let scheduler = bench.simulation.scheduler();
        let sleep = scheduler.sleep(Duration::from_micros(at_us));
        let _ends_by_itself = scheduler.spawn("repair", async move {
            sleep.await;
            nodes.node(new, |node| node.chunks.insert(id, copy));
        });
        assert_eq!(bench.blobs.release_volume(VOLUME, Epoch(2)).unwrap(), 1);
        scheduler.run_for(Duration::from_millis(10));
        assert_eq!(bench.nodes.holders(blob.id), [], "a copy was made after {at_us} µs");
    }
}
