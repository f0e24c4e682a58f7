//! A region: memory of a node, owned by the code that allocated it.

use std::sync::Arc;

use archipelago_base::Result;
use parking_lot::Mutex;

use super::Access;
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
}

impl Region {
    pub(super) fn new(
        node: NodeId,
        keys: Arc<KeyTable>,
        bytes: usize,
        path: AtomicPath,
    ) -> Result<Self> {
        let memory = Arc::new(Mapping::create("archipelago-region", bytes)?);
        Ok(Self { node, keys, memory, path, given: Mutex::new(Vec::new()) })
    }

    /// Length in bytes, a multiple of 8.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }

    /// Makes a new key with `rights`. The key is valid until it is revoked or the region is
    /// dropped. Errors: `Busy` if the key table of the node is full.
    pub fn grant(&self, rights: Rights) -> Result<RemoteKey> {
        let key = self.keys.grant(self.node, &self.memory, rights, self.path)?;
        self.given.lock().push(key);
        Ok(key)
    }

    /// Copies bytes out of the region.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
        self.perform(Access::Read { offset, into }).map(|_| ())
    }

    /// Copies bytes into the region. Clients see them when the call returns.
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

    /// Adds to the word at `offset`, wrapping, and returns the old value. The call is refused if a
    /// network card executes the region's atomic operations.
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
