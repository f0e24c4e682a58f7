//! Opening the outputs of a job before the owner installs them.
//!
//! The metadata of outputs came from another process. Each file must exist under its number with
//! the length and the unique id that the metadata names, and its own properties must agree with the
//! metadata. So an edit never names a file that another execution wrote, or that never reached the
//! owner's file system.
//!
//! Thread-safety: the functions have no state.
//! Failure: every error has the kind `Io`, because the owner has lost nothing.
//! Cost: opening a file takes three to five reads. The data blocks are not read: each later read of
//! a block checks its checksum.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions, RandomFile};

use crate::file_meta::{FileMeta, invalid_file_name, sst_name, value_file_name};
use crate::job::spec::OutputSpec;
use crate::job::{JobContext, JobOutput};
use crate::sst::{FileIdentity, TableReader, opened_meta, opened_value_meta};
use crate::value_ref::{InvalidFileMeta, ValueFileMeta};

/// The files of one output on the owner's file system.
struct Examination<'a> {
    spec: &'a OutputSpec,
    context: &'a JobContext<'a>,
}

/// Opens every output of a job, and compares the files with `output`.
pub(super) fn examine_files(
    output: &JobOutput,
    spec: &OutputSpec,
    context: &JobContext<'_>,
) -> Result<()> {
    let of = Examination { spec, context };
    output.files.iter().try_for_each(|meta| of.table(meta))?;
    output.value_files.iter().try_for_each(|meta| of.value_file(meta))?;
    output.invalid_files.iter().try_for_each(|meta| of.invalid_file(meta))
}

fn differs(path: &Path, what: impl fmt::Display) -> Error {
    let text = format!("the executor's output is not usable: {}: {what}", path.display());
    Error::new(ErrorKind::Io, text)
}

/// An error of opening an output. Its kind is `Io`, because `Corrupt` would stop the database.
fn unusable(error: Error) -> Error {
    Error::with_source(ErrorKind::Io, "the executor's output is not usable", error)
}

impl Examination<'_> {
    fn open(&self, name: &str, class: FileClass) -> Result<(PathBuf, Arc<dyn RandomFile>)> {
        let path = self.spec.dir().join(name);
        let io = IoContext::new(class, IoPurpose::Maintenance);
        let options = OpenOptions { direct: self.spec.direct_io };
        let file = self.context.fs.open(&path, io, options).map_err(unusable)?;
        Ok((path, file))
    }

    fn table(&self, meta: &FileMeta) -> Result<()> {
        let (path, file) = self.open(&sst_name(meta.file_no()), FileClass::Sst)?;
        let JobContext { cache, budget, .. } = self.context;
        let table = TableReader::open(file, &path, Some(meta), cache, budget).map_err(unusable)?;
        match opened_meta(&table, meta) == *meta {
            true => Ok(()),
            false => Err(differs(&path, "the table is not the one that its metadata describes")),
        }
    }

    fn value_file(&self, meta: &ValueFileMeta) -> Result<()> {
        let (path, file) = self.open(&value_file_name(meta.file_no()), FileClass::ValueSst)?;
        let JobContext { cache, budget, .. } = self.context;
        let found = opened_value_meta(&file, &path, meta, cache, budget).map_err(unusable)?;
        match found == *meta {
            true => Ok(()),
            false => {
                Err(differs(&path, "the value file is not the one that its metadata describes"))
            }
        }
    }

    fn invalid_file(&self, meta: &InvalidFileMeta) -> Result<()> {
        let (path, file) = self.open(&invalid_file_name(meta.file_no()), FileClass::Sst)?;
        let identity = FileIdentity {
            size_bytes: meta.size_bytes,
            unique_id: meta.unique_id,
            checksum: meta.checksum,
        };
        let JobContext { cache, budget, .. } = self.context;
        let table =
            TableReader::open_identified(file, &path, identity, cache, budget).map_err(unusable)?;
        let records = table.properties().entries;
        match records == meta.records {
            true => Ok(()),
            false => {
                let what = format!("it has {records} records, not {}", meta.records);
                Err(differs(&path, what))
            }
        }
    }
}
