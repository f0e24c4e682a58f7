//! The index of a node's chunks in memory: the file of each chunk, and the volumes that keep it.
//!
//! [`Chunks`](super::Chunks) owns the [`ChunkIndex`] under a lock that is held for look-ups and
//! changes, and never over I/O. Descriptors stay in the metadata, because they are long and rarely
//! needed.
//!
//! Thread-safety: none; the owner's lock guards the value.
//! Failure: none. Cost: O(log chunks) per look-up, and about 200 bytes of memory per chunk.

use std::collections::BTreeMap;
use std::ops::Bound;

use archipelago_env::FileClass;
use archipelago_store::nodes::layout::{DATA_CHUNKS, Scheme};
use archipelago_store::nodes::wire::{ChunkId, Stamp};
use archipelago_store::{BlobId, VolumeId};

use super::record::{ChunkRecord, RecordState};
use crate::identity::DeviceId;

/// Whether a chunk can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The file is whole, as far as the node knows.
    Whole,
    /// The file has damage and was moved aside.
    Damaged,
    /// The file or its device is missing.
    Missing,
    /// The chunk was given up, and its file is being removed.
    Removed,
}

/// Entry of the index for a chunk.
#[derive(Clone, Debug)]
pub(crate) struct ChunkEntry {
    pub(crate) presence: Presence,
    pub(crate) device: DeviceId,
    pub(crate) file_bytes: u64,
    pub(crate) data_bytes: u64,
    pub(crate) class: FileClass,
    pub(crate) scheme: Scheme,
    pub(crate) written: Stamp,
    pub(crate) retaining: Vec<VolumeId>,
}

impl ChunkEntry {
    /// The entry of a record whose file exists with the recorded length.
    pub(crate) fn of(record: &ChunkRecord) -> Self {
        let descriptor = &record.descriptor;
        let presence = match record.state {
            RecordState::Sealed => Presence::Whole,
            RecordState::Damaged => Presence::Damaged,
            RecordState::Removed => Presence::Removed,
        };
        Self {
            presence,
            device: record.device,
            file_bytes: record.file_bytes,
            data_bytes: descriptor.chunk_bytes(),
            class: descriptor.class,
            scheme: descriptor.scheme,
            written: descriptor.written,
            retaining: descriptor.retaining.clone(),
        }
    }

    /// Share of the chunk in the blob's length, in bytes. The shares of all chunks add up to the
    /// length: parity has no share, and replicas divide the length.
    pub(crate) fn logical_bytes(&self, index: u8) -> u64 {
        match self.scheme {
            Scheme::Replicas(copies) => self.data_bytes / u64::from(copies.max(1)),
            Scheme::Rs42(_) if index < DATA_CHUNKS => self.data_bytes,
            Scheme::Rs42(_) => 0,
        }
    }
}

/// Number of chunks, by whether the node can read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkCounts {
    /// Chunks that can be read.
    pub(crate) whole: u64,
    /// Chunks that are damaged or missing.
    pub(crate) unreadable: u64,
    /// Length of the files of the chunks that can be read.
    pub(crate) whole_bytes: u64,
    /// Length of the files that were set aside because of damage.
    pub(crate) damaged_bytes: u64,
    /// Length of the files that are being removed.
    pub(crate) removed_bytes: u64,
}

impl ChunkCounts {
    fn of(entry: &ChunkEntry) -> Self {
        let (none, bytes) = (Self::default(), entry.file_bytes);
        match entry.presence {
            Presence::Whole => Self { whole: 1, whole_bytes: bytes, ..none },
            Presence::Damaged => Self { unreadable: 1, damaged_bytes: bytes, ..none },
            Presence::Missing => Self { unreadable: 1, ..none },
            Presence::Removed => Self { removed_bytes: bytes, ..none },
        }
    }

    fn add(&mut self, entry: &ChunkEntry) {
        let more = Self::of(entry);
        self.whole += more.whole;
        self.unreadable += more.unreadable;
        self.whole_bytes += more.whole_bytes;
        self.damaged_bytes += more.damaged_bytes;
        self.removed_bytes += more.removed_bytes;
    }

    fn sub(&mut self, entry: &ChunkEntry) {
        let less = Self::of(entry);
        self.whole -= less.whole;
        self.unreadable -= less.unreadable;
        self.whole_bytes -= less.whole_bytes;
        self.damaged_bytes -= less.damaged_bytes;
        self.removed_bytes -= less.removed_bytes;
    }
}

/// All chunks that have a record.
#[derive(Debug, Default)]
pub(crate) struct ChunkIndex {
    entries: BTreeMap<ChunkId, ChunkEntry>,
    counts: ChunkCounts,
}

impl ChunkIndex {
    /// The entry of a chunk.
    pub(crate) fn get(&self, chunk: ChunkId) -> Option<&ChunkEntry> {
        self.entries.get(&chunk)
    }

    /// Changes the entry of a chunk, if there is one.
    pub(crate) fn change(&mut self, chunk: ChunkId, change: impl FnOnce(&mut ChunkEntry)) {
        if let Some(entry) = self.entries.get_mut(&chunk) {
            self.counts.sub(entry);
            change(entry);
            self.counts.add(entry);
        }
    }

    /// Adds or replaces an entry.
    pub(crate) fn insert(&mut self, chunk: ChunkId, entry: ChunkEntry) {
        self.remove(chunk);
        self.counts.add(&entry);
        self.entries.insert(chunk, entry);
    }

    /// Removes an entry, if there is one.
    pub(crate) fn remove(&mut self, chunk: ChunkId) {
        if let Some(entry) = self.entries.remove(&chunk) {
            self.counts.sub(&entry);
        }
    }

    /// Number of chunks.
    pub(crate) fn counts(&self) -> ChunkCounts {
        self.counts
    }

    /// The chunks of a blob.
    pub(crate) fn of_blob(&self, blob: BlobId) -> impl Iterator<Item = (ChunkId, &ChunkEntry)> {
        let range = ChunkId { blob, index: 0 }..=ChunkId { blob, index: u8::MAX };
        self.entries.range(range).map(|(chunk, entry)| (*chunk, entry))
    }

    /// The chunks after `after`, in order.
    pub(crate) fn after(
        &self,
        after: Option<ChunkId>,
    ) -> impl Iterator<Item = (ChunkId, &ChunkEntry)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.entries.range((from, Bound::Unbounded)).map(|(chunk, entry)| (*chunk, entry))
    }
}
