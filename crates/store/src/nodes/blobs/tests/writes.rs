//! Writes: redundancy, losses at every step, replacements, epochs, network bytes.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::FileClass;

use super::super::super::StorageId;
use super::super::super::client::StoreEvent;
use super::super::super::layout::{CellSize, RedundancyMode, Scheme};
use super::super::super::wire::{BlobHint, Stamp};
use super::super::hint::decode_hint;
use super::super::{BlobSabotage, BlobTiming, BlobsOptions};
use super::fake::NodeMood;
use super::{Bench, MIB, VOLUME, options};
use crate::blob::{BlobRef, BlobStore};

fn hint(blob: &BlobRef) -> BlobHint {
    decode_hint(blob.id, &blob.hint).unwrap()
}

fn holders(blob: &BlobRef) -> Vec<StorageId> {
    hint(blob).holders.iter().map(|holder| holder.storage).collect()
}

/// All pairs of nodes.
fn pairs(nodes: &[StorageId]) -> Vec<[StorageId; 2]> {
    let pair = |(at, first): (usize, &StorageId)| {
        nodes[at + 1..].iter().map(|second| [*first, *second]).collect::<Vec<_>>()
    };
    nodes.iter().enumerate().flat_map(pair).collect()
}

/// Checks that the blob is read back after the loss of every pair of its nodes.
fn assert_survives_pairs(bench: &Bench, blob: &BlobRef, bytes: &[u8]) -> usize {
    let pairs = pairs(&holders(blob));
    for pair in &pairs {
        bench.set_moods(pair, NodeMood::Dead);
        assert!(bench.read(blob).unwrap() == bytes, "without {pair:?}");
        bench.set_moods(pair, NodeMood::Works);
    }
    pairs.len()
}

#[test]
fn class_and_length_decide_the_scheme() {
    let mut bench = Bench::new(6);
    let cases = [
        (FileClass::Sst, 3 * MIB, 0, Scheme::Replicas(3)),
        (FileClass::ValueSst, MIB - 1, 0, Scheme::Replicas(3)),
        (FileClass::ValueSst, MIB - 1, 2 * MIB, Scheme::Replicas(3)),
        (FileClass::ValueSst, MIB, 0, Scheme::Rs42(CellSize::Small)),
        (FileClass::ValueSst, 2 * MIB, 64 * MIB, Scheme::Rs42(CellSize::Small)),
        (FileClass::ValueSst, 5 * MIB, 64 * MIB, Scheme::Rs42(CellSize::Large)),
        (FileClass::ValueSst, 100, 100, Scheme::Replicas(3)),
    ];
    for (class, len, size_hint, scheme) in cases {
        let bytes = bench.bytes(len);
        let mut writer = bench.begin(class, size_hint);
        bytes.chunks(333_333).for_each(|piece| writer.append(piece).unwrap());
        let blob = writer.seal().unwrap();
        assert_eq!(hint(&blob).scheme, scheme, "{class:?} of {len} bytes");
        assert!(bench.read(&blob).unwrap() == bytes, "{class:?} of {len} bytes");
    }
    assert_eq!(bench.event(StoreEvent::CodingDebt) + bench.event(StoreEvent::CopyDebt), 0);
}

#[test]
fn mode_changes_the_scheme_of_classes() {
    for (mode, class, is_coded) in [
        (RedundancyMode::AllReplicated, FileClass::ValueSst, false),
        (RedundancyMode::AllCoded, FileClass::Sst, true),
        (RedundancyMode::AllCoded, FileClass::ValueSst, true),
        (RedundancyMode::AllCoded, FileClass::Manifest, false),
    ] {
        let mut bench = Bench::with(6, BlobsOptions { mode, ..BlobsOptions::default() });
        let bytes = bench.bytes(2 * MIB);
        let blob = bench.write(class, &bytes);
        assert_eq!(matches!(hint(&blob).scheme, Scheme::Rs42(_)), is_coded, "{mode:?} {class:?}");
        let redundancy = bench.blobs.redundancy(class);
        assert!((redundancy - if is_coded { 1.5 } else { 3.0 }).abs() < 1e-9);
    }
}

#[test]
fn sealed_blob_survives_every_pair_of_lost_nodes() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(2 * MIB + 300_001);
    let table = bench.write(FileClass::Sst, &bytes);
    assert_eq!(assert_survives_pairs(&bench, &table, &bytes), 3);
    // The client forgets that it could not reach nodes.
    bench.simulation.scheduler().run_for(Duration::from_secs(10));
    let values = bench.write(FileClass::ValueSst, &bytes);
    assert_eq!(assert_survives_pairs(&bench, &values, &bytes), 15);
}

/// Writes a blob, during which the node with this number in its placement changes its mood at each
/// of its writes and at its seal. Returns the number of such runs.
fn runs_with_a_failure(class: FileClass, mood: NodeMood, slot: usize) -> u64 {
    let mut at = 0;
    loop {
        let timing = BlobTiming { write_deadline: Duration::from_secs(1), ..BlobTiming::default() };
        let mut bench = Bench::with(8, BlobsOptions { timing, ..BlobsOptions::default() });
        let bytes = bench.bytes(3 * MIB + 70_000);
        // The same bench without a failure chooses the same nodes.
        let node = {
            let mut twin = Bench::with(8, BlobsOptions { timing, ..BlobsOptions::default() });
            let bytes = twin.bytes(3 * MIB + 70_000);
            holders(&twin.write(class, &bytes))[slot]
        };
        bench.nodes.node(node, |node| node.changes_at = Some((at, mood)));
        let blob = bench.write(class, &bytes);
        let has_failed = bench.nodes.node(node, |node| node.mood == mood);
        if !has_failed {
            return at;
        }
        let chosen = holders(&blob);
        assert!(!chosen.contains(&node), "{class:?}: {mood:?} at write {at}");
        assert_eq!(bench.event(StoreEvent::ReplacedNode), 1, "{class:?}: {mood:?} at write {at}");
        assert_survives_pairs(&bench, &blob, &bytes);
        at += 1;
    }
}

#[test]
fn node_that_fails_at_any_step_is_replaced() {
    for mood in [NodeMood::Dead, NodeMood::Full] {
        // Four pieces of a replica and a seal; four cells of a chunk and a seal.
        assert_eq!(runs_with_a_failure(FileClass::Sst, mood, 1), 5);
        for slot in [1, 5] {
            assert!(runs_with_a_failure(FileClass::ValueSst, mood, slot) >= 4);
        }
    }
}

#[test]
fn stopped_node_is_replaced_at_any_step() {
    assert_eq!(runs_with_a_failure(FileClass::Sst, NodeMood::Stopped, 0), 5);
    assert!(runs_with_a_failure(FileClass::ValueSst, NodeMood::Stopped, 2) >= 4);
}

#[test]
fn steps_that_are_lost_with_a_link_are_sent_again() {
    for class in [FileClass::Sst, FileClass::ValueSst] {
        for lost in 1..=3 {
            // No other node could take a slot.
            let mut bench = Bench::new(if class == FileClass::Sst { 3 } else { 6 });
            let bytes = bench.bytes(6 * MIB);
            for id in bench.nodes.ids() {
                bench.nodes.node(id, |node| node.loses = lost);
            }
            let blob = bench.write(class, &bytes);
            assert!(bench.read(&blob).unwrap() == bytes, "{class:?}: {lost} calls are lost");
            assert_eq!(bench.event(StoreEvent::ReplacedNode), 0, "{class:?}: {lost} calls");
            assert!(bench.event(StoreEvent::Retry) > 0, "{class:?}: {lost} calls");
        }
    }
}

#[test]
fn overloaded_node_is_waited_for_and_replaced_at_last() {
    for (seconds, replaced) in [(4, 0), (30, 1)] {
        let mut bench = Bench::new(8);
        let bytes = bench.bytes(6 * MIB);
        let mut writer = bench.begin(FileClass::Sst, 0);
        writer.append(&bytes[..2 * MIB]).unwrap();
        let is_holder = |id: &StorageId| bench.nodes.node(*id, |node| !node.chunks.is_empty());
        let busy = bench.nodes.ids().into_iter().find(is_holder).unwrap();
        bench.nodes.set_mood(busy, NodeMood::Overloaded);
        let (nodes, scheduler) = (Arc::clone(&bench.nodes), bench.simulation.scheduler());
        let sleep = scheduler.sleep(Duration::from_secs(seconds));
        let _ends_by_itself = scheduler.spawn("relief", async move {
            sleep.await;
            nodes.set_mood(busy, NodeMood::Works);
        });
        writer.append(&bytes[2 * MIB..]).unwrap();
        let blob = writer.seal().unwrap();
        assert!(bench.read(&blob).unwrap() == bytes);
        assert_eq!(bench.event(StoreEvent::ReplacedNode), replaced, "{seconds} s");
    }
}

#[test]
fn slow_node_is_replaced_and_its_chunk_rebuilt() {
    for class in [FileClass::Sst, FileClass::ValueSst] {
        let timing = BlobTiming { slow_min: Duration::from_millis(5), ..BlobTiming::default() };
        let mut bench = Bench::with(8, BlobsOptions { timing, ..BlobsOptions::default() });
        let bytes = bench.bytes(24 * MIB);
        let mut writer = bench.begin(class, 0);
        writer.append(&bytes[..20 * MIB]).unwrap();
        let slow = bench
            .nodes
            .ids()
            .into_iter()
            .find(|id| bench.nodes.node(*id, |node| !node.chunks.is_empty()));
        let slow = slow.unwrap();
        bench.nodes.node(slow, |node| node.delay = Duration::from_secs(3));
        let begun_ns = bench.simulation.scheduler().now_ns();
        writer.append(&bytes[20 * MIB..]).unwrap();
        let blob = writer.seal().unwrap();
        let took_ns = bench.simulation.scheduler().now_ns() - begun_ns;
        assert!(took_ns < 1_000_000_000, "the writer waited {took_ns} ns for the slow node");
        assert!(!holders(&blob).contains(&slow));
        assert_eq!(bench.event(StoreEvent::ReplacedNode), 1);
        assert!(bench.blobs.stats().rebuilt_bytes >= 4 * MIB as u64);
        assert_survives_pairs(&bench, &blob, &bytes);
    }
}

#[test]
fn slow_node_that_no_other_can_replace_is_waited_for() {
    let timing = BlobTiming { slow_min: Duration::from_millis(5), ..BlobTiming::default() };
    for (slow_from, nodes) in [(20 * MIB, 6), (24 * MIB, 6), (20 * MIB, 7), (24 * MIB, 7)] {
        let mut bench = Bench::with(nodes, BlobsOptions { timing, ..BlobsOptions::default() });
        let bytes = bench.bytes(24 * MIB);
        let mut writer = bench.begin(FileClass::ValueSst, 0);
        writer.append(&bytes[..slow_from]).unwrap();
        let is_holder = |id: &StorageId| bench.nodes.node(*id, |node| !node.chunks.is_empty());
        let slow: Vec<_> = bench.nodes.ids().into_iter().filter(is_holder).take(2).collect();
        for id in &slow {
            bench.nodes.node(*id, |node| node.delay = Duration::from_secs(3));
        }
        writer.append(&bytes[slow_from..]).unwrap();
        let blob = writer.seal().unwrap();
        let kept = holders(&blob).iter().filter(|id| slow.contains(id)).count();
        let replaced = bench.event(StoreEvent::ReplacedNode);
        assert_eq!((kept, replaced), if nodes == 6 { (2, 0) } else { (1, 1) }, "{nodes} nodes");
        assert!(bench.read(&blob).unwrap() == bytes);
    }
}

#[test]
fn nodes_that_are_slow_together_are_kept() {
    let timing = BlobTiming { slow_min: Duration::from_millis(5), ..BlobTiming::default() };
    let mut bench = Bench::with(8, BlobsOptions { timing, ..BlobsOptions::default() });
    let bytes = bench.bytes(20 * MIB);
    let mut writer = bench.begin(FileClass::Sst, 0);
    writer.append(&bytes[..12 * MIB]).unwrap();
    for id in bench.nodes.ids() {
        bench.nodes.node(id, |node| node.delay = Duration::from_millis(200));
    }
    writer.append(&bytes[12 * MIB..]).unwrap();
    writer.seal().unwrap();
    assert_eq!(bench.event(StoreEvent::ReplacedNode), 0);
}

#[test]
fn stripe_needs_six_nodes_and_replicas_go_on_with_two() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(3 * MIB);
    bench.nodes.node(StorageId(4), |node| node.changes_at = Some((1, NodeMood::Dead)));
    let mut writer = bench.begin(FileClass::ValueSst, 0);
    let outcome = writer.append(&bytes).and_then(|()| writer.seal());
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(writer.append(b"more").is_err(), "a writer that failed takes no bytes");
    assert_eq!(bench.blobs.stats().given_up, 1);
    // The next one finds five domains.
    let blob = bench.write(FileClass::ValueSst, &bytes);
    assert_eq!(hint(&blob).scheme, Scheme::Replicas(3));
    assert_eq!(bench.event(StoreEvent::CodingDebt), 1);

    let mut bench = Bench::new(3);
    bench.nodes.node(StorageId(2), |node| node.changes_at = Some((1, NodeMood::Dead)));
    let blob = bench.write(FileClass::Sst, &bytes);
    assert_eq!(holders(&blob).len(), 2);
    assert_eq!(bench.event(StoreEvent::CopyDebt), 1);
    assert!(bench.read(&blob).unwrap() == bytes);
}

#[test]
fn fewer_domains_weaken_the_redundancy_and_are_counted() {
    let redundancy = [(5, 3, 3.0), (3, 3, 3.0), (2, 2, 2.0)];
    for (nodes, copies, factor) in redundancy {
        let mut bench = Bench::new(nodes);
        let bytes = bench.bytes(2 * MIB);
        let blob = bench.write(FileClass::ValueSst, &bytes);
        assert_eq!(holders(&blob).len(), copies, "{nodes} domains");
        let debts = bench.event(StoreEvent::CodingDebt) + bench.event(StoreEvent::CopyDebt);
        assert_eq!(debts, 1, "{nodes} domains");
        assert!((bench.blobs.redundancy(FileClass::ValueSst) - factor).abs() < 1e-9);
        assert!(bench.read(&blob).unwrap() == bytes);
    }
    let mut bench = Bench::new(1);
    let outcome = bench.begin(FileClass::Sst, 0).seal();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Busy, "one copy is refused");
    let trial = BlobsOptions { copies_min: 1, ..BlobsOptions::default() };
    let mut bench = Bench::with(1, trial);
    let blob = bench.write(FileClass::Sst, b"a trial on one node");
    assert_eq!(bench.read(&blob).unwrap(), b"a trial on one node");
}

/// Whether all chunks of the blob say that RS(4,2) was wanted.
fn is_coding_due(bench: &Bench, blob: &BlobRef) -> bool {
    let says = |node: &StorageId| {
        bench.nodes.node(*node, |node| {
            let (_, chunk) = node.chunks.iter().find(|(id, _)| id.blob == blob.id).unwrap();
            chunk.descriptor.as_ref().unwrap().is_coding_due
        })
    };
    let says: Vec<bool> = holders(blob).iter().map(says).collect();
    assert!(says.iter().all(|it| *it == says[0]), "{says:?}");
    says[0]
}

#[test]
fn chunks_say_that_a_code_is_due_only_if_one_was_wanted() {
    for nodes in [2, 3, 5, 6] {
        for (class, len) in
            [(FileClass::ValueSst, 2 * MIB), (FileClass::ValueSst, MIB / 2), (FileClass::Sst, MIB)]
        {
            let mut bench = Bench::new(nodes);
            let bytes = bench.bytes(len);
            let blob = bench.write(class, &bytes);
            let wanted = class == FileClass::ValueSst && len > MIB;
            assert_eq!(is_coding_due(&bench, &blob), wanted && nodes < 6, "{nodes}, {class:?}");
        }
    }
    let mode = RedundancyMode::AllReplicated;
    let mut bench = Bench::with(3, BlobsOptions { mode, ..BlobsOptions::default() });
    let bytes = bench.bytes(2 * MIB);
    let blob = bench.write(FileClass::ValueSst, &bytes);
    assert!(!is_coding_due(&bench, &blob), "three replicas are wanted");
}

#[test]
fn full_node_that_nothing_replaces_ends_a_writer_for_want_of_room() {
    // The reports say that all nodes have room, which a node may refuse at any time.
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(3 * MIB);
    bench.nodes.node(StorageId(4), |node| node.changes_at = Some((1, NodeMood::Full)));
    let mut writer = bench.begin(FileClass::ValueSst, 0);
    let error = writer.append(&bytes).and_then(|()| writer.seal()).unwrap_err();
    assert!(error.is_no_space(), "{error:?}");
    let mut bench = Bench::new(2);
    for id in [1, 2] {
        bench.nodes.node(StorageId(id), |node| node.changes_at = Some((1, NodeMood::Full)));
    }
    let mut writer = bench.begin(FileClass::Sst, 0);
    let error = writer.append(&bytes).and_then(|()| writer.seal()).unwrap_err();
    assert!(error.is_no_space(), "{error:?}");
}

#[test]
fn fence_ends_a_writer_at_its_next_step() {
    for class in [FileClass::Sst, FileClass::ValueSst] {
        let mut bench = Bench::new(6);
        let bytes = bench.bytes(8 * MIB);
        let mut writer = bench.begin(class, 0);
        writer.append(&bytes[..2 * MIB]).unwrap();
        bench.blobs.release_strays(VOLUME, Epoch(2), &|_| true).unwrap();
        let outcome = writer.append(&bytes).and_then(|()| writer.seal());
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Fenced, "{class:?}");
        assert_eq!(bench.event(StoreEvent::ReplacedNode), 0, "a fence is no failure of a node");
    }
}

#[test]
fn writer_sends_nothing_after_the_release_of_its_blob() {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(3 * MIB);
    let id = bench.id();
    let mut writer = bench.blobs.create(id, options(FileClass::Sst, 0)).unwrap();
    writer.append(&bytes).unwrap();
    assert_eq!(bench.nodes.holders(id).len(), 3);
    bench.blobs.release(id, VOLUME, Epoch(1)).unwrap();
    assert!(writer.append(&bytes).is_err());
    drop(writer);
    bench.simulation.scheduler().run_for(Duration::from_secs(30));
    assert!(bench.nodes.holders(id).is_empty(), "a stray chunk stays for ever");
}

#[test]
fn replaced_node_drops_its_chunk() {
    let mut bench = Bench::new(8);
    let bytes = bench.bytes(3 * MIB);
    let node = holders(&{
        let mut twin = Bench::new(8);
        let bytes = twin.bytes(3 * MIB);
        twin.write(FileClass::Sst, &bytes)
    })[0];
    bench.nodes.node(node, |node| node.changes_at = Some((2, NodeMood::Full)));
    let blob = bench.write(FileClass::Sst, &bytes);
    bench.simulation.scheduler().run_for(Duration::from_secs(30));
    assert_eq!(bench.nodes.holders(blob.id).len(), 3);
}

/// Bytes that the card sends for each byte of a blob.
fn sent_per_byte(class: FileClass) -> f64 {
    let mut bench = Bench::new(6);
    let bytes = bench.bytes(64 * MIB);
    let before = bench.nodes.traffic().0;
    bench.write(class, &bytes);
    (bench.nodes.traffic().0 - before) as f64 / bytes.len() as f64
}

#[test]
fn network_bytes_are_those_of_the_scheme() {
    let replicated = sent_per_byte(FileClass::Sst);
    assert!((3.0..3.0 * 1.01).contains(&replicated), "{replicated} bytes per byte");
    let coded = sent_per_byte(FileClass::ValueSst);
    assert!((1.5..1.5 * 1.01).contains(&coded), "{coded} bytes per byte");
}

#[test]
fn card_is_never_idle_while_a_blob_is_written() {
    for (class, factor) in [(FileClass::Sst, 3.0), (FileClass::ValueSst, 1.5)] {
        let mut bench = Bench::new(6);
        // 125 MB/s and a round trip of 2 ms.
        bench.nodes.limit_card(125_000_000);
        for id in bench.nodes.ids() {
            bench.nodes.node(id, |node| node.delay = Duration::from_millis(2));
        }
        let bytes = bench.bytes(48 * MIB);
        let begun_ns = bench.simulation.scheduler().now_ns();
        bench.write(class, &bytes);
        let took_s = (bench.simulation.scheduler().now_ns() - begun_ns) as f64 / 1e9;
        let least_s = bytes.len() as f64 * factor / 125e6;
        assert!(took_s < least_s * 1.03 + 0.01, "{class:?}: {took_s} s instead of {least_s} s");
    }
}

#[test]
fn memory_of_a_writer_is_charged_and_bounded() {
    for class in [FileClass::Sst, FileClass::ValueSst] {
        let budget = ByteBudget::unlimited();
        let options = BlobsOptions { budget: Arc::clone(&budget), ..BlobsOptions::default() };
        let mut bench = Bench::with(6, options);
        bench.nodes.limit_card(125_000_000);
        let bytes = bench.bytes(20 * MIB);
        let mut writer = bench.begin(class, 0);
        let mut most = 0;
        for piece in bytes.chunks(100_000) {
            writer.append(piece).unwrap();
            most = most.max(budget.used_bytes(MemoryClass::Job));
        }
        assert!((MIB as u64..8 * MIB as u64).contains(&most), "{class:?}: {most} bytes");
        writer.seal().unwrap();
        assert_eq!(budget.used_bytes(MemoryClass::Job), 0, "{class:?}");
    }
}

/// Whether a blob survives the death of every node but one directly after its seal.
fn is_durable_after_seal(sabotage: BlobSabotage) -> bool {
    let mut bench = Bench::with(3, BlobsOptions { sabotage, ..BlobsOptions::default() });
    let bytes = bench.bytes(MIB / 2);
    let blob = bench.write(FileClass::Sst, &bytes);
    // The nodes restart, so that chunks without a seal are gone.
    for id in bench.nodes.ids() {
        bench.set_moods(&[id], NodeMood::Dead);
        bench.set_moods(&[id], NodeMood::Works);
    }
    bench.nodes.ids().into_iter().all(|survivor| {
        let mut others = bench.nodes.ids();
        others.retain(|id| *id != survivor);
        bench.set_moods(&others, NodeMood::Dead);
        let read = bench.read(&blob);
        bench.set_moods(&others, NodeMood::Works);
        read.is_ok_and(|read| read == bytes)
    })
}

#[test]
fn seal_before_all_chunks_are_durable_is_noticed() {
    assert!(is_durable_after_seal(BlobSabotage::default()));
    assert!(!is_durable_after_seal(BlobSabotage { early_seal: true, ..BlobSabotage::default() }));
}

#[test]
fn seal_lists_the_final_holders_on_every_node() {
    let mut bench = Bench::new(8);
    let bytes = bench.bytes(3 * MIB);
    let twin = {
        let mut twin = Bench::new(8);
        let bytes = twin.bytes(3 * MIB);
        holders(&twin.write(FileClass::ValueSst, &bytes))
    };
    // The seal is the fourth write of the node; the others are sealed in the first round.
    bench.nodes.node(twin[1], |node| node.changes_at = Some((3, NodeMood::Full)));
    let blob = bench.write(FileClass::ValueSst, &bytes);
    let chosen = hint(&blob);
    assert_eq!(chosen.placement.counter, 2);
    for holder in &chosen.holders {
        let descriptors = bench.nodes.node(holder.storage, |node| {
            node.chunks.values().map(|chunk| chunk.descriptor.clone().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(descriptors.len(), 1);
        let descriptor = &descriptors[0];
        assert_eq!((descriptor.hint(), descriptor.chunk.index), (chosen.clone(), holder.chunk));
        assert_eq!(descriptor.written, Stamp { volume: VOLUME, epoch: Epoch(1) });
        assert_eq!(descriptor.retaining, [VOLUME]);
    }
}
