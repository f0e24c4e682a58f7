//! The engine as a [`Store`]: each of the sixteen databases is a column family of an open database.
//!
//! The server owns the store, and the database stays open as long as the store exists.
//! `engine_databases` says which family a database shows, and when that may change. The caller of a
//! write holds the stripes of its keys (`locks`).
//!
//! Thread-safety: any thread may call any method, and the store has no lock of its own. Cost: a
//! write encodes its operations once, into a batch that its thread reuses. A scan opens an iterator
//! with the range as its bounds, so files outside the range are not read.

use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_engine::db::{ColumnFamily, Db, Iter, ReadOptions};
use archipelago_engine::disk_space::{SpaceState, SpaceUse};
use archipelago_engine::options::WriteOptions;
use archipelago_engine::stats::Ticker;
use archipelago_engine::wal::WriteBatch;

use crate::databases::{DATABASES, Order};
use crate::engine_databases::EngineDatabases;
use crate::prefixes::PrefixTable;
use crate::store::{
    Databases, Head, JointWrite, KEY_BYTES_MAX, KeyRange, Keyspace, Op, PinnedSlice, Store,
    StoredValue, Visit, VisitKey,
};

/// Up to this number of keys DBSIZE counts them, which takes a few milliseconds at most. People
/// expect small counts to be exact, and 0 after FLUSHDB. The engine's estimate is within 10 % of
/// the number of different keys that memtables and tables have records of.
const COUNTED_KEYS_MAX: u64 = 10_000;

/// Bytes of keys and values above which DBSIZE is the engine's estimate, so that it never reads
/// large values to count their keys.
const COUNTED_BYTES_MAX: u64 = 16 << 20;

/// Number of keys of the first chunk of a MGET, and of the largest chunk.
const GET_CHUNK_MIN: usize = 4;
const GET_CHUNK_MAX: usize = 256;

/// Bytes of values of a chunk above which the next chunk has one key.
const GET_CHUNK_BYTES: usize = 1 << 20;

/// Size in bytes above which a thread frees its batch after a write.
const KEPT_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static BATCH: RefCell<WriteBatch> = const { RefCell::new(WriteBatch::new()) };
}

/// Properties of the database that INFO shows.
const PROPERTIES: [&str; 23] = [
    "health",
    "estimate-num-keys",
    "latest-sequence-number",
    "cur-size-all-mem-tables",
    "num-immutable-mem-table",
    "total-sst-files-size",
    "num-value-files",
    "value-file-bytes",
    "value-valid-bytes",
    "value-exposed-bytes",
    "value-hidden-bytes",
    "space-live-bytes",
    "space-in-flight-bytes",
    "pinned-file-bytes",
    "estimate-pending-compaction-bytes",
    "block-cache-usage",
    "block-cache-hit",
    "block-cache-miss",
    "num-running-jobs",
    "background-errors",
    "disk-state",
    "disk-free-bytes",
    "disk-reserve-bytes",
];

/// Properties of the database that INFO shows as parts of the memory budget, by their names in
/// INFO.
const MEMORY_PROPERTIES: [(&str, &str); 3] = [
    ("memtable", "archipelago.mem-table-bytes-max"),
    ("block_cache", "archipelago.block-cache-capacity"),
    ("job", "archipelago.running-jobs-bytes-max"),
];

/// One database of an open engine.
pub struct EngineStore {
    databases: Arc<EngineDatabases>,
    /// Index of this database.
    index: usize,
    write_options: WriteOptions,
    facts: Option<Arc<Facts>>,
    read_check: Option<Arc<ReadCheck>>,
}

/// Function that returns further `name:value` lines for INFO.
pub type Facts = Box<dyn Fn() -> String + Send + Sync>;

/// Function that says whether the answer of a read may leave the process, when the answer is ready.
/// Its error goes to the client instead of the answer.
pub type ReadCheck = Box<dyn Fn() -> Result<()> + Send + Sync>;

impl std::fmt::Debug for EngineStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineStore")
            .field("db", self.db())
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl EngineStore {
    /// Database 0 of `db`, from which the others can be reached. Writes return as `write_options`
    /// say.
    ///
    /// # Errors
    /// `Corrupt` if the row with the order of the databases is damaged, and errors of reading it.
    pub fn new(db: Db, write_options: WriteOptions) -> Result<Self> {
        let databases = Arc::new(EngineDatabases::open(db)?);
        Ok(Self { databases, index: 0, write_options, facts: None, read_check: None })
    }

    fn db(&self) -> &Db {
        &self.databases.db
    }

    /// Calls `read` with the family of this database. `None`: it has no family.
    #[inline]
    fn read<T>(&self, read: impl FnMut(&ColumnFamily) -> Result<T>) -> Result<Option<T>> {
        let answer = self.databases.read(self.index, read)?;
        self.check_read()?;
        Ok(answer)
    }

    /// Whether an answer that is ready may be given.
    #[inline]
    fn check_read(&self) -> Result<()> {
        match &self.read_check {
            Some(check) => check(),
            None => Ok(()),
        }
    }

    /// The family of this database, or the default family if it has none. For figures.
    fn family_or_default(&self) -> &ColumnFamily {
        self.databases.family(self.index).unwrap_or(self.db().default_family())
    }

    /// Adds the lines of `facts` to the section Archipelago of INFO.
    #[must_use]
    pub fn with_facts(mut self, facts: Facts) -> Self {
        self.facts = Some(Arc::new(facts));
        self
    }

    /// Asks `check` before each answer of a read. A process that shares its database's storage with
    /// others then serves no read after it has lost the storage.
    #[must_use]
    pub fn with_read_check(mut self, check: ReadCheck) -> Self {
        self.read_check = Some(Arc::new(check));
        self
    }

    fn write_with(&self, ops: &[Op<'_>], options: &WriteOptions) -> Result<()> {
        self.write_batch(options, |batch| {
            ops.iter().try_for_each(|op| self.encode(batch, self.index, op))
        })?;
        if ops.iter().any(removes_all) {
            self.give_space_back(self.index);
        }
        Ok(())
    }

    /// Fills a batch with `encode` and writes it.
    #[inline]
    fn write_batch(
        &self,
        options: &WriteOptions,
        encode: impl FnOnce(&mut WriteBatch) -> Result<()>,
    ) -> Result<()> {
        let write = |batch: &WriteBatch| self.db().write(batch, options).map(|_| ());
        self.write_batch_by(write, encode)
    }

    /// Fills a batch with `encode` and passes it to `write`.
    #[inline]
    fn write_batch_by(
        &self,
        write: impl FnOnce(&WriteBatch) -> Result<()>,
        encode: impl FnOnce(&mut WriteBatch) -> Result<()>,
    ) -> Result<()> {
        BATCH.with_borrow_mut(|batch| {
            batch.clear();
            let encoded = encode(batch);
            let written = encoded.and_then(|()| write(batch));
            if batch.byte_len() > KEPT_BYTES_MAX {
                *batch = WriteBatch::new();
            }
            written
        })
    }

    /// Encodes `op` on database `index`. A range without an end covers the keys up to the last
    /// existing one. The caller holds all key locks, so no write adds a key after that one
    /// meanwhile.
    #[inline]
    fn encode(&self, batch: &mut WriteBatch, index: usize, op: &Op<'_>) -> Result<()> {
        let family = match *op {
            Op::Put { .. } => self.databases.made_family(index)?,
            Op::Delete { .. } | Op::DeleteRange { .. } => match self.databases.family(index) {
                Some(family) => family,
                // Without a family there is nothing to remove.
                None => return Ok(()),
            },
        };
        let cf = family.id();
        match *op {
            Op::Put { key, value, expires_at_ms: None } => batch.put_cf(cf, key, value),
            Op::Put { key, value, expires_at_ms: Some(at_ms) } => {
                batch.put_expiring_cf(cf, key, value, at_ms);
            }
            Op::Delete { key } => batch.delete_cf(cf, key),
            Op::DeleteRange { start, end: Some(end) } => {
                if start < end {
                    batch.delete_range_cf(cf, start, end);
                }
            }
            Op::DeleteRange { start, end: None } => {
                let mut iter = self.db().iter(family, &ReadOptions::default().keys_only())?;
                iter.seek_to_last();
                iter.status()?;
                if iter.valid() && iter.key() >= start {
                    let last = iter.key();
                    if last.len() < KEY_BYTES_MAX {
                        batch.delete_range_cf(cf, start, &successor(last));
                    } else {
                        batch.delete_range_cf(cf, start, last);
                        batch.delete_cf(cf, last);
                    }
                }
            }
        }
        Ok(())
    }
}

impl EngineStore {
    /// Calls `visit` for each record of `range` until it breaks. With `reverse` it begins at the
    /// end of the range.
    fn walk(
        &self,
        range: KeyRange<'_>,
        reverse: bool,
        options: ReadOptions,
        mut visit: impl FnMut(&Iter) -> ControlFlow<()>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let options = ReadOptions {
            lower_bound: match range.from {
                Bound::Included(from) => Some(from.to_vec()),
                Bound::Excluded(from) => Some(successor(from)),
                Bound::Unbounded => None,
            },
            upper_bound: match range.to {
                Bound::Included(to) => Some(successor(to)),
                Bound::Excluded(to) => Some(to.to_vec()),
                Bound::Unbounded => None,
            },
            ..options
        };
        let Some(mut iter) = self.read(|family| self.db().iter(family, &options))? else {
            return Ok(());
        };
        if reverse {
            iter.seek_to_last();
        } else {
            iter.seek_to_first();
        }
        while iter.valid() {
            // A visitor may send what it is shown, so each record is an answer.
            self.check_read()?;
            if visit(&iter).is_break() {
                return Ok(());
            }
            if reverse { iter.prev() } else { iter.next() }
        }
        iter.status()?;
        self.check_read()
    }
}

impl EngineStore {
    /// Approximate number of keys of `family`.
    fn count(&self, family: &ColumnFamily) -> Result<u64> {
        if self.db().raw_bytes(family) > COUNTED_BYTES_MAX {
            return Ok(self.db().estimate_keys(family));
        }
        let options = ReadOptions { fill_cache: false, ..ReadOptions::default().keys_only() };
        let mut iter = self.db().iter(family, &options)?;
        iter.seek_to_first();
        let mut count = 0;
        while iter.valid() && count < COUNTED_KEYS_MAX {
            count += 1;
            iter.next();
        }
        iter.status()?;
        if count < COUNTED_KEYS_MAX {
            return Ok(count);
        }
        Ok(self.db().estimate_keys(family).max(count))
    }
}

/// The smallest key after `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// Whether `op` removes every key of its database.
fn removes_all(op: &Op<'_>) -> bool {
    matches!(op, Op::DeleteRange { start, end: None } if start.is_empty())
}

impl EngineStore {
    /// Frees the space of a database whose keys were all removed, without waiting for further
    /// writes. In a table, the range delete lets compactions drop all other records. The keys are
    /// gone already, so a failed flush is no failure of the write.
    fn give_space_back(&self, index: usize) {
        let Some(family) = self.databases.family(index) else { return };
        if let Err(error) = self.db().start_flush(family) {
            tracing::warn!(%error, "the flush after a removal of all keys failed: their space is freed by a later flush");
        }
    }
}

impl EngineStore {
    /// Writes the batch that `encode` fills, together with the order after `change`. Reads see both
    /// at one moment. They survive power loss on return.
    fn write_with_order(
        &self,
        change: &JointWrite<'_>,
        encode: impl FnOnce(&mut WriteBatch) -> Result<()>,
    ) -> Result<()> {
        let databases = &self.databases;
        let order_cf = databases.made_order_family()?.id();
        let write = |batch: &WriteBatch| {
            databases.wait_for_writes(change.writes.iter().map(|(index, _)| *index))?;
            databases.change_order(change.order, || {
                self.db().write(batch, &WriteOptions::default()).map(|_| ())
            })
        };
        self.write_batch_by(write, |batch| {
            encode(batch)?;
            let (key, value) = databases.row_after(change.order);
            batch.put_cf(order_cf, key, &value);
            Ok(())
        })?;
        self.db().sync()
    }
}

impl Databases for EngineStore {
    fn database(&self, index: usize) -> Arc<dyn Store> {
        assert!(index < DATABASES, "there is no database {index}");
        Arc::new(Self {
            databases: Arc::clone(&self.databases),
            index,
            write_options: self.write_options,
            facts: self.facts.clone(),
            read_check: self.read_check.clone(),
        })
    }

    fn write_joint(&self, change: &JointWrite<'_>) -> Result<()> {
        let databases = &self.databases;
        let encode = |batch: &mut WriteBatch| {
            let ops =
                change.writes.iter().flat_map(|(index, ops)| ops.iter().map(|op| (*index, op)));
            ops.into_iter().try_for_each(|(index, op)| self.encode(batch, index, op))
        };
        if change.order == Order::IDENTITY {
            let options = WriteOptions { space_use: change.space_use, ..self.write_options };
            self.write_batch(&options, encode)?;
        } else {
            databases.holding_writers(|| self.write_with_order(change, encode))?;
        }
        let cleared = change.writes.iter().filter(|(_, ops)| ops.iter().any(removes_all));
        for (before, _) in cleared {
            let now = (0..DATABASES).find(|index| change.order.at(*index) == *before);
            self.give_space_back(now.unwrap_or(*before));
        }
        Ok(())
    }
}

impl Store for EngineStore {
    fn databases(&self) -> Option<&dyn Databases> {
        Some(self)
    }

    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        let options = ReadOptions::default();
        let entry = self.read(|family| self.db().get_entry(family, key, &options))?.flatten();
        Ok(entry
            .map(|entry| StoredValue { value: entry.value, expires_at_ms: entry.expires_at_ms }))
    }

    fn head(&self, key: &[u8]) -> Result<Option<Head>> {
        let options = ReadOptions::default();
        let entry = self.read(|family| self.db().get_head(family, key, &options))?.flatten();
        Ok(entry.map(|entry| Head { expires_at_ms: entry.expires_at_ms }))
    }

    fn which_exist(&self, keys: &[&[u8]]) -> Result<Vec<bool>> {
        let exist = self.read(|family| {
            let options = ReadOptions::default().snapshot(&self.db().snapshot());
            keys.iter().map(|key| self.db().contains(family, key, &options)).collect()
        })?;
        Ok(exist.unwrap_or_else(|| vec![false; keys.len()]))
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        let options = ReadOptions::default();
        let values = self.read(|family| self.db().multi_get(family, keys, &options))?;
        Ok(values.unwrap_or_else(|| keys.iter().map(|_| None).collect()))
    }

    fn multi_get_each(
        &self,
        keys: &[&[u8]],
        take: &mut dyn FnMut(Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<()> {
        if keys.len() <= GET_CHUNK_MIN {
            let values = self.multi_get(keys)?;
            let _ended = values.iter().try_for_each(|value| take(value.as_deref()));
            return Ok(());
        }
        let moment = self.read(|family| Ok((family.clone(), self.db().snapshot())))?;
        let Some((family, snapshot)) = moment else {
            let _ended = keys.iter().try_for_each(|_| take(None));
            return Ok(());
        };
        // The family of the snapshot is the one that this database showed then.
        let options = ReadOptions::default().snapshot(&snapshot);
        let (mut rest, mut chunk) = (keys, GET_CHUNK_MIN);
        while !rest.is_empty() {
            let (these, others) = rest.split_at(chunk.min(rest.len()));
            let values = self.db().multi_get(&family, these, &options)?;
            self.check_read()?;
            let bytes: usize = values.iter().flatten().map(|value| value.len()).sum();
            for value in &values {
                if take(value.as_deref()).is_break() {
                    return Ok(());
                }
            }
            // Large values are read one at a time, so that few of them are in memory.
            chunk = if bytes > GET_CHUNK_BYTES { 1 } else { (2 * chunk).min(GET_CHUNK_MAX) };
            rest = others;
        }
        Ok(())
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.write_with(ops, &self.write_options)
    }

    fn version(&self, key: &[u8]) -> Result<Option<u64>> {
        let options = ReadOptions::default();
        let entry = self.read(|family| self.db().get_head(family, key, &options))?.flatten();
        Ok(entry.map(|entry| entry.seq.0))
    }

    fn write_freeing(&self, ops: &[Op<'_>]) -> Result<()> {
        let options = WriteOptions { space_use: SpaceUse::Frees, ..self.write_options };
        self.write_with(ops, &options)
    }

    fn resume(&self) -> Result<()> {
        self.db().resume()
    }

    fn scan(&self, range: KeyRange<'_>, reverse: bool, visit: &mut Visit<'_>) -> Result<()> {
        self.walk(range, reverse, ReadOptions::default(), |iter| {
            visit(iter.key(), iter.value(), iter.expires_at_ms())
        })
    }

    fn scan_keys(
        &self,
        range: KeyRange<'_>,
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<()> {
        self.walk(range, reverse, ReadOptions::default().keys_only(), |iter| visit(iter.key()))
    }

    fn scan_prefixes(&self) -> Option<&dyn PrefixTable> {
        Some(&self.databases.prefixes)
    }

    fn approximate_count(&self) -> Result<u64> {
        Ok(self.read(|family| self.count(family))?.unwrap_or(0))
    }

    fn keyspace(&self) -> Result<Keyspace> {
        let keyspace = self.read(|family| {
            let keys = self.count(family)?;
            let estimate = self.db().estimate_key_counts(family);
            let expiring = estimate.expiring.min(keys);
            Ok(Keyspace { keys, expiring, mean_ttl_ms: estimate.mean_ttl_ms })
        })?;
        Ok(keyspace.unwrap_or_default())
    }

    fn expired_keys(&self) -> u64 {
        self.db().statistics().get(Ticker::RecordsExpired)
    }

    fn sync(&self) -> Result<()> {
        self.db().sync()
    }

    fn checkpoint(&self, dir: &Path) -> Result<()> {
        self.db().checkpoint(dir)
    }

    fn memory_parts(&self) -> Vec<(&'static str, u64)> {
        let family = self.family_or_default();
        let part = |(name, property)| {
            let value = self.db().property(family, property)?;
            Some((name, value.trim().parse().ok()?))
        };
        MEMORY_PROPERTIES.into_iter().filter_map(part).collect()
    }

    fn info(&self) -> String {
        let mut text = "engine:archipelago\n".to_owned();
        let family = self.family_or_default();
        for name in PROPERTIES {
            if let Some(value) = self.db().property(family, &format!("archipelago.{name}")) {
                text.push_str(&format!("{}:{}\n", name.replace('-', "_"), value.trim()));
            }
        }
        if let Some(facts) = &self.facts {
            text.push_str(&facts());
        }
        text
    }

    fn syncs_writes(&self) -> bool {
        self.write_options.sync
    }

    fn would_stall(&self, write: bool) -> bool {
        if !write {
            return self.databases.holds_readers();
        }
        self.db().would_stall(self.family_or_default())
            || self.db().space_state() != SpaceState::Roomy
            || self.databases.holds_writers()
    }
}
