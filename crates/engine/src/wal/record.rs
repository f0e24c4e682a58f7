//! The bytes of a log record and of a segment's header. `docs/formats/wal.md` has the tables.
//!
//! A record's header checksum covers the header, the segment's full incarnation and the record's
//! offset. So a record does not pass if an earlier use of the file left it, if a device returned it
//! from another place, or if it is part of a stored value. The payload's checksum lies in the
//! header and so is bound to the same. It can be computed before the sequence number is known.

use archipelago_base::checksum::{crc, crc_append};
use archipelago_base::{Epoch, FileNo, SeqNo};

/// Length in bytes of a record's header, before its payload.
pub const RECORD_HEADER_BYTES: usize = 28;
/// Length in bytes of the header at the start of a segment.
pub const SEGMENT_HEADER_BYTES: usize = 96;
/// Largest payload in bytes: 2 GiB less a page.
pub const PAYLOAD_BYTES_MAX: usize = (2 << 30) - 4096;
/// Version of the format. Other versions are refused.
pub const FORMAT_VERSION: u32 = 2;

const MAGIC: &[u8; 8] = b"ARCHWAL\n";
/// Number of random low bits of an incarnation; the other bits are the segment's number.
const SALT_BITS: u32 = 24;
/// Largest number of a segment: 40 bits.
pub const SEGMENT_NO_MAX: u64 = (1 << (64 - SALT_BITS)) - 1;

/// Type of a record. The numbers are stored and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordType {
    /// A write batch, which is committed by the existence of the record.
    Batch = 1,
    /// Reserved: the first phase of a two-phase commit.
    Prepare = 2,
    /// Reserved: the decision of a two-phase commit.
    Commit = 3,
    /// The end of a closed segment. The payload is the number of the next segment, which existed
    /// when the record was written.
    End = 4,
}

/// Length in bytes of the payload of a [`RecordType::End`] record.
pub const END_PAYLOAD_BYTES: usize = 8;

/// A manifest and the number of its bytes that were durable at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestPosition {
    /// Number of the manifest; 0 for no claim.
    pub no: FileNo,
    /// Every byte before this offset was durable.
    pub bytes: u64,
}

/// The checksum of a payload, for [`Entry::payload_crc`].
#[inline]
#[must_use]
pub fn payload_crc(payload: &[u8]) -> u32 {
    crc(payload)
}

/// A batch that is appended to the log.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Sequence number of the batch's first operation.
    pub first_seq: SeqNo,
    /// Encoded operations, from [`super::WriteBatch::data`].
    pub payload: &'a [u8],
    /// [`payload_crc`] of `payload`, computed outside the commit lock.
    pub payload_crc: u32,
}

/// The incarnation of segment `no`. Later segments have larger incarnations. Two uses of one number
/// (possible after power loss) differ in the low 24 bits except in one case in 16 million.
#[must_use]
pub fn incarnation_of(no: FileNo, salt: u32) -> Epoch {
    Epoch(no.0 << SALT_BITS | u64::from(salt) & ((1 << SALT_BITS) - 1))
}

/// The number of the segment that has `incarnation`.
#[must_use]
pub fn number_of(incarnation: Epoch) -> FileNo {
    FileNo(incarnation.0 >> SALT_BITS)
}

/// The seed of all header checksums of a segment.
#[must_use]
pub fn segment_seed(incarnation: Epoch) -> u32 {
    crc(&incarnation.0.to_le_bytes())
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Checksum of the payload.
    pub payload_crc: u32,
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// Sequence number of the batch's first operation.
    pub first_seq: SeqNo,
    /// A [`RecordType`], not checked.
    pub kind: u8,
    /// Low half of the segment's incarnation.
    pub incarnation_low: u32,
    /// Offset through which the writer knew the segment to be durable when it wrote the record.
    pub synced_through: u32,
}

impl RecordHeader {
    /// Encodes the header for `offset` of the segment with `seed`.
    #[inline]
    #[must_use]
    pub fn encode(&self, seed: u32, offset: u64) -> [u8; RECORD_HEADER_BYTES] {
        // The offset lies before the header so that one checksum call covers both.
        let mut bytes = [0u8; 4 + 4 + RECORD_HEADER_BYTES];
        bytes[12..16].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.payload_len.to_le_bytes());
        let word = self.first_seq.0 << 8 | u64::from(self.kind);
        bytes[20..28].copy_from_slice(&word.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.incarnation_low.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.synced_through.to_le_bytes());
        bytes[4..12].copy_from_slice(&offset.to_le_bytes());
        let sum = crc_append(seed, &bytes[4..]);
        let mut out = [0; RECORD_HEADER_BYTES];
        out.copy_from_slice(&bytes[8..]);
        out[..4].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes the header in `bytes`; `None` unless its checksum proves that it was written at
    /// `offset` of the segment with `seed`.
    #[inline]
    #[must_use]
    pub fn decode(bytes: &[u8; RECORD_HEADER_BYTES], seed: u32, offset: u64) -> Option<Self> {
        let header = Self::unchecked(bytes);
        let stored = word32(bytes, 0);
        (word32(&header.encode(seed, offset), 0) == stored).then_some(header)
    }

    fn unchecked(bytes: &[u8; RECORD_HEADER_BYTES]) -> Self {
        let word = u64::from(word32(bytes, 12)) | u64::from(word32(bytes, 16)) << 32;
        Self {
            payload_crc: word32(bytes, 4),
            payload_len: word32(bytes, 8),
            first_seq: SeqNo(word >> 8),
            kind: word as u8,
            incarnation_low: word32(bytes, 20),
            synced_through: word32(bytes, 24),
        }
    }

    /// Decodes the header in `bytes` if it was written at `offset` of *any* use of segment `no`.
    /// Returns it with the incarnation of that use. It serves a segment whose own header is lost.
    #[must_use]
    pub fn decode_any_use(
        bytes: &[u8; RECORD_HEADER_BYTES],
        no: FileNo,
        offset: u64,
    ) -> Option<Self> {
        let incarnation = incarnation_of(no, word32(bytes, 20));
        (incarnation.0 as u32 == word32(bytes, 20)).then_some(())?;
        Self::decode(bytes, segment_seed(incarnation), offset)
    }

    /// Length of header and payload in bytes.
    #[must_use]
    pub fn record_len(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + u64::from(self.payload_len)
    }
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from(word32(bytes, at)) | u64::from(word32(bytes, at + 4)) << 32
}

/// A segment, and the length of its part that belongs to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRef {
    /// The segment's number.
    pub no: FileNo,
    /// Length of the part in bytes, the header included.
    pub len: u64,
}

/// The header at the start of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Incarnation of this use of the file.
    pub incarnation: Epoch,
    /// The database that the segment belongs to.
    pub database_id: [u8; 16],
    /// The segment before this one and its final length; `None` for the first of all.
    pub previous: Option<SegmentRef>,
    /// Length of the file when this use of it began: 0 unless it was recycled. Bytes before that
    /// offset that are not a record of this use may be an old record.
    pub reused_len: u64,
    /// [`archipelago_env::FileSystem::boot_id`] at that time; zero if it was not known.
    pub boot_id: [u8; 16],
    /// Durable position of the manifest when this use of the file began. It is evidence for a later
    /// recovery that a shorter or older manifest has lost something.
    pub manifest: ManifestPosition,
}

/// Reason for which bytes are not the header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// Not a header, or damaged.
    Damaged,
    /// A header of another version of the format.
    Version(u32),
}

impl SegmentHeader {
    /// Encodes the header of a segment.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.incarnation.0.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.database_id);
        if let Some(previous) = self.previous {
            bytes[40..48].copy_from_slice(&previous.no.0.to_le_bytes());
            bytes[48..56].copy_from_slice(&previous.len.to_le_bytes());
        }
        bytes[56..64].copy_from_slice(&self.reused_len.to_le_bytes());
        bytes[64..80].copy_from_slice(&self.boot_id);
        bytes[80..88].copy_from_slice(&self.manifest.no.0.to_le_bytes());
        bytes[88..96].copy_from_slice(&self.manifest.bytes.to_le_bytes());
        let sum = crc(&bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a header and checks it.
    pub fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Result<Self, BadHeader> {
        let mut summed = *bytes;
        summed[12..16].fill(0);
        if &bytes[..8] != MAGIC || crc(&summed) != word32(bytes, 12) {
            return Err(BadHeader::Damaged);
        }
        let version = word32(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(BadHeader::Version(version));
        }
        let (mut database_id, mut boot_id) = ([0; 16], [0; 16]);
        database_id.copy_from_slice(&bytes[24..40]);
        boot_id.copy_from_slice(&bytes[64..80]);
        let (no, len) = (word64(bytes, 40), word64(bytes, 48));
        let previous = (len != 0).then_some(SegmentRef { no: FileNo(no), len });
        Ok(Self {
            incarnation: Epoch(word64(bytes, 16)),
            database_id,
            previous,
            reused_len: word64(bytes, 56),
            boot_id,
            manifest: ManifestPosition { no: FileNo(word64(bytes, 80)), bytes: word64(bytes, 88) },
        })
    }
}
