//! An SST that some version holds, and what happens when none does any more.
//!
//! Versions, iterators and jobs share `Arc<LiveFile>`. A file that a manifest edit removed is
//! marked ([`LiveFile::mark_obsolete`]); when the last holder lets go, its number lands in the
//! [`Trash`] with its open reader, from where the database removes it, and its blocks from the
//! cache. Nobody counts references by hand.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use archipelago_base::FileNo;
use archipelago_env::RandomFile;
use parking_lot::Mutex;

use crate::file_meta::FileMeta;
use crate::sst::TableReader;

/// A file that nobody needs any more, and its reader if it was open.
pub type Trashed = (FileNo, Option<Arc<TableReader>>);

/// Files that nobody needs any more.
#[derive(Debug, Default)]
pub struct Trash {
    files: Mutex<Vec<Trashed>>,
}

impl Trash {
    /// Adds a file.
    pub fn push(&self, file: Trashed) {
        self.files.lock().push(file);
    }

    /// Takes all files out.
    #[must_use]
    pub fn take(&self) -> Vec<Trashed> {
        std::mem::take(&mut self.files.lock())
    }

    /// Whether nothing waits to be removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.lock().is_empty()
    }
}

/// A table that a version names. Its file is deleted when the last owner drops it.
pub struct LiveFile {
    meta: FileMeta,
    /// The open table, kept here so that a read finds it without a look-up; managed by
    /// `crate::table_cache::TableCache`.
    pub(crate) reader: ArcSwapOption<TableReader>,
    /// Set by readers, cleared by the table cache's clock hand.
    pub(crate) used: AtomicBool,
    /// The open file, which a read-only database keeps: its writer may remove the file.
    held: OnceLock<Arc<dyn RandomFile>>,
    obsolete: AtomicBool,
    trash: Arc<Trash>,
}

impl LiveFile {
    /// A file that a version holds now.
    #[must_use]
    pub fn new(meta: FileMeta, trash: Arc<Trash>) -> Arc<Self> {
        Arc::new(Self {
            meta,
            reader: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            held: OnceLock::new(),
            obsolete: AtomicBool::new(false),
            trash,
        })
    }

    /// What the manifest knows of it.
    #[must_use]
    pub fn meta(&self) -> &FileMeta {
        &self.meta
    }

    /// Keeps the open file for as long as this value lives.
    pub(crate) fn hold(&self, file: Arc<dyn RandomFile>) {
        let _first_stays = self.held.set(file);
    }

    /// The open file, if it is kept.
    pub(crate) fn held(&self) -> Option<Arc<dyn RandomFile>> {
        self.held.get().cloned()
    }

    /// No later version holds the file: it goes to the trash with its last holder.
    pub fn mark_obsolete(&self) {
        self.obsolete.store(true, Ordering::Release);
    }
}

impl Deref for LiveFile {
    type Target = FileMeta;

    fn deref(&self) -> &FileMeta {
        &self.meta
    }
}

impl std::fmt::Debug for LiveFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LiveFile({})", self.meta.no)
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        if *self.obsolete.get_mut() {
            self.trash.push((self.meta.file_no(), self.reader.swap(None)));
        }
    }
}
