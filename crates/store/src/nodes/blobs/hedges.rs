//! The budget of hedges: how many requests a client may send beyond those that its reads need.
//!
//! Hedges at the 95th percentile are few only while two conditions hold. The network has room:
//! on a full card each hedge makes all other answers later, so that more of them are hedged. And
//! the percentile is right: the time of a call that loses to a hedge is unknown, which lowers the
//! percentile further with each hedge. So a read *earns* a tenth of a request, and a hedge *takes*
//! as many as it sends. A read for which nothing is left waits [`PATIENCE_FACTOR`] times as long,
//! and then hedges anyway, because its node may have stopped.
//!
//! Invariant: hedges that took from the budget are at most [`BURST`] requests and a tenth of the
//! reads.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: one atomic operation per read and per hedge.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of reads that earn one request.
const READS_PER_REQUEST: u64 = 10;
/// Number of requests that can be saved up. It covers the first reads from a node that has stopped.
const BURST: u64 = 64;
/// A read waits this number of usual times if the budget has nothing left.
pub(super) const PATIENCE_FACTOR: u32 = 4;

/// Requests that hedges may still send, in tenths.
#[derive(Debug)]
pub(super) struct HedgeBudget(AtomicU64);

impl Default for HedgeBudget {
    fn default() -> Self {
        Self(AtomicU64::new(BURST * READS_PER_REQUEST))
    }
}

impl HedgeBudget {
    /// Counts a read.
    pub(super) fn earn(&self) {
        let raise = |tenths: u64| (tenths < BURST * READS_PER_REQUEST).then_some(tenths + 1);
        // A full budget stays as it is.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// Takes `requests` for a hedge. Returns whether so many were left.
    pub(super) fn take(&self, requests: u64) -> bool {
        let lower = |tenths: u64| tenths.checked_sub(requests * READS_PER_REQUEST);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedges_send_a_burst_and_then_a_tenth_of_the_reads() {
        let budget = HedgeBudget::default();
        (0..1_000).for_each(|_| budget.earn());
        let burst = (0..1_000).filter(|_| budget.take(4)).count();
        assert_eq!(burst as u64, BURST / 4, "a full budget does not grow");
        let mut hedges = 0;
        for _ in 0..400 {
            budget.earn();
            hedges += u64::from(budget.take(4));
        }
        assert_eq!(hedges, 10, "40 reads for each hedge of four requests");
    }
}
