//! When accesses come to count half. Pure.
//!
//! The longer they are counted, the better blocks are told apart, so they age when there were
//! enough for that, and not sooner; unless what is hot moves on, and then at every half-life:
//! copies serve clearly less than those counts promised, or files are read otherwise than before
//! ([`drift`]). A file that came later was counted for a part of that time only, and is compared by
//! what it would have by now ([`Look::scale`]): else what is new and hot would leave for what was
//! hot for long.

/// Accesses age when there were so many for each range that is counted…
const READS_PER_RANGE: u64 = 8;
/// …but at the latest after so many half-lives.
const HALF_LIVES_MAX: u64 = 30;
/// Copies are out of date that serve less than this part of what they were expected to…
const KEPT_MIN: f64 = 0.75;
/// …when that was so many reads.
const EXPECTED_MIN: f64 = 100.0;

/// What is hot moves on when files are read otherwise than before by this part (its square), chance
/// aside.
const DRIFT_MAX: f64 = 0.02;
/// So many standard deviations of what chance does are taken off, as drift is asked for at every
/// look.
const SURE: f64 = 4.0;
/// A file's accesses count as at most so many times as many for its having come late.
const SCALE_MAX: f64 = 8.0;
/// A file was there for no less than this part.
const PART_MIN: f64 = 1e-3;
/// A file that is scaled by more has no baseline: too little of it was counted to say later whether
/// it is read otherwise.
pub(crate) const BASELINE_SCALE_MAX: f64 = 2.0;
/// No baseline is taken of fewer accesses than this.
const BASELINE_MIN: f64 = 100.0;
/// With fewer reads than this for a file nothing is concluded from its drift.
const DRIFT_READS_MIN: f64 = 8.0;

/// The mean square of how much files' reads differ from what they would be if each had the same
/// part of them as before, as a part of that: 0 of a load that stays as it is, whatever chance
/// does. Of each file its aged accesses of before, and its reads since.
///
/// What chance adds is taken off: reads vary by their number, and so does what is expected of them,
/// by `variance` (of the accesses of before, of their mean; times the file's scale) as much for
/// each time that there are as many reads as before; all of it times `dispersion`
/// ([`super::dispersion::Dispersion`]). So are [`SURE`] standard deviations of that, as this is asked at
/// every look. 0 while there are hardly any reads.
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
    for Baseline { before, since, scale } in files {
        let expected = before * rate;
        let by_chance = dispersion * expected * (1.0 + variance * scale * rate);
        moved += (since - expected).powi(2) - by_chance;
        chance += 2.0 * by_chance * by_chance;
        all += expected * expected;
    }
    if all <= 0.0 { 0.0 } else { ((moved - SURE * chance.sqrt()) / all).max(0.0) }
}

/// What drift of a file is measured against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline {
    /// Its aged accesses when the baseline was taken,
    pub(crate) before: f64,
    /// so many times what was counted ([`Look::scale`]),
    pub(crate) scale: f64,
    /// and its reads since.
    pub(crate) since: f64,
}

/// What was in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    /// Foreground reads…
    pub(crate) reads: u64,
    /// …and those of them that copies served.
    pub(crate) hits: u64,
    /// Ranges that are counted.
    pub(crate) ranges: u64,
    /// How far files are read otherwise than when the baseline was taken; see [`drift`].
    pub(crate) drift: f64,
    /// By how many times their mean counts of files vary ([`super::dispersion::Dispersion`]); less than
    /// 1 counts as 1.
    pub(crate) dispersion: f64,
}

/// What a look says to every file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// All accesses so far come to count half.
    pub(crate) ages: bool,
    /// Drift is measured from here on: when accesses age, and a half-life after the first look; not
    /// with hardly any.
    pub(crate) takes_baseline: bool,
    /// The weights of all reads before this interval: what a file that is seen first was not there
    /// for.
    pub(crate) before: f64,
    /// The weights of all reads by now.
    weights: f64,
}

impl Look {
    /// A file that was not there for `missed` of the weights would have so many times its accesses
    /// if it had been, 1 to [`SCALE_MAX`].
    pub(crate) fn scale(&self, missed: f64) -> f64 {
        let counted = self.weights - missed;
        if missed <= 0.0 || self.weights <= 0.0 {
            return 1.0;
        }
        (self.weights / counted.max(self.weights / SCALE_MAX)).max(1.0)
    }

    /// For what part of the weights a file was there that was not for `missed` of them; above 0.
    pub(crate) fn part(&self, missed: f64) -> f64 {
        if self.weights <= 0.0 {
            return 1.0;
        }
        ((self.weights - missed) / self.weights).clamp(PART_MIN, 1.0)
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ageing {
    /// When accesses aged last, or the first look was.
    at_ms: Option<u64>,
    /// Since then.
    reads: u64,
    hits: u64,
    expected: f64,
    /// What part of the reads copies are expected to serve.
    share: f64,
    /// Sums of the weights that all accesses have by now, and of their squares.
    weights: f64,
    squares: f64,
    /// The variance when the baseline was taken last; `None` before.
    baseline: Option<f64>,
}

impl Ageing {
    /// Begins with so many accesses that were kept over a restart.
    pub(crate) fn with_kept(kept: f64) -> Self {
        Self { weights: kept, squares: kept, ..Self::default() }
    }

    /// Takes an interval; what follows for the files.
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

    /// By how much of their mean accesses varied when the baseline was taken last.
    pub(crate) fn baseline_variance(&self) -> f64 {
        self.baseline.unwrap_or(1.0)
    }

    /// By how much of their mean aged accesses vary by chance: 1 as long as all count fully,
    /// between a third and two thirds of it once they have aged a few times after as many reads
    /// each.
    pub(crate) fn variance(&self) -> f64 {
        if self.weights > 0.0 { self.squares / self.weights } else { 1.0 }
    }

    /// From now on copies should serve this part of the reads, if those are as they were.
    pub(crate) fn expect(&mut self, share: f64) {
        self.share = share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every second until accesses age; when that was.
    fn ages_at(share: f64, interval: Interval) -> u64 {
        let mut ageing = Ageing::default();
        ageing.expect(share);
        ageing.look(0, 10_000, Interval::default());
        (1..).find(|second| ageing.look(second * 1000, 10_000, interval).ages).unwrap_or(0)
    }

    #[test]
    fn accesses_age_when_there_were_enough_and_sooner_if_copies_are_out_of_date() {
        let interval = |reads, hits| Interval { reads, hits, ranges: 1000, ..Interval::default() };
        assert_eq!(ages_at(0.0, interval(4000, 0)), 10, "never sooner than a half-life");
        assert_eq!(ages_at(0.0, interval(400, 0)), 20);
        assert_eq!(ages_at(0.0, interval(1, 0)), 300);
        assert_eq!(ages_at(0.0, Interval::default()), 300, "nothing was read");
        assert_eq!(ages_at(0.5, interval(400, 200)), 20, "as expected");
        assert_eq!(ages_at(0.5, interval(400, 100)), 10, "half as many hits as expected");
        assert_eq!(ages_at(0.5, interval(10, 0)), 20, "not known before 100 were expected");
        assert_eq!(ages_at(0.0, Interval { drift: 0.1, ..interval(400, 0) }), 10);
        let at_once = Interval { dispersion: 16.0, ..interval(100, 20) };
        assert_eq!(ages_at(0.5, at_once), 32, "1,600 have to be expected, not 100");
        assert_eq!(ages_at(0.5, interval(100, 20)), 10);
        assert_eq!(ages_at(0.0, Interval { drift: 0.1, ..interval(1, 0) }), 200, "too few to tell");
    }

    #[test]
    fn what_came_late_is_scaled_to_what_it_would_have() {
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
    fn counts_vary_as_much_as_what_has_aged_of_them_says() {
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
    fn files_that_are_read_otherwise_than_before_drift_and_chance_does_not() {
        let mut rng = archipelago_base::random::Rng::with_seed(7);
        // About as many as the mean, with the variance of reads that come by themselves.
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
        // Scans of sixteen reads in a file at once look like another load, unless that is known.
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
