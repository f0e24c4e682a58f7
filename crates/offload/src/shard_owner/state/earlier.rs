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

use archipelago_engine::remote::{AwayError, ShardId, StoreNode};

use super::shards::ShardStage;
use super::{OwnerState, ReadableShard};
use crate::wire::shard::{ListedShard, ShardName, ShardPlace};

/// A shard of an earlier owner that a node holds for this one.
#[derive(Clone, Copy, Debug)]
struct HeldShard {
    place: ShardPlace,
    /// Checksum of the header of its image, once that was read.
    head_crc: Option<u32>,
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
        ids.iter().for_each(|id| drop(self.names.remove(id)));
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
            let held = HeldShard { place: shard.place, head_crc: None };
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
    pub(in crate::shard_owner) fn note_head(&mut self, node: StoreNode, name: ShardName, crc: u32) {
        if let Some(held) = self.earlier.held.get_mut(&(node, name)) {
            held.head_crc = Some(crc);
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
        let held = self.earlier.held.remove(&(node, name)).ok_or_else(gone)?;
        let state = self.nodes.get_mut(&node).filter(|state| state.obeys()).ok_or_else(gone)?;
        let head_crc = held.head_crc.ok_or_else(gone)?;
        state.shards.begin(id, held.place.bytes);
        state.shards.set(id, ShardStage::Away(ReadableShard { place: held.place, head_crc }));
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
