//! The database's memtable. It has one shard (`crate::memtable::Shard`) for each bucket of the map
//! that it was made with, and more where a split is prepared
//! ([`crate::db::background::rebalance`]).
//!
//! Active memtables belong to the commit lock, because the holder of that lock decides which
//! writers may insert. Immutable memtables belong to their family's flush tracker.
//!
//! Invariants:
//! 1. The map of a memtable never changes. A shard holds only keys of its bucket of that map.
//! 2. A writer that was granted a memtable under the commit lock is counted in `writers` until it
//!    has inserted everything. A sealed memtable is flushed only when that count is zero.
//! 3. Its sequence numbers are contiguous among those of its family. Every record of the family up
//!    to `last_seq` (set at the seal) lies in it, in an older memtable or in a table.
//! 4. `oldest_log` pins a log segment. It is set under the commit lock, before the first record of
//!    that segment is inserted.
//! 5. After the memtable is readied, its shards belong to [`Immutable`] alone, and the flush
//!    tracker keeps only a [`SealedInfo`]. So the memory of a shard is free when no super version
//!    and no job has the shard any more.
//! 6. A sealed shard is here or away ([`ShardHome`]). Its home changes under the jobs lock: from
//!    here to away when a node has the shard, and back when the shard was rebuilt.
//!
//! Thread-safety: many threads may insert and read at the same time.
//! Failure: none; the records were checked before.
//! Cost: a write increments and decrements one shared counter. A binary search over the boundaries
//! finds the shard.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use archipelago_base::{FileNo, SeqNo};

use crate::bucket::BucketMap;
use crate::db::state::away::AwayShard;
use crate::key::{KeyRange, Kind};
use crate::memtable::{Shard, SlabPool};
use crate::tombstone::{RangeTombstone, TombstoneSet};

/// Bytes that a record costs beyond its key and value (header, index slot), for sizing.
pub(crate) const RECORD_OVERHEAD_BYTES: u64 = 48;

/// Bytes that a range delete costs in each shard beyond its keys: the record, and its part of two
/// levels of the shard's tombstone set.
const RANGE_DELETE_BYTES: u64 = 160;
/// Number of range deletes of one shard at which the memtable is sealed. A reader may have to add
/// all of them to the shard's tombstone set in one step. The limit keeps that step within some
/// milliseconds.
const RANGE_DELETES_MAX: usize = 32 << 10;

/// A memtable counts as read if memtables answered at least one look-up, or began one scan, per
/// this many of its records.
const READ_SHARE: u64 = 16;

const NO_LOG: u64 = u64::MAX;

/// A memtable: one shard for each bucket of the map that it was made with.
pub(crate) struct Memtable {
    /// Unique within the open database; larger is younger.
    pub(crate) id: u64,
    pub(crate) map: Arc<BucketMap>,
    pub(crate) shards: Box<[Arc<Shard>]>,
    /// Size, in bytes, at which the memtable is sealed.
    limit_bytes: u64,
    /// Time at which it was made, in nanoseconds of the database's clock.
    born_ns: u64,
    writers: AtomicU64,
    /// Bytes granted so far; changed only under the commit lock.
    charged_bytes: AtomicU64,
    /// Memory of range deletes in shards, counted as they are inserted.
    range_delete_bytes: AtomicU64,
    /// Whether a shard has [`RANGE_DELETES_MAX`] range deletes.
    is_crowded: AtomicBool,
    /// The map's boundaries as shared keys for range deletes; made by the first range delete.
    bounds: OnceLock<Box<[Arc<[u8]>]>>,
    oldest_log: AtomicU64,
    /// Log segment that was open at the seal.
    seal_log: AtomicU64,
    /// Whether the memtable has records that no log has.
    unlogged: AtomicBool,
    last_seq: AtomicU64,
    /// Whether users read in memory while it filled; set when it is sealed.
    was_read: AtomicBool,
    /// Whether its shards were offered to the store of shards while it filled.
    was_offered: AtomicBool,
}

/// Properties that are fixed when a memtable is made.
#[derive(Clone, Copy)]
pub(crate) struct Birth {
    /// Unique within the open database; larger is younger.
    pub(crate) id: u64,
    /// Size, in bytes, at which the memtable is sealed.
    pub(crate) limit_bytes: u64,
    /// Time at which it was made, in nanoseconds of the database's clock.
    pub(crate) born_ns: u64,
}

impl Memtable {
    pub(crate) fn new(birth: Birth, map: Arc<BucketMap>, pool: &Arc<SlabPool>) -> Arc<Self> {
        let Birth { id, limit_bytes, born_ns } = birth;
        let shards = (0..map.len()).map(|_| Shard::new(pool)).collect();
        Arc::new(Self {
            id,
            map,
            shards,
            limit_bytes,
            born_ns,
            writers: AtomicU64::new(0),
            charged_bytes: AtomicU64::new(0),
            range_delete_bytes: AtomicU64::new(0),
            is_crowded: AtomicBool::new(false),
            bounds: OnceLock::new(),
            oldest_log: AtomicU64::new(NO_LOG),
            seal_log: AtomicU64::new(0),
            unlogged: AtomicBool::new(false),
            last_seq: AtomicU64::new(0),
            was_read: AtomicBool::new(false),
            was_offered: AtomicBool::new(false),
        })
    }

    /// Notes how many look-ups memtables answered, and how many scans began, while this memtable
    /// was active. If these `reads` are at least a sixteenth of its records, it counts as read:
    /// users will probably look for its records in the tables as well.
    pub(crate) fn note_reads(&self, reads: u64) {
        self.was_read.store(reads * READ_SHARE >= self.entries(), Ordering::Relaxed);
    }

    pub(crate) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }

    /// Notes that its shards are offered. Returns false if they were offered before.
    pub(crate) fn begin_offer(&self) -> bool {
        !self.was_offered.swap(true, Ordering::Relaxed)
    }

    /// Counts a writer that will insert `bytes`, logged in the segment `log` (commit lock held).
    pub(crate) fn grant(&self, bytes: u64, log: Option<FileNo>) {
        self.writers.fetch_add(1, Ordering::Relaxed);
        let charged = self.charged_bytes.load(Ordering::Relaxed);
        self.charged_bytes.store(charged + bytes, Ordering::Relaxed);
        match log {
            Some(log) if log.0 < self.oldest_log.load(Ordering::Relaxed) => {
                self.oldest_log.store(log.0, Ordering::Release);
            }
            Some(_) => {}
            None => self.unlogged.store(true, Ordering::Release),
        }
    }

    /// Whether `bytes` more fit. An empty memtable takes any number, and a crowded one takes
    /// nothing.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let charged = self.charged_bytes();
        charged == 0 || (charged + bytes <= self.limit_bytes && !self.is_crowded())
    }

    /// Whether the memtable has so many range deletes that the next write to it must seal it.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded.load(Ordering::Relaxed)
    }

    /// Counts bytes that recovery inserts.
    pub(crate) fn charge_replayed(&self, bytes: u64) {
        self.charged_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Ends the count of a writer, which has inserted everything.
    pub(crate) fn release(&self) {
        let before = self.writers.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a writer left twice");
    }

    /// Whether every granted writer has inserted.
    pub(crate) fn is_quiet(&self) -> bool {
        self.writers.load(Ordering::Acquire) == 0
    }

    /// Bytes of records that were granted, and memory of range deletes that were inserted.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charged_bytes.load(Ordering::Relaxed) + self.range_delete_bytes.load(Ordering::Relaxed)
    }

    /// Time at which it was made, in nanoseconds of the database's clock.
    pub(crate) fn born_ns(&self) -> u64 {
        self.born_ns
    }

    /// Size, in bytes, at which the memtable is sealed.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Memory that its shards hold, the unused part of their slabs included.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.memory_bytes()).sum()
    }

    /// Whether nothing was ever granted.
    pub(crate) fn is_empty(&self) -> bool {
        self.charged_bytes() == 0
    }

    pub(crate) fn has_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::Acquire)
    }

    /// The oldest log segment that holds a record of this memtable.
    pub(crate) fn oldest_log(&self) -> Option<FileNo> {
        let no = self.oldest_log.load(Ordering::Acquire);
        (no != NO_LOG).then_some(FileNo(no))
    }

    /// Notes the log segment that is open at the seal.
    pub(crate) fn note_seal_log(&self, log: FileNo) {
        self.seal_log.store(log.0, Ordering::Release);
    }

    /// Sets the last sequence number, at the seal.
    pub(crate) fn close_at(&self, last_seq: SeqNo) {
        self.last_seq.store(last_seq.0, Ordering::Release);
    }

    pub(crate) fn last_seq(&self) -> SeqNo {
        SeqNo(self.last_seq.load(Ordering::Acquire))
    }

    /// Inserts one record; a range tombstone is clipped into every shard that it touches.
    pub(crate) fn insert(
        &self,
        seq: SeqNo,
        kind: Kind,
        key: &[u8],
        value: &[u8],
        log: Option<FileNo>,
    ) {
        if kind == Kind::RangeDelete {
            self.insert_range_delete(seq, key, value, log);
            return;
        }
        let shard = &self.shards[self.map.bucket_of(key)];
        if let Some(log) = log {
            shard.note_log(log.0);
        }
        shard.insert(key, seq, kind, value);
    }

    fn insert_range_delete(&self, seq: SeqNo, start: &[u8], end: &[u8], log: Option<FileNo>) {
        let whole = RangeTombstone { start: start.into(), end: end.into(), seq };
        if whole.is_empty() {
            return;
        }
        let bounds = self.bounds.get_or_init(|| {
            self.map.boundaries().iter().map(|boundary| boundary.as_slice().into()).collect()
        });
        let range = KeyRange { start: start.to_vec(), end: Some(end.to_vec()) };
        for bucket in self.map.buckets_of(&range) {
            let first = bucket.checked_sub(1).map_or(&whole.start, |before| &bounds[before]);
            let Some(part) = whole.clone().clipped(first, bounds.get(bucket)) else { continue };
            if let Some(log) = log {
                self.shards[bucket].note_log(log.0);
            }
            self.shards[bucket].insert_tombstone(part);
            if self.shards[bucket].tombstone_count() >= RANGE_DELETES_MAX {
                self.is_crowded.store(true, Ordering::Relaxed);
            }
            self.range_delete_bytes.fetch_add(RANGE_DELETE_BYTES, Ordering::Relaxed);
        }
    }

    pub(crate) fn entries(&self) -> u64 {
        self.shards.iter().map(|shard| shard.entries()).sum()
    }
}

/// The count of a granted writer in its memtable. The drop ends it, also on an early return.
pub(crate) struct Granted(pub(crate) Arc<Memtable>);

impl Drop for Granted {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Figures of one shard that outlive it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardInfo {
    /// Bytes of the records as stored, tombstones included.
    pub(crate) data_bytes: u64,
    /// The oldest log segment that must stay until the shard is installed.
    pub(crate) oldest_log: Option<FileNo>,
    /// Whether the shard holds a record or a range tombstone.
    pub(crate) is_filled: bool,
}

impl ShardInfo {
    /// Figures of a shard in memory that takes no more records.
    pub(crate) fn of(shard: &Shard) -> Self {
        Self {
            data_bytes: shard.data_bytes(),
            oldest_log: shard.oldest_log().map(FileNo),
            is_filled: shard.entries() > 0 || shard.has_tombstones(),
        }
    }
}

/// Figures of a sealed memtable that stay while its shards leave memory one after another.
pub(crate) struct SealedInfo {
    pub(crate) id: u64,
    pub(crate) map: Arc<BucketMap>,
    /// Everything of the family up to this number lies in the memtable or in an older one.
    pub(crate) last_seq: SeqNo,
    /// Whether the memtable has records that no log has.
    pub(crate) unlogged: bool,
    /// Whether users read in memory while it filled.
    pub(crate) was_read: bool,
    /// The oldest log segment that holds one of its records.
    pub(crate) oldest_log: Option<FileNo>,
    /// Log segment that was open at the seal.
    pub(crate) seal_log: FileNo,
    /// Figures of each shard. They are final, and set, once the last writer has inserted.
    shards: OnceLock<Box<[ShardInfo]>>,
}

impl SealedInfo {
    /// Figures of a memtable that is sealed under the commit lock.
    pub(crate) fn of(memtable: &Memtable) -> Arc<Self> {
        Arc::new(Self {
            id: memtable.id,
            map: Arc::clone(&memtable.map),
            last_seq: memtable.last_seq(),
            unlogged: memtable.has_unlogged(),
            was_read: memtable.was_read(),
            oldest_log: memtable.oldest_log(),
            seal_log: FileNo(memtable.seal_log.load(Ordering::Acquire)),
            shards: OnceLock::new(),
        })
    }

    /// Figures of a memtable of which an earlier open has sent some shards. `shards` has those of
    /// each shard.
    pub(crate) fn inherited(memtable: &Memtable, shards: Box<[ShardInfo]>) -> Arc<Self> {
        let oldest_log = shards.iter().filter_map(|shard| shard.oldest_log).min();
        Arc::new(Self {
            id: memtable.id,
            map: Arc::clone(&memtable.map),
            last_seq: memtable.last_seq(),
            unlogged: false,
            was_read: false,
            oldest_log,
            seal_log: FileNo(memtable.seal_log.load(Ordering::Acquire)),
            shards: OnceLock::from(shards),
        })
    }

    /// Notes the figures of the shards, which take no more records.
    pub(crate) fn note_shards(&self, memtable: &Memtable) {
        let info = |shard: &Arc<Shard>| ShardInfo::of(shard);
        self.shards.get_or_init(|| memtable.shards.iter().map(info).collect());
    }

    /// Figures of each shard; none before the memtable is readied.
    pub(crate) fn shards(&self) -> &[ShardInfo] {
        self.shards.get().map_or(&[], |shards| shards)
    }

    /// The oldest log segment that the shards for which `stays` is true pin. Before the memtable is
    /// readied, all of its shards count.
    pub(crate) fn pinned_log(&self, stays: impl Fn(usize) -> bool) -> Option<FileNo> {
        let Some(shards) = self.shards.get() else { return self.oldest_log };
        let staying = shards.iter().enumerate().filter(|(index, _)| stays(*index));
        staying.filter_map(|(_, shard)| shard.oldest_log).min()
    }
}

/// Place of a sealed shard.
#[derive(Clone)]
pub(crate) enum ShardHome {
    /// In the memory of the database.
    Here(Arc<Shard>),
    /// At a memory node.
    Away(Arc<AwayShard>),
}

impl ShardHome {
    /// The shard, if it is in memory.
    #[inline]
    pub(crate) fn here(&self) -> Option<&Arc<Shard>> {
        match self {
            Self::Here(shard) => Some(shard),
            Self::Away(_) => None,
        }
    }

    /// The shard, if it is at a node, whether it has a copy here or not.
    pub(crate) fn away(&self) -> Option<&Arc<AwayShard>> {
        match self {
            Self::Here(_) => None,
            Self::Away(away) => Some(away),
        }
    }

    /// Whether reads of its records may have to ask a node.
    pub(crate) fn is_apart(&self) -> bool {
        self.away().is_some_and(|away| !away.has_copy())
    }

    /// Number of point records.
    pub(crate) fn entries(&self) -> u64 {
        match self {
            Self::Here(shard) => shard.entries(),
            Self::Away(away) => away.figures().entries,
        }
    }

    /// Bytes of the records as stored, tombstones included, wherever they are.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self {
            Self::Here(shard) => shard.data_bytes(),
            Self::Away(away) => away.figures().data_bytes,
        }
    }

    /// Bytes of memory that a flush of the shard frees.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Here(shard) => shard.memory_bytes(),
            Self::Away(away) if away.has_copy() => away.figures().image_bytes,
            Self::Away(_) => 0,
        }
    }

    pub(crate) fn has_tombstones(&self) -> bool {
        match self {
            Self::Here(shard) => shard.has_tombstones(),
            Self::Away(away) => !away.tombstones().is_empty(),
        }
    }

    /// The range tombstones, which are always in memory.
    pub(crate) fn tombstones(&self) -> Arc<TombstoneSet> {
        match self {
            Self::Here(shard) => shard.tombstones(),
            Self::Away(away) => Arc::clone(away.tombstones()),
        }
    }

    /// Whether the shard has a record or a range tombstone.
    pub(crate) fn is_filled(&self) -> bool {
        self.entries() > 0 || self.has_tombstones()
    }
}

/// An immutable memtable as readers see it: the shards whose records are in no table yet.
#[derive(Clone)]
pub(crate) struct Immutable {
    pub(crate) map: Arc<BucketMap>,
    /// Place of each shard. It is `None` once tables that readers use hold the shard's records, or
    /// if the shard was empty.
    pub(crate) homes: Vec<Option<ShardHome>>,
}

impl Immutable {
    pub(crate) fn of(memtable: &Memtable) -> Self {
        let here = memtable.shards.iter().cloned().map(ShardHome::Here);
        Self { map: Arc::clone(&memtable.map), homes: here.map(Some).collect() }
    }

    #[inline]
    pub(crate) fn home_of(&self, key: &[u8]) -> Option<&ShardHome> {
        self.homes[self.map.bucket_of(key)].as_ref()
    }

    /// The places of all shards that readers still find here.
    pub(crate) fn homes(&self) -> impl Iterator<Item = &ShardHome> {
        self.homes.iter().flatten()
    }

    /// Whether any shard is in memory. Copies of away shards do not count.
    pub(crate) fn is_here(&self) -> bool {
        self.homes().any(|home| home.here().is_some())
    }
}
