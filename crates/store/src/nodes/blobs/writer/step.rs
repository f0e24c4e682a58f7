//! Steps of a writer: 1 MiB of a blob with replicas, or one stripe with RS(4,2), with everything
//! that the nodes get of it.
//!
//! All functions are pure. Failure: those of the erasure code, which are defects.
//! Cost: a checksum of every byte that is sent, but replicas share one. A stripe is encoded once.

use archipelago_base::Result;

use super::super::super::code::{ErasureCode, encode_stripe};
use super::super::super::layout::{BlobLayout, DATA_CHUNKS, Scheme};
use super::super::super::wire::ChunkId;
use crate::ids::BlobId;

/// Bytes of a step of a blob with replicas.
const REPLICATED_STEP_BYTES: u64 = 1 << 20;

/// Bytes of the blob that a full step of `scheme` has.
pub(super) const fn step_bytes(scheme: Scheme) -> u64 {
    match scheme {
        Scheme::Replicas(_) => REPLICATED_STEP_BYTES,
        Scheme::Rs42(cell) => cell.stripe_bytes(),
    }
}

/// Bytes of each chunk that a full step of `scheme` has.
pub(super) const fn cell_bytes(scheme: Scheme) -> u64 {
    match scheme {
        Scheme::Replicas(_) => REPLICATED_STEP_BYTES,
        Scheme::Rs42(cell) => cell.bytes(),
    }
}

/// The bytes that one chunk gets of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepCell<'a> {
    /// Offset in the chunk.
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
    /// Checksums of the pieces.
    pub(super) crcs: &'a [u32],
}

/// One step of a writer.
#[derive(Debug)]
pub(super) struct WriteStep {
    scheme: Scheme,
    /// Offset in each chunk.
    offset: u64,
    data: Vec<u8>,
    parity: Vec<Vec<u8>>,
    /// Checksums by the index of the chunk; one entry for all replicas.
    crcs: Vec<Vec<u32>>,
}

impl WriteStep {
    /// Makes the step with this number from its data, which are less than [`step_bytes`] only at
    /// the end of the blob.
    pub(super) fn new(
        blob: BlobId,
        scheme: Scheme,
        number: u64,
        data: Vec<u8>,
        code: &dyn ErasureCode,
    ) -> Result<Self> {
        let offset = number * cell_bytes(scheme);
        let parity = match scheme {
            Scheme::Replicas(_) => Vec::new(),
            Scheme::Rs42(cell) => encode_stripe(code, cell, &data)?.into(),
        };
        let mut step = Self { scheme, offset, data, parity, crcs: Vec::new() };
        let chunks = if step.parity.is_empty() { 1 } else { scheme.chunks() };
        step.crcs = (0..chunks)
            .map(|index| {
                let checksums = ChunkId { blob, index }.checksums();
                checksums.piece_crcs(offset, step.bytes_of(index))
            })
            .collect();
        Ok(step)
    }

    fn bytes_of(&self, chunk: u8) -> &[u8] {
        match self.scheme {
            Scheme::Replicas(_) => &self.data,
            Scheme::Rs42(_) if chunk >= DATA_CHUNKS => {
                &self.parity[usize::from(chunk - DATA_CHUNKS)]
            }
            Scheme::Rs42(cell) => {
                let cell = cell.bytes() as usize;
                let start = (usize::from(chunk) * cell).min(self.data.len());
                &self.data[start..(start + cell).min(self.data.len())]
            }
        }
    }

    /// Index of the chunk in `slot`.
    pub(super) fn index(&self, slot: u8) -> u8 {
        BlobLayout { scheme: self.scheme, len_bytes: 0 }.checksum_index(slot)
    }

    /// Part of the step for the chunk in `slot`. It may be empty at the end of the blob.
    pub(super) fn cell(&self, slot: u8) -> StepCell<'_> {
        let crcs = &self.crcs[usize::from(self.index(slot))];
        StepCell { offset: self.offset, bytes: self.bytes_of(slot), crcs }
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        let parity: usize = self.parity.iter().map(Vec::capacity).sum();
        (self.data.capacity() + parity) as u64
    }

    /// Bytes of the blob.
    pub(super) fn data_bytes(&self) -> u64 {
        self.data.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::code::Rs42;
    use super::super::super::super::layout::CellSize;
    use super::*;

    const BLOB: BlobId = BlobId([7; 16]);

    fn step(scheme: Scheme, number: u64, len: usize) -> WriteStep {
        let data = (0..len).map(|at| (at / 3) as u8).collect();
        WriteStep::new(BLOB, scheme, number, data, &Rs42::new().unwrap()).unwrap()
    }

    #[test]
    fn replicas_get_the_same_bytes_under_one_checksum() {
        let step = step(Scheme::Replicas(3), 2, 10_000);
        let cell = step.cell(0);
        assert_eq!((cell.offset, cell.bytes.len(), cell.crcs.len()), (2 << 20, 10_000, 3));
        assert_eq!(step.cell(2), cell);
        let checksums = ChunkId { blob: BLOB, index: 0 }.checksums();
        assert_eq!(checksums.first_damaged_piece(2 << 20, cell.bytes, cell.crcs), None);
    }

    #[test]
    fn cells_of_a_stripe_are_those_of_the_layout() {
        let scheme = Scheme::Rs42(CellSize::Small);
        for len in [1 << 20, (256 << 10) + 1, 5] {
            let step = step(scheme, 3, len);
            let layout = BlobLayout { scheme, len_bytes: 3 * (1 << 20) + len as u64 };
            for slot in 0..6 {
                let cell = step.cell(slot);
                assert_eq!(cell.offset, 3 * (256 << 10));
                let end = cell.offset + cell.bytes.len() as u64;
                assert_eq!(end, layout.chunk_len(slot), "chunk {slot} of {len} bytes");
                let checksums = ChunkId { blob: BLOB, index: slot }.checksums();
                let damaged = checksums.first_damaged_piece(cell.offset, cell.bytes, cell.crcs);
                assert_eq!(damaged, None);
            }
        }
    }
}
