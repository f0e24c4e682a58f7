//! A database whose write-ahead log lies in a directory of another file system. Each write must
//! survive as on one file system, and no open may miss the log.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{ErrorKind, Result};
use archipelago_engine::db::{Components, Db};
use archipelago_engine::options::{DbOptions, WriteOptions};
use archipelago_engine::repair::{RepairOptions, repair, verify_files};
use archipelago_env::FileSystem;
use archipelago_env::mem::MemFs;
use archipelago_env::separate_log::SeparateLogFs;

use crate::support::{small_db, stepped};

const DIR: &str = "/db";

/// The disk of the tables, and that of the log.
#[derive(Clone)]
struct Disks {
    files: MemFs,
    log: MemFs,
}

impl Disks {
    fn new() -> Self {
        Self { files: MemFs::new(), log: MemFs::new() }
    }

    fn fs(&self) -> Arc<dyn FileSystem> {
        let (files, log) = (Arc::new(self.files.clone()), Arc::new(self.log.clone()));
        SeparateLogFs::open(files, Path::new(DIR), log, Path::new("/wal"), true).unwrap()
    }

    fn open(&self, options: DbOptions) -> Result<Db> {
        open_over(self.fs(), DIR, options)
    }

    fn after_kill(&self) -> Self {
        Self { files: self.files.kill_clone(), log: self.log.kill_clone() }
    }

    fn after_power_loss(&self, seed: u64) -> Self {
        Self { files: self.files.crash_clone(seed), log: self.log.crash_clone(seed + 1) }
    }
}

fn open_over(fs: Arc<dyn FileSystem>, dir: &str, options: DbOptions) -> Result<Db> {
    Db::open_with(dir, options, Components { fs, seed: Some(1), ..stepped() })
}

fn segments(fs: &MemFs, dir: &str) -> usize {
    let entries = fs.list(Path::new(dir)).unwrap();
    entries.iter().filter(|entry| entry.name.ends_with(".log")).count()
}

fn refused(opened: Result<Db>) -> String {
    let error = opened.map(drop).expect_err("the open is refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error.to_string()
}

#[test]
fn writes_survive_with_their_log_elsewhere() {
    let disks = Disks::new();
    let db = disks.open(small_db()).unwrap();
    let place = db.owner().unwrap().log_place;
    assert!(place.starts_with("/wal of "), "{place}");
    for number in 0..500u32 {
        db.put(&number.to_be_bytes(), &[7; 400]).unwrap();
    }
    assert_eq!(segments(&disks.files, DIR), 0, "no part of the log lies with the tables");
    assert!(segments(&disks.log, "/wal") > 0);
    let killed = disks.after_kill();
    let again = killed.open(small_db()).unwrap();
    for number in 0..500u32 {
        assert!(again.get(&number.to_be_bytes()).unwrap().is_some(), "{number}");
    }
    drop(again);
    let synced = WriteOptions { sync: true, ..WriteOptions::default() };
    db.put_with(db.default_family(), b"synced", b"1", &synced).unwrap();
    for seed in 0..20 {
        let crashed = disks.after_power_loss(seed).open(small_db()).unwrap();
        assert!(crashed.get(b"synced").unwrap().is_some(), "seed {seed}");
        assert!(crashed.get(&499u32.to_be_bytes()).unwrap().is_some(), "seed {seed}");
    }
}

#[test]
fn open_without_the_log_is_refused_with_its_place() {
    let disks = Disks::new();
    let db = disks.open(small_db()).unwrap();
    db.put(b"a", b"1").unwrap();
    db.close().unwrap();
    let plain: Arc<dyn FileSystem> = Arc::new(disks.files.clone());
    for read_only in [false, true] {
        let options = DbOptions { read_only, ..small_db() };
        let said = refused(open_over(Arc::clone(&plain), DIR, options.clone()));
        assert!(said.contains("lies in /wal of "), "{said}");
        // Another machine has an empty directory of this name.
        let said = refused(Disks { log: MemFs::new(), ..disks.clone() }.open(options));
        assert!(
            said.contains("lies in /wal of ") && said.contains("look for it in /wal"),
            "{said}"
        );
    }
    let again = disks.open(small_db()).unwrap();
    assert!(again.get(b"a").unwrap().is_some(), "the refusals changed nothing");
    // A checkpoint has no log, so its log may lie anywhere.
    again.checkpoint("/copy").unwrap();
    let copy = open_over(plain, "/copy", small_db()).unwrap();
    assert!(copy.get(b"a").unwrap().is_some());
    assert_eq!(copy.owner().unwrap().log_place, "");
}

#[test]
fn log_of_an_existing_database_stays_where_it_is() {
    let disks = Disks::new();
    let plain: Arc<dyn FileSystem> = Arc::new(disks.files.clone());
    let db = open_over(Arc::clone(&plain), DIR, small_db()).unwrap();
    db.put(b"a", b"1").unwrap();
    drop(db);
    let said = refused(disks.open(small_db()));
    assert!(said.contains("chosen when a database is created"), "{said}");
    let again = open_over(plain, DIR, small_db()).unwrap();
    assert!(again.get(b"a").unwrap().is_some(), "the refusal changed nothing");
}

#[test]
fn log_directory_of_another_database_is_refused() {
    let disks = Disks::new();
    let db = disks.open(small_db()).unwrap();
    db.put(b"a", b"1").unwrap();
    db.close().unwrap();
    let other = Disks { files: MemFs::new(), log: disks.log.clone() };
    assert!(other.open(small_db()).is_err());
    let again = disks.open(small_db()).unwrap();
    assert!(again.get(b"a").unwrap().is_some(), "its log is untouched");
}

#[test]
fn repair_and_verify_report_a_log_that_they_do_not_read() {
    let disks = Disks::new();
    let db = disks.open(small_db()).unwrap();
    db.put(b"a", b"1").unwrap();
    // The process dies, so no mark next to the tables tells how long the log was.
    let killed = disks.after_kill();
    let dry = RepairOptions { dry_run: true, ..RepairOptions::default() };
    let repaired = |fs: &Arc<dyn FileSystem>| {
        repair(fs, Path::new(DIR), Path::new("/repaired"), dry, |_| {}).unwrap()
    };
    let verified =
        |fs: &Arc<dyn FileSystem>| verify_files(fs, Path::new(DIR), |_| {}).unwrap().errors;
    let whole = repaired(&killed.fs());
    let is_elsewhere = |file: &str| file.starts_with("/wal of ");
    assert!(!whole.losses.iter().any(|loss| is_elsewhere(&loss.file)), "{whole}");
    assert!(whole.log_records > 0, "{whole}");
    let plain: Arc<dyn FileSystem> = Arc::new(killed.files.clone());
    let without = repaired(&plain);
    assert!(without.losses.iter().any(|loss| is_elsewhere(&loss.file)), "{without}");
    let errors = verified(&plain);
    assert!(errors.iter().any(|error| error.to_string().contains("was not read")), "{errors:?}");
    let errors = verified(&killed.fs());
    assert!(!errors.iter().any(|error| error.to_string().contains("was not read")), "{errors:?}");
    // The other way round: the log lies with the tables, and a log directory hides it.
    let disks = Disks::new();
    let plain: Arc<dyn FileSystem> = Arc::new(disks.files.clone());
    let db = open_over(plain, DIR, small_db()).unwrap();
    db.put(b"a", b"1").unwrap();
    let without = repaired(&disks.after_kill().fs());
    assert!(without.losses.iter().any(|loss| loss.file == DIR), "{without}");
    drop(db);
}
