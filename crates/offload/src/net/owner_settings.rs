//! How a database reaches its cluster, and which of its jobs and memory leave its process.

use archipelago_fabric::Secret;

use crate::job::JobKind;
use crate::shard_owner::StayingMemtables;

/// Kinds of jobs and memory that leave the process of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadMode {
    /// Everything stays in the process.
    #[default]
    Off,
    /// Compactions and garbage collections (the role of CaaS-LSM in O³-LSM §2.2).
    Compactions,
    /// Sealed memtables, which memory nodes hold and search ([`crate::shard_owner`]).
    Memtables,
    /// Sealed memtables, and flushes of those that memory nodes hold (O³-LSM §4.3).
    Flushes,
    /// Sealed memtables, their flushes, compactions and garbage collections.
    All,
}

impl OffloadMode {
    /// Whether jobs of this kind leave the process.
    #[must_use]
    pub fn sends(self, kind: JobKind) -> bool {
        match self {
            Self::Off | Self::Memtables => false,
            Self::Compactions => kind != JobKind::Flush,
            Self::Flushes => kind == JobKind::Flush,
            Self::All => true,
        }
    }

    /// Whether jobs of any kind leave the process, so that the database needs an
    /// [`OffloadExecutor`](super::OffloadExecutor).
    #[must_use]
    pub fn sends_jobs(self) -> bool {
        matches!(self, Self::Compactions | Self::Flushes | Self::All)
    }

    /// Whether sealed memtables leave the process, so that the database needs a
    /// [`RemoteShards`](crate::shard_owner::RemoteShards).
    #[must_use]
    pub fn sends_memtables(self) -> bool {
        matches!(self, Self::Memtables | Self::Flushes | Self::All)
    }
}

/// How a database reaches its cluster.
#[derive(Clone, Debug, Default)]
pub struct OwnerSettings {
    /// Endpoints of the cluster's managers, one for each. The open of a database whose jobs leave
    /// fails without any.
    pub managers: Vec<String>,
    /// Kinds of jobs and memory that leave the process.
    pub mode: OffloadMode,
    /// The cluster's secret, if its nodes require one.
    pub secret: Option<Secret>,
    /// Largest number of bytes of memtables at memory nodes; 0 if the owner sets no limit.
    pub memtable_bytes_max: u64,
    /// Bytes of memory that all memory nodes together guarantee the database; 0 for an equal part
    /// of the memory that the guarantees of other databases leave.
    pub memtable_bytes_guaranteed: u64,
    /// Bytes of the key-offset cache; 0 turns it off. `None` for the default of
    /// [`OwnerTerms`](crate::shard_owner::OwnerTerms).
    pub key_offset_cache_bytes: Option<u64>,
    /// Number of memory nodes that get each memtable shard, 1 or 2. `None` for the default of
    /// [`OwnerTerms`](crate::shard_owner::OwnerTerms).
    pub shard_copies: Option<u32>,
    /// How many of the newest full memtables stay in the process. `None` for the default of
    /// [`OwnerTerms`](crate::shard_owner::OwnerTerms).
    pub staying: Option<StayingMemtables>,
    /// Whether garbage collections that leave the process find valid values by the invalid files
    /// of compactions, and not by a look-up of the owner
    /// ([`prefers_invalid_files`]). It holds for one open. Default: no.
    ///
    /// [`prefers_invalid_files`]: archipelago_engine::executor::JobExecutor::prefers_invalid_files
    pub gc_invalid_files: bool,
    /// Host and process of the server, for `archipelago cluster status`. Default: empty.
    pub address: String,
}
