//! Virtual time: a deterministic scheduler for tasks and events.
//!
//! A [`Simulation`] owns a clock that stands still while something can happen, a queue of events,
//! and tasks (futures). It runs on the thread that asks it to; everything that happens is one step:
//! an event's closure, or one poll of a task. [`Host`]s are machines that crash and restart, stop
//! for a while and have clocks of their own.
//!
//! Rules: 1. time moves only when nothing is ready, to the next event's time; 2. of all that is
//! ready at one moment, the next is drawn by the seed; 3. so the steps, and
//! [`Scheduler::trace_hash`] over them, follow from the seed alone, as long as nothing that runs
//! asks the system's clock, its entropy, another thread, or a `HashMap`'s order; 4. what belongs to
//! a host that crashed never runs: its tasks are dropped, its events are forgotten; 5. no lock is
//! held while code from outside runs or is dropped.
//!
//! [`Simulation`] is the owner: dropped, it drops all tasks and events, so that a run leaves
//! nothing behind. [`Scheduler`] is the handle that everything else holds.
//!
//! Thread-safety: the handle is `Send` and `Sync` because the things it serves (wakers, links) must
//! be; two threads that run one simulation take turns, and the run is then not repeatable. To block
//! on the simulation from within it is a mistake that panics. Failure: a task that panics ends the
//! run, where it was asked for. Cost: a step takes a few tenths of a microsecond.
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
