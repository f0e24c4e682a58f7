//! The reception of a TCP socket, which the providers share. One thread accepts connections, reads
//! greetings and checks proofs. Each link that has greeted is served on its own thread, in the way
//! of its provider.
//!
//! The provider's listener owns the reception and ends it in two steps: [`Reception::end`] stops
//! accepting, and [`Reception::close_links`] ends the links.
//!
//! Invariants:
//! 1. A connection without a greeting has no thread, and at most [`GREETING_BYTES_MAX`] and a
//!    header of memory. The accepting thread waits for at most [`GUESTS_MAX`] such connections, and
//!    for each at most [`GREETING_DEADLINE`].
//! 2. At most [`STRANGERS_MAX`] links have greeted but sent no frame, each for about
//!    [`SILENCE_MAX`]. A new link of this kind replaces the oldest.
//! 3. There are at most [`LINKS_MAX`] links.
//! 4. A connection gets a thread only after its proof, if the node has a secret.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a client that does not greet, or breaks the protocol, gets the reason and is counted as
//! malformed. A client that cannot prove that it belongs to the cluster is counted as
//! unauthenticated.
//! Cost: an accept, a poll and a read per connection, and a thread after its greeting.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::socket::Socket;
use crate::alarm::{Alarm, timespec};
use crate::auth::{Admission, Listening, NodeGreeting, NodeStep, RefusalReport, Secret, listening};
use crate::link::LINKS_MAX;
use crate::node::{LinkEnd as _, Node};
use crate::refusal::{Reason, Refusal};
use crate::stream::{GREETING_BYTES_MAX, Incoming, Responder, Stream, admit, send};
use crate::wire::{
    FRAME_HEADER_BYTES, Frame, Hello, Kind, Welcome, frame_at, put_frame, put_refused,
};

/// Time limit of a greeting.
pub(crate) const GREETING_DEADLINE: Duration = Duration::from_secs(5);
/// Limit of the connections without a greeting. A new one replaces the oldest.
const GUESTS_MAX: usize = 256;
/// Limit of the connections that the kernel keeps for the accepting thread. The standard library's
/// limit is below [`GUESTS_MAX`], and a client whose connection the kernel drops tries again only
/// after a second.
const BACKLOG: i32 = 1024;
/// Limit of the reads of bytes that a refused client has sent.
const GUEST_PARTS_MAX: usize = 128;
/// Limit of the links that have greeted and have sent no frame.
const STRANGERS_MAX: usize = 64;
/// Time in which a link must send its first frame.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Longest wait of the accepting thread while there are links without a frame.
const LOOK: Duration = Duration::from_secs(1);

/// Serves a client that was accepted, on its own thread, until its link ends.
pub(crate) type Serve = dyn Fn(Socket, &Hello, &Welcome, Incoming) + Send + Sync;

/// Binds a socket, and returns its address. Errors: `InvalidArgument` if other machines could reach
/// the address and there is no secret.
pub(crate) fn listen(
    address: impl ToSocketAddrs + fmt::Display,
    secret: Option<&Secret>,
) -> Result<(TcpListener, SocketAddr)> {
    let failed =
        |source| Error::with_source(ErrorKind::Io, format!("cannot listen on {address}"), source);
    let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
    for at in &addresses {
        match listening(at.ip(), secret.is_some()) {
            Listening::Authenticated => {}
            Listening::ThisMachine => tracing::info!(
                %at,
                "there is no secret, so the node listens for processes of this machine only"
            ),
            Listening::Refused => {
                return Err(Error::invalid(format!(
                    "cannot listen on {address} without a secret, because every process that reaches \
                     it could use the node: give the cluster's secret with --secret-file FILE \
                     (`archipelago cluster secret FILE` makes one), or listen on 127.0.0.1"
                )));
            }
        }
    }
    let listen = || -> io::Result<_> {
        let listener = TcpListener::bind(&addresses[..])?;
        rustix::net::listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    listen().map_err(failed)
}

/// Accepts connections and reads greetings. `S` is the stream of the provider's links.
pub(crate) struct Reception<S> {
    pub(crate) node: Arc<Node>,
    pub(crate) clock: Arc<dyn Clock>,
    secret: Option<Secret>,
    report: RefusalReport,
    alarm: Alarm,
    stop: AtomicBool,
    serving: AtomicUsize,
    links: Mutex<Vec<LinkEntry<S>>>,
}

/// A link that has greeted, and the time of its greeting.
struct LinkEntry<S> {
    link: Weak<Responder<S>>,
    greeted_ns: u64,
}

/// A connection without a greeting.
struct Guest {
    stream: TcpStream,
    arrived: Vec<u8>,
    until_ns: u64,
    /// The greeting of a client that must prove that it knows the secret.
    challenged: Option<Box<NodeGreeting>>,
}

/// The outcome of reading a greeting.
enum Greeted {
    NotYet,
    /// The client belongs to the cluster. `arrived` begins after its greeting.
    Admitted(Admission),
    /// The client is refused for this reason; `None` if the client has ended.
    Refused(Option<Refusal>),
}

impl<S> fmt::Debug for Reception<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} links", self.node, self.serving.load(Ordering::Relaxed))
    }
}

impl<S: Stream> Reception<S> {
    pub(crate) fn new(
        node: &Arc<Node>,
        clock: &Arc<dyn Clock>,
        secret: Option<&Secret>,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            node: Arc::clone(node),
            clock: Arc::clone(clock),
            secret: secret.cloned(),
            report: RefusalReport::new(clock),
            alarm: Alarm::new()?,
            stop: AtomicBool::new(false),
            serving: AtomicUsize::new(0),
            links: Mutex::new(Vec::new()),
        }))
    }

    /// Starts the accepting thread.
    pub(crate) fn open(
        self: &Arc<Self>,
        listener: TcpListener,
        serve: Arc<Serve>,
    ) -> Result<Joiner> {
        let me = Arc::clone(self);
        SystemSpawn.spawn("fabric-accept", Box::new(move || me.accept(&listener, &serve)))
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, serve: &Arc<Serve>) {
        let mut guests: Vec<Guest> = Vec::new();
        while !self.is_ending() {
            let ready = self.wait(listener, &guests);
            let now_ns = self.clock.now_ns();
            for (at, ready) in ready.into_iter().enumerate().rev() {
                let mut greeted = if ready { self.read(&mut guests[at]) } else { Greeted::NotYet };
                if matches!(greeted, Greeted::NotYet) && now_ns >= guests[at].until_ns {
                    greeted = Greeted::Refused(Some(Reason::Deadline.into()));
                }
                match greeted {
                    Greeted::NotYet => {}
                    Greeted::Admitted(admission) => {
                        self.start(guests.remove(at), admission, serve);
                    }
                    Greeted::Refused(why) => {
                        let guest = guests.remove(at);
                        if let Some(refusal) = why {
                            self.refused(&guest.stream, refusal);
                            guest.refuse(refusal);
                        }
                    }
                }
            }
            self.end_silent(now_ns);
            self.take_guests(listener, &mut guests);
        }
    }

    /// The connections that sent something, or ended.
    fn wait(&self, listener: &TcpListener, guests: &[Guest]) -> Vec<bool> {
        let now_ns = self.clock.now_ns();
        let greeting = guests.first().map(|guest| guest.until_ns.saturating_sub(now_ns));
        let look = self.has_silent().then_some(LOOK.as_nanos() as u64);
        let timeout = [greeting, look].into_iter().flatten().min();
        let timeout = timeout.map(|ns| timespec(Duration::from_nanos(ns)));
        let alarm = PollFd::from_borrowed_fd(self.alarm.fd(), PollFlags::IN);
        let fixed = [alarm, PollFd::new(listener, PollFlags::IN)];
        let streams = guests.iter().map(|guest| PollFd::new(&guest.stream, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = fixed.into_iter().chain(streams).collect();
        let _ready = poll(&mut fds, timeout.as_ref());
        if !fds[0].revents().is_empty() {
            self.alarm.take();
        }
        fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect()
    }

    fn take_guests(&self, listener: &TcpListener, guests: &mut Vec<Guest>) {
        while let Ok((stream, _)) = listener.accept() {
            if let Err(error) = stream.set_nonblocking(true) {
                tracing::warn!(%error, "a link was not taken");
                continue;
            }
            if guests.len() >= GUESTS_MAX {
                guests.remove(0).refuse(Refusal::at(Reason::Exhausted, GUESTS_MAX as u64));
            }
            let until_ns = self.clock.now_ns() + GREETING_DEADLINE.as_nanos() as u64;
            guests.push(Guest { stream, arrived: Vec::new(), until_ns, challenged: None });
        }
    }

    /// Serves a client that has greeted, on its own thread.
    fn start(self: &Arc<Self>, guest: Guest, admission: Admission, serve: &Arc<Serve>) {
        if self.serving.load(Ordering::SeqCst) >= LINKS_MAX {
            return guest.refuse(Refusal::at(Reason::Exhausted, LINKS_MAX as u64));
        }
        let hello = admission.hello;
        let welcome = match admit(&self.node, admission) {
            Ok(welcome) => welcome,
            Err(refusal) => return guest.refuse(refusal),
        };
        let incoming = Incoming::with(&guest.arrived);
        let socket = match Socket::new(guest.stream) {
            Ok(socket) => socket,
            Err(error) => return tracing::warn!(%error, "a link was not taken"),
        };
        let (me, serve) = (Arc::clone(self), Arc::clone(serve));
        self.serving.fetch_add(1, Ordering::SeqCst);
        let body = Box::new(move || {
            serve(socket, &hello, &welcome, incoming);
            me.serving.fetch_sub(1, Ordering::SeqCst);
        });
        if let Err(error) = SystemSpawn.spawn("fabric-serve", body) {
            self.serving.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!(%error, "a link was not taken");
        }
    }

    /// Reads the available bytes of a client's greeting, and answers them.
    fn read(&self, guest: &mut Guest) -> Greeted {
        loop {
            if let Err(outcome) = guest.fill() {
                return outcome;
            }
            let challenged = guest.challenged.take();
            let (step, bytes) = match frame_at(&guest.arrived) {
                Ok(Some((frame, bytes))) => (self.hear(challenged, &frame), bytes),
                Ok(None) if guest.arrived.len() <= FRAME_HEADER_BYTES + GREETING_BYTES_MAX => {
                    guest.challenged = challenged;
                    continue;
                }
                _ => return Greeted::Refused(Some(Reason::Protocol.into())),
            };
            match step {
                Ok(NodeStep::Admit(admission)) => {
                    guest.arrived.drain(..bytes);
                    return Greeted::Admitted(admission);
                }
                // The proof follows the challenge, so no bytes may have arrived after the hello.
                Ok(NodeStep::Challenge(greeting, frame)) if guest.arrived.len() == bytes => {
                    guest.arrived.clear();
                    guest.challenged = Some(greeting);
                    if !matches!((&guest.stream).write(&frame), Ok(sent) if sent == frame.len()) {
                        return Greeted::Refused(None);
                    }
                }
                Ok(NodeStep::Challenge(..)) => {
                    return Greeted::Refused(Some(Reason::Protocol.into()));
                }
                Err(refusal) => return Greeted::Refused(Some(refusal)),
            }
        }
    }

    /// Decides about a frame of a greeting.
    fn hear(
        &self,
        challenged: Option<Box<NodeGreeting>>,
        frame: &Frame<'_>,
    ) -> Result<NodeStep, Refusal> {
        match (challenged, frame.kind) {
            (Some(greeting), _) => greeting.check(frame).map(NodeStep::Admit),
            (None, Kind::Hello) => {
                let (id, epoch) = (self.node.id(), self.node.epoch());
                NodeGreeting::begin(self.secret.as_ref(), frame.body, id, epoch)
            }
            (None, _) => Err(Reason::Protocol.into()),
        }
    }

    fn has_silent(&self) -> bool {
        let links = self.links.lock();
        links.iter().any(|entry| entry.link.upgrade().is_some_and(|link| link.is_silent()))
    }

    /// Closes links whose client has sent no frame within its time.
    fn end_silent(&self, now_ns: u64) {
        let late = |entry: &LinkEntry<S>| {
            now_ns.saturating_sub(entry.greeted_ns) >= SILENCE_MAX.as_nanos() as u64
        };
        for entry in self.links.lock().iter().filter(|entry| late(entry)) {
            if let Some(link) = entry.link.upgrade().filter(|link| link.is_silent()) {
                link.close(Reason::Deadline.into());
            }
        }
    }

    /// Counts and logs a client whose greeting was refused.
    fn refused(&self, stream: &TcpStream, refusal: Refusal) {
        if !refusal.reason.is_authentication() {
            return self.malformed(refusal);
        }
        self.node.counters.unauthenticated.fetch_add(1, Ordering::Relaxed);
        let from = stream.peer_addr().map_or_else(|_| "unknown".to_owned(), |at| at.to_string());
        self.report.log(&format!("a client at {from} was refused"), refusal);
    }

    /// Counts a client that broke the protocol in its greeting.
    pub(crate) fn malformed(&self, refusal: Refusal) {
        self.node.counters.malformed.fetch_add(1, Ordering::Relaxed);
        self.report.log("a client did not greet", refusal);
    }

    /// Whether the node was fenced or shut after it welcomed a client. The node has not closed that
    /// link.
    pub(crate) fn is_late(&self, welcome: &Welcome) -> bool {
        self.node.epoch() != welcome.epoch || self.is_ending()
    }

    fn is_ending(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Keeps a link, in order to close it at the end. If too many links have sent no frame, the
    /// oldest of them is closed.
    pub(crate) fn remember(&self, link: &Arc<Responder<S>>) {
        let mut links = self.links.lock();
        links.retain(|entry| entry.link.strong_count() > 0);
        let silent = links.iter().filter_map(|entry| entry.link.upgrade());
        let silent: Vec<Arc<Responder<S>>> = silent.filter(|link| link.is_silent()).collect();
        if let Some(oldest) = silent.first().filter(|_| silent.len() >= STRANGERS_MAX) {
            oldest.close(Refusal::at(Reason::Exhausted, STRANGERS_MAX as u64));
        }
        let greeted_ns = self.clock.now_ns();
        links.push(LinkEntry { link: Arc::downgrade(link), greeted_ns });
        drop(links);
        // The accepting thread checks the link when its time has passed.
        self.alarm.ring();
    }

    /// Stops accepting, and waits for the accepting thread.
    pub(crate) fn end(&self, accepting: Option<Joiner>) {
        self.stop.store(true, Ordering::SeqCst);
        self.alarm.ring();
        if let Some(Err(error)) = accepting.map(Joiner::join) {
            tracing::error!(%error, "accepting links");
        }
    }

    pub(crate) fn close_links(&self) {
        for link in self.links.lock().drain(..).filter_map(|entry| entry.link.upgrade()) {
            link.close(Reason::Disconnected.into());
        }
    }
}

impl Guest {
    /// Reads available bytes. The error is the outcome if none are left.
    fn fill(&mut self) -> Result<(), Greeted> {
        let mut part = [0; GREETING_BYTES_MAX];
        loop {
            match (&self.stream).read(&mut part) {
                Ok(0) => return Err(Greeted::Refused(None)),
                Ok(bytes) => {
                    self.arrived.extend_from_slice(&part[..bytes]);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Greeted::NotYet);
                }
                Err(_) => return Err(Greeted::Refused(None)),
            }
        }
    }

    /// Sends the reason to refuse the client, as best effort.
    fn refuse(&self, refusal: Refusal) {
        let _sent = (&self.stream).write(&goodbye(refusal));
        // Unread bytes would make the system reset the connection, and the client would lose the
        // reason.
        let mut part = [0; GREETING_BYTES_MAX];
        for _ in 0..GUEST_PARTS_MAX {
            if !matches!((&self.stream).read(&mut part), Ok(1..)) {
                break;
            }
        }
        let _shut = self.stream.shutdown(Shutdown::Both);
    }
}

/// The frame with the reason for the end of a link.
pub(crate) fn goodbye(refusal: Refusal) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Goodbye, 0, |body| put_refused(body, refusal));
    out
}

/// Sends a client the reason for the end, as best effort.
pub(crate) fn refuse(stream: &impl Stream, refusal: Refusal) {
    let _sent = send(stream, &goodbye(refusal));
    stream.shut();
}
