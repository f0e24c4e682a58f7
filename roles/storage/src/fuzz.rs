//! Entry points for fuzz targets, and for the tests that replay their corpora: decoders of files
//! that a device returns, perhaps damaged.
//!
//! A function returns for every input. It panics if a decoder would have given the node a wrong
//! result. Checksums guard these formats, and hardly any random input passes them. So each function
//! decodes the input twice: unchanged, and with correct checksums, as a faulty writer would produce
//! it.
//!
//! This module exists only in tests and with the feature `fuzzing`.

use std::path::Path;

use archipelago_base::checksum::crc;
use archipelago_base::codec::put_u32;

use crate::beats::fuzz_forgotten;
use crate::chunks::fuzz_chunk;
use crate::identity::NodeIdentity;
use crate::logs::{fuzz_extent, fuzz_mark};
use crate::tombstones::fuzz_tombstone;

/// Decodes `bytes` as the file of a sealed chunk. A decoded value must encode to the bytes that
/// were decoded.
pub fn chunk(bytes: &[u8]) {
    fuzz_chunk(bytes);
}

/// Decodes `bytes` as the record of an extent, as the header of one of its files, and as groups.
/// The groups with correct checksums must be found, and nothing else.
pub fn extent(bytes: &[u8]) {
    fuzz_extent(bytes);
}

/// Decodes `bytes` as the mark of an extent, as the key and the value of a tombstone, and as the
/// record of the nodes that operators have given up. A decoded mark or tombstone must encode to the
/// bytes that were decoded, and a decoded record must decode again from its own bytes.
pub fn metadata(bytes: &[u8]) {
    fuzz_mark(bytes);
    fuzz_tombstone(bytes);
    fuzz_forgotten(bytes);
}

/// Decodes `bytes` as the file `NODE`. A decoded identity must decode again from its own bytes.
pub fn node_identity(bytes: &[u8]) {
    let path = Path::new("NODE");
    let _refused = NodeIdentity::decode(path, bytes);
    let mut forged = bytes.to_vec();
    put_u32(&mut forged, crc(bytes));
    let Ok(identity) = NodeIdentity::decode(path, &forged) else { return };
    assert_eq!(NodeIdentity::decode(path, &identity.encode()).ok().as_ref(), Some(&identity));
}

#[cfg(test)]
mod tests {
    use archipelago_env::suite::{corpus, replay};

    use super::*;
    use crate::chunks::fuzz_chunk_inputs;
    use crate::identity::tests::{full, short};
    use crate::logs::fuzz_extent_inputs;

    const CRATE: &str = env!("CARGO_MANIFEST_DIR");

    #[test]
    fn chunk_corpus_replays() {
        for input in fuzz_chunk_inputs() {
            assert!(corpus(CRATE, "chunk").contains(&input), "the corpus lacks a kind of chunk");
        }
        replay(CRATE, "chunk", 2_000, chunk);
    }

    #[test]
    fn extent_corpus_replays() {
        for input in fuzz_extent_inputs() {
            assert!(corpus(CRATE, "extent").contains(&input), "the corpus lacks a kind of bytes");
        }
        replay(CRATE, "extent", 300, extent);
    }

    #[test]
    fn metadata_corpus_replays() {
        replay(CRATE, "metadata", 20_000, metadata);
    }

    #[test]
    fn node_identity_corpus_replays() {
        for identity in [full(), short()] {
            let mut bytes = identity.encode();
            bytes.truncate(bytes.len() - 4);
            let is_there = corpus(CRATE, "node_identity").contains(&bytes);
            assert!(is_there, "the corpus lacks {identity:?}");
        }
        replay(CRATE, "node_identity", 20_000, node_identity);
    }
}
