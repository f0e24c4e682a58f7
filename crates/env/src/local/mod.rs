//! Files of the local operating system.
//!
//! [`LocalFs`] holds only the permission bits of created files ([`GroupAccess`]) and the form of
//! logs, so handles with the same settings are interchangeable. It adds to the system calls:
//! - Writers collect appends (in a buffer, or aligned for `O_DIRECT`), reserve space ahead, and
//!   return the space that they did not need.
//! - Readers join adjacent requests into one system call, and align for `O_DIRECT`.
//! - A file system that refuses `O_DIRECT` is used through the page cache, with one warning per
//!   process.
//! - Every error names the file.
//! - Tables that are open for reading share a bounded number of descriptors. They are closed if no
//!   descriptor is left for another file (`tables`).
//!
//! Invariants:
//! 1. After a failed write or sync a writer fails permanently. An fsync is never repeated, because
//!    the kernel reports a lost page only once.
//! 2. A created directory is durable, because its parent is synced. So is a directory that existed,
//!    unless its parent cannot be opened or synced (`durable_dirs`).
//! 3. This process buffers nothing after `flush` or `sync`.
//!
//! Thread-safety: as the traits say.
//! Failure: a failed `sync_dir` may be repeated.
//! Cost: the system calls.

#![expect(clippy::disallowed_methods, reason = "the layer that all other file access goes through")]

mod aligned;
mod batch_read;
mod buffered;
mod direct;
mod durable_dirs;
mod lock;
pub mod log;
pub mod mapped;
mod modes;
mod plain_log;
mod tables;
mod writeback;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use archipelago_base::{Epoch, Error, ErrorKind, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use self::buffered::BufferedWriter;
use self::direct::DirectWriter;
use self::modes::Modes;
use self::tables::with_room;
use crate::access::GroupAccess;
use crate::context::IoContext;
use crate::fs::{
    CreateOptions, DirEntry, FileLock, FileSystem, LogFile, LogOptions, LogTail, OpenOptions,
    RandomFile, WritableFile, fill,
};

/// The local file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFs {
    modes: Modes,
    /// Whether each append to a log is a `write`, so that no log has a ring.
    has_plain_logs: bool,
}

impl LocalFs {
    /// Makes a handle whose files only their owner may use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a handle that also gives the group access to created files.
    ///
    /// ```
    /// use archipelago_env::local::LocalFs;
    /// use archipelago_env::{FileSystem, GroupAccess};
    ///
    /// let fs = LocalFs::for_group(GroupAccess::Read);
    /// assert_eq!(fs.group_access(), Some(GroupAccess::Read));
    /// ```
    #[must_use]
    pub fn for_group(access: GroupAccess) -> Self {
        Self { modes: Modes::Exact(access), ..Self::default() }
    }

    /// Makes a handle for reports that hold no data. The umask alone decides who may read them.
    #[must_use]
    pub fn for_reports() -> Self {
        Self { modes: Modes::ByUmask, ..Self::default() }
    }

    /// The same handle with one `write` for each append to a log. It suits a process with many open
    /// logs, because every other log has a ring of 4 MiB and a thread.
    ///
    /// ```
    /// use archipelago_base::Epoch;
    /// use archipelago_env::local::LocalFs;
    /// use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, LogOptions};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    /// let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    /// let fs = LocalFs::new().with_plain_logs();
    /// let mut log = fs.create_log(&dir.path().join("log"), context, options)?;
    /// log.append(&[b"coral"])?;
    /// assert_eq!(log.unwritten_bytes(), 0, "the file has every byte");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_plain_logs(self) -> Self {
        Self { has_plain_logs: true, ..self }
    }

    /// Makes the handle of [`LocalFs::new`] behind a shared pointer.
    #[must_use]
    pub fn shared() -> Arc<dyn FileSystem> {
        Arc::new(Self::new())
    }

    /// Opens a file for writing from its start, and creates it if it does not exist. An exclusive
    /// creation refuses a file that exists. `how` comes from [`Modes::creating`].
    fn create_file(
        self,
        path: &Path,
        how: &mut fs::OpenOptions,
        options: CreateOptions,
    ) -> io::Result<(File, bool)> {
        how.write(true);
        let (file, is_direct) = if options.exclusive {
            how.create_new(true);
            with_room(|| direct::create_new(how, path, options.direct))?
        } else {
            how.truncate(true);
            with_room(|| direct::open(how, path, options.direct))?
        };
        self.modes.settle(&file, path)?;
        Ok((file, is_direct))
    }
}

/// The parent directory, which is the current directory for a bare file name.
fn dir_or_here(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

/// Creates the file `path` with `bytes` allocated blocks, durably.
fn allocate_blocks(path: &Path, bytes: u64, modes: Modes) -> Result<(), Errno> {
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let file = modes.creating().write(true).truncate(true).open(path).map_err(errno)?;
    modes.settle(&file, path).map_err(errno)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    file.sync_all().map_err(errno)
}

impl FileSystem for LocalFs {
    fn create(
        &self,
        path: &Path,
        _context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let (file, is_direct) = self
            .create_file(path, &mut self.modes.creating(), options)
            .map_err(|source| Error::io("create", path, source))?;
        if is_direct {
            return Ok(Box::new(DirectWriter::new(file, path, options)));
        }
        Ok(Box::new(BufferedWriter::new(file, path, options.size_hint_bytes)))
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        if context.class.is_table() {
            return tables::open(path, context, options);
        }
        tables::open_reader(path, context, options).map(|(reader, _)| reader)
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        if self.has_plain_logs {
            return plain_log::create(path, &options, self.modes);
        }
        log::create(path, context, &options, self.modes)
    }

    fn log_tail(&self, path: &Path, incarnation: Epoch) -> Result<Option<LogTail>> {
        log::tail(path, incarnation)
    }

    fn clear_log_tails(&self, dir: &Path) -> Result<()> {
        log::clear_tails(dir)
    }

    fn settle_log(&self, path: &Path, incarnation: Epoch, ranges: &[Range<u64>]) -> Result<()> {
        log::settle(path, incarnation, ranges)
    }

    fn allocate(&self, path: &Path, bytes: u64) -> Result<()> {
        match allocate_blocks(path, bytes, self.modes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => fill(self, path, bytes),
            Err(cause) => {
                let _incomplete = fs::remove_file(path);
                Err(Error::io("allocate", path, cause.into()))
            }
            Ok(()) => Ok(()),
        }
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        log::boot_id()
    }

    fn group_access(&self) -> Option<GroupAccess> {
        match self.modes {
            Modes::Exact(access) => Some(access),
            Modes::ByUmask => None,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to).map_err(|source| {
            Error::io(&format!("rename to {} the file", to.display()), from, source)
        })
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let doing = || format!("link to {} the file", to.display());
        match rustix::fs::link(from, to) {
            Ok(()) => Ok(()),
            Err(cause @ (Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK)) => {
                let context = format!("cannot {} {}", doing(), from.display());
                Err(Error::with_source(ErrorKind::Unsupported, context, io::Error::from(cause)))
            }
            Err(cause) => Err(Error::io(&doing(), from, cause.into())),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(|source| Error::io("remove", path, source))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let failed = |source| Error::io("list", dir, source);
        let mut entries = Vec::new();
        for entry in with_room(|| fs::read_dir(dir_or_here(dir))).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => continue,
                Err(other) => return Err(Error::io("examine", &entry.path(), other)),
            };
            let is_dir = metadata.is_dir();
            let len = if is_dir { 0 } else { metadata.len() };
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(DirEntry { name, is_dir, len });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn len(&self, path: &Path) -> Result<u64> {
        let failed = |source| Error::io("find the length of", path, source);
        let metadata = fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        Ok(metadata.len())
    }

    fn modified_ms(&self, path: &Path) -> Result<Option<u64>> {
        let failed = |source| Error::io("find the time of", path, source);
        let at = fs::metadata(path).and_then(|metadata| metadata.modified()).map_err(failed)?;
        Ok(at.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_millis() as u64))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        dir_or_here(path).try_exists().map_err(|source| Error::io("examine", path, source))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let dir = dir_or_here(dir);
        let parent = dir.parent().unwrap_or(Path::new("/"));
        let failed = |source| Error::io("create directory", dir, source);
        match self.modes.create_dir(dir) {
            Ok(()) => (),
            Err(_) if dir.is_dir() => return durable_dirs::settle(dir, parent),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                self.create_dir_all(parent)?;
                match self.modes.create_dir(dir) {
                    Err(_) if dir.is_dir() => (),
                    other => other.map_err(failed)?,
                }
            }
            Err(other) => return Err(failed(other)),
        }
        self.sync_dir(parent)
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<()> {
        fs::remove_dir_all(dir).map_err(|source| Error::io("remove directory", dir, source))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let failed = |source| Error::io("sync directory", dir, source);
        let opened = with_room(|| File::open(dir_or_here(dir))).map_err(failed)?;
        opened.sync_all().map_err(failed)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        Ok(Box::new(lock::LocalLock::take(path, self.modes)?))
    }

    fn hold(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        Ok(lock::LocalLock::hold(path)?.map(|lock| Box::new(lock) as Box<dyn FileLock>))
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        let room = rustix::fs::statvfs(dir_or_here(dir))
            .map_err(|cause| Error::io("find the free space of", dir, cause.into()))?;
        Ok(Some(room.f_bavail.saturating_mul(room.f_frsize)))
    }
}
