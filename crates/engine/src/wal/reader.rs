//! Recovery: the records of one segment ([`read_segment`]) and of the whole log ([`recover`]).
//!
//! A record counts if its checksums hold for this use of the file and this offset in it, and every
//! record before it counts. At the first record that does not count, the reader decides:
//!
//! 1. Damage before an offset through which the segment is known to have been synced is corruption.
//!    Any valid record of the segment states such an offset, even one after the damage. Any record
//!    of a later segment with a synced-through offset proves it for the whole segment.
//! 2. Damage with a valid record of the same use after it is corruption, unless the machine has
//!    restarted since the segment was begun ([`archipelago_env::FileSystem::boot_id`]). A power
//!    failure loses unsynced pages in any order.
//! 3. A segment that ends before the length in the next segment's header has lost its end. Under
//!    the same boot that is corruption. Otherwise power was lost, and everything after it is
//!    dropped, whole segments included. The log is cut at its first loss, so that writes are never
//!    applied out of order.
//! 4. Anything else at the end is a torn tail, which is dropped.
//! 5. A closed segment ends with a record that names the next segment. If the last segment of the
//!    chain has that record, the next segment is missing. Under the same boot that is corruption.
//!    Otherwise power was lost before the next segment's directory entry was durable.
//!
//! [`RecoveryMode::Strict`] makes every damage and every loss corruption.
//! [`RecoveryMode::AssumePowerLoss`] treats every segment as if the machine had restarted since.
//!
//! Sequence numbers may leave gaps (writes without the log take some) but never go back. Errors
//! name file and offset. No byte of a file makes the reader panic. It writes nothing. Cost: one
//! sequential read of each segment; memory of one window or the largest record.

use std::ops::Range;
use std::path::{Path, PathBuf};

use archipelago_base::checksum::crc;
use archipelago_base::{Epoch, Error, ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::FileSystem;

use super::batch::BatchView;
use super::record::{
    BadHeader, END_PAYLOAD_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordType,
    SEGMENT_HEADER_BYTES, SegmentHeader, SegmentRef, number_of, segment_seed,
};
use super::source::{Source, View};
use crate::file_meta::log_name;
use crate::options::RecoveryMode;

const HEADER_BYTES: u64 = SEGMENT_HEADER_BYTES as u64;
const RECORD_BYTES: u64 = RECORD_HEADER_BYTES as u64;
/// Number of bytes that the search for a valid record after damage reads at a time.
const SEARCH_BYTES: u64 = 256 << 10;

/// A segment of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFile {
    /// Number of the segment.
    pub no: FileNo,
    /// Path of the segment's file.
    pub path: PathBuf,
}

/// Parameters for reading a segment.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// The damage that is tolerated.
    pub mode: RecoveryMode,
    /// The database that the segment must belong to.
    pub database_id: [u8; 16],
    /// The segment's length as the next segment's header gives it; `None` for the last segment.
    pub known_len: Option<u64>,
    /// Sequence number that all records of the segment must exceed.
    pub after: SeqNo,
}

/// The end of a segment, as a reader found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The segment ended with its last record.
    Clean,
    /// The segment ended with bytes that were not wholly written, or were lost to a power failure.
    /// The text describes them.
    Torn(String),
}

/// Result of [`read_segment`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEnd {
    /// The segment's number.
    pub no: FileNo,
    /// The previous segment, as this segment's header states it.
    pub previous: Option<SegmentRef>,
    /// The segment's incarnation; `None` if it has no header.
    pub incarnation: Option<Epoch>,
    /// Offset after its last valid record; 0 if it has no header.
    pub end_offset: u64,
    /// Offsets of the valid records that the segment's file does not have whole, but the kept tail
    /// of the log ([`archipelago_env::LogTail`]) has. They ascend, and neighbours are joined.
    pub in_tail: Vec<Range<u64>>,
    /// Sequence number of the last operation; `None` if it has no records.
    pub last_seq: Option<SeqNo>,
    /// Number of records that were visited.
    pub records: u64,
    /// The largest synced-through offset that one of its records states.
    pub synced_through: u64,
    /// The segment that its last record names, if it was closed and that record exists.
    pub next: Option<FileNo>,
    /// Whether it was begun under the present boot; `None` if that is not known.
    pub same_boot: Option<bool>,
    /// Whether it is complete up to the length in the next segment's header.
    pub is_complete: bool,
    /// How the segment ended.
    pub end: End,
}

impl SegmentEnd {
    /// Offset after everything valid in the segment, including the record that names the next
    /// segment. A complete segment has no limit: bytes after its length that a sync made durable
    /// are the rest of a failed group, which no recovery takes.
    #[must_use]
    pub fn whole_through(&self) -> u64 {
        if self.is_complete {
            return u64::MAX;
        }
        let trailer = RECORD_BYTES + END_PAYLOAD_BYTES as u64;
        self.end_offset + if self.next.is_some() { trailer } else { 0 }
    }
}

/// Reads the header of the segment at `path`; `None` if the file has no whole header. Errors: I/O
/// errors, and `Unsupported` for another version of the format.
pub fn read_header(fs: &dyn FileSystem, path: &Path) -> Result<Option<SegmentHeader>> {
    let mut source = Source::open(fs, path)?;
    let Some(bytes) = source.get(View::File, 0, HEADER_BYTES)? else { return Ok(None) };
    let mut header = [0; SEGMENT_HEADER_BYTES];
    header.copy_from_slice(bytes);
    match SegmentHeader::decode(&header) {
        Ok(header) => Ok(Some(header)),
        Err(BadHeader::Damaged) => Ok(None),
        Err(BadHeader::Version(version)) => Err(unsupported(path, version)),
    }
}

fn unsupported(path: &Path, version: u32) -> Error {
    Error::unsupported(format!(
        "{}: log format version {version} is not the one of this program ({})",
        path.display(),
        super::record::FORMAT_VERSION
    ))
}

/// Reads the records of one segment in order, and passes each to `visit` with the sequence number
/// of its first operation. Errors: `Corrupt` (as the module defines it) and `Unsupported` with file
/// and offset, errors of `visit`, I/O errors.
pub fn read_segment(
    fs: &dyn FileSystem,
    file: &SegmentFile,
    request: &ReadRequest,
    visit: &mut dyn FnMut(SeqNo, BatchView<'_>) -> Result<()>,
) -> Result<SegmentEnd> {
    let mut segment = Segment::open(fs, file, request)?;
    let (at, problem) = segment.replay(visit)?;
    let end = segment.judge(at, problem)?;
    let is_complete = request.known_len == Some(at) && segment.header.is_some();
    Ok(SegmentEnd { end, is_complete, ..segment.found })
}

/// The largest synced-through offset that any valid record of the segment states, even after
/// damage. If it is not 0, the log was synced after the segment was begun.
fn synced_through(fs: &dyn FileSystem, file: &SegmentFile, request: &ReadRequest) -> Result<u64> {
    let mut segment = Segment::open(fs, file, request)?;
    Ok(segment.followers(0)?.synced_through)
}

struct Segment<'a> {
    path: &'a Path,
    request: &'a ReadRequest,
    source: Source,
    header: Option<SegmentHeader>,
    /// Reason for which there is no header; empty if there is one.
    header_problem: &'static str,
    /// Whether a lost header looks like a write that never reached the device.
    header_unwritten: bool,
    seed: u32,
    same_boot: Option<bool>,
    found: SegmentEnd,
}

/// Valid records at any place after damage.
#[derive(Default)]
struct Followers {
    first: Option<u64>,
    synced_through: u64,
}

impl<'a> Segment<'a> {
    fn open(fs: &dyn FileSystem, file: &'a SegmentFile, request: &'a ReadRequest) -> Result<Self> {
        let found = SegmentEnd {
            no: file.no,
            previous: None,
            incarnation: None,
            end_offset: 0,
            in_tail: Vec::new(),
            last_seq: None,
            records: 0,
            synced_through: 0,
            next: None,
            same_boot: None,
            is_complete: false,
            end: End::Clean,
        };
        let source = Source::open(fs, &file.path)?;
        let mut segment = Self {
            path: &file.path,
            request,
            source,
            header: None,
            header_problem: "",
            header_unwritten: false,
            seed: 0,
            same_boot: None,
            found,
        };
        segment.load_header()?;
        if let Some(header) = segment.header {
            segment.seed = segment_seed(header.incarnation);
            let tail = fs.log_tail(&file.path, header.incarnation)?;
            // The file is opened again after the tail was read: it has all bytes that have left the
            // tail for it meanwhile.
            segment.source = Source::open(fs, &file.path)?;
            segment.source.set_tail(tail);
            segment.same_boot = match fs.boot_id() {
                Some(now) if header.boot_id != [0; 16] => Some(now == header.boot_id),
                _ => None,
            };
            if request.mode == RecoveryMode::AssumePowerLoss {
                segment.same_boot = Some(false);
            }
            segment.found.same_boot = segment.same_boot;
            segment.found.previous = header.previous;
            segment.found.incarnation = Some(header.incarnation);
            segment.found.end_offset = HEADER_BYTES;
        }
        Ok(segment)
    }

    fn load_header(&mut self) -> Result<()> {
        let Some(bytes) = self.source.get(View::File, 0, HEADER_BYTES)? else {
            (self.header_problem, self.header_unwritten) = ("it ends within its header", true);
            return Ok(());
        };
        let mut header = [0; SEGMENT_HEADER_BYTES];
        header.copy_from_slice(bytes);
        match SegmentHeader::decode(&header) {
            Ok(header) if number_of(header.incarnation) != self.found.no => {
                self.header_problem = "its header is of an earlier use of the file";
                self.header_unwritten = true;
            }
            Ok(header) if header.database_id != self.request.database_id => {
                return Err(self.corrupt(0, "the log segment belongs to another database"));
            }
            Ok(header) => self.header = Some(header),
            Err(BadHeader::Version(version)) => return Err(unsupported(self.path, version)),
            Err(BadHeader::Damaged) => {
                self.header_problem = "its header is damaged";
                self.header_unwritten = header.iter().all(|&byte| byte == 0);
            }
        }
        Ok(())
    }

    /// Visits records until one does not count. Returns its offset and what is wrong there (`None`
    /// if it looks like the end of the log).
    fn replay(
        &mut self,
        visit: &mut dyn FnMut(SeqNo, BatchView<'_>) -> Result<()>,
    ) -> Result<(u64, Option<String>)> {
        let Some(header) = self.header else {
            return Ok((0, Some(self.header_problem.to_owned())));
        };
        let mut at = HEADER_BYTES;
        let mut after = self.request.after;
        while self.request.known_len != Some(at) {
            let (view, record) = match self.record_at(at)? {
                Ok(found) => found,
                Err(Some(problem)) => return Ok((at, Some(problem))),
                Err(None) => return Ok((at, self.end_problem(&header, at)?)),
            };
            let end = at + record.record_len();
            if view == View::Stitched {
                self.note_in_tail(at..end);
            }
            if self.request.known_len.is_some_and(|known| end > known) {
                let problem = "a record goes on behind the segment's end";
                return Ok((at, Some(problem.to_owned())));
            }
            if record.kind == RecordType::End as u8 {
                let path = self.path;
                let payload = self.payload(view, at, &record)?;
                let next: [u8; END_PAYLOAD_BYTES] = payload.try_into().map_err(|_| {
                    Error::corrupt(path, at, "record: the segment's end is malformed")
                })?;
                self.found.next = Some(FileNo(u64::from_le_bytes(next)));
                self.note_synced(&record);
                return Ok((end, None));
            }
            if record.kind != RecordType::Batch as u8 {
                return Err(Error::unsupported(format!(
                    "{}: the record at offset {at} is of type {}, which this version does not read",
                    self.path.display(),
                    record.kind
                )));
            }
            if record.first_seq <= after {
                let (first, path) = (record.first_seq, self.path);
                let what = format!("record: sequence number {first} follows {after}");
                return Err(Error::corrupt(path, at, what));
            }
            let path = self.path;
            let batch = BatchView::decode(self.payload(view, at, &record)?)
                .map_err(|error| located(path, at, error))?;
            let count = batch.len() as u64;
            visit(record.first_seq, batch).map_err(|error| located(path, at, error))?;
            after = SeqNo(record.first_seq.0.saturating_add(count.saturating_sub(1)));
            self.found.last_seq = Some(after);
            self.found.records += 1;
            self.note_synced(&record);
            at = end;
            self.found.end_offset = at;
        }
        Ok((at, None))
    }

    fn note_in_tail(&mut self, record: Range<u64>) {
        match self.found.in_tail.last_mut() {
            Some(last) if last.end == record.start => last.end = record.end,
            _ => self.found.in_tail.push(record),
        }
    }

    fn payload(&mut self, view: View, at: u64, record: &RecordHeader) -> Result<&[u8]> {
        let path = self.path;
        let payload = self.source.get(view, at + RECORD_BYTES, u64::from(record.payload_len))?;
        payload.ok_or_else(|| Error::corrupt(path, at, "record: the file shrank under the reader"))
    }

    fn note_synced(&mut self, record: &RecordHeader) {
        let synced = u64::from(record.synced_through);
        self.found.synced_through = self.found.synced_through.max(synced);
    }

    /// The record at `at` in the first view that has it whole. `Err` describes what is wrong with
    /// the best candidate; `Err(None)` means that nothing there is a header of this use.
    fn record_at(&mut self, at: u64) -> Result<Result<(View, RecordHeader), Option<String>>> {
        let mut problem = None;
        for &view in self.source.views() {
            let Some(bytes) = self.source.get(view, at, RECORD_BYTES)? else { continue };
            let Some(record) = decode(bytes, self.seed, at) else { continue };
            self.note_synced(&record);
            let len = u64::from(record.payload_len);
            match self.source.get(view, at + RECORD_BYTES, len)? {
                None => problem = Some("record: its payload is cut off".to_owned()),
                Some(payload) => {
                    let sum = crc(payload);
                    if sum == record.payload_crc {
                        return Ok(Ok((view, record)));
                    }
                    let stored = record.payload_crc;
                    problem = Some(format!(
                        "record: payload checksum {sum:#010x} does not match {stored:#010x}"
                    ));
                }
            }
        }
        Ok(Err(problem))
    }

    /// Decides about an offset `at` without a header of this use: `None` if a log ends so, else
    /// what is wrong.
    fn end_problem(&mut self, header: &SegmentHeader, at: u64) -> Result<Option<String>> {
        let damaged = || Some("record: its header is damaged or cut off".to_owned());
        let len = self.source.file_len();
        if self.source.views().len() > 1 && at < self.source.len(View::Stitched) {
            return Ok(damaged());
        }
        if at >= len {
            return Ok(None);
        }
        if at >= header.reused_len || len > header.reused_len && len - at < RECORD_BYTES {
            return Ok(damaged());
        }
        let ours = match self.source.get(View::File, at + 20, 4)? {
            Some(word) => word == (header.incarnation.0 as u32).to_le_bytes(),
            None => false,
        };
        Ok(if ours { damaged() } else { None })
    }

    /// Decides how the segment ended at `at`, by the rules of the module.
    fn judge(&mut self, at: u64, problem: Option<String>) -> Result<End> {
        if self.request.known_len == Some(at) {
            return Ok(End::Clean);
        }
        let behind = self.followers(at + 1)?;
        let what = problem.as_deref().unwrap_or("record: it is missing");
        let synced = self.found.synced_through.max(behind.synced_through);
        self.found.synced_through = synced;
        if at < synced {
            let what = format!("{what}, though the segment was synced through offset {synced}");
            return Err(self.corrupt(at, &what));
        }
        let strict = self.request.mode == RecoveryMode::Strict;
        let power_lost = match self.header {
            Some(_) => self.same_boot == Some(false),
            None => self.header_unwritten,
        };
        if let Some(next) = behind.first
            && (strict || !power_lost)
        {
            let what = format!("{what}, though a valid record follows at offset {next}");
            return Err(self.corrupt(at, &self.with_hint(what)));
        }
        if let Some(known) = self.request.known_len
            && (strict || self.same_boot == Some(true))
        {
            let what = format!("{what}, though the segment is {known} bytes long");
            return Err(self.corrupt(at, &self.with_hint(what)));
        }
        let lost = behind.first.is_some() || self.request.known_len.is_some();
        match problem {
            _ if !lost && (problem.is_none() || self.never_begun()) => Ok(End::Clean),
            Some(what) if strict => Err(self.corrupt(at, &what)),
            _ => Ok(End::Torn(format!("{}: offset {at}: {what}", self.path.display()))),
        }
    }

    /// Whether the process ended between creating (or recycling) the file and its first append.
    fn never_begun(&self) -> bool {
        self.header.is_none() && self.header_unwritten
    }

    /// Searches valid headers of this use from `from` on, in both views.
    fn followers(&mut self, from: u64) -> Result<Followers> {
        let mut found = Followers::default();
        for &view in self.source.views() {
            let end = self.request.known_len.unwrap_or(u64::MAX).min(self.source.len(view));
            let mut at = from;
            while at.saturating_add(RECORD_BYTES) <= end {
                let take = SEARCH_BYTES.min(end - at);
                let (header, no, seed) = (self.header, self.found.no, self.seed);
                let Some(bytes) = self.source.get(view, at, take)? else { break };
                search(bytes, at, header.map(|header| header.incarnation), no, seed, &mut found);
                at += take - RECORD_BYTES + 1;
            }
        }
        Ok(found)
    }

    fn corrupt(&self, at: u64, what: &str) -> Error {
        Error::corrupt(self.path, at, what)
    }

    /// Adds a hint to a loss that another recovery mode accepts.
    fn with_hint(&self, what: String) -> String {
        match self.request.mode {
            RecoveryMode::TolerateTornTail => what + POWER_LOSS_HINT,
            RecoveryMode::Strict | RecoveryMode::AssumePowerLoss => what,
        }
    }
}

/// Hint in errors about a loss that a power failure of the storage alone explains.
const POWER_LOSS_HINT: &str = " (if the storage lost power while this machine ran on, \
     recovery_mode = \"assume-power-loss\" drops the writes from there on that were not synced)";

fn located(path: &Path, at: u64, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => Error::corrupt(path, at, error.context()),
        _ => error,
    }
}

fn decode(bytes: &[u8], seed: u32, at: u64) -> Option<RecordHeader> {
    RecordHeader::decode(bytes.try_into().ok()?, seed, at)
}

/// Notes every valid record header in `bytes`, which lie at `at` of the segment.
fn search(
    bytes: &[u8],
    at: u64,
    incarnation: Option<Epoch>,
    no: FileNo,
    seed: u32,
    found: &mut Followers,
) {
    let known = incarnation.map(|incarnation| (incarnation.0 as u32).to_le_bytes());
    for (index, window) in bytes.windows(RECORD_HEADER_BYTES).enumerate() {
        let word = [window[20], window[21], window[22], window[23]];
        let offset = at + index as u64;
        let record = match known {
            Some(known) if word != known => None,
            Some(_) => decode(window, seed, offset),
            None if word[3] != no.0 as u8 => None,
            None => window
                .try_into()
                .ok()
                .and_then(|window| RecordHeader::decode_any_use(window, no, offset)),
        };
        if let Some(record) = record {
            found.first = Some(found.first.map_or(offset, |first| first.min(offset)));
            found.synced_through = found.synced_through.max(u64::from(record.synced_through));
        }
    }
}

/// Content of the log as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredLog {
    /// Each segment that was read, oldest first.
    pub segments: Vec<SegmentEnd>,
    /// Segments that are no part of the log, because this recovery or an earlier one cut the log
    /// before them. They may be removed immediately, and must be removed before their numbers could
    /// be used again.
    pub dropped: Vec<SegmentFile>,
    /// Description of the loss, if there is one, for the operator.
    pub lost: Option<String>,
    /// Sequence number of the last operation; `None` if the log has no records.
    pub last_seq: Option<SeqNo>,
    /// End of the log, which the next segment's header must name ([`super::LogWriter::create`]).
    /// `None` if there was no segment.
    pub previous: Option<SegmentRef>,
}

/// The segments of a log, and the parameters for reading them.
#[derive(Clone, Copy, Debug)]
pub struct LogChain<'a> {
    /// Every segment that may still hold needed writes, by number.
    pub segments: &'a [SegmentFile],
    /// The smallest number that a needed segment may have.
    pub floor: FileNo,
    /// The damage that is tolerated.
    pub mode: RecoveryMode,
    /// The database that the segments must belong to.
    pub database_id: [u8; 16],
}

impl LogChain<'_> {
    fn request(&self, known_len: Option<u64>, after: SeqNo) -> ReadRequest {
        ReadRequest { mode: self.mode, database_id: self.database_id, known_len, after }
    }

    /// The chain of segments by position, oldest first, each with its length in the next segment's
    /// header. The second value has the segments to which no later one leads back.
    #[expect(clippy::type_complexity, reason = "two lists that only the caller reads")]
    fn links(&self, fs: &dyn FileSystem) -> Result<(Vec<(usize, Option<u64>)>, Vec<SegmentFile>)> {
        let request = self.request(None, SeqNo::ZERO);
        let (mut chain, mut skipped) = (Vec::new(), Vec::new());
        let mut wanted: Option<SegmentRef> = None;
        for (index, file) in self.segments.iter().enumerate().rev() {
            if wanted.is_some_and(|wanted| file.no > wanted.no) {
                skipped.push(file.clone());
                continue;
            }
            if let Some(wanted) = wanted
                && file.no < wanted.no
            {
                return Err(self.missing(wanted));
            }
            chain.push((index, wanted.map(|wanted| wanted.len)));
            // A segment without a header cannot name the previous one.
            let header = Segment::open(fs, file, &request)?.header;
            wanted = match header {
                Some(header) => match header.previous {
                    Some(previous) => Some(previous),
                    None => Some(SegmentRef { no: FileNo(0), len: 0 }),
                },
                None => None,
            };
        }
        if let Some(wanted) = wanted.filter(|wanted| wanted.no >= self.floor && wanted.len > 0) {
            return Err(self.missing(wanted));
        }
        chain.reverse();
        skipped.reverse();
        Ok((chain, skipped))
    }

    fn missing(&self, wanted: SegmentRef) -> Error {
        let directory = self.segments.first().and_then(|file| file.path.parent());
        let directory = directory.unwrap_or(Path::new("."));
        let what = format!(
            "log segment {} is missing: restore it from a copy, or save what is left with \
             `archipelago db repair`",
            wanted.no
        );
        Error::corrupt(&directory.join(log_name(wanted.no)), 0, what)
    }

    /// Description of the loss of the segment that `last`, the end of the chain, names as the next
    /// one. `None` if that segment exists. `Corrupt` if it is missing and no power failure can have
    /// taken it.
    fn lost_next(
        &self,
        fs: &dyn FileSystem,
        last: &SegmentEnd,
        file: &SegmentFile,
    ) -> Result<Option<String>> {
        let Some(next) = last.next else { return Ok(None) };
        let path = file.path.with_file_name(log_name(next));
        // A segment that a writer began after the segments were listed is not missing.
        if self.segments.iter().any(|segment| segment.no == next) || fs.exists(&path)? {
            return Ok(None);
        }
        let what = format!("the segment was closed, but segment {next}, which follows, is missing");
        if self.mode == RecoveryMode::Strict || last.same_boot == Some(true) {
            let hint = match self.mode {
                RecoveryMode::TolerateTornTail => POWER_LOSS_HINT,
                RecoveryMode::Strict | RecoveryMode::AssumePowerLoss => "",
            };
            let what = format!("{what}{hint}");
            return Err(Error::corrupt(&file.path, last.end_offset, what));
        }
        Ok(Some(format!("{}: {what}", file.path.display())))
    }
}

/// Reads the log: every record of `chain` in order, across segments, by the rules of the module.
pub fn recover(
    fs: &dyn FileSystem,
    chain: &LogChain<'_>,
    visit: &mut dyn FnMut(SeqNo, BatchView<'_>) -> Result<()>,
) -> Result<RecoveredLog> {
    recover_beside(fs, chain, visit, &mut |_| Ok(()))
}

/// Reads the log as [`recover`] does, while a writer appends to it. After each segment, with any
/// result, `after_segment` checks whether the segment is still the one of its name; its error ends
/// the recovery. Records that the writer appends meanwhile may be visited or not, from some point
/// of the last segment on.
pub fn recover_beside(
    fs: &dyn FileSystem,
    chain: &LogChain<'_>,
    visit: &mut dyn FnMut(SeqNo, BatchView<'_>) -> Result<()>,
    after_segment: &mut dyn FnMut(FileNo) -> Result<()>,
) -> Result<RecoveredLog> {
    let (links, dropped) = chain.links(fs)?;
    let mut log = RecoveredLog { dropped, ..RecoveredLog::default() };
    let mut after = SeqNo::ZERO;
    // The newest segment with a header. Later segments were never begun.
    let mut newest = None;
    for (position, &(index, known_len)) in links.iter().enumerate() {
        let request = chain.request(known_len, after);
        let file = &chain.segments[index];
        let end = read_segment(fs, file, &request, visit)?;
        after_segment(file.no)?;
        after = end.last_seq.unwrap_or(after);
        log.last_seq = end.last_seq.or(log.last_seq);
        if end.end_offset > 0 {
            log.previous = Some(SegmentRef { no: end.no, len: end.end_offset });
        }
        let torn = match &end.end {
            End::Clean => None,
            End::Torn(what) => Some((what.clone(), end.end_offset)),
        };
        if end.incarnation.is_some() {
            newest = Some((log.segments.len(), file));
        }
        log.segments.push(end);
        if let Some((what, at)) = torn {
            let later = links[position + 1..].iter().map(|&(index, _)| &chain.segments[index]);
            cut(fs, chain, file, &CutPlace { what: &what, at }, later, &mut log)?;
            return Ok(log);
        }
    }
    if let Some((index, file)) = newest {
        log.lost = chain.lost_next(fs, &log.segments[index], file)?;
    }
    Ok(log)
}

/// A position at which the log is cut, and the reason.
struct CutPlace<'a> {
    what: &'a str,
    /// Offset in the segment.
    at: u64,
}

/// Cuts the log at `place` of `file`: drops all `later` segments, unless one of them proves that
/// nothing before it can have been lost.
fn cut<'a>(
    fs: &dyn FileSystem,
    chain: &LogChain<'_>,
    file: &SegmentFile,
    place: &CutPlace<'_>,
    later: impl Iterator<Item = &'a SegmentFile>,
    log: &mut RecoveredLog,
) -> Result<()> {
    let CutPlace { what, at } = *place;
    let request = chain.request(None, SeqNo::ZERO);
    let mut dropped = Vec::new();
    for next in later {
        if synced_through(fs, next, &request)? > 0 {
            let next = next.no;
            let what = format!("{what}, though the log was synced later, in segment {next}");
            return Err(Error::corrupt(&file.path, at, what));
        }
        dropped.push(next.clone());
    }
    log.dropped.append(&mut dropped);
    log.lost = Some(what.to_owned());
    Ok(())
}
