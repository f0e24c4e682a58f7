//! A block in memory, as the block cache holds it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use archipelago_base::budget::Charge;
use archipelago_base::{Error, Result};
use parking_lot::Mutex;

use super::data_block::DataBlock;
use super::filter::BloomRef;
use super::flat::FlatBlock;
use super::format::Handle;
use super::index::IndexBlock;
use crate::cache::{self, BlockKind, CachedBlock, Home};
use crate::lookup::Pinner;
use crate::pinned::{PinOwner, PinnedSlice};

/// The block cache of tables.
pub type BlockCache = cache::BlockCache<Block>;
/// A block of a table for the duration of one operation.
pub(super) type BlockGuard = cache::BlockGuard<Block>;
/// The slots of one index block of a table.
pub(super) type Slots = cache::Slots<Block>;
/// A slot for a block of a table.
pub(super) type Spot<'a> = cache::Spot<'a, Block>;

/// Memory of a cached block besides its bytes: the struct, its counts, its slot in the cache.
const OVERHEAD_BYTES: usize = size_of::<Block>() + 16 + 96;

/// A checked and uncompressed block. Immutable; the cache and the readers share it.
///
/// The layout lets a look-up touch the first cache line only.
#[derive(Debug)]
#[repr(C)]
pub struct Block {
    /// Epoch of the cache in which the block was last reported as used.
    used_in: AtomicU32,
    body: Body,
    /// Charge of the block to the budget, from its insertion into the cache until its last holder
    /// drops it.
    charge: Option<Charge>,
    home: Mutex<Home<Block>>,
}

#[derive(Debug)]
enum Body {
    Data(DataBlock),
    Index(Box<IndexBlock>),
    Filter(Vec<u8>),
    Value(Vec<u8>),
    Flat(Box<FlatBlock>),
}

impl Block {
    /// Makes a block of a separated value, which was checked and unpacked.
    pub(super) fn of_value(value: Vec<u8>) -> Self {
        let (used_in, body) = (AtomicU32::new(0), Body::Value(value));
        Self { used_in, body, charge: None, home: Mutex::default() }
    }

    /// Makes a block of a piece of the Flat Index Cache, which was built from checked blocks.
    pub(super) fn of_flat(piece: FlatBlock) -> Self {
        let (used_in, body) = (AtomicU32::new(0), Body::Flat(piece.into()));
        Self { used_in, body, charge: None, home: Mutex::default() }
    }

    /// The piece of the Flat Index Cache, if the block is one.
    pub(super) fn flat(&self) -> Option<&FlatBlock> {
        match &self.body {
            Body::Flat(piece) => Some(piece),
            _ => None,
        }
    }

    /// Whether the block is a separated value, whose bytes are those of the block.
    pub(super) fn is_value(&self) -> bool {
        matches!(self.body, Body::Value(_))
    }

    /// Decodes a payload of `kind` that lies at `handle` of a file of `file_bytes`.
    pub(super) fn parse(
        kind: BlockKind,
        payload: Vec<u8>,
        path: &Path,
        handle: Handle,
        file_bytes: u64,
    ) -> Result<Self> {
        let damaged = |what: &str| Error::corrupt(path, handle.offset, what);
        let body = match kind {
            BlockKind::Data => {
                Body::Data(DataBlock::parse(payload).map_err(|_| damaged("data block: malformed"))?)
            }
            BlockKind::Index => Body::Index(
                IndexBlock::parse(payload, file_bytes)
                    .map_err(|_| damaged("index block: malformed"))?
                    .into(),
            ),
            BlockKind::Filter => {
                BloomRef::new(&payload).ok_or_else(|| damaged("filter block: malformed"))?;
                Body::Filter(payload)
            }
            BlockKind::Value => Body::Value(payload),
            BlockKind::Flat => return Err(damaged("a piece of the Flat Index Cache in a file")),
        };
        Ok(Self { used_in: AtomicU32::new(0), body, charge: None, home: Mutex::default() })
    }

    #[inline]
    pub(super) fn data(&self) -> Option<&DataBlock> {
        match &self.body {
            Body::Data(block) => Some(block),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn index(&self) -> Option<&IndexBlock> {
        match &self.body {
            Body::Index(block) => Some(block),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn filter(&self) -> Option<BloomRef<'_>> {
        match &self.body {
            Body::Filter(bytes) => BloomRef::new(bytes),
            _ => None,
        }
    }

    /// Returns the memory of a data block, for reuse.
    pub(super) fn into_data_bytes(self) -> Vec<u8> {
        match self.body {
            Body::Data(block) => block.into_bytes(),
            _ => Vec::new(),
        }
    }
}

impl CachedBlock for Block {
    fn kind(&self) -> BlockKind {
        match self.body {
            Body::Data(_) => BlockKind::Data,
            Body::Index(_) => BlockKind::Index,
            Body::Filter(_) => BlockKind::Filter,
            Body::Value(_) => BlockKind::Value,
            Body::Flat(_) => BlockKind::Flat,
        }
    }

    fn memory_bytes(&self) -> usize {
        OVERHEAD_BYTES
            + match &self.body {
                Body::Data(block) => block.memory_bytes(),
                Body::Index(block) => size_of::<IndexBlock>() + block.memory_bytes(),
                Body::Filter(bytes) | Body::Value(bytes) => bytes.capacity(),
                Body::Flat(piece) => piece.memory_bytes(),
            }
    }

    fn set_charge(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }

    fn home(&self) -> &Mutex<Home<Self>> {
        &self.home
    }

    #[inline]
    fn used_in(&self) -> u32 {
        self.used_in.load(Ordering::Relaxed)
    }

    #[inline]
    fn use_in(&self, epoch: u32) {
        self.used_in.store(epoch, Ordering::Relaxed);
    }
}

impl PinOwner for Block {
    fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::Data(block) => block.bytes(),
            Body::Filter(bytes) | Body::Value(bytes) => bytes,
            Body::Index(_) | Body::Flat(_) => &[],
        }
    }
}

/// Pins values of a data block.
pub(super) struct BlockPinner<'a>(pub(super) &'a Arc<Block>);

impl Pinner for BlockPinner<'_> {
    fn pin(&self, value: &[u8]) -> PinnedSlice {
        let start = value.as_ptr().addr().wrapping_sub(self.0.bytes().as_ptr().addr());
        let end = start.saturating_add(value.len());
        let owner: Arc<dyn PinOwner> = Arc::clone(self.0) as _;
        PinnedSlice::pinned(owner, start..end).unwrap_or_else(|| PinnedSlice::owned(value.to_vec()))
    }
}

/// A data block with one record of `bytes` bytes, for tests of the cache.
#[cfg(test)]
pub(crate) fn block_of(bytes: usize) -> Block {
    let mut builder = super::data_block::DataBlockBuilder::new(16, bytes);
    builder.add(&[1; 8], &vec![0; bytes], 0, None);
    let payload = builder.finish().to_vec();
    let handle = Handle { offset: 0, size: payload.len() as u32 };
    Block::parse(BlockKind::Data, payload, Path::new("test"), handle, u64::MAX).unwrap()
}
