//! Column families that are dropped while they are in use.

use std::sync::{Arc, OnceLock};

use archipelago_base::ErrorKind;
use archipelago_engine::db::{Components, Db, FaultPoint, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use parking_lot::{Condvar, Mutex};

use crate::disk::TestDisk;
use crate::support::{in_threads, open, over, small_db, small_family};

fn key(n: u32) -> Vec<u8> {
    format!("key{n:04}").into_bytes()
}

fn tables(fs: &TestDisk) -> usize {
    let files = fs.list("/db".as_ref()).unwrap();
    files.into_iter().filter(|file| file.name.ends_with(".sst")).count()
}

#[test]
fn handle_of_a_dropped_family_holds_no_files() {
    let fs = TestDisk::new();
    let db = open(&fs);
    let family = db.create_family("gone", small_family()).unwrap();
    for n in 0..500 {
        db.put_with(&family, &key(n), &[1; 100], &WriteOptions::default()).unwrap();
        while db.step_background().unwrap() {}
    }
    db.flush(&family).unwrap();
    assert!(tables(&fs) > 0);
    let clone = db.family("gone").unwrap();
    db.drop_family(&family).unwrap();
    assert_eq!(tables(&fs), 0, "handles are there still");
    for handle in [&family, &clone] {
        let kinds = [
            db.get_with(handle, b"a", &ReadOptions::default()).unwrap_err().kind(),
            db.multi_get(handle, &[b"a"], &ReadOptions::default()).unwrap_err().kind(),
            db.iter(handle, &ReadOptions::default()).unwrap_err().kind(),
            db.latest_seq(handle, b"a").unwrap_err().kind(),
            db.flush(handle).unwrap_err().kind(),
            db.drop_family(handle).unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::Closed; 6]);
    }
    assert_eq!((db.estimate_keys(&family), db.would_stall(&family)), (0, false));
}

#[test]
fn files_of_a_dropped_family_go_with_its_last_iterator() {
    let fs = TestDisk::new();
    let db = open(&fs);
    let family = db.create_family("gone", small_family()).unwrap();
    for n in 0..500 {
        db.put_with(&family, &key(n), &[n as u8; 100], &WriteOptions::default()).unwrap();
        while db.step_background().unwrap() {}
    }
    db.flush(&family).unwrap();
    let pinned = db.get_with(&family, &key(7), &ReadOptions::default()).unwrap().unwrap();
    let mut iter = db.iter(&family, &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    db.drop_family(&family).unwrap();
    db.wait_for_background().unwrap();
    assert!(tables(&fs) > 0);
    for n in 0..500 {
        assert_eq!((iter.key(), iter.value()), (&key(n)[..], &[n as u8; 100][..]));
        iter.next();
    }
    assert!(!iter.valid());
    iter.status().unwrap();
    drop(iter);
    while db.step_background().unwrap() {}
    assert_eq!(tables(&fs), 0);
    assert_eq!(pinned, [7; 100]);
}

#[test]
fn job_of_a_family_dropped_meanwhile_leaves_nothing() {
    for name in ["flush.before_install", "compaction.before_install"] {
        let fs = TestDisk::new();
        let cell: Arc<OnceLock<Db>> = Arc::default();
        let of = Arc::clone(&cell);
        let drop_it: FaultPoint = Arc::new(move |point| {
            if let Some(db) = of.get().filter(|_| point == name)
                && let Ok(family) = db.family("gone")
            {
                db.drop_family(&family).unwrap();
            }
            Ok(())
        });
        let components = Components { fault_point: Some(drop_it), ..over(&fs, small_family()) };
        let db = Db::open_with("/db", small_db(), components).unwrap();
        let family = db.create_family("gone", small_family()).unwrap();
        let fill = || {
            for n in 0..50 {
                db.put_with(&family, &key(n), &[1; 100], &WriteOptions::default()).unwrap();
            }
        };
        fill();
        if name.starts_with("compaction") {
            db.flush(&family).unwrap();
            fill();
            db.flush(&family).unwrap();
        }
        cell.set(db.clone()).unwrap();
        let dropped = match name.starts_with("compaction") {
            true => db.compact_range(&family, &KeyRange::all()),
            false => db.flush(&family),
        };
        assert_eq!(dropped.unwrap_err().kind(), ErrorKind::Closed, "{name}");
        while db.step_background().unwrap() {}
        assert_eq!(tables(&fs), 0, "{name}");
        assert_eq!(db.statistics().get(Ticker::BackgroundErrors), 0, "{name}");
        assert_eq!(db.report(db.default_family()).unwrap().health, "healthy");
        db.close().unwrap();
        assert_eq!(open(&fs).list_families(), ["default"]);
    }
}

#[test]
fn writer_that_waits_for_a_dropped_family_gets_an_error() {
    let fs = TestDisk::new();
    let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
    let held = Arc::clone(&gate);
    let hold: FaultPoint = Arc::new(move |point| {
        if point == "flush.before_install" {
            let mut open = held.0.lock();
            while !*open {
                held.1.wait(&mut open);
            }
        }
        Ok(())
    });
    let components = Components { fault_point: Some(hold), ..over(&fs, small_family()) };
    let db = Db::open_with("/db", small_db(), in_threads(components)).unwrap();
    let small = CfOptions { write_buffer_bytes: 4 << 10, write_buffers_max: 2, ..small_family() };
    let family = db.create_family("gone", small).unwrap();
    let (db, family) = (&db, &family);
    std::thread::scope(|threads| {
        let writer = threads.spawn(move || {
            let write = |n| db.put_with(family, &key(n), &[1; 100], &WriteOptions::default());
            (0..).find_map(|n| write(n).err())
        });
        // The flush is held, so that the writer must wait for it.
        let waits = || db.property(family, "archipelago.num-immutable-mem-table").unwrap() != "0";
        while !waits() {
            std::thread::yield_now();
        }
        db.drop_family(family).unwrap();
        let error = writer.join().unwrap().unwrap();
        assert!(error.to_string().contains("dropped"), "{error}");
        *gate.0.lock() = true;
        gate.1.notify_all();
    });
    db.clone().close().unwrap();
}
