//! The scheduler in the manager's process, and the mail that waits there for owners and executors.
//!
//! Invariants:
//! 1. A life of the scheduler lasts as long as its term. The manager gives one term for the life of
//!    its process, and keeps it while it stands by.
//! 2. Mail for the owner of a database goes to the newest owner. Only the refusal of an older owner
//!    goes to that older owner.
//! 3. A correspondent has at most one request that waits for mail.
//! 4. A pause of this process makes no owner and no executor look silent, and no job late
//!    ([`AwakeTime`]).
//!
//! Thread-safety: any thread may call any method. One lock guards all.
//! Failure: mail of a correspondent that does not fetch it is dropped after a minute, and before if
//! it is too much.
//! Cost: one lock and O(messages) for each request.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::clock::Clock;
use archipelago_fabric::{Reply, Request};
use parking_lot::Mutex;

use super::SCHEDULER;
use super::awake::AwakeTime;
use super::mail_queue::MailQueue;
use crate::ids::SchedulerLife;
use crate::job::Payload;
use crate::message_points::{self, MessageMoment};
use crate::scheduler::{Party, Scheduler, SchedulerFigures, SchedulerTerms, Sent};
use crate::wire::{Correspondent, OffloadMessage};

const MS: u64 = 1_000_000;
/// Time after which the mailbox of a silent correspondent is removed.
const SILENT_NS: u64 = 60_000 * MS;
/// Longest time for which an answer may be delayed.
const WAIT_MS_MAX: u32 = 1_000;

#[derive(Default)]
struct Mailbox {
    mail: MailQueue,
    /// The waiting request, and the time until which it may wait.
    waiting: Option<(Reply, u64)>,
    heard_ns: u64,
}

#[derive(Default)]
struct DeskState {
    time: AwakeTime,
    scheduler: Option<Scheduler>,
    boxes: BTreeMap<Correspondent, Mailbox>,
}

/// The scheduler of a manager, with a mailbox for each owner and each executor.
pub struct SchedulerDesk {
    state: Mutex<DeskState>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for SchedulerDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SchedulerDesk")
    }
}

impl SchedulerDesk {
    /// A desk without a scheduler.
    #[must_use]
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        Self { state: Mutex::default(), clock: Arc::clone(clock) }
    }

    /// Answers a request. `term` is that of the scheduler; `None` before it begins.
    pub fn handle(&self, term: Option<u64>, request: &Request<'_>, reply: Reply) {
        message_points::note_request(MessageMoment::Received, request.body);
        self.answer(term, request, reply);
        message_points::note_request(MessageMoment::Handled, request.body);
    }

    fn answer(&self, term: Option<u64>, request: &Request<'_>, reply: Reply) {
        let mut state = self.state.lock();
        let now_ns = state.time.until(self.clock.now_ns());
        state.follow(term, now_ns);
        let Some(scheduler) = &mut state.scheduler else {
            return reply.send(OffloadMessage::Standby {}.encode());
        };
        match OffloadMessage::decode(request.body) {
            Ok(OffloadMessage::Post { from, wait_ms, mail }) => {
                state.post(now_ns, from, wait_ms, &mail, reply);
            }
            Ok(OffloadMessage::Status {}) => {
                let status = scheduler.status(now_ns);
                reply.send(OffloadMessage::StatusIs { status }.encode());
            }
            Ok(OffloadMessage::Jobs {}) => {
                let jobs = scheduler.job_list(now_ns);
                reply.send(OffloadMessage::JobsAre { jobs }.encode());
            }
            Ok(OffloadMessage::Drain { executor, is_draining }) => {
                let sent = scheduler.drain(now_ns, executor, is_draining);
                let status = scheduler.status(now_ns);
                state.deliver(None, sent);
                reply.send(OffloadMessage::StatusIs { status }.encode());
            }
            Ok(other) => {
                tracing::warn!(message = other.name(), "a message came without an envelope");
                reply.send(OffloadMessage::Malformed {}.encode());
            }
            Err(malformed) => {
                tracing::warn!(client = %request.client, %malformed, "a request was refused");
                reply.send(OffloadMessage::Malformed {}.encode());
            }
        }
    }

    /// Handles the passing of time. The driver calls it in short intervals.
    pub fn tick(&self, term: Option<u64>) {
        let mut state = self.state.lock();
        let now_ns = state.time.until(self.clock.now_ns());
        state.follow(term, now_ns);
        let Some(scheduler) = &mut state.scheduler else { return };
        let sent = scheduler.on_timer(now_ns);
        // Only checkers read the list of starts, which would grow for the whole term.
        drop(scheduler.take_started());
        state.deliver(None, sent);
        for mailbox in state.boxes.values_mut() {
            if matches!(mailbox.waiting, Some((_, until_ns)) if until_ns <= now_ns) {
                mailbox.answer();
            }
        }
        state.boxes.retain(|_, mailbox| mailbox.heard_ns + SILENT_NS > now_ns);
    }

    /// Number of jobs that the scheduler knows, with outputs that wait for a verdict. The number is
    /// 0 before the scheduler begins.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        let state = self.state.lock();
        let now_ns = self.clock.now_ns();
        state.scheduler.as_ref().map_or(0, |scheduler| scheduler.job_list(now_ns).jobs_total)
    }

    /// The figures of the scheduler for metrics; `None` before it begins. They cost a pass over the
    /// jobs under the lock.
    #[must_use]
    pub fn figures(&self) -> Option<SchedulerFigures> {
        let mut state = self.state.lock();
        let now_ns = state.time.until(self.clock.now_ns());
        state.scheduler.as_ref().map(|scheduler| scheduler.figures(now_ns))
    }
}

impl DeskState {
    /// Begins or ends a life of the scheduler with its term.
    fn follow(&mut self, term: Option<u64>, now_ns: u64) {
        let known = self.scheduler.as_ref().map(|scheduler| scheduler.life().term);
        if known == term {
            return;
        }
        self.boxes.clear();
        self.scheduler = term.map(|term| {
            let life = SchedulerLife { scheduler: SCHEDULER, term };
            Scheduler::new(now_ns, life, SchedulerTerms::default())
        });
    }

    fn post(
        &mut self,
        now_ns: u64,
        from: Correspondent,
        wait_ms: u32,
        mail: &[Payload],
        reply: Reply,
    ) {
        if let (Correspondent::Owner(owner), Some(scheduler)) = (from, &self.scheduler)
            && scheduler.owner_of(owner.db).is_none()
        {
            // An executor may have committed a job of an owner that sends no message itself. The
            // greeting makes that owner known.
            self.receive(now_ns, from, OffloadMessage::Greet { owner, needs: Vec::new() });
        }
        for payload in mail {
            match OffloadMessage::decode(&payload.0) {
                Ok(message) => self.receive(now_ns, from, message),
                Err(malformed) => {
                    tracing::warn!(%malformed, "a message about an offloaded job cannot be read");
                }
            }
        }
        let mailbox = self.boxes.entry(from).or_default();
        mailbox.heard_ns = now_ns;
        if wait_ms == 0 {
            return reply.send(mailbox.take().encode());
        }
        let until_ns = now_ns + u64::from(wait_ms.min(WAIT_MS_MAX)) * MS;
        // An older request that still waits is answered without mail.
        if let Some((older, _)) = mailbox.waiting.replace((reply, until_ns)) {
            older.send(OffloadMessage::Mail { mail: Vec::new() }.encode());
        }
        if !mailbox.mail.is_empty() {
            mailbox.answer();
        }
    }

    fn receive(&mut self, now_ns: u64, from: Correspondent, message: OffloadMessage) {
        let Some(scheduler) = &mut self.scheduler else { return };
        let sent = match from {
            Correspondent::Owner(owner) => scheduler.on_owner(now_ns, owner, message),
            Correspondent::Executor(executor) => scheduler.on_executor(now_ns, executor, message),
        };
        self.deliver(Some(from), sent);
    }

    /// Puts messages into mailboxes. `asker` is the correspondent whose message caused them.
    fn deliver(&mut self, asker: Option<Correspondent>, sent: Vec<Sent>) {
        for Sent { to, message } in sent {
            let newest = |db| self.scheduler.as_ref().and_then(|scheduler| scheduler.owner_of(db));
            let to = match (to, &message, asker) {
                (Party::Executor(executor), ..) => Correspondent::Executor(executor),
                (Party::Owner(_), OffloadMessage::Stale { .. }, Some(asker)) => asker,
                (Party::Owner(db), ..) => match newest(db) {
                    Some(owner) => Correspondent::Owner(owner),
                    None => continue,
                },
            };
            let mailbox = self.boxes.entry(to).or_default();
            mailbox.mail.push(&message);
            if Some(to) != asker {
                mailbox.answer_if_waiting();
            }
        }
    }
}

impl Mailbox {
    /// Mail for one answer.
    fn take(&mut self) -> OffloadMessage {
        OffloadMessage::Mail { mail: self.mail.take() }
    }

    fn answer(&mut self) {
        if let Some((reply, _)) = self.waiting.take() {
            reply.send(self.take().encode());
        }
    }

    fn answer_if_waiting(&mut self) {
        if !self.mail.is_empty() {
            self.answer();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use archipelago_base::Epoch;
    use archipelago_base::clock::ManualClock;

    use super::*;
    use crate::decide::{InputReach, Load};
    use crate::failure::ShortText;
    use crate::ids::{
        Attempt, ExecutorId, JobId, NumberRange, OffloadDb, OwnerSession, OwnerStamp, Token,
    };
    use crate::job::{JobKind, JobOrder, PreparedAttempt};

    const EXECUTOR: ExecutorId = ExecutorId(10);
    const TERM: Option<u64> = Some(5);

    /// A desk with one executor, which has one slot.
    fn desk_with_executor(clock: &Arc<ManualClock>) -> SchedulerDesk {
        let shared: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
        let desk = SchedulerDesk::new(&shared);
        desk.tick(TERM);
        let beat = OffloadMessage::Beat {
            executor: EXECUTOR,
            names: vec!["add".to_owned()],
            address: ShortText::new("reef:7"),
            slots: 1,
            load: Load::default(),
            reach: InputReach::default(),
            running: Vec::new(),
            is_draining: false,
        };
        desk.state.lock().receive(0, Correspondent::Executor(EXECUTOR), beat);
        desk
    }

    fn executors(desk: &SchedulerDesk) -> usize {
        let mut state = desk.state.lock();
        let now_ns = state.time.until(desk.clock.now_ns());
        state.scheduler.as_ref().map_or(0, |scheduler| scheduler.status(now_ns).executors.len())
    }

    #[test]
    fn only_silence_while_the_process_is_awake_counts() {
        let clock = Arc::new(ManualClock::new(0));
        let desk = desk_with_executor(&clock);
        assert_eq!(executors(&desk), 1);
        // The process stands still for an hour.
        clock.advance(Duration::from_secs(3600));
        desk.tick(TERM);
        assert_eq!(executors(&desk), 1);
        let gone = Duration::from_nanos(SchedulerTerms::default().gone_ns);
        for _ in 0..100 {
            clock.advance(gone / 100);
            desk.tick(TERM);
        }
        assert_eq!(executors(&desk), 0, "the executor is silent while the process is awake");
    }

    #[test]
    fn pause_of_the_manager_drops_no_owner() {
        let clock = Arc::new(ManualClock::new(0));
        let desk = desk_with_executor(&clock);
        let owner = OwnerStamp { db: OffloadDb([3; 16]), epoch: Epoch(7), token: Token([1; 16]) };
        let greet = OffloadMessage::Greet { owner, needs: Vec::new() };
        desk.state.lock().receive(0, Correspondent::Owner(owner), greet);
        let known = || {
            let state = desk.state.lock();
            state.scheduler.as_ref().and_then(|scheduler| scheduler.owner_of(owner.db))
        };
        clock.advance(Duration::from_secs(3600));
        desk.tick(TERM);
        assert_eq!(known(), Some(owner));
        let orphan = Duration::from_nanos(SchedulerTerms::default().orphan_ns);
        for _ in 0..1000 {
            clock.advance(orphan / 1000);
            desk.tick(TERM);
        }
        assert_eq!(known(), None, "the owner is silent while the process is awake");
    }

    #[test]
    fn started_jobs_leave_nothing_behind() {
        const JOBS: u64 = 50;
        let desk = desk_with_executor(&Arc::new(ManualClock::new(0)));
        let owner = OwnerStamp { db: OffloadDb([3; 16]), epoch: Epoch(7), token: Token([1; 16]) };
        let life = SchedulerLife { scheduler: SCHEDULER, term: 5 };
        for number in 1..=JOBS {
            let id = JobId { db: owner.db, epoch: owner.epoch, number };
            let numbers = NumberRange { first: number, count: 1 };
            let prepare = OffloadMessage::Prepare {
                order: JobOrder { id, kind: JobKind::Compaction, bytes: 1, ..JobOrder::default() },
                session: OwnerSession { life, number: 1 },
                attempts: vec![PreparedAttempt { attempt: Attempt(1), numbers }],
                oldest: 1,
                spec: Some(Payload::default()),
            };
            let mut state = desk.state.lock();
            state.receive(0, Correspondent::Owner(owner), prepare);
            let cancel = OffloadMessage::CancelJob { job: id };
            state.receive(0, Correspondent::Owner(owner), cancel);
            drop(state);
            desk.tick(TERM);
        }
        assert_eq!(desk.figures().map(|figures| figures.counters.assigned), Some(JOBS));
        let started = desk.state.lock().scheduler.as_mut().map(Scheduler::take_started);
        assert_eq!(started, Some(Vec::new()), "each tick has emptied the list");
    }
}
