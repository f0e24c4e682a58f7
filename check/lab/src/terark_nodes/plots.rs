//! The charts: names of files and their SVG texts. The functions are pure.

use super::bounds::{Latencies, mixed_over_coded};
use super::link::Card;
use super::modes::{Mode, Workload};
use super::plan::{Group, Step};
use super::rows::Facts;
use super::run::Run;
use crate::claim::median;
use crate::plot::{Bars, Chart};

/// The modes of the bar charts.
const MODES: [Mode; 6] =
    [Mode::InlineR3, Mode::InlineEc, Mode::SeparatedR3, Mode::SeparatedEc, Mode::Dr, Mode::AllOn];
/// Classes of calls in the order of the client's counters.
const CLASSES: [&str; 5] = ["log", "foreground", "flush", "compaction", "gc"];

/// All charts that have figures.
pub(super) fn all(facts: &Facts<'_>) -> Vec<(String, String)> {
    let mut charts = by_workload(facts);
    charts.push(("ycsb.svg", ycsb(facts)));
    let names = ["redundancy-fixed16k.svg", "redundancy-mixed8k.svg", "redundancy-pareto1k.svg"];
    charts.extend(
        Workload::ALL
            .into_iter()
            .map(|workload| (workload.pick(names), redundancy(facts, workload))),
    );
    if has(facts, Group::Cpu) {
        charts.push(("cpu-cores.svg", used(facts, "Cores busy, Mixed-8K", "cores", Run::cores)));
        charts.push(("cpu-network.svg", used(facts, "On the card, Mixed-8K", "MB/s", moved_mb_s)));
    }
    let modes = [Mode::InlineR3, Mode::SeparatedR3, Mode::AllOn];
    let names = ["card-no-separation.svg", "card-separated.svg", "card-all-on.svg"];
    charts.extend(modes.into_iter().zip(names).map(|(mode, name)| (name, card(facts, mode))));
    if has(facts, Group::Model) {
        charts.push(("redundancy-model.svg", Some(model())));
    }
    charts.into_iter().filter_map(|(name, svg)| Some((name.to_owned(), svg?))).collect()
}

fn has(facts: &Facts<'_>, group: Group) -> bool {
    facts.flags.groups().contains(&group)
}

/// The charts of bars in groups of workloads.
fn by_workload(facts: &Facts<'_>) -> Vec<(&'static str, Option<String>)> {
    let settled = |step: Step| move |run: &Run| run.settled_rate(step);
    let chart = |title, unit| Compared { title, unit, modes: &MODES, card: Card::Full };
    let mut charts = vec![
        ("insert.svg", chart("Inserts until settled", "ops/s").svg(facts, settled(Step::Load))),
        ("update.svg", chart("Updates until settled", "ops/s").svg(facts, settled(Step::Update))),
        ("read.svg", chart("Point reads", "ops/s").svg(facts, |run| run.rate(Step::Read))),
        (
            "space.svg",
            chart("Stored bytes after throttled updates", "MiB")
                .svg(facts, |run| Some(run.stored_bytes()? / 1_048_576.0)),
        ),
    ];
    let inserts = |run: &Run| run.rate(Step::Load);
    let latency = |run: &Run| Some(1e3 * run.latency_s(Step::Load, "write")?);
    if has(facts, Group::Log) {
        let modes = &[Mode::Dr, Mode::AllOn];
        let chart = |title, unit, card| Compared { title, unit, modes, card };
        let (full, wide) = (Card::Full, Card::Fourfold);
        let rates = chart("Inserts, serial and adaptive log", "ops/s", full);
        charts.push(("log.svg", rates.svg(facts, inserts)));
        let rates = chart("The same on a card of four times the rate", "ops/s", wide);
        charts.push(("log-wide.svg", rates.svg(facts, inserts)));
        let means = chart("Mean latency of a write", "ms", full);
        charts.push(("log-latency.svg", means.svg(facts, latency)));
        let means = chart("The same on a card of four times the rate", "ms", wide);
        charts.push(("log-latency-wide.svg", means.svg(facts, latency)));
    }
    if has(facts, Group::Buffer) {
        let modes = &[Mode::Dr, Mode::DrBuffered, Mode::AllOnBuffered];
        let (title, unit) = ("Inserts with a log buffer", "ops/s");
        let rates = Compared { title, unit, modes, card: Card::Full };
        charts.push(("log-buffer.svg", rates.svg(facts, inserts)));
    }
    charts
}

/// A chart that compares modes.
#[derive(Clone, Copy, Debug)]
struct Compared<'a> {
    title: &'a str,
    unit: &'a str,
    modes: &'a [Mode],
    card: Card,
}

impl Compared<'_> {
    /// Bars of all modes in groups of workloads; none if no mode has a figure.
    fn svg(&self, facts: &Facts<'_>, figure: impl Fn(&Run) -> Option<f64>) -> Option<String> {
        let height = |mode: Mode, workload: Workload| {
            median(&facts.of(workload, mode, self.card).filter_map(&figure).collect::<Vec<f64>>())
        };
        bars(self, &Workload::ALL.map(Workload::name), |mode| {
            Workload::ALL.map(|workload| height(mode, workload)).into()
        })
    }
}

/// Bars of all modes in these groups; none if no mode has a figure.
fn bars(
    compared: &Compared<'_>,
    groups: &[&str],
    heights: impl Fn(Mode) -> Vec<Option<f64>>,
) -> Option<String> {
    let mut chart = Bars::new(compared.title, compared.unit, groups);
    let mut has_bars = false;
    for &mode in compared.modes {
        let heights = heights(mode);
        if heights.iter().any(Option::is_some) {
            has_bars = true;
            chart = chart.series(mode.name(), &heights);
        }
    }
    has_bars.then(|| chart.svg())
}

/// The six workloads of YCSB, as in Figure 13.
fn ycsb(facts: &Facts<'_>) -> Option<String> {
    const NAMES: [&str; 6] = ["ycsba", "ycsbb", "ycsbc", "ycsbd", "ycsbe", "ycsbf"];
    let modes = &[Mode::InlineR3, Mode::SeparatedR3, Mode::AllOn];
    let (title, unit) = ("YCSB with values of 16 KiB", "ops/s");
    let chart = Compared { title, unit, modes, card: Card::Full };
    let height = |mode: Mode, name: &str| {
        facts.median(Workload::Fixed16k, mode, |run| run.rate_of(Step::Ycsb, name))
    };
    bars(&chart, &["A", "B", "C", "D", "E", "F"], |mode| {
        NAMES.map(|name| height(mode, name)).into()
    })
}

/// Function that takes a rate from a run.
type Rate = fn(&Run) -> Option<f64>;

/// Rates of a workload over those of three replicas, as in Figure 14.
fn redundancy(facts: &Facts<'_>, workload: Workload) -> Option<String> {
    const RATES: [(&str, Rate); 4] = [
        ("insert", |run| run.settled_rate(Step::Load)),
        ("update", |run| run.settled_rate(Step::Update)),
        ("read", |run| run.rate(Step::Read)),
        ("read, a node lost", |run| run.rate(Step::DegradedRead)),
    ];
    if !has(facts, Group::Redundancy) {
        return None;
    }
    let title = format!("Rates over those of three replicas, {}", workload.name());
    let modes = &[Mode::SeparatedEc, Mode::Dr];
    let chart = Compared { title: &title, unit: "times", modes, card: Card::Full };
    let over = |mode: Mode, rate: Rate| {
        let own = facts.median(workload, mode, rate)?;
        Some(own / facts.median(workload, Mode::SeparatedR3, rate)?)
    };
    bars(&chart, &RATES.map(|(name, _)| name), |mode| {
        RATES.map(|(_, rate)| over(mode, rate)).into()
    })
}

/// Use of a resource during updates and reads of Mixed-8K, as in Figure 17.
fn used(
    facts: &Facts<'_>,
    title: &str,
    unit: &str,
    figure: impl Fn(&Run, Step) -> Option<f64>,
) -> Option<String> {
    let modes = &[Mode::SeparatedR3, Mode::SeparatedEc, Mode::Dr, Mode::AllOn];
    let chart = Compared { title, unit, modes, card: Card::Full };
    let height =
        |mode: Mode, step: Step| facts.median(Workload::Mixed8k, mode, |run| figure(run, step));
    bars(&chart, &["updates", "reads"], |mode| {
        [Step::Update, Step::Read].map(|step| height(mode, step)).into()
    })
}

/// Megabytes per second on the card: that it sent during updates, or received during reads.
fn moved_mb_s(run: &Run, step: Step) -> Option<f64> {
    let rate = match step {
        Step::Read => run.received_rate(step),
        _ => run.sent_rate(step),
    };
    rate.map(|rate| rate / 1e6)
}

/// Rates on the card over time by class during the load of Mixed-8K, as in Figure 12.
fn card(facts: &Facts<'_>, mode: Mode) -> Option<String> {
    let has_samples = |run: &&Run| run.step(Step::Load).is_some_and(|step| step.sent.len() > 1);
    let mut runs = facts.runs.iter().filter(|run| run.cell.mode == mode);
    let samples = &runs.find(has_samples)?.step(Step::Load)?.sent;
    let title = format!("Sent by the card during inserts: {}", mode.name());
    let mut chart = Chart::new(&title, "seconds", "MB/s");
    for (at, class) in CLASSES.into_iter().enumerate() {
        let rate = |pair: &[super::run::SentSample]| {
            let bytes = pair[1].bytes.get(at)?.checked_sub(*pair[0].bytes.get(at)?)?;
            let seconds = pair[1].t_s - pair[0].t_s;
            (seconds > 0.0).then(|| (pair[1].t_s, bytes as f64 / 1e6 / seconds))
        };
        let points: Vec<(f64, f64)> = samples.windows(2).filter_map(rate).collect();
        chart = chart.line(class, &points);
    }
    Some(chart.svg())
}

/// The curves of Figure 7.
fn model() -> String {
    let title = "Replicated tables with coded values over coded files";
    let mut chart = Chart::new(title, "table bytes over value bytes", "ratio").x_doubling();
    for small in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let tables = (0..=10).map(|at| 2_f64.powi(at - 8));
        let points: Vec<(f64, f64)> = tables
            .map(|tables| (tables, mixed_over_coded(Latencies::PAPER, tables, small)))
            .collect();
        chart = chart.line(&format!("p = {small}"), &points);
    }
    chart.svg()
}
