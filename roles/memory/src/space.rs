//! The memory of a node: a region of the fabric per block.
//!
//! The state machine ([`crate::core`]) decides, and a [`Space`] executes.
//!
//! Invariants: 1. a region that was given up counts until no other process has it mapped. So the
//! mapped memory never exceeds the node's size.
//!
//! Thread-safety: none; the request handler's lock guards the space.
//! Failure: an error says that the system has no memory, or that the node can give no more keys.
//! Cost: a memfd and the page tables of two mappings per block; a key per block and client.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use archipelago_base::Result;
use archipelago_fabric::{AtomicPath, Node, NodeStats, Region, RemoteKey, Rights};
use archipelago_pool::BlockId;

/// The operations on memory that the state machine uses. None of them waits.
pub trait Space {
    /// Allocates zeroed memory for a block. An error means that the system has none.
    fn allocate(&mut self, block: BlockId) -> Result<()>;

    /// Makes a key to the block's memory. An error means that the node can give no more keys.
    fn grant(&mut self, block: BlockId, rights: Rights) -> Result<RemoteKey>;

    /// Makes a key invalid. After the return no operation runs with it, except by processes that
    /// have the memory mapped.
    fn revoke(&mut self, key: &RemoteKey);

    /// Whether another process can still reach memory by this key, which may be revoked.
    fn is_held(&self, key: &RemoteKey) -> bool;

    /// Gives the memory of a block back.
    fn release(&mut self, block: BlockId);
}

/// The memory of a fabric node.
#[derive(Debug)]
pub struct FabricSpace {
    node: Arc<Node>,
    block_bytes: u64,
    regions: BTreeMap<BlockId, Arc<Region>>,
}

impl FabricSpace {
    /// Memory on `node` in blocks of `block_bytes`.
    #[must_use]
    pub fn new(node: Arc<Node>, block_bytes: u64) -> Self {
        Self { node, block_bytes, regions: BTreeMap::new() }
    }

    /// Counters of the fabric's node.
    pub(crate) fn stats(&self) -> NodeStats {
        self.node.stats()
    }

    /// The region of a block, which the result does not keep alive.
    pub(crate) fn region(&self, block: BlockId) -> Option<Weak<Region>> {
        self.regions.get(&block).map(Arc::downgrade)
    }
}

impl Space for FabricSpace {
    fn allocate(&mut self, block: BlockId) -> Result<()> {
        let bytes = usize::try_from(self.block_bytes).map_err(|_| {
            archipelago_base::Error::invalid("a block larger than an address space")
        })?;
        let region = self.node.allocate(bytes, AtomicPath::Processor)?;
        self.regions.insert(block, Arc::new(region));
        Ok(())
    }

    fn grant(&mut self, block: BlockId, rights: Rights) -> Result<RemoteKey> {
        let region = self.regions.get(&block);
        let missing = || archipelago_base::Error::not_found(format!("block {block} has no memory"));
        region.ok_or_else(missing)?.grant(rights)
    }

    fn revoke(&mut self, key: &RemoteKey) {
        self.node.revoke(key);
    }

    fn is_held(&self, key: &RemoteKey) -> bool {
        !self.node.holders(key).is_empty()
    }

    fn release(&mut self, block: BlockId) {
        self.regions.remove(&block);
    }
}
