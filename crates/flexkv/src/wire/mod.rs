//! The messages between compute nodes and their coordinator: bodies of the fabric's requests and
//! answers. `docs/formats/flexkv.md` has the byte tables.
//!
//! A request may arrive late, twice or never. The fabric executes a numbered request once. Beyond
//! the life of a node, epochs of partitions and versions of the map decide whether a request still
//! counts. A decoder answers every input with a message or with an error in words.

mod message;
#[cfg(test)]
mod tests;

pub use message::{
    Assigned, Candidate, ComputeStatus, Figure, Grant, MARK, Member, Message, Payload, Place,
    ReadCount, SLOTS_BUCKETS_MAX, Shaped, StoreStatus, VERSION, Why, WriteKind, is_ours,
};
