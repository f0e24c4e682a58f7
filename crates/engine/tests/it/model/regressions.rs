//! Failures that random cases have found, as short cases of their own.

use std::sync::Arc;

use archipelago_engine::db::{Db, IngestOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_env::FileSystem;

use crate::disk::TestDisk;
use crate::support::{open, over, small_db, small_family};

const UNLOGGED: WriteOptions = WriteOptions {
    sync: false,
    wal: false,
    no_slowdown: false,
    space_use: archipelago_engine::disk_space::SpaceUse::Takes,
};

#[test]
fn sequence_numbers_of_lost_flushed_writes_are_not_reused() {
    let fs = TestDisk::new();
    let db = open(&fs);
    let other = db.create_family("other", small_family()).unwrap();
    db.put(b"a", b"flushed").unwrap();
    db.put_with(&other, b"lost", b"not in the log", &UNLOGGED).unwrap();
    db.flush(db.default_family()).unwrap();
    let fs = fs.kill_clone();
    let db = open(&fs);
    db.put(b"a", b"acknowledged").unwrap();
    let db = open(&fs.kill_clone());
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"acknowledged"[..]));
}

#[test]
fn a_checkpoint_holds_what_was_written_past_the_log() {
    let fs = TestDisk::new();
    let db = open(&fs);
    db.put_with(db.default_family(), b"a", b"b", &UNLOGGED).unwrap();
    db.checkpoint("/copy").unwrap();
    let components = over(&fs, CfOptions::default());
    let copy = Db::open_with("/copy", small_db(), components);
    assert_eq!(copy.unwrap().get(b"a").unwrap().as_deref(), Some(&b"b"[..]));
}

#[test]
fn a_file_that_was_cut_at_buckets_is_not_left_behind() {
    let fs = TestDisk::new();
    let family = CfOptions { buckets_dynamic: false, ..small_family() };
    let db = Db::open_with("/db", small_db(), over(&fs, family)).unwrap();
    let cf = db.default_family();
    for n in 0..600 {
        db.put(format!("{n:03}").as_bytes(), &[1; 40]).unwrap();
    }
    db.flush(cf).unwrap();
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let mut writer =
        SstWriter::create(&shared, "/t.sst".as_ref(), TableOptions::default()).unwrap();
    for n in 0..600 {
        writer.put(format!("{n:03}").as_bytes(), &[2; 40]).unwrap();
    }
    writer.finish().unwrap();
    db.ingest(cf, &["/t.sst"], &IngestOptions::default()).unwrap();
    let report = db.report(cf).unwrap();
    assert!(report.levels[0].files >= 6, "three buckets of flushed and ingested files");
    let live: usize = report.levels.iter().map(|level| level.files).sum();
    let files = fs.list("/db".as_ref()).unwrap();
    assert_eq!(files.iter().filter(|file| file.name.ends_with(".sst")).count(), live);
}

#[test]
fn recovery_cuts_buckets_only_before_the_first_file() {
    let fs = TestDisk::new();
    let db = open(&fs);
    let cf = db.default_family();
    // A memtable with nothing to cut at, whose file spans everything; then one with many keys.
    for _ in 0..3 {
        db.put(b"b", &[1; 6000]).unwrap();
        db.delete_range(cf, b"a", b"y", &WriteOptions::default()).unwrap();
    }
    for n in 0..300 {
        db.put(format!("c{n:03}").as_bytes(), &[2; 40]).unwrap();
    }
    for kill in 0..2 {
        let fs = fs.kill_clone();
        let db = open(&fs);
        let cf = db.default_family();
        for round in 0..3 {
            assert_eq!(db.get(b"b").unwrap().as_deref(), None, "{kill} {round}");
            for n in 0..300 {
                let got = db.get(format!("c{n:03}").as_bytes()).unwrap();
                assert_eq!(got.as_deref(), Some(&[2; 40][..]), "{kill} {round}");
            }
            match round {
                0 => db.wait_for_background().unwrap(),
                _ => db.compact_range(cf, &KeyRange::all()).unwrap(),
            }
        }
        assert!(db.verify(|_, _| {}).unwrap().is_clean());
    }
}
