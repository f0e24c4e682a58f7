//! Scenarios: protocols that run in virtual time under a seed, with faults, and say what must hold.
//!
//! A [`Scenario`] is a function of a [`Simulation`] that builds a cluster in it, runs it and checks
//! it. [`run`] runs one seed of it, [`run_seeds`] many; a run that fails, by an `Err` or a panic,
//! becomes a [`Failure`], which prints the command that replays it. [`same_twice`] is the
//! self-test: two runs of one seed must take the same steps. The program `archipelago-sim` is all
//! of that on a command line.
//!
//! The scheduler is `archipelago_base::simulation`, the network and its faults
//! `archipelago_fabric::sim`: low crates, because providers and components need them. Here is what
//! stands above all crates. **To add a scenario** for a crate, make this crate depend on it, write
//! a module in `scenarios/` and give it a line in [`SCENARIOS`]; tests and program then know it. To
//! run something of one's own, a closure will do:
//!
//! ```
//! use archipelago_sim::{Scenario, run_seeds};
//!
//! let scenario = Scenario::new("two-tasks", "two tasks and a counter", |simulation| {
//!     let host = simulation.host("one");
//!     let task = host.spawn("adds", async { 1 + 1 });
//!     match simulation.block_on(task) {
//!         Ok(2) => Ok(()),
//!         other => Err(format!("it was {other:?}")),
//!     }
//! });
//! let summary = run_seeds(&scenario, 0..100).expect("holds for every seed");
//! assert_eq!(summary.runs, 100);
//! ```
//!
//! Rules for a scenario, so that its runs repeat: sessions and nodes come from the network
//! (`Network::session`, `Network::node`), random numbers from `Scheduler::rng`, time from the
//! scheduler; no thread, no iteration over a `HashMap`, no `Promise::wait` in a task.
//! [`same_twice`] finds who breaks them.

mod machines;
pub mod measure;
mod run;
mod scenarios;
mod seeds;

pub use archipelago_base::simulation::Simulation;
pub use machines::{Action, Cluster, Protocol};
pub use run::{
    Failure, Report, Scenario, Summary, replay_command, run, run_noted, run_seeds, same_twice,
};
pub use scenarios::{Expect, SCENARIOS, find, flexkv, pool};
pub use seeds::{POOL_FLAGS, Seeds, named, words_of};
