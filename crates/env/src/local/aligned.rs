//! A byte buffer whose start and capacity suit `O_DIRECT`.
//!
//! The memory is plain and safe: the allocation is one block larger than requested, and the buffer
//! begins at the first block boundary in it. The buffer never grows in place.

/// Alignment of offsets, lengths and memory: the largest logical block in use.
pub(super) const BLOCK_BYTES: usize = 4096;

#[derive(Debug)]
pub(super) struct AlignedBuffer {
    bytes: Box<[u8]>,
    skip: usize,
    capacity: usize,
}

impl AlignedBuffer {
    /// Makes a zeroed buffer of at least `capacity` bytes, rounded up to whole blocks.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.next_multiple_of(BLOCK_BYTES);
        let bytes = vec![0; capacity + BLOCK_BYTES].into_boxed_slice();
        let skip = bytes.as_ptr().align_offset(BLOCK_BYTES);
        Self { bytes, skip, capacity }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..self.skip + self.capacity]
    }
}

/// Whether the memory of `bytes`, its length and `offset` all suit `O_DIRECT`.
pub(super) fn is_aligned(offset: u64, bytes: &[u8]) -> bool {
    offset.is_multiple_of(BLOCK_BYTES as u64)
        && bytes.len().is_multiple_of(BLOCK_BYTES)
        && bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
}
