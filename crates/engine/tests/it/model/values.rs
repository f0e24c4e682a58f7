//! Separated values of a case: their audit, and how often their garbage was collected.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::runner::Runner;
use crate::separation;

impl Runner {
    /// Number of garbage collections so far.
    pub(crate) fn collected(&self) -> u64 {
        self.seals.collected.load(Ordering::Relaxed)
    }

    /// Checks that the figures of versions about separated values agree with a full scan.
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

    /// Like the check above, and no value file is left over. No reader is active, and no background
    /// work is due.
    pub(crate) fn check_values_at_rest(&self) {
        if !self.setting.is_manual() {
            return self.check_values();
        }
        if !self.setting.leaves_files() {
            drop(separation::audit_at_rest(&self.db));
            return;
        }
        // An executor that does not answer may still write, so its files stay until the sweep.
        let audit = separation::audit(&self.db);
        let accounted: BTreeSet<u64> = audit.live.union(&audit.given_up).copied().collect();
        let strays: Vec<_> = audit.on_disk.difference(&accounted).collect();
        assert!(strays.is_empty(), "value files are left over: {strays:?}");
    }
}
