//! File numbers of one attempt of one job.
//!
//! Every attempt reserves numbers of its own, so that two executions of a job, here or in another
//! process, never write the same file. The numbers of an attempt that ends without an install go to
//! [`crate::db::state::strays`]. The background sweep removes files that a late execution writes.
//!
//! Invariants:
//! 1. Numbers are durably reserved before the job may use them.
//! 2. [`JobNumbers::note_installed`] follows the edit that installs the outputs. After a drop
//!    without it, no edit installs a file with one of the numbers. A drop during a panic is an
//!    exception, because the outcome of the job is then unknown.
//!
//! Thread-safety: one thread owns the numbers of a job.
//! Failure: a reservation fails if its edit fails, for example on a full disk. The job fails then,
//! and is tried again.
//! Cost: see [`Storage::reserve_numbers`](crate::db::state::storage::Storage::reserve_numbers).

use std::cell::RefCell;

use archipelago_base::Result;

use crate::db::inner::DbInner;
use crate::job::spec::FileNumbers;
use crate::lock_order::{Before, ManifestLock, NoLock, Order};

/// The numbers that one attempt of a job may use.
pub(crate) struct JobNumbers<'a, Held = NoLock> {
    db: &'a DbInner,
    /// Locks of the thread that plans the job.
    order: Order<Held>,
    reserved: RefCell<Vec<FileNumbers>>,
}

impl<'a, Held: Before<ManifestLock>> JobNumbers<'a, Held> {
    /// An empty set of numbers, for a job that a thread plans under the locks of `order`.
    pub(crate) fn new(db: &'a DbInner, order: Order<Held>) -> Self {
        Self { db, order, reserved: RefCell::default() }
    }

    /// The database of the job.
    pub(crate) fn db(&self) -> &'a DbInner {
        self.db
    }

    /// Reserves `count` consecutive numbers for the job.
    pub(crate) fn reserve(&self, count: u64) -> Result<FileNumbers> {
        let numbers = self.db.storage.reserve_numbers(count, self.order)?;
        self.reserved.borrow_mut().push(numbers);
        Ok(numbers)
    }
}

impl<Held> JobNumbers<'_, Held> {
    /// Notes that an edit has installed the outputs of the job.
    pub(crate) fn note_installed(&self) {
        self.reserved.borrow_mut().clear();
    }
}

impl<Held> Drop for JobNumbers<'_, Held> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The edit may have been made. The next open removes the files that it does not name.
            return;
        }
        let now_ns = self.db.context.clock().now_ns();
        for numbers in self.reserved.take() {
            self.db.storage.strays().note_ended(numbers, now_ns);
        }
    }
}
