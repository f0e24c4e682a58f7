//! A bounded number of open readers of tables and of value files.
//!
//! The database owns the cache. The reader of a file lies in its [`LiveFile`] or [`LiveValueFile`],
//! so that a read finds it with one load and without a look-up. The cache only knows which files
//! have a reader. Tables and value files share one limit, because both hold a file descriptor.
//! Invariants:
//! 1. A file has at most one reader at a time (opening holds a lock of the file's shard).
//! 2. After every open at most `readers_max` files hold a reader. The exception is that the clock
//!    hand found all of them used, twice around.
//! 3. A reader that is closed lives on until its last user drops it.
//!
//! Thread-safety: any thread may call any method. Failure: a failed open leaves nothing behind, and
//! the next read tries again. The list of open files holds them weakly: a file that is dropped
//! takes its reader along.
//! Cost: an open at the limit moves the clock hand past the files that were used since it passed
//! them, so O(1) steps for each use of a file.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use archipelago_base::budget::{ByteBudget, Pressure};
use archipelago_base::{Error, ErrorKind, FileNo, Result};
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, OpenOptions, RandomFile};
use parking_lot::Mutex;

use crate::file_meta::{sst_name, value_file_name};
use crate::live_file::{LiveFile, LiveValueFile};
use crate::sst::{BlockCache, TableReader};
use crate::value::ValueTable;

/// Number of locks under which files are opened.
const SHARDS: usize = 16;
/// Largest number of readers that an open closes while the budget is under pressure.
const CLOSE_UNDER_PRESSURE: usize = 2;
/// Smallest number of steps of the clock hand at an open. They find readers that were dropped with
/// their file.
const STEPS_MIN: usize = 2;

/// The table cache: bounds the number of open table readers.
pub struct TableCache {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    cache: Arc<BlockCache>,
    budget: Arc<ByteBudget>,
    readers_max: usize,
    direct: bool,
    /// Whether another process may remove files that this database's versions name.
    beside_a_writer: bool,
    opening: [Mutex<()>; SHARDS],
    open: Mutex<OpenList>,
}

/// A file that may hold a reader.
trait ReadableFile: Send + Sync {
    fn no(&self) -> FileNo;
    /// Set by readers, cleared by the clock hand.
    fn used(&self) -> &AtomicBool;
    /// Takes the reader out, for the caller to drop outside of all locks.
    fn close(&self) -> Option<Arc<dyn Send + Sync>>;
}

impl ReadableFile for LiveFile {
    fn no(&self) -> FileNo {
        self.file_no()
    }

    fn used(&self) -> &AtomicBool {
        &self.used
    }

    fn close(&self) -> Option<Arc<dyn Send + Sync>> {
        self.reader.swap(None).map(|reader| reader as _)
    }
}

impl ReadableFile for LiveValueFile {
    fn no(&self) -> FileNo {
        self.file_no()
    }

    fn used(&self) -> &AtomicBool {
        &self.used
    }

    fn close(&self) -> Option<Arc<dyn Send + Sync>> {
        self.reader.swap(None).map(|reader| reader as _)
    }
}

/// Files that hold a reader, and the clock hand.
#[derive(Default)]
struct OpenList {
    files: Vec<Weak<dyn ReadableFile>>,
    hand: usize,
}

/// A reader for the duration of one operation, if possible without counting references.
pub enum ReaderGuard<R> {
    /// The reader was open already.
    Held(arc_swap::Guard<Option<Arc<R>>>),
    /// The reader was opened for this operation.
    Opened(Arc<R>),
}

/// The reader of a table for the duration of one operation.
pub type TableGuard = ReaderGuard<TableReader>;

impl<R> Deref for ReaderGuard<R> {
    type Target = R;

    #[inline]
    fn deref(&self) -> &R {
        match self {
            Self::Held(guard) => guard.as_ref().expect("made only of an open reader"),
            Self::Opened(reader) => reader,
        }
    }
}

impl std::fmt::Debug for TableCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableCache({}, {} open)", self.dir.display(), self.open_readers())
    }
}

impl TableCache {
    /// A cache that opens files of `dir` on `fs`; `direct` bypasses the page cache.
    #[must_use]
    pub fn new(
        fs: Arc<dyn FileSystem>,
        dir: PathBuf,
        cache: Arc<BlockCache>,
        budget: Arc<ByteBudget>,
        readers_max: usize,
        direct: bool,
    ) -> Self {
        Self {
            fs,
            dir,
            cache,
            budget,
            readers_max: readers_max.max(1),
            direct,
            beside_a_writer: false,
            opening: Default::default(),
            open: Mutex::default(),
        }
    }

    /// Makes the cache one of a read-only database, whose writer may remove files that its versions
    /// name. A table whose file is missing is then an error of the kind `Fenced`.
    #[must_use]
    pub fn beside_a_writer(self) -> Self {
        Self { beside_a_writer: true, ..self }
    }

    /// The error for a missing file of a version. It never means that a key does not exist.
    fn missing(&self, path: &Path, error: Error) -> Error {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        if !self.beside_a_writer {
            return Error::corrupt(path, 0, "the file is missing, though the manifest names it");
        }
        Error::with_source(
            ErrorKind::Fenced,
            format!(
                "{}: the writer has removed this file since the database was opened read only or \
                 caught up, and it was not held open (table_readers_max): call Db::catch_up and take \
                 a new iterator or snapshot",
                path.display()
            ),
            error,
        )
    }

    /// The file's reader, which the caller may keep.
    pub fn get(&self, file: &Arc<LiveFile>) -> Result<Arc<TableReader>> {
        touch(&file.used);
        match file.reader.load_full() {
            Some(reader) => Ok(reader),
            None => self.open(file),
        }
    }

    /// The file's reader for one operation, cheaper than [`TableCache::get`]. Keep few guards, and
    /// none of them for long.
    #[inline]
    pub fn load(&self, file: &Arc<LiveFile>) -> Result<TableGuard> {
        touch(&file.used);
        let guard = file.reader.load();
        if guard.is_some() {
            return Ok(TableGuard::Held(guard));
        }
        drop(guard);
        self.open(file).map(TableGuard::Opened)
    }

    /// The file's reader as from [`TableCache::get`]. With `cache_only` it is `Busy` ("would need
    /// I/O") if the file would have to be opened.
    pub fn get_for(&self, file: &Arc<LiveFile>, cache_only: bool) -> Result<Arc<TableReader>> {
        self.may_open(file, cache_only)?;
        self.get(file)
    }

    /// The file's reader as from [`TableCache::load`], or `Busy` as from [`TableCache::get_for`].
    #[inline]
    pub fn load_for(&self, file: &Arc<LiveFile>, cache_only: bool) -> Result<TableGuard> {
        self.may_open(file, cache_only)?;
        self.load(file)
    }

    #[inline]
    fn may_open(&self, file: &Arc<LiveFile>, cache_only: bool) -> Result<()> {
        if !cache_only || file.reader.load().is_some() {
            return Ok(());
        }
        let path = self.dir.join(sst_name(file.file_no()));
        Err(Error::busy(format!("{}: would need I/O to open it", path.display())))
    }

    /// The block cache that readers use.
    #[must_use]
    pub fn block_cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    #[cold]
    fn open(&self, file: &Arc<LiveFile>) -> Result<Arc<TableReader>> {
        let meta = file.meta();
        let _opening = self.opening[meta.no as usize % SHARDS].lock();
        if let Some(reader) = file.reader.load_full() {
            return Ok(reader);
        }
        let path = self.dir.join(sst_name(meta.file_no()));
        let handle = self.open_file(&path, FileClass::Sst, file.held())?;
        let reader = TableReader::open(handle, &path, Some(meta), &self.cache, &self.budget)?;
        file.reader.store(Some(Arc::clone(&reader)));
        self.note(Arc::downgrade(file) as _, meta.file_no());
        Ok(reader)
    }

    /// The reader of a value file for one operation, as from [`TableCache::load_for`].
    #[inline]
    pub(crate) fn load_values(
        &self,
        file: &Arc<LiveValueFile>,
        cache_only: bool,
    ) -> Result<ReaderGuard<ValueTable>> {
        touch(&file.used);
        let guard = file.reader.load();
        if guard.is_some() {
            return Ok(ReaderGuard::Held(guard));
        }
        drop(guard);
        self.open_values(file, cache_only).map(ReaderGuard::Opened)
    }

    /// The reader of a value file, which the caller may keep.
    #[cfg(any(test, feature = "fault-points"))]
    pub(crate) fn get_values(&self, file: &Arc<LiveValueFile>) -> Result<Arc<ValueTable>> {
        touch(&file.used);
        match file.reader.load_full() {
            Some(reader) => Ok(reader),
            None => self.open_values(file, false),
        }
    }

    #[cold]
    fn open_values(&self, file: &Arc<LiveValueFile>, cache_only: bool) -> Result<Arc<ValueTable>> {
        let meta = file.meta();
        let path = self.dir.join(value_file_name(meta.file_no()));
        if cache_only {
            return Err(Error::busy(format!("{}: would need I/O to open it", path.display())));
        }
        let _opening = self.opening[meta.no as usize % SHARDS].lock();
        if let Some(reader) = file.reader.load_full() {
            return Ok(reader);
        }
        let handle = self.open_file(&path, FileClass::ValueSst, file.held())?;
        let reader = ValueTable::open(handle, &path, meta, &self.cache, &self.budget)?;
        file.reader.store(Some(Arc::clone(&reader)));
        self.note(Arc::downgrade(file) as _, meta.file_no());
        Ok(reader)
    }

    /// Opens the file, or returns `held` if it is kept open.
    fn open_file(
        &self,
        path: &Path,
        class: FileClass,
        held: Option<Arc<dyn RandomFile>>,
    ) -> Result<Arc<dyn RandomFile>> {
        if let Some(file) = held {
            return Ok(file);
        }
        let context = IoContext::new(class, IoPurpose::ForegroundRead);
        let options = OpenOptions { direct: self.direct };
        self.fs.open(path, context, options).map_err(|error| self.missing(path, error))
    }

    /// Notes that `file` was opened, and closes readers beyond the limit.
    fn note(&self, file: Weak<dyn ReadableFile>, no: FileNo) {
        let closed = {
            let mut open = self.open.lock();
            open.files.push(file);
            let extra = match self.budget.pressure() {
                Pressure::None => 0,
                Pressure::High | Pressure::Over => CLOSE_UNDER_PRESSURE,
            };
            open.close_beyond(self.readers_max, extra, no)
        };
        drop(closed);
    }

    /// Closes the reader of file `no`, if it has one.
    pub fn evict(&self, no: FileNo) {
        let mut closed = Vec::new();
        let mut open = self.open.lock();
        open.files.retain(|file| match file.upgrade() {
            Some(file) if file.no() == no => {
                closed.push((file.close(), file));
                false
            }
            Some(file) => {
                closed.push((None, file));
                true
            }
            None => false,
        });
        drop(open);
        drop(closed);
    }

    /// Number of files that hold a reader now.
    #[must_use]
    pub fn open_readers(&self) -> usize {
        let files: Vec<_> = self.open.lock().files.clone();
        files.iter().filter(|file| file.strong_count() > 0).count()
    }
}

#[inline]
fn touch(used: &AtomicBool) {
    if !used.load(Ordering::Relaxed) {
        used.store(true, Ordering::Relaxed);
    }
}

/// Readers and files that a pass of the hand released; the caller drops them outside the lock.
type Closed = Vec<(Option<Arc<dyn Send + Sync>>, Arc<dyn ReadableFile>)>;

impl OpenList {
    /// Moves the hand until at most `most` files are open and `extra` more were closed, at most
    /// twice around. `spared` has just been opened and stays open. A call moves the hand by the
    /// number of files that were used since it passed them, and a few steps more.
    fn close_beyond(&mut self, most: usize, extra: usize, spared: FileNo) -> Closed {
        let mut closed = Closed::new();
        let mut extra = extra;
        let around_twice = self.files.len() * 2;
        for step in 0..around_twice {
            let wanted = self.files.len() > most || extra > 0;
            if self.files.is_empty() || !wanted && step >= STEPS_MIN {
                break;
            }
            self.hand %= self.files.len();
            let Some(file) = self.files[self.hand].upgrade() else {
                self.files.swap_remove(self.hand);
                continue;
            };
            let reader = match wanted && file.no() != spared {
                true if !file.used().swap(false, Ordering::Relaxed) => file.close(),
                _ => None,
            };
            if reader.is_some() {
                if self.files.len() <= most {
                    extra -= 1;
                }
                self.files.swap_remove(self.hand);
            } else {
                self.hand += 1;
            }
            closed.push((reader, file));
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with a reader that it can lose once.
    struct TestFile {
        no: u64,
        used: AtomicBool,
        has_reader: AtomicBool,
    }

    impl ReadableFile for TestFile {
        fn no(&self) -> FileNo {
            FileNo(self.no)
        }

        fn used(&self) -> &AtomicBool {
            &self.used
        }

        fn close(&self) -> Option<Arc<dyn Send + Sync>> {
            let had_reader = self.has_reader.swap(false, Ordering::Relaxed);
            had_reader.then(|| Arc::new(()) as Arc<dyn Send + Sync>)
        }
    }

    /// Adds a file that was just opened.
    fn opened(list: &mut OpenList, no: u64) -> Arc<TestFile> {
        let (used, has_reader) = (AtomicBool::new(true), AtomicBool::new(true));
        let file = Arc::new(TestFile { no, used, has_reader });
        let weak = Arc::downgrade(&file);
        list.files.push(weak);
        file
    }

    /// Numbers of the files whose readers were closed.
    fn closed_numbers(closed: Closed) -> Vec<u64> {
        let closed = closed.into_iter().filter(|(reader, _)| reader.is_some());
        closed.map(|(_, file)| file.no().0).collect()
    }

    #[test]
    fn open_at_the_limit_closes_the_next_unused_reader_and_visits_few() {
        let mut list = OpenList::default();
        let old: Vec<_> = (0..1000).map(|no| opened(&mut list, no)).collect();
        old.iter().for_each(|file| file.used.store(false, Ordering::Relaxed));
        let mut new = Vec::new();
        for at in 0..1000 {
            let file = opened(&mut list, 1000 + at);
            let closed = list.close_beyond(1000, 0, file.no());
            new.push(file);
            assert!(closed.len() <= STEPS_MIN, "{} files were visited", closed.len());
            assert_eq!(closed_numbers(closed), [at]);
            assert_eq!(list.files.len(), 1000);
        }
        assert!(new.iter().all(|file| file.has_reader.load(Ordering::Relaxed)));
    }

    #[test]
    fn used_readers_get_a_second_chance() {
        let mut list = OpenList::default();
        let old: Vec<_> = (0..100).map(|no| opened(&mut list, no)).collect();
        let file = opened(&mut list, 100);
        // The hand passes all files once, and closes the first one that it meets again.
        let closed = list.close_beyond(100, 0, file.no());
        assert_eq!((closed.len(), closed_numbers(closed)), (102, vec![0]));
        old[1].used.store(true, Ordering::Relaxed);
        let last = opened(&mut list, 101);
        let closed = list.close_beyond(100, 0, last.no());
        assert!(closed.len() < 6, "{} files were visited", closed.len());
        assert_eq!(closed_numbers(closed), [2]);
    }

    #[test]
    fn readers_are_closed_under_pressure_and_dropped_files_leave() {
        let mut list = OpenList::default();
        let old: Vec<_> = (0..10).map(|no| opened(&mut list, no)).collect();
        old.iter().for_each(|file| file.used.store(false, Ordering::Relaxed));
        let file = opened(&mut list, 10);
        let closed = list.close_beyond(100, CLOSE_UNDER_PRESSURE, file.no());
        assert_eq!(closed_numbers(closed).len(), CLOSE_UNDER_PRESSURE);
        assert_eq!(list.files.len(), 9);
        drop(old);
        for _ in 0..9 {
            drop(list.close_beyond(100, 0, file.no()));
        }
        assert_eq!(list.files.len(), 1, "only the last file has a reader");
    }
}
