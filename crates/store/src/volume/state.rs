//! The state of a volume's namespace as a value: names, and the content of each file.
//!
//! [`super::Volume`] owns it under its lock. A take-over builds it by replaying a generation
//! ([`super::generation`]). Both go through [`NamespaceState::apply`].
//!
//! Invariants:
//! 1. Every name belongs to a file that exists. A file without a name is forgotten.
//! 2. Every name lies in a directory that exists, and is normalised ([`plain`]).
//! 3. `next` is above all file numbers that were used, so that no number is used twice.
//! 4. A blob or a log is the content of at most one file.
//!
//! A pure value. Failure: a change that would break an invariant is refused and changes nothing.
//! That holds for a list of records as well: all of them are applied, or none.
//! Cost: a change costs a few look-ups in maps, and a copy of the records of the files that it
//! changes, from which a refusal restores them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::Path;

use archipelago_env::names::{NameTree, Refusal};

use super::record::{Content, FileKey, FileRecord, Record};
use crate::ids::{BlobId, LogId};

/// What a change made superfluous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// A file lost its last name. The record has the content that must be released, and no names.
    File(FileRecord),
    /// The blob or log of a file was replaced by another content. The file exists still.
    Content { key: FileKey, content: Content },
}

/// The state of a volume's namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceState {
    /// Files by number.
    files: BTreeMap<FileKey, FileRecord>,
    /// Names and directories.
    names: NameTree<FileKey>,
    /// The file of each blob.
    blobs: HashMap<BlobId, FileKey>,
    /// The file of each log.
    logs: HashMap<LogId, FileKey>,
    /// The next file number that was never used.
    next: u64,
}

impl NamespaceState {
    /// Carries out a change. Returns what it made superfluous.
    pub(crate) fn apply(&mut self, record: &Record) -> Result<Vec<Gone>, Refusal> { todo!() }
    /// Carries out all changes in order, or none.
    pub(crate) fn apply_all(&mut self, records: &[Record]) -> Result<Vec<Gone>, Refusal> { todo!() }
    /// Allocates a file number. It is durable when the record of a file has it.
    pub(crate) fn allocate(&mut self) -> FileKey { todo!() }
    /// The next file number that was never used.
    pub(crate) fn next(&self) -> u64 { self.next }
    /// Number of files.
    pub(crate) fn len(&self) -> usize { self.files.len() }
    /// Number of the file of this name.
    pub(crate) fn key(&self, path: &Path) -> Option<FileKey> { todo!() }
    /// The file of this number.
    pub(crate) fn get(&self, key: FileKey) -> Option<&FileRecord> { self.files.get(&key) }
    /// The file of this name.
    pub(crate) fn file(&self, path: &Path) -> Option<&FileRecord> { todo!() }
    /// All files, by number.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileRecord> { self.files.values() }
    /// The file whose content is this blob.
    pub(crate) fn blob_owner(&self, blob: BlobId) -> Option<FileKey> { todo!() }
    /// The file whose content is this log.
    pub(crate) fn log_owner(&self, log: LogId) -> Option<FileKey> { todo!() }
    /// Whether the path is a directory. Roots (`/` and the empty path) are directories.
    pub(crate) fn is_dir(&self, path: &Path) -> bool { todo!() }
    /// Entries of a directory, sorted by name: the number of a file, or `None` for a directory.
    /// `None` if there is no such directory.
    pub(crate) fn list(&self, dir: &Path) -> Option<Vec<(OsString, Option<FileKey>)>> { todo!() }
    /// Numbers of all files below a directory.
    pub(crate) fn keys_below(&self, dir: &Path) -> Vec<FileKey> { todo!() }
    /// Records that build this state from the empty one.
    pub(crate) fn snapshot(&self) -> impl Iterator<Item = Record> { todo!() }
}
