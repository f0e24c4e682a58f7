//! The files that a job creates, and their removal when the job fails.
//!
//! The job's [`OutputWriter`](super::output::OutputWriter) owns the value; the writer of its
//! invalid files has one too. Invariants:
//!
//! 1. Every file gets a number of the spec, in ascending order, or one that the owner gives later.
//!    No two files get the same number.
//! 2. A file that exists is never written: it belongs to another execution, of this job or of
//!    another one.
//! 3. Until [`CreatedFiles::keep`] or [`CreatedFiles::release`], dropping the value removes every
//!    file that it has created. A file that cannot be removed is logged and left as garbage.
//! 4. The owner ends a file early only if [`CreatedFiles::has_spare`] allows it. So the numbers
//!    suffice if the spec has one for each table that its cuts demand, and one for a value file.
//!
//! Failure: errors of the file system, and `InvalidArgument` if the numbers are used up.

use std::path::PathBuf;

use archipelago_base::{Error, FileNo, Result};
use archipelago_env::{CreateOptions, IoContext};

use super::spec::{FileNumbers, OutputSpec};
use super::{JobContext, MeteredWrite};
use crate::sabotage::{Defect, has};

/// A file that was just created.
pub(crate) struct CreatedFile {
    pub(crate) no: FileNo,
    pub(crate) path: PathBuf,
    pub(crate) file: MeteredWrite,
}

/// The options with which a job creates its files.
pub(crate) fn creation(spec: &OutputSpec) -> CreateOptions {
    CreateOptions {
        direct: spec.direct_io,
        exclusive: !has(Defect::UnfencedFiles),
        ..CreateOptions::default()
    }
}

/// The files that a job has created.
pub(crate) struct CreatedFiles<'a> {
    spec: &'a OutputSpec,
    numbers: FileNumbers,
    context: &'a JobContext<'a>,
    numbers_used: u64,
    /// Number of file numbers that are kept for the tables after the cuts to come.
    kept_back: u64,
    paths: Vec<PathBuf>,
}

impl<'a> CreatedFiles<'a> {
    /// No file yet, for the job of `spec`.
    pub(crate) fn new(spec: &'a OutputSpec, context: &'a JobContext<'a>) -> Self {
        let (numbers, paths) = (spec.file_numbers, Vec::new());
        Self { spec, numbers, context, numbers_used: 0, kept_back: 0, paths }
    }

    /// The same value with other file numbers.
    pub(crate) fn numbered(mut self, numbers: FileNumbers) -> Self {
        self.numbers = numbers;
        self
    }

    /// Keeps `count` numbers for the tables after the cuts to come.
    pub(super) fn keep_back(&mut self, count: u64) {
        self.kept_back = count;
    }

    /// Whether `count` more files may be created without the numbers that are kept back.
    pub(super) fn has_spare(&self, count: u64) -> bool {
        let left = self.numbers.count.saturating_sub(self.numbers_used);
        self.context.more_file_numbers.is_some() || left >= self.kept_back.saturating_add(count)
    }

    /// Creates the next file. `name` makes the name of its number.
    pub(crate) fn create(
        &mut self,
        name: fn(FileNo) -> String,
        io: IoContext,
    ) -> Result<CreatedFile> {
        let no = self.number()?;
        let path = self.spec.dir().join(name(no));
        let file = self.context.fs.create(&path, io, creation(self.spec))?;
        self.paths.push(path.clone());
        Ok(CreatedFile { no, path, file: MeteredWrite::new(file, io.purpose, self.context) })
    }

    fn number(&mut self) -> Result<FileNo> {
        let numbers = self.numbers;
        if self.numbers_used < numbers.count {
            let no = numbers.first.checked_add(self.numbers_used);
            self.numbers_used += 1;
            return no
                .map(FileNo)
                .ok_or_else(|| Error::invalid("job spec: its file numbers overflow"));
        }
        match self.context.more_file_numbers {
            Some(more) => Ok(more()),
            None => Err(Error::invalid(format!(
                "the job needs more than the {} file numbers from {} on that its spec sets \
                 aside: give it more",
                numbers.count, numbers.first
            ))),
        }
    }

    /// Makes the names of the files durable, and keeps the files. The caller has synced all of
    /// them.
    pub(super) fn keep(&mut self) -> Result<()> {
        self.settle()?;
        self.release();
        Ok(())
    }

    /// Makes the names of the files durable.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if !self.paths.is_empty() {
            self.context.fs.sync_dir(self.spec.dir())?;
        }
        self.context.check_cancelled()
    }

    /// Keeps the files, which [`CreatedFiles::settle`] has made durable.
    pub(crate) fn release(&mut self) {
        self.paths.clear();
    }
}

impl Drop for CreatedFiles<'_> {
    fn drop(&mut self) {
        for path in &self.paths {
            if let Err(error) = self.context.fs.remove(path) {
                tracing::warn!(%error, "cannot remove the output of a failed job");
            }
        }
    }
}
