//! The state of a scheduler, for operators.

use std::collections::BTreeMap;

use archipelago_base::{Epoch, wire_struct};

use crate::decide::{InputReach, Load};
use crate::failure::{FailedAttempt, ShortText};
use crate::ids::{ExecutorId, OffloadDb};
use crate::job::LocalWhy;

/// An executor as its scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStanding {
    /// Executor in question.
    pub executor: ExecutorId,
    /// Host and process of the executor, with the kind of a node that hosts it.
    pub address: ShortText,
    /// Build of the executor, with the versions of specs and parcels.
    pub build: ShortText,
    /// Largest number of jobs that it runs at the same time.
    pub slots: u32,
    /// Slots that attempts hold.
    pub taken: u32,
    /// Load as of its last beat.
    pub load: Load,
    /// Memory node in whose process it runs, and the cost of a fetch.
    pub reach: InputReach,
    /// Jobs that the executor has or runs, and jobs whose outputs wait for the decision of their
    /// owner. The executor may end without harm when there are none.
    pub held: u32,
    /// Whether an operator drains it, so that it takes no more jobs.
    pub is_draining: bool,
}
wire_struct!(ExecutorStanding {
    executor,
    address,
    build,
    slots,
    taken,
    load,
    reach,
    held,
    is_draining
});

/// The latest attempt that has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentFailure {
    /// Attempt, executor and reason.
    pub attempt: FailedAttempt,
    /// Milliseconds since it has failed.
    pub age_ms: u64,
}
wire_struct!(RecentFailure { attempt, age_ms });

/// Jobs that ran in the process of their owner for one reason although its mode sends them away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackCount {
    /// Reason for which they ran there.
    pub why: LocalWhy,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of compactions and garbage collections.
    pub others: u64,
}
wire_struct!(FallbackCount { why, flushes, others });

/// The jobs of one open of a database since it began, as the owner counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerReport {
    /// Host and process of the owner; empty if the owner has not reported them.
    pub address: ShortText,
    /// Jobs whose outputs came from executors.
    pub away: u64,
    /// Second attempts of flushes that left.
    pub second_attempts: u64,
    /// Jobs that ran in the owner's process, by reason. Reasons without jobs are left out.
    pub fallbacks: Vec<FallbackCount>,
}
wire_struct!(OwnerReport { address, away, second_attempts, fallbacks });

/// An owner that has reported to its scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerStanding {
    /// Database of the owner.
    pub db: OffloadDb,
    /// Epoch of the owner.
    pub epoch: Epoch,
    /// Milliseconds since the latest report.
    pub age_ms: u64,
    /// Latest report of the owner.
    pub report: OwnerReport,
}
wire_struct!(OwnerStanding { db, epoch, age_ms, report });

/// The jobs and executors of one life of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStatus {
    /// The executors that are alive.
    pub executors: Vec<ExecutorStanding>,
    /// Flushes that wait for an executor.
    pub flushes_waiting: u32,
    /// Other jobs that wait for an executor.
    pub others_waiting: u32,
    /// Milliseconds since the oldest of the waiting flushes arrived; 0 if none waits.
    pub flushes_oldest_ms: u64,
    /// Milliseconds since the oldest of the other waiting jobs arrived; 0 if none waits.
    pub others_oldest_ms: u64,
    /// Jobs whose outputs were installed.
    pub installed: u64,
    /// Attempts that ended without outputs.
    pub failed: u64,
    /// Jobs that went back to their owners.
    pub given_back: u64,
    /// The latest attempt that has failed; `None` if none has.
    pub last_failure: Option<RecentFailure>,
    /// The first owners that have reported, by their databases. The list is bounded, so that it
    /// fits into a message.
    pub owners: Vec<OwnerStanding>,
    /// Number of all owners that have reported.
    pub owners_total: u32,
}
wire_struct!(SchedulerStatus {
    executors,
    flushes_waiting,
    others_waiting,
    flushes_oldest_ms,
    others_oldest_ms,
    installed,
    failed,
    given_back,
    last_failure,
    owners,
    owners_total
});

impl SchedulerStatus {
    /// The state of all schedulers of a cluster together. Each of them knows all executors, and its
    /// own jobs.
    #[must_use]
    pub fn merged(all: Vec<Self>) -> Self {
        let mut whole = Self::default();
        let mut executors: BTreeMap<ExecutorId, ExecutorStanding> = BTreeMap::new();
        let mut owners: BTreeMap<OffloadDb, OwnerStanding> = BTreeMap::new();
        for one in all {
            // An owner reports to every scheduler that it greets.
            whole.owners_total = whole.owners_total.max(one.owners_total);
            for owner in one.owners {
                let age_ms = owners.get(&owner.db).map_or(u64::MAX, |known| known.age_ms);
                if owner.age_ms < age_ms {
                    owners.insert(owner.db, owner);
                }
            }
            for executor in one.executors {
                match executors.get_mut(&executor.executor) {
                    Some(known) => {
                        known.taken = known.taken.saturating_add(executor.taken);
                        known.held = known.held.saturating_add(executor.held);
                        known.is_draining |= executor.is_draining;
                    }
                    None => {
                        executors.insert(executor.executor, executor);
                    }
                }
            }
            whole.flushes_waiting = whole.flushes_waiting.saturating_add(one.flushes_waiting);
            whole.others_waiting = whole.others_waiting.saturating_add(one.others_waiting);
            whole.flushes_oldest_ms = whole.flushes_oldest_ms.max(one.flushes_oldest_ms);
            whole.others_oldest_ms = whole.others_oldest_ms.max(one.others_oldest_ms);
            whole.installed = whole.installed.saturating_add(one.installed);
            whole.failed = whole.failed.saturating_add(one.failed);
            whole.given_back = whole.given_back.saturating_add(one.given_back);
            let age_ms = |failure: &Option<RecentFailure>| {
                failure.as_ref().map_or(u64::MAX, |failure| failure.age_ms)
            };
            if age_ms(&one.last_failure) < age_ms(&whole.last_failure) {
                whole.last_failure = one.last_failure;
            }
        }
        whole.executors = executors.into_values().collect();
        whole.owners = owners.into_values().collect();
        let listed = u32::try_from(whole.owners.len()).unwrap_or(u32::MAX);
        whole.owners_total = whole.owners_total.max(listed);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedulers_are_added_up_and_executors_are_listed_once() {
        let executor = |number, taken, is_draining| ExecutorStanding {
            executor: ExecutorId(number),
            slots: 4,
            taken,
            held: taken + 1,
            is_draining,
            ..ExecutorStanding::default()
        };
        let failure = |age_ms| Some(RecentFailure { age_ms, ..RecentFailure::default() });
        let owner = |low, age_ms| OwnerStanding {
            db: OffloadDb([low; 16]),
            age_ms,
            ..OwnerStanding::default()
        };
        let one = SchedulerStatus {
            executors: vec![executor(1, 1, false), executor(2, 0, false)],
            flushes_waiting: 2,
            flushes_oldest_ms: 30,
            installed: 5,
            last_failure: failure(90),
            owners: vec![owner(1, 70), owner(2, 20)],
            owners_total: 2,
            ..SchedulerStatus::default()
        };
        let other = SchedulerStatus {
            executors: vec![executor(2, 3, true)],
            flushes_waiting: 1,
            flushes_oldest_ms: 40,
            installed: 6,
            last_failure: failure(80),
            owners: vec![owner(1, 60), owner(3, 50)],
            owners_total: 2,
            ..SchedulerStatus::default()
        };
        let second = ExecutorStanding { held: 5, ..executor(2, 3, true) };
        let whole = SchedulerStatus {
            executors: vec![executor(1, 1, false), second],
            flushes_waiting: 3,
            installed: 11,
            owners: vec![owner(1, 60), owner(2, 20), owner(3, 50)],
            owners_total: 3,
            ..other.clone()
        };
        assert_eq!(SchedulerStatus::merged(vec![one, other]), whole);
        let nothing = vec![SchedulerStatus::default(); 2];
        assert_eq!(SchedulerStatus::merged(nothing), SchedulerStatus::default());
    }
}
