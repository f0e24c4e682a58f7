//! Slabs: the memory of memtable shards, which one pool per database provides.
//!
//! The database owns the [`SlabPool`]. Every shard owns the slabs of its two [`SlabTable`]s
//! (records, index nodes) and returns them when it is dropped.
//!
//! Invariants:
//! 1. The length of a slab is a power of two of [`SLAB_BYTES_MIN`]..=[`SLAB_BYTES_MAX`] bytes. A
//!    slab for one large record is longer. Its address never changes while the shard lives (never a
//!    realloc).
//! 2. A slab's number in its table never changes. When a table's array of addresses is too short, a
//!    longer copy replaces it. The old array is kept until the table is dropped, so that a reader
//!    may use either.
//! 3. The pool has charged the budget ([`MemoryClass::Memtable`]) for every byte that is in a shard
//!    or kept for reuse. Slabs of at least [`UNIT_BYTES`] that records share lie in
//!    [`regions`](super::regions) of 2 MiB, which are charged as a whole. A small process has no
//!    regions, because 2 MiB are much of its budget and it has no huge pages.
//!
//! Thread-safety: any thread may use the pool and [`SlabTable::base`]; slabs are added to a table
//! under its lock.
//! Failure: when the system has no memory left, the process aborts, as with any allocation in Rust.
//! Cost: taking a kept slab is one short lock. Its pages stay faulted in, which doubles the speed
//! of inserts against fresh memory.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use archipelago_base::budget::{ByteBudget, MemoryClass, Pressure};
use archipelago_env::huge::{HUGE_BYTES, HugeRegion};
use parking_lot::Mutex;

use super::regions::{Regions, UNIT_BYTES};

/// Smallest slab in bytes. An almost empty shard takes one for its index and one for its records.
pub const SLAB_BYTES_MIN: usize = 4 << 10;
/// Largest slab in bytes that several records share.
pub const SLAB_BYTES_MAX: usize = 1 << 20;

/// The last slab of a shard, which may be unused, is at most one part in this many of the others.
const UNUSED_SHARE: u64 = 4;
/// Number of slab sizes that the pool keeps.
const CLASSES: usize = (SLAB_BYTES_MAX / SLAB_BYTES_MIN).trailing_zeros() as usize + 1;
/// Alignment of slabs in bytes. Slabs start on a page of their own, so that no cache line spans two
/// slabs.
const ALIGN_BYTES: usize = 4096;
/// Default limit in bytes on the free memory that a pool keeps.
const KEEP_BYTES_DEFAULT: u64 = 64 << 20;

/// One piece of memory, which [`SlabPool::give`] frees or keeps.
#[derive(Debug)]
pub(super) struct Slab {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a slab is plain memory without an owner thread; who may touch which part of it is
// settled by the record arena and the index.
unsafe impl Send for Slab {}
// SAFETY: a shared slab gives only its address and its size.
unsafe impl Sync for Slab {}

impl Slab {
    /// Address of the slab's first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length of the slab in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Makes slabs, keeps the freed ones for the next shard, and charges the budget for both.
///
/// Kept memory is at most the limit set by [`SlabPool::set_keep_bytes`] (default 64 MiB), and
/// nothing is kept while the budget is under pressure. The free parts of a region with a slab in
/// use are kept in any case.
pub struct SlabPool {
    budget: Arc<ByteBudget>,
    /// Free slabs that lie in no region, by size.
    free: [Mutex<Vec<Slab>>; CLASSES],
    /// Bytes of the free slabs that lie in no region.
    single_bytes: AtomicU64,
    /// Regions of the large slabs, or `None` if the pool has none.
    regions: Option<Mutex<Regions>>,
    keep_bytes: AtomicU64,
}

impl SlabPool {
    /// An empty pool that charges `budget`.
    #[must_use]
    pub fn new(budget: Arc<ByteBudget>) -> Arc<Self> {
        // Miri finds accesses beyond a slab if each slab is an allocation of its own.
        let has_regions = !budget.is_small() && !cfg!(miri);
        Arc::new(Self {
            budget,
            free: Default::default(),
            single_bytes: AtomicU64::new(0),
            regions: has_regions.then(Mutex::default),
            keep_bytes: AtomicU64::new(KEEP_BYTES_DEFAULT),
        })
    }

    /// The budget that the pool charges.
    pub(super) fn budget(&self) -> &Arc<ByteBudget> {
        &self.budget
    }

    /// Sets the limit in bytes on freed slabs that are kept for reuse. A good value is the size of
    /// one memtable.
    pub fn set_keep_bytes(&self, bytes: u64) {
        self.keep_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that [`SlabPool::trim`] would free now.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let empty = self.regions.as_ref().map_or(0, |regions| regions.lock().empty_bytes());
        self.single_bytes.load(Ordering::Relaxed) + empty
    }

    /// Frees the memory that is kept for reuse, except in regions with a slab in use.
    pub fn trim(&self) {
        for class in &self.free {
            for slab in std::mem::take(&mut *class.lock()) {
                self.single_bytes.fetch_sub(slab.bytes as u64, Ordering::Relaxed);
                self.free_slab(&slab);
            }
        }
        if let Some(regions) = &self.regions {
            let surplus = regions.lock().trim(0);
            self.free_regions(surplus);
        }
    }

    /// A slab of at least `bytes` bytes. The size is rounded up to a power of two up to
    /// [`SLAB_BYTES_MAX`], and to whole pages above. The content is undefined.
    pub(super) fn take(&self, bytes: usize) -> Slab {
        if bytes > SLAB_BYTES_MAX {
            return self.allocate(bytes.next_multiple_of(ALIGN_BYTES));
        }
        let bytes = bytes.max(SLAB_BYTES_MIN).next_power_of_two();
        if let Some(regions) = self.regions_of(bytes) {
            return Slab { base: self.take_of(regions, bytes), bytes };
        }
        if let Some(slab) = self.free[class_of(bytes)].lock().pop() {
            self.single_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
            return slab;
        }
        self.allocate(bytes)
    }

    /// The regions, if slabs of `bytes` lie in them.
    fn regions_of(&self, bytes: usize) -> Option<&Mutex<Regions>> {
        let regions = self.regions.as_ref()?;
        (UNIT_BYTES..=SLAB_BYTES_MAX).contains(&bytes).then_some(regions)
    }

    fn take_of(&self, regions: &Mutex<Regions>, bytes: usize) -> NonNull<u8> {
        loop {
            if let Some(base) = regions.lock().take(bytes) {
                return base;
            }
            let Ok(region) = HugeRegion::map() else { handle_alloc_error(layout(HUGE_BYTES)) };
            self.budget.charge(MemoryClass::Memtable, HUGE_BYTES as u64);
            regions.lock().add(region);
        }
    }

    /// Takes a slab back. Nothing may access its memory any more.
    pub(super) fn give(&self, slab: Slab) {
        let keep = match self.budget.pressure() {
            Pressure::None => self.keep_bytes.load(Ordering::Relaxed),
            _ => 0,
        };
        let single = self.single_bytes.load(Ordering::Relaxed);
        if let Some(regions) = self.regions_of(slab.bytes) {
            let surplus = regions.lock().give(slab.base, slab.bytes, keep.saturating_sub(single));
            return self.free_regions(surplus);
        }
        let bytes = slab.bytes as u64;
        let in_regions = self.regions.as_ref().map_or(0, |regions| regions.lock().free_bytes());
        if slab.bytes <= SLAB_BYTES_MAX && single + in_regions + bytes <= keep {
            self.single_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.free[class_of(slab.bytes)].lock().push(slab);
        } else {
            self.free_slab(&slab);
        }
    }

    fn allocate(&self, bytes: usize) -> Slab {
        let layout = layout(bytes);
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        self.budget.charge(MemoryClass::Memtable, bytes as u64);
        Slab { base, bytes }
    }

    fn free_regions(&self, regions: Vec<HugeRegion>) {
        let bytes = (regions.len() * HUGE_BYTES) as u64;
        drop(regions);
        self.budget.release(MemoryClass::Memtable, bytes);
    }

    /// Frees a slab that lies in no region.
    fn free_slab(&self, slab: &Slab) {
        self.budget.release(MemoryClass::Memtable, slab.bytes as u64);
        // SAFETY: `allocate` made it with this layout, and the caller gives it up.
        unsafe { dealloc(slab.base.as_ptr(), layout(slab.bytes)) };
    }
}

impl Drop for SlabPool {
    fn drop(&mut self) {
        self.trim();
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGN_BYTES).expect("slab sizes stay far under isize::MAX")
}

fn class_of(bytes: usize) -> usize {
    (bytes / SLAB_BYTES_MIN).trailing_zeros() as usize
}

/// The slabs of one purpose (records or nodes) of one shard, by number.
pub(super) struct SlabTable {
    pool: Arc<SlabPool>,
    array: AtomicPtr<AtomicPtr<u8>>,
    bytes: AtomicU64,
    grow: Mutex<Grow>,
}

/// State that only a thread that adds a slab accesses.
struct Grow {
    slabs: Vec<Slab>,
    /// The arrays, each twice as long as the one before; the last is current.
    arrays: Vec<*mut [AtomicPtr<u8>]>,
}

// SAFETY: the arrays are owned by the table and freed only by its drop.
unsafe impl Send for Grow {}

impl SlabTable {
    pub(super) fn new(pool: &Arc<SlabPool>) -> Self {
        Self {
            pool: Arc::clone(pool),
            array: AtomicPtr::new(std::ptr::null_mut()),
            bytes: AtomicU64::new(0),
            grow: Mutex::new(Grow { slabs: Vec::new(), arrays: Vec::new() }),
        }
    }

    /// Bytes of memory taken from the pool.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Size in bytes of the next slab that records or nodes share. It is at most a quarter of the
    /// table's slabs, so that little of a shard is unused. A shard with few records takes few
    /// bytes.
    pub(super) fn next_bytes(&self) -> usize {
        let part = (self.bytes() / UNUSED_SHARE).max(1);
        (1 << part.ilog2()).clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX)
    }

    /// Adds a slab of at least `bytes`. Returns its number, address and size. Panics if there would
    /// be more than `count_max` slabs, because references could not name it.
    pub(super) fn add(&self, bytes: usize, count_max: usize) -> (usize, NonNull<u8>, usize) {
        let slab = self.pool.take(bytes);
        let (base, bytes) = (slab.base(), slab.bytes());
        let mut grow = self.grow.lock();
        let number = grow.slabs.len();
        assert!(number < count_max, "memtable shard over {count_max} slabs: seal it earlier");
        grow.slabs.push(slab);
        if grow.arrays.last().is_none_or(|array| array.len() == number) {
            self.lengthen(&mut grow);
        }
        let array = *grow.arrays.last().expect("just made sure that there is one");
        // SAFETY: the table owns the array until its drop; `number` is below its length.
        unsafe { (&(*array))[number].store(base.as_ptr(), Ordering::Release) };
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        (number, base, bytes)
    }

    fn lengthen(&self, grow: &mut Grow) {
        let len = (grow.slabs.len() * 2).max(8);
        let array: Box<[AtomicPtr<u8>]> = (0..len)
            .map(|at| {
                let base = grow.slabs.get(at).map_or(std::ptr::null_mut(), |s| s.base().as_ptr());
                AtomicPtr::new(base)
            })
            .collect();
        let array = Box::into_raw(array);
        grow.arrays.push(array);
        self.array.store(array.cast(), Ordering::Release);
    }

    /// Address of the first byte of slab `number`.
    ///
    /// # Safety
    /// The number must come from [`SlabTable::add`], and that call must happen before this one:
    /// the number was read from a reference that was published (Release) after it.
    #[inline(always)]
    pub(super) unsafe fn base(&self, number: usize) -> *mut u8 {
        let array = self.array.load(Ordering::Acquire);
        // SAFETY: `add` put the slab into this array or an earlier one, and every array holds
        // what the earlier ones held; arrays live as long as the table.
        unsafe { (*array.add(number)).load(Ordering::Relaxed) }
    }
}

impl Drop for SlabTable {
    fn drop(&mut self) {
        let grow = self.grow.get_mut();
        for slab in grow.slabs.drain(..) {
            self.pool.give(slab);
        }
        for array in grow.arrays.drain(..) {
            // SAFETY: `lengthen` leaked this box; nobody reads the table any more.
            drop(unsafe { Box::from_raw(array) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_slabs_are_used_again_and_the_budget_knows() {
        let budget = ByteBudget::unlimited();
        let pool = SlabPool::new(Arc::clone(&budget));
        let table = SlabTable::new(&pool);
        for number in 0..40 {
            let (at, base, bytes) = table.add(1 << 20, 100);
            assert_eq!((at, bytes), (number, 1 << 20));
            // SAFETY: just added.
            assert_eq!(unsafe { table.base(at) }, base.as_ptr());
        }
        let used = || budget.used_bytes(MemoryClass::Memtable);
        assert_eq!((table.bytes(), used()), (40 << 20, 40 << 20));
        drop(table);
        assert_eq!(pool.free_bytes(), 40 << 20);
        let again = pool.take(600 << 10);
        assert_eq!(used(), 40 << 20, "no new memory");
        pool.set_keep_bytes(0);
        pool.give(again);
        let kept = if cfg!(miri) { 39 << 20 } else { 0 };
        assert_eq!(used(), kept, "all regions are empty, and none is kept");
        pool.trim();
        assert_eq!((used(), pool.free_bytes()), (0, 0));
    }

    #[test]
    fn limit_of_kept_memory_holds_for_all_slabs_together() {
        let budget = ByteBudget::unlimited();
        let pool = SlabPool::new(Arc::clone(&budget));
        pool.set_keep_bytes(HUGE_BYTES as u64);
        let large = [(); 2].map(|()| pool.take(SLAB_BYTES_MAX));
        let small = [(); 2].map(|()| pool.take(SLAB_BYTES_MIN));
        large.into_iter().for_each(|slab| pool.give(slab));
        assert_eq!(pool.free_bytes(), HUGE_BYTES as u64);
        small.into_iter().for_each(|slab| pool.give(slab));
        assert_eq!(pool.free_bytes(), HUGE_BYTES as u64, "the small ones are freed");
        assert_eq!(budget.used_bytes(MemoryClass::Memtable), HUGE_BYTES as u64);
    }

    #[test]
    #[cfg_attr(miri, ignore = "there are no regions under Miri")]
    fn memory_of_a_region_with_a_slab_in_use_is_charged_and_not_free() {
        let budget = ByteBudget::unlimited();
        let pool = SlabPool::new(Arc::clone(&budget));
        let used = || budget.used_bytes(MemoryClass::Memtable);
        let (small, large) = (pool.take(UNIT_BYTES), pool.take(SLAB_BYTES_MAX));
        assert_eq!((used(), pool.free_bytes()), (HUGE_BYTES as u64, 0));
        pool.give(large);
        pool.trim();
        assert_eq!((used(), pool.free_bytes()), (HUGE_BYTES as u64, 0), "the small one is in use");
        pool.give(small);
        assert_eq!((used(), pool.free_bytes()), (HUGE_BYTES as u64, HUGE_BYTES as u64), "kept");
        pool.trim();
        assert_eq!((used(), pool.free_bytes()), (0, 0));
    }

    #[test]
    fn small_process_has_no_regions() {
        let budget = ByteBudget::new(64 << 20);
        let pool = SlabPool::new(Arc::clone(&budget));
        let slab = pool.take(UNIT_BYTES);
        assert_eq!(budget.used_bytes(MemoryClass::Memtable), UNIT_BYTES as u64);
        pool.give(slab);
        assert_eq!(pool.free_bytes(), UNIT_BYTES as u64);
        pool.trim();
        assert_eq!((budget.total_bytes(), pool.free_bytes()), (0, 0));
    }

    #[test]
    fn slabs_grow_with_their_table() {
        let pool = SlabPool::new(ByteBudget::unlimited());
        let table = SlabTable::new(&pool);
        assert_eq!(table.next_bytes(), SLAB_BYTES_MIN);
        while table.bytes() < 8 << 20 {
            let (before, next) = (table.bytes(), table.next_bytes());
            assert!(next == SLAB_BYTES_MIN || next as u64 * UNUSED_SHARE <= before);
            table.add(next, 1000);
        }
        assert_eq!(table.next_bytes(), SLAB_BYTES_MAX);
    }

    #[test]
    fn a_pool_under_pressure_keeps_nothing() {
        let budget = ByteBudget::new(100);
        let pool = SlabPool::new(Arc::clone(&budget));
        let huge = pool.take(SLAB_BYTES_MAX + 1);
        assert_eq!(huge.bytes() % ALIGN_BYTES, 0);
        pool.give(huge);
        let slab = pool.take(1);
        pool.give(slab);
        assert_eq!(budget.total_bytes(), 0);
    }
}
