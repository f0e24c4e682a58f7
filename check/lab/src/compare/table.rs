//! The report of a comparison: medians, extremes and ratios.

use std::fmt::Write as _;

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::run::{Side, SideRun};
use archipelago_bench::harness::flags::CompareFlags;

const MIB: f64 = 1_048_576.0;

/// All runs of both sides.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    flags_text: String,
    runs: Vec<SideRun>,
}

/// Median and extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// One line of the report: a benchmark's rate, or a figure of the whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) archipelago: Spread,
    pub(crate) rocksdb: Spread,
    /// Archipelago's median divided by RocksDB's.
    pub(crate) ratio_of_medians: f64,
    /// Range of the ratios of neighbouring runs.
    pub(crate) ratio_min: f64,
    pub(crate) ratio_max: f64,
}

/// The file of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary<'a> {
    settings: &'a str,
    /// Operations per second, of which more is better.
    benchmarks: Vec<Row>,
    /// Figures of the whole run, of which less is better.
    process: Vec<Row>,
    runs: &'a [SideRun],
}

impl Spread {
    /// Median and extremes of `values`, or `None` without values.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, min, max })
    }
}

impl Row {
    /// `None` unless both sides have values. Ratios against zero are left out (not a number).
    pub(crate) fn of(what: &str, ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let (archipelago, rocksdb) = (Spread::of(ours)?, Spread::of(theirs)?);
        let pairs: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        let ratios = Spread::of(&pairs)?;
        Some(Self {
            what: what.to_owned(),
            archipelago,
            rocksdb,
            ratio_of_medians: archipelago.median / rocksdb.median,
            ratio_min: ratios.min,
            ratio_max: ratios.max,
        })
    }
}

impl Comparison {
    /// A comparison without runs.
    pub(crate) fn new(flags: &CompareFlags) -> Self {
        let (load, storage) = (&flags.bench.load, &flags.bench.storage);
        let promise = match (load.disable_wal, load.sync) {
            (true, _) => "no log: writes are lost on kill -9",
            (_, true) => "each write synced: it survives power loss",
            _ => "each write logged: it survives kill -9",
        };
        let flags_text = format!(
            "{} runs each, alternating; {} keys of {} B, values of {} B, threads: {}, compression: \
             {}, memtable: {}, cache: {}, background jobs: {}; {promise}",
            flags.runs,
            load.num,
            load.key_size,
            load.value_size,
            load.threads,
            storage.compression_type.header_name(),
            size(storage.write_buffer_size),
            size(storage.cache_size),
            storage.max_background_jobs,
        );
        Self { flags_text, runs: Vec::new() }
    }

    /// Adds a run.
    pub(crate) fn add(&mut self, run: SideRun) {
        self.runs.push(run);
    }

    fn of_side(&self, side: Side) -> impl Iterator<Item = &SideRun> {
        self.runs.iter().filter(move |run| run.side == side)
    }

    /// A row of the figure that `pick` takes from each run.
    fn row(&self, what: &str, pick: impl Fn(&SideRun) -> Option<f64>) -> Option<Row> {
        let values = |side| self.of_side(side).filter_map(&pick).collect::<Vec<f64>>();
        Row::of(what, &values(Side::Archipelago), &values(Side::RocksDb))
    }

    /// A row for each result line. A repeated name gets a number.
    fn benchmark_rows(&self) -> Vec<Row> {
        let Some(first) = self.runs.first() else { return Vec::new() };
        let names: Vec<&str> = first.lines.iter().map(|line| line.name.as_str()).collect();
        names
            .iter()
            .enumerate()
            .filter_map(|(at, name)| {
                let earlier = names[..at].iter().filter(|other| *other == name).count();
                let nth = |run: &SideRun| {
                    let mut lines = run.lines.iter().filter(|line| line.name == *name);
                    lines.nth(earlier).map(|line| line.ops_per_s)
                };
                let what = match earlier {
                    0 => (*name).to_owned(),
                    _ => format!("{name} #{}", earlier + 1),
                };
                self.row(&what, nth)
            })
            .collect()
    }

    fn process_rows(&self) -> Vec<Row> {
        let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / MIB);
        [
            self.row("peak memory, MiB", |run| mib(run.peak_rss_bytes)),
            self.row("bytes written, MiB", |run| mib(run.bytes_written)),
            self.row("write amplification", |run| run.write_amplification),
            self.row("settled tables, MiB", |run| mib(Some(run.settled_bytes))),
            self.row("time to settle, s", |run| run.settle_seconds),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The report as text.
    pub(crate) fn text(&self, markdown: bool) -> String {
        let mut out = format!("{}\n\n", self.flags_text);
        let _ = writeln!(out, "Operations per second (ratio above 1: Archipelago is faster)\n");
        let _ = writeln!(out, "{}\n", table(&self.benchmark_rows(), 0, markdown));
        let _ = writeln!(out, "The whole run (ratio below 1: Archipelago needs less)\n");
        let _ = write!(out, "{}", table(&self.process_rows(), 2, markdown));
        out
    }

    /// The report as a value.
    pub(crate) fn summary(&self) -> Summary<'_> {
        Summary {
            settings: &self.flags_text,
            benchmarks: self.benchmark_rows(),
            process: self.process_rows(),
            runs: &self.runs,
        }
    }
}

fn table(rows: &[Row], decimals: usize, markdown: bool) -> String {
    let mut table = Table::new();
    table.load_preset(if markdown { ASCII_MARKDOWN } else { UTF8_FULL_CONDENSED });
    table.set_header([
        "",
        "Archipelago",
        "min – max",
        "RocksDB",
        "min – max",
        "ratio",
        "pairs, min – max",
    ]);
    let range = |spread: &Spread| format!("{:.decimals$} – {:.decimals$}", spread.min, spread.max);
    for row in rows {
        table.add_row([
            row.what.clone(),
            format!("{:.decimals$}", row.archipelago.median),
            range(&row.archipelago),
            format!("{:.decimals$}", row.rocksdb.median),
            range(&row.rocksdb),
            times(row.ratio_of_medians),
            format!("{} – {}", times(row.ratio_min), times(row.ratio_max)),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Size as text, such as "64 MiB" or "100 KiB".
fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Ratio as text, such as "1.53×", or a dash where there is no ratio.
fn times(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.2}×") } else { "—".to_owned() }
}
