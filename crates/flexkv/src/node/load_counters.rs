//! What this node counts for the coordinator: accesses of partitions, reads and writes, in a region
//! that is read one-sided.
//!
//! Layout: [`Counts`](crate::format::Counts). The region is made when the node has joined and knows
//! how many partitions there are. Its key allows reading alone, so that any provider reaches it. A
//! node that was not told where to lend memory from
//! ([`ComputeNode::lend_counters`](super::ComputeNode::lend_counters)) counts nothing, and says so
//! when it is asked.
//!
//! Thread-safety: all of it. Cost: two atomic additions per call.

use std::sync::Weak;

use archipelago_base::Result;
use archipelago_fabric::{AtomicPath, Node, Region, RemoteKey, Rights};

use crate::format::{READS_OFFSET, WRITES_OFFSET, counter_place, counters_bytes, counters_magic};
use crate::ids::PartitionId;

/// See the module.
#[derive(Debug)]
pub(crate) struct Counters {
    region: Region,
    key: RemoteKey,
}

impl Counters {
    pub(crate) fn new(node: &Weak<Node>, partitions: u32) -> Result<Option<Self>> {
        let Some(node) = node.upgrade() else { return Ok(None) };
        // Others never change it, so it does not matter how their atomics would be executed.
        let region = node.allocate(counters_bytes(partitions) as usize, AtomicPath::Processor)?;
        region.write(0, &counters_magic()).map_err(|refusal| refusal.error("counters"))?;
        let key = region.grant(Rights::READ)?;
        Ok(Some(Self { region, key }))
    }

    pub(crate) fn key(&self) -> RemoteKey {
        self.key
    }

    /// A call was answered.
    pub(crate) fn count(&self, partition: PartitionId, read: bool) {
        self.count_many(std::iter::once(partition), read);
    }

    /// Calls to these partitions were answered.
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
