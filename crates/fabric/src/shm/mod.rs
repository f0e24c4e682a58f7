//! `shm`: memory of a node on the same host, mapped.
//!
//! One-sided operations are loads, stores and atomic instructions of the client's own processor on
//! the node's memory: no system call, no thread of the target, which may be stopped. Requests go
//! through a ring in shared memory per link ([`pipe`]); whoever waits spins briefly and then sleeps
//! on a futex. A Unix socket ([`envelope`]) passes the memory's descriptors and tells each side
//! that the other has ended.
//!
//! **Limits**, which follow from the mapping. 1. A revocation cannot take memory away from a
//! process that has it mapped; see [`Node`] for what the owner does. 2. A key without the right to
//! write is mapped read-only, from a descriptor that is read-only; a process of the same user can
//! get around that as it can around any protection between processes of one user. 3. A node that
//! was killed is noticed when the kernel closes its socket: until then, microseconds to
//! milliseconds, operations succeed on memory that nobody will read.
//!
//! Thread-safety: all of it. Cost of a READ: two loads of the control page, a look-up, the copy.

mod envelope;
mod link;
mod listener;
mod pipe;
mod ring;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::clock::{Clock, SystemClock};

use crate::link::{Connect, Link, Listener, Provider};
use crate::node::{AtomicPath, Node};
use crate::promise::Promise;
use link::ShmLink;
use listener::ShmDoor;
use watch::Watch;

/// The provider. Addresses are paths of a Unix socket, at most 107 bytes long. Who may
/// connect is who may write to that path.
#[derive(Clone, Debug)]
pub struct Shm {
    clock: Arc<dyn Clock>,
    watch: Arc<Watch>,
}

impl Shm {
    /// With the system's clock. The links of one provider share a thread that notices nodes that
    /// end.
    #[must_use]
    pub fn new() -> Self {
        Self { clock: SystemClock::shared(), watch: Arc::new(Watch::default()) }
    }
}

impl Default for Shm {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn atomic_path(&self) -> AtomicPath {
        AtomicPath::Processor
    }

    fn serve(&self, node: &Arc<Node>, address: &str) -> Result<Box<dyn Listener>> {
        Ok(Box::new(ShmDoor::open(node, address, &self.clock)?))
    }

    fn connect(&self, to: Connect) -> Promise<Result<Arc<dyn Link>>> {
        let (clock, watch) = (Arc::clone(&self.clock), Arc::clone(&self.watch));
        let work = move || {
            let link: Arc<dyn Link> = ShmLink::connect(&clock, &watch, &to)?;
            Ok(link)
        };
        Promise::on_thread("fabric-connect", work, Err)
    }
}
