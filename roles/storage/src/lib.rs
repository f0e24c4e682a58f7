//! The storage role: chunks of blobs, extents of logs and registers, on the devices of one node.
//!
//! | module | purpose |
//! | --- | --- |
//! | `node` | [`StorageNode`]: opens the parts and gives each request to one of them |
//! | `parts` | options, and values that the parts share |
//! | `answer` | answers and refusals |
//! | `identity` | the file `NODE`: identities of node and device, cluster and root set |
//! | `devices` | the directories of the node, and how full they are |
//! | `counters` | counters of requests, bytes and damage since the node was opened |
//! | `life` | the lives of the node, and the fate of unsynced bytes at the end of the last one |
//! | `meta` | the embedded database with the node's metadata |
//! | `epochs` | the promised epoch of each volume |
//! | `chunks` | chunks of blobs, their descriptors and retaining sets |
//! | `logs` | extents of logs: append, fence, seal, limbo |
//! | `tombstones` | removed objects, so that late requests do not bring them back |
//! | `registers` | the node as a member of a root set |
//! | `scrub` | checks of all stored bytes at a limited rate |
//! | `space` | space by volume and class, quotas |
//! | `status` | the report of a node |
//! | `repair` | the node as a repair sees it |
//! | [`beats`] | reports to managers, and orders in the answers that the node keeps |
//! | `server` | [`StorageServer`]: the fabric, I/O threads and beats around a node |
//! | [`sabotage`] | steps that a checker leaves out |
//!
//! A node stores bytes and decides nothing about files. It never deletes a blob or a log by itself;
//! Terark-DS (§4.1) leaves the meaning of files to compute nodes as well. [`StorageNode`] is
//! synchronous and has no threads, so that a simulation can call it. A restart is
//! [`StorageNode::open`].
//!
//! Layer 5: uses `base`, `env`, `fabric`, `store` and `engine`. It depends on no other role.

mod answer;
pub mod beats;
mod chunks;
mod counters;
mod devices;
mod epochs;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod identity;
mod life;
mod logs;
mod meta;
mod node;
mod parts;
mod registers;
mod repair;
pub mod sabotage;
mod scrub;
mod server;
mod space;
mod status;
mod tombstones;

pub use meta::MetaThreads;
pub use node::StorageNode;
pub use parts::{NodeOptions, ScrubOptions};
pub use sabotage::Sabotage;
pub use server::{StorageFigures, StorageMonitor, StorageServer, StorageSettings};
