//! Reads that want keys and no values: they return the rows of full reads, and read no large value.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_engine::db::{ColumnFamily, Components, Db, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, WriteOptions};

use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

/// Time at which values with an expiry expire, in Unix milliseconds.
const EXPIRY_MS: u64 = 10_000;

fn open() -> (Db, ColumnFamily, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(1_000));
    let components =
        Components { clock: Arc::clone(&clock) as _, ..over(&TestDisk::new(), small_family()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let counters = CfOptions { merge_operator: Some("u64-counter".to_owned()), ..small_family() };
    let family = db.create_family("counters", counters).unwrap();
    (db, family, clock)
}

type Shown = Vec<(Vec<u8>, Option<u64>)>;

/// Keys and expiries, forwards or backwards.
fn shown(db: &Db, family: &ColumnFamily, options: &ReadOptions, backward: bool) -> Shown {
    let mut iter = db.iter(family, options).unwrap();
    let mut all = Shown::new();
    if backward {
        iter.seek_to_last();
    } else {
        iter.seek_to_first();
    }
    while iter.valid() {
        all.push((iter.key().to_vec(), iter.expires_at_ms()));
        if backward { iter.prev() } else { iter.next() }
    }
    iter.status().unwrap();
    if backward {
        all.reverse();
    }
    all
}

#[test]
fn keys_only_reads_show_what_full_reads_show() {
    let (db, family, clock) = open();
    let (cf, options) = (family.id(), WriteOptions::default());
    let mut random = fastrand::Rng::with_seed(5);
    let keys: BTreeSet<Vec<u8>> = (0..60).map(|n| format!("key{n:03}").into_bytes()).collect();
    let large = vec![b'v'; 40 << 10];
    for round in 0..1200 {
        let key = keys.iter().nth(random.usize(..keys.len())).unwrap();
        let mut batch = archipelago_engine::wal::WriteBatch::new();
        match random.u32(..12) {
            0..=2 => batch.put_cf(cf, key, &large),
            3 => batch.put_cf(cf, key, &7u64.to_le_bytes()),
            4 => batch.put_expiring_cf(cf, key, &large, EXPIRY_MS),
            5 => batch.put_expiring_cf(cf, key, &large, 500),
            6 => batch.put_expiring_cf(cf, key, &7u64.to_le_bytes(), EXPIRY_MS),
            7 => batch.delete_range_cf(cf, key, &[&key[..], b"~"].concat()),
            8 | 9 => batch.delete_cf(cf, key),
            // Operands are written only above small values, because the operator refuses others.
            _ => {
                batch.delete_cf(cf, key);
                batch.merge_cf(cf, key, &1u64.to_le_bytes());
                batch.merge_cf(cf, key, &2u64.to_le_bytes());
            }
        }
        db.write(&batch, &options).unwrap();
        while db.step_background().unwrap() {}
        if round % 100 == 99 {
            if round == 799 {
                clock.advance(Duration::from_millis(EXPIRY_MS));
            }
            let full = ReadOptions::default();
            for backward in [false, true] {
                let expected = shown(&db, &family, &full, backward);
                let keys_only = shown(&db, &family, &full.clone().keys_only(), backward);
                assert!(keys_only == expected, "round {round}, backward {backward}");
            }
            for key in &keys {
                let entry = db.get_entry(&family, key, &full).unwrap();
                let head = db.get_head(&family, key, &full).unwrap();
                let facts = |entry: Option<archipelago_engine::db::ValueEntry>| {
                    entry.map(|entry| (entry.expires_at_ms, entry.seq))
                };
                assert_eq!(facts(head), facts(entry), "{}", key.escape_ascii());
            }
        }
    }
    db.compact_range(&family, &KeyRange::all()).unwrap();
    db.verify(|_, _| {}).unwrap();
}

#[test]
fn keys_only_reads_read_no_block_of_a_large_value() {
    let (db, _, clock) = open();
    let (family, options) = (db.default_family().clone(), WriteOptions::default());
    let large = vec![b'v'; 300 << 10];
    let key = |n: u32| format!("key{n:03}").into_bytes();
    for n in 0..20 {
        match n % 4 {
            0 => db.put_expiring(&family, &key(n), &large, EXPIRY_MS, &options).unwrap(),
            _ => db.put(&key(n), &large).unwrap(),
        }
        while db.step_background().unwrap() {}
    }
    db.flush(&family).unwrap();
    db.compact_range(&family, &KeyRange::all()).unwrap();
    // Deletes of large values that are in tables: the values below them are not read either.
    for n in (0..20).filter(|n| n % 4 == 1) {
        db.delete(&key(n)).unwrap();
    }
    let misses = || {
        let name = "archipelago.block-cache-data-miss";
        db.property(&family, name).unwrap().parse::<u64>().unwrap()
    };
    let (before, full) = (misses(), ReadOptions::default());
    let keys_only = full.clone().keys_only();
    assert_eq!(shown(&db, &family, &keys_only, false).len(), 15);
    assert_eq!(shown(&db, &family, &keys_only, true).len(), 15);
    assert!(db.contains(&family, &key(0), &full).unwrap());
    assert!(!db.contains(&family, &key(1), &full).unwrap());
    let head = db.get_head(&family, &key(4), &full).unwrap().unwrap();
    assert_eq!((head.expires_at_ms, head.value.len()), (Some(EXPIRY_MS), 0));
    clock.advance(Duration::from_millis(EXPIRY_MS));
    assert_eq!(shown(&db, &family, &keys_only, false).len(), 10);
    assert!(!db.contains(&family, &key(4), &full).unwrap());
    assert_eq!(misses(), before, "blocks of large values were read");
    assert_eq!(db.get(&key(2)).unwrap().unwrap().len(), large.len());
    assert!(misses() > before, "the counter counts");
}
