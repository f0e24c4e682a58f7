//! Decides the next change of a block, from a snapshot of its state. The functions are pure.

use std::collections::BTreeMap;

use archipelago_fabric::{ClientId, NodeId};

/// The state of a copy's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceIs {
    /// The node answers, in the life that has the copy.
    Up,
    /// The node sends beats again, and has not reported yet.
    Coming,
    /// The node is silent, and may still have the copy and serve it.
    Silent,
    /// The copy is lost forever.
    Lost,
}

/// The state of a block's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerIs {
    /// The owner has a lease.
    Live,
    /// The owner has lost its lease.
    Dead,
    /// The block has no owner.
    Nobody,
}

/// Snapshot of a block that has no change in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// State of each copy, in order.
    pub copies: Vec<PlaceIs>,
    /// State of the owner.
    pub owner: OwnerIs,
    /// Whether a client could adopt the block.
    pub heir: bool,
    /// Number of copies that the block should have.
    pub wanted: usize,
    /// Whether a node has room for another copy.
    pub room: bool,
    /// Whether an earlier change began and did not end.
    pub begun: bool,
}

/// Whether the block needs another configuration.
#[must_use]
pub fn needs_change(picture: &Picture) -> bool {
    picture.begun
        || picture.copies.iter().any(|copy| matches!(copy, PlaceIs::Silent | PlaceIs::Lost))
        || picture.owner == OwnerIs::Dead
        || (picture.owner == OwnerIs::Nobody && picture.heir)
        || (picture.copies.len() < picture.wanted && picture.room)
}

/// A client that may adopt a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heir {
    /// The client's id.
    pub client: ClientId,
    /// Number of blocks that the client owns.
    pub blocks: usize,
}

/// Chooses the client that adopts a block: the client with the fewest blocks, and among equals the
/// one with the smallest id.
#[must_use]
pub fn heir(heirs: &[Heir]) -> Option<ClientId> {
    heirs.iter().min_by_key(|heir| (heir.blocks, heir.client)).map(|heir| heir.client)
}

/// A node that could hold a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The node's id.
    pub node: NodeId,
    /// Number of blocks that still fit.
    pub blocks: u64,
}

/// Chooses the nodes for `count` copies: those with the most room, and among equals those with the
/// smallest ids.
#[must_use]
pub fn choose(mut rooms: Vec<Room>, count: usize) -> Vec<NodeId> {
    rooms.retain(|room| room.blocks > 0);
    rooms.sort_by_key(|room| (std::cmp::Reverse(room.blocks), room.node));
    rooms.into_iter().take(count).map(|room| room.node).collect()
}

/// Orders the `chosen` nodes, so that the first is the one with the fewest first copies (`fronts`).
/// Reads and swaps go to the first copy of a block. If a cluster has as many nodes as copies, every
/// block has the same nodes, and this order distributes the load.
#[must_use]
pub fn in_front(mut chosen: Vec<NodeId>, fronts: &BTreeMap<NodeId, u64>) -> Vec<NodeId> {
    let of = |node: &NodeId| fronts.get(node).copied().unwrap_or(0);
    let fewest = (0..chosen.len()).min_by_key(|&at| (of(&chosen[at]), at));
    if let Some(at) = fewest {
        chosen[..=at].rotate_right(1);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Picture {
        Picture {
            copies: vec![PlaceIs::Up; 3],
            owner: OwnerIs::Live,
            heir: false,
            wanted: 3,
            room: true,
            begun: false,
        }
    }

    #[test]
    fn healthy_block_needs_nothing() {
        assert!(!needs_change(&healthy()));
        let no_room = Picture { wanted: 4, room: false, ..healthy() };
        assert!(!needs_change(&no_room), "there is nowhere to put a fourth copy");
        let orphan = Picture { owner: OwnerIs::Nobody, ..healthy() };
        assert!(!needs_change(&orphan), "nobody could adopt it");
    }

    #[test]
    fn block_changes_after_loss_death_or_shortage() {
        let mut lost = healthy();
        lost.copies[1] = PlaceIs::Lost;
        let mut silent = healthy();
        silent.copies[2] = PlaceIs::Silent;
        let dead = Picture { owner: OwnerIs::Dead, ..healthy() };
        let adopted = Picture { owner: OwnerIs::Nobody, heir: true, ..healthy() };
        let short = Picture { wanted: 4, ..healthy() };
        for picture in [lost, silent, dead, adopted, short] {
            assert!(needs_change(&picture), "{picture:?}");
        }
    }

    #[test]
    fn copies_go_to_nodes_with_most_room() {
        let room = |node, blocks| Room { node: NodeId(node), blocks };
        let rooms = vec![room(1, 2), room(2, 9), room(3, 0), room(4, 9)];
        assert_eq!(choose(rooms.clone(), 2), [NodeId(2), NodeId(4)]);
        assert_eq!(choose(rooms, 9).len(), 3, "a full node gets nothing");
        let fronts = BTreeMap::from([(NodeId(2), 5), (NodeId(4), 3), (NodeId(7), 3)]);
        let nodes = |ids: &[u64]| ids.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        assert_eq!(in_front(nodes(&[2, 4, 7]), &fronts), nodes(&[4, 2, 7]));
        assert_eq!(in_front(nodes(&[2, 7, 9]), &fronts), nodes(&[9, 2, 7]), "new nodes have none");
        assert_eq!(in_front(nodes(&[]), &fronts), nodes(&[]));
        let of = |client, blocks| Heir { client: ClientId(client), blocks };
        assert_eq!(heir(&[of(9, 1), of(3, 1), of(1, 2)]), Some(ClientId(3)));
        assert_eq!(heir(&[]), None);
    }
}
