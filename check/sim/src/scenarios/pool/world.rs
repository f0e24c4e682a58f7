//! A run of the pool: a cluster, a time of faults, a time of peace, and the final checks.
//!
//! One [`World`] owns everything in a run. Everything follows from the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::simulation::Host;
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_manager::core::ManagerCore;
use archipelago_memory::core::{Limits, MemoryCore};
use archipelago_pool::{BlockId, Config};
use parking_lot::Mutex;

use crate::run::{RunOutcome, RunRequest};
use crate::scenarios::figures;
use crate::scenarios::pool::client::{ClientActor, ClientWorld, Joined, Known, WORDS};
use crate::scenarios::pool::cluster::{Cluster, revive};

/// Virtual time in which faults happen.
const TROUBLE: Duration = Duration::from_millis(250);
const BLOCK_BYTES: u64 = 256;

struct World {
    cluster: Cluster,
    noting: bool,
    clients: Vec<(Sim, Option<ClientActor>)>,
    shared: ClientWorld,
    /// Blocks that nodes have reported to the newest manager.
    heard: BTreeSet<BlockId>,
    noted: BTreeMap<(NodeId, BlockId), (Config, bool, bool)>,
}

/// Runs one seed.
pub(super) fn run(request: &RunRequest) -> RunOutcome {
    let mut world = World::new(request);
    world.trouble();
    world.peace();
    world.check_end();
    let (acknowledged, reads) = world.shared.oracle.counts();
    RunOutcome {
        violations: world.shared.oracle.violations(),
        figures: figures([
            ("writes acknowledged", acknowledged),
            ("reads checked", reads),
            ("faults", world.cluster.faults),
            ("evictions", world.shared.oracle.evictions()),
            ("blocks at the end", world.cluster.ready().len() as u64),
        ]),
        notes: world.cluster.simulation.notes(),
        trace: world.cluster.trace(),
    }
}

impl World {
    fn new(request: &RunRequest) -> Self {
        let draw = |rng: &mut Rng| {
            let limits = Limits { block_bytes: BLOCK_BYTES, blocks_max: rng.u64(4..=12) };
            (rng.u64(0..=2), limits)
        };
        let mut cluster = Cluster::new(request, "pool-check", draw);
        let count = cluster.rng.usize(2..=3);
        let clients = (0..count).map(|n| (cluster.join(&format!("client{n}")), None)).collect();
        let mut world = Self {
            cluster,
            noting: request.trace,
            clients,
            shared: ClientWorld {
                oracle: Arc::default(),
                known: Known::default(),
                everybody: Joined::default(),
                working: Arc::new(Mutex::new(true)),
            },
            heard: BTreeSet::new(),
            noted: BTreeMap::new(),
        };
        world.start_all();
        world
    }

    /// Starts everything that is down.
    fn start_all(&mut self) {
        self.cluster.start();
        for client in 0..self.clients.len() {
            self.start_client(client);
        }
    }

    fn start_client(&mut self, index: usize) {
        let (sim, actor) = &mut self.clients[index];
        if actor.as_ref().is_none_or(ClientActor::is_evicted) {
            revive(sim.host());
            *actor = Some(ClientActor::start(sim, &self.shared));
        }
    }

    fn trouble(&mut self) {
        let end_ns = self.cluster.simulation.now_ns() + TROUBLE.as_nanos() as u64;
        // The cluster starts first.
        self.pass(Duration::from_millis(60));
        while self.cluster.simulation.now_ns() < end_ns {
            match self.cluster.rng.u32(..12) {
                0..2 => self.cluster.crash_memory(),
                2 => self.cluster.crash_manager(),
                3 => self.crash_client(),
                4..6 => self.cut(),
                6 => self.cluster.network.heal_all(),
                7 => self.cluster.set_faults(),
                8..10 => self.start_all(),
                _ => {}
            }
            let pause = self.cluster.rng.u64(1..30);
            self.pass(Duration::from_millis(pause));
        }
    }

    /// Advances the time, and checks every half millisecond the properties that must hold at any
    /// time.
    fn pass(&mut self, duration: Duration) {
        let end_ns = self.cluster.simulation.now_ns() + duration.as_nanos() as u64;
        while self.cluster.simulation.now_ns() < end_ns {
            self.cluster.simulation.run_for(Duration::from_micros(500));
            self.check_nodes();
        }
    }

    fn cut(&mut self) {
        let clients: Vec<Host> = self.clients.iter().map(|(sim, _)| sim.host().clone()).collect();
        self.cluster.cut(&clients);
    }

    fn crash_client(&mut self) {
        let index = self.cluster.rng.usize(..self.clients.len());
        let (sim, actor) = &mut self.clients[index];
        if actor.take().is_some() {
            self.cluster.faults += 1;
            sim.host().crash();
        }
    }

    /// Starts every process and waits until the cluster is idle.
    fn peace(&mut self) {
        *self.shared.working.lock() = false;
        self.cluster.heal();
        for _ in 0..6 {
            self.start_all();
            self.pass(Duration::from_millis(60));
        }
    }

    /// Checks the properties that must hold at any time: no node exceeds its size, no two clients
    /// may write to a block of one owner, and no evicted client may write to a copy in use.
    fn check_nodes(&mut self) {
        if self.noting {
            self.note_configs();
        }
        self.check_evicted_clients();
        let mut writers: BTreeMap<(BlockId, NodeId), Vec<ClientId>> = BTreeMap::new();
        for (node, (_, actor)) in &self.cluster.memory {
            let Some(actor) = actor else { continue };
            actor.rpc.look(|core| {
                if core.blocks_used() > self.cluster.limits.blocks_max {
                    let what = format!("node {node} holds {} blocks", core.blocks_used());
                    self.shared.oracle.violation(what);
                }
                for (config, ..) in core.copies() {
                    if config.sharing == archipelago_pool::Sharing::Owner {
                        let mut of = core.writers(config.block);
                        of.sort_unstable();
                        of.dedup();
                        writers.insert((config.block, *node), of);
                    }
                }
            });
        }
        for ((block, node), clients) in writers {
            if clients.len() > 1 {
                let what = format!("{} clients may write to {block} on {node}", clients.len());
                self.shared.oracle.violation(what);
            }
        }
    }

    /// Checks that an evicted client has no key to change a copy in use.
    ///
    /// The check looks at keys and not at writes, because a write needs all copies, while an atomic
    /// operation needs only one.
    fn check_evicted_clients(&mut self) {
        // The blocks that the last manager knew count until another manager runs.
        if let Some(actor) = &self.cluster.manager.1 {
            self.heard = actor.rpc.look(ManagerCore::heard_of).unwrap_or_default();
        }
        self.shared.oracle.look_at_evictions(|| {
            let mut unheard = BTreeSet::new();
            for (_, actor) in self.cluster.memory.values() {
                let of = |core: &MemoryCore| core.copies().map(|(c, ..)| c.block).collect();
                let blocks: Option<Vec<BlockId>> = actor.as_ref().and_then(|a| a.rpc.look(of));
                unheard.extend(blocks.into_iter().flatten());
            }
            unheard.retain(|block| !self.heard.contains(block));
            unheard
        });
        for config in self.cluster.ready() {
            for copy in &config.copies {
                let actor =
                    self.cluster.memory.get(&copy.node).and_then(|(_, actor)| actor.as_ref());
                let writers = actor.and_then(|actor| {
                    let here = |core: &MemoryCore| core.life() == copy.life;
                    let of = |core: &MemoryCore| here(core).then(|| core.writers(config.block));
                    actor.rpc.look(of).flatten()
                });
                for client in writers.into_iter().flatten() {
                    if self.shared.oracle.is_out_of_reach(client, config.block) {
                        let (block, node) = (config.block, copy.node);
                        let what =
                            format!("client {client} is gone and may write to {block} on {node}");
                        self.shared.oracle.violation(what);
                    }
                }
            }
        }
    }

    /// Notes the changes of configurations since the last check.
    fn note_configs(&mut self) {
        for (node, (_, actor)) in &self.cluster.memory {
            let Some(actor) = actor else { continue };
            actor.rpc.look(|core| {
                for (config, whole, installed) in core.copies() {
                    let now = (config.clone(), whole, installed);
                    let known = self.noted.insert((*node, config.block), now.clone());
                    if known.as_ref() != Some(&now) {
                        let copies: Vec<u64> = config.copies.iter().map(|c| c.node.0).collect();
                        self.cluster.simulation.note(|| {
                            format!(
                                "node {node}: {} at {} of {:?} on {copies:?}, whole {whole}, installed \
                                 {installed}",
                                config.block, config.epoch, config.owner
                            )
                        });
                    }
                }
            });
        }
    }

    /// Checks the properties that must hold at the end of a run.
    fn check_end(&mut self) {
        for (client, block) in self.shared.oracle.late() {
            if self.shared.oracle.is_out_of_reach(client, block) {
                self.shared
                    .oracle
                    .violation(format!("client {client} wrote to {block} and was gone"));
            }
        }
        let ready: BTreeMap<BlockId, Config> =
            self.cluster.ready().into_iter().map(|config| (config.block, config)).collect();
        let rpc = self.cluster.manager.1.as_ref().map(|actor| Arc::clone(&actor.rpc));
        let status = rpc.and_then(|rpc| {
            let now_ns = self.cluster.simulation.now_ns();
            rpc.look(|core| (core.status(now_ns), core.lost()))
        });
        let Some((status, lost)) = status else {
            return self.shared.oracle.violation("there is no manager".to_owned());
        };
        if lost > 0 {
            self.shared.oracle.violation(format!("{lost} blocks lost"));
        }
        for block in &status.blocks {
            if !ready.contains_key(&block.config.block) {
                self.shared.oracle.violation(format!(
                    "block {} is not ready: {:?}, waits for {:?}; {:?}",
                    block.config.block, block.state, block.waits_for, block.config
                ));
            }
        }
        self.check_copies(&ready);
        self.check_owners(&ready);
        for (block, born) in self.shared.oracle.blocks() {
            let there = ready.get(&block).is_some_and(|config| config.born == born);
            if !there && self.shared.known.lock().contains(&block) {
                self.shared.oracle.violation(format!("block {block} is lost"));
            }
        }
    }

    /// Checks that every copy belongs to a block and holds every acknowledged write.
    fn check_copies(&self, ready: &BTreeMap<BlockId, Config>) {
        for (node, (_, actor)) in &self.cluster.memory {
            let Some(actor) = actor else { continue };
            let copies: Vec<(Config, bool, bool)> = actor
                .rpc
                .look(|core| core.copies().map(|(c, w, i)| (c.clone(), w, i)).collect())
                .unwrap_or_default();
            for (config, whole, installed) in &copies {
                let good = ready.get(&config.block) == Some(config) && *whole && *installed;
                if !good {
                    let what = format!(
                        "leaked: a copy of {} on node {node}, whole {whole}, installed {installed}: \
                         {config:?}",
                        config.block
                    );
                    self.shared.oracle.violation(what);
                }
            }
            let used = actor.rpc.look(|core| core.blocks_used()).unwrap_or_default();
            if used != copies.len() as u64 {
                self.shared.oracle.violation(format!("leaked: node {node} counts {used} blocks"));
            }
        }
        for config in ready.values() {
            for copy in &config.copies {
                let actor =
                    self.cluster.memory.get(&copy.node).and_then(|(_, actor)| actor.as_ref());
                let Some(region) = actor.and_then(|actor| actor.rpc.region(config.block)) else {
                    let what = format!("no copy of {} on node {}", config.block, copy.node);
                    self.shared.oracle.violation(what);
                    continue;
                };
                for (word, floor) in self.shared.oracle.words(config.block, config.born) {
                    assert!(word.2 < WORDS, "a word of the block");
                    let mut bytes = [0; 8];
                    region.read(word.2 * 8, &mut bytes).expect("within the block");
                    let who = format!("the copy on node {}", copy.node);
                    self.shared.oracle.saw(word, floor, u64::from_le_bytes(bytes), &who);
                }
            }
        }
    }

    /// Checks that the manager and the clients agree about the owners of blocks.
    fn check_owners(&self, ready: &BTreeMap<BlockId, Config>) {
        let mut owners: BTreeMap<BlockId, Vec<ClientId>> = BTreeMap::new();
        for actor in self.clients.iter().filter_map(|(_, actor)| actor.as_ref()) {
            for block in actor.owned() {
                owners.entry(block).or_default().extend(actor.id());
            }
        }
        for (block, clients) in &owners {
            let said = ready.get(block).and_then(|config| config.owner);
            if clients.len() > 1 || said != clients.first().copied() {
                self.shared
                    .oracle
                    .violation(format!("{clients:?} own {block}, the manager says {said:?}"));
            }
        }
        for config in ready.values() {
            if !owners.contains_key(&config.block) {
                let what =
                    format!("no client knows that it owns {}: {:?}", config.block, config.owner);
                self.shared.oracle.violation(what);
            }
        }
    }
}
