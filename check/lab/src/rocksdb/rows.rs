//! The rows of the table: the source of each figure, and its target.

use super::steps::Step;
use crate::compare::run::SideRun;

/// Names of `--rows`, in the table's order.
pub(crate) const NAMES: &[&str] = &[
    "fillseq",
    "fillrandom",
    "overwrite",
    "fillrandom2",
    "readrandom",
    "readmissing",
    "readrandom2",
    "readmissing2",
    "readcold",
    "seekrandom",
    "seekrandom10",
    "readseq",
    "readreverse",
    "readwhilewriting",
    "fillsync",
    "throttled",
];

/// A figure of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Metric {
    /// Operations per second of the last benchmark of that name.
    Rate(&'static str),
    /// Operations per second of the last benchmark of that name, including the time until nothing
    /// is left to compact.
    SettledRate(&'static str),
    /// 99th percentile of a kind of operation of a benchmark, in microseconds.
    P99(&'static str, &'static str),
    /// Longest operation of a kind in a benchmark, in milliseconds.
    Longest(&'static str, &'static str),
    WriteAmplification,
    SettledMib,
    PeakMib,
    /// Read calls per get, without those that opening the database takes.
    ReadCallsPerGet,
    /// Bytes from the device per get, without those that opening the database takes.
    BytesPerGet,
}

/// Target of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Target {
    /// Ratio of the medians.
    AtLeast(f64),
    AtMost(f64),
    /// Bound of the largest of Archipelago's own figures.
    WorstAtMost(f64),
    /// No target, because the row explains another row.
    Nothing,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Name in `--rows`, which several rows may share.
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) step: Step,
    pub(super) metric: Metric,
    pub(super) target: Target,
}

const fn row(
    name: &'static str,
    what: &'static str,
    step: Step,
    metric: Metric,
    target: Target,
) -> Row {
    Row { name, what, step, metric, target }
}

use Metric::{
    BytesPerGet, Longest, P99, PeakMib, Rate, ReadCallsPerGet, SettledMib, SettledRate,
    WriteAmplification,
};
use Step::{
    Cold, FillRandom, FillRandom2, FillSeq, FillSync, Mixed, Overwrite, Throttled, Warm, Warm2,
};
use Target::{AtLeast, AtMost, Nothing, WorstAtMost};

/// Rows of the table, in order.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row("fillseq", "fillseq, ops/s", FillSeq, Rate("fillseq"), AtLeast(5.0)),
    row("fillseq", "fillseq until settled, ops/s", FillSeq, SettledRate("fillseq"), AtLeast(2.5)),
    row("fillrandom", "fillrandom, ops/s", FillRandom, Rate("fillrandom"), AtLeast(4.0)),
    row("fillrandom", "fillrandom until settled, ops/s", FillRandom, SettledRate("fillrandom"), AtLeast(2.5)),
    row("fillrandom", "fillrandom, write amplification", FillRandom, WriteAmplification, AtMost(1.0)),
    row("fillrandom", "fillrandom, settled size, MiB", FillRandom, SettledMib, AtMost(1.0)),
    row("fillrandom", "fillrandom, peak memory, MiB", FillRandom, PeakMib, AtMost(1.0)),
    row("overwrite", "overwrite, ops/s", Overwrite, Rate("overwrite"), AtLeast(3.0)),
    row("overwrite", "overwrite until settled, ops/s", Overwrite, SettledRate("overwrite"), AtLeast(2.5)),
    row("overwrite", "overwrite, settled size, MiB", Overwrite, SettledMib, AtMost(1.0)),
    row("fillrandom2", "fillrandom, 2 threads, ops/s", FillRandom2, Rate("fillrandom"), AtLeast(3.0)),
    row("readrandom", "readrandom, warm, ops/s", Warm, Rate("readrandom"), AtLeast(2.5)),
    row("readmissing", "readmissing, warm, ops/s", Warm, Rate("readmissing"), AtLeast(2.5)),
    row("readrandom2", "readrandom, warm, 2 threads, ops/s", Warm2, Rate("readrandom"), AtLeast(2.5)),
    row("readmissing2", "readmissing, warm, 2 threads, ops/s", Warm2, Rate("readmissing"), AtLeast(2.5)),
    row("readcold", "readrandom, cache of a tenth, direct I/O, ops/s", Cold, Rate("readrandom"), AtLeast(1.0)),
    row("readcold", "the same, device reads per get", Cold, ReadCallsPerGet, AtMost(1.0)),
    row("readcold", "the same, device bytes per get", Cold, BytesPerGet, Nothing),
    row("seekrandom", "seekrandom, ops/s", Warm, Rate("seekrandom"), AtLeast(2.0)),
    row("seekrandom10", "seekrandom, 10 nexts, ops/s", Mixed, Rate("seekrandom"), AtLeast(2.0)),
    row("readseq", "readseq, ops/s", Warm, Rate("readseq"), AtLeast(2.0)),
    row("readreverse", "readreverse, ops/s", Warm, Rate("readreverse"), AtLeast(2.0)),
    row("readwhilewriting", "readwhilewriting, reads/s", Mixed, Rate("readwhilewriting"), AtLeast(2.0)),
    row("readwhilewriting", "readwhilewriting, P99 of reads, µs", Mixed, P99("readwhilewriting", "read"), AtMost(0.6)),
    row("fillsync", "fillsync, ops/s", FillSync, Rate("fillsync"), AtLeast(1.0)),
    row("throttled", "1 KiB fillrandom at 40 MB/s background, ops/s", Throttled, Rate("fillrandom"), AtLeast(1.0)),
    row("throttled", "the same, longest write, ms", Throttled, Longest("fillrandom", "write"), WorstAtMost(100.0)),
];

/// Whether any of `names` is measured by `step`.
pub(super) fn uses(step: Step, names: &[String]) -> bool {
    ROWS.iter().any(|row| row.step == step && names.iter().any(|name| name == row.name))
}

impl Metric {
    /// Value in `run`, or `None` if it was not measured. `opening` is the run with one read.
    pub(super) fn of(self, run: &SideRun, opening: Option<&SideRun>) -> Option<f64> {
        let last = |name: &str| run.lines.iter().rev().find(|line| line.name == name);
        let latency = |name: &str, kind: &str| {
            last(name)?.latency.iter().find(|latency| latency.kind == kind)
        };
        let per_get = |count: fn(&SideRun) -> Option<u64>| {
            let opening = opening?;
            let gets = |run: &SideRun| run.lines.iter().map(|line| line.ops).sum::<u64>();
            let counted = count(run)?.saturating_sub(count(opening)?) as f64;
            let gets = gets(run).saturating_sub(gets(opening));
            (gets > 0).then(|| counted / gets as f64)
        };
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        match self {
            Self::Rate(name) => last(name).map(|line| line.ops_per_s),
            Self::SettledRate(name) => {
                let (line, settling) = (last(name)?, run.settle_seconds?);
                Some(line.ops as f64 / (line.seconds + settling).max(1e-9))
            }
            Self::P99(name, kind) => latency(name, kind).map(|latency| latency.p99_us),
            Self::Longest(name, kind) => latency(name, kind).map(|latency| latency.max_us / 1e3),
            Self::WriteAmplification => run.write_amplification,
            Self::SettledMib => Some(mib(run.settled_bytes)),
            Self::PeakMib => run.peak_rss_bytes.map(mib),
            Self::ReadCallsPerGet => per_get(|run| run.read_calls),
            Self::BytesPerGet => per_get(|run| run.bytes_read),
        }
    }

    /// Unit of the figure.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Rate(_) | Self::SettledRate(_) => "ops/s",
            Self::P99(..) => "µs",
            Self::Longest(..) => "ms",
            Self::SettledMib | Self::PeakMib => "MiB",
            Self::BytesPerGet => "B",
            Self::WriteAmplification | Self::ReadCallsPerGet => "",
        }
    }

    /// Number of digits after the decimal point in the table.
    pub(super) fn decimals(self) -> usize {
        match self {
            Self::Rate(_) | Self::SettledRate(_) | Self::SettledMib | Self::PeakMib => 0,
            Self::BytesPerGet => 0,
            Self::P99(..) | Self::Longest(..) => 1,
            Self::WriteAmplification | Self::ReadCallsPerGet => 2,
        }
    }
}

impl Row {
    /// Cause of a miss that was seen and understood.
    pub(super) fn cause(&self) -> &'static str {
        match (self.step, self.metric) {
            (FillRandom, PeakMib) => {
                "Archipelago writes faster, so a second memtable fills before the first one is \
                 flushed."
            }
            _ => "",
        }
    }
}

impl Target {
    /// Text in the result file.
    pub(super) fn text(self) -> String {
        match self {
            Self::AtLeast(ratio) => format!("≥ {ratio}×"),
            Self::AtMost(ratio) => format!("≤ {ratio}×"),
            Self::WorstAtMost(value) => format!("each run ≤ {value}"),
            Self::Nothing => "—".to_owned(),
        }
    }

    /// Whether it is reached, by the ratio of medians and Archipelago's largest figure. A ratio
    /// that is no number reaches nothing.
    pub(super) fn is_reached(self, ratio: f64, worst: f64) -> bool {
        match self {
            Self::AtLeast(wanted) => ratio >= wanted,
            Self::AtMost(wanted) => ratio <= wanted,
            Self::WorstAtMost(wanted) => worst <= wanted,
            Self::Nothing => true,
        }
    }
}
