//! Bytes that may be written before a writer checks a family's throttle again.
//!
//! A family owns one [`DelayCredit`]. Each check of a watched family grants some bytes. A delayed
//! writer pays for a lot of bytes in advance, and the writers after it take from that lot.
//!
//! Invariants:
//! 1. A writer takes only bytes that were added before.
//! 2. Bytes that several writers add in parallel are all kept. A delayed writer must not lose bytes
//!    that it has paid for.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: one relaxed exchange for each write of a watched or delayed family.

use std::sync::atomic::{AtomicU64, Ordering};

/// Time, in nanoseconds, for which a delayed writer pays in advance.
const LOT_NS: u64 = 250_000;

/// Bytes that the writers of a family may write before the next check.
#[derive(Debug, Default)]
pub(crate) struct DelayCredit(AtomicU64);

impl DelayCredit {
    /// Takes `bytes` from the credit and returns `true`. If the credit has fewer, takes nothing and
    /// returns `false`.
    #[inline]
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let less = |credit: u64| credit.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Adds bytes that a writer has paid for.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Replaces the credit.
    pub(crate) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

/// Bytes that a delayed write of `bytes` pays for in advance, at `rate` bytes a second. The limit
/// is `most`, unless the write itself is larger.
pub(crate) fn lot_of(bytes: u64, rate: u64, most: u64) -> u64 {
    let lot = u128::from(rate) * u128::from(LOT_NS) / 1_000_000_000;
    u64::try_from(lot).unwrap_or(u64::MAX).min(most).max(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_can_be_taken_and_nothing_else() {
        let credit = DelayCredit::default();
        assert!(!credit.take(1));
        credit.add(100);
        assert!(credit.take(60));
        assert!(!credit.take(60), "40 are left");
        assert!(credit.take(40), "a refusal takes nothing");
        credit.add(100);
        credit.set(7);
        assert!(!credit.take(8) && credit.take(7));
    }

    #[test]
    fn what_writers_pay_for_at_once_is_all_there() {
        const WRITERS: u64 = 8;
        const ROUNDS: u64 = 1000;
        let credit = DelayCredit::default();
        std::thread::scope(|scope| {
            for _writer in 0..WRITERS {
                scope.spawn(|| (0..ROUNDS).for_each(|_| credit.add(10)));
            }
        });
        assert!(credit.take(WRITERS * ROUNDS * 10));
        assert!(!credit.take(1));
    }

    #[test]
    fn a_lot_is_a_quarter_of_a_millisecond_within_bounds() {
        assert_eq!(lot_of(1000, 160_000_000, 1 << 20), 40_000);
        assert_eq!(lot_of(1000, 160_000_000, 8192), 8192, "no more than is written unseen");
        assert_eq!(lot_of(1000, 1_000_000, 8192), 1000, "slow writers pay for each write");
        assert_eq!(lot_of(9000, 160_000_000, 8192), 9000);
        assert_eq!(lot_of(0, u64::MAX, 8192), 8192);
    }
}
