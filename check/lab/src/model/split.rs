//! Subcompactions: the anchors that input files would name, for the engine's own plan.
//!
//! The engine cuts a job by keys of its inputs' indexes, [`plan_subcompactions`]. Here each file
//! names the same number of keys as an open table, evenly spaced by bytes. The position of each key
//! in the key space is drawn, because keys are random. The plan does not know these positions, nor
//! which records survive the merge. The imbalance of the parts follows from both and is no
//! parameter of the model.

use archipelago_base::random::Rng;
use archipelago_engine::compaction::subcompaction::{ANCHORS_PER_FILE, plan_subcompactions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::sst::Anchor;

use super::keyspace::{Run, key, numbers};

/// The parts of `range` (numbers below `space`) for at most `parts_max` threads, each of about
/// `part_bytes_min` or more; `inputs` are the files with their bytes.
pub(crate) fn plan_parts(
    inputs: &[(Run, u64)],
    range: &KeyRange,
    space: u64,
    parts_max: usize,
    part_bytes_min: u64,
    rng: &mut Rng,
) -> Vec<(u64, u64)> {
    let total: u64 = inputs.iter().map(|(_, bytes)| bytes).sum();
    if parts_max <= 1 || total / 2 < part_bytes_min {
        return vec![numbers(range, space)];
    }
    let mut anchors: Vec<Anchor> = Vec::new();
    for (run, bytes) in inputs {
        let count = (run.records as u64).clamp(1, ANCHORS_PER_FILE as u64);
        anchors.extend((1..=count).map(|at| {
            let key = key(quantile(run, at as f64 / count as f64, rng));
            Anchor { key, bytes: bytes / count }
        }));
    }
    let parts = plan_subcompactions(anchors, parts_max, part_bytes_min, range);
    parts.iter().map(|part| numbers(part, space)).collect()
}

/// The key before which the share `share` of a run's records lies: of random keys, it scatters
/// around its place by the standard deviation of that order statistic.
fn quantile(run: &Run, share: f64, rng: &mut Rng) -> u64 {
    let spread = (share * (1.0 - share) / run.records.max(1.0)).sqrt();
    let place = (share + spread * normal(rng)).clamp(0.0, 1.0);
    run.lo + (place * (run.hi - 1 - run.lo) as f64) as u64
}

/// A standard normal number (the sum of twelve uniform ones, which is near enough).
pub(crate) fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_range_and_small_jobs_stay_whole() {
        let space = 1u64 << 20;
        let run = Run { lo: 0, hi: space, records: 250_000.0 };
        let files = vec![(run, 256 << 20); 5];
        let mut rng = Rng::with_seed(1);
        let mut plan = |files: &[(Run, u64)], most| {
            plan_parts(files, &KeyRange::all(), space, most, 64 << 20, &mut rng)
        };
        let parts = plan(&files, 8);
        assert_eq!(parts.len(), 8);
        assert_eq!((parts[0].0, parts[7].1), (0, space));
        assert!(parts.windows(2).all(|pair| pair[0].1 == pair[1].0 && pair[0].0 < pair[0].1));
        let widest = parts.iter().map(|part| part.1 - part.0).max().expect("parts");
        assert!(widest < space / 7, "even keys give nearly even parts: {widest}");
        assert!((18..=20).contains(&plan(&files, 64).len()), "1.25 GB in parts of 64 MiB");
        assert_eq!(plan(&[(run, 100 << 20)], 8), [(0, space)]);
    }
}
