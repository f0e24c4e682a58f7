//! Separation of values: selects the records of a job whose values go to a value file.
//!
//! The job's [`OutputWriter`](super::output::OutputWriter) owns the value. Paper: Terark-DS §2.2.
//! Invariants:
//!
//! 1. A `Put` or `PutExpiring` whose user value has at least `separation_bytes` bytes becomes an
//!    `Indirect` record. Its reference names a file of this job, with the offset and the expiry.
//!    All other records stay as they are.
//! 2. A value file is closed when it has `value_file_bytes`, between two records. It has at least
//!    one record. It grows beyond that size if the job has no number for another file.
//! 3. A table that references a value file is synced after that file: the sync of a table that ends
//!    while the file is open waits until the file is closed. A closed value file is synced.
//!
//! Failure: errors of the file system. The owner removes the files.
//! Cost: one comparison per record of a family with separation. A separated value costs that of
//! [`ValueTableBuilder`]. One sync for each file. A table whose sync waits keeps its file open, at
//! most [`WAITING_TABLES_MAX`] tables at a time unless file numbers are scarce.

use std::fmt;
use std::sync::Arc;

use archipelago_base::{CfId, FileNo, Result};
use archipelago_env::{FileClass, IoContext, WritableFile};
use parking_lot::Mutex;

use super::created::CreatedFiles;
use super::spec::OutputSpec;
use super::{JobContext, MeteredWrite};
use crate::file_meta::{FileMeta, value_file_name};
use crate::key::{self, KeyRef, Kind};
use crate::value::ValueTableBuilder;
use crate::value_ref::ValueFileMeta;

/// Length of the expiry before the value of a [`Kind::PutExpiring`].
const EXPIRY_BYTES: usize = 8;

/// Largest number of tables whose sync waits for the open value file. With more, the value file is
/// closed early, so that the number of open files is bounded. More tables wait only if the job has
/// no file number for another value file.
const WAITING_TABLES_MAX: usize = 64;

/// A value file that is being written.
struct OpenValueFile {
    no: FileNo,
    builder: ValueTableBuilder,
}

/// Writes the separated values of one job.
pub(super) struct Separator<'a> {
    spec: &'a OutputSpec,
    cf: CfId,
    io: IoContext,
    context: &'a JobContext<'a>,
    open: Option<OpenValueFile>,
    /// Finished tables that reference the open value file.
    waiting: Vec<LateSync>,
    files: Vec<ValueFileMeta>,
    /// Internal key of the record that replaces the last one.
    key: Vec<u8>,
    reference: Vec<u8>,
}

impl<'a> Separator<'a> {
    /// A separator for the job of `spec`; `None` if the spec separates no values. `io` is the
    /// context of the job's tables.
    pub(super) fn new(
        spec: &'a OutputSpec,
        cf: CfId,
        io: IoContext,
        context: &'a JobContext<'a>,
    ) -> Option<Self> {
        (spec.values.separation_bytes > 0).then(|| Self {
            spec,
            cf,
            io: IoContext { class: FileClass::ValueSst, level: None, ..io },
            context,
            open: None,
            waiting: Vec::new(),
            files: Vec::new(),
            key: Vec::new(),
            reference: Vec::new(),
        })
    }

    /// Writes the value of a record to a value file if it is to be separated. Returns the record
    /// that the table gets instead, or `None` if the table gets the record itself.
    #[inline]
    pub(super) fn separate(
        &mut self,
        internal_key: &[u8],
        stored: &[u8],
        created: &mut CreatedFiles<'a>,
    ) -> Result<Option<(&[u8], &[u8])>> {
        if (stored.len() as u64) < self.spec.values.separation_bytes {
            return Ok(None);
        }
        let Some(record) = KeyRef::decode(internal_key) else { return Ok(None) };
        let (expiry, value) = match (record.kind, stored.split_first_chunk::<EXPIRY_BYTES>()) {
            (Kind::Put, _) => (None, stored),
            (Kind::PutExpiring, Some((expiry, value))) => {
                (Some(u64::from_le_bytes(*expiry)), value)
            }
            _ => return Ok(None),
        };
        if (value.len() as u64) < self.spec.values.separation_bytes {
            return Ok(None);
        }
        let OpenValueFile { builder, .. } = match &mut self.open {
            Some(open) => open,
            None => self.create(created)?,
        };
        let mut reference = builder.add(record.user_key, record.seq, value)?;
        reference.expiry_unix_ms = expiry;
        let is_full = builder.value_bytes() >= self.spec.values.value_file_bytes;
        // The table of the record exists. The next value file needs a number.
        if is_full && created.has_spare(1) {
            self.close()?;
        }
        self.reference.clear();
        reference.encode(&mut self.reference);
        self.key.clear();
        key::encode_into(&mut self.key, record.user_key, record.seq, Kind::Indirect);
        Ok(Some((&self.key, &self.reference)))
    }

    #[cold]
    fn create(&mut self, created: &mut CreatedFiles<'a>) -> Result<&mut OpenValueFile> {
        let new = created.create(value_file_name, self.io)?;
        let builder = ValueTableBuilder::new(
            Box::new(new.file),
            &new.path,
            new.no,
            self.spec.unique_id(new.no),
            self.spec.table_options(self.cf),
        );
        let builder = builder.charged_to(&self.context.budget);
        Ok(self.open.insert(OpenValueFile { no: new.no, builder }))
    }

    /// Whether a value file is open. If not, the next separated value takes a file number.
    pub(super) fn has_open_file(&self) -> bool {
        self.open.is_some()
    }

    /// Syncs the finished table `meta`, which was written through `file`, as soon as the value
    /// files that it references are synced. `created` has the file numbers that are left.
    pub(super) fn sync_table(
        &mut self,
        meta: &FileMeta,
        file: LateSync,
        created: &CreatedFiles<'_>,
    ) -> Result<()> {
        let names = |open: &OpenValueFile| meta.refs.by_file().iter().any(|at| at.no == open.no.0);
        if !self.open.as_ref().is_some_and(names) {
            return file.sync_now();
        }
        self.waiting.push(file);
        // The next table and the next value file need a number each.
        if self.waiting.len() >= WAITING_TABLES_MAX && created.has_spare(2) {
            return self.close();
        }
        Ok(())
    }

    /// Ends and syncs the open value file, and then syncs the tables that waited for it.
    fn close(&mut self) -> Result<()> {
        if let Some(OpenValueFile { builder, .. }) = self.open.take() {
            self.files.push(builder.finish()?);
        }
        self.waiting.drain(..).try_for_each(LateSync::sync_now)
    }

    /// Ends the last value file. Returns all value files, ascending by number. They and all tables
    /// are synced.
    pub(super) fn finish(&mut self) -> Result<Vec<ValueFileMeta>> {
        self.close()?;
        Ok(std::mem::take(&mut self.files))
    }
}

/// A table's file whose sync by the table builder only flushes. [`LateSync::sync_now`] syncs it.
#[derive(Clone)]
pub(super) struct LateSync(Arc<Mutex<MeteredWrite>>);

impl LateSync {
    pub(super) fn new(file: MeteredWrite) -> Self {
        Self(Arc::new(Mutex::new(file)))
    }

    fn sync_now(self) -> Result<()> {
        self.0.lock().sync()
    }
}

impl fmt::Debug for LateSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LateSync({:?})", self.0.lock())
    }
}

impl WritableFile for LateSync {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.0.lock().append(data)
    }

    fn flush(&mut self) -> Result<()> {
        self.0.lock().flush()
    }

    fn submit(&mut self) -> Result<()> {
        self.0.lock().submit()
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()
    }

    fn len(&self) -> u64 {
        self.0.lock().len()
    }
}
