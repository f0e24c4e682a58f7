//! A client of the pool: joins, opens blocks, writes all copies and reads the first.
//!
//! [`Pool::open`] gives a block's copies as links and attached regions ([`OpenBlock`]): whoever wants to batch, to use atomics or to await
//! posts on those. [`Pool::write`] and [`Pool::read`] do the usual, with retries.
//!
//! **Writing.** A write is acknowledged when every copy has it. When a copy refuses, or does not answer, nothing is
//! known of it: the block is opened again, at the epoch that it has by then, and the same bytes are written again. After an operation
//! of unknown outcome the old keys are made invalid first ([`Purpose::Afresh`]), so that nothing late can undo what comes after.
//! Bytes of a write that was *not* acknowledged may differ between copies until they are written again.
//!
//! **Reading.** Every copy has every acknowledged write. While the client has a lease ([`Pool::lease_left`]), it reads from
//! no copy that was left behind; without one it may, if that copy's node is cut off from the manager and not from this client.
//!
//! Thread-safety: all of it; one thread renews. Failure: an evicted client's calls end as fenced, for good.
//! Cost: opening takes a round trip to the manager and two to each node; reading and writing none but their own.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::entropy_seed;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_fabric::{
    Attached, Batch, ClientId, Link, NodeId, Promise, Reason, Refusal, Rights, Session,
};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::address::{Address, BlockId};
use crate::config::{Config, Place, Sharing};
use crate::endpoint::Endpoints;
use crate::line::{Line, ask};
use crate::membership::{Membership, Owned};
use crate::wire::{Message, PoolStatus, Purpose, Refused, Why};

/// A question to a node or the manager is asked again after so long.
const REQUEST: Duration = Duration::from_millis(500);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two renewals before the lease is known.
const RENEW_RETRY_NS: u64 = 20_000_000;

/// How a client joins.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Where the manager is: `tcp:HOST:PORT`, `shm:PATH`.
    pub manager: Vec<String>,
    /// Whose data this client works on: clients of one label adopt each other's blocks.
    pub label: u64,
    /// Calls end as busy if nodes or the manager keep them waiting for longer. Default: 10 s.
    pub patience: Duration,
}

impl PoolOptions {
    /// With defaults.
    #[must_use]
    pub fn new(manager: impl Into<String>, label: u64) -> Self {
        Self { manager: vec![manager.into()], label, patience: Duration::from_secs(10) }
    }
}

/// A copy of an open block.
#[derive(Clone, Debug)]
pub struct OpenCopy {
    /// Where it is.
    pub place: Place,
    /// The way there.
    pub link: Arc<dyn Link>,
    /// The block's memory, on that link.
    pub region: Attached,
    /// What this client may do.
    pub rights: Rights,
}

/// A block at one epoch, ready for operations. Old ones are refused when the block goes on.
#[derive(Debug)]
pub struct OpenBlock {
    /// What it is.
    pub config: Config,
    /// The copies that answered, in the configuration's order; the first is the one to read.
    pub copies: Vec<OpenCopy>,
}

impl OpenBlock {
    /// Whether all copies are there and may be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.copies.len() == self.config.copies.len()
            && self.copies.iter().all(|copy| copy.rights.allow(Rights::WRITE))
    }

    /// Posts a write to every copy; it is on its way when this returns, or leaves with the doorbell.
    pub fn post_write(&self, offset: u64, bytes: &[u8]) -> Writing {
        let post = |copy: &OpenCopy| {
            let mut batch = Batch::new();
            batch.write(copy.region, offset, bytes);
            let promise = copy.link.post(batch);
            copy.link.flush();
            promise
        };
        Writing { pending: self.copies.iter().map(post).collect(), refusal: None }
    }
}

/// A write that is under way on all copies.
#[derive(Debug)]
pub struct Writing {
    pending: Vec<Promise<Batch>>,
    refusal: Option<Refusal>,
}

impl Writing {
    /// Waits for all copies. The first refusal if one did not take it.
    pub fn wait(mut self) -> Result<(), Refusal> {
        for promise in self.pending.drain(..) {
            let batch = promise.wait();
            self.refusal = self.refusal.or(batch.refusal().map(|(_, refusal)| refusal));
        }
        self.refusal.map_or(Ok(()), Err)
    }
}

impl Future for Writing {
    type Output = Result<(), Refusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(promise) = self.pending.last_mut() {
            let Poll::Ready(batch) = Pin::new(promise).poll(context) else { return Poll::Pending };
            self.pending.pop();
            self.refusal = self.refusal.or(batch.refusal().map(|(_, refusal)| refusal));
        }
        Poll::Ready(self.refusal.map_or(Ok(()), Err))
    }
}

struct Shared {
    options: PoolOptions,
    clock: Arc<dyn Clock>,
    client: ClientId,
    endpoints: Arc<Endpoints>,
    membership: Mutex<Membership>,
    manager: Line,
    links: Mutex<HashMap<Place, NodeLink>>,
    open: RwLock<HashMap<BlockId, Arc<OpenBlock>>>,
    /// Blocks with operations of unknown outcome.
    afresh: Mutex<HashSet<BlockId>>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

struct NodeLink {
    session: Arc<Session>,
    link: Option<Arc<dyn Link>>,
}

/// See the module. Dropped, it leaves: its blocks go to others of its label.
pub struct Pool {
    shared: Arc<Shared>,
    renewing: Option<Joiner>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.shared.client)
    }
}

impl Pool {
    /// Joins the cluster. Busy if the manager does not answer in time.
    pub fn join(options: PoolOptions) -> Result<Self> {
        let client = ClientId(entropy_seed());
        let endpoints = Arc::new(Endpoints::new());
        let manager = Line::new(&endpoints, options.manager.clone(), client, None);
        let shared = Arc::new(Shared {
            membership: Mutex::new(Membership::new(client, options.label)),
            options,
            clock: SystemClock::shared(),
            client,
            endpoints,
            manager,
            links: Mutex::new(HashMap::new()),
            open: RwLock::new(HashMap::new()),
            afresh: Mutex::new(HashSet::new()),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let until_ns = shared.deadline_ns();
        loop {
            match shared.renew() {
                Ok(()) if shared.membership.lock().is_joined() => break,
                Ok(()) => {}
                Err(error) if shared.clock.now_ns() >= until_ns => return Err(error),
                Err(_) => shared.clock.sleep(Duration::from_nanos(RENEW_RETRY_NS)),
            }
        }
        let keep = Arc::clone(&shared);
        let body = Box::new(move || keep.keep_renewing());
        let renewing = Some(SystemSpawn.spawn("pool-renew", body)?);
        Ok(Self { shared, renewing })
    }

    /// Who this client is, in this life.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.shared.client
    }

    /// Bytes of a block; 0 while no memory node is known.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.shared.membership.lock().block_bytes()
    }

    /// How long the lease still lasts if it is not renewed; zero without one.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        let until_ns = self.shared.membership.lock().lease_until_ns();
        Duration::from_nanos(until_ns.saturating_sub(self.shared.clock.now_ns()))
    }

    /// The blocks that this client owns.
    #[must_use]
    pub fn owned(&self) -> Vec<BlockId> {
        self.shared.membership.lock().owned().collect()
    }

    /// What changed about them without this client's doing, since the last call. A block that was adopted holds what its former owner
    /// wrote; see [`Heap::adopt`](crate::Heap::adopt).
    #[must_use]
    pub fn take_changes(&self) -> Vec<Owned> {
        self.shared.membership.lock().take_changes()
    }

    /// A new block of zeroes, owned by this client. Busy, with the bytes that are left, if the nodes are full.
    pub fn allocate(&self, sharing: Sharing) -> Result<BlockId> {
        self.allocate_copies(sharing, 0)
    }

    /// The same with a number of copies of its own; 0: the cluster's.
    pub fn allocate_copies(&self, sharing: Sharing, copies: u32) -> Result<BlockId> {
        let shared = &self.shared;
        let request = shared.membership.lock().next_request();
        let message = Message::Allocate { client: shared.client, request, sharing, copies };
        let allocated = shared.allocate(&message);
        let mut membership = shared.membership.lock();
        match &allocated {
            Ok(config) => membership.allocated(config.block, config.epoch),
            Err(_) => membership.gave_up(),
        }
        allocated.map(|config| config.block)
    }

    /// Gives a block up in which nothing is referenced any more. Its memory is freed after a lease.
    pub fn release(&self, block: BlockId) -> Result<()> {
        let Some(message) = self.shared.membership.lock().release(block) else {
            return Err(Refused::from(Why::NotOwner).error(format!("release of block {block}")));
        };
        self.shared.forget(block, None);
        match self.shared.ask_manager(&message, self.shared.deadline_ns())? {
            // Refused while the manager gathers reports: said again with the renewals.
            Message::Done {} | Message::Refuse { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// A block's copies, ready for operations. Opens it if it is not open yet.
    pub fn open(&self, block: BlockId) -> Result<Arc<OpenBlock>> {
        if let Some(open) = self.shared.open.read().get(&block) {
            return Ok(Arc::clone(open));
        }
        self.shared.open_anew(block, self.shared.deadline_ns(), 1)
    }

    /// Says that an open block's operation was refused: the next [`Pool::open`] asks again. To be called before operations are
    /// repeated; after [`Reason::Deadline`] and [`Reason::Disconnected`] it sees to it that nothing late arrives.
    pub fn stale(&self, open: &OpenBlock, refusal: Refusal) {
        self.shared.stale(open, refusal);
    }

    /// Writes to all copies. On return every member reads these bytes, until they are overwritten. Waits while the
    /// block changes.
    pub fn write(&self, address: Address, bytes: &[u8]) -> Result<()> {
        let until_ns = self.shared.deadline_ns();
        loop {
            let mut open = self.open(address.block)?;
            if !open.is_writable() {
                self.shared.forget(address.block, Some(&open));
                open = self.shared.open_anew(address.block, until_ns, usize::MAX)?;
            }
            match open.post_write(address.offset, bytes).wait() {
                Ok(()) => return Ok(()),
                Err(refusal) => {
                    let what = format!("write of {} bytes at {address}", bytes.len());
                    self.shared.again(&open, refusal, until_ns, &what)?;
                }
            }
        }
    }

    /// Reads `len` bytes from the first copy that answers.
    pub fn read(&self, address: Address, len: u32) -> Result<Vec<u8>> {
        let until_ns = self.shared.deadline_ns();
        loop {
            let open = self.open(address.block)?;
            let mut last = None;
            for copy in &open.copies {
                let mut batch = Batch::new();
                batch.set_deadline(REQUEST);
                batch.read(copy.region, address.offset, len);
                let batch = copy.link.post(batch).wait();
                match batch.refusal() {
                    None => return Ok(batch.data(0).to_vec()),
                    Some((_, refusal)) => last = Some(refusal),
                }
            }
            let refusal = last.unwrap_or(Refusal::new(Reason::Disconnected));
            let what = format!("read of {len} bytes at {address}");
            self.shared.again(&open, refusal, until_ns, &what)?;
        }
    }

    /// Has another client taken for dead at once: for who has better means to know than a lease.
    pub fn evict(&self, client: ClientId) -> Result<()> {
        let message = Message::Evict { client };
        match self.shared.ask_manager(&message, self.shared.deadline_ns())? {
            Message::Done {} => Ok(()),
            Message::Refuse { refused } => Err(refused.error(format!("eviction of {client}"))),
            other => Err(unexpected(&other)),
        }
    }

    /// What the manager knows.
    pub fn status(&self) -> Result<PoolStatus> {
        match self.shared.ask_manager(&Message::Status {}, self.shared.deadline_ns())? {
            Message::StatusIs { status } => Ok(status),
            other => Err(unexpected(&other)),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.stopped.notify_all();
        if let Some(Err(error)) = self.renewing.take().map(Joiner::join) {
            tracing::error!(%error, "renewing");
        }
        if !self.shared.membership.lock().is_evicted() {
            let soon_ns = self.shared.clock.now_ns() + REQUEST.as_nanos() as u64;
            let leave = Message::Leave { client: self.shared.client };
            // If it is not heard the lease runs out.
            let _left = self.shared.ask_manager(&leave, soon_ns);
        }
        self.shared.close();
    }
}

fn unexpected(message: &Message) -> Error {
    let what = format!("an answer that does not fit the question: {}", message.name());
    Error::new(ErrorKind::Unsupported, what)
}

impl Shared {
    fn deadline_ns(&self) -> u64 {
        self.clock.now_ns() + self.options.patience.as_nanos() as u64
    }

    fn is_stopped(&self) -> bool {
        *self.stop.lock()
    }

    fn late(&self, until_ns: u64, what: impl fmt::Display) -> Result<()> {
        if self.membership.lock().is_evicted() {
            return Err(Refused::from(Why::Evicted).error(what));
        }
        if self.clock.now_ns() >= until_ns {
            let seconds = self.options.patience.as_secs_f64();
            return Err(Error::busy(format!("{what}: no success within {seconds} s")));
        }
        Ok(())
    }

    /// Whether a refusal passes by itself: pauses, or says it.
    fn refused(&self, refused: Refused, until_ns: u64, what: &str) -> Result<()> {
        match refused.why {
            Why::Rebuilding | Why::Changing | Why::OldEpoch | Why::NotReady => {
                self.late(until_ns, format!("{what}: {refused}"))?;
                self.clock.sleep(PAUSE);
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
    fn again(&self, open: &OpenBlock, refusal: Refusal, until_ns: u64, what: &str) -> Result<()> {
        match refusal.reason {
            Reason::OutOfRange | Reason::NoRight | Reason::TooLarge | Reason::Misaligned => {
                return Err(refusal.error(what));
            }
            _ => {}
        }
        self.stale(open, refusal);
        self.late(until_ns, format!("{what}: {refusal}"))?;
        self.clock.sleep(PAUSE);
        Ok(())
    }

    fn stale(&self, open: &OpenBlock, refusal: Refusal) {
        if matches!(refusal.reason, Reason::Deadline | Reason::Disconnected | Reason::Skipped) {
            self.afresh.lock().insert(open.config.block);
        }
        self.forget(open.config.block, Some(open));
    }

    /// Forgets an open block, whatever it is now or if it is still `open`.
    fn forget(&self, block: BlockId, open: Option<&OpenBlock>) {
        let mut blocks = self.open.write();
        let same =
            |known: &Arc<OpenBlock>| open.is_none_or(|open| std::ptr::eq(Arc::as_ptr(known), open));
        let gone = if blocks.get(&block).is_some_and(same) { blocks.remove(&block) } else { None };
        drop(blocks);
        if let Some(gone) = gone {
            detach(&gone);
        }
    }

    // The manager.

    fn allocate(&self, message: &Message) -> Result<Config> {
        let until_ns = self.deadline_ns();
        loop {
            match self.ask_manager(message, until_ns)? {
                Message::Located { config } => return Ok(config),
                Message::Refuse { refused } => self.refused(refused, until_ns, "a new block")?,
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn ask_manager(&self, message: &Message, until_ns: u64) -> Result<Message> {
        loop {
            let failed = match self.manager.ask(message, REQUEST) {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if self.clock.now_ns() >= until_ns {
                return Err(failed.context_at("the manager"));
            }
            self.clock.sleep(PAUSE);
        }
    }

    fn renew(&self) -> Result<()> {
        let sent_ns = self.clock.now_ns();
        let message = self.membership.lock().renew(sent_ns, RENEW_RETRY_NS);
        let answer = self.ask_manager(&message, sent_ns)?;
        let (gone, evicted, again) = {
            let mut membership = self.membership.lock();
            membership.on_renewed(sent_ns, &answer);
            let gone = membership.take_left();
            (gone, membership.is_evicted(), membership.to_release())
        };
        if evicted {
            self.close();
            return Err(Refused::from(Why::Evicted).error("renewal of the lease"));
        }
        for place in gone {
            self.leave_node(place);
        }
        for message in again {
            let Message::Release { block, .. } = message else { continue };
            if let Message::Refuse { refused } = self.ask_manager(&message, sent_ns)?
                && matches!(refused.why, Why::UnknownBlock | Why::NotOwner)
            {
                self.membership.lock().released(block);
            }
        }
        Ok(())
    }

    fn keep_renewing(&self) {
        loop {
            {
                let mut stop = self.stop.lock();
                let renew_ns = self.membership.lock().renew_ns();
                let wait_ns = renew_ns.saturating_sub(self.clock.now_ns());
                if !*stop {
                    self.stopped.wait_for(&mut stop, Duration::from_nanos(wait_ns));
                }
                if *stop {
                    return;
                }
            }
            if self.clock.now_ns() < self.membership.lock().renew_ns() {
                continue;
            }
            if let Err(error) = self.renew() {
                tracing::debug!(%error, "the lease was not renewed");
            }
            if self.membership.lock().is_evicted() {
                return;
            }
        }
    }

    // Nodes.

    fn leave_node(&self, place: Place) {
        let lost: Vec<Arc<OpenBlock>> = {
            let mut open = self.open.write();
            let of = |block: &OpenBlock| block.copies.iter().any(|copy| copy.place == place);
            open.extract_if(|_, block| of(block)).map(|(_, block)| block).collect()
        };
        self.afresh.lock().extend(lost.iter().map(|block| block.config.block));
        for block in lost {
            detach(&block);
        }
        // The session stays: its numbers must not begin again.
        let link = self.links.lock().get_mut(&place).and_then(|node| node.link.take());
        if let Some(link) = link {
            link.close();
        }
    }

    fn close(&self) {
        let open: Vec<Arc<OpenBlock>> = self.open.write().drain().map(|(_, block)| block).collect();
        for block in open {
            detach(&block);
        }
        for (_, node) in self.links.lock().drain() {
            if let Some(link) = node.link {
                link.close();
            }
        }
    }

    fn link(&self, place: Place) -> Result<Arc<dyn Link>> {
        let endpoints = {
            let membership = self.membership.lock();
            let member = membership.node(place.node).filter(|member| member.life == place.life);
            match member {
                Some(member) => member.endpoints.clone(),
                None => return Err(Error::busy(format!("memory node {} is not up", place.node))),
            }
        };
        let session = {
            let mut links = self.links.lock();
            let node = links
                .entry(place)
                .or_insert_with(|| NodeLink { session: Session::new(self.client), link: None });
            if let Some(link) = node.link.as_ref().filter(|link| link.closed().is_none()) {
                return Ok(Arc::clone(link));
            }
            Arc::clone(&node.session)
        };
        let peer = Some((place.node, place.life));
        let link = self.endpoints.connect(&endpoints, &session, peer, REQUEST)?;
        let mut links = self.links.lock();
        let membership = self.membership.lock();
        let up = membership.node(place.node).is_some_and(|member| member.life == place.life);
        let Some(node) = links.get_mut(&place).filter(|_| up) else {
            link.close();
            return Err(Error::busy(format!("memory node {} is not up", place.node)));
        };
        match node.link.as_ref().filter(|link| link.closed().is_none()) {
            // Another thread was faster.
            Some(other) => {
                link.close();
                Ok(Arc::clone(other))
            }
            None => {
                node.link = Some(Arc::clone(&link));
                Ok(link)
            }
        }
    }

    /// Opens a block until at least `need` copies, or all, answer.
    fn open_anew(&self, block: BlockId, until_ns: u64, need: usize) -> Result<Arc<OpenBlock>> {
        loop {
            let view = self.membership.lock().view();
            let config = match self.ask_manager(&Message::Locate { block }, until_ns)? {
                Message::Located { config } => config,
                Message::Refuse { refused } => {
                    self.refused(refused, until_ns, &format!("block {block}"))?;
                    continue;
                }
                other => return Err(unexpected(&other)),
            };
            let afresh = self.afresh.lock().contains(&block);
            let need = need.min(config.copies.len());
            let (copies, mut why) = self.open_copies(&config, afresh);
            let refused = copies.iter().find(|copy| !copy.rights.allow(Rights::WRITE));
            if let Some(copy) = refused.filter(|_| need > 1) {
                let what = format!("a write to block {block} on node {}", copy.place.node);
                return Err(Refused::from(Why::NotOwner).error(what));
            }
            if copies.len() >= need {
                // Under this lock renewals take out what stands on nodes that are gone: nothing slips in behind them.
                let mut blocks = self.open.write();
                if self.membership.lock().view() != view {
                    drop(blocks);
                    detach(&OpenBlock { config, copies });
                    continue;
                }
                if afresh && copies.len() == config.copies.len() {
                    self.afresh.lock().remove(&block);
                }
                let open = Arc::new(OpenBlock { config, copies });
                let old = blocks.insert(block, Arc::clone(&open));
                drop(blocks);
                if let Some(old) = old {
                    detach(&old);
                }
                return Ok(open);
            }
            detach(&OpenBlock { config, copies });
            let what = why.take().map_or_else(String::new, |error| format!(": {error}"));
            self.late(until_ns, format!("block {block}{what}"))?;
            self.clock.sleep(PAUSE);
        }
    }

    fn open_copies(&self, config: &Config, afresh: bool) -> (Vec<OpenCopy>, Option<Error>) {
        let (mut copies, mut why) = (Vec::new(), None);
        for place in &config.copies {
            if self.is_stopped() {
                break;
            }
            match self.open_copy(config.block, config.epoch, *place, afresh) {
                Ok(copy) => copies.push(copy),
                Err(error) => why = Some(error),
            }
        }
        (copies, why)
    }

    fn open_copy(
        &self,
        block: BlockId,
        epoch: Epoch,
        place: Place,
        afresh: bool,
    ) -> Result<OpenCopy> {
        let link = self.link(place)?;
        let purpose = if afresh { Purpose::Afresh } else { Purpose::Use };
        let message = Message::Open { client: self.client, block, epoch, purpose };
        let key = match ask(&*link, &message, REQUEST) {
            Ok(Message::Opened { key, .. }) => key,
            Ok(Message::Refuse { refused }) => {
                if refused.why == Why::Evicted {
                    self.membership.lock().evict();
                }
                return Err(refused.error(format!("memory node {}", place.node)));
            }
            Ok(other) => return Err(unexpected(&other)),
            Err(refusal) => {
                if refusal.is_none() {
                    link.close();
                }
                let refusal = refusal.unwrap_or(Reason::Disconnected.into());
                return Err(refusal.error(format!("memory node {}", place.node)));
            }
        };
        let region = link.attach(&key).wait();
        let region = region.map_err(|refusal| refusal.error(format!("block {block}")))?;
        Ok(OpenCopy { place, link, region, rights: key.rights })
    }
}

fn detach(block: &OpenBlock) {
    for copy in &block.copies {
        copy.link.detach(copy.region);
    }
}

impl Pool {
    /// A node's endpoints, for who wants to reach it itself.
    #[must_use]
    pub fn endpoints(&self, node: NodeId) -> Vec<String> {
        let membership = self.shared.membership.lock();
        membership.node(node).map_or_else(Vec::new, |member| member.endpoints.clone())
    }
}
