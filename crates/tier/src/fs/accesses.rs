//! Read counts of one file, from one iteration of the control loop to the next.
//!
//! Every [`super::entry::Entry`] owns one [`Accesses`]. Reads add to its counters. The control loop
//! takes them, ages them and notes its conclusions. For a file that was created late, the value
//! records the reads that it missed. For a file that a compaction made, it records the accesses
//! that the file took over from its inputs.
//!
//! Thread-safety: all fields are independent atomics. One thread at a time runs the control loop;
//! accesses may be taken over at any time. Cost: a read adds to two counters, of which
//! [`RangeReads`] has the second. An iteration is linear in the ranges.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cache::ageing::{BASELINE_SCALE_MAX, Baseline, Look};
use crate::cache::density;
use crate::cache::hot_ranges::FileReads;
use crate::cache::ranges::RangeReads;

/// Accesses below this age to zero.
const INHERITED_MIN: f64 = 1e-3;
/// Value of `read_before` before the first iteration that sees the file.
const NOT_LOOKED: u64 = u64::MAX;
/// Value of `read_before` after the first iteration, as the file may not have existed for all of
/// the interval before.
const LOOKED_ONCE: u64 = u64::MAX - 1;

/// One read: its offset in the file and its length, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSpan {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Foreground reads of a file in the interval that ends now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) reads: u64,
    /// Reads of the interval before, if the file existed in all of it.
    pub(crate) before: Option<u64>,
}

/// Read counts of a file. Sums are stored as the bits of an `f64`.
#[derive(Debug)]
pub(crate) struct Accesses {
    /// Foreground reads since the last iteration, over all ranges.
    reads: AtomicU64,
    /// Foreground reads of the interval before the last iteration, or [`NOT_LOOKED`] or
    /// [`LOOKED_ONCE`].
    read_before: AtomicU64,
    /// Aged foreground reads by range. The first counted read creates them.
    ranges: OnceLock<RangeReads>,
    /// Aged accesses whose place in the file is not known.
    inherited: AtomicU64,
    /// Aged accesses among `inherited` that the file took over from other files.
    taken_over: AtomicU64,
    /// All aged accesses at the last iteration.
    heat: AtomicU64,
    /// All aged accesses at the last iteration, as far as they are believed ([`FileReads::heat`]).
    believed: AtomicU64,
    /// Whether the file had existed for long enough when the last baseline was taken.
    settled: AtomicBool,
    /// All aged accesses at the last baseline ([`Look::takes_baseline`]); NaN before the first one.
    baseline: AtomicU64,
    /// Factor by which the accesses of the baseline were scaled.
    baseline_scale: AtomicU64,
    /// Aged sum of the weights of all reads that the file missed; NaN before the first iteration.
    missed: AtomicU64,
    /// Foreground reads since the last baseline.
    read_since: AtomicU64,
}

impl Default for Accesses {
    fn default() -> Self {
        let [none, unknown] = [0.0f64, f64::NAN].map(f64::to_bits);
        Self {
            reads: AtomicU64::new(0),
            read_before: AtomicU64::new(NOT_LOOKED),
            ranges: OnceLock::new(),
            inherited: AtomicU64::new(none),
            taken_over: AtomicU64::new(none),
            heat: AtomicU64::new(none),
            believed: AtomicU64::new(none),
            settled: AtomicBool::new(false),
            baseline: AtomicU64::new(unknown),
            baseline_scale: AtomicU64::new(1.0f64.to_bits()),
            missed: AtomicU64::new(unknown),
            read_since: AtomicU64::new(0),
        }
    }
}

impl Accesses {
    /// All aged accesses at the last iteration.
    pub(crate) fn heat(&self) -> f64 {
        float(&self.heat)
    }

    /// All aged accesses at the last iteration, as far as they are believed.
    pub(crate) fn believed(&self) -> f64 {
        float(&self.believed)
    }

    /// Believed accesses per byte of a file of `len` bytes. It is 0 for a file without accesses of
    /// its own, even if its cohort has accesses.
    pub(crate) fn density(&self, len: u64) -> f64 {
        if self.heat() > 0.0 { density(self.believed(), len) } else { 0.0 }
    }

    /// Notes the accesses that are believed.
    pub(crate) fn note_believed(&self, heat: f64) {
        self.believed.store(heat.to_bits(), Ordering::Relaxed);
    }

    /// Whether the file's accesses have aged as those of older files have.
    pub(crate) fn has_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// Adds accesses that the namespace kept over a restart. Their place in the file is not known.
    /// The file counts as one that missed no reads.
    pub(crate) fn keep(&self, accesses: f64) {
        self.missed.store(0.0f64.to_bits(), Ordering::Relaxed);
        for sum in [&self.inherited, &self.heat, &self.believed] {
            change(sum, |before| before + accesses);
        }
    }

    /// Adds accesses of the files that a compaction merged into this one.
    pub(crate) fn inherit(&self, accesses: f64) {
        self.keep(accesses);
        change(&self.taken_over, |before| before + accesses);
    }

    /// Number of ranges in which the file is counted; 0 before its first read.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.get().map_or(0, RangeReads::len)
    }

    /// Counts a read of a file of `len` bytes. The first read fixes the ranges: their length is
    /// `range_bytes`, or follows from `len` if that is 0.
    #[inline]
    pub(crate) fn count(&self, read: ReadSpan, len: u64, range_bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.ranges.get_or_init(|| RangeReads::new(len, range_bytes)).count(read.offset, read.len);
    }

    /// Takes the reads of the interval that ends now, and begins the next one.
    pub(crate) fn take(&self) -> Taken {
        let reads = self.reads.swap(0, Ordering::Relaxed);
        self.read_since.fetch_add(reads, Ordering::Relaxed);
        let before = self.read_before.load(Ordering::Relaxed);
        let now = if before == NOT_LOOKED { LOOKED_ONCE } else { reads };
        self.read_before.store(now, Ordering::Relaxed);
        Taken { reads, before: (before < LOOKED_ONCE).then_some(before) }
    }

    /// The accesses of the file, of `len` bytes, after the step that `look` describes.
    pub(crate) fn look(&self, len: u64, look: Look) -> FileReads {
        change(&self.missed, |missed| {
            let missed = if missed.is_nan() { look.before } else { missed };
            if look.ages { missed / 2.0 } else { missed }
        });
        if look.ages {
            for sum in [&self.inherited, &self.taken_over] {
                change(sum, |before| if before < INHERITED_MIN { 0.0 } else { before / 2.0 });
            }
            self.ranges.get().into_iter().for_each(RangeReads::halve);
        }
        let missed = float(&self.missed);
        let scale = look.scale(missed);
        let spans = self.ranges.get().map(RangeReads::spans).unwrap_or_default();
        self.ranges.get().into_iter().for_each(RangeReads::next_interval);
        let range_bytes = self.ranges.get().map_or(1, RangeReads::range_bytes);
        let reads = FileReads::new(len, float(&self.inherited), range_bytes, spans)
            .scaled(scale, look.presence(missed));
        for heat in [&self.heat, &self.believed] {
            heat.store(reads.heat().to_bits(), Ordering::Relaxed);
        }
        if look.takes_baseline {
            let is_settled = scale <= BASELINE_SCALE_MAX;
            // Accesses that were taken over say little about the reads of this file.
            let is_known = is_settled && float(&self.taken_over) * 2.0 <= reads.heat();
            let baseline = if is_known { reads.heat() } else { f64::NAN };
            self.settled.store(is_settled, Ordering::Relaxed);
            self.baseline.store(baseline.to_bits(), Ordering::Relaxed);
            self.baseline_scale.store(scale.to_bits(), Ordering::Relaxed);
            self.read_since.store(0, Ordering::Relaxed);
        }
        reads
    }

    /// The baseline against which the file's drift is measured. `None` for a file that is younger
    /// than the baseline, or that had taken over most of its accesses then.
    pub(crate) fn baseline(&self) -> Option<Baseline> {
        let before = float(&self.baseline);
        let since = self.read_since.load(Ordering::Relaxed) as f64;
        (!before.is_nan()).then(|| Baseline { before, scale: float(&self.baseline_scale), since })
    }
}

fn float(bits: &AtomicU64) -> f64 {
    f64::from_bits(bits.load(Ordering::Relaxed))
}

/// Changes the `f64` whose bits these are. Concurrent changes are not lost.
fn change(bits: &AtomicU64, to: impl Fn(f64) -> f64) {
    let to = |before| Some(to(f64::from_bits(before)).to_bits());
    let _changed = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to);
}
