//! The node as a repair sees it: the operations that an order of the manager needs on the node
//! itself.
//!
//! The protocol of repairs is in the crate of the store (`nodes::repairs`). The node answers the
//! requests of a repair like those of other processes. It also offers a repair calls that no
//! message has, because no other process may make them.
//!
//! Thread-safety: any thread may call any method.
//! Failure: those of the node's files.
//! Cost: that of the request.

use archipelago_base::{Epoch, Result};
use archipelago_fabric::ClientId;
use archipelago_store::VolumeId;
use archipelago_store::nodes::repairs::RepairHost;
use archipelago_store::nodes::wire::{ChunkDescriptor, ChunkId, StoreMessage};

use crate::node::StorageNode;

impl RepairHost for StorageNode {
    fn answer(&self, request: StoreMessage, payload: &[u8]) -> (StoreMessage, Vec<u8>) {
        // Requests of the node itself come from no client.
        self.handle(ClientId(0), request, payload)
    }

    fn answer_copy(
        &self,
        request: StoreMessage,
        payload: &[u8],
        end: u64,
    ) -> (StoreMessage, Vec<u8>) {
        self.handle_copy(request, payload, end)
    }

    fn take_volumes(&self, chunk: ChunkId, volumes: &[VolumeId]) -> Result<()> {
        self.chunks().take_volumes(chunk, volumes)
    }

    fn abandon_repair(&self, chunk: ChunkId) {
        self.chunks().abandon_repair(chunk);
    }

    fn has_released(&self, blob: &ChunkDescriptor) -> bool {
        self.chunks().has_released(blob)
    }

    fn promised_epoch(&self, volume: VolumeId) -> Epoch {
        self.parts().epochs.of(volume).epoch()
    }
}
