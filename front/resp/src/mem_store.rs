//! A [`Store`] in memory, for tests and for measurements of the server alone. Its data ends with
//! the process.
//!
//! Invariant: expired records stay in the map until they are overwritten or removed, but no method
//! shows them. Thread-safety: one reader-writer lock guards all databases. A scan holds it for
//! reading, so its visitor must not call the store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, Result};
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};

use crate::databases::{DATABASES, Order};
use crate::store::{
    Databases, JointWrite, KEY_BYTES_MAX, KeyRange, Keyspace, Op, PinnedSlice, Store, StoredValue,
    Visit,
};

struct Record {
    value: Vec<u8>,
    /// Number of the write that made the record.
    version: u64,
    expires_at_ms: Option<u64>,
}

type Records = BTreeMap<Vec<u8>, Record>;

/// State that all databases of a store share.
struct Memory {
    /// The records of each database.
    databases: RwLock<[Records; DATABASES]>,
    /// Number of records that were put so far.
    versions: AtomicU64,
    clock: Arc<dyn Clock>,
}

/// One database of a store in memory.
pub struct MemStore {
    memory: Arc<Memory>,
    index: usize,
}

impl std::fmt::Debug for MemStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemStore({}: {} records)", self.index, self.records().len())
    }
}

impl Default for MemStore {
    fn default() -> Self {
        Self::new(SystemClock::shared())
    }
}

impl MemStore {
    /// Database 0 of an empty store whose records expire by `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (databases, versions) = (RwLock::default(), AtomicU64::new(0));
        Self { memory: Arc::new(Memory { databases, versions, clock }), index: 0 }
    }

    fn records(&self) -> MappedRwLockReadGuard<'_, Records> {
        RwLockReadGuard::map(self.memory.databases.read(), |databases| &databases[self.index])
    }

    fn now_if(&self, any_expiry: bool) -> u64 {
        if any_expiry { self.memory.clock.unix_ms() } else { 0 }
    }

    fn entry(&self, record: &Record) -> Option<StoredValue> {
        let expired = record.expires_at_ms.is_some_and(|at| at <= self.now_if(true));
        (!expired).then(|| StoredValue {
            value: PinnedSlice::owned(record.value.clone()),
            expires_at_ms: record.expires_at_ms,
        })
    }

    fn apply(&self, records: &mut Records, ops: &[Op<'_>]) {
        for op in ops {
            match *op {
                Op::Put { key, value, expires_at_ms } => {
                    let version = self.memory.versions.fetch_add(1, Ordering::Relaxed);
                    let record = Record { value: value.to_vec(), version, expires_at_ms };
                    match records.get_mut(key) {
                        Some(slot) => *slot = record,
                        None => drop(records.insert(key.to_vec(), record)),
                    }
                }
                Op::Delete { key } => drop(records.remove(key)),
                Op::DeleteRange { start, end } => match end {
                    Some(end) if end <= start => {}
                    Some(end) => {
                        let mut tail = records.split_off(start);
                        records.append(&mut tail.split_off(end));
                    }
                    None => drop(records.split_off(start)),
                },
            }
        }
    }
}

/// Refuses keys that are too long, before anything is written.
fn check_keys(ops: &[Op<'_>]) -> Result<()> {
    for op in ops {
        if let Op::Put { key, .. } | Op::Delete { key } = op
            && key.len() > KEY_BYTES_MAX
        {
            let len = key.len();
            return Err(Error::invalid(format!(
                "a key of {len} bytes is too long: at most {KEY_BYTES_MAX}"
            )));
        }
    }
    Ok(())
}

impl Databases for MemStore {
    fn database(&self, index: usize) -> Arc<dyn Store> {
        assert!(index < DATABASES, "there is no database {index}");
        Arc::new(Self { memory: Arc::clone(&self.memory), index })
    }

    fn write_joint(&self, change: &JointWrite<'_>) -> Result<()> {
        change.writes.iter().try_for_each(|(_, ops)| check_keys(ops))?;
        let mut databases = self.memory.databases.write();
        for (index, ops) in &change.writes {
            self.apply(&mut databases[*index], ops);
        }
        if change.order != Order::IDENTITY {
            let mut old = std::mem::take(&mut *databases);
            for (index, records) in databases.iter_mut().enumerate() {
                *records = std::mem::take(&mut old[change.order.at(index)]);
            }
        }
        Ok(())
    }
}

impl Store for MemStore {
    fn databases(&self) -> Option<&dyn Databases> {
        Some(self)
    }

    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        let records = self.records();
        Ok(records.get(key).and_then(|record| self.entry(record)))
    }

    fn version(&self, key: &[u8]) -> Result<Option<u64>> {
        let records = self.records();
        let record = records.get(key).filter(|record| self.entry(record).is_some());
        Ok(record.map(|record| record.version))
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        let records = self.records();
        let find = |key: &&[u8]| Some(self.entry(records.get(*key)?)?.value);
        Ok(keys.iter().map(find).collect())
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        check_keys(ops)?;
        self.apply(&mut self.memory.databases.write()[self.index], ops);
        Ok(())
    }

    fn scan(&self, range: KeyRange<'_>, reverse: bool, visit: &mut Visit<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let records = self.records();
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (range.from, range.to);
        let now_ms = self.memory.clock.unix_ms();
        let mut show = |key: &[u8], record: &Record| {
            if record.expires_at_ms.is_some_and(|at| at <= now_ms) {
                return true;
            }
            visit(key, &record.value, record.expires_at_ms).is_continue()
        };
        let mut walk = records.range::<[u8], _>(bounds);
        loop {
            let next = if reverse { walk.next_back() } else { walk.next() };
            match next {
                Some((key, record)) if show(key, record) => {}
                _ => return Ok(()),
            }
        }
    }

    fn approximate_count(&self) -> Result<u64> {
        let now_ms = self.memory.clock.unix_ms();
        let live = |record: &&Record| record.expires_at_ms.is_none_or(|at| at > now_ms);
        Ok(self.records().values().filter(live).count() as u64)
    }

    fn keyspace(&self) -> Result<Keyspace> {
        let (now_ms, records) = (self.memory.clock.unix_ms(), self.records());
        let left = records.values().filter_map(|record| record.expires_at_ms);
        let left = left.filter(|&at_ms| at_ms > now_ms).map(|at_ms| at_ms - now_ms);
        let (expiring, sum) = left.fold((0, 0), |(count, sum), ms| (count + 1, sum + ms));
        drop(records);
        let mean_ttl_ms = sum.checked_div(expiring).unwrap_or(0);
        Ok(Keyspace { keys: self.approximate_count()?, expiring, mean_ttl_ms })
    }

    fn expired_keys(&self) -> u64 {
        // Nothing removes expired records.
        0
    }

    fn info(&self) -> String {
        format!("engine:memory\nrecords:{}\n", self.records().len())
    }
}
