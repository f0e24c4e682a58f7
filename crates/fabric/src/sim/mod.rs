//! `sim`: the fabric in virtual time, with faults, from one seed.
//!
//! A [`Network`] joins the [`Host`]s of a
//! [`Simulation`](archipelago_base::simulation::Simulation). Each host has a [`Model`] of its card,
//! wire and threads, and a provider [`Sim`], with which it serves nodes and connects to others. The
//! node executes operations with the same code as for `tcp` (`Node::execute`, `Node::request`), at
//! the virtual time that the model computes.
//!
//! | part | file |
//! | --- | --- |
//! | costs and faults | `model.rs` |
//! | machines, listeners, losses, cuts, crashes | `network.rs` |
//! | the two ends of a link, and operations in flight | `wire.rs` |
//! | packets that arrive in order | `lane.rs` |
//! | one-sided operations; requests | `onesided.rs`, `asking.rs` |
//! | connecting | `connect.rs` |
//!
//! Differences to the other providers:
//! 1. A post leaves immediately.
//! 2. The simulation must run. Tasks in it await promises. [`Promise::wait`] runs the simulation,
//!    and only code outside it may call that.
//! 3. Requests of a link are messages of their own. With [`Faults::delay_ns_max`] they overtake
//!    each other and the link's one-sided operations.
//! 4. Sessions and nodes come from [`Network::session`] and [`Network::node`], so that their random
//!    numbers depend on the seed.
//!
//! Thread-safety: as for the simulation. Failure: if a machine crashes, its links go down after
//! [`Transport::notice_ns`]. If it is cut off, they go down after [`Transport::tries`] lost
//! packets. A machine that restarted resets links to its earlier life at their next packet. Cost:
//! three to seven steps of the scheduler for an operation.
//!
//! ```
//! use archipelago_base::Epoch;
//! use archipelago_base::simulation::Simulation;
//! use archipelago_fabric::sim::{Faults, Model, Network};
//! use archipelago_fabric::{AtomicPath, Batch, Connect, NodeId, Provider, Rights};
//!
//! let simulation = Simulation::new(42);
//! let network = Network::new(&simulation);
//! let (memory, compute) = (simulation.host("memory"), simulation.host("compute"));
//! let there = network.join(&memory, Model::CONNECTX3);
//! let here = network.join(&compute, Model::CONNECTX3);
//! network.set_faults(Faults { loss: 0.1, ..Faults::default() });
//!
//! let node = network.node(NodeId(1), Epoch(1), None)?;
//! let region = node.allocate(4096, AtomicPath::Processor)?;
//! let key = region.grant(Rights::ALL)?;
//! let _listener = there.serve(&node, "memory")?;
//!
//! let session = network.session();
//! let task = compute.spawn("client", async move {
//!     let link = here.connect(Connect::to("memory", &session)).await?;
//!     let memory = link.attach(&key).await.map_err(|refusal| refusal.error("attach"))?;
//!     let mut batch = Batch::new();
//!     batch.fetch_add(memory, 0, 5);
//!     link.post(batch).await.check()
//! });
//! simulation.block_on(task)??;
//! assert_eq!(region.fetch_add(0, 0)?, 5);
//! assert!(simulation.now_ns() > 5_000, "three round trips took virtual time");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod asking;
mod connect;
mod lane;
mod model;
mod network;
mod onesided;
mod wire;

use std::sync::Arc;

use archipelago_base::simulation::{Host, Scheduler, Sleep};
use archipelago_base::{Error, Result};

use crate::driver::Driver;
use crate::link::{Connect, Link, Listener, Provider};
use crate::node::{AtomicPath, Node};
use crate::promise::Promise;

pub use model::{Costs, Faults, Model, Transport, Work};
pub use network::Network;

/// The provider of one host. An address is the name of a host. A host with several nodes adds `:`
/// and a suffix of its choice.
#[derive(Clone, Debug)]
pub struct Sim {
    network: Arc<Network>,
    host: Host,
    path: AtomicPath,
}

impl Sim {
    pub(super) fn new(network: Arc<Network>, host: Host) -> Self {
        Self { network, host, path: AtomicPath::Processor }
    }

    /// Sets the hardware that executes atomic operations. With [`AtomicPath::Card`] the regions
    /// need that path, too, and the node itself cannot swap their words. The default is
    /// [`AtomicPath::Processor`].
    #[must_use]
    pub fn with_atomics(self, path: AtomicPath) -> Self {
        Self { path, ..self }
    }

    /// The host of this provider.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The network of this provider.
    #[must_use]
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// A future that completes after a thread of the host has worked for `ps` picoseconds. It
    /// models local computation.
    #[must_use]
    pub fn work(&self, ps: u64) -> Sleep {
        let now_ps = self.network.now_ps();
        let end_ps = self.network.on(self.host.id(), |machine| machine.threads.take(now_ps, ps));
        self.network.scheduler.sleep_until(end_ps.div_ceil(1000))
    }
}

impl Provider for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn atomic_path(&self) -> AtomicPath {
        self.path
    }

    fn serve(&self, node: &Arc<Node>, address: &str) -> Result<Box<dyn Listener>> {
        if self.network.machine_of(address)? != self.host.id() {
            let name = self.host.name();
            return Err(Error::invalid(format!("{address} is no address of {name}")));
        }
        let number = self.network.open_door(address, self.host.life(), node, self.path)?;
        let (network, address) = (Arc::clone(&self.network), address.to_owned());
        Ok(Box::new(SimDoor { network, address, number }))
    }

    fn connect(&self, to: Connect) -> Promise<Result<Arc<dyn Link>>> {
        connect::connect(&self.network, self.host.life(), to)
    }
}

#[derive(Debug)]
struct SimDoor {
    network: Arc<Network>,
    address: String,
    number: u64,
}

impl Listener for SimDoor {
    fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for SimDoor {
    fn drop(&mut self) {
        self.network.close_door(&self.address, self.number);
    }
}

/// Runs the simulation for a caller outside it.
pub(super) struct Runs(pub(super) Scheduler);

impl Driver for Runs {
    fn drive(&self, done: &dyn Fn() -> bool) {
        let ended = self.0.run_for_caller(self.0.now_ns(), done);
        assert!(ended, "nothing is left to happen in the simulation, and the promise is not kept");
    }

    /// Does nothing: posts leave immediately, and the running simulation receives.
    fn attend(&self) {}
}
