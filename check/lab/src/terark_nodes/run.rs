//! One run: a cluster of its own, the processes of its steps, and their figures.
//!
//! The space of the storage nodes is sampled from outside while throttled updates run, so that
//! garbage and copies of every kind count.

use std::path::{Path, PathBuf};
use std::time::Duration;

use archipelago_bench::harness::samples::Series;
use archipelago_bench::harness::store::Result;
use archipelago_store::VolumeOptions;
use archipelago_store::nodes::repairs::RepairTerms;
use serde::{Deserialize, Serialize};

use super::bounds::{RepairRate, log_connection_bytes};
use super::cluster::{Cluster, ClusterSpec};
use super::embedded::{Embedded, EmbeddedFigures};
use super::events::{self, RepairFigures, TakeOverFigures};
use super::growth::{self, GrowthFigures};
use super::link::{Card, Link};
use super::modes::{Mode, Workload};
use super::plan::{Cell, Course, Step};
use super::words::{Case, DatabasePlace, log_full_bytes};
use crate::machine::BusyTime;
use crate::program::run_to_end;
use crate::results::{self, ResultEntry, ResultFile};
use crate::rounds::in_new_dir;
use crate::sampling::sample_during;

const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Time after the reads of a degraded cluster after which its lost node counts as lost.
const LOST_AFTER_READS: Duration = Duration::from_secs(5);
/// Silence after which a node counts as lost in other runs, which is longer than they take.
const LOST_NEVER: Duration = Duration::from_secs(24 * 3600);
/// Points of a timeline that a run keeps.
const TIMELINE_POINTS: usize = 120;

/// Space of the storage nodes at one moment of throttled updates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SpaceSample {
    /// Seconds since the start of the process.
    pub(super) t_s: f64,
    /// Bytes of tables and value files, with copies and parity.
    pub(super) stored_bytes: u64,
    /// Bytes of tables and value files, without copies and parity.
    pub(super) logical_bytes: u64,
    pub(super) log_bytes: u64,
}

impl SpaceSample {
    fn take(t_s: f64, cluster: &Cluster) -> Result<Self> {
        let state = cluster.state()?;
        let (stored_bytes, logical_bytes) = (state.stored_bytes(), state.logical_bytes());
        Ok(Self { t_s, stored_bytes, logical_bytes, log_bytes: state.log_bytes })
    }
}

/// Bytes that the client's card has sent since the benchmark began, by class of the call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SentSample {
    pub(super) t_s: f64,
    pub(super) bytes: Vec<u64>,
}

/// A step and its figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StepRun {
    pub(super) step: Step,
    /// Results of the client's process.
    pub(super) results: Vec<ResultEntry>,
    /// Processor time of all storage nodes during the step.
    pub(super) nodes_cpu_s: Option<f64>,
    /// Share of the machine's processor time that was used during the step.
    pub(super) busy_share: Option<f64>,
    pub(super) space: Vec<SpaceSample>,
    pub(super) sent: Vec<SentSample>,
    /// Measurement of a step that is no single process of the client.
    pub(super) event: Option<EventFigures>,
}

/// Figures of a step that is no single process of the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum EventFigures {
    Repair(RepairFigures),
    TakeOver(TakeOverFigures),
    Growth(Vec<GrowthFigures>),
    Embedded(EmbeddedFigures),
}

/// A run with its cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) cell: Cell,
    pub(super) round: u64,
    pub(super) steps: Vec<StepRun>,
}

impl StepRun {
    pub(super) fn new(step: Step) -> Self {
        Self {
            step,
            results: Vec::new(),
            nodes_cpu_s: None,
            busy_share: None,
            space: Vec::new(),
            sent: Vec::new(),
            event: None,
        }
    }

    /// The last result of `benchmark`. An earlier one warmed the cache.
    pub(super) fn result(&self, benchmark: &str) -> Option<&ResultEntry> {
        self.results.iter().rfind(|result| result.name == benchmark)
    }

    /// The result of the benchmark that the step measures.
    pub(super) fn main(&self, workload: Workload) -> Option<&ResultEntry> {
        let name = workload.name();
        let phase = match self.step {
            Step::Load | Step::Prepare => "load",
            Step::Update | Step::Throttled | Step::ColdUpdate => "update",
            Step::Read | Step::DegradedRead | Step::KeyByKey | Step::Latency | Step::Foreground => {
                "read"
            }
            Step::Scan => "scan",
            Step::LoopFill | Step::SingleGroups => return self.result("fillrandom"),
            Step::LoopRead => return self.result("readrandom"),
            Step::Ycsb
            | Step::Repair
            | Step::TakeOver
            | Step::Owner
            | Step::Growth
            | Step::Embedded => return None,
        };
        self.result(&format!("{name}{phase}"))
    }
}

impl Run {
    pub(super) fn step(&self, step: Step) -> Option<&StepRun> {
        self.steps.iter().find(|found| found.step == step)
    }

    /// The result of the benchmark that a step measures.
    pub(super) fn main(&self, step: Step) -> Option<&ResultEntry> {
        self.step(step)?.main(self.cell.workload)
    }

    /// Operations per second of a step.
    pub(super) fn rate(&self, step: Step) -> Option<f64> {
        rate_of(self.main(step)?)
    }

    /// Operations per second of a step that writes, with the time until compaction and garbage
    /// collection had settled.
    pub(super) fn settled_rate(&self, step: Step) -> Option<f64> {
        let result = self.main(step)?;
        Some(result.ops as f64 / settled_seconds(result)?.max(1e-9))
    }

    /// Operations per second of a further benchmark of a step.
    pub(super) fn rate_of(&self, step: Step, benchmark: &str) -> Option<f64> {
        rate_of(self.step(step)?.result(benchmark)?)
    }

    /// Mean latency of the operations of a step, in seconds.
    pub(super) fn latency_s(&self, step: Step, kind: &str) -> Option<f64> {
        Some(self.main(step)?.latency.get(kind)?.mean_ns / 1e9)
    }

    /// Rewriting factor W of a step that writes, until the store had settled. Log and flush are not
    /// part of it.
    pub(super) fn rewrites(&self, step: Step) -> Option<f64> {
        let amplification = self.main(step)?.settled.as_ref()?.write_amplification?;
        Some(crate::terark_engine::bounds::rewrites_of(amplification))
    }

    /// Bytes that the card sent until a step that writes had settled, for all calls or those of one
    /// class.
    pub(super) fn sent_bytes(&self, step: Step, class: Option<&str>) -> Option<f64> {
        let entries = &self.main(step)?.settled.as_ref()?.network;
        let wanted = entries.iter().filter(|entry| class.is_none_or(|name| entry.class == name));
        (!entries.is_empty()).then(|| wanted.map(|entry| entry.sent_bytes as f64).sum())
    }

    /// Mean bytes of a message of the log.
    pub(super) fn log_message_bytes(&self, step: Step) -> Option<f64> {
        let log = self.main(step)?.network.iter().find(|entry| entry.class == "log")?;
        (log.sent_messages > 0).then(|| log.sent_bytes as f64 / log.sent_messages as f64)
    }

    /// Bytes of keys and values that a step wrote.
    pub(super) fn user_bytes(&self, step: Step, mean_bytes: f64) -> Option<f64> {
        Some(self.main(step)?.ops as f64 * mean_bytes)
    }

    /// Share of the rate of the card that a step that writes used until it had settled, or until it
    /// ended if it did not wait for that.
    pub(super) fn card_share(&self, step: Step, scale: f64) -> Option<f64> {
        let link = Link::new(self.cell.card, scale)?;
        let result = self.main(step)?;
        let (entries, seconds) = match (&result.settled, settled_seconds(result)) {
            (Some(settled), Some(seconds)) => (&settled.network, seconds),
            _ => (&result.network, result.seconds),
        };
        let bytes: u64 = entries.iter().map(|entry| entry.sent_bytes).sum();
        Some(bytes as f64 / (seconds.max(1e-9) * link.card_bytes_per_s))
    }

    /// Share of the rate of a connection that those to the nodes of the log used during a step, by
    /// arithmetic. `None` with adaptive log writing, which spreads the log over more nodes.
    pub(super) fn log_connection_share(&self, step: Step, scale: f64) -> Option<f64> {
        let link = Link::new(self.cell.card, scale)?;
        let result = self.main(step).filter(|_| self.cell.mode.has_serial_log())?;
        let sum = |wants: fn(&str) -> bool| -> f64 {
            let wanted = result.network.iter().filter(|entry| wants(&entry.class));
            wanted.map(|entry| entry.sent_bytes as f64).sum()
        };
        let (log, rest) = (sum(|class| class == "log"), sum(|class| class != "log"));
        let bytes = log_connection_bytes(log, rest, self.cell.course.nodes() as f64);
        Some(bytes / (result.seconds.max(1e-9) * link.stream_bytes_per_s))
    }

    /// Share of the rate of the fullest link that a step used, by arithmetic: of the card, or of
    /// the connections. Adaptive log writing spreads its bytes over those to all nodes.
    pub(super) fn fullest_share(&self, step: Step, scale: f64) -> Option<f64> {
        let link = Link::new(self.cell.card, scale)?;
        let rate = self.sent_rate(step)?;
        let nodes = self.cell.course.nodes() as f64;
        let connection = self.log_connection_share(step, scale);
        let connection = connection.unwrap_or(rate / (nodes * link.stream_bytes_per_s));
        Some((rate / link.card_bytes_per_s).max(connection))
    }

    /// Bytes per second that the card sent during a step.
    pub(super) fn sent_rate(&self, step: Step) -> Option<f64> {
        let result = self.main(step)?;
        let bytes: u64 = result.network.iter().map(|entry| entry.sent_bytes).sum();
        (!result.network.is_empty()).then(|| bytes as f64 / result.seconds.max(1e-9))
    }

    /// Bytes per second that arrived at the card during a step.
    pub(super) fn received_rate(&self, step: Step) -> Option<f64> {
        let result = self.main(step)?;
        let bytes: u64 = result.network.iter().map(|entry| entry.received_bytes).sum();
        (!result.network.is_empty()).then(|| bytes as f64 / result.seconds.max(1e-9))
    }

    /// Bytes that flushes wrote per second, without copies.
    pub(super) fn flush_rate(&self, step: Step) -> Option<f64> {
        let result = self.main(step)?;
        let flushes = result.io.iter().filter(|entry| entry.purpose == "flush");
        let bytes: u64 = flushes.map(|entry| entry.write_bytes).sum();
        Some(bytes as f64 / settled_seconds(result)?.max(1e-9))
    }

    /// Processor seconds of the client and of the storage nodes in a step. That of the client lasts
    /// until the store had settled, if the step writes.
    pub(super) fn cpu_s(&self, step: Step) -> Option<(f64, f64)> {
        let found = self.step(step)?;
        let result = found.main(self.cell.workload)?;
        let settled = result.settled.as_ref().and_then(|settled| settled.cpu_seconds);
        Some((settled.or(result.cpu_seconds)?, found.nodes_cpu_s.unwrap_or(0.0)))
    }

    /// Mean number of cores of client and storage nodes that were busy in a step. The time until
    /// the store had settled counts.
    pub(super) fn cores(&self, step: Step) -> Option<f64> {
        let result = self.main(step)?;
        let (client, nodes) = self.cpu_s(step)?;
        let all = result.seconds + result.settle_seconds.unwrap_or(0.0);
        Some((client + nodes) / all.max(1e-9))
    }

    /// The first figure that `of` takes from the events of the run.
    fn event<T>(&self, of: impl Fn(&EventFigures) -> Option<&T>) -> Option<&T> {
        self.steps.iter().find_map(|step| of(step.event.as_ref()?))
    }

    /// The repair of the run.
    pub(super) fn repair(&self) -> Option<&RepairFigures> {
        self.event(|event| match event {
            EventFigures::Repair(figures) => Some(figures),
            _ => None,
        })
    }

    /// The take-over of the run.
    pub(super) fn take_over(&self) -> Option<&TakeOverFigures> {
        self.event(|event| match event {
            EventFigures::TakeOver(figures) => Some(figures),
            _ => None,
        })
    }

    /// The simulated clusters of the run.
    pub(super) fn growth(&self) -> Option<&Vec<GrowthFigures>> {
        self.event(|event| match event {
            EventFigures::Growth(figures) => Some(figures),
            _ => None,
        })
    }

    /// The embedded database of the run.
    pub(super) fn embedded(&self) -> Option<&EmbeddedFigures> {
        self.event(|event| match event {
            EventFigures::Embedded(figures) => Some(figures),
            _ => None,
        })
    }

    /// Stored bytes of tables and value files at the end of throttled updates.
    pub(super) fn stored_bytes(&self) -> Option<f64> {
        Some(self.step(Step::Throttled)?.space.last()?.stored_bytes as f64)
    }

    /// Largest space amplification during throttled updates, without copies and parity.
    pub(super) fn space_max(&self, live_bytes: u64) -> Option<f64> {
        let samples = self.step(Step::Throttled)?.space.iter();
        samples.map(|sample| sample.logical_bytes as f64 / live_bytes as f64).reduce(f64::max)
    }
}

fn rate_of(result: &ResultEntry) -> Option<f64> {
    (result.seconds > 0.0).then(|| result.ops as f64 / result.seconds)
}

/// Seconds of a benchmark that writes, until the store had settled.
fn settled_seconds(result: &ResultEntry) -> Option<f64> {
    Some(result.seconds + result.settle_seconds?)
}

/// Programs and directories of a run.
pub(super) struct Stage<'a> {
    pub(super) case: Case<'a>,
    /// Program of the client.
    pub(super) archipelago: &'a Path,
    /// Program of the storage nodes.
    pub(super) node_program: &'a Path,
    /// Description of the devices.
    pub(super) device: &'a Path,
    /// Directory of the run, which must not exist yet.
    pub(super) dir: PathBuf,
    /// Function that gets a line about each step.
    pub(super) said: &'a (dyn Fn(&str) + Sync),
}

impl Stage<'_> {
    /// Makes all steps, and removes the directory.
    pub(super) fn run(&self) -> Result<Run> {
        in_new_dir(&self.dir, || self.run_there())
    }

    fn run_there(&self) -> Result<Run> {
        let Case { cell, round, .. } = self.case;
        let cluster = match cell.mode.is_local() {
            true => None,
            false => Some(Cluster::start(&self.cluster())?),
        };
        let mut run = Run { cell, round, steps: Vec::new() };
        for (at, &step) in cell.course.steps().iter().enumerate() {
            run.steps.push(self.step(at, step, cluster.as_ref())?);
        }
        cluster.map_or(Ok(()), Cluster::close)?;
        Ok(run)
    }

    fn cluster(&self) -> ClusterSpec<'_> {
        let Case { flags, cell, .. } = self.case;
        ClusterSpec {
            program: self.node_program,
            dir: &self.dir,
            nodes: cell.course.nodes(),
            device: (cell.card != Card::Absent).then_some(self.device),
            scale: flags.scale,
            lost_after: self.lost_after(),
            repair: repair_terms(cell.card, flags.scale),
        }
    }

    /// Silence after which a node counts as lost. In a repair, clients read before that.
    fn lost_after(&self) -> Duration {
        match self.case.cell.course {
            Course::Repair => {
                Duration::from_secs(self.case.flags.timed_seconds()) + LOST_AFTER_READS
            }
            _ => LOST_NEVER,
        }
    }

    /// Makes a step, and measures the processor time of machine and nodes around it.
    fn step(&self, at: usize, step: Step, cluster: Option<&Cluster>) -> Result<StepRun> {
        if step == Step::DegradedRead {
            cluster.map_or(Ok(()), Cluster::kill_one)?;
        }
        let state = || cluster.map(Cluster::state).transpose();
        let (busy, before) = (BusyTime::now(), state()?);
        let mut run = match (step, cluster) {
            (Step::Repair, Some(cluster)) => self.repair(at, cluster)?,
            (Step::TakeOver, Some(cluster)) => self.take_over(at, cluster)?,
            (Step::Growth, _) => with_event(step, EventFigures::Growth(growth::measure()?)),
            (Step::Embedded, _) => self.embedded()?,
            _ => self.process(at, step, cluster)?,
        };
        run.busy_share = busy.zip(BusyTime::now()).and_then(|(from, to)| to.share_since(&from));
        // A node that was killed took its counter with it.
        if step != Step::Repair {
            let both = state()?.zip(before);
            run.nodes_cpu_s = both.map(|(after, before)| after.cpu_s - before.cpu_s);
        }
        for result in &run.results {
            let (ops, seconds) = (result.ops, result.seconds);
            (self.said)(&format!("{}: {ops} operations in {seconds:.1} s", result.name));
        }
        Ok(run)
    }

    /// Runs the client's process of a step.
    fn process(&self, at: usize, step: Step, cluster: Option<&Cluster>) -> Result<StepRun> {
        let json = self.dir.join("results.json");
        let series = self.dir.join("series.json");
        let mut words = self.words(at, step, cluster);
        words.push(format!("--json={}", json.display()));
        let has_series = self.has_series(step);
        if has_series {
            words.push(format!("--samples={}", series.display()));
        }
        let mut run = StepRun::new(step);
        let run_client = || run_to_end(self.archipelago, &words);
        match cluster.filter(|_| step == Step::Throttled) {
            Some(cluster) => {
                let sample = |t_s: f64| SpaceSample::take(t_s, cluster);
                run.space = sample_during(SAMPLE_EVERY, sample, run_client)?;
            }
            None => run_client()?,
        }
        run.results = results::read::<ResultFile>(&json)?.results;
        if has_series {
            run.sent = timeline(&results::read::<Series>(&series)?);
        }
        Ok(run)
    }

    fn words(&self, at: usize, step: Step, cluster: Option<&Cluster>) -> Vec<String> {
        let db = self.dir.join("db");
        let has_device = self.case.cell.card != Card::Absent;
        match cluster.map(Cluster::address) {
            Some(managers) => self.case.words(at, step, DatabasePlace::Store(&managers)),
            None => {
                let device = has_device.then_some(self.device);
                self.case.words(at, step, DatabasePlace::Local { dir: &db, device })
            }
        }
    }

    /// Whether the bytes on the card are sampled over time: for the chart like Figure 12.
    fn has_series(&self, step: Step) -> bool {
        let Cell { workload, mode, card, .. } = self.case.cell;
        let is_shown = matches!(mode, Mode::InlineR3 | Mode::SeparatedR3 | Mode::AllOn);
        let is_full = card == Card::Full && workload == Workload::Mixed8k;
        step == Step::Load && is_shown && is_full && self.case.round == 0
    }

    fn repair(&self, at: usize, cluster: &Cluster) -> Result<StepRun> {
        let Case { flags, cell, .. } = self.case;
        let terms = repair_terms(cell.card, flags.scale);
        let rate = RepairRate {
            survivors: cell.course.nodes() - 1,
            node_bytes_per_s: terms.node_bytes_per_s as f64,
            cluster_bytes_per_s: terms.cluster_bytes_per_s as f64,
        };
        let event = events::Repair {
            rate,
            lost_after: self.lost_after(),
            limit: Duration::from_secs(flags.repair_seconds),
            read_seconds: flags.timed_seconds(),
            reads: &|seconds| self.foreground(at, seconds, cluster),
        };
        let figures = events::repair(cluster, &event)?;
        Ok(with_event(Step::Repair, EventFigures::Repair(figures)))
    }

    /// P99 in seconds of a process that reads for `seconds` seconds.
    fn foreground(&self, at: usize, seconds: u64, cluster: &Cluster) -> Result<Option<f64>> {
        let json = self.dir.join("foreground.json");
        let managers = cluster.address();
        let place = DatabasePlace::Store(&managers);
        let mut words = self.case.foreground_words(at, seconds, place);
        words.push(format!("--json={}", json.display()));
        run_to_end(self.archipelago, &words)?;
        let results = results::read::<ResultFile>(&json)?.results;
        let step = StepRun { results, ..StepRun::new(Step::Foreground) };
        let latency = step.main(self.case.cell.workload).and_then(|it| it.latency.get("read"));
        Ok(latency.map(|latency| latency.p99_ns as f64 / 1e9))
    }

    fn take_over(&self, at: usize, cluster: &Cluster) -> Result<StepRun> {
        let owner = self.words(at, Step::Owner, Some(cluster));
        let open = self.words(at, Step::TakeOver, Some(cluster));
        let figures = events::take_over(
            cluster,
            &events::TakeOver {
                program: self.archipelago,
                owner: &owner,
                open: &open,
                log_full_bytes: log_full_bytes(self.case.flags),
                lease: VolumeOptions::new("").lease,
            },
        )?;
        Ok(with_event(Step::TakeOver, EventFigures::TakeOver(figures)))
    }

    fn embedded(&self) -> Result<StepRun> {
        let Case { flags, round, .. } = self.case;
        let figures = Embedded {
            program: self.archipelago,
            dir: &self.dir,
            data_bytes: flags.data_bytes(),
            seed: flags.seed + round,
            is_first: round == 0,
        }
        .measure()?;
        Ok(with_event(Step::Embedded, EventFigures::Embedded(figures)))
    }
}

/// A step with the figures of an event.
fn with_event(step: Step, event: EventFigures) -> StepRun {
    StepRun { event: Some(event), ..StepRun::new(step) }
}

/// Rates of repairs: the defaults of the product, stretched as the devices are.
pub(super) fn repair_terms(card: Card, scale: f64) -> RepairTerms {
    let terms = RepairTerms::default();
    let stretched = |bytes_per_s: u64| match card {
        Card::Absent => bytes_per_s,
        _ => (bytes_per_s as f64 / scale).max(1.0) as u64,
    };
    RepairTerms {
        node_bytes_per_s: stretched(terms.node_bytes_per_s),
        cluster_bytes_per_s: stretched(terms.cluster_bytes_per_s),
        ..terms
    }
}

/// Some points of the first benchmark's timeline.
fn timeline(series: &Series) -> Vec<SentSample> {
    let Some(window) = series.benchmarks.first() else { return Vec::new() };
    let samples: Vec<_> = series.during(window).collect();
    let step = samples.len().div_ceil(TIMELINE_POINTS).max(1);
    let first = samples.first().map_or(&[][..], |sample| &sample.sent_bytes);
    let points = samples.iter().step_by(step).map(|sample| SentSample {
        t_s: sample.t_s - window.start_s,
        bytes: sample.sent_bytes.iter().zip(first).map(|(now, then)| now - then).collect(),
    });
    points.collect()
}
