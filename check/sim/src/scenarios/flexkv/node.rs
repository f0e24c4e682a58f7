//! A compute node and the clients that work through it.

use std::sync::Arc;
use std::time::Duration;

use crate::scenarios::pool::{MANAGER, REQUEST};
use archipelago_base::random::Rng;
use archipelago_base::runtime::Runtime as _;
use archipelago_base::simulation::Host;
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{Listener, Node, Provider};
use archipelago_flexkv::sharers::offloaded_bytes;
use archipelago_flexkv::{
    ComputeNode, FlexKvSettings, Sabotage, Set, Surroundings, WriteEffect, WriteError,
};
use archipelago_pool::{Pace, PoolClient, PoolOptions};
use parking_lot::Mutex;

use crate::scenarios::flexkv::history::{Call, History, Op, Ret};
use crate::scenarios::flexkv::scans::{Scans, change_keys, scan};

/// The coordinator's host and address.
pub(crate) const COORDINATOR: &str = "coordinator";
/// What the store is called.
pub(crate) const LABEL: u64 = 7;
/// Keys that are worked on.
pub(crate) const KEYS: u64 = 12;
/// Clients of a node that read and write, and those that only read: where a node is cut off, a
/// write waits for long.
const WORKERS: usize = 2;
const READERS: usize = 1;
/// Every so long other keys are the hot ones.
const HOT_FOR: Duration = Duration::from_millis(50);
/// How long a rush lasts, at the end of each such time.
const RUSH: Duration = Duration::from_millis(2);
/// Hot keys at a time, which get half of the calls.
const HOT_KEYS: u64 = 2;

/// What all clients share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) history: Arc<History>,
    pub(crate) working: Arc<Mutex<bool>>,
    pub(crate) values: Arc<Mutex<u64>>,
    pub(crate) errors: Arc<Mutex<u64>>,
    /// Calls of one client, at most.
    pub(crate) calls: u64,
    pub(crate) sabotage: Sabotage,
    pub(crate) cached: Arc<Mutex<Cached>>,
    /// Of a run with scans.
    pub(crate) scans: Option<Arc<Scans>>,
}

/// What the caches of all nodes did, and proxies for others, in all their lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// Reads that a pair answered.
    pub pair_hits: u64,
    /// Reads that an address led to the record.
    pub address_hits: u64,
    /// Writes whose slot was cached.
    pub resolved: u64,
    /// Invalidations that were sent.
    pub invalidations: u64,
    /// Of those: the sharer's lease had to run out.
    pub waited_out: u64,
    /// Partitions that did not fit a node's memory limit.
    pub partitions_refused: u64,
    /// Sets that were left to the key's proxy.
    pub delegated: u64,
    /// Sets that waited for nobody.
    pub set_at_once: u64,
    /// Slots whose copies got back what they had, as such a set was not committed.
    pub set_back: u64,
}

impl Shared {
    /// A value that no other write has.
    fn new_value(&self) -> u64 {
        let mut values = self.values.lock();
        *values += 1;
        *values
    }

    /// A write ended with an error. What that says of its effect is taken at its word.
    fn failed(&self, call: &Call, failed: &WriteError) -> WriteEffect {
        *self.errors.lock() += 1;
        if failed.effect() == WriteEffect::None {
            self.history.never(call);
        }
        failed.effect()
    }
}

impl Cached {
    /// Adds what a node did.
    pub(crate) fn add(&mut self, node: &ComputeNode) {
        let status = node.status().cache;
        let figures = node.figures();
        let figure = |name: &str| {
            let figure = figures.iter().find(|figure| figure.name == name);
            figure.expect("a node counts it").value
        };
        self.delegated += figure("delegated");
        self.set_back += figure("set_back");
        self.pair_hits += status.pair_hits;
        self.address_hits += status.address_hits;
        self.resolved += status.resolved_writes;
        self.invalidations += status.invalidations_sent;
        self.waited_out += status.invalidations_waited_out;
        self.partitions_refused += status.partitions_refused;
    }
}

/// What the account of a node's memory says that must not be, once the map is at rest.
pub(crate) fn misaccounted(node: &ComputeNode) -> Option<String> {
    let (map, cache) = (node.map_status()?, node.status().cache);
    let offloaded = map.entries.iter().filter(|e| e.node == map.number && e.offloaded);
    let index: u64 = offloaded.map(|e| offloaded_bytes(e.shape.log2_buckets)).sum();
    let sound = cache.index_bytes == index && cache.used_bytes <= cache.limit_bytes;
    (!sound).then(|| format!("the index takes {index} bytes, the account says {cache:?}"))
}

/// A life of a compute node.
pub(crate) struct NodeActor {
    pub(crate) node: Arc<Mutex<Option<(ComputeNode, Kept)>>>,
}

/// The fabric's node and its door.
pub(crate) type Kept = (Arc<Node>, Box<dyn Listener>);

pub(crate) fn pace() -> Pace {
    Pace { request: REQUEST, pause: Duration::from_micros(500), renewal: Duration::from_millis(1) }
}

pub(crate) fn settings(sabotage: Sabotage, rng: &mut Rng) -> FlexKvSettings {
    // Room for everything, for some entries beside the index, for a few partitions and no entry.
    let memory_limit = [1 << 20, 32 << 10, 19 << 10][rng.usize(..3)];
    FlexKvSettings {
        sabotage,
        memory_limit,
        label: LABEL,
        lease: Duration::from_millis(10),
        address_lease: Duration::from_millis(60),
        patience: Duration::from_millis(200),
        ..FlexKvSettings::default()
    }
}

/// A client of the pool, once it has joined.
pub(crate) async fn join_pool(sim: &Sim, label: u64) -> PoolClient {
    let mut options = PoolOptions::new(MANAGER, label);
    (options.patience, options.pace) = (Duration::from_millis(100), pace());
    let (reach, host) = (Arc::new(sim.clone()), Arc::new(sim.host().clone()));
    loop {
        let joining = PoolClient::join(options.clone(), reach.clone(), host.clone());
        if let Ok(client) = joining.await {
            return client;
        }
    }
}

impl NodeActor {
    /// Starts a node on its host; its clients begin when it has joined.
    pub(crate) fn start(sim: &Sim, shared: &Shared) -> Self {
        let actor = Self { node: Arc::default() };
        let (node, sim, shared) = (Arc::clone(&actor.node), sim.clone(), shared.clone());
        let host = sim.host().clone();
        let task = async move {
            let name = sim.host().name().to_owned();
            let mut pool = join_pool(&sim, LABEL).await;
            while pool.block_bytes() == 0 {
                sim.host().sleep(Duration::from_millis(1)).await;
                if pool.is_evicted() {
                    pool = join_pool(&sim, LABEL).await;
                }
            }
            let around = Surroundings {
                runtime: Arc::new(sim.host().clone()),
                reach: Arc::new(sim.clone()),
                pool,
                coordinator: vec![COORDINATOR.to_owned()],
                endpoints: vec![name.clone()],
            };
            let mut rng = Rng::with_seed(sim.host().seed());
            let settings = settings(shared.sabotage, &mut rng);
            let (compute, door) = ComputeNode::new(settings, around).expect("sound settings");
            let (id, epoch) = compute.fabric_id();
            let fabric = sim.network().node(id, epoch, Some(door)).expect("a node in memory");
            compute.lend_counters(&fabric);
            let listener = sim.serve(&fabric, &name).expect("a host serves at its name");
            *node.lock() = Some((compute.clone(), (fabric, listener)));
            while compute.join().await.is_err() {
                sim.host().sleep(Duration::from_millis(1)).await;
            }
            for number in 0..WORKERS + READERS {
                let rng = Rng::with_seed(sim.host().seed());
                let (node, host) = (compute.clone(), sim.host().clone());
                let worker = work(node, host, shared.clone(), (rng, number >= WORKERS));
                let _ends_with_the_host = Host::spawn(sim.host(), "work", worker);
            }
            if shared.scans.is_some() {
                let [scans, changes] = [(); 2].map(|()| Rng::with_seed(sim.host().seed()));
                let (node, host) = (compute.clone(), sim.host().clone());
                let scanning = scan(node.clone(), host.clone(), shared.clone(), scans);
                let _ends_with_the_host = Host::spawn(sim.host(), "scan", scanning);
                let changing = change_keys(node, host, shared.clone(), changes);
                let _ends_with_the_host = Host::spawn(sim.host(), "change", changing);
            }
        };
        let _ends_with_the_host = Host::spawn(&host, "start", task);
        actor
    }

    pub(crate) fn node(&self) -> Option<ComputeNode> {
        self.node.lock().as_ref().map(|(node, _)| node.clone())
    }
}

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

fn value_of(number: u64, rng: &mut Rng) -> Vec<u8> {
    let more = match rng.u32(..40) {
        0 => rng.usize(16_000..20_000),
        1..10 => rng.usize(..400),
        _ => 0,
    };
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + more, number as u8);
    value
}

fn number_in(value: &[u8]) -> u64 {
    let number = value.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    let number = number.expect("a value begins with its number");
    assert!(value[8..].iter().all(|byte| *byte == number as u8), "a torn value of {number}");
    number
}

/// Reads a key and writes down what it was told.
pub(crate) async fn get(
    node: &ComputeNode,
    shared: &Shared,
    thread: u64,
    number: u64,
) -> Result<Option<(u64, archipelago_flexkv::Value)>, ()> {
    let mut call = shared.history.begin(thread, number, Op::Get);
    let (name, mut at_once) = (key(number), None);
    if node.get_some_at_once(&[&name], &mut |value| at_once = Some(value.map(number_in))) == 1 {
        shared.history.end(&call, Ret::Value(at_once.flatten()));
        call = shared.history.begin(thread, number, Op::Get);
    }
    match node.get(&name).await {
        Ok(value) => {
            let value = value.map(|value| (number_in(&value.bytes), value));
            shared.history.end(&call, Ret::Value(value.as_ref().map(|(number, _)| *number)));
            Ok(value)
        }
        Err(error) => {
            *shared.errors.lock() += 1;
            tracing::debug!(%error, key = number, "a read ended with an error");
            Err(())
        }
    }
}

/// Half of the calls go to keys that are hot for a while; in a rush all to one of them.
fn some_key(rng: &mut Rng, now_ns: u64) -> u64 {
    let round = now_ns / HOT_FOR.as_nanos() as u64;
    if is_rush(now_ns) {
        return round * HOT_KEYS % KEYS;
    }
    if rng.bool() {
        return rng.u64(..KEYS);
    }
    (round * HOT_KEYS + rng.u64(..HOT_KEYS)) % KEYS
}

/// Now and then everybody wants the same key at once: writes meet.
fn is_rush(now_ns: u64) -> bool {
    now_ns % HOT_FOR.as_nanos() as u64 > (HOT_FOR - RUSH).as_nanos() as u64
}

/// Sets a key, at once if that is possible; every other time some more with it, for others that
/// call at the same moment.
async fn set(
    node: &ComputeNode,
    shared: &Shared,
    (number, new): (u64, u64),
    rng: &mut Rng,
) -> Result<bool, WriteError> {
    let mut sets = vec![(number, value_of(new, rng), None)];
    for _ in 0..if rng.bool() { rng.usize(..4) } else { 0 } {
        let other = rng.u64(..KEYS);
        if sets.iter().all(|(number, ..)| *number != other) {
            let (new, thread) = (shared.new_value(), shared.history.thread());
            let call = shared.history.begin(thread, other, Op::Set(new));
            sets.push((other, value_of(new, rng), Some(call)));
        }
    }
    let keys: Vec<Vec<u8>> = sets.iter().map(|(number, ..)| key(*number)).collect();
    let asked = keys.iter().zip(&sets);
    let asked: Vec<Set<'_>> =
        asked.map(|(key, (_, value, _))| Set { key, value, expires_ms: 0 }).collect();
    let at_once = node.set_some_at_once(&asked);
    shared.cached.lock().set_at_once += u64::from(at_once.count_ones());
    let mut mine = Ok(true);
    for (nth, (set, (.., call))) in asked.iter().zip(&sets).enumerate() {
        let done = match at_once >> nth & 1 {
            1 => Ok(()),
            _ => node.set(set.key, set.value, 0).await,
        };
        match (call, done) {
            (None, done) => mine = done.map(|()| true),
            (Some(call), Ok(())) => shared.history.end(call, Ret::Done(true)),
            (Some(call), Err(failed)) => _ = shared.failed(call, &failed),
        }
    }
    mine
}

async fn work(node: ComputeNode, host: Host, shared: Shared, (mut rng, reads): (Rng, bool)) {
    let mut thread = shared.history.thread();
    let mut read = None;
    for _ in 0..shared.calls {
        let rush = is_rush(host.scheduler().now_ns());
        let pause_us = if rush { rng.u64(..100) } else { rng.u64(20..2000) };
        host.sleep(Duration::from_micros(pause_us)).await;
        if !*shared.working.lock() {
            return;
        }
        let number = some_key(&mut rng, host.scheduler().now_ns());
        let fresh = || shared.new_value();
        // Every other key is read far more often than written, so that pairs of it are cached.
        let more = if number.is_multiple_of(2) { 160 } else { 0 };
        let op = match rng.u32(..20 + more) {
            _ if reads => Op::Get,
            _ if rush && rng.bool() => Op::Set(fresh()),
            0..8 | 20.. => Op::Get,
            8..12 => Op::Set(fresh()),
            12..14 => Op::Insert(fresh()),
            14..16 => Op::Update(fresh()),
            16..18 => Op::Delete,
            _ => match &read {
                Some((of, Some((was, _)))) if *of == number => Op::Swap(Some(*was), fresh()),
                _ => Op::Swap(None, fresh()),
            },
        };
        if op == Op::Get {
            match get(&node, &shared, thread, number).await {
                Ok(value) => read = Some((number, value)),
                Err(()) => thread = shared.history.thread(),
            }
            continue;
        }
        let name = key(number);
        let call = shared.history.begin(thread, number, op);
        let note = format!("{thread} {op:?} of key {number}");
        let done = match op {
            Op::Set(new) => set(&node, &shared, (number, new), &mut rng).await,
            Op::Insert(new) => node.insert(&name, &value_of(new, &mut rng), 0).await,
            Op::Update(new) => node.update(&name, &value_of(new, &mut rng), 0).await,
            Op::Swap(was, new) => {
                let value = value_of(new, &mut rng);
                let of = read.as_ref().and_then(|(_, read)| read.as_ref()).map(|(_, value)| value);
                let of = if was.is_some() { of } else { None };
                node.compare_and_set(&name, of, &value, 0).await
            }
            Op::Get | Op::Delete => node.delete(&name).await,
        };
        host.scheduler().note(|| format!("{note}: {done:?}"));
        match done {
            Ok(done) => shared.history.end(&call, Ret::Done(done)),
            Err(failed) => {
                if shared.failed(&call, &failed) == WriteEffect::Unknown {
                    thread = shared.history.thread();
                }
            }
        }
    }
}
