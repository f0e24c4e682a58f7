//! Files that are neither tables nor log segments: inline bytes first, a log later.
//!
//! The bytes of a [`GrowingFile`] stand in its record while they are few. A file that exceeds
//! [`INLINE_BYTES_MAX`] goes on in a log, and so does a manifest that grows after its bytes were
//! handed over once. The first bytes stay in the record, so that no crash loses bytes that were
//! synced.
//!
//! Invariants:
//! 1. The file consists of the inline bytes of its record, followed by its log.
//! 2. Bytes that a flush or a sync has reported are in a durable record or in an acknowledged log.
//!
//! Thread-safety: one thread at a time uses a writer.
//! Failure: errors name the path, and after the first one the writer is unusable. The bytes of a
//! file that was removed meanwhile are dropped.
//! Cost: handing over writes all inline bytes again, or appends to the log. A flush waits one round
//! trip for it, a sync one or two, and a submit none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::{FileClass, IoContext, WritableFile};

use super::failure::named;
use super::open_files::{NewName, OpenFiles};
use super::written_log::{RecordedLog, WrittenLog};
use crate::log::LogWriter;
use crate::volume::record::{Content, FileKey};
use crate::volume::{Hold, Moment};

/// Limit of the bytes that a record has inline.
pub(super) const INLINE_BYTES_MAX: usize = 4 << 10;

/// Number of buffered bytes above which an append hands them over.
const BUFFER_BYTES: usize = 64 << 10;

/// Place of the bytes of a growing file.
#[derive(Debug)]
enum Growth {
    /// All bytes of the file, of which the record has the first `recorded`.
    Inline { bytes: Vec<u8>, recorded: usize },
    /// The log after the inline bytes, and the bytes that were not submitted to it.
    Log { log: Arc<WrittenLog>, writer: Box<dyn LogWriter>, buffer: Vec<u8> },
    /// The file has no name any more, so its bytes are dropped. `len` is their number so far.
    Removed { len: u64 },
}

/// A file that grows.
#[derive(Debug)]
pub(super) struct GrowingFile {
    files: Arc<OpenFiles>,
    path: PathBuf,
    class: FileClass,
    growth: Growth,
    /// Position after the last record of the file.
    moment: Moment,
    failed: Option<Error>,
    key: FileKey,
    _hold: Hold,
}

impl GrowingFile {
    /// Creates an empty file at `path`. Unless the creation is exclusive, it replaces a file that
    /// has the path already.
    pub(super) fn create(
        files: &Arc<OpenFiles>,
        path: &Path,
        context: IoContext,
        name: NewName,
    ) -> Result<Self> {
        files.check_target("create", path)?;
        let key = files.volume.allocate();
        let hold = files.volume.hold(key);
        let content = Content::Inline(Vec::new());
        let record = files.new_file(key, context.class, path, content);
        let moment = files.create_file(path, record, name)?;
        Ok(Self {
            files: Arc::clone(files),
            path: path.to_owned(),
            class: context.class,
            growth: Growth::Inline { bytes: Vec::new(), recorded: 0 },
            moment,
            failed: None,
            key,
            _hold: hold,
        })
    }

    /// Runs `work` unless an earlier call failed, and notes its error.
    fn once(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        work(self).inspect_err(|error| self.failed = Some(error.clone()))
    }

    /// Hands all bytes over without waiting.
    fn hand_over(&mut self) -> Result<()> {
        match &mut self.growth {
            Growth::Inline { bytes, recorded } if bytes.len() > *recorded => {
                let is_manifest = self.class == FileClass::Manifest;
                if bytes.len() > INLINE_BYTES_MAX || is_manifest && *recorded > 0 {
                    self.become_log()?;
                    return self.hand_over();
                }
                let content = Content::Inline(bytes.clone());
                *recorded = bytes.len();
                self.record(content)
            }
            Growth::Log { log, writer, buffer } if !buffer.is_empty() => {
                let pushed = writer.submit(&[buffer.as_slice()]);
                self.files.heard(pushed, "append to", &self.path)?;
                log.note_submitted(writer.len_bytes());
                buffer.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Submits the file's content.
    fn record(&mut self, content: Content) -> Result<()> {
        match self.files.set_content(self.key, content, "write to", &self.path)? {
            Some(moment) => self.moment = moment,
            None => self.growth = Growth::Removed { len: self.len() },
        }
        Ok(())
    }

    /// Begins the log. Bytes that the record does not have go into the buffer of the log.
    fn become_log(&mut self) -> Result<()> {
        let Growth::Inline { bytes, recorded } = &mut self.growth else { return Ok(()) };
        let (mut head, recorded) = (std::mem::take(bytes), *recorded);
        let buffer = head.split_off(recorded);
        let head_bytes = recorded as u64;
        let (volume, key) = (&self.files.volume, self.key);
        let begun = volume.begin_log(key, self.class);
        let (writer, id, layout) = begun.map_err(|error| named(&error, "write to", &self.path))?;
        let content = Content::Log { head, id, layout, len_bytes: None };
        let recorded = self.files.set_content(key, content, "write to", &self.path);
        if !matches!(recorded, Ok(Some(_))) {
            volume.give_up_log(id);
        }
        let Some(moment) = recorded? else {
            self.growth = Growth::Removed { len: head_bytes + buffer.len() as u64 };
            return Ok(());
        };
        self.moment = moment;
        let (path, position) = (self.path.clone(), writer.position());
        let recorded = RecordedLog { path, position, head_bytes, moment, key };
        let log = WrittenLog::new(volume, recorded);
        self.files.add_log(&log);
        self.growth = Growth::Log { log, writer, buffer };
        Ok(())
    }

    /// Number of bytes that wait to be handed over.
    fn buffered(&self) -> usize {
        match &self.growth {
            Growth::Inline { bytes, recorded } => bytes.len() - recorded,
            Growth::Log { buffer, .. } => buffer.len(),
            Growth::Removed { .. } => 0,
        }
    }
}

impl WritableFile for GrowingFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.once(|file| {
            match &mut file.growth {
                Growth::Inline { bytes, .. } => bytes.extend_from_slice(data),
                Growth::Log { buffer, .. } => buffer.extend_from_slice(data),
                Growth::Removed { len } => *len += data.len() as u64,
            }
            if file.buffered() >= BUFFER_BYTES { file.hand_over() } else { Ok(()) }
        })
    }

    fn flush(&mut self) -> Result<()> {
        self.once(|file| {
            file.hand_over()?;
            match &file.growth {
                Growth::Log { log, writer, .. } => log.wait_acknowledged(writer.len_bytes()),
                Growth::Inline { .. } => file.files.wait(file.moment, "write to", &file.path),
                Growth::Removed { .. } => Ok(()),
            }
        })
    }

    fn submit(&mut self) -> Result<()> {
        self.once(Self::hand_over)
    }

    fn sync(&mut self) -> Result<()> {
        self.once(|file| {
            file.hand_over()?;
            match &file.growth {
                Growth::Log { log, .. } => log.sync_all().map(drop),
                Growth::Inline { .. } => file.files.wait(file.moment, "sync", &file.path),
                Growth::Removed { .. } => Ok(()),
            }
        })
    }

    fn len(&self) -> u64 {
        match &self.growth {
            Growth::Inline { bytes, .. } => bytes.len() as u64,
            Growth::Log { log, writer, buffer } => {
                log.head_bytes() + writer.len_bytes() + buffer.len() as u64
            }
            Growth::Removed { len } => *len,
        }
    }
}

impl Drop for GrowingFile {
    fn drop(&mut self) {
        let removed = Growth::Removed { len: 0 };
        if let Growth::Log { log, writer, .. } = std::mem::replace(&mut self.growth, removed) {
            self.files.retire_log(&log, writer);
        }
    }
}
