//! A client of the pool for threads: [`Pool`], whose calls block the calling thread.
//!
//! A [`Pool`] owns a [`PoolClient`]. Writes and reads of open blocks receive their answers on the
//! calling thread, without a context switch. Every other call drives the client's future to its
//! end.
//!
//! Thread-safety: any thread may call any method.
//! Failure: as for [`PoolClient`].
//! Cost: as for [`PoolClient`]; a call that drives a future parks the thread while it waits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::{ThreadRuntime, block_on};
use archipelago_fabric::{ClientId, Endpoints, NodeId, Refusal};

use crate::address::{Address, BlockId};
use crate::client::PoolClient;
use crate::config::Sharing;
use crate::membership::Owned;
use crate::open_block::OpenBlock;
use crate::options::PoolOptions;
use crate::wire::PoolStatus;

/// A client of the pool whose calls block. Dropping the value leaves the cluster, and the client's
/// blocks go to other clients of its label.
pub struct Pool(PoolClient);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.client())
    }
}

impl Pool {
    /// Joins a cluster without a secret. Errors: `Busy` if the manager does not answer in time.
    pub fn join(options: PoolOptions) -> Result<Self> {
        Self::join_over(options, Endpoints::new())
    }

    /// Joins a cluster over `endpoints`, which have its secret. Errors: `Busy` if the manager does
    /// not answer in time.
    pub fn join_over(options: PoolOptions, endpoints: Endpoints) -> Result<Self> {
        let (reach, runtime) = (Arc::new(endpoints), ThreadRuntime::shared()?);
        block_on(PoolClient::join(options, reach, runtime)).map(Self)
    }

    /// The id of this client, which is random and new in each life.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.0.client()
    }

    /// Bytes of a block; 0 while no memory node is known.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.0.block_bytes()
    }

    /// Time until the lease ends unless it is renewed; zero without a lease.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        self.0.lease_left()
    }

    /// The endpoints of a node, for a caller that connects to it directly.
    #[must_use]
    pub fn endpoints(&self, node: NodeId) -> Vec<String> {
        self.0.endpoints(node)
    }

    /// The blocks that this client owns.
    #[must_use]
    pub fn owned(&self) -> Vec<BlockId> {
        self.0.owned()
    }

    /// Blocks that were adopted or lost; see [`PoolClient::take_changes`].
    #[must_use]
    pub fn take_changes(&self) -> Vec<Owned> {
        self.0.take_changes()
    }

    /// Allocates a block of zeros; see [`PoolClient::allocate`].
    pub fn allocate(&self, sharing: Sharing) -> Result<BlockId> {
        block_on(self.0.allocate(sharing))
    }

    /// Allocates a block with a number of copies; see [`PoolClient::allocate_copies`].
    pub fn allocate_copies(&self, sharing: Sharing, copies: u32) -> Result<BlockId> {
        block_on(self.0.allocate_copies(sharing, copies))
    }

    /// Gives a block up; see [`PoolClient::release`].
    pub fn release(&self, block: BlockId) -> Result<()> {
        block_on(self.0.release(block))
    }

    /// Opens a block for reads; see [`PoolClient::open`].
    pub fn open(&self, block: BlockId) -> Result<Arc<OpenBlock>> {
        match self.0.try_open(block) {
            Some(open) => Ok(open),
            None => block_on(self.0.open(block)),
        }
    }

    /// Opens a block for writes; see [`PoolClient::open_writable`].
    pub fn open_writable(&self, block: BlockId) -> Result<Arc<OpenBlock>> {
        match self.0.try_open(block).filter(|open| open.is_writable()) {
            Some(open) => Ok(open),
            None => block_on(self.0.open_writable(block)),
        }
    }

    /// Reports a refused operation; see [`PoolClient::stale`].
    pub fn stale(&self, open: &OpenBlock, refusal: Refusal) {
        self.0.stale(open, refusal);
    }

    /// Writes to all copies; see [`PoolClient::write`].
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

    /// Reads from one copy; see [`PoolClient::read`].
    pub fn read(&self, address: Address, len: u32) -> Result<Vec<u8>> {
        let open = self.open(address.block)?;
        if let Some(copy) = open.copies.first() {
            let deadline = self.0.request_max();
            if let Ok(bytes) = block_on(copy.read(address.offset, len, deadline)) {
                return Ok(bytes);
            }
        }
        // The client tries all copies, and opens the block again if none of them answers.
        block_on(self.0.read(address, len))
    }

    /// Declares another client dead; see [`PoolClient::evict`].
    pub fn evict(&self, client: ClientId) -> Result<()> {
        block_on(self.0.evict(client))
    }

    /// Whether another client is dead; see [`PoolClient::is_gone`].
    pub fn is_gone(&self, client: ClientId) -> Result<bool> {
        block_on(self.0.is_gone(client))
    }

    /// The manager's view of the cluster.
    pub fn status(&self) -> Result<PoolStatus> {
        block_on(self.0.status())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        block_on(self.0.leave());
    }
}
