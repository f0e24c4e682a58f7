//! The memory behind a node: a region of the fabric per block.
//!
//! The state machine ([`crate::core`]) decides, a [`Space`] does. A region that is given up stays
//! counted until no other process has it mapped, so the sum of what is mapped never passes the
//! node's size.
//!
//! Cost: a memfd and two mappings' worth of page tables per block; a key per block and client.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use archipelago_base::Result;
use archipelago_fabric::{AtomicPath, Node, NodeStats, Region, RemoteKey, Rights};
use archipelago_pool::BlockId;

/// What the state machine needs done to memory. None of it waits.
pub trait Space {
    /// Zeroed memory for a block. Error: the system has none.
    fn allocate(&mut self, block: BlockId) -> Result<()>;

    /// A key to the block's memory. Error: the node can give no more.
    fn grant(&mut self, block: BlockId, rights: Rights) -> Result<RemoteKey>;

    /// Makes a key invalid: no operation with it is running or will run, except by processes that
    /// hold it.
    fn revoke(&mut self, key: &RemoteKey);

    /// Whether another process can still reach memory by this key, though it may be revoked.
    fn is_held(&self, key: &RemoteKey) -> bool;

    /// Gives the block's memory back.
    fn release(&mut self, block: BlockId);
}

/// Memory of a fabric node.
#[derive(Debug)]
pub struct FabricSpace {
    node: Arc<Node>,
    block_bytes: u64,
    regions: BTreeMap<BlockId, Arc<Region>>,
}

impl FabricSpace {
    /// Blocks of `block_bytes` on `node`.
    #[must_use]
    pub fn new(node: Arc<Node>, block_bytes: u64) -> Self {
        Self { node, block_bytes, regions: BTreeMap::new() }
    }

    /// The node's counters.
    pub(crate) fn stats(&self) -> NodeStats {
        self.node.stats()
    }

    /// A block's memory, not kept alive.
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
