//! Active shards that a [`ShardStore`](super::ShardStore) may write ahead. Plain values.

use std::fmt;
use std::sync::Weak;

use super::ShardId;
use crate::memtable::Shard;

/// A memtable shard that still takes writes.
#[derive(Clone)]
pub struct ActiveShard {
    /// Name under which the shard will be sent.
    pub id: ShardId,
    /// First key of its bucket, for the choice of a node.
    pub boundary: Vec<u8>,
    /// Expected bytes of its image. The shard may become larger or smaller.
    pub image_bytes: u64,
    /// The shard, from which complete slabs are read ([`Shard::complete_slabs`]). The database may
    /// free it at any time, and then never sends it.
    pub records: Weak<Shard>,
}

impl fmt::Debug for ActiveShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActiveShard({}, {} bytes)", self.id, self.image_bytes)
    }
}
