//! Handles: the values of the key blocks of a value file, which locate each value record.
//!
//! `docs/formats/value-file.md` has the byte table. The functions are pure and do not allocate.

use archipelago_base::codec::{Reader, put_varint};

use super::{Reference, VALUE_TRAILER_BYTES};
use crate::key::VALUE_BYTES_MAX;

/// Position and lengths of a value record within one value file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueHandle {
    /// Offset of the first byte of the payload.
    pub offset: u64,
    /// Bytes of the payload as it is stored, without the trailer.
    pub stored_bytes: u32,
    /// Bytes of the user's value.
    pub raw_bytes: u32,
}

impl ValueHandle {
    /// The position that `reference` names by its hint; `None` if it has no hint. The hint is
    /// correct only for the file that the reference names.
    #[must_use]
    pub fn hinted(reference: &Reference) -> Option<Self> {
        let Reference { stored_bytes, raw_bytes, .. } = *reference;
        reference.offset.map(|offset| Self { offset, stored_bytes, raw_bytes })
    }

    /// Bytes of the whole value record: payload and trailer.
    #[must_use]
    pub fn record_bytes(self) -> u64 {
        u64::from(self.stored_bytes) + VALUE_TRAILER_BYTES
    }

    /// Offset of the first byte after the value record; `None` past 2^64.
    #[must_use]
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.record_bytes())
    }

    /// Appends the encoded handle.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        put_varint(out, self.offset);
        put_varint(out, u64::from(self.stored_bytes));
        put_varint(out, u64::from(self.raw_bytes));
    }

    /// Decodes a handle that takes all of `bytes`. `None` if they are no handle, or if its record
    /// does not lie within a value area of `value_bytes`.
    pub(crate) fn decode(bytes: &[u8], value_bytes: u64) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let offset = reader.varint()?;
        let (stored_bytes, raw_bytes) = (reader.varint32()?, reader.varint32()?);
        let handle = Self { offset, stored_bytes, raw_bytes };
        (reader.is_empty() && handle.is_within(value_bytes)).then_some(handle)
    }

    /// Whether the lengths are possible and the record lies within a value area of `value_bytes`.
    pub(crate) fn is_within(self, value_bytes: u64) -> bool {
        self.stored_bytes <= self.raw_bytes
            && self.raw_bytes as usize <= VALUE_BYTES_MAX
            && self.end().is_some_and(|end| end <= value_bytes)
    }
}
