//! `shm`: mapped memory of a node on the same host.
//!
//! One-sided operations are loads, stores and atomic instructions of the client's processor on the
//! node's memory. They need no system call and no thread of the target, which may be stopped.
//! Requests use a ring in shared memory per link ([`pipe`]). A thread that waits spins briefly and
//! then sleeps on a futex. A Unix socket ([`envelope`]) passes the descriptors of the memory and
//! notifies each side of the other's end.
//!
//! Limits of mapped memory:
//! 1. A revocation cannot take memory away from a process that has it mapped. [`Node`] describes
//!    the duty of the owner.
//! 2. A key without the right to write is mapped read-only, from a read-only descriptor. A process
//!    of the same user can bypass that, as it can bypass any protection between processes of one
//!    user.
//! 3. A client notices a killed node when the kernel closes its socket. Until then, for
//!    microseconds to milliseconds, operations succeed on memory that no process will read.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a link whose socket or pipe ends completes everything in flight as disconnected.
//! Cost of a READ: two loads of the control page, one look-up and the copy.

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

use crate::auth::{RefusalReport, Secret};
use crate::link::{Connect, Link, Listener, Provider};
use crate::node::{AtomicPath, Node};
use crate::promise::Promise;
use link::ShmLink;
use listener::ShmNodeListener;
use watch::Watch;

/// The provider for shared memory. An address is the path of a Unix socket, at most 107 bytes long.
/// Every process that may write to the path may connect.
#[derive(Clone, Debug)]
pub struct Shm {
    clock: Arc<dyn Clock>,
    watch: Arc<Watch>,
    secret: Option<Secret>,
    report: RefusalReport,
}

impl Shm {
    /// Makes a provider with the system's clock. The links of one provider share a thread, which
    /// notices nodes that end.
    #[must_use]
    pub fn new() -> Self {
        let clock = SystemClock::shared();
        let (report, watch) = (RefusalReport::new(&clock), Arc::new(Watch::default()));
        Self { clock, watch, secret: None, report }
    }

    /// Sets the secret of the cluster. With a secret, links exist only to and from processes that
    /// know it as well. Without a secret, only the permission to write to the socket decides.
    #[must_use]
    pub fn with_secret(self, secret: Option<Secret>) -> Self {
        Self { secret, ..self }
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
        Ok(Box::new(ShmNodeListener::open(node, address, self)?))
    }

    fn connect(&self, to: Connect) -> Promise<Result<Arc<dyn Link>>> {
        let me = self.clone();
        let work = move || {
            let link: Arc<dyn Link> = ShmLink::connect(&me, &to)?;
            Ok(link)
        };
        Promise::on_thread("fabric-connect", work, Err)
    }
}
