//! The acknowledged operations, in a file that survives the killed writer.
//!
//! A record has 16 bytes: thread and number, two little-endian u64. One `write` appends it after
//! the database has acknowledged the operation. The page cache keeps it when the process is killed.
//!
//! Thread-safety: any thread of the one writer process may append.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use archipelago::env::local::LocalFs;
use archipelago::env::{FileClass, FileSystem as _, IoContext, IoPurpose};
use archipelago::{Error, Result};

const RECORD_BYTES: usize = 16;

/// The file, open for appending.
#[derive(Debug)]
pub(crate) struct AckWriter {
    file: File,
    path: PathBuf,
}

impl AckWriter {
    /// Opens the file, which must exist.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .map_err(|source| Error::io("open", path, source))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Records that operation `number` of `thread` was acknowledged.
    pub(crate) fn acknowledge(&self, thread: u64, number: u64) -> Result<()> {
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(&thread.to_le_bytes());
        record[8..].copy_from_slice(&number.to_le_bytes());
        (&self.file).write_all(&record).map_err(|source| Error::io("append to", &self.path, source))
    }
}

/// Makes an empty file.
pub(crate) fn create(path: &Path) -> Result<()> {
    LocalFs::new().write_atomic(path, &[], context())
}

/// Number of acknowledged operations by thread. `first` has the numbers before the file began.
pub(crate) fn read(path: &Path, first: &[u64]) -> Result<Vec<u64>> {
    let bytes = LocalFs::new().read(path, context())?;
    let mut done = first.to_vec();
    let word = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_le_bytes);
    for record in bytes.chunks_exact(RECORD_BYTES) {
        let (thread, number) = (word(&record[..8]), word(&record[8..]));
        let known = usize::try_from(thread).ok().and_then(|thread| done.get_mut(thread));
        match known {
            Some(known) if *known == number => *known += 1,
            _ => {
                let what = format!("operation {number} of thread {thread} is out of order");
                return Err(Error::corrupt(path, 0, what));
            }
        }
    }
    Ok(done)
}

fn context() -> IoContext {
    IoContext::new(FileClass::Other, IoPurpose::Maintenance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_numbers_are_read_back_in_order() -> Result<()> {
        let dir = tempfile::tempdir().map_err(|e| Error::invalid(e.to_string()))?;
        let path = dir.path().join("acks");
        create(&path)?;
        let acks = AckWriter::open(&path)?;
        acks.acknowledge(1, 7)?;
        acks.acknowledge(0, 3)?;
        acks.acknowledge(1, 8)?;
        assert_eq!(read(&path, &[3, 7])?, [4, 9]);
        acks.acknowledge(1, 8)?;
        assert!(read(&path, &[3, 7]).is_err());
        Ok(())
    }
}
