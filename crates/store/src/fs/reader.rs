//! Files that are open for reading: inline bytes, a blob, or a log.
//!
//! Invariants:
//! 1. A reader keeps the bytes of its file, also when the file has no name any more.
//! 2. A reader has the length that the file had when it was opened.
//! 3. No answer leaves the reader after the owner's lease has ended.
//!
//! Thread-safety: any thread may call any method.
//! Failure: errors name the path. A read past the end says so, and nothing is read.
//! Cost: a read costs that of the blob or the log, and one reading of the clock. Inline bytes are
//! copied when the file is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::failure::past_end;
use archipelago_env::{IoContext, RandomFile};

use super::failure::{missing, named};
use super::open_files::OpenFiles;
use crate::blob::BlobReader;
use crate::volume::Hold;
use crate::volume::record::Content;

/// The bytes of an open file.
#[derive(Debug)]
enum OpenContent {
    Inline(Vec<u8>),
    Blob(Arc<dyn BlobReader>),
    /// Inline bytes, and the log after them. `None` for a log without bytes.
    Log(Vec<u8>, Option<Arc<dyn RandomFile>>),
}

/// A file that is open for reading.
#[derive(Debug)]
pub(super) struct StoreReader {
    files: Arc<OpenFiles>,
    path: PathBuf,
    content: OpenContent,
    len: u64,
    /// Keeps the bytes. The drop comes last.
    _hold: Hold,
}

impl StoreReader {
    /// Opens the file at `path`. Errors: `NotFound`, and `Io` for a directory.
    pub(super) fn open(files: &Arc<OpenFiles>, path: &Path, context: IoContext) -> Result<Self> {
        let doing = "open";
        let Some((record, hold)) = files.volume.hold_path(path) else {
            let is_dir = files.volume.look(|state| state.is_dir(path));
            return Err(missing(doing, path, is_dir));
        };
        let stores = files.volume.stores();
        let known = record.content.len_bytes();
        let content = match record.content {
            Content::Inline(bytes) => OpenContent::Inline(bytes),
            Content::Blob(blob) => {
                let reader = stores.blobs.open(&blob, context);
                OpenContent::Blob(files.heard(reader, doing, path)?)
            }
            Content::Log { head, len_bytes: Some(0), .. } => OpenContent::Log(head, None),
            Content::Log { head, id, layout, .. } => {
                let log = stores.logs.open(id, &layout, context);
                OpenContent::Log(head, Some(files.heard(log, doing, path)?))
            }
        };
        let len = match (known, &content) {
            (Some(len), _) => len,
            (None, OpenContent::Log(head, Some(log))) => head.len() as u64 + log.len(),
            (None, _) => 0,
        };
        let reader =
            Self { files: Arc::clone(files), path: path.to_owned(), content, len, _hold: hold };
        files.answer(reader, doing, path)
    }

    /// Refuses a read past the end.
    fn check_range(&self, offset: u64, len: usize) -> Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(past_end(&self.path, offset, len, self.len)),
        }
    }

    #[cold]
    fn failed(&self, error: &Error, offset: u64, len: usize) -> Error {
        named(error, format_args!("read {len} bytes at {offset} of"), &self.path)
    }

    fn read(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        match &self.content {
            OpenContent::Inline(bytes) => {
                copy(bytes, offset, buf);
                Ok(())
            }
            OpenContent::Blob(blob) => blob.read_exact_at(offset, buf, context),
            OpenContent::Log(head, log) => {
                let from_head = copy(head, offset, buf);
                let rest = &mut buf[from_head..];
                match log {
                    Some(log) if !rest.is_empty() => {
                        let offset = offset + from_head as u64 - head.len() as u64;
                        log.read_exact_at(offset, rest, context)
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

/// Copies the part of the range at `offset` that `bytes` contain. Returns the number of copied
/// bytes.
fn copy(bytes: &[u8], offset: u64, buf: &mut [u8]) -> usize {
    let start = usize::try_from(offset).map_or(bytes.len(), |start| start.min(bytes.len()));
    let len = buf.len().min(bytes.len() - start);
    buf[..len].copy_from_slice(&bytes[start..start + len]);
    len
}

impl RandomFile for StoreReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        self.check_range(offset, buf.len())?;
        if buf.is_empty() {
            return Ok(());
        }
        let read = self.files.volume.observe(self.read(offset, buf, context));
        let read = read.and_then(|()| self.files.volume.check_lease());
        read.map_err(|error| self.failed(&error, offset, buf.len()))
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        for (offset, buf) in requests.iter() {
            self.check_range(*offset, buf.len())?;
        }
        let read = match &self.content {
            OpenContent::Blob(blob) => blob.read_many(requests, context),
            OpenContent::Log(head, Some(log)) if head.is_empty() => {
                log.read_many(requests, context)
            }
            _ => requests.iter_mut().try_for_each(|(offset, buf)| self.read(*offset, buf, context)),
        };
        let read = self.files.volume.observe(read);
        let read = read.and_then(|()| self.files.volume.check_lease());
        read.map_err(|error| {
            let bytes = requests.iter().map(|(_, buf)| buf.len()).sum();
            self.failed(&error, requests.first().map_or(0, |(offset, _)| *offset), bytes)
        })
    }

    fn len(&self) -> u64 {
        self.len
    }
}
