//! The register of a root set of storage nodes.
//!
//! The root set has three nodes, or five if the cluster has five domains. It holds small values,
//! such as the owners and root pointers of volumes, and works with a majority of its members. A
//! change needs compare-and-swap only, so there is no replicated log and no leader ([`caspaxos`]).

pub mod caspaxos;
