//! Ballast: a file that occupies space on a device until something more important needs the space.
//!
//! The owner of a ballast (a database, or the namespace of the tiers) writes it while there is
//! space. When the device is full, the owner removes the ballast, and uses the space to free more.
//! The file is written under a temporary name and renamed, so that only a complete ballast counts.
//!
//! Invariants:
//! 1. A [`Ballast`] occupies the number of bytes that [`Ballast::held`] reports.
//! 2. After an error of [`Ballast::write`] no incomplete file is left.
//! 3. Nothing reads its content.
//!
//! Thread-safety: the owner calls one method at a time. Failure: without a ballast everything works
//! until the device is full. Cost: one allocation of blocks, or a write of the same length if the
//! file system cannot allocate, and one sync. The removal is one system call.

use std::path::{Path, PathBuf};

use archipelago_base::Result;

use crate::fs::FileSystem;

pub use crate::fs::fill_as;

/// The ballast of one directory.
#[derive(Clone, Debug)]
pub struct Ballast {
    path: PathBuf,
    temporary: PathBuf,
}

impl Ballast {
    /// Describes the ballast called `name` in `dir`. Its temporary name is `NAME.tmp`.
    #[must_use]
    pub fn new(dir: &Path, name: &str) -> Self {
        Self { path: dir.join(name), temporary: dir.join(format!("{name}.tmp")) }
    }

    /// Bytes of the ballast; 0 if there is none. The call removes the rest of an interrupted write.
    pub fn held(&self, fs: &dyn FileSystem) -> u64 {
        let _interrupted = fs.remove(&self.temporary);
        fs.len(&self.path).unwrap_or(0)
    }

    /// Writes a ballast of `bytes` bytes, durably, under the temporary name. It counts after
    /// [`put`](Self::put). Errors: those of the file system. After an error no incomplete file is
    /// left.
    pub fn write(&self, fs: &dyn FileSystem, bytes: u64) -> Result<()> {
        fs.allocate(&self.temporary, bytes)
    }

    /// Replaces the current ballast with the written one. The caller syncs the directory to make
    /// that durable. Errors: those of the file system, after which the written ballast is removed.
    pub fn put(&self, fs: &dyn FileSystem) -> Result<()> {
        fs.rename(&self.temporary, &self.path).inspect_err(|_| {
            let _unused = fs.remove(&self.temporary);
        })
    }

    /// Removes the ballast. Its space is free on return. Errors: those of the file system.
    pub fn give_up(&self, fs: &dyn FileSystem) -> Result<()> {
        fs.remove(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::capacity::CapacityFs;
    use crate::local::LocalFs;
    use crate::mem::MemFs;

    #[test]
    fn ballast_occupies_its_bytes_until_given_up() {
        let dir = Path::new("/db");
        let memory = MemFs::new();
        memory.create_dir_all(dir).unwrap();
        let fs = CapacityFs::new(Arc::new(memory), dir, 1 << 20).unwrap();
        let free = || fs.free_bytes(dir).unwrap().unwrap();
        let ballast = Ballast::new(dir, "reserve");
        assert!(ballast.write(&fs, 2 << 20).unwrap_err().is_no_space());
        assert_eq!((free(), fs.list(dir).unwrap().len()), (1 << 20, 0), "nothing is left");
        ballast.write(&fs, 256 << 10).unwrap();
        ballast.put(&fs).unwrap();
        assert_eq!((ballast.held(&fs), free()), (256 << 10, 768 << 10));
        ballast.give_up(&fs).unwrap();
        assert_eq!((ballast.held(&fs), free()), (0, 1 << 20));
    }

    #[test]
    fn local_ballast_has_allocated_blocks() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (fs, ballast) = (LocalFs::new(), Ballast::new(dir.path(), "reserve"));
        ballast.write(&fs, 1 << 20).unwrap();
        ballast.put(&fs).unwrap();
        let metadata = std::fs::metadata(dir.path().join("reserve")).unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(metadata.blocks() * 512 >= 1 << 20, "{} blocks", metadata.blocks());
    }
}
