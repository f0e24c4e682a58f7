//! An open segment whose appends go to a ring: [`RingLog`].
//!
//! The log writer owns the segment (`&mut`). Any thread may use [`RingSync`] handles.
//!
//! Invariants:
//! 1. `appended` advances after the bytes were copied, and `drained` after `pwrite` returned.
//! 2. Chunks are written in order under the `drain` lock: by the drainer thread (complete chunks),
//!    by a sync (everything), or by an append that finds the ring full.
//! 3. The first append of a segment is in its file on return, so that its header can always be
//!    read.
//!
//! Thread-safety: as the traits say. Failure: the first error of a drain is sticky for appends and
//! syncs. The bytes stay in the ring, where recovery finds them, and [`RingLog::finish`] tries once
//! more. The first error of an `fdatasync` or a write-through is sticky for both. Cost of an
//! append: one copy and one release store, and a wake-up of the drainer every [`CHUNK_BYTES`]. An
//! append waits only if the ring is full.

use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_base::{Epoch, Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::layout::RING_BYTES;
use super::ring::{Ring, RingState};
use crate::fs::{LogFile, LogSync};
use crate::local::writeback;

/// Number of bytes that the drainer writes at a time, at multiples of it.
pub(super) const CHUNK_BYTES: u64 = 256 << 10;
/// Size from which an append goes directly to the file, in bytes.
const WRITE_THROUGH_BYTES: u64 = 512 << 10;

/// The part of an open segment that the drainer and the sync handles share.
#[derive(Debug)]
pub(super) struct Open {
    path: PathBuf,
    file: File,
    incarnation: Epoch,
    ring: Arc<RingState>,
    drain: Mutex<Drain>,
    /// Whether `drain.error` is set, which an append checks.
    failed: AtomicBool,
    synced: Mutex<Synced>,
}

/// State of concurrent syncs. The first error ends all of them.
#[derive(Debug, Default)]
struct Synced {
    /// Offset through which the device has the segment.
    through: u64,
    error: Option<Error>,
}

#[derive(Debug, Default)]
struct Drain {
    /// Offset through which the segment's file has its bytes.
    drained: u64,
    /// Whether the ring serves another segment or none.
    finished: bool,
    error: Option<Error>,
}

impl Open {
    pub(super) fn new(path: PathBuf, file: File, incarnation: Epoch, ring: Arc<RingState>) -> Self {
        Self {
            path,
            file,
            incarnation,
            ring,
            drain: Mutex::default(),
            failed: AtomicBool::new(false),
            synced: Mutex::default(),
        }
    }

    pub(super) fn incarnation(&self) -> Epoch {
        self.incarnation
    }

    /// Writes the next complete chunk, if there is one. Returns whether there may be more.
    pub(super) fn drain_chunk(&self) -> bool {
        let mut drain = self.drain.lock();
        if drain.finished || drain.error.is_some() {
            return false;
        }
        let whole = self.ring.mapping.appended() / CHUNK_BYTES * CHUNK_BYTES;
        if drain.drained >= whole {
            return false;
        }
        let next = (drain.drained / CHUNK_BYTES + 1) * CHUNK_BYTES;
        self.write_through(&mut drain, next.min(whole)).is_ok()
    }

    /// Writes all bytes that were appended before the call. Returns their number.
    fn drain_all(&self) -> Result<u64> {
        let mut drain = self.drain.lock();
        if drain.finished {
            return drain.error.clone().map_or(Ok(drain.drained), Err);
        }
        let target = self.ring.mapping.appended();
        self.write_through(&mut drain, target)?;
        Ok(target)
    }

    fn write_through(&self, drain: &mut Drain, target: u64) -> Result<()> {
        if let Some(error) = &drain.error {
            return Err(error.clone());
        }
        let mapping = &self.ring.mapping;
        while drain.drained < target {
            let piece = mapping.piece(drain.drained, target);
            if let Err(error) = self.file.write_all_at(piece, drain.drained) {
                return Err(self.fail(drain, "append to", error));
            }
            drain.drained += piece.len() as u64;
            mapping.set_drained(drain.drained);
        }
        Ok(())
    }

    fn fail(&self, drain: &mut Drain, doing: &str, error: std::io::Error) -> Error {
        let error = Error::io(doing, &self.path, error);
        drain.error = Some(error.clone());
        self.failed.store(true, Ordering::Release);
        error
    }

    #[cold]
    fn drain_error(&self) -> Error {
        let error = self.drain.lock().error.clone();
        error.unwrap_or_else(|| Error::new(ErrorKind::Io, "a log segment failed"))
    }
}

/// The sync handle of a segment ([`LogFile::sync_handle`]).
#[derive(Debug)]
struct RingSync {
    open: Arc<Open>,
}

impl RingSync {
    /// Writes all bytes that were appended before the call to the file, and then runs `act` on it.
    /// `act` gets the file, the offset through which the device has it, and the offset to reach.
    fn reach(
        &self,
        doing: &str,
        act: impl FnOnce(&File, u64, u64) -> std::io::Result<()>,
    ) -> Result<u64> {
        let through = self.open.drain_all()?;
        // Concurrent calls wait for this lock.
        let mut synced = self.open.synced.lock();
        if let Some(error) = &synced.error {
            return Err(error.clone());
        }
        act(&self.open.file, synced.through, through).map_err(|error| {
            let error = Error::io(doing, &self.open.path, error);
            synced.error = Some(error.clone());
            error
        })?;
        synced.through = synced.through.max(through);
        Ok(through)
    }
}

impl LogSync for RingSync {
    fn sync(&self) -> Result<u64> {
        self.reach("sync", |file, _, _| file.sync_data())
    }

    fn write_through(&self) -> Result<u64> {
        self.reach("write through", |file, from, to| match from < to {
            true => writeback::wait(file, from, to),
            false => Ok(()),
        })
    }
}

/// A log segment whose appends are copies into a ring.
#[derive(Debug)]
pub(super) struct RingLog {
    open: Arc<Open>,
    ring: Arc<Ring>,
    len: u64,
    /// Value of `drained` at the last check.
    drained_seen: u64,
    finished: bool,
}

impl RingLog {
    pub(super) fn new(path: PathBuf, file: File, incarnation: Epoch, ring: Arc<Ring>) -> Self {
        let open = Arc::new(Open::new(path, file, incarnation, Arc::clone(&ring.shared)));
        ring.serve(Arc::clone(&open));
        Self { open, ring, len: 0, drained_seen: 0, finished: false }
    }

    /// Waits until `total` more bytes fit into the ring.
    #[cold]
    fn make_room(&mut self, total: u64) -> Result<()> {
        self.drained_seen = self.open.ring.mapping.drained();
        if self.len + total - self.drained_seen > RING_BYTES as u64 {
            self.drained_seen = self.open.drain_all()?;
        }
        Ok(())
    }

    /// Writes a large append after all earlier ones, without the ring.
    #[cold]
    fn append_through(&mut self, parts: &[&[u8]], total: u64) -> Result<()> {
        self.open.drain_all()?;
        let mut drain = self.open.drain.lock();
        if let Err(error) = write_parts(&self.open.file, parts, self.len) {
            return Err(self.open.fail(&mut drain, "append to", error));
        }
        // With this order, a kill between the two steps leaves an empty ring.
        drain.drained = self.len + total;
        self.open.ring.mapping.set_drained(drain.drained);
        self.open.ring.mapping.set_appended(drain.drained);
        self.drained_seen = drain.drained;
        Ok(())
    }
}

fn write_parts(file: &File, parts: &[&[u8]], mut offset: u64) -> std::io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut slices = &mut slices[..];
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let count = slices.len().min(1024);
        let written = match rustix::io::pwritev(file, &slices[..count], offset) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        offset += written as u64;
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

impl LogFile for RingLog {
    #[inline]
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        if self.finished || self.open.failed.load(Ordering::Relaxed) {
            return Err(match self.finished {
                true => Error::closed("the log segment is finished"),
                false => self.open.drain_error(),
            });
        }
        let start = self.len;
        let total: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if total >= WRITE_THROUGH_BYTES || start == 0 {
            self.append_through(parts, total)?;
            self.len += total;
            return Ok(start);
        }
        if start + total - self.drained_seen > RING_BYTES as u64 {
            self.make_room(total)?;
        }
        let mapping = &self.open.ring.mapping;
        let mut at = start;
        for part in parts {
            mapping.write(at, part);
            at += part.len() as u64;
        }
        self.len = at;
        mapping.set_appended(at);
        if at / CHUNK_BYTES != start / CHUNK_BYTES {
            self.open.ring.wake();
        }
        Ok(start)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        Arc::new(RingSync { open: Arc::clone(&self.open) })
    }

    fn finish(&mut self) -> Result<()> {
        if self.finished {
            return self.open.drain_all().map(|_| ());
        }
        self.finished = true;
        let mut drain = self.open.drain.lock();
        // The cause of an earlier failure (a full device) may have ended. Writing the same bytes to
        // the same place again is safe. A torn direct append lies after `appended`.
        if drain.error.take().is_some() {
            self.open.failed.store(false, Ordering::Release);
        }
        let target = self.open.ring.mapping.appended();
        let result = self.open.write_through(&mut drain, target);
        drain.finished = true;
        drop(drain);
        self.ring.release(result.is_ok());
        result
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        // The ring may serve the next segment already, so the bytes go directly to the file.
        let written = self.open.file.write_all_at(bytes, self.len);
        written.map_err(|error| Error::io("append the trailer to", &self.open.path, error))
    }

    fn unwritten_bytes(&self) -> u64 {
        // A finished segment has written everything, or never will.
        if self.finished { 0 } else { self.len.saturating_sub(self.open.ring.mapping.drained()) }
    }
}

impl Drop for RingLog {
    fn drop(&mut self) {
        if !self.finished {
            // Bytes that cannot be written stay in the ring, where recovery finds them.
            let _kept = self.finish();
        }
    }
}
