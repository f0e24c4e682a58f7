//! The command line of `archipelago-lab bucketlsm`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use super::plan::Workload;
use crate::command_line;
use archipelago_bench::harness::flags::Stop;

const ABOUT: &str = "\
Runs the comparisons of BucketLSM's evaluation between modes of Archipelago and prints the ratios
beside the paper's.";

const TEACH: &str = "\
The modes are classic L0, classic with subcompactions, and buckets with static and with dynamic
boundaries. Their runs alternate, and each has a process and a fresh directory of its own. The
command measures throughput, stall time and latency of fillrandom, MixGraph1, MixGraph2, YCSB-GET
and YCSB-SCAN on an emulated device, and throughput on the disk without emulation.

Tables go to standard output. The directory of --out gets them in Markdown as report.md, every
figure as report.json, the device's description, and charts as SVG.

Examples:
  archipelago-lab bucketlsm --quick
  archipelago-lab bucketlsm --device=docs/devices/nvme.toml --out=nvme
  archipelago-lab bucketlsm --only=fillrandom --skip_plain --jobs=1,2,4,8";

/// Operations of fillrandom and MixGraph1.
const NUM: u64 = 500_000;
const NUM_QUICK: u64 = 120_000;
const MEMTABLE: u64 = 4 << 20;
const MEMTABLE_QUICK: u64 = 2 << 20;
const RUNS: u64 = 3;
const RUNS_QUICK: u64 = 1;

/// Flags of a reproduction.
#[derive(Clone, Debug, Parser)]
#[command(name = "archipelago-lab bucketlsm", bin_name = "archipelago-lab bucketlsm",
          about = ABOUT, after_help = TEACH, rename_all = "snake_case",
          disable_version_flag = true)]
pub(super) struct ReproduceFlags {
    /// Run each mode once instead of three times, with a quarter of the operations and memtables of
    /// half the size; this takes minutes, and the figures are less exact
    #[arg(long)]
    pub(super) quick: bool,
    /// Emulate the device that this file describes; default: the cloud network volume of
    /// docs/devices
    #[arg(long, value_name = "FILE")]
    pub(super) device: Option<PathBuf>,
    /// Speed of the device, as a fraction of what its file says, so low that the processor is not
    /// the bottleneck
    #[arg(long, default_value_t = 0.5, value_name = "F")]
    pub(super) device_scale: f64,
    /// Directory of the reports and charts, which is made if it is missing
    #[arg(long, default_value = "reproduced-bucketlsm", value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Write the page of docs/benchmarks to this file; FILE#PART writes one part of a page
    #[arg(long, value_name = "FILE")]
    pub(super) page: Option<PathBuf>,
    /// Runs of each mode; default: 3, with --quick 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    runs: Option<u64>,
    /// Operations of fillrandom and MixGraph1, from which the others follow; default: 500000, with
    /// --quick 120000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..))]
    num: Option<u64>,
    /// Run only these workloads
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(super) only: Vec<Workload>,
    /// Leave out the runs on the disk without emulation
    #[arg(long)]
    pub(super) skip_plain: bool,
    /// Also run fillrandom with these numbers of background jobs, for buckets and subcompactions
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS",
          value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(super) jobs: Vec<u64>,
    /// Background jobs; also the buckets at the start, and the subcompactions
    #[arg(long, default_value_t = 8, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(super) background_jobs: u64,
    /// Threads of YCSB-GET and YCSB-SCAN
    #[arg(long, default_value_t = 16, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(super) threads: u64,
    /// Operations a second of the runs at a fixed load; default: 0.9 of the rate of buckets, and
    /// for YCSB-SCAN of the rate of classic
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) offered_load: Option<u64>,
    /// Bytes of a memtable and of the base level; a table has a quarter; default: 4 MiB, with
    /// --quick 2 MiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(65536..=1 << 32))]
    write_buffer_size: Option<u64>,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(super) value_size: u64,
    /// Bytes of the block cache; the paper's machine has memory for all of its data, and the
    /// emulated device has no page cache
    #[arg(long, default_value_t = 512 << 20, value_name = "N")]
    pub(super) cache_size: u64,
    /// Seed of the first run; each run has the next
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(super) seed: u64,
    /// Directory of the databases; default: in the temporary directory
    #[arg(long, value_name = "DIR")]
    pub(super) db: Option<PathBuf>,
    /// Program to run; default: archipelago in the folder of archipelago-lab
    #[arg(long, value_name = "PROGRAM")]
    pub(super) archipelago: Option<PathBuf>,
}

impl ReproduceFlags {
    /// Parses `args`, the words after `bucketlsm`.
    pub(super) fn read(args: &[OsString]) -> Result<Self, Stop> {
        command_line::parse("bucketlsm", args)
    }

    /// Runs of each mode.
    pub(super) fn runs(&self) -> u64 {
        self.runs.unwrap_or(if self.quick { RUNS_QUICK } else { RUNS })
    }

    /// Bytes of a memtable.
    pub(super) fn memtable_bytes(&self) -> u64 {
        self.write_buffer_size.unwrap_or(if self.quick { MEMTABLE_QUICK } else { MEMTABLE })
    }

    /// Operations of fillrandom and MixGraph1.
    pub(super) fn num(&self) -> u64 {
        self.num.unwrap_or(if self.quick { NUM_QUICK } else { NUM })
    }
}
