//! Tables and value files: blobs that get their name when they are sealed.
//!
//! A [`TableWriter`] writes a pending blob. Its sync seals the blob and submits the record that
//! names it. The file system waits for that record in `sync_dir`, so that all tables of a job share
//! one round trip (Terark-DS §4.2).
//!
//! Invariants:
//! 1. A table is visible only when it is sealed. A crash before that leaves no file.
//! 2. A blob that gets no name is given up.
//!
//! Thread-safety: one thread at a time uses a writer.
//! Failure: errors name the path, and after the first one the writer is unusable.
//! Cost: an append costs that of the blob. The sync costs the seal of the blob, and one submit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::{CreateOptions, IoContext, WritableFile};

use super::failure::named;
use super::open_files::{NewName, OpenFiles};
use crate::blob::{BlobRef, BlobWriter};
use crate::ids::BlobId;
use crate::volume::record::Content;

/// Progress of a table.
#[derive(Clone, Debug)]
enum TableState {
    Written,
    /// The table is sealed. It has its name, unless its path was removed.
    Sealed,
    /// The first error, which is the answer to every later call.
    Failed(Error),
}

/// A table that is being written.
#[derive(Debug)]
pub(super) struct TableWriter {
    files: Arc<OpenFiles>,
    path: PathBuf,
    context: IoContext,
    blob: BlobId,
    name: NewName,
    writer: Box<dyn BlobWriter>,
    state: TableState,
    is_named: bool,
}

impl TableWriter {
    /// Begins the table at `path`, which has no name before its sync.
    pub(super) fn create(
        files: &Arc<OpenFiles>,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Self> {
        files.check_target("create", path)?;
        let begun = files.volume.begin_blob(context, options.size_hint_bytes);
        let (blob, writer) = begun.map_err(|error| named(&error, "create", path))?;
        let name = NewName::of(options);
        files.note_unnamed(path, blob, name).inspect_err(|_| files.volume.give_up(blob))?;
        Ok(Self {
            files: Arc::clone(files),
            path: path.to_owned(),
            context,
            blob,
            name,
            writer,
            state: TableState::Written,
            is_named: false,
        })
    }

    /// Keeps the error of `outcome`, if there is one, for all later calls.
    fn noted<T>(&mut self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.state = TableState::Failed(error.clone()))
    }

    fn seal(&mut self) -> Result<()> {
        let sealed = self.writer.seal();
        let blob: BlobRef = self.files.heard(sealed, "sync", &self.path)?;
        let key = self.files.volume.allocate();
        let class = self.context.class;
        let record = self.files.new_file(key, class, &self.path, Content::Blob(blob));
        self.is_named = self.files.name_table(&self.path, self.blob, record, self.name)?;
        Ok(())
    }
}

impl WritableFile for TableWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        match &self.state {
            TableState::Written => (),
            TableState::Failed(error) => return Err(error.clone()),
            TableState::Sealed => {
                return Err(Error::closed(format!(
                    "{} is sealed by its sync and takes no more bytes",
                    self.path.display()
                )));
            }
        }
        let appended = self.writer.append(data);
        let appended = self.files.heard(appended, "append to", &self.path);
        self.noted(appended)
    }

    /// Does nothing, because the bytes of a table that is not sealed do not survive a kill.
    fn flush(&mut self) -> Result<()> {
        match &self.state {
            TableState::Failed(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<()> {
        match &self.state {
            TableState::Failed(error) => return Err(error.clone()),
            TableState::Sealed => return Ok(()),
            TableState::Written => (),
        }
        let sealed = self.seal();
        self.noted(sealed)?;
        self.state = TableState::Sealed;
        Ok(())
    }

    fn len(&self) -> u64 {
        self.writer.len_bytes()
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        if !self.is_named {
            self.files.volume.give_up(self.blob);
        }
    }
}

/// Writes `bytes` as one sealed blob, which the caller names or gives up.
pub(super) fn write_blob(
    files: &OpenFiles,
    path: &Path,
    bytes: &[u8],
    context: IoContext,
) -> Result<BlobRef> {
    let begun = files.volume.begin_blob(context, bytes.len() as u64);
    let (blob, mut writer) = begun.map_err(|error| named(&error, "write", path))?;
    let sealed = writer.append(bytes).and_then(|()| writer.seal());
    files.heard(sealed, "write", path).inspect_err(|_| files.volume.give_up(blob))
}
