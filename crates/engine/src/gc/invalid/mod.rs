//! The Invalid Tree: the records of value files to which compactions dropped references (Terark-DS
//! §4.4.2). A garbage collection that runs without a database determines validity with it. Format:
//! `docs/formats/invalid-file.md`.
//!
//! A compaction writes an entry for each reference that it dropped ([`InvalidWriter`]). The edit
//! that installs its outputs adds the file and gives its entries an *install number*, a counter of
//! the family. The owner merges files ([`merge_invalid`]). A job treats the records without an
//! entry that counts as valid ([`valid_by_entries`]).
//!
//! Invariants:
//! 1. An entry is true only once an edit has added its file to a version. Jobs get the invalid
//!    files of one version, and no other.
//! 2. An entry carries the number of the file that held the record when the compaction was planned,
//!    not the older number that the reference may name. So it holds no ancestor's number longer
//!    than needed.
//! 3. An entry under a file's own number always counts. An entry under the number of an ancestor
//!    counts only if its install number is above the file's basis. For an entry below the basis,
//!    the garbage collection that wrote the file knew of it and left the record out. A record with
//!    that key and sequence number then came from another ancestor and is alive.
//!
//! The tree may lack entries: of compactions before it was switched on, and of tables that were
//! dropped whole. It never has an entry for a record that is referenced. So a job whose number of
//! valid records equals that of the tables' references has found exactly these. A job that counts
//! more is made again with a look-up.
//!
//! Thread-safety: plain values, used by one thread each. Failure: `Corrupt` names the file.
//! Cost: a compaction holds up to [`BUFFER_BYTES`] of entries and sorts them. A job reads the files
//! that name an input or an ancestor, once.

mod merge;
mod validity;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::codec::{Reader, put_varint};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions, RandomFile};

pub(crate) use merge::{files_to_merge, merge_invalid};
pub(crate) use validity::{InvalidInput, valid_by_entries};
pub(crate) use writer::{InvalidWriter, file_numbers_wanted};

use crate::file_meta::invalid_file_name;
use crate::iter::InternalIterator;
use crate::job::{JobContext, MeteredRead};
use crate::key::{self, KeyRef, Kind};
use crate::sst::{BlockCache, FileIdentity, TableReadOptions, TableReader};
use crate::value_ref::InvalidFileMeta;

/// Bytes of entries that a compaction buffers before it writes them to a file.
const BUFFER_BYTES: usize = 4 << 20;
/// Bytes of an invalid file that are read at a time.
const READ_BYTES: u64 = 1 << 20;
/// Length of the value file's number at the start of an entry's key.
const NUMBER_BYTES: usize = 8;

/// A record to which a compaction dropped the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidEntry<'a> {
    /// Number of the value file that held the record.
    pub(crate) no: u64,
    /// User key of the record.
    pub(crate) user_key: &'a [u8],
    /// Sequence number of the record.
    pub(crate) seq: u64,
    /// Install number of the edit that dropped the reference.
    pub(crate) install_no: u64,
}

/// Appends the key of an entry: the number, the user key, and a trailer of the kind `Put`. With the
/// kind `Indirect`, a table would take the value for a reference.
fn put_key(out: &mut Vec<u8>, no: u64, internal_key: &[u8]) {
    out.extend_from_slice(&no.to_be_bytes());
    let seq = key::trailer_seq(key::trailer(internal_key));
    key::encode_into(out, key::user_key(internal_key), seq, Kind::Put);
}

/// Appends the value of an entry of a merged file.
fn put_install_no(out: &mut Vec<u8>, install_no: u64) {
    put_varint(out, install_no);
}

fn decode<'a>(meta: &InvalidFileMeta, key: &'a [u8], value: &[u8]) -> Option<InvalidEntry<'a>> {
    let record = KeyRef::decode(key).filter(|record| record.kind == Kind::Put)?;
    let (no, user_key) = record.user_key.split_first_chunk::<NUMBER_BYTES>()?;
    let no = u64::from_be_bytes(*no);
    let install_no = match value {
        [] => meta.install_no,
        _ => {
            let mut reader = Reader::new(value);
            reader.varint().filter(|_| reader.is_empty())?
        }
    };
    let is_known = meta.names.binary_search(&no).is_ok() && install_no <= meta.install_no;
    is_known.then_some(InvalidEntry { no, user_key, seq: record.seq.0, install_no })
}

/// A walk over the entries of an invalid file, by value file, user key and falling sequence number.
struct InvalidCursor {
    meta: InvalidFileMeta,
    path: PathBuf,
    entries: Box<dyn InternalIterator>,
    passed: u64,
}

impl InvalidCursor {
    /// Opens the file of `meta` and moves to its first entry.
    fn open(meta: &InvalidFileMeta, from: &InvalidSource<'_>) -> Result<Self> {
        let context = from.context;
        let path = from.dir.join(invalid_file_name(meta.file_no()));
        let options = OpenOptions { direct: from.direct_reads };
        let file = context.fs.open(&path, from.io(), options)?;
        let (cancel, progress) = (context.cancel.clone(), Arc::clone(&context.progress));
        let file = Arc::new(MeteredRead::new(file, IoPurpose::Gc, cancel, progress));
        let (cache, budget) = (&context.cache, &context.budget);
        let table = TableReader::open_identified(file, &path, identity(meta), cache, budget)?;
        Ok(Self::over(&table, path, meta, from.io()))
    }

    /// A walk over the entries of an open file, at its first entry.
    fn over(
        table: &Arc<TableReader>,
        path: PathBuf,
        meta: &InvalidFileMeta,
        io: IoContext,
    ) -> Self {
        let mut entries = Box::new(table.iter(TableReadOptions::job(io, READ_BYTES)));
        entries.seek_to_first();
        Self { meta: meta.clone(), path, entries, passed: 0 }
    }

    /// The entry at the cursor; `None` at the end. `Corrupt` if the number of entries differs from
    /// the manifest's, or if an entry is impossible.
    fn current(&self) -> Result<Option<InvalidEntry<'_>>> {
        if self.entries.valid() {
            let entry = decode(&self.meta, self.entries.key(), self.entries.value());
            return match entry {
                Some(entry) => Ok(Some(entry)),
                None => Err(self.corrupt("an entry cannot be")),
            };
        }
        self.entries.status()?;
        if self.passed != self.meta.records {
            return Err(self.corrupt("it has another number of entries than the manifest says"));
        }
        Ok(None)
    }

    /// Encoded key of the entry at the cursor.
    fn key(&self) -> &[u8] {
        self.entries.key()
    }

    fn is_at_end(&self) -> bool {
        !self.entries.valid()
    }

    fn advance(&mut self) {
        self.passed += 1;
        self.entries.next();
    }

    fn corrupt(&self, what: &str) -> Error {
        Error::new(
            ErrorKind::Corrupt,
            format!("{} at entry {}: {what}", self.path.display(), self.passed),
        )
    }
}

fn identity(meta: &InvalidFileMeta) -> FileIdentity {
    FileIdentity { size_bytes: meta.size_bytes, unique_id: meta.unique_id, checksum: meta.checksum }
}

/// Reads a whole invalid file. Checks its checksums, every entry and their number. Costs three
/// reads of the file.
///
/// Errors: `Corrupt` names the file.
pub(crate) fn verify_invalid_file(
    file: Arc<dyn RandomFile>,
    path: &Path,
    meta: &InvalidFileMeta,
) -> Result<()> {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(0, &budget);
    let io = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
    let table = TableReader::open_identified(file, path, identity(meta), &cache, &budget)?;
    table.verify(io)?;
    let mut cursor = InvalidCursor::over(&table, path.to_owned(), meta, io);
    while cursor.current()?.is_some() {
        cursor.advance();
    }
    Ok(())
}

/// Directory of invalid files, and how they are read.
#[derive(Clone, Copy)]
pub(crate) struct InvalidSource<'a> {
    /// The column family.
    pub(crate) cf: u32,
    /// Directory of the files.
    pub(crate) dir: &'a Path,
    /// Bypass the page cache when reading.
    pub(crate) direct_reads: bool,
    /// Services of the job.
    pub(crate) context: &'a JobContext<'a>,
}

impl InvalidSource<'_> {
    fn io(&self) -> IoContext {
        IoContext::new(FileClass::Sst, IoPurpose::Gc).of_family(self.cf)
    }
}

#[cfg(test)]
mod tests;
