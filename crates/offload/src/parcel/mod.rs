//! Parcels: the data that an owner and an executor send each other about one attempt. The scheduler
//! forwards a parcel without reading it. `docs/formats/job-parcel.md` has the byte table.
//!
//! The spec and the output of a job name files. For a database in a directory, these names are
//! enough. In a volume of a storage cluster, the package also has the grant of the attempt
//! ([`BlobGrant`]). The return then has the blobs that the attempt has written ([`WrittenBlobs`]).
//! A flush has the places of its memtable shards at memory nodes ([`JobImages`]), and its return
//! says how the executor got them. A package also has the part of the database's rate limit that
//! the job may use.
//!
//! Invariant: the decoder returns a parcel or an error for every input.
//!
//! Thread-safety: parcels are plain values.
//! Failure: the frames of the fabric have checksums, and so do the spec and the output. So a
//! malformed parcel means a faulty sender.
//! Cost: O(bytes); decoding copies the spec or the output once.

use archipelago_base::wire_messages;
use archipelago_store::{BlobGrant, WrittenBlobs};

use crate::job::Payload;

mod images;

pub use images::{ImageNode, ImagePlace, ImageUse, JobImages};

/// Version of the parcels, which is the first byte of each.
pub const VERSION: u8 = 3;

wire_messages! {
    /// The part of a message that only the owner and the executor read.
    JobParcel, version VERSION {
    /// Owner → executor, in PREPARE and in the package: run this job.
    Package = 1 {
        /// Spec of the job.
        spec: Payload,
        /// Files of the attempt, if the database lies in a volume.
        grant: Option<BlobGrant>,
        /// Memtable shards at memory nodes, if the job is a flush.
        images: Option<JobImages>,
        /// Bytes a second that the job may write; 0 for no limit.
        bytes_per_s: u64,
    }
    /// Executor → owner, in COMMIT: the job has ended.
    Return = 2 {
        /// Output of the job, in the wire form of the engine.
        output: Payload,
        /// Blobs of the output, if the package had a grant.
        written: Option<WrittenBlobs>,
        /// How the executor got the images, if the package had some.
        images: Option<ImageUse>,
        /// Bytes that were charged to the limiter of the job.
        limited_bytes: u64,
    }
    }
}

#[cfg(test)]
mod tests;
