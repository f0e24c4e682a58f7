//! The opening of the chunks: the files of the devices are compared with the records. No data are
//! read, and only the tails of files without a record.
//!
//! | file | record | consequence |
//! | --- | --- | --- |
//! | none | sealed | the chunk is missing: its device is lost, or the file was removed |
//! | where the record says | sealed | the chunk is whole; with another length it is damaged |
//! | elsewhere | any | the file is left from a repair or a removal, and is removed |
//! | in `damaged` | sealed or damaged | the chunk is damaged |
//! | any | removed | the removal is completed |
//! | with a whole tail | none | the chunk was sealed before a power loss, and is kept, unless the blob was given up |
//! | without a whole tail | none | the chunk was not sealed, and is removed |
//!
//! Files on a device that is new to the node are removed: the node has forgotten such a device, and
//! its removals with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions, descriptors};
use archipelago_store::nodes::wire::{ChunkDescriptor, ChunkId};
use parking_lot::Mutex;

use super::damage::is_damage;
use super::index::{ChunkEntry, ChunkIndex, Presence};
use super::open_files::{FILES_MAX, OpenFiles};
use super::record::{ChunkRecord, RecordState, parse_key};
use super::sets::Removals;
use super::unsealed::{UNSEALED_MAX, UnsealedChunks};
use super::{CHUNKS_NAME, Chunks, DAMAGED_NAME, chunk_path, damaged_path, dir_of, file};
use crate::devices::Device;
use crate::identity::DeviceId;
use crate::meta::{MetaSpace, Scan};
use crate::parts::NodeParts;
use crate::space::SpaceByVolume;
use crate::tombstones::Grave;

/// Least number of files that are written, and of files that are kept open, even if the process has
/// a small limit.
const DESCRIPTORS_MIN: usize = 16;

/// A file of a chunk on a device.
#[derive(Clone, Copy, Debug)]
struct FoundFile {
    device: DeviceId,
    file_bytes: u64,
    is_aside: bool,
}

/// The files of all chunks, and the changes of records that the opening makes.
#[derive(Debug, Default)]
struct Opening {
    files: BTreeMap<ChunkId, Vec<FoundFile>>,
    /// Records that change.
    records: Vec<(ChunkId, ChunkRecord)>,
    /// Whole files whose length differs from the record, each with its error.
    of_wrong_length: Vec<(ChunkId, Error)>,
    missing: u64,
    unsealed: u64,
}

impl Chunks {
    /// Opens the chunks of a node.
    pub(crate) fn open(parts: &NodeParts) -> Result<Self> {
        let descriptors_max = (descriptors::limit() / 4).max(DESCRIPTORS_MIN);
        let chunks = Self {
            parts: parts.clone(),
            index: Mutex::new(ChunkIndex::default()),
            unsealed: UnsealedChunks::new(descriptors_max.min(UNSEALED_MAX)),
            files: OpenFiles::new(descriptors_max.min(FILES_MAX)),
            changes: Mutex::new(Removals::default()),
            space: SpaceByVolume::new(parts.options.volume_bytes_max),
        };
        let mut opening = Opening { files: chunks.find_files()?, ..Opening::default() };
        parts.meta.scan(MetaSpace::Chunks, &[], &mut |key, value| {
            let chunk = parse_key(key).ok_or_else(|| {
                Error::internal(format!("a record of a chunk has the key {key:02x?}"))
            })?;
            let record = ChunkRecord::decode(chunk, value)?;
            let found = opening.files.remove(&chunk).unwrap_or_default();
            chunks.open_record(chunk, record, &found, &mut opening)?;
            Ok(Scan::Continue)
        })?;
        for (chunk, found) in std::mem::take(&mut opening.files) {
            chunks.open_stranger(chunk, &found, &mut opening)?;
        }
        if !opening.records.is_empty() {
            let records = opening.records.iter().map(|(chunk, record)| (*chunk, record));
            chunks.apply_records(&chunks.changes.lock(), records)?;
            chunks.sync_records()?;
        }
        chunks.settle()?;
        for (chunk, why) in &opening.of_wrong_length {
            if let Err(error) = chunks.set_aside(*chunk, why) {
                // If this fails, a reader finds the damage again and sets the chunk aside then.
                tracing::error!(%error, %chunk, "a damaged chunk could not be moved aside");
            }
        }
        chunks.forget_devices()?;
        if opening.missing + opening.unsealed > 0 {
            let (missing, unsealed) = (opening.missing, opening.unsealed);
            tracing::warn!(node = %parts.storage, missing, unsealed,
                "chunks are missing, or were not sealed and are dropped");
        }
        Ok(chunks)
    }

    /// All files of chunks on the devices. A device that cannot be listed counts as failed, and its
    /// chunks as missing.
    fn find_files(&self) -> Result<BTreeMap<ChunkId, Vec<FoundFile>>> {
        let mut files: BTreeMap<ChunkId, Vec<FoundFile>> = BTreeMap::new();
        for device in self.parts.devices.present() {
            match self.find_files_on(device) {
                Ok(found) => {
                    for (chunk, file) in found {
                        files.entry(chunk).or_default().push(file);
                    }
                }
                Err(error) if device.id == self.parts.devices.first().id => return Err(error),
                Err(error) => device.fail(&error),
            }
        }
        Ok(files)
    }

    fn find_files_on(&self, device: &Device) -> Result<Vec<(ChunkId, FoundFile)>> {
        let mut files = Vec::new();
        let mut dirs = vec![(device.dir.join(DAMAGED_NAME), true)];
        let chunks = device.dir.join(CHUNKS_NAME);
        if self.fs().exists(&chunks)? {
            let inner = self.fs().list(&chunks)?.into_iter().filter(|entry| entry.is_dir);
            dirs.extend(inner.map(|entry| (chunks.join(entry.name), false)));
        }
        for (dir, is_aside) in dirs {
            if !self.fs().exists(&dir)? {
                continue;
            }
            for entry in self.fs().list(&dir)? {
                let Some(chunk) = file::parse_name(&entry.name) else { continue };
                let found = FoundFile { device: device.id, file_bytes: entry.len, is_aside };
                files.push((chunk, found));
            }
        }
        Ok(files)
    }

    /// Opens a chunk that has a record.
    fn open_record(
        &self,
        chunk: ChunkId,
        mut record: ChunkRecord,
        found: &[FoundFile],
        opening: &mut Opening,
    ) -> Result<()> {
        let is_there = |file: &&FoundFile| file.device == record.device;
        let at_home = found.iter().filter(is_there).find(|file| !file.is_aside);
        let aside = found.iter().filter(is_there).find(|file| file.is_aside);
        let kept = match record.state {
            RecordState::Sealed => at_home.or(aside),
            RecordState::Damaged => aside,
            RecordState::Removed => None,
        };
        let is_kept = |file: &FoundFile| kept.is_some_and(|kept| std::ptr::eq(kept, file));
        let mut is_rest_gone = true;
        for left in found.iter().filter(|file| !is_kept(file)) {
            is_rest_gone &= self.remove_found(chunk, left);
        }
        if record.state == RecordState::Removed {
            if is_rest_gone {
                self.complete_removal(chunk, &record);
            }
            return Ok(());
        }
        let is_lost = kept.is_none();
        if kept.is_some_and(|file| file.is_aside) && record.state == RecordState::Sealed {
            record.state = RecordState::Damaged;
            opening.records.push((chunk, record.clone()));
        }
        let mut entry = ChunkEntry::of(&record);
        if is_lost {
            entry.presence = Presence::Missing;
            opening.missing += 1;
        }
        if let Some(found) = kept.filter(|found| found.file_bytes != record.file_bytes) {
            entry.file_bytes = found.file_bytes;
            if entry.presence == Presence::Whole {
                let why = self.wrong_length(chunk, &entry, record.file_bytes);
                opening.of_wrong_length.push((chunk, why));
            }
        }
        self.admit(chunk, entry);
        Ok(())
    }

    /// The error of a file whose length is not that of the record.
    fn wrong_length(&self, chunk: ChunkId, entry: &ChunkEntry, recorded: u64) -> Error {
        let path = self.file_of(chunk, entry).map(|(_, path)| path).unwrap_or_default();
        let has = entry.file_bytes;
        let what =
            format!("chunk {chunk}: the file has {has} bytes, and the metadata say {recorded}");
        Error::corrupt(&path, has.min(recorded), what)
    }

    /// Forgets a removed chunk, unless its device is missing or unreadable and may return with it.
    fn complete_removal(&self, chunk: ChunkId, record: &ChunkRecord) {
        let devices = &self.parts.devices;
        match devices.get(record.device) {
            Some(device) if device.has_failed() => {}
            Some(device) => {
                // If the directory does not exist, no file in it can return.
                let path = chunk_path(&device.dir, chunk);
                let exists = self.fs().exists(dir_of(&path)).unwrap_or(false);
                let dir = if exists { dir_of(&path) } else { &device.dir };
                self.note_removal(chunk, Arc::clone(device), dir.to_owned());
            }
            None if devices.lost().contains(&record.device) => {}
            None => {
                let first = devices.first();
                self.note_removal(chunk, Arc::clone(first), first.dir.clone());
            }
        }
    }

    /// Opens or removes the files of a chunk that has no record.
    fn open_stranger(
        &self,
        chunk: ChunkId,
        found: &[FoundFile],
        opening: &mut Opening,
    ) -> Result<()> {
        let mut is_kept = false;
        for file in found {
            let record = if is_kept { Ok(None) } else { self.sealed_stranger(chunk, file) };
            match record {
                // The file may be a chunk of the node. The next opening that can read it decides.
                Err(error) if self.is_optional(file.device, &error) => {
                    tracing::error!(%error, %chunk, "a file without a record cannot be read");
                }
                Err(error) => return Err(error),
                Ok(None) => {
                    self.remove_found(chunk, file);
                    opening.unsealed += u64::from(!file.is_aside);
                }
                Ok(Some(record)) => {
                    is_kept = true;
                    self.admit(chunk, ChunkEntry::of(&record));
                    opening.records.push((chunk, record));
                }
            }
        }
        Ok(())
    }

    /// Whether the node opens in spite of an error of a device: every device but the first one may
    /// fail.
    fn is_optional(&self, device: DeviceId, error: &Error) -> bool {
        let devices = &self.parts.devices;
        if error.kind() != ErrorKind::Io || device == devices.first().id {
            return false;
        }
        if let Some(device) = devices.get(device) {
            device.fail(error);
        }
        true
    }

    /// Whether the blob of a chunk was abandoned or released. A file without a record then comes
    /// from a seal that failed. A repair makes a chunk for all volumes that keep the blob, so the
    /// file of a repair is given up only if no such volume is left.
    fn is_given_up(&self, descriptor: &ChunkDescriptor) -> bool {
        if descriptor.placement.is_repair() {
            return self.has_released(descriptor);
        }
        let graves = [Grave::Abandoned, Grave::Released];
        let blob = descriptor.chunk.blob;
        self.parts.tombstones.refuse(descriptor.written, &graves, blob.0, blob).is_err()
    }

    /// The record of a file that has none, if the file has a whole tail.
    fn sealed_stranger(&self, chunk: ChunkId, found: &FoundFile) -> Result<Option<ChunkRecord>> {
        let devices = &self.parts.devices;
        let device = devices.get(found.device).filter(|device| !device.is_new && !found.is_aside);
        let Some(device) = device else { return Ok(None) };
        let path = chunk_path(&device.dir, chunk);
        let context = IoContext::new(FileClass::Other, IoPurpose::Recovery);
        let opened = self.fs().open(&path, context, OpenOptions::default());
        match opened.and_then(|opened| file::read_tail(&path, &*opened, chunk, context)) {
            Ok(tail) if self.is_given_up(&tail.descriptor) => Ok(None),
            Ok(tail) => Ok(Some(ChunkRecord {
                state: RecordState::Sealed,
                device: found.device,
                file_bytes: found.file_bytes,
                descriptor: tail.descriptor,
            })),
            Err(error) if is_damage(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a file that belongs to no chunk of the node. Returns whether it is gone.
    fn remove_found(&self, chunk: ChunkId, found: &FoundFile) -> bool {
        let Some(device) = self.parts.devices.get(found.device) else { return false };
        let path = match found.is_aside {
            true => damaged_path(&device.dir, chunk),
            false => chunk_path(&device.dir, chunk),
        };
        let removed = self.fs().remove(&path);
        if let Err(error) = &removed {
            tracing::warn!(%error, "a file that belongs to no chunk was not removed");
        }
        removed.is_ok()
    }

    fn admit(&self, chunk: ChunkId, entry: ChunkEntry) {
        self.count_space(chunk, &entry);
        self.index.lock().insert(chunk, entry);
    }

    /// Forgets missing devices on which no chunk is recorded any more.
    fn forget_devices(&self) -> Result<()> {
        let index = self.index.lock();
        let is_used = |id| index.after(None).any(|(_, entry)| entry.device == id);
        self.parts.devices.forget_lost(is_used)
    }
}
