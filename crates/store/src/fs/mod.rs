//! [`StoreFs`]: files, logs and directories of a volume.
//!
//! A [`StoreFs`] turns every operation on a path into a change of the volume's namespace and into
//! calls of the pool. The engine, its jobs, garbage collection and checkpoints run on it as on a
//! local disk.
//!
//! | class of a file | its bytes |
//! | --- | --- |
//! | `Sst`, `ValueSst` | a blob, which gets its name with the sync of the file (`table`) |
//! | `Manifest`, `Other`, `Wal` | inline in the namespace, and a log when it grows (`growing`) |
//! | any, of [`FileSystem::create_log`] | a log (`wal`) |
//!
//! A process that does not own the volume reads and writes tables by a grant of the owner
//! (`grant`).
//!
//! Creations, renames and removals are submitted immediately, in one order for the whole volume.
//! [`FileSystem::sync_dir`] waits for all of them, so the changes of one job share a round trip.
//! Unlike on a local disk, a kill of the process may lose changes that no call has waited for. The
//! lost changes are the last ones of the order.
//!
//! Invariants:
//! 1. A name changes only by a commit of the volume.
//! 2. Bytes that a flush or a sync has reported can be found through durable records.
//! 3. The bytes of a file without a name stay until its last reader or writer is dropped.
//!
//! Thread-safety: any thread may call any method.
//! Failure: every error names the path. `Fenced` means that another process owns the volume, and
//! `Busy` that the lease could not be renewed.
//! Cost: a lookup takes a lock and no round trip. The flush of a table and of its manifest edit
//! takes at most six round trips: one for each seal, one for the names, and one for the edit. A new
//! manifest takes one more.

mod copy;
mod failure;
mod grant;
mod growing;
mod lock;
mod open_files;
mod reader;
mod sending;
mod table;
mod wal;
mod written_log;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Epoch, Result};
use archipelago_env::ballast::fill_as;
use archipelago_env::names::plain;
use archipelago_env::{
    CreateOptions, DirEntry, FileClass, FileLock, FileSystem, IoContext, IoPurpose, LogFile,
    LogOptions, LogTail, OpenOptions, RandomFile, ReadLease, WritableFile, WriterRoom,
};

pub use self::copy::CopyTarget;
pub use self::grant::{BlobGrant, GrantedFs, NamedBlob, PendingOutputs, WrittenBlobs, WrittenFile};

use self::failure::{missing, refused};
use self::growing::{GrowingFile, INLINE_BYTES_MAX};
use self::lock::StoreLock;
use self::open_files::{NewName, OpenFiles};
use self::reader::StoreReader;
use self::table::{TableWriter, write_blob};
use self::wal::StoreLog;
use crate::volume::Volume;
use crate::volume::record::{Content, Record};

/// The lease of a volume's owner, for callers that answer reads from memory.
#[derive(Debug)]
struct VolumeLease(Arc<Volume>);

impl ReadLease for VolumeLease {
    fn check(&self) -> Result<()> {
        self.0.check_lease()
    }
}

/// The file system of a volume, as its owner sees it.
#[derive(Debug)]
pub struct StoreFs {
    files: Arc<OpenFiles>,
}

impl StoreFs {
    /// The file system of an open volume. A volume has one file system.
    #[must_use]
    pub fn new(volume: Arc<Volume>) -> Arc<Self> {
        Arc::new(Self { files: Arc::new(OpenFiles::new(volume)) })
    }

    /// Ends the logs whose writers are dropped, makes everything durable, and closes the volume. A
    /// drop without it leaves the volume as a kill of the process does. Errors: those of the pool,
    /// and `Fenced`. The lease is given up in any case.
    pub fn close(&self) -> Result<()> {
        let ended = self.files.end_logs();
        self.files.volume.close().and(ended)
    }

    /// Copies the files of the directory `dir` into another volume of the pool, which the call
    /// creates. Tables are shared and not copied. On return the other volume survives power loss,
    /// the removal of these files, and that of this volume. No other thread changes `dir`
    /// meanwhile.
    ///
    /// Errors: `InvalidArgument` if a complete volume has the name; `Busy` if another process fills
    /// that volume; `Io` for a directory in `dir`; those of the pool; `Fenced`. After an error, the
    /// call may be repeated: the other volume cannot be opened before it is complete.
    pub fn copy_to_volume(&self, dir: &Path, target: &CopyTarget) -> Result<()> {
        let dir = plain(dir);
        self.files.volume.check_open()?;
        copy::copy_dir(self, &dir, target)
    }

    /// Refuses a path that is no directory.
    fn check_dir(&self, doing: &str, dir: &Path) -> Result<()> {
        match self.files.volume.look(|state| state.is_dir(dir)) {
            true => Ok(()),
            false => Err(refused(doing, dir, io::ErrorKind::NotFound)),
        }
    }
}

impl FileSystem for StoreFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let path = plain(path);
        if context.class.is_table() {
            return Ok(Box::new(TableWriter::create(&self.files, &path, context, options)?));
        }
        let name = NewName::of(options);
        Ok(Box::new(GrowingFile::create(&self.files, &path, context, name)?))
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        _options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        Ok(Arc::new(StoreReader::open(&self.files, &plain(path), context)?))
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        Ok(Box::new(StoreLog::create(&self.files, &plain(path), context, &options)?))
    }

    /// Returns `None`, because the log itself has every byte that it acknowledged.
    fn log_tail(&self, _path: &Path, _incarnation: Epoch) -> Result<Option<LogTail>> {
        Ok(None)
    }

    fn clear_log_tails(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    /// Does nothing, because there are no tails, and because the opening of the volume has made
    /// each log durable through the end that it recorded.
    fn settle_log(&self, path: &Path, _: Epoch, _: &[Range<u64>]) -> Result<()> {
        self.files.key("settle log", &plain(path)).map(drop)
    }

    /// Commits one record and waits for it. Bytes beyond 4 KiB lie in a blob.
    fn write_atomic(&self, path: &Path, bytes: &[u8], context: IoContext) -> Result<()> {
        let (path, files, doing) = (plain(path), &self.files, "write");
        files.check_target(doing, &path)?;
        let content = match bytes.len() {
            0..=INLINE_BYTES_MAX => Content::Inline(bytes.to_vec()),
            _ => Content::Blob(write_blob(files, &path, bytes, context)?),
        };
        let blob = match &content {
            Content::Blob(blob) => Some(blob.id),
            _ => None,
        };
        let record = files.new_file(files.volume.allocate(), context.class, &path, content);
        let moment = files.create(&[record], doing, &path).inspect_err(|_| {
            if let Some(blob) = blob {
                files.volume.give_up(blob);
            }
        })?;
        files.wait(moment, doing, &path)
    }

    fn allocate(&self, path: &Path, bytes: u64) -> Result<()> {
        // The file has the redundancy of tables, because tables will need its space.
        let context = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
        fill_as(self, path, bytes, context)?;
        let volume = &self.files.volume;
        self.files.wait(volume.moment(), "allocate", path).inspect_err(|_| {
            let _incomplete = self.remove(path);
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.files.rename(&plain(from), &plain(to))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (plain(from), plain(to));
        let doing = format!("link to {} the file", to.display());
        let record = Record::Link { from: from.clone(), to };
        self.files.change(&[record], &doing, &from).map(drop)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.files.remove(&plain(path))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let (dir, doing) = (plain(dir), "list");
        let listed = self.files.volume.look(|state| {
            let entries = state.list(&dir)?.into_iter().map(|(name, key)| {
                let file = key.and_then(|key| state.get(key));
                (name, key, file.map(|file| file.content.len_bytes()))
            });
            Some(entries.collect::<Vec<_>>())
        });
        let listed = listed.ok_or_else(|| refused(doing, &dir, io::ErrorKind::NotFound))?;
        let mut entries = Vec::with_capacity(listed.len());
        for (name, key, len) in listed {
            let len = match (key, len) {
                (Some(key), Some(None)) => self.files.log_len(key, &dir.join(&name))?,
                (_, len) => Some(len.flatten().unwrap_or(0)),
            };
            // A log that was removed meanwhile is left out.
            let Some(len) = len else { continue };
            let name = name.to_string_lossy().into_owned();
            entries.push(DirEntry { name, is_dir: key.is_none(), len });
        }
        self.files.answer(entries, doing, &dir)
    }

    fn len(&self, path: &Path) -> Result<u64> {
        let (path, doing) = (plain(path), "find the length of");
        let len = self.files.len(doing, &path)?;
        self.files.answer(len, doing, &path)
    }

    fn modified_ms(&self, path: &Path) -> Result<Option<u64>> {
        let (path, doing) = (plain(path), "find the time of");
        let found = self.files.volume.look(|state| match state.file(&path) {
            Some(file) => Ok(file.modified_ms),
            None => Err(state.is_dir(&path)),
        });
        let modified_ms = found.map_err(|is_dir| missing(doing, &path, is_dir))?;
        self.files.answer(Some(modified_ms), doing, &path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let path = plain(path);
        let exists =
            self.files.volume.look(|state| state.is_dir(&path) || state.key(&path).is_some());
        self.files.answer(exists, "examine", &path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let (dir, doing) = (plain(dir), "create directory");
        if self.check_dir(doing, &dir).is_err() {
            self.files.change(&[Record::MakeDir { path: dir.clone() }], doing, &dir)?;
        }
        self.files.wait(self.files.volume.moment(), doing, &dir)
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<()> {
        let (dir, doing) = (plain(dir), "remove directory");
        self.check_dir(doing, &dir)?;
        self.files.remove_dir(&dir)
    }

    /// Waits for all changes of the volume's names, also in other directories.
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let (dir, doing) = (plain(dir), "sync directory");
        self.check_dir(doing, &dir)?;
        self.files.wait(self.files.volume.moment(), doing, &dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        Ok(Box::new(StoreLock::take(&self.files, &plain(path))?))
    }

    /// Boot id of the volume, which changes when a take-over may have lost bytes that were not
    /// synced.
    fn boot_id(&self) -> Option<[u8; 16]> {
        Some(self.files.volume.boot_id())
    }

    fn redundancy(&self, class: FileClass) -> f64 {
        self.files.volume.stores().blobs.redundancy(class)
    }

    /// Returns `false`: a new log overwrites nothing, so a kept segment would only occupy the pool.
    fn recycles_logs(&self) -> bool {
        false
    }

    fn read_lease(&self) -> Option<Arc<dyn ReadLease>> {
        Some(Arc::new(VolumeLease(Arc::clone(&self.files.volume))))
    }

    /// Waits first until all changes of names are durable, because the pool gives up the bytes of a
    /// file only after that.
    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        let (volume, doing) = (&self.files.volume, "find the free space of");
        self.files.wait(volume.moment(), doing, dir)?;
        self.files.heard(volume.stores().blobs.free_bytes(), doing, dir)
    }

    fn writer_room(&self) -> Option<WriterRoom> {
        self.files.volume.stores().blobs.writer_room()
    }
}
