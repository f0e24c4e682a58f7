//! The disk of a test: a local one in memory, or a volume of a storage pool in memory.
//!
//! The environment variable `ARCHIPELAGO_TEST_DISK=store` puts every [`TestDisk`] on a volume.
//! `cargo xtask over-store` runs the tests with it, except for those that `not_over_store.txt`
//! names with a reason.
//!
//! A volume differs from the local disk in these points:
//! 1. A kill may take back the last creations, renames and removals that no call has waited for.
//! 2. [`TestDisk::on_sync`] calls back before each call of the pool for whose answer a thread
//!    waits, because syncs are not the only calls that make something durable. The state after the
//!    last call follows when the callback is removed.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::random::Rng;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_env::mem::MemFs;
use archipelago_env::{FileSystem, IoContext};
use archipelago_store::StoreFs;
use archipelago_store::memory::MemoryPool;
use archipelago_store::volume::{Volume, VolumeOptions};
use parking_lot::Mutex;

/// Name of the volume of every test.
const VOLUME: &str = "db";

/// Length of a lease that outlives every test.
const LEASE: Duration = Duration::from_secs(3600);

/// Called with a path, or with the name of a call of the pool, whenever a disk may lose power.
pub(crate) type OnSync = Arc<dyn Fn(&TestDisk, &Path) + Send + Sync>;

/// Kind of disk that [`TestDisk::new`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskKind {
    Local,
    Store,
}

impl DiskKind {
    /// The kind that the environment chooses.
    fn chosen() -> Self {
        match std::env::var("ARCHIPELAGO_TEST_DISK").as_deref() {
            Err(_) => Self::Local,
            Ok("store") => Self::Store,
            Ok(other) => panic!("ARCHIPELAGO_TEST_DISK is `{other}`; it may be `store`"),
        }
    }
}

/// Starts threads that do nothing, so that the calls of the test release what is due.
#[derive(Debug)]
struct IdleThreads;

impl Spawn for IdleThreads {
    fn spawn(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        SystemSpawn.spawn(name, Box::new(|| {}))
    }
}

/// The bytes of a disk, of which a test makes clones.
#[derive(Clone)]
enum Medium {
    Local(MemFs),
    /// A pool, and the generator of the identities of its owners and of those of its clones.
    Pool(MemoryPool, Arc<Mutex<Rng>>),
}

/// A disk in memory that can lose power. Clones are handles of the same disk.
#[derive(Clone)]
pub(crate) struct TestDisk {
    medium: Medium,
    fs: Arc<dyn FileSystem>,
    /// The callback of a pool, which gets the state after the last call.
    callback: Arc<Mutex<Option<OnSync>>>,
}

impl fmt::Debug for TestDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestDisk").field("fs", &self.fs).finish_non_exhaustive()
    }
}

impl TestDisk {
    /// Makes an empty disk of the kind that the environment chooses.
    pub(crate) fn new() -> Self {
        match DiskKind::chosen() {
            DiskKind::Local => Self::local(MemFs::new()),
            DiskKind::Store => Self::volume(),
        }
    }

    fn local(disk: MemFs) -> Self {
        let fs: Arc<dyn FileSystem> = Arc::new(disk.clone());
        Self { fs, medium: Medium::Local(disk), callback: Arc::default() }
    }

    /// A new volume on a new pool.
    fn volume() -> Self {
        let (pool, mut rng) = (MemoryPool::new(1), Rng::with_seed(1));
        Volume::create(&pool.stores(), VOLUME, &volume_options(rng.u64(..))).unwrap();
        Self::take_over(pool, &Arc::new(Mutex::new(rng)))
    }

    /// The disk of a process that takes over the volume of `pool`.
    fn take_over(pool: MemoryPool, seeds: &Arc<Mutex<Rng>>) -> Self {
        let seed = seeds.lock().u64(..);
        let volume = Volume::open(&pool.stores(), VOLUME, &volume_options(seed)).unwrap();
        let medium = Medium::Pool(pool, Arc::clone(seeds));
        Self { fs: StoreFs::new(volume), medium, callback: Arc::default() }
    }

    /// A disk with the state after a power loss now.
    pub(crate) fn crash_clone(&self, seed: u64) -> Self {
        match &self.medium {
            Medium::Local(disk) => Self::local(disk.crash_clone(seed)),
            Medium::Pool(pool, seeds) => Self::take_over(pool.crash_clone(seed), seeds),
        }
    }

    /// A disk with the state after `kill -9` now.
    pub(crate) fn kill_clone(&self) -> Self {
        match &self.medium {
            Medium::Local(disk) => Self::local(disk.kill_clone()),
            Medium::Pool(pool, seeds) => {
                let seed = seeds.lock().u64(..);
                Self::take_over(pool.kill_clone(seed), seeds)
            }
        }
    }

    /// Calls `callback` from now on whenever power may be lost: after each sync of a local disk,
    /// and before each call of a pool for whose answer a thread waits. For a pool,
    /// [`TestDisk::clear_on_sync`] calls it once more. Otherwise no state would have what the last
    /// call made durable.
    pub(crate) fn on_sync(&self, callback: OnSync) {
        match &self.medium {
            Medium::Local(disk) => disk.on_sync(Arc::new(move |disk, path| {
                callback(&Self::local(disk.clone()), path);
            })),
            Medium::Pool(pool, seeds) => {
                // A strong reference would keep the file system alive, because it holds the pool.
                let (fs, seeds) = (Arc::downgrade(&self.fs), Arc::clone(seeds));
                *self.callback.lock() = Some(Arc::clone(&callback));
                pool.on_call(Arc::new(move |pool, call| {
                    let Some(fs) = fs.upgrade().filter(|_| call.waits()) else { return };
                    let medium = Medium::Pool(pool.clone(), Arc::clone(&seeds));
                    let disk = Self { medium, fs, callback: Arc::default() };
                    callback(&disk, Path::new(&format!("{call:?}")));
                }));
            }
        }
    }

    /// Removes the callback, after its last call for a pool.
    pub(crate) fn clear_on_sync(&self) {
        match &self.medium {
            Medium::Local(disk) => disk.clear_on_sync(),
            Medium::Pool(pool, _) => {
                pool.clear_on_call();
                let callback = self.callback.lock().take();
                if let Some(callback) = callback {
                    callback(self, Path::new("the last call"));
                }
            }
        }
    }
}

fn volume_options(seed: u64) -> VolumeOptions {
    VolumeOptions {
        lease: LEASE,
        take_over: true,
        spawn: Arc::new(IdleThreads),
        seed: Some(seed),
        ..VolumeOptions::new("the tests")
    }
}

impl FileSystem for TestDisk {
    fn read(&self, path: &Path, context: IoContext) -> Result<Vec<u8>> {
        self.fs.read(path, context)
    }

    fn write_atomic(&self, path: &Path, bytes: &[u8], context: IoContext) -> Result<()> {
        self.fs.write_atomic(path, bytes, context)
    }

    archipelago_env::forward_fs!(fs: create, open, create_log, names);
}

#[test]
fn volume_keeps_synced_files_over_kills_and_power_losses() {
    use archipelago_env::{CreateOptions, FileClass, IoPurpose};
    let disk = TestDisk::volume();
    let io = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    let (dir, path) = (Path::new("/db"), Path::new("/db/file"));
    disk.create_dir_all(dir).unwrap();
    let mut file = disk.create(path, io, CreateOptions::default()).unwrap();
    file.append(b"bytes").unwrap();
    file.sync().unwrap();
    disk.sync_dir(dir).unwrap();
    for left in [disk.kill_clone(), disk.crash_clone(2), disk.kill_clone().crash_clone(3)] {
        assert_eq!(left.read(path, io).unwrap(), b"bytes");
    }
}

#[test]
fn volume_calls_back_after_the_last_call_too() {
    let disk = TestDisk::volume();
    let states: Arc<Mutex<Vec<TestDisk>>> = Arc::default();
    let into = Arc::clone(&states);
    disk.on_sync(Arc::new(move |disk, _| into.lock().push(disk.crash_clone(1))));
    let dir = Path::new("/db");
    disk.create_dir_all(dir).unwrap();
    disk.sync_dir(dir).unwrap();
    disk.clear_on_sync();
    let states = std::mem::take(&mut *states.lock());
    assert!(states.last().unwrap().exists(dir).unwrap(), "the last call made it durable");
    disk.clear_on_sync();
}

#[test]
fn volume_calls_back_before_calls_that_it_waits_for() {
    let disk = TestDisk::volume();
    let called = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&called);
    disk.on_sync(Arc::new(move |disk, _| {
        drop(disk.crash_clone(1));
        *counted.lock() += 1;
    }));
    disk.create_dir_all(Path::new("/db")).unwrap();
    disk.clear_on_sync();
    let count = *called.lock();
    assert!(count > 0);
    disk.create_dir_all(Path::new("/other")).unwrap();
    assert_eq!(*called.lock(), count);
}
