//! Watches of keys, with and without a transaction.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::clock::ManualClock;
use archipelago_engine::db::{Components, Db};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::transaction::Conflict;

use crate::disk::TestDisk;
use crate::support::{open, over, small_db, small_family};

fn settle(db: &Db) {
    db.flush(db.default_family()).unwrap();
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
}

#[test]
fn watch_sees_changes_of_its_key_alone() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    db.put(b"k", b"1").unwrap();
    let changes: [fn(&Db); 4] = [
        |db| db.put(b"k", b"1").unwrap(),
        |db| db.delete(b"k").unwrap(),
        |db| {
            let cf = db.default_family();
            db.delete_range(cf, b"a", b"z", &WriteOptions::default()).unwrap();
        },
        |db| {
            db.delete(b"k").unwrap();
            settle(db);
        },
    ];
    for change in changes {
        db.put(b"k", b"1").unwrap();
        let watch = db.watch(cf, b"k").unwrap();
        assert_eq!((watch.key(), watch.family().id()), (&b"k"[..], cf.id()));
        assert!(!db.has_changed(&watch).unwrap());
        db.put(b"other", b"1").unwrap();
        settle(&db);
        assert!(!db.has_changed(&watch).unwrap(), "a compaction changes nothing");
        change(&db);
        assert!(db.has_changed(&watch).unwrap());
    }
}

#[test]
fn folded_operands_are_no_change() {
    let family = CfOptions { merge_operator: Some("append".to_owned()), ..small_family() };
    let db = Db::open_with("/db", small_db(), over(&TestDisk::new(), family)).unwrap();
    let cf = db.default_family();
    db.put(b"k", b"1").unwrap();
    settle(&db);
    db.merge(cf, b"k", b"2", &WriteOptions::default()).unwrap();
    db.merge(cf, b"k", b"3", &WriteOptions::default()).unwrap();
    let watch = db.watch(cf, b"k").unwrap();
    db.put(b"other", b"1").unwrap();
    settle(&db);
    assert!(!db.has_changed(&watch).unwrap());
    db.merge(cf, b"k", b"", &WriteOptions::default()).unwrap();
    assert!(db.has_changed(&watch).unwrap());
}

#[test]
fn watch_of_nothing_sees_a_key_appear() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    db.put(b"k", b"1").unwrap();
    db.delete(b"k").unwrap();
    let watch = db.watch(cf, b"k").unwrap();
    settle(&db);
    db.put(b"other", b"1").unwrap();
    assert!(!db.has_changed(&watch).unwrap());
    db.put(b"k", b"2").unwrap();
    assert!(db.has_changed(&watch).unwrap());
}

#[test]
fn watch_sees_an_expiry() {
    let clock = Arc::new(ManualClock::new(1000));
    let components = Components { clock: clock.clone(), ..over(&TestDisk::new(), small_family()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    db.put_expiring(cf, b"k", b"1", 3000, &WriteOptions::default()).unwrap();
    let watch = db.watch(cf, b"k").unwrap();
    let mut transaction = db.transaction();
    transaction.expect_unchanged(&watch).unwrap();
    transaction.put(cf, b"result", b"1").unwrap();
    clock.advance(Duration::from_millis(1999));
    assert!(!db.has_changed(&watch).unwrap());
    clock.advance(Duration::from_millis(1));
    assert!(db.has_changed(&watch).unwrap());
    let error = transaction.commit(&WriteOptions::default()).unwrap_err();
    assert_eq!(Conflict::of(&error), Some(Conflict::Expired));
    // A value that has expired before does not expire again.
    let late = db.watch(cf, b"k").unwrap();
    clock.advance(Duration::from_secs(60));
    db.put(b"other", b"1").unwrap();
    settle(&db);
    assert!(!db.has_changed(&late).unwrap());
}

#[test]
fn commit_fails_if_a_watched_key_has_changed() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    db.put(b"k", b"1").unwrap();
    for is_written in [false, true] {
        for is_changed in [false, true] {
            let watch = db.watch(cf, b"k").unwrap();
            if is_changed {
                db.put(b"k", b"2").unwrap();
            }
            let mut transaction = db.transaction();
            transaction.expect_unchanged(&watch).unwrap();
            // A later read of the transaction does not replace the watch.
            transaction.get(cf, b"k").unwrap();
            if is_written {
                transaction.put(cf, b"k", b"3").unwrap();
            }
            let conflict = transaction.commit(&WriteOptions::default()).err();
            let conflict = conflict.map(|error| Conflict::of(&error).unwrap());
            assert_eq!(conflict, is_changed.then_some(Conflict::Key));
        }
    }
}

#[test]
fn question_since_a_number_names_later_writes() {
    let db = open(&TestDisk::new());
    let cf = db.default_family();
    db.put(b"k", b"1").unwrap();
    let seq = db.latest_seq_of_all();
    assert!(!db.changed_since(cf, b"k", seq).unwrap());
    db.put(b"j", b"1").unwrap();
    assert!(!db.changed_since(cf, b"k", seq).unwrap());
    db.put(b"k", b"1").unwrap();
    settle(&db);
    assert!(db.changed_since(cf, b"k", seq).unwrap());
    assert!(!db.changed_since(cf, b"k", db.latest_seq_of_all()).unwrap());
}

#[test]
fn watch_of_another_database_is_refused() {
    let (db, other) = (open(&TestDisk::new()), open(&TestDisk::new()));
    let watch = other.watch(other.default_family(), b"k").unwrap();
    assert_eq!(db.has_changed(&watch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = db.transaction().expect_unchanged(&watch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let family = db.create_family("gone", small_family()).unwrap();
    let watch = db.watch(&family, b"k").unwrap();
    db.drop_family(&family).unwrap();
    assert_eq!(db.has_changed(&watch).unwrap_err().kind(), ErrorKind::Closed);
}
