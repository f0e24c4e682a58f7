//! Files of all classes on a pool: their bytes, their names, and what keeps their bytes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use archipelago_base::spawn::{Spawn, SystemSpawn};
use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::{CreateOptions, FileClass, FileSystem, LogOptions, WritableFile};
use archipelago_store::memory::{Fault, MemoryPool, PoolCall};

use crate::world::{
    CLASSES, DIR, at, context, create, create_log, error_of, get, new_world, open, pattern, put,
    sync_dir, take_over,
};

/// Number of logs in addition to that of the namespace.
fn file_logs(pool: &MemoryPool) -> usize {
    pool.log_list().len() - 1
}

#[test]
fn files_of_all_classes_survive_a_close() {
    let (pool, fs) = new_world(1);
    let sizes = [0usize, 1, 4096, 4097, 200_000];
    for (class, len) in CLASSES.into_iter().flat_map(|class| sizes.map(|len| (class, len))) {
        put(&fs, &format!("{class:?}-{len}"), class, &pattern(len));
    }
    let mut log = create_log(&fs, "log");
    log.append(&[b"re", b"cord"]).unwrap();
    drop(log);
    let check = |fs: &archipelago_store::StoreFs| {
        for (class, len) in CLASSES.into_iter().flat_map(|class| sizes.map(|len| (class, len))) {
            let name = format!("{class:?}-{len}");
            assert_eq!(get(fs, &name).unwrap(), pattern(len), "{name}");
            assert_eq!(fs.len(&at(&name)).unwrap(), len as u64, "{name}");
        }
        assert_eq!(get(fs, "log").unwrap(), b"record");
        assert_eq!(fs.list(Path::new(DIR)).unwrap().len(), sizes.len() * CLASSES.len() + 1);
    };
    check(&fs);
    fs.close().unwrap();
    drop(fs);
    check(&take_over(&pool));
    check(&take_over(&pool.crash_clone(5)));
}

#[test]
fn table_has_no_name_before_its_sync() {
    let (pool, fs) = new_world(1);
    for class in [FileClass::Sst, FileClass::ValueSst] {
        let name = format!("{class:?}");
        let mut table = create(&fs, &name, class);
        table.append(&pattern(100_000)).unwrap();
        table.flush().unwrap();
        assert_eq!((get(&fs, &name), fs.exists(&at(&name)).unwrap()), (None, false));
        assert_eq!(get(&take_over(&pool.kill_clone(3)), &name), None);
        table.sync().unwrap();
        table.sync().unwrap();
        assert_eq!(get(&fs, &name).unwrap(), pattern(100_000));
        assert_eq!(error_of(table.append(b"x"), &name).kind(), ErrorKind::Closed);
        sync_dir(&fs);
        assert_eq!(get(&take_over(&pool.crash_clone(3)), &name).unwrap(), pattern(100_000));
    }
}

#[test]
fn table_that_is_not_synced_is_given_up() {
    let (pool, fs) = new_world(1);
    let mut table = create(&fs, "1.sst", FileClass::Sst);
    table.append(&pattern(10_000)).unwrap();
    drop(table);
    assert_eq!(pool.blob_list(), []);
    fs.remove(&at("1.sst")).expect("a failed job removes its output");
    assert_eq!(error_of(fs.remove(&at("1.sst")), "1.sst").kind(), ErrorKind::NotFound);

    let mut table = create(&fs, "2.sst", FileClass::Sst);
    table.append(&pattern(10_000)).unwrap();
    fs.remove(&at("2.sst")).unwrap();
    table.sync().unwrap();
    assert_eq!(get(&fs, "2.sst"), None, "a removed path gets no file");
    drop(table);
    assert_eq!(pool.blob_list(), []);
}

#[test]
fn table_whose_pool_fails_names_its_path() {
    let (pool, fs) = new_world(1);
    for call in [PoolCall::BlobAppend, PoolCall::BlobSeal] {
        let mut table = create(&fs, "1.sst", FileClass::Sst);
        pool.inject(call, 1, Fault::Refuse);
        let written = table.append(b"bytes").and_then(|()| table.sync());
        error_of(written, "1.sst");
        pool.clear_faults();
        error_of(table.sync(), "1.sst");
        error_of(table.append(b"more"), "1.sst");
        drop(table);
        assert_eq!((get(&fs, "1.sst"), pool.blob_list()), (None, Vec::new()));
    }
}

#[test]
fn table_replaces_the_file_of_its_path_when_synced() {
    let (_, fs) = new_world(1);
    put(&fs, "1.sst", FileClass::Sst, b"old");
    let mut replaced = create(&fs, "1.sst", FileClass::Sst);
    replaced.append(b"never named").unwrap();
    let mut table = create(&fs, "1.sst", FileClass::Sst);
    table.append(b"new").unwrap();
    assert_eq!(get(&fs, "1.sst").unwrap(), b"old");
    replaced.sync().unwrap();
    assert_eq!(get(&fs, "1.sst").unwrap(), b"old", "a newer table was created there");
    table.sync().unwrap();
    assert_eq!(get(&fs, "1.sst").unwrap(), b"new");

    let mut table = create(&fs, "2.sst", FileClass::Sst);
    table.append(b"never named").unwrap();
    fs.rename(&at("1.sst"), &at("2.sst")).unwrap();
    table.sync().unwrap();
    assert_eq!(get(&fs, "2.sst").unwrap(), b"new", "the rename came later");
}

#[test]
fn small_file_stays_in_the_namespace() {
    let (pool, fs) = new_world(1);
    let mut file = create(&fs, "notes", FileClass::Other);
    for _ in 0..8 {
        file.append(&[7; 512]).unwrap();
        file.flush().unwrap();
    }
    file.sync().unwrap();
    assert_eq!(get(&fs, "notes").unwrap(), [7; 4096]);
    assert_eq!((file_logs(&pool), pool.blob_list()), (0, Vec::new()));
    file.append(b"x").unwrap();
    file.sync().unwrap();
    assert_eq!(get(&fs, "notes").unwrap().len(), 4097);
    assert_eq!(file_logs(&pool), 1);
}

#[test]
fn manifest_that_grows_after_a_sync_becomes_a_log() {
    let (pool, fs) = new_world(1);
    let mut manifest = create(&fs, "MANIFEST-1", FileClass::Manifest);
    manifest.append(b"header").unwrap();
    manifest.sync().unwrap();
    assert_eq!(file_logs(&pool), 0);
    manifest.append(b" edit").unwrap();
    assert_eq!(get(&fs, "MANIFEST-1").unwrap(), b"header");
    manifest.sync().unwrap();
    manifest.append(b" mark").unwrap();
    manifest.submit().unwrap();
    assert_eq!((manifest.len(), file_logs(&pool)), (16, 1));
    assert!(get(&fs, "MANIFEST-1").unwrap().starts_with(b"header edit"));
    manifest.flush().unwrap();
    assert_eq!(get(&fs, "MANIFEST-1").unwrap(), b"header edit mark");
    assert_eq!(fs.len(&at("MANIFEST-1")).unwrap(), 16);
    drop(manifest);
    assert_eq!(get(&take_over(&pool.kill_clone(1)), "MANIFEST-1").unwrap(), b"header edit mark");
}

#[test]
fn readers_cross_from_the_record_into_the_log() {
    let (_, fs) = new_world(1);
    let whole = pattern(9_000);
    let mut file = create(&fs, "grown", FileClass::Other);
    file.append(&whole[..3000]).unwrap();
    file.sync().unwrap();
    let early = open(&fs, "grown");
    file.append(&whole[3000..]).unwrap();
    file.sync().unwrap();
    let late = open(&fs, "grown");
    assert_eq!((early.len(), late.len()), (3000, 9000));
    for (start, len) in [(0, 9000), (2999, 2), (3000, 1), (0, 3000), (8000, 1000), (9000, 0)] {
        let mut buf = vec![0; len];
        late.read_exact_at(start as u64, &mut buf, context(FileClass::Other)).unwrap();
        assert_eq!(buf, whole[start..start + len], "{len} at {start}");
    }
    let (mut one, mut two) = ([0; 20], [0; 20]);
    let mut requests = [(2990, &mut one[..]), (100, &mut two[..])];
    late.read_many(&mut requests, context(FileClass::Other)).unwrap();
    assert_eq!((&one[..], &two[..]), (&whole[2990..3010], &whole[100..120]));
    let past = early.read_exact_at(2999, &mut [0; 2], context(FileClass::Other));
    assert!(error_of(past, "grown").to_string().contains("past the end"));
}

#[test]
fn readers_keep_the_bytes_of_a_removed_file() {
    let (pool, fs) = new_world(1);
    for class in CLASSES {
        put(&fs, "gone", class, &pattern(50_000));
        let reader = open(&fs, "gone");
        fs.remove(&at("gone")).unwrap();
        sync_dir(&fs);
        assert_eq!(get(&fs, "gone"), None);
        let mut bytes = vec![0; 50_000];
        reader.read_exact_at(0, &mut bytes, context(class)).unwrap();
        assert_eq!(bytes, pattern(50_000), "{class:?}");
        drop(reader);
        sync_dir(&fs);
        assert_eq!((pool.blob_list(), file_logs(&pool)), (Vec::new(), 0), "{class:?}");
    }
}

#[test]
fn readers_keep_a_file_that_a_rename_replaced() {
    let (pool, fs) = new_world(1);
    put(&fs, "to", FileClass::Sst, b"old content");
    put(&fs, "from", FileClass::Sst, b"new");
    let reader = open(&fs, "to");
    fs.rename(&at("from"), &at("to")).unwrap();
    sync_dir(&fs);
    assert_eq!((get(&fs, "to").unwrap(), get(&fs, "from")), (b"new".to_vec(), None));
    let mut old = [0; 11];
    reader.read_exact_at(0, &mut old, context(FileClass::Sst)).unwrap();
    assert_eq!(&old, b"old content");
    assert_eq!(pool.blob_list().len(), 2);
    drop(reader);
    sync_dir(&fs);
    assert_eq!(pool.blob_list().len(), 1);
}

#[test]
fn linked_file_stays_until_its_last_name_goes() {
    let (pool, fs) = new_world(1);
    fs.create_dir_all(&at("copy")).unwrap();
    for class in [FileClass::Sst, FileClass::Manifest] {
        put(&fs, "one", class, &pattern(9_000));
        fs.link(&at("one"), &at("copy/one")).unwrap();
        error_of(fs.link(&at("one"), &at("copy/one")), "copy/one");
        fs.remove(&at("one")).unwrap();
        sync_dir(&fs);
        assert_eq!(get(&fs, "copy/one").unwrap(), pattern(9_000));
        fs.remove_dir_all(&at("copy")).unwrap();
        sync_dir(&fs);
        assert_eq!((pool.blob_list(), file_logs(&pool)), (Vec::new(), 0), "{class:?}");
        fs.create_dir_all(&at("copy")).unwrap();
    }
}

#[test]
fn writer_of_a_renamed_file_goes_on() {
    let (pool, fs) = new_world(1);
    let mut file = create(&fs, "a", FileClass::Manifest);
    file.append(b"one ").unwrap();
    file.sync().unwrap();
    fs.rename(&at("a"), &at("b")).unwrap();
    file.append(b"two ").unwrap();
    file.sync().unwrap();
    file.append(b"three").unwrap();
    file.flush().unwrap();
    let mut log = create_log(&fs, "1.log");
    log.append(&[b"x"]).unwrap();
    fs.rename(&at("1.log"), &at("2.log")).unwrap();
    log.append(&[b"y"]).unwrap();
    sync_dir(&fs);
    let left = take_over(&pool.kill_clone(7));
    assert_eq!(get(&left, "b").unwrap(), b"one two three");
    assert_eq!(get(&left, "2.log").unwrap(), b"xy");
    assert_eq!((get(&left, "a"), get(&left, "1.log")), (None, None));
}

#[test]
fn writer_of_a_removed_file_goes_on_without_effect() {
    let (pool, fs) = new_world(1);
    let mut files: Vec<Box<dyn WritableFile>> = Vec::new();
    for (name, len) in [("inline", 10), ("log", 10_000)] {
        let mut file = create(&fs, name, FileClass::Other);
        file.append(&pattern(len)).unwrap();
        file.sync().unwrap();
        fs.remove(&at(name)).unwrap();
        files.push(file);
    }
    for file in &mut files {
        for _ in 0..3 {
            file.append(&pattern(3_000)).unwrap();
            file.sync().unwrap();
        }
        file.append(&pattern(100_000)).unwrap();
        file.flush().unwrap();
    }
    assert_eq!(files[0].len(), 109_010);
    let mut log = create_log(&fs, "1.log");
    fs.remove(&at("1.log")).unwrap();
    log.append(&[b"x"]).unwrap();
    drop((files, log));
    sync_dir(&fs);
    assert_eq!(file_logs(&pool), 0);
    assert_eq!(fs.list(Path::new(DIR)).unwrap(), []);
}

#[test]
fn recycled_segment_gives_way_to_a_new_log() {
    let (pool, fs) = new_world(1);
    let mut old = create_log(&fs, "1.log");
    old.append(&[&pattern(5_000)]).unwrap();
    drop(old);
    let recycle = Some(at("1.log"));
    let options = LogOptions { incarnation: Epoch(2), size_hint_bytes: 0, recycle };
    let mut new = fs.create_log(&at("2.log"), context(FileClass::Wal), options).unwrap();
    new.append(&[b"new"]).unwrap();
    assert_eq!((get(&fs, "1.log"), get(&fs, "2.log").unwrap()), (None, b"new".to_vec()));
    sync_dir(&fs);
    assert_eq!(file_logs(&pool), 1);
    assert!(!fs.recycles_logs());
}

#[test]
fn segment_takes_a_trailer_after_its_finish() {
    let (pool, fs) = new_world(1);
    let mut log = create_log(&fs, "1.log");
    assert_eq!(log.submit(&[b"one", b"two"]).unwrap(), 0);
    let sync = log.sync_handle();
    assert!(log.acknowledges_later());
    assert_eq!(sync.acknowledged(), 0);
    sync.wait(6).unwrap();
    assert_eq!(sync.acknowledged(), 6);
    log.finish().unwrap();
    assert_eq!(error_of(log.append(&[b"x"]), "1.log").kind(), ErrorKind::Closed);
    log.append_trailer(b"end").unwrap();
    drop(log);
    assert_eq!(sync.sync().unwrap(), 9);
    drop(sync);
    assert_eq!(get(&take_over(&pool.crash_clone(2)), "1.log").unwrap(), b"onetwoend");
}

#[test]
fn failed_log_keeps_its_error() {
    let (pool, fs) = new_world(1);
    let mut log = create_log(&fs, "1.log");
    log.append(&[b"whole"]).unwrap();
    pool.inject(PoolCall::LogWait, 1, Fault::Refuse);
    let first = error_of(log.append(&[b"lost"]), "1.log");
    pool.clear_faults();
    assert_eq!(error_of(log.append(&[b"more"]), "1.log").kind(), first.kind());
    error_of(log.finish(), "1.log");
    drop(log);
    assert!(get(&take_over(&pool), "1.log").unwrap().starts_with(b"whole"));
}

#[test]
fn atomic_write_of_many_bytes_lies_in_a_blob() {
    let (pool, fs) = new_world(1);
    for len in [10, 5_000, 70_000, 4_096] {
        let bytes = pattern(len);
        fs.write_atomic(&at("pointer"), &bytes, context(FileClass::Manifest)).unwrap();
        assert_eq!(get(&fs, "pointer").unwrap(), bytes);
        assert_eq!(pool.blob_list().len(), usize::from(len > 4_096), "{len}");
        assert_eq!(get(&take_over(&pool.crash_clone(1)), "pointer").unwrap(), bytes);
    }
    assert_eq!(fs.list(Path::new(DIR)).unwrap().len(), 1, "no other file is left");
}

#[test]
fn reserved_bytes_occupy_the_pool_until_removed() {
    let (pool, fs) = new_world(1);
    let before = pool.used_bytes();
    fs.allocate(&at("ballast"), 300_000).unwrap();
    assert!(pool.used_bytes() >= before + 300_000);
    assert_eq!(take_over(&pool.crash_clone(1)).len(&at("ballast")).unwrap(), 300_000);
    fs.remove(&at("ballast")).unwrap();
    sync_dir(&fs);
    assert_eq!(pool.blob_list(), []);
    pool.set_capacity(Some(pool.used_bytes() + 1000));
    assert!(fs.allocate(&at("ballast"), 300_000).unwrap_err().is_no_space());
    assert_eq!(fs.list(Path::new(DIR)).unwrap(), []);
    assert!(fs.free_bytes(Path::new(DIR)).unwrap().is_some_and(|bytes| bytes <= 1000));
}

#[test]
fn lock_is_exclusive_in_its_process() {
    let (_, fs) = new_world(1);
    let held = fs.lock(&at("LOCK")).unwrap();
    let error = error_of(fs.lock(&at("LOCK")), "LOCK");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    assert!(fs.hold(&at("NONE")).unwrap().is_none());
    drop(held);
    assert!(fs.hold(&at("LOCK")).unwrap().is_some());
    drop(fs.lock(&at("LOCK")).unwrap());
}

#[test]
fn owner_that_lost_its_volume_is_fenced() {
    let (pool, fs) = new_world(1);
    put(&fs, "1.sst", FileClass::Sst, b"table");
    let mut log = create_log(&fs, "1.log");
    log.append(&[b"kept"]).unwrap();
    let mut manifest = create(&fs, "MANIFEST-1", FileClass::Manifest);
    manifest.append(b"kept").unwrap();
    manifest.sync().unwrap();
    drop(fs.lock(&at("LOCK")).unwrap());
    sync_dir(&fs);

    let new = take_over(&pool);
    let fenced = [
        error_of(log.append(&[b"late"]), "1.log"),
        error_of(manifest.append(b"late").and_then(|()| manifest.sync()), "MANIFEST-1"),
        error_of(fs.lock(&at("LOCK")), "LOCK"),
        error_of(fs.create(&at("2"), context(FileClass::Other), CreateOptions::default()), "2"),
        error_of(fs.write_atomic(&at("CURRENT"), b"late", context(FileClass::Manifest)), "CURRENT"),
        error_of(fs.remove(&at("1.sst")), "1.sst"),
        error_of(fs.open(&at("1.sst"), context(FileClass::Sst), Default::default()), "1.sst"),
    ];
    for error in fenced {
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    }
    drop((log, manifest, fs));
    assert_eq!(get(&new, "1.log").unwrap(), b"kept");
    assert_eq!(get(&new, "MANIFEST-1").unwrap(), b"kept");
    assert_eq!(get(&new, "1.sst").unwrap(), b"table");
    assert!(new.lock(&at("LOCK")).is_ok());
}

#[test]
fn closed_volume_refuses_changes() {
    let (_, fs) = new_world(1);
    fs.close().unwrap();
    let error = fs.create(&at("x"), context(FileClass::Other), CreateOptions::default());
    assert_eq!(error_of(error, "x").kind(), ErrorKind::Closed);
    assert_eq!(error_of(fs.lock(&at("LOCK")), "LOCK").kind(), ErrorKind::Closed);
}

#[test]
fn boot_of_the_volume_outlives_kills_and_not_power_loss() {
    let (pool, fs) = new_world(1);
    let mut log = create_log(&fs, "1.log");
    log.append(&[b"not synced"]).unwrap();
    let boot = fs.boot_id().expect("a volume has a boot");
    assert_eq!(take_over(&pool.kill_clone(1)).boot_id(), Some(boot));
    assert_ne!(take_over(&pool.crash_clone(1)).boot_id(), Some(boot));
}

#[test]
fn rename_of_a_file_never_moves_a_directory() {
    let (_, fs) = new_world(1);
    let (from, to) = (at("from"), at("to"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for _ in 0..2_000 {
                // The path is a file, then a directory, and the other thread renames what it finds.
                drop(fs.create(&from, context(FileClass::Other), CreateOptions::default()));
                let _gone = fs.remove(&from);
                let _taken = fs.create_dir_all(&from);
                let _moved = fs.remove_dir_all(&from);
            }
            is_over.store(true, Ordering::Release);
        });
        while !is_over.load(Ordering::Acquire) {
            if fs.rename(&from, &to).is_ok() {
                let entries = fs.list(Path::new(DIR)).unwrap();
                let moved = entries.iter().find(|entry| entry.name == "to").expect("renamed");
                assert!(!moved.is_dir, "a directory was moved");
                fs.remove(&to).unwrap();
            }
        }
        changing.join().unwrap();
    });
}

#[test]
fn table_that_is_created_after_a_file_of_its_path_gets_its_name() {
    let (pool, fs) = new_world(1);
    let (hooked, other) = (Arc::clone(&fs), Arc::new(parking_lot::Mutex::new(None)));
    let (begun, submits) = (Arc::clone(&other), AtomicUsize::new(0));
    // Another thread begins a table while the file of the same path is being committed.
    pool.on_call(Arc::new(move |_, call| {
        if call == PoolCall::LogSubmit && submits.fetch_add(1, Ordering::SeqCst) == 0 {
            let fs = Arc::clone(&hooked);
            let work = move || put(&fs, "x", FileClass::Sst, b"the table is newer");
            *begun.lock() = Some(SystemSpawn.spawn("later table", Box::new(work)).unwrap());
        }
    }));
    put(&fs, "x", FileClass::Other, b"the file is older");
    pool.clear_on_call();
    let table = other.lock().take().expect("a commit was submitted");
    table.join().unwrap();
    assert_eq!(get(&fs, "x").unwrap(), b"the table is newer");
}
