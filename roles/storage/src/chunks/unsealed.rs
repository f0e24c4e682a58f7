//! Chunks that are being written: their files, and the checksums of their pieces.
//!
//! [`UnsealedChunks`] has one [`UnsealedChunk`] for each. An unsealed chunk does not survive a
//! restart.
//!
//! Invariants:
//! 1. There are at most [`UNSEALED_MAX`] unsealed chunks, and no more than a quarter of the file
//!    descriptors of the process. Their checksums have at most [`TABLE_BYTES_MAX`].
//! 2. The file has exactly the pieces that the checksums describe. Only the last piece may be
//!    short, and then the chunk takes no further bytes.
//! 3. An unsealed chunk is in the table until its file is sealed or removed, so that no second file
//!    of the same name is created.
//!
//! Thread-safety: one lock for the table, and one per chunk, which is held over its I/O.
//! Failure: the owner drops a chunk whose file failed.
//! Cost: 4 bytes of memory per 4 KiB.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_env::{FileClass, WritableFile};
use archipelago_store::nodes::layout::PIECE_BYTES;
use archipelago_store::nodes::wire::{BlobEntry, ChunkId, RefusalWhy, Stamp};
use archipelago_store::{BlobId, VolumeId};
use parking_lot::Mutex;

use crate::answer::Refusal;
use crate::devices::Device;

/// Largest number of unsealed chunks. Each one has an open file with a buffer.
pub(crate) const UNSEALED_MAX: usize = 512;
/// Largest number of bytes of the checksums of all unsealed chunks: those of 64 GiB.
pub(crate) const TABLE_BYTES_MAX: u64 = 64 << 20;

/// End of the writing of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritingEnd {
    /// The chunk is sealed.
    Sealed,
    /// The chunk was given up, or its file failed.
    Dropped,
}

/// The bytes of a chunk that is being written.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    /// The file; `None` before the first byte and after the end.
    pub(crate) file: Option<Box<dyn WritableFile>>,
    /// Checksums of the pieces.
    pub(crate) crcs: Vec<u32>,
    /// Number of bytes.
    pub(crate) len_bytes: u64,
    /// End of the writing; `None` while it continues.
    pub(crate) end: Option<WritingEnd>,
    /// Volumes that have released the blob since a repair began the chunk. The sealed chunk does
    /// not keep the blob for these volumes, even if the repair has read them from another holder
    /// before.
    pub(crate) released: BTreeSet<VolumeId>,
}

impl Writing {
    /// The refusal of a request for a chunk whose writing has ended.
    pub(crate) fn check_open(&self, chunk: ChunkId) -> Result<(), Refusal> {
        match self.end {
            None => Ok(()),
            Some(WritingEnd::Sealed) => Err(sealed(chunk)),
            Some(WritingEnd::Dropped) => Err(Refusal::new(
                RefusalWhy::NotThere,
                format!("chunk {chunk} was given up while it was written"),
            )),
        }
    }

    /// Number of bytes of a request at `offset` that the chunk has already. The request is refused
    /// if they differ. `crcs` are the checksums of the request's pieces, and `bytes` is their
    /// length.
    pub(crate) fn known_bytes(
        &self,
        chunk: ChunkId,
        offset: u64,
        bytes: u64,
        crcs: &[u32],
    ) -> Result<u64, Refusal> {
        let out_of_order = || {
            let why = RefusalWhy::OutOfOrder { len: self.len_bytes };
            Refusal::new(why, format!("chunk {chunk} has {} bytes, not {offset}", self.len_bytes))
        };
        let known = self.len_bytes.checked_sub(offset).ok_or_else(out_of_order)?.min(bytes);
        let is_whole = known == bytes || known.is_multiple_of(PIECE_BYTES);
        if !is_whole {
            return Err(out_of_order());
        }
        let first = (offset / PIECE_BYTES) as usize;
        let pieces = known.div_ceil(PIECE_BYTES) as usize;
        if self.crcs.get(first..first + pieces) != crcs.get(..pieces) {
            return Err(Refusal::new(
                RefusalWhy::Malformed,
                format!("chunk {chunk} has other bytes at {offset}: a blob has one writer only"),
            ));
        }
        Ok(known)
    }
}

/// The refusal of a write to a sealed chunk.
pub(crate) fn sealed(chunk: ChunkId) -> Refusal {
    Refusal::new(RefusalWhy::Sealed, format!("chunk {chunk} is sealed and takes no bytes"))
}

/// A chunk that is being written.
#[derive(Debug)]
pub(crate) struct UnsealedChunk {
    pub(crate) chunk: ChunkId,
    /// Volume and epoch of the writer; `None` for a repair.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) class: FileClass,
    pub(crate) device: Arc<Device>,
    pub(crate) path: PathBuf,
    pub(crate) writing: Mutex<Writing>,
}

/// All chunks that are being written.
#[derive(Debug)]
pub(crate) struct UnsealedChunks {
    chunks: Mutex<BTreeMap<ChunkId, Arc<UnsealedChunk>>>,
    table_bytes: AtomicU64,
    count_max: usize,
}

impl UnsealedChunks {
    /// No chunks. At most `count_max` are written at a time.
    pub(crate) fn new(count_max: usize) -> Self {
        Self { chunks: Mutex::default(), table_bytes: AtomicU64::new(0), count_max }
    }

    /// The chunk, if it is being written.
    pub(crate) fn get(&self, chunk: ChunkId) -> Option<Arc<UnsealedChunk>> {
        self.chunks.lock().get(&chunk).cloned()
    }

    /// Adds a chunk, unless another thread has added it. Returns the chunk of the table, and
    /// whether it is the given one. Refused as busy if there are too many.
    pub(crate) fn add(&self, new: UnsealedChunk) -> Result<(Arc<UnsealedChunk>, bool), Refusal> {
        let mut chunks = self.chunks.lock();
        if let Some(known) = chunks.get(&new.chunk) {
            return Ok((Arc::clone(known), false));
        }
        if chunks.len() >= self.count_max {
            return Err(busy(format!("{} chunks are being written on this node", chunks.len())));
        }
        let new = Arc::new(new);
        chunks.insert(new.chunk, Arc::clone(&new));
        Ok((new, true))
    }

    /// Adds checksums to a chunk. Refused as busy if all chunks together have too many.
    pub(crate) fn reserve(&self, pieces: u64) -> Result<(), Refusal> {
        let bytes = pieces * 4;
        let before = self.table_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > TABLE_BYTES_MAX {
            self.table_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(busy(format!("the chunks being written have {before} bytes of checksums")));
        }
        Ok(())
    }

    /// Takes checksums back that were reserved and not used.
    pub(crate) fn unreserve(&self, pieces: u64) {
        self.table_bytes.fetch_sub(pieces * 4, Ordering::Relaxed);
    }

    /// Removes a chunk whose writing has ended.
    pub(crate) fn remove(&self, chunk: &UnsealedChunk, pieces: u64) {
        let removed = self.chunks.lock().remove(&chunk.chunk);
        assert!(
            removed.is_some_and(|known| std::ptr::eq(&*known, chunk)),
            "the chunk of the table"
        );
        self.unreserve(pieces);
    }

    /// The chunks of a blob.
    pub(crate) fn of_blob(&self, blob: BlobId) -> Vec<Arc<UnsealedChunk>> {
        let range = ChunkId { blob, index: 0 }..=ChunkId { blob, index: u8::MAX };
        self.chunks.lock().range(range).map(|(_, chunk)| Arc::clone(chunk)).collect()
    }

    /// The blobs after `after` that are being written for a volume.
    pub(crate) fn of_volume(&self, volume: VolumeId, after: Option<BlobId>) -> Vec<BlobEntry> {
        let chunks = self.chunks.lock();
        let is_later = |chunk: &UnsealedChunk| after.is_none_or(|after| chunk.chunk.blob > after);
        let later = chunks.values().filter(|chunk| is_later(chunk));
        let of_volume = later.filter_map(|chunk| {
            let stamp = chunk.stamp.filter(|stamp| stamp.volume == volume)?;
            let (blob, epoch) = (chunk.chunk.blob, stamp.epoch);
            Some(BlobEntry { blob, epoch, is_sealed: false })
        });
        of_volume.collect()
    }

    /// Number of chunks that are being written.
    pub(crate) fn count(&self) -> usize {
        self.chunks.lock().len()
    }

    /// Length of these chunks in whole pieces.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.table_bytes.load(Ordering::Relaxed) / 4 * PIECE_BYTES
    }
}

fn busy(text: String) -> Refusal {
    Refusal::new(RefusalWhy::Busy, text)
}
