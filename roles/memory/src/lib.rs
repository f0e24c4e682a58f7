//! The memory role. A node serves blocks of memory to clients by the manager's orders. It also
//! keeps memtable shards, and searches them for the owners of databases.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`core`] | the protocol, as a state machine |
//! | [`promise`] | the choice of the manager that the node obeys |
//! | [`rpc`] | the handler of requests |
//! | [`space`] | the memory: regions of a fabric node |
//! | `server` | threads, links and the clock |
//! | `handler` | the choice of the part that answers a request |
//!
//! The modules know nothing of databases: they allocate memory, give keys, copy, and revoke keys.
//! `archipelago_offload::shard_host` holds the shards. Layer 5; the crate depends on no other role.

pub mod core;
pub mod promise;
pub mod rpc;

mod handler;
mod server;
pub mod space;

pub use server::{MemoryFigures, MemoryMonitor, MemoryServer, MemorySettings};
