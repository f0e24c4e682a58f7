//! Space bookkeeping of the families that have separated values.
//!
//! [`crate::db::state::jobs::JobState`] owns one [`FamilySpace`] for each family that has had value
//! files since the database was opened. The jobs lock guards it. Everything that must be exact
//! follows from the version; this is memory that a restart may lose.

use std::sync::{Arc, Weak};

use crate::gc::pick::FailureLeave;
use crate::version::Version;

/// Memory of garbage collection in one family.
#[derive(Debug, Default)]
pub(crate) struct FamilySpace {
    /// Inputs of jobs that failed.
    failures: FailureLeave,
    /// The version in which the last look found nothing to collect.
    at_rest: Weak<Version>,
}

impl FamilySpace {
    pub(crate) fn failures(&self) -> &FailureLeave {
        &self.failures
    }

    pub(crate) fn failures_mut(&mut self) -> &mut FailureLeave {
        &mut self.failures
    }

    /// Whether nothing was to be collected in exactly this version.
    pub(crate) fn is_at_rest(&self, version: &Arc<Version>) -> bool {
        std::ptr::eq(self.at_rest.as_ptr(), Arc::as_ptr(version))
    }

    /// Notes that nothing is to be collected in this version.
    pub(crate) fn note_rest(&mut self, version: &Arc<Version>) {
        self.at_rest = Arc::downgrade(version);
    }

    /// The next look examines the version again.
    pub(crate) fn end_rest(&mut self) {
        self.at_rest = Weak::new();
    }
}
