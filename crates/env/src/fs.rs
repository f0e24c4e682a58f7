//! The `FileSystem` trait: what a caller guarantees and what an implementation must do.
//!
//! Paths are plain; an implementation keeps no current directory. Every error names the file.
//! Durability: creating, renaming or removing a file survives power loss only after
//! [`FileSystem::sync_dir`] of its directory; its bytes only after a sync of the file.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Result};

use crate::access::GroupAccess;
use crate::context::{FileClass, IoContext, IoPurpose};

/// How a [`WritableFile`] is created.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Bypass the page cache. The implementation buffers and aligns; the caller need not.
    pub direct: bool,
    /// Expected size, 0 if unknown: space may be reserved, the final length is what was written.
    pub size_hint_bytes: u64,
    /// Most bytes that go to the device at once, 0 for as many as suit it: smaller writes let what
    /// others want of the device in between. Without meaning where the page cache or a mapping
    /// takes them.
    pub io_bytes_max: u64,
}

/// How a [`RandomFile`] is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Bypass the page cache. The implementation aligns; the caller need not.
    pub direct: bool,
}

/// A file that is written once, front to back. What was neither flushed nor synced may be lost
/// when it is dropped.
pub trait WritableFile: Send + fmt::Debug {
    /// Appends `data`. Not durable, possibly buffered. After an error the file is unusable.
    fn append(&mut self, data: &[u8]) -> Result<()>;
    /// Hands everything appended to the operating system: survives a kill of the process.
    fn flush(&mut self) -> Result<()>;
    /// Everything appended survives power loss. Implies [`WritableFile::flush`].
    fn sync(&mut self) -> Result<()>;
    /// Bytes appended so far.
    fn len(&self) -> u64;
    /// Whether nothing was appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An immutable file that is read anywhere, by many threads at once.
pub trait RandomFile: Send + Sync + fmt::Debug {
    /// Fills `buf` from `offset`. Reading past the end is an error that says so.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()>;
    /// Reads many ranges; the default reads one after another.
    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        for (offset, buf) in requests.iter_mut() {
            self.read_exact_at(*offset, buf, context)?;
        }
        Ok(())
    }
    /// Tells that `len` bytes at `offset` will be read soon. A hint; may do nothing.
    fn prefetch(&self, _offset: u64, _len: u64) {}
    /// Tells that the caller will not read `len` bytes at `offset` again soon and that the memory
    /// that caches them is better used for something else. A hint; may do nothing.
    fn forget(&self, _offset: u64, _len: u64) {}
    /// Length of the file in bytes.
    fn len(&self) -> u64;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a log segment is created.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The segment's incarnation, which the caller puts into every record. Larger than that of
    /// any earlier segment of the database.
    pub incarnation: Epoch,
    /// Expected final size.
    pub size_hint_bytes: u64,
    /// A segment that is no longer needed and whose space may be used again: it is renamed to
    /// the new path and overwritten from the start without being truncated, so that it may hold
    /// old records behind the new ones.
    pub recycle: Option<PathBuf>,
}

/// The open write-ahead log segment. Callers append one at a time (the trait takes `&mut`).
pub trait LogFile: Send + fmt::Debug {
    /// Appends `parts` one after another. On return the bytes survive `kill -9` of this process
    /// (not power loss). Returns the offset of the first byte. After an error the segment takes
    /// no more appends; the caller goes on in a new segment.
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64>;
    /// Bytes appended so far.
    fn len(&self) -> u64;
    /// Whether nothing was appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A handle that makes everything appended *before the call of* [`LogSync::sync`] survive
    /// power loss; it may be used by another thread while appends go on.
    fn sync_handle(&self) -> Arc<dyn LogSync>;
    /// Ends the segment: everything appended reaches the segment's own file (survives a kill of
    /// the process), and the memory that the open segment took is given back. Does not sync.
    fn finish(&mut self) -> Result<()>;
    /// Writes `bytes` behind the end of the segment, into its own file. The caller calls it at
    /// most once, after [`LogFile::finish`] has succeeded. On return the bytes survive `kill -9`.
    /// A failure changes nothing that was appended before.
    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()>;
    /// Bytes that were appended and that the segment's own file does not hold yet: the file system
    /// does not count them as occupied. 0 where every append goes to the file at once.
    fn unwritten_bytes(&self) -> u64;
}

/// See [`LogFile::sync_handle`].
pub trait LogSync: Send + Sync + fmt::Debug {
    /// Makes everything appended before this call durable. Returns the offset through which the
    /// log is durable now. The first error is sticky: every later call fails too.
    fn sync(&self) -> Result<u64>;
    /// Waits until the device has everything appended before this call: nothing of it is left to
    /// the page cache. Whether it survives power loss is open (the device may keep it in a cache of
    /// its own, the file's length may be lost); [`LogSync::sync`] sees to that. Returns the offset
    /// through which the device has the log. Errors are sticky, for syncs too.
    fn write_through(&self) -> Result<u64>;
}

/// The end of a segment that was open when the process ended, where it did not all lie in the
/// segment's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// Where in the segment `bytes` begin.
    pub offset: u64,
    /// What was appended from there on. May be damaged after power loss: records are checked.
    pub bytes: Vec<u8>,
}

/// A held lock; dropping it (or the end of the process) releases it.
pub trait FileLock: Send + Sync + fmt::Debug {}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Name within the directory.
    pub name: String,
    /// Whether it is a directory itself.
    pub is_dir: bool,
    /// Length in bytes; 0 for directories.
    pub len: u64,
}

/// A file system; see the module.
pub trait FileSystem: Send + Sync + fmt::Debug + 'static {
    /// Creates (or truncates) a file for writing.
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>>;
    /// Opens a file for reading anywhere.
    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>>;
    /// Creates a log segment at `path`. How appends are made to survive (write, mapping, network
    /// quorum) is the implementation's affair.
    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>>;
    /// What the log segment at `path` of `incarnation` holds beyond (or over) its file's bytes,
    /// after a crash. `None` if the file alone is everything.
    fn log_tail(&self, path: &Path, incarnation: Epoch) -> Result<Option<LogTail>>;
    /// Forgets every kept log tail in `dir`, after recovery has made it unneeded.
    fn clear_log_tails(&self, dir: &Path) -> Result<()>;
    /// Writes what the [`LogTail`] of the segment at `path` has of `ranges` into the segment's
    /// file, and makes the file durable. For a segment that no process has open and that a recovery
    /// keeps: `ranges` are the records that the recovery took from the tail. The rest of the tail
    /// is not written, because after power loss it may be older than the file. After an error the
    /// file and the tail together still hold everything.
    fn settle_log(&self, path: &Path, incarnation: Epoch, ranges: &[Range<u64>]) -> Result<()>;
    /// Reads a whole file.
    fn read(&self, path: &Path, context: IoContext) -> Result<Vec<u8>> {
        let file = self.open(path, context, OpenOptions::default())?;
        let mut bytes = vec![0; file.len() as usize];
        file.read_exact_at(0, &mut bytes, context)?;
        Ok(bytes)
    }
    /// Replaces `path` by a file with `bytes`, atomically and durably: writes `path.tmp`, syncs,
    /// renames, syncs the directory. After an error the old file stands.
    fn write_atomic(&self, path: &Path, bytes: &[u8], context: IoContext) -> Result<()> {
        let mut name = path.as_os_str().to_owned();
        name.push(".tmp");
        let temporary = PathBuf::from(name);
        let mut file = self.create(&temporary, context, CreateOptions::default())?;
        file.append(bytes)?;
        file.sync()?;
        drop(file);
        self.rename(&temporary, path)?;
        self.sync_dir(path.parent().unwrap_or(Path::new(".")))
    }
    /// Creates (or replaces) the file at `path` with `bytes` bytes of unspecified content that
    /// occupy the device, durably. Removing the file gives exactly this room back. After an error
    /// no file is left. The default writes bytes that no file system can compress.
    fn allocate(&self, path: &Path, bytes: u64) -> Result<()> {
        fill(self, path, bytes)
    }
    /// Renames a file, replacing `to`.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Makes `to` another name of the file `from`; `Unsupported` where the file system cannot
    /// (the caller copies).
    fn link(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Lists a directory, sorted by name.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;
    /// Length of a file in bytes.
    fn len(&self, path: &Path) -> Result<u64>;
    /// When bytes of a file were written last, in milliseconds since 1970, by the clock of whoever
    /// keeps it; `None` where that is not known.
    fn modified_ms(&self, _path: &Path) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Whether a file or directory exists.
    fn exists(&self, path: &Path) -> Result<bool>;
    /// Creates a directory and its parents, durably; existing ones are fine.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// Removes a directory and everything in it.
    fn remove_dir_all(&self, dir: &Path) -> Result<()>;
    /// Makes creations, renames and removals in `dir` survive power loss.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Takes the exclusive lock file at `path`; `Busy`, with the holder's process id where it is
    /// known, if another process (or another open in this one) holds it.
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>>;
    /// Takes the exclusive lock file at `path` without creating or changing it, for programs that
    /// only read. `None` if there is no such file; `Busy` as [`FileSystem::lock`].
    fn hold(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        if !self.exists(path)? {
            return Ok(None);
        }
        self.lock(path).map(Some)
    }
    /// A number that stays the same until the machine restarts: what was written (not synced)
    /// under the same number cannot have been lost to a power failure. `None` if unknown.
    fn boot_id(&self) -> Option<[u8; 16]> {
        None
    }
    /// What the group of created files may do with them; `None` where files have no permission
    /// bits, or bits that the umask decides.
    fn group_access(&self) -> Option<GroupAccess> {
        None
    }
    /// Tells that the file at `path` belongs to another level now (`context.level`) without having
    /// been rewritten: a trivial move, an ingestion. A hint, which placement may act on later; an
    /// unknown file is no error.
    fn reassign(&self, _path: &Path, _context: IoContext) {}
    /// Bytes from which on a write takes longer for them than it waits for the device, if that is
    /// known: shorter ones are slow by the byte, much longer ones keep others waiting.
    fn write_bytes_best(&self) -> Option<u64> {
        None
    }
    /// Bytes free on the device that holds `dir`; `None` if unknown.
    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>>;
}

/// Writes a file of `bytes` incompressible bytes and syncs it, as [`FileSystem::allocate`] says.
pub(crate) fn fill<F: FileSystem + ?Sized>(fs: &F, path: &Path, bytes: u64) -> Result<()> {
    let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    fill_as(fs, path, bytes, context)
}

/// Writes a file of `bytes` incompressible bytes and syncs it, where a file of `context` belongs:
/// for a file system that places files by what they are for.
pub fn fill_as<F: FileSystem + ?Sized>(
    fs: &F,
    path: &Path,
    bytes: u64,
    context: IoContext,
) -> Result<()> {
    const CHUNK_BYTES: usize = 64 << 10;
    let written = (|| {
        let mut file = fs.create(path, context, CreateOptions::default())?;
        let mut rng = Rng::with_seed(bytes);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut left = bytes;
        while left > 0 {
            let next = left.min(CHUNK_BYTES as u64);
            chunk.fill_with(|| rng.u8(..));
            file.append(&chunk[..next as usize])?;
            left -= next;
        }
        file.sync()
    })();
    if written.is_err() {
        let _incomplete = fs.remove(path);
    }
    written
}
