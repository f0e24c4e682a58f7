//! A node's `ofi` door: a TCP socket accepts, one thread per link answers attachments and requests. One-sided operations are
//! not this process's threads' business: the card, or libfabric's own progress, executes them.

use std::fmt;
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::random::entropy_seed;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::control::Control;
use super::engine::Engine;
use super::ffi::{Domain, End, Registered};
use super::messages::Messages;
use crate::alarm::Alarm;
use crate::ids::RemoteKey;
use crate::link::{LINKS_MAX, Listener};
use crate::memory::Mapping;
use crate::node::card::{Claim, Registration};
use crate::node::{AtomicPath, LinkEnd, Node};
use crate::refusal::{Reason, Refusal};
use crate::stream::{Incoming, OneSided, Registrar, Responder, Stream, admit, receive_hello, send};
use crate::tcp::socket::Socket;
use crate::wire::ofi::{Endpoints, OpenedOnCard};
use crate::wire::{Hello, Kind, Opened, Welcome, put_frame, put_refused};

/// A client has said who it is, and where, by then.
const GREETING_DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct OfiDoor {
    address: String,
    shared: Arc<Shared>,
    accepting: Option<Joiner>,
}

struct Shared {
    node: Arc<Node>,
    domain: Arc<Domain>,
    claim: Claim,
    provider: Arc<str>,
    clock: Arc<dyn Clock>,
    alarm: Alarm,
    stop: AtomicBool,
    serving: AtomicUsize,
    links: Mutex<Vec<Weak<Responder<Messages>>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} links", self.node, self.serving.load(Ordering::Relaxed))
    }
}

impl OfiDoor {
    pub(super) fn open(
        node: &Arc<Node>,
        address: &str,
        provider: &Arc<str>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let fail = |source| {
            let what = format!("cannot listen on {address}");
            Error::with_source(ErrorKind::Io, what, source)
        };
        let wanted = address.to_socket_addrs().map_err(fail)?.next();
        let Some(wanted) = wanted.filter(|wanted| !wanted.ip().is_unspecified()) else {
            return Err(Error::invalid(format!(
                "{address}: give the address of the interface whose card is to be used"
            )));
        };
        let domain = super::open(provider, wanted.ip())?;
        let listener = TcpListener::bind(wanted).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?.to_string();
        let number = crate::link::number();
        let claim = Claim { number, name: format!("a listener over {provider} at {bound}") };
        node.claim_card(&claim)?;
        let shared = Arc::new(Shared {
            node: Arc::clone(node),
            domain,
            claim,
            provider: Arc::clone(provider),
            clock: Arc::clone(clock),
            alarm: Alarm::new()?,
            stop: AtomicBool::new(false),
            serving: AtomicUsize::new(0),
            links: Mutex::new(Vec::new()),
        });
        let mut door = Self { address: bound, shared: Arc::clone(&shared), accepting: None };
        let body = Box::new(move || shared.accept(&listener));
        // If there is no thread, the door's drop gives the claim back.
        door.accepting = Some(SystemSpawn.spawn("fabric-accept", body)?);
        Ok(door)
    }
}

impl Listener for OfiDoor {
    fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for OfiDoor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.alarm.ring();
        if let Some(Err(error)) = self.accepting.take().map(Joiner::join) {
            tracing::error!(%error, "accepting links");
        }
        self.shared.node.release_card(&self.shared.claim);
        for link in self.shared.links.lock().drain(..).filter_map(|link| link.upgrade()) {
            link.close(Reason::Disconnected.into());
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.stop.load(Ordering::SeqCst) {
            let mut fds = [
                PollFd::new(listener, PollFlags::IN),
                PollFd::from_borrowed_fd(self.alarm.fd(), PollFlags::IN),
            ];
            let _ready = poll(&mut fds, None);
            let Ok((stream, _)) = listener.accept() else { continue };
            match Socket::new(stream) {
                Ok(socket) if self.serving.load(Ordering::SeqCst) < LINKS_MAX => self.start(socket),
                Ok(socket) => refuse(&socket, Refusal::at(Reason::Exhausted, LINKS_MAX as u64)),
                Err(error) => tracing::warn!(%error, "a link was not taken"),
            }
        }
    }

    fn start(self: &Arc<Self>, socket: Socket) {
        let me = Arc::clone(self);
        self.serving.fetch_add(1, Ordering::SeqCst);
        let body = Box::new(move || {
            me.greet(socket);
            me.serving.fetch_sub(1, Ordering::SeqCst);
        });
        if let Err(error) = SystemSpawn.spawn("fabric-serve", body) {
            self.serving.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!(%error, "a link was not taken");
        }
    }

    fn greet(self: &Arc<Self>, socket: Socket) {
        match receive_hello(&socket, &*self.clock, GREETING_DEADLINE) {
            Ok((hello, incoming)) => match admit(&self.node, &hello) {
                Ok(welcome) => self.serve(socket, &hello, &welcome, incoming),
                Err(refusal) => refuse(&socket, refusal),
            },
            Err(refusal) => {
                self.malformed(refusal);
                refuse(&socket, refusal);
            }
        }
    }

    fn malformed(&self, refusal: Refusal) {
        self.node.counters.malformed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%refusal, "a client did not greet");
    }

    fn serve(self: &Arc<Self>, socket: Socket, hello: &Hello, welcome: &Welcome, in_: Incoming) {
        let ends = Engine::open_target(&self.domain).and_then(|operations| {
            Ok((operations, Messages::open(&self.domain)?, Control::new(socket, in_)?))
        });
        let (operations, messages, control) = match ends {
            Ok((operations, messages, control)) => (operations, messages, Arc::new(control)),
            Err(error) => return tracing::warn!(%error, "a link was not taken"),
        };
        let (Ok(operations_name), Ok(messages_name)) = (operations.name(), messages.name()) else {
            return tracing::warn!("an endpoint of libfabric has no name");
        };
        let mine = Endpoints {
            provider: self.provider.to_string(),
            operations: operations_name,
            messages: messages_name,
        };
        let door = Arc::clone(self);
        let registrar = Registrations { end: operations, held: Mutex::default(), door };
        let messages = Messages::new(messages, Arc::clone(&control));
        let life = (hello.client, welcome.epoch);
        let one_sided = OneSided::Registered(Box::new(registrar));
        let link = Responder::new(messages, life, AtomicPath::Card, one_sided);
        let as_end: Arc<dyn LinkEnd> = Arc::clone(&link) as Arc<dyn LinkEnd>;
        match self.node.arrive(hello.client, &as_end, hello.resumed) {
            Ok(arrival) => {
                self.remember(&link);
                if self.introduce(&link, &control, welcome, &mine) {
                    link.run(&self.node, Incoming::new());
                }
                link.stream().shut();
                self.node.depart(hello.client, arrival);
            }
            Err(refusal) => control.say_last(&goodbye(refusal)),
        }
    }

    /// Exchanges names with the client; whether the link may run.
    fn introduce(
        &self,
        link: &Responder<Messages>,
        control: &Control,
        welcome: &Welcome,
        mine: &Endpoints,
    ) -> bool {
        let mut greeting = Vec::new();
        put_frame(&mut greeting, Kind::Welcome, 0, |body| welcome.encode(body));
        // Fenced or shut between the greeting and the arrival: it was not told to close.
        if self.node.epoch() != welcome.epoch || self.stop.load(Ordering::SeqCst) {
            return false;
        }
        if control.tell(greeting, mine).is_err() {
            return false;
        }
        match control.hear(&*self.clock, GREETING_DEADLINE) {
            Ok(theirs) if theirs.provider == mine.provider => {
                let joined = link.stream().join(&theirs.messages);
                if let Err(code) = joined {
                    tracing::warn!(%code, "a client's endpoints are not ones of libfabric");
                    self.malformed(Reason::Protocol.into());
                }
                joined.is_ok()
            }
            Ok(_) => false,
            Err(refusal) => {
                // A client that leaves here found another provider than its own.
                if refusal.reason != Reason::Disconnected {
                    self.malformed(refusal);
                }
                false
            }
        }
    }

    fn remember(&self, link: &Arc<Responder<Messages>>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }
}

fn goodbye(refusal: Refusal) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Goodbye, 0, |body| put_refused(body, refusal));
    out
}

fn refuse(socket: &Socket, refusal: Refusal) {
    // Best effort: it is told why, if it listens.
    let _sent = send(socket, &goodbye(refusal));
    socket.shut();
}

impl Registration for Registered {
    fn place(&self) -> (u64, u64) {
        Registered::place(self)
    }
}

/// A link's part of what is registered.
struct Registrations {
    // The order of the fields is that of their end: first what the client's operations go to, then the memory that it may
    // still have been writing to when its key was revoked.
    end: End,
    held: Mutex<Vec<Arc<Mapping>>>,
    door: Arc<Shared>,
}

impl Registrar for Registrations {
    fn attach(&self, node: &Node, key: &RemoteKey, out: &mut Vec<u8>) -> bool {
        // A client whose operation was refused asks here, and connects anew.
        Engine::hear_knocks(&self.end);
        let placed = node.attach_on_card(key, &self.door.claim, |memory, rights| {
            let made = Registered::new(&self.door.domain, memory, rights, entropy_seed());
            let made = made.map_err(|code| {
                tracing::warn!(%code, "memory was not registered with libfabric");
                Refusal::new(Reason::Exhausted)
            })?;
            Ok(Box::new(made) as Box<dyn Registration>)
        });
        let opened = placed.map(|placed| {
            let mut held = self.held.lock();
            if !held.iter().any(|held| Arc::ptr_eq(held, &placed.memory)) {
                held.push(Arc::clone(&placed.memory));
            }
            let len = placed.memory.bytes() as u64;
            OpenedOnCard { opened: Opened { len, rights: placed.rights }, place: placed.place }
        });
        OpenedOnCard::encode(&opened, out);
        opened.is_ok()
    }
}
