//! Directory and manifest of an open database.
//!
//! The database owns one [`Storage`]. It holds the file system, the manifest with its evidence of
//! what is durable, the numbers of new files, and the tables that wait to be removed.
//!
//! Invariants:
//! 1. The manifest changes only under its lock, one edit at a time, and the lock is held over the
//!    I/O of the edit.
//! 2. The lock of the directory is held from the open to the end of the close.
//!
//! Thread-safety: any thread may call any method.
//! Failure: errors of the file system.
//! Cost: the accessors cost nothing. Edits cost one append and one sync of the manifest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_env::{FileLock, FileSystem};
use parking_lot::Mutex;

use crate::file_meta::{invalid_file_name, sst_name, value_file_name};
use crate::job::JobOutput;
use crate::live_file::Trash;
use crate::lock_order::{Before, ManifestLock, Order, OrderedGuard, OrderedMutex};
use crate::manifest::{FileNumbers, Marks, VersionSet};
use crate::version::HeldNumbers;

/// The parts of a [`Storage`] that the open provides.
pub(crate) struct StorageParts<'a> {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) dir: &'a Path,
    pub(crate) manifest: VersionSet,
    pub(crate) trash: Arc<Trash>,
    /// Lock of the directory; `None` for a read-only database.
    pub(crate) lock: Option<Box<dyn FileLock>>,
}

/// The manifest lock, held.
pub(crate) type ManifestGuard<'a> = OrderedGuard<'a, VersionSet, ManifestLock>;

/// The files of an open database.
pub(crate) struct Storage {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    manifest: OrderedMutex<VersionSet, ManifestLock>,
    /// Evidence of what is durable of the manifest and the log. Its lock is the last one taken.
    marks: Arc<Marks>,
    file_numbers: Arc<FileNumbers>,
    /// Numbers of value files that running jobs may still install references to.
    held_numbers: HeldNumbers,
    trash: Arc<Trash>,
    lock: Mutex<Option<Box<dyn FileLock>>>,
    database_id: [u8; 16],
}

impl Storage {
    pub(crate) fn new(parts: StorageParts<'_>) -> Self {
        let manifest = parts.manifest;
        Self {
            fs: parts.fs,
            dir: parts.dir.to_owned(),
            marks: Arc::clone(manifest.marks()),
            file_numbers: Arc::clone(manifest.file_numbers()),
            held_numbers: manifest.held_numbers().clone(),
            trash: parts.trash,
            lock: Mutex::new(parts.lock),
            database_id: *manifest.db_id(),
            manifest: OrderedMutex::new(manifest),
        }
    }

    #[inline]
    pub(crate) fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    #[inline]
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the file `name` of the database.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Takes the manifest lock.
    pub(crate) fn lock_manifest<Held: Before<ManifestLock>>(
        &self,
        order: Order<Held>,
    ) -> ManifestGuard<'_> {
        self.manifest.lock(order)
    }

    /// Takes the manifest lock if it is free.
    pub(crate) fn try_lock_manifest<Held: Before<ManifestLock>>(
        &self,
        order: Order<Held>,
    ) -> Option<ManifestGuard<'_>> {
        self.manifest.try_lock(order)
    }

    pub(crate) fn marks(&self) -> &Arc<Marks> {
        &self.marks
    }

    pub(crate) fn held_numbers(&self) -> &HeldNumbers {
        &self.held_numbers
    }

    pub(crate) fn file_numbers(&self) -> &Arc<FileNumbers> {
        &self.file_numbers
    }

    pub(crate) fn trash(&self) -> &Arc<Trash> {
        &self.trash
    }

    pub(crate) fn database_id(&self) -> [u8; 16] {
        self.database_id
    }

    /// Removes the outputs of a job that was not installed. They stay if the next open might find
    /// the edit that names them.
    pub(crate) fn discard<Held: Before<ManifestLock>>(
        &self,
        output: &JobOutput,
        order: Order<Held>,
    ) {
        if self.lock_manifest(order).is_unsettled() {
            return;
        }
        let tables = output.files.iter().map(|meta| sst_name(meta.file_no()));
        let values = output.value_files.iter().map(|meta| value_file_name(meta.file_no()));
        let invalid = output.invalid_files.iter().map(|meta| invalid_file_name(meta.file_no()));
        for name in tables.chain(values).chain(invalid) {
            if let Err(error) = self.fs.remove(&self.path_of(&name)) {
                tracing::warn!(%error, "cannot remove the output of a failed job");
            }
        }
    }

    /// Gives the directory to the next open.
    pub(crate) fn release_lock(&self) {
        *self.lock.lock() = None;
    }
}
