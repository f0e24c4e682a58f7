//! The scrub: rounds that read all stored bytes of a node and compare them with their checksums.
//!
//! The node owns one [`Scrub`]. A round visits the sealed chunks in the order of their identities,
//! and then the extents. Chunks with damage are set aside, so that a repair replaces them. An
//! extent with damage reports it from then on. Such an extent takes no appends, a recovery does not
//! count it, and a repair replaces the damaged bytes.
//!
//! A round begins when [`ScrubOptions::interval`] has passed since the last one began, or when an
//! operator asks for it. Its rate is chosen so that it ends in half of the interval, unless
//! [`ScrubOptions::bytes_per_s_max`] forbids that. A round that an operator asks for runs at
//! [`ScrubOptions::bytes_per_s_max`].
//!
//! Invariants:
//! 1. A round checks every chunk and extent that existed when it began, unless it was removed.
//! 2. A round continues near the place that it had reached when the node was stopped.
//! 3. A check of [`PART_BYTES`] is followed by the pause that the rate asks for.
//! 4. Only bytes that were read and are wrong, and files that are missing or too short, count as
//!    damage. An object that cannot be read for another reason, such as a lack of descriptors, is
//!    tried [`ATTEMPTS_MAX`] times with pauses. Then it is counted, and the next round tries again.
//!
//! Thread-safety: one thread at a time works on a round; any thread may ask for the status.
//! Failure: an error ends the step, and the next one tries again after a pause.
//! Cost: one read per part, and one unsynced record per [`RECORD_BYTES`].

mod place;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_store::nodes::wire::{ChunkId, ScrubStatus};
use parking_lot::Mutex;

use self::place::{ScrubRecord, ScrubStage};
use crate::chunks::{CheckedPart, Chunks, OpenChunk};
use crate::logs::{Logs, RangeCheck};
use crate::meta::{Meta, MetaBatch, MetaSpace};
use crate::parts::ScrubOptions;

/// Bytes that are checked at a time.
const PART_BYTES: u64 = 1 << 20;
/// Bytes after which the place of a round is recorded.
const RECORD_BYTES: u64 = 64 << 20;
/// Slowest rate of a round, in bytes per second.
const BYTES_PER_S_MIN: u64 = 1 << 20;
/// Pause between two checks for a round that is due or asked for.
const IDLE: Duration = Duration::from_secs(1);
/// Attempts to read an object before the round leaves it out.
const ATTEMPTS_MAX: u32 = 3;
/// Pause after an error.
const AFTER_ERROR: Duration = Duration::from_secs(10);
/// Key of the record in the metadata.
const KEY: &[u8] = b"scrub";

/// Rate, in bytes per second, of a round over `total_bytes` that was not asked for.
fn bytes_per_s(options: ScrubOptions, total_bytes: u64) -> u64 {
    let half_s = (options.interval.as_secs() / 2).max(1);
    total_bytes.div_ceil(half_s).max(BYTES_PER_S_MIN).min(options.bytes_per_s_max.max(1))
}

/// Objects that a scrub reads, and the metadata that keep its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrubSources<'a> {
    pub(crate) chunks: &'a Chunks,
    pub(crate) logs: &'a Logs,
    pub(crate) meta: &'a Meta,
}

/// A chunk that is open, and the part of it that was checked.
type CheckedChunk = (Option<Arc<OpenChunk>>, Option<CheckedPart>);

/// The work of the thread that scrubs.
#[derive(Debug)]
struct ScrubWork {
    record: ScrubRecord,
    /// The chunk that is being checked.
    open: Option<(ChunkId, Arc<OpenChunk>)>,
    /// Failed attempts to read the present object.
    attempts: u32,
    /// Bytes that were read since the last record.
    unrecorded_bytes: u64,
    bytes_per_s: u64,
}

/// The scrub of a node.
#[derive(Debug)]
pub(crate) struct Scrub {
    options: ScrubOptions,
    work: Mutex<ScrubWork>,
    status: Mutex<ScrubStatus>,
    is_requested: Mutex<bool>,
}

impl Scrub {
    /// Reads the place of the last round of the node.
    pub(crate) fn open(meta: &Meta, options: ScrubOptions) -> Result<Self> {
        let value = meta.get(MetaSpace::Node, KEY)?;
        let record = value.as_deref().map(ScrubRecord::decode).transpose()?.unwrap_or_default();
        let bytes_per_s = bytes_per_s(options, record.total_bytes);
        let status = Mutex::new(record.status());
        let work = ScrubWork { record, open: None, attempts: 0, unrecorded_bytes: 0, bytes_per_s };
        Ok(Self { options, work: Mutex::new(work), status, is_requested: Mutex::new(false) })
    }

    /// Begins a round soon, or the present one anew, at the fastest rate.
    pub(crate) fn request(&self) {
        *self.is_requested.lock() = true;
    }

    /// Progress of the present or last round.
    pub(crate) fn status(&self) -> ScrubStatus {
        *self.status.lock()
    }

    /// Checks a part, and returns the pause after which the caller continues. `now_ms` is the time
    /// since the Unix epoch.
    pub(crate) fn step(&self, sources: ScrubSources<'_>, now_ms: u64) -> Duration {
        let mut work = self.work.lock();
        match self.try_step(&mut work, sources, now_ms) {
            Ok(pause) => pause,
            Err(error) => {
                tracing::warn!(%error, "the scrub cannot continue; it tries again");
                work.open = None;
                AFTER_ERROR
            }
        }
    }

    fn try_step(
        &self,
        work: &mut ScrubWork,
        sources: ScrubSources<'_>,
        now_ms: u64,
    ) -> Result<Duration> {
        let is_requested = std::mem::take(&mut *self.is_requested.lock());
        let due_ms = work.record.began_ms.saturating_add(self.options.interval.as_millis() as u64);
        let is_due = work.record.stage == ScrubStage::Idle && now_ms >= due_ms;
        if is_requested || is_due {
            let total_bytes = sources.chunks.whole_bytes() + sources.logs.checked_bytes();
            work.record.begin(now_ms, total_bytes);
            work.open = None;
            work.bytes_per_s = match is_requested {
                true => self.options.bytes_per_s_max.max(1),
                false => bytes_per_s(self.options, total_bytes),
            };
            work.save(sources.meta)?;
        }
        let bytes = match work.record.stage {
            ScrubStage::Idle => return Ok(IDLE),
            ScrubStage::Chunks => work.check_chunk(sources.chunks)?,
            ScrubStage::Extents => work.check_extent(sources.logs)?,
        };
        work.record.read_bytes += bytes;
        work.unrecorded_bytes += bytes;
        if work.unrecorded_bytes >= RECORD_BYTES || work.record.stage == ScrubStage::Idle {
            work.save(sources.meta)?;
        }
        *self.status.lock() = work.record.status();
        let pause_ns = u128::from(bytes) * 1_000_000_000 / u128::from(work.bytes_per_s);
        Ok(Duration::from_nanos(u64::try_from(pause_ns).unwrap_or(u64::MAX)))
    }
}

impl ScrubWork {
    /// Records the place. It is not synced, because a lost place costs only time.
    fn save(&mut self, meta: &Meta) -> Result<()> {
        let mut batch = MetaBatch::default();
        batch.put(MetaSpace::Node, KEY, &self.record.encode());
        self.unrecorded_bytes = 0;
        meta.apply(&batch)
    }

    /// Checks the next part of the chunks. Returns the number of bytes that were read.
    fn check_chunk(&mut self, chunks: &Chunks) -> Result<u64> {
        let Some(chunk) = chunks.next_whole(self.record.chunk_done) else {
            self.open = None;
            self.record.stage = ScrubStage::Extents;
            return Ok(0);
        };
        if self.record.chunk_current != Some(chunk) {
            self.record.chunk_current = Some(chunk);
            self.record.chunk_offset = 0;
        }
        let (open, part) = match self.check_part(chunks, chunk) {
            Ok(checked) => checked,
            Err(error) => {
                self.note_failure(error)?;
                self.record.end_chunk(chunk);
                return Ok(0);
            }
        };
        self.attempts = 0;
        let Some(part) = part else {
            // A chunk that was removed meanwhile is not damaged.
            self.record.damaged_chunks += u64::from(chunks.is_unreadable(chunk));
            self.record.end_chunk(chunk);
            return Ok(0);
        };
        match part.next {
            Some(next) => {
                self.record.chunk_offset = next;
                self.open = open.map(|open| (chunk, open));
            }
            None => self.record.end_chunk(chunk),
        }
        Ok(part.bytes)
    }

    /// Opens the chunk, unless it is open, and checks its next part. `None` in place of the part if
    /// the chunk is set aside or gone.
    fn check_part(&mut self, chunks: &Chunks, chunk: ChunkId) -> Result<CheckedChunk> {
        let opened = match self.open.take().filter(|(open, _)| *open == chunk) {
            Some((_, open)) => Some(open),
            None => chunks.begin_check(chunk)?.map(|(open, _)| open),
        };
        let part = match &opened {
            Some(open) => chunks.check_part(chunk, open, self.record.chunk_offset, PART_BYTES)?,
            None => None,
        };
        Ok((opened, part))
    }

    /// Notes that the present object could not be read. Returns the error while the object is to be
    /// tried again.
    fn note_failure(&mut self, error: Error) -> Result<()> {
        self.attempts += 1;
        if self.attempts < ATTEMPTS_MAX {
            return Err(error);
        }
        tracing::error!(%error, "the scrub leaves an object out that it cannot read; the next round tries again");
        self.attempts = 0;
        self.record.unread += 1;
        Ok(())
    }

    /// Checks the next part of the extents. Returns the number of bytes that were read.
    fn check_extent(&mut self, logs: &Logs) -> Result<u64> {
        let Some(extent) = logs.next_checked(self.record.extent_done) else {
            self.record.end_round();
            let ScrubRecord { read_bytes, damaged_chunks, unread, .. } = self.record;
            tracing::info!(read_bytes, damaged_chunks, unread, "a round of the scrub has ended");
            return Ok(0);
        };
        let at = extent.at;
        if self.record.extent_current != Some(at) {
            self.record.extent_current = Some(at);
            self.record.extent_offset = extent.start;
        }
        // A recorded place may be of an extent that was removed and written anew.
        let start = self.record.extent_offset.clamp(extent.start, extent.end);
        let end = start.saturating_add(PART_BYTES).min(extent.end);
        match logs.check(at, start..end) {
            RangeCheck::Sound => self.attempts = 0,
            RangeCheck::Damaged => {
                self.attempts = 0;
                self.record.damaged_chunks += 1;
                self.record.end_extent(at);
                return Ok(end - start);
            }
            RangeCheck::Unread(refusal) => {
                self.note_failure(Error::new(ErrorKind::Io, refusal.text))?;
                self.record.end_extent(at);
                return Ok(0);
            }
        }
        self.record.extent_offset = end;
        if end >= extent.end {
            self.record.end_extent(at);
        }
        Ok(end.saturating_sub(start))
    }
}
