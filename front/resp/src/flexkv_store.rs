//! The store over remote memory as a [`Store`]: a compute node serves it to Redis clients.
//!
//! The server owns the store. Each key alone is linearizable over all compute nodes. A
//! read-modify-write uses compare-and-set, so it is atomic whichever node writes. Keys have no
//! order, and several keys share no moment. Commands that need one of these are refused as
//! unsupported. Keys are listed by partition and bucket (decision 0057), and RENAME is several
//! writes of single keys. MGET, MSET, DEL and the GETs and SETs of a pipeline work on their keys in
//! parallel, so that they share round trips. If a batch writes a key several times, only the last
//! write is executed.
//!
//! Thread-safety: any thread may call any method. Cost: cached keys are read, and keys that this
//! node proxies are set, without waiting and several in one call ([`Store::get_now`],
//! [`Store::write_now`]). Every other call waits on its thread. A wait for a node that does not
//! answer soon leaves the worker threads of the runtime. Failure: the text and the cause of a
//! write's error ([`archipelago_flexkv::WriteEffect`]) say whether the write may have happened.

use std::collections::{HashMap, hash_map};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, Result};
use archipelago_compute::flexkv::{
    Destination, FlexKvNode, KeyWrite, LongWait, Renamed, ScanLimits, Set,
};
use archipelago_flexkv::{Value, WriteError};

use crate::store::{
    Change, Decide, KeyRange, Keyspace, Moved, Op, PinnedSlice, StepLimits, Store, StoredValue,
    Unexecuted, UnorderedKeys, Visit, VisitKey,
};
use crate::worker_threads::off_the_workers;

/// Time for which a call waits on a worker thread of the runtime before it leaves it. The answer of
/// another node usually takes microseconds, and a dead node is noticed after seconds. While some
/// call waits for longer, the others leave their threads earlier.
const SHORT_WAIT: Duration = Duration::from_millis(1);

/// A compute node's store.
#[derive(Debug)]
pub struct FlexKvStore {
    node: Arc<FlexKvNode>,
    clock: Arc<dyn Clock>,
}

fn no_order(what: &str) -> Error {
    Error::unsupported(format!(
        "{what}: a store over remote memory keeps its keys in no order (a database does: serve --engine lsm)"
    ))
}

fn expiry_of(expires_at_ms: Option<u64>) -> u64 {
    // 0 means no expiry. The first millisecond of 1970 is as past as the second one.
    expires_at_ms.map_or(0, |at_ms| at_ms.max(1))
}

fn entry_of(value: &Value) -> StoredValue {
    let expires_at_ms = (value.expires_ms > 0).then_some(value.expires_ms);
    StoredValue { value: PinnedSlice::owned(value.bytes.clone()), expires_at_ms }
}

fn entry_from(value: Value) -> StoredValue {
    let expires_at_ms = (value.expires_ms > 0).then_some(value.expires_ms);
    StoredValue { value: PinnedSlice::owned(value.bytes), expires_at_ms }
}

/// The operation as a set, if it is a put.
fn set_of<'a>(op: &Op<'a>) -> Option<Set<'a>> {
    match *op {
        Op::Put { key, value, expires_at_ms } => {
            Some(Set { key, value, expires_ms: expiry_of(expires_at_ms) })
        }
        Op::Delete { .. } | Op::DeleteRange { .. } => None,
    }
}

/// The last write of each key.
fn last_of_each<'a>(ops: &[Op<'a>]) -> Result<Vec<KeyWrite<'a>>> {
    let mut last: HashMap<&[u8], usize> = HashMap::with_capacity(ops.len());
    let mut writes: Vec<KeyWrite<'a>> = Vec::with_capacity(ops.len());
    for op in ops {
        let write = match *op {
            Op::Put { key, value, expires_at_ms } => (key, Some((value, expiry_of(expires_at_ms)))),
            Op::Delete { key } => (key, None),
            Op::DeleteRange { .. } => return Err(no_order("a range cannot be removed")),
        };
        match last.entry(write.0) {
            hash_map::Entry::Occupied(at) => writes[*at.get()] = write,
            hash_map::Entry::Vacant(free) => {
                free.insert(writes.len());
                writes.push(write);
            }
        }
    }
    Ok(writes)
}

fn run_off_the_workers(wait: &mut dyn FnMut()) {
    off_the_workers(wait);
}

impl FlexKvStore {
    /// A store over `node`. Long waits of its calls, on any thread, leave the worker threads of the
    /// runtime from now on.
    #[must_use]
    pub fn new(node: Arc<FlexKvNode>) -> Self {
        node.set_long_wait(LongWait { after: SHORT_WAIT, run: run_off_the_workers });
        Self { node, clock: SystemClock::shared() }
    }

    /// Reads a key and changes it as `decide` says, until no other write of the key came in
    /// between.
    fn decide_until_done(&self, key: &[u8], decide: &mut Decide<'_, '_>) -> Result<(), WriteError> {
        loop {
            let read = self.node.get(key).map_err(WriteError::without_effect)?;
            let entry = read.as_ref().map(entry_of);
            let set = |value: &[u8], expires_at_ms| {
                self.node.compare_and_set(key, read.as_ref(), value, expiry_of(expires_at_ms))
            };
            let done = match (decide(entry.as_ref()), &read) {
                (Change::Keep, _) | (Change::Expire(_) | Change::Delete, None) => true,
                (Change::Put { value, expires_at_ms }, _) => set(&value, expires_at_ms)?,
                (Change::Expire(expires_at_ms), Some(read)) => set(&read.bytes, expires_at_ms)?,
                (Change::Delete, Some(read)) => self.node.compare_and_delete(key, read)?,
            };
            // Another writer was faster. So at least one of the writers makes progress.
            if done {
                return Ok(());
            }
        }
    }
}

impl Store for FlexKvStore {
    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        Ok(self.node.get(key)?.map(entry_from))
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        let values = self.node.get_many(keys)?;
        Ok(values.into_iter().map(|value| Some(PinnedSlice::owned(value?.bytes))).collect())
    }

    fn get_now(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
        self.node.get_now(keys, take)
    }

    fn write_now(&self, ops: &[Op<'_>]) -> Unexecuted {
        let sets = ops.iter().map(set_of).collect::<Option<Vec<Set<'_>>>>();
        sets.map_or(Unexecuted::All, |sets| Unexecuted::These(self.node.set_now(&sets)))
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        match *ops {
            [Op::Put { key, value, expires_at_ms }] => {
                self.node.set(key, value, expiry_of(expires_at_ms)).map_err(WriteError::into_error)
            }
            [Op::DeleteRange { start: b"", end: None }] => {
                self.node.clear().map_err(WriteError::into_error)
            }
            [Op::Delete { key }] => self.node.delete(key).map(drop).map_err(WriteError::into_error),
            _ => self.node.write_many(&last_of_each(ops)?).map_err(WriteError::into_error),
        }
    }

    fn modify(&self, key: &[u8], decide: &mut Decide<'_, '_>) -> Result<()> {
        self.decide_until_done(key, decide).map_err(WriteError::into_error)
    }

    fn is_atomic_by_key(&self) -> bool {
        true
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<usize> {
        self.node.delete_many(keys).map_err(WriteError::into_error)
    }

    fn joint_writes(&self) -> Result<()> {
        Err(Error::unsupported(
            "a store over remote memory does not change several keys at one moment; single keys are atomic",
        ))
    }

    fn sees_all_writes(&self) -> Result<()> {
        Err(Error::unsupported(
            "CLIENT TRACKING is not possible over remote memory: other compute nodes write the same keys, \
             and this server does not see it (a database is served with --engine lsm)",
        ))
    }

    fn scan(&self, _: KeyRange<'_>, _: bool, _: &mut Visit<'_>) -> Result<()> {
        Err(no_order("keys cannot be listed between bounds"))
    }

    fn unordered_keys(&self) -> Option<&dyn UnorderedKeys> {
        Some(self)
    }

    fn rename(&self, from: &[u8], to: &[u8], overwrites: bool) -> Result<Moved> {
        let destination = if overwrites { Destination::Overwritten } else { Destination::Kept };
        let renamed = self.node.rename(from, to, destination).map_err(WriteError::into_error)?;
        Ok(match renamed {
            Renamed::Moved => Moved::Done,
            Renamed::NoSource => Moved::NoSource,
            Renamed::DestinationExists => Moved::DestinationExists,
        })
    }

    fn approximate_count(&self) -> Result<u64> {
        self.node.count()
    }

    fn keyspace(&self) -> Result<Keyspace> {
        let figures = self.node.key_figures(self.clock.unix_ms())?;
        Ok(Keyspace {
            keys: figures.keys,
            expiring: figures.expiring,
            mean_ttl_ms: figures.mean_ttl_ms,
        })
    }

    fn expired_keys(&self) -> u64 {
        // Each node removes the expired records of its blocks, and does not count them.
        0
    }

    fn info(&self) -> String {
        let mut text = "engine:flexkv\n".to_owned();
        let Ok(node) = self.node.node() else { return text + "joined:0\n" };
        let Some(map) = node.map_status() else { return text + "joined:0\n" };
        let mine = map.entries.iter().filter(|entry| entry.node == map.number);
        let (partitions, proxied) =
            mine.fold((0, 0), |(all, some), entry| (all + 1, some + u64::from(entry.offloaded)));
        let facts = [
            ("joined", 1),
            ("node", u64::from(map.number)),
            ("nodes", map.members.len() as u64),
            ("map_version", map.version),
            ("partitions", map.entries.len() as u64),
            ("partitions_here", partitions),
            ("partitions_proxied_here", proxied),
        ];
        for (name, value) in facts {
            text.push_str(&format!("{name}:{value}\n"));
        }
        for figure in node.figures() {
            text.push_str(&format!("{}:{}\n", figure.name, figure.value));
        }
        text
    }

    fn would_stall(&self, _: bool) -> bool {
        self.node.may_wait()
    }

    fn overlaps_reads(&self) -> bool {
        true
    }
}

impl UnorderedKeys for FlexKvStore {
    fn step(
        &self,
        cursor: u64,
        limits: StepLimits,
        show: &mut dyn FnMut(&[u8]),
    ) -> Result<Option<u64>> {
        let StepLimits { records, key_bytes } = limits;
        let Some(step) = self.node.scan(cursor, ScanLimits { records, key_bytes })? else {
            return Ok(None);
        };
        step.keys.iter().for_each(|found| show(&found.key));
        Ok(Some(step.next.unwrap_or(0)))
    }

    fn each(&self, visit: &mut VisitKey<'_>) -> Result<()> {
        self.node.each_partition(&mut |keys| {
            let flow = keys.iter().try_for_each(|key| visit(key));
            Ok(flow)
        })
    }

    fn random(&self) -> Result<Option<Vec<u8>>> {
        self.node.random_key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_puts_become_sets() {
        let put = Op::Put { key: b"reef", value: b"coral", expires_at_ms: Some(7) };
        assert_eq!(set_of(&put), Some(Set { key: b"reef", value: b"coral", expires_ms: 7 }));
        assert_eq!(set_of(&Op::Delete { key: b"reef" }), None);
        assert_eq!(set_of(&Op::DeleteRange { start: b"", end: None }), None);
    }

    #[test]
    fn last_write_of_a_key_in_a_batch_counts() {
        let put = |key, value| Op::Put { key, value, expires_at_ms: None };
        let (reef, cay): (&[u8], &[u8]) = (b"reef", b"cay");
        let ops = [put(reef, b"1"), put(cay, b"2"), Op::Delete { key: reef }, put(cay, b"3")];
        let writes = last_of_each(&ops).expect("keys");
        assert_eq!(writes, [(reef, None), (cay, Some((&b"3"[..], 0)))]);
        let range = [put(reef, b"1"), Op::DeleteRange { start: b"", end: None }];
        assert!(last_of_each(&range).is_err(), "and nothing is done");
    }
}
