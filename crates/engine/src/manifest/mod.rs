//! The manifest: the files, bucket maps and counters that make up a database. It is the only
//! visibility boundary: a file that no manifest edit added does not exist for readers.
//!
//! A directory holds `IDENTITY` ([`identity`]), which marks it as an Archipelago database of a
//! format version. `CURRENT` names the current manifest. `MANIFEST-NNNNNN` ([`log`]) has a header,
//! a full snapshot, and then one record per [`VersionEdit`]. [`VersionSet`] owns these files while
//! the database is open. `docs/formats/manifest.md` describes every byte.
//!
//! Invariants:
//! 1. An edit applies to all column families that it names, or to none. It is synced before any
//!    reader sees its result.
//! 2. `CURRENT` names only a manifest whose header and snapshot are durable. It is replaced
//!    atomically.
//! 3. A persisted counter is never below a number that was handed out. The exceptions are numbers
//!    of log segments and manifests: for these, recovery also reads the names in the directory
//!    ([`numbers`]).
//! 4. A file leaves the directory only after the edit that removed it is durable.
//! 5. What was durable of a manifest is noted in other files, and recovery refuses a manifest that
//!    has less ([`mark`]).
//! 6. Each open for writing raises the owner epoch before it uses a number of a table ([`owner`]).
//!
//! Thread-safety: only [`FileNumbers`] may be shared between threads. The database keeps the set
//! under a lock. Failure: after a failed write the end of the manifest is unknown
//! ([`VersionSet::apply`]).

mod dump;
pub mod edit;
pub mod identity;
pub mod log;
pub mod mark;
pub mod numbers;
pub mod owner;
mod set;
mod space;
mod state;

#[cfg(test)]
mod tests;

use archipelago_base::{Error, ErrorKind};

pub use dump::dump;
pub use edit::{Change, VersionEdit};
pub use identity::{DirectoryState, Identity, inspect};
pub use mark::{Evidence, LogMark, Marks};
pub use numbers::FileNumbers;
pub use owner::{Owner, OwnerClaim};
pub use set::{DEFAULT_CF_NAME, Exporter, VersionSet, file_number};
pub(crate) use set::{ImpossibleEdit, read_state};
pub use space::{BoundFigures, ShadowFigures, SpaceFigures};
pub(crate) use state::{State, StateBuilder};

/// Version of the manifest's format, and of the database's as a whole.
pub const FORMAT_VERSION: u32 = 5;

/// Makes an error for damage, to which the caller adds the file and the offset.
pub(crate) fn damaged(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}
