//! Tables that are open for reading. A bounded number of them holds a descriptor.
//!
//! [`open`] returns a file that reads as any other. The pool of the process closes descriptors of
//! files that were not read lately, if more than [`descriptors::tables_max`] are open, or if the
//! system has no descriptor left for another file ([`with_room`]). The next read of such a file
//! opens it again. Therefore a compaction or an iterator may use more files than descriptors, at
//! the cost of opening files again, and logs, manifests and new tables get descriptors.
//!
//! Invariants:
//! 1. A descriptor is closed only while the path of the file leads to the same file. A file that
//!    was removed or replaced keeps its descriptor.
//! 2. A file that is opened again is the same file (device and inode). Otherwise the read fails.
//! 3. A read keeps its descriptor until it ends.
//! 4. After an open at most `tables_max` files hold a descriptor, except the files of invariant 1
//!    and files that were all read since the clock hand passed twice.
//!
//! Thread-safety: any thread may read any file. The lock of the pool is held while a path is
//! checked, and never while a file is opened. Failure: if closing everything frees no descriptor,
//! an open fails with the system's error. Cost: a read takes one shared lock besides the system
//! call. Only reads of the device or the page cache use this module. Opening a file costs a system
//! call for the limit.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use super::buffered::BufferedReader;
use super::direct::{self, DirectReader};
use crate::context::IoContext;
use crate::descriptors;
use crate::fs::{OpenOptions, RandomFile};

/// Number of descriptors that are closed together if the system has none left. It is small, because
/// other threads of the process may take a free descriptor first.
const CLOSED_TOGETHER: usize = 2;
/// Number of attempts to open a file, because other threads may take the closed descriptors.
const TRIES_MAX: usize = 64;

/// Runs `open`. If it fails because no descriptor is left, closes tables and runs it again.
pub(super) fn with_room<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = 0;
    loop {
        match open() {
            Err(error) if is_exhausted(&error) && tries < TRIES_MAX => {
                if POOL.close_some() == 0 {
                    return Err(error);
                }
                tries += 1;
            }
            done => return done,
        }
    }
}

fn is_exhausted(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].iter().any(|none| code == Some(none.raw_os_error()))
}

/// A reader of `path` that holds its descriptor, and the identity of the file.
pub(super) fn open_reader(
    path: &Path,
    context: IoContext,
    options: OpenOptions,
) -> Result<(Arc<dyn RandomFile>, Metadata)> {
    let failed = |source| Error::io("open", path, source);
    let mut how = fs::OpenOptions::new();
    how.read(true);
    let (file, is_direct) =
        with_room(|| direct::open(&how, path, options.direct)).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let len = metadata.len();
    let reader: Arc<dyn RandomFile> = match is_direct {
        true => Arc::new(DirectReader::new(file, path, len)),
        false => Arc::new(BufferedReader::new(file, path, len, context)),
    };
    Ok((reader, metadata))
}

/// Opens a table for reading.
pub(super) fn open(
    path: &Path,
    context: IoContext,
    options: OpenOptions,
) -> Result<Arc<dyn RandomFile>> {
    Ok(Arc::new(open_table(path, context, options)?))
}

fn open_table(path: &Path, context: IoContext, options: OpenOptions) -> Result<Table> {
    let (reader, metadata) = open_reader(path, context, options)?;
    let file = Arc::new(TableFile {
        // A change of the working directory must not change the file that is opened again.
        path: std::path::absolute(path).map_err(|source| Error::io("open", path, source))?,
        context,
        options,
        len: metadata.len(),
        identity: identity_of(&metadata),
        held: RwLock::new(Some(reader)),
        opening: Mutex::new(()),
        used: AtomicBool::new(true),
    });
    POOL.admit(&file);
    Ok(Table(file))
}

/// Device and inode of a file.
fn identity_of(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[derive(Debug)]
struct TableFile {
    path: PathBuf,
    context: IoContext,
    options: OpenOptions,
    len: u64,
    identity: (u64, u64),
    held: RwLock<Option<Arc<dyn RandomFile>>>,
    /// Held while the file is opened again.
    opening: Mutex<()>,
    /// Set by reads, and cleared by the clock hand of the pool.
    used: AtomicBool,
}

impl TableFile {
    fn reader(self: &Arc<Self>) -> Result<Arc<dyn RandomFile>> {
        if let Some(reader) = self.held() {
            return Ok(reader);
        }
        let _opening = self.opening.lock();
        if let Some(reader) = self.held() {
            return Ok(reader);
        }
        let (reader, metadata) = open_reader(&self.path, self.context, self.options)?;
        if identity_of(&metadata) != self.identity {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "cannot open {} again: it is another file than when it was opened first; \
                     raise the limit of open files, so that it need not be closed meanwhile",
                    self.path.display()
                ),
            ));
        }
        *self.held.write() = Some(Arc::clone(&reader));
        POOL.admit(self);
        Ok(reader)
    }

    fn held(&self) -> Option<Arc<dyn RandomFile>> {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        self.held.read().clone()
    }

    /// Closes the descriptor, if the file can be opened again.
    fn close(&self) -> Option<Arc<dyn RandomFile>> {
        let metadata = fs::metadata(&self.path).ok()?;
        if identity_of(&metadata) != self.identity {
            return None;
        }
        self.held.write().take()
    }
}

/// The file that callers hold. The pool holds it weakly.
#[derive(Debug)]
struct Table(Arc<TableFile>);

impl RandomFile for Table {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        self.0.reader()?.read_exact_at(offset, buf, context)
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        self.0.reader()?.read_many(requests, context)
    }

    fn read_new(&self, offset: u64, len: usize, context: IoContext) -> Result<Vec<u8>> {
        self.0.reader()?.read_new(offset, len, context)
    }

    fn read_many_new(&self, ranges: &[(u64, usize)], context: IoContext) -> Result<Vec<Vec<u8>>> {
        self.0.reader()?.read_many_new(ranges, context)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if let Some(reader) = self.0.held() {
            reader.prefetch(offset, len);
        }
    }

    fn forget(&self, offset: u64, len: u64) {
        if let Some(reader) = self.0.held() {
            reader.forget(offset, len);
        }
    }

    fn len(&self) -> u64 {
        self.0.len
    }
}

static POOL: Pool = Pool(Mutex::new(Clock { files: Vec::new(), hand: 0 }));

/// The files of this process that hold a descriptor.
struct Pool(Mutex<Clock>);

struct Clock {
    files: Vec<Weak<TableFile>>,
    hand: usize,
}

/// Closed readers and files, which are dropped after the lock of the pool is released.
type Dropped = Vec<(Option<Arc<dyn RandomFile>>, Arc<TableFile>)>;

impl Pool {
    /// Adds a file that holds a descriptor now, and closes others if there are too many.
    fn admit(&self, file: &Arc<TableFile>) {
        let most = descriptors::tables_max(descriptors::limit());
        let mut clock = self.0.lock();
        clock.files.push(Arc::downgrade(file));
        let excess = clock.files.len().saturating_sub(most);
        let (dropped, _) = clock.turn(excess, most, Some(file));
        drop(clock);
        drop(dropped);
    }

    /// Closes some descriptors. Returns their number.
    fn close_some(&self) -> usize {
        let (dropped, closed) = self.0.lock().turn(CLOSED_TOGETHER, 0, None);
        drop(dropped);
        closed
    }
}

impl Clock {
    /// Moves the hand, at most twice around, until `wanted` descriptors were closed or at most
    /// `most` files are left. It never closes `spared`. At least two steps find files that do not
    /// exist any more.
    fn turn(
        &mut self,
        wanted: usize,
        most: usize,
        spared: Option<&Arc<TableFile>>,
    ) -> (Dropped, usize) {
        let (mut dropped, mut closed) = (Dropped::new(), 0);
        let steps_max = self.files.len() * 2;
        for step in 0..steps_max {
            if self.files.is_empty() {
                break;
            }
            let is_wanted = closed < wanted && self.files.len() > most;
            if !is_wanted && step >= 2 {
                break;
            }
            self.hand %= self.files.len();
            let Some(file) = self.files[self.hand].upgrade() else {
                self.files.swap_remove(self.hand);
                continue;
            };
            let is_spared = spared.is_some_and(|spared| Arc::ptr_eq(spared, &file));
            let reader = match is_wanted && !is_spared {
                true if !file.used.swap(false, Ordering::Relaxed) => file.close(),
                _ => None,
            };
            if reader.is_some() {
                closed += 1;
                self.files.swap_remove(self.hand);
            } else {
                self.hand += 1;
            }
            dropped.push((reader, file));
        }
        (dropped, closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{FileClass, IoPurpose};

    const CONTEXT: IoContext = IoContext::new(FileClass::Sst, IoPurpose::ForegroundRead);

    fn table(dir: &Path, name: &str, bytes: &[u8]) -> (PathBuf, Table) {
        let path = dir.join(name);
        fs::write(&path, bytes).unwrap();
        let file = open_table(&path, CONTEXT, OpenOptions::default()).unwrap();
        (path, file)
    }

    /// Closes descriptors until the file has none, or none was closed.
    fn close(table: &Table) -> bool {
        while table.0.held.read().is_some() {
            if POOL.close_some() == 0 {
                return false;
            }
        }
        true
    }

    fn read(table: &Table) -> Result<[u8; 3]> {
        let mut bytes = [0; 3];
        table.read_exact_at(1, &mut bytes, CONTEXT).map(|()| bytes)
    }

    #[test]
    fn closed_table_is_opened_again_by_the_next_read() {
        let dir = tempfile::tempdir().unwrap();
        let (_, table) = table(dir.path(), "a", b"abcdef");
        for _round in 0..3 {
            assert!(close(&table));
            table.prefetch(0, 6);
            assert_eq!(read(&table).unwrap(), *b"bcd");
            assert_eq!(table.len(), 6);
        }
    }

    #[test]
    fn removed_table_keeps_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let (path, table) = table(dir.path(), "a", b"abcdef");
        fs::remove_file(&path).unwrap();
        while POOL.close_some() > 0 {}
        assert_eq!(read(&table).unwrap(), *b"bcd");
    }

    #[test]
    fn replaced_table_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, table) = table(dir.path(), "a", b"abcdef");
        assert!(close(&table));
        fs::write(dir.path().join("b"), b"ghijkl").unwrap();
        fs::rename(dir.path().join("b"), &path).unwrap();
        let error = read(&table).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }

    #[test]
    fn exhaustion_closes_tables_and_is_an_error_when_none_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (_, _table) = table(dir.path(), "a", b"abcdef");
        let mut calls = 0;
        let outcome = with_room(|| {
            calls += 1;
            if calls < 2 { Err(io::Error::from(Errno::MFILE)) } else { Ok(calls) }
        });
        assert_eq!(outcome.unwrap(), 2);
        let other = with_room(|| Err::<(), _>(io::Error::from(Errno::NOENT)));
        assert_eq!(other.unwrap_err().kind(), io::ErrorKind::NotFound);
        let none = with_room(|| Err::<(), _>(io::Error::from(Errno::NFILE)));
        assert!(is_exhausted(&none.unwrap_err()));
    }
}
