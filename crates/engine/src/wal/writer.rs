//! [`LogWriter`]: the open segment of the log; [`LogSyncer`]: its durability.
//!
//! The commit lock owns the writer (`&mut`). The syncer is shared: any thread may sync while
//! appends go on. Syncs run one after another, so that one leader serves a group.
//!
//! Invariants:
//! 1. The syncer makes segments durable oldest first. So a record whose `synced_through` is not 0
//!    proves that every earlier segment is whole.
//! 2. A sync reports a segment only when the segment's directory entry is durable too.
//! 3. `synced_through` never exceeds the offset that a sync has reported.
//!
//! A file system in a network acknowledges appends later. Then an append only fixes the position of
//! its record, and the caller waits for it ([`LogWriter::unacknowledged`]) without the commit lock.
//! The log continues in a prepared segment ([`LogWriter::rotate_to`]) without waiting. If the log
//! is buffered ([`LogWriter::buffer`]), a record may be sent later, and the caller waits only while
//! many bytes are not acknowledged. Records of a buffered log that a segment loses are appended
//! again to the next one.
//!
//! Failure: after an error of an append the segment is unusable until [`LogWriter::rotate`]. An
//! error of a sync is sticky in its segment ([`archipelago_env::LogSync`]) until that segment's
//! writes are flushed and [`LogSyncer::forget_before`] releases it.
//!
//! Cost: an append is one `LogFile::append` and no allocation; a sync is one `LogSync::sync` per
//! segment since the last, plus one `sync_dir` for each new segment.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, FileNo, Result, SeqNo};
use archipelago_env::{FileSystem, LogFile};
use parking_lot::Mutex;

use super::batch::WriteBatch;
use super::record::{
    Entry, ManifestPosition, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, RecordHeader, RecordType,
    SEGMENT_HEADER_BYTES, SegmentHeader, SegmentRef, segment_seed,
};
use super::retained::RetainedRecords;
use super::segment::{
    LostRecords, PreparedSegment, RetiredSegment, Segment, SegmentCreation, SegmentPlan,
    create_file,
};

/// Largest number of records in one `LogFile::append`.
const GROUP: usize = 32;
/// Largest number of records in one `LogFile::submit` to a network.
const LATER_GROUP: usize = 4096;
/// Largest number of bytes of records in one `LogFile::submit` to a network, unless one record has
/// more (Terark-DS §4.3.1).
const LATER_GROUP_BYTES: usize = 512 << 10;
/// Number of buffers of a buffered log that may be in transit before writers wait.
const BUFFERS_UNDER_WAY: u64 = 4;

/// Configuration of a log writer.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// The database's id, which every segment carries.
    pub database_id: [u8; 16],
    /// Size in bytes from which on [`LogWriter::should_rotate`] returns true.
    pub segment_bytes: u64,
    /// Seed of the incarnations' random part, from the system's entropy.
    pub seed: u64,
    /// Durable position of the manifest, for the segments' headers ([`LogWriter::note_manifest`]).
    pub manifest: ManifestPosition,
}

/// End of an append in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Number of the segment that holds the record.
    pub segment: FileNo,
    /// Offset in the segment after the record.
    pub end_offset: u64,
}

/// Durable part of the log: every earlier segment, and this one through `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// Number of the newest segment that is durable in part.
    pub segment: FileNo,
    /// Number of durable bytes of this segment.
    pub offset: u64,
}

impl Durable {
    /// Whether the record of `appended` is durable.
    #[must_use]
    pub fn covers(&self, appended: &Appended) -> bool {
        (appended.segment, appended.end_offset) <= (self.segment, self.offset)
    }
}

/// A segment that [`LogWriter::rotate`] or [`LogWriter::finish`] closed.
#[derive(Clone, Debug)]
pub struct Closed {
    /// The segment and its length.
    pub segment: SegmentRef,
    /// Error because of which some bytes have not reached the segment's file. These bytes still
    /// survive `kill -9`, but no sync can succeed until the segment's writes are flushed.
    pub unfinished: Option<Error>,
    /// Whether the header of the open segment was not acknowledged, so that no record of it counts.
    /// Then `segment` is the previous one, with the end of its acknowledged records.
    pub is_void: bool,
}

/// Records that were submitted to a segment whose acknowledgement comes later
/// ([`LogFile::submit`]).
#[derive(Clone, Debug)]
pub struct Unacknowledged {
    segment: Arc<Segment>,
    end_offset: u64,
    is_buffered: bool,
}

impl Unacknowledged {
    /// Waits until all records through this one survive `kill -9`. After an error no record after
    /// the acknowledged end counts once the log is rotated. Until then a recovery may find any
    /// number of them.
    pub fn wait(&self) -> Result<()> {
        self.segment.handle().wait(self.end_offset)
    }

    /// Number of the segment that has the records.
    #[must_use]
    pub fn segment(&self) -> FileNo {
        self.segment.no()
    }

    /// Whether the log is buffered. Then a writer waits after its write is visible, and for older
    /// records only, so that a bounded number of bytes is in transit.
    #[must_use]
    pub fn is_buffered(&self) -> bool {
        self.is_buffered
    }
}

/// The segment before the open one. The header of the open one names its end.
#[derive(Debug)]
struct Predecessor {
    segment: Arc<Segment>,
    end: u64,
}

impl Predecessor {
    fn is_acknowledged(&self) -> bool {
        self.segment.handle().acknowledged() >= self.end
    }
}

#[derive(Debug)]
struct SyncShared {
    fs: Arc<dyn FileSystem>,
    /// Mutex of the sync in progress, held for the whole of a sync.
    leader: Mutex<()>,
    /// Segments that may have unsynced bytes, oldest first; the last one is open.
    segments: Mutex<VecDeque<Arc<Segment>>>,
    /// Result of the last sync that succeeded.
    durable: Mutex<Option<Durable>>,
}

/// Makes the log durable, or writes it through to its device. A cheap handle that any thread may
/// use.
#[derive(Clone, Debug)]
pub struct LogSyncer {
    shared: Arc<SyncShared>,
    acknowledges_later: bool,
}

impl LogSyncer {
    /// Whether the log is in a network and acknowledges appends later.
    #[must_use]
    pub fn acknowledges_later(&self) -> bool {
        self.acknowledges_later
    }

    /// Makes everything that was appended before this call survive power loss: earlier segments
    /// first, then the open one. Waits for a sync that is in progress. After an error nothing new
    /// is known to be durable.
    pub fn sync(&self) -> Result<Durable> {
        let _leader = self.shared.leader.lock();
        let segments: Vec<Arc<Segment>> = self.shared.segments.lock().iter().cloned().collect();
        let mut durable = Durable { segment: FileNo(0), offset: 0 };
        for (index, segment) in segments.iter().enumerate() {
            let offset = segment.sync(&*self.shared.fs)?;
            durable = Durable { segment: segment.no(), offset };
            if index + 1 < segments.len() {
                self.drop_segment(segment.no());
            }
        }
        *self.shared.durable.lock() = Some(durable);
        Ok(durable)
    }

    /// Result of the last sync that succeeded; `None` before the first.
    #[must_use]
    pub fn durable(&self) -> Option<Durable> {
        *self.shared.durable.lock()
    }

    /// Waits until the device has everything that was appended before this call. The bytes need not
    /// survive power loss ([`archipelago_env::LogSync::write_through`]).
    pub fn write_through(&self) -> Result<()> {
        let segments: Vec<Arc<Segment>> = self.shared.segments.lock().iter().cloned().collect();
        segments.iter().try_for_each(|segment| segment.handle().write_through().map(drop))
    }

    /// Sends the records in the buffer of a buffered log. Waits until every record that was
    /// appended before this call survives `kill -9`. A local log has nothing to send.
    pub fn send(&self) -> Result<(), LostRecords> {
        if !self.acknowledges_later {
            return Ok(());
        }
        // The newest segment waits for the previous one.
        let Some(newest) = self.shared.segments.lock().back().cloned() else { return Ok(()) };
        let sent = newest.handle().send().and_then(|()| newest.handle().write_through());
        sent.map(drop).map_err(|error| LostRecords { segment: newest.no(), error })
    }

    /// Releases the segments before `no`, whose writes all lie durably elsewhere. They need no sync
    /// any more, and their errors do not count.
    pub fn forget_before(&self, no: FileNo) {
        let mut segments = self.shared.segments.lock();
        while segments.len() > 1 && segments.front().is_some_and(|segment| segment.no() < no) {
            segments.pop_front();
        }
    }

    fn drop_segment(&self, no: FileNo) {
        let mut segments = self.shared.segments.lock();
        segments.retain(|segment| segment.no() != no);
    }
}

/// The open segment of the log, which takes the appends.
#[derive(Debug)]
pub struct LogWriter {
    config: LogConfig,
    rng: Rng,
    log: Box<dyn LogFile>,
    segment: Arc<Segment>,
    incarnation: Epoch,
    seed: u32,
    len: u64,
    /// Length in bytes at which the owner of the log should look after the segment.
    attention_bytes: u64,
    /// Error because of which the segment takes no more appends.
    broken: Option<Error>,
    /// The previous segment, until the header of this one survives `kill -9`.
    predecessor: Option<Predecessor>,
    /// Number of bytes that a buffered log may hold back; 0 if it is not buffered.
    buffer_bytes: u64,
    retained: RetainedRecords,
    syncer: LogSyncer,
}

struct Opened {
    log: Box<dyn LogFile>,
    segment: Arc<Segment>,
    incarnation: Epoch,
}

impl LogWriter {
    /// Creates segment `no` at `path`. `previous` is the end of the log
    /// ([`super::RecoveredLog::previous`]), `None` for a new database. `no` must exceed the number
    /// of any earlier segment. `recycle` names an obsolete segment whose space is reused.
    pub fn create(
        fs: Arc<dyn FileSystem>,
        config: LogConfig,
        path: &Path,
        no: FileNo,
        previous: Option<SegmentRef>,
        recycle: Option<PathBuf>,
    ) -> Result<Self> {
        let mut rng = Rng::with_seed(config.seed);
        let opened = open(&*fs, &config, &mut rng, path, no, previous, recycle)?;
        let segments = Mutex::new(VecDeque::from([Arc::clone(&opened.segment)]));
        let shared = Arc::new(SyncShared {
            fs,
            leader: Mutex::new(()),
            segments,
            durable: Mutex::default(),
        });
        let acknowledges_later = opened.log.acknowledges_later();
        Ok(Self {
            config,
            rng,
            log: opened.log,
            segment: opened.segment,
            incarnation: opened.incarnation,
            seed: segment_seed(opened.incarnation),
            len: SEGMENT_HEADER_BYTES as u64,
            attention_bytes: attention_bytes(&config, acknowledges_later),
            broken: None,
            predecessor: None,
            buffer_bytes: 0,
            retained: RetainedRecords::default(),
            syncer: LogSyncer { shared, acknowledges_later },
        })
    }

    /// Buffers the log from now on: up to `bytes` of records are sent together. It has no effect on
    /// a local log, because a local append survives `kill -9` immediately.
    pub fn buffer(&mut self, bytes: u64) {
        if self.syncer.acknowledges_later {
            self.buffer_bytes = bytes;
            self.log.hold_back(bytes);
        }
    }

    /// Whether the log is buffered.
    #[must_use]
    pub fn is_buffered(&self) -> bool {
        self.buffer_bytes > 0
    }

    /// Appends one record. On return it survives `kill -9`, unless [`LogWriter::unacknowledged`]
    /// returns something to wait for.
    #[inline]
    pub fn append(&mut self, entry: &Entry<'_>) -> Result<Appended> {
        let header = self.header(entry, self.len)?;
        let appended = self.push(&[&header, entry.payload])?;
        if self.buffer_bytes > 0 {
            self.retained.keep(&self.segment, appended.end_offset, entry);
        }
        Ok(appended)
    }

    /// Appends the records of a group in order, with as few calls to the file system as possible.
    /// On return all of them survive `kill -9`, unless [`LogWriter::unacknowledged`] returns
    /// something to wait for. After an error none of them counts once the log is rotated, because
    /// the next segment's header states that this one ended before them. Until then a recovery may
    /// find any number of them. If a part of them reached the segment, it takes no more appends.
    pub fn append_many(&mut self, entries: &[Entry<'_>]) -> Result<Appended> {
        let start = self.len;
        let appended = match self.syncer.acknowledges_later {
            true => self.append_later_groups(entries),
            false => self.append_groups(entries),
        };
        if let Err(error) = &appended {
            if self.log.len() != start {
                // The next record would be encoded for an offset that an earlier part of the group
                // occupies.
                self.fail(error);
            }
            self.len = start;
            if let Some(first) = entries.first() {
                self.retained.forget_from(first.first_seq);
            }
        }
        appended
    }

    fn append_groups(&mut self, entries: &[Entry<'_>]) -> Result<Appended> {
        let mut appended = Appended { segment: self.segment.no(), end_offset: self.len };
        for group in entries.chunks(GROUP) {
            let mut headers = [[0u8; RECORD_HEADER_BYTES]; GROUP];
            let mut offset = self.len;
            for (header, entry) in headers.iter_mut().zip(group) {
                *header = self.header(entry, offset)?;
                offset += (RECORD_HEADER_BYTES + entry.payload.len()) as u64;
            }
            let mut parts: [&[u8]; 2 * GROUP] = [&[]; 2 * GROUP];
            for (index, entry) in group.iter().enumerate() {
                parts[2 * index] = &headers[index];
                parts[2 * index + 1] = entry.payload;
            }
            appended = self.push(&parts[..2 * group.len()])?;
        }
        Ok(appended)
    }

    /// Appends a group to a log in a network, in submits as large as pays on several connections.
    fn append_later_groups(&mut self, mut entries: &[Entry<'_>]) -> Result<Appended> {
        let mut appended = Appended { segment: self.segment.no(), end_offset: self.len };
        while !entries.is_empty() {
            let (group, rest) = entries.split_at(later_group(entries));
            let mut headers = Vec::with_capacity(group.len());
            let mut ends = Vec::with_capacity(group.len());
            let mut offset = self.len;
            for entry in group {
                headers.push(self.header(entry, offset)?);
                offset += (RECORD_HEADER_BYTES + entry.payload.len()) as u64;
                ends.push(offset);
            }
            let parts = headers.iter().zip(group);
            let parts: Vec<&[u8]> =
                parts.flat_map(|(header, entry)| [&header[..], entry.payload]).collect();
            appended = self.push(&parts)?;
            if self.buffer_bytes > 0 {
                for (end, entry) in ends.iter().zip(group) {
                    self.retained.keep(&self.segment, *end, entry);
                }
            }
            entries = rest;
        }
        Ok(appended)
    }

    #[inline]
    fn header(&self, entry: &Entry<'_>, offset: u64) -> Result<[u8; RECORD_HEADER_BYTES]> {
        check_payload_len(entry.payload.len())?;
        let header = RecordHeader {
            payload_crc: entry.payload_crc,
            payload_len: entry.payload.len() as u32,
            first_seq: entry.first_seq,
            kind: RecordType::Batch as u8,
            incarnation_low: self.incarnation.0 as u32,
            synced_through: self.segment.synced_through() as u32,
        };
        if offset + header.record_len() > u64::from(u32::MAX) {
            return Err(Error::invalid("the log segment is full: it must be rotated first"));
        }
        Ok(header.encode(self.seed, offset))
    }

    #[inline]
    fn push(&mut self, parts: &[&[u8]]) -> Result<Appended> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if let Err(error) = self.log.submit(parts) {
            self.broken = Some(error.clone());
            return Err(error);
        }
        self.len = self.log.len();
        Ok(Appended { segment: self.segment.no(), end_offset: self.len })
    }

    /// Appends a record without operations after a sync, so that damage of earlier records is
    /// distinguished from a torn tail. `seq` must exceed the sequence number of any operation. Does
    /// nothing if the segment has no records.
    pub fn mark_synced(&mut self, seq: SeqNo) -> Result<()> {
        if self.len <= SEGMENT_HEADER_BYTES as u64 {
            return Ok(());
        }
        let empty = WriteBatch::new();
        let payload_crc = archipelago_base::checksum::crc(empty.data());
        let mark = Entry { first_seq: seq, payload: empty.data(), payload_crc };
        self.append(&mark).map(|_| ())
    }

    /// The records that the writer of the last one has to wait for, if the segment acknowledges
    /// them later. They are its own records, or older ones if the log is buffered.
    #[inline]
    #[must_use]
    pub fn unacknowledged(&self) -> Option<Unacknowledged> {
        if !self.syncer.acknowledges_later {
            return None;
        }
        let (segment, end_offset) = match self.is_buffered() {
            false => (&self.segment, self.len),
            true => {
                // A failed wait sets the end of the acknowledged records, so it must be at the end
                // of a record.
                let end = self.len.saturating_sub(BUFFERS_UNDER_WAY * self.buffer_bytes);
                let older = self.retained.newest_before(self.segment.no(), end);
                older.unwrap_or((&self.segment, 0))
            }
        };
        let (segment, is_buffered) = (Arc::clone(segment), self.is_buffered());
        Some(Unacknowledged { segment, end_offset, is_buffered })
    }

    /// Notes that the segment lost records that it had accepted, or that it has records of a group
    /// that was refused. It takes no more until it is rotated.
    pub fn fail(&mut self, error: &Error) {
        self.broken.get_or_insert_with(|| error.clone());
    }

    /// Whether an append failed: the segment takes no more until it is rotated.
    #[inline]
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether the segment has reached its size.
    #[must_use]
    pub fn should_rotate(&self) -> bool {
        self.len >= self.config.segment_bytes
    }

    /// Whether the owner of the log should look after it. The segment has reached its size, or the
    /// next segment of a log in a network should be prepared.
    #[inline]
    #[must_use]
    pub fn wants_attention(&self) -> bool {
        self.len >= self.attention_bytes
    }

    /// Asks for the owner's attention again when the segment has its size, or grows further.
    pub fn note_attention(&mut self) {
        let step = (self.config.segment_bytes / 16).max(1);
        self.attention_bytes = self.config.segment_bytes.max(self.len + step);
    }

    /// Whether the header of the open segment names the end of `segment`, and records of `segment`
    /// may still be lost.
    #[must_use]
    pub fn follows_lossy(&self, segment: FileNo) -> bool {
        let is_open =
            |before: &Predecessor| before.segment.no() == segment && !before.is_acknowledged();
        self.predecessor.as_ref().is_some_and(is_open)
    }

    /// Whether the log can continue in the prepared segment `next`. The header of the open segment
    /// must survive `kill -9`, so that the next header can name the open segment as the previous
    /// one.
    #[must_use]
    pub fn can_rotate_to(&mut self, next: FileNo) -> bool {
        if self.has_header() {
            self.predecessor = None;
        }
        self.predecessor.is_none() && !self.is_broken() && next > self.segment.no()
    }

    /// Whether the header of the open segment is known to survive `kill -9`.
    fn has_header(&self) -> bool {
        self.segment.handle().acknowledged() >= SEGMENT_HEADER_BYTES as u64
    }

    /// Continues in a prepared segment without waiting. The header of the prepared segment states
    /// the end of the old segment's records, so it is sent only when all of them survive `kill -9`.
    /// The caller settles the old segment later. [`LogWriter::can_rotate_to`] must have returned
    /// true. After an error the writer takes no appends until a rotation succeeds.
    pub fn rotate_to(&mut self, next: PreparedSegment) -> Result<RetiredSegment> {
        let (no, path, mut log, incarnation) = next.into_parts();
        let previous = SegmentRef { no: self.segment.no(), len: self.len };
        let fs = Arc::clone(&self.syncer.shared.fs);
        let header = segment_header(&*fs, &self.config, incarnation, Some(previous), 0);
        log.hold_back(self.buffer_bytes);
        let begun = log
            .follow(Arc::clone(self.segment.handle()), self.len)
            .and_then(|()| log.submit(&[&header.encode()]));
        if let Err(error) = begun {
            self.fail(&error);
            return Err(error);
        }
        let end_record = self.end_record(no);
        let segment = Segment::new(no, &path, &*log);
        self.predecessor = Some(Predecessor { segment: Arc::clone(&self.segment), end: self.len });
        let (old, len) = (Arc::clone(&self.segment), self.len);
        let opened = Opened { log, segment, incarnation };
        let log = self.go_on(opened);
        Ok(RetiredSegment { log, segment: old, next: Arc::clone(&self.segment), end_record, len })
    }

    /// Makes an opened segment the open one, and returns the file of the old one.
    fn go_on(&mut self, opened: Opened) -> Box<dyn LogFile> {
        self.syncer.shared.segments.lock().push_back(Arc::clone(&opened.segment));
        self.segment = opened.segment;
        self.incarnation = opened.incarnation;
        self.seed = segment_seed(opened.incarnation);
        self.len = SEGMENT_HEADER_BYTES as u64;
        self.attention_bytes = attention_bytes(&self.config, self.syncer.acknowledges_later);
        self.broken = None;
        std::mem::replace(&mut self.log, opened.log)
    }

    /// Closes the segment and continues in segment `no` at `path`. Does not sync. A log in a
    /// network waits for its records, and a buffered one appends lost records again. After an error
    /// the writer takes no appends until a later rotation succeeds.
    pub fn rotate(&mut self, path: &Path, no: FileNo, recycle: Option<PathBuf>) -> Result<Closed> {
        if no <= self.segment.no() {
            return Err(Error::invalid(format!(
                "log segment {no} cannot follow segment {}",
                self.segment.no()
            )));
        }
        let was_broken = self.is_broken();
        let closed = self.finish();
        let fs = Arc::clone(&self.syncer.shared.fs);
        let previous = Some(closed.segment);
        let opened = open(&*fs, &self.config, &mut self.rng, path, no, previous, recycle)?;
        if !was_broken && closed.unfinished.is_none() {
            self.name_next(no);
        }
        let (void, void_no) = (self.segment.path().to_owned(), self.segment.no());
        self.predecessor = None;
        // The old log is dropped only now. Until then the new one could take over memory that the
        // old one has mapped.
        drop(self.go_on(opened));
        if closed.is_void {
            self.syncer.drop_segment(void_no);
            if let Err(error) = fs.remove(&void) {
                tracing::warn!(%error, "a log segment that was not used could not be removed");
            }
        }
        self.log.hold_back(self.buffer_bytes);
        if let Err(error) = self.append_retained() {
            // The segment is broken now, and the next rotation tries again.
            tracing::warn!(%error, "buffered records are not in the log again");
        }
        Ok(closed)
    }

    /// Appends the records again that a buffered log has published and its segments lost.
    fn append_retained(&mut self) -> Result<()> {
        let mut records = self.retained.take();
        while let Some(record) = records.pop_front() {
            if let Err(error) = self.append(&record.entry()) {
                records.push_front(record);
                self.retained.put_back(records);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The record that ends a segment and names the next one.
    fn end_record(&self, next: FileNo) -> Vec<u8> {
        let payload = next.0.to_le_bytes();
        let header = RecordHeader {
            payload_crc: archipelago_base::checksum::crc(&payload),
            payload_len: payload.len() as u32,
            first_seq: SeqNo::ZERO,
            kind: RecordType::End as u8,
            incarnation_low: self.incarnation.0 as u32,
            synced_through: self.segment.synced_through() as u32,
        };
        [&header.encode(self.seed, self.len)[..], &payload].concat()
    }

    /// Ends the finished segment with a record that names the next one. If that fails, nothing is
    /// lost, but a recovery cannot notice a missing next segment.
    fn name_next(&mut self, next: FileNo) {
        let record = self.end_record(next);
        if let Err(error) = self.log.append_trailer(&record) {
            tracing::warn!(%error, "a closed log segment does not name the next one");
        }
    }

    /// Sets the durable position of the manifest, which the header of the next segment states.
    pub fn note_manifest(&mut self, position: ManifestPosition) {
        self.config.manifest = position;
    }

    /// Ends the log: everything that was appended is in the segment's file, not synced. Later
    /// appends fail.
    pub fn finish(&mut self) -> Closed {
        let unfinished = self.log.finish().err();
        let name = self.segment.path().display();
        let error = Error::closed(format!("the log segment {name} is finished"));
        self.broken.get_or_insert(error);
        if let Some(before) = &self.predecessor
            && !self.has_header()
        {
            // A failed wait sets the end of the acknowledged records. A success means that only the
            // open segment has failed.
            let _decided = before.segment.handle().wait(before.end);
            let (no, end) = (before.segment.no(), before.segment.handle().acknowledged());
            let segment = SegmentRef { no, len: end.min(before.end) };
            return Closed { segment, unfinished, is_void: true };
        }
        // Records after the acknowledged end were never applied, so they must not count.
        let len = self.len.min(self.segment.handle().acknowledged());
        let segment = SegmentRef { no: self.segment.no(), len };
        Closed { segment, unfinished, is_void: false }
    }

    /// The handle that makes the log durable, now and after every rotation.
    #[must_use]
    pub fn syncer(&self) -> LogSyncer {
        self.syncer.clone()
    }

    /// The open segment and its length so far.
    #[must_use]
    pub fn position(&self) -> SegmentRef {
        SegmentRef { no: self.segment.no(), len: self.len }
    }

    /// Bytes of the open segment that its file does not hold yet, so that the file system does not
    /// count them as occupied.
    #[must_use]
    pub fn unwritten_bytes(&self) -> u64 {
        self.log.unwritten_bytes()
    }

    /// Offset through which the open segment is known to be durable.
    #[must_use]
    pub fn synced_through(&self) -> u64 {
        self.segment.synced_through()
    }
}

/// Length in bytes at which a new segment asks for attention: half of its size, if the next segment
/// should then be prepared.
fn attention_bytes(config: &LogConfig, acknowledges_later: bool) -> u64 {
    if acknowledges_later { config.segment_bytes / 2 } else { config.segment_bytes }
}

/// Number of the first entries that are sent to a network together.
fn later_group(entries: &[Entry<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&Entry<'_>| {
        bytes += RECORD_HEADER_BYTES + entry.payload.len();
        bytes <= LATER_GROUP_BYTES
    };
    entries.iter().take(LATER_GROUP).take_while(fits).count().max(1)
}

/// `InvalidArgument` if a payload of `bytes` does not fit a record.
#[inline]
pub(crate) fn check_payload_len(bytes: usize) -> Result<()> {
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(too_large(bytes));
    }
    Ok(())
}

#[cold]
fn too_large(bytes: usize) -> Error {
    Error::invalid(format!(
        "the write batch has {bytes} bytes: at most {PAYLOAD_BYTES_MAX} fit a log record"
    ))
}

fn open(
    fs: &dyn FileSystem,
    config: &LogConfig,
    rng: &mut Rng,
    path: &Path,
    no: FileNo,
    previous: Option<SegmentRef>,
    recycle: Option<PathBuf>,
) -> Result<Opened> {
    let plan = SegmentPlan { path, no, segment_bytes: config.segment_bytes, recycle };
    let SegmentCreation { mut log, incarnation, reused_len } = create_file(fs, plan, rng)?;
    let header = segment_header(fs, config, incarnation, previous, reused_len);
    if let Err(error) = log.append(&[&header.encode()]) {
        // A segment without a header counts for nothing, and no other code would remove it.
        drop(log);
        let _empty = fs.remove(path);
        return Err(error);
    }
    let segment = Segment::new(no, path, &*log);
    Ok(Opened { log, segment, incarnation })
}

fn segment_header(
    fs: &dyn FileSystem,
    config: &LogConfig,
    incarnation: Epoch,
    previous: Option<SegmentRef>,
    reused_len: u64,
) -> SegmentHeader {
    SegmentHeader {
        incarnation,
        database_id: config.database_id,
        previous,
        reused_len,
        boot_id: fs.boot_id().unwrap_or_default(),
        manifest: config.manifest,
    }
}
