//! What a proxy knows of the keys of its partitions, and the memory that an offloaded partition
//! takes.

mod metadata;

use crate::format::BUCKET_SLOTS;

/// Bytes of an offloaded partition without its slots and their metadata.
pub(crate) const PARTITION_BYTES: u64 = 288;

/// Bytes of a compute node's memory limit that a partition of 2^`log2_buckets` buckets takes while
/// the node is its proxy.
#[must_use]
pub fn offloaded_bytes(log2_buckets: u32) -> u64 {
    let slots = BUCKET_SLOTS << log2_buckets;
    PARTITION_BYTES + (slots * size_of::<u64>()) as u64 + MetadataTable::bytes_for(slots)
}

pub use metadata::{
    COUNTER_MAX, EXACT_NODES, METADATA_BYTES, Metadata, MetadataTable, Sharers, SlotReaders,
};
