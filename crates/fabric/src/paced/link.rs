//! A link whose messages pass a card.
//!
//! A message that needs no time and no room goes to the inner link immediately, and its caller
//! waits for the inner link's promise. Any other message is copied into the card's schedule. The
//! pump gives it to the inner link when it leaves. The answer passes the card's other direction and
//! then completes the caller's promise.
//!
//! One-sided operations, attachments and detachments are foreground messages, so the operations of
//! a link keep their order.
//!
//! Invariants:
//! 1. Messages of one class reach the inner link in the order in which they were sent.
//! 2. A promise of a message completes by its deadline, or soon after it if the pump is late.
//! 3. A message that waits counts against the limits of its link until it leaves.
//!
//! Thread-safety: any thread may call any method.
//! Failure: messages that wait complete as disconnected when the link is closed.
//! Cost: see [`paced`](super).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::core::{Action, CardCore, Direction, HEADER_BYTES, refusal};
use super::schedule::{Exit, Message, StreamKey};
use crate::batch::{Attached, Batch, Op};
use crate::body::Body;
use crate::ids::RemoteKey;
use crate::link::{Call, IN_FLIGHT_MAX, Link, LinkStats, Peer, Session};
use crate::promise::{Completer, Promise};
use crate::refusal::{Reason, Refusal};
use crate::traffic::TrafficClass;

/// Limit of the bytes that wait for the card on one link.
const QUEUED_BYTES_MAX: u64 = 32 << 20;
/// Bytes that a card counts for each operation of a batch, in addition to its data.
const OPERATION_BYTES: u64 = 32;

/// The messages of a link that wait for the card.
#[derive(Debug, Default)]
struct Queued {
    messages: AtomicUsize,
    bytes: AtomicU64,
}

/// The place of one message among those that wait. Dropping the value frees the place.
struct QueuedPlace {
    queued: Arc<Queued>,
    bytes: u64,
}

impl QueuedPlace {
    fn take(queued: &Arc<Queued>, bytes: u64) -> Result<Self, Refusal> {
        let messages = queued.messages.fetch_add(1, Ordering::Relaxed);
        let before = queued.bytes.fetch_add(bytes, Ordering::Relaxed);
        let place = Self { queued: Arc::clone(queued), bytes };
        if messages >= IN_FLIGHT_MAX || before > QUEUED_BYTES_MAX {
            return Err(Refusal::at(Reason::Full, IN_FLIGHT_MAX as u64));
        }
        Ok(place)
    }
}

impl Drop for QueuedPlace {
    fn drop(&mut self) {
        self.queued.messages.fetch_sub(1, Ordering::Relaxed);
        self.queued.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The costs of a message to the card, and the time at which it must be answered.
#[derive(Clone, Copy)]
struct Passage {
    class: TrafficClass,
    bytes: u64,
    /// Bytes that a background request has in flight until its answer.
    room_bytes: u64,
    deadline_ns: u64,
}

impl Passage {
    /// The passage of a foreground message.
    fn foreground(bytes: u64, deadline_ns: u64) -> Self {
        Self { class: TrafficClass::Foreground, bytes, room_bytes: 0, deadline_ns }
    }
}

/// The path from a link to its card. The actions of the link's messages hold it.
#[derive(Clone)]
struct Way {
    core: Arc<CardCore>,
    stream: StreamKey,
}

impl Way {
    fn deadline_ns(&self, deadline: Duration) -> u64 {
        let ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.core.now_ns().saturating_add(ns)
    }

    /// The rest of a deadline, at least a nanosecond.
    fn left(&self, deadline_ns: u64) -> Duration {
        Duration::from_nanos(deadline_ns.saturating_sub(self.core.now_ns()).max(1))
    }

    /// Puts a message into the schedule of a direction.
    fn submit(&self, direction: Direction, passage: Passage, action: Action) {
        let Passage { class, bytes, room_bytes, deadline_ns } = passage;
        let (stream, payload) = (self.stream, action);
        let message = Message { class, stream, bytes, room_bytes, deadline_ns, payload };
        self.core.submit(direction, message);
    }

    /// Lets an answer arrive, and completes the promise with it. `late` makes the result of an
    /// answer that misses its deadline.
    fn arrive<T: Send + 'static>(
        &self,
        passage: Passage,
        arrival: Arrival<T>,
        late: impl FnOnce(T) -> T + Send + 'static,
    ) {
        let Arrival { value, completer } = arrival;
        if !self.core.delays(Direction::In) {
            self.core.count(Direction::In, passage.class, passage.bytes);
            return completer.complete(value);
        }
        let action = Action::new(move |exit| {
            completer.complete(if exit == Exit::Late { late(value) } else { value });
        });
        self.submit(Direction::In, passage, action);
    }

    /// Takes a background message out of flight.
    fn land(&self, passage: Passage) {
        if self.core.bounds(passage.class) {
            self.core.land(passage.room_bytes);
        }
    }
}

/// An answer that has arrived at the inner link, and the promise that it completes.
struct Arrival<T> {
    value: T,
    completer: Completer<T>,
}

/// Bytes of an answer or a refusal.
fn answer_bytes(answer: &Result<Body, Refusal>) -> u64 {
    HEADER_BYTES + answer.as_ref().map_or(0, |body| body.len() as u64)
}

/// Bytes that a batch sends and receives.
fn batch_bytes(batch: &Batch) -> (u64, u64) {
    let (mut out, mut back) = (HEADER_BYTES, HEADER_BYTES);
    for op in batch.ops() {
        out += OPERATION_BYTES;
        match *op {
            Op::Write { len, .. } => out += u64::from(len),
            Op::Read { len, .. } => back += u64::from(len),
            Op::CompareSwap { .. } | Op::FetchAdd { .. } => back += 8,
        }
    }
    (out, back)
}

/// A link that shares a card with others.
pub(super) struct PacedLink {
    inner: Arc<dyn Link>,
    way: Way,
    queued: Arc<Queued>,
    /// Deadline of operations that set none.
    deadline: Duration,
}

impl fmt::Debug for PacedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacedLink({:?})", self.inner)
    }
}

impl PacedLink {
    pub(super) fn new(inner: Arc<dyn Link>, core: &Arc<CardCore>, deadline: Duration) -> Self {
        let way = Way { core: Arc::clone(core), stream: core.new_stream() };
        Self { inner, way, queued: Arc::default(), deadline }
    }

    fn core(&self) -> &CardCore {
        &self.way.core
    }

    /// Whether a message goes to the inner link without the schedule. A closed inner link refuses
    /// messages itself.
    fn passes(&self) -> bool {
        !self.core().delays(Direction::Out) && !self.core().delays(Direction::In)
    }

    /// Sends a request that does not wait for the card.
    fn send_request(&self, call: Call<'_>, passage: Passage) -> Promise<Result<Body, Refusal>> {
        self.core().count(Direction::Out, passage.class, passage.bytes);
        let way = self.way.clone();
        self.inner.request(call).passing(move |answer| {
            way.core.count(Direction::In, passage.class, answer_bytes(&answer));
            way.land(passage);
            answer
        })
    }

    /// Puts a request into the schedule.
    fn queue_request(&self, call: Call<'_>, passage: Passage) -> Promise<Result<Body, Refusal>> {
        let checked = call.size().and_then(|_| QueuedPlace::take(&self.queued, passage.bytes));
        let place = match checked {
            Ok(place) => place,
            Err(refusal) => return Promise::ready(Err(refusal)),
        };
        let (promise, completer) = Promise::open();
        let body = call.whole_body();
        let call: Call<'static> = call.with_body(&[], call.deadline);
        let (way, inner) = (self.way.clone(), Arc::clone(&self.inner));
        let action = Action::new(move |exit| {
            drop(place);
            if let Some(refusal) = refusal(exit) {
                return completer.complete(Err(refusal));
            }
            let deadline = way.left(passage.deadline_ns);
            inner.request(call.with_body(&body, deadline)).then(move |answer| {
                way.land(passage);
                let bytes = answer_bytes(&answer);
                let arrival = Arrival { value: answer, completer };
                let late = |_| Err(Reason::Deadline.into());
                way.arrive(Passage { bytes, ..passage }, arrival, late);
            });
        });
        self.way.submit(Direction::Out, passage, action);
        promise
    }

    /// Puts a batch into the schedule.
    fn queue_batch(&self, mut batch: Batch) -> Promise<Batch> {
        let (bytes, back_bytes) = batch_bytes(&batch);
        let place = match QueuedPlace::take(&self.queued, bytes) {
            Ok(place) => place,
            Err(refusal) => {
                batch.refuse_all(refusal);
                return Promise::ready(batch);
            }
        };
        let (promise, completer) = Promise::open();
        let own_deadline = batch.deadline_ns();
        let deadline = own_deadline.map_or(self.deadline, Duration::from_nanos);
        let passage = Passage::foreground(bytes, self.way.deadline_ns(deadline));
        let (way, inner) = (self.way.clone(), Arc::clone(&self.inner));
        let action = Action::new(move |exit| {
            drop(place);
            if let Some(refusal) = refusal(exit) {
                batch.refuse_all(refusal);
                return completer.complete(batch);
            }
            batch.set_deadline(way.left(passage.deadline_ns));
            inner.post(batch).then(move |mut batch| {
                // The caller gets the batch back as it was posted.
                batch.restore_deadline(own_deadline);
                let arrival = Arrival { value: batch, completer };
                let late = |mut batch: Batch| {
                    batch.refuse_all(Reason::Deadline.into());
                    batch
                };
                way.arrive(Passage { bytes: back_bytes, ..passage }, arrival, late);
            });
        });
        self.way.submit(Direction::Out, passage, action);
        promise
    }

    /// Puts an attachment into the schedule.
    fn queue_attachment(&self, key: &RemoteKey) -> Promise<Result<Attached, Refusal>> {
        let place = match QueuedPlace::take(&self.queued, HEADER_BYTES) {
            Ok(place) => place,
            Err(refusal) => return Promise::ready(Err(refusal)),
        };
        let (promise, completer) = Promise::open();
        let passage = Passage::foreground(HEADER_BYTES, self.way.deadline_ns(self.deadline));
        let (way, inner, key) = (self.way.clone(), Arc::clone(&self.inner), *key);
        let action = Action::new(move |exit| {
            drop(place);
            if let Some(refusal) = refusal(exit) {
                return completer.complete(Err(refusal));
            }
            inner.attach(&key).then(move |attached| {
                let arrival = Arrival { value: attached, completer };
                way.arrive(passage, arrival, |_| Err(Reason::Deadline.into()));
            });
        });
        self.way.submit(Direction::Out, passage, action);
        promise
    }
}

impl Link for PacedLink {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn session(&self) -> &Arc<Session> {
        self.inner.session()
    }

    fn attach(&self, key: &RemoteKey) -> Promise<Result<Attached, Refusal>> {
        if self.passes() { self.inner.attach(key) } else { self.queue_attachment(key) }
    }

    fn detach(&self, region: Attached) {
        if self.passes() {
            return self.inner.detach(region);
        }
        // A detachment follows the operations that were posted before it, and costs nothing.
        let inner = Arc::clone(&self.inner);
        let action = Action::new(move |_| inner.detach(region));
        self.way.submit(Direction::Out, Passage::foreground(0, u64::MAX), action);
    }

    fn is_revoked(&self, region: Attached) -> bool {
        self.inner.is_revoked(region)
    }

    fn post(&self, mut batch: Batch) -> Promise<Batch> {
        if self.passes() {
            let (out, back) = batch_bytes(&batch);
            self.core().count(Direction::Out, TrafficClass::Foreground, out);
            self.core().count(Direction::In, TrafficClass::Foreground, back);
            return self.inner.post(batch);
        }
        if let Err(refusal) = batch.begin() {
            batch.refuse_all(refusal);
            return Promise::ready(batch);
        }
        self.queue_batch(batch)
    }

    fn completes_at_once(&self) -> bool {
        self.passes() && self.inner.completes_at_once()
    }

    fn prefetch(&self, region: Attached, offsets: &[u64]) {
        self.inner.prefetch(region, offsets);
    }

    fn request(&self, call: Call<'_>) -> Promise<Result<Body, Refusal>> {
        let (class, bytes) = (call.class, HEADER_BYTES + call.body_bytes() as u64);
        let needs_room = self.core().bounds(class);
        // A read has a short request, so it also takes the room of the answer that it expects.
        let room_bytes = bytes.saturating_add(call.expected_bytes());
        let mut passage = Passage { class, bytes, room_bytes, deadline_ns: u64::MAX };
        if self.passes() && (!needs_room || self.core().try_start_background(passage.room_bytes)) {
            return self.send_request(call, passage);
        }
        passage.deadline_ns = self.way.deadline_ns(call.deadline);
        self.queue_request(call, passage)
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn closed(&self) -> Option<Refusal> {
        self.inner.closed()
    }

    fn close(&self) {
        self.core().end_stream(self.way.stream);
        self.inner.close();
    }

    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}

impl Drop for PacedLink {
    fn drop(&mut self) {
        self.close();
    }
}
