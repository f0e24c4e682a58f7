//! Memory nodes and the manager of a run. The run starts them, crashes them within the limits of
//! quorums, and cuts them off.
//!
//! The scenarios of the pool and of the store each own a [`Cluster`] and add their own hosts.

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

use crate::run::{RunRequest, Trace};
use crate::scenarios::pool::actors::{
    MANAGER, ManagerActor, ManagerLife, MemoryActor, MemoryLife, start_manager, start_memory,
};
use crate::scenarios::pool::sabotage;

/// Largest fraction of batches on mapped memory that are refused.
const REFUSED_MAX: f64 = 0.2;

/// Memory nodes and a manager, with their network.
pub(crate) struct Cluster {
    /// Virtual time and hosts.
    pub(crate) simulation: Simulation,
    /// Network between the hosts.
    pub(crate) network: Arc<Network>,
    /// Random numbers of the run itself.
    pub(crate) rng: Rng,
    /// Time-outs of the manager, and the number of copies of a block.
    pub(crate) terms: Terms,
    /// Sizes of the memory nodes.
    pub(crate) limits: Limits,
    /// Host of the manager, and the manager unless it is down.
    pub(crate) manager: (Sim, Option<ManagerActor>),
    /// Hosts of the memory nodes, and the nodes that are not down.
    pub(crate) memory: BTreeMap<NodeId, (Sim, Option<MemoryActor>)>,
    /// Number of faults so far.
    pub(crate) faults: u64,
    sabotage: Sabotage,
    life: u64,
}

impl Cluster {
    /// A cluster in which nothing has started. `purpose` names its random numbers. `draw` chooses
    /// the number of memory nodes beyond the number of copies, and their sizes.
    pub(crate) fn new(
        request: &RunRequest,
        purpose: &str,
        draw: impl FnOnce(&mut Rng) -> (u64, Limits),
    ) -> Self {
        let simulation = Simulation::new(request.seed);
        if request.trace {
            simulation.keep_notes();
        }
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
        let (faults, life, sabotage) = (0, 0, sabotage(request));
        Self { simulation, network, rng, terms, limits, manager, memory, faults, sabotage, life }
    }

    /// Adds a host to the network.
    pub(crate) fn join(&self, name: &str) -> Sim {
        self.network.join(&self.simulation.host(name), Model::quick())
    }

    /// An epoch that no life had before.
    pub(crate) fn next_life(&mut self) -> Epoch {
        self.life += 1;
        Epoch(self.life)
    }

    /// Starts the manager and the memory nodes that are down.
    pub(crate) fn start(&mut self) {
        let (life, random) = (self.next_life(), self.rng.u64(..));
        let (sim, actor) = &mut self.manager;
        if actor.is_none() {
            revive(sim.host());
            *actor = Some(start_manager(
                &self.network,
                sim,
                ManagerLife { epoch: life, terms: self.terms, random },
            ));
        }
        let nodes: Vec<NodeId> = self.memory.keys().copied().collect();
        for node in nodes {
            let life = self.next_life();
            let Some((sim, actor)) = self.memory.get_mut(&node) else { continue };
            if actor.is_none() {
                revive(sim.host());
                let (limits, sabotage) = (self.limits, self.sabotage);
                let life = MemoryLife { node, epoch: life, limits, sabotage };
                *actor = Some(start_memory(&self.network, sim, life));
            }
        }
    }

    /// Draws loss, delay and doubled messages, which last until the next call.
    pub(crate) fn set_faults(&mut self) {
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

    /// Cuts two hosts from each other, in one direction or both.
    ///
    /// One of the two is often the manager, because the hardest case is a host that reaches all
    /// others but the manager. `others` are the hosts that the cluster does not own.
    pub(crate) fn cut(&mut self, others: &[Host]) {
        let mut hosts: Vec<Host> = vec![self.manager.0.host().clone()];
        hosts.extend(self.memory.values().map(|(sim, _)| sim.host().clone()));
        hosts.extend_from_slice(others);
        let (one, other) = (self.rng.usize(..hosts.len()), self.rng.usize(..hosts.len()));
        let one = if self.rng.bool() { 0 } else { one };
        if one != other {
            self.cut_between(&hosts[one], &hosts[other]);
        }
    }

    /// Cuts these two hosts from each other, in one direction or both.
    pub(crate) fn cut_between(&mut self, one: &Host, other: &Host) {
        self.faults += 1;
        match self.rng.u32(..3) {
            0 => self.network.cut_one_way(one, other),
            1 => self.network.cut_one_way(other, one),
            _ => self.network.cut(one, other),
        }
    }

    /// Ends the faults of the network.
    pub(crate) fn heal(&self) {
        self.network.set_faults(Faults::default());
        self.network.heal_all();
    }

    /// Crashes the manager if every block has a quorum. The next manager does not know the messages
    /// that this one had received but not acted on.
    pub(crate) fn crash_manager(&mut self) {
        if !self.have_quorums(None, None) {
            return;
        }
        let (sim, actor) = &mut self.manager;
        if actor.take().is_some() {
            self.faults += 1;
            sim.host().crash();
        }
    }

    /// Crashes a memory node if every block keeps a quorum.
    ///
    /// While no manager lives, the newest configuration that the other nodes have installed must
    /// have a quorum, too, because the next manager starts from it. If only the crashed node knew
    /// of a half-finished change, an operator would have to finish it (`docs/design/pool.md`).
    pub(crate) fn crash_memory(&mut self) {
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

    /// Whether every block has a quorum on the living nodes except `without`, by the configurations
    /// that all nodes except `unheard` report.
    fn have_quorums(&self, without: Option<NodeId>, unheard: Option<NodeId>) -> bool {
        // The newest configuration that is installed anywhere, and the newest one in preparation.
        let mut newest: BTreeMap<(BlockId, bool), Config> = BTreeMap::new();
        let mut there: BTreeSet<(BlockId, NodeId, Epoch)> = BTreeSet::new();
        for (id, (_, actor)) in self.memory.iter().filter(|(id, _)| Some(**id) != unheard) {
            let Some(actor) = actor else { continue };
            actor.rpc.look(|core| {
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

    /// Fingerprint of the run so far.
    pub(crate) fn trace(&self) -> Trace {
        Trace::of(&self.simulation)
    }

    /// Configurations of the blocks that are ready, by the manager.
    pub(crate) fn ready(&self) -> Vec<Config> {
        let rpc = self.manager.1.as_ref().map(|actor| &actor.rpc);
        rpc.and_then(|rpc| rpc.look(|core| core.ready_blocks().cloned().collect()))
            .unwrap_or_default()
    }
}

/// Restarts a host if it is down. It has no task then.
pub(crate) fn revive(host: &Host) {
    if !host.is_up() {
        host.restart();
    }
}
