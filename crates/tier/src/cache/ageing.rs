//! Ageing of access counts: the moments at which all counts so far are halved.
//!
//! The longer reads are counted, the better hot and cold blocks can be distinguished. So counts age
//! only when there are enough of them for that. They age earlier, at every half-life, if the hot
//! set moves: copies serve clearly fewer reads than their counts promised, or files are read in
//! other proportions than before ([`drift`]). A file that was created late was counted for a part
//! of the time only. It is compared by the count that it would have by now if it had existed all
//! the time ([`Look::scale`]). Otherwise a new hot file would be evicted for a file that was hot
//! for a long time.
//!
//! All functions are pure. Decisions 0026 and 0029 have the reasons and figures.

/// Counts age once there are this many reads per counted range.
const READS_PER_RANGE: u64 = 8;
/// Counts age after at most this many half-lives.
const HALF_LIVES_MAX: u64 = 30;
/// Copies are out of date if they serve less than this fraction of the reads that they were
/// expected to serve.
const KEPT_MIN: f64 = 0.75;
/// Least number of expected reads from which [`Ageing`] concludes that copies are out of date.
const EXPECTED_MIN: f64 = 100.0;

/// The hot set moves if [`drift`] exceeds this. It is a mean square, as a fraction.
const DRIFT_MAX: f64 = 0.02;
/// Number of standard deviations of chance that [`drift`] subtracts, because drift is measured in
/// every iteration of the control loop.
const SURE: f64 = 4.0;
/// Largest factor by which the accesses of a late file are scaled.
const SCALE_MAX: f64 = 8.0;
/// Smallest fraction of the window that is assumed for the existence of a file.
const PART_MIN: f64 = 1e-3;
/// A file that is scaled by more than this has no baseline. Too few of its reads were counted to
/// decide later whether it is read more or less often.
pub(crate) const BASELINE_SCALE_MAX: f64 = 2.0;
/// Least number of accesses of which a baseline is taken.
const BASELINE_MIN: f64 = 100.0;
/// Least mean number of reads per file from which drift is concluded.
const DRIFT_READS_MIN: f64 = 8.0;

/// Mean square difference between the reads of files since their baselines and the reads that they
/// would have if each file had kept its share, as a fraction of the latter. It is 0 for a load that
/// does not change, and 0 while there are hardly any reads.
///
/// Chance also makes these differ, and its part is subtracted. Reads since the baseline vary by
/// their expected number. The expected number varies as the accesses at the baseline do, scaled to
/// the reads since then. `variance` is the variance-to-mean ratio of those accesses before the
/// scale of the file. Both variances are multiplied by `dispersion`
/// ([`super::dispersion::Dispersion`]). Then [`SURE`] standard deviations of the sum are subtracted
/// as well.
pub(crate) fn drift(
    files: impl Iterator<Item = Baseline> + Clone,
    variance: f64,
    dispersion: f64,
) -> f64 {
    let (count, before, since) = files
        .clone()
        .fold((0.0, 0.0, 0.0), |(n, b, s), file| (n + 1.0, b + file.before, s + file.since));
    if before <= 0.0 || since < DRIFT_READS_MIN * dispersion * count {
        return 0.0;
    }
    let rate = since / before;
    let (mut moved, mut chance, mut all) = (0.0, 0.0, 0.0);
    for file in files {
        let Baseline { before, since, scale } = file;
        let expected = before * rate;
        let by_chance = dispersion * expected * (1.0 + variance * scale * rate);
        moved += (since - expected).powi(2) - by_chance;
        chance += 2.0 * by_chance * by_chance;
        all += expected * expected;
    }
    if all <= 0.0 { 0.0 } else { ((moved - SURE * chance.sqrt()) / all).max(0.0) }
}

/// The reads of a file before and after the last baseline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline {
    /// Aged accesses of the file when the baseline was taken, scaled.
    pub(crate) before: f64,
    /// Factor by which `before` was scaled ([`Look::scale`]).
    pub(crate) scale: f64,
    /// Reads of the file since the baseline was taken.
    pub(crate) since: f64,
}

/// Reads of one interval of the control loop.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    /// Number of foreground reads.
    pub(crate) reads: u64,
    /// Number of foreground reads that copies served.
    pub(crate) hits: u64,
    /// Number of ranges that are counted, over all files.
    pub(crate) ranges: u64,
    /// Drift of the load since the last baseline ([`drift`]).
    pub(crate) drift: f64,
    /// Variance-to-mean ratio of read counts ([`super::dispersion::Dispersion`]). Less than 1
    /// counts as 1.
    pub(crate) dispersion: f64,
}

/// Changes that one iteration of the control loop makes to the counts of every file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// Whether all counts so far are halved.
    pub(crate) ages: bool,
    /// Whether a baseline is taken, from which drift is measured. This happens when counts age, and
    /// a half-life after the first iteration, unless there are hardly any accesses.
    pub(crate) takes_baseline: bool,
    /// Sum of the weights of all reads before this interval. A file that is observed for the first
    /// time missed all of them.
    pub(crate) before: f64,
    /// Sum of the weights of all reads so far.
    weights: f64,
}

impl Look {
    /// Factor by which the accesses of a file are scaled that did not exist for `missed` of the
    /// weights, 1 to [`SCALE_MAX`].
    pub(crate) fn scale(&self, missed: f64) -> f64 {
        let counted = self.weights - missed;
        if missed <= 0.0 || self.weights <= 0.0 {
            return 1.0;
        }
        (self.weights / counted.max(self.weights / SCALE_MAX)).max(1.0)
    }

    /// Fraction of the weights for which a file existed that missed `missed` of them. Above 0.
    pub(crate) fn presence(&self, missed: f64) -> f64 {
        if self.weights <= 0.0 {
            return 1.0;
        }
        ((self.weights - missed) / self.weights).clamp(PART_MIN, 1.0)
    }
}

/// Decides when access counts age. The control loop owns one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ageing {
    /// Time of the last ageing, or of the first iteration.
    at_ms: Option<u64>,
    /// Foreground reads since the last ageing.
    reads: u64,
    /// Foreground reads since the last ageing that copies served.
    hits: u64,
    /// Foreground reads since the last ageing that copies were expected to serve.
    expected: f64,
    /// Fraction of the reads that copies are expected to serve.
    share: f64,
    /// Sum of the weights of all accesses.
    weights: f64,
    /// Sum of the squares of the weights of all accesses.
    squares: f64,
    /// Variance-to-mean ratio at the last baseline; `None` before the first one.
    baseline: Option<f64>,
}

impl Ageing {
    /// The state after a restart over which `kept` accesses were kept.
    pub(crate) fn with_kept(kept: f64) -> Self {
        Self { weights: kept, squares: kept, ..Self::default() }
    }

    /// Takes the reads of an interval, and says what follows for the counts of files.
    pub(crate) fn look(&mut self, now_ms: u64, half_life_ms: u64, interval: Interval) -> Look {
        let before = self.weights;
        self.reads += interval.reads;
        self.hits += interval.hits;
        self.expected += interval.reads as f64 * self.share;
        let half_life_ms = half_life_ms.max(1);
        let passed_ms = now_ms.saturating_sub(*self.at_ms.get_or_insert(now_ms));
        let is_enough = self.reads > 0 && self.reads >= READS_PER_RANGE * interval.ranges;
        let is_late = passed_ms >= HALF_LIVES_MAX * half_life_ms;
        let is_stale = self.expected >= EXPECTED_MIN * interval.dispersion.max(1.0)
            && (self.hits as f64) < KEPT_MIN * self.expected;
        let may_take = self.weights + interval.reads as f64 >= 2.0 * BASELINE_MIN;
        let has_moved = interval.drift > DRIFT_MAX && may_take;
        let ages = passed_ms >= half_life_ms && (is_enough || is_late || is_stale || has_moved);
        self.weights += interval.reads as f64;
        self.squares += interval.reads as f64;
        if ages {
            let (weights, squares) = (self.weights / 2.0, self.squares / 4.0);
            let share = self.share;
            let (at_ms, baseline) = (Some(now_ms), self.baseline);
            *self = Self { at_ms, share, weights, squares, baseline, ..Self::default() };
        }
        let is_due = ages || self.baseline.is_none() && passed_ms >= half_life_ms;
        let takes_baseline = is_due && self.weights >= BASELINE_MIN;
        if takes_baseline {
            self.baseline = Some(self.variance());
        }
        Look { ages, takes_baseline, before, weights: self.weights }
    }

    /// Variance-to-mean ratio of the accesses at the last baseline.
    pub(crate) fn baseline_variance(&self) -> f64 {
        self.baseline.unwrap_or(1.0)
    }

    /// Variance-to-mean ratio of aged accesses by chance. It is 1 while all accesses count in full.
    /// Once they have aged a few times, after equally many reads each, it lies between one third
    /// and two thirds.
    pub(crate) fn variance(&self) -> f64 {
        if self.weights > 0.0 { self.squares / self.weights } else { 1.0 }
    }

    /// Notes the fraction of the reads that the present copies serve if the load does not change.
    pub(crate) fn expect(&mut self, share: f64) {
        self.share = share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second in which counts age, with one iteration a second.
    fn ages_at(share: f64, interval: Interval) -> u64 {
        let mut ageing = Ageing::default();
        ageing.expect(share);
        ageing.look(0, 10_000, Interval::default());
        (1..).find(|second| ageing.look(second * 1000, 10_000, interval).ages).unwrap_or(0)
    }

    #[test]
    fn counts_age_after_enough_reads_or_if_copies_are_stale() {
        let interval = |reads, hits| Interval { reads, hits, ranges: 1000, ..Interval::default() };
        assert_eq!(ages_at(0.0, interval(4000, 0)), 10, "never sooner than a half-life");
        assert_eq!(ages_at(0.0, interval(400, 0)), 20);
        assert_eq!(ages_at(0.0, interval(1, 0)), 300);
        assert_eq!(ages_at(0.0, Interval::default()), 300, "nothing was read");
        assert_eq!(ages_at(0.5, interval(400, 200)), 20, "as expected");
        assert_eq!(ages_at(0.5, interval(400, 100)), 10, "half as many hits as expected");
        assert_eq!(ages_at(0.5, interval(10, 0)), 20, "not known before 100 were expected");
        assert_eq!(ages_at(0.0, Interval { drift: 0.1, ..interval(400, 0) }), 10);
        let batched = Interval { dispersion: 16.0, ..interval(100, 20) };
        assert_eq!(ages_at(0.5, batched), 32, "1,600 have to be expected, not 100");
        assert_eq!(ages_at(0.5, interval(100, 20)), 10);
        assert_eq!(ages_at(0.0, Interval { drift: 0.1, ..interval(1, 0) }), 200, "too few to tell");
    }

    #[test]
    fn late_file_is_scaled_to_a_full_window() {
        let mut ageing = Ageing::with_kept(100.0);
        let interval = |reads| Interval { reads, ranges: 1 << 20, ..Interval::default() };
        ageing.look(500, 10_000, interval(0));
        let look = ageing.look(1000, 10_000, interval(300));
        assert_eq!((look.before, look.scale(0.0), look.scale(100.0)), (100.0, 1.0, 4.0 / 3.0));
        assert!(!look.takes_baseline);
        let look = ageing.look(10_500, 10_000, interval(400));
        assert!(!look.ages && look.takes_baseline, "a half-life after the first look");
        assert_eq!((look.scale(400.0), look.scale(799.0)), (2.0, SCALE_MAX), "800 in all");
        assert!(!ageing.look(11_000, 10_000, interval(0)).takes_baseline, "once");
        let moved = Interval { drift: 0.1, ..interval(0) };
        let look = ageing.look(12_000, 10_000, moved);
        assert!(look.ages && look.takes_baseline);
        assert_eq!(look.scale(200.0), 2.0, "what was missed aged, too");
        assert_eq!(Look::default().scale(5.0), 1.0, "nothing was read");
        let mut idle = Ageing::default();
        let mut takes = |ms, reads| idle.look(ms, 10_000, interval(reads)).takes_baseline;
        assert_eq!(
            [(0, 0), (20_000, 0), (21_000, 99), (22_000, 1)].map(|(ms, reads)| takes(ms, reads)),
            [false, false, false, true]
        );
    }

    #[test]
    fn variance_follows_from_the_weights_of_aged_counts() {
        let mut ageing = Ageing::default();
        assert_eq!(ageing.variance(), 1.0, "nothing is known");
        ageing.look(0, 10_000, Interval::default());
        let interval = Interval { reads: 100, ranges: 1, ..Interval::default() };
        let mut after = |ms| {
            let ages = ageing.look(ms, 10_000, interval).ages;
            (ages, (ageing.variance() * 100.0).round() / 100.0)
        };
        assert_eq!(after(5000), (false, 1.0));
        assert_eq!(after(10_000), (true, 0.5), "half of the weight each, a quarter of its square");
        assert_eq!(after(15_000), (false, 0.75));
        for ms in [20_000, 30_000, 40_000, 50_000, 60_000, 70_000] {
            after(ms);
        }
        assert_eq!(after(80_000), (true, 0.33));
        assert_eq!(after(81_000), (false, 0.66));
    }

    #[test]
    fn drift_is_zero_for_an_unchanged_load_and_seen_for_a_moved_one() {
        let mut rng = archipelago_base::random::Rng::with_seed(7);
        // A count with this mean, and with the variance of independent reads.
        let mut draw = |mean: f64| (0..1000).filter(|_| rng.f64() < mean / 1000.0).count();
        let hot = |at: usize| 200.0 / (1.0 + at as f64);
        let mut files = |shift: usize, rate: f64, scale: f64| -> Vec<Baseline> {
            let file = |at: usize| {
                let since = draw(rate * hot((at + shift) % 100)) as f64;
                Baseline { before: draw(hot(at) / scale) as f64 * scale, scale, since }
            };
            (0..100).map(file).collect()
        };
        let of = |files: Vec<Baseline>| drift(files.into_iter(), 1.0, 1.0);
        for (rate, scale) in
            [(1.0, 1.0), (3.0, 1.0), (1.0, BASELINE_SCALE_MAX), (3.0, BASELINE_SCALE_MAX)]
        {
            assert!(of(files(0, rate, scale)) < DRIFT_MAX, "as before");
            assert!(of(files(2, rate, scale)) > 3.0 * DRIFT_MAX, "two files further");
        }
        // Scans of sixteen reads of one file look like another load, unless the dispersion is
        // known.
        let mut scans = |shift: usize| -> Vec<Baseline> {
            let mut draw = |at: usize| 16.0 * draw(20.0 * hot(at % 100) / 16.0) as f64;
            let file = |at| Baseline { before: draw(at), scale: 1.0, since: draw(at + shift) };
            (0..100).map(file).collect()
        };
        let (before, moved) = (scans(0), scans(2));
        assert!(of(before.clone()) > DRIFT_MAX, "scans look like drift");
        let known = |files: Vec<Baseline>| drift(files.into_iter(), 1.0, 16.0);
        assert!(known(before.clone()) < DRIFT_MAX, "{}", known(before));
        assert!(known(moved.clone()) > 3.0 * DRIFT_MAX, "{}", known(moved));
        let few = [(100.0, 3.0), (1.0, 4.0)];
        let few = few.map(|(before, since)| Baseline { before, scale: 1.0, since });
        assert_eq!(of(few.to_vec()), 0.0, "too few reads");
        assert_eq!(of(Vec::new()), 0.0);
    }
}
