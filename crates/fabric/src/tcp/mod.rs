//! `tcp`: emulated one-sided operations over a network.
//!
//! The target has one service thread per link. It reads operations as frames, executes them on the
//! target's memory and answers. The operations therefore cost processor time of the target, and
//! wait while the target is stopped. The promises of the interface hold: a WRITE completes after
//! its bytes are visible.
//!
//! A batch is one frame. Batches that are posted together are sent with one system call and
//! answered with one. `docs/formats/fabric.md` has the wire format. It has checksums, but no
//! encryption, so it suits trusted networks. With a [`Secret`] both sides of a link prove that they
//! belong to the cluster. Without one a node listens on loopback addresses only.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a broken connection takes the link down. If the target is stopped, or the network drops
//! packets, deadlines pass.
//! Cost: two system calls on each side per group of batches.

mod listener;
pub(crate) mod reception;
pub(crate) mod socket;

use std::fmt;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::RwLock;

use crate::auth::{RefusalReport, Secret};
use crate::batch::{Attached, Batch};
use crate::body::Body;
use crate::ids::{RegionId, RemoteKey};
use crate::link::{Call, Connect, Link, LinkStats, Listener, Peer, Provider, Session};
use crate::node::{AtomicPath, Node, key_of};
use crate::promise::Promise;
use crate::refusal::{Reason, Refusal};
use crate::stream::{Initiator, call};
use crate::wire::{Opened, encode_ops};
use listener::TcpNodeListener;
use socket::Socket;

/// The provider for TCP. Addresses are `host:port`, and with port 0 the system chooses a port.
#[derive(Clone, Debug)]
pub struct Tcp {
    clock: Arc<dyn Clock>,
    secret: Option<Secret>,
    report: RefusalReport,
}

impl Tcp {
    /// Makes a provider with the system's clock and without a secret. Its nodes listen on loopback
    /// addresses only.
    #[must_use]
    pub fn new() -> Self {
        let clock = SystemClock::shared();
        Self { report: RefusalReport::new(&clock), clock, secret: None }
    }

    /// Sets the clock of the time limits of greetings and operations. The default is the system's
    /// clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { report: RefusalReport::new(&clock), clock, ..self }
    }

    /// Sets the secret of the cluster. With a secret, links exist only to and from processes that
    /// know it as well.
    #[must_use]
    pub fn with_secret(self, secret: Option<Secret>) -> Self {
        Self { secret, ..self }
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
        Ok(Box::new(TcpNodeListener::open(node, address, self)?))
    }

    fn connect(&self, to: Connect) -> Promise<Result<Arc<dyn Link>>> {
        let me = self.clone();
        let work = move || {
            let link: Arc<dyn Link> = Arc::new(TcpLink::connect(&me, &to)?);
            Ok(link)
        };
        Promise::on_thread("fabric-connect", work, Err)
    }
}

/// Region and tag of each attachment, by the index of its handle; `None` after a detach.
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
    fn connect(tcp: &Tcp, to: &Connect) -> Result<Self> {
        let socket = Socket::new(dial(to)?)?;
        let what = format!("cannot link to the node at {}", to.address);
        let called = call(&socket, &*tcp.clock, to, tcp.secret.as_ref());
        let (peer, incoming) =
            called.map_err(|refusal| tcp.report.of_client(&to.address, refusal).error(&what))?;
        let (session, clock) = (Arc::clone(&to.session), Arc::clone(&tcp.clock));
        let core = Initiator::new(socket, session, clock, to.deadline, incoming);
        Ok(Self { number: crate::link::number(), peer, core, attached: Arc::default() })
    }

    /// Keys of the batch's operations. The error is the first operation without a key, and the
    /// reason.
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

/// Tries the addresses one after the other.
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
            // Nothing is sent, so the operations before it are not tried either.
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
