//! Databases of different burstiness that share the memory of memory nodes.
//!
//! The runs execute the shard store of the product (`RemoteShards`) of two or three databases
//! against one or two shard hosts of the product, over the fabric in virtual time. The first
//! database writes all the time, and the others in bursts. Each one flushes its oldest shards by
//! the rule of the engine. Messages are lost, doubled and delayed. A node restarts empty, or is
//! dead for some seconds. An operator drains a node, and ends the drain when the node is empty.
//!
//! Invariants that the run checks in each round:
//! 1. The memory of all databases at a node is at most the memory of the node, and so is the sum of
//!    their guarantees.
//! 2. A database that is refused room, and that uses less than its guarantee at each node that is
//!    up, is given room within [`BOUND`]. Time in which a node is drained does not count.
//! 3. Nodes have every image that a database can flush. They have no image that its owner does not
//!    know, except in unused grants, which end after [`ShardLimits::grants`].
//! 4. A node that is drained has no image after [`DRAIN_BOUND`].
//!
//! At the end, in a time without faults:
//! 5. The hosts have exactly the shards that the databases have, and after the close none. They
//!    have no grants.
//!
//! Cost: some ten milliseconds per seed.

use std::collections::VecDeque;
use std::ops::Range;
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
use archipelago_fabric::NodeId;
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_offload::ids::OffloadDb;
use archipelago_offload::shard_host::{
    HostFigures, HostSabotage, HostThreads, NodeBytes, ShardHost, ShardLimits,
};
use archipelago_offload::shard_owner::{OwnerParts, OwnerTerms, RemoteShards, Waits};
use archipelago_offload::wire::shard::{DatabaseAccount, ShardMessage};

use crate::run::{RunOutcome, RunRequest, Scenario, Step, Trace};
use crate::scenarios::figures;
use crate::scenarios::shard_parts::{KnownNodes, LostShards, NodeLife, Operator};

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
const ROUNDS: usize = 300;
/// Longest time between two rounds in milliseconds.
const PAUSE_MS: u64 = 400;
/// Shards that a database flushes in one round at most.
const FLUSHES: usize = 8;
/// Time within which a database below its guarantee must get room.
const BOUND: Duration = Duration::from_secs(15);
/// Time within which a node that is drained must be empty.
const DRAIN_BOUND: Duration = Duration::from_secs(60);
/// Time after which the owners know that a node has died, and that its shards are lost.
const SETTLE: Duration = Duration::from_secs(10);
/// Milliseconds for which a node that has died stays dead.
const DEAD_MS: Range<u64> = 3_000..15_000;

const STEPS: [Step; 2] = [
    Step { name: "guarantees", about: "the host gives borrowed memory back to its lenders" },
    Step { name: "unused", about: "the host ends grants that no owner uses" },
];

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
    /// The latest life, which has ended while the node is dead.
    life: NodeLife,
}

impl Memory {
    fn is_up(&self) -> bool {
        self.life.is_up()
    }
}

/// A database, as far as memory nodes see it.
struct Database {
    db: OffloadDb,
    host: Host,
    heard: Arc<LostShards>,
    store: Arc<RemoteShards>,
    /// Names of its shards that nodes have, oldest first. All images have the same size.
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
    /// Times that a node died and stayed dead for a while.
    deaths: u64,
    /// Drains that ended with an empty node.
    drains: u64,
    drain_ms_max: u64,
}

/// A node that is dead, as an index.
#[derive(Clone, Copy)]
struct DeadNode {
    at: usize,
    until_ns: u64,
}

/// A node that is drained, as an index.
#[derive(Clone, Copy)]
struct DrainedNode {
    at: usize,
    since_ns: u64,
}

struct World {
    simulation: Simulation,
    network: Arc<Network>,
    nodes: Vec<Memory>,
    dead: Option<DeadNode>,
    drained: Option<DrainedNode>,
    /// Time from which the owners know the lives of all nodes.
    settled_ns: u64,
    operator: Operator,
    listed: Arc<KnownNodes>,
    databases: Vec<Database>,
    image: Vec<u8>,
    sabotage: HostSabotage,
    rng: Rng,
    counted: Counted,
    violations: Vec<String>,
}

/// Name and address of a node.
fn address(number: u64) -> String {
    format!("memory-{number}")
}

fn limits() -> ShardLimits {
    ShardLimits { arena_bytes: ARENA_BYTES, ..ShardLimits::new(NODE_BYTES) }
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

    /// Bytes of the images that the database can flush. Like the engine, this leaves out images
    /// that the store has lost, and images whose release is not confirmed yet.
    fn held_bytes(&self, image_bytes: u64) -> u64 {
        self.held.len() as u64 * image_bytes
    }

    /// Flushes the oldest shards by the rule of the engine, some in each round. Returns their
    /// number.
    fn flush(&mut self, image_bytes: u64) -> u64 {
        let limit_bytes = self.store.room().limit_bytes;
        let excess = away_excess_bytes(self.held_bytes(image_bytes), limit_bytes);
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
        let operator = Operator::new(&simulation, &network);
        let rng = simulation.rng("world");
        let (no_guarantees, no_grant_end) =
            (request.leaves_out("guarantees"), request.leaves_out("unused"));
        let mut world = Self {
            simulation,
            network,
            nodes: Vec::new(),
            dead: None,
            drained: None,
            settled_ns: 0,
            operator,
            listed: Arc::default(),
            databases: Vec::new(),
            image: image(),
            sabotage: HostSabotage { no_guarantees, no_grant_end, ..HostSabotage::default() },
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
            // Two thirds of the databases state no guarantee.
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
        self.tick();
    }

    /// Memory nodes look for memory that is free a few times a second.
    fn tick(&self) {
        self.nodes.iter().for_each(|node| node.life.shards.tick());
    }

    fn add_node(&mut self, number: u64) {
        let machine = self.simulation.host(&address(number));
        let provider = self.network.join(&machine, Model::quick());
        let node = self.begin_node(number, 1, machine, provider);
        self.nodes.push(node);
    }

    /// A life of a node, which the pool reports to the owners.
    fn begin_node(&mut self, number: u64, life: u64, machine: Host, provider: Sim) -> Memory {
        self.counted.lives += 1;
        let limits = limits();
        let (clock, bytes) = (self.simulation.clock(), NodeBytes::new(NODE_BYTES));
        let threads = HostThreads::Caller;
        let shards = ShardHost::sabotaged(limits, bytes, clock, threads, self.sabotage);
        let life = NodeLife::begin(&provider, NodeId(number), Epoch(life), shards);
        let mut listed = self.listed.lock();
        listed.retain(|member| member.node != life.member.node);
        listed.push(life.member.clone());
        Memory { machine, provider, life }
    }

    /// Ends the life of a node. The pool reports that.
    fn kill_node(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.life.end();
        node.machine.crash();
        let id = NodeId(at as u64 + 1);
        for member in self.listed.lock().iter_mut() {
            member.is_up &= member.node != id;
        }
        // The next life of the node does not know of the drain.
        self.drained = self.drained.filter(|drained| drained.at != at);
        self.note_change();
    }

    /// Begins the next life of a dead node.
    fn revive_node(&mut self, at: usize) {
        let Memory { machine, provider, life } = self.nodes.remove(at);
        let next = life.member.life.0 + 1;
        drop(life);
        machine.restart();
        let node = self.begin_node(at as u64 + 1, next, machine, provider);
        self.nodes.insert(at, node);
        self.dead = None;
        self.wait(Duration::from_secs(2));
        self.note_change();
    }

    /// Another number of nodes, or another life of a node, is another memory. So all waits for
    /// guarantees begin anew.
    fn note_change(&mut self) {
        self.settled_ns = self.simulation.now_ns() + SETTLE.as_nanos() as u64;
        self.forget_waits();
    }

    fn forget_waits(&mut self) {
        self.databases.iter_mut().for_each(|database| database.waits_since_ns = None);
    }

    /// Kills a node from time to time, and begins its next life immediately or later.
    fn change_nodes(&mut self) {
        if let Some(DeadNode { at, until_ns }) = self.dead {
            if self.simulation.now_ns() >= until_ns {
                self.revive_node(at);
            }
        } else if self.rng.u32(..150) == 0 {
            let at = self.rng.usize(..self.nodes.len());
            self.kill_node(at);
            if self.rng.bool() {
                return self.revive_node(at);
            }
            self.counted.deaths += 1;
            let until_ns = self.simulation.now_ns() + self.rng.u64(DEAD_MS) * 1_000_000;
            self.dead = Some(DeadNode { at, until_ns });
            // The pool learns that the node is dead, and sends it no more messages.
            self.wait(Duration::from_secs(1));
        }
    }

    /// Drains a node from time to time.
    fn begin_drain(&mut self) {
        if self.drained.is_some() || self.rng.u32(..200) > 0 {
            return;
        }
        let at = self.rng.usize(..self.nodes.len());
        if self.nodes[at].is_up() {
            self.set_drain(at, true);
            let since_ns = self.simulation.now_ns();
            self.drained = Some(DrainedNode { at, since_ns });
        }
    }

    /// Begins or ends a drain on an operator's request. Returns the bytes of images that the node
    /// reports.
    fn set_drain(&mut self, at: usize, wanted: bool) -> u64 {
        let message = ShardMessage::Drain { is_draining: wanted };
        let answer = self.operator.ask(&address(at as u64 + 1), &message);
        self.forget_waits();
        match answer {
            Some(ShardMessage::Accounted { is_draining, image_bytes, .. })
                if is_draining == wanted =>
            {
                image_bytes
            }
            other => {
                self.violations.push(format!("a node answers an operator {other:?}"));
                0
            }
        }
    }

    /// Ends a drain when the node is empty.
    fn check_drain(&mut self) {
        let Some(DrainedNode { at, since_ns }) = self.drained else { return };
        let images = |account: &DatabaseAccount| account.image_bytes;
        let left: u64 = Self::figures_of(&self.nodes[at]).accounts.iter().map(images).sum();
        let waited_ns = self.simulation.now_ns() - since_ns;
        if left > 0 && waited_ns <= DRAIN_BOUND.as_nanos() as u64 {
            return;
        }
        self.drained = None;
        if left > 0 {
            let what = format!("a node that is drained since {since_ns} ns has {left} bytes");
            let rooms: Vec<_> =
                self.databases.iter().map(|database| database.store.room()).collect();
            self.violations.push(format!("{what}: its owners see {rooms:?}"));
        } else {
            self.counted.drains += 1;
            self.counted.drain_ms_max = self.counted.drain_ms_max.max(waited_ns / 1_000_000);
        }
        let reported = self.set_drain(at, false);
        if reported != left {
            self.violations.push(format!("an empty node reports {reported} bytes, not {left}"));
        }
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
            self.change_nodes();
            self.begin_drain();
            for at in 0..self.databases.len() {
                self.step(at);
            }
            self.check_nodes();
            self.check_owners();
            self.check_drain();
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
        node.life.shards.figures().unwrap_or_default()
    }

    /// The accounts of all nodes.
    fn accounts(&self) -> Vec<DatabaseAccount> {
        self.nodes.iter().flat_map(|node| Self::figures_of(node).accounts).collect()
    }

    /// Whether a database has room for another arena within its guarantee at each node that is up.
    /// While a node is drained, flushes for the drain go first, and the answer is no.
    fn is_below_guarantee(&self, at: usize) -> bool {
        let db = self.databases[at].db;
        let is_below = |node: &Memory| {
            let accounts = Self::figures_of(node).accounts;
            let account = accounts.into_iter().find(|account| account.db == db);
            account.is_some_and(|account| {
                account.used_bytes.max(LANDING_BYTES) + ARENA_BYTES <= account.guaranteed_bytes
            })
        };
        let has_node = self.nodes.iter().any(Memory::is_up);
        let mut up = self.nodes.iter().filter(|node| node.is_up());
        self.drained.is_none() && has_node && up.all(is_below)
    }

    fn check_nodes(&mut self) {
        let (now_ns, patience_ns) = (self.simulation.now_ns(), limits().grants.as_nanos() as u64);
        self.tick();
        for node in &self.nodes {
            let figures = Self::figures_of(node);
            let guaranteed: u64 =
                figures.accounts.iter().map(|account| account.guaranteed_bytes).sum();
            if figures.region_bytes > NODE_BYTES {
                self.violations.push(format!("a node holds too much: {figures:?}"));
            }
            if guaranteed > NODE_BYTES {
                self.violations.push(format!("a node guarantees too much: {figures:?}"));
            }
            // No transfer is in progress.
            if figures.oldest_grant_ns.is_some_and(|asked_ns| now_ns - asked_ns >= patience_ns) {
                self.violations.push(format!("a node has an old grant: {figures:?}"));
            }
            // All images lie in arenas, or have room there.
            let is_short = |account: &DatabaseAccount| account.image_bytes > account.used_bytes;
            if figures.accounts.iter().any(is_short) {
                self.violations.push(format!("a node counts too little: {figures:?}"));
            }
        }
    }

    /// Compares the images at nodes with those that the owners know. No transfer is in progress,
    /// and all figures are of one moment, so they must be equal. There are two exceptions: the time
    /// after the death of a node, and grants that a late copy of a refused request has got.
    fn check_owners(&mut self) {
        let up = self.nodes.iter().filter(|node| node.is_up()).count() as u64;
        let (accounts, image_bytes) = (self.accounts(), self.image.len() as u64);
        let grants: u64 = self.nodes.iter().map(|node| Self::figures_of(node).grants).sum();
        let is_settled = self.simulation.now_ns() >= self.settled_ns;
        for database in &mut self.databases {
            database.drop_lost();
            let figures = database.store.figures();
            if figures.nodes != up {
                // The owner does not know a new life of a node yet, or has missed answers.
                continue;
            }
            let own = accounts.iter().filter(|account| account.db == database.db);
            let there: u64 = own.map(|account| account.image_bytes).sum();
            let (db, held) = (database.db, figures.held_bytes);
            if there > held + grants * image_bytes {
                let what = format!("nodes have {there} bytes of database {db}");
                self.violations.push(format!("{what}, and its owner knows of {held}"));
            }
            let needed = database.held_bytes(image_bytes);
            if is_settled && there < needed {
                let what = format!("nodes have {there} bytes of database {db}");
                self.violations.push(format!("{what}, which needs {needed}"));
            }
        }
    }

    /// Ends the faults, and checks that no shard is missing or left over.
    fn peace(&mut self) {
        self.network.set_faults(Faults::default());
        if let Some(DeadNode { at, .. }) = self.dead {
            self.revive_node(at);
        }
        while self.drained.is_some() {
            let image_bytes = self.image.len() as u64;
            for database in &mut self.databases {
                database.drop_lost();
                self.counted.flushed += database.flush(image_bytes);
            }
            self.wait(Duration::from_millis(PAUSE_MS));
            self.check_drain();
        }
        self.wait(limits().grants);
        self.databases.iter_mut().for_each(Database::drop_lost);
        let held: u64 = self.databases.iter().map(|database| database.held.len() as u64).sum();
        let at_nodes = |world: &Self| -> u64 {
            world.nodes.iter().map(|node| Self::figures_of(node).shards).sum()
        };
        let there = at_nodes(self);
        if there != held {
            self.violations.push(format!("the nodes have {there} shards of {held}"));
        }
        let grants: u64 = self.nodes.iter().map(|node| Self::figures_of(node).grants).sum();
        if grants != 0 {
            self.violations.push(format!("{grants} grants are left"));
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
                ("times that a node was dead for a while", counted.deaths),
                ("nodes drained", counted.drains),
                ("longest drain in ms", counted.drain_ms_max),
            ]),
            notes: self.simulation.notes(),
            trace: Trace::of(&self.simulation),
        }
    }
}
