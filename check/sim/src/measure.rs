//! Speed of the simulator: steps of the scheduler per second of real time.

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::simulation::Simulation;
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::sim::{Model, Network};
use archipelago_fabric::{Batch, Connect, NodeId, Provider, Rights};

/// Result of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Number of steps.
    pub events: u64,
    /// Operations of the fabric in these steps.
    pub operations: u64,
    /// Real time, in nanoseconds.
    pub real_ns: u64,
    /// Virtual time, in nanoseconds.
    pub virtual_ns: u64,
}

impl Speed {
    /// Steps per second of real time.
    #[must_use]
    pub fn events_per_s(&self) -> f64 {
        self.events as f64 * 1e9 / self.real_ns.max(1) as f64
    }
}

const CLIENTS: u64 = 64;

/// Measures about `operations` READs of 128 bytes, by 64 tasks on four hosts from one node.
pub fn reads(operations: u64) -> Result<Speed> {
    let simulation = Simulation::new(1);
    let network = Network::new(&simulation);
    let there = network.join(&simulation.host("memory"), Model::CONNECTX3);
    let node = network.node(NodeId(1), Epoch(1), None)?;
    let region = node.allocate(1 << 20, there.atomic_path())?;
    let key = region.grant(Rights::READ)?;
    let _listener = there.serve(&node, "memory")?;
    let hosts: Vec<_> = (0..4).map(|at| simulation.host(&format!("compute-{at}"))).collect();
    let providers: Vec<_> = hosts.iter().map(|h| network.join(h, Model::CONNECTX3)).collect();
    let each = operations.div_ceil(CLIENTS);
    let clock = SystemClock::new();
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let at = (client % 4) as usize;
            let (provider, session) = (providers[at].clone(), network.session());
            let mut rng = simulation.rng(&format!("client {client}"));
            hosts[at].spawn("reads", async move {
                let link = provider.connect(Connect::to("memory", &session)).await?;
                let memory = link.attach(&key).await.map_err(|refusal| refusal.error("attach"))?;
                let mut batch = Batch::new();
                for _ in 0..each {
                    batch.clear();
                    batch.read(memory, rng.u64(..8192) * 128, 128);
                    batch = link.post(batch).await;
                    batch.check()?;
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    for task in tasks {
        simulation.block_on(task).map_err(|crashed| Error::invalid(crashed.to_string()))??;
    }
    Ok(Speed {
        events: simulation.events(),
        operations: each * CLIENTS,
        real_ns: clock.now_ns(),
        virtual_ns: simulation.now_ns(),
    })
}
