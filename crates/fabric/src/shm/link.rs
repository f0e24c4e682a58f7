//! The client's end of `shm`: mapped regions, the control page, and a pipe for requests.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the link goes down if the node ends, or if the node sends something malformed.
//! Cost: a one-sided operation needs no lock and no allocation.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use archipelago_base::prefetch::prefetch_value;
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::Shm;
use super::envelope::{self, Envelope};
use super::pipe::{PIPE_BYTES, Pipe};
use super::ring::Side;
use super::watch::{Watch, Watched};
use crate::auth::{ClientGreeting, ClientStep};
use crate::batch::{Attached, Batch, Op, Outcome};
use crate::body::Body;
use crate::ids::{RemoteKey, Rights};
use crate::link::{Call, Connect, Link, LinkStats, Peer, Session};
use crate::memory::{self, Mapping};
use crate::node::{
    Access, CONTROL_BYTES, CONTROL_EPOCH_WORD, CONTROL_HEADER_WORDS, CONTROL_MAGIC,
    CONTROL_MAGIC_WORD, KEYS_MAX, allowed, invalid, key_of,
};
use crate::promise::Promise;
use crate::refusal::{Reason, Refusal};
use crate::stream::{Incoming, Initiator, hello_of, peer_of};
use crate::wire::{Kind, Opened, put_frame};

/// A region that this link has mapped.
#[derive(Debug)]
struct Mapped {
    key: RemoteKey,
    rights: Rights,
    memory: Mapping,
}

pub(super) struct ShmLink {
    number: u32,
    peer: Peer,
    control: Mapping,
    regions: ArcSwap<Vec<Option<Arc<Mapped>>>>,
    core: Arc<Initiator<Pipe>>,
    socket: Arc<OwnedFd>,
    /// Number of the last question on the socket, which carries one question at a time.
    asking: Mutex<u64>,
    batches: AtomicU64,
    operations: AtomicU64,
    watch: Arc<Watch>,
    me: Weak<Self>,
}

impl fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShmLink(node {} in epoch {})", self.peer.node, self.peer.epoch)
    }
}

impl ShmLink {
    pub(super) fn connect(shm: &Shm, to: &Connect) -> Result<Arc<Self>> {
        let (clock, watch) = (&shm.clock, &shm.watch);
        let what = format!("cannot link to the node at {}", to.address);
        let socket = dial(&to.address, to.deadline)?;
        let (peer, [control, pipe]) = greet(shm, &socket, to, &what)?;
        let control = Mapping::adopt(control, CONTROL_BYTES, false)?;
        if control.words()[CONTROL_MAGIC_WORD].load(Ordering::Acquire) != CONTROL_MAGIC {
            return Err(Refusal::new(Reason::Protocol).error(&what));
        }
        let pipe = Arc::new(Mapping::adopt(pipe, PIPE_BYTES, true)?);
        let pipe = Pipe::new(pipe, Side::Client, clock);
        to.session.welcomed();
        let (session, clock) = (Arc::clone(&to.session), Arc::clone(clock));
        let core = Initiator::new(pipe, session, clock, to.deadline, Incoming::new());
        let socket = Arc::new(socket);
        let link = Arc::new_cyclic(|me| Self {
            number: crate::link::number(),
            peer,
            control,
            regions: ArcSwap::default(),
            core,
            socket: Arc::clone(&socket),
            asking: Mutex::new(0),
            batches: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            watch: Arc::clone(watch),
            me: Weak::clone(me),
        });
        let watched: Weak<Self> = Arc::downgrade(&link);
        watch.add(&socket, watched)?;
        Ok(link)
    }

    /// Checks that the link is up and that the node is in its epoch.
    #[inline]
    fn live(&self) -> Result<(), Refusal> {
        if let Some(down) = self.core.down() {
            return Err(down);
        }
        let epoch = self.control.words()[CONTROL_EPOCH_WORD].load(Ordering::Acquire);
        if epoch == self.peer.epoch.0 {
            Ok(())
        } else {
            Err(Refusal::at(Reason::StaleEpoch, epoch))
        }
    }

    #[inline]
    fn execute(
        &self,
        regions: &[Option<Arc<Mapped>>],
        op: Op,
        bytes: &mut [u8],
    ) -> Result<Outcome, Refusal> {
        let region = op.region();
        let known = regions.get(region.index as usize).and_then(Option::as_deref);
        let mapped = known.filter(|_| region.link == self.number).ok_or(Reason::NotAttached)?;
        let word = self.key_word(mapped);
        if word != mapped.key.tag {
            return Err(invalid(word, mapped.key.tag));
        }
        let access = match op {
            Op::Read { offset, .. } => Access::Read { offset, into: bytes },
            Op::Write { offset, .. } => Access::Write { offset, bytes },
            Op::CompareSwap { offset, expect, new, .. } => {
                Access::CompareSwap { offset, expect, new }
            }
            Op::FetchAdd { offset, add, .. } => Access::FetchAdd { offset, add },
        };
        let (need, offset, len) = access.reach();
        allowed(mapped.rights, mapped.memory.bytes() as u64, need, offset, len)?;
        let old = access.perform(mapped.memory.words());
        Ok(match op {
            Op::Read { .. } => Outcome::Read,
            Op::Write { .. } => Outcome::Visible,
            Op::CompareSwap { .. } | Op::FetchAdd { .. } => Outcome::Word(old),
        })
    }

    /// The word of the region's key in the control page.
    #[inline]
    fn key_word(&self, mapped: &Mapped) -> u64 {
        let word = &self.control.words()[CONTROL_HEADER_WORDS + mapped.key.region.0 as usize];
        word.load(Ordering::Acquire)
    }

    /// Notifies the node of the end of this link. The caller must call [`ShmLink::unmap_all`]
    /// first, because the node then assumes that the mappings are gone.
    fn hang_up(&self) {
        // The node may have closed the socket already.
        let _shut = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }

    /// Waits for batches of other threads, and removes all mappings.
    fn unmap_all(&self) {
        let regions = self.regions.swap(Arc::default());
        while Arc::strong_count(&regions) > 1 {
            std::thread::yield_now();
        }
    }

    /// Sends an attachment over the socket, and maps the region.
    fn map(&self, key: &RemoteKey) -> Result<Attached, Refusal> {
        self.live()?;
        key_of(key, self.peer.node, self.peer.epoch)?;
        if key.region.0 as usize >= KEYS_MAX {
            return Err(Reason::UnknownKey.into());
        }
        let (opened, descriptor) = self.ask(key)?;
        // The answer names memory that was not sent or could fault, so the node is not a correct
        // one.
        let bytes = usize::try_from(opened.len).map_err(|_| Reason::Protocol)?;
        let memory = Mapping::adopt(descriptor, bytes, opened.rights.change());
        let memory = memory.map_err(|error| {
            tracing::warn!(%error, "a region was not mapped");
            Refusal::new(Reason::Protocol)
        })?;
        let mapped = Arc::new(Mapped { key: *key, rights: opened.rights, memory });
        let mut index = 0;
        self.regions.rcu(|regions| {
            let mut regions = Vec::clone(regions);
            index = regions.len();
            regions.push(Some(Arc::clone(&mapped)));
            regions
        });
        if let Err(refusal) = self.live() {
            self.unmap_all();
            return Err(refusal);
        }
        Ok(Attached { link: self.number, index: index as u32 })
    }

    fn ask(&self, key: &RemoteKey) -> Result<(Opened, OwnedFd), Refusal> {
        let mut asking = self.asking.lock();
        *asking += 1;
        let mut question = Vec::new();
        put_frame(&mut question, Kind::Attach, *asking, |body| key.encode(body));
        let lost = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::WouldBlock => Refusal::new(Reason::Deadline),
            _ => Refusal::new(Reason::Disconnected),
        };
        envelope::send(&*self.socket, &question, &[]).map_err(lost)?;
        loop {
            let answer: Envelope =
                envelope::receive(&*self.socket).map_err(lost)?.ok_or(Reason::Disconnected)?;
            let frame = answer.frame().map_err(|_| Reason::Protocol)?;
            if frame.kind != Kind::Attached {
                return Err(Reason::Protocol.into());
            }
            // The answer belongs to a question whose deadline has passed.
            if frame.number != *asking {
                continue;
            }
            let opened = Opened::decode(frame.body).map_err(|_| Reason::Protocol)??;
            let descriptor = answer.descriptors.into_iter().next().ok_or(Reason::Protocol)?;
            return Ok((opened, descriptor));
        }
    }
}

/// Exchanges greetings. Returns the node, and the descriptors of its control page and of the pipe.
fn greet(shm: &Shm, socket: &OwnedFd, to: &Connect, what: &str) -> Result<(Peer, [OwnedFd; 2])> {
    let lost = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::WouldBlock => Refusal::new(Reason::Deadline).error(what),
        _ => Error::with_source(ErrorKind::Io, what, source),
    };
    let refused = |refusal: Refusal| shm.report.of_client(&to.address, refusal).error(what);
    let secret = shm.secret.as_ref();
    let (mut greeting, hello) = ClientGreeting::begin(secret, hello_of(to)).map_err(refused)?;
    envelope::send(socket, &hello, &[]).map_err(lost)?;
    loop {
        let message = envelope::receive(socket).map_err(lost)?;
        let message = message.ok_or_else(|| refused(Reason::Disconnected.into()))?;
        let frame = message.frame().map_err(|_| refused(Reason::Protocol.into()))?;
        match greeting.hear(&frame).map_err(refused)? {
            ClientStep::Send(frame) => envelope::send(socket, &frame, &[]).map_err(lost)?,
            ClientStep::Welcomed(welcome) => {
                let descriptors = <[OwnedFd; 2]>::try_from(message.descriptors);
                let descriptors = descriptors.map_err(|_| refused(Reason::Protocol.into()))?;
                return Ok((peer_of(&welcome), descriptors));
            }
        }
    }
}

/// Connects to a path. A question on the socket has the time limit `deadline`.
fn dial(address: &str, deadline: Duration) -> Result<OwnedFd> {
    let fail = |errno: rustix::io::Errno| {
        let source = std::io::Error::from(errno);
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        Error::with_source(kind, format!("cannot connect to {address}"), source)
    };
    let path = SocketAddrUnix::new(address)
        .map_err(|_| Error::invalid(format!("{address}: no path of a Unix socket (too long?)")))?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(fail)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(deadline)).map_err(fail)?;
    set_socket_timeout(&socket, Timeout::Send, Some(deadline)).map_err(fail)?;
    retry_on_intr(|| connect(&socket, &path)).map_err(fail)?;
    Ok(socket)
}

impl Link for ShmLink {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn session(&self) -> &Arc<Session> {
        self.core.session()
    }

    fn attach(&self, key: &RemoteKey) -> Promise<Result<Attached, Refusal>> {
        let Some(me) = self.me.upgrade() else {
            return Promise::ready(Err(Reason::Disconnected.into()));
        };
        let key = *key;
        let failed = |_error| Err(Reason::Exhausted.into());
        Promise::on_thread("fabric-attach", move || me.map(&key), failed)
    }

    fn detach(&self, region: Attached) {
        if region.link != self.number {
            return;
        }
        let mut gone = None;
        self.regions.rcu(|regions| {
            let mut regions = Vec::clone(regions);
            gone = regions.get_mut(region.index as usize).and_then(Option::take);
            regions
        });
        let Some(mapped) = gone else { return };
        let key = mapped.key;
        // Batches of other threads may still use the earlier table.
        while Arc::strong_count(&mapped) > 1 {
            std::thread::yield_now();
        }
        drop(mapped);
        let mut told = Vec::new();
        put_frame(&mut told, Kind::Detach, 0, |body| key.encode(body));
        if envelope::send(self.socket.as_fd(), &told, &[]).is_err() {
            // The node continues to count this process as a holder until the link is down.
            self.close();
        }
    }

    fn is_revoked(&self, region: Attached) -> bool {
        let regions = self.regions.load();
        let known = regions.get(region.index as usize).and_then(Option::as_deref);
        let mapped = known.filter(|_| region.link == self.number);
        mapped.is_some_and(|mapped| self.key_word(mapped) != mapped.key.tag)
    }

    #[inline]
    fn post(&self, mut batch: Batch) -> Promise<Batch> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.operations.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if let Err(refusal) = batch.begin().and_then(|()| self.live()) {
            batch.refuse_all(refusal);
            return Promise::ready(batch);
        }
        let regions = self.regions.load();
        let mut wrote = false;
        for index in 0..batch.len() {
            let (op, bytes) = batch.op_mut(index);
            match self.execute(&regions, op, bytes) {
                Ok(outcome) => {
                    wrote |= outcome == Outcome::Visible;
                    batch.finish(index, outcome);
                }
                Err(refusal) => {
                    batch.refuse_from(index, refusal);
                    break;
                }
            }
        }
        if wrote {
            memory::publish();
        }
        Promise::ready(batch)
    }

    fn completes_at_once(&self) -> bool {
        true
    }

    fn prefetch(&self, region: Attached, offsets: &[u64]) {
        let regions = self.regions.load();
        let known = regions.get(region.index as usize).and_then(Option::as_deref);
        let Some(mapped) = known.filter(|_| region.link == self.number) else { return };
        let words = mapped.memory.words();
        for offset in offsets {
            if let Some(word) = words.get(*offset as usize / memory::WORD_BYTES) {
                prefetch_value(word);
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
        self.live().err()
    }

    fn close(&self) {
        self.core.close();
        self.unmap_all();
        self.hang_up();
    }

    fn stats(&self) -> LinkStats {
        LinkStats {
            batches: self.batches.load(Ordering::Relaxed),
            operations: self.operations.load(Ordering::Relaxed),
            ..self.core.stats()
        }
    }
}

impl Watched for ShmLink {
    fn ended(&self) {
        self.core.fail(Reason::Disconnected.into());
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.core.close();
        self.unmap_all();
        self.hang_up();
        self.watch.stir();
    }
}
