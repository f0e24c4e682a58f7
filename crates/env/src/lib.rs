//! Files as the engine sees them.
//!
//! The trait [`FileSystem`] takes the purpose of each operation ([`IoContext`]). Implementations
//! are the local file system ([`local::LocalFs`]), one with mapped tables for byte-addressable
//! devices ([`local::mapped::MappedFs`]), and one in memory that can lose power ([`mem::MemFs`]).
//! Decorators add injected faults ([`fault::FaultFs`]), statistics ([`stats::CountingFs`]), the
//! rate limiter of flush and compaction ([`limit::RateLimiter`]), the priority of foreground reads
//! ([`foreground::ForegroundFs`]), an emulated device ([`device::ThrottledFs`]), a limited capacity
//! ([`capacity::CapacityFs`]) and a log in another file system ([`separate_log::SeparateLogFs`]).
//!
//! [`huge`] gives memory in huge pages, which memtables use.
//!
//! The crate is layer 1. The engine runs unchanged over a local disk, tiers and storage nodes,
//! because it uses only this trait.

pub mod access;
pub mod ballast;
pub mod capacity;
pub mod context;
pub mod descriptors;
pub mod device;
pub mod failure;
pub mod fault;
pub mod foreground;
mod forward;
pub mod fs;
pub mod host;
pub mod huge;
pub mod limit;
pub mod local;
pub mod mem;
pub mod names;
pub mod separate_log;
pub mod stats;
#[cfg(feature = "suite")]
pub mod suite;

pub use access::GroupAccess;
pub use context::{FileClass, IoContext, IoPurpose};
pub use fs::{
    CreateOptions, DirEntry, FileLock, FileSystem, LogFile, LogOptions, LogSync, LogTail,
    OpenOptions, RandomFile, ReadLease, WritableFile, WriterRoom,
};
