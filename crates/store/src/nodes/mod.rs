//! The backend of own storage nodes: blobs, logs and registers on the nodes of a cluster.
//!
//! The modules that decide and compute do no I/O and know no network. So threads can drive them in
//! production, and a seeded scheduler can drive them in a simulation. The drivers implement the
//! traits of the crate with these modules, over one client. [`NodeStores`] puts them together.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`placement`] | chooses nodes for chunks and extents, the next repair, and moves of chunks |
//! | [`layout`] | redundancy scheme of a blob, striping, ranges of chunks for reads and repairs |
//! | [`code`] | the erasure code RS(4,2) |
//! | [`blobs`] | the driver of blobs |
//! | [`log`] | the writer and the recovery of a log on several nodes |
//! | [`logs`] | the driver of logs |
//! | [`register`] | the register of a root set of nodes |
//! | [`registers`] | the driver of the register |
//! | [`members`] | the members of a cluster, as a manager keeps them |
//! | [`client`] | links to nodes, calls, members and counters, for the drivers |
//! | [`repairs`] | copies in place of those of lost, damaged and drained nodes |
//! | [`stores`] | a pool: one client, and the three drivers over it |
//! | [`wire`] | messages between clients, nodes and the manager, and stored values |
//!
//! A *domain* is a set of nodes that fail together, such as a rack. The class of a file decides its
//! redundancy, as in Terark-DS (§4.2). Logs lie on three nodes and are acknowledged by two. Key
//! tables have three replicas, and value files have four data and two parity chunks.

pub mod blobs;
pub mod client;
pub mod code;
pub mod layout;
pub mod log;
pub mod logs;
pub mod members;
pub mod placement;
pub mod register;
pub mod registers;
pub mod repairs;
pub mod stores;
pub mod wire;

use std::fmt;

pub use stores::{NodeStores, NodeStoresOptions, NodeStoresReport};

/// Identity of a storage node. The node chooses it at random when it initializes its directory, so
/// a node whose disks were emptied has another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(pub u64);

impl fmt::Display for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
