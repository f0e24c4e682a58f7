//! The threads that carry the mail of an owner or an executor.
//!
//! Each manager has a scheduler, and a courier of its own. One thread of the courier sends
//! messages. The other one keeps a request for mail waiting at the manager. After each answer it
//! calls the timer of its owner or executor, whose messages may go to any scheduler.
//!
//! Invariants: 1. A message is sent at most once. 2. Dropping the couriers ends their threads.
//! Before that each calls the timer a last time and sends what waits, because a receiver may hold
//! slots or outputs for an owner or an executor that ends. 3. A message between a manager and a
//! courier has the number [`SCHEDULER`] in its lives and sessions. The owner and the executor see
//! the number of the courier there.
//!
//! Thread-safety: any thread may call any method.
//! Failure: messages of a request that got no answer are lost. While no manager answers, the timer
//! still runs. A courier that ends sends nothing more after the first request without an answer,
//! nor after [`DRAIN`].
//! Cost: two threads and two connections for each manager.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::entropy_seed;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_fabric::{ClientId, Endpoints, Line};
use parking_lot::{Condvar, Mutex};

use super::SCHEDULER;
use super::hasty_answer::is_hasty;
use super::mail_queue::MailQueue;
use crate::ids::SchedulerId;
use crate::job::Payload;
use crate::message_points::{self, MessageMoment};
use crate::wire::{Correspondent, OffloadMessage};

/// Time for which the manager may keep the answer of a request for mail.
const WAIT: Duration = Duration::from_millis(100);
/// Time after which a request counts as lost.
const ANSWER: Duration = Duration::from_millis(1000);
/// Time without an answer after which no manager counts as reachable. By then the owners have taken
/// their jobs back, if the manager has ended: they wait for two seconds, and for one more answer. A
/// single lost answer means nothing.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// Longest time for which a courier that ends begins requests. A manager that lives answers within
/// a small part of it, and the drop of a database should not wait long for one that does not.
const DRAIN: Duration = Duration::from_millis(500);

/// A message to a scheduler.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Addressed {
    /// Scheduler that gets the message.
    pub(super) to: SchedulerId,
    /// Message to send.
    pub(super) message: OffloadMessage,
}

/// An owner or an executor whose mail couriers carry.
pub(super) trait Resident: Send + Sync + 'static {
    /// Takes messages of a scheduler. Returns messages to send.
    fn take(&self, from: SchedulerId, messages: Vec<OffloadMessage>) -> Vec<Addressed>;
    /// Handles the passing of time. Returns messages to send.
    fn tick(&self) -> Vec<Addressed>;
}

/// Numbers of the schedulers of `managers` managers, in the order of the list of managers.
pub(super) fn schedulers_of(managers: usize) -> Vec<SchedulerId> {
    (1..=managers as u64).map(SchedulerId).collect()
}

#[derive(Debug, Default)]
struct Out {
    mail: MailQueue,
    /// Time until which the courier sends what waits. `None` before it ends.
    ends_ns: Option<u64>,
    /// Whether the thread that fetches mail runs, which adds messages until its end.
    is_fetching: bool,
}

impl Out {
    /// Whether the courier ends and no thread of it adds messages any more.
    fn has_ended(&self) -> bool {
        self.ends_ns.is_some() && !self.is_fetching
    }
}

#[derive(Debug)]
struct Shared {
    me: Correspondent,
    /// Number of the scheduler of this manager.
    scheduler: SchedulerId,
    out: Mutex<Out>,
    changed: Condvar,
    clock: Arc<dyn Clock>,
    /// Whether a manager has answered the latest request for mail, so that only changes are logged.
    is_answered: AtomicBool,
    /// Time of the latest answer to such a request, or of the start.
    answered_ns: AtomicU64,
}

/// Says that the thread that fetches mail runs, until the drop.
struct Fetching(Arc<Shared>);

impl Fetching {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.out.lock().is_fetching = true;
        Self(Arc::clone(shared))
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.out.lock().is_fetching = false;
        self.0.changed.notify_all();
    }
}

/// The running threads of all couriers of an owner or an executor.
#[derive(Debug)]
pub(super) struct Couriers(Vec<Courier>);

/// The parts of all couriers that take messages to send, by the number of their scheduler.
#[derive(Clone, Debug)]
pub(super) struct Outboxes(Arc<Vec<Outbox>>);

impl Outboxes {
    /// Queues messages for the managers of their schedulers.
    pub(super) fn send(&self, messages: Vec<Addressed>) {
        let mut mail: Vec<Vec<OffloadMessage>> = self.0.iter().map(|_| Vec::new()).collect();
        for Addressed { to, message } in messages {
            if let Some(at) = self.0.iter().position(|outbox| outbox.0.scheduler == to) {
                mail[at].push(message);
            }
        }
        for (outbox, messages) in self.0.iter().zip(mail) {
            outbox.send(messages);
        }
    }
}

impl Couriers {
    /// Outboxes whose couriers start later, one for each manager.
    pub(super) fn outboxes(me: Correspondent, managers: usize) -> Outboxes {
        let outbox = |scheduler| Outbox::new(me, scheduler, SystemClock::shared());
        Outboxes(Arc::new(schedulers_of(managers).into_iter().map(outbox).collect()))
    }

    /// Starts to carry the mail between `resident` and the managers, for which `outboxes` were
    /// made. Errors: those of starting a thread.
    pub(super) fn start(
        outboxes: &Outboxes,
        managers: &[String],
        endpoints: &Arc<Endpoints>,
        resident: &Weak<dyn Resident>,
    ) -> Result<Self> {
        let mut couriers = Self(Vec::new());
        for (outbox, manager) in outboxes.0.iter().zip(managers) {
            let line = CourierLine { manager: manager.clone(), endpoints: Arc::clone(endpoints) };
            couriers.0.push(Courier::start(outbox, outboxes, &line, resident.clone())?);
        }
        Ok(couriers)
    }

    /// Whether a manager has answered a request for mail in the last [`UNREACHABLE`], or the
    /// couriers have started since.
    pub(super) fn is_reachable(&self) -> bool {
        self.0.iter().any(|courier| courier.shared.is_reachable())
    }
}

impl Drop for Couriers {
    fn drop(&mut self) {
        // Otherwise each courier would wait for the end of the one before.
        self.0.iter().for_each(|courier| courier.shared.stop());
    }
}

/// How a courier reaches its manager.
struct CourierLine {
    manager: String,
    endpoints: Arc<Endpoints>,
}

impl CourierLine {
    fn open(&self) -> Line {
        let ways = vec![self.manager.clone()];
        Line::new(&self.endpoints, ways, ClientId(entropy_seed()), None)
    }
}

/// The running threads of one courier.
struct Courier {
    shared: Arc<Shared>,
    threads: Vec<Joiner>,
}

impl fmt::Debug for Courier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Courier({:?}, {:?})", self.shared.me, self.shared.scheduler)
    }
}

/// The part of a courier that takes messages to send.
#[derive(Clone, Debug)]
struct Outbox(Arc<Shared>);

impl Outbox {
    fn new(me: Correspondent, scheduler: SchedulerId, clock: Arc<dyn Clock>) -> Self {
        let (out, changed) = (Mutex::default(), Condvar::new());
        let (is_answered, answered_ns) = (AtomicBool::new(true), AtomicU64::new(clock.now_ns()));
        Self(Arc::new(Shared { me, scheduler, out, changed, clock, is_answered, answered_ns }))
    }

    /// Queues messages for the manager.
    fn send(&self, messages: Vec<OffloadMessage>) {
        if messages.is_empty() {
            return;
        }
        let mut out = self.0.out.lock();
        for message in messages {
            out.mail.push(&message.with_scheduler(SCHEDULER));
        }
        drop(out);
        self.0.changed.notify_all();
    }
}

impl Courier {
    /// Starts to carry the mail between `resident` and a manager. What the resident returns goes to
    /// `all` outboxes. Errors: those of starting a thread.
    fn start(
        outbox: &Outbox,
        all: &Outboxes,
        line: &CourierLine,
        resident: Weak<dyn Resident>,
    ) -> Result<Self> {
        let shared = Arc::clone(&outbox.0);
        let mut courier = Self { shared, threads: Vec::new() };
        let (sending, waiting) = (line.open(), line.open());
        // The sending thread must not end before the other one has begun.
        let fetching = Fetching::begin(&courier.shared);
        let carried = Carried { shared: Arc::clone(&courier.shared), all: all.clone(), resident };
        let sender = carried.clone();
        let work = Box::new(move || sender.send_all(&sending));
        courier.threads.push(SystemSpawn.spawn("offload-send", work)?);
        let work = Box::new(move || {
            let _fetching = fetching;
            carried.wait_for_mail(&waiting);
        });
        courier.threads.push(SystemSpawn.spawn("offload-mail", work)?);
        Ok(courier)
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            if let Err(error) = thread.join() {
                tracing::error!(%error, "a thread of offloading panicked");
            }
        }
    }
}

impl Shared {
    /// Makes the threads end when they have sent what waits.
    fn stop(&self) {
        let ends_ns = self.clock.now_ns() + DRAIN.as_nanos() as u64;
        let mut out = self.out.lock();
        out.ends_ns = out.ends_ns.or(Some(ends_ns));
        drop(out);
        self.changed.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.out.lock().ends_ns.is_some()
    }

    /// Notes the answer to a request for mail.
    fn note_answer(&self) {
        self.answered_ns.store(self.clock.now_ns(), Ordering::Relaxed);
        self.is_answered.store(true, Ordering::Relaxed);
    }

    /// Whether the latest answer is not older than [`UNREACHABLE`].
    fn is_reachable(&self) -> bool {
        let answered_ns = self.answered_ns.load(Ordering::Relaxed);
        self.clock.now_ns().saturating_sub(answered_ns) < UNREACHABLE.as_nanos() as u64
    }
}

/// Messages for one request, and the time for which the request waits for its answer.
#[derive(Debug)]
struct Outgoing {
    messages: Vec<Payload>,
    answer: Duration,
}

/// Waits for messages to send, and takes those for one request. `None` if the courier ends and has
/// sent everything, or has no time left.
fn next_mail(shared: &Shared) -> Option<Outgoing> {
    let mut out = shared.out.lock();
    loop {
        let answer = match out.ends_ns {
            Some(ends_ns) => Duration::from_nanos(ends_ns.saturating_sub(shared.clock.now_ns())),
            None => ANSWER,
        };
        if answer.is_zero() {
            return None;
        }
        if !out.mail.is_empty() {
            return Some(Outgoing { messages: out.mail.take(), answer });
        }
        if out.has_ended() {
            return None;
        }
        if out.ends_ns.is_some() {
            shared.changed.wait_for(&mut out, answer);
        } else {
            shared.changed.wait(&mut out);
        }
    }
}

/// What the threads of a courier share.
#[derive(Clone)]
struct Carried {
    shared: Arc<Shared>,
    all: Outboxes,
    resident: Weak<dyn Resident>,
}

impl Carried {
    fn send_all(&self, line: &Line) {
        while let Some(Outgoing { messages, answer }) = next_mail(&self.shared) {
            let post = OffloadMessage::Post { from: self.shared.me, wait_ms: 0, mail: messages };
            match line.ask(&post, answer) {
                Ok(answer) => self.deliver(answer),
                Err(error) => {
                    tracing::debug!(%error, "messages about offloaded jobs were lost");
                    if self.shared.is_stopped() {
                        return;
                    }
                }
            }
        }
    }

    fn wait_for_mail(&self, line: &Line) {
        let (shared, wait_ms) = (&self.shared, WAIT.as_millis() as u32);
        loop {
            let post = OffloadMessage::Post { from: shared.me, wait_ms, mail: Vec::new() };
            let asked_ns = shared.clock.now_ns();
            match line.ask(&post, ANSWER) {
                Ok(answer) => {
                    shared.note_answer();
                    let waited_ns = shared.clock.now_ns().saturating_sub(asked_ns);
                    let is_hasty = is_hasty(&answer, Duration::from_nanos(waited_ns), WAIT);
                    self.deliver(answer);
                    if is_hasty {
                        pause(shared);
                    }
                }
                Err(error) => {
                    if shared.is_answered.swap(false, Ordering::Relaxed) {
                        let what = "a manager does not answer: without any, jobs run where they \
                                    are planned";
                        tracing::warn!(%error, "{what}");
                    }
                    pause(shared);
                }
            }
            let Some(alive) = self.resident.upgrade() else { return };
            self.all.send(alive.tick());
            if shared.is_stopped() {
                // The resident may have begun to end after the call above.
                self.all.send(alive.tick());
                return;
            }
        }
    }

    fn deliver(&self, answer: OffloadMessage) {
        let OffloadMessage::Mail { mail } = answer else {
            tracing::debug!(answer = answer.name(), "a manager did not take messages");
            return;
        };
        let from = self.shared.scheduler;
        let read = |payload: &Payload| match OffloadMessage::decode(&payload.0) {
            Ok(message) => Some(message.with_scheduler(from)),
            Err(malformed) => {
                tracing::warn!(%malformed, "a message about an offloaded job cannot be read");
                None
            }
        };
        let messages: Vec<OffloadMessage> = mail.iter().filter_map(read).collect();
        if let (Some(resident), false) = (self.resident.upgrade(), messages.is_empty()) {
            let names = message_points::names_of(&messages);
            message_points::note_jobs(MessageMoment::Received, &names);
            let answers = resident.take(from, messages);
            message_points::note_jobs(MessageMoment::Handled, &names);
            self.all.send(answers);
        }
    }
}

/// Waits for a fixed time, or until the courier ends.
fn pause(shared: &Shared) {
    let mut out = shared.out.lock();
    if out.ends_ns.is_none() {
        shared.changed.wait_for(&mut out, WAIT);
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::clock::ManualClock;

    use super::super::PAYLOAD_BYTES_MAX;
    use super::*;
    use crate::ids::{AttemptId, ExecutorId, JobId, SchedulerLife};
    use crate::owner::OwnerTerms;

    struct Nobody;

    impl Resident for Nobody {
        fn take(&self, _: SchedulerId, _messages: Vec<OffloadMessage>) -> Vec<Addressed> {
            Vec::new()
        }

        fn tick(&self) -> Vec<Addressed> {
            Vec::new()
        }
    }

    fn cancel_job(number: u64) -> OffloadMessage {
        OffloadMessage::CancelJob { job: JobId { number, ..JobId::default() } }
    }

    /// An outbox with a message, whose courier ends.
    fn ending(clock: &Arc<ManualClock>) -> Outbox {
        let me = Correspondent::Executor(ExecutorId(1));
        let outbox = Outbox::new(me, SCHEDULER, Arc::clone(clock) as Arc<dyn Clock>);
        outbox.send(vec![cancel_job(1)]);
        outbox.0.stop();
        outbox
    }

    #[test]
    fn messages_that_wait_are_sent_before_the_end() {
        let outbox = ending(&Arc::new(ManualClock::new(0)));
        let mail = next_mail(&outbox.0).expect("a message waits");
        assert_eq!(mail.messages, [Payload::from(cancel_job(1).encode())]);
        assert_eq!(mail.answer, DRAIN);
        // An answer to these messages may cause further ones.
        outbox.send(vec![cancel_job(2)]);
        assert!(next_mail(&outbox.0).is_some());
        assert!(next_mail(&outbox.0).is_none(), "everything is sent");
    }

    #[test]
    fn nothing_is_sent_when_the_time_of_the_end_is_over() {
        let clock = Arc::new(ManualClock::new(0));
        let outbox = ending(&clock);
        clock.advance(DRAIN);
        assert!(next_mail(&outbox.0).is_none());
    }

    #[test]
    fn manager_is_reachable_until_owners_have_taken_their_jobs_back() {
        let clock = Arc::new(ManualClock::new(0));
        let me = Correspondent::Executor(ExecutorId(1));
        let outbox = Outbox::new(me, SCHEDULER, Arc::clone(&clock) as Arc<dyn Clock>);
        let taken_back = Duration::from_nanos(OwnerTerms::default().silent_ns) + ANSWER;
        for _ in 0..3 {
            clock.advance(taken_back);
            assert!(outbox.0.is_reachable(), "a lost answer means nothing");
            outbox.0.note_answer();
        }
        clock.advance(UNREACHABLE);
        assert!(!outbox.0.is_reachable());
        outbox.0.note_answer();
        assert!(outbox.0.is_reachable());
    }

    /// A resident that has a message for the manager at its second timer only.
    #[derive(Default)]
    struct Leaving(AtomicU64);

    impl Resident for Leaving {
        fn take(&self, _: SchedulerId, _messages: Vec<OffloadMessage>) -> Vec<Addressed> {
            Vec::new()
        }

        fn tick(&self) -> Vec<Addressed> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                1 => vec![Addressed { to: SCHEDULER, message: cancel_job(2) }],
                _ => Vec::new(),
            }
        }
    }

    #[test]
    fn messages_go_to_the_manager_of_their_scheduler() {
        let outboxes = Couriers::outboxes(Correspondent::Executor(ExecutorId(1)), 2);
        let [first, second] = [SchedulerId(1), SchedulerId(2)];
        let life = |scheduler| SchedulerLife { scheduler, term: 5 };
        let cancel =
            |scheduler| OffloadMessage::Cancel { at: AttemptId::default(), life: life(scheduler) };
        let of = |to, number| Addressed { to, message: cancel_job(number) };
        outboxes.send(vec![of(second, 1), of(first, 2), of(second, 3), of(SchedulerId(3), 4)]);
        outboxes.send(vec![Addressed { to: second, message: cancel(second) }]);
        let mail = |at: usize| outboxes.0[at].0.out.lock().mail.take();
        let bytes = |message: OffloadMessage| Payload::from(message.encode());
        assert_eq!(mail(0), [bytes(cancel_job(2))]);
        // Managers do not know the numbers that this process gives to their schedulers.
        let sent = [cancel_job(1), cancel_job(3), cancel(SCHEDULER)].map(bytes);
        assert_eq!(mail(1), sent);
    }

    #[test]
    fn sending_thread_waits_for_the_last_timer() {
        // The clock stands still, so only the end of the other thread ends the sending one.
        let me = Correspondent::Executor(ExecutorId(1));
        let outbox = Outbox::new(me, SCHEDULER, Arc::new(ManualClock::new(0)));
        outbox.0.stop();
        let fetching = Fetching::begin(&outbox.0);
        assert!(!outbox.0.out.lock().has_ended(), "the other thread may add messages");
        drop(fetching);
        assert!(outbox.0.out.lock().has_ended());
        // No manager listens, so a message that is sent is lost.
        let manager = "tcp:127.0.0.1:9".to_owned();
        let leaving = Arc::new(Leaving::default());
        let resident: Arc<dyn Resident> = Arc::clone(&leaving) as Arc<dyn Resident>;
        let line = CourierLine { manager, endpoints: Arc::new(Endpoints::new()) };
        let (all, weak) = (Outboxes(Arc::new(vec![outbox.clone()])), Arc::downgrade(&resident));
        let courier = Courier::start(&outbox, &all, &line, weak).expect("threads");
        drop(courier);
        assert_eq!(leaving.0.load(Ordering::Relaxed), 2, "the timer is called after the stop");
        assert!(outbox.0.out.lock().mail.is_empty(), "its message was not sent");
    }

    #[test]
    fn courier_that_ends_sends_nothing_after_a_missing_answer() {
        // The clock stands still, so only the missing answer ends the courier.
        let outbox = ending(&Arc::new(ManualClock::new(0)));
        let output = Payload::from(vec![0; PAYLOAD_BYTES_MAX]);
        let commit = OffloadMessage::Commit { at: AttemptId::default(), by: ExecutorId(1), output };
        outbox.send(vec![commit.clone(), commit.clone(), commit]);
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let manager = format!("tcp:{}", silent.local_addr().expect("bound"));
        let resident: Arc<dyn Resident> = Arc::new(Nobody);
        let line = CourierLine { manager, endpoints: Arc::new(Endpoints::new()) };
        let (all, weak) = (Outboxes(Arc::new(vec![outbox.clone()])), Arc::downgrade(&resident));
        let courier = Courier::start(&outbox, &all, &line, weak);
        drop(courier.expect("threads"));
        // The first request had room for the first two messages.
        let mut out = outbox.0.out.lock();
        let left: Vec<usize> = (0..3).map(|_| out.mail.take().len()).collect();
        assert_eq!(left, [1, 1, 0]);
    }
}
