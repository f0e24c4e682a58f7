//! The state of a volume's namespace as a value: names, and the content of each file.
//!
//! [`super::Volume`] owns it under its lock. A take-over builds it by replaying a generation
//! ([`super::generation`]). Both go through [`NamespaceState::apply_all`].
//!
//! Invariants:
//! 1. Every name belongs to a file that exists. A file without a name is forgotten.
//! 2. Every name lies in a directory that exists, and is normalised
//!    ([`plain`](archipelago_env::names::plain)).
//! 3. `next` is above all file numbers that were used, so that no number is used twice.
//! 4. A blob or a log is the content of at most one file.
//!
//! A pure value. Failure: a change that would break an invariant is refused and changes nothing.
//! All records of a list are applied, or none.
//! Cost: a change costs a few look-ups in maps. It copies the records of the files that it changes,
//! because a refusal of a later record restores them.

mod change;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::Path;

use archipelago_env::names::{NameTree, Refusal};

use self::change::Change;
use super::record::{Content, FileKey, FileRecord, Record};
use crate::ids::{BlobId, LogId};

/// Largest value of `next`, which no volume reaches within millennia.
const NEXT_MAX: u64 = 1 << 56;

/// A file or a content that a change made superfluous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// A file lost its last name. The record has no names. Its content is to be released.
    File(FileRecord),
    /// The blob or log of a file was replaced by another content. The file still exists.
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
    /// Carries out all changes in order, or none. Returns what they made superfluous.
    pub(crate) fn apply_all(&mut self, records: &[Record]) -> Result<Vec<Gone>, Refusal> {
        let mut change = Change::new(self);
        match records.iter().try_for_each(|record| change.apply(record)) {
            Ok(()) => change.finish(),
            Err(refusal) => {
                change.take_back();
                Err(refusal)
            }
        }
    }

    /// Allocates a file number. The record of a file makes it durable.
    pub(crate) fn allocate(&mut self) -> FileKey {
        let key = self.next.max(1);
        assert!(key < NEXT_MAX, "file numbers exhausted");
        self.next = key + 1;
        FileKey(key)
    }

    /// The next file number that was never used.
    #[cfg(test)]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Number of files.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Number of the file of this name.
    pub(crate) fn key(&self, path: &Path) -> Option<FileKey> {
        self.names.id(path)
    }

    /// Number of the file of this name, which must exist and be no directory.
    pub(crate) fn find(&self, path: &Path) -> Result<FileKey, Refusal> {
        self.names.find(path)
    }

    /// The file of this number.
    pub(crate) fn get(&self, key: FileKey) -> Option<&FileRecord> {
        self.files.get(&key)
    }

    /// The file of this name.
    pub(crate) fn file(&self, path: &Path) -> Option<&FileRecord> {
        self.get(self.key(path)?)
    }

    /// All files, by number.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileRecord> {
        self.files.values()
    }

    /// Number of the file whose content is this blob.
    pub(crate) fn blob_owner(&self, blob: BlobId) -> Option<FileKey> {
        self.blobs.get(&blob).copied()
    }

    /// Number of the file whose content is this log.
    pub(crate) fn log_owner(&self, log: LogId) -> Option<FileKey> {
        self.logs.get(&log).copied()
    }

    /// Whether the path is a directory. Roots (`/` and the empty path) are directories.
    pub(crate) fn is_dir(&self, path: &Path) -> bool {
        self.names.is_dir(path)
    }

    /// Entries of a directory, sorted by name: the number of a file, or `None` for a directory.
    /// `None` if there is no such directory.
    pub(crate) fn list(&self, dir: &Path) -> Option<Vec<(OsString, Option<FileKey>)>> {
        self.names.list(dir)
    }

    /// Records that build this state from the empty one.
    pub(crate) fn snapshot(&self) -> impl Iterator<Item = Record> {
        let next = Record::Next { next: self.next };
        let dirs = self.names.dirs().map(|path| Record::MakeDir { path: path.to_owned() });
        let files = self.files.values().cloned().map(Record::File);
        std::iter::once(next).chain(dirs).chain(files)
    }

    /// Replaces the record of a file, and returns the previous one.
    fn set_file(&mut self, key: FileKey, file: Option<FileRecord>) -> Option<FileRecord> {
        let before = match file {
            Some(file) => self.files.insert(key, file),
            None => self.files.remove(&key),
        };
        let _owner = match before.as_ref().map(|file| &file.content) {
            Some(Content::Blob(blob)) => self.blobs.remove(&blob.id),
            Some(Content::Log { id, .. }) => self.logs.remove(id),
            Some(Content::Inline(_)) | None => None,
        };
        let _nothing = match self.files.get(&key).map(|file| &file.content) {
            Some(Content::Blob(blob)) => self.blobs.insert(blob.id, key),
            Some(Content::Log { id, .. }) => self.logs.insert(*id, key),
            Some(Content::Inline(_)) | None => None,
        };
        before
    }

    /// Number of the file that has the same blob or log.
    fn content_owner(&self, content: &Content) -> Option<FileKey> {
        match content {
            Content::Inline(_) => None,
            Content::Blob(blob) => self.blob_owner(blob.id),
            Content::Log { id, .. } => self.log_owner(*id),
        }
    }
}
