//! The threads that carry the mail of an owner or an executor.
//!
//! One thread sends messages. The other one keeps a request for mail waiting at the manager. After
//! each answer it calls the timer of its owner or executor.
//!
//! Invariants: 1. A message is sent at most once. 2. Dropping the courier ends both threads.
//!
//! Thread-safety: any thread may call any method.
//! Failure: messages of a request that got no answer are lost. While no manager answers, the timer
//! still runs.
//! Cost: two threads and two connections.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::random::entropy_seed;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_fabric::{ClientId, Endpoints, Line};
use parking_lot::{Condvar, Mutex};

use super::MAIL_BYTES_MAX;
use crate::job::Payload;
use crate::wire::{Correspondent, OffloadMessage};

/// Time for which the manager may keep the answer of a request for mail.
const WAIT: Duration = Duration::from_millis(100);
/// Time after which a request counts as lost.
const ANSWER: Duration = Duration::from_millis(1000);
/// Largest number of messages that wait to be sent. Further messages are dropped, because the state
/// machines repeat them.
const OUT_MAX: usize = 4096;

/// An owner or an executor whose mail a courier carries.
pub(super) trait Resident: Send + Sync + 'static {
    /// Takes messages. Returns messages to send.
    fn take(&self, messages: Vec<OffloadMessage>) -> Vec<OffloadMessage>;
    /// Handles the passing of time. Returns messages to send.
    fn tick(&self) -> Vec<OffloadMessage>;
}

#[derive(Debug, Default)]
struct Out {
    messages: VecDeque<Payload>,
    is_stopped: bool,
}

#[derive(Debug)]
struct Shared {
    me: Correspondent,
    out: Mutex<Out>,
    changed: Condvar,
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
    /// Queues messages for the manager.
    pub(super) fn send(&self, messages: Vec<OffloadMessage>) {
        if messages.is_empty() {
            return;
        }
        let mut out = self.0.out.lock();
        for message in messages {
            if out.messages.len() < OUT_MAX {
                out.messages.push_back(message.encode().into());
            }
        }
        drop(out);
        self.0.changed.notify_all();
    }
}

impl Courier {
    /// An outbox whose courier starts later.
    pub(super) fn outbox(me: Correspondent) -> Outbox {
        let (out, changed) = (Mutex::default(), Condvar::new());
        Outbox(Arc::new(Shared { me, out, changed }))
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
        let (shared, to) = (Arc::clone(&courier.shared), resident.clone());
        let work = Box::new(move || send_all(&shared, &sending, &to));
        courier.threads.push(SystemSpawn.spawn("offload-send", work)?);
        let shared = Arc::clone(&courier.shared);
        let work = Box::new(move || wait_for_mail(&shared, &waiting, &resident));
        courier.threads.push(SystemSpawn.spawn("offload-mail", work)?);
        Ok(courier)
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.shared.out.lock().is_stopped = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            if let Err(error) = thread.join() {
                tracing::error!(%error, "a thread of offloading panicked");
            }
        }
    }
}

/// Waits for messages to send, and takes those for one request. `None` when the courier ends.
fn next_mail(shared: &Shared) -> Option<Vec<Payload>> {
    let mut out = shared.out.lock();
    while out.messages.is_empty() && !out.is_stopped {
        shared.changed.wait(&mut out);
    }
    if out.is_stopped {
        return None;
    }
    let (mut mail, mut bytes) = (Vec::new(), 0);
    while let Some(message) = out.messages.front() {
        bytes += message.0.len();
        if bytes > MAIL_BYTES_MAX && !mail.is_empty() {
            break;
        }
        mail.extend(out.messages.pop_front());
    }
    Some(mail)
}

fn send_all(shared: &Arc<Shared>, line: &Line, resident: &Weak<dyn Resident>) {
    while let Some(mail) = next_mail(shared) {
        let post = OffloadMessage::Post { from: shared.me, wait_ms: 0, mail };
        match line.ask(&post, ANSWER) {
            Ok(answer) => deliver(shared, resident, answer),
            Err(error) => tracing::debug!(%error, "messages about offloaded jobs were lost"),
        }
    }
}

fn wait_for_mail(shared: &Arc<Shared>, line: &Line, resident: &Weak<dyn Resident>) {
    let wait_ms = WAIT.as_millis() as u32;
    let mut is_reachable = true;
    loop {
        let post = OffloadMessage::Post { from: shared.me, wait_ms, mail: Vec::new() };
        match line.ask(&post, ANSWER) {
            Ok(answer) => {
                is_reachable = true;
                deliver(shared, resident, answer);
            }
            Err(error) => {
                if std::mem::replace(&mut is_reachable, false) {
                    tracing::warn!(%error, "no manager answers, so jobs run where they are planned");
                }
                pause(shared);
            }
        }
        let Some(alive) = resident.upgrade() else { return };
        Outbox(Arc::clone(shared)).send(alive.tick());
        drop(alive);
        if shared.out.lock().is_stopped {
            return;
        }
    }
}

/// Waits for a fixed time, or until the courier ends.
fn pause(shared: &Shared) {
    let mut out = shared.out.lock();
    if !out.is_stopped {
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
        Outbox(Arc::clone(shared)).send(resident.take(messages));
    }
}
