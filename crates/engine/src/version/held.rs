//! Numbers of value files that running jobs may still install references to.
//!
//! The owner of a database has one [`HeldNumbers`]. A job that copies references reads from a
//! version which file holds the values of each number, and its outputs name those files. Garbage
//! collection may replace such a file while the job runs. The map of heirs must then keep the
//! entry, although no table names the number before the job is installed. A job therefore holds its
//! numbers first, and then reads the version again. If the version is unchanged, an edit that
//! replaces one of the files sees the hold.
//!
//! Thread-safety: any thread may call any method. Cost: one lock and a map operation per number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::sabotage::{Defect, has};

/// Numbers of value files that running jobs hold, with the number of holders.
#[derive(Clone, Debug, Default)]
pub struct HeldNumbers {
    holders: Arc<Mutex<BTreeMap<u64, usize>>>,
}

impl HeldNumbers {
    /// Holds `numbers` until the result is dropped.
    #[must_use]
    pub fn hold(&self, numbers: impl IntoIterator<Item = u64>) -> Hold {
        let numbers: Vec<u64> = numbers.into_iter().collect();
        let mut holders = self.holders.lock();
        for &no in &numbers {
            *holders.entry(no).or_default() += 1;
        }
        drop(holders);
        Hold { all: self.clone(), numbers }
    }

    /// The numbers that are held now; their heirs are not pruned.
    pub(super) fn numbers(&self) -> BTreeSet<u64> {
        if has(Defect::PruningUnderJobs) {
            return BTreeSet::new();
        }
        self.holders.lock().keys().copied().collect()
    }
}

/// A job's hold on some numbers.
#[derive(Debug)]
pub struct Hold {
    all: HeldNumbers,
    numbers: Vec<u64>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut holders = self.all.holders.lock();
        for no in &self.numbers {
            if let Some(count) = holders.get_mut(no) {
                *count -= 1;
                if *count == 0 {
                    holders.remove(no);
                }
            }
        }
    }
}
