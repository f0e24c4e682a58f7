//! The engine as a [`Store`]: one column family of an open database is the keyspace.
//!
//! Owned by the server; the database stays open as long as this lives. Thread-safe, without a lock
//! of its own. Costs: a write encodes its operations once, into a batch that its thread reuses; a
//! scan opens an iterator with the range as its bounds, so that files outside are not touched.

use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

use archipelago_base::Result;
use archipelago_engine::db::{ColumnFamily, Db, Iter, ReadOptions};
use archipelago_engine::disk_space::{SpaceState, SpaceUse};
use archipelago_engine::options::WriteOptions;
use archipelago_engine::stats::Ticker;
use archipelago_engine::wal::WriteBatch;

use crate::engine_prefixes::EnginePrefixes;
use crate::prefixes::PrefixTable;
use crate::store::{
    Entry, Head, KEY_BYTES_MAX, KeyRange, Keyspace, Op, PinnedSlice, Store, Visit, VisitKey,
};

/// Fewer keys are counted one by one (a few milliseconds at most): people expect small counts to
/// be exact, and none after FLUSHDB. The engine's estimate is within 10 % of the number of
/// different keys that memtables and tables have records of.
const COUNTED_KEYS_MAX: u64 = 10_000;

/// With more bytes of keys and values than this DBSIZE is the engine's estimate, so that it never
/// reads large values to count their keys.
const COUNTED_BYTES_MAX: u64 = 16 << 20;

/// Keys that are read together at first, and at most.
const GET_CHUNK_MIN: usize = 4;
const GET_CHUNK_MAX: usize = 256;

/// With values of more bytes the next one is read by itself.
const GET_CHUNK_BYTES: usize = 1 << 20;

/// A thread's batch is given back after a write that made it larger than this.
const KEPT_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static BATCH: RefCell<WriteBatch> = const { RefCell::new(WriteBatch::new()) };
}

/// Properties of the database that INFO shows.
const PROPERTIES: [&str; 15] = [
    "health",
    "estimate-num-keys",
    "latest-sequence-number",
    "cur-size-all-mem-tables",
    "num-immutable-mem-table",
    "total-sst-files-size",
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

/// See the module.
pub struct EngineStore {
    db: Db,
    family: ColumnFamily,
    prefixes: EnginePrefixes,
    write_options: WriteOptions,
    facts: Option<Facts>,
}

/// More `name:value` lines for INFO.
pub type Facts = Box<dyn Fn() -> String + Send + Sync>;

impl std::fmt::Debug for EngineStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineStore").field("db", &self.db).finish_non_exhaustive()
    }
}

impl EngineStore {
    /// The default column family of `db`, whose writes return as `write_options` say.
    #[must_use]
    pub fn new(db: Db, write_options: WriteOptions) -> Self {
        let family = db.default_family().clone();
        let prefixes = EnginePrefixes::new(db.clone());
        Self { db, family, prefixes, write_options, facts: None }
    }

    /// Adds what `facts` tells to the section Archipelago of INFO.
    #[must_use]
    pub fn with_facts(mut self, facts: Facts) -> Self {
        self.facts = Some(facts);
        self
    }

    fn write_with(&self, ops: &[Op<'_>], options: &WriteOptions) -> Result<()> {
        BATCH.with_borrow_mut(|batch| {
            batch.clear();
            let encoded = ops.iter().try_for_each(|op| self.encode(batch, op));
            let written = encoded.and_then(|()| self.db.write(batch, options));
            if batch.byte_len() > KEPT_BYTES_MAX {
                *batch = WriteBatch::new();
            }
            written.map(|_| ())
        })
    }

    /// Encodes `op`. A range without an end is the keys up to the last one there is: the caller
    /// (the server, holding all key locks) lets nobody write behind it meanwhile.
    fn encode(&self, batch: &mut WriteBatch, op: &Op<'_>) -> Result<()> {
        let cf = self.family.id();
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
                let mut iter = self.db.iter(&self.family, &ReadOptions::default().keys_only())?;
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
    /// Calls `visit` at each record of `range`, or from its end with `reverse`, until it breaks.
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
        let mut iter = self.db.iter(&self.family, &options)?;
        if reverse {
            iter.seek_to_last();
        } else {
            iter.seek_to_first();
        }
        while iter.valid() {
            if visit(&iter).is_break() {
                return Ok(());
            }
            if reverse { iter.prev() } else { iter.next() }
        }
        iter.status()
    }
}

/// The smallest key after `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

impl Store for EngineStore {
    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        let entry = self.db.get_entry(&self.family, key, &ReadOptions::default())?;
        Ok(entry.map(|entry| Entry { value: entry.value, expires_at_ms: entry.expires_at_ms }))
    }

    fn head(&self, key: &[u8]) -> Result<Option<Head>> {
        let entry = self.db.get_head(&self.family, key, &ReadOptions::default())?;
        Ok(entry.map(|entry| Head { expires_at_ms: entry.expires_at_ms }))
    }

    fn which_exist(&self, keys: &[&[u8]]) -> Result<Vec<bool>> {
        let options = ReadOptions::default().snapshot(&self.db.snapshot());
        keys.iter().map(|key| self.db.contains(&self.family, key, &options)).collect()
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        self.db.multi_get(&self.family, keys, &ReadOptions::default())
    }

    fn multi_get_each(
        &self,
        keys: &[&[u8]],
        take: &mut dyn FnMut(Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut options = ReadOptions::default();
        if keys.len() > GET_CHUNK_MIN {
            options = options.snapshot(&self.db.snapshot());
        }
        let (mut rest, mut chunk) = (keys, GET_CHUNK_MIN);
        while !rest.is_empty() {
            let (these, others) = rest.split_at(chunk.min(rest.len()));
            let values = self.db.multi_get(&self.family, these, &options)?;
            let bytes: usize = values.iter().flatten().map(|value| value.len()).sum();
            for value in &values {
                if take(value.as_deref()).is_break() {
                    return Ok(());
                }
            }
            // Large values are read one by one, so that few of them are in memory at a time.
            chunk = if bytes > GET_CHUNK_BYTES { 1 } else { (2 * chunk).min(GET_CHUNK_MAX) };
            rest = others;
        }
        Ok(())
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.write_with(ops, &self.write_options)?;
        let removes_all =
            |op: &Op<'_>| matches!(op, Op::DeleteRange { start, end: None } if start.is_empty());
        if ops.iter().any(removes_all) {
            // In a table the range delete gives the space of all others back, without more writes.
            // The keys are gone already, so a flush that fails is no failure of this write.
            if let Err(error) = self.db.start_flush(&self.family) {
                tracing::warn!(%error, "the space of removed keys comes back with the next flush");
            }
        }
        Ok(())
    }

    fn version(&self, key: &[u8]) -> Result<Option<u64>> {
        let entry = self.db.get_head(&self.family, key, &ReadOptions::default())?;
        Ok(entry.map(|entry| entry.seq.0))
    }

    fn write_freeing(&self, ops: &[Op<'_>]) -> Result<()> {
        let options = WriteOptions { space_use: SpaceUse::Frees, ..self.write_options };
        self.write_with(ops, &options)
    }

    fn resume(&self) -> Result<()> {
        self.db.resume()
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
        Some(&self.prefixes)
    }

    fn approximate_count(&self) -> Result<u64> {
        if self.db.raw_bytes(&self.family) > COUNTED_BYTES_MAX {
            return Ok(self.db.estimate_keys(&self.family));
        }
        let options = ReadOptions { fill_cache: false, ..ReadOptions::default().keys_only() };
        let mut iter = self.db.iter(&self.family, &options)?;
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
        Ok(self.db.estimate_keys(&self.family).max(count))
    }

    fn keyspace(&self) -> Result<Keyspace> {
        let keys = self.approximate_count()?;
        let estimate = self.db.estimate_key_counts(&self.family);
        let expiring = estimate.expiring.min(keys);
        Ok(Keyspace { keys, expiring, mean_ttl_ms: estimate.mean_ttl_ms })
    }

    fn expired_keys(&self) -> u64 {
        self.db.statistics().get(Ticker::RecordsExpired)
    }

    fn sync(&self) -> Result<()> {
        self.db.sync()
    }

    fn checkpoint(&self, dir: &Path) -> Result<()> {
        self.db.checkpoint(dir)
    }

    fn info(&self) -> String {
        let mut text = "engine:archipelago\n".to_owned();
        for name in PROPERTIES {
            if let Some(value) = self.db.property(&self.family, &format!("archipelago.{name}")) {
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
        write && (self.db.would_stall(&self.family) || self.db.space_state() != SpaceState::Roomy)
    }
}
