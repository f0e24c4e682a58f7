//! Repairs: copies of chunks and extents that replace those of lost, damaged or drained nodes.
//!
//! The manager plans a repair, and the node that becomes a holder carries it out (decision 0074).
//! All state comes from the nodes, so no repair is lost when a manager or a node dies.
//!
//! | module | runs on | purpose |
//! | --- | --- | --- |
//! | [`members`] | manager | the nodes, as one round of repairs sees them; pure |
//! | [`planner`] | manager | what to repair, on which node; pure |
//! | [`extent_page`] | manager | the extents that one round compares; pure |
//! | [`manager`] | manager | questions, rates and orders |
//! | [`chunk`] | node | the repair of one chunk as a state machine |
//! | [`executor`] | node | carries out orders |
//! | [`host`] | node | the node, as a repair sees it |
//! | `rounds` | manager | what the manager keeps from round to round |
//! | `copying`, `own_node` | node | the bytes of a repair, and what it uses of its node |
//!
//! Chunks are immutable, so a repair needs no fence and no pause of writers. The new holder enters
//! the descriptors under a larger placement epoch, which has its own identity as a part. So two
//! repairs of one blob never tie.

pub mod chunk;
mod copying;
pub mod executor;
pub mod extent_page;
pub mod host;
pub mod manager;
pub mod members;
mod own_node;
pub mod planner;
mod rounds;
#[cfg(test)]
mod tests;

pub use executor::RepairExecutor;
pub use host::RepairHost;
pub use manager::{RepairLook, RepairManager, RepairTerms, RepairView};
pub use rounds::DrainingExtents;
