//! The scheduler of offloaded jobs, as a state machine without clock, lock or I/O (O³-LSM §4.3).
//!
//! Owners send it jobs, each with the attempts that it may give out. It keeps one queue for flushes
//! and one for other jobs, and chooses an executor for the head of a queue. It forwards what
//! executors commit to the owner. It keeps nothing on disk. Owners repeat PREPARE and executors
//! repeat COMMIT, also to the next life.
//!
//! | part | file |
//! | --- | --- |
//! | messages of owners and executors, and time | `mod.rs` |
//! | executors and their beats | `executors.rs` |
//! | jobs, their attempts and the queues | `jobs.rs` |
//! | the list of jobs for operators, and figures | `listing.rs` |
//!
//! Invariants:
//! 1. The scheduler gives out an attempt only if the attempt was prepared for the present session
//!    of its owner, and each attempt at most once (docs/design/offload.md, rule 1). A scheduler
//!    that lost or dropped its state could otherwise give the same file numbers to a second
//!    executor.
//! 2. Jobs of one queue start in the order of their arrival. Only the head of a queue is
//!    considered. A job whose attempt has failed goes back to the front.
//! 3. The scheduler does nothing for an owner if it knows a newer owner of the same database (rule
//!    2).
//! 4. The scheduler forwards COMMIT until the owner's verdict comes, also for jobs that it does not
//!    know. It decides about outputs in one case: if the owner was silent for too long, the verdict
//!    is *forget*, which removes nothing (rules 4 and 13).
//! 5. Each beat that names an attempt which this life has given up is answered with CANCEL. So an
//!    executor that was silent, or that missed a CANCEL, soon ends the attempt.
//! 6. The scheduler keeps no state of an owner that was silent for a minute. If it returns, a new
//!    session begins and its jobs are prepared again.
//!
//! Thread-safety: none; the driver holds a lock.
//! Failure: an executor that is silent for a second loses its attempts. A job without progress for
//! five seconds is cancelled. If a job waits for a bounded resource, its wait counts as progress
//! for one minute. The minute begins at the first beat that reports the wait after the job's last
//! byte. Five seconds after it, the job is cancelled. A job whose attempts are used up goes back to
//! its owner. So does a flush that no executor has a slot for within a second. An executor that
//! declines for want of a slot gets no job before its next beat. The scheduler logs
//! the reason of each failed attempt, and the owner gets that of the latest one with the job.
//! Cost: O(jobs + executors) for each call of the timer.

mod executors;
mod jobs;
mod listing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::executors::Executors;
use self::jobs::{Entered, Jobs, Prepared};
use crate::decide::{Choice, choose, choose_again};
use crate::failure::{FailedAttempt, ShortText};
use crate::ids::{
    AttemptId, ExecutorId, JobId, OffloadDb, OwnerSession, OwnerStamp, SchedulerLife,
};
use crate::job::{DeclineWhy, LocalWhy, Payload, Verdict};
use crate::sabotage::Sabotage;
use crate::wire::{
    JobList, JobPhase, JobStanding, OffloadMessage, OwnerReport, OwnerStanding, QueueStanding,
    RecentFailure, Running, SchedulerStatus,
};

pub use self::listing::{JobFigures, SchedulerFigures};

const MS: u64 = 1_000_000;
/// Longest time after which outputs are sent to their owner again. They have up to 200 KiB, and use
/// the link of the owner, which offloading should spare.
const DONE_MAX_NS: u64 = 4_000 * MS;

/// Owners in one status at most. Each has at most 700 bytes.
const OWNERS_LISTED_MAX: usize = 100;

/// Time limits of a scheduler, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerTerms {
    /// Time between two beats of an executor. Default: 200 ms.
    pub beat_ns: u64,
    /// Silence after which an executor counts as gone. Default: 1 s.
    pub gone_ns: u64,
    /// Time within which an executor must answer an assignment, and after which messages are
    /// repeated. Default: 500 ms.
    pub answer_ns: u64,
    /// Time without progress after which an attempt is given up. Default: 5 s.
    pub progress_ns: u64,
    /// Time for which beats of an attempt that waits count as progress, from the first such beat
    /// since its last byte. It waits for a bounded resource: room for images, or its part of a rate
    /// limit. After this time, `progress_ns` passes before the attempt is given up. Default: 60 s.
    pub wait_ns: u64,
    /// Longest time that a flush waits for a slot. Then its owner runs it, because writers may wait
    /// for it. Default: 1 s.
    pub queue_ns: u64,
    /// Silence of an owner after which its session ends, with its jobs, their attempts and the
    /// outputs that wait for its verdict. An owner greets each second, and takes its jobs back when
    /// no scheduler has answered for two seconds. So after a minute the owner does not want these
    /// jobs any more, and they only hold slots of executors. Memtable shards are kept for longer,
    /// because an open of the database can use them. Default: 60 s.
    pub orphan_ns: u64,
}

impl Default for SchedulerTerms {
    fn default() -> Self {
        Self {
            beat_ns: 200 * MS,
            gone_ns: 1_000 * MS,
            answer_ns: 500 * MS,
            progress_ns: 5_000 * MS,
            wait_ns: 60_000 * MS,
            queue_ns: 1_000 * MS,
            orphan_ns: 60_000 * MS,
        }
    }
}

/// A receiver of messages of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// Owner of this database.
    Owner(OffloadDb),
    /// Executor with this number.
    Executor(ExecutorId),
}

/// A message that a scheduler sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Receiver of the message.
    pub to: Party,
    /// Message to send.
    pub message: OffloadMessage,
}

/// The newest owner of a database.
#[derive(Clone, Debug)]
struct KnownOwner {
    stamp: OwnerStamp,
    /// Number of its session in this life.
    session: u64,
    /// Time at which this session began.
    since_ns: u64,
    /// Time of its latest message.
    heard_ns: u64,
    /// Its latest report, and the time at which that arrived.
    report: Option<(OwnerReport, u64)>,
}

impl KnownOwner {
    /// The owner for operators; `None` if it has not reported.
    fn standing(&self, now_ns: u64) -> Option<OwnerStanding> {
        let (report, at_ns) = self.report.clone()?;
        let OwnerStamp { db, epoch, .. } = self.stamp;
        let age_ms = now_ns.saturating_sub(at_ns) / MS;
        Some(OwnerStanding { db, epoch, age_ms, report })
    }
}

/// Outputs that wait for a verdict.
#[derive(Clone, Debug)]
struct Commit {
    by: ExecutorId,
    output: Payload,
    arrived_ns: u64,
    /// Time at which the owner gets them again, and the wait after that.
    next_ns: u64,
    wait_ns: u64,
}

impl Commit {
    /// The job of these outputs for operators, if this life does not know it. The address of its
    /// executor is missing.
    fn standing(&self, now_ns: u64, at: AttemptId) -> JobStanding {
        let (phase, executor) = (JobPhase::Committed, Some(self.by));
        let age_ms = now_ns.saturating_sub(self.arrived_ns) / MS;
        JobStanding { at, phase, executor, age_ms, idle_ms: age_ms, ..JobStanding::default() }
    }
}

/// Counters of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounters {
    /// Jobs that arrived.
    pub arrived: u64,
    /// Attempts that were given to executors.
    pub assigned: u64,
    /// Attempts that executors declined.
    pub declined: u64,
    /// Attempts that ended without a commit.
    pub failed: u64,
    /// Jobs that went back to their owners.
    pub given_back: u64,
    /// Jobs whose outputs were installed.
    pub installed: u64,
}

/// The state of one life of a scheduler.
#[derive(Clone, Debug)]
pub struct Scheduler {
    life: SchedulerLife,
    terms: SchedulerTerms,
    /// Newest owner of each database, until it is silent for too long.
    owners: BTreeMap<OffloadDb, KnownOwner>,
    /// Number of sessions that have begun.
    sessions: u64,
    jobs: Jobs,
    executors: Executors,
    commits: BTreeMap<AttemptId, Commit>,
    counters: SchedulerCounters,
    /// The latest failed attempt, and its time.
    last_failure: Option<(FailedAttempt, u64)>,
    sabotage: Sabotage,
    /// Time until which this life waits for beats before it gives a job back for lack of an
    /// executor.
    settled_ns: u64,
    /// Time from which an owner that has sent nothing to this life counts as silent for too long.
    owners_settled_ns: u64,
    /// Jobs in the order in which their first attempts were offered.
    started: Vec<JobId>,
}

impl Scheduler {
    /// A scheduler that knows nothing. The term of its life must be larger than that of each
    /// earlier life of the same scheduler.
    #[must_use]
    pub fn new(now_ns: u64, life: SchedulerLife, terms: SchedulerTerms) -> Self {
        Self {
            life,
            terms,
            owners: BTreeMap::new(),
            sessions: 0,
            jobs: Jobs::default(),
            executors: Executors::default(),
            commits: BTreeMap::new(),
            counters: SchedulerCounters::default(),
            last_failure: None,
            sabotage: Sabotage::default(),
            settled_ns: now_ns + terms.gone_ns,
            owners_settled_ns: now_ns + terms.orphan_ns,
            started: Vec::new(),
        }
    }

    /// The same scheduler, which leaves out the steps that `sabotage` names.
    #[must_use]
    pub fn sabotaged(self, sabotage: Sabotage) -> Self {
        Self { sabotage, ..self }
    }

    /// This life of the scheduler.
    #[must_use]
    pub fn life(&self) -> SchedulerLife {
        self.life
    }

    /// The counters of this life.
    #[must_use]
    pub fn counters(&self) -> SchedulerCounters {
        self.counters
    }

    /// Figures of this life for metrics. They cost a pass over the jobs.
    #[must_use]
    pub fn figures(&self, now_ns: u64) -> SchedulerFigures {
        SchedulerFigures {
            counters: self.counters,
            jobs: self.jobs.figures(now_ns),
            executors: self.executors.count(),
            slots: self.executors.slots(&[]),
        }
    }

    /// The executors and the jobs of this life, for operators.
    #[must_use]
    pub fn status(&self, now_ns: u64) -> SchedulerStatus {
        let last_failure = self.last_failure.clone().map(|(attempt, at_ns)| RecentFailure {
            attempt,
            age_ms: now_ns.saturating_sub(at_ns) / MS,
        });
        let mut owners: Vec<OwnerStanding> =
            self.owners.values().filter_map(|known| known.standing(now_ns)).collect();
        let owners_total = u32::try_from(owners.len()).unwrap_or(u32::MAX);
        owners.truncate(OWNERS_LISTED_MAX);
        let mut deciding = BTreeMap::new();
        for commit in self.commits.values() {
            *deciding.entry(commit.by).or_insert(0) += 1;
        }
        SchedulerStatus {
            executors: self.executors.standings(&self.jobs.slots_taken(), &deciding),
            flushes_waiting: self.jobs.waiting(jobs::Queue::Flush),
            others_waiting: self.jobs.waiting(jobs::Queue::Other),
            flushes_oldest_ms: self.jobs.oldest_ms(now_ns, jobs::Queue::Flush),
            others_oldest_ms: self.jobs.oldest_ms(now_ns, jobs::Queue::Other),
            installed: self.counters.installed,
            failed: self.counters.failed,
            given_back: self.counters.given_back,
            last_failure,
            owners,
            owners_total,
        }
    }

    /// The jobs of this life and the outputs that wait for a verdict, for operators. The list has
    /// at most 1,000 of them.
    #[must_use]
    pub fn job_list(&self, now_ns: u64) -> JobList {
        let mut jobs = self.jobs.standings(now_ns);
        // An earlier life gave out the jobs that this one does not know.
        let unknown = self.commits.iter().filter(|(at, _)| !self.jobs.has(at.job));
        jobs.extend(unknown.map(|(at, commit)| commit.standing(now_ns, *at)));
        for job in &mut jobs {
            let address = job.executor.map(|executor| self.executors.address(executor));
            job.address = address.unwrap_or_default();
        }
        let queue = |queue| QueueStanding {
            waiting: self.jobs.waiting(queue),
            oldest_ms: self.jobs.oldest_ms(now_ns, queue),
        };
        JobList {
            jobs_total: jobs.len() as u64,
            jobs: listing::bounded(jobs),
            flushes: queue(jobs::Queue::Flush),
            others: queue(jobs::Queue::Other),
        }
    }

    /// Whether the scheduler has no job and no outputs that wait for a verdict.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.jobs.is_idle() && self.commits.is_empty()
    }

    /// Takes the jobs that have started since the last call, in the order of their starts. A driver
    /// calls it in short intervals, because the list grows until then.
    pub fn take_started(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.started)
    }

    /// Makes an executor take no more jobs, or take jobs again, on an operator's request. The jobs
    /// that it has go on. An unknown executor is left alone.
    pub fn drain(&mut self, now_ns: u64, executor: ExecutorId, is_draining: bool) -> Vec<Sent> {
        if !self.executors.drain(executor, is_draining) {
            return Vec::new();
        }
        let mut sent = vec![drain_order(executor, is_draining)];
        sent.extend(self.dispatch(now_ns));
        sent
    }

    /// Handles a message from an owner of a database. The message ends the jobs of older owners. If
    /// the database has a newer owner, the answer is [`OffloadMessage::Stale`].
    pub fn on_owner(
        &mut self,
        now_ns: u64,
        from: OwnerStamp,
        message: OffloadMessage,
    ) -> Vec<Sent> {
        let to = Party::Owner(from.db);
        let mut sent = match self.greeted(now_ns, from) {
            Ok(cancelled) => cancelled,
            Err(newest) => {
                return vec![Sent { to, message: OffloadMessage::Stale { newest } }];
            }
        };
        match message {
            OffloadMessage::Greet { needs, .. } => {
                sent.push(Sent { to, message: self.lives(from.db, &needs) });
            }
            OffloadMessage::Report { mut report, .. } => {
                // A report has each reason once.
                report.fallbacks.truncate(LocalWhy::ALL.len());
                if let Some(known) = self.owners.get_mut(&from.db) {
                    known.report = Some((report, now_ns));
                }
            }
            OffloadMessage::Prepare { session, order, .. }
                if session != self.session_of(from.db) && !self.sabotage.no_term_check() =>
            {
                sent.push(Sent { to, message: self.lives(from.db, &order.needs) });
            }
            OffloadMessage::Prepare { order, attempts, oldest, spec, .. }
                if order.id.db == from.db && order.id.epoch == from.epoch =>
            {
                let (job, session) = (order.id, self.session_of(from.db));
                let slots = self.executors.slots(&order.needs);
                let prepared = Prepared { order, attempts, oldest, spec };
                let entered = self.jobs.prepare(now_ns, prepared);
                self.counters.arrived += u64::from(entered == Entered::New);
                // An owner whose job is not confirmed takes it back.
                if entered != Entered::WithoutSpec {
                    sent.push(Sent { to, message: OffloadMessage::Queued { job, session, slots } });
                }
                sent.extend(self.dispatch(now_ns));
                sent.extend(self.given_back(now_ns));
            }
            OffloadMessage::CancelJob { job } if job.db == from.db => {
                sent.extend(self.cancel(job));
                sent.extend(self.dispatch(now_ns));
            }
            OffloadMessage::Decided { at, verdict } if at.job.db == from.db => {
                sent.extend(self.decided(now_ns, at, verdict));
            }
            _ => {}
        }
        sent
    }

    /// Handles a message from an executor.
    pub fn on_executor(
        &mut self,
        now_ns: u64,
        from: ExecutorId,
        message: OffloadMessage,
    ) -> Vec<Sent> {
        let mut sent = match message {
            OffloadMessage::Beat {
                executor,
                names,
                address,
                slots,
                load,
                reach,
                running,
                is_draining,
            } => {
                let count = u32::try_from(running.len()).unwrap_or(u32::MAX);
                let offer = executors::Offer {
                    names,
                    address,
                    slots,
                    load,
                    reach,
                    running: count,
                    is_draining,
                };
                let wanted = self.executors.beat(now_ns, executor, offer);
                let mut sent = self.heard(now_ns, executor, &running);
                sent.extend(wanted.map(|is_draining| drain_order(executor, is_draining)));
                sent
            }
            OffloadMessage::Accept { at, by } => self.accepted(now_ns, at, by),
            OffloadMessage::Decline { at, by, why } => {
                let waits_again = self.jobs.declined(at, by, why);
                self.counters.declined += u64::from(waits_again);
                if waits_again && why == DeclineWhy::Busy {
                    self.executors.note_full(by);
                }
                Vec::new()
            }
            OffloadMessage::Started { at, by } => {
                self.jobs.started(now_ns, at, by);
                Vec::new()
            }
            OffloadMessage::NotMine { at, by } => {
                self.fail(now_ns, at, by, "the executor has forgotten the attempt");
                Vec::new()
            }
            OffloadMessage::Commit { at, by, output } => self.committed(now_ns, at, by, output),
            OffloadMessage::Abort { at, by, reason } => {
                // ABORT is repeated until it is noted, and fails the attempt only once.
                self.fail(now_ns, at, by, reason.as_str());
                let message = OffloadMessage::Noted { at };
                vec![Sent { to: Party::Executor(from), message }]
            }
            _ => Vec::new(),
        };
        sent.extend(self.dispatch(now_ns));
        sent
    }

    /// Answers a beat: notes how far the attempts of an executor are, and cancels those that were
    /// given up.
    fn heard(&mut self, now_ns: u64, executor: ExecutorId, running: &[Running]) -> Vec<Sent> {
        let (life, to) = (self.life, Party::Executor(executor));
        let next_ms = (self.terms.beat_ns / MS) as u32;
        let mut sent = vec![Sent { to, message: OffloadMessage::Heard { life, next_ms } }];
        let wait_ns = if self.sabotage.no_wait() { 0 } else { self.terms.wait_ns };
        for one in running {
            if self.has_given_up(now_ns, one.at, executor) {
                sent.push(Sent { to, message: OffloadMessage::Cancel { at: one.at, life } });
            } else {
                self.jobs.progress(now_ns, executor, *one, wait_ns);
            }
        }
        sent
    }

    /// Handles the passing of time: drops silent owners and executors, cancels attempts without
    /// progress, and repeats messages.
    pub fn on_timer(&mut self, now_ns: u64) -> Vec<Sent> {
        let mut sent = self.drop_orphans(now_ns);
        for executor in self.executors.gone(now_ns, self.terms.gone_ns) {
            for at in self.jobs.attempts_of(executor) {
                self.fail(now_ns, at, executor, "the executor has sent no beat for too long");
            }
            self.executors.remove(executor);
        }
        for (at, executor) in self.jobs.overdue(now_ns, &self.terms) {
            self.fail(now_ns, at, executor, "the executor did not answer, or the job did not move");
            let message = OffloadMessage::Cancel { at, life: self.life };
            sent.push(Sent { to: Party::Executor(executor), message });
        }
        for (to, message) in self.jobs.packages(now_ns, self.terms.answer_ns, self.life) {
            sent.push(Sent { to: Party::Executor(to), message });
        }
        for (at, commit) in &mut self.commits {
            if commit.next_ns <= now_ns {
                commit.next_ns = now_ns + commit.wait_ns;
                commit.wait_ns = (2 * commit.wait_ns).min(DONE_MAX_NS);
                let message = OffloadMessage::Done { at: *at, output: commit.output.clone() };
                sent.push(Sent { to: Party::Owner(at.job.db), message });
            }
        }
        sent.extend(self.dispatch(now_ns));
        for job in self.jobs.long_waiting(now_ns, self.terms.queue_ns) {
            self.give_back(now_ns, job, LocalWhy::Busy);
        }
        sent.extend(self.given_back(now_ns));
        sent
    }

    /// An attempt has ended without outputs. Nothing happens if the job does not wait for it.
    fn fail(&mut self, now_ns: u64, at: AttemptId, executor: ExecutorId, reason: &str) {
        let (address, reason) = (self.executors.address(executor), ShortText::new(reason));
        let failure = FailedAttempt { at, executor, address, reason };
        if self.jobs.failed(now_ns, &failure) {
            self.counters.failed += 1;
            tracing::warn!(%failure, "an offloaded job failed");
            self.last_failure = Some((failure, now_ns));
        }
    }

    /// Repeats to owners which jobs they must run themselves.
    fn given_back(&mut self, now_ns: u64) -> Vec<Sent> {
        let back = self.jobs.gives_back(now_ns, self.terms.answer_ns).into_iter();
        let of = |message| match message {
            OffloadMessage::GiveBack { job, .. } => {
                Some(Sent { to: Party::Owner(job.db), message })
            }
            _ => None,
        };
        back.filter_map(of).collect()
    }

    /// The newest owner of a database from which this life has got messages and that was not silent
    /// for too long since.
    #[must_use]
    pub fn owner_of(&self, db: OffloadDb) -> Option<OwnerStamp> {
        self.owners.get(&db).map(|known| known.stamp)
    }

    /// Whether an attempt that `by` runs was given up. This is so if its job has ended, if its
    /// owner has a successor or was silent for too long, or if the job is with another executor or
    /// waits again. It is false for a job that this life does not know, while the owner lives,
    /// because the outputs may still be installed.
    #[must_use]
    pub fn has_given_up(&self, now_ns: u64, at: AttemptId, by: ExecutorId) -> bool {
        let newest = self.owner_of(at.job.db);
        let has_successor = newest.is_some_and(|newest| newest.epoch > at.job.epoch);
        has_successor || self.is_orphan(now_ns, at.job) || self.jobs.has_given_up(at, by)
    }

    /// Whether the owner of a job was silent for too long. Each owner that lives has sent
    /// something to this life before `owners_settled_ns`. A known owner of the database that is
    /// older than the job does not decide about it, and a newer one would have replaced it.
    fn is_orphan(&self, now_ns: u64, job: JobId) -> bool {
        let has_no_owner = match self.owners.get(&job.db) {
            None => true,
            Some(known) => {
                let silent_ns = known.since_ns.saturating_add(self.terms.orphan_ns);
                known.stamp.epoch < job.epoch && now_ns >= silent_ns
            }
        };
        has_no_owner && now_ns >= self.owners_settled_ns
    }

    /// The session of the owner of a database. Its number is 0 if there is none.
    fn session_of(&self, db: OffloadDb) -> OwnerSession {
        let number = self.owners.get(&db).map_or(0, |known| known.session);
        OwnerSession { life: self.life, number }
    }

    fn lives(&self, db: OffloadDb, needs: &[String]) -> OffloadMessage {
        OffloadMessage::Lives { session: self.session_of(db), slots: self.executors.slots(needs) }
    }

    /// Notes a message of an owner. The first one begins a session. An owner that is newer than the
    /// known one ends all jobs of the older owner. The error is the newest owner, if `owner` is
    /// older.
    fn greeted(&mut self, now_ns: u64, owner: OwnerStamp) -> Result<Vec<Sent>, OwnerStamp> {
        match self.owners.get_mut(&owner.db) {
            Some(known) if known.stamp == owner => {
                known.heard_ns = now_ns;
                return Ok(Vec::new());
            }
            Some(known) if known.stamp.epoch >= owner.epoch => return Err(known.stamp),
            _ => {}
        }
        self.sessions += 1;
        let (session, since_ns, heard_ns) = (self.sessions, now_ns, now_ns);
        let known = KnownOwner { stamp: owner, session, since_ns, heard_ns, report: None };
        self.owners.insert(owner.db, known);
        // Outputs may have arrived before their owner.
        for (_, commit) in self.commits.iter_mut().filter(|(at, _)| at.job.db == owner.db) {
            (commit.next_ns, commit.wait_ns) = (now_ns, self.terms.answer_ns);
        }
        Ok(self.end_jobs(owner.db))
    }

    /// Ends the sessions of owners that were silent for too long. Executors keep the outputs that
    /// wait for a verdict of such an owner, because the outputs may be live tables (rule 4).
    fn drop_orphans(&mut self, now_ns: u64) -> Vec<Sent> {
        let orphan_ns = self.terms.orphan_ns;
        let is_silent = |known: &&KnownOwner| known.heard_ns.saturating_add(orphan_ns) <= now_ns;
        let silent = self.owners.values().filter(is_silent).map(|known| known.stamp.db);
        let silent: Vec<OffloadDb> = silent.collect();
        let mut sent = Vec::new();
        for db in silent {
            self.owners.remove(&db);
            let jobs = self.jobs.of(db).len();
            let outputs = self.commits.keys().filter(|at| at.job.db == db).count();
            log_silence(db, jobs, outputs);
            sent.extend(self.end_jobs(db));
        }
        let orphans = self.commits.keys().filter(|at| self.is_orphan(now_ns, at.job));
        let orphans: Vec<AttemptId> = orphans.copied().collect();
        for at in orphans {
            sent.extend(self.commits.remove(&at).map(|commit| forget(at, commit.by)));
        }
        sent
    }

    /// Ends all jobs of a database.
    fn end_jobs(&mut self, db: OffloadDb) -> Vec<Sent> {
        let jobs = self.jobs.of(db);
        let sent = jobs.into_iter().flat_map(|job| self.cancel(job)).collect();
        self.jobs.forget(db);
        sent
    }

    /// Ends a job for its owner, and cancels its attempt at the executor.
    fn cancel(&mut self, job: JobId) -> Vec<Sent> {
        let Some((at, executor)) = self.jobs.settle(job) else { return Vec::new() };
        let message = OffloadMessage::Cancel { at, life: self.life };
        vec![Sent { to: Party::Executor(executor), message }]
    }

    fn accepted(&mut self, now_ns: u64, at: AttemptId, by: ExecutorId) -> Vec<Sent> {
        let to = Party::Executor(by);
        match self.jobs.accepted(now_ns, at, by, self.life) {
            Some(message) => vec![Sent { to, message }],
            None => {
                let message = OffloadMessage::Cancel { at, life: self.life };
                vec![Sent { to, message }]
            }
        }
    }

    fn committed(
        &mut self,
        now_ns: u64,
        at: AttemptId,
        by: ExecutorId,
        output: Payload,
    ) -> Vec<Sent> {
        if self.is_orphan(now_ns, at.job) {
            return vec![forget(at, by)];
        }
        self.jobs.has_committed(now_ns, at, by);
        if self.commits.contains_key(&at) {
            return Vec::new();
        }
        let wait_ns = self.terms.answer_ns;
        let (arrived_ns, next_ns) = (now_ns, now_ns + wait_ns);
        let commit = Commit { by, output: output.clone(), arrived_ns, next_ns, wait_ns };
        self.commits.insert(at, commit);
        let message = OffloadMessage::Done { at, output };
        vec![Sent { to: Party::Owner(at.job.db), message }]
    }

    fn decided(&mut self, now_ns: u64, at: AttemptId, verdict: Verdict) -> Vec<Sent> {
        let Some(commit) = self.commits.remove(&at) else { return Vec::new() };
        let message = OffloadMessage::Decided { at, verdict };
        let mut sent = vec![Sent { to: Party::Executor(commit.by), message }];
        match verdict {
            Verdict::Installed => {
                self.counters.installed += 1;
                sent.extend(self.cancel(at.job));
            }
            Verdict::Discard => {
                self.fail(now_ns, at, commit.by, "the owner has refused the outputs");
            }
            Verdict::Forget => sent.extend(self.cancel(at.job)),
        }
        sent.extend(self.dispatch(now_ns));
        sent
    }

    /// Assigns the heads of the queues while executors have free slots.
    fn dispatch(&mut self, now_ns: u64) -> Vec<Sent> {
        let mut sent = Vec::new();
        for queue in jobs::QUEUES {
            while let Some(head) = self.jobs.head(queue, self.sabotage.no_order()) {
                let taken = self.jobs.slots_taken();
                let candidates = self.executors.candidates(&head, &taken);
                let choose = if head.is_second { choose_again } else { choose };
                match choose(head.bytes, &candidates) {
                    Choice::Assign(executor) => {
                        let until_ns = now_ns + self.terms.answer_ns;
                        let offer = self.jobs.offer(head.id, executor, until_ns, self.life);
                        let Some((message, is_first)) = offer else { continue };
                        self.counters.assigned += 1;
                        if is_first {
                            self.started.push(head.id);
                        }
                        sent.push(Sent { to: Party::Executor(executor), message });
                    }
                    // The owner can begin the job now, while an executor must first get a free
                    // slot.
                    Choice::Wait if head.is_second => {
                        self.give_back(now_ns, head.id, LocalWhy::Busy);
                    }
                    Choice::Wait => {
                        self.jobs.forgive(head.id, &candidates);
                        break;
                    }
                    Choice::Unknown | Choice::Nobody if now_ns < self.settled_ns => break,
                    Choice::Unknown => self.give_back(now_ns, head.id, LocalWhy::Unknown),
                    Choice::Nobody => self.give_back(now_ns, head.id, LocalWhy::NoExecutor),
                }
            }
        }
        for job in self.jobs.take_exhausted() {
            self.give_back(now_ns, job, LocalWhy::Failed);
        }
        sent
    }

    fn give_back(&mut self, now_ns: u64, job: JobId, why: LocalWhy) {
        self.counters.given_back += 1;
        self.jobs.give_back(now_ns, job, why);
    }
}

/// Logs the end of a session. After the close of a database without jobs this is usual, so it is
/// then logged as debug only.
fn log_silence(db: OffloadDb, jobs: usize, outputs: usize) {
    const WHAT: &str = "the owner of a database was silent for too long";
    if jobs + outputs > 0 {
        tracing::info!(database = %db, jobs, outputs, "{WHAT}");
    } else {
        tracing::debug!(database = %db, "{WHAT}");
    }
}

/// The order to take no more jobs, or to take jobs again.
fn drain_order(executor: ExecutorId, is_draining: bool) -> Sent {
    let message = OffloadMessage::Drain { executor, is_draining };
    Sent { to: Party::Executor(executor), message }
}

/// The order to leave outputs in place and to end the attempt.
fn forget(at: AttemptId, by: ExecutorId) -> Sent {
    let message = OffloadMessage::Decided { at, verdict: Verdict::Forget };
    Sent { to: Party::Executor(by), message }
}
