//! Logs of a storage pool: files that grow at their end and have one writer.
//!
//! A log is a sequence of bytes. The backend chooses the location of the bytes, such as extents on
//! nodes, or one object. It describes the location in a [`Layout`]. The owner keeps the newest
//! layout durably ([`LayoutKeeper`]), because a reader finds the bytes by the layout alone.
//!
//! An append has two halves. [`LogWriter::submit`] fixes its offset and returns without waiting for
//! the network, so a caller may hold a lock. [`LogPosition::wait`] waits, without that lock, until
//! the bytes survive a kill of processes.
//!
//! Invariants that every backend keeps:
//! 1. Appends are acknowledged in order, and an acknowledged append is found by every later
//!    recovery.
//! 2. A backend acknowledges only bytes whose place is in the recorded layout.
//! 3. [`LogStore::recover`] fences: from its return on, no writer of an older epoch appends.
//! 4. Two recoveries of one log agree about its bytes. Bytes behind the end that a recovery
//!    recorded do not exist.
//! 5. A backend calls [`LayoutKeeper::keep`] and [`LossKeeper::keep_loss`] without a lock of its
//!    own, outside its tasks, and never from [`LogWriter::submit`]. So a keeper may append to
//!    another log and wait for it.
//! 6. A backend never gives up a log by itself.
//! 7. If a recovery may miss acknowledged bytes, the [`LossKeeper`] keeps this fact first. Only
//!    then does the recovery change the state from which a later recovery would conclude the loss.
//!    So the fact survives if the owner dies at any point of the recovery.
//!
//! Thread-safety: any thread may call a store or a position. A writer has one owner.
//! Failure: after an error the writer takes no more appends, and the errors of later calls name the
//! first one. The caller begins a new log.

use std::fmt;
use std::sync::Arc;

use archipelago_base::{Epoch, Result};
use archipelago_env::{FileClass, IoContext, RandomFile};

use crate::ids::{LogId, VolumeId};

/// The place of a log's bytes, in the form of the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout(pub Vec<u8>);

/// Keeps the layouts of logs durably. The namespace of a volume keeps those of its files, and the
/// register keeps that of the namespace's own log.
pub trait LayoutKeeper: Send + Sync + fmt::Debug {
    /// Replaces the layout of `log`. On return it survives everything that the namespace survives.
    /// Errors: `Fenced` if another owner took over.
    fn keep(&self, log: LogId, layout: &Layout) -> Result<()>;
}

/// Keeps durably that recovered logs may miss acknowledged bytes. The owner of a volume keeps it in
/// the register.
pub trait LossKeeper: Send + Sync + fmt::Debug {
    /// Notes that acknowledged bytes without a sync may be missing at the ends of logs. On return
    /// the fact survives everything that the namespace survives. A repeated call changes nothing.
    /// Errors: `Fenced` if another owner took over.
    fn keep_loss(&self) -> Result<()>;
}

/// The owner that recovers logs.
#[derive(Clone, Copy, Debug)]
pub struct NewOwner<'a> {
    /// Epoch of the owner. Writers of older ones are fenced.
    pub epoch: Epoch,
    /// Keeps the fact of a loss before the backend destroys the evidence of it.
    pub losses: &'a dyn LossKeeper,
}

/// Parameters of a new log.
#[derive(Clone, Debug)]
pub struct NewLog {
    /// Identity of the log, which was never used before.
    pub id: LogId,
    /// Volume that the log belongs to.
    pub volume: VolumeId,
    /// Epoch of the volume's owner. A backend that knows a later one answers `Fenced`.
    pub epoch: Epoch,
    /// Class of the file: [`FileClass::Wal`] is acknowledged by a quorum, and
    /// [`FileClass::Manifest`] by all replicas, after their syncs.
    pub class: FileClass,
    /// Keeps the layouts that the writer makes after the first one.
    pub keeper: Arc<dyn LayoutKeeper>,
}

/// The writer of a log.
pub trait LogWriter: Send + fmt::Debug {
    /// Appends `parts` one after the other, and returns the offset of the first byte. It does not
    /// wait for the network, except for room in the buffer of bytes that are not acknowledged.
    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64>;
    /// Number of bytes that were submitted.
    fn len_bytes(&self) -> u64;
    /// The handle with which other threads wait for appends.
    fn position(&self) -> Arc<dyn LogPosition>;
    /// Waits until all bytes survive power loss of all nodes, and ends the log: it takes no more
    /// appends. The returned layout has its length. The caller keeps that layout; the
    /// [`LayoutKeeper`] does not get it.
    fn finish(&mut self) -> Result<Layout>;
}

/// The acknowledged end of a log that has a writer.
pub trait LogPosition: Send + Sync + fmt::Debug {
    /// Waits until all bytes before `end` survive a kill of any processes and the loss of one
    /// machine. Errors are sticky, but bytes that were acknowledged stay so.
    fn wait(&self, end: u64) -> Result<()>;
    /// Waits until all bytes that were submitted before this call survive power loss of all nodes.
    /// Returns their number. Errors are sticky.
    fn sync(&self) -> Result<u64>;
}

/// A log after recovery.
#[derive(Clone, Debug)]
pub struct RecoveredLog {
    /// Layout with the end that the recovery chose. The caller keeps it durably before it uses a
    /// byte of the log.
    pub layout: Layout,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Whether acknowledged bytes without a sync may be missing at the end, because machines lost
    /// power. The engine must then treat the end as that of a power failure. A repeated recovery
    /// may not know this any more, so the [`LossKeeper`] has the fact already.
    pub may_miss_unsynced: bool,
}

/// A log that should be recovered.
#[derive(Clone, Copy, Debug)]
pub struct LogToRecover<'a> {
    /// Identity of the log.
    pub id: LogId,
    /// The class with which it was created.
    pub class: FileClass,
    /// Newest layout that the owner has kept.
    pub layout: &'a Layout,
}

/// A range of one of several logs, and the buffer that gets its bytes.
#[derive(Debug)]
pub struct LogRead<'a> {
    /// Index of the log.
    pub log: usize,
    /// Offset of the first byte.
    pub offset: u64,
    /// Buffer that is filled.
    pub buf: &'a mut [u8],
}

/// Reader of several logs that one call of [`LogStore::open_all`] opened.
pub trait LogSetReader: Send + Sync + fmt::Debug {
    /// Length of the log with this index.
    fn len(&self, log: usize) -> u64;
    /// Fills all buffers. The backend may read different logs in parallel. Errors: as for
    /// [`RandomFile::read_exact_at`].
    fn read_all(&self, reads: &mut [LogRead<'_>], context: IoContext) -> Result<()>;
}

/// Logs that are read one after the other.
#[derive(Debug)]
struct SeparateLogs(Vec<Arc<dyn RandomFile>>);

impl LogSetReader for SeparateLogs {
    fn len(&self, log: usize) -> u64 {
        self.0[log].len()
    }

    fn read_all(&self, reads: &mut [LogRead<'_>], context: IoContext) -> Result<()> {
        let mut reads = reads.iter_mut();
        reads.try_for_each(|read| self.0[read.log].read_exact_at(read.offset, read.buf, context))
    }
}

/// A pool that keeps logs.
pub trait LogStore: Send + Sync + fmt::Debug + 'static {
    /// Creates an empty log and returns its first layout. The caller keeps it durably before it
    /// waits for an append. Errors: `Fenced` for an old epoch, `Busy` if the pool has too few
    /// nodes.
    fn create(&self, new: NewLog) -> Result<(Box<dyn LogWriter>, Layout)>;
    /// Creates several logs as [`Self::create`] does, and returns the outcomes in the given order.
    /// A failure leaves the others created. The default creates one after the other.
    fn create_all(&self, new: Vec<NewLog>) -> Vec<Result<(Box<dyn LogWriter>, Layout)>> {
        new.into_iter().map(|new| self.create(new)).collect()
    }
    /// Fences all writers of epochs below that of `owner` and decides which bytes the log has. It
    /// may be repeated, also by another process. A log that ended by [`LogWriter::finish`] or by an
    /// earlier recovery keeps its length. Errors: `Busy` if too few nodes answer, `Fenced` for an
    /// old epoch, and those of the [`LossKeeper`].
    fn recover(
        &self,
        id: LogId,
        class: FileClass,
        layout: &Layout,
        owner: NewOwner<'_>,
    ) -> Result<RecoveredLog>;
    /// Recovers several logs as [`Self::recover`] does, and returns the outcomes in the given
    /// order. The default recovers one after the other.
    fn recover_all(
        &self,
        logs: &[LogToRecover<'_>],
        owner: NewOwner<'_>,
    ) -> Vec<Result<RecoveredLog>> {
        let recover = |log: &LogToRecover<'_>| self.recover(log.id, log.class, log.layout, owner);
        logs.iter().map(recover).collect()
    }
    /// Opens a log for reading, through the end that its layout has. If its layout has no end, the
    /// reader sees the bytes that are acknowledged now.
    fn open(&self, id: LogId, layout: &Layout, context: IoContext) -> Result<Arc<dyn RandomFile>>;
    /// Opens several logs as [`Self::open`] does, to read them together. The default opens and
    /// reads one after the other.
    fn open_all(
        &self,
        logs: &[(LogId, &Layout)],
        context: IoContext,
    ) -> Result<Arc<dyn LogSetReader>> {
        let open = |(id, layout): &(LogId, &Layout)| self.open(*id, layout, context);
        let files = logs.iter().map(open).collect::<Result<_>>()?;
        Ok(Arc::new(SeparateLogs(files)))
    }
    /// Keeps layouts of `volume` that wait for a thread, because no caller waits for their logs. A
    /// backend may move an idle log to other nodes, and a new layout has no effect before it is
    /// kept. The owner calls this from time to time. A layout that cannot be kept now stays until
    /// the next call. The default has none.
    fn keep_layouts(&self, volume: VolumeId) {
        let _has_none = volume;
    }
    /// Gives up the bytes of a log. A log that does not exist is no error.
    fn remove(&self, id: LogId, layout: &Layout, epoch: Epoch) -> Result<()>;
    /// Gives up all logs of `volume` for which `keeps` returns `false`, and returns their number.
    /// The caller is the owner, and `keeps` knows every log that has a name, and that of the
    /// namespace. Logs that were created under `epoch` after the call began are kept even if
    /// `keeps` returns `false` for them. Without this call, a log would stay for ever if its owner
    /// died before it recorded the first layout.
    fn release_strays(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        keeps: &dyn Fn(LogId) -> bool,
    ) -> Result<u64>;
    /// Gives up all logs of `volume`, because the volume is being removed, and returns their
    /// number. Unlike [`Self::release_strays`], it fails if a node may still hold a log, because no
    /// later owner would release it. Errors: `Busy` with the node that does not answer; `Fenced`
    /// for an old epoch.
    fn release_volume(&self, volume: VolumeId, epoch: Epoch) -> Result<u64>;
}
