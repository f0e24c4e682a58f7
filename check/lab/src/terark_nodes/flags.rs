//! The command line of `archipelago-lab terark-nodes`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use super::modes::{Mode, Workload};
use super::plan::Group;
use crate::command_line;
use archipelago_bench::harness::flags::Stop;

const ABOUT: &str = "\
Repeats the evaluation of Terark-DS over storage nodes that run as processes of this machine, with
an emulated network and emulated devices, and prints the rows with targets and bounds.";

const TEACH: &str = "\
Groups (--only):
  insert      loads of all modes, bytes on the card by purpose (Figures 11 and 12)
  update      updates at a bound of 1.5 on space (Figure 11)
  read        point reads, with and without the index in memory (Figure 11)
  scan        range reads, with and without prefetch of values (Figure 11)
  ycsb        YCSB A to F with values of 16 KiB (Figure 13)
  redundancy  replicas, erasure code and both by class; also with one node lost (Figure 14)
  log         adaptive log writing, on this card and on one that is four times as wide (Figure 15a)
  buffer      the log buffer (Figure 15b)
  space       space under throttled updates (Figure 16)
  gc          requests, bytes and time of garbage collection (section 4.4)
  cpu         processor time of client and nodes (Figure 17)
  cost        cost at the paper's prices (Table 4); needs the runs of update, read and space
  model       the model of redundancy, and its ratios of latencies measured here (Figure 7)
  motivation  local and remote, with and without a log (Figures 3 and 4)
  loopback    nothing emulated: storage nodes against the local disk
  recovery    repair of a lost node, and take-over of a volume after the kill of its owner
  growth      throughput of 6 to 60 nodes in virtual time
  embedded    a database in a directory against --before, an earlier program (needs valgrind)

All times of network and devices are stretched by --scale: with 25, a card of 25 Gbit/s has 125
MB/s and a round trip of 80 us takes 2 ms. Decision 0072 in docs/decisions fixes the testbed and the
rows. Each run has six storage nodes of its own in a directory in memory (--dir), which it removes.
The whole table writes 6 GB into memory at most and takes more than a day. The plan with the
estimated minutes of each group goes to standard error before the first run, and --plan prints only
that. Tables go to standard output. The directory of --out gets them in Markdown as report.md, every
figure as report.json, and charts as SVG. Each run is appended to runs.jsonl there, and --resume
continues with it after an interruption.

Examples:
  archipelago-lab terark-nodes --quick --only=insert,redundancy
  archipelago-lab terark-nodes --plan --only=space,gc
  archipelago-lab terark-nodes --only=space --workloads=fixed16k --out=space
  archipelago-lab terark-nodes --resume=space/runs.jsonl
  archipelago-lab terark-nodes --only=embedded --before=/tmp/earlier/archipelago --runs=5
  archipelago-lab terark-nodes --quick --only=log --page docs/benchmarks/terark-nodes.md#log
  archipelago-lab terark-nodes --page docs/benchmarks/terark-nodes.md";

const DATA_BYTES: u64 = 1 << 30;
const DATA_BYTES_QUICK: u64 = 256 << 20;
/// Seconds of throttled updates: those of the paper, at a quarter of its time.
const THROTTLED_SECONDS: u64 = 450;
/// Seconds of scans and of each YCSB workload.
const TIMED_SECONDS: u64 = 60;

/// Flags of the command.
#[derive(Clone, Debug, Parser)]
#[command(name = "archipelago-lab terark-nodes", bin_name = "archipelago-lab terark-nodes",
          about = ABOUT, after_help = TEACH, rename_all = "snake_case",
          disable_version_flag = true)]
pub(super) struct NodesFlags {
    /// Measure 256 MiB instead of 1 GiB, a quarter of the seconds, and each mode once instead of
    /// three times
    #[arg(long)]
    pub(super) quick: bool,
    /// Measure only these groups
    #[arg(long, value_enum, value_delimiter = ',', value_name = "GROUPS")]
    pub(super) only: Vec<Group>,
    /// Measure only these workloads
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(super) workloads: Vec<Workload>,
    /// Measure only these modes. A row needs both of its modes
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODES")]
    pub(super) modes: Vec<Mode>,
    /// Print the plan with its estimated time, and measure nothing
    #[arg(long)]
    pub(super) plan: bool,
    /// Continue with the journal of an interrupted run and its flags
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub(super) resume: Option<PathBuf>,
    /// Factor by which times of network and devices are stretched
    #[arg(long, default_value_t = 25.0, value_name = "F")]
    pub(super) scale: f64,
    /// Runs of each mode; default: 3, with --quick 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    runs: Option<u64>,
    /// Bytes of keys and values before the updates, which write three times as much; default:
    /// 1 GiB, with --quick 256 MiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1 << 16..=1 << 40))]
    data_bytes: Option<u64>,
    /// Seconds of throttled updates; default: 450, with --quick a quarter
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    throttled_seconds: Option<u64>,
    /// Seconds of scans, of each YCSB workload, and of reads around a repair; default: 60, with
    /// --quick a quarter
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    timed_seconds: Option<u64>,
    /// Seconds that a repair may take after its node counts as lost
    #[arg(long, default_value_t = 300, value_name = "N")]
    pub(super) repair_seconds: u64,
    /// Threads of the client that write and read
    #[arg(long, default_value_t = 32, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(super) threads: u64,
    /// Directory of the reports and charts, which is made if it is missing
    #[arg(long, default_value = "terark-nodes", value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Write the page of docs/benchmarks to this file
    #[arg(long, value_name = "FILE")]
    pub(super) page: Option<PathBuf>,
    /// Directory of the storage nodes, which should lie in memory; default: /dev/shm if it exists,
    /// else the temporary directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Program of the client; default: archipelago in the folder of archipelago-lab
    #[arg(long, value_name = "PROGRAM")]
    pub(super) archipelago: Option<PathBuf>,
    /// Program of an earlier commit, with which the group `embedded` compares
    #[arg(long, value_name = "PROGRAM")]
    pub(super) before: Option<PathBuf>,
    /// Commit of that program, which the report names
    #[arg(long, value_name = "NAME", default_value = "not named")]
    pub(super) before_commit: String,
    /// Client whose garbage collection looks up and reads key by key, for the group `space`: the
    /// program of cargo build --release -p archipelago-cli --features gc-by-key
    #[arg(long, value_name = "PROGRAM")]
    pub(super) by_key: Option<PathBuf>,
    /// Program that runs a storage node with the words `terark-storage-node FLAGS`; default: this
    /// one
    #[arg(long, value_name = "PROGRAM")]
    pub(super) node_program: Option<PathBuf>,
    /// Seed of the first round; each round has the next
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(super) seed: u64,
}

impl NodesFlags {
    /// Parses `args`, the words after `terark-nodes`.
    pub(super) fn read(args: &[OsString]) -> Result<Self, Stop> {
        let flags: Self = command_line::parse("terark-nodes", args)?;
        if !(flags.scale.is_finite() && (0.001..=1000.0).contains(&flags.scale)) {
            let scale = flags.scale;
            return Err(Stop::Usage(format!(
                "--scale={scale}: give a factor from 0.001 to 1000; 25 makes a card of 25 Gbit/s \
                 one of 1 Gbit/s"
            )));
        }
        if flags.only.contains(&Group::Embedded) && flags.before.is_none() {
            return Err(Stop::Usage(
                "--only=embedded needs --before=PROGRAM, the archipelago of an earlier commit"
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

    /// Seconds of throttled updates.
    pub(super) fn throttled_seconds(&self) -> u64 {
        self.throttled_seconds.unwrap_or(self.part(THROTTLED_SECONDS))
    }

    /// Seconds of scans and of each YCSB workload.
    pub(super) fn timed_seconds(&self) -> u64 {
        self.timed_seconds.unwrap_or(self.part(TIMED_SECONDS))
    }

    fn part(&self, seconds: u64) -> u64 {
        if self.quick { seconds / 4 } else { seconds }
    }

    /// The groups that are measured, in the order of the table.
    pub(super) fn groups(&self) -> Vec<Group> {
        let is_wanted = |group: &Group| self.only.is_empty() || self.only.contains(group);
        Group::ALL.into_iter().filter(is_wanted).collect()
    }

    /// Whether a mode is measured with a workload.
    pub(super) fn has(&self, workload: Workload, mode: Mode) -> bool {
        let has_program = match mode {
            Mode::AllOnByKey => self.by_key.is_some(),
            Mode::Embedded | Mode::EmbeddedBefore => self.before.is_some(),
            _ => true,
        };
        has_program
            && (self.workloads.is_empty() || self.workloads.contains(&workload))
            && (self.modes.is_empty() || self.modes.contains(&mode))
    }

    /// The client's program of a mode that does not use the measured one.
    pub(super) fn program_of(&self, mode: Mode) -> Option<&PathBuf> {
        match mode {
            Mode::AllOnByKey => self.by_key.as_ref(),
            Mode::EmbeddedBefore => self.before.as_ref(),
            _ => None,
        }
    }

    /// Directory in which directories are made.
    pub(super) fn base_dir(&self) -> PathBuf {
        crate::rounds::base_dir(self.dir.as_ref())
    }
}
