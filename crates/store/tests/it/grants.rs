//! Tables that a process writes which does not own the volume, by a grant of the owner.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::ErrorKind;
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, LogOptions, OpenOptions, WritableFile,
};
use archipelago_store::memory::{Fault, MemoryPool, PoolCall};
use archipelago_store::{BlobGrant, BlobId, GrantedFs, StoreFs, WrittenBlobs};

use crate::world::{DIR, at, context, error_of, get, new_world, pattern, put, sync_dir, take_over};

/// The files of a grant in another process.
fn granted(pool: &MemoryPool, grant: &BlobGrant) -> Arc<GrantedFs> {
    GrantedFs::new(pool.stores(), Path::new(DIR), grant.clone())
}

/// Begins a table as jobs do.
fn begin(files: &GrantedFs, name: &str) -> archipelago_base::Result<Box<dyn WritableFile>> {
    let options = CreateOptions { exclusive: true, ..CreateOptions::default() };
    files.create(&at(name), context(FileClass::Sst), options)
}

/// Writes a table as jobs do.
fn write(files: &GrantedFs, name: &str, bytes: &[u8]) -> archipelago_base::Result<()> {
    let mut file = begin(files, name)?;
    file.append(bytes)?;
    file.sync()?;
    files.sync_dir(Path::new(DIR))
}

/// Number of blobs that the pool has.
fn blobs(pool: &MemoryPool) -> usize {
    pool.blob_list().len()
}

/// A volume with the durable table `1.sst`.
fn with_input(seed: u64) -> (MemoryPool, Arc<StoreFs>) {
    let (pool, fs) = new_world(seed);
    put(&fs, "1.sst", FileClass::Sst, &pattern(50_000));
    sync_dir(&fs);
    (pool, fs)
}

#[test]
fn tables_of_an_executor_are_files_once_the_owner_names_them() {
    let (pool, fs) = with_input(1);
    let (grant, pending) = fs.grant(Path::new(DIR), &["1.sst".to_owned()], 4).unwrap();
    let files = granted(&pool, &grant);
    let input = files.open(&at("1.sst"), context(FileClass::Sst), OpenOptions::default()).unwrap();
    let mut bytes = vec![0; 1000];
    input.read_exact_at(7, &mut bytes, context(FileClass::Sst)).unwrap();
    assert_eq!(bytes, &pattern(50_000)[7..1007]);
    for (name, len) in [("2.sst", 70_000), ("3.sst", 0), ("4.sst", 9)] {
        write(&files, name, &pattern(len)).unwrap();
    }
    // An output that the job has taken back.
    files.remove(&at("4.sst")).unwrap();
    let written = files.written();
    assert_eq!((written.begun, written.files.len()), (3, 2));
    assert_eq!(get(&fs, "2.sst"), None, "it has no name yet");
    pending.name(&written).unwrap();
    let check = |fs: &StoreFs| {
        assert_eq!(get(fs, "2.sst").unwrap(), pattern(70_000));
        assert_eq!(get(fs, "3.sst").unwrap(), []);
        assert_eq!(fs.list(Path::new(DIR)).unwrap().len(), 3);
    };
    check(&fs);
    assert_eq!(blobs(&pool), 3, "the identity that was taken back is given up");
    // The names are durable without another call.
    for seed in 0..5 {
        check(&take_over(&pool.crash_clone(seed)));
    }
    fs.remove(&at("2.sst")).unwrap();
    sync_dir(&fs);
    assert_eq!(blobs(&pool), 2);
}

#[test]
fn identities_that_nobody_began_cost_no_call_of_the_pool() {
    let (pool, fs) = with_input(1);
    let releases = pool.calls(PoolCall::BlobRelease);
    let (grant, pending) = fs.grant(Path::new(DIR), &[], 100).unwrap();
    let files = granted(&pool, &grant);
    write(&files, "2.sst", b"coral").unwrap();
    pending.name(&files.written()).unwrap();
    let (_, unused) = fs.grant(Path::new(DIR), &[], 100).unwrap();
    unused.unused();
    assert_eq!(pool.calls(PoolCall::BlobRelease), releases);
}

#[test]
fn abandoned_attempt_leaves_nothing_however_late_its_executor_is() {
    let (pool, fs) = with_input(1);
    let (grant, pending) = fs.grant(Path::new(DIR), &["1.sst".to_owned()], 4).unwrap();
    let files = granted(&pool, &grant);
    write(&files, "2.sst", &pattern(1000)).unwrap();
    let mut half = begin(&files, "3.sst").unwrap();
    half.append(&pattern(1000)).unwrap();
    assert_eq!(blobs(&pool), 3);
    drop(pending);
    assert_eq!(blobs(&pool), 1, "the input alone");
    // The executor wakes up.
    error_of(half.append(b"late"), "3.sst");
    error_of(half.sync(), "3.sst");
    error_of(write(&files, "4.sst", b"late"), "4.sst");
    assert_eq!(blobs(&pool), 1);
    assert_eq!(fs.list(Path::new(DIR)).unwrap().len(), 1);
}

#[test]
fn owner_names_only_what_it_has_granted() {
    let (pool, fs) = with_input(1);
    let attempt = |change: &dyn Fn(&mut WrittenBlobs, &BlobGrant)| {
        let (grant, pending) = fs.grant(Path::new(DIR), &[], 4).unwrap();
        let files = granted(&pool, &grant);
        write(&files, "2.sst", b"coral").unwrap();
        write(&files, "3.sst", b"coral").unwrap();
        let mut written = files.written();
        change(&mut written, &grant);
        let outcome = pending.name(&written);
        assert_eq!(fs.list(Path::new(DIR)).unwrap().len(), if outcome.is_ok() { 3 } else { 1 });
        assert_eq!(blobs(&pool), if outcome.is_ok() { 3 } else { 1 });
        outcome
    };
    let refused = |change: &dyn Fn(&mut WrittenBlobs, &BlobGrant)| {
        assert_eq!(attempt(change).unwrap_err().kind(), ErrorKind::InvalidArgument);
    };
    refused(&|written, _| written.files[0].blob.id = BlobId([7; 16]));
    refused(&|written, _| written.files[1].blob = written.files[0].blob.clone());
    refused(&|written, _| written.begun = 1);
    refused(&|written, _| written.begun = 5);
    refused(&|written, grant| written.files[0].blob.id = grant.outputs[2]);
    refused(&|written, _| written.files[0].class = FileClass::Wal);
    refused(&|written, _| written.files[0].name = "3.sst".to_owned());
    for name in ["", ".", "..", "a/2.sst", "../2.sst", "/2.sst", "2.sst/"] {
        refused(&|written, _| written.files[0].name = name.to_owned());
    }
    let error = attempt(&|written, _| written.files[0].name = "1.sst".to_owned()).unwrap_err();
    assert!(error.to_string().contains("1.sst"), "{error}");
    assert_eq!(get(&fs, "1.sst").unwrap(), pattern(50_000));
    attempt(&|_, _| {}).unwrap();
}

#[test]
fn inputs_of_a_grant_are_tables_that_exist() {
    let (_pool, fs) = with_input(1);
    put(&fs, "IDENTITY", FileClass::Other, b"small");
    let grant = |name: &str| fs.grant(Path::new(DIR), &[name.to_owned()], 1);
    assert_eq!(error_of(grant("9.sst"), "9.sst").kind(), ErrorKind::NotFound);
    assert_eq!(error_of(grant("IDENTITY"), "IDENTITY").kind(), ErrorKind::Unsupported);
    fs.grant(Path::new("/nowhere"), &[], 1).unwrap_err();
}

#[test]
fn executor_of_an_old_owner_is_fenced_and_leaves_nothing() {
    let (pool, old) = with_input(1);
    let (grant, pending) = old.grant(Path::new(DIR), &["1.sst".to_owned()], 4).unwrap();
    let files = granted(&pool, &grant);
    write(&files, "2.sst", &pattern(1000)).unwrap();
    let mut half = begin(&files, "3.sst").unwrap();
    half.append(&pattern(1000)).unwrap();
    let new = take_over(&pool);
    assert_eq!(blobs(&pool), 1, "the take-over releases what has no name");
    error_of(half.sync(), "3.sst");
    assert_eq!(error_of(write(&files, "4.sst", b"late"), "4.sst").kind(), ErrorKind::Fenced);
    assert_eq!(pending.name(&files.written()).unwrap_err().kind(), ErrorKind::Fenced);
    drop((files, old));
    assert_eq!(blobs(&pool), 1);
    assert_eq!(get(&new, "1.sst").unwrap(), pattern(50_000));
    assert_eq!(new.list(Path::new(DIR)).unwrap().len(), 1);
    // The new owner grants in its own epoch.
    let (grant, pending) = new.grant(Path::new(DIR), &[], 1).unwrap();
    let files = granted(&pool, &grant);
    write(&files, "2.sst", b"coral").unwrap();
    pending.name(&files.written()).unwrap();
    assert_eq!(get(&new, "2.sst").unwrap(), b"coral");
}

#[test]
fn owner_that_dies_before_the_names_leaves_no_blob() {
    for is_named in [false, true] {
        let (pool, fs) = with_input(1);
        let (grant, pending) = fs.grant(Path::new(DIR), &[], 2).unwrap();
        let files = granted(&pool, &grant);
        write(&files, "2.sst", b"coral").unwrap();
        if is_named {
            pending.name(&files.written()).unwrap();
        } else {
            // A killed process drops nothing.
            std::mem::forget(pending);
        }
        let pool = pool.crash_clone(3);
        let next = take_over(&pool);
        assert_eq!(next.exists(&at("2.sst")).unwrap(), is_named);
        assert_eq!(blobs(&pool), 1 + usize::from(is_named));
    }
}

#[test]
fn output_whose_seal_failed_is_given_up() {
    let (pool, fs) = with_input(1);
    let (grant, pending) = fs.grant(Path::new(DIR), &[], 2).unwrap();
    let files = granted(&pool, &grant);
    pool.inject(PoolCall::BlobSeal, 1, Fault::Refuse);
    error_of(write(&files, "2.sst", b"coral"), "2.sst");
    let written = files.written();
    assert_eq!((written.begun, written.files.len()), (1, 0));
    drop(pending);
    assert_eq!(blobs(&pool), 1);
}

#[test]
fn granted_files_refuse_what_only_the_owner_may_do() {
    let (pool, fs) = with_input(1);
    let (grant, pending) = fs.grant(Path::new(DIR), &["1.sst".to_owned()], 1).unwrap();
    let files = granted(&pool, &grant);
    let unsupported = |outcome: archipelago_base::Result<()>| {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported);
    };
    let (input, other) = (at("1.sst"), at("2.sst"));
    unsupported(files.remove(&input));
    unsupported(files.rename(&input, &other));
    unsupported(files.link(&input, &other));
    unsupported(files.write_atomic(&other, b"bytes", context(FileClass::Other)));
    unsupported(files.remove_dir_all(Path::new(DIR)));
    unsupported(files.create_dir_all(Path::new("/elsewhere")));
    unsupported(files.lock(&at("LOCK")).map(drop));
    let log =
        LogOptions { incarnation: archipelago_base::Epoch(1), size_hint_bytes: 0, recycle: None };
    unsupported(files.create_log(&at("1.log"), context(FileClass::Wal), log).map(drop));
    let options = CreateOptions::default();
    unsupported(files.create(&at("A"), context(FileClass::Other), options).map(drop));
    assert!(files.create(&input, context(FileClass::Sst), options).is_err(), "it exists");
    let outside = Path::new("/elsewhere/2.sst");
    let error = files.create(outside, context(FileClass::Sst), options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    write(&files, "2.sst", b"coral").unwrap();
    let error = write(&files, "3.sst", b"coral").unwrap_err();
    assert!(error.to_string().contains("all 1 identities"), "{error}");
    let names: Vec<String> =
        files.list(Path::new(DIR)).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["1.sst", "2.sst"]);
    assert_eq!((files.len(&other).unwrap(), files.exists(&at("3.sst")).unwrap()), (5, false));
    drop(pending);
}
