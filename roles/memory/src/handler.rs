//! The fabric's handler of a memory node, which distributes the messages of the pool and those of
//! memtable shards by their first byte.
//!
//! Thread-safety: any thread may call it.
//! Failure: a request of neither protocol goes to the pool, which refuses it.
//! Cost: one comparison of a byte.

use std::sync::Arc;

use archipelago_fabric::{Handler, Reply, Request};
use archipelago_offload::shard_host::ShardHost;
use archipelago_offload::wire::shard::is_shard_message;

/// The handler of a memory node.
pub(crate) struct MemoryHandler {
    /// Handler of the pool's messages.
    pub(crate) pool: Box<dyn Handler>,
    /// Host of shards.
    pub(crate) shards: Arc<ShardHost>,
}

impl Handler for MemoryHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if is_shard_message(request.body) {
            self.shards.handle(&request, reply);
        } else {
            self.pool.handle(request, reply);
        }
    }
}
