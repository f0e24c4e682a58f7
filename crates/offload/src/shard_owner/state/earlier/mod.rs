//! Shards of earlier owners: those that an open has found at nodes, and those that it has adopted.
//!
//! When a node has listed the shards of the previous owner, the open requests it to hold all of
//! them for the new owner. So the next open finds them if this one fails. After the open has
//! adopted the shards that it keeps, it releases the others. A node that answers only later is
//! purged.
//!
//! A purge keeps the shards that the node holds for this owner. So the state records a shard before
//! the request to hold it leaves. If the answer is lost, the shard is never read, and its release
//! follows the purge.
//!
//! The database knows an adopted shard by an id of this open. In messages the shard keeps its old
//! name.
//!
//! Invariants:
//! 1. No shard of an earlier owner is purged or released before the open has decided.
//! 2. Shards that are given up get ids of memtable 0, which no memtable has.
//! 3. A shard is read or adopted only if its node has confirmed that it holds the shard.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::SeqNo;
use archipelago_engine::remote::{AwayError, ShardId, StoreNode};
use archipelago_fabric::RemoteKey;

use super::shards::ShardStage;
use super::{OwnerState, ReadableShard};
use crate::wire::shard::{ListedShard, ShardName, ShardPlace};

/// A shard of an earlier owner that a node was asked to hold for this one.
#[derive(Clone, Copy, Debug)]
struct HeldShard {
    place: ShardPlace,
    /// Largest sequence number of its memtable.
    last_seq: SeqNo,
    /// Checksum of the header of its image, after the header was read.
    head_sum: Option<u64>,
    /// Whether the node has confirmed that it holds the shard.
    is_confirmed: bool,
}

/// The shards of earlier owners.
#[derive(Debug, Default)]
pub(super) struct EarlierShards {
    /// Shards that nodes may hold and that are neither adopted nor given up.
    held: BTreeMap<(StoreNode, ShardName), HeldShard>,
    /// Names in messages of the shards that have an id of this open.
    names: BTreeMap<ShardId, ShardName>,
    /// Whether the open has decided which shards it keeps.
    is_decided: bool,
    given_up: u32,
}

impl EarlierShards {
    pub(super) fn name(&self, id: ShardId) -> Option<ShardName> {
        self.names.get(&id).copied()
    }

    pub(super) fn id_of(&self, name: ShardName) -> Option<ShardId> {
        // A shard that was adopted at one node may be given up at another one, under an id of
        // memtable 0. Only the adopted shard can be read.
        self.names.iter().rev().find(|(_, known)| **known == name).map(|(id, _)| *id)
    }

    pub(super) fn may_purge(&self) -> bool {
        self.is_decided
    }

    /// Forgets the names of shards whose release the nodes have confirmed.
    pub(super) fn released(&mut self, ids: &[ShardId]) {
        self.names.retain(|id, _| !ids.contains(id));
    }
}

impl OwnerState {
    /// Whether the open should wait for nodes. It should wait if no node is known yet, or if a node
    /// from which the pool gets beats has not answered `Begin`.
    pub(in crate::shard_owner) fn waits_for_nodes(&self) -> bool {
        let is_late = |state: &super::NodeState| state.is_up && state.begun.is_none();
        self.nodes.is_empty() || self.nodes.values().any(|state| is_late(state) && !state.is_fenced)
    }

    /// The nodes that have answered `Begin` and obey this owner.
    pub(in crate::shard_owner) fn begun_nodes(&self) -> Vec<StoreNode> {
        let begun = self.nodes.iter().filter(|(_, state)| state.obeys());
        begun.map(|(node, _)| *node).collect()
    }

    /// Records shards before a node is requested to hold them for this owner.
    pub(in crate::shard_owner) fn hold(&mut self, node: StoreNode, listed: &[ListedShard]) {
        for shard in listed {
            let (place, last_seq) = (shard.place, shard.info.last_seq);
            let held = HeldShard { place, last_seq, head_sum: None, is_confirmed: false };
            self.earlier.held.insert((node, shard.name), held);
        }
    }

    /// Notes that a node has confirmed that it holds the recorded shards.
    pub(in crate::shard_owner) fn confirm_held(&mut self, node: StoreNode) {
        let held = self.earlier.held.iter_mut().filter(|(at, _)| at.0 == node);
        held.for_each(|(_, held)| held.is_confirmed = true);
    }

    /// Keys of the arenas of a node with shards that this open may still read.
    pub(super) fn held_arenas(&self, node: StoreNode) -> impl Iterator<Item = RemoteKey> + '_ {
        let held = self.earlier.held.iter().filter(move |(at, _)| at.0 == node);
        held.map(|(_, held)| held.place.key)
    }

    /// The place of a shard that a node has confirmed to hold.
    pub(in crate::shard_owner) fn held(
        &self,
        node: StoreNode,
        name: ShardName,
    ) -> Option<ShardPlace> {
        let held = self.earlier.held.get(&(node, name)).filter(|held| held.is_confirmed);
        held.map(|held| held.place)
    }

    /// Another node that has confirmed to hold the same shard.
    pub(in crate::shard_owner) fn other_holder(
        &self,
        node: StoreNode,
        name: ShardName,
    ) -> Option<StoreNode> {
        self.holders(node, name).into_iter().find(|at| *at != node)
    }

    /// The nodes that have confirmed to hold the shard that `node` has listed. `node` comes first.
    fn holders(&self, node: StoreNode, name: ShardName) -> Vec<StoreNode> {
        let Some(known) = self.earlier.held.get(&(node, name)) else { return Vec::new() };
        let same = self.earlier.held.iter().filter(|((at, held_name), held)| {
            let obeys = self.nodes.get(at).is_some_and(super::NodeState::obeys);
            let is_same = *held_name == name
                && (held.place.bytes, held.last_seq) == (known.place.bytes, known.last_seq);
            is_same && held.is_confirmed && obeys
        });
        let mut nodes: Vec<StoreNode> = same.map(|((at, _), _)| *at).collect();
        nodes.sort_by_key(|at| *at != node);
        nodes
    }

    /// Notes the checksum of the header of an image that a node holds, also for its copies.
    pub(in crate::shard_owner) fn note_head(&mut self, node: StoreNode, name: ShardName, sum: u64) {
        for at in self.holders(node, name) {
            if let Some(held) = self.earlier.held.get_mut(&(at, name)) {
                held.head_sum = Some(sum);
            }
        }
    }

    /// Adopts a shard that a node holds. It can be read as `id` from now on. If another node has
    /// confirmed that it holds the same shard, that node is its second place, or its first place if
    /// `node` is gone. Returns the node at which the shard is read. Errors: `Lost` if no node that
    /// obeys has confirmed the shard, or if its head was not read.
    pub(in crate::shard_owner) fn adopt(
        &mut self,
        id: ShardId,
        node: StoreNode,
        name: ShardName,
    ) -> Result<StoreNode, AwayError> {
        let gone = || AwayError::Lost("its memory node was lost during the takeover".to_owned());
        let known = self.earlier.held.get(&(node, name)).copied().ok_or_else(gone)?;
        let mut nodes = self.holders(node, name);
        let mut sums = nodes.iter().filter_map(|at| self.earlier.held.get(&(*at, name))?.head_sum);
        let head_sum = known.head_sum.or(sums.next()).ok_or_else(gone)?;
        // A shard that cannot be adopted stays among those that are given up.
        nodes.truncate(self.terms.copies as usize);
        let first = *nodes.first().ok_or_else(gone)?;
        for at in nodes {
            let Some(state) = self.nodes.get_mut(&at) else { continue };
            let Some(held) = self.earlier.held.remove(&(at, name)) else { continue };
            let HeldShard { place, last_seq, .. } = held;
            state.shards.begin(id, place.bytes);
            state.shards.set(id, ShardStage::Away(ReadableShard { place, head_sum, last_seq }));
            match at == first {
                true => self.places.set_first(id, at, place.bytes),
                false => _ = self.places.set_second(id, at),
            }
        }
        self.earlier.names.insert(id, name);
        self.offsets.open(id, known.last_seq);
        Ok(first)
    }

    /// Ends the takeover: the open has adopted the shards that it keeps, and the nodes must drop
    /// all others of earlier owners. Returns the nodes that must get a message.
    pub(in crate::shard_owner) fn purge(&mut self) -> BTreeSet<StoreNode> {
        self.earlier.is_decided = true;
        for ((node, name), held) in std::mem::take(&mut self.earlier.held) {
            let Some(state) = self.nodes.get_mut(&node) else { continue };
            if state.is_fenced {
                // The other owner purges the shards at this node, so no release is sent.
                continue;
            }
            let id = ShardId { memtable: 0, shard: self.earlier.given_up };
            self.earlier.given_up += 1;
            self.earlier.names.insert(id, name);
            state.shards.begin(id, held.place.bytes);
            state.shards.set(id, ShardStage::Released);
        }
        self.nodes.keys().copied().collect()
    }
}
