//! The manager role: who is a member, where the copies of blocks lie, whose they are.
//!
//! | module | what |
//! | --- | --- |
//! | [`core`] | the protocol's state, messages, blocks that are asked for |
//! | `clients` | leases, and what clients are told |
//! | `nodes` | beats, silence, reports |
//! | `deaths` | clients that are dead: who is told, when they are gone |
//! | `change` | one block from one configuration to the next |
//! | `rebuild` | what reports say after a start |
//! | [`decide`] | what is wanted, as pure functions |
//! | `status` | for people |
//! | [`office`] | which of several managers acts |
//! | [`desk`] | requests in, answers and orders out |
//! | `server` | threads, links and the clock |
//! | `store` | the coordinator of the store over remote memory, in the same process |
//!
//! Nobody needs it to read or to write; it is asked for new blocks, and it acts when somebody is
//! gone. It stores nothing: after a start it asks the nodes. Layer 5; depends on no other role.

mod change;
mod clients;
pub mod core;
mod deaths;
pub mod decide;
pub mod desk;
mod nodes;
pub mod office;
mod rebuild;

mod server;
mod status;
mod store;

pub use archipelago_flexkv::coordinator::Plan as StorePlan;
pub use server::{ManagerServer, ManagerSettings};
