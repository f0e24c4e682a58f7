//! The memory role: blocks of memory, served to clients by the manager's orders.
//!
//! | module | what |
//! | --- | --- |
//! | [`core`] | the protocol, as a state machine |
//! | [`promise`] | which manager is obeyed |
//! | [`serving`] | requests in, answers out |
//! | [`space`] | the memory behind it: regions of a fabric node |
//! | `server` | threads, links and the clock |
//!
//! The node knows no database: it allocates, gives keys, copies and revokes. Layer 5; depends on no
//! other role.

pub mod core;
pub mod promise;
pub mod serving;

mod server;
pub mod space;

pub use server::{MemoryServer, MemorySettings};
