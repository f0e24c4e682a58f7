//! A mix like the production workload of Nutanix in Keigo's evaluation (§5.3): 40 reads, 58 writes
//! and 2 scans of a hundred operations; values of 100 B to 4 KiB with a median of 400 B.
//!
//! The paper gives no further facts. Half of the values lie below the median and half above it. In
//! each half, every ratio has the same probability (log-uniform), so the mean is 900 B. Keys are
//! zipfian 0.80 and scattered, unless `--ycsb_distribution` and `--ycsb_theta` choose otherwise. A
//! scan reads 1 to `--ycsb_max_scan` entries.

use std::sync::atomic::Ordering;

use archipelago_base::random::Rng;

use super::{Spec, Worker, ycsb};
use crate::harness::flags::Distribution;
use crate::harness::store::Result;
use crate::harness::tally::OpKind;
use crate::zipf::{Chooser, below};

const VALUE_BYTES_MIN: f64 = 100.0;
const VALUE_BYTES_MEDIAN: f64 = 400.0;
/// The largest value.
pub(crate) const VALUE_BYTES_MAX: usize = 4096;

const THETA: f64 = 0.80;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
    Scan,
}

/// The next operation.
fn operation(rng: &mut Rng) -> Operation {
    match below(rng, 100) {
        0..40 => Operation::Read,
        40..98 => Operation::Write,
        _ => Operation::Scan,
    }
}

/// The length of the next value.
fn value_bytes(rng: &mut Rng) -> usize {
    let u = 2.0 * rng.f64();
    let (low, high, part) = match u {
        u if u < 1.0 => (VALUE_BYTES_MIN, VALUE_BYTES_MEDIAN, u),
        u => (VALUE_BYTES_MEDIAN, VALUE_BYTES_MAX as f64, u - 1.0),
    };
    (low * (high / low).powf(part)).round() as usize
}

/// Benchmark that writes the records from which the workload starts, with values of these lengths.
pub(super) fn load_spec() -> Spec {
    let body = |worker: &mut Worker<'_>| ycsb::load_with(worker, |_, rng| value_bytes(rng));
    Spec::new("nutanixload", super::Run::Workers(body, super::quiet)).writing()
}

/// Runs the workload in one thread.
pub(super) fn run(worker: &mut Worker<'_>) -> Result<()> {
    let flags = worker.bench.flags;
    let distribution = flags.ycsb.ycsb_distribution.unwrap_or(Distribution::Zipfian);
    let records = worker.bench.records.load(Ordering::Relaxed);
    let chooser = Chooser::new(distribution, records, flags.ycsb.ycsb_theta.unwrap_or(THETA));
    let mut limit = worker.limit(flags.reads_and_writes());
    while limit.more(1) {
        let operation = operation(&mut worker.rng);
        let number = chooser.next(&mut worker.rng, records);
        worker.keys.set(number);
        match operation {
            Operation::Read => {
                ycsb::read(worker)?;
                worker.tally.finished(1, OpKind::Read);
            }
            Operation::Write => {
                let bytes = value_bytes(&mut worker.rng);
                ycsb::update_with(worker, bytes)?;
                worker.tally.finished(1, OpKind::Update);
            }
            Operation::Scan => ycsb::scan(worker)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_within_bounds_and_their_median_is_400() {
        let mut rng = Rng::with_seed(7);
        let mut drawn: Vec<usize> = (0..100_001).map(|_| value_bytes(&mut rng)).collect();
        drawn.sort_unstable();
        assert!(drawn[0] >= 100 && drawn[100_000] <= 4096, "{} {}", drawn[0], drawn[100_000]);
        assert!((390..=410).contains(&drawn[50_000]), "{}", drawn[50_000]);
        let mean = drawn.iter().sum::<usize>() as f64 / 100_001.0;
        assert!((880.0..930.0).contains(&mean), "{mean}");
        let again = |seed| {
            let mut rng = Rng::with_seed(seed);
            (0..50).map(|_| value_bytes(&mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(again(3), again(3));
        assert_ne!(again(3), again(4));
    }

    #[test]
    fn forty_read_fifty_eight_write_and_two_scan() {
        let mut rng = Rng::with_seed(7);
        let mut counts = [0u32; 3];
        for _ in 0..100_000 {
            counts[operation(&mut rng) as usize] += 1;
        }
        for (count, wanted) in counts.into_iter().zip([40_000, 58_000, 2_000]) {
            assert!(count.abs_diff(wanted) < 600, "{counts:?}");
        }
    }
}
