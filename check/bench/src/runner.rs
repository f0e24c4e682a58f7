//! Runs the benchmarks of a list, in order, on one database.
//!
//! The main thread owns the runner. For each benchmark, the runner makes a fresh database if the
//! benchmark needs one, starts the workers together, sums their tallies, prints the result line and
//! adds an entry to the JSON report.
//!
//! Failure: an error of any worker ends the run, because figures of a broken run mean nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::entropy_seed;
use archipelago_fabric::paced::CardStats;

use crate::harness::flags::Flags;
use crate::harness::gc::{FreedBytes, GcFigures};
use crate::harness::io::{self, IoEntry};
use crate::harness::json::{self, Outcome, Settled};
use crate::harness::network::{self, NetworkEntry};
use crate::harness::process::{self, own_usage};
use crate::harness::progress::{IntervalReport, Watch};
use crate::harness::report::{header, histograms, result_line, say};
use crate::harness::samples::{Recorder, Sample, Sampler, Stalls};
use crate::harness::steps::StepFigures;
use crate::harness::store::{
    self, Db, Error, FileSystem, IoStats, LastJob, Listeners, LocalFs, MovedBytes, Opened, Result,
    Ticker,
};
use crate::harness::tally::{Progress, Total};
use crate::harness::tiers::Tiers;
use crate::pace::{Delays, Rate};
use crate::values::{ValuePool, ValueSizes};
use crate::workloads::{self, Bench, Run, Spec, Worker};

/// The moments before and after a benchmark.
#[derive(Clone, Copy, Debug)]
struct WrittenBetween {
    before: Written,
    after: Written,
}

/// Bytes that the database and the process had written at some moment.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    user_bytes: u64,
    store_bytes: u64,
    process_bytes: Option<u64>,
    cpu_seconds: Option<f64>,
    stalls: Stalls,
    io: Option<IoStats>,
    network: Option<CardStats>,
    moved: Option<MovedBytes>,
    gc: GcFigures,
}

/// The last write benchmark, until its debt is compacted.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    /// Index of the benchmark among the results.
    result: usize,
    before: Written,
    ended_ns: u64,
}

/// One run of the benchmarks that the flags name.
pub(crate) struct Runner {
    flags: Flags,
    dir: PathBuf,
    clock: Arc<SystemClock>,
    last_job: Arc<LastJob>,
    freed: Arc<FreedBytes>,
    /// Recorder of samples, with `--samples`.
    recorder: Option<Arc<Recorder>>,
    pool: ValuePool,
    opened: Option<Opened>,
    /// Number of YCSB records that exist.
    records: AtomicU64,
    /// Seed of the next worker. Each worker has its own.
    seed: u64,
    interval_report: Option<IntervalReport>,
    unsettled: Option<Unsettled>,
    results: Vec<Outcome>,
}

impl Runner {
    /// A run of `flags`; nothing is opened yet.
    pub(crate) fn new(flags: Flags) -> Result<Self> {
        let clock = Arc::new(SystemClock::new());
        let seconds = flags.output.report_interval_seconds;
        let interval_report = match seconds {
            0 => None,
            _ => Some(IntervalReport::create(&flags.output.report_file, seconds, &clock)?),
        };
        let seed = match flags.load.seed {
            0 => {
                let seed = entropy_seed() >> 1;
                say(&format!("Set seed to {seed} because --seed was 0"));
                seed
            }
            seed => seed,
        };
        let largest = flags.load.value_size.max(ValueSizes::new(&flags).largest());
        let largest = largest
            .max(workloads::terark::VALUE_BYTES_MAX)
            .max(flags.mixgraph.mix_max_value_size as usize);
        let largest = largest.max(workloads::NUTANIX_VALUE_BYTES_MAX);
        let wants_samples = flags.output.samples.is_some();
        let recorder = wants_samples.then(|| Arc::new(Recorder::new(Arc::clone(&clock))));
        Ok(Self {
            dir: flags.dir(),
            pool: ValuePool::new(flags.load.compression_ratio, largest),
            records: AtomicU64::new(flags.load.num),
            flags,
            last_job: Arc::new(LastJob::new(Arc::clone(&clock))),
            freed: Arc::default(),
            recorder,
            clock,
            opened: None,
            seed,
            interval_report,
            unsettled: None,
            results: Vec::new(),
        })
    }

    /// Runs every benchmark and closes the database. Names are checked before anything is done.
    pub(crate) fn run(mut self) -> Result<Vec<Outcome>> {
        let names = self.flags.benchmarks.iter().map(String::as_str).filter(|n| !n.is_empty());
        let names = names.flat_map(|name| match workloads::terark::phases(name) {
            Some(phases) => phases.to_vec(),
            None => vec![name],
        });
        let specs = names
            .map(|name| {
                workloads::find(name).ok_or_else(|| {
                    Error::invalid(format!(
                        "unknown benchmark '{name}'; there are: {}",
                        workloads::NAMES.join(", ")
                    ))
                })
            })
            .collect::<Result<Vec<Spec>>>()?;
        say(&header(&self.flags));
        for spec in specs {
            self.run_one(&spec)?;
        }
        if self.flags.output.statistics
            && let Some(opened) = &self.opened
        {
            say(&format!("STATISTICS:\n{}", opened.db.stats_text()));
            if let Some(tiers) = &opened.tiers {
                say(&tiers.text());
            }
        }
        if let Some(opened) = self.opened.take() {
            opened.close()?;
        }
        if let (Some(recorder), Some(path)) = (&self.recorder, &self.flags.output.samples) {
            json::write_file(path, &recorder.series())?;
        }
        Ok(self.results)
    }

    /// Whether the database lies in the directory of the flags, or on tiers.
    fn is_local(&self) -> bool {
        self.flags.volume.store.is_none()
    }

    /// Listeners of background work.
    fn listeners(&self) -> Listeners {
        let mut listeners = Listeners::default();
        listeners.add(Arc::clone(&self.last_job) as _);
        listeners.add(Arc::clone(&self.freed) as _);
        if let Some(recorder) = &self.recorder {
            listeners.add(Arc::clone(recorder) as _);
        }
        listeners
    }

    fn run_one(&mut self, spec: &Spec) -> Result<()> {
        if spec.fresh {
            if self.flags.storage.use_existing_db {
                say(&format!("{:<12} : skipped (--use_existing_db is true)", spec.name));
                return Ok(());
            }
            self.unsettled = None;
            if let Some(opened) = self.opened.take() {
                opened.close()?;
            }
            store::destroy(&self.dir, &self.flags)?;
        }
        if self.opened.is_none() {
            if !spec.fresh && !self.flags.storage.use_existing_db && self.results.is_empty() {
                store::destroy(&self.dir, &self.flags)?;
            }
            self.opened = Some(store::open(&self.dir, &self.flags, self.listeners())?);
        }
        match spec.run {
            Run::Action(action) => {
                action(self.db()?)?;
                if spec.settles
                    && let Some(text) = self.note_settled()
                {
                    say(&text);
                }
                Ok(())
            }
            Run::Workers(..) => {
                if spec.ycsb {
                    self.load_ycsb(spec)?;
                }
                self.run_workers(spec)
            }
        }
    }

    /// The open database.
    fn db(&self) -> Result<&Db> {
        let opened = self.opened.as_ref();
        opened.map(|opened| &opened.db).ok_or_else(|| Error::invalid("no database is open"))
    }

    fn tiers(&self) -> Option<&Tiers> {
        self.opened.as_ref()?.tiers.as_ref()
    }

    /// Loads the YCSB records into an empty database.
    fn load_ycsb(&mut self, spec: &Spec) -> Result<()> {
        let db = self.db()?;
        let mut iter = db.iter(db.default_family(), &store::ReadOptions::default())?;
        iter.seek_to_first();
        iter.status()?;
        let empty = !iter.valid();
        drop(iter);
        if empty { self.run_workers(&spec.load()) } else { Ok(()) }
    }

    fn run_workers(&mut self, spec: &Spec) -> Result<()> {
        let Run::Workers(_, message) = spec.run else { return Ok(()) };
        match &self.flags.volume.volume {
            Some(volume) => say(&format!("DB path: [volume {volume}]")),
            None => say(&format!("DB path: [{}]", self.dir.display())),
        }
        let before = self.written()?;
        let devices_before = self.tiers().map(Tiers::moment);
        let total = self.measure(spec)?;
        let devices = devices_before.and_then(|before| {
            let tiers = self.tiers()?;
            Some(tiers.outcome(&before, &tiers.moment()))
        });
        let message = message(&total.counts);
        say(&result_line(spec.name, &total, &message));
        if self.flags.output.histogram {
            let text = histograms(&total);
            say(text.trim_end_matches('\n'));
            say("");
        }
        let after = self.written()?;
        let mut outcome =
            self.outcome(spec, &total, message.trim(), &WrittenBetween { before, after })?;
        outcome.tiers = devices;
        if spec.writes {
            let ended_ns = self.clock.now_ns();
            let result = self.results.len();
            self.unsettled = Some(Unsettled { result, before, ended_ns });
        }
        self.results.push(outcome);
        Ok(())
    }

    /// Runs the workers and sums up the tallies of those that count.
    fn measure(&mut self, spec: &Spec) -> Result<Total> {
        let Run::Workers(body, _) = spec.run else {
            return Err(Error::invalid(format!("{} has no workers", spec.name)));
        };
        let db = self.db()?.clone();
        let threads = self.flags.load.threads;
        let all = threads + u64::from(spec.with_writer);
        let progress: Vec<Progress> = (0..all).map(|_| Progress::default()).collect();
        let load = &self.flags.load;
        let delays = Delays::of(load.open_loop);
        let bench = Bench {
            flags: &self.flags,
            spec,
            db: &db,
            clock: &self.clock,
            pool: &self.pool,
            progress: &progress,
            write_rate: Rate::new(load.benchmark_write_rate_limit, delays),
            read_rate: Rate::new(load.benchmark_read_rate_limit, Delays::Forgotten),
            working: AtomicU64::new(threads),
            records: &self.records,
            seed: self.seed,
        };
        self.seed = self.seed.wrapping_add(all);
        let ops_per_thread = workloads::terark::ops_per_thread(spec.name, &self.flags)
            .unwrap_or_else(|| self.flags.reads_and_writes());
        let timed = load.duration > 0 && spec.name != "fillseq";
        let watch = Watch {
            name: spec.name,
            expected: if timed { 0 } else { threads * ops_per_thread },
            progress: &progress[..threads as usize],
            clock: &self.clock,
            report: self.interval_report.as_mut(),
        };
        let recorder = self.recorder.as_deref();
        let sampler = recorder.map(|recorder| Sampler {
            recorder,
            db: &db,
            opened: self.opened.as_ref(),
            progress: &progress[..threads as usize],
        });
        let start_s = recorder.map_or(0.0, Recorder::now_s);
        let (totals, samples) = run_threads(&bench, all, body, watch, sampler);
        let total = sum(totals)?;
        if let Some(recorder) = recorder {
            recorder.add(spec.name, start_s, total.seconds(), samples?);
        }
        Ok(total)
    }

    fn written(&self) -> Result<Written> {
        let stats = self.db()?.statistics();
        let tickers = [
            Ticker::WalBytes,
            Ticker::FlushBytesWritten,
            Ticker::CompactionBytesWritten,
            Ticker::GcBytesWritten,
        ];
        Ok(Written {
            user_bytes: stats.get(Ticker::UserBytesWritten),
            store_bytes: tickers.into_iter().map(|ticker| stats.get(ticker)).sum(),
            process_bytes: own_usage().bytes_written,
            cpu_seconds: process::cpu_seconds(),
            stalls: Stalls::of(self.db()?),
            gc: GcFigures::of(self.db()?, &self.freed),
            io: self.opened.as_ref().and_then(|opened| Some(opened.io.as_ref()?.snapshot())),
            network: self.opened.as_ref().and_then(Opened::network),
            moved: self.opened.as_ref().and_then(Opened::moved),
        })
    }

    fn offload_counters(&self) -> BTreeMap<String, u64> {
        self.opened.as_ref().map(Opened::offload_counters).unwrap_or_default()
    }

    fn table_bytes(&self) -> Result<u64> {
        let db = self.db()?;
        Ok(db.report(db.default_family())?.levels.iter().map(|level| level.bytes).sum())
    }

    fn outcome(
        &self,
        spec: &Spec,
        total: &Total,
        message: &str,
        written: &WrittenBetween,
    ) -> Result<Outcome> {
        let WrittenBetween { before, after } = *written;
        let looked = (total.counts.looked > 0 && !spec.synced).then_some(total.counts.looked);
        let latency = total
            .histograms()
            .filter_map(|(kind, histogram)| Some((kind.name(), histogram.quantiles()?)))
            .collect();
        Ok(Outcome {
            name: spec.name.to_owned(),
            threads: self.flags.load.threads,
            ops: total.ops(),
            seconds: total.seconds(),
            ops_per_s: total.ops_per_second(),
            micros_per_op: total.micros_per_op(),
            mb_per_s: total.mb_per_second(),
            message: message.trim_matches(['(', ')', ' ']).to_owned(),
            found: looked.map(|_| total.counts.found),
            looked_for: looked,
            latency,
            table_bytes: Some(self.table_bytes()?),
            disk_bytes: self.is_local().then(|| disk_bytes(&self.dir)).flatten(),
            bytes_written: process_delta(before, after),
            peak_rss_bytes: own_usage().peak_rss_bytes,
            write_amplification: amplification(before, after),
            cpu_seconds: cpu_between(before, after),
            stall_seconds: after.stalls.since(before.stalls),
            settle_seconds: None,
            settled: None,
            io: io_between(before, after),
            network: network_between(before, after),
            moved: moved_between(before, after),
            offload: self.offload_counters(),
            steps: StepFigures::of(self.db()?),
            gc: after.gc.since(before.gc),
            tiers: None,
        })
    }

    /// Completes the last write benchmark's entry, now that nothing is left to compact. Returns a
    /// line that says so.
    fn note_settled(&mut self) -> Option<String> {
        let unsettled = self.unsettled.take()?;
        let after = self.written().ok()?;
        let table_bytes = self.table_bytes().ok()?;
        let seconds = self.last_job.ended_ns().saturating_sub(unsettled.ended_ns) as f64 / 1e9;
        let amplification = amplification(unsettled.before, after);
        let offload = self.offload_counters();
        let steps = StepFigures::of(self.db().ok()?);
        let result = &mut self.results[unsettled.result];
        result.io = io_between(unsettled.before, after);
        result.gc = after.gc.since(unsettled.before.gc);
        result.settle_seconds = Some(seconds);
        result.settled = Some(Settled {
            table_bytes: Some(table_bytes),
            bytes_written: process_delta(unsettled.before, after),
            write_amplification: amplification,
            cpu_seconds: cpu_between(unsettled.before, after),
            network: network_between(unsettled.before, after),
            moved: moved_between(unsettled.before, after),
        });
        result.offload = offload;
        result.steps = steps;
        let amplification = match amplification {
            Some(ratio) => format!("; write amplification {ratio:.2}"),
            None => String::new(),
        };
        Some(format!(
            "{:<12} : settled {seconds:.3} seconds after its end; {:.1} MB of tables{amplification}",
            result.name,
            table_bytes as f64 / 1_048_576.0
        ))
    }
}

fn amplification(before: Written, after: Written) -> Option<f64> {
    let user = after.user_bytes.saturating_sub(before.user_bytes);
    let store = after.store_bytes.saturating_sub(before.store_bytes);
    (user > 0).then(|| store as f64 / user as f64)
}

fn io_between(before: Written, after: Written) -> Vec<IoEntry> {
    let stats = after.io.zip(before.io).map(|(after, before)| after.since(&before));
    stats.as_ref().map(io::entries).unwrap_or_default()
}

fn network_between(before: Written, after: Written) -> Vec<NetworkEntry> {
    let stats = before.network.zip(after.network);
    stats.map(|(before, after)| network::entries(&before, &after)).unwrap_or_default()
}

fn moved_between(before: Written, after: Written) -> Option<MovedBytes> {
    Some(after.moved?.since(before.moved?))
}

fn cpu_between(before: Written, after: Written) -> Option<f64> {
    Some(after.cpu_seconds? - before.cpu_seconds?)
}

fn process_delta(before: Written, after: Written) -> Option<u64> {
    Some(after.process_bytes?.saturating_sub(before.process_bytes?))
}

/// Bytes of the files in `dir`. A file that is removed during the call does not count.
fn disk_bytes(dir: &std::path::Path) -> Option<u64> {
    let fs = LocalFs::new();
    let entries = fs.list(dir).ok()?;
    Some(entries.iter().filter_map(|entry| fs.len(&dir.join(&entry.name)).ok()).sum())
}

/// Runs `body` on `all` threads that start together. Returns the tallies of the counted threads,
/// and the samples of `sampler`.
fn run_threads(
    bench: &Bench<'_>,
    all: u64,
    body: workloads::Body,
    watch: Watch<'_>,
    sampler: Option<Sampler<'_>>,
) -> (Vec<Result<Option<Total>>>, Result<Vec<Sample>>) {
    let start = Barrier::new(all as usize);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..all as usize)
            .map(|index| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let mut worker = Worker::start(bench, index);
                    let is_writer = worker.is_writer();
                    let result = body(&mut worker);
                    if !is_writer {
                        bench.working.fetch_sub(1, Ordering::Relaxed);
                    }
                    let total = worker.tally.end();
                    result.map(|()| (!is_writer).then_some(total))
                })
            })
            .collect();
        let ended = &ended;
        if watch.is_wanted() {
            scope.spawn(move || watch.run(ended));
        }
        let looker = sampler.map(|sampler| scope.spawn(move || sampler.run(ended)));
        let results = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
            .collect();
        ended.store(true, Ordering::Release);
        let samples = looker.map_or_else(
            || Ok(Vec::new()),
            |looker| looker.join().unwrap_or_else(|_| Err(panicked())),
        );
        (results, samples)
    })
}

fn panicked() -> Error {
    Error::invalid("a worker thread panicked")
}

fn sum(totals: Vec<Result<Option<Total>>>) -> Result<Total> {
    let mut sum: Option<Total> = None;
    for total in totals {
        match (&mut sum, total?) {
            (_, None) => {}
            (Some(sum), Some(total)) => sum.add(total),
            (empty, total) => *empty = total,
        }
    }
    sum.ok_or_else(|| Error::invalid("no worker was counted"))
}
