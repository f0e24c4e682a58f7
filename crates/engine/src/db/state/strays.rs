//! Tables that no edit will ever install, by their numbers.
//!
//! [`Storage`](crate::db::state::storage::Storage) owns one [`Strays`]. A job that another process
//! runs may write its files long after the owner has given the job up, or after the owner has died.
//! [`crate::db::background::sweep`] removes such files.
//!
//! A table is a stray in exactly two cases:
//!
//! - A job of this open got its number and ended without an install, and no reader has used the
//!   file meanwhile ([`crate::db::background::written_shards`]).
//! - Its number lies below the first lot of this open, and the version that the open recovered does
//!   not name it.
//!
//! Invariants:
//! 1. No edit of this open names the number of a stray, because a number serves one attempt of one
//!    job.
//! 2. A file that an old version or an iterator holds was named by an edit or by the recovered
//!    version, or it was published before its edit. So it is no stray.
//!
//! Thread-safety: any thread may call any method.
//! Failure: if too many jobs have failed, the oldest numbers are forgotten. The next open removes
//! their files.
//! Cost: the numbers of the recovered version, and 16 bytes for each row of numbers of failed jobs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::FileNo;
use parking_lot::Mutex;

use crate::job::spec::FileNumbers;

/// Time between two sweeps, in nanoseconds: ten minutes.
const SWEEP_INTERVAL_NS: u64 = 600_000_000_000;
/// Time from the end of a failed job to the next sweep, in nanoseconds: one minute.
const SWEEP_DELAY_NS: u64 = 60_000_000_000;
/// Largest number of rows of numbers of failed jobs that are kept. Rows that touch count as one.
const ROWS_MAX: usize = 4096;

/// Rows of consecutive file numbers: the first number of each row, and the number after its last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NumberRows(BTreeMap<u64, u64>);

impl NumberRows {
    /// Adds a row.
    fn add(&mut self, row: FileNumbers) {
        let (mut start, mut end) = (row.first, row.first.saturating_add(row.count));
        if start == end {
            return;
        }
        // Finds the last row that begins at or before the end of the new row, if it touches the new
        // row.
        let touching = |rows: &BTreeMap<u64, u64>, start: u64, end: u64| {
            let last = rows.range(..=end).next_back().map(|(&first, &past)| (first, past));
            last.filter(|&(_, past)| past >= start)
        };
        while let Some((first, past)) = touching(&self.0, start, end) {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(past));
        }
        self.0.insert(start, end);
        if self.0.len() > ROWS_MAX {
            self.0.pop_first();
        }
    }

    /// Whether a row has the number.
    pub(crate) fn contains(&self, no: u64) -> bool {
        self.0.range(..=no).next_back().is_some_and(|(_, &past)| no < past)
    }
}

/// The strays of an open database, and when they are removed next.
pub(crate) struct Strays {
    /// Start of the first lot of this open.
    first_lot: FileNo,
    /// Numbers of the files that the recovered version names, ascending.
    recovered: Box<[u64]>,
    /// Numbers of jobs of this open that ended without an install.
    ended: Mutex<NumberRows>,
    /// Time of the next sweep, in nanoseconds of the clock; [`u64::MAX`] before the first call of
    /// [`Strays::begin_sweep`].
    due_ns: AtomicU64,
}

impl Strays {
    /// The strays of an open whose numbers begin at `first_lot`, and whose recovered version names
    /// `recovered`.
    pub(crate) fn new(first_lot: FileNo, recovered: impl Iterator<Item = u64>) -> Self {
        let mut recovered: Box<[u64]> = recovered.collect();
        recovered.sort_unstable();
        Self { first_lot, recovered, ended: Mutex::default(), due_ns: AtomicU64::new(u64::MAX) }
    }

    /// Notes that the job with these numbers has ended at `now_ns`, and that no edit installs and
    /// no reader uses a file with one of them.
    pub(crate) fn note_ended(&self, numbers: FileNumbers, now_ns: u64) {
        self.ended.lock().add(numbers);
        self.due_ns.fetch_min(now_ns.saturating_add(SWEEP_DELAY_NS), Ordering::Relaxed);
    }

    /// Numbers of jobs that have ended without an install so far. If the manifest is settled after
    /// this call, no edit names these numbers.
    pub(crate) fn ended(&self) -> NumberRows {
        self.ended.lock().clone()
    }

    /// Whether a table with the number `no` is a stray, if `ended` holds the numbers of jobs that
    /// ended without an install.
    pub(crate) fn is_stray(&self, no: FileNo, ended: &NumberRows) -> bool {
        if no < self.first_lot {
            return self.recovered.binary_search(&no.0).is_err();
        }
        ended.contains(no.0)
    }

    /// Whether a sweep is due at `now_ns`. A caller that gets `true` makes the sweep, and no other
    /// caller gets `true` for it.
    pub(crate) fn begin_sweep(&self, now_ns: u64) -> bool {
        let due_ns = self.due_ns.load(Ordering::Relaxed);
        // The open itself has removed the strays that it found, so the first call begins an
        // interval.
        let is_first = due_ns == u64::MAX;
        if now_ns < due_ns && !is_first {
            return false;
        }
        let next_ns = now_ns.saturating_add(SWEEP_INTERVAL_NS);
        let swapped =
            self.due_ns.compare_exchange(due_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed);
        swapped.is_ok() && !is_first
    }

    /// Puts off a sweep that could not be made at `now_ns`.
    pub(crate) fn put_off(&self, now_ns: u64) {
        self.due_ns.fetch_min(now_ns.saturating_add(SWEEP_DELAY_NS), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use archipelago_base::random::Rng;

    use super::*;

    #[test]
    fn rows_hold_what_was_added() {
        let mut rng = Rng::with_seed(11);
        for _ in 0..200 {
            let (mut rows, mut model) = (NumberRows::default(), BTreeSet::new());
            for _ in 0..rng.u64(0..20) {
                let (first, count) = (rng.u64(0..100), rng.u64(0..15));
                rows.add(FileNumbers { first, count });
                model.extend(first..first + count);
            }
            for no in 0..120 {
                assert_eq!(rows.contains(no), model.contains(&no), "{no} in {rows:?}");
            }
            let ends: Vec<_> = rows.0.iter().collect();
            assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{rows:?} touch");
        }
    }

    #[test]
    fn rows_of_many_failed_jobs_are_bounded() {
        let strays = Strays::new(FileNo(10), [3, 5].into_iter());
        for job in 0..2 * ROWS_MAX as u64 {
            strays.note_ended(FileNumbers { first: 10 + 3 * job, count: 2 }, 0);
        }
        let ended = strays.ended();
        assert_eq!(ended.0.len(), ROWS_MAX);
        let newest = 10 + 3 * (2 * ROWS_MAX as u64 - 1);
        assert!(ended.contains(newest) && !ended.contains(10), "the oldest are forgotten");
    }

    #[test]
    fn strays_are_neither_named_nor_in_use() {
        let strays = Strays::new(FileNo(10), [5, 3].into_iter());
        let none = strays.ended();
        let found = |ended: &NumberRows| -> Vec<u64> {
            (1..16).filter(|&no| strays.is_stray(FileNo(no), ended)).collect()
        };
        assert_eq!(found(&none), [1, 2, 4, 6, 7, 8, 9], "running jobs have the later ones");
        strays.note_ended(FileNumbers { first: 12, count: 2 }, 0);
        assert_eq!(found(&strays.ended()), [1, 2, 4, 6, 7, 8, 9, 12, 13]);
    }

    #[test]
    fn sweep_is_due_by_the_clock_and_after_a_failed_job() {
        let strays = Strays::new(FileNo(1), std::iter::empty());
        assert!(!strays.begin_sweep(5), "the open has swept");
        assert!(!strays.begin_sweep(5 + SWEEP_INTERVAL_NS - 1));
        let second = 5 + SWEEP_INTERVAL_NS;
        assert!(strays.begin_sweep(second));
        assert!(!strays.begin_sweep(second), "one caller makes it");
        strays.note_ended(FileNumbers { first: 3, count: 2 }, second);
        assert!(!strays.begin_sweep(second + SWEEP_DELAY_NS - 1));
        assert!(strays.begin_sweep(second + SWEEP_DELAY_NS));
        strays.put_off(second + SWEEP_DELAY_NS);
        assert!(strays.begin_sweep(second + 2 * SWEEP_DELAY_NS));
    }
}
