//! A replica of an extent on this node: appends, syncs, fences and reads.
//!
//! [`Logs`](super::Logs) owns the extents. The puts of a recovery and seals are in
//! [`super::sealing`].
//!
//! Invariants:
//! 1. The bytes of an extent are a prefix of what its one writer sent: an append begins at or
//!    before the written end, and only what is behind that end is written.
//! 2. An append under an epoch below the promised one is refused, also if a fence is promised while
//!    the append waits. The epoch is compared under the lock under which a fence reads the length.
//! 3. An extent in limbo or sealed takes no appends.
//! 4. `synced` ≤ `written`. The bytes before `written` survive a kill of the process, and those
//!    before `synced` a power loss.
//! 5. The record is durable before the first append is answered, and names every part with bytes
//!    that count.
//!
//! Thread-safety: any thread may call any method. The lock of the extent guards its state. A sync
//! runs without the lock, and reads hold it only to find the places of bytes.
//! Failure: after a failed append the extent takes no more bytes until it is sealed or the node
//! restarts. A failed sync may have lost bytes, so it puts the extent into limbo.
//! Cost: an append is one checksum and one `write`. The first append also creates a file and syncs
//! the metadata.

use std::ops::Range;
use std::path::PathBuf;

use archipelago_base::{Epoch, Error};
use archipelago_env::{FileClass, IoContext, IoPurpose};
use archipelago_store::VolumeId;
use archipelago_store::nodes::wire::envelope::PAYLOAD_BYTES_MAX;
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, SealedExtent, Stamp, StoreMessage};
use parking_lot::{Mutex, MutexGuard};

use super::groups::{GroupPlace, GroupReader, GroupStep, PartSource};
use super::part::{Group, Part, PartWriter, index_of};
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
}

/// How far an extent is.
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
    /// The writer of the last part, once this process has appended.
    pub(super) writer: Option<PartWriter>,
    /// Bytes that a recovery has put and not sealed.
    pub(super) staged: Option<StagedPart>,
    /// Why the extent takes no more bytes.
    pub(super) failure: Option<String>,
    pub(super) is_removed: bool,
}

/// An extent as the opening of the node found it.
#[derive(Debug)]
pub(crate) struct FoundExtent {
    /// The durable record.
    pub(crate) record: ExtentRecord,
    /// Parts of the extent, in order.
    pub(crate) parts: Vec<Part>,
    /// Offset after the longest prefix with valid checksums. All of it is durable.
    pub(crate) valid_end: u64,
}

/// What the status of a node says about an extent.
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
}

impl Extent {
    /// An extent that the node does not have yet.
    pub(crate) fn absent(at: ExtentAt, volume: VolumeId) -> Self {
        Self { at, volume, state: Mutex::default() }
    }

    /// An extent that the opening of the node found.
    pub(crate) fn found(at: ExtentAt, found: FoundExtent) -> Self {
        let FoundExtent { record, parts, valid_end } = found;
        let volume = record.volume;
        let state = ExtentState {
            record: Some(record),
            parts,
            written: valid_end,
            synced: valid_end,
            ..ExtentState::default()
        };
        Self { at, volume, state: Mutex::new(state) }
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
        let state = self.state.lock();
        env.epochs.of(stamp.volume).check(stamp)?;
        if state.is_removed {
            return Err(not_there(self.at));
        }
        Ok(state)
    }

    /// Appends bytes, and creates the extent if the node does not have it. Bytes that it has are
    /// not written again.
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
            match request.bytes {
                [] => state.create(env, at, &creation)?,
                _ => state.create_with_part(env, at, &creation)?,
            }
        }
        state.check_appendable(at)?;
        let Some(skip) = state.written.checked_sub(request.start) else {
            return Err(out_of_order(at, state.written, request.start));
        };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(request.bytes.len());
        let bytes = &request.bytes[skip..];
        if !bytes.is_empty() {
            state.write(env, at, request.stamp.epoch, bytes)?;
            env.counters.note_write(request.class, bytes.len() as u64);
        }
        Ok(state.progress())
    }

    /// What a sync of all bytes has to reach. Refused in limbo, because the node cannot tell what
    /// was lost.
    pub(crate) fn begin_sync(&self, env: &LogEnv, stamp: Stamp) -> Result<Progress, Refusal> {
        let state = self.lock_for(env, stamp)?;
        let record = state.record.as_ref().ok_or_else(|| not_there(self.at))?;
        if record.is_in_limbo {
            return Err(in_limbo(self.at));
        }
        Ok(state.progress())
    }

    /// Makes the bytes before `target` survive power loss, if the extent still has them.
    pub(crate) fn sync(&self, env: &LogEnv, target: u64) -> Result<Progress, Refusal> {
        let (sync, written) = {
            let state = self.state.lock();
            if state.is_removed {
                return Err(not_there(self.at));
            }
            match &state.writer {
                Some(writer) if state.synced < target.min(state.written) => {
                    (writer.sync_handle(), state.written)
                }
                _ => return Ok(state.progress()),
            }
        };
        env.counters.note_sync();
        let result = sync.sync(&*env.fs);
        let mut state = self.state.lock();
        if let Err(error) = result {
            state.note_lost_bytes(env, self.at, &error);
            return Err(error.into());
        }
        // A seal may have cut the extent meanwhile.
        state.synced = state.synced.max(written.min(state.written));
        Ok(state.progress())
    }

    /// What the node has of the extent. The caller has promised the epoch of a fence before.
    pub(crate) fn replica(&self) -> StoreMessage {
        let state = self.state.lock();
        let Some(record) = &state.record else { return no_replica() };
        StoreMessage::ReplicaIs {
            valid_end: state.written,
            synced: state.synced,
            sealed: record.sealed,
            is_in_limbo: record.is_in_limbo,
        }
    }

    /// Reads bytes of the extent: those of `range` that it has, up to the limit of an answer.
    pub(crate) fn read(&self, env: &LogEnv, range: Range<u64>) -> Result<Vec<u8>, Refusal> {
        let plan = self.plan_read(env, range)?;
        let mut bytes = Vec::with_capacity(plan.bytes as usize);
        for piece in &plan.pieces {
            let place = match piece.place {
                Some(place) => place,
                None => self.load_index(env, &plan, piece)?,
            };
            let source = PartSource::open(&*env.fs, &piece.path, plan.context)?;
            let mut reader =
                GroupReader::new(&source, self.at, place).ignoring_checksums(env.sabotage.no_crc());
            if !read_piece(&mut reader, &piece.range, &mut bytes)? {
                if !self.has_part(piece.number) {
                    let text = format!("extent {} was sealed during the read", self.at);
                    return Err(Refusal::new(RefusalWhy::Busy, text));
                }
                env.counters.note_damage(1);
                let at = reader.place();
                tracing::error!(extent = %self.at, offset = at.log, path = %piece.path.display(), "stored bytes of a log are damaged");
                if bytes.is_empty() {
                    let text = format!(
                        "extent {} at offset {}: {} is damaged at byte {}",
                        self.at,
                        at.log,
                        piece.path.display(),
                        at.file
                    );
                    return Err(Refusal::new(RefusalWhy::Damaged, text));
                }
                break;
            }
        }
        env.counters.note_read(plan.context.class, bytes.len() as u64);
        Ok(bytes)
    }

    fn plan_read(&self, env: &LogEnv, range: Range<u64>) -> Result<ReadPlan, Refusal> {
        let state = self.state.lock();
        let record = state.record.as_ref().ok_or_else(|| not_there(self.at))?;
        let context = IoContext::new(record.class, IoPurpose::Recovery);
        let end =
            range.end.min(state.written).min(range.start.saturating_add(PAYLOAD_BYTES_MAX as u64));
        if range.start < record.start || range.start > range.end {
            let text = format!(
                "extent {} begins at {}; bytes {}..{} were asked for",
                self.at, record.start, range.start, range.end
            );
            return Err(Refusal::new(RefusalWhy::Malformed, text));
        }
        if let Some(writer) = &state.writer
            && writer.has_unwritten_bytes()
        {
            writer.sync_handle().sync(&*env.fs)?;
        }
        let ends = state.parts.iter().skip(1).map(|part| part.start).chain([state.written]);
        let pieces = state.parts.iter().zip(ends).filter_map(|(part, part_end)| {
            let range = range.start.max(part.start)..end.min(part_end);
            let place = part.index.is_some().then(|| part.place_before(range.start));
            let piece = ReadPiece {
                number: part.number,
                path: part.path.clone(),
                start: part.start,
                place,
                range,
            };
            (piece.range.start < piece.range.end).then_some(piece)
        });
        let bytes = end.saturating_sub(range.start);
        Ok(ReadPlan { context, bytes, pieces: pieces.collect() })
    }

    /// Reads the index of a part that this process did not write, and keeps it.
    fn load_index(
        &self,
        env: &LogEnv,
        plan: &ReadPlan,
        piece: &ReadPiece,
    ) -> Result<GroupPlace, Refusal> {
        let source = PartSource::open(&*env.fs, &piece.path, plan.context)?;
        let index = index_of(&source, self.at, piece.start)?;
        let mut state = self.state.lock();
        let mut parts = state.parts.iter_mut();
        match parts.find(|part| part.number == piece.number) {
            Some(part) => {
                part.index.get_or_insert(index);
                Ok(part.place_before(piece.range.start))
            }
            None => Err(not_there(self.at)),
        }
    }

    fn has_part(&self, number: Epoch) -> bool {
        self.state.lock().parts.iter().any(|part| part.number == number)
    }

    /// What the status of the node says; `None` if the node does not have the extent.
    pub(crate) fn summary(&self) -> Option<ExtentSummary> {
        let state = self.state.lock();
        let record = state.record.as_ref()?;
        Some(ExtentSummary {
            class: record.class,
            epoch: record.epoch,
            log_bytes: state.written - record.start,
            file_bytes: state.parts.iter().map(|part| part.file_bytes).sum(),
            is_sealed: record.sealed.is_some(),
            is_in_limbo: record.is_in_limbo,
        })
    }

    /// What a repair needs to know of the extent, if it is sealed and has all bytes before its end.
    pub(crate) fn sealed(&self) -> Option<SealedExtent> {
        let state = self.state.lock();
        let record = state.record.as_ref().filter(|record| !record.is_in_limbo)?;
        let end = record.sealed.filter(|end| state.written >= *end)?;
        let (at, volume, class, start) = (self.at, self.volume, record.class, record.start);
        Some(SealedExtent { at, volume, class, start, end })
    }

    /// Device of the last part.
    pub(crate) fn device(&self) -> Option<DeviceId> {
        self.state.lock().parts.last().map(|part| part.device.id)
    }

    /// Whether the node does not have the extent.
    pub(crate) fn is_absent(&self) -> bool {
        self.state.lock().record.is_none()
    }

    /// Takes an extent that the node does not have away from all requests. `false` if the node has
    /// it by now.
    pub(crate) fn end_if_absent(&self) -> bool {
        let mut state = self.state.lock();
        state.is_removed |= state.record.is_none();
        state.is_removed
    }

    /// Syncs the extent at the end of the node, and takes no more bytes.
    pub(crate) fn close(&self, env: &LogEnv) -> Result<(), Error> {
        let mut state = self.state.lock();
        if let Some(staged) = state.staged.take() {
            staged.discard(&*env.fs);
        }
        if let Some(writer) = &mut state.writer {
            writer.sync_handle().sync(&*env.fs)?;
            writer.finish()?;
        }
        state.failure.get_or_insert_with(|| "the node is closed".to_owned());
        Ok(())
    }

    /// Takes the extent away from all requests, and returns its parts, whose files the caller
    /// removes.
    pub(crate) fn take_away(&self) -> Vec<Part> {
        let mut state = self.state.lock();
        state.is_removed = true;
        state.record = None;
        state.writer = None;
        let staged = state.staged.take().map(StagedPart::into_part);
        state.parts.drain(..).chain(staged).collect()
    }
}

/// What a request creates an extent with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Creation {
    pub(super) stamp: Stamp,
    pub(super) class: FileClass,
    /// Offset at which the extent begins.
    pub(super) extent_start: u64,
}

impl Creation {
    pub(super) fn of(request: &AppendRequest<'_>) -> Self {
        let AppendRequest { stamp, class, extent_start, .. } = *request;
        Self { stamp, class, extent_start }
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
            parts: Vec::new(),
        }
    }
}

impl ExtentState {
    pub(super) fn progress(&self) -> Progress {
        Progress { written: self.written, synced: self.synced }
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
        env.keep(at, &record)?;
        (self.written, self.synced) = (record.start, record.start);
        self.record = Some(record);
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
        let new = NewPart { at, epoch: creation.stamp.epoch, start: begins };
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
        if record.is_in_limbo {
            return Err(in_limbo(at));
        }
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
        epoch: Epoch,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        if self.writer.is_none()
            && let Some(record) = self.record.clone()
        {
            let new = NewPart { at, epoch, start: self.written };
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
        if let Err(error) = env.keep(new.at, &record) {
            part.discard(&*env.fs);
            return Err(error.into());
        }
        self.record = Some(record);
        self.replace_parts_from(env, part);
        self.writer = Some(writer);
        Ok(())
    }

    /// Puts `part` in place of all parts that do not start before it.
    pub(super) fn replace_parts_from(&mut self, env: &LogEnv, part: Part) {
        let kept = self.parts.partition_point(|before| before.start < part.start);
        for gone in self.parts.split_off(kept) {
            gone.discard(&*env.fs);
        }
        self.parts.push(part);
    }

    /// Puts the extent into limbo after a failed sync, which may have lost bytes.
    pub(super) fn note_lost_bytes(&mut self, env: &LogEnv, at: ExtentAt, error: &Error) {
        tracing::error!(extent = %at, %error, "a sync of a log failed; unsynced bytes may be lost");
        self.failure.get_or_insert_with(|| error.to_string());
        let Some(record) = &mut self.record else { return };
        record.is_in_limbo = !env.sabotage.no_limbo();
        if let Err(error) = env.keep(at, record) {
            tracing::error!(extent = %at, %error, "the limbo of a log is not durable");
        }
    }
}

/// The bytes of a read by parts.
#[derive(Debug)]
struct ReadPlan {
    context: IoContext,
    bytes: u64,
    pieces: Vec<ReadPiece>,
}

/// A range of the log in one part.
#[derive(Debug)]
struct ReadPiece {
    number: Epoch,
    path: PathBuf,
    /// Offset in the log at which the part starts.
    start: u64,
    /// Place of a group at or before the range; `None` if the part has no index yet.
    place: Option<GroupPlace>,
    range: Range<u64>,
}

/// Appends the bytes of `range` to `bytes`. Returns `false` if the part does not have all of them.
fn read_piece(
    reader: &mut GroupReader<'_>,
    range: &Range<u64>,
    bytes: &mut Vec<u8>,
) -> Result<bool, Error> {
    let mut at = range.start;
    while at < range.end {
        let GroupStep::Group { place, bytes: group, .. } = reader.step()? else {
            return Ok(false);
        };
        let group_end = place.log + group.len() as u64;
        if group_end > at {
            let from = (at - place.log) as usize;
            let to = (range.end.min(group_end) - place.log) as usize;
            bytes.extend_from_slice(&group[from..to]);
            at = group_end;
        }
    }
    Ok(true)
}

pub(super) fn not_there(at: ExtentAt) -> Refusal {
    Refusal::new(RefusalWhy::NotThere, format!("this node has no extent {at}"))
}

fn in_limbo(at: ExtentAt) -> Refusal {
    let text = format!("extent {at}: this node may have lost unsynced bytes of it");
    Refusal::new(RefusalWhy::InLimbo, text)
}

pub(super) fn out_of_order(at: ExtentAt, len: u64, start: u64) -> Refusal {
    let text = format!("extent {at} has the bytes before {len}; the request begins at {start}");
    Refusal::new(RefusalWhy::OutOfOrder { len }, text)
}

/// The answer of a node without the extent. Its record would exist if there had been bytes.
pub(super) fn no_replica() -> StoreMessage {
    StoreMessage::ReplicaIs { valid_end: 0, synced: 0, sealed: None, is_in_limbo: false }
}
