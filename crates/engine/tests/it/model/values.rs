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

    /// Look-ups in the Flat Index Cache since the open: those that found a piece, and the others.
    pub(crate) fn flat_lookups(&self) -> (u64, u64) {
        let count = |what: &str| -> u64 {
            let name = format!("archipelago.block-cache-flat-{what}");
            let text = self.db.property(self.db.default_family(), &name);
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let lookups = (count("hit"), count("miss"));
        assert!(self.setting.separation.flat_index || lookups == (0, 0), "{lookups:?}");
        lookups
    }

    /// The same, and no value file is left over. Nobody reads, and no background work is due.
    pub(crate) fn check_values_at_rest(&self) {
        match self.setting.is_manual() {
            true => drop(separation::audit_at_rest(&self.db)),
            false => self.check_values(),
        }
    }
}
