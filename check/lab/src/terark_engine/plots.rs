//! The charts: names of files and their SVG texts. The functions are pure.

use super::plan::{Mode, Paper, Part, Phase, StepKind};
use super::rows::Facts;
use super::run::Run;
use crate::plot::{Bars, Chart};

/// The modes of the bars.
const MODES: [Mode; 4] = [Mode::Inline, Mode::Separated, Mode::AsBlobDb, Mode::BlobDb];

/// All charts that have figures.
pub(super) fn all(facts: &Facts<'_>) -> Vec<(String, String)> {
    let fills = |run: &Run| run.settled_rate(StepKind::Fill, "fillrandom");
    let updates = |run: &Run| run.settled_rate(StepKind::Update, "overwrite");
    let reads = |run: &Run| run.rate(StepKind::Read, "readrandom");
    let charts = [
        ("space-throttled.svg", space(facts, Part::Space)),
        ("space-full-speed.svg", space(facts, Part::Update)),
        ("load.svg", by_part(facts, "Loads until settled", &[Part::Volume, Part::Fill], fills)),
        (
            "update.svg",
            by_part(facts, "Updates until settled", &[Part::Volume, Part::Update], updates),
        ),
        ("read.svg", by_part(facts, "Point reads", &[Part::Update, Part::Mixed], reads)),
        ("papers-read.svg", by_paper(facts, "Point reads by workload", Phase::Read)),
        ("papers-scan.svg", by_paper(facts, "Scans by workload", Phase::Scan)),
    ];
    charts.into_iter().filter_map(|(name, svg)| Some((name.to_owned(), svg?))).collect()
}

/// Space over time of the first round of a part.
fn space(facts: &Facts<'_>, part: Part) -> Option<String> {
    let title = match part {
        Part::Space => "Space under throttled updates",
        _ => "Space under updates at full speed",
    };
    let mut chart = Chart::new(title, "seconds", "tables and value files over live bytes");
    let first = |run: &&Run| run.part == part && run.round == 0;
    let mut has_points = false;
    for run in facts.runs.iter().filter(first) {
        let Some(live) = run.live_bytes() else { continue };
        let samples = run.step(StepKind::Update).map_or(&[][..], |step| &step.space);
        let share = |bytes: u64| bytes as f64 / live as f64;
        let points: Vec<(f64, f64)> =
            samples.iter().map(|sample| (sample.t_s, share(sample.data_bytes()))).collect();
        has_points |= !points.is_empty();
        chart = chart.line(run.mode.name(), &points);
    }
    has_points.then(|| chart.svg())
}

/// Rates of values of 16 KiB, or of mixed ones, in groups of parts.
fn by_part(
    facts: &Facts<'_>,
    title: &str,
    parts: &[Part],
    rate: impl Fn(&Run) -> Option<f64>,
) -> Option<String> {
    let names: Vec<&str> = parts.iter().map(|part| part.short_title()).collect();
    bars(title, &names, |mode| {
        parts.iter().map(|&part| facts.median_of(part, mode, &rate)).collect()
    })
}

/// Rates of the workloads of the paper.
fn by_paper(facts: &Facts<'_>, title: &str, phase: Phase) -> Option<String> {
    bars(title, &Paper::ALL.map(Paper::name), |mode| {
        let rate = |paper: Paper| {
            let of = |run: &Run| run.rate(StepKind::Serve(paper), paper.benchmark(phase));
            facts.median_of(Part::Scans, mode, of)
        };
        Paper::ALL.map(rate).into()
    })
}

/// Bars of all modes in these groups; none if no mode has a figure.
fn bars(
    title: &str,
    groups: &[&str],
    heights: impl Fn(Mode) -> Vec<Option<f64>>,
) -> Option<String> {
    let mut chart = Bars::new(title, "ops/s", groups);
    let mut has_bars = false;
    for mode in MODES {
        let heights = heights(mode);
        if heights.iter().any(Option::is_some) {
            has_bars = true;
            chart = chart.series(mode.name(), &heights);
        }
    }
    has_bars.then(|| chart.svg())
}
