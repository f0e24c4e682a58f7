//! Segments of a write-ahead log on a storage pool.
//!
//! The engine owns one [`StoreLog`] for each segment. [`LogFile::submit`] sends the bytes, and
//! [`LogSync::wait`] waits for the quorum, so a caller can hold a lock over the first and not over
//! the second. The record of the segment and its first bytes travel at the same time. A segment can
//! be created ahead of its use ([`LogFile::follow`]), and it can keep bytes back
//! ([`LogFile::hold_back`]).
//!
//! Invariants:
//! 1. An append is acknowledged only when the segment's record is durable and the log has
//!    acknowledged the bytes.
//! 2. A finished segment takes a trailer and nothing else.
//!
//! Thread-safety: one thread at a time uses a segment. Any thread may use its sync handles.
//! Failure: errors name the path. After the first one the segment takes no more appends.
//! Cost: a submit costs that of the log, and one lock. The end of the log costs a sync of the pool.
//! No end is made if the segment is removed before.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::{FileClass, IoContext, LogFile, LogOptions, LogSync};

use super::failure::named;
use super::open_files::OpenFiles;
use super::sending::SegmentSender;
use super::written_log::{RecordedLog, WrittenLog};
use crate::volume::record::{Content, Record};

/// An open log segment.
#[derive(Debug)]
pub(super) struct StoreLog {
    files: Arc<OpenFiles>,
    log: Arc<WrittenLog>,
    sender: Arc<SegmentSender>,
    is_finished: bool,
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
        let sender = SegmentSender::new(files, &log, writer);
        Ok(Self { files: Arc::clone(files), log, sender, is_finished: false })
    }
}

fn closed(path: &Path) -> Error {
    Error::closed(format!("the log segment {} is finished", path.display()))
}

impl LogFile for StoreLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let offset = self.submit(parts)?;
        self.sender.wait_all()?;
        Ok(offset)
    }

    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.sender.check()?;
        if self.is_finished {
            return Err(closed(self.log.path()));
        }
        self.sender.submit(parts)
    }

    fn acknowledges_later(&self) -> bool {
        true
    }

    fn hold_back(&mut self, bytes: u64) {
        self.sender.hold_back(bytes);
    }

    fn follow(&mut self, previous: Arc<dyn LogSync>, end: u64) -> Result<()> {
        self.sender.follow(previous, end)
    }

    fn len(&self) -> u64 {
        self.sender.len()
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        Arc::clone(&self.sender) as Arc<dyn LogSync>
    }

    /// Waits for all appends. The log itself is ended later, because a trailer may follow. A log
    /// that failed cannot be synced any more. So the first error of the segment is returned even if
    /// every appended byte is acknowledged.
    fn finish(&mut self) -> Result<()> {
        self.sender.wait_all()?;
        self.sender.check()?;
        self.is_finished = true;
        Ok(())
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        self.sender.submit(&[bytes])?;
        self.sender.wait_all()
    }

    fn unwritten_bytes(&self) -> u64 {
        0
    }
}

impl Drop for StoreLog {
    fn drop(&mut self) {
        if let Some(writer) = self.sender.take_writer() {
            self.files.retire_log(&self.log, writer);
        }
    }
}
