//! A compute node: clients work through it, it serves partitions of the index, it obeys the
//! coordinator.
//!
//! | part | in |
//! | --- | --- |
//! | what callers see: get, set, insert, update, delete | `client/` |
//! | requests of other nodes to the partitions that it serves | `proxy/` |
//! | the map, and how it changes | `membership.rs` |
//! | records: room, what is given back, what was lost, what expired | `records.rs`, `pieces.rs`, `reclaim.rs`, `sweep.rs`, `expiry.rs` |
//! | what is cached, on which leases, within how many bytes | `caching.rs` |
//! | other nodes, and how they are asked | `peers.rs` |
//! | what it counts | `stats.rs` |
//!
//! Thread-safety: all of it; no lock is held over an await. Failure: a node that lost its place in
//! the pool serves nothing any more and ends its calls as fenced: start another. Cost: state per
//! partition is some 40 bytes, and its slots while it is its proxy.

pub(crate) mod caching;
pub(crate) mod load_counters;
pub(crate) mod peers;
pub(crate) mod pieces;
pub(crate) mod reclaim;
pub(crate) mod records;
mod stats;

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::{Gate, Runtime};
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{ClientId, Handler, Node, NodeId, Reply, Request};
use archipelago_pool::{Address, PoolClient, Reach};
use parking_lot::{Mutex, RwLock};

use crate::combining::Combining;
use crate::contended::Contended;
use crate::format::{Geometry, KeyHash, packing};
use crate::gates::Gates;
use crate::ids::PartitionId;
use crate::protocol::{self, Protocol};
use crate::proxy::{Leases, Proxy};
use crate::settings::{FlexKvSettings, Sabotage};
use crate::table::Table;
use crate::wire::{Assigned, Figure, Grant, Member, Message, Why};

use crate::membership::{MapStatus, Standing};
pub use caching::CacheStatus;
use caching::{Caching, count};
use load_counters::Counters;
use peers::{Class, Peers};
use reclaim::Frees;
use records::Records;
pub(crate) use stats::{Count, Counts};

/// A request to another node is sent again after so long.
pub(crate) const REQUEST: Duration = Duration::from_millis(50);
/// Between two tries of what was refused.
pub(crate) const PAUSE: Duration = Duration::from_micros(100);

/// What the map says, at one version.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub(crate) version: u64,
    pub(crate) geometry: Geometry,
    pub(crate) entries: Vec<Assigned>,
    pub(crate) members: Vec<Member>,
}

/// What a node knows once it has joined.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) number: u32,
    /// As the map's, at every version.
    pub(crate) geometry: Geometry,
    pub(crate) gates: Gates,
    pub(crate) map: RwLock<Arc<Map>>,
    pub(crate) counters: Option<Counters>,
}

pub(crate) struct Inner {
    pub(crate) settings: FlexKvSettings,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) pool: PoolClient,
    pub(crate) table: Table,
    pub(crate) records: Records,
    pub(crate) proxy: Proxy,
    /// Leases that this node gave; those that it holds are in `caching`.
    pub(crate) leases: Leases,
    pub(crate) caching: Arc<Caching>,
    pub(crate) peers: Peers,
    pub(crate) standing: Mutex<Standing>,
    /// Partitions are taken for one change at a time.
    pub(crate) taking: Gate,
    pub(crate) rng: Mutex<Rng>,
    pub(crate) counts: Counts,
    /// Writes of this node's clients, by key.
    pub(crate) combining: Arc<Combining>,
    pub(crate) contended: Contended,
    pub(crate) endpoints: Vec<String>,
    pub(crate) announcing: AtomicBool,
    pub(crate) frees: Arc<Frees>,
    /// Sweeps that are to come.
    pub(crate) wants_sweep: AtomicU32,
    pub(crate) joined: OnceLock<Joined>,
    /// What counters are lent from.
    pub(crate) lends: OnceLock<Weak<Node>>,
}

/// See the module.
#[derive(Clone)]
pub struct ComputeNode(pub(crate) Arc<Inner>);

impl fmt::Debug for ComputeNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ComputeNode({})", self.0.pool.client())
    }
}

/// Where a node is reached and whom it reaches.
#[derive(Debug)]
pub struct Surroundings {
    /// Time and tasks.
    pub runtime: Arc<dyn Runtime>,
    /// Ways to other nodes.
    pub reach: Arc<dyn Reach>,
    /// This node as a client of the pool, of the store's label.
    pub pool: PoolClient,
    /// Where the coordinator is.
    pub coordinator: Vec<String>,
    /// Where this node is reached.
    pub endpoints: Vec<String>,
}

/// What a node serves and caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// Partitions that it serves or looks after.
    pub served: usize,
    /// Of those: it is their proxy.
    pub offloaded: usize,
    /// Its cache, and its memory limit.
    pub cache: CacheStatus,
}

/// A compute node's name in the fabric: a life is a client of the pool.
#[must_use]
pub fn fabric_id(client: ClientId) -> (NodeId, Epoch) {
    (NodeId(client.0), Epoch(1))
}

/// The fabric's handler of a node's requests.
struct RequestHandler(Weak<Inner>);

impl Handler for RequestHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let Some(inner) = self.0.upgrade() else { return };
        let message = match Message::decode(request.body) {
            Ok(message) => message,
            Err(malformed) => {
                tracing::warn!(client = %request.client, %malformed, "a request was refused");
                let grant = Grant::default();
                reply.send(Message::Declined { why: Why::Malformed, grant }.encode());
                return;
            }
        };
        let from = Class::of(&message).client(request.client);
        if let Some(answer) = inner.answer_at_once(from, &message) {
            reply.send(answer.encode());
            return;
        }
        let runtime = Arc::clone(&inner.runtime);
        let mut task = Box::pin(async move {
            let answer = inner.answer(from, message).await;
            drop(inner);
            reply.send(answer.encode());
        });
        // Over shared memory most requests are done without waiting: here, then. The rest goes on
        // as a task, which is polled anew.
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            runtime.spawn("flex-request", task);
        }
    }
}

impl ComputeNode {
    /// A node that has not joined yet, and the handler for the fabric's node that it is reached by.
    pub fn new(settings: FlexKvSettings, around: Surroundings) -> Result<(Self, Box<dyn Handler>)> {
        Self::with_hooks(settings, around, Sabotage::default(), protocol::of_product())
    }

    /// As [`ComputeNode::new`], without the steps of the protocol that `sabotage` leaves out.
    #[cfg(feature = "sabotage")]
    pub fn sabotaged(
        settings: FlexKvSettings,
        around: Surroundings,
        sabotage: Sabotage,
    ) -> Result<(Self, Box<dyn Handler>)> {
        Self::with_hooks(settings, around, sabotage, protocol::of_product())
    }

    /// As [`ComputeNode::new`], with another protocol for the index.
    #[cfg(feature = "index-protocol")]
    pub fn with_protocol(
        settings: FlexKvSettings,
        around: Surroundings,
        protocol: Arc<dyn protocol::IndexProtocol>,
    ) -> Result<(Self, Box<dyn Handler>)> {
        Self::with_hooks(settings, around, Sabotage::default(), protocol)
    }

    fn with_hooks(
        settings: FlexKvSettings,
        around: Surroundings,
        sabotage: Sabotage,
        protocol: Protocol,
    ) -> Result<(Self, Box<dyn Handler>)> {
        settings.validate()?;
        let Surroundings { runtime, reach, pool, coordinator, endpoints } = around;
        let block_bytes = pool.block_bytes();
        if block_bytes == 0 {
            return Err(Error::busy("no memory node is there yet"));
        }
        let packing = packing(block_bytes)?;
        let table = Table {
            pool: pool.clone(),
            runtime: Arc::clone(&runtime),
            packing,
            sabotage,
            protocol,
        };
        let asker = ClientId(runtime.seed());
        let peers = Peers::new(&reach, pool.client(), asker, coordinator);
        let inner = Arc::new(Inner {
            records: Records::new(block_bytes),
            proxy: Proxy::default(),
            leases: Leases::new(settings.terms()),
            caching: Arc::new(Caching::new(&settings)?),
            standing: Mutex::default(),
            taking: Gate::default(),
            rng: Mutex::new(Rng::with_seed(runtime.seed())),
            counts: Counts::default(),
            combining: Arc::default(),
            contended: Contended::default(),
            announcing: AtomicBool::new(false),
            frees: Arc::default(),
            wants_sweep: AtomicU32::new(0),
            joined: OnceLock::new(),
            lends: OnceLock::new(),
            settings,
            runtime,
            pool,
            table,
            peers,
            endpoints,
        });
        let door = Box::new(RequestHandler(Arc::downgrade(&inner)));
        Ok((Self(inner), door))
    }

    /// The fabric's node that this one is reached by: what it counts is lent from there, for the
    /// coordinator to read. To be called before [`join`](Self::join); a node that was not told is
    /// taken for one without load.
    pub fn lend_counters(&self, node: &Arc<Node>) {
        let _the_first_one_counts = self.0.lends.set(Arc::downgrade(node));
    }

    /// Joins the store; to be called when the handler can be reached. Makes the store if this is
    /// the first node of it.
    pub async fn join(&self) -> Result<()> {
        if !self.0.announcing.swap(true, Ordering::SeqCst) {
            self.0.keep_announcing();
        }
        self.0.join().await
    }

    /// As which client of the pool it works.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.0.pool.client()
    }

    /// As which node of the fabric it is to be served: so nobody takes a node that came after it at
    /// the same address for it.
    #[must_use]
    pub fn fabric_id(&self) -> (NodeId, Epoch) {
        fabric_id(self.client())
    }

    /// Whether it was taken for dead: its calls end as fenced, and another is to be started.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.pool.is_evicted()
    }

    /// What it counted since it was started, by name.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        self.0.figures()
    }

    /// Whether requests wait at the moment, for a change of the map or because the node has no
    /// lease: who must not wait asks before.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.0.joined().map_or(true, |joined| joined.gates.any_closed())
    }

    /// The pieces of this node's blocks that are in use, with their bytes; for checks.
    #[must_use]
    pub fn pieces(&self) -> Vec<(Address, u64)> {
        self.0.records.pieces.lock().in_use()
    }

    /// The map as this node has it; `None` before it has joined.
    #[must_use]
    pub fn map_status(&self) -> Option<MapStatus> {
        self.0.map_status()
    }

    /// What this node serves and caches.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        let (served, offloaded) = self.0.proxy.counts();
        NodeStatus { served, offloaded, cache: self.0.caching.status() }
    }
}

impl Inner {
    pub(crate) fn now_ns(&self) -> u64 {
        self.runtime.now_ns()
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.now_ns() / 1000
    }

    pub(crate) fn until_ns(&self) -> u64 {
        self.now_ns().saturating_add(self.settings.patience.as_nanos() as u64)
    }

    pub(crate) fn joined(&self) -> Result<&Joined> {
        self.joined.get().ok_or_else(|| Error::busy("the node has not joined the store yet"))
    }

    /// Whether a client is a member, as far as this node knows: who was is gone, and what it says
    /// late counts for nothing.
    pub(crate) fn is_member(&self, client: ClientId) -> bool {
        let map = self.joined.get().map(|joined| Arc::clone(&joined.map.read()));
        map.is_some_and(|map| map.members.iter().any(|member| member.client == client))
    }

    pub(crate) async fn pause(&self) {
        let more = self.rng.lock().u64(..PAUSE.as_nanos() as u64);
        self.runtime.sleep(PAUSE + Duration::from_nanos(more)).await;
    }

    /// A call to a partition was answered.
    pub(crate) fn count(&self, partition: u32, read: bool) {
        let counters = self.joined.get().and_then(|joined| joined.counters.as_ref());
        if let Some(counters) = counters {
            counters.count(PartitionId(partition), read);
        }
    }

    /// Calls to these partitions were answered.
    pub(crate) fn count_many(&self, partitions: impl Iterator<Item = u32>, read: bool) {
        let counters = self.joined.get().and_then(|joined| joined.counters.as_ref());
        if let Some(counters) = counters {
            counters.count_many(partitions.map(PartitionId), read);
        }
    }

    /// Where the coordinator finds what was counted.
    fn counted(&self) -> Message {
        let Some(joined) = self.joined.get() else { return self.declined(Why::Busy) };
        match &joined.counters {
            Some(counters) => {
                let partitions = joined.map.read().geometry.partitions();
                Message::Metered { key: counters.key(), partitions }
            }
            None => self.declined(Why::Resolve),
        }
    }

    pub(crate) fn declined(&self, why: Why) -> Message {
        Message::Declined { why, grant: Grant { stamp_us: self.now_us(), ..Grant::default() } }
    }

    /// What needs no waiting.
    pub(crate) fn answer_at_once(&self, from: ClientId, message: &Message) -> Option<Message> {
        let came_us = self.now_us();
        Some(match message {
            Message::Search { partition, epoch, hash, reads } => {
                self.counts.add(Count::Served);
                let at = (PartitionId(*partition), *epoch);
                self.search(from, at, KeyHash(*hash), *reads)
            }
            Message::Locate { partition, epoch, hash } => {
                self.counts.add(Count::Served);
                self.locate(from, (PartitionId(*partition), *epoch), KeyHash(*hash))
            }
            Message::Slots { partition, epoch, bucket, buckets } => {
                self.slots_of_buckets((PartitionId(*partition), *epoch), *bucket, *buckets)
            }
            Message::Meter {} => self.counted(),
            Message::Renew {} => Message::Renewed { grant: self.lease_to(from, came_us).0 },
            Message::Reads { partition, epoch, counts } => {
                self.count_reads(PartitionId(*partition), *epoch, counts);
                Message::Renewed { grant: self.lease_to(from, came_us).0 }
            }
            Message::Invalidate { hash } => {
                count(&self.caching.counters.invalidations_received);
                self.caching.invalidate(KeyHash(*hash));
                Message::Done {}
            }
            Message::Sweep {} => {
                self.want_sweep();
                Message::Done {}
            }
            Message::Room { bytes, expires } if self.is_member(from) => {
                self.lend_room(*bytes, *expires)
            }
            Message::Count {} => Message::Counted { figures: self.figures() },
            _ => return None,
        })
    }

    async fn answer(self: &Arc<Self>, from: ClientId, message: Message) -> Message {
        match message {
            Message::Write { .. } => {
                self.counts.add(Count::Served);
                self.write_index(from, &message).await
            }
            // Who is not known yet asks again; who is gone does not.
            Message::Free { .. } if !self.is_member(from) => self.declined(Why::Busy),
            Message::Delegate { .. } => {
                self.counts.add(Count::Served);
                self.set_for(from, &message).await
            }
            Message::Free { words } => self.free_here(&words).await,
            Message::Refers { .. } => self.what_refers(&message).await,
            Message::Holds { blocks } => self.what_is_held(&blocks),
            Message::Settle { partition, epoch, place } => {
                self.settle(PartitionId(partition), epoch, place).await
            }
            Message::Create { .. }
            | Message::Pause { .. }
            | Message::Prepare { .. }
            | Message::Resume { .. }
            | Message::Recall { .. } => self.obey(message).await,
            _ => self.declined(Why::Malformed),
        }
    }
}
