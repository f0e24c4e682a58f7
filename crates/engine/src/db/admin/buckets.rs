//! Buckets for users: listed, split and merged on request; and flushes on request.

use std::time::Duration;

use archipelago_base::{Error, Result};

use crate::bucket::BucketMap;
use crate::db::background::rebalance::BucketChange;
use crate::db::inner::DbInner;
use crate::db::state::family::Family;
use crate::db::{ColumnFamily, Db};
use crate::key::KeyRange;
use crate::options::LEVELS;
use crate::version::rebalance::{ChangeKind, Window};
use crate::version::total_bytes;

/// A bucket as statistics show it.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketInfo {
    /// Index in the map.
    pub index: usize,
    /// Its keys.
    pub range: KeyRange,
    /// L0 files.
    pub l0_files: usize,
    /// Bytes of its L0 files.
    pub l0_bytes: u64,
    /// Base-level files that overlap it.
    pub base_files: usize,
    /// Bytes of those files.
    pub base_bytes: u64,
    /// Its share of what was written lately, as a multiple of an even share among as many buckets
    /// as the family begins with; `None` until a memtable was sealed since the open.
    pub temperature: Option<f64>,
    /// Bytes that the sliding window of sealed memtables saw in it.
    pub window_bytes: u64,
    /// Bytes in the shards of active and immutable memtables that hold its keys (shards of an
    /// older map count to the bucket that holds their first key).
    pub memtable_bytes: u64,
    /// Running flushes and compactions that touch it.
    pub jobs: usize,
}

impl Db {
    /// The buckets of a column family, in key order.
    pub fn buckets(&self, cf: &ColumnFamily) -> Result<Vec<BucketInfo>> {
        self.check_family(cf)?;
        Ok(self.inner.buckets(cf))
    }

    /// Cuts bucket `index` in two at `key`, or, if `None`, in the middle of its data. `Busy`, with
    /// the reason, while the bucket has L0 files or a running job; `InvalidArgument` if the key
    /// does not lie inside the bucket. Survives power loss on return.
    pub fn split_bucket(&self, cf: &ColumnFamily, index: usize, key: Option<&[u8]>) -> Result<()> {
        self.check_family(cf)?;
        self.inner.change_map(&cf.family, |map| {
            if index >= map.len() {
                return Err(Error::invalid(format!(
                    "there is no bucket {index}: column family \"{}\" has {}",
                    cf.name(),
                    map.len()
                )));
            }
            let key = match key {
                Some(key) => key.to_vec(),
                None => self.inner.bucket_middle(cf, map, index)?,
            };
            if index >= map.len() || map.bucket_of(&key) != index {
                return Err(Error::invalid(format!(
                    "cannot split bucket {index} at \"{}\": the key must lie inside the bucket, \
                     past its first key",
                    key.escape_ascii()
                )));
            }
            Ok(ChangeKind::split_at(&key))
        })
    }

    /// Makes bucket `index` and its right neighbour one. `Busy` as in [`Db::split_bucket`]. Where
    /// the family's `buckets_dynamic` is set, what is changed by hand may be changed back by the
    /// load.
    pub fn merge_buckets(&self, cf: &ColumnFamily, index: usize) -> Result<()> {
        self.check_family(cf)?;
        self.inner.change_map(&cf.family, |map| {
            map.merge(index)?;
            Ok(ChangeKind::Merge { left: index })
        })
    }

    /// The newest changes of the family's bucket map since the open, oldest first, at most 32.
    pub fn bucket_changes(&self, cf: &ColumnFamily) -> Result<Vec<BucketChange>> {
        self.check_family(cf)?;
        Ok(self.inner.bucket_changes(cf.id()))
    }

    /// Writes all memtables of the family to L0 and waits for it.
    pub fn flush(&self, cf: &ColumnFamily) -> Result<()> {
        self.check_family(cf)?;
        self.inner.check_open()?;
        self.inner.refuse_read_only()?;
        self.inner.flush_family(&cf.family)
    }

    /// Begins to write all memtables of the family to L0, without waiting for it.
    pub fn start_flush(&self, cf: &ColumnFamily) -> Result<()> {
        self.check_family(cf)?;
        self.inner.check_open()?;
        self.inner.refuse_read_only()?;
        self.inner.start_flush(&cf.family)
    }
}

impl DbInner {
    fn buckets(&self, cf: &ColumnFamily) -> Vec<BucketInfo> {
        let current = cf.family.current.load_full();
        let version = &current.version;
        let state = self.state.lock();
        let running = state.compactions();
        let flushes = state.flush_ranges(cf.id());
        let none = Window::default();
        let window = state.balances.get(&cf.id()).map_or(&none, |balance| &balance.window);
        let window_bytes = window.bytes_by_bucket(version.map());
        let temperatures = self.rebalance_input(&cf.family, version, window).temperatures();
        drop(state);
        let map = version.map();
        let mut infos: Vec<BucketInfo> = (0..map.len())
            .map(|index| {
                let range = map.range(index);
                let jobs = running
                    .iter()
                    .filter(|job| job.cf == cf.id() && job.range.overlaps(&range))
                    .count()
                    + flushes.iter().filter(|flush| flush.overlaps(&range)).count();
                let base = version.overlapping(version.base_level(), &range);
                BucketInfo {
                    index,
                    l0_files: version.l0(index).len(),
                    l0_bytes: version.l0(index).iter().map(|file| file.size_bytes).sum(),
                    base_files: base.len(),
                    base_bytes: total_bytes(base),
                    temperature: temperatures.as_ref().map(|all| all[index]),
                    window_bytes: window_bytes[index],
                    memtable_bytes: 0,
                    jobs,
                    range,
                }
            })
            .collect();
        let active = &current.active;
        for (index, shard) in active.shards.iter().enumerate() {
            infos[map.bucket_of(active.map.start(index))].memtable_bytes += shard.data_bytes();
        }
        for immutable in &current.immutables {
            for (index, shard) in immutable.shards.iter().enumerate() {
                let Some(shard) = shard else { continue };
                let bucket = map.bucket_of(immutable.map.start(index));
                infos[bucket].memtable_bytes += shard.data_bytes();
            }
        }
        infos
    }

    /// The median of the medians of the bucket's base-level files, or of its memtable shard.
    fn bucket_middle(&self, cf: &ColumnFamily, map: &BucketMap, index: usize) -> Result<Vec<u8>> {
        let current = cf.family.current.load_full();
        let range = map.range(index);
        let inside = |key: &Vec<u8>| range.contains(key) && *key != range.start;
        let mut medians: Vec<Vec<u8>> = (1..LEVELS)
            .flat_map(|level| current.version.overlapping(level, &range))
            .map(|file| file.median_key.clone())
            .filter(inside)
            .collect();
        if medians.is_empty() {
            let active = &current.active;
            let shard = &active.shards[active.map.bucket_of(&range.start)];
            medians.extend(shard.median_key().filter(inside));
        }
        medians.sort_unstable();
        let middle = medians.len() / 2;
        medians.get(middle).cloned().ok_or_else(|| {
            Error::invalid(format!(
                "bucket {index} has no data to find its middle: name the key to split at"
            ))
        })
    }

    pub(crate) fn flush_family(&self, family: &std::sync::Arc<Family>) -> Result<()> {
        let newest = loop {
            let mut commit = self.committer.lock();
            let active = commit.active_of(family.id).cloned();
            let Some(active) = active else { return family.check_alive() };
            if active.is_empty() {
                break active.id;
            }
            if self.may_seal(family) {
                self.seal_active(&mut commit, family);
                break active.id + 1;
            }
            drop(commit);
            self.progress_or_step()?;
        };
        let pending = |state: &crate::db::inner::State| {
            let tracker = state.flushes.get(&family.id);
            tracker.is_some_and(|t| t.queue.iter().any(|sealed| sealed.memtable.id < newest))
        };
        while pending(&self.state.lock()) {
            family.check_alive()?;
            self.progress_or_step()?;
        }
        // The memtables of a family that was dropped meanwhile are gone, not flushed.
        family.check_alive()
    }

    fn start_flush(&self, family: &std::sync::Arc<Family>) -> Result<()> {
        let mut commit = self.committer.lock();
        let Some(active) = commit.active_of(family.id) else { return family.check_alive() };
        if active.is_empty() {
            return Ok(());
        }
        if self.may_seal(family) {
            self.seal_active(&mut commit, family);
            return Ok(());
        }
        // As many memtables wait as may: one of them has to be written first.
        drop(commit);
        self.flush_family(family)
    }

    /// Waits for background progress, or makes some in manual mode.
    pub(crate) fn progress_or_step(&self) -> Result<()> {
        self.check_open()?;
        self.health.check_writable()?;
        if self.is_manual() {
            if !self.step()? {
                return Err(Error::busy("no background step is left, but the work is not done"));
            }
            return Ok(());
        }
        if let Some(error) = self.health.failing() {
            return Err(error);
        }
        self.wake();
        let mut state = self.state.lock();
        self.progress.wait_for(&mut state, Duration::from_millis(20));
        Ok(())
    }
}
