//! Rivals: the same store with other ideas of where the index is and what is cached, to be compared
//! with. Not for use.
//!
//! | mode | after | reads | updates of the index |
//! | --- | --- | --- | --- |
//! | [`Rival::Base`] | Aceso | address cache, else the index in the pool | one swap, on one copy |
//! | [`Rival::Fusee`] | FUSEE | the same; buckets are read beside every record | a swap on every copy (SNAPSHOT) |
//! | [`Rival::Clover`] | Clover | address cache, else the metadata server | by the metadata server, in its memory |
//! | [`Rival::Ownership`] | DINOMO, DEX | at the partition's node | at the partition's node, which does all of it |
//!
//! Everything else is shared with the store: records, their copies and valid bits, blocks, maps,
//! messages, the fabric. So what differs in a measurement is what the table says.
//!
//! **What they leave out.** Nobody survives failures: a swap on one copy is lost with that copy, a
//! metadata server takes the index along (also when a subtable is to grow: it is made large
//! enough), a writer that dies between the swaps of a slot's copies blocks it. Inserts and
//! deletions go through the partition's node, as the store's own one-sided path has it
//! (decision 0017), and swap in the mode's way there.
//!
//! All but the last are meant for nodes that cache addresses alone
//! ([`CacheMode::Addresses`](crate::CacheMode::Addresses)) and, but for Clover, for ratio 0.
//! Thread-safety: all of it. Paper: §2.2, §5.1.

mod carry;
mod swap;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// An address cache and one swap of one copy of the index.
    Base,
    /// A swap of every copy.
    Fusee,
    /// One node has the whole index
    /// ([`Coordinator::concentrate`](crate::coordinator::Coordinator::concentrate)).
    Clover,
    /// Requests are sent to the partition's node.
    Ownership,
}
