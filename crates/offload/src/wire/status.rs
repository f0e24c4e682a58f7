//! The state of a scheduler, for operators.

use archipelago_base::wire_struct;

use crate::decide::{InputReach, Load};
use crate::ids::ExecutorId;

/// An executor as its scheduler sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStanding {
    /// Executor in question.
    pub executor: ExecutorId,
    /// Largest number of jobs that it runs at the same time.
    pub slots: u32,
    /// Slots that attempts hold.
    pub taken: u32,
    /// Load as of its last beat.
    pub load: Load,
    /// Memory node in whose process it runs, and the cost of a fetch.
    pub reach: InputReach,
}
wire_struct!(ExecutorStanding { executor, slots, taken, load, reach });

/// The jobs and executors of one life of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStatus {
    /// The executors that are alive.
    pub executors: Vec<ExecutorStanding>,
    /// Flushes that wait for an executor.
    pub flushes_waiting: u32,
    /// Other jobs that wait for an executor.
    pub others_waiting: u32,
    /// Jobs whose outputs were installed.
    pub installed: u64,
    /// Attempts that ended without outputs.
    pub failed: u64,
    /// Jobs that went back to their owners.
    pub given_back: u64,
}
wire_struct!(SchedulerStatus {
    executors,
    flushes_waiting,
    others_waiting,
    installed,
    failed,
    given_back
});
