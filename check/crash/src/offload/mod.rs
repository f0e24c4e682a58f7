//! A run with offloading: a manager, memory nodes, executors and owners in processes of their own.
//! Each of them is killed or stopped at each step of an owner's work.
//!
//! With `--messages` the faults hit when a process has received or handled a message of the
//! protocols: each message, each role and each signal. The table of the summary has a line for each
//! message.
//!
//! The database lies in a directory that all executors reach. Its sealed memtables, flushes,
//! compactions and garbage collections leave the owner (docs/design/offload.md).
//!
//! | module | purpose |
//! | --- | --- |
//! | `steps` | steps of an owner, by the fault points of the engine, and messages |
//! | `cases` | the faults of a run |
//! | `servers` | the memory nodes and the executors, as child processes |
//! | `owner` | the owner of the database, as a child process, and opening the database |
//! | `cluster` | the servers, taken away and brought back |
//! | `session` | the cycles: write, fault, check |
//! | `summary` | figures of the jobs and shards that left the owners of a run |
//!
//! Every choice follows from the seed, except the moments at which processes run. A directory has
//! one owner at a time, because the owner locks it. So no run has an owner that was replaced while
//! it was alive. Scenario `offload` of `archipelago-sim` has such owners.

mod cases;
mod cluster;
mod owner;
mod servers;
mod session;
mod steps;
mod summary;

use self::owner::OwnerRole;
use self::servers::{ExecutorRole, MemoryRole};
use self::session::OffloadSession;
use crate::arguments::Arguments;
use crate::children::Words;
use crate::cycles;

/// Runs all cycles. `Err` has the violation and the command that repeats the run.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    cycles::run::<OffloadSession<'_>>(arguments)
}

/// Runs a child process in a role of this module, and returns how it ended; `None` for a role of
/// another module. The error text names wrong words.
pub(crate) fn run_role(
    role: &str,
    words: &Words,
) -> Option<Result<archipelago::Result<()>, String>> {
    match role {
        MemoryRole::NAME => Some(MemoryRole::parse(words).map(|role| role.run())),
        ExecutorRole::NAME => Some(ExecutorRole::parse(words).map(|role| role.run())),
        OwnerRole::NAME => Some(OwnerRole::parse(words).map(|role| role.run())),
        _ => None,
    }
}
