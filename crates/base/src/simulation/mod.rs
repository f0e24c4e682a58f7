//! Virtual time: a deterministic scheduler for tasks and events.
//!
//! A [`Simulation`] owns a clock, a queue of events, and tasks (futures). It runs on the thread
//! that calls it. One step is the closure of an event or one poll of a task. [`Host`]s are machines
//! that crash, restart, stop for a while and have clocks of their own. [`Scheduler`] is the handle
//! that all other components hold. Dropping the [`Simulation`] drops all tasks and events.
//!
//! Invariants:
//! 1. The clock advances only when nothing is ready. It then shows the time of the next event.
//! 2. If several steps are ready, the seed draws the next.
//! 3. The seed alone therefore determines all steps and their [`Scheduler::trace_hash`]. The code
//!    that runs must not use the system's clock or entropy, another thread, or the order of a
//!    `HashMap`.
//! 4. Tasks and events of a life that is over never run.
//! 5. No lock is held while foreign code runs or is dropped.
//!
//! Thread-safety: the handle is `Send` and `Sync`, because wakers and links must be. Two threads
//! that run one simulation take turns, and such a run cannot be repeated.
//! Failure: a task that panics ends the run in the call that runs it. Code inside the simulation
//! that blocks on the simulation panics.
//! Cost: a step takes a few tenths of a microsecond.
//!
//! ```
//! use std::time::Duration;
//! use archipelago_base::simulation::Simulation;
//!
//! let simulation = Simulation::new(7);
//! let host = simulation.host("compute");
//! let scheduler = simulation.scheduler();
//! let task = host.spawn("sleeper", async move {
//!     scheduler.sleep(Duration::from_secs(3600)).await;
//!     scheduler.now_ns()
//! });
//! assert_eq!(simulation.block_on(task), Ok(3_600_000_000_000), "and no second has passed");
//! ```

mod core;
mod host;
mod task;
mod time;

#[cfg(test)]
mod tests;

pub use self::core::{PartOf, Scheduler, Simulation};
pub use host::{Host, HostClock, HostId, Life};
pub use task::{Crashed, Task};
pub use time::{Sleep, TimedOut, VirtualClock};
