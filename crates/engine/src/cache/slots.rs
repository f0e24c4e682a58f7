//! Slots for cached blocks, in which a table finds them without a look-up: one per block of an
//! index.
//!
//! An index block in memory owns its slots; the blocks in them belong to the block cache.
//! Invariants:
//! 1. A slot holds only a block that is in the cache. A block is put into a slot, and taken out
//!    when the cache evicts it, under the lock of its [`Home`], which knows whether it is cached.
//! 2. A block is in at most one slot of live tables, the one that its home names.
//!
//! Thread-safety: any thread may call any method. A slot may become empty too early, if two readers
//! cached the same block at the same time. The next reader then finds the block in the cache's map
//! and puts it back.
//! Cost: a hit is one load of the slot and no write to memory that threads share. A slot takes 8
//! bytes. The slots are allocated when the first block is put in, so a job that reads a table past
//! the cache needs none.

use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;

use super::CachedBlock;

/// The slots of one index block.
pub struct Slots<B> {
    count: usize,
    slots: OnceLock<Box<[ArcSwapOption<B>]>>,
}

impl<B> Slots<B> {
    /// `count` empty slots.
    #[must_use]
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { count, slots: OnceLock::new() })
    }

    /// Bytes of memory held once a slot is filled.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.count * size_of::<ArcSwapOption<B>>()
    }

    fn filled(&self) -> &[ArcSwapOption<B>] {
        self.slots.get_or_init(|| (0..self.count).map(|_| ArcSwapOption::empty()).collect())
    }
}

impl<B> std::fmt::Debug for Slots<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slots({})", self.count)
    }
}

/// One slot of an index block, named by its position.
#[derive(Debug)]
pub struct Spot<'a, B> {
    slots: &'a Arc<Slots<B>>,
    position: usize,
}

// The trait is implemented here because a derived implementation would require `B` to be `Copy`.
impl<B> Clone for Spot<'_, B> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Spot<'_, B> {}

impl<'a, B: CachedBlock> Spot<'a, B> {
    /// Slot `position`, which must exist, of `slots`.
    #[inline]
    #[must_use]
    pub fn new(slots: &'a Arc<Slots<B>>, position: usize) -> Self {
        Self { slots, position }
    }

    #[inline]
    pub(super) fn load(self) -> Guard<Option<Arc<B>>> {
        match self.slots.slots.get() {
            Some(slots) => slots[self.position].load(),
            None => Guard::from_inner(None),
        }
    }

    /// Puts a block that was found in the cache into the slot.
    pub(super) fn fill(self, block: &Arc<B>) {
        let mut home = block.home().lock();
        if home.cached {
            home.slots = Arc::downgrade(self.slots);
            home.position = self.position as u32;
            self.slots.filled()[self.position].store(Some(Arc::clone(block)));
        }
    }
}

/// Position of a cached block besides the cache's map: whether it is cached, and its slot.
#[derive(Debug)]
pub struct Home<B> {
    slots: Weak<Slots<B>>,
    position: u32,
    cached: bool,
}

impl<B> Default for Home<B> {
    fn default() -> Self {
        Self { slots: Weak::new(), position: 0, cached: false }
    }
}

impl<B> Home<B> {
    /// Notes that the block is about to enter the cache.
    pub(super) fn enter(home: &Mutex<Self>) {
        home.lock().cached = true;
    }

    /// Notes that the cache evicted the block, and empties its slot.
    pub(super) fn leave(home: &Mutex<Self>) {
        let mut home = home.lock();
        home.cached = false;
        if let Some(slots) = home.slots.upgrade() {
            slots.filled()[home.position as usize].store(None);
        }
    }
}

/// A block for the duration of one operation. If it was in its slot, no reference is counted.
pub enum BlockGuard<B> {
    /// The block was in its slot.
    Held(Guard<Option<Arc<B>>>),
    /// The block came from the cache's map or from the file.
    Shared(Arc<B>),
}

impl<B> BlockGuard<B> {
    /// Returns the block as an `Arc`, to keep it beyond the operation.
    #[must_use]
    pub fn into_arc(self) -> Arc<B> {
        match self {
            Self::Held(guard) => Guard::into_inner(guard).expect("made only of a filled slot"),
            Self::Shared(block) => block,
        }
    }
}

impl<B> Deref for BlockGuard<B> {
    type Target = Arc<B>;

    #[inline]
    fn deref(&self) -> &Arc<B> {
        match self {
            Self::Held(guard) => guard.as_ref().expect("made only of a filled slot"),
            Self::Shared(block) => block,
        }
    }
}
