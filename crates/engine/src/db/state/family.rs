//! A column family inside the engine, the picture of it that readers use, and the user's handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use archipelago_base::{CfId, Error, Result};

use crate::db::state::delay_credit::Credit;
use crate::db::state::memtable::{Immutable, Memtable};
use crate::db::write::stalling::is_slowed;
use crate::extension::{FamilyMerge, MergeOperator, Registry};
use crate::options::CfOptions;
use crate::version::Version;

/// Everything that a read of one column family needs, swapped as one.
///
/// Invariant: for every key, the records are ordered by age along active, immutables (newest
/// first), L0 of the key's bucket (newest first), levels; a record is in exactly one place.
pub(crate) struct SuperVersion {
    pub(crate) active: Arc<Memtable>,
    /// Newest first.
    pub(crate) immutables: Vec<Arc<Immutable>>,
    pub(crate) version: Arc<Version>,
}

/// A column family; see the module.
pub(crate) struct Family {
    pub(crate) id: CfId,
    pub(crate) name: String,
    pub(crate) options: CfOptions,
    pub(crate) merge: Option<Arc<FamilyMerge>>,
    /// Swapped only under the state lock.
    pub(crate) current: ArcSwap<SuperVersion>,
    pub(crate) dropped: AtomicBool,
    /// Which stall applies to its writers: see `db::write::stalling`.
    pub(crate) throttle: AtomicU8,
    /// Allowed bytes per second while `throttle` says "delay".
    pub(crate) delayed_rate: AtomicU64,
    /// Bytes that may be written before the throttle is looked at again.
    pub(crate) credit: Credit,
    /// When the bytes that wait to be flushed last became fewer, or the first came, by the clock.
    pub(crate) backlog_since_ns: AtomicU64,
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
            delayed_rate: AtomicU64::new(u64::MAX),
            credit: Credit::default(),
            backlog_since_ns: AtomicU64::new(0),
        }))
    }

    /// Checks that this process has the family's extensions (the error says which one it lacks);
    /// gives the merge operator. Jobs look the filter up by its name.
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

    /// Whether its writers would wait or be slowed now.
    pub(crate) fn is_slowed(&self) -> bool {
        is_slowed(self.throttle.load(Ordering::Relaxed))
    }

    /// `Closed` if the family was dropped.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(Error::closed(format!("column family \"{}\" was dropped", self.name)));
        }
        Ok(())
    }
}

/// A handle to a column family. Cheap to clone; stays valid until the family is dropped, after
/// which every use of it is refused.
#[derive(Clone)]
pub struct ColumnFamily {
    pub(crate) family: Arc<Family>,
    /// Which open database it belongs to.
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

    /// The settings that it runs with.
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
