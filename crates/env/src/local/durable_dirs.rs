//! Directories that exist, and whose entry in their parent is to be durable.
//!
//! A directory that exists may come from a creation that ended, by an error or a kill, between the
//! `mkdir` and the sync of the parent. After a power loss it would be missing, with all that was
//! synced in it. So [`settle`] syncs the parent of such a directory. Some callers create the
//! directory of each new file, so the sync happens once per process and directory if the file
//! system stores times of creation.
//!
//! Invariant: a remembered directory stood in its parent when the parent was synced.
//!
//! Thread-safety: any thread may call any function.
//! Failure: a parent that cannot be opened or synced at all is no error, because the directory may
//! belong to another user or to a file system without such syncs.
//! Cost: a `statx`, and one sync of the parent; without times of creation, a sync with each call.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use archipelago_base::{Error, Result};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::dir_or_here;
use super::tables::with_room;

/// Number of directories that are remembered. When it is reached, all of them are forgotten.
const DIRS_MAX: usize = 4096;

/// Identity of a directory. If another directory takes its path, that one has another identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DirIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
    created: SystemTime,
}

impl DirIdentity {
    /// The identity of the directory at `path`; `None` if its file system stores no time of
    /// creation, because the numbers of inodes are used again.
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let created = metadata.created().ok()?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        Some(Self { path: path.to_owned(), device, inode, created })
    }
}

/// The directories whose parents were synced.
static DURABLE: Mutex<BTreeSet<DirIdentity>> = Mutex::new(BTreeSet::new());

/// Makes the entry of the directory `dir`, which exists, durable in `parent`. Errors: those of the
/// sync.
pub(super) fn settle(dir: &Path, parent: &Path) -> Result<()> {
    // The identity comes before the sync, so that the sync covers the directory.
    let identity = DirIdentity::of(dir);
    if identity.as_ref().is_some_and(|identity| DURABLE.lock().contains(identity)) {
        return Ok(());
    }
    let Ok(opened) = with_room(|| File::open(dir_or_here(parent))) else { return Ok(()) };
    if let Err(error) = opened.sync_all()
        && !is_refusal(&error)
    {
        return Err(Error::io("sync directory", parent, error));
    }
    if let Some(identity) = identity {
        let mut durable = DURABLE.lock();
        if durable.len() >= DIRS_MAX {
            durable.clear();
        }
        durable.insert(identity);
    }
    Ok(())
}

/// Whether the file system cannot sync directories.
fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS, Errno::ROFS];
    Errno::from_io_error(error).is_some_and(|errno| refusals.contains(&errno))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::fs::FileSystem as _;
    use crate::local::LocalFs;

    fn is_durable(dir: &Path) -> bool {
        DirIdentity::of(dir).is_some_and(|identity| DURABLE.lock().contains(&identity))
    }

    #[test]
    fn parent_of_an_existing_directory_is_synced_once() {
        let base = tempfile::tempdir().unwrap();
        let [dir, other] = ["db", "other"].map(|name| base.path().join(name));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&other).unwrap();
        if DirIdentity::of(&dir).is_none() {
            // Without times of creation every call syncs, and nothing is remembered.
            return;
        }
        assert!(!is_durable(&dir));
        LocalFs::new().create_dir_all(&dir).unwrap();
        assert!(is_durable(&dir) && !is_durable(&other));
        fs::remove_dir(&dir).unwrap();
        fs::rename(&other, &dir).unwrap();
        assert!(!is_durable(&dir), "another directory has the path now");
    }

    #[test]
    fn unreadable_parent_of_an_existing_directory_is_no_error() {
        let base = tempfile::tempdir().unwrap();
        let parent = base.path().join("parent");
        let dir = parent.join("db");
        fs::create_dir(&parent).unwrap();
        fs::create_dir(&dir).unwrap();
        let set_mode = |mode| fs::set_permissions(&parent, fs::Permissions::from_mode(mode));
        set_mode(0o300).unwrap();
        let created = LocalFs::new().create_dir_all(&dir);
        set_mode(0o700).unwrap();
        created.unwrap();
    }
}
