//! A database that tests load in rounds, with the jobs that leave its process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::SystemClock;
use archipelago_base::random::Rng;
use archipelago_engine::db::{Components, Db};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_offload::net::OffloadExecutor;

/// Keys of each kind: with values, and with counters.
const KEYS: u32 = 400;

/// A database with small files and counters, whose jobs leave the process.
pub(crate) struct Loaded {
    pub(crate) db: Db,
    pub(crate) jobs: Arc<OffloadExecutor>,
}

impl Loaded {
    /// Opens the database in `dir` on the file system of `components`.
    pub(crate) fn open(dir: &Path, jobs: Arc<OffloadExecutor>, components: Components) -> Self {
        Self::open_limited(dir, jobs, components, 0)
    }

    /// The same with a limit of background writes; 0 for none.
    pub(crate) fn open_limited(
        dir: &Path,
        jobs: Arc<OffloadExecutor>,
        components: Components,
        rate_limit_bytes_per_s: u64,
    ) -> Self {
        let family = CfOptions {
            merge_operator: Some("u64-counter".to_owned()),
            write_buffer_bytes: 64 << 10,
            target_file_bytes: 16 << 10,
            value_separation_bytes: 512,
            value_file_bytes: 64 << 10,
            ..CfOptions::default()
        };
        let options = DbOptions { rate_limit_bytes_per_s, ..DbOptions::default() };
        let components = Components {
            families: [("default".to_owned(), family)].into_iter().collect(),
            executor: Arc::clone(&jobs) as _,
            ..components
        };
        let db = Db::open_with(dir, options, components).unwrap();
        Self { db, jobs }
    }

    /// Writes every key again, with short and long values, and adds one to each counter. Most long
    /// values are then written a second time, so that value files are garbage in part.
    pub(crate) fn write(&self, round: u32) {
        let cf = self.db.default_family();
        for n in 0..KEYS {
            self.db.put(&key(n), &value(n, round)).unwrap();
            let one = 1u64.to_le_bytes();
            self.db.merge(cf, &counter(n), &one, &WriteOptions::default()).unwrap();
        }
        self.db.flush(cf).unwrap();
        for n in (0..KEYS).step_by(4).filter(|n| !n.is_multiple_of(16)) {
            self.db.put(&key(n), &value(n, round)).unwrap();
        }
        self.db.flush(cf).unwrap();
    }

    /// Merges everything, so that jobs run now.
    pub(crate) fn compact(&self) {
        self.db.compact_range(self.db.default_family(), &KeyRange::all()).unwrap();
    }

    /// Checks that the database has exactly these rounds, and that its files are undamaged.
    pub(crate) fn check(&self, rounds: u32) {
        for n in 0..KEYS {
            let got = self.db.get(&key(n)).unwrap();
            assert_eq!(got.as_deref(), Some(&value(n, rounds - 1)[..]), "{n}");
            let got = self.db.get(&counter(n)).unwrap();
            let expected = u64::from(rounds).to_le_bytes();
            assert_eq!(got.as_deref(), Some(&expected[..]), "{n}");
        }
        let report = self.db.verify(|_, _| {}).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }

    /// Number of jobs that have ended in an executor.
    pub(crate) fn away(&self) -> u64 {
        self.jobs.counters().ran_away
    }
}

pub(crate) fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

fn counter(n: u32) -> Vec<u8> {
    format!("counter{n:05}").into_bytes()
}

/// The value of a key in a round. Every fourth one is long. A long value does not compress, so that
/// the garbage of value files counts.
fn value(n: u32, round: u32) -> Vec<u8> {
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
