//! What doors behind a TCP socket share: one thread accepts and reads greetings, and one per link
//! that greeted serves as the provider does.
//!
//! Owned by a provider's listener, which ends it in two steps: [`Reception::end`] (nobody is taken
//! any more), then [`Reception::close_links`]. A client that does not greet, or breaks the protocol
//! at it, is told why, counted as malformed, and costs nothing else.
//!
//! Invariants: 1. a connection that has not greeted has no thread and at most
//! [`GREETING_BYTES_MAX`] and a header of memory; the thread that accepts waits for all of them
//! together, at most [`GUESTS_MAX`], each for at most [`GREETING_DEADLINE`]; 2. of links that
//! greeted and never sent a frame there are at most [`STRANGERS_MAX`], each for about
//! [`SILENCE_MAX`]: the oldest makes room for a new one; 3. there are at most [`LINKS_MAX`] links.
//! Cost: an accept, a poll and a read per connection, and a thread once it greets.

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
use crate::link::LINKS_MAX;
use crate::node::{LinkEnd as _, Node};
use crate::refusal::{Reason, Refusal};
use crate::stream::{GREETING_BYTES_MAX, Incoming, Responder, Stream, admit, send};
use crate::wire::{FRAME_HEADER_BYTES, Hello, Kind, Welcome, frame_at, put_frame, put_refused};

/// A client has said who it is by then.
pub(crate) const GREETING_DEADLINE: Duration = Duration::from_secs(5);
/// Connections that have not greeted, at most; the oldest makes room for a new one.
const GUESTS_MAX: usize = 256;
/// Reads of what a client that is refused has sent.
const GUEST_PARTS_MAX: usize = 128;
/// Links that greeted and have not sent a frame, at most.
const STRANGERS_MAX: usize = 64;
/// A link that greeted sends its first frame within so long.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The longest wait of the thread that accepts, while there are links that have not sent a frame.
const LOOK: Duration = Duration::from_secs(1);

/// Serves a client that was admitted, on a thread of its own, until its link ends.
pub(crate) type Serve = dyn Fn(Socket, &Hello, &Welcome, Incoming) + Send + Sync;

/// Binds a socket, and says where.
pub(crate) fn listen(
    address: impl ToSocketAddrs + fmt::Display,
) -> Result<(TcpListener, SocketAddr)> {
    let listen = || -> io::Result<_> {
        let listener = TcpListener::bind(&address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    listen().map_err(|source| {
        Error::with_source(ErrorKind::Io, format!("cannot listen on {address}"), source)
    })
}

/// See the module; `S` is what the links of the provider are streams of.
pub(crate) struct Reception<S> {
    pub(crate) node: Arc<Node>,
    pub(crate) clock: Arc<dyn Clock>,
    alarm: Alarm,
    stop: AtomicBool,
    serving: AtomicUsize,
    links: Mutex<Vec<LinkEntry<S>>>,
}

/// A link that greeted, and when.
struct LinkEntry<S> {
    link: Weak<Responder<S>>,
    greeted_ns: u64,
}

/// A connection that has not greeted.
struct Guest {
    stream: TcpStream,
    arrived: Vec<u8>,
    until_ns: u64,
}

/// What reading from a guest came to.
enum Greeted {
    NotYet,
    /// Who it is, and the bytes of its greeting.
    Said(Hello, usize),
    /// It is to be told why it is not taken; `None`: it has gone.
    Refused(Option<Refusal>),
}

impl<S> fmt::Debug for Reception<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} links", self.node, self.serving.load(Ordering::Relaxed))
    }
}

impl<S: Stream> Reception<S> {
    pub(crate) fn new(node: &Arc<Node>, clock: &Arc<dyn Clock>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            node: Arc::clone(node),
            clock: Arc::clone(clock),
            alarm: Alarm::new()?,
            stop: AtomicBool::new(false),
            serving: AtomicUsize::new(0),
            links: Mutex::new(Vec::new()),
        }))
    }

    /// Starts the thread that accepts.
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
                let mut greeted = if ready { guests[at].read() } else { Greeted::NotYet };
                if matches!(greeted, Greeted::NotYet) && now_ns >= guests[at].until_ns {
                    greeted = Greeted::Refused(Some(Reason::Deadline.into()));
                }
                match greeted {
                    Greeted::NotYet => {}
                    Greeted::Said(hello, bytes) => {
                        self.start(guests.remove(at), hello, bytes, serve);
                    }
                    Greeted::Refused(why) => {
                        let guest = guests.remove(at);
                        if let Some(refusal) = why {
                            self.malformed(refusal);
                            guest.refuse(refusal);
                        }
                    }
                }
            }
            self.end_silent(now_ns);
            self.take_guests(listener, &mut guests);
        }
    }

    /// Which guests said something, or ended.
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
            guests.push(Guest { stream, arrived: Vec::new(), until_ns });
        }
    }

    /// Serves a client that greeted, on a thread of its own.
    fn start(self: &Arc<Self>, guest: Guest, hello: Hello, bytes: usize, serve: &Arc<Serve>) {
        if self.serving.load(Ordering::SeqCst) >= LINKS_MAX {
            return guest.refuse(Refusal::at(Reason::Exhausted, LINKS_MAX as u64));
        }
        let welcome = match admit(&self.node, &hello) {
            Ok(welcome) => welcome,
            Err(refusal) => return guest.refuse(refusal),
        };
        let incoming = Incoming::with(&guest.arrived[bytes..]);
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

    fn has_silent(&self) -> bool {
        let links = self.links.lock();
        links.iter().any(|entry| entry.link.upgrade().is_some_and(|link| link.is_silent()))
    }

    /// Closes links whose client never sent a frame, and has had its time.
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

    /// Counts a client that broke the protocol at its greeting.
    pub(crate) fn malformed(&self, refusal: Refusal) {
        self.node.counters.malformed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%refusal, "a client did not greet");
    }

    /// Whether a client that was welcomed came too late: the node was fenced or shut since, and
    /// did not tell it to close.
    pub(crate) fn is_late(&self, welcome: &Welcome) -> bool {
        self.node.epoch() != welcome.epoch || self.is_ending()
    }

    fn is_ending(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Keeps a link, to close it at the end. If there are too many that never sent a frame, the
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
        // The thread that accepts looks when its time is over.
        self.alarm.ring();
    }

    /// Takes nobody any more, and waits for the thread that accepts.
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
    /// Reads what there is of the greeting.
    fn read(&mut self) -> Greeted {
        let mut part = [0; GREETING_BYTES_MAX];
        loop {
            match (&self.stream).read(&mut part) {
                Ok(0) => return Greeted::Refused(None),
                Ok(bytes) => self.arrived.extend_from_slice(&part[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Greeted::NotYet,
                Err(_) => return Greeted::Refused(None),
            }
            match frame_at(&self.arrived) {
                Ok(Some((frame, bytes))) if frame.kind == Kind::Hello => {
                    return match Hello::decode(frame.body) {
                        Ok(hello) => Greeted::Said(hello, bytes),
                        Err(error) => Greeted::Refused(Some(error.into())),
                    };
                }
                Ok(None) if self.arrived.len() <= FRAME_HEADER_BYTES + GREETING_BYTES_MAX => {}
                _ => return Greeted::Refused(Some(Reason::Protocol.into())),
            }
        }
    }

    /// Tells why it is not taken, if it listens.
    fn refuse(&self, refusal: Refusal) {
        let _sent = (&self.stream).write(&goodbye(refusal));
        // Bytes that nobody read would have the system reset the connection, and the client lose
        // what it was told.
        let mut part = [0; GREETING_BYTES_MAX];
        for _ in 0..GUEST_PARTS_MAX {
            if !matches!((&self.stream).read(&mut part), Ok(1..)) {
                break;
            }
        }
        let _shut = self.stream.shutdown(Shutdown::Both);
    }
}

/// The frame that says why a link ends.
pub(crate) fn goodbye(refusal: Refusal) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Goodbye, 0, |body| put_refused(body, refusal));
    out
}

/// Tells a client why, if it listens.
pub(crate) fn refuse(stream: &impl Stream, refusal: Refusal) {
    let _sent = send(stream, &goodbye(refusal));
    stream.shut();
}
