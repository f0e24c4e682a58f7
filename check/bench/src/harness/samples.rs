//! Samples of the store while benchmarks run, as one timeline of the run (`--samples`).
//!
//! The timeline has two sources. A thread samples, every 100 ms, the L0 files of each bucket, the
//! number of operations and the stall time of writers. It runs as long as one benchmark. The
//! `Recorder` receives every flush, compaction, map change and stall state from the database, also
//! while `waitforcompaction` waits. An event contains the length of its job and the busy time of
//! each of its threads. So the number of busy background threads at any moment is exact.
//!
//! All times are seconds since the run began.
//!
//! Cost: a read of the buckets every 100 ms and a push under a lock per event. Without `--samples`,
//! there is no cost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use crate::harness::network;
use crate::harness::store::{Db, Event, EventListener, MovedBytes, Opened, Result, Ticker};
use crate::harness::tally::Progress;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Seconds that writers waited, summed over them, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stalls {
    /// Stall time because of L0 files in the fullest bucket.
    pub l0: f64,
    /// Stall time because of memtables that wait for their flush.
    pub memtables: f64,
    /// Stall time because of compaction debt.
    pub pending: f64,
    /// Stall time because of the byte budget.
    pub budget: f64,
    /// Stall time because of the bound on space.
    #[serde(default)]
    pub space: f64,
}

impl Stalls {
    /// Stall times since the database was opened.
    pub(crate) fn of(db: &Db) -> Self {
        let seconds = |ticker| db.statistics().get(ticker) as f64 / 1e9;
        Self {
            l0: seconds(Ticker::StallL0Ns),
            memtables: seconds(Ticker::StallMemtablesNs),
            pending: seconds(Ticker::StallPendingNs),
            budget: seconds(Ticker::StallBudgetNs),
            space: seconds(Ticker::StallSpaceNs),
        }
    }

    /// Stall times from `before` until these.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            l0: self.l0 - before.l0,
            memtables: self.memtables - before.memtables,
            pending: self.pending - before.pending,
            budget: self.budget - before.budget,
            space: self.space - before.space,
        }
    }

    /// Stall time of all causes together.
    pub fn total(self) -> f64 {
        self.l0 + self.memtables + self.pending + self.budget + self.space
    }
}

/// Times of a benchmark in the timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Name of the benchmark.
    pub name: String,
    /// Seconds from the start of the run to the start of the benchmark.
    pub start_s: f64,
    /// Seconds from the start of the run to the end.
    pub end_s: f64,
}

/// State of the store at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start of the run.
    pub t_s: f64,
    /// Operations of the benchmark so far.
    pub ops: u64,
    /// Number of L0 files of each bucket, in key order.
    pub l0_files: Vec<usize>,
    /// Stall times since the benchmark began.
    pub stall_s: Stalls,
    /// Bytes that the client's card has sent to storage nodes so far, by the class of the call:
    /// log, foreground, flush, compaction, garbage collection. Empty without `--store`.
    #[serde(default)]
    pub sent_bytes: Vec<u64>,
    /// Bytes that have crossed the emulated device and the link to memory nodes so far. `None`
    /// without `--device`.
    #[serde(default)]
    pub moved: Option<MovedBytes>,
}

/// A flush or compaction that was installed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Level of the inputs, or `None` for a flush.
    pub from: Option<usize>,
    /// Level that the job writes.
    pub to: usize,
    /// Bucket of a compaction of L0.
    pub bucket: Option<usize>,
    /// Seconds since the start of the run.
    pub start_s: f64,
    /// Seconds from the start of the run to the end.
    pub end_s: f64,
    /// Busy time of each thread of the job, from its start.
    pub threads_s: Vec<f64>,
    /// Bytes that the job read.
    pub bytes_read: u64,
    /// Bytes that the job wrote.
    pub bytes_written: u64,
}

/// A change of the bucket map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapChange {
    /// Seconds since the start of the run.
    pub t_s: f64,
    pub(crate) buckets: usize,
    pub(crate) reason: String,
}

/// A text, such as a stall state or an error, and the time at which it was reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    pub(crate) t_s: f64,
    pub(crate) text: String,
}

/// The file of `--samples`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Times of each benchmark.
    pub benchmarks: Vec<Window>,
    /// The samples, in the order of time.
    pub samples: Vec<Sample>,
    /// Background jobs that ended.
    pub jobs: Vec<Job>,
    /// Changes of bucket boundaries.
    pub map_changes: Vec<MapChange>,
    /// Changes of the stall state, each with the new state.
    pub stall_states: Vec<Told>,
    /// Errors of background jobs.
    pub errors: Vec<Told>,
}

/// Listener of the database that keeps the timeline.
#[derive(Debug)]
pub(crate) struct Recorder {
    clock: Arc<SystemClock>,
    started_ns: u64,
    series: Mutex<Series>,
}

impl Recorder {
    /// Begins the timeline.
    pub(crate) fn new(clock: Arc<SystemClock>) -> Self {
        let started_ns = clock.now_ns();
        Self { clock, started_ns, series: Mutex::default() }
    }

    /// Seconds since the run began.
    pub(crate) fn now_s(&self) -> f64 {
        (self.clock.now_ns() - self.started_ns) as f64 / 1e9
    }

    /// The timeline so far.
    pub(crate) fn series(&self) -> Series {
        self.with(|series| series.clone())
    }

    /// Adds a benchmark that ran for `seconds`, with its samples.
    pub(crate) fn add(&self, name: &str, start_s: f64, seconds: f64, samples: Vec<Sample>) {
        let end_s = start_s + seconds;
        self.with(|series| {
            series.benchmarks.push(Window { name: name.to_owned(), start_s, end_s });
            series.samples.extend(samples);
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Series) -> T) -> T {
        act(&mut self.series.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl EventListener for Recorder {
    fn on_event(&self, event: &Event) {
        let t_s = self.now_s();
        let seconds = |ns: &u64| *ns as f64 / 1e9;
        match event {
            Event::FlushInstalled { bytes, duration_ns, .. } => {
                let job = Job {
                    from: None,
                    to: 0,
                    bucket: None,
                    start_s: t_s - seconds(duration_ns),
                    end_s: t_s,
                    threads_s: vec![seconds(duration_ns)],
                    bytes_read: 0,
                    bytes_written: *bytes,
                };
                self.with(|series| series.jobs.push(job));
            }
            Event::CompactionInstalled {
                from,
                to,
                bucket,
                bytes_read,
                bytes_written,
                duration_ns,
                threads_ns,
                ..
            } => {
                let job = Job {
                    from: Some(*from),
                    to: *to,
                    bucket: *bucket,
                    start_s: t_s - seconds(duration_ns),
                    end_s: t_s,
                    threads_s: threads_ns.iter().map(seconds).collect(),
                    bytes_read: *bytes_read,
                    bytes_written: *bytes_written,
                };
                self.with(|series| series.jobs.push(job));
            }
            Event::BucketMapChanged { buckets, reason, .. } => {
                let change = MapChange { t_s, buckets: *buckets, reason: reason.clone() };
                self.with(|series| series.map_changes.push(change));
            }
            Event::StallChanged { state } => {
                self.with(|series| series.stall_states.push(Told { t_s, text: state.clone() }));
            }
            Event::BackgroundError { job, error } => {
                let text = format!("{job}: {error}");
                self.with(|series| series.errors.push(Told { t_s, text }));
            }
            _ => {}
        }
    }
}

/// Samples the store during one benchmark.
#[derive(Debug)]
pub(crate) struct Sampler<'a> {
    pub(crate) recorder: &'a Recorder,
    pub(crate) db: &'a Db,
    pub(crate) opened: Option<&'a Opened>,
    pub(crate) progress: &'a [Progress],
}

impl Sampler<'_> {
    /// Samples until `ended` is set. An error is that of the database.
    pub(crate) fn run(&self, ended: &AtomicBool) -> Result<Vec<Sample>> {
        let before = Stalls::of(self.db);
        let mut samples = vec![self.look(before)?];
        while !ended.load(Ordering::Acquire) {
            self.recorder.clock.sleep(LOOK_EVERY);
            samples.push(self.look(before)?);
        }
        Ok(samples)
    }

    fn look(&self, before: Stalls) -> Result<Sample> {
        let buckets = self.db.buckets(self.db.default_family())?;
        Ok(Sample {
            t_s: self.recorder.now_s(),
            ops: self.progress.iter().map(Progress::get).sum(),
            l0_files: buckets.iter().map(|bucket| bucket.l0_files).collect(),
            stall_s: Stalls::of(self.db).since(before),
            sent_bytes: self
                .opened
                .and_then(Opened::network)
                .map(|stats| network::sent_bytes(&stats))
                .unwrap_or_default(),
            moved: self.opened.and_then(Opened::moved),
        })
    }
}

impl Series {
    /// Window of the first benchmark of that name.
    pub fn window(&self, name: &str) -> Option<&Window> {
        self.benchmarks.iter().find(|window| window.name == name)
    }

    /// Samples within `window`.
    pub fn during(&self, window: &Window) -> impl Iterator<Item = &Sample> {
        let (from, to) = (window.start_s, window.end_s);
        self.samples.iter().filter(move |sample| (from..=to).contains(&sample.t_s))
    }

    /// Number of times in `window` that writers were stopped for `seconds_min` or longer.
    pub fn stops(&self, window: &Window, seconds_min: f64) -> u64 {
        let (mut stopped_s, mut stops) = (None, 0);
        let end = Told { t_s: window.end_s, text: String::new() };
        let states = self.stall_states.iter().filter(|state| state.t_s < window.end_s);
        for state in states.chain([&end]) {
            let is_stop = state.text.contains("Stop");
            match stopped_s {
                None if is_stop => stopped_s = Some(state.t_s.max(window.start_s)),
                Some(from_s) if !is_stop => {
                    stops += u64::from(state.t_s - from_s >= seconds_min);
                    stopped_s = None;
                }
                _ => {}
            }
        }
        stops
    }

    /// Seconds of background threads between `from_s` and `to_s`.
    fn busy_s(&self, from_s: f64, to_s: f64) -> f64 {
        let of = |job: &Job| {
            let busy = job.threads_s.iter().map(|seconds| {
                let end = (job.start_s + seconds).min(job.end_s).min(to_s);
                (end - job.start_s.max(from_s)).max(0.0)
            });
            busy.sum::<f64>()
        };
        // `sum` of no values would be -0.0.
        self.jobs.iter().map(of).fold(0.0, |all, busy| all + busy)
    }

    /// Background threads busy on average between `from_s` and `to_s`.
    pub fn threads_busy(&self, from_s: f64, to_s: f64) -> f64 {
        self.busy_s(from_s, to_s) / (to_s - from_s)
    }

    /// Mean number of busy background threads in each of `parts` equal parts of `window`, as
    /// (seconds since its start, threads).
    pub fn threads_busy_over(&self, window: &Window, parts: u32) -> Vec<(f64, f64)> {
        let each = (window.end_s - window.start_s) / f64::from(parts);
        let part = |at: u32| {
            let from = window.start_s + each * f64::from(at);
            (each * f64::from(at), self.threads_busy(from, from + each))
        };
        (0..parts).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(start_s: f64, end_s: f64, threads_s: &[f64]) -> Job {
        Job {
            from: Some(0),
            to: 1,
            bucket: Some(0),
            start_s,
            end_s,
            threads_s: threads_s.to_vec(),
            bytes_read: 1,
            bytes_written: 1,
        }
    }

    #[test]
    fn busy_threads_follow_from_the_jobs() {
        // Three jobs: one of one thread over all ten seconds, one of three threads with a
        // straggler, and one that began before.
        let jobs =
            vec![job(0.0, 10.0, &[10.0]), job(2.0, 6.0, &[1.0, 1.0, 4.0]), job(-4.0, 1.0, &[5.0])];
        let series = Series { jobs, ..Series::default() };
        let window = Window { name: "fillrandom".to_owned(), start_s: 0.0, end_s: 10.0 };
        let busy: Vec<f64> =
            series.threads_busy_over(&window, 10).into_iter().map(|(_, busy)| busy).collect();
        let wanted = [2.0, 1.0, 4.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0];
        for (second, (busy, wanted)) in busy.iter().zip(wanted).enumerate() {
            assert!((busy - wanted).abs() < 1e-9, "second {second}: {busy}, not {wanted}");
        }
        assert!((series.threads_busy(0.0, 10.0) - 1.7).abs() < 1e-9);
    }

    #[test]
    fn stops_count_from_a_least_length() {
        let states =
            [(1.0, "Stop"), (1.5, "None"), (2.0, "Stop"), (2.0005, "Delay"), (9.0, "Stop")];
        let told = |&(t_s, text): &(f64, &str)| Told { t_s, text: text.to_owned() };
        let series =
            Series { stall_states: states.iter().map(told).collect(), ..Series::default() };
        let window = |end_s| Window { name: "fillrandom".to_owned(), start_s: 0.0, end_s };
        assert_eq!(series.stops(&window(10.0), 0.001), 2);
        assert_eq!(series.stops(&window(8.0), 0.001), 1);
        assert_eq!(series.stops(&window(1.25), 0.1), 1);
        assert_eq!(series.stops(&window(0.5), 0.1), 0);
    }

    #[test]
    fn events_become_the_timeline() {
        let recorder = Recorder::new(Arc::new(SystemClock::new()));
        recorder.on_event(&Event::CompactionInstalled {
            cf: archipelago_base::CfId::DEFAULT,
            from: 0,
            to: 3,
            bucket: Some(2),
            inputs: vec![1, 2],
            outputs: vec![3],
            bytes_read: 20,
            bytes_written: 10,
            duration_ns: 3_000_000_000,
            threads_ns: vec![3_000_000_000, 1_000_000_000],
        });
        recorder.on_event(&Event::StallChanged { state: "stop l0".to_owned() });
        let series = recorder.series();
        let job = &series.jobs[0];
        assert_eq!((job.from, job.to, job.bucket), (Some(0), 3, Some(2)));
        assert!((job.end_s - job.start_s - 3.0).abs() < 1e-6);
        assert_eq!(job.threads_s, [3.0, 1.0]);
        assert_eq!(series.stall_states[0].text, "stop l0");
    }

    #[test]
    fn a_file_of_samples_reads_back() {
        let series = Series {
            benchmarks: vec![Window { name: "mixgraph1".to_owned(), start_s: 0.5, end_s: 2.0 }],
            samples: vec![Sample {
                t_s: 1.0,
                ops: 7,
                l0_files: vec![3, 0],
                stall_s: Stalls { l0: 0.25, ..Stalls::default() },
                sent_bytes: vec![1, 2, 3, 4, 5],
                moved: Some(MovedBytes { read: 1, ..MovedBytes::default() }),
            }],
            jobs: vec![job(0.0, 1.0, &[1.0])],
            ..Series::default()
        };
        let text = serde_json::to_string(&series).expect("JSON");
        let read: Series = serde_json::from_str(&text).expect("what was written");
        assert_eq!(read, series);
        let window = read.window("mixgraph1").expect("the benchmark");
        assert_eq!(read.during(window).count(), 1);
    }
}
