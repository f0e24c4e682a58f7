//! A decorator that counts reads and writes by file class and purpose. Write amplification is
//! computed from these counts.
//!
//! It counts the requests of callers, before the buffers, alignment and caches of the decorated
//! file system. Compactions count as one purpose, whatever their levels are. A failed operation is
//! not counted.
//!
//! Thread-safety: any thread may call any method.
//! Cost: an operation adds two or three relaxed additions to counters of the thread's own stripe.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::metrics::Counters;

use crate::context::{FileClass, IoContext, IoPurpose};
use crate::fs::{
    CreateOptions, FileSystem, LogFile, LogOptions, LogSync, OpenOptions, RandomFile, WritableFile,
};

const CLASSES: usize = 5;
pub(crate) const PURPOSES: usize = 8;
const COUNTS: usize = 6;
const CELLS: usize = CLASSES * PURPOSES;

/// Counters of one cell, in their order.
#[derive(Clone, Copy)]
enum Count {
    ReadCalls,
    ReadOps,
    ReadBytes,
    WriteOps,
    WriteBytes,
    Syncs,
}

pub(crate) fn purpose_index(purpose: IoPurpose) -> usize {
    match purpose {
        IoPurpose::ForegroundRead => 0,
        IoPurpose::ForegroundWrite => 1,
        IoPurpose::Recovery => 2,
        IoPurpose::Flush => 3,
        IoPurpose::Compaction { .. } => 4,
        IoPurpose::Gc => 5,
        IoPurpose::Ingest => 6,
        IoPurpose::Maintenance => 7,
    }
}

fn cell_index(class: FileClass, purpose: IoPurpose) -> usize {
    class as usize * PURPOSES + purpose_index(purpose)
}

/// Counts of one file class and one purpose, or a sum of such counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Number of calls that read one range or several at a time.
    pub read_calls: u64,
    /// Number of ranges that were read.
    pub read_ops: u64,
    /// Number of bytes that were read.
    pub read_bytes: u64,
    /// Number of append calls.
    pub write_ops: u64,
    /// Number of bytes that were appended.
    pub write_bytes: u64,
    /// Number of syncs of files and logs.
    pub syncs: u64,
}

impl IoCounts {
    fn zip(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            read_calls: join(self.read_calls, other.read_calls),
            read_ops: join(self.read_ops, other.read_ops),
            read_bytes: join(self.read_bytes, other.read_bytes),
            write_ops: join(self.write_ops, other.write_ops),
            write_bytes: join(self.write_bytes, other.write_bytes),
            syncs: join(self.syncs, other.syncs),
        }
    }
}

/// All counts at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoStats {
    cells: [IoCounts; CELLS],
}

impl Default for IoStats {
    fn default() -> Self {
        Self { cells: [IoCounts::default(); CELLS] }
    }
}

impl IoStats {
    /// Counts of files of `class` for `purpose`. The levels of a compaction do not matter.
    #[must_use]
    pub fn of(&self, class: FileClass, purpose: IoPurpose) -> IoCounts {
        self.cells[cell_index(class, purpose)]
    }

    /// Counts of files of `class`, for all purposes.
    #[must_use]
    pub fn of_class(&self, class: FileClass) -> IoCounts {
        let start = class as usize * PURPOSES;
        sum(self.cells[start..start + PURPOSES].iter())
    }

    /// Counts for `purpose`, for all files.
    #[must_use]
    pub fn of_purpose(&self, purpose: IoPurpose) -> IoCounts {
        sum(self.cells.iter().skip(purpose_index(purpose)).step_by(PURPOSES))
    }

    /// Sum of all counts.
    #[must_use]
    pub fn total(&self) -> IoCounts {
        sum(self.cells.iter())
    }

    /// Counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut cells = self.cells;
        for (cell, before) in cells.iter_mut().zip(&earlier.cells) {
            *cell = cell.zip(*before, u64::saturating_sub);
        }
        Self { cells }
    }
}

fn sum<'a>(cells: impl Iterator<Item = &'a IoCounts>) -> IoCounts {
    cells.fold(IoCounts::default(), |total, cell| total.zip(*cell, |a, b| a + b))
}

#[derive(Debug, Default)]
struct Tally {
    counters: Counters<{ CELLS * COUNTS }>,
}

impl Tally {
    fn add(&self, cell: usize, count: Count, value: u64) {
        self.counters.add(cell * COUNTS + count as usize, value);
    }

    fn read(&self, context: IoContext, ops: usize, bytes: u64) {
        let cell = cell_index(context.class, context.purpose);
        self.add(cell, Count::ReadCalls, 1);
        self.add(cell, Count::ReadOps, ops as u64);
        self.add(cell, Count::ReadBytes, bytes);
    }

    fn wrote(&self, cell: usize, bytes: u64) {
        self.add(cell, Count::WriteOps, 1);
        self.add(cell, Count::WriteBytes, bytes);
    }
}

/// A file system that counts operations. Its clones share the counters.
#[derive(Clone, Debug)]
pub struct CountingFs {
    inner: Arc<dyn FileSystem>,
    tally: Arc<Tally>,
}

impl CountingFs {
    /// Decorates `inner`, and counts from zero.
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        Self { inner, tally: Arc::default() }
    }

    /// The counts at this moment.
    #[must_use]
    pub fn snapshot(&self) -> IoStats {
        let mut stats = IoStats::default();
        for (index, cell) in stats.cells.iter_mut().enumerate() {
            let get = |count: Count| self.tally.counters.get(index * COUNTS + count as usize);
            *cell = IoCounts {
                read_calls: get(Count::ReadCalls),
                read_ops: get(Count::ReadOps),
                read_bytes: get(Count::ReadBytes),
                write_ops: get(Count::WriteOps),
                write_bytes: get(Count::WriteBytes),
                syncs: get(Count::Syncs),
            };
        }
        stats
    }
}

impl FileSystem for CountingFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let inner = self.inner.create(path, context, options)?;
        let cell = cell_index(context.class, context.purpose);
        Ok(Box::new(CountingWriter { inner, tally: Arc::clone(&self.tally), cell }))
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        let inner = self.inner.open(path, context, options)?;
        Ok(Arc::new(CountingReader { inner, tally: Arc::clone(&self.tally) }))
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        let inner = self.inner.create_log(path, context, options)?;
        let cell = cell_index(context.class, context.purpose);
        Ok(Box::new(CountingLog { inner, tally: Arc::clone(&self.tally), cell }))
    }

    crate::forward_fs!(inner: names);
}

#[derive(Debug)]
struct CountingWriter {
    inner: Box<dyn WritableFile>,
    tally: Arc<Tally>,
    cell: usize,
}

impl WritableFile for CountingWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.inner.append(data)?;
        self.tally.wrote(self.cell, data.len() as u64);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }

    fn submit(&mut self) -> Result<()> {
        self.inner.submit()
    }

    fn sync(&mut self) -> Result<()> {
        self.inner.sync()?;
        self.tally.add(self.cell, Count::Syncs, 1);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

#[derive(Debug)]
struct CountingReader {
    inner: Arc<dyn RandomFile>,
    tally: Arc<Tally>,
}

impl RandomFile for CountingReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        self.inner.read_exact_at(offset, buf, context)?;
        self.tally.read(context, 1, buf.len() as u64);
        Ok(())
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        self.inner.read_many(requests, context)?;
        let bytes = requests.iter().map(|(_, buf)| buf.len() as u64).sum();
        self.tally.read(context, requests.len(), bytes);
        Ok(())
    }

    fn read_new(&self, offset: u64, len: usize, context: IoContext) -> Result<Vec<u8>> {
        let bytes = self.inner.read_new(offset, len, context)?;
        self.tally.read(context, 1, len as u64);
        Ok(bytes)
    }

    fn read_many_new(&self, ranges: &[(u64, usize)], context: IoContext) -> Result<Vec<Vec<u8>>> {
        let found = self.inner.read_many_new(ranges, context)?;
        let bytes = ranges.iter().map(|&(_, len)| len as u64).sum();
        self.tally.read(context, ranges.len(), bytes);
        Ok(found)
    }

    crate::forward_reader!(inner);
}

#[derive(Debug)]
struct CountingLog {
    inner: Box<dyn LogFile>,
    tally: Arc<Tally>,
    cell: usize,
}

impl LogFile for CountingLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let offset = self.inner.append(parts)?;
        self.tally.wrote(self.cell, parts.iter().map(|part| part.len() as u64).sum());
        Ok(offset)
    }

    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let offset = self.inner.submit(parts)?;
        self.tally.wrote(self.cell, parts.iter().map(|part| part.len() as u64).sum());
        Ok(offset)
    }

    fn acknowledges_later(&self) -> bool {
        self.inner.acknowledges_later()
    }

    fn hold_back(&mut self, bytes: u64) {
        self.inner.hold_back(bytes);
    }

    fn follow(&mut self, previous: Arc<dyn LogSync>, end: u64) -> Result<()> {
        self.inner.follow(previous, end)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        let (inner, tally) = (self.inner.sync_handle(), Arc::clone(&self.tally));
        Arc::new(CountingLogSync { inner, tally, cell: self.cell })
    }

    fn finish(&mut self) -> Result<()> {
        self.inner.finish()
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.append_trailer(bytes)?;
        self.tally.wrote(self.cell, bytes.len() as u64);
        Ok(())
    }

    fn unwritten_bytes(&self) -> u64 {
        self.inner.unwritten_bytes()
    }
}

#[derive(Debug)]
struct CountingLogSync {
    inner: Arc<dyn LogSync>,
    tally: Arc<Tally>,
    cell: usize,
}

impl LogSync for CountingLogSync {
    fn sync(&self) -> Result<u64> {
        let through = self.inner.sync()?;
        self.tally.add(self.cell, Count::Syncs, 1);
        Ok(through)
    }

    fn wait(&self, end: u64) -> Result<()> {
        self.inner.wait(end)
    }

    fn send(&self) -> Result<()> {
        self.inner.send()
    }

    fn acknowledged(&self) -> u64 {
        self.inner.acknowledged()
    }

    fn write_through(&self) -> Result<u64> {
        self.inner.write_through()
    }
}
