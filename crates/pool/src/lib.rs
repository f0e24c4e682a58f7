//! The pool: memory of many nodes, in blocks that survive the loss of a node and the death of their
//! owner.
//!
//! Memory nodes serve **blocks** (16 MiB by default); a manager says on which nodes a block's
//! copies lie and whose it is; clients write all copies one-sided, read the first, and cut blocks
//! into pieces by themselves ([`Heap`]). Neither the manager nor a node's processor takes part in
//! reading and writing. [`PoolClient`] is the client, for tasks over threads or in virtual time;
//! [`Pool`] is the same for threads.
//!
//! What holds, whatever fails (`docs/design/pool.md` says how, and the seeded runs try it):
//!
//! 1. A write that was acknowledged is on every copy of its block, and stays readable as long as a
//!    quorum of the block's nodes keep their memory, and one of them between changes.
//! 2. A block has one owner at a time. Before another gets it, no write of the former can take
//!    place any more.
//! 3. The blocks of a client that dies go to another client of its label, or wait for one; they are
//!    not freed.
//! 4. A released block is freed after a lease. A node never holds more than its size.
//! 5. Leases decide when somebody is *taken* for dead; nothing of the above depends on clocks.
//!
//! Layer 2: stands on the fabric. What it awaits are [`Promise`](archipelago_fabric::Promise)s, and
//! a [`Runtime`](archipelago_base::runtime::Runtime)'s sleep.

mod address;
mod client;
mod config;
mod endpoint;
mod heap;
mod line;
mod membership;
mod open_block;
mod opening;
mod options;
mod pool;
mod route;
mod shared;
pub mod wire;

pub use address::{Address, BlockId, NUMBERS_MAX, Packing};
pub use client::PoolClient;
pub use config::{Config, Place, Sharing, asker_of_promises, copier};
pub use endpoint::{Endpoints, endpoint};
pub use heap::{Heap, HeapStats, Piece};
pub use line::Line;
pub use membership::{Membership, Owned};
pub use open_block::{OpenBlock, OpenCopy, Writing};
pub use options::{Pace, PoolOptions};
pub use pool::Pool;
pub use route::{Reach, Route};

pub use archipelago_fabric::{ClientId, NodeId};

/// Bytes of a block unless a node is told otherwise.
pub const BLOCK_BYTES: u64 = 16 << 20;
