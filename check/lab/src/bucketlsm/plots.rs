//! The charts of a reproduction: names of files and their SVG texts. The functions are pure.

use super::plan::{Case, Mode, Setting, Workload};
use super::run::{Run, l0_inputs};
use super::table::Runs;
use crate::claim::median;
use crate::plot::Chart;
use archipelago_bench::harness::samples::Series;

/// Points over time of a line of means.
const PARTS: u32 = 120;
const MIB: f64 = 1_048_576.0;
const MODES: [Mode; 4] = [Mode::Classic, Mode::Subcompactions, Mode::Static, Mode::Buckets];

/// Every plot for which runs exist: (file name, SVG). A plot over time shows the run with the
/// median rate.
pub(super) fn all(runs: &Runs, jobs: &[u64]) -> Vec<(String, String)> {
    let mut plots = Vec::new();
    for workload in [Workload::FillRandom, Workload::MixGraph1] {
        let of = |mode| runs.middle(Case { workload, setting: Setting::Device, mode });
        let shown: Vec<&Run> = MODES.into_iter().filter_map(of).collect();
        if shown.is_empty() {
            continue;
        }
        let name = workload.benchmark();
        plots.push((format!("threads-busy-{name}.svg"), threads_busy(workload, &shown)));
        plots.push((format!("l0-files-{name}.svg"), l0_files(workload, &shown)));
        plots.push((format!("l0-input-{name}.svg"), l0_input(workload, &shown)));
    }
    if jobs.len() > 1 {
        plots.push(("throughput-by-jobs.svg".to_owned(), by_jobs(runs, jobs)));
    }
    plots
}

fn threads_busy(workload: Workload, shown: &[&Run]) -> String {
    let title = format!("{}: background threads busy", workload.name());
    let mut chart = Chart::new(&title, "seconds since the start", "threads busy");
    for run in shown {
        if let Some(window) = run.series.window(workload.benchmark()) {
            let points = run.series.threads_busy_over(window, PARTS);
            chart = chart.line(run.mode.name(), &points);
        }
    }
    chart.svg()
}

fn l0_files(workload: Workload, shown: &[&Run]) -> String {
    let title = format!("{}: L0 files in a bucket (a classic L0 is one bucket)", workload.name());
    let mut chart = Chart::new(&title, "seconds since the start", "L0 files");
    for run in shown {
        let over_time =
            |pick: fn(&[usize]) -> f64| l0_over_time(&run.series, workload.benchmark(), pick);
        let fullest = over_time(|files| files.iter().copied().max().unwrap_or(0) as f64);
        if matches!(run.mode, Mode::Classic | Mode::Subcompactions) {
            chart = chart.step(run.mode.name(), &fullest);
        } else {
            chart = chart.step(&format!("{}, fullest", run.mode.name()), &fullest);
        }
        if run.mode == Mode::Buckets {
            let mean =
                over_time(|files| files.iter().sum::<usize>() as f64 / files.len().max(1) as f64);
            chart = chart.line("buckets, mean", &mean);
        }
    }
    chart.svg()
}

/// Distribution of the input sizes of L0 compactions: the share of inputs up to each size.
fn l0_input(workload: Workload, shown: &[&Run]) -> String {
    let title = format!("{}: input of compactions out of L0", workload.name());
    let mut chart = Chart::new(&title, "input, MiB", "share of the compactions up to this size");
    for run in shown {
        let Some(window) = run.series.window(workload.benchmark()) else { continue };
        let mut sizes = l0_inputs(&run.series, window);
        sizes.sort_by(f64::total_cmp);
        let count = sizes.len() as f64;
        let points = sizes.iter().zip(1..).map(|(size, at)| (size / MIB, f64::from(at) / count));
        let points: Vec<(f64, f64)> = std::iter::once((0.0, 0.0)).chain(points).collect();
        chart = chart.step(run.mode.name(), &points);
    }
    chart.svg()
}

fn l0_over_time(series: &Series, benchmark: &str, pick: fn(&[usize]) -> f64) -> Vec<(f64, f64)> {
    let Some(window) = series.window(benchmark) else { return Vec::new() };
    let point = |sample: &archipelago_bench::harness::samples::Sample| {
        (sample.t_s - window.start_s, pick(&sample.l0_files))
    };
    series.during(window).map(point).collect()
}

fn by_jobs(runs: &Runs, jobs: &[u64]) -> String {
    let mut chart =
        Chart::new("fillrandom by background jobs", "background jobs", "operations per second")
            .x_doubling();
    let mut jobs = jobs.to_vec();
    jobs.sort_unstable();
    for mode in [Mode::Subcompactions, Mode::Buckets] {
        let point = |&jobs: &u64| {
            let (workload, setting) = (Workload::FillRandom, Setting::Jobs(jobs));
            let case = Case { workload, setting, mode };
            let rates = runs.values(case, |figures| Some(figures.ops_per_s));
            Some((jobs as f64, median(&rates)?))
        };
        let points: Vec<(f64, f64)> = jobs.iter().filter_map(point).collect();
        chart = chart.line(mode.name(), &points);
    }
    chart.svg()
}
