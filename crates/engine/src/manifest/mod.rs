//! The manifest: which files, bucket maps and counters make up a database. The only visibility
//! boundary: a file that no manifest edit added does not exist for readers.
//!
//! A directory holds `IDENTITY` ("this is a database of ours, of that format": [`identity`]),
//! `CURRENT` (the name of the manifest that counts) and `MANIFEST-NNNNNN` ([`log`]): a header, a
//! full snapshot, then one record per [`VersionEdit`]. [`VersionSet`] owns them while the database
//! is open; `docs/formats/manifest.md` has every byte.
//!
//! Invariants:
//! 1. An edit applies to all column families that it names, or to none; it is synced before
//!    anybody sees what it makes.
//! 2. `CURRENT` names only a manifest whose header and snapshot are durable. It is replaced
//!    atomically.
//! 3. A counter that is persisted is never behind one that was handed out, except numbers of log
//!    segments and manifests, where recovery also looks at the names in the directory
//!    ([`numbers`]).
//! 4. A file leaves the directory only after the edit that removed it is durable.
//! 5. What was durable of a manifest is noted in other files, and recovery refuses a manifest that
//!    has less ([`mark`]).
//! 6. Each open for writing raises the owner epoch before it uses a number of a table ([`owner`]).
//!
//! Nothing here is thread-safe by itself except [`FileNumbers`]: the database keeps the set under a
//! lock. After a failed write the end of the manifest is unknown; see [`VersionSet::apply`].

mod dump;
pub mod edit;
pub mod identity;
pub mod log;
pub mod mark;
pub mod numbers;
pub mod owner;
mod set;
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
pub(crate) use state::{State, StateBuilder};

/// Version of the manifest's format, and of the database's as a whole.
pub const FORMAT_VERSION: u32 = 5;

/// Damage whose place the caller adds.
pub(crate) fn damaged(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}
