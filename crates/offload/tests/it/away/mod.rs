//! An owner's shards at memory nodes in virtual time: the store of the engine's seam over simulated
//! links, against real shard hosts.
//!
//! | module | concept |
//! | --- | --- |
//! | `world` | an owner, its memory nodes, and the links between them |
//! | `sample` | shards as the owner has them, and what a search must find in them |
//! | `reads` | look-ups and scans, compared with searches of the images |

mod reads;
mod sample;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use archipelago_base::SeqNo;
use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use archipelago_engine::key::{KeyRange, Kind};
use archipelago_engine::memtable::{Shard, SlabPool};
use archipelago_engine::remote::{AwayError, LookupAsk, ShardId, ShardStore, StoreNode};
use archipelago_fabric::sim::Faults;

pub(crate) use reads::{ask, lookup_one, reads_are_right};
pub(crate) use sample::{Sample, expected, key_of, samples, versions};
pub(crate) use world::{MIB, SECOND, World};

/// Sends samples, and returns them by node, newest first.
fn send_all<'a>(world: &World, samples: &'a [Sample]) -> BTreeMap<StoreNode, Vec<&'a Sample>> {
    let mut by_node: BTreeMap<StoreNode, Vec<&Sample>> = BTreeMap::new();
    for sample in samples.iter().rev() {
        by_node.entry(world.send(sample).unwrap()).or_default().push(sample);
    }
    by_node
}

#[test]
fn reads_of_shards_away_are_those_of_their_images() {
    for seed in 0..6 {
        let mut rng = Rng::with_seed(seed);
        let world = World::new(seed, 1, 16 * MIB);
        let all = samples(&mut rng, 4, 60, 40_000);
        for (node, there) in send_all(&world, &all) {
            reads_are_right(&world, &mut rng, node, &there, 60);
            for sample in there {
                let fetched = world.store.fetch(sample.id).unwrap();
                assert_eq!(fetched.entries(), sample.image.entries());
            }
        }
        let figures = world.store.figures();
        assert_eq!((figures.sent, figures.shards, figures.lost), (4, 4, 0));
        assert!(figures.records > 0 && figures.fetched == 4 && figures.repeated == 0);
        let ids: Vec<ShardId> = all.iter().map(|sample| sample.id).collect();
        world.store.release(&ids, 5);
        world.store.close();
        assert_eq!(world.held(), 0, "a closed store has released everything");
    }
}

#[test]
fn buckets_are_spread_over_the_nodes() {
    let mut rng = Rng::with_seed(2);
    let world = World::new(2, 3, 16 * MIB);
    let mut by_node: BTreeMap<StoreNode, Vec<Sample>> = BTreeMap::new();
    for bucket in 0..24u32 {
        let mut sample = Sample::new(&mut rng, 1, 0, 0);
        let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
        let key = format!("bucket-{bucket:02}-key").into_bytes();
        shard.insert(&key, SeqNo(10_000 + u64::from(bucket)), Kind::Put, b"coral");
        shard.seal();
        sample.bytes.clear();
        shard.write_image(&mut sample.bytes).unwrap();
        sample.id.shard = bucket;
        sample.last_seq = SeqNo(20_000);
        sample.keys = KeyRange {
            start: format!("bucket-{bucket:02}").into_bytes(),
            end: Some(format!("bucket-{:02}", bucket + 1).into_bytes()),
        };
        let at = world.send(&sample).unwrap();
        by_node.entry(at).or_default().push(sample);
    }
    assert_eq!(by_node.len(), 3, "24 buckets on three nodes");
    let keys: Vec<Vec<Vec<u8>>> = by_node
        .values()
        .map(|there| {
            there.iter().map(|sample| [&sample.keys.start[..], b"-key"].concat()).collect()
        })
        .collect();
    let asks: Vec<LookupAsk<'_>> = by_node
        .iter()
        .zip(&keys)
        .map(|((node, there), keys)| {
            let ids: Vec<ShardId> = there.iter().map(|sample| sample.id).collect();
            ask(*node, &ids, keys, SeqNo::MAX)
        })
        .collect();
    for (answer, keys) in world.store.lookup(&asks).into_iter().zip(&keys) {
        let answer = answer.unwrap();
        assert!((0..keys.len()).all(|key| versions(&answer, key).len() == 1));
    }
}

#[test]
fn shards_of_a_dead_node_are_lost_and_the_others_stay() {
    for does_pool_notice in [true, false] {
        let mut rng = Rng::with_seed(3);
        let mut world = World::new(3, 1, 16 * MIB);
        let all = samples(&mut rng, 2, 10, 500);
        let by_node = send_all(&world, &all);
        let node = *by_node.keys().next().unwrap();
        world.kill(0);
        if does_pool_notice {
            world.list();
        }
        // Many readers wait for the node at the same time.
        let before_ns = world.simulation.now_ns();
        let keys = [key_of(1)];
        let asks: Vec<LookupAsk<'_>> =
            (0..20).map(|_| ask(node, &[all[0].id], &keys, SeqNo::MAX)).collect();
        let mut answers = world.store.lookup(&asks);
        let is_lost = |answer: &Result<_, _>| matches!(answer, Err(AwayError::Lost(_)));
        for round in 0.. {
            if answers.iter().all(is_lost) {
                break;
            }
            assert!(round < 3, "{answers:?}");
            answers = world.store.lookup(&asks);
        }
        let lost = world.simulation.now_ns() - before_ns;
        let bound = if does_pool_notice { 5 } else { 15 };
        assert!(u128::from(lost) < (SECOND * bound).as_nanos(), "lost after {lost} ns");
        let mut heard = world.heard.lost.lock().clone();
        heard.sort_unstable();
        assert_eq!(heard, [all[0].id, all[1].id], "the database heard of both");
        assert!(matches!(world.store.fetch(all[1].id), Err(AwayError::Lost(_))));
        assert!(matches!(world.send(&all[0]), Err(AwayError::NoRoom(_))));
        // The node lives again, and takes shards in its new life.
        world.revive(0);
        world.list();
        world.wait(3 * SECOND);
        assert!(matches!(lookup_one(&world, node, all[0].id), Err(AwayError::Lost(_))));
        let next = world.send(&all[0]).unwrap();
        assert_ne!(next, node);
        assert!(lookup_one(&world, next, all[0].id).is_ok());
        world.store.release(&[all[0].id, all[1].id], 3);
        world.store.close();
        assert_eq!(world.held(), 0);
    }
}

#[test]
fn shards_that_were_lost_to_a_cut_are_released_when_it_heals() {
    let mut rng = Rng::with_seed(4);
    let world = World::new(4, 2, 16 * MIB);
    let all = samples(&mut rng, 3, 10, 500);
    let by_node = send_all(&world, &all);
    let node = *by_node.keys().next().unwrap();
    let memory = &world.nodes[world.index(node)];
    world.network.cut(&world.owner, &memory.host);
    world.wait(12 * SECOND);
    assert_eq!(world.heard.lost.lock().len(), 3);
    assert_eq!(world.held(), 3, "the node knows nothing of the cut");
    // The database has rebuilt them, and sends them to the other node.
    let other = world.send(&all[0]).unwrap();
    assert_ne!(other, node);
    world.network.heal_all();
    world.wait(6 * SECOND);
    assert_eq!(world.held(), 1, "the lost ones are released");
    assert!(matches!(lookup_one(&world, node, all[1].id), Err(AwayError::Lost(_))));
    assert!(lookup_one(&world, other, all[0].id).is_ok());
}

#[test]
fn full_nodes_refuse_until_a_release() {
    let mut rng = Rng::with_seed(5);
    let world = World::new(5, 2, 4 * MIB);
    let mut sent = Vec::new();
    let refused = loop {
        let sample = Sample::new(&mut rng, sent.len() as u64 + 1, 40, 20_000);
        match world.send(&sample) {
            Ok(_) => sent.push(sample),
            Err(AwayError::NoRoom(_)) => break sample,
            Err(other) => panic!("{other}"),
        }
        assert!(sent.len() < 1000, "the nodes have four mebibytes each");
    };
    assert!((0..2).all(|index| world.figures(index).shards > 3), "both nodes were used");
    let room = world.store.room();
    let bytes = refused.bytes.len() as u64;
    assert!(room.free_bytes < 2 * bytes && room.limit_bytes < 8 * MIB, "{room:?}");
    // Half of the shards are released.
    let ids: Vec<ShardId> = sent.iter().step_by(2).map(|sample| sample.id).collect();
    world.store.release(&ids, 1);
    world.wait(3 * SECOND);
    assert!(world.send(&refused).is_ok());
    for sample in sent.iter().skip(1).step_by(2) {
        assert_eq!(world.store.fetch(sample.id).unwrap().entries(), sample.image.entries());
    }
    // An image of more than a quarter of a node never leaves.
    let large = Sample::new(&mut rng, 2000, 200, 200_000);
    assert!(large.bytes.len() as u64 > MIB);
    assert!(matches!(world.send(&large), Err(AwayError::NoRoom(_))));
}

#[test]
fn next_owner_finds_an_empty_place() {
    let mut rng = Rng::with_seed(6);
    let world = World::new(6, 1, 16 * MIB);
    let all = samples(&mut rng, 2, 10, 500);
    let node = world.send(&all[0]).unwrap();
    let next = world.next_owner(2);
    assert_eq!(world.held(), 0, "the shards of the earlier owner are purged");
    let at = next.send(&all[1].shard(), &all[1].bytes).unwrap();
    // The earlier owner is refused, and its shards are lost.
    assert!(matches!(lookup_one(&world, node, all[0].id), Err(AwayError::Lost(_))));
    assert!(matches!(world.send(&all[1]), Err(AwayError::NoRoom(_) | AwayError::Busy(_))));
    assert!(matches!(world.send(&all[1]), Err(AwayError::NoRoom(_))), "it knows by now");
    world.store.release(&[all[0].id], 3);
    world.store.close();
    let keys = [key_of(1)];
    assert!(next.lookup(&[ask(at, &[all[1].id], &keys, SeqNo::MAX)]).remove(0).is_ok());
    next.close();
}

#[test]
fn restart_of_the_manager_loses_no_shard() {
    let mut rng = Rng::with_seed(9);
    let world = World::new(9, 2, 16 * MIB);
    let all = samples(&mut rng, 2, 10, 500);
    let node = world.send(&all[0]).unwrap();
    // The new manager knows no node at first.
    *world.listed.0.lock() = Some(Vec::new());
    world.wait(3 * SECOND);
    assert!(lookup_one(&world, node, all[0].id).is_ok());
    world.list();
    world.wait(3 * SECOND);
    assert!(lookup_one(&world, node, all[0].id).is_ok());
    assert!(world.heard.lost.lock().is_empty());
    assert_eq!(world.send(&all[1]).unwrap(), node, "the same lives of the same nodes");
    world.store.release(&[all[0].id, all[1].id], 3);
    world.store.close();
    assert_eq!(world.held(), 0);
}

#[test]
fn shard_that_a_node_does_not_know_leaves_the_others_readable() {
    let mut rng = Rng::with_seed(7);
    let world = World::new(7, 1, 16 * MIB);
    let all = samples(&mut rng, 5, 10, 500);
    let node = send_all(&world, &all[..3]).into_keys().next().unwrap();
    // A twin of the owner makes the node drop the oldest shard.
    let twin = world.next_owner(1);
    for sample in &all[3..] {
        twin.send(&sample.shard(), &sample.bytes).unwrap();
    }
    twin.release(&[all[4].id], 2);
    world.wait(SECOND);
    assert_eq!(world.held(), 3, "without the first one and the last one");
    let ids: Vec<ShardId> = all[..3].iter().rev().map(|sample| sample.id).collect();
    let keys = [key_of(1)];
    let answer = world.store.lookup(&[ask(node, &ids, &keys, SeqNo::MAX)]).remove(0);
    assert!(matches!(answer, Err(AwayError::Busy(_))), "{answer:?}");
    assert_eq!(*world.heard.lost.lock(), [all[0].id]);
    assert!(matches!(lookup_one(&world, node, all[0].id), Err(AwayError::Lost(_))));
    assert!(all[1..3].iter().all(|sample| lookup_one(&world, node, sample.id).is_ok()));
    assert_eq!(world.held(), 3, "the others are not released");
}

#[test]
fn node_whose_answers_nobody_can_read_loses_the_shards_that_were_asked() {
    let mut rng = Rng::with_seed(8);
    let world = World::new(8, 1, 16 * MIB);
    let all = samples(&mut rng, 2, 10, 500);
    let node = send_all(&world, &all).into_keys().next().unwrap();
    world.garbles.store(true, Ordering::Relaxed);
    let begin_ns = world.simulation.now_ns();
    let answer = lookup_one(&world, node, all[0].id);
    assert!(matches!(answer, Err(AwayError::Lost(_))), "{answer:?}");
    assert!(world.simulation.now_ns() - begin_ns < 1_000_000_000, "before the patience ends");
    world.garbles.store(false, Ordering::Relaxed);
    assert_eq!(*world.heard.lost.lock(), [all[0].id]);
    assert!(lookup_one(&world, node, all[1].id).is_ok());
}

#[test]
fn late_lost_and_doubled_messages_change_no_answer() {
    for seed in 0..12 {
        let mut rng = Rng::with_seed(100 + seed);
        let world = World::new(seed, 2, 16 * MIB);
        let delay_ns_max = rng.u64(0..20_000_000);
        let faults = Faults { loss: 0.02, duplicate: 0.05, delay_ns_max, ..Faults::default() };
        world.network.set_faults(faults);
        let all = samples(&mut rng, 3, 20, 40_000);
        let mut by_node: BTreeMap<StoreNode, Vec<&Sample>> = BTreeMap::new();
        for sample in all.iter().rev() {
            match world.send(sample) {
                Ok(node) => by_node.entry(node).or_default().push(sample),
                Err(AwayError::Busy(_) | AwayError::Lost(_)) => {}
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
        for (node, there) in &by_node {
            let ids: Vec<ShardId> = there.iter().map(|sample| sample.id).collect();
            let keys: Vec<Vec<u8>> = (0..20).map(key_of).collect();
            for _ in 0..20 {
                let ask = ask(*node, &ids, &keys, SeqNo::MAX);
                let Ok(answer) = world.store.lookup(&[ask]).remove(0) else { continue };
                for (number, key) in keys.iter().enumerate() {
                    let right = expected(there, key, SeqNo::MAX, SeqNo(0));
                    assert_eq!(versions(&answer, number), right, "seed {seed}");
                }
            }
        }
        world.network.set_faults(Faults::default());
        world.wait(20 * SECOND);
        let readable = world.store.figures().shards;
        assert_eq!(world.held(), readable, "seed {seed}: nothing is left over");
        let ids: Vec<ShardId> = all.iter().map(|sample| sample.id).collect();
        world.store.release(&ids, 4);
        world.store.close();
        assert_eq!(world.held(), 0, "seed {seed}");
        let grants: u64 = (0..2).map(|index| world.figures(index).grants).sum();
        assert_eq!(grants, 0, "seed {seed}");
    }
}
