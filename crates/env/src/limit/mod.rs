//! The rate limiter that flush and compaction share, flush first.
//!
//! A token bucket, refilled every [`REFILL_PERIOD`]. A request that the bucket cannot serve joins
//! the queue of its priority and sleeps until the next refill; whichever sleeper wakes first
//! hands out the refill to the queues, first come first served within a priority, and whoever
//! finds itself served goes on. A large request is served in parts, a refill at a time, so that a
//! flush that comes later does not wait for the whole of it.
//!
//! Invariants: 1. over any stretch of time no more is granted than the rate times the stretch
//! plus [`BURST_PERIODS`] refills; 2. while flushes wait, compactions get a tenth of each refill
//! and no more, so that neither stops the other for ever; 3. the bucket is empty while anybody
//! waits. Thread-safe; one lock. Cost: an unlimited request is one relaxed load; a limited one
//! that finds tokens a short lock; a waiting one also a sleep per refill.

mod file;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;
use parking_lot::Mutex;

pub use self::file::{LimitedFile, LimitedFs};
use crate::context::IoPurpose;

/// How often tokens are added.
pub const REFILL_PERIOD: Duration = Duration::from_millis(10);

/// How many refills an idle bucket gathers.
pub const BURST_PERIODS: u64 = 10;

/// Which part of a refill compactions keep while flushes wait.
const COMPACTION_SHARE: u64 = 10;

/// Who is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Memory is waiting to be freed: served before compactions.
    Flush,
    /// Everything that can wait.
    Compaction,
}

impl Priority {
    /// The priority of background writing for `purpose`; `None` for what is not limited.
    #[must_use]
    pub fn of(purpose: IoPurpose) -> Option<Self> {
        match purpose {
            IoPurpose::Flush => Some(Self::Flush),
            IoPurpose::Compaction { .. } | IoPurpose::Gc => Some(Self::Compaction),
            _ => None,
        }
    }
}

/// What was asked of the limiter at one priority since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityStats {
    /// Bytes granted while a rate was set.
    pub bytes: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Nanoseconds that they waited, in sum.
    pub waited_ns: u64,
}

/// A limiter of bytes per second; see the module.
#[derive(Debug)]
pub struct RateLimiter {
    /// 0: unlimited.
    rate: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tokens: u64,
    /// The last refill; `None` before the first limited request.
    refilled_at_ns: Option<u64>,
    queues: [Queue; 2],
    stats: [PriorityStats; 2],
}

/// The waiters of one priority. A ticket below `served` has been served in full.
#[derive(Debug, Default)]
struct Queue {
    /// What each waiter still needs, oldest first.
    left: VecDeque<u64>,
    served: u64,
}

impl Queue {
    fn join(&mut self, bytes: u64) -> u64 {
        self.left.push_back(bytes);
        self.served + self.left.len() as u64 - 1
    }

    /// Grants up to `tokens`; returns what is left of them.
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

impl State {
    /// Adds the refills that are due at `now_ns` and hands out what there is.
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

/// Tokens per period; never zero, so that a tiny rate goes on.
fn refill_bytes(rate: u64) -> u64 {
    let periods_per_second = Duration::from_secs(1).as_nanos() / REFILL_PERIOD.as_nanos();
    (rate / periods_per_second as u64).max(1)
}

impl RateLimiter {
    /// A limiter of `bytes_per_second`; 0 for none.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        Self { rate: AtomicU64::new(bytes_per_second), state: Mutex::default() }
    }

    /// Bytes per second; 0 if unlimited.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Changes the rate; 0 for none. Who waits feels it within a refill period.
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

    /// What was asked at `priority` so far.
    #[must_use]
    pub fn stats(&self, priority: Priority) -> PriorityStats {
        self.state.lock().stats[priority as usize]
    }

    /// How many requests of `priority` wait now.
    #[must_use]
    pub fn waiting(&self, priority: Priority) -> usize {
        self.state.lock().queues[priority as usize].left.len()
    }
}
