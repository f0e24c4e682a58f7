//! A part of an extent: a file, the places of some of its groups, and its writer.
//!
//! [`Extent`](super::extent::Extent) owns its parts. Only the last part may have a [`PartWriter`],
//! while this process appends to it.
//!
//! Invariants:
//! 1. The index of a part has its first group, and no two neighbours in it are further apart than
//!    [`INDEX_BYTES`] and one group.
//! 2. A part whose writer synced survives power loss, with its name.
//! 3. After a failed sync of the file or of its name, every later sync of the part fails. The
//!    kernel may have dropped the bytes, and would report the next sync as successful.
//!
//! Thread-safety: none for a part or a writer; the lock of the extent guards them. [`PartSync`] may
//! be used without it.
//! Failure: after a failed append or sync a writer takes no more bytes. After a failed sync of a
//! directory, every later sync of it fails as well ([`Device::sync_dir`]).
//! Cost: an append is one `write`; a read begins at most [`INDEX_BYTES`] and one group before its
//! first byte.

use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::{Epoch, Error, Result};
use archipelago_env::{FileSystem, IoContext, IoPurpose, LogFile, LogOptions, LogSync};
use archipelago_store::nodes::wire::ExtentAt;
use parking_lot::Mutex;

use super::format::{GROUP_HEADER_BYTES, GroupHeader, HEADER_BYTES, PartHeader, part_name};
use super::groups::{GroupPlace, GroupReader, GroupStep, PartSource};
use crate::devices::Device;

/// Distance in the file of two places in the index of a part.
const INDEX_BYTES: u64 = 64 << 10;

/// Places of groups of a part, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupIndex {
    places: Vec<GroupPlace>,
}

impl GroupIndex {
    /// Adds the group at `place` if it is far enough from the last one.
    pub(crate) fn add(&mut self, place: GroupPlace) {
        if self.places.last().is_none_or(|last| place.file >= last.file + INDEX_BYTES) {
            self.places.push(place);
        }
    }

    /// The last place whose group begins at or before `offset` of the log.
    fn before(&self, offset: u64) -> Option<GroupPlace> {
        let behind = self.places.partition_point(|place| place.log <= offset);
        behind.checked_sub(1).map(|at| self.places[at])
    }
}

/// A part of an extent.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Number of the part.
    pub(crate) number: Epoch,
    /// Offset in the log of its first byte.
    pub(crate) start: u64,
    /// Device of the file.
    pub(crate) device: Arc<Device>,
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Bytes that the file occupies.
    pub(crate) file_bytes: u64,
    /// Places of groups; `None` before the first read of a part that this process did not write.
    pub(crate) index: Option<GroupIndex>,
}

impl Part {
    /// The place from which a read of `offset` begins.
    pub(crate) fn place_before(&self, offset: u64) -> GroupPlace {
        let place = self.index.as_ref().and_then(|index| index.before(offset));
        place.unwrap_or_else(|| GroupPlace::first(self.start))
    }

    /// Removes the file of a part that no record names. A file that cannot be removed is removed
    /// when the node opens again.
    pub(crate) fn discard(self, fs: &dyn FileSystem) {
        match fs.remove(&self.path) {
            Ok(()) => self.device.sub_used(self.file_bytes),
            Err(error) => tracing::warn!(%error, "a part of an extent stays until the next start"),
        }
    }
}

/// Name of the directory of parts on a device.
pub(crate) const LOGS_NAME: &str = "logs";

/// Progress of the syncs of a part.
#[derive(Debug)]
enum SyncState {
    /// The name of the file may be lost with the power.
    Unnamed,
    /// The name of the file is durable.
    Named,
    /// A sync failed.
    Failed(Error),
}

/// Makes a part survive power loss, with its name.
#[derive(Debug)]
pub(crate) struct PartSync {
    log: Arc<dyn LogSync>,
    device: Arc<Device>,
    dir: PathBuf,
    /// Held over a sync, so that none begins before an earlier one has failed.
    state: Mutex<SyncState>,
}

impl PartSync {
    /// Makes everything durable that was appended before this call. The first error is sticky.
    pub(crate) fn sync(&self, fs: &dyn FileSystem) -> Result<()> {
        let mut state = self.state.lock();
        if let SyncState::Failed(error) = &*state {
            return Err(error.clone());
        }
        let is_unnamed = matches!(&*state, SyncState::Unnamed);
        let synced = self.log.sync().and_then(|_| match is_unnamed {
            true => self.device.sync_dir(fs, &self.dir),
            false => Ok(()),
        });
        *state = match &synced {
            Ok(()) => SyncState::Named,
            Err(error) => SyncState::Failed(error.clone()),
        };
        synced
    }
}

/// The writer of the last part of an extent.
#[derive(Debug)]
pub(crate) struct PartWriter {
    file: Box<dyn LogFile>,
    sync: Arc<PartSync>,
}

impl PartWriter {
    /// Creates the file of a part on `device`, with its header.
    pub(crate) fn create(
        fs: &dyn FileSystem,
        device: Arc<Device>,
        header: &PartHeader,
    ) -> Result<(Self, Part)> {
        let dir = device.dir.join(LOGS_NAME);
        let path = dir.join(part_name(header.at, header.part));
        let options = LogOptions { incarnation: header.part, size_hint_bytes: 0, recycle: None };
        let context = IoContext::new(header.class, IoPurpose::ForegroundWrite);
        let mut file = fs.create_log(&path, context, options)?;
        file.append(&[&header.encode()])?;
        let sync = Arc::new(PartSync {
            log: file.sync_handle(),
            device: Arc::clone(&device),
            dir,
            state: Mutex::new(SyncState::Unnamed),
        });
        device.add_used(HEADER_BYTES as u64);
        let part = Part {
            number: header.part,
            start: header.start,
            device,
            path,
            file_bytes: HEADER_BYTES as u64,
            index: Some(GroupIndex::default()),
        };
        Ok((Self { file, sync }, part))
    }

    /// Appends a group at `offset` of the log. On return it survives a kill of the process.
    pub(crate) fn append(&mut self, part: &mut Part, group: Group<'_>) -> Result<()> {
        let header = GroupHeader::new(group.at, group.offset, group.bytes).encode();
        let file = self.file.append(&[&header, group.bytes])?;
        part.index.get_or_insert_default().add(GroupPlace { log: group.offset, file });
        let bytes = (GROUP_HEADER_BYTES + group.bytes.len()) as u64;
        part.file_bytes += bytes;
        part.device.add_used(bytes);
        Ok(())
    }

    /// The handle that syncs the part.
    pub(crate) fn sync_handle(&self) -> Arc<PartSync> {
        Arc::clone(&self.sync)
    }

    /// Whether a reader of the file misses bytes, because the file system keeps them elsewhere.
    pub(crate) fn has_unwritten_bytes(&self) -> bool {
        self.file.unwritten_bytes() > 0
    }

    /// Ends the part. Its bytes are in its file from then on.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.file.finish()
    }
}

/// Bytes of one append.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    /// Extent of the group.
    pub(crate) at: ExtentAt,
    /// Offset in the log of the first byte.
    pub(crate) offset: u64,
    /// The bytes; at least one.
    pub(crate) bytes: &'a [u8],
}

/// Reads the places of all groups of a part that this process did not write.
pub(crate) fn index_of(source: &PartSource, at: ExtentAt, start: u64) -> Result<GroupIndex> {
    let mut index = GroupIndex::default();
    let mut reader = GroupReader::new(source, at, GroupPlace::first(start));
    while let GroupStep::Group { place, .. } = reader.step()? {
        index.add(place);
    }
    Ok(index)
}
