//! Memory nodes and the manager as a world has them: started, crashed within what quorums survive,
//! cut off, stopped for a while.
//!
//! What stands on the pool (its clients, or a store) has a cluster in its own world and adds its
//! hosts to what is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_fabric::NodeId;
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_manager::core::Terms;
use archipelago_memory::core::{Limits, Sabotage};
use archipelago_pool::{BlockId, Config};

use crate::scenarios::pool::actors::{
    MANAGER, ManagerActor, MemoryActor, start_manager, start_memory,
};

/// Share of batches on mapped memory that are refused, at most.
const REFUSED_MAX: f64 = 0.2;

/// See the module.
pub struct Cluster {
    /// Time and hosts.
    pub simulation: Simulation,
    /// What connects them.
    pub network: Arc<Network>,
    /// The world's own dice.
    pub rng: Rng,
    /// How patient the manager is, and how many copies blocks have.
    pub terms: Terms,
    /// Sizes of memory nodes.
    pub limits: Limits,
    /// The manager; `None` while it is down.
    pub manager: (Sim, Option<ManagerActor>),
    /// Memory nodes; `None` while one is down.
    pub memory: BTreeMap<NodeId, (Sim, Option<MemoryActor>)>,
    /// What went wrong so far.
    pub faults: u64,
    sabotage: Sabotage,
    life: u64,
}

impl Cluster {
    /// A world of `seed` in which nothing is started yet. `purpose` names its dice; `limits` and
    /// the memory nodes beyond the number of copies are drawn by the caller.
    pub fn new(
        seed: u64,
        purpose: &str,
        sabotage: Sabotage,
        draw: impl FnOnce(&mut Rng) -> (u64, Limits),
    ) -> Self {
        let simulation = Simulation::new(seed);
        let network = Network::new(&simulation);
        let mut rng = simulation.rng(purpose);
        let copies = rng.u32(1..=3);
        let terms = Terms {
            copies,
            lease: Duration::from_millis(30),
            node_lease: Duration::from_millis(20),
            resend: Duration::from_millis(2),
            fill_max: Duration::from_millis(60),
            audit: Duration::from_millis(40),
        };
        let (more, limits) = draw(&mut rng);
        let join = |name: &str| network.join(&simulation.host(name), Model::quick());
        let manager = (join(MANAGER), None);
        let nodes = 1..=u64::from(copies) + more;
        let memory = nodes.map(|n| (NodeId(n), (join(&format!("memory{n}")), None))).collect();
        let (faults, life) = (0, 0);
        Self { simulation, network, rng, terms, limits, manager, memory, faults, sabotage, life }
    }

    /// A new host on the network.
    #[must_use]
    pub fn join(&self, name: &str) -> Sim {
        self.network.join(&self.simulation.host(name), Model::quick())
    }

    /// An epoch that no life had.
    pub fn next_life(&mut self) -> Epoch {
        self.life += 1;
        Epoch(self.life)
    }

    /// Starts the manager and the memory nodes that are down.
    pub fn start(&mut self) {
        let (life, random) = (self.next_life(), self.rng.u64(..));
        let (sim, actor) = &mut self.manager;
        if actor.is_none() {
            revive(sim.host());
            *actor = Some(start_manager(&self.network, sim, life, (self.terms, random)));
        }
        let nodes: Vec<NodeId> = self.memory.keys().copied().collect();
        for node in nodes {
            let life = self.next_life();
            let Some((sim, actor)) = self.memory.get_mut(&node) else { continue };
            if actor.is_none() {
                revive(sim.host());
                let at = (node, life);
                *actor = Some(start_memory(&self.network, sim, at, self.limits, self.sabotage));
            }
        }
    }

    /// Loss, delay and doubled messages, or none, until the next call.
    pub fn set_faults(&mut self) {
        let refuse = self.rng.f64() * REFUSED_MAX;
        let faults = match self.rng.u32(..3) {
            0 => Faults { refuse, ..Faults::default() },
            _ => Faults {
                loss: self.rng.f64() * 0.05,
                duplicate: self.rng.f64() * 0.1,
                delay_ns_max: self.rng.u64(..2_000_000),
                tear: 0.0,
                refuse,
            },
        };
        self.network.set_faults(faults);
    }

    /// Cuts two hosts from each other, one way or both; often the manager and somebody, as who is
    /// cut off from it but not from the others is the hard case. `others`: hosts beside manager and
    /// memory nodes.
    pub fn cut(&mut self, others: &[Host]) {
        let mut hosts: Vec<Host> = vec![self.manager.0.host().clone()];
        hosts.extend(self.memory.values().map(|(sim, _)| sim.host().clone()));
        hosts.extend_from_slice(others);
        let (one, other) = (self.rng.usize(..hosts.len()), self.rng.usize(..hosts.len()));
        let one = if self.rng.bool() { 0 } else { one };
        if one != other {
            self.cut_between(&hosts[one], &hosts[other]);
        }
    }

    /// Cuts two hosts from each other, one way or both.
    pub fn cut_between(&mut self, one: &Host, other: &Host) {
        self.faults += 1;
        match self.rng.u32(..3) {
            0 => self.network.cut_one_way(one, other),
            1 => self.network.cut_one_way(other, one),
            _ => self.network.cut(one, other),
        }
    }

    /// Ends what goes wrong by itself.
    pub fn heal(&self) {
        self.network.set_faults(Faults::default());
        self.network.heal_all();
    }

    /// The manager goes while every block has a quorum: what it had not acted on yet is not known
    /// to the next one.
    pub fn crash_manager(&mut self) {
        if !self.have_quorums(None, None) {
            return;
        }
        let (sim, actor) = &mut self.manager;
        if actor.take().is_some() {
            self.faults += 1;
            sim.host().crash();
        }
    }

    /// Crashes a memory node, if every block keeps a quorum. While no manager lives, also of the
    /// newest configuration that those who stay have installed: it is what the next manager will go
    /// by, and a change that the last one left half done with what only the crashed node knew of it
    /// waits for a person (`docs/design/pool.md`).
    pub fn crash_memory(&mut self) {
        let up: Vec<NodeId> =
            self.memory.iter().filter(|(_, (_, actor))| actor.is_some()).map(|(n, _)| *n).collect();
        if up.is_empty() {
            return;
        }
        let node = up[self.rng.usize(..up.len())];
        let orphaned = self.manager.1.is_none();
        let without = Some(node);
        if !self.have_quorums(without, None) || (orphaned && !self.have_quorums(without, without)) {
            return;
        }
        if let Some((sim, actor)) = self.memory.get_mut(&node) {
            self.faults += 1;
            sim.host().crash();
            *actor = None;
        }
    }

    /// Whether every block has a quorum on nodes that live, `without` one; by what all but
    /// `unheard` say of the blocks.
    fn have_quorums(&self, without: Option<NodeId>, unheard: Option<NodeId>) -> bool {
        // The newest that is installed anywhere, and the newest that is being made.
        let mut newest: BTreeMap<(BlockId, bool), Config> = BTreeMap::new();
        let mut there: BTreeSet<(BlockId, NodeId, Epoch)> = BTreeSet::new();
        for (id, (_, actor)) in self.memory.iter().filter(|(id, _)| Some(**id) != unheard) {
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

    /// Blocks that can be used now, as the manager says.
    #[must_use]
    pub fn ready(&self) -> Vec<Config> {
        let desk = self.manager.1.as_ref().map(|actor| &actor.desk);
        desk.and_then(|desk| desk.look(|core| core.ready_blocks().cloned().collect()))
            .unwrap_or_default()
    }
}

/// Starts a host that is down, without any task.
pub fn revive(host: &Host) {
    if !host.is_up() {
        host.restart();
    }
}
