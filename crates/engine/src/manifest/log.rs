//! The manifest file: checksummed records, appended and synced one by one.
//!
//! Bytes: records of `crc32c u32 | length u32 | payload`, little-endian. The checksum covers the
//! manifest's number, the record's offset, the length and the payload. So a record from another
//! place does not pass. Record 0 is the header ([`Header`]), record 1 a full snapshot (an edit that
//! starts from nothing), and every later one an edit.
//!
//! The end of the file: an edit is acknowledged once its record is synced. After it, a *mark*
//! ([`Change::Synced`]) is appended, which need not be synced. So a record that is cut off or
//! damaged, with nothing valid after it, was never acknowledged, or is a mark whose loss loses
//! nothing. Recovery ignores it. Damage with a valid record after it is corruption. So the mark
//! after the last acknowledged edit reveals a flipped bit in that edit. Evidence in other files
//! reveals an end that is missing altogether ([`super::mark`]).
//!
//! Thread-safety: none; [`crate::manifest::VersionSet`] owns the writer. Cost: an append is one
//! write, one sync and one small write.

use std::path::{Path, PathBuf};

use archipelago_base::checksum::{crc, crc_append};
use archipelago_base::codec::{Reader, put_u32, put_u64};
use archipelago_base::{Error, FileNo, Result};
use archipelago_env::{CreateOptions, FileSystem, IoContext, IoPurpose, WritableFile};

use crate::file_meta::manifest_name;
use crate::manifest::edit::{Change, VersionEdit};
use crate::manifest::{FORMAT_VERSION, damaged};

/// First bytes of the header's payload.
pub const MAGIC: &[u8; 8] = b"ARCHMANI";
/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: usize = 8;

/// Content of record 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Random id of the database.
    pub db_id: [u8; 16],
    /// Number of the manifest, as in its name.
    pub no: FileNo,
}

impl Header {
    /// Encodes the payload of the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, FORMAT_VERSION);
        out.extend_from_slice(&self.db_id);
        put_u64(&mut out, self.no.0);
        out
    }

    /// Decodes the payload of a header. `Unsupported` for another format version, `Corrupt` for
    /// damage.
    pub fn decode(payload: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(payload);
        if reader.take(MAGIC.len()) != Some(MAGIC) {
            return Err(damaged("header: not a manifest of Archipelago"));
        }
        let version = reader.u32().ok_or_else(|| damaged("header: cut off"))?;
        if version != FORMAT_VERSION {
            return Err(Error::unsupported(format!(
                "manifest of format version {version}; this program reads version \
                 {FORMAT_VERSION} only"
            )));
        }
        let id = reader.take(16).and_then(|id| id.try_into().ok());
        match (id, reader.u64(), reader.is_empty()) {
            (Some(db_id), Some(no), true) => Ok(Self { db_id, no: FileNo(no) }),
            _ => Err(damaged("header: malformed")),
        }
    }
}

fn record_crc(no: FileNo, offset: u64, payload: &[u8]) -> u32 {
    let mut seed = [0; 20];
    seed[..8].copy_from_slice(&no.0.to_le_bytes());
    seed[8..16].copy_from_slice(&offset.to_le_bytes());
    seed[16..].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    crc_append(crc(&seed), payload)
}

/// Appends the record of `payload` at `offset` of manifest `no`.
pub fn put_record(out: &mut Vec<u8>, no: FileNo, offset: u64, payload: &[u8]) -> Result<()> {
    let len = u32::try_from(payload.len())
        .map_err(|_| Error::invalid("a manifest edit of 4 GiB or more"))?;
    put_u32(out, record_crc(no, offset, payload));
    put_u32(out, len);
    out.extend_from_slice(payload);
    Ok(())
}

/// Appends records to a manifest.
#[derive(Debug)]
pub struct ManifestWriter {
    file: Box<dyn WritableFile>,
    no: FileNo,
    /// Length through which the file is durable.
    durable: u64,
}

impl ManifestWriter {
    /// Creates manifest `header.no` in `dir` with a header and `snapshot`. The file and its
    /// directory entry are durable on return. `CURRENT` does not name it yet.
    pub fn create(
        fs: &dyn FileSystem,
        dir: &Path,
        header: &Header,
        snapshot: &VersionEdit,
        purpose: IoPurpose,
    ) -> Result<Self> {
        let path = dir.join(manifest_name(header.no));
        let file = fs.create(&path, IoContext::manifest(purpose), CreateOptions::default())?;
        let mut writer = Self { file, no: header.no, durable: 0 };
        let mut bytes = Vec::new();
        put_record(&mut bytes, header.no, 0, &header.encode())?;
        let offset = bytes.len() as u64;
        put_record(&mut bytes, header.no, offset, &snapshot.encode()?)?;
        writer.file.append(&bytes)?;
        writer.file.sync()?;
        writer.durable = writer.file.len();
        writer.mark()?;
        fs.sync_dir(dir)?;
        Ok(writer)
    }

    /// Appends `edit`, which is durable on return. After an error the end of the file is unknown,
    /// and the writer must not be used any more.
    pub fn append(&mut self, edit: &VersionEdit) -> Result<()> {
        let mut record = Vec::new();
        put_record(&mut record, self.no, self.file.len(), &edit.encode()?)?;
        self.file.append(&record)?;
        self.file.sync()?;
        self.durable = self.file.len();
        Ok(())
    }

    /// Appends the mark that everything so far is durable. After an error the writer must not be
    /// used any more, but nothing is lost.
    pub fn mark(&mut self) -> Result<()> {
        let mut edit = VersionEdit::new();
        edit.push(Change::Synced(self.file.len()));
        let mut record = Vec::new();
        put_record(&mut record, self.no, self.file.len(), &edit.encode()?)?;
        self.file.append(&record)?;
        self.file.submit()
    }

    /// Number of the manifest.
    #[must_use]
    pub fn no(&self) -> FileNo {
        self.no
    }

    /// Length in bytes up to which the file is durable: through the last edit.
    #[must_use]
    pub fn durable_bytes(&self) -> u64 {
        self.durable
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.file.len()
    }
}

/// A record of a manifest, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset at which the record begins.
    pub offset: u64,
    /// Payload of the record.
    pub payload: &'a [u8],
}

/// The records of a manifest's bytes, in order.
#[derive(Debug)]
pub struct ManifestReader<'a> {
    path: PathBuf,
    no: FileNo,
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> ManifestReader<'a> {
    /// Reads manifest `no`, whose content is `bytes`; `path` is for messages.
    #[must_use]
    pub fn new(path: PathBuf, no: FileNo, bytes: &'a [u8]) -> Self {
        Self { path, no, bytes, offset: 0 }
    }

    /// Continues at `offset`, where a record begins that was appended since the file was last read.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        self.offset =
            usize::try_from(offset).map_or(self.bytes.len(), |at| at.min(self.bytes.len()));
    }

    /// The payload of a valid record at `offset`.
    fn record_at(&self, offset: usize) -> Option<&'a [u8]> {
        let mut reader = Reader::new(self.bytes.get(offset..)?);
        let (stored, len) = (reader.u32()?, reader.u32()?);
        if len == 0 {
            return None;
        }
        let payload = reader.take(usize::try_from(len).ok()?)?;
        (record_crc(self.no, offset as u64, payload) == stored).then_some(payload)
    }

    /// The next record; `None` at the end, where a torn record may follow
    /// ([`ManifestReader::torn_bytes`]). `Corrupt` for damage that a valid record follows.
    #[expect(clippy::should_implement_trait, reason = "an iterator of results hides the end")]
    pub fn next(&mut self) -> Result<Option<Record<'a>>> {
        if let Some(payload) = self.record_at(self.offset) {
            let offset = self.offset as u64;
            self.offset += RECORD_HEADER_BYTES + payload.len();
            return Ok(Some(Record { offset, payload }));
        }
        let behind = self.offset.saturating_add(1)..self.bytes.len();
        if let Some(valid) = behind.into_iter().find(|&at| self.record_at(at).is_some()) {
            return Err(self.corrupt(
                self.offset as u64,
                format_args!("record is damaged, a valid one follows at {valid}"),
            ));
        }
        Ok(None)
    }

    /// The next whole record, even after damage; `None` if there is none. For a repair.
    pub fn next_whole(&mut self) -> Option<Record<'a>> {
        let offset = (self.offset..self.bytes.len()).find(|&at| self.record_at(at).is_some())?;
        let payload = self.record_at(offset)?;
        self.offset = offset + RECORD_HEADER_BYTES + payload.len();
        Some(Record { offset: offset as u64, payload })
    }

    /// Bytes after the last valid record, once [`ManifestReader::next`] has returned `None`.
    #[must_use]
    pub fn torn_bytes(&self) -> u64 {
        (self.bytes.len() - self.offset) as u64
    }

    /// Offset at which the next record would begin.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Makes a `Corrupt` error at `offset` of this manifest.
    #[must_use]
    pub fn corrupt(&self, offset: u64, what: impl std::fmt::Display) -> Error {
        Error::corrupt(&self.path, offset, what)
    }

    /// Adds the file and the offset to `error`.
    #[must_use]
    pub fn located(&self, offset: u64, error: &Error) -> Error {
        match error.kind() {
            archipelago_base::ErrorKind::Unsupported => {
                error.context_at(format_args!("{} at offset {offset}", self.path.display()))
            }
            _ => self.corrupt(offset, error.context()),
        }
    }

    /// Reads the header and the snapshot. `CURRENT` never names a manifest without them.
    pub fn begin(&mut self) -> Result<(Header, VersionEdit)> {
        let record = self.expect_record("header")?;
        let header = Header::decode(record.payload).map_err(|e| self.located(record.offset, &e))?;
        if header.no != self.no {
            return Err(self.corrupt(0, format_args!("header says manifest {}", header.no)));
        }
        let record = self.expect_record("snapshot")?;
        Ok((header, self.decode(&record)?))
    }

    fn expect_record(&mut self, what: &str) -> Result<Record<'a>> {
        let offset = self.offset();
        self.next()?.ok_or_else(|| self.corrupt(offset, format_args!("{what} is damaged")))
    }

    /// Decodes the edit of a record.
    pub fn decode(&self, record: &Record<'a>) -> Result<VersionEdit> {
        VersionEdit::decode(record.payload).map_err(|e| self.located(record.offset, &e))
    }
}
