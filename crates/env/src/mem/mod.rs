//! A file system in memory that can lose power.
//!
//! [`MemFs`] is a handle, and its clones are the same disk. It knows which bytes of every file were
//! synced, and which creations, renames and removals of every directory. From that it makes *other*
//! disks with their state
//! - after power loss ([`MemFs::crash_clone`]): everything that was synced, and a random share of
//!   the rest, which the seed alone determines. The share is a prefix of the unsynced bytes of each
//!   file (over the old bytes of a recycled log segment), sometimes followed by a few zeroed or
//!   random sectors, and a prefix of the unsynced changes of each directory;
//! - after `kill -9` ([`MemFs::kill_clone`]): everything that was passed on. A [`WritableFile`]
//!   holds back up to 64 KiB until its `flush` or `sync`. A log append is passed on immediately.
//!
//! A test that loses power at every interesting moment sets [`MemFs::on_sync`].
//!
//! Invariants:
//! 1. Every crash clone has everything that an operation reported as durable.
//! 2. A clone shares nothing with its origin.
//! 3. The same operations and the same seed give the same clone.
//!
//! Thread-safety: any thread may call any method. There is one lock for the names and one per file,
//! and the callback runs without a lock.
//! Failure: operations fail only as on a healthy disk (missing files, files in the way).
//! [`crate::fault::FaultFs`] adds device errors.
//! Cost: a clone copies only the bytes of files with unsynced bytes.

mod disk;
mod handles;
mod inode;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, Result};
use parking_lot::Mutex;

use self::disk::{Disk, Entry, parent, plain};
use self::handles::{MemLock, MemLog, MemLogSync, MemReader, MemWriter};
use self::inode::Inode;
use crate::context::IoContext;
use crate::failure::{locked, not_found};
use crate::fs::{
    CreateOptions, DirEntry, FileLock, FileSystem, LogFile, LogOptions, LogTail, OpenOptions,
    RandomFile, WritableFile,
};

/// Called with its path after each sync of a file, a log or a directory.
pub type OnSync = Arc<dyn Fn(&MemFs, &Path) + Send + Sync>;

/// A disk in memory. Clones are handles of the same disk.
#[derive(Clone, Default)]
pub struct MemFs {
    shared: Arc<DiskState>,
}

#[derive(Default)]
struct DiskState {
    disk: Mutex<Disk>,
    on_sync: Mutex<Option<OnSync>>,
    sync_count: AtomicU64,
}

impl fmt::Debug for MemFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemFs").field("sync_count", &self.sync_count()).finish_non_exhaustive()
    }
}

impl MemFs {
    /// Makes an empty disk, on which the roots `/` and `` exist.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk with the state after a power loss now. It holds no locks, has no callback, and
    /// everything on it is synced. The same `seed` gives the same clone.
    #[must_use]
    pub fn crash_clone(&self, seed: u64) -> Self {
        let disk = self.shared.disk.lock().after_power_loss(&mut Rng::with_seed(seed));
        Self::of(disk)
    }

    /// A disk with the state after `kill -9` now. It holds no locks and has no callback. Unsynced
    /// bytes are still unsynced.
    #[must_use]
    pub fn kill_clone(&self) -> Self {
        let disk = self.shared.disk.lock().after_kill();
        Self::of(disk)
    }

    fn of(disk: Disk) -> Self {
        let shared = DiskState { disk: Mutex::new(disk), ..DiskState::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Calls `callback` after every sync of a file, a log or a directory from now on, on the thread
    /// that synced. It may clone this disk. A sync within the callback would call it again.
    pub fn on_sync(&self, callback: OnSync) {
        *self.shared.on_sync.lock() = Some(callback);
    }

    /// Removes the callback.
    pub fn clear_on_sync(&self) {
        *self.shared.on_sync.lock() = None;
    }

    /// Number of syncs of files, logs and directories so far.
    #[must_use]
    pub fn sync_count(&self) -> u64 {
        self.shared.sync_count.load(Ordering::Relaxed)
    }

    fn synced(&self, path: &Path) {
        self.shared.sync_count.fetch_add(1, Ordering::Relaxed);
        let callback = self.shared.on_sync.lock().clone();
        if let Some(callback) = callback {
            callback(self, path);
        }
    }

    fn unlock(&self, path: &Path) {
        self.shared.disk.lock().locks.remove(path);
    }

    fn file(&self, doing: &str, path: &Path) -> Result<Arc<Inode>> {
        let disk = self.shared.disk.lock();
        let path = plain(path);
        match disk.file(&path) {
            Some(inode) => Ok(Arc::clone(inode)),
            None if disk.is_dir(&path) => {
                Err(Error::io(doing, &path, io::ErrorKind::IsADirectory.into()))
            }
            None => Err(not_found(doing, &path)),
        }
    }

    fn made_file(disk: &mut Disk, doing: &str, path: &Path) -> Result<Arc<Inode>> {
        if disk.is_dir(path) {
            return Err(Error::io(doing, path, io::ErrorKind::IsADirectory.into()));
        }
        disk.create(path).ok_or_else(|| not_found(doing, path))
    }
}

impl FileSystem for MemFs {
    fn create(
        &self,
        path: &Path,
        _context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let path = plain(path);
        let mut disk = self.shared.disk.lock();
        if options.exclusive && disk.names.contains_key(&path) {
            return Err(Error::io("create", &path, io::ErrorKind::AlreadyExists.into()));
        }
        let inode = Self::made_file(&mut disk, "create", &path)?;
        drop(disk);
        if inode.len() > 0 {
            inode.truncate();
        }
        Ok(Box::new(MemWriter { fs: self.clone(), path, inode, buffer: Vec::new() }))
    }

    fn open(
        &self,
        path: &Path,
        _context: IoContext,
        _options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        let inode = self.file("open", path)?;
        let len = inode.len() as u64;
        Ok(Arc::new(MemReader { path: plain(path), inode, len }))
    }

    fn create_log(
        &self,
        path: &Path,
        _context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        let path = plain(path);
        if let Some(old) = &options.recycle {
            self.rename(old, &path)?;
        }
        let inode = Self::made_file(&mut self.shared.disk.lock(), "create log", &path)?;
        if options.recycle.is_some() {
            inode.rewind();
        } else if inode.len() > 0 {
            inode.truncate();
        }
        Ok(Box::new(MemLog { sync: Arc::new(MemLogSync { fs: self.clone(), path, inode }) }))
    }

    fn log_tail(&self, _path: &Path, _incarnation: Epoch) -> Result<Option<LogTail>> {
        Ok(None)
    }

    fn clear_log_tails(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    fn settle_log(&self, path: &Path, _: Epoch, _: &[Range<u64>]) -> Result<()> {
        self.file("settle log", path)?.sync();
        self.synced(path);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (plain(from), plain(to));
        let mut disk = self.shared.disk.lock();
        let doing = || format!("rename to {} the file", to.display());
        let inode = disk.file(&from).cloned().ok_or_else(|| not_found(&doing(), &from))?;
        if !disk.is_dir(parent(&to)) {
            return Err(not_found(&doing(), &from));
        }
        if disk.is_dir(&to) {
            return Err(Error::io(&doing(), &from, io::ErrorKind::IsADirectory.into()));
        }
        if from != to {
            disk.rename(inode, &from, &to);
        }
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let inode = self.file("link", from)?;
        let to = plain(to);
        let doing = || format!("link to {} the file", to.display());
        let mut disk = self.shared.disk.lock();
        if disk.names.contains_key(&to) {
            return Err(Error::io(&doing(), from, io::ErrorKind::AlreadyExists.into()));
        }
        if !disk.is_dir(parent(&to)) {
            return Err(not_found(&doing(), from));
        }
        disk.link(inode, &to);
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.file("remove", path)?;
        self.shared.disk.lock().remove(&plain(path));
        Ok(())
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let dir = plain(dir);
        let disk = self.shared.disk.lock();
        if !disk.is_dir(&dir) {
            return Err(not_found("list", &dir));
        }
        let inside = disk.names.range(dir.clone()..).take_while(|(path, _)| path.starts_with(&dir));
        let entries = inside.filter(|(path, _)| path.parent() == Some(&dir));
        let entries = entries.map(|(path, entry)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match entry {
                Entry::Dir => DirEntry { name, is_dir: true, len: 0 },
                Entry::File(inode) => DirEntry { name, is_dir: false, len: inode.len() as u64 },
            }
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn len(&self, path: &Path) -> Result<u64> {
        Ok(self.file("find the length of", path)?.len() as u64)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let path = plain(path);
        let disk = self.shared.disk.lock();
        Ok(disk.is_dir(&path) || disk.names.contains_key(&path))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let dir = plain(dir);
        if self.shared.disk.lock().create_dirs(&dir) {
            return Ok(());
        }
        Err(Error::io("create directory", &dir, io::ErrorKind::NotADirectory.into()))
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<()> {
        let dir = plain(dir);
        let mut disk = self.shared.disk.lock();
        if !disk.is_dir(&dir) || dir.parent().is_none() {
            return Err(not_found("remove directory", &dir));
        }
        disk.remove_tree(&dir);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let dir = plain(dir);
        {
            let mut disk = self.shared.disk.lock();
            if !disk.is_dir(&dir) {
                return Err(not_found("sync directory", &dir));
            }
            disk.sync_dir(&dir);
        }
        self.synced(&dir);
        Ok(())
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let path = plain(path);
        let mut disk = self.shared.disk.lock();
        if disk.locks.contains(&path) {
            return Err(locked(&path, Some(std::process::id())));
        }
        Self::made_file(&mut disk, "lock", &path)?;
        disk.locks.insert(path.clone());
        Ok(MemLock::boxed(self, &path))
    }

    fn free_bytes(&self, _dir: &Path) -> Result<Option<u64>> {
        Ok(None)
    }
}
