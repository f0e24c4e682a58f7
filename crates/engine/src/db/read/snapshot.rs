//! Snapshots: points of the commit order as of which users read.
//!
//! The read view owns one [`Snapshots`]. A snapshot keeps the data that it sees in two ways. Its
//! sequence number is registered, so that jobs keep the old versions of keys that a reader as of
//! that number needs. It also holds the super version of each family that has a compaction filter.
//! A filter removes the newest records, and jobs do not check whether a snapshot sees a record
//! before a filter removes it. Reads at the snapshot use the super version that it holds. So
//! repeated reads find the same, and filters go on even if snapshots are taken all the time. A
//! snapshot of a read-only database holds the super versions of all families, because
//! [`Db::catch_up`](crate::db::Db::catch_up) replaces them.
//!
//! Invariants:
//! 1. A sequence number is registered under the lock under which a job takes the list, and it is
//!    the visible number at that moment. If a job does not find the number in its list, the
//!    `visible` number of the job is not larger. The job keeps every record above `visible`.
//! 2. The super versions are loaded after the registration. They hold every record up to the
//!    registered number that no filter had removed by then. A record enters the current super
//!    version before it is visible, and stays there until a job that knows the snapshot drops it.
//! 3. The families are listed after the registration, too. A family that the list lacks has no
//!    record that the snapshot sees.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: O(log live snapshots) to take and to drop a snapshot. Families that have a filter add one
//! allocation, and one load each. A read costs one comparison of pointers, and a search among the
//! families that have a filter.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use archipelago_base::{CfId, SeqNo};
use parking_lot::Mutex;

use crate::db::state::family::SuperVersion;
use crate::db::state::memtable::ShardHome;

/// The super version of a family that a snapshot reads.
pub(crate) struct HeldFamily {
    pub(crate) cf: CfId,
    pub(crate) picture: Arc<SuperVersion>,
}

type HeldFamilies = Arc<[HeldFamily]>;

/// All live snapshots of a database.
#[derive(Default)]
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<SeqNo, LiveSeq>>,
    held: Mutex<HeldBySnapshots>,
}

/// A sequence number as of which live snapshots read.
#[derive(Clone, Copy, Debug)]
struct LiveSeq {
    /// Number of snapshots with this number.
    count: usize,
    /// Time of the first of them, in nanoseconds of the clock.
    since_ns: u64,
}

/// The oldest live snapshot of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OldestSnapshot {
    pub(crate) seq: SeqNo,
    /// Time at which it was taken, in nanoseconds of the clock.
    pub(crate) since_ns: u64,
}

/// Super versions that live snapshots hold. Each snapshot has a number, which is the key.
#[derive(Default)]
struct HeldBySnapshots {
    next_id: u64,
    families: BTreeMap<u64, HeldFamilies>,
}

/// Bytes that only snapshots keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldBytes {
    /// Bytes of tables and value files.
    pub(crate) files: u64,
    /// Bytes of records in memtables.
    pub(crate) memtables: u64,
}

impl std::fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshots").field("live", &self.live).finish_non_exhaustive()
    }
}

impl Snapshots {
    /// Registers the sequence number that `visible` returns under the lock, then holds what `hold`
    /// returns. The snapshot is taken at `now_ns`.
    pub(crate) fn take(
        self: &Arc<Self>,
        now_ns: u64,
        visible: impl FnOnce() -> SeqNo,
        hold: impl FnOnce() -> Vec<HeldFamily>,
    ) -> Snapshot {
        let seq = {
            let mut live = self.live.lock();
            let seq = visible();
            live.entry(seq).or_insert(LiveSeq { count: 0, since_ns: now_ns }).count += 1;
            seq
        };
        let mut registration = Registration { seq, held: None, snapshots: Arc::clone(self) };
        let families = hold();
        if !families.is_empty() {
            let families: HeldFamilies = families.into();
            let mut held = self.held.lock();
            held.next_id += 1;
            let id = held.next_id;
            held.families.insert(id, Arc::clone(&families));
            registration.held = Some((id, families));
        }
        Snapshot { registration: Arc::new(registration) }
    }

    /// The live sequence numbers, ascending, and the visible one, both as of one moment.
    pub(crate) fn list(&self, visible: impl FnOnce() -> SeqNo) -> (Vec<SeqNo>, SeqNo) {
        let live = self.live.lock();
        (live.keys().copied().collect(), visible())
    }

    pub(crate) fn count(&self) -> usize {
        self.live.lock().values().map(|live| live.count).sum()
    }

    /// The oldest live snapshot.
    pub(crate) fn oldest(&self) -> Option<OldestSnapshot> {
        let live = self.live.lock();
        live.first_key_value().map(|(&seq, at)| OldestSnapshot { seq, since_ns: at.since_ns })
    }

    /// Numbers of all files of the super versions that snapshots hold.
    pub(crate) fn held_files(&self) -> HashSet<u64> {
        let held: Vec<HeldFamilies> = self.held.lock().families.values().cloned().collect();
        let pictures = held.iter().flat_map(|families| families.iter());
        pictures.flat_map(|family| family.picture.readable.file_numbers()).collect()
    }

    /// Bytes of the family that snapshots keep beyond its `current` super version.
    pub(crate) fn held_bytes(&self, cf: CfId, current: &SuperVersion) -> HeldBytes {
        let held: Vec<HeldFamilies> = self.held.lock().families.values().cloned().collect();
        let mut files: HashSet<u64> = current.readable.file_numbers().collect();
        let mut shards: HashSet<usize> = shards_of(current).map(|(at, _)| at).collect();
        let mut bytes = HeldBytes::default();
        for HeldFamily { picture, .. } in
            held.iter().flat_map(|families| families.iter()).filter(|family| family.cf == cf)
        {
            let tables = picture.readable.files().map(|(_, file)| (file.no, file.size_bytes));
            let values = picture.readable.values().files();
            let values = values.map(|(file, _)| (file.no, file.size_bytes));
            for (_, file_bytes) in tables.chain(values).filter(|(no, _)| files.insert(*no)) {
                bytes.files += file_bytes;
            }
            for (_, data_bytes) in shards_of(picture).filter(|(at, _)| shards.insert(*at)) {
                bytes.memtables += data_bytes;
            }
        }
        bytes
    }
}

/// Address and bytes of each memtable shard that takes memory.
fn shards_of(picture: &SuperVersion) -> impl Iterator<Item = (usize, u64)> {
    let sealed = picture.immutables.iter().flat_map(|immutable| immutable.homes());
    let sealed = sealed.filter(|home| !home.is_apart()).map(|home| match home {
        ShardHome::Here(shard) => (Arc::as_ptr(shard).addr(), shard.data_bytes()),
        ShardHome::Away(away) => (Arc::as_ptr(away).addr(), away.figures().data_bytes),
    });
    let active = picture.active.shards.iter();
    active.map(|shard| (Arc::as_ptr(shard).addr(), shard.data_bytes())).chain(sealed)
}

struct Registration {
    seq: SeqNo,
    held: Option<(u64, HeldFamilies)>,
    snapshots: Arc<Snapshots>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some((id, _)) = &self.held {
            // The drop of this snapshot's own reference removes the files, after the lock is free.
            self.snapshots.held.lock().families.remove(id);
        }
        let mut live = self.snapshots.live.lock();
        if let Some(at) = live.get_mut(&self.seq) {
            at.count -= 1;
            if at.count == 0 {
                live.remove(&self.seq);
            }
        }
    }
}

/// A point in the order of writes to read as of. Clones are cheap. The database keeps the data that
/// the snapshot sees until the last clone is dropped.
///
/// Every read at one snapshot finds the same data, whatever is written, flushed and compacted
/// meanwhile. A value that expires is the only exception: from its expiry on no reader finds it.
///
/// Compactions keep the old versions of keys that a snapshot sees. In a column family that has a
/// compaction filter, the snapshot holds the memtables and tables of its moment, as an iterator
/// does. So filters may go on. The memory of these memtables counts to the byte budget. The disk
/// space of these tables is freed after the snapshot is dropped. `FamilyReport` and the properties
/// show both figures.
///
/// A snapshot belongs to the open database that made it. Other databases refuse it, and so does
/// the same database once it was closed and opened again.
#[derive(Clone)]
pub struct Snapshot {
    registration: Arc<Registration>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("seq", &self.seq()).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// The sequence number of the last write that the snapshot sees.
    #[must_use]
    pub fn seq(&self) -> SeqNo {
        self.registration.seq
    }

    /// Whether the snapshot was taken from `snapshots`, and so from their database.
    #[inline]
    pub(crate) fn is_of(&self, snapshots: &Arc<Snapshots>) -> bool {
        Arc::ptr_eq(&self.registration.snapshots, snapshots)
    }

    /// The super version that reads of the family at this snapshot search; `None` if they search
    /// the current one.
    pub(crate) fn held(&self, cf: CfId) -> Option<&Arc<SuperVersion>> {
        let (_, families) = self.registration.held.as_ref()?;
        families.iter().find(|family| family.cf == cf).map(|family| &family.picture)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_a_registration() {
        let snapshots = Arc::new(Snapshots::default());
        let first = snapshots.take(10, || SeqNo(7), Vec::new);
        let clone = first.clone();
        let second = snapshots.take(20, || SeqNo(7), Vec::new);
        drop(first);
        assert_eq!(snapshots.list(|| SeqNo(9)), (vec![SeqNo(7)], SeqNo(9)));
        drop((clone, second));
        assert_eq!(snapshots.count(), 0);
    }

    #[test]
    fn oldest_snapshot_is_that_of_the_smallest_number() {
        let snapshots = Arc::new(Snapshots::default());
        assert_eq!(snapshots.oldest(), None);
        let first = snapshots.take(10, || SeqNo(7), Vec::new);
        let second = snapshots.take(20, || SeqNo(9), Vec::new);
        let oldest = |seq, since_ns| Some(OldestSnapshot { seq: SeqNo(seq), since_ns });
        assert_eq!(snapshots.oldest(), oldest(7, 10));
        drop(first);
        assert_eq!(snapshots.oldest(), oldest(9, 20));
        drop(second);
        assert_eq!(snapshots.oldest(), None);
    }

    #[test]
    fn number_is_registered_before_super_versions_are_held() {
        let snapshots = Arc::new(Snapshots::default());
        let seen = snapshots.take(
            0,
            || SeqNo(3),
            || {
                assert_eq!(snapshots.list(|| SeqNo(4)), (vec![SeqNo(3)], SeqNo(4)));
                Vec::new()
            },
        );
        assert!(seen.is_of(&snapshots) && !seen.is_of(&Arc::default()));
    }
}
