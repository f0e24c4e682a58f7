//! All keys of a partition: for counting and for removing everything.
//!
//! A store over remote memory has no order of keys, and no snapshot covers several of them. So a list of keys promises less than a read of
//! one key: it has each key that exists during the whole call, and it may have keys that are written or deleted meanwhile. Slots come from this node's memory if it is the
//! partition's proxy, and from the pool otherwise, where a write that is not committed may show already.
//!
//! Cost: a READ of the subtable, unless this node is the proxy; to list keys one of 256 bytes for each of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_base::Result;

use super::expired;
use crate::format::{Head, KEY_BYTES_MAX, KeyHash, Slot};
use crate::gates::Inside;
use crate::ids::PartitionId;
use crate::node::{ComputeNode, Inner};
use crate::table::Range;

/// Records whose heads are read together.
const READ_AT_ONCE: usize = 128;
/// Bytes that are read of a record first: most keys are shorter.
const HEAD_BYTES: u64 = 256;

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
        let until_ns = self.until_ns();
        loop {
            let started_ns = self.now_ns();
            let (inside, words) = self.words_in_partition(partition, until_ns).await?;
            let keys = self.keys_of(&words, until_ns).await?;
            drop(inside);
            // Addresses hold for so long.
            let in_time = self.now_ns() - started_ns < self.settings.address_use_ns();
            if in_time && self.table.holds_lease() {
                return Ok(keys);
            }
            self.table.late(until_ns, "the keys of a partition")?;
            self.pause().await;
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

    async fn keys_of(&self, words: &[u64], until_ns: u64) -> Result<BTreeSet<Vec<u8>>> {
        let mut keys = BTreeSet::new();
        let records = words.iter().filter_map(|word| self.table.record(Slot(*word)));
        let records: Vec<Range> = records.collect();
        for some in records.chunks(READ_AT_ONCE) {
            let head = |range: &Range| Range { bytes: range.bytes.min(HEAD_BYTES), ..*range };
            let heads: Vec<Range> = some.iter().map(head).collect();
            let read = self.table.read_named(&heads, until_ns).await?;
            for (range, bytes) in some.iter().zip(read) {
                let whole = match Head::decode(&bytes) {
                    Ok(None) => self.read_long_head(*range, until_ns).await?,
                    _ => bytes,
                };
                if let Ok(Some(head)) = Head::decode(&whole)
                    && !expired(head.header.expires_ms, self)
                {
                    keys.insert(head.key.to_vec());
                }
            }
        }
        Ok(keys)
    }

    /// The beginning of a record with a long key.
    async fn read_long_head(&self, range: Range, until_ns: u64) -> Result<Vec<u8>> {
        let range = Range { bytes: range.bytes.min(Head::bytes(KEY_BYTES_MAX)), ..range };
        let bytes = self.table.read_named(&[range], until_ns).await?.pop();
        self.table.read_rest(range.address, bytes.unwrap_or_default(), until_ns).await
    }
}
