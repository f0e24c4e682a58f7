//! The threads or tasks that carry the mail of an owner or an executor.
//!
//! Each manager has a scheduler, and a courier of its own. One thread of the courier sends
//! messages. The other one keeps a request for mail waiting at the manager. After each answer it
//! calls the timer of its owner or executor, whose messages may go to any scheduler. In virtual
//! time, two tasks do the same (`tasks.rs`).
//!
//! Invariants: 1. A message is sent at most once. 2. Dropping the couriers ends their threads and
//! tasks. Before that each courier calls the timer a last time and sends the waiting messages,
//! because a receiver may hold slots or outputs for an owner or an executor that ends. No courier
//! ends its sending before all of them have called the timer, because its messages may go to any
//! scheduler. 3. A message between a manager and a courier has the number [`SCHEDULER`] in its
//! lives and sessions. The owner and the executor see the number of the courier there.
//!
//! Thread-safety: any thread may call any method.
//! Failure: messages of a request that got no answer are lost. While a manager does not answer, or
//! answers immediately and without mail, the timer still runs, and requests for mail are [`WAIT`]
//! apart. A courier that ends sends nothing more after the first request without an answer, nor
//! after [`DRAIN`]. So a manager that does not answer may delay the last timer of its courier until
//! the other couriers send no more.
//! Cost: two threads or tasks and two connections for each manager.

mod tasks;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::Clock;
use archipelago_base::random::entropy_seed;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_fabric::{ClientId, Endpoints, Line};
use parking_lot::{Condvar, Mutex};

use self::tasks::CourierTasks;
use super::SCHEDULER;
use super::hasty_answer::is_hasty;
use super::mail_queue::MailQueue;
use super::runtime_parts::RuntimeParts;
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
/// Longest time for which a courier that ends begins requests. A manager that runs answers within a
/// small part of this time. The drop of a database should not wait long for a manager that does not
/// answer.
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
    /// Time until which a courier that ends sends the waiting messages. `None` before it ends.
    ends_ns: Option<u64>,
    /// Wakes the task that sends, if it waits for messages.
    waker: Option<Waker>,
}

#[derive(Debug)]
struct CourierState {
    me: Correspondent,
    /// Number of the scheduler of this manager.
    scheduler: SchedulerId,
    out: Mutex<Out>,
    changed: Condvar,
    /// Number of threads or tasks that fetch mail, of all couriers of the owner or the executor.
    /// Each of them adds messages for any manager until its end.
    fetching: Arc<AtomicUsize>,
    clock: Arc<dyn Clock>,
    /// Whether a manager has answered the latest request for mail, so that only changes are logged.
    is_answered: AtomicBool,
    /// Time of the latest answer to such a request, or of the start.
    answered_ns: AtomicU64,
}

/// Says that a thread or task fetches mail, until the drop.
struct Fetching {
    counter: Arc<AtomicUsize>,
    /// Outboxes that get the messages of the thread or task.
    all: Outboxes,
}

impl Fetching {
    fn begin(shared: &CourierState, all: &Outboxes) -> Self {
        shared.fetching.fetch_add(1, Ordering::AcqRel);
        Self { counter: Arc::clone(&shared.fetching), all: all.clone() }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::AcqRel);
        // A sender reads the counter under its lock, which each wake-up takes. So no sender misses
        // the change.
        self.all.0.iter().for_each(|outbox| outbox.0.change(|_| ()));
    }
}

/// The running threads or tasks of all couriers of an owner or an executor.
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
    pub(super) fn outboxes(me: Correspondent, managers: usize, clock: &Arc<dyn Clock>) -> Outboxes {
        let fetching: Arc<AtomicUsize> = Arc::default();
        let outbox =
            |scheduler| Outbox::new(me, scheduler, Arc::clone(clock), Arc::clone(&fetching));
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

    /// Starts to carry the mail in virtual time.
    pub(super) fn start_tasks(
        outboxes: &Outboxes,
        managers: &[String],
        parts: &RuntimeParts,
        resident: &Weak<dyn Resident>,
    ) -> Self {
        let courier = |(outbox, manager): (&Outbox, &String)| {
            Courier::start_tasks(outbox, outboxes, manager, parts, resident.clone())
        };
        Self(outboxes.0.iter().zip(managers).map(courier).collect())
    }

    /// Whether a manager has answered a request for mail in the last [`UNREACHABLE`], or the
    /// couriers have started since.
    pub(super) fn is_reachable(&self) -> bool {
        self.0.iter().any(|courier| courier.shared.is_reachable())
    }
}

impl Drop for Couriers {
    fn drop(&mut self) {
        // All couriers begin to end first. Otherwise each courier would begin only after the end of
        // the previous one.
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

/// The running threads or tasks of one courier.
struct Courier {
    shared: Arc<CourierState>,
    threads: Vec<Joiner>,
    /// The tasks; `None` for a courier with threads.
    tasks: Option<CourierTasks>,
}

impl fmt::Debug for Courier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Courier({:?}, {:?})", self.shared.me, self.shared.scheduler)
    }
}

/// The part of a courier that takes messages to send.
#[derive(Clone, Debug)]
struct Outbox(Arc<CourierState>);

impl Outbox {
    /// An outbox that shares `fetching` with the other couriers of the owner or the executor.
    fn new(
        me: Correspondent,
        scheduler: SchedulerId,
        clock: Arc<dyn Clock>,
        fetching: Arc<AtomicUsize>,
    ) -> Self {
        let (out, changed) = (Mutex::default(), Condvar::new());
        let (is_answered, answered_ns) = (AtomicBool::new(true), AtomicU64::new(clock.now_ns()));
        Self(Arc::new(CourierState {
            me,
            scheduler,
            out,
            changed,
            fetching,
            clock,
            is_answered,
            answered_ns,
        }))
    }

    /// Queues messages for the manager.
    fn send(&self, messages: Vec<OffloadMessage>) {
        if messages.is_empty() {
            return;
        }
        self.0.change(|out| {
            for message in messages {
                out.mail.push(&message.with_scheduler(SCHEDULER));
            }
        });
    }
}

impl Courier {
    /// Starts to carry the mail between `resident` and a manager. Messages that the resident
    /// returns go to `all` outboxes. Errors: those of starting a thread.
    fn start(
        outbox: &Outbox,
        all: &Outboxes,
        line: &CourierLine,
        resident: Weak<dyn Resident>,
    ) -> Result<Self> {
        let shared = Arc::clone(&outbox.0);
        let mut courier = Self { shared, threads: Vec::new(), tasks: None };
        let (sending, waiting) = (line.open(), line.open());
        // The sending thread must not end before the other one has begun.
        let fetching = Fetching::begin(&courier.shared, all);
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

    /// Starts to carry the mail between `resident` and `manager` in virtual time.
    fn start_tasks(
        outbox: &Outbox,
        all: &Outboxes,
        manager: &str,
        parts: &RuntimeParts,
        resident: Weak<dyn Resident>,
    ) -> Self {
        let shared = Arc::clone(&outbox.0);
        let carried = Carried { shared: Arc::clone(&shared), all: all.clone(), resident };
        let tasks = Some(CourierTasks::start(&carried, manager, parts));
        Self { shared, threads: Vec::new(), tasks }
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
        if let Some(tasks) = &self.tasks {
            tasks.join();
        }
    }
}

impl CourierState {
    /// Makes the threads or tasks end when they have sent all waiting messages.
    fn stop(&self) {
        let ends_ns = self.clock.now_ns() + DRAIN.as_nanos() as u64;
        self.change(|out| out.ends_ns = out.ends_ns.or(Some(ends_ns)));
    }

    /// Changes the waiting messages, and wakes the threads or the task that sends.
    fn change(&self, change: impl FnOnce(&mut Out)) {
        let waker = {
            let mut out = self.out.lock();
            change(&mut out);
            out.waker.take()
        };
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_stopped(&self) -> bool {
        self.out.lock().ends_ns.is_some()
    }

    /// Whether the courier with these waiting messages ends, and no timer adds messages any more.
    fn has_ended(&self, out: &Out) -> bool {
        out.ends_ns.is_some() && self.fetching.load(Ordering::Acquire) == 0
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

/// Next step of the sending thread or task.
#[derive(Debug)]
enum NextSend {
    /// It makes a request.
    Send(Outgoing),
    /// It waits for a change, for at most this time. `None` means that the courier does not end.
    Wait(Option<Duration>),
    /// It ends, because everything is sent or no time is left.
    End,
}

/// Takes the messages for one request, if some wait and the courier has time left.
fn next_send(shared: &CourierState, out: &mut Out) -> NextSend {
    let left = out
        .ends_ns
        .map(|ends_ns| Duration::from_nanos(ends_ns.saturating_sub(shared.clock.now_ns())));
    let answer = left.unwrap_or(ANSWER);
    if answer.is_zero() {
        return NextSend::End;
    }
    if !out.mail.is_empty() {
        return NextSend::Send(Outgoing { messages: out.mail.take(), answer });
    }
    match shared.has_ended(out) {
        true => NextSend::End,
        false => NextSend::Wait(left),
    }
}

/// Waits for messages to send, and takes those for one request. `None` if the courier ends and has
/// sent everything, or has no time left.
fn next_mail(shared: &CourierState) -> Option<Outgoing> {
    let mut out = shared.out.lock();
    loop {
        match next_send(shared, &mut out) {
            NextSend::Send(outgoing) => return Some(outgoing),
            NextSend::End => return None,
            NextSend::Wait(Some(left)) => {
                shared.changed.wait_for(&mut out, left);
            }
            NextSend::Wait(None) => shared.changed.wait(&mut out),
        }
    }
}

/// State that the threads or tasks of a courier share.
#[derive(Clone)]
struct Carried {
    shared: Arc<CourierState>,
    all: Outboxes,
    resident: Weak<dyn Resident>,
}

impl Carried {
    fn send_all(&self, line: &Line) {
        while let Some(Outgoing { messages, answer }) = next_mail(&self.shared) {
            let answered = line.ask(&self.sending_request(messages), answer);
            if !self.goes_on_sending(answered) {
                return;
            }
        }
    }

    /// The request that brings messages to the manager.
    fn sending_request(&self, messages: Vec<Payload>) -> OffloadMessage {
        OffloadMessage::Post { from: self.shared.me, wait_ms: 0, mail: messages }
    }

    /// Handles the answer to such a request. Returns whether the courier may send more.
    fn goes_on_sending(&self, answered: Result<OffloadMessage>) -> bool {
        match answered {
            Ok(answer) => {
                self.deliver(answer);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "messages about offloaded jobs were lost");
                !self.shared.is_stopped()
            }
        }
    }

    fn wait_for_mail(&self, line: &Line) {
        let post = self.mail_request();
        loop {
            let asked_ns = self.shared.clock.now_ns();
            if self.must_pause(asked_ns, line.ask(&post, ANSWER)) {
                pause(&self.shared);
            }
            if !self.goes_on_waiting() {
                return;
            }
        }
    }

    /// The request that waits for mail at the manager.
    fn mail_request(&self) -> OffloadMessage {
        let wait_ms = WAIT.as_millis() as u32;
        OffloadMessage::Post { from: self.shared.me, wait_ms, mail: Vec::new() }
    }

    /// Handles the answer to such a request of time `asked_ns`. Returns whether the courier must
    /// pause before the next one.
    fn must_pause(&self, asked_ns: u64, answered: Result<OffloadMessage>) -> bool {
        let shared = &self.shared;
        match answered {
            Ok(answer) => {
                shared.note_answer();
                let waited_ns = shared.clock.now_ns().saturating_sub(asked_ns);
                let is_hasty = is_hasty(&answer, Duration::from_nanos(waited_ns), WAIT);
                self.deliver(answer);
                is_hasty
            }
            Err(error) => {
                if shared.is_answered.swap(false, Ordering::Relaxed) {
                    let what =
                        "a manager does not answer; if none does, jobs run where they are planned";
                    tracing::warn!(%error, "{what}");
                }
                true
            }
        }
    }

    /// Calls the timer. Returns whether the courier asks for more mail.
    fn goes_on_waiting(&self) -> bool {
        let Some(alive) = self.resident.upgrade() else { return false };
        self.all.send(alive.tick());
        if !self.shared.is_stopped() {
            return true;
        }
        // The resident may have prepared its end after the call above, so the timer runs once more.
        self.all.send(alive.tick());
        false
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
fn pause(shared: &CourierState) {
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

    fn cancel_job(number: u64) -> OffloadMessage {
        OffloadMessage::CancelJob { job: JobId { number, ..JobId::default() } }
    }

    fn outbox_of(clock: &Arc<ManualClock>) -> Outbox {
        let me = Correspondent::Executor(ExecutorId(1));
        Outbox::new(me, SCHEDULER, Arc::clone(clock) as Arc<dyn Clock>, Arc::default())
    }

    /// An outbox with a message, whose courier ends.
    fn ending(clock: &Arc<ManualClock>) -> Outbox {
        let outbox = outbox_of(clock);
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
        let outbox = outbox_of(&clock);
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
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(0));
        let outboxes = Couriers::outboxes(Correspondent::Executor(ExecutorId(1)), 2, &clock);
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
        let outbox = outbox_of(&Arc::new(ManualClock::new(0)));
        let all = Outboxes(Arc::new(vec![outbox.clone()]));
        outbox.0.stop();
        let has_ended = || outbox.0.has_ended(&outbox.0.out.lock());
        let fetching = Fetching::begin(&outbox.0, &all);
        assert!(!has_ended(), "the other thread may add messages");
        drop(fetching);
        assert!(has_ended());
        // No manager listens, so a message that is sent is lost.
        let manager = "tcp:127.0.0.1:9".to_owned();
        let leaving = Arc::new(Leaving::default());
        let resident: Arc<dyn Resident> = Arc::clone(&leaving) as Arc<dyn Resident>;
        let line = CourierLine { manager, endpoints: Arc::new(Endpoints::new()) };
        let weak = Arc::downgrade(&resident);
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
        // Its second timer is over, so it has no messages.
        let resident: Arc<dyn Resident> = Arc::new(Leaving(AtomicU64::new(2)));
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
