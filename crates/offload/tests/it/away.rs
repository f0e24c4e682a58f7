//! An owner's shards at memory nodes in virtual time: the store of the engine's seam over simulated
//! links, against real shard hosts.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{CfId, Epoch, FileNo, SeqNo};
use archipelago_engine::executor::OwnerIdentity;
use archipelago_engine::key::{self, KeyRange, KeyRef, Kind};
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::{SealedImage, Shard, SlabPool};
use archipelago_engine::remote::{
    AwayError, KeyAsk, LookupAnswer, LookupAsk, NewShard, ResumeAt, ScanAsk, ScanDirection,
    ShardId, ShardStore, StoreNode, StoreWatcher, WriteLoad,
};
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_fabric::{Handler, Listener, Node, NodeId, Reply, Request};
use archipelago_offload::shard_host::{
    HostFigures, HostThreads, NodeBytes, ShardHost, ShardLimits,
};
use archipelago_offload::shard_owner::{
    MemoryNode, NodeList, OwnerParts, OwnerTerms, RemoteShards, StayingMemtables, Waits,
};
use parking_lot::Mutex;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Executes each request when it arrives.
struct Inline {
    shards: Arc<ShardHost>,
    /// Whether the answers to searches are bytes that cannot be decoded.
    garbles: Arc<AtomicBool>,
    mute: Mute,
}

/// Loses the answers of a node from the first request of a kind on.
struct Mute {
    /// Code of the request; 0 for none.
    code: Arc<AtomicU8>,
    network: Weak<Network>,
    node: Host,
    owner: Host,
}

/// Codes of the requests that search shards.
const SEARCHES: [u8; 3] = [5, 6, 7];
/// Code of the request to hold shards for an owner.
const ADOPT: u8 = 9;

impl Handler for Inline {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if SEARCHES.contains(&request.body[1]) && self.garbles.load(Ordering::Relaxed) {
            return reply.send(b"reef".to_vec());
        }
        let Mute { code, network, node, owner } = &self.mute;
        if code.load(Ordering::Relaxed) == request.body[1] {
            network.upgrade().unwrap().cut_one_way(node, owner);
        }
        self.shards.handle(&request, reply);
        while self.shards.work() {}
    }
}

/// A memory node in one of its lives.
pub(crate) struct Memory {
    pub(crate) host: Host,
    provider: Sim,
    pub(crate) shards: Arc<ShardHost>,
    life: u64,
    listener: Option<Box<dyn Listener>>,
    _node: Arc<Node>,
}

/// The list of nodes, as a pool would report it.
#[derive(Debug, Default)]
pub(crate) struct Listed(Mutex<Option<Vec<MemoryNode>>>);

impl NodeList for Listed {
    fn nodes(&self) -> Option<Vec<MemoryNode>> {
        self.0.lock().clone()
    }
}

/// News that a database would get.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) lost: Mutex<Vec<ShardId>>,
    pub(crate) moved: Mutex<Vec<(ShardId, StoreNode)>>,
    pub(crate) load: Mutex<WriteLoad>,
    /// Whether flushes wait for all shards that are being sent.
    pub(crate) due: AtomicBool,
}

impl StoreWatcher for Heard {
    fn lost(&self, shards: &[ShardId]) {
        self.lost.lock().extend_from_slice(shards);
    }
    fn moved(&self, shards: &[ShardId], node: StoreNode) {
        self.moved.lock().extend(shards.iter().map(|id| (*id, node)));
    }
    fn room_has_changed(&self) {}
    fn is_due(&self, _shard: ShardId) -> bool {
        self.due.load(Ordering::Relaxed)
    }
    fn write_load(&self) -> WriteLoad {
        *self.load.lock()
    }
    fn fill_bytes_per_s(&self) -> u64 {
        self.load.lock().fill_bytes_per_s
    }
}

pub(crate) struct World {
    pub(crate) simulation: Simulation,
    pub(crate) network: Arc<Network>,
    pub(crate) owner: Host,
    pub(crate) nodes: Vec<Memory>,
    pub(crate) listed: Arc<Listed>,
    pub(crate) heard: Arc<Heard>,
    pub(crate) store: Arc<RemoteShards>,
    /// Bytes of a node for shards, and copies of each shard.
    sizes: (u64, u32),
    garbles: Arc<AtomicBool>,
    mutes: Arc<AtomicU8>,
}

pub(crate) fn identity(epoch: u64) -> OwnerIdentity {
    OwnerIdentity { database: [9; 16], epoch: Epoch(epoch), token: [epoch as u8; 16] }
}

/// Terms for nodes with this number of bytes for shards.
fn terms(sizes: (u64, u32)) -> OwnerTerms {
    let (bytes, copies) = sizes;
    OwnerTerms { landing_bytes: (bytes / 16).max(MIB), copies, ..OwnerTerms::default() }
}

impl Memory {
    pub(crate) fn figures(&self) -> HostFigures {
        self.shards.figures().unwrap()
    }
}

impl World {
    /// Nodes for a database that brings its own owner.
    pub(crate) fn for_database(seed: u64, nodes: u64, bytes: u64) -> Self {
        let world = Self::new(seed, nodes, bytes);
        world.store.close();
        world
    }

    /// An owner, and nodes with this number of bytes for shards.
    pub(crate) fn new(seed: u64, nodes: u64, bytes: u64) -> Self {
        Self::over(&Model::quick(), seed, nodes, bytes)
    }

    /// An owner that sends two copies of each shard, and nodes with this number of bytes for
    /// shards.
    pub(crate) fn with_copies(seed: u64, nodes: u64, bytes: u64) -> Self {
        Self::build(&Model::quick(), seed, nodes, (bytes, 2))
    }

    /// The same over links of this model.
    pub(crate) fn over(model: &Model, seed: u64, nodes: u64, bytes: u64) -> Self {
        Self::build(model, seed, nodes, (bytes, 1))
    }

    fn build(model: &Model, seed: u64, nodes: u64, sizes: (u64, u32)) -> Self {
        let simulation = Simulation::new(seed);
        let network = Network::new(&simulation);
        let owner = simulation.host("owner");
        let listed = Arc::new(Listed::default());
        let reach = network.join(&owner, model.clone());
        let mut world = Self {
            store: Self::store(&owner, &reach, &listed, sizes, 1),
            simulation,
            network,
            owner,
            nodes: Vec::new(),
            listed,
            heard: Arc::default(),
            sizes,
            garbles: Arc::default(),
            mutes: Arc::default(),
        };
        for number in 1..=nodes {
            let host = world.simulation.host(&format!("memory{number}"));
            let provider = world.network.join(&host, model.clone());
            let memory = world.start(number, &host, &provider, 1);
            world.nodes.push(memory);
        }
        world.list();
        let weak: Weak<Heard> = Arc::downgrade(&world.heard);
        world.store.watch(weak);
        world.wait(SECOND);
        world
    }

    fn store(
        owner: &Host,
        reach: &Sim,
        listed: &Arc<Listed>,
        sizes: (u64, u32),
        epoch: u64,
    ) -> Arc<RemoteShards> {
        let store = Self::opening_store(owner, reach, listed, terms(sizes));
        store.owner_is(&identity(epoch)).unwrap();
        store.purge();
        store
    }

    fn opening_store(
        owner: &Host,
        reach: &Sim,
        listed: &Arc<Listed>,
        terms: OwnerTerms,
    ) -> Arc<RemoteShards> {
        RemoteShards::new(OwnerParts {
            nodes: Arc::clone(listed) as _,
            reach: Arc::new(reach.clone()),
            runtime: Arc::new(owner.clone()),
            waits: Waits::InRuntime,
            terms,
        })
    }

    /// A store that has no owner yet.
    pub(crate) fn unnamed_store(&self) -> Arc<RemoteShards> {
        let reach = self.network.join(&self.owner, Model::quick());
        Self::opening_store(&self.owner, &reach, &self.listed, terms(self.sizes))
    }

    /// A store that has no owner yet, and keeps the number `staying` of memtables in the process.
    pub(crate) fn staying_store(&self, staying: StayingMemtables) -> Arc<RemoteShards> {
        let reach = self.network.join(&self.owner, Model::quick());
        let terms = OwnerTerms { staying, ..terms(self.sizes) };
        Self::opening_store(&self.owner, &reach, &self.listed, terms)
    }

    /// The store of an owner whose open has not decided which shards it keeps.
    pub(crate) fn opening(&self, epoch: u64) -> Arc<RemoteShards> {
        let store = self.unnamed_store();
        store.owner_is(&identity(epoch)).unwrap();
        store
    }

    /// The next owner of the database.
    fn next_owner(&self, epoch: u64) -> Arc<RemoteShards> {
        let reach = self.network.join(&self.owner, Model::quick());
        let store = Self::store(&self.owner, &reach, &self.listed, self.sizes, epoch);
        self.wait(SECOND);
        store
    }

    /// Starts a new life of a node.
    fn start(&self, number: u64, host: &Host, provider: &Sim, life: u64) -> Memory {
        let limits = ShardLimits { arena_bytes: MIB, ..ShardLimits::new(self.sizes.0) };
        let clock = self.simulation.clock();
        let bytes = NodeBytes::new(self.sizes.0);
        let shards = ShardHost::new(limits, bytes, clock, HostThreads::Caller);
        let garbles = Arc::clone(&self.garbles);
        let mute = Mute {
            code: Arc::clone(&self.mutes),
            network: Arc::downgrade(&self.network),
            node: host.clone(),
            owner: self.owner.clone(),
        };
        let handler = Box::new(Inline { shards: Arc::clone(&shards), garbles, mute });
        let node = self.network.node(NodeId(number), Epoch(life), Some(handler)).unwrap();
        shards.open(&node);
        let listener = archipelago_fabric::Provider::serve(provider, &node, host.name()).unwrap();
        let (host, provider) = (host.clone(), provider.clone());
        Memory { host, provider, shards, life, listener: Some(listener), _node: node }
    }

    /// Ends the node at this index. Its memory is gone.
    pub(crate) fn kill(&mut self, index: usize) {
        let memory = &mut self.nodes[index];
        memory.listener = None;
        memory.host.crash();
        memory.shards.close();
    }

    /// Starts a new life of the node at this index.
    pub(crate) fn revive(&mut self, index: usize) {
        let Memory { host, provider, life, .. } = &self.nodes[index];
        host.restart();
        let next = self.start(index as u64 + 1, host, provider, life + 1);
        self.nodes[index] = next;
    }

    /// Makes the nodes execute requests to hold shards, but loses their answers until
    /// [`World::heal`].
    pub(crate) fn lose_confirmations(&self) {
        self.mutes.store(ADOPT, Ordering::Relaxed);
    }

    /// Ends all cuts.
    pub(crate) fn heal(&self) {
        self.mutes.store(0, Ordering::Relaxed);
        self.network.heal_all();
    }

    /// Makes the pool report all nodes to the owner.
    pub(crate) fn list(&self) {
        let member = |(memory, number): (&Memory, u64)| MemoryNode {
            node: NodeId(number),
            life: Epoch(memory.life),
            endpoints: vec![memory.host.name().to_owned()],
            is_up: memory.listener.is_some(),
        };
        *self.listed.0.lock() = Some(self.nodes.iter().zip(1..).map(member).collect());
    }

    pub(crate) fn wait(&self, time: Duration) {
        wait_for(&self.owner, Runtime::sleep(&self.owner, time));
    }

    pub(crate) fn figures(&self, index: usize) -> HostFigures {
        self.nodes[index].figures()
    }

    /// Runs the timers of all hosts.
    pub(crate) fn tick(&self) {
        self.nodes.iter().for_each(|node| node.shards.tick());
    }

    pub(crate) fn held(&self) -> u64 {
        (0..self.nodes.len()).map(|index| self.figures(index).shards).sum()
    }

    pub(crate) fn send(&self, sample: &Sample) -> Result<StoreNode, AwayError> {
        self.store.send(&sample.shard(), &sample.bytes)
    }

    /// The index of the node that has the shards of this number.
    pub(crate) fn index(&self, node: StoreNode) -> usize {
        // The first lives have the first numbers, in the order of the list.
        usize::try_from(node.0).unwrap() - 1
    }
}

/// A shard as its owner has it.
pub(crate) struct Sample {
    pub(crate) id: ShardId,
    pub(crate) keys: KeyRange,
    pub(crate) last_seq: SeqNo,
    pub(crate) bytes: Vec<u8>,
    pub(crate) image: Arc<SealedImage>,
}

/// Key by its number; the longest values are read one-sided.
pub(crate) fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:04}").into_bytes()
}

impl Sample {
    /// A shard with records of some of the keys: some have several versions, and some long values.
    pub(crate) fn new(rng: &mut Rng, memtable: u64, keys: u64, longest: u64) -> Self {
        let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
        let first = memtable * 10_000;
        let mut seq = first;
        for number in 0..keys {
            for _ in 0..rng.u64(0..4) {
                seq += 1;
                let kind = match rng.u64(0..8) {
                    0 => Kind::Delete,
                    1..=4 => Kind::Merge,
                    _ => Kind::Put,
                };
                let len = match rng.u64(0..20) {
                    0 => longest,
                    _ => rng.u64(0..200),
                };
                let value = vec![rng.u8(..); if kind == Kind::Delete { 0 } else { len as usize }];
                shard.insert(&key_of(number), SeqNo(seq), kind, &value);
            }
        }
        shard.seal();
        let mut bytes = Vec::new();
        shard.write_image(&mut bytes).unwrap();
        let image = SealedImage::open(bytes.clone()).unwrap();
        let keys = KeyRange { start: b"k".to_vec(), end: Some(b"l".to_vec()) };
        let id = ShardId { memtable, shard: 0 };
        Self { id, keys, last_seq: SeqNo(seq), bytes, image }
    }

    /// A shard with a put of each of the keys below this number, whose values have this length.
    pub(crate) fn puts(memtable: u64, keys: u64, value_bytes: usize) -> Self {
        let mut sample = Self::new(&mut Rng::with_seed(0), memtable, 0, 0);
        let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
        for number in 0..keys {
            let value = vec![memtable as u8; value_bytes];
            shard.insert(&key_of(number), SeqNo(memtable * 10_000 + number), Kind::Put, &value);
        }
        shard.seal();
        sample.bytes.clear();
        shard.write_image(&mut sample.bytes).unwrap();
        sample.image = SealedImage::open(sample.bytes.clone()).unwrap();
        sample.last_seq = SeqNo(memtable * 10_000 + keys);
        sample
    }

    pub(crate) fn shard(&self) -> NewShard<'_> {
        NewShard {
            id: self.id,
            family: CfId(0),
            keys: &self.keys,
            after_seq: SeqNo(0),
            last_seq: self.last_seq,
            oldest_log: FileNo(1),
            seal_log: FileNo(2),
        }
    }
}

pub(crate) type Versions = Vec<(u64, Kind, Vec<u8>)>;

/// Versions of a key that a search of these shards, newest first, must find.
pub(crate) fn expected(samples: &[&Sample], key: &[u8], snapshot: SeqNo, floor: SeqNo) -> Versions {
    let mut versions = Vec::new();
    let mut is_decided = false;
    for sample in samples {
        let lookup = Lookup::new(key, snapshot);
        let visited = sample.image.lookup(&lookup, |found| {
            if is_decided || found.seq < floor {
                return ControlFlow::Break(());
            }
            versions.push((found.seq.0, found.kind, found.value.to_vec()));
            is_decided = found.kind != Kind::Merge;
            ControlFlow::Continue(())
        });
        visited.unwrap();
    }
    versions
}

pub(crate) fn versions(answer: &LookupAnswer, key: usize) -> Versions {
    let found = answer.keys[key].versions.iter();
    found.map(|at| (at.seq.0, at.kind, at.value.as_ref().to_vec())).collect()
}

pub(crate) fn ask<'a>(
    node: StoreNode,
    ids: &[ShardId],
    keys: &'a [Vec<u8>],
    snapshot: SeqNo,
) -> LookupAsk<'a> {
    let within: Vec<u32> = (0..ids.len() as u32).collect();
    let key = |key: &'a Vec<u8>| KeyAsk { key, floor: SeqNo(0), within: within.clone() };
    let keys = keys.iter().map(key).collect();
    let (shards, time_left) = (ids.to_vec(), 10 * SECOND);
    LookupAsk { node, shards, keys, snapshot, keys_only: false, time_left }
}

pub(crate) fn lookup_one(
    world: &World,
    node: StoreNode,
    id: ShardId,
) -> Result<LookupAnswer, AwayError> {
    let keys = [key_of(1)];
    world.store.lookup(&[ask(node, &[id], &keys, SeqNo::MAX)]).remove(0)
}

/// The kind of a scan.
struct Wanted {
    direction: ScanDirection,
    snapshot: SeqNo,
    bytes_max: usize,
}

/// All records of a scan, page by page.
fn scan_all(
    world: &World,
    node: StoreNode,
    ids: &[ShardId],
    keys: &KeyRange,
    wanted: &Wanted,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut records, mut resume): (Vec<_>, Option<ResumeAt>) = (Vec::new(), None);
    let Wanted { direction, snapshot, bytes_max } = *wanted;
    loop {
        let ask = ScanAsk {
            node,
            shards: ids,
            keys,
            resume: resume.as_ref(),
            direction,
            snapshot,
            bytes_max,
            keys_only: false,
            time_left: 10 * SECOND,
        };
        let page = world.store.scan(&ask).unwrap();
        for record in page.records {
            records.push((record.key, record.value.as_ref().to_vec()));
        }
        match page.resume {
            Some(next) => resume = Some(next),
            None => return records,
        }
    }
}

/// Compares all reads of some shards at one node with a search of their images.
pub(crate) fn reads_are_right(
    world: &World,
    rng: &mut Rng,
    node: StoreNode,
    samples: &[&Sample],
    keys: u64,
) {
    let ids: Vec<ShardId> = samples.iter().map(|sample| sample.id).collect();
    for round in 0..6 {
        let all: Vec<Vec<u8>> = (0..keys + 1).map(key_of).collect();
        let snapshot = if round == 0 { SeqNo::MAX } else { SeqNo(rng.u64(10_000..50_000)) };
        let wanted: Vec<Vec<u8>> = match round % 2 {
            0 => all,
            _ => vec![key_of(rng.u64(0..keys))],
        };
        let mut ask = ask(node, &ids, &wanted, snapshot);
        for key in &mut ask.keys {
            key.floor = SeqNo(if rng.bool() { 0 } else { rng.u64(0..40_000) });
        }
        let answer = world.store.lookup(std::slice::from_ref(&ask)).remove(0).unwrap();
        for (number, key) in ask.keys.iter().enumerate() {
            let right = expected(samples, key.key, snapshot, key.floor);
            assert_eq!(versions(&answer, number), right, "{:?} at {snapshot}", key.key);
        }
        let range = KeyRange { start: key_of(rng.u64(0..keys)), end: Some(key_of(keys - 1)) };
        if range.is_empty() {
            continue;
        }
        let bytes_max = rng.usize(1..20_000);
        let mut forward = Vec::new();
        let mut number_keys = BTreeMap::new();
        for key in (0..keys).map(key_of).filter(|key| range.contains(key)) {
            let found = expected(samples, &key, snapshot, SeqNo(0));
            let records: Vec<_> = found
                .into_iter()
                .map(|(seq, kind, value)| (key::encode(&key, SeqNo(seq), kind), value))
                .collect();
            forward.extend(records.clone());
            number_keys.insert(key, records);
        }
        let backward: Vec<_> = number_keys.into_values().rev().flatten().collect();
        for (direction, right) in
            [(ScanDirection::Forward, forward), (ScanDirection::Backward, backward)]
        {
            let wanted = Wanted { direction, snapshot, bytes_max };
            let records = scan_all(world, node, &ids, &range, &wanted);
            let shown = |records: &[(Vec<u8>, Vec<u8>)]| -> Vec<_> {
                let key = |(key, value): &(Vec<u8>, Vec<u8>)| {
                    let KeyRef { user_key, seq, kind } = KeyRef::decode(key).unwrap();
                    (user_key.to_vec(), seq, kind, value.len())
                };
                records.iter().map(key).collect()
            };
            assert_eq!(shown(&records), shown(&right), "{direction:?}");
            assert!(records == right, "values differ");
        }
    }
}

/// Sends samples, and returns them by node, newest first.
fn send_all<'a>(world: &World, samples: &'a [Sample]) -> BTreeMap<StoreNode, Vec<&'a Sample>> {
    let mut by_node: BTreeMap<StoreNode, Vec<&Sample>> = BTreeMap::new();
    for sample in samples.iter().rev() {
        by_node.entry(world.send(sample).unwrap()).or_default().push(sample);
    }
    by_node
}

pub(crate) fn samples(rng: &mut Rng, count: u64, keys: u64, longest: u64) -> Vec<Sample> {
    (1..=count).map(|memtable| Sample::new(rng, memtable, keys, longest)).collect()
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
