//! Background work: the scheduler, flushes, compactions, bucket changes and memory pressure.

pub(crate) mod compaction;
pub(crate) mod flush;
pub mod flush_plan;
pub(crate) mod leave_log;
pub(crate) mod memory_pressure;
pub(crate) mod parallel_job;
pub(crate) mod rebalance;
pub(crate) mod scheduler;
pub(crate) mod subcompaction;
