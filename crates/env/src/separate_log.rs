//! A file system on which the write-ahead log of one database lies in a directory of another file
//! system, such as a local disk while the tables lie on storage nodes.
//!
//! The log segments of the database (`*.log` in its directory) are files of the *log directory*.
//! All other files, and those of all other directories, are those of the file system inside. The
//! directory of the database lists both.
//!
//! Invariants:
//! 1. A log directory has an identity of its own, which is drawn at its first use and stays with
//!    its files. [`FileSystem::log_place`] ends with it. So a database finds its log again after
//!    the directory was moved, and takes no other directory for it.
//! 2. The lock of the database also locks the log directory, so that no two processes write one
//!    log, also if the file system inside has fenced one of them.
//!
//! Thread-safety: that of the two file systems.
//! Failure: errors are those of the two file systems. A rename or link between them is
//! `Unsupported`.
//! Cost: a comparison of paths for each call. A sync of the directory syncs both directories.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::{Rng, entropy_seed, unique_id};
use archipelago_base::{Epoch, Error, ErrorKind, Result};

use crate::access::GroupAccess;
use crate::context::{FileClass, IoContext, IoPurpose};
use crate::fs::{
    CreateOptions, DirEntry, FileLock, FileSystem, LogFile, LogOptions, LogTail, OpenOptions,
    RandomFile, ReadLease, WritableFile, WriterRoom,
};

/// Name of the file with the identity of a log directory.
const LOG_PLACE_NAME: &str = "LOG-PLACE";
/// Largest length in bytes of the text of a place, which manifests keep.
const PLACE_BYTES_MAX: usize = 4096;
/// Text before the identity in a place.
const ID_BEGIN: &str = " (id ";

/// Two file systems, of which one has the log of a database.
#[derive(Debug)]
pub struct SeparateLogFs {
    files: Arc<dyn FileSystem>,
    dir: PathBuf,
    log: Arc<dyn FileSystem>,
    log_dir: PathBuf,
    place: String,
}

/// The locks of the directory of a database and of its log directory.
#[derive(Debug)]
struct BothLocks {
    _files: Box<dyn FileLock>,
    _log: Box<dyn FileLock>,
}

impl FileLock for BothLocks {}

impl SeparateLogFs {
    /// A file system with the files of `files`, on which the log of the database in `dir` lies in
    /// `log_dir` of `log`. `may_create` permits to create a log directory that does not exist; a
    /// program that only reads does not.
    ///
    /// Errors: `NotFound` if the log directory does not exist or has no identity, and may not be
    /// created. `InvalidArgument` for a path that is too long. `Corrupt` if the identity is
    /// damaged.
    pub fn open(
        files: Arc<dyn FileSystem>,
        dir: &Path,
        log: Arc<dyn FileSystem>,
        log_dir: &Path,
        may_create: bool,
    ) -> Result<Arc<Self>> {
        let id = match identity(&*log, log_dir)? {
            Some(id) => id,
            None if may_create => create_identity(&*log, log_dir)?,
            None => {
                return Err(Error::not_found(format!(
                    "{} is not the log directory of a database: it has no file {LOG_PLACE_NAME}",
                    log_dir.display()
                )));
            }
        };
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let place = format!("{} of {host}{ID_BEGIN}{id:032x})", log_dir.display());
        if place.len() > PLACE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the path of the log directory has {} bytes: choose a shorter one",
                log_dir.as_os_str().len()
            )));
        }
        let (dir, log_dir) = (dir.to_owned(), log_dir.to_owned());
        Ok(Arc::new(Self { files, dir, log, log_dir, place }))
    }

    /// Path of a log segment of the database in the log directory; `None` for all other files.
    fn in_log(&self, path: &Path) -> Option<PathBuf> {
        if path.parent() != Some(self.dir.as_path()) {
            return None;
        }
        let name = path.file_name()?.to_str()?;
        is_segment(name).then(|| self.log_dir.join(name))
    }

    /// Whether `path` is the directory of the database.
    fn is_database(&self, path: &Path) -> bool {
        path == self.dir
    }
}

fn is_segment(name: &str) -> bool {
    name.ends_with(".log")
}

/// Identity of a log directory; `None` if it has none.
fn identity(log: &dyn FileSystem, log_dir: &Path) -> Result<Option<u128>> {
    let path = log_dir.join(LOG_PLACE_NAME);
    if !log.exists(&path)? {
        return Ok(None);
    }
    let bytes = log.read(&path, IoContext::manifest(IoPurpose::Recovery))?;
    let digits = str::from_utf8(&bytes).ok().and_then(|text| text.strip_suffix('\n'));
    let digits = digits.filter(|digits| digits.len() == 32);
    match digits.and_then(|digits| u128::from_str_radix(digits, 16).ok()) {
        Some(id) => Ok(Some(id)),
        None => Err(Error::corrupt(&path, 0, "the file does not have 32 hexadecimal digits")),
    }
}

/// Gives a log directory an identity, and creates it if it does not exist.
fn create_identity(log: &dyn FileSystem, log_dir: &Path) -> Result<u128> {
    log.create_dir_all(log_dir)?;
    let id = u128::from_be_bytes(unique_id(&mut Rng::with_seed(entropy_seed())));
    let text = format!("{id:032x}\n");
    let context = IoContext::manifest(IoPurpose::ForegroundWrite);
    log.write_atomic(&log_dir.join(LOG_PLACE_NAME), text.as_bytes(), context)?;
    Ok(id)
}

/// Whether two texts of [`FileSystem::log_place`] mean the same log directory, also if it was moved
/// or its machine was renamed.
#[must_use]
pub fn is_same_log_place(one: &str, other: &str) -> bool {
    let id = |text: &str| text.rfind(ID_BEGIN).map(|at| text[at..].to_owned());
    match (id(one), id(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

impl FileSystem for SeparateLogFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        match self.in_log(path) {
            Some(path) => self.log.create(&path, context, options),
            None => self.files.create(path, context, options),
        }
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        match self.in_log(path) {
            Some(path) => self.log.open(&path, context, options),
            None => self.files.open(path, context, options),
        }
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        let Some(path) = self.in_log(path) else {
            return self.files.create_log(path, context, options);
        };
        let recycle = options.recycle.as_deref().and_then(|recycle| self.in_log(recycle));
        self.log.create_log(&path, context, LogOptions { recycle, ..options })
    }

    fn log_tail(&self, path: &Path, incarnation: Epoch) -> Result<Option<LogTail>> {
        match self.in_log(path) {
            Some(path) => self.log.log_tail(&path, incarnation),
            None => self.files.log_tail(path, incarnation),
        }
    }

    fn clear_log_tails(&self, dir: &Path) -> Result<()> {
        match self.is_database(dir) {
            true => self.log.clear_log_tails(&self.log_dir),
            false => self.files.clear_log_tails(dir),
        }
    }

    fn settle_log(&self, path: &Path, incarnation: Epoch, ranges: &[Range<u64>]) -> Result<()> {
        match self.in_log(path) {
            Some(path) => self.log.settle_log(&path, incarnation, ranges),
            None => self.files.settle_log(path, incarnation, ranges),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        match (self.in_log(from), self.in_log(to)) {
            (Some(from), Some(to)) => self.log.rename(&from, &to),
            (None, None) => self.files.rename(from, to),
            _ => Err(between(from, to)),
        }
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        match (self.in_log(from), self.in_log(to)) {
            (Some(from), Some(to)) => self.log.link(&from, &to),
            (None, None) => self.files.link(from, to),
            _ => Err(between(from, to)),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        match self.in_log(path) {
            Some(path) => self.log.remove(&path),
            None => self.files.remove(path),
        }
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let mut entries = self.files.list(dir)?;
        if self.is_database(dir) {
            let segments = self.log.list(&self.log_dir)?.into_iter();
            entries.extend(segments.filter(|entry| is_segment(&entry.name)));
            entries.sort_by(|one, other| one.name.cmp(&other.name));
        }
        Ok(entries)
    }

    fn len(&self, path: &Path) -> Result<u64> {
        match self.in_log(path) {
            Some(path) => self.log.len(&path),
            None => self.files.len(path),
        }
    }

    fn modified_ms(&self, path: &Path) -> Result<Option<u64>> {
        match self.in_log(path) {
            Some(path) => self.log.modified_ms(&path),
            None => self.files.modified_ms(path),
        }
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        match self.in_log(path) {
            Some(path) => self.log.exists(&path),
            None => self.files.exists(path),
        }
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.files.create_dir_all(dir)
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<()> {
        self.files.remove_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        if self.is_database(dir) {
            self.log.sync_dir(&self.log_dir)?;
        }
        self.files.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let files = self.files.lock(path)?;
        match path.file_name() {
            Some(name) if path.parent() == Some(self.dir.as_path()) => {
                let log = self.log.lock(&self.log_dir.join(name))?;
                Ok(Box::new(BothLocks { _files: files, _log: log }))
            }
            _ => Ok(files),
        }
    }

    fn hold(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        self.files.hold(path)
    }

    /// The number of the machine of the log: only logs are judged by it.
    fn boot_id(&self) -> Option<[u8; 16]> {
        self.log.boot_id()
    }

    fn group_access(&self) -> Option<GroupAccess> {
        self.files.group_access()
    }

    fn reassign(&self, path: &Path, context: IoContext) {
        self.files.reassign(path, context);
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        self.files.free_bytes(dir)
    }

    fn allocate(&self, path: &Path, bytes: u64) -> Result<()> {
        self.files.allocate(path, bytes)
    }

    fn write_bytes_best(&self) -> Option<u64> {
        self.files.write_bytes_best()
    }

    fn redundancy(&self, class: FileClass) -> f64 {
        match class {
            FileClass::Wal => self.log.redundancy(class),
            _ => self.files.redundancy(class),
        }
    }

    fn recycles_logs(&self) -> bool {
        self.log.recycles_logs()
    }

    fn read_lease(&self) -> Option<Arc<dyn ReadLease>> {
        self.files.read_lease()
    }

    fn writer_room(&self) -> Option<WriterRoom> {
        self.files.writer_room()
    }

    fn log_place(&self, dir: &Path) -> Option<String> {
        self.is_database(dir).then(|| self.place.clone())
    }
}

/// The error of a rename or a link between the two file systems.
fn between(from: &Path, to: &Path) -> Error {
    let (from, to) = (from.display(), to.display());
    let what = format!("{from} and {to} lie in different file systems, because one is a log");
    Error::new(ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemFs;

    const DIR: &str = "/db";
    const LOG_DIR: &str = "/wal/reef";

    fn context() -> IoContext {
        IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite)
    }

    fn open(files: &MemFs, log: &MemFs, may_create: bool) -> Result<Arc<SeparateLogFs>> {
        let (files, log) = (Arc::new(files.clone()), Arc::new(log.clone()));
        SeparateLogFs::open(files, Path::new(DIR), log, Path::new(LOG_DIR), may_create)
    }

    fn names(fs: &dyn FileSystem, dir: &str) -> Vec<String> {
        let entries = fs.list(Path::new(dir)).expect("a list");
        entries.into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn segments_lie_in_the_log_directory_and_are_listed_in_both() {
        let (files, log) = (MemFs::new(), MemFs::new());
        let fs = open(&files, &log, true).expect("opens");
        fs.create_dir_all(Path::new(DIR)).expect("a directory");
        let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 1 << 16, recycle: None };
        let segment = Path::new(DIR).join("000001.log");
        let mut open_log = fs.create_log(&segment, context(), options).expect("a segment");
        open_log.append(&[b"coral"]).expect("an append");
        open_log.finish().expect("an end");
        let table = Path::new(DIR).join("000002.sst");
        fs.create(&table, context(), CreateOptions::default()).expect("a table");
        fs.sync_dir(Path::new(DIR)).expect("a sync");
        assert_eq!(names(&*fs, DIR), ["000001.log", "000002.sst"]);
        assert_eq!(names(&files, DIR), ["000002.sst"]);
        assert!(names(&log, LOG_DIR).contains(&"000001.log".to_owned()));
        assert_eq!(fs.read(&segment, context()).expect("a read"), b"coral");
        // A segment of another directory is a file of the other file system.
        let copy = Path::new("/copy/000001.log");
        assert_eq!(fs.link(&segment, copy).unwrap_err().kind(), ErrorKind::Unsupported);
        fs.remove(&segment).expect("a removal");
        assert!(!fs.exists(&segment).expect("an answer"));
        assert_eq!(names(&*fs, DIR), ["000002.sst"]);
    }

    #[test]
    fn place_stays_with_the_log_directory() {
        let (files, log) = (MemFs::new(), MemFs::new());
        let error = open(&files, &log, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let place = |log: &MemFs| {
            open(&files, log, true).expect("opens").log_place(Path::new(DIR)).expect("a place")
        };
        let first = place(&log);
        assert!(first.starts_with("/wal/reef of "), "{first}");
        assert_eq!(place(&log), first);
        assert_eq!(open(&files, &log, false).expect("opens").log_place(Path::new("/x")), None);
        assert!(!is_same_log_place(&place(&MemFs::new()), &first), "another disk");
        let moved = first.replace("/wal/reef", "/mnt/wal");
        assert!(is_same_log_place(&moved, &first));
        assert!(is_same_log_place("a", "a") && !is_same_log_place("a", &first));
    }

    #[test]
    fn lock_of_the_database_locks_the_log_directory() {
        let log = MemFs::new();
        let lock = Path::new(DIR).join("LOCK");
        // Another owner has fenced the first one from its files, but not from its log.
        let [first, second] = [MemFs::new(), MemFs::new()].map(|files| {
            files.create_dir_all(Path::new(DIR)).expect("a directory");
            open(&files, &log, true).expect("opens")
        });
        let held = first.lock(&lock).expect("a lock");
        assert_eq!(second.lock(&lock).unwrap_err().kind(), ErrorKind::Busy);
        drop(held);
        second.lock(&lock).expect("the lock is free");
    }
}
