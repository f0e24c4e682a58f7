//! Read-only databases in parallel with a writer. Their answers are correct and of one moment,
//! whatever the writer flushes, compacts, overwrites and removes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::ErrorKind;
use archipelago_engine::db::{ColumnFamily, Components, Db, IngestOptions, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, Compression, DbOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_engine::wal::WriteBatch;
use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_env::local::LocalFs;
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose};

use crate::disk::TestDisk;
use crate::support::{open, over, small_db, small_family};

fn reader_of(disk: &TestDisk) -> Db {
    let options = DbOptions { read_only: true, ..small_db() };
    Db::open_with("/db", options, over(disk, small_family())).unwrap()
}

fn key(n: u32) -> Vec<u8> {
    format!("{n:05}").into_bytes()
}

/// Writes a round of every key, flushes and compacts, so that older tables are removed.
fn rewrite(db: &Db, keys: u32, round: u32) {
    for n in 0..keys {
        let value = format!("{round}:{}", "v".repeat(90));
        while let Err(error) = db.put(&key(n), value.as_bytes()) {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            db.step_background().unwrap();
        }
    }
    db.flush(db.default_family()).unwrap();
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db.wait_for_background().unwrap();
}

fn round_of(value: &[u8]) -> u32 {
    let text = str::from_utf8(value).unwrap();
    text.split_once(':').unwrap().0.parse().unwrap()
}

/// The rounds of all keys that an iterator sees.
fn scan(db: &Db, options: &ReadOptions) -> archipelago_base::Result<Vec<u32>> {
    let mut iter = db.iter(db.default_family(), options)?;
    let mut rounds = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        rounds.push(round_of(iter.value()));
        iter.next();
    }
    iter.status()?;
    Ok(rounds)
}

#[test]
fn reads_snapshots_and_iterators_hold_what_they_opened() {
    let disk = TestDisk::new();
    let writer = open(&disk);
    rewrite(&writer, 400, 1);
    let reader = reader_of(&disk);
    let before = reader.snapshot();
    let mut old = reader.iter(reader.default_family(), &ReadOptions::default()).unwrap();
    rewrite(&writer, 400, 2);
    rewrite(&writer, 400, 3);
    // The opened state stays as it was, although all of its files were removed.
    for n in 0..400 {
        assert_eq!(round_of(&reader.get(&key(n)).unwrap().unwrap()), 1, "key {n}");
    }
    reader.catch_up().unwrap();
    assert_eq!(scan(&reader, &ReadOptions::default()).unwrap(), vec![3; 400]);
    assert_eq!(scan(&reader, &ReadOptions::new().snapshot(&before)).unwrap(), vec![1; 400]);
    let old_read = ReadOptions::new().snapshot(&before);
    let got = reader.get_with(reader.default_family(), &key(7), &old_read).unwrap().unwrap();
    assert_eq!(round_of(&got), 1);
    old.seek_to_first();
    let mut seen = 0;
    while old.valid() {
        assert_eq!(round_of(old.value()), 1);
        seen += 1;
        old.next();
    }
    old.status().unwrap();
    assert_eq!(seen, 400);
    assert!(reader.verify(|_, _| {}).unwrap().is_clean());
}

#[test]
fn a_table_that_is_not_held_makes_a_read_catch_up() {
    let disk = TestDisk::new();
    let (target_file_bytes, none) = (4 << 10, Compression::None);
    let family = CfOptions {
        target_file_bytes,
        compression: none,
        compression_last: none,
        ..small_family()
    };
    let writer = Db::open_with("/db", small_db(), over(&disk, family.clone())).unwrap();
    rewrite(&writer, 1500, 1);
    let options = DbOptions { read_only: true, table_readers_max: 16, ..small_db() };
    let reader = Db::open_with("/db", options, over(&disk, family)).unwrap();
    let before = ReadOptions::new().snapshot(&reader.snapshot());
    let mut old = reader.iter(reader.default_family(), &ReadOptions::default()).unwrap();
    rewrite(&writer, 1500, 2);
    let tables = disk.list_tables();
    assert!(tables > 40, "{tables} tables for 16 readers");
    let (mut right, mut refused) = (0, 0);
    for n in (0..1500).rev() {
        match reader.get_with(reader.default_family(), &key(n), &before) {
            Ok(value) => {
                assert_eq!(round_of(&value.unwrap()), 1, "key {n}");
                right += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
                let says = error.to_string();
                assert!(says.contains(".sst") && says.contains("catch_up"), "{says}");
                refused += 1;
            }
        }
    }
    assert!(right > 0 && refused > 0, "{right} right, {refused} refused");
    // The same reads of the newest state are repeated on a newer picture.
    for n in (0..1500).rev() {
        let round = round_of(&reader.get(&key(n)).unwrap().unwrap());
        assert!((1..=2).contains(&round), "key {n}: {round}");
    }
    assert_eq!(scan(&reader, &ReadOptions::default()).unwrap(), vec![2; 1500]);
    old.seek_to_first();
    while old.valid() {
        assert_eq!(round_of(old.value()), 1);
        old.next();
    }
    assert_eq!(old.status().unwrap_err().kind(), ErrorKind::Fenced);
}

trait Tables {
    fn list_tables(&self) -> usize;
}

impl Tables for TestDisk {
    fn list_tables(&self) -> usize {
        let entries = self.list(Path::new("/db")).unwrap();
        entries.iter().filter(|entry| entry.name.ends_with(".sst")).count()
    }
}

#[test]
fn catching_up_shows_every_write_that_has_returned() {
    let disk = TestDisk::new();
    let writer = open(&disk);
    let reader = reader_of(&disk);
    for n in 0..300 {
        rewrite_one(&writer, n);
        if n % 7 == 0 {
            writer.flush(writer.default_family()).unwrap();
        }
        reader.catch_up().unwrap();
        assert!(reader.get(&key(n)).unwrap().is_some(), "key {n}");
        assert_eq!(reader.latest_seq_of_all(), writer.latest_seq_of_all());
    }
    let options = WriteOptions::default();
    writer.delete_range(writer.default_family(), &key(0), &key(100), &options).unwrap();
    reader.catch_up().unwrap();
    assert!(reader.get(&key(50)).unwrap().is_none());
    assert!(reader.get(&key(150)).unwrap().is_some());
}

fn rewrite_one(db: &Db, n: u32) {
    while let Err(error) = db.put(&key(n), &[b'v'; 300]) {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        db.step_background().unwrap();
    }
}

#[test]
fn families_come_and_go_as_the_writer_makes_and_drops_them() {
    let disk = TestDisk::new();
    let writer = open(&disk);
    let reader = reader_of(&disk);
    let made = writer.create_family("later", small_family()).unwrap();
    writer.put_with(&made, b"a", b"1", &WriteOptions::default()).unwrap();
    assert_eq!(reader.list_families(), ["default"]);
    reader.catch_up().unwrap();
    let seen = reader.family("later").unwrap();
    let get = |db: &Db| db.get_with(&seen, b"a", &ReadOptions::default());
    assert_eq!(get(&reader).unwrap().as_deref(), Some(&b"1"[..]));
    writer.drop_family(&made).unwrap();
    assert!(get(&reader).unwrap().is_some());
    reader.catch_up().unwrap();
    assert_eq!(get(&reader).unwrap_err().kind(), ErrorKind::Closed);
    assert!(reader.family("later").is_err());
}

#[test]
fn a_table_that_is_missing_without_a_writer_is_corruption() {
    let disk = TestDisk::new();
    let writer = open(&disk);
    rewrite(&writer, 400, 1);
    let options = DbOptions { table_readers_max: 16, ..small_db() };
    drop(writer);
    let db = Db::open_with("/db", options, over(&disk, small_family())).unwrap();
    for entry in disk.list(Path::new("/db")).unwrap() {
        if entry.name.ends_with(".sst") {
            disk.remove(&PathBuf::from("/db").join(entry.name)).unwrap();
        }
    }
    let error = db.get(&key(7)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "never \"not found\": {error}");
    let options = DbOptions { read_only: true, ..small_db() };
    let error = Db::open_with("/db", options, over(&disk, small_family())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(".sst"), "{error}");
}

const DIR: &str = "ARCHIPELAGO_FOLLOWERS_DIR";

fn busy_family() -> CfOptions {
    CfOptions { write_buffer_bytes: 64 << 10, l0_compaction_trigger: 2, ..small_family() }
}

fn busy_components(fs: Arc<dyn FileSystem>) -> Components {
    let families = [("default".to_owned(), busy_family())].into_iter().collect();
    Components { fs, families, ..Components::default() }
}

/// The program of the writer process, and no test. It does nothing without the variable.
#[test]
fn writer_process_writes_until_it_is_killed() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let options = DbOptions { wal_segment_bytes: 64 << 10, ..DbOptions::default() };
    let db = Db::open_with(&dir, options, busy_components(LocalFs::shared())).unwrap();
    let second = db.create_family("second", busy_family()).unwrap();
    let mut reports = std::io::stdout();
    for n in 0u64.. {
        write_step(&db, &second, n);
        if n % 16 == 0 {
            reports.write_all(format!("\n@{n}\n").as_bytes()).unwrap();
        }
    }
}

const SPREAD: u64 = 500;

/// Step `n`: one batch over both families, which overwrites one of many keys.
fn write_step(db: &Db, second: &ColumnFamily, n: u64) {
    let mut batch = WriteBatch::new();
    let value = [&n.to_be_bytes()[..], &[b'v'; 200]].concat();
    for cf in [db.default_family(), second] {
        batch.put_cf(cf.id(), b"newest", &n.to_be_bytes());
        batch.put_cf(cf.id(), format!("key{:05}", n % SPREAD).as_bytes(), &value);
    }
    db.write(&batch, &WriteOptions::default()).unwrap();
}

fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value[..8].try_into().unwrap())
}

fn contents(db: &Db, cf: &ColumnFamily, options: &ReadOptions) -> BTreeMap<Vec<u8>, u64> {
    let mut iter = db.iter(cf, options).unwrap();
    let mut found = BTreeMap::new();
    iter.seek_to_first();
    while iter.valid() {
        found.insert(iter.key().to_vec(), number(iter.value()));
        iter.next();
    }
    iter.status().unwrap();
    found
}

/// Expected content of both families after step `newest`.
fn expected(newest: u64) -> BTreeMap<Vec<u8>, u64> {
    let last = |slot: u64| newest - (newest + SPREAD - slot) % SPREAD;
    let slots = (0..SPREAD.min(newest + 1)).map(|slot| (format!("key{slot:05}"), last(slot)));
    let newest = ("newest".to_owned(), newest);
    slots.chain([newest]).map(|(key, n)| (key.into_bytes(), n)).collect()
}

/// A process that ends when this value is dropped.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Catches up and reads, and checks each answer, until the writer has reported `until` steps.
fn follow(reader: &Db, acknowledged: &AtomicU64, until: u64) -> u32 {
    let second = reader.family("second").unwrap();
    let (mut seen, mut rounds) = (0, 0);
    while acknowledged.load(Ordering::SeqCst) < until {
        let least = acknowledged.load(Ordering::SeqCst);
        reader.catch_up().unwrap();
        let options = ReadOptions::new().snapshot(&reader.snapshot());
        let first = contents(reader, reader.default_family(), &options);
        let newest = first[&b"newest"[..]];
        assert!(newest >= least.max(seen), "{newest} after {least} was told and {seen} seen");
        assert_eq!(first, expected(newest), "round {rounds}");
        assert_eq!(contents(reader, &second, &options), first, "a batch is whole");
        for slot in (0..SPREAD).step_by(37) {
            let key = format!("key{slot:05}");
            let value = reader.get_with(&second, key.as_bytes(), &options).unwrap();
            assert_eq!(value.map(|value| number(&value)), first.get(key.as_bytes()).copied());
        }
        seen = newest;
        rounds += 1;
    }
    rounds
}

#[test]
fn a_reader_beside_a_writer_process_is_never_wrong() {
    let keep = tempfile::tempdir().unwrap();
    let acknowledged = AtomicU64::new(0);
    let rounds = std::thread::scope(|scope| {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "followers::writer_process_writes_until_it_is_killed", "--nocapture"])
            .env(DIR, keep.path())
            .stdout(Stdio::piped())
            .spawn();
        let mut writer = Process(child.unwrap());
        let reports = BufReader::new(writer.0.stdout.take().unwrap());
        let (begun, has_begun) = std::sync::mpsc::channel();
        let acknowledged = &acknowledged;
        scope.spawn(move || {
            for line in reports.lines().map_while(Result::ok) {
                if let Some(n) = line.strip_prefix('@').and_then(|n| n.parse().ok()) {
                    acknowledged.store(n, Ordering::SeqCst);
                    let _wanted_once = begun.send(());
                }
            }
        });
        has_begun.recv().unwrap();
        let options = DbOptions { read_only: true, ..DbOptions::default() };
        let components = busy_components(LocalFs::shared());
        follow(&Db::open_with(keep.path(), options, components).unwrap(), acknowledged, 40_000)
    });
    assert!(rounds > 3, "{rounds} rounds");
    // The writer was killed; its files are read in the same way.
    let options = DbOptions { read_only: true, ..DbOptions::default() };
    let reader = Db::open_with(keep.path(), options, busy_components(LocalFs::shared())).unwrap();
    let all = contents(&reader, reader.default_family(), &ReadOptions::default());
    assert_eq!(all, expected(all[&b"newest"[..]]));
}

#[test]
fn a_reader_beside_a_writer_of_plain_log_files_is_never_wrong() {
    let disk: Arc<dyn FileSystem> = Arc::new(TestDisk::new());
    let writer = Db::open_with("/db", small_db(), busy_components(Arc::clone(&disk))).unwrap();
    let second = writer.create_family("second", busy_family()).unwrap();
    write_step(&writer, &second, 0);
    let options = DbOptions { read_only: true, ..DbOptions::default() };
    let reader = Db::open_with("/db", options, busy_components(Arc::clone(&disk))).unwrap();
    let acknowledged = AtomicU64::new(0);
    let rounds = std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=20_000 {
                write_step(&writer, &second, n);
                acknowledged.store(n, Ordering::SeqCst);
            }
        });
        follow(&reader, &acknowledged, 20_000)
    });
    assert!(rounds > 3, "{rounds} rounds");
}

#[test]
fn a_write_is_never_shown_without_the_ingestion_before_it() {
    let disk: Arc<dyn FileSystem> = Arc::new(TestDisk::new());
    let writer = Db::open_with("/db", small_db(), busy_components(Arc::clone(&disk))).unwrap();
    let options = DbOptions { read_only: true, ..DbOptions::default() };
    let reader = Db::open_with("/db", options, busy_components(Arc::clone(&disk))).unwrap();
    let rows = 150u32;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..rows {
                let family = format!("family {n}");
                let family = writer.create_family(&family, busy_family()).unwrap();
                let file = Path::new("/row.sst");
                let mut table = SstWriter::create(&disk, file, TableOptions::default()).unwrap();
                table.put(b"row", &n.to_be_bytes()).unwrap();
                table.finish().unwrap();
                writer.ingest(&family, &["/row.sst"], &IngestOptions::default()).unwrap();
                writer.put(b"last row", &n.to_be_bytes()).unwrap();
            }
        });
        loop {
            reader.catch_up().unwrap();
            let last = reader.get(b"last row").unwrap();
            let Some(last) = last.map(|last| u32::from_be_bytes(last[..].try_into().unwrap()))
            else {
                continue;
            };
            let family = reader.family(&format!("family {last}")).unwrap();
            let row = reader.get_with(&family, b"row", &ReadOptions::default()).unwrap();
            assert_eq!(row.as_deref(), Some(&last.to_be_bytes()[..]), "row {last}");
            if last + 1 == rows {
                break;
            }
        }
    });
}

/// All operations that change a file or a directory.
const CHANGES: [Operation; 14] = [
    Operation::Create,
    Operation::Append,
    Operation::Flush,
    Operation::Sync,
    Operation::SyncDir,
    Operation::Rename,
    Operation::Remove,
    Operation::Link,
    Operation::CreateDir,
    Operation::RemoveDir,
    Operation::Lock,
    Operation::CreateLog,
    Operation::LogAppend,
    Operation::LogSync,
];

#[test]
fn a_read_only_database_is_verified_without_any_change() {
    let disk = TestDisk::new();
    let writer = open(&disk);
    rewrite(&writer, 400, 1);
    for n in 400..450 {
        rewrite_one(&writer, n);
    }
    let left = disk.kill_clone();
    let faults = FaultFs::new(Arc::new(left.clone()), 1);
    faults.add(Rule::on_any(&CHANGES));
    let options = DbOptions { read_only: true, ..small_db() };
    let components = || Components { fs: Arc::new(faults.clone()), ..over(&left, small_family()) };
    let reader = Db::open_with("/db", options.clone(), components()).unwrap();
    let report = reader.verify(|_, _| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.errors);
    assert!(report.files > 1 && report.log_records >= 50, "{report:?}");
    reader.close().unwrap();
    let table = left.list(Path::new("/db")).unwrap();
    let table = table.iter().find(|entry| entry.name.ends_with(".sst")).unwrap();
    let path = Path::new("/db").join(&table.name);
    let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    let mut bytes = left.read(&path, context).unwrap();
    bytes[100] ^= 1;
    left.write_atomic(&path, &bytes, context).unwrap();
    let reader = Db::open_with("/db", options, components()).unwrap();
    let report = reader.verify(|_, _| {}).unwrap();
    assert_eq!(report.errors.len(), 1, "{:?}", report.errors);
    assert!(report.errors[0].to_string().contains(&table.name));
    reader.close().unwrap();
    assert_eq!(faults.fired_total(), 0, "something tried to write");
}

#[test]
fn a_checkpoint_beside_a_writer_has_the_tables_that_are_held() {
    let disk = TestDisk::new();
    let writer = open(&disk);
    rewrite(&writer, 400, 1);
    let reader = reader_of(&disk);
    rewrite(&writer, 400, 2);
    reader.checkpoint("/copy").unwrap();
    let copy = Db::open_with("/copy", small_db(), over(&disk, small_family())).unwrap();
    assert_eq!(scan(&copy, &ReadOptions::default()).unwrap(), vec![1; 400]);
}
