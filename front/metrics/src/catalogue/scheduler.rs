//! Metrics of a manager's scheduler, which gives jobs of databases to executors. Each manager has
//! a scheduler with its own jobs. Static data.

use super::metrics;

metrics! {
    /// Number of jobs that wait for an executor, by `kind`: flush, compaction or gc.
    WAITING: Gauge "archipelago_scheduler_waiting_jobs" ["kind"];
    /// Longest time for which a job has waited for an executor since it arrived or its last attempt
    /// failed, by `kind` of job; 0 if none waits.
    OLDEST: Gauge "archipelago_scheduler_oldest_waiting_job_seconds" ["kind"];
    /// Number of jobs that an executor was offered or runs, by `kind` of job.
    RUNNING: Gauge "archipelago_scheduler_running_jobs" ["kind"];
    /// Number of jobs whose outputs wait for the decision of their owner, by `kind` of job.
    DECIDING: Gauge "archipelago_scheduler_deciding_jobs" ["kind"];
    /// Number of jobs by `event`: arrived, installed (the owner uses the outputs) or given_back
    /// (the owner runs the job).
    JOBS: Counter "archipelago_scheduler_jobs" ["event"];
    /// Number of attempts of jobs by `event`: assigned (given to an executor), declined by the
    /// executor, or failed (ended without outputs).
    ATTEMPTS: Counter "archipelago_scheduler_attempts" ["event"];
    /// Number of executors that are alive.
    EXECUTORS: Gauge "archipelago_scheduler_executors" [];
    /// Number of slots of the living executors that are not drained. Other schedulers share them.
    SLOTS: Gauge "archipelago_scheduler_executor_slots" [];
}
