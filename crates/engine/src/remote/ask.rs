//! Requests to a [`ShardStore`](super::ShardStore) and its answers. All are plain values.

use std::time::Duration;

use archipelago_base::SeqNo;

use super::{ShardId, StoreNode};
use crate::key::{KeyRange, Kind};
use crate::pinned::PinnedSlice;

/// Keys to look up in shards of one node.
#[derive(Clone, Debug)]
pub struct LookupAsk<'a> {
    /// Node that has all of the shards.
    pub node: StoreNode,
    /// Shards that the keys refer to.
    pub shards: Vec<ShardId>,
    /// Keys to look up, at least one.
    pub keys: Vec<KeyAsk<'a>>,
    /// Largest sequence number that the reader sees.
    pub snapshot: SeqNo,
    /// Whether values may be left out. The answer may then have an empty value for a put and for
    /// an operand. A [`Kind::PutExpiring`] always has at least the eight bytes of its expiry, which
    /// are the first ones of its stored value.
    pub keys_only: bool,
    /// Time within which the store answers. After it, the answer is
    /// [`AwayError::Busy`](super::AwayError::Busy).
    pub time_left: Duration,
}

/// A key of a [`LookupAsk`].
#[derive(Clone, Debug)]
pub struct KeyAsk<'a> {
    /// User key to look up.
    pub key: &'a [u8],
    /// Sequence number of the newest range tombstone over the key that the database knows of; 0
    /// without one. Older versions are not needed.
    pub floor: SeqNo,
    /// Shards to search for this key, as indexes into [`LookupAsk::shards`], newest first.
    pub within: Vec<u32>,
}

/// Answer to a [`LookupAsk`].
#[derive(Clone, Debug, Default)]
pub struct LookupAnswer {
    /// Versions of each key, in the order of the ask.
    pub keys: Vec<KeyVersions>,
}

/// Versions of one key, newest first, through the first one that is not a merge operand.
#[derive(Clone, Debug, Default)]
pub struct KeyVersions {
    /// Versions that the shards have. Empty if they have none, which is an answer and no failure.
    pub versions: Vec<ShardVersion>,
}

/// One version of a key.
#[derive(Clone, Debug)]
pub struct ShardVersion {
    /// Sequence number of the record.
    pub seq: SeqNo,
    /// Kind of the record; one of a point record.
    pub kind: Kind,
    /// Stored value of the record, as it is in the image.
    pub value: PinnedSlice,
}

/// Direction of a scan, by user keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanDirection {
    /// From small keys to large ones.
    Forward,
    /// From large keys to small ones. The versions of one key still come newest first.
    Backward,
}

/// A page of a scan over shards of one node.
#[derive(Clone, Debug)]
pub struct ScanAsk<'a> {
    /// Node that has all of the shards.
    pub node: StoreNode,
    /// Shards to scan, newest first.
    pub shards: &'a [ShardId],
    /// User keys of the whole scan.
    pub keys: &'a KeyRange,
    /// Place at which the previous page ended; `None` for the first page. Its key is one of `keys`.
    pub resume: Option<&'a ResumeAt>,
    /// Direction of the scan.
    pub direction: ScanDirection,
    /// Largest sequence number that the reader sees.
    pub snapshot: SeqNo,
    /// Bytes of keys and values that the page should not exceed. A page may be smaller, and may
    /// exceed it by one record.
    pub bytes_max: usize,
    /// Whether values may be left out, as [`LookupAsk::keys_only`] says.
    pub keys_only: bool,
    /// Time within which the store answers, as [`LookupAsk::time_left`] says.
    pub time_left: Duration,
}

/// The place at which a page of a scan begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeAt {
    /// User key at which the page begins.
    pub key: Vec<u8>,
    /// The page begins with versions of that key with at most this sequence number. With `None` it
    /// begins with the key after it, in the direction of the scan.
    pub seq: Option<SeqNo>,
}

/// Answer to a [`ScanAsk`]. For each key it has the versions that the snapshot sees, through the
/// first one that is not a merge operand. Versions that the shards shadow among themselves may be
/// left out.
#[derive(Clone, Debug, Default)]
pub struct ScanPage {
    /// Records in the order of the scan. A page that does not end the scan may be empty, if the
    /// node has visited many records that the snapshot does not see.
    pub records: Vec<ScanRecord>,
    /// Place at which the next page begins; `None` at the end of the scan. It lies after the
    /// records of this page, so a scan always ends.
    pub resume: Option<ResumeAt>,
}

/// A record of a page.
#[derive(Clone, Debug)]
pub struct ScanRecord {
    /// Internal key, as [`crate::key::encode`] encodes it.
    pub key: Vec<u8>,
    /// Stored value of the record, as it is in the image.
    pub value: PinnedSlice,
}
