//! Databases whose compactions and garbage collections run in executors, over real links.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::ErrorKind;
use archipelago_engine::db::Components;
use archipelago_engine::executor::{JobExecutor, JobKind, OwnerIdentity};
use archipelago_engine::stats::Ticker;
use archipelago_env::local::LocalFs;
use archipelago_env::stats::CountingFs;
use archipelago_env::{FileClass, IoPurpose};
use archipelago_offload::net::{
    ExecutorServer, ExecutorSettings, OffloadExecutor, OffloadMode, OwnerSettings,
};
use tempfile::TempDir;

use crate::office::Office;
use crate::rounds::{Loaded, wait_until};

fn executor(office: &Office, shares: &[&Path]) -> ExecutorServer {
    executor_of(office.managers(), shares)
}

fn executor_of(managers: Vec<String>, shares: &[&Path]) -> ExecutorServer {
    let settings = ExecutorSettings {
        managers,
        slots: 2,
        shares: shares.iter().map(|share| share.to_path_buf()).collect(),
        volumes: None,
        hosted: None,
        secret: None,
        address: "reef:7".to_owned(),
    };
    ExecutorServer::start(settings).unwrap()
}

/// Opens the database of `base`, whose jobs leave the process.
fn open(base: &TempDir, managers: Vec<String>) -> Loaded {
    open_limited(base, managers, 0)
}

/// The same with a limit of background writes; 0 for none.
fn open_limited(base: &TempDir, managers: Vec<String>, bytes_per_s: u64) -> Loaded {
    let settings =
        OwnerSettings { managers, mode: OffloadMode::Compactions, ..OwnerSettings::default() };
    let jobs = OffloadExecutor::new(settings);
    Loaded::open_limited(&dir_of(base), jobs, Components::default(), bytes_per_s)
}

fn dir_of(base: &TempDir) -> PathBuf {
    base.path().join("db")
}

#[test]
fn compactions_run_in_an_executor() {
    let base = tempfile::tempdir().unwrap();
    let office = Office::start();
    let executor = executor(&office, &[base.path()]);
    let away = open(&base, office.managers());
    let mut rounds = 0;
    while away.away() == 0 || rounds < 4 {
        away.write(rounds);
        away.compact();
        rounds += 1;
        assert!(rounds < 1_000, "{:?}", away.jobs.counters());
    }
    away.check(rounds);
    // The figures below belong together while no job runs.
    away.db.wait_for_background().unwrap();
    assert!(away.jobs.counters().bytes_away > 0);
    assert!(executor.figures().succeeded >= away.away());
    wait_until(|| office.counters().installed > 0);
    away.db.close().unwrap();
}

#[test]
fn invalid_files_are_preferred_only_if_collections_leave() {
    let prefers = |mode, gc_invalid_files| {
        let settings = OwnerSettings { mode, gc_invalid_files, ..OwnerSettings::default() };
        OffloadExecutor::new(settings).prefers_invalid_files()
    };
    for mode in [OffloadMode::Compactions, OffloadMode::All] {
        assert!(prefers(mode, true) && !prefers(mode, false), "{mode:?}");
    }
    for mode in [OffloadMode::Off, OffloadMode::Memtables, OffloadMode::Flushes] {
        assert!(!prefers(mode, true), "{mode:?}");
    }
}

#[test]
fn owner_whose_jobs_leave_needs_a_manager() {
    let owner_of = |mode| {
        let settings = OwnerSettings { mode, ..OwnerSettings::default() };
        OffloadExecutor::new(settings).owner_is(&OwnerIdentity::default())
    };
    let error = owner_of(OffloadMode::All).expect_err("no job could be scheduled");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(owner_of(OffloadMode::Memtables).is_ok(), "no job leaves");
}

#[test]
fn garbage_is_collected_in_an_executor_by_invalid_files() {
    let base = tempfile::tempdir().unwrap();
    let office = Office::start();
    let executor = executor(&office, &[base.path()]);
    // This file system counts the reads of the owner. The executor has a file system of its own.
    let files = CountingFs::new(Arc::new(LocalFs::new()));
    let settings = OwnerSettings {
        managers: office.managers(),
        mode: OffloadMode::Compactions,
        gc_invalid_files: true,
        ..OwnerSettings::default()
    };
    let components = Components { fs: Arc::new(files.clone()), ..Components::default() };
    let away = Loaded::open(&dir_of(&base), OffloadExecutor::new(settings), components);
    let figures = || {
        let counters = away.jobs.counters();
        let collections = away.db.statistics().get(Ticker::GcJobs);
        let keys_read = files.snapshot().of(FileClass::ValueSst, IoPurpose::Gc).read_calls;
        (collections, keys_read, counters.planned_again + counters.ran_here.values().sum::<u64>())
    };
    let mut rounds = 0;
    // A busy machine may run a job here, and the owner reads the keys of a collection that finds
    // too few notes.
    loop {
        let before = figures();
        away.write(rounds);
        away.compact();
        away.db.wait_for_background().unwrap();
        rounds += 1;
        let after = figures();
        if after.0 > before.0 && (after.1, after.2) == (before.1, before.2) {
            break;
        }
        assert!(rounds < 1_000, "{:?}", away.jobs.counters());
    }
    away.check(rounds);
    assert!(executor.figures().succeeded > 0);
    away.db.close().unwrap();
    // The next owner needs no invalid files.
    let away = open(&base, office.managers());
    away.write(rounds);
    away.compact();
    away.check(rounds + 1);
    away.db.close().unwrap();
}

#[test]
fn rate_limit_of_the_database_travels_with_its_jobs() {
    let base = tempfile::tempdir().unwrap();
    let office = Office::start();
    let share = base.path().to_path_buf();
    let first = executor(&office, &[&share]);
    let mut rounds = 0;
    let mut load = |away: &Loaded| {
        while away.away() < 2 {
            away.write(rounds);
            away.compact();
            rounds += 1;
            assert!(rounds < 1_000, "{:?}", away.jobs.counters());
        }
        away.check(rounds);
    };
    let away = open(&base, office.managers());
    load(&away);
    assert_eq!(away.jobs.counters().limited_bytes_away, 0);
    away.db.close().unwrap();
    assert_eq!(first.figures().limited_bytes, 0);
    drop(first);

    let executor = executor(&office, &[&share]);
    let away = open_limited(&base, office.managers(), 1 << 30);
    load(&away);
    // Every byte that an executor wrote for the database was charged.
    let (figures, counters) = (executor.figures(), away.jobs.counters());
    assert_eq!(figures.limited_bytes, figures.bytes_written);
    assert!(counters.limited_bytes_away > 0, "{counters:?}");
    away.db.close().unwrap();

    // If the limit leaves no part for executors, the jobs run here.
    let base = tempfile::tempdir().unwrap();
    let away = open_limited(&base, office.managers(), 64 << 10);
    wait_until(|| {
        away.db.put(b"key", b"value").unwrap();
        away.compact();
        away.jobs.counters().ran_here.contains_key("rate_limit")
    });
    assert_eq!(away.away(), 0);
    away.db.close().unwrap();
}

#[test]
fn jobs_run_here_while_no_manager_or_executor_answers() {
    let base = tempfile::tempdir().unwrap();
    // No process listens at that address.
    let away = open(&base, vec!["tcp:127.0.0.1:9".to_owned()]);
    away.write(0);
    away.compact();
    away.check(1);
    let counters = away.jobs.counters();
    assert_eq!(counters.ran_away, 0);
    assert!(counters.ran_here.contains_key("silent"), "{counters:?}");
    away.db.close().unwrap();

    let office = Office::start();
    let away = open(&base, office.managers());
    away.write(1);
    away.compact();
    away.check(2);
    assert_eq!(away.away(), 0);
    assert!(!away.jobs.counters().ran_here.is_empty(), "{:?}", away.jobs.counters());
    away.db.close().unwrap();
}

#[test]
fn an_executor_refuses_directories_that_are_not_shared() {
    let (base, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let office = Office::start();
    let executor = executor(&office, &[other.path()]);
    let away = open(&base, office.managers());
    let mut rounds = 0;
    // An attempt of a busy machine may fail for another reason.
    let counters = loop {
        away.write(rounds);
        away.compact();
        away.db.wait_for_background().unwrap();
        rounds += 1;
        let counters = away.jobs.counters();
        let reason = counters.last_failure.as_ref().map_or("", |failure| failure.reason.as_str());
        if reason.contains("is not below a shared directory") {
            break counters;
        }
        assert!(rounds < 1_000, "{counters:?}");
    };
    away.check(rounds);
    assert_eq!(counters.ran_away, 0, "{counters:?}");
    assert!(executor.figures().failed > 0, "{counters:?}");
    assert!(counters.planned_again > 0, "{counters:?}");
    // The owner has the reason and the executor.
    assert!(counters.failed_away > 0, "{counters:?}");
    let failure = counters.last_failure.expect("a reason");
    assert_eq!(failure.address.as_str(), "reef:7");
    assert!(away.jobs.facts().contains("offload_last_failure:attempt "), "{}", away.jobs.facts());
    away.db.close().unwrap();
}

#[test]
fn executors_and_schedulers_end_while_jobs_run() {
    let base = tempfile::tempdir().unwrap();
    let office = Office::start();
    let steady = executor(&office, &[base.path()]);
    let away = open(&base, office.managers());
    let mut rounds = 0;
    while away.away() < 3 || rounds < 8 || steady.figures().succeeded == 0 {
        let executor = executor(&office, &[base.path()]);
        away.write(rounds);
        rounds += 1;
        let compacting = std::thread::scope(|scope| {
            let compacting = scope.spawn(|| away.compact());
            if rounds % 2 == 1 {
                office.restart();
            } else {
                drop(executor);
            }
            compacting.join()
        });
        compacting.unwrap();
        assert!(rounds < 200, "executors run nothing: {:?}", away.jobs.counters());
    }
    away.check(rounds);
    away.db.close().unwrap();
    let away = open(&base, office.managers());
    away.check(rounds);
    // No later job changes the number of tables.
    away.db.wait_for_background().unwrap();
    // Each table of the directory is one of the database.
    let named = away.db.verify(|_, _| {}).unwrap().files;
    let tables = || {
        let entries = std::fs::read_dir(dir_of(&base)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".sst")).count() as u64
    };
    wait_until(|| tables() == named);
    away.db.close().unwrap();
}

#[test]
fn job_whose_scheduler_ends_runs_in_an_executor_through_another_one() {
    let base = tempfile::tempdir().unwrap();
    let offices = [Office::start(), Office::start()];
    let managers: Vec<String> = offices.iter().flat_map(Office::managers).collect();
    let executor = executor_of(managers.clone(), &[base.path()]);
    let away = open(&base, managers);
    let mut rounds = 0;
    // One of the managers has the jobs of the database. A busy machine may run a job here.
    while away.jobs.counters().moved_done == 0 {
        for office in &offices {
            away.write(rounds);
            rounds += 1;
            wait_until(|| away.jobs.room(JobKind::Compaction) > 0);
            office.end_scheduler();
            away.compact();
            office.restart();
        }
        assert!(rounds < 200, "{:?}", away.jobs.counters());
    }
    away.check(rounds);
    let counters = away.jobs.counters();
    assert!(counters.moved >= counters.moved_done, "{counters:?}");
    // Each job that left again follows a plan that ended. Several may follow one such plan.
    assert!(counters.planned_again > 0, "{counters:?}");
    assert!(executor.figures().succeeded > 0);
    away.db.close().unwrap();
}
