//! The open files of [`MemFs`]: writer, reader, log segment and its sync handle, lock.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Result;

use super::MemFs;
use super::inode::Inode;
use crate::context::IoContext;
use crate::fs::{FileLock, LogFile, LogSync, RandomFile, WritableFile};

/// Limit of the bytes that an unflushed writer holds back, and that a killed process loses.
const BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct MemWriter {
    pub(super) fs: MemFs,
    pub(super) path: PathBuf,
    pub(super) inode: Arc<Inode>,
    pub(super) buffer: Vec<u8>,
}

impl MemWriter {
    fn hand_over(&mut self) {
        self.inode.write(&self.buffer);
        self.buffer.clear();
    }
}

impl WritableFile for MemWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(data);
        if self.buffer.len() >= BUFFER_BYTES {
            self.hand_over();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.hand_over();
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.hand_over();
        self.inode.sync();
        self.fs.synced(&self.path);
        Ok(())
    }

    fn len(&self) -> u64 {
        (self.inode.written() + self.buffer.len()) as u64
    }
}

impl Drop for MemWriter {
    fn drop(&mut self) {
        self.inode.close();
    }
}

#[derive(Debug)]
pub(super) struct MemReader {
    pub(super) path: PathBuf,
    pub(super) inode: Arc<Inode>,
    /// Length of the file at its opening, which is all that a reader sees on a real disk as well.
    pub(super) len: u64,
}

impl RandomFile for MemReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _context: IoContext) -> Result<()> {
        self.inode.read(&self.path, offset, buf)
    }

    fn len(&self) -> u64 {
        self.len
    }
}

#[derive(Debug)]
pub(super) struct MemLog {
    pub(super) sync: Arc<MemLogSync>,
}

#[derive(Debug)]
pub(super) struct MemLogSync {
    pub(super) fs: MemFs,
    pub(super) path: PathBuf,
    pub(super) inode: Arc<Inode>,
}

impl LogFile for MemLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let offset = self.len();
        for part in parts {
            self.sync.inode.write(part);
        }
        Ok(offset)
    }

    fn len(&self) -> u64 {
        self.sync.inode.written() as u64
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        Arc::clone(&self.sync) as Arc<dyn LogSync>
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        self.sync.inode.write(bytes);
        Ok(())
    }

    fn unwritten_bytes(&self) -> u64 {
        0
    }
}

impl LogSync for MemLogSync {
    fn sync(&self) -> Result<u64> {
        let through = self.inode.sync();
        self.fs.synced(&self.path);
        Ok(through as u64)
    }

    /// Does nothing, because there is no page cache. Unsynced bytes may be lost with the power.
    fn write_through(&self) -> Result<u64> {
        Ok(self.inode.written() as u64)
    }
}

impl Drop for MemLogSync {
    fn drop(&mut self) {
        self.inode.close();
    }
}

#[derive(Debug)]
pub(super) struct MemLock {
    pub(super) fs: MemFs,
    pub(super) path: PathBuf,
}

impl FileLock for MemLock {}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.fs.unlock(&self.path);
    }
}

impl MemLock {
    pub(super) fn boxed(fs: &MemFs, path: &Path) -> Box<dyn FileLock> {
        Box::new(Self { fs: fs.clone(), path: path.to_owned() })
    }
}
