//! A memory node as a process runs it: a fabric node, its listeners and its threads.
//!
//! [`MemoryServer`] owns all of it. One thread per manager sends beats, and one thread copies bytes
//! for the manager's orders. Memtable shards have threads of their own, which start with the first
//! request of an owner.
//!
//! Invariants: 1. Every life of the node has a larger number than the previous life, because the
//! number comes from the wall clock.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a beat or a copy that fails is tried again. Dropping the server ends the threads.
//! Cost: one thread per manager, one thread for copies, and those of [`shard_threads`] after the
//! first request of an owner.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::entropy_seed;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{
    Batch, ClientId, Endpoints, Line, Listener, Node, NodeId, NodeStats, RemoteKey, Secret,
};
use archipelago_offload::shard_host::{
    HostFigures, HostThreads, NodeBytes, ShardHost, ShardLimits,
};
use archipelago_pool::wire::{Message, NodeCounters, Purpose, Why};
use archipelago_pool::{BLOCK_BYTES, Packing, copier};
use rustix::process::{Pid, Signal, kill_process};

use crate::core::Limits;
use crate::handler::MemoryHandler;
use crate::rpc::{MemoryRpc, Order};

/// Time after which an unanswered request counts as lost.
const REQUEST: Duration = Duration::from_millis(500);
/// Time between beats until the manager names an interval.
const FIRST_BEATS: Duration = Duration::from_millis(50);
/// Bytes of one READ while a copy is filled.
const PART: u64 = 1 << 20;
/// Time after which the copying thread checks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// Smallest size of a block in bytes: a page.
const BLOCK_BYTES_MIN: u64 = 4096;

/// Settings of a memory node.
#[derive(Clone, Debug)]
pub struct MemorySettings {
    /// The node's id, which stays the same over restarts.
    pub id: NodeId,
    /// Largest number of bytes for blocks. The node does not use the rest beyond the last whole
    /// block.
    pub size_bytes: u64,
    /// Size of a block in bytes: a power of two, the same on all nodes of a cluster. Default: 16
    /// MiB.
    pub block_bytes: u64,
    /// Endpoints at which the node listens.
    pub listen: Vec<String>,
    /// Endpoints that other members use instead of those in `listen` at the same index.
    pub advertise: Vec<String>,
    /// Endpoints of all managers, of the one in office and of the standby managers.
    pub manager: Vec<String>,
    /// The cluster's secret. Without one the node listens on loopback addresses only. Default:
    /// none.
    pub secret: Option<Secret>,
    /// Limit of the bytes of memtable shards and their landing zones, which are part of
    /// `size_bytes`. 0 makes the node refuse shards. Default: half of `size_bytes`.
    pub shard_bytes_max: u64,
    /// Time after which the node kills a process that still has memory mapped by a revoked key.
    /// Default: never, and the node waits for the process.
    pub end_holders_after: Option<Duration>,
}

impl MemorySettings {
    /// Settings with defaults, for one listener and one manager.
    #[must_use]
    pub fn new(id: NodeId, size_bytes: u64, listen: String, manager: String) -> Self {
        Self {
            id,
            size_bytes,
            block_bytes: BLOCK_BYTES,
            listen: vec![listen],
            advertise: Vec::new(),
            manager: vec![manager],
            secret: None,
            shard_bytes_max: size_bytes / 2,
            end_holders_after: None,
        }
    }

    /// An error that names the first setting that is not valid; otherwise the limits of the memory.
    pub fn validate(&self) -> Result<Limits> {
        let (size, block) = (self.size_bytes, self.block_bytes);
        if !block.is_power_of_two() || !(BLOCK_BYTES_MIN..=1 << 32).contains(&block) {
            return Err(Error::invalid(format!(
                "a block of {block} bytes: it must be a power of two from 4096 to 4 GiB"
            )));
        }
        if size < block {
            return Err(Error::invalid(format!(
                "a size of {size} bytes: it must hold at least one block of {block} bytes"
            )));
        }
        let packing = Packing::new(BLOCK_BYTES, 64, 47)?;
        if self.id.0 == 0 || self.id > packing.node_max() {
            let most = packing.node_max();
            return Err(Error::invalid(format!("node id {}: it must be 1 to {most}", self.id)));
        }
        Ok(Limits { block_bytes: block, blocks_max: size / block })
    }
}

/// Number of threads that search and copy memtable shards on a machine with `cores` cores. They
/// start with the first request of an owner. There are at least two, because searches must go on
/// during copies, which get at most half of the threads. More than eight threads would only compete
/// for the lock of the queue and for the bandwidth of the memory. The machine also runs the threads
/// of the fabric and, with `--share` or `--store`, jobs.
const fn shard_threads(cores: usize) -> usize {
    match cores {
        0..=2 => 2,
        3..=7 => cores,
        _ => 8,
    }
}

struct ServerState {
    settings: MemorySettings,
    rpc: Arc<MemoryRpc>,
    shards: Arc<ShardHost>,
    node: Arc<Node>,
    endpoints: Arc<Endpoints>,
    clock: Arc<dyn Clock>,
    stop: AtomicBool,
    addresses: Vec<String>,
    /// Time of the last answer of a manager to a beat, in nanoseconds of the clock; 0 before the
    /// first.
    answered_ns: AtomicU64,
}

/// Figures of a memory node at one moment.
#[derive(Clone, Debug)]
pub struct MemoryFigures {
    /// The node's id.
    pub node: NodeId,
    /// Size of a block in bytes, and the largest number of blocks.
    pub limits: Limits,
    /// Number of blocks that use memory, including those that wait to be given up.
    pub blocks_used: u64,
    /// Number of copies that hold all bytes of their block.
    pub whole_copies: u64,
    /// Number of copies that wait for bytes of another node.
    pub filling_copies: u64,
    /// Number of copies that clients may use.
    pub installed_copies: u64,
    /// Counters of the protocol since the life began.
    pub counters: NodeCounters,
    /// Counters of the fabric's node.
    pub fabric: NodeStats,
    /// Figures of the memtable shards.
    pub shards: HostFigures,
    /// Time since a manager answered a beat; `None` before the first answer.
    pub since_manager: Option<Duration>,
}

/// Handle with which any thread can take the figures of a memory node.
#[derive(Clone)]
pub struct MemoryMonitor(Arc<ServerState>);

impl std::fmt::Debug for MemoryMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryMonitor({})", self.0.settings.id)
    }
}

impl MemoryMonitor {
    /// The figures of the node; `None` after it has ended. It costs one pass over the copies, under
    /// the lock that requests take, too.
    #[must_use]
    pub fn figures(&self) -> Option<MemoryFigures> {
        let state = &self.0;
        let fabric = state.node.stats();
        let limits = state.settings.validate().ok()?;
        let answered_ns = state.answered_ns.load(Ordering::Relaxed);
        let since_ns = state.clock.now_ns().saturating_sub(answered_ns);
        let shards = state.shards.figures()?;
        state.rpc.look(|core| {
            let (mut whole_copies, mut filling_copies, mut installed_copies) = (0, 0, 0);
            for (_, is_whole, is_installed) in core.copies() {
                whole_copies += u64::from(is_whole);
                filling_copies += u64::from(!is_whole);
                installed_copies += u64::from(is_installed);
            }
            MemoryFigures {
                node: core.node(),
                limits,
                blocks_used: core.blocks_used(),
                whole_copies,
                filling_copies,
                installed_copies,
                counters: core.counters(fabric),
                fabric,
                shards,
                since_manager: (answered_ns > 0).then(|| Duration::from_nanos(since_ns)),
            }
        })
    }
}

/// A running memory node. Dropping the value ends it and loses its copies. The copies of the blocks
/// on other nodes stay.
pub struct MemoryServer {
    shared: Arc<ServerState>,
    listeners: Vec<Box<dyn Listener>>,
    threads: Vec<Joiner>,
}

impl std::fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryServer({})", self.shared.settings.id)
    }
}

impl MemoryServer {
    /// Starts a node in a new life, whose number is the wall clock's time. It serves as soon as the
    /// manager knows it.
    pub fn start(settings: MemorySettings) -> Result<Self> {
        let limits = settings.validate()?;
        let clock = SystemClock::shared();
        let life = Epoch(clock.unix_ms());
        let bytes = NodeBytes::new(limits.blocks_max * limits.block_bytes);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = HostThreads::Own(Arc::new(SystemSpawn), shard_threads(cores));
        let shard_limits = ShardLimits::new(settings.shard_bytes_max);
        let shards = ShardHost::new(shard_limits, Arc::clone(&bytes), Arc::clone(&clock), threads);
        let make = |pool| {
            let handler = MemoryHandler { pool, shards: Arc::clone(&shards) };
            Node::new(settings.id, life, Some(Box::new(handler)))
        };
        let (rpc, node) = MemoryRpc::start(settings.id, life, limits, &clock, make)?;
        rpc.share(bytes);
        shards.open(&node);
        let endpoints = Arc::new(Endpoints::new().with_secret(settings.secret.clone()));
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for (place, listen) in settings.listen.iter().enumerate() {
            let listener = endpoints.serve(&node, listen)?;
            let kind = listen.split(':').next().unwrap_or_default();
            let bound = format!("{kind}:{}", listener.address());
            addresses.push(settings.advertise.get(place).cloned().unwrap_or(bound));
            listeners.push(listener);
        }
        let shared = Arc::new(ServerState {
            settings,
            rpc,
            shards,
            node,
            endpoints,
            clock,
            stop: AtomicBool::new(false),
            addresses,
            answered_ns: AtomicU64::new(0),
        });
        let mut threads = Vec::new();
        // Each manager has a thread of its own, so that a silent manager does not delay the others.
        for manager in shared.settings.manager.clone() {
            let beating = Arc::clone(&shared);
            let beat = Box::new(move || beating.beat(manager));
            threads.push(SystemSpawn.spawn("memory-beat", beat)?);
        }
        let copying = Arc::clone(&shared);
        threads.push(SystemSpawn.spawn("memory-copy", Box::new(move || copying.copy_all()))?);
        Ok(Self { shared, listeners, threads })
    }

    /// Endpoints of the node, as other members know them.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.shared.addresses
    }

    /// Number of the present life.
    #[must_use]
    pub fn life(&self) -> Epoch {
        self.shared.node.epoch()
    }

    /// Number of blocks that use memory.
    #[must_use]
    pub fn blocks_used(&self) -> u64 {
        self.shared.rpc.look(crate::core::MemoryCore::blocks_used).unwrap_or(0)
    }

    /// A handle that takes figures of the node.
    #[must_use]
    pub fn monitor(&self) -> MemoryMonitor {
        MemoryMonitor(Arc::clone(&self.shared))
    }

    /// The host of memtable shards, whose images an executor in this process reads in place.
    #[must_use]
    pub fn shard_host(&self) -> Arc<ShardHost> {
        Arc::clone(&self.shared.shards)
    }

    /// The fabric's node, for its counters.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.shared.node
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.listeners.clear();
        self.shared.rpc.close();
        self.shared.shards.close();
        for thread in self.threads.drain(..) {
            if let Err(error) = thread.join() {
                tracing::error!(%error, "a thread of the memory node panicked");
            }
        }
    }
}

impl ServerState {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn beat(&self, manager: String) {
        let me = ClientId(entropy_seed());
        let line = Line::new(&self.endpoints, vec![manager], me, None);
        let mut stuck = HashMap::new();
        let mut heard = true;
        while !self.stopped() {
            let Some(beat) = self.rpc.beat(self.addresses.clone()) else { return };
            let answer = line.ask(&beat, REQUEST);
            let wait_ms = match &answer {
                Ok(Message::Refuse { refused })
                    if matches!(refused.why, Why::BlockSize | Why::Unlisted) =>
                {
                    tracing::error!(%refused, "the manager does not admit this node");
                    None
                }
                Ok(answer) => self.rpc.on_beat_answer(answer),
                Err(error) => {
                    if heard {
                        tracing::warn!(%error, "the manager does not answer; the node continues to serve");
                    }
                    None
                }
            };
            heard = answer.is_ok();
            if heard {
                self.answered_ns.store(self.clock.now_ns().max(1), Ordering::Relaxed);
            }
            self.rpc.tick();
            self.shards.tick();
            self.end_holders(&mut stuck);
            self.clock.sleep(wait_ms.map_or(FIRST_BEATS, Duration::from_millis));
        }
    }

    /// Kills processes that have had memory mapped by a revoked key for too long.
    fn end_holders(&self, stuck: &mut HashMap<RemoteKey, u64>) {
        let Some(patience) = self.settings.end_holders_after else { return };
        let now_ns = self.clock.now_ns();
        let held = self.rpc.held().unwrap_or_default();
        stuck.retain(|key, _| held.contains(key));
        for key in held {
            let since_ns = *stuck.entry(key).or_insert(now_ns);
            if now_ns.saturating_sub(since_ns) < patience.as_nanos() as u64 {
                continue;
            }
            for holder in self.node.holders(&key) {
                let Some(pid) = Pid::from_raw(holder.pid.cast_signed()) else { continue };
                if holder.pid == std::process::id() {
                    continue;
                }
                tracing::warn!(pid = holder.pid, client = %holder.client, "the node kills a process that keeps revoked memory mapped");
                if let Err(error) = kill_process(pid, Signal::KILL) {
                    tracing::warn!(%error, pid = holder.pid, "the process could not be killed");
                }
            }
        }
    }

    fn copy_all(&self) {
        let mut lines = HashMap::new();
        while !self.stopped() {
            let Some(order) = self.rpc.take_order(LOOK) else { continue };
            let from = &order.order.source;
            let me = copier(self.settings.id, self.node.epoch());
            let line = lines.entry((from.node, from.life)).or_insert_with(|| {
                let peer = Some((from.node, from.life));
                Line::new(&self.endpoints, from.endpoints.clone(), me, peer)
            });
            let copied = self.copy(line, me, &order);
            if let Err(error) = &copied {
                let block = order.order.block;
                tracing::warn!(%error, %block, "a block was not copied; the manager will order it again");
            }
            self.rpc.on_copied(&order.order, copied.is_ok());
            line.hang_up();
        }
    }

    fn copy(&self, line: &Line, client: ClientId, order: &Order) -> Result<()> {
        let (block, epoch) = (order.order.block, order.order.epoch);
        let open = Message::Open { client, block, epoch, purpose: Purpose::Copy };
        let key = match line.ask(&open, REQUEST)? {
            Message::Opened { key, .. } => key,
            Message::Refuse { refused } => return Err(refused.error("the block's source")),
            other => {
                return Err(Error::unsupported(format!(
                    "the source sent an unexpected answer: {}",
                    other.name()
                )));
            }
        };
        let link = line.link(REQUEST)?;
        let source = link.attach(&key).wait().map_err(|refusal| refusal.error("the source"))?;
        let mut batch = Batch::new();
        let mut offset = 0;
        while offset < key.len && !self.stopped() {
            batch.clear();
            batch.read(source, offset, PART.min(key.len - offset) as u32);
            batch = link.post(batch).wait();
            batch.check()?;
            if !self.rpc.write_part(order, offset, batch.data(0)) {
                return Err(Error::not_found(format!(
                    "the copy of block {block} at epoch {epoch}"
                )));
            }
            offset += PART;
        }
        link.detach(source);
        if offset < key.len { Err(Error::busy("the node is stopping")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_fabric::{Call, Connect, Provider, Session, Tcp};
    use archipelago_offload::ids::OwnerStamp;
    use archipelago_offload::wire::shard::{ShardMessage, ShardWhy};

    use super::*;

    /// Generous time limit for a busy machine. A test that needs all of it has failed.
    const LONG: Duration = Duration::from_secs(30);

    /// Answer of a node to one message, and its figures after that.
    fn ask(shard_bytes_max: u64, message: &ShardMessage) -> (ShardMessage, MemoryFigures) {
        // No process listens at the manager's address.
        let (listen, manager) = ("tcp:127.0.0.1:0".to_owned(), "tcp:127.0.0.1:9".to_owned());
        let mut settings = MemorySettings::new(NodeId(1), 1 << 20, listen, manager);
        (settings.block_bytes, settings.shard_bytes_max) = (64 << 10, shard_bytes_max);
        let server = MemoryServer::start(settings).unwrap();
        let address = server.addresses()[0].trim_start_matches("tcp:");
        let to = Connect { deadline: LONG, ..Connect::to(address, &Session::fresh()) };
        let link = Tcp::new().connect(to).wait().unwrap();
        let call = message.encode();
        let call = Call::new(&call, LONG);
        let answer = link.request(call).wait().unwrap();
        (ShardMessage::decode(&answer).unwrap(), server.monitor().figures().unwrap())
    }

    #[test]
    fn threads_for_shards_follow_the_cores_between_two_and_eight() {
        let threads = [0, 1, 2, 3, 7, 8, 64].map(shard_threads);
        assert_eq!(threads, [2, 2, 2, 3, 7, 8, 8]);
    }

    #[test]
    fn node_hosts_shards_out_of_its_memory() {
        let owner = OwnerStamp::default();
        let begin = ShardMessage::Begin { owner, landing_bytes: 100_000, guaranteed_bytes: 0 };
        let (begun, figures) = ask(512 << 10, &begin);
        assert!(matches!(begun, ShardMessage::Begun { landing_bytes: 99_968, .. }), "{begun:?}");
        assert_eq!((figures.shards.databases, figures.shards.region_bytes), (1, 99_968));
        let (refused, _) = ask(0, &begin);
        let ShardMessage::Refused { refusal } = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.why, ShardWhy::Full, "a node without room for shards");
    }
}
