//! The manager of a cluster, in a process of its own.

use std::time::Duration;

use archipelago::Result;
use archipelago_manager::core::Terms;
use archipelago_manager::{ManagerServer, ManagerSettings, MemberTerms, StorePlan};
use archipelago_store::nodes::repairs::RepairTerms;

use super::messages::follow_input;
use super::server::READY;
use super::trigger::say;
use super::words::Words;

/// Silence after which a storage node counts as lost, so that others copy its chunks. It is short,
/// so that a cycle can wait for it.
const LOST_AFTER: Duration = Duration::from_secs(3);
/// Bytes per second that a storage node copies. It is low, so that copies take longer than it takes
/// to make a fault.
const COPIED_BYTES_PER_S: u64 = 1 << 20;
/// Time between two rounds in which the manager looks for chunks to copy or to move.
const SCAN_EVERY: Duration = Duration::from_secs(1);

/// A manager of storage nodes, memory nodes and executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagerRole {
    /// Address at which it listens: `HOST:PORT`.
    pub(crate) listen: String,
}

impl ManagerRole {
    pub(crate) const NAME: &str = "manager";

    pub(crate) fn words(&self) -> Vec<String> {
        Words::default().with("listen", &self.listen).command_line(Self::NAME)
    }

    pub(crate) fn parse(words: &Words) -> Result<Self, String> {
        Ok(Self { listen: words.text("listen")?.to_owned() })
    }

    /// Serves until the input ends.
    pub(crate) fn run(&self) -> Result<()> {
        let storage = MemberTerms {
            // Short, so that a cluster is founded soon and a node that returns is seen soon.
            beat: Duration::from_millis(200),
            settle: Duration::from_millis(500),
            lost_after: LOST_AFTER,
            repair: RepairTerms {
                node_bytes_per_s: COPIED_BYTES_PER_S,
                scan_every: SCAN_EVERY,
                scan_again: SCAN_EVERY,
                ..RepairTerms::default()
            },
            ..MemberTerms::default()
        };
        let server = ManagerServer::start(&ManagerSettings {
            listen: vec![format!("tcp:{}", self.listen)],
            terms: Terms::default(),
            store: StorePlan::default(),
            memory_nodes: 0,
            standby: false,
            storage,
            secret: None,
        })?;
        say(&format!("{READY}{}", server.addresses().join(" ")));
        follow_input(|_| {});
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_gets_its_address() {
        let manager = ManagerRole { listen: "127.0.0.1:0".to_owned() };
        let words = Words::parse(manager.words().into_iter().skip(2)).unwrap();
        assert_eq!(ManagerRole::parse(&words).unwrap(), manager);
    }
}
