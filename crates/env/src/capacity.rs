//! A file system of a limited capacity, with which tests fill a disk.
//!
//! [`CapacityFs`] decorates another file system and counts the blocks of 4 KiB that files occupy.
//! An append that needs a block fails with `ENOSPC` if none is free, and writes nothing.
//! [`CapacityFs::occupy`] takes space as other programs do. [`CapacityFs::set_capacity`] changes
//! the size of the disk.
//!
//! Invariants:
//! 1. No append makes the blocks of all files and the space of other programs exceed the capacity.
//!    They may exceed it after [`CapacityFs::occupy`].
//! 2. The blocks of a file are free after its last name and its last writer are removed.
//! 3. A truncated file is empty. A recycled log segment keeps its blocks. Readers hold no blocks,
//!    unlike on a real disk.
//!
//! Thread-safety: one lock for the names, and one atomic counter for the blocks.
//! Failure: `ENOSPC`, and the errors of the decorated file system.
//! Cost: an append adds two atomic operations.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Error, Result};
use parking_lot::Mutex;

use crate::context::IoContext;
use crate::fs::{
    CreateOptions, DirEntry, FileSystem, LogFile, LogOptions, LogSync, OpenOptions, RandomFile,
    WritableFile,
};

/// Size of a block, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// A file system of a limited capacity. Its clones are handles of the same disk.
#[derive(Clone, Debug)]
pub struct CapacityFs {
    inner: Arc<dyn FileSystem>,
    room: Arc<Room>,
    files: Arc<Mutex<HashMap<PathBuf, Arc<Occupied>>>>,
}

#[derive(Debug)]
struct Room {
    capacity_bytes: AtomicU64,
    used_bytes: AtomicU64,
    /// Bytes that other programs occupy.
    others_bytes: AtomicU64,
    refusals: AtomicU64,
}

impl Room {
    fn take(&self, bytes: u64) -> bool {
        let taken = self.used_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
            let others = self.others_bytes.load(Ordering::SeqCst);
            let wanted = used.checked_add(bytes)?;
            let fits = wanted.saturating_add(others) <= self.capacity_bytes.load(Ordering::SeqCst);
            fits.then_some(wanted)
        });
        if taken.is_err() {
            self.refusals.fetch_add(1, Ordering::SeqCst);
        }
        taken.is_ok()
    }
}

/// The blocks of one file. They are free after the last owner (a name or a writer) is dropped.
#[derive(Debug)]
struct Occupied {
    room: Arc<Room>,
    bytes: AtomicU64,
}

impl Occupied {
    /// Reserves blocks for a file of `len` bytes.
    fn grow_to(&self, len: u64, path: &Path) -> Result<()> {
        let wanted = len.div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
        let more = wanted.saturating_sub(self.bytes.load(Ordering::SeqCst));
        if more > 0 && !self.room.take(more) {
            let cause = io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
            return Err(Error::io("append to", path, cause));
        }
        self.bytes.fetch_add(more, Ordering::SeqCst);
        Ok(())
    }

    fn empty(&self) {
        let bytes = self.bytes.swap(0, Ordering::SeqCst);
        self.room.used_bytes.fetch_sub(bytes, Ordering::SeqCst);
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.empty();
    }
}

impl CapacityFs {
    /// Limits `inner` to `capacity_bytes`. Existing files below `root` count.
    pub fn new(inner: Arc<dyn FileSystem>, root: &Path, capacity_bytes: u64) -> Result<Self> {
        let room = Arc::new(Room {
            capacity_bytes: AtomicU64::new(u64::MAX),
            used_bytes: AtomicU64::new(0),
            others_bytes: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        });
        let fs = Self { inner, room, files: Arc::default() };
        fs.count_files(root)?;
        fs.set_capacity(capacity_bytes);
        Ok(fs)
    }

    fn count_files(&self, dir: &Path) -> Result<()> {
        if !self.inner.exists(dir)? {
            return Ok(());
        }
        for DirEntry { name, is_dir, len } in self.inner.list(dir)? {
            let path = dir.join(name);
            match is_dir {
                true => self.count_files(&path)?,
                false => self.occupied(&path).grow_to(len, &path)?,
            }
        }
        Ok(())
    }

    /// Sets the capacity of the disk.
    pub fn set_capacity(&self, bytes: u64) {
        self.room.capacity_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Sets the bytes that other programs occupy.
    pub fn occupy(&self, bytes: u64) {
        self.room.others_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Bytes that the files of this file system occupy.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.room.used_bytes.load(Ordering::SeqCst)
    }

    /// Bytes that are free.
    #[must_use]
    pub fn free(&self) -> u64 {
        let capacity = self.room.capacity_bytes.load(Ordering::SeqCst);
        let others = self.room.others_bytes.load(Ordering::SeqCst);
        capacity.saturating_sub(self.used_bytes()).saturating_sub(others)
    }

    /// Number of `ENOSPC` errors so far.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.room.refusals.load(Ordering::SeqCst)
    }

    /// The blocks of the named file at `path`.
    fn occupied(&self, path: &Path) -> Arc<Occupied> {
        let mut files = self.files.lock();
        let occupied = files.entry(path.to_owned()).or_insert_with(|| {
            Arc::new(Occupied { room: Arc::clone(&self.room), bytes: AtomicU64::new(0) })
        });
        Arc::clone(occupied)
    }
}

impl FileSystem for CapacityFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let inner = self.inner.create(path, context, options)?;
        let occupied = self.occupied(path);
        occupied.empty();
        Ok(Box::new(CapacityWriter { inner, occupied, path: path.to_owned() }))
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        self.inner.open(path, context, options)
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        let recycled = options.recycle.clone();
        let inner = self.inner.create_log(path, context, options)?;
        if let Some(old) = &recycled {
            let mut files = self.files.lock();
            if let Some(occupied) = files.remove(old) {
                files.insert(path.to_owned(), occupied);
            }
        }
        let occupied = self.occupied(path);
        if recycled.is_none() {
            occupied.empty();
        }
        Ok(Box::new(CapacityLog { inner, occupied, path: path.to_owned() }))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)?;
        self.files.lock().remove(path);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)?;
        let mut files = self.files.lock();
        if let Some(occupied) = files.remove(from) {
            files.insert(to.to_owned(), occupied);
        }
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.link(from, to)?;
        let occupied = self.occupied(from);
        self.files.lock().insert(to.to_owned(), occupied);
        Ok(())
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<()> {
        self.inner.remove_dir_all(dir)?;
        self.files.lock().retain(|path, _| !path.starts_with(dir));
        Ok(())
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.inner.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn crate::FileLock>> {
        self.inner.lock(path)
    }

    fn hold(&self, path: &Path) -> Result<Option<Box<dyn crate::FileLock>>> {
        self.inner.hold(path)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.inner.boot_id()
    }

    fn group_access(&self) -> Option<crate::GroupAccess> {
        self.inner.group_access()
    }

    fn reassign(&self, path: &Path, context: IoContext) {
        self.inner.reassign(path, context);
    }

    fn free_bytes(&self, _dir: &Path) -> Result<Option<u64>> {
        Ok(Some(self.free()))
    }

    crate::forward_fs!(inner: logs, looks, figures);
}

#[derive(Debug)]
struct CapacityWriter {
    inner: Box<dyn WritableFile>,
    occupied: Arc<Occupied>,
    path: PathBuf,
}

impl WritableFile for CapacityWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.occupied.grow_to(self.inner.len() + data.len() as u64, &self.path)?;
        self.inner.append(data)
    }

    crate::forward_writer!(inner);
}

#[derive(Debug)]
struct CapacityLog {
    inner: Box<dyn LogFile>,
    occupied: Arc<Occupied>,
    path: PathBuf,
}

impl LogFile for CapacityLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let more: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.occupied.grow_to(self.inner.len() + more, &self.path)?;
        self.inner.append(parts)
    }

    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let more: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.occupied.grow_to(self.inner.len() + more, &self.path)?;
        self.inner.submit(parts)
    }

    fn acknowledges_later(&self) -> bool {
        self.inner.acknowledges_later()
    }

    fn hold_back(&mut self, bytes: u64) {
        self.inner.hold_back(bytes);
    }

    fn follow(&mut self, previous: Arc<dyn LogSync>, end: u64) -> Result<()> {
        self.inner.follow(previous, end)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        self.inner.sync_handle()
    }

    fn finish(&mut self) -> Result<()> {
        self.inner.finish()
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        self.occupied.grow_to(self.inner.len() + bytes.len() as u64, &self.path)?;
        self.inner.append_trailer(bytes)
    }

    fn unwritten_bytes(&self) -> u64 {
        self.inner.unwritten_bytes()
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;

    use super::*;
    use crate::mem::MemFs;

    fn disk(blocks: u64) -> (CapacityFs, PathBuf) {
        let memory = MemFs::new();
        let dir = PathBuf::from("/db");
        memory.create_dir_all(&dir).unwrap();
        (CapacityFs::new(Arc::new(memory), &dir, blocks * BLOCK_BYTES).unwrap(), dir)
    }

    const CONTEXT: IoContext =
        IoContext::new(crate::FileClass::Other, crate::IoPurpose::ForegroundWrite);

    fn write(fs: &CapacityFs, path: &Path, bytes: usize) -> Result<()> {
        let mut file = fs.create(path, CONTEXT, CreateOptions::default())?;
        file.append(&vec![1; bytes])?;
        file.sync()
    }

    #[test]
    fn append_fails_without_a_free_block() {
        let (fs, dir) = disk(3);
        write(&fs, &dir.join("a"), 5000).unwrap();
        assert_eq!(fs.used_bytes(), 2 * BLOCK_BYTES);
        assert!(write(&fs, &dir.join("b"), 4097).unwrap_err().is_no_space());
        assert_eq!(fs.len(&dir.join("b")).unwrap(), 0, "nothing of it is written");
        write(&fs, &dir.join("b"), 4096).unwrap();
        fs.link(&dir.join("a"), &dir.join("c")).unwrap();
        fs.remove(&dir.join("a")).unwrap();
        assert_eq!(fs.free(), 0, "another name holds the blocks");
        fs.rename(&dir.join("b"), &dir.join("c")).unwrap();
        assert_eq!(fs.free(), 2 * BLOCK_BYTES);
        fs.occupy(2 * BLOCK_BYTES);
        assert!(write(&fs, &dir.join("d"), 1).unwrap_err().is_no_space());
        assert_eq!(fs.refusals(), 2);
    }

    #[test]
    fn recycled_segment_keeps_its_blocks() {
        let (fs, dir) = disk(2);
        let options = |recycle| LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle };
        let mut log = fs.create_log(&dir.join("1.log"), CONTEXT, options(None)).unwrap();
        log.append(&[&[0; 8000]]).unwrap();
        drop(log);
        let recycle = Some(dir.join("1.log"));
        let mut log = fs.create_log(&dir.join("2.log"), CONTEXT, options(recycle)).unwrap();
        log.append(&[&[0; 100]]).unwrap();
        assert_eq!(fs.used_bytes(), 2 * BLOCK_BYTES);
        assert!(log.append(&[&[0; 9000]]).unwrap_err().is_no_space());
        drop(log);
        fs.remove(&dir.join("2.log")).unwrap();
        assert_eq!(fs.used_bytes(), 0);
    }

    #[test]
    fn files_that_exist_count_from_the_start() {
        let memory = MemFs::new();
        memory.create_dir_all(Path::new("/db/in")).unwrap();
        memory.write_atomic(Path::new("/db/in/x"), &[0; 5000], CONTEXT).unwrap();
        let fs = CapacityFs::new(Arc::new(memory), Path::new("/db"), 1 << 20).unwrap();
        assert_eq!(fs.used_bytes(), 2 * BLOCK_BYTES);
        fs.remove_dir_all(Path::new("/db/in")).unwrap();
        assert_eq!(fs.used_bytes(), 0);
    }
}
