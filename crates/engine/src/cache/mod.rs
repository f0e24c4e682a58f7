//! The block cache: checked, uncompressed blocks of all open tables, in a bounded number of bytes.
//!
//! The database owns the cache (databases may share one); table readers fill it. It holds data
//! blocks, index and filter partitions of large files, separated values, and pieces of the Flat
//! Index Cache.
//!
//! Invariants:
//! 1. The weights of all cached blocks never exceed the capacity. It is split over shards, each of
//!    which evicts before it admits. A weight is the block's memory with its share of the table.
//! 2. A block that is evicted while a reader pins it stays in memory and in the budget
//!    (`MemoryClass::BlockCache`) until the last pin is released.
//! 3. A block larger than its shard, or a value larger than a quarter of it, is not admitted. Its
//!    reader keeps it, charged to the budget.
//!
//! So pinned blocks exceed the capacity, and the budget counts them.
//!
//! Tables also keep cached blocks in [`Slots`] of their own, where a hit needs no look-up. The
//! cache is notified of such hits once per *epoch*. An epoch ends when a sixteenth of the cache was
//! evicted. That is often enough for the eviction clock, and costs nothing while everything fits.
//!
//! The cache knows of a block only what [`CachedBlock`] says. Tables use it for one type of blocks,
//! [`crate::sst::BlockCache`].
//!
//! Thread-safety: any thread may call any method. A hit by key takes a shard's read lock and clones
//! an `Arc`, without an allocation. Eviction is quick_cache's CLOCK-Pro. Failure: none.

mod meter;
mod slots;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass, Pressure};
use archipelago_base::clock::Clock;
use archipelago_base::metrics::Counters;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

pub(crate) use meter::{BlockReads, CacheMeter, TimedRead};
pub use slots::{BlockGuard, Home, Slots, Spot};

/// Smallest shard in bytes: a smaller cache has fewer shards.
const SHARD_BYTES_MIN: u64 = 512 << 10;
/// Largest number of shards of a cache.
const SHARDS_MAX: u64 = 64;
/// Number of epochs in which the cache evicts as many blocks as it holds.
const EPOCHS_PER_TURN: u64 = 16;
/// A value may fill at most one in this many parts of a shard. A larger value would evict most of
/// the shard for one read.
const VALUES_PER_SHARD_MIN: u64 = 4;
/// Expected weight of a block in bytes, to size the memory of evicted keys.
const BLOCK_BYTES_EXPECTED: u64 = 4 << 10;
/// Divisor of the capacity: under memory pressure the cache may still hold this share of it.
pub(crate) const PRESSED_SHARE: u64 = 16;

/// Purpose of a block in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// A block of records.
    Data,
    /// A partition of an index.
    Index,
    /// A partition of a filter.
    Filter,
    /// A separated value.
    Value,
    /// A piece of the Flat Index Cache: references of up to 64 KiB of a table.
    Flat,
}

impl BlockKind {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 5] = [Self::Data, Self::Index, Self::Filter, Self::Value, Self::Flat];

    /// The kind as reports spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Index => "index",
            Self::Filter => "filter",
            Self::Value => "value",
            Self::Flat => "flat",
        }
    }
}

/// Properties of a block that the cache uses.
pub trait CachedBlock: Send + Sync + Sized + 'static {
    /// What the block is for.
    fn kind(&self) -> BlockKind;
    /// Memory of the block in bytes, with everything around it.
    fn memory_bytes(&self) -> usize;
    /// Stores the block's charge to the budget, which ends when its last holder drops the block.
    fn set_charge(&mut self, charge: Charge);
    /// The slot of the block, if it is in one.
    fn home(&self) -> &Mutex<Home<Self>>;
    /// Epoch of the cache in which the block was last reported as used.
    fn used_in(&self) -> u32;
    /// Notes that the block is reported as used in `epoch`.
    fn use_in(&self, epoch: u32);
}

/// Identity of a block: the file's unique id and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockKey {
    /// Unique id of the file, as two words.
    pub file: [u64; 2],
    /// Offset of the block.
    pub offset: u64,
}

impl BlockKey {
    /// The key of the block at `offset` of the file with this unique id.
    #[must_use]
    pub fn new(unique_id: &[u8; 16], offset: u64) -> Self {
        let id = u128::from_le_bytes(*unique_id);
        Self { file: [id as u64, (id >> 64) as u64], offset }
    }
}

impl Hash for BlockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let place = self.file[0] ^ self.offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = u128::from(place) * 0xd6e8_feb8_6659_fd93;
        state.write_u64((mixed >> 64) as u64 ^ mixed as u64 ^ self.file[1]);
    }
}

/// Passes on the hash that [`BlockKey`] made.
#[derive(Clone, Copy, Debug, Default)]
struct Passing(u64);

impl BuildHasher for Passing {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for Passing {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= archipelago_base::checksum::hash64(bytes);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[derive(Clone, Debug)]
struct ByMemory;

impl<B: CachedBlock> Weighter<BlockKey, Arc<B>> for ByMemory {
    fn weight(&self, _key: &BlockKey, block: &Arc<B>) -> u64 {
        block.memory_bytes() as u64
    }
}

/// Counters of events of the cache, per [`BlockKind`].
type Events = Counters<20>;

#[derive(Clone, Copy)]
enum Event {
    Hit,
    Miss,
    Insert,
    Evict,
}

fn counter(kind: BlockKind, event: Event) -> usize {
    kind as usize * 4 + event as usize
}

/// Receives the blocks that the cache evicts.
#[derive(Clone, Debug)]
struct Evictions {
    events: Arc<Events>,
    evicted: Arc<AtomicU64>,
    meter: Arc<OnceLock<CacheMeter>>,
}

/// Blocks that the cache evicted. Dropping this value empties their slots and drops them.
struct Evicted<B: CachedBlock>(Vec<Arc<B>>);

impl<B: CachedBlock> Drop for Evicted<B> {
    fn drop(&mut self) {
        for block in self.0.drain(..) {
            Home::leave(block.home());
        }
    }
}

impl<B: CachedBlock> Lifecycle<BlockKey, Arc<B>> for Evictions {
    /// The evicted blocks, which are dropped after the shard's lock was released.
    type RequestState = Evicted<B>;

    fn begin_request(&self) -> Self::RequestState {
        Evicted(Vec::new())
    }

    fn on_evict(&self, state: &mut Self::RequestState, key: BlockKey, block: Arc<B>) {
        self.events.add(counter(block.kind(), Event::Evict), 1);
        let number = self.evicted.fetch_add(1, Ordering::Relaxed);
        if let Some(meter) = self.meter.get() {
            meter.note_eviction(&key, number);
        }
        state.0.push(block);
    }
}

/// What happened to blocks of one kind in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found the block.
    pub hits: u64,
    /// Look-ups that did not find the block.
    pub misses: u64,
    /// Blocks that were put into the cache.
    pub inserts: u64,
    /// Blocks evicted by others, or because of a smaller capacity.
    pub evictions: u64,
}

/// The block cache: checked blocks of open tables in a bounded number of bytes.
pub struct BlockCache<B: CachedBlock> {
    cache: Cache<BlockKey, Arc<B>, ByMemory, Passing, Evictions>,
    capacity_bytes: AtomicU64,
    budget: Arc<ByteBudget>,
    events: Arc<Events>,
    /// Blocks evicted so far.
    evicted: Arc<AtomicU64>,
    /// Evictions per epoch, as a power of two.
    epoch_bits: u32,
    /// The kind of blocks that the cache does not keep, if there is one.
    refused: Option<BlockKind>,
    /// Measures reads from storage, once it is turned on.
    meter: Arc<OnceLock<CacheMeter>>,
}

impl<B: CachedBlock> BlockCache<B> {
    /// A cache of at most `capacity_bytes` (0: nothing is kept), charged to `budget`.
    #[must_use]
    pub fn new(capacity_bytes: u64, budget: &Arc<ByteBudget>) -> Arc<Self> {
        Self::refusing(None, capacity_bytes, budget)
    }

    /// A cache that keeps no blocks of the kind `refused`.
    #[must_use]
    pub(crate) fn refusing(
        refused: Option<BlockKind>,
        capacity_bytes: u64,
        budget: &Arc<ByteBudget>,
    ) -> Arc<Self> {
        let events = Arc::new(Events::default());
        let shards = match capacity_bytes {
            0 => SHARDS_MAX / 4,
            bytes => (bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX),
        };
        let shards = if shards.is_power_of_two() { shards } else { shards.next_power_of_two() / 2 };
        let items = (capacity_bytes / BLOCK_BYTES_EXPECTED).max(shards * 32);
        let options = OptionsBuilder::new()
            .shards(shards as usize)
            .estimated_items_capacity(usize::try_from(items).unwrap_or(usize::MAX))
            .weight_capacity(capacity_bytes / shards * shards)
            .build()
            .expect("both capacities are given");
        let evicted = Arc::new(AtomicU64::new(0));
        let meter = Arc::new(OnceLock::new());
        let evictions = Evictions {
            events: Arc::clone(&events),
            evicted: Arc::clone(&evicted),
            meter: Arc::clone(&meter),
        };
        let cache = Cache::with_options(options, ByMemory, Passing::default(), evictions);
        Arc::new(Self {
            cache,
            capacity_bytes: AtomicU64::new(capacity_bytes),
            budget: Arc::clone(budget),
            events,
            evicted,
            epoch_bits: (items / EPOCHS_PER_TURN).max(1).ilog2(),
            refused,
            meter,
        })
    }

    /// Turns the meter of reads from storage on. Later calls do nothing.
    pub(crate) fn measure(&self, clock: &Arc<dyn Clock>) {
        self.meter.get_or_init(|| CacheMeter::new(Arc::clone(clock), self.epoch_bits));
    }

    /// The meter of reads from storage, if it is on.
    #[inline]
    pub(crate) fn meter(&self) -> Option<&CacheMeter> {
        self.meter.get()
    }

    /// Whether the cache keeps blocks of this kind.
    #[inline]
    #[must_use]
    pub(crate) fn keeps(&self, kind: BlockKind) -> bool {
        self.refused != Some(kind)
    }

    /// The block, if it is cached. `kind` is the kind that the caller expects, for the counters.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &BlockKey, kind: BlockKind) -> Option<Arc<B>> {
        let found = self.cache.get(key);
        let event = if found.is_some() { Event::Hit } else { Event::Miss };
        self.events.add(counter(kind, event), 1);
        found
    }

    /// The block, if it is in its slot or cached under its key. In the second case it is put into
    /// its slot. `key` is called only if the slot is empty or the use has to be reported.
    #[inline]
    #[must_use]
    pub fn get_at(
        &self,
        spot: Spot<'_, B>,
        kind: BlockKind,
        key: impl FnOnce() -> BlockKey,
    ) -> Option<BlockGuard<B>> {
        let guard = spot.load();
        let Some(block) = &*guard else {
            drop(guard);
            return self.get_into(spot, &key(), kind);
        };
        let epoch = (self.evicted.load(Ordering::Relaxed) >> self.epoch_bits) as u32;
        if block.used_in() != epoch {
            block.use_in(epoch);
            drop(self.cache.get(&key()));
        }
        self.events.add(counter(kind, Event::Hit), 1);
        Some(BlockGuard::Held(guard))
    }

    #[inline(never)]
    fn get_into(
        &self,
        spot: Spot<'_, B>,
        key: &BlockKey,
        kind: BlockKind,
    ) -> Option<BlockGuard<B>> {
        let block = self.get(key, kind)?;
        spot.fill(&block);
        Some(BlockGuard::Shared(block))
    }

    /// Whether a block is cached. Counts as no use of it.
    #[must_use]
    pub fn contains(&self, key: &BlockKey) -> bool {
        self.cache.contains_key(key)
    }

    /// The block, if it is cached. Counts as no use of it.
    #[must_use]
    pub fn peek(&self, key: &BlockKey) -> Option<Arc<B>> {
        self.cache.peek(key)
    }

    /// Number of blocks evicted so far. While it does not change, the cache has room.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Puts a block into the cache, if it fits. The caller gets the shared block either way.
    pub fn insert(&self, key: BlockKey, mut block: B) -> Arc<B> {
        let bytes = block.memory_bytes() as u64;
        block.set_charge(self.budget.hold(MemoryClass::BlockCache, bytes));
        let largest = match block.kind() {
            BlockKind::Value => self.cache.shard_capacity() / VALUES_PER_SHARD_MIN,
            _ => self.cache.shard_capacity(),
        };
        if bytes > largest {
            return Arc::new(block);
        }
        self.events.add(counter(block.kind(), Event::Insert), 1);
        let block = Arc::new(block);
        Home::enter(block.home());
        self.cache.insert(key, Arc::clone(&block));
        block
    }

    /// Forgets a block, so that the next reader reads it anew.
    pub fn remove(&self, key: &BlockKey) {
        if let Some((_, block)) = self.cache.remove(key) {
            Home::leave(block.home());
        }
    }

    /// Forgets every value of a file that is removed. Costs a walk over the whole cache.
    pub fn remove_values(&self, unique_id: &[u8; 16]) {
        let file = BlockKey::new(unique_id, 0).file;
        // No slot names a value, so it is enough to remove values from the cache's map.
        self.cache.retain(|key, block| key.file != file || block.kind() != BlockKind::Value);
    }

    /// Forgets every block.
    pub fn clear(&self) {
        for (_, block) in self.cache.drain() {
            Home::leave(block.home());
        }
    }

    /// The capacity in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// Changes the capacity to `bytes`; on return at most that is cached.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity_bytes.store(bytes, Ordering::Relaxed);
        self.apply(bytes);
    }

    fn apply(&self, bytes: u64) {
        let shards = self.cache.num_shards() as u64;
        self.cache.set_capacity(bytes / shards * shards);
    }

    /// Under pressure: evicts until at most `bytes` are cached, or a sixteenth of the capacity if
    /// that is more. The capacity comes back with [`BlockCache::set_capacity`] or once the budget
    /// has room again ([`BlockCache::relax`]).
    pub fn shrink_to(&self, bytes: u64) {
        let (capacity, shards) = (self.capacity_bytes(), self.cache.num_shards() as u64);
        // quick_cache scales the number of evicted keys that it remembers by the ratio of the
        // capacities, and rounds down. A number that has become 0 stays 0 at every later capacity.
        let least = (capacity / shards).div_ceil(PRESSED_SHARE) * shards;
        self.apply(bytes.max(least).min(capacity));
    }

    /// Restores the capacity that [`BlockCache::shrink_to`] lowered, if the budget is under no
    /// pressure.
    pub fn relax(&self) {
        if self.budget.pressure() == Pressure::None && self.cache.capacity() < self.capacity_bytes()
        {
            self.apply(self.capacity_bytes());
        }
    }

    /// Bytes cached now, with the memory around the blocks.
    #[must_use]
    pub fn usage_bytes(&self) -> u64 {
        self.cache.weight()
    }

    /// Blocks cached now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether no block is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// What happened to blocks of one kind since the cache was created.
    #[must_use]
    pub fn stats(&self, kind: BlockKind) -> CacheStats {
        let get = |event| self.events.get(counter(kind, event));
        CacheStats {
            hits: get(Event::Hit),
            misses: get(Event::Miss),
            inserts: get(Event::Insert),
            evictions: get(Event::Evict),
        }
    }
}

impl<B: CachedBlock> std::fmt::Debug for BlockCache<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache")
            .field("capacity_bytes", &self.capacity_bytes())
            .field("usage_bytes", &self.usage_bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
