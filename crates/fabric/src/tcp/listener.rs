//! A node's TCP door: one thread accepts, one per link serves.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::socket::Socket;
use crate::alarm::Alarm;
use crate::link::{LINKS_MAX, Listener};
use crate::node::{AtomicPath, LinkEnd, Node};
use crate::refusal::{Reason, Refusal};
use crate::stream::{Incoming, OneSided, Responder, Stream, admit, receive_hello, send};
use crate::wire::{Hello, Kind, put_frame};

/// A client has said who it is by then.
const GREETING_DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct TcpDoor {
    address: String,
    shared: Arc<Shared>,
    accepting: Option<Joiner>,
}

struct Shared {
    node: Arc<Node>,
    clock: Arc<dyn Clock>,
    alarm: Alarm,
    stop: AtomicBool,
    serving: AtomicUsize,
    links: Mutex<Vec<Weak<Responder<Socket>>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {} links", self.node, self.serving.load(Ordering::Relaxed))
    }
}

impl TcpDoor {
    pub(super) fn open(node: &Arc<Node>, address: &str, clock: &Arc<dyn Clock>) -> Result<Self> {
        let fail = |source| {
            let what = format!("cannot listen on {address}");
            Error::with_source(ErrorKind::Io, what, source)
        };
        let listener = TcpListener::bind(address).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?.to_string();
        let shared = Arc::new(Shared {
            node: Arc::clone(node),
            clock: Arc::clone(clock),
            alarm: Alarm::new()?,
            stop: AtomicBool::new(false),
            serving: AtomicUsize::new(0),
            links: Mutex::new(Vec::new()),
        });
        let accept = Arc::clone(&shared);
        let body = Box::new(move || accept.accept(&listener));
        let accepting = Some(SystemSpawn.spawn("fabric-accept", body)?);
        Ok(Self { address: bound, shared, accepting })
    }
}

impl Listener for TcpDoor {
    fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for TcpDoor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.alarm.ring();
        if let Some(Err(error)) = self.accepting.take().map(Joiner::join) {
            tracing::error!(%error, "accepting links");
        }
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

    fn greet(&self, socket: Socket) {
        match receive_hello(&socket, &*self.clock, GREETING_DEADLINE) {
            Ok((hello, incoming)) => self.serve(socket, &hello, incoming),
            Err(refusal) => {
                self.node.counters.malformed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%refusal, "a client did not greet");
                refuse(&socket, refusal);
            }
        }
    }

    fn serve(&self, socket: Socket, hello: &Hello, incoming: Incoming) {
        let welcome = match admit(&self.node, hello) {
            Ok(welcome) => welcome,
            Err(refusal) => return refuse(&socket, refusal),
        };
        let life = (hello.client, welcome.epoch);
        let link = Responder::new(socket, life, AtomicPath::Processor, OneSided::Frames);
        let end: Arc<dyn LinkEnd> = Arc::clone(&link) as Arc<dyn LinkEnd>;
        let arrival = match self.node.arrive(hello.client, &end, hello.resumed) {
            Ok(arrival) => arrival,
            Err(refusal) => return refuse(link.stream(), refusal),
        };
        self.remember(&link);
        let mut out = Vec::new();
        put_frame(&mut out, Kind::Welcome, 0, |body| welcome.encode(body));
        // Fenced or shut between the greeting and the arrival: it was not told to close.
        let late = self.node.epoch() != welcome.epoch || self.stop.load(Ordering::SeqCst);
        if !late && send(link.stream(), &out).is_ok() {
            link.run(&self.node, incoming);
        }
        link.stream().shut();
        self.node.depart(hello.client, arrival);
    }

    fn remember(&self, link: &Arc<Responder<Socket>>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }
}

fn refuse(socket: &Socket, refusal: Refusal) {
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Goodbye, 0, |body| {
        crate::wire::put_refused(body, refusal);
    });
    // Best effort: it is told why, if it listens.
    let _sent = send(socket, &out);
    socket.shut();
}
