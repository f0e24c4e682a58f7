//! The sliding window: the content of the last sealed memtables, by key.
//!
//! A seal is kept as a few dozen of its keys in order, not as one number per bucket. Each key
//! stands for an equal share of the bytes of its shard. So a window does not depend on bucket maps.
//! After a split or a merge, the new map counts the same keys. (In BucketLSM each half of a split
//! inherits half; here it is measured.) A memtable that was created with an older map counts where
//! its keys belong now. The median of a bucket is available.
//!
//! The bytes of a shard are exact; their distribution within the shard follows the number of
//! entries. With values of different sizes the first split of a bucket may miss the middle; later
//! seals correct it.
//!
//! Cost: some hundred keys per seal, [`WINDOW_SEALS`] seals per family; counting is one pass.

use std::collections::VecDeque;

use crate::bucket::BucketMap;
use crate::key::KeyRange;

/// Number of seals that a window remembers. No decision is made before it has half of them. A
/// simulation chose the number (`docs/decisions/0008-bucket-rebalancing.md`): a smaller one follows
/// noise, a larger one follows a moving load too late.
pub const WINDOW_SEALS: usize = 8;

/// Number of samples of one seal, over all of its shards: smallest, largest, and for each bucket.
const SAMPLES_MIN: usize = 64;
const SAMPLES_MAX: usize = 1024;
const SAMPLES_PER_BUCKET: usize = 8;

/// Content of one sealed memtable: keys in ascending order, each with the bytes that it stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealSample {
    keys: Vec<(Vec<u8>, u64)>,
}

impl SealSample {
    /// A seal without any bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of keys to sample from a shard with `bytes` of the memtable's `total`, if there are
    /// `buckets`.
    #[must_use]
    pub fn keys_wanted(buckets: usize, bytes: u64, total: u64) -> usize {
        let all = (buckets.saturating_mul(SAMPLES_PER_BUCKET)).clamp(SAMPLES_MIN, SAMPLES_MAX);
        let share = u128::from(bytes) * all as u128 / u128::from(total.max(1));
        (share as usize).clamp(1, SAMPLES_MAX)
    }

    /// Adds a shard of `bytes`. Each of `keys` stands for an equal part of them. The keys ascend,
    /// and none is smaller than those of the previous shard.
    pub fn add_shard(&mut self, keys: Vec<Vec<u8>>, bytes: u64) {
        let count = keys.len() as u64;
        for (index, key) in (0u64..).zip(keys) {
            // The first keys get the remainder.
            let part = bytes / count + u64::from(index < bytes % count);
            self.keys.push((key, part));
        }
    }

    /// The keys within `range`, with their bytes.
    fn within(&self, range: &KeyRange) -> &[(Vec<u8>, u64)] {
        let from = self.keys.partition_point(|(key, _)| *key < range.start);
        let to = match &range.end {
            Some(end) => self.keys.partition_point(|(key, _)| key < end),
            None => self.keys.len(),
        };
        &self.keys[from..to.max(from)]
    }

    fn bytes(&self) -> u64 {
        sum(&self.keys)
    }
}

fn sum(keys: &[(Vec<u8>, u64)]) -> u64 {
    keys.iter().map(|(_, bytes)| bytes).sum()
}

/// The key at which half of the bytes of `weighted` (ascending) are reached.
fn median<'a>(weighted: impl IntoIterator<Item = (&'a [u8], u64)> + Clone) -> Option<&'a [u8]> {
    let total: u64 = weighted.clone().into_iter().map(|(_, bytes)| bytes).sum();
    let mut passed = 0;
    weighted.into_iter().find_map(|(key, bytes)| {
        passed += bytes;
        (bytes > 0 && passed * 2 >= total).then_some(key)
    })
}

/// The last seals of a family, oldest first.
#[derive(Clone, Debug)]
pub struct Window {
    seals: VecDeque<SealSample>,
    width: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self::of_width(WINDOW_SEALS)
    }
}

impl Window {
    /// A window of another width than [`WINDOW_SEALS`], for simulations.
    #[must_use]
    pub fn of_width(width: usize) -> Self {
        Self { seals: VecDeque::with_capacity(width), width: width.max(1) }
    }

    /// Adds a seal and drops the oldest one beyond the width. A seal without bytes is ignored.
    pub fn push(&mut self, seal: SealSample) {
        if seal.bytes() == 0 {
            return;
        }
        if self.seals.len() == self.width {
            self.seals.pop_front();
        }
        self.seals.push_back(seal);
    }

    /// Number of seals in the window.
    #[must_use]
    pub fn seals(&self) -> usize {
        self.seals.len()
    }

    /// Whether the window has enough seals for a decision.
    #[must_use]
    pub fn is_telling(&self) -> bool {
        self.seals.len() * 2 >= self.width
    }

    /// Bytes of every bucket of `map` (`F_W(B_i)`).
    #[must_use]
    pub fn bytes_by_bucket(&self, map: &BucketMap) -> Vec<u64> {
        let mut bytes = vec![0; map.len()];
        for seal in &self.seals {
            let mut rest = seal.keys.as_slice();
            for (bucket, sum_of) in bytes.iter_mut().enumerate() {
                let here = match map.end(bucket) {
                    Some(end) => rest.partition_point(|(key, _)| key.as_slice() < end),
                    None => rest.len(),
                };
                *sum_of += sum(&rest[..here]);
                rest = &rest[here..];
            }
        }
        bytes
    }

    /// Bytes of the keys in `range`, over all seals.
    #[must_use]
    pub fn bytes_in(&self, range: &KeyRange) -> u64 {
        self.seals.iter().map(|seal| sum(seal.within(range))).sum()
    }

    /// The median of the medians of the seals in `range`, each weighted by its bytes there.
    #[must_use]
    pub fn median_of_medians(&self, range: &KeyRange) -> Option<&[u8]> {
        let mut medians: Vec<(&[u8], u64)> = self
            .seals
            .iter()
            .filter_map(|seal| {
                let keys = seal.within(range);
                let weighted = keys.iter().map(|(key, bytes)| (key.as_slice(), *bytes));
                Some((median(weighted)?, sum(keys)))
            })
            .collect();
        medians.sort_unstable();
        median(medians.iter().copied())
    }

    /// The bytes in `range` that `key` would share out among two buckets *at the same time*. It is
    /// the sum of the lesser side of each seal, without the seal that adds most: keys in order
    /// cross any key in one seal, which may be larger than the others. At best it is near half of
    /// all bytes. It is 0 if keys arrive in order, because then every other seal lies on one side.
    #[must_use]
    pub fn bytes_shared_out(&self, range: &KeyRange, key: &[u8]) -> u64 {
        let lesser = |seal: &SealSample| {
            let keys = seal.within(range);
            let left = sum(&keys[..keys.partition_point(|(at, _)| at.as_slice() < key)]);
            left.min(sum(keys) - left)
        };
        let (sum, most) = self
            .seals
            .iter()
            .map(lesser)
            .fold((0, 0), |(sum, most), bytes| (sum + bytes, bytes.max(most)));
        sum - most
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;

    use super::*;

    fn seal(keys: &[&str], bytes: u64) -> SealSample {
        let mut seal = SealSample::new();
        seal.add_shard(keys.iter().map(|key| key.as_bytes().to_vec()).collect(), bytes);
        seal
    }

    fn map(boundaries: &[&str]) -> BucketMap {
        let boundaries = boundaries.iter().map(|b| b.as_bytes().to_vec()).collect();
        BucketMap::new(Epoch(1), boundaries).expect("valid")
    }

    #[test]
    fn the_same_seals_are_counted_by_whatever_map_there_is() {
        let mut window = Window::of_width(2);
        window.push(seal(&["a", "c", "e", "g"], 40));
        window.push(seal(&["c", "d"], 11));
        assert_eq!(window.bytes_by_bucket(&map(&[])), [51]);
        assert_eq!(window.bytes_by_bucket(&map(&["d"])), [26, 25]);
        assert_eq!(window.bytes_by_bucket(&map(&["c", "d", "z"])), [10, 16, 25, 0]);
        window.push(seal(&["x"], 7));
        assert_eq!(window.bytes_by_bucket(&map(&["d"])), [6, 12], "the oldest seal went");
        window.push(SealSample::new());
        assert_eq!(window.seals(), 2, "a seal of nothing is none");
    }

    #[test]
    fn medians_are_by_bytes_and_shares_by_seal() {
        let mut window = Window::default();
        window.push(seal(&["a", "b", "c", "d"], 400));
        window.push(seal(&["b", "c", "d", "e"], 400));
        window.push(seal(&["z"], 1));
        let all = KeyRange::all();
        assert_eq!(window.median_of_medians(&all), Some(&b"c"[..]));
        assert_eq!(window.bytes_shared_out(&all, b"c"), 100, "not the 200 of the first seal");
        let part = KeyRange { start: b"d".to_vec(), end: Some(b"z".to_vec()) };
        assert_eq!(window.median_of_medians(&part), Some(&b"d"[..]));
        let none = KeyRange { start: b"f".to_vec(), end: Some(b"g".to_vec()) };
        assert_eq!(window.median_of_medians(&none), None);
        // In order: each seal lies on one side of any key.
        let mut window = Window::default();
        window.push(seal(&["a", "b"], 10));
        window.push(seal(&["c", "d", "e", "f"], 1000));
        window.push(seal(&["g", "h"], 10));
        assert_eq!(window.bytes_shared_out(&all, b"e"), 0);
    }
}
