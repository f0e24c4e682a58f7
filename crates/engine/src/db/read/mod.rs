//! The read path: families, snapshots, tables, and the number of the last visible write.
//!
//! The database owns one [`ReadView`]. A read loads a family's super version, then the visible
//! sequence number, and takes no lock. Writers and jobs publish here what readers find.
//!
//! Invariants:
//! 1. The family table changes only under the manifest lock, or before the database is shared.
//! 2. A family's super version changes only under the jobs lock. [`ReadView::publish`] borrows the
//!    guarded state to show that.
//! 3. A version is published only while the manifest lock is held since its edit was applied, so
//!    super versions follow the manifest's order.
//! 4. The visible number only grows. It passes a write only when that write and all earlier ones
//!    are inserted ([`publication`]).
//!
//! Thread-safety: any thread may call any method.
//! Failure: no call here fails, except the reads of a [`Db`], which return the errors of tables.
//! Cost: a read costs two atomic loads before it searches.

pub(crate) mod away;
pub(crate) mod away_cursor;
pub(crate) mod get;
pub(crate) mod key_estimate;
pub(crate) mod newest;
pub(crate) mod options;
pub(crate) mod pictures;
pub(crate) mod publication;
pub(crate) mod scan;
pub(crate) mod snapshot;
pub(crate) mod values;

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use archipelago_base::{CfId, Result, SeqNo};

use crate::db::read::get::ValueEntry;
use crate::db::read::newest::{Since, newest_record};
use crate::db::read::options::ReadOptions;
use crate::db::read::pictures::Pictures;
use crate::db::read::publication::Publication;
use crate::db::read::scan::Iter;
use crate::db::read::snapshot::{HeldFamily, Snapshots};
use crate::db::read::values::ValueReaders;
use crate::db::state::context::Context;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::jobs::JobState;
use crate::db::state::observers::Observers;
use crate::db::{ColumnFamily, Db};
use crate::pinned::PinnedSlice;
use crate::sst::BlockCache;
use crate::table_cache::TableCache;
use crate::version::{Version, VersionBuilder};

/// The families of a database by their ids.
pub(crate) type Families = Vec<Option<Arc<Family>>>;

/// The owners that a read needs.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) context: &'a Context,
    pub(crate) observers: &'a Observers,
    pub(crate) view: &'a ReadView,
}

/// The reading side of an open database.
pub(crate) struct ReadView {
    /// The last sequence number that readers see.
    visible: Publication,
    families: ArcSwap<Families>,
    /// The families that have a compaction filter. Swapped together with `families`.
    filtered: ArcSwap<Vec<Arc<Family>>>,
    snapshots: Arc<Snapshots>,
    tables: Arc<TableCache>,
    /// Threads for batches of separated values.
    value_readers: Arc<ValueReaders>,
    cache: Arc<BlockCache>,
    /// Progress of a read-only database through its writer's states.
    pictures: Pictures,
}

impl ReadView {
    pub(crate) fn new(
        last_seq: SeqNo,
        tables: TableCache,
        value_readers: ValueReaders,
        pictures: Pictures,
    ) -> Self {
        Self {
            visible: Publication::new(last_seq.0),
            families: ArcSwap::from_pointee(Vec::new()),
            filtered: ArcSwap::from_pointee(Vec::new()),
            snapshots: Arc::new(Snapshots::default()),
            cache: Arc::clone(tables.block_cache()),
            tables: Arc::new(tables),
            value_readers: Arc::new(value_readers),
            pictures,
        }
    }

    /// The last sequence number that readers see.
    #[inline]
    pub(crate) fn visible(&self) -> SeqNo {
        SeqNo(self.visible.get())
    }

    /// The protocol that moves the visible number.
    #[inline]
    pub(crate) fn publication(&self) -> &Publication {
        &self.visible
    }

    /// The family table.
    #[inline]
    pub(crate) fn families(&self) -> Guard<Arc<Families>> {
        self.families.load()
    }

    pub(crate) fn family(&self, cf: CfId) -> Option<Arc<Family>> {
        self.families.load().get(cf.0 as usize)?.clone()
    }

    /// All families that are not dropped.
    pub(crate) fn live_families(&self) -> Vec<Arc<Family>> {
        self.families.load().iter().flatten().cloned().collect()
    }

    /// Sets an entry of the family table. The caller holds the manifest lock, or the database is
    /// not shared yet.
    pub(crate) fn set_family(&self, id: CfId, family: Option<Arc<Family>>) {
        let mut families = Vec::clone(&self.families.load());
        let index = id.0 as usize;
        if families.len() <= index {
            families.resize(index + 1, None);
        }
        families[index] = family;
        let filtered = families.iter().flatten().filter(|family| family.has_filter()).cloned();
        // The store happens before any write to the family: see `db::read::snapshot`, invariant 3.
        self.filtered.store(Arc::new(filtered.collect()));
        self.families.store(Arc::new(families));
    }

    /// The super versions that a snapshot holds: those of all families that have a compaction
    /// filter. In a read-only database a snapshot holds those of all families, because
    /// [`Db::catch_up`](crate::db::Db::catch_up) replaces the state that it sees.
    pub(crate) fn filtered_pictures(&self, is_read_only: bool) -> Vec<HeldFamily> {
        let held = |family: &Arc<Family>| HeldFamily {
            cf: family.id,
            picture: family.current.load_full(),
        };
        match is_read_only {
            true => self.live_families().iter().map(held).collect(),
            false => self.filtered.load().iter().map(held).collect(),
        }
    }

    #[inline]
    pub(crate) fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    #[inline]
    pub(crate) fn tables(&self) -> &Arc<TableCache> {
        &self.tables
    }

    /// Threads for batches of separated values.
    #[inline]
    pub(crate) fn value_readers(&self) -> &Arc<ValueReaders> {
        &self.value_readers
    }

    #[inline]
    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    #[inline]
    pub(crate) fn pictures(&self) -> &Pictures {
        &self.pictures
    }

    /// Swaps a family's super version. The borrow of the jobs' state shows that its lock is held.
    pub(crate) fn publish(&self, _state: &mut JobState, family: &Family, next: SuperVersion) {
        family.current.store(Arc::new(next));
    }

    /// Publishes a super version of `family` with the current sealed memtables and, unless it is
    /// `None`, another `version`.
    pub(crate) fn republish(
        &self,
        state: &mut JobState,
        family: &Family,
        version: Option<Arc<Version>>,
    ) {
        let current = family.current.load_full();
        let immutables = state.flushes().get(&family.id).map_or_else(Vec::new, |tracker| {
            tracker.queue().iter().rev().map(|sealed| Arc::clone(sealed.view())).collect()
        });
        let version = version.unwrap_or_else(|| Arc::clone(&current.version));
        let written = state.written_of(family.id);
        let tables: Vec<_> = written.iter().flat_map(|shard| shard.tables.clone()).collect();
        let value_files: Vec<_> =
            written.iter().flat_map(|shard| shard.value_files.clone()).collect();
        let readable = match tables.is_empty() {
            true => Arc::clone(&version),
            false => VersionBuilder::with_unnamed(&version, &tables, &value_files)
                .expect("the bucket map stays the same around written shards"),
        };
        let active = Arc::clone(&current.active);
        let next = SuperVersion { active, immutables, version, readable };
        self.publish(state, family, next);
    }

    /// Publishes versions that an edit has built. The caller holds the manifest lock as well.
    pub(crate) fn republish_built(&self, state: &mut JobState, built: Vec<(CfId, Arc<Version>)>) {
        for (cf, version) in built {
            if let Some(family) = self.family(cf) {
                self.republish(state, &family, Some(version));
            }
        }
    }
}

impl Db {
    /// The value of `key` in the default column family; `None` if the key has none.
    ///
    /// The value may be pinned in the block cache: copy it ([`PinnedSlice::into_vec`]) to keep it
    /// for long. Errors: `Corrupt` names the damaged file, `Io` the one that cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<PinnedSlice>> {
        self.get_with(self.default_family(), key, &ReadOptions::default())
    }

    /// [`Db::get`] in any column family, with options.
    pub fn get_with(
        &self,
        cf: &ColumnFamily,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<PinnedSlice>> {
        Ok(self.get_entry(cf, key, options)?.map(|entry| entry.value))
    }

    /// The value of `key` with its expiry and sequence number.
    pub fn get_entry(
        &self,
        cf: &ColumnFamily,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<ValueEntry>> {
        self.check_family(cf)?;
        self.check_snapshot(options)?;
        let read = || get::get(self.inner.reader(), &cf.family, key, options);
        let found = pictures::read_following(&self.inner, options, read)?;
        get::found_or_dropped(cf, found)
    }

    /// The values of `keys`, in their order, all as of one moment. File reads of keys in the same
    /// table are batched, and so are those of separated values in the same value file.
    pub fn multi_get(
        &self,
        cf: &ColumnFamily,
        keys: &[&[u8]],
        options: &ReadOptions,
    ) -> Result<Vec<Option<PinnedSlice>>> {
        self.check_family(cf)?;
        self.check_snapshot(options)?;
        let read = || get::multi_get(self.inner.reader(), &cf.family, keys, options);
        let found = pictures::read_following(&self.inner, options, read)?;
        cf.family.check_alive()?;
        Ok(found)
    }

    /// The sequence number of the newest record of `key`, of whatever kind; `None` if the engine
    /// knows no record. A transaction compares it to find out whether a key changed since a
    /// snapshot.
    pub fn latest_seq(&self, cf: &ColumnFamily, key: &[u8]) -> Result<Option<SeqNo>> {
        self.check_family(cf)?;
        let read = || newest_record(self.inner.reader(), &cf.family, key, Since::Ever);
        let found = pictures::read_following(&self.inner, &ReadOptions::default(), read)?;
        get::found_or_dropped(cf, found)
    }

    /// Whether the family has a live value for `key`. Does not read a large value.
    pub fn contains(&self, cf: &ColumnFamily, key: &[u8], options: &ReadOptions) -> Result<bool> {
        Ok(self.get_head(cf, key, options)?.is_some())
    }

    /// The entry of `key` with an empty value; `None` if the key has no value. Does not read a
    /// large value, and calls no merge operator.
    pub fn get_head(
        &self,
        cf: &ColumnFamily,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<ValueEntry>> {
        self.get_entry(cf, key, &options.clone().keys_only())
    }

    /// An iterator over the live keys of `cf`, which is not valid until its first seek.
    /// `InvalidArgument` if the lower bound lies after the upper one.
    pub fn iter(&self, cf: &ColumnFamily, options: &ReadOptions) -> Result<Iter> {
        self.check_family(cf)?;
        self.check_snapshot(options)?;
        self.inner.context.check_open()?;
        scan::check_bounds(options)?;
        let iter = scan::scan(self.inner.reader(), &cf.family, options, None);
        // A family that was dropped meanwhile is empty.
        cf.family.check_alive()?;
        Ok(iter)
    }
}
