//! Copies of a volume's directory in another volume, and the removal of volumes, with faults and
//! kills at every call.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{ErrorKind, Result};
use archipelago_env::{FileClass, FileSystem};
use archipelago_store::memory::{Fault, MemoryPool, PoolCall};
use archipelago_store::volume::{Volume, VolumeOptions, VolumeStage, list};
use archipelago_store::{CopyTarget, Sabotage, StoreFs};
use parking_lot::Mutex;

use crate::owner::{Owner, options};
use crate::world::{DIR, at, context, create, create_log, get, pattern, put, sync_dir};

/// Name of the volume that gets the copy.
const COPY: &str = "copy";
/// Name of the volume that is copied.
const ORIGINAL: &str = "db";

/// Files of all kinds of contents, by name.
fn contents() -> [(&'static str, Vec<u8>); 6] {
    [
        ("1.sst", pattern(20_000)),
        ("2.vsst", pattern(30_000)),
        ("CURRENT", b"MANIFEST-1".to_vec()),
        ("LARGE", pattern(9_000)),
        ("MANIFEST-1", [pattern(100), pattern(200)].concat()),
        ("1.log", b"log".to_vec()),
    ]
}

/// An owner whose directory has all kinds of files.
fn original(pool: MemoryPool, seed: u64) -> Owner {
    let owner = Owner::of_new_volume(pool, Sabotage::default(), seed);
    let fs = &owner.fs;
    fs.create_dir_all(Path::new(DIR)).unwrap();
    put(fs, "1.sst", FileClass::Sst, &pattern(20_000));
    put(fs, "2.vsst", FileClass::ValueSst, &pattern(30_000));
    let manifest = context(FileClass::Manifest);
    fs.write_atomic(&at("CURRENT"), b"MANIFEST-1", manifest).unwrap();
    fs.write_atomic(&at("LARGE"), &pattern(9_000), manifest).unwrap();
    let mut file = create(fs, "MANIFEST-1", FileClass::Manifest);
    for bytes in [pattern(100), pattern(200)] {
        file.append(&bytes).unwrap();
        file.sync().unwrap();
    }
    create_log(fs, "1.log").append(&[b"log"]).unwrap();
    sync_dir(fs);
    owner
}

fn target(seed: u64) -> CopyTarget {
    let options = options(Sabotage::default(), seed);
    CopyTarget { name: COPY.to_owned(), dir: DIR.into(), options }
}

fn copy(owner: &Owner, seed: u64) -> Result<()> {
    owner.fs.copy_to_volume(Path::new(DIR), &target(seed))
}

fn open(pool: &MemoryPool, name: &str, seed: u64) -> Result<Arc<StoreFs>> {
    let options = options(Sabotage::default(), seed);
    Volume::open(&pool.stores(), name, &options).map(StoreFs::new)
}

fn destroy(pool: &MemoryPool, name: &str, seed: u64) -> Result<()> {
    Volume::destroy(&pool.stores(), name, &options(Sabotage::default(), seed))
}

#[track_caller]
fn check(fs: &StoreFs) {
    for (name, bytes) in contents() {
        assert_eq!(get(fs, name).as_deref(), Some(&bytes[..]), "{name}");
    }
    let entries = fs.list(Path::new(DIR)).unwrap();
    assert_eq!(entries.len(), contents().len(), "{entries:?}");
}

#[track_caller]
fn check_empty(pool: &MemoryPool) {
    assert_eq!(pool.blob_list(), []);
    assert_eq!(pool.log_list(), []);
    assert_eq!(list(&*pool.stores().register).unwrap(), []);
}

fn stage(pool: &MemoryPool, name: &str) -> Option<VolumeStage> {
    let volumes = list(&*pool.stores().register).unwrap();
    volumes.into_iter().find(|volume| volume.name == name).map(|volume| volume.stage)
}

#[test]
fn copy_outlives_the_original() {
    let owner = original(MemoryPool::new(1), 10);
    let pool = owner.pool.clone();
    copy(&owner, 20).unwrap();
    let blobs = pool.blob_list();
    let shared = blobs.iter().filter(|blob| blob.volumes.len() == 2).count();
    assert_eq!(shared, 3, "tables and large files are not copied: {blobs:?}");
    check(&owner.fs);
    owner.fs.close().unwrap();
    destroy(&pool, ORIGINAL, 30).unwrap();
    assert_eq!(stage(&pool, ORIGINAL), None);
    let fs = open(&pool, COPY, 40).unwrap();
    check(&fs);
    put(&fs, "3.sst", FileClass::Sst, b"more");
    fs.close().unwrap();
    destroy(&pool, COPY, 50).unwrap();
    check_empty(&pool);
}

#[test]
fn copy_goes_with_its_own_volume_only() {
    let owner = original(MemoryPool::new(1), 10);
    copy(&owner, 20).unwrap();
    let error = copy(&owner, 30).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("volume copy exists"), "{error}");
    destroy(&owner.pool, COPY, 40).unwrap();
    check(&owner.fs);
    assert!(owner.pool.blob_list().iter().all(|blob| blob.volumes.len() == 1));
    owner.fs.remove(&at("1.sst")).unwrap();
    sync_dir(&owner.fs);
    assert_eq!(owner.pool.blob_list().len(), 2);
}

#[test]
fn file_with_two_names_is_copied_once() {
    let owner = original(MemoryPool::new(1), 10);
    owner.fs.link(&at("1.sst"), &at("again.sst")).unwrap();
    copy(&owner, 20).unwrap();
    let fs = open(&owner.pool, COPY, 30).unwrap();
    assert_eq!(get(&fs, "again.sst"), get(&fs, "1.sst"));
    fs.remove(&at("1.sst")).unwrap();
    sync_dir(&fs);
    assert_eq!(get(&fs, "again.sst").unwrap(), pattern(20_000));
}

#[test]
fn failed_copy_cannot_be_opened_and_is_repeated() {
    let mut failures = 0;
    for call in PoolCall::ALL {
        // A copy may succeed despite one fault. If a wait for a log fails, the volume begins a new
        // generation of the namespace. It also repeats a failed change of the register. A longer
        // outage makes the copy fail.
        for (calls, fault) in [
            (1..=1, Fault::Refuse),
            (2..=2, Fault::LoseAnswer),
            (4..=4, Fault::Refuse),
            (1..=8, Fault::Refuse),
            (2..=8, Fault::LoseAnswer),
        ] {
            let owner = original(MemoryPool::new(*calls.start()), 10);
            let pool = owner.pool.clone();
            calls.clone().for_each(|nth| pool.inject(call, nth, fault));
            let copied = copy(&owner, 20);
            pool.clear_faults();
            let what = format!("{call:?} {calls:?} {fault:?}: {copied:?}");
            if copied.is_err() {
                failures += 1;
                let is_whole = stage(&pool, COPY) == Some(VolumeStage::Whole);
                let opened = open(&pool, COPY, 30).map(drop);
                // The answer to the last step may be lost.
                assert_eq!(opened.is_ok(), is_whole, "{what}, {opened:?}");
                if !is_whole {
                    copy(&owner, 40).unwrap_or_else(|error| panic!("{what}, again: {error}"));
                }
            }
            check(&open(&pool, COPY, 50).unwrap());
            check(&owner.fs);
            drop(owner);
            destroy(&pool, ORIGINAL, 60).unwrap();
            check(&open(&pool, COPY, 70).unwrap());
            destroy(&pool, COPY, 80).unwrap();
            check_empty(&pool);
        }
    }
    assert!(failures > 10, "{failures} copies failed");
}

/// Runs `work` on a pool of which a clone is made before its `at`th call, as after a kill of all
/// processes. `None` if there is no such call.
fn killed_at(pool: &MemoryPool, at: u64, work: impl FnOnce()) -> Option<MemoryPool> {
    let left = Arc::new(Mutex::new(None));
    let (place, calls, is_done) = (Arc::clone(&left), AtomicU64::new(0), AtomicBool::new(false));
    pool.on_call(Arc::new(move |pool, _| {
        let is_it = calls.fetch_add(1, Ordering::SeqCst) + 1 == at;
        if is_it && !is_done.swap(true, Ordering::SeqCst) {
            *place.lock() = Some(pool.kill_clone(at));
        }
    }));
    work();
    pool.clear_on_call();
    left.lock().take()
}

#[test]
fn copy_that_was_killed_is_completed_or_removed() {
    let mut kills = 0;
    for at in 1.. {
        let owner = original(MemoryPool::new(1), 10);
        let Some(pool) = killed_at(&owner.pool, at, || copy(&owner, 20).unwrap()) else { break };
        kills += 1;
        let stage = stage(&pool, COPY);
        let owner = Owner::take_over(pool.clone(), Sabotage::default(), 30).unwrap();
        check(&owner.fs);
        match stage {
            Some(VolumeStage::Whole) => check(&open(&pool, COPY, 40).unwrap()),
            Some(_) if at % 2 == 0 => {
                let error = open(&pool, COPY, 40).unwrap_err();
                assert!(error.to_string().contains("not complete"), "call {at}: {error}");
                destroy(&pool, COPY, 50).unwrap();
                assert!(pool.blob_list().iter().all(|blob| blob.volumes.len() == 1), "call {at}");
                check(&owner.fs);
            }
            _ => {
                copy(&owner, 60).unwrap_or_else(|error| panic!("call {at}: {error}"));
                check(&open(&pool, COPY, 70).unwrap());
            }
        }
        drop(owner);
        destroy(&pool, ORIGINAL, 80).unwrap();
        if self::stage(&pool, COPY).is_some() {
            destroy(&pool, COPY, 90).unwrap();
        }
        check_empty(&pool);
    }
    assert!(kills > 20, "{kills} kills");
}

#[test]
fn removal_that_was_killed_is_completed() {
    let mut kills = 0;
    for at in 1.. {
        let owner = original(MemoryPool::new(1), 10);
        copy(&owner, 20).unwrap();
        let work = || destroy(&owner.pool, ORIGINAL, 30).unwrap();
        let Some(pool) = killed_at(&owner.pool, at, work) else { break };
        kills += 1;
        match stage(&pool, ORIGINAL) {
            Some(VolumeStage::Whole) => check(&open(&pool, ORIGINAL, 40).unwrap()),
            Some(VolumeStage::Removing) => {
                let error = open(&pool, ORIGINAL, 40).unwrap_err();
                assert!(error.to_string().contains("is being removed"), "call {at}: {error}");
                let error = Volume::create(&pool.stores(), ORIGINAL, &VolumeOptions::new("x"));
                assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument, "call {at}");
            }
            other => panic!("call {at}: {other:?}"),
        }
        destroy(&pool, ORIGINAL, 50).unwrap_or_else(|error| panic!("call {at}: {error}"));
        check(&open(&pool, COPY, 60).unwrap());
        destroy(&pool, COPY, 70).unwrap();
        check_empty(&pool);
    }
    assert!(kills > 3, "{kills} kills");
}

#[test]
fn removal_that_failed_is_completed() {
    for call in [
        PoolCall::RegisterRead,
        PoolCall::RegisterSwap,
        PoolCall::BlobStrays,
        PoolCall::LogStrays,
        PoolCall::RegisterRemove,
    ] {
        for fault in [Fault::Refuse, Fault::LoseAnswer] {
            let owner = original(MemoryPool::new(1), 10);
            (1..=4).for_each(|nth| owner.pool.inject(call, nth, fault));
            let first = destroy(&owner.pool, ORIGINAL, 20);
            owner.pool.clear_faults();
            let again = destroy(&owner.pool, ORIGINAL, 30);
            // A removal whose answer was lost has happened.
            let is_gone = again.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
            assert!(again.is_ok() || is_gone, "{call:?} {fault:?}: {first:?}, {again:?}");
            check_empty(&owner.pool);
        }
    }
}

/// A clock that stands still, so that no lease ends. Its sleeps take their time.
#[derive(Debug, Default)]
struct StandingClock(SystemClock);

impl Clock for StandingClock {
    fn now_ns(&self) -> u64 {
        0
    }

    fn unix_ms(&self) -> u64 {
        self.0.unix_ms()
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration);
    }
}

#[test]
fn owner_that_lives_is_not_removed() {
    let pool = MemoryPool::new(1);
    let (lease, clock) = (Duration::from_secs(3), Arc::new(StandingClock::default()));
    // Only a renewal, by a thread that keeps real time, ends the watch of the remover.
    let options = |owner: &str| {
        let clock: Arc<dyn Clock> = Arc::clone(&clock) as _;
        VolumeOptions { lease, clock, ..VolumeOptions::new(owner) }
    };
    Volume::create(&pool.stores(), ORIGINAL, &options("nobody")).unwrap();
    let volume = Volume::open(&pool.stores(), ORIGINAL, &options("process 7")).unwrap();
    let fs = StoreFs::new(volume);
    fs.create_dir_all(Path::new(DIR)).unwrap();
    put(&fs, "1.sst", FileClass::Sst, b"table");
    let error = Volume::destroy(&pool.stores(), ORIGINAL, &options("remover")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("process 7"), "{error}");
    assert_eq!(stage(&pool, ORIGINAL), Some(VolumeStage::Whole));
    sync_dir(&fs);
    assert_eq!(get(&fs, "1.sst").unwrap(), b"table");
    // An operator may insist, and the owner is fenced.
    let insisting = VolumeOptions { take_over: true, ..options("remover") };
    Volume::destroy(&pool.stores(), ORIGINAL, &insisting).unwrap();
    let late = fs.write_atomic(&at("CURRENT"), b"late", context(FileClass::Manifest));
    let error = late.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    check_empty(&pool);
}
