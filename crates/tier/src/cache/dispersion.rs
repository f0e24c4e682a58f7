//! How far files differ beyond chance, and what follows for each. Pure.
//!
//! Reads do not come one by one: a scan makes many in one table at once, so that counts of tables
//! that are alike vary by many times their mean. [`Dispersion`] measures how many times, from two
//! intervals that follow each other. A file is then expected to have what lies between its own
//! count and what its cohort (family and level) has per byte: as far as chance explains how its
//! cohort differs, it is taken to be like its cohort ([`Cohort`]; the empirical Bayes estimate of
//! counts over unequal exposures, by moments). So a level that is read more per byte than another
//! is known by all of its tables at once, long before any of them is, and what is alike is not
//! rewritten for what happened to be read more.
//!
//! Cost: linear in the files.

/// Sums of intervals count so much less from look to look: half after half a minute.
const KEPT: f64 = 0.99;
/// Less is not concluded from fewer reads than this.
const READS_MIN: f64 = 1000.0;
/// The largest dispersion that is believed.
const MAX: f64 = 64.0;
/// A cohort with fewer accesses has none: what aged so far says nothing.
const COUNTED_MIN: f64 = 1e-3;

/// How many reads come at once, as seen from the counts of files: these vary by so many times their
/// mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dispersion {
    /// How far counts of two intervals are apart, squared, …
    apart: f64,
    /// …and what they would be if reads came one by one.
    chance: f64,
}

impl Dispersion {
    /// Takes each file's reads in two intervals that follow each other, of files that were there in
    /// all of both.
    ///
    /// With `a` and `b` of all `A` and `B` reads of the two, the mean of (a B - b A)² is (a + b) A
    /// B if they come one by one, however often each file is read; less as much as a file has of
    /// all reads, since it is in `A` and `B`. A look counts for [`MAX`] at most: one scan of a
    /// whole table is no rule.
    pub(crate) fn look(&mut self, pairs: impl Iterator<Item = (u64, u64)> + Clone) {
        let pairs = pairs.map(|(a, b)| (a as f64, b as f64));
        let (first, second, squares) =
            pairs.clone().fold((0.0, 0.0, 0.0), |(first, second, squares), (a, b)| {
                (first + a, second + b, squares + (a + b).powi(2))
            });
        if first <= 0.0 || second <= 0.0 {
            return;
        }
        let chance = first + second - squares / (first + second);
        let apart: f64 = pairs.map(|(a, b)| (a * second - b * first).powi(2)).sum();
        self.apart = self.apart * KEPT + (apart / (first * second)).min(MAX * chance);
        self.chance = self.chance * KEPT + chance;
    }

    /// By how many times their mean counts vary: 1 of reads that come one by one, and as long as
    /// little is known.
    pub(crate) fn factor(&self) -> f64 {
        if self.chance < READS_MIN { 1.0 } else { (self.apart / self.chance).clamp(1.0, MAX) }
    }
}

/// What was counted of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// Aged accesses, and…
    pub(crate) accesses: f64,
    /// …the bytes in which they were counted, as a part of the time that others were counted in.
    pub(crate) exposure: f64,
    /// By how much of their mean they vary by chance.
    pub(crate) variance: f64,
}

/// What files of a cohort have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cohort {
    /// Accesses per byte.
    mean: f64,
    /// The variance of that from file to file, beyond chance.
    differs: f64,
    /// By how much of its square the mean varies by chance.
    doubt: f64,
}

/// What a file's count and its cohort say of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Expected {
    /// How far its own count is believed, 0 to 1.
    pub(crate) own: f64,
    /// Accesses per byte of its cohort.
    pub(crate) mean: f64,
    /// By how much of its square that varies by chance.
    pub(crate) doubt: f64,
}

impl Cohort {
    /// Of files of one cohort.
    pub(crate) fn of(files: impl Iterator<Item = Counted> + Clone) -> Self {
        let (counted, exposure) =
            files.clone().fold((0.0, 0.0), |(c, e), file| (c + file.accesses, e + file.exposure));
        if counted < COUNTED_MIN || exposure <= 0.0 {
            return Self { mean: 0.0, differs: 0.0, doubt: 0.0 };
        }
        let mean = counted / exposure;
        let (mut spread, mut chance, mut squares, mut doubt) = (0.0, 0.0, 0.0, 0.0);
        for file in files {
            let expected = mean * file.exposure;
            spread += (file.accesses - expected).powi(2);
            // The mean was taken from the same files.
            let rest = 1.0 - file.exposure / exposure;
            chance += file.variance * expected * rest;
            squares += file.exposure * file.exposure * rest;
            doubt += file.variance * expected;
        }
        let differs = if squares > 0.0 { ((spread - chance) / squares).max(0.0) } else { 0.0 };
        Self { mean, differs, doubt: doubt / (counted * counted) }
    }

    /// What is to be expected of one of them.
    pub(crate) fn expects(&self, file: Counted) -> Expected {
        let differs = self.differs * file.exposure;
        let chance = self.mean * file.variance;
        let all = differs + chance;
        let own = if all > 0.0 { differs / all } else { 1.0 };
        Expected { own, mean: self.mean, doubt: self.doubt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_base::random::Rng;

    /// Reads of 100 files in an interval: so many scans, each of `at_once` reads in the file that
    /// `pick` says.
    fn interval(scans: usize, at_once: u64, mut pick: impl FnMut() -> usize) -> Vec<u64> {
        let mut reads = vec![0; 100];
        (0..scans).for_each(|_| reads[pick()] += at_once);
        reads
    }

    #[test]
    fn reads_that_come_at_once_are_told_from_those_that_come_one_by_one() {
        let mut rng = Rng::with_seed(5);
        // Of so many files, and half of the reads of so many of them.
        for (at_once, hot) in [(1, 100), (1, 5), (17, 100), (17, 5), (17, 1)] {
            let mut dispersion = Dispersion::default();
            assert_eq!(dispersion.factor(), 1.0, "nothing is known");
            let mut next = || {
                interval(300, at_once, || {
                    let among = if rng.u64(..2) == 0 { hot } else { 100 };
                    rng.u64(..among) as usize
                })
            };
            for _ in 0..60 {
                let (a, b) = (next(), next());
                dispersion.look(a.into_iter().zip(b));
            }
            let factor = dispersion.factor() / at_once as f64;
            assert!((0.9..1.15).contains(&factor), "{at_once}, {hot}: {factor}");
        }
    }

    #[test]
    fn little_is_not_concluded_from_and_nothing_is_believed_without_end() {
        let mut dispersion = Dispersion::default();
        let far = || [(1000, 0), (0, 1000)].into_iter();
        dispersion.look(far().take(1));
        assert_eq!(dispersion.factor(), 1.0, "one look with reads does not follow another");
        dispersion.look([(400, 0), (0, 400)].into_iter());
        assert_eq!(dispersion.factor(), 1.0, "too few reads");
        dispersion.look(far());
        assert_eq!(dispersion.factor(), MAX);
        (0..2000).for_each(|_| dispersion.look([(0, 0)].into_iter()));
        assert_eq!(dispersion.factor(), MAX, "nothing is forgotten while nobody reads");
    }

    #[test]
    fn a_scan_of_one_whole_table_is_soon_forgotten() {
        let mut dispersion = Dispersion::default();
        let mut rng = Rng::with_seed(6);
        let mut next = || interval(5000, 1, || rng.u64(..100) as usize);
        for _ in 0..200 {
            dispersion.look(next().into_iter().zip(next()));
        }
        let mut scanned = next();
        scanned[3] += 20_000;
        dispersion.look(next().into_iter().zip(scanned));
        assert!(dispersion.factor() < 4.0, "{}", dispersion.factor());
    }

    fn counted(accesses: f64, exposure: f64, variance: f64) -> Counted {
        Counted { accesses, exposure, variance }
    }

    /// Files with so many accesses of a variance, each of 1,000 bytes.
    fn cohort(accesses: &[f64], variance: f64) -> (Cohort, Vec<f64>) {
        let files: Vec<Counted> =
            accesses.iter().map(|&accesses| counted(accesses, 1000.0, variance)).collect();
        let cohort = Cohort::of(files.iter().copied());
        let own = files.into_iter().map(|file| cohort.expects(file).own).collect();
        (cohort, own)
    }

    #[test]
    fn files_that_differ_by_chance_are_like_their_cohort_and_others_are_themselves() {
        // Two deviations of chance each: 90 and 110 if reads come one by one, …
        let alike: Vec<f64> = (0..50).map(|at| if at % 2 == 0 { 92.0 } else { 108.0 }).collect();
        let (of, own) = cohort(&alike, 1.0);
        assert_eq!((of.mean, own[0]), (0.1, 0.0));
        assert!((of.doubt - 1.0 / 5000.0).abs() < 1e-9, "{of:?}");
        let far: Vec<f64> = (0..50).map(|at| if at % 2 == 0 { 40.0 } else { 160.0 }).collect();
        let (_, own) = cohort(&far, 1.0);
        assert!((0.95..1.0).contains(&own[0]), "{own:?}");
        // …and not if seventeen come at once.
        let (_, own) = cohort(&far, 17.0);
        assert!((0.4..0.6).contains(&own[0]), "{own:?}");
    }

    #[test]
    fn what_was_counted_for_longer_is_believed_more() {
        let files: Vec<Counted> = (0..40)
            .map(|at| counted(if at % 2 == 0 { 60.0 } else { 140.0 }, 1000.0, 1.0))
            .chain([counted(14.0, 100.0, 1.0)])
            .collect();
        let cohort = Cohort::of(files.iter().copied());
        let [long, short] = [files[0], files[40]].map(|file| cohort.expects(file).own);
        assert!(long > 0.9 && short < 0.7, "{long} {short}");
    }

    #[test]
    fn one_alone_is_as_it_was_counted_and_none_is_nothing() {
        let (cohort, _) = cohort(&[70.0], 17.0);
        let expected = cohort.expects(counted(70.0, 1000.0, 17.0));
        assert_eq!((expected.own, expected.mean), (0.0, 0.07), "its cohort is itself");
        let nothing = Cohort::of([counted(0.0, 1000.0, 1.0)].into_iter());
        assert_eq!(nothing.expects(counted(0.0, 1000.0, 1.0)).mean, 0.0);
        assert_eq!(Cohort::of([].into_iter()), nothing);
        let aged = counted(1e-200, 1000.0, 1.0);
        assert_eq!(Cohort::of([aged, aged].into_iter()), nothing, "aged to nothing");
    }
}
