//! Checks of stored bytes, and chunks that fail them.
//!
//! A chunk with damage is *set aside*: its file moves to the directory `damaged` of its device, and
//! its record says so. The node no longer describes the chunk, so that the holders of the blob
//! learn that a copy is missing. A repair may then write the chunk anew. The file stays for
//! operators until the chunk is repaired or released.
//!
//! Only bytes that were read and are wrong, and files that are missing or too short, are damage.
//! Another error, such as a lack of descriptors or a passing fault of the device, is returned, and
//! changes nothing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{IoContext, IoPurpose};
use archipelago_store::nodes::layout::PIECE_BYTES;
use archipelago_store::nodes::wire::ChunkId;

use super::index::{ChunkEntry, Presence};
use super::open_files::OpenChunk;
use super::record::RecordState;
use super::write::done;
use super::{Chunks, chunk_path, damaged_path, dir_of};
use crate::answer::Outcome;
use crate::devices::Device;

/// A part of a chunk that was read and compared with its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedPart {
    /// Bytes that were read.
    pub(crate) bytes: u64,
    /// Offset at which the check continues; `None` at the end of the chunk.
    pub(crate) next: Option<u64>,
}

impl Chunks {
    /// Checks the piece that a client has found damaged.
    pub(super) fn check_report(&self, chunk: ChunkId, offset: u64) -> Outcome {
        let Some((open, entry)) = self.begin_check(chunk)? else { return done() };
        let at = offset / PIECE_BYTES * PIECE_BYTES;
        if at < entry.data_bytes {
            let part = self.check_part(chunk, &open, at, PIECE_BYTES)?;
            tracing::info!(%chunk, offset, is_damaged = part.is_none(),
                "a client reported damage of a chunk, and the piece was checked");
        }
        done()
    }

    /// The first chunk after `after` that can be read.
    pub(crate) fn next_whole(&self, after: Option<ChunkId>) -> Option<ChunkId> {
        let index = self.index.lock();
        let mut whole = index.after(after).filter(|(_, entry)| entry.presence == Presence::Whole);
        whole.next().map(|(chunk, _)| chunk)
    }

    /// Whether the node has a record of the chunk and cannot read it.
    pub(crate) fn is_unreadable(&self, chunk: ChunkId) -> bool {
        let presence = self.index.lock().get(chunk).map(|entry| entry.presence);
        matches!(presence, Some(Presence::Damaged | Presence::Missing))
    }

    /// Opens a chunk for a check, and checks its tail. `None` if the chunk is not there any more,
    /// or if it was set aside because of its tail.
    pub(crate) fn begin_check(
        &self,
        chunk: ChunkId,
    ) -> Result<Option<(Arc<OpenChunk>, ChunkEntry)>> {
        let entry = self.index.lock().get(chunk).cloned();
        let Some(entry) = entry.filter(|entry| entry.presence == Presence::Whole) else {
            return Ok(None);
        };
        let context = IoContext::new(entry.class, IoPurpose::Maintenance);
        match self.open_file(chunk, &entry, context) {
            Ok(open) => Ok(Some((open, entry))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.lose(chunk, &error);
                Ok(None)
            }
            Err(error) if is_damage(&error) => {
                self.set_aside(chunk, &error)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads up to `bytes_max` of a chunk from the piece of `offset` on, and compares them with
    /// their checksums. `None` if the chunk was damaged and is set aside. Errors: those of a read
    /// that proves no damage.
    pub(crate) fn check_part(
        &self,
        chunk: ChunkId,
        open: &OpenChunk,
        offset: u64,
        bytes_max: u64,
    ) -> Result<Option<CheckedPart>> {
        let offset = offset / PIECE_BYTES * PIECE_BYTES;
        let end = offset.saturating_add(bytes_max).min(open.data_bytes);
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        let checked = match self.read_and_compare(chunk, open, offset, &mut bytes) {
            // A second read distinguishes a fault of the transfer from damage on the device.
            Err(_) => self.read_and_compare(chunk, open, offset, &mut bytes),
            Ok(()) => Ok(()),
        };
        match checked {
            Err(error) if is_damage(&error) => {
                self.set_aside(chunk, &error)?;
                return Ok(None);
            }
            checked => checked?,
        }
        open.file.forget(offset, bytes.len() as u64);
        let next = (end < open.data_bytes).then_some(end);
        Ok(Some(CheckedPart { bytes: bytes.len() as u64, next }))
    }

    /// Fills `bytes` from `offset` of a chunk, and compares them with their checksums. Errors:
    /// those of the read; `Corrupt`, which names the first damaged piece.
    fn read_and_compare(
        &self,
        chunk: ChunkId,
        open: &OpenChunk,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let class = self.index.lock().get(chunk).map(|entry| entry.class);
        let Some(class) = class.filter(|_| !bytes.is_empty()) else { return Ok(()) };
        let context = IoContext::new(class, IoPurpose::Maintenance);
        open.file.read_exact_at(offset, bytes, context)?;
        if self.parts.options.sabotage.no_crc() {
            return Ok(());
        }
        let crcs = open.crcs(offset, offset + bytes.len() as u64);
        match chunk.checksums().first_damaged_piece(offset, bytes, crcs) {
            None => Ok(()),
            Some(at) => Err(Error::new(
                ErrorKind::Corrupt,
                format!("chunk {chunk}: the piece at {at} does not have its checksum"),
            )),
        }
    }

    /// Moves the file of a damaged chunk aside, durably.
    pub(super) fn set_aside(&self, chunk: ChunkId, why: &Error) -> Result<()> {
        let is_whole = |entry: &ChunkEntry| entry.presence == Presence::Whole;
        let entry = self.index.lock().get(chunk).cloned().filter(is_whole);
        let device = entry.and_then(|entry| self.parts.devices.get(entry.device));
        let Some(device) = device else { return Ok(()) };
        // The lock of the changes is not held over the rename, which may hang with the device. An
        // opening that finds the file aside and no change of the record completes the change.
        let to = self.move_aside(chunk, device)?;
        let changes = self.changes.lock();
        let entry = self.index.lock().get(chunk).cloned().filter(is_whole);
        let (Some(_), Some(mut record)) = (entry, self.record(chunk)?) else {
            // The chunk was released or lost meanwhile. The next opening removes the file.
            return Ok(());
        };
        record.state = RecordState::Damaged;
        self.apply_records(&changes, [(chunk, &record)])?;
        self.sync_records()?;
        self.mark(chunk, Presence::Damaged);
        self.parts.counters.note_damage(1);
        tracing::error!(%chunk, error = %why, file = %to.display(),
            "a chunk is damaged; its file was moved aside, and a repair must replace it");
        drop(changes);
        Ok(())
    }

    /// Moves the file of a chunk to the directory of damaged ones. Another thread may have done so.
    fn move_aside(&self, chunk: ChunkId, device: &Device) -> Result<PathBuf> {
        let (from, to) = (chunk_path(&device.dir, chunk), damaged_path(&device.dir, chunk));
        self.fs().create_dir_all(dir_of(&to))?;
        match self.fs().rename(&from, &to) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.fs().exists(&to)? => {}
            renamed => renamed?,
        }
        self.sync_dir(device, dir_of(&from))?;
        self.sync_dir(device, dir_of(&to))?;
        Ok(to)
    }

    /// Notes that the file of a chunk is missing.
    pub(super) fn lose(&self, chunk: ChunkId, why: &Error) {
        let changes = self.changes.lock();
        let entry = self.index.lock().get(chunk).cloned();
        if let Some(entry) = entry.filter(|entry| entry.presence == Presence::Whole) {
            self.uncount_space(chunk, &entry);
            self.mark(chunk, Presence::Missing);
            tracing::error!(%chunk, error = %why,
                "the file of a chunk is missing, and a repair must replace it");
        }
        drop(changes);
    }

    fn mark(&self, chunk: ChunkId, presence: Presence) {
        self.index.lock().change(chunk, |entry| entry.presence = presence);
        self.files.forget(chunk);
    }
}

/// Whether an error of a file proves that bytes of the file are wrong or missing.
pub(super) fn is_damage(error: &Error) -> bool {
    error.kind() == ErrorKind::Corrupt || error.io_kind() == Some(io::ErrorKind::UnexpectedEof)
}
