//! The table: medians of both sides, ratios, targets and verdicts, as Markdown and as JSON.

use serde::Serialize;

use super::flags::Settings;
use super::host::Host;
use super::journal::Entry;
use super::rows::{ROWS, Row, Target};
use super::steps::{
    self, Step, THROTTLED_BYTES_PER_S, WRITER_BYTES_PER_S, cold_reads, overwrites, writes_of_two,
};
use crate::compare::run::Side;
use crate::compare::table::Row as Figures;

/// How a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Pass,
    Miss,
    /// No round in which both sides gave the figure.
    Failed,
    /// There is no target.
    None,
}

/// A row with its figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) target: String,
    /// Rounds in which both sides gave the figure.
    pub(super) runs: u64,
    pub(super) figures: Option<Figures>,
    pub(super) verdict: Verdict,
    #[serde(skip)]
    row: Row,
}

/// The result file.
#[derive(Debug, Serialize)]
pub(super) struct File<'a> {
    pub(super) settings: &'a Settings,
    pub(super) host: &'a Host,
    pub(super) load_average_at_end: &'a str,
    pub(super) rows: &'a [Line],
    pub(super) failures: Vec<String>,
    pub(super) runs: &'a [Entry],
}

/// The rows that `settings` ask for, from `entries`.
pub(super) fn lines(settings: &Settings, entries: &[Entry]) -> Vec<Line> {
    let asked = ROWS.iter().filter(|row| settings.rows.iter().any(|name| name == row.name));
    asked.map(|row| line(row, entries)).collect()
}

fn line(row: &Row, entries: &[Entry]) -> Line {
    let figure = |entry: &Entry| row.metric.of(entry.run.as_ref()?, entry.opening.as_ref());
    let of_step = |side| {
        entries.iter().filter(move |entry: &&Entry| entry.step == row.step && entry.side == side)
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for entry in of_step(Side::Archipelago) {
        let partner = of_step(Side::RocksDb).find(|other| other.round == entry.round);
        if let (Some(our), Some(their)) = (figure(entry), partner.and_then(figure)) {
            ours.push(our);
            theirs.push(their);
        }
    }
    let figures = Figures::of(row.what, &ours, &theirs);
    let verdict = match &figures {
        None => Verdict::Failed,
        Some(_) if row.target == Target::Nothing => Verdict::None,
        Some(found) if row.target.is_reached(found.ratio_of_medians, found.archipelago.max) => {
            Verdict::Pass
        }
        Some(_) => Verdict::Miss,
    };
    Line {
        name: row.name,
        what: row.what,
        target: row.target.text(),
        runs: ours.len() as u64,
        figures,
        verdict,
        row: *row,
    }
}

/// What failed, one text per step, side and round.
pub(super) fn failures(entries: &[Entry]) -> Vec<String> {
    let said = |entry: &Entry| {
        let error = entry.error.as_ref()?;
        let (step, side, run) = (entry.step.name(), entry.side.name(), entry.round + 1);
        Some(format!("{step}, {side}, run {run}: {error}"))
    };
    entries.iter().filter_map(said).collect()
}

/// The report.
pub(super) fn markdown(
    settings: &Settings,
    host: &Host,
    load_at_end: &str,
    lines: &[Line],
    entries: &[Entry],
) -> String {
    let mut out = format!("## Archipelago against RocksDB\n\n{}", host.text(load_at_end));
    out += &options(settings);
    let asserts =
        |side| entries.iter().any(|e| e.side == side && e.run.as_ref().is_some_and(|r| r.asserts));
    for side in [Side::Archipelago, Side::RocksDb] {
        if asserts(side) {
            out +=
                &format!("- {} says that its assertions are on, which slow it down\n", side.name());
        }
    }
    out += "\n| row | Archipelago | RocksDB | ratio (pairs) | target | verdict | runs |\n\
            | --- | ---: | ---: | ---: | --- | --- | ---: |\n";
    for line in lines {
        out += &markdown_row(line);
    }
    let reached = lines.iter().filter(|line| line.verdict == Verdict::Pass).count();
    let targets = lines.iter().filter(|line| line.row.target != Target::Nothing).count();
    out += &format!("\n{reached} of {targets} targets reached.");
    for failure in failures(entries) {
        out += &format!("\n\nFailed: {}", failure.replace('\n', " "));
    }
    out
}

fn markdown_row(line: &Line) -> String {
    let Line { what, target, runs, .. } = line;
    let verdict = match line.verdict {
        Verdict::Pass => "pass",
        Verdict::Miss => "**miss**",
        Verdict::Failed => "**failed**",
        Verdict::None => "—",
    };
    let Some(figures) = &line.figures else {
        return format!("| {what} | — | — | — | {target} | {verdict} | {runs} |\n");
    };
    let digits = line.row.metric.decimals();
    let ratio = figures.ratio_of_medians;
    let shown = (ratio * 100.0).round() / 100.0;
    let reached = |ratio| line.row.target.is_reached(ratio, figures.archipelago.max);
    // Two digits must not show a narrow miss as a hit.
    let fine = if reached(shown) == reached(ratio) { 2 } else { 5 };
    let worst = match line.row.target {
        Target::WorstAtMost(_) => format!(" (most {:.digits$})", figures.archipelago.max),
        Target::AtLeast(_) | Target::AtMost(_) | Target::Nothing => String::new(),
    };
    format!(
        "| {what} | {:.digits$}{worst} | {:.digits$} | {} ({} – {}) | {target} | {verdict} | {runs} |\n",
        figures.archipelago.median,
        figures.rocksdb.median,
        times(ratio, fine),
        times(figures.ratio_min, 2),
        times(figures.ratio_max, 2),
    )
}

fn times(ratio: f64, digits: usize) -> String {
    if ratio.is_finite() { format!("{ratio:.digits$}×") } else { "—".to_owned() }
}

/// What both sides were told, as lines of a Markdown list.
fn options(settings: &Settings) -> String {
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let num = settings.num;
    let mut text = format!(
        "- both: {num} keys of 16 B, values of 100 B, no compression, each write logged and not \
         synced (fillsync: synced), 64 MiB memtables, 2 background jobs, 10 bloom bits per key, \
         checksums verified; a process per run, sides in turn, medians; until \
         settled: all flushed and nothing left to compact\n\
         - {} reads per row; overwrite {} writes, 2 threads {} each, fillsync {}; warm: cache of \
         {:.0} MiB filled by as many reads before; seeks with nexts and reads beside a writer (of \
         {:.1} MB/s): {} s each, every operation timed\n\
         - cold: {} reads, cache of {:.0} MiB, O_DIRECT; reads per get are the process's read calls, \
         bytes those from the device, both without what a run with one read takes\n\
         - under a limit: values of {} B for {} s, flush and compaction limited to {} MB/s\n\
         - RocksDB's indexes and filters are outside its cache, as is its default; Archipelago's are \
         inside\n",
        settings.reads,
        overwrites(num),
        writes_of_two(num),
        settings.syncs,
        mib(steps::warm_cache_bytes(num)),
        WRITER_BYTES_PER_S as f64 / 1e6,
        settings.mixed_seconds,
        cold_reads(settings),
        mib(steps::cold_cache_bytes(num)),
        Step::Throttled.entry().value_bytes,
        settings.throttled_seconds,
        THROTTLED_BYTES_PER_S / 1_000_000,
    );
    if !settings.db_bench_flags.is_empty() {
        text += &format!("- db_bench also got {}\n", settings.db_bench_flags);
    }
    text
}
