//! Values that a job reads, because it merges, filters or puts back inline the value of a
//! reference, and offsets of values that were moved.
//!
//! One job owns the value and uses it on one thread. Invariants:
//!
//! 1. A job reads only value files that its spec describes. The owner keeps them until the job has
//!    ended, although a garbage collection may replace them meanwhile.
//! 2. A file is opened when its first value is needed. At most [`OPEN_FILES_MAX`] files are open;
//!    the least recently used one is closed first.
//! 3. The bytes count as read by the job. Values and keys do not enter the block cache.
//!
//! Failure: an error of the file system, `Corrupt` with file and offset for a damaged value, and
//! `InvalidArgument` if the spec does not describe the file.
//! Cost: a job meets the values of a file in their order in the file, so reads go ahead. One read
//! brings up to [`READAHEAD_BYTES_MAX`] of values. Another one brings up to as many bytes of keys
//! if references come without an offset. These buffers are charged to `MemoryClass::Job`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};
use archipelago_base::{Error, FileNo, Result};
use archipelago_env::{FileClass, FileSystem, IoContext, OpenOptions, RandomFile};
use parking_lot::Mutex;

use super::moved_offsets::{KeyWalk, STEP_BYTES};
use super::spec::ValueSpec;
use super::{Cancel, JobContext, MeteredRead, Progress};
use crate::file_meta::value_file_name;
use crate::pinned::PinnedSlice;
use crate::sst::{BlockCache, TableReadOptions};
use crate::value::{ValueKey, ValueKeys, ValueTable};
use crate::value_ref::{Reference, ValueFileMeta, ValueHandle};

/// Largest number of value files that a job has open at a time.
const OPEN_FILES_MAX: usize = 32;
/// Largest number of bytes that one read brings into the buffer of a file.
const READAHEAD_BYTES_MAX: u64 = 256 << 10;
/// Bytes of the first readahead. Each further one is twice as long.
const READAHEAD_BYTES_MIN: u64 = 16 << 10;

/// Reads the values that references name.
pub(crate) trait ValueSource {
    /// The user's value of the record `key`, which lies in the file `current` now.
    fn fetch(
        &mut self,
        reference: &Reference,
        current: FileNo,
        key: ValueKey<'_>,
    ) -> Result<PinnedSlice>;

    /// Offset of the value of the record `key` in the file `current`, if it is at hand. The file is
    /// an heir of the one that `reference` names. Calls come in internal-key order.
    fn moved_offset(
        &mut self,
        _reference: &Reference,
        _current: FileNo,
        _key: ValueKey<'_>,
    ) -> Option<u64> {
        None
    }
}

/// The value files of one job.
pub(crate) struct ValueInputs<'a> {
    spec: &'a ValueSpec,
    dir: PathBuf,
    io: IoContext,
    direct: bool,
    fs: Arc<dyn FileSystem>,
    cache: Arc<BlockCache>,
    budget: Arc<ByteBudget>,
    cancel: Cancel,
    progress: Arc<Progress>,
    /// The open files, the most recently used one last.
    open: Vec<(FileNo, Arc<ValueTable>)>,
    /// Walks over the keys of heirs.
    walks: Vec<KeyWalk>,
}

impl<'a> ValueInputs<'a> {
    /// The value files that `spec` describes, in `dir`. `io` is the context of the job's tables;
    /// `direct` bypasses the page cache.
    pub(crate) fn new(
        spec: &'a ValueSpec,
        dir: PathBuf,
        io: IoContext,
        direct: bool,
        context: &JobContext<'_>,
    ) -> Self {
        Self {
            spec,
            dir,
            io: IoContext { class: FileClass::ValueSst, level: None, ..io },
            direct,
            fs: Arc::clone(&context.fs),
            cache: Arc::clone(&context.cache),
            budget: Arc::clone(&context.budget),
            cancel: context.cancel.clone(),
            progress: Arc::clone(&context.progress),
            open: Vec::new(),
            walks: Vec::new(),
        }
    }

    /// Takes offsets of moved values from the keys of `heirs`.
    pub(crate) fn walking(self, heirs: Vec<FileNo>) -> Self {
        Self { walks: heirs.into_iter().map(KeyWalk::new).collect(), ..self }
    }

    /// The open file `no`, which becomes the most recently used one.
    fn table(&mut self, no: FileNo) -> Result<Arc<ValueTable>> {
        if let Some(at) = self.open.iter().rposition(|&(open, _)| open == no) {
            self.open[at..].rotate_left(1);
        } else {
            let table = self.open_table(no)?;
            if self.open.len() >= OPEN_FILES_MAX {
                self.open.remove(0);
            }
            self.open.push((no, table));
        }
        let last = self.open.last().map(|(_, table)| Arc::clone(table));
        last.ok_or_else(|| Error::internal("a value file that was just opened is not open"))
    }

    fn open_table(&self, no: FileNo) -> Result<Arc<ValueTable>> {
        let OpenedFile { file, path, meta } = self.open_file(no)?;
        let file = Arc::new(ReadAhead::new(file, meta, &self.budget));
        ValueTable::open(file, &path, meta, &self.cache, &self.budget)
    }

    /// The keys of the file `no`, for a walk with a readahead of its own.
    fn open_keys(&self, no: FileNo) -> Result<ValueKeys> {
        let OpenedFile { file, path, meta } = self.open_file(no)?;
        let table = ValueTable::open(file, &path, meta, &self.cache, &self.budget)?;
        table.keys_in_steps(self.io, STEP_BYTES)
    }

    fn open_file(&self, no: FileNo) -> Result<OpenedFile<'a>> {
        let Some(meta) = self.spec.file(no.0) else {
            return Err(Error::invalid(format!(
                "job spec: value file {} is needed but not described",
                no.0
            )));
        };
        let path = self.dir.join(value_file_name(no));
        let file = self.fs.open(&path, self.io, OpenOptions { direct: self.direct })?;
        let (cancel, progress) = (self.cancel.clone(), Arc::clone(&self.progress));
        let file = Arc::new(MeteredRead::new(file, self.io.purpose, cancel, progress));
        Ok(OpenedFile { file, path, meta })
    }

    /// Position of the value of the record `key` by the walk `at`.
    fn walk_to(&mut self, at: usize, key: ValueKey<'_>) -> Result<Option<ValueHandle>> {
        if self.walks[at].keys.is_none() {
            self.walks[at].keys = Some(self.open_keys(self.walks[at].no)?);
        }
        self.walks[at].find(key)
    }
}

/// A value file whose reads count as those of the job.
struct OpenedFile<'a> {
    file: Arc<dyn RandomFile>,
    path: PathBuf,
    meta: &'a ValueFileMeta,
}

impl ValueSource for ValueInputs<'_> {
    fn fetch(
        &mut self,
        reference: &Reference,
        current: FileNo,
        key: ValueKey<'_>,
    ) -> Result<PinnedSlice> {
        let options = TableReadOptions::job(self.io, 0);
        self.table(current)?.read(reference, key, &options)
    }

    fn moved_offset(
        &mut self,
        reference: &Reference,
        current: FileNo,
        key: ValueKey<'_>,
    ) -> Option<u64> {
        let at = self.walks.iter().position(|walk| walk.no == current)?;
        match self.walk_to(at, key) {
            Ok(found) => {
                let lengths = (reference.stored_bytes, reference.raw_bytes);
                let is_same = |at: &ValueHandle| (at.stored_bytes, at.raw_bytes) == lengths;
                found.filter(is_same).map(|at| at.offset)
            }
            Err(error) => {
                // A cancelled job meets the cancellation at its next input.
                tracing::warn!(%error, "references to moved values get no offsets");
                self.walks.swap_remove(at);
                None
            }
        }
    }
}

/// A value file with a buffer for its values and one for its keys. Each buffer is filled ahead
/// while the reads of its part go forward.
struct ReadAhead {
    file: Arc<dyn RandomFile>,
    /// Offset of the keys in the file.
    keys_offset: u64,
    values: Mutex<Window>,
    keys: Mutex<Window>,
}

/// The bytes that were read last of one part of a file.
struct Window {
    /// Offset of `bytes` in the file.
    at: u64,
    bytes: Vec<u8>,
    /// End of the part.
    end: u64,
    /// Length of the next readahead in bytes.
    ahead_bytes: u64,
    charge: Charge,
}

impl ReadAhead {
    fn new(file: Arc<dyn RandomFile>, meta: &ValueFileMeta, budget: &Arc<ByteBudget>) -> Self {
        let window = |at, end| {
            let charge = budget.hold(MemoryClass::Job, 0);
            Mutex::new(Window {
                at,
                bytes: Vec::new(),
                end,
                ahead_bytes: READAHEAD_BYTES_MIN,
                charge,
            })
        };
        let keys_offset = meta.keys_offset.min(file.len());
        let (values, keys) = (window(0, keys_offset), window(keys_offset, file.len()));
        Self { file, keys_offset, values, keys }
    }
}

impl Window {
    /// Fills `buf` from `offset`, from the window if it has the bytes.
    fn read(
        &mut self,
        file: &dyn RandomFile,
        offset: u64,
        buf: &mut [u8],
        context: IoContext,
    ) -> Result<()> {
        if let Some(bytes) = self.found(offset, buf.len()) {
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        let len = buf.len() as u64;
        let behind = self.at + self.bytes.len() as u64;
        let goes_on = offset >= self.at && offset <= behind.saturating_add(self.ahead_bytes);
        let ahead = self.ahead_bytes.min(self.end.saturating_sub(offset));
        self.ahead_bytes = match goes_on {
            true => (self.ahead_bytes * 2).min(READAHEAD_BYTES_MAX),
            false => READAHEAD_BYTES_MIN,
        };
        if !goes_on || len >= ahead {
            self.at = offset.saturating_add(len);
            self.bytes.clear();
            return file.read_exact_at(offset, buf, context);
        }
        self.charge.resize(ahead);
        self.bytes.resize(ahead as usize, 0);
        self.at = offset;
        if let Err(error) = file.read_exact_at(offset, &mut self.bytes, context) {
            self.bytes.clear();
            return Err(error);
        }
        buf.copy_from_slice(&self.bytes[..buf.len()]);
        Ok(())
    }

    fn found(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.at)?).ok()?;
        self.bytes.get(from..from.checked_add(len)?)
    }
}

impl fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadAhead({:?})", self.file)
    }
}

impl RandomFile for ReadAhead {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        let part = if offset < self.keys_offset { &self.values } else { &self.keys };
        part.lock().read(&*self.file, offset, buf, context)
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        self.file.read_many(requests, context)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }

    fn forget(&self, offset: u64, len: u64) {
        self.file.forget(offset, len);
    }

    fn len(&self) -> u64 {
        self.file.len()
    }
}
