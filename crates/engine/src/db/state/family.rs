//! A column family inside the engine, the super version that its readers use, and the user's
//! handle.
//!
//! The family table ([`crate::db::read::ReadView`]) owns the families. Handles, iterators and jobs
//! share them.
//!
//! Invariants:
//! 1. For every key, the records of a super version are ordered by age along active memtable,
//!    sealed memtables (newest first), L0 of the key's bucket (newest first), levels. A record is
//!    in exactly one place.
//! 2. The super version changes only under the jobs lock.
//! 3. A family that was dropped stays dropped, and its super version is empty.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a dropped family refuses calls with `Closed`.
//! Cost: a read loads one pointer. A healthy family costs a write one relaxed load of its throttle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use archipelago_base::{CfId, Error, Result};

use crate::db::state::away::AwayShard;
use crate::db::state::delay_credit::DelayCredit;
use crate::db::state::family_space::SpaceGauge;
use crate::db::state::memtable::{Immutable, Memtable, ShardHome};
use crate::extension::{FamilyMerge, MergeOperator, Registry};
use crate::live_file::LiveFile;
use crate::memtable::Shard;
use crate::options::{CfOptions, LEVELS};
use crate::version::Version;

/// Throttle of a family whose writers go on without a check.
pub(crate) const FREE: u8 = 0;
/// Throttle of a family whose memtables wait for their flush.
pub(crate) const WATCHED: u8 = 1;
/// Throttle of a family whose writers are delayed.
pub(crate) const DELAYED: u8 = 2;
/// Throttle of a family whose writers wait.
pub(crate) const STOPPED: u8 = 3;

/// Whether a throttle makes writers wait.
pub(crate) fn is_slowed(throttle: u8) -> bool {
    throttle >= DELAYED
}

/// Everything that a read of one column family needs. One store replaces all of it.
///
/// Invariant: for every key, the records are ordered by age along active, immutables (newest
/// first), L0 of the key's bucket (newest first), levels. A record is in exactly one place.
pub(crate) struct SuperVersion {
    pub(crate) active: Arc<Memtable>,
    /// Sealed memtables, newest first.
    pub(crate) immutables: Vec<Arc<Immutable>>,
    /// The files that the manifest names. Jobs work on this version.
    pub(crate) version: Arc<Version>,
    /// `version` with the tables and value files of written shards, which have left `immutables`
    /// and wait for the edit of their flush. Reads use this version.
    pub(crate) readable: Arc<Version>,
}

/// A part of a super version that may hold records of one key.
pub(crate) enum Layer<'a> {
    /// A shard of a memtable.
    Shard(&'a Arc<Shard>),
    /// A shard of a memtable that is at a memory node.
    Away(&'a Arc<AwayShard>),
    /// A table of any level.
    Table(&'a Arc<LiveFile>),
}

/// A table that may hold records of one key, and how deep it lies.
#[derive(Clone, Copy)]
pub(crate) struct TableLayer<'a> {
    /// Position from newest to oldest: that of an L0 file in its bucket, or [`L0_DEPTHS`] and the
    /// level.
    pub(crate) depth: usize,
    pub(crate) file: &'a Arc<LiveFile>,
}

/// Depths that are free for the L0 files of one bucket.
const L0_DEPTHS: usize = usize::MAX / 2;

impl SuperVersion {
    /// A super version without sealed memtables.
    pub(crate) fn new(active: Arc<Memtable>, version: Arc<Version>) -> Self {
        Self { active, immutables: Vec::new(), readable: Arc::clone(&version), version }
    }

    /// The parts that may hold `key`, newest first: memtable shards, the bucket's L0, one table per
    /// level. The iterator finds a part only when it reaches it.
    pub(crate) fn layers<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = Layer<'a>> {
        let tables = std::iter::once(()).flat_map(move |()| self.tables(key));
        let sealed = self.immutables.iter().filter_map(move |sealed| sealed.home_of(key));
        let sealed = sealed.map(|home| match home {
            ShardHome::Here(shard) => Layer::Shard(shard),
            ShardHome::Away(away) => Layer::Away(away),
        });
        let memtables = std::iter::once(Layer::Shard(self.active_shard(key))).chain(sealed);
        memtables.chain(tables.map(|table| Layer::Table(table.file)))
    }

    /// The shard of the active memtable that may hold `key`.
    #[inline]
    pub(crate) fn active_shard(&self, key: &[u8]) -> &Arc<Shard> {
        &self.active.shards[self.active.map.bucket_of(key)]
    }

    /// The last part of [`SuperVersion::layers`]: the tables that may hold `key`.
    #[inline]
    pub(crate) fn tables<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = TableLayer<'a>> {
        let l0 = self.readable.l0_of(key).iter().enumerate();
        KeyTables { version: &self.readable, key, l0, level: 1 }
    }
}

/// Iterator over the tables of a version that may hold one key, newest first.
///
/// A chain of adaptors would be shorter, but the compiler does not inline its closures into a read.
struct KeyTables<'a> {
    version: &'a Version,
    key: &'a [u8],
    /// The L0 files of the key's bucket that were not visited yet, with their positions.
    l0: std::iter::Enumerate<std::slice::Iter<'a, Arc<LiveFile>>>,
    /// The level to visit after them.
    level: usize,
}

impl<'a> Iterator for KeyTables<'a> {
    type Item = TableLayer<'a>;

    #[inline]
    fn next(&mut self) -> Option<TableLayer<'a>> {
        for (depth, file) in self.l0.by_ref() {
            if file.contains(self.key) {
                return Some(TableLayer { depth, file });
            }
        }
        while self.level < LEVELS {
            let level = self.level;
            self.level += 1;
            if let Some(file) = self.version.file_for(level, self.key) {
                return Some(TableLayer { depth: L0_DEPTHS + level, file });
            }
        }
        None
    }
}

/// A column family inside the engine.
pub(crate) struct Family {
    pub(crate) id: CfId,
    pub(crate) name: String,
    pub(crate) options: CfOptions,
    pub(crate) merge: Option<Arc<FamilyMerge>>,
    /// The current super version, swapped only under the jobs lock.
    pub(crate) current: ArcSwap<SuperVersion>,
    pub(crate) dropped: AtomicBool,
    /// The stall that applies to its writers: see `db::write::stalling`.
    pub(crate) throttle: AtomicU8,
    /// Whether `throttle` was decided by the bound on space.
    pub(crate) is_slowed_for_space: AtomicBool,
    /// Whether `throttle` was decided by the room in the storage pool.
    pub(crate) is_slowed_for_pool: AtomicBool,
    /// The used space of the family and its limits, for its writers.
    pub(crate) space: SpaceGauge,
    /// Bytes per second that its writers may write while `throttle` is [`DELAYED`].
    pub(crate) delayed_rate: AtomicU64,
    /// Bytes per second that writes which free space may write while the storage pool delays all
    /// others. `u64::MAX` if the pool is the only cause of the delay.
    pub(crate) freeing_rate: AtomicU64,
    /// Bytes that may be written before a writer checks the throttle again.
    pub(crate) credit: DelayCredit,
    /// Time, in nanoseconds of the clock, at which the bytes that wait for a flush last became
    /// fewer, or at which the first of them arrived.
    pub(crate) backlog_since_ns: AtomicU64,
    /// Number of the newest sealed memtables that do not count against the limit on memtables,
    /// because they stay in memory by choice ([`crate::db::background::staying`]).
    pub(crate) stay_allowance: AtomicUsize,
}

impl Family {
    pub(crate) fn new(
        id: CfId,
        name: String,
        options: CfOptions,
        registry: &Registry,
        first: SuperVersion,
    ) -> Result<Arc<Self>> {
        let merge = Self::extensions(&name, &options, registry)?;
        let merge = merge.map(|operator| Arc::new(FamilyMerge::new(operator, &name)));
        Ok(Arc::new(Self {
            id,
            name,
            options,
            merge,
            current: ArcSwap::from_pointee(first),
            dropped: AtomicBool::new(false),
            throttle: AtomicU8::new(0),
            is_slowed_for_space: AtomicBool::new(false),
            is_slowed_for_pool: AtomicBool::new(false),
            space: SpaceGauge::default(),
            delayed_rate: AtomicU64::new(u64::MAX),
            freeing_rate: AtomicU64::new(u64::MAX),
            credit: DelayCredit::default(),
            backlog_since_ns: AtomicU64::new(0),
            stay_allowance: AtomicUsize::new(0),
        }))
    }

    /// Checks that this process has the family's extensions, and returns the merge operator. The
    /// error names the extension that is missing. Jobs look the filter up by its name.
    pub(crate) fn extensions(
        name: &str,
        options: &CfOptions,
        registry: &Registry,
    ) -> Result<Option<Arc<dyn MergeOperator>>> {
        let at = |error: Error| error.context_at(format!("column family \"{name}\""));
        let merge = options.merge_operator.as_deref().map(|name| registry.merge_operator(name));
        let filter =
            options.compaction_filter.as_deref().map(|name| registry.compaction_filter(name));
        filter.transpose().map_err(at)?;
        merge.transpose().map_err(at)
    }

    /// Whether it has a compaction filter.
    pub(crate) fn has_filter(&self) -> bool {
        self.options.compaction_filter.is_some()
    }

    /// Number of the newest sealed memtables that do not count against the limit on memtables.
    pub(crate) fn stay_allowance(&self) -> usize {
        self.stay_allowance.load(Ordering::Relaxed)
    }

    /// Whether its writers are delayed or stopped now.
    pub(crate) fn is_slowed(&self) -> bool {
        is_slowed(self.throttle.load(Ordering::Relaxed))
    }

    /// Whether its writers are delayed or stopped now until background work makes progress. It is
    /// `false` while the storage pool delays them, because that delay may last for days.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_slowed() && !self.is_slowed_for_pool.load(Ordering::Relaxed)
    }

    /// `Closed` if the family was dropped.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(Error::closed(format!("column family \"{}\" was dropped", self.name)));
        }
        Ok(())
    }
}

/// A handle to a column family. Clones are cheap. A handle is valid until the family is dropped.
/// Afterwards every use of the handle fails with `Closed`.
#[derive(Clone)]
pub struct ColumnFamily {
    pub(crate) family: Arc<Family>,
    /// Number of the open database that it belongs to.
    pub(crate) db_token: u64,
}

impl ColumnFamily {
    /// The family's id.
    #[must_use]
    pub fn id(&self) -> CfId {
        self.family.id
    }

    /// The family's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.family.name
    }

    /// The settings that the family runs with.
    #[must_use]
    pub fn options(&self) -> &CfOptions {
        &self.family.options
    }
}

impl std::fmt::Debug for ColumnFamily {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ColumnFamily({} \"{}\")", self.id(), self.name())
    }
}
