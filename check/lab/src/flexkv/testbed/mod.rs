//! The memory-disaggregated store on FlexKV's testbed, in virtual time.
//!
//! Compute nodes, memory nodes, manager and coordinator run as in production, over the fabric's
//! model of network cards (decision 0012, unscaled). Clients send one request after another.
//!
//! | part | in |
//! | --- | --- |
//! | machines, starting, loading | here |
//! | requests of clients | `workload.rs` |
//! | a proxy's threads | `threads.rs` |
//! | clients, counters, timelines | `clients.rs` |
//!
//! **Costs of computing.** The fabric's model charges a machine's ten threads for posting,
//! completions and messages. In addition, a call costs its client a local READ (a look-up in the
//! cache), and a pair from the cache costs another one. `threads.rs` lists the costs of an index
//! request, which one of the proxy's threads pays. No other work takes virtual time.
//!
//! **Smaller than on the testbed** are the number of keys (and with it caches and partitions), and
//! Δ if the load changes in a run. [`Setup`] states the paper's sizes. Times of the model and of
//! the protocol are not scaled.

mod clients;
mod figures;
mod side_by_side;
mod threads;
mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::sim::{Model, Network, Sim, Work};
use archipelago_fabric::{Listener, Node, NodeId, Provider};
use archipelago_flexkv::coordinator::{
    Coordinator, CoordinatorRpc, Plan, Report, Rhythm, Tuning, directory_label,
};
use archipelago_flexkv::{CacheMode, FlexKvSettings, Surroundings};
use archipelago_flexkv_rivals::{Rival, RivalNode, RivalProtocol};
use archipelago_manager::core::Terms;
use archipelago_memory::core::{Limits, Sabotage};
use archipelago_pool::{Pace, PoolClient, PoolOptions};
use archipelago_sim::pool::{
    MANAGER, ManagerActor, ManagerLife, MemoryActor, MemoryLife, start_manager, start_memory,
};
use parking_lot::Mutex;

use threads::Threaded;

pub use clients::{Measured, Point};
pub use figures::{FIGURES, Figure, Stated, System, compare};
pub use side_by_side::side_by_side;
pub use workload::{Request, Workload, Ycsb};

const COORDINATOR: &str = "coordinator";
const LABEL: u64 = 1;
const BLOCK_BYTES: u64 = 4 << 20;
/// Blocks of a memory node. No run needs more, and a block that was never written takes no memory.
const BLOCKS_MAX: u64 = 4096;
/// Bytes of a metadata server's memory, which holds the whole index.
const SERVER_BYTES: u64 = 256 << 20;
/// Virtual time after which loading fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The testbed and what runs on it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of compute nodes; 20 in the paper.
    pub compute: usize,
    /// Number of memory nodes; 3 in the paper.
    pub memory: usize,
    /// Number of copies of everything; 3 in the paper.
    pub copies: u32,
    /// Number of clients of a compute node; 10 in the paper.
    pub clients: usize,
    /// Number of requests that each client has in flight; 8 in the paper.
    pub coroutines: usize,
    /// Number of threads of a proxy; 2 in the paper.
    pub proxy_threads: usize,
    /// Number of keys that are loaded; 10,000,000 in the paper.
    pub keys: u64,
    /// Bytes of a key. In the paper, a key and its value have 128 bytes together.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Bytes of a compute node's memory; 64 MB in the paper, which is 5 % of keys and values.
    pub memory_bytes: u64,
    /// Base-2 logarithm of the number of partitions; 13 in the paper.
    pub partition_bits: u32,
    /// Base-2 logarithm of the number of buckets, of eight slots each, in each partition.
    pub log2_buckets: u32,
    /// Time after which a refused attempt is not repeated, and the call ends as busy. In the paper,
    /// a write that meets another write of its key fails immediately, in every system. A short
    /// patience has the same effect.
    pub patience: Duration,
    /// Kinds of entries that compute nodes cache.
    pub cache: CacheMode,
    /// Rival that runs instead of this store.
    pub rival: Option<Rival>,
    /// Number of proxied partitions in a thousand after loading.
    pub offload: u32,
    /// Seed from which everything follows.
    pub seed: u64,
    /// Factor by which the load is observed and counted longer than with small pairs. The cards
    /// carry few large pairs in the time for small ones.
    pub stretch: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            compute: 20,
            memory: 3,
            copies: 3,
            clients: 10,
            coroutines: 8,
            proxy_threads: 2,
            keys: 50_000,
            key_bytes: 16,
            value_bytes: 112,
            memory_bytes: 320 << 10,
            partition_bits: 8,
            log2_buckets: 5,
            patience: Duration::from_micros(20),
            cache: CacheMode::Pairs,
            rival: None,
            offload: 0,
            seed: 1,
            stretch: 1,
        }
    }
}

struct Machine {
    sim: Sim,
    node: RivalNode,
    /// Busy time of its proxy's threads, and their number.
    proxying_ps: Arc<AtomicU64>,
    proxy_threads: usize,
    _kept: (Arc<Node>, Box<dyn Listener>),
}

type Coordinating = (Arc<CoordinatorRpc>, Arc<Node>, Box<dyn Listener>);

/// A running store with all its keys.
pub struct Testbed {
    setup: Setup,
    simulation: Simulation,
    network: Arc<Network>,
    machines: Vec<Machine>,
    /// A metadata server, which has no clients.
    server: Option<Machine>,
    coordinator: Arc<Mutex<Option<Coordinating>>>,
    _manager: ManagerActor,
    memory: Vec<(Host, MemoryActor)>,
}

impl std::fmt::Debug for Testbed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Testbed({:?})", self.setup)
    }
}

fn settings(setup: &Setup) -> FlexKvSettings {
    FlexKvSettings {
        label: LABEL,
        partition_bits: setup.partition_bits,
        log2_buckets: setup.log2_buckets,
        // The lease is shorter than in production, so that freed records are reused within a run.
        lease: Duration::from_millis(10),
        address_lease: Duration::from_millis(40),
        cache: setup.cache,
        memory_limit: setup.memory_bytes,
        patience: setup.patience,
    }
}

async fn join_pool(sim: &Sim, label: u64) -> PoolClient {
    let mut options = PoolOptions::new(MANAGER, label);
    options.pace = Pace {
        request: Duration::from_millis(8),
        pause: Duration::from_micros(500),
        renewal: Duration::from_millis(1),
    };
    let (reach, host) = (Arc::new(sim.clone()), Arc::new(sim.host().clone()));
    loop {
        let joining = PoolClient::join(options.clone(), reach.clone(), host.clone());
        if let Ok(client) = joining.await
            && client.block_bytes() > 0
        {
            return client;
        }
        Runtime::sleep(sim.host(), Duration::from_millis(1)).await;
    }
}

async fn start_node(sim: Sim, setup: Setup, threads: usize) -> Result<Machine> {
    let pool = join_pool(&sim, LABEL).await;
    let name = sim.host().name().to_owned();
    let around = Surroundings {
        runtime: Arc::new(sim.host().clone()),
        reach: Arc::new(sim.clone()),
        pool,
        coordinator: vec![COORDINATOR.to_owned()],
        endpoints: vec![name.clone()],
    };
    let (node, door) = RivalNode::new(setup.rival, settings(&setup), around)?;
    let (door, proxying_ps) = Threaded::new(door, sim.host(), threads);
    let (id, epoch) = node.compute().fabric_id();
    let fabric = sim.network().node(id, epoch, Some(Box::new(door)))?;
    node.compute().lend_counters(&fabric);
    let listener = sim.serve(&fabric, &name)?;
    while node.compute().join().await.is_err() {
        Runtime::sleep(sim.host(), Duration::from_millis(1)).await;
    }
    let _kept = (fabric, listener);
    Ok(Machine { sim, node, proxying_ps, proxy_threads: threads, _kept })
}

async fn start_coordinator(
    sim: Sim,
    plan: Plan,
    kept: Arc<Mutex<Option<Coordinating>>>,
) -> Result<()> {
    let pool = join_pool(&sim, directory_label(LABEL)).await;
    let runtime = Arc::new(sim.host().clone());
    let (rpc, handler) = CoordinatorRpc::new(plan, runtime, Arc::new(sim.clone()), pool);
    rpc.tune(Tuning::FIXED);
    let node = sim.network().node(NodeId(u64::MAX - 1), Epoch(1), Some(handler))?;
    let listener = sim.serve(&node, COORDINATOR)?;
    rpc.start(Rhythm::default());
    *kept.lock() = Some((rpc, node, listener));
    Ok(())
}

fn ended(crashed: impl std::fmt::Display) -> Error {
    Error::invalid(crashed.to_string())
}

/// The only life of the memory node of that number.
fn memory_life(number: u64) -> MemoryLife {
    MemoryLife {
        node: NodeId(number),
        epoch: Epoch(number + 1),
        limits: Limits { block_bytes: BLOCK_BYTES, blocks_max: BLOCKS_MAX },
        sabotage: Sabotage::default(),
    }
}

impl Testbed {
    /// Starts everything and loads the keys, all at ratio 0. Then it sets the ratio and the rules
    /// by which the map follows the load.
    pub fn start(setup: &Setup) -> Result<Self> {
        let simulation = Simulation::new(setup.seed);
        let network = Network::new(&simulation);
        let join = |name: &str| network.join(&simulation.host(name), Model::CONNECTX3);
        let terms = Terms {
            copies: setup.copies,
            lease: Duration::from_millis(20),
            node_lease: Duration::from_millis(20),
            resend: Duration::from_millis(2),
            fill_max: Duration::from_millis(60),
            audit: Duration::from_secs(10),
        };
        let life = ManagerLife { epoch: Epoch(1), terms, random: setup.seed };
        let manager = start_manager(&network, &join(MANAGER), life);
        let memory = (1..=setup.memory as u64).map(|number| {
            let sim = join(&format!("memory{number}"));
            let actor = start_memory(&network, &sim, memory_life(number));
            (sim.host().clone(), actor)
        });
        let memory: Vec<(Host, MemoryActor)> = memory.collect();
        let coordinator = Arc::new(Mutex::new(None));
        // A metadata server's subtables cannot grow.
        let servers = usize::from(setup.rival == Some(Rival::Clover));
        let plan = Plan {
            partition_bits: setup.partition_bits,
            log2_buckets: setup.log2_buckets + 2 * servers as u32,
            offload: 0,
            fixed: true,
        };
        let starting = start_coordinator(join(COORDINATOR), plan, Arc::clone(&coordinator));
        simulation.block_on(starting)?;
        let mut machines = Vec::new();
        // The metadata server is an additional machine, and joins first. All its threads serve.
        for number in 0..setup.compute + servers {
            let sim = join(&format!("compute{number}"));
            let threads = if number < servers { setup.clients } else { setup.proxy_threads };
            let host = sim.host().clone();
            let mut setup = setup.clone();
            if number < servers {
                setup.memory_bytes = SERVER_BYTES;
            }
            let starting = host.spawn("start", start_node(sim, setup, threads));
            machines.push(simulation.block_on(starting).map_err(ended)??);
        }
        let mut testbed = Self {
            setup: setup.clone(),
            simulation,
            network,
            machines,
            server: None,
            coordinator,
            _manager: manager,
            memory,
        };
        testbed.settle()?;
        if servers > 0 {
            testbed.coordinator().assign_by(Arc::new(RivalProtocol::new(Rival::Clover)));
            testbed.coordinator().set_offload(1000);
            testbed.settle()?;
        }
        testbed.load()?;
        if servers == 0 && setup.offload > 0 {
            testbed.coordinator().set_offload(setup.offload);
            testbed.settle()?;
        }
        testbed.server = (servers > 0).then(|| testbed.machines.remove(0));
        Ok(testbed)
    }

    fn coordinator(&self) -> Arc<CoordinatorRpc> {
        let kept = self.coordinator.lock();
        let (rpc, ..) = kept.as_ref().expect("it was started");
        Arc::clone(rpc)
    }

    /// Waits until the map no longer changes.
    fn settle(&self) -> Result<()> {
        let rpc = self.coordinator();
        let end_ns = self.simulation.now_ns() + PATIENCE.as_nanos() as u64;
        while !rpc.look(Coordinator::is_settled) {
            if self.simulation.now_ns() > end_ns {
                return Err(Error::busy("the map keeps changing"));
            }
            self.simulation.run_for(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Cuts this compute node off from this memory node, both counted from 0. All other nodes reach
    /// both.
    pub fn cut_off(&self, compute: usize, memory: usize) {
        self.network.cut(self.machines[compute].sim.host(), &self.memory[memory].0);
    }

    /// Virtual time since the start of the simulation.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.simulation.now_ns()
    }

    /// Number of steps of the simulator.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.simulation.events()
    }

    /// Decisions of the coordinator so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.coordinator().look(|core| core.report().clone())
    }

    /// Number of proxied partitions in a thousand.
    #[must_use]
    pub fn offload(&self) -> u32 {
        self.coordinator().look(Coordinator::offload)
    }

    /// Sets the number of proxied partitions in a thousand, which then stays.
    pub fn set_offload(&self, share: u32) -> Result<()> {
        self.coordinator().set_offload(share);
        self.settle()
    }

    /// Sets the rules by which the map follows the load from now on.
    pub fn tune(&self, tuning: Tuning) {
        self.coordinator().tune(tuning);
    }

    /// Sums over the caches of all nodes: reads served by pairs, by addresses, and by neither.
    #[must_use]
    pub fn hits(&self) -> [u64; 3] {
        let mut sum = [0; 3];
        for machine in &self.machines {
            let cache = machine.node.compute().status().cache;
            let more = [cache.pair_hits, cache.address_hits, cache.misses];
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        sum
    }

    /// Index requests that each node has served as a proxy, since it started.
    #[must_use]
    pub fn served(&self) -> Vec<u64> {
        self.machines.iter().map(|machine| machine._kept.0.stats().requests).collect()
    }

    /// Busy time of every card, unit and thread so far in nanoseconds, by name.
    fn work(&self) -> BTreeMap<String, u64> {
        let mut work = BTreeMap::new();
        for Work { machine, outbound_ns, inbound_ns, atomics_ns, thread_ns } in self.network.work()
        {
            work.insert(format!("{machine}'s card, sending"), outbound_ns);
            work.insert(format!("{machine}'s card, receiving"), inbound_ns);
            work.insert(format!("{machine}'s card, atomics"), atomics_ns);
            work.insert(format!("{machine}'s threads"), thread_ns);
        }
        for machine in self.machines.iter().chain(&self.server) {
            let name = format!("{}'s proxy threads", machine.sim.host().name());
            let ns = machine.proxying_ps.load(Ordering::Relaxed) / 1000;
            work.insert(name, ns / machine.proxy_threads.max(1) as u64);
        }
        work
    }

    fn load(&mut self) -> Result<()> {
        let tasks = self.setup.clients * self.setup.coroutines;
        let all = self.machines.len() * tasks;
        let mut loading = Vec::new();
        for (at, machine) in self.machines.iter().enumerate() {
            for task in 0..tasks {
                let (node, setup) = (machine.node.clone(), self.setup.clone());
                let runtime: Arc<dyn Runtime> = Arc::new(machine.sim.host().clone());
                let first = (at * tasks + task) as u64;
                let keys = (first..setup.keys).step_by(all);
                let load = async move {
                    for number in keys {
                        let key = workload::key(number, setup.key_bytes);
                        let value = workload::value(number, setup.value_bytes);
                        // The store is busy with another writer of the key or with a partition that
                        // grows.
                        while node.set(&key, &value, 0).await.is_err() {
                            runtime.sleep(Duration::from_micros(50)).await;
                        }
                    }
                };
                loading.push(Host::spawn(machine.sim.host(), "load", load));
            }
        }
        for task in loading {
            self.simulation.block_on(task).map_err(ended)?;
        }
        self.settle()
    }
}
