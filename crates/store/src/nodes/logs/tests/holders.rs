//! Idle logs whose nodes drain, are lost or return, and logs for which a domain was missing.

use std::time::Duration;

use archipelago_env::FileClass;

use super::super::super::StorageId;
use super::super::super::wire::{ExtentAt, StoreMessage};
use super::model::Health;
use super::{MS, NodeLogOptions, NodeLogs, VOLUME, World, append, log, pattern, quick};
use crate::log::{LogStore, LogWriter};

/// Lets time pass without a caller of the log. The owner's thread keeps layouts meanwhile.
fn rest(world: &World, store: &NodeLogs, seconds: u64) {
    for _ in 0..seconds {
        world.sleep(1000);
        store.keep_layouts(VOLUME);
    }
}

/// Number of replicas of an extent that are sealed.
fn sealed_copies(world: &World, extent: u32) -> usize {
    let holders = world.pool.holders(ExtentAt { log: log(1), extent });
    holders.iter().filter(|(_, _, is_sealed)| *is_sealed).count()
}

/// A log of 1,000 bytes on nodes of its own choice.
fn idle_log(world: &World, store: &NodeLogs, class: FileClass) -> Box<dyn LogWriter> {
    let mut writer = world.create(store, log(1), class);
    append(&mut *writer, 1000).expect("acknowledged");
    writer
}

/// Appends, and recovers everything in another process.
fn check(world: &World, writer: &mut dyn LogWriter, class: FileClass) {
    append(writer, 500).expect("acknowledged");
    let end = writer.len_bytes();
    let (_, bytes) = world.recover(log(1), class, 2).expect("recovered");
    assert!(bytes == pattern(0..end), "{} of {end} bytes", bytes.len());
}

#[test]
fn idle_log_gets_a_third_node_when_a_domain_returns() {
    for class in [FileClass::Wal, FileClass::Manifest] {
        let world = World::new(30, 3);
        let away = StorageId(3);
        world.pool.forget(away);
        let store = world.store(quick());
        let mut writer = idle_log(&world, &store, class);
        assert_eq!(world.ensemble(log(1)).len(), 2);
        rest(&world, &store, 10);
        assert_eq!(world.kept(log(1)).layout.extents.len(), 1, "no domain has returned");
        world.pool.remember(away);
        rest(&world, &store, 10);
        let extents = world.kept(log(1)).layout.extents;
        assert_eq!(extents.len(), 2, "{extents:?}");
        assert_eq!((extents[0].end, extents[1].nodes.len()), (Some(1000), 3));
        assert!(extents[0].is_sealed, "repairs copy sealed extents");
        assert_eq!(sealed_copies(&world, 1), 2);
        rest(&world, &store, 60);
        assert_eq!(world.kept(log(1)).layout.extents.len(), 2, "it stays there");
        check(&world, &mut *writer, class);
    }
}

#[test]
fn idle_log_leaves_nodes_that_drain() {
    for class in [FileClass::Wal, FileClass::Manifest] {
        for bytes in [0, 1000] {
            let world = World::new(31, 5);
            let store = world.store(quick());
            let mut writer = world.create(&store, log(1), class);
            if bytes > 0 {
                append(&mut *writer, bytes).expect("acknowledged");
            }
            for _ in 0..2 {
                let leaving = world.ensemble(log(1))[1];
                world.pool.drain(leaving);
                rest(&world, &store, 30);
                assert!(!world.ensemble(log(1)).contains(&leaving), "{class:?}, {bytes} bytes");
                assert_eq!(world.pool.open_extents(leaving), 0, "{class:?}, {bytes} bytes");
            }
            assert_eq!(world.ensemble(log(1)).len(), 3);
            check(&world, &mut *writer, class);
        }
    }
}

#[test]
fn idle_log_leaves_a_lost_node() {
    let world = World::new(32, 4);
    let store = world.store(quick());
    let mut writer = idle_log(&world, &store, FileClass::Wal);
    let lost = world.ensemble(log(1))[0];
    world.pool.set_health(lost, Health::Down);
    world.pool.forget(lost);
    rest(&world, &store, 20);
    assert!(world.ensemble(log(1)).contains(&lost), "it is silent, and may return");
    world.pool.lose(lost);
    rest(&world, &store, 20);
    let extents = world.kept(log(1)).layout.extents;
    assert!(extents.iter().all(|extent| !extent.nodes.contains(&lost)), "{extents:?}");
    assert_eq!(sealed_copies(&world, 1), 3, "a repair has made the third copy");
    check(&world, &mut *writer, FileClass::Wal);
}

#[test]
fn log_stays_where_the_pool_has_too_few_other_nodes() {
    let world = World::new(33, 2);
    let store = world.store(quick());
    let mut writer = idle_log(&world, &store, FileClass::Wal);
    world.pool.drain(world.ensemble(log(1))[0]);
    rest(&world, &store, 60);
    assert_eq!(world.kept(log(1)).layout.extents.len(), 1);
    check(&world, &mut *writer, FileClass::Wal);
}

#[test]
fn idle_log_outlives_a_repair_without_a_node() {
    let world = World::new(34, 3);
    let store = world.store(quick());
    let mut writer = idle_log(&world, &store, FileClass::Wal);
    world.pool.lose(world.ensemble(log(1))[2]);
    // The repair of the ended extent finds no third domain for longer than a log may stall.
    rest(&world, &store, 60);
    assert_eq!(world.ensemble(log(1)).len(), 2);
    append(&mut *writer, 500).expect("the log has two nodes");
}

#[test]
fn replica_of_a_node_that_failed_is_sealed_when_the_node_returns() {
    // The node keeps its bytes, or loses the last ones in a power loss.
    for loses_power in [false, true] {
        let world = World::new(35, 5);
        let store = world.store(quick());
        let mut writer = idle_log(&world, &store, FileClass::Wal);
        let failed = world.ensemble(log(1))[1];
        world.sleep(100);
        world.pool.set_health(failed, Health::Down);
        world.pool.forget(failed);
        append(&mut *writer, 1000).expect("acknowledged");
        rest(&world, &store, 20);
        assert!(world.kept(log(1)).layout.extents.iter().all(|it| !it.nodes.contains(&failed)));
        assert_eq!(world.pool.open_extents(failed), 1, "it was not there to be sealed");
        if loses_power {
            world.pool.lose_power(failed);
        }
        world.pool.set_health(failed, Health::Up);
        world.pool.remember(failed);
        rest(&world, &store, 20);
        assert_eq!(world.pool.open_extents(failed), 0, "power loss: {loses_power}");
        check(&world, &mut *writer, FileClass::Wal);
    }
}

#[test]
fn replica_without_bytes_on_a_node_that_failed_is_sealed_when_the_node_returns() {
    let world = World::new(37, 5);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Manifest);
    let failed = world.ensemble(log(1))[1];
    world.pool.set_health(failed, Health::Down);
    world.pool.forget(failed);
    // All replicas acknowledge a manifest, so the first extent ends without a byte.
    append(&mut *writer, 1000).expect("acknowledged");
    rest(&world, &store, 20);
    assert!(world.kept(log(1)).layout.extents.iter().all(|extent| extent.number > 1));
    assert_eq!(world.pool.open_extents(failed), 1, "it was not there to be sealed");
    world.pool.set_health(failed, Health::Up);
    world.pool.remember(failed);
    rest(&world, &store, 20);
    assert_eq!(world.pool.open_extents(failed), 0);
    check(&world, &mut *writer, FileClass::Manifest);
}

#[test]
fn seal_of_a_replica_without_bytes_is_tried_again() {
    let world = World::new(38, 5);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    let nodes = world.ensemble(log(1));
    let (leaving, silent) = (nodes[0], nodes[1]);
    world.pool.set_health(silent, Health::Down);
    world.pool.drain(leaving);
    rest(&world, &store, 20);
    assert_eq!(world.pool.open_extents(leaving), 0);
    assert_eq!(world.pool.open_extents(silent), 1, "it does not answer");
    world.pool.set_health(silent, Health::Up);
    rest(&world, &store, 20);
    assert_eq!(world.pool.open_extents(silent), 0);
    check(&world, &mut *writer, FileClass::Wal);
}

#[test]
fn node_that_refuses_a_seal_takes_new_logs() {
    let world = World::new(39, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Manifest);
    let failed = world.ensemble(log(1))[1];
    world.pool.set_health(failed, Health::Down);
    world.pool.forget(failed);
    append(&mut *writer, 1000).expect("acknowledged");
    rest(&world, &store, 20);
    world.pool.set_health(failed, Health::RefusingSeals);
    world.pool.remember(failed);
    for number in 2..12 {
        rest(&world, &store, 1);
        let _new = world.create(&store, log(number), FileClass::Wal);
        assert_eq!(world.ensemble(log(number)).len(), 3, "log {number}");
    }
    let received = world.pool.received(failed);
    let seals = received.iter().filter(|it| matches!(it, StoreMessage::SealLog { .. })).count();
    assert!(seals > 1, "the seal is tried again");
}

#[test]
fn unreachable_node_costs_a_busy_log_few_extents() {
    let world = World::new(36, 3);
    let store = world.store(NodeLogOptions { look_every: Duration::from_secs(1), ..quick() });
    let mut writer = idle_log(&world, &store, FileClass::Wal);
    // The manager gets beats of the node, and this process does not reach it.
    world.pool.set_health(world.ensemble(log(1))[2], Health::Down);
    let started_ns = world.now_ns();
    while world.now_ns() < started_ns + 300_000 * MS {
        append(&mut *writer, 100).expect("two nodes answer");
        world.sleep(200);
    }
    let extents = world.kept(log(1)).layout.extents.len();
    assert!(extents < 40, "{extents} extents in five minutes");
}
