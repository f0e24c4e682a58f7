//! A manifest or a log that lost its end later. An open notices this from other files, and changes
//! nothing. A crash never leaves this state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::ErrorKind;
use archipelago_engine::db::{ColumnFamily, Db};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

use crate::disk::TestDisk;
use crate::support::{open, over, small_db, small_family};

type Files = BTreeMap<String, Vec<u8>>;

fn context() -> IoContext {
    IoContext::new(FileClass::Other, IoPurpose::Maintenance)
}

fn path(name: &str) -> PathBuf {
    Path::new("/db").join(name)
}

fn files(disk: &TestDisk) -> Files {
    let entries = disk.list(Path::new("/db")).unwrap();
    let names = entries.into_iter().map(|entry| entry.name).filter(|name| name != "LOCK");
    names.map(|name| (name.clone(), disk.read(&path(&name), context()).unwrap())).collect()
}

fn write(disk: &TestDisk, name: &str, bytes: &[u8]) {
    let mut file = disk.create(&path(name), context(), CreateOptions::default()).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
}

fn the_file(files: &Files, prefix: &str) -> String {
    let mut found = files.keys().filter(|name| name.starts_with(prefix));
    let name = found.next_back().unwrap_or_else(|| panic!("no {prefix} in {:?}", files.keys()));
    name.clone()
}

/// Writes without waiting for background work, which the test steps.
fn put(db: &Db, family: &ColumnFamily, key: &[u8], value: &[u8]) {
    while let Err(error) = db.put_with(family, key, value, &WriteOptions::default()) {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        db.step_background().unwrap();
    }
}

fn fill(db: &Db, rounds: u32) {
    for round in 0..rounds {
        for key in 0..40u32 {
            let value = format!("{round}-{}", "v".repeat(200));
            let key = format!("{:04}", key * 7 + round);
            put(db, db.default_family(), key.as_bytes(), value.as_bytes());
        }
        db.flush(db.default_family()).unwrap();
        if round % 4 == 3 {
            db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        }
    }
}

/// A database that was killed (or closed) after flushes, compactions and a new family.
fn left(close: bool) -> TestDisk {
    let disk = TestDisk::new();
    let db = open(&disk);
    fill(&db, 6);
    let other = db.create_family("other", small_family()).unwrap();
    db.put_with(&other, b"key", b"value", &WriteOptions::default()).unwrap();
    if close {
        db.close().unwrap();
        return disk;
    }
    disk.kill_clone()
}

/// The offsets at which records of a manifest end.
fn record_ends(manifest: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 0;
    while let Some(len) = manifest.get(at + 4..at + 8) {
        at += 8 + u32::from_le_bytes(len.try_into().unwrap()) as usize;
        ends.push(at);
    }
    ends
}

/// Opening must fail with `Corrupt` and every part of `says`, and must change no file.
fn refused(disk: &TestDisk, what: &str, says: &[&str]) {
    let before = files(disk);
    for read_only in [true, false] {
        let options = DbOptions { read_only, ..small_db() };
        let opened = Db::open_with("/db", options, over(disk, small_family()));
        let Err(error) = opened.map(drop) else { panic!("{what}: not noticed") };
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        for part in says {
            assert!(error.to_string().contains(part), "{what}: \"{part}\" is not in: {error}");
        }
    }
    assert!(files(disk) == before, "{what}: a file was changed");
}

#[test]
fn a_manifest_cut_that_loses_an_edit_is_refused_unchanged() {
    for close in [true, false] {
        let disk = left(close);
        let whole = files(&disk);
        let name = the_file(&whole, "MANIFEST-");
        let manifest = &whole[&name];
        let ends = record_ends(manifest);
        assert_eq!(ends.last(), Some(&manifest.len()));
        assert!(ends.len() > 12, "{} records", ends.len());
        // The last record is the unsynced mark after the last edit.
        let durable = ends[ends.len() - 2];
        let inside = (0..durable).step_by(if close { 61 } else { 97 });
        for cut in ends.iter().copied().filter(|&end| end < durable).chain(inside) {
            let cut_short = disk.kill_clone();
            write(&cut_short, &name, &manifest[..cut]);
            refused(&cut_short, &format!("cut at {cut} of {durable}"), &[&name]);
        }
        write(&disk, &name, &manifest[..durable]);
        drop(open(&disk));
    }
}

#[test]
fn a_log_segment_is_evidence_where_the_mark_file_is_lost() {
    let disk = left(false);
    // The segment of this open names the manifest that recovery created.
    drop(open(&disk));
    let whole = files(&disk);
    let (name, mark) = (the_file(&whole, "MANIFEST-"), the_file(&whole, "MARK-"));
    disk.remove(&path(&mark)).unwrap();
    drop(open(&disk.kill_clone()));
    let manifest = &whole[&name];
    let ends = record_ends(manifest);
    for &cut in &ends[..ends.len() - 2] {
        let cut_short = disk.kill_clone();
        write(&cut_short, &name, &manifest[..cut]);
        refused(&cut_short, &format!("cut at {cut}"), &[&name]);
    }
}

#[test]
fn an_older_manifest_or_a_lost_current_is_refused_unchanged() {
    let disk = left(true);
    let old = files(&disk);
    drop(open(&disk));
    let name = the_file(&old, "MANIFEST-");
    write(&disk, &name, &old[&name]);
    write(&disk, "CURRENT", &old["CURRENT"]);
    refused(&disk, "an older manifest", &[&name, "newer", "repair"]);
    let disk = left(false);
    disk.remove(&path("CURRENT")).unwrap();
    refused(&disk, "no CURRENT", &["CURRENT", "missing", "repair"]);
}

#[test]
fn a_lost_log_segment_is_refused_unchanged() {
    for close in [true, false] {
        let disk = left(close);
        let whole = files(&disk);
        let logs: Vec<_> = whole.keys().filter(|name| name.ends_with(".log")).collect();
        let last = logs.last().unwrap().as_str();
        let lost = disk.kill_clone();
        lost.remove(&path(last)).unwrap();
        refused(&lost, "the last segment is missing", &[last]);
        if close {
            let bytes = &whole[last];
            for cut in [0, 50, 96, 97, bytes.len() / 2] {
                let cut_short = disk.kill_clone();
                write(&cut_short, last, &bytes[..cut]);
                refused(&cut_short, &format!("the last segment is cut at {cut}"), &[last]);
            }
        }
    }
}

#[test]
fn a_loss_before_a_segment_that_was_synced_is_refused() {
    let disk = TestDisk::new();
    let family = CfOptions { write_buffer_bytes: 4 << 20, ..small_family() };
    let db = Db::open_with("/db", small_db(), over(&disk, family.clone())).unwrap();
    for n in 0..400u32 {
        put(&db, db.default_family(), &n.to_be_bytes(), &[b'v'; 500]);
    }
    // The first sync since the open, so that no record says that anything was synced.
    db.put_with(db.default_family(), b"last", b"synced", &WriteOptions::synced()).unwrap();
    let disk = disk.kill_clone();
    let whole = files(&disk);
    let logs: Vec<&String> = whole.keys().filter(|name| name.ends_with(".log")).collect();
    assert!(logs.len() > 2, "{logs:?}");
    let name = logs[logs.len() - 2];
    write(&disk, name, &whole[name][..whole[name].len() / 2]);
    for read_only in [true, false] {
        let options = DbOptions { read_only, ..small_db() };
        let opened = Db::open_with("/db", options, over(&disk, family.clone()));
        let Err(error) = opened.map(drop) else { panic!("not noticed; read only: {read_only}") };
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("MARK-"), "{error}");
    }
}

#[test]
fn a_family_that_the_manifest_lost_is_noticed_by_its_writes() {
    let disk = left(false);
    let whole = files(&disk);
    let (name, mark) = (the_file(&whole, "MANIFEST-"), the_file(&whole, "MARK-"));
    let manifest = &whole[&name];
    let ends = record_ends(manifest);
    // The last edit created the family; neither file has a trace of it any more.
    write(&disk, &name, &manifest[..ends[ends.len() - 3]]);
    disk.remove(&path(&mark)).unwrap();
    refused(&disk, "a lost family", &[".log", "column family 1"]);
}

#[test]
fn every_power_loss_and_kill_opens_without_an_alarm() {
    let disk = TestDisk::new();
    let crashed: Arc<parking_lot::Mutex<Vec<TestDisk>>> = Arc::default();
    let kept = Arc::clone(&crashed);
    disk.on_sync(Arc::new(move |disk, _| {
        let mut kept = kept.lock();
        let seed = kept.len() as u64;
        kept.push(disk.crash_clone(seed));
        kept.push(disk.kill_clone());
    }));
    for _ in 0..3 {
        let db = open(&disk);
        fill(&db, 4);
        db.put_with(db.default_family(), b"synced", b"1", &WriteOptions::synced()).unwrap();
        let name = format!("family {}", db.list_families().len());
        let family = db.create_family(&name, small_family()).unwrap();
        for n in 0..200u32 {
            put(&db, &family, &n.to_be_bytes(), &[b'v'; 600]);
        }
        db.checkpoint(format!("/copy{}", db.list_families().len())).unwrap();
        db.close().unwrap();
    }
    disk.clear_on_sync();
    let crashed = std::mem::take(&mut *crashed.lock());
    assert!(crashed.len() > 150, "{} crashes", crashed.len());
    for (index, disk) in crashed.iter().enumerate() {
        let opened = Db::open_with("/db", small_db(), over(disk, small_family()));
        let db = opened.unwrap_or_else(|error| panic!("crash {index}: {error}"));
        assert!(db.verify(|_, _| {}).unwrap().is_clean(), "crash {index}");
        // Also a crash directly after the recovery.
        let again = disk.crash_clone(index as u64);
        let opened = Db::open_with("/db", small_db(), over(&again, small_family()));
        opened.unwrap_or_else(|error| panic!("crash {index}, again: {error}"));
    }
}

#[test]
fn a_checkpoint_has_a_mark_of_its_own() {
    let disk = TestDisk::new();
    let db = open(&disk);
    fill(&db, 3);
    for n in 0..300u32 {
        put(&db, db.default_family(), &n.to_be_bytes(), &[b'v'; 500]);
    }
    db.checkpoint("/copy").unwrap();
    let names = disk.list(Path::new("/copy")).unwrap();
    let name = |prefix: &str| names.iter().find(|entry| entry.name.starts_with(prefix)).unwrap();
    let (manifest, mark) = (name("MANIFEST-"), name("MARK-"));
    assert_eq!(manifest.name.strip_prefix("MANIFEST-"), mark.name.strip_prefix("MARK-"));
    for _ in 0..3 {
        let copy = Db::open_with("/copy", small_db(), over(&disk, small_family())).unwrap();
        assert_eq!(copy.get(&7u32.to_be_bytes()).unwrap().unwrap().len(), 500);
        copy.close().unwrap();
    }
}

#[test]
fn a_segment_that_cannot_name_the_next_one_loses_nothing() {
    let disk = TestDisk::new();
    let faults = FaultFs::new(Arc::new(disk.clone()), 1);
    let components = || {
        let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
        archipelago_engine::db::Components { fs, ..over(&disk, small_family()) }
    };
    let db = Db::open_with("/db", small_db(), components()).unwrap();
    let rule = faults.add(Rule::on(Operation::LogTrailer));
    for n in 0..400u32 {
        put(&db, db.default_family(), &n.to_be_bytes(), &[b'v'; 500]);
    }
    assert!(faults.fired_by(rule) > 1);
    drop(db);
    let db = Db::open_with("/db", small_db(), components()).unwrap();
    let is_there = |n: &u32| db.get(&n.to_be_bytes()).unwrap().is_some();
    assert_eq!((0..400u32).filter(is_there).count(), 400);
}
