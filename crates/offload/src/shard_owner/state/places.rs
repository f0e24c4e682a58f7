//! Nodes at which the shards of one owner can be read: one node for a shard, or two.
//!
//! The **first** place of a shard is the node that gets the requests. The **second** place has the
//! same image. It becomes the first place when the node of the first place is lost or does not
//! answer. Second places are spare: the owner gives them up when it needs their room.
//!
//! Invariants:
//! 1. The places of a shard are different nodes.
//! 2. The sums of spare bytes are those of the second places.
//!
//! Thread-safety: none; the state machine owns it.
//! Cost: O(log shards) for each call, and O(spare shards of the node) to choose or count some of
//! them.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_engine::remote::{ShardId, StoreNode};

/// The places of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShardPlaces {
    first: StoreNode,
    second: Option<StoreNode>,
    bytes: u64,
}

/// The second places at one node.
#[derive(Debug, Default)]
struct SpareShards {
    shards: BTreeSet<ShardId>,
    bytes: u64,
}

/// Effect of the loss of a place on its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceLoss {
    /// The node was no place of the shard.
    Nothing,
    /// It was the second place. The shard is read as before.
    Spare,
    /// It was the first place, and this node has the shard from now on.
    Moved(StoreNode),
    /// It was the only place.
    Gone,
}

/// The places of all shards that can be read.
#[derive(Debug, Default)]
pub(super) struct Places {
    shards: BTreeMap<ShardId, ShardPlaces>,
    spare: BTreeMap<StoreNode, SpareShards>,
}

impl Places {
    /// Number of shards that can be read.
    pub(super) fn len(&self) -> usize {
        self.shards.len()
    }

    /// Number of shards with two places.
    pub(super) fn doubled(&self) -> usize {
        self.spare.values().map(|spare| spare.shards.len()).sum()
    }

    pub(super) fn contains(&self, id: ShardId) -> bool {
        self.shards.contains_key(&id)
    }

    /// The node at which a shard is read.
    pub(super) fn first(&self, id: ShardId) -> Option<StoreNode> {
        self.shards.get(&id).map(|places| places.first)
    }

    /// The node that has the other copy of a shard.
    pub(super) fn second(&self, id: ShardId) -> Option<StoreNode> {
        self.shards.get(&id)?.second
    }

    /// Sets the first place of a shard, which has no second place then.
    pub(super) fn set_first(&mut self, id: ShardId, first: StoreNode, bytes: u64) {
        self.remove(id);
        self.shards.insert(id, ShardPlaces { first, second: None, bytes });
    }

    /// Sets the second place of a shard. Returns false if the shard has no place at all, two
    /// places, or the same place already.
    pub(super) fn set_second(&mut self, id: ShardId, second: StoreNode) -> bool {
        let Some(places) = self.shards.get_mut(&id) else { return false };
        if places.second.is_some() || places.first == second {
            return false;
        }
        places.second = Some(second);
        let bytes = places.bytes;
        self.add_spare(id, second, bytes);
        true
    }

    fn add_spare(&mut self, id: ShardId, node: StoreNode, bytes: u64) {
        let spare = self.spare.entry(node).or_default();
        spare.shards.insert(id);
        spare.bytes += bytes;
    }

    fn drop_spare(&mut self, id: ShardId, node: StoreNode, bytes: u64) {
        if let Some(spare) = self.spare.get_mut(&node)
            && spare.shards.remove(&id)
        {
            spare.bytes -= bytes;
            if spare.shards.is_empty() {
                self.spare.remove(&node);
            }
        }
    }

    /// Notes that a node has a shard no more.
    pub(super) fn lose(&mut self, id: ShardId, node: StoreNode) -> PlaceLoss {
        let Some(ShardPlaces { first, second, bytes }) = self.shards.get(&id).copied() else {
            return PlaceLoss::Nothing;
        };
        match second {
            Some(second) if second == node => {
                self.drop_spare(id, second, bytes);
                self.shards.insert(id, ShardPlaces { first, second: None, bytes });
                PlaceLoss::Spare
            }
            Some(second) if first == node => {
                self.drop_spare(id, second, bytes);
                self.shards.insert(id, ShardPlaces { first: second, second: None, bytes });
                PlaceLoss::Moved(second)
            }
            None if first == node => {
                self.shards.remove(&id);
                PlaceLoss::Gone
            }
            _ => PlaceLoss::Nothing,
        }
    }

    /// Exchanges the places of a shard if `node` is the first one. Returns the node at which the
    /// shard is read from now on, if that has changed.
    pub(super) fn turn(&mut self, id: ShardId, node: StoreNode) -> Option<StoreNode> {
        let places = self.shards.get(&id).copied().filter(|places| places.first == node)?;
        let (second, bytes) = (places.second?, places.bytes);
        self.drop_spare(id, second, bytes);
        self.add_spare(id, node, bytes);
        self.shards.insert(id, ShardPlaces { first: second, second: Some(node), bytes });
        Some(second)
    }

    /// Forgets a shard that is not needed any more. Returns the nodes that have it.
    pub(super) fn remove(&mut self, id: ShardId) -> Vec<StoreNode> {
        let Some(ShardPlaces { first, second, bytes }) = self.shards.remove(&id) else {
            return Vec::new();
        };
        if let Some(second) = second {
            self.drop_spare(id, second, bytes);
        }
        std::iter::once(first).chain(second).collect()
    }

    /// Bytes of second places at a node.
    pub(super) fn spare_bytes_at(&self, node: StoreNode) -> u64 {
        self.spare.get(&node).map_or(0, |spare| spare.bytes)
    }

    /// Bytes of all second places.
    pub(super) fn spare_bytes(&self) -> u64 {
        self.spare.values().map(|spare| spare.bytes).sum()
    }

    /// Names and bytes of the shards whose second place is `node`, and whose first place is a node
    /// for which `can_read` holds, oldest first.
    fn spare_at(
        &self,
        node: StoreNode,
        can_read: impl Fn(StoreNode) -> bool,
    ) -> impl Iterator<Item = (ShardId, u64)> {
        let shards = self.spare.get(&node).into_iter().flat_map(|spare| &spare.shards);
        let known = shards.filter_map(|id| Some((*id, self.shards.get(id)?)));
        let spare = known.filter(move |(_, places)| can_read(places.first));
        spare.map(|(id, places)| (id, places.bytes))
    }

    /// Bytes of second places at a node whose shards can also be read at their first place, a node
    /// for which `can_read` holds.
    pub(super) fn spare_bytes_with(
        &self,
        node: StoreNode,
        can_read: impl Fn(StoreNode) -> bool,
    ) -> u64 {
        self.spare_at(node, can_read).map(|(_, bytes)| bytes).sum()
    }

    /// The oldest shards whose second place is `node`, and whose first place is a node for which
    /// `can_read` holds, until they have `bytes` together. All of them if they have fewer bytes.
    pub(super) fn oldest_spare(
        &self,
        node: StoreNode,
        bytes: u64,
        can_read: impl Fn(StoreNode) -> bool,
    ) -> Vec<ShardId> {
        let mut sum = 0;
        let wanted = self.spare_at(node, can_read).take_while(|(_, more)| {
            let is_wanted = sum < bytes;
            sum += more;
            is_wanted
        });
        wanted.map(|(id, _)| id).collect()
    }

    /// The oldest shards whose first place is `node`, and whose second place is a node for which
    /// `can_read` holds, until they have `bytes` together. All of them if they have fewer bytes.
    pub(super) fn oldest_doubled(
        &self,
        node: StoreNode,
        bytes: u64,
        can_read: impl Fn(StoreNode) -> bool,
    ) -> Vec<ShardId> {
        let here = self.shards.iter().filter(|(_, places)| places.first == node);
        let doubled = here.filter(|(_, places)| places.second.is_some_and(&can_read));
        let mut sum = 0;
        let wanted = doubled.take_while(|(_, places)| {
            let is_wanted = sum < bytes;
            sum += places.bytes;
            is_wanted
        });
        wanted.map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StoreNode = StoreNode(1);
    const B: StoreNode = StoreNode(2);

    fn id(memtable: u64) -> ShardId {
        ShardId { memtable, shard: 0 }
    }

    #[test]
    fn second_place_is_used_when_the_first_is_lost() {
        let mut places = Places::default();
        places.set_first(id(1), A, 100);
        assert!(!places.set_second(id(1), A), "two copies at one node are one");
        assert!(places.set_second(id(1), B) && !places.set_second(id(1), StoreNode(3)));
        assert_eq!((places.spare_bytes_at(B), places.doubled()), (100, 1));
        assert_eq!(places.lose(id(1), StoreNode(3)), PlaceLoss::Nothing);
        assert_eq!(places.lose(id(1), A), PlaceLoss::Moved(B));
        assert_eq!((places.first(id(1)), places.spare_bytes()), (Some(B), 0));
        assert_eq!(places.lose(id(1), A), PlaceLoss::Nothing, "it was lost before");
        assert_eq!(places.lose(id(1), B), PlaceLoss::Gone);
        assert_eq!((places.lose(id(1), B), places.len()), (PlaceLoss::Nothing, 0));
    }

    #[test]
    fn places_change_turns_when_the_first_is_silent() {
        let mut places = Places::default();
        places.set_first(id(1), A, 100);
        assert_eq!(places.turn(id(1), A), None, "there is no other");
        assert!(places.set_second(id(1), B));
        assert_eq!((places.turn(id(1), B), places.turn(id(1), A)), (None, Some(B)));
        assert_eq!((places.spare_bytes_at(A), places.spare_bytes_at(B)), (100, 0));
        assert_eq!(places.lose(id(1), A), PlaceLoss::Spare);
        assert_eq!(places.remove(id(1)), [B]);
    }

    #[test]
    fn oldest_copies_are_chosen_first() {
        let mut places = Places::default();
        for memtable in 1..=4 {
            places.set_first(id(memtable), A, 10);
            assert!(places.set_second(id(memtable), B));
        }
        assert_eq!(places.oldest_spare(B, 11, |node| node == A), [id(1), id(2)]);
        assert_eq!(places.oldest_spare(B, 1000, |_| true).len(), 4);
        assert!(places.oldest_spare(A, 10, |_| true).is_empty(), "it is the first place");
        assert!(places.oldest_spare(B, 0, |_| true).is_empty());
        assert!(places.oldest_spare(B, 10, |_| false).is_empty(), "the first place is silent");
        assert_eq!(places.spare_bytes_with(B, |node| node == A), 40);
        assert_eq!(places.spare_bytes_with(B, |_| false), 0);
        assert_eq!(places.oldest_doubled(A, 11, |node| node == B), [id(1), id(2)]);
        assert!(places.oldest_doubled(A, 0, |_| true).is_empty());
        assert!(places.oldest_doubled(A, 10, |_| false).is_empty());
        assert!(places.oldest_doubled(B, 10, |_| true).is_empty(), "it is the second place");
        assert_eq!(places.remove(id(1)), [A, B]);
        assert_eq!((places.spare_bytes_at(B), places.doubled(), places.len()), (30, 3, 3));
    }
}
