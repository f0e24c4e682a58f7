//! Rank-aware hotness detection (Algorithm 1): which compute node should be the proxy of which
//! partition.
//!
//! The coordinator runs it every Δ = 1 s:
//!
//! 1. [`Window`] turns the access counters of the nodes into hotness per partition.
//! 2. [`Ranking::observe`] orders the partitions from hot to cold. C nodes make R = ⌈P/C⌉ ranks of
//!    C partitions. The last rank is short if C does not divide P.
//! 3. [`detect`] sums the ranks by which each partition moved (D), and compares the sum with what a
//!    random reshuffle would give on average (B). From a quarter of B on, partitions are assigned
//!    anew.
//! 4. [`assign`](assign::assign) gives partitions to nodes by load, and moves as few as it can.
//!
//! **A short last rank.** With L = P − (R−1)·C partitions in it, two positions drawn at random have
//! ranks with E|X−Y| = 2·Σ_{k<R} F(k)(1−F(k)), F(k) = kC/P, so B = P·E|X−Y| = C·R(R−1)·(1 −
//! C(2R−1)/(3P)). For P = R·C that is the paper's C(R²−1)/3.
//!
//! **Noise.** Counts of a second are samples. Among thousands of partitions of nearly the same
//! hotness, sampling noise alone reorders ranks, up to a D near B if the load is uniform. Algorithm
//! 1 as printed would then reassign every second. So a partition keeps the hotness by which it was
//! last ranked, as a share of the whole, while its count is near that share ([`Ranking::observe`]).
//! The limit is `noise_sigmas` standard deviations of the difference of two such counts.
//! [`NOISE_SIGMAS_PAPER`] = 0 is the algorithm as printed. Ties are decided by the old order, and
//! then by the smaller number.
//!
//! Invariants:
//! 1. The same counts and the same old ranking give the same answer everywhere.
//! 2. With one rank nothing is ever reassigned, because there is only one order.
//!
//! Thread-safety: values.
//! Failure: none. A node that did not answer counts as one without accesses.
//! Cost: a sort of P partitions, some milliseconds for 8,192, and no I/O. Paper: §4.2.

mod assign;
#[cfg(test)]
mod tests;
mod window;

pub use assign::{Assignment, assign, offloaded, partitions_max};
pub use window::Window;

use crate::ids::PartitionId;

/// Length of an interval, in nanoseconds.
pub const INTERVAL_NS: u64 = 1_000_000_000;
/// Share of the baseline that triggers a reassignment, in percent.
pub const TRIGGER_PERCENT: u64 = 25;
/// Number of standard deviations by which a count may differ before the partition is ranked again.
pub const NOISE_SIGMAS_DEFAULT: f64 = 3.0;
/// The value of the paper: every difference counts.
pub const NOISE_SIGMAS_PAPER: f64 = 0.0;

/// The partitions from hot to cold, and the hotness by which they were ordered.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// The partitions from hot to cold.
    order: Vec<PartitionId>,
    /// Position of each partition in `order`.
    place: Vec<u32>,
    /// Hotness by which each partition was ordered.
    hotness: Vec<f64>,
}

impl Ranking {
    /// A ranking of equally hot partitions, by number.
    #[must_use]
    pub fn flat(partitions: u32) -> Self {
        Self::first(&vec![0; partitions as usize])
    }

    /// Orders partitions by the counts of a single interval.
    #[must_use]
    pub fn first(counts: &[u64]) -> Self {
        let hotness: Vec<f64> = counts.iter().map(|&count| count as f64).collect();
        let numbers: Vec<u32> = (0..counts.len() as u32).collect();
        Self::ordered(hotness, &numbers)
    }

    /// Orders partitions by the counts of an interval. If a count could come from the share by
    /// which the partition was ranked before, within `noise_sigmas`, the partition keeps that
    /// share.
    #[must_use]
    pub fn observe(&self, counts: &[u64], noise_sigmas: f64) -> Self {
        assert_eq!(counts.len(), self.place.len(), "the number of partitions never changes");
        let total = counts.iter().sum::<u64>() as f64;
        let before: f64 = self.hotness.iter().sum();
        // The counts of the old interval are scaled to the number of accesses of this one.
        let scale = if before > 0.0 { total / before } else { 0.0 };
        let hotness = counts.iter().zip(&self.hotness).map(|(&count, &old)| {
            let (count, expected) = (count as f64, old * scale);
            // The variance of a count is its mean. The old count is a sample as well, and the scale
            // enlarges its variance. A zero count says little, so the variance is that of one
            // access at least.
            let variance = expected.max(1.0) * (1.0 + scale);
            let off = count - expected;
            if off * off <= noise_sigmas * noise_sigmas * variance { expected } else { count }
        });
        Self::ordered(hotness.collect(), &self.place)
    }

    /// Orders partitions from hot to cold, and equally hot ones by `tie`.
    fn ordered(hotness: Vec<f64>, tie: &[u32]) -> Self {
        let mut order: Vec<PartitionId> = (0..hotness.len() as u32).map(PartitionId).collect();
        order.sort_unstable_by(|a, b| {
            let (a, b) = (a.0 as usize, b.0 as usize);
            hotness[b].total_cmp(&hotness[a]).then(tie[a].cmp(&tie[b]))
        });
        let mut place = vec![0; hotness.len()];
        for (at, partition) in order.iter().enumerate() {
            place[partition.0 as usize] = at as u32;
        }
        Self { order, place, hotness }
    }

    /// The partitions from hot to cold.
    #[must_use]
    pub fn order(&self) -> &[PartitionId] {
        &self.order
    }

    /// Accesses of each partition in the last interval, without differences that pass for noise.
    #[must_use]
    pub fn hotness(&self) -> &[f64] {
        &self.hotness
    }

    /// The rank of a partition among `nodes` nodes. Rank 0 is the hottest.
    #[must_use]
    pub fn rank(&self, partition: PartitionId, nodes: u32) -> u32 {
        self.place[partition.0 as usize] / nodes
    }
}

/// Result of [`detect`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    /// Sum of the ranks by which partitions moved (D).
    pub displacement: u64,
    /// Average sum that a random reshuffle gives (B).
    pub baseline: f64,
    /// Whether to reassign partitions, and to replace the old ranking by the new one.
    pub reassign: bool,
}

/// Compares two rankings as ranks among `nodes` nodes, at least 1.
#[must_use]
pub fn detect(old: &Ranking, new: &Ranking, nodes: u32) -> Detection {
    let moved = old.place.iter().zip(&new.place);
    let displacement =
        moved.map(|(&old, &new)| u64::from((old / nodes).abs_diff(new / nodes))).sum();
    let (numerator, denominator) = baseline(old.place.len() as u64, u64::from(nodes));
    // D ≥ B/4, in whole numbers. D = 0 is no reason, whatever B is.
    let reached =
        u128::from(displacement) * denominator * 100 >= numerator * u128::from(TRIGGER_PERCENT);
    Detection {
        displacement,
        baseline: numerator as f64 / denominator as f64,
        reassign: displacement > 0 && reached,
    }
}

/// B as a fraction.
fn baseline(partitions: u64, nodes: u64) -> (u128, u128) {
    if partitions == 0 {
        return (0, 1);
    }
    let (p, c) = (u128::from(partitions), u128::from(nodes));
    let r = p.div_ceil(c);
    // B = C·R(R−1)·(3P − C(2R−1)) / 3P. The bracket is positive: C(R−1) < P, so C(2R−1) < 2P + C,
    // and C ≤ P unless R is 1.
    if r == 1 { (0, 1) } else { (c * r * (r - 1) * (3 * p - c * (2 * r - 1)), 3 * p) }
}
