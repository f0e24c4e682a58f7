//! Time behind a trait: the system's clock in production, and a manual clock in tests.
//!
//! Thread-safety: any thread may call any method of a clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time that all threads of a database share.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Nanoseconds since a fixed moment. The value never decreases.
    fn now_ns(&self) -> u64;
    /// Milliseconds since the Unix epoch. The value jumps if an operator sets the clock.
    fn unix_ms(&self) -> u64;
    /// Blocks the calling thread for `duration` of this clock's time.
    fn sleep(&self, duration: Duration);
}

/// The operating system's clock.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the clock that all others ask")]
        let origin = Instant::now();
        Self { origin }
    }

    /// Makes a clock behind a shared pointer.
    #[must_use]
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn unix_ms(&self) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "this is the clock that all others ask")]
        let now = SystemTime::now();
        now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }

    fn sleep(&self, duration: Duration) {
        #[expect(clippy::disallowed_methods, reason = "this is the clock that all others ask")]
        std::thread::sleep(duration);
    }
}

/// A clock that only [`ManualClock::advance`] and `sleep` move. `sleep` does not block.
#[derive(Debug)]
pub struct ManualClock {
    now_ns: AtomicU64,
    unix_start_ms: u64,
}

impl ManualClock {
    /// Makes a clock with the wall time `unix_ms` and the monotonic time 0.
    #[must_use]
    pub fn new(unix_ms: u64) -> Self {
        Self { now_ns: AtomicU64::new(0), unix_start_ms: unix_ms }
    }

    /// Advances both times by `duration`.
    pub fn advance(&self, duration: Duration) {
        self.now_ns.fetch_add(duration.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    fn unix_ms(&self) -> u64 {
        self.unix_start_ms + self.now_ns() / 1_000_000
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}
