//! The hint in a [`BlobRef`](crate::BlobRef): scheme and holders of the blob when it was sealed.
//! `docs/formats/store-values.md` has the byte table.
//!
//! Invariant: the hint of another blob does not decode, because a checksum covers the blob's
//! identity. Otherwise the scheme in it would lead a reader to bytes at wrong places whose
//! checksums are right.
//!
//! The functions are pure.
//! Failure: bytes that are no hint of the blob are `None`, and the reader asks the nodes.

use archipelago_base::checksum;
use archipelago_base::codec::put_u32;

use super::super::wire::BlobHint;
use super::super::wire::stored::{decode_enclosed, encode_enclosed};
use crate::ids::BlobId;

/// The bytes of the hint of `blob`.
pub(super) fn encode_hint(blob: BlobId, hint: &BlobHint) -> Vec<u8> {
    let mut out = encode_enclosed(hint);
    let crc = checksum_of(blob, &out);
    put_u32(&mut out, crc);
    out
}

/// Reads a hint. `None` if the bytes are no hint of `blob`.
pub(super) fn decode_hint(blob: BlobId, bytes: &[u8]) -> Option<BlobHint> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if u32::from_le_bytes(*crc) != checksum_of(blob, body) {
        return None;
    }
    decode_enclosed(&blob, body).ok()
}

fn checksum_of(blob: BlobId, body: &[u8]) -> u32 {
    checksum::crc_append(checksum::crc(&blob.0), body)
}

#[cfg(test)]
mod tests {
    use super::super::super::StorageId;
    use super::super::super::layout::Scheme;
    use super::super::super::wire::{Holder, PlacementEpoch};
    use super::*;

    const BLOB: BlobId = BlobId(*b"identity: a blob");

    fn hint() -> BlobHint {
        let holders = [3, 4, 9].map(|node| Holder { storage: StorageId(node), chunk: 0 });
        let (scheme, placement) = (Scheme::Replicas(3), PlacementEpoch::WRITTEN);
        BlobHint { scheme, placement, holders: holders.to_vec() }
    }

    #[test]
    fn hint_ends_with_a_checksum_of_blob_and_hint() {
        let bytes = encode_hint(BLOB, &hint());
        let (body, crc) = bytes.split_last_chunk::<4>().unwrap();
        assert_eq!(body, encode_enclosed(&hint()));
        assert_eq!(u32::from_le_bytes(*crc), checksum::crc(&[&BLOB.0[..], body].concat()));
        assert_eq!(decode_hint(BLOB, &bytes), Some(hint()));
    }

    #[test]
    fn hint_of_another_blob_is_none() {
        let bytes = encode_hint(BLOB, &hint());
        assert_eq!(decode_hint(BlobId([9; 16]), &bytes), None);
        assert_eq!(decode_hint(BLOB, &[]), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode_hint(BLOB, &damaged), None, "byte {at}");
            assert_eq!(decode_hint(BLOB, &bytes[..at]), None, "cut at {at}");
        }
    }
}
