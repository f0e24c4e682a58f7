//! Snapshot stripes: the intervals of sequence numbers between which no reader looks.
//!
//! With snapshots `s1 < s2 < … < sn` and a job's `visible` sequence number, stripe `i` holds the
//! sequence numbers in `(s(i-1), s(i)]`. The last stripe ends at `visible`. Invariants:
//! 1. Every present and future reader looks at the upper end of a stripe or above `visible`. So
//!    within one stripe only the newest version of a key matters.
//! 2. Above `visible` writes are being published, and a reader may look at any point. So everything
//!    there is kept.
//!
//! The owner must read `visible` *before* it lists the snapshots. Then the list has every snapshot
//! that was taken in between, and a later snapshot is at or above `visible`.

use archipelago_base::SeqNo;

/// The stripes of one job. A query costs a binary search over the snapshots, or one comparison for
/// records older than all of them.
#[derive(Clone, Debug)]
pub struct Stripes {
    /// Upper ends, ascending; the last is `visible`.
    uppers: Vec<SeqNo>,
}

impl Stripes {
    /// Stripes between `snapshots` (in any order) up to `visible`. Snapshots above `visible` make
    /// no stripes, because everything there is kept.
    #[must_use]
    pub fn new(snapshots: &[u64], visible: SeqNo) -> Self {
        let mut uppers: Vec<SeqNo> =
            snapshots.iter().map(|&s| SeqNo(s)).filter(|&s| s <= visible).collect();
        uppers.sort_unstable();
        uppers.dedup();
        if uppers.last() != Some(&visible) {
            uppers.push(visible);
        }
        Self { uppers }
    }

    /// The stripe of `seq`; `None` above `visible`.
    #[inline]
    #[must_use]
    pub fn of(&self, seq: SeqNo) -> Option<usize> {
        if seq <= self.uppers[0] {
            return Some(0);
        }
        let at = self.uppers.partition_point(|&upper| upper < seq);
        (at < self.uppers.len()).then_some(at)
    }

    /// The sequence number at which readers see stripe `at`.
    #[inline]
    #[must_use]
    pub fn upper(&self, at: usize) -> SeqNo {
        self.uppers[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_end_at_snapshots_and_at_visible() {
        let stripes = Stripes::new(&[20, 10, 10, 99], SeqNo(30));
        let of = |seq| stripes.of(SeqNo(seq));
        assert_eq!(
            [of(1), of(10), of(11), of(20), of(21), of(30)].map(Option::unwrap),
            [0, 0, 1, 1, 2, 2]
        );
        assert_eq!(of(31), None);
        let none = Stripes::new(&[], SeqNo(0));
        assert_eq!((none.of(SeqNo(0)), none.of(SeqNo(1))), (Some(0), None));
    }
}
