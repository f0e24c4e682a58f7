//! Checksums and hashes: CRC-32C for stored bytes, XXH3 for keys.
//!
//! The checksum of a stored block covers the unique id of its file and its offset ([`block_crc`]).
//! A block that a device returns from a wrong place therefore fails the check, and so does a block
//! of an earlier file with the same number. The module consists of pure functions.

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

/// CRC-32C over the file's unique id, the block's offset (u64, little-endian) and its bytes.
#[inline]
#[must_use]
pub fn block_crc(unique_id: &[u8; 16], offset: u64, bytes: &[u8]) -> u32 {
    let mut seed = [0u8; 24];
    seed[..16].copy_from_slice(unique_id);
    seed[16..].copy_from_slice(&offset.to_le_bytes());
    crc_append(crc(&seed), bytes)
}

/// XXH3-64 of `bytes`: the key hash of filters, caches and in-block hash indexes.
#[inline]
#[must_use]
pub fn hash64(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
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
    fn block_checksum_covers_file_and_offset() {
        let here = block_crc(&[1; 16], 4096, b"block");
        assert_ne!(here, block_crc(&[2; 16], 4096, b"block"));
        assert_ne!(here, block_crc(&[1; 16], 8192, b"block"));
        assert_eq!(here, block_crc(&[1; 16], 4096, b"block"));
    }
}
