//! Range tombstones: deletes of a whole key range.
//!
//! A [`TombstoneSet`] answers "which is the newest tombstone at or below a sequence number that
//! covers this key?", for any overlap of tombstones. It is immutable. A memtable shard owns a set
//! and replaces it by a longer one that shares its parts ([`TombstoneSet::with`]). A table's reader
//! owns a set that was built when the table was opened.
//!
//! The set does not cut overlapping tombstones into fragments with a list of versions each: `n`
//! nested tombstones would have `n²` of those. Its parts are *blocks*. A block holds the skyline of
//! its tombstones (`skyline`), which alone answers questions about the newest tombstone. It also
//! holds its history, which answers questions about earlier sequence numbers:
//!
//! ```text
//! blocks, oldest first   [   4096 tombstones   ] [ 512 ] [ 64 ] [17]
//! history of a block     four older blocks each, down to leaves of at most 64 tombstones
//! ```
//!
//! Invariants:
//! 1. A block's skyline is that of all tombstones below it; the block's lowest and highest sequence
//!    numbers bound theirs.
//! 2. A block whose skyline is exact has no history: the skyline says everything.
//! 3. The last blocks of a set at least double in size from the right to the left, so a set of `n`
//!    tombstones has O(log n) blocks. All blocks but the last are full leaves or merges of them.
//!
//! Thread-safety: immutable values. Failure: none.
//! Cost: tombstones that are added in any pieces cost O(n log n) comparisons in all, because a
//! tombstone takes part in O(log n) merges. A set takes O(n) memory if tombstones do not overlap.
//! Else it takes at most 24 bytes per tombstone for each of O(log n) levels, of which every second
//! one is kept. A question takes one binary search for each block. At an earlier sequence number it
//! takes up to four for each level of a block. A set of at most 64 tombstones is one block. Blocks
//! charge their memory to a [`TombstoneAccount`] until the last set that shares them is dropped.

use std::sync::Arc;

use archipelago_base::SeqNo;
use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};

mod skyline;
mod span;
#[cfg(test)]
mod tests;

pub(crate) use skyline::Skyline;
pub use span::TombstoneSpan;

/// Largest number of tombstones in a leaf block.
const LEAF_TOMBSTONES: usize = 64;
/// Memory of a shared key in bytes, without the key itself: its counters.
const KEY_OVERHEAD_BYTES: u64 = 16;

/// One delete of the keys from `start` (inclusive) to `end` (exclusive). Cloning it copies no key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeTombstone {
    /// First deleted key.
    pub start: Arc<[u8]>,
    /// First key that is not deleted.
    pub end: Arc<[u8]>,
    /// Sequence number of the delete: older records in the range are deleted.
    pub seq: SeqNo,
}

impl RangeTombstone {
    /// The part within `start..end` (`None`: no end), which shares the keys of the bounds; `None`
    /// if nothing is left.
    #[must_use]
    pub fn clipped(mut self, start: &Arc<[u8]>, end: Option<&Arc<[u8]>>) -> Option<Self> {
        if self.start < *start {
            self.start = Arc::clone(start);
        }
        if let Some(end) = end.filter(|end| **end < self.end) {
            self.end = Arc::clone(end);
        }
        (!self.is_empty()).then_some(self)
    }

    /// Whether the tombstone deletes no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Whether the tombstone deletes keys equal to `key`.
    #[must_use]
    pub fn covers(&self, key: &[u8]) -> bool {
        *self.start <= *key && *key < *self.end
    }

    /// Bytes of memory that a list needs for the tombstone, its keys included.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + key_bytes(&self.start) + key_bytes(&self.end)
    }
}

fn key_bytes(key: &[u8]) -> u64 {
    key.len() as u64 + KEY_OVERHEAD_BYTES
}

/// Account to which the blocks of a set charge their memory.
#[derive(Clone, Debug)]
pub struct TombstoneAccount {
    /// The budget that is charged.
    pub budget: Arc<ByteBudget>,
    /// The class of memory.
    pub class: MemoryClass,
}

/// Data of a block about earlier sequence numbers.
#[derive(Debug)]
enum History {
    /// Nothing: the skyline is exact, so it answers every question.
    Exact,
    /// The tombstones of a leaf.
    Leaf(Vec<RangeTombstone>),
    /// Blocks below this one, older ones first.
    Blocks(Vec<Arc<Block>>),
}

/// Summary of a block's tombstones.
#[derive(Debug)]
struct Summary {
    /// Number of tombstones from which the block was made.
    count: usize,
    /// Height of the block; 0 for a leaf.
    level: u32,
    lowest: SeqNo,
    highest: SeqNo,
}

/// A part of a set: the skyline and the history of some of its tombstones.
#[derive(Debug)]
struct Block {
    skyline: Skyline,
    history: History,
    summary: Summary,
    /// Memory of this block alone, in bytes.
    bytes: u64,
    _charge: Option<Charge>,
}

impl Block {
    fn new(
        skyline: Skyline,
        history: History,
        summary: Summary,
        account: Option<&TombstoneAccount>,
    ) -> Arc<Self> {
        let history = if skyline.is_exact() { History::Exact } else { history };
        let below = match &history {
            History::Exact => skyline.key_bytes(),
            History::Leaf(list) => list.iter().map(RangeTombstone::memory_bytes).sum(),
            History::Blocks(blocks) => (blocks.capacity() * size_of::<Arc<Self>>()) as u64,
        };
        let bytes = size_of::<Self>() as u64 + skyline.memory_bytes() + below;
        let charge = account.map(|account| account.budget.hold(account.class, bytes));
        Arc::new(Self { skyline, history, summary, bytes, _charge: charge })
    }

    fn leaf(mut list: Vec<RangeTombstone>, account: Option<&TombstoneAccount>) -> Arc<Self> {
        list.shrink_to_fit();
        let seqs = || list.iter().map(|tombstone| tombstone.seq);
        let summary = Summary {
            count: list.len(),
            level: 0,
            lowest: seqs().min().unwrap_or(SeqNo::MAX),
            highest: seqs().max().unwrap_or_default(),
        };
        Self::new(Skyline::of(&list), History::Leaf(list), summary, account)
    }

    fn merged(
        older: &Arc<Self>,
        newer: &Arc<Self>,
        account: Option<&TombstoneAccount>,
    ) -> Arc<Self> {
        let skyline = Skyline::merged(&older.skyline, &newer.skyline);
        let (older_has, newer_has) = (&older.summary, &newer.summary);
        let level = older_has.level.max(newer_has.level) + 1;
        let mut blocks = Vec::new();
        for block in [older, newer] {
            match &block.history {
                // Of every two levels one is kept.
                History::Blocks(below) if level % 2 == 0 => blocks.extend(below.iter().cloned()),
                _ => blocks.push(Arc::clone(block)),
            }
        }
        let summary = Summary {
            count: older_has.count + newer_has.count,
            level,
            lowest: older_has.lowest.min(newer_has.lowest),
            highest: older_has.highest.max(newer_has.highest),
        };
        Self::new(skyline, History::Blocks(blocks), summary, account)
    }

    /// The newest tombstone at or below `snapshot` that covers `key`.
    #[inline]
    fn newest(&self, key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        let newest = self.skyline.newest(key)?;
        if newest <= snapshot { Some(newest) } else { self.earlier(key, snapshot) }
    }

    /// The newest tombstone at or below `snapshot`, if the newest of all is after the snapshot.
    #[cold]
    fn earlier(&self, key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        match &self.history {
            History::Exact => None,
            History::Leaf(list) => {
                let seen = |t: &&RangeTombstone| t.seq <= snapshot && t.covers(key);
                list.iter().filter(seen).map(|tombstone| tombstone.seq).max()
            }
            History::Blocks(blocks) => newest_of(blocks, key, snapshot),
        }
    }

    /// Narrows `span`, which holds `key`, to keys for which the answer of this block is the same,
    /// and adds the answer.
    fn add_to(&self, key: &[u8], snapshot: SeqNo, span: &mut TombstoneSpan) {
        let piece = self.skyline.piece(key);
        let is_seen = piece.newest.is_none_or(|newest| newest <= snapshot);
        match &self.history {
            _ if is_seen => span.add(piece.start, piece.end, piece.newest),
            History::Exact => span.add(piece.start, piece.end, None),
            History::Leaf(list) => {
                for tombstone in list.iter().filter(|tombstone| tombstone.seq <= snapshot) {
                    add_tombstone(tombstone, key, span);
                }
            }
            History::Blocks(blocks) => add_blocks(blocks, key, snapshot, span),
        }
    }

    fn list_into(&self, out: &mut Vec<RangeTombstone>) {
        match &self.history {
            History::Exact => out.extend(self.skyline.covered()),
            History::Leaf(list) => out.extend_from_slice(list),
            History::Blocks(blocks) => blocks.iter().for_each(|block| block.list_into(out)),
        }
    }

    fn memory_bytes(&self) -> u64 {
        let below = match &self.history {
            History::Blocks(blocks) => blocks.iter().map(|block| block.memory_bytes()).sum(),
            History::Exact | History::Leaf(_) => 0,
        };
        self.bytes + below
    }

    /// Number of cuts and tombstones in memory, for tests that count.
    #[cfg(test)]
    fn parts(&self) -> usize {
        let below: usize = match &self.history {
            History::Exact => 0,
            History::Leaf(list) => list.len(),
            History::Blocks(blocks) => blocks.iter().map(|block| block.parts()).sum(),
        };
        self.skyline.cuts() + below
    }
}

#[inline]
fn newest_of(blocks: &[Arc<Block>], key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
    let mut newest = None;
    for block in blocks.iter().rev() {
        if block.summary.lowest <= snapshot && newest < Some(block.summary.highest) {
            newest = newest.max(block.newest(key, snapshot));
        }
    }
    newest
}

fn add_blocks(blocks: &[Arc<Block>], key: &[u8], snapshot: SeqNo, span: &mut TombstoneSpan) {
    for block in blocks.iter().rev() {
        // Tombstones older than an answer for the whole span change nothing in it.
        if block.summary.lowest <= snapshot && span.newest() < block.summary.highest {
            block.add_to(key, snapshot, span);
        }
    }
}

fn add_tombstone(tombstone: &RangeTombstone, key: &[u8], span: &mut TombstoneSpan) {
    if tombstone.covers(key) {
        span.add(&tombstone.start, Some(&tombstone.end), Some(tombstone.seq));
    } else if *key < *tombstone.start {
        span.add(&[], Some(&tombstone.start), None);
    } else {
        span.add(&tombstone.end, None, None);
    }
}

/// Range tombstones that answer questions by key and sequence number.
#[derive(Clone, Debug, Default)]
pub struct TombstoneSet {
    /// The blocks, older ones first.
    blocks: Vec<Arc<Block>>,
    account: Option<TombstoneAccount>,
}

impl PartialEq for TombstoneSet {
    /// Whether both sets hold the same tombstones.
    fn eq(&self, other: &Self) -> bool {
        let sorted = |set: &Self| {
            let mut all = set.list();
            all.sort_unstable();
            all
        };
        sorted(self) == sorted(other)
    }
}

impl Eq for TombstoneSet {}

impl TombstoneSet {
    /// A set of `tombstones` in any order, which charges no budget; empty ones are ignored.
    #[must_use]
    pub fn new(tombstones: &[RangeTombstone]) -> Self {
        Self::default().with(tombstones.to_vec())
    }

    /// An empty set that charges later additions to `account`.
    #[must_use]
    pub fn charged_to(account: TombstoneAccount) -> Self {
        Self { blocks: Vec::new(), account: Some(account) }
    }

    /// This set with `more` tombstones, in any order; empty ones are ignored. Both sets share their
    /// common blocks.
    #[must_use]
    pub fn with(&self, mut more: Vec<RangeTombstone>) -> Self {
        let account = self.account.as_ref();
        let mut blocks = self.blocks.clone();
        more.retain(|tombstone| !tombstone.is_empty());
        more.sort_by_key(|tombstone| tombstone.seq);
        if let Some(last) =
            blocks.pop_if(|last| last.summary.level == 0 && last.summary.count < LEAF_TOMBSTONES)
        {
            let mut whole = Vec::with_capacity(last.summary.count + more.len());
            last.list_into(&mut whole);
            whole.append(&mut more);
            more = whole;
        }
        while !more.is_empty() {
            let rest = more.split_off(LEAF_TOMBSTONES.min(more.len()));
            let mut block = Block::leaf(std::mem::replace(&mut more, rest), account);
            let is_full = block.summary.count == LEAF_TOMBSTONES;
            while let Some(older) =
                blocks.pop_if(|last| is_full && last.summary.count <= block.summary.count)
            {
                block = Block::merged(&older, &block, account);
            }
            blocks.push(block);
        }
        Self { blocks, account: self.account.clone() }
    }

    /// Whether the set has no tombstone.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The newest tombstone at or below `snapshot` that covers `key`: records of the key older than
    /// it are deleted.
    #[inline]
    #[must_use]
    pub fn max_covering(&self, key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        newest_of(&self.blocks, key, snapshot)
    }

    /// Narrows `span`, which holds `key`, to keys for which the newest tombstone at or below
    /// `snapshot` is the same, and adds that tombstone.
    pub fn add_to(&self, key: &[u8], snapshot: SeqNo, span: &mut TombstoneSpan) {
        add_blocks(&self.blocks, key, snapshot, span);
    }

    /// The tombstones. Neighbours with one sequence number may have been joined.
    #[must_use]
    pub fn list(&self) -> Vec<RangeTombstone> {
        let mut all = Vec::with_capacity(self.blocks.iter().map(|block| block.summary.count).sum());
        self.blocks.iter().for_each(|block| block.list_into(&mut all));
        all
    }

    /// Bytes of memory, including memory that the set shares with other sets.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.memory_bytes()).sum()
    }

    /// Number of cuts and tombstones in memory, for tests that count.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> usize {
        self.blocks.iter().map(|block| block.parts()).sum()
    }
}
