//! A log segment with one `pwritev` per append, for file systems on which a mapped log is unsafe.
//! It is the simplest log that survives `kill -9`.
//!
//! Invariants:
//! 1. The page cache has all bytes of an append that returned.
//! 2. After a failed append or sync the segment fails permanently.
//! 3. `durable` never exceeds `written`.
//!
//! Thread-safety: as the traits say. Failure: the first error is sticky. Cost: one system call per
//! append, and one more if appends are written through. A sync does nothing if another sync that
//! began after it has finished.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Error, Result};
use parking_lot::Mutex;

use super::buffered::VECTORS_MAX;
use super::modes::Modes;
use super::tables::with_room;
use super::writeback;
use crate::fs::{LogFile, LogOptions, LogSync};

/// Creates the segment `path`, over the space of `options.recycle` if that is given.
pub(super) fn create(path: &Path, options: &LogOptions, modes: Modes) -> Result<Box<dyn LogFile>> {
    let failed = |source| Error::io("create log", path, source);
    if let Some(old) = &options.recycle {
        std::fs::rename(old, path).map_err(|source| {
            Error::io(&format!("recycle as {} the log", path.display()), old, source)
        })?;
    }
    let mut how = modes.creating();
    how.write(true).truncate(options.recycle.is_none());
    let file = with_room(|| how.open(path)).map_err(failed)?;
    modes.settle(&file, path).map_err(failed)?;
    let sync_file = with_room(|| file.try_clone()).map_err(failed)?;
    let written = Arc::new(AtomicU64::new(0));
    let sync = Arc::new(PlainLogSync {
        file: sync_file,
        path: path.to_owned(),
        written: Arc::clone(&written),
        state: Mutex::default(),
    });
    Ok(Box::new(PlainLog { file, path: path.to_owned(), written, sync, failed: None }))
}

#[derive(Debug)]
struct PlainLog {
    file: File,
    path: PathBuf,
    written: Arc<AtomicU64>,
    sync: Arc<PlainLogSync>,
    failed: Option<Error>,
}

impl PlainLog {
    fn write(&self, offset: u64, parts: &[&[u8]]) -> io::Result<u64> {
        if let [only] = parts {
            self.file.write_all_at(only, offset)?;
            return Ok(offset + only.len() as u64);
        }
        let mut vectors: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = vectors.as_mut_slice();
        let mut at = offset;
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let got =
                match rustix::io::pwritev(&self.file, &left[..left.len().min(VECTORS_MAX)], at) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Err(rustix::io::Errno::INTR) => continue,
                    other => other?,
                };
            at += got as u64;
            IoSlice::advance_slices(&mut left, got);
        }
        Ok(at)
    }
}

impl LogFile for PlainLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let offset = self.len();
        match self.write(offset, parts) {
            Ok(end) => {
                self.written.store(end, Ordering::Release);
                Ok(offset)
            }
            Err(source) => {
                let error = Error::io(&format!("append at {offset} to log"), &self.path, source);
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    fn len(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        Arc::clone(&self.sync) as Arc<dyn LogSync>
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(bytes, self.len());
        written.map_err(|source| Error::io("append the trailer to log", &self.path, source))
    }

    fn unwritten_bytes(&self) -> u64 {
        0
    }
}

#[derive(Debug)]
struct PlainLogSync {
    file: File,
    path: PathBuf,
    written: Arc<AtomicU64>,
    state: Mutex<SyncState>,
}

#[derive(Debug, Default)]
struct SyncState {
    durable: u64,
    /// Offset through which the device has the log. It is not less than `durable`.
    through: u64,
    failed: Option<Error>,
}

impl SyncState {
    fn fail(&mut self, doing: &str, path: &Path, source: io::Error) -> Error {
        let error = Error::io(doing, path, source);
        self.failed = Some(error.clone());
        error
    }
}

impl LogSync for PlainLogSync {
    fn sync(&self) -> Result<u64> {
        let target = self.written.load(Ordering::Acquire);
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if state.durable >= target && target > 0 {
            return Ok(state.durable);
        }
        let through = self.written.load(Ordering::Acquire);
        if let Err(source) = self.file.sync_data() {
            return Err(state.fail("sync log", &self.path, source));
        }
        state.durable = through;
        state.through = state.through.max(through);
        Ok(through)
    }

    fn write_through(&self) -> Result<u64> {
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let through = self.written.load(Ordering::Acquire);
        if through > state.through {
            if let Err(source) = writeback::wait(&self.file, state.through, through) {
                return Err(state.fail("write through the log", &self.path, source));
            }
            state.through = through;
        }
        Ok(state.through)
    }
}
