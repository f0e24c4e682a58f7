//! The messages between an owner and the shard host of a memory node.
//! `docs/formats/shard-messages.md` has the byte table.
//!
//! Each message is a request of the fabric or its answer. A request names the open of the database
//! that sends it ([`OwnerStamp`](crate::ids::OwnerStamp)).
//!
//! Invariants:
//! 1. Every request may arrive twice, late or never. The host decides by shard, grant, epoch and
//!    token, which the request contains (docs/design/offload.md).
//! 2. A decoder answers every input with a message or with an error.
//!
//! Thread-safety: messages are plain values, and the functions are pure.
//! Failure: the frames of the fabric have checksums, so a malformed message means a faulty sender.
//! Cost: O(bytes); decoding copies each key and each value once.

mod message;
mod refusal;
mod values;

pub use message::ShardMessage;
pub use refusal::{ShardRefusal, ShardWhy};
pub use values::{
    DatabaseAccount, Direction, KeyAsk, KeySpan, KeyVersions, ListedShard, NodeShare, PageEnd,
    PageRecord, Piece, RecordPlace, ResumeAt, ShardInfo, ShardName, ShardPlace, StoredValue,
    Version,
};

/// The four highest bits of the first byte of every message of this protocol, of any version.
/// Messages of jobs have 0x60 there, and those of the pool none of these bits.
const MARK: u8 = 0x70;

/// Version of the messages, which is the first byte of each.
pub const SHARD_VERSION: u8 = MARK | 7;

/// Longest value, in bytes, of an answer to a reader that wants keys only. It has room for the
/// expiry of a record. A page with such a limit does not count the values that it names by their
/// places.
pub const KEYS_ONLY_BYTES: u32 = 16;

/// Whether the body of a request is a message of this protocol, of any version.
#[must_use]
pub fn is_shard_message(body: &[u8]) -> bool {
    body.first().is_some_and(|first| first & 0xf0 == MARK)
}

/// Whether the body of a request is a search of shards. Searches are short and change nothing.
#[must_use]
pub fn is_shard_read(body: &[u8]) -> bool {
    is_shard_message(body) && body.get(1).is_some_and(|code| message::READS.contains(code))
}

/// Whether the body of a request is a notice: a message about an owner and its names, which needs
/// no search and no copy.
#[must_use]
pub fn is_shard_notice(body: &[u8]) -> bool {
    is_shard_message(body) && body.get(1).is_some_and(|code| message::NOTICES.contains(code))
}

#[cfg(test)]
mod tests;
