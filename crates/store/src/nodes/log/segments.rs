//! Adaptive log writing (Terark-DS §4.3): large groups are cut into segments that travel to several
//! logs in parallel.
//!
//! A *group* is what one submit appends. A group of at least 64 KiB is cut into up to four
//! *segments*. The first one goes to the parent log, and each of the others to a *sub-log* of its
//! own with other nodes. The parent has a header in front of its segment, with the map of all
//! segments. Header and segments leave at the same time, because one writer knows all offsets. A
//! small group has one segment, in the parent.
//!
//! `docs/formats/segment-map.md` has the byte table of the header.
//!
//! Invariants:
//! 1. The segments of a group are its bytes in order, and none is empty except for an empty group.
//! 2. Every segment of a divided group has at least 16 KiB.
//! 3. A decoder answers every input with a header, with the need for more bytes, or with an error.
//!
//! All functions are pure.
//! Failure: [`DamagedMap`] for bytes that are no header.
//! Cost: a checksum over each segment.

use std::fmt;
use std::ops::Range;

use archipelago_base::checksum::{crc, crc_append};
use archipelago_base::codec::{Reader, put_u8, put_u32, put_u64};

/// Number of segments of a divided group, and so of logs that a striped log consists of.
pub const SEGMENTS_MAX: usize = 4;
/// Length from which a group is divided.
const DIVIDED_BYTES_MIN: usize = 64 << 10;
/// Smallest segment of a divided group.
const SEGMENT_BYTES_MIN: usize = 16 << 10;

/// First byte of a header: the version of the format.
const FORMAT: u8 = 1;
/// Bytes of the first part of a header: format, number of segments, length of the group.
const HEAD_BYTES: usize = 1 + 1 + 4;
/// Bytes of an entry of the map.
const ENTRY_BYTES: usize = 2 + 8 + 8 + 4;
/// Bytes of the checksum of a header.
const SUM_BYTES: usize = 4;
/// Largest number of bytes of a header.
pub const HEADER_BYTES_MAX: usize = HEAD_BYTES + SEGMENTS_MAX * ENTRY_BYTES + SUM_BYTES;

/// Number of segments of a group of `len` bytes.
#[must_use]
pub const fn segments(len: usize) -> usize {
    if len < DIVIDED_BYTES_MIN {
        return 1;
    }
    let most = len / SEGMENT_BYTES_MIN;
    if most < SEGMENTS_MAX { most } else { SEGMENTS_MAX }
}

/// The ranges of the segments of a group of `len` bytes, in order.
///
/// ```
/// use archipelago_store::nodes::log::segments::plan;
///
/// assert_eq!(plan(40_000), [0..40_000]);
/// assert_eq!(plan(100_001), [0..25_001, 25_001..50_001, 50_001..75_001, 75_001..100_001]);
/// ```
#[must_use]
pub fn plan(len: usize) -> Vec<Range<usize>> {
    let count = segments(len);
    let (each, longer) = (len / count, len % count);
    let mut start = 0;
    let cut = |segment| {
        let end = start + each + usize::from(segment < longer);
        let range = start..end;
        start = end;
        range
    };
    (0..count).map(cut).collect()
}

/// The place of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    /// Offset of its first byte: in its sub-log, or in the parent.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Checksum of the bytes.
    pub crc: u32,
}

/// The header of a group in the parent log: the map of its segments. The bytes of the first segment
/// follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentMap {
    /// Number of the group, of which the lowest 14 bits are written.
    pub group: u16,
    /// Places of the segments, in order. The first one is in the parent.
    pub segments: Vec<SegmentPlace>,
}

/// Error of bytes that are not the header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedMap;

impl fmt::Display for DamagedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the header of a group is damaged, or has another version")
    }
}

/// Mask of the number of a group.
const GROUP_MASK: u16 = 0x3fff;

impl SegmentMap {
    /// Number of bytes of the header of a group with this many segments.
    #[must_use]
    pub const fn header_bytes(segments: usize) -> usize {
        HEAD_BYTES + segments * ENTRY_BYTES + SUM_BYTES
    }

    /// Number of bytes of the group.
    #[must_use]
    pub fn group_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len).sum()
    }

    /// The bytes of the header. It stands at `at` in the parent, to which its checksum is bound.
    #[must_use]
    pub fn encode(&self, at: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::header_bytes(self.segments.len()));
        put_u8(&mut out, FORMAT);
        put_u8(&mut out, self.segments.len() as u8);
        put_u32(&mut out, self.group_bytes() as u32);
        for (number, segment) in self.segments.iter().enumerate() {
            let id = (self.group & GROUP_MASK) << 2 | number as u16;
            out.extend_from_slice(&id.to_le_bytes());
            put_u64(&mut out, segment.offset);
            put_u64(&mut out, segment.len);
            put_u32(&mut out, segment.crc);
        }
        let sum = header_sum(&out, at);
        put_u32(&mut out, sum);
        out
    }

    /// Reads the header that `bytes` begin with, at `at` of the parent. `None` if more bytes are
    /// needed.
    pub fn decode(bytes: &[u8], at: u64) -> Result<Option<Self>, DamagedMap> {
        let mut reader = Reader::new(bytes);
        let (Some(format), Some(count)) = (reader.u8(), reader.u8()) else { return Ok(None) };
        let count = usize::from(count);
        if format != FORMAT || !(1..=SEGMENTS_MAX).contains(&count) {
            return Err(DamagedMap);
        }
        let fields_bytes = Self::header_bytes(count) - SUM_BYTES;
        let Some(fields) = bytes.get(..fields_bytes) else { return Ok(None) };
        let Some(sum) = bytes.get(fields_bytes..fields_bytes + SUM_BYTES) else { return Ok(None) };
        if sum != header_sum(fields, at).to_le_bytes() {
            return Err(DamagedMap);
        }
        let map = Self::read_fields(&mut reader, count).ok_or(DamagedMap)?;
        let is_first_here = map.segments[0].offset == at + Self::header_bytes(count) as u64;
        if is_first_here { Ok(Some(map)) } else { Err(DamagedMap) }
    }

    fn read_fields(reader: &mut Reader<'_>, count: usize) -> Option<Self> {
        let group_bytes = u64::from(reader.u32()?);
        let mut map = Self { group: 0, segments: Vec::with_capacity(count) };
        let mut left = group_bytes;
        for number in 0..count {
            let id = reader.take(2)?.try_into().ok().map(u16::from_le_bytes)?;
            if usize::from(id & 3) != number || (number > 0 && id >> 2 != map.group) {
                return None;
            }
            map.group = id >> 2;
            let (offset, len, crc) = (reader.u64()?, reader.u64()?, reader.u32()?);
            offset.checked_add(len)?;
            left = left.checked_sub(len)?;
            map.segments.push(SegmentPlace { offset, len, crc });
        }
        (left == 0).then_some(map)
    }
}

/// Checksum of a header at `at` of the parent.
pub(crate) fn header_sum(fields: &[u8], at: u64) -> u32 {
    crc_append(crc(fields), &at.to_le_bytes())
}

/// The place of a segment that consists of `parts`, at `offset`.
#[must_use]
pub fn place(parts: &[&[u8]], offset: u64) -> SegmentPlace {
    let len = parts.iter().map(|part| part.len() as u64).sum();
    let crc = parts.iter().fold(crc(&[]), |sum, part| crc_append(sum, part));
    SegmentPlace { offset, len, crc }
}

/// The bytes of `range` of the concatenation of `parts`.
#[must_use]
pub fn slice_parts<'a>(parts: &[&'a [u8]], range: Range<usize>) -> Vec<&'a [u8]> {
    let mut start = 0;
    let mut slices = Vec::new();
    for part in parts {
        let end = start + part.len();
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            slices.push(&part[from - start..to - start]);
        }
        start = end;
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_divided_from_64_kib_on() {
        assert_eq!(segments(0), 1);
        assert_eq!(segments((64 << 10) - 1), 1);
        assert_eq!(segments(64 << 10), 4);
        assert_eq!(segments(512 << 10), 4);
        for len in [1, 65_535, 65_536, 65_537, 100_003, 524_288] {
            let ranges = plan(len);
            assert_eq!(ranges.iter().map(ExactSizeIterator::len).sum::<usize>(), len);
            assert!(
                ranges.iter().skip(1).zip(&ranges).all(|(next, range)| range.end == next.start)
            );
            let least = ranges.iter().map(ExactSizeIterator::len).min();
            assert!(ranges.len() == 1 || least >= Some(SEGMENT_BYTES_MIN), "{len}");
        }
    }

    #[test]
    fn slices_cross_the_boundaries_of_parts() {
        let parts: [&[u8]; 4] = [b"ab", b"", b"cde", b"f"];
        assert_eq!(slice_parts(&parts, 1..5), [&b"b"[..], b"cde"]);
        assert_eq!(slice_parts(&parts, 0..6).concat(), b"abcdef");
        assert_eq!(slice_parts(&parts, 3..3), [&b""[..]; 0]);
        assert_eq!(place(&parts, 7), place(&[b"abcdef"], 7));
    }

    fn map() -> SegmentMap {
        let segments = vec![
            SegmentPlace { offset: 0x100 + 54, len: 3, crc: 0xaabb_ccdd },
            SegmentPlace { offset: 0x20, len: 2, crc: 1 },
        ];
        SegmentMap { group: 5, segments }
    }

    #[test]
    fn golden_bytes_of_a_segment_map() {
        let bytes = map().encode(0x100);
        let hex: String =
            bytes[..bytes.len() - 4].iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = [
            "010205000000",
            "1400",
            "3601000000000000",
            "0300000000000000",
            "ddccbbaa",
            "1500",
            "2000000000000000",
            "0200000000000000",
            "01000000",
        ];
        assert_eq!(hex, golden.concat());
        assert_eq!(bytes.len(), SegmentMap::header_bytes(2));
        assert_eq!(SegmentMap::decode(&bytes, 0x100), Ok(Some(map())));
    }

    #[test]
    fn every_damage_is_noticed_and_every_cut_needs_more() {
        let bytes = map().encode(0x100);
        for cut in 0..bytes.len() {
            assert_eq!(SegmentMap::decode(&bytes[..cut], 0x100), Ok(None), "cut at {cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let decoded = SegmentMap::decode(&damaged, 0x100);
            assert!(!matches!(decoded, Ok(Some(_))), "bit {bit}");
        }
        assert_eq!(SegmentMap::decode(&bytes, 0x101), Err(DamagedMap), "another place");
    }
}
