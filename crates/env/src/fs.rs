//! The trait `FileSystem`: the guarantees of callers and the duties of implementations.
//!
//! Paths are plain, and an implementation has no current directory. Every error names the file.
//! A creation, rename or removal survives power loss only after [`FileSystem::sync_dir`] of its
//! directory. The bytes of a file survive it only after a sync of the file.
//!
//! Thread-safety: any thread may call any method of a file system or a [`RandomFile`]. A writer has
//! one owner.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Result};

use crate::access::GroupAccess;
use crate::context::{FileClass, IoContext, IoPurpose};

/// Options of the creation of a [`WritableFile`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Whether to bypass the page cache. The implementation buffers and aligns.
    pub direct: bool,
    /// Expected size in bytes; 0 if it is unknown. The file system may reserve space. The final
    /// length is the number of written bytes.
    pub size_hint_bytes: u64,
    /// Limit of the bytes that go to the device in one write; 0 for the best size. With smaller
    /// writes, other operations reach the device sooner. The page cache and mappings ignore it.
    pub io_bytes_max: u64,
    /// Whether to refuse a path that has a file already. The refusal has the cause
    /// [`AlreadyExists`](std::io::ErrorKind::AlreadyExists), and the file stays as it is. Of all
    /// exclusive creations of one path at most one succeeds, until the file is removed or renamed.
    /// A file exists from its creation on, also before its first sync.
    pub exclusive: bool,
}

/// Options of the opening of a [`RandomFile`].
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Whether to bypass the page cache. The implementation aligns.
    pub direct: bool,
}

/// A file that is written once, from front to back. Dropping it may lose bytes that were neither
/// flushed nor synced.
pub trait WritableFile: Send + fmt::Debug {
    /// Appends `data`, which may be buffered and is not durable. After an error the file is
    /// unusable.
    fn append(&mut self, data: &[u8]) -> Result<()>;
    /// Passes all appended bytes to the operating system, so that they survive a kill of the
    /// process.
    fn flush(&mut self) -> Result<()>;
    /// Hands over all appended bytes as [`WritableFile::flush`] does, but may return before they
    /// survive a kill of the process. A later flush or sync makes them survive. It suits bytes
    /// whose loss does no harm, such as a durability mark. The default flushes.
    fn submit(&mut self) -> Result<()> {
        self.flush()
    }
    /// Makes all appended bytes survive power loss. It includes [`WritableFile::flush`].
    fn sync(&mut self) -> Result<()>;
    /// Number of bytes that were appended.
    fn len(&self) -> u64;
    /// Whether nothing was appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Reads several ranges, given by offset and length, into new memory that is zeroed first, by one
/// [`RandomFile::read_many`].
pub fn read_many_zeroed<F: RandomFile + ?Sized>(
    file: &F,
    ranges: &[(u64, usize)],
    context: IoContext,
) -> Result<Vec<Vec<u8>>> {
    let mut found: Vec<Vec<u8>> = ranges.iter().map(|&(_, len)| vec![0; len]).collect();
    let offsets = ranges.iter().map(|&(offset, _)| offset);
    let mut requests: Vec<(u64, &mut [u8])> =
        offsets.zip(found.iter_mut().map(Vec::as_mut_slice)).collect();
    file.read_many(&mut requests, context)?;
    Ok(found)
}

/// An immutable file that many threads read at any offset.
pub trait RandomFile: Send + Sync + fmt::Debug {
    /// Fills `buf` from `offset`. A read past the end is an error that says so.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()>;
    /// Reads several ranges. The default reads them one after the other.
    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        for (offset, buf) in requests.iter_mut() {
            self.read_exact_at(*offset, buf, context)?;
        }
        Ok(())
    }
    /// Reads `len` bytes from `offset` into new memory. A read past the end is an error that says
    /// so. A file system that can avoid it does not zero the memory first; the default does.
    fn read_new(&self, offset: u64, len: usize, context: IoContext) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read_exact_at(offset, &mut bytes, context)?;
        Ok(bytes)
    }
    /// Reads several ranges, given by offset and length, as [`RandomFile::read_new`] does. The
    /// default is one [`RandomFile::read_many`].
    fn read_many_new(&self, ranges: &[(u64, usize)], context: IoContext) -> Result<Vec<Vec<u8>>> {
        read_many_zeroed(self, ranges, context)
    }
    /// Announces that `len` bytes at `offset` will be read soon. The file system may ignore the
    /// hint.
    fn prefetch(&self, _offset: u64, _len: u64) {}
    /// Announces that `len` bytes at `offset` will not be read again soon, so that their memory can
    /// cache something else. The file system may ignore the hint.
    fn forget(&self, _offset: u64, _len: u64) {}
    /// Length of the file in bytes.
    fn len(&self) -> u64;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Options of the creation of a log segment.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Incarnation of the segment, which the caller writes into every record. It is larger than
    /// that of any earlier segment of the database.
    pub incarnation: Epoch,
    /// Expected final size in bytes.
    pub size_hint_bytes: u64,
    /// A segment whose space may be used again. It is renamed to the new path and overwritten from
    /// the start without a truncation, so old records may follow the new ones.
    pub recycle: Option<PathBuf>,
}

/// The open segment of a write-ahead log. Callers append one at a time, as `&mut` requires.
pub trait LogFile: Send + fmt::Debug {
    /// Appends `parts` one after the other. On return the bytes survive `kill -9` of this process,
    /// but not power loss. Returns the offset of the first byte. After an error the segment takes
    /// no more appends, and the caller continues in a new segment.
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64>;
    /// Appends `parts` as [`LogFile::append`] does, but may return before the bytes survive a kill
    /// of the process. [`LogSync::wait`] with the end of the append waits for that. So a caller can
    /// fix the order of appends under a lock and wait without the lock. The default appends.
    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.append(parts)
    }
    /// Whether [`LogFile::submit`] returns before its bytes survive a kill of the process. The
    /// default says no, for logs whose `submit` is their `append`.
    fn acknowledges_later(&self) -> bool {
        false
    }
    /// Permits a log that acknowledges later to keep up to `bytes` of submitted bytes back, so that
    /// they travel together. They leave when there are more, and at [`LogSync::send`], a wait for
    /// them, a sync or the end of the segment. The default keeps nothing back.
    fn hold_back(&mut self, _bytes: u64) {}
    /// Lets no byte of this empty segment leave before all bytes of the segment of `previous`
    /// before `end` survive `kill -9`. Bytes that are submitted meanwhile wait in memory, and so do
    /// their waiters. If `previous` loses bytes, this segment fails as well, and none of its bytes
    /// was ever sent. The default waits for `previous`, for logs that keep nothing back.
    fn follow(&mut self, previous: Arc<dyn LogSync>, end: u64) -> Result<()> {
        previous.wait(end)
    }
    /// Number of bytes that were appended.
    fn len(&self) -> u64;
    /// Whether nothing was appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A handle that makes everything durable that was appended *before the call of*
    /// [`LogSync::sync`]. Another thread may use it during appends.
    fn sync_handle(&self) -> Arc<dyn LogSync>;
    /// Ends the segment. All appended bytes reach the segment's own file, so that they survive a
    /// kill of the process, and the memory of the open segment is freed. It does not sync.
    fn finish(&mut self) -> Result<()>;
    /// Writes `bytes` after the end of the segment, into its own file. The caller calls it at most
    /// once, after [`LogFile::finish`] has succeeded. On return the bytes survive `kill -9`. A
    /// failure does not affect earlier appends.
    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()>;
    /// Number of appended bytes that the segment's own file does not hold yet. The file system does
    /// not count them as occupied. It is 0 if every append goes directly to the file.
    fn unwritten_bytes(&self) -> u64;
}

/// Makes the bytes of a log segment durable ([`LogFile::sync_handle`]).
pub trait LogSync: Send + Sync + fmt::Debug {
    /// Makes all bytes durable that were appended before this call. Returns the offset through
    /// which the log is durable now. The first error is sticky: every later call fails as well.
    fn sync(&self) -> Result<u64>;
    /// Waits until all bytes before the offset `end`, which [`LogFile::submit`] took, survive
    /// `kill -9` of this process. Errors are sticky: an append that follows a failed one fails as
    /// well. Bytes before [`LogSync::acknowledged`] never fail, also after an error. The default
    /// returns immediately, for logs whose `submit` is their `append`.
    fn wait(&self, _end: u64) -> Result<()> {
        Ok(())
    }
    /// Sends the bytes that the log keeps back ([`LogFile::hold_back`]). It does not wait for their
    /// acknowledgement. The default does nothing, for logs that keep nothing back.
    fn send(&self) -> Result<()> {
        Ok(())
    }
    /// Offset before which all bytes are known to survive `kill -9` of this process. It does not
    /// wait. The default, `u64::MAX`, covers all bytes that were submitted.
    fn acknowledged(&self) -> u64 {
        u64::MAX
    }
    /// Waits until the device has all bytes that were appended before this call, so that the page
    /// cache alone holds none of them. They may still be lost with the power, because the device
    /// may have a cache and the length of the file may be lost. [`LogSync::sync`] prevents that.
    /// Returns the offset through which the device has the log. Errors are sticky, for syncs as
    /// well.
    fn write_through(&self) -> Result<u64>;
}

/// The end of a segment that was open when the process ended, as far as the segment's file does not
/// hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// Offset of `bytes` in the segment.
    pub offset: u64,
    /// The bytes from there on. They may be damaged after power loss, so the reader checks records.
    pub bytes: Vec<u8>,
}

/// The time for which this process may answer reads of files that another process can take over.
pub trait ReadLease: Send + Sync + fmt::Debug {
    /// Whether the time has not ended. A caller asks when the answer of a read is ready, and not
    /// before the read. Errors: `Busy` if the time has ended and may be extended, `Fenced` if
    /// another process owns the files, `Closed`.
    fn check(&self) -> Result<()>;
}

/// A lock that is held. Dropping it, or the end of the process, releases it.
pub trait FileLock: Send + Sync + fmt::Debug {}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Name within the directory.
    pub name: String,
    /// Whether the entry is a directory.
    pub is_dir: bool,
    /// Length in bytes; 0 for directories.
    pub len: u64,
}

/// A file system, whose contract the module describes.
pub trait FileSystem: Send + Sync + fmt::Debug + 'static {
    /// Creates a file for writing. A file that exists is truncated, or refused if the creation is
    /// [exclusive](CreateOptions::exclusive).
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>>;
    /// Opens a file for reading at any offset.
    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>>;
    /// Creates a log segment at `path`. The implementation chooses how appends survive (a write, a
    /// mapping, a quorum in a network).
    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>>;
    /// The bytes of the log segment at `path` of `incarnation` that its file does not hold after a
    /// crash. `None` if the file holds all of them.
    fn log_tail(&self, path: &Path, incarnation: Epoch) -> Result<Option<LogTail>>;
    /// Removes every kept log tail in `dir`, after the recovery that used it.
    fn clear_log_tails(&self, dir: &Path) -> Result<()>;
    /// Writes the bytes that the [`LogTail`] of the segment at `path` has of `ranges` into the file
    /// of the segment, and makes the file durable. No process has the segment open, and a recovery
    /// keeps it: `ranges` are the records that it took from the tail. The rest of the tail is not
    /// written, because after power loss it may be older than the file. After an error the file and
    /// the tail together still hold everything.
    fn settle_log(&self, path: &Path, incarnation: Epoch, ranges: &[Range<u64>]) -> Result<()>;
    /// Reads a whole file.
    fn read(&self, path: &Path, context: IoContext) -> Result<Vec<u8>> {
        let file = self.open(path, context, OpenOptions::default())?;
        let mut bytes = vec![0; file.len() as usize];
        file.read_exact_at(0, &mut bytes, context)?;
        Ok(bytes)
    }
    /// Replaces `path` by a file with `bytes`, atomically and durably. The default writes
    /// `path.tmp`, syncs, renames and syncs the directory. After an error the old file stays.
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
    /// Creates or replaces the file at `path` with `bytes` bytes of arbitrary content that occupy
    /// the device, durably. Removing the file frees exactly this space. After an error no file is
    /// left. The default writes bytes that no file system can compress.
    fn allocate(&self, path: &Path, bytes: u64) -> Result<()> {
        fill(self, path, bytes)
    }
    /// Renames a file, and replaces `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Makes `to` another name of the file `from`. Errors: `Unsupported` if the file system cannot
    /// do that, and then the caller copies.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file from its directory.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Lists a directory, sorted by name.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;
    /// Length of a file in bytes.
    fn len(&self, path: &Path) -> Result<u64>;
    /// Time of the last write to a file, in milliseconds since 1970, by the clock of the machine
    /// that stores it; `None` if it is unknown.
    fn modified_ms(&self, _path: &Path) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Whether a file or directory exists.
    fn exists(&self, path: &Path) -> Result<bool>;
    /// Creates a directory and its parents, durably. Existing ones are not an error.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// Removes a directory and everything in it.
    fn remove_dir_all(&self, dir: &Path) -> Result<()>;
    /// Makes creations, renames and removals in `dir` survive power loss.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Takes the exclusive lock file at `path`. Errors: `Busy` if another process, or another open
    /// in this process, holds it. The error has the process id of the holder if it is known.
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>>;
    /// Takes the exclusive lock file at `path` without creating or changing it, for programs that
    /// only read. `None` if there is no such file. Errors as for [`FileSystem::lock`].
    fn hold(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        if !self.exists(path)? {
            return Ok(None);
        }
        self.lock(path).map(Some)
    }
    /// A number that changes when the machine restarts. Bytes that were written without a sync
    /// under the same number were not lost to a power failure. `None` if it is unknown.
    fn boot_id(&self) -> Option<[u8; 16]> {
        None
    }
    /// Rights of the group of created files; `None` if files have no permission bits, or bits that
    /// the umask decides.
    fn group_access(&self) -> Option<GroupAccess> {
        None
    }
    /// Announces that the file at `path` belongs to another level now (`context.level`) without a
    /// rewrite, after a trivial move or an ingestion. Placement may act on the hint later. An
    /// unknown file is not an error.
    fn reassign(&self, _path: &Path, _context: IoContext) {}
    /// Size of a write in bytes above which it spends more time on its bytes than on the latency of
    /// the device, if that is known. Shorter writes are slow per byte, and much longer ones delay
    /// other operations.
    fn write_bytes_best(&self) -> Option<u64> {
        None
    }
    /// Number of bytes that the file system writes to its devices per byte that is written to a new
    /// file of `class`, without later moves and copies. It is 1 (the default) on a local disk, 3
    /// with three replicas, and 1.5 with four data and two parity fragments. The engine weighs the
    /// rewriting of tables against that of value files with it.
    fn redundancy(&self, _class: FileClass) -> f64 {
        1.0
    }
    /// Whether [`LogOptions::recycle`] saves work, which is the default. If it does not, the engine
    /// removes the segments that it does not need, because kept ones would occupy space in vain.
    fn recycles_logs(&self) -> bool {
        true
    }
    /// The lease under which answers of reads may be given, also of values that are in memory.
    /// `None`, the default, if no other process can take the files over.
    fn read_lease(&self) -> Option<Arc<dyn ReadLease>> {
        None
    }
    /// Place of the write-ahead log of the database in `dir`, for people and for the manifest.
    /// `None`, the default, if the log lies in `dir` itself.
    fn log_place(&self, _dir: &Path) -> Option<String> {
        None
    }
    /// Bytes free on the device that holds `dir`; `None` if unknown.
    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>>;
    /// Room of writers in a pool that slows them down before it is full. `None`, the default, for a
    /// file system that does not. The answer may come from a recent report.
    fn writer_room(&self) -> Option<WriterRoom> {
        None
    }
}

/// Room of writers in a pool that slows them down before it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterRoom {
    /// Bytes of files that fit before the pool has reached the limit of writers.
    pub left_bytes: u64,
    /// Value of `left_bytes` below which writers are slowed down; 0 for never.
    pub slowdown_bytes: u64,
}

/// Writes a file of `bytes` incompressible bytes and syncs it, as [`FileSystem::allocate`] says.
pub(crate) fn fill<F: FileSystem + ?Sized>(fs: &F, path: &Path, bytes: u64) -> Result<()> {
    let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    fill_as(fs, path, bytes, context)
}

/// Writes a file of `bytes` incompressible bytes and syncs it, at the place of a file of `context`,
/// for a file system that places files by their purpose.
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
