//! FlexKV: a linearizable in-memory key-value store over the memory of many nodes, whose index is
//! proxied by compute nodes, with coherent caches.
//!
//! A key's hash names its **partition**, a subtable of 8-byte **slots** in the pool. While a
//! compute node is the partition's **proxy**, the slots are in that node's memory as well. A slot
//! names a **record** in the pool: key and value, written once. Clients read and write records
//! one-sided. Only changes of the index go through proxies.
//!
//! The public modules have no I/O, clock, lock or async code: formats ([`mod@format`]), the
//! decisions of the coordinator ([`hotness`], [`offload_ratio`]), the memory of a compute node
//! ([`cache`], [`sharers`], [`read_reports`]) and the time for which cached knowledge is valid
//! ([`lease`]). They take the time as a number. The protocol is built on top of them:
//! [`ComputeNode`] is a node, and [`coordinator`] decides which node serves which partition.
//!
//! Layer 4: this crate depends on the pool.

pub mod cache;
mod client;
mod combining;
mod compute_node;
mod contended;
pub mod coordinator;
mod expiry;
pub mod format;
mod gates;
pub mod hotness;
mod ids;
mod keyed;
pub mod lease;
mod membership;
mod node;
pub mod offload_ratio;
mod onesided;
#[cfg_attr(
    not(feature = "index-protocol"),
    expect(unreachable_pub, reason = "the feature publishes the trait and its types")
)]
mod protocol;
mod proxy;
pub mod read_reports;
mod scan;
mod settings;
pub mod sharers;
mod sweep;
mod table;
pub mod wire;
mod write_error;

pub use client::{Destination, FAST_KEYS_MAX, Renamed, Set, Value};
pub use compute_node::{ComputeNode, NodeStatus, Surroundings};
pub use ids::{ComputeId, PartitionId};
pub use membership::MapStatus;
pub use node::{CacheStatus, fabric_id};
#[cfg(feature = "index-protocol")]
pub use protocol::{IndexProtocol, SlotAccess, SlotChange, SlotOutcome};
pub use scan::{ScanLimits, ScanStep, ScannedKey};
pub use settings::{CacheMode, FlexKvSettings, Sabotage};
pub use write_error::{WriteEffect, WriteError};
