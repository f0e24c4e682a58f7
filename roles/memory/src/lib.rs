//! The memory role: blocks of memory, which a node serves to clients by the manager's orders.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`core`] | the protocol, as a state machine |
//! | [`promise`] | which manager the node obeys |
//! | [`rpc`] | the handler of requests |
//! | [`space`] | the memory: regions of a fabric node |
//! | `server` | threads, links and the clock |
//!
//! The node knows nothing of databases: it allocates memory, gives keys, copies, and revokes keys.
//! Layer 5; it depends on no other role.

pub mod core;
pub mod promise;
pub mod rpc;

mod server;
pub mod space;

pub use server::{MemoryFigures, MemoryMonitor, MemoryServer, MemorySettings};
