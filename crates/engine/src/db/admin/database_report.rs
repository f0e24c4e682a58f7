//! Figures of a whole database, in addition to those of its families ([`super::report`]).
//!
//! Invariants: the figures of one report may belong to slightly different moments.
//!
//! Thread-safety: any thread may call the function.
//! Failure: none.
//! Cost: takes the jobs lock, the lock of the rate limiter and those of pinned files once each.

use archipelago_env::foreground::YieldStats;
use archipelago_env::limit::{Priority, PriorityStats};

use crate::cache::{BlockKind, CacheStats};
use crate::db::Db;
use crate::db::admin::values::{self, PinnedInfo};
use crate::db::background::job_specs;
use crate::db::state::running_jobs::RunningKind;
use crate::db::write::disk_room::{self, DiskReport};
use crate::lock_order::Order;

/// A kind of running background job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind {
    /// A flush of memtables.
    Flush,
    /// A compaction of tables.
    Compaction,
    /// A change of a bucket map.
    MapChange,
    /// A garbage collection of value files, or a merge of their invalid files.
    Gc,
    /// An ingestion of finished tables.
    Ingestion,
    /// A send of a memtable shard to a memory node.
    Send,
    /// A rebuild, from the log, of memtable shards that memory nodes have lost.
    Rebuild,
}

impl JobKind {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 7] = [
        Self::Flush,
        Self::Compaction,
        Self::MapChange,
        Self::Gc,
        Self::Ingestion,
        Self::Send,
        Self::Rebuild,
    ];

    /// The kind as reports spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Compaction => "compaction",
            Self::MapChange => "map_change",
            Self::Gc => "gc",
            Self::Ingestion => "ingestion",
            Self::Send => "send",
            Self::Rebuild => "rebuild",
        }
    }

    fn of(kind: &RunningKind) -> Self {
        match kind {
            RunningKind::Flush { .. } => Self::Flush,
            RunningKind::Compaction(_) => Self::Compaction,
            RunningKind::MapChange { .. } => Self::MapChange,
            RunningKind::Gc { .. } => Self::Gc,
            RunningKind::Ingestion(_) => Self::Ingestion,
            RunningKind::Send { .. } => Self::Send,
            RunningKind::Rebuild => Self::Rebuild,
        }
    }
}

/// Health of a database, by the work that it still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthState {
    /// Reads, writes and background work succeed.
    Healthy,
    /// Background work or an append failed and is tried again, or the disk has too little room for
    /// writes or for a due compaction.
    Failing,
    /// Writes are refused until the database is resumed or opened again.
    ReadOnly,
}

impl HealthState {
    /// Every state, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Healthy, Self::Failing, Self::ReadOnly];

    /// The state as reports spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Failing => "failing",
            Self::ReadOnly => "read_only",
        }
    }
}

/// Figures of a whole database at one moment. Counts begin with the open.
#[derive(Clone, Debug)]
pub struct DatabaseReport {
    /// Health of the database.
    pub health: HealthState,
    /// Room on the disk.
    pub disk: DiskReport,
    /// Events of the block cache by kind of block.
    pub caches: Vec<(BlockKind, CacheStats)>,
    /// Bytes that the block cache may hold.
    pub cache_capacity_bytes: u64,
    /// Number of running background jobs of each kind.
    pub running_jobs: Vec<(JobKind, u64)>,
    /// Bytes that running compactions and garbage collections may write.
    pub in_flight_bytes: u64,
    /// Bytes of memory that all background jobs may take, with the default number of inputs each.
    pub job_memory_bytes_max: u64,
    /// Number of open snapshots.
    pub snapshots: u64,
    /// Tables and value files that only old versions hold.
    pub pinned: PinnedInfo,
    /// Waits of background reads and writes for reads of users.
    pub foreground_yields: YieldStats,
    /// Bytes granted and waits of flushes at the rate limit of background writes.
    pub limited_flushes: PriorityStats,
    /// Bytes granted and waits of all other jobs at that limit.
    pub limited_compactions: PriorityStats,
    /// Newest sequence number that readers see.
    pub visible_seq: u64,
}

/// The figures of `db`.
pub(crate) fn database_report(db: &Db) -> DatabaseReport {
    let inner = &db.inner;
    let mut running_jobs = JobKind::ALL.map(|kind| (kind, 0));
    for job in inner.jobs.lock(Order::none()).running().iter() {
        running_jobs[JobKind::of(job.kind()) as usize].1 += 1;
    }
    let health = inner.observers.health();
    let state = if health.is_read_only() {
        HealthState::ReadOnly
    } else if disk_room::is_impaired(&inner.observers, &inner.disk) {
        HealthState::Failing
    } else {
        HealthState::Healthy
    };
    let cache = inner.view.cache();
    let limiter = inner.jobs.limiter();
    DatabaseReport {
        health: state,
        disk: inner.disk.report(),
        caches: BlockKind::ALL.map(|kind| (kind, cache.stats(kind))).to_vec(),
        cache_capacity_bytes: cache.capacity_bytes(),
        running_jobs: running_jobs.to_vec(),
        in_flight_bytes: inner.disk.expected_output_bytes(),
        job_memory_bytes_max: job_specs::job_bytes_max(&inner.context),
        snapshots: inner.view.snapshots().count() as u64,
        pinned: values::pinned_info(db),
        foreground_yields: inner.pacing.foreground().stats(),
        limited_flushes: limiter.stats(Priority::Flush),
        limited_compactions: limiter.stats(Priority::Compaction),
        visible_seq: inner.view.visible().0,
    }
}
