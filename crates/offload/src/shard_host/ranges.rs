//! Free ranges of a region, and leases that return their ranges when they are dropped.
//!
//! The core owns one [`FreeRanges`] per region. A [`Lease`] is the right to use a range. A grant, a
//! copy, or an image holds it. Dropping it puts the range into the core's [`Returns`].
//!
//! Invariants:
//! 1. A range is free or belongs to exactly one lease.
//! 2. Neighbouring free ranges are joined to one range.
//!
//! Thread-safety: any thread may drop a lease; the rest belongs to the core.
//! Cost: O(free ranges) for a lease, O(log n) for a return.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::memory::RegionNo;

/// Alignment of ranges, in bytes: a cache line.
pub(super) const ALIGN_BYTES: u64 = 64;

/// The free ranges of a region.
#[derive(Debug)]
pub(super) struct FreeRanges {
    bytes: u64,
    /// Length of each free range by its start.
    free: BTreeMap<u64, u64>,
}

impl FreeRanges {
    /// A region of `bytes` that is free.
    pub(super) fn new(bytes: u64) -> Self {
        let bytes = bytes / ALIGN_BYTES * ALIGN_BYTES;
        let free = if bytes > 0 { BTreeMap::from([(0, bytes)]) } else { BTreeMap::new() };
        Self { bytes, free }
    }

    /// Takes the first range that has room for `bytes`. Returns its start.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(ALIGN_BYTES)?;
        let (&at, &len) = self.free.iter().find(|&(_, &len)| len >= bytes)?;
        self.free.remove(&at);
        if len > bytes {
            self.free.insert(at + bytes, len - bytes);
        }
        Some(at)
    }

    /// Gives back a range that was taken, or the end of such a range.
    pub(super) fn give_back(&mut self, at: u64, bytes: u64) {
        let (mut start, mut end) = (at, at + bytes.next_multiple_of(ALIGN_BYTES));
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len >= start
        {
            assert_eq!(before + len, start, "a range was given back twice");
            self.free.remove(&before);
            start = before;
        }
        if let Some((&after, &len)) = self.free.range(start..).next()
            && after <= end
        {
            assert_eq!(after, end, "a range was given back twice");
            self.free.remove(&after);
            end += len;
        }
        assert!(end <= self.bytes, "a range ends within its region");
        self.free.insert(start, end - start);
    }

    /// Whether no range is taken.
    pub(super) fn is_whole(&self) -> bool {
        self.free_bytes() == self.bytes
    }

    /// Bytes of all free ranges.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// Bytes of the longest free range.
    pub(super) fn longest(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }
}

/// A range that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Returned {
    pub(super) region: RegionNo,
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// Ranges that were given back since the core last took them.
#[derive(Clone, Default)]
pub(super) struct Returns(Arc<Mutex<Vec<Returned>>>);

impl fmt::Debug for Returns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Returns({})", self.0.lock().len())
    }
}

impl Returns {
    /// Makes a lease of a range that was taken.
    pub(super) fn lease(&self, region: RegionNo, at: u64, bytes: u64) -> Lease {
        Lease { region, at, bytes, returns: self.clone() }
    }

    /// Takes what was given back.
    pub(super) fn drain(&self) -> Vec<Returned> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The right to use a range of a region. Dropping the lease gives the range back.
#[derive(Debug)]
pub(super) struct Lease {
    region: RegionNo,
    at: u64,
    bytes: u64,
    returns: Returns,
}

impl Lease {
    /// Region of the range.
    pub(super) fn region(&self) -> RegionNo {
        self.region
    }

    /// Offset of the range within its region.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Bytes of the range.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back the end of the range, so that `bytes` are left.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let keep = bytes.next_multiple_of(ALIGN_BYTES);
        let has = self.bytes.next_multiple_of(ALIGN_BYTES);
        if keep < has {
            let (region, at) = (self.region, self.at + keep);
            self.returns.0.lock().push(Returned { region, at, bytes: has - keep });
        }
        self.bytes = self.bytes.min(bytes);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Self { region, at, bytes, .. } = *self;
        self.returns.0.lock().push(Returned { region, at, bytes });
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;

    use super::*;

    #[test]
    fn ranges_never_overlap_and_join_again() {
        let mut rng = Rng::with_seed(3);
        let (mut ranges, returns) = (FreeRanges::new(64 << 10), Returns::default());
        let mut leases: Vec<Lease> = Vec::new();
        for _ in 0..4000 {
            let bytes = rng.u64(1..5000);
            if rng.bool()
                && let Some(at) = ranges.take(bytes)
            {
                let apart =
                    |lease: &Lease| at + bytes <= lease.at() || lease.at() + lease.bytes() <= at;
                assert!(leases.iter().all(apart), "{at}+{bytes} is taken");
                leases.push(returns.lease(RegionNo(1), at, bytes));
            } else if !leases.is_empty() {
                let at = rng.usize(..leases.len());
                if rng.bool() {
                    let keep = rng.u64(1..=leases[at].bytes());
                    leases[at].shrink(keep);
                    assert_eq!(leases[at].bytes(), keep);
                } else {
                    leases.swap_remove(at);
                }
            }
            for returned in returns.drain() {
                ranges.give_back(returned.at, returned.bytes);
            }
            let used = |lease: &Lease| lease.bytes().next_multiple_of(ALIGN_BYTES);
            let used: u64 = leases.iter().map(used).sum();
            assert_eq!(ranges.free_bytes() + used, 64 << 10);
        }
        leases.clear();
        returns.drain().iter().for_each(|returned| ranges.give_back(returned.at, returned.bytes));
        assert!(ranges.is_whole() && ranges.longest() == 64 << 10);
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn range_that_is_free_cannot_be_given_back() {
        let mut ranges = FreeRanges::new(1024);
        let at = ranges.take(100).expect("room");
        ranges.give_back(at, 100);
        ranges.give_back(at, 100);
    }
}
