//! The sections of the report: a section of rows for each part, then the figures behind them. The
//! functions are pure.

use super::bounds;
use super::flags::TerarkEngineFlags;
use super::plan::{self, Mode, Part, StepKind};
use super::rows::{self, Facts, Row};
use super::run::Run;
use crate::page::{Grid, Section};

const MIB: f64 = 1_048_576.0;

/// The sections of the report.
pub(super) fn sections(facts: &Facts<'_>, rows: &[Row]) -> Vec<Section> {
    let of = |part: Part| {
        let rows: Vec<_> =
            rows.iter().filter(|row| row.part == part).map(|row| row.page_row.clone()).collect();
        let grids = if part == Part::Volume { vec![arithmetic(facts)] } else { Vec::new() };
        let title = part.title().to_owned();
        (!rows.is_empty()).then_some(Section { title, rows, grids, ..Section::default() })
    };
    let mut sections: Vec<Section> = Part::ALL.into_iter().filter_map(of).collect();
    sections.push(Section {
        title: "The figures behind the rows (medians)".to_owned(),
        grids: vec![figures(facts), collections(facts)],
        ..Section::default()
    });
    sections.iter_mut().for_each(|section| section.grids.retain(|grid| !grid.rows.is_empty()));
    sections
}

/// The factors from which the bounds of the network volume follow.
fn arithmetic(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "benchmark",
        "W, rewriting without separation",
        "share in the levels",
        "hidden garbage of the plan",
        "collected per user byte",
        "writes without separation",
        "writes separated",
    ]);
    let share = plan::share_in_levels();
    let plan = bounds::plan(plan::BOUND - 1.0, share);
    for (kind, name, hidden, collected) in [
        (StepKind::Fill, "fillrandom", 0.0, 0.0),
        (StepKind::Update, "overwrite", plan.hidden, plan.cost),
    ] {
        let Some(rewrites) = rows::rewrites(facts, kind) else { continue };
        grid.push([
            name.to_owned(),
            format!("{rewrites:.2}"),
            format!("{share:.4}"),
            format!("{hidden:.3}"),
            format!("{collected:.2}"),
            format!("{:.2}", bounds::writes_inline(rewrites)),
            format!("{:.2}", bounds::writes_separated(rewrites, share, collected)),
        ]);
    }
    grid
}

/// Figures of all parts and modes that write.
fn figures(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "part",
        "mode",
        "step",
        "ops/s",
        "settle s",
        "write amp.",
        "space, mean",
        "space, largest",
        "log MiB, largest",
        "peak MiB",
        "runs",
    ]);
    for part in Part::ALL {
        for &mode in part.modes() {
            for (kind, name) in [(StepKind::Fill, "fillrandom"), (StepKind::Update, "overwrite")] {
                grid.rows.extend(figures_of(facts, part, mode, kind, name));
            }
        }
    }
    grid
}

fn figures_of(
    facts: &Facts<'_>,
    part: Part,
    mode: Mode,
    kind: StepKind,
    name: &str,
) -> Option<Vec<String>> {
    let is_sampled = part != Part::Mixed && kind == StepKind::Update;
    let middle = |decimals: usize, figure: &dyn Fn(&Run) -> Option<f64>| {
        let found = facts.median_of(part, mode, figure);
        found.map_or_else(|| "—".to_owned(), |value| format!("{value:.decimals$}"))
    };
    let space = |figure: &dyn Fn(&Run) -> Option<f64>| match is_sampled {
        true => middle(3, figure),
        false => "—".to_owned(),
    };
    facts.median_of(part, mode, |run| run.rate(kind, name))?;
    let runs = facts.runs.iter().filter(|run| run.part == part && run.mode == mode).count();
    Some(vec![
        format!("{part:?}").to_lowercase(),
        mode.name().to_owned(),
        name.to_owned(),
        middle(0, &|run| run.rate(kind, name)),
        middle(1, &|run| run.settle_s(kind)),
        middle(2, &|run| run.write_amplification(kind, name)),
        space(&Run::space_mean),
        space(&Run::space_max),
        space(&|run| run.log_max_mib()),
        middle(0, &|run| run.peak_mib(kind)),
        runs.to_string(),
    ])
}

/// Figures of garbage collection in the part `gc`.
fn collections(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "round",
        "jobs",
        "files MiB",
        "records",
        "valid share",
        "read share",
        "read calls",
        "seconds",
        "key by key, ms each",
    ]);
    for run in facts.runs.iter().filter(|run| run.part == Part::Gc) {
        let Some(found) = run.collection() else { continue };
        let rate = run.rate(StepKind::KeyByKey, "readrandom");
        grid.push([
            (run.round + 1).to_string(),
            format!("{:.0}", found.jobs),
            format!("{:.0}", found.file_bytes / MIB),
            format!("{:.0}", found.records),
            format!("{:.3}", found.valid_share),
            format!("{:.3}", found.read_share),
            format!("{:.0}", found.read_calls),
            format!("{:.1}", found.seconds),
            rate.map_or_else(|| "—".to_owned(), |rate| format!("{:.2}", 1000.0 / rate)),
        ]);
    }
    grid
}

/// Settings of the runs, for the head of the report.
pub(super) fn settings(flags: &TerarkEngineFlags, peer: &str, took_s: u64) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let peer = match (peer, flags.db_bench_flags.as_str()) {
        ("", _) => "none".to_owned(),
        (version, "") => format!("{version}, with its defaults of garbage collection"),
        (version, more) => format!("{version}, with {more}"),
    };
    format!(
        "Ways to store values, in alternating runs of archipelago {version} and db_bench, {runs} of \
         each; medians.\n\n\
         - **Peer**: {peer}.\n\
         - **Emulated**: the network volume of docs/devices/network-volume.toml at a scale of \
         {scale}, only where a row says so. It has no page cache. All other rows run on the plain \
         disk, with its page cache.\n\
         - **Machine**: {cores} cores; the table took {minutes} minutes.\n\
         - **Data**: {mib:.0} MiB of 24-byte keys and values, and three times as many bytes of \
         updates; no compression; each write logged.\n\
         - **Store**: memtables 4 MiB × 4, tables 4 MiB, value files 8 MiB, base level 2 MiB, cache \
         {cache:.1} MiB, 10 bloom bits per key, 4 background jobs, values of 512 B and more \
         separated.\n\
         - **Space**: bytes of tables and value files over live bytes, every 100 ms during the \
         updates. A scan of everything counts the live records afterwards. The log is not part of \
         it. A bound of 1.15, 1.25 or 1.5 includes a slack of {slack:.0} MiB. Updates of `space` are limited to {limit:.0} MB/s.\n",
        version = env!("CARGO_PKG_VERSION"),
        runs = flags.runs(),
        scale = flags.device_scale,
        minutes = took_s.div_ceil(60),
        mib = flags.data_bytes() as f64 / MIB,
        cache = flags.data_bytes() as f64 / 100.0 / MIB,
        slack = plan::slack_bytes() as f64 / MIB,
        limit = flags.update_bytes_per_s as f64 / 1e6,
    )
}
