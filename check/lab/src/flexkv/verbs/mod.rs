//! The experiment of FlexKV §3.1 and §3.2 on its testbed in virtual time: the ratios between the
//! throughputs of its operations, over the whole cluster.
//!
//! Decision 0012 has the model, the arithmetic and the expected ratios; it was written before the
//! first run. The testbed has 20 compute nodes, 3 memory nodes and 200 clients with 8 coroutines.
//! Each coroutine has one operation in flight, on a word and a node that are drawn uniformly.
//! Operations go through `Link` and access memory. Local ones take a thread of the compute node.

mod command;

use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::sim::{Model, Network, Sim};
use archipelago_fabric::{
    Attached, Batch, Call, Connect, Handler, Link, Listener, Node, NodeId, Provider, Region,
    RemoteKey, Reply, Request, Rights,
};
use parking_lot::Mutex;

pub(crate) use command::main;

/// Compute nodes of the testbed.
pub const COMPUTE_NODES: usize = 20;
/// Memory nodes of the testbed.
pub const MEMORY_NODES: usize = 3;
const CLIENTS_PER_NODE: usize = 10;
const COROUTINES: usize = 8;
const REGION_BYTES: usize = 4 << 20;
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(1 << 20);

/// Verb that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Compare-and-swap of a word of a memory node.
    RemoteSwap,
    /// WRITE of 8 bytes to a memory node.
    RemoteWrite,
    /// A request of 8 bytes to another compute node, and its answer.
    SendReceive,
    /// Compare-and-swap of a word in local memory.
    LocalSwap,
    /// READ of 128 bytes from a memory node.
    RemoteRead,
    /// Copy of 128 bytes of local memory.
    LocalRead,
}

impl Verb {
    /// Name in the paper.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RemoteSwap => "RDMA_CAS",
            Self::RemoteWrite => "RDMA_WRITE",
            Self::SendReceive => "RDMA_SEND&RECV",
            Self::LocalSwap => "LOCAL_CAS",
            Self::RemoteRead => "RDMA_READ",
            Self::LocalRead => "LOCAL_READ",
        }
    }
}

/// Ratios that the paper's text states: a verb, the verb that it is compared with, the ratio.
pub const STATED: [(Verb, Verb, f64); 4] = [
    (Verb::RemoteWrite, Verb::RemoteSwap, 10.1),
    (Verb::SendReceive, Verb::RemoteSwap, 19.5),
    (Verb::LocalSwap, Verb::RemoteSwap, 177.1),
    (Verb::LocalRead, Verb::RemoteRead, 38.2),
];

/// Number of operations to run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of measured operations of each verb.
    pub operations: u64,
    /// Number of operations before the measured ones.
    pub warm_up: u64,
    /// Factor that multiplies every time, and divides rates and bandwidth.
    pub scale: u64,
    /// Seed of drawn targets and orders.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { operations: 200_000, warm_up: 20_000, scale: 1, seed: 1 }
    }
}

/// Result of one verb. Times are converted to scale 1.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Verb that was measured.
    pub verb: Verb,
    /// Operations of the whole cluster per virtual second.
    pub per_s: f64,
    /// The median latency with one client and one operation in flight per compute node, in virtual
    /// nanoseconds.
    pub median_ns: f64,
    /// The 99th percentile of the same latency.
    pub p99_ns: f64,
    /// Number of steps of the simulator.
    pub events: u64,
}

/// Runs one verb: its throughput, and its latency on a second cluster.
pub fn measure(verb: Verb, effort: &Effort) -> Result<Measured> {
    let crowd = run(verb, effort, CLIENTS_PER_NODE, COROUTINES)?;
    let alone = run(verb, &Effort { operations: effort.operations / 10, ..*effort }, 1, 1)?;
    let mut latencies_ns = alone.latencies_ns;
    latencies_ns.sort_unstable();
    let at = |share: f64| {
        let place = (latencies_ns.len() as f64 * share) as usize;
        latencies_ns[place.min(latencies_ns.len() - 1)] as f64 / effort.scale as f64
    };
    let seconds = (crowd.end_ns - crowd.start_ns) as f64 / 1e9 / effort.scale as f64;
    Ok(Measured {
        verb,
        per_s: effort.operations as f64 / seconds,
        median_ns: at(0.5),
        p99_ns: at(0.99),
        events: crowd.events + alone.events,
    })
}

/// Counts of a run.
struct Counted {
    start_ns: u64,
    end_ns: u64,
    latencies_ns: Vec<u64>,
    events: u64,
}

struct Tally {
    left_warm_up: u64,
    left: u64,
    start_ns: u64,
    end_ns: u64,
    latencies_ns: Vec<u64>,
}

impl Tally {
    /// Counts an operation, and returns whether the coroutine continues.
    fn count(&mut self, began_ns: u64, now_ns: u64) -> bool {
        if self.left_warm_up > 0 {
            self.left_warm_up -= 1;
            self.start_ns = now_ns;
        } else if self.left > 0 {
            self.left -= 1;
            self.end_ns = now_ns;
            self.latencies_ns.push(now_ns - began_ns);
        }
        self.left > 0
    }
}

/// Handler that answers with its request.
struct Echo;

impl Handler for Echo {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        reply.send(request.body);
    }
}

/// A machine, the node that it serves, and the key to its memory.
struct Machine {
    host: Host,
    provider: Sim,
    key: Option<RemoteKey>,
    _kept: (Arc<Node>, Option<Region>, Box<dyn Listener>),
}

fn machine(
    network: &Network,
    host: Host,
    number: u64,
    model: &Model,
    memory: bool,
) -> Result<Machine> {
    let provider = network.join(&host, model.clone());
    let node = network.node(NodeId(number), Epoch(1), Some(Box::new(Echo)))?;
    let region = match memory {
        true => Some(node.allocate(REGION_BYTES, provider.atomic_path())?),
        false => None,
    };
    let key = region.as_ref().map(|region| region.grant(Rights::ALL)).transpose()?;
    let listener = provider.serve(&node, host.name())?;
    Ok(Machine { host, provider, key, _kept: (node, region, listener) })
}

/// Links of a client to the targets of the verb, which its coroutines share.
struct Client {
    verb: Verb,
    model: Model,
    provider: Sim,
    links: Vec<(Arc<dyn Link>, Option<Attached>)>,
    tally: Arc<Mutex<Tally>>,
}

/// Hosts of the modelled testbed.
struct Testbed {
    compute: Vec<Machine>,
    memory: Vec<Machine>,
}

impl Testbed {
    fn build(simulation: &Simulation, network: &Network, model: &Model) -> Result<Self> {
        let make = |name: &str, at: usize, number: usize, memory: bool| {
            let host = simulation.host(&format!("{name}-{at}"));
            machine(network, host, number as u64, model, memory)
        };
        let compute = (0..COMPUTE_NODES).map(|at| make("cn", at, at, false));
        let compute = compute.collect::<Result<Vec<_>>>()?;
        let memory = (0..MEMORY_NODES).map(|at| make("mn", at, COMPUTE_NODES + at, true));
        Ok(Self { compute, memory: memory.collect::<Result<Vec<_>>>()? })
    }

    /// Targets of `verb` from the compute node at place `from`, and the keys for them.
    fn targets(&self, verb: Verb, from: usize) -> Vec<(String, Option<RemoteKey>)> {
        let of = |machine: &Machine| (machine.host.name().to_owned(), machine.key);
        match verb {
            Verb::RemoteSwap | Verb::RemoteWrite | Verb::RemoteRead => {
                self.memory.iter().map(of).collect()
            }
            Verb::SendReceive => {
                let others = self.compute.iter().enumerate().filter(|(other, _)| *other != from);
                others.map(|(_, machine)| of(machine)).collect()
            }
            Verb::LocalSwap | Verb::LocalRead => Vec::new(),
        }
    }
}

fn run(verb: Verb, effort: &Effort, clients: usize, coroutines: usize) -> Result<Counted> {
    let simulation = Simulation::new(effort.seed);
    let network = Network::new(&simulation);
    let model = Model::CONNECTX3.scaled(effort.scale);
    let testbed = Testbed::build(&simulation, &network, &model)?;
    let tally = Arc::new(Mutex::new(Tally {
        left_warm_up: effort.warm_up.min(effort.operations),
        left: effort.operations,
        start_ns: 0,
        end_ns: 0,
        latencies_ns: Vec::new(),
    }));
    let mut connecting = Vec::new();
    for (at, machine) in testbed.compute.iter().enumerate() {
        let targets = testbed.targets(verb, at);
        for _ in 0..clients {
            let (provider, model) = (machine.provider.clone(), model.clone());
            let (targets, tally) = (targets.clone(), Arc::clone(&tally));
            let client = connect(provider, targets, verb, model, tally);
            connecting.push((at, machine.host.spawn("connects", client)));
        }
    }
    let mut ready = Vec::new();
    for (at, task) in connecting {
        ready.push((at, Arc::new(simulation.block_on(task).map_err(ended)??)));
    }
    let mut tasks = Vec::new();
    for (number, (at, client)) in ready.iter().enumerate() {
        for coroutine in 0..coroutines {
            let rng = simulation.rng(&format!("client {number}, coroutine {coroutine}"));
            let host = &testbed.compute[*at].host;
            tasks.push(host.spawn("operates", Arc::clone(client).operate(rng)));
        }
    }
    for task in tasks {
        simulation.block_on(task).map_err(ended)??;
    }
    let events = simulation.events();
    let tally = tally.lock();
    let (start_ns, end_ns) = (tally.start_ns, tally.end_ns);
    Ok(Counted { start_ns, end_ns, latencies_ns: tally.latencies_ns.clone(), events })
}

fn ended(crashed: impl std::fmt::Display) -> Error {
    Error::invalid(crashed.to_string())
}

async fn connect(
    provider: Sim,
    targets: Vec<(String, Option<RemoteKey>)>,
    verb: Verb,
    model: Model,
    tally: Arc<Mutex<Tally>>,
) -> Result<Client> {
    let mut links = Vec::new();
    for (address, key) in targets {
        let mut to = Connect::to(address, &provider.network().session());
        to.deadline = DEADLINE;
        let link = provider.connect(to).await?;
        let attached = match key {
            Some(key) => {
                let attached = link.attach(&key).await;
                Some(attached.map_err(|refusal| refusal.error("attach"))?)
            }
            None => None,
        };
        links.push((link, attached));
    }
    Ok(Client { verb, model, provider, links, tally })
}

impl Client {
    /// One coroutine: operations one after another, until enough were counted.
    async fn operate(self: Arc<Self>, mut rng: Rng) -> Result<()> {
        let scheduler = self.provider.host().scheduler().clone();
        let mut batch = Batch::new();
        loop {
            let began_ns = scheduler.now_ns();
            match self.verb {
                Verb::LocalSwap => self.provider.work(self.model.local_swap_ps).await,
                Verb::LocalRead => self.provider.work(self.model.local_read_ps).await,
                Verb::SendReceive => self.ask(&mut rng).await?,
                _ => batch = self.post(batch, &mut rng).await?,
            }
            if !self.tally.lock().count(began_ns, scheduler.now_ns()) {
                return Ok(());
            }
        }
    }

    async fn ask(&self, rng: &mut Rng) -> Result<()> {
        let (link, _) = &self.links[rng.usize(..self.links.len())];
        let answer = link.request(Call::new(&[7; 8], DEADLINE)).await;
        answer.map(|_| ()).map_err(|refusal| refusal.error("request"))
    }

    async fn post(&self, mut batch: Batch, rng: &mut Rng) -> Result<Batch> {
        let (link, memory) = &self.links[rng.usize(..self.links.len())];
        let memory = memory.ok_or_else(|| Error::invalid("no memory is attached"))?;
        batch.clear();
        let word = rng.u64(..REGION_BYTES as u64 / 8 - 16) * 8;
        match self.verb {
            Verb::RemoteWrite => _ = batch.write(memory, word, &[7; 8]),
            Verb::RemoteRead => _ = batch.read(memory, word, 128),
            _ => _ = batch.compare_swap(memory, word, 0, 1),
        }
        let batch = link.post(batch).await;
        batch.check()?;
        Ok(batch)
    }
}

/// Results of all verbs, and the paper's ratios next to the measured ones.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Result of each verb, in the order of [`Verb`].
    pub measured: Vec<Measured>,
    /// A verb, the verb it is compared with, the stated ratio, and the measured one.
    pub ratios: Vec<(Verb, Verb, f64, f64)>,
}

/// Runs the whole experiment.
pub fn experiment(effort: &Effort) -> Result<Outcome> {
    let verbs = [
        Verb::RemoteSwap,
        Verb::RemoteWrite,
        Verb::SendReceive,
        Verb::LocalSwap,
        Verb::RemoteRead,
        Verb::LocalRead,
    ];
    let measured = verbs.iter().map(|&verb| measure(verb, effort)).collect::<Result<Vec<_>>>()?;
    let rate = |verb: Verb| measured.iter().find(|m| m.verb == verb).map_or(f64::NAN, |m| m.per_s);
    let ratios = STATED.iter().map(|&(verb, to, stated)| (verb, to, stated, rate(verb) / rate(to)));
    let ratios = ratios.collect();
    Ok(Outcome { measured, ratios })
}
