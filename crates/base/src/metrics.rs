//! Counters and latency histograms for many threads, which do not share cache lines.
//!
//! Each thread writes to one of [`STRIPES`] stripes, which it chooses once. A read sums the
//! stripes. If writers are active, the sum consists of values that the stripes had at different
//! moments of the read.
//!
//! Thread-safety: any thread may call any method.
//! Cost: a count is one relaxed atomic addition.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// Number of stripes of a counter.
pub const STRIPES: usize = 16;

/// Index of the calling thread's stripe.
#[inline]
#[must_use]
pub fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) });
    STRIPE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        mine.get()
    })
}

/// A set of `N` counters in stripes. The counters of one thread lie next to each other.
#[derive(Debug)]
pub struct Counters<const N: usize> {
    stripes: Box<[CachePadded<[AtomicU64; N]>]>,
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        let stripes =
            (0..STRIPES).map(|_| CachePadded::new([const { AtomicU64::new(0) }; N])).collect();
        Self { stripes }
    }
}

impl<const N: usize> Counters<N> {
    /// Adds `value` to the counter `index`.
    #[inline]
    pub fn add(&self, index: usize, value: u64) {
        self.stripes[stripe()][index].fetch_add(value, Ordering::Relaxed);
    }

    /// Sum of the counter `index` over all threads.
    #[must_use]
    pub fn get(&self, index: usize) -> u64 {
        self.stripes.iter().map(|stripe| stripe[index].load(Ordering::Relaxed)).sum()
    }

    /// Sets every counter to zero.
    pub fn reset(&self) {
        for stripe in &self.stripes {
            for counter in stripe.iter() {
                counter.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// Number of bits that divide each power of two of a [`Histogram`]: a value is known to 1/8.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

/// A histogram of `u64` values (nanoseconds, bytes) with logarithmic buckets. Each bucket is an
/// eighth of a power of two wide. A quantile is exact to 12.5 %. Recording is one relaxed addition
/// and one relaxed maximum.
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Histogram({:?})", self.summary())
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }
}

/// Statistics of a [`Histogram`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of recorded values.
    pub count: u64,
    /// Sum of all values.
    pub sum: u64,
    /// Mean of all values; 0 if there are none.
    pub mean: f64,
    /// Median of all values.
    pub p50: u64,
    /// 95th percentile of all values.
    pub p95: u64,
    /// 99th percentile of all values.
    pub p99: u64,
    /// 99.9th percentile of all values.
    pub p999: u64,
    /// Largest value, which is exact.
    pub max: u64,
}

/// Numbers of values of a [`Histogram`] by powers of two, for tools that add histograms up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Sum of all values.
    pub sum: u64,
    /// Element `n` is the number of values with `n` significant bits: those below `2^n`, and not
    /// below `2^(n-1)`.
    pub by_bits: [u64; 65],
}

fn bucket_of(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros();
    let sub = (value >> (exponent - SUB_BITS)) as usize & (SUB - 1);
    (exponent - SUB_BITS + 1) as usize * SUB + sub
}

fn bucket_middle(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let exponent = (bucket / SUB) as u32 + SUB_BITS - 1;
    let low = (1u64 << exponent) + ((bucket % SUB) as u64) * (1u64 << (exponent - SUB_BITS));
    low + (1u64 << (exponent - SUB_BITS)) / 2
}

impl Histogram {
    /// Records one value.
    #[inline]
    pub fn record(&self, value: u64) {
        self.counts[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        if value > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// The value below which the share `q` of all values lies, with `q` from 0 to 1.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        let counts: Vec<u64> = self.counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let mut left = (q * total as f64).ceil().max(1.0) as u64;
        for (bucket, count) in counts.iter().enumerate() {
            if *count >= left {
                return bucket_middle(bucket).min(self.max.load(Ordering::Relaxed));
            }
            left -= count;
        }
        0
    }

    /// Count, sum, mean, maximum and the usual quantiles.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let count: u64 = self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum();
        let sum = self.sum.load(Ordering::Relaxed);
        Summary {
            count,
            sum,
            mean: if count == 0 { 0.0 } else { sum as f64 / count as f64 },
            p50: self.quantile(0.5),
            p95: self.quantile(0.95),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            max: self.max.load(Ordering::Relaxed),
        }
    }

    /// Numbers of values by powers of two. Each number is exact, because no bucket spans a power of
    /// two.
    #[must_use]
    pub fn distribution(&self) -> Distribution {
        let mut by_bits = [0; 65];
        for (bucket, count) in self.counts.iter().enumerate() {
            let bits = u64::BITS - bucket_middle(bucket).leading_zeros();
            by_bits[bits as usize] += count.load(Ordering::Relaxed);
        }
        Distribution { sum: self.sum.load(Ordering::Relaxed), by_bits }
    }

    /// Adds all values of `other`.
    pub fn merge(&self, other: &Self) {
        for (mine, theirs) in self.counts.iter().zip(&other.counts) {
            mine.fetch_add(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.sum.fetch_add(other.sum.load(Ordering::Relaxed), Ordering::Relaxed);
        self.max.fetch_max(other.max.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Removes every value.
    pub fn reset(&self) {
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
        self.sum.store(0, Ordering::Relaxed);
        self.max.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_an_eighth() {
        let histogram = Histogram::default();
        for value in 1..=100_000u64 {
            histogram.record(value);
        }
        for (q, exact) in [(0.5, 50_000.0), (0.99, 99_000.0)] {
            let got = histogram.quantile(q) as f64;
            assert!((got / exact - 1.0).abs() < 0.125, "{q}: {got}");
        }
        assert_eq!(histogram.summary().max, 100_000);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn distribution_counts_exact_powers_of_two() {
        let histogram = Histogram::default();
        let values = [0, 1, 2, 3, 7, 8, 1023, 1024, u64::MAX >> 1, u64::MAX];
        values.iter().for_each(|value| histogram.record(*value));
        let found = histogram.distribution();
        let mut by_bits = [0; 65];
        for value in values {
            by_bits[(u64::BITS - value.leading_zeros()) as usize] += 1;
        }
        assert_eq!(found.by_bits, by_bits);
        assert_eq!(found.sum, values.iter().fold(0, |sum: u64, value| sum.wrapping_add(*value)));
    }

    #[test]
    fn counters_sum_over_threads() {
        let counters = Counters::<2>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| counters.add(1, 2)));
            }
        });
        assert_eq!((counters.get(0), counters.get(1)), (0, 8000));
    }
}
