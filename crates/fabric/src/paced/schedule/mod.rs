//! The order and the times at which messages pass one direction of a card. The functions are pure:
//! the schedule uses only the times that its caller passes.
//!
//! A message passes three stages:
//! 1. *Card.* The card transmits one slice at a time at its rate, which all streams share. It may
//!    transmit a burst ahead of its rate. A message has left the card after its last slice.
//! 2. *Stream.* The message's stream carries it at the limit per stream, one message after the
//!    other. So a message of `b` bytes that meets an idle card and stream takes `b / card + b /
//!    stream`. The card takes the next message of a stream early enough to keep the stream busy.
//! 3. *Latency.* The message arrives a constant time later.
//!
//! When the card becomes free, the next slice belongs to the best message among those that wait.
//! [`Order`] defines the best message. A message of an earlier class overtakes another one between
//! two of its slices.
//!
//! Invariants:
//! 1. Messages of one stream and class arrive in the order in which they were pushed.
//! 2. The schedule follows from the times of the pushes and landings alone. A caller that takes
//!    messages out late finds the same times, so its delays do not reduce the rate.
//! 3. Background messages that started and have not landed have at most `background_bytes_max`
//!    bytes in flight together. A single larger message may be in flight alone. A background
//!    message that waits for this limit lets no message of its class or of a later class pass.
//! 4. Every message leaves the schedule once: sent, late or closed.
//!
//! Cost: a step looks at the first message of each stream and class that wait.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::traffic::TrafficClass;

/// Number of streams above which the schedule forgets idle ones.
const STREAMS_KEPT: usize = 64;

/// The message that gets the next slice among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The message of the earliest class; of one class, the message that was pushed first. Only
    /// the streams of the foreground take turns by message, because a node's answers to different
    /// clients are among them. A card sends in this order.
    ByClass,
    /// The message of the stream whose last slice is the longest ago. Messages arrive in this
    /// order, because streams share a link fairly and the receiver cannot choose.
    ByTurn,
}

/// Limits of one direction of a card. A rate of 0 means that there is no limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) order: Order,
    pub(super) bytes_per_s: u64,
    pub(super) stream_bytes_per_s: u64,
    pub(super) latency_ns: u64,
    pub(super) burst_bytes: u64,
    pub(super) slice_bytes: u64,
    /// Limit of background bytes in flight; 0 means that there is none.
    pub(super) background_bytes_max: u64,
}

/// The stream of a message. Numbers of links and clients are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StreamKey {
    /// A link, by its number at the card.
    Link(u64),
    /// A client of the card's node, by its id.
    Client(u64),
}

/// A message before it enters the schedule.
#[derive(Debug)]
pub(super) struct Message<T> {
    pub(super) class: TrafficClass,
    pub(super) stream: StreamKey,
    pub(super) bytes: u64,
    /// Bytes that a background message has in flight until it lands.
    pub(super) room_bytes: u64,
    /// Time after which the message leaves as [`Exit::Late`].
    pub(super) deadline_ns: u64,
    pub(super) payload: T,
}

/// The way in which a message left the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// The message arrived. Its background bytes stay in flight until [`Schedule::land`].
    Sent,
    /// The deadline of the message passed before it arrived.
    Late,
    /// The stream of the message ended before it arrived.
    Closed,
}

/// A message that left the schedule.
#[derive(Debug)]
pub(super) struct Departure<T> {
    pub(super) exit: Exit,
    pub(super) class: TrafficClass,
    pub(super) bytes: u64,
    pub(super) payload: T,
}

/// A message that waits for the card, or for its next slice.
struct Waiting<T> {
    number: u64,
    ready_ns: u64,
    left_bytes: u64,
    is_started: bool,
    message: Message<T>,
}

/// The state of a stream between its messages.
#[derive(Clone, Copy, Default)]
struct StreamState {
    /// Time at which the stream has carried everything that left the card.
    free_ns: u64,
    /// Number of the stream's last slice.
    turn: u64,
}

/// Background messages that wait, and their bytes in flight.
#[derive(Clone, Copy, Default)]
struct Background {
    in_flight: u64,
    waiting: usize,
    /// Last time at which bytes landed.
    opened_ns: u64,
}

/// The queue of a class and a stream. Its order is that of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueueKey {
    class: TrafficClass,
    stream: StreamKey,
}

/// The first message of a queue, as a candidate for the next slice.
#[derive(Clone, Copy)]
struct Candidate {
    key: QueueKey,
    eligible_ns: u64,
    left_bytes: u64,
    /// The smallest preference gets the slice.
    preference: (TrafficClass, bool, u64, u64),
}

/// The next slice: its message and its start.
#[derive(Clone, Copy)]
struct Slice {
    key: QueueKey,
    start_ns: u64,
    left_bytes: u64,
}

/// Messages that wait for one direction of a card, and those that are under way.
pub(super) struct Schedule<T> {
    limits: Limits,
    now_ns: u64,
    pushed: u64,
    departed: u64,
    slices: u64,
    /// Time at which the card has transmitted everything that it took, without a burst.
    free_ns: u64,
    /// Start of the last slice. No later slice starts before it, although the rest of a message
    /// was ready earlier than the background room in which the message started.
    started_ns: u64,
    queues: BTreeMap<QueueKey, VecDeque<Waiting<T>>>,
    streams: BTreeMap<StreamKey, StreamState>,
    prune_at: usize,
    background: Background,
    /// Messages that left the card, by the time of their arrival and the order of their departure.
    underway: BTreeMap<(u64, u64), Message<T>>,
    /// Lower bound of the deadlines of all messages.
    deadline_ns: u64,
}

/// Time in which `bytes` pass at `bytes_per_s`; 0 without a limit.
fn time_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    if bytes_per_s == 0 {
        return 0;
    }
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

impl<T> Schedule<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            now_ns: 0,
            pushed: 0,
            departed: 0,
            slices: 0,
            free_ns: 0,
            started_ns: 0,
            queues: BTreeMap::new(),
            streams: BTreeMap::new(),
            prune_at: STREAMS_KEPT,
            background: Background::default(),
            underway: BTreeMap::new(),
            deadline_ns: u64::MAX,
        }
    }

    /// Decides about all slices that start by `now_ns`, which is the time of all calls until the
    /// next one. Every caller passes its time here first.
    pub(super) fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        while let Some(slice) = self.next_slice()
            && slice.start_ns <= self.now_ns
        {
            self.transmit(slice);
        }
        self.forget_idle_streams();
    }

    /// Adds a message that is ready now.
    pub(super) fn push(&mut self, message: Message<T>) {
        self.pushed += 1;
        self.deadline_ns = self.deadline_ns.min(message.deadline_ns);
        self.background.waiting += usize::from(self.is_bounded(message.class));
        let key = QueueKey { class: self.class_of(&message), stream: message.stream };
        let waiting = Waiting {
            number: self.pushed,
            ready_ns: self.now_ns,
            left_bytes: message.bytes,
            is_started: false,
            message,
        };
        self.queues.entry(key).or_default().push_back(waiting);
    }

    /// Appends the messages that have left: those that arrived, in the order of their arrival, and
    /// those whose deadline passed.
    pub(super) fn leave(&mut self, into: &mut Vec<Departure<T>>) {
        // A message that was pushed since may pass immediately.
        self.advance(self.now_ns);
        while let Some(first) = self.underway.first_entry()
            && first.key().0 <= self.now_ns
        {
            let message = first.remove();
            let late = message.deadline_ns <= self.now_ns;
            let exit = if late { self.gone(Exit::Late, message) } else { sent(message) };
            into.push(exit);
        }
        if self.now_ns >= self.deadline_ns {
            let now_ns = self.now_ns;
            self.remove(Exit::Late, |message| message.deadline_ns <= now_ns, into);
        }
    }

    /// The next time at which [`Schedule::leave`] may find a message; `None` if nothing waits.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let arrival = self.underway.first_key_value().map(|(key, _)| key.0);
        let is_empty = self.underway.is_empty() && self.queues.is_empty();
        let deadline = (!is_empty && self.deadline_ns < u64::MAX).then_some(self.deadline_ns);
        [arrival, deadline, self.next_departure_ns()].into_iter().flatten().min()
    }

    /// Takes the background bytes of a message out of flight. The message was sent and then
    /// answered.
    pub(super) fn land(&mut self, room_bytes: u64) {
        self.background.in_flight = self.background.in_flight.saturating_sub(room_bytes);
        self.background.opened_ns = self.now_ns;
    }

    /// Takes room for a background message that passes without a wait. Returns false if it must
    /// wait.
    pub(super) fn try_start_background(&mut self, room_bytes: u64) -> bool {
        // A message under way may still wait for the pump, and must not be overtaken.
        let is_first = self.background.waiting == 0 && self.underway.is_empty();
        let passes = is_first && self.has_room(room_bytes);
        if passes {
            self.background.in_flight += room_bytes;
        }
        passes
    }

    /// Ends a stream, and appends its messages.
    pub(super) fn end_stream(&mut self, stream: StreamKey, into: &mut Vec<Departure<T>>) {
        self.remove(Exit::Closed, |message| message.stream == stream, into);
        self.streams.remove(&stream);
    }

    /// Number of messages in the schedule.
    pub(super) fn len(&self) -> usize {
        self.underway.len() + self.queues.values().map(VecDeque::len).sum::<usize>()
    }

    /// Class and unsent bytes of each message that waits for the card or for its next slice.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (TrafficClass, u64)> + '_ {
        let waiting = self.queues.values().flatten();
        waiting.map(|waiting| (waiting.message.class, waiting.left_bytes))
    }

    /// Bytes of background messages that were sent and have not landed.
    pub(super) fn background_in_flight_bytes(&self) -> u64 {
        self.background.in_flight
    }

    /// The class by which a message is queued. Messages that take turns share one queue per stream.
    fn class_of(&self, message: &Message<T>) -> TrafficClass {
        match self.limits.order {
            Order::ByClass => message.class,
            Order::ByTurn => TrafficClass::Log,
        }
    }

    fn takes_turns(&self, queue: TrafficClass) -> bool {
        self.limits.order == Order::ByTurn || queue == TrafficClass::Foreground
    }

    fn is_bounded(&self, class: TrafficClass) -> bool {
        self.limits.background_bytes_max > 0 && class.is_background()
    }

    fn has_room(&self, room_bytes: u64) -> bool {
        let in_flight = self.background.in_flight;
        in_flight == 0 || in_flight.saturating_add(room_bytes) <= self.limits.background_bytes_max
    }

    fn card_ns(&self, bytes: u64) -> u64 {
        time_ns(bytes, self.limits.bytes_per_s)
    }

    /// The first messages of all queues that may get a slice.
    fn candidates(&self) -> impl Iterator<Item = Candidate> + '_ {
        let mut is_blocked = false;
        self.queues.iter().filter_map(move |(&key, queue)| {
            let first = queue.front()?;
            let mut eligible_ns = first.ready_ns;
            let stream = self.streams.get(&key.stream).copied().unwrap_or_default();
            if !first.is_started {
                if self.is_bounded(first.message.class) {
                    is_blocked |= !self.has_room(first.message.room_bytes);
                    if is_blocked {
                        return None;
                    }
                    eligible_ns = eligible_ns.max(self.background.opened_ns);
                }
                let early_ns = self.card_ns(first.message.bytes);
                eligible_ns = eligible_ns.max(stream.free_ns.saturating_sub(early_ns));
            }
            let turn = if self.takes_turns(key.class) { stream.turn } else { 0 };
            let waits = self.limits.order == Order::ByClass && !first.is_started;
            let preference = (key.class, waits, turn, first.number);
            Some(Candidate { key, eligible_ns, left_bytes: first.left_bytes, preference })
        })
    }

    fn next_slice(&self) -> Option<Slice> {
        let eligible_ns = self.candidates().map(|candidate| candidate.eligible_ns).min()?;
        let burst_ns = self.card_ns(self.limits.burst_bytes);
        let card_ns = self.free_ns.saturating_sub(burst_ns).max(self.started_ns);
        let start_ns = eligible_ns.max(card_ns);
        let waiting = self.candidates().filter(|candidate| candidate.eligible_ns <= start_ns);
        let best = waiting.min_by_key(|candidate| candidate.preference)?;
        Some(Slice { key: best.key, start_ns, left_bytes: best.left_bytes })
    }

    /// Lower bound of the time at which a message arrives that has not left the card. Decisions
    /// may be made late, so nothing needs to happen before.
    fn next_departure_ns(&self) -> Option<u64> {
        let slice = self.next_slice()?;
        let bytes = match self.limits.order {
            Order::ByClass => slice.left_bytes,
            Order::ByTurn => slice.left_bytes.min(self.limits.slice_bytes),
        };
        let better = self.candidates().filter(|candidate| {
            candidate.key.class < slice.key.class && candidate.eligible_ns > slice.start_ns
        });
        let better =
            better.map(|candidate| self.leaves_ns(candidate.eligible_ns, candidate.left_bytes));
        let leaves_ns = better.fold(self.leaves_ns(slice.start_ns, bytes), u64::min);
        Some(leaves_ns.saturating_add(self.limits.latency_ns))
    }

    /// Time at which `bytes` have left the card if their transmission starts at `start_ns`.
    fn leaves_ns(&self, start_ns: u64, bytes: u64) -> u64 {
        let free_ns = self.free_ns.max(start_ns).saturating_add(self.card_ns(bytes));
        start_ns.max(free_ns.saturating_sub(self.card_ns(self.limits.burst_bytes)))
    }

    /// Transmits a slice.
    fn transmit(&mut self, slice: Slice) {
        let bytes = match self.limits.bytes_per_s {
            0 => slice.left_bytes,
            _ => slice.left_bytes.min(self.limits.slice_bytes),
        };
        let leaves_ns = self.leaves_ns(slice.start_ns, bytes);
        self.started_ns = slice.start_ns;
        self.free_ns = self.free_ns.max(slice.start_ns).saturating_add(self.card_ns(bytes));
        self.slices += 1;
        if self.takes_turns(slice.key.class) {
            self.streams.entry(slice.key.stream).or_default().turn = self.slices;
        }
        let Some(queue) = self.queues.get_mut(&slice.key) else { return };
        let Some(first) = queue.front_mut() else { return };
        first.left_bytes -= bytes;
        let starts = !std::mem::replace(&mut first.is_started, true);
        let (class, room_bytes) = (first.message.class, first.message.room_bytes);
        let is_done = first.left_bytes == 0;
        let done = if is_done { queue.pop_front() } else { None };
        if queue.is_empty() {
            self.queues.remove(&slice.key);
        }
        if starts && self.is_bounded(class) {
            self.background.waiting -= 1;
            self.background.in_flight += room_bytes;
        }
        if let Some(done) = done {
            self.depart(leaves_ns, done.message);
        }
    }

    /// Puts a message that left the card under way.
    fn depart(&mut self, leaves_ns: u64, message: Message<T>) {
        let mut carried_ns = leaves_ns;
        if self.limits.stream_bytes_per_s > 0 {
            let stream = self.streams.entry(message.stream).or_default();
            let carry_ns = time_ns(message.bytes, self.limits.stream_bytes_per_s);
            stream.free_ns = stream.free_ns.max(leaves_ns).saturating_add(carry_ns);
            carried_ns = stream.free_ns;
        }
        self.departed += 1;
        let arrival_ns = carried_ns.saturating_add(self.limits.latency_ns);
        self.underway.insert((arrival_ns, self.departed), message);
    }

    /// A message that leaves without having been sent, after it started.
    fn gone(&mut self, exit: Exit, message: Message<T>) -> Departure<T> {
        if self.is_bounded(message.class) {
            self.land(message.room_bytes);
        }
        departure(exit, message)
    }

    /// Removes all messages for which `is_over` holds.
    fn remove(
        &mut self,
        exit: Exit,
        is_over: impl Fn(&Message<T>) -> bool,
        into: &mut Vec<Departure<T>>,
    ) {
        let underway = self.underway.extract_if(.., |_, message| is_over(message));
        let mut over: Vec<Message<T>> = underway.map(|(_, message)| message).collect();
        for queue in self.queues.values_mut() {
            for waiting in std::mem::take(queue) {
                if !is_over(&waiting.message) {
                    queue.push_back(waiting);
                } else if waiting.is_started {
                    over.push(waiting.message);
                } else {
                    let is_bounded = self.limits.background_bytes_max > 0
                        && waiting.message.class.is_background();
                    self.background.waiting -= usize::from(is_bounded);
                    into.push(departure(exit, waiting.message));
                }
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        for message in over {
            let departure = self.gone(exit, message);
            into.push(departure);
        }
        let waiting = self.queues.values().flatten().map(|waiting| &waiting.message);
        let deadlines = waiting.chain(self.underway.values()).map(|message| message.deadline_ns);
        self.deadline_ns = deadlines.min().unwrap_or(u64::MAX);
    }

    /// Forgets idle streams, so that clients that left need no memory.
    fn forget_idle_streams(&mut self) {
        if self.streams.len() < self.prune_at {
            return;
        }
        let (now_ns, queues) = (self.now_ns, &self.queues);
        self.streams.retain(|&stream, state| {
            let waits = |&class: &TrafficClass| queues.contains_key(&QueueKey { class, stream });
            state.free_ns > now_ns || TrafficClass::ALL.iter().any(waits)
        });
        self.prune_at = STREAMS_KEPT.max(2 * self.streams.len());
    }
}

fn departure<T>(exit: Exit, message: Message<T>) -> Departure<T> {
    let Message { class, bytes, payload, .. } = message;
    Departure { exit, class, bytes, payload }
}

fn sent<T>(message: Message<T>) -> Departure<T> {
    departure(Exit::Sent, message)
}
