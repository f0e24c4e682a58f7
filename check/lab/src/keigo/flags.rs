//! The command line of `archipelago-lab keigo`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use super::plan::{Keys, Part, Workload};
use crate::command_line;
use crate::rounds::base_dir;
use archipelago_bench::harness::flags::Stop;

const ABOUT: &str = "\
Runs the comparisons of Keigo's evaluation (tiers of devices) and prints them beside the paper's.";

const TEACH: &str = "\
Parts (--only):
  tiers         slow device alone against tiers whose fast device holds a quarter; YCSB A to F
  buffered      as tiers, A and F, but writes do not wait for the log's device (all others: direct I/O)
  placement     everything on the fast device against placement by writers; YCSB A, 8 and 16 jobs
  threads       automatic number of copying and moving threads against fixed ones; YCSB A and C
  cache         three devices; no copies, copies on the fastest, on both faster ones; YCSB C
  sync          as tiers, every write synced; YCSB A and F
  single        one device through the tiers against the local file system, not emulated
  switch        C, A, C in turn: how long until each phase is at its speed
  production    as tiers: Meta's prefix_dist and a mix like Nutanix's
  block         SATA alone, tiers of NVMe over SATA, NVMe alone; YCSB A and C
  instructions  only if named: instructions per operation of `single`, counted by valgrind

Decision 0016 in docs/decisions fixes devices, sizes and bounds. Tables go to standard output. The
directory of --out gets them in Markdown as report.md, every figure as report.json, and charts as
SVG. All parts take about three and a half hours, one round (--runs=1) about 70 minutes, and
--quick about five.

Examples:
  archipelago-lab keigo --quick
  archipelago-lab keigo --only=tiers --workloads=a,c --distributions=zipf80
  archipelago-lab keigo --only=tiers --workloads=b,c,d --tiers_alone --seconds=180 --runs=1
  archipelago-lab keigo --real=/mnt/disk
  archipelago-lab keigo --only=instructions";

const RECORDS: u64 = 192_000;
const RECORDS_QUICK: u64 = 20_000;
const SECONDS: u64 = 8;
const READ_SECONDS: u64 = 24;
const SECONDS_QUICK: u64 = 2;
const PHASE_SECONDS: u64 = 30;
const PHASE_SECONDS_QUICK: u64 = 4;

/// Flags of a reproduction.
#[derive(Clone, Debug, Parser)]
#[command(name = "archipelago-lab keigo", bin_name = "archipelago-lab keigo",
          about = ABOUT, after_help = TEACH, rename_all = "snake_case",
          disable_version_flag = true)]
pub(super) struct KeigoFlags {
    /// Run one round with a tenth of the records, two seconds each and one distribution
    #[arg(long)]
    pub(super) quick: bool,
    /// Run only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    pub(super) only: Vec<Part>,
    /// Run only these workloads
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(super) workloads: Vec<Workload>,
    /// Run only these distributions of keys
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(super) distributions: Vec<Keys>,
    /// Run only the side of tiers, which suffices for bounds and hit ratios
    #[arg(long)]
    pub(super) tiers_alone: bool,
    /// Use memory (--fast) above a directory on this disk, with O_DIRECT, and emulate nothing;
    /// parts with a third device have two
    #[arg(long, value_name = "DIR")]
    pub(super) real: Option<PathBuf>,
    /// Directory of the devices, and of the fast device with --real; default: /dev/shm
    /// if there is one, else the temporary directory
    #[arg(long, value_name = "DIR")]
    pub(super) fast: Option<PathBuf>,
    /// Directory of the reports and charts, which is made if it is missing
    #[arg(long, default_value = "reproduced-keigo", value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Write the page of docs/benchmarks to this file; FILE#PART writes one part of a page
    #[arg(long, value_name = "FILE")]
    pub(super) page: Option<PathBuf>,
    /// Runs of each side; default: 3, with --quick 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    runs: Option<u64>,
    /// Records; default: 192000, with --quick 20000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..))]
    records: Option<u64>,
    /// Seconds of each measurement, and of the warm-up before it (twice as long for YCSB B to E);
    /// default: 8, with --quick 2; 24 for YCSB B to E, whose copies take that long to settle
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// Seconds of each phase of `switch`; default: 30, with --quick 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    phase_seconds: Option<u64>,
    /// Speed of the emulated devices, as a fraction of what their files say
    #[arg(long, default_value_t = 0.0625, value_name = "F")]
    pub(super) device_scale: f64,
    /// Clients; over NVMe and SATA twice as many
    #[arg(long, default_value_t = 8, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(super) clients: u64,
    /// Background jobs; over NVMe and SATA four times as many
    #[arg(long, default_value_t = 4, value_name = "N",
          value_parser = clap::value_parser!(u64).range(2..=16))]
    pub(super) jobs: u64,
    /// Seed of the first round; each has the next
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(super) seed: u64,
    /// Program to run; default: archipelago in the folder of archipelago-lab
    #[arg(long, value_name = "PROGRAM")]
    pub(super) archipelago: Option<PathBuf>,
}

impl KeigoFlags {
    /// Parses `args`, the words after `keigo`.
    pub(super) fn read(args: &[OsString]) -> Result<Self, Stop> {
        command_line::parse("keigo", args)
    }

    pub(super) fn runs(&self) -> u64 {
        self.runs.unwrap_or(if self.quick { 1 } else { 3 })
    }

    pub(super) fn records(&self) -> u64 {
        self.records.unwrap_or(if self.quick { RECORDS_QUICK } else { RECORDS })
    }

    pub(super) fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(if self.quick { SECONDS_QUICK } else { SECONDS })
    }

    /// Seconds of a measurement with few writes: hot tables have to prove themselves before copies
    /// settle.
    pub(super) fn read_seconds(&self) -> u64 {
        self.seconds.unwrap_or(if self.quick { SECONDS_QUICK } else { READ_SECONDS })
    }

    pub(super) fn phase_seconds(&self) -> u64 {
        let default = if self.quick { PHASE_SECONDS_QUICK } else { PHASE_SECONDS };
        self.phase_seconds.unwrap_or(default)
    }

    /// Directory in which directories are made.
    pub(super) fn fast_dir(&self) -> PathBuf {
        base_dir(self.fast.as_ref())
    }
}
