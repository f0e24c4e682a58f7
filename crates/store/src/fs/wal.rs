//! Segments of a write-ahead log on a storage pool.
//!
//! The engine owns one [`StoreLog`] for each segment. [`LogFile::submit`] sends the bytes, and
//! [`LogSync::wait`] waits for the quorum, so a caller can hold a lock over the first and not over
//! the second. The record of the segment and its first bytes travel at the same time.
//!
//! Invariants:
//! 1. An append is acknowledged only when the segment's record is durable and the log has
//!    acknowledged the bytes.
//! 2. A finished segment takes a trailer and nothing else.
//!
//! Thread-safety: one thread at a time uses a segment. Any thread may use its sync handles.
//! Failure: errors name the path. After the first one the segment takes no more appends.
//! Cost: a submit is that of the log, and one atomic store. The end of the log costs a sync of the
//! pool, and it is left out if the segment is removed before.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::{FileClass, IoContext, LogFile, LogOptions, LogSync};

use super::failure::named;
use super::open_files::OpenFiles;
use super::written_log::{RecordedLog, WrittenLog};
use crate::log::LogWriter;
use crate::volume::record::{Content, Record};

/// What a segment takes.
#[derive(Clone, Debug)]
enum SegmentState {
    Open,
    Finished,
    /// The first error, which is the answer to every later append.
    Failed(Error),
}

/// An open log segment.
#[derive(Debug)]
pub(super) struct StoreLog {
    files: Arc<OpenFiles>,
    log: Arc<WrittenLog>,
    /// `None` only while the segment is dropped.
    writer: Option<Box<dyn LogWriter>>,
    state: SegmentState,
}

/// The class of a log that is created for a file of `class`. It decides how the log is
/// acknowledged: by a quorum for log segments, by all replicas for a manifest.
fn class_of(class: FileClass) -> FileClass {
    if class == FileClass::Manifest { FileClass::Manifest } else { FileClass::Wal }
}

impl StoreLog {
    /// Begins a segment at `path` and submits its record. A segment to recycle is removed by the
    /// same commit, because its space is of no use.
    pub(super) fn create(
        files: &Arc<OpenFiles>,
        path: &Path,
        context: IoContext,
        options: &LogOptions,
    ) -> Result<Self> {
        let doing = "create log";
        files.check_target(doing, path)?;
        let old = options.recycle.as_deref().map(archipelago_env::names::plain);
        if let Some(old) = &old {
            files.key(&format!("recycle as {} the log", path.display()), old)?;
        }
        let volume = &files.volume;
        let (key, class) = (volume.allocate(), class_of(context.class));
        let begun = volume.begin_log(key, class);
        let (writer, id, layout) = begun.map_err(|error| named(&error, doing, path))?;
        let content = Content::Log { head: Vec::new(), id, layout, len_bytes: None };
        let mut records = vec![files.new_file(key, class, path, content)];
        if let Some(old) = old.filter(|old| old != path) {
            records.push(Record::Remove { path: old });
        }
        let _hold = volume.hold(key);
        let moment = files.create(&records, doing, path);
        let moment = moment.inspect_err(|_| volume.give_up_log(id))?;
        let (path, position) = (path.to_owned(), writer.position());
        let log =
            WrittenLog::new(volume, RecordedLog { path, position, head_bytes: 0, moment, key });
        files.add_log(&log);
        let files = Arc::clone(files);
        Ok(Self { files, log, writer: Some(writer), state: SegmentState::Open })
    }

    /// Submits `parts` to the log.
    fn push(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let Some(writer) = &mut self.writer else { return Err(closed(self.log.path())) };
        let pushed = self.files.heard(writer.submit(parts), "append to", self.log.path());
        match &pushed {
            Ok(_) => self.log.note_submitted(writer.len_bytes()),
            Err(error) => {
                self.log.freeze(error);
                self.state = SegmentState::Failed(error.clone());
            }
        }
        pushed
    }

    fn check_state(&self) -> Result<()> {
        match &self.state {
            SegmentState::Open => Ok(()),
            SegmentState::Finished => Err(closed(self.log.path())),
            SegmentState::Failed(error) => Err(error.clone()),
        }
    }

    /// Waits until everything that was submitted is acknowledged.
    fn wait_all(&mut self) -> Result<()> {
        let end = self.len();
        self.log.wait_acknowledged(end).inspect_err(|error| {
            self.state = SegmentState::Failed(error.clone());
        })
    }
}

fn closed(path: &Path) -> Error {
    Error::closed(format!("the log segment {} is finished", path.display()))
}

impl LogFile for StoreLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let offset = self.submit(parts)?;
        self.wait_all()?;
        Ok(offset)
    }

    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.check_state()?;
        self.push(parts)
    }

    fn acknowledges_later(&self) -> bool {
        true
    }

    fn len(&self) -> u64 {
        self.writer.as_ref().map_or(0, |writer| writer.len_bytes())
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        Arc::clone(&self.log) as Arc<dyn LogSync>
    }

    /// Waits for all appends. The log itself is ended later, because a trailer may follow.
    fn finish(&mut self) -> Result<()> {
        if let SegmentState::Failed(error) = &self.state {
            return Err(error.clone());
        }
        self.wait_all()?;
        self.state = SegmentState::Finished;
        Ok(())
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        if let SegmentState::Failed(error) = &self.state {
            return Err(error.clone());
        }
        self.push(&[bytes])?;
        self.wait_all()
    }

    fn unwritten_bytes(&self) -> u64 {
        0
    }
}

impl Drop for StoreLog {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.files.retire_log(&self.log, writer);
        }
    }
}
