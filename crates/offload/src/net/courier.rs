//! The threads that carry the mail of an owner or an executor.
//!
//! One thread sends messages. The other one keeps a request for mail waiting at the manager. After
//! each answer it calls the timer of its owner or executor.
//!
//! Invariants: 1. A message is sent at most once. 2. Dropping the courier ends both threads. Before
//! that it calls the timer a last time and sends what waits, because a receiver may hold slots or
//! outputs for an owner or an executor that ends.
//!
//! Thread-safety: any thread may call any method.
//! Failure: messages of a request that got no answer are lost. While no manager answers, the timer
//! still runs. A courier that ends sends nothing more after the first request without an answer,
//! nor after [`DRAIN`].
//! Cost: two threads and two connections.

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

use super::mail_queue::MailQueue;
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

/// An owner or an executor whose mail a courier carries.
pub(super) trait Resident: Send + Sync + 'static {
    /// Takes messages. Returns messages to send.
    fn take(&self, messages: Vec<OffloadMessage>) -> Vec<OffloadMessage>;
    /// Handles the passing of time. Returns messages to send.
    fn tick(&self) -> Vec<OffloadMessage>;
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

/// The running threads.
pub(super) struct Courier {
    shared: Arc<Shared>,
    threads: Vec<Joiner>,
}

impl fmt::Debug for Courier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Courier({:?})", self.shared.me)
    }
}

/// The part of a courier that takes messages to send.
#[derive(Clone, Debug)]
pub(super) struct Outbox(Arc<Shared>);

impl Outbox {
    fn new(me: Correspondent, clock: Arc<dyn Clock>) -> Self {
        let (out, changed) = (Mutex::default(), Condvar::new());
        let (is_answered, answered_ns) = (AtomicBool::new(true), AtomicU64::new(clock.now_ns()));
        Self(Arc::new(Shared { me, out, changed, clock, is_answered, answered_ns }))
    }

    /// Queues messages for the manager.
    pub(super) fn send(&self, messages: Vec<OffloadMessage>) {
        if messages.is_empty() {
            return;
        }
        let mut out = self.0.out.lock();
        for message in messages {
            out.mail.push(&message);
        }
        drop(out);
        self.0.changed.notify_all();
    }
}

impl Courier {
    /// An outbox whose courier starts later.
    pub(super) fn outbox(me: Correspondent) -> Outbox {
        Outbox::new(me, SystemClock::shared())
    }

    /// Starts to carry the mail between `resident` and the managers. Errors: those of starting a
    /// thread.
    pub(super) fn start(
        outbox: &Outbox,
        managers: &[String],
        endpoints: &Arc<Endpoints>,
        resident: Weak<dyn Resident>,
    ) -> Result<Self> {
        let shared = Arc::clone(&outbox.0);
        let mut courier = Self { shared, threads: Vec::new() };
        let line = || Line::new(endpoints, managers.to_vec(), ClientId(entropy_seed()), None);
        let (sending, waiting) = (line(), line());
        // The sending thread must not end before the other one has begun.
        let fetching = Fetching::begin(&courier.shared);
        let (shared, to) = (Arc::clone(&courier.shared), resident.clone());
        let work = Box::new(move || send_all(&shared, &sending, &to));
        courier.threads.push(SystemSpawn.spawn("offload-send", work)?);
        let shared = Arc::clone(&courier.shared);
        let work = Box::new(move || {
            let _fetching = fetching;
            wait_for_mail(&shared, &waiting, &resident);
        });
        courier.threads.push(SystemSpawn.spawn("offload-mail", work)?);
        Ok(courier)
    }

    /// Whether a manager has answered a request for mail in the last [`UNREACHABLE`], or the
    /// courier has started since.
    pub(super) fn is_reachable(&self) -> bool {
        self.shared.is_reachable()
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
        self.out.lock().ends_ns = Some(ends_ns);
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

fn send_all(shared: &Arc<Shared>, line: &Line, resident: &Weak<dyn Resident>) {
    while let Some(Outgoing { messages, answer }) = next_mail(shared) {
        let post = OffloadMessage::Post { from: shared.me, wait_ms: 0, mail: messages };
        match line.ask(&post, answer) {
            Ok(answer) => deliver(shared, resident, answer),
            Err(error) => {
                tracing::debug!(%error, "messages about offloaded jobs were lost");
                if shared.is_stopped() {
                    return;
                }
            }
        }
    }
}

fn wait_for_mail(shared: &Arc<Shared>, line: &Line, resident: &Weak<dyn Resident>) {
    let wait_ms = WAIT.as_millis() as u32;
    loop {
        let post = OffloadMessage::Post { from: shared.me, wait_ms, mail: Vec::new() };
        match line.ask(&post, ANSWER) {
            Ok(answer) => {
                shared.note_answer();
                deliver(shared, resident, answer);
            }
            Err(error) => {
                if shared.is_answered.swap(false, Ordering::Relaxed) {
                    tracing::warn!(%error, "no manager answers, so jobs run where they are planned");
                }
                pause(shared);
            }
        }
        let Some(alive) = resident.upgrade() else { return };
        Outbox(Arc::clone(shared)).send(alive.tick());
        if shared.is_stopped() {
            // The resident may have begun to end after the call above.
            Outbox(Arc::clone(shared)).send(alive.tick());
            return;
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

fn deliver(shared: &Arc<Shared>, resident: &Weak<dyn Resident>, answer: OffloadMessage) {
    let OffloadMessage::Mail { mail } = answer else {
        tracing::debug!(answer = answer.name(), "a manager did not take messages");
        return;
    };
    let read = |payload: &Payload| match OffloadMessage::decode(&payload.0) {
        Ok(message) => Some(message),
        Err(malformed) => {
            tracing::warn!(%malformed, "a message about an offloaded job cannot be read");
            None
        }
    };
    let messages: Vec<OffloadMessage> = mail.iter().filter_map(read).collect();
    if let (Some(resident), false) = (resident.upgrade(), messages.is_empty()) {
        let names = message_points::names_of(&messages);
        message_points::note_jobs(MessageMoment::Received, &names);
        let answers = resident.take(messages);
        message_points::note_jobs(MessageMoment::Handled, &names);
        Outbox(Arc::clone(shared)).send(answers);
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::clock::ManualClock;

    use super::super::PAYLOAD_BYTES_MAX;
    use super::*;
    use crate::ids::{AttemptId, ExecutorId, JobId};
    use crate::owner::OwnerTerms;

    struct Nobody;

    impl Resident for Nobody {
        fn take(&self, _messages: Vec<OffloadMessage>) -> Vec<OffloadMessage> {
            Vec::new()
        }

        fn tick(&self) -> Vec<OffloadMessage> {
            Vec::new()
        }
    }

    fn cancel(number: u64) -> OffloadMessage {
        OffloadMessage::CancelJob { job: JobId { number, ..JobId::default() } }
    }

    /// An outbox with a message, whose courier ends.
    fn ending(clock: &Arc<ManualClock>) -> Outbox {
        let me = Correspondent::Executor(ExecutorId(1));
        let outbox = Outbox::new(me, Arc::clone(clock) as Arc<dyn Clock>);
        outbox.send(vec![cancel(1)]);
        outbox.0.stop();
        outbox
    }

    #[test]
    fn messages_that_wait_are_sent_before_the_end() {
        let outbox = ending(&Arc::new(ManualClock::new(0)));
        let mail = next_mail(&outbox.0).expect("a message waits");
        assert_eq!(mail.messages, [Payload::from(cancel(1).encode())]);
        assert_eq!(mail.answer, DRAIN);
        // An answer to these messages may cause further ones.
        outbox.send(vec![cancel(2)]);
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
        let outbox = Outbox::new(me, Arc::clone(&clock) as Arc<dyn Clock>);
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
        fn take(&self, _messages: Vec<OffloadMessage>) -> Vec<OffloadMessage> {
            Vec::new()
        }

        fn tick(&self) -> Vec<OffloadMessage> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                1 => vec![cancel(2)],
                _ => Vec::new(),
            }
        }
    }

    #[test]
    fn sending_thread_waits_for_the_last_timer() {
        // The clock stands still, so only the end of the other thread ends the sending one.
        let me = Correspondent::Executor(ExecutorId(1));
        let outbox = Outbox::new(me, Arc::new(ManualClock::new(0)));
        outbox.0.stop();
        let fetching = Fetching::begin(&outbox.0);
        assert!(!outbox.0.out.lock().has_ended(), "the other thread may add messages");
        drop(fetching);
        assert!(outbox.0.out.lock().has_ended());
        // No manager listens, so a message that is sent is lost.
        let managers = ["tcp:127.0.0.1:9".to_owned()];
        let leaving = Arc::new(Leaving::default());
        let resident: Arc<dyn Resident> = Arc::clone(&leaving) as Arc<dyn Resident>;
        let endpoints = Arc::new(Endpoints::new());
        let weak = Arc::downgrade(&resident);
        let courier = Courier::start(&outbox, &managers, &endpoints, weak).expect("threads");
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
        let managers = [format!("tcp:{}", silent.local_addr().expect("bound"))];
        let resident: Arc<dyn Resident> = Arc::new(Nobody);
        let endpoints = Arc::new(Endpoints::new());
        let weak = Arc::downgrade(&resident);
        let courier = Courier::start(&outbox, &managers, &endpoints, weak);
        drop(courier.expect("threads"));
        // The first request had room for the first two messages.
        let mut out = outbox.0.out.lock();
        let left: Vec<usize> = (0..3).map(|_| out.mail.take().len()).collect();
        assert_eq!(left, [1, 1, 0]);
    }
}
