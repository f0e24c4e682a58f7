//! Databases of different burstiness that share the memory of memory nodes.
//!
//! The runs execute the shard store of the product (`RemoteShards`) of two or three databases
//! against one or two shard hosts of the product, over the fabric in virtual time. The first
//! database writes all the time, and the others in bursts. Each one flushes its oldest shards by
//! the rule of the engine. Messages are lost, doubled and delayed, and a node restarts empty.
//!
//! Invariants that the run checks in each round:
//! 1. The memory of all databases at a node, and their guarantees, are at most that of the node.
//! 2. A database that is refused room, and that uses less than its guarantee at each node, is
//!    given room within [`BOUND`].
//!
//! At the end, in a time without faults:
//! 3. The hosts have exactly the shards that the databases have, and after the close none.
//!
//! Cost: some ten milliseconds per seed.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{CfId, Epoch, FileNo, SeqNo};
use archipelago_engine::executor::OwnerIdentity;
use archipelago_engine::key::{KeyRange, Kind};
use archipelago_engine::memtable::{Shard, SlabPool};
use archipelago_engine::remote::{NewShard, ShardId, ShardStore};
use archipelago_engine::stall::away_excess_bytes;
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_fabric::{Listener, Node, NodeId, Provider};
use archipelago_offload::ids::OffloadDb;
use archipelago_offload::shard_host::{
    HostFigures, HostSabotage, HostThreads, NodeBytes, ShardHost, ShardLimits,
};
use archipelago_offload::shard_owner::{MemoryNode, OwnerParts, OwnerTerms, RemoteShards, Waits};
use archipelago_offload::wire::shard::DatabaseAccount;

use crate::run::{RunOutcome, RunRequest, Scenario, Step, Trace};
use crate::scenarios::figures;
use crate::scenarios::shard_parts::{InlineHost, KnownNodes, LostShards};

const KIB: u64 = 1 << 10;
/// Bytes of the shards of a node.
const NODE_BYTES: u64 = 1 << 20;
/// Bytes of a landing zone.
const LANDING_BYTES: u64 = 64 * KIB;
/// Bytes of an arena.
const ARENA_BYTES: u64 = 64 * KIB;
/// Bytes of the value in each image.
const VALUE_BYTES: usize = 14 << 10;
/// Rounds of a run.
const ROUNDS: usize = 240;
/// Longest time between two rounds in milliseconds.
const PAUSE_MS: u64 = 400;
/// Shards that a database flushes in one round at most.
const FLUSHES: usize = 8;
/// Time within which a database below its guarantee must get room.
const BOUND: Duration = Duration::from_secs(15);

const STEPS: [Step; 1] =
    [Step { name: "guarantees", about: "the host gives borrowed memory back to its lenders" }];

pub(super) fn scenario() -> Scenario {
    let about = "databases of different burstiness that share the memory of memory nodes";
    Scenario::with_steps("shares", about, &STEPS, |request| {
        let mut world = World::new(request);
        world.trouble();
        world.peace();
        world.outcome()
    })
}

struct Memory {
    machine: Host,
    provider: Sim,
    life: u64,
    shards: Arc<ShardHost>,
    _node: Arc<Node>,
    listener: Option<Box<dyn Listener>>,
}

/// A database, as far as memory nodes see it.
struct Database {
    db: OffloadDb,
    host: Host,
    heard: Arc<LostShards>,
    store: Arc<RemoteShards>,
    /// Its shards and their bytes, oldest first.
    held: VecDeque<ShardId>,
    memtable: u64,
    /// Shards of the burst that are still to be sent.
    burst: u64,
    /// Time since which it has waited for room below its guarantee.
    waits_since_ns: Option<u64>,
}

#[derive(Default)]
struct Counted {
    sent: u64,
    refused: u64,
    flushed: u64,
    /// Times that a database got room after it was refused below its guarantee.
    given_back: u64,
    waited_ms_max: u64,
    lives: u64,
}

struct World {
    simulation: Simulation,
    network: Arc<Network>,
    nodes: Vec<Memory>,
    listed: Arc<KnownNodes>,
    databases: Vec<Database>,
    image: Vec<u8>,
    sabotage: HostSabotage,
    rng: Rng,
    counted: Counted,
    violations: Vec<String>,
}

fn image() -> Vec<u8> {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    shard.insert(b"key", SeqNo(1), Kind::Put, &[7; VALUE_BYTES]);
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).expect("a sealed shard");
    bytes
}

impl Database {
    fn start(number: u8, world: &World, guaranteed_bytes: u64) -> Self {
        let host = world.simulation.host(&format!("owner-{number}"));
        let reach = world.network.join(&host, Model::quick());
        let terms = OwnerTerms {
            landing_bytes: LANDING_BYTES,
            guaranteed_bytes,
            key_offset_cache_bytes: 0,
            ..OwnerTerms::default()
        };
        let store = RemoteShards::new(OwnerParts {
            nodes: Arc::clone(&world.listed) as _,
            reach: Arc::new(reach),
            runtime: Arc::new(host.clone()),
            waits: Waits::InRuntime,
            terms,
        });
        let database = [number + 1; 16];
        let identity = OwnerIdentity { database, epoch: Epoch(1), token: [1; 16] };
        store.owner_is(&identity).expect("the first owner");
        store.purge();
        let heard: Arc<LostShards> = Arc::default();
        let weak: Weak<LostShards> = Arc::downgrade(&heard);
        store.watch(weak);
        Self {
            db: OffloadDb(database),
            host,
            heard,
            store,
            held: VecDeque::new(),
            memtable: 0,
            burst: 0,
            waits_since_ns: None,
        }
    }

    fn drop_lost(&mut self) {
        let lost = self.heard.take();
        self.held.retain(|id| !lost.contains(id));
    }

    /// Flushes the oldest shards by the rule of the engine, some in each round. Returns their
    /// number.
    fn flush(&mut self, image_bytes: u64) -> u64 {
        let room = self.store.room();
        let excess = away_excess_bytes(room.held_bytes, room.limit_bytes);
        let count = excess.div_ceil(image_bytes).min(FLUSHES as u64);
        let count = (count as usize).min(self.held.len());
        let flushed: Vec<ShardId> = self.held.drain(..count).collect();
        let oldest = self.held.front().map_or(self.memtable + 1, |id| id.memtable);
        if !flushed.is_empty() {
            self.store.release(&flushed, oldest);
        }
        flushed.len() as u64
    }

    /// Sends the next shard of a bucket. Returns whether a node has it.
    fn send(&mut self, image: &[u8], bucket: u8) -> bool {
        if self.store.room().free_bytes < image.len() as u64 {
            return false;
        }
        self.memtable += 1;
        let id = ShardId { memtable: self.memtable, shard: 0 };
        let keys = KeyRange { start: vec![bucket], end: None };
        let shard = NewShard {
            id,
            family: CfId(0),
            keys: &keys,
            after_seq: SeqNo(0),
            last_seq: SeqNo(1),
            oldest_log: FileNo(1),
            seal_log: FileNo(2),
        };
        let sent = self.store.send(&shard, image).is_ok();
        if sent {
            self.held.push_back(id);
        }
        sent
    }
}

impl World {
    fn new(request: &RunRequest) -> Self {
        let simulation = Simulation::new(request.seed);
        if request.trace {
            simulation.keep_notes();
        }
        let network = Network::new(&simulation);
        let rng = simulation.rng("world");
        let no_guarantees = request.leaves_out("guarantees");
        let mut world = Self {
            simulation,
            network,
            nodes: Vec::new(),
            listed: Arc::default(),
            databases: Vec::new(),
            image: image(),
            sabotage: HostSabotage { no_guarantees, ..HostSabotage::default() },
            rng,
            counted: Counted::default(),
            violations: Vec::new(),
        };
        for number in 1..=world.rng.u64(1..=2) {
            world.add_node(number);
        }
        let all_bytes = NODE_BYTES * world.nodes.len() as u64;
        let count = world.rng.u8(2..=3);
        for number in 0..count {
            // Half of the databases state no guarantee.
            let part = [0, 0, world.rng.u64(1..=2 * u64::from(count))][world.rng.usize(..3)];
            let guaranteed_bytes = all_bytes / (2 * u64::from(count)) * part;
            let database = Database::start(number, &world, guaranteed_bytes);
            world.databases.push(database);
        }
        world.wait(Duration::from_secs(2));
        world
    }

    fn wait(&mut self, time: Duration) {
        let host = &self.databases[0].host;
        wait_for(host, Runtime::sleep(host, time));
        // Memory nodes look for memory that is free a few times a second.
        self.nodes.iter().for_each(|node| node.shards.tick());
    }

    fn add_node(&mut self, number: u64) {
        let machine = self.simulation.host(&format!("memory-{number}"));
        let provider = self.network.join(&machine, Model::quick());
        let node = self.begin_node(number, 1, machine, provider);
        self.nodes.push(node);
    }

    /// A life of a node, which the pool tells the owners.
    fn begin_node(&mut self, number: u64, life: u64, machine: Host, provider: Sim) -> Memory {
        self.counted.lives += 1;
        let limits = ShardLimits { arena_bytes: ARENA_BYTES, ..ShardLimits::new(NODE_BYTES) };
        let (clock, bytes) = (self.simulation.clock(), NodeBytes::new(NODE_BYTES));
        let threads = HostThreads::Caller;
        let shards = ShardHost::sabotaged(limits, bytes, clock, threads, self.sabotage);
        let handler = Box::new(InlineHost(Arc::clone(&shards)));
        let id = NodeId(number);
        let node = self.network.node(id, Epoch(life), Some(handler)).expect("a node");
        shards.open(&node);
        let name = format!("memory-{number}");
        let listener = provider.serve(&node, &name).expect("a host serves at its name");
        let endpoints = vec![name];
        let mut listed = self.listed.lock();
        listed.retain(|member| member.node != id);
        listed.push(MemoryNode { node: id, life: Epoch(life), endpoints, is_up: true });
        let listener = Some(listener);
        Memory { machine, provider, life, shards, _node: node, listener }
    }

    fn restart_node(&mut self) {
        let at = self.rng.usize(..self.nodes.len());
        let mut node = self.nodes.remove(at);
        node.shards.close();
        node.listener = None;
        node.machine.crash();
        node.machine.restart();
        let Memory { machine, provider, life, .. } = node;
        let node = self.begin_node(at as u64 + 1, life + 1, machine, provider);
        self.nodes.insert(at, node);
        self.wait(Duration::from_secs(2));
        // A new life of a node is another memory.
        self.databases.iter_mut().for_each(|database| database.waits_since_ns = None);
    }

    fn trouble(&mut self) {
        for _ in 0..ROUNDS {
            if self.rng.u32(..20) == 0 {
                let faults = Faults {
                    loss: [0.0, 0.0, 0.01][self.rng.usize(..3)],
                    duplicate: [0.0, 0.1][self.rng.usize(..2)],
                    delay_ns_max: [0, 5_000, 200_000][self.rng.usize(..3)],
                    ..Faults::default()
                };
                self.network.set_faults(faults);
            }
            if self.rng.u32(..150) == 0 {
                self.restart_node();
            }
            for at in 0..self.databases.len() {
                self.step(at);
            }
            self.check_nodes();
            let pause = Duration::from_millis(self.rng.u64(1..PAUSE_MS));
            self.wait(pause);
        }
    }

    /// A database writes and flushes.
    fn step(&mut self, at: usize) {
        let image_bytes = self.image.len() as u64;
        let database = &mut self.databases[at];
        database.drop_lost();
        self.counted.flushed += database.flush(image_bytes);
        if at == 0 {
            database.burst = 4;
        } else if database.burst == 0 && self.rng.u32(..25) == 0 {
            database.burst = self.rng.u64(4..40);
        }
        for _ in 0..4 {
            if self.databases[at].burst == 0 {
                break;
            }
            let bucket = self.rng.u8(..8);
            let is_sent = self.databases[at].send(&self.image, bucket);
            self.note_send(at, is_sent);
            if !is_sent {
                break;
            }
        }
    }

    fn note_send(&mut self, at: usize, is_sent: bool) {
        let now_ns = self.simulation.now_ns();
        let is_below = self.is_below_guarantee(at);
        let database = &mut self.databases[at];
        if is_sent {
            self.counted.sent += 1;
            database.burst -= 1;
            if let Some(since_ns) = database.waits_since_ns.take() {
                self.counted.given_back += 1;
                let waited_ms = (now_ns - since_ns) / 1_000_000;
                self.counted.waited_ms_max = self.counted.waited_ms_max.max(waited_ms);
            }
            return;
        }
        self.counted.refused += 1;
        if !is_below {
            database.waits_since_ns = None;
            return;
        }
        let since_ns = *database.waits_since_ns.get_or_insert(now_ns);
        if now_ns - since_ns > BOUND.as_nanos() as u64 {
            database.waits_since_ns = Some(now_ns);
            let db = database.db;
            let (room, accounts) = (database.store.room(), self.accounts());
            let what = format!("database {db} waits for its guarantee since {since_ns} ns");
            self.violations.push(format!("{what}: it sees {room:?}, and nodes have {accounts:?}"));
        }
    }

    fn figures_of(node: &Memory) -> HostFigures {
        node.shards.figures().unwrap_or_default()
    }

    /// The accounts of all nodes.
    fn accounts(&self) -> Vec<DatabaseAccount> {
        self.nodes.iter().flat_map(|node| Self::figures_of(node).accounts).collect()
    }

    /// Whether a database has room for another arena within its guarantee at each node.
    fn is_below_guarantee(&self, at: usize) -> bool {
        let db = self.databases[at].db;
        self.nodes.iter().all(|node| {
            let accounts = Self::figures_of(node).accounts;
            let account = accounts.into_iter().find(|account| account.db == db);
            account.is_some_and(|account| {
                account.used_bytes.max(LANDING_BYTES) + ARENA_BYTES <= account.guaranteed_bytes
            })
        })
    }

    fn check_nodes(&mut self) {
        for node in &self.nodes {
            let figures = Self::figures_of(node);
            let used: u64 = figures.accounts.iter().map(|account| account.used_bytes).sum();
            let guaranteed: u64 =
                figures.accounts.iter().map(|account| account.guaranteed_bytes).sum();
            if figures.region_bytes > NODE_BYTES || used > figures.region_bytes {
                self.violations.push(format!("a node holds too much: {figures:?}"));
            }
            if guaranteed > NODE_BYTES {
                self.violations.push(format!("a node guarantees too much: {figures:?}"));
            }
        }
    }

    /// Ends the faults, and checks that no shard is missing or left over.
    fn peace(&mut self) {
        self.network.set_faults(Faults::default());
        self.wait(Duration::from_secs(20));
        self.databases.iter_mut().for_each(Database::drop_lost);
        let held: u64 = self.databases.iter().map(|database| database.held.len() as u64).sum();
        let at_nodes = |world: &Self| -> u64 {
            world.nodes.iter().map(|node| Self::figures_of(node).shards).sum()
        };
        let there = at_nodes(self);
        if there != held {
            self.violations.push(format!("the nodes have {there} shards of {held}"));
        }
        for database in &mut self.databases {
            let ids: Vec<ShardId> = database.held.drain(..).collect();
            database.store.release(&ids, database.memtable + 1);
            database.store.close();
        }
        let left = at_nodes(self);
        if left != 0 {
            self.violations.push(format!("{left} shards are left"));
        }
    }

    fn outcome(self) -> RunOutcome {
        let counted = self.counted;
        RunOutcome {
            violations: self.violations,
            figures: figures([
                ("shards sent", counted.sent),
                ("shards flushed", counted.flushed),
                ("sends without room", counted.refused),
                ("guarantees given back", counted.given_back),
                ("longest wait for a guarantee in ms", counted.waited_ms_max),
                ("lives of nodes", counted.lives),
            ]),
            notes: self.simulation.notes(),
            trace: Trace::of(&self.simulation),
        }
    }
}
