//! What is counted of a file's reads, from look to look.
//!
//! Who reads adds to counters; the thread that looks takes them, ages them and notes what it
//! concluded. Of a file that came late it is known what it was not there for, of one that a
//! compaction made what it took over of its inputs.
//!
//! Thread-safe: atomics, each for itself; one thread looks, and what a file takes over may come at
//! any time. Cost: a read adds to two counters ([`RangeReads`] has the second), a look is linear in
//! the ranges.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cache::ageing::{BASELINE_SCALE_MAX, Baseline, Look};
use crate::cache::density;
use crate::cache::hot_ranges::FileReads;
use crate::cache::ranges::RangeReads;

/// Fewer accesses than this age to none.
const INHERITED_MIN: f64 = 1e-3;
/// No look was at the file yet.
const NOT_LOOKED: u64 = u64::MAX;
/// One look was, but the file had not been there all the time before it.
const LOOKED_ONCE: u64 = u64::MAX - 1;

/// Reads of an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) reads: u64,
    /// Those of the interval before, if the file was there in all of it.
    pub(crate) before: Option<u64>,
}

/// See the module. Sums are the bits of an `f64`.
#[derive(Debug)]
pub(crate) struct Accesses {
    /// Foreground reads since the last look, over all ranges.
    reads: AtomicU64,
    /// The same before the last look; see [`Taken`].
    read_before: AtomicU64,
    /// The same by range, aged; made by the first read that counts.
    ranges: OnceLock<RangeReads>,
    /// Aged accesses of unknown place.
    inherited: AtomicU64,
    /// Those of them that were other files'.
    taken_over: AtomicU64,
    /// All aged accesses at the last look.
    heat: AtomicU64,
    /// The same, as far as they are believed ([`FileReads::heat`]).
    believed: AtomicU64,
    /// It was there for long enough when the baseline was taken last.
    settled: AtomicBool,
    /// All aged accesses when the baseline was taken last ([`Look::takes_baseline`]); NaN before.
    baseline: AtomicU64,
    /// What they were scaled by.
    baseline_scale: AtomicU64,
    /// The weights of all reads that it was not there for, aged; NaN before the first look.
    missed: AtomicU64,
    /// Foreground reads since the baseline was taken.
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
    /// All aged accesses at the last look.
    pub(crate) fn heat(&self) -> f64 {
        float(&self.heat)
    }

    /// All aged accesses at the last look, as far as they are believed.
    pub(crate) fn believed(&self) -> f64 {
        float(&self.believed)
    }

    /// The same per byte of a file of `len`; 0 of one that was never read, whatever its cohort has.
    pub(crate) fn density(&self, len: u64) -> f64 {
        if self.heat() > 0.0 { density(self.believed(), len) } else { 0.0 }
    }

    pub(crate) fn note_believed(&self, heat: f64) {
        self.believed.store(heat.to_bits(), Ordering::Relaxed);
    }

    /// Whether its accesses have aged as those of others have.
    pub(crate) fn has_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// It has so many accesses of before the restart, nobody knows where in it, and was there all
    /// the time.
    pub(crate) fn keep(&self, accesses: f64) {
        self.missed.store(0.0f64.to_bits(), Ordering::Relaxed);
        for sum in [&self.inherited, &self.heat, &self.believed] {
            change(sum, |before| before + accesses);
        }
    }

    /// The same of accesses of other files, which it was merged of.
    pub(crate) fn inherit(&self, accesses: f64) {
        self.keep(accesses);
        change(&self.taken_over, |before| before + accesses);
    }

    /// In how many ranges it is counted.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.get().map_or(0, RangeReads::len)
    }

    /// Notes a read of `bytes` at `offset` of a file of `len`, counted in ranges of `range_bytes`
    /// or as many as suit it.
    #[inline]
    pub(crate) fn count(&self, (offset, bytes): (u64, u64), len: u64, range_bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.ranges.get_or_init(|| RangeReads::new(len, range_bytes)).count(offset, bytes);
    }

    /// Takes the reads of the interval that ends now.
    pub(crate) fn take(&self) -> Taken {
        let reads = self.reads.swap(0, Ordering::Relaxed);
        self.read_since.fetch_add(reads, Ordering::Relaxed);
        let before = self.read_before.load(Ordering::Relaxed);
        let now = if before == NOT_LOOKED { LOOKED_ONCE } else { reads };
        self.read_before.store(now, Ordering::Relaxed);
        Taken { reads, before: (before < LOOKED_ONCE).then_some(before) }
    }

    /// Its accesses, after those so far were halved if they age.
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
            .scaled(scale, look.part(missed));
        for heat in [&self.heat, &self.believed] {
            heat.store(reads.heat().to_bits(), Ordering::Relaxed);
        }
        if look.takes_baseline {
            let is_settled = scale <= BASELINE_SCALE_MAX;
            // What was taken over of others says little of how it is read itself.
            let is_known = is_settled && float(&self.taken_over) * 2.0 <= reads.heat();
            let baseline = if is_known { reads.heat() } else { f64::NAN };
            self.settled.store(is_settled, Ordering::Relaxed);
            self.baseline.store(baseline.to_bits(), Ordering::Relaxed);
            self.baseline_scale.store(scale.to_bits(), Ordering::Relaxed);
            self.read_since.store(0, Ordering::Relaxed);
        }
        reads
    }

    /// What its drift is measured against; none of a file that is younger, or most of whose
    /// accesses then were those of others.
    pub(crate) fn baseline(&self) -> Option<Baseline> {
        let before = float(&self.baseline);
        let since = self.read_since.load(Ordering::Relaxed) as f64;
        (!before.is_nan()).then(|| Baseline { before, scale: float(&self.baseline_scale), since })
    }
}

fn float(bits: &AtomicU64) -> f64 {
    f64::from_bits(bits.load(Ordering::Relaxed))
}

/// Changes the `f64` whose bits these are; nothing of another change is lost.
fn change(bits: &AtomicU64, to: impl Fn(f64) -> f64) {
    let to = |before| Some(to(f64::from_bits(before)).to_bits());
    let _changed = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to);
}
