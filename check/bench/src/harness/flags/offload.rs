//! Flags of the work that leaves the process of a benchmark for the nodes of a cluster.

use archipelago_offload::net::OffloadMode;
use archipelago_offload::shard_owner::StayingMemtables;
use clap::{Args, ValueEnum};

use super::groups::truth;

/// What leaves the process. db_bench has nothing like it.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Offloading")]
pub(crate) struct OffloadFlags {
    /// What leaves this process for the nodes of --manager, as for `archipelago serve` (not in
    /// db_bench)
    #[arg(long, value_enum, value_name = "MODE", default_value_t = Offload::Off,
          conflicts_with_all = ["tiers", "store"])]
    pub(crate) offload_mode: Offload,
    /// Addresses of the managers that know executors and memory nodes (not in db_bench)
    #[arg(long, value_name = "HOST:PORT,...", default_value = "127.0.0.1:7700")]
    pub(crate) manager: String,
    /// Bytes that full memtables may take at memory nodes; 0: what the nodes have (not in db_bench)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) remote_memtables_bytes: u64,
    /// Bytes of the key-offset cache over memory nodes, 0 for none. Default: as for `archipelago
    /// serve` (not in db_bench)
    #[arg(long, value_name = "N")]
    pub(crate) offset_cache_bytes: Option<u64>,
    /// Number of the newest full memtables that stay in this process, or auto. Default: as for
    /// `archipelago serve` (not in db_bench)
    #[arg(long, value_name = "auto|N")]
    pub(crate) local_memtables: Option<StayingMemtables>,
    /// The log does not lie on the emulated device but on the real disk, as that of a compute node
    /// with a disk of its own (needs --device; not in db_bench)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) local_log: bool,
}

/// The modes of `archipelago serve --offload-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Offload {
    /// Everything stays here
    Off,
    /// Compactions and garbage collections, to executors
    Compactions,
    /// Full memtables, to memory nodes
    Memtables,
    /// Full memtables, and their flushes, to executors
    Flushes,
    /// Everything that can leave
    All,
}

impl Offload {
    /// The mode of the database; `None` if nothing leaves.
    #[must_use]
    pub fn mode(self) -> Option<OffloadMode> {
        match self {
            Self::Off => None,
            Self::Compactions => Some(OffloadMode::Compactions),
            Self::Memtables => Some(OffloadMode::Memtables),
            Self::Flushes => Some(OffloadMode::Flushes),
            Self::All => Some(OffloadMode::All),
        }
    }
}
