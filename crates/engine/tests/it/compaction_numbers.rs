//! Compactions that write many more files than their inputs have: they reserve enough file numbers.

use std::sync::Arc;

use archipelago_engine::db::Db;
use archipelago_engine::event::{Event, EventListener};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, Compression};
use parking_lot::Mutex;

use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

/// Numbers of outputs of the compactions of one run.
#[derive(Default)]
struct Told(Mutex<Vec<usize>>);

impl Told {
    /// Number of outputs of the largest compaction since the last call.
    fn take_most(&self) -> usize {
        std::mem::take(&mut *self.0.lock()).into_iter().max().unwrap_or(0)
    }
}

impl EventListener for Told {
    fn on_event(&self, event: &Event) {
        if let Event::CompactionInstalled { outputs, .. } = event {
            self.0.lock().push(outputs.len());
        }
    }
}

/// Settings with one bucket, and with a memtable that holds all records of a test.
fn family(compression: Compression) -> CfOptions {
    CfOptions {
        buckets: 1,
        write_buffer_bytes: 16 << 20,
        level_base_bytes: 256 << 10,
        target_file_bytes: 4 << 10,
        compression,
        compression_last: compression,
        ..small_family()
    }
}

/// A database over `disk` whose background work is stepped.
fn open(disk: &TestDisk, family: CfOptions, told: &Arc<Told>) -> Db {
    let mut components = over(disk, family);
    components.listeners.add(Arc::clone(told) as _);
    Db::open_with("/db", small_db(), components).unwrap()
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// Puts `count` keys with `value` in order, and brings them into the last level.
fn fill_last_level(db: &Db, count: u32, value: &[u8]) {
    (0..count).for_each(|n| db.put(&key(n), value).unwrap());
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
}

#[test]
fn few_records_are_compacted_over_a_large_last_level() {
    let (disk, told) = (TestDisk::new(), Arc::new(Told::default()));
    let db = open(&disk, family(Compression::None), &told);
    fill_last_level(&db, 6000, &[b'v'; 1000]);
    assert!(told.take_most() > 1000, "tables of the target size");
    db.close().unwrap();

    // Each of four flushes has keys between all tables of the last level. Their compaction writes
    // little, but ends a table whenever it has passed ten target sizes of the last level.
    let small = CfOptions { write_buffer_bytes: 16 << 10, ..family(Compression::None) };
    let db = open(&disk, small, &told);
    for round in 0..4 {
        (0..100).for_each(|n| db.put(&key(15 * (4 * n + round)), b"new").unwrap());
        db.flush(db.default_family()).unwrap();
    }
    db.wait_for_background().unwrap();
    let most = told.take_most();
    assert!(most > 100, "{most} outputs");
    for n in 0..6000_u32 {
        let expected: &[u8] = if n.is_multiple_of(15) { b"new" } else { &[b'v'; 1000] };
        assert_eq!(db.get(&key(n)).unwrap().as_deref(), Some(expected), "key {n}");
    }
}

#[test]
fn compressed_tables_are_written_again_without_compression() {
    let (disk, told) = (TestDisk::new(), Arc::new(Told::default()));
    let value = [b'v'; 2000];
    let family = |compression| CfOptions {
        target_file_bytes: 8 << 10,
        block_bytes: 2 << 10,
        ..family(compression)
    };
    let db = open(&disk, family(Compression::Zstd), &told);
    fill_last_level(&db, 4000, &value);
    assert!((25..200).contains(&told.take_most()), "a table has many records");
    db.close().unwrap();

    // One job reads up to 25 target sizes. Four records then fill a table.
    let db = open(&disk, family(Compression::None), &told);
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    let most = told.take_most();
    assert!(most > 200, "{most} outputs");
    for n in 0..4000 {
        assert_eq!(db.get(&key(n)).unwrap().as_deref(), Some(&value[..]), "key {n}");
    }
}
