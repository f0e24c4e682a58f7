//! Version edits: the changes of one step, and their encoding.
//!
//! A [`VersionEdit`] is a list of [`Change`]s, possibly to several column families. All of them
//! apply, or none. The order of changes in one edit means nothing, except that a column family is
//! created before it is used. Encoded: change after change, each a tag byte and its fields
//! (`docs/formats/manifest.md`). Decoding checks every bound. An unknown tag is `Unsupported`,
//! because skipping it would lose a change.

use std::fmt;

use archipelago_base::codec::{Reader, put_bytes, put_u8, put_u32, put_u64, put_varint};
use archipelago_base::{CfId, Epoch, Error, FileNo, Result, SeqNo};

use crate::bucket::BucketMap;
use crate::file_meta::FileMeta;
use crate::key::KeyRange;
use crate::manifest::damaged;
use crate::manifest::identity::id_text;
use crate::manifest::owner::Owner;
use crate::manifest::space::SpaceFigures;
use crate::options::{CfOptions, LEVELS};
use crate::table_content::TableContent;
use crate::value_ref::{InvalidFileMeta, ValueFileMeta, ValueRef, ValueRefs};

/// Length in bytes above which the length of a file is damage.
const FILE_BYTES_MAX: u64 = 1 << 48;
/// Longest name of a column family in bytes.
pub const CF_NAME_BYTES_MAX: usize = 1024;

/// One change of the manifest. Tags are stored and never reused.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A column family begins, empty and with one bucket.
    CreateCf {
        /// Id of the column family, which no other one has used before.
        cf: CfId,
        /// Name of the column family, unique among those that exist.
        name: String,
        /// Settings of the column family.
        options: Box<CfOptions>,
    },
    /// A column family ends, and its files with it.
    DropCf {
        /// Id of the column family.
        cf: CfId,
    },
    /// The settings of a column family change.
    SetCfOptions {
        /// Id of the column family.
        cf: CfId,
        /// All settings of the column family.
        options: Box<CfOptions>,
    },
    /// A file joins a level.
    AddFile {
        /// Id of the column family.
        cf: CfId,
        /// Level that the file joins.
        level: usize,
        /// Metadata of the file.
        meta: Box<FileMeta>,
    },
    /// A file leaves a level.
    RemoveFile {
        /// Id of the column family.
        cf: CfId,
        /// Level that the file leaves.
        level: usize,
        /// Number of the file.
        no: FileNo,
    },
    /// The bucket map changes.
    SetBucketMap {
        /// Id of the column family.
        cf: CfId,
        /// The new map, which has a later epoch.
        map: BucketMap,
    },
    /// Every record in `range` with a sequence number of at most `seq` lies in tables. Never lowers
    /// a number.
    FlushedThrough {
        /// Id of the column family.
        cf: CfId,
        /// The range of user keys.
        range: KeyRange,
        /// The flushed-through sequence number.
        seq: SeqNo,
    },
    /// Every file number below this may be in use: the end of a lot. Never lowers it.
    NextFileNo(FileNo),
    /// The last sequence number is at least this. Never lowers it.
    LastSeq(SeqNo),
    /// Every column family id below this was used. Never lowers it.
    NextCfId(CfId),
    /// Log segments below this number are not needed. Never lowers it.
    LogFloor(FileNo),
    /// Every log incarnation below this may be in use. Never lowers it.
    NextIncarnation(Epoch),
    /// A value file joins a column family.
    AddValueFile {
        /// Id of the column family.
        cf: CfId,
        /// Metadata of the value file.
        meta: Box<ValueFileMeta>,
    },
    /// A value file leaves a column family.
    RemoveValueFile {
        /// Id of the column family.
        cf: CfId,
        /// Number of the file.
        no: FileNo,
    },
    /// The values of a value file lie in another one from now on.
    Inherit {
        /// Id of the column family.
        cf: CfId,
        /// Number of the file that is replaced.
        old: FileNo,
        /// Number of the file with the values.
        heir: FileNo,
    },
    /// An invalid file joins a column family.
    AddInvalidFile {
        /// Id of the column family.
        cf: CfId,
        /// Metadata of the invalid file.
        meta: Box<InvalidFileMeta>,
    },
    /// An invalid file leaves a column family.
    RemoveInvalidFile {
        /// Id of the column family.
        cf: CfId,
        /// Number of the file.
        no: FileNo,
    },
    /// The database was opened for writing. The epoch is above that of the owner before.
    OwnerEpoch(Box<Owner>),
    /// The figures of a column family's space are replaced. No file depends on them.
    SetSpaceFigures {
        /// Id of the column family.
        cf: CfId,
        /// All figures that a restart keeps.
        figures: SpaceFigures,
    },
    /// Not a change: the manifest was durable through this offset ([`crate::manifest::log`]).
    Synced(u64),
}

/// Changes that apply together or not at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VersionEdit {
    /// The changes, in the order in which they are encoded.
    pub changes: Vec<Change>,
}

impl VersionEdit {
    /// An edit that changes nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a change.
    pub fn push(&mut self, change: Change) -> &mut Self {
        self.changes.push(change);
        self
    }

    /// Adds a file to a level.
    pub fn add_file(&mut self, cf: CfId, level: usize, meta: FileMeta) -> &mut Self {
        self.push(Change::AddFile { cf, level, meta: Box::new(meta) })
    }

    /// Removes a file from a level.
    pub fn remove_file(&mut self, cf: CfId, level: usize, no: FileNo) -> &mut Self {
        self.push(Change::RemoveFile { cf, level, no })
    }

    /// Adds a value file.
    pub fn add_value_file(&mut self, cf: CfId, meta: ValueFileMeta) -> &mut Self {
        self.push(Change::AddValueFile { cf, meta: Box::new(meta) })
    }

    /// Notes that the values of the value file `old` lie in `heir` from now on.
    pub fn inherit(&mut self, cf: CfId, old: FileNo, heir: FileNo) -> &mut Self {
        self.push(Change::Inherit { cf, old, heir })
    }

    /// Raises the flushed-through number of a range.
    pub fn flushed_through(&mut self, cf: CfId, range: KeyRange, seq: SeqNo) -> &mut Self {
        self.push(Change::FlushedThrough { cf, range, seq })
    }

    /// Whether the edit is only the mark after another one ([`Change::Synced`]).
    #[must_use]
    pub fn is_mark(&self) -> bool {
        matches!(self.changes.as_slice(), [Change::Synced(_)])
    }

    /// Encodes the edit.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(64 + self.changes.len() * 128);
        for change in &self.changes {
            change.encode_into(&mut out)?;
        }
        Ok(out)
    }

    /// Decodes an edit. `Corrupt` if the bytes are damaged, `Unsupported` for an unknown tag.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let mut changes = Vec::new();
        while !reader.is_empty() {
            changes.push(Change::decode(&mut reader)?);
        }
        Ok(Self { changes })
    }
}

fn options_bytes(options: &CfOptions) -> Result<Vec<u8>> {
    postcard::to_stdvec(options).map_err(|source| {
        Error::with_source(
            archipelago_base::ErrorKind::InvalidArgument,
            "cannot store the column family's settings",
            source,
        )
    })
}

impl Change {
    fn encode_into(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::CreateCf { cf, name, options } => {
                put_tagged(out, 1, *cf);
                put_bytes(out, name.as_bytes());
                put_bytes(out, &options_bytes(options)?);
            }
            Self::DropCf { cf } => put_tagged(out, 2, *cf),
            Self::SetCfOptions { cf, options } => {
                put_tagged(out, 3, *cf);
                put_bytes(out, &options_bytes(options)?);
            }
            Self::AddFile { cf, level, meta } => {
                put_tagged(out, 4, *cf);
                put_u8(out, *level as u8);
                put_meta(out, meta);
            }
            Self::RemoveFile { cf, level, no } => {
                put_tagged(out, 5, *cf);
                put_u8(out, *level as u8);
                put_varint(out, no.0);
            }
            Self::SetBucketMap { cf, map } => {
                put_tagged(out, 6, *cf);
                put_varint(out, map.epoch().0);
                put_varint(out, map.boundaries().len() as u64);
                map.boundaries().iter().for_each(|boundary| put_bytes(out, boundary));
            }
            Self::FlushedThrough { cf, range, seq } => {
                put_tagged(out, 7, *cf);
                put_bytes(out, &range.start);
                put_u8(out, u8::from(range.end.is_some()));
                put_bytes(out, range.end.as_deref().unwrap_or_default());
                put_varint(out, seq.0);
            }
            Self::NextFileNo(no) => put_number(out, 8, no.0),
            Self::LastSeq(seq) => put_number(out, 9, seq.0),
            Self::NextCfId(cf) => put_number(out, 10, u64::from(cf.0)),
            Self::LogFloor(no) => put_number(out, 11, no.0),
            Self::NextIncarnation(epoch) => put_number(out, 12, epoch.0),
            Self::Synced(offset) => put_number(out, 13, *offset),
            Self::AddValueFile { .. }
            | Self::RemoveValueFile { .. }
            | Self::Inherit { .. }
            | Self::AddInvalidFile { .. }
            | Self::RemoveInvalidFile { .. }
            | Self::SetSpaceFigures { .. } => self.encode_of_values(out),
            Self::OwnerEpoch(owner) => {
                put_u8(out, 19);
                owner.encode(out);
            }
        }
        Ok(())
    }

    /// Encodes a change that concerns value files.
    fn encode_of_values(&self, out: &mut Vec<u8>) {
        match self {
            Self::AddValueFile { cf, meta } => {
                put_tagged(out, 14, *cf);
                put_value_file(out, meta);
            }
            Self::RemoveValueFile { cf, no } => {
                put_tagged(out, 15, *cf);
                put_varint(out, no.0);
            }
            Self::Inherit { cf, old, heir } => {
                put_tagged(out, 16, *cf);
                put_varint(out, old.0);
                put_varint(out, heir.0);
            }
            Self::AddInvalidFile { cf, meta } => {
                put_tagged(out, 17, *cf);
                put_invalid_file(out, meta);
            }
            Self::RemoveInvalidFile { cf, no } => {
                put_tagged(out, 18, *cf);
                put_varint(out, no.0);
            }
            Self::SetSpaceFigures { cf, figures } => {
                put_tagged(out, 20, *cf);
                figures.encode(out);
            }
            _ => {}
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let tag = reader.u8().ok_or_else(|| damaged("change: cut off"))?;
        let decoded = match tag {
            1..=7 => Self::decode_of_cf(tag, reader)?,
            8 => reader.varint().map(|no| Self::NextFileNo(FileNo(no))),
            9 => seq(reader).map(Self::LastSeq),
            10 => reader.varint32().map(|cf| Self::NextCfId(CfId(cf))),
            11 => reader.varint().map(|no| Self::LogFloor(FileNo(no))),
            12 => reader.varint().map(|epoch| Self::NextIncarnation(Epoch(epoch))),
            13 => reader.varint().map(Self::Synced),
            14..=18 | 20 => Self::decode_of_values(tag, reader),
            19 => Owner::decode(reader).map(|owner| Self::OwnerEpoch(Box::new(owner))),
            _ => {
                return Err(Error::unsupported(format!(
                    "manifest change with unknown tag {tag}: written by a newer version"
                )));
            }
        };
        decoded.ok_or_else(|| damaged(format!("change with tag {tag}: malformed")))
    }

    fn decode_of_values(tag: u8, reader: &mut Reader<'_>) -> Option<Self> {
        let cf = reader.varint32().map(CfId)?;
        Some(match tag {
            14 => Self::AddValueFile { cf, meta: Box::new(value_file(reader)?) },
            15 => Self::RemoveValueFile { cf, no: FileNo(reader.varint()?) },
            16 => {
                let (old, heir) = (FileNo(reader.varint()?), FileNo(reader.varint()?));
                Self::Inherit { cf, old, heir }
            }
            17 => Self::AddInvalidFile { cf, meta: Box::new(invalid_file(reader)?) },
            20 => Self::SetSpaceFigures { cf, figures: SpaceFigures::decode(reader)? },
            _ => Self::RemoveInvalidFile { cf, no: FileNo(reader.varint()?) },
        })
    }

    fn decode_of_cf(tag: u8, reader: &mut Reader<'_>) -> Result<Option<Self>> {
        let Some(cf) = reader.varint32().map(CfId) else { return Ok(None) };
        Ok(match tag {
            1 => {
                let name = reader.bytes().and_then(|name| str::from_utf8(name).ok());
                let (Some(name), Some(options)) = (name, reader.bytes()) else { return Ok(None) };
                let options = Box::new(options_of(options)?);
                Some(Self::CreateCf { cf, name: name.to_owned(), options })
            }
            2 => Some(Self::DropCf { cf }),
            3 => match reader.bytes() {
                None => None,
                Some(bytes) => {
                    Some(Self::SetCfOptions { cf, options: Box::new(options_of(bytes)?) })
                }
            },
            4 => level(reader).zip(meta(reader)).map(|(level, meta)| Self::AddFile {
                cf,
                level,
                meta: Box::new(meta),
            }),
            5 => level(reader).zip(reader.varint()).map(|(level, no)| Self::RemoveFile {
                cf,
                level,
                no: FileNo(no),
            }),
            6 => bucket_map(reader).map(|map| Self::SetBucketMap { cf, map }),
            _ => key_range(reader).zip(seq(reader)).map(|(range, seq)| Self::FlushedThrough {
                cf,
                range,
                seq,
            }),
        })
    }
}

fn put_tagged(out: &mut Vec<u8>, tag: u8, cf: CfId) {
    put_u8(out, tag);
    put_varint(out, u64::from(cf.0));
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: u64) {
    put_u8(out, tag);
    put_varint(out, number);
}

const META_LARGEST_EXCLUSIVE: u8 = 1;
const META_GLOBAL_SEQ: u8 = 2;

fn put_meta(out: &mut Vec<u8>, meta: &FileMeta) {
    put_varint(out, meta.no);
    out.extend_from_slice(&meta.unique_id);
    put_varint(out, meta.size_bytes);
    put_u32(out, meta.checksum);
    let exclusive = if meta.largest_exclusive { META_LARGEST_EXCLUSIVE } else { 0 };
    let global = if meta.global_seq.is_some() { META_GLOBAL_SEQ } else { 0 };
    put_u8(out, exclusive | global);
    put_bytes(out, &meta.smallest);
    put_bytes(out, &meta.largest);
    put_bytes(out, &meta.median_key);
    put_varint(out, meta.smallest_seq);
    put_varint(out, meta.largest_seq);
    if let Some(seq) = meta.global_seq {
        put_varint(out, seq);
    }
    put_varint(out, meta.entries);
    put_varint(out, meta.deletions);
    put_varint(out, meta.range_deletions);
    put_varint(out, meta.raw_bytes);
    put_u64(out, meta.created_unix_ms);
    meta.content.encode(out);
    put_varint(out, meta.refs.by_file().len() as u64);
    for at in meta.refs.by_file() {
        put_varint(out, at.no);
        put_varint(out, at.records);
        put_varint(out, at.bytes);
    }
}

fn meta(reader: &mut Reader<'_>) -> Option<FileMeta> {
    let no = reader.varint()?;
    let unique_id = reader.take(16)?.try_into().ok()?;
    let size_bytes = reader.varint().filter(|&size| size <= FILE_BYTES_MAX)?;
    let checksum = reader.u32()?;
    let flags = reader.u8().filter(|flags| *flags <= META_LARGEST_EXCLUSIVE | META_GLOBAL_SEQ)?;
    let smallest = reader.bytes()?.to_vec();
    let largest = reader.bytes()?.to_vec();
    let median_key = reader.bytes()?.to_vec();
    let (smallest_seq, largest_seq) = (seq(reader)?.0, seq(reader)?.0);
    let global_seq = match flags & META_GLOBAL_SEQ {
        0 => None,
        _ => Some(seq(reader)?.0),
    };
    Some(FileMeta {
        no,
        unique_id,
        size_bytes,
        checksum,
        smallest,
        largest,
        largest_exclusive: flags & META_LARGEST_EXCLUSIVE != 0,
        smallest_seq,
        largest_seq,
        entries: reader.varint()?,
        deletions: reader.varint()?,
        range_deletions: reader.varint()?,
        raw_bytes: reader.varint()?,
        global_seq,
        median_key,
        created_unix_ms: reader.u64()?,
        content: TableContent::decode(reader)?,
        refs: value_refs(reader)?,
    })
}

fn value_refs(reader: &mut Reader<'_>) -> Option<ValueRefs> {
    let count = reader.varint()?;
    let mut refs = Vec::new();
    for _ in 0..count {
        let (no, records, bytes) = (reader.varint()?, reader.varint()?, reader.varint()?);
        refs.push(ValueRef { no, records, bytes });
    }
    ValueRefs::new(refs)
}

fn put_value_file(out: &mut Vec<u8>, meta: &ValueFileMeta) {
    put_varint(out, meta.no);
    out.extend_from_slice(&meta.unique_id);
    put_varint(out, meta.size_bytes);
    put_u32(out, meta.checksum);
    put_varint(out, meta.keys_offset);
    put_bytes(out, &meta.smallest);
    put_bytes(out, &meta.largest);
    put_varint(out, meta.smallest_seq);
    put_varint(out, meta.largest_seq);
    put_varint(out, meta.records);
    put_u64(out, meta.created_unix_ms);
    put_varint(out, meta.basis);
}

fn value_file(reader: &mut Reader<'_>) -> Option<ValueFileMeta> {
    let no = reader.varint()?;
    let unique_id = reader.take(16)?.try_into().ok()?;
    let size_bytes = reader.varint().filter(|&size| size <= FILE_BYTES_MAX)?;
    let checksum = reader.u32()?;
    let keys_offset = reader.varint().filter(|&offset| offset < size_bytes)?;
    Some(ValueFileMeta {
        no,
        unique_id,
        size_bytes,
        checksum,
        keys_offset,
        smallest: reader.bytes()?.to_vec(),
        largest: reader.bytes()?.to_vec(),
        smallest_seq: seq(reader)?.0,
        largest_seq: seq(reader)?.0,
        records: reader.varint()?,
        created_unix_ms: reader.u64()?,
        basis: reader.varint()?,
    })
}

fn put_invalid_file(out: &mut Vec<u8>, meta: &InvalidFileMeta) {
    put_varint(out, meta.no);
    out.extend_from_slice(&meta.unique_id);
    put_varint(out, meta.size_bytes);
    put_u32(out, meta.checksum);
    put_varint(out, meta.records);
    put_varint(out, meta.install_no);
    put_varint(out, meta.names.len() as u64);
    meta.names.iter().for_each(|&no| put_varint(out, no));
}

fn invalid_file(reader: &mut Reader<'_>) -> Option<InvalidFileMeta> {
    let no = reader.varint()?;
    let unique_id = reader.take(16)?.try_into().ok()?;
    let size_bytes = reader.varint().filter(|&size| size <= FILE_BYTES_MAX)?;
    let checksum = reader.u32()?;
    let (records, install_no, count) = (reader.varint()?, reader.varint()?, reader.varint()?);
    let mut names: Vec<u64> = Vec::new();
    for _ in 0..count {
        let name = reader.varint().filter(|no| names.last().is_none_or(|last| last < no))?;
        names.push(name);
    }
    Some(InvalidFileMeta { no, unique_id, size_bytes, checksum, records, install_no, names })
}

fn level(reader: &mut Reader<'_>) -> Option<usize> {
    reader.u8().map(usize::from).filter(|&level| level < LEVELS)
}

fn seq(reader: &mut Reader<'_>) -> Option<SeqNo> {
    reader.varint().map(SeqNo).filter(|&seq| seq <= SeqNo::MAX)
}

fn options_of(bytes: &[u8]) -> Result<CfOptions> {
    let options: CfOptions = postcard::from_bytes(bytes)
        .map_err(|_| damaged("column family settings: not those of this format version"))?;
    options.validate().map_err(|error| damaged(format!("settings: {}", error.context())))?;
    Ok(options)
}

fn bucket_map(reader: &mut Reader<'_>) -> Option<BucketMap> {
    let epoch = Epoch(reader.varint()?);
    let count = reader.varint()?;
    let mut boundaries = Vec::new();
    for _ in 0..count {
        boundaries.push(reader.bytes()?.to_vec());
    }
    BucketMap::new(epoch, boundaries).ok()
}

fn key_range(reader: &mut Reader<'_>) -> Option<KeyRange> {
    let start = reader.bytes()?.to_vec();
    let bounded = reader.u8().filter(|flag| *flag <= 1)?;
    let end = reader.bytes()?.to_vec();
    Some(KeyRange { start, end: (bounded == 1).then_some(end) })
}

/// A key as reports print it.
pub(crate) fn key_text(key: &[u8]) -> String {
    format!("\"{}\"", key.escape_ascii())
}

fn range_text(range: &KeyRange) -> String {
    let end = range.end.as_deref().map_or_else(|| "end".to_owned(), key_text);
    format!("{}..{end}", key_text(&range.start))
}

/// The references of a table to value files; empty if it has none.
fn refs_text(refs: &ValueRefs) -> String {
    if refs.is_empty() {
        return String::new();
    }
    let by_file = refs.by_file().iter();
    let texts: Vec<_> = by_file
        .map(|at| format!("{} records of {} bytes in {}", at.records, at.bytes, at.no))
        .collect();
    format!(", references: {}", texts.join(", "))
}

impl Change {
    /// Writes a change that concerns value files.
    fn write_of_values(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddValueFile { cf, meta } => write!(
                f,
                "add value file {} to cf {cf}: {} bytes, {} of them values, {} to {}, seq {}..={}, \
                 {} records, basis {}",
                meta.no,
                meta.size_bytes,
                meta.value_bytes(),
                key_text(&meta.smallest),
                key_text(&meta.largest),
                meta.smallest_seq,
                meta.largest_seq,
                meta.records,
                meta.basis,
            ),
            Self::RemoveValueFile { cf, no } => write!(f, "remove value file {no} from cf {cf}"),
            Self::Inherit { cf, old, heir } => {
                write!(f, "value file {heir} of cf {cf} inherits from {old}")
            }
            Self::AddInvalidFile { cf, meta } => write!(
                f,
                "add invalid file {} to cf {cf}: {} bytes, {} records, install {}, of value files \
                 {:?}",
                meta.no, meta.size_bytes, meta.records, meta.install_no, meta.names
            ),
            Self::RemoveInvalidFile { cf, no } => {
                write!(f, "remove invalid file {no} from cf {cf}")
            }
            Self::SetSpaceFigures { cf, figures } => {
                write!(f, "space of cf {cf}: ")?;
                write_figures(f, figures)
            }
            _ => Ok(()),
        }
    }
}

fn write_figures(f: &mut fmt::Formatter<'_>, figures: &SpaceFigures) -> fmt::Result {
    let shadow = &figures.shadow;
    write!(f, "last shadow share {:.3}", shadow.last)?;
    if let Some(average) = shadow.average {
        write!(f, ", average {average:.3}")?;
    }
    write!(f, ", {} of {} pending", shadow.pending_shadowing, shadow.pending_records)?;
    match figures.bound {
        None => write!(f, ", no bound"),
        Some(bound) => write!(
            f,
            ", {} bytes of garbage, {} allowed, {} of debt",
            bound.used_bytes, bound.allowance_bytes, bound.debt_bytes
        ),
    }
}

fn write_owner(f: &mut fmt::Formatter<'_>, owner: &Owner) -> fmt::Result {
    write!(f, "owner epoch {}, offload id {}", owner.epoch, id_text(&owner.offload_id))?;
    match &*owner.log_place {
        "" => Ok(()),
        place => write!(f, ", log in {place}"),
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateCf { cf, name, options } => {
                write!(f, "create column family {cf} \"{name}\" {options:?}")
            }
            Self::DropCf { cf } => write!(f, "drop column family {cf}"),
            Self::SetCfOptions { cf, options } => {
                write!(f, "set options of column family {cf} {options:?}")
            }
            Self::AddFile { cf, level, meta } => {
                let end = if meta.largest_exclusive { " (exclusive)" } else { "" };
                write!(
                    f,
                    "add file {} to cf {cf} level {level}: {} bytes, {} to {}{end}, seq {}..={}, \
                     {} entries, {} deletions, {} range deletions{}",
                    meta.no,
                    meta.size_bytes,
                    key_text(&meta.smallest),
                    key_text(&meta.largest),
                    meta.smallest_seq,
                    meta.largest_seq,
                    meta.entries,
                    meta.deletions,
                    meta.range_deletions,
                    refs_text(&meta.refs),
                )
            }
            Self::RemoveFile { cf, level, no } => {
                write!(f, "remove file {no} from cf {cf} level {level}")
            }
            Self::SetBucketMap { cf, map } => {
                let boundaries: Vec<_> = map.boundaries().iter().map(|b| key_text(b)).collect();
                write!(
                    f,
                    "set bucket map of cf {cf} to epoch {}: [{}]",
                    map.epoch(),
                    boundaries.join(", ")
                )
            }
            Self::FlushedThrough { cf, range, seq } => {
                write!(f, "flushed cf {cf} {} through seq {seq}", range_text(range))
            }
            Self::NextFileNo(no) => write!(f, "next file number {no}"),
            Self::LastSeq(seq) => write!(f, "last seq {seq}"),
            Self::NextCfId(cf) => write!(f, "next column family id {cf}"),
            Self::LogFloor(no) => write!(f, "log floor {no}"),
            Self::NextIncarnation(epoch) => write!(f, "next log incarnation {epoch}"),
            Self::OwnerEpoch(owner) => write_owner(f, owner),
            Self::Synced(offset) => write!(f, "synced through offset {offset}"),
            Self::AddValueFile { .. }
            | Self::RemoveValueFile { .. }
            | Self::Inherit { .. }
            | Self::AddInvalidFile { .. }
            | Self::RemoveInvalidFile { .. }
            | Self::SetSpaceFigures { .. } => self.write_of_values(f),
        }
    }
}
