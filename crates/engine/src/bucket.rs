//! Bucket maps: how a column family's key space is cut into buckets (BucketLSM §V-A).
//!
//! A map is immutable; a change makes a new map of the next epoch. Invariants:
//! 1. Boundaries are strictly ascending, and none is empty.
//! 2. Bucket `i` holds the keys from boundary `i - 1` (inclusive) to boundary `i` (exclusive). The
//!    first bucket begins at the empty key, and the last one has no end.
//! 3. There is always at least one bucket.

use archipelago_base::{Epoch, Error, Result};

use crate::key::KeyRange;

/// Most buckets that a map may have.
pub const BUCKETS_MAX: usize = 1024;

/// A map of the key space to buckets, with an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct BucketMap {
    epoch: u64,
    boundaries: Vec<Vec<u8>>,
}

impl BucketMap {
    /// The map of one bucket with epoch 0, which a column family starts with.
    #[must_use]
    pub fn single() -> Self {
        Self::default()
    }

    /// A map of `boundaries`. `InvalidArgument` if they are not strictly ascending, one is empty
    /// or there are too many.
    pub fn new(epoch: Epoch, boundaries: Vec<Vec<u8>>) -> Result<Self> {
        if boundaries.len() >= BUCKETS_MAX {
            return Err(Error::invalid(format!(
                "{} buckets are too many: at most {BUCKETS_MAX}",
                boundaries.len() + 1
            )));
        }
        let ascending = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || boundaries.first().is_some_and(Vec::is_empty) {
            return Err(Error::invalid(
                "bucket boundaries must be non-empty keys in strictly ascending order",
            ));
        }
        Ok(Self { epoch: epoch.0, boundaries })
    }

    /// Epoch of the map; later maps have larger ones.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    /// Number of buckets, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a map is never empty")]
    pub fn len(&self) -> usize {
        self.boundaries.len() + 1
    }

    /// The keys at which neighbouring buckets meet.
    #[must_use]
    pub fn boundaries(&self) -> &[Vec<u8>] {
        &self.boundaries
    }

    /// The boundaries together with `cuts`, sorted and without duplicates.
    pub(crate) fn boundaries_and(&self, cuts: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut keys = self.boundaries.clone();
        keys.extend_from_slice(cuts);
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// A finer map of the same epoch, which is cut at `cuts` too. A new memtable gets it while
    /// splits are being prepared. No version ever has it.
    pub(crate) fn finer(&self, cuts: &[Vec<u8>]) -> Result<Self> {
        Self::new(self.epoch(), self.boundaries_and(cuts))
    }

    /// Index of the bucket that holds `key`.
    #[inline]
    #[must_use]
    pub fn bucket_of(&self, key: &[u8]) -> usize {
        if self.boundaries.is_empty() {
            return 0;
        }
        self.boundaries.partition_point(|boundary| boundary.as_slice() <= key)
    }

    /// First key of bucket `index`.
    #[must_use]
    pub fn start(&self, index: usize) -> &[u8] {
        if index == 0 { &[] } else { &self.boundaries[index - 1] }
    }

    /// First key past bucket `index`; `None` for the last.
    #[must_use]
    pub fn end(&self, index: usize) -> Option<&[u8]> {
        self.boundaries.get(index).map(Vec::as_slice)
    }

    /// The key range of bucket `index`.
    #[must_use]
    pub fn range(&self, index: usize) -> KeyRange {
        KeyRange { start: self.start(index).to_vec(), end: self.end(index).map(<[u8]>::to_vec) }
    }

    /// The key range of neighbouring buckets, of which there is at least one.
    #[must_use]
    pub fn hull(&self, buckets: &std::ops::Range<usize>) -> KeyRange {
        let end = buckets.end.checked_sub(1).and_then(|last| self.end(last));
        KeyRange { start: self.start(buckets.start).to_vec(), end: end.map(<[u8]>::to_vec) }
    }

    /// The indexes of all buckets that hold keys of `range`.
    #[must_use]
    pub fn buckets_of(&self, range: &KeyRange) -> std::ops::Range<usize> {
        self.buckets_between(&range.start, range.end.as_deref())
    }

    /// The indexes of all buckets that hold keys from `start` on and below `end`.
    #[must_use]
    pub(crate) fn buckets_between(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
    ) -> std::ops::Range<usize> {
        let first = self.bucket_of(start);
        let last = match end {
            None => self.len() - 1,
            Some(end) => self.boundaries.partition_point(|boundary| boundary.as_slice() < end),
        };
        first..last.max(first) + 1
    }

    /// The map in which the buckets that hold `keys` are cut there. `InvalidArgument` if `keys` is
    /// empty or one of them does not lie strictly inside a bucket.
    pub fn split(&self, keys: &[Vec<u8>]) -> Result<Self> {
        let whole = |key: &&Vec<u8>| key.as_slice() == self.start(self.bucket_of(key));
        if let Some(key) = keys.iter().find(whole) {
            return Err(Error::invalid(format!(
                "cannot split bucket {} at \"{}\", which is its first key: name a key inside it",
                self.bucket_of(key),
                key.escape_ascii()
            )));
        }
        if keys.is_empty() {
            return Err(Error::invalid("cannot split a bucket without a key to split it at"));
        }
        Self::new(Epoch(self.epoch + 1), self.boundaries_and(keys))
    }

    /// The map with buckets `index` and `index + 1` merged. `InvalidArgument` if there is no right
    /// neighbour.
    pub fn merge(&self, index: usize) -> Result<Self> {
        if index + 1 >= self.len() {
            return Err(Error::invalid(format!(
                "cannot merge bucket {index} with its right neighbour: there are {} buckets",
                self.len()
            )));
        }
        let mut boundaries = self.boundaries.clone();
        boundaries.remove(index);
        Self::new(Epoch(self.epoch + 1), boundaries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(boundaries: &[&str]) -> BucketMap {
        BucketMap::new(Epoch(1), boundaries.iter().map(|b| b.as_bytes().to_vec()).collect())
            .expect("valid")
    }

    #[test]
    fn keys_find_their_buckets() {
        let map = map(&["g", "p"]);
        for (key, bucket) in [("", 0), ("f", 0), ("g", 1), ("o", 1), ("p", 2), ("z", 2)] {
            assert_eq!(map.bucket_of(key.as_bytes()), bucket, "{key}");
            assert!(map.range(bucket).contains(key.as_bytes()));
        }
        let range = |a: &str, b: Option<&str>| KeyRange {
            start: a.into(),
            end: b.map(|b| b.as_bytes().to_vec()),
        };
        assert_eq!(map.buckets_of(&range("a", Some("g"))), 0..1);
        assert_eq!(map.buckets_of(&range("a", Some("h"))), 0..2);
        assert_eq!(map.buckets_of(&range("g", None)), 1..3);
    }

    #[test]
    fn split_and_merge_are_inverse_and_checked() {
        let before = map(&["g", "p"]);
        let split = before.split(&[b"k".to_vec()]).expect("inside");
        assert_eq!(split.boundaries(), map(&["g", "k", "p"]).boundaries());
        assert_eq!(split.epoch(), Epoch(2));
        assert_eq!(split.merge(1).expect("inside").boundaries(), before.boundaries());
        let many = before.split(&[b"z".to_vec(), b"k".to_vec(), b"c".to_vec()]).expect("inside");
        assert_eq!(many.boundaries(), map(&["c", "g", "k", "p", "z"]).boundaries());
        assert_eq!(many.epoch(), Epoch(2), "one change");
        assert_eq!(before.finer(&[b"k".to_vec()]).expect("inside").epoch(), Epoch(1));
        assert!(before.split(&[b"g".to_vec()]).is_err());
        assert!(before.split(&[b"k".to_vec(), Vec::new()]).is_err());
        assert!(before.split(&[]).is_err());
        assert!(before.merge(2).is_err());
        assert!(BucketMap::new(Epoch(1), vec![b"b".to_vec(), b"a".to_vec()]).is_err());
    }
}
