//! Permission bits of created files and directories.
//!
//! A database is private: its files are created with mode 0600 and its directories with 0700,
//! whatever the process's umask says. [`GroupAccess`] opens both to the group. Every creation of
//! this layer goes through [`Modes`].
//!
//! Invariants:
//! 1. A new file has at no moment more bits than its mode. The mode is an argument of `open` and
//!    `mkdir`, from which a umask can only take bits away.
//! 2. After the creation the bits are exactly the mode: a file that existed before (a lock file, a
//!    file that is written again) and bits that a umask took away are corrected.
//! 3. Only regular files and directories that this call created are changed. The set-group-ID bit
//!    of a directory stays.
//!
//! Failure: a file system without permission bits (vfat, some network mounts) and a file of another
//! user refuse the correction. The file is used with the bits that it has, with one warning per
//! process. Cost: one `fstat` per created file, and one `fchmod` if the bits differ.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Once;

use rustix::fs::Mode;

use crate::access::GroupAccess;

/// The permission bits, without set-user-ID, set-group-ID and the sticky bit.
const PERMISSION_BITS: u32 = 0o777;

/// Permission bits that a file system handle gives to created files and directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modes {
    /// Exact bits, for files that hold data.
    Exact(GroupAccess),
    /// The bits that the umask leaves, for reports that hold no data.
    ByUmask,
}

impl Default for Modes {
    fn default() -> Self {
        Self::Exact(GroupAccess::None)
    }
}

impl Modes {
    /// The options that create a file with these modes. The caller adds reading or writing.
    pub(super) fn creating(self) -> fs::OpenOptions {
        let mut how = fs::OpenOptions::new();
        how.create(true);
        if let Self::Exact(access) = self {
            how.mode(access.file_mode());
        }
        how
    }

    /// Corrects the bits of a file that [`Modes::creating`] opened, as invariants 2 and 3 say.
    pub(super) fn settle(self, file: &File, path: &Path) -> io::Result<()> {
        let Self::Exact(access) = self else { return Ok(()) };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(());
        }
        let change = |mode| rustix::fs::fchmod(file, mode);
        correct(&metadata, access.file_mode(), path, change)
    }

    /// Creates one directory, whose parent exists.
    pub(super) fn create_dir(self, dir: &Path) -> io::Result<()> {
        let Self::Exact(access) = self else { return DirBuilder::new().create(dir) };
        DirBuilder::new().mode(access.dir_mode()).create(dir)?;
        let metadata = fs::symlink_metadata(dir)?;
        correct(&metadata, access.dir_mode(), dir, |mode| rustix::fs::chmod(dir, mode))
    }
}

/// Gives the file or directory of `metadata` exactly the bits of `wanted`.
fn correct(
    metadata: &Metadata,
    wanted: u32,
    path: &Path,
    change: impl FnOnce(Mode) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let found = metadata.mode();
    if found & PERMISSION_BITS == wanted {
        return Ok(());
    }
    use rustix::io::Errno;
    match change(Mode::from_raw_mode(found & !PERMISSION_BITS & 0o7777 | wanted)) {
        Err(cause @ (Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::ROFS)) => {
            note_refusal(path, cause);
            Ok(())
        }
        other => other.map_err(io::Error::from),
    }
}

fn note_refusal(path: &Path, cause: rustix::io::Errno) {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        tracing::warn!(
            path = %path.display(),
            %cause,
            "permission bits cannot be changed here; the file keeps those that it has"
        );
    });
}
