//! A heap that cuts blocks into pieces. The owner of the blocks calls it, without a message or I/O.
//!
//! The heap rounds sizes up to a **class**: multiples of 64 bytes up to 4 KiB, then eight steps per
//! doubling. So rounding costs at most an eighth of a large piece. A piece comes from the free list
//! of its class, or else from the untouched end of an open block. If both have no piece, it is cut
//! from the smallest larger free piece, whose rest returns to the lists. If no piece fits, the
//! caller takes a new block from the pool and adds it.
//!
//! The caller that frees a piece names the time from which on the heap may use it again, because
//! readers may have its address until then. The heap gives back blocks without pieces in use
//! ([`Heap::take_empty`]). It joins adjacent free pieces on request ([`Heap::join`]), for an owner
//! that gets no more blocks. After an adoption, no node knows how the dead client cut the block.
//! The owner of the index names the pieces that the index refers to. Everything else is free, from
//! a given time on ([`Heap::adopt`]).
//!
//! Invariants:
//! 1. Each byte of a block belongs to exactly one of these: a piece in use, a waiting piece, a free
//!    piece, or the untouched end.
//! 2. No piece crosses a block.
//! 3. Every offset is a multiple of 64.
//!
//! Thread-safety: none. An owner has one heap, under a lock if it needs one.
//! Failure: [`Heap::adopt`] refuses pieces that overlap, and then changes nothing.
//! Cost: allocating and freeing take O(1); at worst they examine some 150 lists. A free piece takes
//! 24 bytes of local memory.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use archipelago_base::{Error, Result};

use crate::address::{Address, BlockId};

/// Bytes of a unit. Pieces begin at multiples of it.
const UNIT: u64 = 64;
/// Number of classes that are one unit apart.
const FINE: u64 = 64;
/// Number of classes per doubling above [`FINE`] units.
const STEPS: u64 = 8;

/// A piece of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// Address of the first byte.
    pub address: Address,
    /// Length in bytes, at least that of the request.
    pub bytes: u64,
}

/// Use of a heap's blocks, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes of all blocks.
    pub blocks: u64,
    /// Bytes of pieces in use, with rounding.
    pub used_bytes: u64,
    /// Bytes of pieces that wait until they may be used again.
    pub waiting_bytes: u64,
    /// Bytes of free pieces and untouched ends.
    pub free_bytes: u64,
}

#[derive(Debug, Default)]
struct Use {
    /// Offset of the untouched end.
    end: u64,
    /// Number of pieces in use or waiting.
    pieces: u64,
    /// Bytes of the pieces in use.
    used_bytes: u64,
}

/// A heap over the blocks of one owner.
#[derive(Debug)]
pub struct Heap {
    block_bytes: u64,
    blocks: BTreeMap<BlockId, Use>,
    /// Blocks with an untouched end. The last of them gives the next piece.
    open: Vec<BlockId>,
    /// Free pieces, by class.
    free: Vec<Vec<Address>>,
    waiting: VecDeque<(u64, Piece)>,
    used_bytes: u64,
    waiting_bytes: u64,
}

/// The smallest class whose pieces hold `units`.
fn class_of(units: u64) -> usize {
    if units <= FINE {
        return units as usize - 1;
    }
    // The units lie in (2^k, 2^(k+1)], which has eight classes.
    let k = 63 - u64::from((units - 1).leading_zeros());
    let step = (1 << k) / STEPS;
    let above = (units - (1 << k)).div_ceil(step);
    (FINE + (k - 6) * STEPS + above) as usize - 1
}

/// Units of a piece of this class.
fn units_of(class: usize) -> u64 {
    let class = class as u64 + 1;
    if class <= FINE {
        return class;
    }
    let (k, above) = ((class - FINE - 1) / STEPS + 6, (class - FINE - 1) % STEPS + 1);
    (1 << k) + above * ((1 << k) / STEPS)
}

impl Heap {
    /// A heap without blocks. A block has `block_bytes` bytes, a multiple of 64.
    #[must_use]
    pub fn new(block_bytes: u64) -> Self {
        let units = (block_bytes / UNIT).max(1);
        // A block whose size is not that of a class is cut into pieces of smaller classes.
        let classes = class_of(units) + 1;
        Self {
            block_bytes: units * UNIT,
            blocks: BTreeMap::new(),
            open: Vec::new(),
            free: vec![Vec::new(); classes],
            waiting: VecDeque::new(),
            used_bytes: 0,
            waiting_bytes: 0,
        }
    }

    /// Adds a block without pieces.
    pub fn add(&mut self, block: BlockId) {
        self.blocks.insert(block, Use::default());
        self.open.push(block);
    }

    /// Adds an adopted block. `live` holds offset and requested length of each piece that the index
    /// refers to. The rest is free from `free_from_ns` on. Errors: `Corrupt` if pieces overlap or
    /// leave the block; the heap is then unchanged.
    pub fn adopt(&mut self, block: BlockId, live: &[(u64, u64)], free_from_ns: u64) -> Result<()> {
        let mut pieces = Vec::new();
        for &(offset, len) in live {
            let units = class_of(len.div_ceil(UNIT).max(1));
            pieces.push((offset, units_of(units) * UNIT));
        }
        pieces.sort_unstable();
        let mut at = 0;
        let mut gaps = Vec::new();
        for &(offset, bytes) in &pieces {
            let fits = offset >= at
                && offset.is_multiple_of(UNIT)
                && offset.checked_add(bytes).is_some_and(|end| end <= self.block_bytes);
            if !fits {
                let what =
                    format!("{bytes} bytes at {offset} of block {block} are not a piece of it");
                return Err(Error::new(archipelago_base::ErrorKind::Corrupt, what));
            }
            gaps.push((at, offset - at));
            at = offset + bytes;
        }
        gaps.push((at, self.block_bytes - at));
        let used_bytes = pieces.iter().map(|(_, bytes)| bytes).sum::<u64>();
        self.used_bytes += used_bytes;
        let count = pieces.len() as u64;
        self.blocks.insert(block, Use { end: self.block_bytes, pieces: count, used_bytes });
        for (offset, bytes) in gaps {
            self.cut(block, offset, bytes, |heap, piece| heap.wait(piece, free_from_ns));
        }
        Ok(())
    }

    /// Allocates a piece of at least `len` bytes. `None` if no block has room; the caller then must
    /// [`Heap::add`] a block. Errors: `InvalidArgument` if `len` exceeds a block.
    pub fn allocate(&mut self, len: u64, now_ns: u64) -> Result<Option<Piece>> {
        let units = len.div_ceil(UNIT).max(1);
        if units * UNIT > self.block_bytes {
            return Err(Error::invalid(format!(
                "{len} bytes do not fit a block of {} bytes",
                self.block_bytes
            )));
        }
        self.settle(now_ns);
        let class = class_of(units);
        let bytes = (units_of(class) * UNIT).min(self.block_bytes);
        let taken = self.take_listed(class).or_else(|| self.take_end(bytes));
        let taken = taken.or_else(|| self.take_larger(class, bytes));
        Ok(taken.map(|address| {
            self.used_bytes += bytes;
            if let Some(used) = self.blocks.get_mut(&address.block) {
                used.pieces += 1;
                used.used_bytes += bytes;
            }
            Piece { address, bytes }
        }))
    }

    /// Joins adjacent free pieces, and cuts each range into the largest pieces that fit. Cost:
    /// sorts all free pieces.
    pub fn join(&mut self, now_ns: u64) {
        self.settle(now_ns);
        let mut free: Vec<Piece> = Vec::new();
        for (class, list) in self.free.iter_mut().enumerate() {
            let bytes = units_of(class) * UNIT;
            free.extend(list.drain(..).map(|address| Piece { address, bytes }));
        }
        free.sort_unstable();
        let mut joined: Vec<Piece> = Vec::new();
        for piece in free {
            match joined.last_mut() {
                Some(last)
                    if last.address.block == piece.address.block
                        && last.address.offset + last.bytes == piece.address.offset =>
                {
                    last.bytes += piece.bytes;
                }
                _ => joined.push(piece),
            }
        }
        joined.into_iter().for_each(|piece| self.put_free(piece));
    }

    /// Up to `count` free pieces that the next requests for `len` bytes will get. They were used
    /// before; pieces of untouched ends are not among them.
    pub fn listed(&self, len: u64, count: usize) -> impl Iterator<Item = &Address> {
        let class = class_of(len.div_ceil(UNIT).max(1));
        self.free.get(class).into_iter().flat_map(move |listed| listed.iter().rev().take(count))
    }

    /// Makes the next piece of an untouched end come from another block, if one has room. So pieces
    /// come from the blocks in turn.
    pub fn turn(&mut self) {
        if !self.open.is_empty() {
            self.open.rotate_right(1);
        }
    }

    /// Frees a piece, which the heap may use again from `free_from_ns` on. `len` is the requested
    /// length, or the length of the piece. Nothing happens if the heap does not have the block, as
    /// after [`Heap::remove`].
    pub fn free(&mut self, address: Address, len: u64, free_from_ns: u64) {
        let class = class_of(len.div_ceil(UNIT).max(1));
        let bytes = (units_of(class) * UNIT).min(self.block_bytes);
        if let Some(used) = self.blocks.get_mut(&address.block) {
            used.pieces -= 1;
            let counted = bytes.min(used.used_bytes);
            used.used_bytes -= counted;
            self.used_bytes -= counted;
            self.wait(Piece { address, bytes }, free_from_ns);
        }
    }

    /// Length of the piece that a request for `len` bytes gets.
    #[must_use]
    pub fn rounded(&self, len: u64) -> u64 {
        let class = class_of(len.div_ceil(UNIT).max(1));
        (units_of(class) * UNIT).min(self.block_bytes)
    }

    /// The blocks of this heap.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.keys().copied()
    }

    /// Whether the block belongs to this heap.
    #[must_use]
    pub fn has(&self, block: BlockId) -> bool {
        self.blocks.contains_key(&block)
    }

    /// Removes the blocks without pieces in use or waiting, and returns them.
    pub fn take_empty(&mut self, now_ns: u64) -> Vec<BlockId> {
        self.settle(now_ns);
        let unused = |used: &Use| used.pieces == 0 && used.end > 0;
        let empty: Vec<BlockId> =
            self.blocks.iter().filter(|(_, used)| unused(used)).map(|(block, _)| *block).collect();
        for block in &empty {
            self.remove(*block);
        }
        empty
    }

    /// Removes a block that was lost, with all of its pieces.
    pub fn remove(&mut self, block: BlockId) {
        if let Some(used) = self.blocks.remove(&block) {
            self.used_bytes -= used.used_bytes;
        }
        self.open.retain(|open| *open != block);
        for list in &mut self.free {
            list.retain(|address| address.block != block);
        }
        self.waiting.retain(|(_, piece)| piece.address.block != block);
        self.waiting_bytes = self.waiting.iter().map(|(_, piece)| piece.bytes).sum();
    }

    /// Use of the blocks.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        let blocks = self.blocks.len() as u64;
        let used = self.used_bytes + self.waiting_bytes;
        HeapStats {
            blocks,
            used_bytes: self.used_bytes,
            waiting_bytes: self.waiting_bytes,
            free_bytes: (blocks * self.block_bytes).saturating_sub(used),
        }
    }

    fn wait(&mut self, piece: Piece, free_from_ns: u64) {
        self.waiting_bytes += piece.bytes;
        if let Some(used) = self.blocks.get_mut(&piece.address.block) {
            used.pieces += 1;
        }
        // The times are mostly in order. A piece with an earlier time waits for the later ones
        // before it.
        self.waiting.push_back((free_from_ns, piece));
    }

    /// Frees the pieces that waited until `now_ns`. [`Heap::allocate`] begins with this.
    pub fn settle(&mut self, now_ns: u64) {
        while let Some((_, piece)) = self.waiting.pop_front_if(|(from, _)| *from <= now_ns) {
            self.waiting_bytes -= piece.bytes;
            if let Some(used) = self.blocks.get_mut(&piece.address.block) {
                used.pieces -= 1;
            }
            self.put_free(piece);
        }
    }

    fn put_free(&mut self, piece: Piece) {
        let Piece { address, bytes } = piece;
        self.cut(address.block, address.offset, bytes, |heap, piece| {
            let class = class_of(piece.bytes / UNIT);
            heap.free[class].push(piece.address);
        });
    }

    /// Cuts a range into pieces of class sizes, the largest first.
    fn cut(&mut self, block: BlockId, mut offset: u64, bytes: u64, put: impl Fn(&mut Self, Piece)) {
        let mut units = bytes / UNIT;
        while units > 0 {
            let mut class = class_of(units).min(self.free.len() - 1);
            while units_of(class) > units {
                class -= 1;
            }
            let bytes = units_of(class) * UNIT;
            put(self, Piece { address: Address { block, offset }, bytes });
            offset += bytes;
            units -= units_of(class);
        }
    }

    fn take_listed(&mut self, class: usize) -> Option<Address> {
        self.free[class].pop()
    }

    fn take_end(&mut self, bytes: u64) -> Option<Address> {
        while let Some(&block) = self.open.last() {
            let used = self.blocks.get_mut(&block)?;
            let offset = used.end;
            if offset + bytes <= self.block_bytes {
                used.end += bytes;
                return Some(Address { block, offset });
            }
            used.end = self.block_bytes;
            self.open.pop();
            self.cut(block, offset, self.block_bytes - offset, |heap, piece| {
                let class = class_of(piece.bytes / UNIT);
                heap.free[class].push(piece.address);
            });
        }
        None
    }

    fn take_larger(&mut self, class: usize, bytes: u64) -> Option<Address> {
        let larger = (class..self.free.len()).find(|larger| !self.free[*larger].is_empty())?;
        let address = self.free[larger].pop()?;
        let whole = units_of(larger) * UNIT;
        let rest = Address { offset: address.offset + bytes, ..address };
        self.put_free(Piece { address: rest, bytes: whole.saturating_sub(bytes) });
        Some(address)
    }
}
