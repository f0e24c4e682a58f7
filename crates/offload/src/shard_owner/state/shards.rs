//! The shards of one owner at one memory node, and their bytes.

use std::collections::BTreeMap;

use archipelago_base::SeqNo;
use archipelago_engine::remote::ShardId;

use crate::wire::shard::ShardPlace;

/// A shard that can be read: its place, and the checksum of the header of its image. The header has
/// the checksums of all sections.
///
/// It also has the largest sequence number of the shard's memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard_owner) struct ReadableShard {
    pub(in crate::shard_owner) place: ShardPlace,
    pub(in crate::shard_owner) head_sum: u64,
    pub(in crate::shard_owner) last_seq: SeqNo,
}

/// Stage of a shard of this open at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardStage {
    /// It still takes writes, and some of its records may have left. No read finds it.
    Ahead,
    /// Its image is on the way.
    Sending,
    /// It can be read.
    Away(ReadableShard),
    /// The owner does not need it any more, and the node has not confirmed that yet.
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeShard {
    bytes: u64,
    stage: ShardStage,
}

/// The shards at a node. The sums of bytes are those of the entries.
#[derive(Debug, Default)]
pub(super) struct NodeShards {
    shards: BTreeMap<ShardId, NodeShard>,
    ahead_bytes: u64,
    sending_bytes: u64,
    away_bytes: u64,
    released_bytes: u64,
}

impl NodeShards {
    /// Bytes of the room of active shards.
    pub(super) fn ahead_bytes(&self) -> u64 {
        self.ahead_bytes
    }

    /// Bytes of images that are on their way.
    pub(super) fn sending_bytes(&self) -> u64 {
        self.sending_bytes
    }

    /// Bytes of images that can be read.
    pub(super) fn away_bytes(&self) -> u64 {
        self.away_bytes
    }

    /// Bytes of images that the node may hold, those of unconfirmed releases included.
    pub(super) fn held_bytes(&self) -> u64 {
        self.away_bytes + self.released_bytes
    }

    /// Bytes of a shard; 0 if the node has none of this name.
    pub(super) fn bytes(&self, id: ShardId) -> u64 {
        self.shards.get(&id).map_or(0, |shard| shard.bytes)
    }

    /// Bytes of the shards whose release the node has not confirmed.
    pub(super) fn released_bytes(&self) -> u64 {
        self.released_bytes
    }

    fn sum(&mut self, stage: ShardStage) -> &mut u64 {
        match stage {
            ShardStage::Ahead => &mut self.ahead_bytes,
            ShardStage::Sending => &mut self.sending_bytes,
            ShardStage::Away(_) => &mut self.away_bytes,
            ShardStage::Released => &mut self.released_bytes,
        }
    }

    pub(super) fn contains(&self, id: ShardId) -> bool {
        self.shards.contains_key(&id)
    }

    /// A shard begins its transfer.
    pub(super) fn begin(&mut self, id: ShardId, bytes: u64) {
        self.add(id, NodeShard { bytes, stage: ShardStage::Sending });
    }

    /// An active shard gets room for an image of `bytes`.
    pub(super) fn begin_ahead(&mut self, id: ShardId, bytes: u64) {
        self.add(id, NodeShard { bytes, stage: ShardStage::Ahead });
    }

    fn add(&mut self, id: ShardId, shard: NodeShard) {
        self.remove(id);
        *self.sum(shard.stage) += shard.bytes;
        self.shards.insert(id, shard);
    }

    /// Sets the stage of a shard. Returns false if the node has no such shard.
    pub(super) fn set(&mut self, id: ShardId, stage: ShardStage) -> bool {
        let Some(shard) = self.shards.get_mut(&id) else { return false };
        let (bytes, before) = (shard.bytes, std::mem::replace(&mut shard.stage, stage));
        *self.sum(before) -= bytes;
        *self.sum(stage) += bytes;
        true
    }

    pub(super) fn remove(&mut self, id: ShardId) {
        if let Some(shard) = self.shards.remove(&id) {
            *self.sum(shard.stage) -= shard.bytes;
        }
    }

    /// Whether the owner does not need the shard any more, and the node has not confirmed that.
    pub(super) fn is_released(&self, id: ShardId) -> bool {
        self.shards.get(&id).is_some_and(|shard| shard.stage == ShardStage::Released)
    }

    /// A shard, if it can be read.
    pub(super) fn readable(&self, id: ShardId) -> Option<ReadableShard> {
        match self.shards.get(&id)?.stage {
            ShardStage::Away(at) => Some(at),
            _ => None,
        }
    }

    /// The shards that can be read.
    pub(super) fn away(&self) -> impl Iterator<Item = (ShardId, ReadableShard)> + '_ {
        self.shards.iter().filter_map(|(id, shard)| match shard.stage {
            ShardStage::Away(at) => Some((*id, at)),
            _ => None,
        })
    }

    /// The shards whose release the node has not confirmed.
    pub(super) fn released(&self) -> impl Iterator<Item = ShardId> + '_ {
        let released = self.shards.iter().filter(|(_, shard)| shard.stage == ShardStage::Released);
        released.map(|(id, _)| *id)
    }

    /// Number of the oldest memtable that has a shard which is sent or can be read.
    pub(super) fn oldest(&self) -> Option<u64> {
        let mut used = self.shards.iter().filter(|(_, shard)| shard.stage != ShardStage::Released);
        used.next().map(|(id, _)| id.memtable)
    }
}
