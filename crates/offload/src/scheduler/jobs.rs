//! The jobs of a scheduler: their attempts, and the queues in which they wait.
//!
//! Invariants:
//! 1. A job is in its queue exactly while its state is [`JobState::Queued`]. A job without unused
//!    attempts leaves the queue before, for the rest of the present call.
//! 2. The package of an attempt goes to at most one executor. An attempt that an executor declined
//!    had no package yet, and may be offered again.
//! 3. A job that has ended is not entered again. The scheduler remembers it until the owner's
//!    oldest job is younger. This holds also for a job that only an earlier life has known.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use archipelago_base::Epoch;

use super::SchedulerTerms;
use super::listing::{JobFigures, JobTrack};
use crate::decide::Candidate;
use crate::failure::FailedAttempt;
use crate::ids::{Attempt, AttemptId, ExecutorId, JobId, OffloadDb, SchedulerLife};
use crate::job::{DeclineWhy, InputPlace, JobKind, JobOrder, LocalWhy, Payload, PreparedAttempt};
use crate::wire::{JobPhase, JobStanding, OffloadMessage, Running};

/// A queue of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Flushes, for which writers may wait.
    Flush,
    /// All other jobs.
    Other,
}

/// The queues, in the order in which they are served.
pub(super) const QUEUES: [Queue; 2] = [Queue::Flush, Queue::Other];

/// The job at the head of a queue.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// Job in question.
    pub(super) id: JobId,
    /// Bytes that the job reads.
    pub(super) bytes: u64,
    /// Names that the job needs.
    pub(super) needs: Vec<String>,
    /// Memory nodes that hold inputs.
    pub(super) places: Vec<InputPlace>,
    /// Executors that the next attempt avoids.
    pub(super) excluded: BTreeSet<ExecutorId>,
    /// Whether earlier attempts at the inputs have failed, so that the job must not wait.
    pub(super) is_second: bool,
}

/// A job as its owner sends it.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    /// Job to run.
    pub(super) order: JobOrder,
    /// Attempts that the scheduler may give out.
    pub(super) attempts: Vec<PreparedAttempt>,
    /// Number of the owner's oldest job.
    pub(super) oldest: u64,
    /// Spec of the job, unless the scheduler has it.
    pub(super) spec: Option<Payload>,
}

/// Effect of a PREPARE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The job is new.
    New,
    /// The job was known, or has ended.
    Known,
    /// The job is not known, and the message has no spec.
    WithoutSpec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobState {
    Queued,
    Offered {
        until_ns: u64,
    },
    Running {
        is_started: bool,
        packed_ns: u64,
        moved_ns: u64,
        progress_bytes: u64,
        /// Time of the first beat since the last progress that reported that the job waits.
        waits_since_ns: Option<u64>,
    },
    Committed,
    GivenBack {
        why: LocalWhy,
        next_ns: u64,
    },
}

#[derive(Clone, Debug)]
struct Job {
    order: JobOrder,
    spec: Payload,
    /// Attempts that were not given out yet.
    unused: VecDeque<PreparedAttempt>,
    /// The smallest attempt number that the owner has prepared for this session. Smaller ones
    /// belong to earlier sessions, also of earlier lives.
    first: Attempt,
    /// The largest attempt number that the owner has named.
    newest: Attempt,
    excluded: BTreeSet<ExecutorId>,
    /// The attempt that an executor has, unless the job waits.
    given: Option<(PreparedAttempt, ExecutorId)>,
    state: JobState,
    /// Times and progress, for operators.
    track: JobTrack,
    /// Time at which the timer first found the job in its queue after its last package.
    queued_since_ns: Option<u64>,
    was_offered: bool,
    /// Whether an executor got a package.
    was_packed: bool,
    /// The latest attempt that has failed.
    failure: Option<FailedAttempt>,
}

impl Job {
    /// A job that waits for an executor, without attempts. `first` is the smallest attempt number
    /// that the owner has prepared.
    fn new(now_ns: u64, order: JobOrder, spec: Payload, first: Attempt) -> Self {
        let excluded = order.avoids.iter().copied().collect();
        Self {
            order,
            spec,
            unused: VecDeque::new(),
            first,
            newest: Attempt::default(),
            excluded,
            given: None,
            state: JobState::Queued,
            track: JobTrack::new(now_ns),
            queued_since_ns: None,
            was_offered: false,
            was_packed: false,
            failure: None,
        }
    }

    fn queue(&self) -> Queue {
        match self.order.kind {
            JobKind::Flush => Queue::Flush,
            JobKind::Compaction | JobKind::Gc => Queue::Other,
        }
    }

    /// The executor that has this attempt.
    fn holder_of(&self, at: AttemptId) -> Option<ExecutorId> {
        let (given, executor) = self.given?;
        (given.attempt == at.attempt).then_some(executor)
    }

    fn at(&self) -> Option<(AttemptId, ExecutorId)> {
        let (given, executor) = self.given?;
        Some((AttemptId { job: self.order.id, attempt: given.attempt }, executor))
    }

    /// Whether `by` runs this attempt in vain. This is so if another executor or another attempt
    /// has the job, or if this session gave the attempt out and took it back. An attempt of an
    /// earlier session goes on until an executor has accepted the job, because an executor may
    /// decline an offer.
    fn has_given_up(&self, at: AttemptId, by: ExecutorId) -> bool {
        let is_held = self.holder_of(at) == Some(by);
        let is_taken = matches!(self.state, JobState::Running { .. } | JobState::Committed);
        !is_held && (is_taken || at.attempt >= self.first)
    }

    /// The job for operators, without the address of its executor.
    fn standing(&self, now_ns: u64) -> JobStanding {
        let (phase, why) = match self.state {
            JobState::Queued => (JobPhase::Queued, None),
            JobState::Offered { .. } => (JobPhase::Offered, None),
            JobState::Running { .. } => (JobPhase::Running, None),
            JobState::Committed => (JobPhase::Committed, None),
            JobState::GivenBack { why, .. } => (JobPhase::GivenBack, Some(why)),
        };
        let next = self.unused.front().filter(|_| phase == JobPhase::Queued);
        let attempt = self.given.as_ref().map(|(given, _)| given).or(next);
        let attempt = attempt.map(|prepared| prepared.attempt).unwrap_or_default();
        let job = JobStanding {
            at: AttemptId { job: self.order.id, attempt },
            kind: Some(self.order.kind),
            phase,
            input_bytes: self.order.bytes,
            executor: self.given.map(|(_, executor)| executor),
            why,
            failure: self.failure.as_ref().map(|failure| self.track.recent(now_ns, failure)),
            earlier: u32::try_from(self.order.avoids.len()).unwrap_or(u32::MAX),
            ..JobStanding::default()
        };
        self.track.complete(now_ns, job)
    }

    /// Whether an executor has the job and has not committed it.
    fn is_out(&self) -> bool {
        matches!(self.state, JobState::Offered { .. } | JobState::Running { .. })
    }
}

/// The jobs of all owners.
#[derive(Clone, Debug, Default)]
pub(super) struct Jobs {
    jobs: BTreeMap<JobId, Job>,
    queues: [VecDeque<JobId>; 2],
    /// Jobs that have ended here, and that their owners may still name.
    ended: BTreeSet<JobId>,
    /// The epoch of each owner, and the oldest job that it may still name.
    floors: BTreeMap<OffloadDb, (Epoch, u64)>,
    /// Jobs without unused attempts.
    exhausted: Vec<JobId>,
}

impl Jobs {
    /// Whether no job is known.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The jobs of a database.
    pub(super) fn of(&self, db: OffloadDb) -> Vec<JobId> {
        self.jobs.keys().filter(|job| job.db == db).copied().collect()
    }

    /// Forgets everything about the jobs of a database.
    pub(super) fn forget(&mut self, db: OffloadDb) {
        self.floors.remove(&db);
        self.ended.retain(|job| job.db != db);
    }

    /// Enters a job, or adds attempts to a known one.
    pub(super) fn prepare(&mut self, now_ns: u64, prepared: Prepared) -> Entered {
        let Prepared { order, attempts, oldest, spec } = prepared;
        let id = order.id;
        self.raise_floor(id, oldest);
        if self.has_ended(id) {
            return Entered::Known;
        }
        let (job, entered) = match self.jobs.entry(id) {
            Entry::Occupied(known) => (known.into_mut(), Entered::Known),
            Entry::Vacant(place) => {
                let Some(spec) = spec else { return Entered::WithoutSpec };
                let first = attempts.iter().map(|one| one.attempt).min().unwrap_or_default();
                (place.insert(Job::new(now_ns, order, spec, first)), Entered::New)
            }
        };
        for attempt in attempts {
            if attempt.attempt > job.newest {
                job.newest = attempt.attempt;
                job.unused.push_back(attempt);
            }
        }
        let queue = job.queue();
        if entered == Entered::New {
            self.queues[queue as usize].push_back(id);
        }
        entered
    }

    /// Whether a job has ended for its owner, as far as this life knows.
    fn has_ended(&self, id: JobId) -> bool {
        self.is_below_floor(id) || self.ended.contains(&id)
    }

    /// Whether a job is older than the oldest one that its owner may still name.
    fn is_below_floor(&self, id: JobId) -> bool {
        let is_older = |floor: &(Epoch, u64)| (id.epoch, id.number) < *floor;
        self.floors.get(&id.db).is_some_and(is_older)
    }

    /// Whether the attempt that `by` runs was given up. It is false for an attempt of a job that
    /// this life does not know. An earlier life gave that attempt out, and its outputs may still be
    /// installed.
    pub(super) fn has_given_up(&self, at: AttemptId, by: ExecutorId) -> bool {
        match self.jobs.get(&at.job) {
            Some(job) => job.has_given_up(at, by),
            None => self.has_ended(at.job),
        }
    }

    /// Forgets the jobs of the owner that are older than its oldest one.
    fn raise_floor(&mut self, id: JobId, oldest: u64) {
        let floor = self.floors.entry(id.db).or_insert((id.epoch, oldest));
        if floor.0 == id.epoch && floor.1 >= oldest {
            return;
        }
        *floor = (id.epoch, oldest);
        let is_old = |job: &JobId| job.db == id.db && (job.epoch, job.number) < (id.epoch, oldest);
        let old: Vec<JobId> = self.jobs.keys().filter(|job| is_old(job)).copied().collect();
        old.into_iter().for_each(|job| {
            self.settle(job);
        });
        self.ended.retain(|job| !is_old(job));
    }

    /// The job that the queue serves next. With `from_back` it is the youngest one.
    pub(super) fn head(&self, queue: Queue, from_back: bool) -> Option<Head> {
        let queue = &self.queues[queue as usize];
        let id = if from_back { queue.back() } else { queue.front() };
        let job = self.jobs.get(id?)?;
        Some(Head {
            id: job.order.id,
            bytes: job.order.bytes,
            needs: job.order.needs.clone(),
            places: job.order.places.clone(),
            excluded: job.excluded.clone(),
            is_second: !job.order.avoids.is_empty(),
        })
    }

    /// Number of jobs that wait in a queue.
    pub(super) fn waiting(&self, queue: Queue) -> u32 {
        u32::try_from(self.queues[queue as usize].len()).unwrap_or(u32::MAX)
    }

    /// Milliseconds since the oldest of the jobs that wait in a queue arrived.
    pub(super) fn oldest_ms(&self, now_ns: u64, queue: Queue) -> u64 {
        let jobs = self.queues[queue as usize].iter().filter_map(|id| self.jobs.get(id));
        jobs.map(|job| job.track.age_ms(now_ns)).max().unwrap_or(0)
    }

    /// The jobs by kind.
    pub(super) fn figures(&self, now_ns: u64) -> [JobFigures; JobKind::ALL.len()] {
        let mut all = JobKind::ALL.map(|kind| JobFigures { kind, ..JobFigures::default() });
        for job in self.jobs.values() {
            let kind = job.order.kind;
            let Some(figures) = all.iter_mut().find(|figures| figures.kind == kind) else {
                continue;
            };
            match job.state {
                JobState::Queued => {
                    figures.waiting += 1;
                    figures.waited_ms_max = figures.waited_ms_max.max(job.track.waited_ms(now_ns));
                }
                JobState::Offered { .. } | JobState::Running { .. } => figures.running += 1,
                JobState::Committed => figures.committed += 1,
                JobState::GivenBack { .. } => {}
            }
        }
        all
    }

    /// All jobs for operators, without the addresses of executors.
    pub(super) fn standings(&self, now_ns: u64) -> Vec<JobStanding> {
        self.jobs.values().map(|job| job.standing(now_ns)).collect()
    }

    /// Whether this life knows the job, and it has not ended.
    pub(super) fn has(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    /// Slots that attempts hold, by executor.
    pub(super) fn slots_taken(&self) -> BTreeMap<ExecutorId, u32> {
        let mut taken = BTreeMap::new();
        for job in self.jobs.values().filter(|job| job.is_out()) {
            if let Some((_, executor)) = job.given {
                *taken.entry(executor).or_insert(0) += 1;
            }
        }
        taken
    }

    /// Offers the next attempt of a waiting job. Returns the message, and whether this is the first
    /// offer of the job. `None` if no attempt is left; the job then leaves its queue.
    pub(super) fn offer(
        &mut self,
        id: JobId,
        executor: ExecutorId,
        until_ns: u64,
        life: SchedulerLife,
    ) -> Option<(OffloadMessage, bool)> {
        let job = self.jobs.get_mut(&id)?;
        let queue = job.queue();
        let next = job.unused.pop_front();
        self.queues[queue as usize].retain(|waiting| *waiting != id);
        let Some(next) = next else {
            self.exhausted.push(id);
            return None;
        };
        job.given = Some((next, executor));
        job.state = JobState::Offered { until_ns };
        let at = AttemptId { job: id, attempt: next.attempt };
        let is_first = !std::mem::replace(&mut job.was_offered, true);
        Some((OffloadMessage::Assign { at, life, order: job.order.clone() }, is_first))
    }

    /// The package of an attempt that its executor has accepted. `None` if the executor does not
    /// have this attempt.
    pub(super) fn accepted(
        &mut self,
        now_ns: u64,
        at: AttemptId,
        by: ExecutorId,
        life: SchedulerLife,
    ) -> Option<OffloadMessage> {
        let job = self.jobs.get_mut(&at.job)?;
        if job.holder_of(at) != Some(by) || !job.is_out() {
            return None;
        }
        job.queued_since_ns = None;
        let numbers = job.given?.0.numbers;
        if matches!(job.state, JobState::Offered { .. }) {
            job.track.accepted(now_ns);
            job.state = JobState::Running {
                is_started: false,
                packed_ns: now_ns,
                moved_ns: now_ns,
                progress_bytes: 0,
                waits_since_ns: None,
            };
        }
        job.was_packed = true;
        let spec = job.spec.clone();
        Some(OffloadMessage::Package { at, life, numbers, spec })
    }

    /// Packages to send again, because they were not answered within `answer_ns`.
    pub(super) fn packages(
        &mut self,
        now_ns: u64,
        answer_ns: u64,
        life: SchedulerLife,
    ) -> Vec<(ExecutorId, OffloadMessage)> {
        let mut packages = Vec::new();
        for job in self.jobs.values_mut() {
            let JobState::Running { is_started: false, packed_ns, .. } = &mut job.state else {
                continue;
            };
            if *packed_ns + answer_ns > now_ns {
                continue;
            }
            *packed_ns = now_ns;
            let Some((given, executor)) = job.given else { continue };
            let at = AttemptId { job: job.order.id, attempt: given.attempt };
            let spec = job.spec.clone();
            let package = OffloadMessage::Package { at, life, numbers: given.numbers, spec };
            packages.push((executor, package));
        }
        packages
    }

    /// Notes that an executor has begun the attempt.
    pub(super) fn started(&mut self, now_ns: u64, at: AttemptId, by: ExecutorId) {
        self.progress(now_ns, by, Running { at, ..Running::default() }, 0);
    }

    /// Notes how far an attempt is. A job that waits counts as a job with progress, for `wait_ns`
    /// since the first beat that reported the wait after its last progress.
    pub(super) fn progress(&mut self, now_ns: u64, by: ExecutorId, now: Running, wait_ns: u64) {
        let Running { at, progress_bytes: bytes, waits } = now;
        let Some(job) = self.jobs.get_mut(&at.job) else { return };
        if job.holder_of(at) != Some(by) {
            return;
        }
        if let JobState::Running { is_started, moved_ns, progress_bytes, waits_since_ns, .. } =
            &mut job.state
        {
            if !*is_started || bytes > *progress_bytes {
                (*moved_ns, *waits_since_ns) = (now_ns, None);
            }
            if waits {
                let since_ns = *waits_since_ns.get_or_insert(now_ns);
                if now_ns.saturating_sub(since_ns) < wait_ns {
                    *moved_ns = now_ns;
                }
            }
            *is_started = true;
            *progress_bytes = bytes.max(*progress_bytes);
            job.track.beat(now_ns, bytes, waits);
        }
    }

    /// Takes back an attempt that an executor has declined, so that another executor may get it. An
    /// executor without a free slot may get it again later. Returns whether the job waits again.
    pub(super) fn declined(&mut self, at: AttemptId, by: ExecutorId, why: DeclineWhy) -> bool {
        let Some(job) = self.jobs.get_mut(&at.job) else { return false };
        let is_offered = matches!(job.state, JobState::Offered { .. });
        if job.holder_of(at) != Some(by) || !is_offered {
            return false;
        }
        if let Some((given, _)) = job.given.take() {
            job.unused.push_front(given);
        }
        if why != DeclineWhy::Busy {
            job.excluded.insert(by);
        }
        self.wait_again(at.job);
        true
    }

    /// Ends an attempt without outputs. Returns whether it was the present attempt of the job.
    pub(super) fn failed(&mut self, now_ns: u64, failure: &FailedAttempt) -> bool {
        let (at, by) = (failure.at, failure.executor);
        let Some(job) = self.jobs.get_mut(&at.job) else { return false };
        let is_out = job.is_out() || job.state == JobState::Committed;
        if job.holder_of(at) != Some(by) || !is_out {
            return false;
        }
        job.given = None;
        job.failure = Some(failure.clone());
        job.track.failed(now_ns);
        job.excluded.insert(by);
        self.wait_again(at.job);
        true
    }

    /// Lets a job wait for an executor again. A job without an unused attempt would wait in vain,
    /// and would keep later jobs of the queue waiting. So the next dispatch gives it back to its
    /// owner.
    fn wait_again(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.state = JobState::Queued;
        if job.unused.is_empty() {
            self.exhausted.push(id);
            return;
        }
        let queue = job.queue();
        self.queues[queue as usize].push_front(id);
    }

    /// The attempts of an executor, without those that it has committed.
    pub(super) fn attempts_of(&self, executor: ExecutorId) -> Vec<AttemptId> {
        let of = |job: &Job| job.at().filter(|(_, by)| *by == executor && job.is_out());
        self.jobs.values().filter_map(of).map(|(at, _)| at).collect()
    }

    /// Attempts whose executor has not answered in time, or whose job makes no progress.
    pub(super) fn overdue(
        &self,
        now_ns: u64,
        terms: &SchedulerTerms,
    ) -> Vec<(AttemptId, ExecutorId)> {
        let is_overdue = |job: &&Job| match job.state {
            JobState::Offered { until_ns } => until_ns <= now_ns,
            JobState::Running { moved_ns, .. } => moved_ns + terms.progress_ns <= now_ns,
            _ => false,
        };
        self.jobs.values().filter(is_overdue).filter_map(Job::at).collect()
    }

    /// Flushes that have waited in their queue for `queue_ns` since their last package. A declined
    /// offer does not restart the wait.
    pub(super) fn long_waiting(&mut self, now_ns: u64, queue_ns: u64) -> Vec<JobId> {
        let mut found = Vec::new();
        for id in &self.queues[Queue::Flush as usize] {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            let since_ns = *job.queued_since_ns.get_or_insert(now_ns);
            if since_ns.saturating_add(queue_ns) <= now_ns {
                found.push(*id);
            }
        }
        found
    }

    /// Notes that an executor has committed an attempt.
    pub(super) fn has_committed(&mut self, now_ns: u64, at: AttemptId, by: ExecutorId) {
        let Some(job) = self.jobs.get_mut(&at.job) else { return };
        if job.holder_of(at) == Some(by) && job.is_out() {
            job.state = JobState::Committed;
            job.track.ended(now_ns);
        }
    }

    /// Lets a job go to the executors that it avoids, if no other executor can run it.
    pub(super) fn forgive(&mut self, id: JobId, candidates: &[Candidate]) {
        let mut able = candidates.iter().filter(|candidate| candidate.can_run);
        if able.all(|candidate| candidate.is_excluded)
            && let Some(job) = self.jobs.get_mut(&id)
        {
            job.excluded.clear();
        }
    }

    /// Takes the jobs whose attempts were used up since the last call.
    pub(super) fn take_exhausted(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.exhausted)
    }

    /// Gives a job back to its owner.
    pub(super) fn give_back(&mut self, now_ns: u64, id: JobId, why: LocalWhy) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.track.ended(now_ns);
        job.state = JobState::GivenBack { why, next_ns: 0 };
        let queue = job.queue();
        self.queues[queue as usize].retain(|waiting| *waiting != id);
    }

    /// Messages about jobs that were given back. Each message is repeated after `answer_ns`.
    pub(super) fn gives_back(&mut self, now_ns: u64, answer_ns: u64) -> Vec<OffloadMessage> {
        let mut found = Vec::new();
        for (id, job) in &mut self.jobs {
            if let JobState::GivenBack { why, next_ns } = &mut job.state
                && *next_ns <= now_ns
            {
                *next_ns = now_ns + answer_ns;
                let is_untouched = !job.was_packed;
                let (job, why, failure) = (*id, *why, job.failure.clone());
                found.push(OffloadMessage::GiveBack { job, why, is_untouched, failure });
            }
        }
        found
    }

    /// Ends a job, which this life need not know. Returns its attempt if an executor may still run
    /// it.
    pub(super) fn settle(&mut self, id: JobId) -> Option<(AttemptId, ExecutorId)> {
        if !self.is_below_floor(id) {
            self.ended.insert(id);
        }
        let job = self.jobs.remove(&id)?;
        self.queues.iter_mut().for_each(|queue| queue.retain(|waiting| *waiting != id));
        job.at().filter(|_| job.is_out())
    }
}
