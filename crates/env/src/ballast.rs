//! Ballast: a file that occupies room on a device until something more important needs the room.
//!
//! The owner of a ballast (a database, the namespace of the tiers) writes it while there is room.
//! When the device is full, the owner gives the ballast up, which leaves room to free more. The
//! file is written under a temporary name and renamed, so that only a whole ballast counts.
//!
//! Invariants: 1. a [`Ballast`] that [`Ballast::held`] reports occupies that many bytes; 2. after
//! an error of [`Ballast::write`] no incomplete file is left; 3. the content is never read.
//! Thread-safety: the owner calls one method at a time. Failure: without a ballast everything
//! works until the device is full. Cost: one allocation of blocks (or a write of the same length
//! where the file system cannot allocate), one sync; giving it up is one removal.

use std::path::{Path, PathBuf};

use archipelago_base::Result;

use crate::fs::FileSystem;

pub use crate::fs::fill_as;

/// The ballast of one directory; see the module.
#[derive(Clone, Debug)]
pub struct Ballast {
    path: PathBuf,
    temporary: PathBuf,
}

impl Ballast {
    /// The ballast called `name` in `dir`. `NAME.tmp` is its temporary name.
    #[must_use]
    pub fn new(dir: &Path, name: &str) -> Self {
        Self { path: dir.join(name), temporary: dir.join(format!("{name}.tmp")) }
    }

    /// Bytes of the ballast; 0 if there is none. Removes what an interrupted write left.
    pub fn held(&self, fs: &dyn FileSystem) -> u64 {
        let _interrupted = fs.remove(&self.temporary);
        fs.len(&self.path).unwrap_or(0)
    }

    /// Writes a ballast of `bytes` under the temporary name. It counts once it is
    /// [`put`](Self::put).
    pub fn write(&self, fs: &dyn FileSystem, bytes: u64) -> Result<()> {
        fs.allocate(&self.temporary, bytes)
    }

    /// Puts what was written in the place of the present ballast.
    pub fn put(&self, fs: &dyn FileSystem) -> Result<()> {
        fs.rename(&self.temporary, &self.path).inspect_err(|_| {
            let _unused = fs.remove(&self.temporary);
        })
    }

    /// Gives the ballast up. On return its room is free.
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
