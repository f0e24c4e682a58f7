//! The cluster of a run: storage nodes, a manager and the network, with the faults that happen to
//! them.
//!
//! The promises of the store allow some losses and no others ([`Losses`]). A run draws what may be
//! lost, and the cluster keeps its faults within that. Any number of processes may be killed,
//! stopped, cut off or slow: then operations may fail, but nothing may be lost.
//!
//! Thread-safety: the thread that runs the simulation calls everything.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, HostClock, Simulation};
use archipelago_env::FileClass;
use archipelago_fabric::sim::{Faults, Model, Network, Sim, Transport};
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::members::{MemberTable, MemberTerms};
use archipelago_store::nodes::register::caspaxos::root_change::RootChangeSabotage;
use archipelago_store::nodes::repairs::RepairTerms;
use archipelago_store::nodes::wire::{Members, RepairStatus, StoreMessage};

use super::manager::{MANAGER, ManagerProcess, ManagerSettings};
use super::node::{NodeEnd, NodePlace, NodeSettings};
use crate::run::{RunRequest, Trace};

/// Virtual time after which a cluster that is not founded counts as stuck.
const FOUNDING_MAX: Duration = Duration::from_secs(20);
/// Largest number of nodes that are down, stopped or cut off at the same time.
const AWAY_MAX: usize = 2;
/// Largest error of a clock's rate, in millionths. A lease tolerates an eighth.
const CLOCK_ERROR_PPM: i32 = 10_000;

/// Time between two rounds of repairs that find nothing.
pub(crate) const SCAN_EVERY: Duration = Duration::from_secs(2);
/// Time after which a lost packet is sent again. Hosts that are cut off request connections again
/// and again. At an interval of a millisecond, these requests would be most events of a run.
const AGAIN_NS: u64 = 5_000_000;

/// Losses that a run allows in addition to killed processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Losses {
    /// The sealed chunks and the logs of one machine are damaged, as by bit rot.
    Damage,
    /// One machine loses its memory or its second device from time to time, and at most once all
    /// devices.
    OneMachine,
    /// All machines lose their memory, also at the same time.
    Power,
}

/// Settings of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterSettings {
    /// Number of storage nodes, each in a domain of its own.
    pub(crate) nodes: usize,
    /// Losses that the run allows.
    pub(crate) losses: Losses,
    /// Settings of the nodes.
    pub(crate) node: NodeSettings,
    /// Steps that replacements of the root set leave out.
    pub(crate) root_change: RootChangeSabotage,
    /// Whether managers have lost copies made again.
    pub(crate) has_repairs: bool,
}

/// Number of copies that managers had made again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repaired {
    /// Number of chunks.
    pub(crate) chunks: u64,
    /// Number of copies of extents.
    pub(crate) extents: u64,
}

/// The root set, as the manager knows it.
#[derive(Clone, Debug)]
pub(crate) struct RootNodes {
    /// Number of the set.
    pub(crate) number: u64,
    /// Positions of its members among the nodes.
    pub(crate) nodes: Vec<usize>,
}

/// Storage nodes and a manager, with their network and their faults.
pub(crate) struct Cluster {
    /// Random numbers of the run.
    pub(crate) rng: Rng,
    /// Number of faults so far.
    pub(crate) faults: u64,
    /// Number of files of extents that were damaged.
    pub(crate) rotten_extents: u64,
    /// Number of second devices that were lost.
    pub(crate) lost_devices: u64,
    /// Number of damaged extents that the damaged machine reported, before each of its ends and
    /// after each of its starts.
    pub(crate) reported_extents: u64,
    /// Nodes whose machine has lost memory.
    forgetful: Vec<bool>,
    settings: ClusterSettings,
    network: Arc<Network>,
    nodes: Vec<NodePlace>,
    manager: Option<ManagerProcess>,
    /// Copies that killed managers had made again.
    repaired: Repaired,
    manager_sim: Sim,
    /// Hosts of processes that were killed. Nothing reaches them or comes from them any more.
    dead: Vec<Host>,
    clients: usize,
    stopped: Vec<usize>,
    cut: Vec<usize>,
    /// The machine whose disk or chunks may be damaged.
    weak: usize,
    has_wiped: bool,
    /// The node that an operator has ordered to empty.
    draining: Option<StorageId>,
    // The drop of the simulation ends all tasks, so it comes last.
    pub(crate) simulation: Simulation,
}

fn terms() -> MemberTerms {
    MemberTerms {
        beat: Duration::from_millis(200),
        silent_after: Duration::from_millis(600),
        lost_after: Duration::from_secs(3),
        settle: Duration::from_millis(300),
        root_nodes: None,
        repair: RepairTerms {
            scan_every: SCAN_EVERY,
            scan_again: Duration::from_millis(500),
            check_every: Duration::from_secs(5),
            ..RepairTerms::default()
        },
        ..MemberTerms::default()
    }
}

impl Cluster {
    /// A cluster of nodes and a manager that start at the same time.
    pub(crate) fn new(request: &RunRequest, settings: ClusterSettings) -> Self {
        let simulation = Simulation::new(request.seed);
        if request.trace {
            simulation.keep_notes();
        }
        let network = Network::new(&simulation);
        network.set_transport(Transport { again_ns: AGAIN_NS, ..Transport::default() });
        let mut rng = simulation.rng("storage");
        let manager_sim = network.join(&simulation.host(MANAGER), Model::quick());
        let weak = rng.usize(..settings.nodes);
        let mut cluster = Self {
            rng,
            faults: 0,
            rotten_extents: 0,
            lost_devices: 0,
            reported_extents: 0,
            forgetful: vec![false; settings.nodes],
            settings,
            network,
            nodes: Vec::new(),
            manager: None,
            repaired: Repaired::default(),
            manager_sim,
            dead: Vec::new(),
            clients: 0,
            stopped: Vec::new(),
            cut: Vec::new(),
            weak,
            has_wiped: false,
            draining: None,
            simulation,
        };
        cluster.start_manager();
        for n in 0..settings.nodes {
            let sim = cluster.join(&format!("node{n}"));
            let seed = cluster.simulation.fresh_seed();
            cluster.nodes.push(NodePlace::new(n, sim, settings.node, seed));
            cluster.nodes[n].start();
        }
        cluster
    }

    /// Adds a host to the network, whose clock runs apart.
    fn join(&mut self, name: &str) -> Sim {
        let host = self.simulation.host(name);
        host.set_clock(HostClock {
            ahead_ns: self.rng.u64(..1_000_000_000),
            fast_ppm: self.rng.i32(-CLOCK_ERROR_PPM..=CLOCK_ERROR_PPM),
        });
        self.network.join(&host, Model::quick())
    }

    /// Adds a host for a process that uses the cluster.
    pub(crate) fn join_client(&mut self) -> Sim {
        self.clients += 1;
        let name = format!("client{}", self.clients);
        self.join(&name)
    }

    /// Gives a host a card of this rate, in each direction, and messages that take `latency`.
    pub(crate) fn set_card(&self, host: &Host, bytes_per_s: u64, latency: Duration) {
        let byte_ps = 1_000_000_000_000 / bytes_per_s;
        let latency_ps = latency.as_nanos() as u64 * 1000;
        self.network.join(host, Model { byte_ps, latency_ps, ..Model::quick() });
    }

    /// Gives all nodes cards of this rate.
    pub(crate) fn set_node_cards(&self, bytes_per_s: u64, latency: Duration) {
        for node in &self.nodes {
            self.set_card(node.host(), bytes_per_s, latency);
        }
    }

    /// Lets time pass.
    pub(crate) fn run_for(&self, duration: Duration) {
        self.simulation.run_for(duration);
    }

    /// Waits until all nodes know the cluster. Errors: it is not founded in time.
    pub(crate) fn found(&self) -> Result<(), String> {
        let end_ns = self.simulation.now_ns() + FOUNDING_MAX.as_nanos() as u64;
        while self.simulation.now_ns() < end_ns {
            let cluster = self.members().cluster;
            if cluster.is_some() && self.nodes.iter().all(|node| node.knows(cluster)) {
                return Ok(());
            }
            self.run_for(Duration::from_millis(100));
        }
        Err(format!("the cluster is not founded: {:?}", self.members()))
    }

    /// The members, as the manager knows them.
    pub(crate) fn members(&self) -> Members {
        let manager = self.manager.as_ref();
        manager.map_or_else(Members::default, |manager| manager.look(MemberTable::members))
    }

    /// The nodes of the cluster.
    pub(crate) fn nodes(&self) -> &[NodePlace] {
        &self.nodes
    }

    /// Losses that the run allows.
    pub(crate) fn losses(&self) -> Losses {
        self.settings.losses
    }

    /// Whether at least two machines have lost memory, so that a recovery may miss unsynced bytes.
    pub(crate) fn may_miss_unsynced(&self) -> bool {
        self.forgetful.iter().filter(|it| **it).count() >= 2
    }

    fn start_manager(&mut self) {
        let host = self.manager_sim.host();
        if !host.is_up() {
            host.restart();
        }
        let ClusterSettings { root_change, has_repairs, .. } = self.settings;
        let settings = ManagerSettings { terms: terms(), root_change, has_repairs };
        self.manager = Some(ManagerProcess::start(&self.manager_sim, settings));
    }

    /// Kills the manager, or starts another one that knows nothing.
    pub(crate) fn replace_manager(&mut self) {
        self.faults += 1;
        self.repaired = self.repaired();
        if self.manager.take().is_some() {
            self.manager_sim.host().crash();
        } else {
            self.start_manager();
        }
    }

    /// The state of the repairs; `None` without a manager that makes any.
    pub(crate) fn repair_status(&self) -> Option<RepairStatus> {
        self.manager.as_ref()?.repair_status()
    }

    /// Whether managers have lost copies made again.
    pub(crate) fn has_repairs(&self) -> bool {
        self.settings.has_repairs
    }

    /// Number of copies that all managers so far had made again.
    pub(crate) fn repaired(&self) -> Repaired {
        let now = self.repair_status().unwrap_or_default();
        Repaired {
            chunks: self.repaired.chunks + now.chunks_repaired,
            extents: self.repaired.extents + now.extents_repaired,
        }
    }

    /// Lets all nodes that run check their stored bytes.
    pub(crate) fn scrub(&self) {
        self.nodes.iter().for_each(NodePlace::scrub);
    }

    /// An operator orders a node to empty itself, or takes the order back.
    pub(crate) fn toggle_drain(&mut self) {
        if self.manager.is_none() {
            return;
        }
        let n = self.rng.usize(..self.nodes.len());
        match self.draining {
            Some(storage) => self.order_drain(storage, false),
            None => self.drain(n),
        }
    }

    /// An operator orders the node `n` to empty itself.
    pub(crate) fn drain(&mut self, n: usize) {
        if let Some(storage) = self.nodes[n].storage() {
            self.order_drain(storage, true);
        }
    }

    /// An operator takes the order back.
    pub(crate) fn end_drain(&mut self) {
        if let Some(storage) = self.draining {
            self.order_drain(storage, false);
        }
    }

    fn order_drain(&mut self, storage: StorageId, is_draining: bool) {
        let Some(manager) = &self.manager else { return };
        let answer = manager.ask(&StoreMessage::DrainNode { storage, is_draining });
        self.simulation.note(|| format!("drain of {storage}, {is_draining}: {answer:?}"));
        // A manager refuses an order for a node that it does not know yet.
        if answer == (StoreMessage::Done {}) {
            self.draining = is_draining.then_some(storage);
        }
    }

    /// The root set. `None` unless a manager knows it and all of its nodes run.
    pub(crate) fn root_nodes(&self) -> Option<RootNodes> {
        let roots = self.manager.as_ref()?.look(MemberTable::settled_root_set)?;
        let place =
            |member: &StorageId| self.nodes.iter().position(|node| node.storage() == Some(*member));
        let nodes = roots.members.iter().map(place).collect::<Option<Vec<usize>>>()?;
        Some(RootNodes { number: roots.number, nodes })
    }

    /// Bytes that the logs of a class have on each node.
    pub(crate) fn log_bytes(&self, class: FileClass) -> Vec<u64> {
        let of_node = |node: &NodePlace| -> u64 {
            let report = node.report();
            let spaces = report.volumes.iter().filter(|space| space.class == class);
            spaces.map(|space| space.bytes).sum()
        };
        self.nodes.iter().map(of_node).collect()
    }

    /// Ends the process of a client for the cluster: nothing reaches it or comes from it any more.
    /// Its threads find out by their own deadlines, so that they end in order.
    pub(crate) fn kill_client(&mut self, host: &Host) {
        self.faults += 1;
        self.simulation.note(|| format!("{} is killed", host.name()));
        self.isolate(host);
        self.dead.push(host.clone());
    }

    fn isolate(&self, host: &Host) {
        self.network.cut(host, self.manager_sim.host());
        for node in &self.nodes {
            self.network.cut(host, node.host());
        }
    }

    /// Cuts a client off from some hosts, in one direction or both.
    pub(crate) fn cut_client(&mut self, client: &Host) {
        self.faults += 1;
        let mut hosts = vec![self.manager_sim.host().clone()];
        hosts.extend(self.nodes.iter().map(|node| node.host().clone()));
        let count = self.rng.usize(1..=2);
        for _ in 0..count {
            let other = &hosts[self.rng.usize(..hosts.len())];
            match self.rng.u8(..3) {
                0 => self.network.cut_one_way(client, other),
                1 => self.network.cut_one_way(other, client),
                _ => self.network.cut(client, other),
            }
        }
    }

    /// Loses everything that a client sends to nodes, except to those of `kept`. Answers that are
    /// under way arrive.
    pub(crate) fn cut_sends(&mut self, client: &Host, kept: &[usize]) {
        self.faults += 1;
        let nodes = self.nodes.iter().enumerate().filter(|(n, _)| !kept.contains(n));
        nodes.for_each(|(_, node)| self.network.cut_one_way(client, node.host()));
    }

    /// Cuts a client off from everything, until the network heals.
    pub(crate) fn cut_off(&mut self, client: &Host) {
        self.faults += 1;
        self.isolate(client);
    }

    /// Ends all cuts, except those of processes that were killed.
    pub(crate) fn heal(&mut self) {
        self.network.heal_all();
        self.cut.clear();
        for host in &self.dead {
            self.isolate(host);
        }
    }

    /// Draws loss, delay and doubled messages, which last until the next call.
    pub(crate) fn draw_weather(&mut self) {
        let faults = match self.rng.u8(..3) {
            0 => Faults::default(),
            _ => Faults {
                loss: self.rng.f64() * 0.03,
                duplicate: self.rng.f64() * 0.1,
                delay_ns_max: 1 << self.rng.u32(8..21),
                ..Faults::default()
            },
        };
        self.network.set_faults(faults);
    }

    /// Delays all messages by up to half a millisecond, and loses none.
    pub(crate) fn delay_messages(&mut self) {
        let delay_ns_max = 1 << self.rng.u32(14..20);
        self.network.set_faults(Faults { delay_ns_max, ..Faults::default() });
    }

    fn is_away(&self, n: usize) -> bool {
        !self.nodes[n].is_up() || self.stopped.contains(&n) || self.cut.contains(&n)
    }

    /// Draws a node for the next fault: a node that is away, or a node that may go away.
    fn draw_victim(&mut self) -> Option<usize> {
        let n = self.rng.usize(..self.nodes.len());
        let away = (0..self.nodes.len()).filter(|n| self.is_away(*n)).count();
        (self.is_away(n) || away < AWAY_MAX).then_some(n)
    }

    /// Begins a fault of a node, or ends one.
    pub(crate) fn disturb_node(&mut self) {
        let Some(n) = self.draw_victim() else { return };
        self.faults += 1;
        if !self.nodes[n].is_up() {
            return self.nodes[n].start();
        }
        if self.stopped.contains(&n) {
            return self.go_on(n);
        }
        if self.cut.contains(&n) {
            return self.heal();
        }
        match self.rng.u8(..9) {
            0 | 1 => self.end_node(n, NodeEnd::Kill),
            2 => {
                // The process starts again immediately.
                self.end_node(n, NodeEnd::Kill);
                self.nodes[n].start();
            }
            3 => {
                self.nodes[n].host().stop();
                self.stopped.push(n);
            }
            4 => self.cut_node(n),
            5 => {
                let slow = Duration::from_micros(10 << self.rng.u32(..11));
                let time = if self.rng.bool() { slow } else { Duration::ZERO };
                self.nodes[n].set_request_time(time);
            }
            _ => self.lose(n),
        }
    }

    fn go_on(&mut self, n: usize) {
        self.nodes[n].host().go_on();
        self.stopped.retain(|stopped| *stopped != n);
    }

    fn end_node(&mut self, n: usize, how: NodeEnd) {
        self.simulation.note(|| format!("node {n} ends: {how:?}"));
        self.stopped.retain(|stopped| *stopped != n);
        self.count_reported(n);
        self.nodes[n].end(how);
        if how != NodeEnd::Kill {
            self.forgetful[n] = true;
        }
    }

    /// Cuts a node off from some clients, from the manager, or from everything.
    fn cut_node(&mut self, n: usize) {
        self.cut.push(n);
        let host = self.nodes[n].host().clone();
        let manager = self.manager_sim.host().clone();
        match self.rng.u8(..3) {
            0 => self.network.cut(&host, &manager),
            1 => self.network.cut_one_way(&host, &manager),
            _ => {
                self.network.cut(&host, &manager);
                for other in self.nodes.iter().filter(|other| other.host().id() != host.id()) {
                    self.network.cut(&host, other.host());
                }
            }
        }
    }

    /// Lets the node lose something that the run allows.
    fn lose(&mut self, n: usize) {
        match self.settings.losses {
            Losses::Damage if self.rng.bool() => self.damage_extents(),
            Losses::Damage => self.damage_chunks(),
            Losses::OneMachine => self.lose_one_machine(),
            Losses::Power if self.rng.u8(..4) == 0 => self.lose_all_power(),
            Losses::Power => {
                self.end_node(n, NodeEnd::PowerLoss);
                if self.rng.bool() {
                    self.nodes[n].start();
                }
            }
        }
    }

    fn damage_chunks(&mut self) {
        let n = self.weak;
        if self.nodes[n].is_up() {
            self.end_node(n, NodeEnd::Kill);
        }
        let rng = &mut self.rng;
        let damaged = self.nodes[n].rot_chunks(&mut |len| rng.usize(..len));
        self.simulation.note(|| format!("node {n}: {damaged} chunks are damaged"));
        self.nodes[n].start();
    }

    /// Damages files of extents. A node that starts reads the open ones, and one that runs finds
    /// the damage when a request reads.
    fn damage_extents(&mut self) {
        let n = self.weak;
        let starts_anew = self.rng.bool();
        if starts_anew && self.nodes[n].is_up() {
            self.end_node(n, NodeEnd::Kill);
        }
        let rng = &mut self.rng;
        let damaged = self.nodes[n].rot_extents(&mut |len| rng.usize(..len));
        self.rotten_extents += damaged;
        self.simulation.note(|| format!("node {n}: {damaged} files of extents are damaged"));
        if starts_anew {
            self.nodes[n].start();
            self.count_reported(n);
        }
    }

    /// Counts the extents that a node reports as damaged, in runs whose nodes lose no memory.
    fn count_reported(&mut self, n: usize) {
        if self.settings.losses == Losses::Damage {
            self.reported_extents += self.nodes[n].report().extents_in_limbo;
        }
    }

    fn lose_one_machine(&mut self) {
        let n = self.weak;
        // A disk is lost at most once, and only while every other node is up. A root member that is
        // lost before it has its copy blocks the replacement permanently.
        let all_up = (0..self.nodes.len()).all(|n| !self.is_away(n));
        let may_wipe = all_up && self.manager.is_some() && !self.has_wiped;
        if may_wipe && self.rng.u8(..3) == 0 {
            self.has_wiped = true;
            self.end_node(n, NodeEnd::Wipe);
        } else if self.nodes[n].is_up() {
            let loses_device = self.settings.node.devices > 1 && self.rng.bool();
            self.lost_devices += u64::from(loses_device);
            let how = if loses_device { NodeEnd::LostDevice } else { NodeEnd::PowerLoss };
            self.end_node(n, how);
        }
        if !self.nodes[n].is_up() && self.rng.bool() {
            self.nodes[n].start();
        }
    }

    /// All machines lose power, and start again.
    fn lose_all_power(&mut self) {
        for n in 0..self.nodes.len() {
            if self.nodes[n].is_up() {
                self.end_node(n, NodeEnd::PowerLoss);
            }
        }
        for node in &mut self.nodes {
            node.start();
        }
    }

    /// Kills a node as long as it is up.
    pub(crate) fn kill_node(&mut self, n: usize) {
        if self.nodes[n].is_up() {
            self.end_node(n, NodeEnd::Kill);
        }
    }

    /// Starts a node that is down.
    pub(crate) fn start_node(&mut self, n: usize) {
        if !self.nodes[n].is_up() {
            self.nodes[n].start();
        }
    }

    /// The machine whose chunks may be damaged, or whose disk was lost.
    pub(crate) fn weak_node(&self) -> Option<usize> {
        (self.settings.losses != Losses::Power).then_some(self.weak)
    }

    /// Ends all faults, and starts everything that does not run.
    pub(crate) fn make_peace(&mut self) {
        self.network.set_faults(Faults::default());
        self.heal();
        for n in 0..self.nodes.len() {
            self.go_on(n);
            self.nodes[n].set_request_time(Duration::ZERO);
            if !self.nodes[n].is_up() {
                self.nodes[n].start();
            }
        }
        if self.manager.is_none() {
            self.start_manager();
        }
        self.run_for(Duration::from_secs(2));
        if self.draining.is_some() {
            self.toggle_drain();
        }
        self.run_for(Duration::from_secs(2));
    }

    /// Fingerprint of the run so far.
    pub(crate) fn trace(&self) -> Trace {
        Trace::of(&self.simulation)
    }
}
