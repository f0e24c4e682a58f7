//! The list of the jobs of a scheduler, for operators.

use std::cmp::Reverse;

use archipelago_base::{wire_enum, wire_struct};

use super::RecentFailure;
use crate::failure::ShortText;
use crate::ids::{AttemptId, ExecutorId};
use crate::job::{JobKind, LocalWhy};

/// Phase of a job at its scheduler. The order is that of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobPhase {
    /// An executor has accepted the job.
    Running,
    /// An executor has committed outputs, and the owner has not decided about them.
    Committed,
    /// The scheduler has offered the job to an executor, which has not answered.
    Offered,
    /// The job waits in its queue.
    #[default]
    Queued,
    /// The owner must run the job, and has not confirmed this.
    GivenBack,
}
wire_enum!(JobPhase { Queued = 1, Offered = 2, Running = 3, Committed = 4, GivenBack = 5 });

/// A job as its scheduler sees it. All times refer to the present life of the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStanding {
    /// The job with its present attempt, or with the next one if the job waits. The attempt is 0 if
    /// there is none.
    pub at: AttemptId,
    /// Kind of the job. `None` if only its outputs are known, because an earlier life of the
    /// scheduler gave it out.
    pub kind: Option<JobKind>,
    /// Phase of the job.
    pub phase: JobPhase,
    /// Bytes that the job reads, as its owner has stated; 0 if they are not known.
    pub input_bytes: u64,
    /// Executor that has the present attempt.
    pub executor: Option<ExecutorId>,
    /// Address of that executor; empty if it is not known.
    pub address: ShortText,
    /// Milliseconds since the job arrived.
    pub age_ms: u64,
    /// Milliseconds for which the job waited for the present attempt, or waits now.
    pub queued_ms: u64,
    /// Milliseconds from the acceptance of the present attempt until now, or until the commit.
    pub running_ms: u64,
    /// Milliseconds since the last progress in bytes, since the commit, or since the job was given
    /// back. 0 while the job waits for an executor.
    pub idle_ms: u64,
    /// Bytes that the present attempt has read and written, as of its last beat.
    pub progress_bytes: u64,
    /// Whether the present attempt waits for room for its images or for its part of a rate limit,
    /// as of its last beat.
    pub waits: bool,
    /// Reason for which the job was given back.
    pub why: Option<LocalWhy>,
    /// The latest attempt of the job that has failed.
    pub failure: Option<RecentFailure>,
    /// Number of failed attempts at the same inputs as jobs of their own
    /// ([`JobOrder::avoids`](crate::job::JobOrder::avoids)).
    pub earlier: u32,
}
wire_struct!(JobStanding {
    at,
    kind,
    phase,
    input_bytes,
    executor,
    address,
    age_ms,
    queued_ms,
    running_ms,
    idle_ms,
    progress_bytes,
    waits,
    why,
    failure,
    earlier
});

/// A queue of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStanding {
    /// Jobs that wait for an executor.
    pub waiting: u32,
    /// Milliseconds since the oldest of them arrived; 0 if none waits.
    pub oldest_ms: u64,
}
wire_struct!(QueueStanding { waiting, oldest_ms });

/// The jobs of one life of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobList {
    /// The first jobs, by phase and then from the oldest to the youngest. The list is bounded, so
    /// that it fits into a message.
    pub jobs: Vec<JobStanding>,
    /// Number of all jobs, also of those that are not listed.
    pub jobs_total: u64,
    /// Queue of the flushes.
    pub flushes: QueueStanding,
    /// Queue of all other jobs.
    pub others: QueueStanding,
}
wire_struct!(JobList { jobs, jobs_total, flushes, others });

impl QueueStanding {
    fn merged(self, other: Self) -> Self {
        Self {
            waiting: self.waiting.saturating_add(other.waiting),
            oldest_ms: self.oldest_ms.max(other.oldest_ms),
        }
    }
}

impl JobList {
    /// The jobs of all schedulers of a cluster together, in the order of one list. It may have more
    /// jobs than the list of one scheduler.
    #[must_use]
    pub fn merged(all: Vec<Self>) -> Self {
        let mut whole = Self::default();
        for one in all {
            whole.jobs.extend(one.jobs);
            whole.jobs_total = whole.jobs_total.saturating_add(one.jobs_total);
            whole.flushes = whole.flushes.merged(one.flushes);
            whole.others = whole.others.merged(one.others);
        }
        whole.jobs.sort_by_key(|job| (job.phase, Reverse(job.age_ms), job.at));
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_schedulers_become_one_list() {
        let list = |age_ms, phase, waiting| JobList {
            jobs: vec![JobStanding { age_ms, phase, ..JobStanding::default() }],
            jobs_total: 7,
            flushes: QueueStanding { waiting, oldest_ms: age_ms },
            others: QueueStanding::default(),
        };
        let all = vec![
            list(10, JobPhase::Queued, 1),
            list(5, JobPhase::Running, 2),
            list(20, JobPhase::Queued, 0),
        ];
        let whole = JobList::merged(all);
        let ages: Vec<u64> = whole.jobs.iter().map(|job| job.age_ms).collect();
        assert_eq!(ages, [5, 20, 10], "running jobs come first, and then older ones");
        assert_eq!(whole.jobs_total, 21);
        assert_eq!(whole.flushes, QueueStanding { waiting: 3, oldest_ms: 20 });
    }
}
