//! What a block is at one of its epochs: whose it is, and where its copies are.

use std::collections::BTreeSet;

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};

use crate::address::BlockId;

/// Who may write to a block. Every member may read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// The owner alone.
    #[default]
    Owner,
    /// Every member: for structures that clients change together with atomics.
    All,
}

/// One copy of a block: a node, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Which node.
    pub node: NodeId,
    /// In which life: memory does not outlive it.
    pub life: Epoch,
}

/// A block at one epoch. Every change of owner or copies makes a new one with a larger epoch; a
/// node that has heard of a larger epoch refuses everything of a smaller one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which block.
    pub block: BlockId,
    /// Of the block; grows, not always by one.
    pub epoch: Epoch,
    /// The epoch of its first configuration.
    pub born: Epoch,
    /// Who owns it; nobody while it waits to be adopted.
    pub owner: Option<ClientId>,
    /// What it belongs to (a database, a store): clients of this label may adopt it.
    pub label: u64,
    /// The owner's number of the request that allocated it; 0 once it was adopted.
    pub request: u64,
    /// Who may write.
    pub sharing: Sharing,
    /// Copies that it is to have.
    pub wanted: u32,
    /// Its copies. All hold every acknowledged write; the first is the one to read and to swap
    /// words in.
    pub copies: Vec<Place>,
}

impl Config {
    /// Whether `place` has a copy.
    #[must_use]
    pub fn has(&self, place: Place) -> bool {
        self.copies.contains(&place)
    }

    /// Whether `have` is a quorum: more than half of the copies, or half with the first among them.
    /// Two quorums always share a copy.
    #[must_use]
    pub fn is_quorum(&self, have: &BTreeSet<NodeId>) -> bool {
        let all = self.copies.len();
        let there = self.copies.iter().filter(|copy| have.contains(&copy.node)).count();
        let first = self.copies.first().is_some_and(|copy| have.contains(&copy.node));
        2 * there > all || (2 * there == all && first)
    }

    /// Whether `client` may write.
    #[must_use]
    pub fn may_write(&self, client: ClientId) -> bool {
        self.sharing == Sharing::All || self.owner == Some(client)
    }
}

/// As whom a node calls another one to copy from it.
#[must_use]
pub fn copier(node: NodeId, life: Epoch) -> ClientId {
    ClientId(node.0.rotate_left(48) ^ life.0 ^ 0x6d65_6d6f_7279)
}

/// As whom a manager asks for promises, since sessions of one client at one node must differ and
/// its orders have one; and the other way round.
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
