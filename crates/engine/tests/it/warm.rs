//! Data that is read often stays in the block cache when jobs rewrite it. Data that is not read
//! does not enter the cache.

use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::CfOptions;
use archipelago_env::mem::MemFs;

use crate::support::{over, small_db, small_family};

const KEYS: u32 = 1000;

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// All keys in one file of the last level, none of which was read there. `read`: number of keys
/// that are read while they are in memory.
fn settled(read: u32) -> Db {
    settled_in(None, read)
}

fn settled_in(budget: Option<Arc<ByteBudget>>, read: u32) -> Db {
    let family = CfOptions {
        buckets: 1,
        write_buffer_bytes: 1 << 20,
        target_file_bytes: 4 << 20,
        ..small_family()
    };
    let components = Components { budget, ..over(&MemFs::new(), family) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    (0..KEYS).for_each(|n| db.put(&key(n), &[1; 100]).unwrap());
    for n in 0..read {
        // Both kinds of read count.
        match n % 2 {
            0 => assert!(db.get(&key(n)).unwrap().is_some()),
            _ => {
                let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
                iter.seek(&key(n));
                assert!(iter.valid());
            }
        }
    }
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db
}

/// Number of these keys that are read without I/O. The file is opened for that, with its last
/// block.
fn warm(db: &Db, keys: impl Iterator<Item = u32>) -> usize {
    db.get(&key(KEYS - 1)).unwrap();
    let cached = ReadOptions { cache_only: true, ..ReadOptions::default() };
    keys.filter(|n| db.get_with(db.default_family(), &key(*n), &cached).is_ok()).count()
}

/// Writes every tenth key again, and compacts all keys.
fn rewrite(db: &Db) {
    (0..KEYS).step_by(10).for_each(|n| db.put(&key(n), &[2; 100]).unwrap());
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    assert_eq!(db.get(&key(KEYS - 10)).unwrap().unwrap()[..], [2; 100]);
}

#[test]
fn what_was_read_is_still_in_the_cache_when_it_was_compacted() {
    let db = settled(0);
    (0..100).for_each(|n| assert!(db.get(&key(n)).unwrap().is_some()));
    rewrite(&db);
    assert_eq!(warm(&db, 0..100), 100);
    assert_eq!(warm(&db, 200..900), 0, "nobody read these");
    rewrite(&db);
    assert_eq!(warm(&db, 0..100), 100, "also the next time");
}

#[test]
fn what_was_read_in_memory_is_in_the_cache_when_it_was_flushed() {
    assert_eq!(warm(&settled(0), 0..900), 0, "nobody read any");
    assert_eq!(warm(&settled(KEYS / 20), 0..900), 0, "too few to tell");
    assert_eq!(warm(&settled(KEYS / 10), 0..900), 900);
}

#[test]
fn blocks_of_files_that_are_gone_leave_the_cache() {
    let budget = ByteBudget::unlimited();
    let cached = || budget.used_bytes(MemoryClass::BlockCache);
    let db = settled_in(Some(Arc::clone(&budget)), 0);
    (0..KEYS).for_each(|n| assert!(db.get(&key(n)).unwrap().is_some()));
    let all = cached();
    assert!(all > 100 * u64::from(KEYS), "everything is there: {all}");
    for _ in 0..5 {
        rewrite(&db);
        assert_eq!(warm(&db, 0..KEYS), KEYS as usize);
        assert!(cached() < all * 11 / 10, "once: {} of {all}", cached());
    }
}
