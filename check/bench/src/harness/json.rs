//! The result file of `--json`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::harness::gc::GcFigures;
use crate::harness::histogram::Quantiles;
use crate::harness::io::IoEntry;
use crate::harness::network::NetworkEntry;
use crate::harness::samples::Stalls;
use crate::harness::steps::StepFigures;
use crate::harness::store::{
    Error, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, MovedBytes, Result,
};
use crate::harness::tiers::TierOutcome;

/// The file: the settings and every benchmark's result, in order.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunReport {
    pub(crate) program: &'static str,
    pub(crate) version: &'static str,
    pub(crate) unix_ms: u64,
    pub(crate) flags: BTreeMap<String, String>,
    pub(crate) results: Vec<Outcome>,
}

/// Result of one benchmark. A figure that was not measured is null.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) threads: u64,
    pub(crate) ops: u64,
    pub(crate) seconds: f64,
    pub(crate) ops_per_s: f64,
    pub(crate) micros_per_op: f64,
    pub(crate) mb_per_s: f64,
    /// Text in the parentheses of the result line.
    pub(crate) message: String,
    /// Number of keys that existed, among those that the benchmark looked for.
    pub(crate) found: Option<u64>,
    pub(crate) looked_for: Option<u64>,
    /// Latencies by kind of operation, with `--histogram`.
    pub(crate) latency: BTreeMap<&'static str, Quantiles>,
    /// Bytes of the tables, and of all files, at the end.
    pub(crate) table_bytes: Option<u64>,
    pub(crate) disk_bytes: Option<u64>,
    /// Bytes that the process wrote during the benchmark.
    pub(crate) bytes_written: Option<u64>,
    /// Most memory of the process so far.
    pub(crate) peak_rss_bytes: Option<u64>,
    /// Bytes written to log and tables per byte of keys and values, during the benchmark.
    pub(crate) write_amplification: Option<f64>,
    /// Processor time of the process during the benchmark.
    pub(crate) cpu_seconds: Option<f64>,
    /// Time that writers waited, summed over them.
    pub(crate) stall_seconds: Stalls,
    /// Seconds from the end of a write benchmark to the end of the last flush or compaction. Only
    /// set if `waitforcompaction` followed.
    pub(crate) settle_seconds: Option<f64>,
    /// Figures of the benchmark from its start until nothing was left to compact.
    pub(crate) settled: Option<Settled>,
    /// Reads and writes of files, with `--io_statistics`: until the store had settled, if
    /// `waitforcompaction` followed.
    pub(crate) io: Vec<IoEntry>,
    /// Messages to and from storage nodes during the benchmark, with `--store`.
    pub(crate) network: Vec<NetworkEntry>,
    /// Bytes that crossed the emulated device and the link to memory nodes during the benchmark.
    pub(crate) moved: Option<MovedBytes>,
    /// Counters of the work that left the process since the database was opened, with
    /// `--offload_mode`.
    pub(crate) offload: BTreeMap<String, u64>,
    /// Times of flushes and of look-ups in sealed memtables, since the database was opened. They
    /// are those until the store had settled, if `waitforcompaction` followed.
    pub(crate) steps: StepFigures,
    /// Garbage collection of value files, until the store had settled.
    pub(crate) gc: Option<GcFigures>,
    /// Figures of the tiers, with `--tiers`.
    pub(crate) tiers: Option<TierOutcome>,
}

/// A write benchmark and the compaction that it caused.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settled {
    pub(crate) table_bytes: Option<u64>,
    pub(crate) bytes_written: Option<u64>,
    pub(crate) write_amplification: Option<f64>,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) network: Vec<NetworkEntry>,
    pub(crate) moved: Option<MovedBytes>,
}

/// Writes `value` to `path`, whole or not at all.
pub fn write_file(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|error| Error::invalid(format!("the report does not fit JSON: {error}")))?;
    text.push(b'\n');
    let context = IoContext::new(FileClass::Other, IoPurpose::ForegroundWrite);
    let path = std::path::absolute(path)
        .map_err(|error| Error::invalid(format!("{} is not a path: {error}", path.display())))?;
    LocalFs::for_reports().write_atomic(&path, &text, context)
}
