//! A client of the pool, for threads: [`PoolClient`], whose calls wait.
//!
//! Writes and reads of open blocks receive their own answers on the caller's thread, without a
//! switch; what takes more than that is done as tasks do it. Thread-safety: all of it. What holds,
//! fails and costs is told at [`PoolClient`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::{ThreadRuntime, block_on};
use archipelago_fabric::{Batch, ClientId, NodeId, Refusal};

use crate::address::{Address, BlockId};
use crate::client::PoolClient;
use crate::config::Sharing;
use crate::endpoint::Endpoints;
use crate::membership::Owned;
use crate::open_block::OpenBlock;
use crate::options::PoolOptions;
use crate::wire::PoolStatus;

/// See the module. Dropped, it leaves: its blocks go to others of its label.
pub struct Pool(PoolClient);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.client())
    }
}

impl Pool {
    /// Joins the cluster. Busy if the manager does not answer in time.
    pub fn join(options: PoolOptions) -> Result<Self> {
        let (reach, runtime) = (Arc::new(Endpoints::new()), ThreadRuntime::shared()?);
        block_on(PoolClient::join(options, reach, runtime)).map(Self)
    }

    /// Who this client is, in this life.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.0.client()
    }

    /// Bytes of a block; 0 while no memory node is known.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.0.block_bytes()
    }

    /// How long the lease still lasts if it is not renewed; zero without one.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        self.0.lease_left()
    }

    /// A node's endpoints, for who wants to reach it itself.
    #[must_use]
    pub fn endpoints(&self, node: NodeId) -> Vec<String> {
        self.0.endpoints(node)
    }

    /// The blocks that this client owns.
    #[must_use]
    pub fn owned(&self) -> Vec<BlockId> {
        self.0.owned()
    }

    /// As [`PoolClient::take_changes`].
    #[must_use]
    pub fn take_changes(&self) -> Vec<Owned> {
        self.0.take_changes()
    }

    /// As [`PoolClient::allocate`].
    pub fn allocate(&self, sharing: Sharing) -> Result<BlockId> {
        block_on(self.0.allocate(sharing))
    }

    /// As [`PoolClient::allocate_copies`].
    pub fn allocate_copies(&self, sharing: Sharing, copies: u32) -> Result<BlockId> {
        block_on(self.0.allocate_copies(sharing, copies))
    }

    /// As [`PoolClient::release`].
    pub fn release(&self, block: BlockId) -> Result<()> {
        block_on(self.0.release(block))
    }

    /// As [`PoolClient::open`].
    pub fn open(&self, block: BlockId) -> Result<Arc<OpenBlock>> {
        match self.0.try_open(block) {
            Some(open) => Ok(open),
            None => block_on(self.0.open(block)),
        }
    }

    /// As [`PoolClient::open_writable`].
    pub fn open_writable(&self, block: BlockId) -> Result<Arc<OpenBlock>> {
        match self.0.try_open(block).filter(|open| open.is_writable()) {
            Some(open) => Ok(open),
            None => block_on(self.0.open_writable(block)),
        }
    }

    /// As [`PoolClient::stale`].
    pub fn stale(&self, open: &OpenBlock, refusal: Refusal) {
        self.0.stale(open, refusal);
    }

    /// As [`PoolClient::write`].
    pub fn write(&self, address: Address, bytes: &[u8]) -> Result<()> {
        let open = self.open_writable(address.block)?;
        match open.post_write(address.offset, bytes).wait() {
            Ok(()) => Ok(()),
            Err(refusal) => {
                self.0.stale(&open, refusal);
                block_on(self.0.write(address, bytes))
            }
        }
    }

    /// As [`PoolClient::read`].
    pub fn read(&self, address: Address, len: u32) -> Result<Vec<u8>> {
        let open = self.open(address.block)?;
        if let Some(copy) = open.copies.first() {
            let mut batch = Batch::new();
            batch.set_deadline(self.0.request_max());
            batch.read(copy.region, address.offset, len);
            let batch = copy.link.post(batch).wait();
            if batch.refusal().is_none() {
                return Ok(batch.data(0).to_vec());
            }
        }
        // This or another copy, and whatever is to be done about the first.
        block_on(self.0.read(address, len))
    }

    /// As [`PoolClient::evict`].
    pub fn evict(&self, client: ClientId) -> Result<()> {
        block_on(self.0.evict(client))
    }

    /// As [`PoolClient::is_gone`].
    pub fn is_gone(&self, client: ClientId) -> Result<bool> {
        block_on(self.0.is_gone(client))
    }

    /// What the manager knows.
    pub fn status(&self) -> Result<PoolStatus> {
        block_on(self.0.status())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        block_on(self.0.leave());
    }
}
