//! Priority of foreground reads: compactions yield to reads of users.
//!
//! A get or a scan that meets eight compactions at the device would wait for eight long operations,
//! and again for every block. Therefore compactions issue their reads and writes in pieces of
//! [`PIECE_BYTES`], and wait before each piece while a foreground read is at the device
//! ([`yielding`], a pure decision). Both sides share the gauge [`Foreground`], and [`ForegroundFs`]
//! is the file system that uses it. Neither knows an engine. The BucketLSM paper does not have
//! this, and its scans are slower than those of the unmodified store.
//!
//! Invariants:
//! 1. A foreground read waits for at most one piece of each compaction once the gauge knows that
//!    the device is being read. The first read after a second without reads may meet a larger
//!    operation.
//! 2. A compaction waits in total at most as long as its own operations took. It keeps at least
//!    half of its speed. A single wait takes at most [`WAIT_NS_MAX`].
//! 3. For a while after [`Foreground::mark_urgent`] no operation yields. Writers are then slowed
//!    because compactions are late, and the user waits for the compactions.
//! 4. Only a read that took long enough to come from a device counts ([`DEVICE_READ_NS_MIN`]).
//!    Reads from the page cache do not compete.
//! 5. Flushes never yield, because memory waits for them.
//!
//! Thread-safety: any thread may call any method. There are no locks, and threads wait only for the
//! clock. Therefore nothing deadlocks, and closing a database waits for at most [`WAIT_NS_MAX`].
//! Failure: none of its own. Cost: two clock readings and two atomic additions per foreground read,
//! and a relaxed load per piece of a compaction while nothing is read.

mod file;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;

pub use self::file::ForegroundFs;
use crate::context::IoPurpose;

/// Limit of the operations that a compaction issues, in bytes.
pub const PIECE_BYTES: usize = 256 << 10;

/// Shortest duration of a foreground read that came from a device, in nanoseconds.
pub const DEVICE_READ_NS_MIN: u64 = 50_000;

/// Time after a foreground read from a device for which the device counts as being read, so that
/// compactions issue pieces. In nanoseconds.
pub const ACTIVE_NS: u64 = 1_000_000_000;

/// Time after a foreground read from a device in which the next read is expected, because a scan
/// computes between reads. In nanoseconds.
pub const GRACE_NS: u64 = 100_000;

/// Time that a yielding operation waits before it checks again, in nanoseconds.
pub const STEP_NS: u64 = 100_000;

/// Limit of one operation's wait in nanoseconds, whatever time the operations before it took.
pub const WAIT_NS_MAX: u64 = 10_000_000;

/// Duration of the effect of [`Foreground::mark_urgent`], in nanoseconds.
pub const URGENT_NS: u64 = 200_000_000;

/// Whether background work for `purpose` yields to foreground reads.
#[must_use]
pub fn yields(purpose: IoPurpose) -> bool {
    matches!(purpose, IoPurpose::Compaction { .. } | IoPurpose::Gc)
}

/// The facts that [`yielding`] decides from.
#[derive(Clone, Copy, Debug)]
pub struct YieldInput {
    /// Number of foreground reads in flight.
    pub reading: usize,
    /// Time since the last foreground read that came from a device, in nanoseconds; `None` if there
    /// was none.
    pub since_read_ns: Option<u64>,
    /// Whether writers are being slowed.
    pub urgent: bool,
    /// Time that this caller may still wait: the time of its operations, less its waits.
    pub credit_ns: u64,
}

/// The decision about a background operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldDecision {
    /// Execute the operation now.
    Go,
    /// Wait for this number of nanoseconds, and decide again.
    Wait(u64),
}

/// Decides whether a background operation yields to foreground reads.
#[must_use]
pub fn yielding(input: &YieldInput) -> YieldDecision {
    let since_ns = input.since_read_ns.unwrap_or(u64::MAX);
    let in_the_way = match input.reading {
        0 => since_ns < GRACE_NS,
        _ => since_ns < ACTIVE_NS,
    };
    if input.urgent || !in_the_way || input.credit_ns < STEP_NS {
        return YieldDecision::Go;
    }
    YieldDecision::Wait(STEP_NS)
}

/// Waits of background work since the gauge was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct YieldStats {
    /// Number of operations that waited.
    pub yields: u64,
    /// Duration of the waits of these operations, in nanoseconds.
    pub waited_ns: u64,
}

/// The gauge of foreground reads and of the urgency of background work.
#[derive(Debug)]
pub struct Foreground {
    clock: Arc<dyn Clock>,
    reading: AtomicUsize,
    /// End of the last foreground read that came from a device; 0 if there was none.
    last_read_ns: AtomicU64,
    urgent_until_ns: AtomicU64,
    yields: AtomicU64,
    waited_ns: AtomicU64,
}

impl Foreground {
    /// Makes a gauge without reads.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            reading: AtomicUsize::new(0),
            last_read_ns: AtomicU64::new(0),
            urgent_until_ns: AtomicU64::new(0),
            yields: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        })
    }

    /// Executes a foreground read.
    pub fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        let begun_ns = self.clock.now_ns();
        self.reading.fetch_add(1, Ordering::Relaxed);
        let outcome = read();
        self.reading.fetch_sub(1, Ordering::Relaxed);
        let now_ns = self.clock.now_ns();
        if now_ns - begun_ns >= DEVICE_READ_NS_MIN {
            self.last_read_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
        outcome
    }

    /// Records that writers are being slowed. For [`URGENT_NS`] no operation yields. The caller
    /// repeats the cheap call while that lasts.
    pub fn mark_urgent(&self) {
        let until_ns = self.clock.now_ns() + URGENT_NS;
        self.urgent_until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// Whether a device was read in the foreground lately. The check is one relaxed load until the
    /// first such read.
    #[must_use]
    pub fn is_active(&self) -> bool {
        match self.last_read_ns.load(Ordering::Relaxed) {
            0 => false,
            last_ns => self.clock.now_ns().saturating_sub(last_ns) < ACTIVE_NS,
        }
    }

    /// The waits so far.
    #[must_use]
    pub fn stats(&self) -> YieldStats {
        YieldStats {
            yields: self.yields.load(Ordering::Relaxed),
            waited_ns: self.waited_ns.load(Ordering::Relaxed),
        }
    }

    fn input(&self, now_ns: u64, credit_ns: u64) -> YieldInput {
        let last_ns = self.last_read_ns.load(Ordering::Relaxed);
        YieldInput {
            reading: self.reading.load(Ordering::Relaxed),
            since_read_ns: (last_ns > 0).then(|| now_ns.saturating_sub(last_ns)),
            urgent: now_ns < self.urgent_until_ns.load(Ordering::Relaxed),
            credit_ns,
        }
    }

    /// Waits as [`yielding`] decides. Returns the rest of `credit_ns`.
    fn yield_now(&self, credit_ns: u64) -> u64 {
        let begun_ns = self.clock.now_ns();
        let credit_ns = credit_ns.min(WAIT_NS_MAX);
        let mut now_ns = begun_ns;
        let mut left_ns = credit_ns;
        while let YieldDecision::Wait(ns) = yielding(&self.input(now_ns, left_ns)) {
            self.clock.sleep(Duration::from_nanos(ns));
            now_ns = self.clock.now_ns();
            left_ns = credit_ns.saturating_sub(now_ns - begun_ns);
        }
        if now_ns > begun_ns {
            self.yields.fetch_add(1, Ordering::Relaxed);
            self.waited_ns.fetch_add(now_ns - begun_ns, Ordering::Relaxed);
        }
        left_ns
    }

    /// Executes one piece of background work after the foreground reads. `credit` is the time of
    /// the caller's pieces so far, less its waits.
    fn after_reads<T>(&self, credit: &AtomicU64, piece: impl FnOnce() -> T) -> T {
        let left_ns = self.yield_now(credit.load(Ordering::Relaxed));
        let begun_ns = self.clock.now_ns();
        let outcome = piece();
        let took_ns = self.clock.now_ns() - begun_ns;
        credit.store((left_ns + took_ns).min(WAIT_NS_MAX), Ordering::Relaxed);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: YieldDecision = YieldDecision::Wait(STEP_NS);

    fn input() -> YieldInput {
        YieldInput { reading: 1, since_read_ns: Some(0), urgent: false, credit_ns: STEP_NS }
    }

    #[test]
    fn background_waits_for_reads_from_a_device() {
        assert_eq!(yielding(&input()), WAITS);
        assert_eq!(
            yielding(&YieldInput { reading: 0, ..input() }),
            WAITS,
            "the next comes at once"
        );
        let idle = YieldInput { reading: 0, since_read_ns: Some(GRACE_NS), ..input() };
        assert_eq!(yielding(&idle), YieldDecision::Go);
    }

    #[test]
    fn background_does_not_wait_for_reads_from_memory() {
        let cached = YieldInput { reading: 9, since_read_ns: None, ..input() };
        assert_eq!(yielding(&cached), YieldDecision::Go);
        let cached = YieldInput { reading: 9, since_read_ns: Some(ACTIVE_NS), ..input() };
        assert_eq!(yielding(&cached), YieldDecision::Go);
    }

    #[test]
    fn wait_ends_without_credit_or_when_urgent() {
        let spent = YieldInput { credit_ns: STEP_NS - 1, ..input() };
        assert_eq!(yielding(&spent), YieldDecision::Go);
        let urgent = YieldInput { urgent: true, ..input() };
        assert_eq!(yielding(&urgent), YieldDecision::Go);
    }

    #[test]
    fn only_compactions_yield() {
        assert!(yields(IoPurpose::Compaction { from: 0, to: 1 }));
        assert!(yields(IoPurpose::Gc));
        for purpose in [IoPurpose::Flush, IoPurpose::ForegroundWrite, IoPurpose::Recovery] {
            assert!(!yields(purpose), "{purpose:?}");
        }
    }
}
