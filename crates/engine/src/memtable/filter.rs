//! The Bloom filter of a sealed shard: blocked, so that a query touches one cache line.
//!
//! A filter is built once, at the seal, or decoded with an image; it is immutable. Ten bits for an
//! entry and six probes in a block of 512 bits give about 1.2 % false positives. The high half of
//! the key's hash selects the block, a second mix of the hash the probes. The bytes are part of the
//! image format.

/// Bits for each entry.
const BITS_PER_ENTRY: u64 = 10;
/// Bytes of a block: one cache line.
const BLOCK_BYTES: usize = 64;
const BLOCK_WORDS: usize = BLOCK_BYTES / 8;
const PROBES: u32 = 6;
/// An odd constant (2^64 over the golden ratio) for a second mix of the hash.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A filter over key hashes ([`archipelago_base::checksum::hash64`]).
#[derive(Clone)]
pub struct Filter {
    blocks: Vec<[u64; BLOCK_WORDS]>,
}

/// Index of the block for a hash among `blocks`.
#[inline]
fn block_of(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

/// Words and masks in a block that a hash probes.
#[inline]
fn probes(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    let mixed = hash.wrapping_mul(MIX);
    (0..PROBES).map(move |probe| {
        let bit = mixed >> (64 - 9 * (probe + 1)) & 511;
        ((bit >> 6) as usize, 1 << (bit & 63))
    })
}

impl Filter {
    /// An empty filter for this many entries.
    pub(super) fn new(entries: u64) -> Self {
        let bits = entries.saturating_mul(BITS_PER_ENTRY);
        let blocks = bits.div_ceil(BLOCK_BYTES as u64 * 8).max(1);
        Self { blocks: vec![[0; BLOCK_WORDS]; blocks as usize] }
    }

    /// Adds a key.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64) {
        let at = block_of(hash, self.blocks.len());
        for (word, mask) in probes(hash) {
            self.blocks[at][word] |= mask;
        }
    }

    /// Whether the key may be in the shard.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        let block = &self.blocks[block_of(hash, self.blocks.len())];
        probes(hash).all(|(word, mask)| block[word] & mask != 0)
    }

    /// Memory of the filter in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    /// Reads bytes that [`Filter::write`] has written; `None` if they are not whole blocks.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        if blocks.is_empty() || !rest.is_empty() {
            return None;
        }
        let block = |bytes: &[u8; BLOCK_BYTES]| {
            let (words, _) = bytes.as_chunks::<8>();
            std::array::from_fn(|at| u64::from_le_bytes(words[at]))
        };
        Some(Self { blocks: blocks.iter().map(block).collect() })
    }

    /// Appends the blocks, words little-endian.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for word in self.blocks.as_flattened() {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
}

/// Answers [`Filter::may_contain`] from the bytes of an image; `None` if they are not whole blocks.
pub(super) fn may_contain_in(bytes: &[u8], hash: u64) -> Option<bool> {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    if blocks.is_empty() || !rest.is_empty() {
        return None;
    }
    let (words, _) = blocks[block_of(hash, blocks.len())].as_chunks::<8>();
    Some(probes(hash).all(|(word, mask)| u64::from_le_bytes(words[word]) & mask != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_base::checksum::hash64;

    #[test]
    fn no_key_is_missed_and_few_strangers_pass() {
        let count = 20_000u32;
        let mut filter = Filter::new(u64::from(count));
        (0..count).for_each(|key| filter.insert(hash64(&key.to_le_bytes())));
        let mut bytes = Vec::new();
        filter.write(&mut bytes);
        assert_eq!(bytes.len(), filter.bytes());
        let passes = |range: std::ops::Range<u32>| {
            range.filter(|key| {
                let hash = hash64(&key.to_le_bytes());
                assert_eq!(may_contain_in(&bytes, hash), Some(filter.may_contain(hash)));
                filter.may_contain(hash)
            })
        };
        assert_eq!(passes(0..count).count(), count as usize);
        let strangers = passes(count..count * 3).count();
        assert!(strangers * 1000 < 2 * count as usize * 18, "{strangers} of {}", 2 * count);
    }

    #[test]
    fn damaged_lengths_are_told() {
        assert_eq!(may_contain_in(&[], 1), None);
        assert_eq!(may_contain_in(&[0; 65], 1), None);
    }
}
