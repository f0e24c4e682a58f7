//! Files as the engine sees them: a [`FileSystem`] trait whose every operation says what it is
//! for ([`IoContext`]), the local one ([`local::LocalFs`]), one in memory that can lose power and
//! fail on command ([`mem::MemFs`]), and the rate limiter that flush and compaction share.
//!
//! Layer 1. The engine runs unchanged over a local disk, over tiers and over storage nodes,
//! because it knows only this trait.

pub mod context;
pub mod fs;

pub use context::{FileClass, IoContext, IoPurpose};
pub use fs::{
    CreateOptions, DirEntry, FileLock, FileSystem, LogFile, LogOptions, LogSync, LogTail,
    OpenOptions, RandomFile, WritableFile,
};
