//! Parsers of a side's output: result lines, distributions, and the times in RocksDB's log.

use serde::{Deserialize, Serialize};

/// A result line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResultLine {
    pub(crate) name: String,
    pub(crate) micros_per_op: f64,
    pub(crate) ops_per_s: f64,
    pub(crate) seconds: f64,
    pub(crate) ops: u64,
    pub(crate) mb_per_s: Option<f64>,
    /// Text in parentheses.
    pub(crate) message: String,
    /// Distributions after the result line, with `--histogram`.
    pub(crate) latency: Vec<Latency>,
}

/// A distribution, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Kind of operation: `read`, `write` or `seek`.
    pub(crate) kind: String,
    pub(crate) count: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

impl Latency {
    /// The heading of a distribution: `Microseconds per read:`.
    pub(crate) fn heading(line: &str) -> Option<Self> {
        let kind = line.strip_prefix("Microseconds per ")?.strip_suffix(':')?;
        Some(Self { kind: kind.to_owned(), ..Self::default() })
    }

    /// Takes the figures of one of the three lines below the heading. Other lines change nothing.
    pub(crate) fn take(&mut self, line: &str) {
        if line.starts_with("Count: ") {
            self.count = number_after(line, "Count: ").unwrap_or(0.0) as u64;
        } else if line.starts_with("Min: ") {
            self.max_us = number_after(line, " Max: ").unwrap_or(0.0);
        } else if line.starts_with("Percentiles: ") {
            self.p50_us = number_after(line, " P50: ").unwrap_or(0.0);
            self.p99_us = number_after(line, " P99: ").unwrap_or(0.0);
        }
    }
}

/// `name : 6.956 micros/op 143769 ops/sec 6.956 seconds 1000000 operations; 15.9 MB/s (…)`; `None`
/// for any other line.
pub(crate) fn result_line(line: &str) -> Option<ResultLine> {
    let (name, figures) = line.split_once(" : ").or_else(|| line.split_once(": "))?;
    let (figures, rest) = figures.split_once(" operations;")?;
    let mut words = figures.split_whitespace();
    let mut figure = |unit: Option<&str>| -> Option<&str> {
        let word = words.next()?;
        match unit {
            Some(unit) => (words.next()? == unit).then_some(word),
            None => Some(word),
        }
    };
    let micros_per_op = figure(Some("micros/op"))?.parse().ok()?;
    let ops_per_s = figure(Some("ops/sec"))?.parse().ok()?;
    let seconds = figure(Some("seconds"))?.parse().ok()?;
    let ops = figure(None)?.parse().ok()?;
    let (rate, message) = match rest.split_once(" MB/s") {
        Some((rate, message)) => (rate.trim().parse().ok(), message),
        None => (None, rest),
    };
    let message = message.trim().trim_start_matches('(').trim_end_matches(')').trim();
    Some(ResultLine {
        name: name.trim().to_owned(),
        micros_per_op,
        ops_per_s,
        seconds,
        ops,
        mb_per_s: rate,
        message: message.to_owned(),
        latency: Vec::new(),
    })
}

/// Bytes of keys and values that the benchmark of `line` wrote; `None` if the line does not say
/// them.
pub(crate) fn user_bytes(line: &ResultLine, key_bytes: u64, value_bytes: u64) -> Option<u64> {
    let entry = key_bytes + value_bytes;
    match line.name.as_str() {
        "fillseq" | "fillrandom" | "fillsync" | "filluniquerandom" | "overwrite" => {
            Some(line.ops * entry)
        }
        "deleterandom" => Some(line.ops * key_bytes),
        "readrandomwriterandom" => Some(number_after(&line.message, "writes:")? as u64 * entry),
        "mixgraph" => {
            let puts = number_after(&line.message, "Puts:")?;
            // Without puts, the average of db_bench is "-nan".
            let average = number_after(&line.message, "avg size: ").unwrap_or(0.0);
            Some((puts * (key_bytes as f64 + average)) as u64)
        }
        "readwhilewriting" => None,
        // In these workloads, the length of a value follows from its record.
        name if is_of_lengths(name) => None,
        _ => Some(0),
    }
}

/// Whether the benchmark writes values whose lengths follow from their records.
fn is_of_lengths(name: &str) -> bool {
    let own = ["mixed8k", "fixed16k", "pareto1k"];
    own.iter().any(|own| name.starts_with(own))
        && (name.ends_with("load") || name.ends_with("update"))
}

fn number_after(text: &str, label: &str) -> Option<f64> {
    let (_, rest) = text.split_once(label)?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Unix time in microseconds of the last flush or compaction in RocksDB's log.
pub(crate) fn last_job_us(log: &str) -> Option<u64> {
    let ends = ["\"flush_finished\"", "\"compaction_finished\""];
    let lines = log.lines().filter(|line| ends.iter().any(|end| line.contains(end)));
    lines.filter_map(|line| number_after(line, "\"time_micros\": ")).map(|us| us as u64).max()
}

/// Seconds that a line of this program says it took to settle: `name : settled 1.234 seconds …`.
pub(crate) fn settled_line(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once(" : settled ")?;
    rest.split_whitespace().next()?.parse().ok()
}
