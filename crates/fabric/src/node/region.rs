//! A region: memory of a node, owned by the code that allocated it.

use std::ops::Range;
use std::sync::Arc;

use archipelago_base::Result;
use parking_lot::Mutex;

use super::Access;
use super::frozen::{FrozenRanges, FrozenSlice};
use super::keys::{AtomicPath, KeyTable, allowed};
use crate::ids::{NodeId, RemoteKey, Rights};
use crate::memory::{self, Mapping};
use crate::refusal::Refusal;

/// Memory that clients reach with keys. Dropping it revokes its keys. The memory is freed as soon
/// as no client has it mapped.
///
/// The node itself accesses it with the methods below, which use the same instructions as the
/// operations of clients. [`crate::memory`] describes torn reads.
#[derive(Debug)]
pub struct Region {
    node: NodeId,
    keys: Arc<KeyTable>,
    memory: Arc<Mapping>,
    path: AtomicPath,
    given: Mutex<Vec<RemoteKey>>,
    frozen: Arc<FrozenRanges>,
}

impl Region {
    pub(super) fn new(
        node: NodeId,
        keys: Arc<KeyTable>,
        bytes: usize,
        path: AtomicPath,
    ) -> Result<Self> {
        let memory = Arc::new(Mapping::create("archipelago-region", bytes)?);
        let (given, frozen) = (Mutex::new(Vec::new()), Arc::default());
        Ok(Self { node, keys, memory, path, given, frozen })
    }

    /// Length in bytes, a multiple of 8.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }

    /// Makes a new key with `rights`. The key is valid until it is revoked or the region is
    /// dropped. Errors: `Busy` if the key table of the node is full, `InvalidArgument` for a key
    /// that could change bytes of a region with frozen ranges.
    pub fn grant(&self, rights: Rights) -> Result<RemoteKey> {
        self.frozen.before_grant(rights)?;
        let key = self.keys.grant(self.node, &self.memory, rights, self.path)?;
        self.given.lock().push(key);
        Ok(key)
    }

    /// Freezes the bytes of `range`, so that they can be read in place. Until the slice is dropped,
    /// all writes to the words that the range touches are refused. Errors: `InvalidArgument` if the
    /// region has ever given a key that could change bytes. `InvalidArgument` also for a range that
    /// is empty, not within the region, or overlaps a frozen range.
    pub fn frozen(&self, range: Range<u64>) -> Result<FrozenSlice> {
        self.frozen.freeze(&self.memory, range)
    }

    /// Copies bytes out of the region.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
        self.perform(Access::Read { offset, into }).map(|_| ())
    }

    /// Copies bytes into the region. Clients see them when the call returns. The call is refused
    /// if it touches a word of a frozen range.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.perform(Access::Write { offset, bytes })?;
        memory::publish();
        Ok(())
    }

    /// Stores `new` if the word at `offset` equals `expect`, and returns the old value. The call is
    /// refused if a network card executes the region's atomic operations, because the processor is
    /// not atomic to the card.
    pub fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, Refusal> {
        self.on_processor()?;
        self.perform(Access::CompareSwap { offset, expect, new })
    }

    /// Adds to the word at `offset` and returns the old value. The sum wraps. The call is refused
    /// if a network card executes the region's atomic operations.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Refusal> {
        self.on_processor()?;
        self.perform(Access::FetchAdd { offset, add })
    }

    fn on_processor(&self) -> Result<(), Refusal> {
        match self.path {
            AtomicPath::Processor => Ok(()),
            AtomicPath::Card => Err(crate::Reason::AtomicPath.into()),
        }
    }

    fn perform(&self, access: Access<'_>) -> Result<u64, Refusal> {
        let (need, offset, len) = access.reach();
        allowed(Rights::ALL, self.bytes(), need, offset, len)?;
        let _until_the_access_ends = match need.change() {
            true => Some(self.frozen.hold(offset, len)?),
            false => None,
        };
        Ok(access.perform(self.memory.words()))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        for key in self.given.get_mut().drain(..) {
            self.keys.revoke(key.region, key.tag);
        }
    }
}
