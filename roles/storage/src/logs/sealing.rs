//! The end of an extent on this node: bytes that a recovery puts, and seals.
//!
//! A recovery puts bytes into a *staged* part, which is no part of the extent yet. The seal that
//! follows makes it one, in the same durable record as the end. So a recovery that fails leaves the
//! extent as it was, and a late put changes nothing.
//!
//! Invariants:
//! 1. A put alone changes neither the written end nor what a fence answers.
//! 2. When a seal is answered, all bytes before its end are durable and the record has the end.
//! 3. A seal needs all bytes before its end: written ones, or staged ones of the same epoch.
//! 4. Bytes behind the end of a sealed extent do not exist. A later epoch may seal it again, at
//!    another end.
//!
//! Thread-safety: the lock of the extent guards everything, also during the syncs of a seal.
//! Failure: a seal that fails leaves the extent as it was.
//! Cost: a put is one `write`. A seal is one sync per part that has unsynced bytes, and one of the
//! metadata.

use archipelago_base::{Epoch, Error};
use archipelago_env::{FileClass, FileSystem};
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, Stamp};

use super::extent::{
    AppendRequest, Creation, Extent, ExtentState, Progress, not_there, out_of_order,
};
use super::part::{Group, Part, PartWriter};
use super::record::PartRecord;
use super::{LogEnv, NewPart};
use crate::answer::Refusal;

/// A request to end an extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealRequest {
    /// Volume and epoch of the sender.
    pub(crate) stamp: Stamp,
    /// Class of the file.
    pub(crate) class: FileClass,
    /// Offset at which the extent begins.
    pub(crate) extent_start: u64,
    /// Offset at which it ends.
    pub(crate) end: u64,
}

/// Bytes that a recovery has put.
#[derive(Debug)]
pub(super) struct StagedPart {
    /// Epoch of the recovery.
    epoch: Epoch,
    part: Part,
    writer: PartWriter,
    /// Offset in the log after the last byte.
    end: u64,
}

impl StagedPart {
    /// Removes the file.
    pub(super) fn discard(self, fs: &dyn FileSystem) {
        self.into_part().discard(fs);
    }

    pub(super) fn into_part(self) -> Part {
        self.part
    }

    /// Whether bytes from `start` on follow or repeat what `epoch` has put.
    fn continues(&self, epoch: Epoch, start: u64) -> bool {
        self.epoch == epoch && (self.part.start..=self.end).contains(&start)
    }
}

impl Extent {
    /// Stages bytes of a recovery. The answer is the end of the staged bytes.
    pub(crate) fn put(
        &self,
        env: &LogEnv,
        request: &AppendRequest<'_>,
    ) -> Result<Progress, Refusal> {
        let mut state = self.lock_for(env, request.stamp)?;
        let at = self.at;
        let creation = Creation::of(request);
        if state.record.is_none() {
            state.create(env, at, &creation)?;
        }
        state.check_place(at, &creation, request.start)?;
        let epoch = request.stamp.epoch;
        let continues = |staged: &StagedPart| staged.continues(epoch, request.start);
        if !state.staged.as_ref().is_some_and(continues) {
            state.discard_staged(env);
            if request.start > state.written {
                return Err(out_of_order(at, state.written, request.start));
            }
            let Some(record) = &state.record else { return Err(not_there(at)) };
            let new = NewPart { at, epoch, start: request.start };
            let (writer, part) = env.create_part(new, record)?;
            state.staged = Some(StagedPart { epoch, part, writer, end: request.start });
        }
        let Some(staged) = &mut state.staged else { return Err(not_there(at)) };
        let skip = usize::try_from(staged.end - request.start).unwrap_or(usize::MAX);
        let bytes = &request.bytes[skip.min(request.bytes.len())..];
        if !bytes.is_empty() {
            let group = Group { at, offset: staged.end, bytes };
            let written = staged.writer.append(&mut staged.part, group);
            if let Err(error) = written {
                state.discard_staged(env);
                return Err(error.into());
            }
            staged.end += bytes.len() as u64;
            env.counters.note_write(request.class, bytes.len() as u64);
        }
        let (written, start) = (staged.end, staged.part.start);
        Ok(Progress { written, synced: state.synced.min(start) })
    }

    /// Ends the extent durably.
    pub(crate) fn seal(&self, env: &LogEnv, request: &SealRequest) -> Result<Progress, Refusal> {
        let mut state = self.lock_for(env, request.stamp)?;
        let (at, end) = (self.at, request.end);
        if end < request.extent_start {
            let text =
                format!("extent {at} begins at {} and cannot end at {end}", request.extent_start);
            return Err(Refusal::new(RefusalWhy::Malformed, text));
        }
        let SealRequest { stamp, class, extent_start, .. } = *request;
        let creation = Creation { stamp, class, extent_start };
        if state.record.is_none() && end > extent_start {
            return Err(not_there(at));
        }
        state.check_place(at, &creation, extent_start)?;
        if state.record.is_none() {
            state.create(env, at, &creation)?;
        }
        let fits = |staged: &StagedPart| staged.continues(stamp.epoch, end);
        if !state.staged.as_ref().is_some_and(fits) {
            state.discard_staged(env);
            if state.written < end {
                return Err(out_of_order(at, state.written, end));
            }
            let is_sealed = |record: &super::record::ExtentRecord| {
                record.sealed == Some(end) && !record.is_in_limbo
            };
            if state.record.as_ref().is_some_and(is_sealed) {
                return Ok(state.progress());
            }
        }
        state.sync_before(env, at, end)?;
        state.end_at(env, at, end)?;
        Ok(state.progress())
    }
}

impl ExtentState {
    fn discard_staged(&mut self, env: &LogEnv) {
        if let Some(staged) = self.staged.take() {
            staged.discard(&*env.fs);
        }
    }

    /// Makes all bytes durable that the extent will have when it ends at `end`.
    fn sync_before(&mut self, env: &LogEnv, at: ExtentAt, end: u64) -> Result<(), Refusal> {
        let from_parts = self.staged.as_ref().map_or(end, |staged| staged.part.start);
        let unsynced = self.writer.as_ref().filter(|_| self.synced < from_parts);
        if let Some(sync) = unsynced.map(PartWriter::sync_handle) {
            env.counters.note_sync();
            if let Err(error) = sync.sync(&*env.fs) {
                self.note_lost_bytes(env, at, &error);
                return Err(error.into());
            }
            self.synced = self.written;
        }
        if let Some(staged) = &self.staged {
            env.counters.note_sync();
            let synced = staged.writer.sync_handle().sync(&*env.fs);
            if let Err(error) = synced {
                self.discard_staged(env);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Makes the end durable, with the staged part, and drops what is behind it.
    fn end_at(&mut self, env: &LogEnv, at: ExtentAt, end: u64) -> Result<(), Error> {
        let Some(record) = &self.record else { return Ok(()) };
        let mut record = record.clone();
        let kept_before = self.staged.as_ref().map_or(end, |staged| staged.part.start);
        record.parts.retain(|part| part.start < kept_before);
        if let Some(staged) = &self.staged {
            let (number, start) = (staged.part.number, staged.part.start);
            record.parts.push(PartRecord { number, start });
        }
        (record.sealed, record.is_in_limbo) = (Some(end), false);
        env.keep(at, &record)?;
        self.record = Some(record);
        if let Some(writer) = self.writer.take() {
            finish(at, writer);
        }
        let kept = self.parts.partition_point(|part| part.start < kept_before);
        for gone in self.parts.split_off(kept) {
            gone.discard(&*env.fs);
        }
        if let Some(StagedPart { part, writer, .. }) = self.staged.take() {
            finish(at, writer);
            self.parts.push(part);
        }
        (self.written, self.synced, self.failure) = (end, end, None);
        Ok(())
    }
}

/// Moves bytes that the file system keeps elsewhere into the file. They are durable already.
fn finish(at: ExtentAt, mut writer: PartWriter) {
    if let Err(error) = writer.finish() {
        tracing::warn!(extent = %at, %error, "a part of a log was not closed");
    }
}
