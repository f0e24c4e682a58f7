//! A database on a storage pool: its jobs, checkpoints and recoveries run on the pool as on a disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{ErrorKind, Result};
use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;
use archipelago_env::mem::MemFs;
use archipelago_store::StoreFs;
use archipelago_store::memory::{Fault, MemoryPool, PoolCall};
use archipelago_store::volume::{Volume, VolumeOptions};

use crate::separation::{Separation, audit, audit_at_rest};
use crate::support::{in_threads, small_db, small_family, stepped};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Limit of the round trips of a flush that writes one table.
const FLUSH_ROUND_TRIPS_MAX: u64 = 6;

/// Length of a lease that outlives every test.
const LEASE: Duration = Duration::from_secs(3600);

/// Starts threads that do nothing, so that the calls of the test release what is due.
#[derive(Debug)]
struct IdleThreads;

impl Spawn for IdleThreads {
    fn spawn(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        SystemSpawn.spawn(name, Box::new(|| {}))
    }
}

fn volume_options() -> VolumeOptions {
    VolumeOptions {
        lease: LEASE,
        take_over: true,
        spawn: Arc::new(IdleThreads),
        ..VolumeOptions::new("the tests")
    }
}

/// A pool with an empty volume.
fn new_pool(seed: u64) -> MemoryPool {
    let pool = MemoryPool::new(seed);
    Volume::create(&pool.stores(), "db", &volume_options()).unwrap();
    pool
}

/// The file system of a process that takes over the volume.
fn take_over(pool: &MemoryPool) -> Arc<StoreFs> {
    StoreFs::new(Volume::open(&pool.stores(), "db", &volume_options()).unwrap())
}

fn components(fs: &Arc<StoreFs>, family: CfOptions) -> Components {
    Components {
        fs: Arc::clone(fs) as Arc<dyn FileSystem>,
        families: [("default".to_owned(), family)].into_iter().collect(),
        ..stepped()
    }
}

fn open(fs: &Arc<StoreFs>, dir: &str, family: CfOptions) -> Db {
    Db::open_with(dir, small_db(), components(fs, family)).unwrap()
}

/// Does `work`, and steps the background work while `work` has to wait for it.
fn stepping<T>(db: &Db, mut work: impl FnMut() -> Result<T>) -> T {
    loop {
        match work() {
            Err(error) if error.kind() == ErrorKind::Busy => {
                assert!(db.step_background().unwrap(), "nothing is left to do: {error}");
            }
            outcome => return outcome.unwrap(),
        }
    }
}

/// All rows of the database.
fn rows(db: &Db) -> Model {
    let mut rows = Model::new();
    let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    while iter.valid() {
        rows.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next();
    }
    iter.status().unwrap();
    rows
}

fn check(db: &Db, model: &Model, what: &str) {
    assert!(rows(db) == *model, "{what}: the rows differ");
    for (key, value) in model {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(&**value), "{what}");
    }
    let report = db.verify(|_, _| {}).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.errors);
    audit(db);
}

/// One run of a database on a pool, with kills.
struct Run {
    rng: Rng,
    pool: MemoryPool,
    fs: Arc<StoreFs>,
    family: CfOptions,
    db: Option<Db>,
    model: Model,
    label: String,
}

impl Run {
    fn new(seed: u64, separation: Separation) -> Self {
        let pool = new_pool(seed);
        let (fs, family) = (take_over(&pool), separation.of(small_family()));
        let db = Some(open(&fs, "/db", family.clone()));
        let (rng, model) = (Rng::with_seed(seed), Model::new());
        Self { rng, pool, fs, family, db, model, label: format!("seed {seed}, {separation:?}") }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn write(&mut self, count: usize) {
        // Replicas fail, so logs continue in new extents.
        for call in [PoolCall::LogWait, PoolCall::LogSync, PoolCall::LogFinish] {
            self.pool.inject(call, self.rng.u64(1..100), Fault::EndExtent);
        }
        for _ in 0..count {
            let key = format!("key{:03}", self.rng.u32(..300)).into_bytes();
            if self.rng.u8(..8) == 0 {
                stepping(self.db(), || self.db().delete(&key));
                self.model.remove(&key);
                continue;
            }
            let len = [8, 40, 300, 900][self.rng.usize(..4)];
            let value = vec![self.rng.u8(..); len];
            stepping(self.db(), || self.db().put(&key, &value));
            self.model.insert(key, value);
        }
    }

    fn work(&mut self) {
        match self.rng.u8(..5) {
            0 => self.db().flush(self.db().default_family()).unwrap(),
            1 => {
                let family = self.db().default_family();
                self.db().compact_range(family, &KeyRange::all()).unwrap();
            }
            2 => self.checkpoint(),
            _ => while self.db().step_background().unwrap() {},
        }
    }

    /// A checkpoint in the volume is a whole database, and shares tables until it is removed.
    fn checkpoint(&self) {
        self.db().checkpoint("/copy").unwrap();
        let copy = open(&self.fs, "/copy", self.family.clone());
        check(&copy, &self.model, &self.label);
        copy.put(b"only in the copy", b"1").unwrap();
        copy.flush(copy.default_family()).unwrap();
        copy.close().unwrap();
        self.fs.remove_dir_all(Path::new("/copy")).unwrap();
    }

    /// Ends the process, and opens the database on the state of the pool at that time.
    fn reopen(&mut self) {
        let seed = self.rng.u64(..);
        let old = self.db.take();
        self.pool = match self.rng.u8(..4) {
            0 => {
                old.unwrap().close().unwrap();
                self.fs.close().unwrap();
                self.pool.clone()
            }
            1 => {
                old.as_ref().unwrap().sync().unwrap();
                self.pool.crash_clone(seed)
            }
            _ => self.pool.kill_clone(seed),
        };
        self.fs = take_over(&self.pool);
        self.db = Some(open(&self.fs, "/db", self.family.clone()));
        check(self.db(), &self.model, &self.label);
    }
}

#[test]
fn database_on_a_pool_survives_kills_and_power_loss() {
    let separations = [Separation::EAGER, Separation::OFF];
    for (seed, separation) in (0..6).zip(separations.into_iter().cycle()) {
        let mut run = Run::new(seed, separation);
        for _ in 0..6 {
            for _ in 0..4 {
                run.write(120);
                run.work();
            }
            check(run.db(), &run.model, &run.label);
            run.reopen();
        }
    }
}

#[test]
fn unsynced_writes_lost_with_the_power_are_the_last_ones() {
    for seed in 0..20 {
        let pool = new_pool(seed);
        let fs = take_over(&pool);
        let db = open(&fs, "/db", small_family());
        for n in 0..200u32 {
            let options = WriteOptions { sync: n == 120, ..WriteOptions::default() };
            let mut batch = WriteBatch::new();
            batch.put_cf(db.default_family().id(), &n.to_be_bytes(), &[7; 300]);
            stepping(&db, || db.write(&batch, &options));
        }
        let crashed = take_over(&pool.crash_clone(seed));
        let left = rows(&open(&crashed, "/db", small_family())).len() as u32;
        assert!((121..=200).contains(&left), "{left}");
        let db = open(&take_over(&pool.kill_clone(seed)), "/db", small_family());
        assert_eq!(rows(&db).len(), 200);
        let prefix: Vec<_> = (0..left).map(|n| n.to_be_bytes().to_vec()).collect();
        let crashed = take_over(&pool.crash_clone(seed));
        let rows = rows(&open(&crashed, "/db", small_family()));
        assert!(rows.keys().eq(prefix.iter()), "the writes have a gap");
    }
}

#[test]
fn owner_that_lost_its_volume_takes_no_writes() {
    let pool = new_pool(3);
    let old = open(&take_over(&pool), "/db", small_family());
    old.put(b"a", b"1").unwrap();
    old.flush(old.default_family()).unwrap();
    old.put(b"b", b"2").unwrap();
    let new = open(&take_over(&pool), "/db", small_family());
    let error = old.put(b"c", b"late").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(old.put(b"d", b"late").is_err());
    assert!(old.get(b"e").is_err() || old.get(b"e").unwrap().is_none());
    new.put(b"c", b"3").unwrap();
    let want = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")];
    let want: Model = want.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    check(&new, &want, "after the take-over");
    drop(old);
    check(&new, &want, "after the old owner's end");
}

#[test]
fn garbage_of_values_is_collected_on_a_pool() {
    let pool = new_pool(4);
    let fs = take_over(&pool);
    let separation = Separation::EAGER;
    let db = open(&fs, "/db", separation.of(small_family()));
    let mut model = Model::new();
    for round in 0..6u8 {
        for n in 0..150u32 {
            let (key, value) = (format!("key{n:04}").into_bytes(), vec![round; 400]);
            stepping(&db, || db.put(&key, &value));
            model.insert(key, value);
        }
        db.flush(db.default_family()).unwrap();
        while db.step_background().unwrap() {}
    }
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    while db.step_background().unwrap() {}
    check(&db, &model, "after the collection");
    audit_at_rest(&db);
    fs.sync_dir(Path::new("/db")).unwrap();
    let files = fs.list(Path::new("/db")).unwrap();
    let named: u64 = files.iter().map(|file| file.len).sum();
    let blobs: u64 = pool.blob_list().iter().map(|blob| blob.len_bytes).sum();
    assert!(blobs <= named, "{blobs} bytes of blobs, {named} of files");
    db.close().unwrap();
}

#[test]
fn threads_share_a_database_on_a_pool() {
    let pool = new_pool(5);
    let fs = take_over(&pool);
    let family = Separation::EAGER.of(small_family());
    let db = Db::open_with("/db", small_db(), in_threads(components(&fs, family.clone()))).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            let db = &db;
            scope.spawn(move || {
                for n in 0..400u32 {
                    let key = format!("{thread}-{n:04}");
                    db.put(key.as_bytes(), &[thread as u8; 300]).unwrap();
                    assert!(db.get(key.as_bytes()).unwrap().is_some());
                }
            });
        }
    });
    db.wait_for_background().unwrap();
    let killed = take_over(&pool.kill_clone(1));
    let copy = open(&killed, "/db", family);
    let report = copy.verify(|_, _| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.errors);
    assert_eq!(rows(&copy).len(), 1200);
    db.close().unwrap();
}

#[test]
fn flush_of_one_table_takes_few_round_trips() {
    let pool = new_pool(6);
    let fs = take_over(&pool);
    let family = CfOptions { buckets: 1, ..small_family() };
    let db = open(&fs, "/db", family);
    for round in 0..4u32 {
        for n in 0..20u32 {
            db.put(&n.to_be_bytes(), &round.to_be_bytes()).unwrap();
        }
        let before = pool.round_trips();
        db.flush(db.default_family()).unwrap();
        let trips = pool.round_trips() - before;
        assert!(trips <= FLUSH_ROUND_TRIPS_MAX, "{trips} in round {round}");
    }
}

/// Number of log segments after flushes of several segments each.
fn segments_after_flushes(fs: &Arc<dyn FileSystem>) -> usize {
    let families = [("default".to_owned(), small_family())].into_iter().collect();
    let components = Components { fs: Arc::clone(fs), families, ..stepped() };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    for round in 0..4u32 {
        for n in 0..600u32 {
            stepping(&db, || db.put(&n.to_be_bytes(), &[round as u8; 300]));
        }
        db.flush(db.default_family()).unwrap();
        while db.step_background().unwrap() {}
    }
    let files = fs.list(Path::new("/db")).unwrap();
    files.iter().filter(|file| file.name.ends_with(".log")).count()
}

#[test]
fn segments_are_kept_only_where_they_are_recycled() {
    let disk: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let on_disk = segments_after_flushes(&disk);
    assert!(on_disk > 1, "spare segments are kept on a disk, not {on_disk}");
    let pool: Arc<dyn FileSystem> = take_over(&new_pool(7));
    let on_pool = segments_after_flushes(&pool);
    assert_eq!(on_pool, 1, "only the open one is needed");
}
