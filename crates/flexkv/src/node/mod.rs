//! The node: what every part of a compute node needs to read and write records and to reach other
//! nodes. It belongs to no protocol, and it knows neither proxies nor clients.
//!
//! [`Node`] owns the settings, the pool and its [`Table`], and the map. It owns the records of this
//! node (`records/`, `pieces.rs`, `reclaim.rs`) and its cache (`caching/`). It also owns the other
//! nodes (`peers.rs`) and its counters (`stats.rs`, `load_counters.rs`). Its owners are the compute
//! node and the parts above it, each by an `Arc`.
//!
//! Invariants:
//! 1. The map exists once the node has joined, and its geometry never changes.
//! 2. A request within a partition's gate finds the same entry of the map until it leaves.
//!
//! Thread-safety: any thread may call any method. No lock is held over an await.
//! Failure: a node that lost its lease in the pool serves nothing any more, and its calls end as
//! fenced. Start another node then.
//! Cost: the map takes some 40 bytes per partition.

pub(crate) mod caching;
mod load_counters;
pub(crate) mod peers;
mod pieces;
pub(crate) mod reclaim;
pub(crate) mod records;
mod stats;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::Runtime;
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{ClientId, Node as FabricNode, NodeId, Reach};
use archipelago_pool::PoolClient;
use parking_lot::{Mutex, RwLock};

use crate::format::{Geometry, KeyHash, Slot};
use crate::gates::{Gates, Inside};
use crate::ids::{ComputeId, PartitionId};
use crate::protocol::{self, Protocol};
use crate::settings::{FlexKvSettings, Sabotage};
use crate::table::Table;
use crate::wire::{Assigned, Grant, Member, Message, Why};

pub use caching::CacheStatus;
use caching::Caching;
use load_counters::LoadCounters;
use peers::Peers;
use reclaim::Reclaim;
use records::Records;
pub(crate) use stats::Stat;
use stats::Stats;

/// Time after which a request to another node is sent again.
pub(crate) const REQUEST: Duration = Duration::from_millis(50);
/// Least time between two tries of a request that was refused.
pub(crate) const PAUSE: Duration = Duration::from_micros(100);
/// Number of consecutive sweeps that may find held records before the node stops sweeping for them.
const SWEEPS_MAX: u32 = 3;

/// The map at one version.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub(crate) version: u64,
    pub(crate) geometry: Geometry,
    pub(crate) entries: Vec<Assigned>,
    pub(crate) members: Vec<Member>,
}

/// State of a node that has joined.
#[derive(Debug)]
pub(crate) struct Joined {
    number: u32,
    /// Equal to the map's geometry at every version.
    geometry: Geometry,
    gates: Gates,
    map: RwLock<Arc<Map>>,
    load_counters: Option<LoadCounters>,
}

impl Joined {
    /// The state of a node that has just got `number` and `map`. `lender` is the fabric's node that
    /// the load counters are lent from.
    pub(crate) fn new(number: u32, map: Map, lender: Option<&Weak<FabricNode>>) -> Result<Self> {
        let geometry = map.geometry;
        let load_counters = match lender {
            Some(lender) => LoadCounters::new(lender, geometry.partitions())?,
            None => None,
        };
        let gates = Gates::new(geometry.partitions());
        Ok(Self { number, geometry, gates, map: RwLock::new(Arc::new(map)), load_counters })
    }

    /// The number of this node, by which the map names it.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// This node among sharers and owners.
    #[inline]
    pub(crate) fn me(&self) -> ComputeId {
        ComputeId(self.number)
    }

    #[inline]
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The gates of the partitions, for requests of this node.
    #[inline]
    pub(crate) fn gates(&self) -> &Gates {
        &self.gates
    }

    /// The current map.
    pub(crate) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read())
    }

    /// The map's version, without a reference to the map.
    pub(crate) fn map_version(&self) -> u64 {
        self.map.read().version
    }

    /// Makes `change` to a copy of the map, which then replaces it.
    pub(crate) fn change_map(&self, change: impl FnOnce(&mut Map)) {
        let mut map = self.map.write();
        let mut next = Map::clone(&map);
        change(&mut next);
        *map = Arc::new(next);
    }

    /// The entry of a partition. It does not change while the caller is within the partition's
    /// gate.
    #[inline]
    pub(crate) fn entry(&self, partition: PartitionId) -> Assigned {
        self.map.read().entries[partition.0 as usize]
    }

    /// The entries of the partitions of these keys, under one lock.
    #[inline]
    pub(crate) fn entries_of(&self, hashes: &[KeyHash]) -> Vec<Assigned> {
        let map = self.map.read();
        let of = |hash: &KeyHash| map.entries[self.geometry.partition(*hash).0 as usize];
        hashes.iter().map(of).collect()
    }

    /// Whether a predicate holds for every member.
    pub(crate) fn all_members(&self, holds: impl FnMut(&Member) -> bool) -> bool {
        self.map.read().members.iter().all(holds)
    }
}

/// Parts of which a [`Node`] is made.
pub(crate) struct Around {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) reach: Arc<dyn Reach>,
    pub(crate) pool: PoolClient,
    /// Endpoints of the coordinator.
    pub(crate) coordinator: Vec<String>,
}

/// Changes of the protocol for checks and comparisons. The default is the product.
pub(crate) struct Hooks {
    pub(crate) sabotage: Sabotage,
    pub(crate) protocol: Protocol,
}

impl Default for Hooks {
    fn default() -> Self {
        Self { sabotage: Sabotage::default(), protocol: protocol::of_product() }
    }
}

/// See the head of the module.
pub(crate) struct Node {
    settings: FlexKvSettings,
    runtime: Arc<dyn Runtime>,
    pool: PoolClient,
    table: Table,
    records: Records,
    caching: Arc<Caching>,
    peers: Peers,
    joined: OnceLock<Joined>,
    stats: Stats,
    rng: Mutex<Rng>,
    reclaim: Arc<Reclaim>,
    /// Number of sweeps that are still wanted.
    sweeps_wanted: AtomicU32,
}

/// A compute node's name in the fabric. Each life of a node is a client of the pool, and its name
/// follows from that client.
#[must_use]
pub fn fabric_id(client: ClientId) -> (NodeId, Epoch) {
    (NodeId(client.0), Epoch(1))
}

impl Node {
    /// A node that has not joined yet. Busy if the pool has no memory node.
    #[cfg_attr(
        not(feature = "index-protocol"),
        expect(clippy::needless_pass_by_value, reason = "the product's hooks have no size")
    )]
    pub(crate) fn new(settings: FlexKvSettings, around: Around, hooks: Hooks) -> Result<Self> {
        let Around { runtime, reach, pool, coordinator } = around;
        let Hooks { sabotage, protocol } = hooks;
        let block_bytes = pool.block_bytes();
        if block_bytes == 0 {
            return Err(Error::busy("no memory node has joined yet"));
        }
        let table = Table::new(pool.clone(), Arc::clone(&runtime), sabotage, protocol)?;
        let asker = ClientId(runtime.seed());
        Ok(Self {
            records: Records::new(block_bytes),
            caching: Arc::new(Caching::new(&settings)?),
            peers: Peers::new(reach, pool.client(), asker, coordinator),
            joined: OnceLock::new(),
            stats: Stats::default(),
            rng: Mutex::new(Rng::with_seed(runtime.seed())),
            reclaim: Arc::default(),
            sweeps_wanted: AtomicU32::new(0),
            settings,
            runtime,
            pool,
            table,
        })
    }

    #[inline]
    pub(crate) fn settings(&self) -> &FlexKvSettings {
        &self.settings
    }

    #[inline]
    pub(crate) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    #[inline]
    pub(crate) fn pool(&self) -> &PoolClient {
        &self.pool
    }

    #[inline]
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    #[inline]
    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    #[inline]
    pub(crate) fn caching(&self) -> &Arc<Caching> {
        &self.caching
    }

    #[inline]
    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    #[inline]
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// This node as a client of the pool.
    #[inline]
    pub(crate) fn client(&self) -> ClientId {
        self.pool.client()
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.runtime.now_ns()
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.now_ns() / 1000
    }

    /// Unix time by the system that the runtime lives in. Expiries are compared with it.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.runtime.unix_ms()
    }

    /// Time at which a request that begins now ends as busy.
    pub(crate) fn until_ns(&self) -> u64 {
        self.now_ns().saturating_add(self.settings.patience.as_nanos() as u64)
    }

    /// Whether a record with this expiry has expired.
    pub(crate) fn is_expired(&self, expires_ms: u64) -> bool {
        expires_ms != 0 && self.unix_ms() >= expires_ms
    }

    /// The map and the state that belongs to it. Busy before the node has joined.
    #[inline]
    pub(crate) fn joined(&self) -> Result<&Joined> {
        self.joined.get().ok_or_else(|| Error::busy("the node has not joined the store yet"))
    }

    /// Sets the state of the node that has joined. `false` if it had joined before.
    pub(crate) fn set_joined(&self, joined: Joined) -> bool {
        self.joined.set(joined).is_ok()
    }

    /// Whether a client is a member, as far as this node knows. A request that arrives from a
    /// client that was removed has no effect.
    pub(crate) fn is_member(&self, client: ClientId) -> bool {
        let map = self.joined.get().map(Joined::map);
        map.is_some_and(|map| map.members.iter().any(|member| member.client == client))
    }

    /// Waits for [`PAUSE`] and a random part of it, so that two nodes do not try in step.
    pub(crate) async fn pause(&self) {
        let more = self.with_rng(|rng| rng.u64(..PAUSE.as_nanos() as u64));
        self.runtime.sleep(PAUSE + Duration::from_nanos(more)).await;
    }

    /// Draws random numbers.
    pub(crate) fn with_rng<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock())
    }

    /// Counts a call to a partition that was answered, for the coordinator.
    pub(crate) fn count(&self, partition: u32, read: bool) {
        let counters = self.joined.get().and_then(|joined| joined.load_counters.as_ref());
        if let Some(counters) = counters {
            counters.count(PartitionId(partition), read);
        }
    }

    /// Counts calls to these partitions that were answered.
    pub(crate) fn count_many(&self, partitions: impl Iterator<Item = u32>, read: bool) {
        let counters = self.joined.get().and_then(|joined| joined.load_counters.as_ref());
        if let Some(counters) = counters {
            counters.count_many(partitions.map(PartitionId), read);
        }
    }

    /// Tells the coordinator the place of this node's counters.
    pub(crate) fn load_counters_message(&self) -> Message {
        let Some(joined) = self.joined.get() else { return self.declined(Why::Busy) };
        match &joined.load_counters {
            Some(counters) => {
                Message::Metered { key: counters.key(), partitions: joined.geometry.partitions() }
            }
            None => self.declined(Why::Resolve),
        }
    }

    /// A refusal, with this node's clock.
    pub(crate) fn declined(&self, why: Why) -> Message {
        Message::Declined { why, grant: Grant { stamp_us: self.now_us(), ..Grant::default() } }
    }

    /// The refusal of a node without a lease of the pool. `None` if it has one.
    pub(crate) fn fenced(&self) -> Option<Message> {
        (!self.table.holds_lease()).then(|| self.declined(Why::Fenced))
    }

    /// The word of a slot that is deleted now. No two deletions give the same word.
    pub(crate) fn deleted_now(&self) -> Slot {
        Slot::deleted(self.now_us(), self.with_rng(|rng| rng.u16(..)))
    }

    /// Wants a sweep of this node's blocks (`sweep.rs`).
    pub(crate) fn want_sweep(&self) {
        self.sweeps_wanted.store(SWEEPS_MAX, Ordering::SeqCst);
    }

    /// Takes the number of sweeps that are wanted. Wishes after this call are for the next sweep.
    pub(crate) fn take_sweeps_wanted(&self) -> u32 {
        self.sweeps_wanted.swap(0, Ordering::SeqCst)
    }

    /// Wants at least `sweeps` further sweeps.
    pub(crate) fn want_sweeps_again(&self, sweeps: u32) {
        self.sweeps_wanted.fetch_max(sweeps, Ordering::SeqCst);
    }

    /// Enters the gate of a key's partition, and returns the partition's entry in the map. Busy if
    /// the gate stays closed until `until_ns`.
    pub(crate) async fn enter(
        &self,
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<(Inside<'_>, Assigned)> {
        let joined = self.joined()?;
        let partition = joined.geometry.partition(hash);
        if let Some(inside) = joined.gates.try_enter(partition) {
            return Ok((inside, joined.entry(partition)));
        }
        let left_ns = until_ns.saturating_sub(self.now_ns());
        let mut entering = pin!(joined.gates.enter(partition));
        let mut waiting = self.runtime.sleep(Duration::from_nanos(left_ns));
        let inside = poll_fn(|context| {
            if let Poll::Ready(inside) = entering.as_mut().poll(context) {
                return Poll::Ready(Some(inside));
            }
            waiting.as_mut().poll(context).map(|()| None)
        });
        let Some(inside) = inside.await else {
            return Err(Error::busy(format!("{partition} is being moved, for too long")));
        };
        Ok((inside, joined.entry(partition)))
    }
}
