//! A real database whose memtables rest at memory nodes, and whose flushes, compactions and garbage
//! collections run in executors, while all of them fail.
//!
//! The runs execute the code of the product: the engine over a disk that can lose power, the shard
//! store of the owner and the shard hosts of memory nodes, the scheduler's desks of managers, the
//! executor seam of the engine, and executors. Only threads, clocks, the disk and the network
//! belong to the simulation. An owner has two threads, one for its user and one for background
//! work, and an executor has one for each of its slots (`scenarios/thread.rs`).
//!
//! | part | file |
//! | --- | --- |
//! | the request, the figures and the steps that a run can leave out | `mod.rs` |
//! | the disk, as one process sees it | `files.rs` |
//! | the expected state of the database | `model.rs` |
//! | the machines, and how they are cut off | `machines.rs` |
//! | managers and memory nodes | `nodes.rs` |
//! | executors | `executors.rs` |
//! | owners of the database | `owner.rs` |
//! | a run: operations and faults | `world.rs` |
//! | the time of peace, and the checks at its end | `peace.rs` |
//!
//! Invariants that the run checks at each step:
//! 1. Every read, scan and read at a snapshot returns the state after the acknowledged writes, or a
//!    refusal as busy.
//! 2. The next owner finds the state after all acknowledged writes, with or without the write that
//!    was under way. After a loss of power it finds the state after a prefix of the writes, and all
//!    synced writes are in the prefix.
//! 3. No operation and no background work reports damage.
//!
//! At the end, in a time without faults:
//! 4. Every call returns. No process and no job in an executor panics.
//! 5. The files are sound, and are exactly those that the manifest names.
//! 6. After the close, memory nodes have neither shards nor grants, and no job is left at a
//!    scheduler or in an executor.
//!
//! Time stands still while the engine computes and reads or writes files, so a job takes only the
//! time of its messages and its fetches. A flush of the user and a step of background work do not
//! run at the same time, because one may wait for memory that the other one has (`thread.rs`, 4).
//!
//! Cost: some tens of milliseconds per seed in a release build.

mod executors;
mod files;
mod machines;
mod model;
mod nodes;
mod owner;
mod peace;
mod world;

use archipelago_engine::sabotage::Defect;

use crate::run::{RunOutcome, RunRequest, Scenario, Step};
use world::World;

/// Steps of owners and executors that a run can leave out.
const STEPS: [Step; 3] = [
    Step { name: "log-pin", about: "the log keeps the records of shards at memory nodes" },
    Step { name: "log-sync", about: "the log is durable before a flush is installed" },
    Step { name: "output-sync", about: "a job syncs the files that it writes" },
];

/// The same steps as the engine knows them.
const DEFECTS: [(&str, Defect); 3] = [
    ("log-pin", Defect::UnpinnedAwayShards),
    ("log-sync", Defect::InstallBeforeLogSync),
    ("output-sync", Defect::UnsyncedOutputs),
];

pub(super) fn scenario() -> Scenario {
    let about = "a database with memtables at memory nodes and jobs in executors, which all fail";
    Scenario::with_steps("offload-db", about, &STEPS, run)
}

/// The step of the engine that a run leaves out.
fn defect_of(request: &RunRequest) -> Option<Defect> {
    DEFECTS.iter().find(|(name, _)| request.leaves_out(name)).map(|(_, defect)| *defect)
}

fn run(request: &RunRequest) -> RunOutcome {
    let mut world = World::new(request, defect_of(request));
    let ended = world.trouble().and_then(|()| world.peace());
    world.outcome(ended)
}
