//! Nodes of the index: 62 slots that are filled once, and an order over them that is published
//! through two buffers and a version word.
//!
//! Invariants:
//! 1. Slots below the published count never change, except an inner slot's child. So a reader that
//!    has copied a valid order may read the slots at any later time.
//! 2. The word is `version << 8 | count`; buffer `version & 1` holds the order. A writer fills the
//!    other buffer and then stores the next word (Release).
//! 3. A buffer of version `v` is overwritten only after version `v + 1` was published. A reader
//!    must find exactly `v` when it reads the word again. The writer executes a Release fence
//!    before the overwrite, and the reader an Acquire fence before its second read of the word. So
//!    a reader that saw a byte of `v + 2` does not find `v` again.
//! 4. A child is replaced (Release) only after the separator of its new right sibling was
//!    published. A reader that loads a child (Acquire) reads the word again. If the word has
//!    changed, the child may be narrower than the order that the reader used.
//!
//! Thread-safety: any number of readers, one writer at a time. Readers take no lock; they copy the
//! order again while writers publish faster than they read. The protocol ([`publish`],
//! [`snapshot`]) is generic over its cells, so that a model checker runs the same code.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use archipelago_base::prefetch::prefetch;

use super::kv::RecordRef;

/// Number of slots of a node.
pub(super) const SLOTS: usize = 62;
/// Number of words of one order buffer: a byte for each slot, two bytes unused.
pub(super) const ORDER_WORDS: usize = 8;
/// Value of a reference that names no node.
pub(super) const NO_NODE: u32 = u32::MAX;

/// Bytes at a node's start that a search reads.
const SEARCHED_BYTES: usize = std::mem::offset_of!(Node, records);

/// An order over slots: `order[position]` is a slot.
pub(super) type Order = [u8; ORDER_WORDS * 8];

/// The memory on which [`publish`] and [`snapshot`] work.
pub(super) trait Cells {
    /// The version word.
    fn word(&self, ordering: Ordering) -> u64;
    /// Stores the version word (Release).
    fn set_word(&self, word: u64);
    /// A word of a buffer (Relaxed).
    fn order(&self, buffer: usize, at: usize) -> u64;
    /// Stores a word of a buffer (Relaxed).
    fn set_order(&self, buffer: usize, at: usize, word: u64);
    /// Executes a memory fence with `ordering`.
    fn fence(&self, ordering: Ordering);
}

/// The order of a node, as one version published it.
#[derive(Clone, Copy)]
pub(super) struct Snapshot {
    /// The version word.
    pub(super) word: u64,
    /// Slots in key order; meaningful below [`Snapshot::count`].
    pub(super) order: Order,
}

impl Snapshot {
    /// An order over nothing.
    pub(super) const EMPTY: Self = Self { word: 0, order: [0; ORDER_WORDS * 8] };

    /// Number of slots in the order.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        (self.word & 0xff) as usize
    }

    /// The slot at a position of the order.
    #[inline(always)]
    pub(super) fn slot(&self, position: usize) -> usize {
        usize::from(self.order[position])
    }
}

/// Copies the current order. Repeats the copy if the order changes meanwhile.
#[inline(always)]
pub(super) fn snapshot(cells: &impl Cells) -> Snapshot {
    loop {
        let word = cells.word(Ordering::Acquire);
        let buffer = (word >> 8 & 1) as usize;
        let mut order: Order = [0; ORDER_WORDS * 8];
        for (at, bytes) in order.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&cells.order(buffer, at).to_ne_bytes());
        }
        cells.fence(Ordering::Acquire);
        if cells.word(Ordering::Relaxed) == word {
            return Snapshot { word, order };
        }
        std::hint::spin_loop();
    }
}

/// Publishes an order over `count` slots, which must be filled. One caller at a time.
#[inline(always)]
pub(super) fn publish(cells: &impl Cells, order: &Order, count: usize) {
    let version = (cells.word(Ordering::Relaxed) >> 8) + 1;
    cells.fence(Ordering::Release);
    for (at, bytes) in order.chunks_exact(8).enumerate() {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        cells.set_order((version & 1) as usize, at, u64::from_ne_bytes(word));
    }
    cells.set_word(version << 8 | count as u64);
}

/// A node: a leaf, or the first part of an [`InnerNode`].
#[repr(C, align(64))]
pub(super) struct Node {
    word: AtomicU64,
    /// The next leaf, or [`NO_NODE`]; unused in inner nodes.
    pub(super) next: AtomicU32,
    /// The previous leaf, or [`NO_NODE`]; unused in inner nodes.
    pub(super) prev: AtomicU32,
    /// How keys become prefixes in this node ([`super::search::Target::prefix`]).
    pub(super) skip: u32,
    orders: [[AtomicU64; ORDER_WORDS]; 2],
    prefixes: [AtomicU64; SLOTS],
    records: [AtomicU32; SLOTS],
}

/// An inner node. Slot `i` leads to the keys from its record's key (inclusive) up to the next one
/// in order. The first slot in order has no lower bound, and its record is not read.
#[repr(C, align(64))]
pub(super) struct InnerNode {
    /// The separators, as the records of a node.
    pub(super) node: Node,
    children: [AtomicU32; SLOTS],
}

impl Cells for Node {
    #[inline(always)]
    fn word(&self, ordering: Ordering) -> u64 {
        self.word.load(ordering)
    }
    #[inline(always)]
    fn set_word(&self, word: u64) {
        self.word.store(word, Ordering::Release);
    }
    #[inline(always)]
    fn order(&self, buffer: usize, at: usize) -> u64 {
        self.orders[buffer][at].load(Ordering::Relaxed)
    }
    #[inline(always)]
    fn set_order(&self, buffer: usize, at: usize, word: u64) {
        self.orders[buffer][at].store(word, Ordering::Relaxed);
    }
    #[inline(always)]
    fn fence(&self, ordering: Ordering) {
        fence(ordering);
    }
}

impl Node {
    /// An empty node.
    pub(super) fn new(skip: u32) -> Self {
        Self {
            word: AtomicU64::new(0),
            next: AtomicU32::new(NO_NODE),
            prev: AtomicU32::new(NO_NODE),
            skip,
            orders: Default::default(),
            prefixes: [const { AtomicU64::new(0) }; SLOTS],
            records: [const { AtomicU32::new(0) }; SLOTS],
        }
    }

    /// Prefetches the cache lines that a search reads: header, orders and prefixes.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch(std::ptr::from_ref(self).cast(), SEARCHED_BYTES);
    }

    /// The prefix in a slot.
    #[inline(always)]
    pub(super) fn prefix(&self, slot: usize) -> u64 {
        self.prefixes[slot].load(Ordering::Relaxed)
    }

    /// The record in a slot.
    #[inline(always)]
    pub(super) fn record(&self, slot: usize) -> RecordRef {
        self.records[slot].load(Ordering::Relaxed)
    }

    /// The version word, for a comparison.
    #[inline(always)]
    pub(super) fn current_word(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// Fills the next free slot without publishing it. Writer only.
    #[inline(always)]
    fn fill(&self, slot: usize, prefix: u64, record: RecordRef) {
        self.prefixes[slot].store(prefix, Ordering::Relaxed);
        self.records[slot].store(record, Ordering::Relaxed);
    }

    /// Puts an entry at a position of the current order. Writer only; the node must not be full.
    #[inline]
    pub(super) fn insert(&self, at: usize, snap: &Snapshot, prefix: u64, record: RecordRef) {
        let count = snap.count();
        debug_assert!(count < SLOTS && at <= count && snap.word == self.current_word());
        self.fill(count, prefix, record);
        let mut order = snap.order;
        order.copy_within(at..count, at + 1);
        order[at] = count as u8;
        publish(self, &order, count + 1);
    }

    /// Fills a node that no reader knows yet with entries in order.
    pub(super) fn build(&self, entries: impl Iterator<Item = (u64, RecordRef)>) {
        let mut count = 0;
        for (prefix, record) in entries {
            self.fill(count, prefix, record);
            count += 1;
        }
        publish(self, &identity(), count);
    }
}

fn identity() -> Order {
    let mut order: Order = [0; ORDER_WORDS * 8];
    for (slot, byte) in order.iter_mut().enumerate().take(SLOTS) {
        *byte = slot as u8;
    }
    order
}

impl InnerNode {
    /// An empty inner node.
    pub(super) fn new(skip: u32) -> Self {
        Self { node: Node::new(skip), children: [const { AtomicU32::new(0) }; SLOTS] }
    }

    /// The child in a slot (Acquire).
    #[inline(always)]
    pub(super) fn child(&self, slot: usize) -> u32 {
        self.children[slot].load(Ordering::Acquire)
    }

    /// Sets the child of a slot (Release). Writer only.
    #[inline(always)]
    pub(super) fn set_child(&self, slot: usize, child: u32) {
        self.children[slot].store(child, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_fills_whole_cache_lines() {
        assert_eq!(size_of::<Node>() % 64, 0);
        assert_eq!(size_of::<Node>(), 896);
        assert_eq!(size_of::<InnerNode>(), 1152);
    }

    #[test]
    fn slots_keep_their_place_while_the_order_changes() {
        let node = Node::new(0);
        for value in 0..SLOTS as u32 {
            let snap = snapshot(&node);
            node.insert(0, &snap, u64::from(value), value);
        }
        let snap = snapshot(&node);
        assert_eq!(snap.count(), SLOTS);
        for position in 0..SLOTS {
            assert_eq!(node.record(snap.slot(position)), (SLOTS - 1 - position) as u32);
            assert_eq!(node.record(position), position as u32);
        }
    }
}
