//! Files as a look sees them, and how far their counts are believed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_env::FileClass;

use crate::cache::dispersion::Cohort;
use crate::cache::hot_ranges::{FileReads, trust};
use crate::fs::entry::{CachedCopy, Entry};
use crate::fs::shared::Shared;

/// A file as this look sees it.
pub(super) struct ObservedFile {
    pub(super) entry: Arc<Entry>,
    pub(super) device: usize,
    pub(super) len: u64,
    pub(super) reads: FileReads,
    pub(super) copies: Vec<Arc<CachedCopy>>,
    /// Its device lost it.
    pub(super) missing: bool,
}

impl ObservedFile {
    /// The fastest device that serves all of it.
    pub(super) fn served_by(&self) -> usize {
        let whole = self.copies.iter().filter(|copy| copy.whole);
        whole.map(|copy| copy.physical.device).min().unwrap_or(self.device).min(self.device)
    }

    /// Its accesses, without those that copies on devices faster than this one serve.
    pub(super) fn left_to(&self, index: usize) -> Cow<'_, FileReads> {
        let faster = self.copies.iter().filter(|copy| copy.physical.device < index);
        faster
            .filter_map(|copy| copy.ranges())
            .fold(Cow::Borrowed(&self.reads), |left, ranges| Cow::Owned(left.beside(&ranges)))
    }

    /// Whether it may leave for something hotter: a table below L0 that is old enough for its reads
    /// to tell.
    pub(super) fn may_be_demoted(&self, shared: &Shared) -> bool {
        let age_ms = shared.now_ms().saturating_sub(self.entry.born_ms.load(Ordering::Relaxed));
        self.entry.level().is_some_and(|level| level > 0)
            && age_ms >= shared.policy.half_life_ms
            && self.may_move()
    }

    /// By how much of their mean its accesses vary by chance if reads come one by one, where that
    /// is `aged` of files that were there when the baseline was taken last. Also where they do not:
    /// what is hot has to be copied before that is proven (decision 0031).
    pub(super) fn variance(&self, aged: f64) -> f64 {
        self.reads.variance(self.counted_variance(aged))
    }

    /// The same of what was counted.
    fn counted_variance(&self, aged: f64) -> f64 {
        if self.entry.accesses.has_settled() { aged } else { 1.0 }
    }

    /// Whether it is a table that nobody writes any more.
    fn is_whole_table(&self) -> bool {
        self.entry.class == FileClass::Sst && self.entry.writers.load(Ordering::Acquire) == 0
    }

    pub(super) fn may_move(&self) -> bool {
        self.is_whole_table() && !self.entry.busy.load(Ordering::Acquire)
    }
}

/// Says how far counts are believed, of parts of files and of whole ones.
pub(super) fn judge(seen: &mut [ObservedFile], aged: f64, dispersion: f64) {
    let trust = trust(seen.iter().map(|file| &file.reads));
    let cohort_of = |file: &ObservedFile| (file.entry.family(), file.entry.level());
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

/// The part of all aged accesses that the copies there are would serve.
pub(super) fn share_of_copies(seen: &[ObservedFile]) -> f64 {
    let served = |file: &ObservedFile| {
        file.copies.iter().map(|copy| served_by(&file.reads, copy)).fold(0.0, f64::max)
    };
    let (held, all) = seen
        .iter()
        .fold((0.0, 0.0), |(held, all), file| (held + served(file), all + file.reads.heat()));
    if all > 0.0 { held / all } else { 0.0 }
}

/// Which of a file's aged accesses a copy serves.
pub(super) fn served_by(reads: &FileReads, copy: &CachedCopy) -> f64 {
    match copy.ranges() {
        Some(ranges) if !copy.whole => reads.served_by(&ranges),
        _ => reads.heat(),
    }
}
