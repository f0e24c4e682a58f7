//! One-sided operations of a link: batches in order, with `fi_read`, `fi_write` and `fi_atomic`.
//!
//! A post checks each operation against the node's answer about its region, queues the batch, and
//! posts the operations that may leave. The rules are:
//!
//! 1. Pieces leave in the order of the queue. Several are in flight only if the provider keeps
//!    their order ([`super::order`]).
//! 2. Their bytes use staging memory of the endpoint. Therefore no network writes to a batch that
//!    its caller got back at its deadline.
//! 3. If libfabric asks to be called again, nothing leaves until everything in flight has
//!    completed. libfabric may be connecting again after a failure that it has not reported yet.
//! 4. A failure stops the queue. When nothing is in flight any more, the link asks the node about
//!    the key of the first failed operation. A refusal of the node becomes the operation's. If the
//!    key is valid, the outcome is unknown and the link goes down. After a refusal the endpoint is
//!    replaced, because a provider ends the connection of a refused operation, and may notice that
//!    late.
//!
//! Invariants:
//! 1. `pieces` are the pieces in flight, in the order of their places in the staging memory.
//! 2. Nothing is posted while a batch has failed.
//! 3. The lock of `state` is not held during a sleep or a question to the node.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the link goes down, and everything in flight completes as disconnected.
//! Cost of an operation: a copy to or from staging memory, one call, one check of the completions,
//! and a sleep if it takes long.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::Clock;
use archipelago_base::spawn::{Spawn, SystemSpawn};
use parking_lot::{Mutex, MutexGuard};

use super::control::Control;
use super::ffi::{Code, Completion, Domain, End, RemoteAddress};
use super::flight::{Flight, Known, Next, Over, PIECE_BYTES};
use super::messages::Messages;
use super::order::{Flying, Order, Ring, Sort};
use crate::batch::{Batch, Op};
use crate::completion_leader::{CompletionLeader, Receive};
use crate::driver::Driver;
use crate::ids::RemoteKey;
use crate::link::IN_FLIGHT_MAX;
use crate::memory::{self, Mapping};
use crate::promise::Promise;
use crate::refusal::{Reason, Refusal};
use crate::stream::Initiator;

/// Limit of the pieces in flight.
const TOKENS: u32 = 128;
/// Limit of the bytes in flight.
const STAGING_BYTES: u64 = 16 * PIECE_BYTES;
/// Number of polls of the leader before it sleeps.
const LOOKS: u32 = 8;
/// Longest interval in which the leader checks deadlines.
const TICK: Duration = Duration::from_millis(20);
/// Sleep before libfabric is called again after it asked for that. No descriptor reports the right
/// moment.
const AGAIN: Duration = Duration::from_millis(1);

/// A piece of an operation that is in flight.
#[derive(Debug)]
struct Piece {
    token: u32,
    flight: u64,
    index: usize,
    sort: Sort,
    /// Its place within the operation and within the staging memory.
    from: u64,
    len: u64,
    at: u64,
    done: bool,
}

#[derive(Debug)]
struct EngineState {
    end: Arc<End>,
    /// Whether the endpoint is being replaced.
    blocked: bool,
    flights: VecDeque<Flight>,
    next_number: u64,
    pieces: VecDeque<Piece>,
    flying: Flying,
    tokens: Vec<u32>,
    ring: Ring,
    /// Whether libfabric asked to be called again.
    again: bool,
    down: Option<Refusal>,
    /// Completed batches, which are delivered after the lock is released.
    over: Vec<Over>,
}

/// The endpoint that executes the operations.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) domain: Arc<Domain>,
    /// Name of the node's endpoint.
    pub(super) name: Vec<u8>,
}

pub(super) struct Engine {
    target: Target,
    order: Order,
    control: Arc<Control>,
    core: Arc<Initiator<Messages>>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    state: Mutex<EngineState>,
    leader: CompletionLeader,
    pub(super) batches: AtomicU64,
    pub(super) operations: AtomicU64,
    pub(super) posted: AtomicU64,
    pub(super) posted_bytes: AtomicU64,
    me: Weak<Self>,
}

/// Number of bytes of the message that opens a connection.
const KNOCK_BYTES: u64 = 8;

impl Engine {
    fn open(domain: &Arc<Domain>) -> Result<End> {
        let staging = Mapping::create("archipelago-ofi-operations", STAGING_BYTES as usize)?;
        End::open(domain, staging, TOKENS)
    }

    /// Opens an endpoint of the node that accepts the first message of a client.
    pub(super) fn open_target(domain: &Arc<Domain>) -> Result<End> {
        let end = Self::open(domain)?;
        end.receive(0, 0, KNOCK_BYTES).map_err(super::unusable)?;
        Ok(end)
    }

    /// Makes the node's endpoint accept another first message.
    pub(super) fn hear_knocks(end: &End) {
        let mut completions = [Completion::default(); 8];
        if let Ok(1..) = end.poll(&mut completions)
            && let Err(code) = end.receive(0, 0, KNOCK_BYTES)
        {
            tracing::warn!(%code, "an endpoint of libfabric takes no buffer");
        }
    }

    /// Opens an endpoint of the client with a connection. Some providers connect at the first
    /// operation, and a post must not wait for that.
    fn connected(
        target: &Target,
        control: &Control,
        clock: &dyn Clock,
        deadline: Duration,
    ) -> Result<Arc<End>> {
        let end = Self::open(&target.domain)?;
        end.join(&target.name).map_err(super::unusable)?;
        let end_ns = clock.now_ns().saturating_add(deadline.as_nanos() as u64);
        let mut completions = [Completion::default(); 8];
        let mut sent = false;
        loop {
            let polled = end.poll(&mut completions).map_err(super::unusable)?;
            if completions[..polled].iter().any(|completion| completion.error != 0) {
                return Err(super::unusable(Code::of(completions[0].error)));
            }
            if sent && polled > 0 {
                return Ok(Arc::new(end));
            }
            if !sent {
                match end.send(0, 0, KNOCK_BYTES) {
                    Ok(false) => return Ok(Arc::new(end)),
                    Ok(true) => sent = true,
                    Err(code) if code.is_again() => {}
                    Err(code) => return Err(super::unusable(code)),
                }
            }
            if control.known_ended() || clock.now_ns() >= end_ns {
                let what = "the node's endpoint for one-sided operations";
                return Err(Refusal::new(Reason::Disconnected).error(what));
            }
            control.sleep(&end, false, Some(AGAIN));
        }
    }

    pub(super) fn connect(
        target: Target,
        control: &Arc<Control>,
        core: &Arc<Initiator<Messages>>,
        clock: &Arc<dyn Clock>,
        deadline: Duration,
    ) -> Result<Arc<Self>> {
        let state = EngineState {
            end: Self::connected(&target, control, &**clock, deadline)?,
            blocked: false,
            flights: VecDeque::new(),
            next_number: 0,
            pieces: VecDeque::new(),
            flying: Flying::default(),
            tokens: (0..TOKENS).collect(),
            ring: Ring::new(STAGING_BYTES),
            again: false,
            down: None,
            over: Vec::new(),
        };
        let order = target.domain.order();
        Ok(Arc::new_cyclic(|me| Self {
            target,
            order,
            control: Arc::clone(control),
            core: Arc::clone(core),
            clock: Arc::clone(clock),
            deadline,
            state: Mutex::new(state),
            leader: CompletionLeader::default(),
            batches: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            posted: AtomicU64::new(0),
            posted_bytes: AtomicU64::new(0),
            me: Weak::clone(me),
        }))
    }

    /// Queues a batch, and posts the operations that may leave. [`Flight::new`] explains `regions`
    /// and `refused`.
    pub(super) fn post(
        &self,
        mut batch: Batch,
        regions: Vec<Arc<Known>>,
        refused: Option<Refusal>,
    ) -> Promise<Batch> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.operations.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let deadline = batch.deadline_ns().unwrap_or(self.deadline.as_nanos() as u64);
        let deadline_ns = self.clock.now_ns().saturating_add(deadline);
        let mut state = self.state.lock();
        let full = Refusal::at(Reason::Full, IN_FLIGHT_MAX as u64);
        let room = if state.flights.len() < IN_FLIGHT_MAX { None } else { Some(full) };
        if let Some(refusal) = state.down.or(room) {
            batch.refuse_all(refusal);
            return Promise::ready(batch);
        }
        let number = state.next_number;
        state.next_number += 1;
        let flight = Flight::new(number, deadline_ns, batch, regions, refused);
        let slot = Arc::clone(&flight.slot);
        state.flights.push_back(flight);
        self.advance(&mut state);
        self.finish_settled(&mut state);
        deliver(state);
        match self.me.upgrade() {
            Some(me) => Promise::pending(slot, me),
            None => unreachable!("a link is used through a reference that keeps it"),
        }
    }

    pub(super) fn down(&self) -> Option<Refusal> {
        self.state.lock().down
    }

    /// Takes the link down. Later posts are refused with `why`.
    pub(super) fn fail(&self, why: Refusal) {
        let mut state = self.state.lock();
        state.down.get_or_insert(why);
        let flights = std::mem::take(&mut state.flights);
        let over = |mut flight: Flight| flight.give_up(Reason::Disconnected.into());
        state.over.extend(flights.into_iter().filter_map(over));
        deliver(state);
        self.leader.tell();
    }

    /// Called when the last handle of the link is dropped.
    pub(super) fn close(&self) {
        self.fail(Reason::Disconnected.into());
        self.leader.end();
    }

    /// Posts the operations that may leave.
    fn advance(&self, state: &mut EngineState) {
        if state.blocked || (state.again && !state.pieces.is_empty()) {
            return;
        }
        state.again = false;
        for at in 0..state.flights.len() {
            loop {
                if state.flights[at].failed.is_some() {
                    return;
                }
                let Some(next) = state.flights[at].next() else { break };
                if !self.leave(state, at, &next) {
                    return;
                }
            }
        }
    }

    /// Posts one piece. Returns whether it left.
    fn leave(&self, state: &mut EngineState, at: usize, next: &Next) -> bool {
        if !state.flying.admits(next.sort, self.order) {
            return false;
        }
        let Some(&token) = state.tokens.last() else { return false };
        let room = if next.sort == Sort::Atomic { 24 } else { next.len };
        let Some(place) = state.ring.give(room) else { return false };
        let flight = &mut state.flights[at];
        if let Err(code) = call(&state.end, flight, next, token, place) {
            state.ring.undo();
            if code.is_again() {
                state.again = true;
            } else {
                tracing::warn!(%code, "a one-sided operation was not taken by libfabric");
                flight.fail(next.index);
            }
            return false;
        }
        flight.posted(next);
        let (index, sort, from, len) = (next.index, next.sort, next.from, next.len);
        let flight = flight.number;
        state.tokens.pop();
        state.flying.add(sort);
        state.pieces.push_back(Piece {
            token,
            flight,
            index,
            sort,
            from,
            len,
            at: place,
            done: false,
        });
        self.posted.fetch_add(1, Ordering::Relaxed);
        self.posted_bytes.fetch_add(len, Ordering::Relaxed);
        true
    }

    /// Reads completions. Returns their number.
    fn take_completions(&self, state: &mut EngineState) -> Result<usize, Code> {
        let mut completions = [Completion::default(); 32];
        let mut taken = 0;
        loop {
            let count = state.end.poll(&mut completions)?;
            if count == 0 {
                return Ok(taken);
            }
            completions[..count].iter().for_each(|completion| self.complete(state, completion));
            taken += count;
        }
    }

    fn complete(&self, state: &mut EngineState, completion: &Completion) {
        let of = |piece: &&mut Piece| piece.token == completion.token && !piece.done;
        let Some(piece) = state.pieces.iter_mut().find(of) else {
            // The error names no operation. The operations complete by themselves or at their
            // deadline.
            return tracing::debug!(code = %Code::of(completion.error), "libfabric reports an error");
        };
        piece.done = true;
        state.tokens.push(piece.token);
        state.flying.remove(piece.sort);
        let flight = state.flights.iter_mut().find(|flight| flight.number == piece.flight);
        // A link that is down has no batches any more.
        if let Some(flight) = flight {
            if completion.error != 0 {
                tracing::debug!(code = %Code::of(completion.error), "a one-sided operation failed");
                flight.out -= 1;
                flight.fail(piece.index);
            } else {
                let words = state.end.staging().words();
                let mut old = [0; 8];
                match piece.sort {
                    Sort::Read => {
                        let bytes = flight.bytes(piece.index, piece.from, piece.len);
                        memory::read(words, piece.at as usize, bytes);
                    }
                    Sort::Atomic => memory::read(words, piece.at as usize + 16, &mut old),
                    Sort::Write => {}
                }
                flight.completed(piece.index, u64::from_ne_bytes(old));
            }
        }
        while state.pieces.front().is_some_and(|piece| piece.done) {
            state.pieces.pop_front();
            state.ring.take();
        }
    }

    /// Delivers the completed batches at the front of the queue. Returns the key of the first
    /// failed operation, if there is one.
    fn finish_settled(&self, state: &mut EngineState) -> Option<(u64, RemoteKey)> {
        loop {
            // A failure is judged after everything in flight that may depend on it has completed.
            let flight = state.flights.front_mut()?;
            if !flight.settled() {
                return None;
            }
            if let Some(index) = flight.failed {
                let quiet = state.pieces.is_empty();
                return quiet.then(|| (flight.number, flight.regions[index].key));
            }
            let over = flight.finish(None);
            state.over.extend(over);
            state.flights.pop_front();
        }
    }

    /// Completes operations after their deadline. Returns the time until the next one.
    fn expire(&self, state: &mut EngineState) -> Duration {
        let now_ns = self.clock.now_ns();
        let mut left_ns = u64::MAX;
        for flight in &mut state.flights {
            let Some(due_ns) = flight.due_ns() else { continue };
            left_ns = left_ns.min(due_ns.saturating_sub(now_ns));
            if due_ns <= now_ns {
                let over = flight.give_up(Reason::Deadline.into());
                state.over.extend(over);
            }
        }
        let wait = if state.again { AGAIN } else { TICK };
        Duration::from_nanos(left_ns).min(wait)
    }

    /// Makes progress without a sleep. Returns whether something completed.
    fn progress(&self) -> bool {
        let mut state = self.state.lock();
        let failed = self.take_completions(&mut state);
        let Ok(taken) = failed else {
            drop(state);
            tracing::warn!(?failed, "completions over libfabric: the link is closed");
            self.both_down(Reason::Disconnected.into());
            return true;
        };
        self.advance(&mut state);
        let before = state.flights.len();
        let question = self.finish_settled(&mut state);
        let finished = state.flights.len() < before;
        deliver(state);
        if let Some((number, key)) = question {
            self.judge(number, &key);
            return true;
        }
        if finished {
            self.leader.tell();
        }
        finished || taken > 0
    }

    /// Asks the node why operations of batch `number` failed.
    fn judge(&self, number: u64, key: &RemoteKey) {
        let asked = self.core.attach(|out| key.encode(out), super::verdict);
        match asked.wait() {
            Err(refusal) if !matches!(refusal.reason, Reason::Disconnected | Reason::Deadline) => {
                let mut state = self.state.lock();
                state.blocked = true;
                if let Some(flight) = state.flights.front_mut()
                    && flight.number == number
                {
                    let over = flight.finish(Some(refusal));
                    state.over.extend(over);
                    state.flights.pop_front();
                }
                // If the next batch failed as well, it is judged before the endpoint is replaced.
                let more = state.flights.front().is_some_and(|flight| flight.failed.is_some());
                deliver(state);
                if !more {
                    self.renew();
                }
                self.leader.tell();
            }
            _ => {
                tracing::warn!(
                    "a one-sided operation failed though its key is valid, or the node is gone"
                );
                self.both_down(Reason::Disconnected.into());
            }
        }
    }

    /// Replaces the endpoint while nothing is in flight. No message leaves until it returns.
    fn renew(&self) {
        match Self::connected(&self.target, &self.control, &*self.clock, self.deadline) {
            Ok(end) => {
                let mut state = self.state.lock();
                state.end = end;
                state.blocked = false;
                self.advance(&mut state);
                deliver(state);
            }
            Err(error) => {
                tracing::warn!(%error, "no other endpoint after an operation was refused: the link is closed");
                self.both_down(Reason::Disconnected.into());
            }
        }
    }

    fn both_down(&self, why: Refusal) {
        self.core.fail(why);
        self.fail(self.core.down().unwrap_or(why));
    }
}

/// Makes one call of libfabric.
fn call(end: &End, flight: &mut Flight, next: &Next, token: u32, at: u64) -> Result<(), Code> {
    let (key, base) = flight.regions[next.index].place;
    let target = |offset: u64| RemoteAddress { key, address: base + offset };
    let words = end.staging().words();
    let put = |first: u64, second: u64| {
        memory::write(words, at as usize, &first.to_ne_bytes());
        memory::write(words, at as usize + 8, &second.to_ne_bytes());
    };
    match next.op {
        Op::Read { offset, .. } => end.read(token, at, next.len, target(offset + next.from)),
        Op::Write { offset, .. } => {
            let bytes = flight.bytes(next.index, next.from, next.len);
            memory::write(words, at as usize, bytes);
            end.write(token, at, next.len, target(offset + next.from))
        }
        Op::CompareSwap { offset, expect, new, .. } => {
            put(new, expect);
            end.compare_swap(token, at, target(offset))
        }
        Op::FetchAdd { offset, add, .. } => {
            put(add, 0);
            end.fetch_add(token, at, target(offset))
        }
    }
}

/// Releases the lock, and then delivers the completed batches.
fn deliver(mut state: MutexGuard<'_, EngineState>) {
    let over = std::mem::take(&mut state.over);
    drop(state);
    over.into_iter().for_each(|(slot, batch)| slot.fill(batch));
}

impl Receive for Engine {
    fn round(&self, limit: Duration) {
        for _ in 0..LOOKS {
            if self.progress() {
                return;
            }
            spin_loop();
        }
        let (end, timeout, late) = {
            let mut state = self.state.lock();
            let timeout = self.expire(&mut state);
            self.finish_settled(&mut state);
            let end = Arc::clone(&state.end);
            deliver(state);
            (end, timeout, timeout.is_zero())
        };
        if late {
            return self.leader.tell();
        }
        self.control.sleep(&end, false, Some(timeout.min(limit)));
        if self.control.known_ended() || self.control.ended() {
            let why = self.control.last_words().unwrap_or(Reason::Disconnected.into());
            return self.both_down(why);
        }
        if let Some(why) = self.core.down() {
            self.fail(why);
        }
    }

    fn idle(&self) -> bool {
        self.state.lock().flights.is_empty()
    }

    fn hand_over(&self) {
        // A post leaves immediately, or when the leader notices that it may.
    }
}

impl Driver for Engine {
    fn drive(&self, done: &dyn Fn() -> bool) {
        self.leader.drive(self, done, &|| Duration::MAX);
    }

    fn drive_for(&self, done: &dyn Fn() -> bool, left: &dyn Fn() -> Duration) {
        self.leader.drive(self, done, left);
    }

    fn attend(&self) {
        let Some(me) = self.me.upgrade() else { return };
        if self.leader.ask() {
            let body = Box::new(move || me.leader.attendance(&*me));
            if let Err(error) = SystemSpawn.spawn("fabric-attend", body) {
                tracing::error!(%error, "no thread to receive completions: the link is closed");
                self.both_down(Reason::Exhausted.into());
            }
        }
    }
}
