//! Lists the buckets of a family, and splits a bucket on request.
//!
//! Invariants: a change on request pauses background picks, and is refused with `Busy` while the
//! bucket has L0 files or a running job.
//!
//! Thread-safety: any thread may call any function.
//! Failure: after an error the map is as before.
//! Cost: a list visits the files of the family. A change is one manifest edit.

use archipelago_base::{Error, Result};

use crate::bucket::BucketMap;
use crate::db::ColumnFamily;
use crate::db::background::owners::InstallOwners;
use crate::db::background::rebalance;
use crate::db::state::balance::Balance;
use crate::db::state::context::Context;
use crate::db::state::jobs::Jobs;
use crate::key::KeyRange;
use crate::lock_order::Order;
use crate::options::LEVELS;
use crate::version::rebalance::{ChangeKind, Window};
use crate::version::total_bytes;

/// A bucket as statistics show it.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketInfo {
    /// Index in the map.
    pub index: usize,
    /// Range of its keys.
    pub range: KeyRange,
    /// Number of its L0 files.
    pub l0_files: usize,
    /// Bytes of its L0 files.
    pub l0_bytes: u64,
    /// Number of base-level files that overlap it.
    pub base_files: usize,
    /// Bytes of those files.
    pub base_bytes: u64,
    /// Bucket temperature: its share of the bytes of the window, times the number of buckets that
    /// the family begins with. 1 is even. `None` until a memtable was sealed since the open.
    pub temperature: Option<f64>,
    /// Bytes of its keys in the window of sealed memtables.
    pub window_bytes: u64,
    /// Bytes in the shards of active and immutable memtables that hold its keys. A shard of another
    /// map counts for the bucket that holds its first key.
    pub memtable_bytes: u64,
    /// Number of running flushes and compactions that touch it.
    pub jobs: usize,
}

pub(crate) fn buckets(context: &Context, jobs: &Jobs, cf: &ColumnFamily) -> Vec<BucketInfo> {
    let current = cf.family.current.load_full();
    let version = &current.version;
    let state = jobs.lock(Order::none());
    let running = state.running().compactions();
    let flushes = state.flush_ranges(cf.id());
    let none = Window::default();
    let window = state.balances().get(&cf.id()).map_or(&none, Balance::window);
    let window_bytes = window.bytes_by_bucket(version.map());
    let temperatures =
        rebalance::rebalance_input(context, &cf.family, version, window).temperatures();
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
        for (index, home) in immutable.homes.iter().enumerate() {
            let Some(home) = home else { continue };
            let bucket = map.bucket_of(immutable.map.start(index));
            infos[bucket].memtable_bytes += home.data_bytes();
        }
    }
    infos
}

/// The median of the median keys of the bucket's files below L0, or else the median of its memtable
/// shard.
fn bucket_middle(cf: &ColumnFamily, map: &BucketMap, index: usize) -> Result<Vec<u8>> {
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

/// Cuts bucket `index` in two at `key`, or in the middle of its data.
pub(crate) fn split_bucket(
    owners: InstallOwners<'_>,
    cf: &ColumnFamily,
    index: usize,
    key: Option<&[u8]>,
) -> Result<()> {
    rebalance::change_map(owners, &cf.family, |map| {
        if index >= map.len() {
            return Err(Error::invalid(format!(
                "there is no bucket {index}: column family \"{}\" has {}",
                cf.name(),
                map.len()
            )));
        }
        let key = match key {
            Some(key) => key.to_vec(),
            None => bucket_middle(cf, map, index)?,
        };
        if map.bucket_of(&key) != index {
            return Err(Error::invalid(format!(
                "cannot split bucket {index} at \"{}\": the key must lie inside the bucket, \
                 past its first key",
                key.escape_ascii()
            )));
        }
        Ok(ChangeKind::split_at(&key))
    })
}
