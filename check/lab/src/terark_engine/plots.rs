//! The charts: names of files and their SVG texts. The functions are pure.

use super::plan::{self, Part, StepKind};
use super::rows::Facts;
use super::run::Run;
use crate::plot::Chart;

/// Space over time of the first round of `space` and of `update`.
pub(super) fn all(facts: &Facts<'_>) -> Vec<(String, String)> {
    [(Part::Space, "space-throttled.svg"), (Part::Update, "space-full-speed.svg")]
        .into_iter()
        .filter_map(|(part, name)| Some((name.to_owned(), space(facts, part)?)))
        .collect()
}

fn space(facts: &Facts<'_>, part: Part) -> Option<String> {
    let live = plan::live_bytes(facts.flags) as f64;
    let title = match part {
        Part::Space => "Space under throttled updates",
        _ => "Space under updates at full speed",
    };
    let mut chart = Chart::new(title, "seconds", "tables and value files over live bytes");
    let first = |run: &&Run| run.part == part && run.round == 0;
    let mut has_points = false;
    for run in facts.runs.iter().filter(first) {
        let samples = run.step(StepKind::Update).map_or(&[][..], |step| &step.space);
        let points: Vec<(f64, f64)> =
            samples.iter().map(|sample| (sample.t_s, sample.data_bytes() as f64 / live)).collect();
        has_points |= !points.is_empty();
        chart = chart.line(run.mode.name(), &points);
    }
    has_points.then(|| chart.svg())
}
