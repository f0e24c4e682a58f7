//! Settings of a modelled run: mode, parallelism, load, and the store's settings.

use archipelago_engine::options::{CfOptions, Compression};
use serde::Serialize;

use super::profile::{CostProfile, Machine};

/// Bytes of keys and values that the paper writes.
pub(crate) const DATA_BYTES: u64 = 100_000_000_000;
/// Memtable size of the paper.
const WRITE_BUFFER_BYTES: u64 = 256 << 20;
/// Memtables of the paper, the active one included.
const WRITE_BUFFERS: usize = 2;

/// Way in which L0 is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// One bucket, one thread for a compaction.
    Classic,
    /// One bucket; an L0 compaction is cut into as many parts as the degree.
    Subcompactions,
    /// The number of buckets is the degree.
    Buckets,
}

impl Mode {
    /// Every mode, in the order of tables.
    pub(crate) const ALL: [Self; 3] = [Self::Classic, Self::Subcompactions, Self::Buckets];

    /// The mode as tables spell it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Subcompactions => "subcompactions",
            Self::Buckets => "buckets",
        }
    }
}

/// One run of the model.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Way in which L0 is compacted.
    pub(crate) mode: Mode,
    /// Number of background jobs.
    pub(crate) jobs: usize,
    /// Parts of a compaction, or buckets.
    pub(crate) degree: usize,
    /// Number of records to write, and size of the key space.
    pub(crate) records: u64,
    /// Number of threads that write.
    pub(crate) writers: usize,
    /// Seed of all random choices.
    pub(crate) seed: u64,
    /// Costs of work.
    pub(crate) cost: CostProfile,
    /// Machine that is modelled.
    pub(crate) machine: Machine,
}

impl Setting {
    /// The paper's load and machine, with as many jobs as the degree.
    pub(crate) fn of(mode: Mode, degree: usize, cost: CostProfile) -> Self {
        Self {
            mode,
            jobs: degree,
            degree,
            records: DATA_BYTES / cost.record_bytes(),
            writers: 1,
            seed: 1,
            machine: Machine::of_the_paper(),
            cost,
        }
    }

    /// Number of buckets into which the first memtable is cut.
    pub(crate) fn buckets(&self) -> usize {
        if self.mode == Mode::Buckets { self.degree.max(1) } else { 1 }
    }

    /// Threads that may share an L0 compaction.
    pub(crate) fn parts(&self) -> usize {
        if self.mode == Mode::Subcompactions { self.degree.max(1) } else { 1 }
    }

    /// Records that fill a memtable.
    pub(crate) fn memtable_records(&self) -> f64 {
        WRITE_BUFFER_BYTES as f64 / self.cost.record_bytes() as f64
    }

    /// The column family's settings: the paper's, RocksDB's defaults elsewhere.
    pub(crate) fn options(&self) -> CfOptions {
        CfOptions {
            write_buffer_bytes: WRITE_BUFFER_BYTES,
            write_buffers_max: WRITE_BUFFERS,
            buckets: self.buckets(),
            compression: Compression::None,
            compression_last: Compression::None,
            ..CfOptions::default()
        }
    }

    /// Bytes per second that all writers together write at full speed.
    pub(crate) fn peak_bytes_per_s(&self) -> f64 {
        let per_writer = self.cost.record_bytes() as f64 * 1e9 / self.cost.write_ns_per_record;
        per_writer * self.writers as f64
    }
}
