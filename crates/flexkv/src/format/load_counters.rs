//! The load counters of a compute node, in a region of their own that the coordinator reads
//! one-sided.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 8 | `FLXC`, version 1 |
//! | 8 | 8 | reads that were answered |
//! | 16 | 8 | writes that were answered |
//! | 24 | 4 · P | accesses by partition, reads and writes together, each wrapping on its own;
//! padded to a whole word |
//!
//! Everything is little-endian. Two counters share a word, to which the node adds with one
//! operation. So a counter that wraps adds one to its upper neighbour, once in 2^32 accesses. Words
//! are read one by one, so a reading is not of a single moment.
//!
//! Cost: 4 bytes per partition. Paper: §4.2.

const MAGIC: u64 = u32::from_le_bytes(*b"FLXC") as u64 | 1 << 32;

/// Offset of the word that counts reads.
pub(crate) const READS_OFFSET: u64 = 8;
/// Offset of the word that counts writes.
pub(crate) const WRITES_OFFSET: u64 = 16;
const FIRST_OFFSET: u64 = 24;

/// Bytes of the counters of `partitions` partitions.
#[must_use]
pub fn counters_bytes(partitions: u32) -> u64 {
    FIRST_OFFSET + (u64::from(partitions) * 4).next_multiple_of(8)
}

/// The word of a partition's counter, and the amount that one access adds to it.
pub(crate) fn counter_place(partition: u32) -> (u64, u64) {
    let word = FIRST_OFFSET + u64::from(partition / 2) * 8;
    (word, 1 << (32 * (partition % 2)))
}

/// The first word of the region.
pub(crate) fn counters_magic() -> [u8; 8] {
    MAGIC.to_le_bytes()
}

/// Counts since the node joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Accesses by partition, modulo 2^32.
    pub accesses: Vec<u32>,
}

impl Counts {
    /// Decodes the counters of `partitions` partitions. `None` if the bytes are something else.
    #[must_use]
    pub fn decode(bytes: &[u8], partitions: u32) -> Option<Self> {
        if bytes.len() as u64 != counters_bytes(partitions) {
            return None;
        }
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: u64| u64::from_le_bytes(words[(at / 8) as usize]);
        if word(0) != MAGIC {
            return None;
        }
        let (counters, _) = bytes[FIRST_OFFSET as usize..].as_chunks::<4>();
        let accesses = counters.iter().take(partitions as usize);
        Some(Self {
            reads: word(READS_OFFSET),
            writes: word(WRITES_OFFSET),
            accesses: accesses.map(|bytes| u32::from_le_bytes(*bytes)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut bytes = vec![0; counters_bytes(3) as usize];
        bytes[..8].copy_from_slice(&counters_magic());
        assert_eq!(bytes[..8], *b"FLXC\x01\0\0\0");
        for (at, add) in [
            (READS_OFFSET, 5),
            (WRITES_OFFSET, 6),
            counter_place(0),
            counter_place(1),
            counter_place(2),
        ] {
            let at = at as usize;
            let word = u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
            bytes[at..at + 8].copy_from_slice(&(word + add).to_le_bytes());
        }
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "464c5843010000000500000000000000060000000000000001000000010000000100000000000000"
        );
        let counts = Counts { reads: 5, writes: 6, accesses: vec![1, 1, 1] };
        assert_eq!(Counts::decode(&bytes, 3), Some(counts));
        assert_eq!(Counts::decode(&bytes, 5), None, "of another number of partitions");
        bytes[4] = 2;
        assert_eq!(Counts::decode(&bytes, 3), None, "of another version");
    }
}
