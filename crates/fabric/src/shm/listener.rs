//! The node's end of `shm`. One thread accepts clients, passes descriptors and notices clients that
//! end. Each link has its own thread, which answers requests and sleeps on the link's pipe.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_base::clock::Clock;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::wire::Malformed;
use archipelago_base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, fchmod, unlink};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use super::Shm;
use super::envelope::{self, Envelope};
use super::pipe::{PIPE_BYTES, Pipe};
use super::ring::Side;
use crate::alarm::Alarm;
use crate::auth::{Admission, NodeGreeting, NodeStep, RefusalReport, Secret};
use crate::ids::{RegionId, RemoteKey};
use crate::link::{LINKS_MAX, Listener};
use crate::memory::Mapping;
use crate::node::{AtomicPath, Holder, LinkEnd, Node};
use crate::refusal::{Reason, Refusal};
use crate::stream::{Greeted, Incoming, OneSided, Responder, Stream, admit};
use crate::wire::{Frame, Hello, Kind, Opened, Welcome, decode_key, put_frame, put_refused};

#[derive(Debug)]
pub(super) struct ShmNodeListener {
    address: String,
    shared: Arc<ListenerState>,
    thread: Option<Joiner>,
}

#[derive(Debug)]
struct ListenerState {
    node: Arc<Node>,
    clock: Arc<dyn Clock>,
    secret: Option<Secret>,
    report: RefusalReport,
    alarm: Alarm,
    stop: AtomicBool,
}

/// A client's socket and the resources that it has.
struct Guest {
    socket: OwnedFd,
    pid: u32,
    /// The greeting of a client that must prove that it knows the secret.
    challenged: Option<Box<NodeGreeting>>,
    link: Option<Welcomed>,
}

struct Welcomed {
    responder: Arc<Responder<Pipe>>,
    holder: Holder,
    held: Vec<(RegionId, u64)>,
}

impl Guest {
    fn new(socket: OwnedFd, pid: u32) -> Self {
        Self { socket, pid, challenged: None, link: None }
    }
}

impl ShmNodeListener {
    pub(super) fn open(node: &Arc<Node>, address: &str, shm: &Shm) -> Result<Self> {
        let socket = listen_at(address)?;
        let shared = Arc::new(ListenerState {
            node: Arc::clone(node),
            clock: Arc::clone(&shm.clock),
            secret: shm.secret.clone(),
            report: shm.report.clone(),
            alarm: Alarm::new()?,
            stop: AtomicBool::new(false),
        });
        let serve = Arc::clone(&shared);
        let body = Box::new(move || serve.run(&socket));
        let thread = Some(SystemSpawn.spawn("fabric-shm", body)?);
        Ok(Self { address: address.to_owned(), shared, thread })
    }
}

/// Binds to a path. The call replaces the socket of a killed node, but not that of a living one.
/// Only the owner of the socket may connect, because a client gets memory of this process. The mode
/// is set before the socket has a name, and the umask can only remove bits.
fn listen_at(address: &str) -> Result<OwnedFd> {
    let fail = |errno: Errno| {
        let source = io::Error::from(errno);
        Error::with_source(ErrorKind::Io, format!("cannot listen on {address}"), source)
    };
    let path = SocketAddrUnix::new(address)
        .map_err(|_| Error::invalid(format!("{address}: no path of a Unix socket (too long?)")))?;
    let make = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = socket.map_err(fail)?;
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        Ok(socket)
    };
    let socket = make()?;
    match bind(&socket, &path) {
        Err(Errno::ADDRINUSE) => {
            match connect(make()?, &path) {
                Err(Errno::CONNREFUSED) => unlink(address).map_err(fail)?,
                _ => return Err(Error::busy(format!("{address}: another node listens there"))),
            }
            bind(&socket, &path).map_err(fail)?;
        }
        other => other.map_err(fail)?,
    }
    listen(&socket, 128).map_err(fail)?;
    Ok(socket)
}

impl Listener for ShmNodeListener {
    fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for ShmNodeListener {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.alarm.ring();
        if let Some(Err(error)) = self.thread.take().map(Joiner::join) {
            tracing::error!(%error, "serving shared memory");
        }
        // The socket may be removed already.
        let _removed = unlink(&self.address);
    }
}

impl ListenerState {
    fn run(&self, listener: &OwnedFd) {
        let mut guests: Vec<Guest> = Vec::new();
        while !self.stop.load(Ordering::SeqCst) {
            let ready = self.wait(listener, &guests);
            for at in (0..guests.len()).rev().filter(|&at| ready[at]) {
                if !self.serve(&mut guests[at]) {
                    self.end(guests.swap_remove(at));
                }
            }
            self.accept(listener, &mut guests);
        }
        for guest in guests {
            self.end(guest);
        }
    }

    /// The clients that sent a message or ended.
    fn wait(&self, listener: &OwnedFd, guests: &[Guest]) -> Vec<bool> {
        let alarm = PollFd::from_borrowed_fd(self.alarm.fd(), PollFlags::IN);
        let fixed = [alarm, PollFd::new(listener, PollFlags::IN)];
        let sockets = guests.iter().map(|guest| PollFd::new(&guest.socket, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = fixed.into_iter().chain(sockets).collect();
        let _ready = poll(&mut fds, None);
        if !fds[0].revents().is_empty() {
            self.alarm.take();
        }
        fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect()
    }

    fn accept(&self, listener: &OwnedFd, guests: &mut Vec<Guest>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(listener, flags) else { return };
        let pid = socket_peercred(&socket).map(|of| of.pid.as_raw_nonzero().get().cast_unsigned());
        match pid {
            Ok(pid) if guests.len() < LINKS_MAX => guests.push(Guest::new(socket, pid)),
            Ok(_) => refuse(&socket, Refusal::at(Reason::Exhausted, LINKS_MAX as u64)),
            Err(errno) => tracing::warn!(%errno, "a link was not taken"),
        }
    }

    /// Reads one message of a client. Returns whether the client stays.
    fn serve(&self, guest: &mut Guest) -> bool {
        let envelope = match envelope::receive(&guest.socket) {
            Ok(Some(envelope)) => envelope,
            Ok(None) => return false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return self.malformed(guest, Malformed("a message that is too long"));
            }
            Err(_) => return false,
        };
        match self.answer(guest, &envelope) {
            Ok(stays) => stays,
            Err(malformed) => self.malformed(guest, malformed),
        }
    }

    fn malformed(&self, guest: &Guest, malformed: Malformed) -> bool {
        self.node.counters.malformed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(pid = guest.pid, %malformed, "a client broke the protocol: its link is closed");
        refuse(&guest.socket, Reason::Protocol.into());
        false
    }

    fn answer(&self, guest: &mut Guest, envelope: &Envelope) -> Result<bool, Malformed> {
        let frame = envelope.frame()?;
        match (frame.kind, &mut guest.link) {
            (Kind::Hello | Kind::Proof, None) => Ok(self.greet(guest, &frame)),
            (Kind::Attach, Some(link)) => {
                let key = decode_key(frame.body)?;
                let sent = self.attach(&guest.socket, link, frame.number, &key);
                Ok(sent.is_ok())
            }
            (Kind::Detach, Some(link)) => {
                let key = decode_key(frame.body)?;
                let known = (key.region, key.tag);
                if let Some(at) = link.held.iter().position(|held| *held == known) {
                    link.held.swap_remove(at);
                    self.node.drop_holder(link.holder, key.region, key.tag);
                }
                Ok(true)
            }
            _ => Err(Malformed("a frame that a client does not send here")),
        }
    }

    /// Decides about a frame of a greeting, and answers it. Returns whether the client stays.
    fn greet(&self, guest: &mut Guest, frame: &Frame<'_>) -> bool {
        let step = match (guest.challenged.take(), frame.kind) {
            (Some(greeting), _) => greeting.check(frame).map(NodeStep::Admit),
            (None, Kind::Hello) => {
                let (id, epoch) = (self.node.id(), self.node.epoch());
                NodeGreeting::begin(self.secret.as_ref(), frame.body, id, epoch)
            }
            (None, _) => Err(Reason::Protocol.into()),
        };
        match step {
            Ok(NodeStep::Challenge(greeting, challenge)) => {
                guest.challenged = Some(greeting);
                envelope::send(&guest.socket, &challenge, &[]).is_ok()
            }
            Ok(NodeStep::Admit(admission)) => self.let_in(guest, admission),
            Err(refusal) => {
                self.count_refusal(guest, refusal);
                refuse(&guest.socket, refusal);
                false
            }
        }
    }

    /// Counts and logs a client that cannot prove that it belongs to the cluster, or that does not
    /// greet.
    fn count_refusal(&self, guest: &Guest, refusal: Refusal) {
        if refusal.reason.is_authentication() {
            self.node.counters.unauthenticated.fetch_add(1, Ordering::Relaxed);
            let what = format!("the client with process id {} was refused", guest.pid);
            self.report.log(&what, refusal);
        } else {
            self.node.counters.malformed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(pid = guest.pid, %refusal, "a client did not greet");
        }
    }

    /// Welcomes a client that belongs to the cluster.
    fn let_in(&self, guest: &mut Guest, admission: Admission) -> bool {
        let hello = admission.hello;
        match admit(&self.node, admission) {
            Ok(welcome) => self.welcome(guest, hello, &welcome),
            Err(refusal) => {
                refuse(&guest.socket, refusal);
                false
            }
        }
    }

    /// Answers a greeting with the control page and a pipe for requests, and starts its thread.
    fn welcome(&self, guest: &mut Guest, hello: Hello, welcome: &Welcome) -> bool {
        let made = (|| {
            let pipe = Arc::new(Mapping::create("archipelago-pipe", PIPE_BYTES)?);
            Ok::<_, Error>((self.node.control().share(false)?, pipe))
        })();
        let (control, memory) = match made {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(%error, "a link was not taken");
                refuse(&guest.socket, Reason::Exhausted.into());
                return false;
            }
        };
        let pipe = Pipe::new(Arc::clone(&memory), Side::Node, &self.clock);
        let responder = Responder::new(
            pipe,
            Greeted::new(&hello, welcome),
            AtomicPath::Processor,
            OneSided::Elsewhere,
        );
        let end: Arc<dyn LinkEnd> = Arc::clone(&responder) as Arc<dyn LinkEnd>;
        let arrival = match self.node.arrive(hello.client, &end, hello.resumed) {
            Ok(arrival) => arrival,
            Err(refusal) => {
                refuse(&guest.socket, refusal);
                return false;
            }
        };
        responder.arrived(arrival);
        let (node, serving) = (Arc::clone(&self.node), Arc::clone(&responder));
        let body = Box::new(move || {
            serving.run(&node, Incoming::new());
            node.depart(hello.client, arrival);
        });
        if let Err(error) = SystemSpawn.spawn("fabric-serve", body) {
            tracing::warn!(%error, "a link was not taken");
            self.node.depart(hello.client, arrival);
            refuse(&guest.socket, Reason::Exhausted.into());
            return false;
        }
        let mut out = Vec::new();
        put_frame(&mut out, Kind::Welcome, 0, |body| welcome.encode(body));
        let sent = envelope::send(&guest.socket, &out, &[control.as_fd(), memory.file()]);
        let holder = Holder { client: hello.client, pid: guest.pid };
        guest.link = Some(Welcomed { responder, holder, held: Vec::new() });
        sent.is_ok()
    }

    fn attach(
        &self,
        socket: &OwnedFd,
        link: &mut Welcomed,
        number: u64,
        key: &RemoteKey,
    ) -> io::Result<()> {
        let opened = self.node.attach(key, AtomicPath::Processor);
        let shared = opened.and_then(|(len, rights, memory)| {
            let file = memory.share(rights.change()).map_err(|error| {
                tracing::warn!(%error, "a region was not shared");
                Refusal::new(Reason::Exhausted)
            })?;
            Ok((Opened { len, rights }, file))
        });
        let (opened, file) = match shared {
            Ok((opened, file)) => (Ok(opened), Some(file)),
            Err(refusal) => {
                self.node.counters.refused.fetch_add(1, Ordering::Relaxed);
                (Err(refusal), None)
            }
        };
        if file.is_some() {
            // The holder is recorded before the descriptor is sent, because the process can map the
            // memory from then on.
            self.node.add_holder(link.holder, key.region, key.tag);
            link.held.push((key.region, key.tag));
        }
        let mut out = Vec::new();
        put_frame(&mut out, Kind::Attached, number, |body| Opened::encode(&opened, body));
        let fds: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        envelope::send(socket, &out, &fds)
    }

    /// Removes a client whose process or link has ended. Its mappings do not exist any more.
    fn end(&self, guest: Guest) {
        let Some(link) = guest.link else { return };
        link.responder.stream().shut();
        for (region, tag) in link.held {
            self.node.drop_holder(link.holder, region, tag);
        }
    }
}

fn refuse(socket: &OwnedFd, refusal: Refusal) {
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Goodbye, 0, |body| put_refused(body, refusal));
    // The goodbye is best effort.
    let _sent = envelope::send(socket, &out, &[]);
}
