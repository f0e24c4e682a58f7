//! Every kind of read meets every kind of change, with the evidence in memory and in tables.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_base::spawn::{Spawn, SystemSpawn};
use archipelago_base::{ErrorKind, Result};
use archipelago_engine::db::{
    ColumnFamily, Components, Db, FaultPoint, IngestOptions, ReadOptions,
};
use archipelago_engine::extension::{AppendMerge, CompactionFilter, FilterDecision};
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_engine::stats::Ticker;
use archipelago_engine::transaction::{Conflict, LockMode, Transaction, TransactionOptions};
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;

use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

const NOW_MS: u64 = 1_000_000;

struct Bench {
    fs: TestDisk,
    clock: Arc<ManualClock>,
    db: Db,
}

fn families() -> CfOptions {
    CfOptions { merge_operator: Some("append".to_owned()), ..small_family() }
}

fn bench_with(fault_point: Option<FaultPoint>) -> Bench {
    let fs = TestDisk::new();
    let clock = Arc::new(ManualClock::new(NOW_MS));
    let mut components = Components { clock: clock.clone(), fault_point, ..over(&fs, families()) };
    components.registry.add_merge_operator(Arc::new(AppendMerge));
    let db = Db::open_with("/db", small_db(), components).unwrap();
    for key in ["a", "m", "z"] {
        db.put(key.as_bytes(), b"old").unwrap();
    }
    db.put_expiring(db.default_family(), b"n", b"old", NOW_MS + 5000, &WriteOptions::default())
        .unwrap();
    Bench { fs, clock, db }
}

fn table(fs: &TestDisk, key: &[u8]) -> PathBuf {
    let path = Path::new("/table").to_owned();
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let mut writer = SstWriter::create(&fs, &path, TableOptions::default()).unwrap();
    writer.put(key, b"ingested").unwrap();
    writer.finish().unwrap();
    path
}

type Change = fn(&Bench, &[u8]);

/// Every way to change a key.
const CHANGES: [(&str, Change); 9] = [
    ("put", |bench, key| bench.db.put(key, b"new").unwrap()),
    ("put of the same value", |bench, key| bench.db.put(key, b"old").unwrap()),
    ("expiring put", |bench, key| {
        let cf = bench.db.default_family();
        bench.db.put_expiring(cf, key, b"new", NOW_MS * 9, &WriteOptions::default()).unwrap();
    }),
    ("delete", |bench, key| bench.db.delete(key).unwrap()),
    ("merge", |bench, key| {
        bench.db.merge(bench.db.default_family(), key, b"+", &WriteOptions::default()).unwrap();
    }),
    ("range delete", |bench, key| {
        let end = [key, b"\0"].concat();
        let cf = bench.db.default_family();
        bench.db.delete_range(cf, key, &end, &WriteOptions::default()).unwrap();
    }),
    ("batch without log", |bench, key| {
        let mut batch = WriteBatch::new();
        batch.put_cf(bench.db.default_family().id(), b"y", b"beside");
        batch.put_cf(bench.db.default_family().id(), key, b"new");
        bench.db.write(&batch, &WriteOptions { wal: false, ..WriteOptions::default() }).unwrap();
    }),
    ("ingestion", |bench, key| {
        let files = [table(&bench.fs, key)];
        bench.db.ingest(bench.db.default_family(), &files, &IngestOptions::default()).unwrap();
    }),
    ("transaction", |bench, key| {
        let mut other = bench.db.transaction();
        other.put(bench.db.default_family(), key, b"new").unwrap();
        other.commit(&WriteOptions::default()).unwrap();
    }),
];

type Use = fn(&mut Transaction, &ColumnFamily) -> Result<()>;

/// Every use after which a change of the key is a conflict. The key is "m", or an absent key that
/// the use covers.
const USES: [(&str, TransactionOptions, Use, &[u8]); 7] = [
    ("get", SERIALIZABLE, |txn, cf| txn.get(cf, b"m").map(drop), b"m"),
    ("get of nothing", SERIALIZABLE, |txn, cf| txn.get(cf, b"mm").map(drop), b"mm"),
    ("scan", SERIALIZABLE, |txn, cf| scan_to_m(txn, cf), b"m"),
    ("gap of a scan", SERIALIZABLE, |txn, cf| scan_to_m(txn, cf), b"f"),
    (
        "read for update",
        SNAPSHOT,
        |txn, cf| txn.get_for_update(cf, b"m", LockMode::Shared).map(drop),
        b"m",
    ),
    (
        "write after a read",
        SNAPSHOT,
        |txn, cf| {
            txn.get(cf, b"z")?;
            txn.put(cf, b"m", b"mine")
        },
        b"m",
    ),
    (
        "range delete after a read",
        SNAPSHOT,
        |txn, cf| {
            txn.get(cf, b"z")?;
            txn.delete_range(cf, b"g", b"n")
        },
        b"m",
    ),
];

const SERIALIZABLE: TransactionOptions = TransactionOptions {
    isolation: archipelago_engine::transaction::Isolation::Serializable,
    locking: archipelago_engine::transaction::Locking::Optimistic,
    lock_timeout: Duration::ZERO,
    bytes_max: 1 << 20,
};
const SNAPSHOT: TransactionOptions = TransactionOptions {
    isolation: archipelago_engine::transaction::Isolation::Snapshot,
    ..SERIALIZABLE
};

/// Passes the keys from "b" to "m".
fn scan_to_m(txn: &mut Transaction, cf: &ColumnFamily) -> Result<()> {
    let mut iter = txn.iter(cf, &ReadOptions::new())?;
    iter.seek(b"b");
    assert_eq!(iter.key(), b"m");
    iter.status()
}

/// Uses a key, runs an action, writes another key and commits.
fn outcome(
    bench: &Bench,
    options: TransactionOptions,
    used: Use,
    meanwhile: impl FnOnce(),
) -> Option<Conflict> {
    let cf = bench.db.default_family();
    let mut transaction = bench.db.transaction_with(options);
    used(&mut transaction, cf).unwrap();
    meanwhile();
    transaction.put(cf, b"result", b"written").unwrap();
    let committed = transaction.commit(&WriteOptions::default());
    let conflict = committed.err().map(|error| Conflict::of(&error).expect("a conflict"));
    let written = bench.db.get(b"result").unwrap().is_some();
    assert_eq!(written, conflict.is_none(), "all of it or nothing");
    conflict
}

/// Moves all records into tables, as deep as possible.
fn settle(db: &Db) {
    db.flush(db.default_family()).unwrap();
    db.compact_range(db.default_family(), &archipelago_engine::key::KeyRange::all()).unwrap();
}

#[test]
fn each_change_conflicts_with_each_use() {
    for (use_name, options, used, key) in USES {
        for (change_name, change) in CHANGES {
            for settled in [false, true] {
                let bench = bench_with(None);
                let found = outcome(&bench, options, used, || {
                    change(&bench, key);
                    if settled {
                        settle(&bench.db);
                    }
                });
                let is_conflict = matches!(found, Some(Conflict::Key | Conflict::Range));
                assert!(is_conflict, "{use_name}, {change_name}, settled {settled}: {found:?}");
                assert_eq!(bench.db.statistics().get(Ticker::TransactionConflicts), 1);
            }
        }
    }
}

#[test]
fn change_beside_a_use_is_no_conflict() {
    for (use_name, options, used, _) in USES {
        for (change_name, change) in CHANGES {
            let bench = bench_with(None);
            let found = outcome(&bench, options, used, || change(&bench, b"x"));
            assert_eq!(found, None, "{use_name}, {change_name}");
        }
    }
}

#[test]
fn value_that_was_set_and_removed_again_is_a_conflict() {
    let bench = bench_with(None);
    let used: Use = |txn, cf| txn.get(cf, b"q").map(drop);
    let found = outcome(&bench, SERIALIZABLE, used, || {
        bench.db.put(b"q", b"new").unwrap();
        bench.db.delete(b"q").unwrap();
        settle(&bench.db);
    });
    assert_eq!(found, Some(Conflict::Key), "the snapshot keeps the evidence");
}

#[test]
fn change_between_the_steps_of_the_check_is_a_conflict() {
    for (use_name, options, used, key) in USES {
        for (change_name, change) in CHANGES {
            let cell: Arc<OnceLock<Bench>> = Arc::default();
            let seen = Arc::clone(&cell);
            let at_check: FaultPoint = Arc::new(move |point| {
                let Some(bench) = seen.get().filter(|_| point == "transaction.checked") else {
                    return Ok(());
                };
                let other = Bench {
                    fs: bench.fs.clone(),
                    clock: bench.clock.clone(),
                    db: bench.db.clone(),
                };
                // Only once: the other transaction comes here as well.
                if other.db.get(b"once").unwrap().is_none() {
                    let write = move || {
                        other.db.put(b"once", b"1").unwrap();
                        change(&other, key);
                    };
                    SystemSpawn.spawn("beside", Box::new(write)).unwrap().join().unwrap();
                }
                Ok(())
            });
            assert!(cell.set(bench_with(Some(at_check))).is_ok());
            let bench = cell.get().unwrap();
            // A write of another key, so that a second step exists.
            let found = outcome(bench, options, used, || bench.db.put(b"x", b"1").unwrap());
            let is_conflict = matches!(found, Some(Conflict::Key | Conflict::Range));
            assert!(is_conflict, "{use_name}, {change_name}: {found:?}");
        }
    }
}

#[test]
fn iterator_that_turns_remembers_what_it_has_passed() {
    let forward: Use = |txn, cf| {
        let mut iter = txn.iter(cf, &ReadOptions::new())?;
        iter.seek_to_first();
        iter.next();
        iter.next();
        iter.prev();
        assert_eq!(iter.key(), b"m");
        iter.status()
    };
    let backward: Use = |txn, cf| {
        let mut iter = txn.iter(cf, &ReadOptions::new())?;
        iter.seek_to_last();
        iter.prev();
        iter.prev();
        iter.next();
        assert_eq!(iter.key(), b"n");
        iter.status()
    };
    // The first key and the gap before it, the last key and the gap after it, and keys beyond the
    // place of the turn.
    let cases: [(Use, &[u8], Option<Conflict>); 6] = [
        (forward, b"a", Some(Conflict::Range)),
        (forward, b"0", Some(Conflict::Range)),
        (forward, b"x", None),
        (backward, b"z", Some(Conflict::Range)),
        (backward, b"zz", Some(Conflict::Range)),
        (backward, b"b", None),
    ];
    for (used, key, expected) in cases {
        let bench = bench_with(None);
        let found = outcome(&bench, SERIALIZABLE, used, || bench.db.put(key, b"new").unwrap());
        assert_eq!(found, expected, "{}", key.escape_ascii());
    }
}

#[test]
fn expired_value_is_a_conflict_for_those_who_read_it() {
    let reads: [Use; 2] = [
        |txn, cf| txn.get(cf, b"n").map(drop),
        |txn, cf| {
            let mut iter = txn.iter(cf, &ReadOptions::new())?;
            iter.seek(b"m");
            iter.next();
            assert_eq!(iter.key(), b"n");
            iter.status()
        },
    ];
    for used in reads {
        for (wait_ms, expected) in [(4999, None), (5000, Some(Conflict::Expired))] {
            let bench = bench_with(None);
            let pass = || bench.clock.advance(Duration::from_millis(wait_ms));
            assert_eq!(outcome(&bench, SERIALIZABLE, used, pass), expected);
        }
    }
    let bench = bench_with(None);
    let other: Use = |txn, cf| txn.get(cf, b"m").map(drop);
    let pass = || bench.clock.advance(Duration::from_secs(60));
    assert_eq!(outcome(&bench, SERIALIZABLE, other, pass), None);
}

#[test]
fn snapshot_isolation_does_not_check_reads() {
    let bench = bench_with(None);
    let used: Use = |txn, cf| {
        scan_to_m(txn, cf)?;
        txn.get(cf, b"m").map(drop)
    };
    let change = || bench.db.put(b"m", b"new").unwrap();
    assert_eq!(outcome(&bench, SNAPSHOT, used, change), None);
}

#[test]
fn blind_writes_never_conflict() {
    for options in [SERIALIZABLE, SNAPSHOT] {
        let bench = bench_with(None);
        let used: Use = |txn, cf| {
            txn.put(cf, b"m", b"mine")?;
            txn.delete_range(cf, b"a", b"c")
        };
        let change = || bench.db.put(b"m", b"new").unwrap();
        assert_eq!(outcome(&bench, options, used, change), None);
        assert_eq!(bench.db.get(b"m").unwrap().as_deref(), Some(&b"mine"[..]));
    }
}

#[test]
fn read_only_transaction_commits_beside_changes() {
    let bench = bench_with(None);
    let cf = bench.db.default_family();
    let mut transaction = bench.db.transaction();
    scan_to_m(&mut transaction, cf).unwrap();
    assert!(transaction.get(cf, b"z").unwrap().is_some());
    let before = bench.db.latest_seq_of_all();
    bench.db.put(b"z", b"new").unwrap();
    bench.db.put(b"c", b"new").unwrap();
    assert_eq!(transaction.commit(&WriteOptions::default()).unwrap(), before);
}

#[test]
fn dropped_family_ends_the_transactions_that_used_it() {
    let bench = bench_with(None);
    let cf = bench.db.default_family();
    let gone = bench.db.create_family("gone", families()).unwrap();
    let mut reads = bench.db.transaction();
    reads.get(&gone, b"k").unwrap();
    reads.put(cf, b"result", b"1").unwrap();
    let mut writes = bench.db.transaction();
    writes.put(&gone, b"k", b"1").unwrap();
    writes.put(cf, b"result", b"1").unwrap();
    bench.db.drop_family(&gone).unwrap();
    for mut transaction in [reads, writes] {
        assert_eq!(transaction.get(&gone, b"k").unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(transaction.put(&gone, b"k", b"2").unwrap_err().kind(), ErrorKind::Closed);
        let error = transaction.commit(&WriteOptions::default()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::InvalidArgument), "{error}");
        assert_eq!(bench.db.get(b"result").unwrap(), None);
    }
}

/// A compaction filter that removes every record.
struct RemoveAll;

impl CompactionFilter for RemoveAll {
    fn name(&self) -> &str {
        "remove-all"
    }

    fn filter(&self, _: &[u8], _: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        FilterDecision::Remove
    }
}

#[test]
fn filtered_family_reads_alike_and_is_no_conflict() {
    let fs = TestDisk::new();
    let family = CfOptions { compaction_filter: Some("remove-all".to_owned()), ..small_family() };
    let mut components = over(&fs, family);
    components.registry.add_compaction_filter(Arc::new(RemoveAll));
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    db.put(b"m", b"old").unwrap();
    let mut transaction = db.transaction();
    assert!(transaction.get(cf, b"m").unwrap().is_some());
    settle(&db);
    assert_eq!(db.get(b"m").unwrap(), None);
    assert!(transaction.get(cf, b"m").unwrap().is_some(), "reads at the snapshot repeat");
    transaction.put(cf, b"result", b"1").unwrap();
    transaction.commit(&WriteOptions::default()).unwrap();
    // A write that the filter removes later is a conflict all the same.
    db.put(b"m", b"old").unwrap();
    transaction.get(cf, b"m").unwrap();
    db.put(b"m", b"new").unwrap();
    settle(&db);
    assert_eq!(db.get(b"m").unwrap(), None);
    transaction.put(cf, b"result", b"2").unwrap();
    let error = transaction.commit(&WriteOptions::default()).unwrap_err();
    assert_eq!(Conflict::of(&error), Some(Conflict::Key));
}
