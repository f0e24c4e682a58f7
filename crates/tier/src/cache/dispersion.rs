//! Dispersion of read counts: the differences of files beyond chance, and the expected accesses of
//! each file.
//!
//! Reads are not independent: a scan makes many reads of one table, so that counts of equally hot
//! tables vary by many times their mean. [`Dispersion`] measures this factor from two consecutive
//! intervals. The expected accesses of a file then lie between its own count and the mean per byte
//! of its cohort (the tables of its family and level): the more chance explains the differences
//! within the cohort, the closer to the mean ([`Cohort`]; an empirical Bayes estimate of counts
//! over unequal exposures, by moments). So it is known early that one level is read more than
//! another, before any table has enough reads of its own. And a copy is not replaced by a copy of
//! an equally hot file that by chance was read more often.
//!
//! All functions are pure. Cost: linear in the number of files. Decision 0031 has the figures.

/// Factor by which sums decay from one iteration to the next: to one half within half a minute.
const KEPT: f64 = 0.99;
/// Least number of reads from which a dispersion above 1 is concluded.
const READS_MIN: f64 = 1000.0;
/// Upper limit of the measured dispersion.
const MAX: f64 = 64.0;
/// Least number of aged accesses of a cohort. Fewer count as none.
const COUNTED_MIN: f64 = 1e-3;

/// Measures the variance-to-mean ratio of read counts of files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dispersion {
    /// Squared differences between the counts of consecutive intervals, normalised and decayed.
    apart: f64,
    /// Value that `apart` would have for independent reads.
    chance: f64,
}

impl Dispersion {
    /// Takes the reads of each file in two consecutive intervals, for files that existed in both.
    ///
    /// If a file has `a` and `b` of all `A` and `B` reads of the two intervals, the mean of (a B -
    /// b A)² is (a + b) A B for independent reads, however often the file is read. It is smaller by
    /// the file's share of all reads, because the file is part of `A` and `B`. One iteration counts
    /// for at most [`MAX`], because a single scan of a whole table says little about other reads.
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

    /// The variance-to-mean ratio of counts: 1 for independent reads, and while too little is
    /// known. At most [`MAX`].
    pub(crate) fn factor(&self) -> f64 {
        if self.chance < READS_MIN { 1.0 } else { (self.apart / self.chance).clamp(1.0, MAX) }
    }
}

/// The count of one file, as a member of its cohort.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// Aged accesses of the file.
    pub(crate) accesses: f64,
    /// Bytes of the file, times the fraction of the window in which it existed.
    pub(crate) exposure: f64,
    /// Variance-to-mean ratio of the accesses by chance.
    pub(crate) variance: f64,
}

/// Mean and spread of the accesses per byte within a cohort.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cohort {
    /// Mean accesses per byte.
    mean: f64,
    /// Variance of the accesses per byte from file to file, beyond chance.
    differs: f64,
    /// Variance of the mean by chance, as a fraction of the square of the mean.
    doubt: f64,
}

/// The weights that a file's own count and its cohort have in its expected accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Expected {
    /// Weight of the file's own count, 0 to 1. The cohort has the rest.
    pub(crate) own: f64,
    /// Mean accesses per byte of the cohort.
    pub(crate) mean: f64,
    /// Variance of the cohort's mean by chance, as a fraction of the square of the mean.
    pub(crate) doubt: f64,
}

impl Cohort {
    /// Mean and spread of the files of one cohort.
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
            // The file is part of the mean that it is compared with.
            let rest = 1.0 - file.exposure / exposure;
            chance += file.variance * expected * rest;
            squares += file.exposure * file.exposure * rest;
            doubt += file.variance * expected;
        }
        let differs = if squares > 0.0 { ((spread - chance) / squares).max(0.0) } else { 0.0 };
        Self { mean, differs, doubt: doubt / (counted * counted) }
    }

    /// The weights that determine the expected accesses of a file of this cohort.
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

    /// Reads of 100 files in an interval with `scans` scans. Each scan makes `batch` reads of the
    /// file that `pick` chooses.
    fn interval(scans: usize, batch: u64, mut pick: impl FnMut() -> usize) -> Vec<u64> {
        let mut reads = vec![0; 100];
        (0..scans).for_each(|_| reads[pick()] += batch);
        reads
    }

    #[test]
    fn dispersion_is_the_number_of_reads_of_a_scan() {
        let mut rng = Rng::with_seed(5);
        // Half of the reads go to the first `hot` files.
        for (batch, hot) in [(1, 100), (1, 5), (17, 100), (17, 5), (17, 1)] {
            let mut dispersion = Dispersion::default();
            assert_eq!(dispersion.factor(), 1.0, "nothing is known");
            let mut next = || {
                interval(300, batch, || {
                    let among = if rng.u64(..2) == 0 { hot } else { 100 };
                    rng.u64(..among) as usize
                })
            };
            for _ in 0..60 {
                let (a, b) = (next(), next());
                dispersion.look(a.into_iter().zip(b));
            }
            let factor = dispersion.factor() / batch as f64;
            assert!((0.9..1.15).contains(&factor), "{batch}, {hot}: {factor}");
        }
    }

    #[test]
    fn dispersion_needs_min_reads_and_is_capped() {
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
    fn one_scan_of_a_whole_table_hardly_counts() {
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

    /// The cohort of files of 1,000 bytes with these accesses, and the weight of each file's own
    /// count.
    fn cohort(accesses: &[f64], variance: f64) -> (Cohort, Vec<f64>) {
        let files: Vec<Counted> =
            accesses.iter().map(|&accesses| counted(accesses, 1000.0, variance)).collect();
        let cohort = Cohort::of(files.iter().copied());
        let own = files.into_iter().map(|file| cohort.expects(file).own).collect();
        (cohort, own)
    }

    #[test]
    fn files_that_differ_by_chance_get_the_mean_of_their_cohort() {
        // For independent reads the counts lie within one standard deviation of their mean.
        let equal: Vec<f64> = (0..50).map(|at| if at % 2 == 0 { 92.0 } else { 108.0 }).collect();
        let (of, own) = cohort(&equal, 1.0);
        assert_eq!((of.mean, own[0]), (0.1, 0.0));
        assert!((of.doubt - 1.0 / 5000.0).abs() < 1e-9, "{of:?}");
        let far: Vec<f64> = (0..50).map(|at| if at % 2 == 0 { 40.0 } else { 160.0 }).collect();
        let (_, own) = cohort(&far, 1.0);
        assert!((0.95..1.0).contains(&own[0]), "{own:?}");
        // If scans make seventeen reads each, chance explains half of the differences.
        let (_, own) = cohort(&far, 17.0);
        assert!((0.4..0.6).contains(&own[0]), "{own:?}");
    }

    #[test]
    fn count_of_a_long_window_has_more_weight() {
        let files: Vec<Counted> = (0..40)
            .map(|at| counted(if at % 2 == 0 { 60.0 } else { 140.0 }, 1000.0, 1.0))
            .chain([counted(14.0, 100.0, 1.0)])
            .collect();
        let cohort = Cohort::of(files.iter().copied());
        let [long, short] = [files[0], files[40]].map(|file| cohort.expects(file).own);
        assert!(long > 0.9 && short < 0.7, "{long} {short}");
    }

    #[test]
    fn cohort_of_one_file_equals_its_count() {
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
