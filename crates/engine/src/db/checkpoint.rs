//! Checkpoints: a second database with the same content, made while this one runs.
//!
//! Tables are linked where the file system can (immutable, so sharing is safe), copied otherwise;
//! live log segments are always copied. Order: memtables with records that no log has are flushed,
//! deletions are held, the manifest's picture is written, then the log is rotated and its segments copied. So the log holds everything that the
//! picture lacks, and recovery skips what it has. `CURRENT` is written last: before it, the
//! directory is no database.

use std::path::Path;

use archipelago_base::{Error, Result};
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, OpenOptions};

use crate::db::Db;
use crate::db::inner::{DbInner, LogSegment};
use crate::file_meta::{log_name, sst_name};

const COPY_CHUNK_BYTES: usize = 1 << 20;

impl Db {
    /// Makes a checkpoint in `dir`, which must not exist or be empty. On return it survives power
    /// loss and can be opened as a database of its own; it holds every write that returned before
    /// the call, those that went past the log too.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.inner.check_open()?;
        let dir = dir.as_ref();
        let fs = &self.inner.fs;
        if fs.exists(dir)? && !fs.list(dir)?.is_empty() {
            return Err(Error::invalid(format!(
                "cannot make a checkpoint in {}: it exists and is not empty",
                dir.display()
            )));
        }
        self.inner.flush_unlogged()?;
        fs.create_dir_all(dir)?;
        self.inner.state.lock().deletions_held += 1;
        let result = self.inner.checkpoint(dir);
        self.inner.state.lock().deletions_held -= 1;
        self.inner.remove_obsolete();
        if result.is_err()
            && let Err(error) = fs.remove_dir_all(dir)
        {
            tracing::warn!(%error, "the half-made checkpoint could not be removed");
        }
        result
    }
}

impl DbInner {
    fn checkpoint(&self, dir: &Path) -> Result<()> {
        let (pictures, exporter) = {
            let manifest = self.manifest.lock();
            let pictures: Vec<_> =
                self.live_families().iter().map(|family| family.current.load_full()).collect();
            (pictures, manifest.exporter())
        };
        for (_, file) in pictures.iter().flat_map(|picture| picture.version.files()) {
            let name = sst_name(file.file_no());
            self.link_or_copy(&self.path_of(&name), &dir.join(&name), FileClass::Sst)?;
        }
        for segment in self.rotated_segments()? {
            let name = log_name(segment.no);
            copy(&*self.fs, &self.path_of(&name), &dir.join(&name), FileClass::Wal)?;
        }
        self.fs.sync_dir(dir)?;
        exporter.write(dir)
    }

    /// Ends the open log segment and tells all closed ones.
    fn rotated_segments(&self) -> Result<Vec<LogSegment>> {
        let mut commit = self.committer.lock();
        if commit.log.is_some() {
            self.rotate_log(&mut commit)?;
        }
        Ok(self.state.lock().logs.iter().copied().collect())
    }

    fn link_or_copy(&self, from: &Path, to: &Path, class: FileClass) -> Result<()> {
        match self.fs.link(from, to) {
            Err(error) if error.kind() == archipelago_base::ErrorKind::Unsupported => {
                copy(&*self.fs, from, to, class)
            }
            other => other,
        }
    }
}

/// Copies a file and syncs the copy.
pub(crate) fn copy(fs: &dyn FileSystem, from: &Path, to: &Path, class: FileClass) -> Result<()> {
    let context = IoContext::new(class, IoPurpose::Maintenance);
    let source = fs.open(from, context, OpenOptions::default())?;
    let options = CreateOptions { size_hint_bytes: source.len(), ..CreateOptions::default() };
    let mut target = fs.create(to, context, options)?;
    let mut buffer = vec![0; COPY_CHUNK_BYTES];
    let mut offset = 0;
    while offset < source.len() {
        let len = (source.len() - offset).min(COPY_CHUNK_BYTES as u64) as usize;
        source.read_exact_at(offset, &mut buffer[..len], context)?;
        target.append(&buffer[..len])?;
        offset += len as u64;
    }
    target.sync()
}
