//! The lock file: an exclusive `flock` on a file that also names its holder.
//!
//! The lock belongs to the open file, so that a second open in the same process does not get it
//! either, and it ends with the process. The file stays behind when the lock is dropped.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use archipelago_base::{Error, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::modes::Modes;
use crate::failure::locked;
use crate::fs::FileLock;

#[derive(Debug)]
pub(super) struct LocalLock {
    _file: File,
}

impl FileLock for LocalLock {}

impl LocalLock {
    pub(super) fn take(path: &Path, modes: Modes) -> Result<Self> {
        let failed = |source| Error::io("lock", path, source);
        let mut how = modes.creating();
        let mut file = how.read(true).write(true).truncate(false).open(path).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => (),
            Err(Errno::WOULDBLOCK) => return Err(locked(path, holder(&mut file))),
            Err(other) => return Err(failed(other.into())),
        }
        modes.settle(&file, path).map_err(failed)?;
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
