//! Restarts after kills, power losses, closes and damage.

use std::path::Path;

use archipelago_env::FileSystem;
use archipelago_store::nodes::wire::{RefusalWhy, StoreMessage};

use super::super::format::{GROUP_HEADER_BYTES, HEADER_BYTES};
use super::Durability::{Synced, Written};
use super::{
    DEVICE, Machine, START, append, change_part, damaged, fence, inspect, progress, read, remove,
    replica, seal, stream, sync, why,
};

const SEEDS: u64 = 40;

#[test]
fn killed_node_has_all_answered_bytes_and_takes_more() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    append(&node, 1, 1200..1500, Written);
    let machine = machine.killed();
    let node = machine.open();
    assert_eq!(inspect(&node), replica(1500, 1500, None, false));
    assert_eq!(append(&node, 1, 1500..1600, Written), progress(1600, 1500));
    let machine = machine.killed();
    let node = machine.open();
    assert_eq!(inspect(&node), replica(1600, 1600, None, false));
    assert_eq!(sync(&node, 1), progress(1600, 1600));
    assert_eq!(read(&node, START..1600), Ok(stream(START..1600)), "over two files");
    assert_eq!(read(&node, 1450..1550), Ok(stream(1450..1550)));
}

#[test]
fn promise_survives_power_loss() {
    let machine = Machine::new();
    let node = machine.open();
    fence(&node, 7);
    for seed in 0..10 {
        let node = machine.without_power(seed).open();
        assert_eq!(why(&append(&node, 6, START..1200, Written)), Some(RefusalWhy::Fenced));
    }
}

#[test]
fn power_loss_puts_open_extents_into_limbo() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Synced);
    append(&node, 1, 1200..9000, Written);
    let mut ends = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let machine = machine.without_power(seed);
        let node = machine.open();
        let StoreMessage::ReplicaIs { valid_end, synced, sealed: None, is_in_limbo: true } =
            inspect(&node)
        else {
            panic!("seed {seed}: {:?}", inspect(&node));
        };
        assert!((1200..=9000).contains(&valid_end) && synced == valid_end, "seed {seed}");
        assert_eq!(read(&node, START..9000), Ok(stream(START..valid_end)));
        ends.insert(valid_end);
        assert_eq!(why(&append(&node, 1, valid_end..9001, Written)), Some(RefusalWhy::InLimbo));
        assert_eq!(why(&sync(&node, 1)), Some(RefusalWhy::InLimbo));
        let again = machine.killed().open();
        assert_eq!(inspect(&again), inspect(&node), "limbo survives a kill");
        let again = machine.without_power(seed + 1).open();
        assert_eq!(inspect(&again), inspect(&node), "found bytes survive power loss");
    }
    assert!(ends.contains(&1200) && ends.contains(&9000), "{ends:?}");
}

#[test]
fn first_answered_append_is_never_forgotten() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    for seed in 0..SEEDS {
        let node = machine.without_power(seed).open();
        let StoreMessage::ReplicaIs { valid_end, is_in_limbo: true, .. } = inspect(&node) else {
            panic!("seed {seed}: the node forgot the extent");
        };
        assert!(valid_end == START || valid_end == 1200, "seed {seed}: {valid_end}");
    }
}

#[test]
fn closed_node_is_not_in_limbo_after_power_loss() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    node.close().unwrap();
    assert!(why(&append(&node, 1, 1200..1300, Written)).is_some(), "a closed node takes nothing");
    drop(node);
    for seed in 0..10 {
        let node = machine.without_power(seed).open();
        assert_eq!(inspect(&node), replica(1200, 1200, None, false), "seed {seed}");
    }
}

#[test]
fn sealed_extent_survives_power_loss_without_limbo() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    append(&node, 1, 1200..1400, Written);
    seal(&node, 1, 1300);
    for seed in 0..10 {
        let node = machine.without_power(seed).open();
        assert_eq!(inspect(&node), replica(1300, 1300, Some(1300), false), "seed {seed}");
        assert_eq!(read(&node, START..1400), Ok(stream(START..1300)));
        assert_eq!(read(&node, 1250..1400), Ok(stream(1250..1300)));
    }
}

#[test]
fn removed_log_leaves_no_file_after_a_restart() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    remove(&node, 1);
    let machine = machine.killed();
    let node = machine.open();
    assert_eq!(inspect(&node), replica(0, 0, None, false));
    assert_eq!(machine.parts(), Vec::<String>::new());
}

#[test]
fn torn_group_of_a_killed_process_is_dropped() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    append(&node, 1, 1200..1400, Written);
    let machine = machine.killed();
    change_part(&machine, |bytes| bytes.truncate(bytes.len() - 1));
    assert_eq!(inspect(&machine.open()), replica(1200, 1200, None, false));
}

#[test]
fn damaged_group_puts_the_extent_into_limbo() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    append(&node, 1, 1200..1400, Written);
    let machine = machine.killed();
    change_part(&machine, |bytes| *bytes.last_mut().unwrap() ^= 1);
    assert_eq!(inspect(&machine.open()), replica(1200, 1200, None, true));
}

#[test]
fn rotten_length_of_a_group_is_no_torn_append() {
    let second = HEADER_BYTES + GROUP_HEADER_BYTES + (1200 - START) as usize;
    for (group, end) in [(HEADER_BYTES, START), (second, 1200)] {
        // The length exceeds the file.
        for (byte, mask) in [(1, 0x80), (2, 0x40)] {
            let machine = Machine::new();
            let node = machine.open();
            append(&node, 1, START..1200, Written);
            append(&node, 1, 1200..1400, Written);
            let machine = machine.killed();
            change_part(&machine, |bytes| bytes[group + byte] ^= mask);
            assert_eq!(inspect(&machine.open()), replica(end, end, None, true), "{group}+{byte}");
        }
    }
}

#[test]
fn missing_file_is_not_taken_for_an_empty_extent() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Synced);
    seal(&node, 1, 1200);
    let machine = machine.killed();
    machine.disk.remove(&Path::new(DEVICE).join("logs").join(&machine.parts()[0])).unwrap();
    assert_eq!(inspect(&machine.open()), damaged(START, Some(1200)));
}

#[test]
fn damage_of_a_sealed_extent_is_noticed_by_reads() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    append(&node, 1, 1200..1400, Written);
    seal(&node, 1, 1400);
    let machine = machine.killed();
    change_part(&machine, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let node = machine.open();
    assert_eq!(read(&node, START..1400), Ok(stream(START..1200)), "the sound prefix");
    assert_eq!(read(&node, 1200..1400), Err(RefusalWhy::Damaged));
    assert_eq!(node.report().counters.damaged, 2);
    assert_eq!(
        inspect(&node),
        StoreMessage::ReplicaDamaged { valid_end: 1200, synced: 1400, sealed: Some(1400) }
    );
}
