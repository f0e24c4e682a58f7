//! A database with separated values and garbage, stepped by the test, and its expected content.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{BackgroundMode, ColumnFamily, Components, Db, ReadOptions};
use archipelago_engine::extension::{CompactionFilter, FilterDecision};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use parking_lot::Mutex;

use super::{Separation, audit, audit_at_rest};
use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

/// Keys of a world.
pub(super) const KEYS: u32 = 160;

/// Expected content of a family.
pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

type Action = Box<dyn FnOnce() -> Result<()> + Send>;

/// Runs an action once when a job reaches a fault point, and may starve the collector.
#[derive(Default)]
pub(super) struct Hook {
    armed: Mutex<Option<(&'static str, Action)>>,
    starves: AtomicBool,
}

impl Hook {
    /// Runs `action` the next time that a job reaches `point`.
    pub(super) fn at(
        &self,
        point: &'static str,
        action: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        *self.armed.lock() = Some((point, Box::new(action)));
    }

    /// Whether the action has not run yet.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.lock().is_some()
    }

    /// Sets whether the collector gets no job.
    pub(super) fn starve(&self, starves: bool) {
        self.starves.store(starves, Ordering::Relaxed);
    }

    pub(super) fn reached(&self, name: &str) -> Result<()> {
        if name == "gc.pick" {
            return match self.starves.load(Ordering::Relaxed) {
                true => Err(Error::busy("the collector starves")),
                false => Ok(()),
            };
        }
        let action = {
            let mut armed = self.armed.lock();
            armed.take_if(|(point, _)| *point == name)
        };
        action.map_or(Ok(()), |(_, action)| action())
    }
}

/// A clock that an operator can set back.
#[derive(Debug)]
pub(super) struct WallClock {
    steady: ManualClock,
    unix_ms: AtomicU64,
}

impl WallClock {
    pub(super) fn set(&self, unix_ms: u64) {
        self.unix_ms.store(unix_ms, Ordering::Relaxed);
    }
}

impl Clock for WallClock {
    fn now_ns(&self) -> u64 {
        self.steady.now_ns()
    }

    fn unix_ms(&self) -> u64 {
        self.unix_ms.load(Ordering::Relaxed)
    }

    fn sleep(&self, duration: Duration) {
        self.steady.sleep(duration);
    }
}

/// A filter that wants values. It appends a tilde to values of keys that end with 7, and runs an
/// action at one of its calls.
#[derive(Default)]
pub(super) struct Tilde {
    paused: AtomicBool,
    calls: AtomicU64,
    action: Mutex<Option<(u64, Action)>>,
}

impl Tilde {
    /// Sets whether every value stays as it is.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Runs `action` at the call after `calls` others from now on.
    pub(super) fn after(&self, calls: u64, action: impl FnOnce() -> Result<()> + Send + 'static) {
        let at = self.calls.load(Ordering::Relaxed) + calls;
        *self.action.lock() = Some((at, Box::new(action)));
    }

    /// Result of the filter for a value.
    pub(super) fn applied(key: &[u8], value: &[u8]) -> Vec<u8> {
        let is_changed = key.ends_with(b"7") && !value.ends_with(b"~");
        [value, if is_changed { b"~" } else { b"" }].concat()
    }
}

impl CompactionFilter for Tilde {
    fn name(&self) -> &str {
        "tilde"
    }

    fn filter(&self, key: &[u8], value: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let action = self.action.lock().take_if(|(at, _)| *at <= call);
        if let Some((_, action)) = action {
            action().unwrap();
        }
        match Self::applied(key, value) {
            _ if self.paused.load(Ordering::Relaxed) => FilterDecision::Keep,
            changed if changed != value => FilterDecision::Change(changed),
            _ => FilterDecision::Keep,
        }
    }
}

pub(super) fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// A value, mostly a large one.
pub(super) fn value(n: u32, round: u32) -> Vec<u8> {
    let len = [20, 100, 700, 2500][(n + round) as usize % 4];
    let mut value = format!("{round}:{n}:").into_bytes();
    value.extend((0..len).map(|at| (at * 31 + n as usize * 7 + round as usize) as u8 | 1));
    value.push(b'.');
    value
}

pub(super) struct World {
    pub(super) fs: TestDisk,
    pub(super) db: Db,
    pub(super) hook: Arc<Hook>,
    pub(super) clock: Arc<WallClock>,
    pub(super) filter: Arc<Tilde>,
    pub(super) model: Model,
    family: CfOptions,
    options: DbOptions,
    background: BackgroundMode,
}

impl World {
    /// An empty world with small settings, except those that `change` sets.
    pub(super) fn new(change: impl FnOnce(&mut CfOptions)) -> Self {
        let mut family = Separation::EAGER.of(CfOptions {
            level_base_bytes: 16 << 10,
            target_file_bytes: 4 << 10,
            l0_compaction_trigger: 2,
            ..small_family()
        });
        change(&mut family);
        Self::over(TestDisk::new(), family, BackgroundMode::Manual)
    }

    pub(super) fn over(fs: TestDisk, family: CfOptions, background: BackgroundMode) -> Self {
        let hook = Arc::<Hook>::default();
        let clock =
            Arc::new(WallClock { steady: ManualClock::new(0), unix_ms: AtomicU64::new(1_000_000) });
        let filter = Arc::<Tilde>::default();
        let options = DbOptions { subcompactions_max: 8, ..small_db() };
        let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let parts = Parts { hook: &hook, clock: &clock, filter: &filter, background };
        let db = open(&shared, &family, &options, &parts).unwrap();
        let model = Model::new();
        Self { fs, db, hook, clock, filter, model, family, options, background }
    }

    /// Opens the remaining files on another disk.
    pub(super) fn on(&self, fs: TestDisk) -> Self {
        let mut world = Self::over(fs, self.family.clone(), self.background);
        world.model.clone_from(&self.model);
        world
    }

    /// Opens the remaining files on another disk, through a file system over it.
    pub(super) fn open_through(&self, fs: &Arc<dyn FileSystem>) -> Result<Db> {
        let (hook, clock, filter) = (&self.hook, &self.clock, &self.filter);
        let background = self.background;
        open(fs, &self.family, &self.options, &Parts { hook, clock, filter, background })
    }

    pub(super) fn cf(&self) -> &ColumnFamily {
        self.db.default_family()
    }

    pub(super) fn put(&mut self, n: u32, round: u32) {
        let (key, value) = (key(n), value(n, round));
        patiently(&self.db, || self.db.put(&key, &value));
        self.model.insert(key, value);
    }

    /// Writes every key for which `is` holds.
    pub(super) fn fill(&mut self, round: u32, is: impl Fn(u32) -> bool) {
        for n in (0..KEYS).filter(|&n| is(n)) {
            self.put(n, round);
        }
    }

    pub(super) fn compact(&self) {
        self.db.flush(self.cf()).unwrap();
        self.db.compact_range(self.cf(), &KeyRange::all()).unwrap();
    }

    /// Two rounds of writes, of which the second leaves garbage that nobody has collected.
    pub(super) fn expose_garbage(&mut self) {
        self.hook.starve(true);
        self.fill(0, |_| true);
        self.compact();
        self.fill(1, |n| n % 3 != 0);
        self.compact();
        self.db.wait_for_background().unwrap();
        self.hook.starve(false);
        assert!(audit(&self.db).garbage_bytes > 0);
    }

    pub(super) fn collections(&self) -> u64 {
        self.db.statistics().get(Ticker::GcJobs)
    }

    pub(super) fn settle(&self) {
        self.db.flush(self.cf()).unwrap();
        self.db.wait_for_background().unwrap();
    }

    /// Runs all due work except garbage collection.
    pub(super) fn settle_with_starved_collector(&self) {
        self.hook.starve(true);
        self.settle();
        self.hook.starve(false);
    }

    /// Checks that the content of the database is that of the model.
    pub(super) fn check(&self) {
        check_at(&self.db, self.cf(), &ReadOptions::default(), &self.model);
        audit(&self.db);
    }

    /// Ends a case without readers: the content is right, and stays so through a compaction, a
    /// power loss and a reopening.
    pub(super) fn finish(self) {
        self.check();
        self.settle();
        self.check();
        self.compact();
        self.db.wait_for_background().unwrap();
        self.check();
        if self.background == BackgroundMode::Manual {
            audit_at_rest(&self.db);
        }
        assert!(self.db.verify(|_, _| {}).unwrap().is_clean());
        let left = self.on(self.fs.crash_clone(11));
        left.check();
        audit_at_rest(&left.db);
        let (fs, model) = (self.fs.clone(), self.model.clone());
        let again = Self { model, ..self };
        again.db.clone().close().unwrap();
        let again = again.on(fs);
        again.check();
        audit_at_rest(&again.db);
    }
}

struct Parts<'a> {
    hook: &'a Arc<Hook>,
    clock: &'a Arc<WallClock>,
    filter: &'a Arc<Tilde>,
    background: BackgroundMode,
}

fn open(
    fs: &Arc<dyn FileSystem>,
    family: &CfOptions,
    options: &DbOptions,
    parts: &Parts<'_>,
) -> Result<Db> {
    let hook = Arc::clone(parts.hook);
    let mut components = Components {
        fs: Arc::clone(fs),
        clock: Arc::clone(parts.clock) as _,
        fault_point: Some(Arc::new(move |name| hook.reached(name))),
        background: parts.background,
        ..over(&TestDisk::new(), family.clone())
    };
    components.registry.add_compaction_filter(Arc::clone(parts.filter) as _);
    Db::open_with("/db", options.clone(), components)
}

/// Repeats a write as long as it waits for background work, which it steps.
pub(super) fn patiently(db: &Db, write: impl Fn() -> Result<()>) {
    while let Err(error) = write() {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(db.step_background().unwrap(), "busy for ever");
    }
}

/// Steps background work until none is due.
pub(super) fn step_all(db: &Db) -> Result<()> {
    while db.step_background()? {}
    Ok(())
}

/// Checks that every kind of read agrees with the model.
pub(super) fn check_at(db: &Db, cf: &ColumnFamily, options: &ReadOptions, model: &Model) {
    let keys: Vec<&[u8]> = model.keys().map(Vec::as_slice).collect();
    let many = db.multi_get(cf, &keys, options).unwrap();
    for ((key, value), found) in model.iter().zip(many) {
        let shown = key.escape_ascii();
        assert!(found.as_deref() == Some(value.as_slice()), "multi_get of {shown}");
        let one = db.get_with(cf, key, options).unwrap();
        assert!(one.as_deref() == Some(value.as_slice()), "get of {shown}");
    }
    let mut iter = db.iter(cf, options).unwrap();
    iter.seek_to_first();
    let mut rows = model.iter();
    while iter.valid() {
        let (key, value) = rows.next().expect("no more rows than the model has");
        assert!((iter.key(), iter.value()) == (key, value), "{}", key.escape_ascii());
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!(rows.next().map(|(key, _)| key), None, "forwards");
    iter.seek_to_last();
    for (key, value) in model.iter().rev() {
        assert!(iter.valid(), "{}: {:?}", key.escape_ascii(), iter.status());
        assert!((iter.key(), iter.value()) == (key, value), "{}", key.escape_ascii());
        iter.prev();
    }
    assert!(!iter.valid() && iter.status().is_ok(), "backwards");
}

/// A write that a power loss does not undo.
pub(super) fn synced() -> WriteOptions {
    WriteOptions::synced()
}
