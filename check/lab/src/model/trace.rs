//! Outcome of a run: totals, and the state over time.

use std::collections::BTreeMap;

use archipelago_engine::version::Version;
use serde::Serialize;

use super::setting::Mode;

/// Number of points of a series.
const POINTS: usize = 240;

/// Result of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) mode: Mode,
    pub(crate) jobs: usize,
    pub(crate) degree: usize,
    /// Seconds until the last record was written.
    pub(crate) seconds: f64,
    pub(crate) ops_per_s: f64,
    /// Rate of written keys and values in 10^6 bytes a second, and in the second half alone.
    pub(crate) mb_per_s: f64,
    pub(crate) second_half_mb_per_s: f64,
    /// Number of busy threads of jobs, on average and at most.
    pub(crate) threads_mean: f64,
    pub(crate) threads_max: usize,
    /// Time that the threads of all jobs would take alone, and installs.
    pub(crate) work_s: f64,
    pub(crate) install_s: f64,
    /// Bytes that jobs write to the device per byte that writers write.
    pub(crate) write_amplification: f64,
    /// Seconds that writers lost, by cause.
    pub(crate) stalled_s: BTreeMap<&'static str, f64>,
    /// Number of L0 compactions, their mean time, and its standard deviation.
    pub(crate) l0_compactions: usize,
    pub(crate) l0_compaction_s_mean: f64,
    pub(crate) l0_compaction_s_std: f64,
    /// Ratio of the slowest to the mean part of an L0 compaction, averaged over compactions.
    pub(crate) straggler_ratio: f64,
    /// Number of compactions of other kinds.
    pub(crate) level_compactions: usize,
    pub(crate) intra_l0_compactions: usize,
    pub(crate) moves: usize,
    pub(crate) flushes: usize,
    /// Largest number of parallel jobs.
    pub(crate) jobs_max_seen: usize,
    /// Fraction of the time in which cores, or writes of the device, were the limit.
    pub(crate) cores_full_share: f64,
    pub(crate) device_full_share: f64,
    /// Compaction debt at the end, in bytes.
    pub(crate) pending_bytes: u64,
    pub(crate) buckets: usize,
    pub(crate) series: Vec<Point>,
    /// Hash over every event: equal for equal seeds.
    pub(crate) trace: u64,
}

/// State at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) at_s: f64,
    /// Busy threads of jobs.
    pub(crate) threads: f64,
    /// L0 files of the emptiest, the average and the fullest bucket.
    pub(crate) l0_min: f64,
    pub(crate) l0_mean: f64,
    pub(crate) l0_max: f64,
    /// Rate of writes in 10^6 bytes a second.
    pub(crate) mb_per_s: f64,
}

/// Mean and standard deviation of a stream of values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    pub(super) count: usize,
    sum: f64,
    squares: f64,
}

impl Moments {
    pub(super) fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    pub(super) fn std(&self) -> f64 {
        let mean = self.mean();
        (self.squares / self.count.max(1) as f64 - mean * mean).max(0.0).sqrt()
    }
}

/// Collects the figures of an [`Outcome`].
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// Steps: the time, its length and the state.
    steps: Vec<(f64, Point)>,
    pub(super) l0_jobs: Moments,
    pub(super) stragglers: Moments,
    pub(super) level_jobs: usize,
    pub(super) intra_jobs: usize,
    pub(super) moves: usize,
    pub(super) flushes: usize,
    pub(super) threads_max: usize,
    pub(super) jobs_max: usize,
    pub(super) written_bytes: f64,
    pub(super) work_s: f64,
    pub(super) install_s: f64,
    pub(super) cores_full_s: f64,
    pub(super) device_full_s: f64,
    pub(super) trace: u64,
}

impl Recorder {
    /// Notes an event in the hash (FNV-1a over words).
    pub(super) fn event(&mut self, words: &[u64]) {
        for word in words {
            self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Records a step of `seconds` from `at_s` on.
    pub(super) fn step(
        &mut self,
        at_s: f64,
        seconds: f64,
        threads: usize,
        mb_per_s: f64,
        version: &Version,
    ) {
        self.threads_max = self.threads_max.max(threads);
        let buckets = version.map().len();
        let counts = (0..buckets).map(|bucket| version.l0(bucket).len());
        let point = Point {
            at_s,
            threads: threads as f64,
            l0_min: counts.clone().min().unwrap_or(0) as f64,
            l0_mean: counts.sum::<usize>() as f64 / buckets as f64,
            l0_max: version.l0_layers_max() as f64,
            mb_per_s,
        };
        self.steps.push((seconds, point));
    }

    /// Busy threads, averaged over time.
    pub(super) fn threads_mean(&self) -> f64 {
        let total: f64 = self.steps.iter().map(|(seconds, _)| seconds).sum();
        let busy: f64 = self.steps.iter().map(|(seconds, point)| seconds * point.threads).sum();
        busy / total.max(1e-9)
    }

    /// The steps averaged over equal parts of the time.
    pub(super) fn series(&self, until_s: f64) -> Vec<Point> {
        let width = until_s / POINTS as f64;
        let mut cells = vec![(0.0, Point::default()); POINTS];
        for (seconds, step) in &self.steps {
            let (mut at, end) = (step.at_s, step.at_s + seconds);
            while at < end {
                let cell = ((at / width) as usize).min(POINTS - 1);
                let to = end.min((cell + 1) as f64 * width).max(at + width * 1e-9);
                let part = to - at;
                let (sum, point) = &mut cells[cell];
                *sum += part;
                point.threads += step.threads * part;
                point.l0_min += step.l0_min * part;
                point.l0_mean += step.l0_mean * part;
                point.l0_max += step.l0_max * part;
                point.mb_per_s += step.mb_per_s * part;
                at = to;
            }
        }
        let mean = |(index, (sum, point)): (usize, &(f64, Point))| {
            let per = 1.0 / sum.max(1e-9);
            Point {
                at_s: (index as f64 + 0.5) * width,
                threads: point.threads * per,
                l0_min: point.l0_min * per,
                l0_mean: point.l0_mean * per,
                l0_max: point.l0_max * per,
                mb_per_s: point.mb_per_s * per,
            }
        };
        cells.iter().enumerate().map(mean).collect()
    }
}
