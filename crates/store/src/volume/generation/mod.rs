//! The bytes of one generation of a namespace: header, snapshot, and one frame for each commit.
//! `docs/formats/volume.md` has the tables.
//!
//! [`super::Volume`] writes a generation into a log of its own. It begins a new one at every
//! take-over, and when the log failed or has grown long. Header and snapshot are durable before the
//! register names the log.
//!
//! Invariants:
//! 1. A recovery finds all records of a commit, or none.
//! 2. The commits that a recovery finds are a prefix of those that were submitted.
//! 3. Every checksum covers the identity of the log and the offset, so that bytes of another log or
//!    of another place are damage.
//! 4. A commit that was acknowledged before a later commit was submitted is never taken for a torn
//!    end, because the later frame says so.
//!
//! All functions are pure. Failure: the decoder returns an error or a state for every input.
//! Cost: linear in the bytes. Only after a damaged frame, the decoder tries every offset.

use archipelago_base::checksum::block_crc;
use archipelago_base::codec::{Reader, put_u32, put_u64};
use archipelago_base::{Epoch, Error, ErrorKind, Result};

use super::record::Record;
use super::state::NamespaceState;
use crate::ids::{LogId, VolumeId};

/// First bytes of a generation.
const MAGIC: &[u8; 8] = b"ARCHNAME";
/// Format version of a generation and of its records.
const VERSION: u32 = 1;
/// Length of the header in bytes.
const HEADER_BYTES: usize = 56;
/// Length of a frame before its records, in bytes.
const FRAME_BYTES: usize = 16;
/// Part of a frame that its checksum does not cover: length and checksum, in bytes.
const UNCHECKED_BYTES: usize = 8;
/// Largest length of the records of one frame, in bytes. A longer one is damage.
const RECORDS_BYTES_MAX: usize = 64 << 20;

/// Fields of the header of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GenerationHeader {
    pub(crate) volume: VolumeId,
    /// Number of the generation; a later one of the volume has a larger number.
    pub(crate) number: u64,
    /// Epoch of the owner that wrote it.
    pub(crate) epoch: Epoch,
}

/// The place of a commit in the log of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitPlace {
    pub(crate) log: LogId,
    /// Offset of the commit's frame, which is the length of the log before it.
    pub(crate) offset: u64,
    /// Offset through which the log is known to be acknowledged when the frame is submitted. A
    /// recovery takes damage before it for corruption, and never for a torn end.
    pub(crate) acknowledged: u64,
}

/// A generation that was read back.
#[derive(Debug)]
pub(crate) struct RecoveredGeneration {
    pub(crate) header: GenerationHeader,
    /// State after the last whole commit.
    pub(crate) state: NamespaceState,
    /// Number of bytes through the end of the last whole commit.
    pub(crate) whole_bytes: u64,
    /// Number of bytes after it. No later commit says that they were acknowledged.
    pub(crate) torn_bytes: u64,
    /// Number of whole commits after the snapshot.
    pub(crate) commits: u64,
}

/// Header and snapshot of a new generation: the first bytes of the log `log`. Errors:
/// `InvalidArgument` if the record of a file is too long.
pub(crate) fn encode_generation(
    log: LogId,
    header: &GenerationHeader,
    state: &NamespaceState,
) -> Result<Vec<u8>> {
    let mut out = vec![0; HEADER_BYTES];
    for record in state.snapshot() {
        let place = CommitPlace { log, offset: out.len() as u64, acknowledged: 0 };
        encode_commit(place, std::slice::from_ref(&record), &mut out)?;
    }
    let mut head = MAGIC.to_vec();
    put_u32(&mut head, VERSION);
    head.extend_from_slice(&header.volume.0);
    put_u64(&mut head, header.number);
    put_u64(&mut head, header.epoch.0);
    put_u64(&mut head, out.len() as u64);
    let sum = block_crc(&log.0, 0, &head);
    put_u32(&mut head, sum);
    out[..HEADER_BYTES].copy_from_slice(&head);
    Ok(out)
}

/// Appends the frame of a commit to `out`. Errors: `InvalidArgument` if there are no records, or if
/// they are too long; `out` is as before then.
pub(crate) fn encode_commit(
    place: CommitPlace,
    records: &[Record],
    out: &mut Vec<u8>,
) -> Result<()> {
    let start = out.len();
    out.resize(start + UNCHECKED_BYTES, 0);
    put_u64(out, place.acknowledged);
    records.iter().for_each(|record| record.encode(out));
    let len = out.len() - start - FRAME_BYTES;
    if len == 0 || len > RECORDS_BYTES_MAX {
        out.truncate(start);
        return Err(Error::invalid(format!(
            "{} records of {len} bytes are no commit of a volume; commit between one record and \
             {RECORDS_BYTES_MAX} bytes at a time",
            records.len()
        )));
    }
    seal_frame(place, &mut out[start..]);
    Ok(())
}

/// Fills in length and checksum of a frame.
fn seal_frame(place: CommitPlace, frame: &mut [u8]) {
    let len = (frame.len() - FRAME_BYTES) as u32;
    let (unchecked, checked) = frame.split_at_mut(UNCHECKED_BYTES);
    unchecked[..4].copy_from_slice(&len.to_le_bytes());
    let sum = block_crc(&place.log.0, place.offset, checked);
    unchecked[4..].copy_from_slice(&sum.to_le_bytes());
}

/// Appends a frame with a right checksum around bytes that may be no records.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn frame_bytes(place: CommitPlace, records: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + UNCHECKED_BYTES, 0);
    put_u64(out, place.acknowledged);
    out.extend_from_slice(records);
    seal_frame(place, &mut out[start..]);
}

/// Decodes the recovered bytes of the log `log`. Errors: `Corrupt` if header or snapshot are not
/// whole, if a commit before the acknowledged end is damaged, or if a whole commit contradicts the
/// state; `Unsupported` for another format version.
pub(crate) fn decode_generation(log: LogId, bytes: &[u8]) -> Result<RecoveredGeneration> {
    let (header, snapshot_end) = read_header(log, bytes)?;
    let snapshot = usize::try_from(snapshot_end).ok().and_then(|end| bytes.get(..end));
    let Some(snapshot) = snapshot else {
        return Err(corrupt(log, bytes.len(), "the snapshot is cut off"));
    };
    let mut state = NamespaceState::default();
    let (end, _) = replay(log, snapshot, HEADER_BYTES, &mut state)?;
    if end != snapshot.len() {
        return Err(corrupt(log, end, "the snapshot is damaged"));
    }
    let (end, commits) = replay(log, bytes, end, &mut state)?;
    if acknowledged_after(log, bytes, end).is_some_and(|acknowledged| acknowledged > end as u64) {
        return Err(corrupt(log, end, "an acknowledged commit is damaged"));
    }
    let (whole_bytes, torn_bytes) = (end as u64, (bytes.len() - end) as u64);
    Ok(RecoveredGeneration { header, state, whole_bytes, torn_bytes, commits })
}

fn corrupt(log: LogId, offset: usize, what: &str) -> Error {
    let text = format!(
        "log {log} of a volume's namespace: corrupt at offset {offset}: {what}; restore the volume \
         from a checkpoint"
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// Checks the header. Returns it with the offset at which the snapshot ends.
fn read_header(log: LogId, bytes: &[u8]) -> Result<(GenerationHeader, u64)> {
    let foreign = || corrupt(log, 0, "it does not begin as a namespace");
    let damaged = || corrupt(log, 0, "the header is damaged, or belongs to another log");
    let mut reader = Reader::new(bytes);
    if reader.take(MAGIC.len()) != Some(MAGIC) {
        return Err(foreign());
    }
    let version = reader.u32().ok_or_else(foreign)?;
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "log {log} of a volume's namespace has format version {version}; this program reads \
             version {VERSION} only: use the program that wrote it"
        )));
    }
    let volume = reader.take(16).and_then(|id| id.try_into().ok()).map(VolumeId);
    let (number, epoch, snapshot_end) = (reader.u64(), reader.u64(), reader.u64());
    let sum = block_crc(&log.0, 0, &bytes[..reader.position()]);
    match (volume, number, epoch, snapshot_end) {
        (Some(volume), Some(number), Some(epoch), Some(end)) if reader.u32() == Some(sum) => {
            Ok((GenerationHeader { volume, number, epoch: Epoch(epoch) }, end))
        }
        _ => Err(damaged()),
    }
}

/// Applies the frames from `start` on, until the first damaged one. Returns its offset, or the end,
/// and the number of frames. Errors: `Corrupt` if a whole frame contradicts the state.
fn replay(
    log: LogId,
    bytes: &[u8],
    start: usize,
    state: &mut NamespaceState,
) -> Result<(usize, u64)> {
    let (mut at, mut frames) = (start, 0);
    while let Some(frame) = read_frame(log, bytes, at) {
        state.apply_all(&frame.records).map_err(|refusal| {
            corrupt(log, at, &format!("a change is refused: {}", refusal.why))
        })?;
        at = frame.end;
        frames += 1;
    }
    Ok((at, frames))
}

/// A whole frame.
struct Frame {
    records: Vec<Record>,
    acknowledged: u64,
    /// Offset after the frame.
    end: usize,
}

/// Reads the frame at `offset`. `None` if there is no whole one.
fn read_frame(log: LogId, bytes: &[u8], offset: usize) -> Option<Frame> {
    let mut reader = Reader::new(bytes.get(offset..)?);
    let (len, sum) = (reader.u32()? as usize, reader.u32()?);
    if len == 0 || len > RECORDS_BYTES_MAX {
        return None;
    }
    let checked = reader.take(FRAME_BYTES - UNCHECKED_BYTES + len)?;
    let end = offset + reader.position();
    if block_crc(&log.0, offset as u64, checked) != sum {
        return None;
    }
    let mut reader = Reader::new(checked);
    let acknowledged = reader.u64()?;
    let mut records = Vec::new();
    while !reader.is_empty() {
        records.push(Record::read(&mut reader)?);
    }
    // A writer cannot know that bytes after its own frame are acknowledged, so such a frame is
    // damaged.
    (acknowledged <= offset as u64).then_some(Frame { records, acknowledged, end })
}

/// The largest offset that a whole frame after `start` calls acknowledged.
fn acknowledged_after(log: LogId, bytes: &[u8], start: usize) -> Option<u64> {
    let frames = (start..bytes.len()).filter_map(|at| read_frame(log, bytes, at));
    frames.map(|frame| frame.acknowledged).max()
}

#[cfg(test)]
pub(crate) mod tests;
