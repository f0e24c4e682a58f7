//! All keys of a partition: for counting and for removing everything.
//!
//! A store over remote memory has no order of keys, and no snapshot covers several of them. So a
//! list of keys promises less than a read of one key: it has each key that exists during the whole
//! call, and it may have keys that are written or deleted meanwhile.
//!
//! Cost: to count, a READ of the subtable, unless this node is the proxy; to list keys that of a
//! scan (`scan.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_base::Result;

use super::expired;
use super::scan::{Pace, ROUND_RECORDS};
use crate::format::{KeyHash, ScanPosition, Slot};
use crate::gates::Inside;
use crate::ids::PartitionId;
use crate::node::{ComputeNode, Inner};

impl ComputeNode {
    /// How many partitions the store has. Busy before the node has joined.
    pub fn partitions(&self) -> Result<u32> {
        Ok(self.0.joined()?.geometry.partitions())
    }

    /// How many keys a partition has, those included that have expired and are not removed yet.
    pub async fn count_in(&self, partition: u32) -> Result<u64> {
        let until_ns = self.0.until_ns();
        let (_inside, words) = self.0.words_in_partition(PartitionId(partition), until_ns).await?;
        Ok(words.len() as u64)
    }

    /// The keys of a partition that are there and have not expired, in the order of their bytes.
    pub async fn keys_in(&self, partition: u32) -> Result<BTreeSet<Vec<u8>>> {
        self.0.keys_in(PartitionId(partition)).await
    }
}

impl Inner {
    async fn keys_in(self: &Arc<Self>, partition: PartitionId) -> Result<BTreeSet<Vec<u8>>> {
        let (mut keys, mut at) = (BTreeSet::new(), ScanPosition::at_partition(partition));
        loop {
            let round = self.scan_round(at, Pace::PARTITION, ROUND_RECORDS).await?;
            let there = round.keys.into_iter().filter(|found| !expired(found.expires_ms, self));
            keys.extend(there.map(|found| found.key));
            match round.next {
                Some(next) if next.partition() == partition => at = next,
                _ => return Ok(keys),
            }
        }
    }

    /// The words of a partition that name records, within its door.
    async fn words_in_partition(
        self: &Arc<Self>,
        partition: PartitionId,
        until_ns: u64,
    ) -> Result<(Inside<'_>, Vec<u64>)> {
        let bits = self.joined()?.geometry.partition_bits();
        // Any hash of the partition.
        let hash = KeyHash(u64::from(partition.0).checked_shl(64 - bits).unwrap_or(0));
        let (inside, entry) = self.enter(hash, until_ns).await?;
        let served = self.proxy.get(partition, entry.epoch);
        let words = match served.and_then(|served| served.all_words()) {
            Some(words) => words,
            None => self.words_of(entry.shape).await?.0,
        };
        Ok((inside, words.into_iter().filter(|word| Slot(*word).is_live()).collect()))
    }
}
