//! Checksums and hashes: CRC-32C for stored bytes, XXH3 for keys.
//!
//! The checksum of a stored block covers the unique id of its file and its offset ([`block_crc`]).
//! A block that a device returns from a wrong place therefore fails the check, and so does a block
//! of an earlier file with the same number. The module consists of pure functions.

use std::fmt;
use std::hash::Hasher;

/// CRC-32C of `bytes`.
#[inline]
#[must_use]
pub fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of `before ++ bytes`, if `crc` is the CRC-32C of `before`.
#[inline]
#[must_use]
pub fn crc_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// CRC-32C of `before ++ after`, if these are the CRC-32C of `before` and of `after`.
#[must_use]
pub fn crc_combine(before: u32, after: u32, after_bytes: usize) -> u32 {
    crc32c::crc32c_combine(before, after, after_bytes)
}

/// CRC-32C over the file's unique id, the block's offset (u64, little-endian) and its bytes.
#[inline]
#[must_use]
pub fn block_crc(unique_id: &[u8; 16], offset: u64, bytes: &[u8]) -> u32 {
    let mut seed = [0u8; 24];
    seed[..16].copy_from_slice(unique_id);
    seed[16..].copy_from_slice(&offset.to_le_bytes());
    crc_append(crc(&seed), bytes)
}

/// XXH3-64 of `bytes`: the key hash of filters, caches and in-block hash indexes. It also guards
/// bytes that hold a CRC-32C of their own parts. A CRC-32C around these would not notice a part
/// that is replaced by another one of the same length, because the CRC-32C of any bytes followed by
/// their CRC-32C is the same.
#[inline]
#[must_use]
pub fn hash64(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// [`hash64`] of bytes that come in parts.
#[derive(Default)]
pub struct PartsHash(twox_hash::XxHash3_64);

impl fmt::Debug for PartsHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PartsHash").field(&self.get()).finish()
    }
}

impl PartsHash {
    /// Appends a part.
    pub fn append(&mut self, part: &[u8]) {
        self.0.write(part);
    }

    /// The hash of all parts so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_checksums_do_not_change() {
        // Files hold these values: the vector of RFC 3720, and XXH3 of the empty string.
        assert_eq!(crc(&[0u8; 32]), 0x8a91_36aa);
        assert_eq!(hash64(b""), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn checksums_of_two_parts_make_that_of_the_whole() {
        for at in 0..=9 {
            let (before, after) = b"123456789".split_at(at);
            assert_eq!(crc_combine(crc(before), crc(after), after.len()), crc(b"123456789"));
        }
    }

    #[test]
    fn hash_of_parts_is_that_of_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|at| (at * 7) as u8).collect();
        for cut in [0, 1, 200, 256, 999, 1000] {
            let mut parts = PartsHash::default();
            parts.append(&bytes[..cut]);
            parts.append(&bytes[cut..]);
            assert_eq!(parts.get(), hash64(&bytes));
        }
    }

    #[test]
    fn hash_notices_parts_with_checksums_of_their_own() {
        let with_crc = |part: &[u8]| [part, &crc(part).to_le_bytes()].concat();
        let (old, new) = (with_crc(b"old record"), with_crc(b"new record"));
        assert_eq!(crc(&old), crc(&new), "a CRC-32C is blind here");
        assert_ne!(hash64(&old), hash64(&new));
    }

    #[test]
    fn block_checksum_covers_file_and_offset() {
        let here = block_crc(&[1; 16], 4096, b"block");
        assert_ne!(here, block_crc(&[2; 16], 4096, b"block"));
        assert_ne!(here, block_crc(&[1; 16], 8192, b"block"));
        assert_eq!(here, block_crc(&[1; 16], 4096, b"block"));
    }
}
