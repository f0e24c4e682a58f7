//! Refusals of a shard host: the reason for which a request changed nothing, and the possible
//! reactions of the owner.

use std::fmt;

use archipelago_base::{wire_enum, wire_struct};

use super::ShardName;

/// Reason for which a host refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShardWhy {
    /// The queue is full, the same work is in progress, or other images fill the landing zone. The
    /// owner repeats the request later.
    Busy,
    /// The node has no room for the image. The number is the bytes that are left.
    Full,
    /// The image or the answer is larger than the node permits. The number is the limit in bytes.
    TooLarge,
    /// A newer owner of the database is known. The number is its epoch.
    OldEpoch,
    /// Another open of the database has the same epoch.
    OtherToken,
    /// The host does not know the database in this life. The owner must send `Begin` first.
    NotBegun,
    /// The host does not have the shard that the refusal names.
    UnknownShard,
    /// The grant was never given, was used up, or is void.
    UnknownGrant,
    /// The shard has an open grant of another size, which the owner must use or give back first.
    /// The number is the size of that grant in bytes.
    HasGrant,
    /// The shard was released, or its memtable is older than the oldest one that the owner has
    /// named.
    Retired,
    /// A piece of the image lies outside the grant, or its checksum does not match.
    BadPiece,
    /// The bytes of the pieces do not form a valid image of a shard.
    BadImage,
    /// The image holds other records than the owner announced.
    OtherRecords,
    /// The message cannot be read, or contradicts itself.
    Malformed,
}
wire_enum!(ShardWhy {
    Busy = 1,
    Full = 2,
    TooLarge = 3,
    OldEpoch = 4,
    OtherToken = 5,
    NotBegun = 6,
    UnknownShard = 7,
    UnknownGrant = 8,
    HasGrant = 9,
    Retired = 10,
    BadPiece = 11,
    BadImage = 12,
    OtherRecords = 13,
    Malformed = 14,
});

/// A refusal: the reason, and the number and the shard that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRefusal {
    /// Reason of the refusal.
    pub why: ShardWhy,
    /// Number that [`ShardWhy`] explains; 0 for reasons without one.
    pub number: u64,
    /// Shard that the reason names, if it names one.
    pub shard: Option<ShardName>,
}
wire_struct!(ShardRefusal { why, number, shard });

impl ShardRefusal {
    /// A refusal with a number.
    #[must_use]
    pub const fn at(why: ShardWhy, number: u64) -> Self {
        Self { why, number, shard: None }
    }

    /// The same refusal, which names a shard.
    #[must_use]
    pub const fn of(self, shard: ShardName) -> Self {
        Self { why: self.why, number: self.number, shard: Some(shard) }
    }
}

impl From<ShardWhy> for ShardRefusal {
    fn from(why: ShardWhy) -> Self {
        Self::at(why, 0)
    }
}

impl fmt::Display for ShardRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        match self.why {
            ShardWhy::Busy => write!(f, "the node is busy: ask again later"),
            ShardWhy::Full => write!(f, "the node has room for {number} bytes only"),
            ShardWhy::TooLarge => write!(f, "the node permits {number} bytes at most"),
            ShardWhy::OldEpoch => write!(f, "an owner of epoch {number} is known"),
            ShardWhy::OtherToken => write!(f, "another owner has the same epoch"),
            ShardWhy::NotBegun => write!(f, "the node does not know the database: begin first"),
            ShardWhy::UnknownShard => write!(f, "the node does not have the shard"),
            ShardWhy::UnknownGrant => write!(f, "the grant is not valid: ask for another"),
            ShardWhy::HasGrant => {
                write!(f, "the shard has a grant of {number} bytes: give it back")
            }
            ShardWhy::Retired => write!(f, "the owner has retired the memtable"),
            ShardWhy::BadPiece => write!(f, "the bytes in the landing zone are not those named"),
            ShardWhy::BadImage => write!(f, "the bytes are no image of a shard"),
            ShardWhy::OtherRecords => write!(f, "the image holds other records than announced"),
            ShardWhy::Malformed => write!(f, "the message cannot be read"),
        }?;
        match self.shard {
            Some(shard) => write!(f, " (shard {shard})"),
            None => Ok(()),
        }
    }
}
