//! The key-offset cache of an owner, and the pace of its transfers, in virtual time.

use std::time::Duration;

use archipelago_base::SeqNo;
use archipelago_engine::remote::{LookupAsk, ShardId, ShardStore, StoreNode, WriteLoad};
use archipelago_fabric::sim::Model;

use crate::away::{MIB, Sample, World, ask, expected, key_of, lookup_one, versions};

/// Looks a key up in shards, newest first, and compares the answer with the images.
fn look_up(world: &World, node: StoreNode, samples: &[&Sample], number: u64, snapshot: SeqNo) {
    let ids: Vec<ShardId> = samples.iter().map(|sample| sample.id).collect();
    let keys = [key_of(number)];
    let answer = world.store.lookup(&[ask(node, &ids, &keys, snapshot)]).remove(0).unwrap();
    assert_eq!(versions(&answer, 0), expected(samples, &keys[0], snapshot, SeqNo(0)));
}

/// Number of keys that a cached offset has answered, and number of keys that were requested from
/// the node.
fn ways(world: &World) -> (u64, u64) {
    let figures = world.store.figures();
    (figures.cache_hits, figures.cache_misses)
}

#[test]
fn second_look_up_of_a_key_is_one_read() {
    let world = World::new(1, 1, 16 * MIB);
    let sample = Sample::puts(1, 20, 100);
    let node = world.send(&sample).unwrap();
    look_up(&world, node, &[&sample], 3, SeqNo::MAX);
    assert_eq!(ways(&world), (0, 1));
    for _ in 0..5 {
        look_up(&world, node, &[&sample], 3, SeqNo::MAX);
    }
    assert_eq!(ways(&world), (5, 1));
    let figures = world.store.figures();
    assert_eq!((figures.cache_entries, figures.keys, figures.cache_mismatches), (1, 1, 0));
    assert_eq!((figures.cache_batches, figures.requests), (5, 1));
    assert!(figures.cache_read_ns > 0 && figures.request_ns > 0, "{figures:?}");
    // A reader that does not see the record uses a request.
    look_up(&world, node, &[&sample], 3, SeqNo(10_002));
    assert_eq!(ways(&world), (5, 2));
}

#[test]
fn known_and_unknown_keys_of_a_look_up_are_answered_together() {
    let world = World::new(2, 1, 16 * MIB);
    let sample = Sample::puts(1, 60, 100);
    let node = world.send(&sample).unwrap();
    for number in (0..60).step_by(2) {
        look_up(&world, node, &[&sample], number, SeqNo::MAX);
    }
    let keys: Vec<Vec<u8>> = (0..60).map(key_of).collect();
    let all: LookupAsk<'_> = ask(node, &[sample.id], &keys, SeqNo::MAX);
    let answer = world.store.lookup(&[all]).remove(0).unwrap();
    for (number, key) in keys.iter().enumerate() {
        let right = expected(&[&sample], key, SeqNo::MAX, SeqNo(0));
        assert_eq!(versions(&answer, number), right);
    }
    assert_eq!(ways(&world), (30, 30 + 30));
}

#[test]
fn newer_shard_with_the_key_hides_the_entry_of_an_older_one() {
    let world = World::new(3, 1, 16 * MIB);
    let (old, new) = (Sample::puts(1, 20, 100), Sample::puts(2, 10, 100));
    let node = world.send(&old).unwrap();
    look_up(&world, node, &[&old], 3, SeqNo::MAX);
    assert_eq!(world.send(&new).unwrap(), node);
    look_up(&world, node, &[&new, &old], 3, SeqNo::MAX);
    assert_eq!(ways(&world).0, 0, "the entry is of the older shard");
    look_up(&world, node, &[&new, &old], 3, SeqNo::MAX);
    assert_eq!(ways(&world).0, 1);
}

#[test]
fn reader_of_an_old_snapshot_makes_no_entry() {
    let world = World::new(4, 1, 16 * MIB);
    let sample = Sample::puts(1, 20, 100);
    let node = world.send(&sample).unwrap();
    for _ in 0..2 {
        look_up(&world, node, &[&sample], 3, SeqNo(10_010));
    }
    assert_eq!((ways(&world), world.store.figures().cache_entries), ((0, 2), 0));
}

#[test]
fn entries_go_with_the_release_of_their_shard() {
    let mut world = World::new(5, 1, 16 * MIB);
    let (first, second) = (Sample::puts(1, 20, 100), Sample::puts(2, 20, 100));
    let node = world.send(&first).unwrap();
    world.send(&second).unwrap();
    for number in 0..4 {
        look_up(&world, node, &[&first], number, SeqNo::MAX);
        look_up(&world, node, &[&second], number, SeqNo::MAX);
    }
    assert_eq!(world.store.figures().cache_entries, 8);
    world.store.release(&[first.id], 2);
    assert_eq!(world.store.figures().cache_entries, 4);
    world.kill(0);
    world.list();
    world.wait(Duration::from_secs(8));
    assert_eq!(world.store.figures().cache_entries, 0, "the others went with the node");
    assert!(lookup_one(&world, node, second.id).is_err());
}

#[test]
fn hot_keys_have_their_entry_when_their_shard_has_left() {
    let world = World::new(6, 1, 16 * MIB);
    let (old, new) = (Sample::puts(1, 20, 100), Sample::puts(2, 20, 100));
    let node = world.send(&old).unwrap();
    for _ in 0..4 {
        look_up(&world, node, &[&old], 3, SeqNo::MAX);
    }
    look_up(&world, node, &[&old], 5, SeqNo::MAX);
    world.send(&new).unwrap();
    let figures = world.store.figures();
    assert_eq!((figures.cache_filled, figures.cache_misses), (1, 2));
    look_up(&world, node, &[&new, &old], 3, SeqNo::MAX);
    assert_eq!(world.store.figures().cache_misses, 2, "its first look-up is a READ");
    look_up(&world, node, &[&new, &old], 5, SeqNo::MAX);
    assert_eq!(world.store.figures().cache_misses, 3);
}

#[test]
fn images_leave_as_fast_as_writers_need_it() {
    // 100 MB/s.
    let model = Model { byte_ps: 10_000, ..Model::quick() };
    let world = World::over(&model, 7, 1, 16 * MIB);
    // The first image measures the link.
    let first = Sample::puts(1, 200, 4000);
    world.send(&first).unwrap();
    let at_full_speed = |memtable| {
        let begin_ns = world.simulation.now_ns();
        world.send(&Sample::puts(memtable, 200, 4000)).unwrap();
        world.simulation.now_ns() - begin_ns
    };
    let fast_ns = at_full_speed(2);
    let link = world.store.room().link_bytes_per_s;
    assert!(link > 0);
    // Backlog and space are equal, so a tenth of the link is enough.
    let (bytes, fill_bytes_per_s) = (first.bytes.len() as u64, link / 10);
    *world.heard.load.lock() =
        WriteLoad { backlog_bytes: bytes, space_bytes: bytes, fill_bytes_per_s };
    let paced_ns = at_full_speed(3);
    let whole_ns = bytes * 1_000_000_000 / fill_bytes_per_s;
    assert!(paced_ns > whole_ns / 2 && paced_ns > 3 * fast_ns, "{paced_ns} of {whole_ns} ns");
    assert_eq!(world.store.room().link_bytes_per_s, link, "the pace is not the speed of the link");
    // Writers wait: the link is used as a whole.
    world.heard.load.lock().space_bytes = 0;
    assert!(at_full_speed(4) < paced_ns / 3);
    let figures = world.store.figures();
    assert!(figures.written_bytes >= 4 * bytes && figures.peak_bytes > 0);
}
