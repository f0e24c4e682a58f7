//! The messages between owners, schedulers and executors. `docs/formats/offload-messages.md` has
//! the byte table.
//!
//! Invariants:
//! 1. Every message may arrive twice, late or never (docs/design/offload.md, rule 5). The receiver
//!    decides by job, epoch, attempt and term, which the message contains.
//! 2. A decoder answers every input with a message or with an error.
//!
//! Thread-safety: messages are plain values, and the functions are pure.
//! Failure: the frames of the fabric have checksums, so a malformed message means a faulty sender.
//! Cost: O(bytes); decoding copies a payload once.

mod jobs;
mod message;
pub mod shard;
mod status;

pub use jobs::{JobList, JobPhase, JobStanding, QueueStanding};
pub use message::{Correspondent, OffloadMessage, Running};
pub use status::{
    ExecutorStanding, FallbackCount, OwnerReport, OwnerStanding, RecentFailure, SchedulerStatus,
};

/// The four highest bits of the first byte of every message of this protocol. Messages of shards
/// have 0x70 there, those of FlexKV have 0x80 or more, and those of storage nodes 0x40 or 0x50.
/// Those of the pool have none of the three highest bits. So a manager distinguishes the protocols.
const MARK: u8 = 0x60;

/// Version of the messages, which is the first byte of each.
pub const VERSION: u8 = MARK | 7;

/// Whether the body of a request is a message of this protocol, of any version. It is false for a
/// message of shards, although such a message has the same three highest bits
/// ([`shard::is_shard_message`]).
#[must_use]
pub fn is_offload_message(body: &[u8]) -> bool {
    body.first().is_some_and(|first| first & 0xf0 == MARK)
}

#[cfg(test)]
mod tests;
