//! A cluster in virtual time: storage nodes on disks in memory, a manager, and clients.
//!
//! The test is the thread outside the simulation. Everything that it calls on a client runs the
//! simulation until the call returns, so a timeout costs no time. One seed decides a whole run.
//!
//! ```ignore
//! let mut world = World::founded(6, seed);
//! let stores = world.client("owner").stores();
//! world.kill(3);
//! world.start(3);
//! ```

mod machine;
mod manager;
mod node;
mod owner;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_fabric::Reach;
use archipelago_fabric::sim::{Model, Network, Sim};
use archipelago_storage::Sabotage;
use archipelago_store::Stores;
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::members::{MemberTable, MemberTerms};
use archipelago_store::nodes::stores::{NodeStores, NodeStoresOptions};
use archipelago_store::nodes::wire::{Members, RepairStatus, StorageReport, StoreMessage};

pub(crate) use machine::Machine;
use manager::ManagerProcess;
use node::NodePlace;
pub(crate) use owner::{Owner, VOLUME, options};
use worker::Worker;

/// Address of the manager.
pub(crate) const MANAGER: &str = "manager";
/// Virtual time after which a run counts as stuck.
const RUN_MAX: Duration = Duration::from_secs(3600);
/// Bytes that a node may use.
pub(crate) const DEVICE_BYTES: u64 = 4 << 30;

/// Options of a world.
#[derive(Clone, Debug)]
pub(crate) struct WorldOptions {
    /// Number of storage nodes, each in a domain of its own.
    pub(crate) nodes: usize,
    /// Seed of the run.
    pub(crate) seed: u64,
    /// Times of the members, and the size of the root set.
    pub(crate) terms: MemberTerms,
    /// Steps that all nodes leave out.
    pub(crate) sabotage: Sabotage,
    /// Bytes that a node may use.
    pub(crate) device_bytes: u64,
    /// Whether the manager orders repairs. If not, nodes keep lacking the chunks and extents that
    /// faults have taken.
    pub(crate) repairs: bool,
}

impl WorldOptions {
    pub(crate) fn new(nodes: usize, seed: u64) -> Self {
        Self {
            nodes,
            seed,
            terms: MemberTerms::default(),
            sabotage: Sabotage::default(),
            device_bytes: DEVICE_BYTES,
            repairs: true,
        }
    }
}

/// A simulated cluster: storage nodes, a manager and their clients.
pub(crate) struct World {
    pub(crate) options: WorldOptions,
    pub(crate) network: Arc<Network>,
    nodes: Vec<NodePlace>,
    manager: Option<ManagerProcess>,
    manager_host: Host,
    clients: usize,
    worker: Worker,
    // The drop of the simulation ends all tasks, so it comes last.
    pub(crate) simulation: Simulation,
}

/// Numbers of the objects that all running nodes hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredObjects {
    pub(crate) chunks: u64,
    pub(crate) chunks_unsealed: u64,
    pub(crate) extents: u64,
    pub(crate) extents_in_limbo: u64,
}

/// A process that uses the cluster.
pub(crate) struct ClientProcess {
    pub(crate) host: Host,
    pub(crate) client: Arc<NodeClient>,
    reach: Arc<dyn Reach>,
}

impl World {
    /// Storage nodes and a manager that start at the same time.
    pub(crate) fn new(options: WorldOptions) -> Self {
        let simulation = Simulation::new(options.seed);
        let network = Network::new(&simulation);
        let manager_host = simulation.host(MANAGER);
        let mut world = Self {
            network,
            nodes: Vec::new(),
            manager: None,
            manager_host,
            clients: 0,
            worker: Worker::start(),
            simulation,
            options,
        };
        world.watch();
        world.start_manager();
        for _ in 0..world.options.nodes {
            world.add_node();
        }
        world
    }

    /// Ends a run that waits for ever. Beats never end, so the simulation itself would not notice
    /// such a run.
    fn watch(&self) {
        let (scheduler, seed) = (self.simulation.scheduler(), self.options.seed);
        let _never_ends = self.simulation.spawn("watchdog", async move {
            scheduler.sleep(RUN_MAX).await;
            panic!("seed {seed}: the run does not end; it waits: {:?}", scheduler.waiting());
        });
    }

    /// A cluster that is founded.
    pub(crate) fn founded(nodes: usize, seed: u64) -> Self {
        Self::founded_with(WorldOptions::new(nodes, seed))
    }

    /// A cluster that is founded.
    pub(crate) fn founded_with(options: WorldOptions) -> Self {
        let world = Self::new(options);
        world.found();
        world
    }

    /// Waits until all nodes know the cluster.
    pub(crate) fn found(&self) {
        for _ in 0..200 {
            if self.is_founded() {
                return;
            }
            self.run_for(Duration::from_millis(100));
        }
        panic!("seed {}: the cluster is not founded: {:?}", self.options.seed, self.members());
    }

    fn is_founded(&self) -> bool {
        let cluster = self.members().cluster;
        let up = self.nodes.iter().filter_map(|place| place.running.as_ref());
        cluster.is_some() && up.into_iter().all(|node| node.knows(cluster))
    }

    /// Lets time pass.
    pub(crate) fn run_for(&self, duration: Duration) {
        self.simulation.run_for(duration);
    }

    /// Number of nodes, those included that are down.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The node in place `n`.
    pub(crate) fn storage(&self, n: usize) -> StorageId {
        self.nodes[n].storage
    }

    /// Place of a node.
    pub(crate) fn place_of(&self, storage: StorageId) -> usize {
        self.nodes.iter().position(|place| place.storage == storage).expect("a node of the world")
    }

    /// Host of the node in place `n`, which a test stops or cuts off.
    pub(crate) fn host(&self, n: usize) -> &Host {
        &self.nodes[n].host
    }

    /// The disk of the node in place `n`.
    pub(crate) fn machine(&self, n: usize) -> &Machine {
        &self.nodes[n].machine
    }

    /// The members, as the manager knows them.
    pub(crate) fn members(&self) -> Members {
        self.manager
            .as_ref()
            .map_or_else(Members::default, |manager| manager.look(MemberTable::members))
    }

    /// An operator's order to empty a node.
    pub(crate) fn drain(&self, storage: StorageId) {
        let order = StoreMessage::DrainNode { storage, is_draining: true };
        let manager = self.manager.as_ref().expect("a manager runs");
        assert_eq!(manager.ask(&order), StoreMessage::Done {});
    }

    /// Progress of the repairs, as the manager knows it.
    pub(crate) fn repairs(&self) -> RepairStatus {
        self.manager.as_ref().expect("a manager runs").repairs()
    }

    /// Whether the status says that the draining node in place `n` is not needed any more.
    pub(crate) fn is_drained(&self, n: usize) -> bool {
        let (storage, manager) = (self.nodes[n].storage, self.manager.as_ref());
        let (report, repairs) = manager.expect("a manager runs").standing(storage);
        let debt = repairs.nodes.iter().find(|debt| debt.storage == storage);
        report.needed_objects() + repairs.extents_left == 0
            && repairs.is_known
            && debt.is_none_or(|debt| debt.stuck == 0)
    }

    /// Starts the node in place `n` again, with the domain of the node in place `other`.
    pub(crate) fn move_to_domain_of(&mut self, n: usize, other: usize) {
        self.nodes[n].domain = self.nodes[other].domain.clone();
        self.kill(n);
        self.start(n);
    }

    /// Makes the node in place `n` refuse to list its chunks and extents, or list them again. Its
    /// beats go on.
    pub(crate) fn hide_lists(&self, n: usize, is_hidden: bool) {
        self.nodes[n].hides_lists.store(is_hidden, Ordering::SeqCst);
    }

    /// Makes the node in place `n` answer no comparison of its chunks. Its beats go on.
    pub(crate) fn hang_checks(&self, n: usize) {
        self.nodes[n].hangs_checks.store(true, Ordering::SeqCst);
    }

    /// Checks everything that the node in place `n` holds.
    pub(crate) fn scrub(&self, n: usize) {
        self.nodes[n].running.as_ref().expect("the node runs").scrub();
    }

    /// The answer of the node in place `n` to a request, without the network.
    pub(crate) fn ask_node(&self, n: usize, request: StoreMessage, payload: &[u8]) -> StoreMessage {
        self.nodes[n].running.as_ref().expect("the node runs").ask(request, payload)
    }

    /// The report of the node in place `n`.
    pub(crate) fn report(&self, n: usize) -> StorageReport {
        self.nodes[n].running.as_ref().expect("the node runs").report()
    }

    /// Numbers of the objects that the running nodes hold.
    pub(crate) fn stored_objects(&self) -> StoredObjects {
        let mut stored = StoredObjects::default();
        for n in (0..self.nodes.len()).filter(|n| self.is_up(*n)) {
            let report = self.report(n);
            stored.chunks += report.chunks;
            stored.chunks_unsealed += report.chunks_unsealed;
            stored.extents += report.extents;
            stored.extents_in_limbo += report.extents_in_limbo;
        }
        stored
    }

    /// Begins a process that uses the cluster.
    pub(crate) fn client(&mut self, name: &str) -> ClientProcess {
        self.client_at(name, Duration::from_micros(1))
    }

    /// Begins a process that uses the cluster, and whose messages take `latency`.
    pub(crate) fn client_at(&mut self, name: &str, latency: Duration) -> ClientProcess {
        self.clients += 1;
        let host = self.simulation.host(&format!("{name} {}", self.clients));
        let model = Model { latency_ps: latency.as_nanos() as u64 * 1000, ..Model::quick() };
        let reach: Arc<dyn Reach> = Arc::new(self.network.join(&host, model));
        let runtime: Arc<dyn Runtime> = Arc::new(host.clone());
        let client = NodeClient::new(Arc::clone(&reach), runtime, vec![MANAGER.to_owned()]);
        ClientProcess { host, client, reach }
    }

    /// The stores of a new process.
    pub(crate) fn stores(&mut self, name: &str) -> Stores {
        self.client(name).stores()
    }

    fn join(&self, host: &Host) -> Sim {
        self.network.join(host, Model::quick())
    }

    /// Begins a manager that knows nothing.
    pub(crate) fn start_manager(&mut self) {
        let seed = self.simulation.fresh_seed();
        let sim = self.join(&self.manager_host);
        self.manager_host.restart();
        let manager = ManagerProcess::start(&self.manager_host, sim, &self.options, seed);
        self.manager = Some(manager);
    }

    /// Kills the manager.
    pub(crate) fn kill_manager(&mut self) {
        self.manager_host.crash();
        self.manager = None;
    }

    /// Adds a node with an empty disk in a domain of its own, and returns its place.
    pub(crate) fn add_node(&mut self) -> usize {
        let n = self.nodes.len();
        let host = self.simulation.host(&format!("node{n}"));
        let sim = self.join(&host);
        let seed = self.simulation.fresh_seed();
        let place = NodePlace::new(n, host, sim, seed, self);
        self.nodes.push(place);
        self.nodes[n].start();
        n
    }

    /// Kills the process of a node with `kill -9`. Its unsynced bytes stay.
    pub(crate) fn kill(&mut self, n: usize) {
        let killed = self.nodes[n].machine.after_kill();
        self.nodes[n].end(killed);
    }

    /// Takes the power of a node's machine. A random share of its unsynced bytes is lost.
    pub(crate) fn lose_power(&mut self, n: usize) {
        let seed = self.simulation.fresh_seed();
        let crashed = self.nodes[n].machine.after_power_loss(seed);
        self.nodes[n].end(crashed);
    }

    /// Ends a node as an operator does, after it has synced everything.
    pub(crate) fn close(&mut self, n: usize) {
        self.nodes[n].close();
        self.kill(n);
    }

    /// Ends a node for good: it is replaced by one with an empty disk, which does not run yet.
    pub(crate) fn wipe(&mut self, n: usize) {
        let seed = self.simulation.fresh_seed();
        self.nodes[n].end(Machine::new(seed));
    }

    /// Starts the node of a place, on the disk that the last one left.
    pub(crate) fn start(&mut self, n: usize) {
        self.nodes[n].start();
    }

    /// Whether the node in place `n` runs.
    pub(crate) fn is_up(&self, n: usize) -> bool {
        self.nodes[n].running.is_some()
    }

    /// Starts all nodes that do not run, and waits until the manager gets their beats.
    pub(crate) fn start_all(&mut self) {
        for n in 0..self.nodes.len() {
            if !self.is_up(n) {
                self.start(n);
            }
        }
        self.run_for(Duration::from_secs(3));
    }
}

impl ClientProcess {
    /// The stores of this process.
    pub(crate) fn stores(&self) -> Stores {
        self.stores_with(NodeStoresOptions::default())
    }

    /// The stores of this process with other options.
    pub(crate) fn stores_with(&self, options: NodeStoresOptions) -> Stores {
        let runtime: Arc<dyn Runtime> = Arc::new(self.host.clone());
        let managers = vec![MANAGER.to_owned()];
        NodeStores::open(Arc::clone(&self.reach), runtime, managers, options).unwrap()
    }
}
