//! The times at which appends of a log were submitted, until they are acknowledged.
//!
//! Invariant: the oldest appends are noted. If too many are not acknowledged, the time of the next
//! one is not known.
//!
//! Thread-safety: none; the lock of the writer guards the value.
//! Cost: O(1) per append, without an allocation.

use std::collections::VecDeque;

/// Limit of the appends that are noted. Groups of writes leave few appends of a log open.
const NOTED_MAX: usize = 256;

/// The submission of an append.
#[derive(Clone, Copy, Debug)]
struct Submission {
    /// Offset in the log after the last byte.
    end: u64,
    at_ns: u64,
}

/// The submissions of appends that are not acknowledged, in the order of their offsets.
#[derive(Debug)]
pub(super) struct AppendTimes(VecDeque<Submission>);

impl Default for AppendTimes {
    fn default() -> Self {
        Self(VecDeque::with_capacity(NOTED_MAX))
    }
}

impl AppendTimes {
    /// Notes an append that ends at `end`.
    pub(super) fn submitted(&mut self, end: u64, at_ns: u64) {
        if self.0.len() < NOTED_MAX {
            self.0.push_back(Submission { end, at_ns });
        }
    }

    /// Takes the oldest append if it is acknowledged through `end`. Returns the time of its
    /// submission.
    pub(super) fn take_acknowledged(&mut self, end: u64) -> Option<u64> {
        let first = self.0.front().filter(|first| first.end <= end)?.at_ns;
        self.0.pop_front();
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_takes_all_appends_that_it_covers() {
        let mut times = AppendTimes::default();
        for end in 1..=3 {
            times.submitted(end * 10, end);
        }
        assert_eq!(times.take_acknowledged(9), None);
        assert_eq!(times.take_acknowledged(25), Some(1));
        assert_eq!(times.take_acknowledged(25), Some(2));
        assert_eq!(times.take_acknowledged(25), None);
        assert_eq!(times.take_acknowledged(30), Some(3));
    }

    #[test]
    fn appends_beyond_the_limit_take_no_memory() {
        let mut times = AppendTimes::default();
        let capacity = times.0.capacity();
        for end in 1..=2 * NOTED_MAX as u64 {
            times.submitted(end, end);
        }
        assert_eq!((times.0.len(), times.0.capacity()), (NOTED_MAX, capacity));
        let taken = std::iter::from_fn(|| times.take_acknowledged(u64::MAX));
        assert!(taken.eq(1..=NOTED_MAX as u64), "the oldest ones are noted");
    }
}
