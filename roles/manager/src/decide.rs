//! What is wanted for a block, from a picture of it: pure, without clock or I/O.

use std::collections::BTreeMap;

use archipelago_fabric::{ClientId, NodeId};

/// How a copy's node fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceIs {
    /// It answers, in the life that has the copy.
    Up,
    /// It is heard again and has not reported yet.
    Coming,
    /// It is not heard; it may still have the copy, and serve it.
    Silent,
    /// The copy is gone for good.
    Lost,
}

/// How a block's owner fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerIs {
    /// It has a lease.
    Live,
    /// It has none any more.
    Dead,
    /// There is none.
    Nobody,
}

/// A block that no change is under way for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its copies, in order.
    pub copies: Vec<PlaceIs>,
    /// Its owner.
    pub owner: OwnerIs,
    /// Whether somebody could adopt it.
    pub heir: bool,
    /// Copies that it is to have.
    pub wanted: usize,
    /// Whether a node has room for one more.
    pub room: bool,
    /// An earlier change began and did not end.
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

/// A client that may adopt, and how many blocks it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heir {
    /// Who.
    pub client: ClientId,
    /// How many it owns.
    pub blocks: usize,
}

/// Who adopts: whoever has fewest blocks, of equals the smallest id.
#[must_use]
pub fn heir(heirs: &[Heir]) -> Option<ClientId> {
    heirs.iter().min_by_key(|heir| (heir.blocks, heir.client)).map(|heir| heir.client)
}

/// A node that could take a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Which.
    pub node: NodeId,
    /// Blocks that still fit.
    pub blocks: u64,
}

/// Which nodes get `count` copies: those with most room, of equals the smallest id.
#[must_use]
pub fn choose(mut rooms: Vec<Room>, count: usize) -> Vec<NodeId> {
    rooms.retain(|room| room.blocks > 0);
    rooms.sort_by_key(|room| (std::cmp::Reverse(room.blocks), room.node));
    rooms.into_iter().take(count).map(|room| room.node).collect()
}

/// The `chosen` nodes with the one in front that is in front of fewest blocks, by `fronts`: who
/// reads, or swaps a word, goes to a block's first copy, and with as many nodes as copies every
/// block has the same nodes.
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
    fn a_healthy_block_is_left_alone() {
        assert!(!needs_change(&healthy()));
        let no_room = Picture { wanted: 4, room: false, ..healthy() };
        assert!(!needs_change(&no_room), "there is nowhere to put a fourth copy");
        let orphan = Picture { owner: OwnerIs::Nobody, ..healthy() };
        assert!(!needs_change(&orphan), "nobody could adopt it");
    }

    #[test]
    fn loss_death_and_shortage_are_acted_upon() {
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
    fn copies_go_where_there_is_most_room() {
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
