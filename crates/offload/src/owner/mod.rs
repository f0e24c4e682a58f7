//! The offloaded jobs of an owner, as a state machine without clock, lock or I/O.
//!
//! | state of a job | next state and its cause |
//! | --- | --- |
//! | away | checking, on COMMIT of a live attempt; here, if given back or if no scheduler answers |
//! | away | ended, if it cannot go on at a scheduler but one lives: the job is planned again |
//! | checking | ended, when the outputs are installed; away, when they are refused |
//! | here | ended, when this process has run it |
//! | ended | forgotten, when many younger jobs have ended |
//!
//! An attempt is *live* from its preparation until the job ends, runs here, or its outputs are
//! refused. Then the attempt is *abandoned*: its outputs are never installed, and the owner's sweep
//! removes files with its numbers.
//!
//! A job whose scheduler falls silent moves to another one that lives, or to the next one if none
//! is known to live. It leaves each scheduler for good. At the next scheduler, and in another
//! session with the same one, the job needs other numbers (invariant 3). A driver that has none
//! calls [`Owner::without_numbers`]. If a scheduler lives, the job then ends, and is planned again
//! as another job, which goes to that scheduler. Otherwise this process runs it
//! (docs/design/offload.md, "Several schedulers"). A job that had a session also ends for another
//! plan in two other cases: no scheduler is left for it but one lives, or its next scheduler has
//! never answered and another one answers.
//!
//! Invariants:
//! 1. The outputs of a job are installed at most once, and only those of a live attempt of this
//!    epoch.
//! 2. The verdict [`Verdict::Discard`] is given only for abandoned attempts of this epoch
//!    (docs/design/offload.md, rule 4). For an attempt that the owner does not know, the verdict is
//!    [`Verdict::Forget`].
//! 3. Attempts are prepared for one session with one life of one scheduler, with file numbers of
//!    their own (rule 1).
//! 4. An owner greets every scheduler, also without jobs, so that each one ends the jobs of earlier
//!    owners.
//!
//! Thread-safety: none; the driver holds a lock.
//! Failure: if no scheduler answers, or all attempts fail, the owner runs the job itself. An owner
//! that was silent for so long that its scheduler has dropped the jobs prepares them again.
//! Cost: O(jobs) for each call of the timer, and O(log jobs) for each message. The package of a job
//! goes out until the scheduler has confirmed the job, and then again in a new session only.
//! Messages that are repeated later have some hundred bytes.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use archipelago_base::Epoch;

use crate::failure::FailedAttempt;
use crate::ids::{Attempt, AttemptId, JobId, NumberRange, OwnerSession, OwnerStamp, SchedulerId};
use crate::job::{JobAsk, JobKind, JobOrder, LocalWhy, Payload, PreparedAttempt, Verdict};
use crate::sabotage::Sabotage;
use crate::wire::{OffloadMessage, OwnerReport};

const MS: u64 = 1_000_000;
/// Attempts that an owner should prepare at a time.
pub const ATTEMPTS: usize = 3;
/// Ended jobs that an owner remembers.
const ENDED_MAX: usize = 4096;
/// Number of refused outputs of one job after which the owner runs the job itself.
const REFUSALS_MAX: u32 = 2;

/// Time limits of an owner, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerTerms {
    /// Time after which PREPARE is repeated. Default: 500 ms.
    pub repeat_ns: u64,
    /// Time after which the owner greets the schedulers again, to learn the slots of executors.
    /// Default: 1 s.
    pub refresh_ns: u64,
    /// Silence of a scheduler after which the next scheduler, or else this process, gets the job.
    /// Default: 2 s.
    pub silent_ns: u64,
}

impl Default for OwnerTerms {
    fn default() -> Self {
        Self { repeat_ns: 500 * MS, refresh_ns: 1_000 * MS, silent_ns: 2_000 * MS }
    }
}

/// Step that the driver of an owner takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerStep {
    /// Send the message to this scheduler.
    Send {
        /// Scheduler that gets the message.
        to: SchedulerId,
        /// Message to send.
        message: OffloadMessage,
    },
    /// Draw a range of file numbers for each of the next attempts ([`ATTEMPTS`] of them are
    /// enough), and call [`Owner::prepared`] with the ranges. If there are no numbers for another
    /// session, call [`Owner::without_numbers`]. If there are none at all, end the job with
    /// [`Owner::ran_here`].
    Prepare {
        /// Number of the job.
        job: u64,
    },
    /// Run the job in this process, and call [`Owner::ran_here`].
    RunHere {
        /// Number of the job.
        job: u64,
        /// Reason for the counters.
        why: LocalWhy,
        /// Whether no executor can have used the numbers of the prepared attempts. If false, this
        /// process must use other numbers.
        is_untouched: bool,
        /// The latest attempt that has failed, if the scheduler knows one.
        failure: Option<FailedAttempt>,
    },
    /// Plan the job again as another job with other numbers. This job has ended, and its attempts
    /// are abandoned. A scheduler lives, and gets the other job.
    PlanAgain {
        /// Number of the job that has ended.
        job: u64,
    },
    /// Check the outputs, install them if they pass the checks, and call [`Owner::checked`].
    Check {
        /// Attempt that has committed.
        at: AttemptId,
        /// File numbers that the outputs may have.
        numbers: NumberRange,
        /// Return parcel of the executor ([`crate::parcel`]).
        output: Payload,
    },
    /// No edit will install files with these numbers. The sweep must remove them, now and later.
    Abandon {
        /// Numbers of an abandoned attempt.
        numbers: NumberRange,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnedJobState {
    Away { heard_ns: u64, next_ns: u64 },
    Checking { attempt: Attempt, from: SchedulerId },
    Here,
}

#[derive(Clone, Debug)]
struct Job {
    order: JobOrder,
    spec: Payload,
    /// Position of the scheduler that has the job.
    scheduler: usize,
    /// Positions of all schedulers that got the job, in the order in which they got it.
    tried: Vec<usize>,
    /// Session for which the newest attempts were prepared.
    session: Option<OwnerSession>,
    /// Number of sessions for which attempts were prepared.
    sessions: u32,
    /// Whether the scheduler has confirmed the job in that session, so that it has the package.
    is_queued: bool,
    /// Whether the driver has been asked for numbers and has not delivered them.
    is_drawing: bool,
    /// The newest attempts.
    prepared: Vec<PreparedAttempt>,
    live: BTreeMap<Attempt, NumberRange>,
    newest: Attempt,
    refusals: u32,
    state: OwnedJobState,
}

/// A job that a scheduler gives back.
struct GivenBack {
    job: JobId,
    why: LocalWhy,
    is_untouched: bool,
    failure: Option<FailedAttempt>,
}

/// The offloaded jobs of one open of a database.
#[derive(Clone, Debug)]
pub struct Owner {
    me: OwnerStamp,
    terms: OwnerTerms,
    /// Schedulers in the order in which they are tried.
    schedulers: Vec<SchedulerId>,
    /// Time of the latest message of each scheduler, unless a job has left it since because it was
    /// silent.
    heard: BTreeMap<SchedulerId, u64>,
    /// The newest session with each scheduler that has answered.
    sessions: BTreeMap<SchedulerId, OwnerSession>,
    jobs: BTreeMap<u64, Job>,
    /// The installed attempt of each ended job; `None` if the job ran here or was given up.
    ended: BTreeMap<u64, Option<Attempt>>,
    next_number: u64,
    /// Names that all jobs need.
    needs: Vec<String>,
    /// Time of the next greeting of schedulers that have not answered.
    greet_ns: u64,
    /// Time of the next greeting of all schedulers.
    refresh_ns: u64,
    is_superseded: bool,
    /// Counts for operators, which follow the greetings.
    report: Option<OwnerReport>,
    /// Slots of executors for jobs of each kind, as of the latest answer of a scheduler.
    slots: BTreeMap<JobKind, u32>,
    sabotage: Sabotage,
}

impl Owner {
    /// An owner without jobs, whose epoch is durable. `schedulers` is not empty; the first one that
    /// answers gets the jobs.
    #[must_use]
    pub fn new(me: OwnerStamp, terms: OwnerTerms, schedulers: Vec<SchedulerId>) -> Self {
        Self {
            me,
            terms,
            schedulers,
            heard: BTreeMap::new(),
            sessions: BTreeMap::new(),
            jobs: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_number: 1,
            needs: Vec::new(),
            greet_ns: 0,
            refresh_ns: 0,
            is_superseded: false,
            report: None,
            slots: BTreeMap::new(),
            sabotage: Sabotage::default(),
        }
    }

    /// The same owner, which leaves out the steps that `sabotage` names.
    #[must_use]
    pub fn sabotaged(self, sabotage: Sabotage) -> Self {
        Self { sabotage, ..self }
    }

    /// The same owner, all of whose jobs need these names. Schedulers then report the slots of
    /// executors that have them.
    #[must_use]
    pub fn needing(self, needs: Vec<String>) -> Self {
        Self { needs, ..self }
    }

    /// Sets the counts that operators see with the status of the schedulers.
    pub fn set_report(&mut self, report: OwnerReport) {
        self.report = Some(report);
    }

    /// The stamp of this owner.
    #[must_use]
    pub fn stamp(&self) -> OwnerStamp {
        self.me
    }

    /// Whether a scheduler knows a newer owner of the database.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.is_superseded
    }

    /// Number of jobs that have not ended.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Slots that executors have for jobs of this kind, minus those that other jobs of this owner
    /// may take. The number is 0 until a scheduler has answered.
    #[must_use]
    pub fn room(&self, kind: JobKind) -> usize {
        let slots = self.slots.get(&kind).copied().unwrap_or(0) as usize;
        let is_other = |job: &&Job| {
            job.order.kind != kind
                && matches!(job.state, OwnedJobState::Away { .. } | OwnedJobState::Checking { .. })
        };
        slots.saturating_sub(self.jobs.values().filter(is_other).count())
    }

    /// Reason for which a job of this kind would find no slot now; `None` if there is room.
    #[must_use]
    pub fn lacks_room(&self, kind: JobKind) -> Option<LocalWhy> {
        match self.slots.get(&kind) {
            None | Some(0) => Some(LocalWhy::NoExecutor),
            Some(_) => (self.room(kind) == 0).then_some(LocalWhy::Busy),
        }
    }

    /// Gives a job to the schedulers. Returns its number.
    pub fn submit(&mut self, now_ns: u64, ask: JobAsk, spec: Payload) -> (u64, Vec<OwnerStep>) {
        let number = self.next_number;
        self.next_number += 1;
        let id = JobId { db: self.me.db, epoch: self.me.epoch, number };
        let JobAsk { kind, bytes, needs, places, avoids } = ask;
        let first = self.first_live(now_ns);
        let order = JobOrder { id, token: self.me.token, kind, bytes, needs, places, avoids };
        let job = Job {
            order,
            spec,
            scheduler: first,
            tried: vec![first],
            session: None,
            sessions: 0,
            is_queued: false,
            is_drawing: false,
            prepared: Vec::new(),
            live: BTreeMap::new(),
            newest: Attempt::default(),
            refusals: 0,
            state: OwnedJobState::Away { heard_ns: now_ns, next_ns: now_ns },
        };
        self.jobs.insert(number, job);
        (number, self.on_timer(now_ns))
    }

    /// Takes the file numbers that the driver has drawn for the next attempts of a job.
    pub fn prepared(&mut self, now_ns: u64, number: u64, ranges: &[NumberRange]) -> Vec<OwnerStep> {
        let oldest = self.oldest();
        let abandon = || ranges.iter().map(|&numbers| OwnerStep::Abandon { numbers }).collect();
        let Some(job) = self.jobs.get_mut(&number) else { return abandon() };
        job.is_drawing = false;
        let to = self.schedulers[job.scheduler];
        let (OwnedJobState::Away { next_ns, .. }, Some(session)) =
            (&mut job.state, self.sessions.get(&to))
        else {
            return abandon();
        };
        *next_ns = now_ns + self.terms.repeat_ns;
        job.session = Some(*session);
        job.sessions += 1;
        job.is_queued = false;
        job.prepared.clear();
        for &numbers in ranges {
            job.newest = Attempt(job.newest.0 + 1);
            job.live.insert(job.newest, numbers);
            job.prepared.push(PreparedAttempt { attempt: job.newest, numbers });
        }
        vec![OwnerStep::Send { to, message: job.prepare(*session, oldest) }]
    }

    /// Takes the fact that the driver has no file numbers for the next attempts of a job, because
    /// those of the job belong to an earlier session. The job is planned again as another job if a
    /// scheduler lives, and otherwise runs here.
    pub fn without_numbers(&mut self, now_ns: u64, number: u64) -> Vec<OwnerStep> {
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        // An output may be in its check. If it is refused, the job needs numbers again.
        job.is_drawing = false;
        match job.state {
            OwnedJobState::Away { .. } => self.plan_again_or_here(now_ns, number),
            OwnedJobState::Checking { .. } | OwnedJobState::Here => Vec::new(),
        }
    }

    /// Ends a job for another plan if a scheduler lives. Otherwise this process runs it.
    fn plan_again_or_here(&mut self, now_ns: u64, number: u64) -> Vec<OwnerStep> {
        if !(0..self.schedulers.len()).any(|position| self.is_live(now_ns, position)) {
            return self.bring_here(number, LocalWhy::Silent, false, None);
        }
        let mut steps = self.end(number, None);
        steps.push(OwnerStep::PlanAgain { job: number });
        steps
    }

    /// Ends the check of an attempt's outputs. If `is_installed`, the edit that names them is
    /// durable.
    pub fn checked(&mut self, now_ns: u64, at: AttemptId, is_installed: bool) -> Vec<OwnerStep> {
        let number = at.job.number;
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        let OwnedJobState::Checking { attempt, from } = job.state else { return Vec::new() };
        debug_assert_eq!(attempt, at.attempt, "one attempt is checked at a time");
        let decided = |verdict| OwnerStep::Send {
            to: from,
            message: OffloadMessage::Decided { at, verdict },
        };
        if is_installed {
            job.live.remove(&attempt);
            let mut steps = vec![decided(Verdict::Installed)];
            steps.extend(self.end(number, Some(attempt)));
            return steps;
        }
        job.state =
            OwnedJobState::Away { heard_ns: now_ns, next_ns: now_ns + self.terms.repeat_ns };
        job.refusals += 1;
        let is_enough = job.refusals >= REFUSALS_MAX;
        let numbers = job.live.remove(&attempt).unwrap_or_default();
        let mut steps = vec![decided(Verdict::Discard), OwnerStep::Abandon { numbers }];
        if is_enough {
            steps.extend(self.bring_here(number, LocalWhy::Refused, false, None));
        }
        steps
    }

    /// Ends a job that this process has run, or that is not needed any more.
    pub fn ran_here(&mut self, number: u64) -> Vec<OwnerStep> {
        self.end(number, None)
    }

    /// Handles a message from a scheduler.
    pub fn on_message(
        &mut self,
        now_ns: u64,
        from: SchedulerId,
        message: OffloadMessage,
    ) -> Vec<OwnerStep> {
        self.heard.insert(from, now_ns);
        match message {
            OffloadMessage::Lives { session, slots } => self.lives_as(now_ns, session, slots),
            OffloadMessage::Queued { job, session, slots } if job.epoch == self.me.epoch => {
                if let Some(known) = self.jobs.get(&job.number) {
                    self.slots.insert(known.order.kind, slots);
                }
                if let Some(job) = self.jobs.get_mut(&job.number)
                    && self.schedulers[job.scheduler] == from
                    && let OwnedJobState::Away { heard_ns, .. } = &mut job.state
                {
                    *heard_ns = now_ns;
                    job.is_queued |= job.session == Some(session);
                }
                Vec::new()
            }
            OffloadMessage::GiveBack { job, why, is_untouched, failure } => {
                let given = GivenBack { job, why, is_untouched, failure };
                self.given_back(from, given)
            }
            OffloadMessage::Done { at, output } => self.done(from, at, output),
            OffloadMessage::Stale { newest } if newest.db == self.me.db => {
                self.is_superseded |= newest != self.me && newest.epoch >= self.me.epoch;
                let away: Vec<u64> = self.jobs.keys().copied().collect();
                let here = |number| self.bring_here(number, LocalWhy::Superseded, false, None);
                away.into_iter().flat_map(here).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Handles the passing of time: repeats messages, and moves jobs away from silent schedulers.
    pub fn on_timer(&mut self, now_ns: u64) -> Vec<OwnerStep> {
        let mut steps = Vec::new();
        if self.greet_ns <= now_ns {
            self.greet_ns = now_ns + self.terms.repeat_ns;
            let is_refresh = self.refresh_ns <= now_ns;
            if is_refresh {
                self.refresh_ns = now_ns + self.terms.refresh_ns;
            }
            let greeted = |to: &&SchedulerId| is_refresh || !self.sessions.contains_key(to);
            let (owner, needs) = (self.me, &self.needs);
            steps.extend(self.schedulers.iter().filter(greeted).map(|&to| OwnerStep::Send {
                to,
                message: OffloadMessage::Greet { owner, needs: needs.clone() },
            }));
            if let Some(report) = self.report.as_ref().filter(|_| is_refresh) {
                steps.extend(self.schedulers.iter().map(|&to| OwnerStep::Send {
                    to,
                    message: OffloadMessage::Report { owner, report: report.clone() },
                }));
            }
        }
        let numbers: Vec<u64> = self.jobs.keys().copied().collect();
        for number in numbers {
            steps.extend(self.tick(now_ns, number));
        }
        steps
    }

    fn tick(&mut self, now_ns: u64, number: u64) -> Vec<OwnerStep> {
        let oldest = self.oldest();
        let Some(job) = self.jobs.get(&number) else { return Vec::new() };
        let OwnedJobState::Away { heard_ns, .. } = job.state else { return Vec::new() };
        let had_session = job.sessions > 0;
        if heard_ns + self.terms.silent_ns <= now_ns && !self.leave_silent(now_ns, number) {
            return match had_session {
                // A scheduler that has had the job may be in another life, or answer again.
                true => self.plan_again_or_here(now_ns, number),
                false => self.bring_here(number, LocalWhy::Silent, false, None),
            };
        }
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        let OwnedJobState::Away { next_ns, .. } = &mut job.state else { return Vec::new() };
        if *next_ns > now_ns {
            return Vec::new();
        }
        *next_ns = now_ns + self.terms.repeat_ns;
        let to = self.schedulers[job.scheduler];
        match self.sessions.get(&to) {
            Some(session) if job.session == Some(*session) => {
                vec![OwnerStep::Send { to, message: job.prepare(*session, oldest) }]
            }
            Some(_) => job.draw(number),
            None => Vec::new(),
        }
    }

    /// Moves a job away from its scheduler, which was silent for too long: to the next scheduler
    /// that lives, or else to the next one. Returns false if every other scheduler has had the job.
    fn leave_silent(&mut self, now_ns: u64, number: u64) -> bool {
        let Some(job) = self.jobs.get(&number) else { return false };
        // The silent scheduler gets no other job before its next message.
        self.heard.remove(&self.schedulers[job.scheduler]);
        let count = self.schedulers.len();
        let others = (1..count).map(|distance| (job.scheduler + distance) % count);
        let others: Vec<usize> = others.filter(|position| !job.tried.contains(position)).collect();
        let live = others.iter().find(|position| self.is_live(now_ns, **position));
        let Some(next) = live.or(others.first()).copied() else { return false };
        let Some(job) = self.jobs.get_mut(&number) else { return false };
        job.scheduler = next;
        job.tried.push(next);
        job.state = OwnedJobState::Away { heard_ns: now_ns, next_ns: now_ns };
        true
    }

    /// Notes the session that a scheduler has reported. Jobs that were prepared for another session
    /// need fresh attempts. Jobs that left a session for a scheduler that has never answered are
    /// planned again.
    fn lives_as(&mut self, now_ns: u64, session: OwnerSession, slots: u32) -> Vec<OwnerStep> {
        let scheduler = session.life.scheduler;
        let known = self.sessions.entry(scheduler).or_insert(session);
        // Sessions of one scheduler are ordered by its term, and then by their number.
        if *known > session {
            return Vec::new();
        }
        *known = session;
        // A scheduler that has just begun may not have received beats of the executors yet.
        let gets_jobs = self.schedulers[self.first_live(now_ns)] == scheduler;
        if gets_jobs || self.slots.is_empty() {
            for kind in JobKind::ALL {
                self.slots.insert(kind, slots);
            }
        }
        let (mut steps, mut without_session) = (Vec::new(), Vec::new());
        for (number, job) in &mut self.jobs {
            let at = self.schedulers[job.scheduler];
            let OwnedJobState::Away { heard_ns, .. } = &mut job.state else { continue };
            if at == scheduler && job.session != Some(session) {
                *heard_ns = now_ns;
                steps.extend(job.draw(*number));
            } else if job.sessions > 0 && !self.sessions.contains_key(&at) {
                without_session.push(*number);
            }
        }
        for number in without_session {
            steps.extend(self.plan_again_or_here(now_ns, number));
        }
        steps
    }

    fn given_back(&mut self, from: SchedulerId, given: GivenBack) -> Vec<OwnerStep> {
        let GivenBack { job, why, is_untouched, failure } = given;
        let number = job.number;
        if job.epoch > self.me.epoch {
            // The job belongs to a newer owner, so this owner decides nothing about it.
            return Vec::new();
        }
        let is_mine = job.epoch == self.me.epoch;
        let known = self.jobs.get(&number).filter(|_| is_mine).map(|job| job.state);
        let is_from_its_scheduler = |of: &Self| {
            of.jobs.get(&number).is_some_and(|job| of.schedulers[job.scheduler] == from)
        };
        let mut steps = match known {
            Some(OwnedJobState::Checking { .. }) => return Vec::new(),
            Some(OwnedJobState::Away { .. }) if is_from_its_scheduler(self) => {
                let failure = failure.filter(|failed| failed.at.job == job);
                self.bring_here(number, why, is_untouched, failure)
            }
            // The job waits for its own scheduler, so this message changes nothing. The sender gets
            // no order to cancel the job either. It may be the same manager at another address. The
            // order would end the job there, while this owner still waits for it.
            Some(OwnedJobState::Away { .. }) => return Vec::new(),
            _ => Vec::new(),
        };
        steps.push(OwnerStep::Send { to: from, message: OffloadMessage::CancelJob { job } });
        steps
    }

    /// Handles the COMMIT of an attempt.
    fn done(&mut self, from: SchedulerId, at: AttemptId, output: Payload) -> Vec<OwnerStep> {
        let decided = |verdict| {
            let message = OffloadMessage::Decided { at, verdict };
            vec![OwnerStep::Send { to: from, message }]
        };
        let unknown = || match self.sabotage.no_forget() {
            true => decided(Verdict::Discard),
            false => decided(Verdict::Forget),
        };
        let is_mine = at.job.epoch == self.me.epoch || self.sabotage.no_epoch_check();
        if !is_mine {
            // A later epoch means that this owner has a successor, so it decides nothing.
            return if at.job.epoch > self.me.epoch { Vec::new() } else { unknown() };
        }
        let Some(job) = self.jobs.get_mut(&at.job.number) else {
            return match self.ended.get(&at.job.number) {
                Some(Some(installed)) if *installed == at.attempt => decided(Verdict::Installed),
                Some(_) if self.sabotage.no_attempt_check() => {
                    vec![OwnerStep::Check { at, numbers: NumberRange::default(), output }]
                }
                Some(_) => decided(Verdict::Discard),
                None => unknown(),
            };
        };
        match (job.state, job.live.get(&at.attempt).copied()) {
            (OwnedJobState::Checking { .. }, Some(_)) => Vec::new(),
            (OwnedJobState::Away { .. }, Some(numbers)) => {
                job.state = OwnedJobState::Checking { attempt: at.attempt, from };
                vec![OwnerStep::Check { at, numbers, output }]
            }
            (OwnedJobState::Here, _) | (_, None) => decided(Verdict::Discard),
        }
    }

    /// Takes a job back: its attempts are abandoned, and this process runs it. `is_unpacked` says
    /// that the scheduler gave no package to an executor in the present session.
    fn bring_here(
        &mut self,
        number: u64,
        why: LocalWhy,
        is_unpacked: bool,
        failure: Option<FailedAttempt>,
    ) -> Vec<OwnerStep> {
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        if !matches!(job.state, OwnedJobState::Away { .. }) {
            return Vec::new();
        }
        job.state = OwnedJobState::Here;
        if matches!(why, LocalWhy::NoExecutor | LocalWhy::Silent | LocalWhy::Superseded) {
            self.slots.clear();
        }
        let mut steps: Vec<OwnerStep> = std::mem::take(&mut job.live)
            .into_values()
            .map(|numbers| OwnerStep::Abandon { numbers })
            .collect();
        let is_untouched = job.sessions == 0 || (job.sessions == 1 && is_unpacked);
        steps.push(OwnerStep::RunHere { job: number, why, is_untouched, failure });
        steps
    }

    fn end(&mut self, number: u64, installed: Option<Attempt>) -> Vec<OwnerStep> {
        let Some(job) = self.jobs.remove(&number) else { return Vec::new() };
        self.ended.insert(number, installed);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_first();
        }
        let abandon = |numbers| OwnerStep::Abandon { numbers };
        let mut steps: Vec<OwnerStep> = job.live.into_values().map(abandon).collect();
        let id = job.order.id;
        for position in job.tried {
            let to = self.schedulers[position];
            steps.push(OwnerStep::Send { to, message: OffloadMessage::CancelJob { job: id } });
        }
        steps
    }

    /// Position of the first scheduler that was not silent for too long, or of the first one if all
    /// were. It gets new jobs.
    fn first_live(&self, now_ns: u64) -> usize {
        (0..self.schedulers.len()).find(|at| self.is_live(now_ns, *at)).unwrap_or(0)
    }

    /// Whether the scheduler at this position was not silent for too long.
    fn is_live(&self, now_ns: u64, position: usize) -> bool {
        let heard_ns = self.heard.get(&self.schedulers[position]);
        heard_ns.is_some_and(|heard_ns| now_ns < heard_ns + self.terms.silent_ns)
    }

    /// Number of the oldest job that has not ended.
    fn oldest(&self) -> u64 {
        self.jobs.keys().next().copied().unwrap_or(self.next_number)
    }

    /// The epoch of this owner.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.me.epoch
    }
}

impl Job {
    fn prepare(&self, session: OwnerSession, oldest: u64) -> OffloadMessage {
        OffloadMessage::Prepare {
            order: self.order.clone(),
            session,
            attempts: self.prepared.clone(),
            oldest,
            spec: (!self.is_queued).then(|| self.spec.clone()),
        }
    }

    /// Asks for file numbers, unless the driver draws them already.
    fn draw(&mut self, number: u64) -> Vec<OwnerStep> {
        match std::mem::replace(&mut self.is_drawing, true) {
            true => Vec::new(),
            false => vec![OwnerStep::Prepare { job: number }],
        }
    }
}
