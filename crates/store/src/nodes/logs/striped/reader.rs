//! A reader of a striped log: the index of its groups, and reads from the four logs below.
//!
//! Invariant: the index has the first groups of the log whose segments all exist. It ends at the
//! length that the layout has, if it has one.
//!
//! Thread-safety: any thread may read.
//! Failure: `Corrupt` if a header or a whole segment does not have its checksum.
//! Cost: the opening reads the parent once. A read is one call for all logs below that have some of
//! the bytes, which are read in parallel.

use std::sync::Arc;

use archipelago_base::checksum::crc;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{IoContext, RandomFile};

use super::super::super::log::segments::{HEADER_BYTES_MAX, SegmentMap, SegmentPlace};
use crate::ids::LogId;
use crate::log::{LogRead, LogSetReader};

/// Bytes of the parent that a scan reads at a time.
const WINDOW_BYTES: u64 = 1 << 20;

/// A segment, and where its bytes stand in the striped log.
#[derive(Clone, Copy, Debug)]
struct IndexedSegment {
    start: u64,
    part: usize,
    place: SegmentPlace,
}

impl IndexedSegment {
    fn end(&self) -> u64 {
        self.start + self.place.len
    }
}

/// The segments of a log, in order and without gaps.
#[derive(Debug, Default)]
pub(super) struct GroupIndex {
    segments: Vec<IndexedSegment>,
}

impl GroupIndex {
    /// Reads the headers of the parent, which is the first of `parts`. The groups end at `len` if
    /// the log has ended, and otherwise before the first group that is incomplete.
    pub(super) fn scan(
        id: LogId,
        parts: &dyn LogSetReader,
        len: Option<u64>,
        context: IoContext,
    ) -> Result<Self> {
        let mut scan = ParentScan { id, parts, window: Vec::new(), start: 0, context };
        let mut index = Self::default();
        let mut at = 0;
        while len.is_none_or(|len| index.len_bytes() < len) {
            let Some(map) = scan.header(at)? else { break };
            let mut ends = map.segments.iter().map(|place| place.offset + place.len).enumerate();
            if !ends.all(|(part, end)| end <= parts.len(part)) {
                break;
            }
            at = map.segments[0].offset + map.segments[0].len;
            for (part, place) in map.segments.into_iter().enumerate() {
                index.segments.push(IndexedSegment { start: index.len_bytes(), part, place });
            }
        }
        match len {
            Some(len) if len != index.len_bytes() => Err(Error::new(
                ErrorKind::Corrupt,
                format!("log {id}: its groups have {} bytes of {len}", index.len_bytes()),
            )),
            _ => Ok(index),
        }
    }

    /// Number of bytes of the log.
    pub(super) fn len_bytes(&self) -> u64 {
        self.segments.last().map_or(0, IndexedSegment::end)
    }
}

/// A scan of the headers of a parent.
struct ParentScan<'a> {
    id: LogId,
    /// The log and its sub-logs, of which the parent is the first.
    parts: &'a dyn LogSetReader,
    /// Bytes of the parent from `start` on.
    window: Vec<u8>,
    start: u64,
    context: IoContext,
}

impl ParentScan<'_> {
    /// The header at `at`; `None` if the parent ends before its end.
    fn header(&mut self, at: u64) -> Result<Option<SegmentMap>> {
        let needed = at + HEADER_BYTES_MAX as u64;
        let window_end = self.start + self.window.len() as u64;
        let parent_len = self.parts.len(0);
        if at < self.start || needed.min(parent_len) > window_end {
            let len = parent_len.saturating_sub(at).min(WINDOW_BYTES);
            self.window.resize(len as usize, 0);
            self.start = at;
            let read = LogRead { log: 0, offset: at, buf: &mut self.window };
            self.parts.read_all(&mut [read], self.context)?;
        }
        let bytes = &self.window[(at - self.start) as usize..];
        SegmentMap::decode(bytes, at).map_err(|damaged| {
            Error::new(ErrorKind::Corrupt, format!("log {}: at byte {at}: {damaged}", self.id))
        })
    }
}

/// A reader of a striped log.
#[derive(Debug)]
pub(super) struct StripedReader {
    id: LogId,
    parts: Arc<dyn LogSetReader>,
    index: GroupIndex,
}

/// A whole segment that a read has, with its place in the buffer.
struct WholeSegment {
    at: usize,
    place: SegmentPlace,
}

impl StripedReader {
    pub(super) fn new(id: LogId, parts: Arc<dyn LogSetReader>, index: GroupIndex) -> Self {
        Self { id, parts, index }
    }

    fn check_range(&self, offset: u64, len: usize) -> Result<u64> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.len());
        end.ok_or_else(|| {
            Error::new(
                ErrorKind::Io,
                format!(
                    "log {}: a read of {len} bytes at {offset} is past the end at {}",
                    self.id,
                    self.len()
                ),
            )
        })
    }
}

impl RandomFile for StripedReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        let end = self.check_range(offset, buf.len())?;
        let mut reads: Vec<LogRead<'_>> = Vec::new();
        let mut whole = Vec::new();
        let (mut rest, mut at) = (&mut *buf, offset);
        let first = self.index.segments.partition_point(|segment| segment.end() <= offset);
        for segment in self.index.segments[first..].iter().take_while(|it| it.start < end) {
            let until = segment.end().min(end);
            let (piece, after) = rest.split_at_mut((until - at) as usize);
            if at == segment.start && until == segment.end() {
                whole.push(WholeSegment { at: (at - offset) as usize, place: segment.place });
            }
            let offset = segment.place.offset + (at - segment.start);
            reads.push(LogRead { log: segment.part, offset, buf: piece });
            (rest, at) = (after, until);
        }
        self.parts.read_all(&mut reads, context)?;
        drop(reads);
        for WholeSegment { at, place } in whole {
            if crc(&buf[at..at + place.len as usize]) != place.crc {
                let offset = offset + at as u64;
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("log {}: the segment at byte {offset} is damaged", self.id),
                ));
            }
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.index.len_bytes()
    }
}
