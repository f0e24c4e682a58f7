//! How often which parts of a file are read: what copies of parts are planned by.
//!
//! A file is counted in ranges of equal length. A range knows the reads that began in it, where the
//! first of them begins and where the last ends, so that a copy holds the blocks that were read and
//! not what lies around them: a table's blocks are hardly longer than the ranges of a small table,
//! and would be cut by any other border.
//!
//! Reads of every second interval are counted apart: what ranges have more in both is no chance,
//! also where a scan reads several blocks of one at once.
//!
//! Thread-safe: counters, each for itself; a look sees some reads more of one range than of
//! another. Cost: four words a range, at most [`RANGES_MAX`] of them unless a range is set to fewer
//! bytes; a read adds one to a counter and compares twice.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// A file is counted in so many ranges, if they are of [`RANGE_BYTES_MIN`] at least.
const RANGES_MAX: u64 = 128;
/// Shorter than this (a block of a table) no range is.
const RANGE_BYTES_MIN: u64 = 4096;

/// A part of a file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where it begins.
    pub(crate) start: u64,
    /// Its bytes. Spans can overlap: a read may end in another range than it began in.
    pub(crate) len: u64,
    /// Aged reads that began in it…
    pub(crate) reads: u32,
    /// …and those of them in every second interval.
    pub(crate) odd: u32,
}

/// The length of the ranges of a file of `len` bytes; `set` unless that is 0.
fn range_bytes(len: u64, set: u64) -> u64 {
    if set > 0 {
        return set;
    }
    len.div_ceil(RANGES_MAX).next_multiple_of(RANGE_BYTES_MIN).max(RANGE_BYTES_MIN)
}

#[derive(Debug)]
struct Range {
    /// By whether they were in an odd interval.
    reads: [AtomicU32; 2],
    /// From the range's begin: where its first read begins…
    from: AtomicU32,
    /// …and where the one that reaches furthest ends.
    to: AtomicU32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct RangeReads {
    bytes: u64,
    /// Intervals that have passed, modulo 2.
    interval: AtomicUsize,
    /// How often reads came to count half.
    halvings: AtomicUsize,
    ranges: Box<[Range]>,
}

impl RangeReads {
    /// Of a file of `len` bytes, in ranges of `set` bytes or as many as suit it.
    pub(crate) fn new(len: u64, set: u64) -> Self {
        let bytes = range_bytes(len, set);
        let range = |_| Range {
            reads: [const { AtomicU32::new(0) }; 2],
            from: AtomicU32::new(u32::MAX),
            to: AtomicU32::new(0),
        };
        let ranges = (0..len.div_ceil(bytes).max(1)).map(range).collect();
        let [interval, halvings] = [const { AtomicUsize::new(0) }; 2];
        Self { bytes, interval, halvings, ranges }
    }

    /// How many ranges there are.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// How long each is.
    pub(crate) fn range_bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes a read of `len` bytes at `offset`.
    #[inline]
    pub(crate) fn count(&self, offset: u64, len: u64) {
        let Some(range) = self.ranges.get((offset / self.bytes) as usize) else { return };
        range.reads[self.interval.load(Ordering::Relaxed) & 1].fetch_add(1, Ordering::Relaxed);
        let from = u32::try_from(offset % self.bytes).unwrap_or(u32::MAX - 1);
        let to = u32::try_from(u64::from(from) + len).unwrap_or(u32::MAX);
        if from < range.from.load(Ordering::Relaxed) {
            range.from.fetch_min(from, Ordering::Relaxed);
        }
        if to > range.to.load(Ordering::Relaxed) {
            range.to.fetch_max(to, Ordering::Relaxed);
        }
    }

    /// Reads count half from now on.
    pub(crate) fn halve(&self) {
        // What cannot be halved is rounded up in every second range, in the others next time.
        let turn = self.halvings.fetch_add(1, Ordering::Relaxed);
        for (index, range) in self.ranges.iter().enumerate() {
            let [even, odd] = range.reads.each_ref().map(|reads| reads.load(Ordering::Relaxed));
            let (odd_u64, all) = (u64::from(odd), u64::from(even) + u64::from(odd));
            let kept_u64 = (all + ((index + turn) & 1) as u64) / 2;
            let kept_odd = ((odd_u64 * kept_u64 + all / 2) / all.max(1)) as u32;
            let kept = kept_u64 as u32;
            for (reads, (had, keeps)) in
                range.reads.iter().zip([(even, kept - kept_odd), (odd, kept_odd)])
            {
                reads.fetch_sub(had.saturating_sub(keeps), Ordering::Relaxed);
            }
        }
    }

    /// The next interval begins.
    pub(crate) fn next_interval(&self) {
        self.interval.fetch_xor(1, Ordering::Relaxed);
    }

    /// What was read, in order.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let read = self.ranges.iter().enumerate().filter_map(|(index, range)| {
            let [even, odd] = range.reads.each_ref().map(|reads| reads.load(Ordering::Relaxed));
            let reads = even.saturating_add(odd);
            let (from, to) = (range.from.load(Ordering::Relaxed), range.to.load(Ordering::Relaxed));
            // A read that is being noted has no length yet.
            (reads > 0 && from < to).then(|| Span {
                start: index as u64 * self.bytes + u64::from(from),
                len: u64::from(to - from),
                reads,
                odd,
            })
        });
        read.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_as_long_as_the_blocks_that_were_read_of_it() {
        let reads = RangeReads::new(100_000, 10_000);
        reads.count(12_000, 4000);
        reads.count(18_000, 4000);
        reads.count(12_000, 4000);
        reads.count(99_990, 10);
        let span = |start, len, reads, odd| Span { start, len, reads, odd };
        assert_eq!(reads.spans(), [span(12_000, 10_000, 3, 0), span(99_990, 10, 1, 0)]);
        reads.next_interval();
        (0..5).for_each(|_| reads.count(12_000, 4000));
        reads.next_interval();
        reads.count(12_000, 4000);
        assert_eq!(reads.spans()[0], span(12_000, 10_000, 9, 5));
        reads.halve();
        let last = span(99_990, 10, 1, 0);
        assert_eq!(reads.spans(), [span(12_000, 10_000, 5, 3), last], "rounded up");
        reads.halve();
        assert_eq!(reads.spans(), [span(12_000, 10_000, 2, 1)], "and down");
        reads.count(500_000, 10);
        assert_eq!(reads.spans().len(), 1, "past the end: not counted");
    }

    #[test]
    fn ranges_are_in_proportion_to_the_file_and_no_shorter_than_a_block() {
        assert_eq!(range_bytes(64 << 20, 0), 512 << 10);
        assert_eq!(range_bytes(512 << 10, 0), 4096);
        assert_eq!((range_bytes(0, 0), range_bytes(10, 0)), (4096, 4096));
        assert_eq!(range_bytes((1 << 20) + 1, 0), 12_288);
        assert_eq!(range_bytes(64 << 20, 100), 100);
        assert_eq!(RangeReads::new(512 << 10, 0).len(), 128);
        assert_eq!(RangeReads::new(0, 0).len(), 1);
    }
}
