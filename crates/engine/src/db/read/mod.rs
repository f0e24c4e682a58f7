//! The read path: point reads, iterators, snapshots and estimates.

pub(crate) mod get;
pub(crate) mod key_estimate;
pub(crate) mod newest;
pub(crate) mod options;
pub(crate) mod scan;
pub(crate) mod snapshot;
