//! The runs, from the flags to the words and the devices of each process. The functions are pure.

use archipelago_tier::scheme::LEVELS;
use serde::Serialize;

use super::flags::KeigoFlags;

const KEY_BYTES: u64 = 16;
const VALUE_BYTES: u64 = 1024;
const META_KEY_BYTES: u64 = 48;
/// Mean size of the values of prefix_dist.
const META_VALUE_BYTES: u64 = 35;
/// Mean size of Nutanix-like values.
const NUTANIX_VALUE_BYTES: u64 = 900;

const MEMTABLE: u64 = 1 << 20;
const CACHE: u64 = 8 << 20;
/// Bytes of log that may wait for an emulated device, which has no page cache.
pub(super) const LOG_DIRTY_BYTES_MAX: u64 = 512 << 10;

/// A part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(super) enum Part {
    Tiers,
    Buffered,
    Placement,
    Threads,
    Cache,
    Sync,
    Single,
    Switch,
    Production,
    Block,
    Instructions,
}

impl Part {
    /// Parts that run unless a flag names others.
    pub(super) const TABLE: [Self; 10] = [
        Self::Tiers,
        Self::Buffered,
        Self::Placement,
        Self::Threads,
        Self::Cache,
        Self::Sync,
        Self::Single,
        Self::Switch,
        Self::Production,
        Self::Block,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Tiers => "Everything on the slow device → tiers, the fast one holds a quarter",
            Self::Buffered => "The same, the log by way of memory",
            Self::Placement => "Everything on the fast device → placement by writers",
            Self::Threads => "Automatic number of copying and moving threads → the best fixed one",
            Self::Cache => "Three devices: no copies → copies",
            Self::Sync => "The slow device → tiers, every write synced",
            Self::Single => "The local file system → one device through the tiers",
            Self::Switch => "C → A → C: seconds until 90 % of the phase's steady speed",
            Self::Production => "Production workloads: the slow device → tiers",
            Self::Block => "NVMe over SATA",
            Self::Instructions => "Instructions per operation: the local file system → one device",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(super) enum Workload {
    A,
    B,
    C,
    D,
    E,
    F,
    Meta,
    Nutanix,
}

impl Workload {
    const YCSB: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::A => "YCSB A",
            Self::B => "YCSB B",
            Self::C => "YCSB C",
            Self::D => "YCSB D",
            Self::E => "YCSB E",
            Self::F => "YCSB F",
            Self::Meta => "Meta",
            Self::Nutanix => "Nutanix-like",
        }
    }

    /// Name of the benchmark in `archipelago bench`.
    pub(super) fn benchmark(self) -> &'static str {
        match self {
            Self::A => "ycsba",
            Self::B => "ycsbb",
            Self::C => "ycsbc",
            Self::D => "ycsbd",
            Self::E => "ycsbe",
            Self::F => "ycsbf",
            Self::Meta => "mixgraph",
            Self::Nutanix => "nutanix",
        }
    }

    fn load_benchmark(self) -> &'static str {
        if self == Self::Nutanix { "nutanixload" } else { "ycsbload" }
    }

    /// Whether the workload mostly reads, so that copies count and a bound can be stated.
    pub(super) fn is_read_mostly(self) -> bool {
        matches!(self, Self::B | Self::C | Self::D | Self::E)
    }

    /// Bytes of a key and of a value, on average.
    fn entry_bytes(self) -> (u64, u64) {
        match self {
            Self::Meta => (META_KEY_BYTES, META_VALUE_BYTES),
            Self::Nutanix => (KEY_BYTES, NUTANIX_VALUE_BYTES),
            _ => (KEY_BYTES, VALUE_BYTES),
        }
    }
}

/// Distribution by which records are picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(super) enum Keys {
    Zipf99,
    Zipf80,
    Uniform,
    /// Distribution of the workload itself.
    Own,
}

impl Keys {
    const ALL: [Self; 3] = [Self::Zipf99, Self::Zipf80, Self::Uniform];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zipf99 => "zipfian 0.99",
            Self::Zipf80 => "zipfian 0.80",
            Self::Uniform => "uniform",
            Self::Own => "its own",
        }
    }

    fn words(self, workload: Workload) -> Vec<String> {
        let skewed = if workload == Workload::D { "latest" } else { "zipfian" };
        let word = |name: &str, value: &str| format!("--ycsb_{name}={value}");
        match self {
            Self::Zipf99 => vec![word("distribution", skewed), word("theta", "0.99")],
            Self::Zipf80 => vec![word("distribution", skewed), word("theta", "0.80")],
            Self::Uniform => vec![word("distribution", "uniform")],
            Self::Own => Vec::new(),
        }
    }
}

/// Kind of device in the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Medium {
    Nvmm,
    Nvme,
    Sata,
}

impl Medium {
    pub(super) const ALL: [Self; 3] = [Self::Nvmm, Self::Nvme, Self::Sata];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nvmm => "nvmm",
            Self::Nvme => "nvme",
            Self::Sata => "sata",
        }
    }

    /// Best number of writers. It has no meaning for the last device.
    pub(super) fn writers_max(self) -> u32 {
        match self {
            Self::Nvmm => 4,
            Self::Nvme => 16,
            Self::Sata => 64,
        }
    }
}

/// A device of tiers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Layer {
    pub(super) medium: Medium,
    pub(super) capacity_bytes: u64,
    pub(super) cache_share: f64,
}

/// Devices below the database.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) enum Layout {
    /// A directory, not emulated.
    Local,
    /// One device, without tiers.
    Device(Medium),
    /// Tiers of one directory, not emulated.
    OneTier,
    Tiers {
        layers: Vec<Layer>,
        threads_fixed: Option<usize>,
        fast_levels: Option<u8>,
    },
}

/// A side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Side {
    /// Everything on the slower device.
    Slow,
    /// Everything on the faster device.
    Fast,
    Tiers,
    /// Tiers with a fixed number of threads that copy and move.
    Fixed(usize),
    NoCopies,
    /// Copies on the fastest device only.
    CopiesOnFirst,
    Local,
    OneTier,
}

impl Side {
    pub(super) fn name(self) -> String {
        match self {
            Self::Slow => "slow device".to_owned(),
            Self::Fast => "fast device".to_owned(),
            Self::Tiers => "tiers".to_owned(),
            Self::Fixed(threads) => format!("tiers, {threads} threads"),
            Self::NoCopies => "tiers, no copies".to_owned(),
            Self::CopiesOnFirst => "tiers, copies on the fastest".to_owned(),
            Self::Local => "local file system".to_owned(),
            Self::OneTier => "one device".to_owned(),
        }
    }
}

/// Sides that alternate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Group {
    pub(super) part: Part,
    pub(super) workload: Workload,
    pub(super) keys: Keys,
    pub(super) jobs: u64,
    pub(super) clients: u64,
    pub(super) sides: Vec<Side>,
}

/// All groups of runs, in order.
pub(super) fn groups(flags: &KeigoFlags) -> Vec<Group> {
    let parts = if flags.only.is_empty() { &Part::TABLE[..] } else { &flags.only };
    let skip = |part: &Part| flags.real.is_some() && *part == Part::Block;
    parts.iter().filter(|part| !skip(part)).flat_map(|&part| groups_of(flags, part)).collect()
}

fn groups_of(flags: &KeigoFlags, part: Part) -> Vec<Group> {
    use Workload::{A, C, F, Meta, Nutanix};
    let all = if flags.quick { &Keys::ALL[1..2] } else { &Keys::ALL[..] };
    let one = |keys: Keys| vec![keys];
    let pair = vec![Side::Slow, Side::Tiers];
    let fixed = [1, 2, 4, 8, 16].map(Side::Fixed);
    let (workloads, keys, sides) = match part {
        Part::Tiers => (Workload::YCSB.to_vec(), all.to_vec(), pair),
        Part::Buffered => (vec![A, F], all.to_vec(), pair),
        Part::Placement => (vec![A], one(Keys::Uniform), vec![Side::Fast, Side::Tiers]),
        Part::Threads => {
            let sides = std::iter::once(Side::Tiers).chain(fixed).collect();
            (vec![A, C], one(Keys::Zipf80), sides)
        }
        Part::Cache => {
            let sides = vec![Side::NoCopies, Side::CopiesOnFirst, Side::Tiers];
            (vec![C], all.to_vec(), sides)
        }
        Part::Sync => (vec![A, F], all.to_vec(), pair),
        Part::Single | Part::Instructions => {
            (vec![A, C], one(Keys::Uniform), vec![Side::Local, Side::OneTier])
        }
        Part::Switch => (vec![C], one(Keys::Zipf80), vec![Side::Tiers]),
        Part::Production => (vec![Meta, Nutanix], one(Keys::Own), pair),
        Part::Block => (vec![A, C], one(Keys::Zipf80), vec![Side::Slow, Side::Tiers, Side::Fast]),
    };
    let wanted_workload = |w: &Workload| flags.workloads.is_empty() || flags.workloads.contains(w);
    let wanted_keys = |k: &Keys| {
        *k == Keys::Own || flags.distributions.is_empty() || flags.distributions.contains(k)
    };
    // No placement can surpass this ratio.
    let with_fast = |part, workload: Workload| {
        matches!(part, Part::Tiers | Part::Buffered) && !workload.is_read_mostly()
    };
    let jobs: &[u64] = match part {
        Part::Placement => &[8, 16],
        Part::Block => &[16],
        Part::Single | Part::Instructions => &[2],
        _ => &[flags.jobs],
    };
    let clients = match part {
        Part::Block => flags.clients * 2,
        Part::Single => 2,
        Part::Instructions => 1,
        _ => flags.clients,
    };
    let mut groups = Vec::new();
    for &workload in workloads.iter().filter(|w| wanted_workload(w)) {
        for &keys in keys.iter().filter(|k| wanted_keys(k)) {
            for &jobs in jobs {
                let mut sides = sides.clone();
                if with_fast(part, workload) {
                    sides.push(Side::Fast);
                }
                if flags.tiers_alone {
                    sides.retain(|side| *side == Side::Tiers);
                }
                if !sides.is_empty() {
                    groups.push(Group { part, workload, keys, jobs, clients, sides });
                }
            }
        }
    }
    groups
}

/// Number of records of a workload. All workloads have the same number of bytes.
pub(super) fn records(flags: &KeigoFlags, workload: Workload) -> u64 {
    let (key, value) = workload.entry_bytes();
    flags.records() * (KEY_BYTES + VALUE_BYTES) / (key + value)
}

/// Bytes of keys and values.
pub(super) fn data_bytes(flags: &KeigoFlags) -> u64 {
    flags.records() * (KEY_BYTES + VALUE_BYTES)
}

/// Devices below a side of a group.
pub(super) fn layout(flags: &KeigoFlags, group: &Group, side: Side) -> Layout {
    let data = data_bytes(flags);
    let plenty = data * 8;
    let (fast, slow) = match group.part {
        Part::Block => (Medium::Nvme, Medium::Sata),
        _ => (Medium::Nvmm, Medium::Nvme),
    };
    let layer = |medium, capacity_bytes, cache_share| Layer { medium, capacity_bytes, cache_share };
    let two = |fast_bytes| vec![layer(fast, fast_bytes, 1.0), layer(slow, plenty, 0.0)];
    let tiers = |layers| Layout::Tiers { layers, threads_fixed: None, fast_levels: None };
    match (group.part, side) {
        (_, Side::Local) => Layout::Local,
        (_, Side::OneTier) => Layout::OneTier,
        (_, Side::Slow) => Layout::Device(slow),
        (Part::Placement, Side::Fast) => Layout::Tiers {
            layers: two(plenty),
            threads_fixed: None,
            fast_levels: Some(LEVELS as u8),
        },
        (Part::Placement, _) => tiers(two(plenty)),
        (_, Side::Fast) => Layout::Device(fast),
        (_, Side::Fixed(threads)) => {
            Layout::Tiers { layers: two(data / 4), threads_fixed: Some(threads), fast_levels: None }
        }
        (Part::Cache, side) => {
            // The paper's shares: 70 of 100 GiB, 50 of 200.
            let shares = match side {
                Side::NoCopies => [0.0, 0.0],
                Side::CopiesOnFirst => [0.7, 0.0],
                _ => [0.7, 0.25],
            };
            let mut layers = vec![layer(fast, data / 4, shares[0])];
            if flags.real.is_none() {
                layers.push(layer(slow, data / 2, shares[1]));
                layers.push(layer(Medium::Sata, plenty, 0.0));
            } else {
                layers.push(layer(slow, plenty, 0.0));
            }
            tiers(layers)
        }
        _ => tiers(two(data / 4)),
    }
}

/// Words of both the load and the measurement.
fn words(flags: &KeigoFlags, group: &Group, round: u64) -> Vec<String> {
    let (key, value) = group.workload.entry_bytes();
    let mut words = vec![
        format!("--num={}", records(flags, group.workload)),
        format!("--key_size={key}"),
        format!("--value_size={value}"),
        format!("--seed={}", flags.seed + round),
        format!("--write_buffer_size={MEMTABLE}"),
        format!("--wal_segment_size={MEMTABLE}"),
        "--max_write_buffer_number=2".to_owned(),
        format!("--max_bytes_for_level_base={}", 2 * MEMTABLE),
        format!("--target_file_size_base={}", MEMTABLE / 2),
        format!("--cache_size={CACHE}"),
        "--compression_type=none".to_owned(),
        "--bloom_bits=10".to_owned(),
        format!("--max_background_jobs={}", group.jobs),
    ];
    words.extend(group.keys.words(group.workload));
    if group.workload == Workload::Meta {
        let meta = [
            ("key_dist_a", "0.002312"),
            ("key_dist_b", "0.3467"),
            ("keyrange_dist_a", "14.18"),
            ("keyrange_dist_b", "-2.917"),
            ("keyrange_dist_c", "0.0164"),
            ("keyrange_dist_d", "-0.08082"),
            ("keyrange_num", "30"),
            ("mix_get_ratio", "0.83"),
            ("mix_put_ratio", "0.14"),
            ("mix_seek_ratio", "0.03"),
        ];
        words.extend(meta.map(|(name, value)| format!("--{name}={value}")));
    }
    if matches!(group.part, Part::Single | Part::Instructions) {
        return words;
    }
    // Appends are written through, so that no log stays in memory. The emulation charges reads and
    // writes of tables in any case.
    if group.part != Part::Buffered {
        words.push("--log_write_through".to_owned());
    }
    if flags.real.is_some() {
        words.push("--use_direct_reads".to_owned());
        words.push("--use_direct_io_for_flush_and_compaction".to_owned());
    }
    words
}

/// Words of the process that makes the records.
pub(super) fn load_words(flags: &KeigoFlags, group: &Group, round: u64) -> Vec<String> {
    let list = format!("--benchmarks={},waitforcompaction", group.workload.load_benchmark());
    [vec![list], words(flags, group, round)].concat()
}

/// Words of the measured process. Its last result counts, and the others warm up.
pub(super) fn measured_words(flags: &KeigoFlags, group: &Group, round: u64) -> Vec<String> {
    let name = group.workload.benchmark();
    let (list, seconds) = match group.part {
        Part::Threads => (name.to_owned(), flags.seconds()),
        Part::Switch => ("ycsbc,ycsba,ycsbc".to_owned(), flags.phase_seconds()),
        // Copies are measured only after ten seconds, in which the files that they replace can
        // prove to be cold.
        _ if group.workload.is_read_mostly() => {
            (format!("{name},{name},{name}"), flags.read_seconds())
        }
        _ => (format!("{name},{name}"), flags.seconds()),
    };
    let mut measured = vec![
        format!("--benchmarks={list}"),
        format!("--threads={}", group.clients),
        format!("--duration={seconds}"),
        "--ops_between_duration_checks=16".to_owned(),
        "--use_existing_db".to_owned(),
    ];
    if group.part != Part::Single {
        measured.push("--histogram".to_owned());
    }
    if group.part == Part::Sync {
        measured.push("--sync".to_owned());
    }
    [measured, words(flags, group, round)].concat()
}

/// Words of a process that runs `ops` operations on the loaded database, and whose instructions are
/// counted.
pub(super) fn counted_words(flags: &KeigoFlags, group: &Group, ops: u64) -> Vec<String> {
    let measured = vec![
        format!("--benchmarks={}", group.workload.benchmark()),
        format!("--threads={}", group.clients),
        format!("--reads={ops}"),
        format!("--writes={ops}"),
        "--use_existing_db".to_owned(),
    ];
    [measured, words(flags, group, 0)].concat()
}
