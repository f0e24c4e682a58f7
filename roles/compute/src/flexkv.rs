//! A compute node of the store over remote memory, in a process: joins the pool, is reached by
//! other nodes, and serves callers that have threads ([`FlexKvNode::get`] and so on wait).
//!
//! A node that the cluster took for dead (its process stood still, or was cut off) cannot go on: a
//! thread notices, ends that **life** and begins another, under another name. Calls of the old life
//! end as fenced; those that come while there is none, as busy.
//!
//! Invariants: 1. one life at a time; 2. the doors of a life are closed before the next one's open.
//! Thread-safety: all of it. Failure: a cluster that cannot be joined at the start is an error (a
//! node that was taken in and then taken for dead joins anew for half a minute); later it is tried
//! again for ever. Cost: two threads beside those of the fabric and the shared runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::runtime::{ThreadRuntime, together};
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::{Handler, Listener, Node, Reply, Request, block_on};
use archipelago_flexkv::wire::Figure;
use archipelago_flexkv::{
    AT_ONCE_MAX, ComputeNode, ScanStep, ScannedKey, Surroundings, Value, WriteEffect, WriteError,
    fabric_id,
};
use archipelago_pool::{Endpoints, PoolClient, PoolOptions};
use parking_lot::RwLock;

pub use archipelago_flexkv::{CacheMode, Destination, FlexKvSettings, Renamed, ScanLimits, Set};

/// How often it is looked whether the node still counts.
const LOOK: Duration = Duration::from_millis(20);
/// Between two tries to begin a life.
const AGAIN: Duration = Duration::from_millis(100);
/// So many calls of one caller are under way at a time.
const TOGETHER: usize = 32;
/// The cluster has memory by then, or the start fails.
const MEMORY: Duration = Duration::from_secs(10);

/// Records that are looked at to tell how many keys expire, and when. The standard error of a share
/// of keys is at most 1.6 % of all keys then.
const SAMPLE_RECORDS: u64 = 1000;
/// Bytes of keys after which a step of the listing of few keys ends.
const STEP_KEY_BYTES: usize = 1 << 20;

/// Time within which the first life must begin once a manager has answered.
const FIRST_LIFE: Duration = Duration::from_secs(30);

/// Why a life did not begin.
enum Failed {
    /// No manager answers, no memory comes, or the settings do not fit.
    ForGood(Error),
    /// The cluster took the node in, and did not get further with it: another life may begin.
    WhileJoined(Error),
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Self::ForGood(error) | Self::WhileJoined(error) => error,
        }
    }
}

/// How a compute node is started.
#[derive(Clone, Debug)]
pub struct FlexKvNodeSettings {
    /// Where the manager is: `tcp:HOST:PORT`.
    pub manager: Vec<String>,
    /// Where other compute nodes reach this one: `tcp:HOST:PORT`, `shm:PATH`.
    pub listen: Vec<String>,
    /// What others are told instead, for what stands in `listen` at the same place.
    pub advertise: Vec<String>,
    /// The store.
    pub store: FlexKvSettings,
}

/// A key; value and expiry in Unix milliseconds (0: never) if it is to have one, `None` if it is to
/// go.
pub type KeyWrite<'a> = (&'a [u8], Option<(&'a [u8], u64)>);

/// What is known of the keys as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFigures {
    /// Number of keys that have not expired.
    pub keys: u64,
    /// Number of those that expire.
    pub expiring: u64,
    /// Milliseconds that those have left on average; 0 if there are none.
    pub mean_ttl_ms: u64,
}

/// The handler of a life's fabric node, which is there before the compute node.
#[derive(Default)]
struct Door(Arc<OnceLock<Box<dyn Handler>>>);

impl Handler for Door {
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
    /// Dropped before the fabric's node.
    doors: Vec<Box<dyn Listener>>,
    _fabric: Arc<Node>,
}

struct Shared {
    settings: FlexKvNodeSettings,
    endpoints: Arc<Endpoints>,
    runtime: Arc<ThreadRuntime>,
    clock: Arc<dyn Clock>,
    life: RwLock<Option<Life>>,
    stop: AtomicBool,
}

/// See the module. Dropped, it leaves: others take its partitions.
pub struct FlexKvNode {
    shared: Arc<Shared>,
    keeper: Option<Joiner>,
}

impl fmt::Debug for FlexKvNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let life = self.shared.life.read();
        f.debug_tuple("FlexKvNode").field(&life.as_ref().map(|life| &life.compute)).finish()
    }
}

impl FlexKvNode {
    /// Joins the cluster and the store; makes the store if it is the first. Busy if no manager
    /// answers, or no memory node is there in time.
    pub fn start(settings: FlexKvNodeSettings) -> Result<Self> {
        settings.store.validate()?;
        if settings.listen.is_empty() {
            return Err(Error::invalid("a compute node that nobody reaches: say where it listens"));
        }
        let shared = Arc::new(Shared {
            settings,
            endpoints: Arc::new(Endpoints::new()),
            runtime: ThreadRuntime::shared()?,
            clock: SystemClock::shared(),
            life: RwLock::new(None),
            stop: AtomicBool::new(false),
        });
        shared.begin_first()?;
        let keeping = Arc::clone(&shared);
        let keeper = SystemSpawn.spawn("flex-keeper", Box::new(move || keeping.keep()))?;
        Ok(Self { shared, keeper: Some(keeper) })
    }

    /// The compute node of the present life, for tasks and for looks. Busy while there is none.
    pub fn node(&self) -> Result<ComputeNode> {
        let life = self.shared.life.read();
        let none = || Error::busy("this node was taken for dead and is joining anew");
        life.as_ref().map(|life| life.compute.clone()).ok_or_else(none)
    }

    /// Where other nodes reach the present life.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.shared.life.read().as_ref().map_or_else(Vec::new, |life| life.addresses.clone())
    }

    /// Whether a call may have to wait for longer than an exchange with another node.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.shared.life.read().as_ref().is_none_or(|life| life.compute.may_wait())
    }

    /// What the present life counted.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        self.node().map_or_else(|_| Vec::new(), |node| node.figures())
    }

    /// As [`ComputeNode::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        let at_once = |life: &Life| life.compute.get_at_once(key);
        if let Some(value) = self.shared.life.read().as_ref().and_then(at_once) {
            return Ok(value);
        }
        block_on(self.node()?.get(key))
    }

    /// As [`ComputeNode::set`].
    pub fn set(&self, key: &[u8], value: &[u8], expires_ms: u64) -> Result<(), WriteError> {
        block_on(self.writer()?.set(key, value, expires_ms))
    }

    /// The compute node for a write, which has no effect if there is none.
    fn writer(&self) -> Result<ComputeNode, WriteError> {
        self.node().map_err(WriteError::without_effect)
    }

    /// As [`ComputeNode::get`] of each key, a key's in their order; what this node has not cached
    /// is asked for together.
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        let node = self.node()?;
        let mut values: Vec<Option<Value>> = Vec::with_capacity(keys.len());
        for keys in keys.chunks(TOGETHER) {
            // Each key's value, or where it stands first among those that are asked for: it is
            // asked for once, since of two look-ups at a time the first could show a newer value
            // than the second.
            let mut read: Vec<Result<Option<Value>, usize>> = Vec::with_capacity(keys.len());
            let mut asked: Vec<usize> = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                let first = asked.iter().copied().find(|first| keys[*first] == *key);
                let value = first.map_or_else(|| node.get_at_once(key).ok_or(at), Err);
                if value == Err(at) {
                    asked.push(at);
                }
                read.push(value);
            }
            let answers = block_on(together(asked.iter().map(|at| node.get(keys[*at]))));
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

    /// Hands out what the first of `keys` hold, in their order, as long as nothing has to be waited
    /// for; how many. `take` must not call this node.
    pub fn get_now(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
        let Ok(node) = self.node() else { return 0 };
        let mut read = 0;
        for keys in keys.chunks(AT_ONCE_MAX) {
            let more = node.get_some_at_once(keys, take);
            read += more;
            if more < keys.len() {
                break;
            }
        }
        read
    }

    /// As [`ComputeNode::set`] of each of them that can be done without waiting; which are left, in
    /// their order. What is left of a key comes behind what was done of it.
    pub fn set_now(&self, sets: &[Set<'_>]) -> Vec<usize> {
        let Ok(node) = self.node() else { return (0..sets.len()).collect() };
        for (turn, some) in sets.chunks(AT_ONCE_MAX).enumerate() {
            let (done, from) = (node.set_some_at_once(some), turn * AT_ONCE_MAX);
            if done.count_ones() as usize != some.len() {
                // Those behind these may be of the same keys.
                let next = from + some.len();
                let left = (from..next).filter(|nth| done >> (nth - from) & 1 == 0);
                return left.chain(next..sets.len()).collect();
            }
        }
        Vec::new()
    }

    /// As [`ComputeNode::set`] with value and expiry, or [`ComputeNode::delete`] without, of keys
    /// that differ; together. After an error of unknown effect each of them may have happened;
    /// after one without effect none did.
    pub fn write_many(&self, writes: &[KeyWrite<'_>]) -> Result<(), WriteError> {
        let node = self.writer()?;
        let write = async |(key, value): KeyWrite<'_>| match value {
            Some((value, expires_ms)) => node.set(key, value, expires_ms).await,
            None => node.delete(key).await.map(drop),
        };
        let mut done = 0;
        for writes in writes.chunks(TOGETHER) {
            let written = block_on(together(writes.iter().map(|some| write(*some))));
            done += all_done(written, done)?.len();
        }
        Ok(())
    }

    /// As [`ComputeNode::delete`] of keys that differ, together; how many were there. Errors as
    /// [`FlexKvNode::write_many`].
    pub fn delete_many(&self, keys: &[&[u8]]) -> Result<usize, WriteError> {
        let node = self.writer()?;
        let (mut done, mut there) = (0, 0);
        for keys in keys.chunks(TOGETHER) {
            let deleted = block_on(together(keys.iter().map(|key| node.delete(key))));
            let deleted = all_done(deleted, done)?;
            done += deleted.len();
            there += deleted.into_iter().filter(|there| *there).count();
        }
        Ok(there)
    }

    /// Hands out the keys of each partition, one partition after another, until `take` breaks; as
    /// [`ComputeNode::keys_in`].
    pub fn each_partition(
        &self,
        take: &mut dyn FnMut(BTreeSet<Vec<u8>>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let node = self.node()?;
        let all: Vec<u32> = (0..node.partitions()?).collect();
        for some in all.chunks(TOGETHER) {
            let listing = some.iter().map(|partition| node.keys_in(*partition));
            for keys in block_on(together(listing)) {
                if take(keys?)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// About how many keys there are: those that have expired and are not removed yet count, too.
    pub fn count(&self) -> Result<u64> {
        let node = self.node()?;
        let (all, mut keys): (Vec<u32>, _) = ((0..node.partitions()?).collect(), 0);
        for some in all.chunks(TOGETHER) {
            let counting = some.iter().map(|partition| node.count_in(*partition));
            for counted in block_on(together(counting)) {
                keys += counted?;
            }
        }
        Ok(keys)
    }

    /// As [`ComputeNode::scan`].
    pub fn scan(&self, cursor: u64, limits: ScanLimits) -> Result<Option<ScanStep>> {
        block_on(self.node()?.scan(cursor, limits))
    }

    /// As [`ComputeNode::random_key`].
    pub fn random_key(&self) -> Result<Option<Vec<u8>>> {
        block_on(self.node()?.random_key())
    }

    /// How many keys there are, how many of them expire, and when. Up to 1,000 records all of them
    /// are looked at. Of more a sample tells the share of those that expire, and of those that have
    /// expired and are not removed yet: each is right within 5 % of all keys, 99.7 times of 100.
    pub fn key_figures(&self, now_ms: u64) -> Result<KeyFigures> {
        let (node, records) = (self.node()?, self.count()?);
        if records <= SAMPLE_RECORDS {
            let few = list_few(|from, limits| block_on(node.scan(from, limits)))?;
            if let Some(all) = few {
                return Ok(figures_of(&all, records, now_ms));
            }
        }
        let step = block_on(node.sample(SAMPLE_RECORDS as usize))?;
        // Many records may have come since they were counted.
        let records = if records <= SAMPLE_RECORDS { self.count()? } else { records };
        Ok(figures_of(&step, records, now_ms))
    }

    /// As [`ComputeNode::rename`].
    pub fn rename(
        &self,
        from: &[u8],
        to: &[u8],
        destination: Destination,
    ) -> Result<Renamed, WriteError> {
        block_on(self.writer()?.rename(from, to, destination))
    }

    /// Removes every key that is there during the whole call. Errors as [`FlexKvNode::write_many`].
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

    /// As [`ComputeNode::compare_and_set`].
    pub fn compare_and_set(
        &self,
        key: &[u8],
        read: Option<&Value>,
        value: &[u8],
        expires_ms: u64,
    ) -> Result<bool, WriteError> {
        block_on(self.writer()?.compare_and_set(key, read, value, expires_ms))
    }

    /// As [`ComputeNode::compare_and_delete`].
    pub fn compare_and_delete(&self, key: &[u8], read: &Value) -> Result<bool, WriteError> {
        block_on(self.writer()?.compare_and_delete(key, read))
    }

    /// As [`ComputeNode::delete`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, WriteError> {
        block_on(self.writer()?.delete(key))
    }
}

/// All keys, from steps of a scan; `None` if there are more than [`SAMPLE_RECORDS`] records. Keys
/// that several steps return are counted once. What is held is bounded, however many there are.
fn list_few(
    mut scan: impl FnMut(u64, ScanLimits) -> Result<Option<ScanStep>>,
) -> Result<Option<ScanStep>> {
    let (mut keys, mut expired, mut cursor) = (BTreeMap::new(), 0, Some(0));
    let limits = ScanLimits { records: SAMPLE_RECORDS as usize, key_bytes: STEP_KEY_BYTES };
    while let Some(from) = cursor {
        let Some(step) = scan(from, limits)? else {
            return Err(Error::unsupported("a scan that does not know its own cursor"));
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

/// What a sample of `records` records tells of all of them.
fn figures_of(sample: &ScanStep, records: u64, now_ms: u64) -> KeyFigures {
    let seen = (sample.keys.len() + sample.expired) as u128;
    // A sample that has all of them is newer than their count.
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

/// What came of writes that were under way together, after `done` others of the same call; the
/// first error, which is of unknown effect if any of them all may have happened.
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
            tracing::error!(%error, "a thread of the compute node");
        }
        let life = self.shared.life.write().take();
        if let Some(life) = life {
            life.end();
        }
    }
}

impl Life {
    /// Leaves in order: calls under way end as fenced.
    fn end(self) {
        block_on(self.pool.leave());
    }
}

impl Shared {
    fn keep(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            self.clock.sleep(LOOK);
            let over = self.life.read().as_ref().is_none_or(|life| life.compute.is_over());
            if !over {
                continue;
            }
            let gone = self.life.write().take();
            if let Some(life) = gone {
                tracing::warn!(client = %life.compute.client(), "this node was taken for dead");
                // Doors that the next life needs.
                drop(life);
            }
            if let Err(failed) = self.begin() {
                let error = failed.into_error();
                tracing::warn!(%error, "joining anew");
                self.clock.sleep(AGAIN);
            }
        }
    }

    /// The first life. A manager that answered, and then stood still for longer than a lease, took
    /// this node for dead: it joins anew.
    fn begin_first(&self) -> Result<()> {
        let until_ns = self.clock.now_ns() + FIRST_LIFE.as_nanos() as u64;
        loop {
            match self.begin() {
                Err(Failed::WhileJoined(error)) if self.clock.now_ns() < until_ns => {
                    tracing::warn!(%error, "joining anew");
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
                    "this node was taken for dead before it knew of any memory",
                )));
            }
            if self.clock.now_ns() > until_ns || self.stop.load(Ordering::SeqCst) {
                let what = Error::busy("no memory node has registered with the manager");
                return Err(Failed::ForGood(what));
            }
            self.clock.sleep(LOOK);
        }
        self.take_part(pool).map_err(|error| match error.kind() {
            ErrorKind::Busy | ErrorKind::Fenced => Failed::WhileJoined(error),
            _ => Failed::ForGood(error),
        })
    }

    /// A member of the pool becomes a node of the store.
    fn take_part(&self, pool: PoolClient) -> Result<Life> {
        let (endpoints, runtime) = (Arc::clone(&self.endpoints), Arc::clone(&self.runtime));
        let (id, epoch) = fabric_id(pool.client());
        let late = Arc::new(OnceLock::new());
        let fabric = Node::new(id, epoch, Some(Box::new(Door(Arc::clone(&late)))))?;
        let (mut doors, mut addresses) = (Vec::new(), Vec::new());
        for (at, listen) in self.settings.listen.iter().enumerate() {
            let door = endpoints.serve(&fabric, listen)?;
            let kind = listen.split(':').next().unwrap_or_default();
            let address = format!("{kind}:{}", door.address());
            addresses.push(self.settings.advertise.get(at).cloned().unwrap_or(address));
            doors.push(door);
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
        // It is empty: it was made above.
        let _set = late.set(handler);
        let life = Life { compute, pool, addresses, doors, _fabric: fabric };
        match block_on(life.compute.join()) {
            Ok(()) => {
                tracing::info!(doors = life.doors.len(), client = %life.compute.client(), "joined");
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
    use super::*;

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

    /// A step of a scan of `records` keys that ends where its limits say.
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
        // The second step returns the keys of the first one again, as after a doubling.
        let few = list_few(|from, limits| {
            let step = step_of(600, 0, limits);
            Ok(Some(ScanStep { expired: 10, next: (from == 0).then_some(1), ..step }))
        });
        let all = few.expect("readable").expect("few");
        assert_eq!((all.keys.len(), all.expired), (600, 20));
    }
}
