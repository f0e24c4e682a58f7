//! The report: ratios next to the paper's numbers and the targets, then the figures that they are
//! computed from.

use serde::Serialize;

use super::plan::{Case, Mode, Setting, Workload};
use super::run::{Figures, Run};
use crate::claim::{Target, median};
use crate::page::{self, Grid, Ratio, RowTarget, Section, Verdict};

/// A row: a figure of buckets, divided by the same figure of another mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) section: &'static str,
    pub(super) what: String,
    /// Unit of the two medians.
    pub(super) unit: &'static str,
    /// Median of the first mode.
    pub(super) measured: f64,
    /// Median of the mode that it is compared with.
    pub(super) peer: f64,
    /// Ratio of the medians, or `None` if it is not a number.
    pub(super) ratio: Option<f64>,
    /// Range of the ratios of single rounds.
    pub(super) ratio_min: Option<f64>,
    pub(super) ratio_max: Option<f64>,
    /// Figure of the paper's text, or its words.
    pub(super) paper: &'static str,
    pub(super) target: Option<Target>,
    /// Whether the target is met, or `None` without a target.
    pub(super) met: Option<bool>,
    /// Cause of a miss that was seen and understood.
    pub(super) cause: &'static str,
}

/// Comparison of a row.
struct Claim {
    section: &'static str,
    workload: Workload,
    setting: Setting,
    /// Name of the figure, and the function that takes it from a run.
    figure: &'static str,
    pick: Pick,
    modes: [Mode; 2],
    paper: &'static str,
    target: Option<Target>,
}

const THROUGHPUT: &str = "Throughput on the device";
const STALL: &str = "Stall time on the device";
const LATENCY: &str = "Read latency on the device";
const PLAIN: &str = "Throughput on the disk without emulation";

/// Function that takes a figure from a run.
type Pick = fn(&Figures) -> Option<f64>;

impl Claim {
    /// Compares the rates of buckets and of `rival` on the device.
    fn speed(workload: Workload, rival: Mode, paper: &'static str) -> Self {
        Self {
            section: THROUGHPUT,
            workload,
            setting: Setting::Device,
            figure: "ops/s",
            pick: |figures| Some(figures.ops_per_s),
            modes: [Mode::Buckets, rival],
            paper,
            target: None,
        }
    }

    /// The same comparison of another figure.
    fn of(self, section: &'static str, figure: &'static str, pick: Pick) -> Self {
        Self { section, figure, pick, ..self }
    }

    fn at_least(self, least: f64) -> Self {
        Self { target: Some(Target::AtLeast(least)), ..self }
    }

    fn at_most(self, most: f64) -> Self {
        Self { target: Some(Target::AtMost(most)), ..self }
    }

    fn on(self, setting: Setting) -> Self {
        Self { setting, ..self }
    }

    /// Cause of a miss that was seen and understood.
    fn cause(&self) -> &'static str {
        match (self.workload, self.setting, self.section) {
            (_, _, PLAIN) => {
                "Buckets keep up with compactions, which the classic L0 postpones, and write more \
                 small files."
            }
            (Workload::MixGraph1, ..) => {
                "A hot range lies in one or two buckets until it is split, and one stream writes \
                 the shard of a bucket."
            }
            (Workload::YcsbScan, Setting::Device, LATENCY) => {
                "Buckets do more operations in the same time; at a fixed load a SCAN takes less \
                 time."
            }
            _ => "",
        }
    }
}

/// All comparisons, with the figures of the paper's text and the project's targets.
fn claims() -> Vec<Claim> {
    let plain = Workload::ALL.map(|workload| {
        let speed = Claim::speed(workload, Mode::Classic, "—").on(Setting::Plain).at_least(0.95);
        Claim { section: PLAIN, ..speed }
    });
    throughput().into_iter().chain(stalls()).chain(latencies()).chain(plain).collect()
}

fn throughput() -> Vec<Claim> {
    use Mode::{Classic, Static, Subcompactions};
    use Workload::{FillRandom, MixGraph1, MixGraph2, YcsbGet, YcsbScan};
    let speed = Claim::speed;
    let run_time: Pick = |figures| Some(figures.seconds);
    let settled: Pick = |figures| Some(figures.seconds + figures.settle_s?);
    let until_settled =
        |workload| speed(workload, Classic, "—").of(THROUGHPUT, "time until settled", settled);
    vec![
        speed(FillRandom, Classic, "1.94×").at_least(1.9),
        speed(FillRandom, Subcompactions, "1.43×").at_least(1.4),
        speed(MixGraph1, Classic, "2.60×").at_least(2.5),
        speed(MixGraph1, Subcompactions, "1.75×").at_least(1.7),
        speed(MixGraph1, Static, "1.12×").at_least(1.1),
        speed(MixGraph2, Classic, "about 1×"),
        speed(MixGraph2, Subcompactions, "about 1×"),
        speed(YcsbGet, Classic, "—"),
        speed(YcsbGet, Subcompactions, "1.11×").at_least(1.1),
        speed(YcsbScan, Classic, "—"),
        speed(YcsbScan, Subcompactions, "1.05×").at_least(1.05),
        speed(FillRandom, Classic, "500 s / 1000 s = 0.50×").of(THROUGHPUT, "time", run_time),
        speed(FillRandom, Subcompactions, "500 s / 700 s = 0.71×").of(THROUGHPUT, "time", run_time),
        until_settled(FillRandom),
        until_settled(MixGraph1),
    ]
}

fn stalls() -> Vec<Claim> {
    use Mode::{Classic, Subcompactions};
    use Workload::{FillRandom, MixGraph1};
    let total: Pick = |figures| Some(figures.stall_s.total());
    let l0: Pick = |figures| Some(figures.stall_s.l0);
    let full = |workload, rival, paper| {
        Claim::speed(workload, rival, paper).of(STALL, "full speed, stall time", total)
    };
    let fixed = |workload| {
        let claim = Claim::speed(workload, Classic, "—").on(Setting::Offered);
        claim.of(STALL, "fixed load, stall time", total)
    };
    vec![
        full(FillRandom, Classic, "0.27× (−73.3 %)"),
        full(FillRandom, Subcompactions, "0.39× (−60.7 %)"),
        full(MixGraph1, Classic, "0.06× (−94 %)"),
        full(MixGraph1, Classic, "0.04× (−96 %)").of(STALL, "full speed, L0 stall time", l0),
        fixed(FillRandom).at_most(0.25),
        fixed(MixGraph1).at_most(0.1),
    ]
}

fn latencies() -> Vec<Claim> {
    use Mode::{Classic, Subcompactions};
    use Workload::{MixGraph2, YcsbGet, YcsbScan};
    let get_mean: Pick = |figures| Some(figures.get?.mean_us);
    let get_p99: Pick = |figures| Some(figures.get?.p99_us);
    let scan_mean: Pick = |figures| Some(figures.scan?.mean_us);
    let scan_p99: Pick = |figures| Some(figures.scan?.p99_us);
    let latency = |workload, figure, pick, rival, paper| {
        Claim::speed(workload, rival, paper).of(LATENCY, figure, pick)
    };
    let fixed = |figure, pick| {
        latency(YcsbScan, figure, pick, Classic, "—").on(Setting::Offered).at_most(1.0)
    };
    vec![
        latency(YcsbGet, "GET mean", get_mean, Classic, "lower"),
        latency(YcsbGet, "GET P99", get_p99, Classic, "—"),
        latency(YcsbGet, "GET mean", get_mean, Subcompactions, "—"),
        latency(YcsbScan, "SCAN mean", scan_mean, Classic, "higher").at_most(1.0),
        latency(YcsbScan, "SCAN P99", scan_p99, Classic, "—").at_most(1.0),
        latency(YcsbScan, "SCAN mean", scan_mean, Subcompactions, "lower"),
        fixed("fixed load, SCAN mean", scan_mean),
        fixed("fixed load, SCAN P99", scan_p99),
        latency(MixGraph2, "GET mean", get_mean, Classic, "similar"),
        latency(MixGraph2, "SCAN mean", scan_mean, Classic, "similar"),
    ]
}

/// Runs of all cases and rounds.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Runs(pub(super) Vec<Run>);

impl Runs {
    /// The runs of a case, by round.
    pub(super) fn of(&self, case: Case) -> impl Iterator<Item = &Run> {
        self.0.iter().filter(move |run| run.case() == case)
    }

    /// A figure of each run of a case.
    pub(super) fn values(&self, case: Case, pick: impl Fn(&Figures) -> Option<f64>) -> Vec<f64> {
        self.of(case).filter_map(|run| pick(&run.figures)).collect()
    }

    /// The run with the median rate.
    pub(super) fn middle(&self, case: Case) -> Option<&Run> {
        let mut runs: Vec<&Run> = self.of(case).collect();
        runs.sort_by(|a, b| a.figures.ops_per_s.total_cmp(&b.figures.ops_per_s));
        runs.get(runs.len() / 2).copied()
    }

    /// All rows with measured figures.
    pub(super) fn rows(&self) -> Vec<Row> {
        claims().iter().filter_map(|claim| self.row(claim)).collect()
    }

    fn row(&self, claim: &Claim) -> Option<Row> {
        let (workload, setting) = (claim.workload, claim.setting);
        let values = |mode| self.values(Case { workload, setting, mode }, claim.pick);
        let [ours, theirs] = claim.modes.map(values);
        let (our_median, their_median) = (median(&ours)?, median(&theirs)?);
        let pairs: Vec<f64> = ours
            .iter()
            .zip(&theirs)
            .map(|(a, b)| a / b)
            .filter(|ratio| ratio.is_finite())
            .collect();
        // Products are compared instead of ratios, because 0 compared with 0 meets "at most".
        let met = claim.target.map(|target| match target {
            Target::AtLeast(least) => our_median >= least * their_median,
            Target::AtMost(most) => our_median <= most * their_median,
        });
        let [mode, rival] = claim.modes.map(|mode| match mode {
            Mode::Buckets if claim.modes.contains(&Mode::Static) => "dynamic",
            Mode::Static => "static",
            other => other.name(),
        });
        let (name, figure) = (claim.workload.name(), claim.figure);
        Some(Row {
            section: claim.section,
            what: format!("{name}, {figure}: {mode} / {rival}"),
            unit: unit_of(figure),
            measured: our_median,
            peer: their_median,
            ratio: Some(our_median / their_median).filter(|ratio| ratio.is_finite()),
            ratio_min: pairs.iter().copied().reduce(f64::min),
            ratio_max: pairs.iter().copied().reduce(f64::max),
            paper: claim.paper,
            target: claim.target,
            met,
            cause: claim.cause(),
        })
    }

    /// The sections of the report.
    pub(super) fn sections(&self) -> Vec<Section> {
        let rows = self.rows();
        let mut titles: Vec<&str> = rows.iter().map(|row| row.section).collect();
        titles.dedup();
        let of = |title: &str| {
            let rows = rows.iter().filter(|row| row.section == title);
            Section {
                title: title.to_owned(),
                rows: rows.map(Row::page_row).collect(),
                ..Section::default()
            }
        };
        titles.into_iter().map(of).collect()
    }

    /// The section with every figure.
    pub(super) fn figures(&self) -> Section {
        Section {
            title: "The figures of the ratios (medians)".to_owned(),
            grids: vec![self.absolute()],
            ..Section::default()
        }
    }

    fn absolute(&self) -> Grid {
        let mut table = Grid::new([
            "workload",
            "on",
            "mode",
            "ops/s",
            "min – max",
            "stall s",
            "of it L0",
            "memtables",
            "debt",
            "settle s",
            "write amp.",
            "threads busy",
            "processors busy",
            "L0 files, fullest",
            "most",
            "L0 input MiB",
            "its spread",
            "buckets",
            "map changes",
            "failed jobs",
        ]);
        let mut seen: Vec<Case> = Vec::new();
        for run in &self.0 {
            let case = run.case();
            if !seen.contains(&case) {
                seen.push(case);
                table.push(self.absolute_row(case, run.offered_ops_per_s));
            }
        }
        table
    }

    fn absolute_row(&self, case: Case, offered: Option<u64>) -> Vec<String> {
        let Case { workload, setting, mode } = case;
        let figure = |pick: &dyn Fn(&Figures) -> Option<f64>, decimals: usize| {
            let middle = median(&self.values(case, pick));
            middle.map_or_else(|| "—".to_owned(), |value| format!("{value:.decimals$}"))
        };
        let rates = self.values(case, |figures| Some(figures.ops_per_s));
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let on = match (setting, offered) {
            (Setting::Device, _) => "device".to_owned(),
            (Setting::Offered, Some(ops)) => format!("device, {ops} ops/s offered"),
            (Setting::Offered, None) => "device, fixed load".to_owned(),
            (Setting::Plain, _) => "plain disk".to_owned(),
            (Setting::Jobs(jobs), _) => format!("device, {jobs} jobs"),
        };
        vec![
            workload.name().to_owned(),
            on,
            mode.name().to_owned(),
            figure(&|f| Some(f.ops_per_s), 0),
            format!("{least:.0} – {most:.0}"),
            figure(&|f| Some(f.stall_s.total()), 2),
            figure(&|f| Some(f.stall_s.l0), 2),
            figure(&|f| Some(f.stall_s.memtables), 2),
            figure(&|f| Some(f.stall_s.pending), 2),
            figure(&|f| f.settle_s, 1),
            figure(&|f| f.write_amplification, 2),
            figure(&|f| Some(f.threads_busy), 2),
            figure(&|f| f.processors_busy, 2),
            figure(&|f| Some(f.l0_fullest_mean), 1),
            figure(&|f| Some(f.l0_fullest_max as f64), 0),
            figure(&|f| Some(f.l0_input_bytes_mean / 1_048_576.0), 1),
            figure(&|f| Some(f.l0_input_spread), 2),
            figure(&|f| Some(f.buckets as f64), 0),
            figure(&|f| Some(f.map_changes as f64), 0),
            figure(&|f| Some(f.failed_jobs as f64), 0),
        ]
    }
}

impl Row {
    fn page_row(&self) -> page::Row {
        let ratio = self.ratio.map(|median| Ratio {
            median,
            min: self.ratio_min.unwrap_or(f64::NAN),
            max: self.ratio_max.unwrap_or(f64::NAN),
        });
        page::Row {
            name: self.what.clone(),
            unit: self.unit,
            decimals: if self.unit == "s" { 1 } else { 0 },
            measured: Some(self.measured),
            peer: Some(self.peer),
            ratio,
            paper: if self.paper == "—" { String::new() } else { self.paper.to_owned() },
            target: self.target.map(RowTarget::Ratio),
            verdict: Verdict::of(self.met),
            cause: self.cause,
            ..page::Row::default()
        }
    }
}

/// Unit of the figure of that name.
fn unit_of(figure: &str) -> &'static str {
    match figure {
        "ops/s" => "ops/s",
        time if time.contains("time") => "s",
        _ => "µs",
    }
}
