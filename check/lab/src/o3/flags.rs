//! The command line of `archipelago-lab o3`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use super::bounds::StorageLink;
use super::modes::Mode;
use super::plan::{Cell, Group, Value};
use crate::command_line;
use archipelago_bench::harness::flags::Stop;

const ABOUT: &str = "\
Repeats the evaluation of O³-LSM: what memtables, flushes and compactions on other nodes give. All
roles are processes of this machine, and each reaches the storage, a shared directory, through an
emulated link of its own.";

const TEACH: &str = "\
Groups (--only):
  fill           random writes in all modes, and until settled (Figures 8 and 9)
  burst          random writes that 96 memtables absorb (Figures 8 and 9)
  latency        P99 and stall time at 0.9 of the baseline's rate
  read           random reads, settled and unsettled (Figures 8 and 9)
  mixed          equally many reads and writes, 64 B, 256 B and 1 KiB (Figures 8 and 9)
  ycsb           RW50, R95, R100 and W100, uniform and zipfian (Figure 10)
  range          ranges of 10 and 1000 while a thread writes (Figure 11)
  ablation       memtables, flushes and shards one after another (Figure 12a)
  flush          flush throughput after a burst (Figure 12)
  stalls         stops of writers by the number of memtables (Table 1)
  amplification  bytes written by level (Table 2)
  phases         time of a flush, and of its steps (Table 3)
  delegation     reads of memtables at memory nodes, over shared memory and TCP (Table 4)
  times          times of a read by its way: here, at a cached offset, by a request (Figure 13b)
  cache          reads over shared memory by the size of the key-offset cache (Figure 13a)
  memtables      number of memtables, and the local share (Figure 14)
  local          reads and mixed loads, with 0, 2 or auto as --local_memtables (Figure 14)
  links          bytes by link, and the owner's share (Table 5)
  peaks          peak over mean of links (Table 6)
  stability      variation of the throughput (Figures 15 and 16)
  portability    everything over compactions only (Table 7)
  resp           a Redis server with 50 clients (Table 8)
  takeover       time to open a database after kill -9, with kept memtables or by replay of the log
  databases      several databases as processes, which share nodes (Figure 17, Table 9)
  nodes          several databases, from a model in virtual time (Figure 17, Tables 9 and 10)

Rates are a tenth and sizes a sixteenth of the paper's (docs/devices/ds-*.toml). Decision 0087 in
docs/decisions fixes them, the modes, the rows and the targets, decision 0107 those of cache, local
and takeover, and decision 0108 those of times and databases. The rows of the group nodes are
figures of a model at full speed (decision 0103). A mode that the program refuses is named, and its
rows stay without figures. Tables go to standard output. The directory of --out gets them in
Markdown as report.md, every figure as report.json, and charts as SVG. Each run is appended to
runs.jsonl there, and --resume continues with it after an interruption.

Examples:
  archipelago-lab o3 --quick --only=fill --values=256
  archipelago-lab o3 --only=ablation --runs=1 --out=ablation
  archipelago-lab o3 --only=nodes
  archipelago-lab o3 --page docs/benchmarks/o3.md";

/// Memtables of a run of random writes. With these, the debt of a classic L0 is less than half of
/// the run.
const MEMTABLES: u64 = 150;
const MEMTABLES_QUICK: u64 = 60;
/// Bytes of records that reads choose from: the paper's 4 GB at a sixteenth.
const READ_BYTES: u64 = 256 << 20;
const READ_BYTES_QUICK: u64 = 64 << 20;
/// Seconds in virtual time of a run of the model of many nodes. In the first half L0 must reach the
/// layers at which writers slow down, so that the second half pays no debt of the first one.
const MODEL_SECONDS: u64 = 3600;
const MODEL_SECONDS_QUICK: u64 = 300;
const MODEL_SECONDS_TINY: u64 = 20;
const SECONDS: u64 = 60;
const SECONDS_QUICK: u64 = 15;

/// Flags of the command.
#[derive(Clone, Debug, Parser)]
#[command(name = "archipelago-lab o3", bin_name = "archipelago-lab o3", about = ABOUT,
          after_help = TEACH, rename_all = "snake_case", disable_version_flag = true)]
pub(super) struct O3Flags {
    /// Measure 60 memtables instead of 150, a quarter of the records and of the seconds, and each
    /// mode once instead of three times
    #[arg(long)]
    pub(super) quick: bool,
    /// Show in seconds that everything works: 12 memtables of 128 KiB, 1 MiB of records, one second
    /// of reads, four clients, links of 50 times the speed, and each mode once
    #[arg(long, conflicts_with = "quick")]
    pub(super) tiny: bool,
    /// Continue with the journal of an interrupted run and its flags
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub(super) resume: Option<PathBuf>,
    /// Measure only these groups
    #[arg(long, value_enum, value_delimiter = ',', value_name = "GROUPS")]
    pub(super) only: Vec<Group>,
    /// Measure only these modes. A row needs both of its modes
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODES")]
    pub(super) modes: Vec<Mode>,
    /// Measure only these links
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LINKS")]
    links: Vec<StorageLink>,
    /// Measure only values of these bytes
    #[arg(long, value_enum, value_delimiter = ',', value_name = "BYTES")]
    values: Vec<Value>,
    /// Runs of each mode; default: 3, with --quick 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    runs: Option<u64>,
    /// Memtables that random writes fill; default: 150, with --quick 60
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    memtables: Option<u64>,
    /// Bytes of keys and values that reads choose from. The block cache has an eighth of them;
    /// default: 256 MiB, with --quick 64 MiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1 << 16..=1 << 40))]
    read_bytes: Option<u64>,
    /// Seconds of reads; default: 60, with --quick 15
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Bytes of a memtable. Log segments, tables and levels follow it; default: 4 MiB
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u64).range(65_536..=64 << 20))]
    memtable_bytes: Option<u64>,
    /// Factor on the rates of links and streams; default: 1, as figures of a page have it
    #[arg(long, value_name = "F")]
    speed: Option<f64>,
    /// Redis clients; default: 50
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: Option<u64>,
    /// Measure only this number of cells of each group
    #[arg(long, value_name = "N")]
    pub(super) cells: Option<usize>,
    /// Directory of the reports and charts, which is made if it is missing
    #[arg(long, default_value = "o3", value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Write the page of docs/benchmarks to this file
    #[arg(long, value_name = "FILE")]
    pub(super) page: Option<PathBuf>,
    /// Directory of the storage, which should lie in memory; default: /dev/shm if it exists, else
    /// the temporary directory
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// Program of the owner; default: archipelago in the folder of archipelago-lab
    #[arg(long, value_name = "PROGRAM")]
    pub(super) archipelago: Option<PathBuf>,
    /// Program that runs another role with the words `o3-node FLAGS`; default: this one
    #[arg(long, value_name = "PROGRAM")]
    pub(super) node_program: Option<PathBuf>,
    /// Seed of the first round; each round has the next
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(super) seed: u64,
}

impl O3Flags {
    /// Parses `args`, the words after `o3`.
    pub(super) fn read(args: &[OsString]) -> Result<Self, Stop> {
        let flags: Self = command_line::parse("o3", args)?;
        let speed = flags.speed();
        if !(speed.is_finite() && (0.001..=1000.0).contains(&speed)) {
            return Err(Stop::Usage(format!(
                "--speed={speed}: give a factor from 0.001 to 1000; 1 is that of the descriptions \
                 in docs/devices"
            )));
        }
        Ok(flags)
    }

    /// Runs of each mode.
    pub(super) fn runs(&self) -> u64 {
        self.runs.unwrap_or(self.size(3, 1, 1))
    }

    /// Memtables that random writes fill.
    pub(super) fn memtables(&self) -> u64 {
        self.memtables.unwrap_or(self.size(MEMTABLES, MEMTABLES_QUICK, 12))
    }

    /// Bytes of keys and values that reads choose from.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes.unwrap_or(self.size(READ_BYTES, READ_BYTES_QUICK, 1 << 20))
    }

    /// Seconds of reads.
    pub(super) fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(self.size(SECONDS, SECONDS_QUICK, 1))
    }

    /// Seconds of a run of the model of many nodes.
    pub(super) fn model_seconds(&self) -> u64 {
        self.size(MODEL_SECONDS, MODEL_SECONDS_QUICK, MODEL_SECONDS_TINY)
    }

    /// Bytes of a memtable.
    pub(super) fn memtable_bytes(&self) -> u64 {
        self.memtable_bytes.unwrap_or(self.size(4 << 20, 4 << 20, 128 << 10))
    }

    /// Number of Redis clients.
    pub(super) fn clients(&self) -> u64 {
        self.clients.unwrap_or(self.size(50, 50, 4))
    }

    /// Factor on the rates of links and streams.
    pub(super) fn speed(&self) -> f64 {
        self.speed.unwrap_or(if self.tiny { 50.0 } else { 1.0 })
    }

    /// A size of the whole, the quick and the tiny form.
    fn size(&self, whole: u64, quick: u64, tiny: u64) -> u64 {
        match (self.tiny, self.quick) {
            (true, _) => tiny,
            (false, true) => quick,
            (false, false) => whole,
        }
    }

    /// The groups that are measured, in the order of the table.
    pub(super) fn groups(&self) -> Vec<Group> {
        let is_wanted = |group: &Group| self.only.is_empty() || self.only.contains(group);
        Group::ALL.into_iter().filter(is_wanted).collect()
    }

    /// The links that are measured.
    pub(super) fn links(&self) -> impl Iterator<Item = StorageLink> + use<> {
        let links =
            if self.links.is_empty() { StorageLink::ALL.to_vec() } else { self.links.clone() };
        links.into_iter()
    }

    /// The values that are measured.
    pub(super) fn values(&self) -> impl Iterator<Item = Value> + use<> {
        let values = if self.values.is_empty() { Value::ALL.to_vec() } else { self.values.clone() };
        values.into_iter()
    }

    /// Whether a cell is measured.
    pub(super) fn has(&self, cell: &Cell) -> bool {
        (self.modes.is_empty() || self.modes.contains(&cell.mode))
            && self.links().any(|link| link == cell.link)
    }
}
