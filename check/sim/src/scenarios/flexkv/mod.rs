//! The store over remote memory in virtual time: compute nodes, memory nodes, the pool's manager
//! and the store's coordinator over the fabric.
//!
//! Hosts crash, restart and stop, and their clocks run apart. Links are cut, and messages are lost,
//! late and doubled. Everything follows from one seed.
//!
//! The runs execute the code of the product; only the threads and clocks belong to the simulation.
//! The run records every answer that a client gets (`history.rs`), and an independent
//! linearizability checker judges the history of each key (`judge.rs`). Clients call while faults
//! happen. In runs with scans, nodes also list all keys while clients add and remove keys
//! (`scans.rs`). At the end the faults stop, every node reads every key, and the run counts the
//! memory in use (`audit.rs`).

mod audit;
mod coordinator;
mod history;
mod judge;
mod node;
mod scans;
mod shared;
mod world;

pub use history::{History, Op, Ret};
pub use judge::{judge, weaker};

use archipelago_flexkv::Sabotage;

use crate::run::{RunRequest, Scenario, Step};
use crate::scenarios::pool;
use world::Scanning;

/// Steps of the store's protocol that a run can leave out. The first three are the pool's.
const STEPS: [Step; 8] = [
    pool::STEPS[0],
    pool::STEPS[1],
    pool::STEPS[2],
    Step { name: "lease", about: "a node stops serving when its lease has run out" },
    Step { name: "copies-first", about: "a one-sided write reaches all copies before it commits" },
    Step {
        name: "repair",
        about: "a new owner settles unfinished slots and makes differing copies equal",
    },
    Step { name: "invalidation", about: "a write notifies the nodes that cache the old value" },
    Step {
        name: "clearing",
        about: "a proxy clears the valid bit of an old record that is cached",
    },
];

/// Steps of a run with scans. The first eight are those of a run without them.
const SCAN_STEPS: [Step; 10] = [
    STEPS[0],
    STEPS[1],
    STEPS[2],
    STEPS[3],
    STEPS[4],
    STEPS[5],
    STEPS[6],
    STEPS[7],
    Step { name: "first-bucket", about: "a step returns the bucket at which it begins" },
    Step { name: "rescan", about: "a scan begins again in a partition that has grown" },
];

pub(crate) fn scenario() -> Scenario {
    let about = "whole stores whose nodes crash, stop and are cut off; every history is judged";
    let run = |request: &RunRequest| world::run(request, Scanning::Off);
    Scenario::with_steps("flexkv", about, &STEPS, run).with_caveat(weaker)
}

pub(crate) fn scan_scenario() -> Scenario {
    let about = "the same, and nodes scan all keys while clients add and remove keys";
    let run = |request: &RunRequest| world::run(request, Scanning::On);
    Scenario::with_steps("flexkv-scans", about, &SCAN_STEPS, run).with_caveat(weaker)
}

/// The store's switches for the steps that the run leaves out.
fn sabotage(request: &RunRequest) -> Sabotage {
    Sabotage {
        no_lease: request.leaves_out("lease"),
        early_commit: request.leaves_out("copies-first"),
        no_repair: request.leaves_out("repair"),
        no_invalidation: request.leaves_out("invalidation"),
        no_clearing: request.leaves_out("clearing"),
        skip_bucket: request.leaves_out("first-bucket"),
        no_rescan: request.leaves_out("rescan"),
    }
}
