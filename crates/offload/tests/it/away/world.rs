//! An owner of shards, its memory nodes, and the simulated links between them.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_base::simulation::{Host, Simulation};
use archipelago_engine::executor::OwnerIdentity;
use archipelago_engine::remote::{
    AwayError, ShardId, ShardStore, StoreNode, StoreWatcher, WriteLoad,
};
use archipelago_fabric::sim::{Model, Network, Sim};
use archipelago_fabric::{Handler, Listener, Node, NodeId, Reply, Request};
use archipelago_offload::shard_host::{
    HostFigures, HostThreads, NodeBytes, ShardHost, ShardLimits,
};
use archipelago_offload::shard_owner::{
    MemoryNode, NodeList, OwnerParts, OwnerTerms, RemoteShards, StayingMemtables, Waits,
};
use parking_lot::Mutex;

use super::sample::Sample;

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
pub(crate) struct Listed(pub(super) Mutex<Option<Vec<MemoryNode>>>);

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
    pub(super) garbles: Arc<AtomicBool>,
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
    pub(super) fn next_owner(&self, epoch: u64) -> Arc<RemoteShards> {
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
