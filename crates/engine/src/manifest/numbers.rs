//! Numbers of new files, and the lot that makes them safe to hand to other processes.
//!
//! A *lot* is a row of numbers that an edit has made durable before the first of them is used. Only
//! numbers of a lot go to jobs, which another process may run. A recovery begins after the last
//! lot, so no number is ever handed out twice. So a process that still works for a dead owner
//! cannot meet a file of the next owner.
//!
//! [`VersionSet`](super::VersionSet) owns the numbers and renews the lot with each edit.
//!
//! Invariants:
//! 1. [`FileNumbers::take`] returns only numbers below the durable end of the lot.
//! 2. No number is given twice, and numbers grow.
//! 3. [`FileNumbers::allocate`] may pass the end of the lot. Its numbers name files that only the
//!    owner of the directory creates (log segments and manifests), and recovery reads their names
//!    in the directory.
//!
//! Thread-safety: any thread may call any method. Failure: none.
//! Cost: one or two atomic operations, once for each file of the owner and once for each job.

use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::FileNo;

/// Number of numbers in a new lot beyond those that are needed immediately. A job takes some
/// dozens, so a lot serves the jobs between two edits.
pub(crate) const LOT_NUMBERS: u64 = 4096;

/// Hands out file numbers.
#[derive(Debug)]
pub struct FileNumbers {
    /// The number that comes next.
    next: AtomicU64,
    /// End of the lot: a durable edit says that every number below it may be in use.
    lot_end: AtomicU64,
}

impl FileNumbers {
    /// A source of numbers from `next` on, with a lot that ends at `lot_end`.
    pub(super) fn new(next: FileNo, lot_end: FileNo) -> Self {
        Self { next: AtomicU64::new(next.0), lot_end: AtomicU64::new(lot_end.0) }
    }

    /// A source of numbers from `next` on, for an owner that writes no edit and whose files lie in
    /// directories of their own.
    pub(super) fn without_lots(next: FileNo) -> Self {
        Self::new(next, FileNo(u64::MAX))
    }

    /// A number that no file of this database has or had, for a file that only the owner of the
    /// directory creates.
    pub fn allocate(&self) -> FileNo {
        FileNo(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The first of `count` consecutive numbers that are durably reserved, for files that another
    /// process may create. `None` if the lot has fewer; then
    /// [`VersionSet::renew_lot`](super::VersionSet::renew_lot) makes a new one.
    #[must_use]
    pub fn take(&self, count: u64) -> Option<FileNo> {
        let lot_end = self.lot_end.load(Ordering::Acquire);
        let after = |next: u64| next.checked_add(count).filter(|&end| end <= lot_end);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok().map(FileNo)
    }

    /// Prevents numbers below `no` from being handed out from now on.
    pub(crate) fn raise(&self, no: FileNo) {
        self.next.fetch_max(no.0, Ordering::Relaxed);
    }

    /// The number that comes next.
    #[must_use]
    pub fn next(&self) -> FileNo {
        FileNo(self.next.load(Ordering::Relaxed))
    }

    /// End of a lot that serves a request for `count` numbers.
    pub(super) fn lot_end_for(&self, count: u64) -> FileNo {
        let next = self.next.load(Ordering::Relaxed);
        FileNo(next.saturating_add(count).saturating_add(LOT_NUMBERS))
    }

    /// Notes that an edit has made the numbers below `end` durable.
    pub(super) fn note_lot(&self, end: FileNo) {
        self.lot_end.fetch_max(end.0, Ordering::Release);
    }

    /// Whether half of a lot is used, so that a background edit should renew it before a job has to
    /// wait for one.
    #[must_use]
    pub fn is_half_used(&self) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        next.saturating_add(LOT_NUMBERS / 2) > self.lot_end.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_numbers_lie_below_the_end_of_the_lot() {
        let numbers = FileNumbers::new(FileNo(7), FileNo(7));
        assert_eq!(numbers.take(1), None, "the lot is empty");
        assert_eq!(numbers.allocate(), FileNo(7), "the owner's own files need no lot");
        numbers.note_lot(FileNo(12));
        assert_eq!(numbers.take(3), Some(FileNo(8)));
        assert_eq!(numbers.take(2), None);
        assert_eq!(numbers.take(1), Some(FileNo(11)));
        assert_eq!(numbers.take(1), None);
        assert_eq!(numbers.take(u64::MAX), None, "no overflow");
        numbers.note_lot(FileNo(9));
        assert_eq!(numbers.take(1), None, "a lot never shrinks");
        assert_eq!(numbers.next(), FileNo(12), "a refusal takes nothing");
    }

    #[test]
    fn threads_take_rows_that_do_not_overlap() {
        let numbers = FileNumbers::new(FileNo(1), FileNo(100_001));
        let mut taken: Vec<(u64, u64)> = std::thread::scope(|scope| {
            let take = |count: u64| {
                let numbers = &numbers;
                move || {
                    let rows = (0..1000).filter_map(|_| numbers.take(count));
                    rows.map(|first| (first.0, first.0 + count)).collect::<Vec<_>>()
                }
            };
            let threads: Vec<_> = (1..5).map(|count| scope.spawn(take(10 * count))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("takes")).collect()
        });
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        assert!(taken.last().is_some_and(|(_, end)| *end <= 100_001 && *end > 99_900));
    }

    #[test]
    fn lot_is_half_used_before_it_ends() {
        let numbers = FileNumbers::new(FileNo(1), FileNo(1));
        assert!(numbers.is_half_used());
        numbers.note_lot(numbers.lot_end_for(0));
        assert!(!numbers.is_half_used());
        assert_eq!(numbers.take(LOT_NUMBERS / 2), Some(FileNo(1)));
        assert!(!numbers.is_half_used());
        assert!(numbers.take(1).is_some());
        assert!(numbers.is_half_used());
        assert!(numbers.take(LOT_NUMBERS / 2 - 1).is_some(), "the other half is there");
        assert!(FileNumbers::without_lots(FileNo(3)).take(1 << 40).is_some());
    }
}
