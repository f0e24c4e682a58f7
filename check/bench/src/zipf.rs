//! Skewed choice of keys, as YCSB chooses them.
//!
//! [`Zipf`] draws ranks by the method of Gray et al. ("Quickly generating billion-record synthetic
//! databases", SIGMOD 1994). The sum that the method needs (zeta) is exact for the first ranks and
//! an integral for the rest. So making a generator over billions of keys takes little time.
//!
//! Cost: a draw takes one `powf`.

use archipelago_base::random::Rng;

use crate::harness::flags::Distribution;

pub(crate) use crate::skew::scramble;

/// A uniform number below `bound` without a division.
#[inline]
pub(crate) fn below(rng: &mut Rng, bound: u64) -> u64 {
    ((u128::from(rng.u64(..)) * u128::from(bound)) >> 64) as u64
}

/// Ranks `0..n`, rank 0 the most frequent: the share of rank r is (r+1)^-theta / zeta(n).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipf {
    n: f64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

/// Ranks whose terms are summed one by one.
const EXACT_TERMS: u64 = 10_000;

/// Sum of i^-theta for i in 1..=n, theta below 1.
pub(crate) fn zeta(n: u64, theta: f64) -> f64 {
    let exact = n.min(EXACT_TERMS);
    let head: f64 = (1..=exact).map(|i| (i as f64).powf(-theta)).sum();
    if n == exact {
        return head;
    }
    // Euler–Maclaurin: the integral and half of each end.
    let (a, b) = (exact as f64, n as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    head + integral + (b.powf(-theta) - a.powf(-theta)) / 2.0
}

impl Zipf {
    /// A generator over `n` ranks (at least 1) with skew `theta` in 0..1 (YCSB: 0.99).
    pub(crate) fn new(n: u64, theta: f64) -> Self {
        let n = n.max(1);
        let sum = zeta(n, theta);
        let count = n as f64;
        let eta = if n <= 2 {
            1.0
        } else {
            (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - zeta(2, theta) / sum)
        };
        Self { n: count, theta, alpha: 1.0 / (1.0 - theta), zeta: sum, eta }
    }

    /// The next rank.
    #[inline]
    pub(crate) fn next(&self, rng: &mut Rng) -> u64 {
        let u = rng.f64();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.n as u64 - 1);
        }
        let rank = (self.n * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64;
        rank.min(self.n as u64 - 1)
    }
}

/// Picks records with a Zipfian distribution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chooser {
    distribution: Distribution,
    zipf: Zipf,
    /// Records at the start. Zipfian ranks are scattered over them, as in YCSB, so that hot records
    /// stay hot while records are added.
    start: u64,
}

impl Chooser {
    /// A chooser that starts with `records` records.
    pub(crate) fn new(distribution: Distribution, records: u64, theta: f64) -> Self {
        Self { distribution, zipf: Zipf::new(records, theta), start: records }
    }

    /// A record among the `records` that exist now.
    #[inline]
    pub(crate) fn next(&self, rng: &mut Rng, records: u64) -> u64 {
        match self.distribution {
            Distribution::Zipfian => scramble(self.zipf.next(rng), self.start),
            Distribution::Uniform => below(rng, records),
            Distribution::Latest => (records - 1).saturating_sub(self.zipf.next(rng)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_is_the_sum() {
        for n in [1, 2, 9_999, 10_000, 10_001, 300_000] {
            let sum: f64 = (1..=n).map(|i| (i as f64).powf(-0.99)).sum();
            assert!((zeta(n, 0.99) / sum - 1.0).abs() < 1e-9, "{n}");
        }
    }

    #[test]
    fn ranks_have_their_shares() {
        let zipf = Zipf::new(1000, 0.99);
        let mut rng = Rng::with_seed(5);
        let mut seen = vec![0f64; 1000];
        let draws = 400_000;
        for _ in 0..draws {
            seen[zipf.next(&mut rng) as usize] += 1.0 / f64::from(draws);
        }
        let share = |ranks: std::ops::Range<usize>| -> (f64, f64) {
            let wanted = ranks.clone().map(|r| (r as f64 + 1.0).powf(-0.99)).sum::<f64>();
            (seen[ranks].iter().sum(), wanted / zeta(1000, 0.99))
        };
        for ranks in [0..1, 1..2, 0..10, 10..100, 100..1000] {
            let (got, wanted) = share(ranks.clone());
            assert!((got / wanted - 1.0).abs() < 0.1, "{ranks:?}: {got} {wanted}");
        }
    }

    #[test]
    fn tiny_key_spaces_stay_in_bounds() {
        let mut rng = Rng::with_seed(5);
        for n in 1..5 {
            let zipf = Zipf::new(n, 0.99);
            assert!((0..1000).all(|_| zipf.next(&mut rng) < n));
        }
    }

    #[test]
    fn choosers_stay_in_bounds_and_differ_in_shape() {
        let mut rng = Rng::with_seed(5);
        let mut tops = Vec::new();
        for distribution in [Distribution::Zipfian, Distribution::Uniform, Distribution::Latest] {
            let chooser = Chooser::new(distribution, 1000, 0.99);
            let mut seen = vec![0u32; 1010];
            for _ in 0..50_000 {
                seen[chooser.next(&mut rng, 1010) as usize] += 1;
            }
            let hottest = (0..1010).max_by_key(|&at| seen[at]).unwrap_or(0);
            tops.push((hottest, seen[hottest]));
        }
        let chooser = Chooser::new(Distribution::Zipfian, 1000, 0.99);
        let draw = |records| {
            let mut rng = Rng::with_seed(7);
            (0..1000).map(|_| chooser.next(&mut rng, records)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1000), draw(1500), "what is hot stays where it is while records are added");
        assert!(tops[0].1 > 4000 && tops[0].0 != 0, "hot and scattered: {tops:?}");
        assert!(tops[1].1 < 200, "even: {tops:?}");
        assert!(tops[2].0 == 1009 && tops[2].1 > 4000, "the newest: {tops:?}");
    }
}
