//! The store: files of a database on a storage pool, where no compute node owns a disk.
//!
//! Three small traits hide the kind of the pool. A [`BlobStore`] keeps immutable blobs, a
//! [`LogStore`] keeps logs of one writer each, and a [`Register`] keeps small values with
//! compare-and-swap. [`StoreFs`] is a [`FileSystem`](archipelago_env::FileSystem) over the three,
//! on which the engine, its jobs and checkpoints run unchanged.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`ids`] | identities of blobs, logs and volumes |
//! | [`blob`] | the trait [`BlobStore`] |
//! | [`log`] | the trait [`LogStore`] |
//! | [`register`] | the trait [`Register`] |
//! | [`volume`] | the namespace of one database, its owner and its lease |
//! | [`fs`] | [`StoreFs`]: files, logs and directories of a volume |
//! | [`memory`] | all three traits in memory, with kills, power losses and faults, for tests |
//! | [`nodes`] | the backend of own storage nodes: placement, striping, logs, register |
//! | [`sabotage`] | steps that a checker leaves out |
//! | `suite` | tests of the three traits for any backend, behind the cargo feature `suite` |
//!
//! A *volume* is the namespace of one database. Its *owner* is the process whose epoch is the
//! newest. Terark-DS (§4.1) has storage nodes that know files; these traits know bytes only, so
//! that replicated nodes, an object store or HDFS can serve them.
//!
//! Invariants of the crate:
//! 1. The namespace decides which blobs and logs a volume has. A blob without a name is released by
//!    the owner, and never by a backend alone.
//! 2. Every write of a volume carries the owner's epoch, and a backend refuses an older one with
//!    [`Fenced`](archipelago_base::ErrorKind::Fenced).
//!
//! Layer 2: uses `base` and `env`. It is synchronous, as the engine is.

pub mod blob;
pub mod fs;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod ids;
pub mod log;
pub mod memory;
pub mod nodes;
pub mod register;
pub mod sabotage;
#[cfg(feature = "suite")]
pub mod suite;
pub mod volume;

pub use blob::{BlobOptions, BlobReader, BlobRef, BlobStore, BlobWriter};
pub use fs::{
    BlobGrant, CopyTarget, GrantedFs, NamedBlob, PendingOutputs, StoreFs, WrittenBlobs, WrittenFile,
};
pub use ids::{BlobId, LogId, VolumeId};
pub use log::{
    Layout, LayoutKeeper, LogPosition, LogRead, LogSetReader, LogStore, LogToRecover, LogWriter,
    LossKeeper, NewLog, NewOwner, RecoveredLog,
};
pub use register::{Register, Swap, Versioned};
pub use sabotage::Sabotage;
pub use volume::{Volume, VolumeOptions};

use std::sync::Arc;

/// The three parts of a storage pool.
#[derive(Clone, Debug)]
pub struct Stores {
    /// Blobs: tables and value files.
    pub blobs: Arc<dyn BlobStore>,
    /// Logs: write-ahead logs, manifests and namespaces.
    pub logs: Arc<dyn LogStore>,
    /// Owners, leases and root pointers of volumes.
    pub register: Arc<dyn Register>,
}
