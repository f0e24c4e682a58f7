//! The node on which a repair runs, as the repair sees it.

use std::fmt;

use archipelago_base::{Epoch, Result};

use super::super::wire::{ChunkDescriptor, ChunkId, StoreMessage};
use crate::ids::VolumeId;

/// The storage node that becomes a holder. Its methods may block on its disks, so the tasks of a
/// repair run on threads of their own.
///
/// Only the first method handles messages. No other process may call the other methods.
pub trait RepairHost: Send + Sync + fmt::Debug + 'static {
    /// Answers a request in the same way as a request from the network.
    fn answer(&self, request: StoreMessage, payload: &[u8]) -> (StoreMessage, Vec<u8>);

    /// Answers a put or the seal of a copy of an extent that ends at `end`. The node refuses it if
    /// its own replica has more bytes, or had more before they were damaged. A recovery may have
    /// sealed the extent at a later end after the manager gave the order.
    fn answer_copy(
        &self,
        request: StoreMessage,
        payload: &[u8],
        end: u64,
    ) -> (StoreMessage, Vec<u8>);

    /// Takes volumes out of the set of a chunk, because holders have released the blob for them. A
    /// chunk whose set is empty is deleted.
    fn take_volumes(&self, chunk: ChunkId, volumes: &[VolumeId]) -> Result<()>;

    /// Drops a chunk that a repair has begun and not sealed.
    fn abandon_repair(&self, chunk: ChunkId);

    /// Whether the node knows that no volume of the descriptor's set keeps the blob any more: the
    /// set has only the volume that wrote the blob, which has released it on this node.
    fn has_released(&self, blob: &ChunkDescriptor) -> bool;

    /// The epoch that the node has promised for a volume. A copy of an extent is written under it,
    /// which fences no writer.
    fn promised_epoch(&self, volume: VolumeId) -> Epoch;
}
