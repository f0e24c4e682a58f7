//! Reads: requests, damage, hedges, degraded reads, holders that change.

use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_env::FileClass;

use super::super::super::StorageId;
use super::super::super::client::StoreEvent;
use super::super::super::wire::{BlobHint, ChunkId, PlacementEpoch};
use super::super::hint::{decode_hint, encode_hint};
use super::super::{BlobSabotage, BlobTiming, BlobsOptions};
use super::fake::NodeMood;
use super::{Bench, MIB, context};
use crate::blob::{BlobReader, BlobRef, BlobStore};

const CELL: usize = 256 << 10;

fn hint(blob: &BlobRef) -> BlobHint {
    decode_hint(blob.id, &blob.hint).unwrap()
}

/// Node and identity of the chunk in this slot.
fn chunk(blob: &BlobRef, slot: usize) -> (StorageId, ChunkId) {
    let holder = hint(blob).holders[slot];
    (holder.storage, ChunkId { blob: blob.id, index: holder.chunk })
}

fn read_range(reader: &dyn BlobReader, start: usize, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    reader.read_exact_at(start as u64, &mut buf, context(FileClass::ValueSst)).unwrap();
    buf
}

#[test]
fn read_within_a_cell_is_one_request_and_a_straddling_one_two() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(3 * MIB);
    let blob = bench.write(FileClass::ValueSst, &bytes);
    let reader = bench.blobs.open(&blob, context(FileClass::ValueSst)).unwrap();
    for (start, len, requests, pieces) in [
        (5 * CELL + 100, 16_000, 1, 4),
        (5 * CELL - 10, 20, 2, 2),
        (8 * CELL - 8000, 16_000, 2, 4),
        (MIB - 100, 200, 2, 2),
        (4 * CELL, CELL, 1, 64),
    ] {
        let before = bench.blobs.stats();
        assert!(read_range(&*reader, start, len) == bytes[start..start + len], "at {start}");
        let after = bench.blobs.stats();
        assert_eq!(after.read_requests - before.read_requests, requests, "at {start}");
        assert_eq!(after.fetched_bytes - before.fetched_bytes, pieces * 4096, "at {start}");
    }
    assert_eq!(bench.blobs.stats().stale_hints, 0);
}

#[test]
fn many_ranges_are_one_request_per_node() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(8 * MIB);
    let ranges: Vec<(usize, usize)> = (0..400).map(|at| (at * 20_000 + 7, 900)).collect();
    for (class, requests) in [(FileClass::ValueSst, 4), (FileClass::Sst, 2)] {
        let blob = bench.write(class, &bytes);
        let reader = bench.blobs.open(&blob, context(class)).unwrap();
        let before = bench.blobs.stats();
        let mut bufs: Vec<_> = ranges.iter().map(|range| vec![0; range.1]).collect();
        let starts = ranges.iter().map(|range| range.0 as u64);
        let mut wanted: Vec<_> = starts.zip(bufs.iter_mut().map(Vec::as_mut_slice)).collect();
        reader.read_many(&mut wanted, context(class)).unwrap();
        for ((start, len), buf) in ranges.iter().zip(&bufs) {
            assert!(*buf == bytes[*start..start + len], "{class:?} at {start}");
        }
        let sent = bench.blobs.stats().read_requests - before.read_requests;
        assert!((1..=requests).contains(&sent), "{class:?}: {sent} requests");
    }
}

#[test]
fn damaged_piece_is_read_elsewhere_and_reported() {
    for (class, slots) in [(FileClass::Sst, 3), (FileClass::ValueSst, 6)] {
        for slot in 0..slots {
            let mut bench = Bench::new(6);
            let bytes = bench.bytes(3 * MIB + 5000);
            let blob = bench.write(class, &bytes);
            let (node, id) = chunk(&blob, slot);
            bench.rot(node, id, 5000);
            // Every replica is asked first in one of these reads.
            for _ in 0..3 {
                assert!(bench.read(&blob).unwrap() == bytes, "{class:?}: damage in {slot}");
            }
            bench.simulation.scheduler().run_for(Duration::from_secs(1));
            let reports = bench.nodes.node(node, |node| node.reports.clone());
            let is_read = slot < if class == FileClass::Sst { 3 } else { 4 };
            assert_eq!(reports.contains(&(id, 4096)), is_read, "{class:?}: damage in {slot}");
            let damaged = bench.event(StoreEvent::DamagedPiece);
            assert_eq!(damaged > 0, is_read, "{class:?}: damage in {slot}");
        }
    }
}

#[test]
fn blob_is_corrupt_only_if_no_source_is_left() {
    for (class, enough) in [(FileClass::Sst, 3), (FileClass::ValueSst, 3)] {
        let mut bench = Bench::new(6);
        let bytes = bench.bytes(2 * MIB);
        let blob = bench.write(class, &bytes);
        for slot in 0..enough {
            assert!(bench.read(&blob).unwrap() == bytes, "{class:?}: damage in {slot} chunks");
            let (node, id) = chunk(&blob, slot);
            bench.rot(node, id, 5000);
        }
        let error = bench.read(&blob).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{class:?}: {error}");
        // A node that does not answer may have the bytes.
        let (node, _) = chunk(&blob, enough - 1);
        bench.nodes.set_mood(node, NodeMood::Dead);
        let error = bench.read(&blob).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{class:?}: {error}");
    }
}

/// Whether every read returns the bytes that were written, although each chunk has damage.
fn returns_right_bytes(sabotage: BlobSabotage) -> bool {
    let mut bench = Bench::with(6, BlobsOptions { sabotage, ..BlobsOptions::default() });
    let bytes = bench.bytes(2 * MIB);
    let blob = bench.write(FileClass::ValueSst, &bytes);
    (0..4).all(|slot| {
        let (node, id) = chunk(&blob, slot);
        bench.rot(node, id, 5000);
        let read = bench.read(&blob);
        bench.rot(node, id, 5000);
        read.is_ok_and(|read| read == bytes)
    })
}

#[test]
fn missing_check_of_checksums_is_noticed() {
    assert!(returns_right_bytes(BlobSabotage::default()));
    let sabotage = BlobSabotage { no_client_crc: true, ..BlobSabotage::default() };
    assert!(!returns_right_bytes(sabotage));
}

#[test]
fn slow_node_is_hedged() {
    for (class, degraded) in [(FileClass::Sst, false), (FileClass::ValueSst, true)] {
        let mut bench = Bench::new(6);
        let bytes = bench.bytes(2 * MIB);
        let blob = bench.write(class, &bytes);
        let reader = bench.blobs.open(&blob, context(class)).unwrap();
        // The nodes have usual times.
        for _ in 0..100 {
            read_range(&*reader, 100, 100);
        }
        let (slow, _) = chunk(&blob, 0);
        bench.nodes.node(slow, |node| node.delay = Duration::from_secs(2));
        for _ in 0..20 {
            let begun_ns = bench.simulation.scheduler().now_ns();
            assert!(read_range(&*reader, 100, 100) == bytes[100..200]);
            let took_ns = bench.simulation.scheduler().now_ns() - begun_ns;
            assert!(took_ns < 5_000_000, "{class:?}: {took_ns} ns");
        }
        assert!(bench.event(StoreEvent::HedgedRead) > 0, "{class:?}");
        assert!(bench.blobs.stats().hedges_won > 0, "{class:?}");
        assert_eq!(bench.event(StoreEvent::DegradedRead) > 0, degraded);
    }
}

#[test]
fn hedges_at_a_node_that_got_slower_are_bounded() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(2 * MIB);
    let blob = bench.write(FileClass::ValueSst, &bytes);
    let reader = bench.blobs.open(&blob, context(FileClass::ValueSst)).unwrap();
    for _ in 0..100 {
        read_range(&*reader, 100, 100);
    }
    // A degraded read would always win, and the slower time of the node would stay unknown.
    let (slow, _) = chunk(&blob, 0);
    bench.nodes.node(slow, |node| node.delay = Duration::from_millis(3));
    let before = bench.blobs.stats().read_requests;
    for _ in 0..500 {
        assert!(read_range(&*reader, 100, 100) == bytes[100..200]);
    }
    let sent = bench.blobs.stats().read_requests - before;
    let hedges = bench.event(StoreEvent::HedgedRead);
    assert!(hedges > 0 && sent <= 500 + 64 + 50, "{sent} requests, {hedges} hedges");
}

#[test]
fn node_that_answers_in_its_usual_time_is_not_hedged() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(2 * MIB);
    for id in bench.nodes.ids() {
        bench.nodes.node(id, |node| node.delay = Duration::from_millis(20));
    }
    let blob = bench.write(FileClass::ValueSst, &bytes);
    let reader = bench.blobs.open(&blob, context(FileClass::ValueSst)).unwrap();
    let before = bench.blobs.stats().read_requests;
    for at in 0..200 {
        read_range(&*reader, at * 1000, 100);
    }
    let sent = bench.blobs.stats().read_requests - before;
    assert!(sent <= 210, "{sent} requests for 200 reads");
}

#[test]
fn stopped_node_costs_one_deadline_at_most() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(2 * MIB);
    let blob = bench.write(FileClass::ValueSst, &bytes);
    let reader = bench.blobs.open(&blob, context(FileClass::ValueSst)).unwrap();
    let (stopped, _) = chunk(&blob, 1);
    bench.nodes.set_mood(stopped, NodeMood::Stopped);
    let begun_ns = bench.simulation.scheduler().now_ns();
    for _ in 0..100 {
        assert!(read_range(&*reader, CELL + 5, 100) == bytes[CELL + 5..CELL + 105]);
    }
    let took_ns = bench.simulation.scheduler().now_ns() - begun_ns;
    assert!(took_ns < 100 * 60_000_000, "{took_ns} ns");
}

#[test]
fn degraded_read_does_not_wait_for_a_stopped_node() {
    for stopped in 1..6 {
        let mut bench = Bench::new(6);
        let bytes = bench.bytes(2 * MIB);
        let blob = bench.write(FileClass::ValueSst, &bytes);
        let reader = bench.blobs.open(&blob, context(FileClass::ValueSst)).unwrap();
        bench.nodes.set_mood(chunk(&blob, 0).0, NodeMood::Dead);
        bench.nodes.set_mood(chunk(&blob, stopped).0, NodeMood::Stopped);
        for at in 0..20 {
            let begun_ns = bench.simulation.scheduler().now_ns();
            assert!(read_range(&*reader, at * 1000, 700) == bytes[at * 1000..at * 1000 + 700]);
            let took_ns = bench.simulation.scheduler().now_ns() - begun_ns;
            assert!(took_ns < 120_000_000, "without {stopped}: {took_ns} ns");
        }
    }
}

#[test]
fn outdated_hint_is_corrected_by_any_holder() {
    for (class, slots) in [(FileClass::Sst, 3), (FileClass::ValueSst, 6)] {
        let mut bench = Bench::new(9);
        let bytes = bench.bytes(2 * MIB);
        let blob = bench.write(class, &bytes);
        let free: Vec<StorageId> = {
            let known = hint(&blob).holders;
            let is_free = |id: &StorageId| known.iter().all(|holder| holder.storage != *id);
            bench.nodes.ids().into_iter().filter(is_free).collect()
        };
        // Repairs move three chunks, and one chunk stays with an old descriptor.
        let mut holders = hint(&blob).holders;
        for (at, target) in free.iter().take(3).enumerate() {
            let (node, id) = (holders[at].storage, chunk(&blob, at).1);
            let moved = bench.nodes.node(node, |node| node.chunks.remove(&id).unwrap());
            bench.nodes.node(*target, |node| node.chunks.insert(id, moved));
            holders[at].storage = *target;
        }
        let placement = PlacementEpoch { counter: 2, repairer: StorageId(5) };
        for holder in holders.iter().take(slots - 1) {
            bench.nodes.node(holder.storage, |node| {
                for chunk in node.chunks.values_mut() {
                    let descriptor = chunk.descriptor.as_mut().unwrap();
                    descriptor.placement = placement;
                    descriptor.holders.clone_from(&holders);
                }
            });
        }
        assert!(bench.read(&blob).unwrap() == bytes, "{class:?}");
        assert!(bench.blobs.stats().stale_hints > 0, "{class:?}");
        let none = BlobRef { hint: Vec::new(), ..blob.clone() };
        assert!(bench.read(&none).unwrap() == bytes, "{class:?}");
        let foreign = BlobRef { hint: encode_hint(none.id, &hint(&blob)), ..none };
        assert!(bench.read(&foreign).unwrap() == bytes, "{class:?}");
    }
}

#[test]
fn unreachable_nodes_make_a_read_busy_and_never_corrupt() {
    let timing = BlobTiming { read_give_up: Duration::from_secs(2), ..BlobTiming::default() };
    let mut bench = Bench::with(6, BlobsOptions { timing, ..BlobsOptions::default() });
    let bytes = bench.bytes(2 * MIB);
    let blob = bench.write(FileClass::ValueSst, &bytes);
    let dead: Vec<StorageId> = (0..3).map(|slot| chunk(&blob, slot).0).collect();
    bench.set_moods(&dead, NodeMood::Dead);
    let begun_ns = bench.simulation.scheduler().now_ns();
    let error = bench.read(&blob).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let took_ns = bench.simulation.scheduler().now_ns() - begun_ns;
    assert!((2_000_000_000..4_000_000_000).contains(&took_ns), "{took_ns} ns");
    bench.set_moods(&dead[..1], NodeMood::Works);
    assert!(bench.read(&blob).unwrap() == bytes, "four chunks suffice");
}

#[test]
fn node_that_returns_during_a_read_ends_its_wait() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(MIB);
    let blob = bench.write(FileClass::Sst, &bytes);
    let holders: Vec<StorageId> = (0..3).map(|slot| chunk(&blob, slot).0).collect();
    bench.set_moods(&holders, NodeMood::Dead);
    let (nodes, back) = (std::sync::Arc::clone(&bench.nodes), holders[1]);
    let scheduler = bench.simulation.scheduler();
    let sleep = scheduler.sleep(Duration::from_secs(3));
    let _ends_by_itself = scheduler.spawn("return", async move {
        sleep.await;
        nodes.set_mood(back, NodeMood::Works);
    });
    assert!(bench.read(&blob).unwrap() == bytes);
}
