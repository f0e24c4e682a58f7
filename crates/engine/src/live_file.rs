//! Files that versions hold, and their removal when no version holds them any more.
//!
//! Versions, iterators and jobs share `Arc<LiveFile>`, and the same holds for value files
//! ([`LiveValueFile`]) and invalid files ([`LiveInvalidFile`]). A file that a manifest edit removed
//! is marked ([`LiveFile::mark_obsolete`]). When its last holder drops it, its number lands in the
//! [`Trash`] with its open reader. From there the database removes the file, and its blocks from
//! the cache. The `Arc` counts the references; no code counts them separately.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use archipelago_base::FileNo;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_env::RandomFile;
use parking_lot::Mutex;

use crate::file_meta::FileMeta;
use crate::sst::TableReader;
use crate::value::ValueTable;
use crate::value_ref::{InvalidFileMeta, ValueFileMeta};

/// A file that nothing needs any more.
#[derive(Debug)]
pub enum Trashed {
    /// A table, and its reader if it was open.
    Table(FileNo, Option<Arc<TableReader>>),
    /// A value file, and its reader if it was open.
    Value(FileNo, Option<Arc<ValueTable>>),
    /// An invalid file.
    Invalid(FileNo),
}

impl Trashed {
    /// Number of the file.
    #[must_use]
    pub fn no(&self) -> FileNo {
        match self {
            Self::Table(no, _) | Self::Value(no, _) | Self::Invalid(no) => *no,
        }
    }
}

/// A file that the newest version does not name and that an older version still holds, for example
/// for an iterator, a snapshot or a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedFile {
    /// Number of the file.
    pub no: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Time for which only older versions have held it, in nanoseconds.
    pub age_ns: u64,
}

/// Length of a file, and the time since which only older versions hold it.
#[derive(Clone, Copy, Debug)]
struct Pinning {
    bytes: u64,
    since_ns: u64,
}

/// Files that wait to be deleted, and obsolete files that still have a holder.
#[derive(Debug)]
pub struct Trash {
    files: Mutex<Vec<Trashed>>,
    /// The files that are obsolete and still have a holder, by number.
    pinned: Mutex<BTreeMap<u64, Pinning>>,
    /// Tables that readers use before an edit names them, by number.
    unnamed: Mutex<BTreeMap<u64, Weak<LiveFile>>>,
    /// Value files that readers use before an edit names them, by number.
    unnamed_values: Mutex<BTreeMap<u64, Weak<LiveValueFile>>>,
    clock: Arc<dyn Clock>,
}

impl Default for Trash {
    fn default() -> Self {
        Self::new(SystemClock::shared())
    }
}

impl Trash {
    /// Creates an empty trash, which takes the ages of pinned files from `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            files: Mutex::default(),
            pinned: Mutex::default(),
            unnamed: Mutex::default(),
            unnamed_values: Mutex::default(),
            clock,
        }
    }

    /// A table for readers, before an edit names it. The version of that edit gets the same value
    /// from [`LiveFile::named`]. So the table is removed only when neither a version nor an earlier
    /// reader holds it.
    #[must_use]
    pub fn unnamed_table(self: &Arc<Self>, meta: FileMeta) -> Arc<LiveFile> {
        let no = meta.no;
        let file = LiveFile::new(meta, Arc::clone(self));
        let mut unnamed = self.unnamed.lock();
        unnamed.retain(|_, known| known.strong_count() > 0);
        unnamed.insert(no, Arc::downgrade(&file));
        file
    }

    /// A value file for readers, before an edit names it. The version of that edit gets the same
    /// value from [`LiveValueFile::named`].
    #[must_use]
    pub fn unnamed_value_file(self: &Arc<Self>, meta: ValueFileMeta) -> Arc<LiveValueFile> {
        let no = meta.no;
        let file = LiveValueFile::new(meta, Arc::clone(self));
        let mut unnamed = self.unnamed_values.lock();
        unnamed.retain(|_, known| known.strong_count() > 0);
        unnamed.insert(no, Arc::downgrade(&file));
        file
    }

    /// Adds a file.
    pub fn push(&self, file: Trashed) {
        self.files.lock().push(file);
    }

    /// Takes all files out.
    #[must_use]
    pub fn take(&self) -> Vec<Trashed> {
        std::mem::take(&mut self.files.lock())
    }

    /// The files that only older versions hold, ascending by number.
    #[must_use]
    pub fn pinned(&self) -> Vec<PinnedFile> {
        let now_ns = self.clock.now_ns();
        let of = |(&no, at): (&u64, &Pinning)| PinnedFile {
            no,
            bytes: at.bytes,
            age_ns: now_ns.saturating_sub(at.since_ns),
        };
        self.pinned.lock().iter().map(of).collect()
    }

    /// Bytes of the files that only older versions hold.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.lock().values().map(|at| at.bytes).sum()
    }

    /// Notes that only older versions hold the file `no` of `bytes` from now on.
    fn pin(&self, no: u64, bytes: u64) {
        let since_ns = self.clock.now_ns();
        self.pinned.lock().insert(no, Pinning { bytes, since_ns });
    }

    /// Notes that nothing holds the pinned file `no` any more.
    fn unpin(&self, no: u64) {
        self.pinned.lock().remove(&no);
    }

    /// Whether nothing waits to be removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.lock().is_empty()
    }
}

/// The removal of one file: whether it is obsolete, and the trash that it goes to then.
struct Departure {
    obsolete: AtomicBool,
    trash: Arc<Trash>,
    no: u64,
    /// Length of the file.
    bytes: u64,
}

impl Departure {
    fn new(trash: Arc<Trash>, no: u64, bytes: u64) -> Self {
        Self { obsolete: AtomicBool::new(false), trash, no, bytes }
    }

    fn mark_obsolete(&self) {
        if !self.obsolete.swap(true, Ordering::AcqRel) {
            self.trash.pin(self.no, self.bytes);
        }
    }

    /// Called when the last holder drops the file: the file goes to the trash if it is obsolete.
    fn end(&mut self, trashed: impl FnOnce() -> Trashed) {
        if *self.obsolete.get_mut() {
            self.trash.unpin(self.no);
            self.trash.push(trashed());
        }
    }
}

/// Methods that a file of any kind offers to its holders.
macro_rules! live {
    ($file:ident, $meta:ty) => {
        impl $file {
            /// The manifest's record of the file.
            #[must_use]
            pub fn meta(&self) -> &$meta {
                &self.meta
            }

            /// Marks the file as one that no later version holds. It goes to the trash with its
            /// last holder.
            pub fn mark_obsolete(&self) {
                self.departure.mark_obsolete();
            }
        }

        impl Deref for $file {
            type Target = $meta;

            fn deref(&self) -> &$meta {
                &self.meta
            }
        }

        impl std::fmt::Debug for $file {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($file), self.meta.no)
            }
        }
    };
}

/// Methods that a file with an open reader offers in addition.
macro_rules! holdable {
    ($file:ident) => {
        impl $file {
            /// Keeps the open file for as long as this value lives.
            pub(crate) fn hold(&self, file: Arc<dyn RandomFile>) {
                let _first_stays = self.held.set(file);
            }

            /// The open file, if it is kept.
            pub(crate) fn held(&self) -> Option<Arc<dyn RandomFile>> {
                self.held.get().cloned()
            }
        }
    };
}

/// A table that a version names. Its file is deleted when the last holder drops it, if the file is
/// obsolete by then.
pub struct LiveFile {
    meta: FileMeta,
    /// Length of the table and of the values that it references.
    compensated_bytes: u64,
    /// The open table, kept here so that a read finds it without a look-up.
    /// `crate::table_cache::TableCache` manages it.
    pub(crate) reader: ArcSwapOption<TableReader>,
    /// Set by readers, cleared by the table cache's clock hand.
    pub(crate) used: AtomicBool,
    /// The open file, which a read-only database keeps, because the writing process may remove the
    /// file.
    held: OnceLock<Arc<dyn RandomFile>>,
    departure: Departure,
}

live!(LiveFile, FileMeta);
holdable!(LiveFile);

impl LiveFile {
    /// A file that a version holds now.
    #[must_use]
    pub fn new(meta: FileMeta, trash: Arc<Trash>) -> Arc<Self> {
        Arc::new(Self {
            departure: Departure::new(trash, meta.no, meta.size_bytes),
            compensated_bytes: meta.size_bytes.saturating_add(meta.refs.bytes()),
            meta,
            reader: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            held: OnceLock::new(),
        })
    }

    /// The file that an edit names: the value that readers already use, or a new one.
    #[must_use]
    pub fn named(meta: FileMeta, trash: &Arc<Trash>) -> Arc<Self> {
        let known = trash.unnamed.lock().get(&meta.no).and_then(Weak::upgrade);
        match known {
            Some(known) if *known.meta() == meta => known,
            _ => Self::new(meta, Arc::clone(trash)),
        }
    }

    /// Length in bytes of the table and of the separated values that it references. The sizes of
    /// levels are sums of these lengths, because a table of references shadows far more bytes than
    /// it has.
    #[must_use]
    pub fn compensated_bytes(&self) -> u64 {
        self.compensated_bytes
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        let (no, reader) = (self.meta.file_no(), &self.reader);
        self.departure.end(|| Trashed::Table(no, reader.swap(None)));
    }
}

/// A value file that a version names. Its file is deleted when the last holder drops it, if the
/// file is obsolete by then.
pub struct LiveValueFile {
    meta: ValueFileMeta,
    /// The open value file, which `crate::table_cache::TableCache` manages.
    pub(crate) reader: ArcSwapOption<ValueTable>,
    /// Set by readers, cleared by the table cache's clock hand.
    pub(crate) used: AtomicBool,
    /// The open file, which a read-only database keeps, because the writing process may remove the
    /// file.
    held: OnceLock<Arc<dyn RandomFile>>,
    departure: Departure,
}

live!(LiveValueFile, ValueFileMeta);
holdable!(LiveValueFile);

impl LiveValueFile {
    /// A file that a version holds now.
    #[must_use]
    pub fn new(meta: ValueFileMeta, trash: Arc<Trash>) -> Arc<Self> {
        Arc::new(Self {
            departure: Departure::new(trash, meta.no, meta.size_bytes),
            meta,
            reader: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            held: OnceLock::new(),
        })
    }

    /// The value file that an edit names: the value that readers already use, or a new one.
    #[must_use]
    pub fn named(meta: ValueFileMeta, trash: &Arc<Trash>) -> Arc<Self> {
        let known = trash.unnamed_values.lock().get(&meta.no).and_then(Weak::upgrade);
        match known {
            Some(known) if *known.meta() == meta => known,
            _ => Self::new(meta, Arc::clone(trash)),
        }
    }
}

impl Drop for LiveValueFile {
    fn drop(&mut self) {
        let (no, reader) = (self.meta.file_no(), &self.reader);
        self.departure.end(|| Trashed::Value(no, reader.swap(None)));
    }
}

/// An invalid file that a version names. It is deleted when the last holder drops it, if the file
/// is obsolete by then.
pub struct LiveInvalidFile {
    meta: InvalidFileMeta,
    departure: Departure,
}

live!(LiveInvalidFile, InvalidFileMeta);

impl LiveInvalidFile {
    /// A file that a version holds now.
    #[must_use]
    pub fn new(meta: InvalidFileMeta, trash: Arc<Trash>) -> Arc<Self> {
        Arc::new(Self { departure: Departure::new(trash, meta.no, meta.size_bytes), meta })
    }
}

impl Drop for LiveInvalidFile {
    fn drop(&mut self) {
        let no = self.meta.file_no();
        self.departure.end(|| Trashed::Invalid(no));
    }
}
