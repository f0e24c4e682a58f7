//! `ofi`: one-sided operations by a network card, through libfabric (RDMA verbs, EFA, CXI), or by a libfabric provider
//! that stands in for one. Cargo feature `ofi`; needs libfabric 1.17 or a later 1.x.
//!
//! READ, WRITE, compare-and-swap and fetch-and-add are `fi_read`, `fi_write` (with `FI_DELIVERY_COMPLETE`: completed means placed) and
//! `fi_atomic` ([`engine`]); regions are registered memory, with a registration per key, which ends when the key is revoked
//! (`node/card.rs`). Requests are `fi_send` and `fi_recv` ([`messages`]). A TCP connection per link greets and shows that the other side
//! has ended ([`control`]).
//!
//! **Checks.** A client of this crate refuses what its key does not allow before anything is sent, with the reason. A client that lies is
//! stopped by the registration: its range, its rights, its end. libfabric says only that something failed, so the
//! client then asks the node, which names the reason.
//!
//! **Limits.** 1. A provider in software (`tcp;ofi_rxm`) looks at a registration when an operation begins: bytes of one that is on
//! its way when the key is revoked may still be placed, into memory that stays mapped until that link ends. So a WRITE that is refused as
//! revoked may have been placed in part if it raced with the revocation. 2. Such a provider receives into memory
//! as bytes arrive: a word in the middle of a large WRITE may be torn for a moment. 3. A key with atomics alone is a registration for
//! READ and WRITE, too: libfabric has no right of its own for atomics; only the client's own check keeps them apart. 4. Batches in flight
//! together with one that is refused by the target are lost with the connection: the link goes down, and says that it does not
//! know what happened.
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
use archipelago_base::codec::{Reader, put_u64};
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::batch::Attached;
use crate::ids::Rights;
use crate::link::{Connect, Link, Listener, Provider};
use crate::node::{AtomicPath, Node};
use crate::promise::Promise;
use crate::refusal::Refusal;
use crate::wire::{Malformed, Opened};
use ffi::{Code, Domain};
use link::OfiLink;
use listener::OfiDoor;

/// By the address of the interface.
type Domains = Vec<(IpAddr, Weak<Domain>)>;

/// The provider. Addresses are `host:port` of the TCP connection, at the interface whose card is to be used; port 0 lets
/// the system choose.
#[derive(Clone, Debug)]
pub struct Ofi {
    clock: Arc<dyn Clock>,
    name: Arc<str>,
    /// A client's, by the interface.
    domains: Arc<Mutex<Domains>>,
}

impl Ofi {
    /// Through `provider`, as `fi_info` lists it: `verbs;ofi_rxm`, `efa`, `cxi`; `tcp;ofi_rxm` where there is no card.
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

/// Appends what an attachment opens: the body of other providers, then key and first address of the registration.
fn put_opened(out: &mut Vec<u8>, opened: &Result<(Opened, (u64, u64)), Refusal>) {
    Opened::encode(&opened.map(|(opened, _)| opened), out);
    if let Ok((_, (key, address))) = opened {
        put_u64(out, *key);
        put_u64(out, *address);
    }
}

/// An attached region's length, rights, and place; or why not.
type OpenedOnCard = Result<(u64, Rights, (u64, u64)), Refusal>;

fn get_opened(body: &[u8]) -> Result<OpenedOnCard, Malformed> {
    const PLACE_BYTES: usize = 16;
    const WRONG: Malformed = Malformed("what a key opens cannot be read");
    if body.first() != Some(&0) {
        return Ok(Opened::decode(body)?.map(|opened| (opened.len, opened.rights, (0, 0))));
    }
    let at = body.len().checked_sub(PLACE_BYTES).ok_or(WRONG)?;
    let (opened, place) = body.split_at(at);
    let mut reader = Reader::new(place);
    let (Some(key), Some(address)) = (reader.u64(), reader.u64()) else { return Err(WRONG) };
    Ok(Opened::decode(opened)?.map(|opened| (opened.len, opened.rights, (key, address))))
}

/// What an attachment that is only asked for says about its key.
fn verdict(body: &[u8]) -> Result<Result<Attached, Refusal>, Malformed> {
    Ok(get_opened(body)?.map(|_| Attached::new(u32::MAX, u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Reason;

    #[test]
    fn what_a_key_opens_survives_the_wire_and_nothing_else_does() {
        let opened = Opened { len: 4096, rights: Rights::READ };
        let mut body = Vec::new();
        put_opened(&mut body, &Ok((opened, (7, u64::MAX))));
        // Golden: 0, length, rights, key, address.
        let golden = "00 0010000000000000 01 0700000000000000 ffffffffffffffff".replace(' ', "");
        assert_eq!(body.iter().map(|b| format!("{b:02x}")).collect::<String>(), golden);
        assert_eq!(get_opened(&body), Ok(Ok((4096, Rights::READ, (7, u64::MAX)))));
        for cut in 0..body.len() {
            assert!(get_opened(&body[..cut]).is_err(), "{cut}");
        }
        body.push(0);
        assert!(get_opened(&body).is_err(), "a byte too many");
        let mut refused = Vec::new();
        put_opened(&mut refused, &Err(Reason::Revoked.into()));
        assert_eq!(get_opened(&refused), Ok(Err(Reason::Revoked.into())));
    }
}
