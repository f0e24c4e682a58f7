//! Seeded runs of the memory-disaggregated store: compute nodes, memory nodes, the pool's manager and the store's coordinator over the
//! fabric in virtual time, with crashes, restarts, cuts, loss, delay and doubled messages, all from one seed.
//!
//! What runs is what runs in production; only threads and clocks are the simulation's. What clients were told is written down
//! (`history.rs`) and each key's history is given to stateright's tester of linearizability, which was not written here. At
//! the end there is a time of peace, in which every key is read by every node.

mod history;
mod node;
mod world;

pub use history::{History, Op, Ret};
pub use node::Cached;
pub use world::{Outcome, Settings, run};

/// The command that repeats one seed's run and prints what happens in it.
#[must_use]
pub fn replay_command(seed: u64) -> String {
    format!("cargo run -p archipelago-flex-check -- --from {seed} --seeds 1 --trace")
}
