//! `mixgraph1` and `mixgraph2`: the MixGraph workloads of BucketLSM's evaluation (§VI-A).
//!
//! 1. Keys are FAST '20's prefix-random: a key range by the two-term exponential of `mixgraph`, its
//!    keys alike. Without `--keyrange_dist_*` the parameters are those of that paper's fit.
//! 2. The run has five phases of equal length (in operations; in time with `--duration`), with 10,
//!    20, 30, 40 and 50 ranges. Each phase divides the whole key space again and distributes the
//!    hotness in another order (by `--seed`), so that the hot range jumps.
//! 3. `mixgraph1` only puts; `mixgraph2` puts, gets and scans 8:1:1. Values have `--value_size`
//!    bytes; scan lengths follow `--iter_*`.

use super::Worker;
use super::mixgraph::{self, KeyRanges};
use crate::harness::flags::Mixgraph;
use crate::harness::store::{Error, Result};
use crate::harness::tally::OpKind;
use crate::zipf::below;

/// Key ranges of each phase.
const RANGES: [u64; 5] = [10, 20, 30, 40, 50];
/// The fit of Cao et al. to production traces: f(x) = a exp(b x) + c exp(d x).
const FIT: [f64; 4] = [14.18, -2.917, 0.0164, -0.08082];
/// Operations between two readings of the clock with `--duration`.
const LOOK_EVERY: u64 = 128;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Put,
    Get,
    Scan,
}

/// Numbers of operations of each kind in ten operations.
#[derive(Clone, Copy, Debug)]
struct Mix {
    gets: u64,
    scans: u64,
}

impl Mix {
    fn op(self, dice: u64) -> Op {
        if dice < self.gets {
            Op::Get
        } else if dice < self.gets + self.scans {
            Op::Scan
        } else {
            Op::Put
        }
    }
}

/// The key ranges of every phase.
#[derive(Clone, Debug)]
struct Phases(Vec<KeyRanges>);

impl Phases {
    /// Phases over `num` keys; `seed` places the hot ranges. Errors: `InvalidArgument` if
    /// `--keyrange_dist_*` gives no range any hotness.
    fn new(num: u64, flags: &Mixgraph, seed: u64) -> Result<Self> {
        let mut flags = flags.clone();
        let given = [
            &mut flags.keyrange_dist_a,
            &mut flags.keyrange_dist_b,
            &mut flags.keyrange_dist_c,
            &mut flags.keyrange_dist_d,
        ];
        if given.iter().all(|parameter| **parameter == 0.0) {
            given.into_iter().zip(FIT).for_each(|(parameter, fit)| *parameter = fit);
        }
        let ranges =
            RANGES.map(|count| KeyRanges::new(num, count, &flags, Some(seed.wrapping_add(count))));
        let all: Option<Vec<KeyRanges>> = ranges.into_iter().collect();
        all.map(Self).ok_or_else(|| {
            Error::invalid("--keyrange_dist_a to _d leave no key range any hotness, or too much")
        })
    }

    /// The ranges when the share `done` of `all` is over.
    fn at(&self, done: u64, all: u64) -> &KeyRanges {
        let last = self.0.len() - 1;
        let phase = u128::from(done) * self.0.len() as u128 / u128::from(all.max(1));
        &self.0[last.min(phase as usize)]
    }
}

/// Runs `mixgraph1` in one thread.
pub(super) fn puts(worker: &mut Worker<'_>) -> Result<()> {
    run(worker, Mix { gets: 0, scans: 0 })
}

/// Runs `mixgraph2` in one thread.
pub(super) fn mixed(worker: &mut Worker<'_>) -> Result<()> {
    run(worker, Mix { gets: 1, scans: 1 })
}

fn run(worker: &mut Worker<'_>, mix: Mix) -> Result<()> {
    let flags = worker.bench.flags;
    let phases = Phases::new(flags.load.num, &flags.mixgraph, worker.bench.seed)?;
    let ops = flags.reads_and_writes();
    let duration_ns = flags.load.duration.saturating_mul(1_000_000_000);
    let mut limit = worker.limit(ops);
    let (mut done, mut elapsed_ns) = (0u64, 0);
    while limit.more(1) {
        let ranges = if duration_ns == 0 {
            phases.at(done, ops)
        } else {
            if done.is_multiple_of(LOOK_EVERY) {
                elapsed_ns = worker.tally.elapsed_ns();
            }
            phases.at(elapsed_ns, duration_ns)
        };
        done += 1;
        worker.keys.set(ranges.draw(&mut worker.rng));
        match mix.op(below(&mut worker.rng, 10)) {
            Op::Put => put(worker)?,
            Op::Get => mixgraph::get(worker)?,
            Op::Scan => {
                let u = worker.rng.f64();
                mixgraph::seek(worker, u, &flags.mixgraph)?;
            }
        }
    }
    worker.tally.counts.looked = worker.tally.counts.reads + worker.tally.counts.seeks;
    Ok(())
}

fn put(worker: &mut Worker<'_>) -> Result<()> {
    let value_bytes = worker.bench.flags.load.value_size;
    let value = worker.values.take(value_bytes);
    let bytes = worker.keys.get().len() + value_bytes;
    worker.pace_write(bytes as u64);
    worker.db.put_with(worker.cf, worker.keys.get(), value, &worker.write_options)?;
    worker.tally.counts.writes += 1;
    worker.tally.counts.value_bytes += value_bytes as u64;
    worker.tally.add_bytes(bytes);
    worker.tally.finished(1, OpKind::Write);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::flags::tests::flags;
    use archipelago_base::random::Rng;

    const NUM: u64 = 3_000_000;

    fn phases(words: &[&str]) -> Result<Phases> {
        Phases::new(NUM, &flags(words).mixgraph, 1)
    }

    /// Shares of the draws by range of a phase.
    fn shares(ranges: &KeyRanges, seed: u64) -> Vec<f64> {
        const DRAWS: u64 = 200_000;
        let mut rng = Rng::with_seed(seed);
        let each = NUM / ranges.len() as u64;
        let mut seen = vec![0.0; ranges.len()];
        for _ in 0..DRAWS {
            seen[(ranges.draw(&mut rng) / each) as usize] += 1.0 / DRAWS as f64;
        }
        seen
    }

    #[test]
    fn the_number_of_ranges_grows_over_the_run() {
        let phases = phases(&[]).expect("the fit");
        let at = |done| phases.at(done, 1000).len();
        assert_eq!(
            [0, 199, 200, 399, 400, 600, 800, 999, 1000].map(at),
            [10, 10, 20, 20, 30, 40, 50, 50, 50]
        );
    }

    #[test]
    fn every_range_is_in_use_and_has_its_share() {
        let phases = phases(&[]).expect("the fit");
        for (seed, (ranges, count)) in (7..).zip(phases.0.iter().zip(RANGES)) {
            let mut seen = shares(ranges, seed);
            assert_eq!(seen.len() as u64, count);
            assert!(seen.iter().all(|&share| share > 0.0), "{count}: {seen:?}");
            let hotness = |x: f64| FIT[0] * (FIT[1] * x).exp() + FIT[2] * (FIT[3] * x).exp();
            let all: f64 = (1..=count).map(|x| hotness(x as f64)).sum();
            seen.sort_by(|a, b| b.total_cmp(a));
            for (x, share) in [1.0, 2.0, 3.0].into_iter().zip(seen) {
                let wanted = hotness(x) / all;
                assert!((share / wanted - 1.0).abs() < 0.2, "{count}, {x}: {share}, not {wanted}");
            }
        }
    }

    #[test]
    fn the_hot_range_jumps_between_phases() {
        let phases = phases(&[]).expect("the fit");
        let hottest = |ranges: &KeyRanges| {
            let seen = shares(ranges, 3);
            let at = (0..seen.len()).max_by(|&a, &b| seen[a].total_cmp(&seen[b])).unwrap_or(0);
            at as f64 / seen.len() as f64
        };
        let places: Vec<f64> = phases.0.iter().map(hottest).collect();
        let jumps = places.windows(2).filter(|pair| (pair[0] - pair[1]).abs() > 0.1).count();
        assert!(jumps >= 3, "places in the key space: {places:?}");
    }

    #[test]
    fn keys_of_a_range_are_alike() {
        let phases = phases(&[]).expect("the fit");
        let (ranges, mut rng) = (&phases.0[0], Rng::with_seed(5));
        let mut tenths = [0u32; 10];
        for _ in 0..100_000 {
            let inside = ranges.draw(&mut rng) % (NUM / 10);
            tenths[(inside * 100 / NUM) as usize] += 1;
        }
        assert!(tenths.iter().all(|&count| (9_500..10_500).contains(&count)), "{tenths:?}");
    }

    #[test]
    fn the_mix_is_eight_to_one_to_one() {
        let count = |mix: Mix, op| (0..10).filter(|&dice| mix.op(dice) == op).count();
        let mixed = Mix { gets: 1, scans: 1 };
        assert_eq!([Op::Put, Op::Get, Op::Scan].map(|op| count(mixed, op)), [8, 1, 1]);
        assert_eq!(count(Mix { gets: 0, scans: 0 }, Op::Put), 10);
    }

    #[test]
    fn distribution_of_keys_must_have_hotness() {
        let even = phases(&["--keyrange_dist_a=1", "--keyrange_dist_b=0"]).expect("all alike");
        let seen = shares(&even.0[0], 11);
        assert!(seen.iter().all(|share| (0.09..0.11).contains(share)), "{seen:?}");
        let refusal = phases(&["--keyrange_dist_a=-1"]).expect_err("no range is hot");
        assert!(refusal.to_string().contains("keyrange_dist"), "{refusal}");
    }
}
