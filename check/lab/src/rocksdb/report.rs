//! The table: medians of both sides, ratios, targets and verdicts, as Markdown and as JSON.

use serde::Serialize;

use super::entry::Entry;
use super::flags::Settings;
use super::host::Host;
use super::rows::{ROWS, Row, Target};
use super::steps::{
    self, Step, THROTTLED_BYTES_PER_S, WRITER_BYTES_PER_S, cold_reads, overwrites, writes_of_two,
};
use crate::claim;
use crate::compare::run::Side;
use crate::compare::table::Row as Figures;
use crate::page::{self, Ratio, RowTarget, Section, Verdict};

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
        Some(_) if row.target == Target::Nothing => Verdict::NoTarget,
        Some(found) if row.target.is_reached(found.ratio_of_medians, found.archipelago.max) => {
            Verdict::Met
        }
        Some(_) => Verdict::Missed,
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

/// Failures, with one text per step, side and round.
pub(super) fn failures(entries: &[Entry]) -> Vec<String> {
    let said = |entry: &Entry| {
        let error = entry.error.as_ref()?;
        let (step, side, run) = (entry.step.name(), entry.side.name(), entry.round + 1);
        Some(format!("{step}, {side}, run {run}: {error}"))
    };
    entries.iter().filter_map(said).collect()
}

/// Settings of the runs, as lines of a Markdown list.
pub(super) fn about(
    settings: &Settings,
    host: &Host,
    load_at_end: &str,
    entries: &[Entry],
) -> String {
    let mut out = host.text(load_at_end) + &options(settings);
    let asserts =
        |side| entries.iter().any(|e| e.side == side && e.run.as_ref().is_some_and(|r| r.asserts));
    for side in [Side::Archipelago, Side::RocksDb] {
        if asserts(side) {
            out +=
                &format!("- {} says that its assertions are on, which slow it down\n", side.name());
        }
    }
    out
}

/// The table and the failures.
pub(super) fn section(lines: &[Line], entries: &[Entry]) -> Section {
    let failed = failures(entries).into_iter();
    Section {
        title: "Archipelago and RocksDB".to_owned(),
        rows: lines.iter().map(Line::page_row).collect(),
        notes: failed.map(|failure| format!("Failed: {}", failure.replace('\n', " "))).collect(),
        ..Section::default()
    }
}

impl Line {
    fn page_row(&self) -> page::Row {
        let worst = self.figures.as_ref().map_or(f64::NAN, |figures| figures.archipelago.max);
        let target = match self.row.target {
            Target::AtLeast(bound) => Some(RowTarget::Ratio(claim::Target::AtLeast(bound))),
            Target::AtMost(bound) => Some(RowTarget::Ratio(claim::Target::AtMost(bound))),
            Target::WorstAtMost(at_most) => Some(RowTarget::Worst { at_most, worst }),
            Target::Nothing => None,
        };
        let figures = self.figures.as_ref();
        page::Row {
            name: self.what.to_owned(),
            unit: self.row.metric.unit(),
            decimals: self.row.metric.decimals(),
            measured: figures.map(|figures| figures.archipelago.median),
            peer: figures.map(|figures| figures.rocksdb.median),
            ratio: figures.map(|figures| Ratio {
                median: figures.ratio_of_medians,
                min: figures.ratio_min,
                max: figures.ratio_max,
            }),
            bound: String::new(),
            paper: String::new(),
            target,
            verdict: self.verdict,
            runs: Some(self.runs),
            cause: self.row.cause(),
        }
    }
}

/// Options of both sides, as lines of a Markdown list.
fn options(settings: &Settings) -> String {
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let num = settings.num;
    let mut text = format!(
        "- both: {num} keys of 16 B, values of 100 B, no compression, each write logged and not \
         synced (fillsync: synced), 64 MiB memtables, 2 background jobs, 10 bloom bits per key, \
         checksums verified; a process per run, sides in turn, medians; until \
         settled: all flushed and nothing left to compact\n\
         - {} reads per row; overwrite {} writes, 2 threads {} each, fillsync {}; warm: cache of \
         {:.0} MiB filled by as many reads before; seeks with nexts and reads in parallel with a writer (of \
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
