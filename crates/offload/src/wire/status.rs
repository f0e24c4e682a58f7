//! The state of a scheduler, for operators.

use archipelago_base::wire_struct;

use crate::decide::{InputReach, Load};
use crate::failure::{FailedAttempt, ShortText};
use crate::ids::ExecutorId;

/// An executor as its scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStanding {
    /// Executor in question.
    pub executor: ExecutorId,
    /// Host and process of it, or the endpoints of its memory node.
    pub address: ShortText,
    /// Build of it, with the versions of specs and parcels.
    pub build: ShortText,
    /// Largest number of jobs that it runs at the same time.
    pub slots: u32,
    /// Slots that attempts hold.
    pub taken: u32,
    /// Load as of its last beat.
    pub load: Load,
    /// Memory node in whose process it runs, and the cost of a fetch.
    pub reach: InputReach,
}
wire_struct!(ExecutorStanding { executor, address, build, slots, taken, load, reach });

/// The latest attempt that has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentFailure {
    /// Attempt, executor and reason.
    pub attempt: FailedAttempt,
    /// Milliseconds since it has failed.
    pub age_ms: u64,
}
wire_struct!(RecentFailure { attempt, age_ms });

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
    last_failure
});
