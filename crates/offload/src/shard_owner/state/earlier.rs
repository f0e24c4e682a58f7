//! Shards of earlier owners: those that an open has found, and those that it has adopted.
//!
//! A node that has listed the shards of the owner before is asked to hold all of them for this one,
//! so that the next open finds them if this one does not get on. When the open has adopted those
//! that it keeps, the others are released there. A node that answers only later is purged.
//!
//! An adopted shard has a name of this open at the database, and keeps its own in messages.
//!
//! Invariants:
//! 1. Nothing of an earlier owner is purged or released before the open has decided.
//! 2. Shards that are given up have numbers of memtable 0, which no memtable has.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::SeqNo;
use archipelago_engine::remote::{AwayError, ShardId, StoreNode};

use super::shards::ShardStage;
use super::{OwnerState, ReadableShard};
use crate::wire::shard::{ListedShard, ShardName, ShardPlace};

/// A shard of an earlier owner that a node holds for this one.
#[derive(Clone, Copy, Debug)]
struct HeldShard {
    place: ShardPlace,
    /// Largest sequence number of its memtable.
    last_seq: SeqNo,
    /// Checksum of the header of its image, once that was read.
    head_sum: Option<u64>,
}

/// The shards of earlier owners.
#[derive(Debug, Default)]
pub(super) struct EarlierShards {
    /// Those that nodes hold and that are neither adopted nor given up.
    held: BTreeMap<(StoreNode, ShardName), HeldShard>,
    /// Names in messages of those that have a name of this open.
    names: BTreeMap<ShardId, ShardName>,
    /// Whether the open has decided.
    is_decided: bool,
    given_up: u32,
}

impl EarlierShards {
    pub(super) fn name(&self, id: ShardId) -> Option<ShardName> {
        self.names.get(&id).copied()
    }

    pub(super) fn id_of(&self, name: ShardName) -> Option<ShardId> {
        self.names.iter().find(|(_, known)| **known == name).map(|(id, _)| *id)
    }

    pub(super) fn may_purge(&self) -> bool {
        self.is_decided
    }

    /// The nodes have confirmed the release of these shards.
    pub(super) fn released(&mut self, ids: &[ShardId]) {
        self.names.retain(|id, _| !ids.contains(id));
    }
}

impl OwnerState {
    /// Whether the open should wait for a node that may answer in a moment: none is known yet, or
    /// one that the pool hears has not said that it knows the owner.
    pub(in crate::shard_owner) fn waits_for_nodes(&self) -> bool {
        let is_late = |state: &super::NodeState| state.is_up && state.begun.is_none();
        self.nodes.is_empty() || self.nodes.values().any(|state| is_late(state) && !state.is_fenced)
    }

    /// The nodes that know the owner.
    pub(in crate::shard_owner) fn begun_nodes(&self) -> Vec<StoreNode> {
        let begun = self.nodes.iter().filter(|(_, state)| state.obeys());
        begun.map(|(node, _)| *node).collect()
    }

    /// A node holds these shards for this owner.
    pub(in crate::shard_owner) fn hold(&mut self, node: StoreNode, listed: &[ListedShard]) {
        for shard in listed {
            let held =
                HeldShard { place: shard.place, last_seq: shard.info.last_seq, head_sum: None };
            self.earlier.held.insert((node, shard.name), held);
        }
    }

    /// The place of a shard that a node holds.
    pub(in crate::shard_owner) fn held(
        &self,
        node: StoreNode,
        name: ShardName,
    ) -> Option<ShardPlace> {
        self.earlier.held.get(&(node, name)).map(|held| held.place)
    }

    /// Notes the checksum of the header of an image that a node holds.
    pub(in crate::shard_owner) fn note_head(&mut self, node: StoreNode, name: ShardName, sum: u64) {
        if let Some(held) = self.earlier.held.get_mut(&(node, name)) {
            held.head_sum = Some(sum);
        }
    }

    /// A shard that a node holds can be read as `id` from now on.
    pub(in crate::shard_owner) fn adopt(
        &mut self,
        id: ShardId,
        node: StoreNode,
        name: ShardName,
    ) -> Result<StoreNode, AwayError> {
        let gone = || AwayError::Lost("its memory node was lost during the takeover".to_owned());
        // What cannot be adopted stays among those that are given up.
        let held = *self.earlier.held.get(&(node, name)).ok_or_else(gone)?;
        let state = self.nodes.get_mut(&node).filter(|state| state.obeys()).ok_or_else(gone)?;
        let head_sum = held.head_sum.ok_or_else(gone)?;
        self.earlier.held.remove(&(node, name));
        state.shards.begin(id, held.place.bytes);
        let HeldShard { place, last_seq, .. } = held;
        state.shards.set(id, ShardStage::Away(ReadableShard { place, head_sum, last_seq }));
        if let Some(begun) = &mut state.begun {
            begun.limit_bytes = begun.limit_bytes.saturating_add(held.place.bytes);
        }
        self.earlier.names.insert(id, name);
        self.homes.insert(id, node);
        Ok(node)
    }

    /// The open has adopted what it keeps. The nodes drop everything else of earlier owners.
    /// Returns the nodes that have to hear of it.
    pub(in crate::shard_owner) fn purge(&mut self) -> BTreeSet<StoreNode> {
        self.earlier.is_decided = true;
        for ((node, name), held) in std::mem::take(&mut self.earlier.held) {
            let Some(state) = self.nodes.get_mut(&node) else { continue };
            let id = ShardId { memtable: 0, shard: self.earlier.given_up };
            self.earlier.given_up += 1;
            self.earlier.names.insert(id, name);
            state.shards.begin(id, held.place.bytes);
            state.shards.set(id, ShardStage::Released);
        }
        self.nodes.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;
    use archipelago_fabric::{NodeId, RegionId, RemoteKey, Rights};

    use super::super::{MemoryNode, NextAsk, NodeTask, OwnerTerms};
    use super::*;
    use crate::ids::{OffloadDb, OwnerStamp, Token};
    use crate::wire::shard::{ShardInfo, ShardMessage};

    const LIFE: Epoch = Epoch(7);

    fn name(memtable: u64) -> ShardName {
        ShardName { epoch: Epoch(3), memtable, shard: 0 }
    }

    fn id(memtable: u64) -> ShardId {
        ShardId { memtable, shard: 0 }
    }

    fn listed(memtable: u64) -> ListedShard {
        let (node, epoch, region, rights) = (NodeId(1), LIFE, RegionId(3), Rights::READ);
        let key = RemoteKey { node, epoch, region, tag: 9, len: 4096, rights };
        let info = ShardInfo { last_seq: SeqNo(9), ..ShardInfo::default() };
        ListedShard { name: name(memtable), info, place: ShardPlace { key, at: 64, bytes: 100 } }
    }

    /// An owner whose node has three shards of the one before.
    fn opening() -> (OwnerState, StoreNode) {
        let owner = OwnerStamp { db: OffloadDb([1; 16]), epoch: Epoch(4), token: Token([2; 16]) };
        let mut state = OwnerState::new(owner, OwnerTerms::default());
        assert!(state.waits_for_nodes(), "none is known");
        let endpoints = vec!["there".to_owned()];
        let member = MemoryNode { node: NodeId(1), life: LIFE, endpoints, is_up: true };
        let node = state.on_members(1, &[member])[0];
        assert!(state.waits_for_nodes(), "it has not begun");
        let answer = ShardMessage::Begun {
            life: LIFE,
            landing_bytes: 1000,
            image_bytes_max: 400,
            room_bytes: 0,
            shards: 3,
        };
        state.on_answer(1, node, &NodeTask::Begin, &answer);
        assert!(!state.waits_for_nodes());
        assert_eq!(state.begun_nodes(), [node]);
        state.hold(node, &[listed(1), listed(2), listed(3)]);
        (state, node)
    }

    /// The next requests for the node, each answered, before its next beat.
    fn asked(state: &mut OwnerState, node: StoreNode) -> Vec<ShardMessage> {
        state.nodes.values_mut().for_each(|node| node.beat_ns = u64::MAX);
        let mut asked = Vec::new();
        while let NextAsk::Ask(task, message) = state.next_ask(2, node) {
            state.on_answer(2, node, &task, &ShardMessage::Done { shards: 1 });
            asked.push(message);
        }
        asked
    }

    #[test]
    fn nothing_is_purged_before_the_open_has_decided() {
        let (mut state, node) = opening();
        assert!(asked(&mut state, node).is_empty());
        assert!(state.adopt(id(8), node, name(2)).is_err(), "its head was not read");
        state.note_head(node, name(2), 5);
        assert_eq!(state.adopt(id(8), node, name(2)), Ok(node));
        assert!(state.adopt(id(9), node, name(2)).is_err(), "it is adopted once");
        assert!(asked(&mut state, node).is_empty());
        let before = state.room(2).held_bytes;
        assert_eq!(before, 100);
        assert_eq!(state.purge().into_iter().collect::<Vec<_>>(), [node]);
        let messages = asked(&mut state, node);
        let [ShardMessage::Purge { .. }, ShardMessage::Release { shards, .. }] = &messages[..]
        else {
            panic!("{messages:?}");
        };
        assert_eq!(shards[..], [name(1), name(3)]);
        assert_eq!(state.target(node, &[id(8)]).expect("it is there").names, [name(2)]);
        assert_eq!(state.id_of(name(2)), Some(id(8)));
        assert_eq!(state.id_of(name(1)), None, "forgotten, because the node has confirmed it");
    }

    #[test]
    fn adopted_shards_are_released_by_their_own_names() {
        let (mut state, node) = opening();
        state.note_head(node, name(3), 5);
        assert_eq!(state.adopt(id(8), node, name(3)), Ok(node));
        state.purge();
        asked(&mut state, node);
        state.release(&[id(8)], 9);
        let messages = asked(&mut state, node);
        let [ShardMessage::Release { shards, oldest, .. }] = &messages[..] else {
            panic!("{messages:?}");
        };
        assert_eq!((&shards[..], *oldest), (&[name(3)][..], 9));
    }

    #[test]
    fn shards_of_a_lost_node_are_not_adopted() {
        let (mut state, node) = opening();
        state.note_head(node, name(1), 5);
        let endpoints = vec!["there".to_owned()];
        let next = MemoryNode { node: NodeId(1), life: Epoch(8), endpoints, is_up: true };
        state.on_members(2, &[next]);
        assert!(matches!(state.adopt(id(8), node, name(1)), Err(AwayError::Lost(_))));
        state.purge();
        assert_eq!(state.counts().1, 0);
    }
}
