//! The messages, one variant each.

use std::fmt;

use archipelago_base::wire::Malformed;
use archipelago_base::{Epoch, Error, SeqNo, wire_messages};
use archipelago_fabric::{RemoteKey, RouteMessage};

use super::values::{
    DatabaseAccount, Direction, KeyAsk, KeySpan, KeyVersions, ListedShard, NodeShare, PageEnd,
    PageRecord, Piece, ResumeAt, ShardInfo, ShardName, ShardPlace,
};
use super::{SHARD_VERSION, ShardRefusal};
use crate::ids::OwnerStamp;
use crate::job::Payload;

/// Codes of the messages that only read.
pub(super) const READS: [u8; 3] = [5, 6, 7];

/// Codes of the messages about an owner and its names, which take no time at the host: begin,
/// release, list, adopt, purge, accounts, drain and give back.
pub(super) const NOTICES: [u8; 8] = [1, 4, 8, 9, 10, 11, 12, 13];

wire_messages! {
    /// A message between an owner and a shard host (O³-LSM §4.2 and §4.5).
    ShardMessage, version SHARD_VERSION {
    /// Owner → host: this open of the database owns its shards from now on. The owner repeats the
    /// message as a sign of life. The host drops the shards of an owner that was silent for ten
    /// minutes.
    Begin = 1 {
        /// Owner that begins.
        owner: OwnerStamp,
        /// Size in bytes that the owner wants for its landing zone.
        landing_bytes: u64,
        /// Bytes of the node's memory that the database is to be guaranteed. 0 for an equal part
        /// of what others leave.
        guaranteed_bytes: u64,
    }
    /// Owner → host: give room for the whole image of a shard, which may still take writes. A shard
    /// has one grant at a time.
    Land = 2 {
        /// Owner of the shard.
        owner: OwnerStamp,
        /// Shard that will be registered.
        shard: ShardName,
        /// Bytes of the image at most.
        bytes: u64,
    }
    /// Owner → host: the image of the shard lies in the grant. The concatenation of the pieces, in
    /// their order, is the image.
    Register = 3 {
        /// Owner of the shard.
        owner: OwnerStamp,
        /// Shard to register.
        shard: ShardName,
        /// Number of the grant.
        grant: u64,
        /// Facts about the shard, which the host keeps for the next owner.
        info: ShardInfo,
        /// Parts of the image.
        pieces: Vec<Piece>,
    }
    /// Owner → host: these shards are not needed any more, whether they are registered or not.
    /// Their grants become void.
    Release = 4 {
        /// Owner of the shards.
        owner: OwnerStamp,
        /// Shards of any epoch.
        shards: Vec<ShardName>,
        /// Number of the oldest memtable of the owner's epoch that may have shards here.
        oldest: u64,
    }
    /// Owner → host: search these shards for the versions of one key.
    Get = 5 {
        /// Owner of the shards.
        owner: OwnerStamp,
        /// Shards to search, newest first.
        shards: Vec<ShardName>,
        /// User key in question.
        key: Payload,
        /// Sequence number of the newest covering range tombstone; see [`KeyAsk`].
        floor: SeqNo,
        /// Largest sequence number that the reader sees.
        snapshot: SeqNo,
        /// Bytes of the longest value that the answer contains.
        inline_max: u32,
        /// Whether the answer contains the place of the newest version of a key, if that is a put.
        wants_place: bool,
    }
    /// Owner → host: search these shards for the versions of several keys.
    MultiGet = 6 {
        /// Owner of the shards.
        owner: OwnerStamp,
        /// Shards that the keys refer to.
        shards: Vec<ShardName>,
        /// Keys in question.
        asks: Vec<KeyAsk>,
        /// Largest sequence number that the reader sees.
        snapshot: SeqNo,
        /// Bytes of the longest value that the answer contains.
        inline_max: u32,
        /// Whether the answer contains the place of the newest version of a key, if that is a put.
        wants_place: bool,
    }
    /// Owner → host: a page of the records of these shards, merged.
    Scan = 7 {
        /// Owner of the shards.
        owner: OwnerStamp,
        /// Shards to scan, newest first.
        shards: Vec<ShardName>,
        /// Keys of the whole scan.
        keys: KeySpan,
        /// Place at which the previous page ended; `None` for the first page.
        resume: Option<ResumeAt>,
        /// Direction of the scan.
        direction: Direction,
        /// Largest sequence number that the reader sees.
        snapshot: SeqNo,
        /// Bytes of the page at most. Values that it names by their places count, unless
        /// `inline_max` is at most [`KEYS_ONLY_BYTES`](super::KEYS_ONLY_BYTES).
        bytes_max: u32,
        /// Bytes of the longest value that the page contains.
        inline_max: u32,
    }
    /// Owner → host: list the shards of the database that the host has.
    List = 8 {
        /// Owner that asks.
        owner: OwnerStamp,
        /// Last shard of the previous answer; `None` for the first request.
        after: Option<ShardName>,
    }
    /// Owner → host: the sender takes over these shards of earlier owners.
    Adopt = 9 {
        /// Owner that adopts.
        owner: OwnerStamp,
        /// Shards of earlier epochs.
        shards: Vec<ShardName>,
    }
    /// Owner → host: drop all shards of earlier owners that were not adopted.
    Purge = 10 {
        /// Owner in question.
        owner: OwnerStamp,
    }
    /// Operator → host: how much memory does each database use?
    Accounts = 11 {
    }
    /// Operator → host: from now on, give no database room for shards, so that all shards leave by
    /// flushes. `false` ends that. The next life of the node does not keep this order.
    Drain = 12 {
        /// Whether the shards are to leave.
        is_draining: bool,
    }
    /// Owner → host: this grant of a shard is void. The shard may get another grant, unlike after a
    /// release. Nothing happens if the shard has no such grant, or if its image is being copied.
    GiveBack = 13 {
        /// Owner of the shard.
        owner: OwnerStamp,
        /// Shard of the owner's epoch.
        shard: ShardName,
        /// Number of the grant.
        grant: u64,
    }
    /// Host → owner: answer to [`ShardMessage::Begin`].
    Begun = 32 {
        /// Life of the node. A node in another life has none of the shards.
        life: Epoch,
        /// Bytes of the landing zone.
        landing_bytes: u64,
        /// Size in bytes of the largest image that the host takes.
        image_bytes_max: u64,
        /// Memory that the database has, and may have.
        share: NodeShare,
        /// Number of shards of the database that the host has, of all epochs.
        shards: u32,
    }
    /// Host → owner: answer to [`ShardMessage::Land`]. Room for the image is reserved.
    Landing = 33 {
        /// Number of the grant, which no other grant of this life of the node has.
        grant: u64,
        /// Key of the landing zone, for writing.
        key: RemoteKey,
        /// Offset of the grant within the landing zone.
        at: u64,
        /// Bytes of the grant.
        bytes: u64,
        /// Bytes of the longest grant that the landing zone can still give.
        credit_bytes: u64,
        /// Memory that the database has, and may have.
        share: NodeShare,
    }
    /// Host → owner: answer to [`ShardMessage::Register`]. The shard can be read.
    Registered = 34 {
        /// Place of the image.
        place: ShardPlace,
    }
    /// Host → owner: answer to [`ShardMessage::Release`], [`ShardMessage::Adopt`],
    /// [`ShardMessage::Purge`] and [`ShardMessage::GiveBack`].
    Done = 35 {
        /// Number of shards that the request changed, or of grants that it has ended.
        shards: u32,
        /// Memory that the database has, and may have.
        share: NodeShare,
    }
    /// Host → owner: answer to [`ShardMessage::Get`].
    Versions = 36 {
        /// Versions of the key.
        found: KeyVersions,
    }
    /// Host → owner: answer to [`ShardMessage::MultiGet`].
    ManyVersions = 37 {
        /// Versions of each key that the answer has room for, in the order of the request. It has
        /// at least one.
        found: Vec<KeyVersions>,
    }
    /// Host → owner: answer to [`ShardMessage::Scan`].
    Page = 38 {
        /// Records in the order of the scan.
        records: Vec<PageRecord>,
        /// End of the page.
        end: PageEnd,
    }
    /// Host → owner: answer to [`ShardMessage::List`].
    Listed = 39 {
        /// Shards by ascending name.
        shards: Vec<ListedShard>,
        /// Whether more shards follow.
        more: bool,
    }
    /// Host → owner: the request changed nothing.
    Refused = 40 {
        /// Reason of the host.
        refusal: ShardRefusal,
    }
    /// Host → operator: answer to [`ShardMessage::Accounts`] and [`ShardMessage::Drain`].
    Accounted = 41 {
        /// Bytes of memory that shards may use now, also while the node is drained.
        limit_bytes: u64,
        /// Whether an operator drains the node.
        is_draining: bool,
        /// Bytes of the images of all databases, those included that are arriving. The node is
        /// empty if there are none.
        image_bytes: u64,
        /// Accounts by the names of the databases, 256 at most.
        databases: Vec<DatabaseAccount>,
    }
    }
}

impl RouteMessage for ShardMessage {
    fn encode(&self) -> Vec<u8> {
        Self::encode(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::decode(bytes)
    }

    /// A memory node never stands by.
    fn standby(&self, _: &dyn fmt::Display) -> Option<Error> {
        None
    }
}
