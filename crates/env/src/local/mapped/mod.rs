//! The driver for byte-addressable devices: tables on persistent memory, a DAX mount or tmpfs,
//! without a system call for each read and write.
//!
//! [`MappedFs`] differs from the local file system in tables and value files
//! ([`FileClass::is_table`](crate::FileClass::is_table)). It writes them by copying into mapped
//! windows of allocated blocks, and reads them by copying out of a mapping of the whole file. The
//! local file system itself maps logs ([`super::log`]). Small files are not mapped.
//!
//! Invariants:
//! 1. Blocks are allocated before they are mapped, so that no store meets a full device.
//! 2. The file has exactly the appended length after each `flush`, `sync` and drop. At other times
//!    it may be longer.
//! 3. `sync` flushes every window that was written since the last one, and then the length
//!    (`fdatasync`).
//!
//! Thread-safety: as the traits say. Failure: a full device is an error of the creation of a
//! window. A medium that fails under a mapped page ends the process (SIGBUS). Cost: three system
//! calls for each window of 4 MiB, and none for a read.

#![expect(clippy::disallowed_methods, reason = "the layer that all other file access goes through")]

mod mapping;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, Result};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use self::mapping::{ReadMap, WriteWindow};
use super::LocalFs;
use super::tables::with_room;
use crate::access::GroupAccess;
use crate::context::IoContext;
use crate::failure::past_end;
use crate::fs::{CreateOptions, FileSystem, OpenOptions, RandomFile, WritableFile};

/// Size of the window that is mapped for writing, a multiple of every page size.
const WINDOW_BYTES: u64 = 4 << 20;

/// The local file system with mapped tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct MappedFs {
    local: LocalFs,
}

impl MappedFs {
    /// Makes a handle of the local file system whose tables are mapped.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a handle that also gives the group access to created files.
    #[must_use]
    pub fn for_group(access: GroupAccess) -> Self {
        Self { local: LocalFs::for_group(access) }
    }
}

impl FileSystem for MappedFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        if !context.class.is_table() {
            return self.local.create(path, context, options);
        }
        let mut how = self.local.modes.creating();
        let (file, _) = self
            .local
            .create_file(path, how.read(true), CreateOptions { direct: false, ..options })
            .map_err(|source| Error::io("create", path, source))?;
        let path = path.to_owned();
        Ok(Box::new(MappedWriter { file, path, len: 0, exact: true, window: None, failed: None }))
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        if !context.class.is_table() {
            return self.local.open(path, context, options);
        }
        let failed = |source| Error::io("open", path, source);
        let file = with_room(|| File::open(path)).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let map = ReadMap::new(&file, metadata.len()).map_err(failed)?;
        Ok(Arc::new(MappedReader { map, path: path.to_owned(), len: metadata.len() }))
    }

    crate::forward_fs!(local: create_log, names);
}

#[derive(Debug)]
struct MappedReader {
    map: ReadMap,
    path: PathBuf,
    len: u64,
}

impl RandomFile for MappedReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _context: IoContext) -> Result<()> {
        if self.map.copy_to(offset, buf) {
            return Ok(());
        }
        Err(past_end(&self.path, offset, buf.len(), self.len))
    }

    fn len(&self) -> u64 {
        self.len
    }
}

#[derive(Debug)]
struct MappedWriter {
    file: File,
    path: PathBuf,
    len: u64,
    /// Whether the file has the length `len`.
    exact: bool,
    /// Start of the mapped window, and the window.
    window: Option<(u64, WriteWindow)>,
    failed: Option<Error>,
}

impl MappedWriter {
    fn fail(&mut self, doing: &str, source: io::Error) -> Error {
        let error = Error::io(doing, &self.path, source);
        self.failed = Some(error.clone());
        error
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Flushes the current window, and maps the one that contains `self.len`.
    fn next_window(&mut self) -> io::Result<()> {
        if let Some((_, window)) = self.window.take() {
            window.flush()?;
        }
        let start = self.len - self.len % WINDOW_BYTES;
        loop {
            match fallocate(&self.file, FallocateFlags::empty(), start, WINDOW_BYTES) {
                Err(Errno::INTR) => (),
                done => break done?,
            }
        }
        self.exact = false;
        let window = WriteWindow::new(&self.file, start, WINDOW_BYTES as usize)?;
        self.window = Some((start, window));
        Ok(())
    }

    /// Sets the length of the file. The window is removed, because bytes after the end must not
    /// stay mapped.
    fn cut(&mut self) -> io::Result<()> {
        if self.exact {
            return Ok(());
        }
        if let Some((_, window)) = self.window.take() {
            window.flush()?;
        }
        self.file.set_len(self.len)?;
        self.exact = true;
        Ok(())
    }
}

impl WritableFile for MappedWriter {
    fn append(&mut self, mut data: &[u8]) -> Result<()> {
        self.check()?;
        while !data.is_empty() {
            let within = self.len % WINDOW_BYTES;
            let has_room = matches!(&self.window, Some((start, _)) if *start + within == self.len);
            if !has_room && let Err(source) = self.next_window() {
                return Err(self.fail("map a window of", source));
            }
            let (piece, rest) = data.split_at(data.len().min((WINDOW_BYTES - within) as usize));
            if let Some((_, window)) = &mut self.window {
                window.write(within as usize, piece);
            }
            self.len += piece.len() as u64;
            data = rest;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.check()?;
        self.cut().map_err(|source| self.fail("flush", source))
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.file.sync_data().map_err(|source| self.fail("sync", source))
    }

    fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for MappedWriter {
    fn drop(&mut self) {
        if self.failed.is_none() {
            // A caller that needs the outcome has flushed before.
            let _cut = self.cut();
        }
    }
}
