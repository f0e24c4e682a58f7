//! Durability marks: evidence, outside the manifest, of what was durable.
//!
//! A manifest that lost its end looks like one whose last edits were never written. So each
//! manifest `MANIFEST-NNNNNN` has a second file, `MARK-NNNNNN`. It says through which offset the
//! manifest was durable, and which log segment was durable through which offset. The header of
//! every log segment also says how far the manifest was durable
//! ([`crate::wal::SegmentHeader::manifest`]). A recovery gathers both ([`Evidence::gather`]) and
//! refuses a manifest or a log that has less.
//!
//! [`Marks`] writes the file. The manifest ([`super::VersionSet`]) and the threads that sync the
//! log share it. `docs/formats/manifest.md` describes the bytes of the file.
//!
//! Invariants:
//! 1. A mark is written only after the bytes that it claims have been synced. So every part of the
//!    file that survives is true, in whichever order its pages reach the device.
//! 2. A mark file is never synced and may be lost, cut or damaged. Then it claims nothing.
//! 3. `MARK-N` is created only after `CURRENT` names `MANIFEST-N` durably. So a mark of a manifest
//!    proves that no older manifest is the current one.
//! 4. Numbers of manifests are never used again. A checkpoint has no log segment of the original,
//!    whose header would name one of the original's manifests.
//!
//! Thread-safety: any thread may call any method of [`Marks`]; its lock is the last one taken.
//! Failure: a mark that cannot be written is logged and ends the file. The next manifest begins a
//! new one.
//! Cost: one small unsynced write for each edit of the manifest, and one for the first sync of each
//! log segment.

use std::path::{Path, PathBuf};

use archipelago_base::checksum::{crc, crc_append};
use archipelago_base::codec::{Reader, put_u32, put_u64};
use archipelago_base::{Error, ErrorKind, FileNo, Result};
use archipelago_env::{CreateOptions, FileSystem, IoContext, IoPurpose, WritableFile};
use parking_lot::Mutex;

use crate::file_meta::{log_name, manifest_name, mark_name};
use crate::manifest::file_number;
use crate::wal::{ManifestPosition, read_header};

const MAGIC: &[u8; 8] = b"ARCHMARK";
/// Version of the format of a mark file.
pub const MARK_FORMAT_VERSION: u32 = 1;
/// Bytes of the header of a mark file.
pub const MARK_HEADER_BYTES: usize = 40;
/// Bytes of one record of a mark file.
pub const MARK_RECORD_BYTES: usize = 24;

const KIND_MANIFEST: u32 = 1;
const KIND_LOG: u32 = 2;

/// Claim of one record of a mark file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The manifest of the mark file was durable.
    Manifest {
        /// Offset before which every byte was durable.
        bytes: u64,
        /// Number of edits before that offset, without the snapshot.
        edits: u64,
    },
    /// A log segment and its directory entry were durable.
    Log(LogMark),
}

/// A log segment that was durable up to an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogMark {
    /// Number of the segment.
    pub no: FileNo,
    /// Offset before which every byte was durable.
    pub bytes: u64,
}

/// The database and the manifest that a mark file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkHeader {
    /// Random id of the database.
    pub db_id: [u8; 16],
    /// Number of the manifest, as in the names of both files.
    pub manifest: FileNo,
}

impl MarkHeader {
    /// Encodes the header of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, MARK_FORMAT_VERSION);
        put_u32(&mut out, 0);
        out.extend_from_slice(&self.db_id);
        put_u64(&mut out, self.manifest.0);
        let sum = crc(&out);
        out[12..16].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes the header of a file; `None` if it is not whole. `Unsupported` for another version.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(header) = bytes.get(..MARK_HEADER_BYTES) else { return Ok(None) };
        let mut summed = header.to_vec();
        summed[12..16].fill(0);
        let mut reader = Reader::new(header);
        let magic = reader.take(MAGIC.len());
        let (version, stored) = (reader.u32(), reader.u32());
        if magic != Some(MAGIC) || stored != Some(crc(&summed)) {
            return Ok(None);
        }
        if version != Some(MARK_FORMAT_VERSION) {
            return Err(Error::unsupported(format!(
                "mark file of format version {}; this program reads version \
                 {MARK_FORMAT_VERSION} only",
                version.unwrap_or_default()
            )));
        }
        let db_id = reader.take(16).and_then(|id| id.try_into().ok());
        Ok(db_id.zip(reader.u64()).map(|(db_id, no)| Self { db_id, manifest: FileNo(no) }))
    }

    /// The checksum of a record at `offset` of this file, over the record's bytes after the
    /// checksum.
    fn record_crc(&self, offset: u64, record: &[u8]) -> u32 {
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&self.db_id);
        seed[16..24].copy_from_slice(&self.manifest.0.to_le_bytes());
        seed[24..].copy_from_slice(&offset.to_le_bytes());
        crc_append(crc(&seed), record)
    }

    /// Encodes a record at `offset` of the file.
    #[must_use]
    pub fn encode_record(&self, offset: u64, mark: &Mark) -> [u8; MARK_RECORD_BYTES] {
        let (kind, first, second) = match *mark {
            Mark::Manifest { bytes, edits } => (KIND_MANIFEST, bytes, edits),
            Mark::Log(LogMark { no, bytes }) => (KIND_LOG, no.0, bytes),
        };
        let mut record = [0; MARK_RECORD_BYTES];
        record[4..8].copy_from_slice(&kind.to_le_bytes());
        record[8..16].copy_from_slice(&first.to_le_bytes());
        record[16..24].copy_from_slice(&second.to_le_bytes());
        let sum = self.record_crc(offset, &record[4..]);
        record[..4].copy_from_slice(&sum.to_le_bytes());
        record
    }

    fn decode_record(&self, offset: u64, record: &[u8]) -> Option<Mark> {
        let mut reader = Reader::new(record);
        let (stored, kind) = (reader.u32()?, reader.u32()?);
        let (first, second) = (reader.u64()?, reader.u64()?);
        if self.record_crc(offset, record.get(4..)?) != stored {
            return None;
        }
        match kind {
            KIND_MANIFEST => Some(Mark::Manifest { bytes: first, edits: second }),
            KIND_LOG => Some(Mark::Log(LogMark { no: FileNo(first), bytes: second })),
            _ => None,
        }
    }
}

/// Decodes the header and every whole record of a mark file. A record that is not whole claims
/// nothing, and later records still count. `None` without a whole header.
pub fn decode_marks(bytes: &[u8]) -> Result<Option<(MarkHeader, Vec<Mark>)>> {
    let Some(header) = MarkHeader::decode(bytes)? else { return Ok(None) };
    let records = bytes[MARK_HEADER_BYTES..].chunks_exact(MARK_RECORD_BYTES);
    let offsets = (MARK_HEADER_BYTES as u64..).step_by(MARK_RECORD_BYTES);
    let marks = offsets.zip(records).filter_map(|(at, record)| header.decode_record(at, record));
    Ok(Some((header, marks.collect())))
}

/// Writes the marks of a database; any thread may call its methods.
#[derive(Debug, Default)]
pub struct Marks(Mutex<MarkState>);

#[derive(Debug, Default)]
struct MarkState {
    /// The mark file of the current manifest; `None` before the first edit and after a failure.
    file: Option<(MarkHeader, Box<dyn WritableFile>)>,
    position: ManifestPosition,
    log: Option<LogMark>,
}

impl MarkState {
    fn append(&mut self, marks: &[Mark]) {
        let Some((header, file)) = &mut self.file else { return };
        let mut bytes = Vec::with_capacity(marks.len() * MARK_RECORD_BYTES);
        for mark in marks {
            let offset = file.len() + bytes.len() as u64;
            bytes.extend_from_slice(&header.encode_record(offset, mark));
        }
        if let Err(error) = file.append(&bytes).and_then(|()| file.submit()) {
            tracing::warn!(%error, "a durability mark could not be written; nothing is lost");
            self.file = None;
        }
    }
}

impl Marks {
    /// Begins the mark file of a manifest in `dir`. `CURRENT` must name the manifest of `header`
    /// durably, and its first `bytes` bytes must be durable.
    pub(crate) fn begin(&self, fs: &dyn FileSystem, dir: &Path, header: MarkHeader, bytes: u64) {
        let path = dir.join(mark_name(header.manifest));
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        let created = fs.create(&path, context, CreateOptions::default()).and_then(|mut file| {
            file.append(&header.encode())?;
            Ok(file)
        });
        let mut state = self.0.lock();
        state.position = ManifestPosition { no: header.manifest, bytes };
        state.file = None;
        match created {
            Ok(file) => state.file = Some((header, file)),
            Err(error) => tracing::warn!(%error, "a mark file could not be created"),
        }
        let log = state.log.map(Mark::Log);
        let marks = [Some(Mark::Manifest { bytes, edits: 0 }), log];
        state.append(&marks.into_iter().flatten().collect::<Vec<_>>());
    }

    /// Notes that the first `bytes` bytes of the current manifest, with `edits` edits, are durable.
    pub(crate) fn manifest(&self, bytes: u64, edits: u64) {
        let mut state = self.0.lock();
        state.position.bytes = bytes;
        state.append(&[Mark::Manifest { bytes, edits }]);
    }

    /// Notes that a log segment and its directory entry are durable. Writes nothing if that was
    /// known.
    pub(crate) fn log(&self, mark: LogMark) {
        let mut state = self.0.lock();
        if state.log < Some(mark) {
            state.log = Some(mark);
            state.append(&[Mark::Log(mark)]);
        }
    }

    /// The durable position in the current manifest, as far as is known; no claim before the first
    /// edit.
    #[must_use]
    pub fn position(&self) -> ManifestPosition {
        self.0.lock().position
    }
}

/// A claim about a manifest and the file that makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ManifestClaim {
    position: ManifestPosition,
    /// Number of edits, if the file says it.
    edits: Option<u64>,
    source: PathBuf,
}

/// Everything in a directory that proves what was durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    manifest: Option<ManifestClaim>,
    log: Option<(LogMark, PathBuf)>,
}

/// State of the manifest as a recovery has read it, to compare with the evidence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadManifest {
    /// Number of the manifest that `CURRENT` names.
    pub(crate) no: FileNo,
    /// Offset after the last whole record.
    pub(crate) bytes: u64,
    /// Number of edits that were read, without marks.
    pub(crate) edits: u64,
}

impl Evidence {
    /// Gathers the claims of the mark files and of the headers of log segments in `dir` about the
    /// database `db_id`. A file that vanishes meanwhile, is damaged, or cannot be read claims
    /// nothing, because it may be a segment that nothing needs.
    ///
    /// Call it **before** the manifest is read, so that a writer of the same database cannot make
    /// the evidence newer than the manifest. Errors: `Unsupported` for a mark file or a log segment
    /// of another version; `Io` if the directory cannot be listed.
    pub fn gather(fs: &dyn FileSystem, dir: &Path, db_id: &[u8; 16]) -> Result<Self> {
        let mut found = Self::default();
        for entry in fs.list(dir)? {
            let path = dir.join(&entry.name);
            let Some(no) = file_number(&entry.name) else { continue };
            let added = if entry.name == mark_name(no) {
                found.add_marks(fs, &path, no, db_id)
            } else if entry.name == log_name(no) {
                found.add_segment(fs, &path, db_id)
            } else {
                continue;
            };
            match added {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::Io => {
                    tracing::warn!(%error, "a file that may prove a loss cannot be read");
                }
                added => added?,
            }
        }
        Ok(found)
    }

    fn add_marks(
        &mut self,
        fs: &dyn FileSystem,
        path: &Path,
        no: FileNo,
        db_id: &[u8; 16],
    ) -> Result<()> {
        let bytes = fs.read(path, IoContext::manifest(IoPurpose::Recovery))?;
        let decoded = decode_marks(&bytes).map_err(|error| error.context_at(path.display()))?;
        let Some((header, marks)) = decoded else { return Ok(()) };
        if header != (MarkHeader { db_id: *db_id, manifest: no }) {
            return Ok(());
        }
        for mark in marks {
            match mark {
                Mark::Manifest { bytes, edits } => self.claim(ManifestClaim {
                    position: ManifestPosition { no, bytes },
                    edits: Some(edits),
                    source: path.to_owned(),
                }),
                Mark::Log(mark) if self.log.as_ref().is_none_or(|(known, _)| *known < mark) => {
                    self.log = Some((mark, path.to_owned()));
                }
                Mark::Log(_) => {}
            }
        }
        Ok(())
    }

    fn add_segment(&mut self, fs: &dyn FileSystem, path: &Path, db_id: &[u8; 16]) -> Result<()> {
        let Some(header) = read_header(fs, path)? else { return Ok(()) };
        if header.database_id == *db_id && header.manifest.no > FileNo(0) {
            self.claim(ManifestClaim {
                position: header.manifest,
                edits: None,
                source: path.to_owned(),
            });
        }
        Ok(())
    }

    fn claim(&mut self, claim: ManifestClaim) {
        let is_better =
            |known: &ManifestClaim| (known.position, known.edits) < (claim.position, claim.edits);
        if self.manifest.as_ref().is_none_or(is_better) {
            self.manifest = Some(claim);
        }
    }

    /// Compares `read` with the evidence. `Corrupt` if a part of the manifest in `dir` that was
    /// durable is missing. The error names the missing part and says what to do.
    pub(crate) fn check(&self, dir: &Path, read: &ReadManifest) -> Result<()> {
        let Some(claim) = &self.manifest else { return Ok(()) };
        let (position, source) = (claim.position, claim.source.display());
        let path = dir.join(manifest_name(read.no));
        if position.no > read.no {
            let newer = manifest_name(position.no);
            return Err(Error::corrupt(
                &path,
                0,
                format_args!(
                    "CURRENT names this manifest, but {source} proves that the newer {newer} was \
                     the current one: the edits since then are missing. {ADVICE}"
                ),
            ));
        }
        if position.no < read.no || position.bytes <= read.bytes {
            return Ok(());
        }
        let missing = match claim.edits {
            Some(edits) => format!("{} edits", edits.saturating_sub(read.edits)),
            None => format!("{} bytes of edits", position.bytes - read.bytes),
        };
        Err(Error::corrupt(
            &path,
            read.bytes,
            format_args!(
                "the manifest ends here, but {source} proves that it was durable through offset \
                 {}: {missing} are missing. {ADVICE}",
                position.bytes
            ),
        ))
    }

    /// The newest log segment that is known to have been durable.
    #[must_use]
    pub fn log(&self) -> Option<LogMark> {
        self.log.as_ref().map(|(mark, _)| *mark)
    }

    /// Compares the log with the evidence. `Corrupt` if the log in `dir`, whose segments from
    /// `floor` on are needed, has lost durable bytes. `whole_through` returns the offset through
    /// which a segment was read; `None` for one that was not read.
    pub(crate) fn check_log(
        &self,
        dir: &Path,
        floor: FileNo,
        whole_through: impl Fn(FileNo) -> Option<u64>,
    ) -> Result<()> {
        let Some((mark, source)) = &self.log else { return Ok(()) };
        let through = whole_through(mark.no);
        if mark.no < floor || through.is_some_and(|through| through >= mark.bytes) {
            return Ok(());
        }
        let what = match through {
            None => "the log segment is missing or was not reached",
            Some(_) => "the log segment ends here",
        };
        Err(Error::corrupt(
            &dir.join(log_name(mark.no)),
            through.unwrap_or(0),
            format_args!(
                "{what}, but {} proves that it was durable through offset {}. {ADVICE}",
                source.display(),
                mark.bytes
            ),
        ))
    }
}

/// Advice to an operator whose database has lost durable data.
const ADVICE: &str = "Nothing was changed. Restore the database from a checkpoint or a replica, or \
                      save what is left with `archipelago db repair`";
