//! A client of the pool for tasks: it joins, opens blocks, writes all copies and reads the first.
//!
//! The client runs over threads and in the seeded simulation. Time, tasks and seeds come from a
//! [`Runtime`], and links come from a [`Reach`]. [`PoolClient::open`] returns the copies of a block
//! as links and attached regions ([`OpenBlock`]), on which a caller posts batches and atomics.
//! [`PoolClient::try_open`] does the same without an await if the block is open already.
//! [`PoolClient::write`] and [`PoolClient::read`] are plain operations with retries. `options.rs`
//! holds the settings, `shared.rs` the state that all clones share, and `opening.rs` the opening of
//! blocks.
//!
//! Invariants:
//! 1. A write is acknowledged when every copy has it. If a copy refuses or does not answer, the
//!    client opens the block again, at its present epoch, and writes the same bytes again.
//! 2. After an operation of unknown outcome, the client first makes its old keys invalid
//!    ([`Purpose::Afresh`](crate::wire::Purpose::Afresh)), so that no late operation can undo a
//!    later one. Bytes of a write that was *not* acknowledged may differ between copies until they
//!    are written again.
//! 3. Every copy has every acknowledged write. While the client holds a lease
//!    ([`PoolClient::lease_left`]), it reads only from copies of the present configuration. Without
//!    a lease it may read an older copy, if the copy's node is cut off from the manager but not
//!    from this client.
//!
//! Thread-safety: any thread may call any method, and a clone counts a reference. One task renews
//! the lease. No lock is held over an await.
//! Failure: a dropped call may have taken effect. All calls of an evicted client end as fenced.
//! Cost: opening takes a round trip to the manager and two to each node. Reading and writing take
//! one round trip to each copy that they touch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{ClientId, NodeId, Reach, Reason, Refusal, Route};
use parking_lot::{Mutex, RwLock};

use crate::address::{Address, BlockId};
use crate::config::{Config, Sharing};
use crate::membership::{Membership, Owned};
use crate::open_block::OpenBlock;
use crate::options::PoolOptions;
use crate::shared::{ClientState, unexpected};
use crate::wire::{Member, Message, PoolStatus, Refused, Why};

/// Ends the client's membership with the last clone. The task that renews the lease does not hold
/// it.
struct Handle(Arc<ClientState>);

impl Drop for Handle {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.0);
        if !shared.stopped.load(Ordering::SeqCst) {
            let leaving = async move { shared.leave().await };
            self.0.runtime.spawn("pool-leave", Box::pin(leaving));
        }
    }
}

/// A client of the pool for tasks. Dropping the last clone leaves the cluster, and the client's
/// blocks go to other clients of its label.
#[derive(Clone)]
pub struct PoolClient(Arc<Handle>);

impl fmt::Debug for PoolClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolClient({})", self.client())
    }
}

/// An allocation in progress. Dropping it gives the allocation up, unless it was answered.
struct Asking<'a>(&'a ClientState, bool);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.membership.lock().gave_up();
        }
    }
}

impl PoolClient {
    /// Joins the cluster under a random id. Errors: `Busy` if the manager does not answer within
    /// the options' patience.
    pub async fn join(
        options: PoolOptions,
        reach: Arc<dyn Reach>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self> {
        let client = ClientId(runtime.seed());
        let membership = Membership::new(client, options.label);
        let shared = Arc::new(ClientState {
            published: membership.published(),
            membership: Mutex::new(membership),
            manager: Route::new(&reach, client, None),
            options,
            runtime,
            reach,
            client,
            nodes: Mutex::default(),
            open: RwLock::default(),
            doubts: Mutex::default(),
            gates: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let joining = Self(Arc::new(Handle(Arc::clone(&shared))));
        let until_ns = shared.until_ns();
        loop {
            match shared.renew().await {
                Ok(()) if shared.membership.lock().is_joined() => break,
                Err(error) if shared.now_ns() >= until_ns => return Err(error),
                _ => shared.runtime.sleep(shared.options.pace.renewal).await,
            }
        }
        let renewing = Arc::clone(&shared);
        let task = async move { renewing.keep_renewing().await };
        shared.runtime.spawn("pool-renew", Box::pin(task));
        Ok(joining)
    }

    /// Time after which an unanswered request counts as lost.
    pub(crate) fn request_max(&self) -> Duration {
        self.shared().options.pace.request
    }

    fn shared(&self) -> &ClientState {
        &self.0.0
    }

    /// The id of this client, which is random and new in each life.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.shared().client
    }

    /// The label of the data that this client works on.
    #[must_use]
    pub fn label(&self) -> u64 {
        self.shared().options.label
    }

    /// Bytes of a block; 0 while no memory node is known.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.shared().published.block_bytes()
    }

    /// Time, in nanoseconds of the runtime's clock, at which the lease ends unless it is renewed. 0
    /// without a lease.
    #[must_use]
    pub fn lease_until_ns(&self) -> u64 {
        self.shared().published.lease_until_ns()
    }

    /// Whether the client is a member at `now_ns` of the runtime's clock: its lease lasts, it was
    /// not declared dead, and it has not left. Cost: two loads.
    #[must_use]
    pub fn holds_lease(&self, now_ns: u64) -> bool {
        let shared = self.shared();
        shared.published.lease_until_ns() > now_ns && !shared.stopped.load(Ordering::SeqCst)
    }

    /// Time until the lease ends unless it is renewed; zero without a lease.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        Duration::from_nanos(self.lease_until_ns().saturating_sub(self.shared().now_ns()))
    }

    /// Whether the client was declared dead or has left. All of its calls end as fenced or closed,
    /// and the process must join again.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.shared().is_over()
    }

    /// The error with which the call `what` ends after this client was evicted (`Fenced`) or has
    /// left (`Closed`).
    #[must_use]
    pub fn over(&self, what: impl fmt::Display) -> Error {
        self.shared().over(what)
    }

    /// All memory nodes that this client knows.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.shared().membership.lock().members().cloned().collect()
    }

    /// The endpoints of a node, for a caller that connects to it directly; none if the node is not
    /// up.
    #[must_use]
    pub fn endpoints(&self, node: NodeId) -> Vec<String> {
        let membership = self.shared().membership.lock();
        membership.node(node).map_or_else(Vec::new, |member| member.endpoints.clone())
    }

    /// The blocks that this client owns, in order.
    #[must_use]
    pub fn owned(&self) -> Vec<BlockId> {
        self.shared().membership.lock().owned().collect()
    }

    /// Blocks that other members gave to this client or took from it since the last call. An
    /// adopted block holds the data of its former owner; see [`Heap::adopt`](crate::Heap::adopt).
    #[must_use]
    pub fn take_changes(&self) -> Vec<Owned> {
        self.shared().membership.lock().take_changes()
    }

    /// Allocates a block of zeros, which this client owns. Errors: `Busy` if the nodes are full;
    /// the text has the number of bytes that are left.
    pub async fn allocate(&self, sharing: Sharing) -> Result<BlockId> {
        self.allocate_copies(sharing, 0).await
    }

    /// Allocates a block with `copies` copies; 0 means the cluster's number. If the call is dropped
    /// before it ends, [`PoolClient::take_changes`] reports the block as adopted.
    pub async fn allocate_copies(&self, sharing: Sharing, copies: u32) -> Result<BlockId> {
        let shared = self.shared();
        let request = shared.membership.lock().next_request();
        let mut asking = Asking(shared, false);
        let message = Message::Allocate { client: shared.client, request, sharing, copies };
        let config = shared.allocate(&message).await?;
        asking.1 = true;
        shared.membership.lock().allocated(config.block, config.epoch);
        Ok(config.block)
    }

    /// Gives up a block that nothing refers to any more. Its memory is freed after a lease. Errors:
    /// `Busy` if the manager does not answer; the renewals then repeat the release.
    pub async fn release(&self, block: BlockId) -> Result<()> {
        let shared = self.shared();
        let message = shared.membership.lock().release(block);
        let Some(message) = message else {
            return Err(Refused::from(Why::NotOwner).error(format!("release of block {block}")));
        };
        shared.forget(block);
        let answer = shared.ask_manager(&message, shared.until_ns()).await?;
        match &answer {
            // If a manager that collects reports refuses the release, the renewals repeat it.
            Message::Done {} | Message::Refuse { .. } => {
                let now_ns = shared.now_ns();
                shared.membership.lock().on_released(now_ns, block, &answer);
                Ok(())
            }
            other => Err(unexpected(other)),
        }
    }

    /// The copies of a block, if it is open.
    #[inline]
    #[must_use]
    pub fn try_open(&self, block: BlockId) -> Option<Arc<OpenBlock>> {
        self.shared().known(block, false)
    }

    /// Opens a block unless it is open. Returns its copies, at least one, ready for operations.
    pub async fn open(&self, block: BlockId) -> Result<Arc<OpenBlock>> {
        self.shared().open(block, self.shared().until_ns(), false).await
    }

    /// Opens all copies of a block for writes. Waits while the block changes. Errors:
    /// `InvalidArgument` if this client may not write the block.
    pub async fn open_writable(&self, block: BlockId) -> Result<Arc<OpenBlock>> {
        self.shared().open(block, self.shared().until_ns(), true).await
    }

    /// The present configuration of a block, from the manager. Its owner may have changed since the
    /// block was opened. Errors: `NotFound` if the block was released.
    pub async fn locate(&self, block: BlockId) -> Result<Config> {
        let shared = self.shared();
        let until_ns = shared.until_ns();
        loop {
            match shared.ask_manager(&Message::Locate { block }, until_ns).await? {
                Message::Located { config } => return Ok(config),
                Message::Refuse { refused } => {
                    let what = format!("block {block}");
                    shared.refused(refused, &what)?;
                    shared.late(until_ns, format!("{what}: {refused}"))?;
                    shared.pause().await;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Reports a refused operation on an open block, so that the next [`PoolClient::open`] asks the
    /// manager again. Callers report a refusal before they repeat the operation. After
    /// [`Reason::Deadline`] and [`Reason::Disconnected`], the next opening makes the old keys
    /// invalid, so that no late operation arrives.
    pub fn stale(&self, open: &OpenBlock, refusal: Refusal) {
        self.shared().stale(open, refusal);
    }

    /// Writes to all copies. After the return, every member reads these bytes until they are
    /// overwritten. Waits while the block changes.
    pub async fn write(&self, address: Address, bytes: &[u8]) -> Result<()> {
        let shared = self.shared();
        let until_ns = shared.until_ns();
        loop {
            let open = shared.open(address.block, until_ns, true).await?;
            match open.post_write(address.offset, bytes).await {
                Ok(()) => return Ok(()),
                Err(refusal) => {
                    let what = format!("write of {} bytes at {address}", bytes.len());
                    shared.again(&open, refusal, until_ns, &what).await?;
                }
            }
        }
    }

    /// Reads `len` bytes from the first copy that answers. A range beyond the limit of a batch
    /// (8 MiB) is read in parts, all of them from that copy.
    pub async fn read(&self, address: Address, len: u32) -> Result<Vec<u8>> {
        let shared = self.shared();
        let until_ns = shared.until_ns();
        loop {
            let open = shared.open(address.block, until_ns, false).await?;
            let mut last = None;
            for copy in &open.copies {
                match copy.read(address.offset, len, shared.options.pace.request).await {
                    Ok(bytes) => return Ok(bytes),
                    Err(refusal) => last = Some(refusal),
                }
            }
            let refusal = last.unwrap_or(Refusal::new(Reason::Disconnected));
            let what = format!("read of {len} bytes at {address}");
            shared.again(&open, refusal, until_ns, &what).await?;
        }
    }

    /// Declares another client dead immediately, for a caller that has better evidence than a
    /// lease. After the return, no write of that client takes place on a copy in use, under this
    /// manager or a later one. Errors: `Busy` if that takes longer than the options' patience. The
    /// client is dead nevertheless, and another call continues to wait.
    pub async fn evict(&self, client: ClientId) -> Result<()> {
        let shared = self.shared();
        let until_ns = shared.until_ns();
        let what = || format!("eviction of {client}");
        loop {
            match shared.ask_manager(&Message::Evict { client }, until_ns).await? {
                Message::Done {} => return Ok(()),
                Message::Refuse { refused } => {
                    shared.refused(refused, what())?;
                    shared.late(until_ns, format!("{}: {refused}", what()))?;
                    shared.pause().await;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Whether another client is dead, for any reason, and none of its writes can take place any
    /// more. A client that was silent for longer than a lease is dead.
    pub async fn is_gone(&self, client: ClientId) -> Result<bool> {
        let shared = self.shared();
        let until_ns = shared.until_ns();
        loop {
            match shared.ask_manager(&Message::Gone { client }, until_ns).await? {
                Message::Done {} => return Ok(true),
                Message::Refuse { refused } if refused.why == Why::Changing => return Ok(false),
                Message::Refuse { refused } => {
                    let what = format!("asking whether {client} is gone");
                    shared.refused(refused, &what)?;
                    shared.late(until_ns, format!("{what}: {refused}"))?;
                    shared.pause().await;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// The existing blocks of a label, of every owner, with their first epochs: at most 512, the
    /// oldest first. Waits while the manager collects the nodes' reports. The result lacks blocks
    /// whose nodes have all been silent since the manager started.
    pub async fn find(&self, label: u64) -> Result<Vec<(BlockId, Epoch)>> {
        let shared = self.shared();
        let until_ns = shared.until_ns();
        loop {
            match shared.ask_manager(&Message::Find { label }, until_ns).await? {
                Message::Found { blocks } => {
                    return Ok(blocks.into_iter().map(|at| (at.block, at.epoch)).collect());
                }
                Message::Refuse { refused } => {
                    shared.refused(refused, "listing blocks")?;
                    shared.late(until_ns, format!("listing blocks: {refused}"))?;
                    shared.pause().await;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// The manager's view of the cluster.
    pub async fn status(&self) -> Result<PoolStatus> {
        let shared = self.shared();
        match shared.ask_manager(&Message::Status {}, shared.until_ns()).await? {
            Message::StatusIs { status } => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Leaves the cluster, and the client's blocks go to other clients of its label. From now on,
    /// calls of all clones end with `Closed`.
    pub async fn leave(&self) {
        self.shared().leave().await;
    }
}

impl ClientState {
    pub(crate) fn now_ns(&self) -> u64 {
        self.runtime.now_ns()
    }

    fn until_ns(&self) -> u64 {
        self.now_ns().saturating_add(self.options.patience.as_nanos() as u64)
    }

    /// Whether the client was evicted or has left.
    pub(crate) fn is_over(&self) -> bool {
        self.stopped.load(Ordering::SeqCst) || self.membership.lock().is_evicted()
    }

    /// The error of a call on a client that was evicted or has left.
    pub(crate) fn over(&self, what: impl fmt::Display) -> Error {
        if self.membership.lock().is_evicted() {
            Refused::from(Why::Evicted).error(what)
        } else {
            Error::closed(format!("{what}: this client has left the pool"))
        }
    }

    pub(crate) async fn pause(&self) {
        self.runtime.sleep(self.options.pace.pause).await;
    }

    /// Fails if `until_ns` has passed (`Busy`), or if the client was evicted or has left.
    pub(crate) fn late(&self, until_ns: u64, what: impl fmt::Display) -> Result<()> {
        if self.is_over() {
            return Err(self.over(what));
        }
        if self.now_ns() >= until_ns {
            let seconds = self.options.patience.as_secs_f64();
            return Err(Error::busy(format!("{what}: no success within {seconds} s")));
        }
        Ok(())
    }

    /// Fails if the refusal is permanent. Succeeds if a later repetition of the request may help.
    pub(crate) fn refused(&self, refused: Refused, what: impl fmt::Display) -> Result<()> {
        match refused.why {
            Why::Rebuilding | Why::Changing | Why::OldEpoch | Why::NotReady | Why::Standby => {
                Ok(())
            }
            Why::Evicted => {
                self.membership.lock().evict();
                self.close();
                Err(refused.error(what))
            }
            _ => Err(refused.error(what)),
        }
    }

    /// Reports a refusal and pauses, so that the caller may try again. Fails if a retry cannot
    /// help.
    async fn again(
        &self,
        open: &OpenBlock,
        refusal: Refusal,
        until_ns: u64,
        what: &str,
    ) -> Result<()> {
        match refusal.reason {
            Reason::OutOfRange | Reason::NoRight | Reason::TooLarge | Reason::Misaligned => {
                return Err(refusal.error(what));
            }
            _ => {}
        }
        self.stale(open, refusal);
        self.late(until_ns, format!("{what}: {refusal}"))?;
        self.pause().await;
        Ok(())
    }

    /// Sends a request to the manager once.
    pub(crate) async fn ask_once(&self, message: &Message) -> Result<Message> {
        self.manager.ask(&self.options.manager, message, self.options.pace.request).await
    }

    async fn ask_manager(&self, message: &Message, until_ns: u64) -> Result<Message> {
        loop {
            let failed = match self.ask_once(message).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if self.now_ns() >= until_ns || self.is_over() {
                return Err(failed.context_at("the manager"));
            }
            self.pause().await;
        }
    }

    async fn allocate(&self, message: &Message) -> Result<Config> {
        let until_ns = self.until_ns();
        loop {
            match self.ask_manager(message, until_ns).await? {
                Message::Located { config } => return Ok(config),
                Message::Refuse { refused } => {
                    self.refused(refused, "a new block")?;
                    self.late(until_ns, format!("a new block: {refused}"))?;
                    self.pause().await;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    async fn renew(&self) -> Result<()> {
        let sent_ns = self.now_ns();
        let retry_ns = self.options.pace.renewal.as_nanos() as u64;
        let message = self.membership.lock().renew(sent_ns, retry_ns);
        let answer = self.ask_once(&message).await?;
        if let Message::Refuse { refused } = &answer
            && refused.why == Why::Standby
        {
            return Err(refused.error("renewal of the lease"));
        }
        let (left, evicted) = {
            let mut membership = self.membership.lock();
            membership.on_renewed(sent_ns, &answer);
            (membership.take_left(), membership.is_evicted())
        };
        if evicted {
            self.close();
            return Err(Refused::from(Why::Evicted).error("renewal of the lease"));
        }
        // The next renewal confirms that this client acted on the change.
        for place in left {
            self.leave_node(place);
        }
        self.leave_revoked();
        self.release_again().await
    }

    /// Repeats releases. It begins none after the next renewal is due.
    async fn release_again(&self) -> Result<()> {
        let (again, renew_ns) = {
            let membership = self.membership.lock();
            (membership.to_release(self.now_ns()), membership.renew_ns())
        };
        for (block, message) in again {
            if self.now_ns() >= renew_ns {
                break;
            }
            let answer = self.ask_once(&message).await?;
            let now_ns = self.now_ns();
            self.membership.lock().on_released(now_ns, block, &answer);
        }
        Ok(())
    }

    /// Renews the lease until the client was evicted or has left. Then it detaches all blocks,
    /// because over shared memory other members wait for that.
    async fn keep_renewing(&self) {
        while !self.is_over() {
            let renew_ns = self.membership.lock().renew_ns();
            let wait_ns = renew_ns.saturating_sub(self.now_ns());
            if wait_ns > 0 {
                self.runtime.sleep(Duration::from_nanos(wait_ns)).await;
                continue;
            }
            while let Err(error) = self.renew().await {
                tracing::debug!(%error, "the lease was not renewed");
                if self.is_over() {
                    break;
                }
                self.runtime.sleep(self.options.pace.renewal).await;
            }
        }
        self.close();
    }

    async fn leave(&self) {
        let evicted = self.membership.lock().is_evicted();
        if self.stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        if !evicted {
            let leave = Message::Leave { client: self.client };
            // If the message is lost, the lease runs out.
            let _answer = self.ask_once(&leave).await;
        }
        self.close();
        self.manager.hang_up();
    }
}
