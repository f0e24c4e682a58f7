//! One run: the processes of its steps, their figures, and the space of the database over time.
//!
//! The space is sampled from outside, by listing the directory, so that both sides are measured in
//! the same way and garbage of every kind counts.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};

use super::plan::{self, Case, Mode, Part, Step, StepKind};
use crate::compare::parse::ResultLine;
use crate::compare::run::{self, EntrySize, Onlooker, Program, Side, SideRun};
use crate::counted::Counting;
use crate::results::{self, ResultEntry, ResultFile};
use crate::rounds::in_new_dir;
use archipelago_bench::harness::store::{FileSystem as _, LocalFs, Result};

const SAMPLE_EVERY: Duration = Duration::from_millis(100);
const MIB: f64 = 1_048_576.0;

/// Files of the database at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SpaceSample {
    /// Seconds since the start of the process.
    pub(super) t_s: f64,
    /// Bytes of the tables of the levels.
    pub(super) table_bytes: u64,
    /// Bytes of value files or blob files.
    pub(super) value_bytes: u64,
    /// Bytes of the log.
    pub(super) log_bytes: u64,
    /// Whether the updates had not ended.
    pub(super) is_updating: bool,
}

impl SpaceSample {
    /// Bytes of tables and value files.
    pub(super) fn data_bytes(&self) -> u64 {
        self.table_bytes + self.value_bytes
    }
}

/// A process and its figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StepRun {
    pub(super) kind: StepKind,
    pub(super) side: SideRun,
    /// Entries of Archipelago's result file.
    pub(super) results: Vec<ResultEntry>,
    pub(super) space: Vec<SpaceSample>,
}

/// A run with its case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) part: Part,
    pub(super) mode: Mode,
    pub(super) round: u64,
    pub(super) steps: Vec<StepRun>,
    /// Instructions per operation, by benchmark.
    pub(super) instructions: BTreeMap<String, f64>,
}

impl StepRun {
    /// The last result line of `benchmark`. An earlier one warmed the cache.
    fn line(&self, benchmark: &str) -> Option<&ResultLine> {
        self.side.lines.iter().rfind(|line| line.name == benchmark)
    }

    /// Archipelago's result of `benchmark`.
    pub(super) fn result(&self, benchmark: &str) -> Option<&ResultEntry> {
        self.results.iter().rfind(|result| result.name == benchmark)
    }
}

impl Run {
    /// The step of that kind.
    pub(super) fn step(&self, kind: StepKind) -> Option<&StepRun> {
        self.steps.iter().find(|step| step.kind == kind)
    }

    /// Operations per second of a benchmark.
    pub(super) fn rate(&self, kind: StepKind, benchmark: &str) -> Option<f64> {
        // The rate of the line is a whole number, which is too coarse for slow operations.
        let line = self.step(kind)?.line(benchmark)?;
        Some(if line.seconds > 0.0 { line.ops as f64 / line.seconds } else { line.ops_per_s })
    }

    /// Operations per second of a write benchmark, with the time until compaction and garbage
    /// collection had settled.
    pub(super) fn settled_rate(&self, kind: StepKind, benchmark: &str) -> Option<f64> {
        let step = self.step(kind)?;
        let line = step.line(benchmark)?;
        let seconds = line.seconds + step.side.settle_seconds?;
        Some(line.ops as f64 / seconds.max(1e-9))
    }

    /// Seconds from the end of the writes until compaction and garbage collection had settled.
    pub(super) fn settle_s(&self, kind: StepKind) -> Option<f64> {
        self.step(kind)?.side.settle_seconds
    }

    /// Largest memory of a step's process, in MiB.
    pub(super) fn peak_mib(&self, kind: StepKind) -> Option<f64> {
        self.step(kind)?.side.peak_rss_bytes.map(|bytes| bytes as f64 / MIB)
    }

    /// Bytes of log, flush, compaction and garbage collection per user byte, until the store had
    /// settled.
    pub(super) fn write_amplification(&self, kind: StepKind, benchmark: &str) -> Option<f64> {
        self.step(kind)?.result(benchmark)?.settled.as_ref()?.write_amplification
    }

    /// Bytes of keys and values that are live, counted by a scan of everything after the updates.
    /// The updates do not change them, because each keeps its length and no record is new.
    pub(super) fn live_bytes(&self) -> Option<u64> {
        let counted = self.step(StepKind::Count)?.line(Step::COUNTED)?;
        Some(counted.ops * plan::RECORD_BYTES).filter(|bytes| *bytes > 0)
    }

    /// Bytes of tables and value files over the live bytes, at each sample during the updates.
    fn amplifications(&self) -> Vec<f64> {
        let samples = self.step(StepKind::Update).map_or(&[][..], |step| &step.space);
        let Some(live) = self.live_bytes() else { return Vec::new() };
        let updating = samples.iter().filter(|sample| sample.is_updating);
        updating.map(|sample| sample.data_bytes() as f64 / live as f64).collect()
    }

    /// Largest space amplification during the updates.
    pub(super) fn space_max(&self) -> Option<f64> {
        self.amplifications().into_iter().reduce(f64::max)
    }

    /// Largest size of the log during the updates, in MiB.
    pub(super) fn log_max_mib(&self) -> Option<f64> {
        let samples = &self.step(StepKind::Update)?.space;
        samples.iter().map(|sample| sample.log_bytes as f64 / MIB).reduce(f64::max)
    }

    /// Garbage collection during the updates. `None` if no file was collected.
    pub(super) fn collection(&self) -> Option<Collection> {
        Collection::of(self.step(StepKind::Update)?.result(Step::SAMPLED)?)
    }

    /// Mean of the space amplifications during the updates.
    pub(super) fn space_mean(&self) -> Option<f64> {
        let all = self.amplifications();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }
}

/// Figures of garbage collection during the updates, until the store had settled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Collection {
    pub(crate) jobs: f64,
    /// Number of value files that were collected.
    pub(crate) files: f64,
    /// Bytes of the value files that were collected.
    pub(crate) file_bytes: f64,
    pub(crate) records: f64,
    pub(crate) valid_records: f64,
    /// Share of the files' bytes that was valid.
    pub(crate) valid_share: f64,
    /// Bytes that were read of value files, over the bytes of the collected ones.
    pub(crate) read_share: f64,
    /// Calls that read one range or several, of any file.
    pub(crate) read_calls: f64,
    /// Those of them that read tables, to look keys up.
    pub(crate) lookup_calls: f64,
    /// Bytes that were read of any file.
    pub(crate) read_bytes: f64,
    /// Seconds of reading keys, looking up and reading values.
    pub(crate) seconds: f64,
    /// Seconds of reading keys alone.
    pub(crate) key_s: f64,
    /// Seconds of looking up alone.
    pub(crate) lookup_s: f64,
}

impl Collection {
    /// Garbage collection of a benchmark that updates. `None` if no file was collected.
    pub(crate) fn of(result: &ResultEntry) -> Option<Self> {
        let gc = result.gc.filter(|gc| gc.records > 0 && gc.file_bytes > 0)?;
        let reads = || result.io.iter().filter(|entry| entry.purpose == "gc");
        let of = |class: &'static str| reads().filter(move |entry| entry.class == class);
        let file_bytes = gc.file_bytes as f64;
        Some(Self {
            jobs: gc.jobs as f64,
            files: gc.files as f64,
            file_bytes,
            records: gc.records as f64,
            valid_records: gc.valid_records as f64,
            valid_share: gc.valid_bytes as f64 / file_bytes,
            read_share: of("value-sst").map(|entry| entry.read_bytes as f64).sum::<f64>()
                / file_bytes,
            read_calls: reads().map(|entry| entry.read_calls as f64).sum(),
            lookup_calls: of("sst").map(|entry| entry.read_calls as f64).sum(),
            read_bytes: reads().map(|entry| entry.read_bytes as f64).sum(),
            seconds: gc.read_s(),
            key_s: gc.key_read_s,
            lookup_s: gc.lookup_s,
        })
    }

    /// Bytes of the valid values.
    pub(crate) fn valid_bytes(&self) -> f64 {
        self.valid_share * self.file_bytes
    }

    /// Number of read calls per record of the collected files.
    pub(crate) fn calls_per_record(&self) -> Option<f64> {
        Some(self.read_calls / self.records)
    }
}

/// Programs and directories of a run.
pub(super) struct Stage<'a> {
    pub(super) case: Case<'a>,
    pub(super) archipelago: &'a Path,
    /// Description of the network volume.
    pub(super) device: &'a Path,
    /// Directory of the run, which must not exist yet.
    pub(super) dir: PathBuf,
    /// Function that gets every result line.
    pub(super) said: &'a (dyn Fn(&str) + Sync),
}

impl Stage<'_> {
    /// Runs all steps, and removes the directory.
    pub(super) fn run(&self) -> Result<Run> {
        in_new_dir(&self.dir, || self.run_there())
    }

    fn run_there(&self) -> Result<Run> {
        let Case { part, mode, round, .. } = self.case;
        let mut run = Run { part, mode, round, steps: Vec::new(), instructions: BTreeMap::new() };
        if part == Part::Off {
            run.instructions = self.count()?;
            return Ok(run);
        }
        for (at, step) in plan::steps(part).into_iter().enumerate() {
            run.steps.push(self.step(at, step)?);
        }
        Ok(run)
    }

    fn db(&self) -> PathBuf {
        self.dir.join("db")
    }

    fn step(&self, at: usize, step: Step) -> Result<StepRun> {
        let (fs, db, json) = (LocalFs::new(), self.db(), self.dir.join("results.json"));
        if step.is_fresh && fs.exists(&db)? {
            fs.remove_dir_all(&db)?;
        }
        let mut args = self.case.words(at, step, &db);
        let is_peer = self.case.mode == Mode::BlobDb;
        let (side, path) = match is_peer {
            true => (Side::RocksDb, self.case.flags.db_bench.clone()),
            false => (Side::Archipelago, self.archipelago.to_owned()),
        };
        if !is_peer {
            args.insert(0, "bench".to_owned());
            args.push(format!("--json={}", json.display()));
            args.push("--io_statistics".to_owned());
            if step.is_emulated {
                args.push(format!("--device={}", self.device.display()));
                args.push(format!("--device_scale={}", self.case.flags.device_scale));
            }
        }
        let (side, space) = self.watched(side, &Program { path, args }, step)?;
        let results = match is_peer {
            true => Vec::new(),
            false => results::read::<ResultFile>(&json)?.results,
        };
        Ok(StepRun { kind: step.kind, side, results, space })
    }

    /// Runs a process and samples the space of its database.
    fn watched(
        &self,
        side: Side,
        program: &Program,
        step: Step,
    ) -> Result<(SideRun, Vec<SpaceSample>)> {
        let (is_updating, has_ended) = (AtomicBool::new(true), AtomicBool::new(false));
        let stop = AtomicBool::new(false);
        let said = |line: &str| {
            if line.starts_with(Step::SAMPLED) {
                is_updating.store(false, Ordering::Release);
            }
            (self.said)(line);
        };
        let db = self.db();
        let size = EntrySize { key_bytes: plan::KEY_BYTES, value_bytes: plan::VALUE_BYTES };
        let (run, samples) = std::thread::scope(|scope| {
            let sampler =
                step.is_sampled().then(|| scope.spawn(|| sample(&db, &is_updating, &has_ended)));
            let run = run::run(side, program, &db, size, Onlooker { said: &said, stop: &stop });
            has_ended.store(true, Ordering::Release);
            let samples = sampler.and_then(|sampler| sampler.join().ok()).unwrap_or_default();
            (run, samples)
        });
        Ok((run?, samples))
    }

    /// Instructions per operation of the program of the mode.
    fn count(&self) -> Result<BTreeMap<String, f64>> {
        let program = match (self.case.mode, &self.case.flags.before) {
            (Mode::Earlier, Some(before)) => before.as_path(),
            _ => self.archipelago,
        };
        let more: &[&str] = match self.case.mode {
            Mode::Inline => &["--value_separation_bytes=0"],
            _ => &[],
        };
        Counting { program, dir: &self.dir, seed: self.case.flags.seed, more }.per_operation()
    }
}

/// Samples the files in `dir` until `has_ended`.
fn sample(dir: &Path, is_updating: &AtomicBool, has_ended: &AtomicBool) -> Vec<SpaceSample> {
    let clock = SystemClock::new();
    let started_ns = clock.now_ns();
    let mut samples = Vec::new();
    while !has_ended.load(Ordering::Acquire) {
        let is_updating = is_updating.load(Ordering::Acquire);
        let t_s = (clock.now_ns() - started_ns) as f64 / 1e9;
        samples.push(SpaceSample { t_s, is_updating, ..files_of(dir) });
        clock.sleep(SAMPLE_EVERY);
    }
    samples
}

/// Bytes of the files in `dir`. A file that is removed meanwhile counts as removed.
pub(super) fn files_of(dir: &Path) -> SpaceSample {
    let fs = LocalFs::new();
    let mut sample =
        SpaceSample { t_s: 0.0, table_bytes: 0, value_bytes: 0, log_bytes: 0, is_updating: false };
    for entry in fs.list(dir).unwrap_or_default() {
        let path = dir.join(&entry.name);
        let bytes = fs.len(&path).unwrap_or(0);
        match path.extension().and_then(OsStr::to_str) {
            Some("sst") => sample.table_bytes += bytes,
            Some("vsst" | "blob") => sample.value_bytes += bytes,
            Some("log") => sample.log_bytes += bytes,
            _ => {}
        }
    }
    sample
}
