//! The file of a sealed chunk: data, checksums of the pieces, descriptor and footer.
//! `docs/formats/chunk.md` has the byte table.
//!
//! The data come first, so that a piece lies at its own offset in the file. The seal appends the
//! rest, which is called the *tail*. A file without a whole tail is an unsealed chunk.
//!
//! Invariants:
//! 1. A checksum covers every byte of the file. It is bound to the blob and to the index of the
//!    chunk. The checksums of the data are bound to their offset as well.
//! 2. A decoder checks all lengths against the length of the file before it uses them.
//!
//! All functions are pure, except those that read a file.
//! Failure: a damaged file is `Corrupt`, and the error names the part. Another version is
//! `Unsupported`.
//! Cost: an open reads the tail in two requests: the footer, and the table with the descriptor.

use std::path::Path;

use archipelago_base::checksum::{crc, crc_append};
use archipelago_base::codec::{Reader, put_u8, put_u32, put_u64};
use archipelago_base::{Error, Result};
use archipelago_env::{IoContext, RandomFile};
use archipelago_store::BlobId;
use archipelago_store::nodes::layout::PIECE_BYTES;
use archipelago_store::nodes::wire::stored::{decode_checked, encode_checked};
use archipelago_store::nodes::wire::{ChunkDescriptor, ChunkId};

const MAGIC: &[u8; 8] = b"ARCHSEAL";
const VERSION: u32 = 1;
/// Length of the footer in bytes.
pub(crate) const FOOTER_BYTES: u64 = 53;
/// Length of the encoding of a checksum in bytes.
const CRC_BYTES: u64 = 4;

/// The last bytes of the file of a sealed chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkFooter {
    /// The chunk of the file.
    pub(crate) chunk: ChunkId,
    /// Length of the data in bytes.
    pub(crate) data_bytes: u64,
    /// Length of the encoded descriptor in bytes.
    pub(crate) descriptor_bytes: u32,
    /// CRC-32C of the checksums of the pieces, bound to the chunk.
    pub(crate) table_crc: u32,
    /// CRC-32C of the encoded descriptor, bound to the chunk.
    pub(crate) descriptor_crc: u32,
}

/// The tail of a chunk's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkTail {
    /// Checksums of the pieces.
    pub(crate) crcs: Vec<u32>,
    /// The descriptor as it was when the chunk was sealed. The metadata have the newest one.
    pub(crate) descriptor: ChunkDescriptor,
}

/// Number of pieces of `data_bytes`.
pub(crate) fn pieces(data_bytes: u64) -> u64 {
    data_bytes.div_ceil(PIECE_BYTES)
}

/// The bytes behind the data of a chunk with these checksums.
pub(crate) fn encode_tail(descriptor: &ChunkDescriptor, crcs: &[u32], data_bytes: u64) -> Vec<u8> {
    assert_eq!(crcs.len() as u64, pieces(data_bytes), "one checksum per piece");
    let mut out = Vec::with_capacity(crcs.len() * CRC_BYTES as usize + 256);
    crcs.iter().for_each(|crc| put_u32(&mut out, *crc));
    let table_end = out.len();
    out.extend_from_slice(&encode_checked(descriptor));
    let chunk = descriptor.chunk;
    let footer = ChunkFooter {
        chunk,
        data_bytes,
        descriptor_bytes: (out.len() - table_end) as u32,
        table_crc: bound_crc(chunk, &out[..table_end]),
        descriptor_crc: bound_crc(chunk, &out[table_end..]),
    };
    footer.append_to(&mut out);
    out
}

/// CRC-32C over the blob's id, the index of the chunk and `bytes`.
fn bound_crc(chunk: ChunkId, bytes: &[u8]) -> u32 {
    let mut place = [0; 17];
    place[..16].copy_from_slice(&chunk.blob.0);
    place[16] = chunk.index;
    crc_append(crc(&place), bytes)
}

impl ChunkFooter {
    fn append_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.chunk.blob.0);
        put_u8(out, self.chunk.index);
        put_u64(out, self.data_bytes);
        put_u32(out, self.descriptor_bytes);
        put_u32(out, self.table_crc);
        put_u32(out, self.descriptor_crc);
        put_u32(out, VERSION);
        let sum = crc(&out[start..]);
        put_u32(out, sum);
        // The magic comes last, so that an interrupted seal does not look like a whole one.
        out.extend_from_slice(MAGIC);
    }

    /// Decodes the footer of a file of `file_bytes`, which must belong to `chunk`.
    pub(crate) fn decode(
        path: &Path,
        bytes: &[u8],
        chunk: ChunkId,
        file_bytes: u64,
    ) -> Result<Self> {
        let at = file_bytes.saturating_sub(FOOTER_BYTES);
        let damaged =
            |what: &str| Error::corrupt(path, at, format!("footer of chunk {chunk}: {what}"));
        if bytes.len() as u64 != FOOTER_BYTES || !bytes.ends_with(MAGIC) {
            return Err(damaged("the file does not end as that of a sealed chunk"));
        }
        let mut reader = Reader::new(bytes);
        let footer = Self::read(&mut reader).ok_or_else(|| damaged("it is too short"))?;
        let version = reader.u32();
        if reader.u32() != Some(crc(&bytes[..41])) {
            return Err(damaged("its checksum does not match"));
        }
        if version != Some(VERSION) {
            return Err(Error::unsupported(format!(
                "{}: chunk of format version {}; this program reads version {VERSION} only",
                path.display(),
                version.unwrap_or_default()
            )));
        }
        if footer.chunk != chunk {
            return Err(damaged(&format!("it is that of chunk {}", footer.chunk)));
        }
        let expected = footer.file_bytes();
        if expected != Some(file_bytes) {
            return Err(damaged("the lengths of its parts do not add up to that of the file"));
        }
        Ok(footer)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let blob = BlobId(reader.take(16)?.try_into().ok()?);
        Some(Self {
            chunk: ChunkId { blob, index: reader.u8()? },
            data_bytes: reader.u64()?,
            descriptor_bytes: reader.u32()?,
            table_crc: reader.u32()?,
            descriptor_crc: reader.u32()?,
        })
    }

    fn table_bytes(&self) -> u64 {
        pieces(self.data_bytes) * CRC_BYTES
    }

    /// Length of the whole file; `None` if it is beyond 2^64.
    fn file_bytes(&self) -> Option<u64> {
        let tail = self.table_bytes() + u64::from(self.descriptor_bytes) + FOOTER_BYTES;
        self.data_bytes.checked_add(tail)
    }

    /// Decodes the bytes between the data and the footer.
    pub(crate) fn decode_tail(&self, path: &Path, bytes: &[u8]) -> Result<ChunkTail> {
        let chunk = self.chunk;
        let damaged = |what: &str| {
            Error::corrupt(path, self.data_bytes, format!("{what} of chunk {chunk} is damaged"))
        };
        let (table, descriptor) = bytes
            .split_at_checked(self.table_bytes() as usize)
            .ok_or_else(|| damaged("the table of checksums"))?;
        if bound_crc(chunk, table) != self.table_crc {
            return Err(damaged("the table of checksums"));
        }
        if bound_crc(chunk, descriptor) != self.descriptor_crc {
            return Err(damaged("the descriptor"));
        }
        let descriptor: ChunkDescriptor = decode_checked(&path.display(), descriptor)?;
        if descriptor.chunk != chunk || descriptor.chunk_bytes() != self.data_bytes {
            return Err(damaged("the descriptor"));
        }
        let words = table.chunks_exact(CRC_BYTES as usize);
        let crcs = words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        Ok(ChunkTail { crcs: crcs.collect(), descriptor })
    }
}

/// Reads and checks the tail of the file of `chunk`.
pub(crate) fn read_tail(
    path: &Path,
    file: &dyn RandomFile,
    chunk: ChunkId,
    context: IoContext,
) -> Result<ChunkTail> {
    let file_bytes = file.len();
    let Some(footer_at) = file_bytes.checked_sub(FOOTER_BYTES) else {
        return Err(Error::corrupt(path, 0, format!("chunk {chunk}: the file is too short")));
    };
    let mut bytes = vec![0; FOOTER_BYTES as usize];
    file.read_exact_at(footer_at, &mut bytes, context)?;
    let footer = ChunkFooter::decode(path, &bytes, chunk, file_bytes)?;
    let mut bytes = vec![0; (footer_at - footer.data_bytes) as usize];
    file.read_exact_at(footer.data_bytes, &mut bytes, context)?;
    footer.decode_tail(path, &bytes)
}

/// Name of the file of `chunk` within its directory.
pub(crate) fn file_name(chunk: ChunkId) -> String {
    format!("{}-{}", chunk.blob, chunk.index)
}

/// The chunk whose file has this name; `None` for the name of something else.
pub(crate) fn parse_name(name: &str) -> Option<ChunkId> {
    let (blob, index) = name.split_once('-')?;
    if blob.len() != 32 || !blob.is_ascii() {
        return None;
    }
    let mut id = [0; 16];
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&blob[2 * at..2 * at + 2], 16).ok()?;
    }
    let chunk = ChunkId { blob: BlobId(id), index: index.parse().ok()? };
    // Only the canonical spelling counts.
    (file_name(chunk) == name).then_some(chunk)
}

#[cfg(test)]
pub(crate) mod tests {
    use archipelago_base::{Epoch, ErrorKind};
    use archipelago_env::FileClass;
    use archipelago_store::VolumeId;
    use archipelago_store::nodes::StorageId;
    use archipelago_store::nodes::layout::{CellSize, Scheme};
    use archipelago_store::nodes::wire::{Holder, PlacementEpoch, Stamp};

    use super::*;

    /// A descriptor of chunk 1 of a blob of `len` bytes with RS(4,2), or of its only replica.
    pub(crate) fn descriptor(scheme: Scheme, len: u64) -> ChunkDescriptor {
        let index = match scheme {
            Scheme::Replicas(_) => 0,
            Scheme::Rs42(_) => 1,
        };
        ChunkDescriptor {
            chunk: ChunkId { blob: BlobId(*b"identity: a blob"), index },
            written: Stamp { volume: VolumeId(*b"id of the volume"), epoch: Epoch(5) },
            class: FileClass::ValueSst,
            scheme,
            is_coding_due: false,
            blob_bytes: len,
            placement: PlacementEpoch { counter: 2, repairer: StorageId(9) },
            holders: vec![Holder { storage: StorageId(7), chunk: index }],
            retaining: vec![VolumeId(*b"id of the volume")],
        }
    }

    /// The data and the whole file of a chunk.
    pub(crate) fn chunk_file(descriptor: &ChunkDescriptor) -> (Vec<u8>, Vec<u8>) {
        let data: Vec<u8> = (0..descriptor.chunk_bytes()).map(|at| (at % 251) as u8).collect();
        let crcs = descriptor.chunk.checksums().piece_crcs(0, &data);
        let tail = encode_tail(descriptor, &crcs, data.len() as u64);
        (data.clone(), [data, tail].concat())
    }

    /// Decodes a file and checks its data, as a reader of all of it does.
    fn check(chunk: ChunkId, bytes: &[u8]) -> Result<ChunkDescriptor> {
        let path = Path::new("chunk");
        let footer_at = bytes.len().saturating_sub(FOOTER_BYTES as usize);
        let footer = ChunkFooter::decode(path, &bytes[footer_at..], chunk, bytes.len() as u64)?;
        let (data, tail) = bytes[..footer_at].split_at(footer.data_bytes as usize);
        let tail = footer.decode_tail(path, tail)?;
        match chunk.checksums().first_damaged_piece(0, data, &tail.crcs) {
            None => Ok(tail.descriptor),
            Some(at) => Err(Error::corrupt(path, at, "piece")),
        }
    }

    #[test]
    fn golden_bytes_of_a_file_do_not_change() {
        let descriptor = descriptor(Scheme::Replicas(3), 3);
        let (_, bytes) = chunk_file(&descriptor);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = include_str!("golden.txt").split_whitespace().collect::<String>();
        assert_eq!(hex, golden);
        assert_eq!(check(descriptor.chunk, &bytes).unwrap(), descriptor);
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let coded = descriptor(Scheme::Rs42(CellSize::Small), (256 << 10) + 4096 + 9);
        for descriptor in [descriptor(Scheme::Replicas(1), 4096 + 9), coded] {
            let (_, bytes) = chunk_file(&descriptor);
            assert_eq!(check(descriptor.chunk, &bytes).unwrap(), descriptor);
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                let error = check(descriptor.chunk, &damaged).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}");
            }
            for len in 0..bytes.len() {
                assert!(check(descriptor.chunk, &bytes[..len]).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn file_of_another_chunk_or_version_is_refused() {
        let descriptor = descriptor(Scheme::Replicas(1), 10);
        let (_, mut bytes) = chunk_file(&descriptor);
        let other = ChunkId { index: 1, ..descriptor.chunk };
        assert_eq!(check(other, &bytes).unwrap_err().kind(), ErrorKind::Corrupt);
        let footer_at = bytes.len() - FOOTER_BYTES as usize;
        bytes[footer_at + 37] = 2;
        let sum = crc(&bytes[footer_at..footer_at + 41]).to_le_bytes();
        bytes[footer_at + 41..footer_at + 45].copy_from_slice(&sum);
        let error = check(descriptor.chunk, &bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn names_of_files_are_canonical() {
        let chunk = ChunkId { blob: BlobId([0xab; 16]), index: 5 };
        let name = file_name(chunk);
        assert_eq!(name, format!("{}-5", "ab".repeat(16)));
        assert_eq!(parse_name(&name), Some(chunk));
        let wrong =
            ["", "a-1", &name.to_uppercase(), &format!("{name}.tmp"), &name.replace("-5", "-05")];
        assert!(wrong.into_iter().all(|name| parse_name(name).is_none()));
    }
}
