//! Histories of concurrent transactions, judged by [`super::judge`].
//!
//! One thread interleaves the calls of several clients in an order that a seed decides. The
//! database is small, and its memtables get full, are flushed and compacted meanwhile. Other tests
//! run the clients on parallel threads. Sabotaged runs leave out parts of the isolation, which the
//! judge must notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::ErrorKind;
use archipelago_base::random::Rng;
use archipelago_base::spawn::{Spawn, SystemSpawn};
use archipelago_engine::db::{ColumnFamily, Components, Db, FaultPoint, Iter, ReadOptions};
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::transaction::{
    Conflict, Isolation, LockMode, Locking, Transaction, TransactionIter, TransactionOptions,
};

use super::judge::{Call, Committed, History, Key, Value, is_serializable};
use crate::disk::TestDisk;
use crate::support::{in_threads, over, small_db, small_family};

const KEYS: Key = 8;

/// The part of the isolation that a run leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    Nothing,
    /// Point reads go to the database instead of the transaction.
    UncheckedGets,
    /// Scans go to the database instead of the transaction.
    UncheckedScans,
    /// Snapshot isolation instead of serialisable.
    SnapshotIsolation,
}

/// Values are padded, so that memtables fill.
fn stored(value: Value) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(200, 7);
    bytes
}

fn value_of(bytes: &[u8]) -> Value {
    Value::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// The clock of a history, and the source of its values.
#[derive(Default)]
struct Moments(AtomicU64);

impl Moments {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// A client: its current transaction, and its committed ones.
struct Client {
    rng: Rng,
    sabotage: Sabotage,
    transaction: Transaction,
    isolation_began: u64,
    calls: Vec<Call>,
    left: usize,
    committed: Vec<Committed>,
    conflicts: usize,
}

impl Client {
    fn new(db: &Db, seed: u64, sabotage: Sabotage, locking: Locking) -> Self {
        let mut rng = Rng::with_seed(seed);
        let isolation = match sabotage {
            Sabotage::SnapshotIsolation => Isolation::Snapshot,
            _ => Isolation::Serializable,
        };
        let lock_timeout = std::time::Duration::ZERO;
        let options = TransactionOptions { isolation, locking, lock_timeout, ..Default::default() };
        Self {
            sabotage,
            transaction: db.transaction_with(options),
            isolation_began: 0,
            calls: Vec::new(),
            left: rng.usize(1..6),
            rng,
            committed: Vec::new(),
            conflicts: 0,
        }
    }

    /// Makes one call; commits after the last one of a transaction.
    fn step(&mut self, db: &Db, moments: &Moments) {
        if self.calls.is_empty() {
            self.isolation_began = moments.next();
        }
        let done = match self.left {
            0 => self.commit(db, moments),
            _ => self.call(db, moments),
        };
        match done {
            Ok(()) if self.left > 0 => self.left -= 1,
            Ok(()) => self.begin_anew(),
            Err(error) => {
                assert!(Conflict::of(&error).is_some(), "{error}");
                assert_eq!(error.kind(), ErrorKind::Busy);
                self.transaction.rollback();
                self.conflicts += 1;
                self.begin_anew();
            }
        }
    }

    fn begin_anew(&mut self) {
        self.calls.clear();
        self.left = self.rng.usize(1..6);
    }

    fn call(&mut self, db: &Db, moments: &Moments) -> archipelago_base::Result<()> {
        let cf = db.default_family();
        let key = self.rng.u8(..KEYS);
        let call = match self.rng.u32(0..12) {
            0..=3 => Call::Get(key, self.get(db, cf, key)?),
            4..=5 => {
                let (from, to) = (key, key + self.rng.u8(1..4));
                Call::Scan(from, to, self.scan(db, cf, from, to)?)
            }
            6 => {
                let found = self.transaction.get_for_update(cf, &[key], LockMode::Exclusive)?;
                Call::Get(key, found.map(|entry| value_of(&entry.value)))
            }
            7..=9 => {
                let value = moments.next();
                self.transaction.put(cf, &[key], &stored(value))?;
                Call::Put(key, value)
            }
            10 => {
                self.transaction.delete(cf, &[key])?;
                Call::Delete(key)
            }
            _ => {
                let to = key + self.rng.u8(0..3);
                self.transaction.delete_range(cf, &[key], &[to])?;
                Call::DeleteRange(key, to)
            }
        };
        self.calls.push(call);
        Ok(())
    }

    fn get(
        &mut self,
        db: &Db,
        cf: &ColumnFamily,
        key: Key,
    ) -> archipelago_base::Result<Option<Value>> {
        let is_own = self
            .calls
            .iter()
            .any(|call| matches!(call, Call::Put(..) | Call::Delete(..) | Call::DeleteRange(..)));
        let found = match self.sabotage {
            Sabotage::UncheckedGets if !is_own => {
                db.get_with(cf, &[key], &ReadOptions::default())?
            }
            _ => self.transaction.get(cf, &[key])?,
        };
        Ok(found.map(|value| value_of(&value)))
    }

    fn scan(
        &mut self,
        db: &Db,
        cf: &ColumnFamily,
        from: Key,
        to: Key,
    ) -> archipelago_base::Result<Vec<(Key, Value)>> {
        let is_bounded = self.rng.bool();
        let options = match is_bounded {
            true => ReadOptions::new().range([from], [to]),
            false => ReadOptions::new(),
        };
        let is_own = self
            .calls
            .iter()
            .any(|call| matches!(call, Call::Put(..) | Call::Delete(..) | Call::DeleteRange(..)));
        if self.sabotage == Sabotage::UncheckedScans && !is_own {
            return collect(Cursor::Plain(db.iter(cf, &options)?), from, to, false);
        }
        let iter = self.transaction.iter(cf, &options)?;
        let mut pairs = collect(Cursor::Own(iter), from, to, self.rng.bool())?;
        pairs.sort_unstable();
        Ok(pairs)
    }

    fn commit(&mut self, db: &Db, moments: &Moments) -> archipelago_base::Result<()> {
        // Some writes are plain ones, outside the transactions.
        if let [Call::Put(key, value)] = self.calls.as_slice()
            && self.rng.bool()
        {
            self.transaction.rollback();
            db.put(&[*key], &stored(*value))?;
        } else {
            self.transaction.commit(&WriteOptions::default())?;
        }
        let calls = std::mem::take(&mut self.calls);
        let (began, ended) = (self.isolation_began, moments.next());
        self.committed.push(Committed { began, ended, calls });
        Ok(())
    }
}

enum Cursor {
    Plain(Iter),
    Own(TransactionIter),
}

/// The pairs from a key to another, forwards or backwards.
fn collect(
    cursor: Cursor,
    from: Key,
    to: Key,
    backward: bool,
) -> archipelago_base::Result<Vec<(Key, Value)>> {
    let mut pairs = Vec::new();
    match cursor {
        Cursor::Plain(mut iter) => {
            iter.seek(&[from]);
            while iter.valid() && iter.key()[0] < to {
                pairs.push((iter.key()[0], value_of(iter.value())));
                iter.next();
            }
            iter.status()?;
        }
        Cursor::Own(mut iter) if backward => {
            // The key before `to`: keys are single bytes.
            iter.seek_for_prev(&[to - 1]);
            while iter.valid() && iter.key()[0] >= from {
                pairs.push((iter.key()[0], value_of(iter.value())));
                iter.prev();
            }
            iter.status()?;
        }
        Cursor::Own(mut iter) => {
            iter.seek(&[from]);
            while iter.valid() && iter.key()[0] < to {
                pairs.push((iter.key()[0], value_of(iter.value())));
                iter.next();
            }
            iter.status()?;
        }
    }
    Ok(pairs)
}

fn tiny_family() -> CfOptions {
    CfOptions { write_buffer_bytes: 4 << 10, ..small_family() }
}

/// Four clients in one thread, interleaved as the seed says; the history and the conflicts.
fn interleaved(seed: u64, sabotage: Sabotage, locking: Locking) -> (History, usize) {
    let db = Db::open_with("/db", small_db(), over(&TestDisk::new(), tiny_family())).unwrap();
    let moments = Moments::default();
    let mut rng = Rng::with_seed(seed);
    let mut clients: Vec<Client> =
        (0..4).map(|_| Client::new(&db, rng.u64(..), sabotage, locking)).collect();
    for _ in 0..600 {
        clients[rng.usize(0..4)].step(&db, &moments);
        match rng.u32(0..60) {
            0 => db.flush(db.default_family()).unwrap(),
            1..=20 => while db.step_background().unwrap() {},
            _ => {}
        }
    }
    let conflicts = clients.iter().map(|client| client.conflicts).sum();
    (clients.into_iter().map(|client| client.committed).collect(), conflicts)
}

#[test]
fn interleaved_transactions_are_serializable() {
    for locking in [Locking::Optimistic, Locking::Pessimistic] {
        let (mut committed, mut conflicts) = (0, 0);
        for seed in 0..40 {
            let (history, refused) = interleaved(seed, Sabotage::Nothing, locking);
            committed += history.iter().map(Vec::len).sum::<usize>();
            conflicts += refused;
            assert!(is_serializable(&history), "seed {seed}, {locking:?}: {history:#?}");
        }
        assert!(committed > 2000 && conflicts > 500, "{committed} committed, {conflicts} not");
    }
}

#[test]
fn judge_notices_each_kind_of_sabotage() {
    let kinds = [Sabotage::UncheckedGets, Sabotage::UncheckedScans, Sabotage::SnapshotIsolation];
    for sabotage in kinds {
        let is_noticed =
            |seed| !is_serializable(&interleaved(seed, sabotage, Locking::Optimistic).0);
        assert!((0..40).any(is_noticed), "{sabotage:?}");
    }
}

#[test]
fn parallel_transactions_are_serializable() {
    for (round, locking) in
        (0..10).flat_map(|round| [Locking::Optimistic, Locking::Pessimistic].map(|l| (round, l)))
    {
        // Other threads run between the two steps of a check, even with few processors.
        let step_aside: FaultPoint = Arc::new(|point| {
            let is_check = point == "transaction.checked";
            (0..if is_check { 3 } else { 0 }).for_each(|_| std::thread::yield_now());
            Ok(())
        });
        let components =
            Components { fault_point: Some(step_aside), ..over(&TestDisk::new(), tiny_family()) };
        let db = Db::open_with("/db", small_db(), in_threads(components)).unwrap();
        let moments = Arc::new(Moments::default());
        let (tell, told) = std::sync::mpsc::channel();
        for thread in 0..4 {
            let (db, moments, tell) = (db.clone(), Arc::clone(&moments), tell.clone());
            let run = move || {
                let seed = round * 4 + thread;
                let mut client = Client::new(&db, seed, Sabotage::Nothing, locking);
                while client.committed.len() < 50 {
                    client.step(&db, &moments);
                    if client.rng.u32(0..3) == 0 {
                        std::thread::yield_now();
                    }
                }
                tell.send(client.committed).unwrap();
            };
            drop(SystemSpawn.spawn("client", Box::new(run)).unwrap());
        }
        drop(tell);
        let history: History = told.iter().collect();
        assert_eq!(history.len(), 4);
        assert!(is_serializable(&history), "round {round}, {locking:?}: {history:#?}");
        db.close().unwrap();
    }
}
