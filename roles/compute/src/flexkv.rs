//! A compute node of FlexKV as a process runs it, for callers with threads.
//!
//! [`FlexKvNode`] joins the pool, listens for other nodes, and blocks the threads of its callers
//! until their requests end. A caller whose threads have other work, such as a server, gives it a
//! [`LongWait`] for requests that another node does not answer soon.
//!
//! A node that the cluster declared dead, because its process was stopped or cut off, cannot
//! continue. A thread notices that, ends this **life**, and begins another one under another id.
//! Calls of the old life end as fenced. Calls between two lives end as busy.
//!
//! Invariants:
//! 1. At most one life exists at a time.
//! 2. The listeners of a life are closed before those of the next one open.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a start that cannot join the cluster fails. If the cluster admitted the node and then
//! declared it dead, the start retries for half a minute. A later life is tried again without a
//! limit.
//! Cost: two threads, in addition to those of the fabric and of the shared runtime.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::runtime::{ThreadRuntime, join_all};
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::{
    Endpoints, Handler, Listener, Node, Reply, Request, Secret, block_on, block_on_with,
};
use archipelago_flexkv::wire::Figure;
use archipelago_flexkv::{
    ComputeNode, FAST_KEYS_MAX, ScanStep, ScannedKey, Surroundings, Value, WriteEffect, WriteError,
    fabric_id,
};
use archipelago_pool::{PoolClient, PoolOptions};
use parking_lot::{Mutex, RwLock};

pub use archipelago_flexkv::{CacheMode, Destination, FlexKvSettings, Renamed, ScanLimits, Set};

/// Time between two checks whether the cluster declared the node dead.
const LOOK: Duration = Duration::from_millis(20);
/// Pause between two tries to begin a life.
const AGAIN: Duration = Duration::from_millis(100);
/// Number of calls of one caller that run in parallel.
const TOGETHER: usize = 32;
/// Time after which a start fails if the cluster has no memory.
const MEMORY: Duration = Duration::from_secs(10);

/// Number of records in the sample that estimates how many keys expire and when. The standard error
/// of a share is then at most 1.6 % of all keys.
const SAMPLE_RECORDS: u64 = 1000;
/// Bytes of keys after which a step of a listing of few keys ends.
const STEP_KEY_BYTES: usize = 1 << 20;

/// Time within which the first life must begin once a manager has answered.
const FIRST_LIFE: Duration = Duration::from_secs(30);

/// Time for which a call waits in place while another call waits for a silent node. Both probably
/// need the same node, and the usual answer takes less time.
const IN_PLACE_MEANWHILE: Duration = Duration::from_micros(50);

/// Time of a long wait after which the node that it needs counts as silent. A node that is busy, or
/// that waits for a device, answers sooner.
const SILENCE: Duration = Duration::from_millis(20);

/// Treatment of long waits on a thread that has other work, such as a worker thread of a server.
#[derive(Clone, Copy, Debug)]
pub struct LongWait {
    /// Time of waiting after which the rest of the wait counts as long.
    pub after: Duration,
    /// Calls its argument once, on the calling thread, and lets another thread do the other work of
    /// this thread meanwhile.
    pub run: fn(&mut dyn FnMut()),
}

/// Waits of the threads of callers.
struct Waits {
    clock: Arc<dyn Clock>,
    /// Treatment of long waits. Without one, all waits are in place.
    long_wait: OnceLock<LongWait>,
    /// Beginnings of the long waits that have not ended, in nanoseconds of the clock, each with the
    /// number of waits that began then.
    waiting_long: Mutex<BTreeMap<u64, usize>>,
    /// The earliest of these beginnings; `u64::MAX` without a long wait. It can be read without the
    /// lock.
    long_since_ns: AtomicU64,
}

/// Notes a long wait until it is dropped.
struct WaitingLong<'a> {
    waits: &'a Waits,
    since_ns: u64,
}

impl<'a> WaitingLong<'a> {
    fn begin(waits: &'a Waits) -> Self {
        let since_ns = waits.clock.now_ns();
        let mut waiting = waits.waiting_long.lock();
        *waiting.entry(since_ns).or_default() += 1;
        waits.note_earliest(&waiting);
        Self { waits, since_ns }
    }
}

impl Drop for WaitingLong<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waits.waiting_long.lock();
        if let Entry::Occupied(mut count) = waiting.entry(self.since_ns) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.waits.note_earliest(&waiting);
    }
}

impl Waits {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            long_wait: OnceLock::new(),
            waiting_long: Mutex::default(),
            long_since_ns: AtomicU64::new(u64::MAX),
        }
    }

    fn note_earliest(&self, waiting: &BTreeMap<u64, usize>) {
        let earliest = waiting.first_key_value().map_or(u64::MAX, |(since_ns, _)| *since_ns);
        self.long_since_ns.store(earliest, Ordering::Relaxed);
    }

    /// Time for which a call waits in place. It reads the clock only if another call waits long.
    fn in_place(&self, long_wait: &LongWait) -> Duration {
        let silence_ns = match self.long_since_ns.load(Ordering::Relaxed) {
            u64::MAX => return long_wait.after,
            since_ns => self.clock.now_ns().saturating_sub(since_ns),
        };
        match Duration::from_nanos(silence_ns) < SILENCE {
            true => long_wait.after,
            false => long_wait.after.min(IN_PLACE_MEANWHILE),
        }
    }

    /// Blocks the calling thread until `future` completes.
    fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        let Some(long_wait) = self.long_wait.get() else { return block_on(future) };
        block_on_with(future, self.in_place(long_wait), |rest| {
            let _noted = WaitingLong::begin(self);
            (long_wait.run)(rest);
        })
    }
}

/// The reason why a life did not begin.
enum Failed {
    /// No manager answers, the cluster has no memory, or the settings do not fit it.
    ForGood(Error),
    /// The cluster admitted the node, and a later step failed. Another life may succeed.
    WhileJoined(Error),
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Self::ForGood(error) | Self::WhileJoined(error) => error,
        }
    }
}

/// Settings of a compute node of FlexKV.
#[derive(Clone, Debug)]
pub struct FlexKvNodeSettings {
    /// Endpoints of all managers: `tcp:HOST:PORT`.
    pub manager: Vec<String>,
    /// Endpoints at which the node listens for other compute nodes: `tcp:HOST:PORT` or `shm:PATH`.
    pub listen: Vec<String>,
    /// Endpoints that other nodes use instead of those in `listen` at the same index.
    pub advertise: Vec<String>,
    /// The cluster's secret. Without one the node listens on loopback addresses only.
    pub secret: Option<Secret>,
    /// Settings of the store.
    pub store: FlexKvSettings,
}

/// A write of one key: its new value and expiry in Unix milliseconds (0 means never), or `None` for
/// a deletion.
pub type KeyWrite<'a> = (&'a [u8], Option<(&'a [u8], u64)>);

/// Statistics over all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFigures {
    /// Number of keys that have not expired.
    pub keys: u64,
    /// Number of keys that will expire.
    pub expiring: u64,
    /// Mean time until they expire, in milliseconds; 0 if no key expires.
    pub mean_ttl_ms: u64,
}

/// The handler of a life's fabric node, which exists before the compute node does.
#[derive(Default)]
struct LateHandler(Arc<OnceLock<Box<dyn Handler>>>);

impl Handler for LateHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if let Some(handler) = self.0.get() {
            handler.handle(request, reply);
        }
    }
}

/// One life of the node.
struct Life {
    compute: ComputeNode,
    pool: PoolClient,
    addresses: Vec<String>,
    /// The listeners, which are dropped before the fabric's node.
    listeners: Vec<Box<dyn Listener>>,
    _fabric: Arc<Node>,
}

struct NodeState {
    settings: FlexKvNodeSettings,
    endpoints: Arc<Endpoints>,
    runtime: Arc<ThreadRuntime>,
    clock: Arc<dyn Clock>,
    life: RwLock<Option<Life>>,
    waits: Waits,
    stop: AtomicBool,
}

/// A compute node of FlexKV in a process. Dropping the value leaves the cluster, and other nodes
/// take its partitions.
pub struct FlexKvNode {
    shared: Arc<NodeState>,
    keeper: Option<Joiner>,
}

impl fmt::Debug for FlexKvNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let life = self.shared.life.read();
        f.debug_tuple("FlexKvNode").field(&life.as_ref().map(|life| &life.compute)).finish()
    }
}

impl FlexKvNode {
    /// Joins the cluster and the store. The first node makes the store. Errors: `InvalidArgument`
    /// for settings that are not valid; `Busy` if no manager answers in time, or if the cluster has
    /// no memory node in time.
    pub fn start(settings: FlexKvNodeSettings) -> Result<Self> {
        settings.store.validate()?;
        if settings.listen.is_empty() {
            return Err(Error::invalid(
                "the compute node has no endpoint for other nodes: name at least one",
            ));
        }
        let endpoints = Arc::new(Endpoints::new().with_secret(settings.secret.clone()));
        let clock = SystemClock::shared();
        let shared = Arc::new(NodeState {
            settings,
            endpoints,
            runtime: ThreadRuntime::shared()?,
            waits: Waits::new(Arc::clone(&clock)),
            clock,
            life: RwLock::new(None),
            stop: AtomicBool::new(false),
        });
        shared.begin_first()?;
        let keeping = Arc::clone(&shared);
        let keeper = SystemSpawn.spawn("flex-keeper", Box::new(move || keeping.keep()))?;
        Ok(Self { shared, keeper: Some(keeper) })
    }

    /// The compute node of the present life. Errors: `Busy` while no life exists.
    pub fn node(&self) -> Result<ComputeNode> {
        let life = self.shared.life.read();
        let none = || Error::busy("the cluster declared this node dead, and it is joining again");
        life.as_ref().map(|life| life.compute.clone()).ok_or_else(none)
    }

    /// Endpoints of the present life, as other nodes know them.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.shared.life.read().as_ref().map_or_else(Vec::new, |life| life.addresses.clone())
    }

    /// Makes the calls of all threads treat long waits by `long_wait`. Only the first call of this
    /// method has an effect.
    pub fn set_long_wait(&self, long_wait: LongWait) {
        let _is_first = self.shared.waits.long_wait.set(long_wait);
    }

    /// Blocks the calling thread until `future` completes.
    fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        self.shared.waits.wait_for(future)
    }

    /// Whether a call may wait for longer than an exchange with another node takes.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.shared.life.read().as_ref().is_none_or(|life| life.compute.may_wait())
    }

    /// Counters of the present life, by name.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        self.node().map_or_else(|_| Vec::new(), |node| node.figures())
    }

    /// Reads a key; see [`ComputeNode::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        let at_once = |life: &Life| life.compute.get_fast(key);
        if let Some(value) = self.shared.life.read().as_ref().and_then(at_once) {
            return Ok(value);
        }
        self.wait_for(self.node()?.get(key))
    }

    /// Sets a key; see [`ComputeNode::set`].
    pub fn set(&self, key: &[u8], value: &[u8], expires_ms: u64) -> Result<(), WriteError> {
        self.wait_for(self.writer()?.set(key, value, expires_ms))
    }

    /// The compute node for a write. Without one, the write has no effect.
    fn writer(&self) -> Result<ComputeNode, WriteError> {
        self.node().map_err(WriteError::without_effect)
    }

    /// Reads several keys, each as [`ComputeNode::get`] does. Reads of one key keep their order.
    /// The node asks in parallel for keys that it has not cached.
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        let node = self.node()?;
        let mut values: Vec<Option<Value>> = Vec::with_capacity(keys.len());
        for keys in keys.chunks(TOGETHER) {
            // The value of each key, or the index of its first occurrence among the requests. Each
            // key is requested once, because the first of two parallel look-ups could return a
            // newer value than the second.
            let mut read: Vec<Result<Option<Value>, usize>> = Vec::with_capacity(keys.len());
            let mut asked: Vec<usize> = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                let first = asked.iter().copied().find(|first| keys[*first] == *key);
                let value = first.map_or_else(|| node.get_fast(key).ok_or(at), Err);
                if value == Err(at) {
                    asked.push(at);
                }
                read.push(value);
            }
            let answers = self.wait_for(join_all(asked.iter().map(|at| node.get(keys[*at]))));
            let (mut answers, start) = (answers.into_iter(), values.len());
            for (at, read) in read.into_iter().enumerate() {
                let value = match read {
                    Ok(value) => value,
                    Err(first) if first < at => values[start + first].clone(),
                    Err(_) => answers.next().transpose()?.flatten(),
                };
                values.push(value);
            }
        }
        Ok(values)
    }

    /// Passes the values of the first `keys` to `take`, in order, until a key needs a wait. Returns
    /// the number of values. `take` must not call this node.
    pub fn get_now(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
        let Ok(node) = self.node() else { return 0 };
        let mut read = 0;
        for keys in keys.chunks(FAST_KEYS_MAX) {
            let more = node.multi_get_fast(keys, take);
            read += more;
            if more < keys.len() {
                break;
            }
        }
        read
    }

    /// Executes the sets that need no wait, each as [`ComputeNode::set`] does. Returns the indices
    /// of the remaining sets, in order. If some sets of a key remain, they come after those that
    /// were executed.
    pub fn set_now(&self, sets: &[Set<'_>]) -> Vec<usize> {
        let Ok(node) = self.node() else { return (0..sets.len()).collect() };
        for (turn, some) in sets.chunks(FAST_KEYS_MAX).enumerate() {
            let (done, from) = (node.multi_set_fast(some), turn * FAST_KEYS_MAX);
            if done.count_ones() as usize != some.len() {
                // Later chunks may have sets of the same keys, so all of them remain.
                let next = from + some.len();
                let left = (from..next).filter(|nth| done >> (nth - from) & 1 == 0);
                return left.chain(next..sets.len()).collect();
            }
        }
        Vec::new()
    }

    /// Sets or deletes different keys in parallel, as [`ComputeNode::set`] and
    /// [`ComputeNode::delete`] do. After an error of unknown effect, each of the writes may have
    /// happened. After an error without effect, none did.
    pub fn write_many(&self, writes: &[KeyWrite<'_>]) -> Result<(), WriteError> {
        let node = self.writer()?;
        let write = async |(key, value): KeyWrite<'_>| match value {
            Some((value, expires_ms)) => node.set(key, value, expires_ms).await,
            None => node.delete(key).await.map(drop),
        };
        let mut done = 0;
        for writes in writes.chunks(TOGETHER) {
            let written = self.wait_for(join_all(writes.iter().map(|some| write(*some))));
            done += all_done(written, done)?.len();
        }
        Ok(())
    }

    /// Deletes different keys in parallel. Returns how many of them existed. Errors are those of
    /// [`FlexKvNode::write_many`].
    pub fn delete_many(&self, keys: &[&[u8]]) -> Result<usize, WriteError> {
        let node = self.writer()?;
        let (mut done, mut there) = (0, 0);
        for keys in keys.chunks(TOGETHER) {
            let deleted = self.wait_for(join_all(keys.iter().map(|key| node.delete(key))));
            let deleted = all_done(deleted, done)?;
            done += deleted.len();
            there += deleted.into_iter().filter(|there| *there).count();
        }
        Ok(there)
    }

    /// Passes the keys of one partition after another to `take`, until `take` breaks; see
    /// [`ComputeNode::keys_in`].
    pub fn each_partition(
        &self,
        take: &mut dyn FnMut(BTreeSet<Vec<u8>>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let node = self.node()?;
        let all: Vec<u32> = (0..node.partitions()?).collect();
        for some in all.chunks(TOGETHER) {
            let listing = some.iter().map(|partition| node.keys_in(*partition));
            for keys in self.wait_for(join_all(listing)) {
                if take(keys?)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Estimated number of keys. It includes expired keys that are not removed yet.
    pub fn count(&self) -> Result<u64> {
        let node = self.node()?;
        let (all, mut keys): (Vec<u32>, _) = ((0..node.partitions()?).collect(), 0);
        for some in all.chunks(TOGETHER) {
            let counting = some.iter().map(|partition| node.count_in(*partition));
            for counted in self.wait_for(join_all(counting)) {
                keys += counted?;
            }
        }
        Ok(keys)
    }

    /// Executes one step of a scan; see [`ComputeNode::scan`].
    pub fn scan(&self, cursor: u64, limits: ScanLimits) -> Result<Option<ScanStep>> {
        self.wait_for(self.node()?.scan(cursor, limits))
    }

    /// A random key; see [`ComputeNode::random_key`].
    pub fn random_key(&self) -> Result<Option<Vec<u8>>> {
        self.wait_for(self.node()?.random_key())
    }

    /// Statistics over all keys. If the store has at most 1,000 records, the call reads all of
    /// them. Otherwise a sample gives the share of keys that expire, and of expired keys that are
    /// not removed yet. Each share is within 5 % of all keys in 99.7 % of the calls.
    pub fn key_figures(&self, now_ms: u64) -> Result<KeyFigures> {
        let (node, records) = (self.node()?, self.count()?);
        if records <= SAMPLE_RECORDS {
            let few = list_few(|from, limits| self.wait_for(node.scan(from, limits)))?;
            if let Some(all) = few {
                return Ok(figures_of(&all, records, now_ms));
            }
        }
        let step = self.wait_for(node.sample(SAMPLE_RECORDS as usize))?;
        // Many records may have been added since the count.
        let records = if records <= SAMPLE_RECORDS { self.count()? } else { records };
        Ok(figures_of(&step, records, now_ms))
    }

    /// Renames or copies a key; see [`ComputeNode::rename`].
    pub fn rename(
        &self,
        from: &[u8],
        to: &[u8],
        destination: Destination,
    ) -> Result<Renamed, WriteError> {
        self.wait_for(self.writer()?.rename(from, to, destination))
    }

    /// Removes every key that exists during the whole call. Errors are those of
    /// [`FlexKvNode::write_many`].
    pub fn clear(&self) -> Result<(), WriteError> {
        let (mut removed, mut failed) = (0, None);
        let listed = self.each_partition(&mut |keys| {
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            removed += self.delete_many(&keys).map_err(|error| {
                failed = Some(error.clone());
                error.into_error()
            })?;
            Ok(ControlFlow::Continue(()))
        });
        let outcome = match (listed, failed) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(failed)) => Err(failed),
            (Err(error), None) => Err(WriteError::without_effect(error)),
        };
        outcome.map_err(|failed| if removed > 0 { failed.of_a_part() } else { failed })
    }

    /// Sets a key that still has a read value; see [`ComputeNode::compare_and_set`].
    pub fn compare_and_set(
        &self,
        key: &[u8],
        read: Option<&Value>,
        value: &[u8],
        expires_ms: u64,
    ) -> Result<bool, WriteError> {
        self.wait_for(self.writer()?.compare_and_set(key, read, value, expires_ms))
    }

    /// Deletes a key that still has a read value; see [`ComputeNode::compare_and_delete`].
    pub fn compare_and_delete(&self, key: &[u8], read: &Value) -> Result<bool, WriteError> {
        self.wait_for(self.writer()?.compare_and_delete(key, read))
    }

    /// Deletes a key; see [`ComputeNode::delete`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, WriteError> {
        self.wait_for(self.writer()?.delete(key))
    }
}

/// Collects all keys from steps of a scan; `None` if the store has more than [`SAMPLE_RECORDS`]
/// records. A key that several steps return counts once. The memory is bounded for any number of
/// keys.
fn list_few(
    mut scan: impl FnMut(u64, ScanLimits) -> Result<Option<ScanStep>>,
) -> Result<Option<ScanStep>> {
    let (mut keys, mut expired, mut cursor) = (BTreeMap::new(), 0, Some(0));
    let limits = ScanLimits { records: SAMPLE_RECORDS as usize, key_bytes: STEP_KEY_BYTES };
    while let Some(from) = cursor {
        let Some(step) = scan(from, limits)? else {
            return Err(Error::unsupported("the scan returned a cursor that it does not accept"));
        };
        keys.extend(step.keys.into_iter().map(|found| (found.key, found.expires_ms)));
        expired += step.expired;
        cursor = step.next;
        if keys.len() + expired > SAMPLE_RECORDS as usize {
            return Ok(None);
        }
    }
    let found = |(key, expires_ms)| ScannedKey { key, expires_ms };
    Ok(Some(ScanStep { keys: keys.into_iter().map(found).collect(), expired, next: None }))
}

/// Extrapolates from a sample of `records` records to all records.
fn figures_of(sample: &ScanStep, records: u64, now_ms: u64) -> KeyFigures {
    let seen = (sample.keys.len() + sample.expired) as u128;
    // A sample that holds all records is newer than their count.
    let all = match seen < u128::from(SAMPLE_RECORDS) {
        true => seen,
        false => seen.max(u128::from(records)),
    };
    let share = |part: usize| (part as u128 * all / seen.max(1)) as u64;
    let left = sample.keys.iter().filter(|found| found.expires_ms > 0);
    let left = left.map(|found| found.expires_ms.saturating_sub(now_ms));
    let (expiring, sum) = left.fold((0, 0_u128), |(n, sum), ms| (n + 1, sum + u128::from(ms)));
    let mean_ttl_ms = sum.checked_div(expiring as u128).unwrap_or(0) as u64;
    KeyFigures { keys: share(sample.keys.len()), expiring: share(expiring), mean_ttl_ms }
}

/// The result of writes that ran in parallel, after `done` earlier writes of the same call. Returns
/// the first error. Its effect is unknown if any of the writes may have happened.
fn all_done<T>(written: Vec<Result<T, WriteError>>, done: usize) -> Result<Vec<T>, WriteError> {
    let may_have = |one: &Result<T, WriteError>| {
        one.as_ref().map_or_else(|failed| failed.effect() == WriteEffect::Unknown, |_| true)
    };
    let some = done > 0 || written.iter().any(may_have);
    let all = written.into_iter().collect::<Result<Vec<T>, WriteError>>();
    all.map_err(|failed| if some { failed.of_a_part() } else { failed })
}

impl Drop for FlexKvNode {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(Err(error)) = self.keeper.take().map(Joiner::join) {
            tracing::error!(%error, "a thread of the compute node panicked");
        }
        let life = self.shared.life.write().take();
        if let Some(life) = life {
            life.end();
        }
    }
}

impl Life {
    /// Leaves the cluster. Running calls end as closed.
    fn end(self) {
        block_on(self.pool.leave());
    }
}

impl NodeState {
    fn keep(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            self.clock.sleep(LOOK);
            let over = self.life.read().as_ref().is_none_or(|life| life.compute.is_over());
            if !over {
                continue;
            }
            let gone = self.life.write().take();
            if let Some(life) = gone {
                tracing::warn!(client = %life.compute.client(), "the cluster declared this node dead");
                // The next life needs the listeners.
                drop(life);
            }
            if let Err(failed) = self.begin() {
                let error = failed.into_error();
                tracing::warn!(%error, "the node could not join again");
                self.clock.sleep(AGAIN);
            }
        }
    }

    /// Begins the first life. If a manager answers, is stopped for longer than a lease, and then
    /// declares this node dead, the node joins again.
    fn begin_first(&self) -> Result<()> {
        let until_ns = self.clock.now_ns() + FIRST_LIFE.as_nanos() as u64;
        loop {
            match self.begin() {
                Err(Failed::WhileJoined(error)) if self.clock.now_ns() < until_ns => {
                    tracing::warn!(%error, "the node could not join again");
                    self.clock.sleep(AGAIN);
                }
                other => return other.map_err(Failed::into_error),
            }
        }
    }

    fn begin(&self) -> Result<(), Failed> {
        let life = self.live()?;
        *self.life.write() = Some(life);
        Ok(())
    }

    fn live(&self) -> Result<Life, Failed> {
        let options = PoolOptions {
            manager: self.settings.manager.clone(),
            ..PoolOptions::new(String::new(), self.settings.store.label)
        };
        let (endpoints, runtime) = (Arc::clone(&self.endpoints), Arc::clone(&self.runtime));
        let pool =
            block_on(PoolClient::join(options, endpoints, runtime)).map_err(Failed::ForGood)?;
        let until_ns = self.clock.now_ns() + MEMORY.as_nanos() as u64;
        while pool.block_bytes() == 0 {
            if pool.is_evicted() {
                return Err(Failed::WhileJoined(Error::busy(
                    "the cluster declared this node dead before it knew of any memory",
                )));
            }
            if self.clock.now_ns() > until_ns || self.stop.load(Ordering::SeqCst) {
                let what = Error::busy("no memory node has registered with the manager");
                return Err(Failed::ForGood(what));
            }
            self.clock.sleep(LOOK);
        }
        self.take_part(pool).map_err(|error| match error.kind() {
            ErrorKind::Busy | ErrorKind::Fenced | ErrorKind::Closed => Failed::WhileJoined(error),
            _ => Failed::ForGood(error),
        })
    }

    /// Makes this process, which is a member of the pool, a node of the store.
    fn take_part(&self, pool: PoolClient) -> Result<Life> {
        let (endpoints, runtime) = (Arc::clone(&self.endpoints), Arc::clone(&self.runtime));
        let (id, epoch) = fabric_id(pool.client());
        let late = Arc::new(OnceLock::new());
        let fabric = Node::new(id, epoch, Some(Box::new(LateHandler(Arc::clone(&late)))))?;
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for (at, listen) in self.settings.listen.iter().enumerate() {
            let listener = endpoints.serve(&fabric, listen)?;
            let kind = listen.split(':').next().unwrap_or_default();
            let address = format!("{kind}:{}", listener.address());
            addresses.push(self.settings.advertise.get(at).cloned().unwrap_or(address));
            listeners.push(listener);
        }
        let around = Surroundings {
            runtime,
            reach: endpoints,
            pool: pool.clone(),
            coordinator: self.settings.manager.clone(),
            endpoints: addresses.clone(),
        };
        let (compute, handler) = ComputeNode::new(self.settings.store.clone(), around)?;
        compute.lend_counters(&fabric);
        // The cell is empty, because it was made above.
        let _set = late.set(handler);
        let life = Life { compute, pool, addresses, listeners, _fabric: fabric };
        match block_on(life.compute.join()) {
            Ok(()) => {
                tracing::info!(listeners = life.listeners.len(), client = %life.compute.client(), "joined");
                Ok(life)
            }
            Err(error) => {
                life.end();
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Poll, Waker};

    use archipelago_base::clock::ManualClock;

    use super::*;

    /// Waker of the future that waits long.
    static LONG: Mutex<Option<Waker>> = Mutex::new(None);

    fn wake_and_run(rest: &mut dyn FnMut()) {
        if let Some(waker) = LONG.lock().take() {
            waker.wake();
        }
        rest();
    }

    #[test]
    fn calls_wait_shorter_in_place_while_another_waits_for_a_silent_node() {
        let long_wait = LongWait { after: Duration::from_millis(1), run: wake_and_run };
        let clock = Arc::new(ManualClock::new(0));
        let waits = Waits::new(Arc::clone(&clock) as _);
        waits.long_wait.set(long_wait).expect("the first call");
        let mut is_long = false;
        let meanwhile = waits.wait_for(std::future::poll_fn(|context| {
            if std::mem::replace(&mut is_long, true) {
                clock.advance(SILENCE - Duration::from_nanos(1));
                let answered_soon = waits.in_place(&long_wait);
                clock.advance(Duration::from_nanos(1));
                return Poll::Ready([answered_soon, waits.in_place(&long_wait)]);
            }
            *LONG.lock() = Some(context.waker().clone());
            Poll::Pending
        }));
        assert_eq!(meanwhile, [long_wait.after, IN_PLACE_MEANWHILE]);
        assert_eq!(waits.in_place(&long_wait), long_wait.after);
        // The earliest of several waits counts, and a wait that has ended does not.
        let (first, second) = (WaitingLong::begin(&waits), WaitingLong::begin(&waits));
        clock.advance(SILENCE);
        let third = WaitingLong::begin(&waits);
        drop(first);
        assert_eq!(waits.in_place(&long_wait), IN_PLACE_MEANWHILE);
        drop(second);
        assert_eq!(waits.in_place(&long_wait), long_wait.after);
        drop(third);
        assert!(waits.waiting_long.lock().is_empty());
    }

    fn sample(expiries: &[u64], expired: usize) -> ScanStep {
        let found = |expires_ms: &u64| ScannedKey { key: Vec::new(), expires_ms: *expires_ms };
        ScanStep { keys: expiries.iter().map(found).collect(), expired, next: None }
    }

    #[test]
    fn figures_of_few_keys_are_exact() {
        let few = sample(&[0, 150, 0, 250], 2);
        let expected = KeyFigures { keys: 4, expiring: 2, mean_ttl_ms: 100 };
        assert_eq!(figures_of(&few, 9, 100), expected, "the count was of an earlier moment");
        assert_eq!(figures_of(&sample(&[], 0), 0, 100), KeyFigures::default());
    }

    #[test]
    fn figures_of_many_keys_are_shares_of_their_count() {
        let expiries: Vec<u64> = (0..900).map(|nth| if nth < 300 { 1100 } else { 0 }).collect();
        let many = figures_of(&sample(&expiries, 100), 10_000, 100);
        assert_eq!(many, KeyFigures { keys: 9_000, expiring: 3_000, mean_ttl_ms: 1_000 });
    }

    /// A step of a scan over `records` keys, which ends at its limits.
    fn step_of(records: u64, from: u64, limits: ScanLimits) -> ScanStep {
        let end = records.min(from.saturating_add(limits.records as u64));
        let found = |n: u64| ScannedKey { key: n.to_le_bytes().to_vec(), expires_ms: n };
        let keys = (from..end).map(found).collect();
        ScanStep { keys, expired: 0, next: (end < records).then_some(end) }
    }

    #[test]
    fn listing_of_few_keys_ends_when_there_are_more() {
        let mut seen = 0;
        let few = list_few(|from, limits| {
            let step = step_of(1_000_000, from, limits);
            seen += step.keys.len();
            Ok(Some(step))
        });
        assert_eq!(few.expect("readable"), None);
        assert!(seen <= 2 * SAMPLE_RECORDS as usize, "{seen} keys");
        let few = list_few(|from, limits| Ok(Some(step_of(SAMPLE_RECORDS, from, limits))));
        assert_eq!(few.expect("readable").map(|all| all.keys.len() as u64), Some(SAMPLE_RECORDS));
    }

    #[test]
    fn keys_that_several_steps_return_are_counted_once() {
        // The second step returns the keys of the first one again, as a scan does after a subtable
        // has doubled.
        let few = list_few(|from, limits| {
            let step = step_of(600, 0, limits);
            Ok(Some(ScanStep { expired: 10, next: (from == 0).then_some(1), ..step }))
        });
        let all = few.expect("readable").expect("few");
        assert_eq!((all.keys.len(), all.expired), (600, 20));
    }
}
