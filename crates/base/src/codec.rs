//! The byte codec of every on-disk format: little-endian fixed integers, LEB128 varints and byte
//! strings with a length prefix.
//!
//! Writing appends to a `Vec<u8>`. Reading uses a [`Reader`], whose methods check bounds and return
//! `None` past the end. A decoder of foreign bytes therefore cannot panic. [`crate::wire`] builds
//! the encoding of messages on this module.

/// Longest encoding of a varint of 64 bits, in bytes.
pub const VARINT64_BYTES_MAX: usize = 10;

/// Appends a `u8`.
pub fn put_u8(out: &mut Vec<u8>, value: u8) {
    out.push(value);
}

/// Appends a `u32`, little-endian.
pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a `u64`, little-endian.
pub fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a varint of one to ten bytes.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the length of `bytes` as a varint, and then `bytes`.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Number of bytes that [`put_varint`] writes for `value`.
#[inline]
#[must_use]
pub fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Reads a varint at the start of `bytes`. Returns the value and its length in bytes. Returns
/// `None` if the varint is cut off, longer than ten bytes, or larger than 64 bits.
#[inline]
#[must_use]
pub fn get_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    if first < 0x80 {
        return Some((u64::from(first), 1));
    }
    get_long_varint(bytes)
}

/// Reads a varint of any length. It is a function of its own so that callers inline only the path
/// of one byte.
#[inline(never)]
fn get_long_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    let mut shift = 0;
    for (index, &byte) in bytes.iter().enumerate().take(VARINT64_BYTES_MAX) {
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        value |= part << shift;
        if byte < 0x80 {
            return Some((value, index + 1));
        }
        shift += 7;
    }
    None
}

/// A cursor over foreign bytes. Every read checks bounds. A failed read does not move the cursor.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// Makes a cursor at the start of `bytes`.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Number of bytes that were read so far.
    #[inline]
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The bytes that were not read yet.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    /// Whether all bytes were read.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.position == self.bytes.len()
    }

    /// Reads `len` bytes without copying them.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.position.checked_add(len)?;
        let taken = self.bytes.get(self.position..end)?;
        self.position = end;
        Some(taken)
    }

    /// Reads one byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// Reads a little-endian `u32`.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Reads a little-endian `u64`.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Reads a varint of at most 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        let first = *self.bytes.get(self.position)?;
        if first < 0x80 {
            self.position += 1;
            return Some(u64::from(first));
        }
        let (value, len) = get_long_varint(self.rest())?;
        self.position += len;
        Some(value)
    }

    /// Reads a varint whose value fits a `u32`.
    #[inline]
    pub fn varint32(&mut self) -> Option<u32> {
        let before = self.position;
        let value = u32::try_from(self.varint()?).ok();
        if value.is_none() {
            self.position = before;
        }
        value
    }

    /// Reads a byte string with its length prefix.
    #[inline]
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let before = self.position;
        let len = usize::try_from(self.varint()?).ok()?;
        let taken = self.take(len);
        if taken.is_none() {
            self.position = before;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_at_every_width() {
        for bit in 0..64 {
            for value in [(1u64 << bit) - 1, 1 << bit, (1 << bit) | 1] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value), "{value}");
                assert_eq!(get_varint(&out), Some((value, out.len())));
                for cut in 0..out.len() {
                    assert_eq!(get_varint(&out[..cut]), None);
                }
            }
        }
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        assert_eq!(get_varint(&out), Some((u64::MAX, 10)));
    }

    #[test]
    fn overlong_varints_are_refused() {
        assert_eq!(get_varint(&[0xff; 11]), None);
        let mut sixty_five_bits = [0xff; 10];
        sixty_five_bits[9] = 2;
        assert_eq!(get_varint(&sixty_five_bits), None);
    }

    #[test]
    fn failed_read_does_not_move_the_cursor() {
        let mut out = Vec::new();
        put_varint(&mut out, 5);
        out.extend_from_slice(b"abc");
        let mut reader = Reader::new(&out);
        assert_eq!(reader.bytes(), None);
        assert_eq!(reader.position(), 0);
        assert_eq!(reader.varint(), Some(5));
        assert_eq!(reader.take(3), Some(&b"abc"[..]));
        assert!(reader.is_empty());
    }
}
