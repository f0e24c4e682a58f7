//! Reads of value files: one file after another, or several files at the same time.
//!
//! A scan or a multi-get wants values of many value files, with a few values in each. On a device
//! with a long latency, such as a network volume or a storage pool, reads one after another would
//! wait for that latency once per file. Therefore [`ValueReaders`] measures how long reads take. If
//! they are slow, threads read several files at the same time. If they are fast, the calling thread
//! reads all files, because a wake-up would cost more than a read.
//!
//! The database owns one [`ValueReaders`].
//!
//! Invariants:
//! 1. In manual mode the calling thread reads all files, so that a step does the same each time.
//! 2. A batch ends only when all its reads have ended. So the caller's version keeps the files
//!    during the reads.
//! 3. At most [`THREADS_MAX`] threads exist, and a batch uses at most [`HELPERS_MAX`] of them.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the first error in the order of the files is returned. If the system refuses threads or
//! the database is closed, the calling thread reads all files.
//! Cost: two reads of the clock per file. A parallel batch copies its keys and wakes one thread for
//! each further file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::{Result, SeqNo};
use parking_lot::{Condvar, Mutex};

use super::FileReads;
use crate::border::contained;
use crate::db::state::background_mode::BackgroundMode;
use crate::db::state::thread_group::{ThreadGroup, ThreadKind};
use crate::iter::WantedValue;
use crate::live_file::LiveValueFile;
use crate::pinned::PinnedSlice;
use crate::sst::TableReadOptions;
use crate::stats::Statistics;
use crate::table_cache::TableCache;
use crate::value_ref::Reference;

/// Mean time of a read, in nanoseconds, from which several files are read at the same time. A
/// wake-up of a thread costs about a tenth of this time.
const SLOW_READ_NS: u64 = 200_000;
/// Divisor of the newest read's share in the mean: one part in this many.
const NEWEST_SHARE: u64 = 8;
/// Largest number of threads that help with one batch.
const HELPERS_MAX: usize = 31;
/// Largest number of threads of a database that read values.
const THREADS_MAX: usize = 64;

/// Decides how the value files of a batch are read, and has the threads for it.
#[derive(Debug)]
pub(crate) struct ValueReaders {
    /// `None` in manual mode.
    threads: Option<ThreadGroup>,
    clock: Arc<dyn Clock>,
    /// Mean time, in nanoseconds, of recent reads that the block cache did not answer. Concurrent
    /// updates may overwrite each other, which only delays the mean.
    read_ns: AtomicU64,
    /// Number of threads that helped so far.
    #[cfg(test)]
    helped: AtomicUsize,
}

/// Number of threads that help the caller to read `files` files if a read takes `read_ns`.
fn helpers(files: usize, read_ns: u64) -> usize {
    if read_ns < SLOW_READ_NS { 0 } else { files.saturating_sub(1).min(HELPERS_MAX) }
}

/// The values that are wanted of one file.
pub(super) struct FileWants<'a> {
    pub(super) file: &'a Arc<LiveValueFile>,
    pub(super) wanted: Vec<WantedValue<'a>>,
}

impl ValueReaders {
    pub(crate) fn new(background: BackgroundMode, clock: &Arc<dyn Clock>) -> Self {
        let threads = match background {
            BackgroundMode::Threads => {
                Some(ThreadGroup::new(ThreadKind { name: "archi-values", yields: false }))
            }
            BackgroundMode::Manual => None,
        };
        Self {
            threads,
            clock: Arc::clone(clock),
            read_ns: AtomicU64::new(0),
            #[cfg(test)]
            helped: AtomicUsize::new(0),
        }
    }

    /// Number of threads that helped so far.
    #[cfg(test)]
    pub(super) fn helped(&self) -> usize {
        self.helped.load(Ordering::Relaxed)
    }

    /// Ends the threads. Later batches are read by their callers.
    pub(crate) fn close(&self) {
        if let Some(threads) = &self.threads {
            threads.close();
        }
    }

    /// The values of `files`, in their order. Reads the files in parallel if reads are slow.
    pub(super) fn read(
        self: &Arc<Self>,
        shared: SharedReads<'_>,
        files: &[FileWants<'_>],
    ) -> Result<Vec<Vec<PinnedSlice>>> {
        let helpers = helpers(files.len(), self.read_ns.load(Ordering::Relaxed));
        match &self.threads {
            Some(threads) if helpers > 0 => self.read_together(threads, helpers, shared, files),
            _ => files
                .iter()
                .map(|one| self.timed(shared.as_reads(), one.file, &one.wanted))
                .collect(),
        }
    }

    /// The values of one file. Notes the time if the block cache does not have all of them.
    fn timed(
        &self,
        reads: FileReads<'_>,
        file: &Arc<LiveValueFile>,
        wanted: &[WantedValue<'_>],
    ) -> Result<Vec<PinnedSlice>> {
        let begun_ns = self.clock.now_ns();
        let batch = reads.fetch(file, wanted)?;
        if batch.read > 0 {
            let took_ns = self.clock.now_ns().saturating_sub(begun_ns);
            self.note_read(Duration::from_nanos(took_ns));
        }
        Ok(batch.values)
    }

    /// Notes the time of a read that the block cache did not answer.
    pub(super) fn note_read(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mean_ns = self.read_ns.load(Ordering::Relaxed);
        let mean_ns = mean_ns - mean_ns / NEWEST_SHARE + took_ns / NEWEST_SHARE;
        self.read_ns.store(mean_ns, Ordering::Relaxed);
    }

    fn read_together(
        self: &Arc<Self>,
        threads: &ThreadGroup,
        helpers: usize,
        shared: SharedReads<'_>,
        files: &[FileWants<'_>],
    ) -> Result<Vec<Vec<PinnedSlice>>> {
        let files: Vec<OwnedWants> = files.iter().map(OwnedWants::of).collect();
        let batch = Arc::new(Batch {
            readers: Arc::clone(self),
            tables: Arc::clone(shared.tables),
            stats: Arc::clone(shared.stats),
            options: shared.options,
            outcomes: Mutex::new(Outcomes::of(files.len())),
            files,
            next: AtomicUsize::new(0),
            is_finished: Condvar::new(),
        });
        for _ in 0..helpers {
            let helper = Arc::clone(&batch);
            if !threads.run_within(THREADS_MAX, Box::new(move || helper.work())).unwrap_or(false) {
                break;
            }
            #[cfg(test)]
            self.helped.fetch_add(1, Ordering::Relaxed);
        }
        batch.work();
        batch.finish()
    }
}

/// Table cache, statistics and options that the reads of a batch share.
#[derive(Clone, Copy)]
pub(super) struct SharedReads<'a> {
    pub(super) tables: &'a Arc<TableCache>,
    pub(super) stats: &'a Arc<Statistics>,
    pub(super) options: TableReadOptions,
}

impl<'a> SharedReads<'a> {
    fn as_reads(self) -> FileReads<'a> {
        FileReads { tables: self.tables, stats: self.stats, options: self.options }
    }
}

/// A wanted value in owned memory, so that another thread may read it.
struct OwnedWant {
    key: Vec<u8>,
    seq: SeqNo,
    reference: Reference,
}

/// The values that are wanted of one file, in owned memory for any thread.
struct OwnedWants {
    file: Arc<LiveValueFile>,
    wanted: Vec<OwnedWant>,
}

impl OwnedWants {
    fn of(wants: &FileWants<'_>) -> Self {
        let own = |&WantedValue { key, seq, reference }: &WantedValue<'_>| OwnedWant {
            key: key.to_vec(),
            seq,
            reference,
        };
        Self { file: Arc::clone(wants.file), wanted: wants.wanted.iter().map(own).collect() }
    }
}

/// The values of the files that were read, and the number of the files that were not read yet.
struct Outcomes {
    values: Vec<Option<Result<Vec<PinnedSlice>>>>,
    unfinished: usize,
}

impl Outcomes {
    fn of(files: usize) -> Self {
        Self { values: (0..files).map(|_| None).collect(), unfinished: files }
    }
}

/// Files that several threads read.
struct Batch {
    readers: Arc<ValueReaders>,
    tables: Arc<TableCache>,
    stats: Arc<Statistics>,
    options: TableReadOptions,
    files: Vec<OwnedWants>,
    /// Index of the next file that no thread has taken.
    next: AtomicUsize,
    outcomes: Mutex<Outcomes>,
    is_finished: Condvar,
}

impl Batch {
    /// Reads files until none is left.
    fn work(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = self.files.get(index) else { return };
            let values = contained("a read of values", || self.read(file));
            let mut outcomes = self.outcomes.lock();
            outcomes.values[index] = Some(values);
            outcomes.unfinished -= 1;
            if outcomes.unfinished == 0 {
                self.is_finished.notify_one();
            }
        }
    }

    fn read(&self, file: &OwnedWants) -> Result<Vec<PinnedSlice>> {
        let reads = FileReads { tables: &self.tables, stats: &self.stats, options: self.options };
        let wanted: Vec<WantedValue<'_>> = file
            .wanted
            .iter()
            .map(|want| WantedValue { key: &want.key, seq: want.seq, reference: want.reference })
            .collect();
        self.readers.timed(reads, &file.file, &wanted)
    }

    /// Waits for the helpers, and takes the values.
    fn finish(&self) -> Result<Vec<Vec<PinnedSlice>>> {
        let mut outcomes = self.outcomes.lock();
        while outcomes.unfinished > 0 {
            self.is_finished.wait(&mut outcomes);
        }
        outcomes.values.drain(..).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_reads_and_single_files_need_no_helper() {
        assert_eq!(helpers(64, SLOW_READ_NS - 1), 0);
        assert_eq!(helpers(1, 10 * SLOW_READ_NS), 0);
        assert_eq!(helpers(0, 10 * SLOW_READ_NS), 0);
    }

    #[test]
    fn slow_reads_get_a_helper_for_each_further_file_within_a_limit() {
        assert_eq!(helpers(2, SLOW_READ_NS), 1);
        assert_eq!(helpers(20, SLOW_READ_NS), 19);
        assert_eq!(helpers(500, SLOW_READ_NS), HELPERS_MAX);
    }
}
