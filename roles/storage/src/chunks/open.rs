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
//! | with a whole tail | none | the chunk was sealed before a power loss, and is kept |
//! | without a whole tail | none | the chunk was not sealed, and is removed |
//!
//! Files on a device that the node has just taken in are removed: the node has forgotten the
//! device, and its removals with it.

use std::collections::BTreeMap;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions, descriptors};
use archipelago_store::nodes::wire::ChunkId;
use parking_lot::Mutex;

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

/// Least number of files that are written, and of files that are kept open, whatever the limit of
/// the process is.
const DESCRIPTORS_MIN: usize = 16;

/// A file of a chunk on a device.
#[derive(Clone, Copy, Debug)]
struct FoundFile {
    device: DeviceId,
    file_bytes: u64,
    is_aside: bool,
}

/// The files of all chunks, and what the opening does about them.
#[derive(Debug, Default)]
struct Opening {
    files: BTreeMap<ChunkId, Vec<FoundFile>>,
    /// Records that change.
    records: Vec<(ChunkId, ChunkRecord)>,
    /// Whole files of another length than the record says.
    of_wrong_length: Vec<ChunkId>,
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
        for chunk in &opening.of_wrong_length {
            let why = Error::new(
                ErrorKind::Corrupt,
                format!("chunk {chunk}: the file does not have the length that the metadata say"),
            );
            chunks.set_aside(*chunk, &why)?;
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
        let has_length = kept.is_none_or(|file| file.file_bytes == record.file_bytes);
        if !has_length && entry.presence == Presence::Whole {
            opening.of_wrong_length.push(chunk);
        }
        self.admit(chunk, entry);
        Ok(())
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
                self.note_removal(chunk, dir.to_owned());
            }
            None if devices.lost().contains(&record.device) => {}
            None => self.note_removal(chunk, devices.first().dir.clone()),
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
            let record = if is_kept { None } else { self.sealed_stranger(chunk, file)? };
            match record {
                None => {
                    self.remove_found(chunk, file);
                    opening.unsealed += u64::from(!file.is_aside);
                }
                Some(record) => {
                    is_kept = true;
                    self.admit(chunk, ChunkEntry::of(&record));
                    opening.records.push((chunk, record));
                }
            }
        }
        Ok(())
    }

    /// The record of a file that has none, if the file has a whole tail.
    fn sealed_stranger(&self, chunk: ChunkId, found: &FoundFile) -> Result<Option<ChunkRecord>> {
        let devices = &self.parts.devices;
        let device = devices.get(found.device).filter(|device| !device.is_new && !found.is_aside);
        let Some(device) = device else { return Ok(None) };
        let path = chunk_path(&device.dir, chunk);
        let context = IoContext::new(FileClass::Other, IoPurpose::Recovery);
        let opened = self.fs().open(&path, context, OpenOptions::default())?;
        match file::read_tail(&path, &*opened, chunk, context) {
            Ok(tail) => Ok(Some(ChunkRecord {
                state: RecordState::Sealed,
                device: found.device,
                file_bytes: found.file_bytes,
                descriptor: tail.descriptor,
            })),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
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
