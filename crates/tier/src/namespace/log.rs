//! The log of the namespace on its home device, in generations.
//!
//! A generation is a file `names-NNNNNN.log` with a header, a snapshot and a mark, and a file
//! `names-NNNNNN.tail` with one record for each later change. A new generation is written and
//! synced under a temporary name and is then renamed, so that a file with its final name holds a
//! whole snapshot. The highest generation counts, and older ones are removed. Every open begins a
//! new generation, and so does a failed append.
//!
//! Records are appended through [`LogFile`]. An appended record survives `kill -9` immediately, and
//! power loss after a sync. Recovery stops at the first damaged record, which is the torn tail of a
//! power loss. If a later mark says that this place was durable, it is corruption instead.
//!
//! Thread-safety: [`super::Namespace`] owns the log under its lock, except for the sync handle.
//! Failure: a log that failed takes no more records.
//! Cost: an append is a copy into memory on a local device.

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
/// Format version of the namespace log and of the identity of a device.
pub(crate) const VERSION: u32 = 2;
/// Length of the header in bytes.
const HEADER_BYTES: usize = 40;
/// Length of a record's frame in bytes.
const FRAME_BYTES: usize = 8;
/// Largest length of a record in bytes. A longer one is damage.
const RECORD_BYTES_MAX: u32 = 64 << 20;

/// Context of all reads and writes of the log.
const CONTEXT: IoContext = IoContext::new(FileClass::Manifest, IoPurpose::ForegroundWrite);

/// The name of one generation: the id of its namespace and its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generation {
    pub(crate) id: [u8; 16],
    pub(crate) number: u64,
}

/// The open log of one generation.
#[derive(Debug)]
pub(crate) struct NamespaceLog {
    id: [u8; 16],
    generation: u64,
    path: PathBuf,
    log: Box<dyn LogFile>,
    sync: Arc<dyn LogSync>,
    /// Bytes before the first append to `log`: header and snapshot.
    start: u64,
    /// Whether an append or a sync failed.
    failed: bool,
    /// Buffer for the bytes of a record.
    scratch: Vec<u8>,
}

/// The content of a recovered log.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) id: [u8; 16],
    pub(crate) generation: u64,
    /// All records, each with its offset.
    pub(crate) records: Vec<(u64, Record)>,
    /// Offset from which on the physical files of records may not exist.
    pub(crate) names_through: u64,
    /// Number of bytes after the last whole record.
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

/// Appends a record with its frame to `out`. `offset` is the offset of the frame in the generation.
fn frame(id: &[u8; 16], offset: u64, record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + FRAME_BYTES, 0);
    record.encode(out);
    fill_frame(id, offset, &mut out[start..]);
}

/// Frames a payload that may not be a record, for fuzz targets.
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

/// Encodes the header, the snapshot and the mark of a generation.
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

/// Appends a record with its frame to the bytes of a generation.
#[cfg(test)]
pub(super) fn append_framed(id: &[u8; 16], record: &Record, bytes: &mut Vec<u8>) {
    frame(id, bytes.len() as u64, record, bytes);
}

/// Reads the highest generation in `dir`. `None` if there is none. The device may keep the end of a
/// log that was open when the process ended; `log_tail` returns it.
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
        // The tail was durable before the snapshot got its final name.
        return Err(Error::corrupt(
            &path,
            0,
            "the records after this snapshot of the namespace are missing",
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

/// Merges two views of the bytes after a snapshot that ends at `start`: the file alone, and the
/// file up to the place where its kept end begins, followed by that end. After `kill -9` the second
/// view is complete. After a power loss, each view may have bytes that the other lost: the kept end
/// may be old, so that the file has synced records after it. So each record comes from the view
/// that has it whole.
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
    // The bytes after the last whole record are a torn end, unless a mark in them says that this
    // place was durable.
    let from = merged.len();
    let says = |bytes: &&[u8]| (durable_behind(id, bytes, start + from as u64), bytes.len());
    merged.extend_from_slice(rest(from).into_iter().max_by_key(says).unwrap_or_default());
    merged
}

/// Decodes a generation: its snapshot, which must be whole, and the records that were appended
/// since. Errors: `Corrupt`; `Unsupported` for another format version.
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

/// Checks the header of a generation, and returns the id of its namespace.
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

/// Reads records until the first damaged one. Returns its offset, or the end.
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

/// Reads the record at the beginning of `bytes`. Returns it with the length of its frame.
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

/// The highest offset that any mark in `bytes` calls durable.
fn durable_behind(id: &[u8; 16], bytes: &[u8], start: u64) -> Option<u64> {
    let marks =
        (0..bytes.len()).filter_map(|at| match read_one(id, &bytes[at..], start + at as u64) {
            Some((Record::Mark { bytes_through, .. }, _)) => Some(bytes_through),
            _ => None,
        });
    marks.max()
}

impl NamespaceLog {
    /// Begins a generation in `dir` with the bytes of its snapshot ([`encode_generation`]), and
    /// removes all others. The generation survives power loss when this returns. After an error,
    /// `counts` says whether the generation may count despite the error. An older generation must
    /// then take no more records.
    pub(crate) fn begin(
        fs: &dyn FileSystem,
        dir: &Path,
        generation: Generation,
        snapshot: &[u8],
        counts: &mut bool,
    ) -> Result<Self> {
        let begun = Self::write(fs, dir, generation, snapshot, counts);
        if begun.is_err() && !*counts {
            // A half-written file may have taken the last blocks of the device. The tail file stays
            // if an earlier attempt may count, because it may belong to that attempt.
            let number = generation.number;
            let _gone = fs.remove(&dir.join(temporary_name(number)));
            if !fs.exists(&dir.join(file_name(number))).unwrap_or(true) {
                let _gone = fs.remove(&dir.join(tail_name(number)));
            }
        }
        begun
    }

    /// Writes, syncs and renames the files of a generation.
    fn write(
        fs: &dyn FileSystem,
        dir: &Path,
        generation: Generation,
        bytes: &[u8],
        counts: &mut bool,
    ) -> Result<Self> {
        let Generation { id, number: generation } = generation;
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
            // The other files belong to older generations, which no recovery reads.
            tracing::warn!(%error, "kept ends of older logs of the namespace could not be removed");
        }
        let start = bytes.len() as u64;
        let sync = log.sync_handle();
        Ok(Self { id, generation, path, log, sync, start, failed: false, scratch: Vec::new() })
    }

    /// Number of this generation.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Id of the namespace.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Bytes of the generation so far, which is the offset of the next record.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.log.len()
    }

    /// Bytes that were appended since the snapshot.
    pub(crate) fn appended(&self) -> u64 {
        self.log.len()
    }

    /// Whether a new generation must begin before the next append.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Appends a record, which survives `kill -9` when this returns. Returns the offset of its end.
    /// Errors: those of the home device; `Io` if the log failed before. After an error, the
    /// generation takes no more records, and may have this one or a part of it.
    pub(crate) fn append(&mut self, record: &Record) -> Result<u64> {
        if self.failed {
            return Err(Error::new(ErrorKind::Io, "the namespace's log failed before"));
        }
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

    /// Handle that syncs the log without the lock, and the offset from which the handle counts.
    pub(crate) fn sync_handle(&self) -> (Arc<dyn LogSync>, u64) {
        (Arc::clone(&self.sync), self.start)
    }

    /// Notes that a sync failed, so that the log takes no more records.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Ends the log in order.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.log.finish()
    }
}

/// Removes the files of earlier generations. A file that stays is harmless, because the highest
/// generation counts.
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
