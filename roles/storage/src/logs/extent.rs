//! A replica of an extent on this node: appends, syncs, fences and reads.
//!
//! [`Logs`](super::Logs) owns the extents. The puts of a recovery and seals are in
//! [`super::sealing`], reads in [`super::reading`].
//!
//! Invariants:
//! 1. The bytes of an extent are a prefix of the bytes that its only writer sent. An append begins
//!    at or before the written end, and only its bytes behind that end are written.
//! 2. An append under an epoch below the promised one is refused, also if a fence is promised while
//!    the append waits. The epoch is compared under the lock under which a fence reads the length.
//! 3. An extent that is in limbo, damaged or sealed takes no appends.
//! 4. `synced` ≤ `written`. The bytes before `written` survive a kill of the process, and those
//!    before `synced` a power loss. After a failed sync, the bytes behind `synced` are durable only
//!    when they were written anew.
//! 5. The record is durable before the first append is answered, and names every part with bytes
//!    that count.
//! 6. A failed write of the record leaves the state in memory as it was. The files of both records
//!    then stay until the node opens again, because either record may be found.
//! 7. The length of a damaged replica is never given as that of a whole one.
//!
//! Thread-safety: any thread may call any method. The lock of the extent guards its state. A sync
//! runs without the lock, and reads hold it only to find the places of bytes. The device and the
//! figures of a report are read without waiting for the lock, which a hung device may hold.
//! Failure: after a failed append the extent takes no more bytes until it is sealed or the node
//! restarts. A failed sync may have lost bytes, so it puts the extent into limbo.
//! Cost: an append is one checksum and one `write`. The first append also creates a file and syncs
//! the metadata.

use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Epoch, Error, ErrorKind};
use archipelago_env::FileClass;
use archipelago_store::VolumeId;
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, SealedExtent, Stamp, StoreMessage};
use parking_lot::{Mutex, MutexGuard};

use super::marks::{DurableMark, SyncMark};
use super::part::{Group, Part, PartWriter};
use super::record::{ExtentRecord, PartRecord};
use super::sealing::StagedPart;
use super::{LogEnv, NewPart};
use crate::answer::Refusal;
use crate::identity::DeviceId;

/// A request to append to an extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendRequest<'a> {
    /// Volume and epoch of the writer.
    pub(crate) stamp: Stamp,
    /// Class of the file.
    pub(crate) class: FileClass,
    /// Offset at which the extent begins.
    pub(crate) extent_start: u64,
    /// Offset of the first byte.
    pub(crate) start: u64,
    /// The bytes of the log.
    pub(crate) bytes: &'a [u8],
    /// Device of a new part; `None` for the one with most room.
    pub(crate) device: Option<DeviceId>,
    /// Offset at which the copy of a repair will end; `None` for all other requests.
    pub(crate) copy_end: Option<u64>,
}

/// Progress of a replica of an extent, as offsets in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Offset through which the bytes survive a kill.
    pub(crate) written: u64,
    /// Offset through which they survive power loss.
    pub(crate) synced: u64,
}

impl From<Progress> for StoreMessage {
    fn from(progress: Progress) -> Self {
        let Progress { written, synced } = progress;
        Self::Progress { written, synced }
    }
}

/// A replica of an extent.
#[derive(Debug)]
pub(crate) struct Extent {
    /// Log and number of the extent.
    pub(crate) at: ExtentAt,
    /// Volume of its log.
    pub(crate) volume: VolumeId,
    state: Mutex<ExtentState>,
    pub(super) mark: DurableMark,
    /// Device of the last part; 0 if there is none.
    device: AtomicU64,
    /// Summary of the extent in the last report.
    reported: Mutex<Option<ExtentSummary>>,
}

/// The state of an extent, which its lock guards.
#[derive(Debug, Default)]
pub(super) struct ExtentState {
    /// The durable record; `None` before the extent is created and after it is removed.
    pub(super) record: Option<ExtentRecord>,
    /// The parts of the record.
    pub(super) parts: Vec<Part>,
    pub(super) written: u64,
    pub(super) synced: u64,
    /// Offset through which the bytes were durable when the node opened. If the opening found fewer
    /// bytes, the replica is damaged.
    pub(super) durable_end: u64,
    /// The writer of the last part, once this process has appended.
    pub(super) writer: Option<PartWriter>,
    /// Bytes that a recovery has put and not sealed.
    pub(super) staged: Option<StagedPart>,
    /// Reason for which the extent takes no more bytes.
    pub(super) failure: Option<String>,
    /// Whether the record in memory is newer than the one that was written last.
    pub(super) is_unkept: bool,
    /// Whether a write of the record failed, so that an opening may find another record than the
    /// one in memory, with other files.
    pub(super) keeps_files: bool,
    pub(super) is_removed: bool,
}

/// An extent as the opening of the node found it.
#[derive(Debug)]
pub(crate) struct FoundExtent {
    /// The durable record.
    pub(crate) record: ExtentRecord,
    /// Parts of the extent, in order.
    pub(crate) parts: Vec<Part>,
    /// Offset after the longest prefix with valid checksums.
    pub(crate) valid_end: u64,
    /// Offset through which the bytes are durable.
    pub(crate) synced: u64,
    /// Offset through which the metadata say that bytes were durable, even if they are lost.
    pub(crate) durable_end: u64,
    /// The mark that is durable.
    pub(crate) mark: SyncMark,
}

/// Summary of an extent for the status of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentSummary {
    /// Class of the file.
    pub(crate) class: FileClass,
    /// Epoch of the request that created the extent.
    pub(crate) epoch: Epoch,
    /// Bytes of the log.
    pub(crate) log_bytes: u64,
    /// Bytes of the files.
    pub(crate) file_bytes: u64,
    /// Whether it takes no more bytes.
    pub(crate) is_sealed: bool,
    /// Whether unsynced bytes may be lost.
    pub(crate) is_in_limbo: bool,
    /// Whether durable bytes are damaged or missing.
    pub(crate) is_damaged: bool,
}

impl Extent {
    /// An extent that the node does not have yet.
    pub(crate) fn absent(at: ExtentAt, volume: VolumeId) -> Self {
        Self {
            at,
            volume,
            state: Mutex::default(),
            mark: DurableMark::default(),
            device: AtomicU64::new(0),
            reported: Mutex::default(),
        }
    }

    /// An extent that the opening of the node found.
    pub(crate) fn found(at: ExtentAt, found: FoundExtent) -> Self {
        let FoundExtent { record, parts, valid_end, synced, durable_end, mark } = found;
        let volume = record.volume;
        let state = ExtentState {
            record: Some(record),
            parts,
            written: valid_end,
            synced,
            durable_end,
            ..ExtentState::default()
        };
        let extent = Self {
            state: Mutex::new(state),
            mark: DurableMark::found(mark),
            ..Self::absent(at, volume)
        };
        extent.note_device(&extent.state.lock());
        extent
    }

    /// The state, for a read or a change that no epoch guards.
    pub(super) fn lock(&self) -> MutexGuard<'_, ExtentState> {
        self.state.lock()
    }

    /// The state; `None` if another thread has the lock.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, ExtentState>> {
        self.state.try_lock()
    }

    /// Notes the device of the last part, so that a request finds it without the lock.
    pub(super) fn note_device(&self, state: &ExtentState) {
        let device = state.parts.last().map_or(0, |part| part.device.id.0);
        self.device.store(device, Ordering::Relaxed);
    }

    /// The state, for a request under `stamp`, whose epoch is promised. Refused if a later epoch
    /// was promised meanwhile.
    pub(super) fn lock_for(
        &self,
        env: &LogEnv,
        stamp: Stamp,
    ) -> Result<MutexGuard<'_, ExtentState>, Refusal> {
        if stamp.volume != self.volume {
            let text = format!(
                "extent {} belongs to volume {}, and the request to volume {}",
                self.at, self.volume, stamp.volume
            );
            return Err(Refusal::new(RefusalWhy::Malformed, text));
        }
        let mut state = self.state.lock();
        env.epochs.of(stamp.volume).check(stamp)?;
        if state.is_removed {
            return Err(not_there(self.at));
        }
        state.keep_again(env, self.at);
        Ok(state)
    }

    /// Appends bytes, and creates the extent if the node does not have it. Bytes that the extent
    /// has already are not written again.
    pub(crate) fn append(
        &self,
        env: &LogEnv,
        request: &AppendRequest<'_>,
    ) -> Result<Progress, Refusal> {
        let mut state = self.lock_for(env, request.stamp)?;
        let at = self.at;
        let creation = Creation::of(request);
        state.check_place(at, &creation, request.start)?;
        if state.record.is_none() {
            env.refuse_removed(at, request.stamp)?;
            match request.bytes {
                [] => state.create(env, at, &creation)?,
                _ => state.create_with_part(env, at, &creation)?,
            }
            self.note_device(&state);
        }
        state.check_appendable(at)?;
        let Some(skip) = state.written.checked_sub(request.start) else {
            return Err(out_of_order(at, state.written, request.start));
        };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(request.bytes.len());
        let bytes = &request.bytes[skip..];
        if !bytes.is_empty() {
            state.write(env, at, request, bytes)?;
            self.note_device(&state);
            env.counters.note_write(request.class, bytes.len() as u64);
        }
        Ok(state.progress())
    }

    /// Progress that a sync of all present bytes has to reach. Refused in limbo, because the node
    /// does not know which bytes were lost.
    pub(crate) fn begin_sync(&self, env: &LogEnv, stamp: Stamp) -> Result<Progress, Refusal> {
        let state = self.lock_for(env, stamp)?;
        let record = state.record.as_ref().ok_or_else(|| not_there(self.at))?;
        check_whole(self.at, record)?;
        Ok(state.progress())
    }

    /// Makes the bytes before `target` survive power loss, if the extent still has them.
    pub(crate) fn sync(&self, env: &LogEnv, target: u64) -> Result<Progress, Refusal> {
        let (sync, class, mark) = {
            let state = self.state.lock();
            let Some(record) = state.record.as_ref().filter(|_| !state.is_removed) else {
                return Err(not_there(self.at));
            };
            let is_synced = state.synced >= target.min(state.written);
            if !is_synced {
                check_sure(self.at, record, target)?;
            }
            match (&state.writer, state.parts.last()) {
                (Some(writer), Some(part)) if !is_synced => {
                    let mark = SyncMark { part: part.number, end: state.written };
                    (writer.sync_handle(), record.class, mark)
                }
                _ => return Ok(state.progress()),
            }
        };
        env.counters.note_sync();
        if let Err(error) = sync.sync(&*env.fs) {
            self.state.lock().note_lost_bytes(env, self.at, &error);
            return Err(error.into());
        }
        self.mark.advance(env, self.at, class, mark)?;
        let mut state = self.state.lock();
        if let Some(record) = &state.record {
            check_sure(self.at, record, mark.end.min(target))?;
        }
        // A seal may have cut the extent meanwhile.
        state.synced = state.synced.max(mark.end.min(state.written));
        Ok(state.progress())
    }

    /// The answer to a fence or an inspection. The caller has promised the epoch of a fence before.
    pub(crate) fn replica(&self) -> StoreMessage {
        let state = self.state.lock();
        let Some(record) = &state.record else { return no_replica() };
        let (valid_end, synced, sealed) = (state.sound_end(), state.synced, record.sealed);
        match record.damaged_from {
            Some(_) => StoreMessage::ReplicaDamaged { valid_end, synced, sealed },
            None => {
                let is_in_limbo = record.is_in_limbo;
                StoreMessage::ReplicaIs { valid_end, synced, sealed, is_in_limbo }
            }
        }
    }

    /// Summary of the extent; `None` if the node does not have the extent.
    pub(crate) fn summary(&self) -> Option<ExtentSummary> {
        self.state.lock().summary()
    }

    /// Summary of the extent for a report, which does not wait for a request that a slow device
    /// holds up. The report then repeats the summary of the last report.
    pub(crate) fn recent_summary(&self) -> Option<ExtentSummary> {
        let mut reported = self.reported.lock();
        if let Some(state) = self.state.try_lock() {
            *reported = state.summary();
        }
        *reported
    }

    /// Description of the extent for a repair, if it is sealed and has all bytes before its end.
    pub(crate) fn sealed(&self) -> Option<SealedExtent> {
        let state = self.state.lock();
        let record =
            state.record.as_ref().filter(|it| !it.is_in_limbo && it.damaged_from.is_none())?;
        let end = record.sealed.filter(|end| state.written >= *end)?;
        let (at, volume, class, start) = (self.at, self.volume, record.class, record.start);
        Some(SealedExtent { at, volume, class, start, end })
    }

    /// Device of the last part, without waiting for the lock.
    pub(crate) fn device(&self) -> Option<DeviceId> {
        let device = self.device.load(Ordering::Relaxed);
        (device != 0).then_some(DeviceId(device))
    }

    /// Whether the node does not have the extent.
    pub(crate) fn is_absent(&self) -> bool {
        self.state.lock().record.is_none()
    }

    /// Withdraws an extent that the node does not have from all requests. Returns `false` if the
    /// node has it by now, or if another request has the lock. The call does not wait for that
    /// lock, because the caller holds the lock of all extents.
    pub(crate) fn end_if_absent(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        state.is_removed |= state.record.is_none();
        state.is_removed
    }

    /// Syncs the extent at the end of the node, and takes no more bytes. Returns the mark of an
    /// open extent. An extent whose sync has failed before is left as it is: its limbo is durable.
    pub(crate) fn close(&self, env: &LogEnv) -> Result<Option<SyncMark>, Error> {
        let mut state = self.state.lock();
        state.discard_staged(env);
        state.keep_again(env, self.at);
        if state.is_unkept {
            let text = format!("extent {}: its record is not durable", self.at);
            return Err(Error::new(ErrorKind::Io, text));
        }
        state.failure.get_or_insert_with(|| "the node is closed".to_owned());
        let is_sure = state.record.as_ref().is_some_and(|record| record.unsure_from.is_none());
        let Some(writer) = state.writer.as_mut().filter(|_| is_sure) else { return Ok(None) };
        let synced = writer.sync_handle().sync(&*env.fs).and_then(|()| writer.finish());
        if let Err(error) = synced {
            state.note_lost_bytes(env, self.at, &error);
            return Err(error);
        }
        state.synced = state.written;
        let end = state.written;
        Ok(state.parts.last().map(|part| SyncMark { part: part.number, end }))
    }

    /// Withdraws the extent from all requests, and returns its parts. The caller removes their
    /// files.
    pub(crate) fn take_away(&self) -> Vec<Part> {
        let mut state = self.state.lock();
        state.is_removed = true;
        state.record = None;
        state.writer = None;
        let staged = state.staged.take().map(StagedPart::into_part);
        state.parts.drain(..).chain(staged).collect()
    }
}

/// Parameters with which a request creates an extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Creation {
    pub(super) stamp: Stamp,
    pub(super) class: FileClass,
    /// Offset at which the extent begins.
    pub(super) extent_start: u64,
    /// Device of the first part; `None` for the one with most room.
    pub(super) device: Option<DeviceId>,
}

impl Creation {
    pub(super) fn of(request: &AppendRequest<'_>) -> Self {
        let AppendRequest { stamp, class, extent_start, device, .. } = *request;
        Self { stamp, class, extent_start, device }
    }

    /// The record of the new extent, without parts.
    fn record(&self) -> ExtentRecord {
        ExtentRecord {
            volume: self.stamp.volume,
            class: self.class,
            epoch: self.stamp.epoch,
            start: self.extent_start,
            sealed: None,
            is_in_limbo: false,
            damaged_from: None,
            unsure_from: None,
            parts: Vec::new(),
        }
    }
}

impl ExtentState {
    pub(super) fn progress(&self) -> Progress {
        Progress { written: self.written, synced: self.synced }
    }

    /// Offset after the bytes that are not known to be damaged.
    pub(super) fn sound_end(&self) -> u64 {
        let damaged_from = self.record.as_ref().and_then(|record| record.damaged_from);
        self.written.min(damaged_from.unwrap_or(u64::MAX))
    }

    fn summary(&self) -> Option<ExtentSummary> {
        let record = self.record.as_ref()?;
        Some(ExtentSummary {
            class: record.class,
            epoch: record.epoch,
            log_bytes: self.written.saturating_sub(record.start),
            file_bytes: self.parts.iter().map(|part| part.file_bytes).sum(),
            is_sealed: record.sealed.is_some(),
            is_in_limbo: record.is_in_limbo,
            is_damaged: record.damaged_from.is_some(),
        })
    }

    /// Refuses a request whose first byte at `start` does not fit the begin of the extent.
    pub(super) fn check_place(
        &self,
        at: ExtentAt,
        creation: &Creation,
        start: u64,
    ) -> Result<(), Refusal> {
        let begins = creation.extent_start;
        match &self.record {
            Some(record) if record.start != begins || start < begins => {
                let text = format!(
                    "extent {at} begins at {}; the request says {begins} and has bytes from \
                     {start} on",
                    record.start
                );
                Err(Refusal::new(RefusalWhy::Malformed, text))
            }
            None if start != begins => {
                let text = format!(
                    "extent {at} begins at {begins}, and this node does not have its bytes before \
                     {start}"
                );
                Err(Refusal::new(RefusalWhy::NotThere, text))
            }
            _ => Ok(()),
        }
    }

    /// Makes a durable record for an extent that the node does not have.
    pub(super) fn create(
        &mut self,
        env: &LogEnv,
        at: ExtentAt,
        creation: &Creation,
    ) -> Result<(), Refusal> {
        let record = creation.record();
        let begins = record.start;
        self.keep(env, at, record)?;
        (self.written, self.synced) = (begins, begins);
        Ok(())
    }

    /// Makes a durable record with a first part, which costs one sync.
    fn create_with_part(
        &mut self,
        env: &LogEnv,
        at: ExtentAt,
        creation: &Creation,
    ) -> Result<(), Refusal> {
        let record = creation.record();
        let begins = record.start;
        let Creation { stamp, device, .. } = *creation;
        let new = NewPart { at, epoch: stamp.epoch, start: begins, device };
        self.begin_part(env, new, record)?;
        (self.written, self.synced) = (begins, begins);
        Ok(())
    }

    fn check_appendable(&self, at: ExtentAt) -> Result<(), Refusal> {
        let Some(record) = &self.record else { return Err(not_there(at)) };
        if let Some(end) = record.sealed {
            let text = format!("extent {at} is sealed at {end}");
            return Err(Refusal::new(RefusalWhy::Sealed, text));
        }
        check_whole(at, record)?;
        match &self.failure {
            None => Ok(()),
            Some(failure) => {
                let text = format!("extent {at} takes no more bytes: {failure}");
                Err(Refusal::new(RefusalWhy::Failed, text))
            }
        }
    }

    /// Writes a group at the end.
    fn write(
        &mut self,
        env: &LogEnv,
        at: ExtentAt,
        request: &AppendRequest<'_>,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        if self.writer.is_none()
            && let Some(record) = self.record.clone()
        {
            let (epoch, device) = (request.stamp.epoch, request.device);
            let new = NewPart { at, epoch, start: self.written, device };
            self.begin_part(env, new, record)?;
        }
        let (Some(writer), Some(part)) = (&mut self.writer, self.parts.last_mut()) else {
            return Err(not_there(at));
        };
        let group = Group { at, offset: self.written, bytes };
        match writer.append(part, group) {
            Ok(()) => {
                self.written += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.failure = Some(error.to_string());
                Err(error.into())
            }
        }
    }

    /// Begins the first part, or the next one after a restart. It becomes durable in `record`.
    fn begin_part(
        &mut self,
        env: &LogEnv,
        new: NewPart,
        mut record: ExtentRecord,
    ) -> Result<(), Refusal> {
        let (writer, part) = env.create_part(new, &record)?;
        record.parts.retain(|part| part.start < new.start);
        record.parts.push(PartRecord { number: part.number, start: new.start });
        // After a failure the new file stays, because an opening may find the record that names it.
        self.keep(env, new.at, record)?;
        self.replace_parts_from(env, part);
        self.writer = Some(writer);
        Ok(())
    }

    /// Puts `part` in place of all parts that do not start before it.
    pub(super) fn replace_parts_from(&mut self, env: &LogEnv, part: Part) {
        let kept = self.parts.partition_point(|before| before.start < part.start);
        for gone in self.parts.split_off(kept) {
            self.discard(env, gone);
        }
        self.parts.push(part);
    }

    /// Removes the file of a part that the record does not name any more.
    pub(super) fn discard(&self, env: &LogEnv, part: Part) {
        if !self.keeps_files {
            part.discard(&*env.fs);
        }
    }

    /// Makes a record durable, and takes it over. After a failure the old record stays in memory.
    pub(super) fn keep(
        &mut self,
        env: &LogEnv,
        at: ExtentAt,
        record: ExtentRecord,
    ) -> Result<(), Error> {
        match env.keep(at, &record) {
            Ok(()) => {
                self.record = Some(record);
                (self.is_unkept, self.keeps_files) = (false, false);
                Ok(())
            }
            Err(error) => {
                self.keeps_files = true;
                // An opening may find the refused record, so the present one is written again.
                self.is_unkept = self.record.is_some();
                Err(error)
            }
        }
    }

    /// Writes the record again if that failed before.
    pub(super) fn keep_again(&mut self, env: &LogEnv, at: ExtentAt) {
        if let (true, Some(record)) = (self.is_unkept, &self.record) {
            match env.keep(at, record) {
                Ok(()) => (self.is_unkept, self.keeps_files) = (false, false),
                Err(error) => {
                    tracing::error!(extent = %at, %error, "the record of an extent is not durable");
                }
            }
        }
    }

    /// Puts the extent into limbo after a failed sync, which may have lost bytes.
    pub(super) fn note_lost_bytes(&mut self, env: &LogEnv, at: ExtentAt, error: &Error) {
        tracing::error!(extent = %at, %error, "a sync of a log failed; unsynced bytes may be lost");
        self.failure.get_or_insert_with(|| error.to_string());
        let synced = self.synced;
        let Some(record) = &mut self.record else { return };
        record.is_in_limbo = !env.sabotage.no_limbo();
        record.unsure_from = Some(record.unsure_from.map_or(synced, |from| from.min(synced)));
        self.is_unkept = true;
        self.keep_again(env, at);
    }

    /// Notes that stored bytes at `offset` are damaged, durably. The extent takes no more bytes
    /// until a recovery or a repair has put them anew.
    pub(super) fn note_damage(&mut self, env: &LogEnv, at: ExtentAt, offset: u64) {
        let is_news = offset < self.sound_end();
        let Some(record) = self.record.as_mut().filter(|_| is_news) else { return };
        record.damaged_from = Some(offset);
        self.failure.get_or_insert_with(|| format!("its bytes at {offset} are damaged"));
        self.is_unkept = true;
        self.keep_again(env, at);
    }
}

pub(super) fn not_there(at: ExtentAt) -> Refusal {
    Refusal::new(RefusalWhy::NotThere, format!("this node has no extent {at}"))
}

/// Refuses bytes for an extent of which the node may have lost some.
fn check_whole(at: ExtentAt, record: &ExtentRecord) -> Result<(), Refusal> {
    if let Some(offset) = record.damaged_from {
        let text = format!("extent {at}: this node has lost durable bytes from {offset} on");
        return Err(Refusal::new(RefusalWhy::Damaged, text));
    }
    if record.is_in_limbo {
        let text = format!("extent {at}: this node may have lost unsynced bytes of it");
        return Err(Refusal::new(RefusalWhy::InLimbo, text));
    }
    Ok(())
}

/// Refuses to call bytes before `end` durable if a sync of them has failed.
fn check_sure(at: ExtentAt, record: &ExtentRecord, end: u64) -> Result<(), Refusal> {
    match record.unsure_from {
        Some(from) if from < end => {
            let text = format!("extent {at}: a sync failed, and bytes from {from} on may be lost");
            Err(Refusal::new(RefusalWhy::Failed, text))
        }
        _ => Ok(()),
    }
}

pub(super) fn out_of_order(at: ExtentAt, len: u64, start: u64) -> Refusal {
    let text = format!("extent {at} has the bytes before {len}; the request begins at {start}");
    Refusal::new(RefusalWhy::OutOfOrder { len }, text)
}

/// The answer of a node without the extent. If the node ever had bytes of it, the record would
/// exist.
pub(super) fn no_replica() -> StoreMessage {
    StoreMessage::ReplicaIs { valid_end: 0, synced: 0, sealed: None, is_in_limbo: false }
}
