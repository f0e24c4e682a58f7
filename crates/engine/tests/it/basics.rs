//! The operations of the API, one after another.

use archipelago_base::ErrorKind;
use archipelago_engine::db::{Db, IngestOptions, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::wal::WriteBatch;

use crate::disk::TestDisk;
use crate::support::{open, over, small_db, small_family};

fn key(n: u32) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    format!("value{n:06}-{}", "x".repeat(40)).into_bytes()
}

/// All keys and values that an iterator shows forwards. Checks that backwards shows the same.
fn contents(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    let mut forward = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        forward.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status().unwrap();
    let mut backward = Vec::new();
    iter.seek_to_last();
    while iter.valid() {
        backward.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.prev();
    }
    iter.status().unwrap();
    backward.reverse();
    assert_eq!(forward, backward);
    forward
}

#[test]
fn puts_are_found_in_memory_l0_levels_and_after_a_reopen() {
    let fs = TestDisk::new();
    let db = open(&fs);
    for n in 0..3000 {
        db.put(&key(n * 7919 % 3000), &value(n * 7919 % 3000)).unwrap();
        if n % 100 == 0 {
            while db.step_background().unwrap() {}
        }
    }
    let check = |db: &Db| {
        for n in 0..3000 {
            assert_eq!(db.get(&key(n)).unwrap().as_deref(), Some(&*value(n)), "{n}");
        }
        assert_eq!(db.get(b"key").unwrap(), None::<Vec<u8>>.map(Into::into));
        assert_eq!(contents(db).len(), 3000);
    };
    check(&db);
    db.wait_for_background().unwrap();
    check(&db);
    assert_eq!(db.buckets(db.default_family()).unwrap().len(), 3);
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    check(&db);
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
    db.close().unwrap();
    let db = open(&fs);
    check(&db);
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
}

#[test]
fn deletes_hide_and_snapshots_remember() {
    let fs = TestDisk::new();
    let db = open(&fs);
    for n in 0..100 {
        db.put(&key(n), b"old").unwrap();
    }
    let snapshot = db.snapshot();
    db.delete(&key(5)).unwrap();
    db.delete_range(db.default_family(), &key(10), &key(20), &WriteOptions::default()).unwrap();
    db.put(&key(15), b"new").unwrap();
    for round in 0..3 {
        assert_eq!(db.get(&key(5)).unwrap().as_deref(), None, "round {round}");
        assert_eq!(db.get(&key(12)).unwrap().as_deref(), None);
        assert_eq!(db.get(&key(15)).unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(db.get(&key(20)).unwrap().as_deref(), Some(&b"old"[..]));
        assert_eq!(contents(&db).len(), 90);
        let then = ReadOptions::new().snapshot(&snapshot);
        for n in [5, 12, 15] {
            let got = db.get_with(db.default_family(), &key(n), &then).unwrap();
            assert_eq!(got.as_deref(), Some(&b"old"[..]));
        }
        match round {
            0 => db.flush(db.default_family()).unwrap(),
            _ => db.compact_range(db.default_family(), &KeyRange::all()).unwrap(),
        }
    }
}

#[test]
fn batches_span_families_and_dropped_families_refuse() {
    let fs = TestDisk::new();
    let db = open(&fs);
    let counters = CfOptions { merge_operator: Some("u64-counter".to_owned()), ..small_family() };
    let hits = db.create_family("hits", counters).unwrap();
    let mut batch = WriteBatch::new();
    batch.put_cf(db.default_family().id(), b"page", b"home");
    batch.merge_cf(hits.id(), b"home", &2u64.to_le_bytes());
    batch.merge_cf(hits.id(), b"home", &3u64.to_le_bytes());
    db.write(&batch, &WriteOptions::synced()).unwrap();
    let read = |db: &Db| {
        let hits = db.family("hits").unwrap();
        let got = db.get_with(&hits, b"home", &ReadOptions::default()).unwrap();
        got.map(|v| u64::from_le_bytes(v.as_ref().try_into().unwrap()))
    };
    assert_eq!(read(&db), Some(5));
    drop(db);
    let db = open(&fs);
    assert_eq!(read(&db), Some(5));
    let hits = db.family("hits").unwrap();
    db.compact_range(&hits, &KeyRange::all()).unwrap();
    assert_eq!(read(&db), Some(5));
    assert_eq!(db.list_families(), ["default", "hits"]);
    db.drop_family(&hits).unwrap();
    assert_eq!(db.family("hits").unwrap_err().kind(), ErrorKind::InvalidArgument);
    let refused = db.put_with(&hits, b"a", b"b", &WriteOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    let no_operator = db.merge(db.default_family(), b"a", b"b", &WriteOptions::default());
    assert_eq!(no_operator.unwrap_err().kind(), ErrorKind::InvalidArgument);
    drop(db);
    assert_eq!(open(&fs).list_families(), ["default"]);
}

#[test]
fn a_checkpoint_is_a_database_of_its_own() {
    let fs = TestDisk::new();
    let db = open(&fs);
    for n in 0..1000 {
        db.put(&key(n), &value(n)).unwrap();
        if n % 200 == 0 {
            db.flush(db.default_family()).unwrap();
        }
    }
    db.checkpoint("/copy").unwrap();
    let before = contents(&db);
    for n in 0..1000 {
        db.delete(&key(n)).unwrap();
        while db.step_background().unwrap() {}
    }
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    let copy = Db::open_with("/copy", small_db(), over(&fs, small_family())).unwrap();
    assert_eq!(contents(&copy), before);
    assert!(contents(&db).is_empty());
    assert_eq!(db.checkpoint("/copy").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn ingested_files_are_newer_than_what_was_there() {
    let fs = TestDisk::new();
    let db = open(&fs);
    for n in 0..600 {
        db.put(&key(n), b"old").unwrap();
    }
    db.flush(db.default_family()).unwrap();
    db.put(&key(100), b"in the memtable").unwrap();
    fs_writer(&fs, "/new.sst", 50..450);
    let snapshot = db.snapshot();
    db.ingest(db.default_family(), &["/new.sst"], &IngestOptions::default()).unwrap();
    for round in 0..2 {
        assert_eq!(db.get(&key(49)).unwrap().as_deref(), Some(&b"old"[..]), "round {round}");
        assert_eq!(db.get(&key(100)).unwrap().as_deref(), Some(&*value(100)));
        assert_eq!(db.get(&key(449)).unwrap().as_deref(), Some(&*value(449)));
        let then = ReadOptions::new().snapshot(&snapshot);
        let got = db.get_with(db.default_family(), &key(100), &then).unwrap();
        assert_eq!(got.as_deref(), Some(&b"in the memtable"[..]));
        assert_eq!(contents(&db).len(), 600);
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    }
    let twice =
        db.ingest(db.default_family(), &["/new.sst", "/new.sst"], &IngestOptions::default());
    assert_eq!(twice.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

fn fs_writer(fs: &TestDisk, path: &str, range: std::ops::Range<u32>) {
    use archipelago_engine::sst::{SstWriter, TableOptions};
    let fs: std::sync::Arc<dyn archipelago_env::FileSystem> = std::sync::Arc::new(fs.clone());
    let mut writer =
        SstWriter::create(&fs, std::path::Path::new(path), TableOptions::default()).unwrap();
    for n in range {
        writer.put(&key(n), &value(n)).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn records_expire_at_once_and_their_space_comes_back() {
    use archipelago_base::clock::ManualClock;
    let fs = TestDisk::new();
    let clock = std::sync::Arc::new(ManualClock::new(1_000_000));
    let mut components = over(&fs, small_family());
    components.clock = clock.clone();
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    for n in 0..50 {
        let options = WriteOptions::default();
        db.put_expiring(cf, &key(n), b"soon gone", 1_005_000, &options).unwrap();
        db.put(&key(1000 + n), b"stays").unwrap();
    }
    let entry = db.get_entry(cf, &key(3), &ReadOptions::default()).unwrap().unwrap();
    assert_eq!((entry.value.as_ref(), entry.expires_at_ms), (&b"soon gone"[..], Some(1_005_000)));
    assert_eq!(contents(&db).len(), 100);
    clock.advance(std::time::Duration::from_secs(5));
    assert_eq!(db.get(&key(3)).unwrap().as_deref(), None);
    assert_eq!(contents(&db).len(), 50);
    db.compact_range(cf, &KeyRange::all()).unwrap();
    assert_eq!(contents(&db).len(), 50);
    assert_eq!(db.estimate_keys(cf), 50);
}

#[test]
fn bad_calls_are_refused_and_change_nothing() {
    let fs = TestDisk::new();
    let db = open(&fs);
    let kind = |result: archipelago_base::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(db.put(&vec![0; (64 << 10) + 1], b"")), ErrorKind::InvalidArgument);
    db.put(&vec![1; 64 << 10], b"longest").unwrap();
    db.put(b"", b"").unwrap();
    assert_eq!(db.get(b"").unwrap().as_deref(), Some(&b""[..]));
    let backwards = db.delete_range(db.default_family(), b"b", b"a", &WriteOptions::default());
    assert_eq!(kind(backwards), ErrorKind::InvalidArgument);
    let unsyncable = WriteOptions { sync: true, wal: false, ..WriteOptions::default() };
    let refused = db.put_with(db.default_family(), b"a", b"b", &unsyncable);
    assert_eq!(kind(refused), ErrorKind::InvalidArgument);
    let elsewhere = Db::open_with("/db", small_db(), over(&fs, small_family()));
    assert_eq!(elsewhere.unwrap_err().kind(), ErrorKind::Busy);
    let other = Db::open_with("/other", small_db(), over(&fs, small_family())).unwrap();
    let foreign = db.put_with(other.default_family(), b"a", b"b", &WriteOptions::default());
    assert_eq!(kind(foreign), ErrorKind::InvalidArgument);
    let bad = DbOptions { max_background_jobs: 0, ..small_db() };
    let error = Db::open_with("/bad", bad, over(&fs, small_family())).unwrap_err();
    assert!(error.to_string().contains("max_background_jobs is 0"), "{error}");
    let long = vec![0; (64 << 10) + 1];
    assert_eq!(kind(db.get(&long).map(drop)), ErrorKind::InvalidArgument);
    db.clone().close().unwrap();
    assert_eq!(kind(db.put(b"a", b"b")), ErrorKind::Closed);
    assert_eq!(kind(db.get(b"a").map(drop)), ErrorKind::Closed);
}
