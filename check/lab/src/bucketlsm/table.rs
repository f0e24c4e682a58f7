//! The report: ratios beside the paper's numbers and the targets, then the figures behind them.

use std::fmt::Write as _;

use comfy_table::CellAlignment;
use serde::Serialize;

use super::plan::{Mode, Setting, Workload};
use super::run::{Figures, Run};
use crate::claim::{Target, markdown, median, met_cell, target_cell};

/// One line: a figure of buckets, divided by the same of another mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) section: &'static str,
    pub(super) what: String,
    /// Of the medians; none if nothing was measured, or both are zero.
    pub(super) ratio: Option<f64>,
    /// Of the runs of one round.
    pub(super) ratio_min: Option<f64>,
    pub(super) ratio_max: Option<f64>,
    /// The text's number, or what it says in words.
    pub(super) paper: &'static str,
    pub(super) target: Option<Target>,
    /// None if nothing was measured.
    pub(super) met: Option<bool>,
}

/// What a row compares.
struct Claim {
    section: &'static str,
    workload: Workload,
    setting: Setting,
    /// The figure's name, and how to get it.
    figure: &'static str,
    pick: Pick,
    modes: [Mode; 2],
    paper: &'static str,
    target: Option<Target>,
}

const THROUGHPUT: &str = "Throughput on the device";
const STALL: &str = "Stall time on the device";
const LATENCY: &str = "Read latency on the device";
const PLAIN: &str = "Throughput on the disk as it is";

/// A figure of a run, if it has it.
type Pick = fn(&Figures) -> Option<f64>;

impl Claim {
    /// Of the rates of buckets and `rival` on the device.
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

    /// The same of another figure.
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
}

/// Every comparison, with what the paper's text says of it and the project's targets.
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

/// All runs.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Runs(pub(super) Vec<Run>);

impl Runs {
    /// The runs of a case, by round.
    pub(super) fn of(
        &self,
        workload: Workload,
        setting: Setting,
        mode: Mode,
    ) -> impl Iterator<Item = &Run> {
        self.0
            .iter()
            .filter(move |run| (run.workload, run.setting, run.mode) == (workload, setting, mode))
    }

    /// A figure of each run of a case.
    pub(super) fn values(
        &self,
        (workload, setting, mode): (Workload, Setting, Mode),
        pick: impl Fn(&Figures) -> Option<f64>,
    ) -> Vec<f64> {
        self.of(workload, setting, mode).filter_map(|run| pick(&run.figures)).collect()
    }

    /// The run whose rate is the middle one.
    pub(super) fn middle(&self, workload: Workload, setting: Setting, mode: Mode) -> Option<&Run> {
        let mut runs: Vec<&Run> = self.of(workload, setting, mode).collect();
        runs.sort_by(|a, b| a.figures.ops_per_s.total_cmp(&b.figures.ops_per_s));
        runs.get(runs.len() / 2).copied()
    }

    /// Every row of which something was measured.
    pub(super) fn rows(&self) -> Vec<Row> {
        claims().iter().filter_map(|claim| self.row(claim)).collect()
    }

    fn row(&self, claim: &Claim) -> Option<Row> {
        let [ours, theirs] =
            claim.modes.map(|mode| self.values((claim.workload, claim.setting, mode), claim.pick));
        let (our_median, their_median) = (median(&ours)?, median(&theirs)?);
        let pairs: Vec<f64> = ours
            .iter()
            .zip(&theirs)
            .map(|(a, b)| a / b)
            .filter(|ratio| ratio.is_finite())
            .collect();
        // Products, not ratios: nothing against nothing meets "at most".
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
            ratio: Some(our_median / their_median).filter(|ratio| ratio.is_finite()),
            ratio_min: pairs.iter().copied().reduce(f64::min),
            ratio_max: pairs.iter().copied().reduce(f64::max),
            paper: claim.paper,
            target: claim.target,
            met,
        })
    }

    /// The tables as Markdown.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let rows = self.rows();
        let mut sections: Vec<&str> = rows.iter().map(|row| row.section).collect();
        sections.dedup();
        for section in sections {
            let of_section: Vec<&Row> = rows.iter().filter(|row| row.section == section).collect();
            let _ = writeln!(out, "## {section}\n\n{}\n", ratios(&of_section));
        }
        let _ = writeln!(out, "## The figures behind the ratios (medians)\n\n{}", self.absolute());
        out
    }

    fn absolute(&self) -> String {
        let mut table = markdown(&[
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
        let mut seen: Vec<(Workload, Setting, Mode)> = Vec::new();
        for run in &self.0 {
            let case = (run.workload, run.setting, run.mode);
            if !seen.contains(&case) {
                seen.push(case);
                table.add_row(self.absolute_row(case, run.offered_ops_per_s));
            }
        }
        table.to_string()
    }

    fn absolute_row(&self, case: (Workload, Setting, Mode), offered: Option<u64>) -> Vec<String> {
        let (workload, setting, mode) = case;
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

fn ratios(rows: &[&Row]) -> String {
    let mut table =
        markdown(&["compared", "ratio", "rounds, min – max", "the paper", "target", "met"]);
    for row in rows {
        table.add_row([
            row.what.clone(),
            times(row.ratio),
            format!("{} – {}", times(row.ratio_min), times(row.ratio_max)),
            row.paper.to_owned(),
            target_cell(row.target, |bound| format!("{bound}×")),
            met_cell(row.met),
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// "1.53×"; a dash where there is no ratio.
fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "—".to_owned(), |ratio| format!("{ratio:.2}×"))
}
