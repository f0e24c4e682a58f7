//! The rate limiter that flush and compaction share. Flushes have priority.
//!
//! The limiter is a token bucket that is refilled every [`REFILL_PERIOD`]. A request that finds too
//! few tokens joins the queue of its priority and sleeps until the next refill. The first thread
//! that wakes distributes the refill to the queues, first come first served within a priority. A
//! large request is served in parts, so that a later flush does not wait for all of it.
//!
//! Invariants:
//! 1. In any interval the limiter grants no more than the rate times the interval plus
//!    [`BURST_PERIODS`] refills.
//! 2. While flushes wait, compactions get a tenth of each refill, so that neither stops the other.
//! 3. The bucket is empty while any request waits.
//!
//! Thread-safety: any thread may call any method. There is one lock.
//! Failure: none.
//! Cost: an unlimited request is one relaxed load. A limited request takes a short lock, and sleeps
//! once per refill while it waits.

mod file;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;
use parking_lot::Mutex;

pub use self::file::{LimitedFile, LimitedFs};
use crate::context::IoPurpose;

/// Interval between two refills.
pub const REFILL_PERIOD: Duration = Duration::from_millis(10);

/// Number of refills that an idle bucket keeps.
pub const BURST_PERIODS: u64 = 10;

/// Divisor of a refill that gives the share of compactions while flushes wait.
const COMPACTION_SHARE: u64 = 10;

/// The priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Requests of flushes, which free memory and are served first.
    Flush,
    /// Requests of all other background writes.
    Compaction,
}

impl Priority {
    /// The priority of background writes for `purpose`; `None` if they are not limited.
    #[must_use]
    pub fn of(purpose: IoPurpose) -> Option<Self> {
        match purpose {
            IoPurpose::Flush => Some(Self::Flush),
            IoPurpose::Compaction { .. } | IoPurpose::Gc => Some(Self::Compaction),
            _ => None,
        }
    }
}

/// Statistics of one priority since the creation of the limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityStats {
    /// Bytes that were granted while a rate was set.
    pub bytes: u64,
    /// Number of requests that had to wait.
    pub waits: u64,
    /// Sum of the waits of these requests, in nanoseconds.
    pub waited_ns: u64,
}

/// A limiter of bytes per second.
#[derive(Debug)]
pub struct RateLimiter {
    /// Rate in bytes per second; 0 for no limit.
    rate: AtomicU64,
    state: Mutex<LimiterState>,
}

#[derive(Debug, Default)]
struct LimiterState {
    tokens: u64,
    /// Time of the last refill; `None` before the first limited request.
    refilled_at_ns: Option<u64>,
    queues: [Queue; 2],
    stats: [PriorityStats; 2],
}

/// The waiting requests of one priority. A ticket below `served` was served completely.
#[derive(Debug, Default)]
struct Queue {
    /// Bytes that each request still needs, oldest first.
    left: VecDeque<u64>,
    served: u64,
}

impl Queue {
    fn join(&mut self, bytes: u64) -> u64 {
        self.left.push_back(bytes);
        self.served + self.left.len() as u64 - 1
    }

    /// Grants at most `tokens`. Returns the rest of them.
    fn grant(&mut self, mut tokens: u64) -> u64 {
        while let Some(first) = self.left.front_mut() {
            let now = tokens.min(*first);
            tokens -= now;
            *first -= now;
            if *first > 0 {
                break;
            }
            self.left.pop_front();
            self.served += 1;
        }
        tokens
    }
}

impl LimiterState {
    /// Adds the refills that are due at `now_ns`, and distributes them.
    fn turn(&mut self, rate: u64, now_ns: u64) {
        let period_ns = REFILL_PERIOD.as_nanos() as u64;
        let refill = refill_bytes(rate);
        let last = *self.refilled_at_ns.get_or_insert_with(|| {
            self.tokens = refill;
            now_ns
        });
        let periods = now_ns.saturating_sub(last) / period_ns;
        if periods > 0 {
            self.refilled_at_ns = Some(last + periods * period_ns);
            let added = refill.saturating_mul(periods);
            self.tokens = self.tokens.saturating_add(added).min(refill * BURST_PERIODS);
        }
        if rate == 0 {
            self.tokens = u64::MAX;
        }
        self.hand_out();
        if rate == 0 {
            self.tokens = 0;
        }
    }

    fn hand_out(&mut self) {
        let [flush, compaction] = &mut self.queues;
        let both_wait = !flush.left.is_empty() && !compaction.left.is_empty();
        let kept = if both_wait { self.tokens / COMPACTION_SHARE } else { 0 };
        let unused = flush.grant(self.tokens - kept);
        let unused = compaction.grant(unused + kept);
        self.tokens = flush.grant(unused);
    }
}

/// Tokens per period. It is never zero, so that a tiny rate makes progress.
fn refill_bytes(rate: u64) -> u64 {
    let periods_per_second = Duration::from_secs(1).as_nanos() / REFILL_PERIOD.as_nanos();
    (rate / periods_per_second as u64).max(1)
}

impl RateLimiter {
    /// Makes a limiter of `bytes_per_second`; 0 for no limit.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        Self { rate: AtomicU64::new(bytes_per_second), state: Mutex::default() }
    }

    /// Rate in bytes per second; 0 for no limit.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Changes the rate; 0 for no limit. Waiting requests notice it within a refill period.
    pub fn set_bytes_per_second(&self, bytes_per_second: u64) {
        let mut state = self.state.lock();
        self.rate.store(bytes_per_second, Ordering::Relaxed);
        let burst = refill_bytes(bytes_per_second).saturating_mul(BURST_PERIODS);
        state.tokens = state.tokens.min(burst);
    }

    /// Blocks until `bytes` may be written.
    #[inline]
    pub fn request(&self, bytes: u64, priority: Priority, clock: &dyn Clock) {
        if bytes > 0 && self.bytes_per_second() > 0 {
            self.request_limited(bytes, priority, clock);
        }
    }

    #[cold]
    fn request_limited(&self, bytes: u64, priority: Priority, clock: &dyn Clock) {
        let index = priority as usize;
        let started_ns = clock.now_ns();
        let mut state = self.state.lock();
        let ticket = state.queues[index].join(bytes);
        state.stats[index].bytes += bytes;
        let mut now_ns = started_ns;
        loop {
            state.turn(self.bytes_per_second(), now_ns);
            if state.queues[index].served > ticket {
                break;
            }
            let due_ns = state.refilled_at_ns.unwrap_or(now_ns) + REFILL_PERIOD.as_nanos() as u64;
            drop(state);
            clock.sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns).max(1)));
            now_ns = clock.now_ns();
            state = self.state.lock();
        }
        if now_ns > started_ns {
            let stats = &mut state.stats[index];
            stats.waits += 1;
            stats.waited_ns += now_ns - started_ns;
        }
    }

    /// Statistics of `priority` so far.
    #[must_use]
    pub fn stats(&self, priority: Priority) -> PriorityStats {
        self.state.lock().stats[priority as usize]
    }

    /// Number of requests of `priority` that wait now.
    #[must_use]
    pub fn waiting(&self, priority: Priority) -> usize {
        self.state.lock().queues[priority as usize].left.len()
    }
}
