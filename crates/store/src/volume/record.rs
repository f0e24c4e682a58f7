//! The records of a volume's namespace, and the volume's value in the register, as values and as
//! bytes. `docs/formats/volume.md` has the tables.
//!
//! All functions are pure. Failure: the decoders check all bounds. Bytes that are no record decode
//! to `None`. A value of the register that is not that of a volume is an error that says so.

use std::path::{Path, PathBuf};

use archipelago_base::checksum::crc;
use archipelago_base::codec::{Reader, put_bytes, put_u8, put_u32, put_u64, put_varint};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::FileClass;
use archipelago_env::names::{put_path, read_path};

use crate::blob::BlobRef;
use crate::ids::{BlobId, LogId, VolumeId};
use crate::log::Layout;

/// First bytes of a volume's value in the register.
const VOLUME_MAGIC: &[u8; 8] = b"ARCHVOLU";
/// Version of the volume's value in the register.
const VOLUME_VERSION: u32 = 2;

/// Number of a file in its volume, which is never used twice. A file keeps it when its names
/// change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileKey(pub(crate) u64);

/// The bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The bytes stand in the record: files that are written whole and small.
    Inline(Vec<u8>),
    /// A sealed blob.
    Blob(BlobRef),
    /// A log after inline bytes. A file that grew out of its record keeps its first bytes there. So
    /// at every moment the record or the log has them. `len_bytes` is the length of the log,
    /// without `head`, once the log has ended.
    Log { head: Vec<u8>, id: LogId, layout: Layout, len_bytes: Option<u64> },
}

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRecord {
    pub(crate) key: FileKey,
    pub(crate) class: FileClass,
    /// Names of the file; one in a record of creation, all in a snapshot.
    pub(crate) names: Vec<PathBuf>,
    pub(crate) content: Content,
    /// Time of the last change of the content, in milliseconds since 1970.
    pub(crate) modified_ms: u64,
}

/// One change of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A file was created. It takes its name over from a file that has it.
    File(FileRecord),
    /// The content of a file changed: an inline file was replaced or became a log, a log got a new
    /// layout, or it ended.
    Content { key: FileKey, content: Content, modified_ms: u64 },
    /// A file got another name, which it may take over from another file; or a directory was
    /// renamed, with all files in it.
    Rename { from: PathBuf, to: PathBuf },
    /// A file got one more name.
    Link { from: PathBuf, to: PathBuf },
    /// A name was removed.
    Remove { path: PathBuf },
    /// A directory was created, with those above it.
    MakeDir { path: PathBuf },
    /// A directory was removed, with all files in it.
    RemoveDir { path: PathBuf },
    /// File numbers from `next` on were never used.
    Next { next: u64 },
}

/// Stage of a volume. A process that opens a volume to use it needs [`VolumeStage::Whole`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeStage {
    /// The volume has what its owners wrote.
    Whole,
    /// A checkpoint of another volume is being copied into it, or the copy did not end.
    Filling,
    /// The volume is being removed, or the removal did not end. Files may be missing.
    Removing,
}

impl VolumeStage {
    const ALL: [Self; 3] = [Self::Whole, Self::Filling, Self::Removing];

    fn code(self) -> u8 {
        self as u8
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.code() == code)
    }
}

/// The value of a volume in the register, under `volume/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub(crate) volume: VolumeId,
    /// Epoch of the newest owner; it grows with every take-over.
    pub(crate) epoch: Epoch,
    /// Name of the owner for operators: host, process id and address.
    pub(crate) owner: String,
    /// Random number of the opening. The owner recognises its own value by it after a swap whose
    /// outcome it did not learn.
    pub(crate) opening: [u8; 16],
    /// Length of the lease in milliseconds; 0 if no process holds it.
    pub(crate) lease_ms: u64,
    /// Number of renewals of the lease by this owner.
    pub(crate) renewals: u64,
    /// Log of the namespace's newest generation; `None` before the first one.
    pub(crate) namespace: Option<(LogId, Layout)>,
    /// Number that the engine takes for that of the machine's boot. It changes when a recovery may
    /// have lost bytes without a sync.
    pub(crate) boot_id: [u8; 16],
    /// Stage of the volume, which decides whether it may be used.
    pub(crate) stage: VolumeStage,
}

impl Content {
    /// Length in bytes; `None` for a log that has not ended.
    pub(crate) fn len_bytes(&self) -> Option<u64> {
        match self {
            Self::Inline(bytes) => Some(bytes.len() as u64),
            Self::Blob(blob) => Some(blob.len_bytes),
            Self::Log { head, len_bytes, .. } => {
                len_bytes.map(|log_bytes| log_bytes.saturating_add(head.len() as u64))
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => {
                put_u8(out, 1);
                put_bytes(out, bytes);
            }
            Self::Blob(blob) => {
                put_u8(out, 2);
                out.extend_from_slice(&blob.id.0);
                put_varint(out, blob.len_bytes);
                put_bytes(out, &blob.hint);
            }
            Self::Log { head, id, layout, len_bytes } => {
                put_u8(out, if len_bytes.is_none() { 3 } else { 4 });
                put_bytes(out, head);
                put_log(out, *id, layout);
                len_bytes.iter().for_each(|&len_bytes| put_varint(out, len_bytes));
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            1 => Self::Inline(reader.bytes()?.to_vec()),
            2 => {
                let (id, len_bytes) = (BlobId(read_id(reader)?), reader.varint()?);
                Self::Blob(BlobRef { id, len_bytes, hint: reader.bytes()?.to_vec() })
            }
            kind @ (3 | 4) => {
                let head = reader.bytes()?.to_vec();
                let (id, layout) = read_log(reader)?;
                let len_bytes = if kind == 3 { None } else { Some(reader.varint()?) };
                Self::Log { head, id, layout, len_bytes }
            }
            _ => return None,
        })
    }
}

fn read_id(reader: &mut Reader<'_>) -> Option<[u8; 16]> {
    reader.take(16)?.try_into().ok()
}

fn put_log(out: &mut Vec<u8>, id: LogId, layout: &Layout) {
    out.extend_from_slice(&id.0);
    put_bytes(out, &layout.0);
}

fn read_log(reader: &mut Reader<'_>) -> Option<(LogId, Layout)> {
    Some((LogId(read_id(reader)?), Layout(reader.bytes()?.to_vec())))
}

fn put_one(out: &mut Vec<u8>, kind: u8, path: &Path) {
    put_u8(out, kind);
    put_path(out, path);
}

fn put_two(out: &mut Vec<u8>, kind: u8, from: &Path, to: &Path) {
    put_one(out, kind, from);
    put_path(out, to);
}

impl FileRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.key.0);
        put_u8(out, self.class.code());
        put_varint(out, self.modified_ms);
        self.content.encode(out);
        put_varint(out, self.names.len() as u64);
        self.names.iter().for_each(|name| put_path(out, name));
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let key = FileKey(reader.varint()?);
        let class = FileClass::from_code(reader.u8()?)?;
        let modified_ms = reader.varint()?;
        let content = Content::read(reader)?;
        let count = reader.varint()?;
        let mut names = Vec::new();
        for _ in 0..count {
            names.push(read_path(reader)?);
        }
        Some(Self { key, class, names, content, modified_ms })
    }
}

impl Record {
    /// Appends the record's bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::File(file) => {
                put_u8(out, 1);
                file.encode(out);
            }
            Self::Content { key, content, modified_ms } => {
                put_u8(out, 2);
                put_varint(out, key.0);
                put_varint(out, *modified_ms);
                content.encode(out);
            }
            Self::Rename { from, to } => put_two(out, 3, from, to),
            Self::Link { from, to } => put_two(out, 4, from, to),
            Self::Remove { path } => put_one(out, 5, path),
            Self::MakeDir { path } => put_one(out, 6, path),
            Self::RemoveDir { path } => put_one(out, 7, path),
            Self::Next { next } => {
                put_u8(out, 8);
                put_varint(out, *next);
            }
        }
    }

    /// Reads the record at the cursor. `None` if the bytes there are no record.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            1 => Self::File(FileRecord::read(reader)?),
            2 => {
                let (key, modified_ms) = (FileKey(reader.varint()?), reader.varint()?);
                Self::Content { key, content: Content::read(reader)?, modified_ms }
            }
            3 => Self::Rename { from: read_path(reader)?, to: read_path(reader)? },
            4 => Self::Link { from: read_path(reader)?, to: read_path(reader)? },
            5 => Self::Remove { path: read_path(reader)? },
            6 => Self::MakeDir { path: read_path(reader)? },
            7 => Self::RemoveDir { path: read_path(reader)? },
            8 => Self::Next { next: reader.varint()? },
            _ => return None,
        })
    }
}

impl VolumeRecord {
    /// The value's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VOLUME_MAGIC.to_vec();
        put_u32(&mut out, VOLUME_VERSION);
        out.extend_from_slice(&self.volume.0);
        put_u64(&mut out, self.epoch.0);
        put_bytes(&mut out, self.owner.as_bytes());
        out.extend_from_slice(&self.opening);
        put_varint(&mut out, self.lease_ms);
        put_varint(&mut out, self.renewals);
        out.extend_from_slice(&self.boot_id);
        put_u8(&mut out, self.stage.code());
        match &self.namespace {
            None => put_u8(&mut out, 0),
            Some((id, layout)) => {
                put_u8(&mut out, 1);
                put_log(&mut out, *id, layout);
            }
        }
        let sum = crc(&out);
        put_u32(&mut out, sum);
        out
    }

    /// Decodes the value of the register's entry `name`. Errors: `Corrupt` for bytes that are not
    /// the value of a volume, and `Unsupported` for another format version.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        let damaged = |what| {
            let text = format!(
                "the register's value of {name} is {what}; restore it from a copy, or remove it \
                 and create the volume again"
            );
            Error::new(ErrorKind::Corrupt, text)
        };
        let mut reader = Reader::new(bytes);
        if reader.take(VOLUME_MAGIC.len()) != Some(VOLUME_MAGIC) {
            return Err(damaged("not that of a volume"));
        }
        let version = reader.u32().ok_or_else(|| damaged("cut off"))?;
        if version != VOLUME_VERSION {
            return Err(Error::unsupported(format!(
                "the register's value of {name} has format version {version}; this program reads \
                 version {VOLUME_VERSION} only: use the program that wrote it"
            )));
        }
        let record = Self::read(&mut reader).ok_or_else(|| damaged("damaged"))?;
        let sum = crc(&bytes[..reader.position()]);
        if reader.u32() != Some(sum) || !reader.is_empty() {
            return Err(damaged("damaged"));
        }
        Ok(record)
    }

    /// Reads the fields between the version and the checksum.
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let volume = VolumeId(read_id(reader)?);
        let epoch = Epoch(reader.u64()?);
        let owner = String::from_utf8(reader.bytes()?.to_vec()).ok()?;
        let opening = read_id(reader)?;
        let (lease_ms, renewals) = (reader.varint()?, reader.varint()?);
        let boot_id = read_id(reader)?;
        let stage = VolumeStage::from_code(reader.u8()?)?;
        let namespace = match reader.u8()? {
            0 => None,
            1 => Some(read_log(reader)?),
            _ => return None,
        };
        Some(Self { volume, epoch, owner, opening, lease_ms, renewals, namespace, boot_id, stage })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A value with a namespace.
    pub(crate) fn owned_volume() -> VolumeRecord {
        VolumeRecord {
            volume: VolumeId([0x77; 16]),
            epoch: Epoch(9),
            owner: "host pid 77 at 10.0.0.1:7000".to_owned(),
            opening: [0x0f; 16],
            lease_ms: 10_000,
            renewals: 300,
            namespace: Some((LogId([0x5a; 16]), Layout(vec![1, 2, 3]))),
            boot_id: [0xb0; 16],
            stage: VolumeStage::Whole,
        }
    }

    /// The value of a volume that is being filled, and that no process has opened.
    pub(crate) fn new_volume() -> VolumeRecord {
        let (owner, opening) = (String::new(), [0; 16]);
        let (lease_ms, renewals, namespace) = (0, 0, None);
        let stage = VolumeStage::Filling;
        VolumeRecord { owner, opening, lease_ms, renewals, namespace, stage, ..owned_volume() }
    }

    const OWNED: &str = "41524348564f4c5502000000777777777777777777777777777777770900000000000000\
             1c686f7374207069642037372061742031302e302e302e313a373030300f0f0f0f0f0f0f\
             0f0f0f0f0f0f0f0f0f904eac02b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b000015a5a5a5a5a\
             5a5a5a5a5a5a5a5a5a5a5a0301020357add9ce";
    const NEW: &str = "41524348564f4c5502000000777777777777777777777777777777770900000000000000\
             00000000000000000000000000000000000000b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b001\
             00f8d1c74b";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes_of_a_volume_do_not_change() {
        assert_eq!(hex(&owned_volume().encode()), OWNED);
        assert_eq!(hex(&new_volume().encode()), NEW);
    }

    #[test]
    fn volume_decodes_as_encoded_and_damage_is_refused() {
        for record in [owned_volume(), new_volume()] {
            let bytes = record.encode();
            assert_eq!(VolumeRecord::decode("volume/a", &bytes).unwrap(), record);
            for at in 0..bytes.len() {
                let kind =
                    |bytes: &[u8]| VolumeRecord::decode("volume/a", bytes).unwrap_err().kind();
                assert_eq!(kind(&bytes[..at]), ErrorKind::Corrupt, "cut at {at}");
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                let expected =
                    if (8..12).contains(&at) { ErrorKind::Unsupported } else { ErrorKind::Corrupt };
                assert_eq!(kind(&damaged), expected, "byte {at}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(VolumeRecord::decode("volume/a", &longer).is_err());
        }
        let error = VolumeRecord::decode("volume/a", b"other").unwrap_err();
        assert!(error.to_string().contains("volume/a is not that of a volume"), "{error}");
    }

    #[test]
    fn length_of_a_file_includes_the_head_of_its_log() {
        let log = |len_bytes| Content::Log {
            head: vec![0; 5],
            id: LogId([1; 16]),
            layout: Layout(Vec::new()),
            len_bytes,
        };
        assert_eq!(log(Some(10)).len_bytes(), Some(15));
        assert_eq!(log(None).len_bytes(), None);
        assert_eq!(Content::Inline(vec![1, 2]).len_bytes(), Some(2));
    }
}
