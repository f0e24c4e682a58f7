//! Parts around the shard store and the shard host of the product: a handler that executes requests
//! when they arrive, a list of memory nodes, and a watcher.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: one lock for each call.

use std::sync::Arc;

use archipelago_engine::remote::{ShardId, StoreWatcher};
use archipelago_fabric::{Handler, Reply, Request};
use archipelago_offload::shard_host::ShardHost;
use archipelago_offload::shard_owner::{MemoryNode, NodeList};
use parking_lot::{Mutex, MutexGuard};

/// Executes each request of a host when it arrives.
pub(super) struct InlineHost(pub(super) Arc<ShardHost>);

impl Handler for InlineHost {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.handle(&request, reply);
        while self.0.work() {}
    }
}

/// The list of nodes that a pool would return. The scenario changes it.
#[derive(Debug, Default)]
pub(super) struct KnownNodes(Mutex<Vec<MemoryNode>>);

impl KnownNodes {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<MemoryNode>> {
        self.0.lock()
    }
}

impl NodeList for KnownNodes {
    fn nodes(&self) -> Option<Vec<MemoryNode>> {
        Some(self.0.lock().clone())
    }
}

/// Shards that a store has reported as lost.
#[derive(Default)]
pub(super) struct LostShards(Mutex<Vec<ShardId>>);

impl LostShards {
    /// The shards that were reported since the last call.
    pub(super) fn take(&self) -> Vec<ShardId> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl StoreWatcher for LostShards {
    fn lost(&self, shards: &[ShardId]) {
        self.0.lock().extend_from_slice(shards);
    }
    fn room_has_changed(&self) {}
}
