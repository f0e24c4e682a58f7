//! A client of the pool, for tasks: joins, opens blocks, writes all copies and reads the first. It
//! runs alike over threads and in the seeded simulation: time, tasks and seeds come from a
//! [`Runtime`], links from a [`Reach`].
//!
//! [`PoolClient::open`] gives a block's copies as links and attached regions ([`OpenBlock`]):
//! whoever wants to batch or to use atomics posts on those; [`PoolClient::try_open`] is the same
//! without an await, for a block that is open already. [`PoolClient::write`] and
//! [`PoolClient::read`] do the usual, with retries.
//!
//! **Writing.** A write is acknowledged when every copy has it. When a copy refuses, or does not
//! answer, nothing is known of it: the block is opened again, at the epoch that it has by then, and
//! the same bytes are written again. After an operation of unknown outcome the old keys are made
//! invalid first ([`Purpose::Afresh`](crate::wire::Purpose::Afresh)), so that nothing late can undo
//! what comes after. Bytes of a write that was *not* acknowledged may differ between copies until
//! they are written again.
//!
//! **Reading.** Every copy has every acknowledged write. While the client has a lease
//! ([`PoolClient::lease_left`]), it reads from no copy that was left behind; without one it may, if
//! that copy's node is cut off from the manager and not from this client.
//!
//! | part | in |
//! | --- | --- |
//! | what callers see, the lease | here |
//! | settings | `options.rs` |
//! | what all clones share | `shared.rs` |
//! | blocks: opening, staleness, nodes | `opening.rs` |
//!
//! Thread-safety: all of it; a clone is a reference count. One task renews the lease. No lock is
//! held over an await. Every call may be dropped before it is done: what it asked for may have
//! happened. Failure: calls of an evicted client end as fenced, for good. Cost: opening takes a
//! round trip to the manager and two to each node; reading and writing none but their own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{Batch, ClientId, NodeId, Reason, Refusal};
use parking_lot::{Mutex, RwLock};

use crate::address::{Address, BlockId};
use crate::config::{Config, Sharing};
use crate::membership::{Membership, Owned};
use crate::open_block::OpenBlock;
use crate::options::PoolOptions;
use crate::route::{Reach, Route};
use crate::shared::{Shared, unexpected};
use crate::wire::{Member, Message, PoolStatus, Refused, Why};

/// Of whoever holds the client; the task that renews does not.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.0);
        if !shared.stopped.load(Ordering::SeqCst) {
            let leaving = async move { shared.leave().await };
            self.0.runtime.spawn("pool-leave", Box::pin(leaving));
        }
    }
}

/// See the module. When the last clone is dropped it leaves: its blocks go to others of its label.
#[derive(Clone)]
pub struct PoolClient(Arc<Handle>);

impl fmt::Debug for PoolClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolClient({})", self.client())
    }
}

/// A request to allocate that is under way: given up unless it is answered.
struct Asking<'a>(&'a Shared, bool);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.membership.lock().gave_up();
        }
    }
}

impl PoolClient {
    /// Joins the cluster, under a random id. Busy if the manager does not answer within the
    /// options' patience.
    pub async fn join(
        options: PoolOptions,
        reach: Arc<dyn Reach>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self> {
        let client = ClientId(runtime.seed());
        let membership = Membership::new(client, options.label);
        let shared = Arc::new(Shared {
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

    /// A question is taken for lost after so long.
    pub(crate) fn request_max(&self) -> Duration {
        self.shared().options.pace.request
    }

    fn shared(&self) -> &Shared {
        &self.0.0
    }

    /// Who this client is, in this life.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.shared().client
    }

    /// Whose data it works on.
    #[must_use]
    pub fn label(&self) -> u64 {
        self.shared().options.label
    }

    /// Bytes of a block; 0 while no memory node is known.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.shared().published.block_bytes()
    }

    /// Until when the lease lasts if it is not renewed, by the runtime's clock; 0 without one.
    #[must_use]
    pub fn lease_until_ns(&self) -> u64 {
        self.shared().published.lease_until_ns()
    }

    /// Whether it is a member at `now_ns` of the runtime's clock: its lease lasts, it was not taken
    /// for dead and has not left. Cost: two loads.
    #[must_use]
    pub fn holds_lease(&self, now_ns: u64) -> bool {
        let shared = self.shared();
        shared.published.lease_until_ns() > now_ns && !shared.stopped.load(Ordering::SeqCst)
    }

    /// How long the lease still lasts if it is not renewed; zero without one.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        Duration::from_nanos(self.lease_until_ns().saturating_sub(self.shared().now_ns()))
    }

    /// Whether it was taken for dead, or has left. Nothing of the pool can be used any more: join
    /// anew.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.shared().is_over()
    }

    /// Every memory node that is known.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.shared().membership.lock().members().cloned().collect()
    }

    /// A node's endpoints, for who wants to reach it itself; none if it is not up.
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

    /// What changed about them without this client's doing, since the last call. A block that was
    /// adopted holds what its former owner wrote; see [`Heap::adopt`](crate::Heap::adopt).
    #[must_use]
    pub fn take_changes(&self) -> Vec<Owned> {
        self.shared().membership.lock().take_changes()
    }

    /// A new block of zeroes, owned by this client. Busy, with the bytes that are left, if the
    /// nodes are full.
    pub async fn allocate(&self, sharing: Sharing) -> Result<BlockId> {
        self.allocate_copies(sharing, 0).await
    }

    /// The same with a number of copies of its own; 0: the cluster's. Should it be dropped before
    /// it is done, a block that came of it is told as adopted.
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

    /// Gives a block up in which nothing is referenced any more. Its memory is freed after a lease.
    /// Should the manager not be heard this ends as busy, and it is told with the renewals.
    pub async fn release(&self, block: BlockId) -> Result<()> {
        let shared = self.shared();
        let message = shared.membership.lock().release(block);
        let Some(message) = message else {
            return Err(Refused::from(Why::NotOwner).error(format!("release of block {block}")));
        };
        shared.forget(block);
        match shared.ask_manager(&message, shared.until_ns()).await? {
            // Refused while the manager gathers reports: said again with the renewals.
            Message::Done {} | Message::Refuse { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// A block's copies, if it is open.
    #[inline]
    #[must_use]
    pub fn try_open(&self, block: BlockId) -> Option<Arc<OpenBlock>> {
        self.shared().known(block, false)
    }

    /// A block's copies, ready for operations; at least one. Opens it if it is not open yet.
    pub async fn open(&self, block: BlockId) -> Result<Arc<OpenBlock>> {
        self.shared().open(block, self.shared().until_ns(), false).await
    }

    /// The same with all copies, ready to be written. Waits while the block changes. Invalid if
    /// this client may not write it.
    pub async fn open_writable(&self, block: BlockId) -> Result<Arc<OpenBlock>> {
        self.shared().open(block, self.shared().until_ns(), true).await
    }

    /// How a block is now, by the manager: whose it is may have changed since it was opened. Not
    /// found if it was released.
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

    /// Says that an open block's operation was refused: the next [`PoolClient::open`] asks again.
    /// To be called before operations are repeated; after [`Reason::Deadline`] and
    /// [`Reason::Disconnected`] it sees to it that nothing late arrives.
    pub fn stale(&self, open: &OpenBlock, refusal: Refusal) {
        self.shared().stale(open, refusal);
    }

    /// Writes to all copies. On return every member reads these bytes, until they are overwritten.
    /// Waits while the block changes.
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

    /// Reads `len` bytes from the first copy that answers.
    pub async fn read(&self, address: Address, len: u32) -> Result<Vec<u8>> {
        let shared = self.shared();
        let until_ns = shared.until_ns();
        loop {
            let open = shared.open(address.block, until_ns, false).await?;
            let mut last = None;
            for copy in &open.copies {
                let mut batch = Batch::new();
                batch.set_deadline(shared.options.pace.request);
                batch.read(copy.region, address.offset, len);
                let batch = copy.link.post(batch).await;
                match batch.refusal() {
                    None => return Ok(batch.data(0).to_vec()),
                    Some((_, refusal)) => last = Some(refusal),
                }
            }
            let refusal = last.unwrap_or(Refusal::new(Reason::Disconnected));
            let what = format!("read of {len} bytes at {address}");
            shared.again(&open, refusal, until_ns, &what).await?;
        }
    }

    /// Has another client taken for dead at once: for who has better means to know than a lease. On
    /// return none of its writes can take place any more on a copy that is in use, then or later,
    /// under this manager or the next. Busy if that could not be had within the options' patience;
    /// it is dead all the same, and asking again goes on waiting.
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

    /// Whether another client is dead, however it came to that, and none of its writes can take
    /// place any more. One of which the manager has not heard for longer than a lease is.
    pub async fn is_gone(&self, client: ClientId) -> Result<bool> {
        let shared = self.shared();
        let until_ns = shared.until_ns();
        loop {
            match shared.ask_manager(&Message::Gone { client }, until_ns).await? {
                Message::Done {} => return Ok(true),
                Message::Refuse { refused } if refused.why == Why::Changing => return Ok(false),
                Message::Refuse { refused } => {
                    let what = format!("whether {client} is gone");
                    shared.refused(refused, &what)?;
                    shared.late(until_ns, format!("{what}: {refused}"))?;
                    shared.pause().await;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Blocks of a label that are there, whoever owns them, with the epochs at which they were
    /// born; the oldest first, 512 at most. Waits while the manager gathers reports. Blocks all of
    /// whose nodes have been silent since the manager started are missing.
    pub async fn find(&self, label: u64) -> Result<Vec<(BlockId, Epoch)>> {
        let shared = self.shared();
        let until_ns = shared.until_ns();
        loop {
            match shared.ask_manager(&Message::Find { label }, until_ns).await? {
                Message::Found { blocks } => {
                    return Ok(blocks.into_iter().map(|at| (at.block, at.epoch)).collect());
                }
                Message::Refuse { refused } => {
                    shared.refused(refused, "looking for blocks")?;
                    shared.late(until_ns, format!("looking for blocks: {refused}"))?;
                    shared.pause().await;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// What the manager knows.
    pub async fn status(&self) -> Result<PoolStatus> {
        let shared = self.shared();
        match shared.ask_manager(&Message::Status {}, shared.until_ns()).await? {
            Message::StatusIs { status } => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Leaves the cluster: its blocks go to others of its label. Calls of all clones end as fenced
    /// from now on.
    pub async fn leave(&self) {
        self.shared().leave().await;
    }
}

impl Shared {
    pub(crate) fn now_ns(&self) -> u64 {
        self.runtime.now_ns()
    }

    fn until_ns(&self) -> u64 {
        self.now_ns().saturating_add(self.options.patience.as_nanos() as u64)
    }

    /// Whether it was evicted or has left.
    pub(crate) fn is_over(&self) -> bool {
        self.stopped.load(Ordering::SeqCst) || self.membership.lock().is_evicted()
    }

    pub(crate) async fn pause(&self) {
        self.runtime.sleep(self.options.pace.pause).await;
    }

    /// Says that time is over, or the client.
    pub(crate) fn late(&self, until_ns: u64, what: impl fmt::Display) -> Result<()> {
        if self.is_over() {
            return Err(Refused::from(Why::Evicted).error(what));
        }
        if self.now_ns() >= until_ns {
            let seconds = self.options.patience.as_secs_f64();
            return Err(Error::busy(format!("{what}: no success within {seconds} s")));
        }
        Ok(())
    }

    /// Says what of a refusal does not pass by itself.
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

    /// Whether an operation may be tried again after `refusal`.
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

    /// Asks the manager once.
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
        let (left, evicted, again) = {
            let mut membership = self.membership.lock();
            membership.on_renewed(sent_ns, &answer);
            let left = membership.take_left();
            (left, membership.is_evicted(), membership.to_release())
        };
        if evicted {
            self.close();
            return Err(Refused::from(Why::Evicted).error("renewal of the lease"));
        }
        // Before the next renewal tells that it was taken in.
        for place in left {
            self.leave_node(place);
        }
        self.leave_revoked();
        for message in again {
            let Message::Release { block, .. } = message else { continue };
            if let Message::Refuse { refused } = self.ask_once(&message).await?
                && matches!(refused.why, Why::UnknownBlock | Why::NotOwner)
            {
                self.membership.lock().released(block);
            }
        }
        Ok(())
    }

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
                    return;
                }
                self.runtime.sleep(self.options.pace.renewal).await;
            }
        }
    }

    async fn leave(&self) {
        let evicted = self.membership.lock().is_evicted();
        if self.stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        if !evicted {
            let leave = Message::Leave { client: self.client };
            // If it is not heard the lease runs out.
            let _answer = self.ask_once(&leave).await;
        }
        self.close();
        self.manager.hang_up();
    }
}
