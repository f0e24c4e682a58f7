//! A database in a process with few file descriptors. The process is this test binary, started
//! again with [`CHILD`] set to its task.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_env::FileSystem;
use archipelago_env::local::LocalFs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Environment variable of a child process. It holds `LIMIT:CASE`.
const CHILD: &str = "ARCHIPELAGO_TEST_DESCRIPTORS";
/// Number of keys in a file; all files have the same keys.
const KEYS: u32 = 20;

/// Runs a case in a child process whose limit of descriptors is `limit`.
fn run_with_limit(limit: u64, case: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "descriptors::child_process", "--nocapture"])
        .env(CHILD, format!("{limit}:{case}"))
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("done: "), "{out}\n{err}");
}

/// The task of the child process. It does nothing in a run of the tests.
#[test]
fn child_process() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let (limit, case) = order.split_once(':').unwrap();
    let current = Some(limit.parse().unwrap());
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    match case {
        "many files of L0" => many_files_of_l0(dir.path()),
        "iterators" => iterators(dir.path()),
        "descriptors are used up" => descriptors_are_used_up(dir.path()),
        other => panic!("there is no case {other}"),
    }
    println!("done: {case}");
}

/// Opens a database that compacts only on request.
fn open(dir: &Path) -> Db {
    let family = CfOptions {
        buckets: 1,
        l0_compaction_trigger: 1000,
        l0_slowdown: 1000,
        l0_stop: 1000,
        ..CfOptions::default()
    };
    let families = [("default".to_owned(), family)].into_iter().collect();
    let components = Components { families, ..Components::default() };
    Db::open_with(dir.join("db"), DbOptions::default(), components).unwrap()
}

fn key(at: u32) -> [u8; 4] {
    at.to_be_bytes()
}

/// Makes `files` files of L0, all of the same keys.
fn fill(db: &Db, files: u32) {
    for file in 0..files {
        for at in 0..KEYS {
            db.put(&key(at), &file.to_be_bytes()).unwrap();
        }
        // Files with range deletes are opened before their turn.
        db.delete_range(
            db.default_family(),
            &key(KEYS + file),
            &key(KEYS + file + 1),
            &WriteOptions::default(),
        )
        .unwrap();
        db.flush(db.default_family()).unwrap();
    }
}

fn files(db: &Db, level: u32) -> u64 {
    let name = format!("archipelago.num-files-at-level{level}");
    db.property(db.default_family(), &name).unwrap().parse().unwrap()
}

fn check(db: &Db, newest: u32) {
    for at in 0..KEYS {
        assert_eq!(db.get(&key(at)).unwrap().as_deref(), Some(&newest.to_be_bytes()[..]));
    }
}

fn count(db: &Db) -> u32 {
    let mut iter = db.iter(db.default_family(), &ReadOptions::new()).unwrap();
    let mut seen = 0;
    iter.seek_to_first();
    while iter.valid() {
        seen += 1;
        iter.next();
    }
    iter.status().unwrap();
    seen
}

fn many_files_of_l0(dir: &Path) {
    for files_made in [16, 100] {
        let db = open(dir);
        fill(&db, files_made);
        assert!(files(&db, 0) >= u64::from(files_made));
        check(&db, files_made - 1);
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        assert_eq!(files(&db, 0), 0);
        check(&db, files_made - 1);
        assert_eq!(count(&db), KEYS);
        db.close().unwrap();
    }
}

fn iterators(dir: &Path) {
    let db = open(dir);
    fill(&db, 100);
    // Each iterator holds all files, and all of them move in turn.
    let mut iters: Vec<_> =
        (0..3).map(|_| db.iter(db.default_family(), &ReadOptions::new()).unwrap()).collect();
    iters.iter_mut().for_each(|iter| iter.seek_to_first());
    for at in 0..KEYS {
        for iter in &mut iters {
            assert!(iter.valid(), "{:?}", iter.status());
            assert_eq!((iter.key(), iter.value()), (&key(at)[..], &99u32.to_be_bytes()[..]));
            iter.next();
        }
        // Writes and flushes go on meanwhile.
        db.put(&key(1000 + at), b"more").unwrap();
        db.flush(db.default_family()).unwrap();
    }
    drop(iters);
    assert_eq!(count(&db), 2 * KEYS);
    db.close().unwrap();
}

/// Opens files until the process may open no more.
#[expect(clippy::disallowed_methods, reason = "it takes descriptors, not files")]
fn take_all_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Other code takes every free descriptor: the database works with those of its tables.
fn descriptors_are_used_up(dir: &Path) {
    let db = open(dir);
    fill(&db, 30);
    check(&db, 29);
    assert_eq!(count(&db), KEYS);
    let _others = take_all_descriptors();
    for round in 0..10u32 {
        db.put(&key(2000 + round), b"more").unwrap();
        db.flush(db.default_family()).unwrap();
        db.sync().unwrap();
    }
    check(&db, 29);
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    assert_eq!(count(&db), KEYS + 10);
    db.close().unwrap();
    // With no table to close, the system's error reaches the caller.
    let _more = take_all_descriptors();
    let error = LocalFs::new().sync_dir(dir).unwrap_err().to_string();
    assert!(error.contains("Too many open files"), "{error}");
}

#[test]
fn sixteen_l0_files_are_compacted_with_forty_descriptors() {
    run_with_limit(40, "many files of L0");
    run_with_limit(64, "many files of L0");
}

#[test]
fn iterators_over_more_files_than_descriptors_work() {
    run_with_limit(64, "iterators");
}

#[test]
fn database_goes_on_when_others_use_up_all_descriptors() {
    run_with_limit(64, "descriptors are used up");
}
