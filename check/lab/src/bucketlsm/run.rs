//! One run: a process on a fresh directory, and the figures of the files that it writes.

use std::path::PathBuf;

use serde::Serialize;

use super::plan::{self, Case, Mode, Setting, Workload};
use crate::program::run_to_end;
use crate::results::{self, LatencyEntry, ResultFile};
use crate::rounds::in_new_dir;
use archipelago_bench::harness::samples::{Series, Stalls, Window};
use archipelago_bench::harness::store::{Error, Result};

/// Mean and tail of one kind of operation, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) mean_us: f64,
    pub(super) p99_us: f64,
}

/// Figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Figures {
    pub(super) ops_per_s: f64,
    pub(super) seconds: f64,
    pub(super) get: Option<Latency>,
    pub(super) scan: Option<Latency>,
    pub(super) write: Option<Latency>,
    /// Longest single write, in milliseconds.
    pub(super) write_max_ms: Option<f64>,
    pub(super) stall_s: Stalls,
    /// Seconds from the end of the workload to the end of the last flush or compaction.
    pub(super) settle_s: Option<f64>,
    /// Write amplification until the end of the last flush or compaction.
    pub(super) write_amplification: Option<f64>,
    /// Average number of busy background threads.
    pub(super) threads_busy: f64,
    /// Average number of processors that the process used.
    pub(super) processors_busy: Option<f64>,
    /// Number of L0 files in the fullest bucket: mean over time, and maximum.
    pub(super) l0_fullest_mean: f64,
    pub(super) l0_fullest_max: usize,
    /// Input bytes of L0 compactions: mean, and standard deviation divided by the mean.
    pub(super) l0_input_bytes_mean: f64,
    pub(super) l0_input_spread: f64,
    /// Number of buckets at the end, and of changes of the map.
    pub(super) buckets: usize,
    pub(super) map_changes: usize,
    /// Background jobs that failed and were tried again.
    pub(super) failed_jobs: usize,
}

/// A run with its case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) workload: Workload,
    pub(super) setting: Setting,
    pub(super) mode: Mode,
    pub(super) round: u64,
    /// Offered operations per second, or `None` at full speed.
    pub(super) offered_ops_per_s: Option<u64>,
    pub(super) figures: Figures,
    #[serde(skip)]
    pub(super) series: Series,
}

impl Run {
    /// The case that the run measured.
    pub(super) fn case(&self) -> Case {
        Case { workload: self.workload, setting: self.setting, mode: self.mode }
    }
}

fn latency_of(entry: LatencyEntry) -> Latency {
    Latency { mean_us: entry.mean_ns / 1e3, p99_us: entry.p99_ns as f64 / 1e3 }
}

/// Program to start, and where.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) program: PathBuf,
    /// Directory of the run, which must not exist yet.
    pub(super) dir: PathBuf,
    /// The emulated device, if the workload runs on one.
    pub(super) device: Option<PathBuf>,
    pub(super) device_scale: f64,
}

impl Stage {
    /// Loads the database if `workload` needs it, runs `words`, and removes the directory.
    pub(super) fn run(
        &self,
        words: &[String],
        workload: Workload,
        measured: &[String],
    ) -> Result<(Figures, Series)> {
        in_new_dir(&self.dir, || self.run_there(words, workload, measured))
    }

    fn run_there(
        &self,
        words: &[String],
        workload: Workload,
        measured: &[String],
    ) -> Result<(Figures, Series)> {
        let db = format!("--db={}", self.dir.join("db").display());
        if let Some(prepared) = plan::prepared(workload) {
            let load = [&prepared, words, std::slice::from_ref(&db)].concat();
            run_to_end(&self.program, &load)?;
        }
        let (results, samples) = (self.dir.join("results.json"), self.dir.join("samples.json"));
        let mut all = [measured, words].concat();
        all.extend([
            db,
            format!("--json={}", results.display()),
            format!("--samples={}", samples.display()),
        ]);
        if let Some(file) = &self.device {
            all.push(format!("--device={}", file.display()));
            all.push(format!("--device_scale={}", self.device_scale));
        }
        run_to_end(&self.program, &all)?;
        let results: ResultFile = results::read(&results)?;
        let series: Series = results::read(&samples)?;
        let figures = figures(workload.benchmark(), &results, &series)?;
        Ok((figures, series))
    }
}

fn figures(name: &str, results: &ResultFile, series: &Series) -> Result<Figures> {
    let missing = || Error::invalid(format!("the program wrote no result of {name}"));
    let entry = results.results.iter().find(|entry| entry.name == name).ok_or_else(missing)?;
    let window = series.window(name).ok_or_else(missing)?;
    let latency = |kinds: [&str; 2]| {
        let found = kinds.iter().find_map(|kind| entry.latency.get(*kind).copied());
        found.map(latency_of)
    };
    let write = entry.latency.get("write").or_else(|| entry.latency.get("update"));
    let fullest: Vec<usize> = series
        .during(window)
        .map(|sample| sample.l0_files.iter().copied().max().unwrap_or(0))
        .collect();
    let inputs = l0_inputs(series, window);
    let (input_mean, input_spread) = mean_and_spread(&inputs);
    let changes = series.map_changes.iter().filter(|change| change.t_s <= window.end_s);
    let last = series.during(window).last();
    Ok(Figures {
        ops_per_s: entry.ops_per_s,
        seconds: entry.seconds,
        get: latency(["read", "read"]),
        scan: latency(["seek", "seek"]),
        write: latency(["write", "update"]),
        write_max_ms: write.map(|entry| entry.max_ns as f64 / 1e6),
        stall_s: entry.stall_seconds,
        settle_s: entry.settle_seconds,
        write_amplification: entry.settled.as_ref().and_then(|s| s.write_amplification),
        threads_busy: series.threads_busy(window.start_s, window.end_s),
        processors_busy: entry.cpu_seconds.map(|seconds| seconds / entry.seconds),
        l0_fullest_mean: mean_and_spread(&fullest.iter().map(|&n| n as f64).collect::<Vec<_>>()).0,
        l0_fullest_max: fullest.iter().copied().max().unwrap_or(0),
        l0_input_bytes_mean: input_mean,
        l0_input_spread: input_spread,
        buckets: last.map_or(0, |sample| sample.l0_files.len()),
        map_changes: changes.count(),
        failed_jobs: series.errors.len(),
    })
}

/// Bytes read by each compaction out of L0 that ended during `window` and rewrote something.
pub(super) fn l0_inputs(series: &Series, window: &Window) -> Vec<f64> {
    let during = |end: f64| (window.start_s..=window.end_s).contains(&end);
    let of_l0 = series.jobs.iter().filter(|job| job.from == Some(0) && job.to > 0);
    let real = of_l0.filter(|job| job.bytes_written > 0 && during(job.end_s));
    real.map(|job| job.bytes_read as f64).collect()
}

/// The mean, and the standard deviation divided by it; zeros without values.
fn mean_and_spread(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, if mean > 0.0 { variance.sqrt() / mean } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        assert_eq!(mean_and_spread(&[]), (0.0, 0.0));
        assert_eq!(mean_and_spread(&[2.0, 2.0]), (2.0, 0.0));
        let (mean, spread) = mean_and_spread(&[1.0, 3.0]);
        assert!((mean - 2.0).abs() < 1e-12 && (spread - 0.5).abs() < 1e-12);
    }
}
