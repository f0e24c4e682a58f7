//! The records of the namespace's log, and their bytes. `docs/formats/tier-namespace.md` has the
//! table.
//!
//! All functions are pure. Failure: the decoder checks all bounds, and returns `None` for bytes
//! that are not a record.

use std::path::{Path, PathBuf};

use archipelago_base::codec::{Reader, put_bytes, put_u8, put_varint};
use archipelago_env::FileClass;
use archipelago_env::names::{put_path, read_path};

/// The place of a physical file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilePlace {
    /// Durable number of the device.
    pub(crate) device: u8,
    /// Number of the physical file, which is never used twice.
    pub(crate) number: u64,
    /// Hash of the logical directory of a log, because logs of one directory lie together. 0 for
    /// other files.
    pub(crate) dir: u64,
}

/// A file of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRecord {
    /// Unique id of the file: the number of its first physical file.
    pub(crate) id: u64,
    pub(crate) class: FileClass,
    pub(crate) level: Option<u8>,
    pub(crate) place: FilePlace,
    /// Names of the file.
    pub(crate) names: Vec<PathBuf>,
    /// Aged accesses when they were last recorded, plus one. 0 if they were not recorded since the
    /// file was created.
    pub(crate) heat: u64,
}

/// A copy of a file, or of ranges of it, on a faster device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyRecord {
    /// Unique id of the copied file.
    pub(crate) file: u64,
    pub(crate) device: u8,
    pub(crate) number: u64,
    /// Length of the physical file in bytes, with its index.
    pub(crate) len: u64,
    /// CRC-32C of the copied bytes.
    pub(crate) crc: u32,
    /// Whether the copy holds the whole file.
    pub(crate) whole: bool,
}

/// A device of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRecord {
    pub(crate) no: u8,
    pub(crate) name: String,
    pub(crate) path: String,
}

/// One change of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A device joined, or got another name or path.
    Device(DeviceRecord),
    /// A file was created. In a snapshot the record has all names of the file. Otherwise it has one
    /// name, which the file may take over from another one.
    File(FileRecord),
    /// A file got another name, which it may take over from another file. The same record renames a
    /// directory with all files in it.
    Rename { from: PathBuf, to: PathBuf },
    /// A file got one more name.
    Link { from: PathBuf, to: PathBuf },
    /// A name was removed.
    Remove { path: PathBuf },
    /// A file moved to another device.
    Move { file: u64, to: FilePlace },
    /// The level of a file changed.
    Level { file: u64, level: u8 },
    /// A copy was made.
    CopyAdded(CopyRecord),
    /// A copy was dropped.
    CopyDropped { number: u64 },
    /// A directory was created, with those above it.
    MakeDir { path: PathBuf },
    /// A directory was removed, with all files in it.
    RemoveDir { path: PathBuf },
    /// When this record was appended, the log was durable up to `bytes_through`. The physical files
    /// of all records before `names_through` had durable names, or a later record before this one
    /// had made them superfluous. Numbers from `next` on were never used.
    Mark { bytes_through: u64, names_through: u64, next: u64 },
}

fn text(reader: &mut Reader<'_>) -> Option<String> {
    String::from_utf8(reader.bytes()?.to_vec()).ok()
}

fn put_place(out: &mut Vec<u8>, place: FilePlace) {
    put_u8(out, place.device);
    put_varint(out, place.number);
    put_varint(out, place.dir);
}

fn place(reader: &mut Reader<'_>) -> Option<FilePlace> {
    Some(FilePlace { device: reader.u8()?, number: reader.varint()?, dir: reader.varint()? })
}

/// Encodes a level. 255 stands for no level.
fn put_level(out: &mut Vec<u8>, level: Option<u8>) {
    put_u8(out, level.unwrap_or(u8::MAX));
}

fn level(reader: &mut Reader<'_>) -> Option<Option<u8>> {
    reader.u8().map(|level| (level != u8::MAX).then_some(level))
}

impl Record {
    /// Appends the record's bytes, without a frame.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Device(device) => {
                put_u8(out, 1);
                put_u8(out, device.no);
                put_bytes(out, device.name.as_bytes());
                put_bytes(out, device.path.as_bytes());
            }
            Self::File(file) => {
                put_u8(out, 2);
                put_varint(out, file.id);
                put_u8(out, file.class.code());
                put_level(out, file.level);
                put_place(out, file.place);
                put_varint(out, file.heat);
                put_varint(out, file.names.len() as u64);
                file.names.iter().for_each(|name| put_path(out, name));
            }
            Self::Rename { from, to } => put_two(out, 3, from, to),
            Self::Link { from, to } => put_two(out, 4, from, to),
            Self::Remove { path } => put_one(out, 5, path),
            Self::Move { file, to } => {
                put_u8(out, 6);
                put_varint(out, *file);
                put_place(out, *to);
            }
            Self::Level { file, level } => {
                put_u8(out, 7);
                put_varint(out, *file);
                put_u8(out, *level);
            }
            Self::CopyAdded(copy) => {
                put_u8(out, 8);
                put_varint(out, copy.file);
                put_u8(out, copy.device);
                put_varint(out, copy.number);
                put_varint(out, copy.len);
                put_varint(out, u64::from(copy.crc));
                put_u8(out, u8::from(copy.whole));
            }
            Self::CopyDropped { number } => {
                put_u8(out, 9);
                put_varint(out, *number);
            }
            Self::MakeDir { path } => put_one(out, 10, path),
            Self::RemoveDir { path } => put_one(out, 11, path),
            Self::Mark { bytes_through, names_through, next } => {
                put_u8(out, 12);
                put_varint(out, *bytes_through);
                put_varint(out, *names_through);
                put_varint(out, *next);
            }
        }
    }

    /// Decodes a record that takes all of `bytes`. `None` if the bytes are not a record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let record = Self::read(&mut reader)?;
        reader.is_empty().then_some(record)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            1 => {
                let no = reader.u8()?;
                Self::Device(DeviceRecord { no, name: text(reader)?, path: text(reader)? })
            }
            2 => Self::File(read_file(reader)?),
            3 => Self::Rename { from: read_path(reader)?, to: read_path(reader)? },
            4 => Self::Link { from: read_path(reader)?, to: read_path(reader)? },
            5 => Self::Remove { path: read_path(reader)? },
            6 => Self::Move { file: reader.varint()?, to: place(reader)? },
            // A file cannot lose its level, so no level is not valid here.
            7 => Self::Level { file: reader.varint()?, level: level(reader)?? },
            8 => Self::CopyAdded(CopyRecord {
                file: reader.varint()?,
                device: reader.u8()?,
                number: reader.varint()?,
                len: reader.varint()?,
                crc: reader.varint32()?,
                whole: match reader.u8()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                },
            }),
            9 => Self::CopyDropped { number: reader.varint()? },
            10 => Self::MakeDir { path: read_path(reader)? },
            11 => Self::RemoveDir { path: read_path(reader)? },
            12 => Self::Mark {
                bytes_through: reader.varint()?,
                names_through: reader.varint()?,
                next: reader.varint()?,
            },
            _ => return None,
        })
    }
}

fn read_file(reader: &mut Reader<'_>) -> Option<FileRecord> {
    let id = reader.varint()?;
    let class = FileClass::from_code(reader.u8()?)?;
    let level = level(reader)?;
    let place = place(reader)?;
    let heat = reader.varint()?;
    let count = reader.varint()?;
    let mut names = Vec::new();
    for _ in 0..count {
        names.push(read_path(reader)?);
    }
    Some(FileRecord { id, class, level, place, names, heat })
}

fn put_one(out: &mut Vec<u8>, kind: u8, path: &Path) {
    put_u8(out, kind);
    put_path(out, path);
}

fn put_two(out: &mut Vec<u8>, kind: u8, from: &Path, to: &Path) {
    put_one(out, kind, from);
    put_path(out, to);
}
