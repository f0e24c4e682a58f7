//! The state of a card: its two schedules, its counters, and the pump that runs the actions of
//! messages that leave them.
//!
//! A message that must wait enters a schedule with an [`Action`]. The pump takes the messages out
//! that have left, and runs their actions in order. It is a thread or a task, and there is one per
//! card, so the actions of a card never overtake each other.
//!
//! Invariants:
//! 1. An action runs once. If its card ends first, it runs as [`Exit::Closed`].
//! 2. No lock is held while an action runs.
//! 3. A background message passes without a wait only if neither the schedule nor the pump has
//!    another background message.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none of its own.
//! Cost: a message that waits costs an allocation, a lock, and a switch to the pump.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use archipelago_base::Result;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::runtime::Runtime;
use archipelago_base::spawn::{Spawn, SystemSpawn};
use parking_lot::Mutex;
use rustix::thread::set_current_timer_slack;

use super::bell::Bell;
use super::schedule::{Departure, Exit, Message, Schedule, StreamKey};
use super::settings::{CardSettings, CardStats, Traffic};
use crate::refusal::{Reason, Refusal};
use crate::traffic::TrafficClass;

/// Bytes that a card counts for the headers of a message.
pub(super) const HEADER_BYTES: u64 = 64;

/// Time by which the kernel may delay the timers of a pump that emulates, in nanoseconds.
const TIMER_SLACK_NS: u64 = 1_000;

/// Code that runs when a message leaves a schedule.
pub(super) struct Action(Option<Box<dyn FnOnce(Exit) + Send>>);

impl Action {
    pub(super) fn new(run: impl FnOnce(Exit) + Send + 'static) -> Self {
        Self(Some(Box::new(run)))
    }

    pub(super) fn run(mut self, exit: Exit) {
        if let Some(run) = self.0.take() {
            run(exit);
        }
    }
}

impl Drop for Action {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run(Exit::Closed);
        }
    }
}

/// The reason for which a message that did not leave completes.
pub(super) fn refusal(exit: Exit) -> Option<Refusal> {
    match exit {
        Exit::Sent => None,
        Exit::Late => Some(Reason::Deadline.into()),
        Exit::Closed => Some(Reason::Disconnected.into()),
    }
}

/// A direction of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    In,
}

/// The source of time of a card, and the kind of its pump.
#[derive(Debug)]
enum Time {
    Thread(SystemClock),
    Task(Arc<dyn Runtime>),
}

/// The schedules of both directions.
struct Lanes {
    out: Schedule<Action>,
    arriving: Schedule<Action>,
    /// Time at which the pump wakes without a ring.
    wake_ns: u64,
    /// Whether the pump runs actions that it has taken out.
    is_busy: bool,
}

impl Lanes {
    fn of(&mut self, direction: Direction) -> &mut Schedule<Action> {
        match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.arriving,
        }
    }

    fn next_ns(&self) -> u64 {
        let times = [self.out.next_ns(), self.arriving.next_ns()];
        times.into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

/// Counters of one direction, by class.
#[derive(Debug, Default)]
struct Counters([(AtomicU64, AtomicU64); TrafficClass::ALL.len()]);

impl Counters {
    fn add(&self, class: TrafficClass, bytes: u64) {
        let (messages, all_bytes) = &self.0[class as usize];
        messages.fetch_add(1, Ordering::Relaxed);
        all_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> [Traffic; TrafficClass::ALL.len()] {
        std::array::from_fn(|class| {
            let (messages, bytes) = &self.0[class];
            Traffic {
                messages: messages.load(Ordering::Relaxed),
                bytes: bytes.load(Ordering::Relaxed),
            }
        })
    }
}

/// The state of a card, which its links share.
pub(super) struct CardCore {
    pub(super) settings: CardSettings,
    delays: [bool; 2],
    time: Time,
    bell: Arc<Bell>,
    sent: Counters,
    received: Counters,
    lanes: Mutex<Lanes>,
    streams: AtomicU64,
}

impl CardCore {
    fn new(settings: &CardSettings, time: Time) -> Arc<Self> {
        Arc::new(Self {
            settings: *settings,
            delays: [settings.delays_sending(), settings.delays_arrival()],
            time,
            bell: Arc::default(),
            sent: Counters::default(),
            received: Counters::default(),
            lanes: Mutex::new(Lanes {
                out: Schedule::new(settings.sending()),
                arriving: Schedule::new(settings.arriving()),
                wake_ns: u64::MAX,
                is_busy: false,
            }),
            streams: AtomicU64::new(0),
        })
    }

    /// Makes a card with a thread of its own as pump.
    pub(super) fn on_thread(settings: &CardSettings) -> Result<Arc<Self>> {
        settings.validate()?;
        let core = Self::new(settings, Time::Thread(SystemClock::new()));
        let (pumped, bell) = (Arc::downgrade(&core), Arc::clone(&core.bell));
        let delays = core.delays.contains(&true);
        let pump = Box::new(move || {
            if delays {
                // Otherwise the kernel delays timers by 50 µs. A refusal only makes the pump late.
                let _ = set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
            }
            while let Some(left_ns) = turn_of(&pumped) {
                bell.wait(left_ns);
            }
        });
        let _ends_with_the_card = SystemSpawn.spawn("fabric-card", pump)?;
        Ok(core)
    }

    /// Makes a card with a task of `runtime` as pump.
    pub(super) fn over(settings: &CardSettings, runtime: &Arc<dyn Runtime>) -> Result<Arc<Self>> {
        settings.validate()?;
        let core = Self::new(settings, Time::Task(Arc::clone(runtime)));
        let (pumped, bell) = (Arc::downgrade(&core), Arc::clone(&core.bell));
        let sleeper = Arc::clone(runtime);
        let pump = async move {
            while let Some(left_ns) = turn_of(&pumped) {
                bell.rest(&*sleeper, left_ns).await;
            }
        };
        runtime.spawn("fabric-card", Box::pin(pump));
        Ok(core)
    }

    pub(super) fn now_ns(&self) -> u64 {
        match &self.time {
            Time::Thread(clock) => clock.now_ns(),
            Time::Task(runtime) => runtime.now_ns(),
        }
    }

    /// A number for the messages of a link, which no other link of the card has.
    pub(super) fn new_stream(&self) -> StreamKey {
        StreamKey::Link(self.streams.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether messages of a direction need time.
    pub(super) fn delays(&self, direction: Direction) -> bool {
        self.delays[direction as usize]
    }

    /// Whether the bytes of a class in flight are bounded.
    pub(super) fn bounds(&self, class: TrafficClass) -> bool {
        class.is_background() && self.settings.background_in_flight_bytes > 0
    }

    pub(super) fn count(&self, direction: Direction, class: TrafficClass, bytes: u64) {
        match direction {
            Direction::Out => self.sent.add(class, bytes),
            Direction::In => self.received.add(class, bytes),
        }
    }

    /// Puts a message into a schedule.
    pub(super) fn submit(&self, direction: Direction, message: Message<Action>) {
        let now_ns = self.now_ns();
        let mut lanes = self.lanes.lock();
        let lane = lanes.of(direction);
        lane.advance(now_ns);
        lane.push(message);
        self.wake(&mut lanes);
    }

    /// Takes room for a background message. Returns false if it must wait.
    pub(super) fn try_start_background(&self, room_bytes: u64) -> bool {
        let now_ns = self.now_ns();
        let mut lanes = self.lanes.lock();
        lanes.out.advance(now_ns);
        !lanes.is_busy && lanes.out.try_start_background(room_bytes)
    }

    /// Takes background bytes out of flight, whose message was answered.
    pub(super) fn land(&self, room_bytes: u64) {
        let now_ns = self.now_ns();
        let mut lanes = self.lanes.lock();
        lanes.out.advance(now_ns);
        lanes.out.land(room_bytes);
        self.wake(&mut lanes);
    }

    /// Ends the messages of a stream.
    pub(super) fn end_stream(&self, stream: StreamKey) {
        let now_ns = self.now_ns();
        let mut ended = Vec::new();
        {
            let mut lanes = self.lanes.lock();
            for direction in [Direction::Out, Direction::In] {
                let lane = lanes.of(direction);
                lane.advance(now_ns);
                lane.end_stream(stream, &mut ended);
            }
            self.wake(&mut lanes);
        }
        for departure in ended {
            departure.payload.run(departure.exit);
        }
    }

    pub(super) fn stats(&self) -> CardStats {
        let (sent, received) = (self.sent.read(), self.received.read());
        let mut stats = CardStats { sent, received, ..CardStats::default() };
        let lanes = self.lanes.lock();
        stats.queued = lanes.out.len() + lanes.arriving.len();
        stats.background_in_flight_bytes = lanes.out.background_in_flight_bytes();
        for (class, bytes) in lanes.out.waiting() {
            let waiting = &mut stats.waiting[class as usize];
            waiting.messages += 1;
            waiting.bytes += bytes;
        }
        stats
    }

    /// Rings the bell if the pump would otherwise wake too late.
    fn wake(&self, lanes: &mut Lanes) {
        let next_ns = lanes.next_ns();
        if next_ns < lanes.wake_ns {
            lanes.wake_ns = next_ns;
            self.bell.ring();
        }
    }

    /// Runs the actions of all messages that have left. Returns the time until the next one;
    /// `u64::MAX` if nothing waits.
    fn turn(&self) -> u64 {
        loop {
            let now_ns = self.now_ns();
            let (mut out, mut arrived) = (Vec::new(), Vec::new());
            {
                let mut lanes = self.lanes.lock();
                lanes.out.advance(now_ns);
                lanes.out.leave(&mut out);
                lanes.arriving.advance(now_ns);
                lanes.arriving.leave(&mut arrived);
                lanes.is_busy = !(out.is_empty() && arrived.is_empty());
                if !lanes.is_busy {
                    lanes.wake_ns = lanes.next_ns();
                    return lanes.wake_ns.saturating_sub(now_ns);
                }
                // The pump looks again before it waits, so no other thread needs to wake it.
                lanes.wake_ns = 0;
            }
            self.run_all(Direction::In, arrived);
            self.run_all(Direction::Out, out);
        }
    }

    fn run_all(&self, direction: Direction, departures: Vec<Departure<Action>>) {
        for Departure { exit, class, bytes, payload } in departures {
            if exit == Exit::Sent {
                self.count(direction, class, bytes);
            }
            payload.run(exit);
        }
    }
}

impl Drop for CardCore {
    fn drop(&mut self) {
        // The pump notices that the card has ended.
        self.bell.ring();
    }
}

/// Runs one turn of the pump. `None` if the card has ended.
fn turn_of(core: &Weak<CardCore>) -> Option<u64> {
    core.upgrade().map(|core| core.turn())
}
