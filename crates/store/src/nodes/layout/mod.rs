//! The layout of a blob: its redundancy scheme, and the ranges of its chunks that hold its bytes.
//!
//! A blob lies in chunks, one per node. With replicas each chunk has all bytes. With RS(4,2) the
//! blob is cut into *cells*; four neighbouring data cells and their two parity cells are a
//! *stripe*. Chunk `d` holds cell `d` of every stripe. Cells 0 to 3 have data, and cells 4 and 5
//! have parity. Bytes at the same offset of the six chunks therefore belong to one codeword, and a
//! degraded read needs the same range of four other chunks.
//!
//! The last stripe may be partial. Its data cells end where the blob ends, and its parity cells
//! are as long as its first cell. The code sees the missing bytes as zeros, which are not stored.
//!
//! A chunk has a CRC-32C per *piece* of 4 KiB. The checksum is bound to the blob, the chunk's index
//! and the offset ([`ChecksumContext`]). A reader gets whole pieces with their checksums.
//!
//! Invariants:
//! 1. The parts of the requests for a range tile the range, and lie inside the lengths of chunks.
//! 2. Together, the chunks of a blob with RS(4,2) have at most 1.5 times its length, except for the
//!    parity of the last stripe.
//! 3. Replicas of one blob have the same bytes and the same checksums.
//!
//! All functions are pure. Failure: a range outside the blob or an unknown chunk is a defect of the
//! caller, and panics.
//! Cost: O(chunks) per range, independent of its length.

use std::ops::Range;

use archipelago_base::checksum;
use archipelago_env::FileClass;

use crate::ids::BlobId;

/// Bytes that one checksum of a chunk covers.
pub const PIECE_BYTES: u64 = 4 << 10;
/// Size below which a blob has replicas, whatever its class is: cells would be too short.
pub const CODED_BYTES_MIN: u64 = 1 << 20;
/// Size hint from which a blob has large cells.
pub const LARGE_CELLS_BYTES_MIN: u64 = 64 << 20;
/// Number of replicas of a blob when the pool has enough domains.
pub const REPLICAS: u8 = 3;
/// Data chunks of RS(4,2).
pub const DATA_CHUNKS: u8 = 4;
/// Parity chunks of RS(4,2).
pub const PARITY_CHUNKS: u8 = 2;

/// The kind of redundancy that the class of a file asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// Whole copies of the blob.
    Replicated,
    /// Four data and two parity chunks.
    Coded,
}

/// Choice of the classes of files that are coded. The first mode is the default, and the others
/// exist for comparisons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedundancyMode {
    /// Value files are coded, everything else has replicas.
    #[default]
    ByClass,
    /// Everything has replicas.
    AllReplicated,
    /// Tables and value files are coded.
    AllCoded,
}

impl RedundancyMode {
    /// The redundancy of files of `class`.
    #[must_use]
    pub fn redundancy(self, class: FileClass) -> Redundancy {
        let is_coded = match (self, class) {
            (Self::AllReplicated, _) => false,
            (Self::ByClass | Self::AllCoded, FileClass::ValueSst) => true,
            (Self::AllCoded, FileClass::Sst) => true,
            (Self::ByClass | Self::AllCoded, _) => false,
        };
        if is_coded { Redundancy::Coded } else { Redundancy::Replicated }
    }
}

/// Length of the cells of a blob with RS(4,2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CellSize {
    /// 256 KiB, for blobs below [`LARGE_CELLS_BYTES_MIN`].
    Small,
    /// 1 MiB, so that fewer reads straddle two cells.
    Large,
}

impl CellSize {
    /// Length of a cell in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Small => 256 << 10,
            Self::Large => 1 << 20,
        }
    }

    /// Length of the data cells of a full stripe in bytes.
    #[must_use]
    pub const fn stripe_bytes(self) -> u64 {
        self.bytes() * DATA_CHUNKS as u64
    }
}

/// The redundancy scheme of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// The number of whole copies, at least 1.
    Replicas(u8),
    /// Four data and two parity chunks.
    Rs42(CellSize),
}

impl Scheme {
    /// The scheme of a blob of about `size_hint_bytes` (0 if unknown). A writer without a hint
    /// buffers the first stripe, and asks again with the length if the blob ends before it is full.
    #[must_use]
    pub fn for_blob(redundancy: Redundancy, size_hint_bytes: u64) -> Self {
        let is_small = size_hint_bytes > 0 && size_hint_bytes < CODED_BYTES_MIN;
        match redundancy {
            Redundancy::Coded if !is_small => {
                let is_large = size_hint_bytes >= LARGE_CELLS_BYTES_MIN;
                Self::Rs42(if is_large { CellSize::Large } else { CellSize::Small })
            }
            Redundancy::Coded | Redundancy::Replicated => Self::Replicas(REPLICAS),
        }
    }

    /// The kind of redundancy.
    #[must_use]
    pub const fn redundancy(self) -> Redundancy {
        match self {
            Self::Replicas(_) => Redundancy::Replicated,
            Self::Rs42(_) => Redundancy::Coded,
        }
    }

    /// Number of chunks.
    #[must_use]
    pub const fn chunks(self) -> u8 {
        match self {
            Self::Replicas(copies) => copies,
            Self::Rs42(_) => DATA_CHUNKS + PARITY_CHUNKS,
        }
    }

    /// Number of chunks that suffice for a read of the whole blob.
    #[must_use]
    pub const fn chunks_min(self) -> u8 {
        match self {
            Self::Replicas(_) => 1,
            Self::Rs42(_) => DATA_CHUNKS,
        }
    }

    /// Bytes that the pool stores for each byte of a long blob.
    #[must_use]
    pub fn bytes_per_byte(self) -> f64 {
        match self {
            Self::Replicas(copies) => f64::from(copies),
            Self::Rs42(_) => 1.5,
        }
    }
}

/// A part of a request: bytes that are neighbours in the blob and in the chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPart {
    /// Range of the chunk.
    pub in_chunk: Range<u64>,
    /// Offset in the blob of the first byte.
    pub blob_offset: u64,
}

/// Ranges that a reader requests from the holder of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRequest {
    /// Index of the chunk. With replicas it is 0, and every holder can answer.
    pub chunk: u8,
    /// Range of the chunk that the answer has: the pieces that cover all parts.
    pub covering: Range<u64>,
    /// The wanted bytes, in the order of the blob. They are neighbours in the chunk.
    pub parts: Vec<RequestPart>,
}

impl ChunkRequest {
    /// Copies the wanted bytes from `answer`, which has the covering range, into `buf`, whose first
    /// byte is that at `buf_offset` of the blob.
    pub fn copy_to(&self, answer: &[u8], buf_offset: u64, buf: &mut [u8]) {
        for part in &self.parts {
            let from = (part.in_chunk.start - self.covering.start) as usize;
            let len = (part.in_chunk.end - part.in_chunk.start) as usize;
            let to = (part.blob_offset - buf_offset) as usize;
            buf[to..to + len].copy_from_slice(&answer[from..from + len]);
        }
    }
}

/// One of the four chunks that a degraded read needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DegradedSource {
    /// Index of the chunk.
    pub chunk: u8,
    /// The part of the wanted range that the chunk stores. The rest of the range is zeros, and if
    /// it is empty, no request is needed.
    pub stored: Range<u64>,
    /// The pieces that cover the stored part.
    pub covering: Range<u64>,
}

/// Computation of a range of a chunk from four other chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DegradedRead {
    /// Index of the chunk that cannot be read.
    pub chunk: u8,
    /// The wanted range of that chunk.
    pub range: Range<u64>,
    /// Four other chunks, by index.
    pub sources: Vec<DegradedSource>,
}

/// The layout of a blob of known length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobLayout {
    /// Redundancy scheme of the blob.
    pub scheme: Scheme,
    /// Length of the blob in bytes.
    pub len_bytes: u64,
}

impl BlobLayout {
    /// Length in bytes of chunk `chunk`.
    #[must_use]
    pub fn chunk_len(&self, chunk: u8) -> u64 {
        assert!(chunk < self.scheme.chunks(), "chunk {chunk} of {:?}", self.scheme);
        match self.scheme {
            Scheme::Replicas(_) => self.len_bytes,
            Scheme::Rs42(cell) => {
                let stripes = self.len_bytes / cell.stripe_bytes();
                let rest = self.len_bytes % cell.stripe_bytes();
                stripes * cell.bytes() + stripe_cell_len(cell, rest, chunk)
            }
        }
    }

    /// Bytes that all chunks have together.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        (0..self.scheme.chunks()).map(|chunk| self.chunk_len(chunk)).sum()
    }

    /// Index that the checksums of chunk `chunk` are bound to. It is 0 for all replicas, so that a
    /// copy of a replica keeps its checksums.
    #[must_use]
    pub const fn checksum_index(&self, chunk: u8) -> u8 {
        match self.scheme {
            Scheme::Replicas(_) => 0,
            Scheme::Rs42(_) => chunk,
        }
    }

    /// The requests for `range` of the blob, one per chunk, by the offset of their first byte.
    #[must_use]
    pub fn requests(&self, range: Range<u64>) -> Vec<ChunkRequest> {
        assert!(range.start <= range.end && range.end <= self.len_bytes, "a range inside the blob");
        if range.is_empty() {
            return Vec::new();
        }
        match self.scheme {
            Scheme::Replicas(_) => {
                let covering = self.covering(0, &range);
                let part = RequestPart { blob_offset: range.start, in_chunk: range };
                vec![ChunkRequest { chunk: 0, covering, parts: vec![part] }]
            }
            Scheme::Rs42(cell) => self.cell_requests(cell, range),
        }
    }

    fn cell_requests(&self, cell: CellSize, range: Range<u64>) -> Vec<ChunkRequest> {
        let mut requests: Vec<ChunkRequest> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let number = at / cell.bytes();
            let chunk = (number % u64::from(DATA_CHUNKS)) as u8;
            let in_cell = at % cell.bytes();
            let len = (cell.bytes() - in_cell).min(range.end - at);
            let start = number / u64::from(DATA_CHUNKS) * cell.bytes() + in_cell;
            let part = RequestPart { in_chunk: start..start + len, blob_offset: at };
            match requests.iter_mut().find(|request| request.chunk == chunk) {
                Some(request) => request.parts.push(part),
                None => {
                    requests.push(ChunkRequest { chunk, covering: 0..0, parts: vec![part] });
                }
            }
            at += len;
        }
        for request in &mut requests {
            let start = request.parts[0].in_chunk.start;
            let end = request.parts[request.parts.len() - 1].in_chunk.end;
            request.covering = self.covering(request.chunk, &(start..end));
        }
        requests
    }

    /// The whole pieces of chunk `chunk` that cover `range` of it.
    #[must_use]
    pub fn covering(&self, chunk: u8, range: &Range<u64>) -> Range<u64> {
        if range.is_empty() {
            return range.start..range.start;
        }
        let start = range.start / PIECE_BYTES * PIECE_BYTES;
        let end = range.end.next_multiple_of(PIECE_BYTES).min(self.chunk_len(chunk));
        start..end
    }

    /// The computation of `range` of chunk `lost` from other chunks. `None` for replicas, and if
    /// fewer than four other chunks are left. `readable` has the indices of the chunks whose
    /// holders answer, the preferred ones first. Chunks that store nothing of the range need no
    /// holder.
    #[must_use]
    pub fn degraded(&self, lost: u8, range: Range<u64>, readable: &[u8]) -> Option<DegradedRead> {
        let Scheme::Rs42(_) = self.scheme else { return None };
        assert!(range.end <= self.chunk_len(lost), "a range inside the chunk");
        let stored = |chunk: u8| {
            let len = self.chunk_len(chunk);
            range.start.min(len)..range.end.min(len)
        };
        let others = |chunk: &u8| *chunk != lost && *chunk < self.scheme.chunks();
        let padding = (0..self.scheme.chunks()).filter(|chunk| stored(*chunk).is_empty());
        let mut chosen: Vec<u8> = Vec::with_capacity(usize::from(DATA_CHUNKS));
        for chunk in padding.chain(readable.iter().copied()).filter(others) {
            if chosen.len() < usize::from(DATA_CHUNKS) && !chosen.contains(&chunk) {
                chosen.push(chunk);
            }
        }
        if chosen.len() < usize::from(DATA_CHUNKS) {
            return None;
        }
        chosen.sort_unstable();
        let source = |chunk| {
            let stored = stored(chunk);
            DegradedSource { chunk, covering: self.covering(chunk, &stored), stored }
        };
        let sources = chosen.into_iter().map(source).collect();
        Some(DegradedRead { chunk: lost, range, sources })
    }
}

/// Length of cell `chunk` of a stripe whose data cells have `data_bytes` together.
#[must_use]
pub fn stripe_cell_len(cell: CellSize, data_bytes: u64, chunk: u8) -> u64 {
    assert!(data_bytes <= cell.stripe_bytes(), "at most one stripe");
    let before = if chunk < DATA_CHUNKS { u64::from(chunk) * cell.bytes() } else { 0 };
    data_bytes.saturating_sub(before).min(cell.bytes())
}

/// Identity to which the checksums of a chunk are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumContext {
    /// Blob of the chunk.
    pub blob: BlobId,
    /// Index from [`BlobLayout::checksum_index`].
    pub index: u8,
}

impl ChecksumContext {
    /// CRC-32C of a piece: over the blob's id, the index (one byte), the offset of the piece in its
    /// chunk (u64, little-endian) and the bytes.
    #[must_use]
    pub fn piece_crc(self, offset: u64, bytes: &[u8]) -> u32 {
        let mut place = [0; 25];
        place[..16].copy_from_slice(&self.blob.0);
        place[16] = self.index;
        place[17..].copy_from_slice(&offset.to_le_bytes());
        checksum::crc_append(checksum::crc(&place), bytes)
    }

    /// The checksums of the pieces of `bytes`, which begin at the piece boundary `offset`.
    #[must_use]
    pub fn piece_crcs(self, offset: u64, bytes: &[u8]) -> Vec<u32> {
        assert!(offset.is_multiple_of(PIECE_BYTES), "pieces begin at multiples of their size");
        let pieces = bytes.chunks(PIECE_BYTES as usize);
        let offsets = (offset..).step_by(PIECE_BYTES as usize);
        pieces.zip(offsets).map(|(piece, at)| self.piece_crc(at, piece)).collect()
    }

    /// Offset of the first piece of `bytes` that does not have its checksum of `crcs`. A missing
    /// checksum is a wrong one.
    #[must_use]
    pub fn first_damaged_piece(self, offset: u64, bytes: &[u8], crcs: &[u32]) -> Option<u64> {
        let right = self.piece_crcs(offset, bytes);
        let wrong = (0..right.len()).find(|at| crcs.get(*at) != Some(&right[*at]))?;
        Some(offset + wrong as u64 * PIECE_BYTES)
    }
}

#[cfg(test)]
mod tests;
