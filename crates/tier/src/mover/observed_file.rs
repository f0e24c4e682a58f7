//! Files as one iteration of the control loop observes them, and the weight of their counts.
//!
//! The functions read entries of open tiers, and write only the believed accesses of a file. Cost:
//! linear in the files and their ranges.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cache::dispersion::Cohort;
use crate::cache::hot_ranges::{FileReads, trust};
use crate::fs::entry::{CachedCopy, Entry};
use crate::fs::shared::OpenTiers;

/// A file as one iteration of the control loop observes it.
pub(super) struct ObservedFile {
    pub(super) entry: Arc<Entry>,
    /// Index of the device of the original.
    pub(super) device: usize,
    pub(super) len: u64,
    pub(super) reads: FileReads,
    pub(super) copies: Vec<Arc<CachedCopy>>,
    /// Whether the device lost the original.
    pub(super) missing: bool,
}

impl ObservedFile {
    /// Index of the fastest device that holds all bytes of the file.
    pub(super) fn served_by(&self) -> usize {
        let whole = self.copies.iter().filter(|copy| copy.whole);
        whole.map(|copy| copy.physical.device).min().unwrap_or(self.device).min(self.device)
    }

    /// Accesses of the file that no copy on a device faster than the one at `index` serves.
    pub(super) fn left_to(&self, index: usize) -> Cow<'_, FileReads> {
        let faster = self.copies.iter().filter(|copy| copy.physical.device < index);
        faster
            .filter_map(|copy| copy.ranges())
            .fold(Cow::Borrowed(&self.reads), |left, ranges| Cow::Owned(left.beside(&ranges)))
    }

    /// Whether the file may move to a slower device to make room for a hotter one. This holds for a
    /// table below L0 that is old enough to be judged by its reads.
    pub(super) fn may_be_demoted(&self, shared: &OpenTiers) -> bool {
        let age_ms = shared.now_ms().saturating_sub(self.entry.born_ms.load(Ordering::Relaxed));
        self.entry.level().is_some_and(|level| level > 0)
            && age_ms >= shared.policy.half_life_ms
            && self.may_move()
    }

    /// Variance-to-mean ratio of this file's read count under independent reads. For files that
    /// existed at the last baseline, the ratio is `aged`. The dispersion of reads does not count
    /// here, because a hot file must be copied before its dispersion is known (decision 0031).
    pub(super) fn variance(&self, aged: f64) -> f64 {
        self.reads.variance(self.counted_variance(aged))
    }

    /// Variance-to-mean ratio of the file's own count.
    fn counted_variance(&self, aged: f64) -> f64 {
        if self.entry.accesses.has_settled() { aged } else { 1.0 }
    }

    /// Whether the file is a table or a value file without writers.
    fn is_whole_table(&self) -> bool {
        self.entry.class.is_table() && self.entry.writers.load(Ordering::Acquire) == 0
    }

    /// Whether a job may be queued for the file.
    pub(super) fn may_move(&self) -> bool {
        self.is_whole_table() && !self.entry.busy.load(Ordering::Acquire)
    }
}

/// Decides the weight of the counts of ranges and of whole files, and notes it for each file.
/// `aged` has the meaning of [`ObservedFile::variance`]. `dispersion` is the variance-to-mean ratio
/// of read counts.
pub(super) fn judge(seen: &mut [ObservedFile], aged: f64, dispersion: f64) {
    let trust = trust(seen.iter().map(|file| &file.reads));
    let cohort_of =
        |file: &ObservedFile| (file.entry.class, file.entry.family(), file.entry.level());
    let counted =
        |file: &ObservedFile| file.reads.counted(dispersion * file.counted_variance(aged));
    let mut cohorts: HashMap<_, Vec<_>> = HashMap::new();
    for file in seen.iter().filter(|file| file.is_whole_table()) {
        cohorts.entry(cohort_of(file)).or_default().push(counted(file));
    }
    let cohorts: HashMap<_, _> = cohorts
        .into_iter()
        .map(|(cohort, files)| (cohort, Cohort::of(files.into_iter())))
        .collect();
    for file in seen {
        file.reads.believe(trust);
        if let Some(cohort) = cohorts.get(&cohort_of(file)).filter(|_| file.is_whole_table()) {
            file.reads.expect(cohort.expects(counted(file)));
        }
        file.entry.accesses.note_believed(file.reads.heat());
    }
}

/// Fraction of all aged accesses that the present copies would serve.
pub(super) fn share_of_copies(seen: &[ObservedFile]) -> f64 {
    let served = |file: &ObservedFile| {
        file.copies.iter().map(|copy| served_by(&file.reads, copy)).fold(0.0, f64::max)
    };
    let (held, all) = seen
        .iter()
        .fold((0.0, 0.0), |(held, all), file| (held + served(file), all + file.reads.heat()));
    if all > 0.0 { held / all } else { 0.0 }
}

/// Aged accesses of a file that a copy would serve.
pub(super) fn served_by(reads: &FileReads, copy: &CachedCopy) -> f64 {
    match copy.ranges() {
        Some(ranges) if !copy.whole => reads.served_by(&ranges),
        _ => reads.heat(),
    }
}
