//! Grants: files of a volume for a process that does not own it.
//!
//! A volume has one writer of names, its owner. An executor of an offloaded job gets a
//! [`BlobGrant`] instead. The grant has blobs that the executor may read, by the names that the job
//! uses, and identities of blobs that it may write. The executor runs the job on a [`GrantedFs`]
//! and returns the [`WrittenBlobs`]. The owner names them with [`PendingOutputs::name`], or gives
//! all of them up.
//!
//! | part | file |
//! | --- | --- |
//! | the values that travel, and their encoding | `mod.rs` |
//! | the identities at the owner, until they are named or given up | `pending.rs` |
//! | the files of a grant at the executor | `granted.rs` |
//!
//! Invariants:
//! 1. An identity belongs to one grant, and the owner keeps it pending until it is named or given
//!    up.
//! 2. The owner names only blobs of the grant, and only under names that no file has.
//! 3. Every write of an executor carries the epoch of the owner that made the grant. The pool
//!    refuses it when the volume has a later owner.
//!
//! Thread-safety: the values are plain. The heads of the other files state theirs.
//! Failure: a decoder answers every input with a value or with `None`.
//! Cost: a grant has about 120 bytes for each input on storage nodes, and 16 for each output.

mod granted;
mod pending;

use archipelago_base::{Epoch, wire_struct};
use archipelago_env::FileClass;

pub use self::granted::GrantedFs;
pub use self::pending::PendingOutputs;

use crate::blob::BlobRef;
use crate::ids::{BlobId, VolumeId};

wire_struct!(BlobRef { id, len_bytes, hint });

/// A file that a job reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBlob {
    /// Name of the file in the directory of the job.
    pub name: String,
    /// The blob with its bytes.
    pub blob: BlobRef,
}
wire_struct!(NamedBlob { name, blob });

/// Right of one attempt of a job: the files that it may read and write in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobGrant {
    /// Volume of the files.
    pub volume: VolumeId,
    /// Epoch of the owner that made the grant.
    pub epoch: Epoch,
    /// Files that the job reads.
    pub inputs: Vec<NamedBlob>,
    /// Identities of the blobs that the job may write, in the order in which it uses them.
    pub outputs: Vec<BlobId>,
}
wire_struct!(BlobGrant { volume, epoch, inputs, outputs });

/// A file that a job has written and sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenFile {
    /// Name of the file in the directory of the job.
    pub name: String,
    /// Class of the file.
    pub class: FileClass,
    /// The blob with its bytes.
    pub blob: BlobRef,
}
wire_struct!(WrittenFile { name, class, blob });

/// Report of one attempt of a job about the files that it has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenBlobs {
    /// Number of identities of the grant that the job has begun to use, from the first one on.
    pub begun: u32,
    /// The sealed files, by name.
    pub files: Vec<WrittenFile>,
}
wire_struct!(WrittenBlobs { begun, files });
