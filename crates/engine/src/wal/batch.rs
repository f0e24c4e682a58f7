//! [`WriteBatch`]: the operations of one atomic write. They are kept in the encoding of the log, so
//! that a commit encodes nothing.
//!
//! Encoding: the number of operations (u32, little-endian), then per operation: kind (u8), column
//! family id, key length, (except for deletes) value length (varints), key, value. The `index`-th
//! operation has the sequence number `first + index`. The value of a range delete is its end key.
//! The value of an expiring put begins with the expiry (Unix milliseconds, little-endian u64).
//!
//! Thread-safety: none; the caller of a write owns its batch. Cost: appending an operation is one
//! small and two large copies into a buffer that [`WriteBatch::clear`] keeps.

use archipelago_base::codec::{Reader, VARINT64_BYTES_MAX};
use archipelago_base::{CfId, Error, Result};

use crate::key::{KEY_BYTES_MAX, Kind, VALUE_BYTES_MAX};

const COUNT_BYTES: usize = 4;
/// Largest header of an operation in bytes: kind and three varints.
const OP_HEADER_BYTES_MAX: usize = 1 + 3 * VARINT64_BYTES_MAX;

/// Operations that take effect together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBatch {
    bytes: Vec<u8>,
    len: u32,
}

impl Default for WriteBatch {
    fn default() -> Self {
        Self::new()
    }
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOp<'a> {
    /// The column family.
    pub cf: CfId,
    /// What the operation does.
    pub kind: Kind,
    /// The key of the operation; the first key of a range delete.
    pub key: &'a [u8],
    /// The stored value; empty for a delete, the end key (exclusive) for a range delete.
    pub value: &'a [u8],
}

/// Checks a key and a value against the limits of the data model (64 KiB, 1 GiB). `InvalidArgument`
/// if one is too long.
pub fn check_limits(key: &[u8], value: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the key has {} bytes: at most {KEY_BYTES_MAX} are allowed",
            key.len()
        )));
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the value has {} bytes: at most {VALUE_BYTES_MAX} are allowed",
            value.len()
        )));
    }
    Ok(())
}

impl WriteBatch {
    /// An empty batch. Allocates nothing until the first operation.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), len: 0 }
    }

    /// An empty batch with room for `bytes` of encoded operations.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(COUNT_BYTES + bytes), len: 0 }
    }

    /// Sets `key` to `value`.
    #[inline]
    pub fn put_cf(&mut self, cf: CfId, key: &[u8], value: &[u8]) {
        self.push(cf, Kind::Put, key, &[], value);
    }

    /// Sets `key` to `value` until `expires_at_ms` (Unix milliseconds).
    pub fn put_expiring_cf(&mut self, cf: CfId, key: &[u8], value: &[u8], expires_at_ms: u64) {
        self.push(cf, Kind::PutExpiring, key, &expires_at_ms.to_le_bytes(), value);
    }

    /// Removes `key` from the column family.
    #[inline]
    pub fn delete_cf(&mut self, cf: CfId, key: &[u8]) {
        self.push(cf, Kind::Delete, key, &[], &[]);
    }

    /// Adds an operand for the column family's merge operator.
    pub fn merge_cf(&mut self, cf: CfId, key: &[u8], operand: &[u8]) {
        self.push(cf, Kind::Merge, key, &[], operand);
    }

    /// Removes every key from `start` up to but not including `end`.
    pub fn delete_range_cf(&mut self, cf: CfId, start: &[u8], end: &[u8]) {
        self.push(cf, Kind::RangeDelete, start, &[], end);
    }

    #[inline]
    fn push(&mut self, cf: CfId, kind: Kind, key: &[u8], prefix: &[u8], value: &[u8]) {
        let mut header = [0u8; OP_HEADER_BYTES_MAX];
        header[0] = kind as u8;
        let mut at = stack_varint(&mut header, 1, u64::from(cf.0));
        at = stack_varint(&mut header, at, key.len() as u64);
        if kind != Kind::Delete {
            at = stack_varint(&mut header, at, (prefix.len() + value.len()) as u64);
        }
        self.bytes.reserve(COUNT_BYTES + at + key.len() + prefix.len() + value.len());
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&[0; COUNT_BYTES]);
        }
        self.bytes.extend_from_slice(&header[..at]);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(value);
        self.len = self
            .len
            .checked_add(1)
            .expect("four thousand million operations need more memory than there is");
        self.bytes[..COUNT_BYTES].copy_from_slice(&self.len.to_le_bytes());
    }

    /// Appends every operation of `other`.
    pub fn append(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&[0; COUNT_BYTES]);
        }
        self.bytes.extend_from_slice(&other.bytes[COUNT_BYTES..]);
        self.len = self
            .len
            .checked_add(other.len)
            .expect("four thousand million operations need more memory than there is");
        self.bytes[..COUNT_BYTES].copy_from_slice(&self.len.to_le_bytes());
    }

    /// Position after the last operation.
    pub(crate) fn mark(&self) -> BatchMark {
        BatchMark { bytes: self.bytes.len().saturating_sub(COUNT_BYTES), len: self.len }
    }

    /// Removes every operation after `mark`, which must be a mark of this batch.
    pub(crate) fn truncate(&mut self, mark: BatchMark) {
        assert!(mark <= self.mark(), "a batch is cut behind its end");
        if mark.len == 0 {
            return self.clear();
        }
        self.bytes.truncate(COUNT_BYTES + mark.bytes);
        self.len = mark.len;
        self.bytes[..COUNT_BYTES].copy_from_slice(&self.len.to_le_bytes());
    }

    /// The operations after `mark`, which must be a mark of this batch.
    pub(crate) fn iter_from(&self, mark: BatchMark) -> BatchIter<'_> {
        let ops = &self.data()[COUNT_BYTES + mark.bytes..];
        BatchIter { reader: Reader::new(ops), left: self.len - mark.len }
    }

    /// The bytes at an offset that [`BatchIter::offset`] returned, counted from the first
    /// operation.
    pub(crate) fn bytes_at(&self, at: std::ops::Range<usize>) -> &[u8] {
        &self.data()[COUNT_BYTES..][at]
    }

    /// Removes every operation; keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }

    /// Number of operations, which is the number of sequence numbers that the batch takes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the batch has no operation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The encoded batch: the payload of its log record.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        if self.bytes.is_empty() { &[0; COUNT_BYTES] } else { &self.bytes }
    }

    /// Length of the encoded batch in bytes.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.data().len()
    }

    /// Makes a batch from the bytes of [`WriteBatch::data`]. They are checked as
    /// [`BatchView::decode`] does, operation by operation.
    pub fn from_data(data: &[u8]) -> Result<Self> {
        let view = BatchView::decode(data)?;
        for op in view.iter() {
            op?;
        }
        Ok(Self { bytes: data.to_vec(), len: view.len })
    }

    /// The operations in order.
    #[must_use]
    pub fn iter(&self) -> BatchIter<'_> {
        self.view().iter()
    }

    /// A view of the batch without its buffer.
    #[must_use]
    pub fn view(&self) -> BatchView<'_> {
        BatchView { ops: &self.data()[COUNT_BYTES..], len: self.len }
    }
}

#[inline]
fn stack_varint(out: &mut [u8; OP_HEADER_BYTES_MAX], mut at: usize, mut value: u64) -> usize {
    while value >= 0x80 {
        out[at] = value as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    out[at] = value as u8;
    at + 1
}

/// A position between two operations of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchMark {
    /// Bytes of the operations before it.
    pub(crate) bytes: usize,
    /// Number of the operations before it.
    pub(crate) len: u32,
}

/// An encoded batch in memory of another owner.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    ops: &'a [u8],
    len: u32,
}

impl<'a> BatchView<'a> {
    /// Decodes the batch in `payload`; `Corrupt` if it is too short to be one. The operations are
    /// checked when they are read.
    pub fn decode(payload: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(payload);
        let len = reader.u32().ok_or_else(|| damaged("it has no operation count"))?;
        Ok(Self { ops: reader.rest(), len })
    }

    /// Number of operations by the header of the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the batch has no operation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The operations in order. A damaged operation is an error that ends the iteration.
    #[must_use]
    pub fn iter(&self) -> BatchIter<'a> {
        BatchIter { reader: Reader::new(self.ops), left: self.len }
    }
}

/// Iterator over the operations of a batch, made by [`BatchView::iter`].
#[derive(Clone, Debug)]
pub struct BatchIter<'a> {
    reader: Reader<'a>,
    left: u32,
}

fn damaged(what: &str) -> Error {
    Error::new(archipelago_base::ErrorKind::Corrupt, format!("a write batch is damaged: {what}"))
}

impl<'a> BatchIter<'a> {
    /// Offset after the operation that was read last, from the start of the iteration.
    pub(crate) fn offset(&self) -> usize {
        self.reader.position()
    }

    fn read(&mut self) -> Option<BatchOp<'a>> {
        let kind = Kind::from_byte(self.reader.u8()?).filter(|kind| kind.is_writable())?;
        let cf = CfId(self.reader.varint32()?);
        let key_len = usize::try_from(self.reader.varint()?).ok()?;
        let value_len = match kind {
            Kind::Delete => 0,
            _ => usize::try_from(self.reader.varint()?).ok()?,
        };
        if kind == Kind::PutExpiring && value_len < 8 {
            return None;
        }
        let (key, value) = (self.reader.take(key_len)?, self.reader.take(value_len)?);
        Some(BatchOp { cf, kind, key, value })
    }
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = Result<BatchOp<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            if self.reader.is_empty() {
                return None;
            }
            self.reader = Reader::new(&[]);
            return Some(Err(damaged("bytes follow its last operation")));
        }
        let at = self.reader.position();
        let Some(op) = self.read() else {
            (self.left, self.reader) = (0, Reader::new(&[]));
            return Some(Err(damaged(&format!("the operation at byte {at} cannot be read"))));
        };
        self.left -= 1;
        Some(Ok(op))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize + 1))
    }
}
