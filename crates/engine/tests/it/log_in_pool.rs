//! The log of a database on a storage pool. Writers wait only for their own records, whatever else
//! the pool does, and a buffered log keeps its guarantees.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::spawn::{Spawn as _, SystemSpawn};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::mem::MemFs;
use archipelago_env::{FileLock, FileSystem, GroupAccess, IoContext, ReadLease};
use archipelago_store::StoreFs;
use archipelago_store::memory::{Fault, MemoryPool, PoolCall};
use archipelago_store::volume::{Volume, VolumeOptions};
use parking_lot::{Condvar, Mutex};

use crate::support::{in_threads, small_db, stepped};

/// Time after which a test that makes no progress fails instead of hanging.
const GUARD: Duration = Duration::from_secs(60);

fn volume_options() -> VolumeOptions {
    VolumeOptions { take_over: true, ..VolumeOptions::new("the tests") }
}

fn new_pool(seed: u64) -> MemoryPool {
    let pool = MemoryPool::new(seed);
    Volume::create(&pool.stores(), "db", &volume_options()).unwrap();
    pool
}

fn files_of(pool: &MemoryPool) -> Arc<StoreFs> {
    StoreFs::new(Volume::open(&pool.stores(), "db", &volume_options()).unwrap())
}

/// A database whose memtables hold everything that a test writes.
fn open_over(fs: Arc<dyn FileSystem>, options: DbOptions, components: Components) -> Db {
    let families = [("default".to_owned(), CfOptions::default())].into_iter().collect();
    Db::open_with("/db", options, Components { fs, families, ..components }).unwrap()
}

fn open(pool: &MemoryPool, options: DbOptions) -> Db {
    open_over(files_of(pool), options, in_threads(Components::default()))
}

/// A database whose background work does not run, so that no buffer is sent by itself.
fn open_stepped(pool: &MemoryPool, options: DbOptions) -> Db {
    open_over(files_of(pool), options, stepped())
}

fn buffered(bytes: u64) -> DbOptions {
    DbOptions { log_buffer_bytes: bytes, ..small_db() }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Calls of one kind that do not return until they are let through.
#[derive(Debug, Default)]
struct Gate {
    held: Mutex<HashSet<PoolCall>>,
    changed: Condvar,
    waiting: AtomicU64,
}

impl Gate {
    fn over(pool: &MemoryPool) -> Arc<Self> {
        let gate = Arc::new(Self::default());
        let passed = Arc::clone(&gate);
        pool.on_call(Arc::new(move |_, call| passed.pass(call)));
        gate
    }

    fn pass(&self, call: PoolCall) {
        let mut held = self.held.lock();
        if held.contains(&call) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.changed.notify_all();
            self.changed.wait_while(&mut held, |held| held.contains(&call));
        }
    }

    fn hold(&self, calls: &[PoolCall]) {
        self.held.lock().extend(calls);
    }

    fn release(&self) {
        self.held.lock().clear();
        self.changed.notify_all();
    }

    /// Waits until a call is held.
    fn wait_for_one(&self) {
        let mut held = self.held.lock();
        self.changed.wait_while(&mut held, |_| self.waiting.load(Ordering::SeqCst) == 0);
    }
}

/// Writes the keys of each range on a separate thread. Fails if that takes longer than the guard.
fn write_in_threads(db: &Db, threads: u64, count: u64, value: &[u8]) {
    let (told, done) = mpsc::channel();
    for thread in 0..threads {
        let (db, told, value) = (db.clone(), told.clone(), value.to_vec());
        let write = move || {
            let written = (0..count).try_for_each(|at| db.put(&key(thread * count + at), &value));
            told.send(written).unwrap();
        };
        drop(SystemSpawn.spawn("writer", Box::new(write)).unwrap());
    }
    for _ in 0..threads {
        done.recv_timeout(GUARD).expect("a writer waits for the pool").unwrap();
    }
}

fn assert_has_all(db: &Db, count: u64) {
    for number in 0..count {
        assert!(db.get(&key(number)).unwrap().is_some(), "key {number} is missing");
    }
}

fn log_segments(fs: &dyn FileSystem) -> usize {
    let entries = fs.list(Path::new("/db")).unwrap();
    entries.iter().filter(|entry| entry.name.ends_with(".log")).count()
}

#[test]
fn writers_go_on_while_the_pool_creates_and_ends_no_log() {
    let pool = new_pool(1);
    let fs = files_of(&pool);
    let db = open_over(fs.clone(), small_db(), in_threads(Components::default()));
    let gate = Gate::over(&pool);
    gate.hold(&[PoolCall::LogCreate, PoolCall::LogFinish]);
    // Each single thread writes several segments.
    write_in_threads(&db, 4, 200, &[7; 1000]);
    gate.wait_for_one();
    assert_eq!(log_segments(&*fs), 1, "no segment could be created");
    gate.release();
    // The segment exists some time after the release, and the log then goes on in it.
    let mut number = 800;
    while log_segments(&*fs) < 3 {
        db.put(&key(number), &[7; 1000]).unwrap();
        number += 1;
    }
    assert_has_all(&db, number);
    assert_has_all(&open_stepped(&pool.kill_clone(5), small_db()), number);
    db.close().unwrap();
    assert_has_all(&open_stepped(&pool, small_db()), number);
}

#[test]
fn closed_segments_name_their_successors_and_unused_ones_are_removed() {
    let pool = new_pool(2);
    let fs = files_of(&pool);
    let db = open_over(fs.clone(), small_db(), in_threads(Components::default()));
    let mut number = 0;
    while log_segments(&*fs) < 6 {
        db.put(&key(number), &[1; 900]).unwrap();
        number += 1;
    }
    let open_segments = log_segments(&*fs);
    db.close().unwrap();
    // The close discards the segment that was prepared.
    assert!(log_segments(&*fs) <= open_segments);
    fs.close().unwrap();
    let strict = DbOptions {
        recovery_mode: archipelago_engine::options::RecoveryMode::Strict,
        ..small_db()
    };
    assert_has_all(&open_stepped(&pool, strict), number);
}

#[test]
fn acknowledged_writes_survive_a_kill_at_any_moment_of_a_rotation() {
    for seed in 0..12 {
        let pool = new_pool(seed);
        let db = open(&pool, small_db());
        let acknowledged: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        let is_done = AtomicBool::new(false);
        let (clone, floors) = std::thread::scope(|scope| {
            for (thread, acknowledged) in acknowledged.iter().enumerate() {
                let (db, is_done) = (&db, &is_done);
                scope.spawn(move || {
                    for at in 0..400 {
                        db.put(&key(thread as u64 * 1000 + at), &[3; 700]).unwrap();
                        acknowledged.store(at + 1, Ordering::SeqCst);
                    }
                    is_done.store(true, Ordering::SeqCst);
                });
            }
            let wanted = Rng::with_seed(seed).u64(50..350);
            while acknowledged[0].load(Ordering::SeqCst) < wanted && !is_done.load(Ordering::SeqCst)
            {
                std::thread::yield_now();
            }
            let floors: Vec<u64> =
                acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect();
            (pool.kill_clone(seed), floors)
        });
        let recovered = open_stepped(&clone, small_db());
        for (thread, floor) in floors.into_iter().enumerate() {
            for at in 0..floor {
                let key = key(thread as u64 * 1000 + at);
                assert!(recovered.get(&key).unwrap().is_some(), "seed {seed}: {thread}, {at}");
            }
        }
    }
}

#[test]
fn records_that_are_lost_around_a_rotation_are_never_applied() {
    for seed in 0..12 {
        let pool = new_pool(seed);
        let db = open(&pool, small_db());
        let mut rng = Rng::with_seed(seed);
        for _ in 0..4 {
            pool.inject(PoolCall::LogWait, rng.u64(1..300), Fault::Refuse);
            pool.inject(PoolCall::LogWait, rng.u64(1..300), Fault::LoseAnswer);
            pool.inject(PoolCall::LogSubmit, rng.u64(1..300), Fault::Refuse);
        }
        let shared = &db;
        let outcomes: Vec<Vec<Result<()>>> = std::thread::scope(|scope| {
            let write = |thread: u64| {
                let db = shared;
                scope.spawn(move || {
                    let put = |at| db.put(&key(thread * 1000 + at), &[3; 700]);
                    (0..250).map(put).collect::<Vec<Result<()>>>()
                })
            };
            let writers: Vec<_> = (0..3).map(write).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        pool.clear_faults();
        // The database knows the outcome of every write after it accepts another one. A kill before
        // that may restore a refused record, and a read-only database may never know.
        let is_known = db.put(b"probe", b"1").is_ok();
        let recovered = open_stepped(&pool.kill_clone(seed), small_db());
        for (thread, outcomes) in outcomes.iter().enumerate() {
            for (at, outcome) in outcomes.iter().enumerate() {
                let key = key(thread as u64 * 1000 + at as u64);
                let (now, later) = (db.get(&key).unwrap(), recovered.get(&key).unwrap());
                let is_done = outcome.is_ok();
                assert_eq!(now.is_some(), is_done, "seed {seed}: {thread}, {at}");
                if is_done || is_known {
                    let what = format!("seed {seed}: {thread}, {at}, recovered: {outcome:?}");
                    assert_eq!(later.is_some(), is_done, "{what}");
                }
            }
        }
    }
}

/// A file system that does not report its free space while the gate is held.
#[derive(Debug)]
struct SlowRoom {
    inner: Arc<StoreFs>,
    is_held: Arc<(Mutex<bool>, Condvar)>,
}

impl FileSystem for SlowRoom {
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.inner.lock(path)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.inner.boot_id()
    }

    fn group_access(&self) -> Option<GroupAccess> {
        self.inner.group_access()
    }

    fn reassign(&self, path: &Path, context: IoContext) {
        self.inner.reassign(path, context);
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        let (is_held, changed) = &*self.is_held;
        changed.wait_while(&mut is_held.lock(), |is_held| *is_held);
        self.inner.free_bytes(dir)
    }

    archipelago_env::forward_fs!(
        inner: create, open, create_log, remove, logs, looks, moves, dirs, figures, space
    );
}

#[test]
fn writers_go_on_while_the_free_room_is_measured() {
    let pool = new_pool(3);
    pool.set_capacity(Some(1 << 30));
    let is_held = Arc::new((Mutex::new(false), Condvar::new()));
    let fs = SlowRoom { inner: files_of(&pool), is_held: Arc::clone(&is_held) };
    let options = DbOptions { wal_segment_bytes: 64 << 20, ..small_db() };
    let db = open_over(Arc::new(fs), options, in_threads(Components::default()));
    *is_held.0.lock() = true;
    // A writer checks the free space after every eight mebibytes.
    write_in_threads(&db, 2, 200, &vec![9; 64 << 10]);
    *is_held.0.lock() = false;
    is_held.1.notify_all();
    assert_has_all(&db, 400);
}

#[test]
fn full_pool_refuses_writers_that_do_not_wait_for_a_measurement() {
    let pool = new_pool(4);
    pool.set_capacity(Some(96 << 20));
    let options = DbOptions { wal_segment_bytes: 64 << 20, ..small_db() };
    let db = open(&pool, options);
    // Tables must not be smaller than the log, or a flush makes room for all of the writes.
    let mut rng = Rng::with_seed(4);
    let mut value = vec![0; 64 << 10];
    let mut put = |number| {
        rng.fill(&mut value);
        db.put(&key(number), &value).err()
    };
    let error = (0..2000).find_map(&mut put);
    let error = error.expect("the pool has room for less than that");
    assert!(error.is_no_space(), "{error}");
}

#[test]
fn writers_are_delayed_before_the_pool_is_full() {
    let pool = new_pool(6);
    let fs = files_of(&pool);
    fs.create_dir_all(Path::new("/others")).unwrap();
    fs.allocate(Path::new("/others/file"), 64 << 20).unwrap();
    let db = open_over(fs, small_db(), stepped());
    let stalled = || db.statistics().get(Ticker::StallPoolNs);
    db.put(&key(0), b"value").unwrap();
    assert_eq!(stalled(), 0, "the pool has no limit");
    pool.set_capacity(Some(pool.used_bytes() * 100 / 93));
    db.step_background().unwrap();
    db.put(&key(1), b"value").unwrap();
    let waited = stalled();
    assert!(waited > 0, "the pool is full to 93 per cent");
    pool.set_capacity(Some(1 << 30));
    db.step_background().unwrap();
    db.put(&key(2), b"value").unwrap();
    assert_eq!(stalled(), waited, "the pool has room again");
}

#[test]
fn buffered_write_is_visible_and_lost_with_the_process() {
    let pool = new_pool(5);
    let db = open_stepped(&pool, buffered(1 << 20));
    let submitted = pool.calls(PoolCall::LogSubmit);
    db.put(b"a", b"1").unwrap();
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(pool.calls(PoolCall::LogSubmit), submitted, "nothing has left");
    assert_eq!(open_stepped(&pool.kill_clone(1), small_db()).get(b"a").unwrap(), None);
    db.flush_log().unwrap();
    assert!(open_stepped(&pool.kill_clone(1), small_db()).get(b"a").unwrap().is_some());
}

#[test]
fn full_buffer_leaves_as_one_group() {
    let pool = new_pool(6);
    let db = open_stepped(&pool, buffered(32 << 10));
    let submitted = pool.calls(PoolCall::LogSubmit);
    for number in 0..40 {
        db.put(&key(number), &[1; 1000]).unwrap();
    }
    assert_eq!(pool.calls(PoolCall::LogSubmit), submitted + 1);
}

#[test]
fn sync_and_close_take_the_buffer_along() {
    let pool = new_pool(7);
    let fs = files_of(&pool);
    let db = open_over(fs, buffered(1 << 20), stepped());
    db.put(b"a", b"1").unwrap();
    let synced = WriteOptions { sync: true, ..WriteOptions::default() };
    db.put_with(db.default_family(), b"b", b"2", &synced).unwrap();
    let crashed = open_stepped(&pool.crash_clone(1), small_db());
    assert!(crashed.get(b"a").unwrap().is_some() && crashed.get(b"b").unwrap().is_some());
    db.put(b"c", b"3").unwrap();
    db.sync().unwrap();
    assert!(open_stepped(&pool.crash_clone(2), small_db()).get(b"c").unwrap().is_some());
    db.put(b"d", b"4").unwrap();
    db.close().unwrap();
    assert!(open_stepped(&pool.crash_clone(3), small_db()).get(b"d").unwrap().is_some());
}

#[test]
fn buffer_leaves_by_itself() {
    let pool = new_pool(8);
    let db = open(&pool, buffered(1 << 20));
    let (told, acknowledged) = mpsc::channel();
    pool.on_call(Arc::new(move |_, call| {
        if call == PoolCall::LogSubmit {
            let _unless_over = told.send(());
        }
    }));
    db.put(b"a", b"1").unwrap();
    acknowledged.recv_timeout(GUARD).expect("the buffer never leaves");
    pool.clear_on_call();
}

#[test]
fn records_of_a_buffer_that_is_lost_are_sent_again() {
    for seed in 0..8 {
        let pool = new_pool(seed);
        let db = open_stepped(&pool, buffered(1 << 20));
        db.put(&key(0), b"before").unwrap();
        db.flush_log().unwrap();
        for number in 1..50 {
            db.put(&key(number), b"published").unwrap();
        }
        let fault = if seed % 2 == 0 { Fault::Refuse } else { Fault::LoseAnswer };
        let call = if seed % 4 < 2 { PoolCall::LogWait } else { PoolCall::LogSubmit };
        pool.inject(call, 1, fault);
        db.flush_log().unwrap();
        db.put(&key(50), b"after").unwrap();
        db.flush_log().unwrap();
        assert_has_all(&db, 51);
        assert_has_all(&open_stepped(&pool.kill_clone(seed), small_db()), 51);
        // The old segment cannot be synced any more, so everything goes to tables instead.
        while db.step_background().unwrap() {}
        db.sync().unwrap();
        assert_has_all(&open_stepped(&pool.crash_clone(seed), small_db()), 51);
    }
}

#[test]
fn sync_leaves_a_segment_first_that_refused_an_append() {
    for fault in [Fault::Refuse, Fault::LoseAnswer] {
        let pool = new_pool(10);
        let db = open_stepped(&pool, small_db());
        db.put(b"a", b"1").unwrap();
        pool.inject(PoolCall::LogSubmit, 1, fault);
        db.put(b"b", b"2").unwrap_err();
        db.put(b"c", b"3").unwrap();
        db.sync().unwrap();
        let recovered = open_stepped(&pool.crash_clone(1), small_db());
        for (key, is_there) in [(b"a", true), (b"b", false), (b"c", true)] {
            assert_eq!(recovered.get(key).unwrap().is_some(), is_there, "{fault:?}: {key:?}");
        }
    }
}

#[test]
fn buffered_log_keeps_a_prefix_through_losses_and_kills() {
    for seed in 0..16 {
        let pool = new_pool(seed);
        let db = open(&pool, buffered(8 << 10));
        let mut rng = Rng::with_seed(seed);
        for _ in 0..6 {
            pool.inject(PoolCall::LogWait, rng.u64(1..120), Fault::Refuse);
            pool.inject(PoolCall::LogSubmit, rng.u64(1..120), Fault::LoseAnswer);
        }
        let (mut flushed, mut written) = (0, 0);
        for number in 0..600 {
            if db.put(&key(number), &[5; 400]).is_err() {
                break;
            }
            written = number + 1;
            if rng.u8(..20) == 0 {
                if db.flush_log().is_err() {
                    break;
                }
                flushed = written;
            }
        }
        assert_has_all(&db, written);
        let recovered = open_stepped(&pool.kill_clone(seed), small_db());
        let has = |number| recovered.get(&key(number)).unwrap().is_some();
        let prefix = (0..written).take_while(|number| has(*number)).count() as u64;
        assert!(prefix >= flushed, "seed {seed}: {prefix} of {flushed} flushed writes are left");
        assert!((prefix..written).all(|number| !has(number)), "seed {seed}: no prefix");
    }
}

#[test]
fn buffer_has_no_effect_on_a_local_log() {
    let disk = MemFs::new();
    let db = open_over(Arc::new(disk.clone()), buffered(1 << 20), stepped());
    db.put(b"a", b"1").unwrap();
    db.flush_log().unwrap();
    let after_kill = open_over(Arc::new(disk.kill_clone()), small_db(), stepped());
    assert!(after_kill.get(b"a").unwrap().is_some());
}

/// A lease that a test ends and renews.
#[derive(Debug, Default)]
struct TestLease {
    has_ended: AtomicBool,
}

impl ReadLease for TestLease {
    fn check(&self) -> Result<()> {
        match self.has_ended.load(Ordering::SeqCst) {
            true => Err(Error::busy("the lease has ended")),
            false => Ok(()),
        }
    }
}

/// A disk under a lease.
#[derive(Debug)]
struct LeasedFs {
    inner: MemFs,
    lease: Arc<TestLease>,
}

impl FileSystem for LeasedFs {
    fn read_lease(&self) -> Option<Arc<dyn ReadLease>> {
        Some(Arc::clone(&self.lease) as Arc<dyn ReadLease>)
    }

    fn redundancy(&self, class: archipelago_env::FileClass) -> f64 {
        self.inner.redundancy(class)
    }

    archipelago_env::forward_fs!(
        inner: create, open, create_log, remove, logs, looks, moves, dirs, host, space
    );
}

#[test]
fn no_read_is_answered_after_the_lease() {
    let lease = Arc::new(TestLease::default());
    let fs = LeasedFs { inner: MemFs::new(), lease: Arc::clone(&lease) };
    let db = open_over(Arc::new(fs), small_db(), stepped());
    for number in 0..10 {
        db.put(&key(number), b"value").unwrap();
    }
    let cf = db.default_family();
    let mut cursor = db.iter(cf, &ReadOptions::default()).unwrap();
    cursor.seek_to_first();
    cursor.next();
    lease.has_ended.store(true, Ordering::SeqCst);
    let is_busy = |error: Error| error.kind() == ErrorKind::Busy;
    assert!(db.get(&key(0)).is_err_and(is_busy), "a value in memory");
    assert!(db.get(b"absent").is_err_and(is_busy), "an answer without a value");
    assert!(db.multi_get(cf, &[&key(0)[..]], &ReadOptions::default()).is_err_and(is_busy));
    cursor.next();
    assert!(!cursor.valid());
    assert!(cursor.status().is_err_and(is_busy));
    cursor.seek(&key(3));
    assert!(!cursor.valid() && cursor.status().is_err());
    // The epoch of the owner guards writes.
    db.put(&key(10), b"value").unwrap();
    lease.has_ended.store(false, Ordering::SeqCst);
    cursor.seek(&key(3));
    assert!(cursor.valid());
    cursor.status().unwrap();
    assert_has_all(&db, 11);
}
