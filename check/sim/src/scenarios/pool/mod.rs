//! The pool's protocol: memory nodes, a manager and clients over the fabric in virtual time, with
//! crashes, restarts, cuts, loss, delay and doubled messages, all from one seed.
//!
//! The runs execute the code of the product: its state machines, its handlers, and the keys and the
//! memory of the fabric's nodes. Only the threads and clocks belong to the simulation. A run ends
//! with a time of peace, and then the following must hold:
//!
//! 1. No acknowledged write is missing on any copy, and no reader with a lease saw an older value
//!    (`oracle.rs`).
//! 2. Every block has one owner or waits for one. No two clients could write to a block of one
//!    owner at the same time.
//! 3. A client that was reported as evicted can write to no copy in use, then or later.
//! 4. Every copy on a node belongs to a block, so no memory leaked.
//! 5. No node ever held more blocks than its size allows.
//!
//! The protocol promises nothing beyond a quorum. Therefore a run crashes a node only while a
//! quorum of the copies of each block stays.
//!
//! `office.rs` has a scenario of its own: the protocol by which one of several managers acts.

mod actors;
mod client;
mod cluster;
mod office;
mod oracle;
mod world;

pub(crate) use actors::REQUEST;
pub use actors::{
    MANAGER, ManagerActor, ManagerLife, MemoryActor, MemoryLife, start_manager, start_memory,
};
pub(crate) use cluster::{Cluster, revive};
pub(crate) use office::scenario as office_scenario;

use archipelago_memory::core::Sabotage;

use crate::run::{RunRequest, Scenario, Step};

/// Steps of the pool's protocol that a run can leave out.
pub(crate) const STEPS: [Step; 3] = [
    Step { name: "fencing", about: "a seal revokes the keys of the block's clients" },
    Step { name: "fill", about: "a copy counts as whole only after its bytes have arrived" },
    Step { name: "eviction", about: "a client that is fenced loses its keys" },
];

pub(crate) fn scenario() -> Scenario {
    let about = "memory nodes, a manager and clients of the pool that crash and are cut off";
    Scenario::with_steps("pool", about, &STEPS, world::run)
}

/// The switches of the memory role for the steps that the run leaves out.
pub(crate) fn sabotage(request: &RunRequest) -> Sabotage {
    Sabotage {
        no_fencing: request.leaves_out("fencing"),
        no_fill: request.leaves_out("fill"),
        no_eviction: request.leaves_out("eviction"),
    }
}
