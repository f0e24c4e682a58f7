//! Giving up all logs of a volume that is being removed.
//!
//! Unlike the release of strays, it needs the answers of all nodes that are not lost, because no
//! later owner would release the rest.
//!
//! Thread-safety: any number of tasks.
//! Failure: `Busy` with the node that does not answer, and `Fenced`. A repetition continues.
//! Cost: a list from each node, and one round trip per log.

use std::collections::BTreeMap;

use archipelago_base::runtime::join_all;
use archipelago_base::{Error, Result};
use archipelago_env::FileClass;

use super::super::StorageId;
use super::super::wire::Stamp;
use super::NodeLogs;
use super::requests::{LogFailure, promise_and_list};
use crate::ids::LogId;

impl NodeLogs {
    /// Gives up all logs of a volume, and returns their number.
    pub(super) async fn remove_all(&self, stamp: Stamp) -> Result<u64> {
        let nodes = self.pool.nodes.awaited().await?;
        if nodes.is_empty() {
            return Err(Error::busy(format!(
                "the logs of volume {}: no storage node is known; look at the managers",
                stamp.volume
            )));
        }
        let ask = |node: &StorageId| promise_and_list(&self.pool, *node, stamp);
        let answers = join_all(nodes.iter().map(ask)).await;
        let mut found: BTreeMap<LogId, Vec<StorageId>> = BTreeMap::new();
        for (node, answer) in nodes.iter().zip(answers) {
            for (log, _) in answer.map_err(|failure| silent(&failure, stamp, *node))? {
                found.entry(log).or_default().push(*node);
            }
        }
        for (log, holders) in &found {
            let requests = self.requests(*log, FileClass::Wal, stamp);
            let removed = join_all(holders.iter().map(|node| requests.remove(*node))).await;
            for (node, removed) in holders.iter().zip(removed) {
                match removed {
                    Ok(()) | Err(LogFailure::NotThere(_)) => {}
                    Err(failure) => return Err(silent(&failure, stamp, *node)),
                }
            }
            self.forget(*log);
        }
        Ok(found.len() as u64)
    }
}

fn silent(failure: &LogFailure, stamp: Stamp, node: StorageId) -> Error {
    failure.error(format!(
        "the logs of volume {} on node {node} (all storage nodes must answer: start the node, or \
         give it up if it never returns with `archipelago cluster forget --storage`)",
        stamp.volume
    ))
}
