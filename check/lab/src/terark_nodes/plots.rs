//! The charts: names of files and their SVG texts. The functions are pure.

use super::bounds::{Latencies, mixed_over_coded};
use super::modes::{Mode, Workload};
use super::plan::{Group, Step};
use super::rows::Facts;
use super::run::Run;
use crate::plot::{Bars, Chart};

/// The modes of the bar charts.
const MODES: [Mode; 6] =
    [Mode::InlineR3, Mode::InlineEc, Mode::SeparatedR3, Mode::SeparatedEc, Mode::Dr, Mode::AllOn];
/// Classes of calls in the order of the client's counters.
const CLASSES: [&str; 5] = ["log", "foreground", "flush", "compaction", "gc"];

/// All charts that have figures.
pub(super) fn all(facts: &Facts<'_>) -> Vec<(String, String)> {
    let settled = |step: Step| move |run: &Run| run.settled_rate(step);
    let mut charts = vec![
        (
            "insert.svg".to_owned(),
            bars(facts, "Inserts until settled", "ops/s", settled(Step::Load)),
        ),
        (
            "update.svg".to_owned(),
            bars(facts, "Updates until settled", "ops/s", settled(Step::Update)),
        ),
        ("read.svg".to_owned(), bars(facts, "Point reads", "ops/s", |run| run.rate(Step::Read))),
        (
            "space.svg".to_owned(),
            bars(facts, "Stored bytes after throttled updates", "MiB", |run| {
                Some(run.stored_bytes()? / 1_048_576.0)
            }),
        ),
    ];
    let modes = [Mode::InlineR3, Mode::SeparatedR3, Mode::AllOn];
    let names = ["card-no-separation.svg", "card-separated.svg", "card-all-on.svg"];
    charts.extend(
        modes.into_iter().zip(names).map(|(mode, name)| (name.to_owned(), card(facts, mode))),
    );
    if facts.flags.groups().contains(&Group::Model) {
        charts.push(("redundancy-model.svg".to_owned(), Some(model())));
    }
    charts.into_iter().filter_map(|(name, svg)| Some((name, svg?))).collect()
}

/// Bars of all modes in groups of workloads; none if no mode has a figure.
fn bars(
    facts: &Facts<'_>,
    title: &str,
    unit: &str,
    figure: impl Fn(&Run) -> Option<f64>,
) -> Option<String> {
    let mut chart = Bars::new(title, unit, &Workload::ALL.map(Workload::name));
    let mut has_bars = false;
    for mode in MODES {
        let heights = Workload::ALL.map(|workload| facts.median(workload, mode, &figure));
        if heights.iter().any(Option::is_some) {
            has_bars = true;
            chart = chart.series(mode.name(), &heights);
        }
    }
    has_bars.then(|| chart.svg())
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
