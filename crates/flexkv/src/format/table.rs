//! A subtable: buckets of eight slots. A key may lie in two of them.
//!
//! The bits of a key's 64-bit hash:
//!
//! | bits | use |
//! | --- | --- |
//! | 63–48 | partition: the first x of these bits (x ≤ 16, by default 13) |
//! | 47–40 | fingerprint |
//! | 39–20 | second bucket: its distance after the first |
//! | 19–0 | first bucket: the low bits |
//!
//! A subtable is one piece of the pool, with slot `i` at byte `8·i`. It grows by doubling, unless
//! few of its slots are in use (`growth.rs`). [`regrow`] places every key again, because a slot has
//! too few bits of the hash to tell where its key goes. The second bucket is no function of the old
//! one. An insert prefers the emptier bucket. This fills a subtable to some nine tenths before a
//! key finds no place.
//!
//! Invariants:
//! 1. The three uses share no bit. So the keys of one partition spread over its buckets, and over
//!    the fingerprints within a bucket.
//! 2. The two buckets differ whenever the subtable has two.
//! 3. Every client computes the same places from the same hash and number of buckets. The places of
//!    a key are its **canonical order**: first bucket before second, and slot 0 before slot 7.
//!
//! Thread-safety: values.
//! Cost: a look-up takes two reads of 64 bytes. Paper: §4.2 (first x bits), §4.5 (buckets,
//! fingerprints). The division of the hash, the eight slots and the two buckets are additions,
//! after what such tables have in common.

use super::slot::{Slot, UNIT_BYTES};
use crate::ids::PartitionId;

/// Number of slots in a bucket.
pub const BUCKET_SLOTS: usize = 8;
/// Bytes of a bucket.
pub const BUCKET_BYTES: usize = UNIT_BYTES as usize;
/// Default of x, as in the paper: 8,192 partitions.
pub const PARTITION_BITS_DEFAULT: u32 = 13;
/// Largest value of x.
pub const PARTITION_BITS_MAX: u32 = 16;

/// Bits of the hash for each of the two buckets.
pub(super) const BUCKET_BITS: u32 = 20;
/// Seed of the hash. It is part of the format, so another seed is another version.
const SEED: u64 = 0x4152_4348_464c_4558;

/// The hash of a key, as records and partitions use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

/// The hash of a key: XXH3-64 with the format's seed.
#[inline]
#[must_use]
pub fn key_hash(key: &[u8]) -> KeyHash {
    KeyHash(twox_hash::XxHash3_64::oneshot_with_seed(SEED, key))
}

/// A key with its hash, which is computed once per call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashedKey<'a> {
    pub(crate) hash: KeyHash,
    pub(crate) key: &'a [u8],
}

impl KeyHash {
    /// The part of the hash that a slot holds.
    #[inline]
    #[must_use]
    pub fn fingerprint(self) -> u8 {
        (self.0 >> (2 * BUCKET_BITS)) as u8
    }

    /// The two buckets of the key among 2^`log2_buckets`. Equal only if there is one.
    #[inline]
    #[must_use]
    pub fn buckets(self, log2_buckets: u32) -> [u32; 2] {
        debug_assert!(log2_buckets <= BUCKET_BITS);
        let mask = (1u64 << log2_buckets) - 1;
        let first = self.0 & mask;
        if mask == 0 {
            return [0, 0];
        }
        // The second bucket lies 1 to n−1 buckets after the first. Each distance is equally likely.
        let behind =
            1 + (((self.0 >> BUCKET_BITS & ((1 << BUCKET_BITS) - 1)) * mask) >> BUCKET_BITS);
        [first as u32, ((first + behind) & mask) as u32]
    }
}

/// The number of partitions of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    partition_bits: u32,
}

impl Geometry {
    /// A geometry of 2^`partition_bits` partitions. `None` above [`PARTITION_BITS_MAX`].
    #[must_use]
    pub fn new(partition_bits: u32) -> Option<Self> {
        (partition_bits <= PARTITION_BITS_MAX).then_some(Self { partition_bits })
    }

    /// Base-2 logarithm of the number of partitions, which is the paper's x.
    #[must_use]
    pub fn partition_bits(self) -> u32 {
        self.partition_bits
    }

    /// Number of partitions.
    #[must_use]
    pub fn partitions(self) -> u32 {
        1 << self.partition_bits
    }

    /// The partition of a key.
    #[inline]
    #[must_use]
    pub fn partition(self, hash: KeyHash) -> PartitionId {
        // A store with one partition would shift by 64 bits, for which `checked_shr` returns
        // `None`.
        PartitionId(hash.0.checked_shr(64 - self.partition_bits).unwrap_or(0) as u32)
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Self { partition_bits: PARTITION_BITS_DEFAULT }
    }
}

/// Index of a slot in its subtable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u32);

impl SlotIndex {
    /// Slot `at` of a bucket.
    #[must_use]
    pub fn new(bucket: u32, at: usize) -> Self {
        Self(bucket * BUCKET_SLOTS as u32 + at as u32)
    }

    /// Bytes from the subtable's beginning.
    #[must_use]
    pub fn offset(self) -> u64 {
        u64::from(self.0) * 8
    }

    /// The bucket of the slot.
    #[must_use]
    pub fn bucket(self) -> u32 {
        self.0 / BUCKET_SLOTS as u32
    }
}

/// The slots of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket(pub [Slot; BUCKET_SLOTS]);

impl Bucket {
    /// Decodes the bytes of a bucket in the pool.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; BUCKET_BYTES]) -> Self {
        let mut bucket = Self::default();
        for (slot, word) in bucket.0.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *slot = Slot(u64::from_le_bytes(*word));
        }
        bucket
    }

    /// The bytes of the bucket in the pool.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BUCKET_BYTES] {
        let mut bytes = [0; BUCKET_BYTES];
        for (word, slot) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&self.0) {
            *word = slot.0.to_le_bytes();
        }
        bytes
    }

    /// Number of slots that name records.
    #[must_use]
    pub fn live(&self) -> usize {
        self.0.iter().filter(|slot| slot.is_live()).count()
    }
}

/// The places of a key as they were read, in canonical order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidates {
    numbers: [u32; 2],
    buckets: [Bucket; 2],
    /// Number of different buckets, which is 1 or 2.
    count: usize,
}

impl Candidates {
    /// The places in the buckets that [`KeyHash::buckets`] names.
    #[must_use]
    pub fn new(numbers: [u32; 2], buckets: [Bucket; 2]) -> Self {
        Self { numbers, buckets, count: if numbers[0] == numbers[1] { 1 } else { 2 } }
    }

    /// All places, in canonical order: 16, or 8 if there is one bucket.
    pub fn all(&self) -> impl Iterator<Item = (SlotIndex, Slot)> + '_ {
        (0..self.count).flat_map(|which| self.of(which))
    }

    /// The places whose key may have the fingerprint.
    pub fn matching(&self, fingerprint: u8) -> impl Iterator<Item = (SlotIndex, Slot)> + '_ {
        self.all().filter(move |(_, slot)| slot.matches(fingerprint))
    }

    /// The places that an insert may take at `now_us` of the owner's clock, in the order of
    /// [`free`](Self::free). A new owner asks
    /// [`SlotLease::may_reuse`](crate::lease::SlotLease::may_reuse) instead.
    pub fn reusable(
        &self,
        now_us: u64,
        lease_us: u64,
    ) -> impl Iterator<Item = (SlotIndex, Slot)> + '_ {
        self.free(move |slot| slot.is_reusable(now_us, lease_us))
    }

    /// Whether at least half of the slots name records. A key that finds no place then needs a
    /// larger subtable. Otherwise the key must wait, because the other slots were deleted recently.
    /// Without this rule, a key that is deleted and set again and again would make its subtable
    /// grow without end.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        let (slots, named) = self.all().fold((0, 0), |(slots, named), (_, slot)| {
            (slots + 1, named + usize::from(slot.is_live() || slot.is_pending()))
        });
        2 * named >= slots
    }

    /// The places that `may_take` allows, in the order in which an insert should try them. The
    /// emptier bucket comes first, and the first bucket if both are equally full.
    pub fn free<'a>(
        &'a self,
        may_take: impl Fn(Slot) -> bool + 'a,
    ) -> impl Iterator<Item = (SlotIndex, Slot)> + 'a {
        let second = self.count == 2 && self.buckets[1].live() < self.buckets[0].live();
        let order = if second { [1, 0] } else { [0, 1] };
        let order = order.into_iter().take(self.count);
        order.flat_map(|which| self.of(which)).filter(move |(_, slot)| may_take(*slot))
    }

    fn of(&self, which: usize) -> impl Iterator<Item = (SlotIndex, Slot)> + '_ {
        let number = self.numbers[which];
        let slots = self.buckets[which].0.iter().enumerate();
        slots.map(move |(at, &slot)| (SlotIndex::new(number, at), slot))
    }
}

/// A subtable of 2^`log2_buckets` buckets with all `entries`, which are hashes and live slots.
/// `None` if an entry finds no place, so that the subtable needs another doubling. The same entries
/// in the same order give the same subtable.
pub fn regrow(
    entries: impl IntoIterator<Item = (KeyHash, Slot)>,
    log2_buckets: u32,
) -> Option<Vec<Bucket>> {
    let mut buckets = vec![Bucket::default(); 1 << log2_buckets];
    for (hash, slot) in entries {
        debug_assert!(slot.is_live(), "what was deleted is left behind");
        let numbers = hash.buckets(log2_buckets);
        let images = numbers.map(|number| buckets[number as usize]);
        let (place, _) = Candidates::new(numbers, images).reusable(0, 0).next()?;
        buckets[place.bucket() as usize].0[place.0 as usize % BUCKET_SLOTS] = slot;
    }
    Some(buckets)
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;
    use proptest::prelude::*;

    use super::*;

    fn live(number: u64) -> Slot {
        let fingerprint = KeyHash(number).fingerprint();
        Slot::live(number & 0xffff_ffff, 64, fingerprint).expect("fits")
    }

    #[test]
    fn the_hash_and_its_cut_do_not_change() {
        assert_eq!(key_hash(b"").0, 0xff89_0f1f_1202_d709);
        assert_eq!(key_hash(b"reef").0, 0x23ab_429e_8ee8_e8fc);
        let hash = KeyHash(0xfedc_ab12_3456_789a);
        assert_eq!(Geometry::default().partition(hash), PartitionId(0xfedc >> 3));
        assert_eq!(Geometry::new(0).expect("0").partition(hash), PartitionId(0));
        assert_eq!(Geometry::new(16).expect("16").partition(hash), PartitionId(0xfedc));
        assert_eq!(Geometry::new(17), None);
        assert_eq!(hash.fingerprint(), 0xab);
        assert_eq!(hash.buckets(0), [0, 0]);
        assert_eq!(hash.buckets(1), [0, 1]);
        // The distance is 1 + ⌊255 · 0x12345 / 2^20⌋ = 19.
        assert_eq!(hash.buckets(8), [0x9a, 0x9a + 19]);
        assert_eq!(SlotIndex::new(3, 5).offset(), 3 * 64 + 40);
    }

    #[test]
    fn a_bucket_is_read_as_it_was_written() {
        let mut bucket = Bucket::default();
        bucket.0[1] = Slot(0x0807_0605_0403_0201);
        bucket.0[7] = Slot(1 << 63);
        let bytes = bucket.to_bytes();
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[63], 0x80);
        assert_eq!(Bucket::from_bytes(&bytes), bucket);
    }

    #[test]
    fn insert_prefers_emptier_bucket_in_canonical_order() {
        let mut buckets = [Bucket::default(); 2];
        buckets[0].0[0] = live(1);
        buckets[0].0[1] = Slot::deleted(500, 1);
        let both = Candidates::new([9, 4], buckets);
        let order: Vec<u32> = both.all().map(|(at, _)| at.0).collect();
        assert_eq!(order, (72..80).chain(32..40).collect::<Vec<_>>());
        let free: Vec<u32> = both.reusable(600, 200).map(|(at, _)| at.0).collect();
        assert_eq!(free, (32..40).chain(74..80).collect::<Vec<_>>(), "the deleted one is young");
        assert_eq!(both.reusable(701, 200).nth(8).expect("old enough").0, SlotIndex(73));
        let owner = crate::lease::SlotLease::new(1, 1_000, 200_000);
        let of_a_new_owner = both.free(|slot| owner.may_reuse(slot, 1_001));
        assert!(!of_a_new_owner.into_iter().any(|(at, _)| at == SlotIndex(73)), "it waits a lease");
        let one = Candidates::new([0, 0], [buckets[0]; 2]);
        assert_eq!(one.all().count(), 8, "one bucket is not counted twice");
        assert_eq!(both.matching(live(1).0 as u8).collect::<Vec<_>>(), [(SlotIndex(72), live(1))]);
    }

    #[test]
    fn recently_deleted_slots_do_not_crowd() {
        let mut buckets = [Bucket([Slot::deleted(500, 1); 8]); 2];
        for number in 0..7 {
            buckets[number as usize % 2].0[number as usize] = live(number);
        }
        let seven = Candidates::new([9, 4], buckets);
        assert!(!seven.is_crowded() && seven.reusable(600, 200).next().is_none());
        buckets[1].0[7] = live(7);
        assert!(Candidates::new([9, 4], buckets).is_crowded(), "eight of sixteen");
    }

    #[test]
    fn subtable_fills_well_before_it_doubles() {
        for (seed, log2) in [(1, 4), (2, 6), (3, 9)] {
            let mut rng = Rng::with_seed(seed);
            let mut keys: Vec<(KeyHash, Slot)> = Vec::new();
            while regrow(keys.iter().copied(), log2).is_some() {
                let hash = rng.u64(..);
                keys.push((KeyHash(hash), live(hash)));
            }
            let filled = keys.len() as f64 / f64::from(8 << log2);
            assert!(filled > 0.7, "2^{log2} buckets were full at {filled:.2}");
            let doubled = regrow(keys.iter().copied(), log2 + 1).expect("half empty");
            assert_eq!(doubled.iter().map(Bucket::live).sum::<usize>(), keys.len());
        }
    }

    #[test]
    fn one_bucket_takes_eight_and_asks_for_more() {
        let entries = |n: u64| (0..n).map(|n| (KeyHash(n << 20 | n), live(n)));
        assert!(regrow(entries(8), 0).is_some());
        assert!(regrow(entries(9), 0).is_none());
        assert!(regrow(entries(9), 1).is_some());
    }

    proptest! {
        #[test]
        fn two_buckets_differ_and_lie_within(hash: u64, log2 in 1u32..=BUCKET_BITS) {
            let [first, second] = KeyHash(hash).buckets(log2);
            prop_assert_ne!(first, second);
            prop_assert!(u64::from(first.max(second)) < 1 << log2);
        }

        #[test]
        fn whatever_is_placed_again_is_found_by_its_hash(seed: u64, count in 0usize..200) {
            let mut rng = Rng::with_seed(seed);
            let keys: Vec<u64> = (0..count).map(|_| rng.u64(..)).collect();
            let mut log2 = 0;
            let buckets = loop {
                if let Some(buckets) = regrow(keys.iter().map(|&key| (KeyHash(key), live(key))), log2) {
                    break buckets;
                }
                log2 += 1;
            };
            prop_assert_eq!(buckets.len(), 1 << log2);
            for key in keys {
                let numbers = KeyHash(key).buckets(log2);
                let images = numbers.map(|number| buckets[number as usize]);
                let found = Candidates::new(numbers, images);
                let mut matching = found.matching(KeyHash(key).fingerprint());
                prop_assert!(matching.any(|(_, slot)| slot == live(key)));
            }
        }
    }
}
