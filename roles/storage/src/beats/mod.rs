//! Beats: the reports of a storage node to every manager, and the orders in their answers that the
//! node keeps.
//!
//! [`Beats`] makes the beats and takes the answers. It belongs to a node and has no thread, so that
//! a test or a simulation can carry its messages. `BeatThreads` carries them in production, with
//! one thread per manager, so that a silent manager does not delay the others.
//!
//! A node keeps durably, and reports in every beat, the state that a restarted manager lacks. This
//! is the cluster, the newest root set that the node knows, whether an operator empties the node,
//! and the nodes that operators have given up (`kept.rs`).
//!
//! Invariants:
//! 1. The node belongs to one cluster for ever, and the number of its root set only grows.
//! 2. A node whose manager names it as a member of the first root set begins as such a member only
//!    if it knows no cluster yet.
//! 3. State that the node keeps is durable before the next beat of the node reports it.
//!
//! Thread-safety: any thread may call any method. One lock orders the answers.
//! Failure: an answer of a manager of another cluster is an error, and changes nothing. The node
//! serves without managers; only new nodes and new clients need them.
//! Cost: a beat is one request, and reads counters. A write of the identity is rare.

mod kept;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{ClientId, ClusterId, NodeId};
use archipelago_store::nodes::register::caspaxos::RootSet;
use archipelago_store::nodes::wire::{MemberState, Members, RefusalWhy, Refused, StoreMessage};
use parking_lot::Mutex;

use crate::devices::ClusterNotice;
use crate::identity::KnownCluster;
use crate::meta::MetaBatch;
use crate::node::StorageNode;

use kept::KeptOrders;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use kept::fuzz_forgotten;
pub(crate) use threads::BeatThreads;

/// Addresses of a node for other processes, and the domain in which it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Identity of the node in the fabric, which the operator chose.
    pub node: NodeId,
    /// Life of the node's process.
    pub life: Epoch,
    /// Endpoints of the node, as other members know them.
    pub endpoints: Vec<String>,
    /// Set of nodes that fail together with this one.
    pub domain: String,
}

/// The answer of a manager to a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeatAnswer {
    /// Version of the members to report in the next beat to this manager.
    pub version: u64,
    /// Time until the next beat is due.
    pub pause: Duration,
}

/// The beats of a node.
#[derive(Debug)]
pub struct Beats {
    node: Arc<StorageNode>,
    address: NodeAddress,
    /// Orders of operators, from the last answers of managers.
    kept: Mutex<KeptOrders>,
}

impl Beats {
    /// The beats of `node`, which other processes reach at `address`. Errors: those of reading the
    /// node's metadata.
    pub fn new(node: Arc<StorageNode>, address: NodeAddress) -> Result<Self> {
        let kept = Mutex::new(KeptOrders::load(&node.parts().meta)?);
        Ok(Self { node, address, kept })
    }

    /// A beat to a manager whose last answer had `version`; 0 for the first one.
    pub fn beat(&self, version: u64) -> StoreMessage {
        let known = self.node.parts().devices.cluster();
        let (cluster, root_set) = match known {
            Some(KnownCluster { id, root_set }) => {
                (Some(id), (root_set.number > 0).then_some(root_set))
            }
            None => (None, None),
        };
        let NodeAddress { node, life, endpoints, domain } = self.address.clone();
        let kept = self.kept.lock().clone();
        StoreMessage::StorageBeat {
            storage: self.node.storage(),
            node,
            life,
            endpoints,
            domain,
            cluster,
            root_set,
            is_draining: kept.is_draining,
            version,
            report: self.node.report(),
            forgotten: kept.forgotten.into_iter().collect(),
        }
    }

    /// Takes the answer of a manager to a beat with `version`, and keeps its orders durably.
    /// Errors: `InvalidArgument` if the manager's nodes belong to another cluster, `NotFound` if an
    /// operator has given this node up, and those of the node's files.
    pub fn take_answer(&self, version: u64, answer: StoreMessage) -> Result<BeatAnswer> {
        match answer {
            StoreMessage::MembersAre { members, beat_ms } => {
                let pause = Duration::from_millis(beat_ms.max(1));
                let version = match members {
                    Some(members) => {
                        self.keep(&members)?;
                        members.version
                    }
                    None => version,
                };
                Ok(BeatAnswer { version, pause })
            }
            StoreMessage::Refuse { why, epoch, text } => {
                let storage = self.node.storage();
                let what = format!("the manager, about the beat of storage node {storage}");
                Err(Refused { why, epoch, text }.error(what))
            }
            other => Err(Error::unsupported(format!(
                "the manager answered a beat with {}: manager and node may have different versions",
                other.name()
            ))),
        }
    }

    fn keep(&self, members: &Members) -> Result<()> {
        let mut kept = self.kept.lock();
        let mut told = kept.clone();
        if let Some(cluster) = members.cluster {
            self.keep_cluster(cluster, &members.root_set)?;
            // A node that was given up never returns, so the set only grows.
            told.forgotten.extend(&members.forgotten);
        }
        if let Some(own) = members.member(self.node.storage()) {
            told.is_draining = own.state == MemberState::Draining;
        }
        if told == *kept {
            return Ok(());
        }
        let mut batch = MetaBatch::default();
        told.put(&mut batch);
        self.node.parts().meta.write(&batch)?;
        if told.is_draining != kept.is_draining {
            let is_draining = told.is_draining;
            tracing::info!(is_draining, "the manager says whether this storage node drains");
        }
        *kept = told;
        Ok(())
    }

    fn keep_cluster(&self, cluster: ClusterId, root_set: &RootSet) -> Result<()> {
        let known = self.node.parts().devices.cluster();
        if let Some(known) = &known {
            if known.id != cluster {
                return Err(wrong_cluster(cluster));
            }
            if known.root_set.number >= root_set.number {
                return Ok(());
            }
        }
        if known.is_none() && root_set.number == 1 {
            return self.found(cluster, root_set);
        }
        let told = KnownCluster { id: cluster, root_set: root_set.clone() };
        match self.node.parts().devices.learn_cluster(told)? {
            ClusterNotice::Known => Ok(()),
            ClusterNotice::Other => Err(wrong_cluster(cluster)),
        }
    }

    /// Begins in a cluster that still has its first root set. The node may or may not be a member
    /// of that set.
    fn found(&self, cluster: ClusterId, root_set: &RootSet) -> Result<()> {
        let request = StoreMessage::Found { cluster, root_set: root_set.clone() };
        match self.node.handle(ClientId(0), request, &[]).0 {
            StoreMessage::Done {} => {
                tracing::info!(%cluster, "this storage node belongs to a cluster now");
                Ok(())
            }
            StoreMessage::Refuse { why, epoch, text } => {
                Err(Refused { why, epoch, text }.error("the storage node, about its cluster"))
            }
            other => Err(Refused::new(RefusalWhy::Unsupported, other.name()).error("the node")),
        }
    }
}

fn wrong_cluster(cluster: ClusterId) -> Error {
    Error::invalid(format!(
        "this storage node belongs to another cluster than the manager's nodes, which belong to \
         {cluster}: correct --manager, or start the node with an empty directory"
    ))
}

#[cfg(test)]
mod tests;
