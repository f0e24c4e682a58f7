//! All keys of a partition, for counting and for removing everything.
//!
//! The store has no order of keys, and no snapshot covers several of them. So a list of keys
//! promises less than a read of one key. It has each key that exists during the whole call. It may
//! have keys that are written or deleted meanwhile.
//!
//! Cost: a count takes a READ of the subtable, unless this node is the proxy. A list takes a scan
//! of the partition.

use std::collections::BTreeSet;

use archipelago_base::Result;

use super::{Pace, ROUND_RECORDS, Scanner};
use crate::format::{KeyHash, ScanPosition, Slot};
use crate::gates::Inside;
use crate::ids::PartitionId;

impl Scanner {
    /// The keys of a partition that exist and have not expired.
    pub(crate) async fn keys_in(&self, partition: PartitionId) -> Result<BTreeSet<Vec<u8>>> {
        let (mut keys, mut at) = (BTreeSet::new(), ScanPosition::at_partition(partition));
        loop {
            let round = self.scan_round(at, Pace::PARTITION, ROUND_RECORDS).await?;
            let there =
                round.keys.into_iter().filter(|found| !self.node.is_expired(found.expires_ms));
            keys.extend(there.map(|found| found.key));
            match round.next {
                Some(next) if next.partition() == partition => at = next,
                _ => return Ok(keys),
            }
        }
    }

    /// The words of a partition that name records, and the guard of the partition's gate.
    pub(crate) async fn words_in_partition(
        &self,
        partition: PartitionId,
        until_ns: u64,
    ) -> Result<(Inside<'_>, Vec<u64>)> {
        let bits = self.node.joined()?.geometry().partition_bits();
        // Any hash of the partition serves to enter its gate.
        let hash = KeyHash(u64::from(partition.0).checked_shl(64 - bits).unwrap_or(0));
        let (inside, entry) = self.node.enter(hash, until_ns).await?;
        let served = self.proxy.get(partition, entry.epoch);
        let words = match served.and_then(|served| served.all_words()) {
            Some(words) => words,
            None => self.proxy.words_of(entry.shape).await?.0,
        };
        Ok((inside, words.into_iter().filter(|word| Slot(*word).is_live()).collect()))
    }
}
