//! Read counts of a file by range, from which copies of ranges are planned.
//!
//! A file is counted in ranges of equal length. A range counts the reads that begin in it. It knows
//! where the first of these reads begins and where the last one ends. So a copy holds the blocks
//! that were read, and not the bytes around them: the blocks of a table are about as long as the
//! ranges of a small table, and any other border would cut them.
//!
//! Reads of every second interval are counted apart. If a range has more reads than others in both
//! halves, this is not chance, also if a scan reads several blocks of a range in one batch
//! ([`super::hot_ranges`]).
//!
//! Thread-safety: any thread may call any method. Each counter is independent, so that the control
//! loop may see a few more reads of one range than of another. Cost: four words per range, and at
//! most [`RANGES_MAX`] ranges unless the settings fix their length. A read adds to one counter and
//! compares twice.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Largest number of ranges of a file, unless the settings fix their length.
const RANGES_MAX: u64 = 128;
/// Least length of a range, in bytes: a block of a table.
const RANGE_BYTES_MIN: u64 = 4096;

/// The bytes of a range that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Offset in the file.
    pub(crate) start: u64,
    /// Length in bytes. Spans can overlap, because a read may end in a later range.
    pub(crate) len: u64,
    /// Aged reads that began in the range.
    pub(crate) reads: u32,
    /// Aged reads of those that began in every second interval.
    pub(crate) odd: u32,
}

/// Length of the ranges of a file of `len` bytes. It is `set`, unless that is 0.
fn range_bytes(len: u64, set: u64) -> u64 {
    if set > 0 {
        return set;
    }
    len.div_ceil(RANGES_MAX).next_multiple_of(RANGE_BYTES_MIN).max(RANGE_BYTES_MIN)
}

#[derive(Debug)]
struct Range {
    /// Aged reads of the even intervals, and of the odd ones.
    reads: [AtomicU32; 2],
    /// Least offset in the range at which a read begins.
    from: AtomicU32,
    /// Largest offset, from the beginning of the range, at which one of its reads ends.
    to: AtomicU32,
}

/// The read counts of one file, by range.
#[derive(Debug)]
pub(crate) struct RangeReads {
    bytes: u64,
    /// Number of past intervals. Only its lowest bit counts.
    interval: AtomicUsize,
    /// Number of times that the counts were halved.
    halvings: AtomicUsize,
    ranges: Box<[Range]>,
}

impl RangeReads {
    /// Counts for a file of `len` bytes, in ranges of `set` bytes. If `set` is 0, the length of the
    /// ranges follows from that of the file.
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

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Length of each range, in bytes.
    pub(crate) fn range_bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts a read of `len` bytes at `offset`.
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

    /// Halves all counts.
    pub(crate) fn halve(&self) {
        // Odd counts are rounded up in every second range, and in the other ranges next time.
        let halving = self.halvings.fetch_add(1, Ordering::Relaxed);
        for (index, range) in self.ranges.iter().enumerate() {
            let [even, odd] = range.reads.each_ref().map(|reads| reads.load(Ordering::Relaxed));
            let (odd_u64, all) = (u64::from(odd), u64::from(even) + u64::from(odd));
            let kept_u64 = (all + ((index + halving) & 1) as u64) / 2;
            let kept_odd = ((odd_u64 * kept_u64 + all / 2) / all.max(1)) as u32;
            let kept = kept_u64 as u32;
            for (reads, (had, keeps)) in
                range.reads.iter().zip([(even, kept - kept_odd), (odd, kept_odd)])
            {
                reads.fetch_sub(had.saturating_sub(keeps), Ordering::Relaxed);
            }
        }
    }

    /// Begins the next interval.
    pub(crate) fn next_interval(&self) {
        self.interval.fetch_xor(1, Ordering::Relaxed);
    }

    /// The ranges that were read, in order.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let read = self.ranges.iter().enumerate().filter_map(|(index, range)| {
            let [even, odd] = range.reads.each_ref().map(|reads| reads.load(Ordering::Relaxed));
            let reads = even.saturating_add(odd);
            let (from, to) = (range.from.load(Ordering::Relaxed), range.to.load(Ordering::Relaxed));
            // A read that another thread counts at the moment may have no length yet.
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
    fn span_covers_the_blocks_that_were_read() {
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
    fn range_length_follows_file_length() {
        assert_eq!(range_bytes(64 << 20, 0), 512 << 10);
        assert_eq!(range_bytes(512 << 10, 0), 4096);
        assert_eq!((range_bytes(0, 0), range_bytes(10, 0)), (4096, 4096));
        assert_eq!(range_bytes((1 << 20) + 1, 0), 12_288);
        assert_eq!(range_bytes(64 << 20, 100), 100);
        assert_eq!(RangeReads::new(512 << 10, 0).len(), 128);
        assert_eq!(RangeReads::new(0, 0).len(), 1);
    }
}
