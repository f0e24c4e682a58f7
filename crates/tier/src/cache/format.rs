//! The bytes of a copy: the copied ranges one after another, then an index of them.
//!
//! The index has the offsets of the ranges and a checksum for each 4 KiB, so that damage is noticed
//! before a reader gets bytes of the copy. `docs/formats/tier-namespace.md` has the table.
//!
//! Checksums are bound to the namespace, to the file's unique id and to the offset within the copy.
//! So a copy of another file, of an earlier use of a number or of another namespace does not pass.
//!
//! All functions are pure. Failure: a damaged or foreign index decodes to `None`. Cost: a handle
//! that uses a copy keeps its index in memory, one thousandth of the copy's bytes. A read computes
//! the CRC of its bytes, rounded up to 4 KiB.

use archipelago_base::checksum::{block_crc, crc};
use archipelago_base::codec::{Reader, put_u32, put_u64};

/// Bytes of a copy that one checksum covers.
pub(crate) const CHUNK_BYTES: u64 = 4096;
const MAGIC: &[u8; 8] = b"ARCHCOPY";
const VERSION: u32 = 2;
/// Oldest version that is read. In version 1 every range began at a multiple of [`CHUNK_BYTES`] of
/// the copy.
const VERSION_MIN: u32 = 1;
/// Length of the trailer in bytes: length and checksum of the index.
pub(crate) const TRAILER_BYTES: u64 = 8;

/// A range of a file, and its place in the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Offset in the file.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Offset in the copy.
    pub(crate) at: u64,
}

/// The index of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyIndex {
    namespace: [u8; 16],
    file: u64,
    /// Ranges, sorted by `start` and disjoint.
    extents: Vec<Extent>,
    /// Bytes of the copy before the index.
    data_len: u64,
    chunks: Vec<u32>,
}

/// The value that the checksums of a file's copies are bound to.
fn binding(namespace: &[u8; 16], file: u64) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&namespace[..8]);
    id[8..].copy_from_slice(&file.to_le_bytes());
    for (byte, other) in id.iter_mut().zip(&namespace[8..]) {
        *byte ^= other;
    }
    id
}

/// Places ranges, which are sorted and disjoint, one after another in a copy.
pub(crate) fn lay_out(ranges: &[(u64, u64)]) -> Vec<Extent> {
    let mut at = 0;
    let lay = |&(start, len): &(u64, u64)| {
        let extent = Extent { start, len, at };
        at += len;
        extent
    };
    ranges.iter().map(lay).collect()
}

impl CopyIndex {
    /// An index without checksums yet.
    pub(crate) fn new(namespace: [u8; 16], file: u64, extents: Vec<Extent>) -> Self {
        let data_len = extents.last().map_or(0, |last| last.at + last.len);
        Self { namespace, file, extents, data_len, chunks: Vec::new() }
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Bytes of the copy before the index.
    pub(crate) fn data_len(&self) -> u64 {
        self.data_len
    }

    /// Adds the checksums of the next bytes of the copy: whole chunks, unless they are the last
    /// bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let id = binding(&self.namespace, self.file);
        for chunk in bytes.chunks(CHUNK_BYTES as usize) {
            let offset = self.chunks.len() as u64 * CHUNK_BYTES;
            self.chunks.push(block_crc(&id, offset, chunk));
        }
    }

    /// Whether `bytes`, read at `offset` of the copy (a multiple of [`CHUNK_BYTES`]), have the
    /// right checksums.
    pub(crate) fn verify(&self, offset: u64, bytes: &[u8]) -> bool {
        let id = binding(&self.namespace, self.file);
        let first = (offset / CHUNK_BYTES) as usize;
        bytes.chunks(CHUNK_BYTES as usize).enumerate().all(|(index, chunk)| {
            let at = offset + index as u64 * CHUNK_BYTES;
            self.chunks.get(first + index) == Some(&block_crc(&id, at, chunk))
        })
    }

    /// Offset in the copy of `len` bytes at `offset` of the file, if one range holds all of them.
    #[inline]
    pub(crate) fn find(&self, offset: u64, len: u64) -> Option<u64> {
        let after = self.extents.partition_point(|extent| extent.start <= offset);
        let extent = self.extents.get(after.checked_sub(1)?)?;
        let within = offset - extent.start;
        (within + len <= extent.len).then_some(extent.at + within)
    }

    /// The encoded index with its trailer, to be appended to the data.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, VERSION);
        out.extend_from_slice(&self.namespace);
        put_u64(&mut out, self.file);
        put_u64(&mut out, self.data_len);
        put_u32(&mut out, self.extents.len() as u32);
        for extent in &self.extents {
            put_u64(&mut out, extent.start);
            put_u64(&mut out, extent.len);
            put_u64(&mut out, extent.at);
        }
        put_u32(&mut out, self.chunks.len() as u32);
        for &chunk in &self.chunks {
            put_u32(&mut out, chunk);
        }
        let (len, sum) = (out.len() as u32, crc(&out));
        put_u32(&mut out, len);
        put_u32(&mut out, sum);
        out
    }

    /// Length of the encoded index, with its trailer, of a copy of `data_len` bytes in `ranges`
    /// ranges.
    pub(crate) fn len_of(data_len: u64, ranges: usize) -> u64 {
        let head = MAGIC.len() as u64 + 4 + 16 + 8 + 8 + 4 + 4;
        head + 24 * ranges as u64 + 4 * data_len.div_ceil(CHUNK_BYTES) + TRAILER_BYTES
    }

    /// Length of the index with its trailer, as the last [`TRAILER_BYTES`] of a copy state it.
    pub(crate) fn encoded_len(trailer: &[u8]) -> Option<u64> {
        let mut reader = Reader::new(trailer);
        Some(u64::from(reader.u32()?) + TRAILER_BYTES)
    }

    /// Decodes the index of a copy of `file` from the copy's last bytes, with its trailer. `None`
    /// if it is damaged or belongs to another file.
    pub(crate) fn decode(namespace: &[u8; 16], file: u64, bytes: &[u8]) -> Option<Self> {
        let body = bytes.len().checked_sub(TRAILER_BYTES as usize)?;
        let (body, trailer) = bytes.split_at(body);
        let mut trailer = Reader::new(trailer);
        if trailer.u32()? as usize != body.len() || trailer.u32()? != crc(body) {
            return None;
        }
        let mut reader = Reader::new(body);
        let known =
            reader.take(MAGIC.len())? == MAGIC && (VERSION_MIN..=VERSION).contains(&reader.u32()?);
        if !known || reader.take(16)? != namespace || reader.u64()? != file {
            return None;
        }
        let data_len = reader.u64()?;
        let mut extents: Vec<Extent> = Vec::new();
        for _ in 0..reader.u32()? {
            let extent = Extent { start: reader.u64()?, len: reader.u64()?, at: reader.u64()? };
            let end = extent.at.checked_add(extent.len)?;
            let in_order = extents.last().is_none_or(|last| last.start + last.len <= extent.start);
            if !in_order
                || extent.len == 0
                || end > data_len
                || extent.start.checked_add(extent.len).is_none()
            {
                return None;
            }
            extents.push(extent);
        }
        let count = reader.u32()?;
        let chunks = (0..count).map(|_| reader.u32()).collect::<Option<Vec<_>>>()?;
        let whole = reader.is_empty() && u64::from(count) == data_len.div_ceil(CHUNK_BYTES);
        whole.then_some(Self { namespace: *namespace, file, extents, data_len, chunks })
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;

    use super::*;

    fn sample() -> (CopyIndex, Vec<u8>) {
        let extents = lay_out(&[(0, 10_000), (65_536, 8192), (131_072, 5000)]);
        let mut index = CopyIndex::new([7; 16], 42, extents);
        let mut data = vec![0; index.data_len() as usize];
        for extent in index.extents().to_vec() {
            for at in 0..extent.len {
                data[(extent.at + at) as usize] = ((extent.start + at) % 251) as u8;
            }
        }
        index.push(&data[..8192]);
        index.push(&data[8192..]);
        (index, data)
    }

    #[test]
    fn ranges_are_found_and_damage_is_noticed() {
        let (index, mut data) = sample();
        assert_eq!(index.find(0, 10_000), Some(0));
        assert_eq!(index.find(9_999, 2), None, "the range ends there");
        assert_eq!(index.find(65_536 + 100, 10), Some(10_000 + 100));
        assert_eq!(index.find(50_000, 1), None);
        assert_eq!(index.find(136_071, 1), Some(18_192 + 4999));
        assert!(index.verify(4096, &data[4096..12_288]));
        data[5000] ^= 1;
        assert!(!index.verify(4096, &data[4096..12_288]));
        assert!(index.verify(8192, &data[8192..]));
        assert!(!index.verify(8192, &data[12_288..16_384]), "another place");
    }

    #[test]
    fn index_decodes_as_encoded_and_for_its_file_only() {
        let (index, _) = sample();
        let bytes = index.encode();
        assert_eq!(CopyIndex::len_of(index.data_len(), index.extents().len()), bytes.len() as u64);
        let trailer = &bytes[bytes.len() - 8..];
        assert_eq!(CopyIndex::encoded_len(trailer), Some(bytes.len() as u64));
        assert_eq!(CopyIndex::decode(&[7; 16], 42, &bytes).as_ref(), Some(&index));
        assert_eq!(CopyIndex::decode(&[7; 16], 43, &bytes), None);
        assert_eq!(CopyIndex::decode(&[8; 16], 42, &bytes), None);
        let of_version = |version| {
            let mut other = bytes[..bytes.len() - 4].to_vec();
            other[8] = version;
            let body = other.len() - 4;
            let sum = crc(&other[..body]);
            put_u32(&mut other, sum);
            CopyIndex::decode(&[7; 16], 42, &other)
        };
        assert_eq!(of_version(1).as_ref(), Some(&index), "version 1 had gaps, and nothing else");
        assert_eq!((of_version(0), of_version(3)), (None, None));
        let mut rng = Rng::with_seed(1);
        for _ in 0..2000 {
            let mut damaged = bytes.clone();
            damaged[rng.usize(..bytes.len())] ^= rng.u8(1..);
            assert_eq!(CopyIndex::decode(&[7; 16], 42, &damaged), None);
        }
        for cut in 0..bytes.len() {
            assert_eq!(CopyIndex::decode(&[7; 16], 42, &bytes[..cut]), None);
        }
    }

    #[test]
    fn golden_bytes_do_not_change() {
        let mut index = CopyIndex::new([1; 16], 2, lay_out(&[(4096, 3)]));
        index.push(b"abc");
        let bytes = index.encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN);
    }

    const GOLDEN: &str = "41524348434f505902000000010101010101010101010101010101010200000000000000\
        030000000000000001000000001000000000000003000000000000000000000000000000\
        0100000085ad11c75000000017f2a4f9";
}
