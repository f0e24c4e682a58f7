//! File numbers of one attempt of one job.
//!
//! Every attempt reserves numbers of its own, so that two executions of a job, here or in another
//! process, never write the same file. The numbers of an attempt that ends without an install go to
//! [`crate::db::state::strays`]. The background sweep removes files that a late execution writes.
//!
//! Invariants:
//! 1. Numbers are durably reserved before the job may use them.
//! 2. [`JobNumbers::note_installed`] follows the edit that installs the outputs. After a drop
//!    without it, no edit installs a file with one of the numbers that were not kept. A drop during
//!    a panic is an exception, because the outcome of the job is then unknown.
//! 3. [`JobNumbers::keep`] precedes the first reader of a table that no edit names. The numbers of
//!    such tables are no strays: a later edit names them, or the trash removes them with their last
//!    reader.
//!
//! Thread-safety: one thread owns the numbers of a job.
//! Failure: a reservation fails if its edit fails, for example on a full disk. The job fails then,
//! and is tried again.
//! Cost: see [`Storage::reserve_numbers`](crate::db::state::storage::Storage::reserve_numbers).

use std::cell::RefCell;

use archipelago_base::Result;

use crate::db::background::owners::JobOwners;
use crate::job::spec::FileNumbers;
use crate::lock_order::{Before, ManifestLock, NoLock, Order};

/// The numbers that one attempt of a job may use.
pub(crate) struct JobNumbers<'a, Held = NoLock> {
    owners: JobOwners<'a>,
    /// Locks of the thread that plans the job.
    order: Order<Held>,
    reserved: RefCell<Vec<FileNumbers>>,
}

impl<'a, Held: Before<ManifestLock>> JobNumbers<'a, Held> {
    /// An empty set of numbers, for a job that a thread plans under the locks of `order`.
    pub(crate) fn new(owners: JobOwners<'a>, order: Order<Held>) -> Self {
        Self { owners, order, reserved: RefCell::default() }
    }

    /// The owners that the plan of the job needs.
    pub(crate) fn owners(&self) -> JobOwners<'a> {
        self.owners
    }

    /// Reserves `count` consecutive numbers for the job.
    pub(crate) fn reserve(&self, count: u64) -> Result<FileNumbers> {
        let numbers = self.owners.storage.reserve_numbers(count, self.order)?;
        self.reserved.borrow_mut().push(numbers);
        Ok(numbers)
    }
}

impl<Held> JobNumbers<'_, Held> {
    /// Notes that an edit has installed the outputs of the job.
    pub(crate) fn note_installed(&self) {
        self.reserved.borrow_mut().clear();
    }

    /// Takes a number out of the reserved ones, because readers use its table from now on.
    pub(crate) fn keep(&self, no: u64) {
        let mut reserved = self.reserved.borrow_mut();
        *reserved = reserved.iter().flat_map(|row| without(*row, no)).collect();
    }

    /// Whether the number is reserved, and neither kept nor installed.
    pub(crate) fn contains(&self, no: u64) -> bool {
        self.reserved.borrow().iter().any(|row| has_number(*row, no))
    }
}

fn has_number(row: FileNumbers, no: u64) -> bool {
    no.checked_sub(row.first).is_some_and(|at| at < row.count)
}

/// The numbers of `row` before and after `no`.
fn without(row: FileNumbers, no: u64) -> Vec<FileNumbers> {
    if !has_number(row, no) {
        return vec![row];
    }
    let before = FileNumbers { first: row.first, count: no - row.first };
    let after = FileNumbers { first: no + 1, count: row.count - before.count - 1 };
    [before, after].into_iter().filter(|row| row.count > 0).collect()
}

impl<Held> Drop for JobNumbers<'_, Held> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The edit may have been made. The next open removes the files that it does not name.
            return;
        }
        let now_ns = self.owners.context.clock().now_ns();
        for numbers in self.reserved.take() {
            self.owners.storage.strays().note_ended(numbers, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_without_a_number_has_all_others() {
        let row = FileNumbers { first: 10, count: 4 };
        for no in 8..16 {
            let left = without(row, no);
            assert!(left.iter().all(|row| row.count > 0), "an empty row: {left:?}");
            for other in 8..16 {
                let is_left = left.iter().any(|row| has_number(*row, other));
                let was_there = (10..14).contains(&other);
                assert_eq!(is_left, was_there && other != no, "{other} in {left:?}");
            }
        }
    }
}
