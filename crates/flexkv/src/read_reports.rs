//! Reads that were served from the local cache, until their proxy hears of them.
//!
//! A hit in the cache sends nothing, so the proxy would take a key that is read all the time for a
//! cold one. The client counts such reads by key ([`Reads::add`]); the next request for the key
//! takes the count along ([`Reads::take`]); a count that reached 32, or waited too long, is sent on
//! its own ([`Reads::add`] and [`Reads::expired`] hand it out).
//!
//! Invariants: 1. a read is handed out once, or is still counted; none is lost. 2. At most
//! `keys_max` keys are counted: one more hands out the oldest.
//! 3. [`Reads::bytes_max`] bounds the memory.
//!
//! Keys are told apart by their hash; should two ever share one, the counts of one go to the other,
//! which harms nothing. Where a key's slot is, is that of the first read of the count.
//!
//! Cost: O(1) amortised; no allocation once it is full. Thread-safety: by `&mut`. Paper: §4.4; the
//! time, which it leaves open, is ours.

use std::collections::{HashMap, VecDeque};

use crate::format::{KeyHash, SlotIndex};
use crate::ids::PartitionId;
use crate::keyed::HashIsKey;

/// A count that reached this is sent on its own.
pub const READS_DUE: u32 = 32;
/// A count that waited for this long is sent on its own.
pub const READS_WAIT_NS: u64 = 1_000_000_000;

/// Reads of a key, to be told to the partition's proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Of the key.
    pub hash: KeyHash,
    /// In which partition.
    pub partition: PartitionId,
    /// In which slot.
    pub slot: SlotIndex,
    /// How many.
    pub reads: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Reads {
    keys_max: usize,
    wait_ns: u64,
    /// By hash: the count, and its number.
    counts: HashMap<u64, (Counted, u64), HashIsKey>,
    /// By age. A key that was taken since leaves its entry behind, which no longer fits.
    ages: VecDeque<Age>,
    begun: u64,
}

/// When a count began.
#[derive(Clone, Copy, Debug)]
struct Age {
    hash: u64,
    /// Which count: also told apart within a tick.
    number: u64,
    since_ns: u64,
}

impl Reads {
    /// Counts for at most `keys_max` keys, at least 1, for at most `wait_ns`.
    #[must_use]
    pub fn new(keys_max: usize, wait_ns: u64) -> Self {
        let keys_max = keys_max.max(1);
        // Never more than half full, so that it cleans up in place and never grows.
        let counts = HashMap::with_capacity_and_hasher(2 * keys_max, HashIsKey);
        Self { keys_max, wait_ns, counts, ages: VecDeque::with_capacity(2 * keys_max), begun: 0 }
    }

    /// The bytes that it takes, from the beginning on: the map's slots and control bytes, and the
    /// ages.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        let slot = size_of::<(u64, (Counted, u64))>() + 1;
        let map = (self.counts.capacity() * 8).div_ceil(7).next_power_of_two() * slot;
        (map + self.ages.capacity() * size_of::<Age>()) as u64
    }

    /// How many keys are counted.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.counts.len()
    }

    /// A read was served from the cache at `now_ns`. Returns what is to be sent now: this key's
    /// count, or the oldest one that had to make room.
    pub fn add(
        &mut self,
        hash: KeyHash,
        partition: PartitionId,
        slot: SlotIndex,
        now_ns: u64,
    ) -> Option<Counted> {
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
        let counted = Counted { hash, partition, slot, reads: 1 };
        self.counts.insert(hash.0, (counted, self.begun));
        self.ages.push_back(Age { hash: hash.0, number: self.begun, since_ns: now_ns });
        room
    }

    /// The count of a key for which a request is sent now anyway; 0 if there is none.
    pub fn take(&mut self, hash: KeyHash) -> u32 {
        self.counts.remove(&hash.0).map_or(0, |(counted, _)| counted.reads)
    }

    /// A count that has waited too long at `now_ns`; ask until there is none.
    pub fn expired(&mut self, now_ns: u64) -> Option<Counted> {
        self.oldest(now_ns.saturating_sub(self.wait_ns))
    }

    /// Forgets the counts of these partitions, which are in order: they have other proxies, or
    /// none.
    pub fn forget(&mut self, partitions: &[PartitionId]) {
        debug_assert!(partitions.is_sorted());
        self.counts.retain(|_, (counted, _)| partitions.binary_search(&counted.partition).is_err());
    }

    /// Takes the oldest count, if it began at `since_max` or before.
    fn oldest(&mut self, since_max: u64) -> Option<Counted> {
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

    fn fits(counts: &HashMap<u64, (Counted, u64), HashIsKey>, age: Age) -> bool {
        counts.get(&age.hash).is_some_and(|(_, number)| *number == age.number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use archipelago_base::random::Rng;

    use super::*;

    const PARTITION: PartitionId = PartitionId(3);

    fn add(reads: &mut Reads, hash: u64, now_ns: u64) -> Option<Counted> {
        reads.add(KeyHash(hash), PARTITION, SlotIndex(hash as u32), now_ns)
    }

    #[test]
    fn a_count_goes_along_is_due_at_32_or_after_a_time() {
        let mut reads = Reads::new(10, 1_000);
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
    fn one_key_too_many_hands_out_the_oldest() {
        let mut reads = Reads::new(2, 1_000);
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
        let mut reads = Reads::new(64, 50);
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
