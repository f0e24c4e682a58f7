//! The runs: groups of rows, and the cells that they need. The functions are pure.
//!
//! A *cell* is a mode, a link and a load. Each cell has processes and a directory of its own. Rows
//! of several groups may use one cell, which then runs once in a round.

use serde::{Deserialize, Serialize};

use super::bounds::StorageLink;
use super::flags::O3Flags;
use super::modes::{Abilities, Mode, Nodes, OFFSET_CACHE_BYTES};

/// A group of rows, by its name in `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(super) enum Group {
    Fill,
    Burst,
    Latency,
    Read,
    Mixed,
    Ycsb,
    Range,
    Ablation,
    Flush,
    Stalls,
    Amplification,
    Phases,
    Delegation,
    Times,
    Cache,
    Memtables,
    Local,
    Links,
    Peaks,
    Stability,
    Portability,
    Resp,
    Takeover,
    Databases,
    Nodes,
}

impl Group {
    pub(super) const ALL: [Self; 25] = [
        Self::Fill,
        Self::Burst,
        Self::Latency,
        Self::Read,
        Self::Mixed,
        Self::Ycsb,
        Self::Range,
        Self::Ablation,
        Self::Flush,
        Self::Stalls,
        Self::Amplification,
        Self::Phases,
        Self::Delegation,
        Self::Times,
        Self::Cache,
        Self::Memtables,
        Self::Local,
        Self::Links,
        Self::Peaks,
        Self::Stability,
        Self::Portability,
        Self::Resp,
        Self::Takeover,
        Self::Databases,
        Self::Nodes,
    ];

    /// Title of its section.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Fill => "Random writes (Figures 8 and 9)",
            Self::Burst => "Bursts with 96 memtables (Figures 8 and 9)",
            Self::Latency => "Latency at an offered load (Figures 8 and 9)",
            Self::Read => "Random reads (Figures 8 and 9)",
            Self::Mixed => "Equally many reads and writes (Figures 8 and 9)",
            Self::Ycsb => "YCSB (Figure 10)",
            Self::Range => "Range reads under a write load (Figure 11)",
            Self::Ablation => "Steps of the design (Figure 12a)",
            Self::Flush => "Parallel flushes (Figure 12)",
            Self::Stalls => "Write stops by the number of memtables (Table 1)",
            Self::Amplification => "Write amplification (Table 2)",
            Self::Phases => "Time of a flush (Table 3)",
            Self::Delegation => "Delegated reads and the key-offset cache (Table 4)",
            Self::Times => "Times of a read by its way (Figure 13b)",
            Self::Cache => "Size of the key-offset cache (Figure 13a)",
            Self::Memtables => "Number of memtables, and the local share (Figure 14)",
            Self::Local => "Memtables that stay by measurements (Figure 14)",
            Self::Links => "Bytes by link (Table 5)",
            Self::Peaks => "Peaks of links (Table 6)",
            Self::Stability => "Variation of the throughput (Figures 15 and 16)",
            Self::Portability => "Added to offloaded compactions (Table 7)",
            Self::Resp => "A Redis server (Table 8)",
            Self::Takeover => "Take-over of memtables at memory nodes",
            Self::Databases => "Several databases as processes (Figure 17, Table 9)",
            Self::Nodes => "Many nodes (Figure 17, Tables 9 and 10)",
        }
    }
}

/// Bytes of a value; a key has 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub(super) enum Value {
    #[serde(rename = "64")]
    #[value(name = "64")]
    Small,
    #[serde(rename = "256")]
    #[value(name = "256")]
    Middle,
    #[serde(rename = "1024")]
    #[value(name = "1024")]
    Large,
}

/// Bytes of a key.
pub(super) const KEY_BYTES: u64 = 16;

impl Value {
    pub(super) const ALL: [Self; 3] = [Self::Small, Self::Middle, Self::Large];

    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Small => 64,
            Self::Middle => 256,
            Self::Large => 1024,
        }
    }

    /// Bytes of a key and a value.
    pub(super) fn record_bytes(self) -> u64 {
        KEY_BYTES + self.bytes()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Small => "64 B",
            Self::Middle => "256 B",
            Self::Large => "1 KiB",
        }
    }
}

/// Distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Keys {
    Uniform,
    Zipfian,
}

impl Keys {
    pub(super) const ALL: [Self; 2] = [Self::Uniform, Self::Zipfian];

    /// The word of `--ycsb_distribution`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipfian => "zipfian",
        }
    }
}

/// State of the database before its reads are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Before {
    /// Compactions have come to rest.
    Settled,
    /// The load has just ended.
    Unsettled,
}

/// Shares of reads and writes of the paper's YCSB loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Share {
    Rw50,
    R95,
    R100,
    W100,
}

impl Share {
    pub(super) const ALL: [Self; 4] = [Self::Rw50, Self::R95, Self::R100, Self::W100];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rw50 => "RW50",
            Self::R95 => "R95",
            Self::R100 => "R100",
            Self::W100 => "W100",
        }
    }

    /// The benchmark with these shares.
    pub(super) fn benchmark(self) -> &'static str {
        match self {
            Self::Rw50 => "ycsba",
            Self::R95 => "ycsbb",
            Self::R100 => "ycsbc",
            Self::W100 => "ycsbput",
        }
    }
}

/// Load of Redis clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct RespLoad {
    /// GETs in a hundred commands; the others are SETs.
    pub(super) gets: u32,
    /// Commands that a client sends before it reads their replies.
    pub(super) pipeline: u32,
}

impl RespLoad {
    const fn of(gets: u32) -> Self {
        Self { gets, pipeline: 1 }
    }

    /// The loads of Table 8 with clients on this machine.
    pub(super) const ALL: [Self; 6] = [
        Self::of(0),
        Self::of(100),
        Self::of(10),
        Self::of(50),
        Self::of(90),
        Self { gets: 0, pipeline: 16 },
    ];

    pub(super) fn name(self) -> String {
        match (self.gets, self.pipeline) {
            (0, 1) => "SET".to_owned(),
            (0, pipeline) => format!("SET, pipeline of {pipeline}"),
            (100, _) => "GET".to_owned(),
            (gets, _) => format!("GET/SET {gets}/{}", 100 - gets),
        }
    }
}

/// Sealed memtables that stay in the process of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Staying {
    Fixed(u32),
    /// The number that the owner chooses by measurements.
    Auto,
}

impl Staying {
    /// The fixed numbers that are compared with the automatic one.
    pub(super) const FIXED: [Self; 2] = [Self::Fixed(0), Self::Fixed(2)];

    /// The word of `--local_memtables`.
    pub(super) fn word(self) -> String {
        match self {
            Self::Fixed(count) => count.to_string(),
            Self::Auto => "auto".to_owned(),
        }
    }
}

/// Use that the next owner of a database makes of the shards of a dead owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LeftShards {
    /// The next owner keeps them at their memory nodes.
    Kept,
    /// The next owner uses no memory nodes, and replays the log.
    Replayed,
}

/// Databases that write at the same time, and the memory nodes that they share. Each memory node
/// brings an executor behind a link of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Several {
    pub(super) databases: u32,
    pub(super) memory_nodes: u32,
    pub(super) kind: SeveralKind,
}

/// Operations of several databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SeveralKind {
    /// Random writes of new databases.
    Writes,
    /// Equally many random reads and writes of databases that were loaded before.
    Mixed,
}

impl SeveralKind {
    pub(super) const ALL: [Self; 2] = [Self::Writes, Self::Mixed];

    /// Whether this number of databases has rows. Mixed loads have those of the bounds and of
    /// Table 9 only.
    pub(super) fn has(self, databases: u32) -> bool {
        let [first, .., last] = DATABASES;
        self == Self::Writes || [first, DATABASES_TABLE_9, last].contains(&databases)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Writes => "fillrandom",
            Self::Mixed => "mixed 50/50",
        }
    }
}

/// Load of a run on its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Load {
    /// Random writes, and then until compactions rest.
    Fill(Value),
    /// Random writes that 96 memtables hold, and then a flush.
    Burst(Value),
    /// Random writes of small values that fill this number of memtables, and then a flush.
    ShortBurst(u32),
    /// Random writes at 0.9 of the rate of `off_classic`.
    Paced(Value),
    Read(Keys, Before),
    /// Equally many random reads and writes.
    Mixed(Value),
    Ycsb(Share, Keys),
    /// Seeks with this number of following records, while a thread writes at a fixed rate.
    Range(u32),
    /// Random reads of two threads, of a settled database that the block cache holds.
    Cached(Keys),
    /// Random reads of records that are in memtables.
    Delegated(Keys),
    Resp(RespLoad),
    /// The open of a database whose owner was killed while its memtables rested at memory nodes.
    Takeover(LeftShards),
    /// Several databases at the same time.
    Several(Several),
}

impl Load {
    pub(super) fn name(self) -> String {
        match self {
            Self::Fill(value) => format!("fillrandom, {}", value.name()),
            Self::Burst(value) => format!("burst, {}", value.name()),
            Self::ShortBurst(memtables) => format!("burst of {memtables} memtables"),
            Self::Paced(value) => format!("offered load, {}", value.name()),
            Self::Read(keys, Before::Settled) => format!("readrandom, {}", keys.name()),
            Self::Read(keys, Before::Unsettled) => {
                format!("readrandom, {}, unsettled", keys.name())
            }
            Self::Cached(keys) => format!("readrandom of cached blocks, {}", keys.name()),
            Self::Mixed(value) => format!("mixed 50/50, {}", value.name()),
            Self::Ycsb(share, keys) => format!("{}, {}", share.name(), keys.name()),
            Self::Range(records) => format!("ranges of {records}"),
            Self::Delegated(keys) => format!("reads of memtables, {}", keys.name()),
            Self::Resp(load) => load.name(),
            Self::Takeover(LeftShards::Kept) => "take-over of shards".to_owned(),
            Self::Takeover(LeftShards::Replayed) => "replay of the log".to_owned(),
            Self::Several(Several { databases, memory_nodes, kind }) => {
                let plural = |count: u32| if count == 1 { "" } else { "s" };
                let (s, nodes) = (plural(databases), plural(memory_nodes));
                let kind = kind.name();
                format!("{kind} of {databases} database{s}, {memory_nodes} memory node{nodes}")
            }
        }
    }
}

/// Mode, link and load that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) mode: Mode,
    pub(super) link: StorageLink,
    pub(super) load: Load,
    /// Memtables at memory nodes and at the owner, if they differ from those of the mode.
    pub(super) remote_memtables: Option<u32>,
    pub(super) local_memtables: Option<u32>,
    /// Number of sealed memtables that stay; `None` for the default of the program.
    pub(super) staying: Option<Staying>,
    /// Bytes of the key-offset cache, if they differ from those of the mode.
    pub(super) offset_cache_bytes: Option<u64>,
    /// Whether the owner reaches memory nodes by shared memory.
    pub(super) shm: bool,
}

impl Cell {
    pub(super) const fn new(mode: Mode, link: StorageLink, load: Load) -> Self {
        Self {
            mode,
            link,
            load,
            remote_memtables: None,
            local_memtables: None,
            staying: None,
            offset_cache_bytes: None,
            shm: false,
        }
    }

    /// This cell with this number of memtables at memory nodes.
    pub(super) const fn with_remote(self, count: u32) -> Self {
        Self { remote_memtables: Some(count), ..self }
    }

    /// This cell with this number of local memtables, of `all` together.
    pub(super) const fn with_local(self, count: u32, all: u32) -> Self {
        Self { local_memtables: Some(count), remote_memtables: Some(all - count), ..self }
    }

    /// This cell with this setting of the memtables that stay.
    pub(super) const fn with_staying(self, staying: Staying) -> Self {
        Self { staying: Some(staying), ..self }
    }

    /// Bytes of the key-offset cache; `None` for the default of the program.
    pub(super) fn offset_cache(&self) -> Option<u64> {
        self.offset_cache_bytes.or(self.mode.spec().offset_cache_bytes)
    }

    pub(super) fn remote(&self) -> u32 {
        self.remote_memtables.unwrap_or(self.mode.spec().remote_memtables)
    }

    /// Processes of the cell in addition to the owner and the manager.
    pub(super) fn nodes(&self) -> Nodes {
        let nodes = self.mode.spec().nodes;
        match self.load {
            Load::Several(Several { memory_nodes, .. }) => {
                Nodes { memory: memory_nodes, linked_executors: memory_nodes, ..nodes }
            }
            _ => nodes,
        }
    }

    pub(super) fn local(&self) -> u32 {
        self.local_memtables.unwrap_or(self.mode.spec().local_memtables)
    }

    pub(super) fn name(&self) -> String {
        let mut name = format!("{}, {}, {}", self.load.name(), self.link.name(), self.mode.name());
        if self.remote_memtables.is_some() || self.local_memtables.is_some() {
            name += &format!(", {}+{} memtables", self.local(), self.remote());
        }
        if let Some(staying) = self.staying {
            name += &format!(", {} local memtables", staying.word());
        }
        if let Some(bytes) = self.offset_cache_bytes {
            name += &format!(", cache of {} KiB", bytes >> 10);
        }
        if self.shm { name + ", shm" } else { name }
    }
}

/// Numbers of memtables at the memory node in Table 1.
pub(super) const STALL_MEMTABLES: [u32; 5] = [2, 4, 8, 16, 32];
/// Bursts of Figure 12, by the number of their memtables. The last one has 90.
pub(super) const FLUSHED: [Load; 3] =
    [Load::ShortBurst(10), Load::ShortBurst(30), Load::Burst(Value::Small)];
/// Numbers of memtables at the memory node in Figure 14.
pub(super) const MEMTABLES: [u32; 6] = [2, 6, 14, 30, 62, 94];
/// Local memtables of ten in Figure 14.
pub(super) const LOCAL_OF_TEN: [u32; 4] = [2, 4, 6, 8];
/// Loads whose reads find young records. Their writes seal memtables all the time, because a
/// memtable that has left does not return.
pub(super) const STAYING_LOADS: [Load; 3] = [
    Load::Ycsb(Share::R95, Keys::Uniform),
    Load::Ycsb(Share::R95, Keys::Zipfian),
    Load::Mixed(Value::Small),
];
/// Sizes of the key-offset cache: a quarter of that of the modes, the same, and four and eight
/// times that. Figure 13a has the step from the same to eight times that.
pub(super) const CACHE_BYTES: [u64; 4] =
    [OFFSET_CACHE_BYTES / 4, OFFSET_CACHE_BYTES, 4 * OFFSET_CACHE_BYTES, 8 * OFFSET_CACHE_BYTES];
/// Newest memtables that stay, for reads of memtables here. The records of these reads fill fewer.
const STAYING_READS: u32 = 16;
/// Loads of Table 2.
pub(super) const AMPLIFIED_LOADS: [Load; 2] =
    [Load::Fill(Value::Middle), Load::Mixed(Value::Middle)];
/// Loads of Table 5.
pub(super) const LINK_LOADS: [Load; 3] = [SMALL, SETTLED_READS, Load::Mixed(Value::Small)];
/// Loads of Figure 16 that write.
pub(super) const STABLE_LOADS: [Load; 6] = [
    SMALL,
    Load::Fill(Value::Middle),
    Load::Fill(Value::Large),
    Load::Mixed(Value::Small),
    Load::Mixed(Value::Middle),
    Load::Mixed(Value::Large),
];
/// Loads of Table 7.
pub(super) const PORTED_LOADS: [Load; 3] = LINK_LOADS;
/// Numbers of databases in Figure 17a.
pub(super) const DATABASES: [u32; 4] = [1, 2, 3, 5];
/// Databases of Table 9, and their memory nodes.
pub(super) const DATABASES_TABLE_9: u32 = 3;
pub(super) const MEMORY_NODES: [u32; 3] = [1, 2, 3];
/// Records of a range in Figure 11.
pub(super) const RANGES: [u32; 2] = [10, 1000];

/// The modes of the fillrandom rows.
const FILL_MODES: [Mode; 6] = [
    Mode::OffClassic,
    Mode::Off,
    Mode::CompactionsClassic,
    Mode::Compactions,
    Mode::All,
    Mode::AllSecond,
];

/// Cells of these modes under one load.
fn each(modes: &[Mode], link: StorageLink, load: Load) -> Vec<Cell> {
    modes.iter().map(|&mode| Cell::new(mode, link, load)).collect()
}

const WIDE: StorageLink = StorageLink::TwoAndAHalf;
const SMALL: Load = Load::Fill(Value::Small);
const SETTLED_READS: Load = Load::Read(Keys::Uniform, Before::Settled);

/// The cell of reads of memtables over shared memory with a key-offset cache of `bytes` bytes.
pub(super) fn cached_reads(keys: Keys, bytes: u64) -> Cell {
    let of = |mode| Cell { shm: true, ..Cell::new(mode, WIDE, Load::Delegated(keys)) };
    match bytes {
        0 => of(Mode::AllNoCache),
        OFFSET_CACHE_BYTES => of(Mode::AllCache),
        _ => Cell { offset_cache_bytes: Some(bytes), ..of(Mode::AllCache) },
    }
}

/// The cell of reads of memtables that all stay here.
pub(super) const fn staying_reads(keys: Keys) -> Cell {
    Cell::new(Mode::All, WIDE, Load::Delegated(keys)).with_staying(Staying::Fixed(STAYING_READS))
}

/// The cell of several databases.
pub(super) const fn several(kind: SeveralKind, databases: u32, memory_nodes: u32) -> Cell {
    Cell::new(Mode::All, WIDE, Load::Several(Several { databases, memory_nodes, kind }))
}

/// The cell of a take-over. Its nodes have room for all memtables.
pub(super) const fn takeover(left: LeftShards) -> Cell {
    Cell::new(Mode::AllBurst, WIDE, Load::Takeover(left))
}

/// The cells of a group, in the order of its runs.
fn cells_of(group: Group, flags: &O3Flags) -> Vec<Cell> {
    use Mode::{All, AllBurst, AllSecondBurst, CompactionsClassic, DmNaive, Off, OffClassic};
    let by_value = |modes: &[Mode], load: fn(Value) -> Load| -> Vec<Cell> {
        let links = flags.links().flat_map(|link| flags.values().map(move |value| (link, value)));
        links.flat_map(|(link, value)| each(modes, link, load(value))).collect()
    };
    match group {
        Group::Fill => by_value(&FILL_MODES, Load::Fill),
        Group::Burst => {
            let of = |link| each(&[OffClassic, AllBurst], link, Load::Burst(Value::Small));
            flags.links().flat_map(of).collect()
        }
        Group::Flush => {
            let second = Cell::new(AllSecondBurst, WIDE, FLUSHED[FLUSHED.len() - 1]);
            let of = |load| {
                let naive =
                    Cell::new(DmNaive, WIDE, load).with_remote(AllBurst.spec().remote_memtables);
                [Cell::new(OffClassic, WIDE, load), naive, Cell::new(AllBurst, WIDE, load)]
            };
            FLUSHED.into_iter().flat_map(of).chain([second]).collect()
        }
        Group::Latency => {
            let paced = each(&[OffClassic, Off, All], WIDE, Load::Paced(Value::Small));
            [each(&[OffClassic], WIDE, SMALL), paced].concat()
        }
        Group::Read => {
            let settled =
                |keys| each(&[OffClassic, Off, All], WIDE, Load::Read(keys, Before::Settled));
            let unsettled = Load::Read(Keys::Uniform, Before::Unsettled);
            let unsettled = each(&[OffClassic, All, AllBurst], WIDE, unsettled);
            let cached = each(&[Off, All], WIDE, Load::Cached(Keys::Uniform));
            [Keys::ALL.map(settled).concat(), unsettled, cached].concat()
        }
        Group::Mixed => by_value(&[OffClassic, Off, All], Load::Mixed),
        Group::Ycsb => {
            let loads = Share::ALL.iter().flat_map(|&share| Keys::ALL.map(|keys| (share, keys)));
            let modes = [OffClassic, CompactionsClassic, All];
            loads.flat_map(|(share, keys)| each(&modes, WIDE, Load::Ycsb(share, keys))).collect()
        }
        Group::Range => {
            let modes = [OffClassic, Off, CompactionsClassic, All];
            RANGES.map(|records| each(&modes, WIDE, Load::Range(records))).concat()
        }
        Group::Portability => {
            let of = |load| each(&[CompactionsClassic, All], WIDE, load);
            PORTED_LOADS.map(of).concat()
        }
        Group::Resp => {
            let modes = [OffClassic, CompactionsClassic, All];
            RespLoad::ALL.map(|load| each(&modes, WIDE, Load::Resp(load))).concat()
        }
        _ => cells_of_breakdown(group),
    }
}

/// The cells of the groups of §5.3 of the paper.
fn cells_of_breakdown(group: Group) -> Vec<Cell> {
    use Mode::{All, AllCache, AllNoCache, AllWhole, DmFlush, DmNaive, DmShard, Off, OffClassic};
    match group {
        Group::Ablation => each(&[OffClassic, DmNaive, DmFlush, DmShard, All], WIDE, SMALL),
        Group::Stalls => {
            let naive = Cell::new(DmNaive, WIDE, SMALL);
            STALL_MEMTABLES.map(|count| naive.with_remote(count)).to_vec()
        }
        Group::Amplification => {
            AMPLIFIED_LOADS.map(|load| each(&[OffClassic, Off, All], WIDE, load)).concat()
        }
        Group::Phases => each(&[OffClassic, Off, DmNaive, DmShard, All], WIDE, SMALL),
        Group::Delegation => {
            let loads = [true, false].into_iter().flat_map(|shm| Keys::ALL.map(|keys| (shm, keys)));
            let of = |(shm, keys)| {
                let cells = each(&[Off, AllNoCache, AllCache], WIDE, Load::Delegated(keys));
                cells.into_iter().map(move |cell| Cell { shm, ..cell })
            };
            loads.flat_map(of).collect()
        }
        Group::Times => {
            let ways = [true, false].into_iter().flat_map(|shm| {
                let of = |keys| Cell::new(AllCache, WIDE, Load::Delegated(keys));
                Keys::ALL.map(|keys| Cell { shm, ..of(keys) })
            });
            Keys::ALL.map(staying_reads).into_iter().chain(ways).collect()
        }
        Group::Memtables => {
            let all = Cell::new(All, WIDE, SMALL);
            let counts = MEMTABLES.map(|count| all.with_remote(count));
            let shares = LOCAL_OF_TEN.map(|local| all.with_local(local, 10));
            counts.into_iter().chain(shares).collect()
        }
        Group::Cache => {
            let sizes = [0].into_iter().chain(CACHE_BYTES);
            let of = |keys| sizes.clone().map(move |bytes| cached_reads(keys, bytes));
            Keys::ALL.into_iter().flat_map(of).collect()
        }
        Group::Local => {
            let of = |load| {
                // The automatic number comes last, so that its rows have all of their peers.
                let settings = Staying::FIXED.into_iter().chain([Staying::Auto]);
                settings.map(move |staying| Cell::new(All, WIDE, load).with_staying(staying))
            };
            STAYING_LOADS.into_iter().flat_map(of).collect()
        }
        Group::Takeover => [LeftShards::Kept, LeftShards::Replayed].map(takeover).to_vec(),
        Group::Databases => {
            let kinds =
                |databases: u32| SeveralKind::ALL.into_iter().filter(move |k| k.has(databases));
            let figure_17 = DATABASES.into_iter().flat_map(|databases| {
                kinds(databases).map(move |kind| several(kind, databases, 1))
            });
            let more = MEMORY_NODES.into_iter().filter(|nodes| *nodes > 1);
            let table_9 = more.flat_map(|nodes| {
                SeveralKind::ALL.map(|kind| several(kind, DATABASES_TABLE_9, nodes))
            });
            figure_17.chain(table_9).collect()
        }
        Group::Links => LINK_LOADS.map(|load| each(&[OffClassic, Off, All], WIDE, load)).concat(),
        Group::Peaks => each(&[AllWhole, All], WIDE, SMALL),
        Group::Stability => STABLE_LOADS.map(|load| each(&[OffClassic, All], WIDE, load)).concat(),
        _ => Vec::new(),
    }
}

/// The cells that are measured, and those that the program refuses, with the reasons.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) cells: Vec<Cell>,
    pub(super) refused: Vec<(Cell, String)>,
}

/// The cells of all groups, each once. Cells whose rate another cell needs come after it.
pub(super) fn plan(flags: &O3Flags, abilities: &Abilities) -> Plan {
    let mut plan = Plan::default();
    let most = flags.cells.unwrap_or(usize::MAX);
    let wanted = |group| {
        let cells = cells_of(group, flags).into_iter().filter(|cell| flags.has(cell));
        cells.take(most).collect::<Vec<Cell>>()
    };
    for cell in flags.groups().into_iter().flat_map(wanted) {
        let is_known = plan.cells.contains(&cell) || plan.refused.iter().any(|one| one.0 == cell);
        if is_known {
            continue;
        }
        match abilities.refusal(cell.mode) {
            None => plan.cells.push(cell),
            Some(why) => plan.refused.push((cell, why)),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(words: &[&str]) -> O3Flags {
        let words: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
        O3Flags::read(&words).expect("flags")
    }

    fn abilities(modes: &str) -> Abilities {
        Abilities::of(&format!("--offload_mode <MODE> [possible values: {modes}]"))
    }

    #[test]
    fn each_cell_runs_once_although_groups_share_it() {
        let plan = plan(&flags(&[]), &abilities("off, compactions, memtables, flushes, all"));
        for (at, cell) in plan.cells.iter().enumerate() {
            assert!(!plan.cells[..at].contains(cell), "{}", cell.name());
        }
        assert!(plan.refused.iter().all(|(cell, _)| cell.mode.spec().offset_cache_bytes.is_some()));
        let fill = Cell::new(Mode::OffClassic, StorageLink::TwoAndAHalf, Load::Fill(Value::Small));
        let at = |wanted: Cell| plan.cells.iter().position(|cell| *cell == wanted);
        let paced = Cell { load: Load::Paced(Value::Small), ..fill };
        assert!(at(fill).expect("a fill") < at(paced).expect("an offered load"));
    }

    #[test]
    fn groups_of_settings_vary_one_setting() {
        let help = "--offload_mode <MODE> [possible values: all]\n      --offset_cache_bytes <N>";
        let cells = |group: &str| {
            let plan = plan(&flags(&[format!("--only={group}").as_str()]), &Abilities::of(help));
            assert_eq!(plan.refused, [], "{group}");
            plan.cells
        };
        let local = cells("local");
        assert_eq!(local.len(), 9);
        let settings = [Staying::Fixed(0), Staying::Fixed(2), Staying::Auto].map(Some);
        for cells in local.chunks(3) {
            assert_eq!([0, 1, 2].map(|at: usize| cells[at].staying), settings);
            assert!(cells.iter().all(|cell| cell.with_staying(Staying::Auto) == cells[2]));
        }
        let cache = cells("cache");
        let sizes = [0, 1, 4, 16, 32].map(|mib: u64| Some(mib << 20));
        for (cells, keys) in cache.chunks(5).zip(Keys::ALL) {
            assert_eq!([0, 1, 2, 3, 4].map(|at: usize| cells[at].offset_cache()), sizes);
            assert!(cells.iter().all(|cell| cell.load == Load::Delegated(keys) && cell.shm));
        }
        // The cells of the default size and of none are those of Table 4.
        let delegation = cells_of(Group::Delegation, &flags(&[]));
        let shared = cache.iter().filter(|cell| delegation.contains(cell));
        assert_eq!((cache.len(), shared.count()), (10, 4));
        let loads: Vec<Load> = cells("takeover").iter().map(|cell| cell.load).collect();
        assert_eq!(loads, [LeftShards::Kept, LeftShards::Replayed].map(Load::Takeover));
    }

    #[test]
    fn refused_modes_are_listed_with_the_reason() {
        let plan = plan(&flags(&["--only=ablation"]), &abilities("off, compactions, memtables"));
        let modes: Vec<Mode> = plan.cells.iter().map(|cell| cell.mode).collect();
        assert_eq!(modes, [Mode::OffClassic, Mode::DmNaive]);
        let refused: Vec<&str> = plan.refused.iter().map(|(_, why)| why.as_str()).collect();
        assert_eq!(refused.len(), 3);
        assert!(refused[0].contains("--offload_mode=flushes"), "{refused:?}");
    }
}
