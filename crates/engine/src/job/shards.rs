//! Names of the shards that a job reads, and the sources that provide them.

use std::sync::Arc;

use archipelago_base::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::memtable::SealedShard;

/// A shard of a sealed memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardRef {
    /// Number of the memtable; larger is newer.
    pub memtable: u64,
    /// Index of the shard in the memtable.
    pub shard: u32,
}

/// Source of a flush's shards: the owner's memtables, or images that were sent here.
pub trait ShardSource: Sync {
    /// The shard. `NotFound` if this source does not have it.
    fn shard(&self, shard: &ShardRef) -> Result<Arc<dyn SealedShard>>;
}

/// A source without shards, for executors that only compact.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoShards;

impl ShardSource for NoShards {
    fn shard(&self, shard: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        Err(Error::not_found(format!(
            "shard {} of memtable {}: there are no memtables here",
            shard.shard, shard.memtable
        )))
    }
}
