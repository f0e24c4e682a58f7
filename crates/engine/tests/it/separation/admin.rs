//! Checkpoints, verification, repair, ingestion, reports and changes of the separation threshold.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::CfId;
use archipelago_engine::db::{Db, IngestOptions, LastLevel, PinnedInfo, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::CfOptions;
use archipelago_engine::repair::{RepairOptions, RepairReport, repair, verify_files};
use archipelago_env::FileSystem;

use crate::corruption::{closed_with_separated_values, disk, open_separated};
use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

const DIR: &str = "/db";
const THRESHOLDS: [u64; 3] = [1, 64, 512];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn family(separation_bytes: u64) -> CfOptions {
    CfOptions {
        value_separation_bytes: separation_bytes,
        value_file_bytes: 64 << 10,
        space_amplification_max: 0.0,
        ..small_family()
    }
}

fn open(fs: &TestDisk, dir: &str, separation_bytes: u64) -> Db {
    Db::open_with(dir, small_db(), over(fs, family(separation_bytes))).unwrap()
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

fn value(n: u32, round: u32) -> Vec<u8> {
    let len = [3, 100, 700, 2000][(n % 4) as usize];
    format!("{n}-{round}-").into_bytes().into_iter().cycle().take(len).collect()
}

/// Writes `count` keys in two rounds, so that value files have garbage, and compacts after each.
fn filled(fs: &TestDisk, separation_bytes: u64, count: u32) -> (Db, Rows) {
    let db = open(fs, DIR, separation_bytes);
    let mut rows = Rows::new();
    for round in 0..2 {
        for n in (0..count).step_by(1 + round as usize) {
            while db.step_background().unwrap() {}
            db.put(&key(n), &value(n, round)).unwrap();
            rows.insert(key(n), value(n, round));
        }
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    }
    (db, rows)
}

fn rows_of(db: &Db) -> Rows {
    let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    let mut rows = Rows::new();
    iter.seek_to_first();
    while iter.valid() {
        rows.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next();
    }
    iter.status().unwrap();
    rows
}

fn names(fs: &TestDisk, dir: &str, end: &str) -> Vec<String> {
    let entries = fs.list(Path::new(dir)).unwrap();
    entries.into_iter().map(|entry| entry.name).filter(|name| name.ends_with(end)).collect()
}

fn shared(fs: &TestDisk) -> Arc<dyn FileSystem> {
    Arc::new(fs.clone())
}

/// Flips a byte of a file in memory.
pub(super) fn flip(fs: &TestDisk, path: &str, at: u64) {
    let context = archipelago_env::IoContext::manifest(archipelago_env::IoPurpose::Maintenance);
    let path = Path::new(path);
    let mut bytes = fs.read(path, context).unwrap();
    bytes[at as usize] ^= 1;
    fs.remove(path).unwrap();
    let mut file = fs.create(path, context, archipelago_env::CreateOptions::default()).unwrap();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
}

fn repaired(fs: &TestDisk, dry_run: bool) -> RepairReport {
    let options = RepairOptions { seed: Some(3), dry_run, ..RepairOptions::default() };
    repair(&shared(fs), Path::new(DIR), Path::new("/repaired"), options, |_| {}).unwrap()
}

/// Checks that the repaired database is clean and differs only where the report says so.
fn check_repaired(fs: &TestDisk, report: &RepairReport, before: &Rows, threshold: u64) -> Rows {
    let verified = verify_files(&shared(fs), Path::new("/repaired"), |_| {}).unwrap();
    assert!(verified.is_clean(), "{:?}", verified.errors);
    let db = open(fs, "/repaired", threshold);
    let rows = rows_of(&db);
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
    for (key, value) in before {
        let may_differ = report.may_affect(CfId::DEFAULT, key);
        assert!(may_differ || rows.get(key) == Some(value), "{}", key.escape_ascii());
    }
    db.close().unwrap();
    rows
}

#[test]
fn checkpoint_has_the_value_files_of_its_moment() {
    for threshold in THRESHOLDS {
        let fs = TestDisk::new();
        let (db, rows) = filled(&fs, threshold, 200);
        db.checkpoint("/copy").unwrap();
        for n in 0..200 {
            while db.step_background().unwrap() {}
            db.put(&key(n), b"later").unwrap();
        }
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        db.close().unwrap();
        let copy = open(&fs, "/copy", threshold);
        assert!(!names(&fs, "/copy", ".vsst").is_empty());
        assert_eq!(rows_of(&copy), rows);
        assert!(copy.verify(|_, _| {}).unwrap().is_clean());
        copy.close().unwrap();
    }
}

#[test]
fn verification_counts_the_references_to_a_damaged_value_file() {
    for threshold in THRESHOLDS {
        let fs = TestDisk::new();
        let (db, _) = filled(&fs, threshold, 200);
        assert!(db.verify(|_, _| {}).unwrap().value_files > 0);
        let report = db.values(db.default_family()).unwrap();
        let file = &report.files[0];
        let (name, references) = (format!("{:06}.vsst", file.no), file.references);
        flip(&fs, &format!("{DIR}/{name}"), 10);
        let found = db.verify(|_, _| {}).unwrap();
        let said = format!("{references} records of ");
        let names_it = |error: &archipelago_base::Error| {
            error.to_string().contains(&name) && error.to_string().contains(&said)
        };
        assert!(found.errors.iter().any(names_it), "{:?}", found.errors);
        db.close().unwrap();
        let found = verify_files(&shared(&fs), Path::new(DIR), |_| {}).unwrap();
        assert!(found.errors.iter().any(names_it), "{:?}", found.errors);
    }
}

#[test]
fn values_report_has_the_invalid_files() {
    let (files, _) = closed_with_separated_values();
    let invalid = files.iter().filter(|(name, _)| name.ends_with(".inv"));
    let sizes: Vec<u64> = invalid.map(|(_, bytes)| bytes.len() as u64).collect();
    assert!(!sizes.is_empty(), "{:?}", files.keys());
    let db = open_separated(&disk(&files)).unwrap();
    let report = db.values(db.default_family()).unwrap();
    let found = (report.invalid_files, report.invalid_bytes);
    assert_eq!(found, (sizes.len() as u64, sizes.iter().sum::<u64>()));
    let line = format!("Invalid files: {} of {} bytes", found.0, found.1);
    assert!(report.to_string().contains(&line), "{report}");
    db.close().unwrap();
}

#[test]
fn missing_value_file_is_named_by_verify_and_open() {
    let fs = TestDisk::new();
    let (db, _) = filled(&fs, 64, 200);
    db.close().unwrap();
    let name = names(&fs, DIR, ".vsst").remove(0);
    fs.remove(&Path::new(DIR).join(&name)).unwrap();
    let found = verify_files(&shared(&fs), Path::new(DIR), |_| {}).unwrap();
    let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
    assert!(errors.iter().any(|error| error.contains(&name) && error.contains("missing")));
    let refused = Db::open_with(DIR, small_db(), over(&fs, family(64))).unwrap_err();
    assert!(refused.to_string().contains(&name), "{refused}");
}

#[test]
fn repair_drops_and_reports_records_of_a_missing_value_file() {
    for threshold in THRESHOLDS {
        let fs = TestDisk::new();
        let (db, before) = filled(&fs, threshold, 200);
        let file = db.values(db.default_family()).unwrap().files[0].clone();
        db.close().unwrap();
        fs.remove(Path::new(&format!("{DIR}/{:06}.vsst", file.no))).unwrap();
        let dry = repaired(&fs, true);
        let report = repaired(&fs, false);
        assert_eq!(dry.losses, report.losses);
        assert_eq!(report.families[0].values_lost, file.references);
        let rows = check_repaired(&fs, &report, &before, threshold);
        assert_eq!(before.len() - rows.len(), file.references as usize);
    }
}

#[test]
fn repair_saves_the_whole_values_of_a_damaged_value_file() {
    let fs = TestDisk::new();
    let (db, before) = filled(&fs, 64, 200);
    let file = db.values(db.default_family()).unwrap().files[0].clone();
    db.close().unwrap();
    flip(&fs, &format!("{DIR}/{:06}.vsst", file.no), 10);
    let report = repaired(&fs, false);
    assert!(report.families[0].values_lost <= 1, "{report}");
    assert_eq!(report.families[0].value_files_damaged, 1);
    let rows = check_repaired(&fs, &report, &before, 64);
    assert!(rows.len() + 1 >= before.len());
}

#[test]
fn repair_without_a_manifest_resolves_references() {
    for threshold in THRESHOLDS {
        let fs = TestDisk::new();
        let (db, before) = filled(&fs, threshold, 200);
        db.close().unwrap();
        for name in names(&fs, DIR, "").into_iter().filter(|name| name.starts_with("MANIFEST")) {
            fs.remove(&Path::new(DIR).join(name)).unwrap();
        }
        let report = repaired(&fs, false);
        assert!(report.manifest_lost.is_some());
        assert_eq!(report.families[0].values_lost, 0, "{report}");
        let verified = verify_files(&shared(&fs), Path::new("/repaired"), |_| {}).unwrap();
        assert!(verified.is_clean(), "{:?}", verified.errors);
        let db = open(&fs, "/repaired", threshold);
        assert_eq!(rows_of(&db), before);
        db.close().unwrap();
    }
}

#[test]
fn repair_prefers_an_inline_copy_to_a_reference() {
    for threshold in THRESHOLDS {
        let fs = TestDisk::new();
        let (db, before) = filled(&fs, threshold, 200);
        db.close().unwrap();
        let context = archipelago_env::IoContext::manifest(archipelago_env::IoPurpose::Maintenance);
        let read = |name: &String| fs.read(&Path::new(DIR).join(name), context).unwrap();
        let referring: Vec<(String, Vec<u8>)> =
            names(&fs, DIR, ".sst").into_iter().map(|name| (name.clone(), read(&name))).collect();
        let db = open(&fs, DIR, 0);
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        db.close().unwrap();
        assert!(names(&fs, DIR, ".vsst").is_empty());
        // The repair restores the tables with references, but not their value files.
        for (name, bytes) in referring {
            fs.write_atomic(&Path::new(DIR).join(name), &bytes, context).unwrap();
        }
        for name in names(&fs, DIR, "").into_iter().filter(|name| name.starts_with("MANIFEST")) {
            fs.remove(&Path::new(DIR).join(name)).unwrap();
        }
        let report = repaired(&fs, false);
        assert!(report.manifest_lost.is_some());
        let db = open(&fs, "/repaired", threshold);
        assert_eq!(rows_of(&db), before, "threshold {threshold}");
        assert!(db.verify(|_, _| {}).unwrap().is_clean());
        db.close().unwrap();
    }
}

#[test]
fn compact_range_leaves_no_value_file_when_separation_is_off() {
    for threshold in THRESHOLDS {
        let fs = TestDisk::new();
        let (db, rows) = filled(&fs, threshold, 200);
        assert!(!names(&fs, DIR, ".vsst").is_empty());
        db.close().unwrap();
        let db = open(&fs, DIR, 0);
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        assert_eq!(rows_of(&db), rows);
        assert!(db.values(db.default_family()).unwrap().files.is_empty());
        assert_eq!(names(&fs, DIR, ".vsst"), Vec::<String>::new());
        db.close().unwrap();
    }
}

#[test]
fn compact_range_separates_values_of_older_tables() {
    let fs = TestDisk::new();
    let (db, rows) = filled(&fs, 0, 200);
    assert!(names(&fs, DIR, ".vsst").is_empty());
    db.close().unwrap();
    let db = open(&fs, DIR, 512);
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    let report = db.values(db.default_family()).unwrap();
    let large = rows.values().filter(|value| value.len() >= 512).count() as u64;
    assert_eq!(report.references(), large);
    assert_eq!(rows_of(&db), rows);
    db.close().unwrap();
}

#[test]
fn table_with_separated_values_is_refused_for_ingestion() {
    let fs = TestDisk::new();
    let (db, rows) = filled(&fs, 64, 100);
    let table = Path::new(DIR).join(names(&fs, DIR, ".sst").remove(0));
    let refused = db.ingest(db.default_family(), &[table], &IngestOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("refer to values"), "{refused}");
    assert_eq!(rows_of(&db), rows);
    db.close().unwrap();
}

#[test]
fn open_removes_stray_value_files() {
    let fs = TestDisk::new();
    let (db, rows) = filled(&fs, 64, 100);
    db.close().unwrap();
    let named = names(&fs, DIR, ".vsst");
    let from = Path::new(DIR).join(&named[0]);
    fs.link(&from, &Path::new(DIR).join("900000.vsst")).unwrap();
    fs.link(&from, &Path::new(DIR).join("900001.inv")).unwrap();
    let db = open(&fs, DIR, 64);
    assert_eq!(names(&fs, DIR, ".vsst"), named);
    assert!(names(&fs, DIR, ".inv").is_empty());
    assert_eq!(rows_of(&db), rows);
    db.close().unwrap();
}

#[test]
fn dropped_family_takes_its_value_files_along() {
    let fs = TestDisk::new();
    let db = open(&fs, DIR, 0);
    let other = db.create_family("other", family(64)).unwrap();
    for n in 0..60 {
        let options = archipelago_engine::options::WriteOptions::default();
        db.put_with(&other, &key(n), &value(n, 0), &options).unwrap();
    }
    db.flush(&other).unwrap();
    assert!(!names(&fs, DIR, ".vsst").is_empty());
    db.drop_family(&other).unwrap();
    drop(other);
    assert_eq!(names(&fs, DIR, ".vsst"), Vec::<String>::new());
    db.close().unwrap();
}

#[test]
fn report_adds_up_and_names_pinned_bytes() {
    let fs = TestDisk::new();
    let (db, _) = filled(&fs, 64, 200);
    let report = db.values(db.default_family()).unwrap();
    let total: u64 = report.files.iter().map(|file| file.value_bytes).sum();
    assert_eq!(report.valid_bytes() + report.exposed_bytes(), total);
    assert!(report.files.is_sorted_by_key(|file| std::cmp::Reverse(file.garbage_bytes())));
    assert_eq!(report.pinned, PinnedInfo::default());
    let text = report.to_string();
    assert!(text.contains(&format!("{:06}.vsst", report.files[0].no)), "{text}");
    let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    let forced = archipelago_engine::db::CompactRangeOptions {
        last_level: LastLevel::Always,
        ..Default::default()
    };
    db.compact_range_with(db.default_family(), &KeyRange::all(), &forced).unwrap();
    let pinned = db.values(db.default_family()).unwrap().pinned;
    assert!(pinned.bytes > 0 && pinned.snapshot_bytes == 0, "{pinned:?}");
    drop(iter);
    assert_eq!(db.values(db.default_family()).unwrap().pinned, PinnedInfo::default());
    db.close().unwrap();
}

#[test]
fn report_tells_files_that_a_snapshot_pins_from_others() {
    let fs = TestDisk::new();
    let (db, _) = filled(&fs, 64, 200);
    db.close().unwrap();
    let filtered = CfOptions { compaction_filter: Some("ttl".to_owned()), ..family(64) };
    let db = Db::open_with(DIR, small_db(), over(&fs, filtered)).unwrap();
    let cf = db.default_family();
    let snapshot = db.snapshot();
    for n in 0..200 {
        while db.step_background().unwrap() {}
        db.put(&key(n), &value(n, 2)).unwrap();
    }
    db.compact_range(cf, &KeyRange::all()).unwrap();
    let report = db.values(cf).unwrap();
    let pinned = report.pinned;
    assert!(pinned.bytes > 0 && pinned.snapshot_bytes == pinned.bytes, "{pinned:?}");
    assert_eq!(db.report(cf).unwrap().snapshot_table_bytes, pinned.bytes);
    let said = format!("{0} bytes, {0} of them by snapshots, 0 by iterators", pinned.bytes);
    assert!(report.to_string().contains(&said), "{report}");
    drop(snapshot);
    assert_eq!(db.values(cf).unwrap().pinned, PinnedInfo::default());
    assert_eq!(db.report(cf).unwrap().snapshot_table_bytes, 0);
    db.close().unwrap();
}
