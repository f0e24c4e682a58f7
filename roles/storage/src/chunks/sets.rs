//! Descriptors, the sets of volumes that keep blobs, lists, and the removal of chunks.
//!
//! A removal has three steps, each of which an opening completes after a crash:
//! 1. The record says *removed*, durably.
//! 2. The file is removed, and the chunk leaves the index.
//! 3. Later, the directory is synced, and then the record is removed. Without this order, a power
//!    loss could bring the file back, and the opening would take it for a chunk without a record.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Epoch, ErrorKind, Result};
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::layout::{REPLICAS, Scheme};
use archipelago_store::nodes::wire::{
    BlobEntry, ChunkDescriptor, ChunkId, CodingDue, HeldChunk, PlacementEpoch, RefusalWhy, Stamp,
    StoreMessage,
};
use archipelago_store::{BlobId, VolumeId};

use super::index::{ChunkEntry, Presence};
use super::record::{ChunkRecord, RecordState, key};
use super::write::done;
use super::{Chunks, dir_of};
use crate::answer::{Answer, Outcome, Refusal};
use crate::devices::Device;
use crate::meta::{MetaBatch, MetaSpace};
use crate::tombstones::Grave;

/// Largest number of blobs in a request or an answer.
const BLOBS_MAX: usize = 4096;
/// Number of removals after which their records are removed.
const REMOVALS_MAX: usize = 256;

/// Number of chunks that one list for repairs looks at.
const HELD_LOOKED_AT: usize = 1024;
/// Largest number of chunks in a list for repairs.
const HELD_MAX: usize = 256;

/// Filter of the chunks that a list for repairs has.
#[derive(Debug)]
pub(crate) struct HeldFilter {
    /// Nodes that keep their chunks.
    pub(crate) present: Vec<StorageId>,
    /// Nodes that answer.
    pub(crate) answering: Vec<StorageId>,
    /// Whether the list has all chunks.
    pub(crate) is_all: bool,
    /// Nodes that keep their chunks and share a domain, by domain.
    pub(crate) shared: Vec<Vec<StorageId>>,
}

impl HeldFilter {
    /// The first holder of a blob that answers. This holder lists and counts the blob.
    fn lister(&self, blob: &ChunkDescriptor) -> Option<StorageId> {
        let mut holders = blob.holders.iter().map(|holder| holder.storage);
        holders.find(|node| self.answering.contains(node))
    }

    /// Whether a chunk of the node `me` is listed. The first holder that answers lists the blob, so
    /// that the blob is listed once.
    fn takes(&self, blob: &ChunkDescriptor, is_readable: bool, me: StorageId) -> bool {
        if self.is_all || !is_readable {
            return true;
        }
        let holders = || blob.holders.iter().map(|holder| holder.storage);
        let has_left = holders().any(|node| !self.present.contains(&node));
        let lacks_copies = match blob.scheme {
            Scheme::Replicas(_) => blob.holders.len() < usize::from(REPLICAS),
            Scheme::Rs42(_) => false,
        };
        let is_crowded =
            |group: &Vec<StorageId>| holders().filter(|node| group.contains(node)).count() > 1;
        let is_crowded = self.shared.iter().any(is_crowded);
        let needs_repair = has_left || lacks_copies || is_crowded;
        // A node that drains lists all its chunks, because other holders may not name this node any
        // more.
        !self.present.contains(&me) || (self.lister(blob) == Some(me) && needs_repair)
    }
}

/// A removed file whose record remains.
#[derive(Clone, Debug)]
struct Removal {
    /// Number of the removal, so that a chunk that is removed twice has two.
    number: u64,
    device: Arc<Device>,
    dir: PathBuf,
}

/// Removals whose records remain.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    removed: BTreeMap<ChunkId, Removal>,
    next_number: u64,
}

impl Removals {
    /// Forgets the removal of a chunk that has a new record.
    pub(crate) fn forget(&mut self, chunk: ChunkId) {
        self.removed.remove(&chunk);
    }

    fn add(&mut self, chunk: ChunkId, device: Arc<Device>, dir: PathBuf) {
        self.removed.insert(chunk, Removal { number: self.next_number, device, dir });
        self.next_number += 1;
    }
}

impl Chunks {
    /// The descriptors of the chunks of a blob that can be read.
    pub(super) fn describe(&self, blob: BlobId) -> Outcome {
        let is_whole = |entry: &ChunkEntry| entry.presence == Presence::Whole;
        let whole: Vec<ChunkId> = {
            let index = self.index.lock();
            index.of_blob(blob).filter(|(_, entry)| is_whole(entry)).map(|(id, _)| id).collect()
        };
        let mut descriptors = Vec::with_capacity(whole.len());
        for chunk in whole {
            descriptors.extend(self.record(chunk)?.map(|record| record.descriptor));
        }
        Ok(StoreMessage::Descriptors { descriptors }.into())
    }

    /// Adds the volume of the stamp to the sets of blobs. Refused, without a change of a set, if a
    /// blob has no chunk here.
    pub(super) fn retain(&self, blobs: &[BlobId], stamp: Stamp) -> Outcome {
        check_count(blobs)?;
        self.promise(Some(stamp))?;
        self.add_to_sets(blobs, stamp)?;
        self.sync_records()?;
        done()
    }

    fn add_to_sets(&self, blobs: &[BlobId], stamp: Stamp) -> Result<(), Refusal> {
        let volume = stamp.volume;
        let changes = self.changes.lock();
        // If a fence follows this check, the new owner's list takes the same lock, so it shows
        // these blobs.
        self.parts.epochs.of(volume).check(stamp)?;
        let mut changed = Vec::new();
        for blob in blobs {
            let chunks = self.chunks_of(*blob);
            if chunks.is_empty() {
                return Err(Refusal::new(
                    RefusalWhy::NotThere,
                    format!("blob {blob} has no sealed chunk on this node; it was given up"),
                ));
            }
            for (chunk, entry) in chunks {
                if let Err(at) = entry.retaining.binary_search(&volume)
                    && let Some(mut record) = self.record(chunk)?
                {
                    record.descriptor.retaining.insert(at, volume);
                    changed.push((chunk, record));
                }
            }
        }
        self.apply_records(&changes, changed.iter().map(|(chunk, record)| (*chunk, record)))?;
        self.update_index(&changed);
        Ok(())
    }

    /// Takes a volume out of the sets of blobs, and removes those that no volume keeps.
    pub(super) fn release(&self, blobs: &[BlobId], stamp: Stamp) -> Outcome {
        check_count(blobs)?;
        self.promise(Some(stamp))?;
        // A later put finds the tombstone, and the chunk of an earlier put is found below.
        let mut graves = MetaBatch::default();
        let ids = blobs.iter().map(|blob| blob.0);
        self.parts.tombstones.bury(stamp, Grave::Released, ids, &mut graves);
        self.parts.meta.apply(&graves)?;
        let is_own = |writer: Option<Stamp>| writer.is_some_and(|own| own.volume == stamp.volume);
        for blob in blobs {
            self.drop_unsealed(*blob, |unsealed| is_own(unsealed.stamp));
            for repaired in self.unsealed.of_blob(*blob) {
                repaired.writing.lock().released.insert(stamp.volume);
            }
        }
        let chunks = || -> Vec<(ChunkId, ChunkEntry)> {
            blobs.iter().flat_map(|blob| self.chunks_of(*blob)).collect()
        };
        let removed = self.take_from_sets(&chunks, &[stamp.volume])?;
        self.sync_records()?;
        self.remove_files(removed)?;
        done()
    }

    /// The volumes of a descriptor's set that keep the blob, as far as this node knows. The volume
    /// that wrote the blob never keeps it again after its release, so its tombstone counts. Another
    /// volume may have retained the blob again after a release, and only the holders know that.
    pub(super) fn keeping(&self, blob: &ChunkDescriptor) -> Vec<VolumeId> {
        let writer = blob.written.volume;
        let id = blob.chunk.blob.0;
        let is_released = self.parts.tombstones.contains(writer, Grave::Released, id);
        let keeping = blob.retaining.iter().filter(|volume| !is_released || **volume != writer);
        keeping.copied().collect()
    }

    /// Whether a set has volumes, none of which keeps the blob any more.
    pub(crate) fn has_released(&self, blob: &ChunkDescriptor) -> bool {
        !blob.retaining.is_empty() && self.keeping(blob).is_empty()
    }

    /// Takes volumes out of the set of one chunk, because other holders have released the blob for
    /// them.
    pub(crate) fn take_volumes(&self, chunk: ChunkId, volumes: &[VolumeId]) -> Result<()> {
        let chunks = || -> Vec<(ChunkId, ChunkEntry)> {
            let of_blob = self.chunks_of(chunk.blob).into_iter();
            of_blob.filter(|(known, _)| *known == chunk).collect()
        };
        let removed = self.take_from_sets(&chunks, volumes)?;
        self.sync_records()?;
        self.remove_files(removed)
    }

    /// Takes volumes out of the sets of chunks, which it looks up under the lock of changes.
    /// Returns the chunks that are to be removed.
    fn take_from_sets(
        &self,
        chunks: &dyn Fn() -> Vec<(ChunkId, ChunkEntry)>,
        volumes: &[VolumeId],
    ) -> Result<Vec<(ChunkId, ChunkEntry)>> {
        let ignores_sets = self.parts.options.sabotage.release_ignores_sets();
        let changes = self.changes.lock();
        let (mut changed, mut removed) = (Vec::new(), Vec::new());
        for (chunk, entry) in chunks() {
            if !entry.retaining.iter().any(|volume| volumes.contains(volume)) {
                continue;
            }
            let Some(mut record) = self.record(chunk)? else { continue };
            record.descriptor.retaining.retain(|volume| !volumes.contains(volume));
            if record.descriptor.retaining.is_empty() || ignores_sets {
                record.state = RecordState::Removed;
                removed.push((chunk, entry));
            }
            changed.push((chunk, record));
        }
        self.apply_records(&changes, changed.iter().map(|(chunk, record)| (*chunk, record)))?;
        self.update_index(&changed);
        Ok(removed)
    }

    /// Lists chunks for repairs ([`StoreMessage::ListHeld`]).
    pub(super) fn list_held(&self, wanted: &HeldFilter, after: Option<ChunkId>) -> Outcome {
        let page: Vec<(ChunkId, Presence)> = {
            let index = self.index.lock();
            let kept = index.after(after).filter(|(_, entry)| entry.presence != Presence::Removed);
            kept.map(|(chunk, entry)| (chunk, entry.presence)).take(HELD_LOOKED_AT).collect()
        };
        let is_last = page.len() < HELD_LOOKED_AT;
        let mut chunks = Vec::new();
        let (mut last, mut coding_due) = (None, CodingDue::default());
        for (chunk, presence) in page {
            if chunks.len() >= HELD_MAX {
                return Ok(StoreMessage::Held { chunks, next: last, coding_due }.into());
            }
            last = Some(chunk);
            let Some(record) = self.record(chunk)? else { continue };
            let blob = &record.descriptor;
            if blob.is_coding_due && wanted.lister(blob) == Some(self.parts.storage) {
                coding_due.files += 1;
                coding_due.bytes += blob.blob_bytes;
            }
            let is_readable = presence == Presence::Whole;
            if wanted.takes(blob, is_readable, self.parts.storage) {
                chunks.push(HeldChunk { descriptor: record.descriptor, is_readable });
            }
        }
        let next = if is_last { None } else { last };
        Ok(StoreMessage::Held { chunks, next, coding_due }.into())
    }

    /// Removes a chunk that a larger placement epoch does not list.
    pub(super) fn drop_chunk(&self, chunk: ChunkId, placement: PlacementEpoch) -> Outcome {
        let removed = self.take_unlisted(chunk, placement)?;
        self.sync_records()?;
        self.remove_files(removed)?;
        done()
    }

    fn take_unlisted(
        &self,
        chunk: ChunkId,
        placement: PlacementEpoch,
    ) -> Result<Option<(ChunkId, ChunkEntry)>, Refusal> {
        let changes = self.changes.lock();
        let known = self.chunks_of(chunk.blob).into_iter().find(|(known, _)| *known == chunk);
        let (Some(known), Some(mut record)) = (known, self.record(chunk)?) else {
            return Ok(None);
        };
        let descriptor = &record.descriptor;
        let lists_node = descriptor.holders.iter().any(|it| it.storage == self.parts.storage);
        let is_newer = descriptor.placement > placement;
        if is_newer || (descriptor.placement == placement && lists_node) {
            return Err(Refusal::new(
                RefusalWhy::Malformed,
                format!("chunk {chunk}: this node knows a newer placement, or is listed by it"),
            ));
        }
        record.state = RecordState::Removed;
        let changed = [(chunk, record)];
        self.apply_records(&changes, changed.iter().map(|(chunk, record)| (*chunk, record)))?;
        self.update_index(&changed);
        Ok(Some(known))
    }

    /// The blobs after `after` that a volume retains or writes.
    pub(super) fn list(&self, volume: VolumeId, after: Option<BlobId>) -> Answer {
        let mut sealed: BTreeMap<BlobId, BlobEntry> = BTreeMap::new();
        // The lock waits for a retain that has passed its check of the epoch, so the index has that
        // retain.
        let changes = self.changes.lock();
        let index = self.index.lock();
        let from = after.map(|blob| ChunkId { blob, index: u8::MAX });
        for (chunk, entry) in index.after(from) {
            if sealed.len() > BLOBS_MAX {
                break;
            }
            if entry.retaining.contains(&volume) && entry.presence != Presence::Removed {
                // If another volume wrote the blob, no epoch of this volume belongs to it.
                let is_writer = entry.written.volume == volume;
                let epoch = if is_writer { entry.written.epoch } else { Epoch::default() };
                let listed = BlobEntry { blob: chunk.blob, epoch, is_sealed: true };
                sealed.insert(chunk.blob, listed);
            }
        }
        drop(index);
        drop(changes);
        let mut blobs = sealed;
        let unsealed = self.unsealed.of_volume(volume, after);
        blobs.extend(unsealed.into_iter().map(|entry| (entry.blob, entry)));
        let has_more = blobs.len() > BLOBS_MAX;
        let blobs = blobs.into_values().take(BLOBS_MAX).collect();
        StoreMessage::Blobs { blobs, has_more }.into()
    }

    /// The chunks of a blob that have a record, and are not being removed.
    fn chunks_of(&self, blob: BlobId) -> Vec<(ChunkId, ChunkEntry)> {
        let index = self.index.lock();
        let kept = index.of_blob(blob).filter(|(_, entry)| entry.presence != Presence::Removed);
        kept.map(|(chunk, entry)| (chunk, entry.clone())).collect()
    }

    fn update_index(&self, changed: &[(ChunkId, ChunkRecord)]) {
        let mut index = self.index.lock();
        for (chunk, record) in changed {
            index.change(*chunk, |entry| {
                entry.retaining.clone_from(&record.descriptor.retaining);
                if record.state == RecordState::Removed {
                    entry.presence = Presence::Removed;
                }
            });
        }
    }

    /// Removes the files of chunks whose records say *removed*, durably. The entries are those
    /// before the removal. A file that cannot be removed now is removed by the next opening.
    fn remove_files(&self, removed: impl IntoIterator<Item = (ChunkId, ChunkEntry)>) -> Result<()> {
        let mut is_full = false;
        for (chunk, entry) in removed {
            self.files.forget(chunk);
            // The record of a chunk on a missing device stays, because the device may return.
            if let Some((device, path)) = self.file_of(chunk, &entry) {
                match self.fs().remove(&path) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => {
                        tracing::warn!(%error, "a chunk was not removed; the next start removes it");
                        continue;
                    }
                }
                self.note_removal(chunk, device, dir_of(&path).to_owned());
                is_full = self.changes.lock().removed.len() >= REMOVALS_MAX;
            }
            self.uncount_space(chunk, &entry);
            self.index.lock().remove(chunk);
        }
        if is_full { self.settle() } else { Ok(()) }
    }

    /// Notes that the file of a removed chunk is gone, and that its record remains.
    pub(super) fn note_removal(&self, chunk: ChunkId, device: Arc<Device>, dir: PathBuf) {
        self.changes.lock().add(chunk, device, dir);
    }

    /// Makes removals of files durable, and then removes their records. Removals whose directory
    /// cannot be synced keep their records until the node opens again: their files may return.
    pub(crate) fn settle(&self) -> Result<()> {
        let removed = self.changes.lock().removed.clone();
        let mut synced: BTreeMap<&Path, bool> = BTreeMap::new();
        for removal in removed.values() {
            let sync = || match self.sync_dir(&removal.device, &removal.dir) {
                Ok(()) => true,
                Err(error) => {
                    tracing::warn!(%error, "removals of chunks are not durable; the next start removes them again");
                    false
                }
            };
            synced.entry(&removal.dir).or_insert_with(sync);
        }
        let mut changes = self.changes.lock();
        let mut batch = MetaBatch::default();
        for (chunk, removal) in &removed {
            let is_same = |known: &Removal| known.number == removal.number;
            let is_durable = synced.get(removal.dir.as_path()).copied().unwrap_or(false);
            if is_durable && changes.removed.get(chunk).is_some_and(is_same) {
                changes.removed.remove(chunk);
                batch.remove(MetaSpace::Chunks, &key(*chunk));
            }
        }
        if batch.is_empty() { Ok(()) } else { self.parts.meta.apply(&batch) }
    }
}

fn check_count(blobs: &[BlobId]) -> Result<(), Refusal> {
    if blobs.len() <= BLOBS_MAX {
        return Ok(());
    }
    let text = format!("{} blobs in one request; it takes {BLOBS_MAX}", blobs.len());
    Err(Refusal::new(RefusalWhy::Malformed, text))
}
