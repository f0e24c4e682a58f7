//! A record: a key and its value as they lie in the pool, written once, in units of 64 bytes.
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | [`VALID_WORD`], or [`INVALID_WORD`] once the record was superseded: magic `FLXR`, version, zeros, valid |
//! | 8 | 4 | CRC-32C of everything behind it, padding included |
//! | 12 | 4 | length of the value |
//! | 16 | 2 | length of the key |
//! | 18 | 6 | expiry, Unix ms; 0: never |
//! | 24 | 8 | hash of the key ([`key_hash`]) |
//! | 32 | 8 | the slot's word before: what readers take while this record is pending |
//! | 40 | 8 | the client of the pool that wrote it |
//! | 48 | | key, value, zeros up to a multiple of 64 |
//!
//! Invariants: 1. after a record was written, only its first word changes, by an 8-byte WRITE of
//! [`INVALID_WORD`]; the checksum does not cover that word. 2. What decodes, encodes to the same
//! bytes. 3. The hash is that of the key, so that growth can place a record again.
//!
//! A read of too few bytes (the slot's length is an escape, or the slot is stale) is answered by
//! how many are needed. That number comes from a header that nothing vouches for yet, so the caller
//! says how many bytes a record may have.
//!
//! Cost: one pass for the checksum, one hash of the key; no allocation. Thread-safety: values.
//! Failure: a torn, foreign or hostile record gives a [`RecordRefused`]. Paper: §4.5, out-of-place
//! updates and valid bits; the layout is ours.

use archipelago_base::checksum;

use super::slot::UNIT_BYTES;
use super::table::{KeyHash, key_hash};

/// The first word of a record that holds the newest value of its key, as far as its writer knew.
pub const VALID_WORD: u64 = u64::from_le_bytes(*b"FLXR\x01\0\0\x01");
/// The first word of a record that was superseded or deleted.
pub const INVALID_WORD: u64 = u64::from_le_bytes(*b"FLXR\x01\0\0\0");
/// Bytes before the key.
pub const HEADER_BYTES: usize = 48;
/// The longest key.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// The latest expiry, Unix ms: 48 bits, some 8,900 years.
pub const EXPIRY_MAX: u64 = (1 << 48) - 1;

const CHECKED_FROM: usize = 12;

/// Bytes of a record, a multiple of 64. `None` if the key or the value is longer than the format
/// can say.
#[must_use]
pub fn record_bytes(key: usize, value: usize) -> Option<u64> {
    if key > KEY_BYTES_MAX || u32::try_from(value).is_err() {
        return None;
    }
    Some((HEADER_BYTES as u64 + key as u64 + value as u64).next_multiple_of(UNIT_BYTES))
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordRefused {
    /// The first word is neither of the two of any version.
    #[error("no record begins here: the first word is {0:#018x}")]
    NotARecord(u64),
    /// Of another version.
    #[error("the record has version {0}, this program reads version 1")]
    Version(u8),
    /// Longer than the caller takes.
    #[error("the record says that it has {0} bytes, more than it may")]
    TooLong(u64),
    /// Torn, overwritten or damaged.
    #[error(
        "the record's checksum is {found:#010x}, its bytes have {computed:#010x}: torn or reused"
    )]
    Checksum {
        /// What the record says.
        found: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// The hash is not that of the key.
    #[error("the record's hash is not that of its key")]
    Hash,
    /// The padding is not zero.
    #[error("the record's padding is not zero")]
    Padding,
}

/// What a record says before its key. Nothing vouches for them before the whole record was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether the record was not superseded.
    pub valid: bool,
    /// Length of the key.
    pub key_bytes: u16,
    /// Length of the value.
    pub value_bytes: u32,
    /// Unix ms; 0: never.
    pub expires_ms: u64,
    /// Of the key.
    pub hash: u64,
    /// The slot's word before.
    pub previous: u64,
    /// Who wrote it.
    pub writer: u64,
    crc: u32,
}

impl Header {
    /// Reads the header; `None` if not all of it is there.
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

/// The beginning of a record: whose it is, for who does not want the value. The key's hash vouches
/// for the key, nothing for the rest: what follows from it must be worth nothing unless the slot
/// still names the record afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// What comes before the key.
    pub header: Header,
    /// The key.
    pub key: &'a [u8],
}

impl<'a> Head<'a> {
    /// Bytes to read of a record whose key may have so many.
    #[must_use]
    pub fn bytes(key: usize) -> u64 {
        (HEADER_BYTES as u64 + key as u64).next_multiple_of(UNIT_BYTES)
    }

    /// Reads it; `None` if not all of it is there.
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

/// A record: what is to be written, or what was read, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Whether it was not superseded when it was read. Records are written valid.
    pub valid: bool,
    /// At most [`KEY_BYTES_MAX`].
    pub key: &'a [u8],
    /// At most what a block holds.
    pub value: &'a [u8],
    /// Unix ms from which on the key counts as absent; 0: never. At most [`EXPIRY_MAX`].
    pub expires_ms: u64,
    /// The slot's word before this record.
    pub previous: u64,
    /// The client of the pool that wrote it.
    pub writer: u64,
}

/// What [`Record::decode`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A whole, checked record.
    Record(Record<'a>),
    /// So many bytes are needed, counted from the record's beginning; more than were given.
    Needs(u64),
}

impl<'a> Record<'a> {
    /// A record to be written.
    #[must_use]
    pub fn new(key: &'a [u8], value: &'a [u8]) -> Self {
        Self { valid: true, key, value, expires_ms: 0, previous: 0, writer: 0 }
    }

    /// Bytes that [`encode`](Self::encode) writes. `None` if a length or the expiry is more than
    /// the format can say.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        record_bytes(self.key.len(), self.value.len()).filter(|_| self.expires_ms <= EXPIRY_MAX)
    }

    /// Writes the record to the beginning of `out` and says how many bytes it takes. `None`, and
    /// nothing written, if it does not fit there or the format.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        self.encode_hashed(key_hash(self.key), out)
    }

    /// The same for who has the key's hash already.
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

    /// Reads the record at the beginning of `bytes`; what lies behind it is not looked at.
    /// `bytes_max`: how many bytes a record may have here, in a pool those of a block.
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

    /// Whether it has expired at `now_ms` (Unix).
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms != 0 && now_ms >= self.expires_ms
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;
    use proptest::prelude::*;

    use super::*;

    const MAX: u64 = 16 << 20;

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut out = vec![0xee; record.bytes().expect("fits") as usize];
        assert_eq!(record.encode(&mut out), Some(out.len()));
        out
    }

    fn reseal(bytes: &mut [u8]) {
        let crc = checksum::crc(&bytes[CHECKED_FROM..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn a_head_says_whose_a_record_is_without_its_value() {
        let record = Record { expires_ms: 7, ..Record::new(b"reef", &[1; 5000]) };
        let mut bytes = encoded(&record);
        let read = Head::bytes(4) as usize;
        assert_eq!(read, 64);
        let head = Head::decode(&bytes[..read]).expect("sound").expect("all of it");
        assert_eq!((head.key, head.header.expires_ms), (&b"reef"[..], 7));
        assert_eq!(Head::decode(&bytes[..51]), Ok(None), "a byte of the key is missing");
        assert_eq!(Head::bytes(17), 128);
        bytes[48] = b'l';
        assert_eq!(Head::decode(&bytes[..read]), Err(RecordRefused::Hash), "torn");
        bytes[0] = 0;
        assert!(matches!(Head::decode(&bytes[..read]), Err(RecordRefused::NotARecord(_))));
    }

    #[test]
    fn golden_bytes() {
        let record = Record {
            expires_ms: 0x0605_0403_0201,
            previous: 0x0102_0304_0506_0708,
            writer: 0x1112_1314_1516_1718,
            ..Record::new(b"reef", b"coral")
        };
        let bytes = encoded(&record);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "464c585201000001",
            "482baa22",
            "05000000",
            "0400",
            "010203040506",
            "fce8e88e9e42ab23",
            "0807060504030201",
            "1817161514131211",
            "72656566",
            "636f72616c",
            &"00".repeat(64 - 57),
        ];
        assert_eq!(hex, expected.concat());
        assert_eq!(VALID_WORD ^ INVALID_WORD, 1 << 56);
    }

    #[test]
    fn clearing_the_valid_bit_is_seen_and_changes_nothing_else() {
        let mut bytes = encoded(&Record::new(b"key", b"value"));
        bytes[..8].copy_from_slice(&INVALID_WORD.to_le_bytes());
        let expected = Record { valid: false, ..Record::new(b"key", b"value") };
        assert_eq!(Record::decode(&bytes, MAX), Ok(Decoded::Record(expected)));
    }

    #[test]
    fn a_short_read_says_how_many_bytes_are_needed() {
        let value = vec![7; 20_000];
        let bytes = encoded(&Record::new(b"long", &value));
        assert_eq!(bytes.len(), 20_096);
        for cut in [0, 8, 47, 48, 64, 255 * 64, bytes.len() - 1] {
            let needs = if cut < 48 { 64 } else { 20_096 };
            assert_eq!(Record::decode(&bytes[..cut], MAX), Ok(Decoded::Needs(needs)), "{cut}");
        }
        assert_eq!(Record::decode(&bytes[..64], 4096), Err(RecordRefused::TooLong(20_096)));
        assert!(matches!(Record::decode(&bytes, MAX), Ok(Decoded::Record(_))));
    }

    #[test]
    fn what_is_too_long_is_not_written() {
        let long = vec![1; KEY_BYTES_MAX + 1];
        assert_eq!(Record::new(&long, b"").bytes(), None);
        assert_eq!(Record::new(&long[1..], b"").bytes(), Some(65_600));
        assert_eq!(Record { expires_ms: 1 << 48, ..Record::new(b"", b"") }.bytes(), None);
        let mut small = [9; 63];
        assert_eq!(Record::new(b"", b"").encode(&mut small), None);
        assert_eq!(small, [9; 63], "nothing was written");
    }

    #[test]
    fn each_reason_is_told() {
        let good = encoded(&Record::new(b"key", b"value"));
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        let refused = |bytes: &[u8]| Record::decode(bytes, MAX).expect_err("refused");
        assert!(matches!(refused(&with(0, b'x')), RecordRefused::NotARecord(_)));
        assert!(matches!(refused(&with(7, 2)), RecordRefused::NotARecord(_)));
        assert_eq!(refused(&with(4, 2)), RecordRefused::Version(2));
        assert!(matches!(refused(&with(8, good[8] ^ 1)), RecordRefused::Checksum { .. }));
        assert!(matches!(refused(&with(63, 1)), RecordRefused::Checksum { .. }));
        let mut padded = with(63, 1);
        reseal(&mut padded);
        assert_eq!(refused(&padded), RecordRefused::Padding);
        let mut foreign = with(24, good[24] ^ 1);
        reseal(&mut foreign);
        assert_eq!(refused(&foreign), RecordRefused::Hash);
        assert!(refused(&[0; 64]).to_string().contains("no record"));
    }

    #[test]
    fn any_flipped_bit_behind_the_first_word_is_noticed() {
        let good =
            encoded(&Record::new(b"key", b"a value of some length, over one unit of 64 bytes"));
        for bit in 64..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read = Record::decode(&bytes, MAX);
            assert!(!matches!(read, Ok(Decoded::Record(_))), "bit {bit}");
        }
    }

    #[test]
    fn random_damage_never_panics() {
        let mut rng = Rng::with_seed(11);
        let good = encoded(&Record::new(b"key", &[5; 100]));
        for _ in 0..50_000 {
            let mut bytes = good.clone();
            for _ in 0..rng.usize(1..6) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            if rng.bool() {
                reseal(&mut bytes);
            }
            bytes.truncate(rng.usize(..=bytes.len()));
            if let Ok(Decoded::Record(record)) = Record::decode(&bytes, MAX) {
                let len = record.bytes().expect("fits") as usize;
                assert_eq!(encoded(&record), bytes[..len]);
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            key in proptest::collection::vec(any::<u8>(), 0..300),
            value in proptest::collection::vec(any::<u8>(), 0..3000),
            expires_ms in 0..=EXPIRY_MAX,
            valid: bool,
            previous: u64,
            writer: u64,
        ) {
            let record = Record { valid, key: &key, value: &value, expires_ms, previous, writer };
            let mut bytes = encoded(&record);
            prop_assert_eq!(bytes.len() % 64, 0);
            bytes.extend([0xaa; 64]);
            prop_assert_eq!(Record::decode(&bytes, MAX), Ok(Decoded::Record(record)));
            prop_assert_eq!(record.is_expired(expires_ms), expires_ms != 0);
        }
    }
}
