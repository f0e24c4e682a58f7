//! The machines of a run, and the network between them.
//!
//! Each life of a process has a machine of its own, which is cut off from all others when the
//! process is killed. So a dead process changes nothing, although its threads still run until their
//! calls return.

use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_fabric::sim::{Faults, Model, Network, Sim};

/// The machines and the network.
pub(super) struct Machines {
    pub(super) simulation: Simulation,
    pub(super) network: Arc<Network>,
    alive: Vec<Host>,
    dead: Vec<Host>,
    made: u64,
}

impl Machines {
    pub(super) fn new(simulation: Simulation) -> Self {
        let network = Network::new(&simulation);
        Self { simulation, network, alive: Vec::new(), dead: Vec::new(), made: 0 }
    }

    /// A machine for a process of that name.
    pub(super) fn join(&mut self, name: &str) -> Sim {
        self.made += 1;
        let host = self.simulation.host(&format!("{name}-{}", self.made));
        for dead in &self.dead {
            self.network.cut(dead, &host);
        }
        self.alive.push(host.clone());
        self.network.join(&host, Model::quick())
    }

    /// Cuts a machine off for good.
    pub(super) fn isolate(&mut self, host: &Host) {
        self.alive.retain(|alive| alive.id() != host.id());
        for other in self.alive.iter().chain(&self.dead) {
            self.network.cut(host, other);
        }
        self.dead.push(host.clone());
    }

    /// Ends all tasks of a machine that was cut off.
    pub(super) fn bury(&mut self, host: &Host) {
        host.go_on();
        host.crash();
        self.alive.retain(|alive| alive.id() != host.id());
        self.dead.retain(|dead| dead.id() != host.id());
    }

    /// Ends all cuts but those of dead machines.
    pub(super) fn heal(&self) {
        self.network.heal_all();
        for dead in &self.dead {
            for other in &self.alive {
                self.network.cut(dead, other);
            }
        }
    }

    /// Cuts two machines off from each other, in one direction or both.
    pub(super) fn cut(&self, rng: &mut Rng) {
        let (one, other) = (rng.usize(..self.alive.len()), rng.usize(..self.alive.len()));
        let (one, other) = (&self.alive[one], &self.alive[other]);
        if one.id() == other.id() {
            return;
        }
        match rng.bool() {
            true => self.network.cut(one, other),
            false => self.network.cut_one_way(one, other),
        }
    }

    /// Draws loss, delay, doubled and torn packets, which last until the next call.
    pub(super) fn draw_weather(&self, rng: &mut Rng) {
        let faults = match rng.u8(..3) {
            0 => Faults::default(),
            _ => Faults {
                loss: [0.0, 0.01, 0.05][rng.usize(..3)],
                duplicate: [0.0, 0.1][rng.usize(..2)],
                delay_ns_max: [0, 20_000, 2_000_000, 50_000_000][rng.usize(..4)],
                tear: [0.0, 0.5][rng.usize(..2)],
                // No memory is mapped, so no operation on mapped memory can be refused.
                refuse: 0.0,
            },
        };
        self.network.set_faults(faults);
    }
}
