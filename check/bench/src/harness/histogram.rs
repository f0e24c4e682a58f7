//! The latency distribution of one kind of operation, in two forms: in microseconds and in the
//! buckets that db_bench prints, and in nanoseconds at three digits for the JSON report.
//!
//! Thread-safety: each worker owns its histograms, and the end of a benchmark merges them.
//! Cost: a record takes two array increments.

use std::fmt::Write as _;

use hdrhistogram::Histogram as Fine;
use serde::Serialize;

/// Longest duration that the fine histogram distinguishes from longer ones.
const NS_MAX: u64 = 3_600_000_000_000;

/// A distribution of durations.
#[derive(Clone, Debug)]
pub struct Histogram {
    limits: Vec<u64>,
    counts: Vec<u64>,
    num: u64,
    min: u64,
    max: u64,
    sum: f64,
    sum_squares: f64,
    fine_ns: Fine<u64>,
}

/// Quantiles in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) count: u64,
    pub(crate) mean_ns: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p90_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) p9999_ns: u64,
    pub(crate) max_ns: u64,
}

/// Upper ends of the buckets: 1, 2, then each half again as large, cut to two leading digits.
fn bucket_limits() -> Vec<u64> {
    let mut limits = vec![1, 2];
    let mut exact = 2.0f64;
    loop {
        exact *= 1.5;
        if exact > u64::MAX as f64 {
            return limits;
        }
        let (mut digits, mut scale) = (exact as u64, 1);
        while digits / 10 > 10 {
            digits /= 10;
            scale *= 10;
        }
        limits.push(digits * scale);
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// Creates a histogram without values.
    #[must_use]
    pub fn new() -> Self {
        let limits = bucket_limits();
        let counts = vec![0; limits.len()];
        let fine_ns = Fine::new_with_max(NS_MAX, 3).expect("the bounds are constants in range");
        let (num, min, max, sum, sum_squares) = (0, u64::MAX, 0, 0.0, 0.0);
        Self { limits, counts, num, min, max, sum, sum_squares, fine_ns }
    }

    /// Adds a duration.
    #[inline]
    pub fn record_ns(&mut self, ns: u64) {
        self.fine_ns.saturating_record(ns);
        self.record_micros(ns / 1000);
    }

    fn record_micros(&mut self, micros: u64) {
        let bucket = self.limits.partition_point(|&limit| limit < micros);
        self.counts[bucket.min(self.limits.len() - 1)] += 1;
        self.num += 1;
        self.min = self.min.min(micros);
        self.max = self.max.max(micros);
        self.sum += micros as f64;
        self.sum_squares += micros as f64 * micros as f64;
    }

    /// Adds all values of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.num += other.num;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.sum_squares += other.sum_squares;
        self.fine_ns.add(&other.fine_ns).expect("both have the same bounds");
    }

    /// The duration below which `percent` of all durations lie, if they are spread evenly inside a
    /// bucket.
    fn percentile(&self, percent: f64) -> f64 {
        let wanted = self.num as f64 * (percent / 100.0);
        let mut below = 0u64;
        for (at, &count) in self.counts.iter().enumerate() {
            let through = below + count;
            if through as f64 >= wanted {
                let left = if at == 0 { 0 } else { self.limits[at - 1] } as f64;
                let right = self.limits[at] as f64;
                let part = if count == 0 { 0.0 } else { (wanted - below as f64) / count as f64 };
                let value = left + (right - left) * part;
                return value.max(self.min as f64).min(self.max as f64);
            }
            below = through;
        }
        self.max as f64
    }

    fn average(&self) -> f64 {
        if self.num == 0 { 0.0 } else { self.sum / self.num as f64 }
    }

    fn deviation(&self) -> f64 {
        if self.num == 0 {
            return 0.0;
        }
        let num = self.num as f64;
        ((self.sum_squares * num - self.sum * self.sum) / (num * num)).max(0.0).sqrt()
    }

    /// Text as db_bench prints it: summary, percentiles, and a bar for each bucket.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (average, deviation) = (self.average(), self.deviation());
        let min = if self.num == 0 { 0 } else { self.min };
        let p = |percent| self.percentile(percent);
        let _ = write!(
            out,
            "Count: {} Average: {average:.4}  StdDev: {deviation:.2}\n\
             Min: {min}  Median: {:.4}  Max: {}\n\
             Percentiles: P50: {:.2} P75: {:.2} P99: {:.2} P99.9: {:.2} P99.99: {:.2}\n\
             ------------------------------------------------------\n",
            self.num,
            p(50.0),
            self.max,
            p(50.0),
            p(75.0),
            p(99.0),
            p(99.9),
            p(99.99),
        );
        let share = 100.0 / self.num as f64;
        let mut through = 0;
        for (at, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            through += count;
            let (bracket, left) = if at == 0 { ('[', 0) } else { ('(', self.limits[at - 1]) };
            let (part, all) = (share * count as f64, share * through as f64);
            let marks = "#".repeat((part / 5.0 + 0.5) as usize);
            let right = self.limits[at];
            let _ = writeln!(
                out,
                "{bracket} {left:7}, {right:7} ] {count:8} {part:7.3}% {all:7.3}% {marks}"
            );
        }
        out
    }

    /// The fine figures; `None` without values.
    pub(crate) fn quantiles(&self) -> Option<Quantiles> {
        let fine = &self.fine_ns;
        (self.num > 0).then(|| Quantiles {
            count: self.num,
            mean_ns: fine.mean(),
            p50_ns: fine.value_at_quantile(0.5),
            p90_ns: fine.value_at_quantile(0.9),
            p99_ns: fine.value_at_quantile(0.99),
            p999_ns: fine.value_at_quantile(0.999),
            p9999_ns: fine.value_at_quantile(0.9999),
            max_ns: fine.max(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_where_db_bench_ends_them() {
        let limits = bucket_limits();
        let wanted = [
            1, 2, 3, 4, 6, 10, 15, 22, 34, 51, 76, 110, 170, 250, 380, 580, 870, 1300, 1900, 2900,
            4400, 6600, 9900, 14000, 22000, 33000,
        ];
        assert_eq!(limits[..wanted.len()], wanted);
    }

    #[test]
    fn the_text_is_db_bench_s_to_the_letter() {
        // Counts as in a run of db_bench 7.8.3, which printed these lines for them.
        let mut histogram = Histogram::new();
        for (micros, count) in [(3, 34), (4, 2445), (6, 3096), (10, 425)] {
            (0..count).for_each(|_| histogram.record_micros(micros));
        }
        let text = histogram.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Count: 6000 Average: 5.4513  StdDev: 1.59");
        assert_eq!(lines[1], "Min: 3  Median: 4.3366  Max: 10");
        assert_eq!(lines[2], "Percentiles: P50: 4.34 P75: 5.31 P99: 9.44 P99.9: 9.94 P99.99: 9.99");
        assert_eq!(lines[3], "------------------------------------------------------");
        assert_eq!(lines[4], "(       2,       3 ]       34   0.567%   0.567% ");
        assert_eq!(lines[5], "(       3,       4 ]     2445  40.750%  41.317% ########");
        assert_eq!(lines[6], "(       4,       6 ]     3096  51.600%  92.917% ##########");
    }

    #[test]
    fn zero_falls_into_the_first_bucket() {
        let mut histogram = Histogram::new();
        assert!(histogram.text().starts_with("Count: 0 Average: 0.0000  StdDev: 0.00\nMin: 0  "));
        assert_eq!(histogram.quantiles(), None);
        histogram.record_ns(800);
        assert!(histogram.text().contains("[       0,       1 ]        1 100.000% 100.000% ####"));
        let fine = histogram.quantiles().expect("a value");
        assert_eq!((fine.p50_ns, fine.max_ns), (800, 800));
    }

    #[test]
    fn merging_is_recording_both() {
        let (mut both, mut one, mut other) = (Histogram::new(), Histogram::new(), Histogram::new());
        for ns in (0..5_000_000).step_by(997) {
            both.record_ns(ns);
            if ns % 2 == 0 { one.record_ns(ns) } else { other.record_ns(ns) }
        }
        one.merge(&other);
        assert_eq!(one.text(), both.text());
        assert_eq!(one.quantiles(), both.quantiles());
    }
}
