//! Lock files of a volume.
//!
//! The lease of the volume's owner keeps other processes out ([`Volume::open`]), so a lock file
//! only has to keep a second opener in this process away.
//!
//! [`Volume::open`]: crate::volume::Volume::open
//!
//! Thread-safety: any thread may take or drop a lock.
//! Failure: `Busy` if this process holds the lock, and `Fenced` if another process owns the volume.
//! Cost: one commit without a wait if the file does not exist. A lock uses up one file number.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_env::failure::locked;
use archipelago_env::{FileClass, FileLock};

use super::failure::named;
use super::open_files::OpenFiles;
use crate::volume::record::Content;

/// A lock file that this process holds.
#[derive(Debug)]
pub(super) struct StoreLock {
    files: Arc<OpenFiles>,
    path: PathBuf,
}

impl StoreLock {
    /// Takes the lock file at `path`, and creates it if it does not exist.
    pub(super) fn take(files: &Arc<OpenFiles>, path: &Path) -> Result<Self> {
        files.volume.check_open().map_err(|error| named(&error, "lock", path))?;
        if !files.locks.lock().insert(path.to_owned()) {
            return Err(locked(path, Some(std::process::id())));
        }
        let lock = Self { files: Arc::clone(files), path: path.to_owned() };
        let content = Content::Inline(Vec::new());
        let record = files.new_file(files.volume.allocate(), FileClass::Manifest, path, content);
        // A file that exists keeps its bytes, also if another thread has just created it.
        let created = files.volume.commit_decided(|state| {
            Ok(if state.key(path).is_some() { Vec::new() } else { vec![record] })
        });
        created.map_err(|error| named(&error, "lock", path))?;
        Ok(lock)
    }
}

impl FileLock for StoreLock {}

impl Drop for StoreLock {
    fn drop(&mut self) {
        self.files.locks.lock().remove(&self.path);
    }
}
