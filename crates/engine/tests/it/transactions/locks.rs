//! Row locks of transactions.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{ErrorKind, Result};
use archipelago_engine::db::{ColumnFamily, Db};
use archipelago_engine::options::WriteOptions;
use archipelago_engine::stats::Ticker;
use archipelago_engine::transaction::{
    Conflict, Isolation, LockMode, Transaction, TransactionOptions,
};

use crate::disk::TestDisk;
use crate::support::{in_threads, open, over, small_db, small_family};

/// Options that lock rows and never wait.
fn impatient(isolation: Isolation) -> TransactionOptions {
    let lock_timeout = Duration::ZERO;
    TransactionOptions { isolation, lock_timeout, ..TransactionOptions::pessimistic() }
}

fn conflict_of<T>(result: Result<T>) -> Option<Conflict> {
    result.err().map(|error| Conflict::of(&error).unwrap())
}

fn lock(transaction: &mut Transaction, cf: &ColumnFamily, key: &[u8]) -> Option<Conflict> {
    conflict_of(transaction.get_for_update(cf, key, LockMode::Exclusive))
}

const TIMEOUT: Option<Conflict> = Some(Conflict::LockTimeout);

#[test]
fn row_stays_locked_until_the_end_of_the_transaction() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    let options = impatient(Isolation::Serializable);
    let mut second = db.transaction_with(options);
    let ends: [fn(Transaction); 3] = [
        |mut first| assert!(first.commit(&WriteOptions::default()).is_ok()),
        |mut first| first.rollback(),
        drop,
    ];
    for end in ends {
        let mut first = db.transaction_with(options);
        assert_eq!(lock(&mut first, cf, b"k"), None);
        first.put(cf, b"w", b"1").unwrap();
        assert_eq!(lock(&mut second, cf, b"k"), TIMEOUT);
        assert_eq!(lock(&mut second, cf, b"w"), TIMEOUT, "a write locks its row");
        assert_eq!(conflict_of(second.delete(cf, b"k")), TIMEOUT);
        assert_eq!(lock(&mut second, cf, b"other"), None);
        end(first);
        assert_eq!(lock(&mut second, cf, b"k"), None);
        second.rollback();
    }
    assert_eq!(db.statistics().get(Ticker::TransactionLockTimeouts), 9);
}

#[test]
fn families_have_rows_of_their_own() {
    let db = open(&TestDisk::new());
    let other = db.create_family("other", small_family()).unwrap();
    let mut first = db.transaction_with(impatient(Isolation::Serializable));
    let mut second = db.transaction_with(impatient(Isolation::Serializable));
    assert_eq!(lock(&mut first, db.default_family(), b"k"), None);
    assert_eq!(lock(&mut second, &other, b"k"), None);
    assert_eq!(lock(&mut first, &other, b"k"), TIMEOUT);
}

#[test]
fn savepoint_gives_back_the_locks_taken_after_it() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    let mut first = db.transaction_with(impatient(Isolation::Snapshot));
    let mut second = db.transaction_with(impatient(Isolation::Snapshot));
    first.put(cf, b"before", b"1").unwrap();
    first.set_savepoint();
    first.put(cf, b"before", b"2").unwrap();
    first.put(cf, b"after", b"1").unwrap();
    first.rollback_to_savepoint().unwrap();
    assert_eq!(lock(&mut second, cf, b"after"), None);
    assert_eq!(lock(&mut second, cf, b"before"), TIMEOUT);
}

#[test]
fn undone_read_gives_back_its_lock_and_its_check() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    let mut first = db.transaction_with(impatient(Isolation::Snapshot));
    let mut second = db.transaction_with(impatient(Isolation::Snapshot));
    assert_eq!(lock(&mut first, cf, b"k"), None);
    assert_eq!(lock(&mut first, cf, b"k"), None);
    first.undo_get_for_update(cf, b"k");
    assert_eq!(lock(&mut second, cf, b"k"), TIMEOUT, "it was read for update twice");
    first.undo_get_for_update(cf, b"k");
    assert_eq!(lock(&mut second, cf, b"k"), None);
    second.put(cf, b"k", b"1").unwrap();
    second.commit(&WriteOptions::default()).unwrap();
    first.put(cf, b"w", b"1").unwrap();
    assert_eq!(lock(&mut first, cf, b"w"), None);
    first.undo_get_for_update(cf, b"w");
    assert_eq!(lock(&mut second, cf, b"w"), TIMEOUT, "the row was written");
    first.commit(&WriteOptions::default()).unwrap();
}

#[test]
fn read_for_update_sees_what_the_holder_before_it_committed() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    let mut first = db.transaction_with(TransactionOptions::pessimistic());
    first.put(cf, b"k", b"1").unwrap();
    let other = db.clone();
    let wait = in_thread(move || {
        let cf = other.default_family();
        let mut second = other.transaction_with(TransactionOptions {
            lock_timeout: Duration::from_secs(600),
            ..TransactionOptions::pessimistic()
        });
        let found = second.get_for_update(cf, b"k", LockMode::Exclusive).unwrap().unwrap();
        assert_eq!(found.value, b"1"[..]);
        second.put(cf, b"k", b"2").unwrap();
        second.commit(&WriteOptions::default()).unwrap();
    });
    first.commit(&WriteOptions::default()).unwrap();
    wait.join().unwrap();
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn plain_write_to_a_locked_row_makes_the_commit_fail() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let db = open(&TestDisk::new());
        let cf = db.default_family();
        for before in [None, Some(b"1")] {
            before.into_iter().for_each(|value| db.put(b"k", value).unwrap());
            let mut transaction = db.transaction_with(impatient(isolation));
            assert_eq!(lock(&mut transaction, cf, b"k"), None);
            db.put(b"k", b"plain").unwrap();
            transaction.put(cf, b"result", b"1").unwrap();
            let committed = transaction.commit(&WriteOptions::default());
            assert_eq!(conflict_of(committed), Some(Conflict::Key));
        }
    }
}

#[test]
fn value_that_vanishes_from_a_locked_row_is_a_conflict() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    db.put(b"k", b"1").unwrap();
    let mut transaction = db.transaction_with(impatient(Isolation::Serializable));
    assert_eq!(lock(&mut transaction, cf, b"k"), None);
    db.delete(b"k").unwrap();
    db.flush(cf).unwrap();
    db.compact_range(cf, &archipelago_engine::key::KeyRange::all()).unwrap();
    assert_eq!(db.latest_seq(cf, b"k").unwrap(), None, "no record is left of it");
    transaction.put(cf, b"result", b"1").unwrap();
    let committed = transaction.commit(&WriteOptions::default());
    assert_eq!(conflict_of(committed), Some(Conflict::Key));
}

#[test]
fn read_for_update_refuses_a_key_changed_after_the_snapshot() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    let mut first = db.transaction_with(impatient(Isolation::Snapshot));
    first.set_snapshot();
    db.put(b"k", b"1").unwrap();
    assert_eq!(lock(&mut first, cf, b"k"), Some(Conflict::Key));
    let mut second = db.transaction_with(impatient(Isolation::Snapshot));
    assert_eq!(lock(&mut second, cf, b"k"), None, "the refused one keeps no lock");
}

#[test]
fn deadlock_is_refused_and_the_others_go_on() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    let patient = TransactionOptions {
        lock_timeout: Duration::from_secs(600),
        ..TransactionOptions::pessimistic()
    };
    let mut first = db.transaction_with(patient);
    first.put(cf, b"a", b"1").unwrap();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let other = db.clone();
    let second = in_thread(move || {
        let cf = other.default_family();
        let mut second = other.transaction_with(patient);
        second.put(cf, b"b", b"2").unwrap();
        ready.send(()).unwrap();
        second.put(cf, b"a", b"2").unwrap_or_else(|error| {
            assert_eq!(Conflict::of(&error), Some(Conflict::Deadlock));
            second.rollback();
        });
        second.commit(&WriteOptions::default()).unwrap();
    });
    is_ready.recv().unwrap();
    // One of the two closes the circle, whichever comes second.
    first.put(cf, b"b", b"1").unwrap_or_else(|error| {
        assert_eq!(Conflict::of(&error), Some(Conflict::Deadlock));
        first.rollback();
    });
    first.commit(&WriteOptions::default()).unwrap();
    second.join().unwrap();
    assert_eq!(db.statistics().get(Ticker::TransactionDeadlocks), 1);
    let winner = db.get(b"a").unwrap().unwrap();
    assert_eq!(db.get(b"b").unwrap().unwrap(), winner);
}

#[test]
fn closed_database_ends_a_wait_for_a_lock() {
    let db = open(&TestDisk::new());
    let cf = db.default_family().clone();
    let mut holder = db.transaction_with(TransactionOptions::pessimistic());
    holder.put(&cf, b"k", b"1").unwrap();
    let other = db.clone();
    let waiter = in_thread(move || {
        let mut transaction = other.transaction_with(TransactionOptions {
            lock_timeout: Duration::from_secs(600),
            ..TransactionOptions::pessimistic()
        });
        let error = transaction.put(&cf, b"k", b"2").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    });
    db.close().unwrap();
    waiter.join().unwrap();
}

#[test]
fn counters_under_row_locks_lose_no_update() {
    let components = in_threads(over(&TestDisk::new(), small_family()));
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let add = |db: &Db| {
        let cf = db.default_family();
        let mut transaction = db.transaction_with(TransactionOptions {
            lock_timeout: Duration::from_secs(600),
            ..TransactionOptions::pessimistic()
        });
        let found = transaction.get_for_update(cf, b"n", LockMode::Exclusive).unwrap();
        let bytes = found.map_or([0; 8], |entry| entry.value.as_ref().try_into().unwrap());
        let next = u64::from_le_bytes(bytes) + 1;
        transaction.put(cf, b"n", &next.to_le_bytes()).unwrap();
        transaction.commit(&WriteOptions::default()).unwrap();
    };
    let threads: Vec<Joiner> = (0..4)
        .map(|_| {
            let db = db.clone();
            in_thread(move || (0..200).for_each(|_| add(&db)))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let count = db.get(b"n").unwrap().unwrap();
    assert_eq!(u64::from_le_bytes(count.as_ref().try_into().unwrap()), 800);
    assert_eq!(db.statistics().get(Ticker::TransactionConflicts), 0, "locked rows do not conflict");
}

fn in_thread(body: impl FnOnce() + Send + 'static) -> Joiner {
    SystemSpawn.spawn("test", Box::new(body)).unwrap()
}

/// Several owners may share a lock, and none may hold it exclusively at the same time.
#[test]
fn shared_locks_exclude_writers_alone() {
    let db = Arc::new(open(&TestDisk::new()));
    let cf = db.default_family();
    let options = impatient(Isolation::Serializable);
    let [mut first, mut second, mut third] = [(); 3].map(|()| db.transaction_with(options));
    for reader in [&mut first, &mut second] {
        assert_eq!(conflict_of(reader.get_for_update(cf, b"k", LockMode::Shared)), None);
    }
    assert_eq!(conflict_of(third.put(cf, b"k", b"1")), TIMEOUT);
    assert_eq!(conflict_of(first.put(cf, b"k", b"1")), TIMEOUT);
    second.rollback();
    assert_eq!(conflict_of(first.put(cf, b"k", b"1")), None);
}
