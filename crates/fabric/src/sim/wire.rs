//! A link of the simulation: both ends in one value. Only events of its own host access an end.
//!
//! Invariants:
//! 1. Every operation in flight is in `pending` with a deadline. One event of the client watches
//!    the earliest deadline.
//! 2. Once `down` is set, `pending` is empty and stays empty.
//! 3. An event of a crashed end never runs, because it belongs to that life of the host.
//! 4. A batch that comes back late has no entry in `pending` any more, and is dropped.
//! 5. The card executes one batch of a link at a time, in the order of the posts.
//! 6. The reservations of the requests in `pending` are at most [`RESERVED_BYTES_MAX`], and so are
//!    those at the node's end.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::simulation::Life;
use parking_lot::Mutex;

use super::Runs;
use super::asking::Asked;
use super::lane::{Lane, Way};
use super::network::Network;
use super::onesided::Flight;
use crate::batch::{Attached, Batch};
use crate::body::Body;
use crate::ids::{RegionId, RemoteKey};
use crate::link::{Call, IN_FLIGHT_MAX, Link, LinkStats, Peer, Session};
use crate::node::{
    Answer, AtomicPath, LinkBudget, LinkEnd, Node, Question, RESERVED_BYTES_MAX, key_of,
};
use crate::promise::{Promise, Slot};
use crate::refusal::{Reason, Refusal};

/// Number of an operation in flight. The session numbers requests, and the link all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Number {
    Own(u64),
    Request(u64),
}

pub(super) enum What {
    Batch(Arc<Flight>),
    Request(Arc<Asked>),
    Attach(Arc<Slot<Result<Attached, Refusal>>>),
}

impl What {
    fn reserved_bytes(&self) -> usize {
        match self {
            Self::Request(asked) => asked.reserved_bytes,
            Self::Batch(_) | Self::Attach(_) => 0,
        }
    }
}

struct Waiting {
    deadline_ns: u64,
    what: What,
}

struct Client {
    down: Option<Refusal>,
    next: u64,
    pending: BTreeMap<Number, Waiting>,
    /// Bytes that the requests in `pending` reserve.
    reserved_bytes: usize,
    /// Planned time of the next check of deadlines.
    watch_ns: u64,
    attached: Vec<Option<(RegionId, u64)>>,
}

impl Client {
    fn remove(&mut self, number: Number) -> Option<What> {
        let what = self.pending.remove(&number)?.what;
        self.reserved_bytes -= what.reserved_bytes();
        Some(what)
    }
}

#[derive(Default)]
struct Target {
    arrival: Option<u64>,
    closed: bool,
    /// Batches that wait until the card has executed the earlier ones of the link.
    waiting: VecDeque<(Number, Arc<Flight>)>,
    executing: bool,
}

pub(super) struct Wire {
    me: Weak<Self>,
    pub(super) network: Arc<Network>,
    number: u32,
    /// The client's host, in the life in which it connected.
    pub(super) near: Life,
    /// The node's host, in the life that it connected to.
    pub(super) far: Life,
    pub(super) listener: u64,
    pub(super) node: Arc<Node>,
    pub(super) epoch: Epoch,
    pub(super) path: AtomicPath,
    pub(super) session: Arc<Session>,
    deadline: Duration,
    client: Mutex<Client>,
    target: Mutex<Target>,
    /// Reservations at the node's end.
    pub(super) budget: Arc<LinkBudget>,
    there: Lane,
    back: Lane,
    batches: AtomicU64,
    operations: AtomicU64,
    packets: AtomicU64,
    sent_bytes: AtomicU64,
}

/// The parts from which a link is made.
pub(super) struct Parts {
    pub(super) network: Arc<Network>,
    pub(super) near: Life,
    pub(super) far: Life,
    pub(super) listener: u64,
    pub(super) node: Arc<Node>,
    pub(super) path: AtomicPath,
    pub(super) session: Arc<Session>,
    pub(super) deadline: Duration,
}

impl Wire {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts { network, near, far, listener, node, path, session, deadline } = parts;
        let client = Client {
            down: None,
            next: 0,
            pending: BTreeMap::new(),
            reserved_bytes: 0,
            watch_ns: u64::MAX,
            attached: Vec::new(),
        };
        let (number, epoch) = (network.next_wire(), node.epoch());
        let wire = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            network,
            number,
            near,
            far,
            listener,
            node,
            epoch,
            path,
            session,
            deadline,
            client: Mutex::new(client),
            target: Mutex::new(Target::default()),
            budget: Arc::default(),
            there: Lane::new(near, far),
            back: Lane::new(far, near),
            batches: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        });
        wire.network.add_wire(&wire);
        wire
    }

    pub(super) fn lane(&self, way: Way) -> &Lane {
        match way {
            Way::There => &self.there,
            Way::Back => &self.back,
        }
    }

    pub(super) fn promise<T: Send + 'static>(&self, slot: Arc<Slot<T>>) -> Promise<T> {
        Promise::pending(slot, Arc::new(Runs(self.network.scheduler.clone())))
    }

    pub(super) fn count_packet(&self, bytes: u64) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_batch(&self, operations: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.operations.fetch_add(operations as u64, Ordering::Relaxed);
    }

    // The methods below belong to the client's end.

    pub(super) fn down(&self) -> Option<Refusal> {
        self.client.lock().down
    }

    pub(super) fn next_number(&self) -> Number {
        Number::Own(self.next_own())
    }

    /// The next number of this link.
    pub(super) fn next_own(&self) -> u64 {
        let mut client = self.client.lock();
        client.next += 1;
        client.next
    }

    /// Puts an operation in flight.
    pub(super) fn expect(
        self: &Arc<Self>,
        number: Number,
        deadline: Option<Duration>,
        what: What,
    ) -> Result<(), Refusal> {
        let now_ns = self.network.scheduler.now_ns();
        let deadline = deadline.unwrap_or(self.deadline);
        let deadline_ns =
            now_ns.saturating_add(deadline.as_nanos().min(u128::from(u64::MAX)) as u64);
        let mut client = self.client.lock();
        if let Some(down) = client.down {
            return Err(down);
        }
        if client.pending.len() >= IN_FLIGHT_MAX || client.pending.contains_key(&number) {
            return Err(Refusal::at(Reason::Full, IN_FLIGHT_MAX as u64));
        }
        let reserved_bytes = client.reserved_bytes + what.reserved_bytes();
        if reserved_bytes > RESERVED_BYTES_MAX {
            return Err(Refusal::at(Reason::Full, RESERVED_BYTES_MAX as u64));
        }
        client.reserved_bytes = reserved_bytes;
        client.pending.insert(number, Waiting { deadline_ns, what });
        let watch = deadline_ns < client.watch_ns;
        if watch {
            client.watch_ns = deadline_ns;
        }
        drop(client);
        if watch {
            self.watch(deadline_ns);
        }
        Ok(())
    }

    fn watch(self: &Arc<Self>, at_ns: u64) {
        // The event does not keep a link whose handle was dropped.
        let wire = Arc::downgrade(self);
        let look = move || {
            if let Some(wire) = wire.upgrade() {
                wire.expire(at_ns);
            }
        };
        self.network.scheduler.at(at_ns, self.near, look);
    }

    /// Completes operations after their deadline.
    fn expire(self: &Arc<Self>, planned_ns: u64) {
        let now_ns = self.network.scheduler.now_ns();
        let (late, next_ns) = {
            let mut client = self.client.lock();
            if client.watch_ns != planned_ns {
                // An event for an earlier deadline was planned meanwhile.
                return;
            }
            let is_late = |waiting: &Waiting| waiting.deadline_ns <= now_ns;
            let numbers = client.pending.iter().filter(|(_, waiting)| is_late(waiting));
            let numbers: Vec<Number> = numbers.map(|(number, _)| *number).collect();
            let late: Vec<_> =
                numbers.into_iter().filter_map(|number| client.remove(number)).collect();
            let next_ns = client.pending.values().map(|waiting| waiting.deadline_ns).min();
            client.watch_ns = next_ns.unwrap_or(u64::MAX);
            (late, next_ns)
        };
        for what in late {
            self.refuse(&what, Reason::Deadline.into());
        }
        if let Some(at_ns) = next_ns {
            self.watch(at_ns);
        }
    }

    /// Removes and returns the operation `number`, if it is in flight.
    pub(super) fn landed(&self, number: Number) -> Option<What> {
        self.client.lock().remove(number)
    }

    /// The request `number`, if it is in flight.
    pub(super) fn asked(&self, number: Number) -> Option<Arc<Asked>> {
        match self.client.lock().pending.get(&number) {
            Some(Waiting { what: What::Request(asked), .. }) => Some(Arc::clone(asked)),
            _ => None,
        }
    }

    fn refuse(&self, what: &What, refusal: Refusal) {
        match what {
            What::Batch(flight) => flight.refuse(refusal),
            What::Request(asked) => asked.complete(&self.session, Err(refusal)),
            What::Attach(slot) => slot.fill(Err(refusal)),
        }
    }

    /// Takes the client's end down, and notifies the node's end.
    pub(super) fn fail(self: &Arc<Self>, why: Refusal) {
        let pending = {
            let mut client = self.client.lock();
            if client.down.is_some() {
                return;
            }
            client.down = Some(why);
            client.reserved_bytes = 0;
            std::mem::take(&mut client.pending)
        };
        let (number, node) = (self.session.client(), self.node.id());
        let note = || format!("the link of client {number} to node {node} is down: {why}");
        self.network.scheduler.note(note);
        for waiting in pending.into_values() {
            self.refuse(&waiting.what, Reason::Disconnected.into());
        }
        let notice_ns = self.network.transport().notice_ns;
        let (wire, at_ns) = (Arc::clone(self), self.network.scheduler.now_ns() + notice_ns);
        self.network.scheduler.at(at_ns, self.far, move || wire.depart());
    }

    /// Takes both ends down after the connection broke.
    pub(super) fn broken(self: &Arc<Self>) {
        if self.network.scheduler.lives(self.near) {
            self.fail(Reason::Disconnected.into());
        }
    }

    /// Region and tag of each operation of a batch, or the first operation without an attachment.
    fn keys(&self, batch: &Batch) -> Result<Vec<(RegionId, u64)>, (usize, Refusal)> {
        let client = self.client.lock();
        let mut keys = Vec::with_capacity(batch.len());
        for (index, op) in batch.ops().iter().enumerate() {
            let region = op.region();
            let known = client.attached.get(region.index as usize).copied().flatten();
            match known.filter(|_| region.link == self.number) {
                Some(key) => keys.push(key),
                None => return Err((index, Reason::NotAttached.into())),
            }
        }
        Ok(keys)
    }

    fn attach_over(self: &Arc<Self>, key: RemoteKey) -> Promise<Result<Attached, Refusal>> {
        let (slot, number) = (Slot::new(), self.next_number());
        if let Err(refusal) = self.expect(number, None, What::Attach(Arc::clone(&slot))) {
            return Promise::ready(Err(refusal));
        }
        self.count_packet(0);
        let asked = move |wire: &Arc<Self>| {
            if !wire.serves() {
                return;
            }
            let opened = wire.node.attach(&key, wire.path).map(|_| (key.region, key.tag));
            if opened.is_err() {
                wire.node.counters.refused.fetch_add(1, Ordering::Relaxed);
            }
            let now_ps = wire.network.now_ps();
            wire.send(Way::Back, now_ps, move |wire| wire.attached(number, opened));
        };
        self.send(Way::There, self.network.now_ps(), asked);
        self.promise(slot)
    }

    fn attached(&self, number: Number, opened: Result<(RegionId, u64), Refusal>) {
        let Some(What::Attach(slot)) = self.landed(number) else { return };
        slot.fill(opened.map(|known| {
            let mut client = self.client.lock();
            client.attached.push(Some(known));
            Attached { link: self.number, index: client.attached.len() as u32 - 1 }
        }));
    }

    // The methods below belong to the node's end.

    /// Number of the client's arrival; 0 before it.
    pub(super) fn arrival(&self) -> u64 {
        self.target.lock().arrival.unwrap_or(0)
    }

    /// Records the client's arrival at the node.
    pub(super) fn arrived(&self, arrival: u64) {
        self.target.lock().arrival = Some(arrival);
    }

    /// Whether the node's end is up in the epoch of the link. If the epoch is over, the end closes.
    pub(super) fn serves(&self) -> bool {
        if self.target.lock().closed {
            return false;
        }
        let epoch = self.node.epoch();
        if epoch != self.epoch {
            LinkEnd::close(self, Refusal::at(Reason::StaleEpoch, epoch.0));
            return false;
        }
        true
    }

    /// Queues a batch at the card. Returns it if the card can execute it now.
    pub(super) fn queue(&self, number: Number, flight: Arc<Flight>) -> Option<Arc<Flight>> {
        let mut target = self.target.lock();
        if std::mem::replace(&mut target.executing, true) {
            target.waiting.push_back((number, flight));
            return None;
        }
        Some(flight)
    }

    /// Removes the executed batch, and returns the next one.
    pub(super) fn unqueue(&self) -> Option<(Number, Arc<Flight>)> {
        let mut target = self.target.lock();
        let next = target.waiting.pop_front();
        target.executing = next.is_some();
        next
    }

    /// Records that the client has ended.
    pub(super) fn depart(&self) {
        let arrival = {
            let mut target = self.target.lock();
            target.closed = true;
            target.arrival.take()
        };
        if let Some(arrival) = arrival {
            self.node.depart(self.session.client(), arrival);
        }
    }
}

impl LinkEnd for Wire {
    fn answer(&self, question: Question, answer: &Answer) {
        if let Some(me) = self.me.upgrade()
            && !self.target.lock().closed
        {
            me.send_answer(question, answer);
        }
    }

    fn close(&self, refusal: Refusal) {
        if self.target.lock().closed {
            return;
        }
        self.depart();
        if let Some(me) = self.me.upgrade()
            && self.network.scheduler.lives(self.far)
        {
            me.send(Way::Back, self.network.now_ps(), move |wire| wire.fail(refusal));
        }
    }
}

/// The client's handle, whose drop ends the link.
pub(super) struct SimLink(pub(super) Arc<Wire>);

impl fmt::Debug for SimLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimLink(node {} in epoch {})", self.0.node.id(), self.0.epoch)
    }
}

impl Link for SimLink {
    fn peer(&self) -> Peer {
        Peer { node: self.0.node.id(), epoch: self.0.epoch }
    }

    fn session(&self) -> &Arc<Session> {
        &self.0.session
    }

    fn attach(&self, key: &RemoteKey) -> Promise<Result<Attached, Refusal>> {
        match key_of(key, self.0.node.id(), self.0.epoch) {
            Err(refusal) => Promise::ready(Err(refusal)),
            Ok(()) => self.0.attach_over(*key),
        }
    }

    fn detach(&self, region: Attached) {
        if region.link == self.0.number
            && let Some(place) = self.0.client.lock().attached.get_mut(region.index as usize)
        {
            *place = None;
        }
    }

    fn post(&self, mut batch: Batch) -> Promise<Batch> {
        if let Err(refusal) = batch.begin().and_then(|()| self.0.down().map_or(Ok(()), Err)) {
            batch.refuse_all(refusal);
            return Promise::ready(batch);
        }
        match self.0.keys(&batch) {
            Ok(keys) if self.0.network.shares_memory() => self.0.execute_mapped(batch, keys),
            Ok(keys) => self.0.post(batch, keys),
            Err((index, refusal)) => {
                batch.refuse_all(Reason::Skipped.into());
                batch.finish(index, crate::batch::Outcome::Refused(refusal));
                Promise::ready(batch)
            }
        }
    }

    fn completes_at_once(&self) -> bool {
        self.0.network.shares_memory()
    }

    fn request(&self, call: Call<'_>) -> Promise<Result<Body, Refusal>> {
        self.0.request(call)
    }

    fn flush(&self) {}

    fn closed(&self) -> Option<Refusal> {
        self.0.down()
    }

    fn close(&self) {
        let up = self.0.down().is_none();
        self.0.fail(Reason::Disconnected.into());
        if up && self.0.network.scheduler.lives(self.0.near) {
            let now_ps = self.0.network.now_ps();
            self.0.send(Way::There, now_ps, |wire| wire.depart());
        }
    }

    fn stats(&self) -> LinkStats {
        LinkStats {
            batches: self.0.batches.load(Ordering::Relaxed),
            operations: self.0.operations.load(Ordering::Relaxed),
            packets: self.0.packets.load(Ordering::Relaxed),
            sent_bytes: self.0.sent_bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        self.close();
    }
}
