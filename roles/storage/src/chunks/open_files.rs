//! Open files of sealed chunks, with their checksums.
//!
//! A read needs the file and the checksums of its pieces. [`OpenFiles`] keeps the ones that were
//! used last, so that a read is one request to the device.
//!
//! Invariants:
//! 1. At most [`FILES_MAX`] files are kept, and no more than a quarter of the file descriptors of
//!    the process. Their checksums have at most [`TABLE_BYTES_MAX`], except for a single larger
//!    table.
//! 2. A chunk that was forgotten is not found before it is opened again.
//!
//! Thread-safety: one lock, which is never held over I/O.
//! Failure: none; a kept file whose chunk is gone is harmless.
//! Cost: a hit is a look-up in two maps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use archipelago_env::RandomFile;
use archipelago_store::nodes::layout::PIECE_BYTES;
use archipelago_store::nodes::wire::ChunkId;
use parking_lot::Mutex;

use super::file;

/// Largest number of files that are kept open.
pub(crate) const FILES_MAX: usize = 512;
/// Largest number of bytes of checksums that are kept: those of 32 GiB of chunks.
const TABLE_BYTES_MAX: u64 = 32 << 20;

/// An open chunk.
#[derive(Debug)]
pub(crate) struct OpenChunk {
    pub(crate) file: Arc<dyn RandomFile>,
    /// Checksums of the pieces.
    pub(crate) crcs: Vec<u32>,
    /// Length of the data in bytes.
    pub(crate) data_bytes: u64,
}

impl OpenChunk {
    /// The checksums of the pieces from `start` to `end`, which are whole pieces of the chunk.
    pub(crate) fn crcs(&self, start: u64, end: u64) -> &[u32] {
        let first = start / PIECE_BYTES;
        &self.crcs[first as usize..file::pieces(end) as usize]
    }

    fn table_bytes(&self) -> u64 {
        self.crcs.len() as u64 * 4
    }
}

#[derive(Debug, Default)]
struct RecentFiles {
    files: HashMap<ChunkId, (u64, Arc<OpenChunk>)>,
    /// Chunks by the number of their last use.
    uses: BTreeMap<u64, ChunkId>,
    next_use: u64,
    table_bytes: u64,
}

impl RecentFiles {
    fn take(&mut self, chunk: ChunkId) -> Option<Arc<OpenChunk>> {
        let (last_use, open) = self.files.remove(&chunk)?;
        self.uses.remove(&last_use);
        self.table_bytes -= open.table_bytes();
        Some(open)
    }

    fn put(&mut self, chunk: ChunkId, open: Arc<OpenChunk>) {
        self.table_bytes += open.table_bytes();
        self.uses.insert(self.next_use, chunk);
        self.files.insert(chunk, (self.next_use, open));
        self.next_use += 1;
    }

    fn is_over(&self, files_max: usize) -> bool {
        let has_many = self.files.len() > files_max || self.table_bytes > TABLE_BYTES_MAX;
        has_many && self.files.len() > 1
    }
}

/// The files that were used last.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    recent: Mutex<RecentFiles>,
    files_max: usize,
}

impl OpenFiles {
    /// No files. At most `files_max` are kept.
    pub(crate) fn new(files_max: usize) -> Self {
        Self { recent: Mutex::default(), files_max }
    }

    /// The open file of a chunk.
    pub(crate) fn get(&self, chunk: ChunkId) -> Option<Arc<OpenChunk>> {
        let mut recent = self.recent.lock();
        let open = recent.take(chunk)?;
        recent.put(chunk, Arc::clone(&open));
        Some(open)
    }

    /// Keeps an open file, and closes those that were not used for longest.
    pub(crate) fn keep(&self, chunk: ChunkId, open: Arc<OpenChunk>) {
        let mut recent = self.recent.lock();
        recent.take(chunk);
        recent.put(chunk, open);
        while recent.is_over(self.files_max) {
            let oldest = recent.uses.first_key_value().map(|(_, chunk)| *chunk);
            let _closed = oldest.and_then(|chunk| recent.take(chunk));
        }
    }

    /// Closes the file of a chunk that is removed or replaced.
    pub(crate) fn forget(&self, chunk: ChunkId) {
        self.recent.lock().take(chunk);
    }
}

#[cfg(test)]
mod tests {
    use archipelago_env::mem::MemFs;
    use archipelago_env::{FileClass, FileSystem as _, IoContext, IoPurpose, OpenOptions};
    use archipelago_store::BlobId;

    use super::*;

    fn chunk(number: usize) -> ChunkId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(number as u64).to_le_bytes());
        ChunkId { blob: BlobId(id), index: 0 }
    }

    fn open(pieces: usize) -> Arc<OpenChunk> {
        let fs = MemFs::new();
        let path = std::path::Path::new("/a");
        let context = IoContext::new(FileClass::Sst, IoPurpose::ForegroundRead);
        fs.create_dir_all(std::path::Path::new("/")).unwrap();
        fs.write_atomic(path, b"a", context).unwrap();
        let file = fs.open(path, context, OpenOptions::default()).unwrap();
        let data_bytes = pieces as u64 * PIECE_BYTES;
        Arc::new(OpenChunk { file, crcs: vec![0; pieces], data_bytes })
    }

    #[test]
    fn number_of_open_files_is_bounded() {
        let files = OpenFiles::new(8);
        let small = open(1);
        (0..8).for_each(|number| files.keep(chunk(number), Arc::clone(&small)));
        assert!(files.get(chunk(0)).is_some());
        files.keep(chunk(8), Arc::clone(&small));
        assert!(files.get(chunk(1)).is_none(), "it was not used for longest");
        assert!(files.get(chunk(0)).is_some() && files.get(chunk(8)).is_some());
        files.forget(chunk(0));
        assert!(files.get(chunk(0)).is_none());
    }

    #[test]
    fn memory_of_checksums_is_bounded() {
        let files = OpenFiles::new(FILES_MAX);
        let half = open((TABLE_BYTES_MAX / 8) as usize);
        (0..3).for_each(|number| files.keep(chunk(number), Arc::clone(&half)));
        assert!(files.get(chunk(0)).is_none());
        files.keep(chunk(3), open((TABLE_BYTES_MAX / 2) as usize));
        assert!(files.get(chunk(3)).is_some(), "a single table may be larger");
        assert!(files.get(chunk(2)).is_none());
    }
}
