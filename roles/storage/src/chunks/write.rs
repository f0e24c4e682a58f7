//! Puts and seals of chunks, and chunks that are given up while they are written.
//!
//! 1. The first put chooses the device with most room and begins the chunk.
//! 2. Each put checks its bytes against their checksums, checks space, and appends to the file.
//! 3. The seal appends the tail, syncs the file and its directory, and applies the record. The file
//!    describes itself, so the record needs no sync: an opening finds the chunk without it. A
//!    record that replaces another record is synced, because an opening would otherwise use the
//!    older record. The record of a repair is synced as well. Without it, an opening could take the
//!    file for a file of a blob that was given up.

use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::{CreateOptions, FileClass, IoContext, IoPurpose};
use archipelago_store::nodes::layout::{PIECE_BYTES, Scheme};
use archipelago_store::nodes::placement::WritePurpose;
use archipelago_store::nodes::wire::{ChunkDescriptor, ChunkId, RefusalWhy, Stamp, StoreMessage};
use archipelago_store::{BlobId, VolumeId};
use parking_lot::Mutex;

use super::index::{ChunkEntry, Presence};
use super::open_files::OpenChunk;
use super::record::{ChunkRecord, RecordState, key};
use super::sets::Removals;
use super::unsealed::{UnsealedChunk, Writing, WritingEnd, sealed};
use super::{Chunks, chunk_path, dir_of, file};
use crate::answer::{Outcome, Refusal};
use crate::devices::Device;
use crate::identity::DeviceId;
use crate::meta::{MetaBatch, MetaSpace};
use crate::space::SpaceUse;
use crate::tombstones::Grave;

/// A request to append to a chunk.
#[derive(Debug)]
pub(crate) struct ChunkPut {
    pub(crate) chunk: ChunkId,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) class: FileClass,
    pub(crate) purpose: WritePurpose,
    pub(crate) offset: u64,
    pub(crate) crcs: Vec<u32>,
    /// Device of a new chunk; `None` for the one with most room.
    pub(crate) device: Option<DeviceId>,
}

impl ChunkPut {
    fn volume(&self) -> Option<VolumeId> {
        self.stamp.map(|stamp| stamp.volume)
    }

    fn context(&self) -> IoContext {
        let purpose = match self.purpose {
            WritePurpose::Ingestion => IoPurpose::Ingest,
            WritePurpose::Repair => IoPurpose::Maintenance,
            WritePurpose::Job => IoPurpose::Flush,
            WritePurpose::Log => IoPurpose::ForegroundWrite,
        };
        IoContext::new(self.class, purpose)
    }
}

/// The record and the entry that a sealed chunk replaces.
#[derive(Debug)]
struct Replaced {
    /// Whether the metadata had a record of the chunk.
    has_record: bool,
    /// The chunk that could not be read, if the node had one.
    entry: Option<ChunkEntry>,
}

pub(super) fn done() -> Outcome {
    Ok(StoreMessage::Done {}.into())
}

impl Chunks {
    /// Appends to a chunk, which begins with its first bytes.
    pub(super) fn put(&self, put: &ChunkPut, payload: &[u8]) -> Outcome {
        self.check_bytes(put, payload)?;
        self.promise(put.stamp)?;
        let (unsealed, is_new) = self.find_or_begin(put, payload.len() as u64)?;
        let mut writing = unsealed.writing.lock();
        // If a fence follows this second check, the new owner's list shows the chunk. If a fence
        // came earlier, the check refuses the put.
        if let Err(refusal) = self.promise(put.stamp) {
            if is_new && writing.end.is_none() {
                self.drop_writing(&unsealed, &mut writing);
            }
            return Err(refusal);
        }
        if let Err(refusal) = self.append(put, payload, &unsealed, &mut writing) {
            if is_new && writing.end.is_none() && writing.file.is_none() {
                self.drop_writing(&unsealed, &mut writing);
            }
            return Err(refusal);
        }
        self.parts.counters.note_write(put.class, payload.len() as u64);
        done()
    }

    fn check_bytes(&self, put: &ChunkPut, payload: &[u8]) -> Result<(), Refusal> {
        let (chunk, offset) = (put.chunk, put.offset);
        let malformed = |text: String| Refusal::new(RefusalWhy::Malformed, text);
        if !offset.is_multiple_of(PIECE_BYTES) {
            return Err(malformed(format!("chunk {chunk}: offset {offset} is inside a piece")));
        }
        let pieces = file::pieces(payload.len() as u64);
        if put.crcs.len() as u64 != pieces {
            let count = put.crcs.len();
            return Err(malformed(format!("chunk {chunk}: {count} checksums for {pieces} pieces")));
        }
        if self.parts.options.sabotage.no_crc() {
            return Ok(());
        }
        match chunk.checksums().first_damaged_piece(offset, payload, &put.crcs) {
            None => Ok(()),
            Some(at) => Err(Refusal::new(
                RefusalWhy::Damaged,
                format!("chunk {chunk}: the piece at {at} arrived damaged; send it again"),
            )),
        }
    }

    fn find_or_begin(
        &self,
        put: &ChunkPut,
        bytes: u64,
    ) -> Result<(Arc<UnsealedChunk>, bool), Refusal> {
        let chunk = put.chunk;
        let (unsealed, is_new) = match self.unsealed.get(chunk) {
            Some(known) => (known, false),
            None if put.offset > 0 => return Err(self.no_chunk_to_append_to(put)),
            None => self.begin(put, bytes)?,
        };
        let is_same_writer = unsealed.stamp.map(|stamp| stamp.volume) == put.volume();
        if !is_same_writer || unsealed.class != put.class {
            return Err(Refusal::new(
                RefusalWhy::Malformed,
                format!("chunk {chunk} is being written by another volume, or in another class"),
            ));
        }
        Ok((unsealed, is_new))
    }

    fn no_chunk_to_append_to(&self, put: &ChunkPut) -> Refusal {
        let is_sealed = self.index.lock().get(put.chunk).map(|entry| entry.presence);
        match is_sealed {
            Some(Presence::Whole) => sealed(put.chunk),
            _ => Refusal::new(
                RefusalWhy::NotThere,
                format!(
                    "chunk {} is not being written here, and {} is not its first byte: it was \
                     given up, or the node was started again",
                    put.chunk, put.offset
                ),
            ),
        }
    }

    fn begin(&self, put: &ChunkPut, bytes: u64) -> Result<(Arc<UnsealedChunk>, bool), Refusal> {
        let chunk = put.chunk;
        self.check_unknown(chunk)?;
        let device = self.parts.devices.chosen(put.device)?;
        self.check_room(put, &device, bytes)?;
        let path = chunk_path(&device.dir, chunk);
        let (unsealed, is_new) = self.unsealed.add(UnsealedChunk {
            chunk,
            stamp: put.stamp,
            class: put.class,
            device,
            path,
            writing: Mutex::default(),
        })?;
        // Another thread may have sealed the chunk after the check above. A seal enters the index
        // before it leaves the table, so it is seen now. A removal leaves a tombstone before it
        // looks into the table.
        let check = || self.check_unknown(chunk).and_then(|()| self.refuse_removed(put));
        if is_new && let Err(refusal) = check() {
            let mut writing = unsealed.writing.lock();
            if writing.end.is_none() {
                self.drop_writing(&unsealed, &mut writing);
            }
            return Err(refusal);
        }
        Ok((unsealed, is_new))
    }

    /// Refuses a put of an owner who has released or abandoned the blob since.
    fn refuse_removed(&self, put: &ChunkPut) -> Result<(), Refusal> {
        let Some(stamp) = put.stamp else { return Ok(()) };
        let what = format_args!("chunk {}", put.chunk);
        let graves = [Grave::Abandoned, Grave::Released];
        self.parts.tombstones.refuse(stamp, &graves, put.chunk.blob.0, what)
    }

    /// Refuses a new chunk in place of one that the node has, or is just removing.
    fn check_unknown(&self, chunk: ChunkId) -> Result<(), Refusal> {
        let presence = self.index.lock().get(chunk).map(|entry| entry.presence);
        match presence {
            Some(Presence::Whole) => Err(sealed(chunk)),
            Some(Presence::Removed) => Err(Refusal::new(
                RefusalWhy::NotThere,
                format!("chunk {chunk} was given up: use a new identity for each blob"),
            )),
            // A repair replaces a chunk that cannot be read.
            Some(Presence::Damaged | Presence::Missing) | None => Ok(()),
        }
    }

    /// Refuses bytes for which the device, or the quota of the volume, has no room left.
    fn check_room(&self, put: &ChunkPut, device: &Device, bytes: u64) -> Result<(), Refusal> {
        let fullness = self.parts.devices.fullness(device)?;
        let full =
            |what: String| Refusal::new(RefusalWhy::Full, format!("chunk {}: {what}", put.chunk));
        if !fullness.takes(put.purpose, bytes) {
            return Err(full(format!(
                "{} uses {} of {} bytes and takes no {:?} writes; free space, or add devices or \
                 nodes",
                device.dir.display(),
                fullness.used_bytes,
                fullness.capacity_bytes,
                put.purpose
            )));
        }
        match put.volume() {
            Some(volume) if !self.space.permits(volume, put.purpose, bytes) => {
                Err(full(format!("volume {volume} has used up its quota on this node")))
            }
            _ => Ok(()),
        }
    }

    fn append(
        &self,
        put: &ChunkPut,
        payload: &[u8],
        unsealed: &UnsealedChunk,
        writing: &mut Writing,
    ) -> Result<(), Refusal> {
        writing.check_open(put.chunk)?;
        let bytes = payload.len() as u64;
        let known = writing.known_bytes(put.chunk, put.offset, bytes, &put.crcs)?;
        if known == bytes && writing.file.is_some() {
            return Ok(());
        }
        let (payload, crcs) =
            (&payload[known as usize..], &put.crcs[file::pieces(known) as usize..]);
        self.check_room(put, &unsealed.device, payload.len() as u64)?;
        self.unsealed.reserve(crcs.len() as u64)?;
        let written = self.append_to_file(put.context(), payload, unsealed, writing);
        if let Err(error) = written {
            self.unsealed.unreserve(crcs.len() as u64);
            return Err(self.fail_writing(unsealed, writing, error));
        }
        writing.crcs.extend_from_slice(crcs);
        writing.len_bytes += payload.len() as u64;
        unsealed.device.add_used(payload.len() as u64);
        if let Some(volume) = put.volume() {
            self.space.add(volume, put.class, unsealed_space(payload.len() as u64));
        }
        Ok(())
    }

    fn append_to_file(
        &self,
        context: IoContext,
        payload: &[u8],
        unsealed: &UnsealedChunk,
        writing: &mut Writing,
    ) -> Result<()> {
        let file = match &mut writing.file {
            Some(file) => file,
            None => {
                self.fs().create_dir_all(dir_of(&unsealed.path))?;
                let options = CreateOptions::default();
                writing.file.insert(self.fs().create(&unsealed.path, context, options)?)
            }
        };
        file.append(payload)
    }

    /// Drops a chunk whose file failed. A failure other than a full device keeps new chunks away
    /// from it.
    fn fail_writing(
        &self,
        unsealed: &UnsealedChunk,
        writing: &mut Writing,
        error: Error,
    ) -> Refusal {
        if !error.is_no_space() {
            unsealed.device.fail(&error);
        }
        self.drop_writing(unsealed, writing);
        let refusal = Refusal::from(error);
        match refusal.why {
            RefusalWhy::Full => refusal,
            // A missing directory is a failure of the device, and no answer about the chunk.
            _ => Refusal { why: RefusalWhy::Failed, ..refusal },
        }
    }

    /// Removes an unsealed chunk whose lock the caller holds.
    fn drop_writing(&self, unsealed: &UnsealedChunk, writing: &mut Writing) {
        writing.end = Some(WritingEnd::Dropped);
        if writing.file.take().is_some()
            && let Err(error) = self.fs().remove(&unsealed.path)
        {
            tracing::warn!(%error, "an unsealed chunk was not removed; the next start removes it");
        }
        self.uncount_writing(unsealed, writing);
        self.unsealed.remove(unsealed, writing.crcs.len() as u64);
    }

    /// Subtracts the space that the puts of an unsealed chunk have counted.
    fn uncount_writing(&self, unsealed: &UnsealedChunk, writing: &Writing) {
        unsealed.device.sub_used(writing.len_bytes);
        if let Some(stamp) = unsealed.stamp {
            let space = unsealed_space(writing.len_bytes);
            self.space.sub(stamp.volume, unsealed.class, space);
        }
    }

    /// Seals a chunk: its bytes, checksums and descriptor are durable on return.
    pub(super) fn seal(
        &self,
        stamp: Option<Stamp>,
        mut descriptor: ChunkDescriptor,
        device: Option<DeviceId>,
    ) -> Outcome {
        self.promise(stamp)?;
        let chunk = descriptor.chunk;
        let unsealed = match self.unsealed.get(chunk) {
            Some(unsealed) => unsealed,
            None if self.is_whole(chunk) => return self.redescribe(&descriptor),
            None if descriptor.chunk_bytes() == 0 => {
                self.begin_empty(stamp, &descriptor, device)?
            }
            None => {
                return Err(Refusal::new(
                    RefusalWhy::NotThere,
                    format!(
                        "chunk {chunk} is not being written here: it was given up, or the node was \
                         started again"
                    ),
                ));
            }
        };
        let mut writing = unsealed.writing.lock();
        if writing.end == Some(WritingEnd::Sealed) {
            drop(writing);
            return self.redescribe(&descriptor);
        }
        writing.check_open(chunk)?;
        descriptor.retaining.retain(|volume| !writing.released.contains(volume));
        if stamp.is_none() {
            // The other holders may have missed a release.
            descriptor.retaining = self.keeping(&descriptor);
        }
        check_seal(&descriptor, &unsealed, &writing)?;
        let tail_bytes = match self.seal_file(&descriptor, &unsealed, &mut writing) {
            Ok(tail_bytes) => tail_bytes,
            Err(error) => {
                let refusal = self.fail_writing(&unsealed, &mut writing, error);
                self.settle_failed_seal(&unsealed);
                return Err(refusal);
            }
        };
        let record = ChunkRecord {
            state: RecordState::Sealed,
            device: unsealed.device.id,
            file_bytes: writing.len_bytes + tail_bytes,
            descriptor,
        };
        let replaced = match self.admit_sealed(chunk, &record) {
            Ok(replaced) => replaced,
            Err(error) => {
                self.drop_writing(&unsealed, &mut writing);
                self.settle_failed_seal(&unsealed);
                return Err(error.into());
            }
        };
        self.end_writing(&unsealed, &mut writing);
        drop(writing);
        if replaced.has_record || stamp.is_none() {
            self.sync_records()?;
        }
        self.remove_replaced(chunk, &replaced);
        done()
    }

    /// Makes the removal of a file durable that may have a whole tail. Otherwise a power loss could
    /// bring the file back as a sealed chunk, after its blob was given up.
    fn settle_failed_seal(&self, unsealed: &UnsealedChunk) {
        if let Err(error) = self.sync_dir(&unsealed.device, dir_of(&unsealed.path)) {
            tracing::warn!(%error, chunk = %unsealed.chunk,
                "the removal of a chunk that was not sealed may not survive a power loss");
        }
    }

    fn is_whole(&self, chunk: ChunkId) -> bool {
        self.index.lock().get(chunk).is_some_and(|entry| entry.presence == Presence::Whole)
    }

    /// Begins a chunk without bytes, which no put has begun.
    fn begin_empty(
        &self,
        stamp: Option<Stamp>,
        descriptor: &ChunkDescriptor,
        device: Option<DeviceId>,
    ) -> Result<Arc<UnsealedChunk>, Refusal> {
        let put = ChunkPut {
            chunk: descriptor.chunk,
            stamp,
            class: descriptor.class,
            purpose: WritePurpose::Job,
            offset: 0,
            crcs: Vec::new(),
            device,
        };
        self.put(&put, &[])?;
        let begun = self.unsealed.get(descriptor.chunk);
        begun.ok_or_else(|| {
            let text = format!("chunk {} was given up while it was sealed", descriptor.chunk);
            Refusal::new(RefusalWhy::NotThere, text)
        })
    }

    /// Makes the bytes, the checksums and the descriptor of a chunk durable. Returns the length of
    /// the tail.
    fn seal_file(
        &self,
        descriptor: &ChunkDescriptor,
        unsealed: &UnsealedChunk,
        writing: &mut Writing,
    ) -> Result<u64> {
        let tail = file::encode_tail(descriptor, &writing.crcs, writing.len_bytes);
        let file = writing.file.as_mut().ok_or_else(|| {
            let chunk = descriptor.chunk;
            Error::internal(format!("chunk {chunk}: a chunk that is being written has a file"))
        })?;
        file.append(&tail)?;
        file.sync()?;
        self.parts.counters.note_sync();
        self.sync_dir(&unsealed.device, dir_of(&unsealed.path))?;
        Ok(tail.len() as u64)
    }

    /// Makes a sealed file a chunk of the node. After an error, the records and the index are
    /// unchanged.
    fn admit_sealed(&self, chunk: ChunkId, record: &ChunkRecord) -> Result<Replaced> {
        let mut changes = self.changes.lock();
        let has_record = self.record(chunk)?.is_some();
        self.apply_records(&changes, [(chunk, record)])?;
        changes.forget(chunk);
        let entry = self.index.lock().get(chunk).cloned();
        if let Some(old) = &entry {
            self.files.forget(chunk);
            self.uncount_space(chunk, old);
        }
        let sealed = ChunkEntry::of(record);
        self.count_space(chunk, &sealed);
        self.index.lock().insert(chunk, sealed);
        Ok(Replaced { has_record, entry })
    }

    /// Takes a sealed chunk out of those that are being written.
    fn end_writing(&self, unsealed: &UnsealedChunk, writing: &mut Writing) {
        writing.file = None;
        writing.end = Some(WritingEnd::Sealed);
        self.uncount_writing(unsealed, writing);
        let pieces = writing.crcs.len() as u64;
        self.keep_open(unsealed, writing);
        self.unsealed.remove(unsealed, pieces);
    }

    /// Removes a damaged file that a sealed chunk replaces.
    fn remove_replaced(&self, chunk: ChunkId, replaced: &Replaced) {
        let damaged = replaced.entry.as_ref().filter(|old| old.presence == Presence::Damaged);
        if let Some((_, path)) = damaged.and_then(|old| self.file_of(chunk, old))
            && let Err(error) = self.fs().remove(&path)
        {
            tracing::warn!(%error, %chunk, "the damaged file of a repaired chunk was not removed");
        }
    }

    /// Keeps the file of a chunk open that was just sealed, because its reader comes soon.
    fn keep_open(&self, unsealed: &UnsealedChunk, writing: &mut Writing) {
        let context = IoContext::new(unsealed.class, IoPurpose::ForegroundRead);
        let opened =
            self.fs().open(&unsealed.path, context, archipelago_env::OpenOptions::default());
        // A file that cannot be opened now is opened by its first reader, which gets the error.
        if let Ok(file) = opened {
            let (crcs, data_bytes) = (std::mem::take(&mut writing.crcs), writing.len_bytes);
            self.files.keep(unsealed.chunk, Arc::new(OpenChunk { file, crcs, data_bytes }));
        }
    }

    /// Drops the unsealed chunks of a blob. Sealed ones stay.
    pub(super) fn abandon(&self, blob: BlobId, stamp: Stamp) -> Outcome {
        self.promise(Some(stamp))?;
        let mut batch = MetaBatch::default();
        let id = std::iter::once(blob.0);
        self.parts.tombstones.bury(stamp, Grave::Abandoned, id, &mut batch);
        self.parts.meta.write(&batch)?;
        let is_of_volume =
            |chunk: &UnsealedChunk| chunk.stamp.is_none_or(|writer| writer.volume == stamp.volume);
        self.drop_unsealed(blob, is_of_volume);
        done()
    }

    /// Drops the chunks of a blob that are being written and that `drops` names.
    pub(super) fn drop_unsealed(&self, blob: BlobId, drops: impl Fn(&UnsealedChunk) -> bool) {
        for unsealed in self.unsealed.of_blob(blob).into_iter().filter(|chunk| drops(chunk)) {
            let mut writing = unsealed.writing.lock();
            if writing.end.is_none() {
                self.drop_writing(&unsealed, &mut writing);
            }
        }
    }

    /// Replaces the descriptor of a sealed chunk by one with a larger placement epoch, and joins
    /// the volumes of both.
    pub(super) fn redescribe(&self, told: &ChunkDescriptor) -> Outcome {
        self.merge_descriptor(told)?;
        self.sync_records()?;
        done()
    }

    fn merge_descriptor(&self, told: &ChunkDescriptor) -> Result<(), Refusal> {
        let chunk = told.chunk;
        let changes = self.changes.lock();
        let record = self.record(chunk)?.filter(|record| record.state == RecordState::Sealed);
        let Some(mut record) = record.filter(|_| self.is_whole(chunk)) else {
            return Err(Refusal::new(
                RefusalWhy::NotThere,
                format!("chunk {chunk} is not sealed on this node"),
            ));
        };
        if is_other_blob(told, &record.descriptor) {
            return Err(Refusal::new(
                RefusalWhy::Malformed,
                format!("chunk {chunk}: the descriptor is that of another blob"),
            ));
        }
        let merged = merge(&record.descriptor, told);
        if merged != record.descriptor {
            record.descriptor = merged;
            self.apply_records(&changes, [(chunk, &record)])?;
            self.update_entry(chunk, &record.descriptor);
        }
        Ok(())
    }

    /// Takes the set and the scheme of a descriptor into the index. The share of a replica in the
    /// length of its blob depends on the number of replicas, so it is counted anew.
    fn update_entry(&self, chunk: ChunkId, descriptor: &ChunkDescriptor) {
        let Some(old) = self.index.lock().get(chunk).cloned() else { return };
        if old.scheme != descriptor.scheme {
            self.uncount_space(chunk, &old);
            let new = ChunkEntry { scheme: descriptor.scheme, ..old };
            self.count_space(chunk, &new);
        }
        self.index.lock().change(chunk, |entry| {
            entry.scheme = descriptor.scheme;
            entry.retaining.clone_from(&descriptor.retaining);
        });
    }

    /// Applies records, whose order the lock of `_changes` gives. [`Self::sync_records`] makes them
    /// durable, without the lock.
    pub(super) fn apply_records<'a>(
        &self,
        _changes: &Removals,
        records: impl IntoIterator<Item = (ChunkId, &'a ChunkRecord)>,
    ) -> Result<()> {
        let mut batch = MetaBatch::default();
        for (chunk, record) in records {
            batch.put(MetaSpace::Chunks, &key(chunk), &record.encode());
        }
        if batch.is_empty() { Ok(()) } else { self.parts.meta.apply(&batch) }
    }

    /// Makes all applied records durable, also the records of other threads. A request whose change
    /// was made earlier calls it as well, because that change may not be durable yet.
    pub(super) fn sync_records(&self) -> Result<()> {
        self.parts.counters.note_sync();
        self.parts.meta.sync()
    }
}

/// The space of bytes that are not sealed yet. Their share of the blob is not known.
fn unsealed_space(bytes: u64) -> SpaceUse {
    SpaceUse { objects: 0, physical_bytes: bytes, logical_bytes: 0 }
}

/// Refuses a seal whose descriptor does not fit the bytes.
fn check_seal(
    descriptor: &ChunkDescriptor,
    unsealed: &UnsealedChunk,
    writing: &Writing,
) -> Result<(), Refusal> {
    let chunk = descriptor.chunk;
    if descriptor.chunk_bytes() != writing.len_bytes {
        let (has, wanted) = (writing.len_bytes, descriptor.chunk_bytes());
        return Err(Refusal::new(
            RefusalWhy::OutOfOrder { len: has },
            format!("chunk {chunk} has {has} bytes, and its descriptor says {wanted}"),
        ));
    }
    let is_of_volume = unsealed.stamp.is_none_or(|stamp| stamp.volume == descriptor.written.volume);
    if !is_of_volume || descriptor.class != unsealed.class || descriptor.retaining.is_empty() {
        return Err(Refusal::new(
            RefusalWhy::Malformed,
            format!(
                "chunk {chunk}: the descriptor has another volume or class than the bytes, or no \
                 volume retains the blob"
            ),
        ));
    }
    Ok(())
}

fn is_other_blob(told: &ChunkDescriptor, known: &ChunkDescriptor) -> bool {
    // A repair adds replicas that were missing.
    let are_replicas = |scheme| matches!(scheme, Scheme::Replicas(_));
    let is_same_scheme =
        told.scheme == known.scheme || (are_replicas(told.scheme) && are_replicas(known.scheme));
    (told.written.volume, told.class, told.blob_bytes)
        != (known.written.volume, known.class, known.blob_bytes)
        || !is_same_scheme
}

/// The descriptor with the larger placement epoch, and the volumes of both.
pub(super) fn merge(known: &ChunkDescriptor, told: &ChunkDescriptor) -> ChunkDescriptor {
    let newer = if told.placement > known.placement { told } else { known };
    let mut merged = newer.clone();
    merged.retaining = known.retaining.iter().chain(&told.retaining).copied().collect();
    merged.retaining.sort_unstable();
    merged.retaining.dedup();
    merged
}
