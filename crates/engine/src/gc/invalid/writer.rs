//! Writing of invalid files, for compactions and for merges.

use archipelago_base::budget::{Charge, MemoryClass};
use archipelago_base::{CfId, FileNo, Result};
use archipelago_env::{FileClass, IoContext};

use super::{BUFFER_BYTES, NUMBER_BYTES, put_key};
use crate::file_meta::invalid_file_name;
use crate::job::spec::{FileNumbers, OutputSpec};
use crate::job::{CreatedFile, CreatedFiles, JobContext};
use crate::key;
use crate::sabotage::{Defect, has};
use crate::sst::{TableBuilder, TableOptions};
use crate::value_ref::InvalidFileMeta;

/// Bytes that an entry takes in the buffer, without its user key.
const ENTRY_BYTES: u64 = (NUMBER_BYTES + key::TRAILER_BYTES + size_of::<(u32, u32)>()) as u64;

/// File numbers that a compaction sets aside for the entries of `records` records with `raw_bytes`
/// bytes of keys and values.
pub(crate) fn file_numbers_wanted(records: u64, raw_bytes: u64) -> u64 {
    let bytes = records.saturating_mul(ENTRY_BYTES).saturating_add(raw_bytes);
    (bytes / BUFFER_BYTES as u64).saturating_add(2)
}

/// Writes the invalid files of a job. If it is dropped before [`InvalidFiles::release`], it removes
/// them.
pub(super) struct InvalidFiles<'a> {
    spec: &'a OutputSpec,
    cf: CfId,
    io: IoContext,
    created: CreatedFiles<'a>,
}

/// An invalid file that is being written.
pub(super) struct OpenInvalidFile {
    no: FileNo,
    builder: TableBuilder,
    names: Vec<u64>,
}

impl OpenInvalidFile {
    /// Adds an entry after all others.
    pub(super) fn add(&mut self, no: u64, key: &[u8], value: &[u8]) -> Result<()> {
        if self.names.last() != Some(&no) {
            self.names.push(no);
        }
        self.builder.add(key, value)
    }

    /// Ends and syncs the file. Its install number is 0.
    pub(super) fn finish(self) -> Result<InvalidFileMeta> {
        let meta = self.builder.finish()?;
        Ok(InvalidFileMeta {
            no: self.no.0,
            unique_id: meta.unique_id,
            size_bytes: meta.size_bytes,
            checksum: meta.checksum,
            records: meta.entries,
            install_no: 0,
            names: self.names,
        })
    }
}

impl<'a> InvalidFiles<'a> {
    pub(super) fn new(
        spec: &'a OutputSpec,
        numbers: FileNumbers,
        cf: CfId,
        io: IoContext,
        context: &'a JobContext<'a>,
    ) -> Self {
        let created = CreatedFiles::new(spec, context).numbered(numbers);
        Self { spec, cf, io: IoContext { class: FileClass::Sst, ..io }, created }
    }

    pub(super) fn create(&mut self) -> Result<OpenInvalidFile> {
        let CreatedFile { no, path, file } = self.created.create(invalid_file_name, self.io)?;
        let options = TableOptions { bloom_bits_per_key: 0, ..self.spec.table_options(self.cf) };
        let id = self.spec.unique_id(no);
        let builder = TableBuilder::new(Box::new(file), &path, no, id, options);
        Ok(OpenInvalidFile { no, builder, names: Vec::new() })
    }

    /// Makes the names of the files durable.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.created.settle()
    }

    /// Keeps the files when this value is dropped.
    pub(super) fn release(&mut self) {
        self.created.release();
    }
}

/// Takes the references that a compaction drops, in any order, and writes their entries.
pub(crate) struct InvalidWriter<'a> {
    out: InvalidFiles<'a>,
    context: &'a JobContext<'a>,
    keys: Vec<u8>,
    /// Start and end in `keys` of each key.
    entries: Vec<(u32, u32)>,
    files: Vec<InvalidFileMeta>,
    /// Charge for the memory of the buffer, from the first entry on.
    held: Option<Charge>,
}

impl<'a> InvalidWriter<'a> {
    /// A writer for the job of `spec`. It creates a file when there is an entry.
    pub(crate) fn new(
        spec: &'a OutputSpec,
        cf: CfId,
        io: IoContext,
        context: &'a JobContext<'a>,
    ) -> Self {
        let out = InvalidFiles::new(spec, spec.values.invalid, cf, io, context);
        let (keys, entries, files) = (Vec::new(), Vec::new(), Vec::new());
        Self { out, context, keys, entries, files, held: None }
    }

    /// Notes the record `internal_key` of value file `no` as dropped.
    pub(crate) fn note(&mut self, no: FileNo, internal_key: &[u8]) -> Result<()> {
        let seq = key::trailer_seq(key::trailer(internal_key));
        if has(Defect::DroppedInvalidEntry) && seq.0 % 8 == 3 {
            return Ok(());
        }
        if self.held.is_none() {
            let budget = &self.context.budget;
            self.held = Some(budget.hold(MemoryClass::Job, BUFFER_BYTES as u64));
        }
        let start = self.keys.len() as u32;
        put_key(&mut self.keys, no.0, internal_key);
        self.entries.push((start, self.keys.len() as u32));
        match self.keys.len() + size_of_val(self.entries.as_slice()) >= BUFFER_BYTES {
            true => self.write(),
            false => Ok(()),
        }
    }

    fn write(&mut self) -> Result<()> {
        let Self { out, keys, entries, files, .. } = self;
        let key_of = |at: &(u32, u32)| &keys[at.0 as usize..at.1 as usize];
        entries.sort_unstable_by(|one, other| key::compare(key_of(one), key_of(other)));
        let mut file = out.create()?;
        for at in entries.iter() {
            let key = key_of(at);
            let no = key.first_chunk::<NUMBER_BYTES>().map_or(0, |no| u64::from_be_bytes(*no));
            file.add(no, key, &[])?;
        }
        files.push(file.finish()?);
        keys.clear();
        entries.clear();
        Ok(())
    }

    /// Writes the buffered entries, and makes all files durable.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if !self.entries.is_empty() {
            self.write()?;
        }
        self.out.settle()
    }

    /// Keeps the files that [`InvalidWriter::finish`] has ended. Their install numbers are 0 until
    /// the owner installs them.
    pub(crate) fn release(mut self) -> Vec<InvalidFileMeta> {
        self.out.release();
        std::mem::take(&mut self.files)
    }
}
