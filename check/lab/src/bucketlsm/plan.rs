//! The runs of a reproduction, from the flags to the words of each process. The functions are pure.
//!
//! Sizes are the paper's, divided by one factor. The base level has the size of a memtable, and a
//! table has a quarter of it. RocksDB's defaults have the same ratios to the paper's memtables of
//! 256 MB. The L0 triggers are RocksDB's own and the same for every mode.

use serde::Serialize;

use super::flags::ReproduceFlags;

/// Bytes of a key, as in the paper.
const KEY_BYTES: u64 = 16;
/// The offered load, as a share of the rate that the mode of [`Workload::sets_load`] reaches at
/// full speed.
pub(super) const OFFERED_SHARE: f64 = 0.9;

/// A mode of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mode {
    /// One bucket, one thread per compaction: the paper's baseline.
    Classic,
    /// One bucket, each compaction shared by threads.
    Subcompactions,
    /// Buckets whose boundaries stay.
    Static,
    /// Buckets: the default of the store.
    Buckets,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Subcompactions => "subcompactions",
            Self::Static => "buckets, static",
            Self::Buckets => "buckets",
        }
    }

    fn words(self, jobs: u64) -> Vec<String> {
        let (buckets, subcompactions, boundaries) = match self {
            Self::Classic => (1, 1, "static"),
            Self::Subcompactions => (1, jobs, "static"),
            Self::Static => (jobs, 1, "static"),
            Self::Buckets => (jobs, 1, "dynamic"),
        };
        vec![
            format!("--max_background_jobs={jobs}"),
            format!("--buckets={buckets}"),
            format!("--subcompactions={subcompactions}"),
            format!("--bucket_boundaries={boundaries}"),
        ]
    }
}

/// A workload of the paper's evaluation (§VI-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(super) enum Workload {
    FillRandom,
    MixGraph1,
    MixGraph2,
    YcsbGet,
    YcsbScan,
}

impl Workload {
    pub(super) const ALL: [Self; 5] =
        [Self::FillRandom, Self::MixGraph1, Self::MixGraph2, Self::YcsbGet, Self::YcsbScan];

    /// Name in the paper.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::FillRandom => "fillrandom",
            Self::MixGraph1 => "MixGraph1",
            Self::MixGraph2 => "MixGraph2",
            Self::YcsbGet => "YCSB-GET",
            Self::YcsbScan => "YCSB-SCAN",
        }
    }

    /// Name of the benchmark in `archipelago bench`.
    pub(super) fn benchmark(self) -> &'static str {
        match self {
            Self::FillRandom => "fillrandom",
            Self::MixGraph1 => "mixgraph1",
            Self::MixGraph2 => "mixgraph2",
            Self::YcsbGet => "ycsbget",
            Self::YcsbScan => "ycsbscan",
        }
    }

    /// Whether the workload only writes.
    fn is_write_only(self) -> bool {
        matches!(self, Self::FillRandom | Self::MixGraph1)
    }

    /// Percentage of the operations that write.
    fn write_percent(self) -> u64 {
        match self {
            Self::FillRandom | Self::MixGraph1 => 100,
            Self::MixGraph2 => 80,
            Self::YcsbGet => 70,
            Self::YcsbScan => 90,
        }
    }

    /// Mode whose rate at full speed determines the fixed load; `None` if the workload has no runs
    /// at a fixed load. Stalls are compared at a load that buckets sustain. Latencies of scans are
    /// compared at a load that both modes sustain, because waiting for a slower store is not part
    /// of a scan.
    pub(super) fn sets_load(self) -> Option<Mode> {
        match self {
            Self::FillRandom | Self::MixGraph1 => Some(Mode::Buckets),
            Self::YcsbScan => Some(Mode::Classic),
            Self::MixGraph2 | Self::YcsbGet => None,
        }
    }

    /// Whether the workload starts with a loaded database.
    fn is_ycsb(self) -> bool {
        matches!(self, Self::YcsbGet | Self::YcsbScan)
    }
}

/// Device and load of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Setting {
    /// On the emulated device, at full speed.
    Device,
    /// On the emulated device, at a fixed rate.
    Offered,
    /// On the disk without emulation.
    Plain,
    /// On the emulated device with this many background jobs.
    Jobs(u64),
}

/// Runs whose results are compared, and which therefore alternate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) workload: Workload,
    pub(super) setting: Setting,
    pub(super) modes: Vec<Mode>,
}

impl Group {
    /// The case of this group with that mode.
    pub(super) fn case(&self, mode: Mode) -> Case {
        Case { workload: self.workload, setting: self.setting, mode }
    }
}

/// All runs in order. Runs at full speed come before those at the fixed load that is computed from
/// them.
pub(super) fn groups(flags: &ReproduceFlags) -> Vec<Group> {
    use Mode::{Buckets, Classic, Static, Subcompactions};
    let wanted = |workload: &Workload| flags.only.is_empty() || flags.only.contains(workload);
    let all: Vec<Workload> = Workload::ALL.into_iter().filter(wanted).collect();
    let mut groups = Vec::new();
    for &workload in &all {
        let modes = match workload {
            Workload::MixGraph1 => vec![Classic, Subcompactions, Static, Buckets],
            _ => vec![Classic, Subcompactions, Buckets],
        };
        groups.push(Group { workload, setting: Setting::Device, modes });
    }
    for &workload in all.iter().filter(|workload| workload.sets_load().is_some()) {
        let modes = vec![Classic, Buckets];
        groups.push(Group { workload, setting: Setting::Offered, modes });
    }
    if !flags.skip_plain {
        for &workload in &all {
            let modes = vec![Classic, Buckets];
            groups.push(Group { workload, setting: Setting::Plain, modes });
        }
    }
    for &jobs in &flags.jobs {
        let (workload, modes) = (Workload::FillRandom, vec![Subcompactions, Buckets]);
        groups.push(Group { workload, setting: Setting::Jobs(jobs), modes });
    }
    groups
}

/// Numbers of keys and operations of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Load {
    pub(super) threads: u64,
    /// Keys of the key space, and records that are loaded first.
    pub(super) keys: u64,
    /// Operations of each thread.
    pub(super) ops_each: u64,
}

/// The load of `workload`. Reads take time on a device, so workloads with reads do fewer
/// operations. The number of threads is the paper's, which runs MixGraph in one thread.
pub(super) fn load(flags: &ReproduceFlags, workload: Workload) -> Load {
    let num = flags.num();
    let threads = if workload.is_ycsb() { flags.threads } else { 1 };
    let (keys, ops) = match workload {
        Workload::FillRandom | Workload::MixGraph1 => (num, num),
        Workload::MixGraph2 => (num, num / 2),
        // These are enough operations for several memtables, because seven and nine of ten
        // operations write.
        Workload::YcsbGet => (num / 2, num),
        Workload::YcsbScan => (num / 2, num / 4),
    };
    Load { threads, keys: keys.max(1), ops_each: (ops / threads).max(1) }
}

/// Bytes of a key and a value.
pub(super) fn entry_bytes(flags: &ReproduceFlags) -> u64 {
    KEY_BYTES + flags.value_size
}

/// Subject of one run: a workload, in a setting, with a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) workload: Workload,
    pub(super) setting: Setting,
    pub(super) mode: Mode,
}

/// Words of a process, without the program, the directory and the files it writes.
pub(super) fn words(
    flags: &ReproduceFlags,
    case: Case,
    round: u64,
    offered_ops_per_s: Option<u64>,
) -> Vec<String> {
    let Case { workload, setting, mode } = case;
    let jobs = if let Setting::Jobs(jobs) = setting { jobs } else { flags.background_jobs };
    let load = load(flags, workload);
    let memtable = flags.memtable_bytes();
    let mut words = mode.words(jobs);
    words.extend([
        format!("--num={}", load.keys),
        format!("--key_size={KEY_BYTES}"),
        format!("--value_size={}", flags.value_size),
        format!("--seed={}", flags.seed + round),
        format!("--write_buffer_size={memtable}"),
        "--max_write_buffer_number=2".to_owned(),
        format!("--max_bytes_for_level_base={memtable}"),
        format!("--target_file_size_base={}", memtable / 4),
        format!("--cache_size={}", flags.cache_size),
        "--level0_file_num_compaction_trigger=4".to_owned(),
        "--level0_slowdown_writes_trigger=20".to_owned(),
        "--level0_stop_writes_trigger=36".to_owned(),
        "--compression_type=none".to_owned(),
        "--bloom_bits=10".to_owned(),
        "--ycsb_theta=0.9".to_owned(),
    ]);
    if let (Setting::Offered, Some(ops_per_s)) = (setting, offered_ops_per_s) {
        let bytes_per_s = ops_per_s * entry_bytes(flags) * workload.write_percent() / 100;
        words.push(format!("--benchmark_write_rate_limit={bytes_per_s}"));
    }
    words
}

/// Benchmarks of the process that is measured, and their flags.
pub(super) fn measured(
    flags: &ReproduceFlags,
    workload: Workload,
    setting: Setting,
) -> Vec<String> {
    let load = load(flags, workload);
    let name = workload.benchmark();
    // The compaction debt of a write benchmark counts as time of its own.
    let settles = workload.is_write_only() && matches!(setting, Setting::Device | Setting::Plain);
    let list = match (settles, workload.is_ycsb()) {
        (true, _) => format!("{name},waitforcompaction"),
        // The paper's machine has just loaded the data, into its page cache.
        (false, true) => format!("warmup,{name}"),
        (false, false) => name.to_owned(),
    };
    let mut words = vec![
        format!("--benchmarks={list}"),
        format!("--threads={}", load.threads),
        format!("--reads={0}", load.ops_each),
        format!("--writes={0}", load.ops_each),
        "--histogram".to_owned(),
    ];
    if workload.is_ycsb() {
        words.push("--use_existing_db".to_owned());
    }
    words
}

/// Benchmarks of the process that makes the database from which the workload starts. It runs before
/// the measured process, on the disk without emulation.
pub(super) fn prepared(workload: Workload) -> Option<Vec<String>> {
    workload.is_ycsb().then(|| vec!["--benchmarks=ycsbload,waitforcompaction".to_owned()])
}
