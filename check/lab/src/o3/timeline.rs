//! Figures from the samples of a run: rates over time, stops, flushes, bytes by level, and peaks of
//! links. The functions are pure.

use archipelago_bench::harness::samples::{Job, Sample, Series, Window};
use archipelago_bench::harness::store::MovedBytes;
use serde::{Deserialize, Serialize};

use super::cluster::Place;
use super::node::RoleState;

/// Shortest stop of writers that counts.
const STOP_MIN_S: f64 = 0.001;
const MB: f64 = 1e6;

/// Bytes of a link over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct LinkUse {
    /// Largest and mean MB/s of samples of 100 ms.
    pub(super) peak: f64,
    pub(super) mean: f64,
}

/// Links of a run, as in Table 6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Links {
    pub(super) owner_to_memory: LinkUse,
    pub(super) memory_to_owner: LinkUse,
    pub(super) owner_to_storage: LinkUse,
    pub(super) storage_to_owner: LinkUse,
    /// All links of other nodes to the storage together.
    pub(super) nodes_to_storage: LinkUse,
}

/// Flushes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Flushes {
    pub(super) count: u64,
    /// Bytes that they wrote. Flushes that had begun before have a part of them, by their time.
    pub(super) bytes: u64,
    /// Time of all flushes together.
    pub(super) seconds: f64,
    /// Time from the first begin to the last end.
    pub(super) span_s: f64,
}

/// Figures from the samples of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Timeline {
    /// Operations of each whole second of the benchmark.
    pub(super) per_second: Vec<f64>,
    /// Operations per second in the second half of the benchmark.
    pub(super) second_half: Option<f64>,
    /// Times that writers were stopped.
    pub(super) stops: u64,
    /// Flushes that were installed until the end of the run.
    pub(super) flushes: Flushes,
    /// Flushes that ended after the benchmark.
    pub(super) flushes_after: Flushes,
    /// Bytes that compactions wrote into each level, from L1 on.
    pub(super) written_by_level: Vec<u64>,
    pub(super) links: Links,
}

/// States of the roles at one moment, in seconds since the owner's process was started.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RoleSample {
    pub(super) t_s: f64,
    pub(super) states: Vec<(Place, RoleState)>,
}

impl Timeline {
    /// The timeline of the last benchmark called `name`.
    pub(super) fn of(series: &Series, name: &str, roles: &[RoleSample]) -> Option<Self> {
        let window = series.benchmarks.iter().rfind(|window| window.name == name)?;
        let samples: Vec<&Sample> = series.during(window).collect();
        let ended = |from_s: f64| {
            let jobs = series.jobs.iter();
            jobs.filter(move |job| job.from.is_none() && job.end_s >= from_s)
        };
        let flushes = |from_s: f64| {
            let first = ended(from_s).map(|job| job.start_s).fold(f64::INFINITY, f64::min);
            let last = ended(from_s).map(|job| job.end_s).fold(f64::NEG_INFINITY, f64::max);
            Flushes {
                count: ended(from_s).count() as u64,
                bytes: ended(from_s).map(|job| bytes_after(job, from_s)).sum(),
                seconds: ended(from_s).map(|job| job.end_s - job.start_s).sum(),
                span_s: (last - first.max(from_s)).max(0.0),
            }
        };
        Some(Self {
            per_second: per_second(&samples, window),
            second_half: second_half(&samples, window),
            stops: series.stops(window, STOP_MIN_S),
            flushes: flushes(window.start_s),
            flushes_after: flushes(window.end_s),
            written_by_level: by_level(series, window),
            links: links(&samples, roles),
        })
    }

    /// Standard deviation over the mean of the operations of seconds. `None` for fewer than three
    /// seconds.
    pub(super) fn variation(&self) -> Option<f64> {
        let count = self.per_second.len() as f64;
        if count < 3.0 {
            return None;
        }
        let mean = self.per_second.iter().sum::<f64>() / count;
        let squares = self.per_second.iter().map(|ops| (ops - mean).powi(2)).sum::<f64>();
        (mean > 0.0).then(|| (squares / count).sqrt() / mean)
    }
}

/// Bytes that a job wrote after `from_s`, if it wrote at one speed. A short burst ends while
/// flushes run. Their whole bytes over the rest of their time would be a rate that no stream has.
fn bytes_after(job: &Job, from_s: f64) -> u64 {
    let length_s = (job.end_s - job.start_s).max(1e-9);
    let part = ((job.end_s - from_s) / length_s).clamp(0.0, 1.0);
    (job.bytes_written as f64 * part) as u64
}

/// Operations until `t_s`, between two samples by their line.
fn ops_at(samples: &[&Sample], t_s: f64) -> Option<f64> {
    let after = samples.iter().position(|sample| sample.t_s >= t_s)?;
    let to = samples[after];
    let Some(from) = after.checked_sub(1).map(|before| samples[before]) else {
        return Some(to.ops as f64);
    };
    let part = (t_s - from.t_s) / (to.t_s - from.t_s).max(1e-9);
    Some(from.ops as f64 + part * (to.ops as f64 - from.ops as f64))
}

fn per_second(samples: &[&Sample], window: &Window) -> Vec<f64> {
    let seconds = (window.end_s - window.start_s).floor() as u64;
    let at = |second: u64| ops_at(samples, window.start_s + second as f64);
    (0..seconds).filter_map(|second| Some(at(second + 1)? - at(second)?)).collect()
}

fn second_half(samples: &[&Sample], window: &Window) -> Option<f64> {
    let last = samples.last()?;
    let middle_s = f64::midpoint(window.start_s, last.t_s);
    let ops = last.ops as f64 - ops_at(samples, middle_s)?;
    (last.t_s > middle_s).then(|| ops / (last.t_s - middle_s))
}

fn by_level(series: &Series, window: &Window) -> Vec<u64> {
    let mut levels = Vec::new();
    let compactions = series.jobs.iter().filter(|job| job.from.is_some());
    for job in compactions.filter(|job| job.end_s >= window.start_s) {
        if levels.len() < job.to {
            levels.resize(job.to, 0);
        }
        if let Some(level) = job.to.checked_sub(1).and_then(|at| levels.get_mut(at)) {
            *level += job.bytes_written;
        }
    }
    levels
}

/// Peak and mean of a counter over samples (seconds, bytes so far).
fn link_use(samples: &[(f64, u64)]) -> LinkUse {
    let rates = samples.windows(2).filter_map(|pair| {
        let seconds = pair[1].0 - pair[0].0;
        let bytes = pair[1].1.saturating_sub(pair[0].1) as f64;
        // Two samples that nearly meet would make a peak of a few bytes.
        (seconds > 0.02).then(|| bytes / seconds / MB)
    });
    let peak = rates.fold(0.0, f64::max);
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return LinkUse::default();
    };
    let seconds = last.0 - first.0;
    let bytes = last.1.saturating_sub(first.1) as f64;
    let mean = if seconds > 0.0 { bytes / seconds / MB } else { 0.0 };
    LinkUse { peak, mean }
}

fn links(samples: &[&Sample], roles: &[RoleSample]) -> Links {
    let of = |bytes: fn(&MovedBytes) -> u64| {
        let points = samples.iter();
        let points = points.filter_map(|sample| Some((sample.t_s, bytes(sample.moved.as_ref()?))));
        link_use(&points.collect::<Vec<_>>())
    };
    let written = |sample: &RoleSample| {
        let linked = sample.states.iter().filter(|(place, _)| *place != Place::Storage);
        (sample.t_s, linked.map(|(_, state)| state.written_bytes).sum())
    };
    Links {
        owner_to_memory: of(|moved| moved.memtables_sent),
        memory_to_owner: of(|moved| moved.memtables_fetched),
        owner_to_storage: of(|moved| moved.written),
        storage_to_owner: of(|moved| moved.read),
        nodes_to_storage: link_use(&roles.iter().map(written).collect::<Vec<_>>()),
    }
}

#[cfg(test)]
mod tests {
    use archipelago_bench::harness::samples::Stalls;

    use super::*;

    fn sample(t_s: f64, ops: u64, written: u64) -> Sample {
        Sample {
            t_s,
            ops,
            l0_files: Vec::new(),
            stall_s: Stalls::default(),
            sent_bytes: Vec::new(),
            moved: Some(MovedBytes { written, ..MovedBytes::default() }),
        }
    }

    fn job(from: Option<usize>, to: usize, times: [f64; 2], bytes_written: u64) -> Job {
        Job {
            from,
            to,
            bucket: None,
            start_s: times[0],
            end_s: times[1],
            threads_s: Vec::new(),
            bytes_read: 0,
            bytes_written,
        }
    }

    fn series() -> Series {
        let samples = [(1.0, 0, 0), (1.5, 50, 0), (2.0, 100, 4_000_000), (3.0, 400, 5_000_000)];
        Series {
            benchmarks: vec![Window { name: "fillrandom".to_owned(), start_s: 1.0, end_s: 3.0 }],
            samples: samples.map(|(t_s, ops, written)| sample(t_s, ops, written)).to_vec(),
            jobs: vec![
                job(None, 0, [1.0, 2.0], 10),
                job(None, 0, [2.5, 4.0], 20),
                job(Some(0), 1, [2.0, 3.5], 7),
                job(Some(1), 2, [3.0, 5.0], 9),
            ],
            ..Series::default()
        }
    }

    #[test]
    fn timeline_follows_from_samples_and_jobs() {
        let state = |written_bytes| RoleState { written_bytes, ..RoleState::default() };
        let roles = [0.0, 1.0].map(|t_s| RoleSample {
            t_s,
            states: vec![
                (Place::Linked, state((t_s * 3e6) as u64)),
                (Place::Storage, state((t_s * 9e6) as u64)),
            ],
        });
        let timeline = Timeline::of(&series(), "fillrandom", &roles).expect("the benchmark");
        assert_eq!(timeline.per_second, [100.0, 300.0]);
        assert_eq!(timeline.second_half, Some(300.0));
        let Flushes { count, bytes, seconds, span_s } = timeline.flushes;
        assert_eq!((count, bytes, seconds, span_s), (2, 30, 2.5, 3.0));
        // The benchmark ended after a third of the second flush, which wrote 20 bytes.
        let Flushes { count, bytes, span_s, .. } = timeline.flushes_after;
        assert_eq!((count, bytes, span_s), (1, 13, 1.0));
        assert_eq!(timeline.written_by_level, [7, 9]);
        let owner = timeline.links.owner_to_storage;
        assert_eq!((owner.peak, owner.mean), (8.0, 2.5));
        assert_eq!(timeline.links.nodes_to_storage.mean, 3.0);
        assert_eq!(timeline.variation(), None, "two seconds are too few");
        assert_eq!(Timeline::of(&series(), "readrandom", &[]), None);
    }

    #[test]
    fn variation_is_that_of_seconds() {
        let of = |per_second: &[f64]| {
            let per_second = per_second.to_vec();
            Timeline { per_second, ..Timeline::default() }.variation()
        };
        assert_eq!(of(&[5.0, 5.0, 5.0]), Some(0.0));
        let some = of(&[1.0, 2.0, 3.0]).expect("a figure");
        assert!((some - (2.0_f64 / 3.0).sqrt() / 2.0).abs() < 1e-12, "{some}");
        assert_eq!(of(&[0.0, 0.0, 0.0]), None);
    }
}
