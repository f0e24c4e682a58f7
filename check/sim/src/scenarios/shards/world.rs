//! A run: a memory node, databases with changing owners, a time of faults, and a time of peace.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_fabric::{Handler, Listener, Node, NodeId, Provider, Reply, Request};
use archipelago_offload::shard_host::{
    HostSabotage, HostThreads, NodeBytes, ShardHost, ShardLimits,
};
use parking_lot::Mutex;

use super::model::{Book, DatabaseBook, SharedBook};
use super::owner::Owner;
use crate::run::{RunOutcome, RunRequest, Trace};
use crate::scenarios::figures;
use crate::scenarios::shard_parts::OpenHost;

/// Time after which the host drops the shards of a silent owner.
pub(super) const ORPHANS: Duration = Duration::from_millis(60);
/// Time after which the host ends a grant that its owner neither uses nor requests again.
const GRANTS: Duration = Duration::from_millis(25);
/// Time for which a database claims memory after it was refused room.
const CLAIMS: Duration = Duration::from_millis(2);
/// Bytes of a landing zone: room for a few images.
pub(super) const LANDING_BYTES: u64 = 12 << 10;
/// Limits of the host's bytes, of which a run draws one. They are small enough to be used up, and
/// large enough for all owners.
const BYTES_MAX: [u64; 3] = [32 << 10, 48 << 10, 96 << 10];
/// Bytes of the whole node.
const NODE_BYTES: u64 = 160 << 10;
/// Bytes of a block of the pool, which uses the same memory.
const BLOCK_BYTES: u64 = 32 << 10;
/// Number of machines of a database. An old owner may continue in parallel with the new one.
const MACHINES: usize = 2;
/// Number of faults of a run.
const ROUNDS: usize = 16;

struct ToHost(Arc<ShardHost>);

impl Handler for ToHost {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.handle(&request, reply);
    }
}

/// A life of the node.
struct NodeLife {
    shards: OpenHost,
    bytes: Arc<NodeBytes>,
    _node: Arc<Node>,
    _listener: Box<dyn Listener>,
}

/// A run of one seed.
pub(super) struct World {
    simulation: Simulation,
    network: Arc<Network>,
    memory: Host,
    there: Sim,
    /// The machines of each database.
    machines: Vec<Vec<(Host, Sim)>>,
    life: Option<NodeLife>,
    book: SharedBook,
    sabotage: HostSabotage,
    bytes_max: u64,
    rng: Rng,
}

impl World {
    pub(super) fn new(request: &RunRequest, sabotage: HostSabotage) -> Self {
        let simulation = Simulation::new(request.seed);
        if request.trace {
            simulation.keep_notes();
        }
        let network = Network::new(&simulation);
        let memory = simulation.host("memory");
        let there = network.join(&memory, Model::quick());
        let mut rng = simulation.rng("world");
        let databases = rng.usize(1..=2);
        let bytes_max = BYTES_MAX[rng.usize(..BYTES_MAX.len())];
        let machine = |db: usize, at: usize| {
            let host = simulation.host(&format!("owner-{db}-{at}"));
            let provider = network.join(&host, Model::quick());
            (host, provider)
        };
        let machines = (0..databases).map(|db| (0..MACHINES).map(|at| machine(db, at)).collect());
        let machines = machines.collect();
        let databases = (0..databases).map(|_| DatabaseBook::default()).collect();
        let book = Arc::new(Mutex::new(Book { databases, ..Book::default() }));
        let mut world = Self {
            simulation,
            network,
            memory,
            there,
            machines,
            life: None,
            book,
            sabotage,
            bytes_max,
            rng,
        };
        world.begin_node();
        for db in 0..world.machines.len() {
            world.begin_owner(db);
        }
        world
    }

    /// Begins the next life of the node.
    fn begin_node(&mut self) {
        let life = {
            let mut book = self.book.lock();
            book.counted.lives += 1;
            book.life = Epoch(book.life.0 + 1);
            book.life
        };
        let limits = ShardLimits {
            arena_bytes: 16 << 10,
            databases_max: 8,
            orphans: ORPHANS,
            claims: CLAIMS,
            grants: GRANTS,
            ..ShardLimits::new(self.bytes_max)
        };
        let bytes = NodeBytes::new(NODE_BYTES);
        let scheduler = self.memory.scheduler();
        let (clock, threads) = (scheduler.clock(), HostThreads::Caller);
        let shards =
            ShardHost::sabotaged(limits, Arc::clone(&bytes), clock, threads, self.sabotage);
        let handler = Box::new(ToHost(Arc::clone(&shards)));
        let node = self.network.node(NodeId(1), life, Some(handler)).expect("a node");
        shards.open(&node);
        let listener = self.there.serve(&node, "memory").expect("a host serves at its name");
        self.work(&shards, life);
        self.tick(&shards, &bytes, life);
        let life = NodeLife { shards: OpenHost(shards), bytes, _node: node, _listener: listener };
        self.life = Some(life);
    }

    /// Starts the worker of the host, which executes one request after another.
    fn work(&self, shards: &Arc<ShardHost>, life: Epoch) {
        let (shards, scheduler) = (Arc::clone(shards), self.memory.scheduler().clone());
        let mut rng = scheduler.rng(&format!("worker {life}"));
        let _ends_with_the_host = self.memory.spawn("worker", async move {
            loop {
                let most_us = if shards.work() { 30 } else { 40 };
                scheduler.sleep(Duration::from_micros(rng.u64(1..most_us))).await;
            }
        });
    }

    /// Starts the timer of the node. It also checks the node's bytes, and takes and returns blocks
    /// of the pool.
    fn tick(&self, shards: &Arc<ShardHost>, bytes: &Arc<NodeBytes>, life: Epoch) {
        let (shards, bytes) = (Arc::clone(shards), Arc::clone(bytes));
        let (scheduler, book) = (self.memory.scheduler().clone(), Arc::clone(&self.book));
        let mut rng = scheduler.rng(&format!("pool {life}"));
        let bytes_max = self.bytes_max;
        let _ends_with_the_host = self.memory.spawn("timer", async move {
            let mut blocks = 0u64;
            loop {
                scheduler.sleep(Duration::from_micros(500)).await;
                shards.tick();
                let figures = shards.figures().unwrap_or_default();
                let held = figures.region_bytes;
                let mut book = book.lock();
                let age_ns = |asked_ns: u64| scheduler.now_ns().saturating_sub(asked_ns);
                if figures.oldest_grant_ns.map_or(0, age_ns) > GRANTS.as_nanos() as u64 {
                    book.violations.push("a grant that nobody uses stays".to_owned());
                }
                if held > bytes_max {
                    book.violations.push(format!("the host holds {held} bytes"));
                }
                if bytes.used() != held + blocks * BLOCK_BYTES {
                    let used = bytes.used();
                    book.violations.push(format!("{used} bytes are reserved for {held}"));
                }
                if rng.bool() && !book.is_peace {
                    blocks += u64::from(bytes.reserve(BLOCK_BYTES));
                } else if blocks > 0 {
                    blocks -= 1;
                    bytes.give_back(BLOCK_BYTES);
                }
            }
        });
    }

    /// Begins the next owner of a database, on a machine that has no newer one.
    fn begin_owner(&mut self, db: usize) {
        let next = self.book.lock().databases[db].newest as usize % MACHINES;
        let (host, provider) = &self.machines[db][next];
        host.go_on();
        host.crash();
        host.restart();
        Owner::start(db, host, provider, &self.book);
    }

    fn end_node(&mut self) {
        if let Some(life) = self.life.take() {
            life.shards.close();
        }
    }

    /// Runs with faults.
    pub(super) fn trouble(&mut self) {
        for _ in 0..ROUNDS {
            let pause = Duration::from_micros(self.rng.u64(500..12_000));
            self.simulation.run_for(pause);
            let db = self.rng.usize(..self.machines.len());
            let at = self.rng.usize(..MACHINES);
            let host = self.machines[db][at].0.clone();
            match self.rng.u32(..10) {
                0 | 1 => {
                    let faults = self.faults();
                    self.network.set_faults(faults);
                }
                2 => self.network.cut(&host, &self.memory),
                3 => self.network.cut_one_way(&self.memory, &host),
                4 => self.network.heal_all(),
                5 | 6 => self.begin_owner(db),
                7 => {
                    host.stop();
                    let pause = Duration::from_micros(self.rng.u64(..9_000));
                    self.simulation.run_for(pause);
                    host.go_on();
                }
                8 => {
                    self.memory.crash();
                    self.end_node();
                    let pause = Duration::from_micros(self.rng.u64(..4_000));
                    self.simulation.run_for(pause);
                    self.memory.restart();
                    self.begin_node();
                }
                _ => self.network.heal(&host, &self.memory),
            }
        }
    }

    fn faults(&mut self) -> Faults {
        Faults {
            loss: [0.0, 0.02, 0.1][self.rng.usize(..3)],
            duplicate: [0.0, 0.1][self.rng.usize(..2)],
            delay_ns_max: [0, 5_000, 200_000][self.rng.usize(..3)],
            tear: [0.0, 0.5][self.rng.usize(..2)],
            // No memory is mapped, so no operation on mapped memory can be refused.
            refuse: 0.0,
        }
    }

    /// Ends the faults, has all shards released, and checks that none is left.
    pub(super) fn peace(&mut self) {
        self.network.set_faults(Faults::default());
        self.network.heal_all();
        self.book.lock().is_peace = true;
        for _ in 0..300 {
            self.simulation.run_for(Duration::from_millis(1));
            if self.book.lock().databases.iter().all(|database| database.is_clean) {
                break;
            }
        }
        // Late messages of earlier owners arrive, and are refused.
        self.simulation.run_for(Duration::from_millis(20));
        let clean = self.book.lock().databases.iter().all(|database| database.is_clean);
        self.check(clean, "an owner could not release its shards");
        let figures = self.life.as_ref().and_then(|life| life.shards.figures());
        let figures = figures.unwrap_or_default();
        self.check(figures.shards == 0, &format!("{} shards are left", figures.shards));
        self.check(figures.grants == 0, &format!("{} grants are left", figures.grants));
        for (host, _) in self.machines.iter().flatten() {
            host.crash();
        }
        self.simulation.run_for(ORPHANS + Duration::from_millis(100));
        let figures = self.life.as_ref().and_then(|life| life.shards.figures());
        let figures = figures.unwrap_or_default();
        let is_empty = figures.databases == 0 && figures.region_bytes == 0;
        self.check(is_empty, &format!("the host is not empty: {figures:?}"));
        let used = self.life.as_ref().map_or(0, |life| life.bytes.used());
        self.check(used == 0, &format!("{used} bytes are still reserved"));
        self.end_node();
    }

    fn check(&self, holds: bool, what: &str) {
        if !holds {
            self.book.lock().violations.push(what.to_owned());
        }
    }

    pub(super) fn outcome(self) -> RunOutcome {
        let book = self.book.lock();
        let counted = book.counted;
        RunOutcome {
            violations: book.violations.clone(),
            figures: figures([
                ("shards registered", counted.registered),
                ("keys searched", counted.keys),
                ("pages scanned", counted.pages),
                ("answers cut", counted.cut),
                ("images that a late write damaged", counted.damaged),
                ("searches refused", counted.unknown),
                ("shards adopted", counted.adopted),
                ("messages repeated", counted.repeated),
                ("grants refused", counted.full),
                ("shards written ahead", counted.ahead),
                ("grants given back", counted.given_back),
                ("owners", counted.owners),
                ("lives of the node", counted.lives),
            ]),
            notes: self.simulation.notes(),
            trace: Trace::of(&self.simulation),
        }
    }
}
