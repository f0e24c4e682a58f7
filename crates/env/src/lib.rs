//! Files as the engine sees them: a [`FileSystem`] trait whose every operation says what it is
//! for ([`IoContext`]), the local one ([`local::LocalFs`]), one in memory that can lose power
//! ([`mem::MemFs`]), and decorators over any of them: faults on command ([`fault::FaultFs`]),
//! statistics ([`stats::CountingFs`]), the rate limiter that flush and compaction share
//! ([`limit::RateLimiter`]), the precedence of foreground reads ([`foreground::ForegroundFs`]) and
//! a device described by a file ([`device::ThrottledFs`]) and a limited capacity
//! ([`capacity::CapacityFs`]). [`local::mapped::MappedFs`] reads and
//! writes tables of a byte-addressable device through mappings.
//!
//! Layer 1. The engine runs unchanged over a local disk, over tiers and over storage nodes,
//! because it knows only this trait.

pub mod access;
pub mod ballast;
pub mod capacity;
pub mod context;
pub mod descriptors;
pub mod device;
mod failure;
pub mod fault;
pub mod foreground;
mod forward;
pub mod fs;
pub mod host;
pub mod limit;
pub mod local;
pub mod mem;
pub mod stats;

pub use access::GroupAccess;
pub use context::{FileClass, IoContext, IoPurpose};
pub use fs::{
    CreateOptions, DirEntry, FileLock, FileSystem, LogFile, LogOptions, LogSync, LogTail,
    OpenOptions, RandomFile, WritableFile,
};
