//! What compute nodes and their coordinator say to each other: bodies of the fabric's requests and
//! answers. `docs/formats/flexkv.md` has the byte tables.
//!
//! Every request may come late, twice or never. The fabric executes a numbered request once; beyond
//! the life of a node, epochs of partitions and versions of the map decide. A decoder answers every
//! input with a message or a sentence.

mod message;
#[cfg(test)]
mod tests;

pub use archipelago_pool::wire::Malformed;
pub use message::{
    Assigned, Candidate, ComputeStatus, Figure, Grant, MARK, Member, Message, Payload, Place,
    ReadCount, SLOTS_BUCKETS_MAX, Shaped, StoreStatus, VERSION, Why, WriteKind, is_ours,
};
