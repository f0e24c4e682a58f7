//! Giving up all logs of a volume that is being removed.
//!
//! Unlike the release of strays, it needs the answers of all nodes that are not lost, because no
//! later owner would release the rest. Each of them gets the removal of every log that any of them
//! lists, because it may be copying an extent of the log for a repair. The removal ends when no
//! node lists a log.
//!
//! Thread-safety: any number of tasks.
//! Failure: `Busy` with the node that does not answer, and `Fenced`. A repetition continues.
//! Cost: two lists from each node, and one round trip per log.

use std::collections::BTreeSet;

use archipelago_base::runtime::join_all;
use archipelago_base::{Error, Result};
use archipelago_env::FileClass;

use super::super::StorageId;
use super::super::wire::Stamp;
use super::NodeLogs;
use super::requests::{LogFailure, promise_and_list};
use crate::ids::LogId;

/// Number of passes in which the removal follows repairs that make copies meanwhile.
const PASSES_MAX: usize = 8;

impl NodeLogs {
    /// Gives up all logs of a volume, and returns their number.
    pub(super) async fn remove_all(&self, stamp: Stamp) -> Result<u64> {
        let mut removed: BTreeSet<LogId> = BTreeSet::new();
        for _ in 0..PASSES_MAX {
            let nodes = self.pool.nodes.awaited().await?;
            if nodes.is_empty() {
                return Err(Error::busy(format!(
                    "the logs of volume {}: no storage node is known; look at the managers",
                    stamp.volume
                )));
            }
            let found = self.list_all(&nodes, stamp).await?;
            if found.is_empty() {
                return Ok(removed.len() as u64);
            }
            for log in &found {
                self.remove_on_all(&nodes, *log, stamp).await?;
            }
            removed.extend(found);
        }
        Err(Error::busy(format!(
            "the logs of volume {}: repairs make copies of them meanwhile; remove them again",
            stamp.volume
        )))
    }

    /// Makes all of these nodes promise the epoch, and lists the logs that they have of the volume.
    async fn list_all(&self, nodes: &[StorageId], stamp: Stamp) -> Result<BTreeSet<LogId>> {
        let ask = |node: &StorageId| promise_and_list(&self.pool, *node, stamp);
        let answers = join_all(nodes.iter().map(ask)).await;
        let mut found = BTreeSet::new();
        for (node, answer) in nodes.iter().zip(answers) {
            let logs = answer.map_err(|failure| silent(&failure, stamp, *node))?;
            found.extend(logs.into_iter().map(|(log, _)| log));
        }
        Ok(found)
    }

    /// Removes a log from all of these nodes, and ends its writer in this process. A node without
    /// the log does not begin a copy of it afterwards.
    async fn remove_on_all(&self, nodes: &[StorageId], log: LogId, stamp: Stamp) -> Result<()> {
        let requests = self.requests(log, FileClass::Wal, stamp);
        let answers = join_all(nodes.iter().map(|node| requests.remove(*node))).await;
        for (node, answer) in nodes.iter().zip(answers) {
            match answer {
                Ok(()) | Err(LogFailure::NotThere(_)) => {}
                Err(failure) => return Err(silent(&failure, stamp, *node)),
            }
        }
        self.forget(log);
        Ok(())
    }
}

fn silent(failure: &LogFailure, stamp: Stamp, node: StorageId) -> Error {
    failure.error(format!(
        "the logs of volume {} on node {node} (all storage nodes must answer: start the node, or \
         give it up if it never returns with `archipelago cluster forget --storage`)",
        stamp.volume
    ))
}
