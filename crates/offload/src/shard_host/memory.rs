//! The memory of a shard host: regions of a fabric node. The host shares a limit of bytes with the
//! node's other users, such as pool blocks.
//!
//! The core decides, and a [`HostMemory`] executes. Regions are made outside of the core's lock,
//! because the system takes milliseconds to map a large region.
//!
//! Invariants:
//! 1. The bytes of all regions are reserved in [`NodeBytes`], also while a region is being made. So
//!    all users together never map more than the node's size.
//!
//! Thread-safety: the lock of the host guards a [`FabricMemory`]. Any thread may use [`NodeBytes`].
//! Failure: an error says that the system has no memory, or that the node can give no more keys.
//! Cost: a memfd and the page tables of a mapping for each region.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Error, Result};
use archipelago_fabric::{Node, Region, RemoteKey, Rights};

/// The limit of memory that all parts of a node share.
#[derive(Debug)]
pub struct NodeBytes {
    max: u64,
    used: AtomicU64,
}

impl NodeBytes {
    /// A limit of `max` bytes, none of which is reserved.
    #[must_use]
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicU64::new(0) })
    }

    /// Reserves bytes. Returns false, and reserves nothing, if fewer are left.
    #[must_use]
    pub fn reserve(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.max);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Gives reserved bytes back.
    pub fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "{bytes} bytes were given back, and {before} were reserved");
    }

    /// Number of reserved bytes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Number of bytes that can still be reserved.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.max - self.used()
    }
}

/// Number of a region of a host, which no other region of this life has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RegionNo(pub(super) u64);

/// The operations on memory that the core uses. None of them waits for another thread.
pub(super) trait HostMemory {
    /// Reserves bytes for a region that will be made. Returns false if fewer are left.
    fn reserve(&mut self, bytes: u64) -> bool;
    /// Gives back bytes that were reserved.
    fn give_back(&mut self, bytes: u64);
    /// Bytes that can be reserved.
    fn left(&self) -> u64;
    /// Makes a key to a region. An error means that the node can give no more keys.
    fn grant(&mut self, region: RegionNo, rights: Rights) -> Result<RemoteKey>;
    /// Makes a key invalid.
    fn revoke(&mut self, key: &RemoteKey);
    /// Whether another process can still reach memory by this key. A process may have the memory
    /// mapped although the key was revoked.
    fn is_held(&self, key: &RemoteKey) -> bool;
    /// Unmaps a region without users. Its bytes stay reserved.
    fn release(&mut self, region: RegionNo);
}

/// The memory of a fabric node.
#[derive(Debug)]
pub(super) struct FabricMemory {
    node: Arc<Node>,
    bytes: Arc<NodeBytes>,
    regions: BTreeMap<RegionNo, Arc<Region>>,
}

impl FabricMemory {
    pub(super) fn new(node: Arc<Node>, bytes: Arc<NodeBytes>) -> Self {
        Self { node, bytes, regions: BTreeMap::new() }
    }

    pub(super) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(super) fn insert(&mut self, number: RegionNo, region: Region) {
        self.regions.insert(number, Arc::new(region));
    }

    pub(super) fn region(&self, number: RegionNo) -> Option<Arc<Region>> {
        self.regions.get(&number).cloned()
    }
}

impl HostMemory for FabricMemory {
    fn reserve(&mut self, bytes: u64) -> bool {
        self.bytes.reserve(bytes)
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes.give_back(bytes);
    }

    fn left(&self) -> u64 {
        self.bytes.left()
    }

    fn grant(&mut self, region: RegionNo, rights: Rights) -> Result<RemoteKey> {
        let found = self.regions.get(&region);
        let missing = || Error::not_found(format!("region {} of the shard host", region.0));
        found.ok_or_else(missing)?.grant(rights)
    }

    fn revoke(&mut self, key: &RemoteKey) {
        self.node.revoke(key);
    }

    fn is_held(&self, key: &RemoteKey) -> bool {
        !self.node.holders(key).is_empty()
    }

    fn release(&mut self, region: RegionNo) {
        self.regions.remove(&region);
    }
}
