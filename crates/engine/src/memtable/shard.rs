//! A memtable shard: the sorted records of one bucket, during and after the writes.
//!
//! A memtable owns its shards. At first a shard takes inserts and reads in parallel. After
//! [`Shard::seal`] nothing is added. The last `Arc` frees the shard, which returns its slabs to the
//! pool.
//!
//! Invariants:
//! 1. No two records have the same (key, sequence number). The caller guarantees it.
//! 2. A record that [`Shard::insert`] returned from is found by every read that begins after.
//! 3. After the seal the counters, the tombstones and the filter do not change.
//!
//! Thread-safety: any thread may call any method. Reads never wait for a writer, with one
//! exception: the first [`Shard::tombstones`] after a new range tombstone extends the set under a
//! lock.
//! Failure: inserts cannot fail; a process without memory aborts. Source: O³-LSM §4.2.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use archipelago_base::budget::{Charge, MemoryClass};
use archipelago_base::checksum::hash64;
use archipelago_base::{Result, SeqNo};
use crossbeam_utils::Backoff;
use parking_lot::Mutex;

use super::SealedShard;
use super::cursor::ShardIter;
use super::filter::Filter;
use super::kv::{KvBlock, RecordRef};
use super::node::{NO_NODE, snapshot};
use super::search::{Past, Target, partition, partition_full};
use super::slab::SlabPool;
use super::tree::{Tree, View};
use crate::iter::InternalIterator;
use crate::key::{self, Kind};
use crate::lookup::{Found, Lookup, Visit};
use crate::tombstone::{RangeTombstone, TombstoneAccount, TombstoneSet};

/// The records and range tombstones of one bucket in one memtable.
pub struct Shard {
    kv: KvBlock,
    tree: Tree,
    counters: Counters,
    tombstones: Tombstones,
    oldest_log: AtomicU64,
    sealed: AtomicBool,
    filter: OnceLock<Filter>,
}

/// Counters that inserts change under the tree's lock and any thread reads.
struct Counters {
    entries: AtomicU64,
    deletions: AtomicU64,
    data_bytes: AtomicU64,
    smallest_seq: AtomicU64,
    largest_seq: AtomicU64,
}

struct Tombstones {
    /// Number of range tombstones; it is stored after `added` has them.
    count: AtomicUsize,
    /// Bytes of the tombstones' keys and sequence numbers.
    bytes: AtomicU64,
    smallest_seq: AtomicU64,
    largest_seq: AtomicU64,
    /// Tombstones that are not in the set yet.
    added: Mutex<Added>,
    /// The set of the first `.0` tombstones.
    set: ArcSwap<(usize, Arc<TombstoneSet>)>,
}

struct Added {
    list: Vec<RangeTombstone>,
    /// Charge for the memory of the list.
    charge: Charge,
}

impl Tombstones {
    fn new(pool: &SlabPool) -> Self {
        let budget = Arc::clone(pool.budget());
        let charge = budget.hold(MemoryClass::Memtable, 0);
        let account = TombstoneAccount { budget, class: MemoryClass::Memtable };
        Self {
            count: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            smallest_seq: AtomicU64::new(u64::MAX),
            largest_seq: AtomicU64::new(0),
            added: Mutex::new(Added { list: Vec::new(), charge }),
            set: ArcSwap::from_pointee((0, Arc::new(TombstoneSet::charged_to(account)))),
        }
    }
}

/// Adds to a counter without a read-modify-write: callers hold a lock.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Shard {
    /// An empty shard. It takes no memory from the pool before the first insert.
    #[must_use]
    pub fn new(pool: &Arc<SlabPool>) -> Arc<Self> {
        Arc::new(Self {
            kv: KvBlock::new(pool),
            tree: Tree::new(pool),
            counters: Counters {
                entries: AtomicU64::new(0),
                deletions: AtomicU64::new(0),
                data_bytes: AtomicU64::new(0),
                smallest_seq: AtomicU64::new(u64::MAX),
                largest_seq: AtomicU64::new(0),
            },
            tombstones: Tombstones::new(pool),
            oldest_log: AtomicU64::new(u64::MAX),
            sealed: AtomicBool::new(false),
            filter: OnceLock::new(),
        })
    }

    /// Adds a record. Every read that begins after the return sees it. The value is stored as
    /// given.
    ///
    /// The caller guarantees:
    /// - `key` is at most [`key::KEY_BYTES_MAX`] and `value` at most [`key::VALUE_BYTES_MAX`] bytes
    ///   long.
    /// - (`key`, `seq`) is not in the shard yet.
    /// - `kind` is one of a point record.
    /// - The shard is not sealed.
    pub fn insert(&self, key: &[u8], seq: SeqNo, kind: Kind, value: &[u8]) {
        debug_assert!(!self.is_sealed(), "insert into a sealed shard");
        debug_assert!(kind.is_writable() && kind != Kind::RangeDelete);
        let trailer = key::pack(seq, kind);
        let appended = self.kv.append(key, trailer, value);
        self.tree.insert(&Target::new(key, trailer), appended.record, &self.kv, || {
            let counters = &self.counters;
            add(&counters.entries, 1);
            add(&counters.data_bytes, appended.len as u64);
            if kind == Kind::Delete {
                add(&counters.deletions, 1);
            }
            if seq.0 < counters.smallest_seq.load(Ordering::Relaxed) {
                counters.smallest_seq.store(seq.0, Ordering::Relaxed);
            }
            if seq.0 > counters.largest_seq.load(Ordering::Relaxed) {
                counters.largest_seq.store(seq.0, Ordering::Relaxed);
            }
            appended.note_published();
        });
    }

    /// Adds a range tombstone, already clipped to the shard's bucket. Its memory is charged to the
    /// pool's budget.
    pub fn insert_tombstone(&self, tombstone: RangeTombstone) {
        debug_assert!(!self.is_sealed(), "insert into a sealed shard");
        let own = &self.tombstones;
        let bytes = tombstone.start.len() + tombstone.end.len() + size_of::<SeqNo>();
        own.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        own.smallest_seq.fetch_min(tombstone.seq.0, Ordering::Relaxed);
        own.largest_seq.fetch_max(tombstone.seq.0, Ordering::Relaxed);
        let memory = tombstone.memory_bytes();
        let mut added = own.added.lock();
        let charged = added.charge.bytes();
        added.charge.resize(charged + memory);
        added.list.push(tombstone);
        own.count.store(own.count.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// The range tombstones, in any order.
    #[must_use]
    pub fn tombstone_list(&self) -> Vec<RangeTombstone> {
        let added = self.tombstones.added.lock();
        let mut list = self.tombstones.set.load().1.list();
        list.extend_from_slice(&added.list);
        list
    }

    /// Whether there are range tombstones: one atomic load.
    #[inline]
    #[must_use]
    pub fn has_tombstones(&self) -> bool {
        self.tombstones.count.load(Ordering::Acquire) != 0
    }

    /// The range tombstones as a set. The first call after one was added puts the new ones into the
    /// set, under a lock. All such calls together take O(n log n) for `n` tombstones.
    #[must_use]
    pub fn tombstones(&self) -> Arc<TombstoneSet> {
        let set = self.tombstones.set.load();
        if set.0 >= self.tombstones.count.load(Ordering::Acquire) {
            return Arc::clone(&set.1);
        }
        self.extend_set()
    }

    /// The newest range tombstone at or below `snapshot` that covers `key`.
    #[inline]
    #[must_use]
    pub fn newest_tombstone(&self, key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        let count = self.tombstones.count.load(Ordering::Acquire);
        if count == 0 {
            return None;
        }
        let set = self.tombstones.set.load();
        if set.0 >= count {
            return set.1.max_covering(key, snapshot);
        }
        self.extend_set().max_covering(key, snapshot)
    }

    #[cold]
    fn extend_set(&self) -> Arc<TombstoneSet> {
        let mut added = self.tombstones.added.lock();
        let before = self.tombstones.set.load_full();
        if added.list.is_empty() {
            return Arc::clone(&before.1);
        }
        let count = before.0 + added.list.len();
        let set = Arc::new(before.1.with(std::mem::take(&mut added.list)));
        self.tombstones.set.store(Arc::new((count, Arc::clone(&set))));
        added.charge.resize(0);
        set
    }

    /// Shows `visit` the versions of a key that the snapshot sees, newest first, until it breaks.
    /// The caller must check range tombstones itself, whatever the filter says.
    #[inline]
    pub fn lookup(&self, lookup: &Lookup<'_>, mut visit: impl FnMut(&Found<'_>) -> Visit) {
        if !self.may_contain(lookup.hash) {
            return;
        }
        let mut target = Target::new(lookup.key, key::pack(lookup.snapshot, Kind::SEEK));
        let Some(leaf) = self.tree.descend(&target, &self.kv, |_, _, _, _, _| {}) else { return };
        let mut node = self.tree.node(leaf);
        let mut snap = snapshot(node);
        let prefix = self.tree.prefix(node.skip, &target, &self.kv);
        let view = View { node, snap: &snap };
        let found = partition(&view, 0..snap.count(), prefix, &target, Past::Before, &self.kv);
        let mut at = found.expect("records of a live shard always decode");
        loop {
            while at == snap.count() {
                let next = node.next.load(Ordering::Acquire);
                if next == NO_NODE {
                    return;
                }
                node = self.tree.node(next);
                snap = snapshot(node);
                let view = View { node, snap: &snap };
                let range = 0..snap.count();
                let found = partition_full(&view, range, &target, Past::Before, &self.kv);
                at = found.expect("records of a live shard always decode");
            }
            // SAFETY: a record that the index holds.
            let record = unsafe { self.kv.record(node.record(snap.slot(at))) };
            let trailer = key::trailer(record.key);
            if key::user_key(record.key) != lookup.key {
                return;
            }
            let Some(kind) = Kind::from_byte(trailer as u8) else { return };
            let seq = key::trailer_seq(trailer);
            let found = Found { seq, kind, value: record.value, pinner: None };
            if visit(&found).is_break() || trailer == 0 {
                return;
            }
            target.trailer = trailer - 1;
            at += 1;
        }
    }

    /// A cursor over all point records ([`ShardIter`]).
    #[must_use]
    pub fn iter(self: &Arc<Self>) -> ShardIter {
        ShardIter::new(Arc::clone(self), false)
    }

    /// Number of point records.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.counters.entries.load(Ordering::Relaxed)
    }

    /// Number of point records that are deletes.
    #[must_use]
    pub fn deletions(&self) -> u64 {
        self.counters.deletions.load(Ordering::Relaxed)
    }

    /// Number of range tombstones that were added.
    #[must_use]
    pub fn tombstone_count(&self) -> usize {
        self.tombstones.count.load(Ordering::Acquire)
    }

    /// Whether the shard holds neither a record nor a range tombstone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries() == 0 && !self.has_tombstones()
    }

    /// Bytes of records as stored (without padding), and of range tombstones.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.counters.data_bytes.load(Ordering::Relaxed)
            + self.tombstones.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory in use: slabs of records and index, range tombstones and the filter.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.kv.bytes()
            + self.tree.bytes()
            + self.tombstones.added.lock().charge.bytes()
            + self.tombstones.set.load().1.memory_bytes()
            + self.filter.get().map_or(0, |filter| filter.bytes() as u64)
    }

    /// Smallest sequence number; [`SeqNo::MAX`] for an empty shard.
    #[must_use]
    pub fn smallest_seq(&self) -> SeqNo {
        let point = self.counters.smallest_seq.load(Ordering::Relaxed);
        let ranges = self.tombstones.smallest_seq.load(Ordering::Relaxed);
        SeqNo(point.min(ranges).min(SeqNo::MAX.0))
    }

    /// Largest sequence number; [`SeqNo::ZERO`] for an empty shard.
    #[must_use]
    pub fn largest_seq(&self) -> SeqNo {
        let point = self.counters.largest_seq.load(Ordering::Relaxed);
        let ranges = self.tombstones.largest_seq.load(Ordering::Relaxed);
        SeqNo(point.max(ranges))
    }

    /// Notes that a record of this shard lies in log segment `log`.
    #[inline]
    pub fn note_log(&self, log: u64) {
        if log < self.oldest_log.load(Ordering::Relaxed) {
            self.oldest_log.fetch_min(log, Ordering::Relaxed);
        }
    }

    /// The oldest log segment that was noted: it must be kept until this shard is flushed.
    #[must_use]
    pub fn oldest_log(&self) -> Option<u64> {
        let log = self.oldest_log.load(Ordering::Relaxed);
        (log != u64::MAX).then_some(log)
    }

    /// Makes the shard immutable and builds its filter. Waits for inserts that are in flight; none
    /// may begin afterwards. Reads go on meanwhile. A second call does nothing.
    ///
    /// Costs a walk over all keys (about 40 ns for each): call it off the write path. Reads are
    /// correct without it, only slower.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
        let backoff = Backoff::new();
        while !self.kv.is_published() {
            backoff.snooze();
        }
        self.filter.get_or_init(|| self.build_filter());
    }

    /// The bytes of complete slabs of records, from the slab with the number `from` up to the first
    /// one that is not complete. They do not change any more, also while inserts go on. The records
    /// of the shard's image begin with slab 0 and have the slabs in this order
    /// ([`ImageHead::records_at`](super::ImageHead::records_at)). Costs a short lock.
    #[must_use]
    pub fn complete_slabs(&self, from: usize) -> Vec<&[u8]> {
        self.kv.complete(from)
    }

    /// Whether [`Shard::seal`] was called.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    fn build_filter(&self) -> Filter {
        let mut filter = Filter::new(self.entries());
        let mut last: &[u8] = &[];
        let mut first = true;
        self.each_record(|record| {
            // SAFETY: a record that the index holds.
            let user_key = unsafe { key::user_key(self.kv.key(record)) };
            if first || user_key != last {
                filter.insert(hash64(user_key));
                (first, last) = (false, user_key);
            }
        });
        filter
    }

    /// Whether a key with this hash may be in the shard; always `true` before the seal. Range
    /// tombstones are not included.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.filter.get().is_none_or(|filter| filter.may_contain(hash))
    }

    /// Visits the reference of every record in order.
    pub(super) fn each_record(&self, mut visit: impl FnMut(RecordRef)) {
        self.each_leaf(|count, record| {
            // SAFETY: records that the index holds.
            (0..count).for_each(|at| unsafe { self.kv.prefetch(record(at)) });
            (0..count).for_each(|at| visit(record(at)));
        });
    }

    /// Visits every leaf in order, with its number of entries and a function from position to
    /// reference.
    fn each_leaf(&self, mut visit: impl FnMut(usize, &dyn Fn(usize) -> RecordRef)) {
        let first = Target::new(&[], u64::MAX);
        let mut leaf = self.tree.descend(&first, &self.kv, |_, _, _, _, _| {}).unwrap_or(NO_NODE);
        while leaf != NO_NODE {
            let node = self.tree.node(leaf);
            let snap = snapshot(node);
            visit(snap.count(), &|at| node.record(snap.slot(at)));
            leaf = node.next.load(Ordering::Acquire);
        }
    }

    /// At most `parts - 1` user keys, strictly ascending, that cut the entries into `parts` nearly
    /// equal parts. There are fewer if many entries share a key. No part is empty. Cost: a read of
    /// every leaf's header and of one record for each cut.
    #[must_use]
    pub fn split_keys(&self, parts: usize) -> Vec<Vec<u8>> {
        let total = self.entries() as usize;
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut first: Option<RecordRef> = None;
        let (mut seen, mut part) = (0, 1);
        self.each_leaf(|count, record| {
            let first = *first.get_or_insert_with(|| record(0));
            while part < parts && part * total / parts < seen + count {
                let cut = record(part * total / parts - seen);
                // SAFETY: both are records that the index holds.
                let (cut, first) = unsafe { (self.kv.key(cut), self.kv.key(first)) };
                let (cut, first) = (key::user_key(cut), key::user_key(first));
                if cut > first && keys.last().is_none_or(|last| last.as_slice() < cut) {
                    keys.push(cut.to_vec());
                }
                part += 1;
            }
            seen += count;
        });
        keys
    }

    /// At most `count` user keys in order, each in the middle of an equal part of the entries. A
    /// key with many entries comes more than once. The cost is that of [`Self::split_keys`].
    #[must_use]
    pub fn sample_keys(&self, count: usize) -> Vec<Vec<u8>> {
        let total = self.entries() as usize;
        let count = count.min(total);
        let mut keys = Vec::with_capacity(count);
        let mut seen = 0;
        self.each_leaf(|entries, record| {
            while keys.len() < count {
                let at = (2 * keys.len() + 1) * total / (2 * count);
                if at >= seen + entries {
                    break;
                }
                // SAFETY: a record that the index holds.
                let key = unsafe { self.kv.key(record(at - seen)) };
                keys.push(key::user_key(key).to_vec());
            }
            seen += entries;
        });
        keys
    }

    /// The user key that halves the entries; `None` if all share one key.
    #[must_use]
    pub fn median_key(&self) -> Option<Vec<u8>> {
        self.split_keys(2).pop()
    }

    #[inline(always)]
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    #[inline(always)]
    pub(super) fn kv(&self) -> &KvBlock {
        &self.kv
    }

    /// The filter over the keys of the point records; `None` before the seal.
    #[must_use]
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.get()
    }
}

impl SealedShard for Shard {
    fn verified_iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
        Box::new(ShardIter::new(self, true))
    }
    fn tombstone_list(&self) -> Vec<RangeTombstone> {
        Self::tombstone_list(self)
    }
    fn entries(&self) -> u64 {
        Self::entries(self)
    }
    fn data_bytes(&self) -> u64 {
        Self::data_bytes(self)
    }
    fn write_image(&self, out: &mut Vec<u8>) -> Result<()> {
        Self::write_image(self, out)
    }
    fn seq_range(&self) -> (SeqNo, SeqNo) {
        (self.smallest_seq(), self.largest_seq())
    }
}
