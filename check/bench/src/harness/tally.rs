//! Counts of one worker, and their sum over all workers of a benchmark.

use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::clock::{Clock, SystemClock};

use crate::harness::histogram::Histogram;

/// Kinds of operation that have a distribution of their own, named as db_bench names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Read,
    Write,
    Delete,
    Seek,
    Update,
    Other,
}

impl OpKind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Delete, Self::Seek, Self::Update, Self::Other];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Delete => "delete",
            Self::Seek => "seek",
            Self::Update => "update",
            Self::Other => "op",
        }
    }
}

/// Sums from which a benchmark's message is made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Operations whose key existed.
    pub(crate) found: u64,
    /// Operations that looked for a key.
    pub(crate) looked: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) updates: u64,
    pub(crate) inserts: u64,
    pub(crate) seeks: u64,
    /// Bytes of values written, if their sizes vary.
    pub(crate) value_bytes: u64,
    /// Entries that scans read.
    pub(crate) scan_entries: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.found += other.found;
        self.looked += other.looked;
        self.reads += other.reads;
        self.writes += other.writes;
        self.updates += other.updates;
        self.inserts += other.inserts;
        self.seeks += other.seeks;
        self.value_bytes += other.value_bytes;
        self.scan_entries += other.scan_entries;
    }
}

/// Operations that a worker has done, for the progress bar; on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    /// Adds operations to the count.
    pub(crate) fn add(&self, operations: u64) {
        self.0.fetch_add(operations, Ordering::Relaxed);
    }

    /// Operations so far.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of one worker.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    clock: &'a SystemClock,
    progress: &'a Progress,
    pub(crate) counts: Counts,
    done: u64,
    bytes: u64,
    started_ns: u64,
    last_ns: u64,
    histograms: Vec<Option<Box<Histogram>>>,
    timed: bool,
}

impl<'a> Tally<'a> {
    /// Starts counting; times every operation if `timed`.
    pub(crate) fn start(clock: &'a SystemClock, progress: &'a Progress, timed: bool) -> Self {
        let now = clock.now_ns();
        Self {
            clock,
            progress,
            counts: Counts::default(),
            done: 0,
            bytes: 0,
            started_ns: now,
            last_ns: now,
            histograms: OpKind::ALL.iter().map(|_| None).collect(),
            timed,
        }
    }

    /// Counts `ops` operations that ended now.
    #[inline]
    pub(crate) fn finished(&mut self, ops: u64, kind: OpKind) {
        self.done += ops;
        // Only this worker writes the counter.
        self.progress.0.store(self.done, Ordering::Relaxed);
        if self.timed {
            self.time(kind);
        }
    }

    fn time(&mut self, kind: OpKind) {
        let now = self.clock.now_ns();
        let histogram = &mut self.histograms[kind as usize];
        let histogram = histogram.get_or_insert_with(|| Box::new(Histogram::new()));
        histogram.record_ns(now.saturating_sub(self.last_ns));
        self.last_ns = now;
    }

    /// Sets the time from which the latency of the next operation counts, if it is not the end of
    /// the one before it.
    #[inline]
    pub(crate) fn starts(&mut self, at_ns: Option<u64>) {
        self.last_ns = at_ns.unwrap_or(self.last_ns);
    }

    /// Counts bytes of keys and values.
    #[inline]
    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Nanoseconds since the start.
    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.clock.now_ns() - self.started_ns
    }

    /// Ends the counting.
    pub(crate) fn end(self) -> Total {
        let finished_ns = self.clock.now_ns();
        Total {
            counts: self.counts,
            done: self.done,
            bytes: self.bytes,
            started_ns: self.started_ns,
            finished_ns,
            thread_ns: finished_ns - self.started_ns,
            histograms: self.histograms,
        }
    }
}

/// The sum over workers.
#[derive(Debug)]
pub struct Total {
    pub(crate) counts: Counts,
    pub(crate) done: u64,
    pub(crate) bytes: u64,
    started_ns: u64,
    finished_ns: u64,
    /// Time of all workers together.
    thread_ns: u64,
    histograms: Vec<Option<Box<Histogram>>>,
}

impl Total {
    /// Adds the counts of another worker.
    pub(crate) fn add(&mut self, other: Self) {
        self.counts.add(&other.counts);
        self.done += other.done;
        self.bytes += other.bytes;
        self.started_ns = self.started_ns.min(other.started_ns);
        self.finished_ns = self.finished_ns.max(other.finished_ns);
        self.thread_ns += other.thread_ns;
        for (mine, theirs) in self.histograms.iter_mut().zip(other.histograms) {
            match (mine, theirs) {
                (_, None) => {}
                (Some(mine), Some(theirs)) => mine.merge(&theirs),
                (mine, theirs) => *mine = theirs,
            }
        }
    }

    /// Seconds from the first start to the last end.
    pub(crate) fn seconds(&self) -> f64 {
        (self.finished_ns - self.started_ns) as f64 / 1e9
    }

    /// Operations; at least 1, so that the benchmark of one action has a rate.
    pub(crate) fn ops(&self) -> u64 {
        self.done.max(1)
    }

    /// Operations per second of all workers together.
    pub(crate) fn ops_per_second(&self) -> f64 {
        self.ops() as f64 / self.seconds().max(1e-9)
    }

    /// Microseconds of one worker's operation.
    pub(crate) fn micros_per_op(&self) -> f64 {
        self.thread_ns as f64 / 1e3 / self.ops() as f64
    }

    /// Mebibytes per second.
    pub(crate) fn mb_per_second(&self) -> f64 {
        self.bytes as f64 / 1_048_576.0 / self.seconds().max(1e-9)
    }

    /// The distributions that have values.
    pub(crate) fn histograms(&self) -> impl Iterator<Item = (OpKind, &Histogram)> {
        let kinds = OpKind::ALL.into_iter().zip(&self.histograms);
        kinds.filter_map(|(kind, histogram)| Some((kind, histogram.as_deref()?)))
    }

    /// A sum with given figures, for tests of reports.
    #[must_use]
    pub fn of(done: u64, bytes: u64, nanoseconds: u64) -> Self {
        Self {
            counts: Counts::default(),
            done,
            bytes,
            started_ns: 0,
            finished_ns: nanoseconds,
            thread_ns: nanoseconds,
            histograms: OpKind::ALL.iter().map(|_| None).collect(),
        }
    }
}
