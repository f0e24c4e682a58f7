//! Separated values of a case: their audit, and how often their garbage was collected.

use std::sync::atomic::Ordering;

use super::runner::Runner;
use crate::separation;

impl Runner {
    /// How often garbage was collected.
    pub(crate) fn collected(&self) -> u64 {
        self.seals.collected.load(Ordering::Relaxed)
    }

    /// What versions say of separated values is what a full scan finds.
    pub(super) fn check_values(&self) {
        self.seals.fragile.pause(true);
        separation::audit(&self.db);
        self.seals.fragile.pause(false);
    }

    /// The same, and no value file is left over. Nobody reads, and no background work is due.
    pub(crate) fn check_values_at_rest(&self) {
        match self.setting.is_manual() {
            true => drop(separation::audit_at_rest(&self.db)),
            false => self.check_values(),
        }
    }
}
