//! References: the stored value of a record of the kind [`Indirect`](crate::key::Kind::Indirect).
//!
//! A reference names the value file of the record's value, the length of the value there and for
//! the user, and the expiry of the record. `docs/formats/reference.md` has the byte table.
//!
//! Invariants of every value of [`Reference`] that [`Reference::decode`] returns:
//! 1. The number of the file is not 0, and the stored length is at most the raw length, which is
//!    at most [`VALUE_BYTES_MAX`].
//! 2. With an offset, the end of the value record is at most 2^64 - 1.
//! 3. [`Reference::encode`] gives the same bytes again: there is one encoding of a reference.
//!
//! The file number is authoritative. The offset is a hint that is correct only for that very file.
//! A reader uses the hint only while that file is live in the reader's version.
//!
//! The functions are pure. Neither encoding nor decoding allocates.

use std::fmt;

use archipelago_base::FileNo;
use archipelago_base::codec::{Reader, put_u64, put_varint, varint_len};

use super::VALUE_TRAILER_BYTES;
use crate::key::VALUE_BYTES_MAX;

/// Flag of a reference that holds an expiry.
const HAS_EXPIRY: u8 = 1;
/// Flag of a reference that holds an offset.
const HAS_OFFSET: u8 = 2;
/// Bytes of an encoded expiry.
const EXPIRY_BYTES: usize = 8;

/// Position of a separated value, and the expiry of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Number of the value file into which the value was written, or of an ancestor of the file
    /// that holds it now.
    pub file_no: FileNo,
    /// Offset of the value record in exactly that file; `None` if the offset is not known.
    pub offset: Option<u64>,
    /// Bytes of the payload as it is stored, without the trailer.
    pub stored_bytes: u32,
    /// Bytes of the user's value.
    pub raw_bytes: u32,
    /// Unix milliseconds from which on the record reads as a delete; `None` if it never expires.
    pub expiry_unix_ms: Option<u64>,
}

impl Reference {
    /// Bytes that the value record takes in the value area: the stored payload and its trailer.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        u64::from(self.stored_bytes) + VALUE_TRAILER_BYTES
    }

    /// Appends the encoded reference.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let expiry = if self.expiry_unix_ms.is_some() { HAS_EXPIRY } else { 0 };
        let offset = if self.offset.is_some() { HAS_OFFSET } else { 0 };
        out.push(expiry | offset);
        if let Some(expiry) = self.expiry_unix_ms {
            put_u64(out, expiry);
        }
        put_varint(out, self.file_no.0);
        if let Some(offset) = self.offset {
            put_varint(out, offset);
        }
        put_varint(out, u64::from(self.stored_bytes));
        put_varint(out, u64::from(self.raw_bytes));
    }

    /// Decodes a reference that takes all of `stored`. The caller adds file and offset of the
    /// record to the error.
    pub fn decode(stored: &[u8]) -> Result<Self, BadReference> {
        let mut reader = Reader::new(stored);
        let flags = reader.u8().ok_or(BadReference::CutOff)?;
        if flags & !(HAS_EXPIRY | HAS_OFFSET) != 0 {
            return Err(BadReference::UnknownFlags(flags));
        }
        let expiry_unix_ms = match flags & HAS_EXPIRY {
            0 => None,
            _ => Some(reader.u64().ok_or(BadReference::CutOff)?),
        };
        let mut number = || reader.varint().ok_or(BadReference::CutOff);
        let file_no = FileNo(number()?);
        let offset = if flags & HAS_OFFSET == 0 { None } else { Some(number()?) };
        let (stored_bytes, raw_bytes) = (number()?, number()?);
        if !reader.is_empty() {
            return Err(BadReference::TrailingBytes(reader.rest().len()));
        }
        if stored_bytes > raw_bytes || raw_bytes > VALUE_BYTES_MAX as u64 {
            return Err(BadReference::Lengths { stored_bytes, raw_bytes });
        }
        let (stored_bytes, raw_bytes) = (stored_bytes as u32, raw_bytes as u32);
        let reference = Self { file_no, offset, stored_bytes, raw_bytes, expiry_unix_ms };
        if file_no.0 == 0 {
            return Err(BadReference::NoFile);
        }
        if let Some(offset) = offset
            && offset.checked_add(reference.record_bytes()).is_none()
        {
            return Err(BadReference::Offset(offset));
        }
        match stored.len() == reference.encoded_bytes() {
            true => Ok(reference),
            false => Err(BadReference::NotShortest),
        }
    }

    /// Number of bytes that [`Reference::encode`] appends.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let expiry = if self.expiry_unix_ms.is_some() { EXPIRY_BYTES } else { 0 };
        1 + expiry
            + varint_len(self.file_no.0)
            + self.offset.map_or(0, varint_len)
            + varint_len(u64::from(self.stored_bytes))
            + varint_len(u64::from(self.raw_bytes))
    }
}

/// Reason for which bytes are not a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadReference {
    /// The bytes end within a field, or a number has more than 64 bits.
    CutOff,
    /// A flag is set that this version of the format does not know.
    UnknownFlags(u8),
    /// Bytes follow the last field.
    TrailingBytes(usize),
    /// The number of the value file is 0.
    NoFile,
    /// The stored length exceeds the raw length, or the raw length exceeds the longest value.
    Lengths {
        /// Stored length in the bytes.
        stored_bytes: u64,
        /// Raw length in the bytes.
        raw_bytes: u64,
    },
    /// The value record would end past 2^64 - 1.
    Offset(u64),
    /// A number has a longer encoding than it needs.
    NotShortest,
}

impl fmt::Display for BadReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reference: ")?;
        match self {
            Self::CutOff => f.write_str("cut off"),
            Self::UnknownFlags(flags) => write!(f, "unknown flags {flags:#04x}"),
            Self::TrailingBytes(bytes) => write!(f, "{bytes} bytes after the last field"),
            Self::NoFile => f.write_str("the number of the value file is 0"),
            Self::Lengths { stored_bytes, raw_bytes } => {
                write!(f, "impossible lengths: {stored_bytes} bytes stored, {raw_bytes} bytes raw")
            }
            Self::Offset(offset) => write!(f, "the value at offset {offset} ends past 2^64"),
            Self::NotShortest => f.write_str("a number is not in its shortest encoding"),
        }
    }
}

impl std::error::Error for BadReference {}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn encoded(reference: &Reference) -> Vec<u8> {
        let mut out = Vec::new();
        reference.encode(&mut out);
        out
    }

    /// Longest encoding of a reference, in bytes.
    const REFERENCE_BYTES_MAX: usize = 1 + 8 + 10 + 10 + 5 + 5;

    const PLAIN: Reference = Reference {
        file_no: FileNo(0x1234),
        offset: None,
        stored_bytes: 300,
        raw_bytes: 16_384,
        expiry_unix_ms: None,
    };

    #[test]
    fn bytes_are_what_the_format_page_says() {
        let fields = [0xb4, 0x24, 0xac, 0x02, 0x80, 0x80, 0x01];
        assert_eq!(encoded(&PLAIN), [&[0][..], &fields].concat());
        let full =
            Reference { offset: Some(5), expiry_unix_ms: Some(0x0102_0304_0506_0708), ..PLAIN };
        let expiry = [8, 7, 6, 5, 4, 3, 2, 1];
        let expected = [&[3][..], &expiry, &fields[..2], &[5], &fields[2..]].concat();
        assert_eq!(encoded(&full), expected);
        assert_eq!(encoded(&Reference { offset: Some(5), ..PLAIN })[..4], [2, 0xb4, 0x24, 5]);
    }

    #[test]
    fn impossible_references_are_refused() {
        let refused = |bytes: &[u8]| Reference::decode(bytes).expect_err("must be refused");
        assert_eq!(refused(&[]), BadReference::CutOff);
        assert_eq!(refused(&[4, 1, 1, 1]), BadReference::UnknownFlags(4));
        assert_eq!(refused(&[0x80, 1, 1, 1]), BadReference::UnknownFlags(0x80));
        assert_eq!(refused(&[0, 1, 1, 1, 0]), BadReference::TrailingBytes(1));
        assert_eq!(refused(&[0, 0, 1, 1]), BadReference::NoFile);
        let lengths = BadReference::Lengths { stored_bytes: 2, raw_bytes: 1 };
        assert_eq!(refused(&[0, 1, 2, 1]), lengths);
        let huge = encoded(&Reference { raw_bytes: VALUE_BYTES_MAX as u32 + 1, ..PLAIN });
        assert!(matches!(refused(&huge), BadReference::Lengths { .. }));
        let far = encoded(&Reference { offset: Some(u64::MAX - 304), ..PLAIN });
        assert_eq!(refused(&far), BadReference::Offset(u64::MAX - 304));
        assert_eq!(refused(&[0, 0x81, 0, 1, 1]), BadReference::NotShortest);
        assert_eq!(refused(&[0, 0x81, 0, 1, 1]).to_string().find("reference: "), Some(0));
    }

    #[test]
    fn fuzz_corpus_is_survived() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/reference");
        let mut decoded = 0;
        for entry in std::fs::read_dir(dir).expect("the corpus exists") {
            #[expect(clippy::disallowed_methods, reason = "the corpus lies in the source tree")]
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            if let Ok(reference) = Reference::decode(&bytes) {
                assert_eq!(encoded(&reference), bytes);
                decoded += 1;
            }
        }
        assert!(decoded >= 2, "the corpus has {decoded} whole references");
    }

    fn any_reference() -> impl Strategy<Value = Reference> {
        let lengths = (0..=VALUE_BYTES_MAX as u32, any::<u32>());
        let number = (1..=u64::MAX, 0..64u32).prop_map(|(no, shift)| (no >> shift).max(1));
        let offset = prop::option::of(0..u64::MAX - (VALUE_BYTES_MAX as u64 + 5));
        (number, offset, lengths, prop::option::of(any::<u64>())).prop_map(
            |(no, offset, (raw_bytes, stored), expiry_unix_ms)| Reference {
                file_no: FileNo(no),
                offset,
                stored_bytes: stored % (raw_bytes + 1),
                raw_bytes,
                expiry_unix_ms,
            },
        )
    }

    proptest! {
        #[test]
        fn references_round_trip(reference in any_reference()) {
            let bytes = encoded(&reference);
            prop_assert_eq!(bytes.len(), reference.encoded_bytes());
            prop_assert!(bytes.len() <= REFERENCE_BYTES_MAX);
            prop_assert_eq!(Reference::decode(&bytes), Ok(reference));
            for cut in 0..bytes.len() {
                prop_assert!(Reference::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn decoded_bytes_encode_to_themselves(bytes in prop::collection::vec(any::<u8>(), 0..24)) {
            if let Ok(reference) = Reference::decode(&bytes) {
                prop_assert_eq!(encoded(&reference), bytes);
            }
        }
    }
}
