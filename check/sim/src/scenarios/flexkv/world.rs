//! A run of the store: a cluster, a time of faults, a time of peace, and the final checks.
//!
//! One [`World`] owns everything in a run. Everything follows from the seed.

use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, HostClock};
use archipelago_fabric::sim::{Faults, Sim};
use archipelago_flexkv::ComputeNode;
use archipelago_memory::core::Limits;

use crate::run::{RunOutcome, RunRequest};
use crate::scenarios::figures;
use crate::scenarios::flexkv::audit::audit;
use crate::scenarios::flexkv::coordinator::CoordinatorActor;
use crate::scenarios::flexkv::judge::{calls_max, judge};
use crate::scenarios::flexkv::node::{COORDINATOR, KEYS, NodeActor, get, misaccounted};
use crate::scenarios::flexkv::sabotage;
use crate::scenarios::flexkv::shared::RunState;
use crate::scenarios::pool::{Cluster, revive};

/// Whether nodes scan all keys while clients add and remove keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanning {
    Off,
    On,
}

/// Virtual time in which faults happen.
const TROUBLE: Duration = Duration::from_millis(300);
/// Largest number of calls of one client in a run with scans. It is small, because such a run tests
/// the scans.
const CALLS_WITH_SCANS: u64 = 40;
const BLOCK_BYTES: u64 = 64 << 10;
/// Blocks of a memory node that soon is full: one for the directory and a few per compute node.
const BLOCKS_FEW: u64 = 6;
/// Largest deviation of the clocks of compute nodes and the coordinator, in millionths.
const DRIFT_PPM_MAX: i32 = 300;

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    coordinator: CoordinatorActor,
    pub(crate) compute: Vec<(Sim, Option<NodeActor>)>,
    shared: RunState,
    stopped: Vec<Host>,
    /// Whether the run sets the offload ratio now and then.
    meddled: bool,
}

/// Runs one seed.
pub(super) fn run(request: &RunRequest, scanning: Scanning) -> RunOutcome {
    let mut world = World::new(request, scanning);
    world.trouble();
    let mut violations = world.peace();
    let verdict = judge(&world.shared.history.keys());
    violations.extend(verdict.violations);
    let cached = *world.shared.cached.lock();
    let mut figures = figures([
        ("calls answered", world.shared.history.answered()),
        ("calls with an error", *world.shared.errors.lock()),
        ("writes refused without effect", world.shared.history.refused()),
        ("keys that the judge did not finish", verdict.unknown),
        ("faults", world.cluster.faults),
        ("changes of maps", world.coordinator.version()),
        ("decisions by load", world.coordinator.tuned()),
        ("reads from cached pairs", cached.pair_hits),
        ("reads from cached addresses", cached.address_hits),
        ("writes to cached slots", cached.resolved),
        ("invalidations", cached.invalidations),
        ("invalidations that waited for a lease", cached.waited_out),
        ("partitions refused for memory", cached.partitions_refused),
        ("sets delegated to proxies", cached.delegated),
        ("sets on the fast path", cached.set_at_once),
        ("slots set back", cached.set_back),
    ]);
    if let Some(made) = &world.shared.scans {
        figures.extend(made.figures(&world.coordinator.map()));
        violations.extend(made.violations());
    }
    RunOutcome {
        violations,
        figures,
        notes: world.cluster.simulation.notes(),
        trace: world.cluster.trace(),
    }
}

fn some_clock(rng: &mut Rng) -> HostClock {
    HostClock { ahead_ns: rng.u64(..1 << 40), fast_ppm: rng.i32(-DRIFT_PPM_MAX..=DRIFT_PPM_MAX) }
}

impl World {
    fn new(request: &RunRequest, scanning: Scanning) -> Self {
        // In a fifth of the runs, memory is full most of the time.
        let blocks_max = if request.seed % 5 == 4 { BLOCKS_FEW } else { 64 };
        let limits = Limits { block_bytes: BLOCK_BYTES, blocks_max };
        let draw = |_: &mut Rng| (1, limits);
        let mut cluster = Cluster::new(request, "flex-check", draw);
        // Every other run simulates one machine, on which some writes need no wait.
        if request.seed % 2 == 1 {
            cluster.network.share_memory();
        }
        let count = cluster.rng.usize(2..=4);
        let compute: Vec<_> =
            (0..count).map(|n| (cluster.join(&format!("compute{n}")), None)).collect();
        let coordinator = CoordinatorActor::new(cluster.join(COORDINATOR), &mut cluster.rng);
        let hosts = compute.iter().map(|(sim, _): &(Sim, Option<NodeActor>)| sim.host());
        for host in hosts.chain([coordinator.host()]) {
            host.set_clock(some_clock(&mut cluster.rng));
        }
        let shared = match scanning {
            Scanning::Off => RunState::new(calls_max(), sabotage(request)),
            Scanning::On => {
                let calls = calls_max().min(CALLS_WITH_SCANS);
                RunState::new(calls, sabotage(request)).with_scans()
            }
        };
        let stopped = Vec::new();
        let meddled = !request.seed.is_multiple_of(3);
        let mut world = Self { cluster, coordinator, compute, shared, stopped, meddled };
        world.start_all();
        world
    }

    /// Starts everything that is down.
    fn start_all(&mut self) {
        self.cluster.start();
        self.coordinator.start(&mut self.cluster);
        for (sim, actor) in &mut self.compute {
            let over = actor.as_ref().and_then(NodeActor::node).is_some_and(|node| node.is_over());
            if over {
                // A node that was declared dead starts again, as if an operator did it.
                sim.host().crash();
                *actor = None;
            }
            if actor.is_none() {
                revive(sim.host());
                *actor = Some(NodeActor::start(sim, &self.shared));
            }
        }
    }

    fn trouble(&mut self) {
        // The cluster starts first.
        self.cluster.simulation.run_for(Duration::from_millis(120));
        // Links on mapped memory may end at any moment, even between the writes of a word's copies.
        self.cluster.network.set_faults(Faults { refuse: 0.1, ..Faults::default() });
        let end_ns = self.cluster.simulation.now_ns() + TROUBLE.as_nanos() as u64;
        while self.cluster.simulation.now_ns() < end_ns {
            match self.cluster.rng.u32(..26) {
                0..3 => self.crash_compute(),
                3..6 => self.cluster.crash_memory(),
                6 => self.crash_managers(),
                7..11 => self.cut(),
                11 => self.cluster.network.heal_all(),
                12 => self.cluster.set_faults(),
                13..18 => self.start_all(),
                18..22 => self.move_partitions(),
                22 => self.stop_host(),
                23..25 => self.continue_stopped(),
                _ => {}
            }
            let pause = self.cluster.rng.u64(1..20);
            self.cluster.simulation.run_for(Duration::from_millis(pause));
        }
    }

    fn move_partitions(&mut self) {
        // In a third of the runs, only the coordinator sets the ratio.
        if !self.meddled {
            return;
        }
        let share = self.cluster.rng.u32(..=10) * 100;
        if self.coordinator.set_offload(share) {
            self.cluster.faults += 1;
        }
    }

    /// Hosts that are not part of the pool, compute nodes first.
    fn hosts(&self) -> Vec<Host> {
        let mut hosts: Vec<Host> = self.compute.iter().map(|(sim, _)| sim.host().clone()).collect();
        hosts.push(self.coordinator.host().clone());
        hosts
    }

    fn cut(&mut self) {
        let hosts = self.hosts();
        if self.cluster.rng.bool() {
            return self.cluster.cut(&hosts);
        }
        // The hardest case is a running node that the manager declares dead.
        let compute = self.cluster.rng.usize(..self.compute.len());
        let manager = self.cluster.manager.0.host().clone();
        self.cluster.cut_between(&manager, &hosts[compute]);
    }

    fn stop_host(&mut self) {
        let mut hosts = self.hosts();
        hosts.push(self.cluster.manager.0.host().clone());
        hosts.extend(self.cluster.memory.values().map(|(sim, _)| sim.host().clone()));
        let host = hosts.swap_remove(self.cluster.rng.usize(..hosts.len()));
        if host.is_up() {
            self.cluster.faults += 1;
            host.stop();
            self.stopped.push(host);
        }
    }

    fn continue_stopped(&mut self) {
        self.stopped.drain(..).for_each(|host| host.go_on());
    }

    fn crash_compute(&mut self) {
        let index = self.cluster.rng.usize(..self.compute.len());
        let (sim, actor) = &mut self.compute[index];
        if let Some(actor) = actor.take() {
            if let Some(node) = actor.node() {
                self.shared.cached.lock().add(&node);
            }
            self.cluster.faults += 1;
            sim.host().crash();
        }
    }

    /// Crashes the pool's manager, the store's coordinator, or both.
    fn crash_managers(&mut self) {
        let which = self.cluster.rng.u32(..3);
        if which != 0 {
            self.cluster.crash_manager();
        }
        if which != 1 && self.coordinator.crash() {
            self.cluster.faults += 1;
        }
    }

    /// Starts every process, waits until the cluster is idle, and reads every key from every node.
    /// Returns the violations.
    fn peace(&mut self) -> Vec<String> {
        *self.shared.working.lock() = false;
        self.cluster.heal();
        self.continue_stopped();
        for _ in 0..8 {
            self.start_all();
            self.cluster.simulation.run_for(Duration::from_millis(100));
        }
        let mut violations = Vec::new();
        if !self.coordinator.is_settled() {
            violations.push("the map keeps changing".to_owned());
        }
        let mut readers = Vec::new();
        for (at, (sim, actor)) in self.compute.iter().enumerate() {
            let Some(node) = actor.as_ref().and_then(NodeActor::node) else {
                violations.push(format!("compute node {at} did not join"));
                continue;
            };
            violations.extend(misaccounted(&node));
            let shared = self.shared.clone();
            let reading = async move {
                let mut failed = Vec::new();
                for number in 0..KEYS {
                    let thread = shared.history.thread();
                    if get(&node, &shared, thread, number).await.is_err() {
                        failed.push(number);
                    }
                }
                failed
            };
            readers.push((at, Host::spawn(sim.host(), "read", reading)));
        }
        self.cluster.simulation.run_for(Duration::from_secs(3));
        for node in self.compute.iter().filter_map(|(_, actor)| actor.as_ref()?.node()) {
            self.shared.cached.lock().add(&node);
        }
        for (at, reader) in readers {
            match reader.take() {
                Some(Ok(failed)) if failed.is_empty() => {}
                other => violations.push(format!("compute node {at} cannot read: {other:?}")),
            }
        }
        let nodes = self.compute.iter().filter_map(|(_, actor)| actor.as_ref()?.node());
        let nodes: Vec<ComputeNode> = nodes.collect();
        violations.extend(audit(&self.cluster, &self.coordinator, &nodes));
        violations
    }
}
