//! Checks that the values of one version exist: for verification and repair.
//!
//! The owner walks over the tables of a version. Each reference is resolved as a reader resolves
//! it, but without trust in the hint: the value file must hold the record (key, sequence number)
//! with the lengths of the reference.
//!
//! Invariants:
//! 1. The check changes nothing.
//! 2. A value file that is damaged or missing is one error, for any number of references to it.
//!
//! Thread-safety: a check belongs to one thread.
//! Failure: every check returns its findings, and the next one goes on.
//! Cost: value files are read twice in full. References cost about one read of the key blocks of
//! their value files for each table, because tables and value files have the same order. At most
//! [`OPEN_FILES_MAX`] value files are open, and their key blocks share a cache of [`CACHE_BYTES`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, RandomFile};

use crate::file_meta::FileMeta;
use crate::iter::InternalIterator;
use crate::key::{KeyRef, Kind};
use crate::live_file::LiveValueFile;
use crate::sst::{BlockCache, TableReadOptions, TableReader};
use crate::value::{ValueKey, ValueTable};
use crate::value_ref::{Reference, ValueFileMeta};
use crate::version::{ReferenceSum, Version};

/// Bytes of key blocks that a check keeps in memory.
const CACHE_BYTES: u64 = 8 << 20;
/// Number of value files that a check keeps open.
const OPEN_FILES_MAX: usize = 64;
/// Number of bytes that a walk over a table reads at a time.
const STEP_BYTES: u64 = 256 << 10;

/// An open value file and its path.
pub(crate) struct OpenedFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn RandomFile>,
}

/// Opens a value file. `None` if the writer of a read-only database has removed it.
pub(crate) type OpenValues<'a> = dyn Fn(&LiveValueFile) -> Result<Option<OpenedFile>> + 'a;

/// Open value files, whose key blocks share a cache of their own.
pub(crate) struct ValueTables {
    cache: Arc<BlockCache>,
    budget: Arc<ByteBudget>,
    open: BTreeMap<u64, Arc<ValueTable>>,
}

impl ValueTables {
    pub(crate) fn new(budget: &Arc<ByteBudget>) -> Self {
        let cache = BlockCache::new(CACHE_BYTES, budget);
        Self { cache, budget: Arc::clone(budget), open: BTreeMap::new() }
    }

    /// The open value file of `meta`. `open` opens it if it is not open.
    pub(crate) fn get(
        &mut self,
        meta: &ValueFileMeta,
        open: impl FnOnce() -> Result<Option<OpenedFile>>,
    ) -> Result<Option<Arc<ValueTable>>> {
        if let Some(table) = self.open.get(&meta.no) {
            return Ok(Some(Arc::clone(table)));
        }
        let Some(OpenedFile { path, file }) = open()? else { return Ok(None) };
        let table = ValueTable::open(file, &path, meta, &self.cache, &self.budget)?;
        if self.open.len() >= OPEN_FILES_MAX {
            self.open.clear();
        }
        self.open.insert(meta.no, Arc::clone(&table));
        Ok(Some(table))
    }
}

/// Options for reading keys: the private cache keeps the blocks.
pub(crate) fn key_options() -> TableReadOptions {
    let context = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
    TableReadOptions { context, ..TableReadOptions::foreground() }
}

/// Visits every record of `table` that refers to a separated value.
pub(crate) fn visit_references(
    table: &Arc<TableReader>,
    context: IoContext,
    visit: &mut dyn FnMut(ValueKey<'_>, &Reference) -> Result<()>,
) -> Result<()> {
    let mut records = table.iter(TableReadOptions::job(context, STEP_BYTES));
    records.seek_to_first();
    while records.valid() {
        let record = KeyRef::decode(records.key());
        if let Some(record) = record.filter(|record| record.kind == Kind::Indirect) {
            let key = ValueKey { user_key: record.user_key, seq: record.seq };
            let reference = Reference::decode(records.value()).map_err(|bad| {
                let key = record.user_key.escape_ascii();
                Error::corrupt(table.path(), 0, format!("the record of key \"{key}\": {bad}"))
            })?;
            visit(key, &reference)?;
        }
        records.next();
    }
    records.status()
}

/// A check of the values of one version.
pub(crate) struct ValueCheck<'a> {
    version: &'a Version,
    open: &'a OpenValues<'a>,
    tables: ValueTables,
    /// Numbers of value files that are known to be damaged, or that were removed.
    unreadable: BTreeSet<u64>,
}

/// References of one table that do not resolve, by value file.
struct BrokenReferences {
    first: Error,
    records: u64,
}

impl<'a> ValueCheck<'a> {
    pub(crate) fn new(
        version: &'a Version,
        open: &'a OpenValues<'a>,
        budget: &Arc<ByteBudget>,
    ) -> Self {
        Self { version, open, tables: ValueTables::new(budget), unreadable: BTreeSet::new() }
    }

    /// Reads one value file in full. `false` if the writer of a read-only database has removed it.
    /// An error says how many records refer to the file.
    pub(crate) fn file(&mut self, file: &LiveValueFile, refs: ReferenceSum) -> Result<bool> {
        let context = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
        let table = self.tables.get(file, || (self.open)(file));
        let checked = table.and_then(|table| match table {
            Some(table) => table.verify(context).map(|()| true),
            None => Ok(false),
        });
        if !matches!(checked, Ok(true)) {
            self.unreadable.insert(file.no);
        }
        checked.map_err(|error| {
            let what = format!(
                "{} records of {} tables refer to this value file",
                refs.records, refs.tables
            );
            Error::with_source(error.kind(), format!("{error}; {what}"), error)
        })
    }

    /// Resolves every reference of `table`, which is undamaged and has the metadata `meta`. Returns
    /// one error for each value file with references that do not resolve. Files that
    /// [`ValueCheck::file`] has reported are left out.
    pub(crate) fn table(
        &mut self,
        table: &Arc<TableReader>,
        meta: &FileMeta,
        context: IoContext,
    ) -> Vec<Error> {
        if table.properties().refs != meta.refs {
            let what = format!(
                "the manifest has the references {:?}, but the table has {:?}",
                meta.refs.by_file(),
                table.properties().refs.by_file()
            );
            return vec![Error::corrupt(table.path(), 0, what)];
        }
        if meta.refs.is_empty() {
            return Vec::new();
        }
        let mut broken: BTreeMap<u64, BrokenReferences> = BTreeMap::new();
        let walked = visit_references(table, context, &mut |key, reference| {
            if let Err(first) = self.reference(key, reference) {
                let at = broken
                    .entry(reference.file_no.0)
                    .or_insert(BrokenReferences { first, records: 0 });
                at.records += 1;
            }
            Ok(())
        });
        let name = table.path().display();
        let broken = broken.into_iter().map(|(no, BrokenReferences { first, records })| {
            let what = format!(
                "{name}: {records} records refer to values of file {no} that do not exist; the \
                 first: {first}"
            );
            Error::new(ErrorKind::Corrupt, what)
        });
        broken.chain(walked.err()).collect()
    }

    fn reference(&mut self, key: ValueKey<'_>, reference: &Reference) -> Result<()> {
        let Some(file) = self.version.values().resolve(reference.file_no.0) else {
            let what = format!(
                "the record of key \"{}\" @{} refers to value file {}, which does not exist",
                key.user_key.escape_ascii(),
                key.seq,
                reference.file_no
            );
            return Err(Error::new(ErrorKind::Corrupt, what));
        };
        if self.unreadable.contains(&file.no) {
            return Ok(());
        }
        match self.tables.get(file, || (self.open)(file))? {
            Some(table) => table.checked_handle(reference, key, &key_options()).map(drop),
            None => Ok(()),
        }
    }
}
