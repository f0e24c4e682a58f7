//! Cached blocks where a table finds them without a look-up: one slot per block of an index.
//!
//! Owned by an index block in memory; the blocks in them belong to the block cache. Invariants:
//! 1. a slot holds only a block that is in the cache: a block is put into a slot, and taken out
//!    when the cache lets it go, under the lock of its [`Home`], which knows whether it is cached;
//! 2. a block is in at most one slot of live tables, the one its home names.
//!
//! Thread-safe. A slot may become empty too early (two readers cached the same block at once): the
//! next reader then finds the block in the cache's map and puts it back. Cost: a hit is one load of
//! the slot and no write to memory that threads share; 8 bytes per block, made when the first block
//! is put in: a job that reads a table past the cache needs none.

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

    /// Bytes of memory held once one is filled.
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

/// One slot of a table, named by its position.
#[derive(Debug)]
pub struct Spot<'a, B> {
    slots: &'a Arc<Slots<B>>,
    position: usize,
}

// Written out because a derived implementation would ask the block to be `Copy` as well.
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

    /// Puts a block in that was found in the cache.
    pub(super) fn fill(self, block: &Arc<B>) {
        let mut home = block.home().lock();
        if home.cached {
            home.slots = Arc::downgrade(self.slots);
            home.position = self.position as u32;
            self.slots.filled()[self.position].store(Some(Arc::clone(block)));
        }
    }
}

/// Where a cached block lies besides the cache's map.
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

    /// The cache let the block go: empties its slot.
    pub(super) fn leave(home: &Mutex<Self>) {
        let mut home = home.lock();
        home.cached = false;
        if let Some(slots) = home.slots.upgrade() {
            slots.filled()[home.position as usize].store(None);
        }
    }
}

/// A block for the duration of one operation, without counting references where possible.
pub enum BlockGuard<B> {
    /// It was in its slot.
    Held(Guard<Option<Arc<B>>>),
    /// It came from elsewhere.
    Shared(Arc<B>),
}

impl<B> BlockGuard<B> {
    /// The block to keep.
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
