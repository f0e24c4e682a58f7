//! Seeded runs of the pool's protocol: memory nodes, a manager and clients over the fabric in
//! virtual time, with crashes, restarts, cuts, loss, delay and doubled messages, all from one seed.
//!
//! What runs is what runs in production: the state machines, the handlers, the keys and the memory
//! of the fabric's nodes. Only threads and clocks are the simulation's. A run ends with a time of
//! peace, and then everything is looked at:
//!
//! - no write that was acknowledged is missing on any copy, and no reader with a lease saw less
//!   (`oracle.rs`);
//! - every block has one owner, or waits for one; no two clients could write at once to a block of
//!   one owner;
//! - a client of which somebody was told that it is gone can write to no copy in use, then or
//!   later;
//! - every copy on a node belongs to a block: nothing leaked;
//! - no node held more than its size, at any time.
//!
//! Apart from that, `office.rs` runs the protocol by which one of several managers acts.
//!
//! A node is crashed only while a quorum of each of its blocks' copies stays: the protocol promises
//! nothing beyond.

mod actors;
mod client;
mod cluster;
mod office;
mod oracle;
mod world;

pub use actors::{MANAGER, ManagerActor, MemoryActor, REQUEST, start_manager, start_memory};
pub use cluster::{Cluster, revive};
pub use office::{OfficeOutcome, run_office};
pub use world::{Outcome, Settings, run};

use archipelago_memory::core::Sabotage;

use crate::seeds::words_of;

/// The command that repeats one seed's run, step by step, and prints what happens in it.
#[must_use]
pub fn replay_command(seed: u64, sabotage: Sabotage) -> String {
    let flags = words_of(sabotage);
    format!(
        "cargo run -p archipelago-sim --bin archipelago-pool-check -- --from {seed} --seeds 1 --trace{flags}"
    )
}
