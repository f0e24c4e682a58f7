//! A database whose memtables rest at memory nodes, over TCP and shared memory, compared with a
//! model. Nodes are killed and begin new lives during writes and reads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_engine::db::{Components, Db, Iter, ReadOptions, Snapshot};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_offload::shard_owner::RemoteShards;

use crate::memories::{Listed, Listening, Memory, shard_store};
use crate::rounds::{key, wait_until};

const KEYS: u32 = 300;

/// A value of the model: bytes, or a count.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct World {
    listening: Listening,
    nodes: Vec<Memory>,
    listed: Arc<Listed>,
    db: Option<Db>,
    shards: Arc<RemoteShards>,
    model: Model,
    snapshots: Vec<(Snapshot, Model)>,
}

fn open(dir: &Path, listed: &Arc<Listed>) -> (Db, Arc<RemoteShards>) {
    let shards = shard_store(listed);
    let family = CfOptions {
        merge_operator: Some("u64-counter".to_owned()),
        write_buffer_bytes: 64 << 10,
        target_file_bytes: 64 << 10,
        value_separation_bytes: 0,
        ..CfOptions::default()
    };
    let components = Components {
        families: [("default".to_owned(), family)].into_iter().collect(),
        shard_store: Some(Arc::clone(&shards) as _),
        ..Components::default()
    };
    (Db::open_with(dir, DbOptions::default(), components).unwrap(), shards)
}

fn counter(number: u32) -> Vec<u8> {
    [b"n-", &key(number)[..]].concat()
}

impl World {
    fn new(dir: &Path, listening: Listening) -> Self {
        let nodes = (1..=2).map(|number| Memory::start(&listening, number, 1)).collect();
        let listed = Arc::new(Listed::default());
        let (db, shards) = open(dir, &listed);
        let (model, snapshots) = (Model::new(), Vec::new());
        let world = Self { listening, nodes, listed, db: Some(db), shards, model, snapshots };
        world.list();
        world
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn list(&self) {
        *self.listed.0.lock() = self.nodes.iter().map(Memory::member).collect();
    }

    /// Kills a node. It begins a new life unless `stays_dead`.
    fn kill(&mut self, index: usize, stays_dead: bool) {
        let (number, life) = (self.nodes[index].number, self.nodes[index].life);
        self.nodes[index].end();
        if !stays_dead {
            self.nodes[index] = Memory::start(&self.listening, number, life + 1);
        }
        self.list();
    }

    fn write(&mut self, rng: &mut Rng) {
        let (db, options) = (self.db.as_ref().unwrap(), WriteOptions::default());
        let cf = db.default_family();
        let number = rng.u32(0..KEYS);
        match rng.u32(0..100) {
            0 => {
                let (start, end) = (key(number), key(number + rng.u32(1..20)));
                db.delete_range(cf, &start, &end, &options).unwrap();
                self.model.retain(|key, _| *key < start || *key >= end);
            }
            1..=9 => {
                db.delete(&key(number)).unwrap();
                self.model.remove(&key(number));
            }
            10..=39 => {
                let more = rng.u64(1..100);
                db.merge(cf, &counter(number), &more.to_le_bytes(), &options).unwrap();
                let count = self.model.entry(counter(number)).or_insert_with(|| vec![0; 8]);
                let before = u64::from_le_bytes(count[..].try_into().unwrap());
                *count = (before + more).to_le_bytes().to_vec();
            }
            _ => {
                let len = if rng.u32(0..200) == 0 { 20_000 } else { rng.usize(0..300) };
                let value = vec![rng.u8(..); len];
                db.put(&key(number), &value).unwrap();
                self.model.insert(key(number), value);
            }
        }
    }

    /// Keeps at most three snapshots.
    fn take_snapshot(&mut self) {
        let taken = (self.db().snapshot(), self.model.clone());
        self.snapshots.push(taken);
        if self.snapshots.len() > 3 {
            self.snapshots.remove(0);
        }
    }

    /// Compares reads as of now, or as of a snapshot, with the model.
    fn check(&self, rng: &mut Rng) {
        let some = rng.usize(0..=self.snapshots.len());
        let (snapshot, model) = match self.snapshots.get(some) {
            Some((snapshot, model)) => (Some(snapshot.clone()), model),
            None => (None, &self.model),
        };
        let options = ReadOptions { snapshot, ..ReadOptions::default() };
        let (db, cf) = (self.db(), self.db().default_family());
        let keys: Vec<Vec<u8>> = (0..20)
            .map(|_| (rng.u32(0..KEYS + 5), rng.bool()))
            .map(|(number, is_value)| if is_value { key(number) } else { counter(number) })
            .collect();
        for key in &keys {
            let got = db.get_with(cf, key, &options).unwrap();
            assert_eq!(got.as_deref(), model.get(key).map(|value| &value[..]), "{key:?}");
        }
        let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for (key, got) in keys.iter().zip(db.multi_get(cf, &asked, &options).unwrap()) {
            assert_eq!(got.as_deref(), model.get(key).map(|value| &value[..]), "{key:?}");
        }
        let from = keys[0].clone();
        let mut iter = db.iter(cf, &options).unwrap();
        let forward: Vec<(Vec<u8>, Vec<u8>)> =
            model.range(from.clone()..).map(|(key, value)| (key.clone(), value.clone())).collect();
        iter.seek(&from);
        assert!(walk(&mut iter, Iter::next) == forward, "a scan from {from:?}");
        let backward: Vec<(Vec<u8>, Vec<u8>)> = model
            .range(..=from.clone())
            .rev()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        iter.seek_for_prev(&from);
        assert!(walk(&mut iter, Iter::prev) == backward, "a scan back from {from:?}");
    }
}

fn walk(iter: &mut Iter, step: impl Fn(&mut Iter)) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut records = Vec::new();
    while iter.valid() {
        records.push((iter.key().to_vec(), iter.value().to_vec()));
        step(iter);
    }
    iter.status().unwrap();
    records
}

#[test]
fn database_over_memory_nodes_agrees_with_a_model() {
    agrees_with_a_model(7, |_| Listening::Tcp);
}

#[test]
fn database_over_shared_memory_agrees_with_a_model() {
    agrees_with_a_model(8, |base| Listening::Shm(base.to_owned()));
}

fn agrees_with_a_model(seed: u64, listening: impl Fn(&Path) -> Listening) {
    let base = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(seed);
    let dir = base.path().join("db");
    let mut world = World::new(&dir, listening(base.path()));
    wait_until(|| world.shards.figures().nodes == 2);
    for round in 0..60 {
        for _ in 0..400 {
            world.write(&mut rng);
        }
        if rng.u32(0..3) == 0 {
            world.take_snapshot();
        }
        world.check(&mut rng);
        if round % 12 == 11 {
            let index = rng.usize(0..2);
            world.kill(index, false);
            world.check(&mut rng);
        }
        if round == 40 {
            world.db().flush(world.db().default_family()).unwrap();
            world.check(&mut rng);
        }
    }
    let figures = world.shards.figures();
    assert!(figures.sent > 10 && figures.keys > 0 && figures.pages > 0, "{figures:?}");
    // Without nodes the database goes on.
    (0..2).for_each(|index| world.kill(index, true));
    for _ in 0..2000 {
        world.write(&mut rng);
    }
    world.check(&mut rng);
    // An ordered close leaves no shard at nodes, and the log has the records of those that they
    // had.
    let listening = world.listening.clone();
    world.nodes = (1..=2).map(|number| Memory::start(&listening, number, 100)).collect();
    world.list();
    wait_until(|| world.shards.figures().nodes == 2);
    for _ in 0..2000 {
        world.write(&mut rng);
    }
    world.check(&mut rng);
    world.snapshots.clear();
    world.db.take().unwrap().close().unwrap();
    let held = |world: &World| -> u64 {
        world.nodes.iter().map(|node| node.host.figures().unwrap().shards).sum()
    };
    assert_eq!(held(&world), 0, "a closed database has released its shards");
    let (db, shards) = open(&dir, &world.listed);
    (world.db, world.shards) = (Some(db), shards);
    world.check(&mut rng);
    for _ in 0..2000 {
        world.write(&mut rng);
    }
    world.check(&mut rng);
    let report = world.db().verify(|_, _| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
}
