//! The runs, from the flags to the words of each process. The functions are pure.
//!
//! A run is one mode of one part. It consists of steps, each a process on the database that the
//! step before it left. Sizes are those of decision 0064.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bounds;
use super::flags::TerarkEngineFlags;

pub(super) const KEY_BYTES: u64 = 24;
pub(super) const VALUE_BYTES: u64 = 16 << 10;
/// Lengths of the values of `mixed`, uniform, with a mean of 8 KiB as Mixed-8K has.
const MIXED_BYTES: [u64; 2] = [100, 16_284];
/// Bytes of key and value of each record of the parts whose space is measured.
pub(super) const RECORD_BYTES: u64 = KEY_BYTES + VALUE_BYTES;
const MEMTABLE_BYTES: u64 = 4 << 20;
const MEMTABLES: u64 = 4;
const TABLE_BYTES: u64 = 4 << 20;
pub(super) const VALUE_FILE_BYTES: u64 = 8 << 20;
const LEVEL_BASE_BYTES: u64 = 2 << 20;
const BACKGROUND_JOBS: u64 = 4;
pub(super) const SEPARATION_BYTES: u64 = 512;
/// Share of the data that the block cache holds.
const CACHE_SHARE: u64 = 100;
/// Cache that holds no index.
const COLD_CACHE_BYTES: u64 = 64 << 10;
/// Updates per record.
const UPDATES: u64 = 3;
/// Scans of `prefetch`, each of which waits for hundreds of reads without prefetch.
const PREFETCH_SCANS: u64 = 20;
/// Reads that measure the time of one key in `gc`.
const KEY_BY_KEY_READS: u64 = 200;
/// Number of records whose lengths a bound takes.
const LENGTHS: u64 = 100_000;
/// Smallest bound that the engine takes.
const BOUND_MIN: f64 = 1.05;
/// Bound of `volume` and `gc`, which is the default of the engine.
pub(super) const BOUND: f64 = 1.5;

/// A part of the table, by its name in `--rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(super) enum Part {
    Volume,
    Fill,
    Update,
    Mixed,
    Scans,
    Prefetch,
    Space,
    Gc,
    Off,
}

impl Part {
    pub(super) const ALL: [Self; 9] = [
        Self::Volume,
        Self::Fill,
        Self::Update,
        Self::Mixed,
        Self::Scans,
        Self::Prefetch,
        Self::Space,
        Self::Gc,
        Self::Off,
    ];

    /// Title of its section.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Volume => "Values of 16 KiB on the emulated network volume",
            Self::Fill => "A load of 16 KiB values on the plain disk",
            Self::Update => "Updates and reads of 16 KiB values on the plain disk",
            Self::Mixed => "Reads of values of 100 B to 16 KiB on the plain disk",
            Self::Scans => "The workloads of the paper on the plain disk",
            Self::Prefetch => "Scans on the emulated network volume",
            Self::Space => "Space under throttled uniform updates",
            Self::Gc => "Garbage collection on the emulated network volume, index not cached",
            Self::Off => "Instructions per operation without separation",
        }
    }

    /// Name of the part below the bars of a chart.
    pub(super) fn short_title(self) -> &'static str {
        match self {
            Self::Volume => "16 KiB, emulated volume",
            Self::Fill | Self::Update => "16 KiB, plain disk",
            Self::Mixed => "100 B to 16 KiB, plain disk",
            other => other.title(),
        }
    }

    /// Modes that the part compares, in the order of their runs. BlobDB runs before the mode that
    /// gets its space.
    pub(super) fn modes(self) -> &'static [Mode] {
        match self {
            Self::Volume | Self::Scans => &[Mode::Inline, Mode::Separated],
            Self::Fill | Self::Mixed => &[Mode::Inline, Mode::Separated, Mode::BlobDb],
            Self::Update => &[Mode::Inline, Mode::BlobDb, Mode::AsBlobDb],
            Self::Prefetch => &[Mode::NoPrefetch, Mode::Separated],
            Self::Space => &[Mode::Bound115, Mode::Bound125, Mode::Bound150, Mode::BlobDb],
            Self::Gc => &[Mode::Separated],
            Self::Off => &[Mode::Earlier, Mode::Inline],
        }
    }
}

/// Way in which a run stores values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mode {
    /// All values lie in the levels.
    Inline,
    /// Separated, with the default bound on space.
    Separated,
    /// Separated, and iterators read values one at a time.
    NoPrefetch,
    /// Separated, with the space that BlobDB needed at most in the same round.
    AsBlobDb,
    /// Separated, with a bound of 1.15 that includes the slack.
    Bound115,
    /// Separated, with a bound of 1.25 that includes the slack.
    Bound125,
    /// Separated, with a bound of 1.5 that includes the slack.
    Bound150,
    /// RocksDB with blob files and their garbage collection.
    BlobDb,
    /// All values lie in the levels, in the program of an earlier commit.
    Earlier,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Inline => "no separation",
            Self::Separated => "separated",
            Self::NoPrefetch => "separated, no prefetch",
            Self::AsBlobDb => "separated, at BlobDB's space",
            Self::Bound115 => "separated, bound 1.15",
            Self::Bound125 => "separated, bound 1.25",
            Self::Bound150 => "separated, bound 1.5",
            Self::BlobDb => "BlobDB",
            Self::Earlier => "no separation, earlier program",
        }
    }

    /// Highest space amplification that the run may have, with its slack, if it is chosen so.
    pub(super) fn space_limit(self) -> Option<f64> {
        match self {
            Self::Bound115 => Some(1.15),
            Self::Bound125 => Some(1.25),
            Self::Bound150 => Some(1.5),
            _ => None,
        }
    }
}

/// Kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StepKind {
    /// A load with repetition, on an empty database.
    Fill,
    /// A load of each key once, on an empty database.
    Load,
    Update,
    Read,
    /// The load and the updates of a workload of the paper.
    Prepare(Paper),
    /// The reads and scans of a workload of the paper.
    Serve(Paper),
    /// Some scans of Fixed-16K.
    Scan,
    /// A scan of everything, which counts the live records.
    Count,
    /// Reads by one thread without a cache: the time of garbage collection key by key.
    KeyByKey,
}

/// A workload of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Paper {
    Fixed16k,
    Mixed8k,
    Pareto1k,
}

impl Paper {
    pub(super) const ALL: [Self; 3] = [Self::Fixed16k, Self::Mixed8k, Self::Pareto1k];

    /// The benchmark of a phase.
    pub(super) fn benchmark(self, phase: Phase) -> &'static str {
        match (self, phase) {
            (Self::Fixed16k, Phase::Read) => "fixed16kread",
            (Self::Fixed16k, Phase::Scan) => "fixed16kscan",
            (Self::Mixed8k, Phase::Read) => "mixed8kread",
            (Self::Mixed8k, Phase::Scan) => "mixed8kscan",
            (Self::Pareto1k, Phase::Read) => "pareto1kread",
            (Self::Pareto1k, Phase::Scan) => "pareto1kscan",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fixed16k => "fixed16k",
            Self::Mixed8k => "mixed8k",
            Self::Pareto1k => "pareto1k",
        }
    }

    /// Lengths of the values of the first records.
    pub(super) fn lengths(self) -> Vec<u64> {
        let benchmark = format!("{}load", self.name());
        let bytes = |number| archipelago_bench::record_value_bytes(&benchmark, number);
        (0..LENGTHS).filter_map(bytes).map(|bytes| bytes as u64).collect()
    }

    /// Mean bytes of a value.
    fn value_bytes(self) -> u64 {
        match self {
            Self::Fixed16k => VALUE_BYTES,
            Self::Mixed8k => 8345,
            Self::Pareto1k => 1024,
        }
    }
}

/// Phase of a workload of the paper that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Read,
    Scan,
}

/// A process of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) kind: StepKind,
    /// Whether the network volume is emulated.
    pub(super) is_emulated: bool,
    /// Whether the step starts on an empty directory.
    pub(super) is_fresh: bool,
}

impl Step {
    const fn new(kind: StepKind) -> Self {
        let is_fresh = matches!(kind, StepKind::Fill | StepKind::Load | StepKind::Prepare(_));
        Self { kind, is_emulated: false, is_fresh }
    }

    const fn emulated(self) -> Self {
        Self { is_emulated: true, ..self }
    }

    /// Whether the space is sampled while the step runs.
    pub(super) fn is_sampled(self) -> bool {
        self.kind == StepKind::Update
    }

    /// The benchmark during which space is sampled.
    pub(super) const SAMPLED: &'static str = "overwrite";
    /// The benchmark that counts the live records.
    pub(super) const COUNTED: &'static str = "readseq";
}

/// The steps of a run. Loads before a step on the emulated device run on the plain disk.
pub(super) fn steps(part: Part) -> Vec<Step> {
    use StepKind::{Count, Fill, KeyByKey, Load, Prepare, Read, Scan, Serve, Update};
    let new = Step::new;
    match part {
        Part::Volume => vec![new(Fill).emulated(), new(Load), new(Update).emulated()],
        Part::Fill => vec![new(Fill)],
        Part::Update => vec![new(Load), new(Update), new(Read), new(Count)],
        Part::Mixed => vec![new(Load), new(Update), new(Read)],
        Part::Scans => {
            let of = |paper| [new(Prepare(paper)), new(Serve(paper))];
            Paper::ALL.into_iter().flat_map(of).collect()
        }
        Part::Prefetch => vec![new(Prepare(Paper::Fixed16k)), new(Scan).emulated()],
        Part::Space => vec![new(Load), new(Update), new(Count)],
        Part::Gc => vec![new(Load), new(Update).emulated(), new(KeyByKey).emulated()],
        Part::Off => Vec::new(),
    }
}

/// Number of records of `part`, by the mean length of its values.
pub(super) fn records(flags: &TerarkEngineFlags, part: Part, kind: StepKind) -> u64 {
    let value_bytes = match (part, kind) {
        (_, StepKind::Prepare(paper) | StepKind::Serve(paper)) => paper.value_bytes(),
        (Part::Mixed, _) => u64::midpoint(MIXED_BYTES[0], MIXED_BYTES[1]),
        _ => VALUE_BYTES,
    };
    (flags.data_bytes() / (KEY_BYTES + value_bytes)).max(1)
}

/// Bytes of keys and values that are live after the load and during the updates of 16 KiB values,
/// by arithmetic. The bound of a run follows from them before anything can be counted.
pub(super) fn live_bytes(flags: &TerarkEngineFlags) -> u64 {
    records(flags, Part::Space, StepKind::Load) * RECORD_BYTES
}

/// Bytes that the engine may need above its bound: one value file in reserve for garbage
/// collection, an heir and a table that are being written, and the memtables.
pub(super) fn slack_bytes() -> u64 {
    2 * VALUE_FILE_BYTES + TABLE_BYTES + MEMTABLES * MEMTABLE_BYTES
}

/// The bound that leaves room for the slack below `limit`.
pub(super) fn bound_below(flags: &TerarkEngineFlags, limit: f64) -> f64 {
    (limit - slack_bytes() as f64 / live_bytes(flags) as f64).max(BOUND_MIN)
}

/// Share of the bytes that lies in the levels with values of 16 KiB.
pub(super) fn share_in_levels() -> f64 {
    bounds::share_in_levels(KEY_BYTES, std::iter::once(VALUE_BYTES), SEPARATION_BYTES)
}

/// Lengths of the values of `mixed`, at equal distances.
pub(super) fn mixed_lengths() -> Vec<u64> {
    let [least, most] = MIXED_BYTES;
    (0..LENGTHS).map(|at| least + (most - least) * at / (LENGTHS - 1)).collect()
}

/// Share of the data that the block cache holds.
pub(super) fn cached_share() -> f64 {
    1.0 / CACHE_SHARE as f64
}

/// Parameters from which the words of a process follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) flags: &'a TerarkEngineFlags,
    pub(super) part: Part,
    pub(super) mode: Mode,
    pub(super) round: u64,
    /// Largest space amplification of BlobDB in this round, for the mode that gets it.
    pub(super) peer_space: Option<f64>,
}

impl Case<'_> {
    /// Words of the process of `step`, for the database in `dir`, without what only one side takes.
    pub(super) fn words(&self, at: usize, step: Step, dir: &Path) -> Vec<String> {
        let flags = self.flags;
        let seed = flags.seed + self.round * 1000 + at as u64;
        let mut words = vec![
            format!("--benchmarks={}", self.benchmarks(step.kind)),
            format!("--db={}", dir.display()),
            "--compression_type=none".to_owned(),
        ];
        let mut set = |name: &str, value: u64| words.push(format!("--{name}={value}"));
        set("num", records(flags, self.part, step.kind));
        set("key_size", KEY_BYTES);
        set("value_size", VALUE_BYTES);
        set("write_buffer_size", MEMTABLE_BYTES);
        set("max_write_buffer_number", MEMTABLES);
        set("target_file_size_base", TABLE_BYTES);
        set("max_bytes_for_level_base", LEVEL_BASE_BYTES);
        set("bloom_bits", 10);
        set("block_size", 4096);
        set("max_background_jobs", BACKGROUND_JOBS);
        set("disable_wal", 0);
        set("use_existing_db", u64::from(!step.is_fresh));
        set("seed", seed);
        let is_cold = step.kind == StepKind::KeyByKey
            || (self.part == Part::Gc && step.kind == StepKind::Update);
        set(
            "cache_size",
            if is_cold { COLD_CACHE_BYTES } else { flags.data_bytes() / CACHE_SHARE },
        );
        match step.kind {
            StepKind::Update => {
                set("writes", UPDATES * records(flags, self.part, step.kind));
            }
            StepKind::Scan => set("reads", PREFETCH_SCANS),
            // More than there are, so that none is left out.
            StepKind::Count => set("reads", 2 * records(flags, self.part, step.kind)),
            StepKind::KeyByKey => set("reads", KEY_BY_KEY_READS),
            _ => {}
        }
        if self.part == Part::Space && step.kind == StepKind::Update {
            set("benchmark_write_rate_limit", flags.update_bytes_per_s);
        }
        if self.part == Part::Mixed {
            set("value_size_min", MIXED_BYTES[0]);
            set("value_size_max", MIXED_BYTES[1]);
            words.push("--value_size_distribution_type=uniform".to_owned());
        }
        words.extend(self.mode_words());
        words
    }

    fn benchmarks(&self, kind: StepKind) -> String {
        match kind {
            StepKind::Fill => "fillrandom,flush,waitforcompaction".to_owned(),
            StepKind::Load => "filluniquerandom,flush,waitforcompaction".to_owned(),
            StepKind::Update => "overwrite,flush,waitforcompaction".to_owned(),
            // The first reads fill the cache.
            StepKind::Read => "readrandom,readrandom".to_owned(),
            StepKind::KeyByKey => "readrandom".to_owned(),
            StepKind::Count => Step::COUNTED.to_owned(),
            StepKind::Scan => "fixed16kscan".to_owned(),
            StepKind::Prepare(paper) => {
                let name = paper.name();
                format!("{name}load,{name}update,flush,waitforcompaction")
            }
            StepKind::Serve(paper) => {
                let [read, scan] = [Phase::Read, Phase::Scan].map(|phase| paper.benchmark(phase));
                format!("{read},{scan}")
            }
        }
    }

    /// Words of the mode alone.
    fn mode_words(&self) -> Vec<String> {
        let separated = |bound: f64| {
            vec![
                format!("--value_separation_bytes={SEPARATION_BYTES}"),
                format!("--value_file_bytes={VALUE_FILE_BYTES}"),
                format!("--space_amplification_max={bound:.4}"),
                format!("--wal_segment_size={MEMTABLE_BYTES}"),
            ]
        };
        match self.mode {
            Mode::Inline => vec![
                "--value_separation_bytes=0".to_owned(),
                format!("--wal_segment_size={MEMTABLE_BYTES}"),
            ],
            Mode::Separated => separated(BOUND),
            Mode::NoPrefetch => {
                let mut words = separated(BOUND);
                words.push("--value_prefetch=false".to_owned());
                words
            }
            Mode::AsBlobDb => separated(bound_below(self.flags, self.peer_space.unwrap_or(BOUND))),
            Mode::Bound115 | Mode::Bound125 | Mode::Bound150 => {
                separated(bound_below(self.flags, self.mode.space_limit().unwrap_or(BOUND)))
            }
            Mode::BlobDb => {
                let mut words = vec![
                    "--enable_blob_files=true".to_owned(),
                    format!("--min_blob_size={SEPARATION_BYTES}"),
                    format!("--blob_file_size={VALUE_FILE_BYTES}"),
                    "--blob_compression_type=none".to_owned(),
                    "--enable_blob_garbage_collection=true".to_owned(),
                ];
                words.extend(self.flags.db_bench_flags.split_whitespace().map(str::to_owned));
                words
            }
            Mode::Earlier => vec![format!("--wal_segment_size={MEMTABLE_BYTES}")],
        }
    }
}
