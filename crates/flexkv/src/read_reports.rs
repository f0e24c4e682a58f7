//! Counts of reads that the local cache served, until they are reported to the proxy.
//!
//! A cache hit sends nothing, so the proxy would take a frequently read key for a cold one.
//! Therefore the node counts such reads by key ([`ReadReports::add`]). The next request for the key
//! carries its count ([`ReadReports::take`]). A count that has reached 32, or has waited too long,
//! is sent on its own ([`ReadReports::add`] and [`ReadReports::expired`] return it).
//!
//! Keys are identified by their hash. If two keys ever share a hash, the counts of one go to the
//! other, which does no harm. The slot of a count is that of its first read.
//!
//! Invariants:
//! 1. Each read is returned once or is still counted.
//! 2. At most `keys_max` keys are counted. One more key returns the oldest count.
//! 3. [`ReadReports::bytes_max`] bounds the memory.
//!
//! Thread-safety: by `&mut`.
//! Cost: amortised constant time, without allocation once the structure is full. Paper: §4.4. The
//! time limit, which the paper leaves open, is an addition.

use std::collections::{HashMap, VecDeque};

use crate::format::{KeyHash, SlotIndex};
use crate::ids::PartitionId;
use crate::keyed::HashIsKey;

/// Count at which a report is sent on its own.
pub const READS_DUE: u32 = 32;
/// Time after which a report is sent on its own, in nanoseconds.
pub const READS_WAIT_NS: u64 = 1_000_000_000;

/// Reads of a key that must be reported to the partition's proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReport {
    /// Hash of the key.
    pub hash: KeyHash,
    /// Partition of the key.
    pub partition: PartitionId,
    /// Slot of the first read.
    pub slot: SlotIndex,
    /// Number of reads.
    pub reads: u32,
}

/// The counts of a node. See the head of the module.
#[derive(Debug)]
pub struct ReadReports {
    keys_max: usize,
    wait_ns: u64,
    /// The count of each hash, and the count's number.
    counts: HashMap<u64, (ReadReport, u64), HashIsKey>,
    /// Counts by age. The entry of a count that was taken remains, and no longer matches `counts`.
    ages: VecDeque<Age>,
    begun: u64,
}

/// Time at which a count began.
#[derive(Clone, Copy, Debug)]
struct Age {
    hash: u64,
    /// Number of the count, which differs even within one tick of the clock.
    number: u64,
    since_ns: u64,
}

impl ReadReports {
    /// Counts reads of at most `keys_max` keys, and of at least one, for at most `wait_ns`.
    #[must_use]
    pub fn new(keys_max: usize, wait_ns: u64) -> Self {
        let keys_max = keys_max.max(1);
        // The map is never more than half full, so it cleans up in place and never grows.
        let counts = HashMap::with_capacity_and_hasher(2 * keys_max, HashIsKey);
        Self { keys_max, wait_ns, counts, ages: VecDeque::with_capacity(2 * keys_max), begun: 0 }
    }

    /// Bytes that the structure takes from the beginning on: the map's slots and control bytes, and
    /// the ages.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        let slot = size_of::<(u64, (ReadReport, u64))>() + 1;
        let map = (self.counts.capacity() * 8).div_ceil(7).next_power_of_two() * slot;
        (map + self.ages.capacity() * size_of::<Age>()) as u64
    }

    /// Number of keys that are counted.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.counts.len()
    }

    /// Counts a read that the cache served at `now_ns`. Returns a count that must be sent now: that
    /// of this key, or the oldest one if there was no room.
    pub fn add(
        &mut self,
        hash: KeyHash,
        partition: PartitionId,
        slot: SlotIndex,
        now_ns: u64,
    ) -> Option<ReadReport> {
        if let Some((counted, _)) = self.counts.get_mut(&hash.0) {
            counted.reads += 1;
            let due = counted.reads >= READS_DUE;
            return if due {
                self.counts.remove(&hash.0).map(|(counted, _)| counted)
            } else {
                None
            };
        }
        let room = if self.counts.len() == self.keys_max { self.oldest(u64::MAX) } else { None };
        if self.ages.len() >= 2 * self.keys_max {
            let counts = &self.counts;
            self.ages.retain(|age| Self::fits(counts, *age));
        }
        self.begun += 1;
        let counted = ReadReport { hash, partition, slot, reads: 1 };
        self.counts.insert(hash.0, (counted, self.begun));
        self.ages.push_back(Age { hash: hash.0, number: self.begun, since_ns: now_ns });
        room
    }

    /// Takes the count of a key for which a request is sent now. 0 if there is none.
    pub fn take(&mut self, hash: KeyHash) -> u32 {
        self.counts.remove(&hash.0).map_or(0, |(counted, _)| counted.reads)
    }

    /// Takes a count that has waited too long at `now_ns`. Call it until it returns `None`.
    pub fn expired(&mut self, now_ns: u64) -> Option<ReadReport> {
        self.oldest(now_ns.saturating_sub(self.wait_ns))
    }

    /// Forgets the counts of these partitions, which are in ascending order. They get other
    /// proxies, or none.
    pub fn forget(&mut self, partitions: &[PartitionId]) {
        debug_assert!(partitions.is_sorted());
        self.counts.retain(|_, (counted, _)| partitions.binary_search(&counted.partition).is_err());
    }

    /// Takes the oldest count, if it began at `since_max` or before.
    fn oldest(&mut self, since_max: u64) -> Option<ReadReport> {
        while let Some(&age) = self.ages.front() {
            if Self::fits(&self.counts, age) {
                if age.since_ns > since_max {
                    return None;
                }
                self.ages.pop_front();
                return self.counts.remove(&age.hash).map(|(counted, _)| counted);
            }
            self.ages.pop_front();
        }
        None
    }

    fn fits(counts: &HashMap<u64, (ReadReport, u64), HashIsKey>, age: Age) -> bool {
        counts.get(&age.hash).is_some_and(|(_, number)| *number == age.number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use archipelago_base::random::Rng;

    use super::*;

    const PARTITION: PartitionId = PartitionId(3);

    fn add(reads: &mut ReadReports, hash: u64, now_ns: u64) -> Option<ReadReport> {
        reads.add(KeyHash(hash), PARTITION, SlotIndex(hash as u32), now_ns)
    }

    #[test]
    fn count_is_due_at_32_reads_or_after_the_time() {
        let mut reads = ReadReports::new(10, 1_000);
        for _ in 0..5 {
            assert_eq!(add(&mut reads, 7, 100), None);
        }
        assert_eq!((reads.take(KeyHash(7)), reads.take(KeyHash(7))), (5, 0));
        for read in 1..=32 {
            let due = add(&mut reads, 7, 200);
            assert_eq!(due.map(|due| due.reads), (read == 32).then_some(32));
        }
        add(&mut reads, 8, 300);
        add(&mut reads, 9, 400);
        assert_eq!(reads.expired(1_299), None);
        let due = reads.expired(1_300).expect("waited long enough");
        assert_eq!((due.hash, due.slot, due.reads), (KeyHash(8), SlotIndex(8), 1));
        assert_eq!(reads.expired(1_300), None);
        reads.forget(&[PARTITION]);
        assert_eq!(reads.expired(u64::MAX), None);
    }

    #[test]
    fn key_above_the_limit_returns_the_oldest_count() {
        let mut reads = ReadReports::new(2, 1_000);
        add(&mut reads, 1, 10);
        add(&mut reads, 2, 20);
        add(&mut reads, 1, 30);
        let out = add(&mut reads, 3, 40).expect("room was made");
        assert_eq!((out.hash, out.reads), (KeyHash(1), 2));
        assert_eq!(reads.keys(), 2);
    }

    #[test]
    fn no_read_is_lost_and_memory_is_bounded() {
        let mut rng = Rng::with_seed(2);
        let mut reads = ReadReports::new(64, 50);
        let bytes = reads.bytes_max();
        let mut added: HashMap<u64, u32> = HashMap::new();
        let mut told: HashMap<u64, u32> = HashMap::new();
        for step in 0..100_000 {
            // A coarse clock: many reads within a tick.
            let now = step / 300 * 10;
            let hash = rng.u64(..200) * rng.u64(..2);
            match rng.u8(..10) {
                0 => *told.entry(hash).or_default() += reads.take(KeyHash(hash)),
                1 => {
                    while let Some(out) = reads.expired(now) {
                        *told.entry(out.hash.0).or_default() += out.reads;
                    }
                }
                _ => {
                    *added.entry(hash).or_default() += 1;
                    if let Some(out) = add(&mut reads, hash, now) {
                        *told.entry(out.hash.0).or_default() += out.reads;
                    }
                }
            }
            assert!(reads.keys() <= 64 && reads.bytes_max() == bytes);
        }
        for (&hash, &count) in &added {
            assert_eq!(told.get(&hash).unwrap_or(&0) + reads.take(KeyHash(hash)), count);
        }
    }
}
