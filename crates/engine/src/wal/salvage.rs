//! Reads every whole record of a log segment, even after damage.
//!
//! Recovery ([`super::recover`]) refuses damage in the middle, because later writes may depend on
//! the lost ones. A repair takes the records on both sides and reports the gap between them.
//!
//! Invariants:
//! 1. A record is visited only if its header and payload pass their checksums for this use of the
//!    file and this offset, and every operation of its batch can be read.
//! 2. Sequence numbers of visited records ascend.
//! 3. Bytes between two visited records, or after the last one, are reported as a gap, unless they
//!    are known to be the end of the segment.
//!
//! A segment without a whole header is read as well: each record header names the use of the file
//! that it belongs to. A read that fails ends the segment with a gap. Nothing is written. Cost: one
//! sequential read; a search after damage checks every offset.

use archipelago_base::checksum::crc;
use archipelago_base::{Epoch, FileNo, Result, SeqNo};
use archipelago_env::FileSystem;

use super::batch::BatchView;
use super::reader::{SegmentFile, read_header};
use super::record::{
    RECORD_HEADER_BYTES, RecordHeader, RecordType, SEGMENT_HEADER_BYTES, SegmentHeader,
    incarnation_of, number_of, segment_seed,
};
use super::source::{Source, View};

const RECORD_BYTES: u64 = RECORD_HEADER_BYTES as u64;
/// Number of bytes that the search for a record after damage reads at a time.
const SEARCH_BYTES: u64 = 256 << 10;

/// A part of a segment that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGap {
    /// Offset at which the gap begins.
    pub from: u64,
    /// Offset of the next whole record; `None` if none follows in the segment.
    pub to: Option<u64>,
}

/// Readable content of a segment.
#[derive(Clone, Debug, Default)]
pub struct SegmentSalvage {
    /// Header of the segment, if it is whole.
    pub header: Option<SegmentHeader>,
    /// Number of records that were visited.
    pub records: u64,
    /// Sequence number of the last visited operation.
    pub last_seq: Option<SeqNo>,
    /// Parts that cannot be read, in order. The last one may be the torn end that a crash leaves.
    pub gaps: Vec<LogGap>,
    /// Offset after the last whole record, including the record that ends a closed segment.
    pub whole_through: u64,
    /// The next segment, if this one was closed and names it.
    pub next: Option<FileNo>,
}

/// Receives the records of a log: the sequence number of the first operation, and the encoded
/// batch. All operations of the batch were checked.
pub type BatchVisitor<'a> = dyn FnMut(SeqNo, &[u8]) -> Result<()> + 'a;

/// Limits on the records of a segment that count.
#[derive(Clone, Copy, Debug, Default)]
pub struct SalvageLimits {
    /// Sequence number that records must exceed.
    pub after: SeqNo,
    /// Offset at which an earlier recovery has cut the segment, from the next segment's header.
    pub end: Option<u64>,
    /// Whether records after the first gap do not count.
    pub stops: bool,
}

/// Visits every whole record of the segment that counts. Errors: those of `visit`, `Unsupported`
/// for a segment of another format version, and an error of opening the file.
pub fn salvage_segment(
    fs: &dyn FileSystem,
    file: &SegmentFile,
    limits: SalvageLimits,
    visit: &mut BatchVisitor<'_>,
) -> Result<SegmentSalvage> {
    let header = match read_header(fs, &file.path) {
        Err(error) if error.kind() == archipelago_base::ErrorKind::Io => None,
        header => header?,
    };
    // A recycled file whose new use has not begun still has the header of its earlier use.
    let header = header.filter(|header| number_of(header.incarnation) == file.no);
    let mut source = Source::open(fs, &file.path)?;
    if let Some(header) = header {
        source.set_tail(fs.log_tail(&file.path, header.incarnation).unwrap_or_default());
    }
    let mut segment = Salvage {
        source,
        no: file.no,
        incarnation: header.map(|header| header.incarnation),
        limits,
        found: SegmentSalvage { header, ..SegmentSalvage::default() },
    };
    segment.run(visit)?;
    Ok(segment.found)
}

struct Salvage {
    source: Source,
    no: FileNo,
    /// Incarnation of this use of the file, once it is known.
    incarnation: Option<Epoch>,
    limits: SalvageLimits,
    found: SegmentSalvage,
}

/// A whole record.
struct WholeRecord {
    header: RecordHeader,
    payload: Vec<u8>,
}

impl Salvage {
    fn run(&mut self, visit: &mut BatchVisitor<'_>) -> Result<()> {
        let has_header = self.found.header.is_some();
        let mut at = if has_header { SEGMENT_HEADER_BYTES as u64 } else { 0 };
        self.found.whole_through = at;
        loop {
            if self.limits.end.is_some_and(|end| at >= end) {
                return Ok(());
            }
            let Some(record) = self.record_at(at) else {
                let next = self.search(at + 1);
                if next.is_some() || self.limits.end.is_some() || self.is_torn(at) {
                    self.found.gaps.push(LogGap { from: at, to: next });
                }
                match next.filter(|_| !self.limits.stops) {
                    Some(next) => at = next,
                    None => return Ok(()),
                }
                continue;
            };
            at += record.header.record_len();
            self.found.whole_through = at;
            if record.header.kind == RecordType::End as u8 {
                let next = record.payload.try_into().map(u64::from_le_bytes);
                self.found.next = next.ok().map(FileNo);
                return Ok(());
            }
            visit(record.header.first_seq, &record.payload)?;
            let operations = BatchView::decode(&record.payload)?.len().max(1) as u64;
            let last = SeqNo(record.header.first_seq.0.saturating_add(operations - 1));
            self.limits.after = last;
            self.found.last_seq = Some(last);
            self.found.records += 1;
        }
    }

    /// The whole record at `at`, in the first view that has it.
    fn record_at(&mut self, at: u64) -> Option<WholeRecord> {
        for &view in self.source.views() {
            let Ok(Some(bytes)) = self.source.get(view, at, RECORD_BYTES) else { continue };
            let bytes: [u8; RECORD_HEADER_BYTES] = bytes.try_into().ok()?;
            let Some(header) = self.decode(&bytes, at) else { continue };
            let len = u64::from(header.payload_len);
            let Ok(Some(payload)) = self.source.get(view, at + RECORD_BYTES, len) else { continue };
            if crc(payload) != header.payload_crc {
                continue;
            }
            let payload = payload.to_vec();
            if self.may_follow(&header, &payload) {
                // From here on only records of the same use of the file count.
                self.incarnation = Some(incarnation_of(self.no, header.incarnation_low));
                return Some(WholeRecord { header, payload });
            }
        }
        None
    }

    fn decode(&self, bytes: &[u8; RECORD_HEADER_BYTES], at: u64) -> Option<RecordHeader> {
        match self.incarnation {
            Some(incarnation) => RecordHeader::decode(bytes, segment_seed(incarnation), at),
            None => RecordHeader::decode_any_use(bytes, self.no, at),
        }
    }

    fn may_follow(&self, header: &RecordHeader, payload: &[u8]) -> bool {
        if header.kind == RecordType::End as u8 {
            return true;
        }
        header.kind == RecordType::Batch as u8
            && header.first_seq > self.limits.after
            && BatchView::decode(payload).is_ok_and(|batch| batch.iter().all(|op| op.is_ok()))
    }

    /// Offset of the next whole record from `from` on.
    fn search(&mut self, from: u64) -> Option<u64> {
        let views = self.source.views();
        let end = views.iter().map(|&view| self.source.len(view)).max().unwrap_or(0);
        let end = self.limits.end.unwrap_or(u64::MAX).min(end);
        let mut at = from;
        while at.saturating_add(RECORD_BYTES) <= end {
            let take = SEARCH_BYTES.min(end - at);
            let mut candidates = Vec::new();
            for &view in views {
                let take = take.min(self.source.len(view).saturating_sub(at));
                let Ok(Some(bytes)) = self.source.get(view, at, take) else { continue };
                let bytes = bytes.to_vec();
                let windows = bytes.windows(RECORD_HEADER_BYTES).enumerate();
                candidates.extend(windows.filter_map(|(index, window)| {
                    let offset = at + index as u64;
                    self.decode(window.try_into().ok()?, offset).map(|_| offset)
                }));
            }
            candidates.sort_unstable();
            if let Some(found) = candidates.into_iter().find(|&at| self.record_at(at).is_some()) {
                return Some(found);
            }
            at += take - RECORD_BYTES + 1;
        }
        None
    }

    /// Whether something at `at` shows that a record was begun there, or that bytes were lost.
    fn is_torn(&mut self, at: u64) -> bool {
        let Some(header) = self.found.header else { return self.source.file_len() > 0 };
        if self.source.views().len() > 1 && at < self.source.len(View::Stitched) {
            return true;
        }
        let len = self.source.file_len();
        if at >= len {
            return false;
        }
        if at >= header.reused_len {
            return true;
        }
        match self.source.get(View::File, at + 20, 4) {
            Ok(Some(word)) => word == (header.incarnation.0 as u32).to_le_bytes(),
            Ok(None) => false,
            Err(_) => true,
        }
    }
}
