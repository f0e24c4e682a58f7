//! Separated values for readers: resolves references in one version and reads value files.
//!
//! A read makes a [`ValueReads`] from references that it holds anyway. An iterator owns a
//! [`ScanValues`], which keeps the super version.
//!
//! Invariants:
//! 1. The file number of a reference is resolved in the version in which the record was found. That
//!    version keeps the value file until the read ends, even if jobs install edits meanwhile.
//! 2. The offset of a reference is used only if the file that it names is itself live in that
//!    version. Otherwise the key blocks of the heir say where the value lies. The heir is the file
//!    into which garbage collection moved the value.
//! 3. Several values of one file are read by one batch, in the order of their offsets.
//! 4. The files of a batch are read at the same time if reads are slow ([`ValueReaders`]).
//!
//! Thread-safety: any thread may read.
//! Failure: errors of the value files. `Busy` if `cache_only` is set and a value is not cached.
//! `Corrupt` if the version does not know the named file.
//! Cost: one device read for a value that is not cached and whose offset is known. A value that
//! garbage collection has moved also costs a search in the key blocks of its file.

mod files;

use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};

use crate::db::state::family::SuperVersion;
use crate::iter::{ValueSource, WantedValue};
use crate::live_file::LiveValueFile;
use crate::pinned::PinnedSlice;
use crate::sabotage::{Defect, has};
use crate::sst::TableReadOptions;
use crate::stats::{Statistics, Ticker};
use crate::table_cache::{ReaderGuard, TableCache};
use crate::value::{ValueBatch, ValueKey, ValueTable};
use crate::value_ref::{Reference, ValueHandle};
use crate::version::Version;

pub(crate) use self::files::ValueReaders;
use self::files::{FileWants, SharedReads};

/// Reads separated values of one version.
#[derive(Clone, Copy)]
pub(crate) struct ValueReads<'a> {
    pub(crate) version: &'a Version,
    pub(crate) tables: &'a Arc<TableCache>,
    pub(crate) readers: &'a Arc<ValueReaders>,
    pub(crate) stats: &'a Arc<Statistics>,
    pub(crate) options: TableReadOptions,
}

impl ValueReads<'_> {
    /// The value of one record.
    pub(crate) fn fetch(&self, wanted: WantedValue<'_>) -> Result<PinnedSlice> {
        let file = self.resolve(wanted)?;
        let reads = FileReads { tables: self.tables, stats: self.stats, options: self.options };
        reads.fetch_one(file, wanted)
    }

    /// The values of several records, in the order of `wanted`: one batch of reads for each file.
    pub(crate) fn fetch_many(&self, wanted: &[WantedValue<'_>]) -> Result<Vec<PinnedSlice>> {
        let mut by_file = Vec::with_capacity(wanted.len());
        for (position, &one) in wanted.iter().enumerate() {
            by_file.push((self.resolve(one)?, position));
        }
        by_file.sort_by_key(|(file, _)| file.no);
        let files: Vec<FileWants<'_>> = by_file
            .chunk_by(|a, b| a.0.no == b.0.no)
            .map(|group| FileWants {
                file: group[0].0,
                wanted: group.iter().map(|&(_, position)| wanted[position]).collect(),
            })
            .collect();
        let shared = SharedReads { tables: self.tables, stats: self.stats, options: self.options };
        let found = self.readers.read(shared, &files)?;
        let mut values: Vec<Option<PinnedSlice>> = vec![None; wanted.len()];
        for (&(_, position), value) in by_file.iter().zip(found.into_iter().flatten()) {
            values[position] = Some(value);
        }
        Ok(values.into_iter().flatten().collect())
    }

    /// The file that holds the value of the record now.
    fn resolve(&self, wanted: WantedValue<'_>) -> Result<&Arc<LiveValueFile>> {
        let named = wanted.reference.file_no;
        self.version.values().resolve(named.0).ok_or_else(|| unresolved(wanted))
    }
}

/// Reads values of files that are known.
#[derive(Clone, Copy)]
struct FileReads<'a> {
    tables: &'a TableCache,
    stats: &'a Statistics,
    options: TableReadOptions,
}

impl FileReads<'_> {
    /// The value of one record, which lies in `file`.
    fn fetch_one(&self, file: &Arc<LiveValueFile>, wanted: WantedValue<'_>) -> Result<PinnedSlice> {
        let table = self.open(file)?;
        let at = self.handle(file, &table, wanted)?;
        if let Some(value) = table.cached(at)? {
            self.stats.add(Ticker::ValuesCached, 1);
            return Ok(value);
        }
        let value = table.read_uncached(at, &self.options)?;
        self.stats.add(Ticker::ValuesRead, 1);
        Ok(value)
    }

    /// The values of several records, which lie in `file`, by one batch of reads.
    fn fetch(&self, file: &Arc<LiveValueFile>, wanted: &[WantedValue<'_>]) -> Result<ValueBatch> {
        let table = self.open(file)?;
        let handles = wanted.iter().map(|&one| self.handle(file, &table, one));
        let handles: Vec<ValueHandle> = handles.collect::<Result<_>>()?;
        let batch = table.read_many(&handles, &self.options)?;
        self.stats.add(Ticker::ValuesRead, batch.read as u64);
        self.stats.add(Ticker::ValuesCached, (handles.len() - batch.read) as u64);
        Ok(batch)
    }

    fn open(&self, file: &Arc<LiveValueFile>) -> Result<ReaderGuard<ValueTable>> {
        self.tables.load_values(file, self.options.cache_only)
    }

    /// Where the value lies in `table`. That is the opened `file`, to which the value's reference
    /// resolves.
    fn handle(
        &self,
        file: &LiveValueFile,
        table: &ValueTable,
        wanted: WantedValue<'_>,
    ) -> Result<ValueHandle> {
        let reference = &wanted.reference;
        if reference.file_no != file.file_no() || reference.offset.is_none() {
            self.stats.add(Ticker::ValueHintMisses, 1);
        }
        let key = ValueKey { user_key: wanted.key, seq: wanted.seq };
        if has(Defect::StaleHints) {
            let stale = Reference { file_no: file.file_no(), ..*reference };
            return table.handle_of(&stale, key, &self.options);
        }
        table.handle_of(reference, key, &self.options)
    }
}

#[cold]
fn unresolved(wanted: WantedValue<'_>) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "the record of key \"{}\" at sequence number {} references value file {}, which the \
             version does not know",
            wanted.key.escape_ascii(),
            wanted.seq,
            wanted.reference.file_no
        ),
    )
}

/// The separated values of the super version that an iterator holds.
pub(crate) struct ScanValues {
    pub(crate) picture: Arc<SuperVersion>,
    pub(crate) tables: Arc<TableCache>,
    pub(crate) readers: Arc<ValueReaders>,
    pub(crate) stats: Arc<Statistics>,
    pub(crate) options: TableReadOptions,
}

impl ScanValues {
    fn reads(&self) -> ValueReads<'_> {
        ValueReads {
            version: &self.picture.readable,
            tables: &self.tables,
            readers: &self.readers,
            stats: &self.stats,
            options: self.options,
        }
    }
}

impl ValueSource for ScanValues {
    fn fetch(&self, wanted: WantedValue<'_>) -> Result<PinnedSlice> {
        self.reads().fetch(wanted)
    }

    fn fetch_many(&self, wanted: &[WantedValue<'_>]) -> Result<Vec<PinnedSlice>> {
        self.reads().fetch_many(wanted)
    }
}

#[cfg(test)]
mod tests;
