//! A record: a key and its value as they lie in the pool, written once, in units of 64 bytes.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 8 | [`VALID_WORD`], or [`INVALID_WORD`] once the record was superseded: magic `FLXR`,
//! version, zeros, valid |
//! | 8 | 4 | CRC-32C of all following bytes, padding included |
//! | 12 | 4 | length of the value |
//! | 16 | 2 | length of the key |
//! | 18 | 6 | expiry in Unix ms; 0: never |
//! | 24 | 8 | hash of the key ([`key_hash`]) |
//! | 32 | 8 | the slot's former word, which readers use while this record is pending |
//! | 40 | 8 | the client of the pool that wrote the record |
//! | 48 | | key, value, zeros up to a multiple of 64 |
//!
//! A read of too few bytes happens if the slot's length is an escape, or if the slot is stale.
//! Decoding then says how many bytes are needed. That number comes from a header that is not
//! verified yet, so the caller gives the largest number of bytes that a record may have.
//!
//! Invariants:
//! 1. After a record was written, only its first word changes, by an 8-byte WRITE of
//!    [`INVALID_WORD`]. The checksum does not cover that word.
//! 2. A record that decodes encodes to the same bytes.
//! 3. The hash is that of the key, so that growth can place a record again.
//!
//! Thread-safety: values.
//! Failure: a torn, foreign or hostile record gives a [`RecordRefused`].
//! Cost: one pass for the checksum, one hash of the key, and no allocation. Paper: §4.5,
//! out-of-place updates and valid bits. The layout is an addition.

#[cfg(test)]
mod tests;

use archipelago_base::checksum;

use super::slot::UNIT_BYTES;
use super::table::{KeyHash, key_hash};

/// The first word of a record that holds the newest value of its key, as far as its writer knew.
pub const VALID_WORD: u64 = u64::from_le_bytes(*b"FLXR\x01\0\0\x01");
/// The first word of a record that was superseded or deleted.
pub const INVALID_WORD: u64 = u64::from_le_bytes(*b"FLXR\x01\0\0\0");
/// Number of bytes before the key.
pub const HEADER_BYTES: usize = 48;
/// Length of the longest key, in bytes.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// The latest expiry in Unix milliseconds, of 48 bits: some 8,900 years.
pub const EXPIRY_MAX: u64 = (1 << 48) - 1;

const CHECKED_FROM: usize = 12;

/// Bytes of a record, a multiple of 64. `None` if the key or the value is longer than the format
/// can express.
#[must_use]
pub fn record_bytes(key: usize, value: usize) -> Option<u64> {
    if key > KEY_BYTES_MAX || u32::try_from(value).is_err() {
        return None;
    }
    Some((HEADER_BYTES as u64 + key as u64 + value as u64).next_multiple_of(UNIT_BYTES))
}

/// The reason for which bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordRefused {
    /// The first word belongs to no version.
    #[error("no record begins here: the first word is {0:#018x}")]
    NotARecord(u64),
    /// The record has another version.
    #[error("the record has version {0}, this program reads version 1")]
    Version(u8),
    /// The record is longer than the caller allows.
    #[error("the record says that it has {0} bytes, more than it may")]
    TooLong(u64),
    /// The record is torn, overwritten or damaged.
    #[error(
        "the record's checksum is {found:#010x}, its bytes have {computed:#010x}: torn or reused"
    )]
    Checksum {
        /// The checksum in the record.
        found: u32,
        /// The checksum of the record's bytes.
        computed: u32,
    },
    /// The hash is not that of the key.
    #[error("the record's hash is not that of its key")]
    Hash,
    /// The padding is not zero.
    #[error("the record's padding is not zero")]
    Padding,
}

/// The fields before the key. They are not verified before the whole record was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether the record was not superseded.
    pub valid: bool,
    /// Length of the key.
    pub key_bytes: u16,
    /// Length of the value.
    pub value_bytes: u32,
    /// Expiry in Unix milliseconds. 0 means never.
    pub expires_ms: u64,
    /// Hash of the key.
    pub hash: u64,
    /// The slot's former word.
    pub previous: u64,
    /// The client of the pool that wrote the record.
    pub writer: u64,
    crc: u32,
}

impl Header {
    /// Decodes the header. `None` if bytes are missing.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, RecordRefused> {
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let first = word(0);
        if first != VALID_WORD && first != INVALID_WORD {
            let version = head[4];
            return Err(if head.starts_with(b"FLXR") && version != 1 {
                RecordRefused::Version(version)
            } else {
                RecordRefused::NotARecord(first)
            });
        }
        let (lengths, key_and_expiry) = (word(8), word(16));
        Ok(Some(Self {
            valid: first == VALID_WORD,
            crc: lengths as u32,
            value_bytes: (lengths >> 32) as u32,
            key_bytes: key_and_expiry as u16,
            expires_ms: key_and_expiry >> 16,
            hash: word(24),
            previous: word(32),
            writer: word(40),
        }))
    }

    /// Bytes of the whole record.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        let contents = u64::from(self.key_bytes) + u64::from(self.value_bytes);
        (HEADER_BYTES as u64 + contents).next_multiple_of(UNIT_BYTES)
    }
}

/// The beginning of a record with its key, for callers that do not need the value. The key's hash
/// verifies the key, and nothing verifies the rest. So a conclusion from it counts only if the slot
/// still names the record afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The fields before the key.
    pub header: Header,
    /// Bytes of the key.
    pub key: &'a [u8],
}

impl<'a> Head<'a> {
    /// Number of bytes to read of a record whose key may have `key_bytes` bytes.
    #[must_use]
    pub fn bytes(key: usize) -> u64 {
        (HEADER_BYTES as u64 + key as u64).next_multiple_of(UNIT_BYTES)
    }

    /// Decodes the beginning of a record. `None` if bytes are missing.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<Self>, RecordRefused> {
        let Some(header) = Header::read(bytes)? else { return Ok(None) };
        let Some(key) = bytes[HEADER_BYTES..].get(..usize::from(header.key_bytes)) else {
            return Ok(None);
        };
        if key_hash(key).0 != header.hash {
            return Err(RecordRefused::Hash);
        }
        Ok(Some(Self { header, key }))
    }
}

/// A record that is written or was read, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Whether the record was not superseded when it was read. Records are written valid.
    pub valid: bool,
    /// The key, of at most [`KEY_BYTES_MAX`] bytes.
    pub key: &'a [u8],
    /// The value. The record must fit a block.
    pub value: &'a [u8],
    /// Unix time in milliseconds from which on the key counts as absent, at most [`EXPIRY_MAX`]. 0
    /// means never.
    pub expires_ms: u64,
    /// The slot's former word.
    pub previous: u64,
    /// The client of the pool that wrote the record.
    pub writer: u64,
}

/// Result of [`Record::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A whole, checked record.
    Record(Record<'a>),
    /// This number of bytes from the record's beginning is needed, which is more than were given.
    Needs(u64),
}

impl<'a> Record<'a> {
    /// A valid record without expiry.
    #[must_use]
    pub fn new(key: &'a [u8], value: &'a [u8]) -> Self {
        Self { valid: true, key, value, expires_ms: 0, previous: 0, writer: 0 }
    }

    /// Number of bytes that [`encode`](Self::encode) writes. `None` if a length or the expiry is
    /// more than the format can express.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        record_bytes(self.key.len(), self.value.len()).filter(|_| self.expires_ms <= EXPIRY_MAX)
    }

    /// Writes the record to the beginning of `out`, and returns its length. `None`, without effect,
    /// if it does not fit `out` or the format.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        self.encode_hashed(key_hash(self.key), out)
    }

    /// As [`encode`](Self::encode), for a caller that has the key's hash.
    pub(crate) fn encode_hashed(&self, hash: KeyHash, out: &mut [u8]) -> Option<usize> {
        let bytes = usize::try_from(self.bytes()?).ok()?;
        let out = out.get_mut(..bytes)?;
        let word = if self.valid { VALID_WORD } else { INVALID_WORD };
        out[..8].copy_from_slice(&word.to_le_bytes());
        out[12..16].copy_from_slice(&(self.value.len() as u32).to_le_bytes());
        out[16..18].copy_from_slice(&(self.key.len() as u16).to_le_bytes());
        out[18..24].copy_from_slice(&self.expires_ms.to_le_bytes()[..6]);
        out[24..32].copy_from_slice(&hash.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.previous.to_le_bytes());
        out[40..48].copy_from_slice(&self.writer.to_le_bytes());
        let (key, rest) = out[HEADER_BYTES..].split_at_mut(self.key.len());
        let (value, padding) = rest.split_at_mut(self.value.len());
        key.copy_from_slice(self.key);
        value.copy_from_slice(self.value);
        padding.fill(0);
        let crc = checksum::crc(&out[CHECKED_FROM..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        Some(bytes)
    }

    /// Decodes the record at the beginning of `bytes` and ignores the bytes after it. `bytes_max`
    /// is the largest number of bytes that a record may have here, which is that of a block in a
    /// pool.
    pub fn decode(bytes: &'a [u8], bytes_max: u64) -> Result<Decoded<'a>, RecordRefused> {
        let Some(header) = Header::read(bytes)? else {
            return Ok(Decoded::Needs(UNIT_BYTES));
        };
        let needs = header.record_bytes();
        if needs > bytes_max {
            return Err(RecordRefused::TooLong(needs));
        }
        let Some(whole) = usize::try_from(needs).ok().and_then(|needs| bytes.get(..needs)) else {
            return Ok(Decoded::Needs(needs));
        };
        let computed = checksum::crc(&whole[CHECKED_FROM..]);
        if computed != header.crc {
            return Err(RecordRefused::Checksum { found: header.crc, computed });
        }
        let (key, rest) = whole[HEADER_BYTES..].split_at(usize::from(header.key_bytes));
        let (value, padding) = rest.split_at(header.value_bytes as usize);
        if padding.iter().any(|&byte| byte != 0) {
            return Err(RecordRefused::Padding);
        }
        if key_hash(key).0 != header.hash {
            return Err(RecordRefused::Hash);
        }
        let Header { valid, expires_ms, previous, writer, .. } = header;
        Ok(Decoded::Record(Self { valid, key, value, expires_ms, previous, writer }))
    }

    /// Whether the record has expired at `now_ms`, in Unix milliseconds.
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms != 0 && now_ms >= self.expires_ms
    }
}
