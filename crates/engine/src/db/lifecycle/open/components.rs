//! Parts that the caller of an open provides in addition to the settings.
//!
//! Thread-safety: a plain value.
//! Failure: none; [`super::open`] checks the parts.
//! Cost: clones share the parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_env::FileSystem;
use archipelago_env::local::LocalFs;

use crate::db::state::background_mode::BackgroundMode;
use crate::db::state::context::FaultPoint;
use crate::event::Listeners;
use crate::executor::{JobExecutor, LocalExecutor};
use crate::extension::Registry;
use crate::options::CfOptions;
use crate::remote::ShardStore;

/// Parts of a database that the caller of an open provides in addition to the settings.
#[derive(Clone)]
pub struct Components {
    /// File system of the files. Default: the local file system.
    pub fs: Arc<dyn FileSystem>,
    /// Whether compactions let reads that users wait for go first. Default: `true`. `false` serves
    /// comparisons.
    pub foreground_first: bool,
    /// Whether the block cache keeps references of tables in the Flat Index Cache. Default: `true`.
    /// `false` serves comparisons.
    pub flat_index: bool,
    /// Source of the time. Default: the system's clock.
    pub clock: Arc<dyn Clock>,
    /// Merge operators and compaction filters. Default: the built-in ones.
    pub registry: Registry,
    /// Receivers of events. Default: none.
    pub listeners: Listeners,
    /// The byte budget, if the database shares it. Default `None`: a budget of its own, by
    /// `DbOptions::memory_budget_bytes`.
    pub budget: Option<Arc<ByteBudget>>,
    /// Settings of column families by name. They replace the stored settings of families that
    /// exist. A database that is created takes those of `default` for its default family. Default:
    /// none.
    pub families: BTreeMap<String, CfOptions>,
    /// Prefix of the names of existing column families that take the settings of the default
    /// family. Those in `families` count before the stored ones. Families that `families` names
    /// keep their own settings. Default: no prefix.
    pub alike_default: Option<String>,
    /// Executor that runs flushes, compactions and garbage collections. Default: the background
    /// threads of the database. Jobs of recovery and ingestion always run on the calling thread.
    pub executor: Arc<dyn JobExecutor>,
    /// Store that keeps sealed memtable shards outside the memory of this process. Default `None`:
    /// all shards stay here until they are flushed.
    pub shard_store: Option<Arc<dyn ShardStore>>,
    /// Which threads run background work. Default: threads of the database.
    pub background: BackgroundMode,
    /// Seed of unique ids. Default `None`: entropy of the system.
    pub seed: Option<u64>,
    /// Function that background work calls at named points, for tests. Default: none.
    #[cfg(any(test, feature = "fault-points"))]
    pub fault_point: Option<FaultPoint>,
}

impl Components {
    /// The function that background work calls at named points.
    #[cfg(any(test, feature = "fault-points"))]
    pub(super) fn fault_point(&self) -> Option<FaultPoint> {
        self.fault_point.clone()
    }

    /// A build without the feature has no fault points.
    #[cfg(not(any(test, feature = "fault-points")))]
    pub(super) fn fault_point(&self) -> Option<FaultPoint> {
        None
    }
}

impl Default for Components {
    fn default() -> Self {
        Self {
            fs: Arc::new(LocalFs::new()),
            foreground_first: true,
            flat_index: true,
            clock: SystemClock::shared(),
            registry: Registry::default(),
            listeners: Listeners::default(),
            budget: None,
            families: BTreeMap::new(),
            alike_default: None,
            executor: Arc::new(LocalExecutor),
            shard_store: None,
            background: BackgroundMode::Threads,
            seed: None,
            #[cfg(any(test, feature = "fault-points"))]
            fault_point: None,
        }
    }
}

impl std::fmt::Debug for Components {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Components").field("fs", &self.fs).finish_non_exhaustive()
    }
}
