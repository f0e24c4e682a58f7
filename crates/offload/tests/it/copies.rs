//! Two copies of shards at memory nodes, in virtual time: real shard hosts that are killed, cut off
//! and filled.

use archipelago_base::random::Rng;
use archipelago_engine::remote::{AwayError, FoundShard, ShardId, ShardStore, StoreNode};

use crate::away::{MIB, SECOND, Sample, World, lookup_one, reads_are_right, samples};

/// Sends samples, waits for their second copies, and returns their nodes, newest first.
fn send_all(world: &World, samples: &[Sample]) -> Vec<StoreNode> {
    let nodes = samples.iter().rev().map(|sample| world.send(sample).unwrap()).collect();
    world.wait(SECOND);
    nodes
}

fn newest_first(samples: &[Sample]) -> Vec<&Sample> {
    samples.iter().rev().collect()
}

fn ids(samples: &[Sample]) -> Vec<ShardId> {
    samples.iter().map(|sample| sample.id).collect()
}

#[test]
fn death_of_one_node_loses_nothing() {
    for does_pool_notice in [true, false] {
        let mut rng = Rng::with_seed(1);
        let mut world = World::with_copies(1, 2, 16 * MIB);
        let all = samples(&mut rng, 4, 40, 40_000);
        let node = send_all(&world, &all)[0];
        let figures = world.store.figures();
        assert_eq!((figures.shards, figures.copies, figures.copied), (4, 4, 4));
        assert_eq!(world.held(), 8);
        let bytes: u64 = all.iter().map(|sample| sample.bytes.len() as u64).sum();
        let room = world.store.room();
        assert_eq!((room.held_bytes, room.spare_bytes), (2 * bytes, bytes));
        let dead = world.index(node);
        world.kill(dead);
        if does_pool_notice {
            world.list();
        }
        // The database still names the dead node until it gets news of another one.
        let before_ns = world.simulation.now_ns();
        assert!(lookup_one(&world, node, all[3].id).is_ok());
        let took_ns = world.simulation.now_ns() - before_ns;
        assert!(u128::from(took_ns) < (4 * SECOND).as_nanos(), "answered after {took_ns} ns");
        reads_are_right(&world, &mut rng, node, &newest_first(&all), 40);
        for sample in &all {
            assert_eq!(world.store.fetch(sample.id).unwrap().entries(), sample.image.entries());
        }
        world.wait(10 * SECOND);
        let figures = world.store.figures();
        assert_eq!((figures.shards, figures.copies, figures.lost), (4, 0, 0));
        assert!(figures.copies_used >= 4 && world.heard.lost.lock().is_empty());
        let moved = world.heard.moved.lock().clone();
        assert!(ids(&all).iter().all(|id| moved.iter().any(|(at, to)| at == id && *to != node)));
        // The other node dies as well.
        world.kill(1 - dead);
        world.list();
        world.wait(5 * SECOND);
        assert_eq!(world.heard.lost.lock().len(), 4);
        assert!(matches!(lookup_one(&world, node, all[0].id), Err(AwayError::Lost(_))));
    }
}

#[test]
fn node_that_is_cut_off_for_a_moment_keeps_its_copies() {
    let mut rng = Rng::with_seed(2);
    let world = World::with_copies(2, 2, 16 * MIB);
    let all = samples(&mut rng, 3, 20, 500);
    let node = send_all(&world, &all)[0];
    let first = world.nodes[world.index(node)].host.clone();
    world.network.cut(&world.owner, &first);
    assert!(lookup_one(&world, node, all[0].id).is_ok());
    world.heal();
    world.wait(3 * SECOND);
    let figures = world.store.figures();
    assert_eq!((figures.copies, figures.lost), (3, 0), "both copies are still there");
    assert_eq!(figures.copies_used, 1, "the others were not asked for");
    // A look-up of shards that are read at several nodes has one answer.
    reads_of_keys_are_right(&world, node, &all);
    world.store.release(&ids(&all), 4);
    world.store.close();
    assert_eq!(world.held(), 0, "a release goes to both nodes");
}

#[test]
fn image_is_fetched_at_the_other_node_when_the_first_is_cut_off() {
    let mut rng = Rng::with_seed(6);
    let world = World::with_copies(6, 2, 16 * MIB);
    let all = samples(&mut rng, 1, 20, 40_000);
    let node = send_all(&world, &all)[0];
    let first = world.nodes[world.index(node)].host.clone();
    world.network.cut(&world.owner, &first);
    // No read before this one has found the node silent.
    let fetched = world.store.fetch(all[0].id).unwrap();
    assert_eq!(fetched.entries(), all[0].image.entries());
    assert_eq!(world.store.figures().lost, 0);
}

#[test]
fn close_leaves_no_copy_that_is_on_its_way() {
    let mut rng = Rng::with_seed(7);
    let world = World::with_copies(7, 2, 16 * MIB);
    let all = samples(&mut rng, 3, 20, 40_000);
    for sample in &all {
        world.send(sample).unwrap();
    }
    world.store.release(&ids(&all), 4);
    world.store.close();
    assert_eq!(world.held(), 0);
    assert_eq!(world.store.figures().copy_queue_bytes, 0);
}

/// Looks all keys up in all shards.
fn reads_of_keys_are_right(world: &World, node: StoreNode, all: &[Sample]) {
    let keys: Vec<Vec<u8>> = (0..20).map(crate::away::key_of).collect();
    let newest = newest_first(all);
    let ids: Vec<ShardId> = newest.iter().map(|sample| sample.id).collect();
    let snapshot = archipelago_base::SeqNo::MAX;
    let ask = crate::away::ask(node, &ids, &keys, snapshot);
    let answer = world.store.lookup(&[ask]).remove(0).unwrap();
    for (number, key) in keys.iter().enumerate() {
        let right = crate::away::expected(&newest, key, snapshot, archipelago_base::SeqNo(0));
        assert_eq!(crate::away::versions(&answer, number), right);
    }
}

#[test]
fn shard_goes_to_one_node_alone_if_no_other_has_room() {
    let mut rng = Rng::with_seed(3);
    let world = World::with_copies(3, 1, 16 * MIB);
    let all = samples(&mut rng, 2, 20, 500);
    send_all(&world, &all);
    let figures = world.store.figures();
    assert_eq!((figures.shards, figures.copies, figures.copies_no_room), (2, 0, 2));
    world.store.release(&ids(&all), 3);
    world.store.close();
    assert_eq!(world.held(), 0);
}

/// Second copies take only room that nothing else needs.
#[test]
fn second_copies_are_released_for_first_copies() {
    let world = World::with_copies(4, 2, 2 * MIB);
    // Without copies, the same nodes take the same number of shards.
    let alone = World::new(4, 2, 2 * MIB);
    let mut sent = [0, 0];
    for (count, world) in sent.iter_mut().zip([&alone, &world]) {
        for memtable in 1..40 {
            let sample = Sample::puts(memtable, 10, 10_000);
            match world.send(&sample) {
                Ok(_) => *count += 1,
                Err(AwayError::NoRoom(_)) => break,
                Err(other) => panic!("{other}"),
            }
            world.wait(SECOND / 4);
        }
    }
    assert!(sent[0] > 8 && sent[0] == sent[1], "{sent:?} shards");
    let figures = world.store.figures();
    assert!(figures.copies_given_up > 0, "{figures:?}");
    assert_eq!(figures.shards, sent[1]);
    assert_eq!(figures.lost, 0);
}

#[test]
fn next_owner_adopts_both_copies() {
    for dies in [false, true] {
        let mut rng = Rng::with_seed(5);
        let mut world = World::with_copies(5, 2, 16 * MIB);
        let all = samples(&mut rng, 3, 20, 40_000);
        send_all(&world, &all);
        let next = world.opening(2);
        let found: Vec<FoundShard> = next.list();
        assert_eq!(found.len(), 3, "a shard is found once");
        if dies {
            let at = world.index(found[0].node);
            world.kill(at);
            world.list();
        }
        assert!(next.heads(&found).iter().all(Result::is_ok), "one of two nodes is enough");
        let id = |memtable| ShardId { memtable, shard: 5 };
        let kept: Vec<(ShardId, &FoundShard)> = (1..).map(id).zip(&found).collect();
        assert!(next.adopt(&kept).iter().all(Result::is_ok));
        next.purge();
        world.wait(8 * SECOND);
        let copies = if dies { 0 } else { 3 };
        let figures = next.figures();
        assert_eq!((figures.shards, figures.copies, figures.lost), (3, copies, 0));
        for ((id, _), sample) in kept.iter().zip(&all) {
            assert_eq!(next.fetch(*id).unwrap().entries(), sample.image.entries());
        }
        next.release(&[id(1), id(2), id(3)], 4);
        next.close();
        if !dies {
            assert_eq!(world.held(), 0, "the names of the owner before are released at both");
        }
    }
}
