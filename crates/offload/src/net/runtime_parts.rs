//! The parts of a process in virtual time that owners and executors of jobs use.
//!
//! A process of the system needs none of them: it has threads, a clock, and links by its endpoints.
//!
//! Thread-safety: any thread may use the parts.
//! Failure and cost: those of the parts.

use std::sync::Arc;

use archipelago_base::clock::Clock;
use archipelago_base::runtime::Runtime;
use archipelago_fabric::Reach;

/// Time, links and tasks of an owner or an executor whose process is simulated.
#[derive(Clone, Debug)]
pub struct RuntimeParts {
    /// Makes links to managers and memory nodes.
    pub reach: Arc<dyn Reach>,
    /// Source of time, tasks and random seeds.
    pub runtime: Arc<dyn Runtime>,
    /// The time of `runtime`, for jobs. Its sleeps take the time of `runtime`.
    pub clock: Arc<dyn Clock>,
}
