//! A run: a cluster, what goes wrong in it, a time of peace, and a look at everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_fabric::{ClientId, NodeId};
use archipelago_manager::core::{ManagerCore, Terms};
use archipelago_memory::core::{Limits, MemoryCore, Sabotage};
use archipelago_pool::{BlockId, Config};
use parking_lot::Mutex;

use crate::actors::{MANAGER, ManagerActor, MemoryActor, start_manager, start_memory};
use crate::client::{ClientActor, Joined, Known, WORDS};
use crate::oracle::Oracle;

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What everything follows from.
    pub seed: u64,
    /// Steps that are left out on purpose.
    pub sabotage: Sabotage,
    /// Virtual time in which things go wrong.
    pub trouble: Duration,
    /// Keep notes of what happens.
    pub notes: bool,
}

impl Settings {
    /// A sound run.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let trouble = Duration::from_millis(250);
        Self { seed, sabotage: Sabotage::default(), trouble, notes: false }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not be.
    pub violations: Vec<String>,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Reads that were checked.
    pub reads: u64,
    /// Crashes of nodes, managers and clients, and cuts.
    pub faults: u64,
    /// Clients of which somebody was told that they are gone.
    pub evictions: u64,
    /// Blocks at the end.
    pub blocks: u64,
    /// Steps of the scheduler.
    pub events: u64,
    /// The trace's hash: the same for the same seed.
    pub trace: u64,
    /// What happened, if it was asked for.
    pub notes: Vec<String>,
}

const BLOCK_BYTES: u64 = 256;

struct World {
    simulation: Simulation,
    network: Arc<Network>,
    settings: Settings,
    rng: Rng,
    terms: Terms,
    limits: Limits,
    life: u64,
    manager: (Sim, Option<ManagerActor>),
    nodes: BTreeMap<NodeId, (Sim, Option<MemoryActor>)>,
    clients: Vec<(Sim, Option<ClientActor>)>,
    oracle: Arc<Oracle>,
    known: Known,
    everybody: Joined,
    /// Blocks of which the manager, or the last one, has heard.
    heard: BTreeSet<BlockId>,
    working: Arc<Mutex<bool>>,
    faults: u64,
    noted: BTreeMap<(NodeId, BlockId), (Config, bool, bool)>,
}

/// Runs one seed.
#[must_use]
pub fn run(settings: Settings) -> Outcome {
    let mut world = World::new(settings);
    world.trouble();
    world.peace();
    world.look();
    let (acknowledged, reads) = world.oracle.counts();
    Outcome {
        violations: world.oracle.violations(),
        acknowledged,
        reads,
        faults: world.faults,
        evictions: world.oracle.evictions(),
        blocks: world.ready().len() as u64,
        events: world.simulation.events(),
        trace: world.simulation.trace_hash(),
        notes: world.simulation.notes(),
    }
}

impl World {
    fn new(settings: Settings) -> Self {
        let simulation = Simulation::new(settings.seed);
        if settings.notes {
            simulation.keep_notes();
        }
        let network = Network::new(&simulation);
        let mut rng = simulation.rng("pool-check");
        let copies = rng.u32(1..=3);
        let terms = Terms {
            copies,
            lease: Duration::from_millis(30),
            node_lease: Duration::from_millis(20),
            resend: Duration::from_millis(2),
            fill_max: Duration::from_millis(60),
            audit: Duration::from_millis(40),
        };
        let join = |name: &str| network.join(&simulation.host(name), Model::quick());
        let manager = (join(MANAGER), None);
        let count = u64::from(copies) + rng.u64(0..=2);
        let nodes = (1..=count).map(|n| (NodeId(n), (join(&format!("memory{n}")), None))).collect();
        let clients = (0..rng.usize(2..=3)).map(|n| (join(&format!("client{n}")), None)).collect();
        let limits = Limits { block_bytes: BLOCK_BYTES, blocks_max: rng.u64(4..=12) };
        let mut world = Self {
            simulation,
            network,
            settings,
            rng,
            terms,
            limits,
            life: 0,
            manager,
            nodes,
            clients,
            oracle: Arc::default(),
            known: Known::default(),
            everybody: Joined::default(),
            heard: BTreeSet::new(),
            working: Arc::new(Mutex::new(true)),
            faults: 0,
            noted: BTreeMap::new(),
        };
        world.start_all();
        world
    }

    fn next_life(&mut self) -> Epoch {
        self.life += 1;
        Epoch(self.life)
    }

    /// Starts what is not there.
    fn start_all(&mut self) {
        self.start_manager();
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for node in nodes {
            self.start_node(node);
        }
        for client in 0..self.clients.len() {
            self.start_client(client);
        }
    }

    fn start_manager(&mut self) {
        let life = self.next_life();
        let random = self.rng.u64(..);
        let (sim, actor) = &mut self.manager;
        if actor.is_none() {
            revive(sim.host());
            *actor = Some(start_manager(&self.network, sim, life, (self.terms, random)));
        }
    }

    fn start_node(&mut self, node: NodeId) {
        let life = self.next_life();
        let Some((sim, actor)) = self.nodes.get_mut(&node) else { return };
        if actor.is_none() {
            revive(sim.host());
            let sabotage = self.settings.sabotage;
            let started = start_memory(&self.network, sim, (node, life), self.limits, sabotage);
            *actor = Some(started);
        }
    }

    fn start_client(&mut self, index: usize) {
        let (sim, actor) = &mut self.clients[index];
        if actor.as_ref().is_none_or(ClientActor::is_evicted) {
            revive(sim.host());
            let shared = (&self.oracle, &self.known, &self.everybody);
            *actor = Some(ClientActor::start(sim, shared, &self.working));
        }
    }

    fn trouble(&mut self) {
        let end_ns = self.simulation.now_ns() + self.settings.trouble.as_nanos() as u64;
        // Let it come up first.
        self.pass(Duration::from_millis(60));
        while self.simulation.now_ns() < end_ns {
            match self.rng.u32(..12) {
                0..2 => self.crash_node(),
                2 => self.crash_manager(),
                3 => self.crash_client(),
                4..6 => self.cut(),
                6 => self.network.heal_all(),
                7 => self.set_faults(),
                8..10 => self.start_all(),
                _ => {}
            }
            let pause = self.rng.u64(1..30);
            self.pass(Duration::from_millis(pause));
        }
    }

    /// Lets time pass, and looks at what must hold at any time.
    fn pass(&mut self, duration: Duration) {
        let end_ns = self.simulation.now_ns() + duration.as_nanos() as u64;
        while self.simulation.now_ns() < end_ns {
            self.simulation.run_for(Duration::from_micros(500));
            self.look_at_nodes();
        }
    }

    fn set_faults(&mut self) {
        let faults = match self.rng.u32(..3) {
            0 => Faults::default(),
            _ => Faults {
                loss: self.rng.f64() * 0.05,
                duplicate: self.rng.f64() * 0.1,
                delay_ns_max: self.rng.u64(..2_000_000),
                tear: 0.0,
            },
        };
        self.network.set_faults(faults);
    }

    fn cut(&mut self) {
        let mut hosts: Vec<Host> = vec![self.manager.0.host().clone()];
        hosts.extend(self.nodes.values().map(|(sim, _)| sim.host().clone()));
        hosts.extend(self.clients.iter().map(|(sim, _)| sim.host().clone()));
        let (one, other) = (self.rng.usize(..hosts.len()), self.rng.usize(..hosts.len()));
        if one == other {
            return;
        }
        self.faults += 1;
        // Often from the manager alone: what is cut off from it but not from the others is the hard case.
        let one = if self.rng.bool() { 0 } else { one };
        if one == other {
            return;
        }
        match self.rng.u32(..3) {
            0 => self.network.cut_one_way(&hosts[one], &hosts[other]),
            1 => self.network.cut_one_way(&hosts[other], &hosts[one]),
            _ => self.network.cut(&hosts[one], &hosts[other]),
        }
    }

    /// The manager goes while every block has a quorum: what it had not acted on yet is not known to the next one.
    fn crash_manager(&mut self) {
        if !self.keeps_quorums(None) {
            return;
        }
        let (sim, actor) = &mut self.manager;
        if actor.take().is_some() {
            self.faults += 1;
            sim.host().crash();
        }
    }

    fn crash_client(&mut self) {
        let index = self.rng.usize(..self.clients.len());
        let (sim, actor) = &mut self.clients[index];
        if actor.take().is_some() {
            self.faults += 1;
            sim.host().crash();
        }
    }

    /// Crashes a node, if every block keeps a quorum. While no manager lives, also of the newest configuration that those
    /// who stay have installed: it is what the next manager will go by, and a change that the last one left half
    /// done with what only the crashed node knew of it waits for a person (`docs/pool.md`).
    fn crash_node(&mut self) {
        let up: Vec<NodeId> =
            self.nodes.iter().filter(|(_, (_, actor))| actor.is_some()).map(|(n, _)| *n).collect();
        if up.is_empty() {
            return;
        }
        let node = up[self.rng.usize(..up.len())];
        let orphaned = self.manager.1.is_none();
        if !self.keeps_quorums(Some(node)) || (orphaned && !self.keeps_quorums_among(Some(node))) {
            return;
        }
        if let Some((sim, actor)) = self.nodes.get_mut(&node) {
            self.faults += 1;
            sim.host().crash();
            *actor = None;
        }
    }

    /// Whether every block has a quorum on nodes that live, `without` one.
    fn keeps_quorums(&self, without: Option<NodeId>) -> bool {
        self.have_quorums(without, None)
    }

    /// The same by what the others say of the blocks, without what that one knows.
    fn keeps_quorums_among(&self, without: Option<NodeId>) -> bool {
        self.have_quorums(without, without)
    }

    fn have_quorums(&self, without: Option<NodeId>, unheard: Option<NodeId>) -> bool {
        // The newest that is installed anywhere, and the newest that is being made.
        let mut newest: BTreeMap<(BlockId, bool), Config> = BTreeMap::new();
        let mut there: BTreeSet<(BlockId, NodeId, Epoch)> = BTreeSet::new();
        for (id, (_, actor)) in self.nodes.iter().filter(|(id, _)| Some(**id) != unheard) {
            let Some(actor) = actor else { continue };
            actor.serving.look(|core| {
                for (config, whole, installed) in core.copies() {
                    if whole {
                        there.insert((config.block, *id, core.life()));
                    }
                    let key = (config.block, installed);
                    let known = newest.entry(key).or_insert_with(|| config.clone());
                    if config.epoch > known.epoch {
                        *known = config.clone();
                    }
                }
            });
        }
        newest.values().all(|config| {
            let stays = config.copies.iter().filter(|copy| {
                Some(copy.node) != without && there.contains(&(config.block, copy.node, copy.life))
            });
            let stays: BTreeSet<NodeId> = stays.map(|copy| copy.node).collect();
            config.is_quorum(&stays)
        })
    }

    /// Everything comes back and is left alone.
    fn peace(&mut self) {
        *self.working.lock() = false;
        self.network.set_faults(Faults::default());
        self.network.heal_all();
        for _ in 0..6 {
            self.start_all();
            self.pass(Duration::from_millis(60));
        }
    }

    fn ready(&self) -> Vec<Config> {
        let desk = self.manager.1.as_ref().map(|actor| &actor.desk);
        desk.and_then(|desk| desk.look(|core| core.ready_blocks().cloned().collect()))
            .unwrap_or_default()
    }

    /// At any time: no node over its size, no two clients that may write to a block of one owner, nobody who is gone that may write
    /// to a copy in use.
    fn look_at_nodes(&mut self) {
        if self.settings.notes {
            self.note_configs();
        }
        self.look_for_the_dead();
        let mut writers: BTreeMap<(BlockId, NodeId), Vec<ClientId>> = BTreeMap::new();
        for (node, (_, actor)) in &self.nodes {
            let Some(actor) = actor else { continue };
            actor.serving.look(|core| {
                if core.blocks_used() > self.limits.blocks_max {
                    let what = format!("node {node} holds {} blocks", core.blocks_used());
                    self.oracle.violation(what);
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
                self.oracle.violation(what);
            }
        }
    }

    /// A client that is gone has no key to change a copy that is in use. Its keys and not its writes are looked at: a write needs
    /// all copies, an atomic only one.
    fn look_for_the_dead(&mut self) {
        // What the last manager knew is kept until there is another.
        if let Some(actor) = &self.manager.1 {
            self.heard = actor.desk.look(ManagerCore::heard_of).unwrap_or_default();
        }
        self.oracle.look_at_evictions(|| {
            let mut unheard = BTreeSet::new();
            for (_, actor) in self.nodes.values() {
                let of = |core: &MemoryCore| core.copies().map(|(c, ..)| c.block).collect();
                let blocks: Option<Vec<BlockId>> = actor.as_ref().and_then(|a| a.serving.look(of));
                unheard.extend(blocks.into_iter().flatten());
            }
            unheard.retain(|block| !self.heard.contains(block));
            unheard
        });
        for config in self.ready() {
            for copy in &config.copies {
                let actor = self.nodes.get(&copy.node).and_then(|(_, actor)| actor.as_ref());
                let writers = actor.and_then(|actor| {
                    let here = |core: &MemoryCore| core.life() == copy.life;
                    let of = |core: &MemoryCore| here(core).then(|| core.writers(config.block));
                    actor.serving.look(of).flatten()
                });
                for client in writers.into_iter().flatten() {
                    if self.oracle.is_out_of_reach(client, config.block) {
                        let (block, node) = (config.block, copy.node);
                        let what =
                            format!("client {client} is gone and may write to {block} on {node}");
                        self.oracle.violation(what);
                    }
                }
            }
        }
    }

    /// Notes what became of blocks since the last look.
    fn note_configs(&mut self) {
        for (node, (_, actor)) in &self.nodes {
            let Some(actor) = actor else { continue };
            actor.serving.look(|core| {
                for (config, whole, installed) in core.copies() {
                    let now = (config.clone(), whole, installed);
                    let known = self.noted.insert((*node, config.block), now.clone());
                    if known.as_ref() != Some(&now) {
                        let copies: Vec<u64> = config.copies.iter().map(|c| c.node.0).collect();
                        self.simulation.note(|| {
                            format!(
                                "node {node}: {} at {} of {:?} on {copies:?}, whole {whole}, installed {installed}",
                                config.block, config.epoch, config.owner
                            )
                        });
                    }
                }
            });
        }
    }

    /// At the end.
    fn look(&mut self) {
        for (client, block) in self.oracle.late() {
            if self.oracle.is_out_of_reach(client, block) {
                self.oracle.violation(format!("client {client} wrote to {block} and was gone"));
            }
        }
        let ready: BTreeMap<BlockId, Config> =
            self.ready().into_iter().map(|config| (config.block, config)).collect();
        let desk = self.manager.1.as_ref().map(|actor| Arc::clone(&actor.desk));
        let status = desk.and_then(|desk| {
            let now_ns = self.simulation.now_ns();
            desk.look(|core| (core.status(now_ns), core.lost()))
        });
        let Some((status, lost)) = status else {
            return self.oracle.violation("there is no manager".to_owned());
        };
        if lost > 0 {
            self.oracle.violation(format!("{lost} blocks lost"));
        }
        for block in &status.blocks {
            if !ready.contains_key(&block.config.block) {
                self.oracle.violation(format!(
                    "block {} is not ready: {:?}, waits for {:?}; {:?}",
                    block.config.block, block.state, block.waits_for, block.config
                ));
            }
        }
        self.look_at_copies(&ready);
        self.look_at_owners(&ready);
        for (block, born) in self.oracle.blocks() {
            let there = ready.get(&block).is_some_and(|config| config.born == born);
            if !there && self.known.lock().contains(&block) {
                self.oracle.violation(format!("block {block} is lost"));
            }
        }
    }

    /// Every copy belongs to a block, and has everything that was acknowledged.
    fn look_at_copies(&self, ready: &BTreeMap<BlockId, Config>) {
        for (node, (_, actor)) in &self.nodes {
            let Some(actor) = actor else { continue };
            let copies: Vec<(Config, bool, bool)> = actor
                .serving
                .look(|core| core.copies().map(|(c, w, i)| (c.clone(), w, i)).collect())
                .unwrap_or_default();
            for (config, whole, installed) in &copies {
                let good = ready.get(&config.block) == Some(config) && *whole && *installed;
                if !good {
                    let what = format!(
                        "leaked: a copy of {} on node {node}, whole {whole}, installed {installed}: {config:?}",
                        config.block
                    );
                    self.oracle.violation(what);
                }
            }
            let used = actor.serving.look(|core| core.blocks_used()).unwrap_or_default();
            if used != copies.len() as u64 {
                self.oracle.violation(format!("leaked: node {node} counts {used} blocks"));
            }
        }
        for config in ready.values() {
            for copy in &config.copies {
                let actor = self.nodes.get(&copy.node).and_then(|(_, actor)| actor.as_ref());
                let Some(region) = actor.and_then(|actor| actor.serving.region(config.block))
                else {
                    let what = format!("no copy of {} on node {}", config.block, copy.node);
                    self.oracle.violation(what);
                    continue;
                };
                for (word, floor) in self.oracle.words(config.block, config.born) {
                    assert!(word.2 < WORDS, "a word of the block");
                    let mut bytes = [0; 8];
                    region.read(word.2 * 8, &mut bytes).expect("within the block");
                    let who = format!("the copy on node {}", copy.node);
                    self.oracle.saw(word, floor, u64::from_le_bytes(bytes), &who);
                }
            }
        }
    }

    /// Manager and clients agree on who owns what.
    fn look_at_owners(&self, ready: &BTreeMap<BlockId, Config>) {
        let mut owners: BTreeMap<BlockId, Vec<ClientId>> = BTreeMap::new();
        for actor in self.clients.iter().filter_map(|(_, actor)| actor.as_ref()) {
            for block in actor.owned() {
                owners.entry(block).or_default().extend(actor.id());
            }
        }
        for (block, clients) in &owners {
            let said = ready.get(block).and_then(|config| config.owner);
            if clients.len() > 1 || said != clients.first().copied() {
                self.oracle
                    .violation(format!("{clients:?} own {block}, the manager says {said:?}"));
            }
        }
        for config in ready.values() {
            if !owners.contains_key(&config.block) {
                let what = format!("nobody knows of owning {}: {:?}", config.block, config.owner);
                self.oracle.violation(what);
            }
        }
    }
}

fn revive(host: &Host) {
    if !host.is_up() {
        host.restart();
    }
}
