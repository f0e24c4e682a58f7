//! `ofi`: one-sided operations by a network card, through libfabric (RDMA verbs, EFA, CXI), or by a
//! provider of libfabric that emulates one. The cargo feature `ofi` needs libfabric 1.17 or a later
//! 1.x.
//!
//! READ, WRITE, compare-and-swap and fetch-and-add are `fi_read`, `fi_write` (with
//! `FI_DELIVERY_COMPLETE`, so that a completed WRITE is placed) and `fi_atomic` ([`engine`]). A
//! region is registered memory. Each key has a registration, which ends when the key is revoked
//! (`node/card.rs`). Requests are `fi_send` and `fi_recv` ([`messages`]). Each link has a TCP
//! connection, which greets and shows that the other side has ended ([`control`]).
//!
//! Checks: a client of this crate refuses an operation that its key does not permit before it sends
//! it. The registration stops a client without these checks, by its range, its rights and its end.
//! libfabric reports only a failure, so the client then asks the node for the reason.
//!
//! Limits:
//! 1. A provider in software (`tcp;ofi_rxm`) checks a registration when an operation begins. Bytes
//!    that are in flight during the revocation may still be placed, into memory that stays mapped
//!    until that link ends. A WRITE that is refused as revoked may therefore be placed in part.
//! 2. Such a provider places bytes as they arrive. A word in the middle of a large WRITE may be
//!    torn for a moment.
//! 3. libfabric has no right for atomic operations alone. A key with that right is a registration
//!    for READ and WRITE, too, and only the client's own check separates them.
//! 4. If the target refuses a batch, other batches in flight are lost with the connection. The link
//!    goes down, and reports that their outcome is unknown.
//! 5. Messages are not bound to the proof of the secret ([`auth`](crate::auth)). So a node listens
//!    on loopback addresses only, also with a secret.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the link goes down.
//! Cost: the module [`engine`] states it.

mod control;
mod engine;
mod ffi;
mod flight;
mod link;
mod listener;
mod messages;
mod order;

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::wire::Malformed;
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::auth::{RefusalReport, Secret};
use crate::batch::Attached;
use crate::link::{Connect, Link, Listener, Provider};
use crate::node::{AtomicPath, Node};
use crate::promise::Promise;
use crate::refusal::Refusal;
use crate::wire::ofi::OpenedOnCard;
use ffi::{Code, Domain};
use link::OfiLink;
use listener::OfiNodeListener;

/// The domains by the address of their interface.
type Domains = Vec<(IpAddr, Weak<Domain>)>;

/// The provider for libfabric. An address is the `host:port` of the TCP connection at the interface
/// of the card. With port 0 the system chooses a port.
#[derive(Clone, Debug)]
pub struct Ofi {
    clock: Arc<dyn Clock>,
    name: Arc<str>,
    /// The domains of clients, by interface.
    domains: Arc<Mutex<Domains>>,
    secret: Option<Secret>,
    report: RefusalReport,
}

impl Ofi {
    /// Makes a provider over libfabric's `provider`, as `fi_info` lists it: `verbs;ofi_rxm`, `efa`
    /// or `cxi`, and `tcp;ofi_rxm` without a card.
    #[must_use]
    pub fn over(provider: &str) -> Self {
        let clock = SystemClock::shared();
        let (name, domains) = (Arc::from(provider), Arc::default());
        Self { report: RefusalReport::new(&clock), clock, name, domains, secret: None }
    }

    /// Sets the secret of the cluster. With a secret, links exist only to and from processes that
    /// know it as well. Nodes listen on loopback addresses only, even with a secret.
    #[must_use]
    pub fn with_secret(self, secret: Option<Secret>) -> Self {
        Self { secret, ..self }
    }

    /// The client's domain at an interface, which its links share.
    fn domain(&self, local: IpAddr) -> Result<Arc<Domain>> {
        let mut domains = self.domains.lock();
        domains.retain(|(_, domain)| domain.strong_count() > 0);
        let known = domains.iter().find(|(address, _)| *address == local);
        if let Some(domain) = known.and_then(|(_, domain)| domain.upgrade()) {
            return Ok(domain);
        }
        let domain = open(&self.name, local)?;
        domains.push((local, Arc::downgrade(&domain)));
        Ok(domain)
    }
}

/// Opens a domain that can carry a link.
fn open(provider: &str, local: IpAddr) -> Result<Arc<Domain>> {
    let domain = Domain::open(provider, local)?;
    if domain.message_bytes_max() < flight::PIECE_BYTES {
        let max = domain.message_bytes_max();
        let what =
            format!("libfabric provider {provider}: it moves at most {max} bytes in one operation");
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    Ok(domain)
}

impl Provider for Ofi {
    fn name(&self) -> &'static str {
        "ofi"
    }

    fn atomic_path(&self) -> AtomicPath {
        AtomicPath::Card
    }

    fn serve(&self, node: &Arc<Node>, address: &str) -> Result<Box<dyn Listener>> {
        Ok(Box::new(OfiNodeListener::open(node, address, self)?))
    }

    fn connect(&self, to: Connect) -> Promise<Result<Arc<dyn Link>>> {
        let me = self.clone();
        let work = move || {
            let link: Arc<dyn Link> = Arc::new(OfiLink::connect(&me, &to)?);
            Ok(link)
        };
        Promise::on_thread("fabric-connect", work, Err)
    }
}

fn unusable(code: Code) -> Error {
    Error::new(ErrorKind::Io, format!("an endpoint of libfabric: {code}"))
}

/// Reads the answer to an attachment that only asks about its key.
fn verdict(body: &[u8]) -> Result<Result<Attached, Refusal>, Malformed> {
    Ok(OpenedOnCard::decode(body)?.map(|_| Attached::new(u32::MAX, u32::MAX)))
}
