//! The end of a worker's work, and the rate at which it may operate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};

/// A limit: a number of operations, or a time. It reads the clock only once per `check_every`
/// operations.
#[derive(Debug)]
pub(crate) struct Limit<'a> {
    clock: &'a SystemClock,
    ops: u64,
    ops_max: u64,
    /// Time at which the limit ends, in nanoseconds. 0 if no time is set.
    ends_at_ns: u64,
    check_every: u64,
    next_check: u64,
}

impl<'a> Limit<'a> {
    /// A limit of `ops_max` operations, or of `seconds` of time if that is not 0.
    pub(crate) fn new(
        clock: &'a SystemClock,
        ops_max: u64,
        seconds: u64,
        check_every: u64,
    ) -> Self {
        let ends_at_ns = match seconds {
            0 => 0,
            _ => clock.now_ns().saturating_add(seconds.saturating_mul(1_000_000_000)),
        };
        Self { clock, ops: 0, ops_max, ends_at_ns, check_every, next_check: check_every }
    }

    /// Whether there is time for `ops` more operations; they count as done.
    #[inline]
    pub(crate) fn more(&mut self, ops: u64) -> bool {
        self.ops += ops;
        if self.ends_at_ns == 0 {
            return self.ops <= self.ops_max;
        }
        if self.ops < self.next_check {
            return true;
        }
        self.next_check = self.ops + self.check_every;
        self.clock.now_ns() < self.ends_at_ns
    }
}

/// A rate that all workers share: units (bytes or operations) a second.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: AtomicU64,
    /// Time at which the units that were granted so far are used up.
    free_at_ns: AtomicU64,
}

/// Debt of time below which a worker does not sleep yet, because sleeping is not that exact.
const SLEEP_NS_MIN: u64 = 1_000_000;
/// Largest unused time that is saved up, in nanoseconds.
const SAVED_NS_MAX: u64 = 100_000_000;

impl Rate {
    /// A rate of `per_second` units. 0 means no limit.
    pub(crate) fn new(per_second: u64) -> Self {
        Self { per_second: AtomicU64::new(per_second), free_at_ns: AtomicU64::new(0) }
    }

    /// Changes the rate.
    pub(crate) fn set(&self, per_second: u64) {
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    /// Waits until `units` more may be used.
    #[inline]
    pub(crate) fn request(&self, clock: &dyn Clock, units: u64) {
        let per_second = self.per_second.load(Ordering::Relaxed);
        if per_second != 0 {
            self.wait(clock, units, per_second);
        }
    }

    #[cold]
    fn wait(&self, clock: &dyn Clock, units: u64, per_second: u64) {
        let cost_ns = (u128::from(units) * 1_000_000_000 / u128::from(per_second)) as u64;
        let now = clock.now_ns();
        let take = |free_at: u64| {
            Some(free_at.max(now.saturating_sub(SAVED_NS_MAX)).saturating_add(cost_ns))
        };
        let before = self.free_at_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        let free_at = before.unwrap_or_default();
        if free_at > now + SLEEP_NS_MIN {
            clock.sleep(Duration::from_nanos(free_at - now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_base::clock::ManualClock;

    #[test]
    fn a_limit_of_operations_is_exact() {
        let clock = SystemClock::new();
        let mut limit = Limit::new(&clock, 10, 0, 1000);
        let mut done = 0;
        while limit.more(3) {
            done += 3;
        }
        assert_eq!(done, 9);
    }

    #[test]
    fn a_limit_of_time_ends() {
        let clock = SystemClock::new();
        // The clock is read before the limit reads it.
        let started = clock.now_ns();
        let mut limit = Limit::new(&clock, 1, 1, 10);
        while limit.more(1) {}
        let took = clock.now_ns() - started;
        assert!(took >= 1_000_000_000, "{took}");
    }

    #[test]
    fn a_rate_is_kept() {
        let clock = ManualClock::new(0);
        let rate = Rate::new(1000);
        let started = clock.now_ns();
        for _ in 0..500 {
            rate.request(&clock, 10);
        }
        let seconds = (clock.now_ns() - started) as f64 / 1e9;
        assert!((4.8..5.2).contains(&seconds), "{seconds}");
        rate.set(0);
        let before = clock.now_ns();
        rate.request(&clock, 1 << 40);
        assert_eq!(clock.now_ns(), before);
    }
}
