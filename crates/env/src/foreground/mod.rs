//! Foreground first: reads that a user waits for go before compactions.
//!
//! A device serves what it has got. A get or a scan that finds eight compactions at it waits
//! behind eight long operations, and again for every block. So compactions issue their reads and
//! writes in pieces of [`PIECE_BYTES`] and, before each piece, wait while a foreground read is on
//! the device ([`yielding`], a pure decision). [`Foreground`] is the gauge that both sides share,
//! [`ForegroundFs`] the file system that does it; both know nothing of an engine. Invariants:
//!
//! 1. A foreground read waits behind at most one piece of each compaction, once the device is
//!    known to be read (a first read after a second without any may meet a larger one).
//! 2. A compaction waits at most as long, in sum, as its own operations took: it keeps at least
//!    half of the speed that it would have. A single wait is at most [`WAIT_NS_MAX`].
//! 3. While [`Foreground::mark_urgent`] was said lately, nobody yields: writers are being slowed
//!    because compactions are behind, and then it is the user who waits for them.
//! 4. Only reads that took long enough to have come from a device count
//!    ([`DEVICE_READ_NS_MIN`]): what the page cache serves is in nobody's way.
//!
//! Flushes are exempt: memory waits for them. Thread-safe, without locks, and nobody waits for
//! another thread, only for the clock: nothing can deadlock, and a closing database waits for no
//! more than [`WAIT_NS_MAX`]. Cost: of a foreground read two clock readings and two atomic adds,
//! of a compaction's piece, while nothing is read, a relaxed load. Not in the BucketLSM paper,
//! whose scans lose to the unmodified store's.

mod file;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;

pub use self::file::ForegroundFs;
use crate::context::IoPurpose;

/// The longest operation that a yielding writer or reader issues.
pub const PIECE_BYTES: usize = 256 << 10;

/// A foreground read that took at least this long came from a device.
pub const DEVICE_READ_NS_MIN: u64 = 50_000;

/// For how long after such a read the device counts as being read: compactions issue pieces.
pub const ACTIVE_NS: u64 = 1_000_000_000;

/// For how long after such a read the next one is expected at once: a scan thinks between reads.
pub const GRACE_NS: u64 = 100_000;

/// How long a yielding operation waits before it looks again.
pub const STEP_NS: u64 = 100_000;

/// The longest time that one operation waits, however long those before it took.
pub const WAIT_NS_MAX: u64 = 10_000_000;

/// For how long [`Foreground::mark_urgent`] holds.
pub const URGENT_NS: u64 = 200_000_000;

/// Whether background work for `purpose` lets foreground reads go first.
#[must_use]
pub fn yields(purpose: IoPurpose) -> bool {
    matches!(purpose, IoPurpose::Compaction { .. } | IoPurpose::Gc)
}

/// What [`yielding`] decides from.
#[derive(Clone, Copy, Debug)]
pub struct YieldInput {
    /// Foreground reads on their way now.
    pub reading: usize,
    /// Nanoseconds since the last foreground read that came from a device; `None`: never.
    pub since_read_ns: Option<u64>,
    /// Writers are being slowed down.
    pub urgent: bool,
    /// How much longer this caller may still wait: what its operations took, less what it waited.
    pub credit_ns: u64,
}

/// Whether a background operation may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldDecision {
    /// Now.
    Go,
    /// Wait so many nanoseconds and ask again.
    Wait(u64),
}

/// Decides whether a background operation lets foreground reads go first; see the module.
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

/// What background work did for foreground reads since the gauge was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct YieldStats {
    /// Operations that waited.
    pub yields: u64,
    /// Nanoseconds that they waited.
    pub waited_ns: u64,
}

/// Who reads in the foreground, and whether background work is urgent; see the module.
#[derive(Debug)]
pub struct Foreground {
    clock: Arc<dyn Clock>,
    reading: AtomicUsize,
    /// When the last foreground read that came from a device ended; 0: never.
    last_read_ns: AtomicU64,
    urgent_until_ns: AtomicU64,
    yields: AtomicU64,
    waited_ns: AtomicU64,
}

impl Foreground {
    /// A gauge that nobody uses yet.
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

    /// Does a foreground read.
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

    /// Says that writers are being slowed down: for [`URGENT_NS`] from now nobody yields. Say it
    /// again as long as it lasts; it is cheap.
    pub fn mark_urgent(&self) {
        let until_ns = self.clock.now_ns() + URGENT_NS;
        self.urgent_until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// Whether a device was read in the foreground lately. While never, this is one relaxed load.
    #[must_use]
    pub fn is_active(&self) -> bool {
        match self.last_read_ns.load(Ordering::Relaxed) {
            0 => false,
            last_ns => self.clock.now_ns().saturating_sub(last_ns) < ACTIVE_NS,
        }
    }

    /// What was waited so far.
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

    /// Waits as [`yielding`] says; returns what is left of `credit_ns`.
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

    /// Does one piece of background work, after those who go first. `credit` is what the caller's
    /// pieces took so far, less what it waited.
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
    fn background_waits_for_reads_that_a_device_serves() {
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
    fn reads_from_memory_are_not_waited_for() {
        let cached = YieldInput { reading: 9, since_read_ns: None, ..input() };
        assert_eq!(yielding(&cached), YieldDecision::Go);
        let cached = YieldInput { reading: 9, since_read_ns: Some(ACTIVE_NS), ..input() };
        assert_eq!(yielding(&cached), YieldDecision::Go);
    }

    #[test]
    fn nobody_waits_longer_than_it_worked_nor_when_it_is_urgent() {
        let spent = YieldInput { credit_ns: STEP_NS - 1, ..input() };
        assert_eq!(yielding(&spent), YieldDecision::Go);
        let urgent = YieldInput { urgent: true, ..input() };
        assert_eq!(yielding(&urgent), YieldDecision::Go);
    }

    #[test]
    fn compactions_yield_and_what_memory_or_users_wait_for_does_not() {
        assert!(yields(IoPurpose::Compaction { from: 0, to: 1 }));
        assert!(yields(IoPurpose::Gc));
        for purpose in [IoPurpose::Flush, IoPurpose::ForegroundWrite, IoPurpose::Recovery] {
            assert!(!yields(purpose), "{purpose:?}");
        }
    }
}
