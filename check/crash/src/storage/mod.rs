//! A run over storage nodes: a manager, nodes, executors and owners in processes of their own. Each
//! of them is killed or stopped at each step of an owner's work, and while nodes copy chunks.
//!
//! Executors run compactions and garbage collections of some owners. With full disks there are no
//! executors. Copies of chunks need six nodes or more, with room.
//!
//! | module | purpose |
//! | --- | --- |
//! | `steps` | steps of an owner or of nodes, and the file systems that note them |
//! | `servers` | the storage nodes and the executors, as child processes |
//! | `owner` | the owner of a volume, as a child process, and opening a volume |
//! | `cluster` | the processes of a cluster, taken away and brought back |
//! | `copies` | lost, emptied and full nodes, whose chunks others copy |
//! | `cases` | the faults of a run |
//! | `session` | the cycles: write, fault, check |
//! | `losses` | the loss of each pair of nodes |
//!
//! Every choice follows from the seed, except the moments at which processes run.

mod cases;
mod cluster;
mod copies;
mod losses;
mod owner;
mod servers;
mod session;
mod steps;

use self::owner::OwnerRole;
use self::servers::{ExecutorRole, NodeRole};
use self::session::StorageSession;
use crate::arguments::Arguments;
use crate::children::Words;
use crate::cycles;

/// Runs all cycles. `Err` has the violation and the command that repeats the run.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    cycles::run::<StorageSession<'_>>(arguments)
}

/// Runs a child process in a role of this module, and returns how it ended; `None` for a role of
/// another module. The error text names wrong words.
pub(crate) fn run_role(
    role: &str,
    words: &Words,
) -> Option<Result<archipelago::Result<()>, String>> {
    match role {
        NodeRole::NAME => Some(NodeRole::parse(words).map(|role| role.run())),
        ExecutorRole::NAME => Some(ExecutorRole::parse(words).map(|role| role.run())),
        OwnerRole::NAME => Some(OwnerRole::parse(words).map(|role| role.run())),
        _ => None,
    }
}
