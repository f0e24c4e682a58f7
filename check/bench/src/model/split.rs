//! Subcompactions: where a job is cut into parts, from anchors of its files' indexes.
//!
//! A planner does not know the merged keys, only a few keys of each input's index. Each input
//! offers at most [`ANCHORS_PER_FILE`], evenly spaced by bytes; all are sorted, and the parts are
//! cut where their bytes add up evenly. What the planner gets wrong (the spread of the anchors, and
//! files whose steps are coarser than a part) is the imbalance of the parts: it comes out, it is
//! not put in.

use archipelago_base::random::Rng;

use super::keyspace::Run;

/// Most anchors that a file offers, as RocksDB asks for.
const ANCHORS_PER_FILE: u64 = 128;
/// A part has at least this share of an output file, as in RocksDB: smaller parts would only make
/// small files.
const PART_OUTPUTS_MIN: f64 = 0.8;

/// The parts of `range` for at most `parts_max` threads: disjoint, in order, together all of it.
/// `output_records` fill an output file; `rng` says where in its step each anchor lies.
pub(crate) fn plan_parts(
    inputs: &[Run],
    range: (u64, u64),
    parts_max: usize,
    output_records: f64,
    rng: &mut Rng,
) -> Vec<(u64, u64)> {
    let total: f64 = inputs.iter().map(|run| run.records).sum();
    let most = (total / (output_records * PART_OUTPUTS_MIN)).ceil().max(1.0);
    let parts = (parts_max.max(1) as f64).min(most) as usize;
    let mut anchors: Vec<(u64, f64)> = Vec::new();
    for run in inputs {
        let count = (run.records as u64).clamp(1, ANCHORS_PER_FILE);
        let weight = run.records / count as f64;
        anchors.extend((1..=count).map(|at| (quantile(run, at, count, rng), weight)));
    }
    anchors.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut planned = Vec::with_capacity(parts);
    let (mut from, mut sum) = (range.0, 0.0);
    for (at, weight) in anchors {
        sum += weight;
        let due = total * (planned.len() + 1) as f64 / parts as f64;
        if planned.len() + 1 < parts && sum >= due && at > from && at < range.1 {
            planned.push((from, at));
            from = at;
        }
    }
    planned.push((from, range.1));
    planned
}

/// The key that ends step `at` of `count` equal ones: of random keys, it scatters around its place
/// by the standard deviation of that order statistic.
fn quantile(run: &Run, at: u64, count: u64, rng: &mut Rng) -> u64 {
    let share = at as f64 / count as f64;
    let spread = (share * (1.0 - share) / run.records.max(1.0)).sqrt();
    let place = (share + spread * normal(rng)).clamp(0.0, 1.0);
    run.lo + (place * (run.hi - run.lo) as f64) as u64
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
        let files: Vec<Run> =
            (0..5).map(|_| Run { lo: 0, hi: 1 << 20, records: 250_000.0 }).collect();
        let mut rng = Rng::with_seed(1);
        let parts = plan_parts(&files, (0, 1 << 20), 8, 60_000.0, &mut rng);
        assert_eq!(parts.len(), 8);
        assert_eq!((parts[0].0, parts[7].1), (0, 1 << 20));
        assert!(parts.windows(2).all(|pair| pair[0].1 == pair[1].0 && pair[0].0 < pair[0].1));
        let widest = parts.iter().map(|part| part.1 - part.0).max().expect("parts");
        assert!(widest < (1 << 20) / 7, "even keys give nearly even parts: {widest}");
        assert_eq!(plan_parts(&files, (0, 1 << 20), 64, 60_000.0, &mut rng).len(), 27);
        assert_eq!(plan_parts(&files[..1], (0, 1 << 20), 8, 1e9, &mut rng).len(), 1);
    }
}
