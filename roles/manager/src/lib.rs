//! The manager role: it keeps the members of a cluster, and the owner and places of each block of
//! memory.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`core`] | the state of the protocol, its messages, and requests for blocks |
//! | `clients` | leases of clients, their deaths, and when they are gone |
//! | `nodes` | beats, silence and reports of memory nodes |
//! | `change` | the change of a block from one configuration to the next |
//! | `rebuild` | the reconstruction of the blocks by a new manager, from reports |
//! | [`decide`] | the next change of a block, as pure functions |
//! | `status` | the status for operators |
//! | [`office`] | the election of the manager that acts, among several |
//! | [`rpc`] | the handler of requests, and the queue of orders |
//! | `server` | threads, links and the clock |
//! | `store` | the coordinator of FlexKV, in the same process |
//! | `storage` | the members of a cluster of storage nodes, and their root set |
//!
//! Reads and writes do not need the manager. It serves requests for new blocks, and acts when a
//! member dies. It stores nothing, and asks the nodes after a start. Layer 5; it depends on no
//! other role.

mod change;
mod clients;
pub mod core;
pub mod decide;
mod nodes;
pub mod office;
mod rebuild;
pub mod rpc;
mod server;
mod status;
mod storage;
mod store;

pub use archipelago_flexkv::coordinator::Plan as StorePlan;
pub use archipelago_store::nodes::members::MemberTerms;
pub use server::{ManagerFigures, ManagerMonitor, ManagerServer, ManagerSettings};
pub use status::{NodeFigures, PoolFigures};
