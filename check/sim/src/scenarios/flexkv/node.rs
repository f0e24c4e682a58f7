//! A compute node and the clients that call it.
//!
//! The node runs the code of the product on a simulated host. Each life of a host is one
//! [`NodeActor`].

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
    ComputeNode, FlexKvSettings, Set, Surroundings, Value, WriteEffect, WriteError,
};
use archipelago_pool::{Pace, PoolClient, PoolOptions};
use parking_lot::Mutex;

use crate::scenarios::flexkv::history::{Op, Ret};
use crate::scenarios::flexkv::scans::Scanner;
use crate::scenarios::flexkv::shared::RunState;

/// The coordinator's host and address.
pub(crate) const COORDINATOR: &str = "coordinator";
/// Label of the store in the pool.
pub(crate) const LABEL: u64 = 7;
/// Number of keys that clients call.
pub(crate) const KEYS: u64 = 12;
/// Number of clients of a node that read and write, and of those that only read. A node that is cut
/// off delays writes for long, so readers are clients of their own.
const WORKERS: usize = 2;
const READERS: usize = 1;
/// Time after which other keys become hot.
const HOT_FOR: Duration = Duration::from_millis(50);
/// Length of a rush, which ends each period of [`HOT_FOR`].
const RUSH: Duration = Duration::from_millis(2);
/// Number of hot keys at a time. They get half of the calls.
const HOT_KEYS: u64 = 2;

/// Violation of the accounting of a node's memory, after the last change of the map.
pub(crate) fn misaccounted(node: &ComputeNode) -> Option<String> {
    let (map, cache) = (node.map_status()?, node.status().cache);
    let offloaded = map.entries.iter().filter(|e| e.node == map.number && e.offloaded);
    let index: u64 = offloaded.map(|e| offloaded_bytes(e.shape.log2_buckets)).sum();
    let sound = cache.index_bytes == index && cache.used_bytes <= cache.limit_bytes;
    (!sound).then(|| format!("the index takes {index} bytes, the account says {cache:?}"))
}

/// One life of a compute node.
pub(crate) struct NodeActor {
    pub(crate) node: Arc<Mutex<Option<(ComputeNode, Kept)>>>,
}

/// The fabric's node and the listener that makes it reachable.
pub(crate) type Kept = (Arc<Node>, Box<dyn Listener>);

pub(crate) fn pace() -> Pace {
    Pace { request: REQUEST, pause: Duration::from_micros(500), renewal: Duration::from_millis(1) }
}

pub(crate) fn settings(rng: &mut Rng) -> FlexKvSettings {
    // The limit has room for the index and all entries, for the index and some entries, or for a
    // few partitions and no entry.
    let memory_limit = [1 << 20, 32 << 10, 19 << 10][rng.usize(..3)];
    FlexKvSettings {
        memory_limit,
        label: LABEL,
        lease: Duration::from_millis(10),
        address_lease: Duration::from_millis(60),
        patience: Duration::from_millis(200),
        ..FlexKvSettings::default()
    }
}

/// Joins the pool, and tries again until that succeeds.
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
    /// Starts a node on its host. Its clients begin after it has joined.
    pub(crate) fn start(sim: &Sim, shared: &RunState) -> Self {
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
            let settings = settings(&mut rng);
            let (compute, handler) =
                ComputeNode::sabotaged(settings, around, shared.sabotage).expect("sound settings");
            let (id, epoch) = compute.fabric_id();
            let fabric = sim.network().node(id, epoch, Some(handler)).expect("a node in memory");
            compute.lend_counters(&fabric);
            let listener = sim.serve(&fabric, &name).expect("a host serves at its name");
            *node.lock() = Some((compute.clone(), (fabric, listener)));
            while compute.join().await.is_err() {
                sim.host().sleep(Duration::from_millis(1)).await;
            }
            for role in [Role::Writes; WORKERS].into_iter().chain([Role::Reads; READERS]) {
                let rng = Rng::with_seed(sim.host().seed());
                let (node, host) = (compute.clone(), sim.host().clone());
                let worker = Worker { node, host, shared: shared.clone(), rng, role };
                let _ends_with_the_host = Host::spawn(sim.host(), "work", worker.work());
            }
            if let Some(scans) = &shared.scans {
                let [scan_rng, change_rng] = [(); 2].map(|()| Rng::with_seed(sim.host().seed()));
                let scanner = Scanner {
                    node: compute.clone(),
                    host: sim.host().clone(),
                    scans: Arc::clone(scans),
                    working: Arc::clone(&shared.working),
                };
                let scanning = scanner.clone().scan(scan_rng);
                let _ends_with_the_host = Host::spawn(sim.host(), "scan", scanning);
                let changing = scanner.change_keys(change_rng);
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

/// Key of a client's last read, with the number and the value that the read returned.
type LastRead = (u64, Option<(u64, Value)>);

/// Reads a key and records the answer.
pub(crate) async fn get(
    node: &ComputeNode,
    shared: &RunState,
    thread: u64,
    number: u64,
) -> Result<Option<(u64, Value)>, ()> {
    let mut call = shared.history.begin(thread, number, Op::Get);
    let (name, mut at_once) = (key(number), None);
    if node.multi_get_fast(&[&name], &mut |value| at_once = Some(value.map(number_in))) == 1 {
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

/// Draws a key. Half of the calls go to keys that are hot for a while, and in a rush all calls go
/// to one of them.
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

/// Whether all clients call the same key at this time, so that writes meet.
fn is_rush(now_ns: u64) -> bool {
    now_ns % HOT_FOR.as_nanos() as u64 > (HOT_FOR - RUSH).as_nanos() as u64
}

/// Kind of a client's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Writes,
    Reads,
}

/// A key and the new value of a write.
#[derive(Clone, Copy, Debug)]
struct NewValue {
    key: u64,
    value: u64,
}

/// One client of a node.
struct Worker {
    node: ComputeNode,
    host: Host,
    shared: RunState,
    rng: Rng,
    role: Role,
}

impl Worker {
    /// Makes calls, one after another, until the run's time of faults is over.
    async fn work(mut self) {
        let mut thread = self.shared.history.thread();
        let mut read = None;
        for _ in 0..self.shared.calls_max {
            let rush = is_rush(self.host.scheduler().now_ns());
            let pause_us = if rush { self.rng.u64(..100) } else { self.rng.u64(20..2000) };
            self.host.sleep(Duration::from_micros(pause_us)).await;
            if !*self.shared.working.lock() {
                return;
            }
            let number = some_key(&mut self.rng, self.host.scheduler().now_ns());
            let op = self.draw_op(number, rush, read.as_ref());
            if op == Op::Get {
                match get(&self.node, &self.shared, thread, number).await {
                    Ok(value) => read = Some((number, value)),
                    Err(()) => thread = self.shared.history.thread(),
                }
                continue;
            }
            let call = self.shared.history.begin(thread, number, op);
            let note = format!("{thread} {op:?} of key {number}");
            let done = self.write(number, op, read.as_ref()).await;
            self.host.scheduler().note(|| format!("{note}: {done:?}"));
            match done {
                Ok(done) => self.shared.history.end(&call, Ret::Done(done)),
                Err(failed) => {
                    if self.shared.failed(&call, &failed) == WriteEffect::Unknown {
                        thread = self.shared.history.thread();
                    }
                }
            }
        }
    }

    /// The next call for key `number`.
    fn draw_op(&mut self, number: u64, rush: bool, read: Option<&LastRead>) -> Op {
        // Every other key is read far more often than written, so that nodes cache pairs of it.
        let more = if number.is_multiple_of(2) { 160 } else { 0 };
        let shared = &self.shared;
        let fresh = || shared.new_value();
        match self.rng.u32(..20 + more) {
            _ if self.role == Role::Reads => Op::Get,
            _ if rush && self.rng.bool() => Op::Set(fresh()),
            0..8 | 20.. => Op::Get,
            8..12 => Op::Set(fresh()),
            12..14 => Op::Insert(fresh()),
            14..16 => Op::Update(fresh()),
            16..18 => Op::Delete,
            _ => match read {
                Some((of, Some((was, _)))) if *of == number => Op::Swap(Some(*was), fresh()),
                _ => Op::Swap(None, fresh()),
            },
        }
    }

    async fn write(
        &mut self,
        number: u64,
        op: Op,
        read: Option<&LastRead>,
    ) -> Result<bool, WriteError> {
        let name = key(number);
        match op {
            Op::Set(value) => self.set(NewValue { key: number, value }).await,
            Op::Insert(new) => self.node.insert(&name, &value_of(new, &mut self.rng), 0).await,
            Op::Update(new) => self.node.update(&name, &value_of(new, &mut self.rng), 0).await,
            Op::Swap(was, new) => {
                let value = value_of(new, &mut self.rng);
                let of = read.and_then(|(_, read)| read.as_ref()).map(|(_, value)| value);
                let of = if was.is_some() { of } else { None };
                self.node.compare_and_set(&name, of, &value, 0).await
            }
            Op::Get | Op::Delete => self.node.delete(&name).await,
        }
    }

    /// Sets a key, without waiting if that is possible. Every other time, it sets some more keys in
    /// the same batch, as if for other clients.
    async fn set(&mut self, new: NewValue) -> Result<bool, WriteError> {
        let (shared, rng) = (&self.shared, &mut self.rng);
        let mut sets = vec![(new.key, value_of(new.value, rng), None)];
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
        let at_once = self.node.multi_set_fast(&asked);
        shared.cached.lock().set_at_once += u64::from(at_once.count_ones());
        let mut mine = Ok(true);
        for (nth, (set, (.., call))) in asked.iter().zip(&sets).enumerate() {
            let done = match at_once >> nth & 1 {
                1 => Ok(()),
                _ => self.node.set(set.key, set.value, 0).await,
            };
            match (call, done) {
                (None, done) => mine = done.map(|()| true),
                (Some(call), Ok(())) => shared.history.end(call, Ret::Done(true)),
                (Some(call), Err(failed)) => _ = shared.failed(call, &failed),
            }
        }
        mine
    }
}
