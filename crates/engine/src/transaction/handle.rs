//! [`Transaction`]: what a user reads, writes, locks and commits with.
//!
//! The first read takes the snapshot, or [`Transaction::set_snapshot`] does. A read looks at the
//! own writes first and at the snapshot for the rest. A read for update with row locks looks at the
//! newest state instead, if the transaction has no snapshot yet. From then on only a plain write
//! can change the row, and the commit notices that.
//!
//! Invariants: see the module of transactions. Thread-safety: one thread at a time.
//! Failure: a call that fails changes nothing, except that it keeps the row locks that it was
//! granted.
//! Cost: see the module of transactions.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::budget::{Charge, MemoryClass};
use archipelago_base::{Error, ErrorKind, Result, SeqNo};
use parking_lot::Mutex;

use super::iterator::{PassedKeys, TransactionIter};
use super::key_watch::KeyWatch;
use super::{Isolation, Locking, TransactionOptions, validation};
use crate::concurrency::footprint::{Footprint, KeyRead};
use crate::concurrency::row_locks::{OwnerId, Patience, RowKey};
use crate::concurrency::{Conflict, LockMode};
use crate::db::background::leave_log;
use crate::db::{
    ColumnFamily, Db, ReadOptions, Since, ValueEntry, bounds_of, check_bounds, check_merge,
    newest_record, scan, write,
};
use crate::indexed_batch::{IndexedBatch, OwnBase};
use crate::key::{KeyRange, Kind, check_limits};
use crate::options::WriteOptions;
use crate::pinned::PinnedSlice;
use crate::stats::Ticker;
use crate::wal::{BatchMark, WriteBatch};

/// Step in bytes in which a transaction charges its memory to the byte budget. Less is not charged.
const CHARGE_STEP_BYTES: u64 = 64 << 10;
/// Buffers larger than this are given back at the end of a transaction.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// Memory of a row lock, without the key.
const LOCK_BYTES: u64 = 128;
/// Memory of a record in a batch, without key and value.
const OP_BYTES: u64 = 16;

/// A row lock of this transaction.
struct HeldLock {
    mode: LockMode,
    /// Position of the lock among all locks that the transaction has ever taken.
    serial: u64,
    /// Calls of `get_for_update` that were not taken back.
    reads: u32,
}

/// The state to which a rollback to a savepoint returns.
struct Savepoint {
    writes: BatchMark,
    /// Locks with this serial or a larger one were taken after the savepoint.
    next_serial: u64,
}

/// Reads and writes that are committed together or not at all; made by [`Db::transaction`].
///
/// A transaction that is dropped is rolled back. After a commit or a rollback it is empty and can
/// be used again.
pub struct Transaction {
    db: Db,
    options: TransactionOptions,
    writes: IndexedBatch,
    /// Holds the snapshot, once there is one.
    read_options: ReadOptions,
    footprint: Footprint,
    /// Notes of the keys that iterators have passed.
    passed: Vec<Arc<Mutex<PassedKeys>>>,
    owner: Option<OwnerId>,
    locks: BTreeMap<Arc<RowKey>, HeldLock>,
    lock_bytes: u64,
    next_serial: u64,
    savepoints: Vec<Savepoint>,
    charge: Option<Charge>,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("options", &self.options)
            .field("writes", &self.writes.batch().len())
            .field("locks", &self.locks.len())
            .finish_non_exhaustive()
    }
}

impl Db {
    /// A serialisable, optimistic transaction.
    ///
    /// ```
    /// # use archipelago_engine::{db::Db, options::{DbOptions, WriteOptions}};
    /// # let dir = tempfile::tempdir()?;
    /// # let db = Db::open(dir.path(), DbOptions::default())?;
    /// let accounts = db.default_family();
    /// db.put(b"ann", b"100")?;
    /// let mut transaction = db.transaction();
    /// let balance = transaction.get(accounts, b"ann")?.expect("ann has an account");
    /// transaction.put(accounts, b"bob", &balance)?;
    /// transaction.delete(accounts, b"ann")?;
    /// assert_eq!(transaction.get(accounts, b"ann")?, None, "it sees its own writes");
    /// assert!(db.get(b"ann")?.is_some(), "others do not");
    /// transaction.commit(&WriteOptions::synced())?;
    /// assert_eq!(db.get(b"ann")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn transaction(&self) -> Transaction {
        self.transaction_with(TransactionOptions::default())
    }

    /// A transaction with the given settings.
    ///
    /// ```
    /// # use archipelago_engine::{db::Db, options::{DbOptions, WriteOptions}};
    /// # use archipelago_engine::transaction::{LockMode, TransactionOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let db = Db::open(dir.path(), DbOptions::default())?;
    /// let cf = db.default_family();
    /// let mut transaction = db.transaction_with(TransactionOptions::pessimistic());
    /// // Other transactions that lock this row wait until the commit.
    /// let count = transaction.get_for_update(cf, b"count", LockMode::Exclusive)?;
    /// let next = count.map_or(1, |entry| entry.value[0] + 1);
    /// transaction.put(cf, b"count", &[next])?;
    /// transaction.commit(&WriteOptions::default())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn transaction_with(&self, options: TransactionOptions) -> Transaction {
        Transaction {
            db: self.clone(),
            options,
            writes: IndexedBatch::default(),
            read_options: ReadOptions::default(),
            footprint: Footprint::default(),
            passed: Vec::new(),
            owner: None,
            locks: BTreeMap::new(),
            lock_bytes: 0,
            next_serial: 0,
            savepoints: Vec::new(),
            charge: None,
        }
    }
}

/// Reads of the transaction.
impl Transaction {
    /// Takes the snapshot of the transaction now, if it has none. The first read does so as well.
    pub fn set_snapshot(&mut self) {
        if self.read_options.snapshot.is_none() {
            self.read_options.snapshot = Some(self.db.snapshot());
        }
    }

    /// The value of `key` as the transaction sees it: its own writes, above its snapshot.
    ///
    /// Errors: those of [`Db::get`]; `InvalidArgument` if the transaction is larger than its
    /// `bytes_max`.
    pub fn get(&mut self, cf: &ColumnFamily, key: &[u8]) -> Result<Option<PinnedSlice>> {
        Ok(self.get_entry(cf, key)?.map(|entry| entry.value))
    }

    /// [`Transaction::get`] with the expiry. The sequence number of a value that an own write has
    /// set or changed is [`SeqNo::MAX`].
    pub fn get_entry(&mut self, cf: &ColumnFamily, key: &[u8]) -> Result<Option<ValueEntry>> {
        self.db.check_family(cf)?;
        self.set_snapshot();
        let is_checked = self.options.isolation == Isolation::Serializable;
        self.read(cf, key, is_checked)
    }

    /// [`Transaction::get_entry`] of a key that the transaction means to write. At any isolation,
    /// the commit fails if another write has changed the key since.
    ///
    /// With [`Locking::Pessimistic`] the call locks the row. It waits for other transactions that
    /// have locked the row in a mode that excludes `mode`. It then reads the newest value, if the
    /// transaction has no snapshot yet. A plain write takes no lock: it does not wait, and makes
    /// the commit fail.
    ///
    /// Errors: those of [`Transaction::get`]. `Busy` with a [`Conflict`]: `Deadlock` or
    /// `LockTimeout` if the lock was not granted; `Key` if the key has changed since the snapshot.
    pub fn get_for_update(
        &mut self,
        cf: &ColumnFamily,
        key: &[u8],
        mode: LockMode,
    ) -> Result<Option<ValueEntry>> {
        self.db.check_family(cf)?;
        if self.options.locking == Locking::Optimistic {
            self.set_snapshot();
            return self.read(cf, key, true);
        }
        let row_key = row_key_of(cf, key);
        let was_held = self.locks.contains_key(&row_key);
        self.lock(&row_key, mode)?;
        let found = self.check_unchanged(cf, key).and_then(|()| self.read(cf, key, true));
        match &found {
            Ok(_) => self.locks.get_mut(&row_key).expect("it was locked").reads += 1,
            Err(_) if !was_held => self.unlock(&row_key),
            Err(_) => {}
        }
        found
    }

    /// Takes back one [`Transaction::get_for_update`] of `key`. The last call releases the row
    /// lock, unless the transaction has written the key. With [`Isolation::Snapshot`] the commit
    /// does not check the key any more; with [`Isolation::Serializable`] it still does.
    pub fn undo_get_for_update(&mut self, cf: &ColumnFamily, key: &[u8]) {
        let row_key = row_key_of(cf, key);
        if let Some(lock) = self.locks.get_mut(&row_key) {
            lock.reads = lock.reads.saturating_sub(1);
            if lock.reads > 0 || self.writes.writes_key(cf.id(), key) {
                return;
            }
            self.unlock(&row_key);
        }
        if self.options.isolation == Isolation::Snapshot {
            self.footprint.forget_key(cf.id(), key);
        }
    }

    /// An iterator over what the transaction sees now. It does not see what the transaction writes
    /// later. With [`Isolation::Serializable`] the commit checks the ranges that it has passed.
    ///
    /// Errors: `InvalidArgument` if `options` have a snapshot, or bounds in the wrong order.
    pub fn iter(&mut self, cf: &ColumnFamily, options: &ReadOptions) -> Result<TransactionIter> {
        self.db.check_family(cf)?;
        self.db.inner.context.check_open()?;
        check_bounds(options)?;
        if options.snapshot.is_some() {
            return Err(Error::invalid(
                "an iterator of a transaction reads at the transaction's snapshot: leave \
                 ReadOptions::snapshot empty",
            ));
        }
        self.note_ended_iterators();
        self.check_room(0)?;
        self.set_snapshot();
        let options =
            ReadOptions { snapshot: self.read_options.snapshot.clone(), ..options.clone() };
        let bounds = bounds_of(&options);
        let own = self.writes.records(cf.id(), &bounds);
        let iter = scan(self.db.inner.reader(), &cf.family, &options, own);
        // A dropped family reads as empty, so the iterator refuses it.
        cf.family.check_alive()?;
        let passed = (self.options.isolation == Isolation::Serializable).then(|| {
            let passed = PassedKeys::new(cf.id(), self.as_of());
            Arc::new(Mutex::new(passed))
        });
        self.passed.extend(passed.clone());
        Ok(TransactionIter::new(iter, bounds, passed))
    }

    /// Makes the commit fail, with [`Conflict::Key`] or [`Conflict::Expired`], if the watched key
    /// has changed since the watch was made.
    pub fn expect_unchanged(&mut self, watch: &KeyWatch) -> Result<()> {
        self.db.check_family(watch.family())?;
        self.check_room(0)?;
        self.footprint.note_key(watch.family().id(), watch.key(), watch.read());
        self.footprint.note_expiry(watch.expires_at_ms());
        Ok(())
    }

    /// Moves the notes of dropped iterators into the footprint.
    fn note_ended_iterators(&mut self) {
        let footprint = &mut self.footprint;
        self.passed.retain(|passed| {
            let is_in_use = Arc::strong_count(passed) > 1;
            if !is_in_use {
                passed.lock().add_to(footprint);
            }
            is_in_use
        });
    }

    /// Sequence number of the snapshot, which the transaction must have.
    fn as_of(&self) -> SeqNo {
        self.read_options.snapshot.as_ref().expect("a read has taken it").seq()
    }

    /// Refuses a key that has changed since the snapshot; accepts every key without a snapshot.
    fn check_unchanged(&self, cf: &ColumnFamily, key: &[u8]) -> Result<()> {
        let Some(snapshot) = &self.read_options.snapshot else { return Ok(()) };
        let since = Since::After(snapshot.seq());
        if newest_record(self.db.inner.reader(), &cf.family, key, since)?.is_none() {
            return Ok(());
        }
        Err(Conflict::Key.error(format!(
            "key \"{}\" of column family \"{}\" was changed after the snapshot of the transaction: \
             roll back and run the transaction again",
            key.escape_ascii(),
            cf.name()
        )))
    }

    /// Reads own writes on top of the snapshot, or on top of the newest state if there is none.
    fn read(
        &mut self,
        cf: &ColumnFamily,
        key: &[u8],
        is_checked: bool,
    ) -> Result<Option<ValueEntry>> {
        let inner = &self.db.inner;
        let own = self.writes.view(cf.id(), key, || inner.context.clock().unix_ms());
        let (base, operands) = match own.base {
            OwnBase::Value { value, expires_at_ms } => {
                let value = PinnedSlice::owned(value.to_vec());
                (Some(ValueEntry { value, expires_at_ms, seq: SeqNo::MAX }), own.operands)
            }
            OwnBase::Nothing => (None, own.operands),
            OwnBase::Committed => {
                let as_of = self.read_options.snapshot.as_ref().map(|snapshot| snapshot.seq());
                let as_of = as_of.unwrap_or_else(|| self.db.latest_seq_of_all());
                let found = self.db.get_entry(cf, key, &self.read_options)?;
                if is_checked {
                    let exactly = match self.read_options.snapshot {
                        Some(_) => None,
                        None => found.as_ref().map(|entry| entry.seq),
                    };
                    self.footprint.note_key(cf.id(), key, KeyRead { as_of, exactly });
                    self.footprint.note_expiry(found.as_ref().and_then(|of| of.expires_at_ms));
                }
                (found, own.operands)
            }
        };
        if operands.is_empty() {
            self.check_room(0)?;
            return Ok(base);
        }
        let operator = cf.family.merge.as_ref().expect("checked when the operand was written");
        let value = base.as_ref().map(|entry| &*entry.value);
        let value = PinnedSlice::owned(operator.full_merge(key, value, &operands)??);
        let expires_at_ms = base.and_then(|entry| entry.expires_at_ms);
        Ok(Some(ValueEntry { value, expires_at_ms, seq: SeqNo::MAX }))
    }
}

/// Writes. None of them is visible to others before the commit.
impl Transaction {
    /// Sets `key` to `value`.
    ///
    /// Errors, of all writes: `InvalidArgument` if key or value is too long, or the transaction
    /// larger than its `bytes_max`. With [`Locking::Pessimistic`], `Busy` with a [`Conflict`] if
    /// the row lock was not granted.
    pub fn put(&mut self, cf: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        self.prepare(cf, Kind::Put, key, value)?;
        self.writes.batch_mut().put_cf(cf.id(), key, value);
        Ok(())
    }

    /// Sets `key` to `value` until `expires_at_ms` (Unix milliseconds).
    pub fn put_expiring(
        &mut self,
        cf: &ColumnFamily,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<()> {
        self.prepare(cf, Kind::PutExpiring, key, value)?;
        self.writes.batch_mut().put_expiring_cf(cf.id(), key, value, expires_at_ms);
        Ok(())
    }

    /// Deletes `key` when the transaction commits.
    pub fn delete(&mut self, cf: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.prepare(cf, Kind::Delete, key, &[])?;
        self.writes.batch_mut().delete_cf(cf.id(), key);
        Ok(())
    }

    /// Adds an operand for the family's merge operator. `InvalidArgument` if it has none.
    pub fn merge(&mut self, cf: &ColumnFamily, key: &[u8], operand: &[u8]) -> Result<()> {
        check_merge(&cf.family)?;
        self.prepare(cf, Kind::Merge, key, operand)?;
        self.writes.batch_mut().merge_cf(cf.id(), key, operand);
        Ok(())
    }

    /// Deletes every key from `start` (inclusive) to `end` (exclusive). It locks no rows.
    pub fn delete_range(&mut self, cf: &ColumnFamily, start: &[u8], end: &[u8]) -> Result<()> {
        self.db.check_family(cf)?;
        check_limits(Kind::RangeDelete, start, end)?;
        self.check_room(op_bytes(start, end))?;
        self.writes.batch_mut().delete_range_cf(cf.id(), start, end);
        Ok(())
    }

    /// Number of writes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.batch().len()
    }

    /// Whether the transaction has written nothing so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of the transaction in bytes, which [`TransactionOptions::bytes_max`] limits.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let passed: u64 = self.passed.iter().map(|passed| passed.lock().bytes()).sum();
        self.writes.bytes() + self.footprint.bytes() + self.lock_bytes + passed
    }

    /// Checks a write of one key, and locks its row if the transaction locks rows.
    fn prepare(&mut self, cf: &ColumnFamily, kind: Kind, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.check_family(cf)?;
        check_limits(kind, key, value)?;
        self.check_room(op_bytes(key, value))?;
        if self.options.locking == Locking::Pessimistic {
            self.lock(&row_key_of(cf, key), LockMode::Exclusive)?;
        }
        Ok(())
    }

    /// Refuses to grow by `more` bytes beyond the limit, and charges the memory to the byte budget.
    fn check_room(&mut self, more: u64) -> Result<()> {
        let bytes = self.memory_bytes() + more;
        if bytes > self.options.bytes_max {
            return Err(Error::invalid(format!(
                "the transaction needs {bytes} bytes of memory, and its bytes_max is {}: use \
                 smaller transactions, or a larger bytes_max",
                self.options.bytes_max
            )));
        }
        let charged = self.charge.as_ref().map_or(0, Charge::bytes);
        if bytes.abs_diff(charged) >= CHARGE_STEP_BYTES {
            match &mut self.charge {
                Some(charge) => charge.resize(bytes),
                None => {
                    let budget = self.db.inner.context.budget();
                    self.charge = Some(budget.hold(MemoryClass::Transaction, bytes));
                }
            }
        }
        Ok(())
    }
}

/// Row locks of the transaction.
impl Transaction {
    /// Locks a row in `mode`, unless the transaction has locked it in that mode or a stronger one.
    fn lock(&mut self, row_key: &Arc<RowKey>, mode: LockMode) -> Result<()> {
        if self.locks.get(row_key).is_some_and(|held| held.mode >= mode) {
            return Ok(());
        }
        let inner = &self.db.inner;
        let owner = *self.owner.get_or_insert_with(|| inner.writes.row_locks().new_owner());
        let patience = Patience {
            timeout: self.options.lock_timeout,
            clock: &**inner.context.clock(),
            check: &|| inner.context.check_open(),
        };
        let locked = inner.writes.row_locks().acquire(owner, row_key, mode, &patience);
        if let Err(error) = locked {
            match Conflict::of(&error) {
                Some(Conflict::Deadlock) => {
                    inner.observers.stats().add(Ticker::TransactionDeadlocks, 1);
                }
                Some(_) => inner.observers.stats().add(Ticker::TransactionLockTimeouts, 1),
                None => {}
            }
            return Err(error);
        }
        match self.locks.get_mut(row_key) {
            Some(held) => held.mode = mode,
            None => {
                let held = HeldLock { mode, serial: self.next_serial, reads: 0 };
                self.next_serial += 1;
                self.lock_bytes += row_key.key.len() as u64 + LOCK_BYTES;
                self.locks.insert(Arc::clone(row_key), held);
            }
        }
        Ok(())
    }

    fn unlock(&mut self, row_key: &Arc<RowKey>) {
        let owner = self.owner.expect("a transaction with locks is an owner");
        self.locks.remove(row_key).expect("the row is locked");
        self.lock_bytes -= row_key.key.len() as u64 + LOCK_BYTES;
        self.db.inner.writes.row_locks().release(owner, [row_key]);
    }

    /// Releases all row locks of the transaction.
    fn unlock_all(&mut self) {
        let Some(owner) = self.owner.filter(|_| !self.locks.is_empty()) else { return };
        let locks = std::mem::take(&mut self.locks);
        self.lock_bytes = 0;
        self.db.inner.writes.row_locks().release(owner, locks.keys());
    }

    /// Releases the locks whose serial is `serial` or larger.
    fn unlock_from(&mut self, serial: u64) {
        let later = self.locks.iter().filter(|(_, held)| held.serial >= serial);
        let later: Vec<_> = later.map(|(row_key, _)| Arc::clone(row_key)).collect();
        later.iter().for_each(|row_key| self.unlock(row_key));
    }
}

/// Savepoints, commit and rollback.
impl Transaction {
    /// Sets a savepoint. Savepoints are a stack.
    pub fn set_savepoint(&mut self) {
        let (writes, next_serial) = (self.writes.mark(), self.next_serial);
        self.savepoints.push(Savepoint { writes, next_serial });
    }

    /// Removes the newest savepoint and the writes since, and releases the row locks taken since.
    /// The commit still checks the keys and ranges that the transaction has read since, because the
    /// caller has seen them. A lock that was made exclusive since stays exclusive. `NotFound` if
    /// there is no savepoint.
    pub fn rollback_to_savepoint(&mut self) -> Result<()> {
        let savepoint = self.savepoints.pop().ok_or_else(no_savepoint)?;
        self.writes.truncate(savepoint.writes);
        self.unlock_from(savepoint.next_serial);
        self.check_room(0)
    }

    /// Removes the newest savepoint and keeps what was done since. `NotFound` if there is none.
    pub fn pop_savepoint(&mut self) -> Result<()> {
        self.savepoints.pop().map(drop).ok_or_else(no_savepoint)
    }

    /// Makes the writes visible to others, all of them at one place of the order of writes, with
    /// the durability of a write with these options. Returns the sequence number of the last write.
    /// The transaction is empty afterwards and has no locks.
    ///
    /// Errors: `Busy` with a [`Conflict`] if anything that the transaction depends on has changed.
    /// `Closed` if a column family of it was dropped or the database was closed. Else those of
    /// [`Db::write`].
    ///
    /// After an error nothing was written, and the transaction is as it was. It can be rolled back,
    /// or committed again if the error is no conflict. An error of the log's sync is the exception:
    /// the transaction is empty, because its writes are visible. Whether they survive power loss is
    /// not known then.
    pub fn commit(&mut self, options: &WriteOptions) -> Result<SeqNo> {
        let committed = self.commit_writes(options);
        let stats = self.db.inner.observers.stats();
        let last_seq = match committed {
            Ok(last_seq) => last_seq,
            Err(error) => {
                if Conflict::of(&error).is_some() {
                    stats.add(Ticker::TransactionConflicts, 1);
                }
                return Err(error);
            }
        };
        stats.add(Ticker::TransactionsCommitted, 1);
        let is_hardened = !self.is_empty();
        self.rollback();
        if is_hardened {
            leave_log::harden_log(&self.db.inner, last_seq, options)?;
        }
        Ok(last_seq)
    }

    /// Forgets the writes, the reads, the snapshot and the savepoints, and gives back all locks.
    pub fn rollback(&mut self) {
        self.unlock_all();
        self.writes.clear(KEPT_BYTES_MAX);
        self.read_options.snapshot = None;
        if !self.footprint.is_empty() {
            self.footprint = Footprint::default();
        }
        self.passed.clear();
        self.savepoints.clear();
        self.charge = None;
    }

    fn commit_writes(&self, options: &WriteOptions) -> Result<SeqNo> {
        let inner = &self.db.inner;
        let footprint = self.checked_footprint()?;
        if footprint.is_empty() {
            return write::commit_batch(inner, self.writes.batch(), options, |write| {
                let committed = inner.writes.committer().commit(inner, write);
                committed.map_err(|error| {
                    write::note_append_error(&inner.storage, &inner.observers, &error)
                })
            });
        }
        if self.is_empty() && self.reads_one_moment(&footprint) {
            // All reads hold at the snapshot, which is the transaction's place in the order of
            // writes.
            inner.context.check_open()?;
            return Ok(footprint.oldest());
        }
        validation::commit(inner, &footprint, self.writes.batch(), options)
    }

    /// The footprint that the commit checks, with the notes of iterators that still exist.
    fn checked_footprint(&self) -> Result<Cow<'_, Footprint>> {
        let mut footprint = Cow::Borrowed(&self.footprint);
        if !self.passed.is_empty() {
            let all = footprint.to_mut();
            self.passed.iter().for_each(|passed| passed.lock().add_to(all));
        }
        if let (Isolation::Snapshot, Some(snapshot)) =
            (self.options.isolation, &self.read_options.snapshot)
            && !self.is_empty()
        {
            note_writes(footprint.to_mut(), self.writes.batch(), snapshot.seq())?;
        }
        Ok(footprint)
    }

    /// Whether everything in `footprint` was read at the snapshot.
    fn reads_one_moment(&self, footprint: &Footprint) -> bool {
        let Some(snapshot) = &self.read_options.snapshot else { return false };
        footprint.families().all(|(_, notes)| {
            let at_snapshot =
                |read: &KeyRead| read.as_of == snapshot.seq() && read.exactly.is_none();
            notes.keys.values().all(at_snapshot)
        })
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.unlock_all();
    }
}

/// Notes the keys and ranges that a batch writes, as if the transaction had read them at `as_of`.
fn note_writes(footprint: &mut Footprint, batch: &WriteBatch, as_of: SeqNo) -> Result<()> {
    for op in batch.iter() {
        let op = op?;
        if op.kind == Kind::RangeDelete {
            let range = KeyRange { start: op.key.to_vec(), end: Some(op.value.to_vec()) };
            footprint.note_range(op.cf, range, as_of);
        } else {
            footprint.note_key(op.cf, op.key, KeyRead { as_of, exactly: None });
        }
    }
    Ok(())
}

fn row_key_of(cf: &ColumnFamily, key: &[u8]) -> Arc<RowKey> {
    Arc::new(RowKey { cf: cf.id(), key: key.into() })
}

/// Memory of a write in the batch.
fn op_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + OP_BYTES
}

fn no_savepoint() -> Error {
    Error::new(ErrorKind::NotFound, "the transaction has no savepoint: set one first")
}
