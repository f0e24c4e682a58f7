//! The fuzz target of the file of a chunk, and the inputs that its corpus must have.

use std::path::Path;

use archipelago_base::checksum::crc;
use archipelago_store::BlobId;
use archipelago_store::nodes::wire::ChunkId;

use super::file::{ChunkFooter, ChunkTail, FOOTER_BYTES, encode_tail};
use super::index::ChunkEntry;
use super::record::ChunkRecord;

/// Bytes of a record before the descriptor.
const RECORD_HEAD_BYTES: usize = 18;

/// The chunk that inputs are decoded as: the blob of the corpus, with the index of the input.
fn chunk(index: u8) -> ChunkId {
    ChunkId { blob: BlobId(*b"identity: a blob"), index }
}

/// Decodes `bytes` as the record of a chunk, and as the file of a sealed chunk, as they are and
/// with correct checksums.
pub(crate) fn fuzz_chunk(bytes: &[u8]) {
    fuzz_record(bytes);
    let Some(footer_at) = bytes.len().checked_sub(FOOTER_BYTES as usize) else {
        assert!(decode(bytes, 0).is_none(), "a file without a footer");
        return;
    };
    let index = bytes[footer_at + 16];
    let _refused = decode(bytes, index);
    let mut forged = bytes.to_vec();
    let (body, footer) = forged.split_at_mut(footer_at);
    footer[..16].copy_from_slice(b"identity: a blob");
    let data_bytes = u64::from_le_bytes(footer[17..25].try_into().expect("eight bytes"));
    let descriptor_bytes = u32::from_le_bytes(footer[25..29].try_into().expect("four bytes"));
    let descriptor_at = body.len().saturating_sub(descriptor_bytes as usize);
    let table_at = usize::try_from(data_bytes).unwrap_or(usize::MAX).min(descriptor_at);
    // The descriptor has a checksum of its own.
    if let Some((fields, sum)) = body[descriptor_at..].split_last_chunk_mut::<4>() {
        *sum = crc(fields).to_le_bytes();
    }
    let bound = |bytes: &[u8]| {
        let bytes = [&b"identity: a blob"[..], &[index], bytes].concat();
        crc(&bytes).to_le_bytes()
    };
    footer[29..33].copy_from_slice(&bound(&body[table_at..descriptor_at]));
    footer[33..37].copy_from_slice(&bound(&body[descriptor_at..]));
    let sum = crc(&footer[..41]).to_le_bytes();
    footer[41..45].copy_from_slice(&sum);
    footer[45..].copy_from_slice(b"ARCHSEAL");
    if let Some(tail) = decode(&forged, index) {
        let mut own = forged[..table_at].to_vec();
        own.extend_from_slice(&encode_tail(&tail.descriptor, &tail.crcs, table_at as u64));
        assert_eq!(decode(&own, index), Some(tail), "own bytes");
    }
}

/// Decodes `bytes` as the record of a chunk. The lengths of an accepted record fit together.
fn fuzz_record(bytes: &[u8]) {
    let mut forged = bytes.to_vec();
    let descriptor = forged.get_mut(RECORD_HEAD_BYTES..).unwrap_or_default();
    if let Some((fields, sum)) = descriptor.split_last_chunk_mut::<4>() {
        *sum = crc(fields).to_le_bytes();
    }
    for bytes in [bytes, &forged] {
        for index in 0..2 {
            let Ok(record) = ChunkRecord::decode(chunk(index), bytes) else { continue };
            let entry = ChunkEntry::of(&record);
            assert!(entry.file_bytes >= entry.data_bytes, "the data lie in the file");
            assert_eq!(ChunkRecord::decode(chunk(index), &record.encode()).ok(), Some(record));
        }
    }
}

/// The tail of a file; `None` if the file is refused.
fn decode(bytes: &[u8], index: u8) -> Option<ChunkTail> {
    let path = Path::new("chunk");
    let footer_at = bytes.len().saturating_sub(FOOTER_BYTES as usize);
    let file_bytes = bytes.len() as u64;
    let footer = ChunkFooter::decode(path, &bytes[footer_at..], chunk(index), file_bytes).ok()?;
    footer.decode_tail(path, &bytes[footer.data_bytes as usize..footer_at]).ok()
}

/// Inputs of every kind.
#[cfg(test)]
pub(crate) fn fuzz_chunk_inputs() -> Vec<Vec<u8>> {
    use archipelago_store::nodes::layout::{CellSize, Scheme};
    use archipelago_store::nodes::wire::ChunkDescriptor;

    use super::file::tests::{chunk_file, descriptor};

    let replica = descriptor(Scheme::Replicas(3), 3);
    let coded = descriptor(Scheme::Rs42(CellSize::Small), (256 << 10) + 4105);
    // Its descriptor has another version.
    let due = ChunkDescriptor { is_coding_due: true, ..replica.clone() };
    [replica, coded, due].iter().map(|descriptor| chunk_file(descriptor).1).collect()
}
