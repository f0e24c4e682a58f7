//! The command line of `archipelago-lab terark-engine`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use super::plan::Part;
use crate::command_line;
use archipelago_bench::harness::flags::Stop;

const ABOUT: &str = "\
Measures separated values and their garbage collection against this engine without separation and
against RocksDB's BlobDB, and prints the rows with targets and bounds.";

const TEACH: &str = "\
Rows (--rows):
  volume    fillrandom and overwrite of 16 KiB on the emulated network volume
  fill      fillrandom of 16 KiB on the plain disk, and the peak memory of this load
  update    overwrite and point reads of 16 KiB on the plain disk, at BlobDB's space
  mixed     point reads of values of 100 B to 16 KiB
  scans     scans and reads of Fixed-16K, Mixed-8K and Pareto-1K
  prefetch  scans on the emulated network volume, with and without prefetch of values
  space     space over time under throttled updates, with bounds of 1.15, 1.25 and 1.5
  gc        garbage collection on the emulated network volume with a cold index
  off       instructions per operation without separation against an earlier program; only if
            --before names it (needs valgrind)

Data is 1 GiB of 24-byte keys and values, with memtables 4 MiB x 4, tables 4 MiB, value files 8 MiB,
a base level of 2 MiB and a cache of 1 % of the data. Decision 0064 in docs/decisions fixes the rows.
Modes alternate, and each run has processes and a directory of its own. Tables go to standard
output. The directory of --out gets them in Markdown as report.md, every figure as report.json, and
charts as SVG. Each run is appended to runs.jsonl there, and --resume continues with it after an
interruption.

Examples:
  archipelago-lab terark-engine --quick
  archipelago-lab terark-engine --rows=space,gc --out=space
  archipelago-lab terark-engine --resume=space/runs.jsonl
  archipelago-lab terark-engine --rows=off --before=/tmp/earlier/archipelago

db_bench is in Debian's package rocksdb-tools.";

const DATA_BYTES: u64 = 1 << 30;
const DATA_BYTES_QUICK: u64 = 256 << 20;

/// Flags of the command.
#[derive(Clone, Debug, Parser)]
#[command(name = "archipelago-lab terark-engine", bin_name = "archipelago-lab terark-engine",
          about = ABOUT, after_help = TEACH, rename_all = "snake_case",
          disable_version_flag = true)]
pub(super) struct TerarkEngineFlags {
    /// Measure 256 MiB instead of 1 GiB, and each mode once instead of three times
    #[arg(long)]
    pub(super) quick: bool,
    /// Measure only these rows
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(super) rows: Vec<Part>,
    /// Continue with the journal of an interrupted run and its flags
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub(super) resume: Option<PathBuf>,
    /// Runs of each mode; default: 3, with --quick 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    runs: Option<u64>,
    /// Bytes of keys and values before the updates, which write three times as much; default:
    /// 1 GiB, with --quick 256 MiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1 << 20..=1 << 40))]
    data_bytes: Option<u64>,
    /// Limit of the updates of `space`, in bytes a second
    #[arg(long, default_value_t = 32 << 20, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1 << 16..))]
    pub(super) update_bytes_per_s: u64,
    /// Speed of the emulated network volume, as a fraction of what its file says
    #[arg(long, default_value_t = 0.25, value_name = "F")]
    pub(super) device_scale: f64,
    /// Directory of the reports and charts, which is made if it is missing
    #[arg(long, default_value = "terark-engine", value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Write the page of docs/benchmarks to this file
    #[arg(long, value_name = "FILE")]
    pub(super) page: Option<PathBuf>,
    /// Directory of the databases, which are removed; default: in the temporary directory
    #[arg(long, value_name = "DIR")]
    pub(super) db: Option<PathBuf>,
    /// Program of RocksDB's side
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/db_bench")]
    pub(super) db_bench: PathBuf,
    /// More flags for db_bench alone, space-separated, such as those of BlobDB's garbage collection
    #[arg(long, value_name = "FLAGS", default_value = "", allow_hyphen_values = true)]
    pub(super) db_bench_flags: String,
    /// Program to measure; default: archipelago in the folder of archipelago-lab
    #[arg(long, value_name = "PROGRAM")]
    pub(super) archipelago: Option<PathBuf>,
    /// Program of an earlier commit, with which the row `off` compares
    #[arg(long, value_name = "PROGRAM")]
    pub(super) before: Option<PathBuf>,
    /// Seed of the first round; each round has the next
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(super) seed: u64,
}

impl TerarkEngineFlags {
    /// Parses `args`, the words after `terark-engine`.
    pub(super) fn read(args: &[OsString]) -> Result<Self, Stop> {
        let flags: Self = command_line::parse("terark-engine", args)?;
        if flags.rows.contains(&Part::Off) && flags.before.is_none() {
            return Err(Stop::Usage(
                "--rows=off needs --before=PROGRAM, the archipelago of an earlier commit"
                    .to_owned(),
            ));
        }
        Ok(flags)
    }

    /// Runs of each mode.
    pub(super) fn runs(&self) -> u64 {
        self.runs.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// Bytes of keys and values before the updates.
    pub(super) fn data_bytes(&self) -> u64 {
        self.data_bytes.unwrap_or(if self.quick { DATA_BYTES_QUICK } else { DATA_BYTES })
    }

    /// The parts that run, in the order of the table.
    pub(super) fn parts(&self) -> Vec<Part> {
        let has_before = |part: &Part| *part != Part::Off || self.before.is_some();
        let wanted = |part: &Part| self.rows.is_empty() || self.rows.contains(part);
        Part::ALL.into_iter().filter(has_before).filter(wanted).collect()
    }
}
