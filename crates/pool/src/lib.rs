//! The pool: memory of many nodes, in blocks that survive the loss of a node and the death of their
//! owner.
//!
//! Memory nodes serve **blocks** (16 MiB by default). A manager decides which nodes hold the copies
//! of a block and which client owns it. Clients write all copies one-sided, read the first, and cut
//! blocks into pieces by themselves ([`Heap`]). Neither the manager nor a node's processor takes
//! part in reads and writes. [`PoolClient`] is the client for tasks, over threads or in virtual
//! time. [`Pool`] is the client for threads.
//!
//! Invariants under all failures (`docs/design/pool.md` gives the protocol, and the seeded runs
//! test it):
//! 1. An acknowledged write is on every copy of its block. It stays readable as long as a quorum of
//!    the block's nodes keep their memory, and between changes as long as one of them does.
//! 2. A block has one owner at a time. Before another client gets the block, no write of the former
//!    owner can take place any more.
//! 3. The blocks of a dead client go to another client of its label, or wait for one. They are not
//!    freed.
//! 4. A released block is freed after a lease. A node never holds more than its size.
//! 5. Leases decide when a client or node is *declared* dead. The other invariants do not depend on
//!    clocks.
//!
//! Layer 2: uses the fabric. Its futures await [`Promise`](archipelago_fabric::Promise)s and the
//! sleep of a [`Runtime`](archipelago_base::runtime::Runtime).

mod address;
mod client;
mod config;
mod heap;
mod membership;
mod open_block;
mod opening;
mod options;
mod pool;
mod shared;
pub mod wire;

pub use address::{Address, BlockId, NUMBERS_MAX, Packing};
pub use client::PoolClient;
pub use config::{Config, Place, Sharing, asker_of_promises, copier};
pub use heap::{Heap, HeapStats, Piece};
pub use membership::{Membership, Owned};
pub use open_block::{OpenBlock, OpenCopy, Writing};
pub use options::{Pace, PoolOptions};
pub use pool::Pool;

pub use archipelago_fabric::{ClientId, NodeId};

/// Default size of a block in bytes.
pub const BLOCK_BYTES: u64 = 16 << 20;
