//! Databases in volumes of a storage pool whose jobs run in executors, over real links.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_engine::db::Components;
use archipelago_engine::key::KeyRange;
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use archipelago_offload::net::{
    ExecutorServer, ExecutorSettings, OffloadExecutor, OffloadMode, OwnerSettings, VolumeFiles,
    VolumePool,
};
use archipelago_offload::shard_host::ShardHost;
use archipelago_offload::shard_owner::RemoteShards;
use archipelago_store::StoreFs;
use archipelago_store::memory::{MemoryPool, PoolCall};
use archipelago_store::volume::{Volume, VolumeOptions};

use crate::memories::{Listed, Listening, Memory, shard_store};
use crate::office::Office;
use crate::rounds::{Loaded, key, wait_until};

const DIR: &str = "/db";
const CLUSTER: &str = "of the tests";
/// Length of a lease that outlives every test.
const LEASE: Duration = Duration::from_secs(3600);
/// Number of kills that one round tries.
const KILLS_MAX: usize = 24;

/// An executor that reaches the volumes of a pool.
fn executor(office: &Office, pool: &MemoryPool, cluster: &str) -> ExecutorServer {
    hosted_executor(office, pool, cluster, None)
}

/// The same executor in the process of a memory node.
fn hosted_executor(
    office: &Office,
    pool: &MemoryPool,
    cluster: &str,
    hosted: Option<Arc<ShardHost>>,
) -> ExecutorServer {
    let settings = ExecutorSettings {
        managers: office.managers(),
        slots: 2,
        shares: Vec::new(),
        volumes: Some(VolumePool { stores: pool.stores(), cluster: cluster.to_owned() }),
        hosted,
        secret: None,
        address: String::new(),
    };
    ExecutorServer::start(settings).unwrap()
}

/// A pool with a volume without an owner.
fn new_pool(seed: u64) -> MemoryPool {
    let pool = MemoryPool::new(seed);
    Volume::create(&pool.stores(), "db", &VolumeOptions::new("the tests")).unwrap();
    pool
}

/// A database in a volume, whose jobs leave the process.
struct Away {
    loaded: Loaded,
    files: Arc<StoreFs>,
    pool: MemoryPool,
    /// Tables and value files that the open found.
    found: BTreeSet<String>,
}

/// Names of the files of the directory that are blobs.
fn blob_names(files: &StoreFs) -> BTreeSet<String> {
    let is_blob = |name: &str| [".sst", ".vsst", ".inv"].iter().any(|end| name.ends_with(end));
    let entries = files.list(Path::new(DIR)).unwrap_or_default();
    entries.into_iter().map(|entry| entry.name).filter(|name| is_blob(name)).collect()
}

impl Away {
    /// Opens the database as an owner that takes the volume over.
    fn open(pool: &MemoryPool, managers: Vec<String>) -> Self {
        Self::open_with(pool, managers, OffloadMode::Compactions, None)
    }

    fn open_with(
        pool: &MemoryPool,
        managers: Vec<String>,
        mode: OffloadMode,
        shards: Option<Arc<RemoteShards>>,
    ) -> Self {
        let options =
            VolumeOptions { lease: LEASE, take_over: true, ..VolumeOptions::new("the tests") };
        let files = StoreFs::new(Volume::open(&pool.stores(), "db", &options).unwrap());
        let found = blob_names(&files);
        let settings = OwnerSettings { managers, mode, ..OwnerSettings::default() };
        let volume = VolumeFiles { files: Arc::clone(&files), cluster: CLUSTER.to_owned() };
        let jobs = OffloadExecutor::over(settings, Some(volume), shards.clone());
        let fs = Arc::clone(&files) as Arc<dyn FileSystem>;
        let shard_store = shards.map(|shards| shards as _);
        let components = Components { fs, shard_store, ..Components::default() };
        let loaded = Loaded::open(Path::new(DIR), jobs, components);
        Self { loaded, files, pool: pool.clone(), found }
    }

    /// Number of jobs so far that did not end in an executor.
    fn not_away(&self) -> u64 {
        let counters = self.jobs.counters();
        counters.planned_again + counters.ran_here.values().sum::<u64>()
    }

    /// Writes and compacts a round, and waits until no job is left. Returns whether a garbage
    /// collection has ended, and all jobs of the round have run in executors.
    fn collects_away(&self, round: u32) -> bool {
        let collected = || self.db.statistics().get(Ticker::GcJobs);
        let before = (collected(), self.not_away());
        self.write(round);
        self.compact();
        self.db.wait_for_background().unwrap();
        collected() > before.0 && self.not_away() == before.1
    }

    /// Closes the database and the volume.
    fn close(self) {
        self.loaded.db.close().unwrap();
        self.files.close().unwrap();
    }
}

impl Deref for Away {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

/// Waits until the pool has the blobs of the files of the volume and no other one. The owner writes
/// nothing meanwhile.
fn wait_for_rest(away: &Away) {
    wait_until(|| {
        // A wait of the owner has released the objects that are due.
        away.files.sync_dir(Path::new(DIR)).unwrap();
        away.pool.blob_list().len() == blob_names(&away.files).len()
    });
}

#[test]
fn compactions_and_collections_of_a_volume_run_in_an_executor() {
    let (office, pool) = (Office::start(), new_pool(1));
    let executor = executor(&office, &pool, CLUSTER);
    let away = Away::open(&pool, office.managers());
    let mut rounds = 0;
    let mut has_collected = false;
    while away.away() < 4 || !has_collected {
        has_collected |= away.collects_away(rounds);
        rounds += 1;
        assert!(rounds < 1_000, "nothing runs away: {:?}", away.jobs.counters());
    }
    away.check(rounds);
    assert!(executor.figures().succeeded >= away.away());
    assert!(away.jobs.counters().bytes_away > 0);
    wait_for_rest(&away);
    away.close();
    // The next owner finds the same, without executors.
    drop(executor);
    let away = Away::open(&pool, office.managers());
    away.check(rounds);
    wait_for_rest(&away);
    away.close();
}

#[test]
fn executors_of_other_places_get_no_job_of_a_volume() {
    let base = tempfile::tempdir().unwrap();
    let (office, pool) = (Office::start(), new_pool(2));
    let other = executor(&office, &new_pool(3), "another one");
    let directories = ExecutorServer::start(ExecutorSettings {
        managers: office.managers(),
        slots: 1,
        shares: vec![base.path().to_owned()],
        ..ExecutorSettings::default()
    });
    let directories = directories.unwrap();
    let away = Away::open(&pool, office.managers());
    let mut rounds = 0;
    while !away.jobs.counters().ran_here.contains_key("unknown_name") {
        away.write(rounds);
        away.compact();
        rounds += 1;
        assert!(rounds < 1_000, "{:?}", away.jobs.counters());
    }
    away.check(rounds);
    assert_eq!(away.away(), 0);
    let figures = [other.figures(), directories.figures()];
    assert!(figures.iter().all(|of| of.failed + of.succeeded == 0), "{figures:?}");
    wait_for_rest(&away);
    away.close();
}

#[test]
fn executors_and_schedulers_end_while_jobs_of_a_volume_run() {
    let (office, pool) = (Office::start(), new_pool(4));
    let steady = executor(&office, &pool, CLUSTER);
    let away = Away::open(&pool, office.managers());
    let mut rounds = 0;
    while away.away() < 3 || rounds < 8 || steady.figures().succeeded == 0 {
        let executor = executor(&office, &pool, CLUSTER);
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
    wait_for_rest(&away);
    away.close();
}

#[test]
fn owner_that_is_taken_over_while_an_executor_writes_leaves_nothing() {
    let (office, pool) = (Office::start(), new_pool(5));
    let executor = executor(&office, &pool, CLUSTER);
    let old = Away::open(&pool, office.managers());
    let mut rounds = 0;
    while old.away() < 2 {
        old.write(rounds);
        old.compact();
        rounds += 1;
        assert!(rounds < 1_000, "nothing runs away: {:?}", old.jobs.counters());
    }
    // No job in the background takes one small table away, so the merge below has it. Its keys lie
    // in older tables as well, so the merge writes.
    old.db.wait_for_background().unwrap();
    for key in (1..400).step_by(100).map(key) {
        let value = old.db.get(&key).unwrap().unwrap();
        old.db.put(&key, &value).unwrap();
    }
    old.db.flush(old.db.default_family()).unwrap();
    // The next blob that the executor seals is sealed after the take-over.
    let (sealing, resume) = pause_at_next_seal(&pool);
    let compacting = std::thread::scope(|scope| {
        let compacting =
            scope.spawn(|| old.db.compact_range(old.db.default_family(), &KeyRange::all()));
        sealing.recv().unwrap();
        let new = Away::open(&pool, office.managers());
        drop(resume);
        new.check(rounds);
        let outcome = compacting.join().unwrap();
        (outcome, new)
    });
    let (outcome, new) = compacting;
    outcome.unwrap_err();
    // The old owner can change nothing, and its drop releases nothing of the new one.
    drop(old);
    drop(executor);
    new.write(rounds);
    new.compact();
    new.check(rounds + 1);
    wait_for_rest(&new);
    new.close();
}

#[test]
fn owner_that_dies_anywhere_around_the_names_loses_nothing() {
    let (office, pool) = (Office::start(), new_pool(6));
    let _executor = executor(&office, &pool, CLUSTER);
    let away = Away::open(&pool, office.managers());
    let (mut rounds, mut is_seen) = (0, false);
    while !is_seen {
        away.write(rounds);
        rounds += 1;
        let (before, not_away) = (blob_names(&away.files), away.not_away());
        let killed = killed_while(&pool, || away.compact());
        let is_away = away.not_away() == not_away;
        for pool in killed {
            // The next owner has no executors.
            let next = Away::open(&pool, vec!["tcp:127.0.0.1:9".to_owned()]);
            next.check(rounds);
            wait_for_rest(&next);
            let left = blob_names(&next.files);
            // An output that was named, and that no edit had installed.
            let is_lone = |name: &&String| !before.contains(*name) && !left.contains(*name);
            is_seen |= is_away && next.found.iter().any(|name| is_lone(&name));
            next.close();
        }
        assert!(rounds < 20, "no owner died between names and edit: {:?}", away.jobs.counters());
    }
    away.close();
}

/// Does `work`, and returns pools as they are if the owner is killed while it waits for a log.
fn killed_while(pool: &MemoryPool, work: impl FnOnce()) -> Vec<MemoryPool> {
    let killed = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let clones = Arc::clone(&killed);
    pool.on_call(Arc::new(move |pool, call| {
        let mut clones = clones.lock();
        let waits = matches!(call, PoolCall::LogWait | PoolCall::LogSync);
        if waits && clones.len() < KILLS_MAX {
            let seed = clones.len() as u64;
            clones.push(pool.kill_clone(seed));
        }
    }));
    work();
    pool.clear_on_call();
    std::mem::take(&mut *killed.lock())
}

/// Makes the next seal of a blob wait until the returned sender is dropped. The returned receiver
/// gets a message when the seal begins.
fn pause_at_next_seal(
    pool: &MemoryPool,
) -> (std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<()>) {
    let (told, heard) = std::sync::mpsc::channel();
    let (resume, resumed) = std::sync::mpsc::channel::<()>();
    let once = parking_lot::Mutex::new(Some((told, resumed)));
    pool.on_call(Arc::new(move |_, call| {
        if call == PoolCall::BlobSeal
            && let Some((told, resumed)) = once.lock().take()
        {
            told.send(()).unwrap();
            // Dropping the sender is the signal.
            let _ended = resumed.recv();
        }
    }));
    (heard, resume)
}

#[test]
fn flushes_of_a_volume_read_images_in_place() {
    let (office, pool) = (Office::start(), new_pool(9));
    let node = Memory::start(&Listening::Tcp, 1, 1);
    let executor = hosted_executor(&office, &pool, CLUSTER, Some(Arc::clone(&node.host)));
    let listed = Arc::new(Listed::default());
    *listed.0.lock() = vec![node.member()];
    let shards = shard_store(&listed);
    let away = Away::open_with(&pool, office.managers(), OffloadMode::All, Some(shards));
    let mut rounds = 0;
    while away.jobs.counters().flushes.in_place < 3 {
        away.write(rounds);
        rounds += 1;
        assert!(rounds < 1_000, "nothing runs away: {:?}", away.jobs.counters());
    }
    away.compact();
    away.check(rounds);
    assert!(executor.figures().flushes >= 3);
    wait_for_rest(&away);
    away.close();
    let away = Away::open(&pool, office.managers());
    away.check(rounds);
    away.close();
}
