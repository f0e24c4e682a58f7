//! `mixgraph`: gets, puts and seeks whose keys, value sizes, scan lengths and rate follow
//! distributions fitted to production traces (Cao et al., "Characterizing, modeling, and
//! benchmarking RocksDB key-value workloads at Facebook", FAST 2020), with db_bench's parameters.
//!
//! 1. Keys: uniform; or by hotness, f(x) = a x^b (`--key_dist_*`); or, with `--keyrange_dist_*`,
//!    first a range of keys by f(x) = a exp(b x) + c exp(d x), then a key in it by hotness. As in
//!    db_bench, ranges count only together with hotness; `--keyrange_random` (the paper's
//!    prefix-random) takes them alone. Hot keys without ranges are signed remainders, as in
//!    db_bench 7.8: the negative half are keys that no fill benchmark wrote. A comparison must do
//!    equal work, so the same is done here.
//! 2. Value sizes and scan lengths: generalised Pareto, by inversion.
//! 3. Rate: f(t) = A sin(B t + C) + D operations a second, with noise (`--sine_mix_rate`).

use std::hint::black_box;

use archipelago_base::random::Rng;

use super::{PACED_AT_ONCE, Worker};
use crate::harness::flags::Mixgraph;
use crate::harness::store::Result;
use crate::harness::tally::{Counts, OpKind};
use crate::pace::Rate;
use crate::zipf::below;

/// Bytes of the smallest value.
const VALUE_BYTES_MIN: u64 = 10;

/// The value below which a share `u` of a generalised Pareto distribution lies above.
pub(super) fn pareto(u: f64, theta: f64, k: f64, sigma: f64) -> u64 {
    let value =
        if k == 0.0 { theta - sigma * u.ln() } else { theta + sigma * (u.powf(-k) - 1.0) / k };
    value.ceil() as u64
}

/// Inversion of f(x) = a x^b.
fn power(u: f64, a: f64, b: f64) -> u64 {
    (u / a).powf(1.0 / b).ceil() as u64
}

/// A range's hotness: its share of the draws is `weight` of all weights.
#[derive(Clone, Copy, Debug)]
struct KeyRangeUnit {
    start: u64,
    weight: u64,
}

/// Ranges of equal size with two-term exponential hotness.
#[derive(Clone, Debug)]
pub(super) struct KeyRanges {
    units: Vec<KeyRangeUnit>,
    weights: u64,
    keys_each: u64,
}

impl KeyRanges {
    /// Divides `num` keys into `count` ranges of equal size, and distributes the hotness over them
    /// in an order that `seed` gives. Without a seed the order is always the same. `None` if no
    /// range has any hotness.
    pub(super) fn new(num: u64, count: u64, flags: &Mixgraph, seed: Option<u64>) -> Option<Self> {
        let count = count.min(num);
        let mut units: Vec<KeyRangeUnit> = Vec::with_capacity(count as usize);
        let mut amplify = 0.0;
        let mut weights = 0u64;
        for range in (1..=count).rev() {
            let x = range as f64;
            let hotness = flags.keyrange_dist_a * (flags.keyrange_dist_b * x).exp()
                + flags.keyrange_dist_c * (flags.keyrange_dist_d * x).exp();
            let hotness = if hotness < 1e-16 { 0.0 } else { hotness };
            if amplify == 0.0 && hotness > 0.0 {
                amplify = (1.0 / hotness).floor() + 1.0;
            }
            let weight = (amplify * hotness) as u64;
            units.push(KeyRangeUnit { start: 0, weight });
            weights = weights.checked_add(weight)?;
        }
        // Hot ranges do not lie side by side.
        Rng::with_seed(seed.unwrap_or(weights)).shuffle(&mut units);
        let mut start = 0;
        for unit in &mut units {
            unit.start = start;
            start += unit.weight;
        }
        (weights > 0).then_some(Self { units, weights, keys_each: (num / count).max(1) })
    }

    /// Number of ranges.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// Draws a range by hotness, and then a key of the range with equal probability. These are two
    /// draws, unlike [`Self::key`], which derives both from one draw as db_bench does.
    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        let at = below(rng, self.weights);
        let range = self.units.partition_point(|unit| unit.start <= at) - 1;
        self.keys_each * range as u64 + below(rng, self.keys_each)
    }

    /// The key of the draw `draw`.
    fn key(&self, draw: u64, flags: &Mixgraph) -> u64 {
        let at = draw % self.weights;
        let range = self.units.partition_point(|unit| unit.start <= at) - 1;
        let inside = draw % self.keys_each;
        let offset = if flags.key_dist_a == 0.0 || flags.key_dist_b == 0.0 {
            inside
        } else {
            let u = inside as f64 / self.keys_each as f64;
            let seed = power(u, flags.key_dist_a, flags.key_dist_b);
            below(&mut Rng::with_seed(seed), self.keys_each)
        };
        self.keys_each * range as u64 + offset
    }
}

/// Picks keys by the model that the flags ask for.
#[derive(Clone, Debug)]
enum KeyModel {
    Uniform,
    Hotness { num: u64 },
    Ranges(KeyRanges),
}

impl KeyModel {
    fn new(num: u64, flags: &Mixgraph) -> Self {
        let by_hotness = flags.key_dist_a != 0.0 && flags.key_dist_b != 0.0;
        if !by_hotness && !flags.keyrange_random {
            return Self::Uniform;
        }
        let ranges = [
            flags.keyrange_dist_a,
            flags.keyrange_dist_b,
            flags.keyrange_dist_c,
            flags.keyrange_dist_d,
        ];
        let without = if by_hotness { Self::Hotness { num } } else { Self::Uniform };
        if ranges.iter().all(|&parameter| parameter == 0.0) {
            return without;
        }
        KeyRanges::new(num, flags.keyrange_num, flags, None).map_or(without, Self::Ranges)
    }

    /// The key of `draw`, a uniform number below the number of keys. `u` is its share of that
    /// number.
    fn key(&self, draw: u64, u: f64, flags: &Mixgraph) -> u64 {
        match self {
            Self::Uniform => draw,
            Self::Hotness { num } => {
                let seed = power(u, flags.key_dist_a, flags.key_dist_b);
                let signed = Rng::with_seed(seed).i64(..) % (*num).cast_signed();
                signed.cast_unsigned()
            }
            Self::Ranges(ranges) => ranges.key(draw, flags),
        }
    }
}

/// Changes the rates over time.
struct Sine {
    next_ns: u64,
    interval_ns: u64,
    gets_share: f64,
    puts_share: f64,
}

impl Sine {
    fn new(flags: &Mixgraph) -> Self {
        let all = flags.mix_get_ratio + flags.mix_put_ratio + flags.mix_seek_ratio;
        Self {
            next_ns: 0,
            interval_ns: flags.sine_mix_rate_interval_milliseconds.saturating_mul(1_000_000),
            gets_share: (flags.mix_get_ratio + flags.mix_seek_ratio) / all,
            puts_share: flags.mix_put_ratio / all,
        }
    }

    /// Operations a second after `seconds`.
    fn rate(flags: &Mixgraph, seconds: f64) -> f64 {
        flags.sine_a * (flags.sine_b * seconds + flags.sine_c).sin() + flags.sine_d
    }

    fn adjust(&mut self, flags: &Mixgraph, elapsed_ns: u64, rng: &mut Rng, rates: [&Rate; 2]) {
        if elapsed_ns < self.next_ns {
            return;
        }
        self.next_ns = elapsed_ns + self.interval_ns;
        let noise = 1.0 + flags.sine_mix_rate_noise * (2.0 * rng.f64() - 1.0);
        let rate = Self::rate(flags, elapsed_ns as f64 / 1e9) * noise;
        for (limit, share) in rates.into_iter().zip([self.gets_share, self.puts_share]) {
            limit.set((rate * share).max(1.0) as u64);
        }
    }
}

/// Runs the workload in one thread.
pub(super) fn run(worker: &mut Worker<'_>) -> Result<()> {
    let flags = &worker.bench.flags.mixgraph;
    let num = worker.bench.flags.load.num;
    let model = KeyModel::new(num, flags);
    let all = flags.mix_get_ratio + flags.mix_put_ratio + flags.mix_seek_ratio;
    let gets_below = flags.mix_get_ratio / all;
    let puts_below = gets_below + flags.mix_put_ratio / all;
    let mut sine = Sine::new(flags);
    let mut limit = worker.limit(worker.bench.flags.reads());
    while limit.more(1) {
        let draw = worker.picker.next(&mut worker.rng);
        let u = draw as f64 / num as f64;
        worker.keys.set(model.key(draw, u, flags));
        if flags.sine_mix_rate {
            let rates = [&worker.bench.read_rate, &worker.bench.write_rate];
            sine.adjust(flags, worker.tally.elapsed_ns(), &mut worker.rng, rates);
        }
        let dice = worker.rng.f64();
        if dice < gets_below {
            get(worker)?;
        } else if dice < puts_below {
            put(worker, u, flags)?;
        } else {
            seek(worker, u, flags)?;
        }
    }
    worker.tally.counts.looked = worker.tally.counts.reads + worker.tally.counts.seeks;
    Ok(())
}

pub(super) fn get(worker: &mut Worker<'_>) -> Result<()> {
    let key = worker.keys.get();
    worker.tally.counts.reads += 1;
    if let Some(value) = worker.db.get_with(worker.cf, key, &worker.read_options)? {
        worker.tally.counts.found += 1;
        worker.tally.add_bytes(key.len() + value.len());
    }
    worker.tally.finished(1, OpKind::Read);
    pace_reads(worker);
    Ok(())
}

fn pace_reads(worker: &mut Worker<'_>) {
    worker.pace_read(worker.tally.counts.reads + worker.tally.counts.seeks);
}

fn put(worker: &mut Worker<'_>, u: f64, flags: &Mixgraph) -> Result<()> {
    let size = value_bytes(u, flags);
    let value = worker.values.take(size as usize);
    worker.db.put_with(worker.cf, worker.keys.get(), value, &worker.write_options)?;
    worker.tally.counts.writes += 1;
    worker.tally.counts.value_bytes += size;
    worker.tally.add_bytes(worker.keys.get().len() + value.len());
    worker.tally.finished(1, OpKind::Write);
    if worker.tally.counts.writes.is_multiple_of(PACED_AT_ONCE) {
        worker.pace_write(PACED_AT_ONCE);
    }
    Ok(())
}

fn value_bytes(u: f64, flags: &Mixgraph) -> u64 {
    let size = pareto(u, flags.value_theta, flags.value_k, flags.value_sigma);
    let size = if size > flags.mix_max_value_size { size % flags.mix_max_value_size } else { size };
    size.max(VALUE_BYTES_MIN)
}

pub(super) fn seek(worker: &mut Worker<'_>, u: f64, flags: &Mixgraph) -> Result<()> {
    let mut iter = worker.db.iter(worker.cf, &worker.read_options)?;
    let key = worker.keys.get();
    iter.seek(key);
    worker.tally.counts.seeks += 1;
    worker.tally.counts.found += u64::from(iter.valid() && iter.key() == key);
    let wanted =
        pareto(u, flags.iter_theta, flags.iter_k, flags.iter_sigma) % flags.mix_max_scan_len;
    let mut read = 0;
    while read < wanted && iter.valid() {
        worker.tally.add_bytes(black_box(iter.key()).len() + black_box(iter.value()).len());
        iter.next();
        read += 1;
    }
    iter.status()?;
    worker.tally.counts.scan_entries += read;
    worker.tally.finished(1, OpKind::Seek);
    pace_reads(worker);
    Ok(())
}

/// The message, with an empty line.
pub(super) fn message(counts: &Counts) -> String {
    let Counts { reads, writes, seeks, found, looked, value_bytes, scan_entries, .. } = counts;
    let value = *value_bytes as f64 / (*writes).max(1) as f64;
    let scan = *scan_entries as f64 / (*seeks).max(1) as f64;
    format!(
        "( Gets:{reads} Puts:{writes} Seek:{seeks}, reads {found} in {looked} found, avg size: \
         {value:.1} value, {scan:.1} scan)\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::flags::tests::flags;

    #[test]
    fn pareto_is_the_inverse_of_its_distribution() {
        // 1 - F(x) = (1 + k (x - theta) / sigma)^(-1/k)
        for (theta, k, sigma) in [(0.0, 0.2615, 25.45), (3.0, 2.517, 14.236)] {
            for u in [0.9, 0.5, 0.1, 0.01] {
                let x = pareto(u, theta, k, sigma) as f64;
                let above = |x: f64| (1.0 + k * (x - theta) / sigma).powf(-1.0 / k);
                assert!(above(x) <= u && u <= above(x - 1.0), "{theta} {k} {sigma} {u}: {x}");
            }
        }
        assert_eq!(pareto(0.5, 0.0, 0.0, 10.0), 7, "k = 0 is the exponential distribution");
    }

    #[test]
    fn values_have_the_mean_of_the_paper_s_fit() {
        // sigma / (1 - k) = 34.5 before the cut at 1024 and the floor of 10.
        let given = flags(&[]).mixgraph;
        let mut rng = Rng::with_seed(9);
        let sum: u64 = (0..200_000).map(|_| value_bytes(rng.f64(), &given)).sum();
        let mean = sum as f64 / 200_000.0;
        assert!((34.0..38.0).contains(&mean), "{mean}");
        assert!((0..1000).all(|_| (10..=1024).contains(&value_bytes(rng.f64(), &given))));
    }

    #[test]
    fn ranges_get_their_share() {
        let given = flags(&[
            "--keyrange_num=30",
            "--keyrange_dist_a=14.18",
            "--keyrange_dist_b=-2.917",
            "--keyrange_dist_c=0.0164",
            "--keyrange_dist_d=-0.08082",
        ])
        .mixgraph;
        let ranges = KeyRanges::new(3_000_000, 30, &given, None).expect("some are hot");
        let mut rng = Rng::with_seed(3);
        let mut seen = vec![0f64; 30];
        for _ in 0..200_000 {
            let key = ranges.key(below(&mut rng, 3_000_000), &given);
            seen[(key / ranges.keys_each) as usize] += 1.0 / 200_000.0;
        }
        let hotness = |x: f64| 14.18 * (-2.917 * x).exp() + 0.0164 * (-0.08082 * x).exp();
        let all: f64 = (1..=30).map(|x| hotness(f64::from(x))).sum();
        seen.sort_by(|a, b| b.total_cmp(a));
        for (x, &share) in (1..=5).zip(&seen) {
            let wanted = hotness(f64::from(x)) / all;
            assert!((share / wanted - 1.0).abs() < 0.15, "range {x}: {share}, not {wanted}");
        }
    }

    #[test]
    fn hot_keys_are_few_and_keys_in_bounds() {
        let given = flags(&["--key_dist_a=0.002312", "--key_dist_b=0.3467", "--num=100000"]);
        let model = KeyModel::new(100_000, &given.mixgraph);
        assert!(matches!(model, KeyModel::Hotness { .. }));
        let mut rng = Rng::with_seed(3);
        let mut seen = std::collections::HashMap::new();
        let mut absent = 0;
        for _ in 0..50_000 {
            let draw = below(&mut rng, 100_000);
            let key = model.key(draw, draw as f64 / 100_000.0, &given.mixgraph);
            assert!(key.cast_signed().unsigned_abs() < 100_000);
            absent += u32::from(key >= 100_000);
            *seen.entry(key).or_insert(0u32) += 1;
        }
        assert!(seen.len() < 39_000, "{} distinct keys: uniform has 39,347", seen.len());
        assert!((20_000..30_000).contains(&absent), "{absent} of 50,000 were never filled");
    }

    #[test]
    fn the_rate_follows_the_sine() {
        let given = flags(&["--sine_a=1000", "--sine_b=0.5", "--sine_d=4500"]).mixgraph;
        assert_eq!(Sine::rate(&given, 0.0), 4500.0);
        assert!((Sine::rate(&given, std::f64::consts::PI) - 5500.0).abs() < 1e-6);
    }
}
