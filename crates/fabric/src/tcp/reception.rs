//! What doors behind a TCP socket share: one thread accepts, one per link greets and then serves as the
//! provider does.
//!
//! Owned by a provider's listener, which ends it in two steps: [`Reception::end`] (nobody is taken any more),
//! then [`Reception::close_links`]. A client that does not greet, or breaks the protocol at it, is told why,
//! counted as malformed, and costs nothing else.

use std::fmt;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
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
use crate::link::LINKS_MAX;
use crate::node::{LinkEnd as _, Node};
use crate::refusal::{Reason, Refusal};
use crate::stream::{Incoming, Responder, Stream, admit, receive_hello, send};
use crate::wire::{Hello, Kind, Welcome, put_frame, put_refused};

/// A client has said who it is by then.
pub(crate) const GREETING_DEADLINE: Duration = Duration::from_secs(5);

/// Serves a client that was admitted, on a thread of its own, until its link ends.
pub(crate) type Serve = dyn Fn(Socket, &Hello, &Welcome, Incoming) + Send + Sync;

/// Binds a socket, and says where.
pub(crate) fn listen(
    address: impl ToSocketAddrs + fmt::Display,
) -> Result<(TcpListener, SocketAddr)> {
    let listen = || -> std::io::Result<_> {
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
    links: Mutex<Vec<Weak<Responder<S>>>>,
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
        while !self.is_ending() {
            let mut fds = [
                PollFd::new(listener, PollFlags::IN),
                PollFd::from_borrowed_fd(self.alarm.fd(), PollFlags::IN),
            ];
            let _ready = poll(&mut fds, None);
            let Ok((stream, _)) = listener.accept() else { continue };
            match Socket::new(stream) {
                Ok(socket) if self.serving.load(Ordering::SeqCst) < LINKS_MAX => {
                    self.start(socket, serve);
                }
                Ok(socket) => refuse(&socket, Refusal::at(Reason::Exhausted, LINKS_MAX as u64)),
                Err(error) => tracing::warn!(%error, "a link was not taken"),
            }
        }
    }

    fn start(self: &Arc<Self>, socket: Socket, serve: &Arc<Serve>) {
        let (me, serve) = (Arc::clone(self), Arc::clone(serve));
        self.serving.fetch_add(1, Ordering::SeqCst);
        let body = Box::new(move || {
            me.greet(socket, &*serve);
            me.serving.fetch_sub(1, Ordering::SeqCst);
        });
        if let Err(error) = SystemSpawn.spawn("fabric-serve", body) {
            self.serving.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!(%error, "a link was not taken");
        }
    }

    fn greet(&self, socket: Socket, serve: &Serve) {
        match receive_hello(&socket, &*self.clock, GREETING_DEADLINE) {
            Ok((hello, incoming)) => match admit(&self.node, &hello) {
                Ok(welcome) => serve(socket, &hello, &welcome, incoming),
                Err(refusal) => refuse(&socket, refusal),
            },
            Err(refusal) => {
                self.malformed(refusal);
                refuse(&socket, refusal);
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

    /// Keeps a link, to close it at the end.
    pub(crate) fn remember(&self, link: &Arc<Responder<S>>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
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
        for link in self.links.lock().drain(..).filter_map(|link| link.upgrade()) {
            link.close(Reason::Disconnected.into());
        }
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
