//! The modes: the jobs and memtables that leave the owner of a database, and the processes that it
//! needs. A mode is a row of one table. The functions are pure.

use serde::{Deserialize, Serialize};

use super::bounds::{LevelZero, Offloaded, StorageLink};

/// Local memtables of a mode whose memtables stay, as in the paper (§5.1).
const LOCAL_MEMTABLES: u32 = 8;
/// Local memtables of a mode whose memtables leave.
const KEPT_MEMTABLES: u32 = 2;
/// Memtables at memory nodes, unless a cell says otherwise.
const REMOTE_MEMTABLES: u32 = 6;
/// Memtables of the burst, local ones included.
const BURST_MEMTABLES: u32 = 96;
/// Buckets of the modes that have them: at least as many as the executors have slots.
const BUCKETS: u32 = 16;
/// Bytes of the key-offset cache: a sixteenth of its default, which is the paper's size.
pub(super) const OFFSET_CACHE_BYTES: u64 = 4 << 20;

/// A way to run a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(super) enum Mode {
    /// Nothing leaves, classic L0: the paper's Disagg-RocksDB
    OffClassic,
    /// Nothing leaves, buckets
    Off,
    /// Compactions leave, classic L0: the role of CaaS-LSM
    CompactionsClassic,
    /// Compactions leave, buckets
    Compactions,
    /// Whole memtables leave, and their owner reads them back to flush them: the paper's naive
    /// solution
    DmNaive,
    /// The same, and flushes of whole memtables leave (+FO)
    DmFlush,
    /// Memtables and flushes leave in shards (+Shard)
    DmShard,
    /// Everything leaves in whole memtables
    AllWhole,
    /// Everything leaves in shards, reads are delegated without a key-offset cache (RD)
    AllNoCache,
    /// The same with a key-offset cache of 4 MiB (RD+LC)
    AllCache,
    /// Everything leaves in shards, as the program does by default
    All,
    /// The same with a second compute node as executor
    AllSecond,
    /// The same as `all` with 96 memtables
    AllBurst,
    /// The same with a second compute node as executor
    AllSecondBurst,
}

/// Description of a mode: the work that leaves, and its memtables and processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ModeSpec {
    pub(super) mode: Mode,
    /// Name for people.
    pub(super) name: &'static str,
    /// Value of `--offload_mode`, which is that of `archipelago serve --offload-mode`.
    pub(super) offload: &'static str,
    /// Offloaded work from which the bound of the mode follows.
    pub(super) offloaded: Offloaded,
    pub(super) level: LevelZero,
    /// Memtables at the owner, the active one included.
    pub(super) local_memtables: u32,
    /// Memtables at memory nodes; 0 if memtables stay.
    pub(super) remote_memtables: u32,
    /// Bytes of the key-offset cache; `None` for the default of the program.
    pub(super) offset_cache_bytes: Option<u64>,
    pub(super) nodes: Nodes,
}

/// Processes of a mode in addition to the owner and the manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Nodes {
    /// Executors on storage nodes, without a link.
    pub(super) storage_executors: u32,
    pub(super) memory: u32,
    /// Executors behind a link of their own: one for each memory node, and those of other compute
    /// nodes.
    pub(super) linked_executors: u32,
}

const NONE: Nodes = Nodes { storage_executors: 0, memory: 0, linked_executors: 0 };
const STORAGE: Nodes = Nodes { storage_executors: 3, ..NONE };
const MEMORY: Nodes = Nodes { memory: 1, ..NONE };
const EVERY: Nodes = Nodes { storage_executors: 3, memory: 1, linked_executors: 1 };

const LOCAL: ModeSpec = ModeSpec {
    mode: Mode::Off,
    name: "off",
    offload: "off",
    offloaded: Offloaded::Nothing,
    level: LevelZero::Buckets,
    local_memtables: LOCAL_MEMTABLES,
    remote_memtables: 0,
    offset_cache_bytes: None,
    nodes: NONE,
};
const AWAY: ModeSpec =
    ModeSpec { local_memtables: KEPT_MEMTABLES, remote_memtables: REMOTE_MEMTABLES, ..LOCAL };
const ALL: ModeSpec = ModeSpec {
    mode: Mode::All,
    name: "all",
    offload: "all",
    offloaded: Offloaded::All { compute_nodes: 1 },
    nodes: EVERY,
    ..AWAY
};

/// The table of modes.
const TABLE: [ModeSpec; 14] = [
    ModeSpec { mode: Mode::OffClassic, name: "off, classic", level: LevelZero::Classic, ..LOCAL },
    LOCAL,
    ModeSpec {
        mode: Mode::CompactionsClassic,
        name: "compactions, classic",
        offload: "compactions",
        offloaded: Offloaded::Compactions,
        level: LevelZero::Classic,
        nodes: STORAGE,
        ..LOCAL
    },
    ModeSpec {
        mode: Mode::Compactions,
        name: "compactions",
        offload: "compactions",
        offloaded: Offloaded::Compactions,
        nodes: STORAGE,
        ..LOCAL
    },
    ModeSpec {
        mode: Mode::DmNaive,
        name: "dm-naive",
        offload: "memtables",
        offloaded: Offloaded::Memtables,
        level: LevelZero::Classic,
        nodes: MEMORY,
        ..AWAY
    },
    ModeSpec {
        mode: Mode::DmFlush,
        name: "+flush",
        offload: "flushes",
        offloaded: Offloaded::Flushes,
        level: LevelZero::Classic,
        nodes: EVERY,
        ..AWAY
    },
    ModeSpec {
        mode: Mode::DmShard,
        name: "+shard",
        offload: "flushes",
        offloaded: Offloaded::Flushes,
        nodes: EVERY,
        ..AWAY
    },
    ModeSpec { mode: Mode::AllWhole, name: "all, whole", level: LevelZero::Classic, ..ALL },
    ModeSpec { mode: Mode::AllNoCache, name: "all, RD", offset_cache_bytes: Some(0), ..ALL },
    ModeSpec {
        mode: Mode::AllCache,
        name: "all, RD+LC",
        offset_cache_bytes: Some(OFFSET_CACHE_BYTES),
        ..ALL
    },
    ALL,
    ModeSpec {
        mode: Mode::AllSecond,
        name: "all, two compute nodes",
        offloaded: Offloaded::All { compute_nodes: 2 },
        nodes: Nodes { linked_executors: 2, ..EVERY },
        ..ALL
    },
    ModeSpec {
        mode: Mode::AllBurst,
        name: "all, 96 memtables",
        remote_memtables: BURST_MEMTABLES - KEPT_MEMTABLES,
        ..ALL
    },
    ModeSpec {
        mode: Mode::AllSecondBurst,
        name: "all, 96 memtables, two compute nodes",
        offloaded: Offloaded::All { compute_nodes: 2 },
        remote_memtables: BURST_MEMTABLES - KEPT_MEMTABLES,
        nodes: Nodes { linked_executors: 2, ..EVERY },
        ..ALL
    },
];

impl Mode {
    /// Description of the mode.
    pub(super) fn spec(self) -> &'static ModeSpec {
        // The test below shows that each mode has its row; the first row would be wrong.
        TABLE.iter().find(|spec| spec.mode == self).unwrap_or(&TABLE[0])
    }

    pub(super) fn name(self) -> &'static str {
        self.spec().name
    }
}

impl ModeSpec {
    /// Number of buckets.
    pub(super) fn buckets(&self) -> u32 {
        match self.level {
            LevelZero::Classic => 1,
            LevelZero::Buckets => BUCKETS,
        }
    }

    /// Whether memtables leave.
    pub(super) fn sends_memtables(&self) -> bool {
        self.remote_memtables > 0
    }

    /// Highest MB/s of user bytes at full speed.
    pub(super) fn bound(&self, link: StorageLink) -> f64 {
        super::bounds::throughput(self.offloaded, self.level, link, &super::bounds::Factors::FIXED)
    }
}

/// Abilities of the measured program, as its help states them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Abilities {
    /// Values of `--offload_mode`.
    modes: Vec<String>,
    /// Whether it has a flag for the size of the key-offset cache.
    has_offset_cache: bool,
}

/// Flag of the size of the key-offset cache.
pub(super) const OFFSET_CACHE_FLAG: &str = "--offset_cache_bytes";

impl Abilities {
    /// Abilities by the text of `archipelago bench --help`.
    pub(super) fn of(help: &str) -> Self {
        let after = help.split_once("--offload_mode").map_or("", |(_, after)| after);
        // The list of values ends where the next flag begins.
        let own = &after[..after.find("\n      --").unwrap_or(after.len())];
        let is_word = |c: char| !c.is_ascii_lowercase();
        // The short help has them in one list, which may be wrapped.
        let text = own.split_whitespace().collect::<Vec<_>>().join(" ");
        let list = text.split_once("[possible values:").map_or("", |(_, list)| list);
        let list = list.split(']').next().unwrap_or_default();
        let modes = TABLE.iter().map(|spec| spec.offload).filter(|mode| {
            let has_line = own.lines().any(|line| {
                let line = line.trim_start().trim_start_matches("- ");
                line.split(is_word).next() == Some(*mode) && line.contains(':')
            });
            has_line || list.split(is_word).any(|word| word == *mode)
        });
        let mut modes: Vec<String> = modes.map(str::to_owned).collect();
        modes.dedup();
        Self { modes, has_offset_cache: help.contains(OFFSET_CACHE_FLAG) }
    }

    /// Reason for which the program refuses a mode; `None` if it takes the mode.
    pub(super) fn refusal(&self, mode: Mode) -> Option<String> {
        let spec = mode.spec();
        if !self.modes.iter().any(|known| known == spec.offload) {
            return Some(format!("the program has no --offload_mode={}", spec.offload));
        }
        let wants_cache = spec.offset_cache_bytes.is_some();
        (wants_cache && !self.has_offset_cache)
            .then(|| format!("the program has no {OFFSET_CACHE_FLAG}"))
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn each_mode_has_a_row_of_the_table() {
        for mode in Mode::value_variants() {
            assert_eq!(TABLE.iter().filter(|spec| spec.mode == *mode).count(), 1, "{mode:?}");
        }
        assert_eq!(Mode::value_variants().len(), TABLE.len());
        for spec in &TABLE {
            assert_eq!(spec.sends_memtables(), spec.nodes.memory > 0, "{}", spec.name);
            assert_eq!(spec.offload == "off", spec.nodes == NONE, "{}", spec.name);
        }
    }

    #[test]
    fn modes_that_a_program_refuses_are_known_by_its_help() {
        let long = "      --offload_mode <MODE>\n          What leaves\n\n          Possible values:\n\
                    \x20         - off:         Everything stays here\n\
                    \x20         - compactions: Compactions\n\
                    \x20         - memtables:   Full memtables\n\
                    \n          [default: off]\n\n      --manager <A>\n          flushes: none\n";
        let short = "--offload_mode <MODE>  What [default: off] [possible\n \
                     values: off, compactions,\n memtables]\n      --manager all";
        for help in [long, short] {
            let abilities = Abilities::of(help);
            for mode in [Mode::Off, Mode::CompactionsClassic, Mode::DmNaive] {
                assert_eq!(abilities.refusal(mode), None, "{help}");
            }
            let refusal = abilities.refusal(Mode::DmShard).expect("it is refused");
            assert_eq!(refusal, "the program has no --offload_mode=flushes");
            assert!(abilities.refusal(Mode::All).is_some());
        }
        let later = "--offload_mode <MODE> [possible values: off, flushes, all]\n      \
                     --offset_cache_bytes <N>";
        assert_eq!(Abilities::of(later).refusal(Mode::AllCache), None);
        assert!(Abilities::of("no such flag").refusal(Mode::Off).is_some());
    }
}
