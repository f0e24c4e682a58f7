//! The record of a chunk in the node's metadata. `docs/formats/chunk.md` has the byte table.
//!
//! The record decides whether a file is a chunk of the node, and it has the newest descriptor. The
//! descriptor in the file is that of the seal.
//!
//! All functions are pure. Failure: the errors name the chunk.

use archipelago_base::codec::{Reader, put_u8, put_u64};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_store::BlobId;
use archipelago_store::nodes::wire::stored::{decode_checked, encode_checked};
use archipelago_store::nodes::wire::{ChunkDescriptor, ChunkId};

use crate::identity::DeviceId;

/// Version of the records.
const VERSION: u8 = 1;
/// Length of a key in bytes.
pub(crate) const KEY_BYTES: usize = 17;

/// Durable state of a chunk on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// The chunk is sealed, and its file has been whole.
    Sealed,
    /// The file has damage and was moved aside.
    Damaged,
    /// The chunk was given up, and its file is being removed.
    Removed,
}

impl RecordState {
    const fn code(self) -> u8 {
        match self {
            Self::Sealed => 1,
            Self::Damaged => 2,
            Self::Removed => 3,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Sealed,
            2 => Self::Damaged,
            3 => Self::Removed,
            _ => return None,
        })
    }
}

/// A record of the metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRecord {
    /// State of the chunk on the node.
    pub(crate) state: RecordState,
    /// Device with the chunk's file.
    pub(crate) device: DeviceId,
    /// Length of the file in bytes.
    pub(crate) file_bytes: u64,
    /// The newest descriptor.
    pub(crate) descriptor: ChunkDescriptor,
}

impl ChunkRecord {
    /// The value of the record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        put_u8(&mut out, VERSION);
        put_u8(&mut out, self.state.code());
        put_u64(&mut out, self.device.0);
        put_u64(&mut out, self.file_bytes);
        out.extend_from_slice(&encode_checked(&self.descriptor));
        out
    }

    /// Reads the value of the record of `chunk`. Errors: `Unsupported` for another version, and
    /// `Corrupt` for bytes that are no record.
    pub(crate) fn decode(chunk: ChunkId, value: &[u8]) -> Result<Self> {
        let object = format!("the record of chunk {chunk}");
        let mut reader = Reader::new(value);
        let head = Self::head(&mut reader).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("{object} has {} bytes", value.len()))
        })?;
        let Some(state) = RecordState::from_code(head.state).filter(|_| head.version == VERSION)
        else {
            return Err(Error::unsupported(format!(
                "{object} has version {} and state {}; this program reads version {VERSION}: use \
                 the program that wrote it",
                head.version, head.state
            )));
        };
        let descriptor: ChunkDescriptor = decode_checked(&object, reader.rest())?;
        if head.file_bytes < descriptor.chunk_bytes() {
            let (has, wants) = (head.file_bytes, descriptor.chunk_bytes());
            let text = format!("{object} says {has} bytes for a chunk of {wants} bytes");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        if descriptor.chunk != chunk {
            let text = format!("{object} describes chunk {}", descriptor.chunk);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(Self { state, device: head.device, file_bytes: head.file_bytes, descriptor })
    }

    fn head(reader: &mut Reader<'_>) -> Option<RecordHead> {
        Some(RecordHead {
            version: reader.u8()?,
            state: reader.u8()?,
            device: DeviceId(reader.u64()?),
            file_bytes: reader.u64()?,
        })
    }
}

/// The fields of a record before the descriptor.
struct RecordHead {
    version: u8,
    state: u8,
    device: DeviceId,
    file_bytes: u64,
}

/// The key of a chunk's record. Keys of a blob are neighbours.
pub(crate) fn key(chunk: ChunkId) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&chunk.blob.0);
    key[16] = chunk.index;
    key
}

/// The chunk whose record has this key.
pub(crate) fn parse_key(key: &[u8]) -> Option<ChunkId> {
    let (index, blob) = key.split_last()?;
    Some(ChunkId { blob: BlobId(blob.try_into().ok()?), index: *index })
}

#[cfg(test)]
mod tests {
    use archipelago_store::nodes::layout::Scheme;

    use super::super::file::tests::descriptor;
    use super::*;

    #[test]
    fn golden_bytes_of_a_record_do_not_change() {
        let descriptor = descriptor(Scheme::Replicas(3), 3);
        let (device, file_bytes) = (DeviceId(0x0b), 0x0c);
        let encoded = encode_checked(&descriptor);
        let chunk = descriptor.chunk;
        for (state, code) in
            [(RecordState::Sealed, 1), (RecordState::Damaged, 2), (RecordState::Removed, 3)]
        {
            let record = ChunkRecord { state, device, file_bytes, descriptor: descriptor.clone() };
            let bytes = record.encode();
            let head = [&[1, code][..], &[0x0b, 0, 0, 0, 0, 0, 0, 0], &[0x0c, 0, 0, 0, 0, 0, 0, 0]];
            assert_eq!(bytes, [&head.concat()[..], &encoded].concat());
            assert_eq!(ChunkRecord::decode(chunk, &bytes).unwrap(), record);
            assert!((0..bytes.len()).all(|len| ChunkRecord::decode(chunk, &bytes[..len]).is_err()));
            let short = ChunkRecord { file_bytes: 2, ..record };
            let error = ChunkRecord::decode(chunk, &short.encode()).unwrap_err();
            assert!(error.to_string().contains(&chunk.to_string()), "{error}");
            let other = ChunkId { index: 1, ..chunk };
            let error = ChunkRecord::decode(other, &bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn keys_of_a_blob_are_neighbours() {
        let chunk = ChunkId { blob: BlobId([3; 16]), index: 4 };
        assert_eq!(key(chunk), [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]);
        assert_eq!(parse_key(&key(chunk)), Some(chunk));
        assert_eq!(parse_key(&[0; 16]), None);
    }
}
