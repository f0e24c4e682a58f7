//! Drives the coordinator: it answers requests by the state machine, and sends the state machine's
//! orders in tasks.
//!
//! The coordinator is a fabric node of its own, in the manager's process or elsewhere. It stores
//! nothing. As a client of the pool with a label of its own ([`directory_label`]), it owns the
//! block of the directory, and asks the pool which clients are dead.
//!
//! **Taking office.** The oldest block with the coordinator's label is the directory's block. If
//! there is none, no live compute node knows one, and the pool has no block of the store either,
//! then the coordinator allocates one. It looks again afterwards, because another coordinator may
//! have done the same. Then it enters its term and reads the roster. A step that is refused is
//! tried again.
//!
//! Invariants:
//! 1. At most one order with the same content is in flight to a node.
//! 2. The lock of the state machine is never held over an await or a send.
//!
//! Thread-safety: any thread may call any method.
//! Failure: an error that persists is logged once. A coordinator that the pool declared dead ends.
//! Cost: a task per order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::runtime::{Boxed, Runtime};
use archipelago_base::{Error, Result};
use archipelago_fabric::{Call, ClientId, Handler, Reach, Reply, Request, Route};
use archipelago_pool::{BlockId, PoolClient, Sharing};
use parking_lot::Mutex;

use super::measuring::Meter;
use super::{Action, Coordinator, Plan, Tuning};
use crate::format::Geometry;
use crate::node::fabric_id;
use crate::protocol;
use crate::settings::Sabotage;
use crate::table::Table;
use crate::wire::{Grant, Message, Shaped, StoreStatus, Why};

/// Intervals of a coordinator's periodic work.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    /// Time between two ticks. A change of the map begins at a tick. Its steps do not wait for
    /// ticks.
    pub tick: Duration,
    /// Time between two checks which clients are dead.
    pub watch: Duration,
}

/// A tick each 2 ms, and a check each 10 ms.
impl Default for Rhythm {
    fn default() -> Self {
        Self { tick: Duration::from_millis(2), watch: Duration::from_millis(10) }
    }
}

/// Time after which an order counts as lost and is sent again.
pub(super) const ORDER: Duration = Duration::from_millis(500);
/// Time within which a node must report its counters, so that the status shows them.
const COUNT: Duration = Duration::from_millis(200);

/// Time after which an unchanged error is logged.
const STAYS: Duration = Duration::from_secs(2);

/// Time after which an operation at the pool ends, to be begun again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The label of the coordinators of a store whose compute nodes have `label`. It marks the block of
/// the directory.
#[must_use]
pub fn directory_label(label: u64) -> u64 {
    label.rotate_left(32) ^ ROOT
}

/// The error that keeps a task from making progress.
#[derive(Debug, Default)]
struct Obstacle {
    error: String,
    since_ns: u64,
    told: bool,
}

impl Obstacle {
    /// Takes the result of a task's turn. Returns an error that has persisted, once.
    fn met(&mut self, now_ns: u64, failed: Option<Error>) -> Option<&str> {
        let error = failed.map(|error| error.to_string()).unwrap_or_default();
        if error != self.error {
            *self = Self { error, since_ns: now_ns, told: false };
        }
        let stays = now_ns.saturating_sub(self.since_ns) >= STAYS.as_nanos() as u64;
        let news = stays && !self.error.is_empty() && !self.told;
        self.told |= news;
        news.then_some(self.error.as_str())
    }
}

const ROOT: u64 = u64::from_le_bytes(*b"flexroot");

/// State that the lock guards.
struct CoordinatorState {
    core: Coordinator,
    replies: BTreeMap<u64, Reply>,
    next_ticket: u64,
}

/// A coordinator and its driver. See the head of the module.
pub struct CoordinatorRpc {
    state: Mutex<CoordinatorState>,
    pub(super) runtime: Arc<dyn Runtime>,
    reach: Arc<dyn Reach>,
    pool: PoolClient,
    routes: Mutex<BTreeMap<ClientId, Arc<Route>>>,
    /// The load counters of the nodes.
    pub(super) meters: Mutex<BTreeMap<ClientId, Meter>>,
    /// Orders in flight.
    sending: Mutex<BTreeSet<(ClientId, Vec<u8>)>>,
    /// The directory, once the coordinator is in office.
    directory: Mutex<Option<(Table, BlockId)>>,
    looking: AtomicBool,
}

impl fmt::Debug for CoordinatorRpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CoordinatorRpc")
    }
}

struct CoordinatorHandler(Weak<CoordinatorRpc>);

impl Handler for CoordinatorHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let Some(rpc) = self.0.upgrade() else { return };
        match Message::decode(request.body) {
            Ok(message) => rpc.ask(&message, reply),
            Err(malformed) => {
                tracing::warn!(client = %request.client, %malformed, "a request was refused");
                let grant = Grant::default();
                reply.send(Message::Declined { why: Why::Malformed, grant }.encode());
            }
        }
    }
}

impl CoordinatorRpc {
    /// Makes a coordinator that is not in office yet, and the handler for the fabric's node that it
    /// is reached by. `pool` is a client with [`directory_label`]. Call [`CoordinatorRpc::start`]
    /// next.
    #[must_use]
    pub fn new(
        plan: Plan,
        runtime: Arc<dyn Runtime>,
        reach: Arc<dyn Reach>,
        pool: PoolClient,
    ) -> (Arc<Self>, Box<dyn Handler>) {
        let core = Coordinator::new(plan);
        let state = CoordinatorState { core, replies: BTreeMap::new(), next_ticket: 1 };
        let rpc = Arc::new(Self {
            state: Mutex::new(state),
            runtime,
            reach,
            pool,
            routes: Mutex::default(),
            meters: Mutex::default(),
            sending: Mutex::default(),
            directory: Mutex::default(),
            looking: AtomicBool::new(false),
        });
        let handler = Box::new(CoordinatorHandler(Arc::downgrade(&rpc)));
        (rpc, handler)
    }

    /// Starts the periodic work: taking office, ticks, and checks of dead clients. It ends when the
    /// coordinator is dropped, or when the pool declares it dead.
    pub fn start(self: &Arc<Self>, rhythm: Rhythm) {
        self.keep("flex-tick", rhythm.tick, |rpc| {
            rpc.with(Coordinator::on_tick);
            Box::pin(std::future::ready(Ok(())))
        });
        self.keep("flex-watch", rhythm.watch, |rpc| Box::pin(rpc.watch()));
        self.start_measuring();
    }

    /// Whether the pool declared this coordinator dead. Start another one then.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.pool.is_evicted()
    }

    fn keep<F>(self: &Arc<Self>, name: &'static str, pause: Duration, work: F)
    where
        F: for<'a> Fn(&'a Arc<Self>) -> Boxed<'a, Result<()>> + Send + Sync + 'static,
    {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let task = async move {
            let mut obstacle = Obstacle::default();
            loop {
                runtime.sleep(pause).await;
                let Some(rpc) = weak.upgrade().filter(|rpc| !rpc.is_over()) else { return };
                if let Some(error) = obstacle.met(runtime.now_ns(), work(&rpc).await.err()) {
                    tracing::warn!(error, name, "the store's coordinator does not get on");
                }
            }
        };
        self.runtime.spawn(name, Box::pin(task));
    }

    /// Reads the state machine under its lock.
    pub fn look<T>(&self, look: impl FnOnce(&Coordinator) -> T) -> T {
        look(&self.state.lock().core)
    }

    /// Assigns partitions as [`Coordinator::assign_by`] does.
    #[cfg(feature = "index-protocol")]
    pub fn assign_by(self: &Arc<Self>, protocol: Arc<dyn protocol::IndexProtocol>) {
        self.with(|core| core.assign_by(protocol));
    }

    /// Sets how the map follows the load from now on.
    pub fn tune(self: &Arc<Self>, tuning: Tuning) {
        self.with(|core| core.tune(tuning));
    }

    /// Sets the share of offloaded partitions, in permille, and switches the ratio controller off.
    pub fn set_offload(self: &Arc<Self>, share: u32) {
        self.with(|core| core.set_offload(share));
    }

    fn ask(self: &Arc<Self>, message: &Message, reply: Reply) {
        if matches!(message, Message::Status {}) {
            let rpc = Arc::clone(self);
            let task = async move {
                let status = rpc.status().await;
                reply.send(Message::StatusIs { status }.encode());
            };
            self.runtime.spawn("flex-status", Box::pin(task));
            return;
        }
        self.with_ticket(reply, |core, ticket| core.on_message(ticket, message));
    }

    fn with_ticket(self: &Arc<Self>, reply: Reply, work: impl FnOnce(&mut Coordinator, u64)) {
        let ticket = {
            let mut state = self.state.lock();
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.replies.insert(ticket, reply);
            ticket
        };
        self.with(|core| work(core, ticket));
    }

    pub(super) fn with(self: &Arc<Self>, work: impl FnOnce(&mut Coordinator)) {
        let (mut answers, mut orders, mut looks) = (Vec::new(), Vec::new(), false);
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            state.core.on_time(self.runtime.now_ns());
            work(&mut state.core);
            for action in state.core.take_actions() {
                match action {
                    Action::Answer { ticket, message } => {
                        answers.extend(state.replies.remove(&ticket).map(|reply| (reply, message)));
                    }
                    Action::Send { to, message } => {
                        let endpoints = state.core.endpoints(to).map(<[String]>::to_vec);
                        orders.extend(endpoints.map(|endpoints| (to, endpoints, message)));
                    }
                    Action::Look => looks = true,
                }
            }
        }
        for (reply, message) in answers {
            reply.send(message.encode());
        }
        for (to, endpoints, message) in orders {
            self.send(to, endpoints, message);
        }
        if looks && !self.looking.swap(true, Ordering::SeqCst) {
            self.look_up();
        }
    }

    /// Reads the directory for the state machine. If that fails, the next tick asks for it again.
    fn look_up(self: &Arc<Self>) {
        let rpc = Arc::clone(self);
        let task = async move {
            let looked = rpc.read_directory().await;
            rpc.looking.store(false, Ordering::SeqCst);
            match looked {
                Ok((bits, entries)) => {
                    rpc.with(|core| core.on_entries(bits, entries.as_deref()));
                }
                Err(error) => tracing::debug!(%error, "the directory"),
            }
        };
        self.runtime.spawn("flex-look", Box::pin(task));
    }

    fn until_ns(&self) -> u64 {
        self.runtime.now_ns().saturating_add(PATIENCE.as_nanos() as u64)
    }

    /// Finds or allocates the directory's block, enters the term, and reads the roster.
    async fn take_office(self: &Arc<Self>) -> Result<()> {
        let block_bytes = self.pool.block_bytes();
        if block_bytes == 0 {
            return Err(Error::busy("no memory node has joined yet"));
        }
        let (pool, runtime) = (self.pool.clone(), Arc::clone(&self.runtime));
        let table = Table::new(pool, runtime, Sabotage::default(), protocol::of_product())?;
        let directory = self.directory_block().await?;
        let tag = (self.pool.client().0 as u32).max(1);
        let term = table.take_office(directory, tag, self.until_ns()).await?;
        let roster = table.roster(directory, self.until_ns()).await?;
        let clients = roster.clients.into_iter().filter(|word| *word > 0).map(ClientId);
        let clients: Vec<ClientId> = clients.collect();
        tracing::info!(term, %directory, clients = clients.len(), "a coordinator takes office");
        *self.directory.lock() = Some((table, directory));
        self.with(|core| core.take_office(term, directory, &clients));
        Ok(())
    }

    /// The oldest block of this client's label. A later block that this coordinator allocated is
    /// given back.
    async fn directory_block(&self) -> Result<BlockId> {
        let label = self.pool.label();
        let mut found = self.pool.find(label).await?;
        let told = self.look(Coordinator::told_directory);
        if found.is_empty() && told.is_none() {
            // A manager that has just started does not know the blocks of memory nodes that it has
            // not heard. Compute nodes that work by a directory report it. So every live compute
            // node of the store must have reported before another directory is made.
            let clients = self.pool.status().await?.clients;
            let label = (label ^ ROOT).rotate_right(32);
            let of_the_store = clients.iter().filter(|client| client.label == label);
            let of_the_store: Vec<ClientId> = of_the_store.map(|client| client.client).collect();
            if !self.look(|core| core.has_heard_all(&of_the_store)) {
                return Err(Error::busy(
                    "no compute node has joined yet, or some of them do not answer",
                ));
            }
            // Records in the pool mean that there was an index. Its directory lies on memory nodes
            // that the manager has not heard since it started.
            if !self.pool.find(label).await?.is_empty() {
                return Err(Error::busy(
                    "the pool has blocks of the store and not its directory: memory nodes are missing",
                ));
            }
            self.pool.allocate(Sharing::All).await?;
            found = self.pool.find(self.pool.label()).await?;
        }
        let Some((directory, _)) = found.first().copied() else {
            return Err(Error::busy(
                "the pool does not list the directory's block yet; the coordinator tries again",
            ));
        };
        if told.is_some_and(|told| told != directory) {
            return Err(Error::busy(
                "compute nodes use another directory block than the pool names; the coordinator \
                 tries again",
            ));
        }
        for block in self.pool.owned().into_iter().filter(|block| *block != directory) {
            self.pool.release(block).await?;
        }
        Ok(directory)
    }

    async fn read_directory(&self) -> Result<(Option<u32>, Option<Vec<(u32, Shaped)>>)> {
        let Some((table, directory)) = self.directory.lock().clone() else {
            return Err(Error::busy("the coordinator is not in office"));
        };
        let bits = table.roster(directory, self.until_ns()).await?.partition_bits;
        let Some(geometry) = bits.and_then(Geometry::new) else { return Ok((None, None)) };
        let entries = table.entries(directory, geometry, self.until_ns()).await?;
        Ok((bits, entries))
    }

    pub(super) fn route(&self, to: ClientId) -> Arc<Route> {
        let mut routes = self.routes.lock();
        let me = self.pool.client();
        let route = || Arc::new(Route::new(&self.reach, me, Some(fabric_id(to))));
        Arc::clone(routes.entry(to).or_insert_with(route))
    }

    /// Sends an order, unless the same order is in flight.
    fn send(self: &Arc<Self>, to: ClientId, endpoints: Vec<String>, message: Message) {
        let order = (to, message.encode());
        if !self.sending.lock().insert(order.clone()) {
            return;
        }
        let rpc = Arc::clone(self);
        let task = async move {
            let answer = rpc.ask_node(to, &endpoints, &order.1, ORDER).await;
            rpc.sending.lock().remove(&order);
            tracing::debug!(
                at_us = rpc.runtime.now_ns() / 1000,
                node = %to,
                ?message,
                ?answer,
                "order"
            );
            if let Some(answer) = answer {
                rpc.with(|core| core.on_answer(to, &message, &answer));
            }
        };
        self.runtime.spawn("flex-order", Box::pin(task));
    }

    /// Asks a node. `None` if it does not answer in time.
    async fn ask_node(
        &self,
        to: ClientId,
        endpoints: &[String],
        body: &[u8],
        patience: Duration,
    ) -> Option<Message> {
        let link = self.route(to).link(endpoints, patience).await.ok()?;
        match link.request(Call::new(body, patience)).await {
            Ok(body) => Message::decode(&body).ok(),
            Err(_) => {
                link.close();
                None
            }
        }
    }

    /// State of the store, with the counters of its nodes.
    async fn status(&self) -> StoreStatus {
        let (mut status, members) = self.look(|core| (core.status(), core.members()));
        let count = Message::Count {}.encode();
        for member in members {
            let answer = self.ask_node(member.client, &member.endpoints, &count, COUNT).await;
            let node = status.nodes.iter_mut().find(|node| node.member == member);
            if let (Some(node), Some(Message::Counted { figures })) = (node, answer) {
                (node.answered, node.figures) = (true, figures);
            }
        }
        status
    }

    /// Takes office unless that is done, and tells the state machine which clients the pool
    /// declared dead.
    async fn watch(self: &Arc<Self>) -> Result<()> {
        if self.directory.lock().is_none() {
            self.take_office().await?;
        }
        for client in self.look(Coordinator::watched) {
            if !self.pool.is_gone(client).await? {
                continue;
            }
            tracing::info!(%client, "a compute node is gone");
            self.routes.lock().remove(&client);
            self.with(|core| core.on_gone(client));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persistent_obstacle_is_reported_once() {
        let late = STAYS.as_nanos() as u64;
        let of = |what: &str| Some(Error::busy(what.to_owned()));
        let mut obstacle = Obstacle::default();
        assert_eq!(obstacle.met(0, of("no nodes")), None);
        assert_eq!(obstacle.met(late - 1, of("no nodes")), None);
        assert_eq!(obstacle.met(late, None), None, "it passed");
        assert_eq!(obstacle.met(late + 1, of("no directory")), None);
        let told = obstacle.met(2 * late + 1, of("no directory")).map(str::to_owned);
        assert!(told.is_some_and(|told| told.contains("no directory")));
        assert_eq!(obstacle.met(9 * late, of("no directory")), None, "it was told");
        assert_eq!(obstacle.met(10 * late, None), None);
        assert_eq!(obstacle.met(20 * late, None), None, "nothing is in the way");
    }
}
