//! The estimate of live keys, and figures of the block cache.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_engine::db::{Components, Db};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};

use crate::disk::TestDisk;
use crate::support::over;

/// Time at which values with an expiry expire, in Unix milliseconds.
const EXPIRY_MS: u64 = 10_000;

struct Bench {
    db: Db,
    clock: Arc<ManualClock>,
}

impl Bench {
    fn new() -> Self {
        let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000)));
        let family = CfOptions {
            write_buffer_bytes: 1 << 20,
            level_base_bytes: 4 << 20,
            target_file_bytes: 1 << 20,
            ..CfOptions::default()
        };
        let components = Components { clock: Arc::clone(&clock) as _, ..over(&fs, family) };
        Self { db: Db::open_with("/db", DbOptions::default(), components).unwrap(), clock }
    }

    /// Calls `write` for each key, and flushes sealed memtables.
    fn each(&self, keys: impl Iterator<Item = u32>, write: impl Fn(&Db, &[u8])) {
        for key in keys {
            write(&self.db, &key.wrapping_mul(2_654_435_761).to_be_bytes());
            while self.db.step_background().unwrap() {}
        }
    }

    fn put(&self, keys: impl Iterator<Item = u32>) {
        self.each(keys, |db, key| db.put(key, b"a value of some length").unwrap());
    }

    fn delete(&self, keys: impl Iterator<Item = u32>) {
        self.each(keys, |db, key| db.delete(key).unwrap());
    }

    fn put_expiring(&self, keys: impl Iterator<Item = u32>) {
        let options = WriteOptions::default();
        self.each(keys, |db, key| {
            db.put_expiring(db.default_family(), key, b"soon gone", EXPIRY_MS, &options).unwrap();
        });
    }

    fn remove_all(&self) {
        let (db, options) = (&self.db, WriteOptions::default());
        db.delete_range(db.default_family(), &[], &[0xff; 8], &options).unwrap();
    }

    fn expire(&self) {
        self.clock.advance(Duration::from_millis(EXPIRY_MS));
    }

    /// Checks that the estimate is within a tenth of `different` keys of `expected`: now, after
    /// everything is in tables, and after these are compacted.
    fn expect(&self, expected: u64, different: u64) {
        let cf = self.db.default_family();
        let check = |when: &str| {
            let estimate = self.db.estimate_keys(cf);
            let error = estimate.abs_diff(expected);
            assert!(error <= different / 10, "{when}: {estimate} instead of {expected}");
        };
        check("as written");
        self.db.flush(cf).unwrap();
        check("flushed");
        self.db.wait_for_background().unwrap();
        self.db.compact_range(cf, &KeyRange::all()).unwrap();
        check("compacted");
    }
}

#[test]
fn keys_written_once_are_counted() {
    let bench = Bench::new();
    bench.put(0..50_000);
    bench.expect(50_000, 50_000);
}

#[test]
fn overwritten_keys_are_counted_once() {
    let bench = Bench::new();
    for _round in 0..3 {
        bench.put(0..40_000);
    }
    bench.expect(40_000, 40_000);
}

#[test]
fn often_overwritten_key_counts_as_one() {
    let bench = Bench::new();
    bench.put(0..5_000);
    bench.put(std::iter::repeat_n(7, 20_000));
    bench.expect(5_000, 5_000);
}

/// There are fewer keys than samples of a shard, and each has many versions there.
#[test]
fn few_keys_that_are_overwritten_often_are_counted() {
    for keys in [1, 2, 100, 1_000] {
        let bench = Bench::new();
        for _round in 0..10_000 / keys {
            bench.put(0..keys);
        }
        bench.expect(u64::from(keys), u64::from(keys));
    }
}

#[test]
fn deleted_keys_are_not_counted() {
    let bench = Bench::new();
    bench.put(0..40_000);
    bench.delete(0..30_000);
    // Deletes of keys that never existed do not count against others.
    bench.delete(100_000..110_000);
    bench.expect(10_000, 50_000);
}

#[test]
fn keys_under_a_range_delete_are_not_counted() {
    let bench = Bench::new();
    bench.put(0..100_000);
    bench.remove_all();
    assert_eq!(bench.db.estimate_keys(bench.db.default_family()), 0);
    bench.put(0..100_000);
    bench.expect(100_000, 100_000);
}

#[test]
fn expired_keys_are_not_counted() {
    let bench = Bench::new();
    bench.put_expiring(0..30_000);
    bench.put(30_000..50_000);
    bench.expire();
    bench.expect(20_000, 50_000);
}

#[test]
fn expiring_keys_and_their_time_left_are_estimated() {
    for (keys, error) in [(1_000, 0), (50_000, 5_000)] {
        let bench = Bench::new();
        bench.put(0..keys);
        bench.put_expiring(0..keys / 4);
        bench.put(0..keys / 8);
        bench.clock.advance(Duration::from_millis(2_000));
        let cf = bench.db.default_family();
        let check = |when: &str| {
            let estimate = bench.db.estimate_key_counts(cf);
            assert!(estimate.keys.abs_diff(keys.into()) <= error, "{when}: {estimate:?}");
            let expiring = u64::from(keys / 8);
            assert!(estimate.expiring.abs_diff(expiring) <= error, "{when}: {estimate:?}");
            assert_eq!(estimate.mean_ttl_ms, EXPIRY_MS - 3_000, "{when}");
        };
        check("as written");
        bench.db.flush(cf).unwrap();
        check("flushed");
        bench.db.compact_range(cf, &KeyRange::all()).unwrap();
        check("compacted");
        bench.expire();
        let left = bench.db.estimate_key_counts(cf);
        assert_eq!((left.expiring, left.mean_ttl_ms), (0, 0));
    }
}

#[test]
fn mixtures_are_counted_within_the_stated_error() {
    let bench = Bench::new();
    bench.put(0..30_000);
    bench.put_expiring(20_000..40_000);
    bench.delete(0..5_000);
    bench.put(2_000..8_000);
    bench.delete(35_000..50_000);
    bench.expire();
    // The keys 2,000 to 20,000 are live; keys with an expiry have expired.
    bench.expect(18_000, 50_000);
}

#[test]
fn few_keys_are_counted_exactly() {
    let bench = Bench::new();
    bench.put(0..1_000);
    bench.delete(0..100);
    let cf = bench.db.default_family().clone();
    assert_eq!(bench.db.estimate_keys(&cf), 900);
    bench.db.flush(&cf).unwrap();
    bench.put(500..1_100);
    assert_eq!(bench.db.estimate_keys(&cf), 1_000);
}

#[test]
fn counting_reads_no_large_value() {
    let bench = Bench::new();
    let cf = bench.db.default_family().clone();
    for at in 0..4u32 {
        bench.db.put(&at.to_be_bytes(), &vec![7; 8 << 20]).unwrap();
        while bench.db.step_background().unwrap() {}
    }
    bench.db.delete(&0u32.to_be_bytes()).unwrap();
    bench.db.flush(&cf).unwrap();
    bench.db.compact_range(&cf, &KeyRange::all()).unwrap();
    let figure = |name: &str| -> u64 {
        bench.db.property(&cf, &format!("rocksdb.{name}")).unwrap().parse().unwrap()
    };
    let misses = figure("block-cache-data-miss");
    assert_eq!(bench.db.estimate_keys(&cf), 3);
    assert_eq!(figure("block-cache-data-miss"), misses);
}

#[test]
fn block_cache_counts_hits_and_misses() {
    let bench = Bench::new();
    bench.put(0..2_000);
    bench.db.flush(bench.db.default_family()).unwrap();
    let figure = |name: &str| -> u64 {
        let name = format!("archipelago.block-cache-{name}");
        bench.db.property(bench.db.default_family(), &name).unwrap().parse().unwrap()
    };
    let key = 3u32.wrapping_mul(2_654_435_761).to_be_bytes();
    let (hits, misses) = (figure("data-hit"), figure("data-miss"));
    bench.db.get(&key).unwrap().unwrap();
    bench.db.get(&key).unwrap().unwrap();
    assert_eq!(figure("data-hit") + figure("data-miss"), hits + misses + 2);
    assert!(figure("data-hit") > hits);
    assert!(figure("hit") >= figure("data-hit") && figure("miss") >= figure("data-miss"));
    assert!(bench.db.stats_text().contains("Block cache"));
}
