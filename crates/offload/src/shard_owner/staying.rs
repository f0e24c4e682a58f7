//! Number of the newest sealed memtables that stay in the process (O³-LSM §5.3; decision 0092).
//!
//! The driver of an owner has one [`StayControl`]. The engine calls once a second, with the figures
//! of its reads. The control adds the times of the links and the hit rate of the key-offset cache,
//! and [`SettledRatio`] decides. With a fixed number the decision is made as well, so that figures
//! show the number that it would choose.
//!
//! Invariants:
//! 1. The number changes by at most one for each call.
//! 2. It does not change before a look-up at a node was measured, unless transfers do not keep up.
//!
//! Thread-safety: any thread may call any method. The lock is a leaf.
//! Failure: none.
//! Cost: a short lock once a second.

use archipelago_engine::remote::SealedReads;
use parking_lot::Mutex;

use super::state::StayingMemtables;
use crate::decide::{RatioInput, ReadTimes, SettledRatio, ratio};

/// Weight of a new window in the hit rate of the key-offset cache.
const WINDOW_WEIGHT: f64 = 0.25;

/// Mean times of the links to the nodes, in nanoseconds; 0 before they were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkTimes {
    pub(super) read_ns: u64,
    pub(super) request_ns: u64,
}

/// Counters of look-ups at nodes since the open of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeLookups {
    /// Keys that a record at a cached offset answered.
    pub(super) known: u64,
    /// Keys of all look-ups.
    pub(super) keys: u64,
}

/// Figures of the staying memtables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StayFigures {
    /// Memtables that stay.
    pub(super) staying: u64,
    /// Memtables that would stay for the shortest reads, by the last window.
    pub(super) best: u64,
    /// Windows after which one more has stayed, and one less.
    pub(super) raised: u64,
    pub(super) lowered: u64,
}

#[derive(Debug, Default)]
struct Control {
    settled: SettledRatio,
    lookups: NodeLookups,
    known: Option<f64>,
    figures: StayFigures,
}

/// Decides how many of the newest sealed memtables stay.
#[derive(Debug)]
pub(super) struct StayControl {
    setting: StayingMemtables,
    control: Mutex<Control>,
}

impl StayControl {
    pub(super) fn new(setting: StayingMemtables) -> Self {
        let staying = match setting {
            StayingMemtables::Fixed(count) => u64::from(count),
            StayingMemtables::Auto => 0,
        };
        let figures = StayFigures { staying, ..StayFigures::default() };
        Self { setting, control: Mutex::new(Control { figures, ..Control::default() }) }
    }

    /// The number after a window with these figures, or the present one without figures.
    pub(super) fn after(
        &self,
        reads: Option<&SealedReads<'_>>,
        times: LinkTimes,
        lookups: NodeLookups,
    ) -> usize {
        let mut control = self.control.lock();
        if let Some(reads) = reads {
            control.end_window(reads, times, lookups);
        }
        if self.setting == StayingMemtables::Auto {
            let (before, here) = (control.figures.staying, control.settled.here() as u64);
            control.figures.staying = here;
            control.figures.raised += u64::from(here > before);
            control.figures.lowered += u64::from(here < before);
        }
        control.figures.staying as usize
    }

    pub(super) fn figures(&self) -> StayFigures {
        self.control.lock().figures
    }
}

impl Control {
    fn end_window(&mut self, reads: &SealedReads<'_>, times: LinkTimes, lookups: NodeLookups) {
        let keys = lookups.keys.saturating_sub(self.lookups.keys);
        let known = lookups.known.saturating_sub(self.lookups.known);
        self.lookups = lookups;
        if keys > 0 {
            let share = (known as f64 / keys as f64).min(1.0);
            let before = self.known.unwrap_or(share);
            self.known = Some(before + (share - before) * WINDOW_WEIGHT);
        }
        if times.request_ns == 0 && self.settled.here() >= reads.least {
            return;
        }
        let read_ns = if times.read_ns > 0 { times.read_ns } else { times.request_ns };
        let input = RatioInput {
            answered: reads.answered,
            known: self.known.unwrap_or(0.0),
            misses: reads.misses,
            least: reads.least,
            times: ReadTimes {
                local_ns: reads.local_ns,
                read_ns: read_ns as f64,
                request_ns: times.request_ns as f64,
                storage_ns: reads.storage_ns,
            },
        };
        self.settled = self.settled.after(&input);
        self.figures.best = ratio(&input) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: LinkTimes = LinkTimes { read_ns: 2000, request_ns: 20_000 };

    fn reads<'a>(answered: &'a [f64], misses: &'a [f64]) -> SealedReads<'a> {
        SealedReads { answered, misses, least: 0, local_ns: 1000.0, storage_ns: 100_000.0 }
    }

    #[test]
    fn number_follows_reads_and_falls_without_them() {
        let control = StayControl::new(StayingMemtables::Auto);
        let young = reads(&[0.5, 0.3, 0.0], &[0.01; 4]);
        let after = |reads: &SealedReads<'_>, lookups| control.after(Some(reads), TIMES, lookups);
        let none = NodeLookups::default();
        let raised: Vec<usize> = (0..5).map(|_| after(&young, none)).collect();
        assert_eq!(raised, [0, 0, 1, 2, 2]);
        assert_eq!(control.after(None, TIMES, none), 2);
        let idle = reads(&[0.0; 3], &[0.0; 4]);
        let lowered: Vec<usize> = (0..5).map(|_| after(&idle, none)).collect();
        assert_eq!(lowered, [2, 2, 1, 0, 0]);
        let figures = control.figures();
        assert_eq!((figures.staying, figures.best), (0, 0));
        assert_eq!((figures.raised, figures.lowered), (2, 2));
    }

    #[test]
    fn known_offsets_let_memtables_leave() {
        // A request costs 19 µs more than memory, and a READ 1 µs.
        let costly = [0.50, 0.56, 0.62];
        let young = reads(&[0.5, 0.4], &costly);
        for (known, staying) in [(0, 2), (1, 0)] {
            let control = StayControl::new(StayingMemtables::Auto);
            let mut last = 0;
            for window in 1..=10 {
                let lookups = NodeLookups { known: known * window * 100, keys: window * 100 };
                last = control.after(Some(&young), TIMES, lookups);
            }
            assert_eq!(last, staying, "{known}");
        }
    }

    #[test]
    fn nothing_changes_before_a_request_was_measured() {
        let control = StayControl::new(StayingMemtables::Auto);
        let young = reads(&[0.5, 0.3], &[0.01; 3]);
        let unknown = LinkTimes::default();
        for _ in 0..10 {
            assert_eq!(control.after(Some(&young), unknown, NodeLookups::default()), 0);
        }
        let behind = SealedReads { least: 1, ..young };
        for _ in 0..10 {
            control.after(Some(&behind), unknown, NodeLookups::default());
        }
        assert_eq!(control.figures().staying, 1);
    }

    #[test]
    fn fixed_number_stays_and_shows_the_best_one() {
        let control = StayControl::new(StayingMemtables::Fixed(3));
        assert_eq!(control.after(None, LinkTimes::default(), NodeLookups::default()), 3);
        let young = reads(&[0.5, 0.0], &[0.01; 3]);
        for _ in 0..6 {
            assert_eq!(control.after(Some(&young), TIMES, NodeLookups::default()), 3);
        }
        assert_eq!((control.figures().staying, control.figures().best), (3, 1));
    }
}
