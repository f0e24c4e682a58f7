//! The index-block: a B+tree of 62-slot nodes over the records of a shard.
//!
//! A shard owns the tree. A reference between nodes is a slab number and an offset in units of 64
//! bytes, in 32 bits.
//!
//! Invariants:
//! 1. A split makes two new nodes and swaps them in; the old node dies. It is never written again,
//!    and keeps its entries and its links. A reader that reached it before the swap finds in it,
//!    and through its links, every entry that was inserted before the reader came.
//! 2. The exception is a split for ascending inserts ([`Tree::append_leaf`]). The full leaf lives
//!    on, and a new leaf takes the end of its range. So a search that passes the end of a leaf goes
//!    on in the next one, and searches there by whole keys.
//! 3. A new node and its links are complete before the first reference to it is stored (Release).
//!    Parents follow invariant 4 of [`super::node`].
//! 4. Fences: the keys of a node are at or above its separator, and below the next separator to the
//!    right on the path from the root. A node that skips `n` bytes has two fences that share `n`
//!    bytes.
//! 5. Slots are never removed: the number of used slots is the published count.
//!
//! Thread-safety: [`Tree::descend`] and all other reads may run in parallel with one writer and
//! never wait for it. [`Tree::insert`] finds its position without the lock. It then holds the lock
//! for the few stores that publish the entry, and for a split.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::{Backoff, CachePadded};

use super::kv::{KvBlock, NO_RECORD, RecordRef};
use super::node::{InnerNode, NO_NODE, Node, SLOTS, Snapshot, snapshot};
use super::search::{GUESS, Past, Records, Slots, Target, partition, shared};
use super::slab::{SLAB_BYTES_MAX, SlabPool, SlabTable};
use super::split::Entries;
use crate::key;

/// Alignment of nodes in bytes.
const UNIT_BYTES: usize = 64;
const UNIT_BITS: u32 = (SLAB_BYTES_MAX / UNIT_BYTES).trailing_zeros();
const SLABS_MAX: usize = (1 << (32 - UNIT_BITS)) - 1;
/// Levels of inner nodes that a tree can have; 2^32 records need at most seven.
pub(super) const HEIGHT_MAX: usize = 10;
/// Number of bytes by which the guess is shorter than the prefix that the first keys share. So it
/// still holds after ascending keys have gone on for a while.
const GUESS_SLACK_BYTES: usize = 4;
/// A split node keeps its prefixes unless the fences allow to skip at least this many bytes more.
const SKIP_STEP_BYTES: u32 = 3;

/// The bounds of a node's keys, as records; [`NO_RECORD`] for no bound.
#[derive(Clone, Copy)]
pub(super) struct Fences {
    pub(super) low: RecordRef,
    pub(super) high: RecordRef,
}

const NO_FENCES: Fences = Fences { low: NO_RECORD, high: NO_RECORD };

/// An inner node on the path from the root to a leaf.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) node: u32,
    /// The position of the child that the path takes.
    pub(super) at: u32,
    pub(super) fences: Fences,
}

/// The path from the root to a leaf.
pub(super) struct Path {
    pub(super) steps: [Step; HEIGHT_MAX],
    pub(super) height: usize,
    pub(super) leaf: u32,
    pub(super) fences: Fences,
}

/// State that only the holder of the write lock accesses, and the counters that it keeps.
struct Writer {
    lock: AtomicU32,
    slab: AtomicU32,
    /// Next free byte of the current node slab, and the end of the slab.
    at: AtomicU32,
    end: AtomicU32,
    /// The leaf at whose end the last entry was put, to detect ascending inserts.
    append_leaf: AtomicU32,
}

/// The index of one shard.
pub(super) struct Tree {
    table: SlabTable,
    /// Height and reference of the root; [`u64::MAX`] while there is none.
    root: AtomicU64,
    /// Record and length of the guess, which the first split sets; [`u64::MAX`] before.
    guess: AtomicU64,
    /// Number of completed splits. While it does not change, a path stays correct.
    splits: AtomicU64,
    writer: CachePadded<Writer>,
}

/// A leaf or inner node with one order.
pub(super) struct View<'a> {
    pub(super) node: &'a Node,
    pub(super) snap: &'a Snapshot,
}

impl Slots for View<'_> {
    #[inline(always)]
    fn prefix(&self, position: usize) -> u64 {
        self.node.prefix(self.snap.slot(position))
    }
    #[inline(always)]
    fn record(&self, position: usize) -> RecordRef {
        self.node.record(self.snap.slot(position))
    }
}

impl Records for KvBlock {
    #[inline(always)]
    fn key(&self, record: RecordRef) -> Option<&[u8]> {
        // SAFETY: the index holds only references that `append` returned, published after it.
        Some(unsafe { KvBlock::key(self, record) })
    }
}

/// Guard that holds the write lock.
struct Locked<'a>(&'a Writer);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Ordering::Release);
    }
}

impl Writer {
    #[inline]
    fn lock(&self) -> Locked<'_> {
        if self.lock.swap(1, Ordering::Acquire) != 0 {
            self.wait();
        }
        Locked(self)
    }

    #[cold]
    fn wait(&self) {
        let backoff = Backoff::new();
        while self.lock.load(Ordering::Relaxed) != 0 || self.lock.swap(1, Ordering::Acquire) != 0 {
            backoff.snooze();
        }
    }
}

impl Tree {
    pub(super) fn new(pool: &Arc<SlabPool>) -> Self {
        Self {
            table: SlabTable::new(pool),
            root: AtomicU64::new(u64::MAX),
            guess: AtomicU64::new(u64::MAX),
            splits: AtomicU64::new(0),
            writer: CachePadded::new(Writer {
                lock: AtomicU32::new(0),
                slab: AtomicU32::new(0),
                at: AtomicU32::new(0),
                end: AtomicU32::new(0),
                append_leaf: AtomicU32::new(NO_NODE),
            }),
        }
    }

    /// Bytes of memory taken from the pool.
    pub(super) fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    #[inline(always)]
    fn address(&self, node: u32) -> *const u8 {
        let unit = (node & ((1 << UNIT_BITS) - 1)) as usize;
        // SAFETY: references are made by `allocate` and reach readers through Release stores.
        unsafe { self.table.base((node >> UNIT_BITS) as usize).add(unit * UNIT_BYTES) }
    }

    /// The node of a reference, inner or leaf.
    #[inline(always)]
    pub(super) fn node(&self, node: u32) -> &Node {
        // SAFETY: `add_leaf` and `add_inner` put a `Node`, or an `InnerNode` that begins with one,
        // at every address that a reference names; it lives as long as the tree and is shared.
        unsafe { &*self.address(node).cast() }
    }

    /// The inner node of a reference that was found above the leaves.
    #[inline(always)]
    pub(super) fn inner(&self, node: u32) -> &InnerNode {
        debug_assert_eq!(self.address(node) as usize % align_of::<InnerNode>(), 0);
        // SAFETY: as in `node`; the caller found the reference at a height above 0, where only
        // references from `add_inner` are stored.
        unsafe { &*self.address(node).cast() }
    }

    /// Allocates `bytes` in the writer's slab. Only the writer calls this.
    fn allocate(&self, bytes: usize) -> (u32, *mut u8) {
        let writer = &*self.writer;
        let mut at = writer.at.load(Ordering::Relaxed) as usize;
        if at + bytes > writer.end.load(Ordering::Relaxed) as usize {
            let (number, _, len) = self.table.add(self.table.next_bytes(), SLABS_MAX);
            writer.slab.store(number as u32, Ordering::Relaxed);
            writer.end.store(len as u32, Ordering::Relaxed);
            at = 0;
        }
        writer.at.store((at + bytes) as u32, Ordering::Relaxed);
        let slab = writer.slab.load(Ordering::Relaxed);
        // SAFETY: the slab was added above or by an earlier call; `at` lies in it.
        let address = unsafe { self.table.base(slab as usize).add(at) };
        (slab << UNIT_BITS | (at / UNIT_BYTES) as u32, address)
    }

    /// A new empty leaf. Writer only.
    pub(super) fn add_leaf(&self, skip: u32) -> u32 {
        let (node, address) = self.allocate(size_of::<Node>());
        // SAFETY: fresh memory of that size, aligned to 64 bytes, that nobody else knows.
        unsafe { address.cast::<Node>().write(Node::new(skip)) };
        node
    }

    /// A new empty inner node. Writer only.
    pub(super) fn add_inner(&self, skip: u32) -> u32 {
        let (node, address) = self.allocate(size_of::<InnerNode>());
        // SAFETY: fresh memory of that size, aligned to 64 bytes, that nobody else knows.
        unsafe { address.cast::<InnerNode>().write(InnerNode::new(skip)) };
        node
    }

    /// Height and reference of the root; `None` if the tree is empty.
    #[inline(always)]
    pub(super) fn root(&self) -> Option<(usize, u32)> {
        let root = self.root.load(Ordering::Acquire);
        (root != u64::MAX).then_some(((root >> 32) as usize, root as u32))
    }

    /// Publishes a new root. Only the writer calls this.
    pub(super) fn set_root(&self, height: usize, node: u32) {
        assert!(height < HEIGHT_MAX, "the index of a memtable shard has grown too high");
        self.root.store((height as u64) << 32 | u64::from(node), Ordering::Release);
    }

    /// The guess: a record, and the number of its key's bytes that belong to the guess.
    pub(super) fn guess(&self) -> (RecordRef, usize) {
        let guess = self.guess.load(Ordering::Acquire);
        if guess == u64::MAX {
            return (NO_RECORD, 0);
        }
        ((guess >> 32) as RecordRef, (guess & u64::from(u32::MAX)) as usize)
    }

    #[inline]
    pub(super) fn guess_bytes<'a>(&self, records: &'a KvBlock) -> &'a [u8] {
        let (record, len) = self.guess();
        if len == 0 {
            return &[];
        }
        // SAFETY: the guess was published after the record.
        unsafe { &records.key(record)[..len] }
    }

    /// Sets the guess from the first full leaf. Writer only, before the first split.
    pub(super) fn make_guess(&self, first: RecordRef, last: RecordRef, records: &KvBlock) {
        // SAFETY: both lie in a published leaf.
        let (a, b) = unsafe { (records.key(first), records.key(last)) };
        let len = shared(key::user_key(a), key::user_key(b)).saturating_sub(GUESS_SLACK_BYTES);
        self.guess.store(u64::from(first) << 32 | len as u64, Ordering::Release);
    }

    /// The prefix of the target in a node with this skip.
    #[inline(always)]
    pub(super) fn prefix(&self, skip: u32, target: &Target<'_>, records: &KvBlock) -> u64 {
        target.prefix(skip, || self.guess_bytes(records))
    }

    /// The skip that two fences allow to a node whose keys had the skip `old` before.
    pub(super) fn skip_of(&self, fences: Fences, old: u32, records: &KvBlock) -> u32 {
        if fences.low == NO_RECORD || fences.high == NO_RECORD {
            return GUESS;
        }
        // SAFETY: fences are separators of published nodes, or entries of one.
        let (low, high) = unsafe { (records.key(fences.low), records.key(fences.high)) };
        let skip = shared(key::user_key(low), key::user_key(high)) as u32;
        if (skip as usize) < self.guess().1 {
            GUESS
        } else if old != GUESS && old <= skip && skip - old < SKIP_STEP_BYTES {
            old
        } else {
            skip
        }
    }

    /// Descends to the leaf whose range holds the target. `visit` sees every inner node on the
    /// path. `None` if the tree is empty.
    #[inline(always)]
    pub(super) fn descend(
        &self,
        target: &Target<'_>,
        records: &KvBlock,
        mut visit: impl FnMut(usize, &InnerNode, &Snapshot, u32, usize),
    ) -> Option<u32> {
        let (mut height, mut node) = self.root()?;
        while height > 0 {
            let inner = self.inner(node);
            inner.node.prefetch();
            let prefix = self.prefix(inner.node.skip, target, records);
            node = loop {
                let snap = snapshot(&inner.node);
                let view = View { node: &inner.node, snap: &snap };
                let at = partition(&view, 1..snap.count(), prefix, target, Past::Equal, records)?;
                let child = inner.child(snap.slot(at - 1));
                if inner.node.current_word() == snap.word {
                    visit(height, inner, &snap, node, at - 1);
                    break child;
                }
            };
            height -= 1;
        }
        self.node(node).prefetch();
        Some(node)
    }

    /// Finds the leaf of the target and notes the path in `path`. Returns `false` if the tree is
    /// empty.
    #[inline]
    fn find(&self, target: &Target<'_>, records: &KvBlock, path: &mut Path) -> bool {
        let mut fences = NO_FENCES;
        let mut height = 0;
        let leaf = self.descend(target, records, |_, inner, snap, node, at| {
            path.steps[height] = Step { node, at: at as u32, fences };
            height += 1;
            if at > 0 {
                fences.low = inner.node.record(snap.slot(at));
            }
            if at + 1 < snap.count() {
                fences.high = inner.node.record(snap.slot(at + 1));
            }
        });
        path.height = height;
        path.fences = fences;
        path.leaf = leaf.unwrap_or(NO_NODE);
        leaf.is_some()
    }

    /// Puts a record into the index. `done` runs under the write lock once readers can see the
    /// record. The record's (key, trailer) must not be in the index.
    pub(super) fn insert(
        &self,
        target: &Target<'_>,
        record: RecordRef,
        records: &KvBlock,
        done: impl FnOnce(),
    ) {
        let splits = self.splits.load(Ordering::Acquire);
        let mut path = Path {
            steps: [Step { node: NO_NODE, at: 0, fences: NO_FENCES }; HEIGHT_MAX],
            height: 0,
            leaf: NO_NODE,
            fences: NO_FENCES,
        };
        let (mut snap, mut at) = (Snapshot::EMPTY, 0);
        let mut found = self.find(target, records, &mut path);
        if found {
            at = self.place(&path, target, records, &mut snap);
        }
        let locked = self.writer.lock();
        if self.splits.load(Ordering::Relaxed) != splits {
            found = self.find(target, records, &mut path);
            // The path may lead to another leaf now, whose word may be equal by chance.
            snap = Snapshot::EMPTY;
        }
        if found {
            if self.node(path.leaf).current_word() != snap.word {
                at = self.place(&path, target, records, &mut snap);
            }
            self.insert_at(&path, &snap, at, target, record, records);
        } else {
            self.plant(target, record);
        }
        done();
        drop(locked);
    }

    /// The position in the leaf at which the target belongs.
    #[inline]
    fn place(
        &self,
        path: &Path,
        target: &Target<'_>,
        records: &KvBlock,
        snap: &mut Snapshot,
    ) -> usize {
        let node = self.node(path.leaf);
        *snap = snapshot(node);
        let prefix = self.prefix(node.skip, target, records);
        let view = View { node, snap };
        partition(&view, 0..snap.count(), prefix, target, Past::Before, records)
            .expect("records of a live shard always decode")
    }

    /// Puts the first entry into an empty tree. Writer only.
    fn plant(&self, target: &Target<'_>, record: RecordRef) {
        let leaf = self.add_leaf(0);
        self.node(leaf).build(std::iter::once((target.prefix(0, || &[]), record)));
        self.set_root(0, leaf);
        self.splits.fetch_add(1, Ordering::Release);
    }

    /// Inserts the entry into the leaf of the path, or splits the leaf. Writer only; path, order
    /// and position are current.
    #[inline]
    fn insert_at(
        &self,
        path: &Path,
        snap: &Snapshot,
        at: usize,
        target: &Target<'_>,
        record: RecordRef,
        records: &KvBlock,
    ) {
        let leaf = self.node(path.leaf);
        let count = snap.count();
        let appends = self.writer.append_leaf.load(Ordering::Relaxed) == path.leaf;
        if count < SLOTS {
            leaf.insert(at, snap, self.prefix(leaf.skip, target, records), record);
            if (at == count) != appends {
                let now = if at == count { path.leaf } else { NO_NODE };
                self.writer.append_leaf.store(now, Ordering::Relaxed);
            }
            return;
        }
        if self.guess.load(Ordering::Relaxed) == u64::MAX {
            let view = View { node: leaf, snap };
            self.make_guess(view.record(0), view.record(SLOTS - 1), records);
        }
        if at == count && appends {
            let new = self.append_leaf(path, target, record, records);
            self.writer.append_leaf.store(new, Ordering::Relaxed);
        } else {
            let prefix = self.prefix(leaf.skip, target, records);
            let entries = Entries::of_leaf(leaf, snap, at, prefix, record);
            self.split_leaf(path, &entries, records);
        }
        self.splits.fetch_add(1, Ordering::Release);
    }
}

impl Tree {
    /// The last leaf to which the root leads; further leaves may follow through its links.
    pub(super) fn last_leaf(&self) -> Option<u32> {
        let (mut height, mut node) = self.root()?;
        while height > 0 {
            let inner = self.inner(node);
            node = loop {
                let snap = snapshot(&inner.node);
                let child = inner.child(snap.slot(snap.count() - 1));
                if inner.node.current_word() == snap.word {
                    break child;
                }
            };
            height -= 1;
        }
        Some(node)
    }
}
