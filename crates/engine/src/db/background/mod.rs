//! Background work: the scheduler, flushes, compactions, bucket changes, memory pressure.
//!
//! The scheduler picks jobs under the jobs lock. The other modules plan, run and install them.
//!
//! Thread-safety, failure and cost: see the modules.

pub(crate) mod compaction;
pub(crate) mod compaction_pick;
pub(crate) mod due;
pub(crate) mod flush;
pub mod flush_plan;
pub(crate) mod flush_task;
pub(crate) mod gc;
pub(crate) mod job_numbers;
pub(crate) mod job_specs;
pub(crate) mod kept_shards;
pub(crate) mod leave_log;
pub(crate) mod log_keeper;
pub(crate) mod memory_pressure;
pub(crate) mod offer;
pub(crate) mod owners;
pub(crate) mod parallel_job;
pub(crate) mod range_flush;
pub(crate) mod rebalance;
pub(crate) mod rebuild;
pub(crate) mod scheduler;
pub(crate) mod send;
pub(crate) mod shard_cuts;
pub(crate) mod space;
pub(crate) mod space_idle;
pub(crate) mod staying;
pub(crate) mod subcompaction;
pub(crate) mod sweep;
pub(crate) mod taken;
pub(crate) mod warm_outputs;
pub(crate) mod warm_plan;
pub(crate) mod written_shards;
