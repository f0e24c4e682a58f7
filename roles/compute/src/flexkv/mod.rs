//! A compute node of FlexKV as a process runs it, for callers with threads.
//!
//! [`FlexKvNode`] joins the pool, listens for other nodes, and blocks the threads of its callers
//! until their requests end. A caller whose threads have other work, such as a server, gives it a
//! [`LongWait`] for requests that another node does not answer soon.
//!
//! The cluster may declare a node dead, because its process was stopped or cut off. The process
//! then joins again under another id: see `lives`. Calls of the old life end as fenced. Calls
//! between two lives end as busy.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a start that cannot join the cluster fails. If the cluster admitted the node and then
//! declared it dead, the start retries for half a minute. A later life is tried again without a
//! limit.
//! Cost: two threads, in addition to those of the fabric and of the shared runtime.

mod key_figures;
mod lives;
mod waits;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use archipelago_base::clock::SystemClock;
use archipelago_base::runtime::join_all;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, Result};
use archipelago_flexkv::wire::Figure;
use archipelago_flexkv::{ComputeNode, FAST_KEYS_MAX, ScanStep, Value, WriteEffect, WriteError};

use key_figures::{SAMPLE_RECORDS, figures_of, list_few};
use lives::Lives;
use waits::Waits;

pub use archipelago_flexkv::{CacheMode, Destination, FlexKvSettings, Renamed, ScanLimits, Set};
pub use key_figures::KeyFigures;
pub use lives::FlexKvNodeSettings;
pub use waits::LongWait;

/// Number of calls of one caller that run in parallel.
const TOGETHER: usize = 32;

/// A write of one key: its new value and expiry in Unix milliseconds (0 means never), or `None` for
/// a deletion.
pub type KeyWrite<'a> = (&'a [u8], Option<(&'a [u8], u64)>);

/// A compute node of FlexKV in a process. Dropping the value leaves the cluster, and other nodes
/// take its partitions.
pub struct FlexKvNode {
    lives: Arc<Lives>,
    waits: Waits,
    keeper: Option<Joiner>,
}

impl fmt::Debug for FlexKvNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FlexKvNode").field(&self.lives.present(ComputeNode::clone)).finish()
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
        let clock = SystemClock::shared();
        let waits = Waits::new(Arc::clone(&clock));
        let lives = Arc::new(Lives::start(settings, clock)?);
        let keeping = Arc::clone(&lives);
        let keeper = SystemSpawn.spawn("flex-keeper", Box::new(move || keeping.keep()))?;
        Ok(Self { lives, waits, keeper: Some(keeper) })
    }

    /// The compute node of the present life. Errors: `Busy` while no life exists.
    pub fn node(&self) -> Result<ComputeNode> {
        let none = || Error::busy("the cluster declared this node dead, and it is joining again");
        self.lives.present(ComputeNode::clone).ok_or_else(none)
    }

    /// Endpoints of the present life, as other nodes know them.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.lives.addresses()
    }

    /// Makes the calls of all threads treat long waits by `long_wait`. Only the first call of this
    /// method has an effect.
    pub fn set_long_wait(&self, long_wait: LongWait) {
        self.waits.set_long_wait(long_wait);
    }

    /// Blocks the calling thread until `future` completes.
    fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        self.waits.wait_for(future)
    }

    /// Whether a call may wait for longer than an exchange with another node takes.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.lives.present(ComputeNode::may_wait).unwrap_or(true)
    }

    /// Counters of the present life, by name.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        self.node().map_or_else(|_| Vec::new(), |node| node.figures())
    }

    /// Reads a key; see [`ComputeNode::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        let fast = self.lives.present(|compute| compute.get_fast(key)).flatten();
        if let Some(value) = fast {
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
        self.lives.stop();
        if let Some(Err(error)) = self.keeper.take().map(Joiner::join) {
            tracing::error!(%error, "a thread of the compute node panicked");
        }
        self.lives.end();
    }
}
