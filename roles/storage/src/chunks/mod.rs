//! Chunks of blobs: files that are written once, sealed, read, and deleted when no volume keeps
//! them.
//!
//! The node owns one [`Chunks`]. A chunk lies in a file of its own on one of the devices. While it
//! is being written, it is *unsealed*: its checksums are in memory, and a restart drops it. The
//! seal appends checksums and descriptor to the file, and makes it durable.
//!
//! | module | purpose |
//! | --- | --- |
//! | `open` | the opening: files and records are compared, and no data are read |
//! | `write`, `unsealed` | chunks that are being written, and their seal |
//! | `read`, `open_files` | reads of ranges |
//! | `sets` | descriptors and retaining sets, lists, removals |
//! | `damage` | checks of stored bytes, and chunks that fail them |
//! | `file`, `record`, `index` | formats on the device and in the metadata, and the chunks in memory |
//!
//! Invariants:
//! 1. A seal is answered when the bytes, the checksums and the descriptor survive power loss. An
//!    unsealed chunk vanishes as a whole at a restart.
//! 2. A chunk is deleted if its set of volumes is empty, or if the holders of a larger placement
//!    epoch do not include the node. The node never deletes a sealed chunk for another reason.
//! 3. Bytes are accepted only with their checksums, which are bound to blob, index and offset and
//!    stay with them. So a damaged byte is noticed by the client, by the scrub, or by a report.
//! 4. A removal is durable in the metadata before the file is removed, so no power loss brings a
//!    deleted chunk back.
//! 5. A write or a retain of a fenced owner leaves no chunk that the new owner's list does not
//!    show.
//! 6. A put that arrives after the removal of its blob creates no chunk. A repair that ends after
//!    the blob's writer has released it here keeps the chunk for other volumes only.
//!
//! Thread-safety: any thread may call any method. Locks are taken in this order: that of one
//! unsealed chunk, `changes`, `unsealed`, `index`. The last two are never held over I/O.
//! Failure: a request that fails is refused, and the refusal says why. A device that fails a write
//! gets no further chunks. If a sync of a directory failed, nothing on the device is sealed any
//! more. A chunk with damage is moved aside, so that a repair replaces it.
//! Cost: a put is one append to a file. A seal is two syncs, of the file and of its directory. A
//! read is one request to the device while the file is open. A change of a set is one sync of the
//! metadata.

mod damage;
mod file;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod index;
mod open;
mod open_files;
mod read;
mod record;
mod sets;
#[cfg(test)]
pub(crate) mod tests;
mod unsealed;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_env::FileSystem;
use archipelago_store::nodes::wire::{
    ChunkId, RefusalWhy, Stamp, StorageReport, StoreMessage, UnservedBytes,
};
use parking_lot::Mutex;

pub(crate) use self::damage::CheckedPart;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::fuzz::fuzz_chunk;
#[cfg(test)]
pub(crate) use self::fuzz::fuzz_chunk_inputs;
use self::index::{ChunkEntry, ChunkIndex, Presence};
pub(crate) use self::open_files::OpenChunk;
use self::open_files::OpenFiles;
use self::record::ChunkRecord;
use self::sets::{HeldFilter, Removals};
use self::unsealed::UnsealedChunks;
use self::write::ChunkPut;
use crate::answer::{Outcome, Refusal};
use crate::devices::Device;
use crate::identity::DeviceId;
use crate::meta::MetaSpace;
use crate::parts::NodeParts;
use crate::space::{SpaceByVolume, SpaceUse};

/// Directory of the chunks on a device.
const CHUNKS_NAME: &str = "chunks";
/// Directory, on a device, of the files of chunks with damage.
const DAMAGED_NAME: &str = "damaged";

/// The chunks of a node.
#[derive(Debug)]
pub(crate) struct Chunks {
    parts: NodeParts,
    index: Mutex<ChunkIndex>,
    /// Chunks that are being written.
    unsealed: UnsealedChunks,
    files: OpenFiles,
    /// Orders the changes of records. It also has the removals whose records remain.
    changes: Mutex<Removals>,
    space: SpaceByVolume,
}

impl Chunks {
    /// Answers a request for a chunk or for the blobs of a volume. `device` is that of a new chunk;
    /// `None` for the one with most room.
    pub(crate) fn handle(
        &self,
        message: StoreMessage,
        payload: &[u8],
        device: Option<DeviceId>,
    ) -> Outcome {
        match message {
            StoreMessage::PutChunk { chunk, stamp, class, purpose, offset, crcs } => {
                self.put(&ChunkPut { chunk, stamp, class, purpose, offset, crcs, device }, payload)
            }
            StoreMessage::SealChunk { stamp, descriptor } => self.seal(stamp, descriptor, device),
            StoreMessage::ReadChunk { chunk, ranges } => self.read(chunk, &ranges),
            StoreMessage::Describe { blob } => self.describe(blob),
            StoreMessage::Redescribe { descriptor } => self.redescribe(&descriptor),
            StoreMessage::Retain { blobs, stamp } => self.retain(&blobs, stamp),
            StoreMessage::Release { blobs, stamp } => self.release(&blobs, stamp),
            StoreMessage::AbandonBlob { blob, stamp } => self.abandon(blob, stamp),
            StoreMessage::ListBlobs { volume, after } => Ok(self.list(volume, after)),
            StoreMessage::DropChunk { chunk, placement } => self.drop_chunk(chunk, placement),
            StoreMessage::ReportDamage { chunk, offset } => self.check_report(chunk, offset),
            StoreMessage::ListHeld { present, answering, is_all, after, shared } => {
                self.list_held(&HeldFilter { present, answering, is_all, shared }, after)
            }
            other => Err(Refusal::new(
                RefusalWhy::Unsupported,
                format!("{} is no request for a chunk", other.name()),
            )),
        }
    }

    /// Adds the chunks and their space to a report.
    pub(crate) fn report(&self, report: &mut StorageReport) {
        let counts = self.index.lock().counts();
        report.chunks = counts.whole;
        report.chunks_unreadable = counts.unreadable;
        report.chunks_unsealed = self.unsealed.count() as u64;
        report.volumes.extend(self.space.report());
        report.unserved = UnservedBytes {
            unsealed: self.unsealed.piece_bytes(),
            damaged: counts.damaged_bytes,
            removed: counts.removed_bytes,
        };
    }

    /// The device that a read of a chunk goes to; `None` if the node does not have the chunk.
    pub(crate) fn device_of(&self, chunk: ChunkId) -> Option<DeviceId> {
        let sealed = self.index.lock().get(chunk).map(|entry| entry.device);
        sealed.or_else(|| self.unsealed.get(chunk).map(|unsealed| unsealed.device.id))
    }

    /// Bytes of the sealed chunks that can be read.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.index.lock().counts().whole_bytes
    }

    fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.parts.fs
    }

    /// The newest record of a chunk.
    fn record(&self, chunk: ChunkId) -> Result<Option<ChunkRecord>> {
        let value = self.parts.meta.get(MetaSpace::Chunks, &record::key(chunk))?;
        value.map(|value| ChunkRecord::decode(chunk, &value)).transpose()
    }

    /// The device and the path of the file of an entry; `None` if its device is missing.
    fn file_of(&self, chunk: ChunkId, entry: &ChunkEntry) -> Option<(Arc<Device>, PathBuf)> {
        let device = self.parts.devices.get(entry.device)?;
        let path = match entry.presence {
            Presence::Damaged => damaged_path(&device.dir, chunk),
            Presence::Whole | Presence::Missing | Presence::Removed => {
                chunk_path(&device.dir, chunk)
            }
        };
        Some((Arc::clone(device), path))
    }

    /// Drops a chunk that a repair has begun and not sealed.
    pub(crate) fn abandon_repair(&self, chunk: ChunkId) {
        self.drop_unsealed(chunk.blob, |unsealed| {
            unsealed.chunk == chunk && unsealed.stamp.is_none()
        });
    }

    /// Refuses a request of a fenced owner, and promises its epoch.
    fn promise(&self, stamp: Option<Stamp>) -> Result<(), Refusal> {
        if let Some(stamp) = stamp {
            self.parts.epochs.promise(stamp)?;
        }
        Ok(())
    }

    /// Makes creations and removals in a directory of a device durable.
    fn sync_dir(&self, device: &Device, dir: &Path) -> Result<()> {
        self.parts.counters.note_sync();
        device.sync_dir(&**self.fs(), dir)
    }

    /// Counts the file of a chunk. A missing file occupies nothing.
    fn count_space(&self, chunk: ChunkId, entry: &ChunkEntry) {
        let device = self.parts.devices.get(entry.device);
        if let Some(device) = device.filter(|_| entry.presence != Presence::Missing) {
            self.space.add(entry.written.volume, entry.class, space_of(chunk, entry));
            device.add_used(entry.file_bytes);
        }
    }

    /// Takes back what [`Self::count_space`] counted for the entry.
    fn uncount_space(&self, chunk: ChunkId, entry: &ChunkEntry) {
        let device = self.parts.devices.get(entry.device);
        if let Some(device) = device.filter(|_| entry.presence != Presence::Missing) {
            self.space.sub(entry.written.volume, entry.class, space_of(chunk, entry));
            device.sub_used(entry.file_bytes);
        }
    }
}

fn space_of(chunk: ChunkId, entry: &ChunkEntry) -> SpaceUse {
    SpaceUse {
        objects: 1,
        physical_bytes: entry.file_bytes,
        logical_bytes: entry.logical_bytes(chunk.index),
    }
}

/// Path of a chunk's file. The first byte of the blob's id names the directory, so that no
/// directory gets too many files.
fn chunk_path(device: &Path, chunk: ChunkId) -> PathBuf {
    let mut path = device.join(CHUNKS_NAME);
    path.push(format!("{:02x}", chunk.blob.0[0]));
    path.push(file::file_name(chunk));
    path
}

/// Path of the file of a chunk with damage.
fn damaged_path(device: &Path, chunk: ChunkId) -> PathBuf {
    device.join(DAMAGED_NAME).join(file::file_name(chunk))
}

/// The directory of a path that [`chunk_path`] or [`damaged_path`] made.
fn dir_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}
