//! `ofi`: one-sided operations by a network card, through libfabric (RDMA verbs, EFA, CXI), or by a
//! libfabric provider that stands in for one. Cargo feature `ofi`; needs libfabric 1.17 or a later
//! 1.x.
//!
//! READ, WRITE, compare-and-swap and fetch-and-add are `fi_read`, `fi_write` (with
//! `FI_DELIVERY_COMPLETE`: completed means placed) and `fi_atomic` ([`engine`]); regions are
//! registered memory, with a registration per key, which ends when the key is revoked
//! (`node/card.rs`). Requests are `fi_send` and `fi_recv` ([`messages`]). A TCP connection per link
//! greets and shows that the other side has ended ([`control`]).
//!
//! **Checks.** A client of this crate refuses what its key does not allow before anything is sent,
//! with the reason. A client that lies is stopped by the registration: its range, its rights, its
//! end. libfabric says only that something failed, so the client then asks the node, which names
//! the reason.
//!
//! **Limits.** 1. A provider in software (`tcp;ofi_rxm`) looks at a registration when an operation
//! begins: bytes of one that is on its way when the key is revoked may still be placed, into memory
//! that stays mapped until that link ends. So a WRITE that is refused as revoked may have been
//! placed in part if it raced with the revocation. 2. Such a provider receives into memory as bytes
//! arrive: a word in the middle of a large WRITE may be torn for a moment. 3. A key with atomics
//! alone is a registration for READ and WRITE, too: libfabric has no right of its own for atomics;
//! only the client's own check keeps them apart. 4. Batches in flight together with one that is
//! refused by the target are lost with the connection: the link goes down, and says that it does
//! not know what happened.
//!
//! Thread-safety: all of it.

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

use crate::batch::Attached;
use crate::link::{Connect, Link, Listener, Provider};
use crate::node::{AtomicPath, Node};
use crate::promise::Promise;
use crate::refusal::Refusal;
use crate::wire::ofi::OpenedOnCard;
use ffi::{Code, Domain};
use link::OfiLink;
use listener::OfiDoor;

/// By the address of the interface.
type Domains = Vec<(IpAddr, Weak<Domain>)>;

/// The provider. Addresses are `host:port` of the TCP connection, at the interface whose card is to
/// be used; port 0 lets the system choose.
#[derive(Clone, Debug)]
pub struct Ofi {
    clock: Arc<dyn Clock>,
    name: Arc<str>,
    /// A client's, by the interface.
    domains: Arc<Mutex<Domains>>,
}

impl Ofi {
    /// Through `provider`, as `fi_info` lists it: `verbs;ofi_rxm`, `efa`, `cxi`; `tcp;ofi_rxm`
    /// where there is no card.
    #[must_use]
    pub fn over(provider: &str) -> Self {
        Self { clock: SystemClock::shared(), name: Arc::from(provider), domains: Arc::default() }
    }

    /// The domain of a client at an interface, shared by its links.
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

/// A domain that can carry a link.
fn open(provider: &str, local: IpAddr) -> Result<Arc<Domain>> {
    let domain = Domain::open(provider, local)?;
    if domain.message_bytes_max() < flight::PIECE_BYTES {
        let max = domain.message_bytes_max();
        let what = format!("libfabric provider {provider}: it moves at most {max} bytes at once");
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
        Ok(Box::new(OfiDoor::open(node, address, &self.name, &self.clock)?))
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

/// What an attachment that is only asked for says about its key.
fn verdict(body: &[u8]) -> Result<Result<Attached, Refusal>, Malformed> {
    Ok(OpenedOnCard::decode(body)?.map(|_| Attached::new(u32::MAX, u32::MAX)))
}
