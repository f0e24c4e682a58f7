//! Compactions that are cut into parts: their events, the state after the failure of one part, that
//! scheduling counts them as one job, and which bucket's compaction is cut without a setting.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind};
use archipelago_engine::db::{BackgroundMode, Components, Db, FaultPoint};
use archipelago_engine::event::{Event, EventListener};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use parking_lot::Mutex;

use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

const KEYS: u32 = 2000;
/// Number of times that each key is written, deleted or merged.
const ROUNDS: u32 = 3;

/// Events of one run.
#[derive(Default)]
struct Told {
    /// For each compaction out of L0 that wrote: threads, and numbers of its outputs.
    compactions: Mutex<Vec<(usize, Vec<u64>)>>,
    errors: Mutex<Vec<String>>,
}

impl EventListener for Told {
    fn on_event(&self, event: &Event) {
        match event {
            Event::CompactionInstalled { from: 0, outputs, threads_ns, bytes_written, .. }
                if *bytes_written > 0 =>
            {
                self.compactions.lock().push((threads_ns.len(), outputs.clone()));
            }
            Event::BackgroundError { error, .. } => self.errors.lock().push(error.to_string()),
            _ => {}
        }
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// Memtables of many target files, all in one bucket.
fn family() -> CfOptions {
    CfOptions {
        buckets: 1,
        write_buffer_bytes: 64 << 10,
        level_base_bytes: 1 << 20,
        target_file_bytes: 8 << 10,
        l0_compaction_trigger: 2,
        merge_operator: Some("append".to_owned()),
        ..small_family()
    }
}

/// A database to open: which threads run its background work, and its settings.
struct Opened {
    background: BackgroundMode,
    options: DbOptions,
}

fn options(background: BackgroundMode, subcompactions_max: usize) -> Opened {
    Opened { background, options: DbOptions { subcompactions_max, ..small_db() } }
}

fn open(disk: &TestDisk, opened: Opened, told: &Arc<Told>, fault: Option<FaultPoint>) -> Db {
    open_with(disk, family(), opened, told, fault)
}

fn open_with(
    disk: &TestDisk,
    family: CfOptions,
    opened: Opened,
    told: &Arc<Told>,
    fault: Option<FaultPoint>,
) -> Db {
    let Opened { background, options } = opened;
    let mut components = Components { background, fault_point: fault, ..over(disk, family) };
    components.listeners.add(Arc::clone(told) as _);
    Db::open_with("/db", options, components).unwrap()
}

/// Puts, merges and deletes of keys and ranges; flushes end the rounds.
fn fill(db: &Db) {
    let cf = db.default_family();
    let options = WriteOptions::default();
    for round in 0..ROUNDS {
        for n in 0..KEYS {
            let value = format!("{round} {n} {}", "v".repeat(40));
            match (n + round) % 7 {
                0 => db.delete(&key(n)),
                1 => db.merge(cf, &key(n), b"+more", &options),
                _ => db.put(&key(n), value.as_bytes()),
            }
            .or_else(|error| match error.kind() {
                ErrorKind::Busy => db.step_background().map(drop),
                _ => Err(error),
            })
            .unwrap();
        }
        let start = 300 + round * 400;
        db.delete_range(cf, &key(start), &key(start + 250), &options).unwrap();
        db.flush(cf).unwrap();
    }
}

fn contents(db: &Db) -> Vec<Option<Vec<u8>>> {
    (0..KEYS).map(|n| db.get(&key(n)).unwrap().map(|value| value.to_vec())).collect()
}

fn tables(disk: &TestDisk) -> u64 {
    let entries = disk.list(Path::new("/db")).unwrap();
    entries.iter().filter(|entry| entry.name.ends_with(".sst")).count() as u64
}

/// Checks that all keys are readable, and that no unneeded table exists (threads may still have to
/// remove some).
fn check_clean(db: &Db, disk: &TestDisk, background: BackgroundMode) {
    let report = db.verify(|_, _| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
    if background == BackgroundMode::Threads {
        return;
    }
    db.wait_for_background().unwrap();
    let report = db.verify(|_, _| {}).unwrap();
    assert_eq!(tables(disk), report.files, "tables that nobody needs are left");
}

#[test]
fn parts_are_installed_together_and_change_no_answer() {
    let mut answers = Vec::new();
    for background in [BackgroundMode::Manual, BackgroundMode::Threads] {
        for most in [1, 3, 8] {
            let (disk, told) = (TestDisk::new(), Arc::new(Told::default()));
            let db = open(&disk, options(background, most), &told, None);
            fill(&db);
            db.wait_for_background().unwrap();
            let seen = contents(&db);
            let automatic = std::mem::take(&mut *told.compactions.lock());
            assert!(automatic.iter().all(|(threads, _)| *threads <= most), "{automatic:?}");
            // The number of files in L0 before threads compact them varies.
            let least = if background == BackgroundMode::Manual { most } else { most.min(2) };
            let cut = |(threads, outputs): &(usize, Vec<u64>)| {
                *threads >= least && outputs.len() >= *threads
            };
            assert!(automatic.iter().any(cut), "none had {least} parts: {automatic:?}");
            let parts: usize =
                automatic.iter().map(|(threads, _)| threads).filter(|n| **n > 1).sum();
            assert_eq!(db.statistics().get(Ticker::Subcompactions), parts as u64);
            db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
            assert_eq!(contents(&db), seen, "{most} parts");
            check_clean(&db, &disk, background);
            db.close().unwrap();
            let db = open(&disk, options(background, most), &told, None);
            assert_eq!(contents(&db), seen, "{most} parts, reopened");
            assert!(told.errors.lock().is_empty());
            answers.push(seen);
        }
    }
    assert!(answers.iter().all(|other| *other == answers[0]));
}

#[test]
fn a_part_that_fails_ends_the_others_and_the_job_is_tried_again() {
    for background in [BackgroundMode::Manual, BackgroundMode::Threads] {
        for failing in 1..=3 {
            let (disk, told) = (TestDisk::new(), Arc::new(Told::default()));
            // The `failing`th part fails; the other parts of the job are then ended or removed.
            let parts = Arc::new(Mutex::new(0));
            let seen = Arc::clone(&parts);
            let fault: FaultPoint = Arc::new(move |name| {
                if name != "compaction.part" {
                    return Ok(());
                }
                *seen.lock() += 1;
                match *seen.lock() == failing {
                    true => Err(Error::new(ErrorKind::Io, "a part failed, says the test")),
                    false => Ok(()),
                }
            });
            // No job runs by itself until all data is in L0.
            let quiet = options(BackgroundMode::Manual, 1);
            let db = open(&disk, quiet, &told, None);
            fill(&db);
            let expected = contents(&db);
            db.close().unwrap();
            told.compactions.lock().clear();
            let db = open(&disk, options(background, 3), &told, Some(fault));
            let before = tables(&disk);
            let compacted = db.compact_range(db.default_family(), &KeyRange::all());
            let error = compacted.err().map(|error| error.to_string());
            // A worker may have got the error, and may report it soon.
            for _ in 0..10_000 {
                if error.is_some() || !told.errors.lock().is_empty() {
                    break;
                }
                std::thread::yield_now();
                let _ = db.wait_for_background();
            }
            let told_of = told.errors.lock().first().cloned();
            let text = error.or(told_of).unwrap_or_default();
            assert!(text.contains("a part failed"), "{background:?} {failing}: {text}");
            if background == BackgroundMode::Manual {
                assert_eq!(told.compactions.lock().len(), 0, "nothing is installed");
                assert_eq!(tables(&disk), before, "what the other parts wrote is gone");
            }
            assert!(*parts.lock() >= failing);
            assert_eq!(contents(&db), expected);
            while db.compact_range(db.default_family(), &KeyRange::all()).is_err() {}
            let installed = told.compactions.lock().len();
            assert!(installed > 0);
            assert_eq!(contents(&db), expected);
            check_clean(&db, &disk, background);
        }
    }
}

/// Writes `keys` into each of six memtables after a memtable of all keys, and compacts. Returns the
/// largest number of parts of a compaction.
fn most_parts(jobs: usize, buckets_dynamic: bool, keys: &[u32]) -> usize {
    let (disk, told) = (TestDisk::new(), Arc::new(Told::default()));
    let mut opened = options(BackgroundMode::Manual, 1);
    opened.options.max_background_jobs = jobs;
    let family = CfOptions { buckets: 4, buckets_dynamic, ..family() };
    let db = open_with(&disk, family, opened, &told, None);
    let cf = db.default_family();
    for n in 0..KEYS / 4 {
        db.put(&key(4 * n), b"of the first map").unwrap();
    }
    db.flush(cf).unwrap();
    for round in 0..6 {
        for &n in keys {
            db.put(&key(n), format!("{round} {n} {}", "v".repeat(60)).as_bytes()).unwrap();
        }
        db.flush(cf).unwrap();
    }
    db.wait_for_background().unwrap();
    for &n in keys {
        let value = db.get(&key(n)).unwrap().unwrap();
        assert!(value.starts_with(format!("5 {n} ").as_bytes()));
    }
    check_clean(&db, &disk, BackgroundMode::Manual);
    let compactions = told.compactions.lock();
    compactions.iter().map(|(threads, _)| *threads).max().unwrap()
}

#[test]
fn compaction_of_a_hot_bucket_uses_the_idle_jobs() {
    let hot: Vec<u32> = (0..200).collect();
    let spread: Vec<u32> = (0..KEYS).step_by(4).collect();
    assert!((2..=4).contains(&most_parts(4, true, &hot)), "one bucket takes all of the load");
    assert_eq!(most_parts(4, true, &spread), 1, "no bucket is hot");
    assert_eq!(most_parts(1, true, &hot), 1, "no job is idle");
    assert_eq!(most_parts(4, false, &hot), 1, "boundaries that stay have no temperature");
}
