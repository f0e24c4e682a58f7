//! The records of the namespace log, and their bytes. `docs/formats/tier-namespace.md` has the
//! table.
//!
//! A decoder of foreign bytes: everything is bounds-checked, and what is not understood is `None`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use archipelago_base::codec::{Reader, put_bytes, put_u8, put_varint};
use archipelago_env::FileClass;

/// Where a physical file lies: its device's durable number, its own number (never used twice) and
/// the logical directory that a log was created in (logs of one directory lie together).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) device: u8,
    pub(crate) number: u64,
    /// Hash of the logical directory, for logs; else 0.
    pub(crate) dir: u64,
}

/// A file as the namespace knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRecord {
    /// Its unique id: the number of its first copy.
    pub(crate) id: u64,
    pub(crate) class: FileClass,
    pub(crate) level: Option<u8>,
    pub(crate) place: Place,
    /// Its names; none while the record of creation carries the name.
    pub(crate) names: Vec<PathBuf>,
    /// One more than its aged accesses when the tiers were closed last; 0 if they never were since
    /// it was made.
    pub(crate) heat: u64,
}

/// A read-only copy of (parts of) a file on a faster device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyRecord {
    /// The file that it is a copy of, by unique id.
    pub(crate) file: u64,
    pub(crate) device: u8,
    pub(crate) number: u64,
    /// Length of the physical file, footer and all.
    pub(crate) len: u64,
    /// CRC-32C of the copied bytes.
    pub(crate) crc: u32,
    /// Whether it is of the whole file.
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
    /// A device joined, or was found under another name or path.
    Device(DeviceRecord),
    /// A file came to be; of a snapshot with all its names, else with one, which may replace
    /// another file's.
    File(FileRecord),
    /// Of a file, which may replace another one, or of a directory, with all that lies in it.
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Remove {
        path: PathBuf,
    },
    /// The file lies elsewhere now.
    Move {
        file: u64,
        to: Place,
    },
    Level {
        file: u64,
        level: u8,
    },
    CopyAdded(CopyRecord),
    CopyDropped {
        number: u64,
    },
    MakeDir {
        path: PathBuf,
    },
    RemoveDir {
        path: PathBuf,
    },
    /// Before this record was appended, the log was durable through `bytes_through`, and the
    /// physical files of all records before `names_through` had durable names, or were superfluous
    /// by a later record before this one. Numbers from `next` on were never used.
    Mark {
        bytes_through: u64,
        names_through: u64,
        next: u64,
    },
}

fn class_code(class: FileClass) -> u8 {
    match class {
        FileClass::Wal => 1,
        FileClass::Sst => 2,
        FileClass::Manifest => 3,
        FileClass::Other => 4,
    }
}

fn class_of(code: u8) -> Option<FileClass> {
    Some(match code {
        1 => FileClass::Wal,
        2 => FileClass::Sst,
        3 => FileClass::Manifest,
        4 => FileClass::Other,
        _ => return None,
    })
}

fn put_path(out: &mut Vec<u8>, path: &Path) {
    put_bytes(out, path.as_os_str().as_bytes());
}

fn path(reader: &mut Reader<'_>) -> Option<PathBuf> {
    Some(PathBuf::from(OsStr::from_bytes(reader.bytes()?)))
}

fn text(reader: &mut Reader<'_>) -> Option<String> {
    String::from_utf8(reader.bytes()?.to_vec()).ok()
}

fn put_place(out: &mut Vec<u8>, place: Place) {
    put_u8(out, place.device);
    put_varint(out, place.number);
    put_varint(out, place.dir);
}

fn place(reader: &mut Reader<'_>) -> Option<Place> {
    Some(Place { device: reader.u8()?, number: reader.varint()?, dir: reader.varint()? })
}

/// Level 255 stands for none.
fn put_level(out: &mut Vec<u8>, level: Option<u8>) {
    put_u8(out, level.unwrap_or(u8::MAX));
}

fn level(reader: &mut Reader<'_>) -> Option<Option<u8>> {
    reader.u8().map(|level| (level != u8::MAX).then_some(level))
}

impl Record {
    /// The record's bytes, without a frame.
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
                put_u8(out, class_code(file.class));
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

    /// Reads a record that takes all of `bytes`; `None` if it is none.
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
            3 => Self::Rename { from: path(reader)?, to: path(reader)? },
            4 => Self::Link { from: path(reader)?, to: path(reader)? },
            5 => Self::Remove { path: path(reader)? },
            6 => Self::Move { file: reader.varint()?, to: place(reader)? },
            // None has no record: a file does not lose its level.
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
            10 => Self::MakeDir { path: path(reader)? },
            11 => Self::RemoveDir { path: path(reader)? },
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
    let class = class_of(reader.u8()?)?;
    let level = level(reader)?;
    let place = place(reader)?;
    let heat = reader.varint()?;
    let count = reader.varint()?;
    let mut names = Vec::new();
    for _ in 0..count {
        names.push(path(reader)?);
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
