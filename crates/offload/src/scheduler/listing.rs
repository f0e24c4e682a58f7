//! The jobs of a scheduler as operators see them: the progress of each job, a bounded list, and
//! figures for metrics.
//!
//! No decision about a job reads these values.
//!
//! Invariant: a list fits into one answer of the fabric.
//!
//! Cost: O(jobs · log jobs) for a list.

use std::cmp::Reverse;

use archipelago_base::wire::Wire;

use super::{MS, SchedulerCounters};
use crate::failure::FailedAttempt;
use crate::job::JobKind;
use crate::wire::{JobStanding, RecentFailure};

/// Jobs of a list at most.
const JOBS_MAX: usize = 1_000;
/// Bytes of the jobs of a list at most. An answer of the fabric has at most 256 KiB.
const LIST_BYTES_MAX: usize = 240 << 10;

/// The jobs of one kind at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobFigures {
    /// Kind of the jobs.
    pub kind: JobKind,
    /// Number of jobs that wait for an executor.
    pub waiting: u64,
    /// Longest time, in milliseconds, for which one of them has waited since it arrived or since
    /// its last attempt failed; 0 if none waits.
    pub waited_ms_max: u64,
    /// Number of jobs that an executor was offered, or runs.
    pub running: u64,
    /// Number of jobs whose outputs wait for the decision of their owner.
    pub committed: u64,
}

/// The figures of one life of a scheduler at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerFigures {
    /// Counters since the life began.
    pub counters: SchedulerCounters,
    /// The jobs by kind, in the order of [`JobKind::ALL`].
    pub jobs: [JobFigures; JobKind::ALL.len()],
    /// Number of executors that are alive.
    pub executors: u64,
    /// Number of slots of those executors that are not drained.
    pub slots: u32,
}

/// Times and progress of a job.
#[derive(Clone, Debug)]
pub(super) struct JobTrack {
    /// Time at which it arrived in this life of the scheduler.
    arrived_ns: u64,
    /// Time at which it arrived, or at which its latest attempt failed.
    queued_ns: u64,
    /// Time at which an executor accepted the present attempt.
    accepted_ns: Option<u64>,
    /// Time at which the present attempt was committed, or the job was given back.
    ended_ns: Option<u64>,
    /// Time at which the present attempt was accepted, or its bytes grew.
    moved_ns: u64,
    progress_bytes: u64,
    waits: bool,
    failed_ns: u64,
}

impl JobTrack {
    /// Track of a job that arrives now.
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            arrived_ns: now_ns,
            queued_ns: now_ns,
            accepted_ns: None,
            ended_ns: None,
            moved_ns: now_ns,
            progress_bytes: 0,
            waits: false,
            failed_ns: 0,
        }
    }

    /// Milliseconds since the job arrived.
    pub(super) fn age_ms(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.arrived_ns) / MS
    }

    /// Milliseconds for which the job has waited since it arrived or since its last attempt failed.
    /// The time of failed attempts is no wait, so it differs from the age.
    pub(super) fn waited_ms(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.queued_ns) / MS
    }

    /// Notes that an executor has accepted an attempt.
    pub(super) fn accepted(&mut self, now_ns: u64) {
        (self.accepted_ns, self.moved_ns) = (Some(now_ns), now_ns);
    }

    /// Notes the progress of the present attempt from a beat.
    pub(super) fn beat(&mut self, now_ns: u64, progress_bytes: u64, waits: bool) {
        if progress_bytes > self.progress_bytes {
            (self.progress_bytes, self.moved_ns) = (progress_bytes, now_ns);
        }
        self.waits = waits;
    }

    /// Notes that the present attempt has failed. The job waits again.
    pub(super) fn failed(&mut self, now_ns: u64) {
        let arrived_ns = self.arrived_ns;
        *self = Self { arrived_ns, failed_ns: now_ns, ..Self::new(now_ns) };
    }

    /// Notes that the present attempt was committed, or that the job was given back.
    pub(super) fn ended(&mut self, now_ns: u64) {
        (self.ended_ns, self.waits) = (Some(now_ns), false);
    }

    /// Fills in times and progress of a job.
    pub(super) fn complete(&self, now_ns: u64, job: JobStanding) -> JobStanding {
        let ms = |from_ns: u64, to_ns: u64| to_ns.saturating_sub(from_ns) / MS;
        let end_ns = self.ended_ns.unwrap_or(now_ns);
        let idle_since_ns = self.ended_ns.or(self.accepted_ns.map(|_| self.moved_ns));
        JobStanding {
            age_ms: self.age_ms(now_ns),
            queued_ms: ms(self.queued_ns, self.accepted_ns.unwrap_or(end_ns)),
            running_ms: self.accepted_ns.map_or(0, |accepted_ns| ms(accepted_ns, end_ns)),
            idle_ms: idle_since_ns.map_or(0, |since_ns| ms(since_ns, now_ns)),
            progress_bytes: self.progress_bytes,
            waits: self.waits,
            ..job
        }
    }

    /// The latest failed attempt of the job, with its age.
    pub(super) fn recent(&self, now_ns: u64, failure: &FailedAttempt) -> RecentFailure {
        let age_ms = now_ns.saturating_sub(self.failed_ns) / MS;
        RecentFailure { attempt: failure.clone(), age_ms }
    }
}

/// Sorts the jobs by phase and then from the oldest to the youngest, and drops those that do not
/// fit into a list.
pub(super) fn bounded(mut jobs: Vec<JobStanding>) -> Vec<JobStanding> {
    jobs.sort_by_key(|job| (job.phase, Reverse(job.age_ms), job.at));
    let (mut bytes, mut encoded) = (0, Vec::new());
    let mut fits = |job: &JobStanding| {
        encoded.clear();
        job.put(&mut encoded);
        bytes += encoded.len();
        bytes <= LIST_BYTES_MAX
    };
    let listed = jobs.iter().take(JOBS_MAX).take_while(|job| fits(job)).count();
    jobs.truncate(listed);
    jobs
}

#[cfg(test)]
mod tests {
    use archipelago_fabric::MESSAGE_BYTES_MAX;

    use super::*;
    use crate::failure::ShortText;
    use crate::ids::{Attempt, AttemptId, JobId};
    use crate::wire::{JobList, JobPhase, OffloadMessage};

    fn job(number: u64, phase: JobPhase, age_ms: u64) -> JobStanding {
        let at = AttemptId { job: JobId { number, ..JobId::default() }, attempt: Attempt(1) };
        JobStanding { at, phase, age_ms, ..JobStanding::default() }
    }

    #[test]
    fn running_jobs_come_first_and_older_ones_before_younger_ones() {
        let jobs = vec![
            job(1, JobPhase::GivenBack, 90),
            job(2, JobPhase::Queued, 80),
            job(3, JobPhase::Running, 10),
            job(4, JobPhase::Offered, 70),
            job(5, JobPhase::Running, 20),
            job(6, JobPhase::Committed, 60),
            job(7, JobPhase::Running, 10),
        ];
        let numbers: Vec<u64> = bounded(jobs).iter().map(|job| job.at.job.number).collect();
        assert_eq!(numbers, [5, 3, 7, 6, 4, 2, 1]);
    }

    #[test]
    fn a_list_of_many_jobs_with_long_texts_fits_into_a_message() {
        let many = |failure: Option<RecentFailure>| {
            let jobs = (0..5_000).map(|number| JobStanding {
                failure: failure.clone(),
                ..job(number, JobPhase::Queued, 5_000 - number)
            });
            bounded(jobs.collect())
        };
        assert_eq!(many(None).len(), JOBS_MAX);
        let text = ShortText::new(&"x".repeat(400));
        let attempt = FailedAttempt { address: text.clone(), reason: text, ..Default::default() };
        let jobs = many(Some(RecentFailure { attempt, age_ms: 1 }));
        assert!(jobs.len() > 200, "{}", jobs.len());
        assert!(jobs.iter().enumerate().all(|(at, job)| job.at.job.number == at as u64));
        let jobs = JobList { jobs, jobs_total: 5_000, ..JobList::default() };
        assert!(OffloadMessage::JobsAre { jobs }.encode().len() <= MESSAGE_BYTES_MAX);
    }

    #[test]
    fn track_tells_waiting_running_and_idle_time_apart() {
        let mut track = JobTrack::new(0);
        let times = |track: &JobTrack, now_ms: u64| {
            let job = track.complete(now_ms * MS, JobStanding::default());
            [job.age_ms, job.queued_ms, job.running_ms, job.idle_ms]
        };
        assert_eq!(times(&track, 10), [10, 10, 0, 0], "it waits");
        track.accepted(20 * MS);
        track.beat(50 * MS, 7, true);
        assert_eq!(times(&track, 60), [60, 20, 40, 10], "it runs");
        assert!(track.complete(60 * MS, JobStanding::default()).waits);
        track.beat(70 * MS, 7, false);
        assert_eq!(times(&track, 70), [70, 20, 50, 20], "a beat is no progress");
        track.failed(80 * MS);
        assert_eq!(times(&track, 90), [90, 10, 0, 0], "it waits again");
        track.accepted(100 * MS);
        track.ended(130 * MS);
        assert_eq!(times(&track, 170), [170, 20, 30, 40], "the owner has not decided");
        assert_eq!(track.recent(170 * MS, &FailedAttempt::default()).age_ms, 90);
    }
}
