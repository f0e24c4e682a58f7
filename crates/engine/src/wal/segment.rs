//! One segment of the log: its file, its durability, and its states before and after it is open.
//!
//! A segment in a network is created before its use ([`PreparedSegment`]). The log then continues
//! in it without waiting. The old segment is closed later, without the commit lock
//! ([`RetiredSegment`]).
//!
//! Invariants:
//! 1. A prepared segment has no header, so no recovery counts it.
//! 2. No byte of a prepared segment is sent before all records of the previous segment survive
//!    `kill -9`, because its header names their end ([`LogFile::follow`]).
//! 3. The record that names the next segment is written once that segment has its header.
//!
//! Thread-safety: a [`Segment`] is shared. The other values have one owner.
//! Failure: a prepared segment that is not used is removed. A retired segment that lost records
//! returns an error, and the caller gives it up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, FileNo, Result};
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions, LogSync};
use parking_lot::Mutex;

use super::record::{SEGMENT_HEADER_BYTES, SEGMENT_NO_MAX, SegmentRef, incarnation_of};

/// A segment, shared by its records, waits and syncs.
#[derive(Debug)]
pub(super) struct Segment {
    no: FileNo,
    path: PathBuf,
    handle: Arc<dyn LogSync>,
    synced_through: AtomicU64,
    /// Whether the directory entry is durable, or the error because of which that stays unknown.
    entry: Mutex<Result<bool>>,
}

impl Segment {
    pub(super) fn new(no: FileNo, path: &Path, log: &dyn LogFile) -> Arc<Self> {
        Arc::new(Self {
            no,
            path: path.to_owned(),
            handle: log.sync_handle(),
            synced_through: AtomicU64::new(0),
            entry: Mutex::new(Ok(false)),
        })
    }

    pub(super) fn no(&self) -> FileNo {
        self.no
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn handle(&self) -> &Arc<dyn LogSync> {
        &self.handle
    }

    /// Offset through which a sync has reported the segment.
    #[inline]
    pub(super) fn synced_through(&self) -> u64 {
        self.synced_through.load(Ordering::Acquire)
    }

    pub(super) fn sync(&self, fs: &dyn FileSystem) -> Result<u64> {
        let mut entry = self.entry.lock();
        if let Err(error) = &*entry {
            return Err(error.clone());
        }
        let offset = self.handle.sync()?;
        if !matches!(*entry, Ok(true)) {
            let done = fs.sync_dir(parent(&self.path));
            *entry = done.clone().map(|()| true);
            done?;
        }
        self.synced_through.fetch_max(offset, Ordering::Release);
        Ok(offset)
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Number and path of a segment to create, and properties of its file.
#[derive(Clone, Debug)]
pub(super) struct SegmentPlan<'a> {
    pub(super) path: &'a Path,
    pub(super) no: FileNo,
    /// Expected size in bytes.
    pub(super) segment_bytes: u64,
    /// An obsolete segment whose space is used again.
    pub(super) recycle: Option<PathBuf>,
}

/// The file of a segment without a header.
#[derive(Debug)]
pub(super) struct SegmentCreation {
    pub(super) log: Box<dyn LogFile>,
    pub(super) incarnation: Epoch,
    /// Length of the recycled file.
    pub(super) reused_len: u64,
}

/// Creates the file of a segment. `InvalidArgument` if the number is out of range.
pub(super) fn create_file(
    fs: &dyn FileSystem,
    plan: SegmentPlan<'_>,
    rng: &mut Rng,
) -> Result<SegmentCreation> {
    let SegmentPlan { path, no, segment_bytes, recycle } = plan;
    if no.0 > SEGMENT_NO_MAX {
        return Err(Error::invalid(format!("log segment number {no} is out of range")));
    }
    let incarnation = incarnation_of(no, rng.u32(..));
    let reused_len = recycle.as_deref().map_or(Ok(0), |path| fs.len(path))?;
    let options = LogOptions { incarnation, size_hint_bytes: segment_bytes, recycle };
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let log = fs.create_log(path, context, options)?;
    Ok(SegmentCreation { log, incarnation, reused_len })
}

/// A segment that was created before its use.
#[derive(Debug)]
pub struct PreparedSegment {
    no: FileNo,
    path: PathBuf,
    log: Box<dyn LogFile>,
    incarnation: Epoch,
}

impl PreparedSegment {
    /// Creates segment `no` at `path`, for about `segment_bytes`. On return its directory entry is
    /// durable, so that its first append waits for nothing else. `seed` serves as
    /// [`LogConfig::seed`](super::LogConfig::seed).
    pub fn create(
        fs: &dyn FileSystem,
        path: &Path,
        no: FileNo,
        segment_bytes: u64,
        seed: u64,
    ) -> Result<Self> {
        let plan = SegmentPlan { path, no, segment_bytes, recycle: None };
        let created = create_file(fs, plan, &mut Rng::with_seed(seed))?;
        let SegmentCreation { log, incarnation, .. } = created;
        let prepared = Self { no, path: path.to_owned(), log, incarnation };
        match fs.sync_dir(parent(path)) {
            Ok(()) => Ok(prepared),
            Err(error) => {
                prepared.discard(fs);
                Err(error)
            }
        }
    }

    /// Number of the segment.
    #[must_use]
    pub fn no(&self) -> FileNo {
        self.no
    }

    /// Removes the segment, which was not used.
    pub fn discard(self, fs: &dyn FileSystem) {
        let Self { path, log, .. } = self;
        drop(log);
        if let Err(error) = fs.remove(&path) {
            tracing::warn!(%error, "a log segment that was not used could not be removed");
        }
    }

    pub(super) fn into_parts(self) -> (FileNo, PathBuf, Box<dyn LogFile>, Epoch) {
        (self.no, self.path, self.log, self.incarnation)
    }
}

/// A segment that the log has left for a prepared one, before all of its records were acknowledged.
#[derive(Debug)]
pub struct RetiredSegment {
    pub(super) log: Box<dyn LogFile>,
    pub(super) segment: Arc<Segment>,
    pub(super) next: Arc<Segment>,
    /// The record that names the next segment.
    pub(super) end_record: Vec<u8>,
    pub(super) len: u64,
}

/// Records that a segment has lost after it accepted them.
#[derive(Clone, Debug)]
pub struct LostRecords {
    /// Number of the segment.
    pub segment: FileNo,
    /// The error that caused the loss.
    pub error: Error,
}

/// Turns the error of `segment` into the loss of its records.
fn lost(segment: &Segment) -> impl FnOnce(Error) -> LostRecords {
    let segment = segment.no;
    move |error| LostRecords { segment, error }
}

impl RetiredSegment {
    /// The segment with its length, as the header of the next one names it.
    #[must_use]
    pub fn closed(&self) -> SegmentRef {
        SegmentRef { no: self.segment.no, len: self.len }
    }

    /// Closes the segment: waits until all of its records and the header of the next segment
    /// survive `kill -9`, and names the next segment. If that last step fails, nothing is lost, but
    /// a recovery cannot notice a missing next segment.
    pub fn settle(mut self) -> Result<(), LostRecords> {
        self.log.finish().map_err(lost(&self.segment))?;
        let header = SEGMENT_HEADER_BYTES as u64;
        self.next.handle.wait(header).map_err(lost(&self.next))?;
        if let Err(error) = self.log.append_trailer(&self.end_record) {
            tracing::warn!(%error, "a closed log segment does not name the next one");
        }
        Ok(())
    }
}
