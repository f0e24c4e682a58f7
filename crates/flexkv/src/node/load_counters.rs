//! What this node counts for the coordinator: accesses, reads and writes by partition, in a region
//! that the coordinator reads one-sided.
//!
//! The layout is that of [`Counts`](crate::format::Counts). The region is made when the node joins,
//! because the number of partitions is known then. Its key allows reads only, so every provider can
//! reach it. A node without a fabric node to lend memory from
//! ([`ComputeNode::lend_counters`](crate::ComputeNode::lend_counters)) counts nothing, and says so
//! when the coordinator asks.
//!
//! Thread-safety: any thread may count.
//! Failure: a node whose region cannot be made does not join.
//! Cost: two atomic additions per call.

use std::sync::Weak;

use archipelago_base::Result;
use archipelago_fabric::{AtomicPath, Node as FabricNode, Region, RemoteKey, Rights};

use crate::format::{READS_OFFSET, WRITES_OFFSET, counter_place, counters_bytes, counters_magic};
use crate::ids::PartitionId;

/// The region in which a node counts its load.
#[derive(Debug)]
pub(crate) struct LoadCounters {
    region: Region,
    key: RemoteKey,
}

impl LoadCounters {
    pub(crate) fn new(node: &Weak<FabricNode>, partitions: u32) -> Result<Option<Self>> {
        let Some(node) = node.upgrade() else { return Ok(None) };
        // Other nodes never change the region, so the path of their atomics does not matter.
        let region = node.allocate(counters_bytes(partitions) as usize, AtomicPath::Processor)?;
        region.write(0, &counters_magic()).map_err(|refusal| refusal.error("counters"))?;
        let key = region.grant(Rights::READ)?;
        Ok(Some(Self { region, key }))
    }

    pub(crate) fn key(&self) -> RemoteKey {
        self.key
    }

    /// Counts a call that was answered.
    pub(crate) fn count(&self, partition: PartitionId, read: bool) {
        self.count_many(std::iter::once(partition), read);
    }

    /// Counts calls to these partitions that were answered.
    pub(crate) fn count_many(&self, partitions: impl Iterator<Item = PartitionId>, read: bool) {
        let mut calls = 0;
        for partition in partitions {
            let (offset, one) = counter_place(partition.0);
            let added = self.region.fetch_add(offset, one);
            debug_assert!(added.is_ok(), "{partition} has no counter: {added:?}");
            calls += 1;
        }
        if calls > 0 {
            let of_kind = if read { READS_OFFSET } else { WRITES_OFFSET };
            let added = self.region.fetch_add(of_kind, calls);
            debug_assert!(added.is_ok(), "no counter of all: {added:?}");
        }
    }
}
