//! The shared disk, as one process sees it.
//!
//! A killed process neither changes nor reads files any more, although its threads still run for a
//! while. Its locks end with the kill.
//!
//! Thread-safety: any thread may call any method.
//! Failure: after the kill every operation fails with an error of the device.
//! Cost: an atomic addition per operation before the kill.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::fault::{FaultFs, Operation, Rule, When};
use archipelago_env::mem::MemFs;
use archipelago_env::{FileLock, FileSystem};
use parking_lot::Mutex;

/// The locks of a disk, each with the number of the process that holds it.
pub(super) type Locks = Arc<Mutex<BTreeMap<PathBuf, u64>>>;

/// The files of one process.
#[derive(Clone, Debug)]
pub(super) struct ProcessFiles {
    files: FaultFs,
    locks: Locks,
    process: u64,
}

/// A lock of one process.
#[derive(Debug)]
struct ProcessLock {
    locks: Locks,
    path: PathBuf,
    process: u64,
}

impl FileLock for ProcessLock {}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        let mut locks = self.locks.lock();
        if locks.get(&self.path) == Some(&self.process) {
            locks.remove(&self.path);
        }
    }
}

impl ProcessFiles {
    /// The files of process `process` on a disk.
    pub(super) fn new(disk: &MemFs, locks: &Locks, process: u64, seed: u64) -> Self {
        let files = FaultFs::new(Arc::new(disk.clone()), seed);
        Self { files, locks: Arc::clone(locks), process }
    }

    /// Ends all access of the process, and its locks.
    pub(super) fn kill(&self) {
        self.files.clear();
        self.files.add(Rule::on_any(&Operation::ALL));
        self.locks.lock().retain(|_, process| *process != self.process);
    }

    /// Makes some operations on tables fail, until [`ProcessFiles::mend`].
    pub(super) fn disturb(&self, chance: f64) {
        let operations = [Operation::Create, Operation::Append, Operation::Sync, Operation::Read];
        self.files.add(Rule::on_any(&operations).path("sst").when(When::Chance(chance)));
    }

    /// Ends the failures of a process that lives.
    pub(super) fn mend(&self) {
        self.files.clear();
    }
}

impl FileSystem for ProcessFiles {
    archipelago_env::forward_fs!(
        files: create, open, create_log, remove, logs, looks, moves, dirs, figures, space
    );

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        // A dead process gets no lock.
        self.files.exists(path)?;
        let mut locks = self.locks.lock();
        if locks.contains_key(path) {
            return Err(Error::busy(format!("{} is locked", path.display())));
        }
        locks.insert(path.to_owned(), self.process);
        let locks = Arc::clone(&self.locks);
        Ok(Box::new(ProcessLock { locks, path: path.to_owned(), process: self.process }))
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        self.files.free_bytes(dir)
    }
}
