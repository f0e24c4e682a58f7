//! The pieces of this node's blocks: which are in use, and which nothing refers to.
//!
//! [`Records`](super::records::Records) owns the pieces. A [`Heap`] cuts the blocks. In addition,
//! two bits per unit of 64 bytes say where a piece in use begins and where it ends, which takes one
//! part in 256 of the memory. So a piece is freed once, however often it is given back. And a
//! **sweep** can find lost pieces: records whose writer never learned the outcome, and records that
//! were superseded by a node that died before it gave them back.
//!
//! A sweep has four steps:
//!
//! 1. [`Pieces::begin_sweep`] notes the pieces in use.
//! 2. The sweeper waits until no node can put a word into the index that was not there at step 1.
//! 3. Every node says what the index and the node itself refer to.
//! 4. [`Pieces::end_sweep`] frees the rest. It leaves alone what was allocated or freed meanwhile.
//!
//! An adopted block has no pieces before the end of a sweep. Then everything that is referred to is
//! in use, and the rest is free.
//!
//! Invariants:
//! 1. The bits are set exactly for the pieces that the heap counts as used.
//! 2. A sweep does not free a pinned piece, which is a subtable that is being made.
//!
//! Thread-safety: none; the owner holds a lock.
//! Failure: pieces of an adopted block that overlap are corruption, and the block stays unused.
//! Cost: allocating and freeing touch two words more than the heap. A sweep lists all pieces.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::Result;
use archipelago_base::prefetch::prefetch_value;
use archipelago_pool::{Address, BlockId, Heap, HeapStats, Piece};

use crate::format::UNIT_BYTES;

/// Least time between two joins of free pieces, in nanoseconds. A join of 100,000 pieces takes some
/// milliseconds.
const JOIN_EVERY_NS: u64 = 100_000_000;

/// Bits of 64 units: where pieces begin, and where they end. Both lie next to each other because
/// most pieces are short.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    begins: u64,
    ends: u64,
}

#[derive(Debug)]
struct Marks(Box<[Word]>);

fn bit(unit: u64) -> (usize, u64) {
    ((unit / 64) as usize, 1 << (unit % 64))
}

fn put(bits: &mut u64, mask: u64, on: bool) {
    *bits = if on { *bits | mask } else { *bits & !mask };
}

impl Marks {
    fn new(block_bytes: u64) -> Self {
        let words = (block_bytes / UNIT_BYTES).div_ceil(64) as usize;
        Self(vec![Word::default(); words].into())
    }

    fn set(&mut self, offset: u64, bytes: u64, on: bool) {
        let first = offset / UNIT_BYTES;
        let ((begin, begins), (end, ends)) = (bit(first), bit(first + bytes / UNIT_BYTES - 1));
        put(&mut self.0[begin].begins, begins, on);
        put(&mut self.0[end].ends, ends, on);
    }

    fn begins_at(&self, offset: u64) -> bool {
        let (word, mask) = bit(offset / UNIT_BYTES);
        let word = self.0.get(word);
        offset.is_multiple_of(UNIT_BYTES) && word.is_some_and(|word| word.begins & mask != 0)
    }

    fn prefetch(&self, offset: u64) {
        if let Some(word) = self.0.get(bit(offset / UNIT_BYTES).0) {
            prefetch_value(word);
        }
    }

    /// The pieces in use, by offset and bytes.
    fn pieces(&self) -> Vec<(u64, u64)> {
        let units = |bits: fn(&Word) -> u64| -> Vec<u64> {
            let of = |(at, word): (usize, &Word)| {
                let bits = bits(word);
                (0..64).filter(move |nth| bits >> nth & 1 == 1).map(move |nth| at as u64 * 64 + nth)
            };
            self.0.iter().enumerate().flat_map(of).collect()
        };
        let (begins, ends) = (units(|word| word.begins), units(|word| word.ends));
        let piece = |(begin, end): (u64, u64)| (begin * UNIT_BYTES, (end + 1 - begin) * UNIT_BYTES);
        begins.into_iter().zip(ends).map(piece).collect()
    }
}

/// The pieces of all blocks of a node. See the head of the module.
#[derive(Debug)]
pub(crate) struct Pieces {
    block_bytes: u64,
    heap: Heap,
    marks: BTreeMap<BlockId, Marks>,
    /// Pieces in use since the current sweep began. `None` without a sweep.
    candidates: Option<BTreeSet<Address>>,
    pinned: BTreeSet<Address>,
    /// Blocks that were adopted and not swept yet, and the pieces that were freed in them since.
    adopted: BTreeMap<BlockId, BTreeSet<u64>>,
    /// Time of the last join of free pieces.
    joined_ns: Option<u64>,
}

impl Pieces {
    pub(crate) fn new(block_bytes: u64) -> Self {
        Self {
            block_bytes,
            heap: Heap::new(block_bytes),
            marks: BTreeMap::new(),
            candidates: None,
            pinned: BTreeSet::new(),
            adopted: BTreeMap::new(),
            joined_ns: None,
        }
    }

    /// Adds an empty block.
    pub(crate) fn add(&mut self, block: BlockId) {
        self.heap.add(block);
        self.marks.insert(block, Marks::new(self.block_bytes));
    }

    /// Adds a block of a dead node. How it was cut is known after a sweep.
    pub(crate) fn adopt(&mut self, block: BlockId) {
        if !self.heap.has(block) {
            self.adopted.entry(block).or_default();
        }
    }

    /// Removes a block that no longer belongs to this node.
    pub(crate) fn remove(&mut self, block: BlockId) {
        self.heap.remove(block);
        self.marks.remove(&block);
        self.adopted.remove(&block);
    }

    pub(crate) fn stats(&self) -> HeapStats {
        self.heap.stats()
    }

    pub(crate) fn allocate(&mut self, len: u64, now_ns: u64) -> Result<Option<Address>> {
        let Some(Piece { address, bytes }) = self.heap.allocate(len, now_ns)? else {
            return Ok(None);
        };
        if let Some(marks) = self.marks.get_mut(&address.block) {
            marks.set(address.offset, bytes, true);
        }
        Ok(Some(address))
    }

    /// Joins free pieces that lie next to each other, and then allocates. A join visits all free
    /// pieces, so it happens at most once per [`JOIN_EVERY_NS`].
    pub(crate) fn join_and_allocate(&mut self, len: u64, now_ns: u64) -> Result<Option<Address>> {
        if self.joined_ns.is_some_and(|at_ns| now_ns < at_ns + JOIN_EVERY_NS) {
            return Ok(None);
        }
        self.joined_ns = Some(now_ns);
        self.heap.join(now_ns);
        self.allocate(len, now_ns)
    }

    /// Lets the next piece that was never used come from another block, if there is one.
    pub(crate) fn turn(&mut self) {
        self.heap.turn();
    }

    /// Keeps a piece through sweeps until [`Pieces::unpin_all`], whether anything refers to it or
    /// not.
    pub(crate) fn pin(&mut self, address: Address) {
        self.pinned.insert(address);
    }

    pub(crate) fn unpin_all(&mut self) {
        self.pinned.clear();
    }

    /// Prefetches the memory that freeing a piece touches.
    pub(crate) fn prefetch(&self, address: Address) {
        if let Some(marks) = self.marks.get(&address.block) {
            marks.prefetch(address.offset);
        }
    }

    /// Makes pieces usable whose waiting time is over.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        self.heap.settle(now_ns);
    }

    /// Prefetches the memory that allocating `count` pieces of `len` bytes touches.
    pub(crate) fn prefetch_next(&self, len: u64, count: usize) {
        self.heap.listed(len, count).for_each(|address| self.prefetch(*address));
    }

    /// Frees a piece. Returns `false` if it is not in use.
    pub(crate) fn free(&mut self, address: Address, len: u64, free_from_ns: u64) -> bool {
        if let Some(freed) = self.adopted.get_mut(&address.block) {
            return freed.insert(address.offset);
        }
        let bytes = self.heap.rounded(len);
        let Some(marks) = self.marks.get_mut(&address.block) else { return false };
        if !marks.begins_at(address.offset) {
            return false;
        }
        marks.set(address.offset, bytes, false);
        if let Some(candidates) = &mut self.candidates {
            candidates.remove(&address);
        }
        self.heap.free(address, len, free_from_ns);
        true
    }

    /// Takes the blocks in which no piece is in use or waits. They no longer belong to this node.
    pub(crate) fn take_empty(&mut self, now_ns: u64) -> Vec<BlockId> {
        let empty = self.heap.take_empty(now_ns);
        for block in &empty {
            self.marks.remove(block);
        }
        empty
    }

    /// Begins a sweep, and returns the blocks that it covers.
    pub(crate) fn begin_sweep(&mut self) -> BTreeSet<BlockId> {
        let mut candidates = BTreeSet::new();
        for (block, marks) in &self.marks {
            let address = |(offset, _)| Address { block: *block, offset };
            candidates.extend(marks.pieces().into_iter().map(address));
        }
        self.candidates = Some(candidates);
        self.heap.blocks().chain(self.adopted.keys().copied()).collect()
    }

    /// Offsets at which the pieces in use of a block begin. Empty for a block of another node.
    pub(crate) fn begins_in(&self, block: BlockId) -> Vec<Address> {
        let pieces = self.marks.get(&block).map(Marks::pieces).unwrap_or_default();
        pieces.into_iter().map(|(offset, _)| Address { block, offset }).collect()
    }

    /// The blocks whose pieces are known.
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        self.marks.keys().copied().collect()
    }

    /// The pieces in use, with their bytes.
    pub(crate) fn in_use(&self) -> Vec<(Address, u64)> {
        let of = |(block, marks): (&BlockId, &Marks)| {
            let block = *block;
            let piece = move |(offset, bytes)| (Address { block, offset }, bytes);
            marks.pieces().into_iter().map(piece)
        };
        self.marks.iter().flat_map(of).collect()
    }

    /// Ends a sweep. `referred` holds the pieces of `swept` to which the index and the nodes refer,
    /// with the requested lengths. Returns the number of pieces that were freed. Corrupt, without
    /// effect on the block, if pieces of an adopted block overlap.
    pub(crate) fn end_sweep(
        &mut self,
        swept: &BTreeSet<BlockId>,
        referred: &BTreeMap<Address, u64>,
        free_from_ns: u64,
    ) -> Result<u64> {
        let mut freed = 0;
        let candidates = self.candidates.take().unwrap_or_default();
        let lost: Vec<(Address, u64)> = self
            .in_use()
            .into_iter()
            .filter(|(address, _)| {
                candidates.contains(address)
                    && !referred.contains_key(address)
                    && !self.pinned.contains(address)
            })
            .collect();
        for (address, bytes) in lost {
            freed += u64::from(self.free(address, bytes, free_from_ns));
        }
        let blocks: Vec<BlockId> =
            self.adopted.keys().copied().filter(|block| swept.contains(block)).collect();
        for block in blocks {
            let within = Address { block, offset: 0 }..=Address { block, offset: u64::MAX };
            let live: Vec<(u64, u64)> =
                referred.range(within).map(|(at, len)| (at.offset, *len)).collect();
            self.heap.adopt(block, &live, free_from_ns)?;
            let mut marks = Marks::new(self.block_bytes);
            for (offset, len) in &live {
                marks.set(*offset, self.heap.rounded(*len), true);
            }
            self.marks.insert(block, marks);
            let meanwhile = self.adopted.remove(&block).unwrap_or_default();
            for (offset, len) in live.into_iter().filter(|(offset, _)| meanwhile.contains(offset)) {
                freed += u64::from(self.free(Address { block, offset }, len, free_from_ns));
            }
        }
        Ok(freed)
    }

    /// Gives up a sweep that began.
    pub(crate) fn drop_sweep(&mut self) {
        self.candidates = None;
    }
}

#[cfg(test)]
mod tests {
    use archipelago_pool::NodeId;

    use super::*;

    const BLOCK: u64 = 64 << 10;

    fn block(number: u32) -> BlockId {
        BlockId { home: NodeId(1), number }
    }

    fn one_block() -> Pieces {
        let mut pieces = Pieces::new(BLOCK);
        pieces.add(block(1));
        pieces
    }

    fn take(pieces: &mut Pieces, len: u64) -> Address {
        pieces.allocate(len, 0).expect("fits").expect("room")
    }

    #[test]
    fn piece_is_freed_once_however_often_it_is_given_back() {
        let mut pieces = one_block();
        let (one, two) = (take(&mut pieces, 100), take(&mut pieces, 5000));
        assert_eq!(pieces.in_use(), [(one, 128), (two, 5120)]);
        assert!(pieces.free(one, 100, 0));
        assert!(!pieces.free(one, 100, 0), "twice");
        assert!(!pieces.free(Address { offset: two.offset + 64, ..two }, 64, 0), "within a piece");
        assert!(!pieces.free(Address { block: block(9), offset: 0 }, 64, 0), "elsewhere");
        assert_eq!(pieces.in_use(), [(two, 5120)]);
    }

    #[test]
    fn sweep_frees_older_unreferenced_pieces() {
        let mut pieces = one_block();
        let all: Vec<Address> = (0..4).map(|_| take(&mut pieces, 64)).collect();
        let swept = pieces.begin_sweep();
        pieces.free(all[3], 64, 0);
        let young = take(&mut pieces, 64);
        pieces.pin(all[2]);
        let referred = BTreeMap::from([(all[0], 64)]);
        assert_eq!(pieces.end_sweep(&swept, &referred, 0).expect("sound"), 1);
        let left: Vec<Address> = pieces.in_use().into_iter().map(|(at, _)| at).collect();
        let expected = BTreeSet::from([all[0], all[2], young]);
        assert_eq!(left.into_iter().collect::<BTreeSet<_>>(), expected);
        pieces.unpin_all();
        let swept = pieces.begin_sweep();
        assert_eq!(pieces.end_sweep(&swept, &referred, 0).expect("sound"), 2);
    }

    #[test]
    fn adopted_block_is_used_after_sweep_with_late_frees() {
        let mut pieces = Pieces::new(BLOCK);
        pieces.adopt(block(2));
        let at = |offset| Address { block: block(2), offset };
        let swept = pieces.begin_sweep();
        assert!(swept.contains(&block(2)));
        assert_eq!(pieces.allocate(64, 0).expect("fits"), None);
        pieces.free(at(640), 64, 0);
        let referred = BTreeMap::from([(at(128), 100), (at(640), 64)]);
        assert_eq!(pieces.end_sweep(&swept, &referred, 5).expect("sound"), 1);
        assert_eq!(pieces.in_use(), [(at(128), 128)]);
        assert_eq!(pieces.allocate(64, 4).expect("fits"), None, "a reader may have an address");
        assert!(pieces.allocate(64, 5).expect("fits").is_some());
        pieces.adopt(block(3));
        let wrong = BTreeMap::from([
            (Address { block: block(3), offset: 0 }, 128),
            (Address { block: block(3), offset: 64 }, 64),
        ]);
        let swept = pieces.begin_sweep();
        assert!(pieces.end_sweep(&swept, &wrong, 0).is_err());
    }
}
