//! Options of the logs of a pool.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_env::FileClass;

use super::super::log::AckRule;
use super::super::log::quorum::{WriterRules, WriterSabotage};
use super::super::log::recovery::RecoverySabotage;

/// Reactions of logs to slow and lost nodes. Every field has a default
/// ([`NodeLogOptions::default`]).
#[derive(Clone, Debug)]
pub struct NodeLogOptions {
    /// Fewest replicas of an extent: 2 by default, and 1 for a trial on one node.
    pub copies_min: u8,
    /// Time without a success after which a replica has failed, and limit of one request; 2 s by
    /// default. A node that cannot be reached fails after a quarter of it.
    pub patience: Duration,
    /// Time for which appends stay unacknowledged before the log fails with `Busy`; 30 s by
    /// default. Appends stay unacknowledged if the pool has too few nodes, or if layouts cannot be
    /// kept.
    pub stall_max: Duration,
    /// Bytes that a replica may be behind the acknowledged end; 8 MiB by default.
    pub backlog_bytes_max: u64,
    /// Time for which an acknowledged byte may be missing on a replica; 2 s by default.
    pub backlog_max: Duration,
    /// Bytes that a log keeps for its replicas before its callers wait for room; 32 MiB by default.
    pub ring_bytes_max: u64,
    /// Time between two checks of the pool's members by an open log; 3 s by default. A check ends
    /// an extent whose nodes drain or are lost. It also ends an extent with too few copies if more
    /// domains answer.
    pub look_every: Duration,
    /// Time for which a recovery waits for nodes before it fails with `Busy`; 60 s by default.
    pub recovery_max: Duration,
    /// Whether a recovery gives up the nodes that do not answer within the patience, as an operator
    /// may decide. Bytes that were acknowledged without a sync may then be missing, and after the
    /// loss of several nodes other bytes as well. Off by default.
    pub accept_loss: bool,
    /// Budget that the bytes in memory are charged to; none by default.
    pub budget: Option<Arc<ByteBudget>>,
    /// Steps of writers that a checker leaves out. None by default.
    pub writer_sabotage: WriterSabotage,
    /// Steps of recoveries that a checker leaves out. None by default.
    pub recovery_sabotage: RecoverySabotage,
}

impl Default for NodeLogOptions {
    fn default() -> Self {
        Self {
            copies_min: 2,
            patience: Duration::from_secs(2),
            stall_max: Duration::from_secs(30),
            backlog_bytes_max: 8 << 20,
            backlog_max: Duration::from_secs(2),
            ring_bytes_max: 32 << 20,
            look_every: Duration::from_secs(3),
            recovery_max: Duration::from_secs(60),
            accept_loss: false,
            budget: None,
            writer_sabotage: WriterSabotage::default(),
            recovery_sabotage: RecoverySabotage::default(),
        }
    }
}

impl NodeLogOptions {
    /// The rules of a writer of the class `class`.
    pub(super) fn rules(&self, class: FileClass) -> WriterRules {
        WriterRules {
            ack: ack_rule(class),
            backlog_bytes_max: self.backlog_bytes_max,
            backlog_ns_max: self.backlog_max.as_nanos() as u64,
        }
    }
}

/// Rule by which a log of the class `class` is acknowledged.
pub(super) fn ack_rule(class: FileClass) -> AckRule {
    match class {
        FileClass::Wal => AckRule::Quorum,
        _ => AckRule::AllSynced,
    }
}
