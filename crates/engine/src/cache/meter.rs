//! Measures the reads of blocks that miss the block cache, and how many of them a slightly larger
//! cache would spare.
//!
//! A database with memory nodes turns the meter on. Without it an eviction and a read of a block
//! each pay one load. The meter remembers evicted blocks in a table of 8,192 words. A word has a
//! part of the hash of a block, and the number of the eviction. A large cache remembers only one
//! block in `2^n`, chosen by hash, so that the table has room for one window.
//!
//! The *window* is the number of evictions of one epoch, which is at most a sixteenth of the
//! expected number of blocks. A read **returns** if it reads a block that was evicted within the
//! last window: a cache with that many more blocks would have had the block. The eviction is
//! CLOCK-Pro and not by recency, so the share of returning reads is an estimate. It is rather too
//! high, because a part of the returning blocks would have been evicted from a larger cache as
//! well.
//!
//! Invariants: the figures are estimates. Correctness depends on none of them.
//!
//! Thread-safety: any thread may call any method. Threads that measure at the same time may lose a
//! measurement.
//! Failure: none.
//! Cost: 64 KiB. An eviction costs a hash and at most one store, a read from storage a hash and a
//! few relaxed operations. One read in eight also reads the clock twice.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::clock::Clock;

use super::{BlockKey, Passing};

/// Number of evicted blocks that the table has room for.
const EVICTED_SLOTS: usize = 8 << 10;
/// Number of evictions of one window that are remembered, as a power of two.
const REMEMBERED_BITS: u32 = 10;
/// One read of a block in this many is timed.
const TIMED_SHARE: u64 = 8;
/// A timed read moves the average time by one part in this many of the difference.
const TIME_PART: u64 = 8;

/// Figures of the reads that missed the cache, since the meter was turned on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct BlockReads {
    /// Reads of blocks from storage, for users.
    pub(crate) reads: u64,
    /// Those of them that the table of evicted blocks would know.
    pub(crate) watched: u64,
    /// Those of the watched reads whose block was evicted within the last window.
    pub(crate) returned: u64,
    /// Number of evictions of a window.
    pub(crate) window: u64,
    /// Mean time of a read, in nanoseconds; 0 before the first timed read.
    pub(crate) read_ns: u64,
}

/// The meter of one block cache.
#[derive(Debug)]
pub(crate) struct CacheMeter {
    clock: Arc<dyn Clock>,
    /// Evicted blocks: a part of the hash, and the number of the eviction; 0 if a slot is empty.
    evicted: Box<[AtomicU64]>,
    window: u64,
    /// Bits of the hash that are 0 for the blocks that are remembered.
    mask: u64,
    reads: AtomicU64,
    watched: AtomicU64,
    returned: AtomicU64,
    read_ns: AtomicU64,
}

/// A read of a block that may be timed.
pub(crate) struct TimedRead<'a> {
    meter: &'a CacheMeter,
    started_ns: Option<u64>,
}

fn hash_of(key: &BlockKey) -> u64 {
    let mut hasher = Passing::default();
    key.hash(&mut hasher);
    hasher.finish()
}

/// The slot of a block with this hash, and the part of the hash in its word.
fn place_of(hash: u64) -> (usize, u64) {
    ((hash >> REMEMBERED_BITS) as usize % EVICTED_SLOTS, hash >> 32 << 32)
}

impl CacheMeter {
    /// A meter of a cache that evicts `2^epoch_bits` blocks in an epoch.
    pub(super) fn new(clock: Arc<dyn Clock>, epoch_bits: u32) -> Self {
        Self {
            clock,
            evicted: (0..EVICTED_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            window: 1 << epoch_bits,
            mask: (1 << epoch_bits.saturating_sub(REMEMBERED_BITS)) - 1,
            reads: AtomicU64::new(0),
            watched: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            read_ns: AtomicU64::new(0),
        }
    }

    /// Notes the eviction of a block. `number` counts the evictions before it.
    pub(super) fn note_eviction(&self, key: &BlockKey, number: u64) {
        let hash = hash_of(key);
        if hash & self.mask != 0 {
            return;
        }
        let (slot, part) = place_of(hash);
        let number = u64::from((number as u32).max(1));
        self.evicted[slot].store(part | number, Ordering::Relaxed);
    }

    /// Notes that a user's read begins to read a block from storage. `number` counts the evictions
    /// so far.
    pub(crate) fn begin(&self, key: &BlockKey, number: u64) -> TimedRead<'_> {
        let hash = hash_of(key);
        if hash & self.mask == 0 {
            self.watched.fetch_add(1, Ordering::Relaxed);
            let (slot, part) = place_of(hash);
            let known = self.evicted[slot].load(Ordering::Relaxed);
            let age = (number as u32).wrapping_sub(known as u32);
            if known != 0 && known >> 32 << 32 == part && u64::from(age) <= self.window {
                self.returned.fetch_add(1, Ordering::Relaxed);
            }
        }
        let is_timed = self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED_SHARE);
        TimedRead { meter: self, started_ns: is_timed.then(|| self.clock.now_ns()) }
    }

    /// The figures so far.
    pub(crate) fn figures(&self) -> BlockReads {
        BlockReads {
            reads: self.reads.load(Ordering::Relaxed),
            watched: self.watched.load(Ordering::Relaxed),
            returned: self.returned.load(Ordering::Relaxed),
            window: self.window,
            read_ns: self.read_ns.load(Ordering::Relaxed),
        }
    }
}

impl TimedRead<'_> {
    /// Notes that the block was read.
    pub(crate) fn end(self) {
        let Some(started_ns) = self.started_ns else { return };
        let taken_ns = self.meter.clock.now_ns().saturating_sub(started_ns).max(1);
        let before = self.meter.read_ns.load(Ordering::Relaxed);
        let next = match before {
            0 => taken_ns,
            before => before - before / TIME_PART + taken_ns / TIME_PART,
        };
        self.meter.read_ns.store(next.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use archipelago_base::clock::ManualClock;

    use super::*;

    fn key(number: u64) -> BlockKey {
        BlockKey { file: [7, number], offset: number * 4096 }
    }

    #[test]
    fn block_returns_if_it_was_evicted_within_the_window() {
        let clock = Arc::new(ManualClock::new(0));
        let meter = CacheMeter::new(clock, 4);
        meter.note_eviction(&key(1), 100);
        meter.begin(&key(1), 110).end();
        meter.begin(&key(2), 110).end();
        assert_eq!((meter.figures().watched, meter.figures().returned), (2, 1));
        meter.begin(&key(1), 117).end();
        let figures = meter.figures();
        assert_eq!((figures.reads, figures.watched, figures.returned), (3, 3, 1));
    }

    #[test]
    fn large_cache_watches_a_part_of_its_blocks() {
        let meter = CacheMeter::new(Arc::new(ManualClock::new(0)), REMEMBERED_BITS + 3);
        for number in 0..8000 {
            meter.note_eviction(&key(number), number);
            meter.begin(&key(number), number + 1).end();
        }
        let figures = meter.figures();
        assert!((700..1300).contains(&figures.watched), "{figures:?}");
        assert_eq!(figures.returned, figures.watched);
    }

    #[test]
    fn time_of_reads_is_an_average() {
        let clock = Arc::new(ManualClock::new(0));
        let meter = CacheMeter::new(clock.clone(), 4);
        let read = |ns: u64| {
            let timed = meter.begin(&key(1), 0);
            clock.advance(Duration::from_nanos(ns));
            timed.end();
        };
        read(8000);
        assert_eq!(meter.figures().read_ns, 8000);
        (0..7).for_each(|_| read(1));
        assert_eq!(meter.figures().read_ns, 8000, "these reads are not timed");
        read(16_000);
        assert_eq!(meter.figures().read_ns, 9000);
    }
}
