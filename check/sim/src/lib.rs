//! Scenarios: protocols that run in virtual time under a seed, with faults, and the properties that
//! must hold in each run.
//!
//! A [`Scenario`] builds a cluster in a [`Simulation`], runs it and checks it. [`Scenario::check`]
//! runs one seed, and [`run_seeds`] runs many. A run that fails, by a violation or a panic, becomes
//! a [`Failure`], which prints the command that repeats it. [`same_twice`] is the self-test: two
//! runs of one seed must take the same steps. A scenario can name [`Step`]s of its protocol that a
//! run leaves out, and tests prove that the check notices each omission. The program
//! `archipelago-sim` does all of this from a command line.
//!
//! The scheduler is `archipelago_base::simulation`, and the network with its faults is
//! `archipelago_fabric::sim`. They belong to low crates, because providers and components need
//! them. This crate is above all others. **To add a scenario** for a crate, let this crate depend
//! on it, write a module in `scenarios/` and add a line to [`SCENARIOS`]. Tests and the program
//! then know the scenario. A closure suffices for a run of your own:
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
//! Invariants of a scenario, so that its runs repeat:
//! 1. Sessions and nodes come from the network (`Network::session`, `Network::node`).
//! 2. Random numbers come from `Scheduler::rng`, and time comes from the scheduler.
//! 3. No thread runs, nothing iterates over a `HashMap`, and no task calls `Promise::wait`.
//!
//! [`same_twice`] notices a scenario that breaks them.

mod machines;
pub mod measure;
mod run;
mod scenarios;
mod seeds;

pub use archipelago_base::simulation::Simulation;
pub use machines::{Action, Cluster, Protocol};
pub use run::{
    Failure, Figure, RunOutcome, RunRequest, Scenario, Step, Summary, Trace, replay_command,
    run_seeds, same_twice,
};
pub use scenarios::{Expect, SCENARIOS, find, flexkv, pool, storage};
pub use seeds::{Seeds, print_replay_on_panic};
