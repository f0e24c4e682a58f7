//! Helpers that the tests of files share: a pool in memory, a volume on it, and short calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Epoch, Error};
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions, OpenOptions,
    RandomFile, WritableFile,
};
use archipelago_store::StoreFs;
use archipelago_store::memory::MemoryPool;
use archipelago_store::volume::{Volume, VolumeOptions};

use crate::owner::IdleThreads;

/// Directory of the files of all tests.
pub(crate) const DIR: &str = "/db";

/// Length of a lease that outlives every test.
const LEASE: Duration = Duration::from_secs(3600);

/// All classes of files that [`FileSystem::create`] takes.
pub(crate) const CLASSES: [FileClass; 5] =
    [FileClass::Wal, FileClass::Sst, FileClass::ValueSst, FileClass::Manifest, FileClass::Other];

pub(crate) fn at(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

pub(crate) fn context(class: FileClass) -> IoContext {
    IoContext::new(class, IoPurpose::Maintenance)
}

/// A pool with an empty volume, and the file system of its owner.
pub(crate) fn new_world(seed: u64) -> (MemoryPool, Arc<StoreFs>) {
    let pool = MemoryPool::new(seed);
    Volume::create(&pool.stores(), "db", &VolumeOptions::new("the tests")).unwrap();
    let fs = take_over(&pool);
    fs.create_dir_all(Path::new(DIR)).unwrap();
    (pool, fs)
}

/// The file system of a process that takes the volume over. It has no threads, so the calls of the
/// test release the objects that are due.
pub(crate) fn take_over(pool: &MemoryPool) -> Arc<StoreFs> {
    let options = VolumeOptions {
        lease: LEASE,
        take_over: true,
        spawn: Arc::new(IdleThreads),
        ..VolumeOptions::new("the tests")
    };
    StoreFs::new(Volume::open(&pool.stores(), "db", &options).unwrap())
}

pub(crate) fn create(fs: &StoreFs, name: &str, class: FileClass) -> Box<dyn WritableFile> {
    fs.create(&at(name), context(class), CreateOptions::default()).unwrap()
}

/// A file of `class` with `bytes`, which were synced.
pub(crate) fn put(fs: &StoreFs, name: &str, class: FileClass, bytes: &[u8]) {
    let mut file = create(fs, name, class);
    file.append(bytes).unwrap();
    file.sync().unwrap();
}

pub(crate) fn create_log(fs: &StoreFs, name: &str) -> Box<dyn LogFile> {
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    fs.create_log(&at(name), context(FileClass::Wal), options).unwrap()
}

pub(crate) fn open(fs: &StoreFs, name: &str) -> Arc<dyn RandomFile> {
    fs.open(&at(name), context(FileClass::Other), OpenOptions::default()).unwrap()
}

pub(crate) fn get(fs: &StoreFs, name: &str) -> Option<Vec<u8>> {
    match fs.read(&at(name), context(FileClass::Other)) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            assert_eq!(error.kind(), archipelago_base::ErrorKind::NotFound, "{error}");
            None
        }
    }
}

pub(crate) fn sync_dir(fs: &StoreFs) {
    fs.sync_dir(Path::new(DIR)).unwrap();
}

/// The error of a call that must fail, which names the file.
pub(crate) fn error_of<T>(outcome: Result<T, Error>, name: &str) -> Error {
    let error = outcome.err().expect("the call should have failed");
    let path = at(name).display().to_string();
    assert!(error.to_string().contains(&path), "{error} does not name {path}");
    error
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}
