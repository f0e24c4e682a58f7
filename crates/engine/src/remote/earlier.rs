//! Shards of earlier opens, as nodes describe them to the next open. All are plain values.

use std::fmt;

use archipelago_base::{CfId, Epoch, FileNo, SeqNo};

use super::{ShardId, StoreNode};
use crate::key::KeyRange;

/// Name of a shard of an earlier open of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EarlierShard {
    /// Epoch of the owner that sent the shard.
    pub epoch: Epoch,
    /// Name of the shard in that open.
    pub id: ShardId,
}

impl fmt::Display for EarlierShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.epoch, self.id)
    }
}

/// A shard of an earlier open that a node has, with the properties that its owner sent with it
/// ([`super::NewShard`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundShard {
    /// Node that has the shard.
    pub node: StoreNode,
    /// Name under which the node knows it.
    pub name: EarlierShard,
    /// Column family of the shard.
    pub family: CfId,
    /// Keys of its bucket.
    pub keys: KeyRange,
    /// Sequence number up to which older shards and tables had all records of these keys.
    pub after_seq: SeqNo,
    /// Largest sequence number of its memtable.
    pub last_seq: SeqNo,
    /// Oldest log segment that holds a record of the shard.
    pub oldest_log: FileNo,
    /// Log segment in which its memtable was sealed.
    pub seal_log: FileNo,
    /// Bytes of its image.
    pub image_bytes: u64,
}
