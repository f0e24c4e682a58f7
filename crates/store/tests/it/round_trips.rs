//! Round trips of the file system: calls of the pool for whose answers a thread waits.

use archipelago_env::{FileClass, FileSystem};
use archipelago_store::StoreFs;
use archipelago_store::memory::MemoryPool;

use crate::world::{at, context, create, create_log, get, new_world, open, pattern, put, sync_dir};

/// Limit for the flush of a table and its manifest edit.
const FLUSH_ROUND_TRIPS_MAX: u64 = 6;

/// Number of round trips of `work`.
fn count(pool: &MemoryPool, work: impl FnOnce()) -> u64 {
    let before = pool.round_trips();
    work();
    pool.round_trips() - before
}

/// Writes the tables of a flush: one of keys, and one of values if they are separated.
fn write_tables(fs: &StoreFs, no: u32, classes: &[FileClass]) {
    for class in classes {
        let mut table = create(fs, &format!("{no}-{class:?}"), *class);
        for piece in pattern(300_000).chunks(4096) {
            table.append(piece).unwrap();
        }
        table.sync().unwrap();
    }
    sync_dir(fs);
}

#[test]
fn flush_with_its_manifest_edit_takes_few_round_trips() {
    let (pool, fs) = new_world(1);
    let mut manifest = create(&fs, "MANIFEST-1", FileClass::Manifest);
    manifest.append(&pattern(500)).unwrap();
    manifest.sync().unwrap();
    let mut mark = create(&fs, "MARK-1", FileClass::Manifest);
    for no in 0..4 {
        for classes in [&[FileClass::Sst][..], &[FileClass::Sst, FileClass::ValueSst]] {
            let trips = count(&pool, || {
                write_tables(&fs, no, classes);
                manifest.append(&pattern(200)).unwrap();
                manifest.sync().unwrap();
                // The marks of an edit, as the engine writes them.
                for file in [&mut mark, &mut manifest] {
                    file.append(&pattern(24)).unwrap();
                    file.submit().unwrap();
                }
                for class in classes {
                    drop(open(&fs, &format!("{no}-{class:?}")));
                }
            });
            assert!(trips <= FLUSH_ROUND_TRIPS_MAX, "{trips} with {classes:?}");
            assert!(trips >= 3, "a seal, the names and the edit are waited for, not {trips}");
        }
    }
}

#[test]
fn submitted_appends_share_one_round_trip() {
    let (pool, fs) = new_world(1);
    let mut log = create_log(&fs, "1.log");
    log.append(&[b"header"]).unwrap();
    let sync = log.sync_handle();
    let submits = count(&pool, || {
        for _ in 0..10 {
            log.submit(&[b"record"]).unwrap();
        }
    });
    assert_eq!(submits, 0);
    assert_eq!(count(&pool, || sync.wait(66).unwrap()), 1);
    assert_eq!(count(&pool, || sync.wait(6).unwrap()), 0, "it is acknowledged already");
    assert_eq!(get(&fs, "1.log").unwrap().len(), 66);
}

#[test]
fn changes_of_names_share_one_round_trip() {
    let (pool, fs) = new_world(1);
    for no in 0..5 {
        put(&fs, &no.to_string(), FileClass::Sst, b"table");
    }
    sync_dir(&fs);
    let changes = count(&pool, || {
        fs.rename(&at("0"), &at("5")).unwrap();
        fs.link(&at("1"), &at("6")).unwrap();
        drop(create(&fs, "7", FileClass::Other));
        assert!(fs.exists(&at("5")).unwrap());
        assert_eq!(fs.len(&at("6")).unwrap(), 5);
    });
    assert_eq!(changes, 0);
    assert_eq!(count(&pool, || sync_dir(&fs)), 1);
    assert_eq!(count(&pool, || sync_dir(&fs)), 0, "nothing changed since");
}

#[test]
fn pointer_is_replaced_in_one_round_trip() {
    let (pool, fs) = new_world(1);
    let replace = || fs.write_atomic(&at("CURRENT"), b"2", context(FileClass::Manifest)).unwrap();
    assert_eq!(count(&pool, replace), 1);
    assert_eq!(count(&pool, replace), 1);
}
