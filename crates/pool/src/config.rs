//! The configuration of a block at one of its epochs: its owner, and where its copies are.
//!
//! The types are plain values, and their functions are pure.

use std::collections::BTreeSet;

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};

use crate::address::BlockId;

/// Clients that may write to a block. Every member may read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Only the owner writes.
    #[default]
    Owner,
    /// Every member writes, for structures that clients change together with atomics.
    All,
}

/// The place of a copy: a node, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Node that holds the copy.
    pub node: NodeId,
    /// Life of the node. Memory does not survive the end of a life.
    pub life: Epoch,
}

/// The configuration of a block at one epoch. Every change of its owner or its copies makes a new
/// configuration with a larger epoch. A node that knows a larger epoch refuses requests of a
/// smaller one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the block.
    pub block: BlockId,
    /// Epoch of this configuration. Epochs of a block grow, but not always by one.
    pub epoch: Epoch,
    /// Epoch of the block's first configuration.
    pub born: Epoch,
    /// Owner of the block; `None` while the block waits to be adopted.
    pub owner: Option<ClientId>,
    /// Label of the data in the block (a database, a store). Clients of this label may adopt the
    /// block.
    pub label: u64,
    /// The owner's number of the request that allocated the block; 0 after an adoption.
    pub request: u64,
    /// Clients that may write.
    pub sharing: Sharing,
    /// Number of copies that the block should have.
    pub wanted: u32,
    /// Places of the copies. Every copy holds every acknowledged write. Clients read the first
    /// copy, and swap words in it.
    pub copies: Vec<Place>,
}

impl Config {
    /// Whether `place` holds a copy.
    #[must_use]
    pub fn has(&self, place: Place) -> bool {
        self.copies.contains(&place)
    }

    /// Whether `have` is a quorum: more than half of the copies, or half of them including the
    /// first. Two quorums always share a copy.
    #[must_use]
    pub fn is_quorum(&self, have: &BTreeSet<NodeId>) -> bool {
        let all = self.copies.len();
        let there = self.copies.iter().filter(|copy| have.contains(&copy.node)).count();
        let first = self.copies.first().is_some_and(|copy| have.contains(&copy.node));
        2 * there > all || (2 * there == all && first)
    }

    /// Whether `client` may write to the block.
    #[must_use]
    pub fn may_write(&self, client: ClientId) -> bool {
        self.sharing == Sharing::All || self.owner == Some(client)
    }
}

/// The client id under which a node copies from another node.
#[must_use]
pub fn copier(node: NodeId, life: Epoch) -> ClientId {
    ClientId(node.0.rotate_left(48) ^ life.0 ^ 0x6d65_6d6f_7279)
}

/// The client id under which a manager asks for promises. Applied to that id, the function returns
/// the manager's own. A client has one session at a node, and the manager's orders already use it
/// under the manager's id.
#[must_use]
pub fn asker_of_promises(manager: ClientId) -> ClientId {
    ClientId(manager.0 ^ u64::from_le_bytes(*b"promises"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_two_quorums_share_a_copy() {
        for copies in 1..=5_u64 {
            let config = Config {
                block: BlockId::default(),
                epoch: Epoch(1),
                born: Epoch(1),
                owner: None,
                label: 0,
                request: 0,
                sharing: Sharing::Owner,
                wanted: 3,
                copies: (0..copies).map(|n| Place { node: NodeId(n), life: Epoch(1) }).collect(),
            };
            let of = |bits: u64| (0..copies).filter(|n| bits >> n & 1 == 1).map(NodeId).collect();
            for one in 0..1_u64 << copies {
                let all_but: BTreeSet<NodeId> = of(!one);
                let both = config.is_quorum(&of(one)) && config.is_quorum(&all_but);
                assert!(!both, "{one:b} of {copies}");
            }
            assert!(config.is_quorum(&of(u64::MAX)));
        }
    }
}
