//! What clients, memory nodes and the manager say to each other: bodies of the fabric's requests
//! and answers. `docs/formats/pool.md` has the byte tables.
//!
//! Every request gets an answer at once, except [`Message::Allocate`], which may wait for nodes.
//! Every request may come late, twice or never: whoever is asked decides by terms, epochs, lives
//! and request numbers, which all stand in the message. A decoder answers every input with a
//! message or with a sentence; nothing is allocated that a count asks for before the bytes are
//! there. Checksums are the fabric's frames'.

pub mod codec;
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

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}
