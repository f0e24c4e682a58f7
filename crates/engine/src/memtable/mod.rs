//! Memtable shards: the newest writes of one bucket, sorted, in memory.
//!
//! A memtable is a vector of [`Shard`]s, one for each bucket of the map with which it was created.
//! The write path owns it. A shard is position-independent (O³-LSM §4.2, one step further): records
//! lie in a KV-block (`kv`), and an index-block (`tree`) refers to them. Every reference is a slab
//! number and an offset, never an address. A sealed shard can be written as an image (`image`) that
//! another process searches in place.
//!
//! ```text
//! Shard ── KvBlock ── SlabTable ── slabs of records      SlabPool (one per database)
//!       └─ Tree ───── SlabTable ── slabs of nodes         └─ ByteBudget
//! ```
//!
//! Hazards of such a structure, and the code that prevents each of them:
//! 1. *An old order with a new, narrower child.* The separator is published before the child is
//!    swapped. A reader reads the order word again after loading the child (`node` 4).
//! 2. *A node's prefixes used for a key outside its fences.* After a step to a neighbour leaf,
//!    whole keys are compared (`search`, `cursor`).
//! 3. *A live leaf whose range shrinks* (the split for ascending inserts). A search that passes the
//!    end of a leaf searches the next one; it does not take its first slot (`tree` 2).
//! 4. *A torn order.* Two buffers, exact recheck of the version, fences on both sides (`node` 3).
//! 5. *Reads of slots that are being written.* Slots are atomics, and only slots named by a checked
//!    order are read (`node` 1).
//! 6. *A wrong guess of the shared prefix.* The map from keys to prefixes is monotone for any
//!    guess. Whole keys settle ties and separators (`search`).
//! 7. *Page faults, moved memory, references that overflow.* A pool recycles slabs, and they are
//!    never reallocated. A slab whose number would not fit is refused before anything is written
//!    (`slab`, `kv`).
//! 8. *A seal while a record is reserved but not written.* [`Shard::seal`] waits until every
//!    reserved byte is in the index.
//! 9. *Long critical sections.* Copy, checksum and descent happen outside the write lock, which
//!    spins and then yields (`tree`).

mod cursor;
mod filter;
mod image;
mod kv;
mod node;
mod packed;
mod regions;
mod search;
mod shard;
mod slab;
mod split;
mod tree;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use archipelago_base::{Result, SeqNo};

use crate::iter::InternalIterator;
use crate::tombstone::RangeTombstone;

pub use cursor::ShardIter;
pub use filter::Filter as ShardFilter;
pub use image::{IMAGE_VERSION, ImageHead, ImageIter, RecordSpan, SealedImage, decode_record};
pub use shard::Shard;
pub use slab::{SLAB_BYTES_MAX, SLAB_BYTES_MIN, SlabPool};

/// A shard that takes no more inserts, in its own memory or as an image; the input of a flush.
pub trait SealedShard: Send + Sync {
    /// A cursor over all point records in order. It verifies every record's checksum when it
    /// reaches the record. A mismatch ends the walk with `Corrupt` in its status.
    fn verified_iter(self: Arc<Self>) -> Box<dyn InternalIterator>;
    /// The range tombstones, in any order.
    fn tombstone_list(&self) -> Vec<RangeTombstone>;
    /// Number of point records.
    fn entries(&self) -> u64;
    /// Bytes of the records as stored, tombstones included.
    fn data_bytes(&self) -> u64;
    /// Appends the shard's image ([`SealedImage`]), in which it travels to another process, to
    /// `out`.
    fn write_image(&self, out: &mut Vec<u8>) -> Result<()>;
    /// Smallest and largest sequence number; (`SeqNo::MAX`, `SeqNo::ZERO`) of an empty shard.
    fn seq_range(&self) -> (SeqNo, SeqNo);
}
