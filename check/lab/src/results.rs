//! The result file of `archipelago bench --json`, as far as the laboratory reads it.

use std::collections::BTreeMap;
use std::path::Path;

use archipelago_bench::harness::gc::GcFigures;
use archipelago_bench::harness::io::IoEntry;
use archipelago_bench::harness::network::NetworkEntry;
use archipelago_bench::harness::samples::Stalls;
use archipelago_bench::harness::steps::StepFigures;
use archipelago_bench::harness::store::{
    Error, FileClass, FileSystem as _, IoContext, IoPurpose, LocalFs, MovedBytes, Result,
};
use archipelago_bench::harness::tiers::TierOutcome;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The whole result file.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ResultFile {
    pub(crate) results: Vec<ResultEntry>,
}

/// Result of one benchmark. A figure that was not measured is missing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResultEntry {
    pub(crate) name: String,
    pub(crate) ops: u64,
    pub(crate) ops_per_s: f64,
    pub(crate) seconds: f64,
    /// Latencies by kind of operation.
    pub(crate) latency: BTreeMap<String, LatencyEntry>,
    pub(crate) stall_seconds: Stalls,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) write_amplification: Option<f64>,
    /// Seconds from the end of a write benchmark until the store had settled.
    pub(crate) settle_seconds: Option<f64>,
    pub(crate) settled: Option<SettledEntry>,
    pub(crate) io: Vec<IoEntry>,
    /// Messages to and from storage nodes, until the benchmark ended.
    pub(crate) network: Vec<NetworkEntry>,
    /// Bytes that crossed the emulated device and the link to memory nodes, until the benchmark
    /// ended.
    pub(crate) moved: Option<MovedBytes>,
    /// Counters of the work that left the process, since the database was opened.
    #[serde(default)]
    pub(crate) offload: BTreeMap<String, u64>,
    /// Times of flushes and of look-ups in sealed memtables, since the database was opened.
    #[serde(default)]
    pub(crate) steps: StepFigures,
    pub(crate) gc: Option<GcFigures>,
    pub(crate) tiers: Option<TierOutcome>,
}

/// Figures of a write benchmark until the store had settled.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SettledEntry {
    pub(crate) write_amplification: Option<f64>,
    pub(crate) cpu_seconds: Option<f64>,
    /// Messages to and from storage nodes, from the start of the benchmark until the store had
    /// settled.
    pub(crate) network: Vec<NetworkEntry>,
    /// Bytes that crossed the emulated device and the link to memory nodes until the store had
    /// settled.
    pub(crate) moved: Option<MovedBytes>,
}

/// Latencies of one kind of operation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct LatencyEntry {
    pub(crate) mean_ns: f64,
    #[serde(default)]
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) max_ns: u64,
}

/// The JSON file at `path`.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    let bytes = LocalFs::new().read(path, context)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))
}
