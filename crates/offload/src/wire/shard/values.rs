//! Parts of the messages: names of shards, places, keys and versions.

use std::fmt;

use archipelago_base::codec::{Reader, put_bytes, put_u8};
use archipelago_base::wire::Wire;
use archipelago_base::{CfId, Epoch, SeqNo, wire_enum, wire_struct};
use archipelago_engine::key::{KeyRange, Kind};
use archipelago_fabric::RemoteKey;

use crate::ids::OffloadDb;
use crate::job::Payload;

/// A sealed memtable shard of a database. No name is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardName {
    /// Epoch of the owner that sealed the shard.
    pub epoch: Epoch,
    /// Number of the memtable within the epoch, from 1 in the order of the seals.
    pub memtable: u64,
    /// Index of the shard within its memtable.
    pub shard: u32,
}
wire_struct!(ShardName { epoch, memtable, shard });

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.epoch, self.memtable, self.shard)
    }
}

/// A range of user keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySpan(pub KeyRange);

/// The first key, and the first key after the range if it has an end.
impl Wire for KeySpan {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.0.start);
        self.0.end.is_some().put(out);
        if let Some(end) = &self.0.end {
            put_bytes(out, end);
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let start = reader.bytes()?.to_vec();
        let end = if bool::get(reader)? { Some(reader.bytes()?.to_vec()) } else { None };
        Some(Self(KeyRange { start, end }))
    }
}

/// Facts about a shard that the owner sends at the registration. The host returns them to the next
/// owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardInfo {
    /// Column family of the shard.
    pub family: CfId,
    /// Keys of its bucket.
    pub keys: KeySpan,
    /// Sequence number up to which older shards and tables have all records of these keys. The
    /// shard or a table has every record between it and `last_seq`.
    pub after_seq: SeqNo,
    /// Largest sequence number of the memtable.
    pub last_seq: SeqNo,
    /// Oldest log segment that holds a record of the shard.
    pub oldest_log: u64,
    /// Log segment in which the memtable was sealed.
    pub seal_log: u64,
}
wire_struct!(ShardInfo { family, keys, after_seq, last_seq, oldest_log, seal_log });

/// A part of an image that the owner has written into its grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Offset of the piece within the grant.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// XXH3-64 of the bytes. A CRC-32C would detect nothing here: over bytes that end with their
    /// own CRC-32C, it is the same for all contents.
    pub sum: u64,
}
wire_struct!(Piece { at, len, sum });

/// Place of a registered image, for readers that fetch bytes of it one-sided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPlace {
    /// Key that opens the region of the image for reading.
    pub key: RemoteKey,
    /// Offset of the image within the region.
    pub at: u64,
    /// Length of the image in bytes.
    pub bytes: u64,
}
wire_struct!(ShardPlace { key, at, bytes });

/// A registered shard, as the host lists it for the next owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedShard {
    /// Name of the shard.
    pub name: ShardName,
    /// Facts that its owner sent at the registration.
    pub info: ShardInfo,
    /// Place of its image.
    pub place: ShardPlace,
}
wire_struct!(ListedShard { name, info, place });

/// The memory of a node that a database has, and may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeShare {
    /// Bytes of memory that it uses: its landing zone and its arenas.
    pub used_bytes: u64,
    /// Bytes of memory that it is guaranteed.
    pub guaranteed_bytes: u64,
    /// Bytes of images that it may have, those included that it has. If it has more, it must flush
    /// some of them: the limit falls because other databases claim memory, or the node is drained.
    pub limit_bytes: u64,
    /// Number of databases that the node counts now, this one included. A database counts until
    /// the node drops it, or until it has no shards and its owner has been silent for a while.
    pub databases: u32,
}
wire_struct!(NodeShare { used_bytes, guaranteed_bytes, limit_bytes, databases });

/// The account of one database at a node, in bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseAccount {
    /// Database in question.
    pub db: OffloadDb,
    /// Bytes of the images of its registered shards, and of those that are arriving.
    pub image_bytes: u64,
    /// Bytes that it uses: its landing zone and its arenas.
    pub used_bytes: u64,
    /// Bytes that it is guaranteed.
    pub guaranteed_bytes: u64,
    /// Bytes that it uses beyond its guarantee.
    pub borrowed_bytes: u64,
    /// Bytes that it may use now; 0 while the node is drained.
    pub share_bytes: u64,
    /// Bytes that it has asked for in vain, beyond those that it uses.
    pub claimed_bytes: u64,
}
wire_struct!(DatabaseAccount {
    db,
    image_bytes,
    used_bytes,
    guaranteed_bytes,
    borrowed_bytes,
    share_bytes,
    claimed_bytes,
});

/// A key of a request for several keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyAsk {
    /// User key in question.
    pub key: Payload,
    /// Sequence number of the newest range tombstone that covers the key, as far as the owner
    /// knows; 0 without one. The answer leaves older versions out.
    pub floor: SeqNo,
    /// Shards to search, as indexes into the list of the request, newest first.
    pub within: Vec<u32>,
}
wire_struct!(KeyAsk { key, floor, within });

/// The place of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordPlace {
    /// Shard that has the record, as an index into the list of the request.
    pub shard: u32,
    /// Offset within the image of the shard.
    pub at: u64,
    /// Length of the record in bytes.
    pub len: u64,
}
wire_struct!(RecordPlace { shard, at, len });

/// The stored value of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredValue {
    /// The stored bytes.
    Inline(Payload),
    /// The stored bytes and the place of the whole record, which the reader has asked for.
    Placed {
        /// Stored bytes of the value.
        value: Payload,
        /// Place of the record.
        place: RecordPlace,
    },
    /// The place of the whole record, because the value is longer than the request permits.
    At(RecordPlace),
}

impl StoredValue {
    /// The place of the record; `None` for an inline value without a place.
    #[must_use]
    pub fn place(&self) -> Option<RecordPlace> {
        match self {
            Self::Inline(_) => None,
            Self::Placed { place, .. } | Self::At(place) => Some(*place),
        }
    }
}

/// One byte for the variant, then its fields.
impl Wire for StoredValue {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(value) => {
                put_u8(out, 1);
                value.put(out);
            }
            Self::At(place) => {
                put_u8(out, 2);
                place.put(out);
            }
            Self::Placed { value, place } => {
                put_u8(out, 3);
                place.put(out);
                value.put(out);
            }
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        match reader.u8()? {
            1 => Wire::get(reader).map(Self::Inline),
            2 => Wire::get(reader).map(Self::At),
            3 => {
                let place = Wire::get(reader)?;
                Some(Self::Placed { value: Wire::get(reader)?, place })
            }
            _ => None,
        }
    }
}

/// One version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Sequence number of the record.
    pub seq: SeqNo,
    /// Kind of the record.
    pub kind: Kind,
    /// Stored value of the record.
    pub value: StoredValue,
}

impl Version {
    /// Whether a point record of a memtable may be of this kind.
    #[must_use]
    pub fn may_have(kind: Kind) -> bool {
        matches!(kind, Kind::Delete | Kind::Put | Kind::Merge | Kind::PutExpiring)
    }
}

/// The fields in order. The kind is the byte that files use.
impl Wire for Version {
    fn put(&self, out: &mut Vec<u8>) {
        self.seq.put(out);
        put_u8(out, self.kind as u8);
        self.value.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let seq = Wire::get(reader)?;
        let kind = Kind::from_byte(reader.u8()?).filter(|kind| Self::may_have(*kind))?;
        Some(Self { seq, kind, value: Wire::get(reader)? })
    }
}

/// Versions of one key, newest first, up to the first that is no merge operand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyVersions {
    /// Versions that the host found.
    pub versions: Vec<Version>,
    /// Snapshot with which the search goes on, if the answer had no room for all versions. `None`
    /// if the search has ended.
    pub resume: Option<SeqNo>,
}
wire_struct!(KeyVersions { versions, resume });

/// Direction of a scan, by user keys. The versions of a key come newest first in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From small keys to large ones.
    #[default]
    Forward,
    /// From large keys to small ones.
    Backward,
}
wire_enum!(Direction { Forward = 1, Backward = 2 });

/// A record of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRecord {
    /// User key in question.
    pub key: Payload,
    /// Version of the key.
    pub version: Version,
}
wire_struct!(PageRecord { key, version });

/// The place at which the next page of a scan begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeAt {
    /// User key in question.
    pub key: Payload,
    /// The page begins with versions of the key that have at most this sequence number. With `None`
    /// it begins after the key, in the direction of the scan.
    pub seq: Option<SeqNo>,
}
wire_struct!(ResumeAt { key, seq });

/// The end of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageEnd {
    /// The scan has ended.
    Finished,
    /// The next page begins after the last record of this one.
    AfterLast,
    /// The next page begins here. This page has no records, because it visited too many records
    /// that the reader does not see.
    At(ResumeAt),
}

impl PageEnd {
    /// The place at which the next page begins, after a page of `records`. `None` at the end of the
    /// scan.
    #[must_use]
    pub fn resume(self, records: &[PageRecord]) -> Option<ResumeAt> {
        match self {
            Self::Finished => None,
            Self::At(resume) => Some(resume),
            Self::AfterLast => records.last().map(|PageRecord { key, version }| {
                let older = version.seq.0.checked_sub(1).map(SeqNo);
                let seq = older.filter(|_| version.kind == Kind::Merge);
                ResumeAt { key: key.clone(), seq }
            }),
        }
    }
}

/// One byte for the variant, then the place if the variant has one.
impl Wire for PageEnd {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Finished => put_u8(out, 1),
            Self::AfterLast => put_u8(out, 2),
            Self::At(resume) => {
                put_u8(out, 3);
                resume.put(out);
            }
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        match reader.u8()? {
            1 => Some(Self::Finished),
            2 => Some(Self::AfterLast),
            3 => Wire::get(reader).map(Self::At),
            _ => None,
        }
    }
}
