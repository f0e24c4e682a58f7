//! The end of an extent on this node: bytes that a recovery puts, and seals.
//!
//! A recovery puts bytes into a *staged* part, which is no part of the extent yet. The seal that
//! follows makes it one, in the same durable record as the end. So a recovery that fails leaves the
//! extent as it was, and a late put changes nothing.
//!
//! Invariants:
//! 1. A put alone changes neither the written end nor the answer to a fence.
//! 2. When a seal is answered, all bytes before its end are durable and the record has the end.
//! 3. A seal needs all bytes before its end: written ones that are not known to be damaged, or
//!    staged ones of the same epoch. Bytes whose sync has failed are written anew before that.
//! 4. Bytes behind the end of a sealed extent do not exist. The same or a later epoch may seal it
//!    again, at another end. A smaller end drops bytes, so the owner sends a new end only after the
//!    seals of the old one have ended.
//! 5. The copy of a repair never ends before the bytes that the replica has, or had before they
//!    were damaged. Only a recovery, which asks other replicas, may cut them.
//!
//! Thread-safety: the lock of the extent guards everything, also during the syncs of a seal.
//! Failure: a seal that fails leaves the extent as it was.
//! Cost: a put is one `write`. A seal is one sync per part that has unsynced bytes, and one of the
//! metadata.

use archipelago_base::{Epoch, Error};
use archipelago_env::FileClass;
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, Stamp};

use super::extent::{
    AppendRequest, Creation, Extent, ExtentState, Progress, not_there, out_of_order,
};
use super::part::{Group, Part, PartWriter};
use super::record::{ExtentRecord, PartRecord};
use super::{LogEnv, NewPart};
use crate::answer::Refusal;
use crate::identity::DeviceId;

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
    /// Device of a new part; `None` for the one with most room.
    pub(crate) device: Option<DeviceId>,
    /// Whether a repair ends its copy.
    pub(crate) is_copy: bool,
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
    pub(super) fn into_part(self) -> Part {
        self.part
    }

    /// Whether bytes from `start` on follow or repeat the bytes that `epoch` has put.
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
        if let Some(end) = request.copy_end {
            state.check_copy(at, end)?;
        }
        let creation = Creation::of(request);
        if state.record.is_none() {
            match request.copy_end {
                Some(_) => env.refuse_copy_of_removed(at, request.stamp)?,
                None => env.refuse_removed(at, request.stamp)?,
            }
            state.create(env, at, &creation)?;
        }
        state.check_place(at, &creation, request.start)?;
        let epoch = request.stamp.epoch;
        if !state.continues_staged(epoch, request.start) {
            state.discard_staged(env);
            let has = state.sound_end();
            if request.start > has {
                return Err(out_of_order(at, has, request.start));
            }
            let (start, device) = (request.start, request.device);
            state.begin_staged(env, NewPart { at, epoch, start, device })?;
        }
        let Some(staged) = &state.staged else { return Err(not_there(at)) };
        let skip = usize::try_from(staged.end - request.start).unwrap_or(usize::MAX);
        let bytes = &request.bytes[skip.min(request.bytes.len())..];
        if !bytes.is_empty() {
            state.stage(env, at, bytes)?;
            env.counters.note_write(request.class, bytes.len() as u64);
        }
        let Some(staged) = &state.staged else { return Err(not_there(at)) };
        Ok(Progress { written: staged.end, synced: state.synced.min(staged.part.start) })
    }

    /// Ends the extent durably.
    pub(crate) fn seal(&self, env: &LogEnv, request: &SealRequest) -> Result<Progress, Refusal> {
        let mut state = self.lock_for(env, request.stamp)?;
        let (at, end) = (self.at, request.end);
        if request.is_copy {
            state.check_copy(at, end)?;
        }
        if end < request.extent_start {
            let text =
                format!("extent {at} begins at {} and cannot end at {end}", request.extent_start);
            return Err(Refusal::new(RefusalWhy::Malformed, text));
        }
        let SealRequest { stamp, class, extent_start, device, .. } = *request;
        let creation = Creation { stamp, class, extent_start, device };
        if state.record.is_none() && end > extent_start {
            return Err(not_there(at));
        }
        state.check_place(at, &creation, extent_start)?;
        if state.record.is_none() {
            match request.is_copy {
                true => env.refuse_copy_of_removed(at, stamp)?,
                false => env.refuse_removed(at, stamp)?,
            }
            state.create(env, at, &creation)?;
        }
        if !state.continues_staged(stamp.epoch, end) {
            state.discard_staged(env);
            let has = state.sound_end();
            if has < end {
                return Err(out_of_order(at, has, end));
            }
            let is_sealed = |record: &ExtentRecord| {
                record.sealed == Some(end) && !record.is_in_limbo && record.unsure_from.is_none()
            };
            if !state.is_unkept && state.record.as_ref().is_some_and(is_sealed) {
                return Ok(state.progress());
            }
            state.stage_unsure(env, NewPart { at, epoch: stamp.epoch, start: end, device })?;
        }
        state.sync_before(env, at, end)?;
        state.end_at(env, at, end)?;
        self.note_device(&state);
        Ok(state.progress())
    }
}

impl ExtentState {
    /// Refuses a repair's copy that ends at `end` if this replica has more bytes, or had more
    /// before they were damaged. A node does not list open or damaged replicas to the manager,
    /// which therefore may not know of these bytes.
    fn check_copy(&self, at: ExtentAt, end: u64) -> Result<(), Refusal> {
        let Some(record) = &self.record else { return Ok(()) };
        // A replica that the opening found damaged has fewer bytes than were durable.
        let own_end = record.sealed.unwrap_or(self.written.max(self.durable_end));
        if own_end <= end {
            return Ok(());
        }
        let text = format!(
            "extent {at}: the copy of a repair would end at {end}, and the replica of this node at \
             {own_end}"
        );
        Err(Refusal::new(RefusalWhy::LongerReplica, text))
    }

    /// Whether bytes from `start` on continue a complete prefix. They must follow or repeat the
    /// bytes that `epoch` has put. The bytes of the extent before these must be undamaged and
    /// durable, or become durable with the seal.
    fn continues_staged(&self, epoch: Epoch, start: u64) -> bool {
        let unsure_from = self.record.as_ref().and_then(|record| record.unsure_from);
        let has = self.sound_end().min(unsure_from.unwrap_or(u64::MAX));
        let staged = self.staged.as_ref();
        staged.is_some_and(|staged| staged.part.start <= has && staged.continues(epoch, start))
    }

    /// Gives up the bytes that a recovery has put.
    pub(super) fn discard_staged(&mut self, env: &LogEnv) {
        if let Some(staged) = self.staged.take() {
            self.discard(env, staged.into_part());
        }
    }

    /// Begins a staged part. If a sync of bytes before it has failed, it begins with them.
    fn begin_staged(&mut self, env: &LogEnv, new: NewPart) -> Result<(), Refusal> {
        let Some(record) = &self.record else { return Err(not_there(new.at)) };
        let unsure_from = record.unsure_from.unwrap_or(u64::MAX);
        let start = new.start.min(unsure_from);
        let (writer, part) = env.create_part(NewPart { start, ..new }, record)?;
        self.staged = Some(StagedPart { epoch: new.epoch, part, writer, end: start });
        let mut at = start;
        while at < new.start {
            let copied = self.read_own(env, new.at, at..new.start).and_then(|bytes| {
                at += bytes.len() as u64;
                self.stage(env, new.at, &bytes)
            });
            if let Err(refusal) = copied {
                self.discard_staged(env);
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Writes the bytes before the start of `new` anew that are not durable because a sync failed.
    fn stage_unsure(&mut self, env: &LogEnv, new: NewPart) -> Result<(), Refusal> {
        let unsure_from = self.record.as_ref().and_then(|record| record.unsure_from);
        match unsure_from {
            Some(from) if from < new.start => self.begin_staged(env, new),
            _ => Ok(()),
        }
    }

    /// Appends a group to the staged part.
    fn stage(&mut self, env: &LogEnv, at: ExtentAt, bytes: &[u8]) -> Result<(), Refusal> {
        let Some(staged) = &mut self.staged else { return Err(not_there(at)) };
        let group = Group { at, offset: staged.end, bytes };
        if let Err(error) = staged.writer.append(&mut staged.part, group) {
            self.discard_staged(env);
            return Err(error.into());
        }
        staged.end += bytes.len() as u64;
        Ok(())
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

    /// Makes the end durable, with the staged part, and drops the bytes behind the end.
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
        (record.damaged_from, record.unsure_from) = (None, None);
        self.keep(env, at, record)?;
        if let Some(writer) = self.writer.take() {
            finish(at, writer);
        }
        let kept = self.parts.partition_point(|part| part.start < kept_before);
        for gone in self.parts.split_off(kept) {
            self.discard(env, gone);
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
