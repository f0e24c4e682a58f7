//! The messages between clients, memory nodes and the manager: bodies of the fabric's requests and
//! answers. `docs/formats/pool.md` has the byte tables.
//!
//! Invariants:
//! 1. Every request gets an answer immediately, except [`Message::Allocate`], which may wait for
//!    nodes.
//! 2. A request may arrive late, twice or never. The receiver decides by terms, epochs, lives and
//!    request numbers, which the message contains.
//! 3. A decoder answers every input with a message or with an error. It allocates nothing for a
//!    count before the counted bytes exist.
//!
//! Thread-safety: messages are plain values, and the functions are pure.
//! Failure: the frames of the fabric have checksums, so a malformed message means a faulty sender.
//! Cost: O(bytes).

mod message;
mod parts;
#[cfg(test)]
mod tests;

pub use message::Message;
pub use parts::{
    BlockAt, BlockState, BlockStatus, ClientStatus, CopyReport, CopyStep, Member, NodeCounters,
    NodeStatus, PoolStatus, Purpose, Refused, RefusedFor, Source, Why,
};

/// Version of the messages; the first byte of each.
pub const VERSION: u8 = 3;
