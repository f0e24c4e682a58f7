//! Tables, charts and the result file.

use serde::Serialize;

use super::profile::{CostProfile, Machine};
use super::setting::Mode;
use super::sweep::{Runs, Sweep};
use super::trace::Outcome;
use crate::page::{Grid, Ratio, Row, Section};
use crate::plot::Chart;

/// The file of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Summary<'a> {
    program: &'static str,
    version: &'static str,
    records: u64,
    writers: usize,
    seed: u64,
    cost: &'a CostProfile,
    machine: &'a Machine,
    /// Outcomes of the sweep in which the number of jobs is the degree.
    by_jobs: &'a [Outcome],
    /// Outcomes of the sweep with a fixed number of jobs.
    by_degree: &'a [Outcome],
}

pub(super) fn summary<'a>(sweep: &'a Sweep, runs: &'a Runs) -> Summary<'a> {
    Summary {
        program: "archipelago-lab model",
        version: env!("CARGO_PKG_VERSION"),
        records: sweep.base.records,
        writers: sweep.base.writers,
        seed: sweep.base.seed,
        cost: &sweep.base.cost,
        machine: &sweep.base.machine,
        by_jobs: &runs.by_jobs,
        by_degree: &runs.by_degree,
    }
}

/// Settings of the sweep.
pub(super) fn about(sweep: &Sweep) -> String {
    let base = &sweep.base;
    let machine = &base.machine;
    format!(
        "- fillrandom of {:.0} GB, keys of {} B, values of {} B\n\
         - machine: {:.0} modelled cores ({:.0} threads), {}\n\
         - costs: {}\n",
        base.records as f64 * base.cost.record_bytes() as f64 / 1e9,
        base.cost.key_bytes,
        base.cost.value_bytes,
        machine.cores,
        machine.threads,
        machine.device.name,
        base.cost.measured_on,
    )
}

/// The sections of the report: one per sweep.
pub(super) fn sections(sweep: &Sweep, runs: &Runs) -> Vec<Section> {
    let section = |title: String, outcomes: &[Outcome]| Section {
        title,
        rows: rows(outcomes),
        grids: vec![matrix(outcomes), details(outcomes)],
        ..Section::default()
    };
    // A page with two sweeps needs titles that differ.
    let setting = format!("{}, {}", sweep.base.machine.device.name, writers(sweep.base.writers));
    let title = format!("{setting}: as many jobs as the degree");
    let mut sections = vec![section(title, &runs.by_jobs)];
    if !runs.by_degree.is_empty() {
        let title = format!("{setting}: {} jobs", sweep.background);
        sections.push(section(title, &runs.by_degree));
    }
    sections
}

fn writers(number: usize) -> String {
    if number == 1 { "1 writer".to_owned() } else { format!("{number} writers") }
}

/// Buckets compared with the other modes, at each degree.
fn rows(outcomes: &[Outcome]) -> Vec<Row> {
    let of = |mode: Mode| outcomes.iter().filter(move |outcome| outcome.mode == mode);
    let row = |ours: &Outcome, theirs: &Outcome| {
        let ratio = ours.mb_per_s / theirs.mb_per_s;
        Row {
            name: format!("degree {}: buckets / {}", ours.degree, theirs.mode.name()),
            unit: "MB/s",
            measured: Some(ours.mb_per_s),
            peer: Some(theirs.mb_per_s),
            ratio: Some(Ratio { median: ratio, min: f64::NAN, max: f64::NAN }),
            ..Row::default()
        }
    };
    let mut rows = Vec::new();
    for ours in of(Mode::Buckets) {
        for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Buckets) {
            let theirs = of(mode).find(|theirs| theirs.degree == ours.degree);
            rows.extend(theirs.map(|theirs| row(ours, theirs)));
        }
    }
    rows
}

/// Throughput by mode and degree.
fn matrix(outcomes: &[Outcome]) -> Grid {
    let mut degrees: Vec<usize> = outcomes.iter().map(|outcome| outcome.degree).collect();
    degrees.sort_unstable();
    degrees.dedup();
    let header =
        std::iter::once("MB/s by degree".to_owned()).chain(degrees.iter().map(usize::to_string));
    let mut table = Grid::new(header);
    for mode in Mode::ALL.into_iter().filter(|mode| outcomes.iter().any(|o| o.mode == *mode)) {
        let cell = |degree: &usize| {
            let found = outcomes.iter().find(|o| o.mode == mode && o.degree == *degree);
            found.map_or_else(String::new, |outcome| format!("{:.0}", outcome.mb_per_s))
        };
        let cells = std::iter::once(mode.name().to_owned()).chain(degrees.iter().map(cell));
        table.push(cells);
    }
    table
}

/// Figures that explain the throughput, with one row per run.
fn details(outcomes: &[Outcome]) -> Grid {
    let header = [
        "mode",
        "jobs",
        "degree",
        "MB/s",
        "seconds",
        "threads busy",
        "at most",
        "write amp.",
        "stalled %",
        "debt left GB",
        "L0 job s",
        "std dev",
        "straggler",
        "cores full %",
        "device full %",
    ];
    let mut table = Grid::new(header);
    for o in outcomes {
        let stalled: f64 = o.stalled_s.values().sum();
        table.push([
            o.mode.name().to_owned(),
            o.jobs.to_string(),
            o.degree.to_string(),
            format!("{:.0}", o.mb_per_s),
            format!("{:.0}", o.seconds),
            format!("{:.1}", o.threads_mean),
            o.threads_max.to_string(),
            format!("{:.1}", o.write_amplification),
            format!("{:.0}", stalled / o.seconds * 100.0),
            format!("{:.0}", o.pending_bytes as f64 / 1e9),
            format!("{:.2}", o.l0_compaction_s_mean),
            format!("{:.2}", o.l0_compaction_s_std),
            format!("{:.2}", o.straggler_ratio),
            format!("{:.0}", o.cores_full_share * 100.0),
            format!("{:.0}", o.device_full_share * 100.0),
        ]);
    }
    table
}

/// File names and SVG texts.
pub(super) fn charts(runs: &Runs) -> Vec<(String, String)> {
    let mut charts = vec![("throughput-by-jobs.svg".to_owned(), throughput(&runs.by_jobs, "jobs"))];
    if !runs.by_degree.is_empty() {
        let svg = throughput(&runs.by_degree, "degree");
        charts.push(("throughput-by-degree.svg".to_owned(), svg));
    }
    // Over time: the largest degree of each mode.
    let of = if runs.by_degree.is_empty() { &runs.by_jobs } else { &runs.by_degree };
    let last = |mode: Mode| of.iter().rfind(|outcome| outcome.mode == mode);
    let widest: Vec<&Outcome> = Mode::ALL.into_iter().filter_map(last).collect();
    let mut threads = Chart::new("Threads busy", "seconds", "threads");
    let mut l0 = Chart::new("L0 files of the fullest bucket", "seconds", "files");
    for outcome in widest {
        let name = format!("{} {}", outcome.mode.name(), outcome.degree);
        let line = |value: fn(&super::trace::Point) -> f64| -> Vec<(f64, f64)> {
            outcome.series.iter().map(|point| (point.at_s, value(point))).collect()
        };
        threads = threads.line(&name, &line(|point| point.threads));
        l0 = l0.step(&name, &line(|point| point.l0_max));
        if outcome.mode == Mode::Buckets {
            let mean = line(|point| point.l0_mean);
            l0 = l0.line(&format!("{name}, mean of all"), &mean);
            l0 = l0.line(&format!("{name}, emptiest"), &line(|point| point.l0_min));
        }
    }
    charts.push(("threads-busy.svg".to_owned(), threads.svg()));
    charts.push(("l0-files.svg".to_owned(), l0.svg()));
    charts
}

fn throughput(outcomes: &[Outcome], x: &str) -> String {
    let mut chart = Chart::new("Modelled throughput of fillrandom", x, "MB/s").x_doubling();
    for mode in Mode::ALL {
        let of_mode = outcomes.iter().filter(|outcome| outcome.mode == mode);
        let points: Vec<_> = of_mode.map(|o| (o.degree as f64, o.mb_per_s)).collect();
        if !points.is_empty() {
            chart = chart.line(mode.name(), &points);
        }
    }
    chart.svg()
}
