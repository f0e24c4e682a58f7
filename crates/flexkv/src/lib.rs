//! FlexKV: a linearizable in-memory key-value store over the memory of many nodes, whose index is
//! proxied by compute nodes, with coherent caches.
//!
//! A key's hash names its **partition**, a subtable of 8-byte **slots** that lies in the pool and,
//! while a compute node is the partition's **proxy**, in that node's memory too. A slot names a
//! **record** in the pool: key and value, written once. Clients read and write records one-sided;
//! only the index goes through proxies.
//!
//! The modules here are the parts without I/O, clock, lock or async: formats ([`mod@format`]), what
//! the manager decides ([`hotness`], [`offload_ratio`]), what a compute node keeps ([`cache`],
//! [`sharers`], [`read_reports`]) and how long it may believe it ([`lease`]). Time comes in as a
//! number. The protocol stands on top of them.
//!
//! Layer 4: stands on the pool.

pub mod cache;
mod client;
mod combining;
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
mod settings;
pub mod sharers;
mod sweep;
mod table;
pub mod wire;
mod write_error;

pub use client::{AT_ONCE_MAX, Destination, Renamed, ScanLimits, ScanStep, ScannedKey, Set, Value};
pub use ids::{ComputeId, PartitionId};
pub use membership::MapStatus;
pub use node::{CacheStatus, ComputeNode, NodeStatus, Surroundings, fabric_id};
#[cfg(feature = "index-protocol")]
pub use protocol::{IndexProtocol, SlotAccess, SlotChange, SlotOutcome};
pub use settings::{CacheMode, FlexKvSettings, Sabotage};
pub use write_error::{WriteEffect, WriteError};
