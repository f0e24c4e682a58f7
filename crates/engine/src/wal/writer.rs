//! [`LogWriter`]: the open segment of the log; [`LogSyncer`]: its durability.
//!
//! The writer is owned by the commit lock (`&mut`). The syncer is shared: any thread may sync
//! while appends go on; syncs run one after another, so that one leader serves a group.
//!
//! Invariants: 1. the syncer makes segments durable oldest first, hence a record whose
//! `synced_through` is not 0 proves that every earlier segment is whole; 2. a sync reports a
//! segment only when the segment's directory entry is durable too; 3. `synced_through` never
//! exceeds what a sync has reported.
//!
//! A file system in a network acknowledges appends later. Then an append only fixes the place of
//! its record, and the caller waits for it ([`LogWriter::unacknowledged`]) without the commit lock.
//!
//! Failure: after an error an append leaves the segment unusable until [`LogWriter::rotate`]; an
//! error of a sync is sticky in its segment ([`archipelago_env::LogSync`]) until that segment's
//! writes are flushed and [`LogSyncer::forget_before`] lets go of it.
//!
//! Cost: an append is one `LogFile::append` and no allocation; a sync is one `LogSync::sync` per
//! segment since the last, plus one `sync_dir` for each new segment.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, FileNo, Result, SeqNo};
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions, LogSync};
use parking_lot::Mutex;

use super::batch::WriteBatch;
use super::record::{
    Entry, ManifestPosition, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, RecordHeader, RecordType,
    SEGMENT_HEADER_BYTES, SEGMENT_NO_MAX, SegmentHeader, SegmentRef, incarnation_of, segment_seed,
};

/// Records that go into one `LogFile::append` at most.
const GROUP: usize = 32;

/// What a log writer needs to know.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// The database's id, which every segment carries.
    pub database_id: [u8; 16],
    /// Size at which [`LogWriter::should_rotate`] says yes.
    pub segment_bytes: u64,
    /// Seed of the incarnations' random part, from the system's entropy.
    pub seed: u64,
    /// What is durable of the manifest, for the segments' headers. See
    /// [`LogWriter::note_manifest`].
    pub manifest: ManifestPosition,
}

/// Where an append ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Number of the segment that holds the record.
    pub segment: FileNo,
    /// The offset in the segment behind the record.
    pub end_offset: u64,
}

/// How far the log is durable: every earlier segment, and this one through `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// Number of the newest segment that is durable in part.
    pub segment: FileNo,
    /// Bytes of it.
    pub offset: u64,
}

impl Durable {
    /// Whether what `appended` tells of is durable.
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
    /// Why not everything has reached the segment's file. The bytes are still where they survive
    /// `kill -9`, but no sync can succeed until the segment's writes are flushed.
    pub unfinished: Option<Error>,
}

/// Records that were submitted to a segment whose acknowledgement comes later
/// ([`LogFile::submit`]).
#[derive(Clone, Debug)]
pub struct Unacknowledged {
    segment: Arc<Segment>,
    end_offset: u64,
}

impl Unacknowledged {
    /// Waits until all records through this one survive `kill -9`. After an error none of the
    /// records behind the acknowledged end counts once the log is rotated. Until then a recovery
    /// may find any number of them.
    pub fn wait(&self) -> Result<()> {
        self.segment.handle.wait(self.end_offset)
    }

    /// Number of the segment that has the records.
    #[must_use]
    pub fn segment(&self) -> FileNo {
        self.segment.no
    }
}

#[derive(Debug)]
struct Segment {
    no: FileNo,
    path: PathBuf,
    handle: Arc<dyn LogSync>,
    synced_through: AtomicU64,
    /// Whether the directory entry is durable, or why it will never be known to be.
    entry: Mutex<Result<bool>>,
}

impl Segment {
    fn sync(&self, fs: &dyn FileSystem) -> Result<u64> {
        let mut entry = self.entry.lock();
        if let Err(error) = &*entry {
            return Err(error.clone());
        }
        let offset = self.handle.sync()?;
        if !matches!(*entry, Ok(true)) {
            let done = fs.sync_dir(parent(&self.path));
            *entry = done.clone().map(|()| true);
            done?;
        }
        self.synced_through.fetch_max(offset, Ordering::Release);
        Ok(offset)
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[derive(Debug)]
struct SyncShared {
    fs: Arc<dyn FileSystem>,
    /// Held for the whole of a sync.
    leader: Mutex<()>,
    /// Segments that may have unsynced bytes, oldest first; the last one is open.
    segments: Mutex<VecDeque<Arc<Segment>>>,
    /// What the last sync that succeeded has reported.
    durable: Mutex<Option<Durable>>,
}

/// Makes the log durable, or has the device take it; a cheap handle that any thread may use.
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
    /// first, then the open one. Waits for a sync that is under way. An error says that
    /// nothing new is known to be durable.
    pub fn sync(&self) -> Result<Durable> {
        let _leader = self.shared.leader.lock();
        let segments: Vec<Arc<Segment>> = self.shared.segments.lock().iter().cloned().collect();
        let mut durable = Durable { segment: FileNo(0), offset: 0 };
        for (index, segment) in segments.iter().enumerate() {
            let offset = segment.sync(&*self.shared.fs)?;
            durable = Durable { segment: segment.no, offset };
            if index + 1 < segments.len() {
                self.drop_segment(segment.no);
            }
        }
        *self.shared.durable.lock() = Some(durable);
        Ok(durable)
    }

    /// What the last sync that succeeded has reported; `None` before the first.
    #[must_use]
    pub fn durable(&self) -> Option<Durable> {
        *self.shared.durable.lock()
    }

    /// Waits until the device has everything that was appended before this call; whether it
    /// survives power loss is open ([`LogSync::write_through`]).
    pub fn write_through(&self) -> Result<()> {
        let segments: Vec<Arc<Segment>> = self.shared.segments.lock().iter().cloned().collect();
        segments.iter().try_for_each(|segment| segment.handle.write_through().map(drop))
    }

    /// Every write of the segments before `no` lies durably elsewhere: they need no sync any
    /// more, and their errors do not count.
    pub fn forget_before(&self, no: FileNo) {
        let mut segments = self.shared.segments.lock();
        while segments.len() > 1 && segments.front().is_some_and(|segment| segment.no < no) {
            segments.pop_front();
        }
    }

    fn drop_segment(&self, no: FileNo) {
        let mut segments = self.shared.segments.lock();
        segments.retain(|segment| segment.no != no);
    }
}

/// The open segment; see the module.
#[derive(Debug)]
pub struct LogWriter {
    config: LogConfig,
    rng: Rng,
    log: Box<dyn LogFile>,
    segment: Arc<Segment>,
    incarnation: Epoch,
    seed: u32,
    len: u64,
    /// Why the segment takes no more appends.
    broken: Option<Error>,
    syncer: LogSyncer,
}

struct Opened {
    log: Box<dyn LogFile>,
    segment: Arc<Segment>,
    incarnation: Epoch,
}

impl LogWriter {
    /// Creates segment `no` at `path`. `previous` is where the log ended
    /// ([`super::RecoveredLog::previous`]), `None` for a new database. `no` must be larger than
    /// that of any earlier segment. `recycle` names an obsolete segment whose space is used again.
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
            broken: None,
            syncer: LogSyncer { shared, acknowledges_later },
        })
    }

    /// Appends one record. On return it survives `kill -9`, unless [`LogWriter::unacknowledged`]
    /// has something to wait for.
    #[inline]
    pub fn append(&mut self, entry: &Entry<'_>) -> Result<Appended> {
        let header = self.header(entry, self.len)?;
        self.push(&[&header, entry.payload])
    }

    /// Appends the records of a group in order, with as few calls to the file system as possible.
    /// On return all of them survive `kill -9`, unless [`LogWriter::unacknowledged`] has something
    /// to wait for. After an error none counts once the log is rotated: the next segment's header
    /// says that this one ended before them. Until then a recovery may find any number of them.
    pub fn append_many(&mut self, entries: &[Entry<'_>]) -> Result<Appended> {
        let start = self.len;
        let appended = self.append_groups(entries);
        if appended.is_err() {
            self.len = start;
        }
        appended
    }

    fn append_groups(&mut self, entries: &[Entry<'_>]) -> Result<Appended> {
        let mut appended = Appended { segment: self.segment.no, end_offset: self.len };
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

    #[inline]
    fn header(&self, entry: &Entry<'_>, offset: u64) -> Result<[u8; RECORD_HEADER_BYTES]> {
        if entry.payload.len() > PAYLOAD_BYTES_MAX {
            return Err(too_large(entry.payload.len()));
        }
        let header = RecordHeader {
            payload_crc: entry.payload_crc,
            payload_len: entry.payload.len() as u32,
            first_seq: entry.first_seq,
            kind: RecordType::Batch as u8,
            incarnation_low: self.incarnation.0 as u32,
            synced_through: self.segment.synced_through.load(Ordering::Relaxed) as u32,
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
        Ok(Appended { segment: self.segment.no, end_offset: self.len })
    }

    /// Appends a record without operations, after a sync, so that damage of the records before
    /// it is told from a torn tail. `seq` is larger than that of any operation. Nothing if the
    /// segment has no records.
    pub fn mark_synced(&mut self, seq: SeqNo) -> Result<()> {
        if self.len <= SEGMENT_HEADER_BYTES as u64 {
            return Ok(());
        }
        let empty = WriteBatch::new();
        let payload_crc = archipelago_base::checksum::crc(empty.data());
        let mark = Entry { first_seq: seq, payload: empty.data(), payload_crc };
        self.append(&mark).map(|_| ())
    }

    /// The records that were appended last, if the segment acknowledges them later.
    #[inline]
    #[must_use]
    pub fn unacknowledged(&self) -> Option<Unacknowledged> {
        self.syncer
            .acknowledges_later
            .then(|| Unacknowledged { segment: Arc::clone(&self.segment), end_offset: self.len })
    }

    /// Notes that the segment lost records that it took. It takes no more until it is rotated.
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
    #[inline]
    #[must_use]
    pub fn should_rotate(&self) -> bool {
        self.len >= self.config.segment_bytes
    }

    /// Closes the segment and goes on in segment `no` at `path`. Does not sync. After an error
    /// the writer takes no appends until a later rotation succeeds.
    pub fn rotate(&mut self, path: &Path, no: FileNo, recycle: Option<PathBuf>) -> Result<Closed> {
        if no <= self.segment.no {
            return Err(Error::invalid(format!(
                "log segment {no} cannot follow segment {}",
                self.segment.no
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
        self.syncer.shared.segments.lock().push_back(Arc::clone(&opened.segment));
        // The old log is dropped only now: what it mapped could be taken over by the new one.
        self.log = opened.log;
        self.segment = opened.segment;
        self.incarnation = opened.incarnation;
        self.seed = segment_seed(opened.incarnation);
        self.len = SEGMENT_HEADER_BYTES as u64;
        self.broken = None;
        Ok(closed)
    }

    /// Ends the finished segment with a record that names the next one. Without it, which a
    /// failure leaves, a recovery notices less, and nothing is lost.
    fn name_next(&mut self, next: FileNo) {
        let payload = next.0.to_le_bytes();
        let header = RecordHeader {
            payload_crc: archipelago_base::checksum::crc(&payload),
            payload_len: payload.len() as u32,
            first_seq: SeqNo::ZERO,
            kind: RecordType::End as u8,
            incarnation_low: self.incarnation.0 as u32,
            synced_through: self.segment.synced_through.load(Ordering::Relaxed) as u32,
        };
        let record = [&header.encode(self.seed, self.len)[..], &payload].concat();
        if let Err(error) = self.log.append_trailer(&record) {
            tracing::warn!(%error, "a closed log segment does not name the next one");
        }
    }

    /// Tells what is durable of the manifest now: the header of the next segment says it.
    pub fn note_manifest(&mut self, position: ManifestPosition) {
        self.config.manifest = position;
    }

    /// Ends the log: everything appended is in the segment's file (not synced). Appends fail
    /// from now on.
    pub fn finish(&mut self) -> Closed {
        let unfinished = self.log.finish().err();
        let name = self.segment.path.display();
        let error = Error::closed(format!("the log segment {name} is finished"));
        self.broken.get_or_insert(error);
        // Records behind the acknowledged end were never applied, so they must not count.
        let len = self.len.min(self.segment.handle.acknowledged());
        Closed { segment: SegmentRef { no: self.segment.no, len }, unfinished }
    }

    /// The handle that makes the log durable, now and after every rotation.
    #[must_use]
    pub fn syncer(&self) -> LogSyncer {
        self.syncer.clone()
    }

    /// The open segment and its length so far.
    #[must_use]
    pub fn position(&self) -> SegmentRef {
        SegmentRef { no: self.segment.no, len: self.len }
    }

    /// Bytes of the open segment that its file does not hold yet, so that they are not counted as
    /// occupied.
    #[must_use]
    pub fn unwritten_bytes(&self) -> u64 {
        self.log.unwritten_bytes()
    }

    /// Through which offset the open segment is known to be durable.
    #[must_use]
    pub fn synced_through(&self) -> u64 {
        self.segment.synced_through.load(Ordering::Acquire)
    }
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
    if no.0 > SEGMENT_NO_MAX {
        return Err(Error::invalid(format!("log segment number {no} is out of range")));
    }
    let incarnation = incarnation_of(no, rng.u32(..));
    let reused_len = recycle.as_deref().map_or(Ok(0), |path| fs.len(path))?;
    let options = LogOptions { incarnation, size_hint_bytes: config.segment_bytes, recycle };
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let mut log = fs.create_log(path, context, options)?;
    let header = SegmentHeader {
        incarnation,
        database_id: config.database_id,
        previous,
        reused_len,
        boot_id: fs.boot_id().unwrap_or_default(),
        manifest: config.manifest,
    };
    if let Err(error) = log.append(&[&header.encode()]) {
        // A segment without a header counts for nothing, and nobody else would remove it.
        drop(log);
        let _empty = fs.remove(path);
        return Err(error);
    }
    let segment = Arc::new(Segment {
        no,
        path: path.to_owned(),
        handle: log.sync_handle(),
        synced_through: AtomicU64::new(0),
        entry: Mutex::new(Ok(false)),
    });
    Ok(Opened { log, segment, incarnation })
}
