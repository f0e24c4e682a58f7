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
///
/// [`Rate::request`] returns the time from which the latency of the operation counts, so that the
/// time for which a worker waits for its turn is not part of it.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: AtomicU64,
    /// Time at which the units that were granted so far are used up. 0 before the first request.
    free_at_ns: AtomicU64,
    delays: Delays,
}

/// What becomes of the time in which a slow operation kept the workers from their rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delays {
    /// A closed loop, as writes have it in db_bench: time beyond [`SAVED_NS_MAX`] is lost, and
    /// latency begins when an operation starts.
    Forgotten,
    /// An open loop: workers make up for all of the time, and latency begins when an operation
    /// should have started. So a stall counts for all operations that it delays.
    MadeUp,
}

impl Delays {
    /// Delays of a benchmark that is an open loop or not.
    pub(crate) fn of(open_loop: bool) -> Self {
        if open_loop { Self::MadeUp } else { Self::Forgotten }
    }
}

/// Longest time by which an operation may start before its turn. A worker that sleeps wakes half of
/// this time before its turn, because a sleep may take too long.
const EARLY_NS_MAX: u64 = 1_000_000;
/// Largest unused time that is saved up, in nanoseconds.
const SAVED_NS_MAX: u64 = 100_000_000;

impl Rate {
    /// A rate of `per_second` units. 0 means no limit.
    pub(crate) fn new(per_second: u64, delays: Delays) -> Self {
        Self { per_second: AtomicU64::new(per_second), free_at_ns: AtomicU64::new(0), delays }
    }

    /// Changes the rate.
    pub(crate) fn set(&self, per_second: u64) {
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    /// Waits until `units` more may be used. The result is the time from which the latency of the
    /// operation counts, in nanoseconds, or `None` if there is no limit.
    #[inline]
    pub(crate) fn request(&self, clock: &dyn Clock, units: u64) -> Option<u64> {
        match self.per_second.load(Ordering::Relaxed) {
            0 => None,
            per_second => Some(self.wait(clock, units, per_second)),
        }
    }

    #[cold]
    fn wait(&self, clock: &dyn Clock, units: u64, per_second: u64) -> u64 {
        let cost_ns = (u128::from(units) * 1_000_000_000 / u128::from(per_second)) as u64;
        let now = clock.now_ns();
        let due = |free_at: u64| match (self.delays, free_at) {
            (Delays::MadeUp, 0) => now,
            (Delays::MadeUp, _) => free_at,
            (Delays::Forgotten, _) => free_at.max(now.saturating_sub(SAVED_NS_MAX)),
        };
        let take = |free_at: u64| Some(due(free_at).saturating_add(cost_ns));
        let before = self.free_at_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        let due = due(before.unwrap_or_default());
        let mut starts = now;
        if due > now + EARLY_NS_MAX {
            clock.sleep(Duration::from_nanos(due - now - EARLY_NS_MAX / 2));
            starts = clock.now_ns();
        }
        match self.delays {
            Delays::Forgotten => starts,
            Delays::MadeUp => starts.min(due),
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
        let rate = Rate::new(1000, Delays::Forgotten);
        let started = clock.now_ns();
        for _ in 0..500 {
            let starts = rate.request(&clock, 10).expect("a limit");
            assert_eq!(starts, clock.now_ns(), "the wait is not part of the latency");
        }
        let seconds = (clock.now_ns() - started) as f64 / 1e9;
        assert!((4.8..5.2).contains(&seconds), "{seconds}");
        rate.set(0);
        let before = clock.now_ns();
        assert_eq!(rate.request(&clock, 1 << 40), None);
        assert_eq!(clock.now_ns(), before);
    }

    /// Operations of a millisecond each at half of that load, with one of a second among them. The
    /// result has their latencies in milliseconds, and the time that all took.
    fn with_a_stall(delays: Delays) -> (Vec<u64>, u64) {
        const MS: u64 = 1_000_000;
        let clock = ManualClock::new(7);
        let rate = Rate::new(500, delays);
        let began = clock.now_ns();
        let latency = |number| {
            let starts = rate.request(&clock, 1).expect("a limit");
            clock.advance(Duration::from_millis(if number == 1000 { 1000 } else { 1 }));
            (clock.now_ns() - starts) / MS
        };
        let latencies = (0..4000).map(latency).collect();
        (latencies, (clock.now_ns() - began) / MS)
    }

    #[test]
    fn an_open_loop_counts_a_stall_for_all_operations_that_it_delays() {
        let (latencies, took) = with_a_stall(Delays::MadeUp);
        let above = |ms| latencies.iter().filter(|&&latency| latency > ms).count();
        // Each operation after the stall makes up for a millisecond of the second.
        assert!((990..1010).contains(&above(1)), "{}", above(1));
        assert!((490..510).contains(&above(500)), "{}", above(500));
        assert!((7990..8010).contains(&took), "the rate is kept: {took}");

        let (latencies, took) = with_a_stall(Delays::Forgotten);
        assert_eq!(latencies.iter().filter(|&&latency| latency > 1).count(), 1);
        assert!((8880..8910).contains(&took), "all but 100 ms are lost: {took}");
    }
}
