//! The blobs of a pool in memory.
//!
//! Invariants:
//! 1. A sealed blob never changes. It is removed when no volume retains it.
//! 2. A blob that was removed is gone for its readers and its writer as well.
//!
//! Thread-safety: as for the pool. Failure: a writer keeps its first error.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, WriterRoom};

use super::{MemoryPool, PoolBlob, PoolCall, PoolState, no_space};
use crate::blob::{BlobOptions, BlobReader, BlobRef, BlobStore, BlobWriter};
use crate::ids::{BlobId, VolumeId};

/// A blob as the nodes have it.
#[derive(Clone, Debug)]
pub(super) struct StoredBlob {
    bytes: Arc<Vec<u8>>,
    is_sealed: bool,
    volumes: BTreeMap<VolumeId, Retention>,
}

/// The moment at which a volume began or retained a blob.
#[derive(Clone, Copy, Debug)]
struct Retention {
    /// Epoch of the volume at that moment.
    epoch: Epoch,
    /// Sequence number of the beginning, which orders it against releases of strays.
    begun: u64,
}

impl StoredBlob {
    pub(super) fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn listed(&self, id: BlobId) -> PoolBlob {
        PoolBlob {
            id,
            volumes: self.volumes.keys().copied().collect(),
            is_sealed: self.is_sealed,
            len_bytes: self.len_bytes(),
        }
    }
}

/// A blob as errors name it.
#[derive(Clone, Copy, Debug)]
struct BlobName(BlobId);

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blob {}", self.0)
    }
}

impl BlobName {
    fn not_found(self) -> Error {
        Error::not_found(format!("{self} is not in the pool; it was given up or never sealed"))
    }
}

impl PoolState {
    fn sealed(&self, id: BlobId) -> Result<&StoredBlob> {
        let blob = self.blobs.get(&id).filter(|blob| blob.is_sealed);
        blob.ok_or_else(|| BlobName(id).not_found())
    }

    /// Takes `volume` out of the set of a blob. Returns whether it was in. The identity of a blob
    /// that does not exist is never begun later, as on nodes, which keep tombstones.
    fn release_blob(&mut self, id: BlobId, volume: VolumeId) -> bool {
        self.blobs_used.insert(id);
        let Some(blob) = self.blobs.get_mut(&id) else { return false };
        let was_in = blob.volumes.remove(&volume).is_some();
        if blob.volumes.is_empty() {
            self.blobs.remove(&id);
        }
        was_in
    }

    /// Blobs of `volume` that a release of strays under `epoch` may give up, if it began when the
    /// pool had begun `begun` blobs and logs.
    fn old_blobs(&self, volume: VolumeId, epoch: Epoch, begun: u64) -> Vec<BlobId> {
        let is_old = |retention: &Retention| retention.epoch < epoch || retention.begun <= begun;
        let old =
            self.blobs.iter().filter(|(_, blob)| blob.volumes.get(&volume).is_some_and(is_old));
        old.map(|(id, _)| *id).collect()
    }
}

/// Adds `volume` to the set of one blob.
fn retain(pool: &MemoryPool, blob: &BlobRef, volume: VolumeId, epoch: Epoch) -> Result<()> {
    let name = BlobName(blob.id);
    let answer = pool.reach(PoolCall::BlobRetain, &name)?;
    let mut pool = pool.shared.pool.lock();
    pool.admit(volume, epoch)?;
    pool.sealed(blob.id)?;
    let retention = Retention { epoch, begun: pool.next_begun() };
    if let Some(stored) = pool.blobs.get_mut(&blob.id) {
        stored.volumes.entry(volume).or_insert(retention);
    }
    answer.of(PoolCall::BlobRetain, &name, ())
}

impl BlobStore for MemoryPool {
    fn create(&self, id: BlobId, options: BlobOptions) -> Result<Box<dyn BlobWriter>> {
        let name = BlobName(id);
        let answer = self.reach(PoolCall::BlobCreate, &name)?;
        let mut pool = self.shared.pool.lock();
        pool.admit(options.volume, options.epoch)?;
        if pool.free_bytes() == Some(0) {
            return Err(no_space(&name));
        }
        if !pool.blobs_used.insert(id) {
            return Err(Error::invalid(format!(
                "{name} was created before; choose a new identity for each blob"
            )));
        }
        let retention = Retention { epoch: options.epoch, begun: pool.next_begun() };
        let blob = StoredBlob {
            bytes: Arc::default(),
            is_sealed: false,
            volumes: BTreeMap::from([(options.volume, retention)]),
        };
        pool.blobs.insert(id, blob);
        let writer =
            MemoryBlobWriter { pool: self.clone(), name, options, len_bytes: 0, ended: None };
        answer.of(PoolCall::BlobCreate, &name, Box::new(writer) as Box<dyn BlobWriter>)
    }

    fn open(&self, blob: &BlobRef, _context: IoContext) -> Result<Arc<dyn BlobReader>> {
        let name = BlobName(blob.id);
        let answer = self.reach(PoolCall::BlobOpen, &name)?;
        let len_bytes = self.shared.pool.lock().sealed(blob.id)?.len_bytes();
        let reader = MemoryBlobReader { pool: self.clone(), name, len_bytes };
        answer.of(PoolCall::BlobOpen, &name, Arc::new(reader) as Arc<dyn BlobReader>)
    }

    fn retain_all(&self, blobs: &[BlobRef], volume: VolumeId, epoch: Epoch) -> Result<()> {
        blobs.iter().try_for_each(|blob| retain(self, blob, volume, epoch))
    }

    fn release(&self, id: BlobId, volume: VolumeId, epoch: Epoch) -> Result<()> {
        let name = BlobName(id);
        let answer = self.reach(PoolCall::BlobRelease, &name)?;
        let mut pool = self.shared.pool.lock();
        pool.admit(volume, epoch)?;
        pool.release_blob(id, volume);
        answer.of(PoolCall::BlobRelease, &name, ())
    }

    /// Counts as one call, because a backend with nodes batches the request as well.
    fn release_all(&self, ids: &[BlobId], volume: VolumeId, epoch: Epoch) -> Result<()> {
        let Some(first) = ids.first() else { return Ok(()) };
        let name = BlobName(*first);
        let answer = self.reach(PoolCall::BlobRelease, &name)?;
        let mut pool = self.shared.pool.lock();
        pool.admit(volume, epoch)?;
        for id in ids {
            pool.release_blob(*id, volume);
        }
        answer.of(PoolCall::BlobRelease, &name, ())
    }

    fn release_volume(&self, volume: VolumeId, epoch: Epoch) -> Result<u64> {
        let name = format!("blobs of volume {volume}");
        let answer = self.reach(PoolCall::BlobStrays, &name)?;
        let mut pool = self.shared.pool.lock();
        pool.admit(volume, epoch)?;
        let begun = pool.begun;
        let blobs = pool.old_blobs(volume, epoch, begun);
        for id in &blobs {
            pool.release_blob(*id, volume);
        }
        answer.of(PoolCall::BlobStrays, &name, blobs.len() as u64)
    }

    fn release_strays(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        keeps: &dyn Fn(BlobId) -> bool,
    ) -> Result<u64> {
        let name = format!("strays of volume {volume}");
        let answer = self.reach(PoolCall::BlobStrays, &name)?;
        let candidates = {
            let mut pool = self.shared.pool.lock();
            pool.admit(volume, epoch)?;
            pool.old_blobs(volume, epoch, pool.begun)
        };
        // The owner answers without a lock of the pool, because it may take a lock of its own.
        let strays: Vec<_> = candidates.into_iter().filter(|id| !keeps(*id)).collect();
        let mut pool = self.shared.pool.lock();
        pool.admit(volume, epoch)?;
        let released = strays.into_iter().filter(|id| pool.release_blob(*id, volume)).count();
        answer.of(PoolCall::BlobStrays, &name, released as u64)
    }

    fn redundancy(&self, class: FileClass) -> f64 {
        // As on six nodes: four data and two parity cells for values, and replicas for the rest.
        if class == FileClass::ValueSst { 1.5 } else { 3.0 }
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        Ok(self.shared.pool.lock().free_bytes())
    }

    fn writer_room(&self) -> Option<WriterRoom> {
        let pool = self.shared.pool.lock();
        let percent = pool.capacity_bytes? / 100;
        // As on nodes: writers slow down from 90 per cent on, and have reached their limit at 95.
        let left_bytes = (percent * 95).saturating_sub(pool.used_bytes());
        Some(WriterRoom { left_bytes, slowdown_bytes: percent * 5 })
    }
}

/// The writer of a blob.
#[derive(Debug)]
struct MemoryBlobWriter {
    pool: MemoryPool,
    name: BlobName,
    options: BlobOptions,
    len_bytes: u64,
    /// The error of every later call: the first error, or that of a sealed blob.
    ended: Option<Error>,
}

impl MemoryBlobWriter {
    /// Runs `call` unless the writer has ended, and keeps its error.
    fn keep_error<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let outcome = call(self);
        if let Err(error) = &outcome {
            self.ended = Some(error.context_at("the blob failed before"));
        }
        outcome
    }

    fn try_append(&mut self, data: &[u8]) -> Result<()> {
        let answer = self.pool.reach(PoolCall::BlobAppend, &self.name)?;
        let mut pool = self.pool.shared.pool.lock();
        if pool.free_bytes().is_some_and(|free| free < data.len() as u64) {
            return Err(no_space(&self.name));
        }
        let blob = pool.blobs.get_mut(&self.name.0).ok_or_else(|| self.name.not_found())?;
        Arc::make_mut(&mut blob.bytes).extend_from_slice(data);
        self.len_bytes += data.len() as u64;
        answer.of(PoolCall::BlobAppend, &self.name, ())
    }

    fn try_seal(&mut self) -> Result<BlobRef> {
        let answer = self.pool.reach(PoolCall::BlobSeal, &self.name)?;
        let mut pool = self.pool.shared.pool.lock();
        pool.admit(self.options.volume, self.options.epoch)?;
        let blob = pool.blobs.get_mut(&self.name.0).ok_or_else(|| self.name.not_found())?;
        blob.is_sealed = true;
        let id = self.name.0;
        // The pool needs no hint. It returns one, so that tests notice a namespace that loses it.
        let sealed = BlobRef { id, len_bytes: blob.len_bytes(), hint: id.0[..4].to_vec() };
        answer.of(PoolCall::BlobSeal, &self.name, sealed)
    }
}

impl BlobWriter for MemoryBlobWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.keep_error(|writer| writer.try_append(data))
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn seal(&mut self) -> Result<BlobRef> {
        let sealed = self.keep_error(Self::try_seal)?;
        self.ended = Some(Error::closed(format!("{} is sealed and takes no bytes", self.name)));
        Ok(sealed)
    }
}

/// A reader of a sealed blob. It keeps nothing alive: the pool deletes a blob under its readers.
#[derive(Debug)]
struct MemoryBlobReader {
    pool: MemoryPool,
    name: BlobName,
    len_bytes: u64,
}

impl MemoryBlobReader {
    fn fetch(&self, requests: &mut [(u64, &mut [u8])]) -> Result<()> {
        let answer = self.pool.reach(PoolCall::BlobRead, &self.name)?;
        let bytes = {
            let pool = self.pool.shared.pool.lock();
            let blob = pool.blobs.get(&self.name.0).ok_or_else(|| self.name.not_found())?;
            Arc::clone(&blob.bytes)
        };
        for (offset, buf) in requests.iter_mut() {
            copy_range(&bytes, *offset, buf, &self.name)?;
        }
        answer.of(PoolCall::BlobRead, &self.name, ())
    }
}

impl BlobReader for MemoryBlobReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _context: IoContext) -> Result<()> {
        self.fetch(&mut [(offset, buf)])
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], _context: IoContext) -> Result<()> {
        self.fetch(requests)
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

/// Copies the bytes from `offset` on into `buf`, or says that they are past the end.
pub(super) fn copy_range(
    bytes: &[u8],
    offset: u64,
    buf: &mut [u8],
    object: &dyn fmt::Display,
) -> Result<()> {
    let start = usize::try_from(offset).ok().filter(|start| *start <= bytes.len());
    let range = start.and_then(|start| bytes[start..].get(..buf.len()));
    let range = range.ok_or_else(|| {
        Error::new(
            ErrorKind::Io,
            format!(
                "{object}: a read of {} bytes at {offset} is past the end at {}; read less",
                buf.len(),
                bytes.len()
            ),
        )
    })?;
    buf.copy_from_slice(range);
    Ok(())
}
