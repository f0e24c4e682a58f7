//! Separated values and their garbage collection: what they must survive.
//!
//! | module | concept |
//! | --- | --- |
//! | `admin` | calls of an operator: checkpoints, verification, ingestion, repair |
//! | `canaries` | defects that the tests of the other modules must notice |
//! | `complaints` | faults of other engines that their users have reported, by kind |
//! | `gc` | crash points and faults of jobs that write or collect value files |
//! | `races` | garbage collection in the middle of everything else |
//! | `read` | reads of separated values against inline values |
//! | `settings` | settings are refused by name and take effect at the open |
//! | `world` | a database with garbage, its model, and hooks at the steps of its jobs |
//!
//! [`Separation`] is an option of the model, metamorphic, crash and fault runs as well.

mod admin;
mod canaries;
mod complaints;
mod gc;
mod races;
mod read;
mod settings;
mod world;

use archipelago_base::{Error, Result};
use archipelago_engine::db::{Db, ValueAudit, audit_values};
use archipelago_engine::options::CfOptions;

/// Frequency of garbage collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collection {
    /// Garbage has no bound, and value files are large.
    Off,
    /// The bound is as tight as it may be, and value files are small.
    Eager,
    /// As tight as `Eager`, but no worker takes a job.
    Starved,
}

/// Treatment of large values in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Separation {
    /// Smallest separated value; 0 for none.
    pub(crate) bytes: u64,
    pub(crate) collection: Collection,
    /// Whether the Flat Index Cache keeps references.
    pub(crate) flat_index: bool,
}

impl Default for Separation {
    fn default() -> Self {
        Self::OFF
    }
}

impl Separation {
    pub(crate) const OFF: Self = Self { bytes: 0, collection: Collection::Off, flat_index: true };
    pub(crate) const EAGER: Self =
        Self { bytes: 64, collection: Collection::Eager, flat_index: true };

    /// One of the 24 combinations, in an order in which four neighbours have all thresholds.
    pub(crate) fn nth(nth: u64) -> Self {
        let bytes = [0, 64, 1, 512][nth as usize % 4];
        let collections = [Collection::Eager, Collection::Off, Collection::Starved];
        let (collection, flat_index) =
            (collections[nth as usize / 4 % 3], (nth / 12).is_multiple_of(2));
        Self { bytes, collection, flat_index }
    }

    /// Returns `family` with this treatment.
    pub(crate) fn of(self, family: CfOptions) -> CfOptions {
        let (value_file_bytes, space_amplification_max) = match self.collection {
            Collection::Off => (256 << 20, 0.0),
            Collection::Eager | Collection::Starved => (64 << 10, 1.05),
        };
        let value_separation_bytes = self.bytes;
        CfOptions { value_separation_bytes, value_file_bytes, space_amplification_max, ..family }
    }

    /// Answer of a fault point: the collector gets no job where it starves.
    pub(crate) fn reached(self, name: &str) -> Result<()> {
        match self.collection {
            Collection::Starved if name == "gc.pick" => Err(Error::busy("the collector starves")),
            _ => Ok(()),
        }
    }
}

/// Audits the separated values of a database.
pub(crate) fn audit(db: &Db) -> ValueAudit {
    let audit = audit_values(db).unwrap_or_else(|error| panic!("the audit found: {error}"));
    let missing: Vec<_> = audit.live.difference(&audit.on_disk).collect();
    assert!(missing.is_empty(), "value files are missing: {missing:?}");
    audit
}

/// Audits a database of which nothing is pinned and no job runs: no value file is left over.
pub(crate) fn audit_at_rest(db: &Db) -> ValueAudit {
    let audit = audit(db);
    let strays: Vec<_> = audit.on_disk.difference(&audit.live).collect();
    assert!(strays.is_empty(), "value files are left over: {strays:?}");
    audit
}
