//! The flushes of one open of a database whose attempts away have failed.
//!
//! A failed flush is planned again with other file numbers, as a job of its own. Its shards show
//! that it is the same flush. The next attempt avoids the executors at which the earlier ones
//! failed.
//!
//! Invariant: at most [`SHARDS_MAX`] shards are remembered.
//!
//! Thread-safety: any thread may call any method. There is one lock.
//! Failure: a flush that was forgotten counts as one that has not failed.
//! Cost: O(shards of the flush) for each call, and a short lock.

use std::collections::BTreeMap;

use archipelago_engine::remote::ShardId;
use parking_lot::Mutex;

use crate::ids::ExecutorId;

/// Largest number of shards of failed flushes that are remembered.
const SHARDS_MAX: usize = 4096;

/// Executors at which attempts of flushes have failed, by the shards of the flushes.
#[derive(Debug, Default)]
pub(super) struct FlushRetries(Mutex<BTreeMap<ShardId, Vec<ExecutorId>>>);

impl FlushRetries {
    /// The executors at which earlier attempts of a flush of these shards have failed, one for each
    /// attempt. Empty for a flush that has not failed.
    pub(super) fn failed_at(&self, shards: &[ShardId]) -> Vec<ExecutorId> {
        let known = self.0.lock();
        // All shards of one flush have failed the same number of times. If a flush joins shards of
        // several earlier flushes, the shard with the most failures counts.
        let of = shards.iter().filter_map(|shard| known.get(shard));
        of.max_by_key(|executors| executors.len()).cloned().unwrap_or_default()
    }

    /// Notes that an attempt of a flush of these shards has failed.
    pub(super) fn note_failed(&self, shards: &[ShardId], executor: ExecutorId) {
        let mut known = self.0.lock();
        for shard in shards {
            known.entry(*shard).or_default().push(executor);
        }
        while known.len() > SHARDS_MAX {
            known.pop_first();
        }
    }

    /// Forgets the failures of these shards, because they were flushed or run here now.
    pub(super) fn forget(&self, shards: &[ShardId]) {
        let mut known = self.0.lock();
        if !known.is_empty() {
            shards.iter().for_each(|shard| drop(known.remove(shard)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(memtable: u64) -> ShardId {
        ShardId { memtable, shard: 2 }
    }

    #[test]
    fn failures_of_a_flush_are_known_by_any_of_its_shards() {
        let (retries, both) = (FlushRetries::default(), [id(1), id(2)]);
        assert_eq!(retries.failed_at(&both), []);
        retries.note_failed(&both, ExecutorId(7));
        assert_eq!(retries.failed_at(&[id(2), id(3)]), [ExecutorId(7)]);
        assert_eq!(retries.failed_at(&[id(3)]), []);
        retries.note_failed(&[id(1)], ExecutorId(8));
        assert_eq!(retries.failed_at(&both), [ExecutorId(7), ExecutorId(8)]);
        retries.forget(&both);
        assert_eq!(retries.failed_at(&both), []);
    }

    #[test]
    fn oldest_shards_are_forgotten_first() {
        let retries = FlushRetries::default();
        for memtable in 0..=SHARDS_MAX as u64 {
            retries.note_failed(&[id(memtable)], ExecutorId(7));
        }
        assert_eq!(retries.failed_at(&[id(0)]), []);
        assert_eq!(retries.failed_at(&[id(1)]), [ExecutorId(7)]);
    }
}
