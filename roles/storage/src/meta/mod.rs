//! The metadata of a node, in an embedded database.
//!
//! [`Meta`] owns the database in the directory `meta` of the node's first device. Every part of the
//! node has a [`MetaSpace`], whose keys and values it defines.
//!
//! Invariants:
//! 1. A batch is applied as a whole or not at all, also over power loss.
//! 2. After [`Meta::write`] or [`Meta::sync`] returned, the batches that were applied before it
//!    survive power loss.
//! 3. After a failed sync no later batch succeeds, so no answer contains a value that was not made
//!    durable.
//!
//! Thread-safety: any thread may call any method. Concurrent syncs share one sync of the log.
//! Failure: an error of the database is returned, and the request that needed it is refused.
//! Cost: a write appends to the database's log; a sync is one `fdatasync`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{CfId, Result};
use archipelago_engine::db::{BackgroundMode, Components, Db, ReadOptions};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;
use parking_lot::Mutex;

/// A part of the database: the first byte of its keys, which never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaSpace {
    /// State of the node as a whole.
    Node = 1,
    /// Promised epochs by volume.
    Epochs = 2,
    /// Extents by log and number.
    Extents = 3,
    /// Names of registers, and the membership.
    Registers = 4,
    /// Records of chunks.
    Chunks = 5,
    /// Marks of the last syncs of extents.
    Marks = 6,
    /// Removed logs and abandoned blobs, by volume.
    Tombstones = 7,
}

impl MetaSpace {
    fn key(self, key: &[u8]) -> Vec<u8> {
        let mut full = Vec::with_capacity(key.len() + 1);
        full.push(self as u8);
        full.extend_from_slice(key);
        full
    }

    /// The smallest key behind all keys of the space.
    fn end(self) -> [u8; 1] {
        [self as u8 + 1]
    }
}

/// Changes that are applied together.
#[derive(Debug, Default)]
pub(crate) struct MetaBatch {
    batch: WriteBatch,
}

impl MetaBatch {
    /// Sets a value.
    pub(crate) fn put(&mut self, space: MetaSpace, key: &[u8], value: &[u8]) {
        self.batch.put_cf(CfId::DEFAULT, &space.key(key), value);
    }

    /// Removes a value. A missing one is no error.
    pub(crate) fn remove(&mut self, space: MetaSpace, key: &[u8]) {
        self.batch.delete_cf(CfId::DEFAULT, &space.key(key));
    }

    /// Whether the batch changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }
}

/// Whether a scan continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// The next entry is wanted.
    Continue,
    /// The scan ends.
    Stop,
}

/// Gets the keys and values of a scan.
pub(crate) type ScanVisitor<'a> = dyn FnMut(&[u8], &[u8]) -> Result<Scan> + 'a;

/// Threads of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetaThreads {
    /// One background thread flushes and compacts.
    #[default]
    Background,
    /// The caller of a write flushes and compacts, as a simulation needs it.
    Caller,
}

/// The metadata of a node.
#[derive(Debug)]
pub(crate) struct Meta {
    db: Db,
    threads: MetaThreads,
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    /// Length of the database's files at the last [`Meta::look_at_files`]; `None` before.
    file_bytes: Mutex<Option<u64>>,
}

/// Size of a memtable of the database, in bytes. The metadata of a node are small.
const WRITE_BUFFER_BYTES: u64 = 4 << 20;
/// Size of a segment of the database's log, in bytes.
const WAL_SEGMENT_BYTES: u64 = 8 << 20;
/// Size of the block cache in bytes.
const BLOCK_CACHE_BYTES: u64 = 16 << 20;
/// Memory of the database in bytes.
const MEMORY_BYTES: u64 = 64 << 20;
/// Space, in bytes, that the database keeps in reserve for removals on a full device.
const RESERVE_BYTES: u64 = 16 << 20;

impl Meta {
    /// Opens or creates the database in `dir`. Errors: `Busy` if another process has it open;
    /// `Corrupt`, which names the damaged file.
    pub(crate) fn open(fs: &Arc<dyn FileSystem>, dir: &Path, threads: MetaThreads) -> Result<Self> {
        let options = DbOptions {
            max_background_jobs: 1,
            wal_segment_bytes: WAL_SEGMENT_BYTES,
            memory_budget_bytes: MEMORY_BYTES,
            block_cache_bytes: BLOCK_CACHE_BYTES,
            disk_reserve_bytes: RESERVE_BYTES,
            ..DbOptions::default()
        };
        let family = CfOptions {
            write_buffer_bytes: WRITE_BUFFER_BYTES,
            buckets: 1,
            buckets_dynamic: false,
            target_file_bytes: WRITE_BUFFER_BYTES,
            level_base_bytes: 4 * WRITE_BUFFER_BYTES,
            ..CfOptions::default()
        };
        let (background, seed) = match threads {
            MetaThreads::Background => (BackgroundMode::Threads, None),
            MetaThreads::Caller => (BackgroundMode::Manual, Some(1)),
        };
        let components = Components {
            fs: Arc::clone(fs),
            families: BTreeMap::from([("default".to_owned(), family)]),
            background,
            seed,
            ..Components::default()
        };
        Ok(Self {
            db: Db::open_with(dir, options, components)?,
            threads,
            fs: Arc::clone(fs),
            dir: dir.to_owned(),
            file_bytes: Mutex::new(None),
        })
    }

    /// Asks the file system for the length of the database's files, and keeps the answer. The call
    /// may wait for a hung device, so it is made by a thread that may wait as well.
    pub(crate) fn look_at_files(&self) {
        // After an error, the last answer stays.
        if let Ok(entries) = self.fs.list(&self.dir) {
            let bytes: u64 = entries.iter().map(|entry| entry.len).sum();
            *self.file_bytes.lock() = Some(bytes);
        }
    }

    /// Length of the database's files in bytes, as of the last [`Meta::look_at_files`].
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        *self.file_bytes.lock()
    }

    /// The value of a key.
    pub(crate) fn get(&self, space: MetaSpace, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.db.get(&space.key(key))?.map(|value| value.to_vec()))
    }

    /// Applies a batch, which then survives a kill of the process. [`Meta::sync`] makes it survive
    /// power loss.
    pub(crate) fn apply(&self, batch: &MetaBatch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.db.write(&batch.batch, &WriteOptions::default())?;
        if self.threads == MetaThreads::Caller {
            self.db.wait_for_background()?;
        }
        Ok(())
    }

    /// Makes everything that was applied before this call survive power loss.
    pub(crate) fn sync(&self) -> Result<()> {
        self.db.sync()
    }

    /// Applies a batch durably.
    pub(crate) fn write(&self, batch: &MetaBatch) -> Result<()> {
        self.apply(batch)?;
        self.sync()
    }

    /// Visits the entries of a space in order, from the first key that is not below `from`. Keys
    /// come without the byte of the space.
    pub(crate) fn scan(
        &self,
        space: MetaSpace,
        from: &[u8],
        visit: &mut ScanVisitor<'_>,
    ) -> Result<()> {
        let options = ReadOptions::new().range(space.key(from), space.end());
        let mut entries = self.db.iter(self.db.default_family(), &options)?;
        entries.seek_to_first();
        while entries.valid() {
            if visit(&entries.key()[1..], entries.value())? == Scan::Stop {
                return Ok(());
            }
            entries.next();
        }
        entries.status()
    }

    /// Makes everything durable and closes the database. Later calls fail.
    pub(crate) fn close(&self) -> Result<()> {
        self.db.clone().close()
    }
}

#[cfg(test)]
mod tests;
