//! A run: a cluster, what goes wrong in it, a time of peace, and a look at everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_fabric::{Listener, Node, NodeId, Provider};
use archipelago_flex::coordinator::{Coordinator, Desk, Plan, Tuning};
use archipelago_manager::core::{ManagerCore, Terms};
use archipelago_memory::core::{Limits, Sabotage};
use archipelago_pool_check::{MANAGER, ManagerActor, MemoryActor, start_manager, start_memory};
use parking_lot::Mutex;

use crate::node::{COORDINATOR, Cached, KEYS, NodeActor, Shared, get, join_pool, misaccounted};

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What everything follows from.
    pub seed: u64,
    /// Virtual time in which things go wrong.
    pub trouble: Duration,
    /// Keep notes of what happens.
    pub notes: bool,
    /// Steps of the pool's protocol that are left out on purpose: the check must notice.
    pub sabotage: Sabotage,
    /// Steps of the store's.
    pub flex: archipelago_flex::Sabotage,
}

impl Settings {
    /// A sound run.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            trouble: Duration::from_millis(300),
            notes: false,
            sabotage: Sabotage::default(),
            flex: archipelago_flex::Sabotage::default(),
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not be.
    pub violations: Vec<String>,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Crashes, cuts and moves.
    pub faults: u64,
    /// Changes of the map.
    pub changes: u64,
    /// How often partitions were assigned by a new ranking, or the knob set a ratio.
    pub tuned: u64,
    /// What the nodes' caches did.
    pub cached: Cached,
    /// Steps of the scheduler.
    pub events: u64,
    /// The trace's hash: the same for the same seed.
    pub trace: u64,
    /// What happened, if it was asked for.
    pub notes: Vec<String>,
}

const BLOCK_BYTES: u64 = 64 << 10;

type Kept = (Arc<Desk>, Arc<Node>, Box<dyn Listener>);

struct World {
    simulation: Simulation,
    network: Arc<Network>,
    settings: Settings,
    rng: Rng,
    terms: Terms,
    life: u64,
    manager: (Sim, ManagerActor),
    coordinator: (Sim, Arc<Mutex<Option<Kept>>>),
    memory: BTreeMap<NodeId, (Sim, Option<MemoryActor>)>,
    compute: Vec<(Sim, Option<NodeActor>)>,
    shared: Shared,
    faults: u64,
}

/// Runs one seed.
#[must_use]
pub fn run(settings: Settings) -> Outcome {
    let mut world = World::new(settings);
    world.trouble();
    let mut violations = world.peace();
    violations.extend(world.shared.history.violations());
    let desk = world.coordinator.1.lock();
    let changes = desk.as_ref().map_or(0, |(desk, ..)| desk.look(Coordinator::version));
    let tuned = |core: &Coordinator| core.report().reassignments + core.report().ratio_moves;
    let tuned = desk.as_ref().map_or(0, |(desk, ..)| desk.look(tuned));
    Outcome {
        violations,
        answered: world.shared.history.answered(),
        errors: *world.shared.errors.lock(),
        faults: world.faults,
        changes,
        tuned,
        cached: *world.shared.cached.lock(),
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
        let mut rng = simulation.rng("flex-check");
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
        let manager_at = join(MANAGER);
        let manager = start_manager(&network, &manager_at, Epoch(1), (terms, rng.u64(..)));
        let count = u64::from(copies) + 1;
        let memory =
            (1..=count).map(|n| (NodeId(n), (join(&format!("memory{n}")), None))).collect();
        let compute = (0..rng.usize(2..=4)).map(|n| (join(&format!("compute{n}")), None));
        let compute = compute.collect();
        let coordinator = (join(COORDINATOR), Arc::default());
        let shared = Shared {
            history: Arc::default(),
            working: Arc::new(Mutex::new(true)),
            values: Arc::default(),
            errors: Arc::default(),
            sabotage: settings.flex,
            cached: Arc::default(),
        };
        let mut world = Self {
            simulation,
            network,
            settings,
            rng,
            terms,
            life: 1,
            manager: (manager_at, manager),
            coordinator,
            memory,
            compute,
            shared,
            faults: 0,
        };
        world.start_coordinator();
        world.start_all();
        world
    }

    fn next_life(&mut self) -> Epoch {
        self.life += 1;
        Epoch(self.life)
    }

    fn start_coordinator(&mut self) {
        let life = self.next_life();
        let (sim, kept) = (self.coordinator.0.clone(), Arc::clone(&self.coordinator.1));
        let offload = [0, 500, 1000][self.rng.usize(..3)];
        let log2_buckets = self.rng.u32(..2);
        let plan =
            Plan { partition_bits: self.rng.u32(1..=3), log2_buckets, offload, ..Plan::default() };
        // The load is followed in half of the runs; a ratio that is set by hand ends the knob's part of it.
        let tuning = Tuning {
            hotness: self.rng.bool(),
            knob: self.rng.bool(),
            interval: Duration::from_millis(self.rng.u64(5..30)),
            ..Tuning::default()
        };
        let host = sim.host().clone();
        let task = async move {
            let pool = join_pool(&sim).await;
            let mut core = Coordinator::new(life.0, plan);
            core.tune(tuning);
            let runtime = Arc::new(sim.host().clone());
            let (desk, door) = Desk::new(core, runtime, Arc::new(sim.clone()), pool);
            let node = sim.network().node(NodeId(u64::MAX - 1), life, Some(door));
            let node = node.expect("a node in memory");
            let listener = sim.serve(&node, COORDINATOR).expect("a host serves at its name");
            desk.start();
            *kept.lock() = Some((desk, node, listener));
        };
        let _ends_with_the_host = Host::spawn(&host, "coordinator", task);
    }

    /// Starts what is not there.
    fn start_all(&mut self) {
        let nodes: Vec<NodeId> = self.memory.keys().copied().collect();
        for node in nodes {
            let life = self.next_life();
            let Some((sim, actor)) = self.memory.get_mut(&node) else { continue };
            if actor.is_none() {
                revive(sim.host());
                let limits = Limits { block_bytes: BLOCK_BYTES, blocks_max: 64 };
                let sabotage = self.settings.sabotage;
                *actor = Some(start_memory(&self.network, sim, (node, life), limits, sabotage));
            }
        }
        for index in 0..self.compute.len() {
            let (sim, actor) = &mut self.compute[index];
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

    fn trouble(&mut self) {
        // Let it come up first.
        self.simulation.run_for(Duration::from_millis(120));
        let end_ns = self.simulation.now_ns() + self.settings.trouble.as_nanos() as u64;
        while self.simulation.now_ns() < end_ns {
            match self.rng.u32(..14) {
                0 | 1 => self.crash_compute(),
                2 => self.crash_memory(),
                3 | 4 => self.cut(),
                5 | 6 => self.network.heal_all(),
                7 => self.set_faults(),
                8..10 => self.start_all(),
                10 | 11 => self.move_partitions(),
                _ => {}
            }
            let pause = self.rng.u64(1..30);
            self.simulation.run_for(Duration::from_millis(pause));
        }
    }

    fn move_partitions(&mut self) {
        // In some runs nobody meddles with the knob.
        if self.settings.seed.is_multiple_of(3) {
            return;
        }
        let share = self.rng.u32(..=10) * 100;
        if let Some((desk, ..)) = self.coordinator.1.lock().as_ref() {
            self.faults += 1;
            desk.set_offload(share);
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
        let mut hosts: Vec<Host> =
            vec![self.manager.0.host().clone(), self.coordinator.0.host().clone()];
        hosts.extend(self.compute.iter().map(|(sim, _)| sim.host().clone()));
        hosts.extend(self.memory.values().map(|(sim, _)| sim.host().clone()));
        let (one, other) = (self.rng.usize(..hosts.len()), self.rng.usize(..hosts.len()));
        // Often a compute node from the manager alone: who is taken for dead and is not is the hard case.
        let (one, other) = match self.rng.u32(..3) {
            0 => (0, 2 + self.rng.usize(..self.compute.len())),
            _ => (one, other),
        };
        // Memory nodes are not cut off from the manager: with quorums that is the pool's check.
        let memory = |at: usize| at >= 2 + self.compute.len();
        if one == other || (one.min(other) == 0 && memory(one.max(other))) {
            return;
        }
        self.faults += 1;
        match self.rng.u32(..3) {
            0 => self.network.cut_one_way(&hosts[one], &hosts[other]),
            1 => self.network.cut_one_way(&hosts[other], &hosts[one]),
            _ => self.network.cut(&hosts[one], &hosts[other]),
        }
    }

    fn crash_compute(&mut self) {
        let index = self.rng.usize(..self.compute.len());
        let (sim, actor) = &mut self.compute[index];
        if let Some(actor) = actor.take() {
            if let Some(node) = actor.node() {
                self.shared.cached.lock().add(&node.status().cache);
            }
            self.faults += 1;
            sim.host().crash();
        }
    }

    /// Whether every block has as many copies as it is to have, in lives that go on.
    fn has_all_copies(&self) -> bool {
        let now_ns = self.simulation.now_ns();
        let lives: BTreeMap<NodeId, Epoch> = self
            .memory
            .iter()
            .filter_map(|(node, (_, actor))| {
                Some((*node, actor.as_ref()?.serving.look(|core| core.life())?))
            })
            .collect();
        let all = |core: &ManagerCore| {
            let ready: Vec<_> = core.ready_blocks().collect();
            let whole = |config: &&archipelago_pool::Config| {
                config.copies.len() == config.wanted as usize
                    && config.copies.iter().all(|copy| lives.get(&copy.node) == Some(&copy.life))
            };
            ready.len() as u64 == core.status(now_ns).blocks_total && ready.iter().all(whole)
        };
        self.manager.1.desk.look(all) == Some(true)
    }

    /// Crashes a memory node, if others have copies of everything.
    fn crash_memory(&mut self) {
        let all_up = self.memory.values().all(|(_, actor)| actor.is_some());
        if self.terms.copies < 2 || !all_up || !self.has_all_copies() {
            return;
        }
        let node = NodeId(self.rng.u64(1..=self.memory.len() as u64));
        if let Some((sim, actor)) = self.memory.get_mut(&node) {
            self.faults += 1;
            sim.host().crash();
            *actor = None;
        }
    }

    /// Everything comes back and is left alone; every node reads every key. What must not be.
    fn peace(&mut self) -> Vec<String> {
        *self.shared.working.lock() = false;
        self.network.set_faults(Faults::default());
        self.network.heal_all();
        for _ in 0..8 {
            self.start_all();
            self.simulation.run_for(Duration::from_millis(100));
        }
        let mut violations = Vec::new();
        let settled =
            self.coordinator.1.lock().as_ref().map(|(desk, ..)| desk.look(Coordinator::is_settled));
        if settled != Some(true) {
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
        self.simulation.run_for(Duration::from_secs(3));
        for node in self.compute.iter().filter_map(|(_, actor)| actor.as_ref()?.node()) {
            self.shared.cached.lock().add(&node.status().cache);
        }
        for (at, reader) in readers {
            match reader.take() {
                Some(Ok(failed)) if failed.is_empty() => {}
                other => violations.push(format!("compute node {at} cannot read: {other:?}")),
            }
        }
        violations
    }
}

fn revive(host: &Host) {
    if !host.is_up() {
        host.restart();
    }
}
