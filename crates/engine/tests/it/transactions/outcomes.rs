//! Effects of a commit, and the state after a failed one.

use std::sync::Arc;

use archipelago_base::ErrorKind;
use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::extension::AppendMerge;
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_engine::transaction::{Conflict, LockMode, TransactionOptions};
use archipelago_env::FileSystem;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};

use crate::disk::TestDisk;
use crate::support::{open, over, small_db, small_family};

/// Components over a file system whose operations fail by rules.
fn faulty() -> (Components, Arc<FaultFs>) {
    let faults = Arc::new(FaultFs::new(Arc::new(TestDisk::new()), 1));
    let components = Components {
        fs: Arc::clone(&faults) as Arc<dyn FileSystem>,
        ..over(&TestDisk::new(), small_family())
    };
    (components, faults)
}

#[test]
fn commit_is_atomic_over_families_and_survives_power_loss() {
    let fs = TestDisk::new();
    let db = open(&fs);
    let other = db.create_family("other", small_family()).unwrap();
    let cf = db.default_family();
    let mut transaction = db.transaction();
    transaction.put(cf, b"a", b"1").unwrap();
    transaction.put_expiring(&other, b"b", b"2", u64::MAX).unwrap();
    transaction.delete(cf, b"c").unwrap();
    assert_eq!((transaction.len(), transaction.is_empty()), (3, false));
    assert_eq!(db.get(b"a").unwrap(), None);
    let before = db.latest_seq_of_all();
    let last = transaction.commit(&WriteOptions::synced()).unwrap();
    assert_eq!(last.0, before.0 + 3);
    assert_eq!((transaction.len(), db.latest_seq_of_all()), (0, last));
    assert_eq!(db.statistics().get(Ticker::TransactionsCommitted), 1);
    let db = open(&fs.crash_clone(7));
    let other = db.family("other").unwrap();
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    let entry = db.get_entry(&other, b"b", &ReadOptions::default()).unwrap().unwrap();
    assert_eq!((&*entry.value, entry.expires_at_ms), (&b"2"[..], Some(u64::MAX)));
}

#[test]
fn rolled_back_transaction_has_written_nothing() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    let before = db.latest_seq_of_all();
    let mut transaction = db.transaction();
    transaction.put(cf, b"a", b"1").unwrap();
    transaction.get(cf, b"x").unwrap();
    transaction.rollback();
    assert!(transaction.is_empty());
    assert_eq!(transaction.get(cf, b"a").unwrap(), None);
    transaction.put(cf, b"b", b"1").unwrap();
    drop(transaction);
    assert_eq!(db.latest_seq_of_all(), before);
    assert_eq!((db.get(b"a").unwrap(), db.get(b"b").unwrap()), (None, None));
}

#[test]
fn transaction_is_usable_again_after_a_conflict() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    let mut transaction = db.transaction();
    for _ in 0..3 {
        transaction.get(cf, b"k").unwrap();
        transaction.put(cf, b"result", b"1").unwrap();
        db.put(b"k", b"new").unwrap();
        for _ in 0..2 {
            let error = transaction.commit(&WriteOptions::default()).unwrap_err();
            assert_eq!(Conflict::of(&error), Some(Conflict::Key), "also the second time");
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert!(error.to_string().contains("key \"k\" of column family \"default\""));
        }
        transaction.rollback();
        transaction.get(cf, b"k").unwrap();
        transaction.put(cf, b"result", b"1").unwrap();
        transaction.commit(&WriteOptions::default()).unwrap();
    }
}

#[test]
fn failed_append_leaves_the_transaction_as_it_was() {
    let (fs, faults) = faulty();
    let db = Db::open_with("/db", small_db(), fs).unwrap();
    let cf = db.default_family();
    let mut transaction = db.transaction();
    transaction.get(cf, b"k").unwrap();
    transaction.put(cf, b"k", b"1").unwrap();
    // The append, and the next segment in which it is tried again.
    faults.add(Rule::on(Operation::LogAppend).fault(Fault::NoSpace).times(2));
    let error = transaction.commit(&WriteOptions::default()).unwrap_err();
    assert!(error.is_no_space(), "{error}");
    assert_eq!(db.get(b"k").unwrap(), None);
    assert_eq!(transaction.get(cf, b"k").unwrap().as_deref(), Some(&b"1"[..]));
    transaction.commit(&WriteOptions::default()).unwrap();
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn failed_sync_leaves_visible_writes_and_an_empty_transaction() {
    let (fs, faults) = faulty();
    let db = Db::open_with("/db", small_db(), fs).unwrap();
    let cf = db.default_family();
    let mut transaction = db.transaction();
    transaction.put(cf, b"k", b"1").unwrap();
    faults.add(Rule::on_any(&[Operation::LogSync, Operation::Sync]));
    transaction.commit(&WriteOptions::synced()).unwrap_err();
    assert!(transaction.is_empty());
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"1"[..]));
    transaction.put(cf, b"k", b"2").unwrap();
    let error = transaction.commit(&WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
}

#[test]
fn too_large_transaction_is_refused_by_its_limit() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    let options = TransactionOptions { bytes_max: 100 << 10, ..TransactionOptions::default() };
    let mut transaction = db.transaction_with(options);
    let fill = |transaction: &mut archipelago_engine::transaction::Transaction| {
        (0..1000u32).find_map(|n| transaction.put(cf, &n.to_be_bytes(), &[1; 1000]).err())
    };
    let error = fill(&mut transaction).unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.context().contains("bytes_max is 102400"), "{error}");
    let written = transaction.len();
    assert!(transaction.memory_bytes() <= 100 << 10);
    transaction.commit(&WriteOptions::default()).unwrap();
    assert_eq!(db.latest_seq_of_all().0, written as u64);
    let error = (0..10_000u32).find_map(|n| transaction.get(cf, &n.to_be_bytes()).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "reads are noted, too");
}

#[test]
fn large_transaction_counts_to_the_byte_budget() {
    let budget = ByteBudget::unlimited();
    let components =
        Components { budget: Some(Arc::clone(&budget)), ..over(&TestDisk::new(), small_family()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    let mut transaction = db.transaction();
    transaction.put(cf, b"k", b"small").unwrap();
    assert_eq!(budget.used_bytes(MemoryClass::Transaction), 0);
    for n in 0..300u32 {
        transaction.put(cf, &n.to_be_bytes(), &[1; 1000]).unwrap();
    }
    assert!(budget.used_bytes(MemoryClass::Transaction) > 230_000);
    transaction.rollback();
    assert_eq!(budget.used_bytes(MemoryClass::Transaction), 0);
}

#[test]
fn read_only_database_has_transactions_that_read() {
    let fs = TestDisk::new();
    open(&fs).put(b"k", b"1").unwrap();
    let options = archipelago_engine::options::DbOptions { read_only: true, ..small_db() };
    let db = Db::open_with("/db", options, over(&fs, small_family())).unwrap();
    let cf = db.default_family();
    let mut transaction = db.transaction();
    assert_eq!(transaction.get(cf, b"k").unwrap().as_deref(), Some(&b"1"[..]));
    transaction.commit(&WriteOptions::default()).unwrap();
    transaction.put(cf, b"k", b"2").unwrap();
    let error = transaction.commit(&WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
}

#[test]
fn wrong_calls_are_refused_before_the_commit() {
    let (db, other) = (open(&TestDisk::new()), open(&TestDisk::new()));
    let cf = db.default_family();
    let mut transaction = db.transaction();
    let snapshot = db.snapshot();
    let errors = [
        transaction.get(other.default_family(), b"k").map(drop),
        transaction.put(other.default_family(), b"k", b"v"),
        transaction.put(cf, &vec![0; 70_000], b"v"),
        transaction.delete_range(cf, b"z", b"a"),
        transaction.merge(cf, b"k", b"no operator"),
        transaction.iter(cf, &ReadOptions::new().range(b"z", b"a")).map(drop),
        transaction.iter(cf, &ReadOptions::new().snapshot(&snapshot)).map(drop),
    ];
    for error in errors {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(transaction.rollback_to_savepoint().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(transaction.pop_savepoint().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(transaction.is_empty());
    let options = WriteOptions { sync: true, wal: false, ..WriteOptions::default() };
    transaction.put(cf, b"k", b"v").unwrap();
    assert_eq!(transaction.commit(&options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    transaction.commit(&WriteOptions::default()).unwrap();
}

#[test]
fn merges_of_a_transaction_fold_onto_the_database() {
    let family = CfOptions { merge_operator: Some("append".to_owned()), ..small_family() };
    let mut components = over(&TestDisk::new(), family);
    components.registry.add_merge_operator(Arc::new(AppendMerge));
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    db.put_expiring(cf, b"k", b"a", u64::MAX, &WriteOptions::default()).unwrap();
    let mut transaction = db.transaction();
    transaction.merge(cf, b"k", b"b").unwrap();
    transaction.merge(cf, b"k", b"c").unwrap();
    transaction.merge(cf, b"new", b"n").unwrap();
    let entry = transaction.get_entry(cf, b"k").unwrap().unwrap();
    assert_eq!((&*entry.value, entry.expires_at_ms), (&b"abc"[..], Some(u64::MAX)));
    let entry = transaction.get_for_update(cf, b"new", LockMode::Exclusive).unwrap().unwrap();
    assert_eq!(entry.value, b"n"[..]);
    transaction.commit(&WriteOptions::default()).unwrap();
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"abc"[..]));
}
