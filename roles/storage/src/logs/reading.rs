//! Reads of an extent: requests of clients, checks of the scrub, and bytes that the node writes
//! anew.
//!
//! A read finds the places of its bytes under the lock of the extent, and reads the files without
//! it. Bytes that do not have their checksums are read a second time. If that fails as well, the
//! extent is damaged from there on.
//!
//! Invariants:
//! 1. Every returned byte had its checksum.
//! 2. Only bytes that were read and are wrong, and files that are missing or too short, count as
//!    damage. Another error of a file is returned, and is no evidence of damage.
//! 3. One read touches one device, so that a hung device does not hold up reads from other devices.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a read that finds damage returns the bytes before it, or is refused as damaged.
//! Cost: a read begins at most 64 KiB and one group before its first byte.

use std::ops::Range;
use std::path::PathBuf;

use archipelago_base::{Epoch, Error};
use archipelago_env::{IoContext, IoPurpose};
use archipelago_store::nodes::wire::envelope::PAYLOAD_BYTES_MAX;
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy};

use super::LogEnv;
use super::extent::{Extent, ExtentState, not_there};
use super::groups::{GroupPlace, GroupReader, GroupStep, PartSource};
use super::part::{Part, PartWriter, index_of};
use crate::answer::Refusal;
use crate::identity::DeviceId;

/// The bytes of a read by parts.
#[derive(Debug)]
pub(super) struct ReadPlan {
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

/// Offset at which the bytes of a part end although the part should have more.
#[derive(Debug)]
struct FoundDamage {
    number: Epoch,
    path: PathBuf,
    at: GroupPlace,
}

impl Extent {
    /// Reads the bytes of `range` that the extent has, up to the limit of an answer, and as far as
    /// they lie on one device.
    pub(crate) fn read(&self, env: &LogEnv, range: Range<u64>) -> Result<Vec<u8>, Refusal> {
        let plan = self.lock().plan_read(env, self.at, range)?;
        let mut bytes = Vec::with_capacity(plan.bytes as usize);
        for piece in &plan.pieces {
            let Some(damage) = self.read_piece(env, &plan, piece, &mut bytes)? else { continue };
            if !self.has_part(damage.number) {
                let text = format!("extent {} was sealed during the read", self.at);
                return Err(Refusal::new(RefusalWhy::Busy, text));
            }
            self.note_found(env, &damage);
            if bytes.is_empty() {
                let text = format!(
                    "extent {} at offset {}: {} is damaged at byte {}",
                    self.at,
                    damage.at.log,
                    damage.path.display(),
                    damage.at.file
                );
                return Err(Refusal::new(RefusalWhy::Damaged, text));
            }
            break;
        }
        env.counters.note_read(plan.context.class, bytes.len() as u64);
        Ok(bytes)
    }

    /// The device of the bytes at `offset`, without waiting for the lock. If a request holds it,
    /// the device of the newest bytes.
    pub(crate) fn device_at(&self, offset: u64) -> Option<DeviceId> {
        let in_part = self.try_lock().and_then(|state| {
            let behind = state.parts.partition_point(|part| part.start <= offset);
            Some(state.parts.get(behind.checked_sub(1)?)?.device.id)
        });
        in_part.or_else(|| self.device())
    }

    /// The range of the log that is durable on the node. `None` if the node does not have the
    /// extent, knows that it is damaged, or uses it right now.
    pub(super) fn durable_range(&self) -> Option<Range<u64>> {
        let state = self.try_lock()?;
        let record = state.record.as_ref().filter(|record| record.damaged_from.is_none())?;
        Some(record.start..state.synced.max(record.start))
    }

    /// Appends the bytes of a piece to `bytes`. A second read distinguishes a fault of the transfer
    /// from damage on the device.
    fn read_piece(
        &self,
        env: &LogEnv,
        plan: &ReadPlan,
        piece: &ReadPiece,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<FoundDamage>, Refusal> {
        let place = match piece.place {
            Some(place) => place,
            None => self.load_index(env, plan, piece)?,
        };
        let before = bytes.len();
        let mut end = place;
        for _ in 0..2 {
            bytes.truncate(before);
            let source = PartSource::open(&*env.fs, &piece.path, plan.context)?;
            let reader = GroupReader::new(&source, self.at, place);
            let mut reader = reader.ignoring_checksums(env.sabotage.no_crc());
            if append_range(&mut reader, &piece.range, bytes)? {
                return Ok(None);
            }
            end = reader.place();
        }
        let (number, path) = (piece.number, piece.path.clone());
        Ok(Some(FoundDamage { number, path, at: end }))
    }

    fn note_found(&self, env: &LogEnv, damage: &FoundDamage) {
        env.counters.note_damage(1);
        let path = damage.path.display();
        tracing::error!(extent = %self.at, offset = damage.at.log, %path, "stored bytes of a log are damaged");
        self.lock().note_damage(env, self.at, damage.at.log);
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
        let mut state = self.lock();
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
        self.lock().parts.iter().any(|part| part.number == number)
    }
}

impl ExtentState {
    /// Finds the places of `range`, as far as the extent has it on one device.
    fn plan_read(
        &mut self,
        env: &LogEnv,
        at: ExtentAt,
        range: Range<u64>,
    ) -> Result<ReadPlan, Refusal> {
        let record = self.record.as_ref().ok_or_else(|| not_there(at))?;
        let context = IoContext::new(record.class, IoPurpose::Recovery);
        let end =
            range.end.min(self.written).min(range.start.saturating_add(PAYLOAD_BYTES_MAX as u64));
        if range.start < record.start || range.start > range.end {
            let text = format!(
                "extent {at} begins at {}; bytes {}..{} were asked for",
                record.start, range.start, range.end
            );
            return Err(Refusal::new(RefusalWhy::Malformed, text));
        }
        self.write_out(env, at)?;
        let ends = self.parts.iter().skip(1).map(|part| part.start).chain([self.written]);
        let pieces = self.parts.iter().zip(ends).filter_map(|(part, part_end)| {
            let range = range.start.max(part.start)..end.min(part_end);
            (range.start < range.end).then(|| (part.device.id, ReadPiece::of(part, range)))
        });
        let pieces: Vec<(DeviceId, ReadPiece)> = pieces.collect();
        let device = pieces.first().map(|(device, _)| *device);
        let on_device = pieces.into_iter().take_while(|(id, _)| Some(*id) == device);
        let pieces: Vec<ReadPiece> = on_device.map(|(_, piece)| piece).collect();
        let bytes = pieces.iter().map(|piece| piece.range.end - piece.range.start).sum();
        Ok(ReadPlan { context, bytes, pieces })
    }

    /// Brings bytes into the file that the file system keeps elsewhere.
    fn write_out(&mut self, env: &LogEnv, at: ExtentAt) -> Result<(), Refusal> {
        let writer = self.writer.as_ref().filter(|writer| writer.has_unwritten_bytes());
        let Some(sync) = writer.map(PartWriter::sync_handle) else { return Ok(()) };
        sync.sync(&*env.fs).map_err(|error| {
            self.note_lost_bytes(env, at, &error);
            Refusal::from(error)
        })
    }

    /// Reads a range that lies before the written end, for bytes that are written anew. The caller
    /// holds the lock, so no part changes meanwhile. Refused if a byte is damaged.
    pub(super) fn read_own(
        &mut self,
        env: &LogEnv,
        at: ExtentAt,
        range: Range<u64>,
    ) -> Result<Vec<u8>, Refusal> {
        let plan = self.plan_read(env, at, range.clone())?;
        let mut bytes = Vec::with_capacity(plan.bytes as usize);
        for piece in &plan.pieces {
            let source = PartSource::open(&*env.fs, &piece.path, plan.context)?;
            let place = piece.place.unwrap_or_else(|| GroupPlace::first(piece.start));
            let mut reader = GroupReader::new(&source, at, place);
            if !append_range(&mut reader, &piece.range, &mut bytes)? {
                break;
            }
        }
        if bytes.is_empty() && range.start < range.end {
            let text = format!("extent {at}: its bytes at {} cannot be read back", range.start);
            return Err(Refusal::new(RefusalWhy::Damaged, text));
        }
        Ok(bytes)
    }
}

impl ReadPiece {
    fn of(part: &Part, range: Range<u64>) -> Self {
        let place = part.index.is_some().then(|| part.place_before(range.start));
        Self { number: part.number, path: part.path.clone(), start: part.start, place, range }
    }
}

/// Appends the bytes of `range` to `bytes`. Returns `false` if the part does not have all of them.
fn append_range(
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
