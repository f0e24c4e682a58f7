//! A run: a cluster, what goes wrong in it, a time of peace, and a look at everything.

use std::sync::Arc;
use std::time::Duration;

use crate::scenarios::pool::{Cluster, revive};
use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, HostClock};
use archipelago_fabric::sim::{Faults, Sim};
use archipelago_flexkv::ComputeNode;
use archipelago_memory::core::{Limits, Sabotage};
use parking_lot::Mutex;

use crate::scenarios::flexkv::audit::audit;
use crate::scenarios::flexkv::coordinator::CoordinatorActor;
use crate::scenarios::flexkv::history::History;
use crate::scenarios::flexkv::judge::{calls_max, judge};
use crate::scenarios::flexkv::node::{
    COORDINATOR, Cached, KEYS, NodeActor, Shared, get, misaccounted,
};
use crate::scenarios::flexkv::scans::ScanFigures;

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What everything follows from.
    pub seed: u64,
    /// Virtual time in which things go wrong.
    pub trouble: Duration,
    /// Calls of one client, at most.
    pub calls: u64,
    /// Keep notes of what happens.
    pub notes: bool,
    /// Steps of the pool's protocol that are left out on purpose: the check must notice.
    pub sabotage: Sabotage,
    /// Steps of the store's.
    pub flex: archipelago_flexkv::Sabotage,
    /// Whether nodes scan all keys while others come and go.
    pub scans: bool,
}

impl Settings {
    /// A sound run.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            trouble: Duration::from_millis(300),
            calls: calls_max(),
            notes: false,
            sabotage: Sabotage::default(),
            flex: archipelago_flexkv::Sabotage::default(),
            scans: false,
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not be.
    pub violations: Vec<String>,
    /// Keys of which the judge did not know in time.
    pub unknown: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Of those: writes that said that they did not happen.
    pub refused: u64,
    /// Crashes, cuts, stops and moves.
    pub faults: u64,
    /// Changes of the map.
    pub changes: u64,
    /// How often partitions were assigned by a new ranking, or the knob set a ratio.
    pub tuned: u64,
    /// What the nodes' caches did.
    pub cached: Cached,
    /// What scans did.
    pub scans: ScanFigures,
    /// Steps of the scheduler.
    pub events: u64,
    /// The trace's hash: the same for the same seed.
    pub trace: u64,
    /// What happened, if it was asked for.
    pub notes: Vec<String>,
}

const BLOCK_BYTES: u64 = 64 << 10;
/// Blocks of a memory node that is full soon: the directory's and a few for each compute node.
const BLOCKS_FEW: u64 = 6;
/// Clocks of compute nodes and the coordinator run apart by so many millionths at most.
const DRIFT_PPM_MAX: i32 = 300;

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    coordinator: CoordinatorActor,
    pub(crate) compute: Vec<(Sim, Option<NodeActor>)>,
    shared: Shared,
    stopped: Vec<Host>,
    /// Whether the ratio is set by hand now and then.
    meddled: bool,
}

/// Runs one seed.
#[must_use]
pub fn run(settings: Settings) -> Outcome {
    let mut world = World::new(settings);
    world.trouble(settings.trouble);
    let mut violations = world.peace();
    let verdict = judge(&world.shared.history.keys());
    violations.extend(verdict.violations);
    let mut scans = ScanFigures::default();
    if let Some(made) = &world.shared.scans {
        scans = made.figures();
        let map = world.coordinator.map();
        let grown = map.iter().map(|entry| u64::from(entry.shape.generation.saturating_sub(1)));
        scans.grown = grown.sum();
        violations.extend(made.violations());
    }
    Outcome {
        violations,
        unknown: verdict.unknown,
        answered: world.shared.history.answered(),
        errors: *world.shared.errors.lock(),
        refused: world.shared.history.refused(),
        faults: world.cluster.faults,
        changes: world.coordinator.version(),
        tuned: world.coordinator.tuned(),
        cached: *world.shared.cached.lock(),
        scans,
        events: world.cluster.simulation.events(),
        trace: world.cluster.simulation.trace_hash(),
        notes: world.cluster.simulation.notes(),
    }
}

fn some_clock(rng: &mut Rng) -> HostClock {
    HostClock { ahead_ns: rng.u64(..1 << 40), fast_ppm: rng.i32(-DRIFT_PPM_MAX..=DRIFT_PPM_MAX) }
}

impl World {
    fn new(settings: Settings) -> Self {
        // In some runs memory is full most of the time.
        let blocks_max = if settings.seed % 5 == 4 { BLOCKS_FEW } else { 64 };
        let limits = Limits { block_bytes: BLOCK_BYTES, blocks_max };
        let draw = |_: &mut Rng| (1, limits);
        let mut cluster = Cluster::new(settings.seed, "flex-check", settings.sabotage, draw);
        if settings.notes {
            cluster.simulation.keep_notes();
        }
        // Every other run is of one machine: writes are done at once where they can.
        if settings.seed % 2 == 1 {
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
        let shared = Shared {
            history: Arc::new(History::default()),
            working: Arc::new(Mutex::new(true)),
            values: Arc::default(),
            errors: Arc::default(),
            calls: settings.calls,
            sabotage: settings.flex,
            cached: Arc::default(),
            scans: settings.scans.then(Arc::default),
        };
        let stopped = Vec::new();
        let meddled = !settings.seed.is_multiple_of(3);
        let mut world = Self { cluster, coordinator, compute, shared, stopped, meddled };
        world.start_all();
        world
    }

    /// Starts what is not there.
    fn start_all(&mut self) {
        self.cluster.start();
        self.coordinator.start(&mut self.cluster);
        for (sim, actor) in &mut self.compute {
            let over = actor.as_ref().and_then(NodeActor::node).is_some_and(|node| node.is_over());
            if over {
                // A node that was taken for dead is started again, as an operator would.
                sim.host().crash();
                *actor = None;
            }
            if actor.is_none() {
                revive(sim.host());
                *actor = Some(NodeActor::start(sim, &self.shared));
            }
        }
    }

    fn trouble(&mut self, duration: Duration) {
        // Let it come up first.
        self.cluster.simulation.run_for(Duration::from_millis(120));
        // Links on mapped memory end at any moment, also between a word's copies.
        self.cluster.network.set_faults(Faults { refuse: 0.1, ..Faults::default() });
        let end_ns = self.cluster.simulation.now_ns() + duration.as_nanos() as u64;
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
                22 => self.stop_somebody(),
                23..25 => self.go_on(),
                _ => {}
            }
            let pause = self.cluster.rng.u64(1..20);
            self.cluster.simulation.run_for(Duration::from_millis(pause));
        }
    }

    fn move_partitions(&mut self) {
        // In some runs nobody meddles with the knob.
        if !self.meddled {
            return;
        }
        let share = self.cluster.rng.u32(..=10) * 100;
        if self.coordinator.set_offload(share) {
            self.cluster.faults += 1;
        }
    }

    /// Hosts beside those of the pool: compute nodes first.
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
        // Who is taken for dead and is not is the hard case.
        let compute = self.cluster.rng.usize(..self.compute.len());
        let manager = self.cluster.manager.0.host().clone();
        self.cluster.cut_between(&manager, &hosts[compute]);
    }

    fn stop_somebody(&mut self) {
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

    fn go_on(&mut self) {
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

    /// The pool's manager, the store's coordinator, or both.
    fn crash_managers(&mut self) {
        let which = self.cluster.rng.u32(..3);
        if which != 0 {
            self.cluster.crash_manager();
        }
        if which != 1 && self.coordinator.crash() {
            self.cluster.faults += 1;
        }
    }

    /// Everything comes back and is left alone; every node reads every key. What must not be.
    fn peace(&mut self) -> Vec<String> {
        *self.shared.working.lock() = false;
        self.cluster.heal();
        self.go_on();
        for _ in 0..8 {
            self.start_all();
            self.cluster.simulation.run_for(Duration::from_millis(100));
        }
        let mut violations = Vec::new();
        if !self.coordinator.is_settled() {
            violations.push("the map does not come to rest".to_owned());
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
