//! `tcp`: **emulated** one-sided operations over a network.
//!
//! No hardware places bytes here: a service thread at the target, one per link, reads operations as
//! frames, executes them on the target's memory with the processor, and answers. So they cost the
//! target CPU, and wait while the target's process is stopped; what they keep is the interface and
//! its promises, a WRITE's completion after its placement among them.
//!
//! A batch is one frame; batches that are posted together leave with one system call, and are
//! answered with one. The wire format is in `docs/formats/fabric.md`. It has checksums, but neither
//! encryption nor authentication beyond keys that cannot be guessed: for networks that one trusts.
//!
//! Failure: a connection that breaks takes the link down. A target that is stopped, or a network
//! that swallows packets, shows as deadlines that pass.

mod listener;
pub(crate) mod reception;
pub(crate) mod socket;

use std::fmt;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::RwLock;

use crate::batch::{Attached, Batch};
use crate::body::Body;
use crate::ids::{RegionId, RemoteKey};
use crate::link::{Call, Connect, Link, LinkStats, Listener, Peer, Provider, Session};
use crate::node::{AtomicPath, Node, key_of};
use crate::promise::Promise;
use crate::refusal::{Reason, Refusal};
use crate::stream::{Initiator, call};
use crate::wire::{Opened, encode_ops};
use listener::TcpDoor;
use socket::Socket;

/// The provider. Addresses are `host:port`; port 0 lets the system choose.
#[derive(Clone, Debug)]
pub struct Tcp {
    clock: Arc<dyn Clock>,
}

impl Tcp {
    /// With the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self { clock: SystemClock::shared() }
    }
}

impl Default for Tcp {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn atomic_path(&self) -> AtomicPath {
        AtomicPath::Processor
    }

    fn serve(&self, node: &Arc<Node>, address: &str) -> Result<Box<dyn Listener>> {
        Ok(Box::new(TcpDoor::open(node, address, &self.clock)?))
    }

    fn connect(&self, to: Connect) -> Promise<Result<Arc<dyn Link>>> {
        let clock = Arc::clone(&self.clock);
        let work = move || {
            let link: Arc<dyn Link> = Arc::new(TcpLink::connect(&clock, &to)?);
            Ok(link)
        };
        Promise::on_thread("fabric-connect", work, Err)
    }
}

/// Region and tag of what is attached, by the handle's index; `None` once it was given up.
type Attachments = Vec<Option<(RegionId, u64)>>;

struct TcpLink {
    number: u32,
    peer: Peer,
    core: Arc<Initiator<Socket>>,
    attached: Arc<RwLock<Attachments>>,
}

impl fmt::Debug for TcpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpLink(node {} in epoch {})", self.peer.node, self.peer.epoch)
    }
}

impl TcpLink {
    fn connect(clock: &Arc<dyn Clock>, to: &Connect) -> Result<Self> {
        let socket = Socket::new(dial(to)?)?;
        let what = format!("cannot link to the node at {}", to.address);
        let (peer, incoming) =
            call(&socket, &**clock, to).map_err(|refusal| refusal.error(&what))?;
        let (session, clock) = (Arc::clone(&to.session), Arc::clone(clock));
        let core = Initiator::new(socket, session, clock, to.deadline, incoming);
        Ok(Self { number: crate::link::number(), peer, core, attached: Arc::default() })
    }

    /// Keys of the batch's operations; the first that has none, and why.
    fn keys(&self, batch: &Batch) -> Result<Vec<(RegionId, u64)>, (usize, Refusal)> {
        let attached = self.attached.read();
        let mut keys = Vec::with_capacity(batch.len());
        for (index, op) in batch.ops().iter().enumerate() {
            let region = op.region();
            let known = attached.get(region.index as usize).copied().flatten();
            match known.filter(|_| region.link == self.number) {
                Some(key) => keys.push(key),
                None => return Err((index, Reason::NotAttached.into())),
            }
        }
        Ok(keys)
    }
}

/// Tries the addresses in turn.
pub(crate) fn dial(to: &Connect) -> Result<TcpStream> {
    let fail = |source: std::io::Error| {
        let kind = match source.kind() {
            std::io::ErrorKind::InvalidInput => ErrorKind::InvalidArgument,
            _ => ErrorKind::Io,
        };
        Error::with_source(kind, format!("cannot connect to {}", to.address), source)
    };
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in to.address.to_socket_addrs().map_err(fail)? {
        match TcpStream::connect_timeout(&address, to.deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(fail(last))
}

impl Link for TcpLink {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn session(&self) -> &Arc<Session> {
        self.core.session()
    }

    fn attach(&self, key: &RemoteKey) -> Promise<Result<Attached, Refusal>> {
        if let Err(refusal) = key_of(key, self.peer.node, self.peer.epoch) {
            return Promise::ready(Err(refusal));
        }
        let (attached, link) = (Arc::clone(&self.attached), self.number);
        let known = (key.region, key.tag);
        self.core.attach(
            |out| key.encode(out),
            move |body| {
                let opened = Opened::decode(body)?;
                Ok(opened.map(|_| {
                    let mut attached = attached.write();
                    attached.push(Some(known));
                    Attached { link, index: attached.len() as u32 - 1 }
                }))
            },
        )
    }

    fn detach(&self, region: Attached) {
        if region.link == self.number
            && let Some(slot) = self.attached.write().get_mut(region.index as usize)
        {
            *slot = None;
        }
    }

    fn post(&self, mut batch: Batch) -> Promise<Batch> {
        if let Err(refusal) = batch.begin().and_then(|()| self.core.down().map_or(Ok(()), Err)) {
            batch.refuse_all(refusal);
            return Promise::ready(batch);
        }
        match self.keys(&batch) {
            Ok(keys) => self.core.post(batch, |out, batch| encode_ops(out, batch, &keys)),
            // Nothing is sent: what stands before the operation is not tried either.
            Err((index, refusal)) => {
                batch.refuse_all(Reason::Skipped.into());
                batch.finish(index, crate::batch::Outcome::Refused(refusal));
                Promise::ready(batch)
            }
        }
    }

    fn request(&self, call: Call<'_>) -> Promise<Result<Body, Refusal>> {
        self.core.request(call)
    }

    fn flush(&self) {
        self.core.send_or_nudge();
    }

    fn closed(&self) -> Option<Refusal> {
        self.core.down()
    }

    fn close(&self) {
        self.core.close();
    }

    fn stats(&self) -> LinkStats {
        self.core.stats()
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        self.core.close();
    }
}
