//! Databases whose compactions and garbage collections run in executors, over real links.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::SystemClock;
use archipelago_base::random::Rng;
use archipelago_engine::db::{Components, Db};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_offload::net::{
    ExecutorServer, ExecutorSettings, OffloadExecutor, OffloadMode, OwnerSettings,
};
use tempfile::TempDir;

use crate::office::Office;

fn executor(office: &Office, shares: &[&Path]) -> ExecutorServer {
    let settings = ExecutorSettings {
        managers: office.managers(),
        slots: 2,
        shares: shares.iter().map(|share| share.to_path_buf()).collect(),
        volumes: None,
        secret: None,
    };
    ExecutorServer::start(settings).unwrap()
}

/// A database with small files and a counter, whose jobs leave the process.
struct Away {
    db: Db,
    jobs: Arc<OffloadExecutor>,
    dir: PathBuf,
}

impl Away {
    fn open(base: &TempDir, managers: Vec<String>) -> Self {
        let settings =
            OwnerSettings { managers, mode: OffloadMode::Compactions, ..OwnerSettings::default() };
        let jobs = OffloadExecutor::new(settings);
        let family = CfOptions {
            merge_operator: Some("u64-counter".to_owned()),
            write_buffer_bytes: 64 << 10,
            target_file_bytes: 16 << 10,
            value_separation_bytes: 512,
            value_file_bytes: 64 << 10,
            ..CfOptions::default()
        };
        let components = Components {
            families: [("default".to_owned(), family)].into_iter().collect(),
            executor: Arc::clone(&jobs) as _,
            ..Components::default()
        };
        let dir = base.path().join("db");
        let db = Db::open_with(&dir, DbOptions::default(), components).unwrap();
        Self { db, jobs, dir }
    }

    /// Writes every key again, with short and long values.
    fn write(&self, round: u32) {
        for n in 0..400u32 {
            let value = value(n, round);
            self.db.put(&key(n), &value).unwrap();
            let one = 1u64.to_le_bytes();
            let cf = self.db.default_family();
            self.db.merge(cf, &counter(n), &one, &WriteOptions::default()).unwrap();
        }
        self.db.flush(self.db.default_family()).unwrap();
    }

    /// Merges everything, so that jobs run now.
    fn compact(&self) {
        self.db.compact_range(self.db.default_family(), &KeyRange::all()).unwrap();
    }

    fn check(&self, rounds: u32) {
        for n in 0..400u32 {
            let got = self.db.get(&key(n)).unwrap();
            assert_eq!(got.as_deref(), Some(&value(n, rounds - 1)[..]), "{n}");
            let got = self.db.get(&counter(n)).unwrap();
            let expected = u64::from(rounds).to_le_bytes();
            assert_eq!(got.as_deref(), Some(&expected[..]), "{n}");
        }
        let report = self.db.verify(|_, _| {}).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }

    fn away(&self) -> u64 {
        self.jobs.counters().ran_away
    }
}

pub(crate) fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

pub(crate) fn counter(n: u32) -> Vec<u8> {
    format!("counter{n:05}").into_bytes()
}

/// The value of a key in a round. Every fourth one is long. A long value does not compress, so that
/// the garbage of value files counts.
pub(crate) fn value(n: u32, round: u32) -> Vec<u8> {
    let mut value = format!("{n} in round {round} ").into_bytes();
    if n.is_multiple_of(4) {
        let mut rng = Rng::with_seed((u64::from(n) << 32) | u64::from(round));
        value.resize_with(1500, || rng.u8(..));
    }
    value
}

/// Waits until a condition holds. The test's own limit ends a wait that has no end.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        SystemClock::shared().sleep(Duration::from_millis(5));
    }
}

#[test]
fn compactions_run_in_an_executor() {
    let base = tempfile::tempdir().unwrap();
    let office = Office::start();
    let executor = executor(&office, &[base.path()]);
    let away = Away::open(&base, office.managers());
    for round in 0..4 {
        away.write(round);
        away.compact();
    }
    away.check(4);
    wait_until(|| away.away() > 0 || !away.jobs.counters().ran_here.is_empty());
    assert!(away.away() > 0, "{:?}", away.jobs.counters());
    assert!(away.jobs.counters().bytes_away > 0);
    assert!(executor.figures().succeeded >= away.away());
    assert!(office.counters().installed > 0);
    away.db.close().unwrap();
}

#[test]
fn jobs_run_here_while_no_manager_or_executor_answers() {
    let base = tempfile::tempdir().unwrap();
    // Nobody listens there.
    let away = Away::open(&base, vec!["tcp:127.0.0.1:9".to_owned()]);
    away.write(0);
    away.compact();
    away.check(1);
    let counters = away.jobs.counters();
    assert_eq!(counters.ran_away, 0);
    assert!(counters.ran_here.contains_key("silent"), "{counters:?}");
    away.db.close().unwrap();

    let office = Office::start();
    let away = Away::open(&base, office.managers());
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
    let away = Away::open(&base, office.managers());
    for round in 0..3 {
        away.write(round);
        away.compact();
    }
    away.check(3);
    let counters = away.jobs.counters();
    assert_eq!(counters.ran_away, 0, "{counters:?}");
    assert!(executor.figures().failed > 0, "{counters:?}");
    assert!(counters.planned_again > 0, "{counters:?}");
    away.db.close().unwrap();
}

#[test]
fn executors_and_schedulers_end_while_jobs_run() {
    let base = tempfile::tempdir().unwrap();
    let office = Office::start();
    let steady = executor(&office, &[base.path()]);
    let away = Away::open(&base, office.managers());
    let mut rounds = 0;
    while away.away() < 3 || rounds < 8 {
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
    assert!(steady.figures().succeeded > 0);
    away.db.close().unwrap();
    let away = Away::open(&base, office.managers());
    away.check(rounds);
    // Each table of the directory is one of the database.
    let named = away.db.verify(|_, _| {}).unwrap().files;
    let tables = || {
        let entries = std::fs::read_dir(&away.dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".sst")).count() as u64
    };
    wait_until(|| tables() == named);
    away.db.close().unwrap();
}
