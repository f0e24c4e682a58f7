//! The memory of a node: a region of the fabric per block.
//!
//! The state machine ([`crate::core`]) decides, and a [`Space`] executes.
//!
//! Invariants: 1. A region that was given up counts until no other process has it mapped. So the
//! mapped memory never exceeds the node's size. Other users of the node's memory count against the
//! same limit ([`NodeBytes`]).
//!
//! Thread-safety: none; the request handler's lock guards the space.
//! Failure: an error says that the system has no memory, or that the node can give no more keys.
//! Cost: a memfd and the page tables of two mappings per block; a key per block and client.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use archipelago_base::{Error, Result};
use archipelago_fabric::{AtomicPath, Node, NodeStats, Region, RemoteKey, Rights};
use archipelago_offload::shard_host::NodeBytes;
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

    /// Whether another process can still reach memory by this key. A process may have the memory
    /// mapped although the key was revoked.
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
    /// Bytes of the node, if other users share them.
    shared: Option<Arc<NodeBytes>>,
}

impl FabricSpace {
    /// Memory on `node` in blocks of `block_bytes`.
    #[must_use]
    pub fn new(node: Arc<Node>, block_bytes: u64) -> Self {
        Self { node, block_bytes, regions: BTreeMap::new(), shared: None }
    }

    /// Makes all later blocks reserve their memory in `bytes`, which other users share.
    pub(crate) fn share(&mut self, bytes: Arc<NodeBytes>) {
        self.shared = Some(bytes);
    }

    /// Number of blocks whose bytes other users of the node have reserved, rounded up.
    pub(crate) fn blocks_elsewhere(&self) -> u64 {
        let own = self.regions.len() as u64 * self.block_bytes;
        let used = self.shared.as_ref().map_or(own, |shared| shared.used());
        used.saturating_sub(own).div_ceil(self.block_bytes)
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
        let bytes = usize::try_from(self.block_bytes)
            .map_err(|_| Error::invalid("a block larger than an address space"))?;
        if let Some(shared) = &self.shared
            && !shared.reserve(self.block_bytes)
        {
            return Err(Error::busy("memtable shards of databases use the rest of the memory"));
        }
        match self.node.allocate(bytes, AtomicPath::Processor) {
            Ok(region) => {
                self.regions.insert(block, Arc::new(region));
                Ok(())
            }
            Err(error) => {
                self.shared.iter().for_each(|shared| shared.give_back(self.block_bytes));
                Err(error)
            }
        }
    }

    fn grant(&mut self, block: BlockId, rights: Rights) -> Result<RemoteKey> {
        let region = self.regions.get(&block);
        let missing = || Error::not_found(format!("block {block} has no memory"));
        region.ok_or_else(missing)?.grant(rights)
    }

    fn revoke(&mut self, key: &RemoteKey) {
        self.node.revoke(key);
    }

    fn is_held(&self, key: &RemoteKey) -> bool {
        !self.node.holders(key).is_empty()
    }

    fn release(&mut self, block: BlockId) {
        if self.regions.remove(&block).is_some() {
            self.shared.iter().for_each(|shared| shared.give_back(self.block_bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::{Epoch, ErrorKind};
    use archipelago_fabric::NodeId;

    use super::*;

    #[test]
    fn blocks_and_other_users_share_the_memory() {
        let node = Node::new(NodeId(1), Epoch(1), None).unwrap();
        let bytes = NodeBytes::new(3 << 16);
        let mut space = FabricSpace::new(node, 1 << 16);
        space.share(Arc::clone(&bytes));
        assert!(bytes.reserve(70_000));
        assert_eq!(space.blocks_elsewhere(), 2, "a part of a block cannot be lent");
        let block = |number| BlockId { home: NodeId(1), number };
        space.allocate(block(1)).unwrap();
        assert_eq!(space.blocks_elsewhere(), 2);
        assert_eq!(space.allocate(block(2)).unwrap_err().kind(), ErrorKind::Busy);
        bytes.give_back(70_000);
        space.allocate(block(2)).unwrap();
        space.release(block(1));
        space.release(block(1));
        assert_eq!((bytes.used(), space.blocks_elsewhere()), (1 << 16, 0));
    }
}
