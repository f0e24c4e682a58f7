//! The client's end of a link over a stream: the operations in flight, and their deadlines.
//!
//! One thread at a time reads the stream and completes the operations whose answers arrive
//! ([`crate::completion_leader`]). The first promise that is polled or dropped starts the
//! background thread.
//!
//! Invariants:
//! 1. Every operation in flight is in `pending` and has a deadline, so the leader's work ends.
//! 2. Once `is_down` is set, `pending` is empty and stays empty.
//! 3. The reservations of the requests in `pending` are at most [`RESERVED_BYTES_MAX`].
//! 4. Locks are taken in the order leader → incoming → pending → out. Only `incoming` may be held
//!    while a task is woken, so the code that a completion runs must not wait for the link.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the link goes down if the stream ends or a frame is malformed, with the reason that the
//! node sent before. Everything in flight completes as disconnected.
//! Cost: one system call sends all queued frames, and one receives all frames that have arrived.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::spawn::{Spawn, SystemSpawn};
use archipelago_base::wire::Malformed;
use parking_lot::{Mutex, MutexGuard};

use super::{Arrived, Incoming, Outgoing, Stream, Taken};
use crate::batch::{Attached, Batch};
use crate::body::Body;
use crate::completion_leader::{CompletionLeader, Receive};
use crate::driver::Driver;
use crate::link::{Call, IN_FLIGHT_MAX, LinkStats, Repeats, Session};
use crate::node::RESERVED_BYTES_MAX;
use crate::promise::{Promise, Slot};
use crate::refusal::{Reason, Refusal};
use crate::wire::{Ask, Frame, Kind, decode_answer, decode_done, decode_goodbye, put_frame};

/// Number of queued bytes that are sent without a request.
const DOORBELL_BYTES: usize = 64 << 10;
/// Number of queued bytes above which a post is refused, because the target does not read.
const OUT_BYTES_MAX: usize = 32 << 20;
/// Longest interval in which the leader checks deadlines. A post may have an earlier deadline than
/// those that the leader knows.
const TICK: Duration = Duration::from_millis(20);

/// Limit of the reads from a stream that accepts no writes any more.
const LAST_READS_MAX: usize = 64;

pub(crate) struct Initiator<S> {
    stream: S,
    session: Arc<Session>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    out: Mutex<Outgoing>,
    incoming: Mutex<Incoming>,
    pending: Mutex<Pending>,
    leader: CompletionLeader,
    /// Set while `pending` is locked.
    is_down: AtomicBool,
    taken: Taken,
    batches: AtomicU64,
    operations: AtomicU64,
    me: Weak<Self>,
}

#[derive(Default)]
struct Pending {
    next: u64,
    entries: HashMap<(Kind, u64), Waiting>,
    /// Bytes that the requests among `entries` reserve.
    reserved_bytes: usize,
    /// Lower bound of all deadlines, in nanoseconds.
    earliest_ns: u64,
    down: Option<Refusal>,
}

struct Waiting {
    deadline_ns: u64,
    what: What,
}

enum What {
    Batch(Batch, Arc<Slot<Batch>>),
    Request(Asked),
    Attach { known: Box<Known>, slot: Arc<Slot<Result<Attached, Refusal>>> },
}

/// A request in flight.
struct Asked {
    numbering: Numbering,
    answer_bytes_max: usize,
    reserved_bytes: usize,
    slot: Arc<Slot<Result<Body, Refusal>>>,
}

/// Where the number of a request comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbering {
    /// From the session, which closes the number with the answer.
    Session,
    /// From the session, for a caller who may send the request again if its outcome is unknown.
    Caller,
    /// From the link, for an idempotent request.
    Link,
}

/// Whether the client knows if the node executed a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestOutcome {
    Known,
    /// The node may have executed the request, or refused it for now.
    Unknown,
}

impl What {
    fn reserved_bytes(&self) -> usize {
        match self {
            Self::Request(asked) => asked.reserved_bytes,
            Self::Batch(..) | Self::Attach { .. } => 0,
        }
    }
}

/// Reads the node's answer to an attachment, and records the region at the link.
type Known = dyn FnOnce(&[u8]) -> Result<Result<Attached, Refusal>, Malformed> + Send;

impl<S: Stream> Initiator<S> {
    pub(crate) fn new(
        stream: S,
        session: Arc<Session>,
        clock: Arc<dyn Clock>,
        deadline: Duration,
        incoming: Incoming,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            stream,
            session,
            clock,
            deadline,
            out: Mutex::new(Outgoing::default()),
            incoming: Mutex::new(incoming),
            pending: Mutex::new(Pending { earliest_ns: u64::MAX, ..Pending::default() }),
            leader: CompletionLeader::default(),
            is_down: AtomicBool::new(false),
            taken: Taken::default(),
            batches: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            me: Weak::clone(me),
        })
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            batches: self.batches.load(Ordering::Relaxed),
            operations: self.operations.load(Ordering::Relaxed),
            packets: self.taken.writes.load(Ordering::Relaxed),
            sent_bytes: self.taken.bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn down(&self) -> Option<Refusal> {
        if !self.is_down.load(Ordering::Acquire) {
            return None;
        }
        self.pending.lock().down
    }

    /// Sends a batch. `fill` appends its body.
    pub(crate) fn post(
        &self,
        mut batch: Batch,
        fill: impl FnOnce(&mut Vec<u8>, &mut Batch),
    ) -> Promise<Batch> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.operations.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let deadline = batch.deadline_ns().map_or(self.deadline, Duration::from_nanos);
        let mut out = self.out.lock();
        if let Err(refusal) = self.room(&out) {
            batch.refuse_all(refusal);
            return Promise::ready(batch);
        }
        let start = out.buffer().len();
        // The number is taken while `out` is locked, so that numbers are sent in order.
        let number = self.next_number();
        put_frame(out.buffer(), Kind::Batch, number, |body| fill(body, &mut batch));
        let slot = Slot::new();
        let what = What::Batch(batch, Arc::clone(&slot));
        if let Err((refusal, what)) = self.expect(Kind::Done, number, deadline, what) {
            out.buffer().truncate(start);
            if let What::Batch(mut batch, _) = what {
                batch.refuse_all(refusal);
                return Promise::ready(batch);
            }
        }
        self.doorbell(&mut out);
        self.promise(slot)
    }

    pub(crate) fn request(&self, call: Call<'_>) -> Promise<Result<Body, Refusal>> {
        self.try_request(call).unwrap_or_else(|refusal| Promise::ready(Err(refusal)))
    }

    fn try_request(&self, call: Call<'_>) -> Result<Promise<Result<Body, Refusal>>, Refusal> {
        let size = call.size()?;
        let (numbering, number, retry) = match call.repeats {
            Repeats::Fresh => (Numbering::Session, self.session.begin()?, false),
            Repeats::Numbered { number, retry } => (Numbering::Caller, number, retry),
            Repeats::Idempotent => (Numbering::Link, self.next_number(), false),
        };
        let (kind, answer) = match numbering {
            Numbering::Link => (Kind::Idempotent, Kind::IdempotentAnswer),
            Numbering::Session | Numbering::Caller => (Kind::Request, Kind::Answer),
        };
        let slot = Slot::new();
        let asked = Asked {
            numbering,
            answer_bytes_max: size.answer_bytes_max,
            reserved_bytes: size.reserved_bytes,
            slot: Arc::clone(&slot),
        };
        let mut out = self.out.lock();
        let expected = self.room(&out).and_then(|()| {
            let expected = self.expect(answer, number, call.deadline, What::Request(asked));
            expected.map_err(|(refusal, _)| refusal)
        });
        if let Err(refusal) = expected {
            self.close_number(number, numbering, RequestOutcome::Unknown);
            return Err(refusal);
        }
        let oldest = if kind == Kind::Idempotent { 0 } else { self.session.oldest() };
        let (deadline, answer_bytes_max) = (call.deadline, size.answer_bytes_max);
        let ask = Ask { oldest, retry, deadline, answer_bytes_max, body: call.body };
        put_frame(out.buffer(), kind, number, |body| {
            ask.encode(body);
            body.extend_from_slice(call.payload);
        });
        self.doorbell(&mut out);
        Ok(self.promise(slot))
    }

    /// Closes the number of a request that completed. A caller's own number stays open if the
    /// outcome is unknown.
    fn close_number(&self, number: u64, numbering: Numbering, outcome: RequestOutcome) {
        let keep = numbering == Numbering::Caller && outcome == RequestOutcome::Unknown;
        if numbering != Numbering::Link {
            self.session.completed(number, keep);
        }
    }

    /// Sends an attachment. `key` appends the key, and `known` reads the body of the answer.
    pub(crate) fn attach(
        &self,
        key: impl FnOnce(&mut Vec<u8>),
        known: impl FnOnce(&[u8]) -> Result<Result<Attached, Refusal>, Malformed> + Send + 'static,
    ) -> Promise<Result<Attached, Refusal>> {
        let mut out = self.out.lock();
        if let Err(refusal) = self.room(&out) {
            return Promise::ready(Err(refusal));
        }
        let slot = Slot::new();
        let number = self.next_number();
        let what = What::Attach { known: Box::new(known), slot: Arc::clone(&slot) };
        if let Err((refusal, _)) = self.expect(Kind::Attached, number, self.deadline, what) {
            return Promise::ready(Err(refusal));
        }
        put_frame(out.buffer(), Kind::Attach, number, key);
        drop(out);
        self.promise(slot)
    }

    pub(crate) fn promise<T: Send + 'static>(&self, slot: Arc<Slot<T>>) -> Promise<T> {
        match self.me.upgrade() {
            Some(me) => Promise::pending(slot, me),
            None => unreachable!("a link is used through a reference that keeps it"),
        }
    }

    pub(crate) fn flush(&self) {
        if self.send_queued().is_ok() {
            return;
        }
        match self.incoming.try_lock() {
            Some(incoming) => self.fail_broken(incoming),
            // The thread that receives, or the next one that does, finds the broken stream.
            None => self.stream.nudge(),
        }
    }

    /// Sends the queued bytes that the stream accepts now. Fails if the stream is broken.
    fn send_queued(&self) -> io::Result<()> {
        self.out.lock().flush(&self.stream, &self.taken)
    }

    /// Takes the link down after a write that failed. The node may have sent answers, and the
    /// reason for the end, before it closed the stream.
    fn fail_broken(&self, mut incoming: MutexGuard<'_, Incoming>) {
        let mut reason = None;
        for _ in 0..LAST_READS_MAX {
            if let Err(refusal) = self.complete_all(&mut incoming) {
                reason = Some(refusal);
                break;
            }
            if incoming.fill(&self.stream) != Arrived::Bytes {
                break;
            }
        }
        drop(incoming);
        let reason = reason.or_else(|| self.stream.last_words());
        self.fail(reason.unwrap_or(Reason::Disconnected.into()));
    }

    /// Sends the queued bytes. The leader sends those that the stream does not accept now.
    pub(crate) fn send_or_nudge(&self) {
        self.flush();
        if self.out.lock().waiting() > 0 {
            self.stream.nudge();
        }
    }

    /// Takes the link down. Later posts are refused with `why`.
    pub(crate) fn fail(&self, why: Refusal) {
        let entries = {
            let mut pending = self.pending.lock();
            pending.down.get_or_insert(why);
            pending.reserved_bytes = 0;
            self.is_down.store(true, Ordering::Release);
            std::mem::take(&mut pending.entries)
        };
        self.stream.shut();
        for ((_, number), waiting) in entries {
            self.refuse(number, waiting.what, Reason::Disconnected.into());
        }
        self.leader.tell();
    }

    /// Called when the last handle of the link is dropped.
    pub(crate) fn close(&self) {
        self.flush();
        self.fail(Reason::Disconnected.into());
        self.leader.end();
        self.stream.nudge();
    }

    fn next_number(&self) -> u64 {
        let mut pending = self.pending.lock();
        pending.next += 1;
        pending.next
    }

    fn room(&self, out: &Outgoing) -> Result<(), Refusal> {
        if out.waiting() > OUT_BYTES_MAX { Err(Reason::Full.into()) } else { Ok(()) }
    }

    fn expect(
        &self,
        kind: Kind,
        number: u64,
        deadline: Duration,
        what: What,
    ) -> Result<(), (Refusal, What)> {
        let now_ns = self.clock.now_ns();
        let deadline_ns =
            now_ns.saturating_add(deadline.as_nanos().min(u128::from(u64::MAX)) as u64);
        let mut pending = self.pending.lock();
        if let Some(down) = pending.down {
            return Err((down, what));
        }
        if pending.entries.len() >= IN_FLIGHT_MAX || pending.entries.contains_key(&(kind, number)) {
            return Err((Refusal::at(Reason::Full, IN_FLIGHT_MAX as u64), what));
        }
        let reserved_bytes = pending.reserved_bytes + what.reserved_bytes();
        if reserved_bytes > RESERVED_BYTES_MAX {
            return Err((Refusal::at(Reason::Full, RESERVED_BYTES_MAX as u64), what));
        }
        pending.reserved_bytes = reserved_bytes;
        pending.earliest_ns = pending.earliest_ns.min(deadline_ns);
        pending.entries.insert((kind, number), Waiting { deadline_ns, what });
        Ok(())
    }

    /// Sends the queued bytes if they are many.
    fn doorbell(&self, out: &mut Outgoing) {
        if out.waiting() >= DOORBELL_BYTES {
            // The leader notices a broken stream.
            let _sent = out.flush(&self.stream, &self.taken);
            if out.waiting() > 0 {
                self.stream.nudge();
            }
        }
    }

    /// Waits for `limit` at most.
    fn receive(&self, limit: Duration) {
        let mut incoming = self.incoming.lock();
        if self.send_queued().is_err() {
            return self.fail_broken(incoming);
        }
        let timeout = self.expire().min(limit);
        if self.is_down.load(Ordering::Acquire) {
            return;
        }
        let unsent = self.out.lock().waiting() > 0;
        self.stream.wait(true, unsent, Some(timeout));
        let is_ended = incoming.fill(&self.stream) == Arrived::End;
        // A goodbye stays in the buffer, so every thread that finds the end also finds the reason.
        let outcome = self.complete_all(&mut incoming);
        drop(incoming);
        match outcome {
            Err(refusal) => self.fail(refusal),
            Ok(_) if is_ended => {
                self.fail(self.stream.last_words().unwrap_or(Reason::Disconnected.into()));
            }
            Ok(0) => {}
            Ok(_) => self.leader.tell(),
        }
    }

    fn complete_all(&self, incoming: &mut Incoming) -> Result<usize, Refusal> {
        let protocol = |malformed: Malformed| {
            tracing::warn!(%malformed, "a node broke the protocol: the link is closed");
            Refusal::new(Reason::Protocol)
        };
        let mut completed = 0;
        while let Some((frame, bytes)) = incoming.frame().map_err(protocol)? {
            if frame.kind == Kind::Goodbye {
                return Err(farewell(frame.body));
            }
            self.complete(&frame).map_err(protocol)?;
            incoming.consume(bytes);
            completed += 1;
        }
        Ok(completed)
    }

    fn complete(&self, frame: &Frame<'_>) -> Result<(), Malformed> {
        let answers = [Kind::Done, Kind::Attached, Kind::Answer, Kind::IdempotentAnswer];
        if !answers.contains(&frame.kind) {
            return Err(Malformed("a frame that a node does not send here"));
        }
        let waiting = {
            let mut pending = self.pending.lock();
            let waiting = pending.entries.remove(&(frame.kind, frame.number));
            let reserved = waiting.as_ref().map_or(0, |waiting| waiting.what.reserved_bytes());
            pending.reserved_bytes -= reserved;
            waiting
        };
        // The operation completed at its deadline before.
        let Some(waiting) = waiting else { return Ok(()) };
        match waiting.what {
            What::Batch(mut batch, slot) => {
                let decoded = decode_done(frame.body, &mut batch);
                if decoded.is_err() {
                    batch.refuse_all(Reason::Protocol.into());
                }
                slot.fill(batch);
                decoded
            }
            What::Attach { known, slot } => {
                let opened = known(frame.body);
                slot.fill(opened.unwrap_or(Err(Reason::Protocol.into())));
                opened.map(|_| ())
            }
            What::Request(asked) => {
                let decoded = decode_answer(frame.body, asked.answer_bytes_max);
                let failed = decoded.as_ref().err().copied();
                let answer = decoded.unwrap_or(Err(Reason::Disconnected.into()));
                let again = matches!(answer, Err(Refusal { reason: Reason::Full, .. }));
                let is_open = again || failed.is_some();
                let outcome = if is_open { RequestOutcome::Unknown } else { RequestOutcome::Known };
                self.close_number(frame.number, asked.numbering, outcome);
                asked.slot.fill(answer);
                failed.map_or(Ok(()), Err)
            }
        }
    }

    /// Completes operations after their deadline. Returns the time until the next one.
    fn expire(&self) -> Duration {
        let now_ns = self.clock.now_ns();
        let mut late: Vec<((Kind, u64), Waiting)> = Vec::new();
        let left_ns = {
            let mut pending = self.pending.lock();
            if now_ns >= pending.earliest_ns {
                late.extend(pending.entries.extract_if(|_, waiting| waiting.deadline_ns <= now_ns));
                let reserved = late.iter().map(|(_, waiting)| waiting.what.reserved_bytes());
                pending.reserved_bytes -= reserved.sum::<usize>();
                let deadlines = pending.entries.values().map(|waiting| waiting.deadline_ns);
                pending.earliest_ns = deadlines.min().unwrap_or(u64::MAX);
            }
            pending.earliest_ns.saturating_sub(now_ns)
        };
        let any = !late.is_empty();
        for ((_, number), waiting) in late {
            self.refuse(number, waiting.what, Reason::Deadline.into());
        }
        if any {
            self.leader.tell();
            return Duration::ZERO;
        }
        Duration::from_nanos(left_ns).min(TICK)
    }

    fn refuse(&self, number: u64, what: What, refusal: Refusal) {
        match what {
            What::Batch(mut batch, slot) => {
                batch.refuse_all(refusal);
                slot.fill(batch);
            }
            What::Attach { slot, .. } => slot.fill(Err(refusal)),
            What::Request(asked) => {
                self.close_number(number, asked.numbering, RequestOutcome::Unknown);
                asked.slot.fill(Err(refusal));
            }
        }
    }
}

/// The reason with which the node closes the link.
pub(crate) fn farewell(body: &[u8]) -> Refusal {
    match decode_goodbye(body) {
        Ok((refusal, text)) => {
            let text = String::from_utf8_lossy(text);
            tracing::warn!(reason = ?refusal.reason, %text, "the node closed the link");
            refusal
        }
        Err(_) => Reason::Protocol.into(),
    }
}

impl<S: Stream> Receive for Initiator<S> {
    /// Sends the queued bytes, waits, and completes the operations that were answered or are too
    /// late.
    fn round(&self, limit: Duration) {
        self.receive(limit);
    }

    fn idle(&self) -> bool {
        self.pending.lock().entries.is_empty()
    }

    fn hand_over(&self) {
        self.send_or_nudge();
    }
}

impl<S: Stream> Driver for Initiator<S> {
    fn drive(&self, done: &dyn Fn() -> bool) {
        self.leader.drive(self, done, &|| Duration::MAX);
    }

    fn drive_for(&self, done: &dyn Fn() -> bool, left: &dyn Fn() -> Duration) {
        self.leader.drive(self, done, left);
    }

    fn attend(&self) {
        self.send_or_nudge();
        let Some(me) = self.me.upgrade() else { return };
        if self.leader.ask() {
            let body = Box::new(move || me.leader.attendance(&*me));
            if let Err(error) = SystemSpawn.spawn("fabric-attend", body) {
                tracing::error!(%error, "no thread to receive completions: the link is closed");
                self.fail(Reason::Exhausted.into());
            }
        }
    }
}
