//! Directory and manifest of an open database.
//!
//! The database owns one [`Storage`]. It holds the file system, the manifest with its evidence of
//! what is durable, the numbers of new files, and the tables that wait to be removed.
//!
//! Invariants:
//! 1. The manifest changes only under its lock, one edit at a time, and the lock is held over the
//!    I/O of the edit.
//! 2. The lock of the directory is held from the open to the end of the close.
//! 3. A number that [`Storage::reserve_numbers`] gives is durably reserved.
//!
//! Thread-safety: any thread may call any method.
//! Failure: errors of the file system.
//! Cost: the accessors cost nothing. Edits cost one append and one sync of the manifest. Numbers of
//! jobs cost an atomic operation, and an edit when the lot is used up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::Result;
use archipelago_env::{FileLock, FileSystem};
use parking_lot::Mutex;

use crate::db::state::strays::Strays;
use crate::file_meta::{invalid_file_name, sst_name, value_file_name};
use crate::job::JobOutput;
use crate::job::spec;
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
    /// Tables that no edit will ever install.
    strays: Strays,
    /// Time before which no background edit renews the lot, in nanoseconds of the clock.
    renew_after_ns: AtomicU64,
    lock: Mutex<Option<Box<dyn FileLock>>>,
    database_id: [u8; 16],
}

/// Pause after a background edit that could not renew the lot, in nanoseconds: one minute. On a
/// full disk each attempt leaves an empty manifest file, which stays until an edit succeeds.
const RENEW_PAUSE_NS: u64 = 60_000_000_000;

impl Storage {
    pub(crate) fn new(parts: StorageParts<'_>) -> Self {
        let manifest = parts.manifest;
        let named = manifest.column_families().flat_map(|(_, _, version)| version.file_numbers());
        Self {
            strays: Strays::new(manifest.file_numbers().next(), named),
            renew_after_ns: AtomicU64::new(0),
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

    /// Reserves `count` consecutive file numbers for files that another process may create. Writes
    /// an edit if the lot has fewer numbers.
    pub(crate) fn reserve_numbers<Held: Before<ManifestLock>>(
        &self,
        count: u64,
        order: Order<Held>,
    ) -> Result<spec::FileNumbers> {
        if let Some(first) = self.file_numbers.take(count) {
            return Ok(spec::FileNumbers { first: first.0, count });
        }
        let mut manifest = self.lock_manifest(order);
        loop {
            // Other threads take numbers without the lock, also those of a new lot.
            if let Some(first) = self.file_numbers.take(count) {
                return Ok(spec::FileNumbers { first: first.0, count });
            }
            manifest.renew_lot(count)?;
        }
    }

    /// Renews the lot at `now_ns` if half of it is used and no edit is under way, so that no job
    /// waits for an edit. A failure does no harm: a job that needs numbers tries again.
    pub(crate) fn renew_lot_early(&self, now_ns: u64) {
        let is_paused = now_ns < self.renew_after_ns.load(Ordering::Relaxed);
        if is_paused || !self.file_numbers.is_half_used() {
            return;
        }
        let Some(mut manifest) = self.try_lock_manifest(Order::none()) else { return };
        if self.file_numbers.is_half_used()
            && let Err(error) = manifest.renew_lot(0)
        {
            tracing::warn!(%error, "file numbers could not be reserved ahead");
            let again_ns = now_ns.saturating_add(RENEW_PAUSE_NS);
            self.renew_after_ns.store(again_ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn strays(&self) -> &Strays {
        &self.strays
    }

    pub(crate) fn trash(&self) -> &Arc<Trash> {
        &self.trash
    }

    pub(crate) fn database_id(&self) -> [u8; 16] {
        self.database_id
    }

    /// Removes the outputs of a job that was not installed. If the manifest is unsettled, the
    /// outputs stay, because the next open might find the edit that names them.
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

    /// Releases the lock of the directory, so that the next open can take it.
    pub(crate) fn release_lock(&self) {
        *self.lock.lock() = None;
    }
}
