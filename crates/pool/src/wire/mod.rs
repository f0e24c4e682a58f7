//! What clients, memory nodes and the manager say to each other: bodies of the fabric's requests
//! and answers. `docs/formats/pool.md` has the byte tables.
//!
//! Every request gets an answer at once, except [`Message::Allocate`], which may wait for nodes.
//! Every request may come late, twice or never: whoever is asked decides by terms, epochs, lives
//! and request numbers, which all stand in the message. A decoder answers every input with a
//! message or with a sentence; nothing is allocated that a count asks for before the bytes are
//! there. Checksums are the fabric's frames'.

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
