//! Measured reads of sealed memtables, by which the store decides how many of the newest ones stay.
//!
//! The link to the store owns one [`StayFigures`]. Look-ups count the sealed memtable that answered
//! them by its age: the newest sealed memtable has the age 0. A *window* ends after a second if
//! users have read enough, and after eight seconds in any case. The figures of a window move the
//! averages by a quarter of the difference, so no single window decides.
//!
//! Look-ups of batches count as well. A look-up that tables answer counts for no memtable, although
//! filters may have sent it to a node. A seek of an iterator counts as one read, for the oldest
//! sealed memtable with records within its bounds: it needs no node only if all of them stay.
//! Further steps of an iterator do not count. All seeks of an iterator count for the age that the
//! memtable had when the iterator was made, although newer memtables may have been sealed since.
//!
//! Invariants: the figures are estimates. Correctness depends on none of them.
//!
//! Thread-safety: any thread may call any method. A look-up takes no lock. The lock of the averages
//! is a leaf.
//! Failure: none.
//! Cost: a look-up that a sealed memtable answers, and a seek over sealed memtables, pay one
//! relaxed addition in the stripe of their thread. A window costs a pass over the stripes.

use archipelago_base::metrics::Counters;
use parking_lot::Mutex;

use crate::cache::BlockReads;

/// Largest number of sealed memtables that stay. Reads of older ones are not counted by age.
pub(crate) const AGES: usize = 16;
/// Counter of timed look-ups that a sealed memtable in memory answered.
const LOCAL_READS: usize = AGES;
/// Counter of the nanoseconds of these look-ups.
const LOCAL_NS: usize = AGES + 1;

/// Shortest window, in nanoseconds.
const WINDOW_NS_MIN: u64 = 1_000_000_000;
/// Longest window, in nanoseconds. It ends even if users read little.
const WINDOW_NS_MAX: u64 = 8_000_000_000;
/// Number of reads after which a window may end.
const WINDOW_READS_MIN: u64 = 128;
/// Weight of a new window in the averages.
const WINDOW_WEIGHT: f64 = 0.25;
/// Smallest share that is not taken for 0, and smallest number of blocks of a read.
const SHARE_MIN: f64 = 0.001;
/// Assumed time of a look-up in memory before one was measured, in nanoseconds.
const LOCAL_NS_DEFAULT: f64 = 1000.0;

/// Counters of an open database that only grow, as of one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadTotals {
    /// Look-ups of keys and seeks of iterators.
    pub(crate) reads: u64,
    /// Bytes that users have written.
    pub(crate) written_bytes: u64,
    /// Reads of blocks that missed the block cache.
    pub(crate) blocks: BlockReads,
}

/// Averages over the windows so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StayAverages {
    /// Share of the reads that a sealed memtable of each age answers.
    pub(crate) answered: [f64; AGES],
    /// Blocks that a read gets from storage.
    pub(crate) misses: f64,
    /// Share of these blocks that a slightly larger cache would have had.
    pub(crate) returned: f64,
    /// Time of a look-up that a sealed memtable in memory answers, in nanoseconds.
    pub(crate) local_ns: f64,
    /// Speed of the writers in the last window, in bytes a second.
    pub(crate) fill_bytes_per_s: u64,
}

/// The averages, and the totals at the begin of the present window.
#[derive(Debug, Default)]
struct Windows {
    began_ns: Option<u64>,
    totals: ReadTotals,
    answers: [u64; AGES],
    averages: StayAverages,
    is_measured: bool,
}

/// Counters of the reads of sealed memtables, and their averages.
#[derive(Debug, Default)]
pub(crate) struct StayFigures {
    counts: Counters<{ AGES + 2 }>,
    windows: Mutex<Windows>,
}

impl StayFigures {
    /// Counts a read that a sealed memtable of this age answered, or a seek that needs this
    /// memtable and all newer ones.
    #[inline]
    pub(crate) fn note_answer(&self, age: usize) {
        if age < AGES {
            self.counts.add(age, 1);
        }
    }

    /// Counts the time of a look-up that a sealed memtable in memory answered.
    pub(crate) fn note_local(&self, ns: u64) {
        self.counts.add(LOCAL_READS, 1);
        self.counts.add(LOCAL_NS, ns);
    }

    /// Ends the window at `now_ns` of the clock and returns the averages; `None` if the window goes
    /// on. `totals` is called only if the window has its least length.
    pub(crate) fn end_window(
        &self,
        now_ns: u64,
        totals: impl FnOnce() -> ReadTotals,
    ) -> Option<StayAverages> {
        let mut windows = self.windows.lock();
        let Some(began_ns) = windows.began_ns else {
            (windows.began_ns, windows.totals) = (Some(now_ns), totals());
            windows.answers = self.answers();
            return None;
        };
        let elapsed_ns = now_ns.saturating_sub(began_ns);
        if elapsed_ns < WINDOW_NS_MIN {
            return None;
        }
        let totals = totals();
        let reads = totals.reads.saturating_sub(windows.totals.reads);
        if reads < WINDOW_READS_MIN && elapsed_ns < WINDOW_NS_MAX {
            return None;
        }
        let answers = self.answers();
        let measured = window_of(&windows, reads, &answers, &totals.blocks);
        let local_ns = self.local_ns();
        let weight = if windows.is_measured { WINDOW_WEIGHT } else { 1.0 };
        windows.averages = moved(&windows.averages, &measured, weight);
        windows.averages.local_ns = local_ns;
        let written = totals.written_bytes.saturating_sub(windows.totals.written_bytes);
        windows.averages.fill_bytes_per_s = bytes_per_s(written, elapsed_ns);
        windows.is_measured |= reads > 0;
        (windows.began_ns, windows.totals, windows.answers) = (Some(now_ns), totals, answers);
        Some(windows.averages)
    }

    fn answers(&self) -> [u64; AGES] {
        std::array::from_fn(|age| self.counts.get(age))
    }

    /// Mean time of the timed look-ups so far, in nanoseconds.
    fn local_ns(&self) -> f64 {
        match self.counts.get(LOCAL_READS) {
            0 => LOCAL_NS_DEFAULT,
            reads => self.counts.get(LOCAL_NS) as f64 / reads as f64,
        }
    }
}

/// The figures of the window that ends with these counts. All are 0 if nothing was read.
fn window_of(
    windows: &Windows,
    reads: u64,
    answers: &[u64; AGES],
    blocks: &BlockReads,
) -> StayAverages {
    let before = &windows.totals.blocks;
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    let since = |now: u64, before: u64| now.saturating_sub(before);
    let answered = |age: usize| share(since(answers[age], windows.answers[age]), reads).min(1.0);
    let watched = since(blocks.watched, before.watched);
    StayAverages {
        answered: std::array::from_fn(answered),
        misses: share(since(blocks.reads, before.reads), reads),
        returned: share(since(blocks.returned, before.returned), watched).min(1.0),
        local_ns: 0.0,
        fill_bytes_per_s: 0,
    }
}

fn bytes_per_s(bytes: u64, ns: u64) -> u64 {
    let speed = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
    u64::try_from(speed).unwrap_or(u64::MAX)
}

/// The averages after a window of this weight. Averages that have almost fallen to nothing are 0,
/// so that memtables leave when users read no more.
fn moved(before: &StayAverages, window: &StayAverages, weight: f64) -> StayAverages {
    let mix = |before: f64, new: f64| {
        let mixed = before + (new - before) * weight;
        if mixed < SHARE_MIN { 0.0 } else { mixed }
    };
    StayAverages {
        answered: std::array::from_fn(|age| mix(before.answered[age], window.answered[age])),
        misses: mix(before.misses, window.misses),
        returned: mix(before.returned, window.returned),
        ..*before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn totals(reads: u64, block_reads: u64, returned: u64) -> ReadTotals {
        let watched = block_reads;
        let blocks = BlockReads { reads: block_reads, watched, returned, ..BlockReads::default() };
        ReadTotals { reads, blocks, written_bytes: reads * 1000 }
    }

    #[test]
    fn window_needs_a_second_of_enough_reads() {
        let figures = StayFigures::default();
        assert_eq!(figures.end_window(5, ReadTotals::default), None, "the first window begins");
        assert_eq!(figures.end_window(SECOND, || panic!("it is too early")), None);
        assert_eq!(figures.end_window(SECOND + 5, || totals(127, 0, 0)), None);
        assert!(figures.end_window(2 * SECOND, || totals(128, 0, 0)).is_some());
        assert_eq!(figures.end_window(9 * SECOND, || totals(130, 0, 0)), None);
        assert!(figures.end_window(10 * SECOND, || totals(130, 0, 0)).is_some());
    }

    #[test]
    fn shares_are_averages_over_windows() {
        let figures = StayFigures::default();
        figures.end_window(0, ReadTotals::default);
        (0..60).for_each(|_| figures.note_answer(0));
        (0..30).for_each(|_| figures.note_answer(2));
        figures.note_answer(AGES + 3);
        figures.note_local(400);
        figures.note_local(600);
        let first = figures.end_window(SECOND, || totals(300, 150, 15)).expect("it ends");
        assert_eq!((first.answered[0], first.answered[1], first.answered[2]), (0.2, 0.0, 0.1));
        assert_eq!((first.misses, first.returned, first.local_ns), (0.5, 0.1, 500.0));
        let second = figures.end_window(2 * SECOND, || totals(600, 150, 15)).expect("it ends");
        assert!((second.answered[0] - 0.15).abs() < 1e-9, "{second:?}");
        assert!((second.misses - 0.375).abs() < 1e-9, "{second:?}");
    }

    #[test]
    fn averages_fall_to_nothing_without_reads() {
        let figures = StayFigures::default();
        figures.end_window(0, ReadTotals::default);
        (0..100).for_each(|_| figures.note_answer(0));
        figures.end_window(SECOND, || totals(200, 100, 10)).expect("it ends");
        let mut last = StayAverages::default();
        for window in 1..40 {
            let now_ns = SECOND + window * WINDOW_NS_MAX;
            last = figures.end_window(now_ns, || totals(200, 100, 10)).expect("it ends");
        }
        assert_eq!((last.answered[0], last.misses, last.returned), (0.0, 0.0, 0.0));
        assert_eq!(last.local_ns, LOCAL_NS_DEFAULT);
    }
}
