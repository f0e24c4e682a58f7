//! The next owner of a database takes over the shards of the previous owner, in virtual time. The
//! shard hosts are real, and so is the database that is killed.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::SeqNo;
use archipelago_base::random::Rng;
use archipelago_engine::db::{BackgroundMode, Components, Db, ReadOptions};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::remote::{FoundShard, LookupAnswer, ShardId, ShardStore, StoreNode};
use archipelago_engine::stats::Ticker;
use archipelago_env::mem::MemFs;
use archipelago_offload::shard_owner::RemoteShards;

use crate::away::{MIB, SECOND, Sample, World, ask, expected, key_of, samples, versions};

fn sent(world: &World, all: &[Sample]) {
    for sample in all {
        world.send(sample).unwrap();
    }
}

/// The found shards by the numbers of their memtables.
fn by_memtable(found: Vec<FoundShard>) -> BTreeMap<u64, FoundShard> {
    found.into_iter().map(|shard| (shard.name.id.memtable, shard)).collect()
}

fn look_up(store: &RemoteShards, node: StoreNode, ids: &[ShardId]) -> LookupAnswer {
    let keys: Vec<Vec<u8>> = (0..20).map(key_of).collect();
    store.lookup(&[ask(node, ids, &keys, SeqNo::MAX)]).remove(0).unwrap()
}

#[test]
fn next_owner_adopts_what_it_keeps_and_the_rest_goes() {
    let mut rng = Rng::with_seed(1);
    let world = World::new(1, 2, 16 * MIB);
    let all = samples(&mut rng, 4, 20, 40_000);
    sent(&world, &all);
    let next = world.opening(2);
    let found = by_memtable(next.list());
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
    world.wait(3 * SECOND);
    assert_eq!(world.held(), 4, "nothing is purged before the open has decided");
    let list: Vec<FoundShard> = found.values().cloned().collect();
    for (head, sample) in next.heads(&list).into_iter().zip(&all) {
        let head = head.unwrap();
        assert_eq!(head.entries, sample.image.entries());
        assert_eq!(list[0].keys, sample.keys);
    }
    assert_eq!(found[&3].last_seq, all[2].last_seq);
    let id = |memtable| ShardId { memtable, shard: 5 };
    let kept = [(id(1), &found[&2]), (id(2), &found[&3])];
    let adopted = next.adopt(&kept);
    let nodes: Vec<StoreNode> = adopted.into_iter().map(Result::unwrap).collect();
    next.purge();
    world.wait(3 * SECOND);
    assert_eq!(world.held(), 2, "the others are given up");
    assert_eq!(next.figures().shards, 2);
    for (at, sample) in [(0, &all[1]), (1, &all[2])] {
        let answer = look_up(&next, nodes[at], &[kept[at].0]);
        for (number, key) in (0..20).map(key_of).enumerate() {
            let right = expected(&[sample], &key, SeqNo::MAX, SeqNo(0));
            assert_eq!(versions(&answer, number), right);
        }
        assert_eq!(next.fetch(kept[at].0).unwrap().entries(), sample.image.entries());
    }
    // Shards of this open have other names, and a release names the right ones.
    let more = Sample::new(&mut rng, 7, 20, 100);
    next.send(&more.shard(), &more.bytes).unwrap();
    next.release(&[id(1)], 7);
    world.wait(3 * SECOND);
    assert_eq!(world.held(), 2);
    assert!(next.fetch(id(1)).is_err() && next.fetch(id(2)).is_ok());
    next.release(&[id(2), more.id], 8);
    next.close();
    assert_eq!(world.held(), 0);
}

#[test]
fn only_the_shards_of_the_owner_directly_before_are_found() {
    let mut rng = Rng::with_seed(2);
    let world = World::new(2, 1, 16 * MIB);
    let all = samples(&mut rng, 3, 10, 100);
    sent(&world, &all);
    // The second owner dies in its open, after it has found them.
    let second = world.opening(2);
    assert_eq!(second.list().len(), 3);
    drop(second);
    let third = world.opening(3);
    let found = third.list();
    assert_eq!(found.len(), 3, "the second one held them for it");
    assert!(third.heads(&found).iter().all(Result::is_ok));
    let (id, one) = (ShardId { memtable: 1, shard: 0 }, &found[1]);
    third.adopt(&[(id, one)]).remove(0).unwrap();
    third.purge();
    world.wait(2 * SECOND);
    assert_eq!(world.held(), 1);
    // The fourth owner knows no memory nodes, so it sends them no messages.
    let fifth = world.opening(5);
    assert!(fifth.list().is_empty(), "the fourth one may have lost their records");
    fifth.purge();
    world.wait(2 * SECOND);
    assert_eq!(world.held(), 0);
}

/// The open finds the shards, so that its log numbers exceed theirs, and keeps none of them.
#[test]
fn shards_whose_hold_is_not_confirmed_in_time_are_released() {
    for does_die in [false, true] {
        let mut rng = Rng::with_seed(4);
        let world = World::new(4, 1, 16 * MIB);
        sent(&world, &samples(&mut rng, 3, 10, 100));
        world.lose_confirmations();
        let next = world.opening(2);
        let found = next.list();
        assert_eq!(found.len(), 3);
        let held = || world.nodes[0].figures().counters.adopted;
        assert_eq!(held(), 3, "the node has executed the request");
        assert!(next.heads(&found).iter().all(Result::is_err));
        let id = ShardId { memtable: 1, shard: 0 };
        assert!(next.adopt(&[(id, &found[0])]).remove(0).is_err());
        if does_die {
            drop(next);
            world.heal();
            let third = world.opening(3);
            assert_eq!(third.list().len(), 3, "the second one has seen them");
            third.purge();
            world.wait(10 * SECOND);
        } else {
            next.purge();
            world.wait(2 * SECOND);
            world.heal();
            world.wait(10 * SECOND);
        }
        assert_eq!(world.held(), 0);
    }
}

#[test]
fn cached_offset_answers_for_an_adopted_shard() {
    let world = World::new(5, 1, 16 * MIB);
    let sample = Sample::puts(1, 20, 100);
    sent(&world, std::slice::from_ref(&sample));
    let next = world.opening(2);
    let found = next.list();
    assert!(next.heads(&found).iter().all(Result::is_ok));
    let id = ShardId { memtable: 1, shard: 5 };
    let node = next.adopt(&[(id, &found[0])]).remove(0).unwrap();
    next.purge();
    let keys = [key_of(3)];
    for round in 0..3 {
        let answer = next.lookup(&[ask(node, &[id], &keys, SeqNo::MAX)]).remove(0).unwrap();
        let right = expected(&[&sample], &keys[0], SeqNo::MAX, SeqNo(0));
        assert_eq!(versions(&answer, 0), right);
        let figures = next.figures();
        assert_eq!((figures.cache_hits, figures.cache_misses), (round, 1));
    }
    next.release(&[id], 2);
    assert_eq!(next.figures().cache_entries, 0);
}

#[test]
fn node_that_does_not_answer_costs_a_bounded_wait() {
    let mut rng = Rng::with_seed(3);
    let mut world = World::new(3, 2, 16 * MIB);
    let mut all = samples(&mut rng, 6, 10, 100);
    // The bucket of a shard decides its node.
    for (at, sample) in all.iter_mut().enumerate() {
        sample.keys.start = vec![b'a' + at as u8];
        sample.keys.end = Some(b"z".to_vec());
    }
    sent(&world, &all);
    let counts: Vec<u64> = (0..2).map(|index| world.nodes[index].figures().shards).collect();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    world.network.cut(&world.owner, &world.nodes[1].host);
    let begin_ns = world.simulation.now_ns();
    let next = world.opening(2);
    let found = next.list();
    let waited = world.simulation.now_ns() - begin_ns;
    assert!(u128::from(waited) < (3 * SECOND).as_nanos(), "waited {waited} ns");
    assert_eq!(found.len() as u64, counts[0]);
    let heads = next.heads(&found);
    assert!(heads.iter().all(Result::is_ok));
    let ids: Vec<ShardId> = (1..=counts[0]).map(|at| ShardId { memtable: at, shard: 0 }).collect();
    let named: Vec<_> = ids.iter().copied().zip(&found).collect();
    assert!(next.adopt(&named).iter().all(Result::is_ok));
    next.purge();
    world.network.heal_all();
    world.wait(10 * SECOND);
    assert_eq!(world.nodes[1].figures().shards, 0, "it is purged when it returns");
    assert_eq!(world.nodes[0].figures().shards, counts[0]);
    // A node that dies takes adopted shards with it.
    world.kill(0);
    world.list();
    world.wait(10 * SECOND);
    assert!(ids.iter().all(|id| next.fetch(*id).is_err()));
}

/// A database over the nodes of a world, and a model of it.
struct Owned {
    world: World,
    fs: MemFs,
    db: Db,
    shards: Arc<RemoteShards>,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn open(world: &World, fs: &MemFs) -> (Db, Arc<RemoteShards>) {
    let shards = world.unnamed_store();
    let family = CfOptions {
        merge_operator: Some("append".to_owned()),
        write_buffer_bytes: 16 << 10,
        target_file_bytes: 16 << 10,
        buckets: 3,
        ..CfOptions::default()
    };
    let components = Components {
        fs: Arc::new(fs.clone()),
        families: [("default".to_owned(), family)].into_iter().collect(),
        shard_store: Some(Arc::clone(&shards) as _),
        background: BackgroundMode::Manual,
        ..Components::default()
    };
    let options = DbOptions { wal_segment_bytes: 64 << 10, ..DbOptions::default() };
    (Db::open_with("/db", options, components).unwrap(), shards)
}

impl Owned {
    fn new(seed: u64) -> Self {
        // The world has an owner of its own, of another database.
        let world = World::for_database(seed, 2, 16 * MIB);
        let fs = MemFs::new();
        let (db, shards) = open(&world, &fs);
        world.wait(2 * SECOND);
        Self { world, fs, db, shards, model: BTreeMap::new() }
    }

    fn settle(&self) {
        while self.db.step_background().unwrap() {}
    }

    fn write(&mut self, rng: &mut Rng, count: u32) {
        let (options, cf) = (WriteOptions::default(), self.db.default_family().clone());
        for at in 0..count {
            let key = key_of(rng.u64(0..300));
            match rng.u32(0..20) {
                0 => {
                    let end = [&key[..], b"5"].concat();
                    self.db.delete_range(&cf, &key, &end, &options).unwrap();
                    self.model.retain(|other, _| *other < key || *other >= end);
                }
                1 => {
                    self.db.delete(&key).unwrap();
                    self.model.remove(&key);
                }
                2..=6 => {
                    let operand = format!("+{at}").into_bytes();
                    self.db.merge(&cf, &key, &operand, &options).unwrap();
                    self.model.entry(key).or_default().extend_from_slice(&operand);
                }
                _ => {
                    let value = vec![b'a' + rng.u8(0..26); rng.usize(10..200)];
                    self.db.put(&key, &value).unwrap();
                    self.model.insert(key, value);
                }
            }
            if at % 25 == 0 {
                self.settle();
            }
        }
        self.settle();
    }

    fn check(&self) {
        let mut iter = self.db.iter(self.db.default_family(), &ReadOptions::default()).unwrap();
        let mut found = BTreeMap::new();
        iter.seek_to_first();
        while iter.valid() {
            found.insert(iter.key().to_vec(), iter.value().to_vec());
            iter.next();
        }
        iter.status().unwrap();
        assert!(found == self.model, "{} rows, not {}", found.len(), self.model.len());
        for number in (0..300).step_by(11) {
            let key = key_of(number);
            let value = self.db.get(&key).unwrap();
            assert_eq!(value.as_deref(), self.model.get(&key).map(Vec::as_slice));
        }
    }

    /// The process dies and starts again.
    fn kill_and_open(&mut self) {
        let fs = self.fs.kill_clone();
        let (db, shards) = open(&self.world, &fs);
        // Late messages of the dead process reach nodes that know its successor.
        let (dead, dead_shards) =
            (std::mem::replace(&mut self.db, db), std::mem::replace(&mut self.shards, shards));
        drop((dead, dead_shards));
        self.fs = fs;
    }

    fn kept(&self) -> u64 {
        self.db.statistics().get(Ticker::AwayShardsKept)
    }
}

#[test]
fn database_keeps_its_shards_over_kills() {
    for seed in 0..4 {
        let mut rng = Rng::with_seed(seed);
        let mut owned = Owned::new(seed);
        owned.write(&mut rng, 900);
        let mut kept = 0;
        for round in 0..5 {
            let held = owned.shards.figures().shards;
            match (seed + round) % 5 {
                3 => {
                    // A node dies while the database has no owner, and begins a new life.
                    owned.world.kill(0);
                    owned.world.revive(0);
                    owned.world.list();
                }
                4 => owned.world.network.cut(&owned.world.owner, &owned.world.nodes[1].host),
                _ => {}
            }
            owned.kill_and_open();
            if (seed + round) % 5 < 3 {
                assert_eq!(owned.kept(), held, "seed {seed}, round {round}");
            }
            kept += owned.kept();
            owned.world.network.heal_all();
            owned.check();
            if round % 2 == 0 {
                owned.world.kill(1);
                owned.world.revive(1);
                owned.world.list();
                owned.check();
            }
            owned.world.wait(2 * SECOND);
            owned.write(&mut rng, 300);
            owned.check();
        }
        assert!(kept > 5, "seed {seed}: {kept}");
        owned.db.clone().close().unwrap();
        owned.world.wait(2 * SECOND);
        assert_eq!(owned.world.held(), 0, "seed {seed}: nothing is left over");
    }
}
