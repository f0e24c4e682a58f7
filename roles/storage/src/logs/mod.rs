//! Extents of logs on this node.
//!
//! [`Logs`] belongs to the node and answers all requests about logs. A log is a sequence of
//! extents, and this node has replicas of some of them. The writer of a log and its recoveries
//! decide which bytes the log has. They combine the answers of several nodes (Terark-DS §4.2.2).
//! This node only keeps its prefix and its promises.
//!
//! | module | purpose |
//! | --- | --- |
//! | `extent` | a replica: appends, syncs, fences, reads |
//! | `reading` | reads, and damage that they find |
//! | `sealing` | bytes that a recovery puts, and seals |
//! | `opening` | the state after a restart: ends of open extents, limbo |
//! | `marks` | the durable ends of extents, which distinguish damage from limbo |
//! | `checking` | checks of stored bytes for the scrub |
//! | `part` | a file of an extent, its index and its writer |
//! | `groups` | reads and checks the groups of a file |
//! | `format` | header of a file, groups, checksums |
//! | `record` | the record of an extent in the metadata |
//!
//! Invariants:
//! 1. A fence is answered after its epoch is durable, and no append of an older epoch follows it.
//! 2. A node that may have lost bytes of an extent says so. It never says that these bytes do not
//!    exist. It distinguishes lost synced bytes from lost unsynced bytes.
//! 3. The node removes an extent only on a request of the volume's owner. A late append does not
//!    bring it back.
//!
//! Thread-safety: any thread may call any method. Requests for different extents run in parallel.
//! Failure: see [`extent`].
//! Cost: an append takes one shared lock and the lock of its extent.

mod checking;
mod extent;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod groups;
mod marks;
mod opening;
mod part;
mod reading;
mod record;
mod sealing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Epoch, Result};
use archipelago_env::FileSystem;
use archipelago_store::nodes::wire::{
    ExtentAt, LogEntry, RefusalWhy, SealedExtent, Stamp, StorageReport, StoreMessage, VolumeSpace,
};
use archipelago_store::{LogId, VolumeId};
use parking_lot::RwLock;

#[cfg(test)]
pub(crate) use self::fuzz::inputs as fuzz_extent_inputs;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::fuzz::{extent as fuzz_extent, mark as fuzz_mark};

pub(crate) use self::checking::RangeCheck;
use self::extent::{AppendRequest, Extent, no_replica};
use self::format::PartHeader;
use self::opening::OpenedExtents;
use self::part::{Part, PartWriter};
use self::record::{ExtentRecord, extent_key};
use self::sealing::SealRequest;
use crate::answer::{Answer, Outcome, Refusal};
use crate::counters::Counters;
use crate::devices::Devices;
use crate::epochs::Epochs;
use crate::identity::DeviceId;
use crate::life::Beginning;
use crate::meta::{Meta, MetaBatch, MetaSpace};
use crate::parts::NodeParts;
use crate::sabotage::Sabotage;
use crate::tombstones::{Grave, Tombstones};

/// Limit of the pairs of volume and class in a report.
const REPORTED_MAX: usize = 1024;
/// Limit of the entries of one list of logs.
const LIST_MAX: usize = 4096;
/// Limit of the entries of one list of sealed extents.
const SEALED_MAX: usize = 1024;

/// Number of replicas of an extent that a node assumes for its share of the log's length. A pool
/// with two domains has only two replicas, which the node does not know.
const REPLICAS: u64 = 3;

/// Parts of the node that extents use.
#[derive(Debug)]
pub(crate) struct LogEnv {
    fs: Arc<dyn FileSystem>,
    devices: Arc<Devices>,
    meta: Arc<Meta>,
    epochs: Arc<Epochs>,
    counters: Arc<Counters>,
    tombstones: Arc<Tombstones>,
    boot_id: [u8; 16],
    /// Number of the next part. The life of the node is its upper half.
    next_part: AtomicU64,
    sabotage: Sabotage,
}

/// A part that is to be created.
#[derive(Clone, Copy, Debug)]
struct NewPart {
    at: ExtentAt,
    /// Epoch of the request.
    epoch: Epoch,
    /// Offset in the log of its first byte.
    start: u64,
    /// Device of the file; `None` for the one with most room.
    device: Option<DeviceId>,
}

impl LogEnv {
    fn new(parts: &NodeParts, beginning: &Beginning) -> Self {
        Self {
            fs: Arc::clone(&parts.fs),
            devices: Arc::clone(&parts.devices),
            meta: Arc::clone(&parts.meta),
            epochs: Arc::clone(&parts.epochs),
            counters: Arc::clone(&parts.counters),
            tombstones: Arc::clone(&parts.tombstones),
            boot_id: beginning.life.boot_id.unwrap_or_default(),
            next_part: AtomicU64::new(beginning.life.number << 32),
            sabotage: parts.options.sabotage,
        }
    }

    /// Refuses to create an extent of a log that was removed.
    fn refuse_removed(&self, at: ExtentAt, stamp: Stamp) -> Result<(), Refusal> {
        let what = format_args!("the log of extent {at}");
        self.tombstones.refuse(stamp, &[Grave::Log], at.log.0, what)
    }

    /// Refuses a repair's copy of an extent whose log was removed, with a reason of its own: the
    /// manager orders no more copies of that log.
    fn refuse_copy_of_removed(&self, at: ExtentAt, stamp: Stamp) -> Result<(), Refusal> {
        self.refuse_removed(at, stamp)
            .map_err(|refusal| Refusal { why: RefusalWhy::RemovedLog, ..refusal })
    }

    /// Makes the record of an extent durable. The record of a sealed extent replaces the mark of
    /// the extent.
    fn keep(&self, at: ExtentAt, record: &ExtentRecord) -> Result<()> {
        let mut batch = MetaBatch::default();
        batch.put(MetaSpace::Extents, &extent_key(at), &record.encode());
        if record.sealed.is_some() {
            batch.remove(MetaSpace::Marks, &extent_key(at));
        }
        self.counters.note_sync();
        self.meta.write(&batch)
    }

    /// Creates the file of a new part on its device, or on the one with most room.
    fn create_part(&self, new: NewPart, record: &ExtentRecord) -> Result<(PartWriter, Part)> {
        let NewPart { at, epoch, start, device } = new;
        let header = PartHeader {
            at,
            volume: record.volume,
            class: record.class,
            epoch,
            extent_start: record.start,
            start,
            part: Epoch(self.next_part.fetch_add(1, Ordering::Relaxed)),
            boot_id: self.boot_id,
        };
        let device = self.devices.chosen(device)?;
        PartWriter::create(&*self.fs, device, &header)
    }
}

/// The rest of an append or a sync: the bytes are in the extent, and a sync must reach `target`.
#[derive(Clone, Debug)]
pub(crate) struct SyncWanted {
    extent: Arc<Extent>,
    target: u64,
}

impl SyncWanted {
    /// The extent to sync.
    pub(crate) fn at(&self) -> ExtentAt {
        self.extent.at
    }

    /// Device of its newest bytes.
    pub(crate) fn device(&self) -> Option<DeviceId> {
        self.extent.device()
    }
}

/// Rest of a request after its first half.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would cost an allocation per append")]
pub(crate) enum LogStep {
    /// The answer, which waits for nothing.
    Answer(Answer),
    /// A sync, and then the answer.
    Sync(SyncWanted),
}

/// The extents of a node.
#[derive(Debug)]
pub(crate) struct Logs {
    env: LogEnv,
    extents: RwLock<BTreeMap<ExtentAt, Arc<Extent>>>,
    /// Devices of which the opening could not read all files.
    unread: Vec<DeviceId>,
}

impl Logs {
    /// Finds the extents of the node. `batch` gets the records of extents that are in limbo from
    /// now on. The caller makes it durable, and then calls [`Logs::clear_tails`].
    pub(crate) fn open(
        parts: &NodeParts,
        beginning: &Beginning,
        batch: &mut MetaBatch,
    ) -> Result<Self> {
        let env = LogEnv::new(parts, beginning);
        let may_have_lost_memory = beginning.may_have_lost_memory;
        let opened = opening::open_extents(&env, may_have_lost_memory, batch)?;
        let OpenedExtents { extents, unread } = opened;
        Ok(Self { env, extents: RwLock::new(extents), unread })
    }

    /// Clears the tails that the file system has kept of logs of the last life. The batch of the
    /// opening must be durable.
    pub(crate) fn clear_tails(&self) -> Result<()> {
        opening::clear_tails(&self.env, &self.unread)
    }

    /// Does the part of an append or a sync that must keep the order of requests.
    pub(crate) fn begin(
        &self,
        message: StoreMessage,
        payload: &[u8],
        device: Option<DeviceId>,
    ) -> Result<LogStep, Refusal> {
        match message {
            StoreMessage::Append { at, stamp, class, extent_start, start, is_synced } => {
                let (bytes, copy_end) = (payload, None);
                let request =
                    AppendRequest { stamp, class, extent_start, start, bytes, device, copy_end };
                check_range(&request)?;
                self.env.epochs.promise(stamp)?;
                let extent = self.get_or_insert(at, stamp.volume);
                let progress =
                    self.forget_if_absent(&extent, extent.append(&self.env, &request))?;
                if is_synced && progress.synced < progress.written {
                    return Ok(LogStep::Sync(SyncWanted { extent, target: progress.written }));
                }
                Ok(LogStep::Answer(StoreMessage::from(progress).into()))
            }
            StoreMessage::SyncLog { at, stamp } => {
                self.env.epochs.promise(stamp)?;
                let extent = self.existing(at)?;
                let progress = extent.begin_sync(&self.env, stamp)?;
                Ok(LogStep::Sync(SyncWanted { extent, target: progress.written }))
            }
            other => self.handle(other, payload, device).map(LogStep::Answer),
        }
    }

    /// Does the rest of an append or a sync.
    pub(crate) fn finish(&self, wanted: &SyncWanted) -> Outcome {
        let progress = wanted.extent.sync(&self.env, wanted.target)?;
        Ok(StoreMessage::from(progress).into())
    }

    /// Answers a request that needs no second half. `device` is that of new files; `None` for the
    /// one with most room.
    pub(crate) fn handle(
        &self,
        message: StoreMessage,
        payload: &[u8],
        device: Option<DeviceId>,
    ) -> Outcome {
        let answer = match message {
            StoreMessage::SealLog { .. } | StoreMessage::PutLog { .. } => {
                self.put_or_seal(message, payload, device, None)?
            }
            StoreMessage::FenceLog { at, stamp } => {
                if !self.env.sabotage.no_fence_reads() {
                    self.env.epochs.promise(stamp)?;
                }
                self.replica(at)
            }
            StoreMessage::InspectLog { at } => self.replica(at),
            StoreMessage::ReadLog { at, start, end } => {
                let payload = self.existing(at)?.read(&self.env, start..end)?;
                return Ok(Answer { message: StoreMessage::LogBytes {}, payload });
            }
            StoreMessage::RemoveLog { log, stamp } => self.remove(log, stamp)?,
            StoreMessage::ListLogs { volume, after } => self.list(volume, after),
            StoreMessage::ListSealed { after } => self.list_sealed(after),
            other => return Err(unsupported(&other)),
        };
        Ok(answer.into())
    }

    /// Answers a put or the seal of a repair, whose copy of an extent ends at `end`.
    pub(crate) fn handle_copy(&self, message: StoreMessage, payload: &[u8], end: u64) -> Outcome {
        Ok(self.put_or_seal(message, payload, None, Some(end))?.into())
    }

    /// Puts bytes of an extent or seals it, for a recovery, or for a repair whose copy ends at
    /// `copy_end`.
    fn put_or_seal(
        &self,
        message: StoreMessage,
        payload: &[u8],
        device: Option<DeviceId>,
        copy_end: Option<u64>,
    ) -> Result<StoreMessage, Refusal> {
        let (extent, outcome) = match message {
            StoreMessage::SealLog { at, stamp, class, extent_start, end } => {
                self.env.epochs.promise(stamp)?;
                let extent = self.get_or_insert(at, stamp.volume);
                let is_copy = copy_end.is_some();
                let request = SealRequest { stamp, class, extent_start, end, device, is_copy };
                let outcome = extent.seal(&self.env, &request);
                (extent, outcome)
            }
            StoreMessage::PutLog { at, stamp, class, extent_start, start } => {
                let bytes = payload;
                let request =
                    AppendRequest { stamp, class, extent_start, start, bytes, device, copy_end };
                check_range(&request)?;
                self.env.epochs.promise(stamp)?;
                let extent = self.get_or_insert(at, stamp.volume);
                let outcome = extent.put(&self.env, &request);
                (extent, outcome)
            }
            other => return Err(unsupported(&other)),
        };
        Ok(self.forget_if_absent(&extent, outcome)?.into())
    }

    fn replica(&self, at: ExtentAt) -> StoreMessage {
        // The epoch was promised before this look-up, so an append that inserts the extent later is
        // refused.
        let extent = self.extents.read().get(&at).cloned();
        extent.map_or_else(no_replica, |extent| extent.replica())
    }

    fn existing(&self, at: ExtentAt) -> Result<Arc<Extent>, Refusal> {
        let extent = self.extents.read().get(&at).cloned();
        extent.ok_or_else(|| extent::not_there(at))
    }

    fn get_or_insert(&self, at: ExtentAt, volume: VolumeId) -> Arc<Extent> {
        if let Some(extent) = self.extents.read().get(&at) {
            return Arc::clone(extent);
        }
        let mut extents = self.extents.write();
        let absent = || Arc::new(Extent::absent(at, volume));
        Arc::clone(extents.entry(at).or_insert_with(absent))
    }

    /// Takes an extent out of the map if a refused request has not created it.
    fn forget_if_absent<T>(
        &self,
        extent: &Arc<Extent>,
        outcome: Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        if outcome.is_err() && extent.is_absent() {
            let mut extents = self.extents.write();
            let is_same = extents.get(&extent.at).is_some_and(|it| Arc::ptr_eq(it, extent));
            if is_same && extent.end_if_absent() {
                extents.remove(&extent.at);
            }
        }
        outcome
    }

    /// The extents of a log on this node.
    fn of_log(&self, log: LogId) -> Vec<Arc<Extent>> {
        let range = ExtentAt { log, extent: 0 }..=ExtentAt { log, extent: u32::MAX };
        self.extents.read().range(range).map(|(_, extent)| Arc::clone(extent)).collect()
    }

    fn remove(&self, log: LogId, stamp: Stamp) -> Result<StoreMessage, Refusal> {
        self.env.epochs.promise(stamp)?;
        let mut batch = MetaBatch::default();
        // A later append finds the tombstone, and the extent of an earlier append is found here.
        self.env.tombstones.bury(stamp, Grave::Log, std::iter::once(log.0), &mut batch);
        let extents = self.of_log(log);
        for extent in &extents {
            drop(extent.lock_for(&self.env, stamp)?);
            batch.remove(MetaSpace::Extents, &extent_key(extent.at));
            batch.remove(MetaSpace::Marks, &extent_key(extent.at));
        }
        // The files are removed after the records. If a crash comes in between, the next start
        // removes the files without a record.
        self.env.counters.note_sync();
        self.env.meta.write(&batch)?;
        for extent in &extents {
            self.extents.write().remove(&extent.at);
            for part in extent.take_away() {
                part.discard(&*self.env.fs);
            }
        }
        Ok(StoreMessage::Done {})
    }

    fn list(&self, volume: VolumeId, after: Option<LogId>) -> StoreMessage {
        let from = after
            .map_or(Bound::Unbounded, |log| Bound::Excluded(ExtentAt { log, extent: u32::MAX }));
        let mut logs: Vec<LogEntry> = Vec::new();
        let extents = self.extents.read();
        for (at, extent) in extents.range((from, Bound::Unbounded)) {
            let Some(summary) = extent.summary().filter(|_| extent.volume == volume) else {
                continue;
            };
            if let Some(last) = logs.last_mut().filter(|last| last.log == at.log) {
                last.epoch = last.epoch.max(summary.epoch);
                continue;
            }
            if logs.len() == LIST_MAX {
                return StoreMessage::Logs { logs, has_more: true };
            }
            logs.push(LogEntry { log: at.log, epoch: summary.epoch });
        }
        StoreMessage::Logs { logs, has_more: false }
    }

    /// The extents that are sealed and whole, for repairs.
    fn list_sealed(&self, after: Option<ExtentAt>) -> StoreMessage {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        // A slow device may hold up an extent, so the lock of the map is not held meanwhile.
        let known: Vec<Arc<Extent>> = {
            let extents = self.extents.read();
            extents.range((from, Bound::Unbounded)).map(|(_, it)| Arc::clone(it)).collect()
        };
        let mut sealed = known.iter().filter_map(|it| it.sealed());
        let extents: Vec<SealedExtent> = sealed.by_ref().take(SEALED_MAX).collect();
        let has_more = sealed.next().is_some();
        StoreMessage::Sealed { extents, has_more }
    }

    /// Device of the newest bytes of an extent, if the node has some. It waits for no device.
    pub(crate) fn device_of(&self, at: ExtentAt) -> Option<DeviceId> {
        let extent = self.extents.read().get(&at).cloned();
        extent?.device()
    }

    /// Device of the bytes of an extent at `offset`. It waits for no device.
    pub(crate) fn device_at(&self, at: ExtentAt, offset: u64) -> Option<DeviceId> {
        let extent = self.extents.read().get(&at).cloned();
        extent?.device_at(offset)
    }

    /// Adds the extents to a report.
    pub(crate) fn report(&self, report: &mut StorageReport) {
        for extent in self.extents.read().values() {
            let Some(summary) = extent.recent_summary() else { continue };
            report.extents += 1;
            report.extents_open += u64::from(!summary.is_sealed);
            let is_whole = !summary.is_in_limbo && !summary.is_damaged;
            report.extents_in_limbo += u64::from(!is_whole);
            let (volume, class) = (extent.volume, summary.class);
            let is_pair = |space: &VolumeSpace| space.volume == volume && space.class == class;
            let at = report.volumes.iter().position(is_pair).unwrap_or_else(|| {
                let none = VolumeSpace { volume, class, objects: 0, bytes: 0, logical_bytes: 0 };
                report.volumes.push(none);
                report.volumes.len() - 1
            });
            let space = &mut report.volumes[at];
            space.objects += 1;
            space.bytes += summary.file_bytes;
            space.logical_bytes += summary.log_bytes / REPLICAS;
        }
        report.volumes.truncate(REPORTED_MAX);
    }

    /// Syncs all extents at the end of the node.
    pub(crate) fn close(&self) -> Result<()> {
        let extents: Vec<_> = self.extents.read().values().cloned().collect();
        let mut batch = MetaBatch::default();
        for extent in &extents {
            if let Some(mark) = extent.close(&self.env)? {
                mark.put(extent.at, &mut batch);
            }
        }
        self.env.meta.apply(&batch)
    }
}

fn unsupported(message: &StoreMessage) -> Refusal {
    let text = format!("{} is no request about logs", message.name());
    Refusal::new(RefusalWhy::Unsupported, text)
}

/// Refuses bytes whose end exceeds the largest offset.
fn check_range(request: &AppendRequest<'_>) -> Result<(), Refusal> {
    if request.start.checked_add(request.bytes.len() as u64).is_some() {
        return Ok(());
    }
    let text = format!("no log has bytes at offset {}", request.start);
    Err(Refusal::new(RefusalWhy::Malformed, text))
}
