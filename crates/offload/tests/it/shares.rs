//! Two databases that share the memory of one node, in virtual time.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::Epoch;
use archipelago_engine::executor::OwnerIdentity;
use archipelago_engine::remote::{AwayError, ShardStore};
use archipelago_engine::stall::away_excess_bytes;
use archipelago_fabric::sim::Model;
use archipelago_offload::shard_owner::{OwnerParts, OwnerTerms, RemoteShards, Waits};
use archipelago_offload::wire::shard::DatabaseAccount;

use crate::away::{MIB, SECOND, Sample, World};

const NODE: u64 = 8 * MIB;
const BUSY: [u8; 16] = [9; 16];
const QUIET: [u8; 16] = [8; 16];

/// The store of another database over the nodes of a world.
fn beside(world: &World, guaranteed_bytes: u64) -> Arc<RemoteShards> {
    let host = world.simulation.host("quiet");
    let reach = world.network.join(&host, Model::quick());
    let landing_bytes = MIB / 2;
    let terms = OwnerTerms { landing_bytes, guaranteed_bytes, ..OwnerTerms::default() };
    let store = RemoteShards::new(OwnerParts {
        nodes: Arc::clone(&world.listed) as _,
        reach: Arc::new(reach),
        runtime: Arc::new(host),
        waits: Waits::InRuntime,
        terms,
    });
    store.owner_is(&OwnerIdentity { database: QUIET, epoch: Epoch(1), token: [1; 16] }).unwrap();
    store.purge();
    store
}

fn account(world: &World, db: [u8; 16]) -> DatabaseAccount {
    let accounts = world.nodes[0].figures().accounts;
    *accounts.iter().find(|account| account.db.0 == db).unwrap()
}

fn send(store: &RemoteShards, memtable: u64) -> Result<Sample, AwayError> {
    let sample = Sample::puts(memtable, 10, 20_000);
    store.send(&sample.shard(), &sample.bytes).map(|_| sample)
}

/// Sends shards until the node takes no more. Returns them, oldest first.
fn fill(store: &RemoteShards, first: u64) -> VecDeque<Sample> {
    let mut sent = VecDeque::new();
    while let Ok(sample) = send(store, first + sent.len() as u64) {
        sent.push_back(sample);
        assert!(sent.len() < 1000, "the node has eight mebibytes");
    }
    sent
}

/// Flushes the oldest shards as the engine would. Returns the bytes that went.
fn flush(store: &RemoteShards, sent: &mut VecDeque<Sample>) -> u64 {
    let room = store.room();
    let mut excess = away_excess_bytes(room.held_bytes, room.limit_bytes);
    let mut flushed = 0;
    while excess > 0
        && let Some(oldest) = sent.pop_front()
    {
        let bytes = oldest.bytes.len() as u64;
        store.release(&[oldest.id], oldest.id.memtable + 1);
        excess = excess.saturating_sub(bytes);
        flushed += bytes;
    }
    flushed
}

#[test]
fn borrowed_memory_goes_back_to_a_database_with_a_guarantee() {
    let world = World::new(21, 1, NODE);
    let mut sent = fill(&world.store, 1);
    assert!(account(&world, BUSY).used_bytes > NODE / 10 * 9, "it may borrow all");
    let quiet = beside(&world, NODE / 2);
    world.wait(2 * SECOND);
    // The first message of the second database is refused, because there is no room for a landing
    // zone. So the next answer makes the borrower give memory back.
    let mut flushed = 0;
    for _ in 0..20 {
        flushed += flush(&world.store, &mut sent);
        world.wait(SECOND / 2);
    }
    assert!(flushed > 0 && !sent.is_empty(), "{flushed} bytes were flushed");
    assert_eq!(quiet.figures().guaranteed_bytes, NODE / 2);
    let mut held = VecDeque::new();
    for memtable in 1..=60 {
        if let Ok(sample) = send(&quiet, memtable) {
            held.push_back(sample);
        }
        flush(&world.store, &mut sent);
        world.wait(SECOND / 2);
        if account(&world, QUIET).used_bytes + MIB > NODE / 2 {
            break;
        }
    }
    let (busy, lender) = (account(&world, BUSY), account(&world, QUIET));
    assert!(lender.used_bytes + MIB > NODE / 2, "{lender:?} beside {busy:?}");
    assert!(lender.used_bytes <= NODE / 2 + MIB && lender.borrowed_bytes <= MIB, "{lender:?}");
    assert!(busy.used_bytes + lender.used_bytes <= NODE);
    // No database lost a shard.
    assert_eq!(world.held(), (sent.len() + held.len()) as u64);
    for sample in sent.iter() {
        assert!(world.store.fetch(sample.id).is_ok());
    }
    for sample in held.iter() {
        assert!(quiet.fetch(sample.id).is_ok());
    }
}

#[test]
fn a_guarantee_that_does_not_fit_is_admitted_in_part() {
    let world = World::new(22, 1, NODE);
    let first = beside(&world, NODE / 4 * 3);
    world.wait(2 * SECOND);
    assert_eq!(first.figures().guaranteed_bytes, NODE / 4 * 3);
    assert_eq!(account(&world, BUSY).guaranteed_bytes, NODE / 4, "an equal part of what is left");
    assert_eq!(world.store.figures().guaranteed_bytes, NODE / 4);
    // A database without a guarantee uses the memory that no other database wants.
    let sent = fill(&world.store, 1);
    assert!(account(&world, BUSY).borrowed_bytes > 0);
    assert_eq!(world.held(), sent.len() as u64);
}

#[test]
fn owner_learns_that_another_database_shares_its_node() {
    let world = World::new(23, 1, NODE);
    assert!(send(&world.store, 1).is_ok());
    world.wait(2 * SECOND);
    assert!(!world.store.room().is_shared);
    let second = beside(&world, 0);
    world.wait(2 * SECOND);
    assert!(world.store.room().is_shared);
    assert!(!second.room().is_shared, "it has nothing to give back");
    // A database without shards counts for ten seconds after its owner has closed.
    second.close();
    world.wait(15 * SECOND);
    assert!(!world.store.room().is_shared);
}
