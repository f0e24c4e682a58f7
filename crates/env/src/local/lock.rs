//! The lock file: an exclusive `flock` on a file that also names its holder.
//!
//! The lock belongs to the open file. Therefore a second open in the same process does not get the
//! lock, and the lock ends with the process. The file stays when the lock is dropped. The drop
//! unlocks the file before it is closed. A process that another thread is starting has a copy of
//! the descriptor until its program begins. Without the unlock, that copy would keep the lock until
//! then.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use archipelago_base::{Error, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::modes::Modes;
use super::tables::with_room;
use crate::failure::locked;
use crate::fs::FileLock;

#[derive(Debug)]
pub(super) struct LocalLock {
    file: File,
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        // Without it the lock ends when the last copy of the descriptor is closed.
        let _unlocked = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl FileLock for LocalLock {}

impl LocalLock {
    pub(super) fn take(path: &Path, modes: Modes) -> Result<Self> {
        let failed = |source| Error::io("lock", path, source);
        let mut how = modes.creating();
        how.read(true).write(true).truncate(false);
        let mut file = with_room(|| how.open(path)).map_err(failed)?;
        flock(&mut file, path)?;
        modes.settle(&file, path).map_err(failed)?;
        file.set_len(0).map_err(failed)?;
        // The number is only for messages. A full disk may have no block for it.
        let _unnamed = writeln!(file, "{}", std::process::id());
        Ok(Self { file })
    }

    /// The lock of an existing file, which is opened for reading only and not changed.
    pub(super) fn hold(path: &Path) -> Result<Option<Self>> {
        let mut file = match with_room(|| File::open(path)) {
            Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|source| Error::io("lock", path, source))?,
        };
        flock(&mut file, path)?;
        Ok(Some(Self { file }))
    }
}

fn flock(file: &mut File, path: &Path) -> Result<()> {
    match rustix::fs::flock(&*file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(locked(path, holder(file))),
        Err(other) => Err(Error::io("lock", path, other.into())),
    }
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lock_is_free_while_a_copy_of_its_descriptor_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let lock = LocalLock::take(&path, Modes::default()).unwrap();
        // As a process has that is being started.
        let copy = lock.file.try_clone().unwrap();
        assert!(LocalLock::take(&path, Modes::default()).is_err());
        drop(lock);
        drop(LocalLock::take(&path, Modes::default()).unwrap());
        drop(LocalLock::hold(&path).unwrap().unwrap());
        drop(copy);
    }
}
