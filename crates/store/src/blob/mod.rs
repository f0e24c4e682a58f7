//! Blobs: immutable files of a storage pool.
//!
//! A writer fills a blob under an identity that the volume's owner chose and keeps as *pending*.
//! [`BlobWriter::seal`] makes it durable with the redundancy of its class. Only then may the
//! namespace name it. A blob that got no name is a stray, and [`BlobStore::release_strays`] gives
//! it up.
//!
//! A blob belongs to a set of volumes: the one that wrote it, and those that
//! [`retain`](BlobStore::retain)ed it (a checkpoint does). The pool deletes a blob when the set is
//! empty. The pool keeps a set instead of a counter, so that a repeated call changes nothing.
//!
//! Invariants that every backend keeps:
//! 1. A blob whose seal returned never changes, and is readable after every loss that its
//!    redundancy permits.
//! 2. A reader gets the bytes that were written, or an error. The error is
//!    [`Corrupt`](archipelago_base::ErrorKind::Corrupt) only if no source with right bytes is left.
//! 3. A backend never gives up a blob by itself.
//!
//! Thread-safety: any thread may call a store or a reader. A writer has one owner.
//! Failure: a writer that failed is unusable, and its blob must be given up. Every error names the
//! blob.

use std::fmt;
use std::sync::Arc;

use archipelago_base::{Epoch, Result};
use archipelago_env::{FileClass, IoContext, WriterRoom};

use crate::ids::{BlobId, VolumeId};

/// Options with which a writer begins a blob.
#[derive(Clone, Copy, Debug)]
pub struct BlobOptions {
    /// Volume that the blob belongs to.
    pub volume: VolumeId,
    /// Epoch of the volume's owner. A backend that knows a later one answers `Fenced`.
    pub epoch: Epoch,
    /// Purpose of the writes, and the class of the file, which decides the redundancy.
    pub context: IoContext,
    /// Expected size in bytes; 0 if it is unknown.
    pub size_hint_bytes: u64,
}

/// A sealed blob as the namespace records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// Identity of the blob.
    pub id: BlobId,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Data with which the backend finds the blob faster, such as its holders. The backend also
    /// finds the blob if the hint is outdated.
    pub hint: Vec<u8>,
}

/// A blob that is being written, from front to back.
pub trait BlobWriter: Send + fmt::Debug {
    /// Appends `data`, which may be buffered. After an error the writer is unusable.
    fn append(&mut self, data: &[u8]) -> Result<()>;
    /// Number of bytes that were appended.
    fn len_bytes(&self) -> u64;
    /// Makes the blob durable and immutable. On return it survives power loss. On a backend with
    /// nodes it also survives each loss of nodes that its redundancy permits, which is two without
    /// placement debt. It has no name yet. The writer takes no more bytes.
    fn seal(&mut self) -> Result<BlobRef>;
}

/// A sealed blob that many threads read.
pub trait BlobReader: Send + Sync + fmt::Debug {
    /// Fills `buf` from `offset`. A read past the end is an `Io` error that says so.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()>;
    /// Fills the buffer of each request from its offset. A backend with a network has the requests
    /// in flight in parallel. The default reads one range after the other.
    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        for (offset, buf) in requests.iter_mut() {
            self.read_exact_at(*offset, buf, context)?;
        }
        Ok(())
    }
    /// Length in bytes.
    fn len_bytes(&self) -> u64;
}

/// A pool that keeps blobs.
pub trait BlobStore: Send + Sync + fmt::Debug + 'static {
    /// Begins the blob `id`, which was never used before. Errors: `Fenced` for an old epoch, `Busy`
    /// if the pool has too few nodes or too little room. A backend that contacts its nodes only
    /// with the first bytes returns these errors from an append or from the seal.
    fn create(&self, id: BlobId, options: BlobOptions) -> Result<Box<dyn BlobWriter>>;
    /// Opens a sealed blob. Errors: `NotFound` if it was given up.
    fn open(&self, blob: &BlobRef, context: IoContext) -> Result<Arc<dyn BlobReader>>;
    /// Adds `volume` to the sets of sealed blobs. On return every holder that is not lost has done
    /// so. After an error, some of them may be retained until the caller releases them. Errors:
    /// `NotFound` if a blob was given up; `Fenced` for an old epoch of `volume`; `Busy` with the
    /// holder that does not answer.
    fn retain_all(&self, blobs: &[BlobRef], volume: VolumeId, epoch: Epoch) -> Result<()>;
    /// Retains one blob for a volume in its first epoch, as [`Self::retain_all`] does.
    fn retain(&self, blob: &BlobRef, volume: VolumeId) -> Result<()> {
        self.retain_all(std::slice::from_ref(blob), volume, Epoch(1))
    }
    /// Takes `volume` out of the set of a blob, sealed or not. The pool deletes the blob when its
    /// set is empty. A blob that does not exist is no error. Afterwards, no request of the same
    /// epoch begins the blob. An executor to which the owner granted the identity may send such a
    /// request, because it does not know yet that the owner gave the blob up.
    fn release(&self, id: BlobId, volume: VolumeId, epoch: Epoch) -> Result<()>;
    /// Releases several blobs as [`Self::release`] does, which a backend with a network does in one
    /// request per node. After an error, some of them may be released. The default releases one
    /// after the other.
    fn release_all(&self, ids: &[BlobId], volume: VolumeId, epoch: Epoch) -> Result<()> {
        ids.iter().try_for_each(|id| self.release(*id, volume, epoch))
    }
    /// Takes `volume` out of the sets of all its blobs for which `keeps` returns `false`, and
    /// returns their number. The caller is the owner, and `keeps` knows every named and every
    /// pending blob. Blobs that were begun under `epoch` after the call began are kept even if
    /// `keeps` returns `false` for them.
    fn release_strays(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        keeps: &dyn Fn(BlobId) -> bool,
    ) -> Result<u64>;
    /// Takes `volume` out of the sets of all its blobs, because the volume is being removed, and
    /// returns their number. Unlike [`Self::release_strays`], it fails if a node may still hold a
    /// blob, because no later owner would release it. Errors: `Busy` with the node that does not
    /// answer, or if the pool may not know all nodes yet; `Fenced` for an old epoch.
    fn release_volume(&self, volume: VolumeId, epoch: Epoch) -> Result<u64>;
    /// Bytes that the pool writes for each byte of a blob of `class`: 3 with three replicas, 1.5
    /// with four data and two parity cells.
    fn redundancy(&self, class: FileClass) -> f64;
    /// Bytes of blobs that fit into the pool with the redundancy of tables; `None` if unknown.
    fn free_bytes(&self) -> Result<Option<u64>>;
    /// Room of writers, in bytes of blobs with the redundancy of tables, from 90 to 95 per cent of
    /// the pool; `None` if unknown.
    fn writer_room(&self) -> Option<WriterRoom>;
}
