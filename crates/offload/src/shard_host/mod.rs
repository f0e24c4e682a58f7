//! The shard host of a memory node: keeps sealed memtable shards of databases and searches them on
//! behalf of their owners (O³-LSM §4.2 and §4.5, docs/design/offload.md).
//!
//! An owner writes the image of a shard one-sided into its **landing zone**. The host copies it
//! into an **arena**, which only the host writes, freezes the copy, checks it completely, and
//! searches it there in place. So a late one-sided write of an owner cannot damage a registered
//! shard.
//!
//! | part | file |
//! | --- | --- |
//! | queue, worker threads, the interface of the memory node | `desk.rs` |
//! | owners, grants and registered shards, as a state machine | `core/` |
//! | copies of images, and their check | `copy/` |
//! | searches of images | `reads/` |
//! | landing zones and arenas: their bytes and free ranges | `regions.rs`, `ranges.rs` |
//! | memory of the node, and the bytes that it shares with others | `memory.rs` |
//! | limits, counters and figures | `limits.rs` |
//! | steps that a checker leaves out | `sabotage.rs` |
//!
//! Thread-safety: any thread may call the methods of [`ShardHost`].
//! Failure: the host keeps nothing that must survive. An owner whose shard is lost rebuilds it from
//! its log.
//! Cost: see the parts.

mod copy;
mod core;
mod desk;
mod limits;
mod memory;
mod ranges;
mod reads;
mod regions;
mod sabotage;

pub use desk::{HostThreads, ShardHost};
pub use limits::{HostCounters, HostFigures, ShardLimits};
pub use memory::NodeBytes;
pub use sabotage::HostSabotage;
