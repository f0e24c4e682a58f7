//! The namespace on its home device: a log of records in generations.
//!
//! A generation is one file, `names-NNNNNN.log`: a header, a snapshot, a mark, then one record for
//! each change. A new generation is written and synced under a temporary name and then renamed, so
//! that a file with its real name has a whole snapshot. The highest generation counts; older ones
//! are removed. Every open begins a new one, and so does a failed append (a log that failed takes
//! no more).
//!
//! Records are appended through [`LogFile`]: what was appended survives `kill -9` at once and power
//! loss after a sync. Reading stops at the first record that is damaged; that is the torn tail of a
//! power loss, unless a later mark says that this place was durable, which is corruption.
//!
//! Owned by [`super::Namespace`], under its lock, but for the sync handle.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::checksum::{block_crc, crc};
use archipelago_base::codec::{Reader, put_u32, put_u64};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions, LogSync,
    LogTail,
};

use super::record::Record;

/// First bytes of a namespace log.
const MAGIC: &[u8; 8] = b"ARCHTIER";
/// Version of the namespace log and of the device's identity.
pub(crate) const VERSION: u32 = 1;
/// Bytes of the header.
const HEADER_BYTES: usize = 40;
/// Bytes of a record's frame.
const FRAME_BYTES: usize = 8;
/// A longer record is damage.
const RECORD_BYTES_MAX: u32 = 64 << 20;

/// Who reads and writes it.
const CONTEXT: IoContext = IoContext::new(FileClass::Manifest, IoPurpose::ForegroundWrite);

/// The open log.
#[derive(Debug)]
pub(crate) struct NamespaceLog {
    id: [u8; 16],
    generation: u64,
    path: PathBuf,
    log: Box<dyn LogFile>,
    sync: Arc<dyn LogSync>,
    /// Bytes before the first append to `log`: header and snapshot.
    start: u64,
    failed: bool,
    scratch: Vec<u8>,
}

/// What a log held.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) id: [u8; 16],
    pub(crate) generation: u64,
    /// Every record and where it began.
    pub(crate) records: Vec<(u64, Record)>,
    /// Physical files of records from here on may never have come to be.
    pub(crate) names_through: u64,
    /// Bytes behind the last whole record.
    pub(crate) torn_bytes: u64,
}

fn file_name(generation: u64) -> String {
    format!("names-{generation:06}.log")
}

fn tail_name(generation: u64) -> String {
    format!("names-{generation:06}.tail")
}

fn temporary_name(generation: u64) -> String {
    format!("{}.tmp", file_name(generation))
}

fn generation_of(name: &str) -> Option<u64> {
    name.strip_prefix("names-")?.strip_suffix(".log")?.parse().ok()
}

fn frame(id: &[u8; 16], offset: u64, record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + FRAME_BYTES, 0);
    record.encode(out);
    fill_frame(id, offset, &mut out[start..]);
}

/// The same for a payload that may be no record.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn frame_payload(id: &[u8; 16], offset: u64, payload: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + FRAME_BYTES, 0);
    out.extend_from_slice(payload);
    fill_frame(id, offset, &mut out[start..]);
}

fn fill_frame(id: &[u8; 16], offset: u64, framed: &mut [u8]) {
    let (frame, payload) = framed.split_at_mut(FRAME_BYTES);
    frame[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    frame[4..].copy_from_slice(&block_crc(id, offset, payload).to_le_bytes());
}

/// The header and the snapshot of a generation, with its mark.
pub(crate) fn encode_generation(
    id: &[u8; 16],
    generation: u64,
    records: &[Record],
    next: u64,
) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    put_u32(&mut bytes, VERSION);
    put_u64(&mut bytes, generation);
    bytes.extend_from_slice(id);
    let sum = crc(&bytes);
    put_u32(&mut bytes, sum);
    for record in records {
        let offset = bytes.len() as u64;
        frame(id, offset, record, &mut bytes);
    }
    let through = bytes.len() as u64;
    let mark = Record::Mark { bytes_through: through, names_through: through, next };
    frame(id, through, &mark, &mut bytes);
    bytes
}

/// Appends a framed record to a generation's bytes.
#[cfg(test)]
pub(super) fn append_framed(id: &[u8; 16], record: &Record, bytes: &mut Vec<u8>) {
    frame(id, bytes.len() as u64, record, bytes);
}

/// Reads the highest generation in `dir`; `None` if there is none. `log_tail` gives what the
/// device keeps of a log that was open when the process ended.
pub(crate) fn recover(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Recovered>> {
    if !fs.exists(dir)? {
        return Ok(None);
    }
    let generations = fs.list(dir)?.into_iter().filter_map(|entry| generation_of(&entry.name));
    let Some(generation) = generations.max() else { return Ok(None) };
    let path = dir.join(file_name(generation));
    let snapshot = fs.read(&path, CONTEXT)?;
    let tail_path = dir.join(tail_name(generation));
    if !fs.exists(&tail_path)? {
        // It was durable before the snapshot got its name.
        return Err(Error::corrupt(
            &path,
            0,
            "the records behind this snapshot of the namespace are missing",
        )
        .context_at(tail_path.display()));
    }
    let mut tail = fs.read(&tail_path, CONTEXT)?;
    if let Some(kept) = fs.log_tail(&tail_path, Epoch(generation))? {
        let id = check_header(&path, generation, &snapshot)?;
        tail = merge(&id, snapshot.len() as u64, &tail, &kept);
    }
    decode(&path, generation, &snapshot, &tail).map(Some)
}

/// The bytes behind a snapshot that ends at `start`, from two views of them: the file alone, and
/// the file up to where its end was kept elsewhere, followed by that end. After `kill -9` the
/// second is the whole truth. After power loss either may hold what the other lost: what was kept
/// elsewhere may be of long before, so that the file has synced records behind it. So each record
/// is taken of the view that has it whole.
pub(super) fn merge(id: &[u8; 16], start: u64, file: &[u8], kept: &LogTail) -> Vec<u8> {
    let before = usize::try_from(kept.offset).ok().and_then(|at| file.get(..at));
    let Some(before) = before else { return file.to_vec() };
    let stitched = [before, &kept.bytes].concat();
    let mut merged = Vec::new();
    let rest = |from: usize| [&stitched[..], file].map(|view| view.get(from..).unwrap_or_default());
    let whole = |from: usize| {
        let record = |bytes: &[u8]| read_one(id, bytes, start + from as u64).map(|(_, len)| len);
        rest(from).into_iter().find_map(|bytes| Some(&bytes[..record(bytes)?]))
    };
    while let Some(record) = whole(merged.len()) {
        merged.extend_from_slice(record);
    }
    // What comes behind the last whole record is a torn end, unless a mark in it says that this was
    // durable.
    let from = merged.len();
    let says = |bytes: &&[u8]| (durable_behind(id, bytes, start + from as u64), bytes.len());
    merged.extend_from_slice(rest(from).into_iter().max_by_key(says).unwrap_or_default());
    merged
}

/// Reads a generation: its own file, which is whole, and the records appended since.
pub(crate) fn decode(
    path: &Path,
    generation: u64,
    snapshot: &[u8],
    tail: &[u8],
) -> Result<Recovered> {
    let id = check_header(path, generation, snapshot)?;
    let mut recovered =
        Recovered { id, generation, records: Vec::new(), names_through: 0, torn_bytes: 0 };
    let end = read_records(&mut recovered, &snapshot[HEADER_BYTES..], HEADER_BYTES as u64);
    if end != snapshot.len() as u64 || recovered.names_through == 0 {
        return Err(Error::corrupt(path, end, "the snapshot of the namespace is damaged"));
    }
    let start = snapshot.len() as u64;
    let end = read_records(&mut recovered, tail, start);
    recovered.torn_bytes = start + tail.len() as u64 - end;
    let behind = &tail[(end - start) as usize..];
    if let Some(through) = durable_behind(&id, behind, end)
        && through > end
    {
        return Err(Error::corrupt(path, end, "a record of the namespace is damaged"));
    }
    Ok(recovered)
}

fn check_header(path: &Path, generation: u64, bytes: &[u8]) -> Result<[u8; 16]> {
    let foreign = || {
        let text = format!("{} is not the log of a tier namespace", path.display());
        Error::new(ErrorKind::Corrupt, text)
    };
    let mut reader = Reader::new(bytes);
    if reader.take(MAGIC.len()) != Some(MAGIC) {
        return Err(foreign());
    }
    let version = reader.u32().ok_or_else(foreign)?;
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "{}: tier namespace of format version {version}; this program reads version {VERSION} only",
            path.display()
        )));
    }
    let found = reader.u64().ok_or_else(foreign)?;
    let id: [u8; 16] = reader.take(16).and_then(|id| id.try_into().ok()).ok_or_else(foreign)?;
    let sum = crc(&bytes[..reader.position()]);
    if reader.u32() != Some(sum) || found != generation {
        return Err(Error::corrupt(path, 0, "the header of the namespace is damaged"));
    }
    Ok(id)
}

/// Reads records until one is damaged; where that is (or the end).
fn read_records(into: &mut Recovered, bytes: &[u8], start: u64) -> u64 {
    let mut at = 0;
    while let Some((record, len)) = read_one(&into.id, &bytes[at..], start + at as u64) {
        if let Record::Mark { names_through, .. } = &record {
            into.names_through = into.names_through.max(*names_through);
        }
        into.records.push((start + at as u64, record));
        at += len;
    }
    start + at as u64
}

fn read_one(id: &[u8; 16], bytes: &[u8], offset: u64) -> Option<(Record, usize)> {
    let mut reader = Reader::new(bytes);
    let (len, sum) = (reader.u32()?, reader.u32()?);
    if len > RECORD_BYTES_MAX {
        return None;
    }
    let payload = reader.take(len as usize)?;
    if block_crc(id, offset, payload) != sum {
        return None;
    }
    Some((Record::decode(payload)?, reader.position()))
}

/// The highest offset that a mark anywhere in `bytes` calls durable.
fn durable_behind(id: &[u8; 16], bytes: &[u8], start: u64) -> Option<u64> {
    let marks =
        (0..bytes.len()).filter_map(|at| match read_one(id, &bytes[at..], start + at as u64) {
            Some((Record::Mark { bytes_through, .. }, _)) => Some(bytes_through),
            _ => None,
        });
    marks.max()
}

impl NamespaceLog {
    /// Begins generation `generation` in `dir` with a snapshot, and removes all others. On return
    /// it survives power loss. After an error `counts` says whether it may be the one that counts
    /// all the same: then nothing may be acknowledged by an older one any more.
    pub(crate) fn begin(
        fs: &dyn FileSystem,
        dir: &Path,
        (id, generation): ([u8; 16], u64),
        (records, next): (&[Record], u64),
        counts: &mut bool,
    ) -> Result<Self> {
        let bytes = encode_generation(&id, generation, records, next);
        let begun = Self::write(fs, dir, (id, generation), &bytes, counts);
        if begun.is_err() && !*counts {
            // What is half written may have taken the last blocks. The tail stays if an earlier
            // attempt may count, whose it may be.
            let _gone = fs.remove(&dir.join(temporary_name(generation)));
            if !fs.exists(&dir.join(file_name(generation))).unwrap_or(true) {
                let _gone = fs.remove(&dir.join(tail_name(generation)));
            }
        }
        begun
    }

    fn write(
        fs: &dyn FileSystem,
        dir: &Path,
        (id, generation): ([u8; 16], u64),
        bytes: &[u8],
        counts: &mut bool,
    ) -> Result<Self> {
        let path = dir.join(file_name(generation));
        let temporary = dir.join(temporary_name(generation));
        let mut file = fs.create(&temporary, CONTEXT, CreateOptions::default())?;
        file.append(bytes)?;
        file.sync()?;
        drop(file);
        let tail = dir.join(tail_name(generation));
        let options =
            LogOptions { incarnation: Epoch(generation), size_hint_bytes: 0, recycle: None };
        let log = fs.create_log(&tail, CONTEXT, options)?;
        fs.sync_dir(dir)?;
        *counts = true;
        fs.rename(&temporary, &path)?;
        fs.sync_dir(dir)?;
        remove_others(fs, dir, generation);
        if let Err(error) = fs.clear_log_tails(dir) {
            // They are of older generations, which nobody asks for.
            tracing::warn!(%error, "what older namespaces kept elsewhere stays");
        }
        let start = bytes.len() as u64;
        let sync = log.sync_handle();
        Ok(Self { id, generation, path, log, sync, start, failed: false, scratch: Vec::new() })
    }

    /// Which generation this is.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The namespace's id.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Bytes of the generation so far: the offset of the next record.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.log.len()
    }

    /// Bytes appended since the snapshot.
    pub(crate) fn appended(&self) -> u64 {
        self.log.len()
    }

    /// Whether a new generation has to be begun before the next append.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Appends a record: it survives `kill -9` when this returns. Returns where it ends. After an
    /// error the generation takes no more.
    pub(crate) fn append(&mut self, record: &Record) -> Result<u64> {
        let offset = self.end();
        self.scratch.clear();
        frame(&self.id, offset, record, &mut self.scratch);
        match self.log.append(&[&self.scratch]) {
            Ok(_) => Ok(self.end()),
            Err(error) => {
                self.failed = true;
                Err(error.context_at(format!("namespace {}", self.path.display())))
            }
        }
    }

    /// What syncs the log, without a lock: the handle and the offset that its own counts from.
    pub(crate) fn sync_handle(&self) -> (Arc<dyn LogSync>, u64) {
        (Arc::clone(&self.sync), self.start)
    }

    /// Takes no more appends: a sync failed.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Ends the log in order.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.log.finish()
    }
}

/// Removes what earlier generations left. What stays is harmless: the highest one counts.
fn remove_others(fs: &dyn FileSystem, dir: &Path, generation: u64) {
    let keep = [file_name(generation), tail_name(generation)];
    let Ok(entries) = fs.list(dir) else { return };
    for entry in entries {
        if entry.name.starts_with("names-") && !keep.contains(&entry.name) {
            let path = dir.join(&entry.name);
            if let Err(error) = fs.remove(&path) {
                tracing::warn!(%error, "an old generation of the namespace could not be removed");
            }
        }
    }
}
