//! The messages between clients, storage nodes and the manager, and the values of the store that
//! nodes and namespaces keep. `docs/formats/store-messages.md` and `docs/formats/store-values.md`
//! have the byte tables.
//!
//! | part | file |
//! | --- | --- |
//! | [`StoreMessage`]: requests and answers | `message.rs` |
//! | [`envelope`]: a message and its payload as the body of a request or an answer | `envelope.rs` |
//! | identities, descriptors, members and refusals | `parts.rs` |
//! | reports of nodes and the status of the cluster | `status.rs` |
//! | chunks and extents for repairs, and the status of repairs | `repair.rs` |
//! | requests and answers of the register | `register.rs` |
//! | [`stored`]: values with a version, and with magic and checksum where nothing else has them | `stored.rs` |
//!
//! A request or an answer is an envelope: a message, and a payload of raw bytes behind it. Only
//! chunks and logs have payloads.
//!
//! Invariants:
//! 1. A request may arrive late, twice or never, and a second execution changes nothing. The
//!    receiver decides by epochs, offsets and ballots, which the message contains.
//! 2. A node executes the requests for one chunk or one extent that arrive over one link in their
//!    order. So a client may have several of them in flight.
//! 3. [`ChunkId::index`] is the index that checksums are bound to: 0 for every replica. A node
//!    holds at most one replica of a blob.
//! 4. A decoder answers every input with a value or with an error. It allocates nothing for a count
//!    before the counted bytes exist.
//!
//! Thread-safety: messages are plain values, and the functions are pure.
//! Failure: the fabric's frames have the checksums of messages, so a malformed message means a
//! faulty sender.
//! Cost: O(bytes). An envelope copies its payload once, or not at all if it is sent in two parts.

pub mod envelope;
mod message;
mod parts;
mod register;
mod repair;
mod status;
pub mod stored;
#[cfg(test)]
pub(crate) mod tests;

pub use message::StoreMessage;
pub use parts::{
    BlobEntry, BlobHint, ChunkDescriptor, ChunkId, ChunkRange, ExtentAt, Holder, LogEntry,
    MemberState, Members, NodeSpace, PlacementEpoch, RefusalWhy, Refused, Stamp, StorageMember,
};
pub use repair::{CodingDue, HeldChunk, MissingChunk, NodeDebt, RepairStatus, SealedExtent};
pub use status::{
    ClassTraffic, DeviceStatus, NodeStanding, ScrubStatus, StorageClusterStatus, StorageCounters,
    StorageReport, UnservedBytes, VolumeSpace,
};

/// The highest three bits of a version. Messages of the pool have none of them, those of FlexKV
/// have 0x80, and those of offloaded jobs have 0x60. So a manager distinguishes the messages by
/// their first byte.
const MARK: u8 = 0x40;

/// Version of the messages; the first byte of each, and of each envelope.
pub const VERSION: u8 = MARK | 5;

/// Whether the body of a request is a message of the store, of any version.
#[must_use]
pub fn is_store_message(body: &[u8]) -> bool {
    body.first().is_some_and(|first| first & 0xe0 == MARK)
}
