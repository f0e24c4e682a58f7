//! A cursor that stands on no key shows neither a key nor a value: both calls panic.

use archipelago_engine::db::{Db, Iter, ReadOptions};

use crate::disk::TestDisk;
use crate::support;

/// A database with the keys "a", "b" and "c".
fn filled() -> Db {
    let db = support::open(&TestDisk::new());
    for key in [b"a", b"b", b"c"] {
        db.put(key, b"value").unwrap();
    }
    db
}

/// A cursor over `db` that was never placed.
fn fresh(db: &Db) -> Iter {
    db.iter(db.default_family(), &ReadOptions::new()).unwrap()
}

/// A cursor over `db` that has stepped past the last key.
fn past_the_last(db: &Db) -> Iter {
    let mut iter = fresh(db);
    iter.seek(b"c");
    assert_eq!((iter.key(), iter.value()), (&b"c"[..], &b"value"[..]));
    iter.next();
    assert!(!iter.valid() && iter.status().is_ok());
    iter
}

/// A cursor over `db` that showed a key, and was then moved to its upper bound.
fn beyond_the_bound(db: &Db) -> Iter {
    let options = ReadOptions::new().range(b"a", b"b");
    let mut iter = db.iter(db.default_family(), &options).unwrap();
    iter.seek_to_first();
    assert_eq!((iter.key(), iter.value()), (&b"a"[..], &b"value"[..]));
    iter.seek(b"b");
    assert!(!iter.valid() && iter.status().is_ok());
    iter
}

#[test]
#[should_panic(expected = "key() of a cursor that stands on no key")]
fn key_of_a_fresh_cursor_panics() {
    let db = filled();
    let _ = fresh(&db).key();
}

#[test]
#[should_panic(expected = "value() of a cursor that stands on no key")]
fn value_of_a_fresh_cursor_panics() {
    let db = filled();
    let _ = fresh(&db).value();
}

#[test]
#[should_panic(expected = "key() of a cursor that stands on no key")]
fn key_past_the_last_key_panics() {
    let db = filled();
    let _ = past_the_last(&db).key();
}

#[test]
#[should_panic(expected = "value() of a cursor that stands on no key")]
fn value_past_the_last_key_panics() {
    let db = filled();
    let _ = past_the_last(&db).value();
}

#[test]
#[should_panic(expected = "key() of a cursor that stands on no key")]
fn key_beyond_the_bound_panics() {
    let db = filled();
    let _ = beyond_the_bound(&db).key();
}

#[test]
#[should_panic(expected = "value() of a cursor that stands on no key")]
fn value_beyond_the_bound_panics() {
    let db = filled();
    let _ = beyond_the_bound(&db).value();
}

#[test]
#[should_panic(expected = "key() of a cursor that stands on no key")]
fn key_of_a_fresh_cursor_of_a_transaction_panics() {
    let db = filled();
    let mut transaction = db.transaction();
    let iter = transaction.iter(db.default_family(), &ReadOptions::new()).unwrap();
    let _ = iter.key();
}
